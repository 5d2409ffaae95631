//! Values computed by hand, on every backend, and errors that all backends report.

use std::sync::Arc;

use millstream_backend::{
    Activation, Backend, BatchError, Cpu, Float, Formula, GradientColumns, GradientMode, IdColumn, Lookup,
    Loss, MixtureShape, Pooling, Reference, RowGradients, SavedLayer, Scalar, SoftmaxInput, TablePart,
    TableShape, Update, ops,
};
use millstream_batch::{
    BatchBuffer, BatchHeader, BatchMut, BatchSchema, IdFeature, RaggedFeature, SlotLayout, Stream,
};

use crate::case::{Bench, DRAWS, scalars};

const SGD: Formula = Formula::Sgd { learning_rate: 1.0 };

const BCE: Loss = Loss::BinaryCrossEntropy { smoothing: 0.0, positive_weight: 1.0, negative_weight: 1.0 };

fn adam(weight_decay: f64) -> Formula {
    Formula::Adam { learning_rate: 0.5, beta1: 0.5, beta2: 0.75, epsilon: 2.0, weight_decay, step: 1 }
}

/// Declares a test that runs a body on each backend.
macro_rules! test_on_each {
    ($($body:ident),* $(,)?) => {
        mod on_cpu {
            $(#[test] fn $body() { super::$body(&millstream_backend::Cpu::new(Some(2)).expect("threads")); })*
        }
        mod on_reference {
            $(#[test] fn $body() { super::$body(&millstream_backend::Reference); })*
        }
        mod on_cpu_recorded {
            $(#[test] fn $body() {
                let cpu = millstream_backend::Cpu::new(Some(2)).expect("threads");
                crate::case::recorded(cpu, &[], &|backend| super::$body(backend));
            })*
        }
        mod on_cuda_recorded {
            $(#[test] fn $body() {
                let tracks = ["GPU 0", "GPU 0, kernels", "GPU 0, copies"];
                crate::case::recorded(crate::case::cuda(), &tracks, &|backend| super::$body(backend));
            })*
        }
        mod on_cuda {
            $(#[test] fn $body() { super::$body(&crate::case::cuda()); })*
        }
    };
}

test_on_each!(
    a_layer_goes_forward_and_backward,
    a_gradient_is_masked_by_what_the_input_came_through,
    ids_are_looked_up_and_pooled,
    ids_count_by_their_weights,
    shares_are_finite_whatever_the_weights,
    a_row_is_stepped_once_by_all_its_gradients,
    a_row_of_a_shared_table_is_stepped_once_by_the_gradients_of_all_columns,
    the_loss_is_a_weighted_mean,
    the_loss_of_classes_is_a_weighted_mean,
    a_batch_of_no_weight_has_no_gradient,
    optimizers_do_as_their_papers_say,
    gradients_are_scaled_cut_and_pulled,
    numbers_are_dropped_as_often_as_asked,
    vectors_meet_in_pairs,
    gates_mix_what_experts_gave,
    a_query_chooses_among_the_items_of_its_batch,
    vectors_are_made_of_length_1,
    bad_batches_are_refused,
    matrices_and_tables_keep_what_is_written,
    a_copied_table_has_each_part_in_its_place,
);

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found}, not {expected}");
    }
}

fn schema() -> BatchSchema {
    BatchSchema {
        rows: 3,
        labels: Vec::new(),
        weighted: true,
        dense: vec!["x".to_owned(), "y".to_owned()],
        ids: vec![IdFeature { name: "colour".to_owned(), cardinality: 4 }],
        ragged: vec![RaggedFeature { name: "tags".to_owned(), cardinality: 3, maximum: 2, weighted: false }],
        position_bytes: 0,
    }
}

/// Three rows: colours 2, 0, 2; tags {1, 1}, {}, {0, 2}.
fn three_rows() -> BatchBuffer {
    let layout = SlotLayout::of(&schema()).expect("three rows");
    let mut buffer = BatchBuffer::new(Arc::new(layout));
    let mut slot = buffer.as_mut();
    set_rows(&mut slot, 3);
    let mut sections = slot.sections();
    sections.labels.copy_from_slice(&[1.0, 0.0, 1.0]);
    sections.weights.as_mut().expect("a weighted schema").copy_from_slice(&[1.0, 2.0, 1.0]);
    sections.dense.copy_from_slice(&[1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    sections.ids.copy_from_slice(&[2, 0, 2]);
    sections.ragged[0].0.copy_from_slice(&[0, 2, 2, 4]);
    sections.ragged[0].1[..4].copy_from_slice(&[1, 1, 0, 2]);
    buffer
}

fn set_rows(slot: &mut BatchMut<'_>, rows: u32) {
    slot.set_header(&BatchHeader {
        stream: Stream::Train,
        epoch: 0,
        batch: 0,
        rows,
        global_rows: rows,
        last: false,
    });
}

fn uploaded<B: Backend>(backend: &B) -> B::Batch {
    let mut batch = backend.batch(&schema());
    backend.upload(three_rows().as_ref(), &mut batch).expect("a batch of the schema");
    batch
}

/// Only tags, with weights: {1: 2, 1: 1}, {}, {0: -1, 2: 4}.
fn weighted_rows() -> BatchBuffer {
    let weighted = RaggedFeature { weighted: true, ..schema().ragged.remove(0) };
    let schema = BatchSchema { weighted: false, ragged: vec![weighted], ..schema() };
    let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema).expect("three rows")));
    let mut slot = buffer.as_mut();
    set_rows(&mut slot, 3);
    let mut sections = slot.sections();
    sections.ragged[0].0.copy_from_slice(&[0, 2, 2, 4]);
    sections.ragged[0].1[..4].copy_from_slice(&[1, 1, 0, 2]);
    sections.ragged_weights[0].as_mut().expect("weights")[..4].copy_from_slice(&[2.0, 1.0, -1.0, 4.0]);
    buffer
}

fn lookups(pooling: Pooling) -> [Lookup; 2] {
    let colour = Lookup { column: IdColumn::Single(0), pooling, table: 0, first: 0 };
    [colour, Lookup { column: IdColumn::Ragged(0), table: 1, first: 2, ..colour }]
}

