//! Decodes a block.

use std::ops::Range;

use super::super::Malformed;
use super::{BLOCK_BYTES, SAME, Shape, WORDS, column_bytes};
use crate::chunk::{Chunk, RaggedColumn};

/// Rows decoded at a time, so that the row-major output stays in the L1 cache.
const TILE_ROWS: usize = 128;

/// An encoded column.
#[derive(Clone, Copy)]
struct Column<'a> {
    width: u8,
    data: &'a [u8],
}

/// A parsed and validated block.
pub(crate) struct Block<'a> {
    shape: Shape,
    rows: usize,
    truncated_rows: u32,
    /// Labels, weight, dense columns, id columns.
    fixed: Vec<Column<'a>>,
    ragged: Vec<RaggedColumns<'a>>,
}

/// The encoded columns of a ragged column.
struct RaggedColumns<'a> {
    /// Number of values per row.
    lengths: Column<'a>,
    values: Column<'a>,
    weights: Option<Column<'a>>,
}

/// Reads bytes sequentially.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Malformed("a block is truncated"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u32, Malformed> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn column(&mut self, width: u8, count: usize) -> Result<Column<'a>, Malformed> {
        if width > WORDS {
            return Err(Malformed("a column has an invalid width"));
        }
        Ok(Column { width, data: self.take(column_bytes(width, count))? })
    }
}

impl<'a> Block<'a> {
    /// Parses a block's bytes, without padding. Their length and [`BLOCK_BYTES`] bound the allocated memory for any
    /// contents.
    pub(crate) fn parse(bytes: &'a [u8], shape: &Shape) -> Result<Self, Malformed> {
        let mut input = Input(bytes);
        let rows = input.word()?;
        let truncated_rows = input.word()?;
        let (lists, weighted) = (u64::from(shape.ragged), u64::from(shape.weighted_ragged));
        let columns = shape.fixed_columns() + 2 * lists + weighted;
        if columns + 4 * (lists + weighted) > input.0.len() as u64 {
            return Err(Malformed("a block is too short for its columns"));
        }
        let mut counts = Vec::with_capacity(shape.ragged as usize);
        for _ in 0..shape.ragged {
            counts.push(input.word()?);
        }
        let mut weighted = Vec::with_capacity(shape.weighted_ragged as usize);
        for _ in 0..shape.weighted_ragged {
            weighted.push(input.word()? as usize);
        }
        if !weighted.is_sorted_by(|one, next| one < next) || weighted.last() >= Some(&counts.len()) {
            return Err(Malformed("a block has weights of missing columns"));
        }
        let values = counts.iter().chain(weighted.iter().map(|&column| &counts[column]));
        let values: u64 = values.map(|&count| u64::from(count)).sum();
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
        for &count in &counts {
            let lengths = next(&mut input, rows)?;
            let values = next(&mut input, count as usize)?.of_values(count)?;
            if lengths.sum(0..rows) != u64::from(count) {
                return Err(Malformed("a ragged column's lengths do not add up"));
            }
            ragged.push(RaggedColumns { lengths, values, weights: None });
        }
        for column in weighted {
            ragged[column].weights =
                Some(next(&mut input, counts[column] as usize)?.of_values(counts[column])?);
        }
        if !input.0.is_empty() {
            return Err(Malformed("a block has trailing bytes"));
        }
        Ok(Self { shape: *shape, rows, truncated_rows, fixed, ragged })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn truncated_rows(&self) -> u64 {
        u64::from(self.truncated_rows)
    }

    /// Decodes some rows.
    ///
    /// # Panics
    /// When `rows` is out of range.
    pub(crate) fn decode(&self, rows: Range<usize>) -> Chunk {
        let (labels, rest) = self.fixed.split_at(1 + self.shape.more_labels as usize);
        let (weights, rest) = rest.split_at(usize::from(self.shape.weighted));
        let (dense, ids) = rest.split_at(self.shape.dense as usize);
        let floats =
            |columns: &[Column<'_>]| row_major(columns, rows.clone(), |whole| whole as f32, f32::from_bits);
        Chunk {
            labels: labels.chunks(1).map(&floats).collect(),
            weights: self.shape.weighted.then(|| floats(weights)),
            dense: floats(dense),
            ids: row_major(ids, rows.clone(), |whole| whole, |word| word),
            ragged: self.ragged.iter().map(|columns| columns.decode(&rows)).collect(),
            narrow: Vec::new(),
            columns: Vec::new(),
        }
    }
}

impl Column<'_> {
    /// Checks the number of values of a ragged column: with width 0, the data does not bound it.
    fn of_values(self, count: u32) -> Result<Self, Malformed> {
        if self.width == SAME && u64::from(count) * 4 > BLOCK_BYTES as u64 {
            return Err(Malformed("a block has too many values"));
        }
        Ok(self)
    }

    /// Passes each value of some rows to `put`, decoded as an integer or as a word.
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

/// Decodes columns into `[rows, columns]`.
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

impl RaggedColumns<'_> {
    fn decode(&self, rows: &Range<usize>) -> RaggedColumn {
        let Self { lengths, values, weights } = self;
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
        let all = before..before + end as usize;
        let floats = |column: &Column<'_>| {
            row_major(std::slice::from_ref(column), all.clone(), |whole| whole as f32, f32::from_bits)
        };
        RaggedColumn {
            offsets,
            values: row_major(std::slice::from_ref(values), all.clone(), |n| n, |n| n),
            weights: weights.as_ref().map(floats),
        }
    }
}
