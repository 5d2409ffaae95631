//! Feeds over real sockets and rings, with ranks that are threads.

#![allow(clippy::unwrap_used)]

mod host;
mod ranks;
mod shards;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millstream_batch::{ColumnRef, Lease};
use millstream_io::storage::Stores;
use parquet::arrow::ArrowWriter;

use crate::access::SameUser;
use crate::client::{Attaching, FeedClient, Next};
use crate::host::Host;
use crate::protocol::{Attach, VERSION};
use crate::spec::FeedSpec;
use crate::state::FeedState;
use crate::{Error, HostKind};

/// How long a test waits for what must happen soon.
const LIMIT: Duration = Duration::from_secs(60);

/// Files with rows that have numbers, and a host that reads them.
struct Fixture {
    directory: tempfile::TempDir,
    host: Host,
    _runtime: tokio::runtime::Runtime,
}

/// A batch as a rank sees it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    epoch: u32,
    numbers: Vec<i64>,
    /// The values of all columns.
    bytes: Vec<u8>,
    state: FeedState,
}

impl Fixture {
    /// `rows` rows in files of 100.
    fn new(rows: i64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for first in (0..rows).step_by(100) {
            let numbers: Vec<i64> = (first..rows.min(first + 100)).collect();
            write(&directory.path().join(format!("train-{first:05}.parquet")), &numbers);
        }
        write(&directory.path().join("val.parquet"), &(10_000..10_037).collect::<Vec<_>>());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = UnixListener::bind(directory.path().join("feed.sock")).unwrap();
        let host =
            Host::new(&Stores::default(), runtime.handle().clone()).with_patience(Duration::from_secs(1));
        let serving = host.clone();
        thread::spawn(move || serving.serve(&listener, &SameUser, None).unwrap());
        Self { directory, host, _runtime: runtime }
    }

    fn feed(&self, more: &str) -> String {
        let text = format!(
            "seed = 3\n[data]\ntrain = [\"train-*.parquet\"]\neval = {{ val = \"val.parquet\" }}\nlanes = 4\n{more}\n\
             [columns]\nnumber = {{ dtype = \"int64\" }}\n\
             pair = {{ column = \"values\", dtype = \"float32\", shape = [2] }}\n\
             some = {{ kind = \"ragged\", column = \"values\", dtype = \"float64\", maximum = 1 }}\n\
             name = {{ kind = \"raw\", maximum = 9 }}\n"
        );
        let path = self.directory.path().join("feed.toml");
        FeedSpec::parse(&text, &path).unwrap_or_else(|error| panic!("{error}")).text
    }

    fn attach(
        &self,
        feed: &str,
        rank: u32,
        world: u32,
        state: Option<&FeedState>,
    ) -> Result<FeedClient, Error> {
        self.attach_one_of(world, feed, (rank, world), state)
    }

    /// Attaches one of `local_world` ranks of this host.
    fn attach_one_of(
        &self,
        local_world: u32,
        feed: &str,
        (rank, world): (u32, u32),
        state: Option<&FeedState>,
    ) -> Result<FeedClient, Error> {
        self.attach_with(&Attach {
            version: VERSION,
            feed: feed.to_owned(),
            run: format!("{:?}", thread::current().name()),
            rank,
            world,
            local_world,
            state: state.cloned(),
            shard: None,
        })
    }

    fn attach_with(&self, attach: &Attach) -> Result<FeedClient, Error> {
        let socket = UnixStream::connect(self.socket()).unwrap();
        let attaching = Attaching::start(socket, HostKind::Process, attach)?;
        attaching.wait(LIMIT).map(|attached| attached.unwrap_or_else(|_| panic!("no answer")))
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("feed.sock")
    }

