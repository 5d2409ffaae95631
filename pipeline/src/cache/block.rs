//! Rows as bytes: one block of a cache file.
//!
//! ```text
//! offset  0   rows         u32, at least 1
//!         4   truncated    u32, rows that lost values of a multi-valued feature, once for each feature
//!         8   values       u32 for each ragged column: values of all rows together
//!             widths       u8 for each column
//!             columns      one after the other
//! ```
//!
//! All numbers are little-endian. The columns are: label, weight if there is one, each dense column, each id
//! column, and for each ragged column the numbers of values and then the values. A column is as wide as its
//! largest value here needs:
//!
//! | width | bytes | |
//! |---|---|---|
//! | 0 | 4 | one word, which all rows share |
//! | 1, 2, 3 | as many a row | whole numbers |
//! | 4 | 4 a row | words: an id, or the bits of an `f32` |
//!
//! Labels, weights and dense values are narrowed where all of a column's are whole numbers from 0 to 2^24 - 1,
//! bit for bit, else they are kept as they are: what comes out is what went in.
//!
//! Fixed widths rather than packed bits: a column is decoded by a loop without branches that the compiler
//! makes wide, faster than a disk delivers, and packing would save an eighth at best.

use std::ops::Range;

use millstream_disk::{ALIGNMENT, AlignedBuffer};

use super::Malformed;
use crate::chunk::{Chunk, RaggedColumn};

/// The most bytes of a block's rows, decoded; a row that alone exceeds it is a block of its own.
pub(crate) const BLOCK_BYTES: usize = 512 << 10;

/// Rows decoded at a time, so that the row-major block being written to stays in the nearest cache.
const TILE_ROWS: usize = 128;

const HEAD_BYTES: usize = 8;
const SAME: u8 = 0;
const WORDS: u8 = 4;

/// How many columns of each kind there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) weighted: bool,
    pub(crate) dense: u32,
    pub(crate) ids: u32,
    pub(crate) ragged: u32,
}

/// A block's bytes, padded with zeros to whole sectors.
pub(crate) struct Encoded {
    pub(crate) buffer: AlignedBuffer,
    /// Those that are not padding.
    pub(crate) bytes: usize,
}

/// A column as it is in a block.
#[derive(Clone, Copy)]
struct Column<'a> {
    width: u8,
    data: &'a [u8],
}

/// A block, taken apart and checked.
pub(crate) struct Block<'a> {
    shape: Shape,
    rows: usize,
    truncated_rows: u32,
    /// Label, weight, dense columns, id columns.
    fixed: Vec<Column<'a>>,
    /// Numbers of values, and values.
    ragged: Vec<(Column<'a>, Column<'a>)>,
}

impl Shape {
    /// Of a chunk that has rows.
    pub(crate) fn of(chunk: &Chunk) -> Self {
        let columns = |values: usize| (values / chunk.rows().max(1)) as u32;
        Self {
            weighted: chunk.weights.is_some(),
            dense: columns(chunk.dense.len()),
            ids: columns(chunk.ids.len()),
            ragged: chunk.ragged.len() as u32,
        }
    }

    /// Whether `chunk` has these columns.
    pub(crate) fn fits(&self, chunk: &Chunk) -> bool {
        let rows = chunk.rows();
        chunk.weights.as_ref().map(Vec::len) == self.weighted.then_some(rows)
            && chunk.dense.len() == rows * self.dense as usize
            && chunk.ids.len() == rows * self.ids as usize
            && chunk.ragged.len() == self.ragged as usize
            && chunk.ragged.iter().all(|column| column.offsets.len() == rows + 1)
    }

    /// Bytes of a row, decoded, without the values of its ragged columns.
    pub(crate) fn row_bytes(&self) -> u64 {
        4 * (1
            + u64::from(self.weighted)
            + u64::from(self.dense)
            + u64::from(self.ids)
            + u64::from(self.ragged))
    }

    fn fixed_columns(&self) -> u64 {
        1 + u64::from(self.weighted) + u64::from(self.dense) + u64::from(self.ids)
    }
}

/// What the values of some columns need, found in one row-major pass.
struct Needs {
    /// All bits of the values as whole numbers; more than 24 of them where one is none.
    bits: Vec<u32>,
    /// Bits that differ from the first row.
    differing: Vec<u32>,
    first: Vec<u32>,
}

