//! The losses in the `[training]` of a job file: one for all labels, and those of single labels.

use millstream_trainer::spec::{LossSpec, TaskSpec};

use super::error::suggestion;
use super::label::Labels;
use super::section::Section;

/// Rejects the settings of label losses in a two-tower model, whose loss spans whole batches.
pub(super) fn refuse(training: &Section<'_>) {
    let loss = training.entries().find(|(key, ..)| *key == "loss");
    let loss = loss.and_then(|(.., node)| training.as_section(node, "[training.loss]"));
    for (key, at, _) in loss.iter().flat_map(Section::entries) {
        let message =
            format!("`{key}` applies to losses of labels; a two-tower model's loss is in-batch softmax");
        training.error_at(at, message);
    }
    if training.has("micro_batch_size") {
        training
            .error("micro_batch_size", "a two-tower model needs whole batches: remove `micro_batch_size`");
    }
}

/// Reads the loss of each label that [`read_of_labels`] finds no other loss of.
pub(super) fn read(mut loss: Section<'_>, labels: &Labels) -> LossSpec {
    let spec = read_kind(&mut loss, labels.classes());
    loss.finish();
    spec
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    BinaryCrossEntropy,
    Focal,
    SquaredError,
    Huber,
    Quantile,
    Poisson,
    CrossEntropy,
}

const KINDS: [(&str, Kind); 7] = [
    ("bce", Kind::BinaryCrossEntropy),
    ("focal", Kind::Focal),
    ("mse", Kind::SquaredError),
    ("huber", Kind::Huber),
    ("quantile", Kind::Quantile),
    ("poisson", Kind::Poisson),
    ("cross_entropy", Kind::CrossEntropy),
];

/// The keys of losses, each with the losses that have it.
const KEYS: [(&str, &[Kind]); 8] = [
    ("label_smoothing", &[Kind::BinaryCrossEntropy, Kind::CrossEntropy]),
    ("positive_weight", &[Kind::BinaryCrossEntropy]),
    ("negative_weight", &[Kind::BinaryCrossEntropy]),
    ("class_weights", &[Kind::CrossEntropy]),
    ("gamma", &[Kind::Focal]),
    ("alpha", &[Kind::Focal]),
    ("delta", &[Kind::Huber]),
    ("quantile", &[Kind::Quantile]),
];

/// Reads the loss of a label with these `classes`, if any.
fn read_kind(loss: &mut Section<'_>, classes: Option<u32>) -> LossSpec {
    let usual = if classes.is_some() { Kind::CrossEntropy } else { Kind::BinaryCrossEntropy };
    let kind = loss.choice("kind", &KINDS).unwrap_or(usual);
    if kind != Kind::CrossEntropy && classes.is_some() {
        loss.error("kind", "a label of `classes` has the loss \"cross_entropy\"");
    }
    for (key, kinds) in KEYS.iter().filter(|(_, kinds)| !kinds.contains(&kind)) {
        if loss.node(key).is_some() {
            let names = KINDS.iter().filter(|(_, kind)| kinds.contains(kind));
            let names: Vec<_> = names.map(|(name, _)| format!("\"{name}\"")).collect();
            let losses = if names.len() > 1 { "losses" } else { "loss" };
            loss.error(key, format!("`{key}` is for the {losses} {}", names.join(" and ")));
        }
    }
    match kind {
        Kind::BinaryCrossEntropy => LossSpec::BinaryCrossEntropy {
            label_smoothing: loss.fraction("label_smoothing").unwrap_or(0.0),
            positive_weight: loss.constant("positive_weight", true).unwrap_or(1.0),
            negative_weight: loss.constant("negative_weight", true).unwrap_or(1.0),
        },
        Kind::Focal => LossSpec::Focal {
            gamma: loss.constant("gamma", false).unwrap_or(2.0),
            alpha: loss.node("alpha").is_some().then(|| read_share(loss, "alpha")),
        },
        Kind::SquaredError => LossSpec::SquaredError,
        Kind::Huber => LossSpec::Huber { delta: loss.constant("delta", true).unwrap_or(1.0) },
        Kind::Poisson => LossSpec::Poisson,
        Kind::Quantile => {
            loss.required("quantile", "the share of labels below the prediction, such as 0.9");
            LossSpec::Quantile { quantile: read_share(loss, "quantile") }
        }
        Kind::CrossEntropy => {
            let Some(classes) = classes else {
                let message = "the loss \"cross_entropy\" needs the `classes` of one [label]";
                loss.error("kind", message);
                // The remaining keys depend on the loss, so they are not reported as unknown.
                let _ = KEYS.map(|(key, _)| loss.node(key).is_some());
                return LossSpec::default();
            };
            LossSpec::CrossEntropy {
                classes,
                label_smoothing: loss.fraction("label_smoothing").unwrap_or(0.0),
                class_weights: read_class_weights(loss, classes),
            }
        }
    }
}

/// A number above 0 and below 1.
fn read_share(loss: &mut Section<'_>, key: &'static str) -> f32 {
    let share = loss.constant(key, true).unwrap_or(0.5);
    if share >= 1.0 {
        loss.error(key, format!("expected a number above 0 and below 1, found {share}"));
    }
    share
}

/// Reads the weight of each class's rows; empty for equal weights.
fn read_class_weights(loss: &mut Section<'_>, classes: u32) -> Vec<f32> {
    let Some(node) = loss.node("class_weights") else { return Vec::new() };
    let Some(items) = loss.as_list(node, "numbers") else { return Vec::new() };
    if items.len() != classes as usize {
        let message = format!("expected a weight for each of {classes} classes, found {}", items.len());
        loss.error_at(node.at, message);
    }
    items.iter().filter_map(|item| loss.as_constant(item, true)).collect()
}

