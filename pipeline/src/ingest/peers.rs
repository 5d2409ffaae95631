//! The exchange of lane updates between hosts that train together.
//!
//! Every host computes the same order with the same [`Merge`](crate::order), which needs the extents of all lanes'
//! windows. Each host reads only its own lanes ([`Deal`](crate::order::Deal)). So the owner of a lane sends an update
//! about each piece to all other hosts as soon as it has read the piece: a window's [`WindowExtent`], the end of the lane
//! in this pass, or an error. An update has about forty bytes and describes thousands of rows.
//!
//! [`Peers`] is the interface to the transport; [`Exchange`] is all of one except the connections. It guarantees:
//!
//! * **Order:** updates of one lane are received in the order in which they were sent. All hosts of a generation start
//!   from the same [`Position`](crate::order::Position), so all number a lane's pieces equally; the [`PieceKey`] serves
//!   only as a check.
//! * **Bound:** a send waits while a host has not received [`MAX_UNRECEIVED`] earlier pieces of the lane.
//! * **No deadlock:** consider the host that is furthest behind in the order. If it needs a piece of its own lane,
//!   nothing prevents it from reading the piece. If it needs a piece of another host, the owner is no further behind.
//!   The owner has therefore drawn the previous piece and is reading this one. Sending it does not wait, because every
//!   host has received the previous piece.
//! * **Bytes:** a transport between processes encodes updates with [`PieceUpdate::encode`].
//! * **Errors:** a lane's error is sent in place of its window and ends all hosts at the same row. If a host is gone,
//!   the others end at the first of its pieces that they miss.

mod encoding;
mod exchange;

use super::lane::Piece;
use crate::error::Error;
use crate::order::{Pass, WindowExtent};

pub use self::encoding::{DecodeUpdateError, MAX_ENCODED_BYTES, MAX_TEXT_BYTES};
pub use self::exchange::{Exchange, ExchangeError, SendCredit, SendUpdate, Unsent};

/// The maximum number of pieces of a lane that some host has not received.
pub const MAX_UNRECEIVED: usize = 2;

/// The other hosts, as one host sees them.
pub trait Peers: Send + Sync {
    /// Index of this host, from 0.
    fn host(&self) -> u32;

    /// Number of hosts that train together.
    fn hosts(&self) -> u32;

    /// Sends an update about a piece of one of this host's lanes to every other host. Waits while one of them has not
    /// received [`MAX_UNRECEIVED`] earlier ones; does not wait for a host that is gone.
    ///
    /// # Errors
    /// [`Error::Cancelled`] once closed.
    fn send(&self, key: PieceKey, update: PieceUpdate) -> Result<(), Error>;

    /// Waits for the update of a lane's next piece from host `owner`, which reads the lane.
    ///
    /// # Errors
    /// [`Error::Peer`] if the owner is gone without having sent it, or has sent another piece; [`Error::Cancelled`]
    /// once closed.
    fn recv(&self, owner: u32, key: PieceKey) -> Result<PieceUpdate, Error>;

    /// Leaves the job: ends all waits of this host, present and future. The others still receive updates sent before.
    fn close(&self);
}

/// Identifies a piece of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceKey {
    /// The pass.
    pub pass: Pass,
    /// The lane.
    pub lane: u32,
    /// Its number in the lane, counting from the cursor's window.
    pub number: u64,
}

/// An update about a piece, for other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceUpdate {
    /// A window, and the error of its last skipped record, if any.
    Window(WindowExtent, Option<String>),
    /// The end of the lane: the number of records skipped since its last window, and the error of the last of them.
    End(u64, Option<String>),
    /// The lane failed with this error.
    Failed(String),
}

impl PieceUpdate {
    pub(super) fn of(piece: &Piece) -> Self {
        let message = |error: &Option<Error>| error.as_ref().map(ToString::to_string);
        match piece {
            Piece::Window(window) => Self::Window(window.extent, message(&window.last_skipped)),
            Piece::End(skipped) => Self::End(skipped.records, message(&skipped.last)),
        }
    }
}
