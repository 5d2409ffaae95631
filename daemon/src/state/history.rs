//! A job's training curve in bounded space.
//!
//! Each point holds averages over the steps since the previous point. When there are too many points,
//! neighbours are merged until at most half the limit remain. Averages are merged weighted by rows, so a
//! merged point equals the average over the steps of both. Early and late points are equally spaced, and a
//! long job has between [`MAX_POINTS`]` / 2` and [`MAX_POINTS`] points. Evaluations are all kept.

use std::collections::BTreeMap;

use millstream_control::proto::{Evaluation, NamedValue};
use rusqlite::{Connection, params};

use super::database::{Database, StoreError, missing_job, real};
use super::{History, HistoryPoint};

/// Maximum number of points per job.
const MAX_POINTS: usize = 2048;

impl Database {
    /// Appends a point to a job's history. If points were merged, returns the new minimum number of steps
    /// between points.
    ///
    /// # Errors
    /// When there is no such job.
    pub(crate) fn append_history(&self, id: &str, point: &HistoryPoint) -> Result<Option<u64>, StoreError> {
        let connection = &self.connection;
        insert(connection, id, point)?;
        let count: usize = connection
            .prepare_cached("SELECT count(*) FROM history WHERE job = ?1")?
            .query_row([id], |row| row.get(0))?;
        if count <= MAX_POINTS {
            return Ok(None);
        }
        let transaction = connection.unchecked_transaction()?;
        let (points, spacing) = merge(&points(&transaction, id)?, MAX_POINTS / 2);
        transaction.execute("DELETE FROM history WHERE job = ?1", [id])?;
        for point in &points {
            insert(&transaction, id, point)?;
        }
        transaction.commit()?;
        Ok(Some(spacing))
    }

    /// Stores an evaluation of a job, replacing an earlier one of the same step.
    ///
    /// # Errors
    /// When there is no such job.
    pub(crate) fn append_evaluation(&self, id: &str, evaluation: &Evaluation) -> Result<(), StoreError> {
        let transaction = self.connection.unchecked_transaction()?;
        for NamedValue { name, value } in &evaluation.metrics {
            transaction
                .prepare_cached(
                    "INSERT OR REPLACE INTO evaluation (job, step, epoch, name, value) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![id, evaluation.step, evaluation.epoch, name, value])
                .map_err(|error| missing_job(error, id))?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Deletes a job's history after `step`, which will be repeated.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub(crate) fn rewind_history(&self, id: &str, step: u64) -> Result<(), StoreError> {
        let connection = &self.connection;
        connection.execute("DELETE FROM history WHERE job = ?1 AND step > ?2", params![id, step])?;
        connection.execute("DELETE FROM evaluation WHERE job = ?1 AND step > ?2", params![id, step])?;
        Ok(())
    }

    /// A job's history.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub(crate) fn history(&self, id: &str) -> Result<History, StoreError> {
        let connection = &self.connection;
        Ok(History { points: points(connection, id)?, evaluations: evaluations(connection, id)? })
    }
}

fn insert(connection: &Connection, id: &str, point: &HistoryPoint) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO history (job, step, loss, examples, seconds, waited_seconds) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![id, point.step, point.loss, point.examples, point.seconds, point.waited_seconds])
        .map_err(|error| missing_job(error, id))?;
    Ok(())
}

fn points(connection: &Connection, id: &str) -> Result<Vec<HistoryPoint>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT step, loss, examples, seconds, waited_seconds FROM history WHERE job = ?1 ORDER BY step",
    )?;
    let points = statement.query_map([id], |row| {
        Ok(HistoryPoint {
            step: row.get(0)?,
            loss: real(row, 1)?,
            examples: row.get(2)?,
            seconds: row.get(3)?,
            waited_seconds: row.get(4)?,
        })
    })?;
    Ok(points.collect::<Result<_, _>>()?)
}

fn evaluations(connection: &Connection, id: &str) -> Result<Vec<Evaluation>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT step, epoch, name, value FROM evaluation WHERE job = ?1 ORDER BY step, rowid",
    )?;
    let mut rows = statement.query([id])?;
    let mut all: BTreeMap<u64, Evaluation> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (step, epoch) = (row.get(0)?, row.get(1)?);
        let metrics = Vec::new();
        let evaluation = all.entry(step).or_insert(Evaluation { step, epoch, metrics });
        evaluation.metrics.push(NamedValue { name: row.get(2)?, value: real(row, 3)? });
    }
    Ok(all.into_values().collect())
}

/// Merges neighbours until at most `max_points` remain. Returns them and the maximum number of steps per
/// point: the smallest sufficient power of two.
fn merge(points: &[HistoryPoint], max_points: usize) -> (Vec<HistoryPoint>, u64) {
    let mut spacing = 1;
    loop {
        let merged = merge_within(points, spacing);
        if merged.len() <= max_points || spacing > u64::MAX / 2 {
            return (merged, spacing);
        }
        spacing *= 2;
    }
}

/// Merges neighbours that together cover at most `spacing` steps.
fn merge_within(points: &[HistoryPoint], spacing: u64) -> Vec<HistoryPoint> {
    let mut merged: Vec<HistoryPoint> = Vec::new();
    // The step at which the last merged point starts.
    let mut start = 0;
    for &point in points {
        match merged.last_mut() {
            Some(last) if point.step - start <= spacing => last.merge(&point),
            _ => {
                start = merged.last().map_or(0, |last| last.step);
                merged.push(point);
            }
        }
    }
    merged
}

