//! What this host records of a job that rank 0 reports: also while it has no workers of the job, and once the job has ended without it.

use anyhow::Result;
use millstream_peers::generations::Note;
use millstream_trainer::checkpoint::store::directory_name;
use millstream_worker::protocol::FromWorker;
use tracing::Level;

use super::super::reports::took;
use super::super::{Prepared, Supervisor};
use super::notes::{ToHost, decode};
use crate::state::HistoryPoint;

/// Records a report of rank 0. Ingest of this host has `skipped` so many records, and progress is added to `totals`. Returns whether all
/// rows are trained on.
pub(super) fn record_report(
    report: FromWorker,
    (skipped, totals): (u64, &mut HistoryPoint),
    supervisor: &mut Supervisor,
) -> bool {
    match report {
        FromWorker::Progress(progress) => supervisor.progressed(progress, skipped, totals),
        FromWorker::Checkpointed { step, bytes, requested, seconds } => {
            supervisor.committed(step, bytes, requested, seconds);
        }
        FromWorker::CheckpointFailed { step, message, requested, seconds } => {
            supervisor.checkpoint_failed(step, &message, requested, seconds);
        }
        FromWorker::Evaluated { step, epoch, ends_epoch, metrics, seconds } => {
            supervisor.evaluated((step, epoch, ends_epoch), metrics, took(seconds));
        }
        FromWorker::Warned { message } => supervisor.recorder.log(Level::WARN, &message),
        FromWorker::Done { stopped_early, .. } => {
            supervisor.stopped_early = stopped_early;
            return true;
        }
        _ => tracing::warn!(job = supervisor.recorder.id(), "unexpected report of rank 0"),
    }
    false
}

/// Records what a note says about workers of other hosts, while this one has none.
pub(super) fn follow(note: &Note, totals: &mut HistoryPoint, supervisor: &mut Supervisor) {
    // Everything else is for hosts with workers.
    if let Ok(ToHost::Report(report)) = decode(note) {
        record_report(report, (0, totals), supervisor);
    }
}

/// Records the last checkpoint of a job that has ended, and its metrics, unless this host has heard of it: the host may have been away.
///
/// # Errors
/// When the checkpoint cannot be read.
pub(super) fn catch_up(prepared: &Prepared, supervisor: &mut Supervisor) -> Result<()> {
    let store = prepared.directory.checkpoints()?;
    let Some(step) = store.steps()?.pop() else { return Ok(()) };
    let known = supervisor.control.vitals().checkpoint();
    if known.is_some_and(|known| known.step >= step) {
        return Ok(());
    }
    let manifest = store.manifest(step)?;
    let snapshot = &manifest.snapshot;
    let directory = supervisor.recorder.record().directory.join(&directory_name(step));
    supervisor.control.vitals().committed(step, manifest.bytes());
    supervisor.recorder.log(Level::INFO, &format!("checkpoint at step {step}, by other hosts: {directory}"));
    supervisor.recorder.update(|record| {
        record.checkpoint = Some(directory);
        record.progress.step = step;
        record.progress.epoch = snapshot.progress.epoch;
        record.progress.examples = snapshot.progress.examples;
    });
    if let Some(at) = snapshot.eval_step {
        supervisor.evaluated((at, snapshot.progress.epoch, at == step), snapshot.eval.clone(), took(0.0));
    }
    Ok(())
}
