//! Packing: gathers rows from chunks into a slot. The only copy between decoding and a device.
//!
//! Rows are scattered over the shuffle pool, so each causes cache misses, which the loop overlaps: it processes rows
//! in blocks and prefetches the next block while it packs one. The ids of a block are copied, one contiguous run
//! per row, into a tile that fits in the L1 cache; the tile is then transposed into the slot's `[F, B]`, 32
//! values of a feature at a time, which are two whole cache lines of the slot. Narrow typed columns are packed in the same
//! way, each into its own section.

use std::sync::Arc;

use millstream_batch::cache_lines::{prefetch, prefetch_line};
use millstream_batch::{BatchMut, ColumnMut, Sections};

use crate::chunk::{Chunk, ChunkColumn, RaggedColumn};

/// A row to pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRef {
    /// Index of its chunk.
    pub chunk: u32,
    /// Index of the row in the chunk.
    pub row: u32,
}

/// Rows per block: the number of ids in two cache lines.
const BLOCK: usize = 32;

/// Gathers rows into slots of one schema, reusing its scratch memory.
#[derive(Debug, Default)]
pub struct Packer {
    /// `[BLOCK, F]`
    tile: Vec<u32>,
    /// `[BLOCK, W]`
    narrow_tile: Vec<u8>,
    /// The narrow columns of the chunks.
    narrow: Vec<NarrowColumn>,
}

/// A narrow typed column.
#[derive(Clone, Copy, Debug)]
struct NarrowColumn {
    /// Its number among the typed columns.
    number: usize,
    /// The place of its bytes in a row of the chunks' block.
    at: usize,
    row_bytes: usize,
}

impl Packer {
    /// Copies `rows` of `chunks` into `batch`, starting at row `at`. The rows before it must already be packed.
    ///
    /// # Panics
    /// If a row does not exist, the rows do not fit, or the chunks and the batch differ in shape.
    pub fn pack(&mut self, batch: &mut BatchMut<'_>, at: usize, chunks: &[Arc<Chunk>], rows: &[RowRef]) {
        let schema = batch.layout().schema();
        let (capacity, dense, ids) = (schema.rows as usize, schema.dense.len(), schema.ids.len());
        assert!(at + rows.len() <= capacity, "more rows than the slot holds");
        let mut sections = batch.sections();
        self.tile.resize(BLOCK * ids, 0);
        let first = rows.first().map(|row| &*chunks[row.chunk as usize]);
        let narrow = self.prepare_narrow(first, &sections.columns, capacity);
        let mut following = rows.chunks(BLOCK).skip(1);
        for (block, rows) in rows.chunks(BLOCK).enumerate() {
            for &RowRef { chunk, row } in following.next().into_iter().flatten() {
                let (chunk, row) = (&chunks[chunk as usize], row as usize);
                prefetch(&chunk.dense[row * dense..][..dense]);
                prefetch(&chunk.ids[row * ids..][..ids]);
                prefetch(&chunk.narrow[row * narrow..][..narrow]);
                chunk.labels.iter().chain(&chunk.weights).for_each(|values| prefetch_line(&values[row]));
            }
            let at = at + block * BLOCK;
            scalars(&mut sections, capacity, at, chunks, rows);
            if dense > 0 {
                let out = sections.dense[at * dense..].chunks_exact_mut(dense);
                for (out, &RowRef { chunk, row }) in out.zip(rows) {
                    out.copy_from_slice(&chunks[chunk as usize].dense[row as usize * dense..][..dense]);
                }
            }
            if ids > 0 {
                self.pack_ids(sections.ids, capacity, at, chunks, rows);
            }
            if narrow > 0 {
                self.pack_narrow(&mut sections.columns, at, chunks, rows);
            }
        }
        let weights = sections.ragged_weights.iter_mut();
        for (feature, ((offsets, values), weights)) in sections.ragged.iter_mut().zip(weights).enumerate() {
            let of_rows = rows.iter().map(|r| (&chunks[r.chunk as usize].ragged[feature], r.row));
            if let Some(weights) = weights {
                let first = if at == 0 { 0 } else { offsets[at] as usize };
                pack_weights(&mut weights[first..], of_rows.clone());
            }
            pack_ragged(offsets, values, at, of_rows);
        }
        for (number, column) in sections.columns.iter_mut().enumerate() {
            let of_rows =
                |RowRef { chunk, row }: RowRef| (&chunks[chunk as usize].columns[number], row as usize);
            match (&mut column.offsets, first.map(|chunk| &chunk.columns[number])) {
                // Narrow columns are packed already, and images are decoded into the slot afterwards.
                (None, None | Some(ChunkColumn::Narrow { .. } | ChunkColumn::Images(_))) => {}
                (None, Some(_)) => {
                    let row_bytes = column.values.len() / capacity;
                    pack_wide(&mut column.values[at * row_bytes..], row_bytes, rows, of_rows);
                }
                (Some(offsets), _) => pack_varying(offsets, column.values, at, rows, of_rows),
            }
        }
    }