impl Needs {
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
            // Anything else, -0 and NaN among it, is not what its whole number would read back as.
            if (whole as f32).to_bits() == value.to_bits() { whole } else { u32::MAX }
        })
    }

    fn width(&self, column: usize) -> u8 {
        if self.differing[column] == 0 {
            return SAME;
        }
        // At least 1 and at most 4.
        (u32::BITS - self.bits[column].leading_zeros()).div_ceil(8).max(1) as u8
    }
}

/// Writes a block from front to back.
struct Output<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Output<'_> {
    fn word(&mut self, word: u32) {
        self.bytes[self.at..self.at + 4].copy_from_slice(&word.to_le_bytes());
        self.at += 4;
    }

    /// A column of `values`, `stride` apart.
    fn column<T: Copy>(
        &mut self,
        needs: &Needs,
        column: usize,
        values: &[T],
        word: impl Fn(T) -> u32,
        whole: impl Fn(T) -> u32,
    ) {
        let stride = needs.first.len();
        let width = needs.width(column);
        if width == SAME {
            return self.word(needs.first[column]);
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

/// The rows from `start` on that fit in a block: at least one, unless there are none.
pub(crate) fn rows_within(chunk: &Chunk, shape: &Shape, start: usize) -> usize {
    let left = chunk.rows() - start;
    let row_bytes = shape.row_bytes() as usize;
    if chunk.ragged.is_empty() {
        return left.min((BLOCK_BYTES / row_bytes).max(1));
    }
    let bytes_to = |end: usize| {
        let values = chunk.ragged.iter().map(|column| column.offsets[end] - column.offsets[start]);
        (end - start) * row_bytes + 4 * values.map(|count| count as usize).sum::<usize>()
    };
    let (mut fits, mut above) = (1.min(left), left + 1);
    while above - fits > 1 {
        let middle = fits.midpoint(above);
        if bytes_to(start + middle) <= BLOCK_BYTES { fits = middle } else { above = middle }
    }
    fits
}

/// Bytes of a chunk, decoded.
pub(crate) fn decoded_bytes(chunk: &Chunk, shape: &Shape) -> usize {
    let values: usize = chunk.ragged.iter().map(|column| column.values.len()).sum();
    chunk.rows() * shape.row_bytes() as usize + 4 * values
}

/// Some rows of a chunk as a block. The chunk has the columns of `shape`, and `rows` are of those that
/// [`rows_within`] says.
pub(crate) fn encode(chunk: &Chunk, shape: &Shape, rows: Range<usize>, truncated_rows: u32) -> Encoded {
    let (dense, ids) = (shape.dense as usize, shape.ids as usize);
    let count = rows.len();
    let labels = &chunk.labels[rows.clone()];
    let weights = chunk.weights.as_ref().map_or(&[][..], |weights| &weights[rows.clone()]);
    let dense_values = &chunk.dense[rows.start * dense..rows.end * dense];
    let id_values = &chunk.ids[rows.start * ids..rows.end * ids];
    let ragged: Vec<(Vec<u32>, &[u32])> = chunk.ragged.iter().map(|column| of_rows(column, &rows)).collect();

    let floats = [
        (labels, Needs::of_floats(labels, 1)),
        (weights, Needs::of_floats(weights, usize::from(shape.weighted))),
        (dense_values, Needs::of_floats(dense_values, dense)),
    ];
    let mut words = vec![(id_values, Needs::of_words(id_values, ids))];
    for (lengths, values) in &ragged {
        words.push((lengths, Needs::of_words(lengths, 1)));
        words.push((values, Needs::of_values(values)));
    }
    let all = || floats.iter().map(|(_, needs)| needs).chain(words.iter().map(|(_, needs)| needs));
    let widths: Vec<u8> =
        all().flat_map(|needs| (0..needs.first.len()).map(|column| needs.width(column))).collect();
    let counts = floats.iter().map(|(values, needs)| (values.len(), needs));
    let counts = counts.chain(words.iter().map(|(values, needs)| (values.len(), needs)));
    let data: usize = counts
        .flat_map(|(values, needs)| {
            let rows = values / needs.first.len().max(1);
            (0..needs.first.len()).map(move |column| column_bytes(needs.width(column), rows))
        })
        .sum();
    let bytes = HEAD_BYTES + 4 * ragged.len() + widths.len() + data;
    let mut buffer = AlignedBuffer::zeroed(bytes.next_multiple_of(ALIGNMENT));
    let mut output = Output { bytes: &mut buffer, at: 0 };
    output.word(count as u32);
    output.word(truncated_rows);
    ragged.iter().for_each(|(_, values)| output.word(values.len() as u32));
    output.bytes[output.at..output.at + widths.len()].copy_from_slice(&widths);
    output.at += widths.len();
    for (values, needs) in &floats {
        (0..needs.first.len())
            .for_each(|column| output.column(needs, column, values, f32::to_bits, |value| value as u32));
    }
    for (values, needs) in &words {
        (0..needs.first.len())
            .for_each(|column| output.column(needs, column, values, |word| word, |word| word));
    }
    Encoded { buffer, bytes }
}

impl Needs {
    /// Of a ragged column's values, of which there may be none, or more than may be made of one word.
    fn of_values(values: &[u32]) -> Self {
        if values.is_empty() {
            return Self { bits: vec![0], differing: vec![0], first: vec![0] };
        }
        let mut needs = Self::of_words(values, 1);
        needs.differing[0] |= u32::from(values.len() * 4 > BLOCK_BYTES);
        needs
    }
}

/// The numbers of values, and the values, of some rows.
fn of_rows<'a>(column: &'a RaggedColumn, rows: &Range<usize>) -> (Vec<u32>, &'a [u32]) {
    let offsets = &column.offsets[rows.start..=rows.end];
    let lengths = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
    (lengths, &column.values[offsets[0] as usize..offsets[rows.len()] as usize])
}

fn column_bytes(width: u8, count: usize) -> usize {
    if width == SAME { 4 } else { usize::from(width) * count }
}

/// Takes bytes from the front.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Malformed("a block ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u32, Malformed> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn column(&mut self, width: u8, count: usize) -> Result<Column<'a>, Malformed> {
        if width > WORDS {
            return Err(Malformed("a column has a width that there is not"));
        }
        Ok(Column { width, data: self.take(column_bytes(width, count))? })
    }
}

