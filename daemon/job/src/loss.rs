//! The losses in the `[training]` of a job file: one for all labels, and those of single labels.

use millstream_document::problems::suggestion;
use millstream_document::section::Section;
use millstream_trainer::spec::{LossSpec, TaskSpec};

use super::groups::Groups;
use super::label::Labels;

/// Rejects the settings of label losses in a two-tower model, whose loss spans whole batches.
pub(super) fn refuse(training: &Section<'_>) {
    let loss = training.entries().find(|(key, ..)| *key == "loss");
    let loss = loss.and_then(|(.., node)| training.as_section(node, "[training.loss]"));
    for (key, at, _) in loss.iter().flat_map(Section::entries) {
        let message =
            format!("`{key}` applies to losses of labels; a two-tower model's loss is `loss` in [model]");
        training.error_at(at, message);
    }
    if training.has("micro_batch_size") {
        training
            .error("micro_batch_size", "a two-tower model needs whole batches: remove `micro_batch_size`");
    }
}

/// Reads the loss of each label that [`read_of_labels`] finds no other loss of.
pub(super) fn read(mut loss: Section<'_>, labels: &Labels, groups: Groups<'_>) -> LossSpec {
    let spec = read_kind(&mut loss, labels, groups);
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
    Listwise,
    Pairwise,
}

const KINDS: [(&str, Kind); 9] = [
    ("bce", Kind::BinaryCrossEntropy),
    ("focal", Kind::Focal),
    ("mse", Kind::SquaredError),
    ("huber", Kind::Huber),
    ("quantile", Kind::Quantile),
    ("poisson", Kind::Poisson),
    ("cross_entropy", Kind::CrossEntropy),
    ("listwise", Kind::Listwise),
    ("pairwise", Kind::Pairwise),
];

/// The keys of losses, each with the losses that have it.
const KEYS: [(&str, &[Kind]); 9] = [
    ("label_smoothing", &[Kind::BinaryCrossEntropy, Kind::CrossEntropy]),
    ("positive_weight", &[Kind::BinaryCrossEntropy]),
    ("negative_weight", &[Kind::BinaryCrossEntropy]),
    ("class_weights", &[Kind::CrossEntropy]),
    ("gamma", &[Kind::Focal]),
    ("alpha", &[Kind::Focal]),
    ("delta", &[Kind::Huber]),
    ("quantile", &[Kind::Quantile]),
    ("group", &[Kind::Listwise, Kind::Pairwise]),
];

/// Reads the loss of one of these `labels`.
fn read_kind(loss: &mut Section<'_>, labels: &Labels, groups: Groups<'_>) -> LossSpec {
    let classes = labels.classes();
    let usual = if classes.is_some() { Kind::CrossEntropy } else { Kind::BinaryCrossEntropy };
    let kind = loss.choice("kind", &KINDS).unwrap_or(usual);
    if kind != Kind::CrossEntropy && classes.is_some() {
        loss.error("kind", "a label of `classes` has the loss \"cross_entropy\"");
    }
    if matches!(kind, Kind::Listwise | Kind::Pairwise) && labels.are_named {
        loss.error("kind", "a loss that compares the rows of a list is for one [label], not for [labels]");
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
        Kind::Listwise => LossSpec::Listwise { group: read_lists(loss, groups) },
        Kind::Pairwise => LossSpec::Pairwise { group: read_lists(loss, groups) },
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

/// The feature that identifies lists.
fn read_lists(loss: &mut Section<'_>, groups: Groups<'_>) -> String {
    let text = loss.required_text("group", "the feature whose ids identify lists, such as a query");
    text.map_or_else(String::new, |text| groups.read(loss, text))
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
pub(super) fn read_of_labels(
    training: &mut Section<'_>,
    usual: &LossSpec,
    labels: &Labels,
    groups: Groups<'_>,
) -> Vec<TaskSpec> {
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
        tasks[place] = TaskSpec { loss: read_kind(&mut loss, labels, groups), weight };
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
             features.age = {{ kind = \"numeric\" }}\nmodel = {{ kind = \"linear\", features = [\"age\"] }}\n\
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

    const QUERY: &str = "features.query = { kind = \"identity\", buckets = 9 }\n";

    #[test]
    fn losses_of_lists_group_rows_for_the_order_and_the_evaluation() {
        let of = |group: &str| {
            let group = group.to_owned();
            [
                ("listwise", LossSpec::Listwise { group: group.clone() }),
                ("pairwise", LossSpec::Pairwise { group }),
            ]
        };
        for (kind, expected) in of("query") {
            let loss = format!("kind = \"{kind}\", group = \"query\"");
            let read = job(&loss, &format!("{QUERY}checkpoint.keep_best = true")).unwrap();
            assert_eq!(
                (&read.training.loss, read.label.first.numbers),
                (&expected, LabelNumbers::NotNegative)
            );
            assert_eq!((read.training.loss.kind(), read.training.loss.group()), (kind, Some("query")));
            assert_eq!(read.data.group.as_deref(), Some("query"));
            assert!(read.features.iter().any(|feature| feature.name == "query"), "the model need not use it");
            let group = read.evaluation.group.clone().unwrap();
            assert_eq!((group.feature.as_str(), group.ranking.top_k), ("query", 10));
            assert_eq!(read.checkpoint.best.map(|best| best.metric), Some(Metric::Ndcg));
            // Settings of the ranking apply to the default group, and another group may be chosen.
            let more = format!("{QUERY}evaluation.top_k = 3");
            assert_eq!(job(&loss, &more).unwrap().evaluation.group.unwrap().ranking.top_k, 3);
            let user = QUERY.replace("query", "user");
            let more = format!("{QUERY}{user}evaluation.group = \"user\"");
            let read = job(&loss, &more).unwrap();
            assert_eq!(read.evaluation.group.unwrap().feature, "user");
            assert_eq!(read.data.group.as_deref(), Some("query"));
            // Neither text nor fingerprint of a job without lists depends on groups.
            let plain = job("kind = \"mse\"", QUERY).unwrap();
            assert_eq!((plain.data.group, plain.evaluation.group), (None, None));
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
                "kind = \"listwise\"",
                String::new(),
                "[training.loss] needs `group`: the feature whose ids identify lists, such as a query",
            ),
            (
                "kind = \"pairwise\", group = \"qery\"",
                QUERY.to_owned(),
                "`qery` is not in [features]; did you mean `query`?",
            ),
            (
                "kind = \"listwise\", group = \"age\"",
                String::new(),
                ":6:46: error: `age` is numeric, but groups are ids: use another kind of feature",
            ),
            (
                "kind = \"listwise\", group = \"query\"",
                QUERY.replace("9 }", "9, multi = true, maximum = 3 }"),
                "`query` is multi-valued, but a row belongs to one group",
            ),
            (
                "kind = \"mse\", group = \"query\"",
                QUERY.to_owned(),
                "`group` is for the losses \"listwise\" and \"pairwise\"",
            ),
            (
                "kind = \"listwise\", group = \"query\"",
                format!("{QUERY}training.micro_batch_size = 8"),
                "the loss \"listwise\" needs whole batches: remove `micro_batch_size`",
            ),
            (
                "kind = \"listwise\", group = \"query\"",
                format!("{QUERY}{}", best("rmse")),
                "\"rmse\" applies to probabilities and numbers, but the label is predicted by a score for ranking only",
            ),
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
