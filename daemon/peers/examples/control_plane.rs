//! The cost of the control plane of a job with many hosts: the leader's processor time for beats, and for a new generation.
//!
//! ```sh
//! cargo run --release -p millstream-peers --example control_plane -- 10 100 1000
//! ```
//!
//! Hosts are state machines in this process, in virtual time, and messages are values: what is measured is the leader, without
//! the network. Each line has the median of several runs.

// A benchmark prints its results.
#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use millstream_peers::HostName;
use millstream_peers::generations::leader::{self, Leader};
use millstream_peers::generations::member::{self, Member, WorkerEvent};
use millstream_peers::generations::{BEAT, Limits, Offer, Reason, Role, SETTLE, ToLeader, ToMember};

/// The ranks of a host.
const RANKS: u32 = 8;

/// The seconds of training that are simulated.
const SECONDS: u32 = 30;

const RUNS: usize = 5;

const EPOCH: u64 = 1;

/// A job with its hosts.
struct Job {
    now: Duration,
    leader: Leader,
    members: BTreeMap<HostName, Member>,
    /// Events that have not been handled.
    to_leader: VecDeque<leader::Event>,
    to_members: VecDeque<(HostName, member::Event)>,
    cost: Cost,
}

/// What the leader did.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// Messages from and to hosts.
    messages: u64,
    time: Duration,
}

impl Job {
    fn new(hosts: u32) -> Self {
        let name = |number| HostName::parse(&format!("host-{number}")).ok();
        let names: Vec<_> = (0..hosts).filter_map(name).collect();
        let limits = Limits { min: 1, max: hosts * RANKS, parts: None, has_reducers: false };
        let leader = Leader::new(Duration::ZERO, EPOCH, limits, None);
        let to_leader = names.iter().cloned().map(leader::Event::Opened).collect();
        let members = names
            .into_iter()
            .map(|name| (name, Member::new(Offer { role: Role::Train, count: RANKS })))
            .collect();
        let (to_members, cost) = (VecDeque::new(), Cost::default());
        Self { now: Duration::ZERO, leader, members, to_leader, to_members, cost }
    }

    /// Lets a time pass, and handles all that happens then.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.to_leader.push_back(leader::Event::Tick);
        let ticks = self.members.keys().cloned().map(|name| (name, member::Event::Tick));
        self.to_members.extend(ticks);
        self.settle();
    }

    fn settle(&mut self) {
        while !self.to_leader.is_empty() || !self.to_members.is_empty() {
            while let Some(event) = self.to_leader.pop_front() {
                self.lead(event);
            }
            while let Some((name, event)) = self.to_members.pop_front() {
                self.follow(name, event);
            }
        }
    }

    fn lead(&mut self, event: leader::Event) {
        let is_message = matches!(event, leader::Event::Message { .. });
        let began = Instant::now();
        let actions = self.leader.on(self.now, event);
        self.cost.time += began.elapsed();
        self.cost.messages += u64::from(is_message);
        for action in actions {
            if let leader::Action::Send { to, message } = action {
                self.cost.messages += 1;
                // The leader is on the first host; all streams are its.
                let from = self.members.keys().next().cloned().unwrap_or_else(|| to.clone());
                self.to_members.push_back((to, member::Event::Message { from, epoch: EPOCH, message }));
            }
        }
    }

    fn follow(&mut self, name: HostName, event: member::Event) {
        let Some(member) = self.members.get_mut(&name) else { return };
        for action in member.on(self.now, event) {
            let event = match action {
                member::Action::Send { epoch, message, .. } => {
                    let event = leader::Event::Message { from: name.clone(), epoch, message };
                    self.to_leader.push_back(event);
                    continue;
                }
                member::Action::Spawn { generation, .. } => {
                    let addresses = (0..RANKS).map(|rank| rank.to_le_bytes().as_slice().into()).collect();
                    member::Event::Workers(generation, WorkerEvent::Ready(addresses))
                }
                member::Action::Kill(generation) => member::Event::Workers(generation, WorkerEvent::Gone),
                _ => continue,
            };
            self.to_members.push_back((name.clone(), event));
        }
    }

    /// What the leader did since the last call.
    fn take_cost(&mut self) -> Cost {
        std::mem::take(&mut self.cost)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A run: messages a second, the leader's share of a CPU for them, and the processor time of a new generation in ms.
fn run(hosts: u32) -> [f64; 3] {
    let mut job = Job::new(hosts);
    job.settle();
    for _ in 0..=SETTLE.as_secs() {
        job.pass(BEAT);
    }
    assert!(job.leader.generation().is_some(), "the first generation runs");
    job.take_cost();
    for _ in 0..SECONDS {
        job.pass(BEAT);
    }
    let beats = job.take_cost();

    let before = job.leader.generation();
    let last = job.members.keys().next_back().cloned();
    if let (Some(name), Some(generation)) = (last, before) {
        let died = WorkerEvent::Died(Reason::new("killed"));
        job.to_members.push_back((name, member::Event::Workers(generation, died)));
    }
    job.settle();
    while job.leader.generation().is_none() || job.leader.generation() == before {
        job.pass(BEAT);
    }
    let next = job.take_cost();
    let seconds = f64::from(SECONDS);
    [beats.messages as f64 / seconds, beats.time.as_secs_f64() / seconds, next.time.as_secs_f64() * 1e3]
}

fn main() {
    let hosts = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let hosts: Vec<u32> = hosts.collect();
    let sizes = [size_of::<ToMember>(), size_of::<ToLeader>()];
    println!("messages in memory: {} and {} bytes; {RANKS} ranks a host; {RUNS} runs", sizes[0], sizes[1]);
    println!("{:>6} {:>12} {:>14} {:>18}", "hosts", "messages/s", "CPU of beats", "new generation");
    for hosts in if hosts.is_empty() { vec![10, 100, 1000] } else { hosts } {
        let runs: Vec<_> = (0..RUNS).map(|_| run(hosts)).collect();
        let [messages, cpu, generation] =
            [0, 1, 2].map(|figure| median(runs.iter().map(|run| run[figure]).collect()));
        println!("{hosts:>6} {messages:>12.0} {:>12.3} % {generation:>15.1} ms", cpu * 100.0);
    }
}
