//! What is written to a batch is read from it, over schemas of all shapes.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, RaggedFeature, SlotLayout, Stream};
use proptest::prelude::*;
use support::{check, fill, schema};

prop_compose! {
    fn schemas()(
        rows in 1_u32..300,
        labels in 0_usize..4,
        weighted: bool,
        dense in 0_usize..4,
        ids in 0_usize..4,
        maxima in prop::collection::vec((0_u32..5, any::<bool>()), 0..4),
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
            position_bytes,
        }
    }
}

fn buffer(schema: &BatchSchema) -> BatchBuffer {
    BatchBuffer::new(Arc::new(SlotLayout::of(schema).unwrap()))
}

fn header(rows: u32) -> BatchHeader {
    BatchHeader { stream: Stream::Train, epoch: 0, batch: 0, rows, global_rows: rows, last: false }
}

proptest! {
    #[test]
    fn every_section_comes_back(schema in schemas(), first: u64, second: u64) {
        let mut buffer = buffer(&schema);
        // The second over the first, as slots are used again; short batches among them.
        for number in [first, second] {
            fill(&mut buffer.as_mut(), number);
            check(buffer.as_ref(), number);
            check(buffer.as_mut().as_ref(), number);
        }
    }

    #[test]
    fn sections_filled_to_the_brim_do_not_touch_each_other(schema in schemas()) {
        let mut buffer = buffer(&schema);
        let rows = schema.rows as usize;
        let (mut batch, position) = (buffer.as_mut(), vec![0xff; schema.position_bytes as usize]);
        batch.set_header(&header(schema.rows));
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
        let batch = buffer.as_ref();
        prop_assert_eq!(batch.header(), header(schema.rows));
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
            let room = rows * feature.maximum as usize;
            let (offsets, values) = batch.ragged(index);
            prop_assert_eq!(offsets, vec![room as u32; rows + 1]);
            prop_assert_eq!(values, vec![5 + index as u32; room]);
            let weights = vec![0.5 + index as f32; room];
            prop_assert_eq!(batch.ragged_weights(index), feature.weighted.then_some(&weights[..]));
        }
    }
}

#[test]
fn an_empty_batch_has_empty_views() {
    let mut buffer = buffer(&schema(20));
    buffer.as_mut().set_header(&header(0));
    let batch = buffer.as_ref();
    assert_eq!((batch.rows(), batch.labels(0), batch.dense()), (0, &[][..], &[][..]));
    assert_eq!(batch.weights(), Some(&[][..]));
    assert_eq!(batch.ids(1), []);
    assert_eq!(batch.ragged(0), (&[0][..], &[][..]));
}

#[test]
fn ragged_values_end_with_the_last_row_that_counts() {
    let mut buffer = buffer(&schema(4));
    let mut batch = buffer.as_mut();
    batch.set_header(&header(2));
    let (offsets, values) = batch.sections().ragged.remove(0);
    offsets.copy_from_slice(&[0, 1, 3, 99, 99]);
    values.fill(6);
    assert_eq!(buffer.as_ref().ragged(0), (&[0, 1, 3][..], &[6; 3][..]));
    // Offsets that lead out of the section are cut to it.
    buffer.as_mut().sections().ragged.remove(0).0[2] = u32::MAX;
    assert_eq!(buffer.as_ref().ragged(0).1.len(), 12);
}

#[test]
#[should_panic(expected = "more rows than the slot holds")]
fn a_header_of_more_rows_than_the_slot_is_refused() {
    buffer(&schema(4)).as_mut().set_header(&header(5));
}

#[test]
#[should_panic(expected = "position longer than the slot's room for it")]
fn a_position_longer_than_its_room_is_refused() {
    buffer(&schema(4)).as_mut().set_position(&[0; 101]);
}

#[test]
#[should_panic(expected = "no id feature 2")]
fn an_id_feature_that_is_not_there_is_refused() {
    buffer(&schema(4)).as_ref().ids(2);
}
