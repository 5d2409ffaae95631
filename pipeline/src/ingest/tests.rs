//! Compares the engine over synthetic data with the reference implementation of the order.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use millstream_batch::{
    BatchHeader, BatchRef, BatchSchema, Consumer, IdFeature, RaggedFeature, RingError, Size, Stream,
};
use proptest::prelude::*;

use super::*;
use crate::chunk::{Chunk, RaggedColumn};
use crate::order::{Cursor, Mix, OrderSpec, Pass, PositionError, Weight, reference};
use crate::spec::{DataSpec, LabelSpec, OnBadRecord};

/// Splits of numbered rows; reading may be slow, faulty, or skip records.
#[derive(Clone, Debug, Default)]
pub(super) struct Synthetic {
    pub(super) lengths: Vec<u64>,
    /// The maximum rows per chunk; 0 for as many as requested.
    pub(super) chunk_rows: usize,
    /// The maximum delay per chunk, in microseconds.
    pub(super) delay_us: u64,
    /// Faults: the split and row at which reading fails, and the kind of failure.
    pub(super) faults: Vec<(u32, u64, Fault)>,
    /// Records skipped in each split.
    pub(super) left_out: u64,
    /// Whether a reader can skip directly to a row.
    pub(super) passes: bool,
    pub(super) negative: bool,
    /// The only row with a positive label.
    pub(super) only_positive: Option<(u32, u64)>,
    /// The weight of each split; empty without a mix.
    pub(super) weights: Vec<f64>,
    pub(super) rows_read: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    Error,
    Panic,
}

/// The weight of a row.
fn weight_of((split, row): reference::Row) -> f32 {
    split as f32 + row as f32 / 4.0
}

/// The values of a row's ragged feature, and their weights.
fn values_of((split, row): reference::Row) -> impl Iterator<Item = (u32, f32)> {
    (0..(row as u32 + split) % (MAX_VALUES + 1)).map(move |i| (row as u32 * 8 + i, split as f32 + i as f32))
}

/// The maximum number of values of a row's ragged features.
const MAX_VALUES: u32 = 3;

/// A ragged column of the values of `rows`.
fn ragged_of(rows: impl Iterator<Item = reference::Row>, weighted: bool) -> RaggedColumn {
    let (mut offsets, mut values, mut weights) = (vec![0], Vec::new(), Vec::new());
    for row in rows {
        let of_row = values_of(row);
        of_row.for_each(|(value, weight)| {
            values.push(value);
            weights.push(weight);
        });
        offsets.push(values.len() as u32);
    }
    RaggedColumn { offsets, values, weights: weighted.then_some(weights) }
}

/// The id of a row's group, of a few rows.
fn group_of((split, row): reference::Row) -> u32 {
    (row / 4 * 37 % 61) as u32 + split
}

struct SyntheticReader {
    source: Synthetic,
    split: u32,
    next: u64,
}

impl Synthetic {
    pub(super) fn new(lengths: &[u64]) -> Self {
        Self { lengths: lengths.to_vec(), ..Self::default() }
    }

    /// The same data, whose last split occurs in every epoch: a pass without rows is an error.
    pub(super) fn with_rows(mut self) -> Self {
        self.weights.truncate(self.lengths.len());
        if let Some(last) = self.weights.last_mut() {
            *last = last.max(1.0);
        }
        self
    }

    fn mix(&self) -> Option<Arc<Mix>> {
        let weights: Vec<_> = self.weights.iter().map(|&weight| Weight::new(weight)).collect();
        (!weights.is_empty()).then(|| Arc::new(Mix::new(weights, usize::MAX).unwrap()))
    }

    /// The rows of each split of an epoch.
    pub(super) fn splits_of(&self, stream: Stream, epoch: u32) -> Vec<Vec<reference::Row>> {
        let rows_of = |split: u32| (0..self.lengths[split as usize]).map(move |row| (split, row));
        match self.mix().filter(|_| stream == Stream::Train) {
            None => (0..self.lengths.len() as u32).map(|split| rows_of(split).collect()).collect(),
            Some(mix) => (0..mix.splits())
                .map(|index| {
                    let copy = mix.copy(index);
                    let sample = copy.sample(SEED, epoch);
                    let is_drawn = |&(_, row): &_| sample.is_none_or(|sample| sample.holds(row));
                    rows_of(copy.split).filter(is_drawn).collect()
                })
                .collect(),
        }
    }
}

