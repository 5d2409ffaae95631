//! The daemon in a line, for the service manager, and whether it answers at all.

use std::fmt::Write as _;

use millstream_batch::Count;
use millstream_control::proto::JobState;

use super::Daemon;
use crate::state::JobRecord;

/// The maximum number of running jobs that are described.
const MAX_DESCRIBED: usize = 3;

impl Daemon {
    /// Its jobs in a line: `1 job running, 2 queued: census-1 at step 1200 of 3815 (31 %), 812000 rows/s`.
    pub(crate) fn status(&self) -> String {
        let (running, queued) = {
            let jobs = self.shared.jobs();
            (
                jobs.running.iter().map(|active| active.recorder.record()).collect::<Vec<_>>(),
                jobs.queued.len(),
            )
        };
        describe(&running, queued)
    }

    /// Whether the threads that work for it, and its queue of jobs, answer.
    pub(crate) async fn answers(&self) -> bool {
        let looked = self.blocking(|daemon| {
            drop(daemon.shared.jobs());
            Ok::<_, anyhow::Error>(())
        });
        looked.await.is_ok()
    }
}

fn describe(running: &[JobRecord], queued: usize) -> String {
    if running.is_empty() {
        return match queued {
            0 => "idle".to_owned(),
            queued => format!("{} queued", Count(queued as u64, "job")),
        };
    }
    let mut line = format!("{} running", Count(running.len() as u64, "job"));
    // Writing to a string cannot fail.
    if queued > 0 {
        let _ = write!(line, ", {queued} queued");
    }
    for (job, separator) in
        running.iter().zip(std::iter::once(": ").chain(std::iter::repeat("; "))).take(MAX_DESCRIBED)
    {
        let _ = write!(line, "{separator}{}", one(job));
    }
    if running.len() > MAX_DESCRIBED {
        line.push_str("; ...");
    }
    line
}

fn one(job: &JobRecord) -> String {
    let progress = &job.progress;
    if job.state != JobState::Running || progress.step == 0 {
        return format!("{} {}", job.id, job.state);
    }
    let mut text = format!("{} at step {}", job.id, progress.step);
    if let Some(total) = progress.total_steps.filter(|&total| total > 0) {
        let about = if progress.total_is_estimate { "about " } else { "" };
        let _ = write!(text, " of {about}{total} ({} %)", 100 * progress.step.min(total) / total);
    }
    let _ = write!(text, ", {:.0} rows/s", progress.examples_per_second);
    text
}

#[cfg(test)]
mod tests {
    use millstream_io::storage::Directory;

    use super::*;

    fn job(id: &str, step: u64, total: Option<u64>) -> JobRecord {
        let mut job = JobRecord::new(id.to_owned(), "census".to_owned(), Directory::local("/runs"));
        job.state = JobState::Running;
        job.progress.step = step;
        job.progress.total_steps = total;
        job.progress.examples_per_second = 812_345.6;
        job
    }

    #[test]
    fn jobs_are_described_in_a_line() {
        assert_eq!(describe(&[], 0), "idle");
        assert_eq!(describe(&[], 2), "2 jobs queued");
        let one = [job("a-1", 1200, Some(3815))];
        assert_eq!(
            describe(&one, 1),
            "1 job running, 1 queued: a-1 at step 1200 of 3815 (31 %), 812346 rows/s"
        );
        let several: Vec<_> = (1..=4).map(|number| job(&format!("a-{number}"), 0, None)).collect();
        assert_eq!(describe(&several, 0), "4 jobs running: a-1 running; a-2 running; a-3 running; ...");
        let unknown = [job("a-1", 7, None)];
        assert_eq!(describe(&unknown, 0), "1 job running: a-1 at step 7, 812346 rows/s");
    }
}
