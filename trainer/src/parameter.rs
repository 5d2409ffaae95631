//! Parameters: trained tensors with their optimizer state, in a model and in a checkpoint.
//!
//! Names are stable: they are the keys of a checkpoint's safetensors files. A parameter's optimizer
//! state is named after it (`deep.layer.0.weight/accumulator`).

use millstream_backend::{
    Backend, Device, Float, Layout, Scalar, Shapes, Sizes, TablePart, TablePlace, TableShape, WorkspaceUse,
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
    /// Needed to predict: `model.safetensors`, or several files if they are large.
    Parameter,
    /// Needed to resume training: `optimizer.safetensors`, likewise.
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
        const WORST_FLOATS_A_NUMBER: usize = 16;
        let limit = isize::MAX as usize / size_of::<f64>() / WORST_FLOATS_A_NUMBER;
        // Before anything is allocated.
        if rows.checked_mul(columns).is_none_or(|numbers| numbers > limit) {
            return Err(ParameterTooLarge { parameter: name, rows, columns });
        }
        let (shape, optimizer) = (vec![rows, columns], Some(optimizer));
        Ok(Self { name, rows, columns, shape, float: Float::F32, init, optimizer })
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
        Ok(Self { shape: vec![columns], ..Self::matrix(name, (1, columns), init, optimizer)? })
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

    /// The tensor of each part, in order.
    pub fn tensors(&self) -> impl Iterator<Item = NamedTensor> {
        self.parts().map(|part| self.tensor(part))
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

/// A parameter in a model.
pub struct Parameter<'a, D: Device> {
    /// Its description.
    pub spec: &'a ParameterSpec,
    pub(crate) storage: Storage<'a, D>,
}

/// The storage of a parameter.
pub(crate) enum Storage<'a, D: Device> {
    /// Weights, optimizer state, and the gradient of a trained parameter; all of one shape.
    Matrix { value: &'a mut D::Matrix, states: &'a mut [D::Matrix], gradient: Option<&'a mut D::Matrix> },
    /// A table, with its state.
    Table(&'a mut D::Table),
}

impl<L: Layout> Parameter<'_, Sizes<L>> {
    /// The bytes of the parameter and its state.
    pub(crate) fn bytes(&self) -> u64 {
        let counted = Sizes::<L>::default();
        match &self.storage {
            Storage::Matrix { states, .. } => {
                (0..=states.len()).for_each(|_| counted.matrix(self.spec.rows, self.spec.columns));
            }
            Storage::Table(()) => counted.table(self.spec.table_shape()),
        }
        counted.bytes()
    }
}

impl<D: Device> Parameter<'_, D> {
    /// Whether it is a parameter of a layer that is trained.
    pub(crate) fn has_gradient_matrix(&self) -> bool {
        matches!(self.storage, Storage::Matrix { gradient: Some(_), .. })
    }

    /// The number of values in a copy from a device with the shapes of `S`.
    pub(crate) fn copy_len<S: Shapes>(&self) -> usize {
        match self.storage {
            Storage::Table(_) => S::copied_numbers(self.spec.table_shape()),
            Storage::Matrix { .. } => self.spec.tensors().map(|tensor| tensor.len()).sum(),
        }
    }
}

