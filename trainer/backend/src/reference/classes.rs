//! Classification: the softmax over classes, and the cross-entropy loss.

/// The softmax, with the maximum subtracted first.
pub(super) fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|x| (x - largest).exp()).sum();
    logits.iter().map(|x| (x - largest).exp() / sum).collect()
}

/// The loss of a row of class `class` among `classes`, and its gradient with respect to each logit.
pub(super) fn cross_entropy(logits: &[f64], class: usize, smoothing: f64, classes: usize) -> (f64, Vec<f64>) {
    assert_eq!(logits.len(), classes, "one logit per class");
    let target = |c: usize| smoothing / classes as f64 + if c == class { 1.0 - smoothing } else { 0.0 };
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_of_sum = largest + logits.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
    let loss = (0..classes).map(|c| target(c) * (log_of_sum - logits[c])).sum();
    let logits_grad = softmax(logits).into_iter().enumerate().map(|(c, probability)| probability - target(c));
    (loss, logits_grad.collect())
}