fn a_layer_goes_forward_and_backward<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let input = bench.matrix(2, 2, &[1.0, 2.0, 3.0, -1.0]);
    let weights = bench.matrix(2, 3, &[1.0, 0.0, 2.0, -1.0, 1.0, 1.0]);
    let bias = bench.matrix(1, 3, &[0.5, -0.5, 0.0]);
    let mut output = backend.matrix(2, 3);
    backend.run(ops::LayerForward {
        rows: 2,
        input: &input,
        weights: &weights,
        bias: Some(&bias),
        activation: Activation::Relu,
        output: &mut output,
    });
    close(&bench.read(&output, 6), &[0.0, 1.5, 4.0, 4.5, 0.0, 5.0]);
    let mut gradient = bench.matrix(2, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let (mut weight_grad, mut bias_grad) = (backend.matrix(2, 3), backend.matrix(1, 3));
    let mut input_grad = backend.matrix(2, 2);
    let layer = SavedLayer {
        input: &input,
        input_activation: Activation::Identity,
        weights: &weights,
        output: &output,
        activation: Activation::Relu,
    };
    let input_grad_wanted = Some(&mut input_grad);
    let bias_grad_wanted = Some(&mut bias_grad);
    backend.run(ops::LayerBackward {
        rows: 2,
        layer: &layer,
        output_grad: &mut gradient,
        mode: GradientMode::Write,
        weight_grad: &mut weight_grad,
        bias_grad: bias_grad_wanted,
        input_grad: input_grad_wanted,
    });
    close(&bench.read(&gradient, 6), &[0.0, 2.0, 3.0, 4.0, 0.0, 6.0]);
    close(&bench.read(&bias_grad, 3), &[4.0, 2.0, 9.0]);
    close(&bench.read(&weight_grad, 6), &[12.0, 2.0, 21.0, -4.0, 4.0, 0.0]);
    close(&bench.read(&input_grad, 4), &[6.0, 5.0, 16.0, 2.0]);
}

fn a_gradient_is_masked_by_what_the_input_came_through<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    for float in [Float::F32, Float::Bf16, Float::F16] {
        let mut input = backend.matrix_of(float, 2, 2);
        backend.write_matrix(&mut input, &scalars::<B>(&[1.0, 2.0, 3.0, -1.0]));
        let weights = bench.matrix(2, 3, &[1.0, 0.0, 2.0, -1.0, 1.0, 1.0]);
        let bias = bench.matrix(1, 3, &[0.5, -0.5, 0.0]);
        let mut given = backend.rectified(float, 2, 3);
        backend.run(ops::LayerForward {
            rows: 2,
            input: &input,
            weights: &weights,
            bias: Some(&bias),
            activation: Activation::Relu,
            output: &mut given,
        });
        close(&bench.read(&given, 6), &[0.0, 1.5, 4.0, 4.5, 0.0, 5.0]);
        let weights = bench.matrix(3, 1, &[1.0, 2.0, -1.0]);
        let output = backend.matrix(2, 1);
        let mut input_grad = backend.matrix_of(float, 2, 3);
        let mut backward = |given: &B::Matrix| {
            let layer = SavedLayer {
                input: given,
                input_activation: Activation::Relu,
                weights: &weights,
                output: &output,
                activation: Activation::Identity,
            };
            let mut gradient = backend.matrix_of(float, 2, 1);
            backend.write_matrix(&mut gradient, &scalars::<B>(&[1.0, 10.0]));
            let (mut weight_grad, mut bias_grad) = (backend.matrix(3, 1), backend.matrix(1, 1));
            let wanted = (Some(&mut bias_grad), Some(&mut input_grad));
            backend.run(ops::LayerBackward {
                rows: 2,
                layer: &layer,
                output_grad: &mut gradient,
                mode: GradientMode::Write,
                weight_grad: &mut weight_grad,
                bias_grad: wanted.0,
                input_grad: wanted.1,
            });
            (bench.read(&weight_grad, 3), bench.read(&bias_grad, 1), bench.read(&input_grad, 6))
        };
        let (weight_grad, bias_grad, masked) = backward(&given);
        close(&weight_grad, &[45.0, 1.5, 54.0]);
        close(&bias_grad, &[11.0]);
        close(&masked, &[0.0, 2.0, -1.0, 10.0, 0.0, -10.0]);
        // The sign bits that the device stored for the matrix are now invalid.
        backend.write_matrix(&mut given, &scalars::<B>(&[1.0, 0.0, 0.0, 0.0, 1.0, 1.0]));
        close(&backward(&given).2, &[1.0, 0.0, 0.0, 0.0, 20.0, -10.0]);
    }
}

fn ids_are_looked_up_and_pooled<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    let colours = [1.0, 2.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0];
    let tables = [
        bench.table((4, 2), &colours, &SGD, [0.0; 2]),
        bench.table((3, 1), &[1.0, 10.0, 5.0], &SGD, [0.0; 2]),
    ];
    let mut out = backend.matrix(3, 4);
    backend.run(ops::Gather {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups(Pooling::Sum),
        tables: &tables,
        dense: &[1],
        out: &mut out,
        first_column: 0,
    });
    let sums = [3.0, 4.0, 20.0, 10.0, 1.0, 2.0, 0.0, 20.0, 3.0, 4.0, 6.0, 30.0];
    close(&bench.read(&out, 12), &sums);
    backend.run(ops::Gather {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups(Pooling::Mean),
        tables: &tables,
        dense: &[1],
        out: &mut out,
        first_column: 0,
    });
    let means = [3.0, 4.0, 10.0, 10.0, 1.0, 2.0, 0.0, 20.0, 3.0, 4.0, 3.0, 30.0];
    close(&bench.read(&out, 12), &means);

    let tables = [
        bench.table((4, 1), &[1.0, 0.0, 2.0, 0.0], &SGD, [0.0; 2]),
        bench.table((3, 1), &[1.0, 10.0, 5.0], &SGD, [0.0; 2]),
    ];
    let dense_weights = bench.matrix(2, 1, &[0.5, 0.25]);
    let bias = bench.matrix(1, 1, &[100.0]);
    let mut out = bench.matrix(3, 1, &[1000.0, 2000.0, 3000.0]);
    let by_sum = lookups(Pooling::Sum);
    backend.run(ops::LinearForward {
        batch: &batch,
        rows: 0..3,
        lookups: &by_sum,
        tables: &tables,
        dense: &[0, 1],
        dense_weights: &dense_weights,
        bias: &bias,
        out: &mut out,
    });
    close(&bench.read(&out, 3), &[1125.0, 2107.0, 3117.0]);
    let gradient = bench.matrix(3, 1, &[1.0, 2.0, 4.0]);
    let (mut weight_grad, mut bias_grad) = (backend.matrix(2, 1), backend.matrix(1, 1));
    backend.run(ops::LinearBackward {
        batch: &batch,
        rows: 0..3,
        dense: &[0, 1],
        out_grad: &gradient,
        mode: GradientMode::Write,
        weight_grad: &mut weight_grad,
        bias_grad: &mut bias_grad,
    });
    close(&bench.read(&weight_grad, 2), &[17.0, 170.0]);
    close(&bench.read(&bias_grad, 1), &[7.0]);
}

