//! A batch and a model's worth of shapes, and backends to run operations on.

use std::path::Path;

use std::sync::Arc;

use millstream_backend::{
    Backend, Cpu, Cuda, Float, Formula, IdColumn, Libraries, Lookup, Pooling, Scalar, TablePart, TableShape,
    Update,
};

use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, RaggedFeature, SlotLayout, Stream};

use millstream_test_cuda::{StandIn, Variant};

use millstream_trace::{Category, Span};

/// CPU backends with `threads` threads: with all of the machine's instructions, and without AMX.
pub(crate) fn cpus(threads: u32) -> [Cpu; 2] {
    let cpu = || Cpu::new(Some(threads)).expect("threads");
    [cpu(), cpu().without_tiles()]
}

/// The CUDA backend on an emulated GPU, with kernels compiled for the host. If `MILLSTREAM_GPU` names a cache
/// directory for compiled kernels, on the host's GPU instead (see `bench/gpu`).
pub(crate) fn cuda() -> Cuda {
    if let Some(images) = std::env::var_os("MILLSTREAM_GPU") {
        return Cuda::new(&Libraries::default(), 0, Some(Path::new(&images))).expect("a GPU");
    }
    let stand_in = StandIn::whole().expect("a C++ compiler");
    let images = stand_in.folder().join("images");
    Cuda::new(&Libraries::of(stand_in.folder()), 0, Some(&images)).expect("a device")
}

/// The CUDA backend on an emulated GPU whose cuBLASLt has no epilogues.
pub(crate) fn cuda_of_plain_products() -> Cuda {
    let stand_in = StandIn::of(&Variant::default().with_plain_products()).expect("a C++ compiler");
    let images = stand_in.folder().join("images");
    Cuda::new(&Libraries::of(stand_in.folder()), 0, Some(&images)).expect("a device")
}

/// Runs `body` on a backend while recording, and checks the recorded spans, which must be on tracks of these names.
pub(crate) fn recorded<B: Backend>(backend: B, tracks: &[&str], body: &dyn Fn(&B)) {
    backend.begin_recording();
    body(&backend);
    let recording = backend.end_recording();
    let spans: Vec<_> = recording.tracks.iter().flat_map(|track| &track.spans).collect();
    assert!(!spans.is_empty() && recording.dropped == 0, "{} spans", spans.len());
    // The driver reports the time between two events in milliseconds as fp32.
    let blur_ns = 1_000 + ((recording.ended_ns - recording.began_ns) >> 22);
    let operations: Vec<_> = spans.iter().filter(|span| span.category == Category::Operation).collect();
    for span in &spans {
        let moves = span.work.bytes > 0 || span.work.rows == 0;
        assert!(moves, "{span:?}");
        match span.category {
            Category::Operation | Category::Copy => {}
            Category::Kernel => {
                let contains = |operation: &&&Span| {
                    operation.start_ns <= span.start_ns + blur_ns && span.end_ns <= operation.end_ns + blur_ns
                };
                assert!(operations.iter().any(contains), "of an operation: {span:?}");
            }
            _ => panic!("{span:?}"),
        }
        assert!(span.start_ns <= span.end_ns && span.end_ns <= recording.ended_ns + blur_ns, "{span:?}");
    }
    for track in &recording.tracks {
        assert!(tracks.is_empty() || tracks.contains(&track.name.as_str()), "{}", track.name);
        assert!(
            track.spans.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns + blur_ns),
            "{}",
            track.name
        );
    }
}

/// Splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// In -1..1, exact in fp32.
    pub(crate) fn number(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// The distribution of ids.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum IdsFall {
    Anywhere,
    AllEqual,
    /// All ragged rows are empty.
    Nowhere,
}

