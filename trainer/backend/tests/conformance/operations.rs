//! Runs every operation on random numbers.

use millstream_backend::{
    Activation, Backend, GradientColumns, GradientMode, Lookup, Loss, Pooling, RowGradients, RowSums,
    SavedLayer, Scalar, TablePart, Task, Update, ops,
};

use crate::lists::losses_of_lists;

use crate::case::{Bench, DRAWS, Outcome, Random, SCALE, Shapes, UPDATES, groups, state_parts};

use crate::attention::attention;

use crate::interactions::interactions;

use crate::normalization::normalization;

use crate::retrieval::retrieval;

/// Losses with one logit.
const LOSSES: [Loss; 8] = [
    Loss::BinaryCrossEntropy { smoothing: 0.0, positive_weight: 1.0, negative_weight: 1.0 },
    Loss::BinaryCrossEntropy { smoothing: 0.125, positive_weight: 3.0, negative_weight: 0.5 },
    Loss::Focal { gamma: 2.0, positive: 0.25, negative: 0.75 },
    Loss::Focal { gamma: 0.0, positive: 1.0, negative: 1.0 },
    Loss::SquaredError,
    Loss::Huber { delta: 1.5 },
    Loss::Quantile { quantile: 0.875 },
    Loss::Poisson,
];

/// Runs every operation on random values of these shapes.
pub(crate) fn run<B: Backend>(backend: &B, shapes: &Shapes, seed: u64) -> Outcome {
    let mut random = Random(seed);
    let buffer = shapes.batch(&mut random);
    let mut batch = backend.batch(&shapes.schema());
    backend.upload(buffer.as_ref(), &mut batch).expect("a batch of the schema");
    let mut outcome = Outcome::new();
    lookups(&Bench(backend), shapes, &batch, &mut random, &mut outcome);
    for columns in [1, 3, 70] {
        linear(&Bench(backend), shapes, columns, &batch, &mut random, &mut outcome);
    }
    layers(&Bench(backend), shapes, &mut random, &mut outcome);
    interactions(&Bench(backend), shapes, &mut random, &mut outcome);
    attention(&Bench(backend), shapes, &mut Random(!seed), &mut outcome);
    normalization(&Bench(backend), shapes, &mut random, &mut outcome);
    losses(&Bench(backend), shapes, &batch, &mut random, &mut outcome);
    losses_of_classes(&Bench(backend), shapes, &batch, &mut random, &mut outcome);
    losses_of_lists(&Bench(backend), shapes, &mut random, &mut outcome);
    retrieval(&Bench(backend), shapes, &batch, &mut random, &mut outcome);
    steps(&Bench(backend), &mut random, &mut outcome);
    outcome
}

