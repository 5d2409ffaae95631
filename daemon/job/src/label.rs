//! The `[label]` of a job file, or its `[labels]`.
//!
//! The values that a label's column may contain depend on its loss, which is read later. So labels are read first and
//! resolved once their losses are known.

use std::collections::HashSet;

use millstream_document::problems::{At, Problems};
use millstream_document::section::Section;
use millstream_document::tree::{Node, Value};
use millstream_pipeline::spec::{LabelColumn, LabelNumbers, LabelSpec};
use millstream_trainer::spec::{ModelSpec, Prediction, TrainingSpec};

/// The maximum number of classes: each has a logit for every row of a step.
const MOST_CLASSES: usize = 4_096;

/// The labels as the file defines them.
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
    /// The position of `positive`, or else of the label.
    at: At,
    /// The values of its classes, if it has any.
    classes: Vec<String>,
}

/// Reads the table `[label]`, or each table of `[labels]`. `missing` are the values that mean an absent value.
pub(super) fn read(top: &mut Section<'_>, missing: &[String], problems: &Problems<'_>) -> Labels {
    if top.node("labels").is_none() {
        let mut label = top.required_section("label", "[label]", "the column to predict");
        let mut only = read_one(&mut label, String::new());
        only.classes = read_classes(&mut label, missing);
        let weight = label.text("weight").map(|weight| weight.text.to_owned());
        if weight.as_ref() == Some(&only.column) {
            label.error("weight", "the label cannot be its own weight");
        }
        label.finish();
        return Labels { all: vec![only], weight, are_named: false };
    }
    if top.node("label").is_some() {
        top.error("label", "use either [label] or [labels], not both");
    }
    let mut labels = top.section("labels", "[labels]");
    let weight = labels.text("weight").map(|weight| weight.text.to_owned());
    let mut all = Vec::new();
    for (name, at, node) in labels.entries().filter(|(name, ..)| *name != "weight") {
        let Some(mut table) = labels.as_section(node, format!("label `{name}`")) else { continue };
        check_name(name, at, problems);
        if table.node("classes").is_some() {
            table.error(
                "classes",
                "`classes` is for one [label]: each of several [labels] is 0 or 1, or a number",
            );
        }
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

/// Label names are parts of the names of columns, tensors and curves.
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
    let positive = label.node("positive").and_then(|node| {
        let value = value(node);
        if value.is_none() {
            let message = format!("expected the value that means 1, found {}", node.value.describe());
            label.error_at(node.at, message);
        }
        value
    });
    let (column, at) = (column.unwrap_or_default(), label.at_key("positive"));
    Label { name, column, positive, at, classes: Vec::new() }
}

/// A value in the form in which text columns of such values are read.
fn value(node: &Node) -> Option<String> {
    match &node.value {
        Value::Text(text) => Some(text.clone()),
        Value::Whole(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

/// Reads the values of classes: a list, or their number, which means 0, 1 and so on.
fn read_classes(label: &mut Section<'_>, missing: &[String]) -> Vec<String> {
    let Some(node) = label.node("classes") else { return Vec::new() };
    if label.has("positive") {
        label.error("positive", "`positive` contradicts `classes`: it makes the label binary");
    }
    let Value::List(items) = &node.value else {
        let number = match node.value {
            Value::Whole(_) => label.whole("classes", 2..=MOST_CLASSES as u64),
            _ => {
                let message =
                    format!("expected a list of values or their number, found {}", node.value.describe());
                label.error_at(node.at, message);
                None
            }
        };
        return (0..number.unwrap_or(2)).map(|class| class.to_string()).collect();
    };
    if !(2..=MOST_CLASSES).contains(&items.len()) {
        let message = format!("a label has from 2 to {MOST_CLASSES} classes, found {}", items.len());
        label.error_at(node.at, message);
    }
    let mut classes: Vec<String> = Vec::with_capacity(items.len());
    let (mut texts, mut numbers) = (HashSet::new(), HashSet::new());
    let missing: HashSet<&String> = missing.iter().collect();
    for item in items {
        let Some(class) = value(item) else {
            let message = format!("expected the value of a class, found {}", item.value.describe());
            label.error_at(item.at, message);
            continue;
        };
        // Numeric columns do not distinguish 0 from -0.
        let number = class.trim_ascii().parse::<f64>().ok().filter(|number| number.is_finite());
        let number = number.map(|number| (number + 0.0).to_bits());
        if !texts.insert(class.clone()) || number.is_some_and(|number| !numbers.insert(number)) {
            label.error_at(item.at, format!("`{class}` is listed twice in `classes`"));
        }
        if missing.contains(&class) {
            label.error_at(item.at, format!("`{class}` is a missing value: it is in `missing` of [data]"));
        }
        classes.push(class);
    }
    classes
}

impl Labels {
    /// The names; one empty name for a single label without one.
    pub(super) fn names(&self) -> Vec<&str> {
        self.all.iter().map(|label| label.name.as_str()).collect()
    }

    /// The number of classes, if the label has classes.
    pub(super) fn classes(&self) -> Option<u32> {
        let only = self.all.first().filter(|label| !label.classes.is_empty())?;
        u32::try_from(only.classes.len()).ok()
    }

    /// The resolved labels for this training and model, whose kind is at `model_at`.
    pub(super) fn resolve(
        self,
        training: &TrainingSpec,
        model: &ModelSpec,
        model_at: At,
        problems: &Problems<'_>,
    ) -> LabelSpec {
        if self.all.len() > 1 && !model.supports_multiple_labels() {
            let (kind, labels) = (model.kind(), self.all.len());
            let message = format!(
                "\"{kind}\" predicts one label, and there are {labels}; \"mmoe\" and \"din\" predict several"
            );
            problems.error(model_at, message);
        }
        if self.classes().is_some() && !model.supports_classes() {
            let message = format!(
                "\"{}\" does not predict one of several classes; \"linear\", \"mlp\", \"wide_deep\", \"dcn_v2\", \
                 \"din\" and \"dlrm\" do",
                model.kind()
            );
            problems.error(model_at, message);
        }
        let tasks = training.tasks(self.all.len());
        let mut columns = self.all.into_iter().zip(tasks).map(|(label, task)| {
            let Label { name, column, positive, at, classes } = label;
            let prediction = model.prediction(&task.loss);
            let numbers = match prediction {
                Prediction::Probability | Prediction::Rank | Prediction::Classes(_) => {
                    LabelNumbers::Probabilities
                }
                Prediction::Number | Prediction::RobustNumber { .. } | Prediction::Quantile { .. } => {
                    LabelNumbers::Any
                }
                Prediction::Rate | Prediction::ListRank => LabelNumbers::NotNegative,
            };
            if prediction.is_number() && positive.is_some() {
                let loss = task.loss.kind();
                let message =
                    format!("`positive` makes the label binary, but the loss \"{loss}\" needs a number");
                problems.error(at, message);
            }
            LabelColumn { name, column, positive, numbers, classes }
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
    fn several_labels_have_separate_losses() {
        let losses = "[training.losses]\nprice = { kind = \"mse\", weight = 0.25 }\n";
        let job = job("mmoe", &format!("{TWO}{losses}")).unwrap();
        assert_eq!(job.label.names(), ["bought", "price"]);
        assert_eq!(job.label.weight.as_deref(), Some("w"));
        assert_eq!((job.label.first.column.as_str(), job.label.first.positive.as_deref()), ("b", Some("1")));
        assert_eq!(job.label.others[0].numbers, LabelNumbers::Any);
        let mse = TaskSpec { loss: LossSpec::SquaredError, weight: 0.25 };
        assert_eq!(job.training.tasks, [LossSpec::default().into(), mse.clone()]);
        // The values of an unnamed label.
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
    fn one_label_keeps_the_format_of_earlier_versions() {
        let job = job("linear", "label = { column = \"b\", positive = \"yes\" }").unwrap();
        assert_eq!(job.label, LabelSpec::of("b", Some("yes")));
        let json = serde_json::to_string(&job.label).unwrap();
        assert_eq!(json, r#"{"column":"b","positive":"yes","weight":null}"#);
        assert!(job.training.tasks.is_empty());
    }

    #[test]
    fn evaluations_are_compared_by_a_metric_that_suits_the_loss() {
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
            error.contains("\"mae\" applies to numbers, but `bought` is predicted as a probability"),
            "{error}"
        );
    }

    #[test]
    fn classes_are_a_list_of_values_or_their_number() {
        let of = |classes: &str, rest: &str| {
            job("mlp", &format!("label = {{ column = \"c\", classes = {classes} }}\n{rest}")).unwrap()
        };
        assert_eq!(of("[\"nan\", \"NaN\"]", "").label.first.classes, ["nan", "NaN"]);
        let named = of("[\"a b\", 7, true]", "[checkpoint]\nkeep_best = true\n");
        assert_eq!(named.label.first.classes, ["a b", "7", "true"]);
        let plain = |classes| LossSpec::CrossEntropy { classes, label_smoothing: 0.0, class_weights: vec![] };
        assert_eq!(named.training.loss, plain(3));
        assert_eq!(named.checkpoint.best.map(|best| best.metric), Some(Metric::LogLoss));
        let again = Job::parse(&named.text, Path::new("elsewhere.toml"), &[]).unwrap().0;
        assert_eq!((again.label, again.training), (named.label.clone(), named.training.clone()));
        let loss = "[training.loss]\nkind = \"cross_entropy\"\nlabel_smoothing = 0.25\nclass_weights = [1, 2.5, 3, 4]\n";
        let counted = of("4", loss);
        assert_eq!(counted.label.first.classes, ["0", "1", "2", "3"]);
        let class_weights = vec![1.0, 2.5, 3.0, 4.0];
        let expected = LossSpec::CrossEntropy { classes: 4, label_smoothing: 0.25, class_weights };
        assert_eq!(counted.training.loss, expected);
        let other = of("[\"7\", \"a b\", \"true\"]", "[checkpoint]\nkeep_best = true\n");
        assert_ne!(other.fingerprint(), named.fingerprint(), "another order is another job");
        let json = serde_json::to_string(&named.label).unwrap();
        assert_eq!(json, r#"{"column":"c","positive":null,"classes":["a b","7","true"],"weight":null}"#);
    }

    #[test]
    fn a_class_cannot_be_a_missing_value() {
        let job = format!("{JOB}model = {{ kind = \"mlp\", features = [\"age\"] }}\n");
        let job = job.replace("data = { ", "data = { missing = [\"?\"], ");
        let parse = |classes: &str| {
            let text = format!("{job}label = {{ column = \"c\", classes = [{classes}] }}\n");
            Job::parse(&text, Path::new("job.toml"), &[]).map_err(|error| error.to_string())
        };
        assert!(parse("1, \"!\"").is_ok());
        let error = parse("1, \"?\"").unwrap_err();
        assert!(
            error.contains(":5:39: error: `?` is a missing value: it is in `missing` of [data]"),
            "{error}"
        );
    }

    #[test]
    fn mistakes_with_classes_are_reported_with_their_position() {
        let (classes, of) =
            ("label = { column = \"c\", classes = [\"a\", \"b\", \"c\"] }\n", "[training.loss]\n");
        let label = |keys: &str| format!("label = {{ column = \"c\", {keys} }}\n");
        let best =
            |metric: &str| format!("{classes}[checkpoint]\nkeep_best = true\nbest_metric = \"{metric}\"\n");
        let cases = [
            ("mlp", label("classes = [\"a\"]"), ":5:35: error: a label has from 2 to 4096 classes, found 1"),
            ("mlp", label("classes = 1"), ":5:35: error: expected a whole number from 2 to 4096, found 1"),
            (
                "mlp",
                label("classes = \"a\""),
                ":5:35: error: expected a list of values or their number, found a string",
            ),
            (
                "mlp",
                label("classes = [\"a\", 0.5]"),
                ":5:41: error: expected the value of a class, found a number with a fraction",
            ),
            (
                "mlp",
                label("classes = [\"a\", \"b\", \"a\"]"),
                ":5:46: error: `a` is listed twice in `classes`",
            ),
            ("mlp", label("classes = [1, \"01\"]"), ":5:39: error: `01` is listed twice in `classes`"),
            ("mlp", label("positive = 1, classes = 3"), ":5:36: error: `positive` contradicts `classes`"),
            (
                "deepfm",
                classes.to_owned(),
                ":4:18: error: \"deepfm\" does not predict one of several classes; \"linear\"",
            ),
            ("mmoe", classes.to_owned(), "\"mmoe\" does not predict one of several classes"),
            (
                "mmoe",
                "[labels]\na = { column = \"a\", classes = 3 }".to_owned(),
                ":6:31: error: `classes` is for one [label]",
            ),
            (
                "mlp",
                format!("{classes}{of}kind = \"bce\""),
                ":7:8: error: a label of `classes` has the loss \"cross_entropy\"",
            ),
            (
                "mlp",
                format!("{classes}{of}kind = \"mse\""),
                ":7:8: error: a label of `classes` has the loss \"cross_entropy\"",
            ),
            (
                "mlp",
                format!("{}{of}kind = \"cross_entropy\"", label("positive = 1")),
                ":7:8: error: the loss \"cross_entropy\" needs the `classes` of one [label]",
            ),
            (
                "mlp",
                format!("{classes}{of}class_weights = [1, 2]"),
                ":7:17: error: expected a weight for each of 3 classes, found 2",
            ),
            (
                "mlp",
                format!("{classes}{of}class_weights = [1, 2, 0]"),
                ":7:24: error: expected a number above 0, found 0",
            ),
            ("mlp", format!("{classes}{of}class_weights = 2"), ":7:17: error: expected a list of numbers"),
            ("mlp", format!("{classes}{of}positive_weight = 2"), "`positive_weight` is for the loss \"bce\""),
            (
                "mlp",
                format!("{}{of}class_weights = [1, 2]", label("positive = 1")),
                "`class_weights` is for the loss \"cross_entropy\"",
            ),
            (
                "mlp",
                format!("{}{of}kind = \"mse\"\nlabel_smoothing = 0.5", "label = { column = \"c\" }\n"),
                "`label_smoothing` is for the losses \"bce\" and \"cross_entropy\"",
            ),
            (
                "mlp",
                best("auc"),
                "\"auc\" applies to labels without classes, but the label is predicted as one of its classes",
            ),
            ("mlp", best("rmse"), "\"rmse\" applies to labels without classes"),
            ("mlp", best("top5_accuracy"), "\"top5_accuracy\" applies to more than 5 classes"),
        ];
        for (kind, rest, expected) in cases {
            let error = job(kind, &rest).unwrap_err();
            assert!(error.contains(expected), "{rest}: {error}");
            assert!(error.starts_with("job.toml:"), "{error}");
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_position() {
        let one = "label = { column = \"b\" }\n";
        let mse = "[training.loss]\nkind = \"mse\"\n";
        let cases = [
            (
                "linear",
                TWO.to_owned(),
                "\"linear\" predicts one label, and there are 2; \"mmoe\" and \"din\" predict several",
            ),
            ("mmoe", format!("{one}{TWO}"), "use either [label] or [labels], not both"),
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
                "`positive` makes the label binary",
            ),
            ("linear", format!("{one}{mse}positive_weight = 2"), "`positive_weight` is for the loss \"bce\""),
            (
                "linear",
                format!("{one}{mse}[checkpoint]\nkeep_best = true\nbest_metric = \"auc\""),
                "\"auc\" applies to probabilities, but the label is predicted as a number",
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
