//! Tests exactly-once delivery when hosts and ranks join, leave and crash.
//!
//! Hosts are simulated: each is a complete engine with its own ring, and a [`Hub`] connects them. A single host may have
//! several ranks, each with a ring. Every row carries a tag: its split and its index in it. A schedule is a list of
//! stints. In a stint, a number of hosts resume from a checkpoint, take some steps, and then stop orderly, lose one host
//! or rank, or are all killed. Batches consumed after the
//! last checkpoint are discarded, as when a job is killed.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_batch::{BatchHeader, Consumer, RingError, Stream};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::hub::Hub;
use super::tests::*;
use super::*;
use crate::order::reference::Row;
use crate::spec::DataSpec;

/// Schedules in a run of `tests/run`. Each starts and stops hundreds of threads, which takes long on a busy machine;
/// `tests/nightly` tries more.
const SCHEDULES: u32 = 300;

/// The number of schedules to try: `MILLSTREAM_SCHEDULES`, or [`SCHEDULES`].
fn schedule_count() -> u32 {
    std::env::var("MILLSTREAM_SCHEDULES")
        .map_or(SCHEDULES, |count| count.parse().expect("MILLSTREAM_SCHEDULES is a number of schedules"))
}

/// A period in which a fixed set of hosts runs, starting from a checkpoint.
#[derive(Clone, Debug)]
struct Stint {
    hosts: u32,
    /// The ranks of a single host; several hosts have one each.
    ranks_alone: u32,
    /// Global batches consumed before the end.
    batches: usize,
    /// The number of batches between checkpoints.
    every: usize,
    end: End,
    /// Whether rows are taken from whichever lanes are ready. Applies to a single host only.
    free: bool,
}

impl Stint {
    /// The ranks of each host.
    fn ranks(&self) -> u32 {
        if self.hosts == 1 { self.ranks_alone } else { 1 }
    }
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// All hosts stop after a checkpoint.
    Stop,
    /// All hosts are killed.
    Killed,
    /// One host is killed, or a rank of the only host; the others detect it.
    OneDies(u32),
}

/// The state of a job between two stints.
struct Job {
    /// Global batches up to the checkpoint.
    committed: Vec<GlobalBatch>,
    checkpoint: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq)]
struct GlobalBatch {
    header: BatchHeader,
    /// The rows of each host or rank.
    parts: Vec<Vec<Row>>,
}

impl GlobalBatch {
    fn rows(&self) -> Vec<Row> {
        let mut rows = self.parts.concat();
        rows.sort_unstable();
        rows
    }
}

/// Runs one stint from `job`'s checkpoint. Returns whether the feed has ended.
fn run_stint(plan: &IngestPlan, stint: &Stint, job: &mut Job, coverage: &Coverage) -> bool {
    let from = if job.checkpoint.is_empty() { plan.start() } else { plan.resume(&job.checkpoint).unwrap() };
    let (mut handles, mut consumers): (Vec<IngestHandle>, Vec<Consumer>) = match stint.hosts {
        1 => {
            let plan = plan.clone().with_ranks(stint.ranks()).unwrap();
            let (rings, consumers) = open_all(&plan);
            (vec![start(plan, from, rings).unwrap()], consumers)
        }
        hosts => Hub::connect(hosts)
            .into_iter()
            .map(|peers| {
                let (rings, consumer) = open(plan);
                (start_among(Some(peers), plan.clone(), from.clone(), rings).unwrap(), consumer)
            })
            .unzip(),
    };
    let mut uncommitted = Vec::new();
    for step in 1..=stint.batches {
        let Some((batch, positions)) = next_global(&mut consumers) else {
            let ends: Vec<_> = handles.into_iter().map(|handle| handle.join().unwrap().position).collect();
            assert!(ends.iter().all(|position| position.pass.is_none() && *position == ends[0]));
            job.committed.append(&mut uncommitted);
            return true;
        };
        uncommitted.push(batch);
        Coverage::add(&coverage.hosts[stint.hosts as usize], step == 1);
        Coverage::add(&coverage.ranks[stint.ranks() as usize], step == 1 && stint.hosts == 1);
        if step % stint.every == 0 || (step == stint.batches && matches!(stint.end, End::Stop)) {
            job.committed.append(&mut uncommitted);
            // All positions are equal, so that of any host or rank serves.
            job.checkpoint = positions[step % positions.len()].clone();
        }
    }
    Coverage::add(&coverage.losses, !uncommitted.is_empty());
    match stint.end {
        End::Stop | End::Killed => {}
        End::OneDies(victim) => {
            let victim = victim as usize % consumers.len();
            drop(consumers.remove(victim));
            if stint.hosts > 1 {
                drop(handles.remove(victim));
            }
            thread::scope(|scope| {
                for consumer in &mut consumers {
                    // Consume until a row of the killed host, or a slot of the killed rank, is needed.
                    scope.spawn(move || while let Ok(Some(_)) = see(consumer) {});
                }
                for handle in handles {
                    scope.spawn(move || {
                        let ended = handle.join();
                        let detected = match &ended {
                            Ok(_) => true,
                            Err(Error::Peer { .. }) => stint.hosts > 1,
                            Err(error) => {
                                matches!(error, Error::Ring(RingError::PeerGone)) && stint.hosts == 1
                            }
                        };
                        assert!(detected, "{ended:?}");
                    });
                }
            });
        }
    }
    false
}

