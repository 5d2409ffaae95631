//! Files that appear under their names when they are whole.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A file under a temporary name beside its own. Unless it is kept, it goes when this does.
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

    /// Gives the file its name, with all that was written.
    pub(crate) fn keep(mut self) -> Result<(), Failure> {
        self.writer.flush()?;
        self.writer.get_ref().sync_all()?;
        std::fs::rename(&self.temporary, &self.path)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.kept {
            // Nothing more can be done about a file that cannot be removed.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}
