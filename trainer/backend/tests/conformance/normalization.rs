//! Normalization by row and column, on random values.

use millstream_backend::{
    Axis, Backend, ColumnSums, GradientMode, Normalization, Reference, SavedNormalization, ops,
};

use crate::case::{Bench, Outcome, Random, Shapes, cpus, cuda};

/// Runs the operations on matrices as wide as the shapes' layer.
pub(crate) fn normalization<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    let backend = bench.0;
    let (rows, capacity, columns) = (shapes.rows as usize, shapes.capacity as usize, shapes.layer.1);
    let mut matrix = |rows| bench.matrix(rows, columns, &random.numbers(rows * columns));
    let (input, scale, shift, output_grad, given) =
        (matrix(capacity), matrix(1), matrix(1), matrix(capacity), matrix(capacity));
    for axis in [Axis::Row, Axis::Column] {
        let lines = match axis {
            Axis::Row => (capacity, 1),
            Axis::Column => (1, columns),
        };
        let count = if axis == Axis::Row { rows } else { columns };
        let (mut mean, mut variance) = (backend.matrix(lines.0, lines.1), backend.matrix(lines.0, lines.1));
        backend.run(ops::Moments { rows, axis, input: &input, mean: &mut mean, variance: &mut variance });
        outcome.push((format!("mean by {axis:?}"), bench.read(&mean, count)));
        outcome.push((format!("variance by {axis:?}"), bench.read(&variance, count)));
        for is_rectified in [false, true] {
            // A large epsilon, so that lines of one element have small gradients.
            let layer = Normalization { axis, scale: &scale, shift: &shift, epsilon: 0.125, is_rectified };
            let name = |what| format!("normalization by {axis:?}, {what}, rectified: {is_rectified}");
            let mut output = backend.matrix(capacity, columns);
            backend.run(ops::NormalizeForward {
                rows,
                layer: &layer,
                moments: (&mean, &variance),
                input: &input,
                output: &mut output,
            });
            outcome.push((name("forward"), bench.read(&output, rows * columns)));
            // The mask is given rather than computed, so that rounding cannot change it.
            let saved =
                SavedNormalization { input: &input, mean: &mean, variance: &variance, output: &given };
            let (mut scale_grad, mut shift_grad) = (backend.matrix(1, columns), backend.matrix(1, columns));
            for sum in [GradientMode::Write, GradientMode::Accumulate] {
                let mut gradient = backend.matrix(capacity, columns);
                backend.run(ops::CopyColumns {
                    rows,
                    from: (&output_grad, 0),
                    to: (&mut gradient, 0),
                    columns,
                });
                let (scale_grad, shift_grad) = (&mut scale_grad, &mut shift_grad);
                backend.run(ops::NormalizeParameters {
                    rows,
                    layer: &layer,
                    saved: &saved,
                    grad: &gradient,
                    mode: sum,
                    scale_grad,
                    shift_grad,
                });
                outcome.push((name("gradient of scale"), bench.read(scale_grad, columns)));
                outcome.push((name("gradient of shift"), bench.read(shift_grad, columns)));
                // Accumulated sums are those of twice the rows.
                let all = if sum == GradientMode::Accumulate { 2 * rows } else { rows };
                let sums = ColumnSums { rows: all, scale: scale_grad, shift: shift_grad };
                let (grad, columns_of) = (&mut gradient, (axis == Axis::Column).then_some(sums));
                backend.run(ops::NormalizeBackward {
                    rows,
                    layer: &layer,
                    saved: &saved,
                    grad,
                    columns: columns_of,
                });
                outcome.push((name("gradient of input"), bench.read(&gradient, rows * columns)));
            }
        }
    }
    merge(bench, (rows, columns), random, outcome);
    let mut blended = bench.matrix(1, columns, &random.numbers(columns));
    backend.run(ops::Blend { share: 0.25, factor: 3.0, from: &scale, to: &mut blended });
    outcome.push(("blend".to_owned(), bench.read(&blended, columns)));
}

/// Merges random moments of parts; those of a part without rows are NaN.
fn merge<B: Backend>(
    bench: &Bench<'_, B>,
    (rows, columns): (usize, usize),
    random: &mut Random,
    outcome: &mut Outcome,
) {
    // Moments of no rows are not merged.
    let rows = rows.max(1);
    for part in [1, rows.div_ceil(3), rows, rows + 5] {
        let parts = rows.div_ceil(part);
        let mut numbers = random.numbers(2 * parts * columns);
        numbers.chunks_mut(columns).skip(1).step_by(2).flatten().for_each(|variance| *variance += 1.0);
        numbers.resize(numbers.len() + 2 * columns, f32::NAN);
        let moments = bench.matrix(2 * (parts + 1), columns, &numbers);
        let (mut mean, mut variance) = (bench.0.matrix(1, columns), bench.0.matrix(1, columns));
        let merged = (&mut mean, &mut variance);
        bench.0.run(ops::MergeMoments { rows, part, moments: &moments, mean: merged.0, variance: merged.1 });
        outcome.push((format!("mean of parts of {part}"), bench.read(&mean, columns)));
        outcome.push((format!("variance of parts of {part}"), bench.read(&variance, columns)));
    }
}

#[test]
fn merged_moments_are_those_of_all_rows() {
    merges(&Reference);
    cpus(2).iter().for_each(merges);
    merges(&cuda());
}

fn merges<B: Backend>(backend: &B) {
    const ROWS: usize = 37;
    const COLUMNS: usize = 5;
    let bench = Bench(backend);
    let mut numbers = Random(3).numbers(ROWS * COLUMNS);
    // Columns whose mean is several times their deviation.
    numbers.iter_mut().enumerate().for_each(|(place, x)| *x += (place % COLUMNS) as f32 * 2.0);
    let all = bench.matrix(ROWS, COLUMNS, &numbers);
    let read = |moments: [B::Matrix; 2]| moments.map(|moments| bench.read(&moments, COLUMNS));
    let moments_of = |input: &B::Matrix, rows| {
        let [mut mean, mut variance] = [(); 2].map(|()| backend.matrix(1, COLUMNS));
        let (axis, to) = (Axis::Column, (&mut mean, &mut variance));
        backend.run(ops::Moments { rows, axis, input, mean: to.0, variance: to.1 });
        [mean, variance]
    };
    let expected = read(moments_of(&all, ROWS));
    for part in [1, 4, 9, 36, 37, 100] {
        let parts = ROWS.div_ceil(part);
        let mut moments = bench.matrix(2 * parts + 2, COLUMNS, &vec![f32::NAN; (2 * parts + 2) * COLUMNS]);
        for number in 0..parts {
            let (first, mut rows) = (number * part, backend.matrix(part, COLUMNS));
            let count = part.min(ROWS - first);
            backend.run(ops::CopyRows { rows: count, from: (&all, first), to: (&mut rows, 0) });
            for (which, of_part) in moments_of(&rows, count).iter().enumerate() {
                let to = (&mut moments, 2 * number + which);
                backend.run(ops::CopyRows { rows: 1, from: (of_part, 0), to });
            }
        }
        let [mut mean, mut variance] = [(); 2].map(|()| backend.matrix(1, COLUMNS));
        let to = (&mut mean, &mut variance);
        backend.run(ops::MergeMoments { rows: ROWS, part, moments: &moments, mean: to.0, variance: to.1 });
        let found = read([mean, variance]);
        if parts == 1 {
            assert_eq!(found, expected, "one part");
        }
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((found - expected).abs() < 1e-5, "parts of {part}: {found}, not {expected}");
        }
    }
}
