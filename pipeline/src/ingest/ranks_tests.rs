//! Compares feeds that are dealt to several ranks with the same feed of one rank.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use millstream_batch::{Consumer, RingError, SlotLayout, Stream};
use proptest::prelude::*;

use super::synthetic::*;
use super::*;
use crate::order::Runs;
use crate::spec::DataSpec;

fn dealt(plan: &IngestPlan, ranks: u32) -> IngestPlan {
    plan.clone().with_ranks(ranks).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_parts_of_all_ranks_are_the_batches_of_one(
        train in synthetic(), eval in prop::option::of(synthetic()), lanes in 1_u32..6, batch_size in 1_u32..40,
        shuffle_rows in prop_oneof![Just(0_u64), 1_u64..150], groups in any::<bool>(), drop_last in any::<bool>(),
    ) {
        let group = groups.then(|| "group".to_owned());
        let spec = DataSpec { group, drop_last, ..spec(lanes, shuffle_rows, batch_size) };
        let plan = plan(&spec, &train, eval.as_ref());
        let (whole, report) = run_whole(&plan);
        for ranks in 2..=4 {
            let (seen, of_ranks) = run_whole(&dealt(&plan, ranks));
            prop_assert_eq!(&seen, &whole);
            match (&report, of_ranks) {
                (Ok(report), Ok(of_ranks)) => {
                    prop_assert_eq!(&of_ranks.position, &report.position);
                    prop_assert_eq!(of_ranks.stats.rows, report.stats.rows);
                    prop_assert_eq!(of_ranks.stats.batches, report.stats.batches);
                }
                // Without a full batch, an epoch that drops short ones is an error.
                (Err(error), Err(of_ranks)) => prop_assert_eq!(error.to_string(), of_ranks.to_string()),
                (_, of_ranks) => prop_assert!(false, "{:?}, {:?}", report, of_ranks),
            }
        }
    }
}

