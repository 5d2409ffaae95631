//! Feeds of a daemon: trainers of other programs attach to its socket.

// Ranks in processes of their own report on standard output.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use millstream_feed::client::{Attaching, FeedClient, Next};
use millstream_feed::protocol::{Attach, VERSION};
use millstream_feed::spec::FeedSpec;
use millstream_feed::state::FeedState;
use millstream_feed::{Error, HostKind};
use millstream_tests::programs::{Daemon, wait_until};
use parquet::arrow::ArrowWriter;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::json;

/// How long a test waits for what must happen soon.
const LIMIT: Duration = Duration::from_secs(120);

/// The memory budget of the feeds here, in MiB.
const BUDGET: u64 = 64;

/// The variable with which a rank in a separate process attaches: the socket, the feed, its rank and the number of ranks.
const RANK: &str = "MILLSTREAM_TEST_RANK";

/// A directory with 1,000 numbered rows.
struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        let room = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(room.path(), Permissions::from_mode(0o755)).unwrap();
        for first in (0..1_000).step_by(250) {
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + 250));
            let batch = RecordBatch::try_from_iter([("number", numbers)]).unwrap();
            let file = File::create(room.path().join(format!("train-{first}.parquet"))).unwrap();
            let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
        }
        room
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn socket(&self) -> PathBuf {
        self.path().join("feed.sock")
    }

    /// A daemon with this configuration.
    fn daemon(&self, configuration: &str) -> Daemon {
        fs::write(self.path().join("millstreamd.toml"), configuration).unwrap();
        Daemon::start(self.path())
    }

    /// The feed of these rows, over so many epochs.
    fn feed(&self, epochs: u32) -> String {
        let text = format!(
            "[data]\ntrain = [\"train-*.parquet\"]\nbatch_size = 50\nshuffle_rows = 128\nepochs = {epochs}\nlanes = 2\n\
             memory_budget = \"{BUDGET}MiB\"\n[columns]\nnumber = {{ dtype = \"int64\" }}\n"
        );
        FeedSpec::parse(&text, &self.path().join("feed.toml")).unwrap_or_else(|error| panic!("{error}")).text
    }

    fn attach(&self, feed: &str, run: &str, (rank, world): (u32, u32)) -> Result<FeedClient, Error> {
        attach(&self.socket(), feed, run, (rank, world), None)
    }

    /// A rank in a separate process, which takes one batch and never ends.
    fn rank_process(&self, feed: &str, (rank, world): (u32, u32)) -> Child {
        let feed_file = self.path().join(format!("feed-{rank}.toml"));
        fs::write(&feed_file, feed).unwrap();
        let place = format!("{}\n{}\n{rank}\n{world}", self.socket().display(), feed_file.display());
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "feeds::a_rank_of_another_test", "--nocapture"])
            .env(RANK, place)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

fn attach(
    socket: &Path,
    feed: &str,
    run: &str,
    (rank, world): (u32, u32),
    state: Option<FeedState>,
) -> Result<FeedClient, Error> {
    let socket = UnixStream::connect(socket).unwrap();
    let (feed, run) = (feed.to_owned(), run.to_owned());
    let attach = Attach { version: VERSION, feed, run, rank, world, local_world: world, state, shard: None };
    let attaching = Attaching::start(socket, HostKind::Daemon, &attach)?;
    attaching.wait(LIMIT).map(|attached| attached.unwrap_or_else(|_| panic!("no answer")))
}

/// The numbers of the next batch, and the state after it; `None` after the last one.
fn batch(feed: &mut FeedClient) -> Result<Option<(Vec<i64>, FeedState)>, Error> {
    let lease = match feed.next(LIMIT)? {
        Next::Batch(lease) => lease,
        Next::End => return Ok(None),
        Next::NotYet => panic!("no batch"),
    };
    let batch = lease.batch();
    let numbers = batch.column(0).values.as_chunks().0[..batch.rows()].iter();
    let numbers = numbers.map(|&bytes| i64::from_ne_bytes(bytes)).collect();
    Ok(Some((numbers, FeedState::new(batch.position(), feed.attached()))))
}

/// The numbers of all batches that are left.
fn rest(feed: &mut FeedClient) -> Result<Vec<i64>, Error> {
    let mut all = Vec::new();
    while let Some((numbers, _)) = batch(feed)? {
        all.extend(numbers);
    }
    Ok(all)
}

fn counts(numbers: impl IntoIterator<Item = i64>) -> BTreeMap<i64, usize> {
    let mut counts = BTreeMap::new();
    numbers.into_iter().for_each(|number| *counts.entry(number).or_default() += 1);
    counts
}

