//! Shows a job's progress on standard error: a bar on a terminal, otherwise a line every few seconds.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use millstream_control::proto::{Job, JobProgress, JobState, Metrics};

use crate::figures;
use crate::screen::Screen;
use crate::table::folded;

/// Interval between two lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The width of the bar.
const BAR_COLUMNS: usize = 12;

/// The shortest time from which the time left is estimated.
const LEAST_MEASURED: Duration = Duration::from_secs(1);

/// Interval between two frames of the spinner.
const TICK_INTERVAL: Duration = Duration::from_millis(120);

/// Shows a job as it changes.
pub(crate) struct ProgressView {
    screen: Screen,
    bar: Option<ProgressBar>,
    state: Option<JobState>,
    /// Why the job is queued.
    waits_for: Option<String>,
    /// The last evaluation shown, and its epoch.
    eval: (Option<u32>, Vec<Metrics>),
    last_line: Option<Instant>,
    /// The last line of a search.
    summary: String,
    /// The first step seen, and when.
    first: Option<(Instant, u64)>,
}

impl ProgressView {
    pub(crate) fn new(screen: &Screen) -> Self {
        let bar = screen.show(ProgressBar::no_length(), style(false, screen.has_colours()));
        let bar = bar.inspect(|bar| bar.enable_steady_tick(TICK_INTERVAL));
        Self {
            screen: screen.clone(),
            bar,
            state: None,
            waits_for: None,
            eval: (None, Vec::new()),
            last_line: None,
            summary: String::new(),
            first: None,
        }
    }

    /// Shows the job's current state.
    pub(crate) fn update(&mut self, job: &Job) {
        if self.state != Some(job.state()) || self.waits_for != job.waits_for {
            self.enter(job);
        }
        if !job.eval.is_empty() && (self.eval.0, &self.eval.1) != (job.eval_epoch, &job.eval) {
            let width = if self.bar.is_some() { self.screen.width() } else { usize::MAX };
            self.screen.line(&indented(&evaluation(job.eval_epoch, &job.eval), width));
            self.eval = (job.eval_epoch, job.eval.clone());
        }
        if job.state() != JobState::Running {
            return;
        }
        // Before the first step there is nothing to show.
        let Some(progress) = job.progress.filter(|progress| progress.step > 0) else { return };
        if progress.epochs == 0 {
            return self.update_search(job.reason.as_deref().unwrap_or_default());
        }
        let left = self.time_left(&progress);
        if let Some(bar) = &self.bar {
            if let Some(total) = progress.total_steps
                && bar.length() != Some(total)
            {
                bar.set_length(total);
                bar.set_style(style(true, self.screen.has_colours()));
            }
            bar.set_position(progress.step);
            let width =
                self.screen.width().saturating_sub(bar_width(job.state(), progress.total_steps.is_some()));
            bar.set_message(fitted(&parts(&progress, left), width));
        } else if self.last_line.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) {
            self.screen.line(&line(&progress, left));
            self.last_line = Some(Instant::now());
        }
    }

    /// Shows how far a search is, whose steps are those of all trials.
    fn update_search(&mut self, summary: &str) {
        if let Some(bar) = &self.bar {
            let width = self.screen.width().saturating_sub(bar_width(JobState::Running, false));
            bar.set_message(folded(summary, width).swap_remove(0).to_owned());
        } else if self.summary != summary && self.last_line.is_none_or(|last| last.elapsed() >= LINE_INTERVAL)
        {
            self.screen.line(&format!("  {summary}"));
            summary.clone_into(&mut self.summary);
            self.last_line = Some(Instant::now());
        }
    }

    /// The time until the end at the mean rate since the first step shown, evaluations included.
    fn time_left(&mut self, progress: &JobProgress) -> Option<Duration> {
        let now = Instant::now();
        let (since, first) = *self.first.get_or_insert((now, progress.step));
        if progress.step < first {
            // A new attempt has resumed from an earlier step.
            self.first = Some((now, progress.step));
            return None;
        }
        let (done, left) = (progress.step - first, progress.total_steps?.saturating_sub(progress.step));
        let passed = now.duration_since(since);
        (done > 0 && passed >= LEAST_MEASURED)
            .then(|| Duration::try_from_secs_f64(passed.as_secs_f64() * left as f64 / done as f64).ok())?
    }

    /// Removes the bar.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn enter(&mut self, job: &Job) {
        self.state = Some(job.state());
        self.waits_for.clone_from(&job.waits_for);
        let name = job.state().name();
        let why = job.waits_for.as_deref().unwrap_or_default();
        match &self.bar {
            Some(bar) => {
                bar.set_prefix(name);
                let width = self.screen.width().saturating_sub(bar_width(job.state(), false));
                bar.set_message(folded(why, width).swap_remove(0).to_owned());
            }
            None if why.is_empty() => self.screen.line(&format!("{} {name}", job.id)),
            None => self.screen.line(&format!("{} {name}: {why}", job.id)),
        }
    }
}

