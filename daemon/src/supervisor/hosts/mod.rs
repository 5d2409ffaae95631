//! A job on several hosts (`workers.max`).
//!
//! Each host that takes part has the job as its own, with a thread that prepares it like any other. Instead of attempts, its thread
//! then serves a *seat*: it starts, feeds, stops and kills the workers of this host as the leader decides
//! ([`millstream_peers::generations`]).
//!
//! ```text
//!               job's thread                   runtime
//! leader's host  seat <- part -> workers        Candidate: lease, lead() --- Follow ---> members of all hosts, its own included
//! other hosts    seat <- part -> workers        Candidate: waits             member (conduct) -> seat
//! ```
//!
//! * **Joining.** The job is submitted to one daemon. It takes the lease of the run, prepares the job, and leads. A daemon that it calls
//!   and that does not know the job yet reads it from the run directory and prepares it, too: everything that was learned is there.
//! * **Leading.** Each daemon with the job is a candidate ([`leading`]): it leads when its member has no leader and the lease is free. So
//!   a leader that is gone is replaced.
//! * **Workers.** [`part`] has those of this host in one generation. What they say to those of other hosts goes by way of the leader
//!   ([`notes`]), as do the changes of the run ([`changes`]), which only the leader makes ([`led_run`]).
//! * **Leaving.** A pause or a stop of the daemon takes this host out of the job at the next step boundary. The job goes on elsewhere, if
//!   enough hosts are left. A cancellation ends the job on all hosts, unless it waits for hosts and another one leads it.
//!
//! Every host records progress, metrics and checkpoints, which the leader passes on.

mod changes;
mod following;
mod leading;
mod led_run;
mod notes;
mod part;
mod seat;
mod waiting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use millstream_control::proto::JobState;
use millstream_peers::conduct::{Addresses, RunAddress};
use millstream_peers::generations::member::WorkerEvent;
use millstream_peers::generations::{GenerationId, Limits, Offer, Outcome, Reason, Role, When};
use millstream_peers::server::ThisHost;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Level;

pub(crate) use self::changes::{Changes, Written};
use self::following::{catch_up, follow};
use self::leading::{Candidate, Wish};
use self::led_run::cancelled_on;
use self::part::Part;
pub(crate) use self::seat::Seats;
use self::seat::{Offered, Seat, SeatEvent};
use super::{Abort, Event, Prepared, STOP_POLL_INTERVAL, StopReason, Supervisor};
use crate::runs::Times;
use crate::state::HistoryPoint;
use crate::traces::JobEvent;

/// Time limit for leaving a job: for the current step and a checkpoint.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for the end of a leader whose job has ended.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a job waits for the daemon's port for peers, which opens after jobs are resumed.
const PORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a job cannot train on several hosts.
pub(crate) const NO_PEERS: &str = "`workers.max` is for several hosts, but this daemon knows no others: set `[peers]` in its \
                                   configuration, or remove `max`";

/// What a job needs of this daemon to train on several hosts.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) this: Arc<ThisHost>,
    /// Where hosts listen, this one included.
    pub(crate) hosts: watch::Receiver<Addresses>,
    pub(crate) seats: Arc<Seats>,
    /// The interface of the network for gradients; `None` if none is configured.
    pub(crate) network: Option<String>,
}

/// A job's thread at its seat.
struct Seated<'a> {
    site: &'a Site,
    run: RunAddress,
    seat: Arc<Seat>,
    /// What this daemon's candidate for the lead is to do.
    wishes: watch::Sender<Wish>,
    /// Until it is awaited.
    leading: Option<JoinHandle<()>>,
    /// What the job offers leaders, until it leaves.
    offered: Option<Offered>,
    part: Option<Part>,
    leaving: Option<Leaving>,
    /// The progress of other hosts while this one had no workers.
    totals: HistoryPoint,
}

/// How this host is about to leave the job.
#[derive(Clone, Copy)]
struct Leaving {
    why: StopReason,
    until: Instant,
}

/// How a job ends here: with the reason for early stopping, if any.
type Ended = Result<Option<String>, Abort>;

