//! The feed: uploads batches to the device through double-buffered slots, on a separate stream.
//!
//! ```text
//! copies    | batch 0 -> slot 0 | batch 1 -> slot 1 | batch 2 -> slot 0 ...
//!                     copied |        \     ^ taken
//! work                       | take in | step 0 ........ | take in | step 1 ...
//! ```
//!
//! A copy waits until the previous batch of its slot has been taken in, and taking in waits for the copy. Both
//! waits are on the device. So the next batch is copied while a step runs, and the copy after it starts as soon as
//! that batch is taken in at the end of the step. The host waits only for copies from a ring's own pages, because
//! those go back to the producer afterwards. Other batches are staged in page-locked memory that belongs to the
//! slot.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_batch::layout::Section;
use millstream_batch::{BatchRef, RingMapping, SlotLayout};
use millstream_trace::{Category, OperationInfo, Work};

use super::Cuda;
use super::driver::{Address, Context, Event, Fault, Memory, PageLocked, Registered, Stream};
use super::fault::must;

/// Number of slots on the device.
pub(super) const SLOTS: usize = 2;

/// Runs at most this far apart are copied as one: the bytes that a link transfers in the time that one more copy
/// costs.
const GAP_BYTES: usize = 128 << 10;

/// The address ranges registered as page-locked.
#[derive(Clone, Default)]
pub(super) struct PinnedRanges(Arc<Mutex<Vec<Range<usize>>>>);

/// A ring's pages, page-locked for the lifetime of this value.
pub struct CudaPinned {
    ranges: PinnedRanges,
    range: Range<usize>,
    _registered: Registered,
}

impl PinnedRanges {
    pub(super) fn pin(&self, context: &Arc<Context>, pages: &RingMapping) -> Result<CudaPinned, Fault> {
        let registered = Registered::new(context, pages)?;
        let Range { start, end } = pages.addresses();
        let range = start.addr()..end.addr();
        self.all().push(range.clone());
        Ok(CudaPinned { ranges: self.clone(), range, _registered: registered })
    }

    fn hold(&self, bytes: &[u8]) -> bool {
        let Range { start, end } = bytes.as_ptr_range();
        self.all().iter().any(|range| range.start <= start.addr() && end.addr() <= range.end)
    }

    fn all(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CudaPinned {
    fn drop(&mut self) {
        self.ranges.all().retain(|range| *range != self.range);
    }
}

/// The slots for batches of one layout.
pub(super) struct Feed {
    slots: [Slot; SLOTS],
    next: usize,
}

struct Slot {
    memory: Memory,
    /// Stages batches from memory that is not page-locked; allocated on first use.
    staging: Option<PageLocked>,
    copied: Event,
    taken: Event,
}

/// Bytes of one slot to be copied to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    from: usize,
    to: usize,
    bytes: usize,
}

impl Feed {
    pub(super) fn new(cuda: &Cuda, layout: &SlotLayout) -> Self {
        let event = || must(Event::new(cuda.context()));
        let slot = |_| {
            let memory = cuda.memory(layout.slot_bytes());
            Slot { memory, staging: None, copied: event(), taken: event() }
        };
        Self { slots: std::array::from_fn(slot), next: 0 }
    }

