//! Draws the state of the screen: the host above, jobs or one job's page, keys below.

mod feeds;
mod gpus;
mod job;
mod jobs;

use std::time::Duration;

use millstream_control::proto::{JobState, Snapshot};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::model::{Dialog, Model};
use crate::figures;
use crate::printable::one_line;

/// Lines of the host besides its GPUs and feeds, with an empty one below.
const HEADER_LINES: u16 = 4;

/// The lines that are left to jobs and keys: titles, a job, keys.
const LINES_OF_JOBS: u16 = 3;

/// Width of a bar, in characters.
const BAR: usize = 12;

const KEYS: &str =
    "↑↓ select  enter open  / filter  s sort  c cancel  p pause  r resume  w checkpoint  ? help  q quit";
const KEYS_OF_PAGE: &str =
    "esc back  ↑↓ other job  c cancel  p pause  r resume  w checkpoint  ? help  q quit";

const HELP: [(&str, &str); 11] = [
    ("↑ ↓, k j", "select a job; on its page: the job before or after"),
    ("page up, page down", "ten jobs further; home and end: the first and the last"),
    ("enter", "open the page of the job: curves, bottleneck, advice, log"),
    ("esc", "back; without a page: clear the filter"),
    ("/", "filter by id, name, user or state"),
    ("s, S", "the next order; the opposite order"),
    ("c", "save a checkpoint, then cancel the job"),
    ("p", "save a checkpoint, then pause the job"),
    ("r", "resume a paused, cancelled, failed or held job"),
    ("w", "save a checkpoint now"),
    ("q, ctrl-c", "quit; jobs go on"),
];

/// Whether the terminal shows colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Palette {
    Coloured,
    Plain,
}

impl Palette {
    fn colour(self, colour: Color) -> Style {
        match self {
            Self::Coloured => Style::new().fg(colour),
            Self::Plain => Style::new(),
        }
    }

    fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn state(self, state: JobState) -> Style {
        match state {
            JobState::Running => self.colour(Color::Green),
            JobState::Preparing => self.colour(Color::Cyan),
            JobState::Failed => self.colour(Color::Red),
            JobState::Held | JobState::Paused => self.colour(Color::Yellow),
            JobState::Succeeded | JobState::Cancelled => self.dim(),
            JobState::Queued | JobState::Unspecified => Style::new(),
        }
    }
}

/// The number of lines that show everything.
pub(super) fn height(model: &Model) -> u16 {
    let heads = device_lines(model, u16::MAX).iter().sum::<u16>();
    // The titles of the jobs, and the keys.
    listed_jobs(model).saturating_add(heads).saturating_add(HEADER_LINES + 2)
}

/// The lines of all jobs, at least 1.
fn listed_jobs(model: &Model) -> u16 {
    u16::try_from(model.listed().max(1)).unwrap_or(u16::MAX)
}

/// The numbers of lines of GPUs and of feeds on a screen of `height` lines. Feeds have at most a quarter of them, unless jobs leave
/// more.
fn device_lines(model: &Model, height: u16) -> [u16; 2] {
    let free = height.saturating_sub(HEADER_LINES + LINES_OF_JOBS);
    let gpus = gpus::lines(model).min(free);
    let room = free - gpus;
    let left_by_jobs = room.saturating_sub(listed_jobs(model) - 1);
    let feeds = u16::try_from(model.feeds.len()).unwrap_or(u16::MAX);
    [gpus, feeds.min(left_by_jobs.max(height / 4)).min(room)]
}

/// Draws the whole screen.
pub(super) fn draw(model: &Model, palette: Palette, frame: &mut Frame<'_>) {
    let [gpus, feeds] = device_lines(model, frame.area().height);
    let areas = [Constraint::Length(HEADER_LINES + gpus + feeds), Constraint::Min(1), Constraint::Length(1)];
    let [header, body, footer] = Layout::vertical(areas).areas(frame.area());
    match &model.snapshot {
        Some(snapshot) => {
            let mut lines = host(model, snapshot, palette);
            lines.extend(gpus::draw(snapshot, palette, gpus.into()));
            lines.extend(feeds::draw(&model.feeds, palette, feeds.into()));
            frame.render_widget(Paragraph::new(lines), header);
        }
        None => frame.render_widget("asking the daemon ...", header),
    }
    match model.opened_row() {
        Some(row) => job::draw(model, row, palette, frame, body),
        None => jobs::draw(model, palette, frame, body),
    }
    frame.render_widget(keys(model, palette), footer);
    if model.dialog == Dialog::Help {
        draw_help(frame, body);
    }
}

