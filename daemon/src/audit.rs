//! Records of who changed what, and who tried.
//!
//! Each call that changes something, or reads data with the rights of the daemon, is an [`Attempt`]. It is recorded once it
//! has been answered, or refused, or its client has left: in the state database, whose thread does not delay the answer.
//! An attempt that changed nothing costs next to nothing, so a user can cause many: [`Throttle`] bounds how many are
//! recorded, and counts the others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use millstream_control::proto;
use tonic::{Code, Status};

use crate::access::Credentials;
use crate::actor::Actor;
use crate::daemon::Daemon;
use crate::roles::Call;
use crate::state::{AuditRecord, JobRecord, Outcome, now_ms, storable};

/// The maximum length of each text of a record, in bytes.
const MAX_TEXT_BYTES: usize = 256;

/// The number of a user's attempts without effect that are recorded in a row.
const BURST: u32 = 20;

/// The time after which another one may be recorded.
const REFILL: Duration = Duration::from_secs(10);

/// A call that is being answered. Recorded when it ends, or when it is dropped because the client has left.
pub(crate) struct Attempt {
    daemon: Daemon,
    /// Taken when it is recorded.
    record: Option<AuditRecord>,
}

impl Attempt {
    /// A call of the user with these credentials, of the job `job` as the request names it.
    pub(crate) fn new(daemon: &Daemon, credentials: &Credentials, call: Call, job: &str) -> Self {
        let pid = credentials.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|&pid| pid > 0);
        let record = AuditRecord {
            number: 0,
            at_ms: 0,
            // The name follows, if this is recorded.
            user: Actor { uid: credentials.uid }.unnamed(),
            pid,
            program: pid.and_then(program),
            call: call.command(),
            job: text(job),
            job_name: String::new(),
            outcome: Outcome::Unanswered,
            reason: String::new(),
            unrecorded: 0,
        };
        Self { daemon: daemon.clone(), record: Some(record) }
    }

    /// States the job that the call is about.
    pub(crate) fn of_job(&mut self, id: &str, name: &str) {
        if let Some(record) = &mut self.record {
            (record.job, record.job_name) = (text(id), text(name));
        }
    }

    /// Records how it ended.
    pub(crate) fn ended<T>(mut self, result: &Result<T, Status>) {
        let Some(record) = &mut self.record else { return };
        (record.outcome, record.reason) = match result {
            Ok(_) => (Outcome::Done, String::new()),
            Err(status) if status.code() == Code::PermissionDenied => {
                (Outcome::Refused, text(status.message()))
            }
            Err(status) => (Outcome::Failed, text(status.message())),
        };
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(record) = self.record.take() else { return };
        self.daemon.audit(AuditRecord { at_ms: now_ms(), ..record });
    }
}

impl Attempt {
    /// As [`Attempt::of_job`], with a job's record.
    pub(crate) fn of(&mut self, job: &JobRecord) {
        self.of_job(&job.id, &job.name);
    }
}

/// The name of the program of process `pid`, which that program chose; `None` if this process may not read it.
fn program(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(text(name.trim_end())).filter(|name| !name.is_empty())
}

/// The first line of a text, without secrets and cut to [`MAX_TEXT_BYTES`].
fn text(text: &str) -> String {
    let text = storable(text);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line[..line.floor_char_boundary(MAX_TEXT_BYTES)].to_owned()
}

/// Bounds the records of attempts without effect, for each user.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    users: HashMap<u32, Allowance>,
}

#[derive(Debug)]
struct Allowance {
    left: u32,
    refilled: Instant,
    unrecorded: u64,
}

