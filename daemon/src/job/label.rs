//! The `[label]` of a job file, or its `[labels]`.
//!
//! What a label's column may hold depends on its loss, which is read later: so labels are read first and resolved
//! once that is known.

use millstream_pipeline::spec::{LabelColumn, LabelNumbers, LabelSpec};
use millstream_trainer::spec::{ModelSpec, Prediction, TrainingSpec};

use super::document::Value;
use super::error::{At, Problems};
use super::section::Section;

/// The labels, as they were written.
pub(super) struct Labels {
    all: Vec<Label>,
    weight: Option<String>,
    /// Whether they have names.
    pub(super) are_named: bool,
}

struct Label {
    name: String,
    column: String,
    positive: Option<String>,
    /// Where `positive` is, or else the label.
    at: At,
}

/// Reads one table `[label]`, or a table for each label in `[labels]`.
pub(super) fn read(top: &mut Section<'_>, problems: &Problems<'_>) -> Labels {
    if top.node("labels").is_none() {
        let mut label = top.required_section("label", "[label]", "the column to predict");
        let only = read_one(&mut label, String::new());
        let weight = label.text("weight").map(|weight| weight.text.to_owned());
        if weight.as_ref() == Some(&only.column) {
            label.error("weight", "the label cannot be its own weight");
        }
        label.finish();
        return Labels { all: vec![only], weight, are_named: false };
    }
    if top.node("label").is_some() {
        top.error("label", "there is either one [label] or several [labels]");
    }
    let mut labels = top.section("labels", "[labels]");
    let weight = labels.text("weight").map(|weight| weight.text.to_owned());
    let mut all = Vec::new();
    for (name, at, node) in labels.entries().filter(|(name, ..)| *name != "weight") {
        let Some(mut table) = labels.as_section(node, format!("label `{name}`")) else { continue };
        check_name(name, at, problems);
        let label = read_one(&mut table, name.to_owned());
        if weight.as_ref() == Some(&label.column) {
            problems.error(labels.at_key("weight"), "a label cannot be the rows' weight");
        }
        table.finish();
        all.push(label);
    }
    if all.is_empty() {
        problems.error(
            labels.at(),
            "[labels] needs a table for each label, such as `clicked = { column = ... }`",
        );
    }
    Labels { all, weight, are_named: true }
}

/// Names of labels are parts of others: of columns, tensors and curves.
fn check_name(name: &str, at: At, problems: &Problems<'_>) {
    const LONGEST: usize = 64;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || name.len() > LONGEST || !name.chars().all(plain) {
        let message =
            format!("a label's name is 1 to {LONGEST} letters, digits, `-` and `_`, found \"{name}\"");
        problems.error(at, message);
    }
}

fn read_one(label: &mut Section<'_>, name: String) -> Label {
    let column = label.required_text("column", "the column to predict").map(|column| column.text.to_owned());
    let positive = match label.node("positive").map(|node| (node, &node.value)) {
        None => None,
        Some((_, Value::Text(text))) => Some(text.clone()),
        // As the values of such columns read as text.
        Some((_, Value::Whole(number))) => Some(number.to_string()),
        Some((_, Value::Bool(value))) => Some(value.to_string()),
        Some((node, other)) => {
            let message = format!("expected the value that means 1, found {}", other.describe());
            label.error_at(node.at, message);
            None
        }
    };
    Label { name, column: column.unwrap_or_default(), positive, at: label.at_key("positive") }
}

impl Labels {
    /// Their names; an empty one where there is but one without.
    pub(super) fn names(&self) -> Vec<&str> {
        self.all.iter().map(|label| label.name.as_str()).collect()
    }