    /// Notes the narrow columns of `chunk`, which are those of all chunks. Returns the bytes that a row has in them.
    fn prepare_narrow(&mut self, chunk: Option<&Chunk>, columns: &[ColumnMut<'_>], capacity: usize) -> usize {
        self.narrow.clear();
        for (number, column) in chunk.iter().flat_map(|chunk| &chunk.columns).enumerate() {
            if let &ChunkColumn::Narrow { at, row_bytes } = column {
                let slot_bytes = columns[number].values.len();
                assert_eq!(slot_bytes, capacity * row_bytes, "chunks have the batch's columns");
                self.narrow.push(NarrowColumn { number, at, row_bytes });
            }
        }
        let width = self.narrow.iter().map(|column| column.row_bytes).sum();
        self.narrow_tile.resize(BLOCK * width, 0);
        width
    }

    /// Packs the narrow columns of one block of at most [`BLOCK`] rows.
    fn pack_narrow(
        &mut self,
        columns: &mut [ColumnMut<'_>],
        at: usize,
        chunks: &[Arc<Chunk>],
        rows: &[RowRef],
    ) {
        let width = self.narrow_tile.len() / BLOCK;
        for (tile, &RowRef { chunk, row }) in self.narrow_tile.chunks_exact_mut(width).zip(rows) {
            tile.copy_from_slice(&chunks[chunk as usize].narrow[row as usize * width..][..width]);
        }
        let tile = &self.narrow_tile[..rows.len() * width];
        for &NarrowColumn { number, at: place, row_bytes } in &self.narrow {
            let out = &mut columns[number].values[at * row_bytes..];
            match row_bytes {
                1 => transpose::<1>(out, tile, width, place),
                2 => transpose::<2>(out, tile, width, place),
                4 => transpose::<4>(out, tile, width, place),
                8 => transpose::<8>(out, tile, width, place),
                _ => unreachable!("narrow columns have rows of 1, 2, 4 or 8 bytes"),
            }
        }
    }

    /// Packs the ids of one block of at most [`BLOCK`] rows; `out` is `[F, capacity]`.
    fn pack_ids(
        &mut self,
        out: &mut [u32],
        capacity: usize,
        at: usize,
        chunks: &[Arc<Chunk>],
        rows: &[RowRef],
    ) {
        let width = self.tile.len() / BLOCK;
        for (tile, &RowRef { chunk, row }) in self.tile.chunks_exact_mut(width).zip(rows) {
            tile.copy_from_slice(&chunks[chunk as usize].ids[row as usize * width..][..width]);
        }
        for (feature, out) in out.chunks_exact_mut(capacity).enumerate() {
            let out = &mut out[at..at + rows.len()];
            let column = &self.tile[feature..];
            if let Ok(out) = <&mut [u32; BLOCK]>::try_from(&mut *out) {
                // A fixed length lets the compiler remove the bounds checks in the loop.
                let column = &column[..(BLOCK - 1) * width + 1];
                for (i, out) in out.iter_mut().enumerate() {
                    *out = column[i * width];
                }
            } else {
                for (out, &id) in out.iter_mut().zip(column.iter().step_by(width)) {
                    *out = id;
                }
            }
        }
    }
}

/// Packs the labels and row weights of one block.
fn scalars(sections: &mut Sections<'_>, capacity: usize, at: usize, chunks: &[Arc<Chunk>], rows: &[RowRef]) {
    for (label, out) in sections.labels.chunks_exact_mut(capacity).enumerate() {
        for (out, &RowRef { chunk, row }) in out[at..].iter_mut().zip(rows) {
            *out = chunks[chunk as usize].labels[label][row as usize];
        }
    }
    if let Some(weights) = &mut sections.weights {
        for (out, &RowRef { chunk, row }) in weights[at..].iter_mut().zip(rows) {
            *out = match &chunks[chunk as usize].weights {
                Some(weights) => weights[row as usize],
                None => 1.0,
            };
        }
    }
}

/// Packs the weights of the values that [`pack_ragged`] packs.
fn pack_weights<'a>(out: &mut [f32], rows: impl Iterator<Item = (&'a RaggedColumn, u32)>) {
    let mut end = 0;
    for (column, row) in rows {
        let values = column.offsets[row as usize] as usize..column.offsets[row as usize + 1] as usize;
        let weights = column.weights.as_ref().expect("chunks have the batch's features");
        out[end..end + values.len()].copy_from_slice(&weights[values.clone()]);
        end += values.len();
    }
}

