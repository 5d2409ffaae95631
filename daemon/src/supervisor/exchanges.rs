//! The exchanges between the workers of a generation, as their flight records show them.
//!
//! The daemon creates the file of each record and keeps it open, so it can name the worker that hangs: while the others still
//! wait for it, and after they have given up and ended. The records of workers on other hosts are there; what the leader of the job
//! says about them takes their place.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millstream_backend::collective::{FlightRecord, OpenOperation, RankState, Recorder};
use millstream_peers::HostName;

/// How long a report about all hosts holds. The leader repeats it every second.
const REPORT_HOLDS: Duration = Duration::from_secs(3);

/// By how much less the age of an exchange may be in a report, on its way from another host.
const REPORT_SLACK: Duration = Duration::from_secs(1);

/// The files of the flight records of the workers of this host, by rank; none for one worker alone. They live until the last copy of this value.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlightRecords {
    files: Arc<[OwnedFd]>,
    /// What the leader has last said about the workers of all hosts.
    reported: Arc<Mutex<Option<(Instant, OpenExchange)>>>,
}

/// What the workers of this host do in their exchanges.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Exchanges {
    /// The lowest rank of this host.
    pub(crate) first: usize,
    /// The share of its recent time that each worker was in exchanges, by rank; `None` before the second exchange.
    pub(crate) shares: Vec<Option<f64>>,
    /// The exchange that some workers have begun and not ended.
    pub(crate) open: Option<OpenExchange>,
    /// Whether it is what the leader has reported: some time ago.
    is_reported: bool,
}

/// An exchange that some workers have begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenExchange {
    /// The exchange, as `gather of f32, number 512`.
    pub(crate) name: String,
    /// The time since the first worker began it.
    pub(crate) open_for: Duration,
    /// The workers that the others wait for, by rank; empty if that is unknown.
    pub(crate) awaited: Vec<AwaitedWorker>,
}

/// A worker that others wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwaitedWorker {
    pub(crate) rank: usize,
    /// Its host; `None` if it is this one.
    pub(crate) host: Option<HostName>,
}

impl FlightRecords {
    /// Empty records of the workers `ranks` of `world` workers.
    ///
    /// # Errors
    /// If the system refuses the memory, or a descriptor.
    pub(super) fn create(ranks: Range<u32>, world: u32) -> io::Result<Self> {
        let ranks = if world > 1 { ranks } else { 0..0 };
        let create = |rank: u32| Recorder::create_file(rank as usize, world as usize);
        Ok(Self { files: ranks.map(create).collect::<io::Result<_>>()?, reported: Arc::default() })
    }

    /// The file of each worker's record, by rank.
    pub(super) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files.iter().map(AsFd::as_fd)
    }

    /// The states of the workers of this host, for the leader.
    pub(super) fn states(&self) -> Vec<RankState> {
        self.read().iter().map(FlightRecord::state).collect()
    }

    /// The leader has reported the oldest open exchange of the workers of all hosts.
    pub(super) fn hear(&self, open: OpenExchange) {
        *self.reported() = Some((Instant::now(), open));
    }

    /// What the workers do now.
    pub(crate) fn now(&self) -> Exchanges {
        let records = self.read();
        let shares = records.iter().map(FlightRecord::share_in_operations).collect();
        let first = records.first().map_or(0, |record| record.rank);
        let reported = self.reported().clone().map(|(at, open)| (at.elapsed(), open));
        let reported = reported.filter(|(age, _)| *age < REPORT_HOLDS);
        let is_reported = reported.is_some();
        let reported = reported.map(|(age, open)| OpenExchange { open_for: open.open_for + age, ..open });
        let open = reported.or_else(|| {
            let states: Vec<_> = records.iter().map(FlightRecord::state).collect();
            OpenOperation::oldest(&states).map(|open| OpenExchange::of(&open))
        });
        Exchanges { first, shares, open, is_reported }
    }

    /// The records; none if one cannot be read.
    fn read(&self) -> Vec<FlightRecord> {
        let read = |file| FlightRecord::read(file).inspect_err(|error| tracing::debug!(%error));
        self.files().map(read).collect::<Result<_, _>>().unwrap_or_default()
    }

    fn reported(&self) -> MutexGuard<'_, Option<(Instant, OpenExchange)>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenExchange {
    /// That of an open operation of workers of this host.
    fn of(open: &OpenOperation) -> Self {
        let awaited = open.awaited().into_iter().map(|rank| AwaitedWorker { rank, host: None });
        Self { name: open.operation.to_string(), open_for: open.open_for(), awaited: awaited.collect() }
    }
}

impl fmt::Display for AwaitedWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, host } = self;
        match host {
            None => write!(f, "{rank}"),
            Some(host) => write!(f, "{rank} (host {host})"),
        }
    }
}

