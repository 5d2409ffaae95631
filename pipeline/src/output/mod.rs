//! Files in the making: what `convert` and `generate` write.
//!
//! A file is written as *blocks*, runs of rows whose bounds follow from the rows alone: a row group of a
//! Parquet file; of TFRecord and CSV some thousand records, each compressed by itself such that all of them,
//! one behind the other, are one stream (`deflate.rs`). So blocks can be encoded side by side
//! ([`crate::parallel`]) while the files' bytes do not depend on it, and what is held at a time is a few
//! blocks, whatever the files' size.
//!
//! What comes in no known number of rows, such as scores, is written by a [`TableWriter`], as it comes.
//!
//! Files are written under temporary names, or as the parts of uploads, and get their own names when all of them
//! are whole: a crash, a full disk or an interruption leaves nothing under the final names.

mod deflate;
mod encode;
mod names;
mod staged;
mod table;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_schema::Schema;

use crate::dataset::RawChunk;
use crate::error::Error;
use crate::format::FileFormat;
use crate::format::parquet::{Shape, shape};
use crate::parallel::{Bounds, Weighed, in_order};
use crate::storage::Object;

use encode::{Encoder, Piece, ShardFile};
pub use staged::Destination;
pub(crate) use staged::Staged;
pub use table::{CellKind, Cells, TableFormat, TableWriter};

/// Records of a block of a TFRecord or CSV file.
const STREAM_BLOCK_ROWS: usize = 8192;
/// Bytes of values of a block, whatever its rows: of a TFRecord or CSV file, and of a Parquet file.
const STREAM_BLOCK_BYTES: usize = 4 << 20;
const GROUP_BYTES: usize = 64 << 20;

/// How to write files.
#[derive(Clone, Debug)]
pub struct OutputOptions {
    /// The format, where the output's name does not say it.
    pub format: Option<FileFormat>,
    /// How files are compressed; without it as their name says (`.gz`), Parquet with Snappy.
    pub compression: Option<OutputCompression>,
    /// Files to make, with as many rows each, give or take one.
    pub shards: Option<u32>,
    /// Rows of a Parquet row group, which is what jobs read at a time.
    pub group_rows: usize,
    /// Threads to work on.
    pub threads: usize,
    /// The most bytes of rows on their way from input to output, but that one block is always on its way.
    pub memory_bytes: usize,
}

impl Default for OutputOptions {
    fn default() -> Self {
        Self {
            format: None,
            compression: None,
            shards: None,
            group_rows: 1 << 16,
            threads: 1,
            memory_bytes: 512 << 20,
        }
    }
}

/// How output is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputCompression {
    /// Not at all.
    None,
    /// gzip (TFRecord, CSV).
    Gzip,
    /// zlib (TFRecord, CSV).
    Zlib,
    /// Zstandard (all).
    Zstd,
    /// Snappy (Parquet).
    Snappy,
}

/// What is to be written where.
#[derive(Clone)]
pub(crate) struct Target {
    format: FileFormat,
    compression: OutputCompression,
    /// One for each shard.
    addresses: Vec<String>,
    group_rows: usize,
    destination: Destination,
}

/// Works out names, format and compression of `output`: a file, a name with a `*` or `@N` where the shards'
/// numbers go, or a directory.
pub(crate) fn plan(
    output: &str,
    inputs: &[Object],
    options: &OutputOptions,
    destination: &Destination,
) -> Result<Target, Error> {
    let is_directory = output.ends_with('/') || Path::new(output).is_dir();
    let (directory, name) = if is_directory {
        (output.trim_end_matches('/').to_owned() + "/", "")
    } else {
        match output.rsplit_once('/') {
            Some((directory, name)) => (format!("{directory}/"), name),
            None => (String::new(), output),
        }
    };
    let format = options.format.or_else(|| FileFormat::by_name(name)).ok_or_else(|| {
        Error::Invalid(format!("{output}: neither its name nor an option says the format to write"))
    })?;
    let compression = names::compression(format, name, options)?;
    let name = if is_directory { names::default_name(inputs, format, compression) } else { name.to_owned() };
    let names = names::shard_names(&name, options.shards)?;
    let addresses = names.into_iter().map(|name| format!("{directory}{name}")).collect();
    let group_rows = options.group_rows.max(1);
    Ok(Target { format, compression, addresses, group_rows, destination: destination.clone() })
}

impl Target {
    /// Refuses columns of types that the output's format has no place for, before anything is read.
    pub(crate) fn refuse_unfit(&self, schema: &Schema, inputs: &[Object]) -> Result<(), Error> {
        let expected = match self.format {
            FileFormat::Parquet => return Ok(()),
            FileFormat::TfRecord => "numbers, text, or lists of them",
            FileFormat::Csv => "one value a row, for CSV",
        };
        let unfit = schema.fields().iter().find(|field| match shape(field.data_type()) {
            None => true,
            Some(Shape::List) => self.format == FileFormat::Csv,
            Some(Shape::Single) => false,
        });
        unfit.map_or(Ok(()), |field| {
            Err(Error::WrongType {
                path: inputs.first().map_or_else(String::new, |object| object.path().to_string()),
                column: field.name().clone(),
                found: field.data_type().to_string(),
                expected: expected.to_owned(),
            })
        })
    }

    pub(crate) fn shards(&self) -> usize {
        self.addresses.len()
    }

    /// The number of the first row of a shard, of `rows` rows in all.
    pub(crate) fn first_row(&self, shard: usize, rows: u64) -> u64 {
        (u128::from(rows) * shard as u128 / self.shards() as u128) as u64
    }

