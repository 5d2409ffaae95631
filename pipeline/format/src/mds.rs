//! MDS, the shards of MosaicML Streaming.
//!
//! ```text
//! u32           the number of samples, n; all numbers are little-endian
//! u32[n + 1]    the offsets of the samples in the file, and its size
//! JSON          {"column_names": [..], "column_encodings": [..], "column_sizes": [8, null, ..], ..}
//! sample[n]     u32 sizes of the columns without a fixed size, then the values of all columns
//! ```
//!
//! | encoding | feature |
//! |---|---|
//! | `int`, `int8` to `int64`, `uint8` to `uint32`, arrays of them | integers |
//! | `float16`, `float32`, arrays of them | floats |
//! | `uint64`, `float64`, arrays of them | text, which keeps all digits |
//! | `json` | as in [`json`](crate::json) |
//! | `bytes`, `str`, `jpeg`, `png` and others | bytes |
//!
//! The values of an array (`ndarray`) are a list in row-major order. Bytes behind the last sample are an error.
//!
//! Source: the MDS format of the streaming library, `streaming/base/format/mds` (version 2 of the format).

use std::fmt;
use std::io::{self, BufRead};

use arrow_array::types::{ArrowPrimitiveType, Float16Type};
use serde::Deserialize;

use crate::example::features::{ByteList, FeatureWriter};
use crate::json::{self, JsonBuffers};
use crate::other_format::WithStart;
use crate::record::{Damage, ReadError, Record, RecordFormat, append, ends_within, fill, too_long};

/// The maximum size of the description of columns.
pub(crate) const MAX_DESCRIPTION_BYTES: usize = 1 << 20;
/// The maximum number of samples, whose offsets are held while a shard is read.
pub(crate) const MAX_SAMPLES: usize = 1 << 24;
/// The bytes of an offset or a size.
pub(crate) const WORD_BYTES: usize = 4;

/// Reads the samples of a shard.
pub struct MdsReader<R> {
    input: WithStart<R>,
    most_bytes: u64,
    shard: Option<Shard>,
    number: u64,
    /// The sample that was read last.
    sample: Vec<u8>,
    features: FeatureWriter,
    list: ByteList,
    buffers: JsonBuffers,
}

/// The head of a shard.
struct Shard {
    columns: Vec<Column>,
    /// The offset of each sample, and of the end.
    offsets: Vec<u32>,
}

struct Column {
    name: String,
    encoding: Encoding,
    /// The size of all its values, if it is fixed.
    size: Option<usize>,
}

/// How the values of a column are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Bytes,
    Json,
    Scalar(Number),
    /// An array. Its type and shape precede the values of each sample if they are `None` here.
    Array {
        number: Option<Number>,
        /// The number of values.
        values: Option<u64>,
    },
}

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Int8,
    Int16,
    Int32,
    Int64,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Float16,
    Float32,
    Float64,
}

/// The description of columns.
#[derive(Deserialize)]
struct Description {
    column_names: Vec<String>,
    column_encodings: Vec<String>,
    column_sizes: Vec<Option<u32>>,
}

impl<R: BufRead> MdsReader<R> {
    /// A reader of `input`, which must be uncompressed and at the start of a shard. It ends at a longer sample.
    pub fn new(input: R, most_bytes: u64) -> Self {
        Self {
            input: WithStart::new(input),
            most_bytes,
            shard: None,
            number: 0,
            sample: Vec::new(),
            features: FeatureWriter::new(most_bytes),
            list: ByteList::default(),
            buffers: JsonBuffers::default(),
        }
    }

    /// The input at its current position.
    pub fn input(&self) -> &R {
        self.input.input()
    }

