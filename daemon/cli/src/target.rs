//! The target of a command: a job, or the directory of a run or of a checkpoint.

use std::path::Path;

use millstream_control::proto::Job;
use millstream_control::{Client, ClientError};
use millstream_io::storage::{Directory, is_address};

use crate::context::Context;
use crate::failure::Failure;

/// A target and its directory.
pub(crate) struct Target {
    /// The run directory of a job, or the given directory.
    pub(crate) directory: Directory,
    /// The job, if it is one of the daemon.
    job: Option<Job>,
}

/// Finds `target`: the id of a job of the daemon, if one is running, or a directory.
pub(crate) async fn find(target: &str, context: &Context) -> Result<Target, Failure> {
    let known = match context.socket() {
        Some(socket) => match Client::connect(socket).await {
            Ok(mut client) => match client.show(target).await {
                Ok(job) if job.directory.is_empty() => return Err(not_shown(&job, &mut client).await),
                known => Some(known),
            },
            Err(ClientError::NoDaemon { .. }) => None,
            Err(error) => return Err(error.into()),
        },
        None => None,
    };
    let message = match known {
        Some(Ok(job)) => {
            let directory = Directory::parse(&job.directory, Path::new("/")).map_err(anyhow::Error::from)?;
            return Ok(Target { directory, job: Some(job) });
        }
        None | Some(Err(ClientError::NotFound(_))) if Path::new(target).is_dir() => {
            let directory = Directory::local(std::path::absolute(target)?);
            return Ok(Target { directory, job: None });
        }
        None | Some(Err(ClientError::NotFound(_))) if is_address(target) => {
            let directory =
                Directory::parse(target, &std::env::current_dir()?).map_err(anyhow::Error::from)?;
            return Ok(Target { directory, job: None });
        }
        None => format!("`{target}` is neither a job nor a checkpoint's directory"),
        // No job has this id, or several share the prefix.
        Some(Err(ClientError::NotFound(message))) => {
            format!("{message}, and no directory has that name")
        }
        Some(Err(error)) => return Err(error.into()),
    };
    Err(Failure::Failed(anyhow::anyhow!(message)))
}

/// The error for a job whose directory the daemon does not show to this user, who may only look at jobs.
async fn not_shown(job: &Job, client: &mut Client) -> Failure {
    let operators = client.about().await.map(|about| about.operators).unwrap_or_default();
    let who = if operators.is_empty() {
        "root".to_owned()
    } else {
        format!("members of the group {} and root", operators.join(", "))
    };
    Failure::Failed(anyhow::anyhow!(
        "job {}: this user may only look at jobs, without their directories; {who} may do this, and a copy of a \
         checkpoint can be given by its directory",
        job.id
    ))
}

/// The directory of `target`, which must have a checkpoint if it is a job.
pub(crate) async fn with_checkpoint(target: &str, context: &Context) -> Result<Directory, Failure> {
    match find(target, context).await? {
        Target { job: Some(job), .. } if job.checkpoint.is_none() => {
            Err(Failure::Failed(anyhow::anyhow!("job {target} has no checkpoint yet")))
        }
        Target { directory, .. } => Ok(directory),
    }
}
