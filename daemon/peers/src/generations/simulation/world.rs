//! Hosts, their streams and the bucket, and everything that can happen to them next.
//!
//! The world is plain data. The random simulation gives each thing that happens a time; the exhaustive search has no time and tries
//! choices at any moment.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::bucket::{Answer, Bucket, Request, Write};
use super::random::Random;
use super::streams::{Item, Stream};
use super::training::{Facts, Image, Phase, Workers};
use super::{Address, GenerationId, Limits, Offer, Role, Snapshot};
use super::{Leader, Member, leader, member};
use crate::HostName;

/// The job, and how its workers behave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Job {
    pub(super) limits: Limits,
    /// The number of all steps.
    pub(super) steps: u64,
    pub(super) image_every: u64,
    pub(super) save_every: u64,
    /// How long workers take for a step.
    pub(super) step_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) job: Job,
    /// The global time, by which the clocks of hosts differ; zero in the search.
    pub(super) now: Duration,
    /// Draws delays; `None` in the search.
    pub(super) random: Option<Random>,
    pub(super) hosts: Vec<Host>,
    /// From the leader of host `i` to the member of host `j`, at `i * hosts + j`.
    pub(super) streams: Vec<Stream>,
    /// Whether messages from host `i` to host `j` are held up.
    pub(super) blocked: Vec<bool>,
    pub(super) bucket: Bucket,
    pub(super) facts: BTreeMap<GenerationId, Facts>,
    /// Failures of workers so far.
    pub(super) failures: u32,
    /// The first broken invariant.
    pub(super) violation: Option<String>,
    pub(super) trace: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host {
    pub(super) name: HostName,
    /// Its clock at the global time zero.
    pub(super) clock: Duration,
    pub(super) offer: Offer,
    /// `None` while its daemon is down.
    pub(super) member: Option<Member>,
    pub(super) leader: Option<Leader>,
    pub(super) is_stopped: bool,
    /// When it was last stopped, until it continued.
    pub(super) resumed: Duration,
    pub(super) workers: Option<Workers>,
    pub(super) image: Option<Image>,
    /// Reports of workers that the daemon has not read.
    pub(super) inbox: VecDeque<(GenerationId, member::WorkerEvent)>,
    /// Whether it reaches no bucket.
    pub(super) is_cut_off: bool,
    /// The generation of its last workers, since its daemon started.
    pub(super) last: Option<GenerationId>,
    /// Whether its next workers never get ready.
    pub(super) hangs: bool,
    pub(super) adapter: Adapter,
}

/// Where the daemon keeps the lease and dials, in the simulation with time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Adapter {
    pub(super) due: Duration,
    /// When the lease was last renewed.
    pub(super) renewed: Duration,
    /// The lease of another host, and since when it has not changed.
    pub(super) seen: Option<(u64, u64, Duration)>,
}

impl World {
    pub(super) fn new(job: Job, offers: &[Offer], random: Option<Random>) -> Self {
        let mut random = random;
        let mut host = |(number, offer): (usize, &Offer)| {
            let clock = random.as_mut().map_or(0, |random| random.below(100_000));
            Host {
                name: HostName::named(["a", "b", "c", "d"][number]),
                clock: Duration::from_millis(clock),
                offer: *offer,
                member: Some(Member::new(*offer)),
                leader: None,
                is_stopped: false,
                resumed: Duration::ZERO,
                workers: None,
                image: None,
                inbox: VecDeque::new(),
                is_cut_off: false,
                last: None,
                hangs: false,
                adapter: Adapter::default(),
            }
        };
        let hosts: Vec<_> = offers.iter().enumerate().map(&mut host).collect();
        let pairs = hosts.len() * hosts.len();
        Self {
            job,
            now: Duration::ZERO,
            random,
            hosts,
            streams: vec![Stream::default(); pairs],
            blocked: vec![false; pairs],
            bucket: Bucket::default(),
            facts: BTreeMap::new(),
            failures: 0,
            violation: None,
            trace: None,
        }
    }

    pub(super) fn pair(&self, from: usize, to: usize) -> usize {
        from * self.hosts.len() + to
    }

