//! Wide & Deep: rejected settings, memory, and invariants.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::sync::Arc;

use millstream_backend::{BatchError, Cpu};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, RaggedFeature, SlotLayout, Stream};
use millstream_trainer::init::Init;
use millstream_trainer::model::{Model, ModelError, ModelPlan, NamedTensor, StepError, TensorRole};
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::{
    DeepSpec, EmbeddingInit, HiddenLayerSpec, ModelSpec, OptimizerSpec, Pooling, TableSpec, TrainingSpec,
    WideDeepSpec, WideSpec,
};

fn schema(rows: u32) -> BatchSchema {
    BatchSchema {
        rows,
        labels: Vec::new(),
        weighted: false,
        dense: vec!["age".to_owned(), "hours_per_week".to_owned()],
        ids: vec![
            IdFeature { name: "education".to_owned(), cardinality: 50 },
            IdFeature { name: "occupation".to_owned(), cardinality: 700 },
        ],
        ragged: vec![RaggedFeature { name: "tags".to_owned(), cardinality: 90, maximum: 4, weighted: false }],
        columns: Vec::new(),
        position_bytes: 0,
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn spec() -> WideDeepSpec {
    WideDeepSpec {
        wide: WideSpec {
            features: names(&["education", "tags", "age"]),
            optimizer: OptimizerSpec::Ftrl {
                learning_rate: 0.1,
                beta: 1.0,
                l1: 0.001,
                l2: 0.0,
                initial_accumulator: 0.1,
            },
        },
        deep: DeepSpec {
            features: names(&["education", "occupation", "tags", "age", "hours_per_week"]),
            embedding_dim: 8.into(),
            embedding_init: EmbeddingInit::default(),
            embeddings: Vec::new(),
            embedding_optimizer: None,
            hidden: vec![20, 10],
            hidden_layer: HiddenLayerSpec::default(),
            pooling: Pooling::Mean,
            optimizer: OptimizerSpec::Adagrad {
                learning_rate: 0.05,
                initial_accumulator: 0.1,
                epsilon: 1e-7,
                l2: 0.0,
            },
        },
    }
}

/// A batch whose label follows from the column `education`.
fn batch(schema: &BatchSchema, rows: u32, seed: u64) -> BatchBuffer {
    let mut numbers = Init::Uniform { limit: 0.5 }.values(seed, "batch", 0).map(|x| x + 0.5);
    let mut below = |bound: u32| (numbers.next().unwrap() * f64::from(bound)) as u32;
    let stride = schema.rows as usize;
    let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(schema).unwrap()));
    let mut slot = buffer.as_mut();
    slot.set_header(&BatchHeader {
        stream: Stream::Train,
        epoch: 0,
        batch: 0,
        rows,
        global_rows: rows,
        first_row: 0,
        most_rows: rows,
        last: false,
    });
    let mut sections = slot.sections();
    let mut values = 0;
    for row in 0..rows as usize {
        let education = below(50);
        sections.labels[row] = f32::from(education % 3 == 0);
        sections.ids[row] = education;
        sections.ids[stride + row] = below(700);
        sections.dense[2 * row] = below(100) as f32 / 100.0;
        sections.dense[2 * row + 1] = below(100) as f32 / 100.0;
        for _ in 0..below(5) {
            sections.ragged[0].1[values] = below(90);
            values += 1;
        }
        sections.ragged[0].0[row + 1] = values as u32;
    }
    buffer
}

fn model(threads: u32, schema: &BatchSchema) -> Model<Cpu> {
    Model::new(Cpu::new(Some(threads)).unwrap(), &ModelSpec::WideDeep(spec()), schema, &training()).unwrap()
}

fn training() -> TrainingSpec {
    TrainingSpec { seed: 7, ..TrainingSpec::default() }
}

fn tensors(model: &mut Model<Cpu>) -> Vec<(NamedTensor, Vec<f32>)> {
    let mut tensors = Vec::new();
    let read: Result<(), ()> = model.read_tensors(|tensor, values| {
        tensors.push((tensor.clone(), values.to_vec()));
        Ok(())
    });
    read.unwrap();
    tensors
}

