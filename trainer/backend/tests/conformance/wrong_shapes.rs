//! Every operation refuses every operand of a wrong shape, on every device, and names the operand.
//!
//! A case builds an operation from operands that a [`Make`] hands out by name. It runs once with right operands,
//! then once for each operand and each deviation from its shape.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use millstream_backend::{
    Activation, Axis, Backend, Device, Float, Formula, GradientColumns, GradientMode, IdColumn, Lookup, Loss,
    LossScaling, MixtureShape, Normalization, Pooling, Reference, RowGradients, SavedLayer,
    SavedNormalization, SoftmaxInput, TablePart, TableShape, Task, Update, ops,
};

use crate::case::{IdsFall, Random, Shapes, cpus, cuda};

const ROWS: usize = 3;
/// Columns of dense values, and the width of tables.
const DENSE: usize = 2;
const WIDTH: usize = 4;

/// A deviation from the shape that an operand must have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deviation {
    RowTooFew,
    ColumnTooFew,
    ColumnTooMany,
    /// A wrong index or count.
    WrongValue,
}

/// Hands out operands, one of which deviates.
struct Make<'a, B: Backend> {
    backend: &'a B,
    batch: &'a B::Batch,
    wrong: Option<(&'static str, Deviation)>,
    /// The operands handed out, with the deviations that the operation must refuse.
    seen: Vec<(&'static str, Deviation)>,
}

impl<B: Backend> Make<'_, B> {
    fn with(&mut self, name: &'static str, rows: usize, columns: usize, refused: &[Deviation]) -> B::Matrix {
        self.seen.extend(refused.iter().map(|&deviation| (name, deviation)));
        let (rows, columns) = match self.wrong {
            Some((wrong, deviation)) if wrong == name => match deviation {
                Deviation::RowTooFew => (rows - 1, columns),
                Deviation::ColumnTooFew => (rows, columns - 1),
                Deviation::ColumnTooMany => (rows, columns + 1),
                Deviation::WrongValue => (rows, columns),
            },
            _ => (rows, columns),
        };
        self.backend.matrix(rows, columns)
    }

    /// A matrix of at least `rows` rows and exactly `columns` columns.
    fn matrix(&mut self, name: &'static str, rows: usize, columns: usize) -> B::Matrix {
        use Deviation::{ColumnTooFew, ColumnTooMany, RowTooFew};
        self.with(name, rows, columns, &[RowTooFew, ColumnTooFew, ColumnTooMany])
    }

    /// A matrix of at least `rows` rows and `columns` columns.
    fn at_least(&mut self, name: &'static str, rows: usize, columns: usize) -> B::Matrix {
        self.with(name, rows, columns, &[Deviation::RowTooFew, Deviation::ColumnTooFew])
    }

    /// A matrix of at least `rows` rows, whose columns decide those of other operands.
    fn rows(&mut self, name: &'static str, rows: usize, columns: usize) -> B::Matrix {
        self.with(name, rows, columns, &[Deviation::RowTooFew])
    }

    /// A matrix whose shape decides those of other operands.
    fn any(&mut self, rows: usize, columns: usize) -> B::Matrix {
        self.backend.matrix(rows, columns)
    }

    /// A value, or one that the operation must refuse.
    fn value<T>(&mut self, name: &'static str, right: T, wrong: T) -> T {
        self.seen.push((name, Deviation::WrongValue));
        if self.wrong == Some((name, Deviation::WrongValue)) { wrong } else { right }
    }

    fn table(&self, width: usize, formula: &Formula) -> B::Table {
        self.backend.table(TableShape {
            rows: 9,
            width,
            float: Float::F32,
            key: 0,
            states: formula.states(),
            row_states: formula.row_states(),
        })
    }
}

