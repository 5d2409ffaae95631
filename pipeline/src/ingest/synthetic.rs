//! Feeds of synthetic data, and the batches that the reference implementation of the order expects of them.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use millstream_batch::{
    BatchHeader, BatchRef, BatchSchema, Consumer, IdFeature, RaggedFeature, RingError, Stream,
};
use proptest::prelude::*;

use super::*;
use crate::chunk::{Chunk, RaggedColumn};
use crate::order::{Mix, OrderSpec, Pass, Weight, reference};
use crate::spec::{DataSpec, LabelSpec};

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
    pub(super) has_filter: bool,
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

    pub(super) fn mix(&self) -> Option<Arc<Mix>> {
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

    fn has_filter(&self) -> bool {
        self.has_filter
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
pub(super) struct Gated {
    pub(super) inner: Synthetic,
    pub(super) split: u32,
    pub(super) gate: Arc<AtomicU64>,
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

pub(super) const SEED: u64 = 11;

pub(super) fn try_plan(
    spec: &DataSpec,
    train: &Synthetic,
    eval: Option<&Synthetic>,
) -> Result<IngestPlan, Error> {
    let shared = |source: &Synthetic| Arc::new(source.clone()) as Arc<dyn ChunkSource>;
    training(spec, (shared(train), train.mix()), eval.map(shared))
}

pub(super) fn training(
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

/// Runs `work`, and fails the test if it does not return. The deadline is generous: the machine may be busy.
pub(super) fn without_hanging<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(Duration::from_secs(300)).expect("hangs")
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
