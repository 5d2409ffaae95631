//! The store: a handle to the thread that does all database work.
//!
//! SQLite waits when another process holds a lock of the database, and a disk may be slow. Only this thread waits for
//! that: a job's thread queues its writes and continues, and a request waits for its answer in a blocking context. The
//! queue is first in, first out, so a caller reads what was written before.
//!
//! While a lock is held, the thread retries the first write in the queue, and calls fail with the name of the process
//! that holds the lock. Writes beyond [`MAX_QUEUED`] are refused: a job's record is then written later, and the lines of
//! its log are lost.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::Level;

use crate::priority::{Niceness, yield_to_jobs};

use super::database::{Database, StoreError};
use super::{AuditFilter, AuditRecord, History, JobFilter, JobRecord, JobSource, LogRecord};

/// The maximum number of operations in the queue. With texts of a few KB, they use at most some ten MB.
const MAX_QUEUED: usize = 4096;

/// Time for which SQLite waits for a lock before it reports who holds it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The database of jobs. Its methods block for as long as the operations before them take, and for a bounded time if
/// another process holds a lock.
pub struct Store {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

/// Called with the database, or with the reason why the thread does not wait for it.
type Call = Box<dyn FnOnce(Result<&Database, StoreError>) + Send>;
type Write = Box<dyn FnMut(&Database) -> Result<(), StoreError> + Send>;

enum Operation {
    Call(Call),
    /// Repeated until no lock prevents it.
    Write {
        job: String,
        write: Write,
    },
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    operations: VecDeque<Operation>,
    /// Writes refused because the queue was full, since one was last accepted.
    refused: u64,
    is_closed: bool,
}

impl Store {
    /// Opens the database at `path`, creating or migrating it as needed.
    ///
    /// # Errors
    /// When it cannot be opened, another process holds its lock, or it is of a newer format.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_within(path, LOCK_TIMEOUT)
    }

    fn open_within(path: &Path, lock_timeout: Duration) -> Result<Self, StoreError> {
        Self::of(Database::open(path, lock_timeout)?)
    }

    /// Opens an in-memory store.
    ///
    /// # Errors
    /// When SQLite cannot allocate.
    pub fn open_in_memory() -> Result<Self, StoreError> {
        Self::of(Database::open_in_memory()?)
    }

    fn of(database: Database) -> Result<Self, StoreError> {
        let queue = Arc::<Queue>::default();
        let operations = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name("state".into());
        let thread = thread
            .spawn(move || {
                yield_to_jobs(Niceness::OfOne);
                operations.run(&database);
            })
            .map_err(StoreError::Thread)?;
        Ok(Self { queue, thread: Some(thread) })
    }

    /// Adds a job.
    ///
    /// # Errors
    /// When its id is taken.
    pub fn insert_job(&self, record: &JobRecord, source: &JobSource) -> Result<(), StoreError> {
        let (record, source) = (record.clone(), source.clone());
        self.call(move |database| database.insert_job(&record, &source))
    }

    /// Stores the mutable fields of `record`.
    ///
    /// # Errors
    /// When there is no such job.
    pub fn save_job(&self, record: &JobRecord) -> Result<(), StoreError> {
        let record = record.clone();
        self.call(move |database| database.save_job(&record))
    }

    /// Deletes a job, its log and its history. Its run directory stays.
    ///
    /// # Errors
    /// `UnknownJob` when there is no such job.
    pub fn remove_job(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.call(move |database| database.remove_job(&id))
    }

