//! The operations of a [`Backend`], as values.
//!
//! Each operation is a struct of its operands. It knows its name, the shapes that its operands must have, and the
//! least bytes and FLOPs that it needs ([`cost`]). [`Backend::run`] checks it once, records it if a recording is
//! on, and passes it to the device, whose [`Backend::execute`] is one `match` over [`Operation`]. It receives the
//! operation as [`Checked`], so device code may rely on the shapes: it reads and writes memory without checking them
//! again.
//!
//! A new operation is a struct here with its line in [`operations!`], a plain implementation in `reference/`, and
//! one for each device.
//!
//! Shape letters, in addition to those of `millstream_batch::schema`: `N` inputs of a layer, `M` its outputs, `W`
//! columns of an embedding, `V` values of a sequence, `C` rows of a table (its cardinality), `T` tasks, each of which
//! predicts a label, `K` classes of a label, `E` experts.

mod attention;
mod check;
pub(crate) mod cost;
mod elementwise;
mod interaction;
mod layer;
mod lookup;
mod loss;
mod mixture;
mod normalization;
mod retrieval;
mod transfer;
mod update;

use millstream_trace::{OperationInfo, Work};

use crate::device::Shapes;
use check::Checks;

pub use attention::{AttendBackward, AttendForward, PairBackward, PairForward, Sequence};
pub use elementwise::{Add, Clear, CopyColumns, CopyRows, Dropout, Multiply};
pub use interaction::{CrossBackward, CrossForward, DotBackward, DotForward, FmBackward, FmForward};
pub use layer::{Activation, LayerBackward, LayerForward, SavedLayer};
pub use lookup::{
    Gather, GradientColumns, GradientMode, LinearBackward, LinearForward, PlanRows, RowGradients,
};
pub use loss::{Loss, Sigmoid, Softmax, Task, TaskLoss};
pub use mixture::{MixtureBackward, MixtureForward, MixtureShape};
pub use normalization::{
    Blend, ColumnSums, MergeMoments, Moments, Normalization, NormalizeBackward, NormalizeForward,
    NormalizeParameters, SavedNormalization,
};
pub(crate) use retrieval::MIN_SQUARE;
pub use retrieval::{Choice, InBatchInput, InBatchLoss, RowProducts, UnitBackward, UnitForward};
pub use transfer::{CopyTable, ReadMatrix, ReadTable, WriteMatrix, WriteTable};
pub use update::{ClipScale, MergedRowSquares, RowSquares, Squares, Step, StepMergedRows, StepRows, Unscale};

/// Declares [`Operation`] over the operations, each with the name that recordings show.
macro_rules! operations {
    ($($operation:ident = $name:literal,)*) => {
        /// Any operation. The set is closed: a device implements all of them.
        pub enum Operation<'a, D: Shapes> {
            $(
                #[doc = concat!("`", $name, "`")]
                $operation($operation<'a, D>),
            )*
        }

        impl<D: Shapes> Operation<'_, D> {
            /// The names of all operations.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// Asserts the shapes of all operands.
            fn check(&self) {
                match self {
                    $(Self::$operation(operation) => operation.check(Checks { operation: $name }),)*
                }
            }
        }

        impl<D: Shapes> Checked<'_, D> {
            /// The name, with the least work that the operation needs.
            pub(crate) fn info(&self, backend: &D) -> OperationInfo {
                let (name, work): (_, Work) = match &self.0 {
                    $(Operation::$operation(operation) => ($name, operation.work(backend)),)*
                };
                let shape = match &self.0 {
                    Operation::LayerForward(layer) => Some(layer.weight_shape()),
                    Operation::LayerBackward(layer) => Some(layer.weight_shape()),
                    _ => None,
                };
                OperationInfo { name, work, shape }
            }
        }

        $(
            impl<'a, D: Shapes> From<$operation<'a, D>> for Operation<'a, D> {
                fn from(operation: $operation<'a, D>) -> Self {
                    Self::$operation(operation)
                }
            }
        )*
    };
}

operations! {
    WriteMatrix = "write_matrix",
    ReadMatrix = "read_matrix",
    WriteTable = "write_table",
    ReadTable = "read_table",
    CopyTable = "copy_table",
    PlanRows = "plan_rows",
    Gather = "gather",
    LinearForward = "linear_forward",
    LinearBackward = "linear_backward",
    LayerForward = "layer_forward",
    LayerBackward = "layer_backward",
    FmForward = "fm_forward",
    FmBackward = "fm_backward",
    CrossForward = "cross_forward",
    CrossBackward = "cross_backward",
    DotForward = "dot_forward",
    DotBackward = "dot_backward",
    PairForward = "pair_forward",
    PairBackward = "pair_backward",
    AttendForward = "attend_forward",
    AttendBackward = "attend_backward",
    MixtureForward = "mixture_forward",
    MixtureBackward = "mixture_backward",
    CopyColumns = "copy_columns",
    CopyRows = "copy_rows",
    Dropout = "dropout",
    Moments = "moments",
    MergeMoments = "merge_moments",
    NormalizeForward = "normalize_forward",
    NormalizeParameters = "normalize_parameters",
    NormalizeBackward = "normalize_backward",
    UnitForward = "unit_forward",
    UnitBackward = "unit_backward",
    RowProducts = "row_products",
    InBatchLoss = "in_batch_loss",
    Blend = "blend",
    Add = "add",
    Clear = "clear",
    TaskLoss = "loss",
    Multiply = "multiply",
    Sigmoid = "sigmoid",
    Softmax = "softmax",
    Squares = "squares",
    RowSquares = "row_squares",
    MergedRowSquares = "merged_row_squares",
    ClipScale = "clip_scale",
    Unscale = "unscale",
    Step = "step",
    StepRows = "step_rows",
    StepMergedRows = "step_merged_rows",
}

/// An operation whose operands have the shapes that it needs.
pub struct Checked<'a, D: Shapes>(Operation<'a, D>);

impl<'a, D: Shapes> Checked<'a, D> {
    /// Checks the operands.
    ///
    /// # Panics
    /// If an operand has a wrong shape, with the names of the operation and the operand.
    pub fn of(operation: Operation<'a, D>) -> Self {
        operation.check();
        Self(operation)
    }

    /// The operation.
    pub fn into_inner(self) -> Operation<'a, D> {
        self.0
    }
}
