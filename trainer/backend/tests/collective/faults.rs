//! Ranks that disagree, are late or die: all others get an error that says so, in time.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use millstream_backend::Float;
use millstream_backend::collective::{Absent, Buffer, CollectiveError, FlightRecord, OpenOperation};
use rustix::process::{Pid, Signal, kill_process};

use crate::worlds::{End, Kind, Seat, kill_self, run};

/// For operations that end early, with an error or not.
const LIMIT: Duration = Duration::from_secs(30);
/// For operations that end at their deadline.
const SHORT_LIMIT: Duration = Duration::from_secs(2);

fn error<R: std::fmt::Debug>(result: Result<R, CollectiveError>) -> CollectiveError {
    result.expect_err("an operation without all ranks")
}

#[test]
fn threads_that_run_different_operations_are_named() {
    run(Kind::Local, 2, LIMIT, "", different_operations);
    run(Kind::Local, 3, LIMIT, "", different_operations);
}

#[test]
fn processes_that_run_different_operations_are_named() {
    let test = "faults::processes_that_run_different_operations_are_named";
    run(Kind::HOST, 3, LIMIT, test, different_operations);
}

#[test]
fn hosts_that_run_different_operations_are_named() {
    let test = "faults::hosts_that_run_different_operations_are_named";
    run(Kind::HOSTS, 3, LIMIT, test, different_operations);
}

fn different_operations(seat: &mut Seat) {
    let (rank, communicator) = (seat.rank(), seat.communicator());
    communicator.barrier().join().unwrap();
    let began = Instant::now();
    let last = seat.ranks() - 1;
    let found = if rank == last {
        error(communicator.gather(Buffer::from(&[1_u32, 2][..])).join())
    } else {
        error(communicator.sum(Buffer::from(&[1.0_f32, 2.0][..]), Float::Bf16).join())
    };
    assert!(began.elapsed() < LIMIT, "noticed before the deadline");
    let (sum, gather) = ("sum of f32 as bf16, number 2", "gather of u32, number 2");
    let (ours, theirs) = if rank == last { (gather, sum) } else { (sum, gather) };
    let message = found.to_string();
    assert!(message.starts_with(&format!("rank {rank} runs {ours}, but rank ")), "{message}");
    assert!(message.contains(&format!(" runs {theirs}: ")), "{message}");
    if rank != last {
        assert!(matches!(found, CollectiveError::Mismatch { peer, .. } if peer == last), "{message}");
    }
    // Nothing works afterwards, and everything names the cause.
    assert_eq!(error(communicator.barrier().join()), found);
    assert_eq!(error(communicator.broadcast(0, Buffer::<u8>::default()).join()), found);
    seat.meet();
}

#[test]
fn threads_with_different_sizes_are_named() {
    run(Kind::Local, 2, LIMIT, "", different_sizes);
}

#[test]
fn processes_with_different_sizes_are_named() {
    run(Kind::HOST, 2, LIMIT, "faults::processes_with_different_sizes_are_named", different_sizes);
}

#[test]
fn hosts_with_different_sizes_are_named() {
    run(Kind::HOSTS, 2, LIMIT, "faults::hosts_with_different_sizes_are_named", different_sizes);
}

fn different_sizes(seat: &mut Seat) {
    let rank = seat.rank();
    let found = error(seat.communicator().sum(Buffer::<f32>::zeroed(100 + rank), Float::F32).join());
    let (peer, expected, sent) = (1 - rank, 4 * (100 + rank), 4 * (101 - rank));
    assert_eq!(
        found.to_string(),
        format!(
            "sum of f32, number 1: rank {peer} sends {sent} bytes, but rank {rank} expects {expected}: all ranks must pass \
             as many numbers"
        )
    );
    seat.meet();
}

#[test]
fn wrong_arguments_are_errors() {
    let wrong_parts = |seat: &mut Seat| {
        let found = error(seat.communicator().exchange(Vec::<Buffer<u32>>::new()).join());
        assert_eq!(found.to_string(), "exchange of u32, number 1: 0 parts for 1 ranks: pass one per rank");
    };
    run(Kind::Alone, 1, LIMIT, "", wrong_parts);
    let wrong_root = |seat: &mut Seat| {
        let found = error(seat.communicator().broadcast(3, Buffer::<u32>::default()).join());
        assert_eq!(
            found.to_string(),
            "broadcast of u32 from rank 3, number 1: there is no rank 3: the world has ranks 0 to 2"
        );
    };
    run(Kind::Local, 3, LIMIT, "", wrong_root);
}

