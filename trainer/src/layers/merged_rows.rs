//! The touched rows of tables over all parts of a batch, each of which one of several workers has.
//!
//! Each worker sums the gradients of the rows that a part touches. All workers then get the sums of all parts, and each
//! applies them to its own tables. For that, the sums of a table are treated as a batch with one id per row,
//! each with its gradient. The operations that sum and step the rows of any batch then merge the sums of all parts, in the
//! order of the parts.

use std::sync::Arc;

use millstream_backend::{
    Backend, BatchError, Device, GradientColumns, IdColumn, Lookup, Pooling, RowGradients, RowSums,
    TableShape, WorkspaceUse, ops,
};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, SlotLayout};

use crate::parameter::ParameterSpec;

/// The lookup of the only table of a merged batch.
const LOOKUP: Lookup = Lookup { column: IdColumn::Single(0), pooling: Pooling::Sum, table: 0, first: 0 };

/// The merged rows of some tables.
pub struct MergedRows<D: Device> {
    tables: Vec<MergedTable<D>>,
}

/// The merged rows of a table.
struct MergedTable<D: Device> {
    schema: BatchSchema,
    /// The table's width.
    width: usize,
    /// The batch on the host, once there is one.
    host: Option<BatchBuffer>,
    batch: D::Batch,
    plan: D::RowPlan,
    /// `[B, W]`
    gradient: D::Matrix,
}

impl<D: Device> MergedRows<D> {
    /// Allocates room for the sums of `parts` parts of a batch, each of which touches at most `touched` rows of each of the
    /// tables `specs`. `None` if there can be too many rows.
    pub fn new(device: &D, specs: &[ParameterSpec], touched: &[usize], parts: usize) -> Option<Self> {
        let table = |(spec, &touched): (&ParameterSpec, &usize)| {
            let rows = touched.min(spec.rows).checked_mul(parts)?;
            let schema = schema_of(spec, u32::try_from(rows).ok()?);
            SlotLayout::of(&schema).ok()?;
            let shape = spec.table_shape();
            reserve_workspace(device, &schema, shape);
            Some(MergedTable {
                width: shape.width,
                host: None,
                batch: device.batch(&schema),
                plan: device.row_plan(&schema, &[vec![LOOKUP.column]]),
                gradient: device.matrix(rows, shape.width),
                schema,
            })
        };
        Some(Self { tables: specs.iter().zip(touched).map(table).collect::<Option<_>>()? })
    }

    /// The widths of the tables.
    pub fn widths(&self) -> Vec<usize> {
        self.tables.iter().map(|table| table.width).collect()
    }

    /// The most values and ids that the sums of all parts have.
    pub fn most_sums(&self) -> usize {
        self.tables.iter().map(|table| table.schema.rows as usize * (table.width + 1)).sum()
    }
}

/// Batches of the merged rows of a table.
fn schema_of(spec: &ParameterSpec, rows: u32) -> BatchSchema {
    let cardinality = u32::try_from(spec.rows).unwrap_or(u32::MAX);
    let ids = vec![IdFeature { name: spec.name.clone(), cardinality }];
    BatchSchema { rows, ids, ..BatchSchema::default() }
}

fn reserve_workspace<D: Device>(device: &D, schema: &BatchSchema, shape: TableShape) {
    let usage = WorkspaceUse::Lookups { schema, lookups: &[LOOKUP], shapes: &[shape], dense: 0 };
    device.reserve_workspace(&usage);
    device.reserve_workspace(&WorkspaceUse::Transfer { numbers: schema.rows as usize * shape.width });
}

impl<B: Backend> MergedRows<B> {
    /// Takes the sums of all parts of a batch, in order. Returns whether they are of these tables.
    ///
    /// # Errors
    /// When an id is out of range.
    pub fn merge(&mut self, backend: &B, sums: &[RowSums<B::Scalar>]) -> Result<bool, BatchError> {
        let widths = self.widths();
        let Some(sums) = sums.iter().map(|sums| sums.by_table(&widths)).collect::<Option<Vec<_>>>() else {
            return Ok(false);
        };
        let mut gradients = Vec::new();
        for (number, table) in self.tables.iter_mut().enumerate() {
            let parts = || sums.iter().map(|tables| tables[number]);
            let rows = parts().map(|(ids, _)| ids.len()).sum::<usize>();
            if rows > table.schema.rows as usize {
                return Ok(false);
            }
            let batch = table.host.get_or_insert_with(|| {
                let layout = SlotLayout::of(&table.schema).expect("as when the rows were allocated");
                BatchBuffer::new(Arc::new(layout))
            });
            let mut slot = batch.as_mut();
            slot.set_header(&BatchHeader::train(rows as u32));
            let mut ids = slot.sections().ids;
            gradients.clear();
            for (of_part, sums) in parts() {
                let place = ids.split_off_mut(..of_part.len()).expect("room for all ids");
                place.copy_from_slice(of_part);
                gradients.extend_from_slice(sums);
            }
            backend.upload(batch.as_ref(), &mut table.batch)?;
            backend.run(ops::PlanRows { batch: &table.batch, plan: &mut table.plan });
            backend.write_matrix(&mut table.gradient, &gradients);
        }
        Ok(true)
    }

    /// The merged rows of each table, as gradients of that table alone.
    pub fn gradients(&self) -> impl Iterator<Item = RowGradients<'_, B>> {
        self.tables.iter().map(|table| RowGradients {
            batch: &table.batch,
            plan: &table.plan,
            lookups: &[LOOKUP],
            gradient: &table.gradient,
            columns: GradientColumns::Shared,
            maxima: None,
        })
    }
}
