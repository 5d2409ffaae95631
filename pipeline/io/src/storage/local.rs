//! Reads local files.
//!
//! `object_store` opens a file for every range and reads it into newly allocated memory, whose pages the kernel must
//! find and clear each time; this took a fifth of the time of ingest. Here, a file is opened once per stream and read
//! with `pread` into reused buffers. Before and after each read, the file is compared with the listed one, by the tag
//! that `object_store` gives local files (inode, modification time, size). A file that is overwritten with the same
//! size within one clock tick of a read is not detected.
//!
//! A lack of file descriptors is transient: others are closed soon, as a rule. So an attempt that fails for this reason
//! is repeated until the deadline of remote reads.

use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use object_store::local::LocalFileSystem;

use super::http::{descriptor_limit, lacks_descriptors};
use super::object::Object;
use crate::buffers::Buffers;
use crate::{Error, pause, redact};

/// The wait for a file descriptor, for reads of the local file or pattern `path`.
pub(crate) struct DescriptorWait<'a> {
    path: &'a str,
    deadline: Duration,
    begun: Instant,
    tries: u32,
}

impl<'a> DescriptorWait<'a> {
    pub(crate) fn new(path: &'a str, deadline: Duration) -> Self {
        Self { path, deadline, begun: Instant::now(), tries: 0 }
    }

    /// Returns after a pause if another attempt may succeed. Otherwise returns `error`, or its cause if the deadline
    /// has passed.
    pub(crate) async fn after(&mut self, error: Error) -> Result<(), Error> {
        let lacking = match &error {
            Error::File { error, .. } => lacks_descriptors(error),
            Error::Storage { error, .. } => lacks_descriptors(&*error.0),
            _ => false,
        };
        if !lacking {
            return Err(error);
        }
        self.tries += 1;
        let (path, tries) = (self.path, self.tries);
        let pause = pause::after(tries);
        if self.begun.elapsed() + pause >= self.deadline {
            let seconds = self.begun.elapsed().as_secs();
            return Err(Error::GaveUp { path: path.to_owned(), tries, seconds, message: descriptor_limit() });
        }
        tracing::debug!(path = %redact(path), tries, "waiting for a free file descriptor");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// A file that several threads read, opened by the first read.
#[derive(Debug, Default)]
pub(crate) struct OpenFile(OnceLock<(PathBuf, File)>);

impl OpenFile {
    /// Reads `range` of `object`, if the file is still the one listed. Blocks.
    pub(crate) fn read(&self, object: &Object, range: Range<u64>, buffers: &Buffers) -> Result<Bytes, Error> {
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => object.changed(),
            _ => Error::File { path: object.path().to_string(), error: source },
        };
        let (path, file) = match self.0.get() {
            Some(open) => open,
            None => {
                let path = LocalFileSystem::new().path_to_filesystem(&object.meta().location);
                let path = path.map_err(|source| Error::storage(object.path(), source))?;
                let file = File::open(&path).map_err(failed)?;
                self.0.get_or_init(|| (path, file))
            }
        };
        let is_listed = |metadata: Metadata| object.meta().e_tag.as_deref() == Some(&tag(&metadata));
        if !is_listed(std::fs::metadata(path).map_err(failed)?) {
            return Err(object.changed());
        }
        let mut buffer = buffers.take((range.end - range.start) as usize);
        match file.read_exact_at(buffer.as_mut(), range.start) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(object.changed()),
            read => read.map_err(failed)?,
        }
        if !is_listed(file.metadata().map_err(failed)?) {
            return Err(object.changed());
        }
        Ok(buffer.into_bytes())
    }
}

/// The tag that `object_store` gives a local file.
fn tag(metadata: &Metadata) -> String {
    let changed = metadata.modified().ok();
    let since = changed.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    format!("\"{:x}-{:x}-{:x}\"", metadata.ino(), since.unwrap_or_default().as_micros(), metadata.len())
}
