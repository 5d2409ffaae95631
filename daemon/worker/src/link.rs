//! The worker's end of the socket to its daemon.
//!
//! A separate thread reads the daemon's messages; it only sets flags and passes on rings and what concerns the files of
//! checkpoints. The training loop acts on the flags between steps, and while it waits for a batch.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use millstream_backend::collective::Recorder;
use millstream_batch::BatchSchema;
use millstream_batch::descriptors;
use millstream_batch::messages::{self, MessageError};
use millstream_batch::ring::Interrupter;

use crate::objects::ObjectClient;
use crate::protocol::{
    FromWorker, IMAGES_GREETING, OBJECTS_GREETING, PartsRequest, PartsWritten, RECORD_GREETING, ToWorker,
};
use crate::rings::Rings;

/// The daemon's pending commands, polled between steps and while the next batch is late.
#[derive(Default)]
pub(crate) struct PendingCommands {
    checkpoint: AtomicBool,
    stop: AtomicU8,
    /// Number of steps to record; 0 if no recording is requested.
    profile: AtomicU64,
    cancel_profile: AtomicBool,
}

/// Receives the daemon's commands after the worker has its ring.
pub(crate) struct CommandReceiver {
    pub(crate) commands: Arc<PendingCommands>,
    /// Rings of held-out rows. Closed once the worker is asked to stop.
    rings: Receiver<Rings>,
}

/// What workers tell each other about the files of checkpoints, as the daemon passes it on.
pub(crate) struct PartsReceiver {
    /// The files that this worker is to write. Closed once the daemon is gone.
    pub(crate) requests: Receiver<PartsRequest>,
    /// Those that other workers have written; `None` once no more can come.
    pub(crate) written: Receiver<Option<PartsWritten>>,
    /// Ends a wait for others by `None`.
    pub(crate) end_written: Sender<Option<PartsWritten>>,
}

/// The thread that reads the daemon's messages.
struct CommandReader {
    socket: UnixStream,
    schema: BatchSchema,
    /// The number of rings of the job, and of an evaluation.
    count: u32,
    commands: Arc<PendingCommands>,
    /// Interrupters of the rings that the worker may be waiting on: the job's and an evaluation's.
    rings: Vec<Interrupter>,
    /// Passes evaluation rings to the worker; `None` once it is asked to stop. The rings of at most one evaluation are
    /// requested at a time, so the channel always has room.
    eval_rings: Option<SyncSender<Rings>>,
    parts_requests: Sender<PartsRequest>,
    parts_written: Sender<Option<PartsWritten>>,
}

/// How the worker stops early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum StopMode {
    /// After a checkpoint.
    AfterCheckpoint = 1,
    /// Immediately.
    Immediately = 2,
}

/// The worker's end of the socket.
pub(crate) struct Link {
    socket: UnixStream,
    sender: LinkSender,
}

/// Sends messages to the daemon, from any thread.
#[derive(Clone)]
pub(crate) struct LinkSender(Arc<Mutex<UnixStream>>);

impl LinkSender {
    /// Sends messages through `socket`.
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self(Arc::new(Mutex::new(socket)))
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: &FromWorker) -> Result<(), MessageError> {
        // After a panic in the middle of a message, the daemon gets a malformed one and ends this worker.
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        messages::send(&mut *socket, message)
    }
}

