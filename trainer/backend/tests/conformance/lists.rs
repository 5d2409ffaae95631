//! Losses that compare the rows of lists, on random values.

use millstream_backend::{Backend, Loss, Task, ops};

use crate::case::{Bench, Outcome, Random, Shapes};

/// Runs both losses with each of the batch's id features as the lists, on grades from 0 to 3.
pub(crate) fn losses_of_lists<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    if shapes.single.is_empty() {
        return;
    }
    let backend = bench.0;
    let (rows, capacity) = (shapes.rows as usize, shapes.capacity as usize);
    let mut buffer = shapes.batch(random);
    buffer.as_mut().sections().labels.fill_with(|| random.below(4) as f32);
    let mut batch = backend.batch(&shapes.schema());
    backend.upload(buffer.as_ref(), &mut batch).expect("a batch of the schema");
    let labels = shapes.schema().label_count();
    let mut logits: Vec<f32> = (0..capacity * labels).map(|_| random.number() * 8.0).collect();
    for (place, extreme) in [1e4, -1e4, 88.0, -88.0, 0.0, 0.0].into_iter().enumerate() {
        let at = random.below(logits.len());
        logits[if place % 2 == 0 { at } else { 0 }] = extreme;
    }
    let logits = bench.matrix(capacity, labels, &logits);
    for group in 0..shapes.single.len() {
        for loss in [Loss::Listwise { group }, Loss::Pairwise { group }] {
            let name = format!("{loss:?}");
            let (mut gradient, mut sums) = (backend.matrix(capacity, labels), backend.matrix(labels, 2));
            for label in 0..labels {
                let task = Task { loss: loss.clone(), label, weight: 1.0 - 0.75 * label as f64 };
                // The second label as that of a part of a larger batch.
                let total = (label == 1).then_some(1.5 * rows as f64);
                backend.run(ops::TaskLoss {
                    total,
                    task: &task,
                    batch: &batch,
                    rows: 0..rows,
                    logits: &logits,
                    logits_grad: &mut gradient,
                    sums: &mut sums,
                });
            }
            // Gradients are those of a mean; scale them to the size of a row's.
            let gradient = bench.read(&gradient, rows * labels).into_iter().map(|g| g * rows as f64);
            outcome.push((format!("gradient of {name}"), gradient.collect()));
            outcome.push((format!("sums of {name}"), bench.read(&sums, 2 * labels)));
        }
    }
}
