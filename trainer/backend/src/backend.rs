//! The seam between models and devices: opaque buffers and a small set of fused operations.
//!
//! An operation is as large as a device wants it: one call covers every table of a model, or a layer's
//! product, bias and activation. Memory is made once, when a model is built; an operation writes into
//! what it is given and never returns a buffer. Only [`Backend::upload`], [`Backend::receive`], `write_*` and `read_*`
//! touch host memory, so a device may queue everything else and wait there.
//!
//! Results are a pure function of the arguments: no operation depends on how many threads run it.
//!
//! Shape letters beside those of `millstream_batch::schema`: `N` inputs of a layer, `M` its outputs,
//! `W` columns of an embedding, `C` rows of a table (its cardinality), `T` tasks, each to predict a label,
//! `K` classes of a label, `E` experts.

use std::ops::Range;
use std::sync::Arc;

use millstream_batch::{BatchRef, RingMapping};
use millstream_trace::{OperationInfo, Phase, Recorder};

use crate::description::Description;
use crate::device::{Device, Lookup, MatrixShape, TablePart, TablePlace, TableShape};
use crate::error::{BatchError, PinError};
use crate::normalization::{Axis, Normalization, Normalized};
use crate::retrieval::InBatchSoftmax;
#[cfg(doc)]
use crate::update::Formula;
use crate::update::{LossScaling, Update};

/// What follows a layer's product and bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// `max(x, 0)`
    Relu,
}

/// What is minimised, for each row: a function of its logit `x`, or logits, and label `y`.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// `softplus(x) - y x`, the binary cross-entropy of `sigmoid(x)`.
    BinaryCrossEntropy {
        /// `y` is `(1 - smoothing) y + smoothing / 2`: Szegedy et al., "Rethinking the Inception Architecture", 2016,
        /// section 7.
        smoothing: f64,
        /// A row counts `y` times this (`y` as it is in the batch), and
        positive_weight: f64,
        /// `1 - y` times this, times its own weight.
        negative_weight: f64,
    },
    /// `(x - y)^2`
    SquaredError,
    /// `log(sum of e^x) - sum of t x`, the cross-entropy of the softmax of all logits of a row, one for each class; `y`
    /// is the number of a class, from 0.
    CrossEntropy {
        /// Of each class, `t` is `smoothing` over the number of classes, and `1 - smoothing` more of class `y`.
        smoothing: f64,
        /// A row counts this times its own weight, of each class `y`: as many as there are classes. All of a row's loss
        /// counts so, as in Keras; PyTorch weights the part that is smoothed by the class that it goes to.
        class_weights: Vec<f64>,
    },
}

/// A label to be learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What is minimised.
    pub loss: Loss,
    /// Which label of the batch, and which column of the logits; of classes, all columns are.
    pub label: usize,
    /// What its gradient is multiplied by: its part in the sum of all tasks' losses.
    pub weight: f64,
}

/// Of the first label, by itself.
impl From<Loss> for Task {
    fn from(loss: Loss) -> Self {
        Self { loss, label: 0, weight: 1.0 }
    }
}

/// Whether sums over rows start anew, or go on from those over the rows before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// What was there is replaced.
    Anew,
    /// What was there is added to.
    Further,
}

/// What a mixture of experts is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixtureShape {
    /// `T`
    pub tasks: usize,
    /// `E`
    pub experts: usize,
    /// Columns that each expert gives, `N`.
    pub width: usize,
}

/// What one layer's backward pass reads, all of the same forward pass.
pub struct LayerGradient<'a, M> {
    /// Its input, `[B, N]`.
    pub input: &'a M,
    /// What the input came through: the gradient by input is that by what this was given.
    pub input_activation: Activation,
    /// Its weights, `[N, M]`.
    pub weights: &'a M,
    /// What it gave, `[B, M]`.
    pub output: &'a M,
    /// What followed product and bias, where the gradient by the output is not yet masked by it.
    pub activation: Activation,
}

/// A device that computes.
///
/// # Panics
/// Operations panic when buffers do not have the shapes noted beside them: a defect of the model.
pub trait Backend: Device + Sized + Send {
    /// Memory of a ring that the device copies from by itself, as long as this is held.
    type Pinned: Send;

    /// What it computes on.
    fn describe(&self) -> Description;

