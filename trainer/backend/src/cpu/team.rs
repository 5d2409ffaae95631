//! The threads of the CPU backend: fork and join over a numbered list of tasks.
//!
//! A step is some thirty short parallel operations in a row, so the cost of fork and join matters most. Rayon and
//! other general-purpose pools do not combine three properties: a fork allocates nothing, threads stay awake
//! between the operations of a step, and no operation waits for a thread that wakes late, because the caller and
//! the awake threads take over its tasks.
//!
//! A thread starts with its own share, the same part of each operation's tasks, so the rows that it wrote are in
//! its core's caches. Then it takes the tasks that others have left, so timing decides which thread runs a task.
//! Results do not depend on it: each result belongs to one task, and the order of its terms does not depend on
//! tasks.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::BackendError;

/// Iterations for which a thread without work spins before it sleeps: some tens of microseconds.
const SPINS_BEFORE_SLEEP: u32 = 20_000;
/// Iterations for which the caller spins before it yields its core to the helpers.
const SPINS_BEFORE_YIELD: u32 = 2_000;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the calling thread within the running job: below [`Team::threads`], and different for all threads of
/// the job. The caller of [`Team::run`] is 0.
#[cfg(target_arch = "x86_64")]
pub(crate) fn thread_number() -> usize {
    NUMBER.get()
}

/// Threads that help the caller of [`Team::run`].
pub(crate) struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held by the caller whose tasks the helpers run.
    turn: Mutex<()>,
}

struct Shared {
    state: Mutex<State>,
    /// Signalled when `state.job` or `state.quit` is set.
    work: Condvar,
    /// A copy of `state.generation`, to spin on.
    generation: AtomicU64,
    /// The next task of each thread's share of the current job.
    next: Box<[Next]>,
    /// The number of helpers that hold the current job. Grows only under `state` while a job is set, so once the
    /// job has been taken back and this is 0, no helper holds it.
    holders: AtomicUsize,
}

/// Padded to a cache line, because threads take tasks from their shares concurrently.
#[derive(Default)]
#[repr(align(64))]
struct Next(AtomicUsize);

struct State {
    job: Option<Job>,
    /// The number of the current or last job.
    generation: u64,
    sleepers: usize,
    panicked: bool,
    quit: bool,
}

#[derive(Clone, Copy)]
struct Job {
    body: &'static (dyn Fn(usize) + Sync),
    tasks: usize,
}

impl Team {
    /// Creates a team of `threads` threads, including the caller of [`Team::run`].
    pub(crate) fn new(threads: usize) -> Result<Self, BackendError> {
        let state = State { job: None, generation: 0, sleepers: 0, panicked: false, quit: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            generation: AtomicU64::new(0),
            next: (0..threads).map(|_| Next::default()).collect(),
            holders: AtomicUsize::new(0),
        });
        // Dropping the team on an error ends the threads already started.
        let mut team = Self { shared, helpers: Vec::new(), turn: Mutex::new(()) };
        for thread in 1..threads {
            let shared = Arc::clone(&team.shared);
            let helper = std::thread::Builder::new()
                .name(format!("cpu-{thread}"))
                .spawn(move || help(&shared, thread))
                .map_err(|source| BackendError::Thread { thread, source })?;
            team.helpers.push(helper);
        }
        Ok(team)
    }

    /// The number of threads, including the caller of [`Team::run`].
    pub(crate) fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `body` exactly once with each of `0..tasks`, in any order and on any thread, and returns when all
    /// calls have returned. Unsafe code relies on this: a task may write to memory that no other task number maps
    /// to.
    ///
    /// # Panics
    /// If `body` panics.
    pub(crate) fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let _caller = CallerNumber::set();
        if tasks <= 1 || self.helpers.is_empty() {
            (0..tasks).for_each(body);
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: only the lifetime changes. `present` takes the job back and waits until no helper holds it before
        // this function returns or unwinds, so the reference is not used after that.
        let body: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(body) };
        let present = Present::begin(&self.shared, Job { body, tasks });
        self.shared.work_through(Job { body, tasks }, 0);
        drop(present);
        let panicked = std::mem::take(&mut self.shared.lock().panicked);
        assert!(!panicked, "a task of the CPU backend panicked");
    }
}

/// Gives the calling thread number 0 until dropped, regardless of its number in another team.
struct CallerNumber {
    before: usize,
}

impl CallerNumber {
    fn set() -> Self {
        Self { before: NUMBER.replace(0) }
    }
}