impl ChunkSource for Synthetic {
    fn splits(&self) -> u32 {
        self.lengths.len() as u32
    }

    fn cuts(&self) -> u64 {
        0
    }

    fn lane_bytes(&self, _chunk_rows: usize) -> u64 {
        1000
    }

    fn open(
        &self,
        split: u32,
        from: u64,
        _permit: &Permit,
        _counters: &Arc<Counters>,
    ) -> Result<Opened, Error> {
        let passed = if self.passes { from } else { 0 };
        let reader = SyntheticReader { source: self.clone(), split, next: passed };
        Ok(Opened { reader: Box::new(reader), passed })
    }
}

impl ChunkReader for SyntheticReader {
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error> {
        let Self { source, split, next } = self;
        if source.delay_us > 0 {
            let scrambled = (u64::from(*split) * 31 + *next).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            thread::sleep(Duration::from_micros(scrambled % source.delay_us));
        }
        let end = source.lengths[*split as usize].min(*next + max_rows as u64);
        let end = if source.chunk_rows > 0 { end.min(*next + source.chunk_rows as u64) } else { end };
        for &(faulty, row, fault) in &source.faults {
            if faulty == *split && (*next..end).contains(&row) {
                match fault {
                    Fault::Error => return Err(Error::Invalid(format!("split {split}"))),
                    Fault::Panic => panic!("split {split}"),
                }
            }
        }
        let rows = *next..end;
        *next = end;
        source.rows_read.fetch_add(rows.end - rows.start, Ordering::Relaxed);
        let positive = |row| source.only_positive.map_or(!source.negative, |only| only == (*split, row));
        Ok((!rows.is_empty()).then(|| Chunk {
            labels: vec![rows.clone().map(|row| if positive(row) { 1.0 } else { 0.0 }).collect()],
            weights: Some(rows.clone().map(|row| weight_of((*split, row))).collect()),
            dense: rows.clone().map(|row| row as f32).collect(),
            ragged: [false, true]
                .map(|weighted| ragged_of(rows.clone().map(|row| (*split, row)), weighted))
                .into(),
            narrow: Vec::new(),
            columns: Vec::new(),
            ids: rows.flat_map(|row| [*split, row as u32, group_of((*split, row))]).collect(),
        }))
    }

    fn left_out(&mut self) -> SkippedRecords {
        let records = self.source.left_out;
        SkippedRecords {
            records,
            last: (records > 0).then(|| Error::Invalid(format!("bad in split {}", self.split))),
        }
    }
}

/// A source with one split that cannot be read before its gate opens.
struct Gated {
    inner: Synthetic,
    split: u32,
    gate: Arc<AtomicU64>,
}

impl ChunkSource for Gated {
    fn splits(&self) -> u32 {
        self.inner.splits()
    }

    fn cuts(&self) -> u64 {
        0
    }

    fn lane_bytes(&self, chunk_rows: usize) -> u64 {
        self.inner.lane_bytes(chunk_rows)
    }

    fn open(
        &self,
        split: u32,
        from: u64,
        permit: &Permit,
        counters: &Arc<Counters>,
    ) -> Result<Opened, Error> {
        while split == self.split && self.gate.load(Ordering::SeqCst) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        self.inner.open(split, from, permit, counters)
    }
}

pub(super) fn spec(lanes: u32, shuffle_rows: u64, batch_size: u32) -> DataSpec {
    DataSpec {
        batch_size,
        epochs: 2,
        shuffle_rows,
        lanes,
        prefetch: 2,
        memory_budget_bytes: 1 << 30,
        ..DataSpec::default()
    }
}

pub(super) fn schema(spec: &DataSpec) -> BatchSchema {
    let id = |name: &str| IdFeature { name: name.to_owned(), cardinality: u32::MAX };
    let ragged = |weighted| RaggedFeature {
        name: "values".to_owned(),
        cardinality: u32::MAX,
        maximum: MAX_VALUES,
        weighted,
    };
    BatchSchema {
        rows: spec.batch_size,
        weighted: true,
        ragged: [false, true].map(ragged).into(),
        dense: vec!["row".to_owned()],
        ids: vec![id("split"), id("row"), id("group")],
        position_bytes: Position::encoded_bytes(spec.lanes) as u32,
        ..BatchSchema::default()
    }
}

const SEED: u64 = 11;

pub(super) fn try_plan(
    spec: &DataSpec,
    train: &Synthetic,
    eval: Option<&Synthetic>,
) -> Result<IngestPlan, Error> {
    let shared = |source: &Synthetic| Arc::new(source.clone()) as Arc<dyn ChunkSource>;
    training(spec, (shared(train), train.mix()), eval.map(shared))
}