/// The shapes of one run.
#[derive(Clone, Debug)]
pub(crate) struct Shapes {
    pub(crate) rows: u32,
    /// The slot's capacity in rows.
    pub(crate) capacity: u32,
    pub(crate) dense: usize,
    /// Cardinality and width of each single-id feature's table.
    pub(crate) single: Vec<(u32, usize)>,
    /// Cardinality, width and maximum of each ragged feature's table.
    pub(crate) ragged: Vec<(u32, usize, u32)>,
    /// Of unpooled features, each has its own maximum.
    pub(crate) pooling: Pooling,
    /// Whether columns share two tables; columns 0, 2, 4, ... use the first one.
    pub(crate) shared: bool,
    pub(crate) weighted: bool,
    /// Whether ragged features 0, 2, 4, ... have weighted ids.
    pub(crate) weighted_ids: bool,
    pub(crate) ids: IdsFall,
    /// Inputs and outputs of a layer.
    pub(crate) layer: (usize, usize),
}

impl Shapes {
    pub(crate) fn schema(&self) -> BatchSchema {
        BatchSchema {
            rows: self.capacity,
            // One unnamed label, or two named ones.
            labels: if self.weighted { vec!["l0".to_owned(), "l1".to_owned()] } else { Vec::new() },
            weighted: self.weighted,
            dense: (0..self.dense).map(|i| format!("d{i}")).collect(),
            ids: self
                .single
                .iter()
                .enumerate()
                .map(|(i, &(cardinality, _))| IdFeature { name: format!("s{i}"), cardinality })
                .collect(),
            ragged: self
                .ragged
                .iter()
                .enumerate()
                .map(|(i, &(cardinality, _, maximum))| RaggedFeature {
                    name: format!("r{i}"),
                    cardinality,
                    maximum,
                    weighted: self.weighted_ids && i % 2 == 0,
                })
                .collect(),
            columns: Vec::new(),
            position_bytes: 0,
        }
    }

    pub(crate) fn batch(&self, random: &mut Random) -> BatchBuffer {
        let layout = SlotLayout::of(&self.schema()).expect("a schema with rows");
        let mut buffer = BatchBuffer::new(Arc::new(layout));
        let mut slot = buffer.as_mut();
        slot.set_header(&BatchHeader {
            stream: Stream::Train,
            epoch: 0,
            batch: 0,
            rows: self.rows,
            global_rows: self.rows,
            first_row: 0,
            most_rows: self.rows,
            last: false,
        });
        let rows = self.rows as usize;
        let stride = self.capacity as usize;
        let sections = slot.sections();
        sections.labels.fill_with(|| random.below(2) as f32);
        if let Some(weights) = sections.weights {
            weights[..rows].fill_with(|| random.below(4) as f32 / 2.0);
        }
        sections.dense.fill_with(|| random.number());
        let fall = self.ids;
        let mut id = |cardinality: u32| match fall {
            IdsFall::AllEqual => cardinality - 1,
            _ => random.below(cardinality as usize) as u32,
        };
        for (feature, &(cardinality, _)) in self.single.iter().enumerate() {
            sections.ids[feature * stride..][..rows].fill_with(|| id(cardinality));
        }
        let mut lengths = Random(u64::from(self.rows));
        // Includes negative weights and zeros.
        let mut weight = Random(!u64::from(self.rows));
        for weights in sections.ragged_weights.into_iter().flatten() {
            weights.fill_with(|| (weight.below(12) as f32 - 2.0) / 8.0);
        }
        for ((offsets, values), &(cardinality, _, maximum)) in sections.ragged.into_iter().zip(&self.ragged) {
            let mut end = 0;
            for offset in &mut offsets[1..=rows] {
                let length = match fall {
                    IdsFall::Nowhere => 0,
                    _ => lengths.below(maximum as usize + 1),
                };
                values[end..end + length].fill_with(|| id(cardinality));
                end += length;
                *offset = end as u32;
            }
        }
        buffer
    }

