//! The context of every command: output format, screen and control socket.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use millstream_daemon::config::Surroundings;
use serde::Serialize;

use crate::arguments::Global;
use crate::failure::Failure;
use crate::printable::{printable, printable_json};
use crate::screen::Screen;

/// Output format, screen and control socket.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// Print one JSON document instead of text.
    pub(crate) json: bool,
    pub(crate) screen: Screen,
    socket: Option<PathBuf>,
    is_socket_given: bool,
}

impl Context {
    pub(crate) fn new(global: &Global, screen: Screen) -> Self {
        let given = global.socket.clone().or_else(|| Some(std::env::var_os("MILLSTREAM_SOCKET")?.into()));
        let is_socket_given = given.is_some();
        let socket = given.or_else(|| Surroundings::of_process().socket());
        Self { json: global.json, screen, socket, is_socket_given }
    }

    /// The path of the daemon's socket, if it is known.
    pub(crate) fn socket(&self) -> Option<&PathBuf> {
        self.socket.as_ref()
    }

    /// Whether a flag or a variable names the socket.
    pub(crate) fn is_socket_given(&self) -> bool {
        self.is_socket_given
    }

    /// Prints `document` with `--json`, otherwise `text`.
    pub(crate) fn answer(
        &self,
        document: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if self.json { self.document(document) } else { self.print(&text()) }
    }

    /// Prints a JSON document.
    pub(crate) fn document(&self, document: &impl Serialize) -> Result<(), Failure> {
        let document = serde_json::to_string_pretty(document).map_err(io::Error::from)?;
        let mut out = self.out();
        writeln!(out, "{}", printable_json(&document))?;
        Ok(out.flush()?)
    }

    /// Prints text and one final newline.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        let mut out = self.out();
        writeln!(out, "{}", printable(text.trim_end()))?;
        Ok(out.flush()?)
    }

    /// Buffered standard output. The caller flushes it.
    pub(crate) fn out(&self) -> BufWriter<io::StdoutLock<'static>> {
        BufWriter::new(io::stdout().lock())
    }
}
