//! The kernels and their arguments, as the files of `kernels/` declare them.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::driver::Address;
use super::programs::{Program, program};

/// Threads per block of most kernels.
const THREADS: u32 = 256;
/// Threads per warp.
pub(super) const WARP: u32 = 32;
/// `COLUMN_THREADS` of reduce.cuh, and the columns per block.
const COLUMN_THREADS: u32 = 256;
pub(super) const COLUMNS: u32 = 32;
/// Threads per block of kernels that step rows: each keeps quads in shared memory.
const ROW_THREADS: u32 = 128;
/// Threads of single-block kernels, which add up the partial sums of other kernels.
const SUM_THREADS: u32 = 1024;
/// `ROWS_AT_ONCE` of lookup.cu.
pub(super) const ROWS_AT_ONCE: u32 = 4;
/// `TILE` and `DIGITS` of plan.cu.
pub(super) const TILE: u32 = 4096;
pub(super) const DIGITS: u32 = 256;
pub(super) const DIGIT_BITS: u32 = 8;
/// `SCAN_THREADS` of scan.cuh.
const SCAN_THREADS: u32 = 256;
/// `TILE` of merge.cu.
pub(super) const MERGE_TILE: u32 = 1024;
/// `STEPS` of update.cu: as many as fit in 4 KiB, the largest kernel argument that every driver accepts.
pub(super) const STEPS_AT_ONCE: usize = 24;
/// `REPORTED` of batch.cu: the most matrices in a report.
pub(super) const REPORTED_MATRICES: usize = 2;
/// `MOST_VECTORS` and `EIGHT` of dot.cu.
pub(super) const MOST_TENSOR_VECTORS: usize = 32;
pub(super) const EIGHT: usize = 8;
/// `QUAD` of device.cuh.
pub(super) const QUAD: u32 = 4;
/// `LOAD_BYTES` of lookup.cu: the size of one vector load of a thread.
pub(super) const LOAD_BYTES: usize = 16;

/// Every program.
pub(super) const PROGRAMS: [Program; 16] = [
    MATRIX,
    BATCH,
    LOOKUP,
    PLAN,
    ROWS,
    MERGE,
    LAYER,
    INTERACTION,
    DOT,
    ATTENTION,
    MIXTURE,
    NORMALIZE,
    VECTORS,
    LOSS,
    LISTS,
    UPDATE,
];

/// `Matrix` of device.cuh.
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct MatrixView {
    pub(super) data: Address,
    pub(super) stride: u64,
    pub(super) format: u32,
    pub(super) columns: u32,
}

impl Default for MatrixView {
    /// No matrix.
    fn default() -> Self {
        Self { data: 0, stride: 0, format: 0, columns: 1 }
    }
}

/// `IdColumn` of batch.cuh.
#[derive(Clone, Copy, Default, PartialEq, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct ColumnView {
    pub(super) ids: u64,
    pub(super) offsets: u64,
    pub(super) rows: u64,
    pub(super) weights: u64,
    pub(super) mean_scales: u64,
    pub(super) root_scales: u64,
    pub(super) cardinality: u32,
    pub(super) maximum: u32,
}

/// `Lookup` of lookup.cu.
#[derive(Clone, Copy, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct LookupView {
    pub(super) table: Address,
    pub(super) column: ColumnView,
    pub(super) width: u32,
    pub(super) first: u32,
    pub(super) pooling: u32,
    pub(super) format: u32,
    pub(super) holders: Address,
}

/// `Group` of plan.cu.
#[derive(Clone, Copy, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct GroupView {
    pub(super) ids: [Address; 2],
    pub(super) places: [Address; 2],
    pub(super) counts: Address,
    pub(super) first_column: u32,
    pub(super) columns: u32,
    pub(super) capacity: u32,
    pub(super) passes: u32,
}

/// `Source` of rows.cu.
#[derive(Clone, Copy, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct SourceView {
    pub(super) column: ColumnView,
    pub(super) first: u32,
    pub(super) pooling: u32,
    pub(super) holders: Address,
}