impl<B: Backend> Parameter<'_, B> {
    /// Copies a whole part to the host.
    pub fn read(&self, backend: &B, part: TablePart, out: &mut [B::Scalar]) {
        match (&self.storage, part) {
            (Storage::Matrix { value, .. }, TablePart::Weights) => backend.read_matrix(value, out),
            (Storage::Matrix { states, .. }, TablePart::State(state)) => {
                backend.read_matrix(&states[state], out);
            }
            (Storage::Matrix { .. }, TablePart::RowState(_)) => panic!("a matrix has no state of rows"),
            (Storage::Table(table), part) => backend.read_table(table, part, 0, out),
        }
    }

    /// Replaces a whole part.
    pub fn write(&mut self, backend: &B, part: TablePart, values: &[B::Scalar]) {
        match (&mut self.storage, part) {
            (Storage::Matrix { value, .. }, TablePart::Weights) => backend.write_matrix(value, values),
            (Storage::Matrix { states, .. }, TablePart::State(state)) => {
                backend.write_matrix(&mut states[state], values);
            }
            (Storage::Matrix { .. }, TablePart::RowState(_)) => panic!("a matrix has no state of rows"),
            (Storage::Table(table), part) => backend.write_table(table, part, 0, values),
        }
    }

    /// The position of `part` in a copy.
    pub(crate) fn place(&self, part: TablePart) -> TablePlace {
        if let Storage::Table(_) = self.storage {
            return B::table_place(self.spec.table_shape(), part);
        }
        let before = self.spec.parts().take_while(|&other| other != part);
        let first = before.map(|part| self.spec.tensor(part).len()).sum();
        TablePlace { first, stride: self.spec.columns }
    }

    /// Copies as many numbers of all parts as `out` holds, from number `first` of a copy on, in the layout that is fastest to copy.
    pub(crate) fn copy(&self, backend: &B, first: usize, mut out: &mut [B::Scalar]) {
        if let Storage::Table(table) = &self.storage {
            return backend.run(ops::CopyTable { table: &**table, first, out });
        }
        for (part, range) in self.spec.table_shape().ranges_of_parts(first..first + out.len()) {
            let (this, rest) = out.split_at_mut(range.len());
            let whole = self.spec.tensor(part).len();
            if range.len() == whole {
                self.read(backend, part, this);
            } else {
                let mut numbers = vec![B::Scalar::default(); whole];
                self.read(backend, part, &mut numbers);
                this.copy_from_slice(&numbers[range]);
            }
            out = rest;
        }
    }

    /// Fills every part with its initial values; a table part by part, some rows at a time.
    pub(crate) fn initialise(&mut self, backend: &B, seed: u64) {
        let spec = self.spec;
        for part in spec.parts() {
            let init = spec.init_of(part);
            if let Storage::Table(table) = &mut self.storage {
                initialise_table(backend, table, spec, part, init, seed);
            } else {
                let values = init.values(seed, &spec.name, 0).take(spec.len());
                self.write(backend, part, &values.map(B::Scalar::from_f64).collect::<Vec<_>>());
            }
        }
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

/// A layer or model that contains parameters. One list serves reading and replacing, so both need `&mut`.
pub trait Parameters<D: Device> {
    /// Calls `visit` with every non-empty parameter, in a fixed order.
    fn visit<'a>(&'a mut self, visit: &mut dyn FnMut(Parameter<'a, D>));

    /// Every non-empty parameter, in that order.
    fn parameters(&mut self) -> Vec<Parameter<'_, D>> {
        let mut all = Vec::new();
        self.visit(&mut |parameter| all.push(parameter));
        all
    }
}

/// Implements [`Parameters`] for a structure: the parameters of the given fields, in this order.
macro_rules! parameters {
    ($owner:ident: $($($field:ident).+),+) => {
        impl<D: Device> $crate::parameter::Parameters<D> for $owner<D> {
            fn visit<'a>(&'a mut self, visit: &mut dyn FnMut($crate::parameter::Parameter<'a, D>)) {
                $($crate::parameter::Parameters::visit(&mut self.$($field).+, visit);)+
            }
        }
    };
}
pub(crate) use parameters;

impl<D: Device> Parameters<D> for MatrixParameter<D> {
    fn visit<'a>(&'a mut self, visit: &mut dyn FnMut(Parameter<'a, D>)) {
        let Self { spec, value, gradient, states } = self;
        if !spec.is_empty() {
            visit(Parameter { spec, storage: Storage::Matrix { value, states, gradient: Some(gradient) } });
        }
    }
}

impl<D: Device, P: Parameters<D>> Parameters<D> for Vec<P> {
    fn visit<'a>(&'a mut self, visit: &mut dyn FnMut(Parameter<'a, D>)) {
        self.iter_mut().for_each(|each| each.visit(visit));
    }
}

impl<D: Device, P: Parameters<D>> Parameters<D> for Option<P> {
    fn visit<'a>(&'a mut self, visit: &mut dyn FnMut(Parameter<'a, D>)) {
        self.iter_mut().for_each(|each| each.visit(visit));
    }
}
