//! Which jobs run when: a pure function of what jobs demand, what the host has, and time.
//!
//! The [`Scheduler`] has no threads, no clock and no files. The daemon reports what happens to jobs, and asks it to
//! [decide](Scheduler::decide) after each change. Three rules make the decision:
//!
//! * **Order.** Jobs of a higher priority come first. Among equal ones, the user who has used the least of the host comes
//!   first ([`usage`]), and a user's own jobs keep the order in which they were submitted.
//! * **Backfill** (Lifka, "The ANL/IBM SP scheduling system", 1995: EASY). The first job that does not fit reserves what
//!   it needs, from the time when enough running jobs are expected to have ended. A later job starts now if it fits now
//!   and either ends before that time or leaves the reserved job enough. So small jobs fill gaps and never delay the
//!   first one. The end of a job is unknown until it trains; then the whole demand of the reserved job stays reserved.
//! * **Preparation.** A job's demand is known once its data was listed and its model sized. A job that fits, going by its
//!   job file, is prepared in its place and continues to train. Of those that wait, the first few are prepared ahead, one
//!   at a time, so that they start without delay, and so that errors show early.
//!
//! Each job that waits has a [`Reason`]. Jobs are never interrupted in favour of others: only a user pauses them.

mod reason;
mod usage;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub(crate) use reason::Reason;
use usage::Usage;

/// The maximum number of waiting jobs that a decision looks at.
const MAX_EXAMINED: usize = 200;

/// The maximum number of jobs that are prepared at a time without being about to train.
const MAX_PREPARING_AHEAD: usize = 1;

/// The maximum number of jobs that are prepared and wait.
const MAX_PREPARED: usize = 8;

/// A started job counts as this many seconds of use in advance, so that users take turns when several jobs start at once.
const CHARGED_SECONDS: f64 = 600.0;

/// A user's number.
pub(crate) type UserId = u32;

/// What a job needs of the host while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Memory of its workers and its ingest.
    pub(crate) memory_bytes: u64,
    /// Threads that compute; `None` for an equal share of all, of as many jobs as may run.
    pub(crate) threads: Option<u32>,
    /// The GPUs that it trains on, which it does not share.
    pub(crate) gpus: Gpus,
}

/// GPUs, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gpus(BTreeSet<u32>);

impl Gpus {
    /// The number of GPUs.
    fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their numbers.
    pub(crate) fn numbers(&self) -> &BTreeSet<u32> {
        &self.0
    }
}

impl FromIterator<u32> for Gpus {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}

/// What the host can give to jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) memory_bytes: u64,
    pub(crate) threads: u32,
    /// The number of GPUs.
    pub(crate) gpus: u32,
    /// The maximum number of running jobs; `None` for as many as fit.
    pub(crate) max_jobs: Option<usize>,
    /// The same for each user.
    pub(crate) max_jobs_per_user: Option<usize>,
}

/// A job that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) id: String,
    pub(crate) user: UserId,
    /// Higher is earlier.
    pub(crate) priority: i32,
    pub(crate) demand: Demand,
    /// Whether `demand` is known; otherwise it is what the job file says.
    pub(crate) is_prepared: bool,
    /// Whether the daemon died while the job was under way. One such job is under way at a time.
    pub(crate) is_suspect: bool,
    /// How long it is expected to run.
    pub(crate) expected_seconds: Option<f64>,
}

/// What to do now.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    /// Jobs to start, in this order. They are no longer waiting.
    pub(crate) starts: Vec<Start>,
    /// Why the first jobs of the queue wait, in their order; the others wait behind them.
    pub(crate) waits: Vec<(String, Reason)>,
}

/// A job to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) id: String,
    /// Whether it is only prepared now, and trains later.
    pub(crate) is_ahead: bool,
}

/// Decides which jobs start.
pub(crate) struct Scheduler {
    capacity: Capacity,
    /// The waiting jobs of each user, in their order.
    queues: BTreeMap<UserId, BTreeMap<Place, Entry>>,
    /// Where each waiting job is.
    places: HashMap<String, (UserId, Place)>,
    /// Those that are being prepared ahead.
    preparing: Vec<(UserId, Place)>,
    /// The number of waiting jobs that are prepared.
    prepared: usize,
    /// Jobs that hold what they demand, in the order of their start.
    active: Vec<Active>,
    usage: Usage,
    submitted: u64,
}