fn pack_ragged<'a>(
    offsets: &mut [u32],
    values: &mut [u32],
    at: usize,
    rows: impl Iterator<Item = (&'a RaggedColumn, u32)>,
) {
    if at == 0 {
        offsets[0] = 0;
    }
    let mut end = offsets[at] as usize;
    for (offset, (column, row)) in offsets[at + 1..].iter_mut().zip(rows) {
        let row = row as usize;
        let ids = &column.values[column.offsets[row] as usize..column.offsets[row + 1] as usize];
        values[end..end + ids.len()].copy_from_slice(ids);
        end += ids.len();
        *offset = end as u32;
    }
}

/// Rows of a typed column whose bytes are prefetched before they are copied, and the bytes of each: the processor's own
/// prefetcher loads the rest.
const AHEAD: usize = 8;
const PREFETCH_BYTES: usize = 256;

/// Writes the `N` bytes at `place` of each row of `tile` to `out`; rows have `width` bytes.
fn transpose<const N: usize>(out: &mut [u8], tile: &[u8], width: usize, place: usize) {
    let (out, _) = out.as_chunks_mut::<N>();
    for (out, row) in out.iter_mut().zip(tile.chunks_exact(width)) {
        *out = *row[place..].first_chunk().expect("a row contains all narrow columns");
    }
}

/// Packs rows of a typed column of one shape.
fn pack_wide<'a>(
    out: &mut [u8],
    row_bytes: usize,
    rows: &[RowRef],
    of_row: impl Fn(RowRef) -> (&'a ChunkColumn, usize),
) {
    for (i, (out, &row)) in out.chunks_exact_mut(row_bytes).zip(rows).enumerate() {
        prefetch_values(rows.get(i + AHEAD), &of_row);
        let (column, row) = of_row(row);
        out.copy_from_slice(column.row(row));
    }
}

/// Packs rows of a typed column with offsets.
fn pack_varying<'a>(
    offsets: &mut [u32],
    out: &mut [u8],
    at: usize,
    rows: &[RowRef],
    of_row: impl Fn(RowRef) -> (&'a ChunkColumn, usize),
) {
    if at == 0 {
        offsets[0] = 0;
    }
    let mut end = offsets[at] as usize;
    for (i, (offset, &row)) in offsets[at + 1..].iter_mut().zip(rows).enumerate() {
        if let Some((ChunkColumn::Ragged { offsets, .. }, row)) =
            rows.get(i + 2 * AHEAD).copied().map(&of_row)
        {
            prefetch_line(&offsets[row]);
        }
        prefetch_values(rows.get(i + AHEAD), &of_row);
        let (column, row) = of_row(row);
        let ChunkColumn::Ragged { value_bytes, offsets: of_chunk, .. } = column else {
            unreachable!("chunks have the batch's columns")
        };
        let values = column.row(row);
        out[end * value_bytes..][..values.len()].copy_from_slice(values);
        end += (of_chunk[row + 1] - of_chunk[row]) as usize;
        *offset = end as u32;
    }
}