type Case<B> = fn(&mut Make<'_, B>);

/// All cases, by the names of their operations.
fn cases<B: Backend>() -> Vec<(&'static str, Case<B>)> {
    vec![
        ("write_matrix", write_matrix),
        ("read_matrix", read_matrix),
        ("write_table", write_table),
        ("read_table", read_table),
        ("copy_table", copy_table),
        ("gather", gather),
        ("linear_forward", linear_forward),
        ("linear_backward", linear_backward),
        ("layer_forward", layer_forward),
        ("layer_backward", layer_backward),
        ("fm_forward", fm_forward),
        ("fm_backward", fm_backward),
        ("cross_forward", cross_forward),
        ("cross_backward", cross_backward),
        ("dot_forward", dot_forward),
        ("dot_backward", dot_backward),
        ("mixture_forward", mixture_forward),
        ("mixture_backward", mixture_backward),
        ("copy_columns", copy_columns),
        ("copy_rows", copy_rows),
        ("dropout", dropout),
        ("moments", moments),
        ("normalize_forward", normalize_forward),
        ("normalize_backward", normalize_backward),
        ("unit_forward", unit_forward),
        ("unit_backward", unit_backward),
        ("row_products", row_products),
        ("in_batch_softmax", in_batch_softmax),
        ("blend", blend),
        ("add", add),
        ("clear", clear),
        ("loss", loss),
        ("multiply", multiply),
        ("sigmoid", sigmoid),
        ("softmax", softmax),
        ("squares", squares),
        ("row_squares", row_squares),
        ("clip_scale", clip_scale),
        ("unscale", unscale),
        ("step", step),
        ("step_rows", step_rows),
    ]
}

#[test]
fn the_reference_refuses_wrong_shapes() {
    refuses(&Reference);
}

#[test]
fn cpus_refuse_wrong_shapes() {
    cpus(2).iter().for_each(refuses);
}

#[test]
fn cuda_refuses_wrong_shapes() {
    refuses(&cuda());
}

/// The shapes of the batch: a label, dense columns, a single-valued and a multi-valued feature.
fn shapes() -> Shapes {
    Shapes {
        rows: ROWS as u32,
        capacity: 4,
        dense: DENSE,
        single: vec![(9, WIDTH)],
        ragged: vec![(9, WIDTH, 2)],
        pooling: Pooling::Sum,
        shared: false,
        weighted: true,
        weighted_ids: false,
        ids: IdsFall::Anywhere,
        layer: (1, 1),
    }
}

/// Runs all cases on `backend`.
fn refuses<B: Backend>(backend: &B) {
    let covered: BTreeSet<&str> = cases::<B>().into_iter().map(|(name, _)| name).collect();
    // A plan is created for the schema of its batches, and has no shape of its own.
    let all: BTreeSet<&str> =
        ops::Operation::<B>::NAMES.iter().copied().filter(|&name| name != "plan_rows").collect();
    assert_eq!(covered, all);

    let shapes = shapes();
    let mut batch = backend.batch(&shapes.schema());
    backend.upload(shapes.batch(&mut Random(5)).as_ref(), &mut batch).expect("a batch of the schema");
    for (operation, case) in cases::<B>() {
        let mut make = Make { backend, batch: &batch, wrong: None, seen: Vec::new() };
        case(&mut make);
        let deviations = make.seen;
        assert!(!deviations.is_empty(), "{operation}");
        for deviation in deviations {
            let mut make = Make { backend, batch: &batch, wrong: Some(deviation), seen: Vec::new() };
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(&mut make))) else {
                panic!("{operation} accepts {deviation:?}");
            };
            let message = panic.downcast_ref::<String>().expect("a formatted message");
            let expected = format!("{operation}: operand `{}` ", deviation.0);
            assert!(message.starts_with(&expected), "{operation}, {deviation:?}: {message}");
        }
    }
    backend.finish();
}

#[test]
fn a_table_without_a_row_for_every_id_is_refused() {
    refuses_small_tables(&Reference);
    cpus(2).iter().for_each(refuses_small_tables);
    refuses_small_tables(&cuda());
}

