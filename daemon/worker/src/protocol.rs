//! The protocol between the daemon and its workers.
//!
//! The worker's standard input is one end of a Unix stream socket pair, which carries [`messages`](millstream_batch::messages).
//! Batches travel through the shared-memory ring, never here.
//!
//! ```text
//! daemon                                   worker
//!   Start, the descriptors of two images
//!   if the job has any, and of connections
//!   for objects if it has a directory in
//!   a bucket ---------------------------->   locks a local run, rehearses a step if asked
//!         <-------------------------------   Listening, if it is one of several workers
//!   Connect, when all are listening,
//!   the descriptor of a flight record --->   connects to the others
//!                                            restores its newest image or valid checkpoint
//!         <-------------------------------   Ready, with the position to resume the data from
//!   the ring's descriptors -------------->
//!   Checkpoint, Stop -------------------->   at any time from now on
//!         <-------------------------------   WriteParts, of rank 0
//!   WriteParts, to the other ranks ------>   write their files of the checkpoint
//!         <-------------------------------   PartsWritten, of each of them
//!   PartsWritten, to rank 0 ------------->   commits the checkpoint when it has those of all
//!         <-------------------------------   Progress, Checkpointed, CheckpointFailed, ImageCompleted, Evaluated,
//!                                            Warned, Scores
//!         <-------------------------------   EvalDue
//!   EvalRing, a ring's descriptors ------>   evaluates its batches, then continues training
//!   Profile, EndProfile ----------------->   records its next steps
//!         <-------------------------------   Profiling repeatedly, Spans repeatedly, Profiled once
//!         <-------------------------------   one of Done, Stopped, InputLost, PeerLost, StorageFailed,
//!                                            DeviceFailed, DeviceUnusable, Failed
//! ```
//!
//! Several workers of a job have ranks, counted from 0. Rank 0 alone locks a local run, commits checkpoints and reports: of the
//! messages after `Ready`, other ranks send warnings, recordings, written files and the last message only. `Checkpoint` and
//! `PartsWritten` go to rank 0, `WriteParts` to all but rank 0, `Profile` and `EndProfile` to the rank to record, all others to
//! every rank. Of a run in a bucket, the daemon has the lease. If the ranks are on several hosts, their daemons pass these messages
//! on, and the first rank of each host sends `EvalDue`.
//!
//! The worker chooses the checkpoint, not the daemon: it reads the whole checkpoint anyway, and it holds the
//! job's lock, so no earlier worker can be committing another one.
//!
//! Both ends are the same program, so the protocol has no version. An end of file between messages means that
//! the other side has ended, in order or not.

use std::path::{Path, PathBuf};

use millstream_backend::{Description, Floors};
use millstream_batch::BatchSchema;
use millstream_batch::descriptors::Greeting;
use millstream_trace::Track;
use millstream_trainer::checkpoint::PartEntry;
use millstream_trainer::metrics::Metrics;
use millstream_trainer::session::{EvalCadence, SelectionSpec};
use millstream_trainer::spec::{DeviceSpec, GroupSpec, ModelSpec, Precision, TrainingSpec};
use serde::{Deserialize, Deserializer, Serialize};

use crate::gpus::GpuSample;
use crate::survey::HostSurvey;
use crate::tensorboard::EventSpec;

/// What the message begins with that passes a worker the file of its flight record.
pub const RECORD_GREETING: Greeting = *b"millfrec";

/// What the message begins with that passes a worker the files of the job's images.
pub const IMAGES_GREETING: Greeting = *b"millimag";

/// What the message begins with that passes a worker a connection for [objects](crate::objects).
pub const OBJECTS_GREETING: Greeting = *b"millobjs";

/// The name of the job file in a checkpoint.
pub const JOB_PART: &str = "job.toml";

/// The name of the statistics learned from the data in a checkpoint.
pub const ANALYSIS_PART: &str = "analysis.json";

/// The maximum number of spans in one [`FromWorker::Spans`].
pub const SPANS_PER_MESSAGE: usize = 8192;

/// The maximum number of scores in one [`FromWorker::Scores`].
pub const SCORES_PER_MESSAGE: usize = 8192;

