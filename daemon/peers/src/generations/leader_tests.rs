//! The leader's decisions, one at a time.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::leader::{Action, Event, Leader};
use super::tries::Tries;
use super::{
    Address, END_TIMEOUT, GenerationId, JOIN_TIMEOUT, Limits, Offer, Outcome, Reason, Role, SETTLE, SILENCE,
    Snapshot, Start, ToLeader, ToMember, When,
};
use crate::HostName;

const EPOCH: u64 = 7;

/// A leader, the time, and what it has asked for.
struct Led {
    leader: Leader,
    now: Duration,
    actions: Vec<Action>,
}

impl Led {
    fn new((min, max): (u32, u32), checkpoint: Option<Snapshot>) -> Self {
        Self::with(Limits { min, max, parts: None, has_reducers: false }, checkpoint)
    }

    fn with(limits: Limits, checkpoint: Option<Snapshot>) -> Self {
        let leader = Leader::new(Duration::ZERO, EPOCH, limits, checkpoint);
        Self { leader, now: Duration::ZERO, actions: Vec::new() }
    }

    fn on(&mut self, event: Event) -> &[Action] {
        self.actions = self.leader.on(self.now, event);
        &self.actions
    }

    fn hear(&mut self, host: &str, message: ToLeader) -> &[Action] {
        self.on(Event::Message { from: HostName::named(host), epoch: EPOCH, message })
    }

    /// A host with a rank connects.
    fn connect(&mut self, host: &str, holds: Option<Snapshot>) {
        self.connect_as(host, Role::Train, holds);
    }

    /// A host with a rank or a reducer connects.
    fn connect_as(&mut self, host: &str, role: Role, holds: Option<Snapshot>) {
        self.on(Event::Opened(HostName::named(host)));
        let (offer, tries) = (Offer { role, count: 1 }, Tries::default());
        self.hear(host, ToLeader::Hello { sent: self.now, offer, holds, tries });
    }

    /// Time passes while these hosts send beats.
    fn pass(&mut self, time: Duration, hosts: &[&str]) {
        let until = self.now + time;
        let mut all = Vec::new();
        while self.now < until {
            self.now = until.min(self.now + Duration::from_millis(500));
            for host in hosts {
                all.extend_from_slice(self.hear(host, beat(None)));
            }
            all.extend_from_slice(self.on(Event::Tick));
        }
        self.actions = all;
    }

    fn generation(&self) -> GenerationId {
        self.leader.generation().unwrap()
    }

    fn join(&mut self, hosts: &[&str], holds: Option<Snapshot>) {
        let generation = self.generation();
        for host in hosts {
            let addresses = vec![Address::from(host.as_bytes())];
            self.hear(host, ToLeader::Joined { generation, holds, addresses });
        }
    }

    fn end(&mut self, hosts: &[&str], generation: GenerationId) {
        for host in hosts {
            self.hear(host, ToLeader::Ended { generation, holds: None });
        }
    }

    /// The hosts of the proposal that was just sent.
    fn proposed(&self) -> Vec<String> {
        let to = |action: &Action| match action {
            Action::Send { to, message: ToMember::Propose { .. } } => Some(to.to_string()),
            _ => None,
        };
        self.actions.iter().filter_map(to).collect()
    }

    fn ends(&self) -> Vec<When> {
        let when = |action: &Action| match action {
            Action::Send { message: ToMember::End { when, .. }, .. } => Some(*when),
            _ => None,
        };
        self.actions.iter().filter_map(when).collect()
    }

    fn start(&self) -> Option<Start> {
        self.actions.iter().find_map(|action| match action {
            Action::Send { message: ToMember::Begin { start, .. }, .. } => Some(*start),
            _ => None,
        })
    }
}

fn beat(step: Option<(GenerationId, u64)>) -> ToLeader {
    ToLeader::Beat { sent: Duration::ZERO, step, holds: None }
}

fn id(epoch: u64, number: u64) -> GenerationId {
    GenerationId { epoch, number }
}

