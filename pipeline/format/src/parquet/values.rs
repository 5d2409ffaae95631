//! Values of a flat column during decoding: plain vectors, converted to an Arrow array once per batch.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BinaryArray, PrimitiveArray, make_array};
use arrow_buffer::bit_chunk_iterator::BitChunks;
use arrow_buffer::{ArrowNativeType, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;
use bytes::Bytes;
use parquet::basic::Type as Physical;
use parquet::errors::ParquetError;

/// Values of one physical type, one per row. Numbers are kept as words of their width, whatever they mean.
#[derive(Debug)]
pub(super) enum Values {
    /// INT32 and FLOAT.
    Words(Vec<u32>),
    /// INT64 and DOUBLE.
    LongWords(Vec<u64>),
    Bytes(Texts),
}

/// Byte strings: string `i` is `data[ends[i - 1]..ends[i]]`.
#[derive(Debug, Default)]
pub(super) struct Texts {
    ends: Vec<i32>,
    data: Vec<u8>,
}

/// The values of a dictionary.
pub(super) struct Dictionary {
    pub(super) array: ArrayRef,
    /// Those of numbers, as words of their width.
    words: Buffer,
}

impl Dictionary {
    pub(super) fn new(array: ArrayRef) -> Self {
        let is_numeric = array.data_type().is_primitive();
        let words = if is_numeric { array.to_data().buffers()[0].clone() } else { Buffer::from(&[]) };
        Self { array, words }
    }
}

impl Values {
    /// An empty vector; `None` for an unsupported physical type.
    pub(super) fn new(physical: Physical) -> Option<Self> {
        Some(match physical {
            Physical::INT32 | Physical::FLOAT => Self::Words(Vec::new()),
            Physical::INT64 | Physical::DOUBLE => Self::LongWords(Vec::new()),
            Physical::BYTE_ARRAY => Self::Bytes(Texts::default()),
            _ => return None,
        })
    }

    /// An empty vector of the same type with capacity for `rows`.
    pub(super) fn empty(&self, rows: usize) -> Self {
        match self {
            Self::Words(_) => Self::Words(Vec::with_capacity(rows)),
            Self::LongWords(_) => Self::LongWords(Vec::with_capacity(rows)),
            Self::Bytes(_) => Self::Bytes(Texts { ends: Vec::with_capacity(rows), data: Vec::new() }),
        }
    }

    /// The bytes of a value of the physical type, if all have as many.
    pub(super) fn width(physical: Physical) -> Option<u64> {
        match physical {
            Physical::INT32 | Physical::FLOAT => Some(4),
            Physical::INT64 | Physical::DOUBLE => Some(8),
            _ => None,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Words(values) => values.len(),
            Self::LongWords(values) => values.len(),
            Self::Bytes(texts) => texts.ends.len(),
        }
    }

    /// The bytes of all values, once they are spread over `places`.
    pub(super) fn bytes(&self, places: usize) -> usize {
        match self {
            Self::Words(_) => places * size_of::<u32>(),
            Self::LongWords(_) => places * size_of::<u64>(),
            Self::Bytes(texts) => places * size_of::<i32>() + texts.data.len(),
        }
    }

    /// Reads `count` PLAIN-encoded values from `input`.
    pub(super) fn take_plain(&mut self, count: usize, input: &mut Bytes) -> Result<(), ParquetError> {
        match self {
            Self::Words(values) => fixed(values, count, input, u32::from_le_bytes),
            Self::LongWords(values) => fixed(values, count, input, u64::from_le_bytes),
            Self::Bytes(texts) => texts.take_plain(count, input),
        }
    }

    /// Skips `count` PLAIN-encoded values.
    pub(super) fn skip_plain(&self, count: usize, input: &mut Bytes) -> Result<(), ParquetError> {
        let bytes = match self {
            Self::Words(_) => count.saturating_mul(4),
            Self::LongWords(_) => count.saturating_mul(8),
            Self::Bytes(_) => {
                let mut at = 0;
                for _ in 0..count {
                    at += 4 + length(input, at)?;
                }
                at
            }
        };
        if bytes > input.len() {
            return Err(truncated());
        }
        *input = input.slice(bytes..);
        Ok(())
    }

    /// The bytes of the values at `keys` of `dictionary`, which has the same physical type.
    pub(super) fn bytes_of(&self, dictionary: &Dictionary, keys: &[u32]) -> Result<u64, ParquetError> {
        check_keys(dictionary, keys)?;
        let width = match self {
            Self::Words(_) => 4,
            Self::LongWords(_) => 8,
            Self::Bytes(_) => {
                let texts = texts_of(dictionary)?;
                // Offsets of 4 bytes are part of the values.
                return Ok(keys.iter().map(|&key| 4 + texts.value_length(key as usize) as u64).sum());
            }
        };
        Ok(keys.len() as u64 * width)
    }

    /// Appends the values at `keys` of `dictionary`, which has the same physical type.
    pub(super) fn extend_from(&mut self, dictionary: &Dictionary, keys: &[u32]) -> Result<(), ParquetError> {
        check_keys(dictionary, keys)?;
        match self {
            Self::Words(values) => gather(values, dictionary.words.typed_data(), keys),
            Self::LongWords(values) => gather(values, dictionary.words.typed_data(), keys),
            Self::Bytes(texts) => {
                let dictionary = texts_of(dictionary)?;
                for &key in keys {
                    texts.push(dictionary.value(key as usize))?;
                }
            }
        }
        Ok(())
    }

    /// Appends `count` absent rows.
    pub(super) fn extend_absent(&mut self, count: usize) {
        match self {
            Self::Words(values) => values.resize(values.len() + count, 0),
            Self::LongWords(values) => values.resize(values.len() + count, 0),
            Self::Bytes(texts) => {
                let end = texts.ends.last().copied().unwrap_or(0);
                texts.ends.resize(texts.ends.len() + count, end);
            }
        }
    }

    /// Moves the values after the first `rows` to the `present` rows. The values of the other rows are unspecified.
    pub(super) fn spread(&mut self, rows: usize, present: &BitChunks<'_>) {
        match self {
            Self::Words(values) => spread(&values.split_off(rows), present, values),
            Self::LongWords(values) => spread(&values.split_off(rows), present, values),
            Self::Bytes(texts) => texts.spread(rows, present),
        }
    }

    /// Converts to an array of `data_type`, which must have this physical type.
    pub(super) fn into_array(
        self,
        nulls: Option<NullBuffer>,
        data_type: &DataType,
    ) -> Result<ArrayRef, ParquetError> {
        match self {
            Self::Words(values) => numbers::<UInt32Type>(values, nulls, data_type),
            Self::LongWords(values) => numbers::<UInt64Type>(values, nulls, data_type),
            Self::Bytes(Texts { mut ends, data }) => {
                ends.insert(0, 0);
                let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
                Ok(Arc::new(BinaryArray::try_new(offsets, Buffer::from_vec(data), nulls)?))
            }
        }
    }
}

impl Texts {
    fn push(&mut self, text: &[u8]) -> Result<(), ParquetError> {
        self.data.extend_from_slice(text);
        let end = i32::try_from(self.data.len());
        self.ends
            .push(end.map_err(|_| ParquetError::General("a batch has more than 2 GiB of text".to_owned()))?);
        Ok(())
    }

    fn take_plain(&mut self, count: usize, input: &mut Bytes) -> Result<(), ParquetError> {
        let mut at = 0;
        for _ in 0..count {
            let end = at + 4 + length(input, at)?;
            self.push(input.get(at + 4..end).ok_or_else(truncated)?)?;
            at = end;
        }
        *input = input.slice(at..);
        Ok(())
    }

    fn spread(&mut self, rows: usize, present: &BitChunks<'_>) {
        let ends = self.ends.split_off(rows);
        let mut end = self.ends.last().copied().unwrap_or(0);
        let mut following = ends.iter();
        for word in present.iter_padded() {
            for bit in 0..WORD {
                // An absent row ends where the present one before it does.
                if word >> bit & 1 == 1 {
                    end = following.next().copied().unwrap_or(end);
                }
                self.ends.push(end);
            }
        }
        self.ends.truncate(rows + length_of(present));
    }
}

/// Rows per word of the validity bitmap.
const WORD: usize = u64::BITS as usize;

/// Appends the `packed` values to `values` at the `present` rows, which are equal in number. The values of the other
/// rows are unspecified.
pub(super) fn spread<T: Copy + Default>(packed: &[T], present: &BitChunks<'_>, values: &mut Vec<T>) {
    let start = values.len();
    values.resize(start + length_of(present), T::default());
    let mut rest = packed;
    for (word, out) in present.iter_padded().zip(values[start..].chunks_mut(WORD)) {
        let count = (word.count_ones() as usize).min(rest.len());
        let (these, following) = rest.split_at(count);
        rest = following;
        if count == out.len() {
            out.copy_from_slice(these);
        } else if let Some(last) = count.checked_sub(1) {
            // Branch-free, as branches would be unpredictable: an absent row gets the next present value.
            let mut next = 0;
            for (bit, out) in out.iter_mut().enumerate() {
                *out = these[next.min(last)];
                next += (word >> bit & 1) as usize;
            }
        }
    }
}

fn length_of(present: &BitChunks<'_>) -> usize {
    present.chunk_len() * WORD + present.remainder_len()
}

/// The length prefix of the string at `at`.
fn length(input: &Bytes, at: usize) -> Result<usize, ParquetError> {
    let bytes = input.get(at..).and_then(|rest| rest.first_chunk::<4>());
    bytes.map(|bytes| u32::from_le_bytes(*bytes) as usize).ok_or_else(truncated)
}

fn fixed<T, const N: usize>(
    values: &mut Vec<T>,
    count: usize,
    input: &mut Bytes,
    read: impl Fn([u8; N]) -> T,
) -> Result<(), ParquetError> {
    let bytes = count.checked_mul(N).and_then(|length| input.get(..length)).ok_or_else(truncated)?;
    let (chunks, _) = bytes.as_chunks::<N>();
    values.extend(chunks.iter().map(|&chunk| read(chunk)));
    *input = input.slice(count * N..);
    Ok(())
}

fn check_keys(Dictionary { array: dictionary, .. }: &Dictionary, keys: &[u32]) -> Result<(), ParquetError> {
    // Without an early exit, so that keys are compared in vectors.
    let largest = keys.iter().fold(0, |largest, &key| key.max(largest));
    if keys.is_empty() || (largest as usize) < dictionary.len() {
        return Ok(());
    }
    let values = dictionary.len();
    Err(ParquetError::General(format!("a key is out of range for a dictionary of {values} values")))
}

fn texts_of(dictionary: &Dictionary) -> Result<&BinaryArray, ParquetError> {
    let other = || ParquetError::General("the dictionary has another type".to_owned());
    dictionary.array.as_binary_opt::<i32>().ok_or_else(other)
}

/// Appends `dictionary[key]` for each key. All keys must be in range.
fn gather<T: ArrowNativeType>(values: &mut Vec<T>, dictionary: &[T], keys: &[u32]) {
    values.extend(keys.iter().map(|&key| dictionary[key as usize]));
}

/// An array of `data_type`, whose values have the width of `T`.
fn numbers<T: ArrowPrimitiveType>(
    values: Vec<T::Native>,
    nulls: Option<NullBuffer>,
    data_type: &DataType,
) -> Result<ArrayRef, ParquetError> {
    let words = PrimitiveArray::<T>::try_new(ScalarBuffer::from(values), nulls)?;
    Ok(make_array(words.into_data().into_builder().data_type(data_type.clone()).build()?))
}

pub(super) fn truncated() -> ParquetError {
    ParquetError::EOF("a page is truncated".to_owned())
}
