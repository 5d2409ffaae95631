//! The GPUs in the head of the screen: a line for each, and one for why they cannot be read.

use std::time::Duration;

use millstream_control::proto::{GpuUse, HostGpus, Snapshot};
use ratatui::style::Color;
use ratatui::text::{Line, Span};

use super::super::model::Model;
use super::{Palette, bar, one_line};
use crate::{figures, gpu_use};

/// From this temperature on, in degrees Celsius, a GPU is about to slow down.
const HOT: u32 = 85;

/// The number of lines that show everything.
pub(super) fn lines(model: &Model) -> u16 {
    let Some(gpus) = model.snapshot.as_ref().and_then(|snapshot| snapshot.gpus.as_ref()) else { return 0 };
    let wanted = u16::try_from(gpus.gpus.len()).unwrap_or(u16::MAX);
    wanted.saturating_add(gpus.problem.is_some().into())
}

/// The lines that fit into `room` lines.
pub(super) fn draw(snapshot: &Snapshot, palette: Palette, room: usize) -> Vec<Line<'static>> {
    let Some(gpus) = &snapshot.gpus else { return Vec::new() };
    let mut lines: Vec<Line<'_>> = problem(snapshot, gpus, palette).into_iter().collect();
    let columns = Columns::of(gpus);
    lines.extend(gpus.gpus.iter().map(|gpu| line(gpu, gpus.is_stale, &columns, palette)));
    if lines.len() > room && room > 0 {
        let hidden = lines.len() - room + 1;
        lines.truncate(room - 1);
        lines.push(Line::from(format!("and {hidden} more GPUs")).style(palette.dim()));
    }
    lines.truncate(room);
    lines
}

fn problem(snapshot: &Snapshot, gpus: &HostGpus, palette: Palette) -> Option<Line<'static>> {
    let why = gpus.problem.as_ref()?;
    let age = gpus.sampled_ms.map(|at| Duration::from_millis(snapshot.at_ms.saturating_sub(at)));
    let age = age.map(|age| format!("; last read {} ago", figures::age(age))).unwrap_or_default();
    Some(Line::from(format!("gpus: {}{age}", one_line(why))).style(palette.colour(Color::Yellow)))
}

/// Texts of all GPUs, to align them.
struct Columns {
    number: usize,
    memory: usize,
    power: usize,
}

impl Columns {
    fn of(gpus: &HostGpus) -> Self {
        let widest = |text: fn(&GpuUse) -> String| {
            gpus.gpus.iter().map(|gpu| text(gpu).chars().count()).max().unwrap_or_default()
        };
        Self {
            number: widest(|gpu| gpu.number.to_string()),
            memory: widest(gpu_use::memory),
            power: widest(gpu_use::power),
        }
    }
}

fn line(gpu: &GpuUse, is_stale: bool, columns: &Columns, palette: Palette) -> Line<'static> {
    let head = Span::from(format!("gpu {:<width$} ", gpu.number, width = columns.number));
    if let Some(problem) = &gpu.problem {
        let problem = Span::from(one_line(problem)).style(palette.colour(Color::Red));
        return Line::from(vec![head, problem]);
    }
    let mut spans = vec![head];
    // A device that works is good: the bar has no warning colour.
    let [full, rest] = bar(gpu.busy, palette);
    spans.extend([full.style(palette.colour(Color::Green)), rest]);
    spans.push(Span::from(format!(" {:>5}   memory ", gpu_use::busy(gpu))));
    let share = gpu.used_bytes.zip(gpu.memory_bytes).map(|(used, all)| used as f64 / all.max(1) as f64);
    spans.extend(bar(share, palette));
    spans.push(Span::from(format!(" {:<width$}   ", gpu_use::memory(gpu), width = columns.memory)));
    let is_hot = gpu.celsius.is_some_and(|celsius| celsius >= HOT);
    let colour = if is_hot { palette.colour(Color::Red) } else { palette.colour(Color::Reset) };
    spans.push(Span::from(format!("{:>6}", gpu_use::temperature(gpu))).style(colour));
    spans.push(Span::from(format!("   {:>width$}   ", gpu_use::power(gpu), width = columns.power)));
    let notes = gpu_use::notes(gpu);
    if !notes.is_empty() {
        spans.push(Span::from(format!("{}   ", notes.join(", "))).style(palette.colour(Color::Yellow)));
    }
    spans.push(Span::from(user(gpu)));
    let line = Line::from(spans);
    if is_stale { line.style(palette.dim()) } else { line }
}

/// Whose processes compute on it.
fn user(gpu: &GpuUse) -> String {
    let mut users: Vec<String> = gpu.jobs.iter().map(|job| one_line(&job.id)).collect();
    if let Some(bytes) = gpu.other_bytes.filter(|&bytes| bytes > 0) {
        users.push(format!("other programs {}", figures::bytes(bytes)));
    }
    if gpu.is_divided {
        users.push("MIG".to_owned());
    }
    users.join(", ")
}