fn refuses_small_tables<B: Backend>(backend: &B) {
    let mut batch = backend.batch(&shapes().schema());
    backend.upload(shapes().batch(&mut Random(5)).as_ref(), &mut batch).expect("a batch of the schema");
    let shape = |rows| TableShape { rows, width: WIDTH, float: Float::F32, key: 0, states: 0, row_states: 0 };
    let tables = [backend.table(shape(9)), backend.table(shape(8))];
    let gather = || {
        backend.run(ops::Gather {
            batch: &batch,
            rows: 0..ROWS,
            lookups: &LOOKUPS,
            tables: &tables,
            dense: &[],
            out: &mut backend.matrix(ROWS, 2 * WIDTH),
            first_column: 0,
        });
    };
    let panic = catch_unwind(AssertUnwindSafe(gather)).expect_err("a table that is too small");
    let message = panic.downcast_ref::<String>().expect("a formatted message");
    assert_eq!(message, "gather: operand `tables` is 8, but must be at least 9");
}

#[test]
fn sizes_that_overflow_are_refused() {
    let (from, mut to) = (Reference.matrix(ROWS, 2), Reference.matrix(ROWS, 2));
    let most = usize::MAX;
    let copies: [&mut dyn FnMut(); 2] = [
        &mut || Reference.run(ops::CopyRows { rows: 2, from: &from, to: &mut to, first: most }),
        &mut || {
            let to = (&mut Reference.matrix(ROWS, 2), 0);
            Reference.run(ops::CopyColumns { rows: 1, from: (&from, most), to, columns: 2 });
        },
    ];
    for copy in copies {
        let panic = catch_unwind(AssertUnwindSafe(copy)).expect_err("a size past the end");
        let message = panic.downcast_ref::<String>().expect("a formatted message");
        assert!(message.contains("but must have 18446744073709551615 "), "{message}");
    }
}

/// Two lookups, concatenated.
const LOOKUPS: [Lookup; 2] = [
    Lookup { column: IdColumn::Single(0), pooling: Pooling::Sum, table: 0, first: 0 },
    Lookup { column: IdColumn::Ragged(0), pooling: Pooling::Mean, table: 1, first: WIDTH },
];

const SGD: Formula = Formula::Sgd { learning_rate: 0.1 };
const MOMENTUM: Formula = Formula::Momentum { learning_rate: 0.1, momentum: 0.9, nesterov: false };

/// Lookups whose column, table or first column may be wrong.
fn lookups<B: Backend>(make: &mut Make<'_, B>) -> [Lookup; 2] {
    let [first, second] = LOOKUPS;
    let column = make.value("lookups", second.column, IdColumn::Ragged(1));
    let table = make.value("tables", second.table, 2);
    [first, Lookup { column, table, ..second }]
}

fn write_matrix<B: Backend>(make: &mut Make<'_, B>) {
    let mut matrix = make.any(ROWS, 2);
    let count = make.value("values", ROWS * 2, ROWS * 2 - 1);
    make.backend.write_matrix(&mut matrix, &vec![B::Scalar::default(); count]);
}

fn read_matrix<B: Backend>(make: &mut Make<'_, B>) {
    let matrix = make.any(ROWS, 2);
    let count = make.value("out", ROWS * 2, ROWS * 2 + 1);
    make.backend.read_matrix(&matrix, &mut vec![B::Scalar::default(); count]);
}

fn write_table<B: Backend>(make: &mut Make<'_, B>) {
    let mut table = make.table(WIDTH, &MOMENTUM);
    let part = make.value("part", TablePart::State(0), TablePart::State(1));
    let first_row = make.value("first_row", 7, 10);
    let count = make.value("values", 2 * WIDTH, 2 * WIDTH + 1);
    make.backend.write_table(&mut table, part, first_row, &vec![B::Scalar::default(); count]);
}

