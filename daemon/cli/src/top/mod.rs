//! `millstream top`: a live screen of the daemon's jobs.
//!
//! Three parts that know little of each other: [`feed`] asks the daemon in the background, [`model`] is the screen's state,
//! changed by answers and keys and free of any I/O, and [`view`] draws a state. So a daemon that hangs leaves the keys
//! working, and a screen is tested without a terminal.

mod feed;
mod model;
mod rows;
mod series;
mod view;

use std::io::{self, IsTerminal};
use std::time::Duration;

use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::{DefaultTerminal, Terminal};
use tokio::sync::mpsc;

use crate::arguments::Top;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::interrupt;
use crate::screen::{has_colours, output_width};
use feed::{Answer, Feed};
use model::{Model, Wish};
use view::Palette;

/// How often keys are looked for; also the time that the thread which reads them outlives the screen.
const KEY_POLL: Duration = Duration::from_millis(100);

/// Capacity of the queues of keys and answers.
const QUEUE: usize = 64;

/// The width of one picture that no terminal shows.
const WIDTH: usize = 120;

/// The time between the two looks of a single picture: rates of processes are differences.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

pub(crate) async fn run(arguments: Top, context: &Context) -> Result<(), Failure> {
    // Fails before the terminal changes.
    let mut client = to_daemon(context).await?;
    if context.json {
        return context.document(&client.snapshot().await?);
    }
    if arguments.once || !io::stdout().is_terminal() {
        let mut model = Model::default();
        for look in 0..2 {
            if look > 0 {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            model.answered(Answer::look(&mut client, None).await?);
        }
        return context.print(&picture(&model, output_width().unwrap_or(WIDTH)));
    }
    let interrupted = interrupt::listen()?;
    let mut terminal = ratatui::try_init()?;
    let palette = if has_colours() { Palette::Coloured } else { Palette::Plain };
    let shown = interrupt::unless(interrupted, show(&mut terminal, palette, &arguments, context)).await;
    ratatui::restore();
    shown
}

/// Shows the screen until the user quits.
async fn show(
    terminal: &mut DefaultTerminal,
    palette: Palette,
    arguments: &Top,
    context: &Context,
) -> Result<(), Failure> {
    let mut model = Model::default();
    let mut keys = keys();
    let (answers, mut answered) = mpsc::channel(QUEUE);
    let feed = Feed::start(context, Duration::from_secs_f64(arguments.interval), answers);
    loop {
        feed.open(model.opened());
        terminal.draw(|frame| view::draw(&model, palette, frame))?;
        let wish = tokio::select! {
            Some(event) = keys.recv() => match event? {
                Event::Key(key) if key.kind == KeyEventKind::Press => model.pressed(key),
                // A new size is a reason to draw.
                _ => None,
            },
            Some(answer) = answered.recv() => {
                model.answered(answer);
                None
            }
            else => return Ok(()),
        };
        match wish {
            Some(Wish::Quit) => return Ok(()),
            Some(Wish::Change(change, id)) => feed.change(change, id),
            None => {}
        }
    }
}

/// The events of the terminal, which a thread reads, because reading blocks.
fn keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(KEY_POLL) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let is_end = event.is_err();
            if sender.blocking_send(event).is_err() || is_end {
                break;
            }
        }
    });
    receiver
}

/// The screen as text, as high as it needs to be to show all jobs, and without keys.
fn picture(model: &Model, width: usize) -> String {
    let size = (u16::try_from(width).unwrap_or(u16::MAX), view::height(model));
    let drawn = Terminal::new(TestBackend::new(size.0, size.1)).and_then(|mut terminal| {
        terminal.draw(|frame| view::draw(model, Palette::Plain, frame))?;
        let text = text_of(terminal.backend().buffer());
        Ok(text.lines().take(usize::from(size.1) - 1).fold(String::new(), |text, line| text + line + "\n"))
    });
    drawn.unwrap_or_else(|never| match never {})
}

/// The lines of a buffer, without trailing spaces.
fn text_of(buffer: &Buffer) -> String {
    let columns = usize::from(buffer.area.width.max(1));
    let lines = buffer.content.chunks(columns).map(|line| {
        let line: String = line.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}