/// Reads the losses of several labels, with `usual` as the default; empty for one unnamed label.
pub(super) fn read_of_labels(training: &mut Section<'_>, usual: &LossSpec, labels: &Labels) -> Vec<TaskSpec> {
    if !labels.are_named {
        if training.node("losses").is_some() {
            training
                .error("losses", "`losses` is for several [labels]; for one [label], use [training.loss]");
        }
        return Vec::new();
    }
    let names = labels.names();
    let mut tasks: Vec<TaskSpec> = names.iter().map(|_| usual.clone().into()).collect();
    let losses = training.section("losses", "[training.losses]");
    for (name, at, node) in losses.entries() {
        let Some(place) = names.iter().position(|label| *label == name) else {
            let hint = suggestion(name, names.iter().copied());
            losses.error_at(at, format!("[labels] has no label `{name}`{hint}"));
            continue;
        };
        let Some(mut loss) = losses.as_section(node, format!("[training.losses.{name}]")) else { continue };
        let weight = loss.constant("weight", true).unwrap_or(1.0);
        tasks[place] = TaskSpec { loss: read_kind(&mut loss, None), weight };
        loss.finish();
    }
    tasks
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use millstream_pipeline::spec::LabelNumbers;
    use millstream_trainer::metrics::Metric;
    use millstream_trainer::spec::LossSpec;

    use super::super::Job;

    fn job(loss: &str, more: &str) -> Result<Job, String> {
        let text = format!(
            "name = \"spent\"\ndata = {{ train = [\"t.parquet\"], eval = [\"e.parquet\"] }}\n\
             features = {{ age = {{ kind = \"numeric\" }} }}\nmodel = {{ kind = \"linear\", features = [\"age\"] }}\n\
             label = {{ column = \"y\" }}\ntraining.loss = {{ {loss} }}\n{more}"
        );
        Job::parse(&text, Path::new("job.toml"), &[]).map(|(job, _)| job).map_err(|error| error.to_string())
    }

    #[test]
    fn losses_are_read_with_their_labels_and_metrics() {
        let cases = [
            ("kind = \"huber\"", LossSpec::Huber { delta: 1.0 }, LabelNumbers::Any, Metric::HuberLoss),
            (
                "kind = \"huber\", delta = 2.5",
                LossSpec::Huber { delta: 2.5 },
                LabelNumbers::Any,
                Metric::HuberLoss,
            ),
            (
                "kind = \"quantile\", quantile = 0.875",
                LossSpec::Quantile { quantile: 0.875 },
                LabelNumbers::Any,
                Metric::PinballLoss,
            ),
            ("kind = \"poisson\"", LossSpec::Poisson, LabelNumbers::NotNegative, Metric::PoissonDeviance),
            (
                "kind = \"focal\"",
                LossSpec::Focal { gamma: 2.0, alpha: None },
                LabelNumbers::Probabilities,
                Metric::Auc,
            ),
            (
                "kind = \"focal\", gamma = 0.5, alpha = 0.25",
                LossSpec::Focal { gamma: 0.5, alpha: Some(0.25) },
                LabelNumbers::Probabilities,
                Metric::Auc,
            ),
        ];
        for (text, loss, numbers, metric) in cases {
            let job = job(text, "checkpoint.keep_best = true").unwrap();
            assert_eq!((&job.training.loss, job.label.first.numbers), (&loss, numbers), "{text}");
            assert_eq!(job.checkpoint.best.map(|best| best.metric), Some(metric), "{text}");
            assert!(text.starts_with(&format!("kind = \"{}\"", loss.kind())));
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_position() {
        let best = |metric: &str| format!("checkpoint = {{ keep_best = true, best_metric = \"{metric}\" }}");
        let cases = [
            (
                "kind = \"huber\", delta = 0",
                String::new(),
                ":6:43: error: expected a number above 0, found 0",
            ),
            ("kind = \"mse\", delta = 1", String::new(), ":6:41: error: `delta` is for the loss \"huber\""),
            (
                "kind = \"mse\"",
                best("huber_loss"),
                "\"huber_loss\" applies to the loss \"huber\", but the label has another loss",
            ),
            (
                "kind = \"huber\"",
                best("auc"),
                "\"auc\" applies to probabilities, but the label is predicted as a number",
            ),
            (
                "kind = \"quantile\"",
                String::new(),
                "[training.loss] needs `quantile`: the share of labels below the prediction, such as 0.9",
            ),
            (
                "kind = \"quantile\", quantile = 1",
                String::new(),
                "expected a number above 0 and below 1, found 1",
            ),
            (
                "kind = \"quantile\", quantile = 0.5",
                best("coverage"),
                "\"coverage\" compares no evaluations: it is best at the quantile; use \"pinball_loss\"",
            ),
            (
                "kind = \"quantile\", quantile = 0.5",
                best("rmse"),
                "\"rmse\" applies to other predictions, but the label is predicted as a quantile",
            ),
            (
                "kind = \"mse\"",
                best("poisson_deviance"),
                "\"poisson_deviance\" applies to the loss \"poisson\", but the label has another loss",
            ),
            ("kind = \"focal\", gamma = -1", String::new(), "expected a number of at least 0, found -1"),
            (
                "kind = \"focal\", alpha = 1.5",
                String::new(),
                "expected a number above 0 and below 1, found 1.5",
            ),
            (
                "kind = \"focal\", positive_weight = 2",
                String::new(),
                "`positive_weight` is for the loss \"bce\"",
            ),
        ];
        for (loss, more, expected) in cases {
            let error = job(loss, &more).unwrap_err();
            assert!(error.contains(expected), "{loss} {more}: {error}");
        }
    }
}
