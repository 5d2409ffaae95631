//! Writes output files for `convert`, `generate` and scoring.
//!
//! A file consists of *blocks*: runs of rows whose boundaries depend only on the rows. A block is a row group of a
//! Parquet file, or several thousand records or lines of another file. Blocks of a stream are compressed separately
//! such that their concatenation is one stream (`deflate.rs`). Blocks can therefore be encoded in parallel
//! ([`crate::parallel`]) without affecting the files' bytes, and only a few blocks are in memory at a time, regardless
//! of the size of the files.
//!
//! A [`TableWriter`] writes tables of unknown length, such as scores, row by row.
//!
//! Files are written under temporary names, or as parts of multipart uploads, and get their final names once all
//! of them are complete. A crash, a full disk or an interruption leaves nothing under the final names.

mod deflate;
mod encode;
mod mds;
mod names;
mod narrow;
mod passed;
mod samples;
mod staged;
mod table;

use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_schema::{DataType, Schema};
use millstream_format::mds_writer::{self, ShardDescription};
use millstream_format::type_name::TypeName;
use millstream_format::{Error as FormatError, FileFormat, RawChunk};
use millstream_io::Error as IoError;
use millstream_io::storage::{Object, is_local};
use millstream_pipeline::Error;
use millstream_pipeline::parallel::{Bounds, Weighed, in_order};

use encode::{Encoder, Piece, ShardFile};
pub(crate) use mds::INDEX_NAME;
use mds::MdsLayout;
pub use passed::PassedColumn;
use samples::SampleLayout;
use staged::local_path;
pub use staged::{Destination, Staged};
pub use table::{CellKind, Cells, TableFormat, TableWriter};

/// Records per block of a file that is not Parquet.
const STREAM_BLOCK_ROWS: usize = 8192;
/// The maximum size of a block's values, for other files and for Parquet.
const STREAM_BLOCK_BYTES: usize = 4 << 20;
const GROUP_BYTES: usize = 64 << 20;
/// The memory use of the headers and names in an archive per byte: the archive grows by doubling.
const OVERHEAD_HELD: usize = 2;

/// A format of files that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// Delimiter-separated fields, one record per line.
    Csv,
    /// One JSON object per line.
    JsonLines,
    /// Parquet.
    Parquet,
    /// TFRecord files of `tf.train.Example`.
    TfRecord,
    /// Tar archives of samples.
    WebDataset,
    /// Shards of MosaicML Streaming with their index.
    Mds,
}

/// Options for writing files.
#[derive(Clone, Debug)]
pub struct OutputOptions {
    /// The format, if the output's name does not determine it.
    pub format: Option<OutputFormat>,
    /// The compression; by default as the name says (`.gz`), and Snappy for Parquet.
    pub compression: Option<OutputCompression>,
    /// The number of files. Their row counts differ by at most one.
    pub shards: Option<u32>,
    /// Rows per Parquet row group, the unit in which jobs read.
    pub group_rows: usize,
    /// The number of threads.
    pub threads: usize,
    /// The maximum bytes of rows in flight between input and output; one block is always allowed.
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

/// The compression of output files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputCompression {
    /// Uncompressed.
    None,
    /// gzip (all formats except Parquet).
    Gzip,
    /// zlib (all formats except Parquet and MDS).
    Zlib,
    /// Zstandard (all formats).
    Zstd,
    /// Snappy (Parquet).
    Snappy,
}

/// The resolved output files.
#[derive(Clone)]
pub(crate) struct Target {
    format: OutputFormat,
    compression: OutputCompression,
    /// Separates the fields of CSV.
    delimiter: u8,
    /// One per shard.
    addresses: Vec<String>,
    group_rows: usize,
    destination: Destination,
}

/// Resolves the names, format and compression of `output`: a file, a name with `*` or `@N` in place of shard
/// numbers, or a directory.
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
    let format =
        options.format.or_else(|| OutputFormat::from_name(name)).ok_or_else(|| names::unknown(output))?;
    let compression = names::compression(format, name, options)?;
    let name = if is_directory { names::default_name(inputs, format, compression) } else { name.to_owned() };
    let names = names::shard_names(&name, options.shards)?;
    names.iter().try_for_each(|name| names::check_shard(format, name, compression))?;
    let addresses = names.into_iter().map(|name| format!("{directory}{name}")).collect();
    let group_rows = options.group_rows.max(1);
    let delimiter = names::delimiter(&name);
    Ok(Target { format, compression, delimiter, addresses, group_rows, destination: destination.clone() })
}