fn read_table<B: Backend>(make: &mut Make<'_, B>) {
    let table = make.table(WIDTH, &MOMENTUM);
    let part = make.value("part", TablePart::Weights, TablePart::RowState(0));
    let first_row = make.value("first_row", 7, 10);
    let count = make.value("out", 2 * WIDTH, 2 * WIDTH + 1);
    make.backend.read_table(&table, part, first_row, &mut vec![B::Scalar::default(); count]);
}

fn copy_table<B: Backend>(make: &mut Make<'_, B>) {
    let table = make.table(WIDTH, &MOMENTUM);
    let count = B::copied_numbers(B::table_shape(&table));
    let count = make.value("out", count, count - 1);
    make.backend.run(ops::CopyTable { table: &table, out: &mut vec![B::Scalar::default(); count] });
}

fn gather<B: Backend>(make: &mut Make<'_, B>) {
    let lookups = lookups(make);
    let tables = [make.table(WIDTH, &SGD), make.table(WIDTH, &SGD)];
    let dense = [make.value("dense", 0, DENSE)];
    let rows = 0..make.value("rows", ROWS, ROWS + 1);
    let mut out = make.matrix("out", ROWS, 1 + 2 * WIDTH + 1);
    make.backend.run(ops::Gather {
        batch: make.batch,
        rows,
        lookups: &lookups,
        tables: &tables,
        dense: &dense,
        out: &mut out,
        first_column: 1,
    });
}

fn linear_forward<B: Backend>(make: &mut Make<'_, B>) {
    let lookups = lookups(make).map(|lookup| Lookup { first: lookup.first / WIDTH * 3, ..lookup });
    let tables = [make.table(3, &SGD), make.table(3, &SGD)];
    let dense = [make.value("dense", 0, DENSE)];
    let rows = 0..make.value("rows", ROWS, ROWS + 1);
    let dense_weights = make.matrix("dense_weights", 1, 3);
    let bias = make.matrix("bias", 1, 3);
    let mut out = make.rows("out", ROWS, 3);
    make.backend.run(ops::LinearForward {
        batch: make.batch,
        rows,
        lookups: &lookups,
        tables: &tables,
        dense: &dense,
        dense_weights: &dense_weights,
        bias: &bias,
        out: &mut out,
    });
}

fn linear_backward<B: Backend>(make: &mut Make<'_, B>) {
    let dense = [make.value("dense", 0, DENSE)];
    let rows = 0..make.value("rows", ROWS, ROWS + 1);
    let out_grad = make.rows("out_grad", ROWS, 3);
    let mut weight_grad = make.matrix("weight_grad", 1, 3);
    let mut bias_grad = make.matrix("bias_grad", 1, 3);
    make.backend.run(ops::LinearBackward {
        batch: make.batch,
        rows,
        dense: &dense,
        out_grad: &out_grad,
        mode: GradientMode::Write,
        weight_grad: &mut weight_grad,
        bias_grad: &mut bias_grad,
    });
}

fn layer_forward<B: Backend>(make: &mut Make<'_, B>) {
    let weights = make.any(5, 4);
    let (input, bias) = (make.matrix("input", ROWS, 5), make.matrix("bias", 1, 4));
    let mut output = make.matrix("output", ROWS, 4);
    make.backend.run(ops::LayerForward {
        rows: ROWS,
        input: &input,
        weights: &weights,
        bias: Some(&bias),
        activation: Activation::Relu,
        output: &mut output,
    });
}

fn layer_backward<B: Backend>(make: &mut Make<'_, B>) {
    let weights = make.any(5, 4);
    let (input, output) = (make.matrix("input", ROWS, 5), make.matrix("output", ROWS, 4));
    let mut output_grad = make.matrix("output_grad", ROWS, 4);
    let mut weight_grad = make.matrix("weight_grad", 5, 4);
    let mut bias_grad = make.matrix("bias_grad", 1, 4);
    let refused = [Deviation::RowTooFew, Deviation::ColumnTooMany];
    let mut input_grad = make.with("input_grad", ROWS, 5, &refused);
    let (activation, input_activation) = (Activation::Relu, Activation::Relu);
    let layer =
        SavedLayer { input: &input, input_activation, weights: &weights, output: &output, activation };
    make.backend.run(ops::LayerBackward {
        rows: ROWS,
        layer: &layer,
        output_grad: &mut output_grad,
        mode: GradientMode::Write,
        weight_grad: &mut weight_grad,
        bias_grad: Some(&mut bias_grad),
        input_grad: Some(&mut input_grad),
    });
}

