//! Attention learns what pooling loses: whether something like the target is in a row's history.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::sync::Arc;

use millstream_backend::Cpu;
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, RaggedFeature, SlotLayout};
use millstream_trainer::init::Init;
use millstream_trainer::model::{Model, ModelPlan};
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::{ModelSpec, TrainingSpec};
use serde_json::{Value, json};

const ROWS: u32 = 256;
const STEPS: u64 = 1500;
const ITEMS: u32 = 200;
/// Items `i` of one group have the same `i % GROUPS`.
const GROUPS: u32 = 20;
const MAXIMUM: u32 = 10;

fn schema() -> BatchSchema {
    BatchSchema {
        rows: ROWS,
        labels: Vec::new(),
        weighted: false,
        dense: Vec::new(),
        ids: vec![IdFeature { name: "item".to_owned(), cardinality: ITEMS }],
        ragged: vec![RaggedFeature {
            name: "clicked".to_owned(),
            cardinality: ITEMS,
            maximum: MAXIMUM,
            weighted: false,
        }],
        columns: Vec::new(),
        position_bytes: 0,
    }
}

/// A batch whose label is whether the group of `item` occurs in `clicked`.
fn batch(seed: u64) -> BatchBuffer {
    let mut numbers = Init::Uniform { limit: 0.5 }.values(seed, "batch", 0).map(|x| x + 0.5);
    let mut below = |bound: u32| (numbers.next().unwrap() * f64::from(bound)) as u32;
    let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema()).unwrap()));
    let mut slot = buffer.as_mut();
    slot.set_header(&BatchHeader::train(ROWS));
    let mut sections = slot.sections();
    let mut values = 0;
    for row in 0..ROWS as usize {
        let length = below(MAXIMUM + 1);
        let history: Vec<u32> = (0..length).map(|_| below(ITEMS)).collect();
        // Half of the labels are 1 where a history has values.
        let item = match history.first() {
            Some(&first) if below(3) == 0 => below(ITEMS / GROUPS) * GROUPS + first % GROUPS,
            _ => below(ITEMS),
        };
        let is_in = history.iter().any(|value| value % GROUPS == item % GROUPS);
        sections.labels[row] = f32::from(is_in);
        sections.ids[row] = item;
        sections.ragged[0].1[values..values + history.len()].copy_from_slice(&history);
        values += history.len();
        sections.ragged[0].0[row + 1] = values as u32;
    }
    buffer
}

/// A model over items of 8 columns in one table, trained by Adam.
fn spec(more: &Value) -> ModelSpec {
    let adam = json!({"kind": "adam", "learning_rate": 0.005, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7});
    let tables = json!([{"name": "item", "features": ["item", "clicked"]}]);
    let mut model = json!({
        "features": ["item", "clicked"],
        "embedding": {"dim": 8, "pooling": "mean", "optimizer": adam, "tables": tables},
        "hidden": [32, 16],
        "optimizer": adam,
    });
    model.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(model).unwrap()
}

fn din() -> ModelSpec {
    let sequences = json!([{"history": "clicked", "target": "item"}]);
    spec(&json!({"kind": "din", "sequences": sequences, "attention": {"hidden": [36]}}))
}

/// The area under the ROC curve on unseen rows after training.
fn area(spec: &ModelSpec) -> f64 {
    let training = TrainingSpec { seed: 3, ..TrainingSpec::default() };
    let mut model = Model::new(Cpu::new(Some(2)).unwrap(), spec, &schema(), &training).unwrap();
    for step in 0..STEPS {
        model.train_step(batch(step).as_ref(), Step::number(step + 1)).unwrap();
    }
    let (mut positives, mut negatives) = (Vec::new(), Vec::new());
    for seed in 0..8 {
        let unseen = batch(1_000_000 + seed);
        let mut scores = vec![0.0; ROWS as usize];
        model.predict(unseen.as_ref(), &mut scores).unwrap();
        for (&label, score) in unseen.as_ref().labels(0).iter().zip(scores) {
            if label > 0.5 { positives.push(score) } else { negatives.push(score) }
        }
    }
    assert!(positives.len() > 400 && negatives.len() > 400);
    let above = |positive: &f32| negatives.iter().filter(|negative| *negative < positive).count();
    let pairs = (positives.len() * negatives.len()) as f64;
    positives.iter().map(above).sum::<usize>() as f64 / pairs
}

#[test]
fn attention_finds_the_group_of_the_target_in_a_history() {
    let attention = area(&din());
    let pooled = area(&spec(&json!({"kind": "mlp"})));
    // Seen: 0.9996 and 0.906.
    assert!(attention > 0.99, "attention: {attention}, pooled: {pooled}");
    assert!(pooled < 0.95, "attention: {attention}, pooled: {pooled}");
}

/// Twice as long histories need as many more bytes for the values' matrices.
#[test]
fn memory_is_planned_for_the_most_values() {
    let bytes = |maximum: u32| {
        let mut schema = schema();
        schema.ragged[0].maximum = maximum;
        ModelPlan::new(&din(), &schema, &TrainingSpec::default()).unwrap().workspace_bytes
    };
    let more = bytes(2 * MAXIMUM) - bytes(MAXIMUM);
    // Vectors and pairs of 8 and 32 columns, hidden layers of 36 padded to 48, scores, and their gradients.
    let per_value = 4 * 2 * (8 + 32 + 48 + 1);
    let least = u64::from(ROWS * MAXIMUM * per_value);
    assert!((least..2 * least).contains(&more), "{more} bytes, not about {least}");
}