    pub(super) fn log(&mut self, text: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:9.3} {}", now.as_secs_f64(), text()));
        }
    }

    pub(super) fn violate(&mut self, text: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(text());
        }
    }

    /// A time between `low` and `high` ms from now, as drawn; now in the search.
    pub(super) fn later(&mut self, low: u64, high: u64) -> Duration {
        let delay = self.random.as_mut().map_or(0, |random| low + random.below(high - low + 1));
        self.now + Duration::from_millis(delay)
    }

    pub(super) fn number(&self, name: &HostName) -> usize {
        self.hosts.iter().position(|host| host.name == *name).expect("a message names a host of the job")
    }

    /// Whether the daemon of a host is up and not stopped.
    pub(super) fn runs(&self, host: usize) -> bool {
        self.hosts[host].member.is_some() && !self.hosts[host].is_stopped
    }

    pub(super) fn leader_on(&mut self, host: usize, event: leader::Event) {
        let local = self.now + self.hosts[host].clock;
        let is_timed = self.random.is_some();
        self.log(|| format!("leader {host}: {event:?}"));
        let Some(leader) = &mut self.hosts[host].leader else { return };
        let actions = if is_timed { leader.on(local, event) } else { leader.on_untimed(event) };
        self.carry_out_leader(host, actions);
    }

    pub(super) fn carry_out_leader(&mut self, host: usize, actions: Vec<leader::Action>) {
        let Some(epoch) = self.hosts[host].leader.as_ref().map(Leader::epoch) else { return };
        self.check_leader(host, &actions);
        for action in actions {
            self.log(|| format!("leader {host} -> {action:?}"));
            match action {
                leader::Action::Send { to, message } => self.send_down(host, &to, epoch, message),
                leader::Action::Close(to) => self.close_at_leader(host, self.number(&to)),
                leader::Action::Commit(snapshot) => self.request(host, epoch, Write::Commit(snapshot)),
                leader::Action::Conclude(outcome) => self.request(host, epoch, Write::Conclude(outcome)),
                leader::Action::Wait(_) | leader::Action::Note { .. } => {}
                leader::Action::ReleaseLease => {
                    if self.bucket.lease.epoch == epoch {
                        self.bucket.lease.holder = None;
                    }
                }
            }
        }
        if self.hosts[host].leader.as_ref().is_some_and(Leader::is_over) {
            self.drop_leader(host);
        }
    }

    /// The leader of a host is gone; its streams end.
    pub(super) fn drop_leader(&mut self, host: usize) {
        self.hosts[host].leader = None;
        (0..self.hosts.len()).for_each(|to| self.close_at_leader(host, to));
    }

    pub(super) fn member_on(&mut self, host: usize, event: member::Event) {
        let local = self.now + self.hosts[host].clock;
        let is_timed = self.random.is_some();
        self.log(|| format!("member {host}: {event:?}"));
        let Some(member) = &mut self.hosts[host].member else { return };
        let actions = if is_timed { member.on(local, event) } else { member.on_untimed(event) };
        self.carry_out_member(host, actions);
    }

    pub(super) fn carry_out_member(&mut self, host: usize, actions: Vec<member::Action>) {
        for action in actions {
            self.log(|| format!("member {host} -> {action:?}"));
            match action {
                member::Action::Send { to, epoch, message } => {
                    let stream = self.pair(self.number(&to), host);
                    let due = self.arrival(self.number(&to), host, true);
                    let stream = &mut self.streams[stream];
                    if stream.is_open_at_member && !stream.is_dead {
                        stream.up.push_back((due, Item::Message(epoch, message)));
                    }
                }
                member::Action::Close(to) => {
                    let due = self.arrival(self.number(&to), host, true);
                    let stream = self.pair(self.number(&to), host);
                    let stream = &mut self.streams[stream];
                    if std::mem::take(&mut stream.is_open_at_member) && !stream.is_dead {
                        stream.down.clear();
                        stream.up.push_back((due, Item::End));
                    }
                }
                member::Action::Spawn { generation, assignment } => self.spawn(host, generation, assignment),
                member::Action::Start { generation, start, senders, addresses } => {
                    let sender = senders.get(&self.hosts[host].name).map(|name| self.number(name));
                    self.start(host, generation, start, (sender.unwrap_or(host), &addresses));
                }
                member::Action::StopAfter(generation, step) => {
                    // Workers that train agree on the step; reducers leave after them.
                    if let Some(facts) = self.facts.get_mut(&generation)
                        && facts.roles[host] == Some(Role::Train)
                    {
                        facts.stop_after(step);
                    }
                }
                member::Action::Explain(..) => {}
                member::Action::Kill(generation) => self.kill(host, generation),
                member::Action::Note(..) => {}
                member::Action::Over(outcome) => {
                    if self.bucket.outcome.as_ref() != Some(&outcome) {
                        self.violate(|| format!("host {host} hears of {outcome:?}, which is not stored"));
                    }
                }
            }
        }
    }

    fn kill(&mut self, host: usize, generation: GenerationId) {
        let due = self.later(1, 300);
        match &mut self.hosts[host].workers {
            Some(workers) if workers.generation == generation => {
                (workers.phase, workers.due) = (Phase::Dying, due);
                workers.saving.clear();
            }
            // They have exited; the report is in the inbox.
            _ => {}
        }
    }

    /// The daemon of a host ends, and its workers with it. Others notice at once if its kernel lives.
    pub(super) fn crash(&mut self, host: usize, is_noticed: bool) {
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            self.break_stream(host, other, (false, is_noticed));
            self.break_stream(other, host, (is_noticed, false));
            let (led, followed) = (self.pair(host, other), self.pair(other, host));
            self.streams[led].is_open_at_leader = false;
            self.streams[followed].is_open_at_member = false;
        }
        let own = self.pair(host, host);
        self.streams[own] = Stream::default();
        let host = &mut self.hosts[host];
        (host.member, host.leader, host.workers, host.image) = (None, None, None, None);
        (host.is_stopped, host.hangs, host.adapter) = (false, false, Adapter::default());
        host.last = None;
        host.inbox.clear();
    }

    pub(super) fn restart(&mut self, host: usize) {
        let due = self.later(10, 500);
        let host = &mut self.hosts[host];
        if host.member.is_none() {
            (host.member, host.resumed) = (Some(Member::new(host.offer)), self.now);
            host.adapter.due = due;
        }
    }

    fn request(&mut self, host: usize, epoch: u64, write: Write) {
        let due = self.later(5, 200);
        self.bucket.requests.push_back(Request { due, host, epoch, write, answer: None });
    }

    /// The bucket handles a request, or its answer arrives.
    pub(super) fn advance_request(&mut self, index: usize, fails: bool) {
        let due = self.later(5, 200);
        let Some(request) = self.bucket.requests.get_mut(index) else { return };
        let (host, epoch, write) = (request.host, request.epoch, request.write.clone());
        let Some(answer) = request.answer else {
            request.due = due;
            let answer = if fails { Answer::Failed } else { self.apply(epoch, &write) };
            self.log(|| format!("bucket: {write:?} of {host} in {epoch}: {answer:?}"));
            if let Some(request) = self.bucket.requests.get_mut(index) {
                request.answer = Some(answer);
            }
            return;
        };
        self.bucket.requests.remove(index);
        if self.hosts[host].leader.as_ref().is_none_or(|leader| leader.epoch() != epoch) {
            return;
        }
        match (answer, write) {
            (Answer::Deposed, _) => self.leader_on(host, leader::Event::LeaseLost),
            (Answer::Done, Write::Commit(of)) => self.leader_on(host, leader::Event::Committed(of)),
            (Answer::Failed, Write::Commit(of)) => self.leader_on(host, leader::Event::NotCommitted(of)),
            (Answer::Done, Write::Conclude(_)) => self.leader_on(host, leader::Event::Concluded),
            // The daemon retries until it has an answer.
            (Answer::Failed, write) => self.request(host, epoch, write),
        }
    }

    /// The compare-and-swap.
    fn apply(&mut self, epoch: u64, write: &Write) -> Answer {
        if self.bucket.lease.epoch != epoch {
            return Answer::Deposed;
        }
        match write {
            Write::Commit(snapshot) => self.commit(*snapshot),
            Write::Conclude(outcome) => {
                self.check_outcome(outcome);
                self.bucket.outcome = Some(outcome.clone());
            }
        }
        Answer::Done
    }

    fn commit(&mut self, snapshot: Snapshot) {
        let whole = self.facts.get(&snapshot.generation).and_then(|facts| facts.whole(snapshot.step));
        let Some(model) = whole.cloned() else {
            return self.violate(|| format!("(4) {snapshot:?} is committed, but not whole"));
        };
        self.check_commit(snapshot, &model);
        self.bucket.checkpoint = Some((snapshot, model));
    }

    /// The daemon of a host takes the lease, reads the run and leads.
    pub(super) fn take_lease(&mut self, host: usize) {
        if self.hosts[host].leader.is_some() {
            self.drop_leader(host);
        }
        let lease = &mut self.bucket.lease;
        lease.epoch += 1;
        lease.renewals += 1;
        lease.holder = Some(host);
        let epoch = lease.epoch;
        self.log(|| format!("host {host} takes the lease of epoch {epoch}"));
        if let Some(outcome) = self.bucket.outcome.clone() {
            return self.member_on(host, member::Event::Over(outcome));
        }
        let checkpoint = self.bucket.checkpoint.as_ref().map(|(snapshot, _)| *snapshot);
        let now = self.now + self.hosts[host].clock;
        self.hosts[host].leader = Some(Leader::new(now, epoch, self.job.limits, checkpoint));
    }

    /// The address of a worker names its generation and rank.
    pub(super) fn address(generation: GenerationId, rank: u32) -> Address {
        let GenerationId { epoch, number } = generation;
        [epoch as u8, number as u8, rank as u8].into()
    }
}