/// The lines of the host, its jobs and its resources.
fn host(model: &Model, snapshot: &Snapshot, palette: Palette) -> Vec<Line<'static>> {
    let host = snapshot.host.clone().unwrap_or_default();
    let up = Duration::from_millis(snapshot.at_ms.saturating_sub(snapshot.started_ms));
    let title = Line::from(vec![
        Span::from(one_line(&host.name)).style(Modifier::BOLD),
        Span::from(format!("  millstreamd {}, up {}", snapshot.version, figures::duration(up))),
        Span::from(if snapshot.is_stopping { "  stopping" } else { "" }).style(palette.colour(Color::Yellow)),
    ]);
    let mut used = vec![Span::from("cpu ")];
    used.extend(bar(model.cores().map(|cores| cores / host.cores.max(1) as f64), palette));
    let cores = model.cores().map_or_else(|| "-".to_owned(), |cores| format!("{cores:.1}"));
    used.push(Span::from(format!(" {cores} of {}   ", figures::counted(host.cores, "core"))));
    if let (Some(all), Some(available)) = (host.memory_bytes, host.available_bytes) {
        let in_use = all.saturating_sub(available);
        used.push(Span::from("memory "));
        used.extend(bar(Some(in_use as f64 / all.max(1) as f64), palette));
        used.push(Span::from(format!(" {} of {}   ", figures::bytes(in_use), figures::bytes(all))));
    }
    if let [last, ..] = host.load[..] {
        used.push(Span::from(format!("load {last:.1}   ")));
    }
    vec![title, jobs_line(snapshot), Line::from(used)]
}

/// `2 running, 5 queued, 1 held; ended since the start: 40 succeeded, 1 failed`
fn jobs_line(snapshot: &Snapshot) -> Line<'static> {
    let under_way = |state| {
        snapshot
            .jobs
            .iter()
            .filter_map(|activity| activity.job.as_ref())
            .filter(|job| job.state() == state)
            .count() as u64
    };
    let mut now = vec![(under_way(JobState::Running), "running")];
    now.extend(
        [
            (under_way(JobState::Preparing), "preparing"),
            (snapshot.queued_jobs, "queued"),
            (snapshot.held_jobs, "held"),
        ]
        .into_iter()
        .filter(|&(count, _)| count > 0),
    );
    let ended = snapshot.ended_jobs.unwrap_or_default();
    let ended = [(ended.succeeded, "succeeded"), (ended.failed, "failed"), (ended.cancelled, "cancelled")];
    let list = |counts: &[(u64, &str)]| {
        let parts: Vec<String> =
            counts.iter().map(|(count, name)| format!("{} {name}", figures::count(*count))).collect();
        parts.join(", ")
    };
    let ended: Vec<_> = ended.into_iter().filter(|&(count, _)| count > 0).collect();
    let ended = if ended.is_empty() { String::new() } else { format!("   ended: {}", list(&ended)) };
    Line::from(format!("{}{ended}", list(&now)))
}

/// A bar for a share from 0 to 1; dashes if it is unknown.
fn bar(share: Option<f64>, palette: Palette) -> [Span<'static>; 2] {
    let Some(share) = share else {
        return [Span::from("-".repeat(BAR)).style(palette.dim()), Span::from("")];
    };
    let full = ((share * BAR as f64).round() as usize).min(BAR);
    let colour = match share {
        share if share > 0.9 => Color::Red,
        share if share > 0.7 => Color::Yellow,
        _ => Color::Green,
    };
    [
        Span::from("█".repeat(full)).style(palette.colour(colour)),
        Span::from("░".repeat(BAR - full)).style(palette.dim()),
    ]
}

