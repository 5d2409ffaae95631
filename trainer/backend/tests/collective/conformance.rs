//! Results of all operations, on all transports and worlds.
//!
//! Inputs are functions of the rank, so that each rank computes what it must get by itself.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use millstream_backend::Float;
use millstream_backend::collective::{Buffer, Communicator, Element, FlightRecord, Operation};

use crate::worlds::{Kind, Seat, run};

/// Long enough for seven busy processes on one core.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn one_rank_conforms() {
    run(Kind::Alone, 1, LIMIT, "", conform);
}

#[test]
fn threads_conform() {
    for ranks in [1, 2, 3, 4, 7] {
        run(Kind::Local, ranks, LIMIT, "", conform);
    }
}

// A test per world, since each runs again as its ranks.

#[test]
fn a_world_of_1_process_conforms() {
    run(Kind::HOST, 1, LIMIT, "conformance::a_world_of_1_process_conforms", conform);
}

#[test]
fn a_world_of_2_processes_conforms() {
    run(Kind::HOST, 2, LIMIT, "conformance::a_world_of_2_processes_conforms", conform);
}

#[test]
fn a_world_of_3_processes_conforms() {
    run(Kind::HOST, 3, LIMIT, "conformance::a_world_of_3_processes_conforms", conform);
}

#[test]
fn a_world_of_4_processes_conforms() {
    run(Kind::HOST, 4, LIMIT, "conformance::a_world_of_4_processes_conforms", conform);
}

#[test]
fn a_world_of_7_processes_conforms() {
    run(Kind::HOST, 7, LIMIT, "conformance::a_world_of_7_processes_conforms", conform);
}

#[test]
fn a_world_of_2_hosts_conforms() {
    run(Kind::HOSTS, 2, LIMIT, "conformance::a_world_of_2_hosts_conforms", conform);
}

#[test]
fn a_world_of_3_hosts_conforms() {
    run(Kind::HOSTS, 3, LIMIT, "conformance::a_world_of_3_hosts_conforms", conform);
}

#[test]
fn a_world_of_4_hosts_conforms() {
    run(Kind::HOSTS, 4, LIMIT, "conformance::a_world_of_4_hosts_conforms", conform);
}

#[test]
fn four_ranks_on_hosts_of_2_conform() {
    run(Kind::PAIRS, 4, LIMIT, "conformance::four_ranks_on_hosts_of_2_conform", conform);
}

#[test]
fn five_ranks_on_hosts_of_2_conform() {
    run(Kind::PAIRS, 5, LIMIT, "conformance::five_ranks_on_hosts_of_2_conform", conform);
}

#[test]
fn two_hosts_with_a_reducer_conform() {
    conform_with_reducers((2, 1), "conformance::two_hosts_with_a_reducer_conform");
}

#[test]
fn three_hosts_with_two_reducers_conform() {
    conform_with_reducers((3, 2), "conformance::three_hosts_with_two_reducers_conform");
}

#[test]
fn two_hosts_with_three_reducers_conform() {
    conform_with_reducers((2, 3), "conformance::two_hosts_with_three_reducers_conform");
}

/// All large sums are those of the reducers.
fn conform_with_reducers((ranks, reducers): (usize, usize), test: &str) {
    let ends = run(Kind::with_reducers(reducers), ranks, LIMIT, test, conform);
    let sums = |record: &FlightRecord, min_bytes: u64| {
        let sums =
            record.operations.iter().filter(|operation| matches!(operation.operation, Operation::Sum(_)));
        let large = sums.filter(|sum| sum.ended.is_some() && sum.bytes >= min_bytes);
        large.map(|sum| (sum.number, sum.operation)).collect::<Vec<_>>()
    };
    let expected = sums(&ends[0].record, 100_000);
    for end in &ends[ranks..] {
        let found = sums(&end.record, 0);
        assert!(!expected.is_empty() && expected.iter().all(|sum| found.contains(sum)), "{found:?}");
    }
}

