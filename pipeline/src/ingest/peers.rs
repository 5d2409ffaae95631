//! What hosts that train together exchange about their lanes.
//!
//! Every host computes the same order with the same [`Merge`](crate::order), which needs the extents of all lanes'
//! windows. It reads only its own lanes ([`Share`]). So the owner of a lane sends each piece's description to all other
//! hosts as soon as the piece is read: a window's [`WindowExtent`], the end of the lane in this pass, or an error. That
//! is some forty bytes for thousands of rows.
//!
//! [`Peers`] is the interface to the transport. It guarantees:
//!
//! * **Order:** updates of one lane are received in the order in which they were sent. All hosts of a generation start
//!   from one [`Position`](crate::order::Position), so both sides number a lane's pieces alike; a [`PieceKey`] only
//!   checks it.
//! * **Bound:** sending waits while a host has not received [`MAX_UNRECEIVED`] earlier pieces of the lane.
//! * **No deadlock:** consider the host that is furthest behind in the order. If it needs a piece of its own lane,
//!   nothing keeps it from reading that. If it needs another host's, the owner is no further behind, so the previous
//!   piece was taken there and this one is being read; sending it does not wait, because every host has received the
//!   previous piece.
//! * **Errors:** a lane's error is sent in place of its window and ends all hosts at the same row. A host that is gone
//!   ends the others at the first piece that it owes.

use super::lane::Piece;
use crate::error::Error;
use crate::order::{Pass, Share, WindowExtent};

/// The maximum number of pieces of a lane that some host has not received.
pub const MAX_UNRECEIVED: usize = 2;

/// The other hosts, as one host sees them.
pub trait Peers: Send + Sync {
    /// This host's share of the lanes.
    fn share(&self) -> Share;

    /// Sends an update about a piece of one of this host's lanes to every other host. Waits while one of them has not
    /// received [`MAX_UNRECEIVED`] earlier ones; does not wait for a host that is gone.
    ///
    /// # Errors
    /// [`Error::Cancelled`] once closed.
    fn send(&self, key: PieceKey, update: PieceUpdate) -> Result<(), Error>;

    /// Waits for the update of a lane's next piece from its owner.
    ///
    /// # Errors
    /// [`Error::Peer`] when the owner is gone without sending it, or sent another piece's;
    /// [`Error::Cancelled`] once closed.
    fn recv(&self, key: PieceKey) -> Result<PieceUpdate, Error>;

    /// Leaves: ends all waits of this host, present and future. Updates sent before still reach the others.
    fn close(&self);
}

/// Identifies a piece of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceKey {
    /// The pass.
    pub pass: Pass,
    /// The lane.
    pub lane: u32,
    /// Its number in the lane, counted on from the cursor's window.
    pub number: u64,
}

/// What other hosts need to know of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceUpdate {
    /// A window, and the error of its last skipped record, if any.
    Window(WindowExtent, Option<String>),
    /// The end of the lane: the number of records skipped since its last window, and the error of the last one.
    End(u64, Option<String>),
    /// The lane failed with this error.
    Failed(String),
}

impl PieceUpdate {
    pub(super) fn of(piece: &Piece) -> Self {
        let message = |error: &Option<Error>| error.as_ref().map(ToString::to_string);
        match piece {
            Piece::Window(window) => Self::Window(window.extent, message(&window.last_left_out)),
            Piece::End(left_out) => Self::End(left_out.records, message(&left_out.last)),
        }
    }
}
