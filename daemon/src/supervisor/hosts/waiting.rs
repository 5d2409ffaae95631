//! Which worker the others wait for, on whichever host it is.
//!
//! The flight records of workers are on their hosts, and no host alone can tell. So a host whose workers have waited for a while reports
//! their states to the leader. The leader finds the awaited workers from all reports, and repeats to all hosts what it knows, once a second.
//! A host that hears it reports, too: the worker that hangs may not wait in an exchange.
//!
//! ```text
//! host                      leader                       all hosts
//! Exchanges (its states) -> OpenOperation::oldest -----> Awaited, and then Exchanges of all
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millstream_backend::collective::{OpenOperation, RankState};
use millstream_peers::HostName;

use super::super::FlightRecords;
use super::super::exchanges::{AwaitedWorker, OpenExchange};
use super::notes::{Awaited, ToHost, ToLeader};

/// How long an exchange of this host's workers is open before it is reported.
const LONG: Duration = Duration::from_secs(2);

/// Interval between looks at the flight records, between reports of a host, and between those of the leader.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a report counts. Some reports may be late.
const REPORT_COUNTS: Duration = Duration::from_secs(3);

/// A host's look at its workers.
pub(super) struct Watch {
    /// When the next one is due.
    due: Instant,
    /// When the leader last said that workers wait.
    heard: Option<Instant>,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { due: Instant::now() + INTERVAL, heard: None }
    }

    /// When [`Watch::look`] is due.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Looks at the records if that is due. Returns what the leader is to know.
    pub(super) fn look(&mut self, records: &FlightRecords) -> Option<ToLeader> {
        let now = Instant::now();
        if now < self.due {
            return None;
        }
        self.due = now + INTERVAL;
        let states = records.states();
        let is_asked = self.heard.is_some_and(|heard| now.duration_since(heard) < REPORT_COUNTS);
        (is_asked || waits(&states)).then_some(ToLeader::Exchanges { states })
    }

    /// The leader says which workers of all hosts the others wait for, if it knows. This host is `own`.
    pub(super) fn hear(&mut self, awaited: Awaited, own: &HostName, records: &FlightRecords) {
        self.heard = Some(Instant::now());
        let Awaited { exchange: name, open_for, workers } = awaited;
        let worker = |(rank, host)| AwaitedWorker { rank, host: Some(host).filter(|host| host != own) };
        let awaited: Vec<_> = workers.into_iter().map(worker).collect();
        records.hear(OpenExchange { name, open_for, awaited });
    }
}

/// Whether one of these workers has waited for long.
fn waits(states: &[RankState]) -> bool {
    states.iter().any(|state| state.open.as_ref().is_some_and(|open| open.open_for >= LONG))
}

/// What the hosts of a generation have reported to the leader.
#[derive(Default)]
pub(super) struct WaitingReports {
    reports: BTreeMap<HostName, (Instant, Vec<RankState>)>,
    /// When the last note was sent to all hosts.
    noted: Option<Instant>,
}

impl WaitingReports {
    /// The host `from` has reported the states of its workers. Returns what all hosts are to know, if anything.
    pub(super) fn add(&mut self, from: HostName, states: Vec<RankState>) -> Option<ToHost> {
        let now = Instant::now();
        self.reports.retain(|_, (at, _)| now.duration_since(*at) < REPORT_COUNTS);
        self.reports.insert(from, (now, states));
        // The first one is sent at once, for the others to report, too.
        if self.noted.is_some_and(|noted| now.duration_since(noted) < INTERVAL) {
            return None;
        }
        let states: Vec<_> = self.reports.values().flat_map(|(_, states)| states.iter().cloned()).collect();
        // Otherwise, hosts that report because of a note would get notes without end.
        let open = OpenOperation::oldest(&states).filter(|_| waits(&states))?;
        self.noted = Some(now);
        let host_of = |rank| {
            let has =
                |(_, states): &&(Instant, Vec<RankState>)| states.iter().any(|state| state.rank == rank);
            let found = self.reports.iter().find(|(_, report)| has(report));
            found.map(|(host, _)| (rank, host.clone()))
        };
        let workers = open.awaited().into_iter().filter_map(host_of).collect();
        let (exchange, open_for) = (open.operation.to_string(), open.open_for());
        Some(ToHost::Awaited(Awaited { exchange, open_for, workers }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_backend::collective::{OpenOnRank, Operation};

    use super::*;

    /// The state of a rank that has begun exchange `last`, and has been in it for so long.
    fn state(rank: usize, last: u64, open_for: Option<u64>) -> RankState {
        let open = open_for.map(|seconds| OpenOnRank {
            operation: Operation::Barrier,
            number: last,
            bytes: 0,
            open_for: Duration::from_secs(seconds),
            is_silent: false,
        });
        RankState { rank, last_begun: last, open }
    }

    fn host(name: &str) -> HostName {
        HostName::parse(name).unwrap()
    }

    #[test]
    fn the_worker_of_another_host_is_named() {
        let mut reports = WaitingReports::default();
        // Nobody is known to be at fault, but all hosts report from now on.
        let Some(ToHost::Awaited(first)) =
            reports.add(host("a"), vec![state(0, 9, Some(3)), state(1, 9, Some(2))])
        else {
            panic!("no note")
        };
        assert_eq!((first.workers.len(), first.open_for), (0, Duration::from_secs(3)));
        assert!(
            reports.add(host("b"), vec![state(2, 8, None), state(3, 9, Some(1))]).is_none(),
            "once a second"
        );
        reports.noted = None;
        let note = reports.add(host("a"), vec![state(0, 9, Some(4)), state(1, 9, Some(3))]);
        let Some(ToHost::Awaited(second)) = note else { panic!("no note") };
        assert_eq!((&second.exchange[..], second.workers), ("barrier, number 9", vec![(2, host("b"))]));
    }

    #[test]
    fn no_note_is_sent_when_nobody_waits() {
        let mut reports = WaitingReports::default();
        assert!(reports.add(host("a"), vec![state(0, 9, Some(1))]).is_none());
        assert!(reports.add(host("b"), vec![state(1, 9, None)]).is_none());
        assert!(!waits(&[state(0, 9, Some(1)), state(1, 9, None)]));
    }

    #[test]
    fn a_host_reports_while_others_wait() {
        let records = FlightRecords::create(0..2, 4).unwrap();
        let mut watch = Watch::new();
        watch.due = Instant::now();
        assert!(watch.look(&records).is_none(), "nobody waits");
        let workers = vec![(1, host("b")), (2, host("a"))];
        let awaited = Awaited { exchange: "barrier, number 9".to_owned(), open_for: LONG, workers };
        watch.hear(awaited, &host("a"), &records);
        assert!(watch.look(&records).is_none(), "it is not due");
        watch.due = Instant::now();
        let Some(ToLeader::Exchanges { states }) = watch.look(&records) else { panic!("it does not report") };
        assert_eq!(states.len(), 2);
        let open = records.now().open.unwrap();
        let hosts: Vec<_> = open.awaited.iter().map(|worker| worker.host.clone()).collect();
        assert_eq!(hosts, [Some(host("b")), None]);
    }
}
