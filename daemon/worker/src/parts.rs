//! Checkpoints that all workers of a job write, each some of the files.
//!
//! ```text
//! rank 0    [copy]  sweep  WriteParts  its files, job.toml, ..   wait          manifest.json
//!              \                \                                 /
//! others    [copy]              its files           PartsWritten
//! ```
//!
//! The model is in an image that all of them map. The messages go by way of the daemon. Each rank writes in the background, while
//! training continues. Rank 0 holds the image until all others have answered, also after an error: a file of an attempt that failed
//! must not appear after its leftovers were removed. Only at its own end it waits no longer. Then all workers end, and the next ones
//! remove what these have left.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    /// The step of the checkpoint that they write.
    step: u64,
    are_gone: bool,
}

impl PartsExchange {
    /// The other workers, unless this one is alone, and what ends a wait for them.
    pub(crate) fn into_writers(self) -> (Option<Box<dyn OtherWriters>>, Sender<Option<PartsWritten>>) {
        let Self { received: PartsReceiver { written, end_written, .. }, sender, ranks, .. } = self;
        let count = ranks - 1;
        let others = (count > 0).then(|| -> Box<dyn OtherWriters> {
            Box::new(OtherRanks { sender, written, count, step: 0, are_gone: false })
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
                // Rank 0 waits for an answer, whatever happens.
                let written = catch_unwind(AssertUnwindSafe(|| parts.write(step, image)));
                let parts = match written {
                    Ok(Ok(parts)) => Ok(parts),
                    Ok(Err(CheckpointError::Storage { path, error })) => Err(format!("{path}: {error}")),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err("the thread that writes files has panicked".to_owned()),
                };
                let written = FromWorker::PartsWritten(PartsWritten { rank, step, parts });
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
        self.step = step;
        let request = FromWorker::WriteParts(PartsRequest { step, image });
        self.sender.send(&request).map_err(io::Error::other)
    }

    fn finish(&mut self) -> io::Result<Vec<PartEntry>> {
        let mut all = Ok(Vec::new());
        let mut missing = self.count;
        while missing > 0 {
            let next = if self.are_gone { None } else { self.written.recv().ok().flatten() };
            let Some(PartsWritten { rank, step, parts }) = next else {
                self.are_gone = true;
                return Err(io::Error::other("the other workers do not answer any more"));
            };
            if step != self.step {
                continue;
            }
            missing -= 1;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;

    use millstream_batch::messages;

    use super::*;

    /// Rank 0's end of an exchange between 3 workers, and the daemon's.
    fn exchange() -> (Box<dyn OtherWriters>, Sender<Option<PartsWritten>>, UnixStream) {
        let (daemon, worker) = UnixStream::pair().unwrap();
        let (_, requests) = channel();
        let (end_written, written) = channel();
        let received = PartsReceiver { requests, written, end_written };
        let exchange = PartsExchange { received, sender: LinkSender::new(worker), rank: 0, ranks: 3 };
        let (others, answers) = exchange.into_writers();
        (others.unwrap(), answers, daemon)
    }

    fn entry(name: &str) -> PartEntry {
        PartEntry { name: name.to_owned(), bytes: 1, sha256: String::new() }
    }

    fn answer(rank: u32, step: u64, parts: Result<&str, &str>) -> Option<PartsWritten> {
        let parts = parts.map(|name| vec![entry(name)]).map_err(str::to_owned);
        Some(PartsWritten { rank, step, parts })
    }

    #[test]
    fn the_entries_of_all_others_are_awaited() {
        let (mut others, answers, mut daemon) = exchange();
        assert_eq!(others.count(), 2);
        // A late answer of an earlier checkpoint.
        answers.send(answer(1, 6, Ok("old"))).unwrap();
        others.begin(7, 1).unwrap();
        let request = messages::receive(&mut daemon).unwrap();
        assert_eq!(request, Some(FromWorker::WriteParts(PartsRequest { step: 7, image: 1 })));
        answers.send(answer(2, 7, Ok("b"))).unwrap();
        answers.send(answer(1, 7, Ok("a"))).unwrap();
        assert_eq!(others.finish().unwrap(), ["b", "a"].map(entry));
    }

    #[test]
    fn an_error_of_one_is_named_when_all_have_answered() {
        let (mut others, answers, _daemon) = exchange();
        others.begin(7, 0).unwrap();
        answers.send(answer(2, 7, Err("/run/x: the disk is full"))).unwrap();
        answers.send(answer(1, 7, Err("another"))).unwrap();
        let error = others.finish().unwrap_err();
        assert_eq!(error.to_string(), "worker 2: /run/x: the disk is full");
        // Both answers were taken.
        others.begin(8, 0).unwrap();
        [1, 2].iter().for_each(|&rank| answers.send(answer(rank, 8, Ok("a"))).unwrap());
        assert_eq!(others.finish().unwrap().len(), 2);
    }

    #[test]
    fn nobody_is_awaited_at_the_end() {
        let (mut others, answers, daemon) = exchange();
        others.begin(7, 0).unwrap();
        answers.send(answer(1, 7, Ok("a"))).unwrap();
        answers.send(None).unwrap();
        for _ in 0..2 {
            assert_eq!(others.finish().unwrap_err().to_string(), "the other workers do not answer any more");
        }
        // Another test may have forked a process that still has it.
        daemon.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(others.begin(8, 0).is_err());
    }
}