    /// The next sample; `None` at the end. After damage that is not fatal, the next call continues with the next sample.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        let number = self.number;
        if self.shard.is_none() {
            match Shard::read(&mut self.input) {
                Ok(shard) => self.shard = Some(shard),
                Err(error) => {
                    return Err(self.input.explain(ReadError::of(error, number, 0), RecordFormat::Mds));
                }
            }
        }
        let Some(shard) = &self.shard else { return Ok(None) };
        let of_sample = usize::try_from(number).ok().and_then(|at| shard.offsets.get(at..)?.first_chunk());
        let Some(&[start, end]) = of_sample else {
            // A compressed stream has its checksum at its end.
            let rest = fill(&mut self.input).and_then(|rest| match rest {
                [] => Ok(None),
                _ => Err(invalid("data follow the last sample".to_owned())),
            });
            return rest.map_err(|error| ReadError::of(error, number, shard.end()));
        };
        let offset = u64::from(start);
        let read = read_sample(&mut self.input, (end - start).into(), self.most_bytes, &mut self.sample);
        read.map_err(|error| ReadError::of(error, number, offset))?;
        self.number += 1;
        self.features.start();
        let Self { sample, features, list, buffers, .. } = self;
        match shard.decode(sample, features, list, buffers) {
            Ok(()) => match self.features.finish() {
                Ok(data) => Ok(Some(Record { data, offset, number })),
                Err(error) => Err(ReadError::of(error, number, offset)),
            },
            Err(message) => {
                Err(ReadError::Damage(Damage { offset, record: number, message, ..Damage::default() }))
            }
        }
    }
}

impl Shard {
    fn read<R: BufRead>(input: &mut R) -> io::Result<Self> {
        let mut head = Vec::new();
        extend(input, &mut head, WORD_BYTES, "the number of samples")?;
        let samples = words(&head).next().unwrap_or_default() as usize;
        if samples > MAX_SAMPLES {
            return Err(invalid(format!("no shard of MDS: {samples} samples, more than {MAX_SAMPLES}")));
        }
        let end_of_offsets = end_of_offsets(samples as u32) as usize;
        extend(input, &mut head, end_of_offsets - WORD_BYTES, "the offsets of samples")?;
        let offsets: Vec<u32> = words(&head[WORD_BYTES..]).collect();
        let description = offsets.first().and_then(|&first| (first as usize).checked_sub(end_of_offsets));
        let description = description.filter(|&bytes| bytes <= MAX_DESCRIPTION_BYTES);
        let (Some(description), true) = (description, offsets.is_sorted()) else {
            return Err(invalid("no shard of MDS: the offsets of its samples are not ascending".to_owned()));
        };
        head.clear();
        extend(input, &mut head, description, "the description of columns")?;
        let description: Description = serde_json::from_slice(&head)
            .map_err(|error| invalid(format!("no shard of MDS: its description of columns: {error}")))?;
        Ok(Self { columns: description.columns().map_err(invalid)?, offsets })
    }

    /// The offset of the end.
    fn end(&self) -> u64 {
        self.offsets.last().copied().unwrap_or_default().into()
    }

    /// Writes the columns of a sample as features.
    fn decode(
        &self,
        sample: &[u8],
        features: &mut FeatureWriter,
        list: &mut ByteList,
        buffers: &mut JsonBuffers,
    ) -> Result<(), String> {
        let too_short = || "the sizes of its columns exceed the sample".to_owned();
        let sized = self.columns.iter().filter(|column| column.size.is_none()).count();
        let (sizes, mut values) = sample.split_at_checked(WORD_BYTES * sized).ok_or_else(too_short)?;
        let mut sizes = words(sizes);
        for Column { name, encoding, size } in &self.columns {
            let size = size.or_else(|| sizes.next().map(|size| size as usize)).ok_or_else(too_short)?;
            let (value, rest) = values.split_at_checked(size).ok_or_else(too_short)?;
            values = rest;
            let wrong = |message: &str| format!("column `{name}`: {message}");
            match *encoding {
                Encoding::Bytes => features.value(name, value),
                Encoding::Json => {
                    json::value(value, name, features, buffers).map_err(|error| wrong(&error))?;
                }
                Encoding::Scalar(number) => number.write(name, value, features, list),
                Encoding::Array { number, values } => {
                    let (number, values) = array(value, number, values)
                        .ok_or_else(|| wrong("its values are no array of the described type and shape"))?;
                    number.write(name, values, features, list);
                }
            }
        }
        if values.is_empty() { Ok(()) } else { Err("the sample is longer than its columns".to_owned()) }
    }
}

