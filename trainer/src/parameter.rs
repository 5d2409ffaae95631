//! Parameters: trained tensors with their optimizer state, in a model and in a checkpoint.
//!
//! Names are stable: they are the keys of a checkpoint's safetensors files. A parameter's optimizer
//! state is named after it (`deep.layer.0.weight/accumulator`).

use millstream_backend::{
    Backend, Device, Float, Layout, Scalar, Sizes, TablePart, TablePlace, TableShape, Update, WorkspaceUse,
    ops,
};

use crate::init::{Init, key_of};
use crate::optimizer::Optimizer;

/// Numbers generated at once while a parameter is filled.
const FILL_NUMBERS: usize = 1 << 16;

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    /// Unique within the model.
    pub name: String,
    /// Row-major.
    pub shape: Vec<usize>,
    /// The checkpoint file that contains it.
    pub role: TensorRole,
}

/// The role of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorRole {
    /// Needed to predict: `model.safetensors`.
    Parameter,
    /// Needed to resume training: `optimizer.safetensors`.
    OptimizerState,
}

impl NamedTensor {
    /// The number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A parameter without memory.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSpec {
    /// Its name in checkpoints.
    pub name: String,
    /// Its rows in a backend.
    pub rows: usize,
    /// Its columns in a backend.
    pub columns: usize,
    /// Its shape in checkpoints: `[rows, columns]`, or one number for a vector.
    pub shape: Vec<usize>,
    /// The format of its weights. Matrices and optimizer state are always fp32.
    pub float: Float,
    /// Its initialization.
    pub init: Init,
    /// The optimizer that trains it; `None` for untrained state that scoring needs, such as running moments.
    pub optimizer: Option<Optimizer>,
}

/// A parameter with more values than memory can hold.
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

    /// The same table with weights of format `float`.
    #[must_use]
    pub fn of_float(self, float: Float) -> Self {
        Self { float, ..self }
    }

    /// A vector that is one row in a backend.
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

    /// The same without an optimizer.
    ///
    /// # Errors
    /// As [`ParameterSpec::matrix`].
    pub fn untrained_row(name: String, columns: usize, init: Init) -> Result<Self, ParameterTooLarge> {
        Self { name, rows: 1, columns, shape: vec![columns], float: Float::F32, init, optimizer: None }
            .checked()
    }

    /// A vector that is one column in a backend.
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

    /// Rejects sizes that no allocation can hold, before anything is allocated.
    fn checked(self) -> Result<Self, ParameterTooLarge> {
        const WORST_FLOATS_A_NUMBER: usize = 16;
        let limit = isize::MAX as usize / size_of::<f64>() / WORST_FLOATS_A_NUMBER;
        if self.rows.checked_mul(self.columns).is_some_and(|numbers| numbers <= limit) {
            return Ok(self);
        }
        Err(ParameterTooLarge { parameter: self.name, rows: self.rows, columns: self.columns })
    }

    /// The weights, then each state array.
    pub fn parts(&self) -> impl Iterator<Item = TablePart> + use<> {
        let states = self.states().iter().map(|&(_, part)| part);
        std::iter::once(TablePart::Weights).chain(states)
    }

    /// Each array of optimizer state: its name in checkpoints and its part of a table.
    fn states(&self) -> &'static [(&'static str, TablePart)] {
        self.optimizer.as_ref().map_or(&[], Optimizer::states)
    }

    /// The tensor of one part in a checkpoint.
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

    /// The number of trained values.
    pub fn len(&self) -> usize {
        self.rows * self.columns
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shape of the table that contains it.
    pub fn table_shape(&self) -> TableShape {
        let count = |of_rows| {
            let is_of_rows = |part: &TablePart| matches!(part, TablePart::RowState(_));
            self.states().iter().filter(|(_, part)| is_of_rows(part) == of_rows).count()
        };
        let (states, row_states) = (count(false), count(true));
        let key = key_of(0, &self.name);
        TableShape { rows: self.rows, width: self.columns, float: self.float, key, states, row_states }
    }

    /// The initialization of `part`.
    pub fn init_of(&self, part: TablePart) -> Init {
        match part {
            TablePart::Weights => self.init,
            TablePart::State(_) | TablePart::RowState(_) => {
                self.optimizer.map_or(Init::Zeros, |optimizer| optimizer.initial_state(part))
            }
        }
    }
}

