//! Losses and their gradients.

use millstream_backend::{Backend, Choice, InBatchInput, Loss, ops};

use super::{BCE, close, schema, three_rows, uploaded};

use crate::case::Bench;

test_on_each!(
    the_loss_is_a_weighted_mean,
    losses_of_one_logit_have_their_values,
    the_loss_of_classes_is_a_weighted_mean,
    a_row_competes_with_those_of_its_list,
    a_batch_of_no_weight_has_no_gradient_within_lists,
    logits_far_apart_do_not_overflow_within_lists,
    a_query_chooses_among_the_items_of_its_batch,
    a_batch_of_no_weight_has_no_gradient,
);

fn the_loss_is_a_weighted_mean<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    // Probabilities 1/2, 3/4 and 1/5.
    let logits = [0.0, 3.0_f64.ln(), 0.25_f64.ln()];
    let logits = bench.matrix(3, 1, &logits.map(|logit| logit as f32));
    let (mut gradient, mut sums) = (backend.matrix(3, 1), backend.matrix(1, 2));
    backend.run(ops::TaskLoss {
        total: None,
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
        total: None,
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
        total: None,
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

/// Labels 1, 0 and 1, with weights 1, 2 and 1.
fn losses_of_one_logit_have_their_values<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    let cases = [
        // Probabilities of the labels of 3/4, 1/5 and 1/2.
        (
            Loss::Focal { gamma: 2.0, positive: 0.25, negative: 0.75 },
            [3.0_f64.ln() as f32, 4.0_f64.ln() as f32, 0.0],
            [0.25 / 16.0 * (4.0_f64 / 3.0).ln(), 0.75 * 0.64 * 5.0_f64.ln(), 0.25 / 4.0 * 2.0_f64.ln()],
            [
                -0.25 / 16.0 * (1.5 * (4.0_f64 / 3.0).ln() + 0.25),
                0.75 * 0.64 * (0.4 * 5.0_f64.ln() + 0.8),
                -0.25 / 4.0 * (2.0_f64.ln() + 0.5),
            ],
        ),
        // Within delta, beyond it, and at it.
        (Loss::Huber { delta: 2.0 }, [1.5, -5.0, 3.0], [0.125, 8.0, 2.0], [0.5, -2.0, 2.0]),
        // Above the label, below it, and equal to it.
        (Loss::Quantile { quantile: 0.25 }, [3.0, -4.0, 1.0], [1.5, 1.0, 0.0], [0.75, -0.25, 0.0]),
        // Rates of e and 1 for the label 1, and one that would overflow for the label 0.
        (
            Loss::Poisson,
            [1.0, 50.0, 0.0],
            [2.0 * (1.0_f64.exp() - 2.0), 22.0 * 40.0_f64.exp(), 0.0],
            [2.0 * (1.0_f64.exp() - 1.0), 2.0 * 40.0_f64.exp(), 0.0],
        ),
    ];
    for (loss, logits, losses, slopes) in cases {
        let (mut gradient, mut sums) = (backend.matrix(3, 1), backend.matrix(1, 2));
        backend.run(ops::TaskLoss {
            total: None,
            task: &loss.into(),
            batch: &batch,
            rows: 0..3,
            logits: &bench.matrix(3, 1, &logits),
            logits_grad: &mut gradient,
            sums: &mut sums,
        });
        let weights = [1.0, 2.0, 1.0];
        close(&bench.read(&sums, 2), &[weights.iter().zip(losses).map(|(w, loss)| w * loss).sum(), 4.0]);
        let slopes: Vec<f64> = weights.iter().zip(slopes).map(|(w, slope)| w * slope / 4.0).collect();
        close(&bench.read(&gradient, 3), &slopes);
    }
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
        total: None,
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
        total: None,
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

/// A batch of these labels and weights; rows 0 and 2 form a list.
fn graded<B: Backend>(backend: &B, labels: [f32; 3], weights: [f32; 3]) -> B::Batch {
    let mut buffer = three_rows();
    buffer.as_mut().sections().labels.copy_from_slice(&labels);
    buffer.as_mut().sections().weights.expect("a weighted schema").copy_from_slice(&weights);
    let mut batch = backend.batch(&schema());
    backend.upload(buffer.as_ref(), &mut batch).expect("a batch of the schema");
    batch
}

/// The sums and the gradient of a loss of lists.
fn of_lists<B: Backend>(backend: &B, loss: Loss, batch: &B::Batch, logits: [f32; 3]) -> [Vec<f64>; 2] {
    let bench = Bench(backend);
    let (mut gradient, mut sums) = (bench.matrix(3, 1, &[9.0; 3]), bench.matrix(1, 2, &[1.0, 1.0]));
    backend.run(ops::TaskLoss {
        total: None,
        task: &millstream_backend::Task { weight: 2.0, ..loss.into() },
        batch,
        rows: 0..3,
        logits: &bench.matrix(3, 1, &logits),
        logits_grad: &mut gradient,
        sums: &mut sums,
    });
    [bench.read(&sums, 2), bench.read(&gradient, 3)]
}

const LISTWISE: Loss = Loss::Listwise { group: 0 };
const PAIRWISE: Loss = Loss::Pairwise { group: 0 };

fn a_row_competes_with_those_of_its_list<B: Backend>(backend: &B) {
    let batch = graded(backend, [3.0, 5.0, 1.0], [2.0, 1.0, 0.5]);
    let logits = [3.0_f64.ln() as f32, 7.0, 0.0];
    // Targets 6, 5 and 0.5; probabilities 3/4, 1 and 1/4.
    let [sums, gradient] = of_lists(backend, LISTWISE, &batch, logits);
    close(&sums, &[1.0 + 6.0 * (4.0_f64 / 3.0).ln() + 0.5 * 4.0_f64.ln(), 1.0 + 11.5]);
    let by_first = 2.0 * (0.75 * 6.5 - 6.0) / 11.5;
    close(&gradient, &[by_first, 0.0, -by_first]);
    // One pair, with the weight of its first row.
    let [sums, gradient] = of_lists(backend, PAIRWISE, &batch, logits);
    close(&sums, &[1.0 + 2.0 * (4.0_f64 / 3.0).ln(), 1.0 + 2.0]);
    close(&gradient, &[-2.0 * 0.25, 0.0, 2.0 * 0.25]);
}

fn a_batch_of_no_weight_has_no_gradient_within_lists<B: Backend>(backend: &B) {
    // Without weights; without targets, and with equal labels.
    for (labels, weights) in [([3.0, 5.0, 1.0], [0.0; 3]), ([0.0; 3], [1.0; 3])] {
        let batch = graded(backend, labels, weights);
        for loss in [LISTWISE, PAIRWISE] {
            let [sums, gradient] = of_lists(backend, loss, &batch, [1.0, 2.0, 3.0]);
            close(&sums, &[1.0, 1.0]);
            close(&gradient, &[0.0; 3]);
        }
    }
}

fn logits_far_apart_do_not_overflow_within_lists<B: Backend>(backend: &B) {
    let batch = graded(backend, [1.0, 1.0, 0.0], [1.0; 3]);
    for loss in [LISTWISE, PAIRWISE] {
        let weight = if loss == LISTWISE { 2.0 } else { 1.0 };
        let [sums, gradient] = of_lists(backend, loss.clone(), &batch, [-1e30, 0.0, 1e30]);
        close(&[sums[0] / 2e30, sums[1]], &[1.0, 1.0 + weight]);
        close(&gradient, &[-2.0 / weight, 0.0, 2.0 / weight]);
        let [sums, gradient] = of_lists(backend, loss, &batch, [1e30, 0.0, -1e30]);
        close(&sums, &[1.0, 1.0 + weight]);
        close(&gradient, &[0.0; 3]);
    }
}

/// Rows 0 and 2 have the same item, and row 1 has label 0.
fn a_query_chooses_among_the_items_of_its_batch<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    let items = [3.0_f64.ln() / 2.0, 0.0, 2.0_f64.ln() / 2.0];
    let (queries, items_matrix) =
        (bench.matrix(3, 1, &[1.0, 5.0, 2.0]), bench.matrix(3, 1, &items.map(|item| item as f32)));
    let mut work = backend.in_batch_work(3, 3, 1);
    let (mut query_grad, mut item_grad) = (backend.matrix(3, 1), backend.matrix(3, 1));
    let mut run = |choice, item_id| {
        let mut sums = bench.matrix(1, 2, &[1.0, 1.0]);
        let (queries, items) = (&queries, &items_matrix);
        let input =
            InBatchInput { batch: &batch, rows: 0..3, queries, items, temperature: 0.5, choice, item_id };
        backend.run(ops::InBatchLoss {
            input: &input,
            work: &mut work,
            query_grad: &mut query_grad,
            item_grad: &mut item_grad,
            sums: &mut sums,
        });
        [bench.read(&sums, 2), bench.read(&query_grad, 3), bench.read(&item_grad, 3)]
    };
    // Probabilities 3/4 and 4/5.
    let [sums, query_grad, item_grad] = run(Choice::Softmax, Some(0));
    close(&sums, &[1.0 + (5.0_f64 / 3.0).ln(), 3.0]);
    close(&query_grad, &[-items[0] / 4.0, 0.0, -items[2] / 5.0]);
    close(&item_grad, &[-0.25, 0.25 + 0.4, -0.4]);
    // Each is a negative of the other: probabilities 1/2 and 4/14.
    let [sums, query_grad, _] = run(Choice::Softmax, None);
    close(&sums, &[1.0 + 7.0_f64.ln(), 3.0]);
    close(&query_grad, &[-0.5 * items[0] + items[2] / 3.0, 0.0, (9.0 * items[0] - 10.0 * items[2]) / 14.0]);
    // The other candidate of rows 0 and 2 is row 1; scores differ by ln 3 and by 2 ln 2.
    let [sums, query_grad, item_grad] = run(Choice::Pairwise, Some(0));
    close(&sums, &[1.0 + (4.0_f64 / 3.0).ln() + 1.25_f64.ln(), 3.0]);
    close(&query_grad, &[-items[0] / 4.0, 0.0, -items[2] / 5.0]);
    close(&item_grad, &[-0.25, 0.25 + 0.4, -0.4]);
    // Both are: half of that, and of scores that differ by ln 3 - ln 2 and by 2 ln 3 - 2 ln 2.
    let [sums, ..] = run(Choice::Pairwise, None);
    let others = [4.0 / 3.0, 5.0 / 3.0, 1.25, 13.0 / 4.0].map(|x: f64| x.ln());
    close(&sums, &[1.0 + others.iter().sum::<f64>() / 2.0, 3.0]);
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
        total: None,
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
        total: None,
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