impl Supervisor {
    /// Trains with other hosts until the job ends, or this host leaves it.
    pub(super) fn train_among_hosts(&mut self, mut prepared: Prepared) -> Ended {
        let site = self.site()?;
        let address = prepared.directory.to_string();
        let run =
            RunAddress::parse(&address).map_err(|error| Abort::Failed(format!("{address}: {error}")))?;
        let seat = Seat::new(self.control.events.clone());
        // Its next holder leads.
        self.release_lease();
        let workers = &prepared.job.workers;
        let max = workers.max.unwrap_or(workers.per_host);
        let offer = if workers.reduces_on(site.this.about.host.as_str()) {
            self.recorder
                .log(Level::INFO, "this host adds gradients for the workers of others (`workers.reducers`)");
            Offer { role: Role::Reduce, count: 1 }
        } else {
            Offer { role: Role::Train, count: workers.per_host }
        };
        let offered = Some(site.seats.offer(&run, offer, &seat));
        let (wishes, wish) = watch::channel(Wish::Lead);
        let candidate = Candidate {
            this: Arc::clone(&site.this),
            run: run.clone(),
            limits: Limits {
                min: workers.min,
                max,
                parts: workers.reproducible,
                has_reducers: !workers.reducers.is_empty(),
            },
            times: Times::of(&prepared.job),
            directory: prepared.directory.clone(),
            storage: self.run_storage.clone(),
            hosts: site.hosts.clone(),
            seat: Arc::clone(&seat),
            wish,
            reopens: std::mem::take(&mut self.is_resumed),
        };
        let leading = Some(self.runtime.spawn(candidate.run()));
        self.recorder.enter(JobState::Running, "");
        let mut seated = Seated {
            site: &site,
            run,
            seat,
            wishes,
            leading,
            offered,
            part: None,
            leaving: None,
            totals: HistoryPoint::default(),
        };
        let ended = seated.serve(self, &mut prepared);
        seated.get_up(self);
        ended
    }

    /// What the daemon has for jobs on several hosts.
    fn site(&self) -> Result<Site, Abort> {
        let until = Instant::now() + PORT_TIMEOUT;
        loop {
            if let Some(peers) = self.peers.get() {
                return Ok(peers.site());
            }
            self.check_stop()?;
            if Instant::now() >= until {
                return Err(Abort::Failed(NO_PEERS.to_owned()));
            }
            std::thread::sleep(STOP_POLL_INTERVAL);
        }
    }
}

