//! No server can make the client allocate without bound, wait without end, or reach what the server could not.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use millstream_io::Error;
use millstream_io::storage::{Object, StorageSpec, Stores};
use millstream_pipeline::dataset::Dataset;
use millstream_test_storage::{Hostile, Options, Reply, Server};

const OK: &str = "HTTP/1.1 200 OK\r\n\r\n";

fn stores(endpoint: &str) -> Stores {
    let mut spec = StorageSpec { deadline_seconds: Some(2), ..StorageSpec::default() };
    let endpoint = Some(endpoint.to_owned());
    spec.gs.endpoint.clone_from(&endpoint);
    spec.gs.anonymous = Some(true);
    spec.s3.endpoint.clone_from(&endpoint);
    spec.s3.anonymous = Some(true);
    spec.az.endpoint = endpoint;
    spec.az.account = Some("a".to_owned());
    spec.az.anonymous = Some(true);
    Stores::new(spec, Stores::SHARED_BYTES)
}

async fn list(stores: &Stores, pattern: &str) -> Result<Vec<Object>, Error> {
    stores.list(&[pattern.to_owned()], Path::new("/")).await
}

/// The head of the response to a `HEAD` request for an object of `size` bytes.
fn found(size: u64) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: \"x\"\r\n\
         Last-Modified: Sat, 21 Nov 2026 10:00:00 GMT\r\n\r\n"
    )
}