    /// Copies `batch` to a slot on the device. `take` receives the slot's address and enqueues the commands that
    /// take the batch in; the slot's layout is `layout`. The caller may change the batch's memory once this
    /// returns.
    pub(super) fn bring(
        &mut self,
        cuda: &Cuda,
        batch: BatchRef<'_>,
        layout: &SlotLayout,
        take: impl FnOnce(Address),
    ) {
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % SLOTS;
        let is_pinned = cuda.pinned.hold(batch.bytes());
        must(cuda.copies.wait_for(&slot.taken));
        let start = cuda.point(&cuda.copies);
        let bytes = slot.copy(cuda, batch, layout, is_pinned);
        let work = Work { rows: batch.rows() as u64, bytes: bytes as u64, flops: 0 };
        let operation = OperationInfo { name: "copy a batch", work, shape: None };
        cuda.span(start, &cuda.copies, ", copies", Category::Copy, operation);
        must(slot.copied.record(&cuda.copies));
        cuda.flush();
        must(cuda.stream.wait_for(&slot.copied));
        take(slot.memory.address());
        cuda.flush();
        must(slot.taken.record(&cuda.stream));
        if is_pinned {
            cuda.wait_for(&slot.copied);
        }
    }
}

impl Slot {
    /// Returns the number of bytes copied.
    fn copy(&mut self, cuda: &Cuda, batch: BatchRef<'_>, layout: &SlotLayout, is_pinned: bool) -> usize {
        let runs = runs(batch, layout);
        let (address, bytes) = (self.memory.address(), runs.iter().map(|run| run.bytes).sum());
        if is_pinned {
            copy_runs(&cuda.copies, &runs, address, |run| &batch.bytes()[run.from..][..run.bytes]);
            return bytes;
        }
        // Wait for the slot's previous copy to leave the staging buffer.
        cuda.wait_for(&self.copied);
        let staging =
            self.staging.get_or_insert_with(|| must(PageLocked::new(cuda.context(), layout.slot_bytes())));
        let staging = staging.bytes_mut();
        for run in &runs {
            staging[run.to..][..run.bytes].copy_from_slice(&batch.bytes()[run.from..][..run.bytes]);
        }
        copy_runs(&cuda.copies, &runs, address, |run| &staging[run.to..][..run.bytes]);
        bytes
    }
}

/// Copies each run to the slot at `address`.
fn copy_runs<'a>(copies: &Stream, runs: &[Run], address: Address, bytes: impl Fn(&Run) -> &'a [u8]) {
    for run in runs {
        // SAFETY: runs lie within the slot's memory. Page-locked bytes stay unchanged until the host has waited for
        // the copy.
        must(unsafe { copies.copy_to_device(address + run.to as Address, bytes(run)) });
    }
}

/// The copies of `batch` into a slot of `layout`, which has room for its rows. For equal layouts it is a single
/// run, unless multi-valued features have far fewer values than their maximum.
fn runs(batch: BatchRef<'_>, layout: &SlotLayout) -> Vec<Run> {
    let (theirs, rows, schema) = (batch.layout(), batch.rows(), layout.schema());
    let stride = |layout: &SlotLayout| layout.schema().rows as usize * size_of::<u32>();
    let columns = |from: Section, to: Section, count: usize| {
        let (from_stride, to_stride) = (stride(theirs), stride(layout));
        (0..count).map(move |column| {
            Run::of(from.offset + column * from_stride, to.offset + column * to_stride, rows)
        })
    };
    let weights = theirs.weights.zip(layout.weights);
    let weights = weights.map(|(from, to)| Run::of(from.offset, to.offset, rows));
    let dense = Run::of(theirs.dense.offset, layout.dense.offset, rows * schema.dense.len());
    let sections = theirs.ragged.iter().zip(&layout.ragged).enumerate();
    let ragged = sections.flat_map(|(feature, (from, to))| {
        let values = batch.ragged(feature).1.len();
        let weights = from.weights.zip(to.weights);
        let weights = weights.map(|(from, to)| Run::of(from.offset, to.offset, values));
        let offsets = Run::of(from.offsets.offset, to.offsets.offset, rows + 1);
        [offsets, Run::of(from.values.offset, to.values.offset, values)].into_iter().chain(weights)
    });
    let mut runs: Vec<Run> = Vec::new();
    let all = columns(theirs.labels, layout.labels, schema.label_count())
        .chain(weights)
        .chain([dense])
        .chain(columns(theirs.ids, layout.ids, schema.ids.len()))
        .chain(ragged);
    for run in all.filter(|run| run.bytes > 0) {
        match runs.last_mut().filter(|last| last.is_near(&run)) {
            Some(last) => last.bytes = run.to + run.bytes - last.to,
            None => runs.push(run),
        }
    }
    runs
}