fn fm_forward<B: Backend>(make: &mut Make<'_, B>) {
    let vectors = make.at_least("vectors", ROWS, 6);
    let mut out = make.matrix("out", ROWS, 1);
    make.backend.run(ops::FmForward { rows: ROWS, vectors: &vectors, shape: (3, 2), out: &mut out });
}

fn fm_backward<B: Backend>(make: &mut Make<'_, B>) {
    let vectors = make.at_least("vectors", ROWS, 6);
    let out_grad = make.matrix("out_grad", ROWS, 1);
    let mut vectors_grad = make.at_least("vectors_grad", ROWS, 6);
    make.backend.run(ops::FmBackward {
        rows: ROWS,
        vectors: &vectors,
        shape: (3, 2),
        out_grad: &out_grad,
        vectors_grad: &mut vectors_grad,
    });
}

fn cross_forward<B: Backend>(make: &mut Make<'_, B>) {
    let first = make.rows("first", ROWS, 5);
    let (product, input) = (make.matrix("product", ROWS, 5), make.matrix("input", ROWS, 5));
    let mut output = make.matrix("output", ROWS, 5);
    make.backend.run(ops::CrossForward {
        rows: ROWS,
        first: &first,
        product: &product,
        input: &input,
        output: &mut output,
    });
}

fn cross_backward<B: Backend>(make: &mut Make<'_, B>) {
    let first = make.rows("first", ROWS, 5);
    let (product, output_grad) = (make.matrix("product", ROWS, 5), make.matrix("output_grad", ROWS, 5));
    let mut product_grad = make.matrix("product_grad", ROWS, 5);
    let mut first_grad = make.matrix("first_grad", ROWS, 5);
    make.backend.run(ops::CrossBackward {
        rows: ROWS,
        first: &first,
        product: &product,
        output_grad: &output_grad,
        product_grad: &mut product_grad,
        first_grad: &mut first_grad,
    });
}

fn dot_forward<B: Backend>(make: &mut Make<'_, B>) {
    let vectors = make.matrix("vectors", ROWS, 6);
    let mut out = make.matrix("out", ROWS, 2 + 3);
    make.backend.run(ops::DotForward { rows: ROWS, vectors: &vectors, width: 2, out: &mut out });
}

fn dot_backward<B: Backend>(make: &mut Make<'_, B>) {
    let vectors = make.matrix("vectors", ROWS, 6);
    let out_grad = make.matrix("out_grad", ROWS, 2 + 3);
    let mut vectors_grad = make.matrix("vectors_grad", ROWS, 6);
    make.backend.run(ops::DotBackward {
        rows: ROWS,
        vectors: &vectors,
        width: 2,
        out_grad: &out_grad,
        vectors_grad: &mut vectors_grad,
    });
}

const MIXTURE: MixtureShape = MixtureShape { tasks: 2, experts: 3, width: 4 };

fn mixture_forward<B: Backend>(make: &mut Make<'_, B>) {
    let (logits, experts) = (make.matrix("logits", ROWS, 6), make.matrix("experts", ROWS, 12));
    let (mut gates, mut output) = (make.matrix("gates", ROWS, 6), make.matrix("output", ROWS, 8));
    make.backend.run(ops::MixtureForward {
        rows: ROWS,
        shape: MIXTURE,
        logits: &logits,
        experts: &experts,
        gates: &mut gates,
        output: &mut output,
    });
}

