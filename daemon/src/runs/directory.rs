//! A directory of runs, or of one run: local, or in a bucket.
//!
//! The functions here block until storage answers, so they must not be called from async code.

use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use millstream_io::storage::{Directory, Object, StorageSpec, Stores};
use millstream_peers::etcd::Etcd;
use millstream_trainer::checkpoint::CheckpointStore;
use millstream_worker::objects::ObjectClient;
use tokio::runtime::Handle;

use super::MAX_JOB_BYTES;
use super::lease::{self, LEASE, Lease};
use crate::objects::{ObjectServer, Writing, is_plain_name};

/// The modes of files with and without secrets, before the umask.
const SECRET_MODE: u32 = 0o600;
const SHARED_MODE: u32 = 0o666;

/// What reads and writes buckets.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    pub(crate) stores: Stores,
    /// The etcd cluster of the site, which keeps leases if there is one.
    pub(crate) etcd: Option<Etcd>,
    /// Where requests run.
    pub(crate) runtime: Handle,
}

/// A directory and what it takes to use it.
#[derive(Clone, Debug)]
pub(crate) struct RunDirectory {
    address: Directory,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Local(PathBuf),
    /// With the lease that is confirmed before each change, if this process has one.
    Bucket(Storage, Option<Arc<Lease>>),
}

impl Storage {
    /// To read runs: it takes no lease.
    pub(crate) fn reading(stores: Stores, runtime: Handle) -> Self {
        Self { stores, etcd: None, runtime }
    }

    /// The same for a job with this `[storage]`; requests end with those of this value.
    pub(crate) fn for_job(&self, spec: &StorageSpec) -> Self {
        Self { stores: self.stores.for_job(spec), ..self.clone() }
    }

    /// The objects that a pattern matches, if there are any.
    pub(crate) fn find(&self, pattern: &Directory) -> Result<Vec<Object>, millstream_io::Error> {
        self.runtime.block_on(self.stores.find(&pattern.text()))
    }

    /// The result of `work`, which changes a run, once the `lease` is confirmed.
    fn change<T, E: Into<anyhow::Error>>(
        &self,
        lease: Option<&Lease>,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        self.runtime.block_on(async {
            let Some(lease) = lease else { return work.await.map_err(Into::into) };
            lease.confirm().await?;
            let limit = lease.change_timeout();
            let done = tokio::time::timeout(limit, work).await;
            done.with_context(|| format!("no answer within {} s", limit.as_secs()))?.map_err(Into::into)
        })
    }
}

impl RunDirectory {
    /// The directory `address`, which `storage` reads and writes if it is in a bucket.
    pub(crate) fn new(address: Directory, storage: &Storage) -> Self {
        match address.as_local() {
            Some(path) => Self::local(path),
            None => Self { address, place: Place::Bucket(storage.clone(), None) },
        }
    }

    /// The same directory, which is changed only as long as this process has the `lease`. One that is local has none.
    pub(crate) fn under_lease(self, lease: Option<Arc<Lease>>) -> Self {
        match self.place {
            Place::Bucket(storage, _) => Self { place: Place::Bucket(storage, lease), ..self },
            Place::Local(_) => self,
        }
    }

    /// A local directory.
    pub(crate) fn local(path: &Path) -> Self {
        Self { address: Directory::local(path), place: Place::Local(path.to_owned()) }
    }

    /// Its path or address.
    pub(crate) fn address(&self) -> &Directory {
        &self.address
    }

    /// Its path, if it is local.
    pub(crate) fn as_local(&self) -> Option<&Path> {
        match &self.place {
            Place::Local(path) => Some(path),
            Place::Bucket(..) => None,
        }
    }

    /// What reads and writes it, if it is in a bucket.
    pub(crate) fn storage(&self) -> Option<&Storage> {
        match &self.place {
            Place::Local(_) => None,
            Place::Bucket(storage, _) => Some(storage),
        }
    }

    /// The directory `name` in it.
    pub(crate) fn join(&self, name: &str) -> Self {
        self.at(self.address.join(name))
    }

    /// The directory that contains it.
    pub(crate) fn parent(&self) -> Option<Self> {
        Some(self.at(self.address.parent()?))
    }

    fn at(&self, address: Directory) -> Self {
        match &self.place {
            Place::Local(_) => Self::local(address.as_local().unwrap_or(Path::new("/"))),
            Place::Bucket(..) => Self { address, place: self.place.clone() },
        }
    }

    /// The path or address of the file `name` in it, to show.
    pub(crate) fn file(&self, name: &str) -> String {
        self.address.join(name).to_string()
    }

    /// Creates it, if it does not exist.
    ///
    /// # Errors
    /// When it is local and cannot be created.
    pub(crate) fn create(&self) -> Result<()> {
        match &self.place {
            Place::Local(path) => fs::create_dir_all(path).with_context(|| self.to_string()),
            Place::Bucket(..) => Ok(()),
        }
    }

    /// Whether the file `name` is in it.
    ///
    /// # Errors
    /// When storage fails.
    pub(crate) fn has(&self, name: &str) -> Result<bool> {
        match &self.place {
            Place::Local(path) => Ok(path.join(name).is_file()),
            Place::Bucket(storage, _) => Ok(!storage.find(&self.address.join(name))?.is_empty()),
        }
    }