fn snapshot(epoch: u64, number: u64, step: u64) -> Snapshot {
    Snapshot { step, generation: id(epoch, number) }
}

/// Two hosts that train.
fn training() -> Led {
    let mut led = Led::new((1, 2), None);
    led.connect("a", None);
    led.connect("b", None);
    led.join(&["a", "b"], None);
    assert_eq!(led.start(), Some(Start::Scratch));
    led
}

/// Two hosts that train, and a reducer, "a".
fn reducing() -> Led {
    let mut led = Led::with(Limits { min: 1, max: 2, parts: None, has_reducers: true }, None);
    led.connect("b", None);
    led.connect("c", None);
    assert!(led.leader.generation().is_none(), "it waits for reducers");
    led.connect_as("a", Role::Reduce, None);
    led.pass(SETTLE, &["a", "b", "c"]);
    assert_eq!(led.proposed(), ["a", "b", "c"]);
    led.join(&["a", "b", "c"], None);
    led
}

#[test]
fn the_numbers_of_reducers_follow_the_ranks() {
    let led = reducing();
    let addresses = led.actions.iter().find_map(|action| match action {
        Action::Send { message: ToMember::Begin { addresses, .. }, .. } => Some(addresses.clone()),
        _ => None,
    });
    assert_eq!(addresses.unwrap(), [&b"b"[..], b"c", b"a"].map(Address::from));
}

#[test]
fn reducers_neither_save_nor_reach_the_end() {
    let mut led = reducing();
    let generation = led.generation();
    led.hear("b", ToLeader::Saved { generation, step: 5 });
    led.hear("c", ToLeader::Saved { generation, step: 5 });
    let checkpoint = Snapshot { generation, step: 5 };
    assert!(led.actions.contains(&Action::Commit(checkpoint)), "{:?}", led.actions);
    led.hear("b", ToLeader::AtEnd { generation, step: 5 });
    led.hear("c", ToLeader::AtEnd { generation, step: 5 });
    led.on(Event::Committed(checkpoint));
    assert_eq!(led.ends(), [When::Now; 3]);
    led.end(&["a", "b", "c"], generation);
    assert_eq!(led.actions.last(), Some(&Action::Conclude(Outcome::Finished)));
}

#[test]
fn a_generation_without_a_reducer_follows_when_it_is_lost_and_one_with_it_when_it_is_back() {
    let mut led = reducing();
    let first = led.generation();
    led.on(Event::Closed(HostName::named("a")));
    assert_eq!(led.ends(), [When::Now; 2]);
    led.end(&["b", "c"], first);
    assert_eq!(led.proposed(), ["b", "c"]);
    led.join(&["b", "c"], None);
    led.connect_as("a", Role::Reduce, None);
    let mut ends = Vec::new();
    while ends.is_empty() && led.now < 4 * SETTLE {
        led.pass(Duration::from_millis(500), &["a", "b", "c"]);
        ends = led.ends();
    }
    assert_eq!(ends, [When::AfterStep(1); 2], "it joins");
}

#[test]
fn without_ranks_reducers_wait() {
    let mut led = Led::with(Limits { min: 1, max: 2, parts: None, has_reducers: true }, None);
    led.connect_as("a", Role::Reduce, None);
    led.pass(2 * SETTLE, &["a"]);
    assert!(led.proposed().is_empty());
    led.connect("b", None);
    assert_eq!(led.proposed(), ["b"], "a rank alone has nothing to add");
}

#[test]
fn the_first_generation_waits_for_more_hosts_but_not_for_long() {
    let mut led = Led::new((1, 3), None);
    led.connect("a", None);
    led.connect("b", None);
    assert!(led.leader.generation().is_none());
    led.pass(SETTLE, &["a", "b"]);
    assert_eq!(led.proposed(), ["a", "b"]);
}

