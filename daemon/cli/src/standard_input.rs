//! Data from standard input.
//!
//! Data is read in ranges, possibly by a daemon, which a pipe does not allow. Standard input therefore goes to a
//! temporary file first: beside the output, or in the working directory, where a daemon that reads the user's data can
//! read it too.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use millstream_control::proto::ScoreRequest;

use crate::failure::Failure;

/// What stands for standard input among the files.
const STANDARD_INPUT: &str = "-";

/// A copy of standard input, deleted on drop.
pub(crate) struct StandardInput {
    path: PathBuf,
}

impl StandardInput {
    /// Copies standard input to a file and puts that in place of `-` in the request, if it has one. `output` is the
    /// command's output.
    pub(crate) async fn spooled(
        request: &mut ScoreRequest,
        output: Option<&Path>,
    ) -> Result<Option<Self>, Failure> {
        let Some(place) = request.data.iter().position(|name| name == STANDARD_INPUT) else {
            return Ok(None);
        };
        let beside = output.and_then(Path::parent).unwrap_or(Path::new(""));
        let directory = Path::new(&request.base).join(beside);
        let path = directory.join(format!(".millstream-{}.input", std::process::id()));
        let name = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
        request.data[place] = name.to_owned();
        let created = OpenOptions::new().write(true).create_new(true).open(&path);
        let here = || format!("writing standard input to {}", path.display());
        let mut file = created.with_context(here)?;
        let spooled = Self { path: path.clone() };
        let copied = tokio::task::spawn_blocking(move || io::copy(&mut io::stdin().lock(), &mut file)).await;
        copied.context("reading standard input")?.with_context(here)?;
        Ok(Some(spooled))
    }
}

impl Drop for StandardInput {
    fn drop(&mut self) {
        // Best effort: the command reports its own result.
        let _ = std::fs::remove_file(&self.path);
    }
}