impl OutputFormat {
    /// The format that a file's name indicates, compressed or not.
    fn from_name(name: &str) -> Option<Self> {
        Some(match FileFormat::from_name(name)? {
            FileFormat::Csv => Self::Csv,
            FileFormat::JsonLines => Self::JsonLines,
            FileFormat::Parquet => Self::Parquet,
            FileFormat::TfRecord => Self::TfRecord,
            FileFormat::WebDataset => Self::WebDataset,
            FileFormat::Mds => Self::Mds,
            FileFormat::Images => return None,
        })
    }
}

impl Target {
    pub(crate) fn format(&self) -> OutputFormat {
        self.format
    }

    /// Refuses to replace the index of other shards, before any data is read.
    pub(crate) fn check_index(&self) -> Result<(), Error> {
        let Some(address) = self.index() else { return Ok(()) };
        let found = match is_local(&address)? {
            true => match fs::read(local_path(&address)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                read => Some(read.map_err(|error| IoError::File { path: address.clone(), error })?),
            },
            false => {
                let Destination { stores, runtime } = &self.destination;
                let found = runtime.block_on(stores.get_small(&address, Path::new("/")))?;
                found.map(|(bytes, _)| bytes.to_vec())
            }
        };
        found.map_or(Ok(()), |index| mds::check_replaced(&address, &index, &self.addresses))
    }

    /// The address of the index, of MDS.
    fn index(&self) -> Option<String> {
        let directory = self.addresses.first()?.rsplit_once('/').map(|(directory, _)| directory);
        let address =
            directory.map_or_else(|| INDEX_NAME.to_owned(), |directory| format!("{directory}/{INDEX_NAME}"));
        (self.format == OutputFormat::Mds).then_some(address)
    }

    /// Rejects columns that the output format cannot represent, before any data is read. `is_sample` is whether a column
    /// is one of WebDataset input under its name there.
    pub(crate) fn check_schema(
        &self,
        schema: &Schema,
        inputs: &[Object],
        is_sample: impl Fn(usize) -> bool,
    ) -> Result<(), Error> {
        if self.format == OutputFormat::WebDataset {
            return SampleLayout::new(schema, 0)?.check_texts(is_sample);
        }
        let unsupported =
            schema.fields().iter().find(|field| !narrow::supports(self.format, field.data_type()));
        let Some(field) = unsupported else { return Ok(()) };
        let name = field.name();
        let is_list = matches!(
            field.data_type(),
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)
        );
        let expected = match self.format {
            OutputFormat::Csv if is_list => format!(
                "one value per row, for CSV: join the elements with --list '{name}=|', or write .jsonl, .parquet or \
                 .tfrecord"
            ),
            OutputFormat::Csv => {
                "one value per row, for CSV: write .jsonl or .parquet, or --select other columns".to_owned()
            }
            OutputFormat::Mds => {
                "no bytes in lists and structs, for MDS, which holds them as JSON: flatten it first, write \
                 .parquet, or --select other columns"
                    .to_owned()
            }
            _ => "a value or a list of values, for TFRecord: write .parquet, or --select other columns"
                .to_owned(),
        };
        Err(Error::Format(FormatError::WrongType {
            path: inputs.first().map_or_else(String::new, |object| object.path().to_string()),
            column: name.clone(),
            found: TypeName(field.data_type()).to_string(),
            expected,
        }))
    }

    /// What the user should know about how columns are written. `schema` has been [checked](Self::check_schema).
    pub(crate) fn note(&self, schema: &Schema) -> Option<String> {
        match self.format {
            OutputFormat::WebDataset => SampleLayout::new(schema, 0).ok()?.note(),
            _ => None,
        }
    }

    /// The files of all shards, and the index of MDS beside them.
    pub(crate) fn complete(&self, schema: &Schema, shards: Vec<WrittenShard>) -> Result<Vec<Staged>, Error> {
        let (mut files, descriptions): (Vec<Staged>, Vec<Option<ShardDescription>>) =
            shards.into_iter().map(|shard| (shard.file, shard.description)).unzip();
        if let Some(address) = self.index() {
            let descriptions: Vec<ShardDescription> = descriptions.into_iter().flatten().collect();
            let mut index = Staged::create(&address, &self.destination)?;
            let text = mds_writer::index(MdsLayout::new(schema).columns(), &descriptions);
            index.write_all(text.as_bytes()).map_err(|error| index.failed(error))?;
            index.seal()?;
            files.push(index);
        }
        Ok(files)
    }

    /// Gives the files their final names. An old local index is removed first and the new one is last, so that no index
    /// describes other bytes if this fails.
    pub(crate) fn commit(&self, files: Vec<Staged>) -> Result<(), Error> {
        if let Some(address) = self.index()
            && is_local(&address)?
        {
            match fs::remove_file(local_path(&address)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(|error| IoError::File { path: address, error })?,
            }
        }
        files.into_iter().try_for_each(Staged::commit)
    }

    pub(crate) fn shards(&self) -> usize {
        self.addresses.len()
    }

    /// The number of a shard's first row, of `rows` rows in total.
    pub(crate) fn first_row(&self, shard: usize, rows: u64) -> u64 {
        (u128::from(rows) * shard as u128 / self.shards() as u128) as u64
    }

    /// The bounds of a block of rows with this schema.
    pub(crate) fn block(&self, schema: &Schema) -> BlockBounds {
        let forms = vec![Form::Once; schema.fields().len()];
        let bounds =
            BlockBounds { rows: STREAM_BLOCK_ROWS, bytes: STREAM_BLOCK_BYTES, overhead_bytes: 0, forms };
        match self.format {
            OutputFormat::Parquet => BlockBounds { rows: self.group_rows, bytes: GROUP_BYTES, ..bounds },
            OutputFormat::WebDataset => {
                let Ok(layout) = SampleLayout::new(schema, 0) else { return bounds };
                let overhead_bytes = layout.overhead_bytes();
                let rows = (STREAM_BLOCK_BYTES / overhead_bytes.max(1)).clamp(1, STREAM_BLOCK_ROWS);
                BlockBounds { rows, overhead_bytes, forms: layout.forms(), ..bounds }
            }
            OutputFormat::TfRecord | OutputFormat::Csv | OutputFormat::JsonLines | OutputFormat::Mds => {
                bounds
            }
        }
    }
}

