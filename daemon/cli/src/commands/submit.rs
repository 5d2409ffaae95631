//! `millstream submit`: submits a job to the daemon.

use crate::arguments::Submit;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::job_file::{self, JobText};

pub(crate) async fn run(arguments: Submit, context: &Context) -> Result<(), Failure> {
    let JobText { text, .. } = job_file::read(&arguments.job, context)?;
    let request = job_file::request(&arguments.job, text, arguments.resume)?;
    let job = to_daemon(context).await?.submit(request).await?;
    context.answer(&job, || job.id.clone())
}
