//! `millstream checkpoint`: saves a checkpoint of a running job.

use millstream_control::proto::{Job, JobState};

use crate::arguments::JobId;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(arguments: JobId, context: &Context) -> Result<(), Failure> {
    let mut daemon = to_daemon(context).await?;
    let job = daemon.show(&arguments.id).await?;
    if let Some(why) = why_wait(&job) {
        context.screen.note(&why);
    }
    let taken = daemon.checkpoint(&job.id).await?;
    context.answer(&taken, || taken.path.clone())
}

/// Why the checkpoint may take long.
fn why_wait(job: &Job) -> Option<String> {
    (job.state() == JobState::Preparing).then(|| {
        format!("job {} is being prepared: waiting for its first step; Ctrl-C ends the wait", job.id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_a_job_that_is_being_prepared_is_not_silent() {
        let job = |state: JobState| Job { id: "a-1".to_owned(), state: state.into(), ..Job::default() };
        let why = why_wait(&job(JobState::Preparing));
        assert!(why.is_some_and(|why| why.starts_with("job a-1 is being prepared: ")));
        assert_eq!(why_wait(&job(JobState::Running)), None);
    }
}
