//! Which workers of a job take part in its next generation: all, or fewer after failures (`workers.min`).
//!
//! A worker whose device is broken fails in every attempt. It is left out of the next ones if
//!
//! * it could not open its device, or
//! * it has caused two failures in a row, without a new checkpoint or image in between.
//!
//! At least `workers.min` workers remain, and with `workers.reproducible` a number that divides its parts; a healthy worker in
//! excess is a spare. This state lasts as long as the job's thread, so a resumed job tries all devices again.
//!
//! The *number* of a worker is its place among all workers of the job, and does not change. Ranks count the members, in the order
//! of their numbers.

use std::fmt;

use millstream_job::Job;

use crate::ranks;

/// The workers of a job that take part.
#[derive(Debug)]
pub(super) struct Membership {
    /// All workers of the job.
    all: u32,
    /// The GPU of each; empty on the CPU.
    gpus: Vec<u32>,
    /// The fewest members.
    min: u32,
    /// The parts of a batch, of which every member has equally many.
    parts: Option<u32>,
    left_out: Vec<LeftOut>,
    /// The worker that caused the last failure, without progress since.
    suspect: Option<u32>,
}

/// A worker that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Its number among all workers of the job, from 0.
    pub(crate) worker: u32,
    /// Its GPU; `None` on the CPU.
    pub(crate) gpu: Option<u32>,
    /// Its last failure.
    pub(crate) reason: String,
}

/// The workers of a job that trains with fewer than it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FewerWorkers {
    /// The number of members.
    pub(crate) members: u32,
    /// The number of all workers.
    pub(crate) all: u32,
    /// Those that failed.
    pub(crate) left_out: Vec<LeftOut>,
}

/// The failure of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Worker `rank` died, or its device failed.
    OfWorker { rank: u32 },
    /// Worker `rank` could not open its device.
    NoDevice { rank: u32 },
    /// A failure that no worker is known to have caused, or that the others would meet as well.
    Other,
}

impl Membership {
    /// All workers of `job`.
    pub(super) fn of(job: &Job) -> Self {
        Self {
            all: job.training.ranks(),
            gpus: ranks::gpus(&job.training),
            min: job.workers.min,
            parts: job.workers.reproducible,
            left_out: Vec::new(),
            suspect: None,
        }
    }

    /// The numbers of the members, by rank.
    pub(super) fn members(&self) -> Vec<u32> {
        let working = self.working();
        let count = self.largest(working.len() as u32).unwrap_or(self.all);
        working.into_iter().take(count as usize).collect()
    }

    /// The GPUs of the members, by rank; empty on the CPU.
    pub(super) fn gpus(&self) -> Vec<u32> {
        self.members().iter().filter_map(|&worker| self.gpu(worker)).collect()
    }

    /// The job has a new checkpoint or image.
    pub(super) fn on_progress(&mut self) {
        self.suspect = None;
    }

    /// An attempt has failed, because of `reason`. Returns whether its cause is left out from now on.
    pub(super) fn on_failure(&mut self, failure: Failure, reason: &str) -> bool {
        let (rank, is_permanent) = match failure {
            Failure::OfWorker { rank } => (Some(rank), false),
            Failure::NoDevice { rank } => (Some(rank), true),
            Failure::Other => (None, false),
        };
        let worker = rank.and_then(|rank| self.members().get(rank as usize).copied());
        let before = std::mem::replace(&mut self.suspect, worker);
        let Some(worker) = worker.filter(|_| is_permanent || before == worker) else { return false };
        if self.largest(self.working().len() as u32 - 1).is_none() {
            return false;
        }
        self.left_out.push(LeftOut { worker, gpu: self.gpu(worker), reason: reason.to_owned() });
        self.suspect = None;
        true
    }

    /// Who trains and who is left out; `None` if all workers take part.
    pub(super) fn fewer(&self) -> Option<FewerWorkers> {
        let members = self.members().len() as u32;
        let fewer = FewerWorkers { members, all: self.all, left_out: self.left_out.clone() };
        (members < self.all).then_some(fewer)
    }

    /// The workers that are not left out.
    fn working(&self) -> Vec<u32> {
        let is_left_out = |worker: u32| self.left_out.iter().any(|left| left.worker == worker);
        (0..self.all).filter(|&worker| !is_left_out(worker)).collect()
    }

    /// The largest number of members among `working` workers; `None` if there are too few.
    fn largest(&self, working: u32) -> Option<u32> {
        let divides = |count: &u32| self.parts.is_none_or(|parts| parts.is_multiple_of(*count));
        (self.min..=working).rev().find(divides)
    }

    fn gpu(&self, worker: u32) -> Option<u32> {
        self.gpus.get(worker as usize).copied()
    }
}

