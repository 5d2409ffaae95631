//! Normalization by row and column, on random values.

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
                if axis == Axis::Column && sum == GradientMode::Accumulate {
                    continue;
                }
                let mut gradient = backend.matrix(capacity, columns);
                backend.run(ops::CopyColumns {
                    rows,
                    from: (&output_grad, 0),
                    to: (&mut gradient, 0),
                    columns,
                });
                let (scale_grad, shift_grad) = (&mut scale_grad, &mut shift_grad);
                backend.run(ops::NormalizeBackward {
                    rows,
                    layer: &layer,
                    saved: &saved,
                    grad: &mut gradient,
                    mode: sum,
                    scale_grad,
                    shift_grad,
                });
                outcome.push((name("gradient of input"), bench.read(&gradient, rows * columns)));
                outcome.push((name("gradient of scale"), bench.read(scale_grad, columns)));
                outcome.push((name("gradient of shift"), bench.read(shift_grad, columns)));
            }
        }
    }
    let mut blended = matrix(1);
    backend.run(ops::Blend { share: 0.25, factor: 3.0, from: &scale, to: &mut blended });
    outcome.push(("blend".to_owned(), bench.read(&blended, columns)));
}
