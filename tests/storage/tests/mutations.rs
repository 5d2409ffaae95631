//! Mutated responses lead to data or to an error: no panic, no hang, no unbounded memory.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use futures::StreamExt;
use millstream_io::Error;
use millstream_io::storage::{StorageSpec, Stores};
use millstream_test_storage::{Hostile, Reply};

/// The default number of mutated servers; `MILLSTREAM_RESPONSES` overrides it.
const SERVERS: u64 = 96;
/// Servers at the same time.
const AT_ONCE: usize = 32;
/// Every how many servers one sends without end.
const ENDLESS: u64 = 24;
/// No server keeps a client for longer. Its requests have a deadline of one second each.
const LONGEST: Duration = Duration::from_secs(60);
/// Besides what the test itself needs, two endless listings.
const MAX_BYTES: u64 = 1 << 30;

const DATE: &str = "Last-Modified: Sat, 21 Nov 2026 10:00:00 GMT\r\n";

/// A valid response to a request.
fn valid(head: &str) -> String {
    let with = |status: &str, headers: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
    };
    let line = head.lines().next().unwrap_or_default();
    if line.starts_with("HEAD") {
        return format!("HTTP/1.1 200 OK\r\n{DATE}ETag: \"x\"\r\nContent-Length: 1000\r\n\r\n");
    }
    if line.starts_with("PROPFIND") {
        let body = "<?xml version=\"1.0\"?><D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>/b/a</D:href>\
                    <D:propstat><D:prop><D:getlastmodified>Sat, 21 Nov 2026 10:00:00 GMT</D:getlastmodified>\
                    <D:getcontentlength>1000</D:getcontentlength><D:getetag>\"x\"</D:getetag><D:resourcetype/>\
                    </D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>";
        return with("207 Multi-Status", "", body);
    }
    if line.contains("comp=list") {
        let body = "<?xml version=\"1.0\"?><EnumerationResults><Blobs><Blob><Name>a</Name><Properties>\
                    <Last-Modified>Sat, 21 Nov 2026 10:00:00 GMT</Last-Modified><Etag>x</Etag>\
                    <Content-Length>1000</Content-Length><Content-Type>a/b</Content-Type></Properties></Blob>\
                    </Blobs><NextMarker></NextMarker></EnumerationResults>";
        return with("200 OK", "", body);
    }
    if line.contains("list-type=") {
        let body = "<?xml version=\"1.0\"?><ListBucketResult><Contents><Key>a</Key><Size>1000</Size>\
                    <ETag>&quot;x&quot;</ETag><LastModified>2026-11-21T10:00:00.000Z</LastModified></Contents>\
                    <CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes></ListBucketResult>";
        return format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
    }
    if head.to_ascii_lowercase().contains("range: bytes=") {
        let headers = format!("{DATE}ETag: \"x\"\r\nContent-Range: bytes 10-99/1000\r\n");
        return with("206 Partial", &headers, &"d".repeat(90));
    }
    with(
        "200 OK",
        "ETag: \"x\"\r\n",
        "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>",
    )
}

/// SplitMix64.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((word ^ (word >> 31)) % bound as u64) as usize
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        const PIECES: [&[u8]; 14] = [
            b"\r\n",
            b"\r\n\r\n",
            b"18446744073709551615",
            b"-1",
            b"<a>",
            b"</Contents>",
            b"&#x110000;",
            b"<!DOCTYPE a [<!ENTITY b \"&b;&b;\">]>",
            b"Content-Length: 9223372036854775807\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Location: http://[::ffff:7f00:1]/\r\n",
            b"HTTP/1.1 302 There\r\nLocation: /a\r\n\r\n",
            b"HTTP/1.1 503 Slow\r\n\r\n",
            b"bytes 0-18446744073709551615/18446744073709551615",
        ];
        let at = self.below(bytes.len() + 1);
        let end = (at + self.below(40)).min(bytes.len());
        match self.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..end, PIECES[self.below(PIECES.len())].iter().copied())),
            3 => drop(bytes.splice(at..at, PIECES[self.below(PIECES.len())].repeat(1 + self.below(50)))),
            _ if at == bytes.len() => {}
            4 => bytes[at] ^= 1 << self.below(8),
            _ => bytes[at] = [0, b'9', b'<', 0x80, 0xff][self.below(5)],
        }
    }
}

