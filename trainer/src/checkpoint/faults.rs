//! Faulty stores for tests: a store whose writer dies before, after or in the middle of an operation, and a
//! store whose operations wait at a gate.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};

use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// When the writer dies. Operations and bytes count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// The operation does not happen.
    Before(u64),
    /// The operation happens, but the writer does not learn of it.
    After(u64),
    /// The object that contains this byte of all written bytes is truncated before it, as on a medium whose
    /// writes are not atomic.
    AtByte(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct DyingStore {
    inner: Arc<dyn ObjectStore>,
    death: Death,
    life: Arc<Mutex<Life>>,
}

#[derive(Debug, Default)]
struct Life {
    operations: u64,
    bytes: u64,
    dead: bool,
}

/// The outcome of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    DoneUnknown,
    NotDone,
}

#[derive(Debug)]
struct DyingUpload {
    store: DyingStore,
    location: Path,
    sent: Arc<Mutex<Vec<u8>>>,
}

fn died() -> Error {
    Error::Generic { store: "DyingStore", source: "the writer has died".into() }
}

impl DyingStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, death: Death) -> Self {
        Self { inner, death, life: Arc::default() }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.life.lock().expect("no test panics with it").dead
    }

    fn next(&self) -> Fate {
        let mut life = self.life.lock().expect("no test panics with it");
        let number = life.operations;
        life.operations += 1;
        let fate = match self.death {
            _ if life.dead => Fate::NotDone,
            Death::Before(fatal) if fatal == number => Fate::NotDone,
            Death::After(fatal) if fatal == number => Fate::DoneUnknown,
            _ => Fate::Done,
        };
        life.dead |= fate != Fate::Done;
        fate
    }

    /// Returns how many of the next `length` bytes are written.
    fn spend(&self, length: usize) -> usize {
        let mut life = self.life.lock().expect("no test panics with it");
        let start = life.bytes;
        life.bytes += length as u64;
        match self.death {
            Death::AtByte(fatal) if !life.dead && fatal < life.bytes => {
                life.dead = true;
                usize::try_from(fatal - start).expect("less than a length")
            }
            _ => length,
        }
    }

    async fn run<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match self.next() {
            Fate::NotDone => Err(died()),
            Fate::Done => work.await,
            Fate::DoneUnknown => work.await.and(Err(died())),
        }
    }
}

impl fmt::Display for DyingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} until {:?}", self.inner, self.death)
    }
}

fn joined(payload: &PutPayload) -> Vec<u8> {
    payload.iter().flat_map(|bytes| bytes.iter().copied()).collect()
}

#[async_trait]
impl ObjectStore for DyingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let mut bytes = joined(&payload);
        self.run(async {
            let whole = bytes.len();
            bytes.truncate(self.spend(whole));
            let cut = bytes.len() < whole;
            let put = self.inner.put_opts(location, bytes.into(), options).await;
            if cut { Err(died()) } else { put }
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = DyingUpload { store: self.clone(), location: location.clone(), sent: Arc::default() };
        self.run(async { Ok(Box::new(upload) as Box<dyn MultipartUpload>) }).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.run(self.inner.get_opts(location, options)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .and_then(move |location| {
                let store = store.clone();
                async move { store.run(store.inner.delete(&location)).await.map(|()| location) }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.next() {
            Fate::Done => self.inner.list(prefix),
            Fate::DoneUnknown | Fate::NotDone => stream::once(async { Err(died()) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.run(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.run(self.inner.copy_opts(from, to, options)).await
    }
}

#[async_trait]
impl MultipartUpload for DyingUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let (store, location, sent) = (self.store.clone(), self.location.clone(), Arc::clone(&self.sent));
        Box::pin(async move {
            let bytes = joined(&payload);
            let work = async {
                let kept = store.spend(bytes.len());
                let so_far = {
                    let mut sent = sent.lock().expect("no test panics with it");
                    sent.extend_from_slice(&bytes[..kept]);
                    sent.clone()
                };
                if kept == bytes.len() {
                    return Ok(());
                }
                store.inner.put(&location, so_far.into()).await?;
                Err(died())
            };
            store.run(work).await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let sent = self.sent.lock().expect("no test panics with it").clone();
        self.store.run(self.store.inner.put(&self.location, sent.into())).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.store.run(async { Ok(()) }).await
    }
}

/// A store whose operations wait until its gate is open.
#[derive(Clone, Debug)]
pub(crate) struct GatedStore {
    inner: Arc<dyn ObjectStore>,
    gate: Arc<Gate>,
}

/// Initially closed.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// Lets all current and later operations pass.
    pub(crate) fn open(&self) {
        *self.open.lock().expect("no test panics with it") = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().expect("no test panics with it");
        drop(self.opened.wait_while(open, |open| !*open).expect("no test panics with it"));
    }
}

impl GatedStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> (Self, Arc<Gate>) {
        let gate = Arc::<Gate>::default();
        (Self { inner, gate: Arc::clone(&gate) }, gate)
    }
}

impl fmt::Display for GatedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} behind a gate", self.inner)
    }
}

#[async_trait]
impl ObjectStore for GatedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.gate.pass();
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.gate.pass();
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.gate.pass();
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.gate.pass();
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.gate.pass();
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.gate.pass();
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.gate.pass();
        self.inner.copy_opts(from, to, options).await
    }
}
