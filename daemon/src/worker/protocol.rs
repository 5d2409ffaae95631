//! What a daemon and its worker say to each other.
//!
//! The worker's standard input is one end of a Unix stream socket pair. Each message on it is a length in
//! bytes (u32, little endian) and that many bytes of JSON. Batches never travel here.
//!
//! ```text
//! daemon                                   worker
//!   Start ------------------------------->   locks the job, tries its memory if it is to,
//!                                            restores its newest whole checkpoint
//!         <-------------------------------   Ready, with the position to feed it from
//!   the ring's descriptors -------------->
//!   Checkpoint, Stop -------------------->   at any time from here on
//!         <-------------------------------   Progress, Checkpointed, Evaluated, Warned, Scores
//!         <-------------------------------   EvalDue
//!   EvalRing, a ring's descriptors ------>   evaluates its batches and goes on training
//!   Profile, EndProfile ----------------->   records its next steps
//!         <-------------------------------   Profiling, as it does; Spans, as many as it takes; Profiled
//!         <-------------------------------   one of Done, Stopped, InputLost, Failed
//! ```
//!
//! The worker chooses the checkpoint, and not the daemon, since it reads all of it anyway and holds the
//! job's lock: no earlier worker can be committing another one at that time.
//!
//! Both ends are the same program, so there is no version to negotiate; an end of file between messages is
//! the other side's orderly or disorderly end.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use millstream_backend::{Description, Floors};
use millstream_batch::BatchSchema;
use millstream_trace::Track;
pub use millstream_trainer::metrics::Metrics;
pub use millstream_trainer::session::SelectionSpec;
use millstream_trainer::spec::{DeviceSpec, ModelSpec, Precision, TrainingSpec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use super::device::HostSurvey;
use super::tensorboard::EventSpec;
use crate::auto_batch::TrialSpec;

/// The longest message. A schema of ten thousand features, or [`SCORES_PER_MESSAGE`] scores, stay far below.
pub const MAXIMUM_MESSAGE_BYTES: usize = 16 << 20;

/// The most spans in one [`FromWorker::Spans`].
pub const SPANS_PER_MESSAGE: usize = 8192;

/// The most scores in one [`FromWorker::Scores`].
pub const SCORES_PER_MESSAGE: usize = 8192;

/// From the daemon to its worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToWorker {
    /// What to do; sent once, first.
    Start(Box<Start>),
    /// In its place: say what there is to compute on a GPU with, and end.
    Survey,
    /// Take a checkpoint after the present step and report it as requested. A worker that waits for a batch
    /// takes it when that has come: the ring's waits can be ended for good only.
    Checkpoint,
    /// The answer to [`FromWorker::EvalDue`]; the descriptors of a ring follow.
    EvalRing,
    /// Record the next steps, and say what was recorded.
    Profile {
        /// How many.
        steps: u64,
    },
    /// Nobody wants to know any more: the recording ends after the present step.
    EndProfile,
    /// End after the present step.
    Stop {
        /// Take a checkpoint first.
        checkpoint: bool,
    },
}

/// All that a worker needs to know besides the batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// What it does with the batches.
    pub role: Role,
    /// What a batch holds.
    pub schema: BatchSchema,
}

/// What a worker does with its batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Role {
    /// A step for each training batch, metrics over eval batches, checkpoints.
    Train(Box<TrainRole>),
    /// Metrics or scores of a checkpoint's model over all batches.
    Score {
        /// Directory of the job.
        directory: PathBuf,
        /// Which of its checkpoints.
        step: u64,
        /// What is sent back.
        output: Output,
        /// Where it computes,
        device: DeviceSpec,
        /// and threads of the CPU; `None` for one a core.
        threads: Option<u32>,
        /// As for training.
        group: Option<String>,
    },
}

/// What a worker that trains needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainRole {
    /// Directory of the job, locked by the worker for as long as it runs.
    pub directory: PathBuf,
    /// Steps between checkpoints.
    pub every_steps: u64,
    /// Checkpoints kept, the newest.
    pub keep: u32,
    /// Event files for TensorBoard, if any are written.
    pub events: Option<EventSpec>,
    /// The model.
    pub model: ModelSpec,
    /// How it trains.
    pub training: TrainingSpec,
    /// The feature whose ids are the groups of the group AUC.
    pub group: Option<String>,
    /// When the worker asks for rows to evaluate; `None` where they come between those of training.
    pub evaluation: Option<EvalCadence>,
    /// What evaluations are to say of how to go on.
    pub judge: SelectionSpec,
    /// The checkpoint whose weights it begins with, before it has one of its own.
    pub warm_start: Option<PathBuf>,
    /// What it is to try before it has a checkpoint, where the size of batches was found and not given.
    pub trial: Option<TrialSpec>,
}

