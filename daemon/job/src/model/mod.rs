//! The `[model]` of a job file.

pub(super) mod din;
pub(super) mod embedding;
mod optimizer;
mod two_tower;

use std::collections::HashSet;

use millstream_document::problems::suggestion;
use millstream_document::section::{Section, Text};
use millstream_document::tree::Node;
use millstream_trainer::spec::{
    CrossSpec, DcnSpec, DcnStructure, DeepFmSpec, DeepSpec, DlrmInteraction, DlrmSpec, EmbeddingSpec,
    HiddenLayerSpec, LayerInit, LinearSpec, MlpSpec, MmoeSpec, ModelSpec, Normalization, OptimizerSpec,
    WideDeepSpec, WideSpec,
};

use optimizer::{ADAGRAD, FTRL, Trains};

/// Reads the keys of one kind of model. `features` are the names that its parts may use.
type ReadModel = fn(&mut Section<'_>, features: &[&str]) -> ModelSpec;

const KINDS: [(&str, ReadModel); 9] = [
    ("linear", |model, features| ModelSpec::Linear(read_linear(model, features))),
    ("mlp", |model, features| ModelSpec::Mlp(read_mlp(model, features))),
    ("wide_deep", |model, features| ModelSpec::WideDeep(read_wide_deep(model, features))),
    ("deepfm", |model, features| ModelSpec::DeepFm(read_deepfm(model, features))),
    ("dcn_v2", |model, features| ModelSpec::Dcn(read_dcn(model, features))),
    ("din", |model, features| ModelSpec::Din(din::read(model, features))),
    ("dlrm", |model, features| ModelSpec::Dlrm(read_dlrm(model, features))),
    ("mmoe", |model, features| ModelSpec::Mmoe(read_mmoe(model, features))),
    ("two_tower", |model, features| ModelSpec::TwoTower(two_tower::read(model, features))),
];

const NORMALIZATIONS: [(&str, Normalization); 2] =
    [("layer", Normalization::Layer), ("batch", Normalization::Batch)];

const LAYER_INITS: [(&str, LayerInit); 4] = [
    ("glorot_uniform", LayerInit::GlorotUniform),
    ("glorot_normal", LayerInit::GlorotNormal),
    ("he_uniform", LayerInit::HeUniform),
    ("he_normal", LayerInit::HeNormal),
];

const STRUCTURES: [(&str, DcnStructure); 2] =
    [("stacked", DcnStructure::Stacked), ("parallel", DcnStructure::Parallel)];

/// Reads the model. `features` are the names that its parts may use.
pub(super) fn read(mut section: Section<'_>, features: &[&str]) -> ModelSpec {
    let Some(read) = section.required_choice("kind", &KINDS) else {
        // The remaining keys depend on the kind, so no more problems are reported.
        return ModelSpec::Linear(LinearSpec { features: Vec::new(), optimizer: FTRL });
    };
    let model = read(&mut section, features);
    section.finish();
    model
}

/// The names of the features that a model reads.
pub(super) fn used(model: &ModelSpec) -> HashSet<&str> {
    let item_id = match model {
        ModelSpec::TwoTower(spec) => spec.item_id.as_deref(),
        _ => None,
    };
    let read = model.features().into_iter().flat_map(|(_, names)| names);
    read.map(String::as_str).chain(item_id).collect()
}

fn read_linear(model: &mut Section<'_>, features: &[&str]) -> LinearSpec {
    LinearSpec {
        features: read_features(model, features),
        optimizer: optimizer::read(model, "optimizer", "[model.optimizer]", Trains::Layers, FTRL),
    }
}

fn read_mlp(model: &mut Section<'_>, features: &[&str]) -> MlpSpec {
    let features = read_features(model, features);
    let hidden = read_widths(model, "hidden", &[100, 50]);
    let hidden_layer = read_hidden_layer(model);
    let (embedding, optimizer) = read_optimizers(model, "model", &features);
    MlpSpec { features, embedding, hidden, hidden_layer, optimizer }
}

fn read_deepfm(model: &mut Section<'_>, features: &[&str]) -> DeepFmSpec {
    let MlpSpec { features, embedding, hidden, hidden_layer, optimizer } = read_mlp(model, features);
    let title = "[model.linear_optimizer]";
    let linear_optimizer = optimizer::read(model, "linear_optimizer", title, Trains::Layers, FTRL);
    DeepFmSpec { features, embedding, hidden, hidden_layer, linear_optimizer, optimizer }
}

fn read_dcn(model: &mut Section<'_>, features: &[&str]) -> DcnSpec {
    let MlpSpec { features, embedding, hidden, hidden_layer, optimizer } = read_mlp(model, features);
    let structure = model.choice("structure", &STRUCTURES).unwrap_or(DcnStructure::Stacked);
    DcnSpec { features, embedding, cross: read_cross(model), structure, hidden, hidden_layer, optimizer }
}

fn read_dlrm(model: &mut Section<'_>, features: &[&str]) -> DlrmSpec {
    let features = read_features(model, features);
    let (embedding, optimizer) = read_optimizers(model, "model", &features);
    let is_cross = model.choice("interaction", &[("dot", false), ("cross", true)]).unwrap_or(false);
    let interaction = if is_cross {
        DlrmInteraction::Cross(read_cross(model))
    } else {
        for key in ["cross_layers", "cross_rank"] {
            if model.node(key).is_some() {
                model.error(key, format!("`{key}` is for `interaction = \"cross\"`"));
            }
        }
        DlrmInteraction::Dot
    };
    let bottom = read_widths(model, "bottom", &[64, 32]);
    let top = read_widths(model, "top", &[100, 50]);
    let hidden_layer = read_hidden_layer(model);
    DlrmSpec { features, embedding, bottom, interaction, top, hidden_layer, optimizer }
}

fn read_mmoe(model: &mut Section<'_>, features: &[&str]) -> MmoeSpec {
    let features = read_features(model, features);
    let experts = model.whole_u32("experts", 1..=1_024).unwrap_or(8);
    let expert = read_widths(model, "expert", &[64]);
    if expert.is_empty() {
        model.error("expert", "an expert has at least one layer");
    }
    let tower = read_widths(model, "tower", &[32]);
    let hidden_layer = read_hidden_layer(model);
    let (embedding, optimizer) = read_optimizers(model, "model", &features);
    MmoeSpec { features, embedding, experts, expert, tower, hidden_layer, optimizer }
}

fn read_wide_deep(model: &mut Section<'_>, features: &[&str]) -> WideDeepSpec {
    let wide = read_wide(model.section("wide", "[model.wide]"), features);
    let deep = model.required_section("deep", "[model.deep]", "the features that are embedded");
    WideDeepSpec { wide, deep: read_deep(deep, features) }
}

fn read_wide(mut wide: Section<'_>, features: &[&str]) -> WideSpec {
    let names = wide.texts("features").unwrap_or_default();
    let title = "[model.wide.optimizer]";
    let spec = WideSpec {
        features: read_names(&wide, &names, features),
        optimizer: optimizer::read(&mut wide, "optimizer", title, Trains::Layers, FTRL),
    };
    wide.finish();
    spec
}

fn read_deep(mut deep: Section<'_>, features: &[&str]) -> DeepSpec {
    let title = "[model.deep.embedding_optimizer]";
    let layers = optimizer::read(&mut deep, "optimizer", "[model.deep.optimizer]", Trains::Layers, ADAGRAD);
    let embeddings = optimizer::read(&mut deep, "embedding_optimizer", title, Trains::Embeddings, layers);
    let features = read_features(&mut deep, features);
    let EmbeddingSpec { dim, pooling, init, tables, optimizer: _ } =
        embedding::read(&mut deep, "[model.deep.embeddings]", &features, embeddings);
    let spec = DeepSpec {
        features,
        embedding_dim: dim,
        embedding_init: init,
        hidden: read_widths(&mut deep, "hidden", &[100, 50]),
        hidden_layer: read_hidden_layer(&mut deep),
        pooling,
        optimizer: layers,
        embedding_optimizer: (embeddings != layers).then_some(embeddings),
        embeddings: tables,
    };
    deep.finish();
    spec
}

/// Reads the optimizer of the layers, and that of the embeddings, which defaults to it. `path` is the path of
/// `model`, whose features are `features`.
fn read_optimizers(
    model: &mut Section<'_>,
    path: &str,
    features: &[String],
) -> (EmbeddingSpec, OptimizerSpec) {
    let title = |key: &str| format!("[{path}.{key}]");
    let layers = optimizer::read(model, "optimizer", &title("optimizer"), Trains::Layers, ADAGRAD);
    let of_embeddings = title("embedding_optimizer");
    let optimizer = optimizer::read(model, "embedding_optimizer", &of_embeddings, Trains::Embeddings, layers);
    (embedding::read(model, &title("embeddings"), features, optimizer), layers)
}

fn read_hidden_layer(part: &mut Section<'_>) -> HiddenLayerSpec {
    let dropout = part.fraction("dropout").unwrap_or(0.0);
    let normalization = part.choice("normalization", &NORMALIZATIONS);
    let init = part.choice("hidden_init", &LAYER_INITS).unwrap_or_default();
    HiddenLayerSpec { dropout, normalization, init }
}

fn read_cross(model: &mut Section<'_>) -> CrossSpec {
    let layers = model.whole_u32("cross_layers", 1..=64).unwrap_or(3);
    CrossSpec { layers, rank: model.whole_u32("cross_rank", 1..=1_048_576) }
}

/// Reads the features of a part that needs at least one.
fn read_features(part: &mut Section<'_>, features: &[&str]) -> Vec<String> {
    let names = part.required_texts("features", "names of features");
    if names.as_ref().is_some_and(Vec::is_empty) {
        part.error("features", "at least one feature is needed");
    }
    read_names(part, &names.unwrap_or_default(), features)
}

fn read_names(section: &Section<'_>, names: &[Text<'_>], features: &[&str]) -> Vec<String> {
    let mut seen = HashSet::new();
    for &Text { text, at } in names {
        if section.is_full() {
            break;
        }
        if !seen.insert(text) {
            section.error_at(at, format!("the feature `{text}` is listed twice"));
        } else if !features.contains(&text) {
            let hint = suggestion(text, features.iter().copied());
            section.error_at(at, format!("`{text}` is not in [features]{hint}"));
        }
    }
    names.iter().map(|name| name.text.to_owned()).collect()
}

/// Widths of layers.
fn read_widths(part: &mut Section<'_>, key: &'static str, default: &[u32]) -> Vec<u32> {
    let Some(node) = part.node(key) else { return default.to_vec() };
    let widths: &[Node] = part.as_list(node, "whole numbers").unwrap_or_default();
    let width = |item| part.as_whole(item, 1..=1_048_576).and_then(|width| u32::try_from(width).ok());
    widths.iter().filter_map(width).collect()
}

#[cfg(test)]
mod tests;
