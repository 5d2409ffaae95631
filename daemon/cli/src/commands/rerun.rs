//! `millstream rerun`: runs the job of an earlier run again.

use millstream_control::proto::SubmitRequest;

use crate::arguments::Repeated;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::target;

pub(crate) async fn run(arguments: Repeated, context: &Context) -> Result<(), Failure> {
    let Repeated { target, set, priority } = arguments;
    let mut daemon = to_daemon(context).await?;
    let directory = target::find(&target, context).await?.directory;
    if directory.as_local().is_some_and(|path| path.to_str().is_none()) {
        return Err(Failure::Usage(format!("the path {directory} is not UTF-8")));
    }
    let rerun = directory.text().into_owned();
    let request = SubmitRequest { set, priority, rerun, ..SubmitRequest::default() };
    let job = daemon.submit(request).await?;
    context.answer(&job, || job.id.clone())
}