#[test]
fn it_learns() {
    let schema = schema(256);
    let mut model = model(2, &schema);
    let losses: Vec<f64> = (0..500)
        .map(|step| {
            model.train_step(batch(&schema, 256, step).as_ref(), Step::number(step + 1)).unwrap().mean()
        })
        .collect();
    assert!(losses[0] > 0.6, "{}", losses[0]);
    assert!(losses[499] < 0.1, "{}", losses[499]);
    let unseen = batch(&schema, 256, 10_000);
    let mut probabilities = vec![0.0; 256];
    model.predict(unseen.as_ref(), &mut probabilities).unwrap();
    let labels = unseen.as_ref().labels(0).iter().zip(&probabilities);
    assert!(labels.filter(|(label, p)| (**label > 0.5) == (**p > 0.5)).count() > 250);
}

#[test]
fn the_plan_lists_the_models_tensors() {
    let schema = schema(64);
    let plan = ModelPlan::new(&ModelSpec::WideDeep(spec()), &schema, &training()).unwrap();
    assert_eq!(plan.tensors, model(1, &schema).tensors());
    let wide = 50 + 90 + 1 + 1;
    let deep = (50 + 700 + 90) * 8 + (26 * 20 + 20) + (20 * 10 + 10) + (10 + 1);
    assert_eq!(plan.parameters, wide + deep);
    let of_role = |role| plan.tensors.iter().filter(move |tensor| tensor.role == role);
    let counted: usize = of_role(TensorRole::Parameter).map(NamedTensor::len).sum();
    assert_eq!(counted as u64, plan.parameters);
    let states: usize = of_role(TensorRole::OptimizerState).map(NamedTensor::len).sum();
    assert_eq!(states as u64, 2 * wide + deep);
    // FTRL rows are padded from three values to four, and matrices of 20 columns to 32.
    let padded = 12 * (26 + 1);
    assert_eq!(plan.parameter_bytes, 4 * (4 * (50 + 90) + 3 * 2 + 2 * (deep + padded)));
    let find = |name| plan.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    assert_eq!(find("wide.ids.education").shape, [50]);
    assert_eq!(find("wide.ids.education/n").shape, [50]);
    assert_eq!(find("deep.embedding.tags/accumulator").shape, [90, 8]);
    assert_eq!(find("deep.layer.0.weight").shape, [26, 20]);
}

#[test]
fn invalid_models_are_rejected() {
    let refusal = |change: fn(&mut WideDeepSpec)| {
        let mut spec = spec();
        change(&mut spec);
        ModelPlan::new(&ModelSpec::WideDeep(spec), &schema(64), &training()).unwrap_err()
    };
    let unknown = refusal(|spec| spec.wide.features[0] = "educaton".to_owned());
    assert_eq!(
        unknown.to_string(),
        "model.wide.features: there is no feature `educaton`; the nearest is `education`"
    );
    let unknown = refusal(|spec| spec.deep.features[0] = "zzz".to_owned());
    assert_eq!(unknown.to_string(), "model.deep.features: there is no feature `zzz`");
    let repeated = refusal(|spec| spec.deep.features.push("age".to_owned()));
    assert!(matches!(repeated, ModelError::RepeatedFeature { feature, .. } if feature == "age"));
    let empty = |change| match refusal(change) {
        ModelError::Empty { key, .. } => key,
        other => panic!("{other}"),
    };
    assert_eq!(empty(|spec| spec.deep.features.clear()), "model.deep.features");
    assert_eq!(empty(|spec| spec.deep.embedding_dim = 0.into()), "model.deep.embedding_dim");
    assert_eq!(empty(|spec| spec.deep.hidden.push(0)), "model.deep.hidden");
    let constant = refusal(|spec| spec.deep.optimizer = OptimizerSpec::Sgd { learning_rate: -1.0, l2: 0.0 });
    let expected = "model.deep.optimizer: `learning_rate` is -1; expected a number above 0";
    assert_eq!(constant.to_string(), expected);
    let mut huge = schema(64);
    huge.ids[1].cardinality = u32::MAX;
    let mut wide = spec();
    wide.deep.embedding_dim = u32::MAX.into();
    let too_large = ModelPlan::new(&ModelSpec::WideDeep(wide), &huge, &training()).unwrap_err();
    assert!(matches!(too_large, ModelError::ParameterTooLarge { .. }), "{too_large}");
}

