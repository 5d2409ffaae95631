//! Rows ready to be packed: the transformed form of a raw Arrow chunk.

use std::sync::Arc;

use arrow_buffer::{Buffer, MutableBuffer};

/// Consecutive rows of one split, transformed.
///
/// Dense values, ids and narrow typed columns are row-major, so that drawing a row at random from a pool of chunks
/// touches few cache lines; packing transposes ids into the slot's `[F, B]`, and narrow columns into their own sections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// `[L][rows]`
    pub labels: Vec<Vec<f32>>,
    /// `[rows]`, if the job has row weights.
    pub weights: Option<Vec<f32>>,
    /// `[rows, D]`, row-major.
    pub dense: Vec<f32>,
    /// `[rows, F]`, row-major.
    pub ids: Vec<u32>,
    /// One column per ragged feature.
    pub ragged: Vec<RaggedColumn>,
    /// `[rows, W]`, row-major: the `W` bytes that a row has in all narrow typed columns ([`ChunkColumn::Narrow`]).
    pub narrow: Vec<u8>,
    /// Typed columns.
    pub columns: Vec<ChunkColumn>,
}

/// A multi-valued feature of a chunk: row `i` holds `values[offsets[i]..offsets[i + 1]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RaggedColumn {
    /// `[rows + 1]`
    pub offsets: Vec<u32>,
    /// The ids of all rows, concatenated.
    pub values: Vec<u32>,
    /// The weight of each value, if the feature is weighted.
    pub weights: Option<Vec<f32>>,
}

/// A typed column of a chunk: the bytes of its values, in native byte order. Buffers are those of the decoded data where that has the
/// same values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkColumn {
    /// As many values in every row, of 1, 2, 4 or 8 bytes in total, whatever their type and shape: a row is packed with one
    /// load and one store. Rows of 3, 5, 6 or 7 bytes need several, and are rare, so they are [`ChunkColumn::Fixed`].
    Narrow {
        /// The place of its bytes in each row of [`Chunk::narrow`].
        at: usize,
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// As many values in every row, of any other number of bytes.
    Fixed {
        /// Bytes of a row.
        row_bytes: usize,
        /// `[rows, row_bytes]`, row-major.
        values: Buffer,
    },
    /// Any number of values: row `i` holds the values `offsets[i]..offsets[i + 1]`.
    Ragged {
        /// Bytes of a value.
        value_bytes: usize,
        /// `[rows + 1]`, in values.
        offsets: Vec<u32>,
        /// The bytes of all rows, concatenated.
        values: Buffer,
    },
    /// Encoded images. They are decoded when they are packed.
    Images(EncodedImages),
}

/// The encoded images of a chunk, one per row, and where they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedImages {
    /// The file or part of a file, for messages.
    pub path: Arc<str>,
    /// The split.
    pub split: u32,
    /// The number of each row's record, `[rows]`, in the file or part.
    pub records: Vec<u64>,
    /// `[rows + 1]`, in bytes.
    pub offsets: Vec<u32>,
    /// The bytes of all images, concatenated.
    pub bytes: Vec<u8>,
}

