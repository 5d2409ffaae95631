//! The jobs on the screen: what the daemon lists and what it measures, joined; their order and their filter.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use millstream_control::proto::{Job, JobActivity, JobProgress, JobState, ProcessUse, Snapshot};

/// A job on the screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) job: Job,
    /// What is measured while the job is under way.
    pub(super) activity: Option<JobActivity>,
    /// The cores that its worker kept busy since the look before.
    pub(super) cores: Option<f64>,
}

impl Row {
    /// Joins the listed jobs with those under way, whose state is newer. `before` is the snapshot of the look before.
    pub(super) fn all(jobs: Vec<Job>, now: &Snapshot, before: Option<&Snapshot>) -> Vec<Self> {
        let mut active: HashMap<&str, &JobActivity> = now
            .jobs
            .iter()
            .filter_map(|activity| Some((activity.job.as_ref()?.id.as_str(), activity)))
            .collect();
        let earlier = |id: &str| {
            let mut jobs = before.into_iter().flat_map(|before| &before.jobs);
            jobs.find(|earlier| earlier.job.as_ref().is_some_and(|job| job.id == id))
        };
        let measured = |activity: &JobActivity| {
            let job = activity.job.clone().unwrap_or_default();
            let worker_before = earlier(&job.id).and_then(|earlier| earlier.worker);
            let seconds = seconds_between(before, now);
            let cores = busy_cores(worker_before.as_ref(), activity.worker.as_ref(), seconds);
            Self { job, activity: Some(activity.clone()), cores }
        };
        let mut rows: Vec<Self> = Vec::with_capacity(jobs.len());
        for job in jobs {
            rows.push(match active.remove(job.id.as_str()) {
                Some(activity) => measured(activity),
                None => Self { job, ..Self::default() },
            });
        }
        // Older than the jobs that are listed.
        rows.extend(active.into_values().map(measured));
        rows
    }

    pub(super) fn progress(&self) -> JobProgress {
        self.job.progress.unwrap_or_default()
    }

    /// Its progress, once it trains.
    pub(super) fn training(&self) -> Option<JobProgress> {
        Some(self.progress()).filter(|progress| progress.step > 0)
    }

    pub(super) fn is_running(&self) -> bool {
        self.job.state() == JobState::Running
    }

    /// The worker's memory, in bytes.
    pub(super) fn memory(&self) -> Option<u64> {
        Some(self.activity.as_ref()?.worker?.resident_bytes)
    }

    /// What limits it, why it waits, or why it ended: one sentence.
    pub(super) fn note(&self) -> String {
        let Self { job, activity, .. } = self;
        if let Some(why) = &job.waits_for {
            return format!("waits: {why}");
        }
        let ingest = activity.as_ref().and_then(|activity| activity.ingest.as_ref());
        match ingest.and_then(|ingest| ingest.recent.as_ref()) {
            Some(found) if self.is_running() => format!("{}: {}", found.bound, found.because),
            _ => job.reason.clone().unwrap_or_default(),
        }
    }

    /// Whether its id, name, user or state contains `text`, in any case.
    pub(super) fn matches(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let owner = self.job.owner.as_deref().unwrap_or_default();
        let fields = [&self.job.id, &self.job.name, owner, self.job.state().name()];
        fields.iter().any(|field| field.to_lowercase().contains(&text))
    }
}

/// The cores that a process kept busy between two looks; `None` for another process, or without time between them.
pub(super) fn busy_cores(before: Option<&ProcessUse>, now: Option<&ProcessUse>, seconds: f64) -> Option<f64> {
    let (before, now) = (before?, now?);
    let is_known = before.pid == now.pid && seconds > 0.0;
    is_known.then(|| ((now.cpu_seconds - before.cpu_seconds) / seconds).max(0.0))
}

/// The time between two snapshots; 0 without the first.
pub(super) fn seconds_between(before: Option<&Snapshot>, now: &Snapshot) -> f64 {
    before.map_or(0.0, |before| now.at_ms.saturating_sub(before.at_ms) as f64 / 1e3)
}

/// The order of the jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// Those under way first, then those that wait, then those that have ended, the last of them first.
    #[default]
    State,
    Name,
    /// The fastest first, and so on.
    Rate,
    Loss,
    InputWait,
    Memory,
    Newest,
}

impl Sort {
    const ALL: [Self; 7] =
        [Self::State, Self::Name, Self::Rate, Self::Loss, Self::InputWait, Self::Memory, Self::Newest];

    /// The next order, after the last the first.
    pub(super) fn next(self) -> Self {
        let at = Self::ALL.iter().position(|&sort| sort == self).unwrap_or_default();
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Name => "name",
            Self::Rate => "rows/s",
            Self::Loss => "loss",
            Self::InputWait => "input wait",
            Self::Memory => "memory",
            Self::Newest => "newest",
        }
    }

    pub(super) fn compare(self, one: &Row, other: &Row) -> Ordering {
        /// The highest first, jobs without a number last.
        fn by(number: impl Fn(&Row) -> Option<f64>, one: &Row, other: &Row) -> Ordering {
            let number = |row| number(row).unwrap_or(f64::NEG_INFINITY);
            number(other).total_cmp(&number(one))
        }
        let trained = |row: &Row| row.training().filter(|_| row.is_running());
        let order = match self {
            Self::State => place(one).cmp(&place(other)),
            Self::Name => one.job.name.cmp(&other.job.name),
            Self::Rate => by(|row| Some(trained(row)?.examples_per_second), one, other),
            Self::Loss => by(|row| Some(row.training()?.loss), one, other),
            Self::InputWait => by(|row| Some(trained(row)?.input_wait_fraction), one, other),
            Self::Memory => by(|row| Some(row.memory()? as f64), one, other),
            Self::Newest => other.job.created_ms.cmp(&one.job.created_ms),
        };
        // Rows must not jump while their numbers are equal.
        order.then_with(|| one.job.id.cmp(&other.job.id))
    }
}

