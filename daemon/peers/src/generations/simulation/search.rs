//! A search of everything that can happen in a small world, within a budget.
//!
//! Time is abstract. A deadline whose cause is real, such as the silence of a dead host, may pass at any moment; a false one,
//! such as that of a slow host, is a fault. Beats are left out: they only show that time passes.
//!
//! All orders of events with two faults are too many. So the search is bounded as in delay-bounded scheduling (Emmi, Qadeer,
//! Rakamaric, POPL 2011): events have a usual order, each other choice costs a *delay*, and each fault may strike at any moment.
//! It starts when the first generation has begun. Workers start, restore and save at once, and a daemon's messages to itself
//! arrive at once.
//!
//! The search is depth-first and visits each state once, by the hash of the world and the budget left. A state in which nothing
//! can happen must be the job's end.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::super::hosts::HostTimer;
use super::super::leader::Timer;
use super::super::member;
use super::streams::Item;
use super::training::Phase;
use super::world::World;
use super::{ToMember, leader};

#[derive(Clone, Debug)]
enum Choice {
    Down(usize, usize),
    Up(usize, usize),
    Work(usize),
    Save(usize),
    Dial(usize, usize),
    Take(usize),
    LeaseLost(usize),
    Request(usize, bool),
    Leader(usize, Timer),
    Silence(usize),
    Crash(usize, bool),
    Restart(usize),
    Break(usize, usize, (bool, bool)),
    KillWorker(usize),
    Drain(usize),
}

/// How often a schedule may deviate from the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// Faults.
    pub(super) faults: u32,
    /// Choices other than the usual one, each a delay of everything that usually comes first; `u32::MAX` is unlimited.
    pub(super) delays: u32,
}

impl Budget {
    fn pay(self, cost: Self) -> Option<Self> {
        let faults = self.faults.checked_sub(cost.faults)?;
        let delays = match self.delays {
            u32::MAX => u32::MAX,
            delays => delays.checked_sub(cost.delays)?,
        };
        Some(Self { faults, delays })
    }
}

/// A world, what it may still do, and the choices not yet tried.
type Step = (World, Budget, Vec<(Choice, Budget)>);

/// What a search has found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) states: usize,
    pub(super) ends: usize,
    /// A broken invariant, and how it came about.
    pub(super) violation: Option<(String, Vec<String>)>,
}

/// Searches all states that `world` can reach within a budget.
pub(super) fn search(world: World, budget: Budget) -> Found {
    let mut found = Found { states: 0, ends: 0, violation: None };
    let mut visited = HashSet::new();
    let mut path: Vec<Step> = Vec::new();
    let first = choices(&world, budget);
    path.push((world, budget, first));
    while let Some((world, _, left)) = path.last_mut() {
        let Some((choice, budget)) = left.pop() else {
            path.pop();
            continue;
        };
        let mut next = world.clone();
        apply(&mut next, &choice);
        settle(&mut next);
        next.check();
        next.forget();
        if !visited.insert(hash(&next, budget)) {
            continue;
        }
        found.states += 1;
        let choices = choices(&next, budget);
        let is_stuck = choices.iter().all(|(_, left)| left.faults < budget.faults);
        if is_stuck && !is_over(&next) {
            next.violate(|| "nothing can happen any more".into());
        }
        found.ends += usize::from(is_stuck);
        if let Some(violation) = next.violation.clone() {
            found.violation = Some((violation, story(&path, &choice)));
            return found;
        }
        path.push((next, budget, choices));
    }
    found
}