#[test]
fn a_late_thread_is_named() {
    check_late(&run(Kind::Local, 3, SHORT_LIMIT, "", late));
}

#[test]
fn a_late_process_is_named() {
    check_late(&run(Kind::HOST, 3, SHORT_LIMIT, "faults::a_late_process_is_named", late));
}

#[test]
fn a_late_host_is_named() {
    check_late(&run(Kind::HOSTS, 3, SHORT_LIMIT, "faults::a_late_host_is_named", late));
}

const LATE: usize = 1;

fn late(seat: &mut Seat) {
    seat.communicator().barrier().join().unwrap();
    seat.meet();
    if seat.rank() != LATE {
        let began = Instant::now();
        let found = error(seat.communicator().sum(Buffer::<f32>::zeroed(10_000), Float::F32).join());
        let CollectiveError::Absent { label, absent } = &found else { panic!("{found}") };
        assert_eq!(*absent, Absent { dead: vec![], late: vec![LATE], deadline: SHORT_LIMIT });
        assert_eq!(label.number, 2);
        assert!((SHORT_LIMIT..10 * SHORT_LIMIT).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
    // The late rank stays until the others have given up.
    seat.meet();
}

/// The flight records name the operation and the rank that others waited for.
fn check_late(ends: &[End]) {
    let states: Vec<_> = ends.iter().map(|end| end.record.state()).collect();
    let open = OpenOperation::oldest(&states).unwrap();
    assert_eq!((&open.waiting[..], open.awaited()), (&[0, 2][..], vec![LATE]));
    let text = open.to_string();
    assert!(text.starts_with("sum of f32, number 2, 40000 bytes, open for "), "{text}");
}

#[test]
fn a_stopped_process_is_named() {
    run(Kind::HOST, 3, SHORT_LIMIT, "faults::a_stopped_process_is_named", stopped);
}

#[test]
fn a_stopped_host_is_named() {
    run(Kind::HOSTS, 3, SHORT_LIMIT, "faults::a_stopped_host_is_named", stopped);
}

/// A process that stops in the middle of large sums. An error may name a rank that itself waits for the stopped one; the
/// flight records of all ranks do not.
fn stopped(seat: &mut Seat) {
    let own = Buffer::from(&[std::process::id(), seat.record().as_raw_fd() as u32][..]);
    let seats = seat.communicator().gather(own).join().unwrap();
    let late_process = Pid::from_raw(seats[LATE][0].cast_signed()).unwrap();
    let open = |seat: &Buffer<u32>| File::open(format!("/proc/{}/fd/{}", seat[0], seat[1])).unwrap();
    let records: Vec<File> = seats.iter().map(open).collect();
    seat.meet();
    let found = std::thread::scope(|scope| {
        if seat.rank() == LATE {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                kill_process(late_process, Signal::STOP).unwrap();
            });
        }
        loop {
            if let Err(error) = seat.communicator().sum(Buffer::<f32>::zeroed(4 << 20), Float::F32).join() {
                break error;
            }
        }
    });
    if seat.rank() != LATE {
        let CollectiveError::Absent { absent, .. } = &found else { panic!("{found}") };
        assert!(absent.dead.is_empty() && !absent.late.is_empty(), "{found}");
    }
    if seat.rank() == 0 {
        let states: Vec<_> = records.iter().map(|file| FlightRecord::read(file).unwrap().state()).collect();
        let open = OpenOperation::oldest(&states).unwrap();
        assert_eq!(open.awaited(), [LATE], "{open}");
        kill_process(late_process, Signal::CONT).unwrap();
    }
    seat.meet();
}

#[test]
fn a_dead_thread_is_named() {
    check_dead(&run(Kind::Local, 3, LIMIT, "", dead));
}

#[test]
fn a_dead_process_is_named() {
    check_dead(&run(Kind::HOST, 3, LIMIT, "faults::a_dead_process_is_named", dead));
}

#[test]
fn a_dead_host_is_named() {
    check_dead(&run(Kind::HOSTS, 3, LIMIT, "faults::a_dead_host_is_named", dead));
}

const DEAD: usize = 2;

