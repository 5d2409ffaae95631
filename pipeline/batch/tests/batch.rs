//! Batches round-trip through a slot, over schemas of all shapes.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use millstream_batch::{
    BatchBuffer, BatchHeader, BatchRef, BatchSchema, Column, ColumnKind, ColumnRef, Dtype, IdFeature,
    RaggedFeature, SlotLayout,
};
use proptest::prelude::*;
use support::{check, fill, schema};

fn kinds() -> impl Strategy<Value = ColumnKind> {
    let dtype = || prop::sample::select(&Dtype::ALL[..]);
    prop_oneof![
        (dtype(), prop::collection::vec(1_u32..4, 0..3))
            .prop_map(|(dtype, shape)| ColumnKind::Fixed { dtype, shape }),
        (dtype(), 1_u32..5).prop_map(|(dtype, maximum)| ColumnKind::Ragged { dtype, maximum }),
        (1_u32..20).prop_map(|maximum| ColumnKind::Raw { maximum }),
    ]
}

prop_compose! {
    fn schemas()(
        rows in 1_u32..300,
        labels in 0_usize..4,
        weighted: bool,
        dense in 0_usize..4,
        ids in 0_usize..4,
        maxima in prop::collection::vec((0_u32..5, any::<bool>()), 0..4),
        columns in prop::collection::vec(kinds(), 0..4),
        position_bytes in 0_u32..300,
    ) -> BatchSchema {
        BatchSchema {
            rows,
            labels: vec![String::from("l"); labels],
            weighted,
            dense: vec![String::from("d"); dense],
            ids: vec![IdFeature { name: "i".into(), cardinality: 10 }; ids],
            ragged: maxima
                .into_iter()
                .map(|(maximum, weighted)| RaggedFeature { name: "r".into(), cardinality: 10, maximum, weighted })
                .collect(),
            columns: columns.into_iter().map(|kind| Column { name: "c".into(), kind }).collect(),
            position_bytes,
        }
    }
}

fn buffer(schema: &BatchSchema) -> BatchBuffer {
    BatchBuffer::new(Arc::new(SlotLayout::of(schema).unwrap()))
}

proptest! {
    #[test]
    fn every_section_round_trips(schema in schemas(), first: u64, second: u64) {
        let mut buffer = buffer(&schema);
        // The second overwrites the first, as slots are reused.
        for number in [first, second] {
            fill(&mut buffer.as_mut(), number);
            check(buffer.as_ref(), number);
            check(buffer.as_mut().as_ref(), number);
        }
    }

    #[test]
    fn full_sections_do_not_overlap(schema in schemas()) {
        let mut buffer = buffer(&schema);
        let rows = schema.rows as usize;
        let (mut batch, position) = (buffer.as_mut(), vec![0xff; schema.position_bytes as usize]);
        batch.set_header(&BatchHeader::train(schema.rows));
        batch.set_position(&position);
        let sections = batch.sections();
        sections.labels.fill(1.0);
        if let Some(weights) = sections.weights {
            weights.fill(2.0);
        }
        sections.dense.fill(3.0);
        sections.ids.fill(4);
        for (index, (offsets, values)) in sections.ragged.into_iter().enumerate() {
            offsets.fill(values.len() as u32);
            values.fill(5 + index as u32);
        }
        for (index, weights) in sections.ragged_weights.into_iter().enumerate() {
            weights.into_iter().for_each(|weights| weights.fill(0.5 + index as f32));
        }
        for (index, column) in sections.columns.into_iter().enumerate() {
            if let Some(offsets) = column.offsets {
                offsets.fill(u32::MAX - index as u32);
            }
            column.values.fill(0xa0 + index as u8);
        }
        let batch = buffer.as_ref();
        prop_assert_eq!(batch.header(), BatchHeader::train(schema.rows));
        prop_assert_eq!(batch.position(), position);
        for label in 0..schema.label_count() {
            prop_assert_eq!(batch.labels(label), vec![1.0; rows]);
        }
        let weights = vec![2.0; rows];
        prop_assert_eq!(batch.weights(), schema.weighted.then_some(&weights[..]));
        prop_assert_eq!(batch.dense(), vec![3.0; rows * schema.dense.len()]);
        for feature in 0..schema.ids.len() {
            prop_assert_eq!(batch.ids(feature), vec![4; rows]);
        }
        for (index, feature) in schema.ragged.iter().enumerate() {
            let capacity = rows * feature.maximum as usize;
            let (offsets, values) = batch.ragged(index);
            prop_assert_eq!(offsets, vec![capacity as u32; rows + 1]);
            prop_assert_eq!(values, vec![5 + index as u32; capacity]);
            let weights = vec![0.5 + index as f32; capacity];
            prop_assert_eq!(batch.ragged_weights(index), feature.weighted.then_some(&weights[..]));
        }
        for (index, Column { kind, .. }) in schema.columns.iter().enumerate() {
            let column = batch.column(index);
            // Offsets beyond the values are only numbers.
            let offsets = vec![u32::MAX - index as u32; rows + 1];
            prop_assert_eq!(column.offsets, kind.has_offsets().then_some(&offsets[..]));
            prop_assert_eq!(column.values, vec![0xa0 + index as u8; rows * kind.row_bytes() as usize]);
        }
    }
}

