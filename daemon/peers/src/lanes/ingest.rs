//! A session as the transport of ingest.

use millstream_pipeline::Error;
use millstream_pipeline::ingest::{Peers, PieceKey, PieceUpdate};

use super::OpenSession;

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
        self.open.session().host()
    }

    fn hosts(&self) -> u32 {
        self.open.session().hosts()
    }

    fn send(&self, key: PieceKey, update: PieceUpdate) -> Result<(), Error> {
        self.open.session().send(key, update)
    }

    fn recv(&self, owner: u32, key: PieceKey) -> Result<PieceUpdate, Error> {
        self.open.session().recv(owner, key)
    }

    fn close(&self) {
        self.open.session().close();
    }
}
