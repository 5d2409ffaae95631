//! After the first steps, a training step allocates nothing.
//!
//! Layers are not tested: the `gemm` crate allocates and frees its packing buffers in each call.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_backend::{
    Backend, Cpu, Device, Float, Formula, GradientColumns, GradientMode, IdColumn, Lookup, Loss, Pooling,
    RowGradients, TableShape, Update, ops,
};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, RaggedFeature, SlotLayout, Stream};

/// The system allocator, with a counter.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged to the system allocator, which upholds the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is the same for `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` was allocated by `System`, because `alloc` forwards to it; the caller upholds the rest
        // of the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROWS: u32 = 2000;
const CARDINALITY: u32 = 5000;
const WIDTH: usize = 16;
const THREADS: usize = 3;
const STEPS: usize = 50;

fn batch(schema: &BatchSchema) -> BatchBuffer {
    let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(schema).expect("a schema with rows")));
    let mut slot = buffer.as_mut();
    slot.set_header(&BatchHeader {
        stream: Stream::Train,
        epoch: 0,
        batch: 0,
        rows: ROWS,
        global_rows: ROWS,
        first_row: 0,
        most_rows: ROWS,
        last: false,
    });
    let mut sections = slot.sections();
    for (row, id) in (0..ROWS).zip(sections.ids.iter_mut()) {
        *id = row * 7919 % CARDINALITY;
    }
    let (offsets, values) = &mut sections.ragged[0];
    for (row, offset) in (0..=ROWS).zip(offsets.iter_mut()) {
        *offset = row * 2;
    }
    for (number, value) in (0..2 * ROWS).zip(values.iter_mut()) {
        *value = number % CARDINALITY;
    }
    sections.ragged_weights.into_iter().flatten().for_each(|weights| weights.fill(1.5));
    buffer
}

#[test]
fn a_step_allocates_nothing() {
    // Sequentially: the counter is global.
    [false, true].into_iter().for_each(check);
}