impl Chunk {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.labels.first().map_or(0, Vec::len)
    }

    /// The bytes of its encoded images.
    pub fn image_bytes(&self) -> u64 {
        let of = |column: &ChunkColumn| match column {
            ChunkColumn::Images(images) => images.bytes.len() as u64,
            _ => 0,
        };
        self.columns.iter().map(of).sum()
    }

    /// The bytes of its typed columns with any number of values per row.
    pub fn ragged_bytes(&self) -> u64 {
        let of = |column: &ChunkColumn| match column {
            ChunkColumn::Ragged { values, .. } => values.len() as u64,
            _ => 0,
        };
        self.columns.iter().map(of).sum()
    }

    /// Sets the split that its rows are of.
    pub fn set_split(&mut self, number: u32) {
        for column in &mut self.columns {
            if let ChunkColumn::Images(EncodedImages { split, .. }) = column {
                *split = number;
            }
        }
    }

    /// The id of a row of a single-valued feature.
    ///
    /// # Panics
    /// When the chunk has no such row or feature.
    pub fn id(&self, row: u32, feature: u32) -> u32 {
        let features = self.ids.len() / self.rows();
        self.ids[row as usize * features + feature as usize]
    }

    /// The bytes of a row's values in a typed column.
    ///
    /// # Panics
    /// When the chunk has no such column or row.
    pub fn column_row(&self, column: usize, row: usize) -> &[u8] {
        match &self.columns[column] {
            &ChunkColumn::Narrow { at, row_bytes } => {
                let width = self.narrow.len() / self.rows();
                &self.narrow[row * width..][..width][at..][..row_bytes]
            }
            column => column.row(row),
        }
    }

    /// Removes the rows for which `keep` is false.
    ///
    /// # Panics
    /// If `keep` is shorter than the number of rows.
    pub fn retain_rows(&mut self, keep: &[bool]) {
        let rows = self.rows();
        for scalars in self.labels.iter_mut().chain(&mut self.weights) {
            retain(scalars, rows, keep);
        }
        retain(&mut self.dense, rows, keep);
        retain(&mut self.ids, rows, keep);
        retain(&mut self.narrow, rows, keep);
        for column in &mut self.ragged {
            column.retain_rows(keep);
        }
        for column in &mut self.columns {
            column.retain_rows(keep);
        }
    }

    /// Appends the rows of `more`, which must have the same columns and be of the same split, unless this chunk has no
    /// rows.
    pub fn append(&mut self, more: &Self) {
        if self.rows() == 0 {
            self.clone_from(more);
            return;
        }
        let scalars = self.labels.iter_mut().chain(&mut self.weights);
        for (scalars, more) in scalars.zip(more.labels.iter().chain(&more.weights)) {
            scalars.extend_from_slice(more);
        }
        self.dense.extend_from_slice(&more.dense);
        self.ids.extend_from_slice(&more.ids);
        self.narrow.extend_from_slice(&more.narrow);
        for (column, more) in self.ragged.iter_mut().zip(&more.ragged) {
            column.append(more);
        }
        for (column, more) in self.columns.iter_mut().zip(&more.columns) {
            column.append(more);
        }
    }

    /// Releases the memory that its rows do not need.
    pub fn shrink_to_fit(&mut self) {
        self.labels.iter_mut().chain(&mut self.weights).for_each(Vec::shrink_to_fit);
        self.dense.shrink_to_fit();
        self.ids.shrink_to_fit();
        self.narrow.shrink_to_fit();
        for RaggedColumn { offsets, values, weights } in &mut self.ragged {
            offsets.shrink_to_fit();
            values.shrink_to_fit();
            weights.iter_mut().for_each(Vec::shrink_to_fit);
        }
        for column in &mut self.columns {
            match column {
                ChunkColumn::Narrow { .. } => {}
                ChunkColumn::Fixed { values, .. } => values.shrink_to_fit(),
                ChunkColumn::Ragged { offsets, values, .. } => {
                    offsets.shrink_to_fit();
                    values.shrink_to_fit();
                }
                ChunkColumn::Images(EncodedImages { records, offsets, bytes, .. }) => {
                    records.shrink_to_fit();
                    offsets.shrink_to_fit();
                    bytes.shrink_to_fit();
                }
            }
        }
    }
}

impl RaggedColumn {
    fn append(&mut self, more: &Self) {
        let end = self.values.len() as u32;
        self.offsets.extend(more.offsets[1..].iter().map(|offset| end + offset));
        self.values.extend_from_slice(&more.values);
        if let (Some(weights), Some(more)) = (&mut self.weights, &more.weights) {
            weights.extend_from_slice(more);
        }
    }

