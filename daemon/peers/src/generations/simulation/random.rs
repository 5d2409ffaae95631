//! Random schedules of faults in virtual time.

use std::time::Duration;

use super::faults::{Fault, schedule};
use super::world::{Job, World};
use super::{Limits, Offer, Outcome, Role, leader, member};

/// How long a daemon respects the unchanged lease of another one, and how long its own counts after a renewal.
const EXPIRY: Duration = Duration::from_secs(10);
const VALID: Duration = Duration::from_secs(8);
const RENEWAL: Duration = Duration::from_secs(3);

/// From then on nothing fails any more.
pub(super) const FAULTS_END: Duration = Duration::from_secs(45);

/// When the job must have ended.
const LIVENESS_LIMIT: Duration = Duration::from_secs(400);

/// The generator SplitMix64.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) fn host(&mut self, world: &World) -> usize {
        self.below(world.hosts.len() as u64) as usize
    }

    /// True once in `count` times.
    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Down(usize, usize),
    Up(usize, usize),
    Work(usize),
    Save(usize),
    Inbox(usize),
    Leader(usize),
    Member(usize),
    Adapter(usize),
    Request(usize),
    Fault,
}

/// How a schedule ended.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) events: u64,
    pub(super) generations: usize,
    pub(super) epochs: u64,
    pub(super) has_failed: bool,
    pub(super) seconds: u64,
}

/// A job and its hosts.
fn world(random: &mut Random) -> World {
    let hosts = 2 + random.below(3) as usize;
    let has_reducers = hosts > 2 && random.one_in(3);
    let offers: Vec<_> = (0..hosts)
        .map(|host| {
            let role = if has_reducers && host == 1 { Role::Reduce } else { Role::Train };
            Offer { role, count: 1 + random.below(2) as u32 }
        })
        .collect();
    let trains = offers.iter().filter(|offer| offer.role == Role::Train);
    let sum: u32 = trains.map(|offer| offer.count).sum();
    let min = 1 + random.below(u64::from(sum.min(3))) as u32;
    let max = min + random.below(4) as u32;
    let divides = |parts: &u32| (min..=max.min(sum)).any(|ranks| parts.is_multiple_of(ranks));
    let parts = random.one_in(3).then_some(4).filter(divides);
    let steps = 60 + random.below(140);
    let (image_every, save_every) = (1 + random.below(8), 3 + random.below(15));
    let step_ms = 100 + random.below(500);
    let limits = Limits { min, max, parts, has_reducers };
    let job = Job { limits, steps, image_every, save_every, step_ms };
    World::new(job, &offers, Some(Random(random.next())))
}

/// Runs the schedule of `seed`, and returns the broken invariant and the trace if there is one.
pub(super) fn run(seed: u64, traces: bool) -> Result<Report, (String, Vec<String>)> {
    let mut random = Random(seed);
    let mut world = world(&mut random);
    world.trace = traces.then(Vec::new);
    let mut faults = schedule(&mut random, &mut world);
    let mut report = Report::default();
    while world.violation.is_none() && !is_over(&world) {
        let Some((due, next)) = next(&world, &faults) else {
            world.violate(|| "nothing can happen any more".into());
            break;
        };
        world.now = world.now.max(due);
        if world.now > LIVENESS_LIMIT {
            world.violate(|| "(7) the job has not ended".into());
        }
        perform(&mut world, next, &mut faults);
        world.check();
        report.events += 1;
    }
    report.generations = world.facts.len();
    report.epochs = world.bucket.lease.epoch;
    report.seconds = world.now.as_secs();
    report.has_failed = matches!(world.bucket.outcome, Some(Outcome::Failed(_)));
    match world.violation {
        None => Ok(report),
        Some(violation) => Err((violation, world.trace.unwrap_or_default())),
    }
}

/// Whether the job has ended, and faults too.
fn is_over(world: &World) -> bool {
    world.bucket.outcome.is_some()
        && world.hosts.iter().all(|host| host.leader.is_none() && host.workers.is_none())
}