/// For each row of `buffer`: the pooled lookup in a table `[3, 1]`, and the output of a linear model of it. Also
/// the table after a step with gradients 1, 10 and 100.
fn of_tags<B: Backend>(backend: &B, buffer: &BatchBuffer, pooling: Pooling) -> [Vec<f64>; 3] {
    let bench = Bench(backend);
    let schema = buffer.as_ref().layout().schema().clone();
    let mut batch = backend.batch(&schema);
    backend.upload(buffer.as_ref(), &mut batch).expect("a batch of the schema");
    let column = IdColumn::Ragged(0);
    let lookups = [Lookup { column, pooling, table: 0, first: 0 }];
    let mut tables = vec![bench.table((3, 1), &[1.0, 3.0, 5.0], &SGD, [0.0, 0.0])];
    let (mut out, mut sums) = (backend.matrix(3, 1), bench.matrix(3, 1, &[0.0; 3]));
    backend.run(ops::Gather {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups,
        tables: &tables,
        dense: &[],
        out: &mut out,
        first_column: 0,
    });
    let (none, bias) = (backend.matrix(0, 1), bench.matrix(1, 1, &[0.5]));
    backend.run(ops::LinearForward {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups,
        tables: &tables,
        dense: &[],
        dense_weights: &none,
        bias: &bias,
        out: &mut sums,
    });
    let mut plan = backend.row_plan(&schema, &[vec![column]]);
    backend.run(ops::PlanRows { batch: &batch, plan: &mut plan });
    let gradient = bench.matrix(3, 1, &[1.0, 10.0, 100.0]);
    let columns = GradientColumns::Shared;
    let gradients =
        RowGradients { batch: &batch, plan: &plan, lookups: &lookups, gradient: &gradient, columns };
    let update = Update { formula: SGD, clip: f64::INFINITY, l2: 0.0 };
    backend.run(ops::StepRows {
        update: &update,
        scale: &bench.matrix(1, 1, &[1.0]),
        draws: DRAWS,
        gradients: &gradients,
        tables: &mut tables,
    });
    [bench.read(&out, 3), bench.read(&sums, 3), bench.read_table(&tables[0], TablePart::Weights, 3)]
}

fn ids_count_by_their_weights<B: Backend>(backend: &B) {
    // Twice 3 and once 3; nothing; -1 times 1 and four times 5. Divisors ignore weights that are not positive.
    let root = 5.0_f64.sqrt();
    let cases = [
        (Pooling::Sum, [9.0, 0.0, 19.0], [101.0, 0.0, -395.0]),
        (Pooling::Mean, [3.0, 0.0, 5.0], [1.0, 2.0, -95.0]),
        (Pooling::SqrtN, [9.0 / root, 0.0, 5.0], [1.0, 3.0 - 3.0 / root, -95.0]),
    ];
    for (pooling, expected, stepped) in cases {
        let [out, sums, table] = of_tags(backend, &weighted_rows(), pooling);
        close(&out, &expected);
        close(&sums, &expected.map(|pooled| pooled + 0.5));
        close(&table, &stepped);
    }
}

fn shares_are_finite_whatever_the_weights<B: Backend>(backend: &B) {
    // Sums and squares beyond the range of fp32, above and below; and rows without a positive weight.
    for weight in [f32::MAX, 1e-45, 0.0, -1.0] {
        let mut buffer = weighted_rows();
        buffer.as_mut().sections().ragged_weights[0].as_mut().expect("weights")[..4].fill(weight);
        let alone = if weight > 0.0 { 1.0 } else { 0.0 };
        let [mean, _, table] = of_tags(backend, &buffer, Pooling::Mean);
        close(&mean, &[3.0 * alone, 0.0, 3.0 * alone]);
        close(&table, &[1.0 - 50.0 * alone, 3.0 - alone, 5.0 - 50.0 * alone]);
        let [root, _, _] = of_tags(backend, &buffer, Pooling::SqrtN);
        close(&root, &[6.0, 0.0, 6.0].map(|sum| sum * alone / 2.0_f64.sqrt()));
    }
}