/// A rank that ends where others wait for it.
fn dead(seat: &mut Seat) {
    seat.communicator().barrier().join().unwrap();
    // A death is an error of every operation under way, so the barrier must have ended on all ranks.
    seat.meet();
    if seat.rank() == DEAD {
        seat.die();
        seat.meet();
        return;
    }
    let began = Instant::now();
    let found = error(seat.communicator().barrier().join());
    assert!(began.elapsed() < LIMIT, "noticed before the deadline");
    expect_dead(seat, &found, DEAD);
    assert_eq!(error(seat.communicator().barrier().join()), found);
    seat.meet();
}

#[test]
fn a_process_that_leaves_early_is_named() {
    let ends = run(Kind::HOST, 3, LIMIT, "faults::a_process_that_leaves_early_is_named", left);
    assert!(ends.iter().all(|end| !end.has_died));
}

#[test]
fn a_host_that_leaves_early_is_named() {
    let ends = run(Kind::HOSTS, 3, LIMIT, "faults::a_host_that_leaves_early_is_named", left);
    assert!(ends.iter().all(|end| !end.has_died));
}

/// A rank that leaves in good order, and lives on, while others still want an operation.
fn left(seat: &mut Seat) {
    seat.communicator().barrier().join().unwrap();
    if seat.rank() == DEAD {
        seat.leave();
    } else {
        let began = Instant::now();
        expect_dead(seat, &error(seat.communicator().barrier().join()), DEAD);
        assert!(began.elapsed() < LIMIT, "noticed before the deadline");
    }
    seat.meet();
}

fn check_dead(ends: &[End]) {
    let died: Vec<bool> = ends.iter().map(|end| end.has_died).collect();
    assert_eq!(died, [false, false, true]);
    let open: Vec<Option<u64>> =
        ends.iter().map(|end| end.record.oldest_open().map(|operation| operation.number)).collect();
    assert_eq!(open, [Some(2), Some(2), None]);
}

/// Of a rank on another host, only the end of its connection is noticed.
fn expect_dead(seat: &Seat, found: &CollectiveError, rank: usize) {
    if let CollectiveError::Engine { peer, reason, .. } = found {
        assert!(
            seat.is_remote(rank)
                && *peer == rank
                && reason.contains("its process has ended, or its host cannot be reached"),
            "{found}"
        );
        return;
    }
    let CollectiveError::Absent { absent, .. } = found else { panic!("{found}") };
    assert_eq!((&absent.dead[..], &absent.late[..]), (&[rank][..], &[][..]), "{found}");
}

/// Processes that are killed in the middle of large sums, at many moments: the others get an error, and none of them
/// aborts.
#[test]
fn survivors_of_a_killed_process_get_an_error() {
    check_kills(Kind::HOST, "faults::survivors_of_a_killed_process_get_an_error");
}

#[test]
fn survivors_of_a_killed_host_get_an_error() {
    check_kills(Kind::HOSTS, "faults::survivors_of_a_killed_host_get_an_error");
}

/// Rank 2 is on a host without survivors.
#[test]
fn survivors_on_one_host_get_an_error() {
    check_kills(Kind::PAIRS, "faults::survivors_on_one_host_get_an_error");
}

fn check_kills(kind: Kind, test: &str) {
    let mut killed_in_a_sum = 0;
    for _ in 0..KILLS {
        let ends = run(kind, 3, LIMIT, test, sum_until_killed);
        let died: Vec<bool> = ends.iter().map(|end| end.has_died).collect();
        assert_eq!(died, [false, false, true]);
        // The record of the killed process has the operation that it was in, unless it was between two.
        killed_in_a_sum += usize::from(ends[DEAD].record.oldest_open().is_some());
        assert!(ends[..DEAD].iter().all(|end| end.record.oldest_open().is_some()));
    }
    assert!(killed_in_a_sum > 0);
}

const KILLS: usize = 12;

fn sum_until_killed(seat: &mut Seat) {
    seat.communicator().barrier().join().unwrap();
    seat.meet();
    let sum = || seat.communicator().sum(Buffer::<f32>::zeroed(4 << 20), Float::F32);
    if seat.rank() == DEAD {
        // Process numbers make the moments differ: 0 to 100 ms, several sums.
        let moment = Duration::from_micros(u64::from(std::process::id()) * 7919 % 100_000);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(moment);
                kill_self();
            });
            loop {
                sum().join().unwrap();
            }
        });
    }
    let mut began = Instant::now();
    let found = loop {
        match sum().join() {
            Ok(_) => began = Instant::now(),
            Err(error) => break error,
        }
    };
    assert!(began.elapsed() < LIMIT, "noticed before the deadline");
    expect_dead(seat, &found, DEAD);
    seat.meet();
}