fn training(
    spec: &DataSpec,
    train: (Arc<dyn ChunkSource>, Option<Arc<Mix>>),
    eval: Option<Arc<dyn ChunkSource>>,
) -> Result<IngestPlan, Error> {
    let label = LabelSpec::of("clicked", None);
    IngestPlan::training(spec, SEED, &label, schema(spec), train, eval)
}

pub(super) fn plan(spec: &DataSpec, train: &Synthetic, eval: Option<&Synthetic>) -> IngestPlan {
    try_plan(spec, train, eval).unwrap()
}

/// A batch as received by the consumer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) header: BatchHeader,
    pub(super) position: Vec<u8>,
    pub(super) rows: Vec<reference::Row>,
}

/// The rings of all ranks.
pub(super) fn open_all(plan: &IngestPlan) -> (Vec<Producer>, Vec<Consumer>) {
    let (rings, hand_offs) = plan.create_rings().unwrap();
    (rings, hand_offs.into_iter().map(|hand_off| hand_off.open(plan.ring_schema()).unwrap()).collect())
}

/// The ring of the only rank.
pub(super) fn open(plan: &IngestPlan) -> (Vec<Producer>, Consumer) {
    let (rings, consumers) = open_all(plan);
    let [consumer] = <[_; 1]>::try_from(consumers).ok().unwrap();
    (rings, consumer)
}

pub(super) fn see(consumer: &mut Consumer) -> Result<Option<Seen>, RingError> {
    Ok(consumer.next()?.map(|leased| {
        let batch = leased.batch();
        let rows: Vec<_> = batch.ids(0).iter().zip(batch.ids(1)).map(|(&s, &r)| (s, u64::from(r))).collect();
        check_sections(batch, &rows);
        Seen { header: batch.header(), position: batch.position().to_vec(), rows }
    }))
}

/// Asserts that every section has the values of `rows`.
fn check_sections(batch: BatchRef<'_>, rows: &[reference::Row]) {
    assert_eq!(batch.rows(), rows.len());
    assert!(batch.labels(0).iter().all(|label| [0.0, 1.0].contains(label)));
    assert!(batch.weights().unwrap().iter().zip(rows).all(|(&weight, &row)| weight == weight_of(row)));
    assert!(batch.dense().iter().zip(rows).all(|(&dense, row)| dense == row.1 as f32));
    assert!(batch.ids(2).iter().zip(rows).all(|(&group, &row)| group == group_of(row)));
    for (feature, weighted) in [false, true].into_iter().enumerate() {
        let expected = ragged_of(rows.iter().copied(), weighted);
        let (offsets, values) = batch.ragged(feature);
        assert_eq!((offsets, values), (&expected.offsets[..], &expected.values[..]));
        let weights = batch.ragged_weights(feature).map(|weights| &weights[..values.len()]);
        assert_eq!(weights, expected.weights.as_deref());
    }
}

/// The next global batch, from the parts of all ranks, which must be cut as [`BatchSchema::part`] says.
pub(super) fn see_all(plan: &IngestPlan, consumers: &mut [Consumer]) -> Result<Option<Seen>, RingError> {
    let parts: Result<Vec<Option<Seen>>, _> = consumers.iter_mut().map(see).collect();
    let parts = parts?;
    if parts.iter().any(Option::is_none) {
        assert!(parts.iter().all(Option::is_none), "the rings have different numbers of batches");
        return Ok(None);
    }
    let parts: Vec<Seen> = parts.into_iter().flatten().collect();
    let Seen { header, position, .. } = parts[0].clone();
    let global_rows = header.global_rows;
    let whole = BatchHeader { rows: global_rows, most_rows: global_rows, ..header };
    let most_rows = plan.ring_schema().rows.min(global_rows);
    let mut first_row = 0;
    for part in &parts {
        let rows = most_rows.min(global_rows - first_row);
        assert_eq!(part.header, BatchHeader { rows, first_row, most_rows, ..whole });
        assert_eq!(part.position, position, "the ranks' positions differ");
        first_row += rows;
    }
    assert_eq!(first_row, global_rows);
    Ok(Some(Seen { header: whole, position, rows: parts.into_iter().flat_map(|part| part.rows).collect() }))
}