/// The next batch of all hosts or ranks; `None` at the end of the feed, which must be the same for all.
fn next_global(consumers: &mut [Consumer]) -> Option<(GlobalBatch, Vec<Vec<u8>>)> {
    let seen: Vec<Option<Seen>> = consumers.iter_mut().map(|consumer| see(consumer).unwrap()).collect();
    if seen.iter().any(Option::is_none) {
        assert!(seen.iter().all(Option::is_none), "the rings have different numbers of batches");
        return None;
    }
    let seen: Vec<Seen> = seen.into_iter().flatten().collect();
    let header = BatchHeader { rows: seen[0].header.global_rows, ..seen[0].header };
    for part in &seen {
        assert_eq!(BatchHeader { rows: header.rows, first_row: 0, ..part.header }, header);
        assert_eq!(part.position, seen[0].position, "the positions differ");
    }
    let here: u32 = seen.iter().map(|part| part.header.rows).sum();
    assert_eq!(here, header.global_rows);
    let positions = seen.iter().map(|part| part.position.clone()).collect();
    Some((GlobalBatch { header, parts: seen.into_iter().map(|part| part.rows).collect() }, positions))
}

/// Runs all stints, then a single host to the end.
fn run_schedule(
    spec: &DataSpec,
    train: &Synthetic,
    eval: Option<&Synthetic>,
    stints: &[Stint],
    coverage: &Coverage,
) -> Job {
    Coverage::add(&coverage.schedules, true);
    let mut before = (stints[0].hosts, stints[0].ranks());
    let mut job = Job { committed: Vec::new(), checkpoint: Vec::new() };
    let last = Stint { hosts: 1, ranks_alone: 1, batches: usize::MAX, every: 1, end: End::Stop, free: false };
    for stint in stints.iter().chain([&last]) {
        let spec = DataSpec { deterministic: !stint.free, ..spec.clone() };
        let within = job.committed.last().is_some_and(|batch| !batch.header.last);
        Coverage::add(&coverage.changes, within && (stint.hosts, stint.ranks()) != before);
        before = (stint.hosts, stint.ranks());
        if run_stint(&plan(&spec, train, eval), stint, &mut job, coverage) {
            break;
        }
    }
    job
}

/// Asserts that each row of each pass was delivered exactly once, or as often as its weight says.
fn assert_exactly_once(job: &Job, spec: &DataSpec, train: &Synthetic, eval: Option<&Synthetic>) {
    let mut passes: BTreeMap<(u32, u32), Vec<Row>> = BTreeMap::new();
    for batch in &job.committed {
        let pass = (batch.header.epoch, batch.header.stream as u32);
        passes.entry(pass).or_default().extend(batch.rows());
    }
    let streams = [(Stream::Train, Some(train)), (Stream::Eval, eval)];
    let streams: Vec<_> =
        streams.iter().filter_map(|(stream, data)| data.map(|data| (stream, data))).collect();
    assert_eq!(passes.len(), spec.epochs as usize * streams.len());
    for epoch in 0..spec.epochs {
        for &(&stream, data) in &streams {
            let mut delivered = passes.remove(&(epoch, stream as u32)).unwrap();
            delivered.sort_unstable();
            let mut all = data.splits_of(stream, epoch).concat();
            all.sort_unstable();
            assert!(delivered == all, "{stream:?} {epoch}: {delivered:?}");
        }
    }
}

