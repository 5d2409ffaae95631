//! The logs of jobs: the newest lines of each.

use rusqlite::{OptionalExtension, params};
use tracing::Level;

use super::database::{Database, StoreError, missing_job, parse};
use super::{LogRecord, MAX_TEXT_BYTES, storable};

/// Number of newest log lines kept per job.
const MAX_LOG_LINES: u64 = 10_000;

impl Database {
    /// Appends a line to a job's log, and deletes the oldest beyond the limit. Returns its position.
    ///
    /// # Errors
    /// When there is no such job.
    pub(crate) fn append_log(
        &self,
        id: &str,
        at_ms: u64,
        level: Level,
        text: &str,
    ) -> Result<u64, StoreError> {
        let transaction = self.connection.unchecked_transaction()?;
        let seq: u64 = transaction
            .prepare_cached(
                "INSERT INTO log (job, seq, at_ms, level, text) \
                 VALUES (?1, 1 + ifnull((SELECT max(seq) FROM log WHERE job = ?1), 0), ?2, ?3, ?4) \
                 RETURNING seq",
            )?
            .query_row(params![id, at_ms, level.as_str().to_ascii_lowercase(), storable(text)], |row| {
                row.get(0)
            })
            .map_err(|error| missing_job(error, id))?;
        if let Some(oldest) = seq.checked_sub(MAX_LOG_LINES) {
            transaction
                .prepare_cached("DELETE FROM log WHERE job = ?1 AND seq <= ?2")?
                .execute(params![id, oldest])?;
        }
        transaction.commit()?;
        Ok(seq)
    }

    /// The oldest `most` of a job's log lines after position `after` (0 for all), oldest first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub(super) fn logs(&self, id: &str, after: u64, most: usize) -> Result<Vec<LogRecord>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT seq, at_ms, level, substr(text, 1, ?3) FROM log WHERE job = ?1 AND seq > ?2 ORDER BY seq LIMIT ?4",
        )?;
        let lines = statement.query_map(params![id, after, MAX_TEXT_BYTES, most], |row| {
            Ok(LogRecord { seq: row.get(0)?, at_ms: row.get(1)?, level: parse(row, 2)?, text: row.get(3)? })
        })?;
        Ok(lines.collect::<Result<_, _>>()?)
    }

    /// The position in the log of a job before its `last` lines (0 for all) from `since_ms` on.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub(super) fn log_start(&self, id: &str, last: u64, since_ms: u64) -> Result<u64, StoreError> {
        let one = |sql: &str, number: u64| -> Result<Option<u64>, StoreError> {
            let mut statement = self.connection.prepare_cached(sql)?;
            Ok(statement.query_row(params![id, number], |row| row.get(0)).optional()?)
        };
        // A clock can go backwards, so all lines after the first recent one count as recent.
        let recent = "SELECT seq - 1 FROM log WHERE job = ?1 AND at_ms >= ?2 ORDER BY seq LIMIT 1";
        let nth_newest = "SELECT seq FROM log WHERE job = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2";
        let since = match since_ms {
            0 => 0,
            _ => one(recent, since_ms)?.or(one(nth_newest, 0)?).unwrap_or(0),
        };
        let before_last = if last > 0 { one(nth_newest, last)?.unwrap_or(0) } else { 0 };
        Ok(since.max(before_last))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::PathBuf;

    use millstream_io::storage::Directory;

    use super::super::{JobRecord, JobSource};
    use super::*;
    use crate::access::Requester;

    fn with_job() -> Database {
        let store = Database::open_in_memory().unwrap();
        let source =
            JobSource { text: String::new(), path: PathBuf::from("job.toml"), requester: Requester::Trusted };
        store.insert_job(&JobRecord::new("a", "a", Directory::local("/a")), &source).unwrap();
        store
    }

    #[test]
    fn log_lines_are_ordered_and_the_oldest_deleted() {
        let store = with_job();
        for n in 1..=MAX_LOG_LINES + 2 {
            assert_eq!(store.append_log("a", n * 10, Level::WARN, &format!("line {n}")).unwrap(), n);
        }
        let all = store.logs("a", 0, usize::MAX >> 1).unwrap();
        assert_eq!(all.len() as u64, MAX_LOG_LINES);
        assert_eq!(all[0].seq, 3);
        assert_eq!(store.logs("a", 5, 2).unwrap().iter().map(|line| line.seq).collect::<Vec<_>>(), [6, 7]);
        let last = store.logs("a", MAX_LOG_LINES + 1, 9).unwrap();
        let wanted = LogRecord {
            seq: MAX_LOG_LINES + 2,
            at_ms: (MAX_LOG_LINES + 2) * 10,
            level: Level::WARN,
            text: format!("line {}", MAX_LOG_LINES + 2),
        };
        assert_eq!(last, [wanted]);
        let unknown = store.append_log("b", 0, Level::INFO, "").unwrap_err();
        assert!(matches!(unknown, StoreError::UnknownJob { .. }), "{unknown}");
    }

    #[test]
    fn a_log_is_read_from_a_time_or_from_its_last_lines() {
        let store = with_job();
        assert_eq!(store.log_start("a", 3, 5).unwrap(), 0);
        for at_ms in [10, 20, 30, 25, 40] {
            store.append_log("a", at_ms, Level::INFO, "line").unwrap();
        }
        let times = |last, since_ms| {
            let after = store.log_start("a", last, since_ms).unwrap();
            store.logs("a", after, 9).unwrap().iter().map(|line| line.at_ms).collect::<Vec<_>>()
        };
        assert_eq!(times(0, 0), [10, 20, 30, 25, 40]);
        assert_eq!(times(2, 0), [25, 40]);
        assert_eq!(times(9, 0), [10, 20, 30, 25, 40]);
        assert_eq!(times(0, 30), [30, 25, 40]);
        assert_eq!(times(1, 20), [40]);
        assert_eq!(times(4, 30), [30, 25, 40]);
        assert_eq!(times(0, 41), [] as [u64; 0]);
    }
}