/// The place of a job by its state: smaller is further up.
fn place(row: &Row) -> (u8, Reverse<i32>, u64) {
    let job = &row.job;
    let oldest_first = |group| (group, Reverse(job.priority), job.created_ms);
    match job.state() {
        JobState::Running => oldest_first(0),
        JobState::Preparing => oldest_first(1),
        JobState::Queued => oldest_first(2),
        JobState::Paused | JobState::Held => oldest_first(3),
        _ => (4, Reverse(0), u64::MAX - job.ended_ms.unwrap_or_default()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A job in a state.
    pub(crate) fn job(id: &str, state: JobState, created_ms: u64) -> Job {
        let mut job = Job { id: id.into(), name: id.into(), created_ms, ..Job::default() };
        job.set_state(state);
        job.progress = Some(JobProgress::default());
        job
    }

    fn sorted(rows: &[Row], sort: Sort) -> Vec<&str> {
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_by(|one, other| sort.compare(one, other));
        rows.into_iter().map(|row| row.job.id.as_str()).collect()
    }

    #[test]
    fn jobs_under_way_come_first_and_the_last_ended_ones_before_others() {
        let mut old = job("old", JobState::Failed, 1);
        let mut recent = job("recent", JobState::Succeeded, 2);
        (old.ended_ms, recent.ended_ms) = (Some(10), Some(20));
        let urgent = Job { priority: 5, ..job("urgent", JobState::Queued, 9) };
        let jobs = [
            old,
            recent,
            job("later", JobState::Queued, 8),
            urgent,
            job("running", JobState::Running, 7),
            job("paused", JobState::Paused, 3),
        ];
        let rows = jobs.map(|job| Row { job, ..Row::default() });
        assert_eq!(sorted(&rows, Sort::State), ["running", "urgent", "later", "paused", "recent", "old"]);
        assert_eq!(sorted(&rows, Sort::Newest)[..2], ["urgent", "later"]);
    }

    #[test]
    fn numbers_sort_from_the_highest_and_unknown_ones_are_last() {
        let with_rate = |id: &str, rate| {
            let mut job = job(id, JobState::Running, 1);
            job.progress = Some(JobProgress {
                step: 1,
                examples_per_second: rate,
                loss: rate,
                ..JobProgress::default()
            });
            Row { job, ..Row::default() }
        };
        let rows = [
            Row { job: job("none", JobState::Queued, 1), ..Row::default() },
            with_rate("slow", 1.0),
            with_rate("fast", 2.0),
        ];
        assert_eq!(sorted(&rows, Sort::Rate), ["fast", "slow", "none"]);
        assert_eq!(sorted(&rows, Sort::Loss), ["fast", "slow", "none"]);
        let all: Vec<_> =
            std::iter::successors(Some(Sort::State), |sort| Some(sort.next())).take(8).collect();
        assert_eq!(all[7], Sort::State);
    }

    #[test]
    fn the_state_of_a_job_under_way_is_the_newer_one() {
        let listed = vec![job("a", JobState::Queued, 1), job("b", JobState::Queued, 2)];
        let process = |cpu_seconds| ProcessUse { pid: 7, cpu_seconds, ..ProcessUse::default() };
        let at = |at_ms, cpu_seconds| {
            let job = Some(job("a", JobState::Running, 1));
            let worker = Some(process(cpu_seconds));
            let activity = JobActivity { job, worker, ..JobActivity::default() };
            let older =
                JobActivity { job: Some(self::job("c", JobState::Running, 0)), ..JobActivity::default() };
            Snapshot { at_ms, jobs: vec![activity, older], ..Snapshot::default() }
        };
        let rows = Row::all(listed, &at(3_000, 5.0), Some(&at(1_000, 2.0)));
        let states: Vec<_> = rows.iter().map(|row| (row.job.id.as_str(), row.job.state())).collect();
        assert_eq!(states, [("a", JobState::Running), ("b", JobState::Queued), ("c", JobState::Running)]);
        assert_eq!(rows[0].cores, Some(1.5));
        assert_eq!(rows[2].cores, None);
        let other = ProcessUse { pid: 8, ..process(9.0) };
        assert_eq!(busy_cores(Some(&process(1.0)), Some(&other), 1.0), None, "another process");
    }

    #[test]
    fn a_filter_finds_ids_users_and_states() {
        let job = Job { owner: Some("Ann".into()), ..job("census-k3", JobState::Running, 1) };
        let row = Row { job, ..Row::default() };
        for text in ["", "K3", "ann", "runn"] {
            assert!(row.matches(text), "{text}");
        }
        assert!(!row.matches("bob"));
    }
}