/// A progress bar on a terminal; silent elsewhere.
pub(crate) struct Gauge {
    bar: Option<ProgressBar>,
}

impl Gauge {
    /// Counts rows, whose total is unknown.
    pub(crate) fn rows(screen: &Screen, label: &'static str) -> Self {
        let style = checked("{spinner} {prefix}  {human_pos} rows");
        Self { bar: screen.show(ProgressBar::no_length().with_prefix(label), style) }
    }

    /// Counts up to `steps` steps.
    pub(crate) fn steps(screen: &Screen, label: &'static str, steps: u64) -> Self {
        let style = checked("{spinner} {prefix} [{bar:24}] {human_pos}/{human_len}");
        Self { bar: screen.show(ProgressBar::new(steps).with_prefix(label), style) }
    }

    /// Moves the bar to `done`.
    pub(crate) fn update(&self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// `text` in lines of `width` characters; the first is indented less than the others.
fn indented(text: &str, width: usize) -> String {
    format!("  {}", folded(text, width.saturating_sub(4)).join("\n    "))
}

/// The metrics of an evaluation, with its epoch.
pub(crate) fn evaluation(epoch: Option<u32>, eval: &[Metrics]) -> String {
    let epoch = epoch.map(|epoch| format!("epoch {}: ", epoch + 1)).unwrap_or_default();
    let of_labels: Vec<String> = eval.iter().map(metrics).collect();
    let examples = eval.first().map_or(0, |metrics| metrics.examples);
    format!("{epoch}{}  on {}", of_labels.join("  |  "), figures::counted(examples, "example"))
}

/// `auc 0.9051  log loss 0.3102  calibration 1.0170  accuracy 0.8551`: the main metrics only.
fn metrics(metrics: &Metrics) -> String {
    const MAIN: [&str; 13] = [
        "auc",
        "group_auc",
        "ndcg",
        "log_loss",
        "huber_loss",
        "pinball_loss",
        "coverage",
        "poisson_deviance",
        "mae",
        "r2",
        "calibration",
        "accuracy",
        "top5_accuracy",
    ];
    let is_number = figures::find(metrics, "mae").is_some();
    let names = is_number.then_some("rmse").into_iter().chain(MAIN);
    let found = names.filter_map(|name| Some((name, figures::find(metrics, name)?)));
    let figures = found.map(|(name, value)| {
        let (title, ranks) = (name.replace('_', " "), figures::first_ranks(metrics, name));
        format!("{title}{ranks} {}", figures::metric(value))
    });
    let label = (!metrics.label.is_empty()).then(|| metrics.label.clone());
    label.into_iter().chain(figures).collect::<Vec<_>>().join("  ")
}

fn line(progress: &JobProgress, left: Option<Duration>) -> String {
    let parts = parts(progress, left);
    format!("  {}", parts.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("  "))
}

/// The parts of a job's progress in the order of display, each with its rank: a narrow terminal does without those of the
/// highest rank.
fn parts(progress: &JobProgress, left: Option<Duration>) -> Vec<(u8, String)> {
    let JobProgress { step, total_steps, total_is_estimate, epoch, epochs, .. } = *progress;
    let about = if total_is_estimate { "~" } else { "" };
    let total = total_steps.filter(|&total| total > 0);
    let steps = total.map(|total| format!("/{about}{}", figures::count(total))).unwrap_or_default();
    let percent = total.map(|total| (0, format!("{about}{} %", 100 * step.min(total) / total)));
    let left = left.map(|left| (2, format!("ETA {about}{}", figures::duration(left))));
    let of_steps = (if percent.is_some() { 4 } else { 0 }, format!("step {}{steps}", figures::count(step)));
    let rest = [
        (5, format!("epoch {}/{epochs}", (epoch + 1).min(epochs.max(1)))),
        (3, format!("{} examples/s", figures::rate(progress.examples_per_second))),
        (6, format!("input wait {}", figures::percent(progress.input_wait_fraction))),
        (1, format!("loss {}", figures::metric(progress.loss))),
    ];
    percent.into_iter().chain(left).chain([of_steps]).chain(rest).collect()
}

/// Joins as many parts as fit into `width` characters.
fn fitted(parts: &[(u8, String)], width: usize) -> String {
    let joined = |most| {
        let shown = parts.iter().filter(|(rank, _)| *rank <= most).map(|(_, text)| text.as_str());
        shown.collect::<Vec<_>>().join("  ")
    };
    let largest = parts.iter().map(|(rank, _)| *rank).max().unwrap_or(0);
    (0..=largest).rev().map(joined).find(|text| text.chars().count() <= width).unwrap_or_default()
}

/// The width of what precedes the message: spinner, state and bar.
fn bar_width(state: JobState, has_length: bool) -> usize {
    "* ".len() + state.name().len() + "  ".len() + if has_length { BAR_COLUMNS + " []".len() } else { 0 }
}

fn style(has_length: bool, colours: bool) -> ProgressStyle {
    checked(&template(has_length, colours))
}

/// The style of `template`, or a plain bar if the template is invalid.
pub(crate) fn checked(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

fn template(has_length: bool, colours: bool) -> String {
    let colour = if colours { ".cyan" } else { "" };
    let bar = if has_length { format!(" [{{bar:{BAR_COLUMNS}{colour}}}]") } else { String::new() };
    format!("{{spinner{}}} {{prefix}}{bar}  {{wide_msg}}", if colours { ":.cyan" } else { "" })
}

#[cfg(test)]
mod tests {
    use millstream_control::proto::MetricValue;

    use super::*;

    #[test]
    fn line_shows_step_rate_and_loss() {
        let mut progress = JobProgress {
            step: 1_200,
            total_steps: Some(2_400),
            epoch: 4,
            epochs: 10,
            examples: 307_200,
            examples_per_second: 54_321.9,
            input_wait_fraction: 0.031,
            loss: 0.33333,
            skipped_records: 0,
            total_is_estimate: false,
        };
        let left = Some(Duration::from_secs(83));
        let wanted = "  50 %  ETA 1m 23s  step 1,200/2,400  epoch 5/10  54,322 examples/s  input wait 3.1 %  loss 0.3333";
        assert_eq!(line(&progress, left), wanted);
        progress.total_is_estimate = true;
        let estimated = line(&progress, left);
        assert!(estimated.starts_with("  ~50 %  ETA ~1m 23s  step 1,200/~2,400  epoch"), "{estimated}");
        progress.total_steps = None;
        progress.epoch = 10;
        assert!(
            line(&progress, None).starts_with("  step 1,200  epoch 10/10"),
            "the epoch does not exceed the number of epochs"
        );
    }

    #[test]
    fn a_narrow_terminal_shows_the_main_figures() {
        let progress = JobProgress {
            step: 123_456,
            total_steps: Some(250_000),
            epochs: 16,
            examples_per_second: 1_234_567.0,
            input_wait_fraction: 0.031,
            loss: 0.3102,
            ..JobProgress::default()
        };
        let parts = parts(&progress, Some(Duration::from_secs(200)));
        let shown = |width: usize| fitted(&parts, width - bar_width(JobState::Running, true));
        assert_eq!(shown(80), "49 %  ETA 3m 20s  1,234,567 examples/s  loss 0.3102");
        assert_eq!(shown(60), "49 %  ETA 3m 20s  loss 0.3102");
        assert_eq!(shown(40), "49 %");
        assert!(shown(140).contains("epoch 1/16") && shown(140).contains("input wait 3.1 %"));
    }

    #[test]
    fn evaluation_shows_its_epoch() {
        let of = |label: &str, measured: &[(&str, Option<f64>)]| {
            let measured =
                measured.iter().map(|&(name, value)| MetricValue { name: name.into(), value, error: None });
            let measured = measured.collect();
            Metrics { label: label.into(), measured, examples: 1_000, groups: None, top_k: Some(5) }
        };
        let known =
            [("auc", Some(0.75)), ("log_loss", Some(0.5)), ("rmse", Some(0.4)), ("accuracy", Some(0.8))];
        let wanted = "epoch 3: auc 0.7500  log loss 0.5000  accuracy 0.8000  on 1,000 examples";
        assert_eq!(evaluation(Some(2), &[of("", &known)]), wanted);
        assert_eq!(evaluation(None, &[of("", &known)]), &wanted["epoch 3: ".len()..]);
        let (grouped, number) =
            ([("auc", None), ("ndcg", Some(0.6))], [("rmse", Some(2.0)), ("mae", Some(1.5))]);
        let wanted = "bought  auc -  ndcg@5 0.6000  |  price  rmse 2.0000  mae 1.5000  on 1,000 examples";
        assert_eq!(evaluation(None, &[of("bought", &grouped), of("price", &number)]), wanted);
    }

    #[test]
    fn templates_are_valid() {
        for (has_length, colours) in [(false, false), (false, true), (true, false), (true, true)] {
            let template = template(has_length, colours);
            assert!(ProgressStyle::with_template(&template).is_ok(), "{template}");
        }
        assert!(ProgressStyle::with_template("{bar:x}").is_err(), "an invalid template is an error");
    }
}