    /// Finds a job by its full id.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn job(&self, id: &str) -> Result<Option<JobRecord>, StoreError> {
        let id = id.to_owned();
        self.call(move |database| database.job(&id))
    }

    /// The id that equals `prefix`, or the only one that starts with it.
    ///
    /// # Errors
    /// `UnknownJob` for none, `Ambiguous` for several.
    pub fn find(&self, prefix: &str) -> Result<String, StoreError> {
        let prefix = prefix.to_owned();
        self.call(move |database| database.find(&prefix))
    }

    /// The jobs that `filter` selects, newest first, and their number without its limit.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn jobs(&self, filter: &JobFilter) -> Result<(Vec<JobRecord>, u64), StoreError> {
        let filter = filter.clone();
        self.call(move |database| database.jobs(&filter))
    }

    /// The position in the log of a job before its `last` lines (0 for all) from `since_ms` on.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn log_start(&self, id: &str, last: u64, since_ms: u64) -> Result<u64, StoreError> {
        let id = id.to_owned();
        self.call(move |database| database.log_start(&id, last, since_ms))
    }

    /// Jobs that have not reached a final state, oldest first; a starting daemon resumes them.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn unfinished(&self) -> Result<Vec<JobRecord>, StoreError> {
        self.call(Database::unfinished)
    }

    /// The source of a job.
    ///
    /// # Errors
    /// `UnknownJob` when there is no such job.
    pub fn source(&self, id: &str) -> Result<JobSource, StoreError> {
        let id = id.to_owned();
        self.call(move |database| database.source(&id))
    }

    /// Appends a line to a job's log.
    ///
    /// # Errors
    /// When there is no such job.
    pub fn append_log(&self, id: &str, at_ms: u64, level: Level, text: &str) -> Result<u64, StoreError> {
        let (id, text) = (id.to_owned(), super::storable(text).into_owned());
        self.call(move |database| database.append_log(&id, at_ms, level, &text))
    }

    /// The oldest `most` of a job's log lines after position `after` (0 for all), oldest first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn logs(&self, id: &str, after: u64, most: usize) -> Result<Vec<LogRecord>, StoreError> {
        let id = id.to_owned();
        self.call(move |database| database.logs(&id, after, most))
    }

    /// A job's history.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn history(&self, id: &str) -> Result<History, StoreError> {
        let id = id.to_owned();
        self.call(move |database| database.history(&id))
    }

    /// The records of changes that `filter` selects, oldest first, and their number without its limit.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn audit(&self, filter: &AuditFilter) -> Result<(Vec<AuditRecord>, u64), StoreError> {
        let filter = filter.clone();
        self.call(move |database| database.audit(&filter))
    }

    /// Queues a record of a change without waiting for it. If it cannot be written, it is lost, and a warning says so.
    pub fn append_audit(&self, record: AuditRecord) {
        let is_queued = self.write(&record.job.clone(), move |database| {
            let written = database.append_audit(&record).map_err(|error| database.located(error));
            match written {
                Ok(()) => Ok(()),
                // Tried again.
                Err(error @ StoreError::Locked { .. }) => Err(error),
                Err(error) => {
                    let AuditRecord { user, call, job, .. } = &record;
                    tracing::warn!(job, "cannot record `{call}` of {user} for `millstream audit`: {error}");
                    Ok(())
                }
            }
        });
        if !is_queued {
            tracing::warn!(
                "cannot record a change for `millstream audit`: the state database does not answer"
            );
        }
    }

    /// Queues a write of `job` without waiting for it. The thread logs its error. Returns false if the queue is full.
    pub(crate) fn write(
        &self,
        job: &str,
        write: impl FnMut(&Database) -> Result<(), StoreError> + Send + 'static,
    ) -> bool {
        self.queue.push_write(job, Box::new(write))
    }

    /// Waits until everything queued so far is written, for at most `limit`.
    pub(crate) fn flush(&self, limit: Duration) {
        let (sender, done) = sync_channel(1);
        let is_queued = self.write("", move |_| {
            // The caller may have stopped waiting.
            let _ = sender.try_send(());
            Ok(())
        });
        if is_queued && done.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the state database has not answered for {limit:?}; jobs continue");
        }
    }

    /// Runs `work` on the thread and waits for its result.
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, result) = sync_channel(1);
        let call = move |database: Result<&Database, StoreError>| {
            let result =
                database.and_then(|database| work(database).map_err(|error| database.located(error)));
            // The caller waits.
            let _ = sender.send(result);
        };
        self.queue.push_call(Box::new(call))?;
        result.recv().unwrap_or(Err(StoreError::Failed))
    }
}