/// A message from the daemon to its worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToWorker {
    /// The worker's assignment; sent once, first.
    Start(Box<Start>),
    /// The reply to [`FromWorker::Listening`], once all workers of the job are listening; the descriptor of the worker's flight
    /// record follows.
    Connect {
        /// The address of each rank, then those of the reducers.
        addresses: Vec<Vec<u8>>,
        /// The number of reducers.
        reducers: u32,
        /// As [`TrainRole::newest_step`], which it replaces.
        newest_step: Option<u64>,
    },
    /// Instead of `Start`: report the host's GPUs and CUDA libraries, then exit.
    Survey {
        /// Whether to open each GPU, as a job does.
        opens: bool,
    },
    /// Instead of `Start`: read how busy the host's GPUs are, and again at each further request.
    SampleGpus,
    /// Take a checkpoint after the current step and report it as requested. A worker waiting for a batch
    /// takes it once the batch arrives, because interrupting a ring wait is permanent.
    Checkpoint,
    /// The reply to [`FromWorker::EvalDue`]; the descriptors of a ring follow.
    EvalRing,
    /// Write the files of this rank of a checkpoint.
    WriteParts(PartsRequest),
    /// What another rank has written.
    PartsWritten(PartsWritten),
    /// Record the next steps and send the spans.
    Profile {
        /// Number of steps.
        steps: u64,
    },
    /// The client has disconnected: stop recording after the current step.
    EndProfile,
    /// Stop after the current step.
    Stop {
        /// Whether to take a checkpoint first.
        checkpoint: bool,
    },
}

/// The request of rank 0 that the other ranks write their files of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsRequest {
    /// The checkpoint's step.
    pub step: u64,
    /// The number of the image with the model.
    pub image: u32,
}

/// What a rank has written of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsWritten {
    /// The rank.
    pub rank: u32,
    /// The checkpoint's step.
    pub step: u64,
    /// The entries of its files, or why it could not write them.
    pub parts: Result<Vec<PartEntry>, String>,
}

/// The assignment of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// What the worker does with the batches.
    pub role: Role,
    /// The schema of the batches; with several workers, of the whole batches that they share.
    pub schema: BatchSchema,
}

/// What a worker does with its batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Role {
    /// Train: a step per training batch, metrics over evaluation batches, checkpoints.
    Train(Box<TrainRole>),
    /// Score: metrics or predictions of a checkpoint's model over all batches.
    Score(ScoreRole),
    /// Reduce: add gradients for the workers of other hosts, which train. There are no batches.
    Reduce(ReduceRole),
}

/// The assignment of a worker that adds gradients for others. It is listening as one of several workers that train, but is never
/// ready; it is [`FromWorker::Stopped`] once all of these have left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReduceRole {
    /// Its number, which is that of its address: those of the workers that train come first.
    pub number: u32,
    /// How long a sum may take, in seconds.
    pub timeout_seconds: u32,
    /// The network interfaces that reach the workers of other hosts, separated by commas.
    pub network: String,
}

/// The assignment of a worker that scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreRole {
    /// The directory that contains the checkpoint.
    pub directory: PathBuf,
    /// The checkpoint's step.
    pub step: u64,
    /// What to send back.
    pub output: ScoreOutput,
    /// The device to compute on.
    pub device: DeviceSpec,
    /// Number of CPU threads; `None` for one per core.
    pub threads: Option<u32>,
    /// The groups of held-out rows.
    pub group: Option<GroupSpec>,
}

/// The assignment of a worker that trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainRole {
    /// The number of this worker among the `training.ranks` workers of the job, from 0.
    pub rank: u32,
    /// Its place on its host.
    pub place: HostPlace,
    /// How long it waits for the others in a collective operation, in seconds.
    pub timeout_seconds: u32,
    /// The network interfaces that reach the workers of other hosts, separated by commas; `None` if all run on this host.
    pub network: Option<String>,
    /// The step after which no checkpoint is restored; `None` for no limit. A later one may have been written without counting.
    pub newest_step: Option<u64>,
    /// The run directory. It has the job file and, as [`ANALYSIS_PART`], the statistics learned from the data.
    pub run: Place,
    /// The name of the job file, which each checkpoint contains as [`JOB_PART`].
    pub job: String,
    /// Steps between checkpoints.
    pub every_steps: u64,
    /// Number of newest checkpoints to keep.
    pub keep: u32,
    /// For how many minutes training continues while no checkpoint can be written.
    pub retry_minutes: u32,
    /// Seconds between images of the model, if the job keeps any.
    pub image_seconds: Option<u32>,
    /// TensorBoard event files, if the job writes them.
    pub events: Option<EventSpec>,
    /// The model.
    pub model: ModelSpec,
    /// Optimization settings.
    pub training: TrainingSpec,
    /// The groups of held-out rows.
    pub group: Option<GroupSpec>,
    /// When the worker requests held-out rows; `None` if they are interleaved with the training rows.
    pub evaluation: Option<EvalCadence>,
    /// How evaluations decide on early stopping and on the best checkpoint.
    pub selection: SelectionSpec,
    /// What the run starts with while it has no checkpoint; `None` for initial weights.
    pub beginning: Option<BeginningRole>,
    /// The memory rehearsal before the first checkpoint, for an automatically chosen batch size.
    pub rehearsal: Option<RehearsalSpec>,
}

