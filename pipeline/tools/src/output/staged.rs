//! A file that gets its name only when it is complete.
//!
//! Until then, a local file has a temporary name, and a cloud object consists of the parts of an upload.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tokio::runtime::Handle;

use millstream_io::Error as IoError;
use millstream_io::storage::{Stores, Upload, is_local};
use millstream_pipeline::Error;

const BUFFER_BYTES: usize = 256 << 10;

/// Access to the places that files are written to: local disks and cloud storage.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The cloud stores.
    pub stores: Stores,
    /// The runtime for uploads. Writers block on it, so they must not be called from async code.
    pub runtime: Handle,
}

/// A file under construction. Dropping it before [`Staged::commit`] removes it.
pub struct Staged {
    address: String,
    place: Place,
    bytes: u64,
}

enum Place {
    Disk(OnDisk),
    Cloud(BufWriter<InCloud>),
}

struct OnDisk {
    path: PathBuf,
    /// `None` once the file has its name.
    temporary: Option<PathBuf>,
    /// `None` once the file is sealed.
    file: Option<BufWriter<File>>,
}

struct InCloud {
    runtime: Handle,
    /// `None` once the upload is finished.
    upload: Option<Upload>,
}

impl Staged {
    /// Starts a file at `address`, and creates its directory.
    ///
    /// # Errors
    /// When the address is invalid, or its place cannot be written.
    pub fn create(address: &str, destination: &Destination) -> Result<Self, Error> {
        let place = match is_local(address)? {
            true => Place::Disk(OnDisk::create(local_path(address))?),
            false => {
                let Destination { stores, runtime } = destination.clone();
                let upload = Some(runtime.block_on(stores.create(address, Path::new("/")))?);
                Place::Cloud(BufWriter::with_capacity(BUFFER_BYTES, InCloud { runtime, upload }))
            }
        };
        Ok(Self { address: address.to_owned(), place, bytes: 0 })
    }

    /// The address as the user wrote it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The number of bytes written.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The error for a failed write.
    pub(super) fn failed(&self, source: io::Error) -> Error {
        failed(&self.address, source)
    }

    /// Flushes the complete file to disk or storage. Nothing is written to it after that.
    ///
    /// # Errors
    /// When the rest of it cannot be written.
    pub fn seal(&mut self) -> Result<(), Error> {
        let sealed = match &mut self.place {
            Place::Disk(file) => file.seal(),
            Place::Cloud(upload) => upload.flush().and_then(|()| upload.get_mut().with(Upload::seal)),
        };
        sealed.map_err(|source| self.failed(source))
    }

    /// Gives the [sealed](Staged::seal) file its final name.
    ///
    /// # Errors
    /// When it cannot.
    pub fn commit(mut self) -> Result<(), Error> {
        let committed = match &mut self.place {
            Place::Disk(file) => file.commit(),
            Place::Cloud(upload) => {
                let InCloud { runtime, upload } = upload.get_mut();
                match upload.take() {
                    Some(upload) => return Ok(runtime.block_on(upload.finish())?),
                    None => Ok(()),
                }
            }
        };
        committed.map_err(|source| self.failed(source))
    }
}

/// The path of a local address.
pub(super) fn local_path(address: &str) -> &str {
    address.strip_prefix("file://").unwrap_or(address)
}

/// The error for a failed write to `address`.
pub(super) fn failed(address: &str, source: io::Error) -> Error {
    // Storage errors already contain the address.
    let error = source.downcast::<IoError>();
    error.unwrap_or_else(|error| IoError::File { path: address.to_owned(), error }).into()
}

impl Write for Staged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.place {
            Place::Disk(OnDisk { file: Some(file), .. }) => file.write(bytes)?,
            Place::Disk(_) => return Err(io::ErrorKind::NotConnected.into()),
            Place::Cloud(upload) => upload.write(bytes)?,
        };
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.place {
            Place::Disk(OnDisk { file, .. }) => file.as_mut().map_or(Ok(()), Write::flush),
            Place::Cloud(upload) => upload.flush(),
        }
    }
}

impl OnDisk {
    fn create(path: &str) -> Result<Self, Error> {
        let path = PathBuf::from(path);
        let Some(name) = path.file_name() else {
            return Err(Error::Invalid(format!("{}: no file name", path.display())));
        };
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::create_dir_all(directory).map_err(|source| IoError::file(directory, source))?;
        }
        let name = format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id());
        let temporary = path.with_file_name(name);
        let file = File::create(&temporary).map_err(|source| IoError::file(&temporary, source))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self { path, temporary: Some(temporary), file: Some(file) })
    }

    fn seal(&mut self) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    }

    fn commit(&mut self) -> io::Result<()> {
        if let Some(temporary) = &self.temporary {
            fs::rename(temporary, &self.path)?;
            self.temporary = None;
        }
        Ok(())
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // Nothing can be done if it cannot be removed.
            let _ = fs::remove_file(temporary);
        }
    }
}

impl InCloud {
    fn with(&mut self, act: impl AsyncFnOnce(&mut Upload) -> Result<(), IoError>) -> io::Result<()> {
        let Some(upload) = &mut self.upload else { return Err(io::ErrorKind::NotConnected.into()) };
        self.runtime.block_on(act(upload)).map_err(io::Error::other)
    }
}

impl Write for InCloud {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.with(async |upload| upload.write(bytes).await)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for InCloud {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take()
            && let Err(error) = self.runtime.block_on(upload.abort())
        {
            tracing::debug!(%error, "failed to abort an unfinished upload");
        }
    }
}
