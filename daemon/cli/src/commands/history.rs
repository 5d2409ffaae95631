//! `millstream history`: plots a job's loss and metrics over its steps.

use std::path::Path;

use millstream_control::proto::{Evaluation, History, HistoryPoint, Job};
use serde::Serialize;

use crate::arguments::JobHistory;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::plot::{self, Curve, Marks, Plot};
use crate::screen::output_width;
use crate::unfinished;

/// Width of a plot without a terminal.
const DEFAULT_WIDTH: usize = 100;

pub(crate) async fn run(arguments: JobHistory, context: &Context) -> Result<(), Failure> {
    let history = to_daemon(context).await?.history(&arguments.job.id).await?;
    check_metrics(&history, &arguments.metric)?;
    let plot = plot_of(&history, &arguments.metric);
    if let Some(path) = &arguments.svg {
        if plot.curves.is_empty() {
            return Err(Failure::Failed(anyhow::anyhow!("{}", no_history(&history))));
        }
        unfinished::write(path, plot::svg(&plot).as_bytes())?;
        context.screen.note(&format!("wrote {}", path.display()));
        if !context.json {
            return Ok(());
        }
    }
    context.answer(&HistoryJson::from(&history), || match plot.curves.is_empty() {
        true => no_history(&history),
        false => plot::terminal(&plot, width()),
    })
}

/// A job's loss and metrics over its steps.
#[derive(Debug, Serialize)]
struct HistoryJson<'a> {
    job: &'a str,
    state: &'static str,
    steps: u64,
    points: &'a [HistoryPoint],
    evaluations: &'a [Evaluation],
}

impl<'a> From<&'a History> for HistoryJson<'a> {
    fn from(History { job, points, evaluations }: &'a History) -> Self {
        let job = job.as_ref();
        Self {
            job: job.map_or("", |job| &job.id),
            state: job.map_or("unknown", |job| job.state().name()),
            steps: job.and_then(|job| job.progress).map_or(0, |progress| progress.step),
            points,
            evaluations,
        }
    }
}

/// The format of a history file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryFormat {
    Svg,
    Json,
}

impl HistoryFormat {
    /// The format by the extension. Also checks that the directory exists, to fail before the job instead of after it.
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
            let message = format!("{}: the directory {} does not exist", path.display(), directory.display());
            return Err(Failure::Usage(message));
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Ok(Self::Svg),
            Some("json") => Ok(Self::Json),
            _ => {
                let message = format!("{}: unknown extension; use .svg or .json", path.display());
                Err(Failure::Usage(message))
            }
        }
    }

    /// Writes `history` to the file.
    pub(crate) fn write(self, path: &Path, history: &History) -> Result<(), Failure> {
        let bytes = match self {
            Self::Svg => plot::svg(&plot_of(history, &[])).into_bytes(),
            Self::Json => document(&HistoryJson::from(history))?,
        };
        unfinished::write(path, &bytes)
    }
}

fn document(document: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let mut bytes = serde_json::to_vec_pretty(document).map_err(anyhow::Error::from)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The evaluation metrics that are the training loss of some kind. A label has at most one.
const LOSS_METRICS: [&str; 4] = ["log_loss", "huber_loss", "pinball_loss", "poisson_deviance"];

/// A curve of the training loss, with the held-out loss as marks, and one of each other evaluation metric. Only those that
/// `chosen` names, if any; the loss is `loss`.
pub(crate) fn plot_of(history: &History, chosen: &[String]) -> Plot {
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|chosen| chosen == name);
    let loss = history.points.iter().map(|point| (point.step, point.loss)).collect();
    let mut curves = vec![Curve { name: "training loss".to_owned(), points: loss, marks: None }];
    for evaluation in &history.evaluations {
        for metric in &evaluation.metrics {
            let point = (evaluation.step, metric.value);
            let name = format!("held-out {}", metric.name.replace('_', " "));
            if LOSS_METRICS.contains(&metric.name.as_str()) {
                curves[0].marks.get_or_insert(Marks { name, points: Vec::new() }).points.push(point);
                continue;
            }
            match curves.iter_mut().find(|curve| curve.name == name) {
                _ if !is_chosen(&metric.name) => {}
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { name, points: vec![point], marks: None }),
            }
        }
    }
    if !is_chosen("loss") && !LOSS_METRICS.into_iter().any(is_chosen) {
        curves.remove(0);
    }
    Plot::new(title(&history.job.clone().unwrap_or_default()), curves)
}