/// Asserts that every host and rank received its rows in the order of a single host.
fn assert_follows_the_reference(job: &Job, spec: &DataSpec, train: &Synthetic, eval: Option<&Synthetic>) {
    let expected = expected(spec, train, eval);
    assert_eq!(job.committed.len(), expected.len());
    for (batch, (header, rows)) in job.committed.iter().zip(expected) {
        assert_eq!(batch.header, header);
        let mut places: BTreeMap<Row, Vec<usize>> = BTreeMap::new();
        rows.into_iter().zip(0..).for_each(|(row, place)| places.entry(row).or_default().push(place));
        let repeated: BTreeSet<Row> =
            places.iter().filter(|(_, places)| places.len() > 1).map(|(row, _)| *row).collect();
        for part in &batch.parts {
            let mut place = |row: &Row| places.get_mut(row).and_then(Vec::pop).expect("a row of this batch");
            let order: Vec<(&Row, usize)> = part.iter().map(|row| (row, place(row))).collect();
            // The copies of a row are indistinguishable.
            let order = order.into_iter().filter(|(row, _)| !repeated.contains(row)).map(|(_, place)| place);
            assert!(order.is_sorted(), "{part:?}");
        }
        assert!(places.values().all(Vec::is_empty));
    }
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::Stop), Just(End::Killed), (0_u32..7).prop_map(End::OneDies)]
}

fn stint() -> impl Strategy<Value = Stint> {
    (prop_oneof![1 => Just(1), 4 => 1_u32..=7], 1_u32..=4, 0_usize..14, 1_usize..6, end(), any::<bool>())
        .prop_map(|(hosts, ranks_alone, batches, every, end, free)| Stint {
            hosts,
            ranks_alone,
            batches,
            every,
            end,
            free,
        })
}

fn data() -> impl Strategy<Value = Synthetic> {
    let lengths = prop::collection::vec(prop_oneof![3 => 1_u64..60, 1 => Just(0)], 0..16);
    let delay_us = prop_oneof![9 => Just(0_u64), 1 => Just(100)];
    (lengths, 1_u64..60, 0_usize..20, delay_us, any::<bool>(), 0_u64..3, weights()).prop_map(
        |(mut lengths, one, chunk_rows, delay_us, passes, left_out, weights)| {
            lengths.push(one);
            Synthetic { lengths, chunk_rows, delay_us, passes, left_out, weights, ..Synthetic::default() }
                .with_rows()
        },
    )
}

fn shuffle() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0_u64), 4 => 1_u64..150]
}

/// What the schedules of a test covered, so that a test with only trivial schedules fails.
#[derive(Debug, Default)]
struct Coverage {
    schedules: AtomicU64,
    /// Stints that began within an epoch, with a different number of hosts or ranks than the previous stint.
    changes: AtomicU64,
    /// Stints that discarded batches.
    losses: AtomicU64,
    /// By number of hosts, the stints that took a step.
    hosts: [AtomicU64; 8],
    /// By number of ranks, the stints of a single host that took a step.
    ranks: [AtomicU64; 5],
}

impl Coverage {
    fn add(counter: &AtomicU64, n: bool) {
        counter.fetch_add(n.into(), Ordering::Relaxed);
    }
}

