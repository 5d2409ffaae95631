//! The changes of a run that the workers of this host want, and the leader makes.
//!
//! A worker writes the files of a checkpoint by itself, into the directory of its term. A manifest makes them a checkpoint, and a
//! deletion may remove one. Both need the lease of the run, which the leader has. So they are requested of it, by notes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow, bail, ensure};
use millstream_peers::conduct::Reports;
use millstream_peers::generations::member::WorkerEvent;
use millstream_trainer::checkpoint::MANIFEST;
use millstream_trainer::checkpoint::store::{directory_name, parse_directory_name};
use tokio::sync::oneshot;

use super::notes::{Change, Changed, ToLeader, encode};

/// Why a change is not made.
const ENDED: &str = "the workers of this host have ended";

/// What takes the leader's answers, by the numbers of the requests.
type Waiting = HashMap<u64, oneshot::Sender<Result<Changed, String>>>;

/// The changes of a generation that wait for the leader.
pub(crate) struct Changes {
    /// The name of the directory of its term, within that of a checkpoint.
    term: String,
    reports: Reports,
    last: AtomicU64,
    /// `None` once the generation ends here.
    waiting: Mutex<Option<Waiting>>,
}

/// How an object is to be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// By this daemon.
    Here,
    /// As the manifest of a step, by the leader: this is the name under which this daemon stages it.
    Staged { step: u64, name: String },
}

impl Changes {
    pub(super) fn new(term: u64, reports: Reports) -> Self {
        let waiting = Mutex::new(Some(HashMap::new()));
        Self { term: format!("term-{term}"), reports, last: AtomicU64::new(0), waiting }
    }

    /// Decides how the object `name` is to be written.
    ///
    /// # Errors
    /// When it is neither a file of a checkpoint in this term nor a manifest.
    pub(crate) fn check(&self, name: &str) -> Result<Written> {
        written(&self.term, name)
    }

    /// Lets the leader write the manifest of `step`, which is staged. Returns whether it was; false if there is one that must not be replaced.
    ///
    /// # Errors
    /// When the leader refuses or fails, or this generation ends.
    pub(crate) async fn put_manifest(&self, step: u64, is_new: bool) -> Result<bool> {
        let change = if is_new { Change::Commit { step } } else { Change::Replace { step } };
        let saved = is_new.then_some(step);
        Ok(self.request(change, saved).await? == Changed::Done)
    }

    /// Lets the leader delete an object.
    ///
    /// # Errors
    /// As for [`Changes::put_manifest`].
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.request(Change::Delete { name: name.to_owned() }, None).await.map(drop)
    }

    /// Requests a change. The leader makes that of a checkpoint once all hosts have `saved` it.
    async fn request(&self, change: Change, saved: Option<u64>) -> Result<Changed> {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.waiting().as_mut().context(ENDED)?.insert(number, answer);
        self.reports.send(WorkerEvent::Note(encode(&ToLeader::Change { number, change }))).await;
        if let Some(step) = saved {
            self.reports.send(WorkerEvent::Saved(step)).await;
        }
        let answer = answered.await.context(ENDED)?;
        answer.map_err(|error| anyhow!(error))
    }

    /// The leader has answered.
    pub(super) fn answer(&self, number: u64, result: Result<Changed, String>) {
        let answer = self.waiting().as_mut().and_then(|waiting| waiting.remove(&number));
        if let Some(answer) = answer {
            // The worker may have ended.
            let _ = answer.send(result);
        }
    }

    /// The generation ends here: no change is awaited any more.
    pub(super) fn close(&self) {
        *self.waiting() = None;
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How workers of a term write the object `name`.
fn written(term: &str, name: &str) -> Result<Written> {
    match name.split('/').collect::<Vec<_>>()[..] {
        [step, MANIFEST] if let Some(step) = parse_directory_name(step) => {
            Ok(Written::Staged { step, name: staged_name(step, term) })
        }
        [step, own, _] if parse_directory_name(step).is_some() && own == term => Ok(Written::Here),
        _ => bail!("{name:?} is no file of a checkpoint of {term}"),
    }
}

/// The name of a staged manifest of `step`, in the directory of a term.
pub(super) fn staged_name(step: u64, term: &str) -> String {
    format!("{}/{term}/{MANIFEST}", directory_name(step))
}

/// Checks that `name` is that of an object of a checkpoint: all that workers change.
pub(super) fn check_name(name: &str) -> Result<()> {
    let is_plain = name.split('/').all(crate::objects::is_plain_name);
    let is_of_checkpoint = name.split_once('/').is_some_and(|(step, _)| parse_directory_name(step).is_some());
    ensure!(is_plain && is_of_checkpoint, "{name:?} is no file of a checkpoint");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn workers_write_files_of_their_term_and_the_leader_manifests() {
        let written = |name| written("term-7", name);
        assert_eq!(written("step-0000000500/term-7/model.safetensors").unwrap(), Written::Here);
        let name = "step-0000000500/term-7/manifest.json".to_owned();
        assert_eq!(written("step-0000000500/manifest.json").unwrap(), Written::Staged { step: 500, name });
        for other in
            ["step-0000000500/term-6/a", "step-0000000500/a", "lease.json", "job.toml", "step-x/term-7/a"]
        {
            assert!(written(other).is_err(), "{other}");
        }
    }

    #[test]
    fn only_files_of_checkpoints_are_changed() {
        for name in ["step-0000000500/manifest.json", "step-0000000500/term-7/model.safetensors"] {
            check_name(name).unwrap();
        }
        for name in ["lease.json", "job.toml", "inputs/a", "step-0000000500/../lease.json", "step-0000000500"]
        {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
