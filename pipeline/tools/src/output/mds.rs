//! Rows as samples of MDS, and files that are assembled from them.
//!
//! | type | encoding |
//! |---|---|
//! | integers, floats | the same type: `int8` to `uint64`, `float16` to `float64` |
//! | booleans | `uint8` |
//! | text; dates, times, durations as text | `str` |
//! | bytes | `bytes` |
//! | decimals | `str_decimal` |
//! | lists of numbers and booleans | `ndarray:TYPE`, vectors `ndarray:TYPE:LENGTH` |
//! | other lists, structs, maps, unless bytes are in them | `json` |
//!
//! A shard begins with the offsets of its samples, which are known once all of them are encoded. Samples are therefore kept
//! in a temporary file without a name: beside a local shard, otherwise in the directory for temporary files.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, UInt8Array};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Schema};
use millstream_format::RawChunk;
use millstream_format::cells::Cells;
use millstream_format::compression::{Compression, Compressor};
use millstream_format::mds_writer::{self, MdsColumn, ShardDescription};
use millstream_io::Error as IoError;
use millstream_io::storage::is_local;
use millstream_pipeline::Error;
use serde_json::Value;

use super::deflate::{Checksum, Container};
use super::encode::{Compressed, bad_value};
use super::staged::local_path;
use super::{OutputCompression, OutputFormat, Staged, narrow};
use crate::values::{JsonColumn, Room, has_json_form};

/// The name of the index, which the library needs beside the shards.
pub(crate) const INDEX_NAME: &str = "index.json";

/// The limits of a shard, those of [`mds_writer::head`].
const MAX_ROWS: usize = 1 << 24;
const MAX_BYTES: u64 = u32::MAX as u64;

/// The encodings of columns.
pub(super) struct MdsLayout {
    columns: Vec<MdsColumn>,
    kinds: Vec<Kind>,
}

#[derive(Clone, Copy)]
enum Kind {
    Bytes,
    /// Numbers of this many bytes.
    Number(usize),
    /// Lists of numbers of this many bytes.
    List(usize),
    Json,
}

/// The values of a column of a chunk.
enum Values {
    Bytes(BinaryArray),
    /// Numbers and their size in bytes.
    Numbers(ArrayRef, Buffer, usize),
    Lists(Lists),
    Json(JsonColumn),
}

struct Lists {
    array: ArrayRef,
    /// The first element of each row, and the end.
    ends: Vec<usize>,
    elements: ArrayRef,
    bytes: Buffer,
    /// The size of an element in bytes.
    width: usize,
}

impl MdsLayout {
    pub(super) fn new(schema: &Schema) -> Self {
        let (columns, kinds) = schema
            .fields()
            .iter()
            .map(|field| {
                let (encoding, size, kind) = encoding(field.data_type());
                (MdsColumn { name: field.name().clone(), encoding, size }, kind)
            })
            .unzip();
        Self { columns, kinds }
    }

    pub(super) fn columns(&self) -> &[MdsColumn] {
        &self.columns
    }

    /// Appends the samples of a chunk to `out`, and their sizes in bytes to `sizes`.
    pub(super) fn append(
        &self,
        out: &mut Vec<u8>,
        sizes: &mut Vec<u32>,
        chunk: &RawChunk,
    ) -> Result<(), Error> {
        let arrays = chunk.columns().columns().iter().zip(&self.kinds).enumerate();
        let columns = arrays.map(|(column, (array, kind))| {
            let message = "the values of this and later records cannot be encoded";
            Values::of(array, *kind).ok_or_else(|| bad_value(chunk, 0, column, message))
        });
        let columns: Vec<Values> = columns.collect::<Result<_, Error>>()?;
        for row in 0..chunk.rows() {
            let values = columns.iter().zip(&self.columns).enumerate().map(|(place, (values, column))| {
                values.row(row, column).map_err(|message| bad_value(chunk, row, place, message))
            });
            let values: Vec<Cow<'_, [u8]>> = values.collect::<Result<_, Error>>()?;
            let size = mds_writer::append_sample(out, &self.columns, values.iter().map(AsRef::as_ref));
            let size = u32::try_from(size).map_err(|_| bad_value(chunk, row, 0, "the row exceeds 4 GiB"))?;
            sizes.push(size);
        }
        Ok(())
    }
}

