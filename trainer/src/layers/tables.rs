//! Lookup tables for a batch's ids.

use millstream_backend::{Device, Lookup, Sequence, TableShape};

use crate::layers::WholeTables;
use crate::optimizer::Optimizer;
use crate::parameter::{Parameter, ParameterSpec, Parameters, Storage};

/// Tables with one optimizer. Each is used by one or several id columns.
pub struct Tables<D: Device> {
    /// The lookups, in the order of the tables.
    pub lookups: Vec<Lookup>,
    /// `[C, W]` each.
    pub tables: Vec<D::Table>,
    /// The ids that hold the maxima of a batch's lookups, `[B, ..]`; `None` if no lookup has maxima.
    pub maxima: Option<D::Maxima>,
    /// The optimizer that trains them.
    pub optimizer: Optimizer,
    /// The touched rows of all workers, if several train together.
    pub merged: Option<D::MergedRows>,
    /// Those that workers sum as a whole if they exchange gradients by way of host memory, if there are any.
    pub whole: Option<WholeTables>,
    specs: Vec<ParameterSpec>,
}

impl<D: Device> Tables<D> {
    /// Allocates tables `[C, W]` for `lookups` of batches of up to `rows` rows; `optimizer` trains them all. If several workers
    /// train together, `merged` has room for their rows, and says which tables are summed as a whole.
    pub fn new(
        device: &D,
        rows: usize,
        lookups: Vec<Lookup>,
        specs: Vec<ParameterSpec>,
        optimizer: Optimizer,
        merged: Option<(D::MergedRows, Option<WholeTables>)>,
    ) -> Self {
        let tables = specs.iter().map(|spec| device.table(spec.table_shape())).collect();
        let maxima = Lookup::all_maxima(&lookups, |table| specs[table].columns);
        let maxima = (maxima > 0).then(|| device.maxima(rows, maxima));
        let (merged, whole) = merged.map_or((None, None), |(merged, whole)| (Some(merged), whole));
        Self { lookups, tables, maxima, specs, optimizer, merged, whole }
    }

    /// The total width of all lookups.
    pub fn widths(&self) -> usize {
        self.lookups.iter().map(|lookup| lookup.columns(self.specs[lookup.table].columns)).sum()
    }

    /// The sequence of two lookups in one table: of a history, which is not pooled, and of its target.
    pub fn sequence(&self, history: &Lookup, target: &Lookup) -> Sequence {
        Sequence {
            first: history.first,
            target: target.first,
            values: history.pooling.vectors(),
            width: self.specs[history.table].columns,
        }
    }

    /// The shape of each table.
    pub fn shapes(&self) -> Vec<TableShape> {
        self.specs.iter().map(ParameterSpec::table_shape).collect()
    }

    /// Whether there are no tables.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }
}

impl<D: Device> Parameters<D> for Tables<D> {
    fn visit<'a>(&'a mut self, visit: &mut dyn FnMut(Parameter<'a, D>)) {
        for (spec, table) in self.specs.iter().zip(&mut self.tables) {
            visit(Parameter { spec, storage: Storage::Table(table) });
        }
    }
}
