//! The Deep Interest Network of a job file.

use millstream_document::problems::{At, Problems, suggestion};
use millstream_document::section::{Section, Text};
use millstream_pipeline::spec::FeatureKind;
use millstream_trainer::spec::{AttentionSpec, DinSpec, MlpSpec, ModelSpec, SequenceSpec, TableSpec};

use super::super::features::Feature;
use super::{read_mlp, read_widths};

/// The hidden layers of an activation unit: those of figure 2 of the paper.
const ATTENTION: [u32; 1] = [36];

/// A sequence, and the position of its history in the file.
struct Pair {
    sequence: SequenceSpec,
    at: At,
}

/// Reads the model; its features are among `features`.
pub(super) fn read(model: &mut Section<'_>, features: &[&str]) -> DinSpec {
    let MlpSpec { features, mut embedding, hidden, hidden_layer, optimizer } = read_mlp(model, features);
    let pairs = read_pairs(model, &features);
    for pair in &pairs {
        share_table(model, &mut embedding.tables, pair);
    }
    let mut attention = model.section("attention", "[model.attention]");
    let widths = read_widths(&mut attention, "hidden", &ATTENTION);
    attention.finish();
    DinSpec {
        features,
        sequences: pairs.into_iter().map(|pair| pair.sequence).collect(),
        attention: AttentionSpec { hidden: widths },
        embedding,
        hidden,
        hidden_layer,
        optimizer,
    }
}

fn read_pairs(model: &mut Section<'_>, features: &[String]) -> Vec<Pair> {
    let what = "pairs of a history and its target, such as `[{ history = \"clicked\", target = \"item\" }]`";
    let Some(node) = model.required("sequences", what) else { return Vec::new() };
    let items = model.as_list(node, "tables").unwrap_or_default();
    if items.is_empty() {
        model.error_at(node.at, "at least one pair of a history and its target is needed");
    }
    let mut pairs: Vec<Pair> = Vec::new();
    for item in items {
        if model.is_full() {
            break;
        }
        let Some(mut table) = model.as_section(item, "a table of `sequences`") else { continue };
        let history = table.required_text("history", "the name of a multi-valued feature");
        let target = table.required_text("target", "the name of a single-valued feature");
        table.finish();
        let (Some(history), Some(target)) = (history, target) else { continue };
        for Text { text, at } in [history, target] {
            if !features.iter().any(|feature| feature == text) {
                let hint = suggestion(text, features.iter().map(String::as_str));
                model.error_at(at, format!("`{text}` is not a feature of the model{hint}"));
            }
        }
        if pairs.iter().any(|pair| pair.sequence.history == history.text) {
            model.error_at(history.at, format!("`{}` is the history of two sequences", history.text));
        }
        let sequence = SequenceSpec { history: history.text.to_owned(), target: target.text.to_owned() };
        pairs.push(Pair { sequence, at: history.at });
    }
    pairs
}

/// Adds a history to the table of its target, which is the target's own unless the job assigns it to another.
fn share_table(model: &Section<'_>, tables: &mut Vec<TableSpec>, Pair { sequence, at }: &Pair) {
    let SequenceSpec { history, target } = sequence;
    let of = |name: &String| tables.iter().position(|table| table.features.contains(name));
    match (of(history), of(target)) {
        (Some(one), Some(other)) if one == other => {}
        (Some(number), _) => {
            let table = &tables[number].name;
            let message = format!(
                "the history `{history}` is in table `{table}`, and its target `{target}` is not; they share one: \
                 list both in `embeddings.{table}.features`, or neither"
            );
            model.error_at(*at, message);
        }
        (None, Some(number)) => tables[number].features.push(history.clone()),
        (None, None) => tables.push(TableSpec {
            name: target.clone(),
            features: vec![target.clone(), history.clone()],
            dim: None,
            pooling: None,
            init: None,
        }),
    }
}

/// Rejects histories and targets that are not sequences of ids and ids.
pub(crate) fn refuse_other_sequences(model: &ModelSpec, features: &[Feature], problems: &Problems<'_>) {
    let ModelSpec::Din(DinSpec { sequences, .. }) = model else { return };
    let find = |name: &String| features.iter().find(|feature| feature.spec.name == *name);
    let refuse = |feature: &Feature, message: &str| {
        problems.error(feature.at, format!("feature `{}` {message}", feature.spec.name));
    };
    for SequenceSpec { history, target } in sequences {
        for (feature, what) in [(find(history), "a history"), (find(target), "a target")] {
            let Some(feature) = feature else { continue };
            if let FeatureKind::Numeric { .. } | FeatureKind::Vector { .. } = feature.spec.kind {
                refuse(feature, &format!("has numbers; {what} has ids"));
            }
        }
        match find(history) {
            Some(feature) if feature.spec.maximum.is_none() => {
                refuse(feature, "has one id per row; a history needs `multi = true`");
            }
            Some(feature) if feature.spec.weights.is_some() => {
                refuse(feature, "has `weights`, which attention does not use; remove them");
            }
            _ => {}
        }
        if let Some(feature) = find(target).filter(|feature| feature.spec.maximum.is_some()) {
            refuse(feature, "has several ids per row; the target of a history has one");
        }
    }
}