fn mixture_backward<B: Backend>(make: &mut Make<'_, B>) {
    let (gates, experts) = (make.matrix("gates", ROWS, 6), make.matrix("experts", ROWS, 12));
    let output_grad = make.matrix("output_grad", ROWS, 8);
    let mut logits_grad = make.matrix("logits_grad", ROWS, 6);
    let mut experts_grad = make.matrix("experts_grad", ROWS, 12);
    make.backend.run(ops::MixtureBackward {
        rows: ROWS,
        shape: MIXTURE,
        gates: &gates,
        experts: &experts,
        output_grad: &output_grad,
        logits_grad: &mut logits_grad,
        experts_grad: &mut experts_grad,
    });
}

fn copy_columns<B: Backend>(make: &mut Make<'_, B>) {
    let from = make.at_least("from", ROWS, 1 + 2);
    let mut to = make.at_least("to", ROWS, 3 + 2);
    make.backend.run(ops::CopyColumns { rows: ROWS, from: (&from, 1), to: (&mut to, 3), columns: 2 });
}

fn copy_rows<B: Backend>(make: &mut Make<'_, B>) {
    let from = make.rows("from", ROWS, 4);
    let mut to = make.matrix("to", 2 + ROWS, 4);
    make.backend.run(ops::CopyRows { rows: ROWS, from: &from, to: &mut to, first: 2 });
}

fn dropout<B: Backend>(make: &mut Make<'_, B>) {
    let mut matrix = make.rows("matrix", ROWS, 4);
    let keep = make.value("keep", 0.5, 0.0);
    make.backend.run(ops::Dropout { rows: 5..5 + ROWS, keep, key: 7, matrix: &mut matrix });
}

/// The axis, and the shape of means and variances of `ROWS` rows of 4 columns.
const AXES: [(Axis, usize, usize); 2] = [(Axis::Row, ROWS, 1), (Axis::Column, 1, 4)];

fn moments<B: Backend>(make: &mut Make<'_, B>) {
    for (axis, rows, columns) in AXES {
        let input = make.rows("input", ROWS, 4);
        let mut mean = make.matrix("mean", rows, columns);
        let mut variance = make.matrix("variance", rows, columns);
        let (mean, variance) = (&mut mean, &mut variance);
        make.backend.run(ops::Moments { rows: ROWS, axis, input: &input, mean, variance });
    }
}

fn normalize_forward<B: Backend>(make: &mut Make<'_, B>) {
    for (axis, rows, columns) in AXES {
        let input = make.rows("input", ROWS, 4);
        let (mean, variance) = (make.matrix("mean", rows, columns), make.matrix("variance", rows, columns));
        let (scale, shift) = (make.matrix("scale", 1, 4), make.matrix("shift", 1, 4));
        let mut output = make.matrix("output", ROWS, 4);
        let layer = Normalization { axis, scale: &scale, shift: &shift, epsilon: 1e-3, is_rectified: true };
        make.backend.run(ops::NormalizeForward {
            rows: ROWS,
            layer: &layer,
            moments: (&mean, &variance),
            input: &input,
            output: &mut output,
        });
    }
}

fn normalize_backward<B: Backend>(make: &mut Make<'_, B>) {
    for (axis, rows, columns) in AXES {
        let input = make.rows("input", ROWS, 4);
        let (mean, variance) = (make.matrix("mean", rows, columns), make.matrix("variance", rows, columns));
        let (scale, shift) = (make.matrix("scale", 1, 4), make.matrix("shift", 1, 4));
        let output = make.matrix("output", ROWS, 4);
        let mut grad = make.matrix("grad", ROWS, 4);
        let mut scale_grad = make.matrix("scale_grad", 1, 4);
        let mut shift_grad = make.matrix("shift_grad", 1, 4);
        let layer = Normalization { axis, scale: &scale, shift: &shift, epsilon: 1e-3, is_rectified: true };
        let saved = SavedNormalization { input: &input, mean: &mean, variance: &variance, output: &output };
        make.backend.run(ops::NormalizeBackward {
            rows: ROWS,
            layer: &layer,
            saved: &saved,
            grad: &mut grad,
            mode: GradientMode::Write,
            scale_grad: &mut scale_grad,
            shift_grad: &mut shift_grad,
        });
    }
}