    /// The size of a matrix.
    fn matrix_shape(matrix: &Self::Matrix) -> MatrixShape;
    /// The size of a table.
    fn table_shape(table: &Self::Table) -> TableShape;
    /// Bytes that a weight of a table takes on the device.
    fn weight_bytes(_shape: TableShape) -> usize {
        size_of::<Self::Scalar>()
    }
    /// How many rows of their table a batch touches by `lookups`, all those in it; `None` where the host does not know.
    fn touched_rows(&self, _plan: &Self::RowPlan, _lookups: &[Lookup]) -> Option<usize> {
        None
    }

    /// Does `work`, which is a part of a step: what operations in it are recorded as, where they are.
    fn phase<T>(&self, _phase: Phase, work: impl FnOnce() -> T) -> T {
        work()
    }
    /// Does `work`, which is `operation`, and records it: as done when the call returns, unless the device knows better.
    fn record<T>(&self, recorder: &Recorder, operation: OperationInfo, work: impl FnOnce() -> T) -> T {
        recorder.operation(operation, work)
    }
    /// Waits until the device has done all that it was asked for.
    fn finish(&self) {}
    /// Recording begins: a device that does later what it is asked for takes note of when it does.
    fn begin_recording(&self, _recorder: &Arc<Recorder>) {}
    /// Recording ends: all that was asked for is done and recorded when this returns.
    fn end_recording(&self) {}

    /// From here on products of single precision may take their factors with 11 digits, as TF32, where the device multiplies
    /// those faster; or may not.
    fn allow_tf32(&self, _is_allowed: bool) {}

    /// Fills `matrix` from `values`, row-major.
    fn write_matrix(&self, matrix: &mut Self::Matrix, values: &[Self::Scalar]);
    /// Copies the first rows of `matrix`, as many as `out` takes, into `out`, row-major.
    fn read_matrix(&self, matrix: &Self::Matrix, out: &mut [Self::Scalar]);

    /// Fills the rows of `table` from `first_row` on from `values`, row-major.
    fn write_table(
        &self,
        table: &mut Self::Table,
        part: TablePart,
        first_row: usize,
        values: &[Self::Scalar],
    );
    /// Copies rows of `table` from `first_row` on, as many as `out` takes, into `out`, row-major.
    fn read_table(&self, table: &Self::Table, part: TablePart, first_row: usize, out: &mut [Self::Scalar]);

    /// Where [`Backend::copy_table`] puts the numbers of `part`: each part whole, one after the other, unless the
    /// device has them otherwise.
    fn table_place(shape: TableShape, part: TablePart) -> TablePlace {
        let before = shape.parts().take_while(|&other| other != part);
        let first = before.map(|part| shape.rows * shape.part_width(part)).sum();
        TablePlace { first, stride: shape.part_width(part) }
    }
    /// Numbers that [`Backend::copy_table`] copies.
    fn copied_numbers(shape: TableShape) -> usize {
        shape.parts().map(|part| shape.rows * shape.part_width(part)).sum()
    }
    /// Copies a whole table of `shape` to the host, in whatever order is fastest: training waits for it.
    fn copy_table(&self, table: &Self::Table, shape: TableShape, mut out: &mut [Self::Scalar]) {
        for part in shape.parts() {
            let (this, rest) = out.split_at_mut(shape.rows * shape.part_width(part));
            self.read_table(table, part, 0, this);
            out = rest;
        }
    }