/// The place of a worker among those of its host. They share the images of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPlace {
    /// The number of this worker among those of the host, from 0.
    pub number: u32,
    /// How many these are.
    pub workers: u32,
}

impl TrainRole {
    /// Whether other hosts have workers of the job.
    pub fn spans_hosts(&self) -> bool {
        self.place.workers < self.training.ranks()
    }

    /// Whether the descriptors of two images follow the assignment: of a job that keeps images, or whose workers copy the model for
    /// checkpoints together. The latter use the first one only.
    pub fn has_images(&self) -> bool {
        self.image_seconds.is_some() || self.training.ranks() > 1
    }
}

/// A directory that a worker writes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A local directory.
    Local(PathBuf),
    /// A directory in a bucket. A connection for its [objects](crate::objects) follows the assignment.
    Bucket {
        /// The address, for messages.
        address: String,
        /// The term of this worker, in which it writes checkpoints.
        term: u64,
    },
}

impl Place {
    /// The directory, as messages show it.
    pub fn shown(&self) -> &Path {
        match self {
            Self::Local(directory) => directory,
            Self::Bucket { address, .. } => Path::new(address),
        }
    }
}

/// What a run starts with, as the daemon has prepared it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BeginningRole {
    /// Weights of another job.
    WarmStart(WarmStartRole),
    /// The whole state of an earlier job.
    Continuation(ContinuationRole),
}

/// The continuation of an earlier job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContinuationRole {
    /// The directory that contains the checkpoint.
    pub directory: PathBuf,
    /// The checkpoint's step.
    pub step: u64,
    /// The encoded position in this job's data at which training goes on.
    pub position: Vec<u8>,
    /// Whether the data is that of the earlier job, so that its epochs count.
    pub is_same_data: bool,
}

/// A warm start that the daemon has prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmStartRole {
    /// The directory that contains the checkpoint.
    pub directory: PathBuf,
    /// The checkpoint's step.
    pub step: u64,
    /// The file in the run directory of the [`IdMappings`](millstream_trainer::warm_start::IdMappings) from the checkpoint's ids
    /// to the job's.
    pub id_mappings: String,
}

/// The memory that a worker allocates on trial before its first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RehearsalSpec {
    /// Number of slots in the job's ring, or in each of its rings.
    pub slots: u32,
    /// Limit on the worker's private memory, if there is one.
    pub max_bytes: Option<u64>,
}

/// The result of scoring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreOutput {
    /// Metrics, sent once.
    Metrics,
    /// A score per row.
    Scores,
}

/// The state that a worker has restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// Whether it is an image, otherwise the newest checkpoint.
    pub is_image: bool,
    /// The newest checkpoint, if there is any.
    pub checkpoint: Option<CheckpointSize>,
    /// The step of the state.
    pub step: u64,
    /// Encoded position in the data; the next batch follows it.
    pub position: Vec<u8>,
}

/// A committed checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointSize {
    /// Its step.
    pub step: u64,
    /// The size of its parts.
    pub bytes: u64,
}

