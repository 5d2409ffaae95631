//! Tests exactly-once delivery when hosts and ranks join, leave and crash.
//!
//! Hosts are simulated: each is a complete engine with a ring for each of its parts, and a [`Hub`](super::hub::Hub)
//! connects them. Every row carries a tag: its split and its index in it. A schedule is a list of stints. In a stint, a
//! number of hosts with some parts each resume from a checkpoint, take some steps, and then stop orderly, lose one host or
//! the consumer of one ring, or are all killed. Batches consumed after the last checkpoint are discarded, as when a job is
//! killed. Rows are dealt by lanes, or by runs to the ranks of a single host.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_batch::{RingError, Stream};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::deal_tests::{Dealt, Host, hosts_of_parts, next_dealt, start_hosts};
use super::synthetic::*;
use super::*;
use crate::order::reference::Row;
use crate::spec::DataSpec;

/// Schedules in a run of `tests/run`. Each starts and stops hundreds of threads, which takes long on a busy machine;
/// `tests/nightly` tries more.
const SCHEDULES: u32 = 300;

/// The most hosts of a stint, and the most parts.
const MOST_HOSTS: u32 = 6;
const MOST_PARTS: usize = MOST_HOSTS as usize + 5;

/// The number of schedules to try: `MILLSTREAM_SCHEDULES`, or [`SCHEDULES`].
fn schedule_count() -> u32 {
    std::env::var("MILLSTREAM_SCHEDULES")
        .map_or(SCHEDULES, |count| count.parse().expect("MILLSTREAM_SCHEDULES is a number of schedules"))
}

/// A period in which a fixed set of hosts runs, starting from a checkpoint.
#[derive(Clone, Debug)]
struct Stint {
    division: Division,
    /// Global batches consumed before the end.
    batches: usize,
    /// The number of batches between checkpoints.
    every: usize,
    end: End,
    /// Whether rows are taken from whichever lanes are ready. Applies to a single host only.
    free: bool,
}

/// How global batches are divided.
#[derive(Clone, Debug, PartialEq)]
enum Division {
    /// In runs, among so many ranks of the only host.
    Runs(u32),
    /// By lanes, into parts of these hosts.
    Lanes(Vec<u32>),
}

impl Division {
    fn hosts(&self) -> u32 {
        match self {
            Self::Runs(_) => 1,
            Self::Lanes(host_of_part) => host_of_part.iter().max().unwrap() + 1,
        }
    }

    /// The number of parts, over all hosts.
    fn parts(&self) -> usize {
        match self {
            Self::Runs(ranks) => *ranks as usize,
            Self::Lanes(host_of_part) => host_of_part.len(),
        }
    }

    fn start(&self, plan: &IngestPlan, from: &Position) -> Vec<Host> {
        match self {
            Self::Runs(ranks) => {
                let plan = plan.clone().with_ranks(*ranks).unwrap();
                let (rings, consumers) = open_all(&plan);
                let handle = start(plan, from.clone(), rings).unwrap();
                vec![Host { handle, rings: (0..).zip(consumers).collect() }]
            }
            Self::Lanes(host_of_part) => start_hosts(plan, host_of_part, from),
        }
    }

