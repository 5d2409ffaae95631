//! The member's decisions, one at a time.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use super::member::{Action, Event, Member, WorkerEvent};
use super::tries::Tries;
use super::{
    Assignment, BEAT, GenerationId, Offer, Ranks, Reason, Role, SILENCE, Snapshot, Start, ToLeader, ToMember,
    When,
};
use crate::HostName;

const FIRST: GenerationId = GenerationId { epoch: 3, number: 1 };
const SECOND: GenerationId = GenerationId { epoch: 3, number: 2 };

fn offer(count: u32) -> Offer {
    Offer { role: Role::Train, count }
}

fn hear(member: &mut Member, now: Duration, (from, epoch): (&str, u64), message: ToMember) -> Vec<Action> {
    member.on(now, Event::Message { from: HostName::named(from), epoch, message })
}

fn lead(member: &mut Member, message: ToMember) -> Vec<Action> {
    hear(member, Duration::ZERO, ("a", 3), message)
}

fn workers(member: &mut Member, event: WorkerEvent) -> Vec<Action> {
    member.on(Duration::ZERO, Event::Workers(FIRST, event))
}

fn assignment() -> Assignment {
    BTreeMap::from([(HostName::named("b"), Ranks { role: Role::Train, first: 0, count: 1 })])
}

fn propose(generation: GenerationId) -> ToMember {
    ToMember::Propose { generation, assignment: assignment(), tries: Tries::default() }
}

fn to_leader(message: ToLeader) -> Action {
    Action::Send { to: HostName::named("a"), epoch: 3, message }
}

fn ended(step: u64) -> Action {
    let holds = Some(Snapshot { step, generation: FIRST });
    to_leader(ToLeader::Ended { generation: FIRST, holds })
}

/// A member whose workers train.
fn training() -> Member {
    let mut member = Member::new(offer(1));
    lead(&mut member, ToMember::Lead);
    let spawn = Action::Spawn { generation: FIRST, assignment: assignment() };
    assert_eq!(lead(&mut member, propose(FIRST)), [spawn]);
    workers(&mut member, WorkerEvent::Ready(Vec::new()));
    let (start, senders, addresses) = (Start::Scratch, BTreeMap::new(), Vec::new());
    let begin = ToMember::Begin { generation: FIRST, start, senders, addresses };
    assert!(matches!(lead(&mut member, begin)[..], [Action::Start { .. }]));
    workers(&mut member, WorkerEvent::Imaged(8));
    member
}

#[test]
fn workers_die_if_the_leader_does_not_answer() {
    let mut member = training();
    let mut now = Duration::ZERO;
    let mut actions = Vec::new();
    while now < SILENCE {
        assert!(!actions.contains(&Action::Kill(FIRST)) && !member.may_lead());
        now = member.next_deadline().unwrap();
        actions = member.on(now, Event::Tick);
    }
    assert_eq!(now, SILENCE);
    assert!(actions.contains(&Action::Kill(FIRST)) && actions.contains(&Action::Close(HostName::named("a"))));
    assert!(member.may_lead() && !member.is_idle());
    assert!(workers(&mut member, WorkerEvent::Gone).is_empty() && member.is_idle());
}

#[test]
fn an_answer_counts_from_the_time_of_its_beat() {
    let mut member = training();
    assert_eq!(member.on(BEAT, Event::Tick).len(), 1);
    let late = BEAT + Duration::from_secs(3);
    member.on(late, Event::Tick);
    hear(&mut member, late, ("a", 3), ToMember::Answer { sent: BEAT });
    let just_before = BEAT + SILENCE - Duration::from_millis(1);
    assert!(!member.on(just_before, Event::Tick).contains(&Action::Kill(FIRST)));
    assert!(member.on(BEAT + SILENCE, Event::Tick).contains(&Action::Kill(FIRST)));
}

#[test]
fn killed_workers_are_reported_once_they_have_exited() {
    let mut member = training();
    let why = Reason::new("host c has not answered for 5 s");
    let end = ToMember::End { generation: FIRST, when: When::Now, why: Some(why.clone()) };
    assert_eq!(lead(&mut member, end.clone()), [Action::Explain(FIRST, When::Now, why), Action::Kill(FIRST)]);
    // A worker had completed it.
    workers(&mut member, WorkerEvent::Imaged(9));
    assert_eq!(workers(&mut member, WorkerEvent::Gone), [ended(9)]);
    assert_eq!(lead(&mut member, end), [ended(9)]);
}