/// Lists, reads and writes at one server. Returns how many operations succeeded and failed.
async fn exercise(seed: u64) -> [usize; 2] {
    let draw = Mutex::new(Draw(seed));
    let server = Hostile::start(move |head| {
        let mut draw = draw.lock().unwrap();
        let mut bytes = valid(head).into_bytes();
        // Some responses stay valid, so that later requests are made.
        (0..draw.below(4)).for_each(|_| draw.mutate(&mut bytes));
        let endless =
            if seed.is_multiple_of(ENDLESS) { bytes[bytes.len() / 2..].to_vec() } else { Vec::new() };
        Reply { start: bytes, endless }
    });
    let server = server.await.unwrap();
    let mut spec = StorageSpec { deadline_seconds: Some(1), ..StorageSpec::default() };
    (spec.gs.endpoint, spec.gs.anonymous) = (Some(server.endpoint()), Some(true));
    (spec.az.endpoint, spec.az.anonymous) = (Some(server.endpoint()), Some(true));
    spec.az.account = Some("a".to_owned());
    let stores = Stores::new(spec, Stores::SHARED_BYTES);
    let root = ["gs://b".to_owned(), "az://b".to_owned(), format!("{}/b", server.endpoint())];
    let root = &root[(seed % 3) as usize];
    let mut outcomes = [0; 2];
    for pattern in [format!("{root}/*"), format!("{root}/a")] {
        let listed = stores.list(&[pattern], Path::new("/")).await;
        for object in sound(listed, &mut outcomes).into_iter().flatten().take(1) {
            let read = sound(object.read(10..100).await, &mut outcomes);
            assert!(read.is_none_or(|bytes| bytes.len() == 90), "seed {seed}");
        }
    }
    let written = async {
        let mut upload = stores.create(&format!("{root}/a"), Path::new("/")).await?;
        upload.write(b"bytes").await?;
        upload.finish().await
    };
    sound(written.await, &mut outcomes);
    outcomes
}

/// The result of an operation, whose error must not be a bug.
fn sound<T>(result: Result<T, Error>, outcomes: &mut [usize; 2]) -> Option<T> {
    outcomes[usize::from(result.is_err())] += 1;
    result
        .inspect_err(|error| {
            let message = error.to_string();
            assert!(!message.contains("panic") && !matches!(error, Error::Panicked(_)), "{message}");
            assert!(message.len() < 20_000, "{} characters", message.len());
        })
        .ok()
}

/// The highest amount of memory that this process has had resident.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread")]
async fn mutated_responses_are_survived() {
    let servers = std::env::var("MILLSTREAM_RESPONSES").map_or(SERVERS, |count| count.parse().unwrap());
    let before = peak_bytes();
    let mut ended = futures::stream::iter(0..servers)
        .map(|seed| async move { (seed, tokio::time::timeout(LONGEST, tokio::spawn(exercise(seed))).await) })
        .buffer_unordered(AT_ONCE);
    let (mut count, mut outcomes) = (0, [0; 2]);
    while let Some((seed, ended)) = ended.next().await {
        let Ok(Ok(ended)) = ended else { panic!("server {seed}: {ended:?}") };
        (count, outcomes) = (count + 1, [outcomes[0] + ended[0], outcomes[1] + ended[1]]);
    }
    assert_eq!(count, servers);
    assert!(outcomes.iter().all(|&outcomes| outcomes > count as usize / 4), "{outcomes:?}");
    let grown = peak_bytes() - before;
    assert!(grown < MAX_BYTES, "{grown} bytes");
}
