//! Optimizers in a job file: their `kind` and constants.
//!
//! Constants default to those of Keras; learning rates default to values that suit wide & deep models.

use millstream_document::section::{ReadKind, Section};
use millstream_trainer::spec::{AdamSpec, OptimizerSpec};

const KINDS: [(&str, ReadKind<OptimizerSpec>); 7] = [
    ("sgd", |table| OptimizerSpec::Sgd { learning_rate: rate(table, 0.01), l2: l2(table) }),
    ("momentum", |table| OptimizerSpec::Momentum {
        learning_rate: rate(table, 0.01),
        momentum: table.fraction("momentum").unwrap_or(0.9),
        nesterov: table.flag("nesterov").unwrap_or(false),
        l2: l2(table),
    }),
    ("adagrad", |table| {
        let (learning_rate, initial_accumulator, epsilon) = adagrad(table);
        OptimizerSpec::Adagrad { learning_rate, initial_accumulator, epsilon, l2: l2(table) }
    }),
    ("rowwise_adagrad", |table| {
        let (learning_rate, initial_accumulator, epsilon) = adagrad(table);
        OptimizerSpec::RowWiseAdagrad { learning_rate, initial_accumulator, epsilon, l2: l2(table) }
    }),
    ("adam", |table| OptimizerSpec::Adam(adam(table))),
    ("adamw", |table| OptimizerSpec::AdamW {
        adam: adam(table),
        weight_decay: table.constant("weight_decay", false).unwrap_or(0.004),
    }),
    ("ftrl", ftrl),
];

/// The default of linear models.
pub(super) const FTRL: OptimizerSpec =
    OptimizerSpec::Ftrl { learning_rate: 0.1, beta: 0.0, l1: 0.0, l2: 0.0, initial_accumulator: 0.1 };
/// The default of embeddings and layers.
pub(super) const ADAGRAD: OptimizerSpec =
    OptimizerSpec::Adagrad { learning_rate: 0.05, initial_accumulator: 0.1, epsilon: 1e-7, l2: 0.0 };

/// The parameters that an optimizer trains.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Trains {
    /// Embeddings only.
    Embeddings,
    /// Layers too.
    Layers,
}

/// Reads the optimizer at `key` of the model's part `part`; `title` is the name of its table in messages.
pub(super) fn read(
    part: &mut Section<'_>,
    key: &'static str,
    title: &str,
    trains: Trains,
    default: OptimizerSpec,
) -> OptimizerSpec {
    let Some(node) = part.node(key) else { return default };
    let Some(mut table) = part.as_section(node, title) else { return default };
    let Some(read) = table.required_choice("kind", &KINDS) else { return default };
    let spec = read(&mut table);
    if trains == Trains::Layers && matches!(spec, OptimizerSpec::RowWiseAdagrad { .. }) {
        table.error("kind", "`rowwise_adagrad` applies to embeddings only (`embedding_optimizer`)");
    }
    table.finish();
    spec
}

fn rate(table: &mut Section<'_>, default: f32) -> f32 {
    table.constant("learning_rate", true).unwrap_or(default)
}

/// Reads the penalty on weights.
fn l2(table: &mut Section<'_>) -> f32 {
    table.constant("l2", false).unwrap_or(0.0)
}

fn adagrad(table: &mut Section<'_>) -> (f32, f32, f32) {
    let learning_rate = rate(table, 0.05);
    let initial_accumulator = table.constant("initial_accumulator", false).unwrap_or(0.1);
    let epsilon = table.constant("epsilon", false).unwrap_or(1e-7);
    if initial_accumulator == 0.0 && epsilon == 0.0 {
        table
            .error("epsilon", "`epsilon` and `initial_accumulator` are both 0: at least one must be above 0");
    }
    (learning_rate, initial_accumulator, epsilon)
}

fn adam(table: &mut Section<'_>) -> AdamSpec {
    AdamSpec {
        learning_rate: rate(table, 0.001),
        beta1: table.fraction("beta1").unwrap_or(0.9),
        beta2: table.fraction("beta2").unwrap_or(0.999),
        epsilon: table.constant("epsilon", true).unwrap_or(1e-7),
        l2: l2(table),
    }
}

fn ftrl(table: &mut Section<'_>) -> OptimizerSpec {
    let learning_rate = rate(table, 0.1);
    let beta = table.constant("beta", false).unwrap_or(0.0);
    let l1 = table.constant("l1", false).unwrap_or(0.0);
    let l2 = l2(table);
    let initial_accumulator = table.constant("initial_accumulator", false).unwrap_or(0.1);
    if initial_accumulator == 0.0 && beta == 0.0 && l2 == 0.0 {
        let message = "`beta`, `l2` and `initial_accumulator` are all 0: at least one must be above 0";
        table.error("initial_accumulator", message);
    }
    OptimizerSpec::Ftrl { learning_rate, beta, l1, l2, initial_accumulator }
}
