//! The table of jobs. Columns are as wide as their texts; a narrow terminal does without the less important ones.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::super::model::Model;
use super::super::rows::Row;
use super::{Palette, one_line};
use crate::figures;

/// Width of a line of bars.
const BARS: usize = 10;

/// Spaces between columns.
const GAP: usize = 2;

/// The minimum width of the last column, the note.
const MIN_NOTE: usize = 16;

/// A column.
struct Column {
    title: &'static str,
    is_right: bool,
    /// Columns of a higher number are left out first; those of 0 never.
    expendable: u8,
    text: fn(&Row, &Model) -> String,
}

const fn left(title: &'static str, expendable: u8, text: fn(&Row, &Model) -> String) -> Column {
    Column { title, is_right: false, expendable, text }
}

const fn right(title: &'static str, expendable: u8, text: fn(&Row, &Model) -> String) -> Column {
    Column { title, is_right: true, expendable, text }
}

/// The position of the state among the columns, which has a colour.
const STATE: usize = 2;

const COLUMNS: [Column; 13] = [
    left("JOB", 0, |row, _| one_line(&row.job.id)),
    left("USER", 4, |row, _| row.job.owner.as_deref().map(one_line).unwrap_or_default()),
    left("STATE", 0, |row, _| row.job.state().name().to_owned()),
    right("DONE", 0, |row, _| done(row).unwrap_or_default()),
    right("ETA", 1, |row, _| eta(row).unwrap_or_default()),
    right("ROWS/S", 0, |row, _| if_running(row, figures::rate(row.progress().examples_per_second))),
    left("", 8, |row, model| bars(model.trend(&row.job.id).map(|trend| &trend.rate))),
    right("LOSS", 2, |row, _| {
        row.training().map(|progress| figures::metric(progress.loss)).unwrap_or_default()
    }),
    left("", 7, |row, model| bars(model.trend(&row.job.id).map(|trend| &trend.loss))),
    right("EVAL", 3, |row, _| evaluation(row).unwrap_or_default()),
    right("WAIT", 2, |row, _| {
        if_running(row, format!("{:.0} %", row.progress().input_wait_fraction * 100.0))
    }),
    right("CPU", 5, |row, _| row.cores.map(|cores| format!("{cores:.1}")).unwrap_or_default()),
    right("MEM", 6, |row, _| row.memory().map(figures::bytes).unwrap_or_default()),
];

/// Draws the jobs that pass the filter; those around the selected one if there is not room for all.
pub(super) fn draw(model: &Model, palette: Palette, frame: &mut Frame<'_>, area: Rect) {
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let shown = model.shown();
    let selected = model.selected();
    let rows = height.saturating_sub(1).max(1);
    let first = first_row(selected.unwrap_or_default(), rows, shown.len());
    let visible = &shown[first..shown.len().min(first + rows)];
    let texts: Vec<Vec<String>> =
        visible.iter().map(|row| COLUMNS.iter().map(|column| (column.text)(row, model)).collect()).collect();
    let (columns, note_width) = columns_within(width, &texts);

    let mut lines = vec![title(model, &columns)];
    for (nth, (row, texts)) in visible.iter().zip(&texts).enumerate() {
        let mut spans = Vec::new();
        let mut note_width = note_width;
        for &(column, width) in &columns {
            // A job that has no figures has room for its note instead.
            if column > STATE && row.training().is_none() {
                note_width += width + GAP;
                continue;
            }
            let style = if column == STATE { palette.state(row.job.state()) } else { Style::new() };
            spans.push(Span::from(padded(&texts[column], width, COLUMNS[column].is_right)).style(style));
            spans.push(Span::from(" ".repeat(GAP)));
        }
        let note: String = one_line(&row.note()).chars().take(note_width).collect();
        spans.push(Span::from(note).style(palette.dim()));
        let is_selected = selected == Some(first + nth);
        let style = if is_selected { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        // Over the whole width.
        spans.push(Span::from(" ".repeat(if is_selected { width } else { 0 })));
        lines.push(Line::from(spans).style(style));
    }
    lines.extend(below(model, shown.len()).map(|text| Line::from(text).style(palette.dim())));
    frame.render_widget(Paragraph::new(lines), area);
}

/// The titles, that of the order's column marked by its name in front.
fn title(model: &Model, columns: &[(usize, usize)]) -> Line<'static> {
    let mut text: String = columns
        .iter()
        .map(|&(column, width)| {
            padded(COLUMNS[column].title, width, COLUMNS[column].is_right) + &" ".repeat(GAP)
        })
        .collect();
    text += "NOTE";
    if model.sort != super::super::rows::Sort::State || model.is_reversed {
        let order = if model.is_reversed { ", reversed" } else { "" };
        text += &format!("  (by {}{order})", model.sort.name());
    }
    Line::from(text).style(Modifier::BOLD)
}