    fn retain_rows(&mut self, keep: &[bool]) {
        let mut end = 0;
        let mut kept = 0;
        let mut start = 0;
        for (row, &keep) in (1..self.offsets.len()).zip(keep) {
            let next = self.offsets[row] as usize;
            if keep {
                self.values.copy_within(start..next, end);
                if let Some(weights) = &mut self.weights {
                    weights.copy_within(start..next, end);
                }
                end += next - start;
                kept += 1;
                // It does not exceed the previous offset.
                self.offsets[kept] = end as u32;
            }
            start = next;
        }
        self.offsets.truncate(kept + 1);
        self.values.truncate(end);
        if let Some(weights) = &mut self.weights {
            weights.truncate(end);
        }
    }
}

impl ChunkColumn {
    /// Whether a typed column with rows of so many bytes is narrow.
    pub(crate) fn is_narrow(row_bytes: usize) -> bool {
        matches!(row_bytes, 1 | 2 | 4 | 8)
    }

    /// The bytes of a row's values.
    ///
    /// # Panics
    /// When the column has no such row, or is narrow: the chunk has its values ([`Chunk::column_row`]).
    #[inline]
    pub fn row(&self, row: usize) -> &[u8] {
        match self {
            Self::Narrow { .. } => unreachable!("a narrow column"),
            Self::Fixed { row_bytes, values } => &values[row * row_bytes..][..*row_bytes],
            Self::Ragged { value_bytes, offsets, values } => {
                let [start, end] = [row, row + 1].map(|row| offsets[row] as usize * value_bytes);
                &values[start..end]
            }
            Self::Images(EncodedImages { offsets, bytes, .. }) => {
                &bytes[offsets[row] as usize..offsets[row + 1] as usize]
            }
        }
    }

    /// The number of values of a row of a column with offsets.
    ///
    /// # Panics
    /// When the column has no such row, or no offsets.
    #[inline]
    pub fn row_values(&self, row: u32) -> u32 {
        match self {
            Self::Ragged { offsets, .. } => offsets[row as usize + 1] - offsets[row as usize],
            _ => unreachable!("a column without offsets"),
        }
    }

    fn append(&mut self, more: &Self) {
        match (self, more) {
            (Self::Narrow { .. }, Self::Narrow { .. }) => {}
            (Self::Fixed { values, .. }, Self::Fixed { values: more, .. }) => {
                edit(values, |values| values.extend_from_slice(more.as_slice()));
            }
            (
                Self::Ragged { offsets, values, .. },
                Self::Ragged { offsets: more_offsets, values: more, .. },
            ) => {
                let end = offsets[offsets.len() - 1];
                offsets.extend(more_offsets[1..].iter().map(|offset| end + offset));
                edit(values, |values| values.extend_from_slice(more.as_slice()));
            }
            (Self::Images(images), Self::Images(more)) => {
                let end = images.offsets[images.offsets.len() - 1];
                images.records.extend_from_slice(&more.records);
                images.offsets.extend(more.offsets[1..].iter().map(|offset| end + offset));
                images.bytes.extend_from_slice(&more.bytes);
            }
            _ => unreachable!("chunks of one transform have the same columns"),
        }
    }

    fn retain_rows(&mut self, keep: &[bool]) {
        match self {
            Self::Narrow { .. } => {}
            Self::Fixed { row_bytes, values } => {
                let rows = values.len() / *row_bytes;
                edit(values, |values| {
                    let kept = move_retained(values, rows, keep);
                    values.truncate(kept);
                });
            }
            Self::Ragged { value_bytes, offsets, values } => edit(values, |values| {
                let kept = retain_varying(*value_bytes, offsets, values, keep);
                values.truncate(kept);
            }),
            Self::Images(EncodedImages { records, offsets, bytes, .. }) => {
                let rows = records.len();
                retain(records, rows, keep);
                let kept = retain_varying(1, offsets, bytes, keep);
                bytes.truncate(kept);
            }
        }
    }
}

/// Changes the bytes of a column in place, or a copy of them if they are shared.
fn edit(values: &mut Buffer, change: impl FnOnce(&mut MutableBuffer)) {
    let own = std::mem::take(values).into_mutable();
    let mut own = own.unwrap_or_else(|shared| shared.to_vec().into());
    change(&mut own);
    *values = own.into();
}