    /// A lookup of every id column; outputs are concatenated in the order of the columns.
    pub(crate) fn lookups(&self) -> Vec<Lookup> {
        let single = (0..self.single.len()).map(IdColumn::Single);
        let ragged = (0..self.ragged.len()).map(IdColumn::Ragged);
        let (tables, mut first) = (self.tables(), 0);
        let lookups = single.chain(ragged).enumerate().map(|(number, column)| {
            let table = self.table_of(number);
            let pooling = match (self.pooling, column) {
                _ if self.shared && number % 3 == 1 => Pooling::Sum,
                (Pooling::Unpooled(_), IdColumn::Single(_)) => Pooling::Sum,
                (Pooling::Unpooled(_), IdColumn::Ragged(column)) => Pooling::Unpooled(self.ragged[column].2),
                (Pooling::Max, IdColumn::Ragged(column @ 2..)) if self.shared => {
                    Pooling::Unpooled(self.ragged[column].2)
                }
                (pooling, _) => pooling,
            };
            let lookup = Lookup { column, pooling, table, first };
            first += lookup.columns(tables[table].1);
            lookup
        });
        let mut lookups: Vec<Lookup> = lookups.collect();
        lookups.sort_by_key(|lookup| lookup.table);
        lookups
    }

    /// The size of each table: rows for all of its columns, and the width of the first.
    pub(crate) fn tables(&self) -> Vec<(usize, usize)> {
        let single = self.single.iter().map(|&(rows, width)| (rows as usize, width));
        let ragged = self.ragged.iter().map(|&(rows, width, _)| (rows as usize, width));
        let mut tables: Vec<(usize, usize)> = Vec::new();
        for (number, (rows, width)) in single.chain(ragged).enumerate() {
            match tables.get_mut(self.table_of(number)) {
                Some(table) => table.0 = table.0.max(rows),
                None => tables.push((rows, width)),
            }
        }
        tables
    }

    fn table_of(&self, column: usize) -> usize {
        if self.shared { column % 2 } else { column }
    }
}

/// The columns of each table.
pub(crate) fn groups(lookups: &[Lookup]) -> Vec<Vec<IdColumn>> {
    let tables = lookups.chunk_by(|one, next| one.table == next.table);
    tables.map(|lookups| lookups.iter().map(|lookup| lookup.column).collect()).collect()
}

/// Each optimizer, with its initial state.
pub(crate) const UPDATES: [(&str, Update, [f32; 2]); 11] = [
    ("sgd", plain(Formula::Sgd { learning_rate: 0.5 }), [0.0, 0.0]),
    ("sgd, cut", Update { clip: 0.25, ..plain(Formula::Sgd { learning_rate: 0.5 }) }, [0.0, 0.0]),
    ("momentum", plain(momentum(false)), [0.5, 0.0]),
    ("nesterov", plain(momentum(true)), [0.5, 0.0]),
    ("row-wise adagrad", plain(ROW_WISE), [0.125, 0.0]),
    ("row-wise adagrad, cut and pulled", Update { formula: ROW_WISE, clip: 0.5, l2: 0.125 }, [0.125, 0.0]),
    ("adam", plain(adam(0.0, 3)), [0.25, 0.5]),
    ("adamw", plain(adam(0.125, 1)), [0.0, 0.0]),
    ("adagrad", plain(ADAGRAD), [0.125, 0.0]),
    ("adagrad, pulled", Update { l2: 0.25, ..plain(ADAGRAD) }, [0.125, 0.0]),
    ("ftrl", plain(Formula::Ftrl { learning_rate: 0.25, beta: 0.5, l1: 0.03125, l2: 0.5 }), [0.0, 0.125]),
];

const ADAGRAD: Formula = Formula::Adagrad { learning_rate: 0.25, epsilon: 1e-6 };

const ROW_WISE: Formula = Formula::RowWiseAdagrad { learning_rate: 0.25, epsilon: 1e-6 };