/// The last line: a question, what happened, or the keys.
fn keys(model: &Model, palette: Palette) -> Line<'static> {
    let warning = palette.colour(Color::Yellow).add_modifier(Modifier::BOLD);
    if let Some(question) = model.dialog.question() {
        return Line::from(one_line(&question)).style(warning);
    }
    if model.dialog == Dialog::Filter {
        return Line::from(format!("filter: {}█   enter keep  esc clear", model.filter));
    }
    if let Some(why) = &model.lost {
        return Line::from(one_line(why)).style(warning);
    }
    if let Some(notice) = &model.notice {
        return Line::from(one_line(notice)).style(palette.colour(Color::Cyan));
    }
    Line::from(if model.opened().is_some() { KEYS_OF_PAGE } else { KEYS }).style(palette.dim())
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let width = HELP.iter().map(|(key, _)| key.chars().count()).max().unwrap_or_default();
    let lines: Vec<Line<'_>> =
        HELP.iter().map(|(key, what)| Line::from(format!(" {key:<width$}  {what}"))).collect();
    let wide = lines.iter().map(Line::width).max().unwrap_or_default() as u16 + 3;
    let area = area.centered(
        Constraint::Length(wide.min(area.width)),
        Constraint::Length((HELP.len() as u16 + 2).min(area.height)),
    );
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), area);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_control::proto::{
        Diagnosis, EndedJobs, Evaluation, Explanation, Feed, History, HistoryPoint, HostUse, Job,
        JobActivity, JobProgress, ListReply, LogLine, MetricValue, Metrics, NamedValue, ProcessUse, StageUse,
    };
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::feed::{Answer, Page};
    use super::super::rows::tests::job;
    use super::super::text_of;
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn running() -> Job {
        let mut running = job("census-wide-deep-2f9c", JobState::Running, 1);
        running.owner = Some("ann".into());
        running.progress = Some(JobProgress {
            step: 123_456,
            total_steps: Some(250_000),
            epoch: 11,
            epochs: 16,
            examples: 123_456 * 256,
            examples_per_second: 1_234_567.0,
            loss: 0.3102,
            input_wait_fraction: 0.031,
            ..JobProgress::default()
        });
        let auc = MetricValue { name: "auc".into(), value: Some(0.9151), error: None };
        running.eval = vec![Metrics { measured: vec![auc], ..Metrics::default() }];
        running
    }

    fn look(nth: u64, page: Option<Page>) -> Answer {
        let stage = |stage: &str, busy, waits_for: &str| StageUse {
            stage: stage.into(),
            busy,
            waiting: 1.5,
            waits_for: waits_for.into(),
        };
        let found = Diagnosis {
            rows_per_second: 1_234_567.0,
            bound: "consumer".into(),
            because: "the worker takes batches more slowly than they are made".into(),
            advice: vec!["more `training.threads`".into()],
            stages: vec![stage("fetch", None, "lanes for bytes"), stage("decode", Some(0.42), "")],
            ..Diagnosis::default()
        };
        let process = |pid, nth: u64| ProcessUse {
            pid,
            resident_bytes: 3 << 28,
            cpu_seconds: 1.2 * nth as f64,
            threads: 9,
        };
        let ingest = Explanation { recent: Some(found), ..Explanation::default() };
        let activity = JobActivity {
            job: Some(running()),
            worker: Some(process(8, nth)),
            ingest: Some(ingest),
            checkpoint_step: Some(123_000),
            checkpoint_ms: Some(HOUR_MS - 30_000),
        };
        let snapshot = Snapshot {
            at_ms: HOUR_MS + 1_000 * nth,
            version: "0.1.0".into(),
            process: Some(process(7, nth)),
            queued_jobs: 1,
            ended_jobs: Some(EndedJobs { succeeded: 41, failed: 1, ..EndedJobs::default() }),
            host: Some(HostUse {
                name: "trainer-1".into(),
                cores: 8,
                memory_bytes: Some(32 << 30),
                available_bytes: Some(8 << 30),
                load: vec![2.5, 2.0, 1.0],
            }),
            jobs: vec![activity],
            ..Snapshot::default()
        };
        let waits_for = Some("it needs 2 threads, and running jobs leave 0 of 2".into());
        let queued = Job { waits_for, ..job("clicks-81d0", JobState::Queued, 2) };
        let reason = Some("the daemon died twice\nwhile it was \u{1b}[31munder way".into());
        let held = Job { reason, ..job("clicks-7a", JobState::Held, 2) };
        let jobs = ListReply { jobs: vec![running(), queued, held], omitted: 12 };
        Answer::Look { snapshot: Box::new(snapshot), jobs, feeds: Vec::new(), page: page.map(Box::new) }
    }

    fn page() -> Page {
        let point = |step: u32| HistoryPoint {
            step: u64::from(step) * 1_000,
            loss: 0.3 + 0.4 / f64::from(step),
            examples_per_second: 1e6,
            input_wait_fraction: 0.0,
        };
        let evaluation = |step| Evaluation {
            step,
            epoch: 1,
            metrics: vec![
                NamedValue { name: "auc".into(), value: 0.9 },
                NamedValue { name: "log_loss".into(), value: 0.33 },
            ],
        };
        let history = History {
            job: Some(running()),
            points: (1..124).map(point).collect(),
            evaluations: vec![evaluation(50_000), evaluation(100_000)],
        };
        let line = |text: &str| LogLine { at_ms: HOUR_MS, level: "info".into(), text: text.into() };
        let log = vec![line("evaluated"), line("saved a checkpoint\u{7}")];
        Page { id: "census-wide-deep-2f9c".into(), history, log }
    }

    fn pressed(model: &mut Model, code: KeyCode) {
        model.pressed(KeyEvent::new(code, KeyModifiers::NONE));
    }

    fn drawn(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(model, Palette::Plain, frame)).unwrap();
        text_of(terminal.backend().buffer())
    }

    fn model() -> Model {
        let mut model = Model::default();
        (0..4).for_each(|nth| model.answered(look(nth, None)));
        model
    }

    #[test]
    fn the_overview_shows_host_and_jobs() {
        let wanted = "\
trainer-1  millstreamd 0.1.0, up 1h 00m
1 running, 1 queued   ended: 41 succeeded, 1 failed
cpu ████░░░░░░░░ 2.4 of 8 cores   memory █████████░░░ 24.0 GiB of 32.0 GiB   load 2.5

JOB                    USER  STATE    DONE  ETA     ROWS/S                LOSS                    EVAL  WAIT  CPU        MEM  NOTE
census-wide-deep-2f9c  ann   running  49 %  26s  1,234,567        ▅▅▅▅  0.3102        ▅▅▅▅  auc 0.9151   3 %  1.2  768.0 MiB  consumer: the worker takes batches
clicks-81d0                  queued   waits: it needs 2 threads, and running jobs leave 0 of 2
clicks-7a                    held     the daemon died twice while it was \\u{1b}[31munder way
and 12 older jobs
";
        let shown = drawn(&model(), 160, 12);
        assert!(shown.starts_with(wanted), "{shown}");
    }

    #[test]
    fn feeds_of_other_trainers_have_a_line_each() {
        let feed = |id: &str, attached, rate: Option<f64>| Feed {
            id: id.into(),
            owner: "ann".into(),
            state: if rate.is_some() { "feeding" } else { "opening" }.into(),
            ranks: 8,
            attached,
            rows_per_second: rate,
            bound: rate.map(|_| "consumer".into()),
            memory_bytes: 2 << 30,
            ..Feed::default()
        };
        let mut model = model();
        model.feeds = vec![feed("feed-k3f9q2", 8, Some(1_234_567.0)), feed("feed-7", 3, None)];
        let wanted = "
feed-k3f9q2   ann   feeding   8 ranks        1,234,567 rows/s   2.0 GiB   consumer
feed-7        ann   opening   3 of 8 ranks                      2.0 GiB

JOB ";
        let shown = drawn(&model, 160, 16);
        assert!(shown.contains(wanted), "{shown}");
        model.feeds.extend((0..30).map(|number| feed(&format!("feed-{number}"), 8, None)));
        let shown = drawn(&model, 160, 16);
        assert!(shown.contains("feed-3 ") && shown.contains("and 26 more feeds"), "{shown}");
        assert!(shown.contains("clicks-7a"), "jobs leave as much: {shown}");
        let shown = drawn(&model, 160, 10);
        assert!(shown.contains("feed-k3f9q2") && shown.contains("and 31 more feeds"), "a quarter: {shown}");
        let whole = drawn(&model, 160, height(&model));
        assert!(whole.contains("feed-29") && whole.contains("clicks-7a"), "{whole}");
    }

    #[test]
    fn narrow_terminals_keep_what_matters() {
        for (width, height) in [(120, 30), (80, 24), (60, 16), (30, 8), (10, 4), (1, 1)] {
            let mut model = model();
            let overview = drawn(&model, width, height);
            if width >= 60 {
                for text in ["census-wide-deep-2f9c", "running", "49 %", "1,234,567"] {
                    assert!(overview.contains(text), "{width}: {overview}");
                }
            }
            pressed(&mut model, KeyCode::Enter);
            model.answered(look(4, Some(page())));
            let opened = drawn(&model, width, height);
            if width >= 60 {
                assert!(opened.contains("consumer") && opened.contains("loss"), "{width}: {opened}");
            }
            pressed(&mut model, KeyCode::Char('?'));
            drawn(&model, width, height);
        }
    }

    #[test]
    fn a_page_shows_curves_bottleneck_and_log() {
        let mut model = model();
        pressed(&mut model, KeyCode::Enter);
        let waiting = drawn(&model, 120, 40);
        assert!(waiting.contains("census-wide-deep-2f9c"), "{waiting}");
        model.answered(look(4, Some(page())));
        let shown = drawn(&model, 120, 40);
        let texts = [
            "step 123,456 of 250,000",
            "training loss  last",
            "rows/s  last",
            "● held-out log loss",
            "bottleneck  consumer: the worker",
            "more `training.threads`",
            "decode",
            "saved a checkpoint\\u{7}",
        ];
        for text in texts {
            assert!(shown.contains(text), "{text}: {shown}");
        }
    }

    #[test]
    fn questions_and_problems_replace_the_keys() {
        let mut model = model();
        pressed(&mut model, KeyCode::Char('c'));
        assert!(drawn(&model, 120, 20).contains("cancel it? [y/n]"));
        pressed(&mut model, KeyCode::Char('n'));
        model.answered(Answer::Lost("no daemon listens on /run/d.sock".into()));
        assert!(drawn(&model, 120, 20).contains("no daemon listens on /run/d.sock"));
        pressed(&mut model, KeyCode::Char('/'));
        pressed(&mut model, KeyCode::Char('x'));
        let shown = drawn(&model, 120, 20);
        assert!(shown.contains("filter: x") && shown.contains("no job matches"), "{shown}");
    }
}