/// What happened on a path, and then by `last`.
fn story(path: &[Step], last: &Choice) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, (world, _, _)) in path.iter().enumerate() {
        // The choice that led from this world to the next one is the one whose result has that hash.
        let next = path.get(index + 1).map(|(next, budget, _)| hash(next, *budget));
        let taken = match next {
            None => Some(last.clone()),
            Some(next) => choices(world, path[index].1).into_iter().find_map(|(choice, budget)| {
                let mut after = world.clone();
                apply(&mut after, &choice);
                settle(&mut after);
                after.check();
                after.forget();
                (hash(&after, budget) == next).then_some(choice)
            }),
        };
        let Some(taken) = taken else { continue };
        let mut world = world.clone();
        world.trace = Some(vec![format!("{taken:?}")]);
        apply(&mut world, &taken);
        settle(&mut world);
        lines.extend(world.trace.unwrap_or_default());
    }
    lines
}

fn hash(world: &World, budget: Budget) -> u64 {
    let mut hasher = DefaultHasher::new();
    (world, budget).hash(&mut hasher);
    hasher.finish()
}

fn is_over(world: &World) -> bool {
    let is_idle = world.hosts.iter().all(|host| host.leader.is_none() && host.workers.is_none());
    is_idle && world.bucket.outcome.is_some()
}

/// Everything that can happen, and the budget that it leaves. The usual choice is the first.
fn choices(world: &World, budget: Budget) -> Vec<(Choice, Budget)> {
    let mut all = Vec::new();
    for host in 0..world.hosts.len() {
        add_host(world, host, &mut all);
        add_leader(world, host, &mut all);
        for other in (0..world.hosts.len()).filter(|other| *other != host) {
            add_stream(world, (host, other), &mut all);
        }
    }
    for (index, request) in world.bucket.requests.iter().enumerate() {
        all.push((Choice::Request(index, false), 0));
        if request.answer.is_none() {
            all.push((Choice::Request(index, true), 1));
        }
    }
    all.sort_by_key(|(choice, faults)| (*faults, choice.order()));
    let costs = all.into_iter().enumerate().map(|(index, (choice, faults))| {
        let delays = u32::from(index > 0 && faults == 0);
        (choice, Budget { faults, delays })
    });
    let mut all: Vec<_> = costs.filter_map(|(choice, cost)| Some((choice, budget.pay(cost)?))).collect();
    if budget.faults == 0
        && let Some(choice) = all.iter().find(|(choice, _)| is_independent(world, choice))
    {
        all = vec![(choice.0.clone(), budget)];
    }
    all
}

impl Choice {
    /// Messages usually arrive before workers act, and long before anything times out.
    fn order(&self) -> u32 {
        match self {
            Self::Down(..) | Self::Up(..) => 0,
            Self::Request(..) => 1,
            Self::Work(..) | Self::Save(..) => 2,
            Self::Dial(..) => 3,
            Self::LeaseLost(..) => 4,
            Self::Silence(..) | Self::Leader(_, Timer::Host(HostTimer::Silence(_))) => 5,
            Self::Leader(..) => 6,
            Self::Take(..) => 7,
            Self::Restart(..) => 8,
            Self::Crash(..) | Self::Break(..) | Self::KillWorker(..) | Self::Drain(..) => 9,
        }
    }
}

/// Whether `choice` commutes with everything that can happen before it, if nothing fails any more: it delivers a message of the only
/// leader to a member whose workers do nothing by themselves.
fn is_independent(world: &World, choice: &Choice) -> bool {
    let &Choice::Down(leader, to) = choice else { return false };
    let is_only_leader = world.hosts.iter().filter(|host| host.leader.is_some()).count() == 1
        && world.hosts[leader]
            .leader
            .as_ref()
            .is_some_and(|leader| leader.epoch() == world.bucket.lease.epoch);
    let others = (0..world.hosts.len()).filter(|other| *other != leader);
    let is_only_stream = others.into_iter().all(|other| world.streams[world.pair(other, to)].down.is_empty());
    let idle = |phase: Phase| matches!(phase, Phase::Ready | Phase::AtEnd);
    let is_idle = world.hosts[to].workers.as_ref().is_none_or(|workers| idle(workers.phase));
    is_only_leader && is_only_stream && is_idle
}

