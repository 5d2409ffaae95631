//! Every operation refuses every operand of a wrong shape, on every device, and names the operand.
//!
//! A case builds an operation from operands that a [`Make`] hands out by name. It runs once with right operands,
//! then once for each operand and each deviation from its shape.

mod operations;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use millstream_backend::{
    Activation, Axis, Backend, Choice, ColumnSums, Device, Float, Formula, GradientColumns, GradientMode,
    IdColumn, InBatchInput, Lookup, Loss, LossScaling, MixtureShape, Normalization, PartRows, Pooling,
    Reference, RowGradients, SavedLayer, SavedNormalization, Sequence, TablePart, TableShape, Task, Update,
    ops,
};

use crate::case::{IdsFall, Random, Shapes, cpus, cuda};
use operations::*;

const ROWS: usize = 3;
/// Columns of dense values, and the width of tables.
const DENSE: usize = 2;
const WIDTH: usize = 4;

/// A deviation from the shape that an operand must have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deviation {
    RowTooFew,
    ColumnTooFew,
    ColumnTooMany,
    /// A wrong index or count.
    WrongValue,
}

/// Hands out operands, one of which deviates.
struct Make<'a, B: Backend> {
    backend: &'a B,
    batch: &'a B::Batch,
    wrong: Option<(&'static str, Deviation)>,
    /// The operands handed out, with the deviations that the operation must refuse.
    seen: Vec<(&'static str, Deviation)>,
}

impl<B: Backend> Make<'_, B> {
    fn with(&mut self, name: &'static str, rows: usize, columns: usize, refused: &[Deviation]) -> B::Matrix {
        let (rows, columns) = self.shape(name, rows, columns, refused);
        self.backend.matrix(rows, columns)
    }

    /// The shape of an operand, or one that the operation must refuse.
    fn shape(
        &mut self,
        name: &'static str,
        rows: usize,
        columns: usize,
        refused: &[Deviation],
    ) -> (usize, usize) {
        self.seen.extend(refused.iter().map(|&deviation| (name, deviation)));
        match self.wrong {
            Some((wrong, deviation)) if wrong == name => match deviation {
                Deviation::RowTooFew => (rows - 1, columns),
                Deviation::ColumnTooFew => (rows, columns - 1),
                Deviation::ColumnTooMany => (rows, columns + 1),
                Deviation::WrongValue => (rows, columns),
            },
            _ => (rows, columns),
        }
    }

    /// A record of maxima for at least `rows` rows.
    fn maxima(&mut self, name: &'static str, rows: usize, columns: usize) -> B::Maxima {
        use Deviation::{ColumnTooFew, ColumnTooMany, RowTooFew};
        let (rows, columns) = self.shape(name, rows, columns, &[RowTooFew, ColumnTooFew, ColumnTooMany]);
        self.backend.maxima(rows, columns)
    }

    /// A matrix of at least `rows` rows and exactly `columns` columns.
    fn matrix(&mut self, name: &'static str, rows: usize, columns: usize) -> B::Matrix {
        use Deviation::{ColumnTooFew, ColumnTooMany, RowTooFew};
        self.with(name, rows, columns, &[RowTooFew, ColumnTooFew, ColumnTooMany])
    }

    /// A matrix of at least `rows` rows and `columns` columns.
    fn at_least(&mut self, name: &'static str, rows: usize, columns: usize) -> B::Matrix {
        self.with(name, rows, columns, &[Deviation::RowTooFew, Deviation::ColumnTooFew])
    }

    /// A matrix of at least `rows` rows, whose columns decide those of other operands.
    fn rows(&mut self, name: &'static str, rows: usize, columns: usize) -> B::Matrix {
        self.with(name, rows, columns, &[Deviation::RowTooFew])
    }

    /// A matrix whose shape decides those of other operands.
    fn any(&mut self, rows: usize, columns: usize) -> B::Matrix {
        self.backend.matrix(rows, columns)
    }

    /// A value, or one that the operation must refuse.
    fn value<T>(&mut self, name: &'static str, right: T, wrong: T) -> T {
        self.seen.push((name, Deviation::WrongValue));
        if self.wrong == Some((name, Deviation::WrongValue)) { wrong } else { right }
    }

    fn table(&self, width: usize, formula: &Formula) -> B::Table {
        self.backend.table(TableShape {
            rows: 9,
            width,
            float: Float::F32,
            key: 0,
            states: formula.states(),
            row_states: formula.row_states(),
        })
    }
}