impl Run {
    fn of(from: usize, to: usize, numbers: usize) -> Self {
        Self { from, to, bytes: numbers * size_of::<u32>() }
    }

    /// Whether `next`, which starts later, has the same offset on both sides and a small enough gap.
    fn is_near(&self, next: &Self) -> bool {
        next.from - self.from == next.to - self.to && next.to - (self.to + self.bytes) <= GAP_BYTES
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_batch::{
        BatchBuffer, BatchHeader, BatchMut, BatchSchema, Consumer, IdFeature, Producer, RaggedFeature, Stream,
    };

    use super::super::testing::{alone, calls, count, fail};
    use super::*;
    use crate::{
        Backend, CudaMatrix, Device, Float, Formula, IdColumn, Lookup, Pooling, TablePart, TableShape, ops,
    };

    /// Cardinality of both id features.
    const IDS: u32 = 100;
    /// The second feature's most values per row, and its values per row in the test batches.
    const MOST: u32 = 5;
    const VALUES: u32 = 3;

    fn schema(rows: u32) -> BatchSchema {
        BatchSchema {
            rows,
            labels: vec!["label".into()],
            weighted: true,
            dense: vec!["x".into(), "y".into()],
            ids: vec![IdFeature { name: "one".into(), cardinality: IDS }],
            ragged: vec![RaggedFeature {
                name: "some".into(),
                cardinality: IDS,
                maximum: MOST,
                weighted: false,
            }],
            columns: Vec::new(),
            position_bytes: 8,
        }
    }

    /// Fills a batch of `rows` rows with values derived from `number`.
    fn fill(mut batch: BatchMut<'_>, rows: u32, number: u32) {
        let header = BatchHeader {
            stream: Stream::Train,
            epoch: 0,
            batch: number.into(),
            rows,
            global_rows: rows,
            first_row: 0,
            most_rows: rows,
            last: false,
        };
        batch.set_header(&header);
        let sections = batch.sections();
        sections.labels.fill(number as f32);
        sections.dense.iter_mut().zip(0_u32..).for_each(|(x, at)| *x = (number * 7 + at) as f32);
        sections.ids.iter_mut().zip(0..).for_each(|(id, row)| *id = (number + row) % IDS);
        for (offsets, values) in sections.ragged {
            offsets.iter_mut().zip(0..).for_each(|(offset, row)| *offset = row * VALUES);
            values.iter_mut().zip(0..).for_each(|(value, at)| *value = (number * 3 + at) % IDS);
        }
    }

    /// Expected outputs of a row: its id, the sum of its values, and its two dense values.
    fn expected(number: u32, row: u32) -> [f32; 4] {
        let values = (0..VALUES).map(|value| (number * 3 + row * VALUES + value) % IDS).sum::<u32>();
        [(number + row) % IDS, values, number * 7 + 2 * row, number * 7 + 2 * row + 1].map(|x| x as f32)
    }

    /// Reads batches on the device with an identity table (row i holds i), and accumulates the sum over all
    /// batches.
    struct Sum<'a> {
        cuda: &'a Cuda,
        tables: [crate::CudaTable; 1],
        out: CudaMatrix,
        sum: CudaMatrix,
        expected: Vec<f32>,
    }

    impl<'a> Sum<'a> {
        fn new(cuda: &'a Cuda, rows: u32) -> Self {
            let shape = TableShape {
                rows: IDS as usize,
                width: 1,
                float: Float::F32,
                key: 0,
                states: 0,
                row_states: 0,
            };
            let mut table = cuda.table(shape);
            let numbers: Vec<f32> = (0..IDS).map(|id| id as f32).collect();
            cuda.write_table(&mut table, TablePart::Weights, 0, &numbers);
            let matrix = || cuda.matrix(rows as usize, 4);
            Self {
                cuda,
                tables: [table],
                out: matrix(),
                sum: matrix(),
                expected: vec![0.0; 4 * rows as usize],
            }
        }

