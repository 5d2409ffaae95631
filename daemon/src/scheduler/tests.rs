#![allow(clippy::unwrap_used)]

use super::*;

const GIB: u64 = 1 << 30;

fn host(threads: u32, gib: u64) -> Scheduler {
    Scheduler::new(Capacity {
        memory_bytes: gib * GIB,
        threads,
        gpus: 8,
        max_jobs: None,
        max_jobs_per_user: None,
    })
}

/// A prepared job of user 1.
fn job(id: &str, threads: u32, gib: u64) -> Waiting {
    Waiting {
        id: id.to_owned(),
        user: 1,
        priority: 0,
        demand: Demand { memory_bytes: gib * GIB, threads: Some(threads), gpus: Gpus::default() },
        is_prepared: true,
        is_suspect: false,
        expected_seconds: None,
    }
}

/// The ids of the jobs that start to train at this time, and of those that are prepared ahead.
fn started(scheduler: &mut Scheduler, now: f64) -> (Vec<String>, Vec<String>) {
    let starts = scheduler.decide(now).starts;
    let (ahead, training): (Vec<_>, Vec<_>) = starts.into_iter().partition(|start| start.is_ahead);
    let ids = |starts: Vec<Start>| starts.into_iter().map(|start| start.id).collect();
    (ids(training), ids(ahead))
}

fn trains(scheduler: &mut Scheduler, now: f64) -> Vec<String> {
    started(scheduler, now).0
}

fn reason(scheduler: &mut Scheduler, id: &str) -> Option<Reason> {
    let waits = scheduler.decide(0.0).waits;
    waits.into_iter().find(|(waiting, _)| waiting == id).map(|(_, reason)| reason)
}

#[test]
fn jobs_start_in_order_while_they_fit() {
    let mut scheduler = host(8, 16);
    for id in ["a", "b", "c"] {
        scheduler.add(job(id, 4, 1));
    }
    assert_eq!(trains(&mut scheduler, 0.0), ["a", "b"]);
    assert_eq!(reason(&mut scheduler, "c"), Some(Reason::Threads { needed: 4, free: 0, all: 8 }));
    scheduler.remove("a");
    assert_eq!(trains(&mut scheduler, 1.0), ["c"]);
    assert_eq!(scheduler.places.len(), 0);
}

#[test]
fn a_job_above_the_capacity_runs_alone() {
    let mut scheduler = host(8, 16);
    scheduler.add(job("large", 64, 100));
    scheduler.add(job("small", 1, 1));
    assert_eq!(trains(&mut scheduler, 0.0), ["large"]);
    scheduler.remove("large");
    assert_eq!(trains(&mut scheduler, 1.0), ["small"]);
    scheduler.add(job("large", 64, 100));
    assert!(trains(&mut scheduler, 2.0).is_empty());
    scheduler.remove("small");
    assert_eq!(trains(&mut scheduler, 3.0), ["large"]);
}

#[test]
fn the_number_of_jobs_is_limited_for_all_and_for_each_user() {
    let mut scheduler = host(8, 16);
    scheduler.set_capacity(Capacity {
        max_jobs: Some(3),
        max_jobs_per_user: Some(2),
        ..scheduler.capacity()
    });
    for id in ["a", "b", "c"] {
        scheduler.add(job(id, 1, 1));
    }
    for id in ["d", "e"] {
        scheduler.add(Waiting { user: 2, ..job(id, 1, 1) });
    }
    assert_eq!(trains(&mut scheduler, 0.0), ["a", "d", "b"]);
    assert_eq!(reason(&mut scheduler, "c"), Some(Reason::UserLimit { limit: 2 }));
    assert_eq!(reason(&mut scheduler, "e"), Some(Reason::Jobs { limit: 3 }));
    // Running jobs continue, even if they are more than may start.
    scheduler.set_capacity(Capacity { max_jobs: Some(1), ..scheduler.capacity() });
    scheduler.remove("a");
    assert!(trains(&mut scheduler, 1.0).is_empty());
}