/// Lets everything without a fault happen in a fixed order, until the first generation has begun.
pub(super) fn begin(mut world: World) -> World {
    settle(&mut world);
    while world.facts.values().all(|facts| facts.start.is_none()) {
        let (choice, _) = choices(&world, Budget { faults: 0, delays: 0 }).remove(0);
        apply(&mut world, &choice);
        settle(&mut world);
    }
    world
}

fn add_host(world: &World, host: usize, all: &mut Vec<(Choice, u32)>) {
    let node = &world.hosts[host];
    let Some(member) = &node.member else { return all.push((Choice::Restart(host), 0)) };
    if world.may_work(host) {
        all.push((Choice::Work(host), 0));
    }
    if world.may_save(host) {
        all.push((Choice::Save(host), 0));
    }
    // The lease of a living leader runs out if that is stopped, or cut off from the bucket.
    let holder = world.bucket.lease.holder.filter(|holder| {
        let leader = world.hosts[*holder].leader.as_ref();
        leader.is_some_and(|leader| leader.epoch() == world.bucket.lease.epoch)
    });
    if node.leader.is_none() && (member.may_lead() || holder.is_some()) {
        all.push((Choice::Take(host), u32::from(holder.is_some())));
    }
    all.extend([(Choice::Crash(host, true), 1), (Choice::Crash(host, false), 1), (Choice::Drain(host), 1)]);
    if node.workers.as_ref().is_some_and(|workers| workers.phase != Phase::Dying) {
        all.push((Choice::KillWorker(host), 1));
    }
    if member.timers().any(|(_, timer)| timer == member::Timer::Silence) {
        let follows = |leader: usize| {
            let stream = &world.streams[world.pair(leader, host)];
            stream.is_open_at_member && stream.is_open_at_leader && !stream.is_dead
        };
        let is_false = (0..world.hosts.len()).any(follows);
        all.push((Choice::Silence(host), u32::from(is_false)));
    }
}

fn add_leader(world: &World, host: usize, all: &mut Vec<(Choice, u32)>) {
    let Some(leader) = &world.hosts[host].leader else { return };
    if leader.epoch() < world.bucket.lease.epoch {
        all.push((Choice::LeaseLost(host), 0));
    }
    for (_, timer) in leader.timers() {
        let cost = match &timer {
            Timer::Host(HostTimer::Silence(name)) => {
                let other = world.number(name);
                let stream = &world.streams[world.pair(host, other)];
                if other == host {
                    continue;
                }
                u32::from(stream.is_open_at_member && !stream.is_dead)
            }
            Timer::Stage => 1,
            Timer::Host(_) | Timer::Wait | Timer::Commit => 0,
        };
        all.push((Choice::Leader(host, timer), cost));
    }
}

fn add_stream(world: &World, (host, other): (usize, usize), all: &mut Vec<(Choice, u32)>) {
    if world.may_dial(host, other) {
        all.push((Choice::Dial(host, other), 0));
    }
    let stream = &world.streams[world.pair(host, other)];
    if !stream.down.is_empty() && world.runs(other) {
        all.push((Choice::Down(host, other), 0));
    }
    if !stream.up.is_empty() && world.runs(host) {
        all.push((Choice::Up(host, other), 0));
    }
    if stream.is_open_at_leader && stream.is_open_at_member && !stream.is_dead {
        let ends = [(true, true), (true, false), (false, true), (false, false)];
        all.extend(ends.map(|ends| (Choice::Break(host, other, ends), 1)));
    }
}

