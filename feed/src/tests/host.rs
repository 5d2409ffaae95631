//! Hosts: their memory, their end, and which programs they admit.

use millstream_io::storage::Object;

use super::*;
use crate::access::{Access, Admission, Refusal};
use crate::host::Delivered;

#[test]
fn feeds_together_use_at_most_the_memory_of_their_host() {
    let fixture = Fixture::new(300);
    fixture.host.set_memory(100 << 20);
    let feed = fixture.feed("batch_size = 50\nmemory_budget = \"60MiB\"");
    let as_run = |run: &str, attach: &(dyn Fn() -> Result<FeedClient, Error> + Sync)| {
        thread::scope(|scope| {
            let named = thread::Builder::new().name(run.to_owned());
            named.spawn_scoped(scope, attach).unwrap().join().unwrap()
        })
    };
    let attach = || fixture.attach(&feed, 0, 1, None);
    let mut first = as_run("first", &attach).unwrap();
    see(&mut first).unwrap().unwrap();
    // A batch is counted after it is published.
    wait_until(|| fixture.host.status().delivered.rows > 0);
    let status = fixture.host.status();
    assert_eq!((status.reserved_bytes, status.memory_bytes, status.opened), (60 << 20, 100 << 20, 1));
    let shown = &status.feeds[0];
    assert_eq!((shown.ranks, shown.attached, shown.memory_bytes), (1, 1, 60 << 20));
    assert!(shown.id.starts_with("feed-") && shown.ingest.is_some() && shown.delivered.rows > 0);

    let error = as_run("second", &attach).err().unwrap().to_string();
    for part in ["the feed needs 60.0 MiB", "100.0 MiB", "60.0 MiB are in use", "memory_budget", "[feeds]"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // An evaluation needs as much as its rings and lanes at least.
    fixture.host.set_memory(61 << 20);
    first.request_evaluation("val").unwrap();
    let error = first.wait_for_evaluation(LIMIT).err().unwrap().to_string();
    assert!(error.contains("the evaluation needs"), "{error}");
    fixture.host.set_memory(100 << 20);
    first.request_evaluation("val").unwrap();
    let mut evaluation = first.wait_for_evaluation(LIMIT).unwrap().unwrap();
    while let Next::Batch(_) = evaluation.next(LIMIT).unwrap() {}
    assert_eq!(rest(&mut first).unwrap().len(), 5);
    drop(first);
    wait_until(|| fixture.host.status().reserved_bytes == 0);
    let status = fixture.host.status();
    let Delivered { rows, batches, bytes } = status.delivered;
    assert_eq!((rows, batches, status.feeds.len()), (300 + 37, 6 + 1, 0));
    assert!(bytes > 0);
    assert!(as_run("second", &attach).is_ok());
}

#[test]
fn a_host_that_is_closed_ends_all_feeds_with_the_reason() {
    let fixture = Fixture::new(300);
    let feed = fixture.feed("batch_size = 50\nepochs = 1000");
    let mut client = fixture.attach(&feed, 0, 1, None).unwrap();
    see(&mut client).unwrap().unwrap();
    thread::scope(|scope| {
        // It waits for another rank.
        let waiting = || fixture.attach(&feed, 0, 2, None).err().unwrap().to_string();
        let waiting = thread::Builder::new().name("waiting".to_owned()).spawn_scoped(scope, waiting).unwrap();
        thread::sleep(Duration::from_millis(200));
        let began = Instant::now();
        fixture.host.close("the host stops", LIMIT);
        assert!(began.elapsed() < Duration::from_secs(10));
        let error = rest(&mut client).unwrap_err().to_string();
        assert_eq!(error, "the host stops");
        assert_eq!(waiting.join().unwrap(), "the host stops");
    });
    wait_until(|| fixture.host.status().reserved_bytes == 0);
}

/// Admits everybody or nobody, and lets nobody read files of this name.
struct Guard {
    message: Option<&'static str>,
    closed: &'static str,
}

impl Admission for Guard {
    fn admit(&self, _: &UnixStream) -> Result<Arc<dyn Access>, Refusal> {
        let Self { message, closed } = *self;
        match message {
            Some(message) => Err(Refusal { message: Some(message.to_owned()) }),
            None => Ok(Arc::new(Self { message, closed })),
        }
    }
}

impl Access for Guard {
    fn user(&self) -> u32 {
        7
    }

    fn check_spec(&self, _: &FeedSpec) -> Result<(), Error> {
        Ok(())
    }

    fn check_patterns(&self, _: &[String], _: &Stores) -> Result<(), Error> {
        Ok(())
    }

    fn check_files(&self, files: &[Object], _: &Path) -> Result<(), Error> {
        let found = files.iter().find(|file| file.path().ends_with(self.closed));
        found.map_or(Ok(()), |file| Err(Error::Failed(format!("{} is closed", file.path()))))
    }
}

#[test]
fn a_program_attaches_and_reads_only_if_the_host_lets_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let fixture = Fixture::new(300);
    let attach = |guard: Guard, feed: &str| {
        let listener = UnixListener::bind(fixture.directory.path().join("guarded.sock")).unwrap();
        let host = Host::new(&Stores::default(), runtime.handle().clone());
        let serving = host.clone();
        let serving = thread::spawn(move || serving.serve(&listener, &guard, None).unwrap());
        let socket = UnixStream::connect(fixture.directory.path().join("guarded.sock")).unwrap();
        std::fs::remove_file(fixture.directory.path().join("guarded.sock")).unwrap();
        let (feed, run) = (feed.to_owned(), "guarded".to_owned());
        let attach = Attach {
            version: VERSION,
            feed,
            run,
            rank: 0,
            world: 1,
            local_world: 1,
            state: None,
            shard: None,
        };
        let attached = Attaching::start(socket, HostKind::Daemon, &attach).unwrap().wait(LIMIT);
        let attached = attached.map(|attached| attached.unwrap_or_else(|_| panic!("no answer")));
        let evaluated = attached.map(|mut client| {
            client.request_evaluation("val").unwrap();
            client.wait_for_evaluation(LIMIT).map(drop)
        });
        host.close("the test is over", LIMIT);
        serving.join().unwrap();
        let flat = evaluated.map_err(|error| error.to_string());
        flat.and_then(|evaluated| evaluated.map_err(|error| error.to_string()))
    };
    // A long message, of which the host that refuses reads nothing before it answers.
    let feed = fixture.feed("batch_size = 50");
    let long = format!("{feed}\n#{}", "x".repeat(100_000));
    let refused = attach(Guard { message: Some("you may not"), closed: "-" }, &long);
    assert_eq!(refused.unwrap_err(), "you may not");
    let error = attach(Guard { message: None, closed: "train-00100.parquet" }, &feed).unwrap_err();
    assert!(error.contains("train-00100.parquet is closed"), "{error}");
    let error = attach(Guard { message: None, closed: "val.parquet" }, &feed).unwrap_err();
    assert!(error.contains("val.parquet is closed"), "{error}");
    assert_eq!(attach(Guard { message: None, closed: "-" }, &feed), Ok(()));
}

#[test]
fn a_host_without_ranks_ends() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("feed.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let host = Host::new(&Stores::default(), runtime.handle().clone());
    let began = Instant::now();
    let serving = thread::spawn(move || host.serve(&listener, &SameUser, Some(Duration::from_millis(300))));
    // A connection that says nothing, and one that is no rank.
    drop(UnixStream::connect(&path).unwrap());
    std::io::Write::write_all(&mut UnixStream::connect(&path).unwrap(), b"GET / HTTP/1.1\r\n\r\n").unwrap();
    serving.join().unwrap().unwrap();
    assert!(began.elapsed() >= Duration::from_millis(300));
}
