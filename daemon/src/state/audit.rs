//! Who changed what, in bounded space.
//!
//! Records outlive their jobs. When there are too many, the user with the most loses some: first those of attempts that
//! changed nothing, the oldest first. So a flood of attempts hides neither the changes of its user nor those of others.

use rusqlite::{Row, named_params, params};

use super::database::{Database, StoreError};
use super::{Owner, now_ms};

/// The maximum number of records, but for those since the last check.
const MAX_RECORDS: u64 = 20_000;

/// The number of records between two checks of that number.
const CHECK_INTERVAL: i64 = 64;

/// Records are kept for this time.
const KEPT_MS: u64 = 400 * 24 * 60 * 60 * 1000;

/// The maximum number of expired records that are deleted with each new one.
const EXPIRED_AT_A_TIME: u32 = 16;

/// The maximum number of records that are read at a time.
const MAX_READ: u32 = 1_000;

/// An attempt to change something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// The position in the table, from 1; 0 before it is stored.
    pub number: u64,
    /// When it was answered, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Who tried.
    pub user: Owner,
    /// The process that opened the connection, if the system knows it.
    pub pid: Option<u32>,
    /// The name of that process's program, if it could be read.
    pub program: Option<String>,
    /// The call of the API, as a command: `cancel`.
    pub call: String,
    /// The id of the job; if there is no such job, the request's; empty if the request was not read.
    pub job: String,
    /// The name of the job; empty if there is none.
    pub job_name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it was refused or failed; empty otherwise.
    pub reason: String,
    /// The user's attempts before that were not recorded because there were too many in a short time.
    pub unrecorded: u64,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The change was made.
    Done,
    /// The user may not do that.
    Refused,
    /// It failed for another reason.
    Failed,
    /// The client left before the answer. The change was made nevertheless, if that was possible.
    Unanswered,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Done, Self::Refused, Self::Failed, Self::Unanswered];

    /// The name in the API and in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Unanswered => "unanswered",
        }
    }
}

/// Selects records. By default all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only of jobs whose ids start with this, or that have this name; empty for all.
    pub job: String,
    /// Only of the user with this name or number; empty for all.
    pub user: String,
    /// Only from then on, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Only records before this number; 0 for all.
    pub before: u64,
    /// At most this many, the newest ones; `None` for as many as are read at a time.
    pub limit: Option<u32>,
}

impl Database {
    /// Adds a record, and deletes some if there are too many.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub(crate) fn append_audit(&self, record: &AuditRecord) -> Result<(), StoreError> {
        self.append_audit_within(record, MAX_RECORDS)
    }

    fn append_audit_within(&self, record: &AuditRecord, max_records: u64) -> Result<(), StoreError> {
        let transaction = self.connection.unchecked_transaction()?;
        transaction
            .prepare_cached(
                "INSERT INTO audit (at_ms, uid, user, pid, program, call, job, job_name, outcome, reason, unrecorded) \
                 VALUES (:at, :uid, :user, :pid, :program, :call, :job, :job_name, :outcome, :reason, :unrecorded)",
            )?
            .execute(named_params! {
                ":at": record.at_ms,
                ":uid": record.user.uid,
                ":user": record.user.name,
                ":pid": record.pid,
                ":program": record.program,
                ":call": record.call,
                ":job": record.job,
                ":job_name": record.job_name,
                ":outcome": record.outcome.name(),
                ":reason": record.reason,
                ":unrecorded": record.unrecorded,
            })?;
        let is_due = transaction.last_insert_rowid() % CHECK_INTERVAL == 0;
        transaction
            .prepare_cached(
                "DELETE FROM audit WHERE seq IN (SELECT seq FROM audit ORDER BY seq LIMIT ?1) AND at_ms < ?2",
            )?
            .execute(params![EXPIRED_AT_A_TIME, now_ms().saturating_sub(KEPT_MS)])?;
        if is_due {
            let count: u64 = transaction.query_row("SELECT count(*) FROM audit", [], |row| row.get(0))?;
            transaction.execute(
                "DELETE FROM audit WHERE seq IN (
                     SELECT seq FROM audit
                     WHERE uid = (SELECT uid FROM audit GROUP BY uid ORDER BY count(*) DESC LIMIT 1)
                     ORDER BY outcome IN ('done', 'unanswered'), seq LIMIT ?1)",
                [count.saturating_sub(max_records)],
            )?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// The records that `filter` selects, oldest first, and their number without its limit.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub(super) fn audit(&self, filter: &AuditFilter) -> Result<(Vec<AuditRecord>, u64), StoreError> {
        let AuditFilter { job, user, since_ms, before, limit } = filter;
        let selected = "FROM audit WHERE (?1 = '' OR substr(job, 1, length(?1)) = ?1 OR job_name = ?1) \
             AND (?2 = '' OR user = ?2 OR CAST(uid AS TEXT) = ?2) AND at_ms >= ?3 AND (?4 = 0 OR seq < ?4)";
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT seq, at_ms, uid, user, pid, program, call, job, job_name, outcome, reason, unrecorded {selected} \
             ORDER BY seq DESC LIMIT ?5"
        ))?;
        let limit = limit.unwrap_or(MAX_READ).min(MAX_READ);
        let read = statement.query_map(params![job, user, since_ms, before, limit], read_record)?;
        let mut records = read.collect::<Result<Vec<_>, _>>()?;
        records.reverse();
        let mut count = self.connection.prepare_cached(&format!("SELECT count(*) {selected}"))?;
        Ok((records, count.query_row(params![job, user, since_ms, before], |row| row.get(0))?))
    }
}

