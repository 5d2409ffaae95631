//! Surveys the host's GPUs and CUDA libraries.
//!
//! A worker does it: a driver that hangs or crashes takes down that worker, not the daemon.

use std::env;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Result, bail};
use millstream_worker::gpus::GpuSample;
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

/// Reads the state of the GPUs once through NVML, in a worker started from this executable.
///
/// # Errors
/// When the driver does not answer, with what to do; as for [`survey_host`] otherwise.
pub fn sample_gpus_with_current_exe() -> Result<GpuSample> {
    sample_gpus(&env::current_exe()?.into())
}

/// Reads the state of the GPUs once through NVML, in a worker started from `program`.
///
/// # Errors
/// As for [`sample_gpus_with_current_exe`].
pub(crate) fn sample_gpus(program: &WorkerProgram) -> Result<GpuSample> {
    match ask(program, &ToWorker::SampleGpus)?.0 {
        FromWorker::GpusSampled { sample } => Ok(sample),
        _ => bail!("unexpected message from the worker that reads GPUs"),
    }
}

fn survey(program: &WorkerProgram, opens: bool) -> Result<HostSurvey> {
    match ask(program, &ToWorker::Survey { opens })? {
        (FromWorker::Surveyed { survey }, worker) => {
            worker.wait(EXIT_TIMEOUT)?;
            Ok(survey)
        }
        _ => bail!("unexpected message from the worker that surveys GPUs"),
    }
}

/// The reply of a new worker to its first message.
///
/// # Errors
/// Those that the worker reports; when it cannot be started, dies or does not answer in time.
fn ask(program: &WorkerProgram, message: &ToWorker) -> Result<(FromWorker, WorkerProcess)> {
    let mut worker = WorkerProcess::spawn(program, None, |_| {})?;
    let (sender, receiver) = sync_channel(1);
    worker.listen(move |message| sender.send(message).is_ok(), || {})?;
    worker.send(message)?;
    match receiver.recv_timeout(SURVEY_TIMEOUT) {
        Ok(FromWorker::Failed { message }) => bail!(message),
        Ok(reply) => Ok((reply, worker)),
        Err(_) => {
            let exit = worker.wait(Duration::ZERO)?;
            bail!("the worker that surveys GPUs failed: {exit}")
        }
    }
}
