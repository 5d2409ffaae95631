//! The worker's process: one model, fed from the ring.
//!
//! It must never be in anybody's way. It is killed by the kernel when the daemon's thread that started it
//! ends; it ignores the signals by which a terminal or a service manager stops the daemon, because the
//! daemon then tells it to take a checkpoint and stop; and the death of the ring's other end or of the
//! socket's ends it at once.
//!
//! Messages of the daemon are read on a thread of their own, which only sets flags and hands on rings; they are
//! acted upon between steps. An error is told to the daemon as [`FromWorker::Failed`], which means that another try
//! would meet it again; a panic or a signal is a death, which means that one may not.

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

/// What the daemon wants of the worker; looked at between steps.
#[derive(Default)]
pub(super) struct Wishes {
    checkpoint: AtomicBool,
    stop: AtomicU8,
    /// Steps to be recorded; 0 while none are.
    profile: AtomicU64,
    profile_unwanted: AtomicBool,
}

/// What the worker hears of its daemon once it has its ring.
pub(super) struct Heard {
    pub(super) wishes: Arc<Wishes>,
    /// Rings of held-out rows. None comes any more once the worker is to stop.
    rings: Receiver<Consumer>,
}

/// The thread that listens to the daemon.
struct Listener {
    socket: UnixStream,
    schema: BatchSchema,
    wishes: Arc<Wishes>,
    /// Those of the rings that the worker may be waiting for: the one of the job, and that of an evaluation.
    rings: Vec<Interrupter>,
    /// `None` once the worker is to stop. One ring is asked for at a time, so there is always room.
    hand_on: Option<SyncSender<Consumer>>,
}

/// How the worker is to end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stop {
    /// After a checkpoint.
    AfterCheckpoint = 1,
    /// At once.
    AtOnce = 2,
}

/// The worker's end of the socket.
pub(super) struct Link {
    socket: UnixStream,
}

/// How a worker that met no error ends.
pub(super) enum Ended {
    /// All batches are used.
    Done,
    /// More training was of no use, for this reason.
    StoppedEarly(String),
    /// It was told to stop.
    Stopped,
    /// The ring's producer is gone.
    InputLost,
}

/// Runs this process as a worker: its arguments are [`super::ARGUMENT`] and the daemon's process id, its
/// standard input is the socket. For the first lines of `main`.
pub fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("MILLSTREAM_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    lines.log_internal_errors(false).without_time().with_ansi(false).init();
    let Some(mut link) = guard(std::env::args_os().nth(2)) else { return ExitCode::FAILURE };
    tell_faults();
    let last = match work(&mut link) {
        Ok(Ended::Done) => FromWorker::Done { stopped_early: None },
        Ok(Ended::StoppedEarly(why)) => FromWorker::Done { stopped_early: Some(why) },
        Ok(Ended::Stopped) => FromWorker::Stopped,
        Ok(Ended::InputLost) => FromWorker::InputLost,
        Err(error) => FromWorker::Failed { message: format!("{error:#}") },
    };
    match link.send(&last) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the daemon did not hear {last:?}");
            ExitCode::FAILURE
        }
    }
}

/// Has a device's fault tell what it is and no more: where in our code it was met says nothing of it.
fn tell_faults() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        match info.payload_as_str().and_then(|message| message.strip_prefix(DEVICE_FAULT)) {
            Some(what) => tracing::error!("{what}"),
            None => usual(info),
        }
    }));
}

/// Ties this process to its daemon; `None` when that cannot be, or the daemon is gone already.
fn guard(parent: Option<OsString>) -> Option<Link> {
    let tie = || -> Result<Link> {
        let parent = parent.context("a worker is started by its daemon, not by hand")?;
        let parent = parent.to_str().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have gone before the line above; then somebody else is our parent now.
        if parent.is_none() || getppid() != parent {
            bail!("the daemon is gone");
        }
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // A handler that sets a flag nobody reads: the signal has no effect.
            signal_hook::flag::register(signal, Arc::default())?;
        }
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        socket.peer_addr().context("standard input is not the daemon's socket")?;
        Ok(Link { socket })
    };
    tie().inspect_err(|error| tracing::error!("{error:#}")).ok()
}

