//! Encodes blocks of rows in a format, and assembles files from them. Samples of WebDataset are encoded in `samples.rs`,
//! shards of MDS in `mds.rs`.

use std::io::{self, Write};
use std::sync::Arc;

use arrow_schema::Schema;
use millstream_format::cells::Cells;
use millstream_format::compression::{Compression, Compressor};
use millstream_format::example::ExampleEncoder;
use millstream_format::sample_writer::ARCHIVE_END;
use millstream_format::tfrecord::RecordWriter;
use millstream_format::{Error as FormatError, RawChunk};
use millstream_pipeline::Error;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::ZstdLevel;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use serde_json::Value;

use super::deflate::{Checksum, Container};
use super::mds::{MdsFile, MdsLayout};
use super::samples::{KeyRange, SampleLayout};
use super::staged::failed;
use super::table::io_error;
use super::{Destination, OutputCompression, OutputFormat, Staged, Target, WrittenShard, narrow};
use crate::values::{JsonColumn, Room};

/// Encodes blocks, on any thread.
pub(super) struct Encoder {
    format: OutputFormat,
    compression: OutputCompression,
    schema: Arc<Schema>,
    names: Vec<String>,
    delimiter: u8,
    properties: Arc<WriterProperties>,
    layout: Layout,
}

/// What a format needs beyond the schema.
enum Layout {
    Lines,
    Groups(ArrowRowGroupWriterFactory),
    Samples(SampleLayout),
    Mds(MdsLayout),
}

/// An encoded block.
pub(super) enum Piece {
    /// A part of a stream.
    Stream(Compressed),
    /// The columns of a Parquet row group.
    Group(Vec<ArrowColumnChunk>),
    /// Samples of WebDataset with their keys.
    Samples(Compressed, Option<KeyRange>),
    /// Samples of MDS with their sizes in bytes.
    Mds(Compressed, Vec<u32>),
}

/// Compressed bytes of a stream.
pub(super) struct Compressed {
    pub(super) bytes: Vec<u8>,
    /// The checksum of the uncompressed bytes, if the stream stores one.
    pub(super) sum: Option<Checksum>,
    pub(super) plain_bytes: u64,
}

impl Encoder {
    /// An encoder of rows with this schema, of which all files have `rows`.
    pub(super) fn new(target: &Target, schema: &Arc<Schema>, rows: u64) -> Result<Self, Error> {
        let compression = match target.compression {
            OutputCompression::Snappy => parquet::basic::Compression::SNAPPY,
            OutputCompression::Zstd => parquet::basic::Compression::ZSTD(ZstdLevel::default()),
            _ => parquet::basic::Compression::UNCOMPRESSED,
        };
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_max_row_group_row_count(Some(target.group_rows));
        let mut encoder = Self {
            format: target.format,
            compression: target.compression,
            schema: schema.clone(),
            names: schema.fields().iter().map(|field| field.name().clone()).collect(),
            delimiter: target.delimiter,
            properties: Arc::new(properties.build()),
            layout: Layout::Lines,
        };
        encoder.layout = match target.format {
            OutputFormat::Parquet => {
                let groups = encoder.parquet(io::sink()).map(|(_, groups)| groups);
                Layout::Groups(groups.map_err(|error| Error::Invalid(error.to_string()))?)
            }
            OutputFormat::WebDataset => Layout::Samples(SampleLayout::new(schema, rows)?),
            OutputFormat::Mds => Layout::Mds(MdsLayout::new(schema)),
            OutputFormat::Csv | OutputFormat::JsonLines | OutputFormat::TfRecord => Layout::Lines,
        };
        Ok(encoder)
    }