/// `Table` of rows.cu.
#[derive(Clone, Copy, Default, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct TableView {
    pub(super) ids: Address,
    pub(super) places: Address,
    pub(super) size: Address,
    pub(super) starts: Address,
    pub(super) sources: Address,
    pub(super) weights: Address,
    pub(super) states: [Address; 2],
    pub(super) row_state: Address,
    pub(super) partials: Address,
    pub(super) squares: Address,
    pub(super) sums: Address,
    pub(super) touched: Address,
    pub(super) key: u64,
    pub(super) source_count: u32,
    pub(super) width: u32,
    pub(super) lanes: u32,
    pub(super) format: u32,
    pub(super) piece: u32,
    pub(super) unused: u32,
}

/// `RowList` of merge.cu.
#[derive(Clone, Copy, Default, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct RowListView {
    pub(super) ids: Address,
    pub(super) size: Address,
    pub(super) rows: Address,
    pub(super) touched: Address,
    pub(super) places: Address,
    pub(super) merged_ids: Address,
    pub(super) merged_rows: Address,
    pub(super) width: u32,
    pub(super) capacity: u32,
    pub(super) first_tile: u32,
    pub(super) tiles: u32,
}

/// `Faults` of batch.cu.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct Faults {
    pub(super) of_offsets: u64,
    pub(super) of_ids: u64,
    /// The first fault found; all ones if none. Encodes the column, whether it is a fault of ids, and the position.
    pub(super) found: u64,
    /// The address of the faulty batch.
    pub(super) batch: Address,
    pub(super) row: u32,
    /// The id, or the start offset of the row's ids.
    pub(super) first: u32,
    /// The end offset of the row's ids.
    pub(super) second: u32,
    pub(super) unused: u32,
}

/// `Update` of update.cuh.
#[derive(Clone, Copy, Default, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct UpdateView {
    pub(super) kind: u32,
    pub(super) learning_rate: f32,
    /// Meaning depends on `kind`.
    pub(super) constants: [f32; 6],
    pub(super) clip: f32,
    pub(super) l2: f32,
}

program! {
    MATRIX = "matrix.cu";
    struct Transfer { dense: Address, matrix: MatrixView, rows: u32, unused: u32 }
    struct CopyColumns {
        from: MatrixView, to: MatrixView, from_first: u32, to_first: u32, rows: u32, columns: u32,
    }
    struct Blend { from: MatrixView, to: MatrixView, fault: Address, rows: u32, share: f32, factor: f32, unused: u32 }
    struct Change { matrix: MatrixView, factor: Address, rows: u32, unused: u32 }
    struct Dropout {
        matrix: MatrixView, key: u64, kept: u64, first_row: u32, rows: u32, factor: f32, unused: u32,
    }
    kernel WRITE_ROWS = write_rows(Transfer, THREADS);
    kernel READ_ROWS = read_rows(Transfer, THREADS);
    kernel COPY_COLUMNS = copy_columns(CopyColumns, THREADS);
    kernel ADD = add(Blend, THREADS);
    kernel BLEND = blend(Blend, THREADS);
    kernel MULTIPLY = multiply(Change, THREADS);
    kernel CLEAR = clear(Change, THREADS);
    kernel DROPOUT = dropout(Dropout, THREADS);
}

program! {
    BATCH = "batch.cu";
    struct Intake {
        slot: Address, batch: Address, columns: Address, faults: Address, labels: u64, weights: u64, dense: u64,
        label_count: u32, label_stride: u32, dense_columns: u32, rows: u32,
    }
    struct Report {
        faults: Address, out: Address, parts: [MatrixView; REPORTED_MATRICES], rows: [u32; REPORTED_MATRICES],
    }
    kernel CHECK_OFFSETS = check_offsets(Intake, THREADS);
    kernel TAKE_IDS = take_ids(Intake, THREADS);
    kernel TAKE_NUMBERS = take_numbers(Intake, THREADS);
    kernel REPORT = report(Report, THREADS);
}