    /// The rows of each part of a batch of `batch_size` rows or fewer, which have these lanes.
    fn divide(&self, rows: &[(u32, Row)], batch_size: u32) -> Vec<Vec<Row>> {
        match self {
            Self::Lanes(host_of_part) => by_lanes(rows, host_of_part.len()),
            Self::Runs(ranks) => {
                let rows: Vec<Row> = rows.iter().map(|&(_, row)| row).collect();
                let mut runs: Vec<_> =
                    rows.chunks(batch_size.div_ceil(*ranks) as usize).map(<[Row]>::to_vec).collect();
                runs.resize(*ranks as usize, Vec::new());
                runs
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// All hosts stop after a checkpoint.
    Stop,
    /// All hosts are killed.
    Killed,
    /// One host is killed, or a rank of the only host; the others detect it.
    HostDies(u32),
    /// The consumer of one ring is killed; its host and the others detect it.
    RankDies(u32),
}

/// The state of a job between two stints.
struct Job {
    /// Global batches up to the checkpoint, and how they were divided.
    committed: Vec<(Dealt, Division)>,
    checkpoint: Vec<u8>,
}

/// Runs one stint from `job`'s checkpoint. Returns whether the feed has ended.
fn run_stint(plan: &IngestPlan, stint: &Stint, job: &mut Job, coverage: &Coverage) -> bool {
    let from = if job.checkpoint.is_empty() { plan.start() } else { plan.resume(&job.checkpoint).unwrap() };
    let mut hosts = stint.division.start(plan, &from);
    let mut uncommitted = Vec::new();
    for step in 1..=stint.batches {
        let Some(batch) = next_dealt(&mut hosts) else {
            let ends: Vec<_> = hosts.into_iter().map(|host| host.handle.join().unwrap().position).collect();
            assert!(ends.iter().all(|position| position.pass.is_none() && *position == ends[0]));
            job.committed.append(&mut uncommitted);
            return true;
        };
        coverage.see(&stint.division, &batch, step == 1);
        let position = batch.position.clone();
        uncommitted.push((batch, stint.division.clone()));
        if step % stint.every == 0 || (step == stint.batches && matches!(stint.end, End::Stop)) {
            job.committed.append(&mut uncommitted);
            job.checkpoint = position;
        }
    }
    Coverage::add(&coverage.losses, !uncommitted.is_empty());
    match stint.end {
        End::Stop | End::Killed => {}
        End::HostDies(victim) if hosts.len() > 1 => {
            drop(hosts.remove(victim as usize % hosts.len()));
            outlive(hosts, None);
        }
        End::HostDies(victim) | End::RankDies(victim) => {
            let host = victim as usize % hosts.len();
            let rings = &mut hosts[host].rings;
            drop(rings.remove(victim as usize / 7 % rings.len()));
            outlive(hosts, Some(host));
        }
    }
    false
}

/// Lets `hosts` run until they detect that another host has died, or that the consumer of a ring of host `maimed` has.
fn outlive(hosts: Vec<Host>, maimed: Option<usize>) {
    let is_alone = hosts.len() == 1 && maimed.is_some();
    thread::scope(|scope| {
        for (number, Host { handle, rings }) in hosts.into_iter().enumerate() {
            for (_, mut ring) in rings {
                // Consume until a row of the killed host, or a slot of the killed rank, is needed.
                scope.spawn(move || while let Ok(Some(_)) = see(&mut ring) {});
            }
            scope.spawn(move || {
                let ended = handle.join();
                let detected = match &ended {
                    Ok(_) => true,
                    Err(Error::Peer { .. }) => !is_alone,
                    Err(error) => matches!(error, Error::Ring(RingError::PeerGone)) && maimed == Some(number),
                };
                assert!(detected, "{ended:?}");
            });
        }
    });
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
    let mut before = &stints[0].division;
    let mut job = Job { committed: Vec::new(), checkpoint: Vec::new() };
    let division = Division::Runs(1);
    let last = Stint { division, batches: usize::MAX, every: 1, end: End::Stop, free: false };
    for stint in stints.iter().chain([&last]) {
        let spec = DataSpec { deterministic: !stint.free, ..spec.clone() };
        let within = job.committed.last().is_some_and(|(batch, _)| !batch.header.last);
        Coverage::add(&coverage.changes, within && stint.division != *before);
        before = &stint.division;
        if run_stint(&plan(&spec, train, eval), stint, &mut job, coverage) {
            break;
        }
    }
    job
}

/// Asserts that each row of each pass was delivered exactly once, or as often as its weight says.
fn assert_exactly_once(job: &Job, spec: &DataSpec, train: &Synthetic, eval: Option<&Synthetic>) {
    let mut passes: BTreeMap<(u32, u32), Vec<Row>> = BTreeMap::new();
    for (batch, _) in &job.committed {
        let pass = (batch.header.epoch, batch.header.stream as u32);
        passes.entry(pass).or_default().extend(batch.parts.concat());
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

/// Asserts that every part has exactly its rows of the reference's batches, in their order.
fn assert_follows_the_reference(job: &Job, spec: &DataSpec, train: &Synthetic, eval: Option<&Synthetic>) {
    let expected = expected_lanes(spec, train, eval);
    assert_eq!(job.committed.len(), expected.len());
    for ((batch, division), (header, rows)) in job.committed.iter().zip(expected) {
        assert_eq!(batch.header, header);
        assert_eq!(batch.parts, division.divide(&rows, spec.batch_size), "{division:?}");
    }
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        Just(End::Stop),
        Just(End::Killed),
        (0_u32..7).prop_map(End::HostDies),
        (0_u32..77).prop_map(End::RankDies)
    ]
}

fn division() -> impl Strategy<Value = Division> {
    prop_oneof![1 => (1_u32..=4).prop_map(Division::Runs), 4 => hosts_of_parts(MOST_HOSTS).prop_map(Division::Lanes)]
}

fn stint() -> impl Strategy<Value = Stint> {
    (division(), 0_usize..14, 1_usize..6, end(), any::<bool>())
        .prop_map(|(division, batches, every, end, free)| Stint { division, batches, every, end, free })
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
    /// Stints that began within an epoch, with another division than the previous stint.
    changes: AtomicU64,
    /// Stints that discarded batches.
    losses: AtomicU64,
    /// By number of hosts, the stints by lanes that took a step.
    hosts: [AtomicU64; MOST_HOSTS as usize + 1],
    /// By number of parts, the same.
    parts: [AtomicU64; MOST_PARTS + 1],
    /// By number of ranks, the stints by runs that took a step.
    ranks: [AtomicU64; 5],
    /// Batches of several parts of which one has all rows.
    lopsided: AtomicU64,
}

impl Coverage {
    fn add(counter: &AtomicU64, n: bool) {
        counter.fetch_add(n.into(), Ordering::Relaxed);
    }

    fn see(&self, division: &Division, batch: &Dealt, is_first: bool) {
        let parts = division.parts();
        if let Division::Lanes(_) = division {
            Self::add(&self.hosts[division.hosts() as usize], is_first);
            Self::add(&self.parts[parts], is_first);
            let has_all = |part: &Vec<Row>| part.len() == batch.header.rows as usize;
            Self::add(&self.lopsided, parts > 1 && batch.parts.iter().any(has_all));
        } else {
            Self::add(&self.ranks[parts], is_first);
        }
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
    let cover = |stints: &[AtomicU64]| stints[1..].iter().all(|stints| count(stints) >= schedules / 30);
    assert!(cover(&coverage.hosts) && cover(&coverage.ranks) && cover(&coverage.parts), "{coverage:?}");
    assert!(count(&coverage.lopsided) >= schedules / 2, "{coverage:?}");
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
        let on_one_host = |division: Division| match division {
            Division::Lanes(host_of_part) => Division::Lanes(vec![0; host_of_part.len()]),
            runs @ Division::Runs(_) => runs,
        };
        let stints = stints.into_iter().map(|stint| match stint.free {
            true => Stint { division: on_one_host(stint.division), ..stint },
            false => stint,
        });
        let stints: Vec<_> = stints.collect();
        let job = run_schedule(&spec, &train, eval.as_ref(), &stints, &Coverage::default());
        assert_exactly_once(&job, &spec, &train, eval.as_ref());
        let rows = job.committed.iter().map(|(batch, _)| (batch.header.last, batch.header.global_rows));
        prop_assert!(rows.clone().all(|(last, rows)| rows == batch_size || last));
    }
}

#[test]
fn positions_record_a_marked_row_on_every_host() {
    // The data has only one positive row, in a lane of one of the hosts; all hosts must learn of it at the same batch.
    for row in [0, 17, 63] {
        let train = Synthetic { only_positive: Some((2, row)), ..Synthetic::new(&[64, 64, 64, 64]) };
        let spec = spec(4, 64, 16);
        let stint = |hosts: &[u32], batches| Stint {
            division: Division::Lanes(hosts.to_vec()),
            batches,
            every: 1,
            end: End::Stop,
            free: false,
        };
        let stints = [stint(&[0, 1, 2], 5), stint(&[3, 2, 4, 0, 1, 0], 30)];
        let job = run_schedule(&spec, &train, None, &stints, &Coverage::default());
        assert_follows_the_reference(&job, &spec, &train, None);
    }
}