        fn add(&mut self, batch: &crate::CudaBatch, rows: u32, number: u32) {
            let lookup = |column, first| Lookup { column, pooling: Pooling::Sum, table: 0, first };
            let lookups = [lookup(IdColumn::Single(0), 0), lookup(IdColumn::Ragged(0), 1)];
            let Self { cuda, tables, out, sum, expected: all } = self;
            cuda.run(ops::Gather {
                batch,
                rows: 0..rows as usize,
                lookups: &lookups,
                tables,
                dense: &[0, 1],
                out,
                first_column: 0,
                maxima: None,
            });
            cuda.run(ops::Add { rows: rows as usize, from: out, to: sum });
            for (row, sums) in (0..rows).zip(all.chunks_exact_mut(4)) {
                sums.iter_mut().zip(expected(number, row)).for_each(|(sum, x)| *sum += x);
            }
        }

        fn check(self) {
            let mut found = vec![0.0; self.expected.len()];
            self.cuda.read_matrix(&self.sum, &mut found);
            assert_eq!(found, self.expected);
        }
    }

    fn ring(schema: &BatchSchema) -> (Producer, Consumer) {
        let (producer, hand_off) = Producer::create(schema, 1).unwrap();
        (producer, hand_off.open(schema).unwrap())
    }

    #[test]
    fn a_slot_is_free_when_it_was_copied_and_the_step_has_yet_to_be() {
        let (stand_in, cuda) = alone();
        let rows = 37;
        let schema = schema(rows);
        let (mut producer, mut consumer) = ring(&schema);
        let pinned = cuda.pin(&consumer.mapping()).unwrap();
        let mut batch = cuda.batch(&schema);
        let mut sum = Sum::new(&cuda, rows);
        let copies = calls(&stand_in, c"cuMemcpyHtoDAsync_v2");
        let mut most_to_do = 0;
        for number in 0..40 {
            let mut filling = producer.claim().unwrap();
            fill(filling.batch(), rows, number);
            filling.publish();
            let leased = consumer.next().unwrap().unwrap();
            cuda.upload(leased.batch(), &mut batch).unwrap();
            drop(leased);
            // Refill the slot at once, as a producer would.
            fill(producer.claim().unwrap().batch(), rows, 1_000 + number);
            most_to_do = most_to_do.max(count(&stand_in, c"work"));
            sum.add(&batch, rows, number);
        }
        assert!(most_to_do > 0, "the host waits for more than copies");
        // Uploads of constants count too.
        let copied = calls(&stand_in, c"cuMemcpyHtoDAsync_v2") - copies;
        assert!((40..=45).contains(&copied), "{copied} copies of 40 batches");
        sum.check();
        cuda.check(&batch).unwrap();
        assert_eq!(
            count(&stand_in, c"page-locked bytes"),
            pages_bytes(&consumer),
            "no memory beside the ring's"
        );
        drop(pinned);
        assert_eq!(count(&stand_in, c"page-locked bytes"), 0);
    }

    fn pages_bytes(consumer: &Consumer) -> u64 {
        let Range { start, end } = consumer.mapping().addresses();
        (end.addr() - start.addr()) as u64
    }

    #[test]
    fn memory_that_is_not_page_locked_may_change_once_a_batch_was_uploaded() {
        let (stand_in, cuda) = alone();
        let (most, layout) = (30, |rows| Arc::new(SlotLayout::of(&schema(rows)).unwrap()));
        let mut batch = cuda.batch(&schema(most));
        let mut sum = Sum::new(&cuda, most);
        // Layouts: the batch's own and smaller ones; full and partial batches.
        let shapes = [(most, most), (most, 11), (20, 20), (7, 5), (1, 1)];
        for (&(room, rows), number) in shapes.iter().cycle().take(30).zip(0..) {
            let mut buffer = BatchBuffer::new(layout(room));
            fill(buffer.as_mut(), rows, number);
            cuda.upload(buffer.as_ref(), &mut batch).unwrap();
            fill(buffer.as_mut(), rows, 1_000 + number);
            sum.add(&batch, rows, number);
        }
        sum.check();
        cuda.check(&batch).unwrap();
        assert!(count(&stand_in, c"page-locked bytes") > 0);
    }

