//! The `[evaluation]` of a job file: when the model is evaluated, and what that decides.

use millstream_document::problems;
use millstream_document::section::Section;
use millstream_pipeline::spec::{DataSpec, LabelSpec};
use millstream_trainer::metrics::Metric;
use millstream_trainer::session::{EvalCadence, StoppingSpec};
use millstream_trainer::spec::{Gains, GroupSpec, ModelSpec, Prediction, RankingSpec, TrainingSpec};

use super::groups::Groups;

/// How the model is evaluated, and what evaluations decide.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationSpec {
    /// The groups of held-out rows, by the ids of a single-valued feature.
    pub group: Option<GroupSpec>,
    /// When evaluations run.
    pub cadence: EvalCadence,
    /// The rule for early stopping.
    pub stopping: Option<StoppingSpec>,
}

/// The labels, each with its kind of prediction, by which evaluations are compared.
pub(super) struct LabelPredictions(Vec<(String, Prediction)>);

impl LabelPredictions {
    pub(super) fn of(labels: &LabelSpec, model: &ModelSpec, training: &TrainingSpec) -> Self {
        let tasks = training.tasks(1 + labels.others.len()).into_iter();
        let tasks = tasks.map(|task| model.prediction(&task.loss));
        Self(labels.all().map(|label| label.name.clone()).zip(tasks).collect())
    }
}

const GAINS: [(&str, Gains); 2] = [("exponential", Gains::Exponential), ("linear", Gains::Linear)];

/// After every epoch. Held-out rows are then interleaved with the training rows.
const USUAL: EvalCadence = EvalCadence { every_steps: None, every_epochs: Some(1) };

impl EvaluationSpec {
    /// Whether held-out rows are fed separately, on request.
    pub fn is_aside(&self) -> bool {
        self.cadence != USUAL
    }

    /// The settings that affect the job's result or its position in the data.
    pub(super) fn outcome(&self) -> Option<(Option<EvalCadence>, Option<StoppingSpec>)> {
        let cadence = (self.is_aside() || self.stopping.is_some()).then_some(self.cadence);
        cadence.map(|cadence| (Some(cadence), self.stopping))
    }
}

/// Reads the section. `groups` are the features that may group rows, and `lists` is that of the loss, which is the
/// default.
pub(super) fn read(
    mut section: Section<'_>,
    groups: Groups<'_>,
    lists: Option<&str>,
    data: &DataSpec,
    predictions: &LabelPredictions,
) -> EvaluationSpec {
    let group = read_group(&mut section, groups, lists);
    let LabelPredictions(labels) = predictions;
    if group.is_some() && !labels.iter().any(|&(_, prediction)| Metric::Ndcg.applies_to(prediction)) {
        section
            .error("group", "groups are for metrics of rankings, which a label of `classes` does not have");
    }
    let every_steps = section.whole("every_steps", 1..=u64::MAX);
    let every_epochs = section.whole_u32("every_epochs", 1..=u32::MAX);
    let cadence = match (every_steps, every_epochs) {
        (None, None) => USUAL,
        (every_steps, every_epochs) => EvalCadence { every_steps, every_epochs },
    };
    let stopping = section.node("early_stopping").is_some().then(|| {
        let mut stopping = section.section("early_stopping", "[evaluation.early_stopping]");
        let usual = (None, 0);
        let (metric, label) =
            read_metric(&mut stopping, ("metric", "label"), group.is_some(), predictions, usual);
        stopping.required("patience", "the number of consecutive evaluations without improvement");
        let patience = stopping.whole_u32("patience", 1..=u32::MAX).unwrap_or(1);
        let min_delta = stopping.node("min_delta").and_then(|node| stopping.as_number(node)).unwrap_or(0.0);
        if !min_delta.is_finite() || min_delta < 0.0 {
            stopping.error("min_delta", format!("expected a number at least 0, found {min_delta}"));
        }
        stopping.finish();
        StoppingSpec { metric, label, patience, min_delta }
    });
    for key in ["every_steps", "every_epochs", "early_stopping"] {
        if !data.has_eval() && section.has(key) {
            section.error(key, format!("`{key}` needs held-out data: `eval` or `validation` in [data]"));
        }
    }
    section.finish();
    EvaluationSpec { group, cadence, stopping }
}

fn read_group(section: &mut Section<'_>, groups: Groups<'_>, lists: Option<&str>) -> Option<GroupSpec> {
    let usual = RankingSpec::default();
    let ranking = RankingSpec {
        top_k: section.whole_u32("top_k", 1..=RankingSpec::MAX_TOP_K).unwrap_or(usual.top_k),
        gains: section.choice("gains", &GAINS).unwrap_or(usual.gains),
    };
    let Some(text) = section.text("group") else {
        if let Some(lists) = lists {
            return Some(GroupSpec { feature: lists.to_owned(), ranking });
        }
        for key in ["top_k", "gains"] {
            if section.has(key) {
                section.error(key, format!("`{key}` is for rankings within groups: set `group`"));
            }
        }
        return None;
    };
    Some(GroupSpec { feature: groups.read(section, text), ranking })
}