impl Seated<'_> {
    /// Handles events until the job ends, or this host has left it.
    fn serve(&mut self, supervisor: &mut Supervisor, prepared: &mut Prepared) -> Ended {
        loop {
            match (supervisor.control.stop_requested(), &mut self.leaving) {
                (Some(why), None) => self.leave(why, supervisor),
                (Some(why), Some(leaving)) => leaving.why = why,
                (None, _) => {}
            }
            match self.next_event(supervisor) {
                Some(Event::Worker(id, message)) => {
                    if let Some(part) = self.part.as_mut().filter(|part| part.workers().has(id))
                        && let Err(error) =
                            part.handle_message((id.number, message), (prepared, self.site), supervisor)
                    {
                        part.fail(&format!("{error:#}"), false);
                    }
                }
                Some(Event::WorkerGone(id)) => {
                    if let Some(part) = self.part.as_mut().filter(|part| part.workers().has(id)) {
                        part.on_gone(id.number);
                    }
                }
                Some(Event::Checkpoint(reply)) => {
                    supervisor.checkpoint_requests.push(reply);
                    if let Some(part) = self.part.as_ref().filter(|part| part.is_training()) {
                        part.request_checkpoint();
                    }
                }
                Some(Event::Profile(request)) => {
                    request.refuse(anyhow!("jobs with `workers.max` cannot be profiled yet"));
                }
                // The candidate has the lease.
                Some(Event::Stop | Event::Seat | Event::LeaseLost(_)) | None => {}
            }
            if let Some(part) = &mut self.part {
                part.check_time(prepared);
            }
            while let Some(event) = self.seat.pop() {
                if let Some(ended) = self.handle(event, supervisor, prepared) {
                    return ended;
                }
            }
            if self.part.as_ref().is_some_and(Part::is_over) {
                self.end_part(false, supervisor);
            }
            if let Some(Leaving { why, until }) = self.leaving
                && until <= Instant::now()
            {
                let limit = LEAVE_TIMEOUT.as_secs();
                let message = format!("the workers did not stop within {limit} s and were killed");
                supervisor.recorder.log(Level::WARN, &message);
                return Err(Abort::Stopped(why));
            }
        }
    }

    /// The next event; `None` once something is due without one.
    fn next_event(&self, supervisor: &Supervisor) -> Option<Event> {
        let part = self.part.as_ref().and_then(Part::deadline);
        match part.into_iter().chain(self.leaving.map(|leaving| leaving.until)).min() {
            None => supervisor.events.recv().ok(),
            Some(until) => {
                supervisor.events.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
            }
        }
    }

    /// Handles an event of the seat. Returns how the job ends here, if it does.
    fn handle(
        &mut self,
        event: SeatEvent,
        supervisor: &mut Supervisor,
        prepared: &mut Prepared,
    ) -> Option<Ended> {
        match event {
            SeatEvent::Spawn { generation, assignment, reports } => {
                self.end_part(true, supervisor);
                let (site, to) = ((prepared, self.site), reports.clone());
                match Part::spawn(supervisor, site, generation, assignment, reports) {
                    Ok(part) => self.part = Some(part),
                    Err(error) => {
                        let reason = Reason::new(&format!("the workers cannot be started: {error:#}"));
                        to.blocking_send(WorkerEvent::Died(reason));
                        to.blocking_send(WorkerEvent::Gone);
                    }
                }
            }
            SeatEvent::Start { generation, start, addresses } => {
                if let Some(part) = self.part_in(generation)
                    && let Err(error) = part.start(supervisor, prepared, start, &addresses)
                {
                    part.fail(&format!("{error:#}"), false);
                }
            }
            SeatEvent::Stop(generation) => self.part_in(generation).into_iter().for_each(Part::stop),
            SeatEvent::Explain(when, why) => {
                let (level, what) = match when {
                    When::Now => (Level::WARN, "the workers of all hosts are killed"),
                    When::AfterStep(_) => (Level::INFO, "the workers of all hosts stop after a step"),
                };
                supervisor.recorder.log(level, &format!("{what}: {why}"));
            }
            SeatEvent::Kill(generation) => {
                if self.part_in(generation).is_some() {
                    self.end_part(true, supervisor);
                }
            }
            SeatEvent::Note(generation, note) => match &mut self.part {
                Some(part) if part.generation() == generation => part.hear(&note, self.site, supervisor),
                Some(_) => {}
                None => follow(&note, &mut self.totals, supervisor),
            },
            SeatEvent::Waits(reason) => {
                if self.part.is_none() && supervisor.recorder.record().reason != reason {
                    supervisor.recorder.log(Level::INFO, &reason);
                    supervisor.recorder.update(|record| record.reason = reason);
                }
            }
            SeatEvent::Over(outcome) => {
                if outcome == Outcome::Finished
                    && let Err(error) = catch_up(prepared, supervisor)
                {
                    let message = format!("the last checkpoint of the job cannot be read: {error:#}");
                    supervisor.recorder.log(Level::WARN, &message);
                }
                let is_cancelled = self.leaving.is_some_and(|leaving| leaving.why == StopReason::Cancel);
                return Some(match outcome {
                    Outcome::Finished => Ok(supervisor.stopped_early.take()),
                    Outcome::Failed(_) if is_cancelled => Err(Abort::Stopped(StopReason::Cancel)),
                    Outcome::Failed(reason) => Err(Abort::Failed(reason.to_string())),
                });
            }
            SeatEvent::Left => {
                let why = self.leaving.map_or(StopReason::Drain, |leaving| leaving.why);
                return Some(Err(Abort::Stopped(why)));
            }
        }
        None
    }

    fn part_in(&mut self, generation: GenerationId) -> Option<&mut Part> {
        self.part.as_mut().filter(|part| part.generation() == generation)
    }

    /// Ends this host's part, if it has one.
    fn end_part(&mut self, kill: bool, supervisor: &Supervisor) {
        if let Some(part) = self.part.take() {
            part.end(kill, supervisor);
        }
    }

    /// Begins to leave the job: first as its leader, then as a host.
    fn leave(&mut self, why: StopReason, supervisor: &Supervisor) {
        self.leaving = Some(Leaving { why, until: Instant::now() + LEAVE_TIMEOUT });
        supervisor.recorder.trace().record(JobEvent::Stopping { why: why.name() });
        let host = &self.site.this.about.host;
        self.wishes.send_replace(match why {
            StopReason::Cancel | StopReason::Search => {
                // Another host may lead.
                self.part.iter().for_each(Part::cancel);
                Wish::Fail(cancelled_on(host))
            }
            StopReason::Drain | StopReason::Pause => Wish::Stop,
        });
        // No leader calls this host for the job any more.
        self.offered = None;
        let leading = self.leading.as_ref().map(JoinHandle::abort_handle);
        let (this, run, seat) = (Arc::clone(&self.site.this), self.run.clone(), Arc::clone(&self.seat));
        supervisor.runtime.spawn(async move {
            while leading.as_ref().is_some_and(|leading| !leading.is_finished()) {
                tokio::time::sleep(STOP_POLL_INTERVAL).await;
            }
            this.jobs().leave(&run).await;
            seat.push(SeatEvent::Left);
        });
    }

    /// Leaves the seat, however the job has ended.
    fn get_up(&mut self, supervisor: &Supervisor) {
        self.offered = None;
        if *self.wishes.borrow() == Wish::Lead {
            self.wishes.send_replace(Wish::Stop);
        }
        self.end_part(true, supervisor);
        let (this, run, leading) = (Arc::clone(&self.site.this), self.run.clone(), self.leading.take());
        supervisor.runtime.block_on(async move {
            this.jobs().forget(&run).await;
            let Some(mut leading) = leading else { return };
            // A leader reports the end of the job to the others.
            if tokio::time::timeout(END_TIMEOUT, &mut leading).await.is_err() {
                leading.abort();
                let _ = leading.await;
            }
        });
    }
}