impl Drop for CallerNumber {
    fn drop(&mut self) {
        NUMBER.set(self.before);
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.lock().quit = true;
        // Ends the spinning of awake helpers.
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.shared.work.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper catches the panics of tasks; it has nothing else to report.
            let _ = helper.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first task of a thread's share.
    fn share(&self, thread: usize, tasks: usize) -> usize {
        thread * tasks / self.next.len()
    }

    /// Takes tasks of the share of `thread`, then of those after it.
    fn work_through(&self, job: Job, thread: usize) {
        let threads = self.next.len();
        for share in (thread..threads).chain(0..thread) {
            let end = self.share(share + 1, job.tasks);
            loop {
                let task = self.next[share].0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                (job.body)(task);
            }
        }
    }

    /// Waits for a job newer than `seen`, and holds it. Returns `None` when the team is dissolved.
    fn take_job(&self, seen: &mut u64) -> Option<Job> {
        loop {
            let mut spins = 0;
            while self.generation.load(Ordering::Acquire) == *seen && spins < SPINS_BEFORE_SLEEP {
                std::hint::spin_loop();
                spins += 1;
            }
            let mut state = self.lock();
            while state.generation == *seen && !state.quit {
                state.sleepers += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleepers -= 1;
            }
            if state.quit {
                return None;
            }
            *seen = state.generation;
            // If the job has been taken back already, this thread stays awake for the next one.
            if let Some(job) = state.job {
                self.holders.fetch_add(1, Ordering::Relaxed);
                return Some(job);
            }
        }
    }
}

/// A job that helpers may take, until dropped.
struct Present<'a>(&'a Shared);

impl<'a> Present<'a> {
    fn begin(shared: &'a Shared, job: Job) -> Self {
        let mut state = shared.lock();
        for (thread, next) in shared.next.iter().enumerate() {
            next.0.store(shared.share(thread, job.tasks), Ordering::Relaxed);
        }
        state.job = Some(job);
        state.panicked = false;
        state.generation += 1;
        shared.generation.store(state.generation, Ordering::Release);
        if state.sleepers > 0 {
            shared.work.notify_all();
        }
        drop(state);
        Self(shared)
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.lock().job = None;
        let mut spins = 0;
        // Acquire: the helpers' writes happen before the caller's next reads.
        while self.0.holders.load(Ordering::Acquire) > 0 {
            if spins < SPINS_BEFORE_YIELD {
                std::hint::spin_loop();
                spins += 1;
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// The main loop of a helper.
fn help(shared: &Shared, thread: usize) {
    NUMBER.set(thread);
    let mut seen = 0;
    while let Some(job) = shared.take_job(&mut seen) {
        let outcome = catch_unwind(AssertUnwindSafe(|| shared.work_through(job, thread)));
        if outcome.is_err() {
            shared.lock().panicked = true;
        }
        shared.holders.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn threads_of_a_job_have_different_numbers_below_the_size_of_its_team() {
        let (outer, inner) = (Team::new(4).unwrap(), Team::new(2).unwrap());
        outer.run(40, &|_| {
            let before = NUMBER.get();
            assert!(before < 4);
            let busy = [AtomicUsize::new(0), AtomicUsize::new(0)];
            inner.run(20, &|_| {
                let number = NUMBER.get();
                assert_eq!(busy[number].fetch_add(1, Ordering::SeqCst), 0);
                std::thread::yield_now();
                busy[number].fetch_sub(1, Ordering::SeqCst);
            });
            assert_eq!(NUMBER.get(), before);
        });
    }

    #[test]
    fn each_task_runs_once() {
        for threads in [1, 2, 3, 8] {
            let team = Team::new(threads).unwrap();
            for tasks in (0..40).chain([1000]) {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.run(tasks, &|task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn what_tasks_write_is_seen_afterwards() {
        let team = Team::new(4).unwrap();
        for round in 0..2000_usize {
            let sum = AtomicUsize::new(0);
            team.run(7, &|task| {
                sum.fetch_add(task * round, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 21 * round);
        }
    }

    #[test]
    fn several_callers_take_turns() {
        let team = Team::new(3).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let count = AtomicUsize::new(0);
                        team.run(5, &|_| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                        assert_eq!(count.into_inner(), 5);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        let team = Team::new(3).unwrap();
        for bad in 0..10 {
            let outcome =
                catch_unwind(AssertUnwindSafe(|| team.run(10, &|task| assert!(task != bad, "task {bad}"))));
            assert!(outcome.is_err());
            let count = AtomicUsize::new(0);
            team.run(10, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 10);
        }
    }
}