    /// Encodes rows as a block, of which the first has this number among all rows.
    pub(super) fn block(
        &self,
        chunks: impl Iterator<Item = Result<RawChunk, Error>>,
        first_row: u64,
    ) -> Result<Piece, Error> {
        match self.format {
            OutputFormat::Parquet => self.group(chunks),
            OutputFormat::TfRecord => {
                let mut writer = RecordWriter::new(Vec::new());
                let mut encoder = ExampleEncoder::default();
                for chunk in chunks {
                    write_records(&chunk?, &self.names, &mut encoder, &mut writer)?;
                }
                self.compressed(writer.into_inner()).map(Piece::Stream)
            }
            OutputFormat::Csv => {
                let mut writer = self.csv();
                for chunk in chunks {
                    write_lines(&chunk?, &mut writer)?;
                }
                let lines = writer.into_inner().map_err(|error| in_memory(&error.into_error()))?;
                self.compressed(lines).map(Piece::Stream)
            }
            OutputFormat::JsonLines => {
                let mut lines = Vec::new();
                for chunk in chunks {
                    write_objects(&chunk?, &self.names, &mut lines);
                }
                self.compressed(lines).map(Piece::Stream)
            }
            OutputFormat::WebDataset => self.samples(chunks, first_row),
            OutputFormat::Mds => {
                let (mut samples, mut sizes) = (Vec::new(), Vec::new());
                if let Layout::Mds(layout) = &self.layout {
                    for chunk in chunks {
                        layout.append(&mut samples, &mut sizes, &chunk?)?;
                    }
                }
                Ok(Piece::Mds(self.compressed(samples)?, sizes))
            }
        }
    }

    /// Starts a file.
    pub(super) fn open(&self, address: &str, destination: &Destination) -> Result<ShardFile, Error> {
        let mut file = Staged::create(address, destination)?;
        if self.format == OutputFormat::Parquet {
            let (writer, _) = self.parquet(file).map_err(|error| named(address, error))?;
            return Ok(ShardFile::Parquet(Box::new(writer), address.to_owned()));
        }
        let container = self.container();
        if self.format == OutputFormat::Mds {
            return Ok(ShardFile::Mds(Box::new(MdsFile::new(file, container)?)));
        }
        let header = container.map_or(&[][..], Container::header);
        file.write_all(header).map_err(|source| file.failed(source))?;
        let sum = container.map(|container| (container, container.start()));
        let mut shard = ShardFile::Stream(Box::new(StreamFile { file, sum, last_key: None }));
        if self.format == OutputFormat::Csv {
            let mut writer = self.csv();
            writer.write_record(&self.names).map_err(|error| in_memory(&error.into()))?;
            let header = writer.into_inner().map_err(|error| in_memory(&error.into_error()))?;
            shard.append(Piece::Stream(self.compressed(header)?))?;
        } else if self.compression == OutputCompression::Zstd {
            // An empty file is not a valid Zstandard stream.
            shard.append(Piece::Stream(self.compressed(Vec::new())?))?;
        }
        Ok(shard)
    }

    /// Completes a file, without giving it its final name.
    pub(super) fn finish(&self, shard: ShardFile) -> Result<WrittenShard, Error> {
        let mut file = match shard {
            ShardFile::Stream(mut stream) => {
                if self.format == OutputFormat::WebDataset {
                    stream.append(&self.compressed(ARCHIVE_END.to_vec())?)?;
                }
                stream.finish()?
            }
            ShardFile::Parquet(writer, address) => {
                writer.into_inner().map_err(|error| named(&address, error))?
            }
            ShardFile::Mds(shard) => {
                let Layout::Mds(layout) = &self.layout else { return Err(other_format()) };
                let head = self.compressed(shard.head(layout.columns())?)?;
                let (file, description) = shard.finish(&head, self.compression)?;
                return Ok(WrittenShard { file, description: Some(description) });
            }
        };
        file.seal()?;
        Ok(WrittenShard { file, description: None })
    }

    fn container(&self) -> Option<Container> {
        match self.compression {
            OutputCompression::Gzip => Some(Container::Gzip),
            OutputCompression::Zlib => Some(Container::Zlib),
            OutputCompression::None | OutputCompression::Zstd | OutputCompression::Snappy => None,
        }
    }

    fn samples(
        &self,
        chunks: impl Iterator<Item = Result<RawChunk, Error>>,
        mut first_row: u64,
    ) -> Result<Piece, Error> {
        let Layout::Samples(layout) = &self.layout else { return Err(other_format()) };
        let mut archive = Vec::new();
        let mut keys: Option<KeyRange> = None;
        for chunk in chunks {
            let chunk = chunk?;
            let next = layout.append(&mut archive, &chunk, first_row)?;
            first_row += chunk.rows() as u64;
            keys = match (keys, next) {
                (Some(keys), Some(next)) => Some(keys.followed_by(next)?),
                (keys, next) => keys.or(next),
            };
        }
        Ok(Piece::Samples(self.compressed(archive)?, keys))
    }

