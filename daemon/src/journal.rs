//! Log lines for the systemd journal, in its native protocol (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>): a datagram
//! per line, with the priority and each field by name, so that `journalctl -p warning` and `journalctl MILLSTREAM_JOB=ID`
//! select lines. The message is the same text as on a terminal, without the time, which the journal has.

use std::fmt::{self, Debug, Write as _};
use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

const SOCKET: &str = "/run/systemd/journal/socket";

/// The name of the lines' sender.
const IDENTIFIER: &str = "millstreamd";

/// The prefix of the names of fields.
const PREFIX: &str = "MILLSTREAM_";

/// The maximum length of a value. A datagram has a limit, too.
const MAX_VALUE_BYTES: usize = 32 << 10;

/// How long a line waits for a journal that does not read. It then goes to standard error.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends events to the journal.
pub struct Journal {
    socket: UnixDatagram,
    /// The journal may be restarted, so the socket is not connected.
    path: PathBuf,
}

impl Journal {
    /// The journal, if standard error is connected to it.
    pub fn of_stderr() -> Option<Self> {
        let stderr = rustix::fs::fstat(std::io::stderr()).ok()?;
        let connected = std::env::var("JOURNAL_STREAM").ok()?;
        let is_connected = connected == format!("{}:{}", stderr.st_dev, stderr.st_ino);
        is_connected.then(|| Self::at(SOCKET.into()))?.ok()
    }

    fn at(path: PathBuf) -> std::io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Self { socket, path })
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        let priority = priority(*event.metadata().level());
        let message = line.message + &line.fields_text;
        let mut datagram = Vec::new();
        put(&mut datagram, "PRIORITY", priority);
        put(&mut datagram, "SYSLOG_IDENTIFIER", IDENTIFIER);
        put(&mut datagram, "TARGET", event.metadata().target());
        put(&mut datagram, "MESSAGE", &message);
        line.fields.iter().for_each(|(name, value)| put(&mut datagram, name, value));
        if self.socket.send_to(&datagram, &self.path).is_err() {
            // The journal reads standard error as well; without a journal, nobody does.
            let _ = writeln!(std::io::stderr(), "<{priority}>{message}");
        }
    }
}

/// The priorities of syslog.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// Appends a field: `NAME=value`, or with its length if the value has line breaks.
fn put(datagram: &mut Vec<u8>, name: &str, value: &str) {
    let value = &value[..value.floor_char_boundary(MAX_VALUE_BYTES)];
    datagram.extend(name.as_bytes());
    if value.contains('\n') {
        datagram.push(b'\n');
        datagram.extend((value.len() as u64).to_le_bytes());
    } else {
        datagram.push(b'=');
    }
    datagram.extend(value.as_bytes());
    datagram.push(b'\n');
}

/// The parts of an event.
#[derive(Default)]
struct Line {
    message: String,
    /// ` name=value` for each field.
    fields_text: String,
    /// The names in the journal, and the values.
    fields: Vec<(String, String)>,
}

impl Line {
    fn add(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.message = value;
            return;
        }
        // Writing to a string cannot fail.
        let _ = write!(self.fields_text, " {}={value}", field.name());
        let allowed =
            |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
        let name = field.name().trim_start_matches("r#").chars().map(allowed);
        self.fields.push((PREFIX.chars().chain(name).collect(), value));
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, fmt::format(format_args!("{value:?}")));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn received(log: impl FnOnce()) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let reader = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::at(path).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), log);
        let mut datagram = vec![0; 256 << 10];
        let bytes = reader.recv(&mut datagram).unwrap();
        String::from_utf8(datagram[..bytes].to_vec()).unwrap()
    }

    #[test]
    fn a_line_has_its_priority_its_text_and_its_fields() {
        let error = std::io::Error::other("full");
        let line = received(|| tracing::warn!(job = "census-1", %error, step = 7, "cannot save"));
        for expected in [
            "PRIORITY=4\n",
            "SYSLOG_IDENTIFIER=millstreamd\n",
            "MESSAGE=cannot save job=census-1 error=full step=7\n",
            "MILLSTREAM_JOB=census-1\n",
            "MILLSTREAM_ERROR=full\n",
            "MILLSTREAM_STEP=7\n",
        ] {
            assert!(line.contains(expected), "{line}");
        }
    }

    #[test]
    fn a_value_cannot_add_fields_and_a_long_one_is_cut() {
        let line = received(|| tracing::error!(job = "a\nPRIORITY=0", "stopped"));
        assert!(line.starts_with("PRIORITY=3\n"), "{line}");
        assert!(line.contains("MILLSTREAM_JOB\n\u{c}\0\0\0\0\0\0\0a\nPRIORITY=0\n"), "{line}");
        let long = received(|| tracing::info!("{}", "ä".repeat(MAX_VALUE_BYTES)));
        assert!((MAX_VALUE_BYTES..MAX_VALUE_BYTES + 500).contains(&long.len()), "{}", long.len());
    }
}