#[test]
fn jobs_do_not_share_a_gpu() {
    let on_gpus = |id: &str, numbers: &[u32]| {
        let mut job = job(id, 1, 1);
        job.demand.gpus = numbers.iter().copied().collect();
        job
    };
    let mut scheduler = host(8, 16);
    scheduler.add(on_gpus("a", &[0]));
    scheduler.add(on_gpus("b", &[0]));
    scheduler.add(on_gpus("c", &[1]));
    scheduler.add(on_gpus("d", &[1, 2, 3]));
    assert_eq!(trains(&mut scheduler, 0.0), ["a", "c"]);
    assert_eq!(reason(&mut scheduler, "b"), Some(Reason::Gpu { number: 0, holder: Some("a".into()) }));
    scheduler.remove("a");
    assert_eq!(trains(&mut scheduler, 1.0), ["b"]);
    // A job with several workers waits for the GPUs of all, and holds them all.
    assert_eq!(reason(&mut scheduler, "d"), Some(Reason::Gpu { number: 1, holder: Some("c".into()) }));
    scheduler.remove("c");
    assert_eq!(trains(&mut scheduler, 2.0), ["d"]);
    scheduler.add(on_gpus("e", &[3]));
    assert_eq!(trains(&mut scheduler, 3.0), [""; 0]);
    assert_eq!(reason(&mut scheduler, "e"), Some(Reason::Gpu { number: 3, holder: Some("d".into()) }));
}

#[test]
fn jobs_with_disjoint_gpus_run_side_by_side() {
    let on_gpus = |id: &str, numbers: &[u32]| {
        let mut job = job(id, 1, 1);
        job.demand.gpus = numbers.iter().copied().collect();
        job
    };
    let mut scheduler = host(8, 16);
    scheduler.add(on_gpus("even", &[0, 2, 4]));
    scheduler.add(on_gpus("odd", &[5, 3, 1]));
    scheduler.add(on_gpus("both", &[6, 2, 1]));
    assert_eq!(trains(&mut scheduler, 0.0), ["even", "odd"]);
    assert_eq!(reason(&mut scheduler, "both"), Some(Reason::Gpu { number: 1, holder: Some("odd".into()) }));
    scheduler.remove("odd");
    assert_eq!(trains(&mut scheduler, 1.0), [""; 0]);
    assert_eq!(reason(&mut scheduler, "both"), Some(Reason::Gpu { number: 2, holder: Some("even".into()) }));
    scheduler.remove("even");
    assert_eq!(trains(&mut scheduler, 2.0), ["both"]);
}

#[test]
fn higher_priorities_come_first() {
    let mut scheduler = host(4, 16);
    scheduler.add(job("usual", 4, 1));
    scheduler.add(Waiting { priority: -1, ..job("later", 4, 1) });
    scheduler.add(Waiting { priority: 5, user: 2, ..job("urgent", 4, 1) });
    for wanted in ["urgent", "usual", "later"] {
        assert_eq!(trains(&mut scheduler, 0.0), [wanted]);
        scheduler.remove(wanted);
    }
}

#[test]
fn users_take_turns_by_what_they_have_used() {
    let mut scheduler = host(4, 16);
    for number in 0..4 {
        scheduler.add(job(&format!("many-{number}"), 4, 1));
    }
    scheduler.add(Waiting { user: 2, ..job("few-0", 4, 1) });
    scheduler.add(Waiting { user: 2, ..job("few-1", 4, 1) });
    let mut order = Vec::new();
    let mut now = 0.0;
    for _ in 0..6 {
        let started = trains(&mut scheduler, now);
        // Those of user 2 take more than three times as long.
        now += if started[0].starts_with("few") { 350.0 } else { 100.0 };
        scheduler.decide(now);
        scheduler.remove(&started[0]);
        order.extend(started);
    }
    assert_eq!(order, ["many-0", "few-0", "many-1", "many-2", "many-3", "few-1"]);
}