/// A job's place in its user's queue: by priority, then by submission.
type Place = (Reverse<i32>, u64);

/// A waiting job in its queue.
struct Entry {
    job: Waiting,
    /// Whether it does not start before another job has ended.
    is_put_off: bool,
}

/// A job that trains, or is being prepared to train at once.
struct Active {
    job: Waiting,
    place: Place,
    /// The expected time until it ends.
    remaining_seconds: Option<f64>,
}

/// What a job gets of what it demands.
struct Granted<'a> {
    memory_bytes: u64,
    threads: u32,
    gpus: &'a Gpus,
}

/// What active jobs leave. A demand above the capacity counts as all of it: such a job runs alone.
#[derive(Clone, Debug)]
struct Free {
    capacity: Capacity,
    memory_bytes: u64,
    threads: u32,
    jobs: usize,
    used_gpus: BTreeSet<u32>,
}

/// What the first job that does not fit has reserved.
struct Reservation {
    holder: String,
    /// The time until it can start; `None` if unknown.
    seconds: Option<f64>,
    /// What it will leave to others at that time.
    spare: Free,
}

impl Scheduler {
    pub(crate) fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            queues: BTreeMap::new(),
            places: HashMap::new(),
            preparing: Vec::new(),
            prepared: 0,
            active: Vec::new(),
            usage: Usage::default(),
            submitted: 0,
        }
    }

    /// What the host can give to jobs.
    pub(crate) fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Changes what the host can give to jobs. Running jobs continue.
    pub(crate) fn set_capacity(&mut self, capacity: Capacity) {
        self.capacity = capacity;
    }

    /// The number of jobs of `user` that wait.
    pub(crate) fn waiting_of(&self, user: UserId) -> usize {
        self.queues.get(&user).map_or(0, BTreeMap::len)
    }

    /// Adds a job to the end of the queue of its user and priority.
    pub(crate) fn add(&mut self, job: Waiting) {
        let place = (Reverse(job.priority), self.submitted);
        self.submitted += 1;
        self.insert(place, Entry { job, is_put_off: false });
    }

    /// A job that was started has been prepared, and needs `demand`. Returns whether it may train now; otherwise it
    /// waits in its place.
    pub(crate) fn prepared(&mut self, id: &str, demand: Demand) -> bool {
        if let Some((user, place)) = self.places.get(id).cloned() {
            if let Some(mut entry) = self.take(user, place) {
                (entry.job.demand, entry.job.is_prepared) = (demand, true);
                self.insert(place, entry);
            }
            return false;
        }
        let Some(at) = self.active.iter().position(|active| active.job.id == id) else { return false };
        let mut active = self.active.remove(at);
        let before = std::mem::replace(&mut active.job.demand, demand);
        let (before, now) = (self.capacity.within(&before), self.capacity.within(&active.job.demand));
        active.job.is_prepared = true;
        // A job keeps what it has, even if the host has less to give by now.
        let shrank = now.memory_bytes <= before.memory_bytes && now.threads <= before.threads;
        if shrank || self.free().shortage(&active.job.demand).is_none() {
            self.active.insert(at, active);
            return true;
        }
        self.insert(active.place, Entry { job: active.job, is_put_off: false });
        false
    }

    /// A job that was started waits again until another job has ended.
    pub(crate) fn put_off(&mut self, id: &str) {
        if let Some(at) = self.active.iter().position(|active| active.job.id == id) {
            let Active { job, place, .. } = self.active.remove(at);
            self.insert(place, Entry { job, is_put_off: true });
        }
    }

    /// A job has ended, or no longer waits.
    pub(crate) fn remove(&mut self, id: &str) {
        if let Some((user, place)) = self.places.get(id).cloned() {
            self.take(user, place);
            return;
        }
        self.active.retain(|active| active.job.id != id);
        for entry in self.queues.values_mut().flat_map(BTreeMap::values_mut) {
            entry.is_put_off = false;
        }
    }

    /// A job has a new checkpoint since the daemon died.
    pub(crate) fn cleared(&mut self, id: &str) {
        for active in self.active.iter_mut().filter(|active| active.job.id == id) {
            active.job.is_suspect = false;
        }
    }

    /// The memory that an active job demands, in bytes; 0 of another one.
    pub(crate) fn memory_of(&self, id: &str) -> u64 {
        self.active
            .iter()
            .find(|active| active.job.id == id)
            .map_or(0, |active| active.job.demand.memory_bytes)
    }

    /// Sets the expected time until active jobs end, where it is known.
    pub(crate) fn expect(&mut self, remaining_seconds: impl Fn(&str) -> Option<f64>) {
        for active in &mut self.active {
            let known = remaining_seconds(&active.job.id);
            active.remaining_seconds = known.or(active.job.expected_seconds);
        }
    }

    /// Decides which jobs start at the time `now`, in seconds since any moment.
    pub(crate) fn decide(&mut self, now: f64) -> Decision {
        let share = |active: &Active| (active.job.user, self.capacity.share(&active.job.demand));
        self.usage.advance(now, self.active.iter().map(share));
        let mut decision = Decision::default();
        let mut reservation = None;
        for (user, place) in self.order() {
            let Some(entry) = self.queues.get(&user).and_then(|queue| queue.get(&place)) else { continue };
            let (id, is_preparing) = (entry.job.id.clone(), self.preparing.contains(&(user, place)));
            match self.obstacle(entry, is_preparing, &mut reservation) {
                None => {
                    if let Some(Reservation { seconds, spare, .. }) = &mut reservation
                        && !ends_within(&entry.job, *seconds)
                    {
                        spare.take(&entry.job.demand);
                    }
                    self.activate(user, place);
                    if !is_preparing {
                        decision.starts.push(Start { id, is_ahead: false });
                    }
                }
                Some(_) if is_preparing => {}
                Some(_) if self.is_to_be_prepared(entry, reservation.as_ref()) => {
                    self.preparing.push((user, place));
                    decision.starts.push(Start { id, is_ahead: true });
                }
                Some(reason) => decision.waits.push((id, reason)),
            }
        }
        decision
    }

    /// The first waiting jobs, in the order in which they are to start.
    fn order(&self) -> Vec<(UserId, Place)> {
        let mut charged: BTreeMap<UserId, f64> = BTreeMap::new();
        for Active { job, .. } in &self.active {
            *charged.entry(job.user).or_default() += self.capacity.share(&job.demand) * CHARGED_SECONDS;
        }
        let mut queues: Vec<_> =
            self.queues.iter().map(|(&user, queue)| (user, queue.iter().peekable())).collect();
        let mut order = Vec::new();
        while order.len() < MAX_EXAMINED {
            let heads = queues.iter_mut().enumerate().filter_map(|(at, (user, queue))| {
                let &(&(priority, submitted), _) = queue.peek()?;
                let used = self.usage.of(*user) + charged.get(user).copied().unwrap_or_default();
                Some((at, priority, used, submitted))
            });
            let first = heads.min_by(|a, b| a.1.cmp(&b.1).then(a.2.total_cmp(&b.2)).then(a.3.cmp(&b.3)));
            let Some((at, ..)) = first else { break };
            let (user, queue) = &mut queues[at];
            let Some((&place, entry)) = queue.next() else { break };
            *charged.entry(*user).or_default() += self.capacity.share(&entry.job.demand) * CHARGED_SECONDS;
            order.push((*user, place));
        }
        order
    }

    /// Why a job cannot start now. The first that does not fit becomes the holder of the reservation.
    fn obstacle(
        &self,
        entry: &Entry,
        is_preparing: bool,
        reservation: &mut Option<Reservation>,
    ) -> Option<Reason> {
        let job = &entry.job;
        if let Some(other) = self.suspect_besides(job) {
            return Some(Reason::Suspect { other: other.to_owned() });
        }
        if entry.is_put_off && !self.active.is_empty() {
            return Some(Reason::HostMemory);
        }
        let of_user = self.active.iter().filter(|active| active.job.user == job.user).count();
        if let Some(limit) = self.capacity.max_jobs_per_user.filter(|&limit| of_user >= limit) {
            return Some(Reason::UserLimit { limit });
        }
        let mut free = self.free();
        if is_preparing {
            free.memory_bytes += self.capacity.within(&job.demand).memory_bytes;
        }
        if let Some(shortage) = free.shortage(&job.demand) {
            if reservation.is_none() {
                *reservation = Some(self.reserve(job));
            }
            return Some(self.named(shortage));
        }
        let Reservation { holder, seconds, spare } = reservation.as_ref()?;
        let delays = !ends_within(job, *seconds) && spare.shortage(&job.demand).is_some();
        delays.then(|| Reason::Reserved { holder: holder.clone() })
    }

    /// The job that must leave before `job` may be under way, because the daemon died while both were.
    fn suspect_besides(&self, job: &Waiting) -> Option<&str> {
        let mut under_way = self.active.iter().map(|active| &active.job).chain(self.being_prepared());
        let other = under_way.find(|other| other.is_suspect && other.id != job.id);
        other.filter(|_| job.is_suspect).map(|other| other.id.as_str())
    }

    /// A shortage of a GPU, with the job that trains on it.
    fn named(&self, mut shortage: Reason) -> Reason {
        if let Reason::Gpu { number, holder } = &mut shortage {
            let uses = |active: &&Active| active.job.demand.gpus.numbers().contains(number);
            let user = self.active.iter().find(uses);
            *holder = user.map(|active| active.job.id.clone());
        }
        shortage
    }

    /// When `job` can start, going by the expected ends of active jobs, and what it will leave then. Preparations end soon.
    fn reserve(&self, job: &Waiting) -> Reservation {
        let end = |active: &Active| active.remaining_seconds.unwrap_or(f64::INFINITY);
        let mut ending: Vec<_> = self.active.iter().collect();
        ending.sort_by(|a, b| end(a).total_cmp(&end(b)));
        let (mut left, mut seconds) = (ending.as_slice(), 0.0);
        let mut free = Free::beside(left, self.capacity);
        while let [next, ..] = left
            && free.shortage(&job.demand).is_some()
        {
            seconds = end(next);
            // Those that end at the same time are all gone then. Of those whose end is unknown, each may be the last: a job
            // that was started beside the reservation must not make room for another one.
            let gone =
                if seconds.is_finite() { left.partition_point(|active| end(active) <= seconds) } else { 1 };
            left = &left[gone..];
            free = Free::beside(left, self.capacity);
        }
        free.take(&job.demand);
        let holder = job.id.clone();
        Reservation { holder, seconds: Some(seconds).filter(|seconds| seconds.is_finite()), spare: free }
    }

    /// Whether a job that cannot train now is prepared now.
    fn is_to_be_prepared(&self, entry: &Entry, reservation: Option<&Reservation>) -> bool {
        let Entry { job, .. } = entry;
        let free = self.free();
        let needed_bytes = self.capacity.within(&job.demand).memory_bytes;
        let delays = |held: &Reservation| held.holder != job.id && held.spare.memory_bytes < needed_bytes;
        !job.is_prepared
            && self.preparing.len() < MAX_PREPARING_AHEAD
            && self.prepared < MAX_PREPARED
            && needed_bytes <= free.memory_bytes
            && !reservation.is_some_and(delays)
            && self.suspect_besides(job).is_none()
    }

    /// Moves a waiting job to the active ones.
    fn activate(&mut self, user: UserId, place: Place) {
        if let Some(Entry { job, .. }) = self.take(user, place) {
            let remaining_seconds = job.expected_seconds;
            self.active.push(Active { job, place, remaining_seconds });
        }
    }

    fn insert(&mut self, place: Place, entry: Entry) {
        self.places.insert(entry.job.id.clone(), (entry.job.user, place));
        self.prepared += usize::from(entry.job.is_prepared);
        self.queues.entry(entry.job.user).or_default().insert(place, entry);
    }

    fn take(&mut self, user: UserId, place: Place) -> Option<Entry> {
        let queue = self.queues.get_mut(&user)?;
        let entry = queue.remove(&place)?;
        if queue.is_empty() {
            self.queues.remove(&user);
        }
        self.places.remove(&entry.job.id);
        self.preparing.retain(|&other| other != (user, place));
        self.prepared -= usize::from(entry.job.is_prepared);
        Some(entry)
    }

    /// The jobs that are being prepared ahead.
    fn being_prepared(&self) -> impl Iterator<Item = &Waiting> {
        self.preparing.iter().filter_map(|(user, place)| Some(&self.queues.get(user)?.get(place)?.job))
    }

    /// What active jobs and preparations leave.
    fn free(&self) -> Free {
        let mut free = Free::beside(&self.active, self.capacity);
        for job in self.being_prepared() {
            let bytes = self.capacity.within(&job.demand).memory_bytes;
            free.memory_bytes = free.memory_bytes.saturating_sub(bytes);
        }
        free
    }
}