impl<'a> Block<'a> {
    /// Takes a block's bytes, without padding, apart. Memory taken is bounded by their number and
    /// [`BLOCK_BYTES`], whatever they say.
    pub(crate) fn parse(bytes: &'a [u8], shape: &Shape) -> Result<Self, Malformed> {
        let mut input = Input(bytes);
        let rows = input.word()?;
        let truncated_rows = input.word()?;
        let columns = shape.fixed_columns() + 2 * u64::from(shape.ragged);
        if columns + 4 * u64::from(shape.ragged) > input.0.len() as u64 {
            return Err(Malformed("a block is shorter than its columns' widths"));
        }
        let mut counts = Vec::with_capacity(shape.ragged as usize);
        for _ in 0..shape.ragged {
            counts.push(input.word()?);
        }
        let values: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let decoded = u64::from(rows).saturating_mul(shape.row_bytes()) + 4 * values;
        if rows == 0 || (rows > 1 && decoded > BLOCK_BYTES as u64) {
            return Err(Malformed("a block has no rows, or too many"));
        }
        let rows = rows as usize;
        let mut widths = input.take(columns as usize)?.iter().copied();
        let mut next = |input: &mut Input<'a>, count| {
            let width = widths.next().ok_or(Malformed("a column has no width"))?;
            input.column(width, count)
        };
        let fixed = (0..shape.fixed_columns()).map(|_| next(&mut input, rows)).collect::<Result<_, _>>()?;
        let mut ragged = Vec::with_capacity(counts.len());
        for count in counts {
            let lengths = next(&mut input, rows)?;
            let values = next(&mut input, count as usize)?;
            // A row of its own may have any number of values, but they must be there.
            if values.width == SAME && u64::from(count) * 4 > BLOCK_BYTES as u64 {
                return Err(Malformed("a block has too many values"));
            }
            if lengths.sum(0..rows) != u64::from(count) {
                return Err(Malformed("a ragged column's numbers do not add up"));
            }
            ragged.push((lengths, values));
        }
        if !input.0.is_empty() {
            return Err(Malformed("a block has bytes left over"));
        }
        Ok(Self { shape: *shape, rows, truncated_rows, fixed, ragged })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn truncated_rows(&self) -> u64 {
        u64::from(self.truncated_rows)
    }