fn prefetch_values<'a>(row: Option<&RowRef>, of_row: impl Fn(RowRef) -> (&'a ChunkColumn, usize)) {
    if let Some((column, row)) = row.copied().map(of_row) {
        let values = column.row(row);
        prefetch(&values[..values.len().min(PREFETCH_BYTES)]);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_batch::{
        BatchBuffer, BatchHeader, BatchRef, BatchSchema, Column, ColumnKind, ColumnRef, Dtype, IdFeature,
        RaggedFeature, SlotLayout,
    };
    use proptest::prelude::*;

    use super::*;

    const RAGGED_MAX: u32 = 3;

    const KINDS: usize = 9;

    fn kinds() -> [ColumnKind; KINDS] {
        [
            ColumnKind::Ragged { dtype: Dtype::Int16, maximum: RAGGED_MAX },
            ColumnKind::Fixed { dtype: Dtype::Float32, shape: Vec::new() },
            ColumnKind::Raw { maximum: RAGGED_MAX },
            ColumnKind::Fixed { dtype: Dtype::Uint8, shape: Vec::new() },
            ColumnKind::Fixed { dtype: Dtype::Float16, shape: vec![1] },
            ColumnKind::Fixed { dtype: Dtype::Int64, shape: Vec::new() },
            ColumnKind::Fixed { dtype: Dtype::Int32, shape: vec![3] },
            ColumnKind::Fixed { dtype: Dtype::Float32, shape: vec![2] },
            ColumnKind::Fixed { dtype: Dtype::Uint16, shape: vec![3] },
        ]
    }

    fn schema(
        rows: u32,
        labels: usize,
        dense: usize,
        ids: usize,
        ragged: usize,
        columns: usize,
        weighted: bool,
    ) -> BatchSchema {
        let names = |n: usize| (0..n).map(|i| i.to_string());
        BatchSchema {
            rows,
            labels: names(labels).collect(),
            weighted,
            dense: names(dense).collect(),
            ids: names(ids).map(|name| IdFeature { name, cardinality: u32::MAX }).collect(),
            ragged: names(ragged)
                .map(|name| {
                    let weighted = name == "1";
                    RaggedFeature { name, cardinality: u32::MAX, maximum: RAGGED_MAX, weighted }
                })
                .collect(),
            columns: kinds()
                .into_iter()
                .zip(names(columns))
                .map(|(kind, name)| Column { name, kind })
                .collect(),
            ..BatchSchema::default()
        }
    }

    /// A chunk with distinct values.
    fn chunk(schema: &BatchSchema, number: u32, rows: u32) -> Chunk {
        let mut next = number << 20;
        let mut unique = move || {
            next += 1;
            next
        };
        let mut many = |n: usize| (0..n).map(|_| unique()).collect::<Vec<u32>>();
        let floats = |ids: Vec<u32>| ids.into_iter().map(|id| id as f32).collect::<Vec<f32>>();
        let n = rows as usize;
        let fixed = |kind: &ColumnKind| (!kind.has_offsets()).then(|| kind.row_bytes() as usize);
        let is_narrow = |&row_bytes: &usize| ChunkColumn::is_narrow(row_bytes);
        let width: usize =
            schema.columns.iter().filter_map(|column| fixed(&column.kind).filter(is_narrow)).sum();
        // The last column is the first in a row.
        let mut place = width;
        let bytes = |ids: Vec<u32>| -> Vec<u8> {
            ids.into_iter().map(|id| (id.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect()
        };
        Chunk {
            labels: (0..schema.label_count()).map(|_| floats(many(n))).collect(),
            weights: schema.weighted.then(|| floats(many(n))),
            dense: floats(many(n * schema.dense.len())),
            ids: many(n * schema.ids.len()),
            ragged: (0..schema.ragged.len() as u32)
                .map(|feature| {
                    let offsets = offsets_of(rows, number + feature);
                    let values = many(offsets[n] as usize);
                    let weighted = schema.ragged[feature as usize].weighted;
                    let weights = weighted.then(|| floats(many(offsets[n] as usize)));
                    RaggedColumn { offsets, values, weights }
                })
                .collect(),
            narrow: bytes(many(n * width)),
            columns: (0..)
                .zip(&schema.columns)
                .map(|(feature, Column { kind, .. })| match fixed(kind) {
                    Some(row_bytes) if is_narrow(&row_bytes) => {
                        place -= row_bytes;
                        ChunkColumn::Narrow { at: place, row_bytes }
                    }
                    Some(row_bytes) => {
                        ChunkColumn::Fixed { row_bytes, values: bytes(many(n * row_bytes)).into() }
                    }
                    None => {
                        let (value_bytes, offsets) =
                            (kind.dtype().bytes(), offsets_of(rows, number + feature));
                        let values = bytes(many(offsets[n] as usize * value_bytes)).into();
                        ChunkColumn::Ragged { value_bytes, offsets, values }
                    }
                })
                .collect(),
        }
    }

    /// Offsets of up to [`RAGGED_MAX`] values per row.
    fn offsets_of(rows: u32, shift: u32) -> Vec<u32> {
        let lengths = (0..rows).map(|row| (row * 7 + shift) % (RAGGED_MAX + 1));
        let ends = lengths.scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    /// Asserts that `batch` contains `rows` of `chunks`.
    fn assert_holds(batch: BatchRef<'_>, chunks: &[Chunk], rows: &[RowRef]) {
        let schema = batch.layout().schema();
        assert_eq!(batch.rows(), rows.len());
        let of = |i: usize| (&chunks[rows[i].chunk as usize], rows[i].row as usize);
        for i in 0..rows.len() {
            let (chunk, row) = of(i);
            for label in 0..schema.label_count() {
                assert_eq!(batch.labels(label)[i], chunk.labels[label][row]);
            }
            assert_eq!(batch.weights().map(|w| w[i]), chunk.weights.as_ref().map(|w| w[row]));
            for d in 0..schema.dense.len() {
                let width = schema.dense.len();
                assert_eq!(batch.dense()[i * width + d], chunk.dense[row * width + d]);
            }
            for f in 0..schema.ids.len() {
                assert_eq!(batch.ids(f)[i], chunk.ids[row * schema.ids.len() + f]);
            }
            for (r, column) in chunk.ragged.iter().enumerate() {
                let (offsets, values) = batch.ragged(r);
                let packed = &values[offsets[i] as usize..offsets[i + 1] as usize];
                let source = &column.values[column.offsets[row] as usize..column.offsets[row + 1] as usize];
                assert_eq!(packed, source);
                let weights = batch.ragged_weights(r);
                let packed = weights.map(|weights| &weights[offsets[i] as usize..offsets[i + 1] as usize]);
                let source = column.offsets[row] as usize..column.offsets[row + 1] as usize;
                assert_eq!(packed, column.weights.as_ref().map(|weights| &weights[source]));
            }
            for c in 0..chunk.columns.len() {
                let kind = &schema.columns[c].kind;
                let ColumnRef { offsets, values } = batch.column(c);
                let of_row = |i: usize| match offsets {
                    Some(offsets) => offsets[i] as usize * kind.dtype().bytes(),
                    None => i * kind.row_bytes() as usize,
                };
                assert_eq!(values[of_row(i)..of_row(i + 1)], *chunk.column_row(c, row));
            }
        }
    }

    proptest! {
        #[test]
        fn matches_the_reference(
            capacity in 1_u32..70, labels in 0_usize..4, dense in 0_usize..20, ids in 0_usize..30, ragged in 0_usize..3,
            columns in 0_usize..=KINDS, weighted: bool,
            lengths in prop::collection::vec(1_u32..30, 1..4),
            draws in prop::collection::vec((any::<u32>(), any::<u32>()), 0..70), cut in 0_usize..70,
        ) {
            let schema = schema(capacity, labels, dense, ids, ragged, columns, weighted);
            let chunks: Vec<Chunk> =
                (0..).zip(&lengths).map(|(number, &rows)| chunk(&schema, number, rows)).collect();
            let rows: Vec<RowRef> = draws
                .iter()
                .take(capacity as usize)
                .map(|&(a, b)| {
                    let chunk = a % lengths.len() as u32;
                    RowRef { chunk, row: b % lengths[chunk as usize] }
                })
                .collect();
            let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema).unwrap()));
            let mut batch = buffer.as_mut();
            let held: Vec<Arc<Chunk>> = chunks.iter().cloned().map(Arc::new).collect();
            let (first, second) = rows.split_at(cut.min(rows.len()));
            let mut packer = Packer::default();
            packer.pack(&mut batch, 0, &held, first);
            packer.pack(&mut batch, first.len(), &held, second);
            batch.set_header(&BatchHeader::train(rows.len() as u32));
            batch.pad_columns(rows.len());
            assert_holds(buffer.as_ref(), &chunks, &rows);
        }
    }
}