program! {
    LOOKUP = "lookup.cu";
    struct Gather {
        batch: Address, lookups: Address, out: MatrixView,
        first_row: u32, rows: u32, first_column: u32, holder_columns: u32,
    }
    struct GatherDense {
        dense: Address, columns: Address, out: MatrixView,
        all_columns: u32, count: u32, first_row: u32, rows: u32, first_column: u32, unused: u32,
    }
    struct Linear {
        batch: Address, lookups: Address, dense: Address, columns: Address,
        weights: MatrixView, bias: MatrixView, out: MatrixView,
        lookup_count: u32, all_columns: u32, dense_count: u32, first_row: u32, rows: u32, unused: u32,
    }
    struct LinearBackward {
        dense: Address, columns: Address, out_grad: MatrixView, partials: Address,
        all_columns: u32, dense_count: u32, first_row: u32, rows: u32,
    }
    kernel GATHER = gather(Gather, THREADS);
    kernel GATHER_PACKED = gather_packed(Gather, THREADS);
    kernel GATHER_SEQUENCES = gather_sequences(Gather, THREADS);
    kernel GATHER_MAXIMA = gather_maxima(Gather, THREADS);
    kernel GATHER_DENSE = gather_dense(GatherDense, THREADS);
    kernel LINEAR = linear(Linear, THREADS);
    kernel LINEAR_BACKWARD = linear_backward(LinearBackward, COLUMN_THREADS);
}

program! {
    PLAN = "plan.cu";
    struct Plan {
        batch: Address, columns: Address, groups: Address, starts: Address, sizes: Address,
        rows: u32, group_count: u32, pass: u32, unused: u32,
    }
    kernel SIZE_GROUPS = size_groups(Plan, THREADS);
    kernel FILL_GROUPS = fill_groups(Plan, THREADS);
    kernel COUNT_DIGITS = count_digits(Plan, THREADS);
    kernel PLACE_DIGITS = place_digits(Plan, THREADS);
    kernel MOVE_IDS = move_ids(Plan, THREADS);
}

program! {
    ROWS = "rows.cu";
    struct StepRows {
        update: UpdateView, batch: Address, tables: Address, scale: Address, fault: Address, gradient: MatrixView,
        key: u64, use_of_sums: u32, holder_columns: u32,
    }
    struct RowSquares { tables: Address, sum: Address, table_count: u32, unused: u32 }
    kernel STEP_PIECES = step_pieces(StepRows, ROW_THREADS);
    kernel STEP_PIECES_OF_MAXIMA = step_pieces_of_maxima(StepRows, ROW_THREADS);
    kernel STEP_SPANS = step_spans(StepRows, THREADS);
    kernel ADD_ROW_SQUARES = add_row_squares(RowSquares, SUM_THREADS);
}

program! {
    MERGE = "merge.cu";
    struct Merge {
        lists: Address, tiles: Address, sections: Address, counts: Address, section_words: u64,
        list_count: u32, tile_count: u32, ranks: u32, is_packing: u32, format: u32, unit_numbers: u32,
    }
    kernel MERGE_IDS = merge_ids(Merge, THREADS);
    kernel COUNT_ROWS = count_rows(Merge, SCAN_THREADS);
    kernel NUMBER_ROWS = number_rows(Merge, SCAN_THREADS);
    kernel PACK_ROWS = pack_rows(Merge, SCAN_THREADS);
    kernel MERGE_ROWS = merge_rows(Merge, SCAN_THREADS);
}

