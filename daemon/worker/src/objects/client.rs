//! The worker's end.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use millstream_batch::messages::{self, MessageError};
use millstream_trainer::checkpoint::CheckpointStore;
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart,
};

use super::{MAX_CONTENT_BYTES, ObjectReply, ObjectRequest};

/// The name of this store in errors.
const STORE: &str = "storage";

/// The objects of a directory in a bucket, which the daemon at the other end of a socket reads and writes.
///
/// Its futures block instead of waiting, so they need no runtime.
#[derive(Clone, Debug)]
pub struct ObjectClient(Arc<Mutex<Connection>>);

#[derive(Debug)]
struct Connection {
    socket: UnixStream,
    /// The number of uploads that were started.
    uploads: u64,
}

/// An object larger than a piece that is being written.
#[derive(Debug)]
struct Upload {
    client: ObjectClient,
    location: Path,
    number: u64,
}

impl ObjectClient {
    /// The client of the daemon at the other end of `socket`.
    pub fn new(socket: UnixStream) -> Self {
        Self(Arc::new(Mutex::new(Connection { socket, uploads: 0 })))
    }

    /// The checkpoints in the directory, which is `address`, written in `term`.
    pub fn checkpoints(self, address: &str, term: u64) -> CheckpointStore {
        let block_on = Arc::new(|work: futures::future::BoxFuture<'_, ()>| futures::executor::block_on(work));
        CheckpointStore::new(Arc::new(self), Path::default(), block_on).in_term(term, format!("{address}/"))
    }

    /// The answer to `request`, which `content` follows.
    fn ask(&self, request: &ObjectRequest, content: &[Bytes]) -> Result<ObjectReply> {
        let bytes: u64 = content.iter().map(|bytes| bytes.len() as u64).sum();
        if bytes > MAX_CONTENT_BYTES {
            return Err(failed(MessageError::TooLong(bytes as usize)));
        }
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        connection.ask(request, content).map_err(failed)
    }

    /// As [`ObjectClient::ask`], for a request that names the object `location` and only succeeds or fails.
    fn order(&self, location: &Path, request: &ObjectRequest, content: &[Bytes]) -> Result<()> {
        let path = || location.to_string();
        match self.ask(request, content)? {
            ObjectReply::Done => Ok(()),
            ObjectReply::Absent => {
                Err(Error::NotFound { path: path(), source: "there is no such object".into() })
            }
            ObjectReply::Exists => {
                let source = "another process has written it".into();
                Err(Error::AlreadyExists { path: path(), source })
            }
            reply => Err(unexpected(reply)),
        }
    }

    fn read(&self, location: &Path) -> Result<Bytes> {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut content = Vec::new();
        let mut reply =
            connection.ask(&ObjectRequest::Get { name: location.to_string() }, &[]).map_err(failed)?;
        loop {
            match reply {
                ObjectReply::Content { bytes } => {
                    let read = connection.take(bytes, &mut content).and_then(|()| connection.receive());
                    reply = read.map_err(failed)?;
                }
                ObjectReply::Done => return Ok(content.into()),
                ObjectReply::Absent => {
                    let source = "there is no such object".into();
                    return Err(Error::NotFound { path: location.to_string(), source });
                }
                other => return Err(unexpected(other)),
            }
        }
    }

    fn names(&self, prefix: Option<&Path>) -> Result<Vec<ObjectMeta>> {
        let names = match self.ask(&ObjectRequest::List, &[])? {
            ObjectReply::Listed { names } => names,
            other => return Err(unexpected(other)),
        };
        let found = names.iter().map(|name| {
            let location = Path::parse(name)?;
            // Checkpoints need names only.
            Ok(ObjectMeta {
                location,
                last_modified: Default::default(),
                size: 0,
                e_tag: None,
                version: None,
            })
        });
        let within = |object: &Result<ObjectMeta>| match (object, prefix) {
            (Ok(object), Some(prefix)) => object.location.prefix_matches(prefix),
            _ => true,
        };
        found.filter(within).collect()
    }
}

impl Connection {
    fn ask(&mut self, request: &ObjectRequest, content: &[Bytes]) -> Result<ObjectReply, MessageError> {
        messages::send(&mut self.socket, request)?;
        content.iter().try_for_each(|bytes| self.socket.write_all(bytes))?;
        self.receive()
    }

    fn receive(&mut self) -> Result<ObjectReply, MessageError> {
        let closed = || io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon has closed the connection");
        messages::receive(&mut self.socket)?.ok_or_else(|| closed().into())
    }

    /// Appends the next `bytes` bytes to `content`.
    fn take(&mut self, bytes: u64, content: &mut Vec<u8>) -> Result<(), MessageError> {
        if bytes > MAX_CONTENT_BYTES {
            return Err(MessageError::TooLong(bytes as usize));
        }
        let taken = Read::by_ref(&mut self.socket).take(bytes).read_to_end(content)?;
        if taken as u64 == bytes { Ok(()) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) }
    }
}

fn failed(error: MessageError) -> Error {
    Error::Generic { store: STORE, source: error.into() }
}

fn unexpected(reply: ObjectReply) -> Error {
    let message = match reply {
        ObjectReply::Failed { message } => message,
        other => format!("the daemon's answer was {other:?}"),
    };
    Error::Generic { store: STORE, source: message.into() }
}

fn not_implemented(operation: &str) -> Error {
    Error::NotImplemented { operation: operation.to_owned(), implementer: STORE.to_owned() }
}

impl fmt::Display for ObjectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("objects by way of the daemon")
    }
}

#[async_trait]
impl ObjectStore for ObjectClient {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let is_new = match options.mode {
            PutMode::Overwrite => false,
            PutMode::Create => true,
            PutMode::Update(_) => return Err(not_implemented("put of a version")),
        };
        let bytes = payload.content_length() as u64;
        let request = ObjectRequest::Put { name: location.to_string(), bytes, is_new };
        self.order(location, &request, payload.as_ref())?;
        Ok(written())
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let number = {
            let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            connection.uploads += 1;
            connection.uploads
        };
        let request = ObjectRequest::Create { name: location.to_string(), upload: number };
        self.order(location, &request, &[])?;
        Ok(Box::new(Upload { client: self.clone(), location: location.clone(), number }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.range.is_some() || options.head {
            return Err(not_implemented("get of a range"));
        }
        let content = self.read(location)?;
        let size = content.len() as u64;
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: Default::default(),
            size,
            e_tag: None,
            version: None,
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::iter([Ok(content)]).boxed()),
            meta,
            range: 0..size,
            attributes: Attributes::default(),
            extensions: Default::default(),
        })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let client = self.clone();
        let delete = move |location: Result<Path>| {
            let location = location?;
            client.order(&location, &ObjectRequest::Delete { name: location.to_string() }, &[])?;
            Ok(location)
        };
        locations.map(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.names(prefix) {
            Ok(found) => stream::iter(found.into_iter().map(Ok)).boxed(),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(not_implemented("list with delimiter"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(not_implemented("copy"))
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let request = ObjectRequest::Append { upload: self.number, bytes: data.content_length() as u64 };
        let sent = self.client.order(&self.location, &request, data.as_ref());
        Box::pin(async move { sent })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.client.order(&self.location, &ObjectRequest::Finish { upload: self.number }, &[])?;
        Ok(written())
    }

    async fn abort(&mut self) -> Result<()> {
        self.client.order(&self.location, &ObjectRequest::Abort { upload: self.number }, &[])
    }
}

/// The result of a write, whose version nobody asks for.
fn written() -> PutResult {
    PutResult { e_tag: None, version: None, extensions: Default::default() }
}
