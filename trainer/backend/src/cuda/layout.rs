//! GPU memory usage, computed without a GPU.

use millstream_batch::BatchSchema;

use super::batch::CudaBatch;
use super::blas::WORKSPACE_BYTES;
use super::buffers::{CudaMaxima, CudaTable, Shape};
use super::driver::Memory;
use super::kernels::Faults;
use super::plan::CudaRowPlan;
use super::{Cuda, layers, lists, lookups, losses, merged_rows, normalize, report, rows, updates};
use crate::device::{IdColumn, TableShape, WorkspaceUse};
use crate::float::Float;
use crate::merged_rows::PartRows;
use crate::sizes::{Layout, OperationBytes};

impl Layout for Cuda {
    const IS_APART: bool = true;

    fn base_bytes() -> u64 {
        Memory::taken(WORKSPACE_BYTES) + Memory::taken(size_of::<Faults>())
    }

    fn matrix_bytes(float: Float, rows: usize, columns: usize) -> u64 {
        Memory::taken(Shape::of(float, rows, columns).bytes())
    }

    fn table_bytes(shape: TableShape) -> u64 {
        Memory::taken(CudaTable::bytes(shape))
    }

    fn batch_bytes(schema: &BatchSchema) -> u64 {
        CudaBatch::bytes_of(schema)
    }

    fn staging_bytes(schema: &BatchSchema) -> u64 {
        CudaBatch::staging_bytes_of(schema)
    }

    fn row_plan_bytes(schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> u64 {
        CudaRowPlan::bytes_of(schema, groups)
    }

    fn maxima_bytes(rows: usize, columns: usize) -> u64 {
        Memory::taken(CudaMaxima::bytes(rows, columns))
    }

    fn merged_rows_bytes(shapes: &[TableShape], rows: PartRows<'_>) -> u64 {
        merged_rows::bytes(shapes, rows)
    }

    fn report_bytes(numbers: usize) -> u64 {
        Memory::taken(report::bytes(numbers))
    }

    fn operation_bytes(operation: &WorkspaceUse<'_>) -> OperationBytes {
        let own = match *operation {
            WorkspaceUse::Lookups { lookups, shapes, dense, .. } => {
                lookups::constant_bytes(lookups, dense) + rows::constant_bytes(lookups, shapes)
            }
            WorkspaceUse::RowSums { shapes, .. } => rows::table_bytes(shapes),
            WorkspaceUse::Loss { classes, .. } => losses::constant_bytes(classes),
            _ => 0,
        };
        OperationBytes { shared: Memory::taken(scratch_bytes(operation)), own }
    }
}

/// The largest workspace that an operation requests from [`Cuda::scratch`].
pub(super) fn scratch_bytes(operation: &WorkspaceUse<'_>) -> usize {
    match *operation {
        WorkspaceUse::Layer { float, rows, inputs, outputs } => {
            layers::scratch_bytes(float, rows, inputs, outputs)
        }
        WorkspaceUse::Normalization { axis, rows, columns } => normalize::scratch_bytes(axis, rows, columns),
        WorkspaceUse::Lookups { schema, lookups, shapes, .. } => {
            rows::scratch_bytes(schema, lookups, shapes, false)
        }
        WorkspaceUse::RowSums { schema, lookups, shapes } => {
            rows::scratch_bytes(schema, lookups, shapes, true)
        }
        WorkspaceUse::MergedRows { shapes, rows } => merged_rows::scratch_bytes(shapes, rows),
        WorkspaceUse::Linear { rows, dense, outputs } => lookups::scratch_bytes(rows, dense, outputs),
        WorkspaceUse::Loss { rows, classes } => losses::scratch_bytes(rows, classes > 0),
        WorkspaceUse::Lists { rows } => lists::scratch_bytes(rows),
        WorkspaceUse::Squares => updates::SCRATCH_BYTES,
        WorkspaceUse::Transfer { numbers } => numbers * size_of::<f32>(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{alone, count};
    use super::*;
    use crate::{Backend, Device};

    #[test]
    fn what_is_held_is_what_the_driver_has_given() {
        let (stand_in, cuda) = alone();
        // The emulated driver allocates exactly the requested size.
        let is_held = || {
            let (given, pieces) = (count(&stand_in, c"bytes"), count(&stand_in, c"allocations"));
            let held = cuda.held_bytes();
            assert!(
                (given..given + 512 * pieces).contains(&held),
                "{held} of {given} bytes, {pieces} pieces"
            );
            (held, pieces)
        };
        assert_eq!(is_held(), (Cuda::base_bytes(), 2));
        let mut matrix = cuda.matrix(100, 30);
        assert_eq!(is_held(), (Cuda::base_bytes() + Cuda::matrix_bytes(Float::F32, 100, 30), 3));
        // The workspace only grows: a larger one replaces a smaller one.
        for (numbers, more) in [(1_000, 4_096), (3_000, 12_288), (2_000, 12_288)] {
            cuda.reserve_workspace(&WorkspaceUse::Transfer { numbers });
            let planned = Cuda::base_bytes() + Cuda::matrix_bytes(Float::F32, 100, 30) + more;
            assert_eq!(is_held(), (planned, 4), "{numbers}");
        }
        cuda.write_matrix(&mut matrix, &[1.0; 3_000]);
        assert_eq!(is_held().1, 4);
        drop(matrix);
        cuda.read_matrix(&cuda.matrix(1, 1), &mut [0.0]);
        assert_eq!(is_held(), (Cuda::base_bytes() + 12_288, 3));
    }

    #[test]
    fn large_pieces_have_pages_of_their_own() {
        let taken = [0, 1, 512, 513, 1 << 20, (1 << 20) + 1, 2 << 20, (2 << 20) + 1].map(Memory::taken);
        assert_eq!(taken, [0, 512, 512, 1_024, 1 << 20, 2 << 20, 2 << 20, 4 << 20]);
    }
}
