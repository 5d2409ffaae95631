//! Property tests of the order, with synthetic chunks.
#![allow(clippy::unwrap_used)]

use millstream_batch::Stream;
use proptest::prelude::*;

use super::reference::{self, Row};
use super::*;

/// Lengths of splits, with chunk sizes and skipped records.
#[derive(Clone, Debug)]
struct Data {
    lengths: Vec<u64>,
    /// Rows of the chunks of each split, repeated cyclically.
    chunks: Vec<u32>,
    skipped: Vec<u64>,
    /// Rows of the groups, which are adjacent; they continue from split to split.
    group_rows: u64,
}

/// The group of a row.
fn group_of((split, row): Row, group_rows: u64) -> u32 {
    // Ids are no function of the data's order.
    (u64::from(split) * 1000 + row / group_rows * 7919 % 1000) as u32
}

/// One lane of a pass: reads chunks and forms windows.
struct Lane<'a> {
    data: &'a Data,
    order: &'a PassOrder,
    lane: u32,
    cutter: Cutter<'a>,
    /// Rows read of the current split.
    read: u64,
    /// Rows left in the current chunk.
    available: u32,
    chunk: usize,
}

impl<'a> Lane<'a> {
    fn new(data: &'a Data, order: &'a PassOrder, lane: u32, from: Cursor) -> Self {
        Self { data, order, lane, cutter: Cutter::new(order, lane, from), read: 0, available: 0, chunk: 0 }
    }

    fn window(&mut self) -> Result<Result<(WindowExtent, Vec<Row>), u64>, PositionError> {
        let mut rows = Vec::new();
        let number = self.cutter.window();
        let extent = loop {
            if self.cutter.is_full() {
                break self.cutter.finish();
            }
            let Some(split) = self.cutter.upcoming(0) else { break self.cutter.finish() };
            let left = self.data.lengths[split as usize] - self.read;
            if left == 0 {
                (self.read, self.chunk) = (0, 0);
                if let Some(extent) = self.cutter.end_split(self.data.skipped[split as usize])? {
                    break Some(extent);
                }
                continue;
            }
            if self.available == 0 {
                let chunk = self.data.chunks[self.chunk % self.data.chunks.len()];
                self.available = left.min(u64::from(chunk)) as u32;
                self.chunk += 1;
            }
            let taken = self.cutter.take(self.available);
            self.read += u64::from(taken.before);
            rows.extend((0..u64::from(taken.kept)).map(|i| (split, self.read + i)));
            self.read += u64::from(taken.kept);
            self.available -= taken.before + taken.kept;
        };
        let Some(extent) = extent else { return Ok(Err(self.cutter.skipped_at_end())) };
        self.order.permute(self.lane, number, &mut rows, |row, _| group_of(row, self.data.group_rows));
        assert_eq!(extent.rows as usize, rows.len());
        Ok(Ok((extent, rows)))
    }
}

/// The batches of a pass from `position` on, each with the position after it.
fn run(
    spec: &OrderSpec,
    data: &Data,
    batch_size: usize,
    position: &Position,
) -> Result<Vec<(Vec<Row>, Position)>, PositionError> {
    let order = PassOrder::new(spec, position.pass.unwrap(), data.lengths.len() as u32);
    let mut merge = Merge::new(&order, position);
    let mut lanes: Vec<Lane<'_>> = (0..spec.lanes)
        .map(|lane| {
            let from = match position.lanes[lane as usize] {
                LanePosition::At(cursor) => cursor,
                LanePosition::Ended => Cursor::default(),
            };
            Lane::new(data, &order, lane, from)
        })
        .collect();
    let mut windows: Vec<Vec<Row>> = vec![Vec::new(); spec.lanes as usize];
    let (mut batches, mut batch) = (Vec::new(), Vec::new());
    let mut position = position.clone();
    loop {
        match merge.next() {
            Turn::Row { lane, index } => batch.push(windows[lane as usize][index as usize]),
            Turn::Wait { lane } => match lanes[lane as usize].window()? {
                Ok((extent, rows)) => {
                    merge.supply(lane, extent)?;
                    windows[lane as usize] = rows;
                }
                Err(skipped) => merge.end_lane(lane, skipped)?,
            },
            Turn::End => break,
        }
        if batch.len() == batch_size {
            merge.store(&mut position);
            position.batch += 1;
            batches.push((std::mem::take(&mut batch), position.clone()));
        }
    }
    if !batch.is_empty() {
        merge.store(&mut position);
        position.batch += 1;
        batches.push((batch, position.clone()));
    }
    assert_eq!(merge.skipped(), data.skipped.iter().sum::<u64>());
    Ok(batches)
}

