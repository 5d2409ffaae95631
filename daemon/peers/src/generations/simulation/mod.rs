//! Checks the machines in a world of hosts, streams, workers and a bucket that fail.
//!
//! * [`random`] runs random schedules of faults in virtual time, and demands that the job ends once they stop.
//! * [`search`] tries every fault at every moment of a small world, and bounded reorderings, without time: a deadline may pass at
//!   any moment.
//!
//! Both move the same [`world`], and check the same [`invariants`] after every event.

mod bucket;
mod faults;
mod invariants;
mod random;
mod search;
mod streams;
mod training;
mod workers;
mod world;

use std::time::Instant;

use super::leader::{self, Leader};
use super::member::{self, Member};
use super::{
    Address, Assignment, GenerationId, Limits, Offer, Outcome, Reason, Role, Snapshot, Start, ToLeader,
    ToMember, size,
};

/// Runs schedules and panics with the seed and the trace of the first that breaks an invariant.
fn run_all(seeds: std::ops::Range<u64>) -> Vec<random::Report> {
    let run = |seed| match random::run(seed, false) {
        Ok(report) => report,
        Err((violation, _)) => {
            let trace = random::run(seed, true).err().map(|(_, trace)| trace).unwrap_or_default();
            let is_routine =
                |line: &String| ["Beat {", "Answer {", "Tick"].iter().any(|word| line.contains(word));
            let trace: Vec<_> = trace.into_iter().filter(|line| !is_routine(line)).collect();
            let last = trace.len().saturating_sub(200);
            panic!("seed {seed}: {violation}\n{}", trace[last..].join("\n"));
        }
    };
    seeds.map(run).collect()
}

#[test]
fn random_schedules_keep_the_invariants() {
    let (first, second) = std::thread::scope(|scope| {
        let half = scope.spawn(|| run_all(0..5_000));
        (run_all(5_000..10_000), half.join())
    });
    let mut reports = first;
    reports.extend(second.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    let sum =
        |of: fn(&random::Report) -> u64| reports.iter().map(of).sum::<u64>() as f64 / reports.len() as f64;
    let (events, epochs) = (sum(|report| report.events), sum(|report| report.epochs));
    let (generations, failed) =
        (sum(|report| report.generations as u64), sum(|report| report.has_failed.into()));
    let seconds = sum(|report| report.seconds);
    print(&format!(
        "{events:.0} events, {epochs:.2} epochs, {generations:.2} generations, {failed:.3} failed, {seconds:.0} s"
    ));
    assert!(epochs > 1.5 && generations > 2.5 && failed < 0.1);
}

/// A job of two steps and at most two ranks on three hosts, of which host 0 has the lease and host 2 is a spare.
fn small() -> world::World {
    let limits = Limits { min: 1, max: 2, parts: None, has_reducers: false };
    let job = world::Job { limits, steps: 2, image_every: 1, save_every: 1, step_ms: 0 };
    let mut world = world::World::new(job, &[Offer { role: Role::Train, count: 1 }; 3], None);
    world.take_lease(0);
    world
}

/// The budgets of the search, and the least number of states that it has to find.
const BUDGETS: [(search::Budget, usize); 3] = [
    // All orders of what happens without a fault.
    (search::Budget { faults: 0, delays: u32::MAX }, 500),
    (search::Budget { faults: 1, delays: 3 }, 100_000),
    (search::Budget { faults: 2, delays: 1 }, 500_000),
];

#[test]
fn interleavings_with_two_faults_keep_the_invariants() {
    for (budget, least) in BUDGETS {
        let begin = Instant::now();
        let found = search::search(search::begin(small()), budget);
        if let Some((violation, story)) = found.violation {
            panic!("{violation} after {} states\n{}", found.states, story.join("\n"));
        }
        let (states, ends) = (found.states, found.ends);
        assert!(states >= least && ends > 0, "{states} states");
        print(&format!("{budget:?}: {states} states, {ends} ends, {:.1} s", begin.elapsed().as_secs_f64()));
    }
}

/// Shown by `--nocapture`.
#[allow(clippy::print_stderr)]
fn print(line: &str) {
    eprintln!("{line}");
}