/// A dense parameter: a matrix, its gradient and state matrices of the same shape.
pub struct MatrixParameter<D: Device> {
    /// Its description.
    pub spec: ParameterSpec,
    /// The weights.
    pub value: D::Matrix,
    /// The gradient of the loss with respect to the weights, from the last backward pass.
    pub gradient: D::Matrix,
    states: Vec<D::Matrix>,
}

impl<D: Device> MatrixParameter<D> {
    /// Allocates the parameter.
    pub fn new(device: &D, spec: ParameterSpec) -> Self {
        let matrix = || device.matrix(spec.rows, spec.columns);
        let states = spec.states().iter().map(|_| matrix()).collect();
        device.reserve_workspace(&WorkspaceUse::Transfer { numbers: spec.len() });
        Self { value: matrix(), gradient: matrix(), states, spec }
    }
}

impl<B: Backend> MatrixParameter<B> {
    /// Takes one optimizer step with `gradient`; `scale` is as in [`Update`].
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

/// The storage of a parameter.
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
    /// The bytes of the parameter and its state.
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

    /// The bytes of a copy.
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

    /// The number of values in a copy.
    pub fn copy_len(&self, spec: &ParameterSpec) -> usize {
        match self {
            Self::Table(_) => B::copied_numbers(spec.table_shape()),
            Self::Matrix { .. } => spec.parts().map(|part| spec.tensor(part).len()).sum(),
        }
    }

    /// The position of `part` in a copy.
    pub fn place(&self, spec: &ParameterSpec, part: TablePart) -> TablePlace {
        if let Self::Table(_) = self {
            return B::table_place(spec.table_shape(), part);
        }
        let before = spec.parts().take_while(|&other| other != part);
        let first = before.map(|part| spec.tensor(part).len()).sum();
        TablePlace { first, stride: spec.columns }
    }

    /// Copies all parts to `out`, in the layout that is fastest to copy. `out` must have exactly the size of the copy.
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

/// The storage of a parameter, for replacing.
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

    /// Fills every part with its initial values; a table part by part, some rows at a time.
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
    // A new table contains zeros.
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

/// A layer or model that contains parameters.
pub trait Parameters<D: Device> {
    /// Every non-empty parameter in a fixed order, for reading.
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)>;
    /// The same, for replacing.
    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)>;
}

/// Implements [`Parameters`] for a structure: the parameters of the given fields, in this order. A function cannot
/// serve both `&self` and `&mut self`.
macro_rules! parameters {
    ($owner:ident: $($($field:ident).+),+) => {
        const _: () = {
            use $crate::parameter::{ParameterSpec, Parameters, Stored, StoredMut};

            impl<D: Device> Parameters<D> for $owner<D> {
                fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
                    let fields: [&dyn Parameters<D>; _] = [$(&self.$($field).+),+];
                    fields.into_iter().flat_map(Parameters::stored).collect()
                }

                fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
                    let fields: [&mut dyn Parameters<D>; _] = [$(&mut self.$($field).+),+];
                    fields.into_iter().flat_map(Parameters::stored_mut).collect()
                }
            }
        };
    };
}
pub(crate) use parameters;

impl<D: Device> Parameters<D> for MatrixParameter<D> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        vec![(&self.spec, Stored::Matrix { value: &self.value, states: &self.states })]
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        vec![(&self.spec, StoredMut::Matrix { value: &mut self.value, states: &mut self.states })]
    }
}

impl<D: Device, P: Parameters<D>> Parameters<D> for Vec<P> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        self.iter().flat_map(P::stored).collect()
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        self.iter_mut().flat_map(P::stored_mut).collect()
    }
}

impl<D: Device, P: Parameters<D>> Parameters<D> for Option<P> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        self.iter().flat_map(P::stored).collect()
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        self.iter_mut().flat_map(P::stored_mut).collect()
    }
}
