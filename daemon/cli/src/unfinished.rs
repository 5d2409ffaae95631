//! Files that appear under their names only when complete.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A file under a temporary name in the directory of its final name. Dropping it deletes the file unless it was kept.
pub(crate) struct Unfinished {
    pub(crate) writer: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
    kept: bool,
}

impl Unfinished {
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let located = |error: std::io::Error| {
            Failure::Failed(anyhow::Error::from(error).context(format!("writing {}", path.display())))
        };
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}.unfinished", std::process::id()));
        let temporary = PathBuf::from(temporary);
        let writer = BufWriter::new(File::create(&temporary).map_err(located)?);
        Ok(Self { writer, temporary, path: path.to_owned(), kept: false })
    }

    /// Flushes the file and renames it to its final name.
    pub(crate) fn keep(mut self) -> Result<(), Failure> {
        self.writer.flush()?;
        self.writer.get_ref().sync_all()?;
        std::fs::rename(&self.temporary, &self.path)?;
        self.kept = true;
        Ok(())
    }
}

/// Writes a file of these bytes.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let mut file = Unfinished::create(path)?;
    file.writer.write_all(bytes)?;
    file.keep()
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.kept {
            // Best effort: the command already reports its own failure.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}
