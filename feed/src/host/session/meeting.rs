//! The ranks introduce the host to those of other machines.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::{End, LONG_PATIENCE, Session};
use crate::Error;
use crate::host::Host;
use crate::machines::{Machine, Met, Waiting};
use crate::opened::OpenedFeed;

impl Session {
    /// Waits until all ranks have sent the list of the machines, and connects to the hosts of the others.
    pub(super) fn meet(&mut self, host: &Host, waiting: &Waiting, opened: &OpenedFeed) -> Result<Met, End> {
        let machines = self.wait_for_machines(host)?;
        let (limit, is_cancelled) = (host.0.patience, AtomicBool::new(false));
        thread::scope(|scope| {
            let connect = || {
                waiting.meet(machines, opened.parts(), |shards| opened.check(shards), limit, &is_cancelled)
            };
            let connecting = scope.spawn(connect);
            while !connecting.is_finished() {
                // A rank that leaves, or the end of the host, cancels it.
                self.wait_for_ranks(host).inspect_err(|_| is_cancelled.store(true, Ordering::Relaxed))?;
            }
            let met = connecting.join();
            Ok(met.map_err(|_| Error::Failed("connecting the machines failed".to_owned()))??)
        })
    }

    /// Waits until all ranks have sent the list of the machines.
    fn wait_for_machines(&mut self, host: &Host) -> Result<Vec<Machine>, End> {
        let (began, patience) = (Instant::now(), LONG_PATIENCE * host.0.patience);
        while began.elapsed() < patience {
            self.wait_for_ranks(host)?;
            if let Some(machines) = self.machines()? {
                return Ok(machines);
            }
        }
        let seconds = patience.as_secs();
        let message = format!("the ranks have not exchanged within {seconds} s how to reach their machines");
        Err(Error::Failed(message).into())
    }

    /// The list of the machines, if all ranks have sent it.
    fn machines(&self) -> Result<Option<Vec<Machine>>, End> {
        let sent = || self.members.iter().filter_map(|seat| Some((seat.rank, seat.machines.as_ref()?)));
        let Some((first, machines)) = sent().next() else { return Ok(None) };
        if let Some((rank, _)) = sent().find(|(_, other)| *other != machines) {
            let message = format!("rank {first} and rank {rank} know different machines");
            return Err(Error::Failed(message).into());
        }
        Ok((sent().count() == self.members.len()).then(|| machines.clone()))
    }
}
