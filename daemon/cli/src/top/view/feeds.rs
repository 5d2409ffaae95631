//! The feeds of other trainers in the head of the screen, below the GPUs: a line for each.

use millstream_control::proto::Feed;
use ratatui::text::Line;

use super::{Palette, one_line};
use crate::figures;

/// Spaces between columns.
const GAP: &str = "   ";

/// The lines that fit into `room` lines.
pub(super) fn draw(feeds: &[Feed], palette: Palette, room: usize) -> Vec<Line<'static>> {
    let rows: Vec<_> = feeds.iter().map(columns).collect();
    let mut widths = [0; 6];
    for row in &rows {
        widths.iter_mut().zip(row).for_each(|(width, text)| *width = text.chars().count().max(*width));
    }
    let mut lines: Vec<_> =
        feeds.iter().zip(&rows).map(|(feed, row)| line(feed, row, &widths, palette)).collect();
    if lines.len() > room && room > 0 {
        let hidden = figures::counted((lines.len() - room + 1) as u64, "more feed");
        lines.truncate(room - 1);
        lines.push(Line::from(format!("and {hidden}")).style(palette.dim()));
    }
    lines.truncate(room);
    lines
}

fn columns(feed: &Feed) -> [String; 6] {
    let ranks = figures::counted(feed.ranks.into(), "rank");
    let ranks = if feed.attached == feed.ranks { ranks } else { format!("{} of {ranks}", feed.attached) };
    let rate = feed.rows_per_second.map(|rate| format!("{} rows/s", figures::rate(rate)));
    [
        one_line(&feed.id),
        one_line(&feed.owner),
        one_line(&feed.state),
        ranks,
        rate.unwrap_or_default(),
        figures::bytes(feed.memory_bytes),
    ]
}

fn line(feed: &Feed, texts: &[String; 6], widths: &[usize; 6], palette: Palette) -> Line<'static> {
    let padded: Vec<_> = texts.iter().zip(widths).map(|(text, width)| format!("{text:<width$}")).collect();
    let bound = feed.bound.as_deref().map(one_line).unwrap_or_default();
    let line = Line::from(format!("{}{GAP}{bound}", padded.join(GAP)).trim_end().to_owned());
    // Ranks have left, or its files are being opened.
    if feed.attached < feed.ranks || feed.rows_per_second.is_none() {
        line.style(palette.dim())
    } else {
        line
    }
}