impl Description {
    fn columns(self) -> Result<Vec<Column>, String> {
        let Self { column_names, column_encodings, column_sizes } = self;
        if column_names.len() != column_encodings.len() || column_names.len() != column_sizes.len() {
            return Err("no shard of MDS: its lists of columns differ in length".to_owned());
        }
        let columns = column_names.into_iter().zip(column_encodings).zip(column_sizes);
        columns
            .map(|((name, encoding), size)| {
                // A size of 0 means that each value has a size, as in the library.
                let size = size.filter(|&size| size > 0).map(|size| size as usize);
                let wrong = |message: &str| format!("column `{name}`: encoding `{encoding}`: {message}");
                let encoding = Encoding::parse(&encoding).ok_or_else(|| wrong("is not supported"))?;
                if let Encoding::Scalar(number) = encoding
                    && size != Some(number.bytes())
                {
                    return Err(wrong("has another size"));
                }
                Ok(Column { name, encoding, size })
            })
            .collect()
    }
}

impl Encoding {
    /// Parses an encoding such as `int32`, `jpeg:90` or `ndarray:float32:2,3`.
    fn parse(text: &str) -> Option<Self> {
        let (name, arguments) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        Some(match name {
            "bytes" | "str" | "str_int" | "str_float" | "str_decimal" | "jpeg" | "png" | "pil" | "pkl" => {
                Self::Bytes
            }
            "json" => Self::Json,
            "int" => Self::Scalar(Number::Int64),
            "ndarray" => {
                let (number, shape) = match arguments.map(|arguments| arguments.split_once(':')) {
                    None => (None, None),
                    Some(None) => (arguments, None),
                    Some(Some((number, shape))) => (Some(number), Some(shape)),
                };
                let number = match number {
                    Some(name) => Some(Number::of_name(name)?),
                    None => None,
                };
                let axes = shape.map(|shape| shape.split(',').map(str::parse::<u64>).collect::<Vec<_>>());
                let values = match axes {
                    None => None,
                    Some(axes) => Some(product(axes.into_iter().map(Result::ok))?),
                };
                Self::Array { number, values }
            }
            name => Self::Scalar(Number::of_name(name)?),
        })
    }
}

/// The type and the values of an array, after those of type and shape that its encoding does not have.
fn array(mut bytes: &[u8], number: Option<Number>, values: Option<u64>) -> Option<(Number, &[u8])> {
    let number = match number {
        Some(number) => number,
        None => Number::of_code(*bytes.split_off_first()?)?,
    };
    let values = match values {
        Some(values) => values,
        None => {
            // Six bits for the number of axes, two for the type of their lengths: u8, u16, u32 or u64.
            let kind = bytes.split_off_first()?;
            let length_bytes = 1 << (kind & 3);
            let axes = bytes.split_off(..usize::from(kind >> 2) * length_bytes)?;
            product(axes.chunks_exact(length_bytes).map(|axis| {
                let mut length = [0; 8];
                length[..length_bytes].copy_from_slice(axis);
                Some(u64::from_le_bytes(length))
            }))?
        }
    };
    (values.checked_mul(number.bytes() as u64)? == bytes.len() as u64).then_some((number, bytes))
}

/// The number of values of an array with axes of these lengths.
fn product(axes: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    axes.into_iter().try_fold(1_u64, |values, axis| values.checked_mul(axis?))
}

/// The offset behind the table of offsets of so many samples.
pub(crate) fn end_of_offsets(samples: u32) -> u64 {
    WORD_BYTES as u64 * (u64::from(samples) + 2)
}

/// Whether a file starts as an uncompressed shard: the first two words of its head agree.
pub(crate) fn is_shard(start: &[u8]) -> bool {
    let Some([samples, first]) = start.first_chunk::<{ 2 * WORD_BYTES }>().map(|head| {
        let mut words = words(head);
        [(); 2].map(|()| words.next().unwrap_or_default())
    }) else {
        return false;
    };
    let end = end_of_offsets(samples);
    (end..=end + MAX_DESCRIPTION_BYTES as u64).contains(&first.into())
}