fn each(times: usize) -> BTreeMap<i64, usize> {
    (0..1_000).map(|number| (number, times)).collect()
}

/// The body of a rank in a separate process; does nothing otherwise.
#[test]
fn a_rank_of_another_test() {
    let Ok(place) = std::env::var(RANK) else { return };
    let [socket, feed, rank, world] = place.lines().collect::<Vec<_>>().try_into().unwrap();
    let feed = fs::read_to_string(feed).unwrap();
    let ranks = (rank.parse().unwrap(), world.parse().unwrap());
    let mut feed = attach(Path::new(socket), &feed, "processes", ranks, None).unwrap();
    batch(&mut feed).unwrap().unwrap();
    println!("attached");
    thread::sleep(LIMIT);
}

#[test]
fn ranks_of_a_program_get_each_row_once_from_the_daemon() {
    let room = Room::new();
    let daemon = room.daemon("");
    assert_eq!(fs::metadata(room.socket()).unwrap().permissions().mode() & 0o777, 0o660);
    let feed = room.feed(2);
    thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let (room, feed) = (&room, &feed);
            scope.spawn(move || rest(&mut room.attach(feed, "two", (rank, 2)).unwrap()).unwrap())
        });
        let ranks = ranks.map(|rank| rank.join().unwrap());
        assert_eq!(ranks.each_ref().map(Vec::len), [1_000, 1_000]);
        assert_eq!(counts(ranks.concat()), each(2));
    });
    daemon.stop();
    assert!(!room.socket().exists(), "the socket is removed");
}

#[test]
fn open_feeds_are_listed_explained_and_counted() {
    let room = Room::new();
    let daemon = room.daemon("[feeds]\nmemory = '1GiB'\n");
    assert_eq!(daemon.json(&["feeds"]), json!({ "feeds": [], "reserved_bytes": 0, "memory_bytes": 1 << 30 }));
    let mut client = room.attach(&room.feed(2), "shown", (0, 1)).unwrap();
    batch(&mut client).unwrap().unwrap();
    wait_until("the batch is counted", || daemon.json(&["feeds"])["feeds"][0]["rows"].as_u64() >= Some(50));
    let listed = daemon.json(&["feeds"]);
    assert_eq!(listed["reserved_bytes"], BUDGET << 20);
    let feed = &listed["feeds"][0];
    for (key, value) in [
        ("state", json!("feeding")),
        ("run", json!("shown")),
        ("ranks", json!(1)),
        ("attached", json!(1)),
        ("memory_bytes", json!(BUDGET << 20)),
    ] {
        assert_eq!(feed[key], value, "{key} of {feed:#}");
    }
    let id = feed["id"].as_str().unwrap();
    for id in [id, &id[..8]] {
        let explained = daemon.json(&["explain", id]);
        assert!(
            explained["whole"]["bound"].is_string() && explained["resources"]["lanes"] == 2,
            "{explained:#}"
        );
    }
    let unknown = daemon.run(&["explain", "feed-0"]);
    assert!(
        !unknown.status.success() && String::from_utf8_lossy(&unknown.stderr).contains("no job"),
        "{unknown:?}"
    );
    let metric = |name: &str| {
        let metrics = String::from_utf8(daemon.run(&["metrics"]).stdout).unwrap();
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name}: {metrics}")).parse::<f64>().unwrap()
    };
    for (name, value) in [
        ("millstream_feeds", 1.0),
        ("millstream_feed_ranks", 1.0),
        ("millstream_feeds_opened_total", 1.0),
        ("millstream_feeds_reserved_bytes", (BUDGET << 20) as f64),
    ] {
        assert_eq!(metric(name), value, "{name}");
    }
    assert_eq!(rest(&mut client).unwrap().len(), 2_000 - 50);
    drop(client);
    wait_until("the feed has ended", || metric("millstream_feeds") == 0.0);
    assert_eq!(metric("millstream_feed_rows_total"), 2_000.0);
    assert_eq!(metric("millstream_feed_batches_total"), 40.0);
    assert!(metric("millstream_feed_read_bytes_total") > 0.0);
    assert!(!daemon.run(&["explain", id]).status.success());
    daemon.stop();
}