type Case<B> = fn(&mut Make<'_, B>);

/// All cases, by the names of their operations.
fn cases<B: Backend>() -> Vec<(&'static str, Case<B>)> {
    vec![
        ("write_matrix", write_matrix),
        ("read_matrix", read_matrix),
        ("write_table", write_table),
        ("read_table", read_table),
        ("copy_table", copy_table),
        ("gather", gather),
        ("linear_forward", linear_forward),
        ("linear_backward", linear_backward),
        ("layer_forward", layer_forward),
        ("layer_backward", layer_backward),
        ("fm_forward", fm_forward),
        ("fm_backward", fm_backward),
        ("cross_forward", cross_forward),
        ("cross_backward", cross_backward),
        ("dot_forward", dot_forward),
        ("dot_backward", dot_backward),
        ("pair_forward", pair_forward),
        ("pair_backward", pair_backward),
        ("attend_forward", attend_forward),
        ("attend_backward", attend_backward),
        ("mixture_forward", mixture_forward),
        ("mixture_backward", mixture_backward),
        ("copy_columns", copy_columns),
        ("copy_rows", copy_rows),
        ("dropout", dropout),
        ("moments", moments),
        ("merge_moments", merge_moments),
        ("normalize_forward", normalize_forward),
        ("normalize_parameters", normalize_parameters),
        ("normalize_backward", normalize_backward),
        ("unit_forward", unit_forward),
        ("unit_backward", unit_backward),
        ("row_products", row_products),
        ("in_batch_loss", in_batch_loss),
        ("blend", blend),
        ("add", add),
        ("clear", clear),
        ("loss", loss),
        ("multiply", multiply),
        ("sigmoid", sigmoid),
        ("softmax", softmax),
        ("squares", squares),
        ("row_squares", row_squares),
        ("merged_row_squares", merged_row_squares),
        ("clip_scale", clip_scale),
        ("unscale", unscale),
        ("step", step),
        ("step_rows", step_rows),
        ("step_merged_rows", step_merged_rows),
    ]
}

#[test]
fn the_reference_refuses_wrong_shapes() {
    refuses(&Reference);
}

#[test]
fn cpus_refuse_wrong_shapes() {
    cpus(2).iter().for_each(refuses);
}

#[test]
fn cuda_refuses_wrong_shapes() {
    refuses(&cuda());
}

/// The shapes of the batch: a label, dense columns, a single-valued and a multi-valued feature.
fn shapes() -> Shapes {
    Shapes {
        rows: ROWS as u32,
        capacity: 4,
        dense: DENSE,
        single: vec![(9, WIDTH)],
        ragged: vec![(9, WIDTH, 2)],
        pooling: Pooling::Sum,
        shared: false,
        weighted: true,
        weighted_ids: false,
        ids: IdsFall::Anywhere,
        layer: (1, 1),
    }
}

/// Runs all cases on `backend`.
fn refuses<B: Backend>(backend: &B) {
    let covered: BTreeSet<&str> = cases::<B>().into_iter().map(|(name, _)| name).collect();
    // A plan is created for the schema of its batches, and has no shape of its own.
    let all: BTreeSet<&str> =
        ops::Operation::<B>::NAMES.iter().copied().filter(|&name| name != "plan_rows").collect();
    assert_eq!(covered, all);

    let shapes = shapes();
    let mut batch = backend.batch(&shapes.schema());
    backend.upload(shapes.batch(&mut Random(5)).as_ref(), &mut batch).expect("a batch of the schema");
    for (operation, case) in cases::<B>() {
        let mut make = Make { backend, batch: &batch, wrong: None, seen: Vec::new() };
        case(&mut make);
        let deviations = make.seen;
        assert!(!deviations.is_empty(), "{operation}");
        for deviation in deviations {
            let mut make = Make { backend, batch: &batch, wrong: Some(deviation), seen: Vec::new() };
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(&mut make))) else {
                panic!("{operation} accepts {deviation:?}");
            };
            let message = panic.downcast_ref::<String>().expect("a formatted message");
            let expected = format!("{operation}: operand `{}` ", deviation.0);
            assert!(message.starts_with(&expected), "{operation}, {deviation:?}: {message}");
        }
    }
    backend.finish();
}