fn lookups<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    batch: &B::Batch,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    let backend = bench.0;
    let (lookups, sizes) = (shapes.lookups(), shapes.tables());
    let (rows, capacity) = (shapes.rows as usize, shapes.capacity as usize);
    let width: usize = lookups.iter().map(|lookup| lookup.columns(sizes[lookup.table].1)).sum();
    let dense: Vec<usize> = (0..shapes.dense).rev().step_by(2).collect();
    let mut weights: Vec<Vec<f32>> = sizes.iter().map(|size| random.numbers(size.0 * size.1)).collect();
    if shapes.pooling == Pooling::Max {
        // Few different values, so that ids tie.
        weights.iter_mut().flatten().for_each(|weight| *weight = (2.0 * *weight).round() / 2.0);
    }
    let mut plan = backend.row_plan(&shapes.schema(), &groups(&lookups));
    backend.run(ops::PlanRows { batch, plan: &mut plan });
    // The tables' columns follow unrelated columns.
    let before = capacity % 3;
    let all = before + width;
    let gradient = bench.matrix(capacity, all, &random.numbers(capacity * all));
    for (name, update, start) in UPDATES {
        let mut tables: Vec<B::Table> = sizes
            .iter()
            .zip(&weights)
            .map(|(&size, weights)| bench.table(size, weights, &update.formula, start))
            .collect();
        let mut out = backend.matrix(capacity, all + dense.len());
        let mut maxima = bench.maxima(shapes);
        backend.run(ops::Gather {
            batch,
            rows: 0..rows,
            lookups: &lookups,
            tables: &tables,
            dense: &dense,
            out: &mut out,
            first_column: before,
            maxima: maxima.as_mut(),
        });
        outcome.push((format!("gather {name}"), bench.read(&out, rows * (all + dense.len()))));
        let last = rows / 3..rows;
        backend.run(ops::Gather {
            batch,
            rows: last.clone(),
            lookups: &lookups,
            tables: &tables,
            dense: &dense,
            out: &mut out,
            first_column: before,
            maxima: maxima.as_mut(),
        });
        outcome.push((format!("gather last {name}"), bench.read(&out, last.len() * (all + dense.len()))));
        let columns = GradientColumns::Apart { first: before };
        let (plan, lookups, maxima) = (&plan, lookups.as_slice(), maxima.as_ref());
        let gradients = RowGradients { batch, plan, lookups, gradient: &gradient, columns, maxima };
        for _ in 0..2 {
            backend.run(ops::StepRows {
                update: &update,
                scale: &bench.matrix(1, 1, &[SCALE]),
                draws: DRAWS,
                gradients: &gradients,
                tables: &mut tables,
            });
        }
        let mut squares = bench.matrix(1, 1, &[2.0]);
        backend.run(ops::RowSquares { gradients: &gradients, tables: &tables, sum: &mut squares });
        outcome.push((format!("row_squares {name}"), bench.read(&squares, 1)));
        outcome.push((format!("sum_rows {name}"), sums_of_rows(backend, &gradients, &tables)));
        for (number, (table, size)) in tables.iter().zip(&sizes).enumerate() {
            for part in state_parts(&update.formula).into_iter().chain([TablePart::Weights]) {
                let columns = if let TablePart::RowState(_) = part { 1 } else { size.1 };
                let values = bench.read_table(table, part, size.0 * columns);
                outcome.push((format!("step_rows {name} table {number} {part:?}"), values));
            }
        }
    }
}

/// The number of touched rows of each table, their ids, and their summed gradients.
fn sums_of_rows<B: Backend>(backend: &B, gradients: &RowGradients<'_, B>, tables: &[B::Table]) -> Vec<f64> {
    let mut sums = RowSums::default();
    backend.sum_rows(gradients, tables, &mut sums);
    let ids = sums.ids.iter().copied().map(f64::from);
    ids.chain(sums.rows.iter().map(|sum| sum.to_f64())).collect()
}