impl fmt::Display for FewerWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.left_out.iter().map(LeftOut::name).collect();
        write!(f, "continues with {} of {} workers, without {}", self.members, self.all, names.join(", "))
    }
}

impl LeftOut {
    /// Its GPU, or the worker itself on the CPU.
    fn name(&self) -> String {
        self.gpu.map_or_else(|| format!("worker {}", self.worker), |gpu| format!("GPU {gpu}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership((all, min): (u32, u32), gpus: &[u32], parts: Option<u32>) -> Membership {
        Membership { all, gpus: gpus.to_vec(), min, parts, left_out: Vec::new(), suspect: None }
    }

    fn of_worker(rank: u32) -> Failure {
        Failure::OfWorker { rank }
    }

    #[test]
    fn the_second_failure_in_a_row_leaves_a_worker_out() {
        let mut workers = membership((4, 2), &[3, 0, 2, 5], None);
        assert_eq!((workers.gpus(), workers.fewer()), (vec![3, 0, 2, 5], None));
        assert!(!workers.on_failure(of_worker(2), "once"));
        assert!(workers.on_failure(of_worker(2), "twice"));
        assert_eq!((workers.members(), workers.gpus()), (vec![0, 1, 3], vec![3, 0, 5]));
        let left_out = vec![LeftOut { worker: 2, gpu: Some(2), reason: "twice".into() }];
        let fewer = FewerWorkers { members: 3, all: 4, left_out };
        assert_eq!(fewer.to_string(), "continues with 3 of 4 workers, without GPU 2");
        assert_eq!(workers.fewer(), Some(fewer));

        // Rank 2 is another worker now.
        assert!(!workers.on_failure(of_worker(2), "once"));
        assert!(workers.on_failure(of_worker(2), "twice"));
        assert_eq!(workers.gpus(), [3, 0]);
        assert!(!workers.on_failure(of_worker(0), "once") && !workers.on_failure(of_worker(0), "twice"));
        assert_eq!(workers.gpus(), [3, 0], "`min` remain");
    }

    #[test]
    fn failures_are_in_a_row_without_progress_and_of_one_worker() {
        let mut workers = membership((3, 1), &[], None);
        for _ in 0..5 {
            assert!(!workers.on_failure(of_worker(1), "killed"));
            workers.on_progress();
        }
        for failure in [of_worker(1), of_worker(0), of_worker(1), Failure::Other, of_worker(1)] {
            assert!(!workers.on_failure(failure, "killed"));
        }
        assert!(workers.on_failure(of_worker(1), "killed"));
        assert_eq!((workers.members(), workers.gpus()), (vec![0, 2], vec![]));
        assert_eq!(workers.left_out[0].name(), "worker 1");
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_left_out_at_once() {
        let mut workers = membership((3, 2), &[0, 1, 2], None);
        assert!(workers.on_failure(Failure::NoDevice { rank: 0 }, "lost"));
        assert_eq!(workers.gpus(), [1, 2]);
        assert!(!workers.on_failure(Failure::NoDevice { rank: 1 }, "lost"));
        assert!(!membership((3, 3), &[0, 1, 2], None).on_failure(Failure::NoDevice { rank: 0 }, "lost"));
        assert!(!workers.on_failure(of_worker(7), "of no member"));
    }

    #[test]
    fn the_number_of_members_divides_the_parts() {
        let mut workers = membership((8, 2), &[0, 1, 2, 3, 4, 5, 6, 7], Some(16));
        assert_eq!(workers.members().len(), 8);
        assert!(workers.on_failure(Failure::NoDevice { rank: 1 }, "lost"));
        assert_eq!(workers.gpus(), [0, 2, 3, 4]);
        // Spares take its place.
        for gpus in [[0, 3, 4, 5], [0, 4, 5, 6], [0, 5, 6, 7]] {
            assert!(workers.on_failure(Failure::NoDevice { rank: 1 }, "lost"));
            assert_eq!(workers.gpus(), gpus);
        }
        assert!(workers.on_failure(Failure::NoDevice { rank: 1 }, "lost"));
        assert_eq!(workers.gpus(), [0, 6]);
        assert_eq!(workers.fewer().map(|fewer| (fewer.members, fewer.left_out.len())), Some((2, 5)));

        let mut all_or_none = membership((4, 3), &[], Some(8));
        assert!(!all_or_none.on_failure(Failure::NoDevice { rank: 0 }, "lost"));
        assert_eq!(all_or_none.members().len(), 4);
    }

    #[test]
    fn one_worker_is_never_left_out() {
        let mut workers = membership((1, 1), &[0], None);
        assert!(!workers.on_failure(Failure::NoDevice { rank: 0 }, "lost"));
        assert_eq!((workers.members(), workers.fewer()), (vec![0], None));
    }
}
