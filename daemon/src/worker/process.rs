//! The worker process: one model, fed from the ring.
//!
//! A worker never outlives its daemon. The kernel kills it when the daemon's thread that started it ends. It
//! ignores the signals with which a terminal or service manager stops the daemon, because the daemon then
//! asks it to take a checkpoint and stop. It exits when the other end of the ring or of the socket closes.
//!
//! A separate thread reads the daemon's messages; it only sets flags and passes on rings. The training loop
//! acts on them between steps. An error is sent to the daemon as [`FromWorker::Failed`]: a retry would meet
//! it again. A panic or a signal is a crash, and a retry may succeed.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context, Result, bail};
use millstream_backend::{Cpu, DEVICE_FAULT};
use millstream_batch::ring::Interrupter;
use millstream_batch::{BatchSchema, Consumer};
use millstream_trainer::spec::DeviceSpec;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::device::HostSurvey;
use super::protocol::{self, FromWorker, ProtocolError, Role, Start, ToWorker};
use super::{device, score, train};

/// The daemon's pending commands, polled between steps.
#[derive(Default)]
pub(super) struct PendingCommands {
    checkpoint: AtomicBool,
    stop: AtomicU8,
    /// Number of steps to record; 0 if no recording is requested.
    profile: AtomicU64,
    cancel_profile: AtomicBool,
}

/// Receives the daemon's commands after the worker has its ring.
pub(super) struct CommandReceiver {
    pub(super) commands: Arc<PendingCommands>,
    /// Rings of held-out rows. Closed once the worker is asked to stop.
    rings: Receiver<Consumer>,
}

/// The thread that reads the daemon's messages.
struct CommandReader {
    socket: UnixStream,
    schema: BatchSchema,
    commands: Arc<PendingCommands>,
    /// Interrupters of the rings that the worker may be waiting on: the job's and an evaluation's.
    rings: Vec<Interrupter>,
    /// Passes evaluation rings to the worker; `None` once it is asked to stop. At most one ring is requested
    /// at a time, so the channel always has room.
    eval_rings: Option<SyncSender<Consumer>>,
}

/// How the worker stops early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum StopMode {
    /// After a checkpoint.
    AfterCheckpoint = 1,
    /// Immediately.
    Immediately = 2,
}

/// The worker's end of the socket.
pub(super) struct Link {
    socket: UnixStream,
}

/// How a worker without an error ends.
pub(super) enum RunOutcome {
    /// All batches are consumed.
    Done,
    /// Early stopping, with its reason.
    StoppedEarly(String),
    /// The daemon asked it to stop.
    Stopped,
    /// The ring's producer died.
    InputLost,
}

/// Runs this process as a worker; call it first in `main`. The arguments are [`super::ARGUMENT`] and the
/// daemon's process id; standard input is the socket.
pub fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("MILLSTREAM_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    lines.log_internal_errors(false).without_time().with_ansi(false).init();
    let Some(mut link) = bind_to_daemon(std::env::args_os().nth(2)) else { return ExitCode::FAILURE };
    log_device_faults();
    let last = match work(&mut link) {
        Ok(RunOutcome::Done) => FromWorker::Done { stopped_early: None },
        Ok(RunOutcome::StoppedEarly(why)) => FromWorker::Done { stopped_early: Some(why) },
        Ok(RunOutcome::Stopped) => FromWorker::Stopped,
        Ok(RunOutcome::InputLost) => FromWorker::InputLost,
        Err(error) => FromWorker::Failed { message: format!("{error:#}") },
    };
    match link.send(&last) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "cannot send {last:?} to the daemon");
            ExitCode::FAILURE
        }
    }
}

/// Logs device faults without a backtrace: the place in our code where one is noticed says nothing about it.
fn log_device_faults() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        match info.payload_as_str().and_then(|message| message.strip_prefix(DEVICE_FAULT)) {
            Some(what) => tracing::error!("{what}"),
            None => usual(info),
        }
    }));
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
            // The handler sets a flag that nobody reads, so the signal has no effect.
            signal_hook::flag::register(signal, Arc::default())?;
        }
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        socket.peer_addr().context("standard input is not the daemon's socket")?;
        Ok(Link { socket })
    };
    bind().inspect_err(|error| tracing::error!("{error:#}")).ok()
}

fn work(link: &mut Link) -> Result<RunOutcome> {
    let start = match protocol::receive(&mut link.socket)? {
        Some(ToWorker::Start(start)) => start,
        Some(ToWorker::Survey) => {
            link.send(&FromWorker::Surveyed { survey: HostSurvey::of_this_host() })?;
            return Ok(RunOutcome::Done);
        }
        _ => bail!("the daemon's first message was not an assignment"),
    };
    let Start { role, schema } = *start;
    match role {
        Role::Train(role) => match role.training.device {
            DeviceSpec::Cpu => {
                let open = |threads, recorder| Ok(Cpu::new(threads)?.with_recorder(recorder));
                train::run(open, *role, &schema, link)
            }
            DeviceSpec::Cuda(number) => {
                let open = |_, recorder| Ok(device::cuda(number)?.with_recorder(recorder));
                train::run(open, *role, &schema, link)
            }
        },
        Role::Score { directory, step, output, device, threads, group } => {
            let (what, group) = ((directory.as_path(), step, output), group.as_deref());
            match device {
                DeviceSpec::Cpu => score::run(Cpu::new(threads)?, what, &schema, group, link),
                DeviceSpec::Cuda(number) => score::run(device::cuda(number)?, what, &schema, group, link),
            }
        }
    }
}