impl Drop for Store {
    /// Waits until the queue is written. A lock that is still held then is not waited for again.
    fn drop(&mut self) {
        self.queue.state().is_closed = true;
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has logged its panic.
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn push_call(&self, call: Call) -> Result<(), StoreError> {
        let mut state = self.state();
        if state.operations.len() >= MAX_QUEUED {
            return Err(StoreError::Busy);
        }
        state.operations.push_back(Operation::Call(call));
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    fn push_write(&self, job: &str, write: Write) -> bool {
        let mut state = self.state();
        if state.operations.len() >= MAX_QUEUED {
            if state.refused == 0 {
                tracing::warn!("the state database does not answer; the next lines of logs are lost");
            }
            state.refused += 1;
            return false;
        }
        if state.refused > 0 {
            tracing::warn!(writes = state.refused, "writes to the state database were lost");
            state.refused = 0;
        }
        state.operations.push_back(Operation::Write { job: job.to_owned(), write });
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Carries out operations until the queue is closed and empty.
    fn run(&self, database: &Database) {
        while let Some(operation) = self.next() {
            // A transaction rolls back when dropped in a panic. A call's caller finds its channel closed.
            let done = catch_unwind(AssertUnwindSafe(|| match operation {
                Operation::Call(call) => call(Ok(database)),
                Operation::Write { job, write } => self.write(database, &job, write),
            }));
            if done.is_err() {
                tracing::error!("an operation on the state database panicked");
            }
        }
    }

    fn next(&self) -> Option<Operation> {
        let mut state = self.state();
        loop {
            match state.operations.pop_front() {
                Some(operation) => return Some(operation),
                None if state.is_closed => return None,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Writes, as soon as no other process prevents it.
    fn write(&self, database: &Database, job: &str, mut write: Write) {
        let mut is_reported = false;
        loop {
            let error = match write(database) {
                Ok(()) => return,
                Err(error) => database.located(error),
            };
            if !matches!(error, StoreError::Locked { .. }) || self.state().is_closed {
                tracing::error!(job, %error, "cannot store the job's state");
                return;
            }
            if !is_reported {
                tracing::warn!("waiting for a lock: {error}");
                is_reported = true;
            }
            self.fail_calls(database);
        }
    }

    /// Answers all waiting calls: they do not wait for a lock that another process keeps.
    fn fail_calls(&self, database: &Database) {
        let mut failed = Vec::new();
        {
            let mut state = self.state();
            let (calls, writes): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut state.operations)
                .into_iter()
                .partition(|operation| matches!(operation, Operation::Call(_)));
            state.operations = writes;
            failed.extend(calls);
        }
        for operation in failed {
            if let Operation::Call(call) = operation {
                call(Err(database.locked()));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::access::Requester;
    use std::io::{BufRead, BufReader, Read, Write as _};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use rusqlite::Connection;

    use millstream_io::storage::Directory;

    use super::*;

    /// Names the database that the other process locks.
    const LOCKED_DATABASE: &str = "MILLSTREAM_TEST_LOCKED_DATABASE";

    #[test]
    #[ignore = "the other process of the test below"]
    fn lock_a_database_until_standard_input_ends() {
        let connection = Connection::open(PathBuf::from(std::env::var_os(LOCKED_DATABASE).unwrap())).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        std::io::stdout().write_all(b"\nlocked\n").unwrap();
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }

    /// Locks the database in another process, which keeps the lock until it is killed.
    fn lock_elsewhere(path: &Path) -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture"])
            .arg("state::store::tests::lock_a_database_until_standard_input_ends")
            .env(LOCKED_DATABASE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "locked"));
        child
    }

    #[test]
    fn a_lock_of_another_process_stalls_no_write_and_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.sqlite");
        let store = Store::open_within(&path, Duration::from_millis(50)).unwrap();
        let record = JobRecord::new("a", "a", Directory::local("/checkpoints/a"));
        let source = JobSource { text: String::new(), path: "/a.toml".into(), requester: Requester::Trusted };
        store.insert_job(&record, &source).unwrap();

        let mut child = lock_elsewhere(&path);
        let named = format!("process {} (", child.id());
        let error = store.insert_job(&JobRecord { id: "b".into(), ..record }, &source).unwrap_err();
        assert!(error.to_string().contains(&named), "{error}");
        for nth in 0..100 {
            // The thread waits for the lock with the first line; this one does not wait for the thread.
            let line = move |database: &Database| {
                database.append_log("a", nth, Level::INFO, &format!("line {nth}")).map(drop)
            };
            assert!(store.write("a", line));
        }
        let error = store.jobs(&JobFilter::default()).unwrap_err();
        assert!(matches!(error, StoreError::Locked { .. }) && error.to_string().contains(&named), "{error}");

        child.kill().unwrap();
        child.wait().unwrap();
        store.flush(Duration::from_secs(60));
        assert_eq!(store.logs("a", 0, 200).unwrap().len(), 100, "each line is written once, after the lock");
        assert_eq!(
            store.jobs(&JobFilter::default()).unwrap().0.len(),
            1,
            "the failed insert was not carried out later"
        );
    }

    #[test]
    fn a_database_whose_lock_is_held_is_not_opened_and_the_holder_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.sqlite");
        // Not yet in WAL mode, so that opening it needs the lock.
        let mut child = lock_elsewhere(&path);
        let error = Store::open_within(&path, Duration::from_millis(50)).err().unwrap().to_string();
        assert!(error.contains(&format!("process {} (", child.id())), "{error}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Store::open(&path).is_ok());
    }

    #[test]
    fn a_full_queue_refuses_writes_and_calls() {
        let store = Store::open_in_memory().unwrap();
        let (release, released) = sync_channel::<()>(0);
        assert!(store.write("a", move |_| {
            // Closed when the test releases it.
            let _ = released.recv();
            Ok(())
        }));
        let accepted = (0..2 * MAX_QUEUED).filter(|_| store.write("a", |_| Ok(()))).count();
        assert!((MAX_QUEUED - 1..=MAX_QUEUED + 1).contains(&accepted), "{accepted}");
        assert!(matches!(store.jobs(&JobFilter::default()), Err(StoreError::Busy)));
        drop(release);
        store.flush(Duration::from_secs(60));
        while matches!(store.jobs(&JobFilter::default()), Err(StoreError::Busy)) {
            std::thread::yield_now();
        }
        assert!(store.jobs(&JobFilter::default()).is_ok());
    }
}
