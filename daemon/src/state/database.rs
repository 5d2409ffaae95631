//! Jobs and their logs in SQLite. Histories are in `history.rs`.
//!
//! One connection, used by the thread of the store only. In WAL mode with `synchronous = NORMAL`, committed data
//! survives the death of the process at any moment. A power failure may lose the last transactions, but never the
//! database, and jobs resume from their checkpoints anyway.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, named_params, params};

use millstream_control::proto::JobProgress;
use millstream_io::storage::Directory;
use millstream_trainer::metrics::{Metrics, one_or_several};
use millstream_worker::locks;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{JobFilter, JobRecord, JobSource, JobState, schema, storable};

/// The columns of a [`JobRecord`], in the order in which [`read_job`] reads them. Texts are bounded when they are written;
/// earlier versions did not do that.
const JOB_COLUMNS: &str = "id, name, state, substr(reason, 1, 4096), attempts, created_ms, started_ms, ended_ms, \
     directory, checkpoint, step, total_steps, epoch, epochs, examples, examples_per_second, input_wait_fraction, \
     loss, skipped_records, eval_epoch, eval, device, daemon_deaths, owner, priority";

/// The database of jobs.
pub(crate) struct Database {
    pub(super) connection: Connection,
    /// Its file; empty for a database in memory.
    path: PathBuf,
}

/// Why a database operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened as a database.
    #[error("cannot open the state database `{path}`: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The file was written by a newer version of the daemon.
    #[error("the state database has format {found}; this version supports formats up to {known}")]
    Newer {
        /// The file's format.
        found: usize,
        /// The newest format known.
        known: usize,
    },
    /// No job has this id.
    #[error("no job `{id}`")]
    UnknownJob {
        /// The id.
        id: String,
    },
    /// Several jobs' ids start with the prefix.
    #[error("`{prefix}` is ambiguous: {}", .ids.join(", "))]
    Ambiguous {
        /// The prefix.
        prefix: String,
        /// The ids that start with it.
        ids: Vec<String>,
    },
    /// Another process holds a lock of the database.
    #[error(
        "the state database `{path}` is locked by {}; end it, or wait for it to finish",
        .holder.as_deref().unwrap_or("another process")
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// The process, if it is known.
        holder: Option<String>,
    },
    /// Too many operations wait.
    #[error("too many operations wait for the state database; try again")]
    Busy,
    /// The operation panicked.
    #[error("an internal error in the state database; see the daemon's log")]
    Failed,
    /// The system cannot start the store's thread.
    #[error("cannot start the thread of the state database: {0}")]
    Thread(std::io::Error),
    /// A statement failed.
    #[error("the state database: {0}")]
    Sql(#[from] rusqlite::Error),
}

impl Database {
    /// Opens the database at `path`, creating or migrating it as needed. Operations wait for another process's lock for at
    /// most `lock_timeout`.
    ///
    /// # Errors
    /// When it cannot be opened, another process holds its lock, or it is of a newer format.
    pub(super) fn open(path: &Path, lock_timeout: Duration) -> Result<Self, StoreError> {
        let connection =
            Connection::open(path).map_err(|source| StoreError::Open { path: path.to_owned(), source })?;
        let mut database = Self { connection, path: path.to_owned() };
        let opened = database.set_up(lock_timeout);
        match opened.map_err(|error| database.located(error)) {
            Ok(()) => Ok(database),
            Err(StoreError::Sql(source)) => Err(StoreError::Open { path: path.to_owned(), source }),
            Err(error) => Err(error),
        }
    }

    fn set_up(&mut self, lock_timeout: Duration) -> Result<(), StoreError> {
        self.connection.busy_timeout(lock_timeout)?;
        // The pragma returns the new mode, so it is a query. It is also the first read of the file.
        self.connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        self.connection.pragma_update(None, "synchronous", "NORMAL")?;
        self.migrate()
    }

