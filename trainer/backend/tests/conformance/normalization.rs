//! Normalisation by row and column, on random numbers.

use millstream_backend::{Axis, Backend, GradientMode, Normalization, SavedNormalization, ops};

use crate::case::{Bench, Outcome, Random, Shapes};

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
    let (input, scale, shift, by_output, given) =
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
            // A large epsilon, so that a line of one number has no slope to speak of.
            let layer = Normalization { axis, scale: &scale, shift: &shift, epsilon: 0.125, is_rectified };
            let name = |what| format!("normalisation by {axis:?}, {what}, rectified: {is_rectified}");
            let mut output = backend.matrix(capacity, columns);
            backend.run(ops::NormalizeForward {
                rows,
                layer: &layer,
                moments: (&mean, &variance),
                input: &input,
                output: &mut output,
            });
            outcome.push((name("forward"), bench.read(&output, rows * columns)));
            // What is masked is given, not computed, so that rounding cannot put it on the other side of 0.
            let saved =
                SavedNormalization { input: &input, mean: &mean, variance: &variance, output: &given };
            let (mut by_scale, mut by_shift) = (backend.matrix(1, columns), backend.matrix(1, columns));
            for sum in [GradientMode::Write, GradientMode::Accumulate] {
                if axis == Axis::Column && sum == GradientMode::Accumulate {
                    continue;
                }
                let mut gradient = backend.matrix(capacity, columns);
                backend.run(ops::CopyColumns {
                    rows,
                    from: (&by_output, 0),
                    to: (&mut gradient, 0),
                    columns,
                });
                let (by_scale, by_shift) = (&mut by_scale, &mut by_shift);
                backend.run(ops::NormalizeBackward {
                    rows,
                    layer: &layer,
                    saved: &saved,
                    grad: &mut gradient,
                    mode: sum,
                    scale_grad: by_scale,
                    shift_grad: by_shift,
                });
                outcome.push((name("by input"), bench.read(&gradient, rows * columns)));
                outcome.push((name("by scale"), bench.read(by_scale, columns)));
                outcome.push((name("by shift"), bench.read(by_shift, columns)));
            }
        }
    }
    let mut blended = matrix(1);
    backend.run(ops::Blend { share: 0.25, factor: 3.0, from: &scale, to: &mut blended });
    outcome.push(("blend".to_owned(), bench.read(&blended, columns)));
}
