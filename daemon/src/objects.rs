//! The daemon's end of [`millstream_worker::objects`]: reads and writes the objects of a directory in a bucket on behalf of a
//! worker.
//!
//! A worker may name objects in its directory only. What it writes to a run needs the [lease](Lease) of the run, which
//! is confirmed before each change.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{self, StreamExt};
use millstream_batch::messages::{self, MAXIMUM_MESSAGE_BYTES};
use millstream_io::storage::{Directory, StorageSpec, Stores, Upload};
use millstream_worker::objects::{MAX_CONTENT_BYTES, ObjectReply, ObjectRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::runs::Lease;
use crate::supervisor::{Changes, Written};

/// Bytes that are read at a time, and how many such reads are in flight.
const PIECE_BYTES: u64 = 8 << 20;
const PIECES: usize = 4;

/// The most objects that are being written over one connection; a worker writes one at a time.
const MAX_UPLOADS: usize = 1;

/// The size up to which a change is small, such as that of a manifest, and has to end within the lease's time for a change. Larger objects are
/// parts in the directory of their term, which change no checkpoint if they are late.
const SMALL_BYTES: usize = 1 << 20;

/// How long the end of a connection is waited for.
const END_TIMEOUT: Duration = Duration::from_secs(6);

/// The longest name.
const MAX_NAME_BYTES: usize = 512;

/// What a worker may write.
pub(crate) enum Writing {
    /// Nothing.
    Refused,
    /// Everything in the directory.
    Allowed,
    /// Everything in the directory, as long as the daemon has the lease of the run.
    Leased(Arc<Lease>),
    /// The files of checkpoints. Another daemon has the lease, and makes all other changes.
    Among(Arc<Changes>),
}

/// Objects that are being served.
pub(crate) struct ServedObjects {
    stores: Stores,
    runtime: Handle,
    task: JoinHandle<()>,
}

impl ServedObjects {
    /// Cancels the request in progress, and refuses further ones.
    pub(crate) fn cancel(&self) {
        self.stores.cancel();
    }

    /// Waits until no request is in progress. The worker must have closed the connection, or its requests be cancelled.
    pub(crate) fn wait(mut self) {
        let task = &mut self.task;
        if self.runtime.block_on(async { tokio::time::timeout(END_TIMEOUT, task).await }).is_err() {
            tracing::warn!("requests of a worker have not ended in time");
            self.task.abort();
        }
    }
}

/// Serves the objects of one directory over one connection.
pub(crate) struct ObjectServer {
    objects: Objects,
    /// The objects that are being written, by the numbers of the worker.
    uploads: BTreeMap<u64, Upload>,
}

/// The objects of a directory in a bucket.
struct Objects {
    directory: Directory,
    stores: Stores,
    writing: Writing,
}

impl ObjectServer {
    /// Serves the objects in `directory`, which `stores` reads and writes.
    pub(crate) fn new(directory: Directory, stores: &Stores, writing: Writing) -> Self {
        // To be cancelled alone.
        let stores = stores.for_job(&StorageSpec::default());
        Self { objects: Objects { directory, stores, writing }, uploads: BTreeMap::new() }
    }

    /// Serves until the other end of `socket` is closed, or requests are cancelled.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn start(mut self, socket: StdUnixStream, runtime: &Handle) -> io::Result<ServedObjects> {
        socket.set_nonblocking(true)?;
        let _entered = runtime.enter();
        let mut socket = UnixStream::from_std(socket)?;
        let stores = self.objects.stores.clone();
        let serve = async move {
            if let Err(error) = self.serve(&mut socket).await {
                tracing::debug!("objects are not served any more: {error:#}");
            }
            for upload in std::mem::take(&mut self.uploads).into_values() {
                if let Err(error) = upload.abort().await {
                    tracing::debug!(%error, "an unfinished upload is not aborted");
                }
            }
        };
        Ok(ServedObjects { stores, runtime: runtime.clone(), task: runtime.spawn(serve) })
    }

    async fn serve(&mut self, socket: &mut UnixStream) -> Result<()> {
        let cancelled = self.objects.stores.clone();
        loop {
            // Requests of storage return by themselves when they are cancelled.
            let request = tokio::select! {
                request = receive(socket) => request?,
                () = cancelled.cancelled() => None,
            };
            let Some(request) = request else { return Ok(()) };
            let content = match &request {
                ObjectRequest::Put { bytes, .. } | ObjectRequest::Append { bytes, .. } => {
                    ensure!(*bytes <= MAX_CONTENT_BYTES, "a message is followed by {bytes} bytes");
                    let mut content = vec![0; *bytes as usize];
                    socket.read_exact(&mut content).await?;
                    content
                }
                _ => Vec::new(),
            };
            let reply = match request {
                ObjectRequest::Get { name } => self.objects.get(&name, socket).await,
                request => self.answer(request, content).await,
            };
            let reply = reply.unwrap_or_else(|error| ObjectReply::Failed { message: format!("{error:#}") });
            send(socket, &reply).await?;
        }
    }

    async fn answer(&mut self, request: ObjectRequest, content: Vec<u8>) -> Result<ObjectReply> {
        let objects = &self.objects;
        let stores = &objects.stores;
        match request {
            ObjectRequest::List => return Ok(ObjectReply::Listed { names: objects.names().await? }),
            ObjectRequest::Get { .. } => bail!("the contents are sent elsewhere"),
            ObjectRequest::Put { name, is_new, .. } if let Writing::Among(changes) = &objects.writing => {
                return objects.put_among(changes, &name, content, is_new).await;
            }
            ObjectRequest::Delete { name } if let Writing::Among(changes) = &objects.writing => {
                objects.address(&name)?;
                changes.delete(&name).await?;
            }
            ObjectRequest::Put { name, is_new: true, .. } => {
                let address = objects.address(&name)?;
                let put = stores.put_new(&address, Path::new("/"), content);
                if objects.change(put).await?.is_none() {
                    return Ok(ObjectReply::Exists);
                }
            }
            ObjectRequest::Put { name, is_new: false, .. } => {
                let address = objects.address(&name)?;
                let is_small = content.len() <= SMALL_BYTES;
                let put = stores.put(&address, Path::new("/"), content);
                if is_small {
                    objects.change(put).await?;
                } else {
                    objects.check_writing().await?;
                    put.await?;
                }
            }
            ObjectRequest::Create { name, upload } => {
                let address = objects.address(&name)?;
                ensure!(self.uploads.len() < MAX_UPLOADS, "another object is being written");
                if let Writing::Among(changes) = &objects.writing {
                    ensure!(matches!(changes.check(&name)?, Written::Here), "{name:?} is written at once");
                }
                objects.check_writing().await?;
                let created = stores.create(&address, Path::new("/")).await?;
                self.uploads.insert(upload, created);
            }
            ObjectRequest::Append { upload, .. } => {
                self.uploads.get_mut(&upload).context("no such upload")?.write_owned(content).await?;
            }
            ObjectRequest::Finish { upload } => {
                ensure!(self.uploads.contains_key(&upload), "no such upload");
                objects.check_writing().await?;
                self.uploads.remove(&upload).context("no such upload")?.finish().await?;
            }
            ObjectRequest::Abort { upload } => {
                self.uploads.remove(&upload).context("no such upload")?.abort().await?;
            }
            ObjectRequest::Delete { name } => {
                let address = objects.address(&name)?;
                objects.change(stores.delete(&address, Path::new("/"))).await?;
            }
        }
        Ok(ObjectReply::Done)
    }
}

