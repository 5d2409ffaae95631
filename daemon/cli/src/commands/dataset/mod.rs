//! `millstream dataset`: names for versions of files.
//!
//! The catalog is read and written by this process, with the rights of its user: no daemon is needed.

mod diff;
mod division;
mod register;
mod show;
mod stats;

use std::time::{SystemTime, UNIX_EPOCH};

use millstream_io::storage::{Catalog, StorageSpec, Stores, Version};
use millstream_tools::stats::{ColumnSummary, Distribution};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::arguments::{CatalogPlace, Dataset};
use crate::context::Context;
use crate::failure::Failure;

/// The statistics of a column, as a catalog has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ColumnRecord {
    name: String,
    /// Rows without a value.
    absent: u64,
    summary: ColumnSummary,
    distribution: Distribution,
}

pub(crate) fn run(command: Dataset, context: &Context) -> Result<(), Failure> {
    match command {
        Dataset::Register(arguments) => register::run(&arguments, context),
        Dataset::List(arguments) => Open::at(&arguments.place)?.list(context),
        Dataset::Show(arguments) => Open::at(&arguments.place)?.show(&arguments, context),
        Dataset::Diff(arguments) => Open::at(&arguments.place)?.diff(&arguments, context),
        Dataset::Rollback(arguments) => Open::at(&arguments.place)?.roll_back(&arguments, context),
        Dataset::Stats(arguments) => Open::at(&arguments.place)?.statistics(&arguments, context),
    }
}

/// The user of this process, for others to read.
fn user() -> String {
    let name = std::env::var("USER").ok().filter(|name| !name.is_empty());
    name.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

/// The time, in milliseconds since the Unix epoch.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

/// Storage with the catalog of the arguments.
fn stores_at(place: &CatalogPlace) -> Stores {
    let spec = StorageSpec { catalog: place.catalog.clone(), ..StorageSpec::default() };
    Stores::new(spec, Stores::SHARED_BYTES)
}

/// A catalog, and what reads it.
struct Open {
    catalog: Catalog,
    runtime: Runtime,
}

impl Open {
    fn at(place: &CatalogPlace) -> Result<Self, Failure> {
        Ok(Self { catalog: Catalog::of(&stores_at(place))?, runtime: Runtime::new()? })
    }

    /// The statistics of a version; `None` if there are none.
    fn records(&self, version: &Version) -> Result<Option<Vec<ColumnRecord>>, Failure> {
        let (name, number) = (&version.dataset, version.version);
        let Some(bytes) = self.runtime.block_on(self.catalog.statistics(name, number))? else {
            return Ok(None);
        };
        let records = serde_json::from_slice(&bytes);
        let damaged =
            |error| anyhow::anyhow!("the statistics of {} are damaged: {error}", version.reference());
        Ok(Some(records.map_err(damaged)?))
    }
}
