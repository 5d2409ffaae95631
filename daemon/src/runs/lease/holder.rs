//! A process that has a lease, and whether it is gone.

use std::fs;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::super::random_characters;

/// The id of the host's boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A process that has the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holder {
    /// The name of its host.
    host: String,
    /// Its process id.
    process: u32,
    /// When the process started, in the kernel's ticks since the boot: with it, a process id means one process.
    started: u64,
    /// The boot of the host, and the namespace of its process ids.
    boot: String,
    namespace: String,
    /// Different for each lease of the process.
    nonce: String,
}

impl Holder {
    /// This process, with a new lease.
    pub(super) fn this() -> Result<Self> {
        let process = std::process::id();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(Self {
            host: host.trim().to_owned(),
            process,
            started: started(process).context("/proc does not show this process")?,
            boot: fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned(),
            namespace: namespace().unwrap_or_default(),
            nonce: random_characters()?,
        })
    }

    /// Whether it was a process of this host that is gone, or this process, which has ended that lease.
    pub(super) fn is_gone(&self) -> bool {
        let Ok(this) = Self::this() else { return false };
        let is_visible = !self.boot.is_empty() && self.boot == this.boot && self.namespace == this.namespace;
        let is_this = (self.process, self.started) == (this.process, this.started);
        is_visible && (is_this || is_gone(self.process, self.started))
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} on host {}", self.process, self.host)
    }
}

/// The namespace of the process ids that this process sees.
fn namespace() -> Option<String> {
    fs::read_link("/proc/self/ns/pid").ok()?.into_os_string().into_string().ok()
}

/// When a process started, in ticks since the boot; `None` if `/proc` does not show it or it has ended.
fn started(process: u32) -> Option<u64> {
    // The second field is the name in parentheses, which may contain anything. The state follows; the time is field 22.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    let started = fields.nth(18)?.parse().ok()?;
    (!has_ended).then_some(started)
}

/// Whether the process that `started` then is gone. Processes of other users may be hidden.
fn is_gone(process: u32, started_then: u64) -> bool {
    let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return true };
    match rustix::process::test_kill_process(pid) {
        Err(Errno::SRCH) => true,
        Err(_) => started(process).is_some_and(|started| started != started_then),
        Ok(()) => started(process) != Some(started_then),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_holder_is_gone_if_its_process_is() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = child.id();
        let holder = Holder { process, started: started(process).unwrap(), ..Holder::this().unwrap() };
        assert!(!holder.is_gone());
        let earlier = Holder { started: holder.started - 1, ..holder.clone() };
        assert!(earlier.is_gone(), "another process has its number now");
        child.kill().unwrap();
        // Nobody has waited for it yet.
        while !holder.is_gone() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(holder.is_gone());
        for elsewhere in [
            Holder { boot: "another".into(), ..holder.clone() },
            Holder { namespace: "pid:[1]".into(), ..holder.clone() },
            Holder { boot: String::new(), ..holder },
        ] {
            assert!(!elsewhere.is_gone(), "{elsewhere:?}: nothing is known of it");
        }
        assert!(Holder::this().unwrap().is_gone(), "this process takes its own lease again");
    }
}
