//! Errors of feeds.

use std::{fmt, io};

use millstream_batch::RingError;
use millstream_batch::messages::MessageError;
use millstream_document::problems::DocumentError;
use millstream_pipeline::order::PositionError;

/// The kind of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// A process of the program.
    Process,
    /// The daemon.
    Daemon,
}

impl fmt::Display for HostKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "the process that reads the data",
            Self::Daemon => "the daemon (millstreamd), which reads the data,",
        })
    }
}

/// The most ranks that a message names.
const NAMED_RANKS: usize = 8;

/// Ranks in a message: all, or the first ones.
pub(crate) fn named(ranks: &[u32]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    let more = if ranks.len() > NAMED_RANKS { ", .." } else { "" };
    let list: Vec<_> = ranks.iter().take(NAMED_RANKS).map(ToString::to_string).collect();
    format!("{noun} {}{more}", list.join(", "))
}

/// Why a feed cannot be opened or ends early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The feed is not valid.
    #[error(transparent)]
    Spec(#[from] DocumentError),
    /// The data cannot be read as the feed says.
    #[error(transparent)]
    Data(#[from] millstream_pipeline::Error),
    /// Storage cannot be read.
    #[error(transparent)]
    Storage(#[from] millstream_io::Error),
    /// The ring cannot be used.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The state belongs to another feed.
    #[error("the state does not fit this feed: {0}")]
    Position(#[from] PositionError),
    /// The state is not one.
    #[error("not a state of a feed: {0}")]
    State(String),
    /// The other end of the socket sent something else.
    #[error("the host of the feed and this program do not understand each other: {0}")]
    Message(#[from] MessageError),
    /// The host cannot open or continue the feed.
    #[error("{0}")]
    Failed(String),
    /// Another rank is gone.
    #[error(
        "rank {rank} of the feed is gone ({why}); all ranks have to attach again, with the state of the batch that they trained last"
    )]
    RankLost {
        /// The rank.
        rank: u32,
        /// How it ended.
        why: String,
    },
    /// The host is gone.
    #[error("{0} has ended; attach again, with the state of the batch that was trained last")]
    HostGone(HostKind),
    /// The system refuses something.
    #[error(transparent)]
    System(#[from] io::Error),
}