/// Checks that the history has all metrics in `chosen`.
fn check_metrics(history: &History, chosen: &[String]) -> Result<(), Failure> {
    let metrics = history.evaluations.iter().flat_map(|evaluation| &evaluation.metrics);
    let mut known: Vec<&str> = metrics.map(|metric| metric.name.as_str()).chain(["loss"]).collect();
    known.sort_unstable();
    known.dedup();
    match chosen.iter().find(|chosen| !known.contains(&chosen.as_str())) {
        Some(unknown) => {
            let message = format!("the job has no metric `{unknown}`; it has {}", known.join(", "));
            Err(Failure::Usage(message))
        }
        None => Ok(()),
    }
}

fn title(job: &Job) -> String {
    let progress = job.progress.unwrap_or_default();
    let total = progress.total_steps.map(|total| format!(" of {}", figures::count(total)));
    format!(
        "{}: {}, step {}{}",
        job.id,
        job.state().name(),
        figures::count(progress.step),
        total.unwrap_or_default()
    )
}

fn no_history(history: &History) -> String {
    let job = history.job.clone().unwrap_or_default();
    format!("job {} has no history to show: it is {}", job.id, job.state().name())
}

/// The width of the terminal, otherwise `COLUMNS`, otherwise the default.
fn width() -> usize {
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    output_width().or_else(columns).unwrap_or(DEFAULT_WIDTH)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use millstream_control::proto::{JobProgress, JobState, NamedValue};

    use super::*;

    fn history() -> History {
        let point = |step, loss| HistoryPoint { step, loss, ..HistoryPoint::default() };
        let metric = |name: &str, value| NamedValue { name: name.into(), value };
        let evaluation = |step, auc| Evaluation {
            step,
            epoch: 0,
            metrics: vec![metric("auc", auc), metric("log_loss", 0.5)],
        };
        let progress = JobProgress { step: 2_000, total_steps: Some(4_000), ..JobProgress::default() };
        let mut job = Job { id: "tiny-1".into(), progress: Some(progress), ..Job::default() };
        job.set_state(JobState::Running);
        History {
            job: Some(job),
            points: vec![point(10, 0.7), point(2_000, 0.4)],
            evaluations: vec![evaluation(1_000, f64::NAN), evaluation(2_000, 0.75)],
        }
    }

    #[test]
    fn each_metric_has_a_curve() {
        let plot = plot_of(&history(), &[]);
        assert_eq!(plot.title, "tiny-1: running, step 2,000 of 4,000");
        let curves: Vec<_> =
            plot.curves.iter().map(|curve| (curve.name.as_str(), curve.points.len())).collect();
        assert_eq!(curves, [("training loss", 2), ("held-out auc", 1)]);
        let marks = plot.curves[0].marks.as_ref().unwrap();
        assert_eq!((marks.name.as_str(), marks.points.len()), ("held-out log loss", 2));
        let names = |chosen: &[&str]| {
            let chosen: Vec<_> = chosen.iter().map(|&name| name.to_owned()).collect();
            check_metrics(&history(), &chosen).unwrap();
            plot_of(&history(), &chosen).curves.into_iter().map(|curve| curve.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&["auc"]), ["held-out auc"]);
        assert_eq!(names(&["log_loss"]), ["training loss"]);
        let unknown = check_metrics(&history(), &["rmse".to_owned()]).unwrap_err().to_string();
        assert_eq!(unknown, "the job has no metric `rmse`; it has auc, log_loss, loss");
    }

    #[test]
    fn extension_selects_the_format() {
        let directory = tempfile::tempdir().unwrap();
        for (name, begins) in [("a.svg", &b"<svg"[..]), ("c.json", b"{\n  \"job\"")] {
            let path = directory.path().join(name);
            HistoryFormat::of(&path).unwrap().write(&path, &history()).unwrap();
            assert!(std::fs::read(&path).unwrap().starts_with(begins), "{name}");
        }
        for path in ["curve.pdf", "curve", "no/where/curve.svg"] {
            assert!(matches!(HistoryFormat::of(path.as_ref()), Err(Failure::Usage(_))), "{path}");
        }
    }

    #[test]
    fn job_without_steps_has_no_history() {
        let history = History { points: vec![], evaluations: vec![], ..history() };
        assert!(plot_of(&history, &[]).curves.is_empty());
        assert_eq!(no_history(&history), "job tiny-1 has no history to show: it is running");
    }
}
