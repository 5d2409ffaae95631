//! A warm start from a model with other features.

use millstream_backend::{Backend, Reference};
use millstream_batch::BatchSchema;
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::ModelSpec;
use millstream_trainer::warm_start::{IdMapping, WarmStart};
use serde_json::{Value, json};

use crate::case::{Case, Golden, Tensors, golden, tensors_of};

const STEPS: usize = 6;

/// A change of a model's list of features.
type Change = fn(&[Value]) -> Vec<Value>;

/// Removes a numeric feature and an id feature.
fn without_two(features: &[Value]) -> Vec<Value> {
    let (number, ids) = (json!("second"), json!("shape"));
    features.iter().filter(|&feature| *feature != number && *feature != ids).cloned().collect()
}

fn turned(features: &[Value]) -> Vec<Value> {
    features.iter().rev().cloned().collect()
}

fn with_features(spec: &ModelSpec, change: Change) -> ModelSpec {
    fn walk(value: &mut Value, change: Change) {
        let Value::Object(entries) = value else { return };
        for (key, value) in entries {
            match value {
                Value::Array(features) if key == "features" => *features = change(features),
                value => walk(value, change),
            }
        }
    }
    let mut value = serde_json::to_value(spec).expect("a specification");
    walk(&mut value, change);
    serde_json::from_value(value).expect("a specification")
}

fn probabilities<B: Backend>(golden: &Golden, case: &Case, model: &mut Model<B>) -> Vec<f32> {
    let mut all = Vec::new();
    for number in 0..STEPS {
        let batch = golden.batch(case, number);
        let batch = batch.as_ref();
        let mut scores =
            vec![0.0; case.training(1).outputs(golden.schema(case).label_count()) * batch.rows()];
        model.predict(batch, &mut scores).expect("a batch of the schema");
        all.extend(scores);
    }
    all
}

fn begin(warm: &WarmStart, model: &mut Model<Reference>, then: &Tensors) {
    let read: Result<(), ()> = warm.apply(model, |tensor, numbers| {
        numbers.copy_from_slice(&then[&tensor.name]);
        Ok(())
    });
    read.expect("no error of ours");
}

/// A case's model with fewer features after some steps, and the full model in another feature order,
/// warm-started from it.
fn trained_and_warm_started(golden: &Golden, case: &Case) -> (Model<Reference>, Model<Reference>) {
    let schema: &BatchSchema = &golden.schema(case);
    let (then, now) = (with_features(&case.spec(), without_two), with_features(&case.spec(), turned));
    let new = |spec: &ModelSpec, seed| {
        Model::new(Reference, spec, schema, &case.training(seed)).expect("a model of the schema")
    };
    let mut trained = new(&then, 7);
    for number in 0..STEPS {
        let batch = golden.batch(case, number);
        trained.train_step(batch.as_ref(), Step::number(number as u64 + 1)).expect("a batch of the schema");
    }
    let tasks = case.training(7).tasks(schema.label_count());
    let (of_then, of_now) = ((&then, schema, tasks.as_slice()), (&now, schema, tasks.as_slice()));
    let features = schema.ids.iter().map(|ids| &ids.name).chain(schema.ragged.iter().map(|ids| &ids.name));
    let same_ids = features.map(|name| (name.clone(), IdMapping::Same)).collect();
    let warm = WarmStart::new(of_then, of_now, &same_ids).expect("models of one kind");
    let mut begun = new(&now, 8);
    begin(&warm, &mut begun, &tensors_of(&mut trained));
    (trained, begun)
}

/// FTRL interprets the random initial weights of layers as the result of gradients and moves them to zero:
/// then all rows have equal scores.
fn cases(golden: &Golden) -> impl Iterator<Item = &Case> {
    golden.cases.iter().filter(|case| case.name != "ftrl")
}

#[test]
fn new_features_change_no_score_before_training() {
    let golden = golden();
    for case in cases(&golden) {
        let (mut trained, mut begun) = trained_and_warm_started(&golden, case);
        let (then, now) =
            (probabilities(&golden, case, &mut trained), probabilities(&golden, case, &mut begun));
        assert!(then.iter().any(|score| *score != then[0]), "{}: all rows are alike", case.name);
        for (then, now) in then.iter().zip(&now) {
            assert!((then - now).abs() < 1e-6, "{}: {then} became {now}", case.name);
        }
    }
}

/// No new parameter stays at zero for lack of a gradient.
#[test]
fn new_features_learn() {
    let golden = golden();
    for case in cases(&golden) {
        let (_, mut begun) = trained_and_warm_started(&golden, case);
        for number in 0..STEPS {
            let batch = golden.batch(case, number);
            begun.train_step(batch.as_ref(), Step::number(number as u64 + 1)).expect("a batch of the schema");
        }
        for (name, numbers) in tensors_of(&mut begun).iter().filter(|(name, _)| name.ends_with("shape")) {
            assert!(numbers.iter().any(|&number| number != 0.0), "{}: {name}", case.name);
        }
    }
}

/// If weights are a function of optimizer state, rows without weight, whose gradients are zero, do not change
/// them.
#[test]
fn a_step_starts_from_the_copied_weights() {
    let golden = golden();
    for case in cases(&golden).filter(|case| case.name.starts_with("wide_deep")) {
        let (mut trained, mut begun) = trained_and_warm_started(&golden, case);
        let then = tensors_of(&mut trained);
        let mut batch = golden.batch(case, 0);
        batch.as_mut().sections().weights.expect("a weighted schema").fill(0.0);
        begun.train_step(batch.as_ref(), Step::number(1)).expect("a batch of the schema");
        let now = tensors_of(&mut begun);
        for (name, then) in then.iter().filter(|(name, _)| name.contains("ids.") && !name.contains('/')) {
            assert!(then.iter().any(|weight| weight.abs() > 0.05), "{}: {name} had learned", case.name);
            for (then, now) in then.iter().zip(&now[name]) {
                assert!((then - now).abs() < 1e-6, "{}: {name} went from {then} to {now}", case.name);
            }
        }
    }
}