#[test]
fn maxima_exclude_weights_and_their_record_is_planned() {
    fn table(pooling: Pooling) -> TableSpec {
        let features = names(&["tags"]);
        TableSpec { name: "tags".to_owned(), features, dim: None, pooling: Some(pooling), init: None }
    }
    let plan = |is_weighted, change: fn(&mut DeepSpec)| {
        let (mut spec, mut schema) = (spec(), schema(64));
        schema.ragged[0].weighted = is_weighted;
        change(&mut spec.deep);
        let plan = ModelPlan::new(&ModelSpec::WideDeep(spec), &schema, &training());
        plan.map(|plan| plan.workspace_bytes).map_err(|error| error.to_string())
    };
    let maxima = |deep: &mut DeepSpec| deep.pooling = Pooling::Max;
    let of_table = |deep: &mut DeepSpec| deep.embeddings = vec![table(Pooling::Max)];
    let sum_of_table = |deep: &mut DeepSpec| {
        deep.pooling = Pooling::Max;
        deep.embeddings = vec![table(Pooling::Sum)];
    };
    for (change, key) in [
        (maxima as fn(&mut DeepSpec), "model.deep.pooling"),
        (of_table, "model.deep.embeddings.tags.pooling"),
    ] {
        let expected = format!(
            "{key}: \"max\" does not use weights, which feature `tags` has: remove `weights`, or pool by \"sum\", \
             \"mean\" or \"sqrtn\""
        );
        assert_eq!(plan(true, change), Err(expected));
        // The tags have several values, and the other features one.
        let record = 64 * 8 * size_of::<u32>() as u64;
        assert_eq!(plan(false, change).unwrap(), plan(false, |_| ()).unwrap() + record);
    }
    assert_eq!(plan(true, sum_of_table), plan(true, |_| ()));
}

#[test]
fn parts_may_have_minimum_sizes() {
    let schema = schema(16);
    let smallest: [fn(&mut WideDeepSpec); 4] = [
        |spec| spec.wide.features.clear(),
        |spec| spec.deep.hidden.clear(),
        |spec| spec.deep.features = names(&["age"]),
        |spec| spec.deep.features = names(&["tags"]),
    ];
    for change in smallest {
        let mut spec = spec();
        change(&mut spec);
        let spec = ModelSpec::WideDeep(spec);
        let mut model = Model::new(Cpu::new(Some(2)).unwrap(), &spec, &schema, &training()).unwrap();
        assert_eq!(model.tensors(), ModelPlan::new(&spec, &schema, &training()).unwrap().tensors);
        let before = model.train_step(batch(&schema, 16, 0).as_ref(), Step::number(1)).unwrap().mean();
        let after = model.train_step(batch(&schema, 16, 0).as_ref(), Step::number(1)).unwrap().mean();
        assert!(after < before, "{after} after {before}: {spec:?}");
    }
}

#[test]
fn a_bad_or_empty_batch_changes_nothing() {
    let schema = schema(16);
    let mut model = model(2, &schema);
    let before = tensors(&mut model);
    let mut bad = batch(&schema, 16, 0);
    bad.as_mut().sections().ids[3] = 50;
    let refusal = model.train_step(bad.as_ref(), Step::number(1)).unwrap_err();
    let StepError::Batch(refusal) = refusal else { panic!("{refusal}") };
    assert!(matches!(refusal, BatchError::IdOutOfRange { row: 3, id: 50, .. }), "{refusal}");
    assert_eq!(model.predict(bad.as_ref(), &mut [0.0; 16]), Err(refusal));
    let nothing = model.train_step(batch(&schema, 0, 0).as_ref(), Step::number(1)).unwrap();
    assert_eq!((nothing.loss, nothing.weight, nothing.mean()), (0.0, 0.0, 0.0));
    assert_eq!(tensors(&mut model), before);
}
