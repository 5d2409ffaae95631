//! The columns of a dataset: whether it has those that a job reads, their names, and their types.

use std::collections::BTreeMap;

use millstream_format::parquet::ParquetFile;
use millstream_format::{Error as FormatError, ProjectedColumn, Projection};
use tokio::runtime::Handle;

use super::{Absent, Dataset, Files, Filtered, RecordLengths};
use crate::analysis::StoredType;
use crate::error::Error;
use crate::parquet::ParquetObject;
use crate::records;

/// The number of records in which a feature must occur at least once; otherwise it counts as missing from the data.
const CHECKED_RECORDS: usize = 65_536;

/// The number of records whose features count as the columns of the data.
const NAMING_RECORDS: usize = 4096;

impl Dataset {
    /// Rejects a projection that the data cannot serve, before any work starts: a Parquet column that a file lacks or
    /// that has an unusable type, or a feature that occurs in none of the first 65,536 records. Blocks; call it once
    /// after opening, outside async code.
    ///
    /// Reading does not check for absent features again, because a whole file may lack a rare feature. For the same
    /// reason, `absent` may allow files of records to lack some.
    pub fn check(&self, projection: &Projection, absent: Absent<'_>, runtime: &Handle) -> Result<(), Error> {
        let (extended, _) = self.selection(projection);
        match &self.files {
            Files::Parquet(files) => {
                let files: Vec<&ParquetFile> = files.iter().map(ParquetObject::file).collect();
                if let Some(Filtered { filter, .. }) = &self.filter {
                    files.iter().try_for_each(|file| file.check_filter(filter))?;
                }
                ParquetFile::check(&files, &extended)?;
                let schemas = files.iter().map(|file| &**file.schema());
                _ = self.stored_types.set(StoredType::agreed(schemas, &extended));
                Ok(())
            }
            &Files::Records(format) => {
                let most_bytes = self.most_record_bytes;
                let examined =
                    records::examine(&self.objects, format, &extended, CHECKED_RECORDS, most_bytes, runtime)?;
                let lengths = RecordLengths { longest: examined.longest, mean: examined.mean };
                _ = self.record_lengths.set(lengths);
                _ = self.stored_types.set(StoredType::agreed([&*examined.schema].into_iter(), &extended));
                let column = |&column: &usize| extended.columns[column].name.as_str();
                let mut missing = examined.absent.iter().map(column);
                let rejected = match absent {
                    Absent::Rejected => missing.next(),
                    // Of other data, no column is known.
                    Absent::AllowedExcept(_) if examined.absent.len() == extended.columns.len() => {
                        missing.next()
                    }
                    Absent::AllowedExcept(needed) => missing.find(|name| needed.contains(name)),
                };
                match (rejected, self.objects.first()) {
                    (Some(wanted), Some(object)) => {
                        let names = examined.names.iter().map(String::as_str);
                        Err(FormatError::missing_column(object.path(), wanted, names).into())
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// The columns of the first file; of files of records, the features of the first records of all files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn column_names(&self, runtime: &Handle) -> Result<Vec<String>, Error> {
        match &self.files {
            Files::Parquet(files) => {
                let fields = files.iter().take(1).flat_map(|file| file.file().schema().fields());
                Ok(fields.map(|field| field.name().clone()).collect())
            }
            &Files::Records(format) => {
                // A column that no record has, so that the examination does not end early.
                let nothing = ProjectedColumn { name: "\0".to_owned(), multi: false };
                let projection = Projection { columns: vec![nothing], ..Projection::default() };
                let most_bytes = self.most_record_bytes;
                let limit = NAMING_RECORDS;
                Ok(records::examine(&self.objects, format, &projection, limit, most_bytes, runtime)?.names)
            }
        }
    }

    /// The types in which the data stores the columns that [`Dataset::check`] looked up, where all files agree.
    pub fn stored_types(&self) -> BTreeMap<String, StoredType> {
        self.stored_types.get().cloned().unwrap_or_default()
    }
}
