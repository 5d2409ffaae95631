//! Tables that a batch's ids are looked up in.

use millstream_backend::{Device, Lookup};

use crate::optimizer::Optimizer;
use crate::parameter::{ParameterSpec, Parameters, Stored, StoredMut};

/// Tables with one optimizer, each looked up by a column of its own.
pub struct Tables<D: Device> {
    /// What is looked up in each.
    pub lookups: Vec<Lookup>,
    /// `[C, W]` each.
    pub tables: Vec<D::Table>,
    /// What trains them.
    pub optimizer: Optimizer,
    specs: Vec<ParameterSpec>,
}

impl<D: Device> Tables<D> {
    /// Makes room for tables `[C, W]`, each with what is looked up in it; `optimizer` trains them all.
    pub fn new(device: &D, tables: Vec<(Lookup, ParameterSpec)>, optimizer: Optimizer) -> Self {
        let (lookups, specs): (Vec<_>, Vec<ParameterSpec>) = tables.into_iter().unzip();
        let tables = specs.iter().map(|spec| device.table(spec.table_shape())).collect();
        Self { lookups, tables, specs, optimizer }
    }

    /// Columns of all tables together.
    pub fn widths(&self) -> usize {
        self.specs.iter().map(|spec| spec.columns).sum()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tables.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }
}

impl<D: Device> Parameters<D> for Tables<D> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        self.specs.iter().zip(self.tables.iter().map(Stored::Table)).collect()
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        self.specs.iter().zip(self.tables.iter_mut().map(StoredMut::Table)).collect()
    }
}