/// The patterns whose listings `server` would serve.
fn globs(server: &Hostile) -> [String; 4] {
    [
        "gs://b/*".to_owned(),
        "s3://b/*".to_owned(),
        "az://b/*".to_owned(),
        format!("{}/b/*", server.endpoint()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_without_end_is_cut_off() {
    let entry = "<Contents><Key>k</Key><Size>1</Size></Contents>".repeat(1_000);
    let server = Hostile::start(move |_| Reply::endless(format!("{OK}<ListBucketResult>"), entry.clone()))
        .await
        .unwrap();
    for pattern in globs(&server) {
        let sent = server.sent();
        let error = list(&stores(&server.endpoint()), &pattern).await.unwrap_err().to_string();
        let most = if pattern.starts_with("http") { 64 << 20 } else { 32 << 20 };
        assert!(error.contains(&format!("more than {most} bytes")), "{error}");
        // Besides what the client read, what the sockets hold.
        let sent = server.sent() - sent;
        assert!((most..most + (24 << 20)).contains(&sent), "{pattern}: {sent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_length_of_exabytes_is_not_allocated() {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n<a>", 7_u64 << 60);
    let server = Hostile::start(move |_| Reply::just(head.clone())).await.unwrap();
    for pattern in globs(&server) {
        let error = list(&stores(&server.endpoint()), &pattern).await.unwrap_err().to_string();
        assert!(error.contains("the maximum for a"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_exabytes_is_an_error_with_its_size() {
    let server = Hostile::start(|_| Reply::just(found(7 << 60))).await.unwrap();
    let objects = list(&stores(&server.endpoint()), "gs://b/a.tfrecord").await.unwrap();
    let dataset = Dataset::of(objects, None).await.unwrap();
    let error = dataset.cut_at(64 << 20).unwrap_err().to_string();
    assert!(error.starts_with("gs://b/a.tfrecord: ") && error.contains("8070450532247928832"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_without_end_is_short_and_printable() {
    let noise = "\u{1b}[31mno\r\n\u{ff}".repeat(1_000);
    for status in [400, 403, 404, 418, 500] {
        let start = format!("HTTP/1.1 {status} No\r\n\r\n");
        let noise = noise.clone();
        let server = Hostile::start(move |_| Reply::endless(start.clone(), noise.clone())).await.unwrap();
        let error = list(&stores(&server.endpoint()), "gs://b/*").await.unwrap_err().to_string();
        assert!(error.contains(&status.to_string()) && error.contains("[31mno"), "{error}");
        assert!(error.len() < 10_000 && !error.contains(char::is_control), "{}: {error}", error.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_of_pages_ends() {
    for tokens in [["t", "t"], ["t", "u"]] {
        let server = Hostile::start(move |head| {
            let next = tokens[usize::from(head.contains("=t&"))];
            let page = "<ListBucketResult><NextContinuationToken>";
            Reply::just(format!("{OK}{page}{next}</NextContinuationToken></ListBucketResult>"))
        });
        let server = server.await.unwrap();
        let error = list(&stores(&server.endpoint()), "s3://b/*").await.unwrap_err();
        assert!(matches!(&error, Error::Listing { message, .. } if message.contains("token")), "{error}");
        assert!(server.requests().len() < 30, "{}", server.requests().len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_receives_no_more_than_it_requested() {
    let server = Hostile::start(|head| {
        if head.starts_with("HEAD") {
            return Reply::just(found(1_000_000));
        }
        let start = "HTTP/1.1 206 Partial\r\nContent-Range: bytes 10-99999/1000000\r\nETag: \"x\"\r\n\
                     Last-Modified: Sat, 21 Nov 2026 10:00:00 GMT\r\n\
                     Content-Length: 9000000000000000000\r\n\r\n";
        Reply::endless(start, vec![7; 64 << 10])
    });
    let server = server.await.unwrap();
    let object = list(&stores(&server.endpoint()), "gs://b/a").await.unwrap().remove(0);
    let error = object.read(10..100_000).await.unwrap_err();
    let message = error.to_string();
    assert!(
        matches!(error, Error::GaveUp { .. }) && message.contains("more bytes than requested"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_a_service_of_this_host_is_refused_at_once() {
    let to = "HTTP/1.1 307 Elsewhere\r\nLocation: http://169.254.169.254/latest/meta-data\r\nContent-Length: 0\r\n\r\n";
    let server = Hostile::start(move |_| Reply::just(to)).await.unwrap();
    for pattern in globs(&server) {
        let requests = server.requests().len();
        let error = list(&stores(&server.endpoint()), &pattern).await.unwrap_err().to_string();
        assert!(error.contains("169.254.169.254, which is not permitted"), "{error}");
        assert_eq!(server.requests().len(), requests + 1, "{pattern}");
    }
    // Reads too are redirected or refused, and not retried.
    let server = Hostile::start(move |head| {
        Reply::just(if head.starts_with("HEAD") { found(1_000) } else { to.to_owned() })
    });
    let server = server.await.unwrap();
    let object = list(&stores(&server.endpoint()), "gs://b/a").await.unwrap().remove(0);
    let error = object.read(0..10).await.unwrap_err();
    assert!(matches!(error, Error::Storage { .. }) && error.to_string().contains("not permitted"), "{error}");
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_followed_but_not_forever() {
    let target = Server::start(Options::default()).await.unwrap();
    target.put("b/a", "hello");
    let to = target.endpoint();
    let server = Hostile::start(move |head| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        Reply::just(format!("HTTP/1.1 302 There\r\nLocation: {to}{path}\r\nContent-Length: 0\r\n\r\n"))
    });
    let server = server.await.unwrap();
    let stores_there = stores(&server.endpoint());
    let object = list(&stores_there, "gs://b/*").await.unwrap().remove(0);
    assert_eq!(object.read(1..5).await.unwrap(), "ello");
    let server =
        Hostile::start(|_| Reply::just("HTTP/1.1 302 Here\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"));
    let server = server.await.unwrap();
    let error = list(&stores(&server.endpoint()), "gs://b/*").await.unwrap_err().to_string();
    assert!(error.contains("more than 10 redirects"), "{error}");
    assert_eq!(server.requests().len(), 11);
}

/// Runs in a separate process, with the credentials that `credentials_do_not_follow_a_redirect` sets.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs credentials in its environment"]
async fn reads_with_credentials() {
    assert_eq!(list(&Stores::default(), "s3://b/a").await.unwrap()[0].size(), 5);
    let error = list(&Stores::default(), "s3://b/a?X-Amz-Signature=sesame").await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("sesame"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_do_not_follow_a_redirect() {
    let other = Hostile::start(|_| Reply::just(found(5))).await.unwrap();
    let to = other.endpoint();
    let server = Hostile::start(move |_| {
        Reply::just(format!("HTTP/1.1 307 There\r\nLocation: {to}/b/a\r\nContent-Length: 0\r\n\r\n"))
    });
    let server = server.await.unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "reads_with_credentials", "--ignored"])
        .env("AWS_ENDPOINT_URL", server.endpoint())
        .env("AWS_ACCESS_KEY_ID", "id")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("AWS_SESSION_TOKEN", "sesame")
        .spawn()
        .unwrap();
    let ended = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert!(ended.success());
    let (first, second) = (server.requests().remove(0), other.requests().remove(0));
    let first = first.to_ascii_lowercase();
    assert!(first.contains("x-amz-security-token: sesame") && first.contains("authorization: "), "{first}");
    let second = second.to_ascii_lowercase();
    for secret in ["sesame", "authorization", "x-amz-", "credential"] {
        assert!(!second.contains(secret), "{second}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_without_tls_fails_at_once_with_a_hint() {
    let server = Hostile::start(|_| Reply::just("HTTP/1.1 400 Bad Request\r\n\r\n")).await.unwrap();
    let endpoint = server.endpoint().replace("http://", "https://");
    for pattern in ["gs://b/*".to_owned(), format!("{endpoint}/b/a")] {
        let requests = server.requests().len();
        let error = list(&stores(&endpoint), &pattern).await.unwrap_err().to_string();
        assert!(error.contains("write http:// instead of https://"), "{error}");
        assert!(error.contains(&server.address().to_string()), "{error}");
        assert_eq!(server.requests().len(), requests + 1, "{pattern}");
    }
}

/// Runs in a separate process, whose descriptors it uses up.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "uses up the descriptors of its process"]
async fn reads_without_descriptors() {
    use rustix::process::{Resource, Rlimit, setrlimit};

    let server = Server::start(Options::default()).await.unwrap();
    server.put("b/a", "hello");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), "hello").unwrap();
    let local = format!("{}/*", dir.path().display());
    let stores = stores(&server.endpoint());
    let object = list(&stores, &local).await.unwrap().remove(0);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
    let use_up = || (0..).map_while(|_| std::fs::File::open("/dev/null").ok()).collect::<Vec<_>>();
    // They become free in time. The connection of the listing is reused, so it is the file that needs one.
    for pattern in [local.as_str(), "gs://b/a"] {
        let held = use_up();
        assert!(held.len() > 10);
        let freed = tokio::task::spawn_blocking(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
        });
        let listed = list(&stores, pattern).await.unwrap();
        assert_eq!(listed[0].read(0..5).await.unwrap(), "hello");
        freed.await.unwrap();
    }
    // They do not.
    let other = self::stores(&server.endpoint());
    // A read needs a connection besides that of the listing.
    let unread = list(&self::stores(&server.endpoint()), "gs://b/a").await.unwrap().remove(0);
    let _held = use_up();
    let errors = [
        object.read(0..5).await.unwrap_err(),
        unread.read(0..5).await.unwrap_err(),
        list(&stores, &local).await.unwrap_err(),
        list(&other, "gs://b/a").await.unwrap_err(),
    ];
    for error in errors {
        let message = error.to_string();
        assert!(message.contains("file descriptor") && message.contains("is 64"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lack_of_descriptors_is_waited_for() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "reads_without_descriptors", "--ignored"])
        .spawn()
        .unwrap();
    assert!(tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap().success());
}