    /// Opens an in-memory database.
    ///
    /// # Errors
    /// When SQLite cannot allocate.
    pub(super) fn open_in_memory() -> Result<Self, StoreError> {
        let mut database = Self { connection: Connection::open_in_memory()?, path: PathBuf::new() };
        database.migrate()?;
        Ok(database)
    }

    fn migrate(&mut self) -> Result<(), StoreError> {
        self.connection.pragma_update(None, "foreign_keys", true)?;
        schema::migrate(&mut self.connection)
    }

    /// `error`, with the process that holds a lock if that is the cause.
    pub(super) fn located(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Sql(ref sql) if is_locked(sql) => self.locked(),
            other => other,
        }
    }

    /// The error of a locked database.
    pub(super) fn locked(&self) -> StoreError {
        let index = with_suffix(&self.path, "-shm");
        let holder = locks::holder(&index).or_else(|| locks::holder(&self.path));
        StoreError::Locked { path: self.path.clone(), holder }
    }

    /// Adds a job.
    ///
    /// # Errors
    /// When its id is taken.
    pub(super) fn insert_job(&self, record: &JobRecord, source: &JobSource) -> Result<(), StoreError> {
        let transaction = self.connection.unchecked_transaction()?;
        transaction.prepare_cached(
            "INSERT INTO job (id, name, text, path, state, reason, attempts, created_ms, directory, step, epoch, \
             epochs, examples, skipped_records, requester) VALUES (?1, ?2, ?3, ?4, ?5, '', 0, ?6, ?7, 0, 0, 0, 0, 0, ?8)",
        )?
        .execute(params![
            record.id,
            record.name,
            source.text,
            bytes(&source.path),
            record.state.name(),
            record.created_ms,
            record.directory.to_bytes(),
            serde_json::to_string(&source.requester).expect("a user has numbers"),
        ])?;
        write_job(&transaction, record)?;
        transaction.commit()?;
        Ok(())
    }

    /// Stores the mutable fields of `record`.
    ///
    /// # Errors
    /// When there is no such job.
    pub(crate) fn save_job(&self, record: &JobRecord) -> Result<(), StoreError> {
        write_job(&self.connection, record)
    }

    /// Deletes a job, its log and its history. Its run directory stays.
    ///
    /// # Errors
    /// `UnknownJob` when there is no such job.
    pub(super) fn remove_job(&self, id: &str) -> Result<(), StoreError> {
        let transaction = self.connection.unchecked_transaction()?;
        for table in ["log", "history", "evaluation"] {
            transaction.execute(&format!("DELETE FROM {table} WHERE job = ?1"), [id])?;
        }
        if transaction.execute("DELETE FROM job WHERE id = ?1", [id])? == 0 {
            return Err(StoreError::UnknownJob { id: id.to_owned() });
        }
        transaction.commit()?;
        Ok(())
    }

    /// Finds a job by its full id.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub(super) fn job(&self, id: &str) -> Result<Option<JobRecord>, StoreError> {
        let mut statement =
            self.connection.prepare_cached(&format!("SELECT {JOB_COLUMNS} FROM job WHERE id = ?1"))?;
        Ok(statement.query_row([id], read_job).optional()?)
    }

    /// The id that equals `prefix`, or the only one that starts with it.
    ///
    /// # Errors
    /// `UnknownJob` for none, `Ambiguous` for several.
    pub(super) fn find(&self, prefix: &str) -> Result<String, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT id FROM job WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id LIMIT 5")?;
        let mut ids = statement.query_map([prefix], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
        if ids.first().is_some_and(|id| id == prefix) || (ids.len() == 1 && !prefix.is_empty()) {
            Ok(ids.swap_remove(0))
        } else if ids.is_empty() || prefix.is_empty() {
            Err(StoreError::UnknownJob { id: prefix.to_owned() })
        } else {
            Err(StoreError::Ambiguous { prefix: prefix.to_owned(), ids })
        }
    }

    /// The jobs that `filter` selects, newest first, and their number without its limit.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub(super) fn jobs(&self, filter: &JobFilter) -> Result<(Vec<JobRecord>, u64), StoreError> {
        let JobFilter { states, limit } = filter;
        let names: Vec<_> = states.iter().map(|state| format!("'{state}'")).collect();
        let selected =
            if names.is_empty() { String::new() } else { format!("WHERE state IN ({})", names.join(", ")) };
        let limited = limit.map(|limit| format!(" LIMIT {limit}")).unwrap_or_default();
        let jobs = self.select_jobs(&format!("{selected} ORDER BY created_ms DESC, rowid DESC{limited}"))?;
        let all = format!("SELECT count(*) FROM job {selected}");
        Ok((jobs, self.connection.prepare_cached(&all)?.query_row([], |row| row.get(0))?))
    }

    /// Jobs that have not reached a final state, oldest first; a starting daemon resumes them.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub(super) fn unfinished(&self) -> Result<Vec<JobRecord>, StoreError> {
        let unfinished = "WHERE state NOT IN ('succeeded', 'failed', 'cancelled', 'held', 'paused')";
        let mut jobs = self.select_jobs(&format!("{unfinished} ORDER BY created_ms, rowid"))?;
        jobs.retain(|job| !job.state.is_final());
        Ok(jobs)
    }

    /// The source of a job.
    ///
    /// # Errors
    /// `UnknownJob` when there is no such job.
    pub(super) fn source(&self, id: &str) -> Result<JobSource, StoreError> {
        let mut statement =
            self.connection.prepare_cached("SELECT text, path, requester FROM job WHERE id = ?1")?;
        statement
            .query_row([id], |row| {
                let requester = read_document(row, 2)?.unwrap_or_default();
                Ok(JobSource { text: row.get(0)?, path: path(row.get(1)?), requester })
            })
            .optional()?
            .ok_or_else(|| StoreError::UnknownJob { id: id.to_owned() })
    }

    fn select_jobs(&self, clause: &str) -> Result<Vec<JobRecord>, StoreError> {
        let mut statement =
            self.connection.prepare_cached(&format!("SELECT {JOB_COLUMNS} FROM job {clause}"))?;
        let mut rows = statement.query([])?;
        let mut jobs = Vec::new();
        while let Some(row) = rows.next()? {
            jobs.extend(read_job(row).map_or_else(|error| damaged_job(row, &error), Some));
        }
        Ok(jobs)
    }
}

