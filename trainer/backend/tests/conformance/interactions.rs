//! Feature interactions, on random values.

use millstream_backend::{Backend, MixtureShape, ops};

use crate::case::{Bench, Outcome, Random, Shapes};

/// Runs the operations on as many vectors as the shapes have dense columns, and more.
pub(crate) fn interactions<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    for (vectors, width) in [(1 + shapes.dense, 16), (2, 1), (27, 8), (18, 17), (1, 40)] {
        pairs(bench, shapes, (vectors, width), random, outcome);
    }
    cross(bench, shapes, random, outcome);
    for (tasks, experts, width) in [(1, 1, 1), (2, 3, 5), (3, 8, 16), (2, 4, 33)] {
        mixture(bench, shapes, MixtureShape { tasks, experts, width }, random, outcome);
    }
    columns(bench, shapes, random, outcome);
}

fn pairs<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    (count, width): (usize, usize),
    random: &mut Random,
    outcome: &mut Outcome,
) {
    let backend = bench.0;
    let (rows, capacity) = (shapes.rows as usize, shapes.capacity as usize);
    let columns = count * width;
    let name = |what| format!("{what} of {count} vectors of {width}");
    let vectors = bench.matrix(capacity, columns, &random.numbers(capacity * columns));
    // All vectors, or all but the last.
    let shape = (count - usize::from(count > 2), width);
    let mut out = bench.matrix(capacity, 1, &random.numbers(capacity));
    backend.run(ops::FmForward { rows, vectors: &vectors, shape, out: &mut out });
    outcome.push((name("fm"), bench.read(&out, rows)));
    let gradient = bench.matrix(capacity, 1, &random.numbers(capacity));
    let mut vectors_grad = bench.matrix(capacity, columns, &random.numbers(capacity * columns));
    backend.run(ops::FmBackward {
        rows,
        vectors: &vectors,
        shape,
        out_grad: &gradient,
        vectors_grad: &mut vectors_grad,
    });
    outcome.push((name("fm gradient"), bench.read(&vectors_grad, rows * columns)));

    let outputs = width + count * (count - 1) / 2;
    let mut out = backend.matrix(capacity, outputs);
    backend.run(ops::DotForward { rows, vectors: &vectors, width, out: &mut out });
    outcome.push((name("dot"), bench.read(&out, rows * outputs)));
    let gradient = bench.matrix(capacity, outputs, &random.numbers(capacity * outputs));
    let mut vectors_grad = bench.matrix(capacity, columns, &random.numbers(capacity * columns));
    backend.run(ops::DotBackward {
        rows,
        vectors: &vectors,
        width,
        out_grad: &gradient,
        vectors_grad: &mut vectors_grad,
    });
    outcome.push((name("dot gradient"), bench.read(&vectors_grad, rows * columns)));
}

fn cross<B: Backend>(bench: &Bench<'_, B>, shapes: &Shapes, random: &mut Random, outcome: &mut Outcome) {
    let backend = bench.0;
    let (rows, capacity, columns) = (shapes.rows as usize, shapes.capacity as usize, shapes.layer.0);
    let count = rows * columns;
    let mut matrix = || bench.matrix(capacity, columns, &random.numbers(capacity * columns));
    let (first, product, input) = (matrix(), matrix(), matrix());
    let (gradient, mut first_grad) = (matrix(), matrix());
    let (mut output, mut product_grad) =
        (backend.matrix(capacity, columns), backend.matrix(capacity, columns));
    backend.run(ops::CrossForward {
        rows,
        first: &first,
        product: &product,
        input: &input,
        output: &mut output,
    });
    outcome.push(("cross".to_owned(), bench.read(&output, count)));
    backend.run(ops::CrossBackward {
        rows,
        first: &first,
        product: &product,
        output_grad: &gradient,
        product_grad: &mut product_grad,
        first_grad: &mut first_grad,
    });
    outcome.push(("cross gradient of product".to_owned(), bench.read(&product_grad, count)));
    outcome.push(("cross gradient of first".to_owned(), bench.read(&first_grad, count)));
}

fn mixture<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    shape: MixtureShape,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    let backend = bench.0;
    let (rows, capacity) = (shapes.rows as usize, shapes.capacity as usize);
    let (gates, inputs, outputs) =
        (shape.tasks * shape.experts, shape.experts * shape.width, shape.tasks * shape.width);
    let mut matrix = |columns: usize, scale: f32| {
        let numbers: Vec<f32> = random.numbers(capacity * columns).iter().map(|x| x * scale).collect();
        bench.matrix(capacity, columns, &numbers)
    };
    // Includes gates that are nearly open and nearly shut.
    let (logits, experts, output_grad) = (matrix(gates, 20.0), matrix(inputs, 1.0), matrix(outputs, 1.0));
    // The previous contents are overwritten.
    let (mut open, mut output) = (matrix(gates, 1.0), matrix(outputs, 1.0));
    let (mut logits_grad, mut experts_grad) = (matrix(gates, 1.0), matrix(inputs, 1.0));
    backend.run(ops::MixtureForward {
        rows,
        shape,
        logits: &logits,
        experts: &experts,
        gates: &mut open,
        output: &mut output,
    });
    backend.run(ops::MixtureBackward {
        rows,
        shape,
        gates: &open,
        experts: &experts,
        output_grad: &output_grad,
        logits_grad: &mut logits_grad,
        experts_grad: &mut experts_grad,
    });
    let name = |what| format!("{what} of {shape:?}");
    outcome.push((name("gates"), bench.read(&open, rows * gates)));
    outcome.push((name("mixture"), bench.read(&output, rows * outputs)));
    outcome.push((name("gradient of gates"), bench.read(&logits_grad, rows * gates)));
    outcome.push((name("gradient of experts"), bench.read(&experts_grad, rows * inputs)));
}

fn columns<B: Backend>(bench: &Bench<'_, B>, shapes: &Shapes, random: &mut Random, outcome: &mut Outcome) {
    let backend = bench.0;
    let (rows, capacity) = (shapes.rows as usize, shapes.capacity as usize);
    let (wide, narrow) = (shapes.layer.0 + 3, shapes.layer.0);
    let from = bench.matrix(capacity, wide, &random.numbers(capacity * wide));
    let mut to = bench.matrix(capacity, narrow, &random.numbers(capacity * narrow));
    backend.run(ops::Add { rows, from: &from, to: &mut to });
    outcome.push(("add".to_owned(), bench.read(&to, capacity * narrow)));
    backend.run(ops::CopyColumns { rows, from: (&from, 2), to: (&mut to, narrow - 1), columns: 1 });
    outcome.push(("copy_columns".to_owned(), bench.read(&to, capacity * narrow)));
    // Rows after the first quarter, copied to rows after the first third.
    let (from, count) = (bench.matrix(capacity, narrow, &random.numbers(capacity * narrow)), rows - rows / 3);
    backend.run(ops::CopyRows { rows: count, from: (&from, rows / 4), to: (&mut to, rows / 3) });
    outcome.push(("copy_rows".to_owned(), bench.read(&to, capacity * narrow)));
    for keep in [1.0, 0.75, 1e-3] {
        let mut dropped = bench.matrix(capacity, wide, &vec![1.0; capacity * wide]);
        backend.run(ops::Dropout { rows: 7..7 + rows, keep, key: random.next(), matrix: &mut dropped });
        outcome.push((format!("dropout {keep}"), bench.read(&dropped, capacity * wide)));
    }
    backend.run(ops::Clear { rows, matrix: &mut to });
    outcome.push(("clear".to_owned(), bench.read(&to, capacity * narrow)));
}