    /// Has the device copy batches from memory of a ring by itself, as long as what is returned is held. Without that,
    /// batches are copied all the same.
    ///
    /// # Errors
    /// When it cannot.
    fn pin(&self, pages: &RingMapping) -> Result<Self::Pinned, PinError>;
    /// Copies a batch to the device and checks every id and offset, so that no operation need to. The batch's memory may
    /// change once this returns.
    ///
    /// A device may check beside the host's work. Then operations on a batch that is not sound do something
    /// harmless, weights, states and moments stay as they are from this batch on, whatever is asked, and
    /// [`Backend::check`] or [`Backend::receive`] says so.
    ///
    /// # Errors
    /// When the batch is not of the schema that `into` was made for; then `into` holds no rows.
    fn upload(&self, batch: BatchRef<'_>, into: &mut Self::Batch) -> Result<(), BatchError>;
    /// Waits until `batch` was checked.
    ///
    /// # Errors
    /// What is wrong with it, once: after that, steps are taken again.
    fn check(&self, batch: &Self::Batch) -> Result<(), BatchError>;

    /// Has the host told of all numbers of two `matrices`, or fewer, as they are once what was asked for so far is done, and
    /// of whether `batch` is sound. Does not wait.
    fn send(&self, batch: &Self::Batch, matrices: &[&Self::Matrix], report: &mut Self::Report);
    /// Waits for what was sent, and puts the matrices' numbers, one after the other, into `numbers`.
    ///
    /// # Errors
    /// As of [`Backend::check`].
    fn receive(&self, report: &mut Self::Report, numbers: &mut [Self::Scalar]) -> Result<(), BatchError>;

    /// Sorts the ids of each of the plan's groups of columns by table row, and those of equal id by column, then by
    /// batch row.
    fn plan_rows(&self, batch: &Self::Batch, plan: &mut Self::RowPlan);

    /// `out[b] = pooled rows of every table, then dense columns`, side by side, of rows `rows` of the batch.
    ///
    /// The first of them is row 0 of `out`. `out` is `[B, first_column + W of each lookup + dense.len()]`; its columns
    /// before `first_column` stay as they are, and what a lookup gives begins [`Lookup::first`] columns behind.
    #[allow(clippy::too_many_arguments, reason = "one fused operation over every table of a model")]
    fn gather(
        &self,
        batch: &Self::Batch,
        rows: Range<usize>,
        lookups: &[Lookup],
        tables: &[Self::Table],
        dense: &[usize],
        out: &mut Self::Matrix,
        first_column: usize,
    );

    /// `out[b] += bias + sum of the looked-up weights + dense columns . dense_weights`, of rows `rows` of the batch
    ///
    /// Tables have single precision, and are one column wide, `dense_weights` is `[dense.len(), 1]`, `bias` `[1, 1]`, `out` `[B, 1]`; or all of them
    /// have `K` columns.
    #[allow(clippy::too_many_arguments, reason = "one fused operation over every part of a linear model")]
    fn linear_forward(
        &self,
        batch: &Self::Batch,
        rows: Range<usize>,
        lookups: &[Lookup],
        tables: &[Self::Table],
        dense: &[usize],
        dense_weights: &Self::Matrix,
        bias: &Self::Matrix,
        out: &mut Self::Matrix,
    );

    /// The gradient of [`Backend::linear_forward`] by its dense weights and bias, given that by `out`.
    #[allow(clippy::too_many_arguments, reason = "one fused operation over every part of a linear model")]
    fn linear_backward(
        &self,
        batch: &Self::Batch,
        rows: Range<usize>,
        dense: &[usize],
        out_gradient: &Self::Matrix,
        sum: Sum,
        dense_weights_gradient: &mut Self::Matrix,
        bias_gradient: &mut Self::Matrix,
    );

    /// `output = activation(input . weights + bias)` over the first `rows` rows; weights are rounded to the format of
    /// `input`, and the bias is to that of `output`.
    ///
    /// `[B, N] . [N, M] + [1, M] -> [B, M]`
    fn layer_forward(
        &self,
        rows: usize,
        input: &Self::Matrix,
        weights: &Self::Matrix,
        bias: Option<&Self::Matrix>,
        activation: Activation,
        output: &mut Self::Matrix,
    );

    /// The gradient of [`Backend::layer_forward`] over the first `rows` rows; `sum` is of those by weights and bias.
    ///
    /// `output_gradient` `[B, M]` is masked by the activation in place. `input_gradient` `[B, K]` takes
    /// the first `K <= N` columns only: a model's input ends in dense columns that nothing learns from.
    #[allow(clippy::too_many_arguments, reason = "a layer has this many gradients")]
    fn layer_backward(
        &self,
        rows: usize,
        layer: &LayerGradient<'_, Self::Matrix>,
        output_gradient: &mut Self::Matrix,
        sum: Sum,
        weights_gradient: &mut Self::Matrix,
        bias_gradient: Option<&mut Self::Matrix>,
        input_gradient: Option<&mut Self::Matrix>,
    );

    /// `out += 1/2 sum over k of ((sum of v_k)^2 - sum of v_k^2)`, the sum of the products of all pairs.
    ///
    /// Rendle, "Factorization Machines", 2010, lemma 3.1. A row of `vectors` begins with vectors `v`, as many and as
    /// wide as `shape` says; `out` is `[B, 1]`.
    fn fm_forward(&self, rows: usize, vectors: &Self::Matrix, shape: (usize, usize), out: &mut Self::Matrix);

    /// Adds the gradient of [`Backend::fm_forward`] by its vectors to the first columns of `vectors_gradient`.
    fn fm_backward(
        &self,
        rows: usize,
        vectors: &Self::Matrix,
        shape: (usize, usize),
        out_gradient: &Self::Matrix,
        vectors_gradient: &mut Self::Matrix,
    );

    /// `output = first * product + input`, element by element, all `[B, N]`.
    ///
    /// What a cross layer does with the product of its input and its weights; Wang et al., "DCN V2", 2021,
    /// equation 1.
    fn cross_forward(
        &self,
        rows: usize,
        first: &Self::Matrix,
        product: &Self::Matrix,
        input: &Self::Matrix,
        output: &mut Self::Matrix,
    );

    /// The gradient of [`Backend::cross_forward`]: fills that by its product, and adds that by `first`.
    ///
    /// That by its input is `output_gradient` itself.
    fn cross_backward(
        &self,
        rows: usize,
        first: &Self::Matrix,
        product: &Self::Matrix,
        output_gradient: &Self::Matrix,
        product_gradient: &mut Self::Matrix,
        first_gradient: &mut Self::Matrix,
    );

    /// `out[b] = first vector, then the product of each pair of vectors`: `(1, 0), (2, 0), (2, 1), ...`
    ///
    /// Naumov et al., "Deep Learning Recommendation Model", 2019, section 2.2. A row of `vectors` `[B, V * W]` is
    /// `V` vectors of `width` columns; `out` is `[B, W + V (V - 1) / 2]`.
    fn dot_forward(&self, rows: usize, vectors: &Self::Matrix, width: usize, out: &mut Self::Matrix);

    /// The gradient of [`Backend::dot_forward`] by its vectors, `[B, V * W]`.
    fn dot_backward(
        &self,
        rows: usize,
        vectors: &Self::Matrix,
        width: usize,
        out_gradient: &Self::Matrix,
        vectors_gradient: &mut Self::Matrix,
    );

    /// What each of `shape.tasks` gates lets through of `shape.experts` experts: fills `gates` `[B, T * E]` by a softmax
    /// over the columns of each task, and `output` `[B, T * N]` by the sum of what the experts gave, each times its gate.
    ///
    /// Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", 2018,
    /// equations 6 and 7. `logits` is `[B, T * E]`; `experts` `[B, E * N]` has what each gave side by side.
    fn mixture_forward(
        &self,
        rows: usize,
        shape: MixtureShape,
        logits: &Self::Matrix,
        experts: &Self::Matrix,
        gates: &mut Self::Matrix,
        output: &mut Self::Matrix,
    );

    /// The gradient of [`Backend::mixture_forward`] by its logits and by what the experts gave.
    #[allow(clippy::too_many_arguments, reason = "a mixture has this many gradients")]
    fn mixture_backward(
        &self,
        rows: usize,
        shape: MixtureShape,
        gates: &Self::Matrix,
        experts: &Self::Matrix,
        output_gradient: &Self::Matrix,
        logits_gradient: &mut Self::Matrix,
        experts_gradient: &mut Self::Matrix,
    );

    /// Copies `columns` columns of one matrix to another; with each goes the first that is meant.
    fn copy_columns(
        &self,
        rows: usize,
        from: (&Self::Matrix, usize),
        to: (&mut Self::Matrix, usize),
        columns: usize,
    );

    /// Copies the first `rows` rows of `from` to `to` from row `first` on; both have as many columns.
    fn copy_rows(&self, rows: usize, from: &Self::Matrix, to: &mut Self::Matrix, first: usize);

    /// Multiplies each number by `1 / keep`, or by 0 with probability `1 - keep`; Srivastava et al., "Dropout", 2014,
    /// section 10 ("inverted"). Its gradient is the same operation.
    ///
    /// Row 0 is row `rows.start` of what `key` drops from: word `c / 16 % 4` of the [Philox](crate::philox) of
    /// counter `(r, c / 64 * 16 + c % 16)` falls on column `c` of row `r`, and is kept below `2^32 keep`.
    fn dropout(&self, rows: Range<usize>, keep: f64, key: u64, matrix: &mut Self::Matrix);

    /// The mean and variance of each row or column over the first `rows` rows of `input`.
    fn moments(
        &self,
        rows: usize,
        axis: Axis,
        input: &Self::Matrix,
        mean: &mut Self::Matrix,
        variance: &mut Self::Matrix,
    );

    /// Fills `output` from `input`, both `[B, N]`, by means and variances of any origin; see [`Normalization`].
    fn normalize_forward(
        &self,
        rows: usize,
        layer: &Normalization<'_, Self::Matrix>,
        moments: (&Self::Matrix, &Self::Matrix),
        input: &Self::Matrix,
        output: &mut Self::Matrix,
    );

    /// The gradient of [`Backend::normalize_forward`] by means and variances of the same rows.
    ///
    /// `gradient` `[B, N]` goes in as that by the output and comes out as that by the input; `sum` is of those by
    /// scale and shift, `[1, N]`; of columns, whose moments are of all rows, always anew.
    #[allow(clippy::too_many_arguments, reason = "a layer has this many gradients")]
    fn normalize_backward(
        &self,
        rows: usize,
        layer: &Normalization<'_, Self::Matrix>,
        saved: &Normalized<'_, Self::Matrix>,
        gradient: &mut Self::Matrix,
        sum: Sum,
        by_scale: &mut Self::Matrix,
        by_shift: &mut Self::Matrix,
    );

    /// `output[b] = input[b] / sqrt(max(sum of input[b]^2, 1e-12))`, both `[B, N]`: rows of length 1.
    fn unit_forward(&self, rows: usize, input: &Self::Matrix, output: &mut Self::Matrix);

    /// The gradient of [`Backend::unit_forward`]: `gradient` `[B, N]` goes in as that by the output and comes out as
    /// that by the input.
    fn unit_backward(&self, rows: usize, input: &Self::Matrix, gradient: &mut Self::Matrix);

    /// `out[b] = factor * left[b] . right[b]`, `[B, N]` both, `out` `[B, 1]`.
    fn row_products(
        &self,
        rows: usize,
        factor: f64,
        left: &Self::Matrix,
        right: &Self::Matrix,
        out: &mut Self::Matrix,
    );

    /// The loss of all rows of a batch whose queries choose among its items, and its gradient by both; see
    /// [`InBatchSoftmax`].
    ///
    /// Adds to `sums` `[1, 2]` (sum of weighted losses, sum of weights). The gradients, `[B, W]` both, become those of
    /// the mean, zeros where there is no weight. `work` is of [`Device::softmax_work`].
    fn in_batch_softmax(
        &self,
        softmax: &InBatchSoftmax<'_, Self>,
        work: &mut Self::Matrix,
        by_queries: &mut Self::Matrix,
        by_items: &mut Self::Matrix,
        sums: &mut Self::Matrix,
    );

    /// `to += share * (factor * from - to)`, over all of two matrices of one shape.
    fn blend(&self, share: f64, factor: f64, from: &Self::Matrix, to: &mut Self::Matrix);

    /// `to += from`, over the columns of `to`; `from` may have more.
    fn add(&self, rows: usize, from: &Self::Matrix, to: &mut Self::Matrix);

    /// Zeros in the first `rows` rows.
    fn clear(&self, rows: usize, matrix: &mut Self::Matrix);

    /// The loss of rows `rows` of the batch, by a column of logits `[B, T]`, or by all of one task's logits `[B, K]` of
    /// `K` classes, against the label of the task and the rows' weights (1 without).
    ///
    /// Adds to the label's row of `sums` `[T, 2]` (sum of weighted losses, sum of weights). What of `gradient`, as the
    /// logits, is the task's becomes that of the mean over the whole batch, zeros where that has no weight.
    ///
    /// # Panics
    /// When a label is to be a class and there is none of its number.
    fn loss(
        &self,
        task: &Task,
        batch: &Self::Batch,
        rows: Range<usize>,
        logits: &Self::Matrix,
        gradient: &mut Self::Matrix,
        sums: &mut Self::Matrix,
    );

    /// Multiplies the first `rows` rows by the first number of `factor`.
    fn multiply(&self, rows: usize, factor: &Self::Matrix, matrix: &mut Self::Matrix);

    /// `out = 1 / (1 + exp(-logits))` over the first `rows` rows, `[B, T]` both.
    fn sigmoid(&self, rows: usize, logits: &Self::Matrix, out: &mut Self::Matrix);

    /// `out = e^logits / sum of e^logits` of each of the first `rows` rows, `[B, K]` both.
    fn softmax(&self, rows: usize, logits: &Self::Matrix, out: &mut Self::Matrix);

    /// `sum += sum of the squares of the gradient's numbers`, `sum` `[1, 1]`.
    fn squares(&self, gradient: &Self::Matrix, sum: &mut Self::Matrix);

    /// The same over the touched rows of tables, once the gradients of each row are summed.
    fn row_squares(&self, gradients: &RowGradients<'_, Self>, tables: &[Self::Table], sum: &mut Self::Matrix);

    /// `scale = min(1, maximum / sqrt(squares))`, both `[1, 1]`: what a gradient is multiplied by to be no longer than
    /// `maximum`; Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013,
    /// Algorithm 1. NaN where `squares` is not finite.
    fn clip_scale(&self, maximum: f64, squares: &Self::Matrix, scale: &mut Self::Matrix);

    /// What to multiply gradients of a scaled loss by, `scale` `[1, 1]`, and how the loss scale goes on.
    ///
    /// `squares` `[1, 1]` is of all of them; `state` `[1, 3]` is the loss scale, the number of steps without an overflow
    /// since it last changed, and that of steps skipped. With `n = sqrt(squares) / loss scale`:
    ///
    /// ```text
    /// squares finite:  scale = min(1, maximum / n) / loss scale
    ///                  after growth_interval such steps in a row, loss scale *= growth, where that is finite
    /// otherwise:       scale = 0, which skips the step
    ///                  loss scale *= backoff
    /// ```
    ///
    /// Micikevicius et al., "Mixed Precision Training", 2018, section 3.2. Gradients whose squares have no finite
    /// sum in the device's numbers count as overflowed, too: a norm has to be a number.
    fn unscale(
        &self,
        rule: &LossScaling,
        maximum: Option<f64>,
        squares: &Self::Matrix,
        state: &mut Self::Matrix,
        scale: &mut Self::Matrix,
    );

    /// One optimizer step on `weights` and its [`Formula::states`] state matrices, all of one shape.
    ///
    /// `scale` is `[1, 1]`; see [`Update`].
    fn step(
        &self,
        update: &Update,
        scale: &Self::Matrix,
        weights: &mut Self::Matrix,
        states: &mut [Self::Matrix],
        gradient: &Self::Matrix,
    );

    /// One optimizer step on those rows of each table that a batch touches.
    ///
    /// A row's gradient is summed over the batch in the order of the table's lookups and the batch's rows, then applied
    /// once. Combining and stepping are one operation so that the combined gradients never go through memory.
    ///
    /// New weights of a table of fewer digits are rounded by [`Float::round_drawn`](crate::Float::round_drawn). Word
    /// `c % 4` of the [Philox](crate::philox) of counter `(r, c / 4)` falls on column `c` of row `r`; its key is
    /// `draws`, which tells the step from others, and [`TableShape::key`] together, by exclusive or.
    fn step_rows(
        &self,
        update: &Update,
        scale: &Self::Matrix,
        draws: u64,
        gradients: &RowGradients<'_, Self>,
        tables: &mut [Self::Table],
    );
}

/// Gradients of the table rows that a batch touches, before those of one row are summed.
pub struct RowGradients<'a, D: Device> {
    /// The batch.
    pub batch: &'a D::Batch,
    /// What it touches, at least in the columns of each table's lookups, which are a group of it.
    pub plan: &'a D::RowPlan,
    /// What is looked up in the tables.
    pub lookups: &'a [Lookup],
    /// By what each row of the batch looked up: by the output of [`Backend::gather`], or of
    /// [`Backend::linear_forward`].
    pub gradient: &'a D::Matrix,
    /// Which columns of it are a table's.
    pub columns: GradientColumns,
}

/// Which columns of a gradient belong to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientColumns {
    /// Each lookup its own, from [`Lookup::first`] on.
    Apart {
        /// Columns before all of these.
        first: usize,
    },
    /// Every lookup the same, from the first on.
    Shared,
}

impl GradientColumns {
    /// The first column that is of `lookup`.
    pub(crate) fn first_of(self, lookup: &Lookup) -> usize {
        match self {
            Self::Apart { first } => first + lookup.first,
            Self::Shared => 0,
        }
    }
}
