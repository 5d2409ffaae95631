//! What a job says of embeddings.

use millstream_trainer::spec::{EmbeddingInit, EmbeddingSpec, OptimizerSpec, Pooling};

use super::super::document::Value;
use super::super::section::Section;

const POOLING: [(&str, Pooling); 3] =
    [("sum", Pooling::Sum), ("mean", Pooling::Mean), ("sqrtn", Pooling::SqrtN)];

#[derive(Clone, Copy, PartialEq)]
enum Start {
    Zeros,
    Uniform,
    UniformByRows,
    Normal,
    TruncatedNormal,
}

const STARTS: [(&str, Start); 5] = [
    ("zeros", Start::Zeros),
    ("uniform", Start::Uniform),
    ("uniform_by_rows", Start::UniformByRows),
    ("normal", Start::Normal),
    ("truncated_normal", Start::TruncatedNormal),
];

/// How far a distribution is spread, unless the job says otherwise: as in Keras.
const SPREAD: f64 = 0.05;

/// Reads the embeddings of `part`, which `optimizer` trains.
pub(super) fn read(part: &mut Section<'_>, optimizer: OptimizerSpec) -> EmbeddingSpec {
    EmbeddingSpec {
        dim: part.whole_u32("embedding_dim", 1..=65_536).unwrap_or(8),
        pooling: part.choice("pooling", &POOLING).unwrap_or(Pooling::Mean),
        init: read_init(part, "embedding_init").unwrap_or_default(),
        optimizer,
    }
}

/// The name of a distribution, or a table of that and of how far it is spread.
fn read_init(part: &mut Section<'_>, key: &'static str) -> Option<EmbeddingInit> {
    let node = part.node(key)?;
    if let Value::Text(_) = node.value {
        let start = part.as_choice(node, &STARTS)?;
        return Some(spread(start, SPREAD));
    }
    let mut table = part.as_section(node, format!("`{key}`"))?;
    let start = table.required_choice("kind", &STARTS)?;
    let scale = match start {
        Start::Zeros | Start::UniformByRows => None,
        Start::Uniform => table.positive("limit"),
        Start::Normal | Start::TruncatedNormal => table.positive("stddev"),
    };
    table.finish();
    Some(spread(start, scale.unwrap_or(SPREAD)))
}

fn spread(start: Start, scale: f64) -> EmbeddingInit {
    match start {
        Start::Zeros => EmbeddingInit::Zeros,
        Start::Uniform => EmbeddingInit::Uniform { limit: scale },
        Start::UniformByRows => EmbeddingInit::UniformByRows,
        Start::Normal => EmbeddingInit::Normal { stddev: scale },
        Start::TruncatedNormal => EmbeddingInit::TruncatedNormal { stddev: scale },
    }
}
