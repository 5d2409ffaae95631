//! Compares the gradients of every layer and the loss with central differences, in float64. `models/` tests
//! whole models.
//!
//! An SGD step with learning rate 1 subtracts the gradient from each weight. This reveals the gradients of
//! table rows, which are never stored.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::sync::Arc;

use millstream_backend::{
    Activation, Backend, Choice, Device, Float, IdColumn, InBatchInput, Lookup, Loss, Pooling as Pool,
    Reference, ReferenceMatrix, TablePart, ops,
};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, RaggedFeature, SlotLayout, Stream};
use millstream_trainer::gradients::{ApplyUpdates, GradientVisitor};
use millstream_trainer::init::Init;
use millstream_trainer::layers::{Cross, Dense, Embedding, Linear, Mlp, MlpGradients, Tables};
use millstream_trainer::optimizer::Optimizer;
use millstream_trainer::parameter::{MatrixParameter, ParameterSpec, Parameters};
use millstream_trainer::pass::{BufferSpec, Pass, Purpose};
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::{CrossSpec, HiddenLayerSpec, Normalization, OptimizerSpec};

const ROWS: usize = 6;
const STEP: f64 = 1e-5;
const BACKEND: &Reference = &Reference;
const BUFFERS: BufferSpec = BufferSpec { rows: ROWS, float: Float::F32, ranks: 1 };

/// All rows in one pass, with dropout where layers have it.
fn pass() -> Pass<'static, Reference> {
    Pass::all(ROWS, ROWS, 0, Purpose::Training(11)).next().unwrap()
}

fn sgd() -> Optimizer {
    Optimizer::new(&OptimizerSpec::Sgd { learning_rate: 1.0, l2: 0.0 }).unwrap()
}

fn numbers(name: &str, count: usize) -> Vec<f64> {
    Init::Uniform { limit: 1.0 }.values(5, name, 0).take(count).collect()
}

fn matrix(name: &str, rows: usize, columns: usize) -> ReferenceMatrix {
    filled(rows, columns, &numbers(name, rows * columns))
}

fn filled(rows: usize, columns: usize, values: &[f64]) -> ReferenceMatrix {
    let mut matrix = BACKEND.matrix(rows, columns);
    BACKEND.write_matrix(&mut matrix, values);
    matrix
}

fn read(matrix: &ReferenceMatrix, count: usize) -> Vec<f64> {
    let mut values = vec![0.0; count];
    BACKEND.read_matrix(matrix, &mut values);
    values
}

/// Fills every parameter with numbers of various sizes.
fn scatter(parameters: &mut dyn Parameters<Reference>) {
    for mut parameter in parameters.parameters() {
        let spec = parameter.spec;
        let values = Init::Uniform { limit: 0.8 }.values(5, &spec.name, 0).take(spec.len());
        parameter.write(BACKEND, TablePart::Weights, &values.collect::<Vec<_>>());
    }
}

/// The test's loss: a function of a layer's output whose gradient with respect to the output is `weights`.
fn dot(output: &ReferenceMatrix, weights: &[f64]) -> f64 {
    read(output, weights.len()).iter().zip(weights).map(|(y, w)| y * w).sum()
}

/// Compares `gradient` at `at` with central differences of `function`.
fn check(what: &str, at: &[f64], gradient: &[f64], mut function: impl FnMut(&[f64]) -> f64) {
    assert!(!at.is_empty() && at.len() == gradient.len(), "{what}");
    assert!(gradient.iter().any(|&g| g != 0.0), "{what}: an all-zero gradient proves nothing");
    let largest = gradient.iter().fold(0.0_f64, |largest, g| largest.max(g.abs()));
    let mut moved = at.to_vec();
    for item in 0..at.len() {
        let mut value_at = |x| {
            moved[item] = x;
            function(&moved)
        };
        let difference = (value_at(at[item] + STEP) - value_at(at[item] - STEP)) / (2.0 * STEP);
        moved[item] = at[item];
        let error = (difference - gradient[item]).abs();
        assert!(error <= 1e-6 * largest, "{what}, item {item}: {}, not {difference}", gradient[item]);
    }
}

fn schema() -> BatchSchema {
    BatchSchema {
        rows: ROWS as u32,
        labels: Vec::new(),
        weighted: true,
        dense: vec!["x".to_owned(), "y".to_owned()],
        ids: vec![
            IdFeature { name: "colour".to_owned(), cardinality: 4 },
            IdFeature { name: "shape".to_owned(), cardinality: 3 },
        ],
        ragged: vec![
            RaggedFeature { name: "tags".to_owned(), cardinality: 5, maximum: 3, weighted: false },
            RaggedFeature { name: "marks".to_owned(), cardinality: 4, maximum: 3, weighted: true },
        ],
        columns: Vec::new(),
        position_bytes: 0,
    }
}

