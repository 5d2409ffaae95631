//! Compares the engine over synthetic data with the reference implementation of the order.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_batch::{RingError, Size, Stream};
use proptest::prelude::*;

use super::synthetic::*;
use super::*;
use crate::order::{Cursor, Mix, PositionError, Weight};
use crate::spec::{DataSpec, OnBadRecord};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_engine_follows_the_plain_reference(
        train in synthetic(), eval in prop::option::of(synthetic()),
        lanes in 1_u32..6, shuffle_rows in prop_oneof![Just(0_u64), 1_u64..150], batch_size in 1_u32..40,
        groups in any::<bool>(),
    ) {
        let group = groups.then(|| "group".to_owned());
        let spec = DataSpec { group, ..spec(lanes, shuffle_rows, batch_size) };
        let (seen, report) = run_whole(&plan(&spec, &train, eval.as_ref()));
        let report = report.unwrap();
        prop_assert_eq!(report.position.pass, None);
        prop_assert_eq!(report.stats.batches, seen.len() as u64);
        prop_assert_eq!(report.stats.rows, seen.iter().map(|batch| batch.rows.len() as u64).sum::<u64>());
        let seen: Vec<_> = seen.into_iter().map(|batch| (batch.header, batch.rows)).collect();
        prop_assert_eq!(seen, expected(&spec, &train, eval.as_ref()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn resuming_after_any_batch_gives_the_rest_byte_for_byte(
        train in synthetic(), eval in prop::option::of(synthetic()),
        lanes in 1_u32..6, shuffle_rows in prop_oneof![Just(0_u64), 1_u64..150], batch_size in 10_u32..40,
    ) {
        let plan = plan(&spec(lanes, shuffle_rows, batch_size), &train, eval.as_ref());
        let (whole, report) = run_whole(&plan);
        let report = report.unwrap();
        for done in 0..whole.len() {
            let (rest, resumed) = run_from(&plan, plan.resume(&whole[done].position).unwrap());
            prop_assert_eq!(&rest[..], &whole[done + 1..]);
            prop_assert_eq!(resumed.unwrap().position, report.position.clone());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// A forged position is rejected or delivers the rows that it denotes; it never causes a panic or a hang.
    #[test]
    fn a_forged_position_causes_no_panic_or_hang(
        turn in 0_u32..3, batch in prop_oneof![0_u64..5, Just(u64::MAX / 4)], shuffle_rows in prop_oneof![Just(0_u64), Just(20)],
        cursors in prop::collection::vec((0_u32..4, prop_oneof![0_u64..30, Just(u64::MAX / 4)], 0_u64..3, 0_u32..30), 3),
    ) {
        let plan = plan(&spec(3, shuffle_rows, 8), &Synthetic::new(&[20, 10, 0, 15, 9]), None);
        let lanes = cursors.into_iter().map(|(split, row, window, drawn)| {
            if split == 3 { LanePosition::Ended } else { LanePosition::At(Cursor { split, row, window, drawn }) }
        });
        let position = Position { turn, batch, lanes: lanes.collect(), ..plan.start() };
        let mut bytes = Vec::new();
        position.encode(&mut bytes);
        let from = plan.resume(&bytes).unwrap();
        let ended = without_hanging(move || run_from(&plan, from).1);
        let fine = matches!(ended, Ok(_) | Err(Error::Position(_) | Error::NoRows { .. }));
        prop_assert!(fine, "{:?}", ended);
    }
}

#[test]
fn an_error_comes_after_all_batches_before_its_window() {
    // One lane, windows of 16 rows, batches of 5: row 70 is in the window that starts at row 64.
    let spec = spec(1, 16, 5);
    for delay_us in [0, 300] {
        let faults = vec![(0, 70, Fault::Error)];
        let train = Synthetic { faults, delay_us, chunk_rows: 7, ..Synthetic::new(&[100]) };
        let (seen, report) = run_whole(&plan(&spec, &train, None));
        assert!(matches!(report, Err(Error::Invalid(message)) if message == "split 0"));
        let healthy = expected(&spec, &Synthetic::new(&[100]), None);
        let seen: Vec<_> = seen.into_iter().map(|batch| (batch.header, batch.rows)).collect();
        assert_eq!(seen, healthy[..64 / 5]);
    }
}

#[test]
fn the_first_error_in_order_wins() {
    // Without shuffling, split 1 comes before split 2, whose first row fails.
    let spec = spec(3, 0, 4);
    for delay_us in [0, 500] {
        let faults = vec![(1, 2000, Fault::Error), (2, 0, Fault::Error)];
        let train = Synthetic { faults, delay_us, chunk_rows: 400, ..Synthetic::new(&[10, 2100, 10]) };
        let (_, report) = run_whole(&plan(&spec, &train, None));
        assert!(matches!(report, Err(Error::Invalid(message)) if message == "split 1"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn weights_of_one_change_neither_rows_nor_positions(
        train in synthetic(), lanes in 1_u32..6, shuffle_rows in prop_oneof![Just(0_u64), 1_u64..150],
    ) {
        let plan_of = |weights| {
            plan(&spec(lanes, shuffle_rows, 16), &Synthetic { weights, ..train.clone() }, None)
        };
        let (unmixed, _) = run_whole(&plan_of(Vec::new()));
        let (ones, _) = run_whole(&plan_of(vec![1.0; train.lengths.len()]));
        prop_assert!(!unmixed.is_empty());
        prop_assert_eq!(ones, unmixed);
    }
}

#[test]
fn a_position_is_of_one_mix() {
    let spec = spec(3, 30, 16);
    let plan_of = |weights: &[f64]| {
        plan(&spec, &Synthetic { weights: weights.to_vec(), ..Synthetic::new(&[30, 30, 30]) }, None)
    };
    let mixed = plan_of(&[1.0, 1.5, 2.0]);
    let (seen, _) = run_whole(&mixed);
    assert!(mixed.resume(&seen[1].position).is_ok());
    for weights in [&[][..], &[1.0, 2.0, 1.5], &[1.0, 1.5, 1.5], &[1.0, 1.25, 2.0]] {
        let resumed = plan_of(weights).resume(&seen[1].position);
        assert!(matches!(resumed, Err(PositionError::OtherOrder)), "{weights:?}");
    }
    let sources = Arc::new(Synthetic::new(&[30, 30]));
    let mix = Mix::new(vec![Weight::ONE; 3], usize::MAX).map(Arc::new);
    assert!(matches!(training(&spec, (sources, mix), None), Err(Error::Invalid(_))));
}

#[test]
fn a_bad_record_counts_once_per_epoch_whatever_its_weight() {
    let spec = DataSpec { on_bad_record: OnBadRecord::Skip { limit: 8 }, ..spec(3, 30, 16) };
    let weights = vec![3.0, 2.5, 0.5, 1.0];
    let train = Synthetic { weights, left_out: 2, ..Synthetic::new(&[30, 30, 30, 30]) };
    let (_, report) = run_whole(&plan(&spec, &train, None));
    assert_eq!(report.unwrap().stats.skipped_records, 2 * 2 * 4);
}

#[test]
fn a_panicking_lane_is_an_error() {
    let train = Synthetic { faults: vec![(1, 3, Fault::Panic)], ..Synthetic::new(&[10, 10]) };
    let (_, report) = run_whole(&plan(&spec(2, 8, 4), &train, None));
    assert!(matches!(report, Err(Error::Panicked(message)) if message == "split 1"));
}

#[test]
fn labels_that_are_never_positive_fail_the_first_epoch() {
    let train = Synthetic { negative: true, ..Synthetic::new(&[10, 13]) };
    let plan = plan(&spec(2, 8, 4), &train, None);
    let (seen, report) = run_whole(&plan);
    let Err(Error::NeverPositive { column, records: 23, .. }) = report else { panic!("{report:?}") };
    assert_eq!(column, "clicked");
    assert!(seen.iter().all(|batch| batch.header.epoch == 0 && !batch.header.last));
    // The same after resuming within the epoch.
    let (_, report) = run_from(&plan, plan.resume(&seen[2].position).unwrap());
    assert!(matches!(report, Err(Error::NeverPositive { records: 23, .. })));
}

#[test]
fn scoring_takes_rows_in_the_order_of_the_data_and_asks_for_no_positives() {
    let spec = spec(3, 100, 7);
    let data = Synthetic { negative: true, ..Synthetic::new(&[5, 0, 9, 1, 12]) };
    let plan = IngestPlan::scoring(&spec, schema(&spec), Arc::new(data)).unwrap();
    let (seen, report) = run_whole(&plan);
    assert_eq!(report.unwrap().stats.rows, 27);
    let rows: Vec<_> = seen.into_iter().flat_map(|batch| batch.rows).collect();
    assert!(rows.is_sorted() && rows.len() == 27);
}

#[test]
fn data_without_rows_is_an_error() {
    let spec = spec(2, 8, 4);
    let none = try_plan(&spec, &Synthetic::new(&[]), None).err().unwrap();
    assert!(matches!(none, Error::NoRows { stream: "training" }));
    let (seen, report) = run_whole(&plan(&spec, &Synthetic::new(&[0, 0, 0]), None));
    assert!(seen.is_empty() && matches!(report, Err(Error::NoRows { stream: "training" })));
    let (_, report) = run_whole(&plan(&spec, &Synthetic::new(&[3]), Some(&Synthetic::new(&[0]))));
    assert!(matches!(report, Err(Error::NoRows { stream: "held-out" })));
}

#[test]
fn data_whose_rows_are_all_left_out_is_an_error_with_the_cause() {
    let skip = DataSpec { on_bad_record: OnBadRecord::Skip { limit: 100 }, ..spec(2, 8, 4) };
    let bad = Synthetic { left_out: 3, ..Synthetic::new(&[0, 0]) };
    let (_, report) = run_whole(&plan(&skip, &bad, None));
    assert!(matches!(report, Err(Error::NothingUsable { stream: "training", records: 6, .. })), "{report:?}");
    let filtered = Synthetic { has_filter: true, ..Synthetic::new(&[0]) };
    let (_, report) = run_whole(&plan(&spec(2, 8, 4), &filtered, None));
    assert!(matches!(report, Err(Error::NothingMeetsFilter { stream: "training" })), "{report:?}");
    let (_, report) = run_whole(&plan(&spec(2, 8, 4), &Synthetic::new(&[3]), Some(&filtered)));
    assert!(matches!(report, Err(Error::NothingMeetsFilter { stream: "held-out" })), "{report:?}");
}

#[test]
fn skipped_records_are_counted_and_limited() {
    let train = Synthetic { left_out: 2, ..Synthetic::new(&[9, 9, 9, 9]) };
    let allow = |limit| DataSpec { on_bad_record: OnBadRecord::Skip { limit }, ..spec(3, 8, 4) };
    let enough = plan(&allow(8), &train, None);
    let (seen, report) = run_whole(&enough);
    // Two epochs; the limit applies to each.
    assert_eq!(report.unwrap().stats.skipped_records, 16);
    for batch in &seen {
        let (_, resumed) = run_from(&enough, enough.resume(&batch.position).unwrap());
        assert_eq!(resumed.unwrap().position.skipped_before, 16);
    }
    let (_, report) = run_whole(&plan(&allow(7), &train, None));
    assert!(matches!(report, Err(Error::TooManyBadRecords { limit: 7, .. })));
}

#[test]
fn a_position_of_other_data_is_rejected() {
    let spec = spec(2, 8, 4);
    let (seen, _) = run_whole(&plan(&spec, &Synthetic::new(&[10, 10]), None));
    let other = plan(&spec, &Synthetic::new(&[10, 10, 10]), None);
    assert_eq!(other.resume(&seen[1].position), Err(PositionError::OtherOrder));
    // The same number of splits, but fewer rows.
    let shrunk = plan(&spec, &Synthetic::new(&[1, 1]), None);
    let (_, report) = run_from(&shrunk, shrunk.resume(&seen[3].position).unwrap());
    assert!(matches!(report, Err(Error::Position(_))), "{report:?}");
}

#[test]
fn a_plan_beyond_the_budget_reports_what_to_change() {
    let within = spec(4, 1000, 64);
    let train = Synthetic::new(&[100; 8]);
    let need = plan(&within, &train, None).memory();
    let exactly = DataSpec { memory_budget_bytes: need.total_bytes(), ..within.clone() };
    plan(&exactly, &train, None);
    let below = DataSpec { memory_budget_bytes: need.total_bytes() - 1, ..within };
    let message = try_plan(&below, &train, None).err().unwrap().to_string();
    for part in ["prefetch = 2", "batch_size = 64", "shuffle_rows = 1000", "lanes = 4", "memory_budget"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(message.contains(&Size(need.total_bytes()).to_string()), "{message}");
}

#[test]
fn a_short_last_batch_is_dropped_on_request() {
    for (rows, delivered) in [(24, 3), (25, 3), (31, 3), (8, 1)] {
        let mut spec = spec(2, 8, 8);
        spec.drop_last = true;
        let (train, eval) = (Synthetic::new(&[rows - 5, 5]), Synthetic::new(&[3]));
        let plan = plan(&spec, &train, Some(&eval));
        let (seen, report) = run_whole(&plan);
        let epochs: Vec<_> =
            seen.iter().map(|batch| (batch.header.stream, batch.header.epoch, batch.header.rows)).collect();
        let mut expected = Vec::new();
        for epoch in 0..2 {
            expected.extend(vec![(Stream::Train, epoch, 8); delivered]);
            expected.push((Stream::Eval, epoch, 3));
        }
        assert_eq!(epochs, expected, "{rows} rows");
        let report = report.unwrap();
        for done in 0..seen.len() {
            let (rest, resumed) = run_from(&plan, plan.resume(&seen[done].position).unwrap());
            assert_eq!(rest, seen[done + 1..]);
            assert_eq!(resumed.unwrap().position, report.position);
        }
    }
    let mut spec = spec(2, 8, 8);
    spec.drop_last = true;
    let (seen, report) = run_whole(&plan(&spec, &Synthetic::new(&[3, 4]), None));
    let message = report.unwrap_err().to_string();
    assert!(seen.is_empty() && message.contains("7 rows, fewer than batch_size = 8"), "{message}");
}

#[test]
fn a_lane_that_is_not_ready_delays_no_other_in_free_order() {
    // Split 1 cannot be read before all batches of split 0 except the last are delivered. Whether that one ends the
    // pass is unknown until then.
    without_hanging(|| {
        let mut spec = spec(2, 20, 5);
        spec.deterministic = false;
        let gate = Arc::new(AtomicU64::new(0));
        let source = Gated { inner: Synthetic::new(&[100, 100]), split: 1, gate: Arc::clone(&gate) };
        let plan = training(&spec, (Arc::new(source), None), None).unwrap();
        let (rings, mut consumer) = open(&plan);
        let ingest = start(plan.clone(), plan.start(), rings).unwrap();
        for _ in 0..19 {
            let batch = see(&mut consumer).unwrap().unwrap();
            assert!(batch.rows.iter().all(|&(split, _)| split == 0));
        }
        gate.store(1, Ordering::SeqCst);
        let mut rows = 0;
        while let Some(batch) = see(&mut consumer).unwrap() {
            rows += batch.rows.len();
        }
        assert_eq!(rows, 305);
        assert_eq!(ingest.join().unwrap().stats.rows, 400);
    });
}

#[test]
fn cancelling_ends_every_wait() {
    // The ring is not drained, so the packer waits for a slot and the lanes for the packer. With a slow source, the
    // packer waits for a lane. Cancels immediately, and after a delay.
    for delay_us in [0, 20_000] {
        for pause_ms in [0, 1, 10, 40] {
            without_hanging(move || {
                let train = Synthetic { delay_us, chunk_rows: 5, ..Synthetic::new(&[1000; 6]) };
                let plan = plan(&spec(4, 64, 8), &train, None);
                let (rings, mut consumer) = open(&plan);
                let ingest = start(plan.clone(), plan.start(), rings).unwrap();
                thread::sleep(Duration::from_millis(pause_ms));
                ingest.cancel();
                assert!(matches!(ingest.join(), Err(Error::Cancelled)));
                // Published batches are delivered; what follows must not look like the end of the feed.
                let end = loop {
                    match see(&mut consumer) {
                        Ok(Some(_)) => {}
                        other => break other,
                    }
                };
                assert!(matches!(end, Err(RingError::PeerGone)), "{end:?}");
            });
        }
    }
}

#[test]
fn cancelling_after_the_end_has_no_effect() {
    without_hanging(|| {
        let plan = plan(&spec(2, 8, 16), &Synthetic::new(&[4, 4]), None);
        let (rings, mut consumer) = open(&plan);
        let ingest = start(plan.clone(), plan.start(), rings).unwrap();
        // The end of the ring is the last thing that ingest writes.
        while see(&mut consumer).unwrap().is_some() {}
        ingest.cancel();
        assert_eq!(ingest.join().unwrap().stats.rows, 16);
    });
}

#[test]
fn dropping_the_handle_or_the_consumer_stops_ingest() {
    without_hanging(|| {
        let plan = plan(&spec(3, 64, 8), &Synthetic::new(&[1000; 6]), None);
        let (rings, consumer) = open(&plan);
        drop(start(plan.clone(), plan.start(), rings).unwrap());
        drop(consumer);

        let (rings, mut consumer) = open(&plan);
        let ingest = start(plan.clone(), plan.start(), rings).unwrap();
        see(&mut consumer).unwrap();
        drop(consumer);
        assert!(matches!(ingest.join(), Err(Error::Ring(RingError::PeerGone))));
    });
}

#[test]
fn nothing_is_read_beyond_the_plan() {
    without_hanging(|| {
        let spec = spec(4, 512, 16);
        let train = Synthetic::new(&[10_000; 8]);
        let plan = plan(&spec, &train, None);
        let (rings, consumer) = open(&plan);
        let ingest = start(plan.clone(), plan.start(), rings).unwrap();
        let published = u64::from(spec.prefetch * spec.batch_size);
        let chunks = u64::from(spec.lanes) * 2 * plan.chunk_rows(Stream::Train) as u64;
        let within_the_plan = || {
            let read = train.rows_read.load(Ordering::Relaxed);
            assert!(read <= published + 2 * spec.shuffle_rows + chunks, "{read}");
        };
        while ingest.stats().batches < u64::from(spec.prefetch) {
            within_the_plan();
            thread::yield_now();
        }
        // The ring is full. Lanes that read without a bound would by now be through all rows, or soon.
        for _ in 0..100 {
            within_the_plan();
            thread::sleep(Duration::from_millis(1));
        }
        drop(ingest);
        drop(consumer);
    });
}

#[test]
fn measuring_drains_every_epoch() {
    let plan = plan(&spec(3, 64, 8), &Synthetic::new(&[100; 6]), None);
    assert_eq!(measure(plan).unwrap().rows, 1200);
    let failing = Synthetic { faults: vec![(1, 3, Fault::Error)], ..Synthetic::new(&[10, 10]) };
    let plan = self::plan(&spec(2, 8, 4), &failing, None);
    assert!(matches!(measure(plan), Err(Error::Invalid(_))));
}
