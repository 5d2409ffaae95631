//! From the patterns of a data section to a dataset, in steps. Between them, the caller checks what may be read.
//!
//! A process that reads for several users must not reveal to one of them what only another may read. So it checks the
//! patterns before a catalog is read for them ([`Pinned::of`]), and the files before one is opened ([`Listed`]).

use std::path::Path;

use millstream_format::filter::RowFilter;
use millstream_io::storage::{Object, Stores};
use tokio::runtime::Handle;

use super::{Dataset, rows_of};
use crate::error::Error;
use crate::spec::DataSpec;

/// What patterns name, with the versions of datasets: files, and which of their rows.
#[derive(Debug)]
pub struct Pinned {
    /// Patterns of files, and versions of datasets.
    pub patterns: Vec<String>,
    /// The rows of the split of registered datasets that all of them name; all rows if they name none.
    pub rows: RowFilter,
}

/// Listed files, and which of their rows are data.
#[derive(Debug)]
pub struct Listed {
    /// The files.
    pub objects: Vec<Object>,
    /// Which of their rows.
    pub rows: RowFilter,
}

impl Pinned {
    /// Resolves the versions of datasets and the names of splits in `patterns`. `check` decides whether the catalog may be
    /// read for patterns: first as they are, then with their versions. Blocks, so it must not be called from async code.
    ///
    /// # Errors
    /// Those of `check`; there is no such dataset or split, or the patterns name different rows.
    pub fn of<E: From<millstream_io::Error>>(
        patterns: &[String],
        stores: &Stores,
        runtime: &Handle,
        check: impl Fn(&[String]) -> Result<(), E>,
    ) -> Result<Self, E> {
        check(patterns)?;
        let pinned = runtime.block_on(stores.pin(patterns))?;
        check(&pinned)?;
        let named = runtime.block_on(stores.named(&pinned))?;
        let rows = named.portion.as_ref().map(rows_of).unwrap_or_default();
        Ok(Self { patterns: named.patterns, rows })
    }

    /// Lists the files. Relative paths start at `base`. Blocks.
    ///
    /// # Errors
    /// A pattern matches nothing, or storage cannot be read.
    pub fn list(
        self,
        stores: &Stores,
        base: &Path,
        runtime: &Handle,
    ) -> Result<Listed, millstream_io::Error> {
        let objects = runtime.block_on(stores.list(&self.patterns, base))?;
        Ok(Listed { objects, rows: self.rows })
    }
}

impl Listed {
    /// Opens the files as the data section says: cut, limited by its memory budget, and without rows that are not data. Its
    /// own filters are not applied. Blocks.
    ///
    /// # Errors
    /// The files have no supported format, or cannot be read.
    pub fn open(self, data: &DataSpec, runtime: &Handle) -> Result<Dataset, Error> {
        let Self { objects, rows } = self;
        let dataset = Dataset::of_within(objects, data.format, data.memory_budget_bytes);
        let dataset = runtime.block_on(dataset)?.cut_at(data.split_bytes)?;
        Ok(dataset.with_budget(data.memory_budget_bytes, data.lanes).filtered(&rows))
    }
}