/// When a worker evaluates. It does so at the end of the data in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalCadence {
    /// After so many steps, and so many again.
    pub every_steps: Option<u64>,
    /// After so many epochs, and so many again.
    pub every_epochs: Option<u32>,
}

impl EvalCadence {
    /// Whether an evaluation is due after `step`; `ended` is the epoch that ended with it, from 0, if one did.
    pub fn is_due(&self, step: u64, ended: Option<u32>) -> bool {
        let by_steps = self.every_steps.is_some_and(|every| step.is_multiple_of(every));
        let by_epochs = self.every_epochs.zip(ended);
        by_steps || by_epochs.is_some_and(|(every, epoch)| (epoch + 1).is_multiple_of(every))
    }
}

/// What comes out of scoring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Metrics, once.
    Metrics,
    /// Each row's score.
    Scores,
}

/// Where a restored worker stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// The checkpoint's step.
    pub step: u64,
    /// Encoded position in the data that the first batch is to follow.
    pub position: Vec<u8>,
}

/// From a worker to its daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromWorker {
    /// The answer to [`ToWorker::Survey`].
    Surveyed {
        /// What there is.
        survey: HostSurvey,
    },
    /// The model stands, and the ring may come.
    Ready {
        /// The checkpoint that training goes on from; `None` from the beginning.
        restored: Option<Restored>,
        /// Newer checkpoints that are damaged: what is wrong with each.
        passed_over: Vec<String>,
        /// What it computes on.
        device: Description,
    },
    /// How far training is; several times a second at most, and once at the end.
    Progress(Progress),
    /// A checkpoint is committed.
    Checkpointed {
        /// After this step.
        step: u64,
        /// Its directory.
        path: PathBuf,
        /// Whether [`ToWorker::Checkpoint`] asked for it.
        requested: bool,
    },
    /// Held-out rows are wanted, before the next step.
    EvalDue,
    /// A pass over the held-out data is complete.
    Evaluated {
        /// Steps taken before it.
        step: u64,
        /// The epoch of the last of them.
        epoch: u32,
        /// Whether that epoch had ended.
        ends_epoch: bool,
        /// What came out, of each label.
        metrics: Vec<Metrics>,
    },
    /// Something is not as it should be, and training goes on.
    Warned {
        /// What.
        message: String,
    },
    /// Steps are being recorded.
    Profiling {
        /// So many so far.
        steps: u64,
        /// Whether that is all of them; the spans follow.
        is_over: bool,
    },
    /// Some of the spans that were recorded.
    Spans(Track),
    /// All spans were told.
    Profiled(WorkerProfile),
    /// Scores of the next rows, in the order of the data.
    Scores {
        /// One a row of the first label, then as many of the next.
        scores: Vec<f32>,
    },
    /// All batches are used and, when training, the final checkpoint is committed. The last message.
    Done {
        /// Why training ended before the batches did, where it did.
        stopped_early: Option<String>,
    },
    /// Stopped as told, before the end of the data. The last message.
    Stopped,
    /// The ring ended without its producer having finished. The last message.
    InputLost,
    /// The worker cannot go on and would not in another try either. The last message.
    Failed {
        /// Why.
        message: String,
    },
}

/// What a worker recorded, besides the spans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerProfile {
    /// From when, as [`millstream_trace::Span::start_ns`],
    pub began_ns: u64,
    /// to when.
    pub ended_ns: u64,
    /// The step before the first that was recorded.
    pub after_step: u64,
    /// Steps recorded.
    pub steps: u64,
    /// Rows of them.
    pub examples: u64,
    /// Whether there was room for no more spans, so that recording ended early.
    pub is_full: bool,
    /// What the device can do at the most, measured afterwards.
    pub floors: Floors,
    /// The arithmetic of the job.
    pub precision: Precision,
}

/// How far training is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps since the job began, over all attempts.
    pub step: u64,
    /// The epoch of the last batch.
    pub epoch: u32,
    /// Rows trained on since the job began.
    pub examples: u64,
    /// Steps of an epoch, once one has ended in this attempt.
    pub steps_per_epoch: Option<u64>,
    /// Rows trained on since the last report.
    pub new_examples: u64,
    /// Mean loss of those.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Time since the last report that went into training: batches, steps and checkpoints.
    pub seconds: f64,
    /// The part of it spent waiting for a batch.
    pub waited_seconds: f64,
}