/// All batches of a feed starting at `from`, and the result of the feed.
pub(super) fn run_from(plan: &IngestPlan, from: Position) -> (Vec<Seen>, Result<IngestReport, Error>) {
    let (rings, mut consumers) = open_all(plan);
    let ingest = start(plan.clone(), from, rings).unwrap();
    let mut seen = Vec::new();
    while let Ok(Some(batch)) = see_all(plan, &mut consumers) {
        seen.push(batch);
    }
    (seen, ingest.join())
}

pub(super) fn run_whole(plan: &IngestPlan) -> (Vec<Seen>, Result<IngestReport, Error>) {
    run_from(plan, plan.start())
}

fn order(spec: &DataSpec) -> OrderSpec {
    OrderSpec {
        seed: SEED,
        lanes: spec.lanes,
        shuffle_rows: spec.shuffle_rows,
        group: spec.group.as_ref().map(|_| 2),
    }
}

/// The lane of each of `splits` splits in the first epoch.
pub(super) fn reference_lanes(spec: &DataSpec, splits: u32) -> Vec<u32> {
    reference::lanes(&order(spec), Pass { stream: Stream::Train, epoch: 0 }, splits)
}

pub(super) fn expected(
    spec: &DataSpec,
    train: &Synthetic,
    eval: Option<&Synthetic>,
) -> Vec<(BatchHeader, Vec<reference::Row>)> {
    let batches = expected_lanes(spec, train, eval).into_iter();
    batches.map(|(header, rows)| (header, rows.into_iter().map(|(_, row)| row).collect())).collect()
}

/// The rows of each part of a batch whose rows have these lanes.
pub(super) fn by_lanes(rows: &[(u32, reference::Row)], parts: usize) -> Vec<Vec<reference::Row>> {
    let of_part = |part| move |&(lane, row): &(u32, _)| (lane as usize % parts == part).then_some(row);
    (0..parts).map(|part| rows.iter().filter_map(of_part(part)).collect()).collect()
}

/// The expected batches, with the lane of each row.
pub(super) fn expected_lanes(
    spec: &DataSpec,
    train: &Synthetic,
    eval: Option<&Synthetic>,
) -> Vec<(BatchHeader, Vec<(u32, reference::Row)>)> {
    let mut all = Vec::new();
    for epoch in 0..spec.epochs {
        for (stream, source) in [(Stream::Train, Some(train)), (Stream::Eval, eval)] {
            let Some(source) = source else { continue };
            let pass = Pass { stream, epoch };
            let splits = source.splits_of(stream, epoch);
            let lengths: Vec<u64> = splits.iter().map(|rows| rows.len() as u64).collect();
            let row = |(split, row): reference::Row| splits[split as usize][row as usize];
            let group_of = |place| group_of(row(place));
            let batches =
                reference::batches(&order(spec), pass, &lengths, spec.batch_size as usize, &group_of);
            let lanes = reference::lanes(&order(spec), pass, lengths.len() as u32);
            let placed = |place: reference::Row| (lanes[place.0 as usize], row(place));
            let batches: Vec<Vec<_>> =
                batches.into_iter().map(|rows| rows.into_iter().map(placed).collect()).collect();
            let count = batches.len() as u64;
            all.extend((0..).zip(batches).map(|(batch, rows)| {
                let last = batch + 1 == count;
                let header =
                    BatchHeader { stream, epoch, batch, last, ..BatchHeader::train(rows.len() as u32) };
                (header, rows)
            }));
        }
    }
    all
}

/// Weights for up to 16 splits, or none.
pub(super) fn weights() -> impl Strategy<Value = Vec<f64>> {
    let weight = prop_oneof![Just(1.0), Just(2.0), Just(0.5), Just(2.5), 0.001_f64..4.0];
    prop_oneof![Just(Vec::new()), prop::collection::vec(weight, 17)]
}

prop_compose! {
    pub(super) fn synthetic()(
        lengths in prop::collection::vec(0_u64..60, 0..7), one in 1_u64..60, weights in weights(),
        chunk_rows in 0_usize..20, delay_us in prop_oneof![Just(0_u64), Just(150)], passes: bool,
    ) -> Synthetic {
        let lengths = [lengths, vec![one]].concat();
        Synthetic { lengths, chunk_rows, delay_us, passes, weights, ..Synthetic::default() }.with_rows()
    }
}

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

/// Runs `work`, and fails the test if it does not return. The deadline is generous: the machine may be busy.
pub(super) fn without_hanging<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(Duration::from_secs(300)).expect("hangs")
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