    fn csv(&self) -> csv::Writer<Vec<u8>> {
        csv::WriterBuilder::new().delimiter(self.delimiter).from_writer(Vec::new())
    }

    fn parquet<W: Write + Send>(
        &self,
        output: W,
    ) -> Result<(SerializedFileWriter<W>, ArrowRowGroupWriterFactory), ParquetError> {
        let properties = self.properties.as_ref().clone();
        ArrowWriter::try_new(output, self.schema.clone(), Some(properties))?.into_serialized_writer()
    }

    fn group(&self, chunks: impl Iterator<Item = Result<RawChunk, Error>>) -> Result<Piece, Error> {
        let failed = |error: ParquetError| Error::Invalid(error.to_string());
        let Layout::Groups(groups) = &self.layout else { return Err(other_format()) };
        let mut writers = groups.create_column_writers(0).map_err(failed)?;
        for chunk in chunks {
            let chunk = chunk?;
            let mut leaves = writers.iter_mut();
            for (field, column) in self.schema.fields().iter().zip(chunk.columns().columns()) {
                for leaf in compute_leaves(field, column).map_err(failed)? {
                    let Some(writer) = leaves.next() else { break };
                    writer.write(&leaf).map_err(failed)?;
                }
            }
        }
        let columns: Result<_, _> = writers.into_iter().map(|writer| writer.close()).collect();
        Ok(Piece::Group(columns.map_err(failed)?))
    }

    fn compressed(&self, plain: Vec<u8>) -> Result<Compressed, Error> {
        let plain_bytes = plain.len() as u64;
        let (bytes, sum) = match (self.container(), self.compression) {
            (Some(container), _) => {
                let (bytes, sum) = container.piece(&plain).map_err(|error| in_memory(&error))?;
                (bytes, Some(sum))
            }
            // The library that reads shards expects one frame.
            (None, OutputCompression::Zstd) if self.format != OutputFormat::Mds => {
                // A file may hold several frames.
                let compressed = Compressor::new(Vec::new(), Compression::Zstd).and_then(|mut compressor| {
                    compressor.write_all(&plain)?;
                    compressor.finish()
                });
                (compressed.map_err(|error| in_memory(&error))?, None)
            }
            (None, _) => (plain, None),
        };
        Ok(Compressed { bytes, sum, plain_bytes })
    }
}

/// A file under construction.
pub(super) enum ShardFile {
    Stream(Box<StreamFile>),
    Parquet(Box<SerializedFileWriter<Staged>>, String),
    Mds(Box<MdsFile>),
}

/// A file that consists of blocks one after another.
pub(super) struct StreamFile {
    file: Staged,
    sum: Option<(Container, Checksum)>,
    /// The last key, of WebDataset.
    last_key: Option<String>,
}

impl StreamFile {
    fn append(&mut self, block: &Compressed) -> Result<(), Error> {
        if let (Some((container, sum)), Some(block_sum)) = (&mut self.sum, block.sum) {
            *sum = container.combine(*sum, block_sum);
        }
        self.file.write_all(&block.bytes).map_err(|source| self.file.failed(source))
    }

    fn finish(self) -> Result<Staged, Error> {
        let Self { mut file, sum, .. } = self;
        if let Some((container, sum)) = sum {
            file.write_all(&container.trailer(sum)).map_err(|source| file.failed(source))?;
        }
        Ok(file)
    }
}

impl ShardFile {
    /// Appends the next block.
    pub(super) fn append(&mut self, piece: Piece) -> Result<(), Error> {
        match (self, piece) {
            (Self::Stream(stream), Piece::Stream(block)) => stream.append(&block),
            (Self::Stream(stream), Piece::Samples(block, keys)) => {
                if let Some(KeyRange { first, last, repeated }) = keys
                    && stream.last_key.replace(last) == Some(first)
                {
                    return Err(repeated);
                }
                stream.append(&block)
            }
            (Self::Mds(shard), Piece::Mds(block, sizes)) => shard.append(&block, &sizes),
            (Self::Parquet(writer, address), Piece::Group(columns)) => {
                let appended = writer.next_row_group().and_then(|mut group| {
                    columns.into_iter().try_for_each(|column| column.append_to_row_group(&mut group))?;
                    group.close()
                });
                appended.map(drop).map_err(|error| named(address, error))
            }
            _ => Err(other_format()),
        }
    }
}