/// The earliest thing that can happen, and when.
fn next(world: &World, faults: &[(Duration, Fault)]) -> Option<(Duration, Next)> {
    let mut first = faults.last().map(|(due, _)| (*due, Next::Fault));
    let mut add = |due: Duration, next: Next| {
        if first.is_none_or(|(earliest, _)| due.max(world.now) < earliest) {
            first = Some((due.max(world.now), next));
        }
    };
    for (index, request) in world.bucket.requests.iter().enumerate() {
        let waits = match request.answer {
            None => world.hosts[request.host].is_cut_off,
            Some(_) => world.hosts[request.host].is_cut_off || world.hosts[request.host].is_stopped,
        };
        if !waits {
            add(request.due, Next::Request(index));
        }
    }
    for (number, host) in world.hosts.iter().enumerate() {
        if let Some(workers) = &host.workers {
            if world.may_work(number) {
                add(workers.due, Next::Work(number));
            }
            if world.may_save(number) {
                add(workers.save_due, Next::Save(number));
            }
        }
        for other in 0..world.hosts.len() {
            let stream = &world.streams[world.pair(number, other)];
            let to_member = stream.down.front().filter(|_| !world.blocked[world.pair(number, other)]);
            if let Some((due, _)) = to_member.filter(|_| world.runs(other)) {
                add(*due, Next::Down(number, other));
            }
            let to_leader = stream.up.front().filter(|_| !world.blocked[world.pair(other, number)]);
            if let Some((due, _)) = to_leader.filter(|_| world.runs(number)) {
                add(*due, Next::Up(number, other));
            }
        }
        if !world.runs(number) {
            continue;
        }
        add(host.adapter.due, Next::Adapter(number));
        if !host.inbox.is_empty() {
            add(world.now, Next::Inbox(number));
        }
        let global = |local: Duration| local.saturating_sub(host.clock);
        if let Some(due) = host.leader.as_ref().and_then(|leader| leader.next_deadline()) {
            add(global(due), Next::Leader(number));
        }
        if let Some(due) = host.member.as_ref().and_then(|member| member.next_deadline()) {
            add(global(due), Next::Member(number));
        }
    }
    first
}

fn perform(world: &mut World, next: Next, faults: &mut Vec<(Duration, Fault)>) {
    match next {
        Next::Down(leader, member) => world.deliver_down(leader, member),
        Next::Up(leader, member) => world.deliver_up(leader, member),
        Next::Work(host) => world.work(host),
        Next::Save(host) => world.save(host),
        Next::Inbox(host) => world.read_inbox(host),
        Next::Leader(host) => world.leader_on(host, leader::Event::Tick),
        Next::Member(host) => world.member_on(host, member::Event::Tick),
        Next::Adapter(host) => adapt(world, host),
        Next::Request(index) => {
            let fails =
                world.now < FAULTS_END && world.random.as_mut().is_some_and(|random| random.one_in(10));
            world.advance_request(index, fails);
        }
        Next::Fault => {
            if let Some((_, fault)) = faults.pop() {
                world.inflict(fault);
            }
        }
    }
}

/// The daemon of a host dials other hosts and renews the lease, or tries to take it.
fn adapt(world: &mut World, host: usize) {
    world.hosts[host].adapter.due = world.later(300, 1000);
    if world.hosts[host].leader.is_some() {
        lead(world, host);
    } else {
        campaign(world, host);
    }
}

fn lead(world: &mut World, host: usize) {
    let (now, lease) = (world.now, world.bucket.lease.clone());
    let node = &mut world.hosts[host];
    let epoch = node.leader.as_ref().map_or(0, |leader| leader.epoch());
    let age = now - node.adapter.renewed;
    let mut is_lost = age >= VALID;
    if age >= RENEWAL && !node.is_cut_off {
        is_lost |= lease.epoch != epoch || lease.holder != Some(host);
        node.adapter.renewed = now;
        world.bucket.lease.renewals += u64::from(!is_lost);
    }
    if is_lost {
        return world.leader_on(host, leader::Event::LeaseLost);
    }
    for to in 0..world.hosts.len() {
        if world.may_dial(host, to) {
            world.dial(host, to);
        }
    }
}

fn campaign(world: &mut World, host: usize) {
    let (now, lease) = (world.now, world.bucket.lease.clone());
    let node = &mut world.hosts[host];
    let may_lead = node.member.as_ref().is_some_and(|member| member.may_lead());
    if !may_lead || node.is_cut_off {
        node.adapter.seen = None;
        return;
    }
    let version = (lease.epoch, lease.renewals);
    let is_free = lease.holder.is_none_or(|holder| holder == host);
    match node.adapter.seen {
        _ if is_free => {}
        Some((epoch, renewals, since)) if (epoch, renewals) == version => {
            if now - since < EXPIRY {
                return;
            }
        }
        _ => {
            node.adapter.seen = Some((lease.epoch, lease.renewals, now));
            return;
        }
    }
    (node.adapter.seen, node.adapter.renewed) = (None, now);
    world.take_lease(host);
}
