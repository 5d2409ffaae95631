//! Every fault of a storage service leads to correct data or to the correct error.

#![allow(clippy::unwrap_used)]

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_io::fetch::{FetchedBytes, FetchedRanges};
use millstream_io::permits::DecodePermits;
use millstream_io::storage::{Object, StorageSpec, Stores};
use millstream_io::{Error, ReadContext};
use millstream_test_storage::{Fault, Options, Server};

const MIB: usize = 1 << 20;

fn noise(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn stores(server: &Server, deadline_seconds: u32) -> Stores {
    let mut spec = StorageSpec { deadline_seconds: Some(deadline_seconds), ..StorageSpec::default() };
    spec.gs.endpoint = Some(server.endpoint());
    spec.gs.anonymous = Some(true);
    spec.s3.endpoint = Some(server.endpoint());
    spec.s3.anonymous = Some(true);
    Stores::new(spec, Stores::SHARED_BYTES)
}

async fn list(stores: &Stores, pattern: &str) -> Result<Vec<Object>, Error> {
    stores.list(&[pattern.to_owned()], Path::new("/")).await
}

/// A server with one object of `length` bytes, that object, and its bytes.
async fn one(length: usize, deadline_seconds: u32, options: Options) -> (Server, Object, Vec<u8>) {
    let server = Server::start(options).await.unwrap();
    let bytes = noise(length);
    server.put("b/dir/a", bytes.clone());
    let stores = stores(&server, deadline_seconds);
    let object = list(&stores, "gs://b/dir/a").await.unwrap().remove(0);
    (server, object, bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_faults_are_recovered() {
    let faults = [
        Fault::Status(429),
        Fault::Status(500),
        Fault::Status(503),
        Fault::Status(408),
        Fault::Status(401),
        Fault::Status(403),
        Fault::Reset,
        Fault::Cut(0),
        Fault::Cut(70_000),
        Fault::Short,
        Fault::NoRange,
        Fault::Stall(Duration::from_secs(60)),
        Fault::Silence(Duration::from_secs(60)),
        Fault::Trickle(2_000),
    ];
    for fault in faults {
        let (server, object, bytes) = one(300_000, 8, Options::default()).await;
        server.script([fault]);
        let read = object.read(10..299_000).await;
        assert!(read.is_ok_and(|read| read == bytes[10..299_000]), "{fault:?}");
        assert_eq!((server.unmet(), server.served("b/dir/a").requests), (0, 2), "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_consecutive_faults_are_recovered() {
    let (server, object, bytes) =
        one(5 * MIB, 60, Options { failing_per_mille: 300, ..Options::default() }).await;
    server.script([Fault::Status(503), Fault::Cut(100), Fault::Reset, Fault::Short]);
    assert!(object.read(0..object.size()).await.unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_before_a_broken_connection_are_not_fetched_again() {
    let (server, object, bytes) = one(2 * MIB, 30, Options::default()).await;
    server.script([Fault::Cut(MIB + 1), Fault::Cut(MIB / 2)]);
    assert!(object.read(0..object.size()).await.unwrap() == bytes);
    let served = server.served("b/dir/a").bytes as usize;
    // Starting over would take 3.5 MiB. How many bytes of a broken connection arrive is not under our control.
    assert!(served < 3 * MIB + MIB / 2, "{served}");
}

#[tokio::test(flavor = "multi_thread")]
async fn permanent_faults_are_errors_with_a_reason() {
    for (status, reason) in [(401, "401"), (403, "403"), (400, "400"), (503, "503")] {
        let (server, object, _) = one(1_000, 2, Options::default()).await;
        server.script([Fault::Status(status); 60]);
        let error = object.read(0..10).await.unwrap_err();
        assert!(matches!(error, Error::Storage { .. } | Error::GaveUp { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.starts_with("gs://b/dir/a: ") && message.contains(reason), "{status}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_concurrently_changed_object_is_named() {
    let (server, object, _) = one(1_000, 10, Options::default()).await;
    server.script([Fault::Change]);
    let error = object.read(0..10).await.unwrap_err();
    assert!(matches!(error, Error::Changed { path } if path == "gs://b/dir/a"));
    let (server, object, _) = one(1_000, 10, Options::default()).await;
    server.remove("b/dir/a");
    assert!(matches!(object.read(0..10).await, Err(Error::Changed { .. })));
    // Changed between two attempts of one read.
    let (server, object, _) = one(200_000, 10, Options::default()).await;
    server.script([Fault::Cut(70_000), Fault::Change]);
    assert!(matches!(object.read(0..object.size()).await, Err(Error::Changed { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_read_is_cancelled_immediately() {
    let server = Server::start(Options::default()).await.unwrap();
    server.put("b/a", noise(1_000));
    let stores = stores(&server, 600);
    let (mine, theirs) = (stores.for_job(&StorageSpec::default()), stores.clone());
    let object = list(&mine, "gs://b/a").await.unwrap().remove(0);
    server.script([Fault::Silence(Duration::from_secs(600)); 2]);
    let reading = tokio::spawn(async move { object.read(0..10).await });
    while server.unmet() == 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    mine.cancel();
    assert!(matches!(reading.await.unwrap(), Err(Error::Cancelled)));
    assert!(matches!(list(&mine, "gs://b/a").await, Err(Error::Cancelled)));
    assert_eq!(list(&theirs, "gs://b/a").await.unwrap().len(), 1);
}

#[test]
fn cancelling_an_ingest_cancels_its_hanging_reads() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (server, object, bytes) = runtime.block_on(one(100_000, 600, Options::default()));
    let permits = Arc::new(DecodePermits::new(1, 1, &Arc::default()));
    let lane = ReadContext { runtime: runtime.handle().clone(), permit: permits.of_lane(0) };
    let other = ReadContext::from(runtime.handle());

    server.script([Fault::Silence(Duration::from_secs(600)); 20]);
    let mut whole = FetchedBytes::start(object.clone(), &Arc::default(), &lane);
    let ranges = FetchedRanges::start(object.clone(), vec![5..6, 9..10], &lane);
    while server.unmet() > 18 {
        thread::sleep(Duration::from_millis(5));
    }
    thread::scope(|scope| {
        let whole = scope.spawn(move || whole.read_to_end(&mut Vec::new()));
        let ranges = scope.spawn(move || ranges.wait());
        permits.close();
        let cancelled = whole.join().unwrap().unwrap_err();
        assert!(matches!(cancelled.downcast::<Error>(), Ok(Error::Cancelled)));
        assert!(matches!(ranges.join().unwrap(), Err(Error::Cancelled)));
    });

    server.clear_script();
    let mut read = Vec::new();
    FetchedBytes::start(object, &Arc::default(), &other).read_to_end(&mut read).unwrap();
    assert!(read == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_readers_share_one_transfer() {
    let (server, object, bytes) =
        one(9 * MIB + 77, 60, Options { latency: Duration::from_millis(2), ..Options::default() }).await;
    let stores = stores(&server, 60);
    let object = list(&stores, &object.address()).await.unwrap().remove(0);
    let readers = (0..12).map(|_| {
        let object = object.clone();
        tokio::spawn(async move { object.read(0..object.size()).await.unwrap() })
    });
    for reader in futures::future::join_all(readers).await {
        assert!(reader.unwrap() == bytes);
    }
    // Five blocks, plus those that were hedged because a busy machine was slow.
    let (served, stats) = (server.served("b/dir/a"), stores.stats());
    assert_eq!(served.requests, 5 + stats.hedges);
    assert!(served.bytes <= bytes.len() as u64 + stats.hedges * (2 << 20));
    assert_eq!(stats.shared_bytes, 11 * bytes.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_straggler_is_overtaken_by_a_hedged_request() {
    // On a busy machine other requests may be slow, too, and use up the hedging budget before the straggler, which is
    // then retried after a timeout. This is improbable in every one of five attempts.
    let mut seen = Vec::new();
    for _ in 0..5 {
        let (server, object, bytes) = one(64 * MIB, 600, Options::default()).await;
        let stores = stores(&server, 600);
        let object = list(&stores, &object.address()).await.unwrap().remove(0);
        // The usual latency must be known before a request can be late.
        assert!(object.read(0..40 << 20).await.unwrap() == bytes[..40 << 20]);
        server.script([Fault::Silence(Duration::from_secs(600))]);
        assert!(object.read(40 << 20..64 << 20).await.unwrap() == bytes[40 << 20..]);
        let stats = stores.stats();
        if stats.hedges >= 1 && stats.retries == 0 {
            return;
        }
        seen.push(stats);
    }
    panic!("the straggler was never overtaken: {seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_support_globs_and_pages() {
    let server = Server::start(Options { page: 7, ..Options::default() }).await.unwrap();
    for at in 0..50 {
        server.put(&format!("b/d/part-{at:03}.gz"), "x");
        server.put(&format!("b/d/deep/{at}/y.gz"), "y");
    }
    for other in ["b/d/", "b/d/deep/", "b/d/.hidden.gz", "b/e.gz", "b/d-1/part-0.gz"] {
        server.put(other, "");
    }
    let stores = stores(&server, 10);
    let count = async |pattern: &str| list(&stores, pattern).await.map_or(0, |objects| objects.len());
    for scheme in ["gs", "s3"] {
        assert_eq!(count(&format!("{scheme}://b/d/part-*.gz")).await, 50);
        assert_eq!(count(&format!("{scheme}://b/d/part-00?.gz")).await, 10);
        assert_eq!(count(&format!("{scheme}://b/d/*")).await, 50);
        assert_eq!(count(&format!("{scheme}://b/d/**")).await, 100);
        assert_eq!(count(&format!("{scheme}://b/*/part-*.gz")).await, 51);
        assert_eq!(count(&format!("{scheme}://b/**/{{e,y}}.gz")).await, 51);
    }
    let objects = list(&stores, "gs://b/d/part-*").await.unwrap();
    assert!(objects.windows(2).all(|pair| pair[0].path() < pair[1].path()));
    assert!(matches!(list(&stores, "gs://b/none-*").await, Err(Error::EmptyGlob { .. })));
    assert!(matches!(list(&stores, "gs://b/none").await, Err(Error::NotFound { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_with_a_repeated_or_lost_page_is_repeated() {
    let server = Server::start(Options { page: 10, ..Options::default() }).await.unwrap();
    (0..95).for_each(|at| server.put(&format!("b/{at:03}"), "x"));
    let stores = stores(&server, 10);
    for fault in [Fault::RepeatPage, Fault::LosePage, Fault::ListStatus(503), Fault::ListStatus(429)] {
        server.script([fault]);
        let listed = list(&stores, "gs://b/*").await.unwrap();
        assert_eq!((listed.len(), server.unmet()), (95, 0), "{fault:?}");
    }
    for fault in [Fault::RepeatPage, Fault::LosePage] {
        server.script([fault; 3]);
        let error = list(&stores, "gs://b/*").await.unwrap_err();
        assert!(matches!(&error, Error::Listing { .. }), "{fault:?}: {error}");
        assert_eq!(server.unmet(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_objects_are_listed() {
    let server = Server::start(Options::default()).await.unwrap();
    (0..100_000).for_each(|at| server.put(&format!("b/d/{at:06}"), "x"));
    let listed = list(&stores(&server, 60), "gs://b/d/*").await.unwrap();
    assert_eq!(listed.len(), 100_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn written_objects_are_complete_or_absent() {
    let server = Server::start(Options::default()).await.unwrap();
    let stores = stores(&server, 30);
    for length in [0, 1_000, 20 * MIB] {
        let bytes = noise(length);
        let mut upload = stores.create("gs://b/out", Path::new("/")).await.unwrap();
        for part in bytes.chunks(3 * MIB) {
            upload.write(part).await.unwrap();
        }
        upload.finish().await.unwrap();
        assert!(server.get("b/out").unwrap() == bytes);
    }
    let mut upload = stores.create("gs://b/given-up", Path::new("/")).await.unwrap();
    upload.write(&noise(20 * MIB)).await.unwrap();
    upload.abort().await.unwrap();
    assert!(server.get("b/given-up").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_servers_can_be_read() {
    let server = Server::start(Options::default()).await.unwrap();
    server.put("site/a.csv", noise(3 * MIB));
    let stores = Stores::default();
    let object = list(&stores, &format!("{}/site/a.csv", server.endpoint())).await.unwrap().remove(0);
    assert!(object.read(5..3 << 20).await.unwrap() == noise(3 * MIB)[5..]);
    server.put("site/a.csv", noise(3 * MIB));
    assert!(matches!(object.read(0..1).await, Err(Error::Changed { .. })));
}

/// Runs in a separate process, in the environment set by `tokens_are_requested_again_after_revocation`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a metadata server in its environment"]
async fn reads_with_tokens() {
    let object = list(&Stores::default(), "gs://b/a").await.unwrap().remove(0);
    // Without shared blocks, each read is a request.
    for at in 0..40 {
        object.read(at..1_000).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_requested_again_after_revocation() {
    let server = Server::start(Options { tokens: true, ..Options::default() }).await.unwrap();
    server.put("b/a", noise(1_000));
    let nowhere = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "reads_with_tokens", "--ignored"])
        .env("GCE_METADATA_HOST", server.address().to_string())
        .env("STORAGE_EMULATOR_HOST", server.endpoint())
        .env("HOME", nowhere.path())
        .env_remove("GOOGLE_APPLICATION_CREDENTIALS")
        .env_remove("CLOUDSDK_CONFIG")
        .spawn()
        .unwrap();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
        server.revoke_tokens();
    };
    assert!(status.success());
    assert!(server.tokens() > 1, "{} tokens", server.tokens());
}