    /// The most rows, and bytes of values, that a block has.
    pub(crate) fn block(&self) -> (usize, usize) {
        match self.format {
            FileFormat::Parquet => (self.group_rows, GROUP_BYTES),
            FileFormat::TfRecord | FileFormat::Csv => (STREAM_BLOCK_ROWS, STREAM_BLOCK_BYTES),
        }
    }
}

/// Some rows, to become a block.
pub(crate) struct Block<B> {
    pub(crate) item: B,
    pub(crate) rows: u64,
    /// The most that it and what comes of it hold at a time.
    pub(crate) bytes: usize,
}

/// Consecutive shards that are to be written one after the other.
pub(crate) struct Run<'a> {
    pub(crate) target: &'a Target,
    pub(crate) schema: &'a Arc<Schema>,
    /// Rows of all shards, also of those that are not of this run.
    pub(crate) rows: u64,
    pub(crate) shards: Range<usize>,
    pub(crate) bounds: Bounds,
}

enum Step<B> {
    Open(usize),
    Block(B),
}

enum Made {
    Open(usize),
    Piece(Piece),
}

impl Run<'_> {
    /// Writes the shards. `next` gives the rows in order, at most as many as it is asked for; `chunks` makes
    /// chunks of them, on any thread.
    pub(crate) fn write<B: Send, C: Iterator<Item = Result<RawChunk, Error>>>(
        &self,
        mut next: impl FnMut(u64) -> Result<Option<Block<B>>, Error> + Send,
        chunks: impl Fn(B) -> C + Sync,
    ) -> Result<Vec<Staged>, Error> {
        let encoder = Encoder::new(self.target, self.schema)?;
        let mut cursor = Cursor { run: self, shard: self.shards.start, row: 0, opened: false };
        let mut staged = Vec::with_capacity(self.shards.len());
        let mut open: Option<ShardFile> = None;
        in_order(
            self.bounds,
            || cursor.step(&mut next),
            |step| match step {
                Step::Open(shard) => Ok(Made::Open(shard)),
                Step::Block(item) => encoder.block(chunks(item)).map(Made::Piece),
            },
            |made| match (made, &mut open) {
                (Made::Open(shard), _) => {
                    if let Some(file) = open.take() {
                        staged.push(file.finish()?);
                    }
                    open = Some(encoder.open(&self.target.addresses[shard], &self.target.destination)?);
                    Ok(())
                }
                (Made::Piece(piece), Some(file)) => file.append(piece),
                (Made::Piece(_), None) => Err(Error::Invalid("rows of no shard".to_owned())),
            },
        )?;
        if let Some(file) = open.take() {
            staged.push(file.finish()?);
        }
        Ok(staged)
    }
}

/// Where a run stands.
struct Cursor<'a> {
    run: &'a Run<'a>,
    shard: usize,
    /// Rows of this shard that were given.
    row: u64,
    opened: bool,
}

impl Cursor<'_> {
    fn step<B>(
        &mut self,
        next: &mut impl FnMut(u64) -> Result<Option<Block<B>>, Error>,
    ) -> Result<Option<Weighed<Step<B>>>, Error> {
        let Run { target, rows, shards, .. } = self.run;
        while self.shard < shards.end {
            if !self.opened {
                self.opened = true;
                return Ok(Some(Weighed { item: Step::Open(self.shard), bytes: 0 }));
            }
            let shard_rows = target.first_row(self.shard + 1, *rows) - target.first_row(self.shard, *rows);
            if self.row < shard_rows {
                let most = (shard_rows - self.row).min(target.block().0 as u64);
                let Some(Block { item, rows, bytes }) = next(most)? else {
                    return Err(Error::Invalid(
                        "the data has fewer rows than it had a moment ago".to_owned(),
                    ));
                };
                self.row += rows;
                return Ok(Some(Weighed { item: Step::Block(item), bytes }));
            }
            self.shard += 1;
            self.row = 0;
            self.opened = false;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow_schema::{DataType, Field};
    use tokio::runtime::Runtime;

    use super::*;
    use crate::storage::Stores;

    fn target(output: &str, options: &OutputOptions) -> Target {
        let runtime = Runtime::new().unwrap();
        let here = Destination { stores: Stores::default(), runtime: runtime.handle().clone() };
        plan(output, &[], options, &here).unwrap()
    }

    #[test]
    fn a_list_is_no_field() {
        let lists = DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
        let schema = Schema::new(vec![Field::new("tags", lists, true)]);
        let options = OutputOptions { format: Some(FileFormat::Csv), ..OutputOptions::default() };
        let refused = target("a.csv", &options).refuse_unfit(&schema, &[]);
        assert!(matches!(refused, Err(Error::WrongType { .. })));
        target("a.tfrecord", &OutputOptions::default()).refuse_unfit(&schema, &[]).unwrap();
    }

    #[test]
    fn an_address_is_kept_as_it_was_written() {
        let options = OutputOptions { shards: Some(2), ..OutputOptions::default() };
        let address = |output: &str| target(output, &options).addresses[1].clone();
        assert_eq!(address("gs://b/d/a.parquet"), "gs://b/d/a-00001-of-00002.parquet");
        assert_eq!(address("./a.parquet"), "./a-00001-of-00002.parquet");
        assert_eq!(address("/a.csv"), "/a-00001-of-00002.csv");
        let options = OutputOptions { format: Some(FileFormat::Csv), ..OutputOptions::default() };
        assert_eq!(target("s3://b/d/", &options).addresses, ["s3://b/d/data.csv"]);
    }
}