program! {
    LAYER = "layer.cu";
    struct Finish {
        sums: MatrixView, bias: MatrixView, output: MatrixView,
        rows: u32, is_biased: u32, is_rectified: u32, unused: u32,
    }
    struct Mask {
        output: MatrixView, gradient: MatrixView, partials: Address,
        rows: u32, is_rectified: u32, lanes: u32, unused: u32,
    }
    struct Weigh { input: MatrixView, gradient: MatrixView, partials: Address, rows: u32, unused: u32 }
    struct FinishColumns {
        partials: Address, first: MatrixView, second: MatrixView,
        factor: f32, columns: u32, stride: u32, shares: u32, adds: u32, unused: u32,
    }
    kernel FINISH_LAYER = finish_layer(Finish, THREADS);
    kernel MASK_GRADIENT = mask_gradient(Mask, THREADS);
    kernel WEIGH_INPUTS = weigh_inputs(Weigh, COLUMN_THREADS);
    kernel FINISH_COLUMNS = finish_columns(FinishColumns, COLUMN_THREADS);
}

program! {
    INTERACTION = "interaction.cu";
    struct Fm {
        vectors: MatrixView, logits: MatrixView, vectors_grad: MatrixView,
        rows: u32, count: u32, width: u32, unused: u32,
    }
    struct Cross {
        first: MatrixView, product: MatrixView, input: MatrixView, output: MatrixView,
        output_grad: MatrixView, product_grad: MatrixView, first_grad: MatrixView, rows: u32, unused: u32,
    }
    kernel FM_FORWARD = fm_forward(Fm, THREADS);
    kernel FM_BACKWARD = fm_backward(Fm, THREADS);
    kernel CROSS_FORWARD = cross_forward(Cross, THREADS);
    kernel CROSS_BACKWARD = cross_backward(Cross, THREADS);
}

program! {
    DOT = "dot.cu";
    struct Dot {
        vectors: MatrixView, out: MatrixView, vectors_grad: MatrixView,
        rows: u32, count: u32, width: u32, unused: u32,
    }
    kernel DOT_FORWARD = dot_forward(Dot, 128);
    kernel DOT_BACKWARD = dot_backward(Dot, 128);
    kernel DOT_FORWARD_TENSOR = dot_forward_tensor(Dot, 128);
    kernel DOT_BACKWARD_TENSOR = dot_backward_tensor(Dot, 128);
}

program! {
    ATTENTION = "attention.cu";
    struct Attention {
        vectors: MatrixView, pairs: MatrixView, scores: MatrixView, sum: MatrixView, vectors_grad: MatrixView,
        first: u32, target: u32, values: u32, width: u32, rows: u32, first_column: u32,
    }
    kernel PAIR_FORWARD = pair_forward(Attention, THREADS);
    kernel PAIR_BACKWARD = pair_backward(Attention, THREADS);
    kernel ATTEND_FORWARD = attend_forward(Attention, THREADS);
    kernel ATTEND_BACKWARD = attend_backward(Attention, THREADS);
}

program! {
    MIXTURE = "mixture.cu";
    struct Mixture {
        logits: MatrixView, experts: MatrixView, gates: MatrixView, output: MatrixView,
        output_grad: MatrixView, logits_grad: MatrixView, experts_grad: MatrixView,
        rows: u32, tasks: u32, count: u32, width: u32,
    }
    kernel MIXTURE_FORWARD = mixture_forward(Mixture, THREADS);
    kernel MIXTURE_BACKWARD = mixture_backward(Mixture, THREADS);
}

program! {
    NORMALIZE = "normalize.cu";
    struct Moments {
        input: MatrixView, mean: MatrixView, variance: MatrixView, partials: Address, rows: u32, unused: u32,
    }
    struct MergeMoments { moments: MatrixView, mean: MatrixView, variance: MatrixView, rows: u32, part: u32 }
    struct Normalize {
        input: MatrixView, mean: MatrixView, variance: MatrixView, scale: MatrixView, shift: MatrixView,
        output: MatrixView, gradient: MatrixView, scale_sums: MatrixView, shift_sums: MatrixView,
        partials: Address, of_rows: Address,
        epsilon: f32, rows: u32, all_rows: u32, is_by_row: u32, is_rectified: u32, unused: u32,
    }
    kernel ROW_MOMENTS = row_moments(Moments, THREADS);
    kernel COLUMN_MEANS = column_means(Moments, COLUMN_THREADS);
    kernel COLUMN_VARIANCES = column_variances(Moments, COLUMN_THREADS);
    kernel MERGE_MOMENTS = merge_moments(MergeMoments, THREADS);
    kernel NORMALIZE_FORWARD = normalize_forward(Normalize, THREADS);
    kernel NORMALIZE_BY_PARAMETERS = normalize_by_parameters(Normalize, COLUMN_THREADS);
    kernel NORMALIZE_ROW_MEANS = normalize_row_means(Normalize, THREADS);
    kernel NORMALIZE_BACKWARD = normalize_backward(Normalize, THREADS);
}