fn write_job(connection: &Connection, record: &JobRecord) -> Result<(), StoreError> {
    let progress = &record.progress;
    let eval = Evaluation(record.eval.clone());
    let eval = serde_json::to_string(&eval).expect("metrics have names and numbers");
    let text = |device| serde_json::to_string(device).expect("a device has names and numbers");
    let device = record.device.as_ref().map(text);
    let text = |owner| serde_json::to_string(owner).expect("a user has a number and a name");
    let owner = record.owner.as_ref().map(text);
    let changed = connection
        .prepare_cached(
            "UPDATE job SET state = :state, reason = :reason, attempts = :attempts, started_ms = :started_ms, \
             ended_ms = :ended_ms, directory = :directory, checkpoint = :checkpoint, step = :step, \
             total_steps = :total_steps, epoch = :epoch, epochs = :epochs, examples = :examples, \
             examples_per_second = :rate, input_wait_fraction = :wait, loss = :loss, skipped_records = :skipped, \
             eval_epoch = :eval_epoch, eval = :eval, device = :device, daemon_deaths = :daemon_deaths, \
             owner = :owner, priority = :priority WHERE id = :id",
        )?
        .execute(named_params! {
            ":id": record.id,
            ":state": record.state.name(),
            ":reason": storable(&record.reason),
            ":attempts": record.attempts,
            ":started_ms": record.started_ms,
            ":ended_ms": record.ended_ms,
            ":directory": record.directory.to_bytes(),
            ":checkpoint": record.checkpoint.as_ref().map(Directory::to_bytes),
            ":step": progress.step,
            ":total_steps": progress.total_steps,
            ":epoch": progress.epoch,
            ":epochs": progress.epochs,
            ":examples": progress.examples,
            ":rate": progress.examples_per_second,
            ":wait": progress.input_wait_fraction,
            ":loss": progress.loss,
            ":skipped": progress.skipped_records,
            ":eval_epoch": record.eval_epoch,
            ":eval": eval,
            ":device": device,
            ":daemon_deaths": record.daemon_deaths,
            ":owner": owner,
            ":priority": record.priority,
        })?;
    if changed == 0 {
        return Err(StoreError::UnknownJob { id: record.id.clone() });
    }
    Ok(())
}