#[test]
fn with_too_few_ranks_it_waits_and_says_why() {
    let mut led = Led::new((2, 4), None);
    led.connect("a", None);
    led.pass(SETTLE, &["a"]);
    let shortage = led.actions.iter().find_map(|action| match action {
        Action::Wait(shortage) => Some(shortage.to_string()),
        _ => None,
    });
    assert_eq!(shortage.unwrap(), "waiting for ranks: hosts offer 1, the job needs at least 2");
    led.connect("b", None);
    assert_eq!(led.proposed(), ["a", "b"]);
}

#[test]
fn an_image_of_another_branch_is_no_start() {
    // Its generation ended before the one that committed step 25 after it had started from step 20.
    let mut led = Led::new((1, 2), Some(snapshot(5, 2, 25)));
    let stale = Some(snapshot(5, 1, 30));
    led.connect("a", stale);
    led.connect("b", None);
    led.join(&["a", "b"], stale);
    assert_eq!(led.start(), Some(Start::Checkpoint(snapshot(5, 2, 25))));
}

#[test]
fn a_joining_host_waits_for_a_step_boundary() {
    let mut led = Led::new((1, 2), None);
    led.connect("a", None);
    led.pass(SETTLE, &["a"]);
    led.join(&["a"], None);
    let first = led.generation();
    led.hear("a", beat(Some((first, 41))));
    led.connect("b", None);
    assert_eq!(led.ends(), []);
    led.pass(SETTLE, &["a", "b"]);
    assert_eq!(led.ends(), [When::AfterStep(42)]);
    led.hear("a", ToLeader::Saved { generation: first, step: 43 });
    let checkpoint = Snapshot { step: 43, generation: first };
    assert_eq!(led.actions, [Action::Commit(checkpoint)]);
    led.end(&["a"], first);
    assert_eq!(led.proposed(), [""; 0], "its last step is to be committed");
    led.on(Event::Committed(checkpoint));
    assert_eq!(led.proposed(), ["a", "b"]);
}

#[test]
fn a_joining_host_that_hangs_delays_the_others_once() {
    let mut led = Led::new((1, 2), None);
    led.connect("a", None);
    led.pass(SETTLE, &["a"]);
    led.join(&["a"], None);
    let first = led.generation();
    led.connect("b", None);
    led.pass(SETTLE, &["a", "b"]);
    led.end(&["a"], first);
    let second = led.generation();
    led.join(&["a"], None);
    led.pass(JOIN_TIMEOUT, &["a", "b"]);
    assert_eq!(led.ends(), [When::Now; 2]);
    led.end(&["a", "b"], second);
    assert_eq!(led.proposed(), ["a"]);
    led.join(&["a"], None);
    led.pass(JOIN_TIMEOUT / 2, &["a", "b"]);
    assert_eq!(led.ends(), [], "it is left out for a time");
    led.pass(JOIN_TIMEOUT, &["a", "b"]);
    assert_eq!(led.ends(), [When::AfterStep(1)], "but not for good");
}

#[test]
fn a_draining_host_leaves_at_a_step_boundary() {
    let mut led = training();
    let first = led.generation();
    led.hear("b", ToLeader::Offer { offer: Offer::default() });
    assert_eq!(led.ends(), [When::AfterStep(1); 2]);
    led.end(&["a", "b"], first);
    assert_eq!(led.proposed(), ["a"]);
}

#[test]
fn a_draining_leader_releases_the_lease_after_the_boundary() {
    let mut led = training();
    let first = led.generation();
    led.on(Event::Drain);
    assert_eq!(led.ends(), [When::AfterStep(1); 2]);
    led.end(&["a", "b"], first);
    let closes = ["a", "b"].map(|host| Action::Close(HostName::named(host)));
    assert_eq!(led.actions[0], Action::ReleaseLease);
    assert_eq!(led.actions[1..], closes);
    assert!(led.leader.is_over());
}

#[test]
fn after_a_suspension_a_late_message_is_no_sign_of_life() {
    let mut led = training();
    led.now += SILENCE;
    led.hear("b", beat(None));
    let closes = ["a", "b"].map(|host| Action::Close(HostName::named(host)));
    assert!(closes.iter().all(|close| led.actions.contains(close)), "{:?}", led.actions);
    assert!(led.leader.generation().is_none());
}

