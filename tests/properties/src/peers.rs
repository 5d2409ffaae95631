//! What another daemon sends, after its handshake: any bytes end in an answer or a closed connection, and what is shown of a
//! host fits a table.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use millstream_peers::authority::Authority;
use millstream_peers::server::{ThisHost, serve_member};
use millstream_peers::tls::{Identity, TlsFiles};
use millstream_peers::{About, HostStatus};
use prost::encoding::{self, WireType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

/// The start of a connection (RFC 9113, section 3.4), with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

/// A text of another host is not longer than this.
const MAX_TEXT: usize = 512;

/// Longer than any answer takes.
const TIMEOUT: Duration = Duration::from_secs(10);

static HOST: LazyLock<Arc<ThisHost>> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::create(&directory.path().join("ca"), 1).unwrap();
    let issued = authority.issue("a", 1, directory.path()).unwrap();
    let files = TlsFiles {
        certificate: issued.certificate,
        key: issued.key,
        ca: authority.certificate(),
        crl: Some(authority.revoked()),
    };
    let identity = Identity::load(files).unwrap();
    let host = identity.host("a").unwrap();
    let about = About { host, version: "1".into(), instance: 1, address: "a:1".into() };
    Arc::new(ThisHost::new(about, identity, HostStatus::default))
});

static RUNTIME: LazyLock<Mutex<Runtime>> =
    LazyLock::new(|| Mutex::new(Builder::new_current_thread().enable_all().build().unwrap()));

/// Parses the bytes as each message, and serves them as a connection.
pub fn check(data: &[u8]) {
    if let Ok(about) = About::parse(data) {
        let texts = [about.host.as_str(), &about.version, &about.address];
        assert!(
            texts.iter().all(|text| text.len() <= MAX_TEXT && !text.contains(char::is_control)),
            "{about:?}"
        );
    }
    if let Ok(status) = HostStatus::parse(data) {
        assert!(status.examples_per_second >= 0.0, "{status:?}");
        assert!(status.wait_fraction.is_none_or(|wait| (0.0..=1.0).contains(&wait)), "{status:?}");
        assert!(status.gpus.len() <= 64 && status.gpus.iter().all(|gpu| gpu.len() <= MAX_TEXT));
    }
    let runtime = RUNTIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    runtime
        .block_on(async { tokio::time::timeout(TIMEOUT, serve(data)).await.expect("the connection ends") });
}

/// Sends the bytes over a connection, and reads until it ends.
async fn serve(data: &[u8]) {
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let certificate = HOST.identity.certificate();
    let member = async {
        // The server may close its end first.
        let _ = near.write_all(PREFACE).await;
        let _ = near.write_all(data).await;
        let _ = near.shutdown().await;
        let _ = near.read_to_end(&mut Vec::new()).await;
    };
    // What is not HTTP/2 is an error of the connection.
    let (_, ()) = tokio::join!(serve_member(far, &certificate, &HOST), member);
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A call with one message.
fn call(stream: u32, method: &str, message: &[u8]) -> Vec<u8> {
    let literal = |name: &[u8], value: &str| [name, &[value.len() as u8], value.as_bytes()].concat();
    let path = format!("/millstream.peers.v1.Peers/{method}");
    // POST, https, then literals without indexing (RFC 7541, section 6.2.2).
    let headers = [
        vec![0x83, 0x87],
        literal(&[0x04], &path),
        literal(&[0x01], "peer"),
        literal(&[0x0f, 0x10], "application/grpc"),
        literal(b"\x00\x02te", "trailers"),
    ]
    .concat();
    let body = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
    [frame(1, 4, stream, &headers), frame(0, 1, stream, &body)].concat()
}

fn greeting() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (field, version) in [(1, 1_u32), (2, 1)] {
        encoding::uint32::encode(field, &version, &mut bytes);
    }
    for (field, text) in [(3, "a"), (4, "0.1.0"), (6, "a:7420")] {
        encoding::string::encode(field, &text.to_owned(), &mut bytes);
    }
    encoding::fixed64::encode(5, &7, &mut bytes);
    bytes
}

fn status() -> Vec<u8> {
    let mut bytes = Vec::new();
    encoding::string::encode(4, &"NVIDIA H100".to_owned(), &mut bytes);
    encoding::double::encode(8, &1e6, &mut bytes);
    encoding::double::encode(9, &0.5, &mut bytes);
    bytes
}

/// Messages, and connections with calls in order and out of it.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut milliseconds = Vec::new();
    encoding::encode_key(1, WireType::Varint, &mut milliseconds);
    encoding::encode_varint(1, &mut milliseconds);
    vec![
        greeting(),
        status(),
        [call(1, "Greet", &greeting()), call(3, "Probe", &[])].concat(),
        [call(1, "Greet", &greeting()), call(3, "Send", &milliseconds)].concat(),
        [call(1, "Greet", &greeting()), call(3, "Receive", &[0x0a, 3, 1, 2, 3])].concat(),
        call(1, "Probe", &[]),
        [frame(6, 0, 0, &[0; 8]), frame(8, 0, 0, &[0, 0, 1, 0]), frame(3, 0, 1, &[0; 4])].concat(),
    ]
}

/// Frames, and the names of methods.
pub fn dictionary() -> Vec<Vec<u8>> {
    let mut words =
        vec![greeting(), status(), frame(0, 1, 1, &[]), frame(1, 4, 1, &[0x83]), frame(4, 0, 0, &[])];
    words.extend(["Greet", "Probe", "Send", "Receive"].map(|word| word.as_bytes().to_vec()));
    words
}
