//! Faults, and schedules of them as data.

use std::time::Duration;

use super::random::{FAULTS_END, Random};
use super::world::World;
use super::{leader, member};

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The daemon of a host ends; whether others notice at once.
    Crash(usize, bool),
    Restart(usize),
    /// SIGSTOP and SIGCONT.
    Stop(usize),
    Continue(usize),
    /// Messages from one host to another are held up, or no longer.
    Block(usize, usize, bool),
    /// The streams between two hosts break; which ends notice at once.
    Break(usize, usize, (bool, bool)),
    /// A host reaches no bucket, or does again.
    CutOff(usize, bool),
    KillWorker(usize),
    /// The next workers of a host never get ready, or do.
    Hang(usize, bool),
    Drain(usize),
}

/// A schedule of faults, the earliest last. All end before [`FAULTS_END`].
pub(super) fn schedule(random: &mut Random, world: &mut World) -> Vec<(Duration, Fault)> {
    let mut faults = Vec::new();
    for host in 0..world.hosts.len() {
        // It joins later.
        if random.one_in(4) {
            world.crash(host, true);
            faults.push((moment(random), Fault::Restart(host)));
        }
        faults.push((FAULTS_END, Fault::Restart(host)));
    }
    let most = if random.one_in(2) { 60 } else { 14 };
    for _ in 0..random.below(most) {
        let pair = draw(random, world);
        let begin = moment(random);
        let end = (begin + Duration::from_millis(50 + random.below(25_000))).min(FAULTS_END);
        faults.push((begin, pair.0));
        faults.extend(pair.1.map(|fault| (end, fault)));
        // Both ways.
        if let (Fault::Block(from, to, _), true) = (pair.0, random.one_in(2)) {
            faults.extend([(begin, Fault::Block(to, from, true)), (end, Fault::Block(to, from, false))]);
        }
    }
    faults.sort_by_key(|(due, _)| std::cmp::Reverse(*due));
    faults
}

fn moment(random: &mut Random) -> Duration {
    Duration::from_millis(random.below(40_000))
}

/// A fault and what ends it.
fn draw(random: &mut Random, world: &World) -> (Fault, Option<Fault>) {
    let (host, other) = (random.host(world), random.host(world));
    match random.below(11) {
        0 | 1 => (Fault::Crash(host, random.one_in(2)), Some(Fault::Restart(host))),
        2 | 3 => (Fault::Stop(host), Some(Fault::Continue(host))),
        4 | 5 if host != other => (Fault::Block(host, other, true), Some(Fault::Block(host, other, false))),
        6 if host != other => (Fault::Break(host, other, (random.one_in(2), random.one_in(2))), None),
        7 => (Fault::CutOff(host, true), Some(Fault::CutOff(host, false))),
        8 => (Fault::Hang(host, true), Some(Fault::Hang(host, false))),
        9 => (Fault::Drain(host), Some(Fault::Crash(host, true))),
        _ => (Fault::KillWorker(host), None),
    }
}

impl World {
    pub(super) fn inflict(&mut self, fault: Fault) {
        self.log(|| format!("fault: {fault:?}"));
        match fault {
            Fault::Crash(host, is_noticed) => self.crash(host, is_noticed),
            Fault::Restart(host) => self.restart(host),
            Fault::Stop(host) => self.hosts[host].is_stopped = self.hosts[host].member.is_some(),
            Fault::Continue(host) => {
                self.hosts[host].is_stopped = false;
                self.hosts[host].resumed = self.now;
            }
            Fault::Block(from, to, is_blocked) => {
                let pair = self.pair(from, to);
                self.blocked[pair] = is_blocked;
            }
            Fault::Break(host, other, ends) => {
                self.break_stream(host, other, ends);
                self.break_stream(other, host, ends);
            }
            Fault::CutOff(host, is_cut_off) => self.hosts[host].is_cut_off = is_cut_off,
            Fault::KillWorker(host) => self.kill_worker(host),
            Fault::Hang(host, hangs) => self.hosts[host].hangs = hangs,
            Fault::Drain(host) => {
                self.member_on(host, member::Event::Drain);
                self.leader_on(host, leader::Event::Drain);
            }
        }
    }
}