/// What follows the jobs.
fn below(model: &Model, shown: usize) -> Option<String> {
    match (shown, model.listed()) {
        (0, 0) if model.snapshot.is_some() => {
            Some("no jobs; `millstream submit JOB.toml` adds one".to_owned())
        }
        (0, 1..) => Some(format!("no job matches `{}`", model.filter)),
        _ if model.omitted > 0 => Some(format!("and {}", figures::counted(model.omitted, "older job"))),
        _ => None,
    }
}

/// The first visible row, so that the selected one is among `rows` of `all`.
fn first_row(selected: usize, rows: usize, all: usize) -> usize {
    selected.saturating_sub(rows / 2).min(all.saturating_sub(rows))
}

/// The columns that fit, with their widths, and the width of the note.
fn columns_within(width: usize, texts: &[Vec<String>]) -> (Vec<(usize, usize)>, usize) {
    let wide = |column: usize| {
        let texts = texts.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        texts.max(COLUMNS[column].title.len())
    };
    // A column without any text is left out.
    let has_text =
        |column: &usize| texts.is_empty() || texts.iter().any(|row| !row[*column].trim().is_empty());
    let mut columns: Vec<(usize, usize)> =
        (0..COLUMNS.len()).filter(has_text).map(|column| (column, wide(column))).collect();
    loop {
        let used: usize = columns.iter().map(|(_, wide)| wide + GAP).sum();
        let expendable = columns.iter().map(|(column, _)| COLUMNS[*column].expendable).max().unwrap_or(0);
        if used + MIN_NOTE <= width || expendable == 0 {
            return (columns, width.saturating_sub(used));
        }
        columns.retain(|(column, _)| COLUMNS[*column].expendable != expendable);
    }
}

fn padded(text: &str, width: usize, is_right: bool) -> String {
    if is_right { format!("{text:>width$}") } else { format!("{text:<width$}") }
}

pub(super) fn done(row: &Row) -> Option<String> {
    let progress = row.training()?;
    let total = progress.total_steps.filter(|&total| total > 0)?;
    Some(format!("{} %", 100 * progress.step.min(total) / total))
}

pub(super) fn eta(row: &Row) -> Option<String> {
    let progress = row.training().filter(|_| row.is_running())?;
    Some(figures::duration(Duration::try_from_secs_f64(progress.remaining_seconds()?).ok()?))
}

fn if_running(row: &Row, text: String) -> String {
    if row.is_running() && row.training().is_some() { text } else { String::new() }
}

fn bars(series: Option<&super::super::series::Series>) -> String {
    series.map(|series| series.bars(BARS)).unwrap_or_default()
}

/// The main metric of the first label.
fn evaluation(row: &Row) -> Option<String> {
    let measured = row.job.eval.first()?.measured.first()?;
    Some(format!("{} {}", measured.name.replace('_', " "), figures::metric(measured.value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_job_is_visible() {
        for (selected, rows, all, wanted) in [(0, 5, 20, 0), (10, 5, 20, 8), (19, 5, 20, 15), (2, 5, 3, 0)] {
            let first = first_row(selected, rows, all);
            assert_eq!(first, wanted);
            assert!((first..first + rows).contains(&selected));
        }
    }
}
