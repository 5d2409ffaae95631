//! Transports without an engine: a world of one rank, and ranks that are threads of one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use super::error::CollectiveError;
use super::memory::Buffer;
use super::recorder::Recorder;
use super::transport::{Deadline, Group, Label, Receive, Transport};

/// A world of one rank, which nothing is exchanged with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Transport for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn exchange(
        &mut self,
        _: (Label, Group),
        _: Vec<Arc<Buffer>>,
        _: Receive,
        _: Deadline,
        _: Option<&Recorder>,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        Ok(vec![Buffer::default()])
    }
}

/// The most messages that wait between two ranks: a rank is at most one exchange ahead of another, and sends the next
/// message only afterwards.
const MOST_WAITING: usize = 2;

/// The time between signs of life of a rank that waits.
const LONGEST_WAIT: Duration = Duration::from_millis(10);

struct Message {
    label: Label,
    data: Buffer,
}

/// A rank that is a thread of this process. Tests run whole worlds with it.
pub struct Local {
    rank: usize,
    /// Whether each rank has left: its `Local` was dropped.
    has_left: Arc<[AtomicBool]>,
    /// To each rank.
    senders: Vec<SyncSender<Message>>,
    /// From each rank.
    receivers: Vec<Receiver<Message>>,
}

impl Local {
    /// A world of `ranks` ranks.
    pub fn world(ranks: usize) -> Vec<Self> {
        let has_left: Arc<[AtomicBool]> = (0..ranks).map(|_| AtomicBool::new(false)).collect();
        let mut world: Vec<Self> = (0..ranks)
            .map(|rank| Self { rank, has_left: has_left.clone(), senders: Vec::new(), receivers: Vec::new() })
            .collect();
        for from in 0..ranks {
            for to in 0..ranks {
                let (sender, receiver) = sync_channel(MOST_WAITING);
                world[from].senders.push(sender);
                world[to].receivers.push(receiver);
            }
        }
        world
    }

    fn dead(&self) -> Vec<usize> {
        (0..self.ranks()).filter(|&rank| self.has_left[rank].load(Ordering::Acquire)).collect()
    }

    /// The next message of `peer`. All ranks before it have sent theirs.
    fn next_message(
        &self,
        label: Label,
        peer: usize,
        deadline: Deadline,
        recorder: Option<&Recorder>,
    ) -> Result<Message, CollectiveError> {
        let received = loop {
            let received = self.receivers[peer].recv_timeout(deadline.left().min(LONGEST_WAIT));
            if let Some(recorder) = recorder {
                recorder.show_life();
            }
            let is_early = matches!(received, Err(RecvTimeoutError::Timeout)) && !deadline.left().is_zero();
            if !is_early {
                break received;
            }
        };
        received.map_err(|error| match error {
            RecvTimeoutError::Disconnected => deadline.absent(label, self.dead(), Vec::new()),
            RecvTimeoutError::Timeout => {
                let dead = self.dead();
                let is_late = |rank: &usize| {
                    let is_silent = self.receivers[*rank].try_recv().is_err();
                    *rank != self.rank && !dead.contains(rank) && is_silent
                };
                let late = std::iter::once(peer).chain((peer + 1..self.ranks()).filter(is_late)).collect();
                deadline.absent(label, dead, late)
            }
        })
    }
}

impl Transport for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.senders.len()
    }

    fn exchange(
        &mut self,
        (label, _): (Label, Group),
        parts: Vec<Arc<Buffer>>,
        mut receive: Receive<'_>,
        deadline: Deadline,
        recorder: Option<&Recorder>,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        let rank = self.rank;
        for (peer, part) in parts.iter().enumerate().filter(|&(peer, _)| peer != rank) {
            // A copy, because a part is released when this returns, and the other rank may read it later.
            let message = Message { label, data: Buffer::from(&part[..]) };
            match self.senders[peer].try_send(message) {
                Ok(()) => {}
                Err(TrySendError::Disconnected(_)) => {
                    return Err(deadline.absent(label, self.dead(), Vec::new()));
                }
                Err(TrySendError::Full(_)) => unreachable!("no rank is two exchanges ahead of another"),
            }
        }
        let mut received = Vec::with_capacity(parts.len());
        for peer in 0..parts.len() {
            if peer == rank {
                received.push(Buffer::default());
                continue;
            }
            let message = self.next_message(label, peer, deadline, recorder)?;
            if message.label != label {
                return Err(CollectiveError::Mismatch { rank, ours: label, peer, theirs: message.label });
            }
            let mut buffer = receive.buffer((label, rank), (peer, peer), message.data.len())?;
            buffer.copy_from_slice(&message.data);
            received.push(buffer);
        }
        Ok(received)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Before the channels close, so that a peer that finds a closed channel also finds this.
        self.has_left[self.rank].store(true, Ordering::Release);
    }
}
