//! Operations over ranks on emulated GPUs, each with its own emulator.
#![allow(clippy::unwrap_used)]

mod rows;

use std::panic::{AssertUnwindSafe, catch_unwind};

use millstream_test_cuda::StandIn;

use super::super::testing::{alone, count, fail_nccl};
use super::*;
use crate::collective::Local;
use crate::float::Float;
use crate::ops;

/// NCCL's code of a lost rank.
const REMOTE_ERROR: i32 = 6;

/// A rank with its own emulated GPU.
struct Rank {
    stand_in: StandIn,
    cuda: Cuda,
    communicator: Communicator,
}

impl Rank {
    fn connect(&self) -> Result<CudaPeers, ConnectDevicesError> {
        self.cuda.connect_peers(&self.communicator)
    }

    fn matrix(&self, float: Float, rows: usize, numbers: &[f32]) -> CudaMatrix {
        let mut matrix = self.cuda.matrix_of(float, rows, numbers.len() / rows);
        self.cuda.write_matrix(&mut matrix, numbers);
        matrix
    }

    fn read(&self, matrix: &CudaMatrix) -> Vec<f32> {
        let mut numbers = vec![0.0; matrix.rows() * matrix.columns()];
        self.cuda.read_matrix(matrix, &mut numbers);
        numbers
    }

    fn sum(&self, peers: &CudaPeers, matrix: &mut CudaMatrix) {
        self.cuda.sum_over_ranks(peers, |sum| sum(matrix));
    }
}

