//! Checkpoints that all workers of a job write, each some of the files.
//!
//! ```text
//! rank 0    [copy]  sweep  WriteParts  its files, job.toml, ..   wait          manifest.json
//!              \                \                                 /
//! others    [copy]              its files           PartsWritten
//! ```
//!
//! All have copied the model into the same image before. The messages go by way of the daemon. Each rank writes in the background,
//! while training continues. Rank 0 commits, and holds the image until all others have answered, so that no file of an attempt that
//! failed appears after its leftovers were removed.

use std::io;
use std::sync::mpsc::{Receiver, Sender};

use millstream_trainer::checkpoint::{CheckpointError, Element, OtherWriters, PartEntry, PartsOfRank};

use crate::link::{LinkSender, PartsReceiver};
use crate::protocol::{FromWorker, PartsRequest, PartsWritten};

/// How a worker exchanges messages with the others about the files of checkpoints.
pub(crate) struct PartsExchange {
    pub(crate) received: PartsReceiver,
    pub(crate) sender: LinkSender,
    pub(crate) rank: u32,
    pub(crate) ranks: usize,
}

/// The other workers, as rank 0 sees them.
struct OtherRanks {
    sender: LinkSender,
    /// What they have written; `None` once no more can come.
    written: Receiver<Option<PartsWritten>>,
    /// How many they are.
    count: usize,
    are_gone: bool,
}

impl PartsExchange {
    /// The other workers, unless this one is alone, and what ends a wait for them.
    pub(crate) fn into_writers(self) -> (Option<Box<dyn OtherWriters>>, Sender<Option<PartsWritten>>) {
        let Self { received: PartsReceiver { written, end_written, .. }, sender, ranks, .. } = self;
        let count = ranks - 1;
        let others = (count > 0).then(|| -> Box<dyn OtherWriters> {
            Box::new(OtherRanks { sender, written, count, are_gone: false })
        });
        (others, end_written)
    }

    /// Starts to write this rank's files when rank 0 requests it, until the daemon is gone. `parts` has those of a rank and a
    /// number of ranks.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub(crate) fn serve<T: Element>(
        self,
        parts: impl FnOnce((usize, usize)) -> PartsOfRank<T>,
    ) -> io::Result<()> {
        let Self { received: PartsReceiver { requests, .. }, sender, rank, ranks } = self;
        let parts = parts((rank as usize, ranks));
        let serve = move || {
            for PartsRequest { step, image } in requests {
                let parts = parts.write(step, image).map_err(|error| match error {
                    CheckpointError::Storage { path, error } => format!("{path}: {error}"),
                    error => error.to_string(),
                });
                let written = FromWorker::PartsWritten(PartsWritten { rank, parts });
                if let Err(error) = sender.send(&written) {
                    tracing::debug!(%error, "the daemon does not take what was written");
                    return;
                }
            }
        };
        std::thread::Builder::new().name("checkpoint".into()).spawn(serve).map(drop)
    }
}

impl OtherWriters for OtherRanks {
    fn count(&self) -> usize {
        self.count
    }

    fn begin(&mut self, step: u64, image: u32) -> io::Result<()> {
        let request = FromWorker::WriteParts(PartsRequest { step, image });
        self.sender.send(&request).map_err(io::Error::other)
    }

    fn finish(&mut self) -> io::Result<Vec<PartEntry>> {
        let mut all = Ok(Vec::new());
        for _ in 0..self.count {
            let next = if self.are_gone { None } else { self.written.recv().ok().flatten() };
            let Some(PartsWritten { rank, parts }) = next else {
                self.are_gone = true;
                return Err(io::Error::other("the other workers do not answer any more"));
            };
            match (&mut all, parts) {
                (Ok(all), Ok(parts)) => all.extend(parts),
                (Ok(_), Err(error)) => all = Err(io::Error::other(format!("worker {rank}: {error}"))),
                // The first error counts.
                (Err(_), _) => {}
            }
        }
        all
    }
}
