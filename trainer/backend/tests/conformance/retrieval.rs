//! Unit vectors, and the losses of queries that choose among the items of a batch, on random values.

use std::ops::Range;

use millstream_backend::{Backend, Choice, InBatchInput, ops};

use crate::case::{Bench, Outcome, Random, Shapes};

/// Runs the operations on vectors of several widths; each of the batch's id features identifies items in turn.
pub(crate) fn retrieval<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    batch: &B::Batch,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    vectors(bench, shapes, random, outcome);
    for (number, width) in [1, 5, 16, 33].into_iter().enumerate() {
        let item_id = number.checked_sub(1).filter(|&feature| feature < shapes.single.len());
        for choice in [Choice::Softmax, Choice::Pairwise] {
            choose(bench, shapes, (batch, width, item_id, choice), random, outcome);
        }
    }
}

fn vectors<B: Backend>(bench: &Bench<'_, B>, shapes: &Shapes, random: &mut Random, outcome: &mut Outcome) {
    let backend = bench.0;
    let (rows, capacity, columns) = (shapes.rows as usize, shapes.capacity as usize, shapes.layer.1);
    let mut numbers = random.numbers(capacity * columns);
    // The relative rounding error of a gradient along a vector grows as the vector gets shorter.
    numbers.iter_mut().step_by(columns).for_each(|first| *first += 0.5_f32.copysign(*first));
    // A zero vector.
    numbers[..columns].fill(0.0);
    let input = bench.matrix(capacity, columns, &numbers);
    let mut output = backend.matrix(capacity, columns);
    backend.run(ops::UnitForward { rows, input: &input, output: &mut output });
    outcome.push(("unit".to_owned(), bench.read(&output, rows * columns)));
    let mut gradient = random.numbers(capacity * columns);
    gradient[..columns].iter_mut().for_each(|g| *g *= 1e-6);
    let mut gradient = bench.matrix(capacity, columns, &gradient);
    backend.run(ops::UnitBackward { rows, input: &input, grad: &mut gradient });
    outcome.push(("unit gradient".to_owned(), bench.read(&gradient, rows * columns)));
    let mut products = backend.matrix(capacity, 1);
    backend.run(ops::RowProducts { rows, factor: 2.5, left: &input, right: &output, out: &mut products });
    outcome.push(("row_products".to_owned(), bench.read(&products, rows)));
}

fn choose<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    (batch, width, item_id, choice): (&B::Batch, usize, Option<usize>, Choice),
    random: &mut Random,
    outcome: &mut Outcome,
) {
    let backend = bench.0;
    let (rows, capacity) = (shapes.rows as usize, shapes.capacity as usize);
    let mut matrix = || bench.matrix(capacity, width, &random.numbers(capacity * width));
    let (queries, items, mut query_grad, mut item_grad) = (matrix(), matrix(), matrix(), matrix());
    let mut sums = bench.matrix(1, 2, &[2.0, 0.5]);
    let mut work = backend.in_batch_work(capacity, capacity, width);
    for temperature in [1.0, 0.0625] {
        let whole = 0..rows;
        let (queries, items) = (&queries, &items);
        let input = InBatchInput { batch, rows: whole, queries, items, temperature, choice, item_id };
        backend.run(ops::InBatchLoss {
            input: &input,
            work: &mut work,
            query_grad: &mut query_grad,
            item_grad: &mut item_grad,
            sums: &mut sums,
        });
        let name = |what| format!("in-batch {choice:?} of {width}, {item_id:?}, {temperature}: {what}");
        // Gradients are those of a mean; scale them to the size of a row's.
        let share =
            |gradient: Vec<f64>| gradient.into_iter().map(|g| g * rows as f64 * temperature).collect();
        outcome.push((name("gradient of queries"), share(bench.read(&query_grad, rows * width))));
        outcome.push((name("gradient of items"), share(bench.read(&item_grad, rows * width))));
        outcome.push((name("sums"), bench.read(&sums, 2)));
    }
    let numbers = random.numbers(capacity * width);
    let of_rows = |rows: &Range<usize>| bench.matrix(capacity, width, &numbers[rows.start * width..]);
    for range in [0..0, rows / 3..rows / 3 + 1, rows / 3..rows - rows / 4, rows..rows] {
        let range = range.start.min(rows)..range.end.min(rows);
        let (count, queries) = (range.len(), of_rows(&range));
        let mut work = backend.in_batch_work(count, rows, width);
        let name = |what| format!("in-batch {choice:?} of {width}, {item_id:?}, rows {range:?}: {what}");
        let items = &items;
        let input = InBatchInput {
            batch,
            rows: range.clone(),
            queries: &queries,
            items,
            temperature: 0.5,
            choice,
            item_id,
        };
        backend.run(ops::InBatchLoss {
            input: &input,
            work: &mut work,
            query_grad: &mut query_grad,
            item_grad: &mut item_grad,
            sums: &mut sums,
        });
        let share = |gradient: Vec<f64>| gradient.into_iter().map(|g| g * rows as f64).collect();
        outcome.push((name("gradient of queries"), share(bench.read(&query_grad, count * width))));
        outcome.push((name("gradient of items"), share(bench.read(&item_grad, rows * width))));
        outcome.push((name("sums"), bench.read(&sums, 2)));
    }
}