    /// When the file `name` in it was written, if that is known.
    pub(crate) fn written(&self, name: &str) -> Option<SystemTime> {
        match &self.place {
            Place::Local(path) => path.join(name).metadata().ok()?.modified().ok(),
            Place::Bucket(storage, _) => {
                Some(storage.find(&self.address.join(name)).ok()?.first()?.modified())
            }
        }
    }

    /// Reads the file `name` in it, if it exists.
    ///
    /// # Errors
    /// When storage fails.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let here = || self.file(name);
        match &self.place {
            Place::Local(path) => match fs::read(path.join(name)) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error).with_context(here),
            },
            Place::Bucket(storage, _) => {
                let found = storage.find(&self.address.join(name))?;
                let Some(object) = found.first() else { return Ok(None) };
                let bytes = object.size();
                ensure!(
                    bytes <= MAX_JOB_BYTES,
                    "{} has {bytes} bytes, more than any record of a run",
                    here()
                );
                let read = storage.runtime.block_on(object.read(0..bytes)).with_context(here)?;
                Ok(Some(read.into()))
            }
        }
    }

    /// Writes the file `name` in it, or replaces it: a reader sees either content. Only the daemon's user can read a local file
    /// with secrets in addresses, such as the listing of objects with signed addresses.
    ///
    /// # Errors
    /// When storage fails.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let written = match &self.place {
            Place::Local(path) => write_file(path, name, bytes).map_err(Into::into),
            Place::Bucket(storage, lease) => {
                let address = self.address.join(name);
                let address = address.text();
                let written = storage.stores.put(&address, Path::new("/"), bytes.to_vec());
                storage.change(lease.as_deref(), written)
            }
        };
        written.with_context(|| self.file(name))
    }

    /// Writes the file `name` unless it exists. Returns whether it was written.
    ///
    /// # Errors
    /// When storage fails.
    pub(super) fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let Place::Bucket(Storage { stores, runtime, .. }, _) = &self.place else {
            bail!("{self} is not in a bucket");
        };
        let address = self.address.join(name);
        let written = runtime.block_on(stores.put_new(&address.text(), Path::new("/"), bytes.to_vec()));
        Ok(written.with_context(|| self.file(name))?.is_some())
    }

    /// The directories in it that have the file `name`, and when that was written.
    ///
    /// # Errors
    /// When storage fails.
    pub(crate) fn directories_with(&self, name: &str) -> Result<Vec<(Self, SystemTime)>> {
        let storage = match &self.place {
            Place::Local(path) => {
                let found =
                    directories(path).with_context(|| self.to_string())?.into_iter().filter_map(|path| {
                        let written = fs::metadata(path.join(name)).ok()?.modified().ok()?;
                        Some((Self::local(&path), written))
                    });
                return Ok(found.collect());
            }
            Place::Bucket(storage, _) => storage,
        };
        let pattern = self.address.join("*").join(name);
        let objects = storage.find(&pattern).with_context(|| self.to_string())?;
        // Other names are not of runs, and might be patterns.
        let found = objects.iter().filter_map(|object| {
            let directory = object.path().rsplit('/').nth(1).filter(|name| is_plain_name(name))?;
            Some((self.join(directory), object.modified()))
        });
        Ok(found.collect())
    }

    /// The checkpoints of the run in it, to read.
    ///
    /// # Errors
    /// When it is local and cannot be opened, or the system refuses a connection.
    pub(crate) fn checkpoints(&self) -> Result<CheckpointStore> {
        match &self.place {
            Place::Local(path) => Ok(CheckpointStore::local(path)?),
            Place::Bucket(Storage { stores, runtime, .. }, _) => {
                let (ours, theirs) = UnixStream::pair()?;
                // Ends when the store is dropped.
                ObjectServer::new(self.address.clone(), stores, Writing::Refused).start(theirs, runtime)?;
                Ok(ObjectClient::new(ours).checkpoints(&self.to_string(), 0))
            }
        }
    }

    /// Deletes it with all that is in it.
    ///
    /// # Errors
    /// When storage fails.
    pub(crate) fn remove(&self) -> Result<()> {
        match &self.place {
            Place::Local(path) => fs::remove_dir_all(path).with_context(|| self.to_string()),
            Place::Bucket(storage, lease) => {
                let start = self.address.text().into_owned() + "/";
                let (found, lease_object) = (storage.find(&self.address.join("**"))?, start.clone() + LEASE);
                let files = found.iter().filter(|object| object.path().starts_with(&start));
                for object in files.filter(|object| **object.path() != *lease_object) {
                    let deleted = storage.stores.delete(object.path(), Path::new("/"));
                    storage.change(lease.as_deref(), deleted)?;
                }
                // Last: without it, another daemon could take the run.
                storage.change(lease.as_deref(), lease::remove((&self.address, storage)))
            }
        }
    }
}

impl fmt::Display for RunDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

fn write_file(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unborn = directory.join(format!(".{name}.new"));
    let is_secret = |line: &str| matches!(millstream_io::redact(line), Cow::Owned(_));
    let has_secrets = std::str::from_utf8(bytes).is_ok_and(|text| text.lines().any(is_secret));
    let mode = if has_secrets { SECRET_MODE } else { SHARED_MODE };
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&unborn)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unborn, directory.join(name))?;
    File::open(directory)?.sync_all()
}

fn directories(parent: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut directories = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            directories.push(entry.path());
        }
    }
    Ok(directories)
}
