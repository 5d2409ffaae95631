//! Encodes rows as a block.

use std::ops::Range;

use millstream_disk::{ALIGNMENT, AlignedBuffer};

use super::{BLOCK_BYTES, HEAD_BYTES, SAME, Shape, column_bytes, weights_of};
use crate::chunk::{Chunk, RaggedColumn};

/// An encoded block, padded with zeros to a multiple of [`ALIGNMENT`].
pub(crate) struct Encoded {
    pub(crate) buffer: AlignedBuffer,
    /// Length without padding.
    pub(crate) bytes: usize,
}

/// The value ranges of some columns, computed in one row-major pass.
struct Ranges {
    /// Bitwise OR of the values as integers; more than 24 bits if a value is not an integer.
    bits: Vec<u32>,
    /// Bits in which any row differs from the first.
    differing: Vec<u32>,
    first: Vec<u32>,
}

impl Ranges {
    fn of<T: Copy>(values: &[T], columns: usize, word: impl Fn(T) -> u32, whole: impl Fn(T) -> u32) -> Self {
        let first: Vec<u32> = values.iter().take(columns).map(|&value| word(value)).collect();
        let (mut bits, mut differing) = (vec![0; columns], vec![0; columns]);
        if columns > 0 {
            for row in values.chunks_exact(columns) {
                for (column, &value) in row.iter().enumerate() {
                    bits[column] |= whole(value);
                    differing[column] |= word(value) ^ first[column];
                }
            }
        }
        Self { bits, differing, first }
    }

    fn of_words(values: &[u32], columns: usize) -> Self {
        Self::of(values, columns, |word| word, |word| word)
    }

    fn of_floats(values: &[f32], columns: usize) -> Self {
        Self::of(values, columns, f32::to_bits, |value| {
            let whole = value as u32;
            // Any other value, including -0 and NaN, would not round-trip as an integer.
            if (whole as f32).to_bits() == value.to_bits() { whole } else { u32::MAX }
        })
    }

    fn width(&self, column: usize) -> u8 {
        if self.differing[column] == 0 {
            return SAME;
        }
        // 1 to 4.
        (u32::BITS - self.bits[column].leading_zeros()).div_ceil(8).max(1) as u8
    }
}

/// Writes a block sequentially.
struct Output<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Output<'_> {
    fn word(&mut self, word: u32) {
        self.bytes[self.at..self.at + 4].copy_from_slice(&word.to_le_bytes());
        self.at += 4;
    }

    /// Writes column `column` of the row-major `values`.
    fn column<T: Copy>(
        &mut self,
        ranges: &Ranges,
        column: usize,
        values: &[T],
        word: impl Fn(T) -> u32,
        whole: impl Fn(T) -> u32,
    ) {
        let stride = ranges.first.len();
        let width = ranges.width(column);
        if width == SAME {
            return self.word(ranges.first[column]);
        }
        let values = values.iter().skip(column).step_by(stride);
        let rest = &mut self.bytes[self.at..];
        self.at += match width {
            1 => narrow::<T, 1>(rest, values, whole),
            2 => narrow::<T, 2>(rest, values, whole),
            3 => narrow::<T, 3>(rest, values, whole),
            _ => narrow::<T, 4>(rest, values, word),
        };
    }
}

fn narrow<'v, T: Copy + 'v, const WIDTH: usize>(
    out: &mut [u8],
    values: impl ExactSizeIterator<Item = &'v T>,
    word: impl Fn(T) -> u32,
) -> usize {
    let bytes = values.len() * WIDTH;
    for (place, &value) in out[..bytes].chunks_exact_mut(WIDTH).zip(values) {
        place.copy_from_slice(&word(value).to_le_bytes()[..WIDTH]);
    }
    bytes
}

/// The number of rows from `start` that fit in a block: at least one, unless there are none.
pub(crate) fn rows_within(chunk: &Chunk, shape: &Shape, start: usize) -> usize {
    let left = chunk.rows() - start;
    let row_bytes = shape.row_bytes() as usize;
    if chunk.ragged.is_empty() {
        return left.min((BLOCK_BYTES / row_bytes).max(1));
    }
    let bytes_to = |end: usize| (end - start) * row_bytes + value_bytes(chunk, start..end);
    let (mut fits, mut above) = (1.min(left), left + 1);
    while above - fits > 1 {
        let middle = fits.midpoint(above);
        if bytes_to(start + middle) <= BLOCK_BYTES { fits = middle } else { above = middle }
    }
    fits
}

/// Decoded size of a chunk.
pub(crate) fn decoded_bytes(chunk: &Chunk, shape: &Shape) -> usize {
    chunk.rows() * shape.row_bytes() as usize + value_bytes(chunk, 0..chunk.rows())
}