/// Reads the metric by which evaluations are compared, and its label, from these two keys. `usual` are the defaults.
pub(super) fn read_metric(
    section: &mut Section<'_>,
    (key, label_key): (&'static str, &'static str),
    has_groups: bool,
    LabelPredictions(labels): &LabelPredictions,
    usual: (Option<Metric>, u32),
) -> (Metric, u32) {
    let given = section.text(label_key);
    let place = given.and_then(|name| labels.iter().position(|(label, _)| label == name.text));
    let are_named = labels.iter().any(|(name, _)| !name.is_empty());
    if let Some(name) = given.filter(|_| !are_named) {
        section.error_at(name.at, format!("`{label_key}` is for several [labels]"));
    } else if let Some(name) = given.filter(|_| place.is_none()) {
        let hint = problems::suggestion(name.text, labels.iter().map(|(name, _)| name.as_str()));
        section.error_at(name.at, format!("[labels] has no label `{}`{hint}", name.text));
    }
    let label = place.and_then(|place| u32::try_from(place).ok()).unwrap_or(usual.1);
    let (name, prediction) =
        labels.get(label as usize).map_or(("", Prediction::Probability), |(name, how)| (name, *how));
    let metric = section.choice(key, &Metric::ALL);
    if let Some(metric) = metric.filter(|metric| metric.needs_groups() && !has_groups) {
        section.error(key, format!("\"{}\" needs groups: `group` in [evaluation]", metric.name()));
    }
    if metric.is_some_and(|metric| !metric.compares()) {
        section.error(
            key,
            "\"coverage\" compares no evaluations: it is best at the quantile; use \"pinball_loss\"",
        );
    } else if let Some(metric) = metric.filter(|metric| !metric.applies_to(prediction)) {
        let whose = if name.is_empty() { "the label".to_owned() } else { format!("`{name}`") };
        let (of, how) = match (metric, prediction) {
            (Metric::Top5Accuracy, _) => ("more than 5 classes", "is predicted otherwise"),
            (_, Prediction::Classes(_)) => ("labels without classes", "is predicted as one of its classes"),
            (Metric::HuberLoss, _) => ("the loss \"huber\"", "has another loss"),
            (Metric::PoissonDeviance, _) => ("the loss \"poisson\"", "has another loss"),
            (Metric::PinballLoss | Metric::Coverage, _) => ("the loss \"quantile\"", "has another loss"),
            (_, Prediction::Quantile { .. }) => ("other predictions", "is predicted as a quantile"),
            (_, Prediction::Probability) => ("numbers", "is predicted as a probability"),
            (_, Prediction::Number | Prediction::RobustNumber { .. } | Prediction::Rate) => {
                ("probabilities", "is predicted as a number")
            }
            (_, Prediction::Rank | Prediction::ListRank) => {
                ("probabilities and numbers", "is predicted by a score for ranking only")
            }
        };
        section.error(key, format!("\"{}\" applies to {of}, but {whose} {how}", metric.name()));
    }
    let usual = usual.0.filter(|metric| metric.applies_to(prediction));
    (metric.or(usual).unwrap_or(Metric::default_for(prediction)), label)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::super::Job;
    use millstream_trainer::session::BestSpec;

    use super::*;

    const JOB: &str = r#"name = "clicks"
label = { column = "clicked" }
features = { age = { kind = "numeric" } }
model = { kind = "linear", features = ["age"] }
[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
"#;

    fn parse(more: &str) -> Result<Job, String> {
        let job = Job::parse(&format!("{JOB}{more}"), Path::new("job.toml"), &[]);
        job.map(|(job, _)| job).map_err(|error| error.to_string())
    }

    #[test]
    fn schedules_are_read() {
        let cadence = |text: &str| {
            let evaluation = parse(&format!("[evaluation]\n{text}")).unwrap().evaluation;
            (evaluation.cadence.every_steps, evaluation.cadence.every_epochs, evaluation.is_aside())
        };
        assert_eq!(cadence(""), (None, Some(1), false));
        assert_eq!(cadence("every_epochs = 1"), (None, Some(1), false));
        assert_eq!(cadence("every_epochs = 2"), (None, Some(2), true));
        assert_eq!(cadence("every_steps = 7"), (Some(7), None, true));
        assert_eq!(cadence("every_steps = 7\nevery_epochs = 1"), (Some(7), Some(1), true));
    }

    #[test]
    fn selection_is_read() {
        let judge = |text: &str| parse(text).unwrap().selection();
        assert_eq!(judge("").stopping, None);
        assert_eq!(judge("").best, None);
        let stopping =
            "[evaluation]\nearly_stopping = { metric = \"rmse\", patience = 3, min_delta = 0.001 }\n";
        let rmse = StoppingSpec { metric: Metric::Rmse, label: 0, patience: 3, min_delta: 0.001 };
        assert_eq!(judge(stopping).stopping, Some(rmse));
        let best = |text: &str, metric, keep| {
            assert_eq!(judge(text).best, Some(BestSpec { metric, label: 0, keep }), "{text}");
        };
        best("[checkpoint]\nkeep_best = true", Metric::Auc, 1);
        best(&format!("{stopping}[checkpoint]\nkeep_best = 2"), Metric::Rmse, 2);
        best(
            &format!("{stopping}[checkpoint]\nkeep_best = 2\nbest_metric = \"log_loss\""),
            Metric::LogLoss,
            2,
        );
        assert_eq!(judge("[checkpoint]\nkeep_best = false").best, None);
    }

    #[test]
    fn rankings_within_groups_are_read() {
        let read = |evaluation: &str| {
            let user = "features = { user = { kind = \"hashed\", buckets = 9 }, age";
            let job = JOB.replace("features = { age", user);
            let job = Job::parse(&format!("{job}{evaluation}"), Path::new("job.toml"), &[]);
            job.map(|(job, _)| job).map_err(|error| error.to_string())
        };
        let group =
            |text: &str| read(&format!("[evaluation]\ngroup = \"user\"\n{text}")).unwrap().evaluation.group;
        let of = |top_k, gains| {
            Some(GroupSpec { feature: "user".to_owned(), ranking: RankingSpec { top_k, gains } })
        };
        assert_eq!(group(""), of(10, Gains::Exponential));
        assert_eq!(group("top_k = 3\ngains = \"linear\""), of(3, Gains::Linear));
        let best = "group = \"user\"\n[checkpoint]\nkeep_best = true\nbest_metric = \"ndcg\"";
        let best = read(&format!("[evaluation]\n{best}")).unwrap().selection().best;
        assert_eq!(best, Some(BestSpec { metric: Metric::Ndcg, label: 0, keep: 1 }));
        let mistakes = [
            ("top_k = 3", "`top_k` is for rankings within groups: set `group`"),
            ("gains = \"linear\"", "`gains` is for rankings within groups: set `group`"),
            ("group = \"user\"\ntop_k = 0", "expected a whole number from 1 to 10000, found 0"),
            ("group = \"user\"\ngains = \"log\"", "expected \"exponential\" or \"linear\", found \"log\""),
            (
                "early_stopping = { patience = 2, metric = \"mrr\" }",
                "\"mrr\" needs groups: `group` in [evaluation]",
            ),
        ];
        for (text, expected) in mistakes {
            let error = read(&format!("[evaluation]\n{text}")).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn settings_that_change_the_model_change_the_fingerprint() {
        let fingerprint = |text: &str| parse(text).unwrap().fingerprint();
        let usual = fingerprint("");
        assert_eq!(fingerprint("[checkpoint]\nkeep_best = true"), usual);
        assert_eq!(fingerprint("[evaluation]\nevery_epochs = 1"), usual);
        for other in ["every_steps = 7", "early_stopping = { patience = 3 }"] {
            assert_ne!(fingerprint(&format!("[evaluation]\n{other}")), usual, "{other}");
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_position() {
        let cases = [
            ("[evaluation]\nevery_steps = 0", "expected a whole number at least 1, found 0"),
            ("[evaluation]\nearly_stopping = {}", "needs `patience`: the number of consecutive evaluations"),
            ("[evaluation]\nearly_stopping = { patience = 2, min_delta = -1 }", "at least 0, found -1"),
            ("[evaluation]\nearly_stopping = { patience = 2, metric = \"loss\" }", "\"log_loss\""),
            ("[evaluation]\nearly_stopping = { patience = 2, metric = \"group_auc\" }", "needs groups"),
            ("[checkpoint]\nkeep_best = \"yes\"", "expected true, false or a number"),
            ("[checkpoint]\nbest_metric = \"auc\"", "requires `keep_best`"),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(error.starts_with("job.toml:"), "{error}");
        }
        let classes = JOB.replace("column = \"clicked\"", "column = \"clicked\", classes = 3");
        let classes = format!("{classes}[evaluation]\ngroup = \"age\"");
        let error = Job::parse(&classes, Path::new("job.toml"), &[]).unwrap_err().to_string();
        assert!(error.contains("which a label of `classes` does not have"), "{error}");
        for text in ["[evaluation]\nevery_steps = 5", "[checkpoint]\nkeep_best = true"] {
            let job = format!("{JOB}{text}").replace("eval = [\"eval.parquet\"]", "eval = []");
            let error = Job::parse(&job, Path::new("job.toml"), &[]).unwrap_err().to_string();
            assert!(error.contains("needs held-out data"), "{error}");
        }
    }
}
