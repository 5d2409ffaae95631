//! Interleaves columns into rows: features are computed by column, but a chunk stores them by row.
//!
//! Writing each column directly would touch every cache line of the block once per column. The block is
//! therefore written in tiles of a few rows by one cache line of columns. The source columns are read
//! sequentially and stay in registers and L1.

/// Rows per tile.
const ROWS: usize = 8;

/// Columns per tile: one cache line of four-byte values.
const COLUMNS: usize = 16;

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

#[cfg(test)]
mod tests {
    use super::*;

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
