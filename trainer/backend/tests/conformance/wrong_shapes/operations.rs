//! Each operation, run with operands that [`Make`] makes of the right shape or of a wrong one.

use super::*;

/// Two lookups, concatenated.
pub(super) const LOOKUPS: [Lookup; 2] = [
    Lookup { column: IdColumn::Single(0), pooling: Pooling::Sum, table: 0, first: 0 },
    Lookup { column: IdColumn::Ragged(0), pooling: Pooling::Max, table: 1, first: WIDTH },
];

const SGD: Formula = Formula::Sgd { learning_rate: 0.1 };
const MOMENTUM: Formula = Formula::Momentum { learning_rate: 0.1, momentum: 0.9, nesterov: false };

/// Lookups whose column, table or first column may be wrong.
pub(super) fn lookups<B: Backend>(make: &mut Make<'_, B>) -> [Lookup; 2] {
    let [first, second] = LOOKUPS;
    let column = make.value("lookups", second.column, IdColumn::Ragged(1));
    let table = make.value("tables", second.table, 2);
    // The feature has up to two ids in a row.
    let pooling = make.value("lookups", second.pooling, Pooling::Unpooled(3));
    [first, Lookup { column, table, pooling, ..second }]
}

pub(super) fn write_matrix<B: Backend>(make: &mut Make<'_, B>) {
    let mut matrix = make.any(ROWS, 2);
    let count = make.value("values", ROWS * 2, ROWS * 2 - 1);
    make.backend.write_matrix(&mut matrix, &vec![B::Scalar::default(); count]);
}

pub(super) fn read_matrix<B: Backend>(make: &mut Make<'_, B>) {
    let matrix = make.any(ROWS, 2);
    let count = make.value("out", ROWS * 2, ROWS * 2 + 1);
    make.backend.read_matrix(&matrix, &mut vec![B::Scalar::default(); count]);
}

pub(super) fn write_table<B: Backend>(make: &mut Make<'_, B>) {
    let mut table = make.table(WIDTH, &MOMENTUM);
    let part = make.value("part", TablePart::State(0), TablePart::State(1));
    let first_row = make.value("first_row", 7, 10);
    let count = make.value("values", 2 * WIDTH, 2 * WIDTH + 1);
    make.backend.write_table(&mut table, part, first_row, &vec![B::Scalar::default(); count]);
}

pub(super) fn read_table<B: Backend>(make: &mut Make<'_, B>) {
    let table = make.table(WIDTH, &MOMENTUM);
    let part = make.value("part", TablePart::Weights, TablePart::RowState(0));
    let first_row = make.value("first_row", 7, 10);
    let count = make.value("out", 2 * WIDTH, 2 * WIDTH + 1);
    make.backend.read_table(&table, part, first_row, &mut vec![B::Scalar::default(); count]);
}

pub(super) fn copy_table<B: Backend>(make: &mut Make<'_, B>) {
    let table = make.table(WIDTH, &MOMENTUM);
    let count = B::copied_numbers(B::table_shape(&table));
    let first = make.value("first", 1, count + 1);
    let numbers = make.value("out", count - 1, count);
    make.backend.run(ops::CopyTable { table: &table, first, out: &mut vec![B::Scalar::default(); numbers] });
}

pub(super) fn gather<B: Backend>(make: &mut Make<'_, B>) {
    let lookups = lookups(make);
    let tables = [make.table(WIDTH, &SGD), make.table(WIDTH, &SGD)];
    let dense = [make.value("dense", 0, DENSE)];
    let rows = 0..make.value("rows", ROWS, ROWS + 1);
    let mut out = make.matrix("out", ROWS, 1 + 2 * WIDTH + 1);
    let mut maxima = make.maxima("maxima", ROWS, WIDTH);
    make.backend.run(ops::Gather {
        batch: make.batch,
        rows,
        lookups: &lookups,
        tables: &tables,
        dense: &dense,
        out: &mut out,
        first_column: 1,
        maxima: Some(&mut maxima),
    });
}

