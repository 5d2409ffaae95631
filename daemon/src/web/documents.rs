//! The documents of the web page, in JSON. Their parts are the messages of the control API, as `--json` prints them.

use anyhow::Result;
use millstream_control::proto;
use serde::Serialize;

use crate::daemon::Daemon;
use crate::messages::{directory_text, history_message, job_message, line_message, snapshot_message};
use crate::roles::Role;
use crate::state::JobFilter;
use crate::turns::Answers;

/// The number of jobs in the overview, the newest ones.
const LISTED_JOBS: u32 = 100;

/// The number of log lines of a job, the last ones.
const LOG_LINES: u64 = 200;

/// The daemon, its host and its jobs.
#[derive(Debug, Serialize)]
pub(super) struct Overview {
    /// Jobs under way have a newer state here than in `jobs`.
    snapshot: proto::Snapshot,
    /// The newest first.
    jobs: Vec<proto::Job>,
    /// The number of older jobs.
    omitted: u64,
}

/// A job with its curves and its log.
#[derive(Debug, Serialize)]
pub(super) struct JobDocument {
    job: proto::Job,
    points: Vec<proto::HistoryPoint>,
    evaluations: Vec<proto::Evaluation>,
    log: Vec<proto::LogLine>,
}

pub(super) async fn overview(daemon: &Daemon) -> Result<Overview> {
    let answer = |daemon: &Daemon| {
        let (records, all) = daemon.list(&JobFilter { states: Vec::new(), limit: Some(LISTED_JOBS) })?;
        let omitted = all.saturating_sub(records.len() as u64);
        let jobs = records.iter().map(job_message).collect();
        Ok(Overview { snapshot: snapshot_message(&daemon.snapshot()), jobs, omitted })
    };
    daemon.in_turn(&Answers::none(Role::Operator), answer).await
}

/// # Errors
/// When there is no job `id`, which may be shortened if it remains unique.
pub(super) async fn job(daemon: &Daemon, id: String) -> Result<JobDocument> {
    let answer = move |daemon: &Daemon| {
        let (record, history) = daemon.history(&id)?;
        let after = daemon.log_start(&record.id, LOG_LINES, 0)?;
        let log = daemon.logs(&record.id, after)?.into_iter().map(line_message).collect();
        Ok::<_, anyhow::Error>((record, history, log))
    };
    let (record, history, log) = daemon.in_turn(&Answers::none(Role::Operator), answer).await?;
    let best = daemon.best_checkpoint(&record).await;
    let proto::History { points, evaluations, .. } = history_message(&record, history);
    let best_checkpoint = best.as_ref().map(directory_text);
    Ok(JobDocument { job: proto::Job { best_checkpoint, ..job_message(&record) }, points, evaluations, log })
}