impl Link {
    /// Sends a message.
    pub(super) fn send(&mut self, message: &FromWorker) -> Result<(), ProtocolError> {
        protocol::send(&mut self.socket, message)
    }

    /// Receives the ring, then starts receiving the daemon's commands.
    pub(super) fn receive_ring(&self, schema: &BatchSchema) -> Result<(Consumer, CommandReceiver)> {
        let ring = Consumer::receive(&self.socket, schema)?;
        let commands = Arc::new(PendingCommands::default());
        let (eval_rings, rings) = sync_channel(1);
        let reader = CommandReader {
            socket: self.socket.try_clone()?,
            schema: schema.clone(),
            commands: Arc::clone(&commands),
            rings: vec![ring.interrupter()],
            eval_rings: Some(eval_rings),
        };
        std::thread::Builder::new().name("commands".into()).spawn(move || reader.run())?;
        Ok((ring, CommandReceiver { commands, rings }))
    }
}

impl CommandReceiver {
    /// Waits for a ring of held-out rows; `None` once the worker is asked to stop.
    pub(super) fn next_eval_ring(&self) -> Option<Consumer> {
        self.rings.recv().ok()
    }
}

impl PendingCommands {
    /// Takes the request for a checkpoint, if there is one.
    pub(super) fn take_checkpoint(&self) -> bool {
        self.checkpoint.swap(false, Ordering::AcqRel)
    }

    /// Whether a recording is to be started or cancelled.
    pub(super) fn has_profile_command(&self) -> bool {
        self.profile.load(Ordering::Acquire) > 0 || self.cancel_profile.load(Ordering::Acquire)
    }

    /// Takes the request for a recording: the number of steps.
    pub(super) fn take_profile(&self) -> Option<u64> {
        Some(self.profile.swap(0, Ordering::AcqRel)).filter(|&steps| steps > 0)
    }

    /// Takes the request to cancel the recording, if there is one.
    pub(super) fn take_profile_cancellation(&self) -> bool {
        self.cancel_profile.swap(false, Ordering::AcqRel)
    }

    /// How to stop, if requested.
    pub(super) fn stop(&self) -> Option<StopMode> {
        let stop = self.stop.load(Ordering::Acquire);
        [StopMode::AfterCheckpoint, StopMode::Immediately].into_iter().find(|&known| known as u8 == stop)
    }
}

impl CommandReader {
    fn run(mut self) {
        loop {
            let stop = match protocol::receive(&mut self.socket) {
                Ok(Some(ToWorker::Checkpoint)) => {
                    self.commands.checkpoint.store(true, Ordering::Release);
                    continue;
                }
                Ok(Some(ToWorker::Profile { steps })) => {
                    // A cancellation concerns an earlier recording only.
                    self.commands.cancel_profile.store(false, Ordering::Release);
                    self.commands.profile.store(steps, Ordering::Release);
                    continue;
                }
                Ok(Some(ToWorker::EndProfile)) => {
                    self.commands.cancel_profile.store(true, Ordering::Release);
                    continue;
                }
                Ok(Some(ToWorker::EvalRing)) => match self.forward_eval_ring() {
                    Ok(()) => continue,
                    Err(error) => {
                        tracing::error!("cannot receive an evaluation's ring: {error:#}");
                        StopMode::Immediately
                    }
                },
                Ok(Some(ToWorker::Stop { checkpoint: true })) => StopMode::AfterCheckpoint,
                Ok(Some(ToWorker::Stop { checkpoint: false })) => StopMode::Immediately,
                Ok(Some(ToWorker::Start(_) | ToWorker::Survey)) => {
                    tracing::warn!("ignored a second assignment");
                    continue;
                }
                // Without its daemon a worker is useless, and a new daemon may be starting another one.
                Ok(None) | Err(_) => StopMode::Immediately,
            };
            self.commands.stop.fetch_max(stop as u8, Ordering::AcqRel);
            self.eval_rings = None;
            self.rings.iter().for_each(Interrupter::interrupt);
            if stop == StopMode::Immediately {
                return;
            }
        }
    }

    fn forward_eval_ring(&mut self) -> Result<()> {
        let ring = Consumer::receive(&self.socket, &self.schema)?;
        self.rings.truncate(1);
        self.rings.push(ring.interrupter());
        if let Some(eval_rings) = &self.eval_rings {
            // The send fails only if the worker is exiting.
            let _ = eval_rings.try_send(ring);
        }
        Ok(())
    }
}