/// The linear model with one output, or several.
fn linear<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    columns: usize,
    batch: &B::Batch,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    let backend = bench.0;
    let sizes = shapes.tables();
    let pooled = |lookup: Lookup| match lookup.pooling {
        Pooling::Max | Pooling::Unpooled(_) => Lookup { pooling: Pooling::Sum, ..lookup },
        _ => lookup,
    };
    let lookups: Vec<Lookup> = shapes.lookups().into_iter().map(pooled).collect();
    let (rows, capacity) = (shapes.rows as usize, shapes.capacity as usize);
    let dense: Vec<usize> = (0..shapes.dense).collect();
    let dense_weights = bench.matrix(dense.len(), columns, &random.numbers(dense.len() * columns));
    let bias = bench.matrix(1, columns, &random.numbers(columns));
    let weights: Vec<Vec<f32>> = sizes.iter().map(|size| random.numbers(size.0 * columns)).collect();
    let before = random.numbers(capacity * columns);
    let gradient = bench.matrix(capacity, columns, &random.numbers(capacity * columns));
    let in_another_order: Vec<_> = groups(&lookups).into_iter().rev().collect();
    let mut plan = backend.row_plan(&shapes.schema(), &in_another_order);
    backend.run(ops::PlanRows { batch, plan: &mut plan });
    for (name, update, start) in UPDATES {
        let mut tables: Vec<B::Table> = sizes
            .iter()
            .zip(&weights)
            .map(|(&(rows, _), weights)| bench.table((rows, columns), weights, &update.formula, start))
            .collect();
        let mut out = bench.matrix(capacity, columns, &before);
        backend.run(ops::LinearForward {
            batch,
            rows: 0..rows,
            lookups: &lookups,
            tables: &tables,
            dense: &dense,
            dense_weights: &dense_weights,
            bias: &bias,
            out: &mut out,
        });
        outcome.push((format!("linear of {columns} {name}"), bench.read(&out, rows * columns)));
        let last = rows / 3..rows;
        backend.run(ops::LinearForward {
            batch,
            rows: last,
            lookups: &lookups,
            tables: &tables,
            dense: &dense,
            dense_weights: &dense_weights,
            bias: &bias,
            out: &mut out,
        });
        outcome.push((format!("linear of {columns} last {name}"), bench.read(&out, rows * columns)));
        let (plan, lookups, shared) = (&plan, lookups.as_slice(), GradientColumns::Shared);
        let gradients =
            RowGradients { batch, plan, lookups, gradient: &gradient, columns: shared, maxima: None };
        backend.run(ops::StepRows {
            update: &update,
            scale: &bench.matrix(1, 1, &[SCALE]),
            draws: DRAWS,
            gradients: &gradients,
            tables: &mut tables,
        });
        let mut squares = bench.matrix(1, 1, &[2.0]);
        backend.run(ops::RowSquares { gradients: &gradients, tables: &tables, sum: &mut squares });
        outcome.push((format!("row_squares shared {name}"), bench.read(&squares, 1)));
        outcome.push((format!("sum_rows shared {name}"), sums_of_rows(backend, &gradients, &tables)));
        for (number, (table, size)) in tables.iter().zip(&sizes).enumerate() {
            let values = bench.read_table(table, TablePart::Weights, size.0 * columns);
            outcome.push((format!("step_rows shared {name} table {number}"), values));
        }
    }
    let mut weight_grad = backend.matrix(dense.len(), columns);
    let mut bias_grad = backend.matrix(1, columns);
    for (rows, sum) in [(0..rows, GradientMode::Write), (rows / 3..rows, GradientMode::Accumulate)] {
        backend.run(ops::LinearBackward {
            batch,
            rows,
            dense: &dense,
            out_grad: &gradient,
            mode: sum,
            weight_grad: &mut weight_grad,
            bias_grad: &mut bias_grad,
        });
        outcome.push((
            format!("linear gradient of weights, {sum:?}"),
            bench.read(&weight_grad, dense.len() * columns),
        ));
        outcome.push((format!("linear gradient of bias, {sum:?}"), bench.read(&bias_grad, columns)));
    }
}