/// Moves the retained rows of a column with offsets to its start. Returns their bytes.
fn retain_varying(value_bytes: usize, offsets: &mut Vec<u32>, values: &mut [u8], keep: &[bool]) -> usize {
    let (mut end, mut kept, mut start) = (0, 0, 0);
    for (row, &keep) in (1..offsets.len()).zip(keep) {
        let next = offsets[row];
        if keep {
            let [from, to] = [start, next].map(|offset| offset as usize * value_bytes);
            values.copy_within(from..to, end as usize * value_bytes);
            end += next - start;
            kept += 1;
            // It does not exceed the previous offset.
            offsets[kept] = end;
        }
        start = next;
    }
    offsets.truncate(kept + 1);
    end as usize * value_bytes
}

/// Retains some rows of a row-major block.
fn retain<T: Copy>(values: &mut Vec<T>, rows: usize, keep: &[bool]) {
    let kept = move_retained(values, rows, keep);
    values.truncate(kept);
}

/// Moves the retained rows of a row-major block to its start. Returns the number of their values.
fn move_retained<T: Copy>(values: &mut [T], rows: usize, keep: &[bool]) -> usize {
    let width = values.len().checked_div(rows).unwrap_or(0);
    let mut end = 0;
    for row in (0..rows).filter(|&row| keep[row]) {
        values.copy_within(row * width..(row + 1) * width, end);
        end += width;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_rows_preserves_the_others() {
        let mut chunk = Chunk {
            labels: vec![vec![0.0, 1.0, 2.0], vec![0.5, 1.5, 2.5], vec![0.25, 1.25, 2.25]],
            weights: Some(vec![0.5, 1.5, 2.5]),
            dense: vec![0.0, 0.1, 1.0, 1.1, 2.0, 2.1],
            ids: vec![0, 10, 20],
            ragged: vec![
                RaggedColumn { offsets: vec![0, 2, 3, 5], values: vec![1, 2, 3, 4, 5], weights: None },
                RaggedColumn {
                    offsets: vec![0, 1, 3, 4],
                    values: vec![6, 7, 8, 9],
                    weights: Some(vec![0.6, 0.7, 0.8, 0.9]),
                },
            ],
            narrow: vec![20, 21, 22, 23, 24, 25, 26, 27, 28],
            columns: vec![
                fixed(3, &[10, 11, 12, 13, 14, 15, 16, 17, 18]),
                ragged(2, &[0, 1, 3, 4], &[1, 2, 3, 4, 5, 6, 7, 8]),
                images(&[5, 6, 8], &[0, 1, 3, 6], &[1, 2, 2, 3, 3, 3]),
                ChunkColumn::Narrow { at: 0, row_bytes: 2 },
                ChunkColumn::Narrow { at: 2, row_bytes: 1 },
            ],
        };
        assert_eq!(chunk.image_bytes(), 6);
        chunk.retain_rows(&[true, false, true]);
        let expected = Chunk {
            labels: vec![vec![0.0, 2.0], vec![0.5, 2.5], vec![0.25, 2.25]],
            weights: Some(vec![0.5, 2.5]),
            dense: vec![0.0, 0.1, 2.0, 2.1],
            ids: vec![0, 20],
            ragged: vec![
                RaggedColumn { offsets: vec![0, 2, 4], values: vec![1, 2, 4, 5], weights: None },
                RaggedColumn { offsets: vec![0, 1, 2], values: vec![6, 9], weights: Some(vec![0.6, 0.9]) },
            ],
            narrow: vec![20, 21, 22, 26, 27, 28],
            columns: vec![
                fixed(3, &[10, 11, 12, 16, 17, 18]),
                ragged(2, &[0, 1, 2], &[1, 2, 7, 8]),
                images(&[5, 8], &[0, 1, 4], &[1, 3, 3, 3]),
                ChunkColumn::Narrow { at: 0, row_bytes: 2 },
                ChunkColumn::Narrow { at: 2, row_bytes: 1 },
            ],
        };
        assert_eq!(chunk, expected);
        let of_row = |row| (0..5).map(|column| chunk.column_row(column, row)).collect::<Vec<_>>();
        assert_eq!(of_row(1), [&[16, 17, 18][..], &[7, 8], &[3, 3, 3], &[26, 27], &[28]]);
        chunk.retain_rows(&[false, false]);
        assert_eq!(chunk.rows(), 0);
        assert_eq!(chunk.ragged[0], RaggedColumn { offsets: vec![0], values: vec![], weights: None });
        assert_eq!(chunk.ragged[1], RaggedColumn { offsets: vec![0], values: vec![], weights: Some(vec![]) });
        assert!(chunk.narrow.is_empty());
        assert_eq!(chunk.columns[0], fixed(3, &[]));
        assert_eq!(chunk.columns[1], ragged(2, &[0], &[]));
        assert_eq!(chunk.columns[2], images(&[], &[0], &[]));
    }

    fn images(records: &[u64], offsets: &[u32], bytes: &[u8]) -> ChunkColumn {
        ChunkColumn::Images(EncodedImages {
            path: "file".into(),
            split: 0,
            records: records.to_vec(),
            offsets: offsets.to_vec(),
            bytes: bytes.to_vec(),
        })
    }

    #[test]
    fn appended_images_keep_their_records() {
        let part = |column| Chunk { labels: vec![vec![0.0]], columns: vec![column], ..Chunk::default() };
        let mut chunk = part(images(&[3], &[0, 2], &[1, 2]));
        chunk.append(&part(images(&[9], &[0, 1], &[3])));
        chunk.set_split(4);
        let ChunkColumn::Images(found) = &chunk.columns[0] else { panic!("images") };
        assert_eq!((found.split, &found.records[..], &found.offsets[..]), (4, &[3, 9][..], &[0, 2, 3][..]));
        assert_eq!(chunk.columns[0].row(1), [3]);
    }

    fn fixed(row_bytes: usize, values: &[u8]) -> ChunkColumn {
        ChunkColumn::Fixed { row_bytes, values: values.to_vec().into() }
    }

    fn ragged(value_bytes: usize, offsets: &[u32], values: &[u8]) -> ChunkColumn {
        ChunkColumn::Ragged { value_bytes, offsets: offsets.to_vec(), values: values.to_vec().into() }
    }

    #[test]
    fn appended_rows_follow_in_every_column() {
        // The narrow column has the numbers of the fixed one, in reverse.
        let part = |labels: &[f32], numbers: &[u8], column| Chunk {
            labels: vec![labels.to_vec()],
            narrow: numbers.iter().map(|value| 100 - value).collect(),
            columns: vec![fixed(3, numbers), column, ChunkColumn::Narrow { at: 1, row_bytes: 2 }],
            ..Chunk::default()
        };
        let mut chunk = Chunk::default();
        chunk.append(&part(
            &[0.0, 0.0],
            &[1, 2, 3, 4, 5, 6],
            ragged(4, &[0, 2, 2], &[1, 1, 1, 1, 2, 2, 2, 2]),
        ));
        chunk.append(&part(&[0.0, 0.0], &[7, 8, 9, 10, 11, 12], ragged(4, &[0, 0, 1], &[3, 3, 3, 3])));
        let values: Vec<u8> = [1, 2, 3].iter().flat_map(|&value| [value; 4]).collect();
        let numbers: Vec<u8> = (1..=12).collect();
        assert_eq!(chunk, part(&[0.0; 4], &numbers, ragged(4, &[0, 2, 2, 2, 3], &values)));
        chunk.shrink_to_fit();
        assert_eq!(chunk.rows(), 4);
        let rows: Vec<&[u8]> = (0..4).map(|row| chunk.columns[1].row(row)).collect();
        assert_eq!(rows, [&values[..8], &[], &[], &values[8..]]);
        assert_eq!(chunk.columns[0].row(2), [7, 8, 9]);
        assert_eq!(chunk.column_row(2, 2), [92, 91]);
    }
}
