//! The page of one job: its state, its curves, its bottleneck and the end of its log.

use std::time::Duration;

use millstream_control::proto::{Diagnosis, HistoryPoint, LogLine, StageUse};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;

use super::super::feed::Page;
use super::super::model::Model;
use super::super::rows::Row;
use super::{Palette, jobs, one_line};
use crate::commands::plot_of;
use crate::figures;
use crate::gpu_use;
use crate::plot::{self, Curve};
use crate::table::folded;

/// From this width on, curves are side by side.
const SIDE_BY_SIDE: u16 = 100;

/// The minimum and maximum lines of a curve, with its title and axis.
const MIN_CURVE_LINES: usize = 7;
const MAX_CURVE_LINES: usize = 12;

/// Curves of more points are drawn without one in `START_SHARE` of them, the first ones.
const MANY_POINTS: usize = 100;
const START_SHARE: usize = 50;

pub(super) fn draw(model: &Model, row: &Row, palette: Palette, frame: &mut Frame<'_>, area: Rect) {
    let width = usize::from(area.width);
    let facts = facts(model, row, palette, width);
    let findings = findings(row, palette, width);
    let (curves, curve_lines) = curves_within(area, facts.len() + findings.len());
    let areas = [
        Constraint::Length(facts.len() as u16 + 1),
        Constraint::Length(curves.height(curve_lines)),
        Constraint::Length(findings.len() as u16 + 1),
        Constraint::Min(0),
    ];
    let [top, middle, below, bottom] = Layout::vertical(areas).areas(area);
    frame.render_widget(Paragraph::new(facts), top);
    frame.render_widget(Paragraph::new(findings), below);
    if let Some(page) = model.page() {
        draw_curves(page, curves, curve_lines, frame, middle);
        draw_log(&page.log, palette, frame, bottom);
    }
}

/// How the curves are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrangement {
    SideBySide,
    Stacked,
    LossAlone,
    None,
}

impl Arrangement {
    /// The height of all curves, each of this many lines.
    fn height(self, lines: usize) -> u16 {
        let below = match self {
            Self::SideBySide | Self::LossAlone => 1,
            Self::Stacked => 2,
            Self::None => 0,
        };
        (below * lines) as u16
    }
}

/// The arrangement of the curves and the lines of each with its frame, beside `others` lines of text and so that at least
/// a third of the rest is left for the log.
fn curves_within(area: Rect, others: usize) -> (Arrangement, usize) {
    let room = usize::from(area.height).saturating_sub(others + 2) * 2 / 3;
    let arrangement = match room {
        room if room < MIN_CURVE_LINES => Arrangement::None,
        _ if area.width >= SIDE_BY_SIDE => Arrangement::SideBySide,
        room if room >= 2 * MIN_CURVE_LINES => Arrangement::Stacked,
        _ => Arrangement::LossAlone,
    };
    let each = if arrangement == Arrangement::Stacked { room / 2 } else { room };
    (arrangement, each.min(MAX_CURVE_LINES))
}

fn facts(model: &Model, row: &Row, palette: Palette, width: usize) -> Vec<Line<'static>> {
    let job = &row.job;
    let mut title = vec![
        Span::from(one_line(&job.id)).style(Modifier::BOLD),
        Span::from("  "),
        Span::from(job.state().name()).style(palette.state(job.state())),
    ];
    if let Some(owner) = &job.owner {
        title.push(Span::from(format!("  of {}", one_line(owner))));
    }
    if job.priority != 0 {
        title.push(Span::from(format!("  priority {}", job.priority)));
    }
    let mut lines = vec![Line::from(title)];
    if let Some(progress) = row.training() {
        let total = progress.total_steps.map(|total| {
            let about = if progress.total_is_estimate { "about " } else { "" };
            format!(" of {about}{}", figures::count(total))
        });
        let mut parts = vec![
            format!("step {}{}", figures::count(progress.step), total.unwrap_or_default()),
            format!("epoch {} of {}", (progress.epoch + 1).min(progress.epochs.max(1)), progress.epochs),
        ];
        parts.extend(jobs::done(row));
        parts.extend(jobs::eta(row).map(|eta| format!("{eta} left")));
        parts.push(format!("{} rows/s", figures::rate(progress.examples_per_second)));
        parts.push(format!("loss {}", figures::metric(progress.loss)));
        parts.push(format!("input wait {}", figures::percent(progress.input_wait_fraction)));
        lines.extend(flowing(parts, width));
    }
    let mut parts = Vec::new();
    parts.extend(job.device.as_ref().map(|device| one_line(&device.description)));
    parts.extend(row.cores.map(|cores| format!("{cores:.1} cores busy")));
    parts.extend(row.memory().map(|bytes| format!("worker {}", figures::bytes(bytes))));
    parts.extend(checkpoint(model, row));
    let gpus = model.snapshot.iter().flat_map(|snapshot| &snapshot.gpus).filter(|gpus| !gpus.is_stale);
    let used = gpus.flat_map(|gpus| &gpus.gpus).filter(|gpu| gpu.jobs.iter().any(|other| other.id == job.id));
    parts.extend(used.map(|gpu| format!("gpu {}", gpu_use::of_job(gpu, &job.id))));
    lines.extend(flowing(parts, width));
    lines
}