fn read_job(row: &Row<'_>) -> rusqlite::Result<JobRecord> {
    Ok(JobRecord {
        id: row.get(0)?,
        name: row.get(1)?,
        state: parse::<JobState>(row, 2)?,
        reason: row.get(3)?,
        waits_for: String::new(),
        attempts: row.get(4)?,
        created_ms: row.get(5)?,
        started_ms: row.get(6)?,
        ended_ms: row.get(7)?,
        directory: directory(8, row.get(8)?)?,
        checkpoint: row.get::<_, Option<Vec<u8>>>(9)?.map(|bytes| directory(9, bytes)).transpose()?,
        progress: JobProgress {
            step: row.get(10)?,
            total_steps: row.get(11)?,
            total_is_estimate: false,
            epoch: row.get(12)?,
            epochs: row.get(13)?,
            examples: row.get(14)?,
            examples_per_second: real(row, 15)?,
            input_wait_fraction: real(row, 16)?,
            loss: real(row, 17)?,
            skipped_records: row.get(18)?,
        },
        eval_epoch: row.get(19)?,
        eval: read_eval(row, 20)?,
        device: read_document(row, 21)?,
        daemon_deaths: row.get(22)?,
        owner: read_document(row, 23)?,
        priority: row.get(24)?,
    })
}

/// The record of a job whose row cannot be read, so that it does not hide the other jobs. `None` without a readable id.
fn damaged_job(row: &Row<'_>, error: &rusqlite::Error) -> Option<JobRecord> {
    let id = row.get::<_, String>(0);
    tracing::error!(?id, %error, "a job's row in the state database is damaged");
    let (id, name) = (id.ok()?, row.get::<_, String>(1).unwrap_or_default());
    let mut record = JobRecord::new(id, name, damaged_directory(row.get(8).unwrap_or_default()));
    record.created_ms = row.get(5).unwrap_or_default();
    record.enter(JobState::Failed, &format!("its row in the state database is damaged: {error}"));
    Some(record)
}

