//! Worlds of ranks: starts them, runs a test body on each, and reports how each rank ended.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use millstream_backend::collective::{Alone, Communicator, FlightRecord, Local, Recorder, Transport};

use crate::processes::{self, Link};

/// A kind of world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One rank.
    Alone,
    /// Threads.
    Local,
    /// Processes, over UCX.
    Processes(Hosts),
}

impl Kind {
    /// Processes of this host, over shared memory.
    pub(crate) const HOST: Self = Self::Processes(Hosts::This);
    /// Processes that each stand for a host, over TCP.
    pub(crate) const HOSTS: Self = Self::Processes(Hosts::Imagined { ranks_of_each: 1, reducers: 0 });
    /// Processes that stand for hosts with two ranks.
    pub(crate) const PAIRS: Self = Self::Processes(Hosts::Imagined { ranks_of_each: 2, reducers: 0 });

    /// Processes that each stand for a host, with so many reducers besides.
    pub(crate) const fn with_reducers(reducers: usize) -> Self {
        Self::Processes(Hosts::Imagined { ranks_of_each: 1, reducers })
    }
}

/// The hosts of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hosts {
    /// All run on this host.
    This,
    /// Each so many stand for a host, and so do reducers.
    Imagined { ranks_of_each: usize, reducers: usize },
}

impl Hosts {
    /// The number of reducers.
    pub(crate) fn reducers(self) -> usize {
        match self {
            Self::This => 0,
            Self::Imagined { reducers, .. } => reducers,
        }
    }
}

/// A body, which each rank runs.
pub(crate) type Body = fn(&mut Seat);

/// One rank of a world.
pub(crate) struct Seat {
    /// Its communicator, until it leaves.
    communicator: Option<Communicator>,
    others: Others,
    /// The file of its flight record.
    record: OwnedFd,
    hosts: Hosts,
    has_died: bool,
}

/// How a rank meets the others apart from its communicator.
pub(crate) enum Others {
    None,
    Threads(Arc<Barrier>),
    Processes(Link),
}

/// How a rank has ended.
pub(crate) struct End {
    /// Whether it ended in the middle of its body, by [`Seat::die`].
    pub(crate) has_died: bool,
    /// Its last operations.
    pub(crate) record: FlightRecord,
}

impl Seat {
    pub(crate) fn new(
        transport: impl Transport + 'static,
        limit: Duration,
        (others, hosts): (Others, Hosts),
    ) -> Self {
        let record = Recorder::create_file(transport.rank(), transport.ranks()).unwrap();
        let recorder = Recorder::open(&record).unwrap();
        let communicator = Communicator::new(transport, limit, Some(recorder)).unwrap();
        Self { communicator: Some(communicator), others, record, hosts, has_died: false }
    }

    /// The file of its flight record.
    pub(crate) fn record(&self) -> BorrowedFd<'_> {
        self.record.as_fd()
    }

    pub(crate) fn communicator(&self) -> &Communicator {
        self.communicator.as_ref().expect("a rank that has not left")
    }

    pub(crate) fn rank(&self) -> usize {
        self.communicator().rank()
    }

    pub(crate) fn ranks(&self) -> usize {
        self.communicator().ranks()
    }

    /// Whether a rank stands for one of another host.
    pub(crate) fn is_remote(&self, rank: usize) -> bool {
        let host = |rank| match self.hosts {
            Hosts::This => 0,
            Hosts::Imagined { ranks_of_each, .. } => rank / ranks_of_each,
        };
        host(rank) != host(self.rank())
    }

    /// Waits until all ranks have called this, without an operation.
    pub(crate) fn meet(&mut self) {
        match &mut self.others {
            Others::None => {}
            Others::Threads(barrier) => {
                barrier.wait();
            }
            Others::Processes(link) => link.meet(),
        }
    }

    /// Ends this rank without notice: by SIGKILL if it is a process.
    pub(crate) fn die(&mut self) {
        if let Others::Processes(_) = self.others {
            kill_self();
        }
        self.has_died = true;
        self.leave();
    }

    /// Leaves the world in good order.
    pub(crate) fn leave(&mut self) {
        self.communicator = None;
    }
}

/// Kills this process without notice.
pub(crate) fn kill_self() {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

/// Runs `body` on all ranks of a world whose operations have the time limit `limit`. Fails if it panics on one of them.
/// `test` is the full name of the calling test, which processes run again as ranks.
pub(crate) fn run(kind: Kind, ranks: usize, limit: Duration, test: &str, body: Body) -> Vec<End> {
    match kind {
        Kind::Alone => {
            let mut seat = Seat::new(Alone, limit, (Others::None, Hosts::This));
            body(&mut seat);
            vec![End::of(seat.record(), seat.has_died)]
        }
        Kind::Local => on_threads(ranks, limit, body),
        Kind::Processes(hosts) => processes::run(hosts, ranks, limit, test, body),
    }
}

fn on_threads(ranks: usize, limit: Duration, body: Body) -> Vec<End> {
    let barrier = Arc::new(Barrier::new(ranks));
    std::thread::scope(|scope| {
        let spawn = |transport: Local| {
            let barrier = barrier.clone();
            scope.spawn(move || {
                let mut seat = Seat::new(transport, limit, (Others::Threads(barrier), Hosts::This));
                body(&mut seat);
                End::of(seat.record(), seat.has_died)
            })
        };
        let threads: Vec<_> = Local::world(ranks).into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

impl End {
    pub(crate) fn of(record: impl AsFd, has_died: bool) -> Self {
        Self { has_died, record: FlightRecord::read(record).unwrap() }
    }
}