fn work(link: &mut Link) -> Result<Ended> {
    let start = match protocol::receive(&mut link.socket)? {
        Some(ToWorker::Start(start)) => start,
        Some(ToWorker::Survey) => {
            link.send(&FromWorker::Surveyed { survey: HostSurvey::of_host() })?;
            return Ok(Ended::Done);
        }
        _ => bail!("the daemon did not say what to do"),
    };
    let Start { role, schema } = *start;
    match role {
        Role::Train(role) => match role.training.device {
            DeviceSpec::Cpu => train::run(|threads| Ok(Cpu::new(threads)?), *role, &schema, link),
            DeviceSpec::Cuda(number) => train::run(|_| device::cuda(number), *role, &schema, link),
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

    /// Receives the ring, and from then on the daemon's wishes.
    pub(super) fn receive_ring(&self, schema: &BatchSchema) -> Result<(Consumer, Heard)> {
        let ring = Consumer::receive(&self.socket, schema)?;
        let wishes = Arc::new(Wishes::default());
        let (hand_on, rings) = sync_channel(1);
        let listener = Listener {
            socket: self.socket.try_clone()?,
            schema: schema.clone(),
            wishes: Arc::clone(&wishes),
            rings: vec![ring.interrupter()],
            hand_on: Some(hand_on),
        };
        std::thread::Builder::new().name("wishes".into()).spawn(move || listener.listen())?;
        Ok((ring, Heard { wishes, rings }))
    }
}

impl Heard {
    /// Waits for a ring of held-out rows; `None` when the worker is to stop.
    pub(super) fn next_ring(&self) -> Option<Consumer> {
        self.rings.recv().ok()
    }
}

impl Wishes {
    /// Whether a checkpoint is wanted; asking takes the wish.
    pub(super) fn take_checkpoint(&self) -> bool {
        self.checkpoint.swap(false, Ordering::AcqRel)
    }

    /// Whether a recording is wanted that was not, or not any more.
    pub(super) fn change_profile(&self) -> bool {
        self.profile.load(Ordering::Acquire) > 0 || self.profile_unwanted.load(Ordering::Acquire)
    }

    /// How many steps are to be recorded, if any; asking takes the wish.
    pub(super) fn take_profile(&self) -> Option<u64> {
        Some(self.profile.swap(0, Ordering::AcqRel)).filter(|&steps| steps > 0)
    }

    /// Whether nobody wants what is being recorded; asking takes the wish.
    pub(super) fn take_profile_unwanted(&self) -> bool {
        self.profile_unwanted.swap(false, Ordering::AcqRel)
    }

    /// How to end early, if that is wanted.
    pub(super) fn stop(&self) -> Option<Stop> {
        let stop = self.stop.load(Ordering::Acquire);
        [Stop::AfterCheckpoint, Stop::AtOnce].into_iter().find(|&known| known as u8 == stop)
    }
}

impl Listener {
    fn listen(mut self) {
        loop {
            let stop = match protocol::receive(&mut self.socket) {
                Ok(Some(ToWorker::Checkpoint)) => {
                    self.wishes.checkpoint.store(true, Ordering::Release);
                    continue;
                }
                Ok(Some(ToWorker::Profile { steps })) => {
                    // What is not wanted any more is what was asked for before.
                    self.wishes.profile_unwanted.store(false, Ordering::Release);
                    self.wishes.profile.store(steps, Ordering::Release);
                    continue;
                }
                Ok(Some(ToWorker::EndProfile)) => {
                    self.wishes.profile_unwanted.store(true, Ordering::Release);
                    continue;
                }
                Ok(Some(ToWorker::EvalRing)) => match self.hand_ring_on() {
                    Ok(()) => continue,
                    Err(error) => {
                        tracing::error!("the ring of an evaluation did not come: {error:#}");
                        Stop::AtOnce
                    }
                },
                Ok(Some(ToWorker::Stop { checkpoint: true })) => Stop::AfterCheckpoint,
                Ok(Some(ToWorker::Stop { checkpoint: false })) => Stop::AtOnce,
                Ok(Some(ToWorker::Start(_) | ToWorker::Survey)) => {
                    tracing::warn!("a second start is ignored");
                    continue;
                }
                // Without a daemon there is nobody to train for, and a new one may be starting a worker.
                Ok(None) | Err(_) => Stop::AtOnce,
            };
            self.wishes.stop.fetch_max(stop as u8, Ordering::AcqRel);
            self.hand_on = None;
            self.rings.iter().for_each(Interrupter::interrupt);
            if stop == Stop::AtOnce {
                return;
            }
        }
    }

    fn hand_ring_on(&mut self) -> Result<()> {
        let ring = Consumer::receive(&self.socket, &self.schema)?;
        self.rings.truncate(1);
        self.rings.push(ring.interrupter());
        if let Some(hand_on) = &self.hand_on {
            // A worker that takes none is ending.
            let _ = hand_on.try_send(ring);
        }
        Ok(())
    }
}