/// The parts in lines of at most `width` characters. A longer part is a separate line.
fn flowing(parts: Vec<String>, width: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 3 + part.chars().count() <= width => {
                *line += "   ";
                *line += &part;
            }
            _ => lines.push(part),
        }
    }
    lines.into_iter().map(Line::from).collect()
}

/// `checkpoint at step 1,200, 30s ago`
fn checkpoint(model: &Model, row: &Row) -> Option<String> {
    let activity = row.activity.as_ref()?;
    let step = figures::count(activity.checkpoint_step?);
    let age = activity.checkpoint_ms.zip(model.snapshot.as_ref()).map(|(committed, snapshot)| {
        let age = Duration::from_millis(snapshot.at_ms.saturating_sub(committed));
        format!(", {} ago", figures::age(age))
    });
    Some(format!("checkpoint at step {step}{}", age.unwrap_or_default()))
}

/// The bottleneck, advice and the stages of ingest; of a job that is not running, why.
fn findings(row: &Row, palette: Palette, width: usize) -> Vec<Line<'static>> {
    const TITLE: usize = 12;
    let entry = |title: &str, text: &str| {
        let text = one_line(text);
        let folded = folded(&text, width.saturating_sub(TITLE).max(20)).into_iter().map(str::to_owned);
        let titles = std::iter::once(title.to_owned()).chain(std::iter::repeat(String::new()));
        folded
            .zip(titles)
            .map(|(text, title)| Line::from(format!("{title:<TITLE$}{text}")))
            .collect::<Vec<_>>()
    };
    let ingest = row.activity.as_ref().and_then(|activity| activity.ingest.as_ref());
    let Some(found) = ingest.and_then(|ingest| ingest.recent.as_ref()).filter(|_| row.is_running()) else {
        let note = row.note();
        return if note.is_empty() { Vec::new() } else { entry("note", &note) };
    };
    let Diagnosis { bound, because, advice, stages, .. } = found;
    let mut lines = entry("bottleneck", &format!("{bound}: {because}"));
    for (nth, advice) in advice.iter().enumerate() {
        lines.extend(entry(if nth == 0 { "advice" } else { "" }, advice));
    }
    let mut spans = vec![Span::from(format!("{:<TITLE$}", "ingest"))];
    for StageUse { stage, busy, waiting, .. } in stages {
        let (text, colour) = match busy {
            Some(busy) => {
                (format!("{:.0} %", busy * 100.0), if *busy > 0.9 { Color::Yellow } else { Color::Reset })
            }
            None => (format!("{waiting:.1} waiting"), Color::Reset),
        };
        spans.push(Span::from(format!("{stage} ")));
        spans.push(Span::from(format!("{text}   ")).style(palette.colour(colour)));
    }
    lines.push(Line::from(spans));
    lines
}

fn draw_curves(page: &Page, arrangement: Arrangement, lines: usize, frame: &mut Frame<'_>, area: Rect) {
    let (layout, gap) = match arrangement {
        Arrangement::SideBySide => (Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]), 2),
        Arrangement::Stacked => (Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]), 0),
        Arrangement::LossAlone => (Layout::vertical([Constraint::Fill(1)]), 0),
        Arrangement::None => return,
    };
    let areas = layout.spacing(gap).split(area);
    let curves = plot_of(&page.history, &["loss".to_owned()])
        .curves
        .into_iter()
        .take(1)
        .map(after_start)
        .chain(rate(&page.history.points));
    for (curve, area) in curves.zip(areas.iter().copied()) {
        let drawn = plot::panel(&curve, usize::from(area.width), lines);
        frame.render_widget(Paragraph::new(Text::from(drawn)), area);
    }
}

/// The curve without its first points, if it has many: the loss falls steeply at first, which would flatten all that follows.
fn after_start(mut curve: Curve) -> Curve {
    if curve.points.len() > MANY_POINTS {
        curve.points.drain(..curve.points.len() / START_SHARE);
    }
    curve
}

/// The training rate over the steps.
fn rate(points: &[HistoryPoint]) -> Option<Curve> {
    let points: Vec<(u64, f64)> = points
        .iter()
        .map(|point| (point.step, point.examples_per_second))
        .filter(|(_, rate)| rate.is_finite())
        .collect();
    (!points.is_empty()).then(|| Curve { name: "rows/s".to_owned(), points, marks: None })
}

/// The last lines of the log that fit.
fn draw_log(log: &[LogLine], palette: Palette, frame: &mut Frame<'_>, area: Rect) {
    let shown = &log[log.len().saturating_sub(usize::from(area.height))..];
    let lines: Vec<Line<'_>> = shown
        .iter()
        .map(|line| {
            let style = match line.level.as_str() {
                "error" => palette.colour(Color::Red),
                "warn" => palette.colour(Color::Yellow),
                _ => palette.dim(),
            };
            let moment = figures::moment(line.at_ms);
            let time = moment.split(' ').nth(1).unwrap_or(&moment);
            Line::from(vec![
                Span::from(format!("{time}  ")).style(palette.dim()),
                Span::from(one_line(&line.text)).style(style),
            ])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), area);
}
