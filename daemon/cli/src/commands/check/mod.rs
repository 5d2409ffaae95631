//! `millstream check`: prints the plan of a job without training.

mod report;
mod tables;

use anyhow::Context as _;
use millstream_daemon::access::Requester;
use millstream_daemon::devices;
use millstream_daemon::memory::Room;
use millstream_daemon::plan::{JobPlan, Learning};
use millstream_daemon::ranks;
use millstream_daemon::survey::{sample_gpus_with_current_exe, survey_host_with_current_exe};
use millstream_daemon::warm_start::Beginning;
use millstream_io::storage::Stores;
use millstream_job::Job;
use millstream_worker::survey::HostSurvey;
use tokio::runtime::{Handle, Runtime};

use self::report::{HostUse, Memory, Report};
use crate::arguments::Check;
use crate::context::Context;
use crate::failure::Failure;
use crate::progress::Gauge;
use crate::{interrupt, job_file};

/// Without `--learn`, training data of at most this size is still read: it takes about a second.
const LEARN_BY_DEFAULT_BYTES: u64 = 64 << 20;

pub(crate) fn run(arguments: &Check, context: &Context) -> Result<(), Failure> {
    let runtime = Runtime::new()?;
    let checked = check(arguments, context, &runtime);
    // Reads in flight may remain; nothing needs their results.
    runtime.shutdown_background();
    checked
}

fn check(arguments: &Check, context: &Context, runtime: &Runtime) -> Result<(), Failure> {
    let job = devices::resolve(job_file::resolve(&arguments.job, context)?, sample_gpus_with_current_exe)?;
    let host = job.training.device.gpu().map(|_| survey_host_with_current_exe()).transpose()?;
    let surveyed = || host.clone().context("a CPU job does not survey GPUs");
    let stores = Stores::default().for_job(&job.storage);
    let interrupted = interrupt::cancelling(runtime, &stores)?;
    let plan = {
        let gauge = Gauge::rows(&context.screen, "learning");
        let most_bytes = if arguments.learn { u64::MAX } else { LEARN_BY_DEFAULT_BYTES };
        let learning = Learning { most_bytes, progress: &|now| gauge.update(now.rows) };
        JobPlan::new(&job, &surveyed, learning, (&stores, runtime.handle()))
    };
    let beginning = match &plan {
        Ok(plan) => Beginning::of(plan, &Requester::Trusted),
        Err(_) => Ok(None),
    };
    if *interrupted.borrow() {
        return Err(interrupt::error().into());
    }
    // Nothing is left to clean up.
    interrupt::exit_on(runtime, interrupted);
    let (plan, beginning) = (plan?, beginning?);
    if job.warm_start.is_some() && beginning.is_none() && plan.continuation.is_none() {
        context.screen.note("--learn reads the data and shows which parameters the warm start carries over");
    }
    let report = Report::of(&plan, host, beginning);
    context.answer(&report, || report.describe())?;
    // With --json, the report contains them.
    for problem in [&report.gpu_problem, &report.memory_problem].into_iter().flatten() {
        context.screen.error(problem);
    }
    match (report.gpu_problem, report.memory_problem) {
        (Some(_), _) => Err(Failure::JobAlreadyReported),
        (None, Some(_)) => Err(Failure::AlreadyReported),
        (None, None) => Ok(()),
    }
}

/// Why the job cannot use its GPU on this host.
fn gpu_problem(job: &Job, host: Option<&HostSurvey>) -> Option<String> {
    let host = host?;
    let here = || match job.training.ranks() {
        _ if job.workers.devices.is_some() => "`workers.devices`".to_owned(),
        1 => format!("`training.device = \"{}\"`", job.training.device),
        ranks => format!("`training.device = \"{}\"` with `workers.per_host = {ranks}`", job.training.device),
    };
    let numbers = ranks::gpus(&job.training);
    let problem = numbers.into_iter().find_map(|number| host.gpu(number).with_context(here).err());
    problem.map(|error| format!("{error:#}"))
}

/// Why the job does not fit into this host's memory.
fn memory_problem(plan: &JobPlan, memory: &Memory) -> Option<String> {
    // An automatic batch size is chosen to fit, and an upper bound may be far above what is needed.
    if plan.batch.is_some() || plan.analysis.is_none() {
        return None;
    }
    let room = Room::Available(memory.host.available_bytes?);
    plan.host_memory().check(&plan.model, room).err().map(|error| error.to_string())
}

/// Whether a job fits on this host.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    /// The least host memory.
    pub(crate) needed_bytes: u64,
    pub(crate) available_bytes: Option<u64>,
    /// Whether vocabularies are known; otherwise, `needed_bytes` is an upper bound.
    pub(crate) is_exact: bool,
    pub(crate) gpu_problem: Option<String>,
    pub(crate) memory_problem: Option<String>,
}

/// Plans `job` as `check` does without `--learn`. Blocks, so it must not be called from async code.
pub(crate) fn fit(job: &Job, runtime: &Handle) -> anyhow::Result<Fit> {
    let job = &devices::resolve(job.clone(), sample_gpus_with_current_exe)?;
    let host = job.training.device.gpu().map(|_| survey_host_with_current_exe()).transpose()?;
    let gpu_problem = gpu_problem(job, host.as_ref());
    let surveyed = || host.clone().context("a CPU job does not survey GPUs");
    let learning = Learning { most_bytes: LEARN_BY_DEFAULT_BYTES, progress: &|_| {} };
    let stores = Stores::default().for_job(&job.storage);
    let plan = JobPlan::new(job, &surveyed, learning, (&stores, runtime))?;
    let memory = Memory::of(&plan, host.as_ref());
    let HostUse { needed_bytes, available_bytes, .. } = memory.host;
    let memory_problem = memory_problem(&plan, &memory);
    let is_exact = plan.analysis.is_some();
    Ok(Fit { needed_bytes, available_bytes, is_exact, gpu_problem, memory_problem })
}