fn layers<B: Backend>(bench: &Bench<'_, B>, shapes: &Shapes, random: &mut Random, outcome: &mut Outcome) {
    let backend = bench.0;
    let (inputs, outputs) = shapes.layer;
    let (rows, capacity) = (shapes.rows as usize, shapes.capacity as usize);
    let input = bench.matrix(capacity, inputs, &random.numbers(capacity * inputs));
    let weights = bench.matrix(inputs, outputs, &random.numbers(inputs * outputs));
    let bias = bench.matrix(1, outputs, &random.numbers(outputs));
    for activation in [Activation::Identity, Activation::Relu] {
        for bias in [None, Some(&bias)] {
            let mut output = backend.matrix(capacity, outputs);
            backend.run(ops::LayerForward {
                rows,
                input: &input,
                weights: &weights,
                bias,
                activation,
                output: &mut output,
            });
            let name = format!("layer {activation:?}, with a bias: {}", bias.is_some());
            outcome.push((name, bench.read(&output, rows * outputs)));
        }
        // Given rather than computed, so that rounding cannot change its sign.
        let output = random.numbers(capacity * outputs).into_iter().map(|y| y.max(0.0));
        let output = bench.matrix(capacity, outputs, &output.collect::<Vec<_>>());
        let output_gradient = random.numbers(capacity * outputs);
        for wanted in [None, Some(inputs), Some(inputs.div_ceil(2))] {
            let mut output_gradient = bench.matrix(capacity, outputs, &output_gradient);
            let mut weight_grad = backend.matrix(inputs, outputs);
            let mut bias_grad = backend.matrix(1, outputs);
            let mut input_grad = wanted.map(|columns| backend.matrix(capacity, columns));
            let layer = SavedLayer {
                input: &input,
                input_activation: Activation::Identity,
                weights: &weights,
                output: &output,
                activation,
            };
            // The other gradients do not depend on whether this one is wanted. The second call gets a gradient that
            // is already masked.
            let wants_bias = wanted != Some(inputs);
            for sum in [GradientMode::Write, GradientMode::Accumulate] {
                let (bias_grad, input_grad) = (wants_bias.then_some(&mut bias_grad), input_grad.as_mut());
                let output_grad = &mut output_gradient;
                backend.run(ops::LayerBackward {
                    rows,
                    layer: &layer,
                    output_grad,
                    mode: sum,
                    weight_grad: &mut weight_grad,
                    bias_grad,
                    input_grad,
                });
            }
            let name = |what| format!("layer {activation:?} {wanted:?} gradient of {what}");
            outcome.push((name("weights"), bench.read(&weight_grad, inputs * outputs)));
            outcome.push((name("bias"), bench.read(&bias_grad, outputs)));
            if let (Some(columns), Some(input_grad)) = (wanted, &input_grad) {
                outcome.push((name("input"), bench.read(input_grad, rows * columns)));
            }
        }
    }
}

fn losses<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    batch: &B::Batch,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    let backend = bench.0;
    let (rows, capacity) = (shapes.rows as usize, shapes.capacity as usize);
    let extremes = [0.0, 88.0, -88.0, 1e4, -1e4, 1e-6];
    let logits = (0..capacity).map(|row| match row % 7 {
        extreme @ 0..6 if row % 5 == 0 => extremes[extreme],
        _ => random.number() * 8.0,
    });
    let logits = logits.collect::<Vec<_>>();
    let labels = shapes.schema().label_count();
    // Each label has separate logits: a rotation of the same values.
    let logits: Vec<f32> =
        (0..capacity * labels).map(|i| logits[(i / labels + i % labels) % capacity]).collect();
    let logits = bench.matrix(capacity, labels, &logits);
    for (number, loss) in LOSSES.iter().enumerate() {
        let mut gradient = backend.matrix(capacity, labels);
        let mut sums = backend.matrix(labels, 2);
        for of_pass in [0..rows / 3, rows / 3..rows, 0..rows] {
            let count = of_pass.len() * labels;
            // The last one as a part of a larger batch.
            let total = (of_pass.len() == rows).then_some(1.5 * rows as f64);
            for label in 0..labels {
                let task = Task { loss: loss.clone(), label, weight: 1.0 - 0.75 * label as f64 };
                backend.run(ops::TaskLoss {
                    total,
                    task: &task,
                    batch,
                    rows: of_pass.clone(),
                    logits: &logits,
                    logits_grad: &mut gradient,
                    sums: &mut sums,
                });
            }
            outcome.push((format!("gradient of loss {number}"), bench.read(&gradient, count)));
            outcome.push((format!("sums of loss {number}"), bench.read(&sums, 2 * labels)));
        }
    }
    let mut probabilities = backend.matrix(capacity, labels);
    backend.run(ops::Sigmoid { rows, logits: &logits, out: &mut probabilities });
    outcome.push(("sigmoid".to_owned(), bench.read(&probabilities, rows * labels)));
}

