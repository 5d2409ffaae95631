//! The two-tower model of a job file.

use millstream_document::problems::suggestion;
use millstream_document::section::Section;
use millstream_trainer::spec::{ChoiceLoss, MlpSpec, TwoTowerSpec};

use super::{read_features, read_hidden_layer, read_optimizers, read_widths};

/// The default temperature. Dot products of unit vectors are within [-1, 1], and a softmax of such numbers is flat.
const TEMPERATURE: f32 = 0.05;

const LOSSES: [(&str, ChoiceLoss); 2] = [("softmax", ChoiceLoss::Softmax), ("bpr", ChoiceLoss::Bpr)];

/// Reads the model; its features are among `features`.
pub(super) fn read(model: &mut Section<'_>, features: &[&str]) -> TwoTowerSpec {
    let query = model.required_section("query", "[model.query]", "the features of a query");
    let item = model.required_section("item", "[model.item]", "the features of an item");
    let (query, item) =
        (read_tower(query, "model.query", features), read_tower(item, "model.item", features));
    let normalize = model.flag("normalize").unwrap_or(true);
    let usual = if normalize { TEMPERATURE } else { 1.0 };
    TwoTowerSpec {
        query,
        item,
        dim: model.whole_u32("dim", 1..=65_536).unwrap_or(32),
        normalize,
        temperature: model.constant("temperature", true).unwrap_or(usual),
        loss: model.choice("loss", &LOSSES).unwrap_or_default(),
        item_id: read_item_id(model, features),
    }
}

fn read_tower(mut tower: Section<'_>, path: &str, features: &[&str]) -> MlpSpec {
    let features = read_features(&mut tower, features);
    let hidden = read_widths(&mut tower, "hidden", &[64]);
    let hidden_layer = read_hidden_layer(&mut tower);
    let (embedding, optimizer) = read_optimizers(&mut tower, path, &features);
    tower.finish();
    MlpSpec { features, embedding, hidden, hidden_layer, optimizer }
}

fn read_item_id(model: &mut Section<'_>, features: &[&str]) -> Option<String> {
    let name = model.text("item_id")?;
    if !features.contains(&name.text) {
        let hint = suggestion(name.text, features.iter().copied());
        model.error_at(name.at, format!("`{}` is not in [features]{hint}", name.text));
    }
    Some(name.text.to_owned())
}