impl Number {
    fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "int8" => Self::Int8,
            "int16" => Self::Int16,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "uint8" => Self::Uint8,
            "uint16" => Self::Uint16,
            "uint32" => Self::Uint32,
            "uint64" => Self::Uint64,
            "float16" => Self::Float16,
            "float32" => Self::Float32,
            "float64" => Self::Float64,
            _ => return None,
        })
    }

    /// The type that an array without a type in its encoding names by this byte.
    fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            8 => Self::Uint8,
            9 => Self::Int8,
            16 => Self::Uint16,
            17 => Self::Int16,
            18 => Self::Float16,
            32 => Self::Uint32,
            33 => Self::Int32,
            34 => Self::Float32,
            64 => Self::Uint64,
            65 => Self::Int64,
            66 => Self::Float64,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 | Self::Float16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// Writes numbers of this type as a feature.
    fn write(self, name: &str, bytes: &[u8], features: &mut FeatureWriter, list: &mut ByteList) {
        match self {
            Self::Int8 => features.integers(name, bytes.iter().map(|&byte| i64::from(byte as i8))),
            Self::Uint8 => features.integers(name, bytes.iter().map(|&byte| i64::from(byte))),
            Self::Int16 => features.integers(name, each(bytes, |at| i64::from(i16::from_le_bytes(at)))),
            Self::Uint16 => features.integers(name, each(bytes, |at| i64::from(u16::from_le_bytes(at)))),
            Self::Int32 => features.integers(name, each(bytes, |at| i64::from(i32::from_le_bytes(at)))),
            Self::Uint32 => features.integers(name, each(bytes, |at| i64::from(u32::from_le_bytes(at)))),
            Self::Int64 => features.integers(name, each(bytes, i64::from_le_bytes)),
            Self::Uint64 => texts(name, each(bytes, u64::from_le_bytes), features, list),
            Self::Float16 => features.floats(name, each(bytes, |at| half(u16::from_le_bytes(at)))),
            Self::Float32 => features.floats(name, each(bytes, f32::from_le_bytes)),
            Self::Float64 => texts(name, each(bytes, f64::from_le_bytes), features, list),
        }
    }
}

/// The numbers in `bytes`.
fn each<const N: usize, T>(
    bytes: &[u8],
    number: impl Fn([u8; N]) -> T + Clone,
) -> impl ExactSizeIterator<Item = T> + Clone {
    bytes.as_chunks().0.iter().map(move |&bytes| number(bytes))
}

/// Writes numbers as texts.
fn texts<T: fmt::Debug>(
    name: &str,
    numbers: impl Iterator<Item = T>,
    features: &mut FeatureWriter,
    list: &mut ByteList,
) {
    list.clear();
    // Unlike `Display`, `Debug` writes the exponent of long numbers.
    numbers.for_each(|number| list.push(format!("{number:?}").as_bytes()));
    features.list(name, list);
}

/// The value of a binary16.
fn half(bits: u16) -> f32 {
    <Float16Type as ArrowPrimitiveType>::Native::from_bits(bits).to_f32()
}

/// The words in `bytes`.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word))
}

fn read_sample<R: BufRead>(
    input: &mut R,
    bytes: u64,
    most_bytes: u64,
    sample: &mut Vec<u8>,
) -> io::Result<()> {
    if bytes > most_bytes {
        return Err(too_long(bytes, most_bytes));
    }
    sample.clear();
    extend(input, sample, bytes as usize, "a sample")
}

/// Appends the next `bytes` bytes of `input`, which are `what`, to `out`.
fn extend<R: BufRead>(input: &mut R, out: &mut Vec<u8>, bytes: usize, what: &str) -> io::Result<()> {
    let bytes = bytes as u64;
    if append(input, out, bytes)? < bytes { Err(ends_within(what)) } else { Ok(()) }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
#[path = "mds_tests.rs"]
mod tests;