fn apply(world: &mut World, choice: &Choice) {
    match choice.clone() {
        Choice::Down(host, to) => world.deliver_down(host, to),
        Choice::Up(host, from) => world.deliver_up(host, from),
        Choice::Work(host) => world.work(host),
        Choice::Save(host) => world.save(host),
        Choice::Dial(host, to) => {
            world.dial(host, to);
            world.deliver_down(host, to);
        }
        Choice::Take(host) => world.take_lease(host),
        Choice::LeaseLost(host) => world.leader_on(host, leader::Event::LeaseLost),
        Choice::Request(index, fails) => world.advance_request(index, fails),
        Choice::Leader(host, timer) => world.fire(host, timer),
        Choice::Silence(host) => world.fire_silence(host),
        Choice::Crash(host, is_noticed) => world.crash(host, is_noticed),
        Choice::Restart(host) => world.restart(host),
        Choice::Break(host, to, ends) => world.break_stream(host, to, ends),
        Choice::KillWorker(host) => world.kill_worker(host),
        Choice::Drain(host) => world.inflict(super::faults::Fault::Drain(host)),
    }
}

/// Does at once what happens on one host without delay, and drops what means nothing without time.
fn settle(world: &mut World) {
    loop {
        for stream in &mut world.streams {
            stream.down.retain(|(_, item)| !matches!(item, Item::Message(_, ToMember::Answer { .. })));
            if !stream.is_open_at_leader {
                stream.up.clear();
            }
            if !stream.is_open_at_member {
                stream.down.clear();
            }
        }
        let local = (0..world.hosts.len()).find(|host| {
            let stream = &world.streams[world.pair(*host, *host)];
            !stream.down.is_empty() || !stream.up.is_empty() || world.may_dial(*host, *host)
        });
        if let Some(host) = (0..world.hosts.len()).find(|host| world.is_prompt(*host)) {
            if world.may_save(host) {
                world.save(host);
            } else {
                world.work(host);
            }
            continue;
        }
        let settled = (0..world.hosts.len()).find_map(|host| {
            let mut timers = world.hosts[host].leader.as_ref()?.timers();
            let timer = timers.find(|(_, timer)| matches!(timer, Timer::Host(HostTimer::Settled(_))))?.1;
            Some((host, timer))
        });
        if let Some((host, timer)) = settled {
            world.fire(host, timer);
            continue;
        }
        let Some(host) = local else { return };
        let stream = &world.streams[world.pair(host, host)];
        if !stream.down.is_empty() {
            world.deliver_down(host, host);
        } else if !stream.up.is_empty() {
            world.deliver_up(host, host);
        } else {
            world.dial(host, host);
        }
    }
}

impl World {
    /// Whether workers do at once what they do next: a delay would be that of a message or of another step.
    fn is_prompt(&self, host: usize) -> bool {
        let Some(workers) = &self.hosts[host].workers else { return false };
        let is_starting = matches!(workers.phase, Phase::Spawning | Phase::Loading(..));
        self.may_save(host) || is_starting && self.may_work(host)
    }

    fn fire(&mut self, host: usize, timer: Timer) {
        self.log(|| format!("leader {host}: {timer:?}"));
        let Some(leader) = &mut self.hosts[host].leader else { return };
        let actions = leader.fire(timer);
        self.carry_out_leader(host, actions);
    }

    fn fire_silence(&mut self, host: usize) {
        self.log(|| format!("member {host}: silence"));
        let Some(member) = &mut self.hosts[host].member else { return };
        let actions = member.fire(member::Timer::Silence);
        self.carry_out_member(host, actions);
    }

    /// Forgets what no check needs, so that equal states are recognised.
    fn forget(&mut self) {
        let begun = self.facts.iter().rev().find(|(_, facts)| facts.start.is_some()).map(|(id, _)| *id);
        let mut needed: Vec<_> = begun.into_iter().collect();
        needed.extend(self.hosts.iter().filter_map(|host| Some(host.workers.as_ref()?.generation)));
        needed.extend(self.hosts.iter().filter_map(|host| host.leader.as_ref()?.generation()));
        needed.extend(self.bucket.requests.iter().filter_map(|request| match request.write {
            super::bucket::Write::Commit(of) => Some(of.generation),
            super::bucket::Write::Conclude(_) => None,
        }));
        self.facts.retain(|id, _| needed.contains(id));
    }
}