#[test]
fn a_deposed_leader_closes_its_streams() {
    let mut led = training();
    led.on(Event::Message { from: HostName::named("b"), epoch: EPOCH + 1, message: ToLeader::Deposed });
    assert_eq!(led.actions, ["a", "b"].map(|host| Action::Close(HostName::named(host))));
    assert!(led.leader.is_over() && led.on(Event::Drain).is_empty());
}

#[test]
fn messages_of_another_epoch_or_generation_are_ignored() {
    let mut led = training();
    let generation = led.generation();
    let lost = |generation| ToLeader::Lost { generation, why: Reason::new("killed"), is_of_peer: false };
    let from = HostName::named("a");
    assert!(led.on(Event::Message { from, epoch: EPOCH - 1, message: lost(generation) }).is_empty());
    for other in [id(EPOCH, 9), id(EPOCH - 1, 1)] {
        assert!(led.hear("a", lost(other)).is_empty());
    }
    assert!(!led.hear("a", lost(generation)).is_empty());
}

/// The worker of a host dies in each generation, until the job ends.
fn crash_loop(led: &mut Led, culprits: &[&str]) -> Outcome {
    for culprit in culprits {
        let generation = led.generation();
        let hosts: Vec<_> = ["a", "b"].into_iter().filter(|host| led.proposed_to(host)).collect();
        led.join(&hosts, None);
        let why = Reason::new("out of memory");
        led.hear(culprit, ToLeader::Lost { generation, why, is_of_peer: false });
        led.end(&hosts, generation);
        if let [Action::Conclude(outcome)] = &led.actions[..] {
            return outcome.clone();
        }
        if led.proposed().is_empty() {
            led.pass(Duration::from_secs(1), &["a", "b"]);
        }
    }
    panic!("the job continues")
}

/// The end of a job after too many failures, the last of them for this reason.
fn given_up(reason: &str) -> Outcome {
    let given_up = "gave up after 3 attempts without a new checkpoint or image; last failure: ";
    Outcome::Failed(Reason::new(&format!("{given_up}{reason}")))
}

impl Led {
    fn proposed_to(&self, host: &str) -> bool {
        let proposed = self.proposed();
        proposed.is_empty() || proposed.iter().any(|other| other == host)
    }
}

#[test]
fn a_crash_loop_over_generations_ends_with_its_reason() {
    let mut led = training();
    let outcome = crash_loop(&mut led, &["a", "b", "a"]);
    assert_eq!(outcome, given_up("host a: out of memory"));
    assert!(matches!(led.on(Event::Concluded)[0], Action::Send { message: ToMember::Over { .. }, .. }));
}

#[test]
fn the_second_failure_in_a_row_leaves_a_host_out_and_renews_the_budget() {
    let mut led = training();
    // The third generation is of b alone, which has a new budget.
    let outcome = crash_loop(&mut led, &["a", "a", "b", "b", "b"]);
    assert_eq!(outcome, given_up("host b: out of memory"));
}

#[test]
fn the_loss_of_a_host_is_no_failure_of_the_workers_that_notice_it() {
    let mut led = training();
    for _ in 0..2 * super::MAX_FAILURES {
        let generation = led.generation();
        let why = Reason::new("peer lost");
        led.hear("a", ToLeader::Lost { generation, why, is_of_peer: true });
        led.hear("a", ToLeader::Ended { generation, holds: None });
        led.on(Event::Closed(HostName::named("b")));
        assert_eq!(led.proposed(), ["a"]);
        let alone = led.generation();
        led.join(&["a"], None);
        led.connect("b", None);
        led.pass(SETTLE, &["a", "b"]);
        led.end(&["a"], alone);
        assert_eq!(led.proposed(), ["a", "b"]);
        led.join(&["a", "b"], None);
    }
}