/// The bounds of a block.
pub(crate) struct BlockBounds {
    /// The maximum rows.
    pub(crate) rows: usize,
    /// The maximum bytes of values in their forms.
    pub(crate) bytes: usize,
    /// The encoded bytes of a row beyond its values, if they matter: the headers of files in archives, and the names of
    /// members of JSON.
    pub(crate) overhead_bytes: usize,
    /// The form of each column.
    pub(crate) forms: Vec<Form>,
}

/// The form of a column's values in an encoded row, by which their bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Each value once, in about as many bytes as in memory.
    Once,
    /// Each value as many times.
    Times(usize),
    /// As JSON text.
    Json,
}

/// Rows that will form a block.
pub(crate) struct Block<B> {
    pub(crate) item: B,
    pub(crate) rows: u64,
    /// The peak memory use of this block, including its encoded forms. [`Run::write`] adds the overhead of rows.
    pub(crate) bytes: usize,
}

/// Consecutive shards to write one after another.
pub(crate) struct Run<'a> {
    pub(crate) target: &'a Target,
    pub(crate) schema: &'a Arc<Schema>,
    /// The total rows of all shards, including those of other runs.
    pub(crate) rows: u64,
    pub(crate) shards: Range<usize>,
    pub(crate) bounds: Bounds,
}

/// A complete file without its final name.
pub(crate) struct WrittenShard {
    file: Staged,
    /// Its entry in the index, of MDS.
    description: Option<ShardDescription>,
}

enum Step<B> {
    Open(usize),
    /// Rows, and the number of the first one among all rows.
    Block(B, u64),
}

enum Made {
    Open(usize),
    Piece(Piece),
}

impl Run<'_> {
    /// Writes the shards. `next` returns the next rows in order, at most as many as requested; `chunks` converts
    /// them to chunks, on any thread.
    pub(crate) fn write<B: Send, C: Iterator<Item = Result<RawChunk, Error>>>(
        &self,
        mut next: impl FnMut(u64) -> Result<Option<Block<B>>, Error> + Send,
        chunks: impl Fn(B) -> C + Sync,
    ) -> Result<Vec<WrittenShard>, Error> {
        let encoder = Encoder::new(self.target, self.schema, self.rows)?;
        let block = self.target.block(self.schema);
        let mut cursor = Cursor { run: self, block, shard: self.shards.start, row: 0, opened: false };
        let mut written = Vec::with_capacity(self.shards.len());
        let mut open: Option<ShardFile> = None;
        in_order(
            self.bounds,
            || cursor.step(&mut next),
            |step| match step {
                Step::Open(shard) => Ok(Made::Open(shard)),
                Step::Block(item, first_row) => encoder.block(chunks(item), first_row).map(Made::Piece),
            },
            |made| match (made, &mut open) {
                (Made::Open(shard), _) => {
                    if let Some(file) = open.take() {
                        written.push(encoder.finish(file)?);
                    }
                    open = Some(encoder.open(&self.target.addresses[shard], &self.target.destination)?);
                    Ok(())
                }
                (Made::Piece(piece), Some(file)) => file.append(piece),
                (Made::Piece(_), None) => Err(Error::Invalid("rows of no shard".to_owned())),
            },
        )?;
        if let Some(file) = open.take() {
            written.push(encoder.finish(file)?);
        }
        Ok(written)
    }
}

