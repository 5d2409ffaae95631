//! What a job's thread does about checkpoints that its worker has written, or could not write.

use millstream_trainer::checkpoint::store::directory_name;
use tracing::Level;

use super::Supervisor;
use super::reports::took;
use crate::traces::JobEvent;

impl Supervisor {
    /// Records a committed checkpoint.
    pub(super) fn committed(&mut self, step: u64, bytes: u64, requested: bool, seconds: f64) {
        let directory = self.recorder.record().directory.join(&directory_name(step));
        self.recorder.trace().record(JobEvent::Checkpointed { step, bytes, took: took(seconds) });
        self.on_progress();
        // An image may be newer.
        self.newest_step = self.newest_step.max(Some(step));
        self.control.vitals().committed(step, bytes);
        self.recorder.log(Level::INFO, &format!("checkpoint at step {step}: {directory}"));
        self.recorder.update(|record| {
            record.checkpoint = Some(directory.clone());
            // With this progress, a death of the daemon is not this job's doing.
            record.daemon_deaths = 0;
        });
        if requested {
            for reply in self.checkpoint_requests.drain(..) {
                // The client may have disconnected.
                let _ = reply.send(Ok((directory.clone(), step)));
            }
        }
    }

    /// Records that a checkpoint could not be written.
    pub(super) fn checkpoint_failed(&mut self, step: u64, message: &str, requested: bool, seconds: f64) {
        let failed = JobEvent::CheckpointFailed { step, why: message, took: took(seconds) };
        self.recorder.trace().record(failed);
        let message = format!("the checkpoint of step {step} could not be written: {message}");
        self.recorder.log(Level::WARN, &message);
        if requested {
            for reply in self.checkpoint_requests.drain(..) {
                // The client may have disconnected.
                let _ = reply.send(Err(message.clone()));
            }
        }
    }
}