/// Whether a job that starts now is expected to end within `seconds`.
fn ends_within(job: &Waiting, seconds: Option<f64>) -> bool {
    matches!((job.expected_seconds, seconds), (Some(expected), Some(seconds)) if expected <= seconds)
}

impl Capacity {
    /// What a job gets: its demand, limited by the capacity.
    fn within<'a>(&self, demand: &'a Demand) -> Granted<'a> {
        let jobs = self.max_jobs.map_or(1, |jobs| u32::try_from(jobs).unwrap_or(u32::MAX));
        let threads = demand.threads.unwrap_or(self.threads.div_ceil(jobs.max(1)));
        Granted {
            memory_bytes: demand.memory_bytes.min(self.memory_bytes),
            threads: threads.min(self.threads),
            gpus: &demand.gpus,
        }
    }

    /// The largest share that a job has of any resource (Ghodsi et al., "Dominant resource fairness", NSDI 2011).
    fn share(&self, demand: &Demand) -> f64 {
        let of = |part: f64, whole: f64| part / whole.max(1.0);
        let Granted { memory_bytes, threads, gpus } = self.within(demand);
        of(memory_bytes as f64, self.memory_bytes as f64)
            .max(of(threads.into(), self.threads.into()))
            .max(of(gpus.len().into(), self.gpus.into()))
            .max(self.max_jobs.map_or(0.0, |jobs| of(1.0, jobs as f64)))
    }
}