    /// What is to be read of them, trained so; the model, whose kind is at `model_at`, must take as many.
    pub(super) fn resolve(
        self,
        training: &TrainingSpec,
        model: &ModelSpec,
        model_at: At,
        problems: &Problems<'_>,
    ) -> LabelSpec {
        if self.all.len() > 1 && !model.takes_several_labels() {
            let (kind, labels) = (model.kind(), self.all.len());
            let message =
                format!("\"{kind}\" predicts one label, and there are {labels}; \"mmoe\" predicts several");
            problems.error(model_at, message);
        }
        let tasks = training.tasks(self.all.len());
        let mut columns = self.all.into_iter().zip(tasks).map(|(label, task)| {
            let Label { name, column, positive, at } = label;
            let numbers = match model.prediction(&task.loss) {
                Prediction::Probability | Prediction::Rank => LabelNumbers::Probabilities,
                Prediction::Number => LabelNumbers::Any,
            };
            if numbers == LabelNumbers::Any && positive.is_some() {
                let message =
                    "`positive` makes classes of a label, and the loss \"mse\" takes it for a number";
                problems.error(at, message);
            }
            LabelColumn { name, column, positive, numbers }
        });
        LabelSpec {
            first: columns.next().unwrap_or_default(),
            others: columns.collect(),
            weight: self.weight,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use millstream_pipeline::spec::{LabelNumbers, LabelSpec};
    use millstream_trainer::metrics::Metric;
    use millstream_trainer::spec::{LossSpec, TaskSpec};

    use super::super::Job;

    const JOB: &str = r#"name = "clicks"
data = { train = ["train.parquet"], eval = ["eval.parquet"] }
features = { age = { kind = "numeric" } }
"#;
    const TWO: &str =
        "[labels]\nweight = \"w\"\nbought = { column = \"b\", positive = 1 }\nprice = { column = \"p\" }\n";

    fn job(kind: &str, rest: &str) -> Result<Job, String> {
        let text = format!("{JOB}model = {{ kind = \"{kind}\", features = [\"age\"] }}\n{rest}");
        let job = Job::parse(&text, Path::new("job.toml"), &[]);
        job.map(|(job, _)| job).map_err(|error| error.to_string())
    }

    #[test]
    fn several_labels_have_losses_of_their_own() {
        let losses = "[training.losses]\nprice = { kind = \"mse\", weight = 0.25 }\n";
        let job = job("mmoe", &format!("{TWO}{losses}")).unwrap();
        assert_eq!(job.label.names(), ["bought", "price"]);
        assert_eq!(job.label.weight.as_deref(), Some("w"));
        assert_eq!((job.label.first.column.as_str(), job.label.first.positive.as_deref()), ("b", Some("1")));
        assert_eq!(job.label.others[0].numbers, LabelNumbers::Any);
        let mse = TaskSpec { loss: LossSpec::SquaredError, weight: 0.25 };
        assert_eq!(job.training.tasks, [LossSpec::default().into(), mse]);
        // What one that is not named has.
        let usual = "[training.loss]\npositive_weight = 3\n";
        let job = self::job("mmoe", &format!("{TWO}{usual}{losses}")).unwrap();
        assert!(matches!(
            job.training.tasks[0].loss,
            LossSpec::BinaryCrossEntropy { positive_weight: 3.0, .. }
        ));
        assert_eq!(job.training.tasks[1], mse);
        let again = Job::parse(&job.text, Path::new("elsewhere.toml"), &[]).unwrap().0;
        assert_eq!((again.label, again.training), (job.label, job.training));
    }

    #[test]
    fn one_label_is_described_as_it_was_before_there_were_several() {
        let job = job("linear", "label = { column = \"b\", positive = \"yes\" }").unwrap();
        assert_eq!(job.label, LabelSpec::of("b", Some("yes")));
        let json = serde_json::to_string(&job.label).unwrap();
        assert_eq!(json, r#"{"column":"b","positive":"yes","weight":null}"#);
        assert!(job.training.tasks.is_empty());
    }

    #[test]
    fn evaluations_are_compared_by_a_metric_that_the_loss_has() {
        let mse = "label = { column = \"p\" }\n[training.loss]\nkind = \"mse\"\n";
        let best = |job: &Job| job.checkpoint.best.map(|best| (best.metric, best.label));
        let of_one = job("linear", &format!("{mse}[checkpoint]\nkeep_best = true")).unwrap();
        assert_eq!(best(&of_one), Some((Metric::Rmse, 0)));
        let losses = "[training.losses]\nprice = { kind = \"mse\" }\n[checkpoint]\nkeep_best = true\n";
        let two = |rest: &str| job("mmoe", &format!("{TWO}{losses}{rest}"));
        assert_eq!(best(&two("").unwrap()), Some((Metric::Auc, 0)));
        assert_eq!(best(&two("best_label = \"price\"").unwrap()), Some((Metric::Rmse, 1)));
        let stopping = "[evaluation]\nearly_stopping = { patience = 2, label = \"price\", metric = \"mae\" }";
        let stopping = two(stopping).unwrap();
        assert_eq!(best(&stopping), Some((Metric::Mae, 1)));
        assert_eq!(stopping.evaluation.stopping.map(|stopping| stopping.label), Some(1));
        let error = two("best_metric = \"mae\"").unwrap_err();
        assert!(
            error.contains("\"mae\" is of numbers, and `bought` is predicted by its probability"),
            "{error}"
        );
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let one = "label = { column = \"b\" }\n";
        let mse = "[training.loss]\nkind = \"mse\"\n";
        let cases = [
            (
                "linear",
                TWO.to_owned(),
                "\"linear\" predicts one label, and there are 2; \"mmoe\" predicts several",
            ),
            ("mmoe", format!("{one}{TWO}"), "there is either one [label] or several [labels]"),
            ("mmoe", "[labels]\n".to_owned(), "[labels] needs a table for each label"),
            (
                "mmoe",
                "[labels]\n\"a b\" = { column = \"a\" }".to_owned(),
                "a label's name is 1 to 64 letters",
            ),
            (
                "mmoe",
                "[labels]\na = { column = \"a\", weight = 1 }".to_owned(),
                "unknown key `weight` in label `a`",
            ),
            ("mmoe", "[labels]\na = { column = \"age\" }".to_owned(), "reads the label's column `age`"),
            (
                "mmoe",
                format!("{TWO}[training.losses]\nprize = {{}}"),
                "no label `prize`; did you mean `price`?",
            ),
            ("linear", format!("{one}[training.losses]\nb = {{}}"), "`losses` is for several [labels]"),
            (
                "linear",
                format!("label = {{ column = \"b\", positive = 1 }}\n{mse}"),
                "`positive` makes classes",
            ),
            ("linear", format!("{one}{mse}positive_weight = 2"), "`positive_weight` is for the loss \"bce\""),
            (
                "linear",
                format!("{one}{mse}[checkpoint]\nkeep_best = true\nbest_metric = \"auc\""),
                "\"auc\" is of probabilities, and the label is predicted as a number",
            ),
            (
                "linear",
                format!("{one}[checkpoint]\nkeep_best = true\nbest_label = \"b\""),
                "`best_label` is for several [labels]",
            ),
        ];
        for (kind, rest, expected) in cases {
            let error = job(kind, &rest).unwrap_err();
            assert!(error.contains(expected), "{rest}: {error}");
            assert!(error.starts_with("job.toml:"), "{error}");
        }
    }
}