fn rows(batches: &[(Vec<Row>, Position)]) -> Vec<Vec<Row>> {
    batches.iter().map(|(rows, _)| rows.clone()).collect()
}

fn start(spec: &OrderSpec, stream: Stream, epoch: u32) -> Position {
    Position::start_of(Some(Pass { stream, epoch }), spec.lanes, 0)
}

prop_compose! {
    fn data()(lengths in prop::collection::vec(prop_oneof![2 => 0_u64..40, 1 => Just(0)], 0..9))(
        skipped in prop::collection::vec(0_u64..3, lengths.len()),
        chunks in prop::collection::vec(1_u32..20, 1..4),
        group_rows in 1_u64..9,
        lengths in Just(lengths),
    ) -> Data {
        Data { lengths, chunks, skipped, group_rows }
    }
}

prop_compose! {
    fn spec()(
        seed: u64, lanes in 1_u32..7, shuffle_rows in prop_oneof![Just(0_u64), 1_u64..200],
        group in prop::option::of(0_u32..3),
    ) -> OrderSpec {
        OrderSpec { seed, lanes, shuffle_rows, group }
    }
}

fn stream() -> impl Strategy<Value = Stream> {
    prop_oneof![3 => Just(Stream::Train), 1 => Just(Stream::Eval)]
}