#[test]
fn empty_batches_have_empty_views() {
    let mut buffer = buffer(&schema(20));
    buffer.as_mut().set_header(&BatchHeader::train(0));
    let batch = buffer.as_ref();
    assert_eq!((batch.rows(), batch.labels(0), batch.dense()), (0, &[][..], &[][..]));
    assert_eq!(batch.weights(), Some(&[][..]));
    assert!(batch.ids(1).is_empty());
    assert_eq!(batch.ragged(0), (&[0][..], &[][..]));
}

#[test]
fn ragged_values_end_with_the_last_valid_row() {
    let mut buffer = buffer(&schema(4));
    let mut batch = buffer.as_mut();
    batch.set_header(&BatchHeader::train(2));
    let (offsets, values) = batch.sections().ragged.remove(0);
    offsets.copy_from_slice(&[0, 1, 3, 99, 99]);
    values.fill(6);
    assert_eq!(buffer.as_ref().ragged(0), (&[0, 1, 3][..], &[6; 3][..]));
    // An offset beyond the section is clamped to it.
    buffer.as_mut().sections().ragged.remove(0).0[2] = u32::MAX;
    assert_eq!(buffer.as_ref().ragged(0).1.len(), 12);
}

#[test]
#[should_panic(expected = "more rows than the slot holds")]
fn headers_with_too_many_rows_panic() {
    buffer(&schema(4)).as_mut().set_header(&BatchHeader::train(5));
}

#[test]
#[should_panic(expected = "more rows than the global batch")]
fn headers_of_rows_beyond_the_global_batch_panic() {
    let header = BatchHeader { global_rows: 7, first_row: 5, ..BatchHeader::train(3) };
    buffer(&schema(4)).as_mut().set_header(&header);
}

#[test]
#[should_panic(expected = "the rows of the fullest part")]
fn headers_with_more_rows_than_the_fullest_part_panic() {
    let header = BatchHeader { global_rows: 7, most_rows: 2, ..BatchHeader::train(3) };
    buffer(&schema(4)).as_mut().set_header(&header);
}

#[test]
fn a_part_of_a_global_batch_larger_than_the_slot_round_trips() {
    let mut buffer = buffer(&schema(4));
    for header in [
        BatchHeader { global_rows: 11, first_row: 8, ..BatchHeader::train(3) },
        BatchHeader { global_rows: 8, first_row: 8, most_rows: 8, ..BatchHeader::train(0) },
        BatchHeader {
            global_rows: u32::MAX,
            first_row: u32::MAX - 4,
            most_rows: 1 << 31,
            ..BatchHeader::train(4)
        },
    ] {
        buffer.as_mut().set_header(&header);
        assert_eq!(buffer.as_ref().header(), header);
    }
}

#[test]
fn parts_hold_all_rows_of_a_batch() {
    for rows in 1..40 {
        for ranks in 1..9 {
            let part = schema(rows).part(ranks);
            assert_eq!(part, BatchSchema { rows: part.rows, ..schema(rows) });
            assert!(
                part.rows * ranks >= rows && (part.rows - 1) * ranks < rows,
                "{rows} rows, {ranks} ranks"
            );
        }
    }
    assert_eq!(schema(40).part(1), schema(40));
}

