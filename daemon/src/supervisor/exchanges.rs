//! The exchanges between the workers of a generation, as their flight records show them.
//!
//! The daemon creates the file of each record and keeps it open, so it can name the worker that hangs: while the others still
//! wait for it, and after they have given up and ended.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use millstream_backend::collective::{FlightRecord, OpenOperation, Recorder};

/// The files of the flight records of the workers of this host, by rank; none for one worker alone. They live until the last copy of this value.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlightRecords(Arc<[OwnedFd]>);

/// What the workers of a job do in their exchanges.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Exchanges {
    /// The share of its recent time that each worker was in exchanges, by rank; `None` before the second exchange.
    pub(crate) shares: Vec<Option<f64>>,
    /// The exchange that some workers have begun and not ended.
    pub(crate) open: Option<OpenOperation>,
}

impl FlightRecords {
    /// Empty records of the workers `ranks` of `world` workers.
    ///
    /// # Errors
    /// If the system refuses the memory, or a descriptor.
    pub(super) fn create(ranks: Range<u32>, world: u32) -> io::Result<Self> {
        let ranks = if world > 1 { ranks } else { 0..0 };
        let create = |rank: u32| Recorder::create_file(rank as usize, world as usize);
        Ok(Self(ranks.map(create).collect::<io::Result<_>>()?))
    }

    /// The file of each worker's record, by rank.
    pub(super) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd)
    }

    /// What the workers do now.
    pub(crate) fn now(&self) -> Exchanges {
        let read = |file| FlightRecord::read(file).inspect_err(|error| tracing::debug!(%error));
        let Ok(records) = self.files().map(read).collect::<Result<Vec<_>, _>>() else {
            return Exchanges::default();
        };
        let shares = records.iter().map(FlightRecord::share_in_operations).collect();
        Exchanges { shares, open: OpenOperation::oldest(&records) }
    }
}

impl Exchanges {
    /// Names the workers that the others have waited for longer than `timeout`, of `ranks` workers. `None` if there are none,
    /// or the records do not show them.
    pub(super) fn hanging(&self, ranks: usize, timeout: Duration) -> Option<String> {
        let open = self.open.as_ref().filter(|open| open.open_for >= timeout)?;
        let awaited = open.awaited();
        // Without anybody who waits, the host may have been suspended.
        if awaited.is_empty() || awaited.len() == ranks {
            return None;
        }
        let numbers: Vec<_> = awaited.iter().map(ToString::to_string).collect();
        let (workers, hang, need, them) = if awaited.len() == 1 {
            ("worker", "hangs", "needs", "it")
        } else {
            ("workers", "hang", "need", "them")
        };
        Some(format!(
            "{workers} {} of {ranks} {hang}, or {need} more than `workers.timeout_seconds` = {}: the others waited for \
             {them} in {}",
            numbers.join(", "),
            timeout.as_secs(),
            open.operation
        ))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use millstream_backend::collective::{Operation, RecordedOperation};

    use super::*;

    #[test]
    fn one_worker_alone_has_no_record() {
        assert_eq!(FlightRecords::create(0..1, 1).unwrap().files().count(), 0);
        assert_eq!(FlightRecords::create(0..1, 1).unwrap().now(), Exchanges::default());
        let three = FlightRecords::create(0..3, 3).unwrap();
        assert_eq!(three.files().count(), 3);
        assert_eq!(three.now(), Exchanges { shares: vec![None; 3], open: None });
    }

    #[test]
    fn workers_that_hang_are_named_with_the_exchange() {
        let open = |missing: &[usize], silent: &[usize]| {
            let began = Duration::from_secs(9);
            let operation = RecordedOperation {
                operation: Operation::Barrier,
                number: 512,
                bytes: 0,
                began,
                ended: None,
                failed: None,
            };
            let (missing, silent) = (missing.to_vec(), silent.to_vec());
            let open_for = Duration::from_secs(5);
            let open = OpenOperation { operation, waiting: vec![0], missing, silent, open_for };
            Exchanges { shares: vec![None; 4], open: Some(open) }
        };
        let hanging = |exchanges: Exchanges, seconds| exchanges.hanging(4, Duration::from_secs(seconds));
        assert_eq!(
            hanging(open(&[], &[2]), 5).unwrap(),
            "worker 2 of 4 hangs, or needs more than `workers.timeout_seconds` = 5: the others waited for it in barrier, \
             number 512"
        );
        let two = hanging(open(&[3], &[2]), 5).unwrap();
        assert!(two.starts_with("workers 2, 3 of 4 hang, or need more than "), "{two}");
        assert_eq!(hanging(open(&[], &[2]), 6), None, "it has not waited for so long");
        assert_eq!(hanging(open(&[], &[]), 5), None);
        assert_eq!(hanging(open(&[0, 1], &[2, 3]), 5), None, "nobody waits");
        assert_eq!(hanging(Exchanges::default(), 5), None);
    }
}
