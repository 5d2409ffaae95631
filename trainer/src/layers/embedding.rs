//! Embeddings of a batch's ids beside its dense columns: the input of a deep model.

use millstream_backend::{Backend, Device, GradientColumns, ops};

use crate::gradients::GradientVisitor;
use crate::layers::tables::Tables;
use crate::parameter::{ParameterSpec, Parameters, Stored, StoredMut};
use crate::pass::Pass;

/// A table for each feature of ids, or for several that share it; dense columns pass through.
pub struct Embedding<D: Device> {
    /// `[C, W]` each.
    pub tables: Tables<D>,
    /// Columns of the batch.
    pub dense: Vec<usize>,
}

impl<D: Device> Embedding<D> {
    /// Columns that all features of ids give together, `E`.
    pub fn embedded(&self) -> usize {
        self.tables.widths()
    }

    /// Columns that it gives, `E` and the dense ones.
    pub fn outputs(&self) -> usize {
        self.embedded() + self.dense.len()
    }
}

impl<B: Backend> Embedding<B> {
    /// Fills `output` `[B, first_column + E + dense columns]` from `first_column` on: features of ids side by
    /// side, then dense columns.
    pub fn forward(
        &self,
        backend: &B,
        batch: &B::Batch,
        pass: &Pass,
        output: &mut B::Matrix,
        first_column: usize,
    ) {
        let Tables { lookups, tables, .. } = &self.tables;
        backend.run(ops::Gather {
            batch,
            rows: pass.rows.clone(),
            lookups,
            tables,
            dense: &self.dense,
            out: output,
            first_column,
        });
    }

    /// Shows the tables with the gradient by the output, or by no more than its first columns up to the tables'
    /// last.
    pub fn visit_gradients(
        &mut self,
        output_grad: &B::Matrix,
        first_column: usize,
        visitor: &mut dyn GradientVisitor<B>,
    ) {
        visitor.tables(&mut self.tables, output_grad, GradientColumns::Apart { first: first_column });
    }
}

impl<D: Device> Parameters<D> for Embedding<D> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        self.tables.stored()
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        self.tables.stored_mut()
    }
}