/// With or without id weights.
fn check(weighted: bool) {
    let schema = BatchSchema {
        rows: ROWS,
        labels: Vec::new(),
        weighted: false,
        dense: vec!["x".to_owned()],
        ids: vec![IdFeature { name: "id".to_owned(), cardinality: CARDINALITY }],
        ragged: vec![RaggedFeature {
            name: "ids".to_owned(),
            cardinality: CARDINALITY,
            maximum: 2,
            weighted,
        }],
        columns: Vec::new(),
        position_bytes: 0,
    };
    let columns = [IdColumn::Single(0), IdColumn::Ragged(0)];
    // Separate tables have one column each; a shared table has both.
    let lookup = |number: usize| {
        let (column, first) = (columns[number], number * WIDTH);
        Lookup { column, pooling: Pooling::Mean, table: number, first }
    };
    let lookups = [lookup(0), lookup(1)];
    let shared = lookups.map(|lookup| Lookup { table: 0, ..lookup });
    let cpu = Cpu::new(Some(THREADS as u32)).expect("some threads");
    let rows = ROWS as usize;
    let formula = Formula::Adagrad { learning_rate: 0.1, epsilon: 1e-7 };
    let (update, mut scale) = (Update { formula, clip: 1.0, l2: 1e-3 }, cpu.matrix(1, 1));
    let table = |float, width| {
        cpu.table(TableShape { rows: CARDINALITY as usize, width, float, key: 3, states: 1, row_states: 0 })
    };
    let mut embeddings = [Float::Bf16; 2].map(|float| table(float, WIDTH));
    let mut one = [table(Float::Bf16, WIDTH)];
    let mut wide = [Float::F32; 2].map(|float| table(float, 1));
    let (dense_weights, mut bias) = (cpu.matrix(1, 1), cpu.matrix(1, 1));
    let (mut dense_grad, mut bias_grad) = (cpu.matrix(1, 1), cpu.matrix(1, 1));
    let mut bias_state = [cpu.matrix(1, 1)];
    let (mut input, input_grad) = (cpu.matrix(rows, 2 * WIDTH + 1), cpu.matrix(rows, 2 * WIDTH));
    let (mut logits, mut logits_grad) = (cpu.matrix(rows, 1), cpu.matrix(rows, 1));
    let (mut sums, mut squares) = (cpu.matrix(1, 2), cpu.matrix(1, 1));
    let loss = Loss::BinaryCrossEntropy { smoothing: 0.1, positive_weight: 2.0, negative_weight: 1.0 };
    let mut uploaded = cpu.batch(&schema);
    let mut plan = cpu.row_plan(&schema, &[vec![columns[0]], vec![columns[1]], columns.to_vec()]);
    let slot = batch(&schema);
    let loss = loss.into();
    let mut step = || {
        cpu.upload(slot.as_ref(), &mut uploaded).expect("a batch of the schema");
        cpu.run(ops::PlanRows { batch: &uploaded, plan: &mut plan });
        cpu.run(ops::Gather {
            batch: &uploaded,
            rows: 0..rows,
            lookups: &lookups,
            tables: &embeddings,
            dense: &[0],
            out: &mut input,
            first_column: 0,
            maxima: None,
        });
        cpu.run(ops::LinearForward {
            batch: &uploaded,
            rows: 0..rows,
            lookups: &lookups,
            tables: &wide,
            dense: &[0],
            dense_weights: &dense_weights,
            bias: &bias,
            out: &mut logits,
        });
        cpu.run(ops::Dropout { rows: 0..rows, keep: 0.5, key: 7, matrix: &mut input });
        cpu.run(ops::TaskLoss {
            total: None,
            task: &loss,
            batch: &uploaded,
            rows: 0..rows,
            logits: &logits,
            logits_grad: &mut logits_grad,
            sums: &mut sums,
        });
        cpu.run(ops::LinearBackward {
            batch: &uploaded,
            rows: 0..rows,
            dense: &[0],
            out_grad: &logits_grad,
            mode: GradientMode::Write,
            weight_grad: &mut dense_grad,
            bias_grad: &mut bias_grad,
        });
        cpu.run(ops::Gather {
            batch: &uploaded,
            rows: 0..rows,
            lookups: &shared,
            tables: &one,
            dense: &[0],
            out: &mut input,
            first_column: 0,
            maxima: None,
        });
        let (apart, alike) = (GradientColumns::Apart { first: 0 }, GradientColumns::Shared);
        let (batch, plan, lookups) = (&uploaded, &plan, lookups.as_slice());
        let of_deep =
            RowGradients::<Cpu> { batch, plan, lookups, gradient: &input_grad, columns: apart, maxima: None };
        let of_wide = RowGradients::<Cpu> {
            batch,
            plan,
            lookups,
            gradient: &logits_grad,
            columns: alike,
            maxima: None,
        };
        let lookups = shared.as_slice();
        let of_one =
            RowGradients::<Cpu> { batch, plan, lookups, gradient: &input_grad, columns: apart, maxima: None };
        cpu.run(ops::Clear { rows: 1, matrix: &mut squares });
        cpu.run(ops::RowSquares { gradients: &of_deep, tables: &embeddings, sum: &mut squares });
        cpu.run(ops::Squares { grad: &bias_grad, sum: &mut squares });
        cpu.run(ops::ClipScale { maximum: 1.0, squares: &squares, scale: &mut scale });
        cpu.run(ops::StepRows {
            update: &update,
            scale: &scale,
            draws: 5,
            gradients: &of_deep,
            tables: &mut embeddings,
        });
        cpu.run(ops::StepRows {
            update: &update,
            scale: &scale,
            draws: 5,
            gradients: &of_wide,
            tables: &mut wide,
        });
        cpu.run(ops::StepRows {
            update: &update,
            scale: &scale,
            draws: 5,
            gradients: &of_one,
            tables: &mut one,
        });
        cpu.run(ops::Step {
            update: &update,
            scale: &scale,
            weights: &mut bias,
            states: &mut bias_state,
            grad: &bias_grad,
        });
    };
    step();
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "the counter counts");
    let mut allocations = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..STEPS).for_each(|_| step());
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    // A thread that had no task in earlier steps allocates when it starts, which affects a few rounds.
    let rounds: Vec<usize> = (0..2 * THREADS).map(|_| allocations()).collect();
    assert!(rounds.contains(&0), "allocations in each round of {STEPS} steps: {rounds:?}");
}