    #[test]
    fn a_ring_that_the_driver_refuses_is_said_and_does_no_harm() {
        let (stand_in, cuda) = alone();
        let schema = schema(5);
        let (mut producer, mut consumer) = ring(&schema);
        fail(&stand_in, c"cuMemHostRegister_v2", 801);
        let refused = cuda.pin(&consumer.mapping()).err().unwrap().to_string();
        assert!(
            refused.contains("cuMemHostRegister of NVIDIA's driver failed: CUDA_ERROR_NOT_SUPPORTED"),
            "{refused}"
        );
        let mut batch = cuda.batch(&schema);
        let mut sum = Sum::new(&cuda, 5);
        let mut filling = producer.claim().unwrap();
        fill(filling.batch(), 5, 3);
        filling.publish();
        cuda.upload(consumer.next().unwrap().unwrap().batch(), &mut batch).unwrap();
        sum.add(&batch, 5, 3);
        sum.check();
    }

    #[test]
    fn no_step_follows_a_bad_batch_until_it_is_reported() {
        let (_stand_in, cuda) = alone();
        let layout = Arc::new(SlotLayout::of(&schema(4)).unwrap());
        let (mut batch, mut report) = (cuda.batch(&schema(4)), cuda.report(1));
        let (mut weight, gradient, mut scale) = (cuda.matrix(1, 1), cuda.matrix(1, 1), cuda.matrix(1, 1));
        cuda.write_matrix(&mut scale, &[1.0]);
        let mut gradient = gradient;
        cuda.write_matrix(&mut gradient, &[-1.0]);
        let sgd = Formula::Sgd { learning_rate: 1.0 }.into();
        let mut step = |bad: bool| {
            let mut buffer = BatchBuffer::new(Arc::clone(&layout));
            fill(buffer.as_mut(), 4, 1);
            if bad {
                buffer.as_mut().sections().ids[2] = IDS + 1;
            }
            cuda.upload(buffer.as_ref(), &mut batch).unwrap();
            cuda.run(ops::Step {
                update: &sgd,
                scale: &scale,
                weights: &mut weight,
                states: &mut [],
                grad: &gradient,
            });
            cuda.run(ops::Blend { share: 0.5, factor: 0.0, from: &gradient, to: &mut weight });
            cuda.send(&batch, &[&weight], &mut report);
            let mut number = [0.0];
            (cuda.receive(&mut report, &mut number).map_err(|error| error.to_string()), number[0])
        };
        assert_eq!(step(false), (Ok(()), 0.5));
        let message = "feature `one`, row 2 of the batch: id 101 is not below the cardinality 100";
        assert_eq!(step(true), (Err(message.to_owned()), 0.5));
        assert_eq!(step(false), (Ok(()), 0.75));
    }

    #[test]
    fn a_batch_goes_as_one_run_where_little_lies_between() {
        let runs_of = |maximum, room, rows| {
            let mut from = schema(room);
            from.ragged[0].maximum = maximum;
            let to = SlotLayout::of(&BatchSchema { rows: 100_000, ..from.clone() }).unwrap();
            let layout = Arc::new(SlotLayout::of(&from).unwrap());
            let mut buffer = BatchBuffer::new(layout);
            fill(buffer.as_mut(), rows, 1);
            runs(buffer.as_ref(), &to)
        };
        let whole = runs_of(VALUES, 100_000, 100_000);
        assert_eq!(whole.len(), 1, "{whole:?}");
        assert_eq!(whole[0].from, whole[0].to);
        // Each section has fewer than 100 bytes.
        assert_eq!(runs_of(VALUES, 100_000, 20).len(), 6);
        // Offsets differ, so each section is its own run: labels, weights, dense values, ids, offsets, ragged
        // values.
        assert_eq!(runs_of(VALUES, 99_000, 99_000).len(), 6);
    }
}
