//! The loss of a row with its gradient, the losses of lists, and the scores of logits.

use crate::ops::Loss;

/// The factor of the weight of a row with this label.
pub(super) fn weight_factor(loss: &Loss, label: f64) -> f64 {
    match loss {
        Loss::BinaryCrossEntropy { positive_weight, negative_weight, .. } => {
            label * positive_weight + (1.0 - label) * negative_weight
        }
        Loss::CrossEntropy { class_weights, .. } => class_weights[label as usize],
        _ => 1.0,
    }
}

/// The loss of a row, and its gradient with respect to each of the task's logits, with which `logits` begin.
pub(super) fn of_row(loss: &Loss, logits: &[f64], label: f64) -> (f64, Vec<f64>) {
    let logit = logits[0];
    let (value, slope) = match loss {
        Loss::BinaryCrossEntropy { smoothing, .. } => {
            let label = label * (1.0 - smoothing) + smoothing / 2.0;
            (softplus(logit) - logit * label, sigmoid(logit) - label)
        }
        Loss::Focal { gamma, positive, negative } => {
            let (of_one, slope_of_one) = focal(*gamma, logit);
            let (of_zero, slope_of_zero) = focal(*gamma, -logit);
            let (ones, zeros) = (label * positive, (1.0 - label) * negative);
            (ones * of_one + zeros * of_zero, ones * slope_of_one - zeros * slope_of_zero)
        }
        Loss::SquaredError => ((logit - label).powi(2), 2.0 * (logit - label)),
        Loss::Huber { delta } => {
            let distance = (logit - label).abs();
            match distance <= *delta {
                true => (distance.powi(2) / 2.0, logit - label),
                false => (delta * (distance - delta / 2.0), delta * (logit - label).signum()),
            }
        }
        Loss::Quantile { quantile } => {
            let above = label - logit;
            let slope = match above {
                0.0 => 0.0,
                _ if above > 0.0 => -quantile,
                _ => 1.0 - quantile,
            };
            (-slope * above, slope)
        }
        Loss::Poisson => {
            let bounded = logit.min(Loss::MAX_LOG_RATE);
            let (rate, beyond) = (bounded.exp(), logit - bounded);
            let log_of_label = if label > 0.0 { label.ln() } else { 0.0 };
            let value = label * (log_of_label - logit) - label + rate * (1.0 + beyond);
            (2.0 * value, 2.0 * (rate - label))
        }
        Loss::Listwise { .. } | Loss::Pairwise { .. } => panic!("a loss of lists has no loss of one row"),
        Loss::CrossEntropy { smoothing, class_weights } => {
            return cross_entropy(logits, label as usize, *smoothing, class_weights.len());
        }
    };
    (value, vec![slope])
}

/// A row of a batch, with its list.
pub(super) struct Listed {
    pub(super) logit: f64,
    pub(super) label: f64,
    pub(super) weight: f64,
    pub(super) list: u32,
}

/// The sums of weighted losses and of weights, and the gradient of the first with respect to each logit.
pub(super) fn of_lists(loss: &Loss, rows: &[Listed]) -> ([f64; 2], Vec<f64>) {
    let (mut sums, mut gradient) = ([0.0; 2], vec![0.0; rows.len()]);
    for (i, row) in rows.iter().enumerate() {
        let list = || (0..rows.len()).filter(|&j| rows[j].list == row.list);
        if let Loss::Listwise { .. } = loss {
            let logits: Vec<f64> = list().map(|j| rows[j].logit).collect();
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_of_sum = largest + logits.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
            let target = row.weight * row.label;
            sums = [sums[0] + target * (log_of_sum - row.logit), sums[1] + target];
            for (j, probability) in list().zip(softmax(&logits)) {
                gradient[j] += target * probability;
            }
            gradient[i] -= target;
            continue;
        }
        let below: Vec<usize> = list().filter(|&j| rows[j].label < row.label).collect();
        if below.is_empty() {
            continue;
        }
        let share = row.weight / below.len() as f64;
        sums[1] += row.weight;
        for j in below {
            let distance = rows[j].logit - row.logit;
            sums[0] += share * softplus(distance);
            gradient[j] += share * sigmoid(distance);
            gradient[i] -= share * sigmoid(distance);
        }
    }
    (sums, gradient)
}

/// The focal loss of a row whose label has this logit, and its derivative with respect to it.
fn focal(gamma: f64, logit: f64) -> (f64, f64) {
    let (of_label, of_other) = (sigmoid(logit), sigmoid(-logit));
    let (cross_entropy, focus) = (softplus(-logit), of_other.powf(gamma));
    (focus * cross_entropy, -focus * (gamma * of_label * cross_entropy + of_other))
}

/// `1 / (1 + e^-x)`
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `log(1 + e^x)`
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The softmax, with the maximum subtracted first.
pub(super) fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|x| (x - largest).exp()).sum();
    logits.iter().map(|x| (x - largest).exp() / sum).collect()
}

/// The loss of a row of class `class` among `classes`, and its gradient with respect to each logit.
fn cross_entropy(logits: &[f64], class: usize, smoothing: f64, classes: usize) -> (f64, Vec<f64>) {
    assert_eq!(logits.len(), classes, "one logit per class");
    let target = |c: usize| smoothing / classes as f64 + if c == class { 1.0 - smoothing } else { 0.0 };
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_of_sum = largest + logits.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
    let loss = (0..classes).map(|c| target(c) * (log_of_sum - logits[c])).sum();
    let logits_grad = softmax(logits).into_iter().enumerate().map(|(c, probability)| probability - target(c));
    (loss, logits_grad.collect())
}
