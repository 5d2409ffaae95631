//! The embeddings of a job's model.

use millstream_document::problems::{Problems, suggestion};
use millstream_document::section::{Section, Text};
use millstream_document::tree::Value;
use millstream_pipeline::spec::{FeatureKind, FeatureSpec, Terms};
use millstream_trainer::spec::{
    DinSpec, EmbeddingDim, EmbeddingInit, EmbeddingSpec, ModelSpec, OptimizerSpec, Pooling, TableSpec,
};

use super::super::features::Feature;

const POOLING: [(&str, Pooling); 4] =
    [("sum", Pooling::Sum), ("mean", Pooling::Mean), ("sqrtn", Pooling::SqrtN), ("max", Pooling::Max)];

/// The initializations, each with its default spread, which is that of Keras.
const INITS: [(&str, EmbeddingInit); 5] = [
    ("zeros", EmbeddingInit::Zeros),
    ("uniform", EmbeddingInit::Uniform { limit: 0.05 }),
    ("uniform_by_rows", EmbeddingInit::UniformByRows),
    ("normal", EmbeddingInit::Normal { stddev: 0.05 }),
    ("truncated_normal", EmbeddingInit::TruncatedNormal { stddev: 0.05 }),
];

/// Reads the embeddings of `part` for its `features`. `title` is the name of its tables in messages, and `optimizer`
/// trains them.
pub(super) fn read(
    part: &mut Section<'_>,
    title: &str,
    features: &[String],
    optimizer: OptimizerSpec,
) -> EmbeddingSpec {
    EmbeddingSpec {
        dim: read_dim(part, "embedding_dim").unwrap_or(EmbeddingDim::Columns(8)),
        pooling: part.choice("pooling", &POOLING).unwrap_or(Pooling::Mean),
        init: read_init(part, "embedding_init").unwrap_or_default(),
        tables: read_tables(part.section("embeddings", title), features),
        optimizer,
    }
}

/// Reads the tables by name. A table belongs to the feature of its name unless it lists features.
fn read_tables(section: Section<'_>, features: &[String]) -> Vec<TableSpec> {
    let mut tables: Vec<TableSpec> = Vec::new();
    for (name, at, node) in section.entries() {
        if section.is_full() {
            break;
        }
        let Some(mut table) = section.as_section(node, format!("table `{name}` of embeddings")) else {
            continue;
        };
        let own = vec![Text { text: name, at }];
        let looked_up = table.texts("features").unwrap_or(own);
        for &Text { text, at } in &looked_up {
            if table.is_full() {
                break;
            }
            let taken = tables.iter().find(|table| table.features.iter().any(|feature| feature == text));
            if !features.iter().any(|feature| feature == text) {
                let hint = suggestion(text, features.iter().map(String::as_str));
                table.error_at(at, format!("`{text}` is not a feature of the model{hint}"));
            } else if let Some(other) = taken {
                table.error_at(at, format!("feature `{text}` is already in table `{}`", other.name));
            }
        }
        tables.push(TableSpec {
            name: name.to_owned(),
            features: looked_up.iter().map(|feature| feature.text.to_owned()).collect(),
            dim: read_dim(&mut table, "dim"),
            pooling: table.choice("pooling", &POOLING),
            init: read_init(&mut table, "init"),
        });
        table.finish();
    }
    tables
}

/// Rejects tables whose features have incompatible ids.
pub(crate) fn refuse_other_ids(model: &ModelSpec, features: &[Feature], problems: &Problems<'_>) {
    let find = |name: &String| features.iter().find(|feature| feature.spec.name == *name);
    for table in model.tables() {
        let mut sharing = table.features.iter().filter_map(find);
        let Some(first) = sharing.next() else { continue };
        for feature in sharing.filter(|feature| !have_same_ids(&first.spec, &feature.spec)) {
            let (name, first) = (&feature.spec.name, &first.spec.name);
            let message = format!(
                "feature `{name}` shares table `{}` with `{first}`, so both need the same kind and the same \
                 `buckets`, `boundaries` or given terms",
                table.name
            );
            problems.error(feature.at, message);
        }
    }
}

/// Rejects features with weights that are pooled by their maximum.
pub(crate) fn refuse_weighted_maxima(model: &ModelSpec, features: &[Feature], problems: &Problems<'_>) {
    let is_pooled = |name: &String| match model {
        ModelSpec::Din(DinSpec { sequences, .. }) => sequences.iter().all(|pair| pair.history != *name),
        _ => true,
    };
    for (names, embedding) in model.embeddings() {
        for name in
            names.iter().filter(|name| is_pooled(name) && embedding.pooling_of(name).0 == Pooling::Max)
        {
            let weighted = |feature: &&Feature| feature.spec.name == *name && feature.spec.weights.is_some();
            if let Some(feature) = features.iter().find(weighted) {
                let message = format!(
                    "feature `{name}` has `weights`, which `pooling = \"max\"` does not use: remove them, or pool the \
                     feature by \"sum\", \"mean\" or \"sqrtn\""
                );
                problems.error(feature.at, message);
            }
        }
    }
}

/// Whether both features map a value to the same id. Two learned vocabularies do only if they are learned from one
/// column.
fn have_same_ids(one: &FeatureSpec, other: &FeatureSpec) -> bool {
    match (&one.kind, &other.kind) {
        (
            FeatureKind::Vocabulary { terms: Terms::Learned { .. }, .. },
            FeatureKind::Vocabulary { terms: Terms::Learned { .. }, .. },
        ) => one.kind == other.kind && one.columns == other.columns,
        (
            FeatureKind::Identity { buckets, out_of_range: _ },
            FeatureKind::Identity { buckets: of_other, out_of_range: _ },
        ) => buckets == of_other,
        (one, other) => one == other,
    }
}

/// A number of columns, or a rule.
fn read_dim(part: &mut Section<'_>, key: &'static str) -> Option<EmbeddingDim> {
    let node = part.node(key)?;
    if let Value::Text(_) = node.value {
        return part.as_choice(node, &[("auto", EmbeddingDim::Auto)]);
    }
    part.as_whole(node, 1..=65_536).and_then(|columns| u32::try_from(columns).ok()).map(EmbeddingDim::Columns)
}

/// Reads an initialization: the name of a distribution, or a table with the name and the spread.
fn read_init(part: &mut Section<'_>, key: &'static str) -> Option<EmbeddingInit> {
    let node = part.node(key)?;
    if let Value::Text(_) = node.value {
        return part.as_choice(node, &INITS);
    }
    let mut table = part.as_section(node, format!("`{key}`"))?;
    let mut init = table.required_choice("kind", &INITS)?;
    let spread = match &mut init {
        EmbeddingInit::Zeros | EmbeddingInit::UniformByRows => None,
        EmbeddingInit::Uniform { limit } => Some(("limit", limit)),
        EmbeddingInit::Normal { stddev } | EmbeddingInit::TruncatedNormal { stddev } => {
            Some(("stddev", stddev))
        }
    };
    if let Some((key, spread)) = spread {
        *spread = table.positive(key).unwrap_or(*spread);
    }
    table.finish();
    Some(init)
}