#[test]
fn a_proposal_waits_until_earlier_workers_have_exited() {
    let mut member = training();
    assert_eq!(lead(&mut member, propose(SECOND)), [Action::Kill(FIRST)]);
    let spawn = Action::Spawn { generation: SECOND, assignment: assignment() };
    assert_eq!(workers(&mut member, WorkerEvent::Gone), [spawn]);
}

#[test]
fn a_host_that_stops_before_it_is_told_has_ended() {
    let mut member = training();
    // The control word of a step reached its workers before the message reached the daemon.
    assert_eq!(workers(&mut member, WorkerEvent::Gone), [ended(8)]);
    let end = ToMember::End { generation: FIRST, when: When::AfterStep(8), why: None };
    assert_eq!(lead(&mut member, end), [ended(8)]);
}

#[test]
fn a_host_that_stops_after_a_step_kills_nothing() {
    let mut member = training();
    let end = ToMember::End { generation: FIRST, when: When::AfterStep(9), why: None };
    assert_eq!(lead(&mut member, end), [Action::StopAfter(FIRST, 9)]);
    workers(&mut member, WorkerEvent::Imaged(10));
    let saved = to_leader(ToLeader::Saved { generation: FIRST, step: 10 });
    assert_eq!(workers(&mut member, WorkerEvent::Saved(10)), [saved]);
    assert_eq!(workers(&mut member, WorkerEvent::Gone), [ended(10)]);
}

#[test]
fn the_leader_of_a_later_epoch_is_followed_and_that_of_an_earlier_one_is_not() {
    let mut member = training();
    let deposed = |epoch| Action::Send { to: HostName::named("c"), epoch, message: ToLeader::Deposed };
    assert_eq!(hear(&mut member, Duration::ZERO, ("c", 2), ToMember::Lead), [deposed(3)]);
    let actions = hear(&mut member, Duration::ZERO, ("c", 4), ToMember::Lead);
    let why = Action::Explain(FIRST, When::Now, Reason::new("host a leads the job no longer"));
    assert_eq!(actions[..3], [why, Action::Kill(FIRST), Action::Close(HostName::named("a"))]);
    assert!(matches!(&actions[3..], [Action::Send { message: ToLeader::Hello { .. }, .. }]));
    assert!(lead(&mut member, propose(SECOND)).is_empty(), "it follows another leader");
    member.on(Duration::ZERO, Event::Closed(HostName::named("a")));
    assert!(!member.may_lead());
}

#[test]
fn messages_of_another_epoch_are_ignored() {
    let mut member = training();
    let end = || ToMember::End { generation: FIRST, when: When::Now, why: None };
    for other in [("a", 2), ("a", 4), ("c", 3)] {
        assert!(hear(&mut member, Duration::ZERO, other, end()).is_empty());
    }
    assert_eq!(lead(&mut member, end()), [Action::Kill(FIRST)]);
}

#[test]
fn the_next_leader_hears_of_failures() {
    let mut member = Member::new(offer(1));
    lead(&mut member, ToMember::Lead);
    let mut tries = Tries::default();
    tries.on_failure(Reason::new("killed"));
    lead(
        &mut member,
        ToMember::Propose { generation: FIRST, assignment: assignment(), tries: tries.clone() },
    );
    let actions = hear(&mut member, Duration::ZERO, ("c", 4), ToMember::Lead);
    let knows = |action: &Action| matches!(action, Action::Send { message: ToLeader::Hello { tries: known, .. }, .. } if *known == tries);
    assert!(actions.iter().any(knows), "{actions:?}");
}

#[test]
fn a_draining_host_offers_nothing_and_does_not_lead() {
    let mut member = Member::new(offer(2));
    lead(&mut member, ToMember::Lead);
    assert_eq!(
        member.on(Duration::ZERO, Event::Drain),
        [to_leader(ToLeader::Offer { offer: Offer::default() })]
    );
    member.on(Duration::ZERO, Event::Closed(HostName::named("a")));
    assert!(!member.may_lead() && member.is_idle());
}