const fn momentum(nesterov: bool) -> Formula {
    Formula::Momentum { learning_rate: 0.25, momentum: 0.75, nesterov }
}

const fn adam(weight_decay: f64, step: u64) -> Formula {
    Formula::Adam { learning_rate: 0.125, beta1: 0.75, beta2: 0.875, epsilon: 1e-3, weight_decay, step }
}

/// Without clipping or L2 penalty.
const fn plain(formula: Formula) -> Update {
    Update { formula, clip: f64::INFINITY, l2: 0.0 }
}

/// The gradient scale.
pub(crate) const SCALE: f32 = 0.75;

/// The results of operations, by name.
pub(crate) type Outcome = Vec<(String, Vec<f64>)>;

/// A backend with helpers for host values.
pub(crate) struct Bench<'a, B: Backend>(pub(crate) &'a B);

impl<B: Backend> Bench<'_, B> {
    pub(crate) fn matrix(&self, rows: usize, columns: usize, values: &[f32]) -> B::Matrix {
        let mut matrix = self.0.matrix(rows, columns);
        self.0.write_matrix(&mut matrix, &scalars::<B>(values));
        matrix
    }

    /// A record of the maxima of these lookups, if any of them has maxima.
    pub(crate) fn maxima(&self, shapes: &Shapes) -> Option<B::Maxima> {
        let (lookups, sizes) = (shapes.lookups(), shapes.tables());
        let columns = Lookup::all_maxima(&lookups, |table| sizes[table].1);
        (columns > 0).then(|| self.0.maxima(shapes.capacity as usize, columns))
    }

    pub(crate) fn read(&self, matrix: &B::Matrix, count: usize) -> Vec<f64> {
        let mut out = vec![B::Scalar::default(); count];
        self.0.read_matrix(matrix, &mut out);
        out.into_iter().map(Scalar::to_f64).collect()
    }

    pub(crate) fn table(
        &self,
        size: (usize, usize),
        weights: &[f32],
        formula: &Formula,
        start: [f32; 2],
    ) -> B::Table {
        self.table_of(Float::F32, size, weights, formula, start)
    }

    pub(crate) fn table_of(
        &self,
        float: Float,
        (rows, width): (usize, usize),
        weights: &[f32],
        formula: &Formula,
        start: [f32; 2],
    ) -> B::Table {
        let (states, row_states) = (formula.states(), formula.row_states());
        let shape = TableShape { rows, width, float, key: key_of(rows, width), states, row_states };
        let mut table = self.0.table(shape);
        self.0.write_table(&mut table, TablePart::Weights, 0, &scalars::<B>(weights));
        for (part, start) in state_parts(formula).into_iter().zip(start) {
            let values = vec![start; rows * shape.part_width(part)];
            self.0.write_table(&mut table, part, 0, &scalars::<B>(&values));
        }
        table
    }

    pub(crate) fn read_table(&self, table: &B::Table, part: TablePart, count: usize) -> Vec<f64> {
        let mut out = vec![B::Scalar::default(); count];
        self.0.read_table(table, part, 0, &mut out);
        out.into_iter().map(Scalar::to_f64).collect()
    }
}

/// The random key of a step.
pub(crate) const DRAWS: u64 = 3 << 40 | 5;

/// The key of a table of this size.
pub(crate) fn key_of(rows: usize, width: usize) -> u64 {
    Random(1000 * rows as u64 + width as u64).next()
}

/// The state parts of a table.
pub(crate) fn state_parts(formula: &Formula) -> Vec<TablePart> {
    let of_weights = (0..formula.states()).map(TablePart::State);
    of_weights.chain((0..formula.row_states()).map(TablePart::RowState)).collect()
}

pub(crate) fn scalars<B: Backend>(values: &[f32]) -> Vec<B::Scalar> {
    values.iter().map(|&value| B::Scalar::from_f64(f64::from(value))).collect()
}
