//! The messages between a rank and the host of its feed.
//!
//! A connection begins with the eight bytes [`GREETING`]. Then both ends send [`millstream_batch::messages`]; a ring's
//! hand-off follows [`FromHost::Attached`] and [`FromHost::EvalRing`]. The schema of a ring travels with the message, and the
//! ring has its fingerprint, so a rank needs to know nothing before.

use std::net::IpAddr;

use millstream_batch::BatchSchema;
use serde::{Deserialize, Serialize};

use crate::machines::{Machine, Meeting};
use crate::state::{FeedState, Files};

/// The first bytes of a connection.
pub const GREETING: [u8; 8] = *b"millfeed";

/// The version of the messages. The package of a program and a daemon may have different versions.
pub const VERSION: u32 = 1;

/// A rank attaches to a feed: the first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// [`VERSION`].
    pub version: u32,
    /// The feed, as self-contained TOML.
    pub feed: String,
    /// Names the program whose ranks belong together.
    pub run: String,
    /// The number of this rank, from 0.
    pub rank: u32,
    /// The number of ranks, over all hosts.
    pub world: u32,
    /// The number of ranks on this host.
    pub local_world: u32,
    /// Where the feed resumes; the start if absent. All ranks have the same.
    pub state: Option<FeedState>,
    /// Set if each of several machines reads a shard of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardRequest>,
}

/// A rank asks its host to read only a shard of the data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRequest {
    /// A machine that all can reach, by name or address: the one of rank 0, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toward: Option<String>,
    /// The only address at which the other machines reach this one; found by the host if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The first and the last port at which the host may listen; chosen by the system if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<(u16, u16)>,
}

/// From a rank to the host, after [`Attach`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ToHost {
    /// One pass over this held-out data. The host waits until all ranks ask for it.
    Evaluate {
        /// The name in the feed.
        name: String,
        /// How many this rank has asked for, with this one.
        number: u32,
    },
    /// All machines, after [`Attached::meeting`]. The host waits until all its ranks have sent the same.
    Meet {
        /// The machines, in any order.
        machines: Vec<Machine>,
    },
    /// The rank has taken the last batch, and may end.
    Finished,
}

/// From the host to a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum FromHost {
    /// The feed is open; the ring's hand-off follows.
    Attached(Attached),
    /// An evaluation begins; the hand-off of its ring follows.
    EvalRing {
        /// The number of the rank's request.
        number: u32,
        /// The contents of its batches.
        schema: BatchSchema,
        /// As [`Attached::identity`].
        identity: String,
    },
    /// An evaluation cannot begin, or has ended early. Training continues.
    EvalFailed {
        /// The number of the rank's request.
        number: u32,
        /// Why, with the address of what is wrong.
        message: String,
    },
    /// The feed cannot be opened, or has ended early.
    Failed {
        /// Why, with the address of what is wrong.
        message: String,
    },
    /// Another rank is gone.
    Lost {
        /// The rank.
        rank: u32,
        /// How it ended.
        why: String,
    },
}

/// An open feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The contents of the batches of this rank.
    pub schema: BatchSchema,
    /// The slots of the ring.
    pub slots: u32,
    /// Epochs of the feed.
    pub epochs: u32,
    /// Batches of an epoch, if the files have the number of their rows and the host reads all of them.
    pub batches: Option<u64>,
    /// The files, for states.
    pub files: Files,
    /// A hash of what determines the batches of training: the feed, the number of ranks, the position and the files. Machines whose
    /// ranks train together must have the same.
    pub identity: String,
    /// Set if the host reads a shard: it then waits for [`ToHost::Meet`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meeting: Option<Meeting>,
}