impl Exchanges {
    /// Names the workers that the others have waited for longer than `timeout`, of `ranks` workers. `None` if there are none,
    /// or the records do not show them.
    pub(super) fn hanging(&self, ranks: usize, timeout: Duration) -> Option<String> {
        let slack = if self.is_reported { REPORT_SLACK } else { Duration::ZERO };
        let open = self.open.as_ref().filter(|open| open.open_for + slack >= timeout)?;
        let awaited = &open.awaited;
        // Without anybody who waits, the host may have been suspended.
        if awaited.is_empty() || awaited.len() == ranks {
            return None;
        }
        // The numbers of reducers follow the ranks. Workers that hang keep reducers waiting, and not the other way round.
        let (workers, reducers): (Vec<_>, Vec<_>) = awaited.iter().partition(|worker| worker.rank < ranks);
        let (what, named, first, of) = match &workers[..] {
            [] => ("reducer", reducers, ranks, String::new()),
            _ => ("worker", workers, 0, format!(" of {ranks}")),
        };
        let number = |worker: &&AwaitedWorker| {
            AwaitedWorker { rank: worker.rank - first, host: worker.host.clone() }.to_string()
        };
        let numbers: Vec<_> = named.iter().map(number).collect();
        let (plural, hang, need, them) =
            if named.len() == 1 { ("", "hangs", "needs", "it") } else { ("s", "hang", "need", "them") };
        Some(format!(
            "{what}{plural} {}{of} {hang}, or {need} more than `workers.timeout_seconds` = {}: the others waited for \
             {them} in {}",
            numbers.join(", "),
            timeout.as_secs(),
            open.name
        ))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn awaited(workers: &[(usize, Option<&str>)]) -> Vec<AwaitedWorker> {
        let host = |name: &str| HostName::parse(name).unwrap();
        workers.iter().map(|&(rank, name)| AwaitedWorker { rank, host: name.map(host) }).collect()
    }

    fn open(workers: &[(usize, Option<&str>)]) -> OpenExchange {
        let name = "barrier, number 512".to_owned();
        OpenExchange { name, open_for: Duration::from_secs(5), awaited: awaited(workers) }
    }

    #[test]
    fn one_worker_alone_has_no_record() {
        assert_eq!(FlightRecords::create(0..1, 1).unwrap().files().count(), 0);
        assert_eq!(FlightRecords::create(0..1, 1).unwrap().now(), Exchanges::default());
        let three = FlightRecords::create(0..3, 3).unwrap();
        assert_eq!(three.files().count(), 3);
        assert_eq!(three.now(), Exchanges { shares: vec![None; 3], ..Exchanges::default() });
    }

    #[test]
    fn what_the_leader_reports_takes_the_place_of_the_records_here() {
        let records = FlightRecords::create(2..4, 6).unwrap();
        let ranks: Vec<_> = records.states().iter().map(|state| state.rank).collect();
        assert_eq!((records.now().first, &ranks[..]), (2, &[2, 3][..]));
        let reported = open(&[(3, None), (5, Some("train-2"))]);
        // As the observers of the job have them.
        let copy = records.clone();
        records.hear(reported.clone());
        let found = copy.now().open.unwrap();
        assert!(found.open_for >= reported.open_for && found.awaited == reported.awaited, "{found:?}");
    }

    #[test]
    fn workers_that_hang_are_named_with_the_exchange() {
        let hanging = |workers: &[(usize, Option<&str>)], seconds| {
            let exchanges = Exchanges { open: Some(open(workers)), ..Exchanges::default() };
            exchanges.hanging(4, Duration::from_secs(seconds))
        };
        assert_eq!(
            hanging(&[(2, None)], 5).unwrap(),
            "worker 2 of 4 hangs, or needs more than `workers.timeout_seconds` = 5: the others waited for it in barrier, \
             number 512"
        );
        let two = hanging(&[(2, Some("train-2")), (3, None)], 5).unwrap();
        assert!(two.starts_with("workers 2 (host train-2), 3 of 4 hang, or need more than "), "{two}");
        let reducer = hanging(&[(5, Some("sum-2"))], 5).unwrap();
        assert!(reducer.starts_with("reducer 1 (host sum-2) hangs, or needs more than "), "{reducer}");
        let both = hanging(&[(2, None), (5, None)], 5).unwrap();
        assert!(both.starts_with("worker 2 of 4 hangs, "), "{both}");
        assert_eq!(hanging(&[(2, None)], 6), None, "it has not waited for so long");
        assert_eq!(hanging(&[], 5), None);
        assert_eq!(hanging(&[0, 1, 2, 3].map(|rank| (rank, None)), 5), None, "nobody waits");
        let reported =
            Exchanges { open: Some(open(&[(2, None)])), is_reported: true, ..Exchanges::default() };
        assert!(reported.hanging(4, Duration::from_secs(6)).is_some(), "the report is older");
        assert_eq!(Exchanges::default().hanging(4, Duration::from_secs(5)), None);
    }
}