/// Metrics as a JSON document.
#[derive(Deserialize, Serialize)]
struct Evaluation(#[serde(with = "one_or_several")] Vec<Metrics>);

fn read_eval(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<Metrics>> {
    Ok(read_document::<Evaluation>(row, column)?.map_or_else(Vec::new, |evaluation| evaluation.0))
}

fn read_document<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    let Some(text) = row.get::<_, Option<String>>(column)? else { return Ok(None) };
    let read = serde_json::from_str(&text);
    read.map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

/// Reads a REAL; SQLite stores NaN as null.
pub(super) fn real(row: &Row<'_>, column: usize) -> rusqlite::Result<f64> {
    Ok(row.get::<_, Option<f64>>(column)?.unwrap_or(f64::NAN))
}

pub(super) fn parse<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    row.get::<_, String>(column)?
        .parse()
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

/// Whether another connection's lock prevented an operation.
fn is_locked(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Paths are stored as raw bytes, since they may not be UTF-8.
fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// The directory of a damaged record, whatever it is.
fn damaged_directory(bytes: Vec<u8>) -> Directory {
    Directory::from_bytes(bytes.clone()).unwrap_or_else(|_| Directory::local(path(bytes)))
}

/// The directory in column `index`.
fn directory(index: usize, bytes: Vec<u8>) -> rusqlite::Result<Directory> {
    Directory::from_bytes(bytes)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(index, Type::Blob, Box::new(error)))
}

fn path(bytes: Vec<u8>) -> PathBuf {
    OsStr::from_bytes(&bytes).into()
}

pub(super) fn missing_job(error: rusqlite::Error, id: &str) -> StoreError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::ConstraintViolation) => StoreError::UnknownJob { id: id.to_owned() },
        _ => StoreError::Sql(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::access::Requester;
    use millstream_backend::{Description, GpuName, LibraryVersion};
    use millstream_trainer::metrics::{Metric, MetricValue};

    use tracing::Level;

    use super::super::MAX_TEXT_BYTES;
    use super::*;
    use millstream_control::proto::{Evaluation, NamedValue};

    use crate::state::HistoryPoint;

    fn record(id: &str) -> JobRecord {
        JobRecord::new(id, "census", Directory::local(PathBuf::from("checkpoints").join(id)))
    }

    fn source() -> JobSource {
        JobSource {
            text: "name = \"census\"".into(),
            path: "/jobs/census.toml".into(),
            requester: Requester::Trusted,
        }
    }

    /// Metrics with distinct values.
    fn metrics() -> Metrics {
        let values = Metric::ALL.iter().zip(1_u8..).map(|(&(_, metric), nth)| MetricValue {
            metric,
            value: Some(f64::from(nth) / 10.0),
            error: metric.has_error_bound().then(|| f64::from(nth) / 1000.0),
        });
        Metrics { values: values.collect(), groups: Some(12), examples: 99, ..Metrics::default() }
    }

    fn full_record() -> JobRecord {
        JobRecord {
            reason: "the worker was killed by signal 9".into(),
            attempts: 2,
            started_ms: Some(5),
            ended_ms: Some(6),
            state: JobState::Failed,
            checkpoint: Some(Directory::local(OsStr::from_bytes(b"not utf-8: \xff"))),
            progress: JobProgress {
                step: 7,
                total_steps: Some(70),
                epoch: 1,
                epochs: 10,
                examples: 1_000,
                examples_per_second: 123.5,
                input_wait_fraction: 0.25,
                loss: 0.5,
                skipped_records: 3,
                total_is_estimate: false,
            },
            device: Some(Description {
                text: "GPU 1, some GPU".into(),
                gpu: Some(GpuName { number: 1, name: "some GPU".into() }),
                libraries: vec![LibraryVersion { library: "a driver".into(), version: "13.0".into() }],
            }),
            eval: vec![metrics()],
            eval_epoch: Some(4),
            daemon_deaths: 1,
            ..record("census-1")
        }
    }

    #[test]
    fn a_record_round_trips() {
        let store = Database::open_in_memory().unwrap();
        for wanted in [JobRecord { id: "census-2".into(), ..record("census-2") }, full_record()] {
            store.insert_job(&wanted, &source()).unwrap();
            assert_eq!(store.job(&wanted.id).unwrap().unwrap(), wanted);
        }
        assert_eq!(store.source("census-1").unwrap(), source());
        assert_eq!(store.job("census-3").unwrap(), None);
    }

    #[test]
    fn a_saved_change_replaces_the_record() {
        let store = Database::open_in_memory().unwrap();
        store.insert_job(&record("census-1"), &source()).unwrap();
        store.save_job(&full_record()).unwrap();
        let found = store.job("census-1").unwrap().unwrap();
        assert_eq!(found, JobRecord { created_ms: found.created_ms, ..full_record() });
        let unknown = store.save_job(&record("census-9")).unwrap_err();
        assert_eq!(unknown.to_string(), "no job `census-9`");
    }

    #[test]
    fn metrics_of_several_labels_round_trip_even_if_undefined() {
        let store = Database::open_in_memory().unwrap();
        let undefined = |measured: &mut MetricValue| (measured.value, measured.error) = (None, None);
        let mut eval = vec![metrics(), metrics()];
        eval[0].values.iter_mut().for_each(undefined);
        eval[1].values.retain(|measured| measured.metric == Metric::Rmse);
        eval[1].groups = None;
        for (label, metrics) in ["bought", "price"].into_iter().zip(&mut eval) {
            metrics.label = label.to_owned();
        }
        store.insert_job(&JobRecord { eval: eval.clone(), ..record("a") }, &source()).unwrap();
        assert_eq!(store.job("a").unwrap().unwrap().eval, eval);
    }

    #[test]
    fn huge_texts_are_cut_even_if_an_earlier_version_stored_them_whole() {
        let store = Database::open_in_memory().unwrap();
        let huge = "\u{e9}".repeat(1 << 20);
        store.insert_job(&JobRecord { reason: huge.clone(), ..record("a") }, &source()).unwrap();
        store.append_log("a", 0, Level::ERROR, &huge).unwrap();
        let texts = || {
            [
                store.jobs(&JobFilter::default()).unwrap().0[0].reason.clone(),
                store.logs("a", 0, 1).unwrap()[0].text.clone(),
            ]
        };
        for text in texts() {
            assert!(
                text.len() <= MAX_TEXT_BYTES && text.ends_with("(cut from 2097152 bytes)"),
                "{}",
                text.len()
            );
        }
        store.connection.execute("UPDATE job SET reason = ?1", [&huge]).unwrap();
        store.connection.execute("UPDATE log SET text = ?1", [&huge]).unwrap();
        assert!(texts().iter().all(|text| text.len() <= 2 * MAX_TEXT_BYTES));
    }

    #[test]
    fn a_damaged_row_does_not_hide_the_others() {
        let store = Database::open_in_memory().unwrap();
        for id in ["a", "b", "c"] {
            store.insert_job(&record(id), &source()).unwrap();
        }
        store.connection.execute("UPDATE job SET state = 'no such state' WHERE id = 'a'", []).unwrap();
        store.connection.execute("UPDATE job SET eval = '{' WHERE id = 'c'", []).unwrap();
        let jobs = store.jobs(&JobFilter::default()).unwrap().0;
        assert_eq!(jobs.len(), 3);
        for job in jobs {
            assert_eq!(job.state == JobState::Failed, job.id != "b", "{job:?}");
            assert_eq!(job.reason.contains("damaged"), job.id != "b", "{job:?}");
        }
        let unfinished = store.unfinished().unwrap();
        assert_eq!(unfinished.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn a_listing_is_limited_to_states_and_to_the_newest() {
        let store = Database::open_in_memory().unwrap();
        let states = [JobState::Succeeded, JobState::Failed, JobState::Failed, JobState::Queued];
        for (number, state) in states.into_iter().enumerate() {
            let created_ms = 100 - number as u64;
            let id = format!("job-{number}");
            store.insert_job(&JobRecord { state, created_ms, ..record(&id) }, &source()).unwrap();
        }
        let list = |states: &[JobState], limit| {
            let (jobs, all) = store.jobs(&JobFilter { states: states.into(), limit }).unwrap();
            (jobs.into_iter().map(|job| job.id).collect::<Vec<_>>(), all)
        };
        let ids = |numbers: &[u64]| numbers.iter().map(|number| format!("job-{number}")).collect::<Vec<_>>();
        assert_eq!(list(&[], None), (ids(&[0, 1, 2, 3]), 4));
        assert_eq!(list(&[], Some(2)), (ids(&[0, 1]), 4));
        assert_eq!(list(&[JobState::Failed], Some(1)), (ids(&[1]), 2));
        assert_eq!(list(&[JobState::Failed, JobState::Queued], None), (ids(&[1, 2, 3]), 3));
        assert_eq!(list(&[JobState::Held], None), (ids(&[]), 0));
    }

    #[test]
    fn a_removed_job_leaves_nothing_behind() {
        let store = Database::open_in_memory().unwrap();
        for id in ["a", "b"] {
            store.insert_job(&record(id), &source()).unwrap();
            store.append_log(id, 0, Level::INFO, "line").unwrap();
            store.append_history(id, &HistoryPoint { step: 1, ..HistoryPoint::default() }).unwrap();
            let metrics = vec![NamedValue { name: "auc".to_owned(), value: 0.5 }];
            store.append_evaluation(id, &Evaluation { step: 1, epoch: 0, metrics }).unwrap();
        }
        store.remove_job("a").unwrap();
        let rows = |table: &str| -> u64 {
            let count = format!("SELECT count(*) FROM {table}");
            store.connection.query_row(&count, [], |row| row.get(0)).unwrap()
        };
        assert_eq!(["job", "log", "history", "evaluation"].map(rows), [1; 4]);
        assert!(matches!(store.remove_job("a"), Err(StoreError::UnknownJob { .. })));
    }

    #[test]
    fn ids_are_unique() {
        let store = Database::open_in_memory().unwrap();
        store.insert_job(&record("a"), &source()).unwrap();
        assert!(matches!(store.insert_job(&record("a"), &source()), Err(StoreError::Sql(_))));
    }

    #[test]
    fn lists_are_ordered_and_unfinished_excludes_final_states() {
        let store = Database::open_in_memory().unwrap();
        for (created_ms, state) in JobState::ALL.into_iter().enumerate() {
            let id = format!("job-{state}");
            let created_ms = created_ms as u64;
            store.insert_job(&JobRecord { state, created_ms, ..record(&id) }, &source()).unwrap();
        }
        let ids = |jobs: Vec<JobRecord>| jobs.into_iter().map(|job| job.id).collect::<Vec<_>>();
        let newest_first = ids(store.jobs(&JobFilter::default()).unwrap().0);
        assert_eq!(newest_first.first().unwrap(), "job-paused");
        assert_eq!(newest_first.len(), JobState::ALL.len());
        assert_eq!(ids(store.unfinished().unwrap()), ["job-queued", "job-preparing", "job-running"]);
    }

    #[test]
    fn a_unique_prefix_finds_its_job() {
        let store = Database::open_in_memory().unwrap();
        for id in ["census-a1", "census-a2", "clicks-b", "clicks-b2"] {
            store.insert_job(&record(id), &source()).unwrap();
        }
        assert_eq!(store.find("census-a2").unwrap(), "census-a2");
        assert_eq!(store.find("clicks-b").unwrap(), "clicks-b", "a whole id wins over longer ones");
        let error = |prefix: &str| store.find(prefix).unwrap_err().to_string();
        assert_eq!(error("cen"), "`cen` is ambiguous: census-a1, census-a2");
        assert_eq!(error("%"), "no job `%`");
        assert_eq!(error(""), "no job ``");
    }

    #[test]
    fn a_file_is_reopened_and_a_newer_format_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state.sqlite");
        Database::open(&file, Duration::ZERO).unwrap().insert_job(&record("a"), &source()).unwrap();
        assert_eq!(
            Database::open(&file, Duration::ZERO).unwrap().jobs(&JobFilter::default()).unwrap().0.len(),
            1
        );

        let connection = Connection::open(&file).unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
        drop(connection);
        assert!(matches!(
            Database::open(&file, Duration::ZERO),
            Err(StoreError::Newer { found: 99, known: 11 })
        ));
    }

    #[test]
    fn the_error_contains_the_path_of_a_file_that_is_not_a_database() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state.sqlite");
        std::fs::write(&file, "this is not a database, and long enough to show it".repeat(50)).unwrap();
        let error = Database::open(&file, Duration::ZERO).err().unwrap().to_string();
        assert!(error.contains("state.sqlite") && error.contains("not a database"), "{error}");
    }

    #[test]
    fn entering_a_state_sets_timestamps() {
        let mut job = record("a");
        job.enter(JobState::Preparing, "");
        let started = job.started_ms;
        assert!(started.is_some() && job.ended_ms.is_none());
        job.enter(JobState::Failed, "no");
        assert_eq!(job.started_ms, started);
        assert!(job.ended_ms.is_some());
        assert_eq!(job.reason, "no");
    }
}
