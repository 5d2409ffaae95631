//! Directories in a bucket to which a job writes: may this process write there, and only if an object is unchanged, as the lease
//! of a run needs.

use std::path::Path;
use std::time::Duration;

use millstream_io::Error;
use millstream_io::storage::{Directory, StorageSpec, Stores};
use tokio::time::timeout;

use super::finding::Finding;

/// Time limit for all requests.
const LIMIT: Duration = Duration::from_secs(20);

/// The check of runs.
const CHECK: &str = "bucket.checkpoint";

/// Why writing does not work.
enum Trouble {
    Storage(Error),
    /// A condition was not respected: which.
    Unconditional(&'static str),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Storage(error)
    }
}

/// The finding about the directory of runs `directory`, used as `spec` says.
pub(super) async fn finding(directory: &Directory, spec: &StorageSpec) -> Finding {
    let stores = Stores::new(spec.clone(), 0);
    let object = directory.join(&format!(".millstream-doctor-{}", std::process::id()));
    let tried = timeout(LIMIT, try_writes(&stores, &object.text())).await;
    // Also when a later request has failed.
    let deleted = timeout(LIMIT, stores.delete(&object.text(), Path::new("/"))).await;
    let advice = "millstream doctor lists the credentials of buckets of data; those of runs need to create, replace and delete";
    match (tried, deleted) {
        (Ok(Ok(())), Ok(Ok(_))) => {
            Finding::ok(CHECK, format!("{directory}: writes, on conditions, and deletes"))
        }
        (Err(_), _) | (_, Err(_)) => {
            let late = format!("{directory}: no answer within {} s", LIMIT.as_secs());
            Finding::fail(CHECK, late, "check the network and the address of the service")
        }
        (Ok(Err(Trouble::Unconditional(what))), _) => {
            let message = format!("{directory}: the service {what}, which the lease of a run needs");
            Finding::fail(CHECK, message, "train in a local directory, or in a bucket of another service")
        }
        (Ok(Err(Trouble::Storage(error))), _) | (_, Ok(Err(error))) => {
            Finding::fail(CHECK, error.to_string(), advice)
        }
    }
}

async fn try_writes(stores: &Stores, object: &str) -> Result<(), Trouble> {
    let base = Path::new("/");
    stores.delete(object, base).await?;
    let new = stores.put_new(object, base, b"first".to_vec()).await?;
    let new = new.ok_or(Trouble::Unconditional("says that an object exists that was deleted"))?;
    if stores.put_new(object, base, b"again".to_vec()).await?.is_some() {
        return Err(Trouble::Unconditional("replaces an object that must not be replaced"));
    }
    let replaced = stores.replace(object, b"second".to_vec(), &new).await?;
    if replaced.is_none() {
        return Err(Trouble::Unconditional("does not replace an object that is unchanged"));
    }
    if stores.replace(object, b"third".to_vec(), &new).await?.is_some() {
        return Err(Trouble::Unconditional("replaces an object that has changed"));
    }
    Ok(())
}