program! {
    VECTORS = "vectors.cu";
    struct Vectors { left: MatrixView, right: MatrixView, out: MatrixView, factor: f32, rows: u32 }
    struct InBatch {
        scores: MatrixView, labels: Address, weights: Address, items: Address, weight: Address,
        of_rows: Address, temperature: f32, first_row: u32, rows: u32, all_rows: u32,
    }
    kernel ROW_PRODUCTS = row_products(Vectors, THREADS);
    kernel UNIT_FORWARD = unit_forward(Vectors, THREADS);
    kernel UNIT_BACKWARD = unit_backward(Vectors, THREADS);
    kernel IN_BATCH_SOFTMAX = in_batch_softmax(InBatch, THREADS);
    kernel IN_BATCH_PAIRS = in_batch_pairs(InBatch, THREADS);
}

program! {
    LOSS = "loss.cu";
    struct LossOf {
        labels: Address, weights: Address, class_weights: Address,
        logits: MatrixView, gradient: MatrixView, weight: Address, partials: Address,
        kind: u32, first_row: u32, rows: u32, column: u32,
        smoothing: f32, positive_weight: f32, negative_weight: f32, task_weight: f32,
        classes: u32, parameter: f32, total: f32, unused: u32,
    }
    struct Sums { partials: Address, first: Address, second: Address, count: u32, adds: u32 }
    struct Scores { logits: MatrixView, out: MatrixView, rows: u32, unused: u32 }
    kernel SUM_WEIGHTS = sum_weights(LossOf, THREADS);
    kernel LOSS_OF_ROWS = loss(LossOf, THREADS);
    kernel LOSS_OF_CLASSES = loss_of_classes(LossOf, THREADS);
    kernel FINISH_SUMS = finish_sums(Sums, SUM_THREADS);
    kernel SIGMOID = sigmoid(Scores, THREADS);
    kernel SOFTMAX = softmax(Scores, THREADS);
}

program! {
    LISTS = "lists.cu";
    struct Lists {
        logits: MatrixView, gradient: MatrixView, labels: Address, weights: Address, ids: Address,
        weight: Address, shares: Address, partials: Address,
        rows: u32, column: u32, task_weight: f32, total: f32,
    }
    kernel LOSS_OF_LISTS = loss_of_lists(Lists, THREADS);
    kernel SHARE_PAIRS = share_pairs(Lists, THREADS);
    kernel LOSS_OF_PAIRS = loss_of_pairs(Lists, THREADS);
}

program! {
    UPDATE = "update.cu";
    struct Step {
        update: UpdateView, weights: MatrixView, first: MatrixView, second: MatrixView, gradient: MatrixView,
        scale: Address, fault: Address, rows: u32, unused: u32,
    }
    struct Squares { matrix: MatrixView, partials: Address, rows: u32, unused: u32 }
    struct AddUp { partials: Address, sum: Address, count: u32, unused: u32 }
    struct Scale {
        squares: Address, scale: Address, state: Address, fault: Address,
        growth: f32, backoff: f32, maximum: f32, growth_interval: u32,
    }
    struct Steps { of: [Step; STEPS_AT_ONCE] }
    kernel STEP = step(Steps, THREADS);
    kernel SQUARES = squares(Squares, THREADS);
    kernel ADD_UP = add_up(AddUp, SUM_THREADS);
    kernel SET_SCALE = set_scale(Scale, 1);
}
