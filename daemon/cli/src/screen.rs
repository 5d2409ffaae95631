//! Messages on standard error, above any progress bar.
//!
//! Write errors are ignored: a message that cannot be printed must not stop a command.

use std::io::{self, IsTerminal, Write};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::printable::printable;

/// Standard error with its progress bars. Clones share the terminal.
#[derive(Clone, Debug)]
pub(crate) struct Screen {
    bars: MultiProgress,
    terminal: bool,
    colours: bool,
}

/// The width of the terminal that is standard output, in characters; `None` if it is not a terminal.
pub(crate) fn output_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    size.map(|size| size.ws_col.into()).filter(|&columns| columns > 0)
}

/// Whether the user allows colours.
pub(crate) fn has_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

impl Screen {
    pub(crate) fn new() -> Self {
        let terminal = io::stderr().is_terminal();
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        Self { bars, terminal, colours: terminal && has_colours() }
    }

    /// Whether standard error is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// The width of the terminal that is standard error, in characters; a common width if it is not a terminal.
    pub(crate) fn width(&self) -> usize {
        let size = rustix::termios::tcgetwinsize(io::stderr()).ok();
        size.map(|size| size.ws_col.into()).filter(|&columns| columns > 0).unwrap_or(80)
    }

    /// Whether to use colours.
    pub(crate) fn has_colours(&self) -> bool {
        self.colours
    }

    /// Shows `bar` in this style if standard error is a terminal.
    pub(crate) fn show(&self, bar: ProgressBar, style: ProgressStyle) -> Option<ProgressBar> {
        self.terminal.then(|| self.bars.add(bar.with_style(style)))
    }

    /// Prints one or more lines.
    pub(crate) fn line(&self, text: &str) {
        self.write_line(&printable(text));
    }

    fn write_line(&self, text: &str) {
        self.bars.suspend(|| {
            let _ = writeln!(io::stderr().lock(), "{text}");
        });
    }

    fn message(&self, kind: &str, colour: &str, text: &str) {
        self.write_line(&format!("{} {}", self.painted(kind, colour), printable(text)));
    }

    pub(crate) fn error(&self, text: &str) {
        self.message("error:", "1;31", text);
    }

    pub(crate) fn warning(&self, text: &str) {
        self.message("warning:", "1;33", text);
    }

    pub(crate) fn note(&self, text: &str) {
        self.message("note:", "1;36", text);
    }

    fn painted(&self, text: &str, colour: &str) -> String {
        if self.colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The writer of the log.
impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bars.suspend(|| {
            let _ = io::stderr().write_all(printable(&String::from_utf8_lossy(bytes)).as_bytes());
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