#[test]
fn a_table_without_a_row_for_every_id_is_refused() {
    refuses_small_tables(&Reference);
    cpus(2).iter().for_each(refuses_small_tables);
    refuses_small_tables(&cuda());
}

fn refuses_small_tables<B: Backend>(backend: &B) {
    let mut batch = backend.batch(&shapes().schema());
    backend.upload(shapes().batch(&mut Random(5)).as_ref(), &mut batch).expect("a batch of the schema");
    let shape = |rows| TableShape { rows, width: WIDTH, float: Float::F32, key: 0, states: 0, row_states: 0 };
    let tables = [backend.table(shape(9)), backend.table(shape(8))];
    let gather = || {
        backend.run(ops::Gather {
            batch: &batch,
            rows: 0..ROWS,
            lookups: &LOOKUPS,
            tables: &tables,
            dense: &[],
            out: &mut backend.matrix(ROWS, 2 * WIDTH),
            first_column: 0,
            maxima: None,
        });
    };
    let panic = catch_unwind(AssertUnwindSafe(gather)).expect_err("a table that is too small");
    let message = panic.downcast_ref::<String>().expect("a formatted message");
    assert_eq!(message, "gather: operand `tables` is 8, but must be at least 9");
}

#[test]
fn maxima_without_a_record_or_in_a_linear_model_are_refused() {
    refuses_maxima(&Reference);
    cpus(2).iter().for_each(refuses_maxima);
    refuses_maxima(&cuda());
}

fn refuses_maxima<B: Backend>(backend: &B) {
    let mut batch = backend.batch(&shapes().schema());
    backend.upload(shapes().batch(&mut Random(5)).as_ref(), &mut batch).expect("a batch of the schema");
    let shape = TableShape { rows: 9, width: WIDTH, float: Float::F32, key: 0, states: 0, row_states: 0 };
    let tables = [backend.table(shape), backend.table(shape)];
    let (gathers, adds): (&dyn Fn(), &dyn Fn()) = (
        &|| {
            backend.run(ops::Gather {
                batch: &batch,
                rows: 0..ROWS,
                lookups: &LOOKUPS,
                tables: &tables,
                dense: &[],
                out: &mut backend.matrix(ROWS, 2 * WIDTH),
                first_column: 0,
                maxima: None,
            });
        },
        &|| {
            backend.run(ops::LinearForward {
                batch: &batch,
                rows: 0..ROWS,
                lookups: &LOOKUPS,
                tables: &tables,
                dense: &[],
                dense_weights: &backend.matrix(0, WIDTH),
                bias: &backend.matrix(1, WIDTH),
                out: &mut backend.matrix(ROWS, WIDTH),
            });
        },
    );
    for (operation, expected) in [
        (gathers, "gather: operand `maxima` is 0, but must be 4"),
        (adds, "linear_forward: operand `lookups` has a maximum, but its terms are sums"),
    ] {
        let panic = catch_unwind(AssertUnwindSafe(operation)).expect_err("maxima");
        let message = panic.downcast_ref::<String>().map(String::as_str);
        assert_eq!(message.or(panic.downcast_ref::<&str>().copied()), Some(expected));
    }
}

#[test]
fn sizes_that_overflow_are_refused() {
    let (from, mut to) = (Reference.matrix(ROWS, 2), Reference.matrix(ROWS, 2));
    let most = usize::MAX;
    let copies: [&mut dyn FnMut(); 3] = [
        &mut || {
            let to = (&mut Reference.matrix(ROWS, 2), 0);
            Reference.run(ops::CopyRows { rows: 2, from: (&from, most), to });
        },
        &mut || Reference.run(ops::CopyRows { rows: 2, from: (&from, 0), to: (&mut to, most) }),
        &mut || {
            let to = (&mut Reference.matrix(ROWS, 2), 0);
            Reference.run(ops::CopyColumns { rows: 1, from: (&from, most), to, columns: 2 });
        },
    ];
    for copy in copies {
        let panic = catch_unwind(AssertUnwindSafe(copy)).expect_err("a size past the end");
        let message = panic.downcast_ref::<String>().expect("a formatted message");
        assert!(message.contains("but must have 18446744073709551615 "), "{message}");
    }
}