impl Objects {
    /// Sends the contents of an object; returns what follows them.
    async fn get(&self, name: &str, socket: &mut UnixStream) -> Result<ObjectReply> {
        let found = self.stores.find(&self.address(name)?).await?;
        let Some(object) = found.first() else { return Ok(ObjectReply::Absent) };
        let size = object.size();
        let starts = (0..size.div_ceil(PIECE_BYTES)).map(|piece| piece * PIECE_BYTES);
        let mut pieces = stream::iter(starts)
            .map(|start| {
                let object = object.clone();
                async move { object.read(start..size.min(start + PIECE_BYTES)).await }
            })
            .buffered(PIECES);
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            send(socket, &ObjectReply::Content { bytes: piece.len() as u64 }).await?;
            socket.write_all(&piece).await?;
        }
        Ok(ObjectReply::Done)
    }

    /// Writes a file of a checkpoint, or lets the leader write its manifest.
    async fn put_among(
        &self,
        changes: &Changes,
        name: &str,
        content: Vec<u8>,
        is_new: bool,
    ) -> Result<ObjectReply> {
        let address = self.address(name)?;
        let Written::Staged { step, name } = changes.check(name)? else {
            self.stores.put(&address, Path::new("/"), content).await?;
            return Ok(ObjectReply::Done);
        };
        self.stores.put(&self.directory.join(&name).text(), Path::new("/"), content).await?;
        let is_written = changes.put_manifest(step, is_new).await?;
        Ok(if is_written { ObjectReply::Done } else { ObjectReply::Exists })
    }

    async fn names(&self) -> Result<Vec<String>> {
        let objects = self.stores.find(&self.directory.join("**").text()).await?;
        let start = self.directory.text().into_owned() + "/";
        let names = objects.iter().filter_map(|object| object.path().strip_prefix(&*start));
        Ok(names.map(str::to_owned).collect())
    }

    /// The address of the object `name` in the directory.
    fn address(&self, name: &str) -> Result<String> {
        let is_name = name.len() <= MAX_NAME_BYTES && name.split('/').all(is_plain_name);
        ensure!(is_name, "{name:?} names no object");
        Ok(self.directory.join(name).text().into_owned())
    }

    /// The result of `work`, which changes something that must be changed now or not at all.
    async fn change<T>(&self, work: impl Future<Output = Result<T, millstream_io::Error>>) -> Result<T> {
        self.check_writing().await?;
        match &self.writing {
            Writing::Leased(lease) => {
                let limit = lease.change_timeout();
                let done = tokio::time::timeout(limit, work).await;
                Ok(done.with_context(|| format!("no answer within {} s", limit.as_secs()))??)
            }
            _ => Ok(work.await?),
        }
    }

    /// Returns if something may be written now.
    async fn check_writing(&self) -> Result<()> {
        match &self.writing {
            Writing::Refused => bail!("{} is read only", self.directory),
            Writing::Allowed | Writing::Among(_) => Ok(()),
            Writing::Leased(lease) => Ok(lease.confirm().await?),
        }
    }
}

/// Whether `name` can be that of a file or directory of a run, and is no pattern.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !matches!(name, "" | "." | "..") && name.bytes().all(is_allowed)
}

/// Receives a request; `None` if the other end is closed.
async fn receive(socket: &mut UnixStream) -> Result<Option<ObjectRequest>> {
    let mut length = [0; 4];
    match socket.read_exact(&mut length).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let length = u32::from_le_bytes(length) as usize;
    ensure!(length <= MAXIMUM_MESSAGE_BYTES, "a message has {length} bytes");
    let mut message = vec![0; length];
    socket.read_exact(&mut message).await?;
    Ok(Some(serde_json::from_slice(&message)?))
}

async fn send(socket: &mut UnixStream, reply: &ObjectReply) -> Result<()> {
    let mut frame = Vec::new();
    if messages::send(&mut frame, reply).is_err() {
        frame.clear();
        let message = "there are too many objects".to_owned();
        messages::send(&mut frame, &ObjectReply::Failed { message })?;
    }
    Ok(socket.write_all(&frame).await?)
}

#[cfg(test)]
mod tests;