fn unit_forward<B: Backend>(make: &mut Make<'_, B>) {
    let input = make.rows("input", ROWS, 4);
    let mut output = make.matrix("output", ROWS, 4);
    make.backend.run(ops::UnitForward { rows: ROWS, input: &input, output: &mut output });
}

fn unit_backward<B: Backend>(make: &mut Make<'_, B>) {
    let input = make.rows("input", ROWS, 4);
    let mut grad = make.matrix("grad", ROWS, 4);
    make.backend.run(ops::UnitBackward { rows: ROWS, input: &input, grad: &mut grad });
}

fn row_products<B: Backend>(make: &mut Make<'_, B>) {
    let left = make.rows("left", ROWS, 4);
    let right = make.matrix("right", ROWS, 4);
    let mut out = make.matrix("out", ROWS, 1);
    let (left, right, out) = (&left, &right, &mut out);
    make.backend.run(ops::RowProducts { rows: ROWS, factor: 2.0, left, right, out });
}

fn in_batch_softmax<B: Backend>(make: &mut Make<'_, B>) {
    let queries = make.rows("queries", ROWS, 4);
    let items = make.matrix("items", ROWS, 4);
    let item_id = Some(make.value("item_id", 0, 1));
    let mut work = make.backend.softmax_work(ROWS, 4);
    let (mut query_grad, mut item_grad) =
        (make.matrix("query_grad", ROWS, 4), make.matrix("item_grad", ROWS, 4));
    let mut sums = make.matrix("sums", 1, 2);
    let input =
        SoftmaxInput { batch: make.batch, queries: &queries, items: &items, temperature: 0.5, item_id };
    make.backend.run(ops::InBatchSoftmax {
        input: &input,
        work: &mut work,
        query_grad: &mut query_grad,
        item_grad: &mut item_grad,
        sums: &mut sums,
    });
}

fn blend<B: Backend>(make: &mut Make<'_, B>) {
    let from = make.any(ROWS, 4);
    let mut to = make.matrix("to", ROWS, 4);
    make.backend.run(ops::Blend { share: 0.5, factor: 1.0, from: &from, to: &mut to });
}

fn add<B: Backend>(make: &mut Make<'_, B>) {
    let from = make.at_least("from", ROWS, 4);
    let mut to = make.rows("to", ROWS, 4);
    make.backend.run(ops::Add { rows: ROWS, from: &from, to: &mut to });
}

fn clear<B: Backend>(make: &mut Make<'_, B>) {
    let mut matrix = make.rows("matrix", ROWS, 4);
    make.backend.run(ops::Clear { rows: ROWS, matrix: &mut matrix });
}

fn loss<B: Backend>(make: &mut Make<'_, B>) {
    let of_classes = Loss::CrossEntropy { smoothing: 0.0, class_weights: vec![1.0; 3] };
    for (loss, columns) in [(Loss::SquaredError, 1), (of_classes, 3)] {
        let label = make.value("task", 0, 9);
        let task = Task { label, ..loss.into() };
        let rows = 0..make.value("rows", ROWS, ROWS + 1);
        let logits = make.at_least("logits", ROWS, columns);
        let mut logits_grad = make.matrix("logits_grad", ROWS, columns);
        let mut sums = make.matrix("sums", 1, 2);
        make.backend.run(ops::TaskLoss {
            task: &task,
            batch: make.batch,
            rows,
            logits: &logits,
            logits_grad: &mut logits_grad,
            sums: &mut sums,
        });
    }
}

fn multiply<B: Backend>(make: &mut Make<'_, B>) {
    let factor = make.at_least("factor", 1, 1);
    let mut matrix = make.rows("matrix", ROWS, 4);
    make.backend.run(ops::Multiply { rows: ROWS, factor: &factor, matrix: &mut matrix });
}