    /// What all ranks see from `state` on, by rank.
    fn ranks(&self, feed: &str, world: u32, state: Option<&FeedState>) -> Vec<Vec<Seen>> {
        thread::scope(|scope| {
            let ranks = (0..world).map(|rank| {
                let run =
                    format!("{world} ranks from {}", state.map_or("the start", |state| &state.position));
                let see = move || rest(&mut self.attach(feed, rank, world, state).unwrap()).unwrap();
                thread::Builder::new().name(run).spawn_scoped(scope, see).unwrap()
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }
}

fn wait_until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(5));
    }
}

fn write(path: &Path, numbers: &[i64]) {
    let mut values = ListBuilder::new(Float32Builder::new());
    for &number in numbers {
        values.values().append_slice(&[number as f32, number as f32 / 2.0]);
        values.append(true);
    }
    let names: StringArray = numbers.iter().map(|number| Some(format!("row {number}"))).collect();
    let columns: [(&str, ArrayRef); 3] = [
        ("number", Arc::new(Int64Array::from(numbers.to_vec()))),
        ("values", Arc::new(values.finish())),
        ("name", Arc::new(names)),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// The next batch, which is checked.
fn see(feed: &mut FeedClient) -> Result<Option<Seen>, Error> {
    let lease = match feed.next(LIMIT)? {
        Next::Batch(lease) => lease,
        Next::End => return Ok(None),
        Next::NotYet => panic!("no batch"),
    };
    let (batch, capacity) = (lease.batch(), feed.attached().schema.rows as usize);
    let rows = batch.rows();
    let of = |column: usize| batch.column(column);
    let all: Vec<i64> = of(0).values.as_chunks().0.iter().map(|&bytes| i64::from_ne_bytes(bytes)).collect();
    assert_eq!(all.len(), capacity);
    assert!(all[rows..].iter().all(|&number| number == 0), "padding");
    let pairs: Vec<f32> = of(1).values.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect();
    let firsts: Vec<f64> =
        of(2).values.as_chunks().0.iter().map(|&bytes| f64::from_ne_bytes(bytes)).collect();
    let (offsets, names) = (of(3).offsets.unwrap(), of(3).values);
    for row in 0..rows {
        let number = all[row];
        assert_eq!(pairs[2 * row..][..2], [number as f32, number as f32 / 2.0]);
        assert_eq!(firsts[row], number as f64, "one value of two");
        let name = &names[offsets[row] as usize..offsets[row + 1] as usize];
        assert_eq!(name, format!("row {number}").as_bytes());
    }
    assert!(offsets[rows..].iter().all(|&offset| offset == offsets[rows]), "rows without names");
    let valid = |column: usize| {
        let ColumnRef { offsets, values } = of(column);
        let size = feed.attached().schema.columns[column].kind.dtype().bytes();
        &values[..offsets.map_or(values.len(), |offsets| offsets[rows] as usize * size)]
    };
    let bytes = (0..4).flat_map(valid).copied().collect();
    let state = FeedState::new(batch.position(), feed.attached());
    Ok(Some(Seen { epoch: batch.header().epoch, numbers: all[..rows].to_vec(), bytes, state }))
}

/// The numbers of a batch of held-out rows.
fn held_out_rows(lease: &Lease) -> Vec<i64> {
    let batch = lease.batch();
    batch.column(0).values.as_chunks().0[..batch.rows()]
        .iter()
        .map(|&bytes| i64::from_ne_bytes(bytes))
        .collect()
}

fn rest(feed: &mut FeedClient) -> Result<Vec<Seen>, Error> {
    std::iter::from_fn(|| see(feed).transpose()).collect()
}

/// How often each number occurs in an epoch.
fn counts<'a>(batches: impl IntoIterator<Item = &'a Seen>, epoch: u32) -> BTreeMap<i64, usize> {
    let mut counts = BTreeMap::new();
    for batch in batches.into_iter().filter(|batch| batch.epoch == epoch) {
        batch.numbers.iter().for_each(|&number| *counts.entry(number).or_default() += 1);
    }
    counts
}

fn once(rows: i64) -> BTreeMap<i64, usize> {
    (0..rows).map(|number| (number, 1)).collect()
}

#[test]
fn a_feed_goes_on_after_any_batch_with_any_number_of_ranks() {
    let fixture = Fixture::new(430);
    let feed = fixture.feed("batch_size = 48\nepochs = 2\nshuffle_rows = 128");
    let whole = fixture.ranks(&feed, 1, None).remove(0);
    for (step, Seen { state, .. }) in whole.iter().enumerate() {
        let json = serde_json::to_string(state).unwrap();
        let state = serde_json::from_str(&json).unwrap();
        assert_eq!(fixture.ranks(&feed, 1, Some(&state))[0], whole[step + 1..], "after step {step}");
    }
    let ranks = fixture.ranks(&feed, 3, Some(&whole[3].state));
    let parts = |step: usize| ranks.iter().flat_map(|rank| rank[step].numbers.clone()).collect::<Vec<_>>();
    for (step, whole) in whole[4..].iter().enumerate() {
        assert_eq!(parts(step), whole.numbers);
    }
}

#[test]
fn the_identity_depends_on_the_feed_the_state_and_the_files() {
    let fixture = Fixture::new(100);
    let feed = fixture.feed("batch_size = 10");
    let identity = |feed: &str, state| fixture.attach(feed, 0, 1, state).unwrap().attached().identity.clone();
    let first = identity(&feed, None);
    assert_eq!(first, identity(&feed, None));
    let faster = fixture.feed("batch_size = 10\nthreads = 2\nprefetch = 5\nmemory_budget = \"1GiB\"");
    assert_eq!(first, identity(&faster, None), "a machine may have other resources");
    let state = fixture.ranks(&feed, 1, None)[0][2].state.clone();
    let mut all = HashSet::from([
        first,
        identity(&feed, Some(&state)),
        identity(&fixture.feed("batch_size = 20"), None),
    ]);
    write(&fixture.directory.path().join("train-99999.parquet"), &[7]);
    all.insert(identity(&feed, None));
    assert_eq!(all.len(), 4);
}

#[test]
fn files_that_are_added_later_are_not_read_and_changed_ones_are_errors() {
    let fixture = Fixture::new(300);
    let feed = fixture.feed("batch_size = 50\nshuffle_rows = 0");
    let whole = fixture.ranks(&feed, 1, None).remove(0);
    write(&fixture.directory.path().join("train-99999.parquet"), &[7]);
    assert_eq!(fixture.ranks(&feed, 1, Some(&whole[1].state))[0], whole[2..]);
    write(&fixture.directory.path().join("train-00100.parquet"), &[7]);
    let error = fixture.attach(&feed, 0, 1, Some(&whole[1].state)).err().unwrap().to_string();
    assert!(error.contains("train-00100.parquet"), "{error}");
}

#[test]
fn states_of_other_feeds_are_refused() {
    let fixture = Fixture::new(300);
    let of = |more: &str| fixture.feed(&format!("batch_size = 50\n{more}"));
    let state = fixture.ranks(&of("shuffle_rows = 128"), 1, None)[0][2].state.clone();
    let error = fixture.attach(&of("shuffle_rows = 64"), 0, 1, Some(&state)).err().unwrap().to_string();
    assert!(error.contains("shuffle_rows"), "{error}");
    // Another batch size cuts the same order.
    let rest = fixture.ranks(&of("shuffle_rows = 128").replace("= 50", "= 25"), 1, Some(&state)).remove(0);
    assert_eq!(rest.iter().map(|batch| batch.numbers.len()).sum::<usize>(), 150);
    let damaged = FeedState { position: "AAAA".to_owned(), ..state };
    assert!(fixture.attach(&of("shuffle_rows = 128"), 0, 1, Some(&damaged)).is_err());
}

#[test]
fn a_feed_with_more_epochs_continues_after_the_last_batch() {
    let fixture = Fixture::new(300);
    let of = |epochs: u32| fixture.feed(&format!("batch_size = 50\nepochs = {epochs}\nshuffle_rows = 128"));
    let of_batches = |batches: &[Seen]| batches.iter().map(|batch| batch.numbers.clone()).collect::<Vec<_>>();
    let all = fixture.ranks(&of(4), 1, None).remove(0);
    let ended = fixture.ranks(&of(2), 1, None).remove(0).pop().unwrap().state;
    for epochs in [4, 3, 2, 1] {
        let rest = fixture.ranks(&of(epochs), 1, Some(&ended)).remove(0);
        let expected = of_batches(&all).into_iter().skip(12).take(6 * epochs.saturating_sub(2) as usize);
        assert_eq!(of_batches(&rest), expected.collect::<Vec<_>>(), "{epochs} epochs");
        assert!(rest.iter().all(|batch| batch.epoch >= 2));
    }
}

#[test]
fn a_bad_record_ends_the_feed_with_its_address() {
    let fixture = Fixture::new(300);
    let feed = fixture.feed("batch_size = 50\nshuffle_rows = 0").replace("shape = [2]", "shape = [3]");
    let error = rest(&mut fixture.attach(&feed, 0, 1, None).unwrap()).unwrap_err().to_string();
    assert!(error.contains("train-00000.parquet") && error.contains("record 0"), "{error}");
    assert!(error.contains("values") && error.contains('3'), "{error}");
}

#[test]
fn held_out_data_is_read_in_its_order_while_training_waits() {
    let fixture = Fixture::new(300);
    let feed = fixture.feed("batch_size = 50");
    thread::scope(|scope| {
        for rank in 0..2 {
            let (fixture, feed) = (&fixture, &feed);
            let run = move || {
                let mut client = fixture.attach(feed, rank, 2, None).unwrap();
                see(&mut client).unwrap().unwrap();
                for _ in 0..2 {
                    client.request_evaluation("val").unwrap();
                    let mut evaluation = client.wait_for_evaluation(LIMIT).unwrap().unwrap();
                    let mut rows = Vec::new();
                    while let Next::Batch(lease) = evaluation.next(LIMIT).unwrap() {
                        rows.extend(held_out_rows(&lease));
                    }
                    let expected: Vec<i64> =
                        if rank == 0 { 10_000..10_025 } else { 10_025..10_037 }.collect();
                    assert_eq!(rows, expected);
                }
                assert_eq!(rest(&mut client).unwrap().len(), 5);
                client.request_evaluation("test").unwrap();
                let error = client.wait_for_evaluation(LIMIT).err().unwrap().to_string();
                assert!(error.contains("`test`") && error.contains("`val`"), "{error}");
            };
            thread::Builder::new().name("evaluation".to_owned()).spawn_scoped(scope, run).unwrap();
        }
    });
}

/// What each of two ranks gets that asks for this evaluation, after its training batches if `trains`.
fn evaluations(fixture: &Fixture, trains: bool, names: [Option<&str>; 2]) -> Vec<Result<(), String>> {
    let feed = &fixture.feed("batch_size = 50");
    thread::scope(|scope| {
        let ranks = (0..).zip(names).map(|(rank, name)| {
            let run = move || {
                let mut client = fixture.attach(feed, rank, 2, None).unwrap();
                if trains {
                    rest(&mut client).unwrap();
                }
                let Some(name) = name else {
                    // It is busy with other work, if it does not leave.
                    thread::sleep(if trains { Duration::ZERO } else { Duration::from_secs(12) });
                    return Ok(());
                };
                client.request_evaluation(name).unwrap();
                let begun = client.wait_for_evaluation(LIMIT).map_err(|error| error.to_string())?;
                assert!(begun.is_some());
                Ok(())
            };
            let run_name = format!("{trains} {names:?}");
            thread::Builder::new().name(run_name).spawn_scoped(scope, run).unwrap()
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn evaluations_that_cannot_begin_are_errors() {
    let fixture = Fixture::new(300);
    assert_eq!(evaluations(&fixture, false, [Some("val"), Some("val")]), [Ok(()), Ok(())]);
    for error in evaluations(&fixture, false, [Some("val"), Some("test")]) {
        let error = error.unwrap_err();
        assert!(
            error.contains("`val`, and rank 1 `test`") || error.contains("`test`, and rank 0 `val`"),
            "{error}"
        );
    }
    let left = evaluations(&fixture, true, [Some("val"), None]).remove(0).unwrap_err();
    assert!(left.contains("rank 1 of the feed is gone"), "{left}");
    let late = evaluations(&fixture, false, [Some("val"), None]).remove(0).unwrap_err();
    assert!(late.contains("rank 1 does not evaluate `val`") && late.contains("10 s"), "{late}");
}

#[test]
fn mistakes_in_a_feed_are_reported_together_with_their_places() {
    let text = "seed = 1\n[data]\ntrain = [\"a\"]\ncache = { directory = \"x\", max_bytes = 1 }\n[columns]\n\
                a = { dtype = \"flaot32\" }\nb = { kind = \"raw\" }\nc = { dtype = \"int8\", shape = [0] }\n\
                d = { dtype = \"int8\", size = 3 }\n";
    let error = FeedSpec::parse(text, "feed.toml".as_ref()).unwrap_err().to_string();
    for part in [
        "feed.toml:2:1: error: [data] needs `batch_size`",
        "feed.toml:4:9: error: `cache` is not for feeds",
        "feed.toml:6:15: error: expected \"bool\"",
        "did you mean `float32`?",
        "column `b` needs `maximum`",
        "feed.toml:8:32: error: expected a whole number at least 1, found 0",
        "feed.toml:9:23: error: unknown key `size` in column `d`",
    ] {
        assert!(error.contains(part), "{part}\n{error}");
    }
    let object =
        serde_json::json!({"data": {"train": "a", "batch_size": "many"}, "columns": {"x": {"dtype": 3}}});
    let error = FeedSpec::of_arguments(object.as_object().unwrap()).unwrap_err().to_string();
    for part in
        ["data.batch_size: error: expected a whole number", "columns.x.dtype: error: expected a string"]
    {
        assert!(error.contains(part), "{part}\n{error}");
    }
    let plain = "[data]\ntrain = [\"a\"]\nbatch_size = 5\n[columns]\nx = { dtype = \"int8\", missing = 1 }\n";
    let spec = FeedSpec::parse(plain, "/somewhere/feed.toml".as_ref()).unwrap();
    assert_eq!(spec.data.base, PathBuf::from("/somewhere"));
    let again = FeedSpec::parse(&spec.text, "/elsewhere/feed.toml".as_ref()).unwrap();
    assert_eq!((again.data, again.columns), (spec.data, spec.columns));
}
