//! The seat of a host in a job: what passes events of the leader, and of this host's member, to the job's thread.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_peers::HostName;
use millstream_peers::conduct::{Accepted, Reports, RunAddress, Workers};
use millstream_peers::generations::{
    Address, Assignment, GenerationId, Note, Offer, Outcome, Reason, Start, When,
};

use super::super::Event;

/// What happens to a job on several hosts, besides what its workers on this one report.
pub(super) enum SeatEvent {
    /// This host is to start workers. Reports about them go to `reports`.
    Spawn { generation: GenerationId, assignment: Assignment, reports: Reports },
    /// Its workers are to train from `start`. The addresses are those of all workers, by rank.
    Start { generation: GenerationId, start: Start, addresses: Vec<Address> },
    /// They are to save the model and stop.
    Stop(GenerationId),
    /// They are about to stop or to be killed, for this reason.
    Explain(When, Reason),
    /// They are to be killed.
    Kill(GenerationId),
    /// The leader's daemon says something about them.
    Note(GenerationId, Note),
    /// The job has ended.
    Over(Outcome),
    /// No generation runs, for this reason; empty once one does.
    Waits(String),
    /// This host has left the job: it has no workers and leads no longer.
    Left,
}

/// Takes events for a job's thread, which must not wait for it.
pub(super) struct Seat {
    events: Mutex<VecDeque<SeatEvent>>,
    /// Wakes the thread.
    wake: SyncSender<Event>,
}

impl Seat {
    /// A seat of the job that reads the other end of `wake`.
    pub(super) fn new(wake: SyncSender<Event>) -> Arc<Self> {
        Arc::new(Self { events: Mutex::default(), wake })
    }

    /// Adds an event.
    pub(super) fn push(&self, event: SeatEvent) {
        self.events().push_back(event);
        // A full queue wakes the thread as well, and it looks here after every event.
        let _ = self.wake.try_send(Event::Seat);
    }

    /// Takes the first event.
    pub(super) fn pop(&self) -> Option<SeatEvent> {
        self.events().pop_front()
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<SeatEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The workers of a seat, as the member of its host sees them.
struct SeatWorkers(Arc<Seat>);

impl Workers for SeatWorkers {
    fn spawn(&mut self, generation: GenerationId, assignment: Assignment, reports: Reports) {
        self.0.push(SeatEvent::Spawn { generation, assignment, reports });
    }

    fn start(
        &mut self,
        generation: GenerationId,
        start: Start,
        // Hosts hold no images, so none sends one.
        _senders: BTreeMap<HostName, HostName>,
        addresses: Vec<Address>,
    ) {
        self.0.push(SeatEvent::Start { generation, start, addresses });
    }

    fn stop_after(&mut self, generation: GenerationId, _step: u64) {
        // The workers agree on the step.
        self.0.push(SeatEvent::Stop(generation));
    }

    fn explain(&mut self, _generation: GenerationId, when: When, why: Reason) {
        self.0.push(SeatEvent::Explain(when, why));
    }

    fn kill(&mut self, generation: GenerationId) {
        self.0.push(SeatEvent::Kill(generation));
    }

    fn hear(&mut self, generation: GenerationId, note: Note) {
        self.0.push(SeatEvent::Note(generation, note));
    }

    fn over(&mut self, outcome: Outcome) {
        self.0.push(SeatEvent::Over(outcome));
    }
}

/// The jobs on several hosts that are ready to train on this one.
#[derive(Default)]
pub(crate) struct Seats(Mutex<HashMap<RunAddress, Ready>>);

/// A job that is ready here.
struct Ready {
    offer: Offer,
    seat: Arc<Seat>,
}

/// An offer, which ends when this is dropped.
pub(super) struct Offered {
    seats: Arc<Seats>,
    run: RunAddress,
}

impl Seats {
    /// How this host takes part in a job, if the job is ready here.
    pub(crate) fn accept(&self, run: &RunAddress) -> Option<Accepted> {
        let seats = self.seats();
        let Ready { offer, seat } = seats.get(run)?;
        Some(Accepted { offer: *offer, workers: Box::new(SeatWorkers(Arc::clone(seat))) })
    }

    /// Offers a job ranks or reducers.
    pub(super) fn offer(self: &Arc<Self>, run: &RunAddress, offer: Offer, seat: &Arc<Seat>) -> Offered {
        self.seats().insert(run.clone(), Ready { offer, seat: Arc::clone(seat) });
        Offered { seats: Arc::clone(self), run: run.clone() }
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<RunAddress, Ready>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        self.seats.seats().remove(&self.run);
    }
}