    /// Some of its rows.
    ///
    /// # Panics
    /// When it has not so many.
    pub(crate) fn decode(&self, rows: Range<usize>) -> Chunk {
        let (labels, rest) = self.fixed.split_at(1);
        let (weights, rest) = rest.split_at(usize::from(self.shape.weighted));
        let (dense, ids) = rest.split_at(self.shape.dense as usize);
        let floats =
            |columns: &[Column<'_>]| row_major(columns, rows.clone(), |whole| whole as f32, f32::from_bits);
        Chunk {
            labels: floats(labels),
            weights: self.shape.weighted.then(|| floats(weights)),
            dense: floats(dense),
            ids: row_major(ids, rows.clone(), |whole| whole, |word| word),
            ragged: self.ragged.iter().map(|(lengths, values)| ragged(lengths, values, &rows)).collect(),
        }
    }
}

impl Column<'_> {
    /// Hands each of some values to `put`, as a whole number or as a word.
    fn each<T>(
        &self,
        rows: Range<usize>,
        whole: impl Fn(u32) -> T,
        bits: impl Fn(u32) -> T,
        mut put: impl FnMut(usize, T),
    ) {
        let data = self.data;
        match self.width {
            SAME => {
                let word = u32::from_le_bytes([data[0], data[1], data[2], data[3]]);
                (0..rows.len()).for_each(|row| put(row, bits(word)));
            }
            1 => data[rows].iter().enumerate().for_each(|(row, &byte)| put(row, whole(u32::from(byte)))),
            2 => {
                words::<2>(data, rows).for_each(|(row, b)| put(row, whole(u32::from(u16::from_le_bytes(b)))));
            }
            3 => words::<3>(data, rows)
                .for_each(|(row, [a, b, c])| put(row, whole(u32::from_le_bytes([a, b, c, 0])))),
            _ => words::<4>(data, rows).for_each(|(row, b)| put(row, bits(u32::from_le_bytes(b)))),
        }
    }

    fn sum(&self, rows: Range<usize>) -> u64 {
        let mut sum = 0;
        self.each(rows, u64::from, u64::from, |_, value| sum += value);
        sum
    }
}

fn words<const WIDTH: usize>(
    data: &[u8],
    rows: Range<usize>,
) -> impl Iterator<Item = (usize, [u8; WIDTH])> + '_ {
    let (words, _) = data[rows.start * WIDTH..rows.end * WIDTH].as_chunks::<WIDTH>();
    words.iter().copied().enumerate()
}

/// Columns side by side, `[rows, columns]`.
fn row_major<T: Copy + Default>(
    columns: &[Column<'_>],
    rows: Range<usize>,
    whole: impl Fn(u32) -> T + Copy,
    bits: impl Fn(u32) -> T + Copy,
) -> Vec<T> {
    let stride = columns.len();
    let mut values = vec![T::default(); rows.len() * stride];
    for (tile, start) in values.chunks_mut((TILE_ROWS * stride).max(1)).zip(rows.clone().step_by(TILE_ROWS)) {
        let end = rows.end.min(start + TILE_ROWS);
        for (position, column) in columns.iter().enumerate() {
            column.each(start..end, whole, bits, |row, value| tile[row * stride + position] = value);
        }
    }
    values
}

fn ragged(lengths: &Column<'_>, values: &Column<'_>, rows: &Range<usize>) -> RaggedColumn {
    let mut offsets = Vec::with_capacity(rows.len() + 1);
    let mut end = 0_u32;
    offsets.push(end);
    lengths.each(
        rows.clone(),
        |n| n,
        |n| n,
        |_, length| {
            end += length;
            offsets.push(end);
        },
    );
    let before = lengths.sum(0..rows.start) as usize;
    RaggedColumn {
        offsets,
        values: row_major(std::slice::from_ref(values), before..before + end as usize, |n| n, |n| n),
    }
}
