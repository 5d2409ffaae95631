//! A session as the transport of ingest.

use millstream_pipeline::Error;
use millstream_pipeline::ingest::{MAX_ENCODED_BYTES, Peers, PieceKey, PieceUpdate};

use super::{LaneError, OpenSession};

/// The other hosts of a session, for the ingest of this one.
#[derive(Debug)]
pub struct LanePeers {
    open: OpenSession,
}

impl LanePeers {
    /// The other hosts of `open`, which this host leaves when this value is dropped.
    pub fn new(open: OpenSession) -> Self {
        Self { open }
    }
}

impl Peers for LanePeers {
    fn host(&self) -> u32 {
        self.open.session().host() as u32
    }

    fn hosts(&self) -> u32 {
        self.open.session().hosts() as u32
    }

    fn send(&self, key: PieceKey, update: PieceUpdate) -> Result<(), Error> {
        let mut bytes = Vec::with_capacity(MAX_ENCODED_BYTES.min(64));
        update.encode(key, &mut bytes);
        self.open.session().send(key.lane, bytes).map_err(|error| lost(error, self.host()))
    }

    fn recv(&self, owner: u32, key: PieceKey) -> Result<PieceUpdate, Error> {
        let received = self.open.session().recv(key.lane, owner as usize);
        let bytes = received.map_err(|error| lost(error, owner))?;
        let broken = |message: String| Error::Peer { host: owner, message };
        let (found, update) = PieceUpdate::decode(&bytes).map_err(|error| broken(error.to_string()))?;
        if found != key {
            return Err(broken(format!("it has sent {found:?} instead of {key:?}")));
        }
        Ok(update)
    }

    fn close(&self) {
        self.open.session().close();
    }
}

/// The error of an exchange with host `host`.
fn lost(error: LaneError, host: u32) -> Error {
    match error {
        LaneError::Closed => Error::Cancelled,
        LaneError::Gone { reason, .. } => Error::Peer { host, message: reason },
    }
}
