//! The assignments of the workers of an attempt.

use millstream_job::Job;
use millstream_worker::protocol::{HostPlace, TrainRole};
use millstream_worker::tensorboard::EventSpec;

use super::Prepared;
use super::lease::Places;
use crate::ranks;

/// What worker `rank` does, which writes to `places` and is at `place` on this host.
pub(super) fn train_role(prepared: &Prepared, (rank, place): (u32, HostPlace), places: &Places) -> TrainRole {
    let job = &prepared.job;
    let checkpoint = &job.checkpoint;
    TrainRole {
        rank,
        place,
        timeout_seconds: job.workers.timeout_seconds,
        network: None,
        newest_step: None,
        run: places.run.clone(),
        job: prepared.job_file.to_owned(),
        every_steps: checkpoint.every_steps,
        keep: checkpoint.keep,
        retry_minutes: checkpoint.retry_minutes,
        image_seconds: job.workers.image_seconds,
        events: event_spec(job, places),
        model: job.model.clone(),
        training: ranks::training_of(&job.training, (place.number, place.workers)),
        group: job.evaluation.group.clone(),
        evaluation: prepared.eval_plan.is_some().then_some(job.evaluation.cadence),
        selection: job.selection(),
        beginning: prepared.beginning.clone(),
        rehearsal: prepared
            .batch
            .as_ref()
            .map(|choice| choice.rehearsal(prepared.plan.slots(), place.number)),
    }
}

/// The TensorBoard events that a worker of `job` writes.
fn event_spec(job: &Job, places: &Places) -> Option<EventSpec> {
    let spec = job.tensorboard.as_ref()?;
    Some(EventSpec {
        place: places.events.clone()?,
        every_steps: spec.every_steps,
        histograms_every_steps: spec.histograms_every_steps,
        hyper_parameters: job.hyper_parameters(),
    })
}