impl Link {
    /// The socket that is this process's standard input.
    pub(crate) fn from_stdin() -> Result<Self> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        socket.peer_addr().context("standard input is not the daemon's socket")?;
        let sender = LinkSender::new(socket.try_clone()?);
        Ok(Self { socket, sender })
    }

    /// What other threads send messages with.
    pub(crate) fn sender(&self) -> LinkSender {
        self.sender.clone()
    }

    /// Receives the daemon's first message.
    pub(crate) fn receive(&mut self) -> Result<Option<ToWorker>, MessageError> {
        messages::receive(&mut self.socket)
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: &FromWorker) -> Result<(), MessageError> {
        self.sender.send(message)
    }

    /// Receives the files of the job's images, which follow the assignment.
    pub(crate) fn receive_images(&mut self) -> Result<[File; 2]> {
        let files = descriptors::receive(&self.socket, IMAGES_GREETING).context("the images of the model")?;
        Ok(files.map(File::from))
    }

    /// Receives a connection for the objects of a directory in a bucket, which follows the images.
    pub(crate) fn receive_objects(&mut self) -> Result<ObjectClient> {
        let [socket] =
            descriptors::receive(&self.socket, OBJECTS_GREETING).context("the connection for objects")?;
        Ok(ObjectClient::new(socket.into()))
    }

    /// Receives the file of this worker's flight record, which follows the daemon's last message.
    pub(crate) fn receive_record(&mut self) -> Result<Recorder> {
        let [file] = descriptors::receive(&self.socket, RECORD_GREETING).context("the flight record")?;
        Ok(Recorder::open(file)?)
    }

    /// Receives `count` rings of slots of `schema`, then starts receiving the daemon's commands.
    pub(crate) fn receive_rings(
        &self,
        schema: &BatchSchema,
        count: u32,
    ) -> Result<(Rings, CommandReceiver, PartsReceiver)> {
        let of_job = Rings::receive(&self.socket, schema, count)?;
        let commands = Arc::new(PendingCommands::default());
        let (eval_rings, rings) = sync_channel(1);
        let (parts_requests, requests) = channel();
        let (parts_written, written) = channel();
        let reader = CommandReader {
            socket: self.socket.try_clone()?,
            schema: schema.clone(),
            count,
            commands: Arc::clone(&commands),
            rings: of_job.interrupters().collect(),
            eval_rings: Some(eval_rings),
            parts_requests,
            parts_written: parts_written.clone(),
        };
        std::thread::Builder::new().name("commands".into()).spawn(move || reader.run())?;
        let parts = PartsReceiver { requests, written, end_written: parts_written };
        Ok((of_job, CommandReceiver { commands, rings }, parts))
    }
}

impl CommandReceiver {
    /// Waits for the rings of an evaluation; `None` once the worker is asked to stop.
    pub(crate) fn next_eval_rings(&self) -> Option<Rings> {
        self.rings.recv().ok()
    }
}

impl PendingCommands {
    /// Takes the request for a checkpoint, if there is one.
    pub(crate) fn take_checkpoint(&self) -> bool {
        self.checkpoint.swap(false, Ordering::AcqRel)
    }

    /// Whether a recording is to be started or cancelled.
    pub(crate) fn has_profile_command(&self) -> bool {
        self.profile.load(Ordering::Acquire) > 0 || self.cancel_profile.load(Ordering::Acquire)
    }

    /// Takes the request for a recording: the number of steps.
    pub(crate) fn take_profile(&self) -> Option<u64> {
        Some(self.profile.swap(0, Ordering::AcqRel)).filter(|&steps| steps > 0)
    }

    /// Takes the request to cancel the recording, if there is one.
    pub(crate) fn take_profile_cancellation(&self) -> bool {
        self.cancel_profile.swap(false, Ordering::AcqRel)
    }

    /// How to stop, if requested.
    pub(crate) fn stop(&self) -> Option<StopMode> {
        let stop = self.stop.load(Ordering::Acquire);
        [StopMode::AfterCheckpoint, StopMode::Immediately].into_iter().find(|&known| known as u8 == stop)
    }
}

impl CommandReader {
    fn run(mut self) {
        loop {
            let stop = match messages::receive(&mut self.socket) {
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
                // These sends fail only if the worker is exiting.
                Ok(Some(ToWorker::WriteParts(request))) => {
                    let _ = self.parts_requests.send(request);
                    continue;
                }
                Ok(Some(ToWorker::PartsWritten(written))) => {
                    let _ = self.parts_written.send(Some(written));
                    continue;
                }
                Ok(Some(ToWorker::EvalRing)) => match self.forward_eval_rings() {
                    Ok(()) => continue,
                    Err(error) => {
                        tracing::error!("cannot receive an evaluation's rings: {error:#}");
                        StopMode::Immediately
                    }
                },
                Ok(Some(ToWorker::Stop { checkpoint: true })) => StopMode::AfterCheckpoint,
                Ok(Some(ToWorker::Stop { checkpoint: false })) => StopMode::Immediately,
                Ok(Some(
                    ToWorker::Start(_)
                    | ToWorker::Connect { .. }
                    | ToWorker::Survey { .. }
                    | ToWorker::SampleGpus,
                )) => {
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
                let _ = self.parts_written.send(None);
                return;
            }
        }
    }

    fn forward_eval_rings(&mut self) -> Result<()> {
        let rings = Rings::receive(&self.socket, &self.schema, self.count)?;
        self.rings.truncate(self.count as usize);
        self.rings.extend(rings.interrupters());
        if let Some(eval_rings) = &self.eval_rings {
            // The send fails only if the worker is exiting.
            let _ = eval_rings.try_send(rings);
        }
        Ok(())
    }
}
