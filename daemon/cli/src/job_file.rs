//! Reads the job file.

use std::path::{Path, PathBuf};

use millstream_control::proto::SubmitRequest;
use millstream_job::{Job, Warning};

use crate::arguments::JobFile;
use crate::context::Context;
use crate::failure::Failure;

/// A valid job file.
pub(crate) struct JobText {
    pub(crate) text: String,
    /// The messages of the warnings already printed.
    pub(crate) warnings: Vec<String>,
}

/// Reads a job file to submit. Errors and warnings name the path as typed.
pub(crate) fn read(file: &JobFile, context: &Context) -> Result<JobText, Failure> {
    let (text, _, warnings) = parse(file, context)?;
    let warnings = warnings.into_iter().map(|Warning(problem)| problem.message).collect();
    Ok(JobText { text, warnings })
}

/// Reads a job file to use in this process.
pub(crate) fn resolve(file: &JobFile, context: &Context) -> Result<Job, Failure> {
    parse(file, context).map(|(_, job, _)| job)
}

fn parse(file: &JobFile, context: &Context) -> Result<(String, Job, Vec<Warning>), Failure> {
    let text = std::fs::read_to_string(&file.path)
        .map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.path.display())))?;
    let (job, warnings) = Job::parse(&text, &file.path, &file.set)?;
    warnings.iter().for_each(|warning| context.screen.line(&warning.to_string()));
    Ok((text, job, warnings))
}

/// The submit request. The daemon validates the text again, because it does not trust clients.
pub(crate) fn request(file: &JobFile, text: String, resume: bool) -> Result<SubmitRequest, Failure> {
    let path = absolute(&file.path)?;
    let Some(path) = path.to_str() else {
        return Err(Failure::Usage(format!("the path {} is not UTF-8", path.display())));
    };
    Ok(SubmitRequest { text, path: path.to_owned(), set: file.set.clone(), resume })
}

/// The path independent of the working directory.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    Ok(std::path::absolute(path)?)
}
