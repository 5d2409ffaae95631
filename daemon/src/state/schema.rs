//! The tables, and how an older database becomes a newer one.
//!
//! `user_version` counts the migrations a database has had. A migration, once released, never changes;
//! what changes is added as the next one.

use rusqlite::Connection;

use super::store::StoreError;

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
    ALTER TABLE history ADD COLUMN auc_error REAL;
    ALTER TABLE history ADD COLUMN pr_auc REAL;
    ALTER TABLE history ADD COLUMN pr_auc_error REAL;
    ALTER TABLE history ADD COLUMN normalized_entropy REAL;
    ALTER TABLE history ADD COLUMN calibration REAL;
    ALTER TABLE history ADD COLUMN rmse REAL;
    ALTER TABLE history ADD COLUMN group_auc REAL;
    ALTER TABLE history ADD COLUMN groups INTEGER;
",
];

/// Brings a database to the newest version, each step in a transaction of its own.
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