#[test]
fn small_jobs_fill_gaps_without_delaying_the_first() {
    let mut scheduler = host(8, 16);
    scheduler.add(job("running", 4, 1));
    assert_eq!(trains(&mut scheduler, 0.0), ["running"]);
    scheduler.expect(|_| Some(100.0));
    scheduler.add(job("first", 6, 1));
    scheduler.add(job("unknown", 4, 1));
    scheduler.add(Waiting { expected_seconds: Some(101.0), ..job("long", 4, 1) });
    scheduler.add(Waiting { expected_seconds: Some(99.0), ..job("short", 4, 1) });
    // Beside the first, 2 of 8 threads are left.
    scheduler.add(job("narrow", 2, 1));
    assert_eq!(trains(&mut scheduler, 0.0), ["short"]);
    assert_eq!(reason(&mut scheduler, "unknown"), Some(Reason::Threads { needed: 4, free: 0, all: 8 }));
    scheduler.remove("short");
    assert_eq!(trains(&mut scheduler, 50.0), ["narrow"]);
    assert_eq!(reason(&mut scheduler, "first"), Some(Reason::Threads { needed: 6, free: 2, all: 8 }));
    scheduler.remove("running");
    assert_eq!(trains(&mut scheduler, 100.0), ["first"]);
}

#[test]
fn without_known_ends_the_whole_demand_of_the_first_is_reserved() {
    let mut scheduler = host(8, 16);
    scheduler.add(job("running", 4, 1));
    assert_eq!(trains(&mut scheduler, 0.0), ["running"]);
    scheduler.add(job("first", 6, 1));
    scheduler.add(Waiting { expected_seconds: Some(1.0), ..job("short", 3, 1) });
    scheduler.add(job("narrow", 2, 1));
    scheduler.add(job("narrow too", 1, 1));
    assert_eq!(trains(&mut scheduler, 0.0), ["narrow"]);
    assert_eq!(reason(&mut scheduler, "narrow too"), Some(Reason::Reserved { holder: "first".into() }));
}

#[test]
fn waiting_jobs_are_prepared_ahead_one_at_a_time() {
    let unprepared = |id: &str| Waiting { is_prepared: false, ..job(id, 8, 1) };
    let mut scheduler = host(8, 16);
    for number in 0..MAX_PREPARED + 3 {
        scheduler.add(unprepared(&number.to_string()));
    }
    let ids = |id: &str| vec![id.to_owned()];
    assert_eq!(started(&mut scheduler, 0.0), (ids("0"), ids("1")), "one trains, one is prepared ahead");
    assert_eq!(started(&mut scheduler, 0.0), (vec![], vec![]));
    let demand = |gib| Demand { memory_bytes: gib * GIB, threads: Some(8), gpus: Gpus::default() };
    assert!(scheduler.prepared("0", demand(1)));
    for number in 1..=MAX_PREPARED {
        assert!(!scheduler.prepared(&number.to_string(), demand(1)));
        let next = (number < MAX_PREPARED).then(|| (number + 1).to_string());
        assert_eq!(started(&mut scheduler, 0.0), (vec![], next.into_iter().collect()));
    }
    // Its place is that of its submission.
    scheduler.remove("0");
    assert_eq!(started(&mut scheduler, 0.0), (ids("1"), ids(&(MAX_PREPARED + 1).to_string())));
}