/// Losses over classes, at least two of them, because batches have the labels 0 and 1.
fn losses_of_classes<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    batch: &B::Batch,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    let backend = bench.0;
    let (rows, capacity) = (shapes.rows as usize, shapes.capacity as usize);
    let labels = shapes.schema().label_count();
    for (classes, smoothing) in [(2, 0.0), (3, 0.25), (17, 0.0), (40, 0.125)] {
        let class_weights = (0..classes).map(|class| 0.5 + class as f64).collect();
        let task = Task { weight: 0.75, ..Loss::CrossEntropy { smoothing, class_weights }.into() };
        let mut logits: Vec<f32> = (0..capacity * classes).map(|_| random.number() * 8.0).collect();
        // Logits far apart, all equal, and all outside the range of `exp`.
        for (row, logits) in logits.chunks_exact_mut(classes).enumerate().filter(|(row, _)| row % 4 == 1) {
            match row % 3 {
                0 => (logits[0], logits[1]) = (1e4, -1e4),
                1 => logits.fill(88.0),
                _ => logits.iter_mut().for_each(|x| *x -= 1e3),
            }
        }
        let logits = bench.matrix(capacity, classes, &logits);
        let (mut gradient, mut sums) = (backend.matrix(capacity, classes), backend.matrix(labels, 2));
        for of_pass in [0..rows / 3, rows / 3..rows, 0..rows] {
            backend.run(ops::TaskLoss {
                total: None,
                task: &task,
                batch,
                rows: of_pass.clone(),
                logits: &logits,
                logits_grad: &mut gradient,
                sums: &mut sums,
            });
            let name = format!("of {classes} classes");
            outcome.push((format!("gradient {name}"), bench.read(&gradient, of_pass.len() * classes)));
            outcome.push((format!("sums {name}"), bench.read(&sums, 2 * labels)));
        }
        let mut probabilities = backend.matrix(capacity, classes);
        backend.run(ops::Softmax { rows, logits: &logits, out: &mut probabilities });
        outcome.push((format!("softmax of {classes}"), bench.read(&probabilities, rows * classes)));
    }
}

fn steps<B: Backend>(bench: &Bench<'_, B>, random: &mut Random, outcome: &mut Outcome) {
    let backend = bench.0;
    for (rows, columns) in [(1, 1), (1, 7), (5, 16), (3, 17), (200, 100)] {
        let count = rows * columns;
        let (weights, gradient) = (random.numbers(count), random.numbers(count));
        let (scale, mut squares) = (bench.matrix(1, 1, &[SCALE]), bench.matrix(1, 1, &[2.0]));
        backend.run(ops::Squares { grad: &bench.matrix(rows, columns, &gradient), sum: &mut squares });
        outcome.push((format!("squares {rows}x{columns}"), bench.read(&squares, 1)));
        let of_weights = |(_, update, _): &(&str, Update, [f32; 2])| update.formula.row_states() == 0;
        for (name, update, start) in UPDATES.into_iter().filter(of_weights) {
            let mut weights = bench.matrix(rows, columns, &weights);
            let gradient = bench.matrix(rows, columns, &gradient);
            let mut states: Vec<B::Matrix> = (0..update.formula.states())
                .map(|state| bench.matrix(rows, columns, &vec![start[state]; count]))
                .collect();
            for _ in 0..3 {
                backend.run(ops::Step {
                    update: &update,
                    scale: &scale,
                    weights: &mut weights,
                    states: &mut states,
                    grad: &gradient,
                });
            }
            outcome.push((format!("step {name} {rows}x{columns}"), bench.read(&weights, count)));
            for state in &states {
                outcome.push((format!("step {name} {rows}x{columns} state"), bench.read(state, count)));
            }
        }
    }
}