fn sigmoid<B: Backend>(make: &mut Make<'_, B>) {
    let logits = make.rows("logits", ROWS, 2);
    let mut out = make.matrix("out", ROWS, 2);
    make.backend.run(ops::Sigmoid { rows: ROWS, logits: &logits, out: &mut out });
}

fn softmax<B: Backend>(make: &mut Make<'_, B>) {
    let logits = make.rows("logits", ROWS, 3);
    let mut out = make.matrix("out", ROWS, 3);
    make.backend.run(ops::Softmax { rows: ROWS, logits: &logits, out: &mut out });
}

fn squares<B: Backend>(make: &mut Make<'_, B>) {
    let grad = make.any(ROWS, 4);
    let mut sum = make.matrix("sum", 1, 1);
    make.backend.run(ops::Squares { grad: &grad, sum: &mut sum });
}

/// Plans the batch's rows, and runs `operation` over gradients of the output of two lookups.
fn with_gradients<B: Backend>(
    make: &mut Make<'_, B>,
    operation: impl FnOnce(&mut Make<'_, B>, &RowGradients<'_, B>),
) {
    let mut plan = make.backend.row_plan(&shapes().schema(), &LOOKUPS.map(|lookup| vec![lookup.column]));
    make.backend.run(ops::PlanRows { batch: make.batch, plan: &mut plan });
    let lookups = lookups(make);
    let gradient = make.at_least("gradient", ROWS, 1 + 2 * WIDTH);
    let columns = GradientColumns::Apart { first: 1 };
    let gradients =
        RowGradients { batch: make.batch, plan: &plan, lookups: &lookups, gradient: &gradient, columns };
    operation(make, &gradients);
}

fn row_squares<B: Backend>(make: &mut Make<'_, B>) {
    with_gradients(make, |make, gradients| {
        let tables = [make.table(WIDTH, &SGD), make.table(WIDTH, &SGD)];
        let mut sum = make.matrix("sum", 1, 1);
        make.backend.run(ops::RowSquares { gradients, tables: &tables, sum: &mut sum });
    });
}

fn clip_scale<B: Backend>(make: &mut Make<'_, B>) {
    let squares = make.at_least("squares", 1, 1);
    let mut scale = make.at_least("scale", 1, 1);
    make.backend.run(ops::ClipScale { maximum: 1.0, squares: &squares, scale: &mut scale });
}

fn unscale<B: Backend>(make: &mut Make<'_, B>) {
    let squares = make.at_least("squares", 1, 1);
    let mut state = make.matrix("state", 1, 3);
    let mut scale = make.at_least("scale", 1, 1);
    make.backend.run(ops::Unscale {
        rule: &LossScaling { growth: 2.0, growth_interval: 2, backoff: 0.5 },
        maximum: None,
        squares: &squares,
        state: &mut state,
        scale: &mut scale,
    });
}

fn step<B: Backend>(make: &mut Make<'_, B>) {
    let scale = make.at_least("scale", 1, 1);
    let mut weights = make.any(ROWS, 4);
    let mut states = vec![make.matrix("states", ROWS, 4)];
    states.truncate(make.value("states", 1, 0));
    let grad = make.matrix("grad", ROWS, 4);
    let update: Update = MOMENTUM.into();
    make.backend.run(ops::Step {
        update: &update,
        scale: &scale,
        weights: &mut weights,
        states: &mut states,
        grad: &grad,
    });
}

fn step_rows<B: Backend>(make: &mut Make<'_, B>) {
    with_gradients(make, |make, gradients| {
        let scale = make.at_least("scale", 1, 1);
        let formula = make.value("tables", MOMENTUM, SGD);
        let mut tables = [make.table(WIDTH, &formula), make.table(WIDTH, &formula)];
        let update: Update = MOMENTUM.into();
        make.backend.run(ops::StepRows {
            update: &update,
            scale: &scale,
            draws: 1,
            gradients,
            tables: &mut tables,
        });
    });
}