#[test]
fn a_killed_rank_ends_the_feed_of_the_others_and_its_memory_is_free() {
    let room = Room::new();
    let daemon = room.daemon(&format!("[feeds]\nmemory = \"{BUDGET}MiB\"\n"));
    let feed = room.feed(100_000);
    let mut process = room.rank_process(&feed, (1, 2));
    let mut client = room.attach(&feed, "processes", (0, 2)).unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("attached")));
    let error = room.attach(&feed, "another", (0, 1)).err().unwrap().to_string();
    for part in ["the feed needs 64.0 MiB", "all feeds of this host may use 64.0 MiB", "[feeds]"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    kill_process(Pid::from_child(&process), Signal::KILL).unwrap();
    process.wait().unwrap();
    let error = rest(&mut client).unwrap_err();
    assert!(matches!(error, Error::RankLost { rank: 1, .. }), "{error}");
    drop(client);
    wait_until("the memory is free", || room.attach(&feed, "another", (0, 1)).is_ok());
    daemon.stop();
}

#[test]
fn a_feed_ends_with_its_daemon_and_continues_with_the_next_one() {
    let room = Room::new();
    let feed = room.feed(2);
    let mut daemon = room.daemon("");
    let (mut seen, mut state) = (Vec::new(), None);
    for is_killed in [true, false] {
        let mut client = attach(&room.socket(), &feed, "alone", (0, 1), state.take()).unwrap();
        for _ in 0..9 {
            let (numbers, after) = batch(&mut client).unwrap().unwrap();
            seen.extend(numbers);
            state = Some(after);
        }
        let ended = thread::spawn(move || rest_of_ring(&mut client));
        if is_killed {
            daemon.kill();
        } else {
            daemon.stop();
        }
        let error = ended.join().unwrap().to_string();
        assert!(error.contains("the daemon (millstreamd)") && error.contains("attach again"), "{error}");
        assert_eq!(error.contains("stops"), !is_killed, "{error}");
        daemon = room.daemon("");
    }
    let mut client = attach(&room.socket(), &feed, "alone", (0, 1), state).unwrap();
    seen.extend(rest(&mut client).unwrap());
    assert_eq!(counts(seen), each(2));
    daemon.stop();
}

/// Waits without taking batches, so that there is no last one, until the daemon is gone. Returns the error of a later batch.
fn rest_of_ring(feed: &mut FeedClient) -> Error {
    thread::sleep(Duration::from_secs(1));
    loop {
        match batch(feed) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the feed has ended"),
            Err(error) => return error,
        }
    }
}

#[test]
fn a_user_attaches_only_with_the_role_and_the_rights_to_the_data() {
    // Only root can become another user.
    if !geteuid().is_root() {
        return;
    }
    let room = Room::new();
    let daemon = room.daemon("viewers = 'everyone'\n");
    assert_eq!(fs::metadata(room.socket()).unwrap().permissions().mode() & 0o777, 0o666);
    let feed = room.path().join("feed.toml");
    fs::write(&feed, room.feed(1)).unwrap();
    let as_user = |uid: u32, gid: u32| {
        let place = format!("{}\n{}\n0\n1", room.socket().display(), feed.display());
        let output = Command::new("setpriv")
            .args([&format!("--reuid={uid}"), &format!("--regid={gid}"), "--clear-groups"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "feeds::a_rank_that_reads_all", "--nocapture"])
            .env(RANK, place)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let viewer = as_user(64_003, 64_003);
    assert!(viewer.contains("this user may only look at the daemon's jobs"), "{viewer}");
    assert!(viewer.contains("MILLSTREAM_FEED_SOCKET=none"), "{viewer}");
    let member = as_user(64_001, 0);
    assert!(member.contains("read 1000 rows"), "{member}");
    fs::set_permissions(room.path().join("train-250.parquet"), Permissions::from_mode(0o600)).unwrap();
    let member = as_user(64_001, 0);
    assert!(member.contains("train-250.parquet") && member.contains("user 64001 may not read"), "{member}");
    // The daemon's own user is not checked.
    assert_eq!(rest(&mut room.attach(&room.feed(1), "own", (0, 1)).unwrap()).unwrap().len(), 1_000);
    daemon.stop();
}

/// The body of a rank of another user; does nothing otherwise.
#[test]
fn a_rank_that_reads_all() {
    let Ok(place) = std::env::var(RANK) else { return };
    let [socket, feed, _, _] = place.lines().collect::<Vec<_>>().try_into().unwrap();
    let feed = fs::read_to_string(feed).unwrap();
    match attach(Path::new(socket), &feed, "other", (0, 1), None).and_then(|mut feed| rest(&mut feed)) {
        Ok(rows) => println!("read {} rows", rows.len()),
        Err(error) => println!("{error}"),
    }
}
