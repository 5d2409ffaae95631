//! Failures of commands: message and exit status.

use std::process::ExitCode;
use std::{fmt, io};

use millstream_control::ClientError;
use millstream_daemon::devices::DevicesError;
use millstream_document::problems::DocumentError;
use serde_json::json;

use crate::context::Context;
use crate::interrupt;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments are invalid. Exit status 2.
    Usage(String),
    /// The job file has errors; the text has one line per error. Exit status 2.
    Job(String),
    /// The command failed. Exit status 1.
    Failed(anyhow::Error),
    /// The command failed and has already printed why. Exit status 1.
    AlreadyReported,
    /// The job cannot run here, and the command has already printed why. Exit status 2.
    JobAlreadyReported,
    /// The reader of standard output closed it, as `head` does. Exit status 0.
    OutputClosed,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<ClientError>() {
            Ok(error) => error.into(),
            Err(error) if error.downcast_ref().is_some_and(is_closed_pipe) => Self::OutputClosed,
            Err(error) => Self::Failed(error),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Invalid(report) => Self::Job(report),
            ClientError::NoDaemon { .. } => Self::Failed(anyhow::anyhow!(
                "{error}; start `millstreamd`, or run the job here with `millstream train`"
            )),
            other => Self::Failed(other.into()),
        }
    }
}

impl From<millstream_pipeline::Error> for Failure {
    fn from(error: millstream_pipeline::Error) -> Self {
        match error {
            millstream_pipeline::Error::Cancelled => Self::Failed(interrupt::error()),
            other => Self::Failed(other.into()),
        }
    }
}

impl From<millstream_io::Error> for Failure {
    fn from(error: millstream_io::Error) -> Self {
        millstream_pipeline::Error::from(error).into()
    }
}

impl From<DocumentError> for Failure {
    fn from(error: DocumentError) -> Self {
        Self::Job(error.to_string())
    }
}

impl From<DevicesError> for Failure {
    fn from(error: DevicesError) -> Self {
        match error {
            DevicesError::Invalid(error) => error.into(),
            DevicesError::Other(error) => error.into(),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if is_closed_pipe(&error) { Self::OutputClosed } else { Self::Failed(error.into()) }
    }
}

fn is_closed_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Job(message) => f.write_str(message),
            Self::Failed(error) => write!(f, "{error:#}"),
            Self::AlreadyReported | Self::JobAlreadyReported | Self::OutputClosed => Ok(()),
        }
    }
}

/// Reports a failure as a message and, with `--json`, as a document. Returns the exit status; after a signal, that of the
/// signal.
pub(crate) fn report(result: Result<(), Failure>, context: &Context) -> ExitCode {
    let Err(failure) = result else { return ExitCode::SUCCESS };
    let failed = interrupt::exit_status().unwrap_or(1);
    let status = match failure {
        Failure::OutputClosed => return ExitCode::SUCCESS,
        Failure::AlreadyReported => return ExitCode::from(failed),
        Failure::JobAlreadyReported => return ExitCode::from(2),
        Failure::Usage(_) | Failure::Job(_) => 2,
        Failure::Failed(_) => failed,
    };
    match &failure {
        // Each line of the report begins with its place, as a compiler's messages do.
        Failure::Job(report) => context.screen.line(report),
        other => context.screen.error(&other.to_string()),
    }
    if context.json {
        // The exit status reports the failure even if standard output is closed.
        let _ = context.document(&json!({ "error": { "message": failure.to_string() } }));
    }
    ExitCode::from(status)
}
