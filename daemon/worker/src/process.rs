//! The worker process: one model, fed from the ring.
//!
//! A worker never outlives its daemon. The kernel kills it when the daemon's thread that started it ends. It
//! ignores the signals with which a terminal or service manager stops the daemon, because the daemon then
//! asks it to take a checkpoint and stop. It exits when the other end of the ring or of the socket closes.
//!
//! An error is sent to the daemon as [`FromWorker::Failed`], or as [`FromWorker::DeviceUnusable`] if this device alone cannot be
//! opened: a retry would meet it again. A device fault is sent as [`FromWorker::DeviceFailed`], and the loss of another worker of
//! the job as [`FromWorker::PeerLost`]. Any other panic or a signal is a crash. A retry after either may succeed.

use std::any::Any;
use std::ffi::{CStr, OsString};
use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use millstream_backend::DeviceFault;
use millstream_backend::collective::CollectiveError;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::link::Link;
use crate::protocol::{FromWorker, Role, Start, ToWorker};
use crate::score::ScoreTask;
use crate::survey::HostSurvey;
use crate::train::TrainTask;
use crate::{device, gpus, ranks};

/// Runs this process as a worker; call it first in `main`. The arguments are [`crate::ARGUMENT`] and the
/// daemon's process id; standard input is the socket.
pub fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("MILLSTREAM_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    lines.log_internal_errors(false).without_time().with_ansi(false).init();
    let Some(mut link) = bind_to_daemon(std::env::args_os().nth(2)) else { return ExitCode::FAILURE };
    identify();
    silence_device_errors();
    let last = match panic::catch_unwind(AssertUnwindSafe(|| work(&mut link))) {
        Ok(Ok(last)) => last,
        Ok(Err(error)) if ranks::is_peer_lost(&error) => {
            FromWorker::PeerLost { message: format!("{error:#}") }
        }
        Ok(Err(error)) if device::is_unusable(&error) => {
            FromWorker::DeviceUnusable { message: format!("{error:#}") }
        }
        Ok(Err(error)) => FromWorker::Failed { message: format!("{error:#}") },
        Err(panic) => last_message_of(panic),
    };
    match link.send(&last) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "cannot send {last:?} to the daemon");
            ExitCode::FAILURE
        }
    }
}

/// The last message after a panic with an error that an operation of a device could not return. Continues any other panic.
fn last_message_of(panic: Box<dyn Any + Send>) -> FromWorker {
    let panic = match panic.downcast::<CollectiveError>() {
        Ok(error) => return FromWorker::PeerLost { message: error.to_string() },
        Err(panic) => panic,
    };
    match panic.downcast::<DeviceFault>() {
        Ok(fault) => FromWorker::DeviceFailed { message: fault.message, out_of_memory: fault.out_of_memory },
        Err(crash) => panic::resume_unwind(crash),
    }
}

/// Keeps the panic hook from printing errors of devices, which the daemon logs; a backtrace would not help.
fn silence_device_errors() {
    let default_hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<DeviceFault>() && !info.payload().is::<CollectiveError>() {
            default_hook(info);
        }
    }));
}

/// The name of a worker's main thread, which `ps` and `top` show.
const PROCESS_NAME: &CStr = c"millstream-work";

/// The worker's advantage over its daemon when the kernel chooses a process to kill for memory, of at most 1,000. Half the
/// scale outweighs a daemon that uses half of the memory more. A killed worker is restarted; a killed daemon takes all
/// workers with it.
const OOM_SCORE_ADVANTAGE: i32 = 500;
const MAX_OOM_SCORE: i32 = 1000;
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// Names the process, and offers it to the kernel's OOM killer before the daemon. Both fail only without `/proc`.
fn identify() {
    let _ = rustix::thread::set_name(PROCESS_NAME);
    let inherited = fs::read_to_string(OOM_SCORE_FILE).ok().and_then(|score| score.trim().parse().ok());
    let score = inherited.unwrap_or(0_i32).saturating_add(OOM_SCORE_ADVANTAGE).min(MAX_OOM_SCORE);
    if let Err(error) = fs::write(OOM_SCORE_FILE, score.to_string()) {
        tracing::debug!(%error, "cannot raise this process's OOM score");
    }
}

/// Binds this process's life to its daemon's; `None` on failure, or when the daemon is already gone.
fn bind_to_daemon(parent: Option<OsString>) -> Option<Link> {
    let bind = || -> Result<Link> {
        let parent = parent.context("a worker can only be started by a daemon")?;
        let parent = parent.to_str().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The daemon may have died before the line above; then this process has another parent.
        if parent.is_none() || getppid() != parent {
            bail!("the daemon is gone");
        }
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The handler only sets an unused flag, so the signal has no effect.
            signal_hook::flag::register(signal, Arc::default())?;
        }
        Link::from_stdin()
    };
    bind().inspect_err(|error| tracing::error!("{error:#}")).ok()
}

/// Carries out the assignment. Returns the last message.
fn work(link: &mut Link) -> Result<FromWorker> {
    let start = match link.receive()? {
        Some(ToWorker::Start(start)) => start,
        Some(ToWorker::Survey { opens }) => {
            link.send(&FromWorker::Surveyed { survey: HostSurvey::of_this_host(opens) })?;
            return Ok(FromWorker::Done { step: 0, stopped_early: None });
        }
        Some(ToWorker::SampleGpus) => return gpus::serve(link),
        _ => bail!("the daemon's first message was not an assignment"),
    };
    let Start { role, schema } = *start;
    match role {
        Role::Train(role) => {
            device::with_device(role.training.device, TrainTask { role: *role, schema }, link)
        }
        Role::Score(role) => device::with_device(role.device, ScoreTask { role, schema }, link),
        Role::Reduce(role) => ranks::reduce(&role, link),
    }
}
