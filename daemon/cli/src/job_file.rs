//! Reads the job file.

use std::io::ErrorKind;

use millstream_control::proto::SubmitRequest;
use millstream_job::{Job, Warning};

use crate::arguments::{JobFile, Submitted};
use crate::context::Context;
use crate::failure::Failure;

/// Reads a job file to submit. Returns the request and the messages of the warnings already printed; they name the
/// path as typed, as errors do. The daemon validates the text again, because it does not trust clients.
pub(crate) fn request(
    submitted: &Submitted,
    context: &Context,
) -> Result<(SubmitRequest, Vec<String>), Failure> {
    let Submitted { job: file, resume } = submitted;
    let (text, _, warnings) = parse(file, context)?;
    let warnings = warnings.into_iter().map(|Warning(problem)| problem.message).collect();
    let path = std::path::absolute(&file.path)?;
    let Some(path) = path.to_str() else {
        return Err(Failure::Usage(format!("the path {} is not UTF-8", path.display())));
    };
    let request = SubmitRequest { text, path: path.to_owned(), set: file.set.clone(), resume: *resume };
    Ok((request, warnings))
}

/// Reads a job file to use in this process.
pub(crate) fn resolve(file: &JobFile, context: &Context) -> Result<Job, Failure> {
    parse(file, context).map(|(_, job, _)| job)
}

fn parse(file: &JobFile, context: &Context) -> Result<(String, Job, Vec<Warning>), Failure> {
    let text = std::fs::read_to_string(&file.path).map_err(|error| {
        let path = file.path.display();
        Failure::Usage(match error.kind() {
            ErrorKind::InvalidData => {
                format!(
                    "{path} is not a job file: it is not text. To describe data: millstream inspect {path}"
                )
            }
            ErrorKind::IsADirectory => format!("{path} is a directory; expected a job file"),
            _ => format!("cannot read {path}: {error}"),
        })
    })?;
    let (job, warnings) = Job::parse(&text, &file.path, &file.set)?;
    warnings.iter().for_each(|warning| context.screen.line(&warning.to_string()));
    Ok((text, job, warnings))
}