/// What the ring of each rank of this host has seen, and the result.
fn run_rings(plan: &IngestPlan) -> (Vec<Vec<Seen>>, Result<Position, String>) {
    let (rings, mut consumers) = open_all(plan);
    let ingest = start(plan.clone(), plan.start(), rings).unwrap();
    let mut seen = vec![Vec::new(); consumers.len()];
    loop {
        let step: Vec<_> = consumers.iter_mut().map(|consumer| see(consumer).ok().flatten()).collect();
        if step.iter().all(Option::is_none) {
            let end = ingest.join().map(|report| report.position).map_err(|error| error.to_string());
            return (seen, end);
        }
        seen.iter_mut().zip(step).for_each(|(seen, batch)| seen.push(batch.expect("equally many batches")));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn ranks_of_several_hosts_have_the_parts_of_those_of_one(
        train in synthetic(), eval in prop::option::of(synthetic()), lanes in 1_u32..6, batch_size in 1_u32..40,
        shuffle_rows in prop_oneof![Just(0_u64), 1_u64..150], drop_last in any::<bool>(),
        host_of_rank in prop::collection::vec(0..3_u32, 1..6),
    ) {
        let spec = DataSpec { drop_last, deterministic: true, ..spec(lanes, shuffle_rows, batch_size) };
        let plan = plan(&spec, &train, eval.as_ref());
        let ranks = host_of_rank.len() as u32;
        let (of_one, end) = run_rings(&dealt(&plan, ranks));
        for host in 0..3 {
            let here: Vec<u32> = (0..ranks).filter(|&rank| host_of_rank[rank as usize] == host).collect();
            let Some(runs) = Runs::new(ranks, &here) else { continue };
            let (seen, of_host) = run_rings(&plan.clone().with_runs(runs).unwrap());
            prop_assert_eq!((seen.len(), &of_host), (here.len(), &end));
            for (rank, seen) in here.into_iter().zip(seen) {
                prop_assert_eq!(&seen, &of_one[rank as usize]);
            }
        }
    }
}

#[test]
fn hosts_cannot_agree_on_an_order_that_depends_on_time() {
    let spec = DataSpec { deterministic: false, ..spec(4, 64, 8) };
    let plan = plan(&spec, &Synthetic::new(&[100; 6]), None);
    assert!(plan.clone().with_ranks(2).is_ok());
    let error = plan.with_runs(Runs::new(2, &[1]).unwrap()).err().unwrap().to_string();
    assert!(error.contains("deterministic = true"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn a_feed_resumes_after_any_batch_with_another_number_of_ranks(
        train in synthetic(), eval in prop::option::of(synthetic()), lanes in 1_u32..6,
        shuffle_rows in prop_oneof![Just(0_u64), 1_u64..150], batch_size in 10_u32..40,
    ) {
        let plan = plan(&spec(lanes, shuffle_rows, batch_size), &train, eval.as_ref());
        for (ranks, resumed_ranks) in [(1, 3), (3, 1), (2, 4), (4, 3)] {
            let resumed = dealt(&plan, resumed_ranks);
            let (whole, report) = run_whole(&dealt(&plan, ranks));
            for done in 0..whole.len() {
                let (rest, end) = run_from(&resumed, resumed.resume(&whole[done].position).unwrap());
                prop_assert_eq!(&rest[..], &whole[done + 1..]);
                prop_assert_eq!(&end.unwrap().position, &report.as_ref().unwrap().position);
            }
        }
    }
}

#[test]
fn the_first_ranks_of_a_short_batch_are_full() {
    // By case: the rows of the only file, the batch size, the ranks, and the parts of each batch as (first row, rows).
    type Parts = &'static [(u32, u32)];
    let cases: [(u64, u32, u32, &[Parts]); 4] = [
        (100, 64, 4, &[&[(0, 16), (16, 16), (32, 16), (48, 16)], &[(0, 16), (16, 16), (32, 4), (36, 0)]]),
        (3, 64, 4, &[&[(0, 3), (3, 0), (3, 0), (3, 0)]]),
        (17, 10, 3, &[&[(0, 4), (4, 4), (8, 2)], &[(0, 4), (4, 3), (7, 0)]]),
        // The last rank never has a row.
        (5, 5, 4, &[&[(0, 2), (2, 2), (4, 1), (5, 0)]]),
    ];
    for (rows, batch_size, ranks, expected) in cases {
        let spec = DataSpec { epochs: 1, ..spec(4, 50, batch_size) };
        let plan = dealt(&plan(&spec, &Synthetic::new(&[rows]), None), ranks);
        let (rings, mut consumers) = open_all(&plan);
        let ingest = start(plan.clone(), plan.start(), rings).unwrap();
        for parts in expected {
            let found: Vec<_> = consumers
                .iter_mut()
                .map(|consumer| see(consumer).unwrap().unwrap().header)
                .map(|header| (header.first_row, header.rows))
                .collect();
            assert_eq!(found, *parts, "{rows} rows");
        }
        assert!(consumers.iter_mut().all(|consumer| see(consumer).unwrap().is_none()));
        assert_eq!(ingest.join().unwrap().stats.rows, rows);
    }
}

#[test]
fn a_separate_evaluation_is_dealt_in_the_order_of_the_data() {
    let spec = spec(3, 100, 7);
    let data = Synthetic::new(&[5, 0, 9, 1, 12]);
    let plan = IngestPlan::scoring(&spec, schema(&spec), Arc::new(data)).unwrap();
    let (whole, _) = run_whole(&plan);
    assert!(whole.len() == 4 && whole.iter().all(|batch| batch.header.stream == Stream::Eval));
    for ranks in 2..=4 {
        assert_eq!(run_whole(&dealt(&plan, ranks)).0, whole);
    }
}

#[test]
fn an_error_within_a_batch_leaves_no_part_of_it() {
    // One lane, windows of 16 rows: the error at row 70 occurs at row 64, in the third part of the second batch.
    let train = Synthetic { faults: vec![(0, 70, Fault::Error)], chunk_rows: 7, ..Synthetic::new(&[200]) };
    let plan = dealt(&plan(&spec(1, 16, 40), &train, None), 4);
    let (rings, mut consumers) = open_all(&plan);
    let ingest = start(plan.clone(), plan.start(), rings).unwrap();
    for consumer in &mut consumers {
        assert_eq!(see(consumer).unwrap().unwrap().rows.len(), 10);
        assert!(matches!(see(consumer), Err(RingError::PeerGone)));
    }
    assert!(matches!(ingest.join(), Err(Error::Invalid(message)) if message == "split 0"));
}

/// A feed of three ranks that waits for a free slot of ring `full` only, with the consumers of all rings.
fn waiting_for(full: usize) -> (IngestHandle, Vec<Consumer>) {
    let spec = spec(4, 64, 8);
    let plan = dealt(&plan(&spec, &Synthetic::new(&[1000; 6]), None), 3);
    let (rings, mut consumers) = open_all(&plan);
    let ingest = start(plan.clone(), plan.start(), rings).unwrap();
    for (_, consumer) in consumers.iter_mut().enumerate().filter(|&(rank, _)| rank != full) {
        for _ in 0..spec.prefetch {
            see(consumer).unwrap().unwrap();
        }
    }
    (ingest, consumers)
}

#[test]
fn cancelling_ends_a_wait_for_any_ring() {
    for full in 0..3 {
        for pause_ms in [0, 20] {
            without_hanging(move || {
                let (ingest, mut consumers) = waiting_for(full);
                thread::sleep(Duration::from_millis(pause_ms));
                ingest.cancel();
                assert!(matches!(ingest.join(), Err(Error::Cancelled)));
                for consumer in &mut consumers {
                    let end = loop {
                        match see(consumer) {
                            Ok(Some(_)) => {}
                            other => break other,
                        }
                    };
                    assert!(matches!(end, Err(RingError::PeerGone)), "{end:?}");
                }
            });
        }
    }
}

#[test]
fn the_exit_of_any_consumer_ends_the_feed() {
    for full in 0..3 {
        for exits in 0..3 {
            without_hanging(move || {
                let (ingest, mut consumers) = waiting_for(full);
                // The consumer of the full ring may wait for the one that exits, and never free a slot.
                drop(consumers.remove(exits));
                let end = ingest.join();
                assert!(matches!(end, Err(Error::Ring(RingError::PeerGone))), "{full} {exits}: {end:?}");
            });
        }
    }
}

#[test]
fn a_full_ring_of_any_rank_makes_the_consumer_the_bottleneck() {
    for slow in 0..3 {
        without_hanging(move || {
            let plan = dealt(&plan(&spec(4, 64, 8), &Synthetic::new(&[1000; 6]), None), 3);
            let (rings, mut consumers) = open_all(&plan);
            let ingest = start(plan.clone(), plan.start(), rings).unwrap();
            thread::scope(|scope| {
                for (rank, consumer) in consumers.iter_mut().enumerate() {
                    scope.spawn(move || {
                        for _ in 0..30 {
                            see(consumer).unwrap().unwrap();
                            if rank == slow {
                                thread::sleep(Duration::from_millis(10));
                            }
                        }
                    });
                }
            });
            let diagnosis = ingest.control().explain().whole;
            assert_eq!(diagnosis.bound, Bound::Consumer, "{diagnosis:?}");
        });
    }
}

#[test]
fn the_plan_counts_the_rings_of_all_ranks() {
    let spec = spec(4, 1000, 63);
    let train = Synthetic::new(&[100; 8]);
    let one = plan(&spec, &train, None);
    assert_eq!(dealt(&one, 1).memory(), one.memory());
    for ranks in 2..=5 {
        let plan = dealt(&one, ranks);
        let slot_bytes = SlotLayout::of(&plan.schema().part(ranks)).unwrap().slot_bytes() as u64;
        let ring_bytes = u64::from(ranks * spec.prefetch) * slot_bytes;
        assert_eq!(plan.memory(), MemoryNeed { ring_bytes, ..one.memory() });
        assert_eq!(
            (plan.rings(), plan.schema(), plan.ring_schema().rows),
            (ranks, one.schema(), 63_u32.div_ceil(ranks))
        );
        let (rings, _) = plan.create_rings().unwrap();
        assert_eq!(rings.len(), ranks as usize);
        assert!(rings.iter().all(|ring| ring.slots() == spec.prefetch as usize));
    }
    // The padding of more slots exceeds a budget that suffices for one rank.
    let exactly = DataSpec { memory_budget_bytes: one.memory().least_bytes(), ..spec };
    let ranks = plan(&exactly, &train, None).with_ranks(5);
    let Err(Error::OverBudget { needed_bytes, budget_bytes, .. }) = ranks else {
        panic!("within the budget")
    };
    assert_eq!(budget_bytes, one.memory().least_bytes());
    assert_eq!(needed_bytes, dealt(&one, 5).memory().least_bytes());
}

#[test]
fn rings_that_do_not_match_the_ranks_are_refused() {
    let one = plan(&spec(4, 64, 8), &Synthetic::new(&[100; 6]), None);
    assert!(one.clone().with_ranks(0).is_err());
    let two = dealt(&one, 2);
    for (plan, rings) in [(&one, &two), (&two, &one)] {
        let (rings, _consumers) = open_all(rings);
        let refused = start(plan.clone(), plan.start(), rings).err().unwrap();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    }
}

#[test]
fn measuring_drains_all_rings() {
    let plan = plan(&spec(3, 64, 8), &Synthetic::new(&[100; 6]), None);
    assert_eq!(measure(dealt(&plan, 3)).unwrap().rows, 1200);
}
