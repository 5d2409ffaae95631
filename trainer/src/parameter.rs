//! Parameters: trained tensors with their optimizer state, as a model holds them and as a checkpoint
//! sees them.
//!
//! Names are stable: they are the keys of a checkpoint's safetensors files. A parameter's optimizer
//! state is named after it (`deep.layer.0.weight/accumulator`).

use millstream_backend::{
    Backend, Device, Float, Layout, Scalar, Sizes, TablePart, TablePlace, TableShape, Update, WorkspaceUse,
    ops,
};

use crate::init::{Init, key_of};
use crate::optimizer::Optimizer;

/// Numbers drawn at once while a parameter is filled.
const FILL_NUMBERS: usize = 1 << 16;

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    /// Unique within the model.
    pub name: String,
    /// Row-major.
    pub shape: Vec<usize>,
    /// Which file of a checkpoint it belongs to.
    pub role: TensorRole,
}

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorRole {
    /// Needed to predict: `model.safetensors`.
    Parameter,
    /// Needed to go on training, too: `optimizer.safetensors`.
    OptimizerState,
}

impl NamedTensor {
    /// Numbers held.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A parameter before there is memory for it.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSpec {
    /// Its name in checkpoints.
    pub name: String,
    /// Rows, as backends see it.
    pub rows: usize,
    /// Columns, as backends see it.
    pub columns: usize,
    /// Its shape in checkpoints: `[rows, columns]`, or one number for a vector.
    pub shape: Vec<usize>,
    /// The format of its numbers; those of matrices and of optimizer state have single precision.
    pub float: Float,
    /// How it starts.
    pub init: Init,
    /// What trains it; `None` for what is kept beside the trained parameters and scores like them.
    pub optimizer: Option<Optimizer>,
}

/// More numbers than memory can hold.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("parameter `{parameter}` of {rows} rows of {columns} numbers does not fit in memory")]
pub struct ParameterTooLarge {
    /// Its name.
    pub parameter: String,
    /// Its rows.
    pub rows: usize,
    /// Its columns.
    pub columns: usize,
}

impl ParameterSpec {
    /// A matrix or table.
    ///
    /// # Errors
    /// When no allocation can hold it.
    pub fn matrix(
        name: String,
        (rows, columns): (usize, usize),
        init: Init,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let (shape, optimizer) = (vec![rows, columns], Some(optimizer));
        Self { name, rows, columns, shape, float: Float::F32, init, optimizer }.checked()
    }

    /// The same, a table whose weights have the format `float`.
    #[must_use]
    pub fn of_float(self, float: Float) -> Self {
        Self { float, ..self }
    }

    /// A vector that backends see as one row.
    ///
    /// # Errors
    /// As [`ParameterSpec::matrix`].
    pub fn row(
        name: String,
        columns: usize,
        init: Init,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let optimizer = Some(optimizer);
        Self { name, rows: 1, columns, shape: vec![columns], float: Float::F32, init, optimizer }.checked()
    }

    /// The same, which nothing trains.
    ///
    /// # Errors
    /// As [`ParameterSpec::matrix`].
    pub fn untrained_row(name: String, columns: usize, init: Init) -> Result<Self, ParameterTooLarge> {
        Self { name, rows: 1, columns, shape: vec![columns], float: Float::F32, init, optimizer: None }
            .checked()
    }

    /// A vector that backends see as one column.
    ///
    /// # Errors
    /// As [`ParameterSpec::matrix`].
    pub fn column(
        name: String,
        rows: usize,
        init: Init,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let optimizer = Some(optimizer);
        Self { name, rows, columns: 1, shape: vec![rows], float: Float::F32, init, optimizer }.checked()
    }

    /// Refuses what no allocation can hold, before anything is allocated.
    fn checked(self) -> Result<Self, ParameterTooLarge> {
        const WORST_FLOATS_A_NUMBER: usize = 16;
        let limit = isize::MAX as usize / size_of::<f64>() / WORST_FLOATS_A_NUMBER;
        if self.rows.checked_mul(self.columns).is_some_and(|numbers| numbers <= limit) {
            return Ok(self);
        }
        Err(ParameterTooLarge { parameter: self.name, rows: self.rows, columns: self.columns })
    }

    /// Weights first, then each array of state.
    pub fn parts(&self) -> impl Iterator<Item = TablePart> + use<> {
        let states = self.states().iter().map(|&(_, part)| part);
        std::iter::once(TablePart::Weights).chain(states)
    }