fn a_row_is_stepped_once_by_all_its_gradients<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    let mut plan = backend.row_plan(&schema(), &[vec![IdColumn::Single(0)], vec![IdColumn::Ragged(0)]]);
    backend.run(ops::PlanRows { batch: &batch, plan: &mut plan });
    // Per row: two columns for the colour, one for the tags.
    let gradient = bench.matrix(3, 3, &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]);
    let columns = GradientColumns::Apart { first: 0 };
    let colour = &lookups(Pooling::Sum)[..1];
    let gradients =
        RowGradients::<B> { batch: &batch, plan: &plan, lookups: colour, gradient: &gradient, columns };
    let scale = bench.matrix(1, 1, &[1.0]);
    for (pooling, tags) in [(Pooling::Sum, [-256.0, -8.0, -256.0]), (Pooling::Mean, [-128.0, -4.0, -128.0])] {
        let mut tables =
            [bench.table((4, 2), &[0.0; 8], &SGD, [0.0; 2]), bench.table((3, 1), &[0.0; 3], &SGD, [0.0; 2])];
        let lookups = lookups(pooling);
        let all = RowGradients { lookups: &lookups, ..gradients };
        backend.run(ops::StepRows {
            update: &SGD.into(),
            scale: &scale,
            draws: DRAWS,
            gradients: &all,
            tables: &mut tables,
        });
        let colours = bench.read_table(&tables[0], TablePart::Weights, 8);
        close(&colours, &[-8.0, -16.0, 0.0, 0.0, -65.0, -130.0, 0.0, 0.0]);
        close(&bench.read_table(&tables[1], TablePart::Weights, 3), &tags);
    }
    // Adagrad accumulates the square of the sum, not the sum of squares.
    let formula = Formula::Adagrad { learning_rate: 1.0, epsilon: 0.0 };
    let mut tables = [bench.table((4, 2), &[0.0; 8], &formula, [0.0; 2])];
    backend.run(ops::StepRows {
        update: &formula.into(),
        scale: &scale,
        draws: DRAWS,
        gradients: &gradients,
        tables: &mut tables,
    });
    let accumulators = bench.read_table(&tables[0], TablePart::State(0), 8);
    close(&accumulators, &[64.0, 256.0, 0.0, 0.0, 4225.0, 16900.0, 0.0, 0.0]);
    let weights = bench.read_table(&tables[0], TablePart::Weights, 8);
    close(&weights, &[-1.0, -1.0, 0.0, 0.0, -1.0, -1.0, 0.0, 0.0]);
    // Row-wise Adagrad accumulates the mean of the squares.
    let formula = Formula::RowWiseAdagrad { learning_rate: 1.0, epsilon: 0.0 };
    let mut tables = [bench.table((4, 2), &[0.0; 8], &formula, [0.0; 2])];
    backend.run(ops::StepRows {
        update: &formula.into(),
        scale: &scale,
        draws: DRAWS,
        gradients: &gradients,
        tables: &mut tables,
    });
    let accumulators = bench.read_table(&tables[0], TablePart::RowState(0), 4);
    close(&accumulators, &[160.0, 0.0, 10562.5, 0.0]);
    let (first, third) = (160.0_f64.sqrt(), 10562.5_f64.sqrt());
    let weights = bench.read_table(&tables[0], TablePart::Weights, 8);
    close(&weights, &[-8.0 / first, -16.0 / first, 0.0, 0.0, -65.0 / third, -130.0 / third, 0.0, 0.0]);
    // The norm does the same: 8, 16, 65, 130 squared.
    let mut squares = bench.matrix(1, 1, &[5.0]);
    backend.run(ops::RowSquares { gradients: &gradients, tables: &tables, sum: &mut squares });
    close(&bench.read(&squares, 1), &[5.0 + 64.0 + 256.0 + 4225.0 + 16900.0]);
}

fn gradients_are_scaled_cut_and_pulled<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let gradient = bench.matrix(1, 4, &[6.0, -8.0, 0.5, 0.0]);
    let mut squares = bench.matrix(1, 1, &[0.0]);
    backend.run(ops::Squares { grad: &gradient, sum: &mut squares });
    close(&bench.read(&squares, 1), &[100.25]);
    let mut scale = bench.matrix(1, 1, &[9.0]);
    backend.run(ops::ClipScale { maximum: 11.0, squares: &squares, scale: &mut scale });
    close(&bench.read(&scale, 1), &[1.0]);
    backend.run(ops::ClipScale { maximum: 100.25_f64.sqrt() / 2.0, squares: &squares, scale: &mut scale });
    close(&bench.read(&scale, 1), &[0.5]);
    // Half of each, clipped to 3.5, and a quarter of the weight.
    let mut weights = bench.matrix(1, 4, &[1.0, -2.0, 4.0, 8.0]);
    let update = Update { formula: SGD, clip: 3.5, l2: 0.25 };
    backend.run(ops::Step {
        update: &update,
        scale: &scale,
        weights: &mut weights,
        states: &mut [],
        grad: &gradient,
    });
    close(&bench.read(&weights, 4), &[1.0 - 3.25, -2.0 + 4.0, 4.0 - 1.25, 8.0 - 2.0]);
    // NaN gradients make NaN weights: clipping does not hide them.
    let gradient = bench.matrix(1, 4, &[f32::NAN; 4]);
    backend.run(ops::Step {
        update: &update,
        scale: &scale,
        weights: &mut weights,
        states: &mut [],
        grad: &gradient,
    });
    assert!(bench.read(&weights, 4).iter().all(|w| w.is_nan()));
}

fn numbers_are_dropped_as_often_as_asked<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let (rows, columns) = (100, 130);
    let dropped = |key, first| {
        let mut matrix = bench.matrix(rows, columns, &vec![3.0; rows * columns]);
        backend.run(ops::Dropout { rows: first..first + rows, keep: 0.75, key, matrix: &mut matrix });
        bench.read(&matrix, rows * columns)
    };
    let first = dropped(1, 0);
    assert!(first.iter().all(|&x| x == 0.0 || (x - 4.0).abs() < 1e-6));
    let share = first.iter().filter(|&&x| x != 0.0).count() as f64 / first.len() as f64;
    // Four standard deviations.
    assert!((share - 0.75).abs() < 4.0 * (0.75 * 0.25 / first.len() as f64).sqrt(), "{share}");
    assert_eq!(first, dropped(1, 0));
    assert_ne!(first, dropped(2, 0));
    // A row's mask does not depend on the pass's first row.
    assert_eq!(first[columns * 40..], dropped(1, 40)[..columns * 60]);
}

