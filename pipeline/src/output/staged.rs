//! A file that is being written, and has its name only once it is whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use crate::error::Error;

const BUFFER_BYTES: usize = 256 << 10;

/// A file under a temporary name; dropped before [`Staged::commit`], it is removed.
pub(crate) struct Staged {
    address: String,
    path: PathBuf,
    temporary: PathBuf,
    /// Until it is whole.
    file: Option<BufWriter<File>>,
    bytes: u64,
    committed: bool,
}

impl Staged {
    /// Starts a file, and makes the directory it is to be in.
    pub(super) fn create(address: &str) -> Result<Self, Error> {
        let path = match address.split_once("://") {
            None => PathBuf::from(address),
            Some(("file", path)) => PathBuf::from(path),
            Some((scheme, _)) => {
                let (address, scheme) = (address.to_owned(), scheme.to_owned());
                return Err(Error::UnsupportedScheme { address, scheme });
            }
        };
        let Some(name) = path.file_name() else {
            return Err(Error::Invalid(format!("{address}: no file name")));
        };
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::create_dir_all(directory).map_err(|source| Error::io(directory, source))?;
        }
        let name = format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id());
        let temporary = path.with_file_name(name);
        let file = File::create(&temporary).map_err(|source| Error::io(&temporary, source))?;
        Ok(Self {
            address: address.to_owned(),
            path,
            temporary,
            file: Some(BufWriter::with_capacity(BUFFER_BYTES, file)),
            bytes: 0,
            committed: false,
        })
    }

    /// As the person wrote it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Bytes written.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What went wrong with writing it.
    pub(super) fn failed(&self, source: io::Error) -> Error {
        Error::Io { path: self.address.clone(), source }
    }

    /// All of it is written: brings it to the disk.
    pub(super) fn seal(&mut self) -> Result<(), Error> {
        let Some(file) = self.file.take() else { return Ok(()) };
        file.into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|file| file.sync_all())
            .map_err(|source| self.failed(source))
    }

    /// Gives it its name.
    pub(crate) fn commit(mut self) -> Result<(), Error> {
        fs::rename(&self.temporary, &self.path).map_err(|source| self.failed(source))?;
        self.committed = true;
        Ok(())
    }
}

impl Write for Staged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotConnected.into()) };
        let written = file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing more can be done about one that cannot be removed.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