/// Why a message could not be received.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The socket failed, or ended within a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A message longer than [`MAXIMUM_MESSAGE_BYTES`].
    #[error("a message of {0} bytes, above the most there may be")]
    TooLong(usize),
    /// A message that does not parse.
    #[error("a malformed message: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Sends one message.
///
/// # Errors
/// When it is too long, or the socket refuses it.
pub fn send<T: Serialize>(socket: &mut impl Write, message: &T) -> Result<(), ProtocolError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let bytes = frame.len() - 4;
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= MAXIMUM_MESSAGE_BYTES);
    frame[..4].copy_from_slice(&length.ok_or(ProtocolError::TooLong(bytes))?.to_le_bytes());
    Ok(socket.write_all(&frame)?)
}

/// Waits for one message, and reads not a byte past it; `None` at an end of file between messages.
///
/// # Errors
/// When the message is too long, cut or malformed, or the socket fails.
pub fn receive<T: DeserializeOwned>(socket: &mut impl Read) -> Result<Option<T>, ProtocolError> {
    let mut length = [0; 4];
    let mut have = 0;
    while have < length.len() {
        match socket.read(&mut length[have..]) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(bytes) => have += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let bytes = u32::from_le_bytes(length) as usize;
    if bytes > MAXIMUM_MESSAGE_BYTES {
        return Err(ProtocolError::TooLong(bytes));
    }
    let mut body = vec![0; bytes];
    socket.read_exact(&mut body)?;
    Ok(Some(serde_json::from_slice(&body)?))
}

/// JSON has no NaN; it is written as `null`.
fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_trainer::metrics::{Metric, MetricValue};

    use super::*;

    fn frame(message: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        send(&mut bytes, message).unwrap();
        bytes
    }

    #[test]
    fn messages_come_back_one_by_one_and_nothing_past_them_is_read() {
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
            examples: u64::MAX,
        };
        let second = FromWorker::Evaluated {
            step: 12,
            epoch: 3,
            ends_epoch: true,
            metrics: ["", "bought"].map(metrics).to_vec(),
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
    fn evaluations_fall_due_by_steps_and_by_epochs() {
        let due = |every_steps, every_epochs| {
            let cadence = EvalCadence { every_steps, every_epochs };
            // Epochs of three steps.
            let ended = |step: u64| step.is_multiple_of(3).then(|| u32::try_from(step / 3).unwrap() - 1);
            (1..=12).filter(|&step| cadence.is_due(step, ended(step))).collect::<Vec<u64>>()
        };
        assert_eq!(due(Some(5), None), [5, 10]);
        assert_eq!(due(None, Some(2)), [6, 12]);
        assert_eq!(due(Some(4), Some(1)), [3, 4, 6, 8, 9, 12]);
        assert!(due(None, None).is_empty());
    }

    #[test]
    fn a_loss_that_is_not_a_number_arrives_as_such() {
        let bytes = frame(&FromWorker::Progress(Progress { loss: f64::NAN, step: 9, ..Progress::default() }));
        let Some(FromWorker::Progress(progress)) = receive(&mut &bytes[..]).unwrap() else { panic!() };
        assert!(progress.loss.is_nan() && progress.step == 9);
    }

    #[test]
    fn a_clean_end_is_no_message_and_any_cut_is_an_error() {
        let bytes = frame(&ToWorker::Stop { checkpoint: true });
        assert!(receive::<ToWorker>(&mut &bytes[..0]).unwrap().is_none());
        for cut in 1..bytes.len() {
            let error = receive::<ToWorker>(&mut &bytes[..cut]).unwrap_err();
            assert!(matches!(error, ProtocolError::Io(_)), "cut at {cut}: {error}");
        }
    }

    #[test]
    fn long_and_malformed_messages_are_refused() {
        let mut long = u32::MAX.to_le_bytes().to_vec();
        long.extend([b' '; 16]);
        assert!(matches!(receive::<ToWorker>(&mut &long[..]), Err(ProtocolError::TooLong(_))));
        let mut wrong = 2u32.to_le_bytes().to_vec();
        wrong.extend(b"{}");
        assert!(matches!(receive::<ToWorker>(&mut &wrong[..]), Err(ProtocolError::Malformed(_))));
        let huge = FromWorker::Failed { message: "x".repeat(MAXIMUM_MESSAGE_BYTES) };
        assert!(matches!(send(&mut Vec::new(), &huge), Err(ProtocolError::TooLong(_))));
    }
}