#[test]
fn a_loss_that_no_host_explains_is_a_failure() {
    let mut led = training();
    for failures in 1..=super::MAX_FAILURES {
        let generation = led.generation();
        let why = Reason::new("no route to b");
        led.hear("a", ToLeader::Lost { generation, why, is_of_peer: true });
        led.end(&["a", "b"], generation);
        if failures < super::MAX_FAILURES {
            led.pass(Duration::from_secs(1), &["a", "b"]);
            assert_eq!(led.proposed(), ["a", "b"]);
            led.join(&["a", "b"], None);
        }
    }
    assert_eq!(led.actions, [Action::Conclude(given_up("no route to b"))]);
}

#[test]
fn nothing_begins_while_a_commit_is_in_flight() {
    let mut led = training();
    let first = led.generation();
    for host in ["a", "b"] {
        led.hear(host, ToLeader::Saved { generation: first, step: 9 });
    }
    let checkpoint = Snapshot { step: 9, generation: first };
    assert_eq!(led.actions, [Action::Commit(checkpoint)]);
    led.on(Event::Closed(HostName::named("b")));
    led.end(&["a"], first);
    led.join(&["a"], None);
    assert_eq!(led.start(), None);
    led.on(Event::Committed(checkpoint));
    assert_eq!(led.start(), Some(Start::Checkpoint(checkpoint)));
}

#[test]
fn a_checkpoint_that_is_given_up_is_tried_again_once_it_is_saved_again() {
    let mut led = training();
    let generation = led.generation();
    let checkpoint = Snapshot { step: 9, generation };
    for _ in 0..2 {
        for host in ["a", "b"] {
            led.hear(host, ToLeader::Saved { generation, step: 9 });
        }
        assert_eq!(led.actions, [Action::Commit(checkpoint)]);
        led.on(Event::GivenUp(checkpoint));
        led.pass(Duration::from_secs(2), &["a", "b"]);
        assert!(!led.actions.iter().any(|action| matches!(action, Action::Commit(_))));
    }
    // It does not keep the others from stopping.
    led.on(Event::Drain);
    led.end(&["a", "b"], generation);
    assert!(led.actions.contains(&Action::ReleaseLease), "{:?}", led.actions);
}

#[test]
fn a_generation_ends_soon_after_the_workers_of_a_host_have() {
    let mut led = training();
    let generation = led.generation();
    led.hear("a", ToLeader::Ended { generation, holds: None });
    assert_eq!(led.ends(), []);
    led.pass(END_TIMEOUT, &["a", "b"]);
    assert_eq!(led.ends(), [When::Now]);
}

#[test]
fn a_job_that_is_to_fail_saves_its_last_step() {
    let mut led = training();
    let generation = led.generation();
    let why = Reason::new("cancelled");
    led.on(Event::Fail(why.clone()));
    assert!(matches!(led.ends()[..], [When::AfterStep(_), When::AfterStep(_)]));
    led.on(Event::Fail(Reason::new("again")));
    assert_eq!(led.actions, []);
    for host in ["a", "b"] {
        led.hear(host, ToLeader::Saved { generation, step: 9 });
    }
    led.end(&["a", "b"], generation);
    assert_eq!(led.actions, []);
    led.on(Event::Committed(Snapshot { step: 9, generation }));
    assert_eq!(led.actions, [Action::Conclude(Outcome::Failed(why.clone()))]);

    let mut waiting = Led::new((3, 3), None);
    waiting.on(Event::Fail(why.clone()));
    assert_eq!(waiting.actions, [Action::Conclude(Outcome::Failed(why))]);
}

#[test]
fn the_job_finishes_once_its_last_step_is_committed() {
    let mut led = training();
    let first = led.generation();
    for host in ["a", "b"] {
        led.hear(host, ToLeader::Saved { generation: first, step: 9 });
        led.hear(host, ToLeader::AtEnd { generation: first, step: 9 });
    }
    assert_eq!(led.ends(), []);
    led.on(Event::Committed(Snapshot { step: 9, generation: first }));
    assert_eq!(led.ends(), [When::Now; 2]);
    led.end(&["a", "b"], first);
    assert_eq!(led.actions, [Action::Conclude(Outcome::Finished)]);
}
