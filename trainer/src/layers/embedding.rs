//! Embeddings of a batch's ids, concatenated with its dense columns: the input of a deep model.

use millstream_backend::{Backend, Device, GradientColumns, ops};

use crate::gradients::GradientVisitor;
use crate::layers::tables::Tables;
use crate::parameter::parameters;
use crate::pass::Pass;

/// A table for each id feature, or for several that share it. Dense columns are copied.
pub struct Embedding<D: Device> {
    /// `[C, W]` each.
    pub tables: Tables<D>,
    /// The dense columns of the batch.
    pub dense: Vec<usize>,
}

impl<D: Device> Embedding<D> {
    /// The total width of all embeddings, `E`.
    pub fn embedded(&self) -> usize {
        self.tables.widths()
    }

    /// The width of the output: `E` plus the dense columns.
    pub fn outputs(&self) -> usize {
        self.embedded() + self.dense.len()
    }
}

impl<B: Backend> Embedding<B> {
    /// Computes `output` `[B, first_column + E + dense columns]` from column `first_column` on: the
    /// embeddings of the id features, then the dense columns.
    pub fn forward(
        &mut self,
        backend: &B,
        batch: &B::Batch,
        pass: &Pass<'_, B>,
        output: &mut B::Matrix,
        first_column: usize,
    ) {
        let Tables { lookups, tables, maxima, .. } = &mut self.tables;
        backend.run(ops::Gather {
            batch,
            rows: pass.rows.clone(),
            lookups,
            tables,
            dense: &self.dense,
            out: output,
            first_column,
            maxima: maxima.as_mut(),
        });
    }

    /// Visits the tables with the gradient with respect to the output. The gradient may end after the tables'
    /// last column.
    pub fn visit_gradients(
        &mut self,
        output_grad: &B::Matrix,
        first_column: usize,
        visitor: &mut dyn GradientVisitor<B>,
    ) {
        visitor.tables(&mut self.tables, output_grad, GradientColumns::Apart { first: first_column });
    }
}

parameters!(Embedding: tables);
