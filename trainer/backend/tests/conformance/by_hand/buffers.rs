//! Buffers: batches, matrices and tables.

use std::sync::Arc;

use millstream_backend::{
    Backend, BatchError, Cpu, Float, Formula, Reference, Scalar, TablePart, TableShape, ops,
};

use millstream_batch::{BatchBuffer, SlotLayout};

use super::{adam, close, schema, set_rows, three_rows};

use crate::case::Bench;

test_on_each!(
    bad_batches_are_refused,
    matrices_and_tables_keep_what_is_written,
    a_copied_table_has_each_part_in_its_place,
);

fn bad_batches_are_refused<B: Backend>(backend: &B) {
    let mut batch = backend.batch(&schema());
    let refusal = |change: fn(&mut BatchBuffer)| {
        let mut buffer = three_rows();
        change(&mut buffer);
        let mut batch = backend.batch(&schema());
        let sound = backend.upload(buffer.as_ref(), &mut batch).and_then(|()| backend.check(&batch));
        assert_eq!(backend.check(&batch), Ok(()), "it is reported once");
        sound.expect_err("a bad batch")
    };
    let (id, cardinality) = (4, 4);
    assert_eq!(
        refusal(|buffer| buffer.as_mut().sections().ids[1] = 4),
        BatchError::IdOutOfRange { feature: "colour".to_owned(), row: 1, id, cardinality }
    );
    let (id, cardinality) = (u32::MAX, 3);
    assert_eq!(
        refusal(|buffer| buffer.as_mut().sections().ragged[0].1[2] = u32::MAX),
        BatchError::IdOutOfRange { feature: "tags".to_owned(), row: 2, id, cardinality }
    );
    let bad_offsets = |row, from, to| BatchError::BadOffsets { feature: "tags".to_owned(), row, from, to };
    assert_eq!(refusal(|buffer| buffer.as_mut().sections().ragged[0].0[0] = 1), bad_offsets(0, 1, 1));
    assert_eq!(refusal(|buffer| buffer.as_mut().sections().ragged[0].0[2] = 1), bad_offsets(1, 2, 1));
    assert_eq!(refusal(|buffer| buffer.as_mut().sections().ragged[0].0[2] = 5), bad_offsets(1, 2, 5));
    assert_eq!(refusal(|buffer| buffer.as_mut().sections().ragged[0].0[3] = 9), bad_offsets(2, 2, 9));
    // Of several faults, the first is reported: by column, then by row, regardless of detection order.
    let several = refusal(|buffer| {
        let mut slot = buffer.as_mut();
        let sections = slot.sections();
        (sections.ids[2], sections.ids[1]) = (7, 5);
        sections.ragged.into_iter().for_each(|(offsets, _)| offsets[2] = 5);
    });
    let feature = "colour".to_owned();
    assert_eq!(several, BatchError::IdOutOfRange { feature, row: 1, id: 5, cardinality: 4 });

    // Rows past the end may contain anything.
    let mut buffer = three_rows();
    set_rows(&mut buffer.as_mut(), 2);
    buffer.as_mut().sections().ids[2] = 99;
    backend.upload(buffer.as_ref(), &mut batch).expect("two good rows");
    backend.check(&batch).expect("two good rows");

    let mut other = schema();
    other.ids[0].cardinality = 5;
    let layout = SlotLayout::of(&other).expect("three rows");
    let buffer = BatchBuffer::new(Arc::new(layout));
    assert_eq!(backend.upload(buffer.as_ref(), &mut batch), Err(BatchError::WrongSchema));
}

fn matrices_and_tables_keep_what_is_written<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let adam = adam(0.0);
    for columns in [1, 15, 16, 17] {
        let values: Vec<f32> = (0..5 * columns).map(|x| x as f32).collect();
        let expected: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
        let matrix = bench.matrix(5, columns, &values);
        close(&bench.read(&matrix, 5 * columns), &expected);
        close(&bench.read(&matrix, 2 * columns), &expected[..2 * columns]);
        let table = bench.table((5, columns), &values, &adam, [7.0, 8.0]);
        close(&bench.read_table(&table, TablePart::Weights, 5 * columns), &expected);
        close(&bench.read_table(&table, TablePart::State(1), columns), &vec![8.0; columns]);
    }
}

fn a_copied_table_has_each_part_in_its_place<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let rowwise = Formula::RowWiseAdagrad { learning_rate: 1.0, epsilon: 0.0 };
    // The largest sizes are more than one task.
    for (rows, width) in [(1, 1), (3, 5), (40_000, 1), (5_000, 8), (700, 17), (70_000, 64)] {
        let values: Vec<f32> = (0..rows * width).map(|x| (x % 8191) as f32).collect();
        for update in [&adam(0.0), &rowwise] {
            let table = bench.table((rows, width), &values, update, [7.0, 8.0]);
            let (float, states, row_states) = (Float::F32, update.states(), update.row_states());
            let shape = TableShape { rows, width, float, key: 0, states, row_states };
            let mut copy = vec![B::Scalar::from_f64(-1.0); B::copied_numbers(shape)];
            backend.run(ops::CopyTable { table: &table, first: 0, out: &mut copy });
            // Any range has the same numbers.
            let all = copy.len();
            for range in [0..all / 2, all / 2..all, 1..all - 1, all / 3..all / 3 + 1, all..all] {
                let mut found = vec![B::Scalar::from_f64(-1.0); range.len()];
                backend.run(ops::CopyTable { table: &table, first: range.start, out: &mut found });
                assert!(found == copy[range.clone()], "{range:?} of {rows} x {width}");
            }
            let mut parts = 0;
            for part in shape.parts() {
                let (place, width) = (B::table_place(shape, part), shape.part_width(part));
                let begins = (0..rows).map(|row| place.first + row * place.stride);
                let found = begins.flat_map(|begin| &copy[begin..begin + width]).map(|x| x.to_f64());
                let wanted = bench.read_table(&table, part, rows * width);
                assert!(found.eq(wanted), "{part:?} of {rows} x {width}");
                parts += 1;
            }
            assert_eq!(parts, 1 + update.states() + update.row_states());
        }
    }
}

#[test]
fn backends_may_change_threads() {
    fn is_send<T: Send>() {}
    is_send::<Cpu>();
    is_send::<Reference>();
}