proptest! {
    #[test]
    fn matches_the_reference(spec in spec(), data in data(), stream in stream(), epoch in 0_u32..3, b in 1_usize..30) {
        let batches = run(&spec, &data, b, &start(&spec, stream, epoch)).unwrap();
        let group_of = |row| group_of(row, data.group_rows);
        prop_assert_eq!(rows(&batches), reference::batches(&spec, Pass { stream, epoch }, &data.lengths, b, &group_of));
    }

    #[test]
    fn every_row_is_delivered_exactly_once(spec in spec(), data in data(), stream in stream(), b in 1_usize..30) {
        let batches = run(&spec, &data, b, &start(&spec, stream, 0)).unwrap();
        let mut delivered = rows(&batches).concat();
        delivered.sort_unstable();
        let all: Vec<Row> = (0..).zip(&data.lengths).flat_map(|(s, &n)| (0..n).map(move |r| (s, r))).collect();
        prop_assert_eq!(delivered, all);
    }

    #[test]
    fn resuming_after_any_batch_delivers_the_rest(spec in spec(), data in data(), stream in stream(), b in 1_usize..30) {
        let batches = run(&spec, &data, b, &start(&spec, stream, 1)).unwrap();
        let mut bytes = Vec::new();
        for (done, (_, position)) in batches.iter().enumerate() {
            position.encode(&mut bytes);
            prop_assert_eq!(bytes.len() as u64, Position::encoded_bytes(spec.lanes));
            let rest = run(&spec, &data, b, &Position::decode(&bytes).unwrap()).unwrap();
            prop_assert_eq!(&rest[..], &batches[done + 1..]);
        }
    }

    /// A group is divided only at the borders of its lane's windows; other orders of the rows follow from other seeds.
    #[test]
    fn groups_stay_together(spec in spec(), data in data(), epoch in 0_u32..3) {
        let spec = OrderSpec { group: Some(1), ..spec };
        prop_assume!(spec.shuffle_rows > 0);
        let position = start(&spec, Stream::Train, epoch);
        let order = PassOrder::new(&spec, position.pass.unwrap(), data.lengths.len() as u32);
        for lane in 0..spec.lanes {
            let mut lane = Lane::new(&data, &order, lane, Cursor::default());
            while let Ok((_, rows)) = lane.window().unwrap() {
                let groups: Vec<u32> = rows.iter().map(|&row| group_of(row, data.group_rows)).collect();
                let distinct: std::collections::BTreeSet<u32> = groups.iter().copied().collect();
                prop_assert_eq!(groups.chunk_by(|a, b| a == b).count(), distinct.len(), "{:?}", rows);
            }
        }
    }

    #[test]
    fn rows_and_positions_do_not_depend_on_chunks(
        spec in spec(), data in data(), stream in stream(), b in 1_usize..30, other in prop::collection::vec(1_u32..50, 1..3),
    ) {
        let recut = Data { chunks: other, ..data.clone() };
        prop_assert_eq!(
            run(&spec, &data, b, &start(&spec, stream, 0)).unwrap(),
            run(&spec, &recut, b, &start(&spec, stream, 0)).unwrap()
        );
    }

    #[test]
    fn truncated_data_is_detected(spec in spec(), data in data(), b in 1_usize..30) {
        prop_assume!(spec.shuffle_rows > 0);
        let batches = run(&spec, &data, b, &start(&spec, Stream::Train, 0)).unwrap();
        let empty = Data { lengths: vec![0; data.lengths.len()], ..data };
        for (_, position) in &batches {
            let moved = position.lanes.iter().any(|lane| {
                matches!(lane, LanePosition::At(cursor) if cursor.row > 0 || cursor.drawn > 0)
            });
            let resumed = run(&spec, &empty, b, position);
            if moved {
                let detected = matches!(resumed, Err(PositionError::DataChanged { .. }));
                prop_assert!(detected, "{:?}", resumed);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_rejected(mut bytes in prop::collection::vec(any::<u8>(), 0..200), version: bool) {
        if let (Some(first), true) = (bytes.first_mut(), version) {
            *first = 1;
        }
        prop_assert!(Position::decode(&bytes).is_err());
    }
}

#[test]
fn flipped_bits_and_truncation_are_rejected() {
    let spec = OrderSpec { seed: 5, lanes: 3, shuffle_rows: 10, group: None };
    let data = Data { lengths: vec![9, 0, 20, 4], chunks: vec![3], skipped: vec![1, 0, 0, 2], group_rows: 1 };
    let batches = run(&spec, &data, 4, &start(&spec, Stream::Train, 0)).unwrap();
    let mut bytes = Vec::new();
    batches[4].1.encode(&mut bytes);
    assert_eq!(Position::decode(&bytes), Ok(batches[4].1.clone()));
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Position::decode(&damaged).is_err(), "bit {bit}");
    }
    for length in 0..bytes.len() {
        assert!(Position::decode(&bytes[..length]).is_err(), "truncated to {length}");
    }
}

#[test]
fn positions_of_another_order_are_rejected() {
    let spec = OrderSpec { seed: 5, lanes: 3, shuffle_rows: 10, group: None };
    let cut = |splits| Cut { splits, cuts: 0 };
    let feed = Feed::Train { epochs: 2, eval: true };
    let fingerprint = spec.fingerprint(feed, cut(4), cut(1));
    let position = Position::start_of(feed.first(), 3, fingerprint);
    assert_eq!(position.check(feed, 3, fingerprint), Ok(()));
    let recut = Cut { splits: 4, cuts: 77 };
    assert_eq!(
        position.check(feed, 3, spec.fingerprint(feed, recut, cut(1))),
        Err(PositionError::OtherOrder)
    );
    for (other, feed, splits) in [
        (OrderSpec { seed: 6, ..spec }, feed, 4),
        (OrderSpec { shuffle_rows: 11, ..spec }, feed, 4),
        (OrderSpec { lanes: 4, ..spec }, feed, 4),
        (OrderSpec { group: Some(0), ..spec }, feed, 4),
        (OrderSpec { group: Some(1), ..spec }, feed, 4),
        (spec, feed, 5),
        (spec, Feed::Score, 4),
    ] {
        assert_eq!(
            position.check(feed, other.lanes, other.fingerprint(feed, cut(splits), cut(1))),
            Err(PositionError::OtherOrder)
        );
    }
}

#[test]
fn feeds_alternate_training_and_evaluation() {
    let passes = |feed: Feed| {
        let mut pass = feed.first();
        std::iter::from_fn(move || {
            let now = pass?;
            assert!(feed.contains(now));
            pass = feed.after(now);
            Some((now.stream, now.epoch))
        })
        .collect::<Vec<_>>()
    };
    use Stream::{Eval, Train};
    let trains = passes(Feed::Train { epochs: 2, eval: true });
    assert_eq!(trains, [(Train, 0), (Eval, 0), (Train, 1), (Eval, 1)]);
    assert_eq!(passes(Feed::Train { epochs: 2, eval: false }), [(Train, 0), (Train, 1)]);
    assert_eq!(passes(Feed::Train { epochs: 0, eval: true }), []);
    assert_eq!(passes(Feed::Score), [(Eval, 0)]);
}

/// The order of version 1: later versions must be able to resume its jobs.
#[test]
fn order_matches_the_golden_batches() {
    let spec = OrderSpec { seed: 42, lanes: 3, shuffle_rows: 12, group: None };
    let data = Data { lengths: vec![5, 3, 7, 4], chunks: vec![2], skipped: vec![0; 4], group_rows: 1 };
    let batches = run(&spec, &data, 7, &start(&spec, Stream::Train, 1)).unwrap();
    let golden: [&[Row]; 3] = [
        &[(1, 0), (2, 1), (3, 1), (0, 0), (2, 0), (3, 2), (0, 1)],
        &[(2, 3), (3, 0), (1, 2), (2, 4), (3, 3), (1, 1), (2, 5)],
        &[(0, 2), (2, 2), (0, 4), (2, 6), (0, 3)],
    ];
    assert_eq!(rows(&batches), golden);
}

/// The order of groups and that of the rows of a group are permuted uniformly.
#[test]
fn groups_and_their_rows_are_shuffled() {
    let mut counts = std::collections::BTreeMap::new();
    for seed in 0..6000 {
        let spec = OrderSpec { seed, lanes: 1, shuffle_rows: 6, group: Some(0) };
        let order = PassOrder::new(&spec, Pass { stream: Stream::Train, epoch: 0 }, 1);
        let mut rows = [10_u32, 11, 20, 30, 12, 31];
        order.permute(0, 0, &mut rows, |row, _| row / 10);
        *counts.entry(rows).or_insert(0_u32) += 1;
    }
    // 3! orders of the groups, times 3! and 2! of their rows.
    assert_eq!(counts.len(), 72);
    assert!(counts.values().all(|count| (40..140).contains(count)), "{counts:?}");
}

/// Groups that are adjacent in the data are whole within batches, except at the borders of batches and windows.
#[test]
fn adjacent_groups_are_whole_in_most_batches() {
    let (lanes, batch_size) = (4_u32, 200);
    let spec = OrderSpec { seed: 3, lanes, shuffle_rows: 2000, group: Some(0) };
    let data = Data { lengths: vec![1000; 8], chunks: vec![64], skipped: vec![0; 8], group_rows: 10 };
    let batches = rows(&run(&spec, &data, batch_size, &start(&spec, Stream::Train, 0)).unwrap());
    let in_batch = |rows: &Vec<Row>| {
        rows.iter().map(|&row| group_of(row, 10)).collect::<std::collections::BTreeSet<_>>()
    };
    let parts: usize = batches.iter().map(|batch| in_batch(batch).len()).sum();
    let (groups, borders) = (800, (batches.len() - 1) * lanes as usize);
    // Windows of 500 rows after a first one of another length.
    let windows = 20;
    assert!(parts > groups && parts <= groups + borders + windows, "{parts} parts of {groups} groups");
    // Without groups, nearly every row is apart from the others of its group.
    let scattered = rows(
        &run(&OrderSpec { group: None, ..spec }, &data, batch_size, &start(&spec, Stream::Train, 0)).unwrap(),
    );
    assert!(scattered.iter().map(|batch| in_batch(batch).len()).sum::<usize>() > 3 * groups);
}

/// Rows of sorted data move anywhere within the reach of the pool: within one window all places are equally likely, and
/// over the epochs a row's place is uncorrelated with its origin.
#[test]
fn shuffled_rows_are_uncorrelated_with_their_origin() {
    let spec = OrderSpec { seed: 1, lanes: 4, shuffle_rows: 4000, group: None };
    let lengths = vec![500; 8];
    let mut correlations = Vec::new();
    for epoch in 0..20 {
        let rows =
            reference::batches(&spec, Pass { stream: Stream::Train, epoch }, &lengths, usize::MAX, &|_| 0)
                .concat();
        let places: Vec<f64> =
            rows.iter().map(|&(split, row)| f64::from(split) * 500.0 + row as f64).collect();
        correlations.push(correlation(&places));
    }
    let mean = correlations.iter().sum::<f64>() / correlations.len() as f64;
    assert!(mean.abs() < 0.05, "{correlations:?}");
    assert!(correlations.iter().all(|c| c.abs() < 0.35), "{correlations:?}");

    // One split and one window are a plain permutation.
    let whole = OrderSpec { lanes: 1, ..spec };
    let rows =
        reference::batches(&whole, Pass { stream: Stream::Train, epoch: 0 }, &[4000], usize::MAX, &|_| 0)
            .concat();
    let places: Vec<f64> = rows.iter().map(|&(_, row)| row as f64).collect();
    assert!(correlation(&places).abs() < 0.05);
}

/// The Pearson correlation of each value with its index.
fn correlation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let (mean_x, mean_y) = ((n - 1.0) / 2.0, values.iter().sum::<f64>() / n);
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in values.iter().enumerate() {
        let (dx, dy) = (x as f64 - mean_x, y - mean_y);
        xy += dx * dy;
        xx += dx * dx;
        yy += dy * dy;
    }
    xy / (xx * yy).sqrt()
}
