//! Interleaves columns into rows: features are computed by column, but a chunk stores them by row.
//!
//! Writing each column directly would touch every cache line of the block once per column. The block is
//! therefore written in tiles of a few rows by one cache line of columns. The source columns are read
//! sequentially and stay in registers and L1.

use arrow_buffer::Buffer;

/// Rows per tile.
const ROWS: usize = 8;

/// Columns per tile: one cache line of four-byte values.
const COLUMNS: usize = 16;

/// Rows per tile of narrow columns: four cache lines of a column of eight bytes, half of one of a column of one byte.
const NARROW_ROWS: usize = 32;

/// Narrow columns per tile: one cache line of eight-byte values.
const NARROW_COLUMNS: usize = 8;

/// A narrow typed column of a chunk under construction.
pub(crate) struct NarrowColumn {
    /// The place of its bytes in a row of the block.
    pub(crate) at: usize,
    /// Bytes of a row: 1, 2, 4 or 8.
    pub(crate) row_bytes: usize,
    /// `[rows, row_bytes]`
    pub(crate) values: Buffer,
}

/// Interleaves columns of equal length: `[F][rows]` to `[rows, F]`.
///
/// # Panics
/// If a column is shorter than `rows`.
pub(crate) fn interleave<T: Copy + Default>(columns: &[Vec<T>], rows: usize) -> Vec<T> {
    let width = columns.len();
    let mut block = vec![T::default(); rows * width];
    if width == 0 {
        return block;
    }
    for (nth, strip) in block.chunks_mut(ROWS * width).enumerate() {
        let first = nth * ROWS;
        for (tile, columns) in columns.chunks(COLUMNS).enumerate() {
            let at = tile * COLUMNS;
            if strip.len() == ROWS * width {
                for (place, column) in columns.iter().enumerate() {
                    let values = &column[first..first + ROWS];
                    for (row, &value) in strip.chunks_exact_mut(width).zip(values) {
                        row[at + place] = value;
                    }
                }
            } else {
                for (place, column) in columns.iter().enumerate() {
                    for (row, &value) in strip.chunks_exact_mut(width).zip(&column[first..rows]) {
                        row[at + place] = value;
                    }
                }
            }
        }
    }
    block
}

/// Interleaves narrow columns, which fill the rows of the block without gaps: to `[rows, W]`.
///
/// # Panics
/// If a column is shorter than `rows`.
pub(crate) fn interleave_narrow(columns: &[NarrowColumn], rows: usize) -> Vec<u8> {
    let width: usize = columns.iter().map(|column| column.row_bytes).sum();
    let mut block = vec![0; rows * width];
    if width == 0 {
        return block;
    }
    for (nth, strip) in block.chunks_mut(NARROW_ROWS * width).enumerate() {
        let first = nth * NARROW_ROWS;
        for columns in columns.chunks(NARROW_COLUMNS) {
            for NarrowColumn { at, row_bytes, values } in columns {
                match row_bytes {
                    1 => spread::<1>(strip, width, *at, values, first),
                    2 => spread::<2>(strip, width, *at, values, first),
                    4 => spread::<4>(strip, width, *at, values, first),
                    8 => spread::<8>(strip, width, *at, values, first),
                    _ => unreachable!("narrow columns have rows of 1, 2, 4 or 8 bytes"),
                }
            }
        }
    }
    block
}

/// Writes the values of rows `first..` of a column to place `at` of each row of `strip`.
fn spread<const N: usize>(strip: &mut [u8], width: usize, at: usize, values: &[u8], first: usize) {
    let (values, _) = values.as_chunks::<N>();
    let values = &values[first..first + strip.len() / width];
    for (row, value) in strip.chunks_exact_mut(width).zip(values) {
        *row[at..].first_chunk_mut().expect("a row contains all narrow columns") = *value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_narrow_value_lands_at_its_place() {
        for widths in [&[][..], &[1], &[8, 8], &[4, 1, 8, 2, 1], &[[1, 8, 2, 4]; 10].concat()] {
            for rows in [0, 1, 31, 32, 33, 64, 101] {
                let value = |row: usize, column: usize, byte: usize| (row * 89 + column * 11 + byte) as u8;
                let of_row =
                    |row: usize, column: usize| (0..widths[column]).map(move |byte| value(row, column, byte));
                let mut at = 0;
                let mut columns = Vec::new();
                for (column, &row_bytes) in widths.iter().enumerate() {
                    let values: Vec<u8> = (0..rows).flat_map(|row| of_row(row, column)).collect();
                    columns.push(NarrowColumn { at, row_bytes, values: values.into() });
                    at += row_bytes;
                }
                let plain: Vec<u8> = (0..rows)
                    .flat_map(|row| (0..widths.len()).flat_map(move |column| of_row(row, column)))
                    .collect();
                assert_eq!(interleave_narrow(&columns, rows), plain);
            }
        }
    }

    #[test]
    fn every_value_lands_in_its_row_and_column() {
        for width in [0, 1, 2, 13, 15, 16, 17, 26, 40] {
            for rows in [0, 1, 7, 8, 9, 64, 101] {
                let value = |row: usize, column: usize| (row * 1000 + column) as u32;
                let columns: Vec<Vec<u32>> =
                    (0..width).map(|column| (0..rows).map(|row| value(row, column)).collect()).collect();
                let plain: Vec<u32> =
                    (0..rows).flat_map(|row| (0..width).map(move |column| value(row, column))).collect();
                assert_eq!(interleave(&columns, rows), plain);
            }
        }
    }
}