fn batch() -> BatchBuffer {
    let layout = SlotLayout::of(&schema()).unwrap();
    let mut buffer = BatchBuffer::new(Arc::new(layout));
    let mut slot = buffer.as_mut();
    let rows = ROWS as u32;
    slot.set_header(&BatchHeader {
        stream: Stream::Train,
        epoch: 0,
        batch: 0,
        rows,
        global_rows: rows,
        first_row: 0,
        most_rows: rows,
        last: false,
    });
    let mut sections = slot.sections();
    sections.labels.copy_from_slice(&[1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
    sections.weights.as_mut().unwrap().copy_from_slice(&[1.0, 2.0, 0.5, 0.0, 1.0, 1.5]);
    for (value, number) in sections.dense.iter_mut().zip(numbers("dense", 2 * ROWS)) {
        *value = number as f32;
    }
    sections.ids.copy_from_slice(&[0, 1, 1, 3, 1, 0, 2, 2, 0, 1, 0, 2]);
    sections.ragged[0].0.copy_from_slice(&[0, 2, 2, 5, 6, 8, 9]);
    sections.ragged[0].1[..9].copy_from_slice(&[1, 1, 0, 2, 4, 3, 2, 2, 0]);
    sections.ragged[1].0.copy_from_slice(&[0, 2, 3, 3, 6, 7, 9]);
    sections.ragged[1].1[..9].copy_from_slice(&[2, 2, 0, 1, 3, 0, 1, 3, 1]);
    let weights = sections.ragged_weights[1].as_mut().unwrap();
    weights[..9].copy_from_slice(&[0.5, 2.0, -1.0, 1.0, 0.25, -0.5, 3.0, 0.0, 0.75]);
    buffer
}

fn uploaded() -> <Reference as Device>::Batch {
    let mut uploaded = BACKEND.batch(&schema());
    BACKEND.upload(batch().as_ref(), &mut uploaded).unwrap();
    uploaded
}

const COLUMNS: [IdColumn; 4] =
    [IdColumn::Single(0), IdColumn::Ragged(0), IdColumn::Single(1), IdColumn::Ragged(1)];
const CARDINALITIES: [usize; 4] = [4, 5, 3, 4];

fn tables(width: usize, pooling: Pool) -> Tables<Reference> {
    let spec = |(number, &rows): (usize, &usize)| {
        ParameterSpec::matrix(format!("table {number}"), (rows, width), Init::Zeros, sgd()).unwrap()
    };
    let specs = CARDINALITIES.iter().enumerate().map(spec).collect();
    let lookup =
        |(table, &column): (usize, &IdColumn)| Lookup { column, pooling, table, first: table * width };
    let lookups = COLUMNS.iter().enumerate().map(lookup).collect();
    let mut tables = Tables::new(BACKEND, ROWS, lookups, specs, sgd(), None);
    scatter(&mut tables);
    tables
}

fn planned() -> <Reference as Device>::RowPlan {
    let mut plan = BACKEND.row_plan(&schema(), &COLUMNS.map(|column| vec![column]));
    BACKEND.run(ops::PlanRows { batch: &uploaded(), plan: &mut plan });
    plan
}

/// One SGD step with the gradients that `layer` passes to the visitor.
fn descend(layer: impl FnOnce(&mut dyn GradientVisitor<Reference>)) {
    let (batch, plan) = (uploaded(), planned());
    let (touched, scale) = ((&batch, &plan), &filled(1, 1, &[1.0]));
    let (clip, step) = (f64::INFINITY, Step::number(1));
    layer(&mut ApplyUpdates { backend: BACKEND, touched, scale, clip, step, draws: 0 });
}

/// The values of a parameter.
fn value_of(parameter: &MatrixParameter<Reference>) -> Vec<f64> {
    read(&parameter.value, parameter.spec.len())
}

fn set(parameter: &mut MatrixParameter<Reference>, values: &[f64]) {
    BACKEND.write_matrix(&mut parameter.value, values);
}

#[test]
fn dense_layer() {
    for activation in [Activation::Identity, Activation::Relu] {
        let (inputs, outputs) = (4, 3);
        let (output, shape) = (BACKEND.matrix(ROWS, outputs), (inputs, outputs));
        let mut layer = Dense::new(BACKEND, BUFFERS, output, "dense", shape, activation, sgd()).unwrap();
        scatter(&mut layer);
        let input = matrix("input", ROWS, inputs);
        let output_grad = numbers("output gradient", ROWS * outputs);
        let value = |layer: &mut Dense<Reference>, input: &ReferenceMatrix| {
            layer.forward(BACKEND, &pass(), input);
            dot(&layer.output, &output_grad)
        };
        value(&mut layer, &input);
        let mut input_grad = BACKEND.matrix(ROWS, inputs);
        let mut masked = filled(ROWS, outputs, &output_grad);
        layer.backward(BACKEND, &pass(), &input, &mut masked, Some(&mut input_grad));

        let at = read(&input, ROWS * inputs);
        check("input", &at, &read(&input_grad, ROWS * inputs), |x| {
            value(&mut layer, &filled(ROWS, inputs, x))
        });
        let (at, gradient) = (value_of(&layer.weights), read(&layer.weights.gradient, inputs * outputs));
        check("weights", &at, &gradient, |x| {
            set(&mut layer.weights, x);
            value(&mut layer, &input)
        });
        set(&mut layer.weights, &at);
        let bias = layer.bias.as_ref().unwrap();
        let (at, gradient) = (value_of(bias), read(&bias.gradient, outputs));
        check("bias", &at, &gradient, |x| {
            set(layer.bias.as_mut().unwrap(), x);
            value(&mut layer, &input)
        });
    }
}

#[test]
fn mlp() {
    for normalization in [None, Some(Normalization::Layer), Some(Normalization::Batch)] {
        for dropout in [0.0, 0.25] {
            mlp_with(&HiddenLayerSpec { dropout, normalization, ..HiddenLayerSpec::default() });
        }
    }
}

fn mlp_with(hidden_layer: &HiddenLayerSpec) {
    let hidden = (&[4, 3][..], hidden_layer);
    let mut mlp = Mlp::new(BACKEND, BUFFERS, "mlp", 5, hidden, (2, Activation::Identity), sgd()).unwrap();
    scatter(&mut mlp);
    let input = matrix("input", ROWS, 5);
    let output_grad = numbers("output gradient", ROWS * 2);
    let value = |mlp: &mut Mlp<Reference>, input: &ReferenceMatrix| {
        mlp.forward(BACKEND, &pass(), input);
        dot(mlp.output(), &output_grad)
    };
    value(&mut mlp, &input);
    let mut work = MlpGradients::new(BACKEND, BUFFERS, &mlp);
    // The last input column needs no gradient.
    let mut input_grad = BACKEND.matrix(ROWS, 4);
    let mut by_last = filled(ROWS, 2, &output_grad);
    mlp.backward(BACKEND, &pass(), &input, &mut work, &mut by_last, Some(&mut input_grad));

    let all = read(&input, ROWS * 5);
    let at: Vec<f64> = all.chunks(5).flat_map(|row| row[..4].to_vec()).collect();
    check("input", &at, &read(&input_grad, ROWS * 4), |x| {
        let rows = x.chunks(4).zip(all.chunks(5));
        let moved: Vec<f64> = rows.flat_map(|(x, row)| [x, &row[4..]].concat()).collect();
        value(&mut mlp, &filled(ROWS, 5, &moved))
    });
    let before = values_of(&mut mlp);
    descend(|visitor| visitor.layers(&mut mlp));
    let after = values_of(&mut mlp);
    // Running moments are not trained and matter only for scoring.
    let trained: Vec<bool> = mlp.parameters().iter().map(|it| it.spec.optimizer.is_some()).collect();
    for (parameter, at) in before.iter().enumerate() {
        let gradient: Vec<f64> = at.iter().zip(&after[parameter]).map(|(at, after)| at - after).collect();
        write_all(&mut mlp, &before);
        if trained[parameter] {
            check(&format!("parameter {parameter}"), at, &gradient, |x| {
                write(&mut mlp, parameter, x);
                value(&mut mlp, &input)
            });
        }
    }
}

#[test]
fn embedding() {
    for pooling in [Pool::Sum, Pool::Mean, Pool::SqrtN, Pool::Max] {
        let width = 2;
        let columns = width * COLUMNS.len();
        let new = || Embedding { tables: tables(width, pooling), dense: vec![1] };
        let batch = uploaded();
        let weights = numbers("output gradient", ROWS * columns);
        let value = |embedding: &mut Embedding<Reference>| {
            let mut output = BACKEND.matrix(ROWS, columns + 1);
            embedding.forward(BACKEND, &batch, &pass(), &mut output, 0);
            let all = read(&output, ROWS * (columns + 1));
            let rows = all.chunks(columns + 1).zip(weights.chunks(columns));
            rows.flat_map(|(y, w)| y.iter().zip(w)).map(|(y, w)| y * w).sum::<f64>()
        };
        // Records the maxima.
        let mut stepped = new();
        value(&mut stepped);
        let gradient = filled(ROWS, columns, &weights);
        descend(|visitor| stepped.visit_gradients(&gradient, 0, visitor));
        let at = values_of(&mut new());
        let after = values_of(&mut stepped);
        for (table, (at, after)) in at.iter().zip(&after).enumerate() {
            let gradient: Vec<f64> = at.iter().zip(after).map(|(at, after)| at - after).collect();
            let mut moved = new();
            check("table", at, &gradient, |x| {
                write(&mut moved, table, x);
                value(&mut moved)
            });
        }
    }
}

#[test]
fn linear() {
    let new = || {
        let mut linear = Linear::new(BACKEND, "linear", tables(1, Pool::Sum), vec![1, 0], 1, sgd()).unwrap();
        scatter(&mut linear);
        linear
    };
    let batch = uploaded();
    let output_grad = numbers("output gradient", ROWS);
    let value = |linear: &Linear<Reference>| {
        let mut output = BACKEND.matrix(ROWS, 1);
        linear.forward(BACKEND, &batch, &pass(), &mut output);
        dot(&output, &output_grad)
    };
    let mut stepped = new();
    let gradient = filled(ROWS, 1, &output_grad);
    stepped.backward(BACKEND, &batch, &pass(), &gradient);
    descend(|visitor| stepped.visit_gradients(&gradient, visitor));
    let mut moved = new();
    let at = value_of(&moved.dense_weights);
    check("dense weights", &at, &read(&stepped.dense_weights.gradient, 2), |x| {
        set(&mut moved.dense_weights, x);
        value(&moved)
    });
    let at = value_of(&moved.bias);
    check("bias", &at, &read(&stepped.bias.gradient, 1), |x| {
        set(&mut moved.bias, x);
        value(&moved)
    });
    for table in 0..CARDINALITIES.len() {
        let values = |linear: &mut Linear<Reference>| values_of(&mut linear.tables).swap_remove(table);
        let mut moved = new();
        let at = values(&mut moved);
        let after = values(&mut stepped);
        let gradient: Vec<f64> = at.iter().zip(&after).map(|(at, after)| at - after).collect();
        check("table", &at, &gradient, |x| {
            write(&mut moved.tables, table, x);
            value(&moved)
        });
    }
}

#[test]
fn cross() {
    const WIDTH: usize = 5;
    for rank in [None, Some(2)] {
        let spec = CrossSpec { layers: 3, rank };
        let mut cross = Cross::new(BACKEND, BUFFERS, WIDTH, &spec, sgd()).unwrap();
        scatter(&mut cross);
        let first = matrix("first", ROWS, WIDTH);
        let output_grad = numbers("output gradient", ROWS * WIDTH);
        let value = |cross: &mut Cross<Reference>, first: &ReferenceMatrix| {
            cross.forward(BACKEND, &pass(), first);
            dot(cross.output(), &output_grad)
        };
        value(&mut cross, &first);
        let mut by_last = filled(ROWS, WIDTH, &output_grad);
        // The gradient is accumulated.
        let mut first_grad = filled(ROWS, WIDTH, &[100.0; ROWS * WIDTH]);
        cross.backward(BACKEND, &pass(), &first, &mut by_last, &mut first_grad);
        let gradient: Vec<f64> = read(&first_grad, ROWS * WIDTH).iter().map(|g| g - 100.0).collect();
        let at = read(&first, ROWS * WIDTH);
        check("first", &at, &gradient, |x| value(&mut cross, &filled(ROWS, WIDTH, x)));

        let before = values_of(&mut cross);
        descend(|visitor| visitor.layers(&mut cross));
        let after = values_of(&mut cross);
        assert_eq!(before.len(), if rank.is_some() { 9 } else { 6 });
        scatter(&mut cross);
        for (parameter, at) in before.iter().enumerate() {
            let gradient: Vec<f64> = at.iter().zip(&after[parameter]).map(|(at, after)| at - after).collect();
            check("cross weights", at, &gradient, |x| {
                write(&mut cross, parameter, x);
                value(&mut cross, &first)
            });
            write(&mut cross, parameter, at);
        }
    }
}

fn values_of(parameters: &mut dyn Parameters<Reference>) -> Vec<Vec<f64>> {
    let read = parameters.parameters().into_iter().map(|parameter| {
        let mut values = vec![0.0; parameter.spec.len()];
        parameter.read(BACKEND, TablePart::Weights, &mut values);
        values
    });
    read.collect()
}

fn write_all(parameters: &mut dyn Parameters<Reference>, values: &[Vec<f64>]) {
    values.iter().enumerate().for_each(|(number, values)| write(parameters, number, values));
}

fn write(parameters: &mut dyn Parameters<Reference>, number: usize, values: &[f64]) {
    parameters.parameters()[number].write(BACKEND, TablePart::Weights, values);
}

/// The mean loss of a batch with these logits, and the gradient with respect to them.
fn loss_at(loss: &Loss, batch: &<Reference as Device>::Batch, logits: &[f64]) -> (f64, Vec<f64>) {
    let columns = logits.len() / ROWS;
    let (mut gradient, mut sums) = (BACKEND.matrix(ROWS, columns), BACKEND.matrix(1, 2));
    BACKEND.run(ops::TaskLoss {
        total: None,
        task: &loss.clone().into(),
        batch,
        rows: 0..ROWS,
        logits: &filled(ROWS, columns, logits),
        logits_grad: &mut gradient,
        sums: &mut sums,
    });
    let sums = read(&sums, 2);
    (sums[0] / sums[1], read(&gradient, logits.len()))
}

#[test]
fn loss() {
    let batch = uploaded();
    let at: Vec<f64> = numbers("logits", ROWS).iter().map(|x| 3.0 * x).collect();
    let cross_entropy = |smoothing, positive_weight| Loss::BinaryCrossEntropy {
        smoothing,
        positive_weight,
        negative_weight: 1.0,
    };
    let losses = [
        cross_entropy(0.0, 1.0),
        cross_entropy(0.25, 3.0),
        Loss::SquaredError,
        Loss::Huber { delta: 1.25 },
        Loss::Quantile { quantile: 0.25 },
        Loss::Poisson,
        Loss::Focal { gamma: 1.5, positive: 0.75, negative: 0.25 },
    ];
    let lists = [0, 1].into_iter().flat_map(|group| [Loss::Listwise { group }, Loss::Pairwise { group }]);
    for loss in losses.into_iter().chain(lists) {
        let value = |logits: &[f64]| loss_at(&loss, &batch, logits);
        let (_, gradient) = value(&at);
        check("logits", &at, &gradient, |x| value(x).0);
    }
}

#[test]
fn losses_of_choices() {
    const WIDTH: usize = 3;
    let batch = uploaded();
    let (queries, items) = (numbers("queries", ROWS * WIDTH), numbers("items", ROWS * WIDTH));
    let mut work = BACKEND.in_batch_work(ROWS, ROWS, WIDTH);
    for choice in [Choice::Softmax, Choice::Pairwise] {
        for item_id in [None, Some(0)] {
            let mut value = |queries: &[f64], items: &[f64]| {
                let [queries, items] = [queries, items].map(|values| filled(ROWS, WIDTH, values));
                let [mut query_grad, mut item_grad] = [(); 2].map(|()| BACKEND.matrix(ROWS, WIDTH));
                let mut sums = BACKEND.matrix(1, 2);
                let temperature = 0.5;
                BACKEND.run(ops::InBatchLoss {
                    input: &InBatchInput {
                        batch: &batch,
                        rows: 0..ROWS,
                        queries: &queries,
                        items: &items,
                        temperature,
                        choice,
                        item_id,
                    },
                    work: &mut work,
                    query_grad: &mut query_grad,
                    item_grad: &mut item_grad,
                    sums: &mut sums,
                });
                let sums = read(&sums, 2);
                (sums[0] / sums[1], [query_grad, item_grad].map(|gradient| read(&gradient, ROWS * WIDTH)))
            };
            let (_, [query_grad, item_grad]) = value(&queries, &items);
            check("queries", &queries, &query_grad, |x| value(x, &items).0);
            check("items", &items, &item_grad, |x| value(&queries, x).0);
        }
    }
}

#[test]
fn loss_of_classes() {
    const CLASSES: usize = 4;
    let batch = uploaded();
    let at: Vec<f64> = numbers("logits", ROWS * CLASSES).iter().map(|x| 3.0 * x).collect();
    for (smoothing, class_weights) in [(0.0, vec![1.0; CLASSES]), (0.25, vec![0.5, 3.0, 1.0, 2.0])] {
        let loss = Loss::CrossEntropy { smoothing, class_weights };
        let value = |logits: &[f64]| loss_at(&loss, &batch, logits);
        let (_, gradient) = value(&at);
        check("logits of classes", &at, &gradient, |x| value(x).0);
    }
}
