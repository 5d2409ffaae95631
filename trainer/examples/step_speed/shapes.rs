//! The models, their schemas, and synthetic batches.

use millstream_batch::{BatchHeader, BatchMut, BatchSchema, IdFeature, RaggedFeature, Stream};
use millstream_trainer::init::Init;
use millstream_trainer::spec::{
    AttentionSpec, CrossSpec, DeepSpec, DinSpec, DlrmInteraction, DlrmSpec, EmbeddingInit, EmbeddingSpec,
    HiddenLayerSpec, ModelSpec, OptimizerSpec, Pooling, SequenceSpec, TableSpec, WideDeepSpec, WideSpec,
};

use crate::options::{Kind, Options};

pub(crate) const CATEGORICAL: usize = 26;
pub(crate) const DENSE: usize = 13;
const ADAGRAD: OptimizerSpec =
    OptimizerSpec::Adagrad { learning_rate: 0.01, initial_accumulator: 0.1, epsilon: 1e-7, l2: 0.0 };

/// Rows of each table and ids per row of each feature of DLRM-DCNv2: Criteo's log with synthetic additional
/// ids, as in the reference of MLPerf Training 3.0 and later (`--num_embeddings_per_feature`,
/// `--multi_hot_sizes`).
const MLPERF: [(u32, u32); CATEGORICAL] = [
    (40_000_000, 3),
    (39_060, 2),
    (17_295, 1),
    (7_424, 2),
    (20_265, 6),
    (3, 1),
    (7_122, 1),
    (1_543, 1),
    (63, 1),
    (40_000_000, 7),
    (3_067_956, 3),
    (405_282, 8),
    (10, 1),
    (2_209, 6),
    (11_938, 9),
    (155, 5),
    (4, 1),
    (976, 1),
    (14, 1),
    (40_000_000, 12),
    (40_000_000, 100),
    (40_000_000, 27),
    (590_152, 10),
    (12_973, 3),
    (108, 1),
    (36, 1),
];
/// Its cross layers.
pub(crate) const MLPERF_CROSS: CrossSpec = CrossSpec { layers: 3, rank: Some(512) };

/// The values of a history of DIN, and the hidden layer of its attention.
pub(crate) const DIN_VALUES: u32 = 50;
pub(crate) const DIN_ATTENTION: u32 = 36;

/// The rows of each feature's table, and its ids per row of a batch.
fn tables(options: &Options) -> Vec<(u32, u32)> {
    match options.kind {
        Kind::WideDeep | Kind::Dlrm => vec![(options.ids, options.values); CATEGORICAL],
        Kind::Din => vec![(options.ids, 1), (options.ids, DIN_VALUES)],
        Kind::Mlperf => MLPERF.map(|(rows, ids)| (rows.div_ceil(options.part), ids)).to_vec(),
    }
}

pub(crate) fn spec(options: &Options) -> ModelSpec {
    let categorical = || (0..tables(options).len()).map(|number| format!("c{number}"));
    let features: Vec<String> = categorical().chain((0..DENSE).map(|number| format!("d{number}"))).collect();
    let interaction = match options.kind {
        Kind::WideDeep => {
            return ModelSpec::WideDeep(WideDeepSpec {
                wide: WideSpec { features: categorical().collect(), optimizer: ADAGRAD },
                deep: DeepSpec {
                    features,
                    embedding_dim: options.dim.into(),
                    embedding_init: EmbeddingInit::default(),
                    embeddings: Vec::new(),
                    embedding_optimizer: None,
                    hidden: options.hidden.clone(),
                    hidden_layer: HiddenLayerSpec::default(),
                    pooling: options.pooling,
                    optimizer: ADAGRAD,
                },
            });
        }
        Kind::Din => return din(options, features),
        Kind::Dlrm => DlrmInteraction::Dot,
        Kind::Mlperf => DlrmInteraction::Cross(MLPERF_CROSS),
    };
    ModelSpec::Dlrm(DlrmSpec {
        features,
        embedding: EmbeddingSpec {
            dim: options.dim.into(),
            pooling: options.pooling,
            init: EmbeddingInit::default(),
            tables: Vec::new(),
            optimizer: ADAGRAD,
        },
        bottom: options.bottom.clone(),
        interaction,
        top: options.hidden.clone(),
        hidden_layer: HiddenLayerSpec::default(),
        optimizer: ADAGRAD,
    })
}

/// The history `c1` by the target `c0`, in one table.
fn din(options: &Options, features: Vec<String>) -> ModelSpec {
    let (target, history) = ("c0".to_owned(), "c1".to_owned());
    let shared = vec![target.clone(), history.clone()];
    let (name, dim, pooling, init) = (target.clone(), None, None, None);
    ModelSpec::Din(DinSpec {
        features,
        sequences: vec![SequenceSpec { history, target }],
        attention: AttentionSpec { hidden: vec![DIN_ATTENTION] },
        embedding: EmbeddingSpec {
            dim: options.dim.into(),
            pooling: Pooling::Mean,
            init: EmbeddingInit::default(),
            tables: vec![TableSpec { name, features: shared, dim, pooling, init }],
            optimizer: ADAGRAD,
        },
        hidden: options.hidden.clone(),
        hidden_layer: HiddenLayerSpec::default(),
        optimizer: ADAGRAD,
    })
}

pub(crate) fn schema(options: &Options) -> BatchSchema {
    let (mut ids, mut ragged) = (Vec::new(), Vec::new());
    for (number, (cardinality, maximum)) in tables(options).into_iter().enumerate() {
        let name = format!("c{number}");
        match maximum {
            1 => ids.push(IdFeature { name, cardinality }),
            _ => ragged.push(RaggedFeature { name, cardinality, maximum, weighted: false }),
        }
    }
    BatchSchema {
        rows: options.batch,
        labels: Vec::new(),
        weighted: false,
        dense: (0..DENSE).map(|number| format!("d{number}")).collect(),
        ids,
        ragged,
        columns: Vec::new(),
        position_bytes: 0,
    }
}

/// Fills a batch with random numbers. Ids have frequencies proportional to the inverse of their rank, and are
/// scattered over the table.
pub(crate) fn fill(slot: &mut BatchMut<'_>, schema: &BatchSchema, seed: u64) {
    let mut numbers = Init::Uniform { limit: 0.5 }.values(seed, "batch", 0).map(|x| x + 0.5);
    let mut uniform = || numbers.next().unwrap_or_default();
    let rows = schema.rows;
    slot.set_header(&BatchHeader {
        stream: Stream::Train,
        epoch: 0,
        batch: seed,
        rows,
        global_rows: rows,
        first_row: 0,
        most_rows: rows,
        last: false,
    });
    let sections = slot.sections();
    sections.labels.fill_with(|| f32::from(uniform() < 0.25));
    sections.dense.fill_with(|| uniform() as f32);
    let mut draw = |cardinality: u32| {
        let rank = f64::from(cardinality).powf(uniform()) as u64;
        (rank.wrapping_mul(0x9e37_79b1) % u64::from(cardinality)) as u32
    };
    for (ids, feature) in sections.ids.chunks_exact_mut(rows as usize).zip(&schema.ids) {
        ids.fill_with(|| draw(feature.cardinality));
    }
    for ((offsets, ids), feature) in sections.ragged.into_iter().zip(&schema.ragged) {
        for (offset, row) in offsets.iter_mut().zip(0..) {
            *offset = row * feature.maximum;
        }
        ids.fill_with(|| draw(feature.cardinality));
    }
}