#[test]
fn every_row_is_delivered_once_in_the_same_global_batches_despite_host_failures() {
    let coverage = Coverage::default();
    let schedule = (
        data(),
        prop::option::of(data()),
        1_u32..17,
        shuffle(),
        4_u32..32,
        (prop::collection::vec(stint(), 2..7), any::<bool>()),
    );
    let schedules = schedule_count();
    let config = ProptestConfig { cases: schedules, failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(
        &schedule,
        |(train, eval, lanes, shuffle_rows, batch_size, (stints, grouped))| {
            let group = grouped.then(|| "group".to_owned());
            let spec = DataSpec { group, ..spec(lanes, shuffle_rows, batch_size) };
            let stints: Vec<_> = stints.into_iter().map(|stint| Stint { free: false, ..stint }).collect();
            let job = run_schedule(&spec, &train, eval.as_ref(), &stints, &coverage);
            assert_exactly_once(&job, &spec, &train, eval.as_ref());
            assert_follows_the_reference(&job, &spec, &train, eval.as_ref());
            Ok(())
        },
    );
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let schedules = u64::from(schedules);
    assert!(count(&coverage.schedules) >= schedules, "{coverage:?}");
    assert!(
        count(&coverage.changes) >= schedules / 2 && count(&coverage.losses) >= schedules / 4,
        "{coverage:?}"
    );
    let cover = |stints: &[AtomicU64]| stints[1..].iter().all(|stints| count(stints) >= schedules / 20);
    assert!(cover(&coverage.hosts) && cover(&coverage.ranks), "{coverage:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Delivery stays exactly-once without the strict order: during a free stint, and when a strict stint continues
    /// from its checkpoint.
    #[test]
    fn every_row_is_delivered_once_in_free_order(
        train in data(), eval in prop::option::of(data()), lanes in 1_u32..13, shuffle_rows in shuffle(),
        batch_size in 4_u32..40, stints in prop::collection::vec(stint(), 1..5), grouped in any::<bool>(),
    ) {
        let group = grouped.then(|| "group".to_owned());
        let spec = DataSpec { group, ..spec(lanes, shuffle_rows, batch_size) };
        let stints: Vec<_> =
            stints.into_iter().map(|s| if s.free { Stint { hosts: 1, ..s } } else { s }).collect();
        let job = run_schedule(&spec, &train, eval.as_ref(), &stints, &Coverage::default());
        assert_exactly_once(&job, &spec, &train, eval.as_ref());
        let rows = job.committed.iter().map(|batch| (batch.header.last, batch.header.global_rows));
        prop_assert!(rows.clone().all(|(last, rows)| rows == batch_size || last));
    }
}

#[test]
fn positions_record_a_marked_row_on_every_host() {
    // The data has only one positive row, in a lane of one of the hosts; all hosts must learn of it at the same batch.
    for row in [0, 17, 63] {
        let train = Synthetic { only_positive: Some((2, row)), ..Synthetic::new(&[64, 64, 64, 64]) };
        let spec = spec(4, 64, 16);
        let stints = [
            Stint { hosts: 3, ranks_alone: 1, batches: 5, every: 1, end: End::Stop, free: false },
            Stint { hosts: 5, ranks_alone: 1, batches: 30, every: 1, end: End::Stop, free: false },
        ];
        let job = run_schedule(&spec, &train, None, &stints, &Coverage::default());
        assert_follows_the_reference(&job, &spec, &train, None);
    }
}

#[test]
fn an_error_on_one_host_ends_all_at_the_same_batch() {
    let spec = spec(6, 60, 7);
    let healthy = Synthetic::new(&[40; 12]);
    let faulty = Synthetic { faults: vec![(5, 20, Fault::Error)], ..healthy };
    let (alone, report) = run_whole(&plan(&spec, &faulty, None));
    assert!(matches!(report, Err(Error::Invalid(_))));
    for hosts in 2..=7 {
        let plan = plan(&spec, &faulty, None);
        let (handles, mut consumers): (Vec<_>, Vec<_>) = Hub::connect(hosts)
            .into_iter()
            .map(|peers| {
                let (rings, consumer) = open(&plan);
                (start_among(Some(peers), plan.clone(), plan.start(), rings).unwrap(), consumer)
            })
            .unzip();
        for expected in &alone {
            let (batch, positions) = next_global(&mut consumers).unwrap();
            assert_eq!(batch.header, expected.header);
            assert!(positions.iter().all(|position| *position == expected.position));
        }
        assert!(consumers.iter_mut().all(|consumer| see(consumer).is_err()));
        let mut owners = 0;
        for handle in handles {
            match handle.join() {
                Err(Error::Invalid(message)) if message == "split 5" => owners += 1,
                Err(Error::Peer { message, .. }) if message == "split 5" => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(owners, 1);
    }
}