impl Free {
    /// What `active` jobs leave.
    fn beside<A: Borrow<Active>>(active: &[A], capacity: Capacity) -> Self {
        let Capacity { memory_bytes, threads, max_jobs, .. } = capacity;
        let jobs = max_jobs.unwrap_or(usize::MAX);
        let mut free = Self { capacity, memory_bytes, threads, jobs, used_gpus: BTreeSet::new() };
        active.iter().for_each(|active| free.take(&active.borrow().job.demand));
        free
    }

    /// The resource that is too short for `demand`.
    fn shortage(&self, demand: &Demand) -> Option<Reason> {
        if self.jobs == 0 {
            return Some(Reason::Jobs { limit: self.capacity.max_jobs.unwrap_or(usize::MAX) });
        }
        let Granted { memory_bytes, threads, gpus } = self.capacity.within(demand);
        if let Some(&number) = gpus.numbers().intersection(&self.used_gpus).next() {
            return Some(Reason::Gpu { number, holder: None });
        }
        let (free_bytes, all_bytes) = (self.memory_bytes, self.capacity.memory_bytes);
        if memory_bytes > free_bytes {
            return Some(Reason::Memory { needed_bytes: memory_bytes, free_bytes, all_bytes });
        }
        let (free, all) = (self.threads, self.capacity.threads);
        (threads > free).then_some(Reason::Threads { needed: threads, free, all })
    }

    fn take(&mut self, demand: &Demand) {
        let Granted { memory_bytes, threads, gpus } = self.capacity.within(demand);
        self.memory_bytes = self.memory_bytes.saturating_sub(memory_bytes);
        self.threads = self.threads.saturating_sub(threads);
        self.jobs = self.jobs.saturating_sub(1);
        self.used_gpus.extend(gpus.numbers());
    }
}
