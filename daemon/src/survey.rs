//! Surveys the host's GPUs and CUDA libraries.
//!
//! A worker does it: a driver that hangs or crashes takes down that worker, not the daemon.

use std::env;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Result, bail};
use millstream_worker::protocol::{FromWorker, ToWorker};
use millstream_worker::survey::HostSurvey;

use crate::worker::{WorkerProcess, WorkerProgram};

/// Time limit for the driver to answer.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a worker to exit after its reply.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Surveys the host in a worker started from this executable.
///
/// # Errors
/// As for [`survey_host`].
pub fn survey_host_with_current_exe() -> Result<HostSurvey> {
    survey_host(&env::current_exe()?.into())
}

/// As [`survey_host_with_current_exe`]; the worker also opens each GPU, as a job does, which takes part of a second each.
///
/// # Errors
/// As for [`survey_host`].
pub fn open_gpus_with_current_exe() -> Result<HostSurvey> {
    survey(&env::current_exe()?.into(), true)
}

/// Surveys the host in a worker started from `program`.
///
/// # Errors
/// When the worker cannot be started, or dies before it replies.
pub fn survey_host(program: &WorkerProgram) -> Result<HostSurvey> {
    survey(program, false)
}

fn survey(program: &WorkerProgram, opens: bool) -> Result<HostSurvey> {
    let mut worker = WorkerProcess::spawn(program, |_| {})?;
    let (sender, receiver) = sync_channel(1);
    let reader = worker.listen(move |message| sender.send(message).is_ok(), || {})?;
    worker.send(&ToWorker::Survey { opens })?;
    let reply = receiver.recv_timeout(SURVEY_TIMEOUT);
    drop(receiver);
    if let Ok(FromWorker::Surveyed { survey }) = reply {
        worker.wait(EXIT_TIMEOUT)?;
        let _ = reader.join();
        return Ok(survey);
    }
    let exit = worker.wait(Duration::ZERO)?;
    bail!("the worker that surveys GPUs failed: {exit}")
}
