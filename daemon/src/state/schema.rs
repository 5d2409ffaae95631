//! The database schema and its migrations.
//!
//! `user_version` counts the migrations applied to a database. A released migration never changes; changes
//! are added as new migrations.

use rusqlite::Connection;

use super::database::StoreError;

const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE job (
        id                  TEXT PRIMARY KEY,
        name                TEXT NOT NULL,
        text                TEXT NOT NULL,
        path                BLOB NOT NULL,
        state               TEXT NOT NULL,
        reason              TEXT NOT NULL,
        attempts            INTEGER NOT NULL,
        created_ms          INTEGER NOT NULL,
        started_ms          INTEGER,
        ended_ms            INTEGER,
        directory           BLOB NOT NULL,
        checkpoint          BLOB,
        step                INTEGER NOT NULL,
        total_steps         INTEGER,
        epoch               INTEGER NOT NULL,
        epochs              INTEGER NOT NULL,
        examples            INTEGER NOT NULL,
        examples_per_second REAL,
        input_wait_fraction REAL,
        loss                REAL,
        skipped_records     INTEGER NOT NULL,
        auc                 REAL,
        log_loss            REAL,
        accuracy            REAL,
        eval_examples       INTEGER
    ) STRICT;

    CREATE TABLE log (
        job   TEXT NOT NULL REFERENCES job (id),
        seq   INTEGER NOT NULL,
        at_ms INTEGER NOT NULL,
        level TEXT NOT NULL,
        text  TEXT NOT NULL,
        PRIMARY KEY (job, seq)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE history (
        job                 TEXT NOT NULL REFERENCES job (id),
        step                INTEGER NOT NULL,
        loss                REAL,
        examples_per_second REAL,
        auc                 REAL,
        log_loss            REAL,
        accuracy            REAL,
        eval_examples       INTEGER,
        PRIMARY KEY (job, step)
    ) STRICT, WITHOUT ROWID;
",
    "ALTER TABLE job ADD COLUMN eval_epoch INTEGER",
    "
    ALTER TABLE job ADD COLUMN auc_error REAL;
    ALTER TABLE job ADD COLUMN pr_auc REAL;
    ALTER TABLE job ADD COLUMN pr_auc_error REAL;
    ALTER TABLE job ADD COLUMN normalized_entropy REAL;
    ALTER TABLE job ADD COLUMN calibration REAL;
    ALTER TABLE job ADD COLUMN rmse REAL;
    ALTER TABLE job ADD COLUMN group_auc REAL;
    ALTER TABLE job ADD COLUMN groups INTEGER;
",
    // No command could show the contents of the first `history` table.
    "
    DROP TABLE history;

    CREATE TABLE history (
        job            TEXT NOT NULL REFERENCES job (id),
        step           INTEGER NOT NULL,
        loss           REAL,
        examples       INTEGER NOT NULL,
        seconds        REAL NOT NULL,
        waited_seconds REAL NOT NULL,
        PRIMARY KEY (job, step)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE evaluation (
        job   TEXT NOT NULL REFERENCES job (id),
        step  INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        name  TEXT NOT NULL,
        value REAL,
        PRIMARY KEY (job, step, name)
    ) STRICT;
",
    // The set of metrics depends on the job's labels, and each label has its own.
    "
    ALTER TABLE job ADD COLUMN eval TEXT;

    UPDATE job SET eval = json_object(
        'auc', auc, 'auc_error', auc_error, 'pr_auc', pr_auc, 'pr_auc_error', pr_auc_error, 'log_loss', log_loss,
        'normalized_entropy', normalized_entropy, 'calibration', calibration, 'rmse', rmse, 'accuracy', accuracy,
        'group_auc', group_auc, 'groups', groups, 'examples', eval_examples
    ) WHERE eval_examples IS NOT NULL;

    ALTER TABLE job DROP COLUMN auc;
    ALTER TABLE job DROP COLUMN auc_error;
    ALTER TABLE job DROP COLUMN pr_auc;
    ALTER TABLE job DROP COLUMN pr_auc_error;
    ALTER TABLE job DROP COLUMN log_loss;
    ALTER TABLE job DROP COLUMN normalized_entropy;
    ALTER TABLE job DROP COLUMN calibration;
    ALTER TABLE job DROP COLUMN rmse;
    ALTER TABLE job DROP COLUMN accuracy;
    ALTER TABLE job DROP COLUMN group_auc;
    ALTER TABLE job DROP COLUMN groups;
    ALTER TABLE job DROP COLUMN eval_examples;
",
    // JSON: the device reported by the job's last worker.
    "ALTER TABLE job ADD COLUMN device TEXT",
    // Earlier versions did not count.
    "ALTER TABLE job ADD COLUMN daemon_deaths INTEGER NOT NULL DEFAULT 0",
    // JSON: who submitted the job. Earlier versions did not record that.
    "ALTER TABLE job ADD COLUMN requester TEXT",
    // `list` reads the newest jobs, of some states.
    "CREATE INDEX job_by_creation ON job (created_ms, state)",
    // JSON: the user who submitted the job, which earlier versions recorded in its log only.
    "
    ALTER TABLE job ADD COLUMN owner TEXT;
    ALTER TABLE job ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
",
    // Outlives the jobs that it names.
    "
    CREATE TABLE audit (
        seq        INTEGER PRIMARY KEY AUTOINCREMENT,
        at_ms      INTEGER NOT NULL,
        uid        INTEGER NOT NULL,
        user       TEXT,
        pid        INTEGER,
        program    TEXT,
        call       TEXT NOT NULL,
        job        TEXT NOT NULL,
        job_name   TEXT NOT NULL,
        outcome    TEXT NOT NULL,
        reason     TEXT NOT NULL,
        unrecorded INTEGER NOT NULL
    ) STRICT;
",
];

/// Migrates a database to the newest version, one transaction per migration.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let found: usize = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > MIGRATIONS.len() {
        return Err(StoreError::Newer { found, known: MIGRATIONS.len() });
    }
    for (done, migration) in MIGRATIONS.iter().enumerate().skip(found) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "user_version", done + 1)?;
        transaction.commit()?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use millstream_trainer::metrics::{Metric, Metrics};

    use super::*;

    #[test]
    fn an_evaluation_of_an_older_version_becomes_a_document() {
        let mut connection = Connection::open_in_memory().unwrap();
        for migration in &MIGRATIONS[..4] {
            connection.execute_batch(migration).unwrap();
        }
        connection.pragma_update(None, "user_version", 4).unwrap();
        let columns = "id, name, text, path, state, reason, attempts, created_ms, directory, step, epoch, epochs, \
                       examples, skipped_records, auc, log_loss, eval_examples";
        for (id, eval) in [("a", "0.8125, 0.25, 99"), ("b", "NULL, NULL, NULL")] {
            let values = format!("'{id}', 'a', '', x'', 'running', '', 1, 2, x'', 3, 0, 1, 4, 0, {eval}");
            connection.execute_batch(&format!("INSERT INTO job ({columns}) VALUES ({values})")).unwrap();
        }
        migrate(&mut connection).unwrap();
        let eval = |id: &str| -> Option<String> {
            connection.query_row("SELECT eval FROM job WHERE id = ?1", [id], |row| row.get(0)).unwrap()
        };
        let metrics: Metrics = serde_json::from_str(&eval("a").unwrap()).unwrap();
        assert_eq!((metrics.value(Metric::Auc), metrics.value(Metric::LogLoss)), (Some(0.8125), Some(0.25)));
        assert_eq!((metrics.value(Metric::Rmse), metrics.examples, metrics.groups), (None, 99, None));
        assert_eq!(eval("b"), None);
    }

    #[test]
    fn jobs_survive_every_migration() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(MIGRATIONS[0]).unwrap();
        connection.pragma_update(None, "user_version", 1).unwrap();
        let job = "INSERT INTO job (id, name, text, path, state, reason, attempts, created_ms, directory, step, epoch, \
                   epochs, examples, skipped_records) VALUES ('a', 'a', '', x'', 'running', '', 1, 2, x'', 3, 0, 1, 4, 0)";
        connection.execute_batch(job).unwrap();
        connection.execute_batch("INSERT INTO history (job, step, loss) VALUES ('a', 3, 0.5)").unwrap();
        for _ in 0..2 {
            migrate(&mut connection).unwrap();
            let step: u64 = connection.query_row("SELECT step FROM job", [], |row| row.get(0)).unwrap();
            let points: u64 =
                connection.query_row("SELECT count(*) FROM history", [], |row| row.get(0)).unwrap();
            assert_eq!((step, points), (3, 0));
        }
    }
}