/// Whether a type has an encoding that holds all of its values.
pub(super) fn supports(data_type: &DataType) -> bool {
    !matches!(encoding(data_type).2, Kind::Json) || has_json_form(data_type)
}

/// The encoding of a type, and the size of a value if it is fixed.
fn encoding(data_type: &DataType) -> (String, Option<u32>, Kind) {
    use DataType::{
        Binary, BinaryView, Decimal32, Decimal64, Decimal128, Decimal256, Dictionary, FixedSizeBinary,
        FixedSizeList, Interval, LargeBinary, LargeList, LargeUtf8, List, Utf8, Utf8View,
    };
    let text = |name: &str| (name.to_owned(), None, Kind::Bytes);
    if let Some((name, width)) = number(data_type) {
        return (name.to_owned(), Some(width as u32), Kind::Number(width));
    }
    match data_type {
        Utf8 | LargeUtf8 | Utf8View | Interval(_) => text("str"),
        Binary | LargeBinary | BinaryView | FixedSizeBinary(_) => text("bytes"),
        Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..) => text("str_decimal"),
        Dictionary(_, values) if matches!(**values, Utf8 | LargeUtf8 | Utf8View) => text("str"),
        Dictionary(_, values) if matches!(**values, Binary | LargeBinary | BinaryView) => text("bytes"),
        temporal if temporal.is_temporal() => text("str"),
        List(item) | LargeList(item) | FixedSizeList(item, _) => {
            match (number(item.data_type()), data_type) {
                (Some((name, width)), FixedSizeList(_, length @ 1..)) => {
                    let length = length.unsigned_abs();
                    let size = length.checked_mul(width as u32);
                    (format!("ndarray:{name}:{length}"), size, Kind::List(width))
                }
                (Some((name, width)), _) => (format!("ndarray:{name}"), None, Kind::List(width)),
                (None, _) => ("json".to_owned(), None, Kind::Json),
            }
        }
        _ => ("json".to_owned(), None, Kind::Json),
    }
}

/// The name of a type of numbers and the bytes of each.
fn number(data_type: &DataType) -> Option<(&'static str, usize)> {
    Some(match data_type {
        DataType::Boolean | DataType::UInt8 => ("uint8", 1),
        DataType::Int8 => ("int8", 1),
        DataType::Int16 => ("int16", 2),
        DataType::UInt16 => ("uint16", 2),
        DataType::Int32 => ("int32", 4),
        DataType::UInt32 => ("uint32", 4),
        DataType::Int64 => ("int64", 8),
        DataType::UInt64 => ("uint64", 8),
        DataType::Float16 => ("float16", 2),
        DataType::Float32 => ("float32", 4),
        DataType::Float64 => ("float64", 8),
        _ => return None,
    })
}

/// The values of a column of numbers as they are in memory, which is little-endian.
fn bytes_of(array: &ArrayRef, width: usize) -> Buffer {
    if let Some(flags) = array.as_boolean_opt() {
        let bytes: UInt8Array = flags.iter().map(|flag| flag.map(u8::from)).collect();
        return bytes.into_data().buffers()[0].clone();
    }
    let data = array.to_data();
    data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)
}

impl Values {
    fn of(array: &ArrayRef, kind: Kind) -> Option<Self> {
        match kind {
            Kind::Number(width) => Some(Self::Numbers(array.clone(), bytes_of(array, width), width)),
            Kind::List(width) => Lists::of(array, width).map(Self::Lists),
            Kind::Json => Some(Self::Json(JsonColumn::of(array))),
            Kind::Bytes => match Cells::of(&narrow::narrowed(OutputFormat::Mds, array)?)? {
                Cells::Bytes(values) => Some(Self::Bytes(values)),
                // A dictionary without values.
                Cells::Absent => Some(Self::Bytes(BinaryArray::new_null(array.len()))),
                _ => None,
            },
        }
    }