fn vectors_meet_in_pairs<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let vectors = bench.matrix(1, 6, &[1.0, 2.0, 3.0, -1.0, 0.0, 4.0]);
    let mut out = bench.matrix(1, 1, &[100.0]);
    backend.run(ops::FmForward { rows: 1, vectors: &vectors, shape: (3, 2), out: &mut out });
    close(&bench.read(&out, 1), &[105.0]);
    let mut vectors_grad = bench.matrix(1, 6, &[100.0; 6]);
    backend.run(ops::FmBackward {
        rows: 1,
        vectors: &vectors,
        shape: (3, 2),
        out_grad: &bench.matrix(1, 1, &[2.0]),
        vectors_grad: &mut vectors_grad,
    });
    close(&bench.read(&vectors_grad, 6), &[106.0, 106.0, 102.0, 112.0, 108.0, 102.0]);
    let mut out = backend.matrix(1, 5);
    backend.run(ops::DotForward { rows: 1, vectors: &vectors, width: 2, out: &mut out });
    close(&bench.read(&out, 5), &[1.0, 2.0, 1.0, 8.0, -4.0]);
    let gradient = bench.matrix(1, 5, &[10.0, 20.0, 1.0, 2.0, 4.0]);
    backend.run(ops::DotBackward {
        rows: 1,
        vectors: &vectors,
        width: 2,
        out_grad: &gradient,
        vectors_grad: &mut vectors_grad,
    });
    close(&bench.read(&vectors_grad, 6), &[13.0, 27.0, 1.0, 18.0, 14.0, 0.0]);
}

/// Two tasks over two experts of two columns: gates of 1/2, and of 3/4 and 1/4.
fn gates_mix_what_experts_gave<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let shape = MixtureShape { tasks: 2, experts: 2, width: 2 };
    let logits = bench.matrix(1, 4, &[5.0, 5.0, 3.0_f64.ln() as f32, 0.0]);
    let experts = bench.matrix(1, 4, &[1.0, 2.0, 5.0, -2.0]);
    let (mut gates, mut output) = (backend.matrix(1, 4), backend.matrix(1, 4));
    backend.run(ops::MixtureForward {
        rows: 1,
        shape,
        logits: &logits,
        experts: &experts,
        gates: &mut gates,
        output: &mut output,
    });
    close(&bench.read(&gates, 4), &[0.5, 0.5, 0.75, 0.25]);
    close(&bench.read(&output, 4), &[3.0, 0.0, 2.0, 1.0]);
    let output_grad = bench.matrix(1, 4, &[1.0, 0.0, 0.0, 4.0]);
    let (mut logits_grad, mut experts_grad) = (backend.matrix(1, 4), backend.matrix(1, 4));
    backend.run(ops::MixtureBackward {
        rows: 1,
        shape,
        gates: &gates,
        experts: &experts,
        output_grad: &output_grad,
        logits_grad: &mut logits_grad,
        experts_grad: &mut experts_grad,
    });
    // Products of 1 and 5 around their mean of 3; of 8 and -8 around their mean of 4.
    close(&bench.read(&logits_grad, 4), &[-1.0, 1.0, 3.0, -3.0]);
    close(&bench.read(&experts_grad, 4), &[0.5, 3.0, 0.5, 1.0]);
}

/// Rows 0 and 2 have the same item, and row 1 has label 0.
fn a_query_chooses_among_the_items_of_its_batch<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    let items = [3.0_f64.ln() / 2.0, 0.0, 2.0_f64.ln() / 2.0];
    let (queries, items_matrix) =
        (bench.matrix(3, 1, &[1.0, 5.0, 2.0]), bench.matrix(3, 1, &items.map(|item| item as f32)));
    let mut work = backend.softmax_work(3, 1);
    let (mut query_grad, mut item_grad) = (backend.matrix(3, 1), backend.matrix(3, 1));
    let mut run = |item_id| {
        let mut sums = bench.matrix(1, 2, &[1.0, 1.0]);
        let (queries, items) = (&queries, &items_matrix);
        let softmax = SoftmaxInput { batch: &batch, queries, items, temperature: 0.5, item_id };
        backend.run(ops::InBatchSoftmax {
            input: &softmax,
            work: &mut work,
            query_grad: &mut query_grad,
            item_grad: &mut item_grad,
            sums: &mut sums,
        });
        [bench.read(&sums, 2), bench.read(&query_grad, 3), bench.read(&item_grad, 3)]
    };
    // Probabilities 3/4 and 4/5.
    let [sums, query_grad, item_grad] = run(Some(0));
    close(&sums, &[1.0 + (5.0_f64 / 3.0).ln(), 3.0]);
    close(&query_grad, &[-items[0] / 4.0, 0.0, -items[2] / 5.0]);
    close(&item_grad, &[-0.25, 0.25 + 0.4, -0.4]);
    // Each is a negative of the other: probabilities 1/2 and 4/14.
    let [sums, query_grad, _] = run(None);
    close(&sums, &[1.0 + 7.0_f64.ln(), 3.0]);
    close(&query_grad, &[-0.5 * items[0] + items[2] / 3.0, 0.0, (9.0 * items[0] - 10.0 * items[2]) / 14.0]);
}

fn vectors_are_made_of_length_1<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let input = bench.matrix(3, 2, &[3.0, 4.0, 0.0, 0.0, 6e-7, -8e-7]);
    let mut output = backend.matrix(3, 2);
    backend.run(ops::UnitForward { rows: 3, input: &input, output: &mut output });
    close(&bench.read(&output, 6), &[0.6, 0.8, 0.0, 0.0, 0.6, -0.8]);
    let mut gradient = bench.matrix(2, 2, &[1.0, 0.0, 1e-6, 2e-6]);
    backend.run(ops::UnitBackward { rows: 2, input: &input, grad: &mut gradient });
    close(&bench.read(&gradient, 4), &[0.64 / 5.0, -0.48 / 5.0, 1.0, 2.0]);
    let mut products = bench.matrix(3, 1, &[7.0; 3]);
    backend.run(ops::RowProducts { rows: 2, factor: 2.0, left: &input, right: &output, out: &mut products });
    close(&bench.read(&products, 3), &[10.0, 0.0, 7.0]);
}