fn other_format() -> Error {
    Error::Invalid("a block of another format".to_owned())
}

fn write_records(
    chunk: &RawChunk,
    names: &[String],
    encoder: &mut ExampleEncoder,
    writer: &mut RecordWriter<Vec<u8>>,
) -> Result<(), Error> {
    let cells = cells(chunk, OutputFormat::TfRecord)?;
    for row in 0..chunk.rows() {
        let record = encoder.encode(names, &cells, row).map_err(|column| {
            bad_value(chunk, row, column, "lists with absent values are not supported in Examples")
        })?;
        writer.write(record).map_err(|error| in_memory(&error))?;
    }
    Ok(())
}

fn write_lines(chunk: &RawChunk, writer: &mut csv::Writer<Vec<u8>>) -> Result<(), Error> {
    let cells = cells(chunk, OutputFormat::Csv)?;
    let mut text = String::new();
    for row in 0..chunk.rows() {
        for cell in &cells {
            writer.write_field(field(cell, row, &mut text)).map_err(|error| in_memory(&error.into()))?;
        }
        writer.write_record(None::<&[u8]>).map_err(|error| in_memory(&error.into()))?;
    }
    Ok(())
}

/// Writes each row as a JSON object on a line. Absent values are null.
fn write_objects(chunk: &RawChunk, names: &[String], lines: &mut Vec<u8>) {
    let columns: Vec<JsonColumn> = chunk.columns().columns().iter().map(JsonColumn::of).collect();
    let names: Vec<String> = names.iter().map(|name| Value::from(name.as_str()).to_string()).collect();
    for row in 0..chunk.rows() {
        for (place, (name, column)) in names.iter().zip(&columns).enumerate() {
            let before = if place == 0 { '{' } else { ',' };
            // Writing to memory cannot fail.
            let _ = write!(lines, "{before}{name}:{}", column.value(row, &mut Room::unlimited()));
        }
        lines.extend_from_slice(if names.is_empty() { b"{}\n" } else { b"}\n" });
    }
}

/// An error in memory, which has no address and practically never occurs.
pub(super) fn in_memory(error: &io::Error) -> Error {
    Error::Invalid(format!("a block cannot be encoded: {error}"))
}

fn named(address: &str, error: ParquetError) -> Error {
    failed(address, io_error(error))
}

fn cells(chunk: &RawChunk, format: OutputFormat) -> Result<Vec<Cells>, Error> {
    let columns = chunk.columns().columns().iter().enumerate();
    columns
        .map(|(column, array)| {
            narrow::narrowed(format, array).and_then(|array| Cells::of(&array)).ok_or_else(|| {
                bad_value(
                    chunk,
                    0,
                    column,
                    "a number in this or a later record does not fit into a 64-bit integer",
                )
            })
        })
        .collect()
}

pub(super) fn bad_value(chunk: &RawChunk, row: usize, column: usize, message: &str) -> Error {
    Error::Format(FormatError::BadValue {
        path: chunk.path().to_owned(),
        record: chunk.record(row),
        column: chunk.columns().schema().field(column).name().clone(),
        message: message.to_owned(),
    })
}

/// Formats a value as a CSV field; an absent value is empty.
pub(super) fn field<'a>(cells: &'a Cells, row: usize, text: &'a mut String) -> &'a [u8] {
    use std::fmt::Write;

    text.clear();
    // Writing to a string cannot fail.
    let _ = match cells {
        cells if !cells.is_present(row) => Ok(()),
        Cells::Int(values) => write!(text, "{}", values.value(row)),
        Cells::Float(values) => write!(text, "{}", values.value(row)),
        Cells::Double(values) => write!(text, "{}", values.value(row)),
        Cells::Bytes(values) => return values.value(row),
        Cells::List(..) | Cells::Absent => Ok(()),
    };
    text.as_bytes()
}