    /// The encoded value of a row.
    fn row(&self, row: usize, column: &MdsColumn) -> Result<Cow<'_, [u8]>, &'static str> {
        const ABSENT: &str = "the value is absent, which MDS cannot represent; --select other columns, or write .parquet or .tar";
        match self {
            Self::Bytes(values) if values.is_valid(row) => Ok(values.value(row).into()),
            Self::Numbers(array, bytes, width) if array.is_valid(row) => {
                Ok(bytes[row * width..(row + 1) * width].into())
            }
            Self::Lists(lists) if lists.array.is_valid(row) => lists.row(row, column),
            Self::Json(values) => match values.value(row, &mut Room::unlimited()) {
                Value::Null => Err(ABSENT),
                value => Ok(value.to_string().into_bytes().into()),
            },
            _ => Err(ABSENT),
        }
    }
}

impl Lists {
    fn of(array: &ArrayRef, width: usize) -> Option<Self> {
        let (ends, elements): (Vec<usize>, ArrayRef) = match array.data_type() {
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                (lists.value_offsets().iter().map(|&end| end as usize).collect(), Arc::clone(lists.values()))
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                (lists.value_offsets().iter().map(|&end| end as usize).collect(), Arc::clone(lists.values()))
            }
            DataType::FixedSizeList(_, length) => {
                let length = usize::try_from(*length).ok()?;
                let lists = array.as_fixed_size_list();
                ((0..=array.len()).map(|row| row * length).collect(), Arc::clone(lists.values()))
            }
            _ => return None,
        };
        let bytes = bytes_of(&elements, width);
        Some(Self { array: array.clone(), ends, elements, bytes, width })
    }

    fn row(&self, row: usize, column: &MdsColumn) -> Result<Cow<'_, [u8]>, &'static str> {
        let range = self.ends[row]..self.ends[row + 1];
        if self.elements.null_count() > 0 && range.clone().any(|at| self.elements.is_null(at)) {
            return Err("a value of the list is absent, which MDS cannot represent");
        }
        let bytes = &self.bytes[range.start * self.width..range.end * self.width];
        if column.size.is_some() {
            return Ok(bytes.into());
        }
        let mut value = Vec::with_capacity(bytes.len() + 9);
        mds_writer::append_axis(&mut value, range.len() as u64);
        value.extend_from_slice(bytes);
        Ok(value.into())
    }
}

/// Refuses to replace an index of other shards than those that are written at `addresses`.
pub(super) fn check_replaced(address: &str, index: &[u8], addresses: &[String]) -> Result<(), Error> {
    let index: Value = serde_json::from_slice(index).unwrap_or_default();
    let is_replaced = |shard: &Value| {
        let file = if shard["zip_data"].is_object() { &shard["zip_data"] } else { &shard["raw_data"] };
        let name = file["basename"].as_str();
        name.is_some() && addresses.iter().any(|address| address.rsplit('/').next() == name)
    };
    match index["shards"].as_array() {
        Some(shards) if shards.iter().all(is_replaced) => Ok(()),
        _ => Err(Error::Invalid(format!(
            "{address}: describes other files than those being written, and would be replaced; write to another directory, \
             or remove it"
        ))),
    }
}

/// A shard under construction.
pub(super) struct MdsFile {
    file: Staged,
    /// The samples so far. Compressed, except by Zstandard, whose header has the size of the whole.
    samples: BufWriter<File>,
    sizes: Vec<u32>,
    /// The bytes of the samples, uncompressed.
    bytes: u64,
    sum: Option<(Container, Checksum)>,
}

impl MdsFile {
    /// Starts the file that `file` becomes.
    pub(super) fn new(file: Staged, container: Option<Container>) -> Result<Self, Error> {
        let beside = || Path::new(local_path(file.address())).parent();
        let directory = match is_local(file.address())? {
            true => match beside() {
                Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                _ => ".".into(),
            },
            false => std::env::temp_dir(),
        };
        let samples = tempfile::tempfile_in(&directory).map_err(|error| IoError::file(&directory, error))?;
        let sum = container.map(|container| (container, container.start()));
        Ok(Self { file, samples: BufWriter::new(samples), sizes: Vec::new(), bytes: 0, sum })
    }