/// A message from a worker to its daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromWorker {
    /// The reply to [`ToWorker::Survey`].
    Surveyed {
        /// The host's GPUs and libraries.
        survey: HostSurvey,
    },
    /// The reply to [`ToWorker::SampleGpus`].
    GpusSampled {
        /// What was read.
        sample: GpuSample,
    },
    /// The worker is one of several, and ready for their connections.
    Listening {
        /// Its address, for the other workers of this host.
        address: Vec<u8>,
    },
    /// The model is ready; the daemon may send the ring.
    Ready {
        /// What training resumes from; `None` from scratch.
        restored: Option<Restored>,
        /// An error message for each newer image or checkpoint that is damaged.
        passed_over: Vec<String>,
        /// The device that it computes on.
        device: Description,
    },
    /// Training progress, sent up to several times a second and once at the end.
    Progress(WorkerProgress),
    /// A checkpoint is committed.
    Checkpointed {
        /// The step after which it was taken.
        step: u64,
        /// The size of its parts.
        bytes: u64,
        /// Whether [`ToWorker::Checkpoint`] requested it.
        requested: bool,
        /// The time from its begin until it was committed; 0 if that was before.
        seconds: f64,
    },
    /// A checkpoint could not be written; the worker will try again.
    CheckpointFailed {
        /// The step after which it was taken.
        step: u64,
        /// The reason, and when the next one is tried.
        message: String,
        /// Whether [`ToWorker::Checkpoint`] requested it.
        requested: bool,
        /// The time from its begin until it failed.
        seconds: f64,
    },
    /// An image is complete.
    ImageCompleted {
        /// The step after which it was taken.
        step: u64,
    },
    /// The other workers are to write their files of a checkpoint.
    WriteParts(PartsRequest),
    /// This worker has written its files of a checkpoint.
    PartsWritten(PartsWritten),
    /// The worker needs held-out rows before the next step.
    EvalDue,
    /// An evaluation has finished.
    Evaluated {
        /// The step after which it was taken.
        step: u64,
        /// The epoch of that step.
        epoch: u32,
        /// Whether that step ended its epoch.
        ends_epoch: bool,
        /// The metrics of each label.
        metrics: Vec<Metrics>,
        /// The time since its first rows were due.
        seconds: f64,
    },
    /// A warning; training continues.
    Warned {
        /// The warning.
        message: String,
    },
    /// A recording is in progress.
    Profiling {
        /// Steps recorded so far.
        steps: u64,
        /// Whether recording has ended; the spans follow.
        is_over: bool,
    },
    /// Some of the recorded spans.
    Spans(Track),
    /// All spans were sent.
    Profiled(WorkerProfile),
    /// Scores of the next rows, in data order.
    Scores {
        /// Column-major: a score per row for the first label, then for the next.
        scores: Vec<f32>,
    },
    /// All batches are consumed and, in training, the final checkpoint is committed. The last message.
    Done {
        /// The last step; 0 if nothing was trained.
        step: u64,
        /// The reason for early stopping, if training stopped early.
        stopped_early: Option<String>,
    },
    /// Stopped on request before the end of the data. The last message.
    Stopped,
    /// The ring's producer died before it finished. The last message.
    InputLost,
    /// The bucket with the run cannot be read; a retry may succeed. The last message.
    StorageFailed {
        /// What failed.
        message: String,
    },
    /// A collective operation with the other workers failed: usually one of them has died. The last message.
    PeerLost {
        /// The error, which names the operation and the ranks.
        message: String,
    },
    /// The device failed or its memory was exhausted; a retry may succeed. The last message.
    DeviceFailed {
        /// What failed.
        message: String,
        /// Whether its memory was exhausted.
        out_of_memory: bool,
    },
    /// The device is absent or cannot be opened; a retry on this device would meet the same error. The last message.
    DeviceUnusable {
        /// The error.
        message: String,
    },
    /// A permanent error, which a retry would meet again. The last message.
    Failed {
        /// The error.
        message: String,
    },
}

/// The summary of a worker's recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerProfile {
    /// When recording began, as [`millstream_trace::now_ns`].
    pub began_ns: u64,
    /// When recording ended.
    pub ended_ns: u64,
    /// The step before the first recorded step.
    pub after_step: u64,
    /// Number of steps recorded.
    pub steps: u64,
    /// Rows in the recorded steps.
    pub examples: u64,
    /// Whether recording ended early because the recorder was full.
    pub is_full: bool,
    /// The device's peak rates, measured after the recording.
    pub floors: Floors,
    /// The job's arithmetic precision.
    pub precision: Precision,
}