fn a_row_of_a_shared_table_is_stepped_once_by_the_gradients_of_all_columns<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    let mut plan = backend.row_plan(&schema(), &[vec![IdColumn::Single(0), IdColumn::Ragged(0)]]);
    backend.run(ops::PlanRows { batch: &batch, plan: &mut plan });
    // The tags' columns precede the colour's.
    let colour = Lookup { column: IdColumn::Single(0), pooling: Pooling::Sum, table: 0, first: 1 };
    let tags = Lookup { column: IdColumn::Ragged(0), pooling: Pooling::Mean, first: 0, ..colour };
    let lookups = [colour, tags];
    let table = |weights: &[f32], formula| [bench.table((4, 1), weights, formula, [0.0; 2])];
    let mut out = backend.matrix(3, 3);
    let looked_up = table(&[1.0, 10.0, 5.0, 7.0], &SGD);
    backend.run(ops::Gather {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups,
        tables: &looked_up,
        dense: &[1],
        out: &mut out,
        first_column: 0,
    });
    close(&bench.read(&out, 9), &[10.0, 5.0, 10.0, 0.0, 1.0, 20.0, 3.0, 5.0, 30.0]);
    let (dense_weights, bias) = (backend.matrix(0, 1), backend.matrix(1, 1));
    let mut out = backend.matrix(3, 1);
    backend.run(ops::LinearForward {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups,
        tables: &looked_up,
        dense: &[],
        dense_weights: &dense_weights,
        bias: &bias,
        out: &mut out,
    });
    close(&bench.read(&out, 3), &[15.0, 1.0, 8.0]);

    let gradient = bench.matrix(3, 2, &[2.0, 1.0, 8.0, 4.0, 32.0, 16.0]);
    let columns = GradientColumns::Apart { first: 0 };
    let gradients =
        RowGradients::<B> { batch: &batch, plan: &plan, lookups: &lookups, gradient: &gradient, columns };
    // Adagrad accumulates the square of the sum: of 4 and 32 / 2; of 2; of 1, 16 and 32 / 2.
    let formula = Formula::Adagrad { learning_rate: 1.0, epsilon: 0.0 };
    let mut tables = table(&[0.0; 4], &formula);
    backend.run(ops::StepRows {
        update: &formula.into(),
        scale: &bench.matrix(1, 1, &[1.0]),
        draws: DRAWS,
        gradients: &gradients,
        tables: &mut tables,
    });
    close(&bench.read_table(&tables[0], TablePart::State(0), 4), &[400.0, 4.0, 1089.0, 0.0]);
    close(&bench.read_table(&tables[0], TablePart::Weights, 4), &[-1.0, -1.0, -1.0, 0.0]);
    let mut squares = bench.matrix(1, 1, &[5.0]);
    backend.run(ops::RowSquares { gradients: &gradients, tables: &tables, sum: &mut squares });
    close(&bench.read(&squares, 1), &[5.0 + 400.0 + 4.0 + 1089.0]);
}

fn the_loss_is_a_weighted_mean<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    // Probabilities 1/2, 3/4 and 1/5.
    let logits = [0.0, 3.0_f64.ln(), 0.25_f64.ln()];
    let logits = bench.matrix(3, 1, &logits.map(|logit| logit as f32));
    let (mut gradient, mut sums) = (backend.matrix(3, 1), backend.matrix(1, 2));
    backend.run(ops::TaskLoss {
        task: &BCE.into(),
        batch: &batch,
        rows: 0..3,
        logits: &logits,
        logits_grad: &mut gradient,
        sums: &mut sums,
    });
    let loss = 2.0_f64.ln() + 2.0 * 4.0_f64.ln() + 5.0_f64.ln();
    close(&bench.read(&sums, 2), &[loss, 4.0]);
    close(&bench.read(&gradient, 3), &[-0.5 / 4.0, 2.0 * 0.75 / 4.0, -0.8 / 4.0]);
    // The last two rows: smoothed labels of 0.125 and 0.875, and three times the weight for the positive one.
    let loss = Loss::BinaryCrossEntropy { smoothing: 0.25, positive_weight: 3.0, negative_weight: 1.0 };
    let (mut of_two, mut sums) = (backend.matrix(3, 1), bench.matrix(1, 2, &[1.0, 1.0]));
    let last = bench.matrix(3, 1, &[3.0_f64.ln() as f32, 0.25_f64.ln() as f32, 0.0]);
    backend.run(ops::TaskLoss {
        task: &loss.into(),
        batch: &batch,
        rows: 1..3,
        logits: &last,
        logits_grad: &mut of_two,
        sums: &mut sums,
    });
    let first = 2.0 * (4.0_f64.ln() - 0.125 * 3.0_f64.ln());
    let second = 3.0 * (1.25_f64.ln() - 0.875 * 0.25_f64.ln());
    close(&bench.read(&sums, 2), &[1.0 + first + second, 6.0]);
    close(&bench.read(&of_two, 2), &[2.0 * 0.625 / 8.0, 3.0 * -0.675 / 8.0]);
    let mut sums = backend.matrix(1, 2);
    backend.run(ops::TaskLoss {
        task: &Loss::SquaredError.into(),
        batch: &batch,
        rows: 1..3,
        logits: &bench.matrix(3, 1, &[2.0, 4.0, 0.0]),
        logits_grad: &mut of_two,
        sums: &mut sums,
    });
    close(&bench.read(&sums, 2), &[2.0 * 4.0 + 9.0, 3.0]);
    close(&bench.read(&of_two, 2), &[2.0 * 4.0 / 4.0, 6.0 / 4.0]);
    let mut probabilities = backend.matrix(3, 1);
    backend.run(ops::Sigmoid { rows: 3, logits: &logits, out: &mut probabilities });
    close(&bench.read(&probabilities, 3), &[0.5, 0.75, 0.2]);
}

