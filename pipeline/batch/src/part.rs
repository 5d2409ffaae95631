//! Parts of a global batch, cut from it: what the packer deals straight into the rings of several workers.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::{BatchBuffer, BatchHeader, BatchRef, ColumnMut, ColumnRef};
use crate::layout::SlotLayout;
use crate::schema::BatchSchema;

impl BatchBuffer {
    /// The part of `batch` that rank `rank` of `ranks` has, as [`BatchSchema::part`] defines it, with the batch's position.
    ///
    /// # Panics
    /// When `batch` is not a whole global batch, or there is no such rank.
    pub fn part_of(batch: BatchRef<'_>, rank: u32, ranks: u32) -> Self {
        assert!(rank < ranks, "a rank of {ranks}");
        let (all, schema) = (batch.header().rows, batch.layout().schema().part(ranks));
        let start = rank.saturating_mul(schema.rows).min(all);
        let most = schema.rows.min(all);
        Self::cut(batch, &schema, start..all.min(start.saturating_add(schema.rows)), most)
    }

    /// The parts of `batch` with these numbers of consecutive rows, in slots with room for the whole batch, with the batch's
    /// position.
    ///
    /// # Panics
    /// When `batch` is not a whole global batch, or has another number of rows.
    pub fn parts_of(batch: BatchRef<'_>, rows: &[u32]) -> Vec<Self> {
        let (schema, most) = (batch.layout().schema(), rows.iter().copied().max().unwrap_or(0));
        let mut end = 0;
        let parts = rows.iter().map(|rows| {
            let start = end;
            end += rows;
            Self::cut(batch, schema, start..end, most)
        });
        let parts = parts.collect();
        assert_eq!(end, batch.header().rows, "the rows of all parts");
        parts
    }

    /// The part of `batch` with `rows`, in a slot of `schema`. The fullest part has `most_rows` rows.
    fn cut(batch: BatchRef<'_>, schema: &BatchSchema, rows: Range<u32>, most_rows: u32) -> Self {
        let header = batch.header();
        assert_eq!((header.first_row, header.rows), (0, header.global_rows), "a whole batch");
        let layout = SlotLayout::of(schema).expect("no larger layout than the batch's");
        let mut part = Self::new(Arc::new(layout));
        let mut slot = part.as_mut();
        let (first_row, count) = (rows.start, rows.end - rows.start);
        slot.set_header(&BatchHeader { rows: count, first_row, most_rows, ..header });
        slot.set_position(batch.position());

        let (stride, first, count) = (schema.rows as usize, first_row as usize, count as usize);
        let mut sections = slot.sections();
        for label in 0..schema.label_count() {
            sections.labels[label * stride..][..count]
                .copy_from_slice(&batch.labels(label)[first..][..count]);
        }
        if let (Some(to), Some(weights)) = (&mut sections.weights, batch.weights()) {
            to[..count].copy_from_slice(&weights[first..][..count]);
        }
        let columns = schema.dense.len();
        let dense = &batch.dense()[first * columns..][..count * columns];
        sections.dense[..dense.len()].copy_from_slice(dense);
        for feature in 0..schema.ids.len() {
            sections.ids[feature * stride..][..count].copy_from_slice(&batch.ids(feature)[first..][..count]);
        }
        for (feature, (offsets, values)) in sections.ragged.iter_mut().enumerate() {
            let (of_batch, all) = batch.ragged(feature);
            let of_batch = &of_batch[first..=first + count];
            let (start, end) = (of_batch[0] as usize, of_batch[count] as usize);
            offsets.iter_mut().zip(of_batch).for_each(|(offset, &place)| *offset = place - of_batch[0]);
            values[..end - start].copy_from_slice(&all[start..end]);
            let weights = (&mut sections.ragged_weights[feature], batch.ragged_weights(feature));
            if let (Some(to), Some(weights)) = weights {
                to[..end - start].copy_from_slice(&weights[start..end]);
            }
        }
        for (column, ColumnMut { offsets, values: to }) in sections.columns.into_iter().enumerate() {
            let ColumnRef { offsets: of_batch, values } = batch.column(column);
            let range = match (offsets, of_batch) {
                (Some(offsets), Some(of_batch)) => {
                    let bytes = schema.columns[column].kind.dtype().bytes();
                    let of_batch = &of_batch[first..=first + count];
                    offsets
                        .iter_mut()
                        .zip(of_batch)
                        .for_each(|(offset, &place)| *offset = place - of_batch[0]);
                    of_batch[0] as usize * bytes..of_batch[count] as usize * bytes
                }
                _ => {
                    let row = to.len() / stride;
                    first * row..(first + count) * row
                }
            };
            let values = &values[range];
            to[..values.len()].copy_from_slice(values);
        }
        slot.pad_columns(count);
        part
    }
}