/// The suite.
fn conform(seat: &mut Seat) {
    let communicator = seat.communicator();
    sums(communicator);
    sums_of_few_and_of_many_numbers_agree(communicator);
    extremes(communicator);
    elements::<u8>(communicator, |x| x as u8);
    elements::<f32>(communicator, |x| x as f32);
    elements::<u32>(communicator, |x| x as u32);
    elements::<u64>(communicator, |x| x.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    barriers(communicator);
    tickets(communicator);
}

/// Numbers of both signs and different magnitudes.
fn term(rank: usize, index: usize) -> f32 {
    let word = (index as u32 ^ (rank as u32) << 20)
        .wrapping_mul(0x9e37_79b9)
        .rotate_left(13)
        .wrapping_mul(0x85eb_ca6b);
    let fraction = f64::from(word) / f64::from(u32::MAX) - 0.5;
    (fraction * 2.0_f64.powi((word % 13) as i32 - 6)) as f32
}

fn terms(rank: usize, len: usize) -> Buffer<f32> {
    let terms: Vec<f32> = (0..len).map(|index| term(rank, index)).collect();
    Buffer::from(&terms[..])
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Compares sums with those in fp64, across ranks and with a repetition.
fn sums(communicator: &Communicator) {
    let ranks = communicator.ranks();
    for len in [0, 1, 15, 16, 17, 1000, 1023, 1024, 1025, 2049, 16 * ranks + 1, 30_001, 300_007] {
        for (wire, precision) in [(Float::F32, 24), (Float::Bf16, 8), (Float::F16, 11)] {
            let sum = || communicator.sum(terms(communicator.rank(), len), wire).join().unwrap();
            let found = sum();
            assert_eq!(found.len(), len);
            for (index, &found) in found.iter().enumerate() {
                let terms = (0..ranks).map(|rank| f64::from(term(rank, index)));
                let (expected, size): (f64, f64) = (terms.clone().sum(), terms.map(f64::abs).sum());
                // Each term and the sum are rounded once to the wire's format, and each addition to fp32. Half of the
                // least fp16 number is what rounding of tiny numbers adds.
                let rounding = (size + expected.abs()) * 2.0_f64.powi(-precision);
                let additions = size * ranks as f64 * 2.0_f64.powi(-24);
                let tiny = if wire == Float::F16 { (ranks + 1) as f64 * 2.0_f64.powi(-25) } else { 0.0 };
                let tolerance = 1.01 * (rounding + additions + tiny);
                let error = (f64::from(found) - expected).abs();
                assert!(error <= tolerance, "{len} as {wire:?}, number {index}: {found}, not {expected}");
            }
            assert_eq!(bits(&sum()), bits(&found), "{len} as {wire:?}: a repetition differs");
            let of_all = communicator.gather(found).join().unwrap();
            assert_eq!(of_all.len(), ranks);
            for (rank, other) in of_all.iter().enumerate() {
                assert_eq!(bits(other), bits(&of_all[0]), "{len} as {wire:?}: rank {rank} differs");
            }
        }
    }
}

/// Few numbers are added by all ranks, many by their owners, with the same bits.
fn sums_of_few_and_of_many_numbers_agree(communicator: &Communicator) {
    for wire in [Float::F32, Float::Bf16, Float::F16] {
        let sum = |len| communicator.sum(terms(communicator.rank(), len), wire).join().unwrap();
        let (few, many) = (sum(1000), sum(5003));
        assert_eq!(bits(&few), bits(&many[..1000]), "{wire:?}");
    }
}

/// Infinity and NaN reach all ranks, and fp16 overflows to infinity.
fn extremes(communicator: &Communicator) {
    let last = communicator.ranks() - 1;
    for len in [4, 4004] {
        for (wire, overflows) in [(Float::F32, false), (Float::Bf16, false), (Float::F16, true)] {
            let mut numbers = vec![0.0; len];
            if communicator.rank() == last {
                numbers[len - 4..].copy_from_slice(&[f32::INFINITY, f32::NAN, 1e6, -0.0]);
            }
            let sum = communicator.sum(Buffer::from(&numbers[..]), wire).join().unwrap();
            let [infinity, nan, large, zero] = sum[len - 4..] else { unreachable!() };
            assert!(
                infinity == f32::INFINITY && nan.is_nan() && zero == 0.0,
                "{wire:?}: {:?}",
                &sum[len - 4..]
            );
            assert!(
                if overflows { large == f32::INFINITY } else { (large - 1e6).abs() < 4e3 },
                "{wire:?}: {large}"
            );
        }
    }
}

/// Exchange, gather and broadcast with unequal counts, zero among them.
fn elements<T: Element + PartialEq + Debug>(communicator: &Communicator, of: fn(u64) -> T) {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    // Counts around the largest message of one part, and beyond the sizes at which UCX changes its protocol.
    for scale in [0, 1, 130, 1024, 4097, 70_001] {
        let data = |from: usize, to: usize| -> Buffer<T> {
            let len = (3 * from + 5 * to + 1) % 4 * scale;
            let element = |index: usize| of((index + 1_000_000 * from + 30_000_000 * to) as u64);
            Buffer::from(&(0..len).map(element).collect::<Vec<T>>()[..])
        };
        let parts = (0..ranks).map(|to| data(rank, to)).collect();
        let received = communicator.exchange(parts).join().unwrap();
        assert_eq!(received.len(), ranks);
        for (from, received) in received.iter().enumerate() {
            assert!(received[..] == data(from, rank)[..], "exchange from {from}, scale {scale}");
        }

        let gathered = communicator.gather(data(rank, 0)).join().unwrap();
        assert_eq!(gathered.len(), ranks);
        for (from, gathered) in gathered.iter().enumerate() {
            assert!(gathered[..] == data(from, 0)[..], "gather from {from}, scale {scale}");
        }

        for root in 0..ranks {
            let own = if rank == root { data(root, 1) } else { Buffer::default() };
            let sent = communicator.broadcast(root, own).join().unwrap();
            assert!(sent[..] == data(root, 1)[..], "broadcast from {root}, scale {scale}");
        }
    }
}

/// No rank leaves a barrier before all have entered it.
fn barriers(communicator: &Communicator) {
    // All ranks read one clock, of the host.
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    for round in 0..20 {
        let entered = now();
        // Another rank is the last one each time.
        if round % communicator.ranks() == communicator.rank() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let last_moment = now();
        communicator.barrier().join().unwrap();
        let left = now();
        assert!(left >= last_moment && last_moment >= entered);
        let times = communicator.gather(Buffer::from(&[last_moment, left][..])).join().unwrap();
        let last_entry = times.iter().map(|times| times[0]).max().unwrap();
        let first_exit = times.iter().map(|times| times[1]).min().unwrap();
        assert!(first_exit >= last_entry, "a rank left {} ns early", last_entry - first_exit);
    }
}

/// Several operations may be under way; tickets may be joined in any order or not at all.
fn tickets(communicator: &Communicator) {
    let ranks = communicator.ranks() as f32;
    let began = Instant::now();
    let tickets: Vec<_> = (0..50)
        .map(|number| {
            drop(communicator.barrier());
            communicator.sum(Buffer::from(&vec![number as f32; 10 + 100 * number][..]), Float::F32)
        })
        .collect();
    for (number, ticket) in tickets.into_iter().enumerate().rev() {
        let sum = ticket.join().unwrap();
        assert_eq!(sum[..], vec![number as f32 * ranks; 10 + 100 * number]);
    }
    assert!(began.elapsed() < LIMIT);
}