fn the_loss_of_classes_is_a_weighted_mean<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    // Labels 1, 0 and 1, with weights 1, 2 and 1.
    let batch = uploaded(backend);
    // Probabilities 1/2, 1/4, 1/4; 1/7, 4/7, 2/7; and a third each, with logits far from 0.
    let logs = [2.0, 1.0, 1.0, 1.0, 4.0, 2.0].map(|x: f64| x.ln() as f32);
    let logits: Vec<f32> = logs.into_iter().chain([-500.0; 3]).collect();
    let logits = bench.matrix(3, 3, &logits);
    let (mut gradient, mut sums) = (backend.matrix(3, 3), backend.matrix(1, 2));
    let plain = Loss::CrossEntropy { smoothing: 0.0, class_weights: vec![1.0; 3] };
    backend.run(ops::TaskLoss {
        task: &plain.into(),
        batch: &batch,
        rows: 0..3,
        logits: &logits,
        logits_grad: &mut gradient,
        sums: &mut sums,
    });
    let loss = 4.0_f64.ln() + 2.0 * 7.0_f64.ln() + 3.0_f64.ln();
    close(&bench.read(&sums, 2), &[loss, 4.0]);
    let expected = [
        [0.5 / 4.0, -0.75 / 4.0, 0.25 / 4.0],
        [-12.0 / 28.0, 8.0 / 28.0, 4.0 / 28.0],
        [1.0 / 12.0, -2.0 / 12.0, 1.0 / 12.0],
    ];
    close(&bench.read(&gradient, 9), expected.as_flattened());
    // The first two rows: targets 1/8, 6/8, 1/8 and 6/8, 1/8, 1/8; the weight of class 0 is 1/2, of class 1 it is
    // 3.
    let loss = Loss::CrossEntropy { smoothing: 0.375, class_weights: vec![0.5, 3.0, 7.0] };
    let mut sums = bench.matrix(1, 2, &[1.0, 1.0]);
    backend.run(ops::TaskLoss {
        task: &millstream_backend::Task { weight: 2.0, ..loss.into() },
        batch: &batch,
        rows: 0..2,
        logits: &logits,
        logits_grad: &mut gradient,
        sums: &mut sums,
    });
    let first = 2.0_f64.ln() / 8.0 + 4.0_f64.ln() * 7.0 / 8.0;
    let second = 7.0_f64.ln() - (4.0_f64.ln() + 2.0_f64.ln()) / 8.0;
    close(&bench.read(&sums, 2), &[1.0 + 3.0 * first + second, 1.0 + 4.0]);
    // A task weight of 2, over the batch's total weight of 7, which includes the third row.
    let expected =
        [[3.0 * 0.375, -3.0 * 0.5, 3.0 * 0.125], [1.0 / 7.0 - 0.75, 4.0 / 7.0 - 0.125, 2.0 / 7.0 - 0.125]];
    let expected: Vec<f64> = expected.as_flattened().iter().map(|g| g * 2.0 / 7.0).collect();
    close(&bench.read(&gradient, 6), &expected);
    let mut probabilities = backend.matrix(3, 3);
    backend.run(ops::Softmax { rows: 3, logits: &logits, out: &mut probabilities });
    let thirds = [1.0 / 3.0; 3];
    let expected = [[0.5, 0.25, 0.25], [1.0 / 7.0, 4.0 / 7.0, 2.0 / 7.0], thirds];
    close(&bench.read(&probabilities, 9), expected.as_flattened());
}

fn a_batch_of_no_weight_has_no_gradient<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let mut buffer = three_rows();
    buffer.as_mut().sections().weights.expect("a weighted schema").fill(0.0);
    let mut batch = backend.batch(&schema());
    backend.upload(buffer.as_ref(), &mut batch).expect("a batch of the schema");
    let logits = bench.matrix(3, 1, &[1.0, 2.0, 3.0]);
    let (mut gradient, mut sums) = (bench.matrix(3, 1, &[9.0; 3]), backend.matrix(1, 2));
    backend.run(ops::TaskLoss {
        task: &BCE.into(),
        batch: &batch,
        rows: 0..3,
        logits: &logits,
        logits_grad: &mut gradient,
        sums: &mut sums,
    });
    close(&bench.read(&gradient, 3), &[0.0; 3]);
    close(&bench.read(&sums, 2), &[0.0; 2]);
    let (logits, mut gradient) = (bench.matrix(3, 2, &[1.0; 6]), bench.matrix(3, 2, &[9.0; 6]));
    let of_classes = Loss::CrossEntropy { smoothing: 0.0, class_weights: vec![1.0; 2] };
    backend.run(ops::TaskLoss {
        task: &of_classes.into(),
        batch: &batch,
        rows: 0..3,
        logits: &logits,
        logits_grad: &mut gradient,
        sums: &mut sums,
    });
    close(&bench.read(&gradient, 6), &[0.0; 6]);
    close(&bench.read(&sums, 2), &[0.0; 2]);
}

fn optimizers_do_as_their_papers_say<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let gradient = bench.matrix(1, 1, &[3.0]);
    let scale = bench.matrix(1, 1, &[1.0]);
    let stepped = |formula: Formula, w: f32, state: &[f32]| {
        let mut weight = bench.matrix(1, 1, &[w]);
        let mut states: Vec<B::Matrix> = state.iter().map(|&s| bench.matrix(1, 1, &[s])).collect();
        backend.run(ops::Step {
            update: &formula.into(),
            scale: &scale,
            weights: &mut weight,
            states: &mut states,
            grad: &gradient,
        });
        let states = states.iter().flat_map(|state| bench.read(state, 1));
        bench.read(&weight, 1).into_iter().chain(states).collect::<Vec<_>>()
    };
    close(&stepped(Formula::Sgd { learning_rate: 0.5 }, 2.0, &[]), &[0.5]);
    // a = 16 + 9 = 25; w = 2 - 0.5 * 3 / (5 + 1)
    let adagrad = Formula::Adagrad { learning_rate: 0.5, epsilon: 1.0 };
    close(&stepped(adagrad, 2.0, &[16.0]), &[1.75, 25.0]);
    // m = 0.5 * 4 + 3 = 5; w = 2 - 0.5 * 5, or 2 - 0.5 * (3 + 0.5 * 5)
    let momentum = |nesterov| Formula::Momentum { learning_rate: 0.5, momentum: 0.5, nesterov };
    close(&stepped(momentum(false), 2.0, &[4.0]), &[-0.5, 5.0]);
    close(&stepped(momentum(true), 2.0, &[4.0]), &[-0.75, 5.0]);
    // m = 0.5 * 1 + 0.5 * 3 = 2; v = 0.75 * 9 + 0.25 * 9 = 9; both corrected by the first step's number:
    // w = (2 - 0.5 * decay * 2) - 0.5 * (2 / 0.5) / (3 / 0.5 + 2)
    close(&stepped(adam(0.0), 2.0, &[1.0, 9.0]), &[1.75, 2.0, 9.0]);
    close(&stepped(adam(0.5), 2.0, &[1.0, 9.0]), &[1.25, 2.0, 9.0]);
    // sigma = (5 - 4) / 0.5 = 2; z = 10 + 3 - 2 * 2 = 9; n = 25;
    // w = -(9 - 1) / ((1 + 5) / 0.5 + 4) = -0.5
    let ftrl = |l1| Formula::Ftrl { learning_rate: 0.5, beta: 1.0, l1, l2: 4.0 };
    close(&stepped(ftrl(1.0), 2.0, &[10.0, 16.0]), &[-0.5, 9.0, 25.0]);
    close(&stepped(ftrl(9.0), 2.0, &[10.0, 16.0]), &[0.0, 9.0, 25.0]);
    // z = -16 + 3 + 4 = -9 for a weight of -2
    close(&stepped(ftrl(1.0), -2.0, &[-16.0, 16.0]), &[0.5, -9.0, 25.0]);
}