/// Training progress as reported by a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerProgress {
    /// Steps since the start of the job, over all attempts.
    pub step: u64,
    /// The epoch of the last batch.
    pub epoch: u32,
    /// Rows trained on since the start of the job.
    pub examples: u64,
    /// Steps per epoch, known once an epoch has ended in this attempt.
    pub steps_per_epoch: Option<u64>,
    /// Rows trained on since the previous report.
    pub new_examples: u64,
    /// Mean loss of those rows.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Seconds since the previous report spent on batches, steps and checkpoints.
    pub seconds: f64,
    /// The part of `seconds` spent waiting for a batch.
    pub waited_seconds: f64,
}

/// Reads `null` as NaN: JSON has no NaN, and serde_json writes `null`.
fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_batch::messages::{MAXIMUM_MESSAGE_BYTES, MessageError, receive, send};
    use millstream_trainer::metrics::{Metric, MetricValue};

    use super::*;

    fn frame(message: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        send(&mut bytes, message).unwrap();
        bytes
    }

    #[test]
    fn messages_round_trip_without_reading_past_them() {
        let first = FromWorker::Scores { scores: vec![0.1, 1.0 / 3.0, f32::MIN_POSITIVE] };
        let metrics = |label: &str| Metrics {
            label: label.to_owned(),
            values: vec![
                MetricValue { metric: Metric::Auc, value: Some(0.1 + 0.2), error: Some(0.0) },
                MetricValue { metric: Metric::LogLoss, value: Some(1e-300), error: None },
                MetricValue { metric: Metric::Calibration, value: Some(1e83), error: None },
                MetricValue { metric: Metric::Accuracy, value: None, error: None },
            ],
            groups: Some(u64::MAX),
            top_k: Some(10),
            examples: u64::MAX,
        };
        let second = FromWorker::Evaluated {
            step: 12,
            epoch: 3,
            ends_epoch: true,
            metrics: ["", "bought"].map(metrics).to_vec(),
            seconds: 0.25,
        };
        let mut bytes = frame(&first);
        bytes.extend(frame(&second));
        bytes.extend(b"rest");
        let mut reader = &bytes[..];
        assert_eq!(receive::<FromWorker>(&mut reader).unwrap(), Some(first));
        assert_eq!(receive::<FromWorker>(&mut reader).unwrap(), Some(second));
        assert_eq!(reader, b"rest");
    }

    #[test]
    fn addresses_of_workers_round_trip() {
        let address: Vec<u8> = (0..=255).collect();
        let bytes = frame(&FromWorker::Listening { address: address.clone() });
        let Some(FromWorker::Listening { address: received }) = receive(&mut &bytes[..]).unwrap() else {
            panic!()
        };
        assert_eq!(received, address);
        let connect = ToWorker::Connect { addresses: vec![address; 64], reducers: 1, newest_step: Some(7) };
        assert_eq!(receive(&mut &frame(&connect)[..]).unwrap(), Some(connect));
    }

    #[test]
    fn a_nan_loss_round_trips() {
        let bytes = frame(&FromWorker::Progress(WorkerProgress {
            loss: f64::NAN,
            step: 9,
            ..WorkerProgress::default()
        }));
        let Some(FromWorker::Progress(progress)) = receive(&mut &bytes[..]).unwrap() else { panic!() };
        assert!(progress.loss.is_nan() && progress.step == 9);
    }

    #[test]
    fn end_of_file_between_messages_is_none_and_within_one_is_an_error() {
        let bytes = frame(&ToWorker::Stop { checkpoint: true });
        assert!(receive::<ToWorker>(&mut &bytes[..0]).unwrap().is_none());
        for cut in 1..bytes.len() {
            let error = receive::<ToWorker>(&mut &bytes[..cut]).unwrap_err();
            assert!(matches!(error, MessageError::Io(_)), "cut at {cut}: {error}");
        }
    }

    #[test]
    fn long_and_malformed_messages_are_rejected() {
        let mut long = u32::MAX.to_le_bytes().to_vec();
        long.extend([b' '; 16]);
        assert!(matches!(receive::<ToWorker>(&mut &long[..]), Err(MessageError::TooLong(_))));
        let mut wrong = 2u32.to_le_bytes().to_vec();
        wrong.extend(b"{}");
        assert!(matches!(receive::<ToWorker>(&mut &wrong[..]), Err(MessageError::Malformed(_))));
        let huge = FromWorker::Failed { message: "x".repeat(MAXIMUM_MESSAGE_BYTES) };
        assert!(matches!(send(&mut Vec::new(), &huge), Err(MessageError::TooLong(_))));
    }
}