/// Runs each rank of a world in a thread; returns their results.
fn world<R: Send>(ranks: usize, limit: Duration, run: impl Fn(Rank) -> R + Sync) -> Vec<R> {
    let rank = |transport: Local| {
        let (stand_in, cuda) = alone();
        run(Rank { stand_in, cuda, communicator: Communicator::new(transport, limit, None).unwrap() })
    };
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            Local::world(ranks).into_iter().map(|it| scope.spawn(move || rank(it))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const LIMIT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(2);

/// The error that `work` raises, which must be within the time limit.
fn raised(work: impl FnOnce()) -> String {
    let began = Instant::now();
    let error = catch_unwind(AssertUnwindSafe(work)).expect_err("no error");
    assert!(began.elapsed() < SHORT + Duration::from_secs(5), "after {:?}", began.elapsed());
    error.downcast_ref::<CollectiveError>().expect("a collective error").to_string()
}

#[test]
fn all_ranks_get_the_same_sums() {
    let sums = world(3, LIMIT, |rank| {
        let number = rank.communicator.rank() as f32;
        let peers = rank.connect().unwrap();
        let mut all = Vec::new();
        for float in [Float::F32, Float::Bf16, Float::F16] {
            let mut first = rank.matrix(float, 5, &[number + 0.5; 35]);
            let mut second = rank.matrix(float, 1, &[2.0 - number]);
            for _ in 0..4 {
                rank.cuda.sum_over_ranks(&peers, |sum| {
                    sum(&mut first);
                    sum(&mut second);
                });
                all.extend(rank.read(&first));
                all.extend(rank.read(&second));
            }
        }
        all
    });
    assert!(sums[0] == sums[1] && sums[0] == sums[2]);
    assert_eq!(sums[0][..36], [[4.5; 35].as_slice(), &[3.0]].concat());
    assert_eq!(sums[0][36..72], [[13.5; 35].as_slice(), &[9.0]].concat());
}

/// Operations before a sum precede it, later ones wait for it, and the host waits for neither.
#[test]
fn a_sum_is_in_order_with_other_operations() {
    let sums = world(2, LIMIT, |rank| {
        let peers = rank.connect().unwrap();
        let one = rank.matrix(Float::F32, 1, &[1.0 + rank.communicator.rank() as f32; 3]);
        let mut to = rank.matrix(Float::F32, 1, &[0.0; 3]);
        let mut most_open = 0;
        for _ in 0..6 {
            for _ in 0..4 {
                rank.cuda.run(ops::Add { rows: 1, from: &one, to: &mut to });
            }
            rank.sum(&peers, &mut to);
            rank.cuda.run(ops::Add { rows: 1, from: &one, to: &mut to });
            most_open = most_open.max(rank.cuda.sums.lock().open.len());
        }
        assert!(most_open > 1, "sums are not awaited");
        (rank.read(&to), count(&rank.stand_in, c"executable graphs"))
    });
    // Ranks hold a and b: each round, s = (a + 4) + (b + 8), then a = s + 1 and b = s + 2.
    let [mut a, mut b] = [0.0, 0.0];
    for _ in 0..6 {
        let sum = (a + 4.0) + (b + 8.0);
        [a, b] = [sum + 1.0, sum + 2.0];
    }
    assert_eq!([&sums[0].0[..], &sums[1].0[..]], [[a; 3], [b; 3]]);
    assert!(sums.iter().all(|(_, graphs)| *graphs > 0), "the lists between sums become graphs");
}

/// As many as the sums of a large model cut a step into.
#[test]
fn each_of_many_lists_becomes_a_graph() {
    let (stand_in, cuda) = alone();
    let one = cuda.matrix(1, 3);
    let mut to = cuda.matrix(1, 3);
    for _ in 0..3 {
        for list in 0..20 {
            for _ in 0..5 + list {
                cuda.run(ops::Add { rows: 1, from: &one, to: &mut to });
            }
            cuda.flush();
        }
    }
    assert_eq!(count(&stand_in, c"executable graphs"), 20);
}

/// The other rank starts only after work that was queued behind the sum has been done.
#[test]
fn a_started_sum_runs_beside_later_operations_until_it_is_joined() {
    let sums = world(2, LIMIT, |rank| {
        let peers = rank.connect().unwrap();
        let number = 1.0 + rank.communicator.rank() as f32;
        let mut summed = rank.matrix(Float::F32, 1, &[number; 3]);
        let mut beside = rank.matrix(Float::F32, 1, &[10.0; 3]);
        let one = rank.matrix(Float::F32, 1, &[1.0; 3]);
        if rank.communicator.rank() == 1 {
            rank.communicator.barrier().join().unwrap();
        }
        rank.cuda.start_sum(&peers, |sum| sum(&mut summed));
        rank.cuda.run(ops::Add { rows: 1, from: &one, to: &mut beside });
        rank.cuda.flush();
        let done = Event::new(rank.cuda.context()).unwrap();
        done.record(&rank.cuda.stream).unwrap();
        if rank.communicator.rank() == 0 {
            let began = Instant::now();
            while !done.is_over().unwrap() {
                assert!(began.elapsed() < LIMIT, "work waits for a sum that was not joined");
                std::thread::sleep(POLL_INTERVAL);
            }
            rank.communicator.barrier().join().unwrap();
        }
        rank.cuda.join_sums(&peers);
        rank.cuda.run(ops::Add { rows: 1, from: &summed, to: &mut beside });
        rank.read(&beside)
    });
    assert_eq!(sums, [[14.0; 3], [14.0; 3]]);
}

#[test]
fn memory_that_is_dropped_stays_until_the_sum_has_ended() {
    world(2, LIMIT, |rank| {
        let peers = rank.connect().unwrap();
        rank.cuda.context().catch_up();
        let before = count(&rank.stand_in, c"allocations");
        rank.cuda.sum_over_ranks(&peers, |sum| sum(&mut rank.cuda.matrix(1, 1000)));
        assert_eq!(count(&rank.stand_in, c"allocations"), before + 1);
        rank.cuda.finish();
        rank.cuda.context().catch_up();
        assert_eq!(count(&rank.stand_in, c"allocations"), before);
    });
}

/// The device waits for the silent rank in the second sum, the host waits for the device.
#[test]
fn a_silent_rank_is_an_error_within_the_time_limit() {
    let errors = world(2, SHORT, |rank| {
        let peers = rank.connect().unwrap();
        if rank.communicator.rank() == 1 {
            fail_nccl(&rank.stand_in, c"silent", 2, 1);
        }
        let mut matrix = rank.matrix(Float::F32, 1, &[1.0; 3]);
        rank.sum(&peers, &mut matrix);
        assert_eq!(rank.read(&matrix), [2.0; 3]);
        rank.sum(&peers, &mut matrix);
        // What is dropped afterwards must not wait for the device either.
        raised(|| rank.cuda.read_matrix(&matrix, &mut [0.0; 3]))
    });
    let expected = "sum on GPUs, number 4: a rank did not complete it within 2 s; the workers of this job must be started \
                    again";
    assert_eq!(errors, [expected; 2]);
}

/// The host does not wait for the device when it fails, but drops everything.
#[test]
fn an_open_sum_does_not_keep_a_rank_from_ending() {
    let ends = world(2, LIMIT, |rank| {
        let peers = rank.connect().unwrap();
        if rank.communicator.rank() == 1 {
            return Duration::ZERO;
        }
        let mut matrix = rank.matrix(Float::F32, 1, &[1.0; 3]);
        rank.sum(&peers, &mut matrix);
        let began = Instant::now();
        drop(matrix);
        drop(rank);
        drop(peers);
        began.elapsed()
    });
    assert!(ends[0] < SHORT, "{ends:?}");
}

#[test]
fn different_operations_and_failures_are_named() {
    let failure = |cause: &(dyn Fn(&Rank) -> usize + Sync)| {
        world(2, SHORT, |rank| {
            let peers = rank.connect().unwrap();
            let mut matrix = rank.matrix(Float::F32, 1, &vec![1.0; cause(&rank)]);
            raised(|| {
                rank.sum(&peers, &mut matrix);
                rank.cuda.finish();
            })
        })
    };
    let different = failure(&|rank| 4 + 4 * rank.communicator.rank());
    let part = "operation 3: rank 0 runs a sum of 4 x float32, but rank 1 runs a sum of 8 x float32";
    assert!(different[0].contains("sum on GPUs, number 3: ") && different[0].contains(part), "{different:?}");
    let lost = failure(&|rank| {
        fail_nccl(&rank.stand_in, c"asynchronous", 1, REMOTE_ERROR);
        4
    });
    let part = "remote process exited or there was a network error: an asynchronous error by script";
    assert!(lost.iter().all(|error| error.contains(part)), "{lost:?}");
    for function in [c"ncclAllReduce", c"ncclGroupEnd"] {
        let failed = failure(&|rank| {
            fail_nccl(&rank.stand_in, function, 1, REMOTE_ERROR);
            4
        });
        let name = function.to_str().unwrap();
        let part = format!("sum on GPUs, number 3: {name} of NVIDIA's collectives library (NCCL) failed");
        assert!(failed.iter().all(|error| error.contains(&part)), "{failed:?}");
    }
}

#[test]
fn what_prevents_a_connection_is_reported() {
    let errors = world(2, SHORT, |rank| {
        if rank.communicator.rank() == 1 {
            fail_nccl(&rank.stand_in, c"ncclCommInitRankConfig", 1, 3);
        }
        rank.connect().err().unwrap()
    });
    let [ConnectDevicesError::Collective(late), ConnectDevicesError::Nccl(refused)] = &errors[..] else {
        panic!("{errors:?}");
    };
    assert!(late.to_string().starts_with("first contact, number 0: a rank did not complete it within 2 s"));
    let refused = refused.to_string();
    assert!(refused.starts_with("ncclCommInitRankConfig of NVIDIA's collectives library"), "{refused}");
}