impl Throttle {
    /// Whether a record of this outcome is written at `now`; with the number of the user's attempts before that were not.
    pub(crate) fn admits(&mut self, uid: u32, outcome: Outcome, now: Instant) -> Option<u64> {
        let is_change = matches!(outcome, Outcome::Done | Outcome::Unanswered);
        let allowance =
            self.users.entry(uid).or_insert(Allowance { left: BURST, refilled: now, unrecorded: 0 });
        allowance.refill(now);
        if !is_change && allowance.left == 0 {
            allowance.unrecorded += 1;
            return None;
        }
        if !is_change {
            allowance.left -= 1;
        }
        let unrecorded = std::mem::take(&mut allowance.unrecorded);
        // Of users who have tried nothing for a while, nothing needs to be known.
        self.users.retain(|_, allowance| {
            allowance.refill(now);
            allowance.left < BURST
        });
        Some(unrecorded)
    }
}

impl Allowance {
    fn refill(&mut self, now: Instant) {
        let due = (now - self.refilled).as_secs() / REFILL.as_secs();
        if self.left == BURST || due >= u64::from(BURST - self.left) {
            (self.left, self.refilled) = (BURST, now);
        } else {
            // Fewer than `BURST`.
            self.left += due as u32;
            self.refilled += REFILL * due as u32;
        }
    }
}

/// Converts a record.
pub(crate) fn record_message(record: AuditRecord) -> proto::AuditRecord {
    let AuditRecord { number, at_ms, user, pid, program, call, job, job_name, outcome, reason, unrecorded } =
        record;
    proto::AuditRecord {
        number,
        at_ms,
        uid: user.uid,
        user: user.name,
        pid,
        program,
        call,
        job,
        job_name,
        outcome: outcome.name().to_owned(),
        reason,
        unrecorded,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_users_attempts_without_effect_are_bounded_and_counted() {
        let began = Instant::now();
        let mut throttle = Throttle::default();
        let recorded = (0..1_000).filter(|_| throttle.admits(1, Outcome::Refused, began).is_some()).count();
        assert_eq!(recorded, BURST as usize);
        assert_eq!(throttle.admits(2, Outcome::Failed, began), Some(0), "another user");
        assert_eq!(throttle.admits(1, Outcome::Done, began), Some(980), "changes are always recorded");
        assert_eq!(throttle.admits(1, Outcome::Done, began), Some(0));
        assert_eq!(throttle.admits(1, Outcome::Failed, began), None);
        assert_eq!(throttle.admits(1, Outcome::Failed, began + REFILL), Some(1));
        assert_eq!(throttle.admits(1, Outcome::Failed, began + REFILL), None);
        throttle.admits(3, Outcome::Done, began + 30 * REFILL);
        assert!(throttle.users.is_empty(), "{throttle:?}");
    }

    #[tokio::test]
    async fn attempts_are_recorded_with_their_end() {
        let daemon = Daemon::start_embedded().unwrap();
        let mut credentials = Credentials::new(4_000_000_007, 1, Vec::new());
        credentials.pid = i32::try_from(std::process::id()).ok();
        let attempt = |job: &str| Attempt::new(&daemon, &credentials, Call::Cancel, job);
        let mut done = attempt("cli");
        done.of_job("clicks-1", "clicks");
        done.ended(&Ok(()));
        attempt("nope").ended::<()>(&Err(Status::not_found("no job `nope`")));
        attempt("x").ended::<()>(&Err(Status::permission_denied(format!("\nno {}\nmore", "é".repeat(400)))));
        drop(attempt("left"));

        let (records, _) = daemon.audited(&crate::state::AuditFilter::default()).unwrap();
        let found: Vec<_> =
            records.iter().map(|record| (record.job.as_str(), record.outcome.name())).collect();
        let wanted = [("clicks-1", "done"), ("nope", "failed"), ("x", "refused"), ("left", "unanswered")];
        assert_eq!(found, wanted);
        assert_eq!((records[0].job_name.as_str(), records[0].call.as_str()), ("clicks", "cancel"));
        assert_eq!(records[0].user.to_string(), "uid 4000000007");
        assert!(records[0].program.is_some() && records[0].pid == Some(std::process::id()));
        assert_eq!(records[1].reason, "no job `nope`");
        assert!(records[2].reason.starts_with("no éé") && records[2].reason.len() <= MAX_TEXT_BYTES);
        assert!(records.iter().all(|record| now_ms() - record.at_ms < 60_000));
    }
}