#[test]
fn a_job_that_is_prepared_ahead_holds_its_place() {
    let mut scheduler = host(8, 16);
    scheduler.add(job("running", 4, 1));
    assert_eq!(trains(&mut scheduler, 0.0), ["running"]);
    scheduler.add(Waiting { is_prepared: false, ..job("first", 8, 4) });
    scheduler.add(job("second", 4, 1));
    assert_eq!(started(&mut scheduler, 0.0), (vec![], vec!["first".to_owned()]));
    assert_eq!(reason(&mut scheduler, "second"), Some(Reason::Reserved { holder: "first".into() }));
    scheduler.remove("running");
    // It continues to train as soon as it is prepared.
    assert_eq!(started(&mut scheduler, 1.0), (vec![], vec![]));
    assert!(
        scheduler
            .prepared("first", Demand { memory_bytes: 9 * GIB, threads: Some(8), gpus: Gpus::default() })
    );
}

#[test]
fn a_job_that_needs_more_than_its_file_says_waits_in_its_place() {
    let mut scheduler = host(8, 16);
    scheduler.add(job("running", 1, 8));
    scheduler.add(Waiting { is_prepared: false, ..job("larger", 1, 2) });
    scheduler.add(job("later", 1, 7));
    let (trains_now, _) = started(&mut scheduler, 0.0);
    assert_eq!(trains_now, ["running", "larger"]);
    assert!(
        !scheduler
            .prepared("larger", Demand { memory_bytes: 10 * GIB, threads: Some(1), gpus: Gpus::default() })
    );
    let wanted = Reason::Memory { needed_bytes: 10 * GIB, free_bytes: 8 * GIB, all_bytes: 16 * GIB };
    assert_eq!(reason(&mut scheduler, "larger"), Some(wanted));
    scheduler.remove("running");
    assert_eq!(trains(&mut scheduler, 1.0), ["larger"]);
}

#[test]
fn a_job_that_finds_too_little_memory_waits_for_another_to_end() {
    let mut scheduler = host(8, 16);
    scheduler.add(job("running", 1, 1));
    scheduler.add(job("unlucky", 1, 1));
    assert_eq!(trains(&mut scheduler, 0.0), ["running", "unlucky"]);
    scheduler.put_off("unlucky");
    assert_eq!(reason(&mut scheduler, "unlucky"), Some(Reason::HostMemory));
    scheduler.remove("running");
    assert_eq!(trains(&mut scheduler, 1.0), ["unlucky"]);
    // Alone, it cannot wait for another one.
    scheduler.put_off("unlucky");
    assert_eq!(trains(&mut scheduler, 2.0), ["unlucky"]);
}

#[test]
fn suspects_run_one_after_another() {
    let suspect = |id: &str| Waiting { is_suspect: true, is_prepared: false, ..job(id, 1, 1) };
    let mut scheduler = host(8, 16);
    scheduler.add(suspect("a"));
    scheduler.add(suspect("b"));
    scheduler.add(job("other", 1, 1));
    assert_eq!(started(&mut scheduler, 0.0), (vec!["a".to_owned(), "other".to_owned()], vec![]));
    assert_eq!(reason(&mut scheduler, "b"), Some(Reason::Suspect { other: "a".into() }));
    scheduler.cleared("a");
    assert_eq!(trains(&mut scheduler, 1.0), ["b"]);
}

#[test]
fn a_job_without_a_number_of_threads_has_its_share() {
    let any = |id: &str| {
        let mut job = job(id, 0, 1);
        job.demand.threads = None;
        job
    };
    let mut scheduler = host(8, 16);
    for id in ["a", "b", "c"] {
        scheduler.add(any(id));
    }
    assert_eq!(trains(&mut scheduler, 0.0), ["a"]);
    assert_eq!(reason(&mut scheduler, "b"), Some(Reason::Threads { needed: 8, free: 0, all: 8 }));
    // The share of a running job, too, changes with the limit.
    scheduler.set_capacity(Capacity { max_jobs: Some(2), ..scheduler.capacity() });
    assert_eq!(trains(&mut scheduler, 1.0), ["b"]);
    assert_eq!(reason(&mut scheduler, "c"), Some(Reason::Jobs { limit: 2 }));
}
