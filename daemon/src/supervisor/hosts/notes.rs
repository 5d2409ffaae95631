//! What the daemons of a generation tell each other about its workers, as the notes of [`millstream_peers::conduct`].
//!
//! The workers of one host cannot reach those of another but in their exchanges, and only the leader's daemon may change the run.
//! So what rank 0 says to the other ranks, and the changes that it wants, go by way of the leader:
//!
//! ```text
//! host of rank 0     leader                        all hosts
//! Report      ---->  Report                  ----> record progress, metrics and checkpoints of the job
//! WriteParts  ---->  WriteParts              ----> their workers write files of a checkpoint
//!             <----  PartsWritten            <---- PartsWritten
//! Change      ---->  changes the run under its lease
//!             <----  Changed
//! ```
//!
//! A request for a checkpoint goes from any host to that of rank 0. [`waiting`](super::waiting) has what hosts say about workers that wait.

use std::time::Duration;

use millstream_backend::collective::RankState;
use millstream_peers::HostName;
use millstream_peers::generations::Note;
use millstream_worker::protocol::{FromWorker, PartsRequest, PartsWritten};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What a host says to the leader.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToLeader {
    /// A report of rank 0.
    Report(FromWorker),
    WriteParts(PartsRequest),
    PartsWritten(PartsWritten),
    /// A user of this host requests a checkpoint.
    Checkpoint,
    /// A user of this host cancels the job.
    Cancel,
    /// Its workers have met an error that all would meet again.
    Fail {
        reason: String,
    },
    /// Rank 0 wants to change the run.
    Change {
        /// Identifies the answer.
        number: u64,
        change: Change,
    },
    /// What its workers do in their exchanges, some of which have taken long.
    Exchanges {
        states: Vec<RankState>,
    },
}

/// What the leader says to a host.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToHost {
    Report(FromWorker),
    WriteParts(PartsRequest),
    PartsWritten(PartsWritten),
    Checkpoint,
    Changed { number: u64, result: Result<Changed, String> },
    Awaited(Awaited),
}

/// The oldest exchange that the workers of all hosts have begun and not ended.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Awaited {
    /// The exchange, as `gather of f32, number 512`.
    pub(super) exchange: String,
    /// The time since the first worker began it.
    pub(super) open_for: Duration,
    /// The workers that the others wait for, by rank, and their hosts; empty if that is not known yet.
    #[serde(with = "named")]
    pub(super) workers: Vec<(usize, HostName)>,
}

/// Host names as text.
mod named {
    use millstream_peers::HostName;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        workers: &[(usize, HostName)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let texts: Vec<_> = workers.iter().map(|(rank, host)| (rank, host.as_str())).collect();
        texts.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(usize, HostName)>, D::Error> {
        let texts = Vec::<(usize, String)>::deserialize(deserializer)?;
        texts
            .into_iter()
            .map(|(rank, host)| Ok((rank, HostName::parse(&host).map_err(D::Error::custom)?)))
            .collect()
    }
}

/// A change of the run, which needs its lease. Manifests are staged in the directory of the generation's term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    /// A new checkpoint: its manifest is created once all hosts have saved it.
    Commit { step: u64 },
    /// The manifest of the newest checkpoint is replaced: it has the same model, and more metrics, for example.
    Replace { step: u64 },
    /// An object in the run directory is deleted, such as one of an old checkpoint.
    Delete { name: String },
}

/// What came of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Changed {
    Done,
    /// There is another checkpoint of this step.
    Exists,
}

/// Encodes a note.
pub(super) fn encode(note: &impl Serialize) -> Note {
    // Reports may have floats that are not finite, which become `null`.
    serde_json::to_vec(note).expect("notes have string keys").into()
}

/// Decodes a note of another daemon, which may be of another version.
pub(super) fn decode<T: DeserializeOwned>(note: &Note) -> Result<T, serde_json::Error> {
    serde_json::from_slice(note)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_worker::protocol::WorkerProgress;

    use super::*;

    #[test]
    fn notes_survive_their_encoding() {
        let change = Change::Delete { name: "step-0000000001/manifest.json".to_owned() };
        let note = encode(&ToLeader::Change { number: u64::MAX, change: change.clone() });
        let ToLeader::Change { number, change: decoded } = decode(&note).unwrap() else { panic!() };
        assert_eq!((number, decoded), (u64::MAX, change));
        let progress = WorkerProgress { loss: f64::NAN, step: 7, ..WorkerProgress::default() };
        let note = encode(&ToHost::Report(FromWorker::Progress(progress)));
        let ToHost::Report(FromWorker::Progress(decoded)) = decode(&note).unwrap() else { panic!() };
        assert!(decoded.loss.is_nan() && decoded.step == 7);
        assert!(decode::<ToHost>(&Note::from(*b"{")).is_err());
        let workers = vec![(2, HostName::parse("train-2").unwrap())];
        let note =
            Awaited { exchange: "barrier, number 9".to_owned(), open_for: Duration::from_secs(3), workers };
        let ToHost::Awaited(decoded) = decode(&encode(&ToHost::Awaited(note))).unwrap() else { panic!() };
        assert_eq!((decoded.open_for.as_secs(), decoded.workers[0].1.as_str()), (3, "train-2"));
    }
}