#[test]
#[should_panic(expected = "position longer than the slot's position section")]
fn positions_too_long_for_the_slot_panic() {
    buffer(&schema(4)).as_mut().set_position(&[0; 101]);
}

#[test]
#[should_panic(expected = "no id feature 2")]
fn unknown_id_features_panic() {
    buffer(&schema(4)).as_ref().ids(2);
}

/// The rows of a typed column, and of its padding.
fn column_rows(batch: BatchRef<'_>, column: usize) -> Vec<&[u8]> {
    let schema = batch.layout().schema();
    let (capacity, size) = (schema.rows as usize, schema.columns[column].kind.dtype().bytes());
    let ColumnRef { offsets, values } = batch.column(column);
    let row = |row: usize| match offsets {
        Some(offsets) => &values[offsets[row] as usize * size..offsets[row + 1] as usize * size],
        None => &values[row * values.len() / capacity..(row + 1) * values.len() / capacity],
    };
    (0..capacity).map(row).collect()
}

/// Whether a row of a typed column is padding.
fn is_padding(row: &[u8], kind: &ColumnKind) -> bool {
    if kind.has_offsets() { row.is_empty() } else { row.iter().all(|&byte| byte == 0) }
}

proptest! {
    #[test]
    fn parts_have_the_rows_of_every_typed_column(
        kinds in prop::collection::vec(kinds(), 1..4),
        rows in 1_u32..40,
        ranks in 1_u32..6,
        cuts in prop::collection::vec(0_u32..40, 0..4),
        number: u64,
    ) {
        let columns = kinds.iter().cloned().map(|kind| Column { name: "c".into(), kind }).collect();
        let schema = BatchSchema { columns, ..schema(rows) };
        let mut whole = buffer(&schema);
        fill(&mut whole.as_mut(), number);
        let count = whole.as_ref().rows() as u32;
        whole.as_mut().set_header(&BatchHeader::train(count));
        let mut ends: Vec<u32> = cuts.into_iter().map(|cut| cut.min(count)).chain([0, count]).collect();
        ends.sort_unstable();
        let lengths: Vec<u32> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let of_ranks: Vec<_> = (0..ranks).map(|rank| BatchBuffer::part_of(whole.as_ref(), rank, ranks)).collect();
        for parts in [of_ranks, BatchBuffer::parts_of(whole.as_ref(), &lengths)] {
            for (index, kind) in kinds.iter().enumerate() {
                let expected = &column_rows(whole.as_ref(), index)[..count as usize];
                let mut found = Vec::new();
                for part in &parts {
                    let rows = column_rows(part.as_ref(), index);
                    let (valid, padding) = rows.split_at(part.as_ref().rows());
                    prop_assert!(padding.iter().all(|row| is_padding(row, kind)));
                    found.extend_from_slice(valid);
                }
                prop_assert_eq!(&found, expected);
            }
        }
    }
}

#[test]
fn padding_hides_the_rows_of_an_earlier_batch() {
    let schema = schema(4);
    let mut buffer = buffer(&schema);
    for rows in [4, 3, 1, 0] {
        let mut batch = buffer.as_mut();
        for column in batch.sections().columns {
            column.values.fill(7);
            column.offsets.into_iter().for_each(|offsets| offsets.copy_from_slice(&[0, 2, 3, 3, 5]));
        }
        batch.pad_columns(rows);
        for (index, Column { kind, .. }) in schema.columns.iter().enumerate() {
            let found = column_rows(buffer.as_ref(), index);
            let lengths = match kind {
                ColumnKind::Fixed { .. } => [kind.row_bytes() as usize; 4],
                _ => [2, 1, 0, 2].map(|values| values * kind.dtype().bytes()),
            };
            for (row, found) in found.iter().enumerate() {
                match row < rows {
                    true => assert_eq!(*found, vec![7; lengths[row]]),
                    false => assert!(is_padding(found, kind), "row {row} of {rows}, column {index}"),
                }
            }
            if let (0, Some(offsets)) = (rows, buffer.as_ref().column(index).offsets) {
                assert_eq!(offsets, [0; 5]);
            }
        }
    }
}

#[test]
#[should_panic(expected = "out of range")]
fn padding_beyond_the_slot_panics() {
    buffer(&schema(4)).as_mut().pad_columns(6);
}