/// The position of a run.
struct Cursor<'a> {
    run: &'a Run<'a>,
    block: BlockBounds,
    shard: usize,
    /// Rows of the current shard that have been produced.
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
                let first_row = target.first_row(self.shard, *rows) + self.row;
                let most = (shard_rows - self.row).min(self.block.rows as u64);
                let Some(Block { item, rows, bytes }) = next(most)? else {
                    return Err(Error::Invalid(
                        "the input now has fewer rows than in the first pass".to_owned(),
                    ));
                };
                self.row += rows;
                let overhead = (rows as usize).saturating_mul(self.block.overhead_bytes);
                let bytes = bytes.saturating_add(overhead.saturating_mul(OVERHEAD_HELD));
                return Ok(Some(Weighed { item: Step::Block(item, first_row), bytes }));
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

    use arrow_array::{ArrayRef, RecordBatch, StringArray};
    use arrow_schema::Field;
    use tokio::runtime::Runtime;

    use super::*;
    use millstream_io::storage::Stores;

    fn target(output: &str, options: &OutputOptions) -> Target {
        let runtime = Runtime::new().unwrap();
        let here = Destination { stores: Stores::default(), runtime: runtime.handle().clone() };
        plan(output, &[], options, &here).unwrap()
    }

    #[test]
    fn csv_rejects_lists() {
        let lists = DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
        let schema = Schema::new(vec![Field::new("tags", lists, true)]);
        let options = OutputOptions { format: Some(OutputFormat::Csv), ..OutputOptions::default() };
        let rejected = target("a.csv", &options).check_schema(&schema, &[], |_| false);
        assert!(matches!(rejected, Err(Error::Format(FormatError::WrongType { .. }))));
        target("a.tfrecord", &OutputOptions::default()).check_schema(&schema, &[], |_| false).unwrap();
    }

    #[test]
    fn an_unknown_extension_is_an_error_that_lists_the_known() {
        let runtime = Runtime::new().unwrap();
        let here = Destination { stores: Stores::default(), runtime: runtime.handle().clone() };
        for name in ["a.foo", "csv", "dir/a.xlsx"] {
            let error = plan(name, &[], &OutputOptions::default(), &here).err().unwrap().to_string();
            assert!(error.contains(name) && error.contains(".csv, .tsv, .jsonl"), "{error}");
        }
        assert_eq!(target("a.tsv.gz", &OutputOptions::default()).delimiter, b'\t');
        assert_eq!(target("a.ndjson", &OutputOptions::default()).format(), OutputFormat::JsonLines);
    }

    #[test]
    fn headers_of_archives_stay_within_the_bytes_of_a_block() {
        let wide: Vec<String> = (0..300).map(|column| format!("c{column}")).collect();
        let short = ["a", "json.b"].map(str::to_owned).to_vec();
        let keyed = ["__key__", "a", "b"].map(str::to_owned).to_vec();
        let long = vec!["x".repeat(90), "ä".to_owned(), "y".repeat(1000)];
        for names in [wide, short, keyed, long] {
            // Longer than a name without a pax header.
            let value = |name: &String| if name == "__key__" { "k".repeat(200) } else { "v".to_owned() };
            let columns =
                names.iter().map(|name| (name, Arc::new(StringArray::from(vec![value(name)])) as ArrayRef));
            let batch = RecordBatch::try_from_iter(columns).unwrap();
            let schema = batch.schema();
            let block = target("a.tar", &OutputOptions::default()).block(&schema);
            let layout = SampleLayout::new(&schema, u64::MAX).unwrap();
            let mut archive = Vec::new();
            layout.append(&mut archive, &RawChunk::new("in".into(), batch, 0), 0).unwrap();
            assert!(archive.len() <= block.overhead_bytes, "{} > {}", archive.len(), block.overhead_bytes);
            assert!(block.rows * block.overhead_bytes <= STREAM_BLOCK_BYTES && block.rows > 1);
        }
    }

    #[test]
    fn addresses_keep_their_form() {
        let options = OutputOptions { shards: Some(2), ..OutputOptions::default() };
        let address = |output: &str| target(output, &options).addresses[1].clone();
        assert_eq!(address("gs://b/d/a.parquet"), "gs://b/d/a-00001-of-00002.parquet");
        assert_eq!(address("./a.parquet"), "./a-00001-of-00002.parquet");
        assert_eq!(address("/a.csv"), "/a-00001-of-00002.csv");
        let options = OutputOptions { format: Some(OutputFormat::Csv), ..OutputOptions::default() };
        assert_eq!(target("s3://b/d/", &options).addresses, ["s3://b/d/data.csv"]);
    }
}