fn bad_batches_are_refused<B: Backend>(backend: &B) {
    let mut batch = backend.batch(&schema());
    let refusal = |change: fn(&mut BatchBuffer)| {
        let mut buffer = three_rows();
        change(&mut buffer);
        let mut batch = backend.batch(&schema());
        let sound = backend.upload(buffer.as_ref(), &mut batch).and_then(|()| backend.check(&batch));
        assert_eq!(backend.check(&batch), Ok(()), "it is told once");
        sound.expect_err("a bad batch")
    };
    let (id, cardinality) = (4, 4);
    assert_eq!(
        refusal(|buffer| buffer.as_mut().sections().ids[1] = 4),
        BatchError::IdOutOfRange { feature: "colour".to_owned(), row: 1, id, cardinality }
    );
    let (id, cardinality) = (u32::MAX, 3);
    assert_eq!(
        refusal(|buffer| buffer.as_mut().sections().ragged[0].1[2] = u32::MAX),
        BatchError::IdOutOfRange { feature: "tags".to_owned(), row: 2, id, cardinality }
    );
    let bad_offsets = |row, from, to| BatchError::BadOffsets { feature: "tags".to_owned(), row, from, to };
    assert_eq!(refusal(|buffer| buffer.as_mut().sections().ragged[0].0[0] = 1), bad_offsets(0, 1, 1));
    assert_eq!(refusal(|buffer| buffer.as_mut().sections().ragged[0].0[2] = 1), bad_offsets(1, 2, 1));
    assert_eq!(refusal(|buffer| buffer.as_mut().sections().ragged[0].0[2] = 5), bad_offsets(1, 2, 5));
    assert_eq!(refusal(|buffer| buffer.as_mut().sections().ragged[0].0[3] = 9), bad_offsets(2, 2, 9));
    // Of several faults, the first is reported: by column, then by row, regardless of detection order.
    let several = refusal(|buffer| {
        let mut slot = buffer.as_mut();
        let sections = slot.sections();
        (sections.ids[2], sections.ids[1]) = (7, 5);
        sections.ragged.into_iter().for_each(|(offsets, _)| offsets[2] = 5);
    });
    let feature = "colour".to_owned();
    assert_eq!(several, BatchError::IdOutOfRange { feature, row: 1, id: 5, cardinality: 4 });

    // Rows past the end may contain anything.
    let mut buffer = three_rows();
    set_rows(&mut buffer.as_mut(), 2);
    buffer.as_mut().sections().ids[2] = 99;
    backend.upload(buffer.as_ref(), &mut batch).expect("two good rows");
    backend.check(&batch).expect("two good rows");

    let mut other = schema();
    other.ids[0].cardinality = 5;
    let layout = SlotLayout::of(&other).expect("three rows");
    let buffer = BatchBuffer::new(Arc::new(layout));
    assert_eq!(backend.upload(buffer.as_ref(), &mut batch), Err(BatchError::WrongSchema));
}

fn matrices_and_tables_keep_what_is_written<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let adam = adam(0.0);
    for columns in [1, 15, 16, 17] {
        let values: Vec<f32> = (0..5 * columns).map(|x| x as f32).collect();
        let expected: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
        let matrix = bench.matrix(5, columns, &values);
        close(&bench.read(&matrix, 5 * columns), &expected);
        close(&bench.read(&matrix, 2 * columns), &expected[..2 * columns]);
        let table = bench.table((5, columns), &values, &adam, [7.0, 8.0]);
        close(&bench.read_table(&table, TablePart::Weights, 5 * columns), &expected);
        close(&bench.read_table(&table, TablePart::State(1), columns), &vec![8.0; columns]);
    }
}

fn a_copied_table_has_each_part_in_its_place<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let rowwise = Formula::RowWiseAdagrad { learning_rate: 1.0, epsilon: 0.0 };
    // The largest sizes are more than one task.
    for (rows, width) in [(1, 1), (3, 5), (40_000, 1), (5_000, 8), (700, 17), (70_000, 64)] {
        let values: Vec<f32> = (0..rows * width).map(|x| (x % 8191) as f32).collect();
        for update in [&adam(0.0), &rowwise] {
            let table = bench.table((rows, width), &values, update, [7.0, 8.0]);
            let (float, states, row_states) = (Float::F32, update.states(), update.row_states());
            let shape = TableShape { rows, width, float, key: 0, states, row_states };
            let mut copy = vec![B::Scalar::from_f64(-1.0); B::copied_numbers(shape)];
            backend.run(ops::CopyTable { table: &table, out: &mut copy });
            let mut parts = 0;
            for part in shape.parts() {
                let (place, width) = (B::table_place(shape, part), shape.part_width(part));
                let begins = (0..rows).map(|row| place.first + row * place.stride);
                let found = begins.flat_map(|begin| &copy[begin..begin + width]).map(|x| x.to_f64());
                let wanted = bench.read_table(&table, part, rows * width);
                assert!(found.eq(wanted), "{part:?} of {rows} x {width}");
                parts += 1;
            }
            assert_eq!(parts, 1 + update.states() + update.row_states());
        }
    }
}

#[test]
fn backends_may_change_threads() {
    fn is_send<T: Send>() {}
    is_send::<Cpu>();
    is_send::<Reference>();
}
