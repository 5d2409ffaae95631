//! Reading from the system with time limits: a hung file system, service or program must not hang the diagnosis.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

/// Interval between looks at a program that runs.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// At most this much of a program's output is read: less than a pipe holds, so that the program never waits for it.
const MAX_OUTPUT_BYTES: u64 = 32 << 10;

/// The result of `work`, on a separate thread; `None` after `limit`, or if no thread could be started. The thread then
/// continues until the command exits.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = sync_channel(1);
    let run = move || {
        // Nobody waits any longer if this fails.
        let _ = sender.send(work());
    };
    thread::Builder::new().spawn(run).ok()?;
    receiver.recv_timeout(limit).ok()
}

/// The standard output of a program; `None` if it does not exist, fails, or runs for longer than `limit`.
pub(crate) fn output(program: &str, arguments: &[&str], limit: Duration) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let until = Instant::now() + limit;
    let status = loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => thread::sleep(POLL_INTERVAL),
            Ok(Some(status)) => break status,
            _ => {
                // It may have ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    };
    let mut text = String::new();
    child.stdout.take()?.take(MAX_OUTPUT_BYTES).read_to_string(&mut text).ok()?;
    status.success().then_some(text)
}

/// The text of a file of the kernel, without spaces around it; `None` if it cannot be read.
pub(crate) fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The number in a file of the kernel.
pub(crate) fn number(path: impl AsRef<Path>) -> Option<u64> {
    text(path)?.parse().ok()
}

/// The value of `name` in lines of `name=value` or `name: value`.
pub(crate) fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(['=', ':'])?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_hangs_is_given_up() {
        assert_eq!(within(LONG, || 7), Some(7));
        assert_eq!(within(Duration::from_millis(20), || thread::sleep(LONG)), None);
        let began = Instant::now();
        assert_eq!(output("sleep", &["60"], Duration::from_millis(20)), None);
        assert!(began.elapsed() < LONG / 2);
    }

    #[test]
    fn programs_that_fail_or_are_absent_say_nothing() {
        assert_eq!(output("echo", &["a", "b"], LONG).as_deref(), Some("a b\n"));
        assert_eq!(output("false", &[], LONG), None);
        assert_eq!(output("/nowhere/program", &[], LONG), None);
    }

    #[test]
    fn values_are_found_by_their_whole_name() {
        let shown = "LoadState=loaded\nActiveStateX=no\nActiveState=active\nMemFree:   12 kB\n";
        assert_eq!(value(shown, "ActiveState"), Some("active"));
        assert_eq!(value(shown, "MemFree"), Some("12 kB"));
        assert_eq!(value(shown, "State"), None);
    }
}