pub(super) fn linear_forward<B: Backend>(make: &mut Make<'_, B>) {
    let [first, second] = lookups(make);
    let lookups = [first, Lookup { pooling: Pooling::Mean, first: 3, ..second }];
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

pub(super) fn linear_backward<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn layer_forward<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn layer_backward<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn fm_forward<B: Backend>(make: &mut Make<'_, B>) {
    let vectors = make.at_least("vectors", ROWS, 6);
    let mut out = make.matrix("out", ROWS, 1);
    make.backend.run(ops::FmForward { rows: ROWS, vectors: &vectors, shape: (3, 2), out: &mut out });
}

pub(super) fn fm_backward<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn cross_forward<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn cross_backward<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn dot_forward<B: Backend>(make: &mut Make<'_, B>) {
    let vectors = make.matrix("vectors", ROWS, 6);
    let mut out = make.matrix("out", ROWS, 2 + 3);
    make.backend.run(ops::DotForward { rows: ROWS, vectors: &vectors, width: 2, out: &mut out });
}

pub(super) fn dot_backward<B: Backend>(make: &mut Make<'_, B>) {
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

/// The target's two columns follow those of three values.
const SEQUENCE: Sequence = Sequence { first: 1, target: 7, values: 3, width: 2 };

pub(super) fn pair_forward<B: Backend>(make: &mut Make<'_, B>) {
    let sequence = make.value("sequence", SEQUENCE, Sequence { target: 0, ..SEQUENCE });
    let vectors = make.at_least("vectors", ROWS, 9);
    let mut pairs = make.matrix("pairs", ROWS * 3, 8);
    make.backend.run(ops::PairForward { rows: ROWS, sequence, vectors: &vectors, pairs: &mut pairs });
}

pub(super) fn pair_backward<B: Backend>(make: &mut Make<'_, B>) {
    let sequence = make.value("sequence", SEQUENCE, Sequence { target: 6, ..SEQUENCE });
    let vectors = make.at_least("vectors", ROWS, 9);
    let (scores, out_grad) = (make.matrix("scores", ROWS * 3, 1), make.at_least("out_grad", ROWS, 5));
    let pairs_grad = make.matrix("pairs_grad", ROWS * 3, 8);
    let mut vectors_grad = make.at_least("vectors_grad", ROWS, 9);
    make.backend.run(ops::PairBackward {
        rows: ROWS,
        sequence,
        vectors: &vectors,
        scores: &scores,
        out_grad: &out_grad,
        first_column: 3,
        pairs_grad: &pairs_grad,
        vectors_grad: &mut vectors_grad,
    });
}

pub(super) fn attend_forward<B: Backend>(make: &mut Make<'_, B>) {
    let (vectors, scores) = (make.at_least("vectors", ROWS, 9), make.matrix("scores", ROWS * 3, 1));
    let mut out = make.at_least("out", ROWS, 5);
    make.backend.run(ops::AttendForward {
        rows: ROWS,
        sequence: SEQUENCE,
        vectors: &vectors,
        scores: &scores,
        out: &mut out,
        first_column: 3,
    });
}

pub(super) fn attend_backward<B: Backend>(make: &mut Make<'_, B>) {
    let (vectors, out_grad) = (make.at_least("vectors", ROWS, 9), make.at_least("out_grad", ROWS, 5));
    let mut scores_grad = make.matrix("scores_grad", ROWS * 3, 1);
    make.backend.run(ops::AttendBackward {
        rows: ROWS,
        sequence: SEQUENCE,
        vectors: &vectors,
        out_grad: &out_grad,
        first_column: 3,
        scores_grad: &mut scores_grad,
    });
}

const MIXTURE: MixtureShape = MixtureShape { tasks: 2, experts: 3, width: 4 };

pub(super) fn mixture_forward<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn mixture_backward<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn copy_columns<B: Backend>(make: &mut Make<'_, B>) {
    let from = make.at_least("from", ROWS, 1 + 2);
    let mut to = make.at_least("to", ROWS, 3 + 2);
    make.backend.run(ops::CopyColumns { rows: ROWS, from: (&from, 1), to: (&mut to, 3), columns: 2 });
}

pub(super) fn copy_rows<B: Backend>(make: &mut Make<'_, B>) {
    let from = make.rows("from", 1 + ROWS, 4);
    let mut to = make.matrix("to", 2 + ROWS, 4);
    make.backend.run(ops::CopyRows { rows: ROWS, from: (&from, 1), to: (&mut to, 2) });
}

pub(super) fn dropout<B: Backend>(make: &mut Make<'_, B>) {
    let mut matrix = make.rows("matrix", ROWS, 4);
    let keep = make.value("keep", 0.5, 0.0);
    make.backend.run(ops::Dropout { rows: 5..5 + ROWS, keep, key: 7, matrix: &mut matrix });
}

/// The axis, and the shape of means and variances of `ROWS` rows of 4 columns.
const AXES: [(Axis, usize, usize); 2] = [(Axis::Row, ROWS, 1), (Axis::Column, 1, 4)];

pub(super) fn moments<B: Backend>(make: &mut Make<'_, B>) {
    for (axis, rows, columns) in AXES {
        let input = make.rows("input", ROWS, 4);
        let mut mean = make.matrix("mean", rows, columns);
        let mut variance = make.matrix("variance", rows, columns);
        let (mean, variance) = (&mut mean, &mut variance);
        make.backend.run(ops::Moments { rows: ROWS, axis, input: &input, mean, variance });
    }
}

pub(super) fn merge_moments<B: Backend>(make: &mut Make<'_, B>) {
    // Parts of 2 rows, so 2 of them.
    let moments = make.rows("moments", 2 * 2, 4);
    let (mut mean, mut variance) = (make.matrix("mean", 1, 4), make.matrix("variance", 1, 4));
    let (rows, part) = (make.value("rows", ROWS, 0), make.value("part", 2, 0));
    let (mean, variance) = (&mut mean, &mut variance);
    make.backend.run(ops::MergeMoments { rows, part, moments: &moments, mean, variance });
}

pub(super) fn normalize_forward<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn normalize_parameters<B: Backend>(make: &mut Make<'_, B>) {
    for (axis, rows, columns) in AXES {
        let input = make.rows("input", ROWS, 4);
        let (mean, variance) = (make.matrix("mean", rows, columns), make.matrix("variance", rows, columns));
        let (scale, shift) = (make.matrix("scale", 1, 4), make.matrix("shift", 1, 4));
        let (output, grad) = (make.matrix("output", ROWS, 4), make.matrix("grad", ROWS, 4));
        let mut scale_grad = make.matrix("scale_grad", 1, 4);
        let mut shift_grad = make.matrix("shift_grad", 1, 4);
        let layer = Normalization { axis, scale: &scale, shift: &shift, epsilon: 1e-3, is_rectified: true };
        let saved = SavedNormalization { input: &input, mean: &mean, variance: &variance, output: &output };
        make.backend.run(ops::NormalizeParameters {
            rows: ROWS,
            layer: &layer,
            saved: &saved,
            grad: &grad,
            mode: GradientMode::Accumulate,
            scale_grad: &mut scale_grad,
            shift_grad: &mut shift_grad,
        });
    }
}

pub(super) fn normalize_backward<B: Backend>(make: &mut Make<'_, B>) {
    for (axis, rows, columns) in AXES {
        let input = make.rows("input", ROWS, 4);
        let (mean, variance) = (make.matrix("mean", rows, columns), make.matrix("variance", rows, columns));
        let (scale, shift) = (make.matrix("scale", 1, 4), make.matrix("shift", 1, 4));
        let (output, mut grad) = (make.matrix("output", ROWS, 4), make.matrix("grad", ROWS, 4));
        let needs_sums = axis == Axis::Column;
        let sums = needs_sums.then(|| {
            let [scale, shift] = ["columns.scale", "columns.shift"].map(|name| make.matrix(name, 1, 4));
            (make.value("columns.rows", 2 * ROWS, ROWS - 1), scale, shift)
        });
        let unneeded = make.any(1, 4);
        let right = sums.as_ref().map(|(rows, scale, shift)| ColumnSums { rows: *rows, scale, shift });
        let wrong = (!needs_sums).then_some(ColumnSums { rows: ROWS, scale: &unneeded, shift: &unneeded });
        let layer = Normalization { axis, scale: &scale, shift: &shift, epsilon: 1e-3, is_rectified: true };
        let saved = SavedNormalization { input: &input, mean: &mean, variance: &variance, output: &output };
        let columns = make.value("columns", right, wrong);
        make.backend.run(ops::NormalizeBackward {
            rows: ROWS,
            layer: &layer,
            saved: &saved,
            grad: &mut grad,
            columns,
        });
    }
}

pub(super) fn unit_forward<B: Backend>(make: &mut Make<'_, B>) {
    let input = make.rows("input", ROWS, 4);
    let mut output = make.matrix("output", ROWS, 4);
    make.backend.run(ops::UnitForward { rows: ROWS, input: &input, output: &mut output });
}

pub(super) fn unit_backward<B: Backend>(make: &mut Make<'_, B>) {
    let input = make.rows("input", ROWS, 4);
    let mut grad = make.matrix("grad", ROWS, 4);
    make.backend.run(ops::UnitBackward { rows: ROWS, input: &input, grad: &mut grad });
}

pub(super) fn row_products<B: Backend>(make: &mut Make<'_, B>) {
    let left = make.rows("left", ROWS, 4);
    let right = make.matrix("right", ROWS, 4);
    let mut out = make.matrix("out", ROWS, 1);
    let (left, right, out) = (&left, &right, &mut out);
    make.backend.run(ops::RowProducts { rows: ROWS, factor: 2.0, left, right, out });
}

pub(super) fn in_batch_loss<B: Backend>(make: &mut Make<'_, B>) {
    let queries = make.rows("queries", ROWS, 4);
    let items = make.matrix("items", ROWS, 4);
    let item_id = Some(make.value("item_id", 0, 1));
    let rows = 0..make.value("rows", ROWS, ROWS + 1);
    let mut work = make.backend.in_batch_work(ROWS, ROWS, 4);
    let (mut query_grad, mut item_grad) =
        (make.matrix("query_grad", ROWS, 4), make.matrix("item_grad", ROWS, 4));
    let mut sums = make.matrix("sums", 1, 2);
    let input = InBatchInput {
        batch: make.batch,
        rows,
        queries: &queries,
        items: &items,
        temperature: 0.5,
        choice: Choice::Softmax,
        item_id,
    };
    make.backend.run(ops::InBatchLoss {
        input: &input,
        work: &mut work,
        query_grad: &mut query_grad,
        item_grad: &mut item_grad,
        sums: &mut sums,
    });
}

pub(super) fn blend<B: Backend>(make: &mut Make<'_, B>) {
    let from = make.any(ROWS, 4);
    let mut to = make.matrix("to", ROWS, 4);
    make.backend.run(ops::Blend { share: 0.5, factor: 1.0, from: &from, to: &mut to });
}

pub(super) fn add<B: Backend>(make: &mut Make<'_, B>) {
    let from = make.at_least("from", ROWS, 4);
    let mut to = make.rows("to", ROWS, 4);
    make.backend.run(ops::Add { rows: ROWS, from: &from, to: &mut to });
}

pub(super) fn clear<B: Backend>(make: &mut Make<'_, B>) {
    let mut matrix = make.rows("matrix", ROWS, 4);
    make.backend.run(ops::Clear { rows: ROWS, matrix: &mut matrix });
}

pub(super) fn loss<B: Backend>(make: &mut Make<'_, B>) {
    let of_classes = Loss::CrossEntropy { smoothing: 0.0, class_weights: vec![1.0; 3] };
    let lists = [Loss::Listwise { group: make.value("group", 0, 1) }, Loss::Pairwise { group: 0 }];
    let losses = [Loss::SquaredError].into_iter().chain(lists).map(|loss| (loss, 1));
    for (loss, columns) in losses.chain([(of_classes, 3)]) {
        let label = make.value("task", 0, 9);
        let task = Task { label, ..loss.into() };
        let rows = 0..make.value("rows", ROWS, ROWS + 1);
        let logits = make.at_least("logits", ROWS, columns);
        let mut logits_grad = make.matrix("logits_grad", ROWS, columns);
        let mut sums = make.matrix("sums", 1, 2);
        make.backend.run(ops::TaskLoss {
            total: None,
            task: &task,
            batch: make.batch,
            rows,
            logits: &logits,
            logits_grad: &mut logits_grad,
            sums: &mut sums,
        });
    }
}

pub(super) fn multiply<B: Backend>(make: &mut Make<'_, B>) {
    let factor = make.at_least("factor", 1, 1);
    let mut matrix = make.rows("matrix", ROWS, 4);
    make.backend.run(ops::Multiply { rows: ROWS, factor: &factor, matrix: &mut matrix });
}

pub(super) fn sigmoid<B: Backend>(make: &mut Make<'_, B>) {
    let logits = make.rows("logits", ROWS, 2);
    let mut out = make.matrix("out", ROWS, 2);
    make.backend.run(ops::Sigmoid { rows: ROWS, logits: &logits, out: &mut out });
}

pub(super) fn softmax<B: Backend>(make: &mut Make<'_, B>) {
    let logits = make.rows("logits", ROWS, 3);
    let mut out = make.matrix("out", ROWS, 3);
    make.backend.run(ops::Softmax { rows: ROWS, logits: &logits, out: &mut out });
}

pub(super) fn squares<B: Backend>(make: &mut Make<'_, B>) {
    let grad = make.any(ROWS, 4);
    let mut sum = make.matrix("sum", 1, 1);
    make.backend.run(ops::Squares { grad: &grad, sum: &mut sum });
}

/// Plans the batch's rows, and runs `operation` over gradients of the output of two lookups.
pub(super) fn with_gradients<B: Backend>(
    make: &mut Make<'_, B>,
    operation: impl FnOnce(&mut Make<'_, B>, &RowGradients<'_, B>),
) {
    let mut plan = make.backend.row_plan(&shapes().schema(), &LOOKUPS.map(|lookup| vec![lookup.column]));
    make.backend.run(ops::PlanRows { batch: make.batch, plan: &mut plan });
    let lookups = lookups(make);
    let gradient = make.at_least("gradient", ROWS, 1 + 2 * WIDTH);
    let maxima = make.maxima("maxima", ROWS, WIDTH);
    let gradients = RowGradients {
        batch: make.batch,
        plan: &plan,
        lookups: &lookups,
        gradient: &gradient,
        columns: GradientColumns::Apart { first: 1 },
        maxima: Some(&maxima),
    };
    operation(make, &gradients);
}

pub(super) fn row_squares<B: Backend>(make: &mut Make<'_, B>) {
    with_gradients(make, |make, gradients| {
        let tables = [make.table(WIDTH, &SGD), make.table(WIDTH, &SGD)];
        let mut sum = make.matrix("sum", 1, 1);
        make.backend.run(ops::RowSquares { gradients, tables: &tables, sum: &mut sum });
    });
}

/// Merged rows of two tables, and these tables.
fn merged<B: Backend>(make: &mut Make<'_, B>, formula: &Formula) -> (B::MergedRows, Vec<B::Table>) {
    let tables = vec![make.table(WIDTH, formula), make.table(WIDTH, formula)];
    let width = make.value("tables", WIDTH, WIDTH + 1);
    let shapes = [WIDTH, width].map(|width| TableShape { width, ..B::table_shape(&tables[0]) });
    let rows =
        PartRows { parts: 1, ids: &[ROWS; 2], even_ids: &[ROWS; 2], are_gathered: false, float: Float::F32 };
    (make.backend.merged_rows(&shapes, rows), tables)
}

pub(super) fn merged_row_squares<B: Backend>(make: &mut Make<'_, B>) {
    let (rows, tables) = merged(make, &SGD);
    let mut sum = make.matrix("sum", 1, 1);
    make.backend.run(ops::MergedRowSquares { rows: &rows, tables: &tables, sum: &mut sum });
}

pub(super) fn clip_scale<B: Backend>(make: &mut Make<'_, B>) {
    let squares = make.at_least("squares", 1, 1);
    let mut scale = make.at_least("scale", 1, 1);
    make.backend.run(ops::ClipScale { maximum: 1.0, squares: &squares, scale: &mut scale });
}

pub(super) fn unscale<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn step<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn step_rows<B: Backend>(make: &mut Make<'_, B>) {
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

pub(super) fn step_merged_rows<B: Backend>(make: &mut Make<'_, B>) {
    let (rows, mut tables) = merged(make, &MOMENTUM);
    let scale = make.at_least("scale", 1, 1);
    let update: Update = MOMENTUM.into();
    make.backend.run(ops::StepMergedRows {
        update: &update,
        scale: &scale,
        draws: 1,
        rows: &rows,
        tables: &mut tables,
    });
}
