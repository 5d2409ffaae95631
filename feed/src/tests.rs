//! Feeds over real sockets and rings, with ranks that are threads.

#![allow(clippy::unwrap_used)]

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
use millstream_io::storage::{Object, Stores};
use parquet::arrow::ArrowWriter;

use crate::access::{Access, Admission, Refusal, SameUser};
use crate::client::{Attaching, FeedClient, Next};
use crate::host::{Delivered, Host};
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
        let socket = UnixStream::connect(self.socket()).unwrap();
        let (feed, run) = (feed.to_owned(), format!("{:?}", thread::current().name()));
        let attach = Attach { version: VERSION, feed, run, rank, world, local_world, state: state.cloned() };
        let attaching = Attaching::start(socket, HostKind::Process, &attach)?;
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
    let state = FeedState::new(batch.position(), &feed.attached().files);
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
fn ranks_take_equally_many_steps_and_each_row_once_per_epoch() {
    let fixture = Fixture::new(1_001);
    let feed = fixture.feed("batch_size = 84\nepochs = 2\nshuffle_rows = 256");
    let alone = fixture.ranks(&feed, 1, None).remove(0);
    assert_eq!(alone.len(), 2 * 12);
    for world in [1, 2, 3, 7] {
        let ranks = fixture.ranks(&feed, world, None);
        for epoch in 0..2 {
            assert_eq!(counts(ranks.iter().flatten(), epoch), once(1_001), "{world} ranks");
        }
        for (step, whole) in alone.iter().enumerate() {
            let parts: Vec<_> = ranks.iter().flat_map(|rank| rank[step].numbers.clone()).collect();
            assert_eq!(parts, whole.numbers, "{world} ranks, step {step}");
            assert!(
                ranks.iter().all(|rank| rank[step].state == whole.state),
                "states are those of all ranks"
            );
        }
        assert!(ranks.iter().all(|rank| rank.len() == alone.len()));
    }
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
fn ranks_of_several_hosts_have_the_rows_of_those_of_one() {
    let fixture = Fixture::new(1_001);
    let feed = fixture.feed("batch_size = 84\nepochs = 2\nshuffle_rows = 256");
    let whole = fixture.ranks(&feed, 6, None);
    // Of another number of ranks.
    let middle = fixture.ranks(&feed, 4, None)[0][7].state.clone();
    for (state, hosts) in
        [(None, [&[0, 1, 2][..], &[3, 4, 5]]), (Some(&middle), [&[5][..], &[0, 1, 2, 3, 4]])]
    {
        let from = state.map_or(0, |_| 8);
        let identities: HashSet<String> = thread::scope(|scope| {
            let of_host = |here: &'static [u32]| {
                let (fixture, feed, whole) = (&fixture, &feed, &whole);
                let start = move |&rank: &u32| {
                    let see = move || {
                        let here = here.len() as u32;
                        let mut client = fixture.attach_one_of(here, feed, (rank, 6), state).unwrap();
                        assert_eq!(rest(&mut client).unwrap(), whole[rank as usize][from..], "rank {rank}");
                        client.attached().identity.clone()
                    };
                    thread::Builder::new().name(format!("host of {here:?}")).spawn_scoped(scope, see).unwrap()
                };
                here.iter().map(start).collect::<Vec<_>>()
            };
            let ranks: Vec<_> = hosts.into_iter().flat_map(of_host).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(identities.len(), 1, "{identities:?}");
    }
}

#[test]
fn ranks_keep_their_numbers_on_a_host_that_has_only_some() {
    let fixture = Fixture::new(300);
    let feed = fixture.feed("batch_size = 30\nepochs = 100");
    let mut alone = fixture.attach_one_of(1, &feed, (5, 6), None).unwrap();
    alone.request_evaluation("val").unwrap();
    let mut evaluation = alone.wait_for_evaluation(LIMIT).unwrap().unwrap();
    assert_ne!(alone.attached().identity, evaluation.identity());
    let mut rows = Vec::new();
    while let Next::Batch(lease) = evaluation.next(LIMIT).unwrap() {
        rows.push(held_out_rows(&lease));
    }
    // Of 37 rows, those of the last rank of the first batch.
    assert_eq!(rows, [(10_025..10_030).collect(), vec![]]);

    thread::scope(|scope| {
        for rank in [2, 5] {
            let (fixture, feed) = (&fixture, &feed);
            let run = move || {
                let mut client = fixture.attach_one_of(2, feed, (rank, 6), None).unwrap();
                if rank == 2 {
                    let error = rest(&mut client).unwrap_err();
                    assert!(matches!(error, Error::RankLost { rank: 5, .. }), "{error}");
                }
            };
            thread::Builder::new().name("pair".to_owned()).spawn_scoped(scope, run).unwrap();
        }
        for (rank, local_world) in [(2, 2), (5, 3)] {
            let (fixture, feed) = (&fixture, &feed);
            let run = move || {
                let error =
                    fixture.attach_one_of(local_world, feed, (rank, 6), None).err().unwrap().to_string();
                assert!(error.contains("one of 2") && error.contains("one of 3"), "{error}");
            };
            thread::Builder::new().name("differ".to_owned()).spawn_scoped(scope, run).unwrap();
        }
    });
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
fn a_rank_that_leaves_ends_the_feed_of_the_others() {
    let fixture = Fixture::new(1_000);
    let feed = fixture.feed("batch_size = 30\nepochs = 100");
    thread::scope(|scope| {
        for rank in 0..3 {
            let (fixture, feed) = (&fixture, &feed);
            let run = move || {
                let mut client = fixture.attach(feed, rank, 3, None).unwrap();
                (0..5).for_each(|_| drop(see(&mut client).unwrap()));
                if rank == 1 {
                    return;
                }
                let error = rest(&mut client).unwrap_err();
                assert!(matches!(error, Error::RankLost { rank: 1, .. }), "{error}");
            };
            thread::Builder::new().name("lost".to_owned()).spawn_scoped(scope, run).unwrap();
        }
    });
}

#[test]
fn ranks_that_do_not_fit_together_get_the_reason() {
    let fixture = Fixture::new(100);
    let refused = |name: &str, ranks: Vec<(String, u32, u32)>| -> Vec<String> {
        thread::scope(|scope| {
            let ranks = ranks.iter().map(|(feed, rank, world)| {
                let attach = || fixture.attach(feed, *rank, *world, None).err().unwrap().to_string();
                thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, attach).unwrap()
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    };
    let [ten, twenty] = ["batch_size = 10", "batch_size = 20"].map(|size| fixture.feed(size));
    for error in refused("feeds", vec![(ten.clone(), 0, 2), (twenty, 1, 2)]) {
        assert!(error.contains("batch_size = 10") && error.contains("batch_size = 20"), "{error}");
    }
    for error in refused("worlds", vec![(ten.clone(), 0, 2), (ten.clone(), 1, 3)]) {
        assert!(error.contains("of 2 ranks") || error.contains("of 3 ranks"), "{error}");
    }
    for error in refused("twice", vec![(ten.clone(), 0, 2), (ten.clone(), 0, 2)]) {
        assert!(error.contains("two processes are rank 0"), "{error}");
    }
    for error in refused("missing", vec![(ten.clone(), 0, 4), (ten.clone(), 2, 4)]) {
        assert!(error.contains("ranks 1, 3 of 4 did not attach within 1 s"), "{error}");
    }
    let alone = |name: &str, here: u32, world: u32| {
        let attach = || fixture.attach_one_of(here, &ten, (0, world), None).err().unwrap().to_string();
        thread::scope(|scope| {
            thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, attach).unwrap().join().unwrap()
        })
    };
    let error = alone("some", 2, 4);
    assert!(
        error.contains("1 of the 2 ranks on this machine attached within 1 s of the first one: rank 0"),
        "{error}"
    );
    for here in [0, 3] {
        let error = alone("none", here, 2);
        assert!(error.contains(&format!("{here} ranks on this machine, of 2 in all")), "{error}");
    }
    let error = refused("number", vec![(ten.clone(), 2, 2)]).remove(0);
    assert!(error.contains("rank 2 of 2"), "{error}");
    let error = refused("many", vec![(ten.clone(), 0, 20)]).remove(0);
    assert!(error.contains("ranks 1, 2, 3, 4, 5, 6, 7, 8, .. of 20 did not attach"), "{error}");
    let error = refused("all", vec![(ten, 0, u32::MAX)]).remove(0);
    assert!(error.contains("4294967295 ranks on this machine: a host serves at most 512"), "{error}");
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

#[test]
fn a_rank_may_leave_once_it_has_taken_all_batches() {
    let fixture = Fixture::new(100);
    let feed = fixture.feed("batch_size = 10");
    thread::scope(|scope| {
        for rank in 0..2 {
            let (fixture, feed) = (&fixture, &feed);
            let run = move || {
                let mut client = fixture.attach(feed, rank, 2, None).unwrap();
                assert_eq!(rest(&mut client).unwrap().len(), 10);
                client.request_evaluation("val").unwrap();
                let mut evaluation = client.wait_for_evaluation(LIMIT).unwrap().unwrap();
                let mut batches = 0;
                while let Next::Batch(_) = evaluation.next(LIMIT).unwrap() {
                    batches += 1;
                    // The other one has left when this one takes the last batches.
                    thread::sleep(Duration::from_millis(100 * u64::from(rank)));
                }
                assert_eq!(batches, 4);
                assert!(matches!(client.next(LIMIT), Ok(Next::End)));
            };
            thread::Builder::new().name("leaves".to_owned()).spawn_scoped(scope, run).unwrap();
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
fn a_batch_must_have_as_many_rows_for_each_rank() {
    let fixture = Fixture::new(300);
    let feed = &fixture.feed("batch_size = 50");
    thread::scope(|scope| {
        for rank in 0..3 {
            let fixture = &fixture;
            let attach = move || {
                let error = fixture.attach(feed, rank, 3, None).err().unwrap().to_string();
                assert_eq!(error, "data.batch_size: 50 is not a multiple of 3 ranks; use 48 or 51");
            };
            thread::Builder::new().name("multiple".to_owned()).spawn_scoped(scope, attach).unwrap();
        }
    });
}

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
        let attach = Attach { version: VERSION, feed, run, rank: 0, world: 1, local_world: 1, state: None };
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