impl HistoryPoint {
    /// Merges the point that follows this one.
    pub fn merge(&mut self, later: &Self) {
        let rows = self.examples + later.examples;
        if rows > 0 {
            let weighted = self.loss_sum() + later.loss_sum();
            self.loss = weighted / rows as f64;
        }
        self.step = later.step;
        self.examples = rows;
        self.seconds += later.seconds;
        self.waited_seconds += later.waited_seconds;
    }

    /// The loss sum. It is 0 without rows, whatever `loss` is.
    fn loss_sum(&self) -> f64 {
        if self.examples == 0 { 0.0 } else { self.loss * self.examples as f64 }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use millstream_io::storage::Directory;

    use super::super::{JobRecord, JobSource};
    use super::*;
    use crate::access::Requester;

    fn store() -> Database {
        let store = Database::open_in_memory().unwrap();
        let source = JobSource { text: String::new(), path: "/a.toml".into(), requester: Requester::Trusted };
        store.insert_job(&JobRecord::new("a", "a", Directory::local("/checkpoints/a")), &source).unwrap();
        store
    }

    fn point(step: u64, loss: f64) -> HistoryPoint {
        HistoryPoint { step, loss, examples: 10, seconds: 0.5, waited_seconds: 0.25 }
    }

    fn evaluation(step: u64, auc: f64) -> Evaluation {
        let metric = |name: &str, value| NamedValue { name: name.to_owned(), value };
        let metrics = vec![metric("auc", auc), metric("log_loss", 0.5)];
        Evaluation { step, epoch: 3, metrics }
    }

    #[test]
    fn points_and_evaluations_round_trip_in_step_order() {
        let store = store();
        for step in [10, 20] {
            assert_eq!(store.append_history("a", &point(step, 0.5)).unwrap(), None);
        }
        store.append_evaluation("a", &evaluation(20, 0.75)).unwrap();
        store.append_evaluation("a", &evaluation(10, 0.5)).unwrap();
        store.append_evaluation("a", &evaluation(10, 0.625)).unwrap();
        let found = store.history("a").unwrap();
        assert_eq!(found.points, [point(10, 0.5), point(20, 0.5)]);
        assert_eq!(found.evaluations, [evaluation(10, 0.625), evaluation(20, 0.75)]);
        assert!(matches!(store.append_history("b", &point(1, 0.0)), Err(StoreError::UnknownJob { .. })));
        assert!(store.append_evaluation("b", &evaluation(1, 0.0)).is_err());
        assert_eq!(store.history("b").unwrap(), History::default());
    }

    #[test]
    fn a_nan_metric_round_trips() {
        let store = store();
        store.append_evaluation("a", &evaluation(1, f64::NAN)).unwrap();
        assert!(store.history("a").unwrap().evaluations[0].metrics[0].value.is_nan());
    }

    #[test]
    fn rewinding_deletes_later_history() {
        let store = store();
        for step in [10, 20, 30] {
            store.append_history("a", &point(step, 0.5)).unwrap();
            store.append_evaluation("a", &evaluation(step, 0.5)).unwrap();
        }
        store.rewind_history("a", 20).unwrap();
        let found = store.history("a").unwrap();
        assert_eq!(found.points.iter().map(|point| point.step).collect::<Vec<_>>(), [10, 20]);
        assert_eq!(found.evaluations.iter().map(|point| point.step).collect::<Vec<_>>(), [10, 20]);
    }

    #[test]
    fn a_million_steps_are_merged_into_equally_spaced_points_without_losing_rows() {
        let store = store();
        let (mut spacing, mut kept, mut window) = (0, 0, None::<HistoryPoint>);
        let (stride, last) = (50, 1_000_000);
        for step in (stride..=last).step_by(stride as usize) {
            let next = point(step, step as f64);
            match &mut window {
                Some(window) => window.merge(&next),
                None => window = Some(next),
            }
            if step - kept >= spacing {
                kept = step;
                let merged = store.append_history("a", &window.take().unwrap()).unwrap();
                spacing = merged.unwrap_or(spacing);
            }
        }
        let points = store.history("a").unwrap().points;
        assert!((MAX_POINTS / 2 - 1..=MAX_POINTS).contains(&points.len()), "{}", points.len());
        let gaps = points.windows(2).map(|pair| pair[1].step - pair[0].step);
        let (least, most) = (gaps.clone().min().unwrap(), gaps.max().unwrap());
        assert!(most <= 4 * least, "from {least} to {most} steps apart");
        let rows: u64 = points.iter().chain(&window).map(|point| point.examples).sum();
        assert_eq!(rows, last / stride * 10);
        let sum: f64 = points.iter().chain(&window).map(|point| point.loss * point.examples as f64).sum();
        let wanted: f64 = (stride..=last).step_by(stride as usize).map(|step| step as f64 * 10.0).sum();
        assert!((sum / wanted - 1.0).abs() < 1e-9);
    }

    #[test]
    fn merging_weights_by_rows_and_ignores_the_loss_of_empty_points() {
        let mut merged = HistoryPoint { examples: 30, ..point(1, 1.0) };
        merged.merge(&HistoryPoint { examples: 10, ..point(2, 5.0) });
        merged.merge(&HistoryPoint { examples: 0, ..point(3, f64::NAN) });
        let wanted = HistoryPoint { step: 3, loss: 2.0, examples: 40, seconds: 1.5, waited_seconds: 0.75 };
        assert_eq!(merged, wanted);
    }
}