/// Decoded size of the ragged values and their weights in some rows.
fn value_bytes(chunk: &Chunk, rows: Range<usize>) -> usize {
    let words = chunk.ragged.iter().map(|column| {
        let values = (column.offsets[rows.end] - column.offsets[rows.start]) as usize;
        if column.weights.is_some() { 2 * values } else { values }
    });
    4 * words.sum::<usize>()
}

/// Encodes some rows of a chunk as a block. The chunk must have the columns of `shape`, and `rows` must be at most as
/// many as [`rows_within`] returns.
pub(crate) fn encode(chunk: &Chunk, shape: &Shape, rows: Range<usize>, truncated_rows: u32) -> Encoded {
    let (dense, ids) = (shape.dense as usize, shape.ids as usize);
    let count = rows.len();
    let scalars = chunk.labels.iter().chain(&chunk.weights).map(|scalars| &scalars[rows.clone()]);
    let dense_values = &chunk.dense[rows.start * dense..rows.end * dense];
    let id_values = &chunk.ids[rows.start * ids..rows.end * ids];
    let ragged: Vec<(Vec<u32>, &[u32])> = chunk.ragged.iter().map(|column| of_rows(column, &rows)).collect();

    let mut floats: Vec<_> = scalars.map(|scalars| (scalars, Ranges::of_floats(scalars, 1))).collect();
    floats.push((dense_values, Ranges::of_floats(dense_values, dense)));
    let mut words = vec![(id_values, Ranges::of_words(id_values, ids))];
    for (lengths, values) in &ragged {
        words.push((lengths, Ranges::of_words(lengths, 1)));
        words.push((values, Ranges::of_values(values, Ranges::of_words)));
    }
    let value_weights: Vec<(&[f32], Ranges)> = weights_of(chunk)
        .map(|(column, weights)| {
            let offsets = &chunk.ragged[column].offsets;
            let weights = &weights[offsets[rows.start] as usize..offsets[rows.end] as usize];
            (weights, Ranges::of_values(weights, Ranges::of_floats))
        })
        .collect();
    let all = || {
        let columns = floats.iter().map(|(_, ranges)| ranges).chain(words.iter().map(|(_, ranges)| ranges));
        columns.chain(value_weights.iter().map(|(_, ranges)| ranges))
    };
    let widths: Vec<u8> =
        all().flat_map(|ranges| (0..ranges.first.len()).map(|column| ranges.width(column))).collect();
    let counts = floats.iter().map(|(values, ranges)| (values.len(), ranges));
    let counts = counts.chain(words.iter().map(|(values, ranges)| (values.len(), ranges)));
    let counts = counts.chain(value_weights.iter().map(|(weights, ranges)| (weights.len(), ranges)));
    let data: usize = counts
        .flat_map(|(values, ranges)| {
            let rows = values / ranges.first.len().max(1);
            (0..ranges.first.len()).map(move |column| column_bytes(ranges.width(column), rows))
        })
        .sum();
    let bytes = HEAD_BYTES + 4 * (ragged.len() + value_weights.len()) + widths.len() + data;
    let mut buffer = AlignedBuffer::zeroed(bytes.next_multiple_of(ALIGNMENT));
    let mut output = Output { bytes: &mut buffer, at: 0 };
    output.word(count as u32);
    output.word(truncated_rows);
    ragged.iter().for_each(|(_, values)| output.word(values.len() as u32));
    weights_of(chunk).for_each(|(column, _)| output.word(column as u32));
    output.bytes[output.at..output.at + widths.len()].copy_from_slice(&widths);
    output.at += widths.len();
    let put_floats = |output: &mut Output<'_>, (values, ranges): &(&[f32], Ranges)| {
        (0..ranges.first.len())
            .for_each(|column| output.column(ranges, column, values, f32::to_bits, |value| value as u32));
    };
    floats.iter().for_each(|columns| put_floats(&mut output, columns));
    for (values, ranges) in &words {
        (0..ranges.first.len())
            .for_each(|column| output.column(ranges, column, values, |word| word, |word| word));
    }
    value_weights.iter().for_each(|column| put_floats(&mut output, column));
    Encoded { buffer, bytes }
}

impl Ranges {
    /// The ranges of a ragged column's values or weights. There may be none, or too many for width 0.
    fn of_values<T>(values: &[T], of: impl Fn(&[T], usize) -> Self) -> Self {
        if values.is_empty() {
            return Self { bits: vec![0], differing: vec![0], first: vec![0] };
        }
        let mut ranges = of(values, 1);
        ranges.differing[0] |= u32::from(values.len() * 4 > BLOCK_BYTES);
        ranges
    }
}

/// The lengths and the values of some rows.
fn of_rows<'a>(column: &'a RaggedColumn, rows: &Range<usize>) -> (Vec<u32>, &'a [u32]) {
    let offsets = &column.offsets[rows.start..=rows.end];
    let lengths = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
    (lengths, &column.values[offsets[0] as usize..offsets[rows.len()] as usize])
}