    /// Appends samples.
    ///
    /// # Errors
    /// They exceed a limit of one shard, or cannot be written.
    pub(super) fn append(&mut self, block: &Compressed, sizes: &[u32]) -> Result<(), Error> {
        if let (Some((container, sum)), Some(block_sum)) = (&mut self.sum, block.sum) {
            *sum = container.combine(*sum, block_sum);
        }
        self.sizes.extend_from_slice(sizes);
        self.bytes += block.plain_bytes;
        // The head has the exact bytes: it also counts itself.
        if self.sizes.len() > MAX_ROWS {
            return Err(self.exceeds(&format!("more than {MAX_ROWS} rows in one shard")));
        }
        if self.bytes > MAX_BYTES {
            return Err(self.exceeds("the samples exceed 4 GiB, the limit of one shard"));
        }
        self.samples.write_all(&block.bytes).map_err(|error| self.file.failed(error))
    }

    /// The head of the shard.
    pub(super) fn head(&self, columns: &[MdsColumn]) -> Result<Vec<u8>, Error> {
        mds_writer::head(columns, &self.sizes).map_err(|message| self.exceeds(&message))
    }

    fn exceeds(&self, limit: &str) -> Error {
        Error::Invalid(format!("{}: {limit}; write more files: --shards", self.file.address()))
    }

    /// Completes the shard with its head.
    pub(super) fn finish(
        self,
        head: &Compressed,
        compression: OutputCompression,
    ) -> Result<(Staged, ShardDescription), Error> {
        let Self { mut file, samples, sizes, bytes, sum } = self;
        let assemble = |file: &mut Staged| -> io::Result<()> {
            let mut samples = samples.into_inner().map_err(io::IntoInnerError::into_error)?;
            samples.rewind()?;
            if compression == OutputCompression::Zstd {
                let mut frame = Compressor::sized(file, Compression::Zstd, bytes + head.plain_bytes)?;
                frame.write_all(&head.bytes)?;
                io::copy(&mut samples, &mut frame)?;
                return frame.finish().map(drop);
            }
            if let Some((container, _)) = sum {
                file.write_all(container.header())?;
            }
            file.write_all(&head.bytes)?;
            io::copy(&mut samples, file)?;
            if let (Some((container, sum)), Some(head_sum)) = (sum, head.sum) {
                file.write_all(&container.trailer(container.combine(head_sum, sum)))?;
            }
            Ok(())
        };
        assemble(&mut file).map_err(|error| file.failed(error))?;
        file.seal()?;
        let name = file.address().rsplit('/').next().unwrap_or_default().to_owned();
        let compressed = match compression {
            OutputCompression::Gzip => Some("gz"),
            OutputCompression::Zstd => Some("zstd"),
            OutputCompression::None | OutputCompression::Zlib | OutputCompression::Snappy => None,
        };
        let description = ShardDescription {
            name,
            samples: sizes.len() as u64,
            bytes: bytes + head.plain_bytes,
            compressed: compressed.map(|name| (name, file.bytes())),
        };
        Ok((file, description))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_io::storage::Stores;
    use tokio::runtime::Runtime;

    use super::*;
    use crate::output::Destination;

    #[test]
    fn a_shard_that_exceeds_a_limit_fails_while_rows_are_appended() {
        let runtime = Runtime::new().unwrap();
        let destination = Destination { stores: Stores::default(), runtime: runtime.handle().clone() };
        let dir = tempfile::tempdir().unwrap();
        let address = dir.path().join("a.mds").display().to_string();
        let shard = || MdsFile::new(Staged::create(&address, &destination).unwrap(), None).unwrap();
        let block = |plain_bytes| Compressed { bytes: Vec::new(), sum: None, plain_bytes };

        let mut large = shard();
        large.append(&block(MAX_BYTES), &[u32::MAX]).unwrap();
        let error = large.append(&block(1), &[1]).unwrap_err().to_string();
        assert!(error.contains("a.mds: the samples exceed 4 GiB") && error.contains("--shards"), "{error}");

        let mut long = shard();
        let sizes = vec![0; MAX_ROWS];
        long.append(&block(0), &sizes).unwrap();
        assert!(long.head(&[]).is_ok());
        let error = long.append(&block(0), &[0]).unwrap_err().to_string();
        assert!(error.contains("a.mds: more than 16777216 rows") && error.contains("--shards"), "{error}");
        assert!(long.head(&[]).is_err());
    }
}