    /// Each array of optimizer state: its name in checkpoints and where backends have it.
    fn states(&self) -> &'static [(&'static str, TablePart)] {
        self.optimizer.as_ref().map_or(&[], Optimizer::states)
    }

    /// One part, as a checkpoint sees it.
    pub fn tensor(&self, part: TablePart) -> NamedTensor {
        let state = self.states().iter().find(|(_, state)| *state == part);
        let Some((state, _)) = state else {
            let (name, shape) = (self.name.clone(), self.shape.clone());
            return NamedTensor { name, shape, role: TensorRole::Parameter };
        };
        let shape = match part {
            TablePart::RowState(_) => vec![self.rows],
            TablePart::Weights | TablePart::State(_) => self.shape.clone(),
        };
        NamedTensor { name: format!("{}/{state}", self.name), shape, role: TensorRole::OptimizerState }
    }

    /// Trained numbers.
    pub fn len(&self) -> usize {
        self.rows * self.columns
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of the table that holds it.
    pub fn table_shape(&self) -> TableShape {
        let count = |of_rows| {
            let is_of_rows = |part: &TablePart| matches!(part, TablePart::RowState(_));
            self.states().iter().filter(|(_, part)| is_of_rows(part) == of_rows).count()
        };
        let (states, row_states) = (count(false), count(true));
        let key = key_of(0, &self.name);
        TableShape { rows: self.rows, width: self.columns, float: self.float, key, states, row_states }
    }

    /// How `part` starts.
    pub fn init_of(&self, part: TablePart) -> Init {
        match part {
            TablePart::Weights => self.init,
            TablePart::State(_) | TablePart::RowState(_) => {
                self.optimizer.map_or(Init::Zeros, |optimizer| optimizer.initial_state(part))
            }
        }
    }
}

/// A small parameter: a matrix, its gradient and state matrices of the same shape.
pub struct MatrixParameter<D: Device> {
    /// What it is.
    pub spec: ParameterSpec,
    /// The weights.
    pub value: D::Matrix,
    /// The loss's gradient by them, from the last backward pass.
    pub gradient: D::Matrix,
    states: Vec<D::Matrix>,
}

impl<D: Device> MatrixParameter<D> {
    /// Makes buffers for the parameter.
    pub fn new(device: &D, spec: ParameterSpec) -> Self {
        let matrix = || device.matrix(spec.rows, spec.columns);
        let states = spec.states().iter().map(|_| matrix()).collect();
        device.reserve_workspace(&WorkspaceUse::Transfer { numbers: spec.len() });
        Self { value: matrix(), gradient: matrix(), states, spec }
    }

    /// The parameter, to read.
    pub fn stored(&self) -> (&ParameterSpec, Stored<'_, D>) {
        (&self.spec, Stored::Matrix { value: &self.value, states: &self.states })
    }

    /// The parameter, to replace.
    pub fn stored_mut(&mut self) -> (&ParameterSpec, StoredMut<'_, D>) {
        (&self.spec, StoredMut::Matrix { value: &mut self.value, states: &mut self.states })
    }
}

impl<B: Backend> MatrixParameter<B> {
    /// One optimizer step by `gradient`; `scale` as [`Update`] has it.
    pub fn step(&mut self, backend: &B, update: &Update, scale: &B::Matrix) {
        backend.run(ops::Step {
            update,
            scale,
            weights: &mut self.value,
            states: &mut self.states,
            grad: &self.gradient,
        });
    }
}

/// Where a parameter lies.
pub enum Stored<'a, D: Device> {
    /// In matrices of one shape.
    Matrix {
        /// The weights.
        value: &'a D::Matrix,
        /// Optimizer state.
        states: &'a [D::Matrix],
    },
    /// In a table, with its state.
    Table(&'a D::Table),
}

impl<L: Layout> Stored<'_, Sizes<L>> {
    /// Bytes that it takes with its state.
    pub(crate) fn bytes(&self, spec: &ParameterSpec) -> u64 {
        let counted = Sizes::<L>::default();
        match self {
            Self::Matrix { states, .. } => {
                (0..=states.len()).for_each(|_| counted.matrix(spec.rows, spec.columns));
            }
            Self::Table(()) => counted.table(spec.table_shape()),
        }
        counted.bytes()
    }

    /// Bytes of a copy of it.
    pub(crate) fn copy_bytes(&self, spec: &ParameterSpec) -> u64 {
        let numbers = match self {
            Self::Table(()) => L::copied_numbers(spec.table_shape()),
            Self::Matrix { .. } => spec.parts().map(|part| spec.tensor(part).len()).sum(),
        };
        (numbers * size_of::<f32>()) as u64
    }
}