fn read_record(row: &Row<'_>) -> rusqlite::Result<AuditRecord> {
    let outcome: String = row.get(9)?;
    Ok(AuditRecord {
        number: row.get(0)?,
        at_ms: row.get(1)?,
        user: Owner { uid: row.get(2)?, name: row.get(3)? },
        pid: row.get(4)?,
        program: row.get(5)?,
        call: row.get(6)?,
        job: row.get(7)?,
        job_name: row.get(8)?,
        // Only this version and older ones write the database.
        outcome: Outcome::ALL.into_iter().find(|known| known.name() == outcome).unwrap_or(Outcome::Failed),
        reason: row.get(10)?,
        unrecorded: row.get(11)?,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn record(uid: u32, job: &str, outcome: Outcome) -> AuditRecord {
        AuditRecord {
            number: 0,
            at_ms: now_ms(),
            user: Owner { uid, name: (uid == 7).then(|| "ann".to_owned()) },
            pid: Some(12),
            program: Some("millstream".into()),
            call: "cancel".into(),
            job: job.into(),
            job_name: job.split('-').next().unwrap().into(),
            outcome,
            reason: String::new(),
            unrecorded: 3,
        }
    }

    fn numbers(database: &Database, filter: AuditFilter) -> (Vec<u64>, u64) {
        let (records, all) = database.audit(&filter).unwrap();
        (records.iter().map(|record| record.number).collect(), all)
    }

    #[test]
    fn records_are_read_as_written_and_selected() {
        let database = Database::open_in_memory().unwrap();
        let written = [
            record(7, "clicks-1", Outcome::Done),
            record(8, "clicks-2", Outcome::Refused),
            AuditRecord { pid: None, program: None, ..record(7, "", Outcome::Failed) },
            AuditRecord { at_ms: now_ms() + 50_000, ..record(8, "census-1", Outcome::Unanswered) },
        ];
        for record in &written {
            database.append_audit(record).unwrap();
        }
        let numbered = (1..).zip(written).map(|(number, record)| AuditRecord { number, ..record });
        assert_eq!(database.audit(&AuditFilter::default()).unwrap(), (numbered.collect(), 4));

        let all = AuditFilter::default;
        assert_eq!(numbers(&database, AuditFilter { job: "clicks".into(), ..all() }), (vec![1, 2], 2));
        assert_eq!(numbers(&database, AuditFilter { job: "clicks-2".into(), ..all() }), (vec![2], 1));
        assert_eq!(numbers(&database, AuditFilter { job: "%".into(), ..all() }), (vec![], 0));
        for ann in ["ann", "7"] {
            assert_eq!(numbers(&database, AuditFilter { user: ann.into(), ..all() }), (vec![1, 3], 2));
        }
        assert_eq!(numbers(&database, AuditFilter { since_ms: now_ms() + 25_000, ..all() }), (vec![4], 1));
        assert_eq!(numbers(&database, AuditFilter { limit: Some(2), ..all() }), (vec![3, 4], 4));
        assert_eq!(numbers(&database, AuditFilter { limit: Some(2), before: 3, ..all() }), (vec![1, 2], 2));
    }

    #[test]
    fn a_flood_of_one_user_replaces_its_own_refusals_first() {
        let database = Database::open_in_memory().unwrap();
        let append = |record: &AuditRecord| database.append_audit_within(record, 100).unwrap();
        append(&record(7, "first-1", Outcome::Done));
        append(&record(8, "first-1", Outcome::Done));
        for _ in 0..1_000 {
            append(&record(8, "flood", Outcome::Refused));
        }
        let (records, all) = database.audit(&AuditFilter::default()).unwrap();
        assert!((100..100 + CHECK_INTERVAL as u64).contains(&all), "{all}");
        let kept: Vec<_> = records.iter().take(3).map(|record| (record.number, record.user.uid)).collect();
        assert_eq!(kept[..2], [(1, 7), (2, 8)]);
        assert!(kept[2].0 > 800, "the newest ones stay: {kept:?}");
    }

    #[test]
    fn old_records_expire() {
        let database = Database::open_in_memory().unwrap();
        for _ in 0..40 {
            let old = now_ms() - KEPT_MS - 60_000;
            database.append_audit(&AuditRecord { at_ms: old, ..record(7, "a", Outcome::Done) }).unwrap();
        }
        for nth in 0..3 {
            assert!(database.audit(&AuditFilter::default()).unwrap().1 <= 40, "{nth}");
            database.append_audit(&record(7, "b", Outcome::Done)).unwrap();
        }
        assert_eq!(numbers(&database, AuditFilter::default()), (vec![41, 42, 43], 3));
    }
}