impl<B: Backend> Stored<'_, B> {
    /// Copies a whole part to the host.
    pub fn read(&self, backend: &B, part: TablePart, out: &mut [B::Scalar]) {
        match *self {
            Self::Matrix { value, states } => read_matrix(backend, value, states, part, out),
            Self::Table(table) => backend.read_table(table, part, 0, out),
        }
    }

    /// Numbers of a copy.
    pub fn copy_len(&self, spec: &ParameterSpec) -> usize {
        match self {
            Self::Table(_) => B::copied_numbers(spec.table_shape()),
            Self::Matrix { .. } => spec.parts().map(|part| spec.tensor(part).len()).sum(),
        }
    }

    /// Where a copy has the numbers of `part`.
    pub fn place(&self, spec: &ParameterSpec, part: TablePart) -> TablePlace {
        if let Self::Table(_) = self {
            return B::table_place(spec.table_shape(), part);
        }
        let before = spec.parts().take_while(|&other| other != part);
        let first = before.map(|part| spec.tensor(part).len()).sum();
        TablePlace { first, stride: spec.columns }
    }

    /// Copies all of it, as fast as can be, to `out`, which has buffers for just that.
    pub fn copy(&self, backend: &B, spec: &ParameterSpec, mut out: &mut [B::Scalar]) {
        if let Self::Table(table) = self {
            return backend.run(ops::CopyTable { table: *table, out });
        }
        for part in spec.parts() {
            let (this, rest) = out.split_at_mut(spec.tensor(part).len());
            self.read(backend, part, this);
            out = rest;
        }
    }
}

/// Where a parameter lies, to replace it.
pub enum StoredMut<'a, D: Device> {
    /// In matrices of one shape.
    Matrix {
        /// The weights.
        value: &'a mut D::Matrix,
        /// Optimizer state.
        states: &'a mut [D::Matrix],
    },
    /// In a table, with its state.
    Table(&'a mut D::Table),
}

impl<B: Backend> StoredMut<'_, B> {
    /// Copies a whole part to the host.
    pub fn read(&self, backend: &B, part: TablePart, out: &mut [B::Scalar]) {
        match self {
            Self::Matrix { value, states } => read_matrix(backend, value, states, part, out),
            Self::Table(table) => backend.read_table(table, part, 0, out),
        }
    }

    /// Replaces a whole part.
    pub fn write(&mut self, backend: &B, part: TablePart, values: &[B::Scalar]) {
        match (self, part) {
            (Self::Matrix { value, .. }, TablePart::Weights) => backend.write_matrix(value, values),
            (Self::Matrix { states, .. }, TablePart::State(state)) => {
                backend.write_matrix(&mut states[state], values);
            }
            (Self::Matrix { .. }, TablePart::RowState(_)) => panic!("a matrix has no state of rows"),
            (Self::Table(table), part) => backend.write_table(table, part, 0, values),
        }
    }

    /// Fills every part with what it starts from; a table part by part, some rows at a time.
    pub fn initialise(&mut self, backend: &B, spec: &ParameterSpec, seed: u64) {
        for part in spec.parts() {
            let init = spec.init_of(part);
            if let Self::Table(table) = self {
                initialise_table(backend, table, spec, part, init, seed);
            } else {
                let values = init.values(seed, &spec.name, 0).take(spec.len());
                self.write(backend, part, &values.map(B::Scalar::from_f64).collect::<Vec<_>>());
            }
        }
    }
}

fn read_matrix<B: Backend>(
    backend: &B,
    value: &B::Matrix,
    states: &[B::Matrix],
    part: TablePart,
    out: &mut [B::Scalar],
) {
    match part {
        TablePart::Weights => backend.read_matrix(value, out),
        TablePart::State(state) => backend.read_matrix(&states[state], out),
        TablePart::RowState(_) => panic!("a matrix has no state of rows"),
    }
}

fn initialise_table<B: Backend>(
    backend: &B,
    table: &mut B::Table,
    spec: &ParameterSpec,
    part: TablePart,
    init: Init,
    seed: u64,
) {
    // A table is made of zeros.
    if init == Init::Zeros {
        return;
    }
    let columns = spec.table_shape().part_width(part);
    let rows_at_once = (FILL_NUMBERS / columns.max(1)).max(1);
    let mut values = Vec::with_capacity(rows_at_once * columns);
    for first_row in (0..spec.rows).step_by(rows_at_once) {
        let count = rows_at_once.min(spec.rows - first_row) * columns;
        let from = (first_row * columns) as u64;
        values.clear();
        values.extend(init.values(seed, &spec.name, from).take(count).map(B::Scalar::from_f64));
        backend.write_table(table, part, first_row, &values);
    }
}

/// What a layer or model holds of parameters.
pub trait Parameters<D: Device> {
    /// Every parameter that holds anything, in a fixed order, to read.
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)>;
    /// The same, to replace.
    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)>;
}
