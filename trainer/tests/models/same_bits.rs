//! Invariants to the bit: the number of threads, and resuming from a checkpoint. Also tests plans.

use millstream_backend::{Backend, Cpu};
use millstream_trainer::model::{Model, ModelError, ModelPlan};
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::{LossSpec, ModelSpec, TrainingSpec, TwoTowerSpec};

use crate::case::{Case, Golden, Tensors, cuda, golden, tensors_of, write};

fn cpu(threads: u32) -> Cpu {
    Cpu::new(Some(threads)).expect("threads")
}

fn train<B: Backend>(golden: &Golden, case: &Case, model: &mut Model<B>, steps: std::ops::Range<usize>) {
    for number in steps {
        model
            .train_step(golden.batch(case, number).as_ref(), Step::number(number as u64 + 1))
            .expect("a batch of the schema");
    }
}

fn bits(tensors: &Tensors) -> Vec<u64> {
    tensors.values().flatten().map(|number| number.to_bits()).collect()
}

fn new(golden: &Golden, case: &Case, threads: u32, seed: u64) -> Model<Cpu> {
    new_on(cpu(threads), golden, case, seed)
}

fn new_on<B: Backend>(backend: B, golden: &Golden, case: &Case, seed: u64) -> Model<B> {
    Model::new(backend, &case.spec(), &golden.schema(case), &case.training(seed))
        .expect("a model of the schema")
}

#[test]
fn threads_change_no_bit() {
    let golden = golden();
    for case in &golden.cases {
        let after = |threads| {
            let mut model = new(&golden, case, threads, 7);
            train(&golden, case, &mut model, 0..8);
            bits(&tensors_of(&mut model))
        };
        let one = after(1);
        assert!(one == after(2), "{}", case.name);
        assert!(one == after(3), "{}", case.name);
    }
}

/// A step depends only on the tensors, the seed and the number of the step.
#[test]
fn a_model_resumes_from_its_tensors() {
    resumes_from_its_tensors(|| cpu(2));
}

/// The stand-in GPU runs its streams in another order each time, like a GPU.
#[test]
fn a_model_on_cuda_resumes_from_its_tensors() {
    resumes_from_its_tensors(cuda);
}

fn resumes_from_its_tensors<B: Backend>(backend: impl Fn() -> B) {
    let golden = golden();
    for case in &golden.cases {
        let mut first = new_on(backend(), &golden, case, 7);
        train(&golden, case, &mut first, 0..5);
        let mut second = new_on(backend(), &golden, case, 7);
        assert!(bits(&tensors_of(&mut second)) != bits(&tensors_of(&mut first)), "{}", case.name);
        write(&mut second, &tensors_of(&mut first));
        train(&golden, case, &mut first, 5..12);
        train(&golden, case, &mut second, 5..12);
        assert!(bits(&tensors_of(&mut second)) == bits(&tensors_of(&mut first)), "{}", case.name);
    }
}

#[test]
fn batches_with_dependent_rows_reject_micro_batches() {
    let golden = golden();
    let cases: Vec<&Case> = golden.cases.iter().filter(|case| case.needs_whole_batches()).collect();
    let choosing = cases.iter().filter(|case| case.spec().uses_in_batch_loss()).count();
    assert!(choosing > 0 && choosing < cases.len());
    for case in cases {
        let chooses = case.spec().uses_in_batch_loss();
        let planned = |rows| {
            let training = TrainingSpec { micro_batch_rows: Some(rows), ..case.training(7) };
            ModelPlan::new(&case.spec(), &golden.schema(case), &training).map(|plan| plan.parameters)
        };
        let error = if chooses { ModelError::PartsChoose } else { ModelError::PartsNormalized };
        assert_eq!(planned(golden.schema(case).rows - 1), Err(error));
        assert!(planned(golden.schema(case).rows).is_ok());
    }
}

#[test]
fn plans_list_the_tensors_of_models() {
    let golden = golden();
    for case in &golden.cases {
        let plan = ModelPlan::new(&case.spec(), &golden.schema(case), &case.training(7))
            .expect("a model of the schema");
        assert_eq!(plan.tensors, new(&golden, case, 1, 7).tensors(), "{}", case.name);
        let held: usize = plan.tensors.iter().map(millstream_trainer::model::NamedTensor::len).sum();
        assert!(plan.parameter_bytes >= 4 * held as u64, "{}: {plan:?}", case.name);
        assert!(plan.workspace_bytes > 0);
    }
}

#[test]
fn items_are_identified_by_a_single_valued_id_feature() {
    let golden = golden();
    let planned = |item_id: &str| {
        let case = golden.cases.iter().find(|case| case.spec().uses_in_batch_loss()).expect("two towers");
        let ModelSpec::TwoTower(spec) = case.spec() else { panic!("{}", case.name) };
        let spec = ModelSpec::TwoTower(TwoTowerSpec { item_id: Some(item_id.to_owned()), ..spec });
        ModelPlan::new(&spec, &golden.schema(case), &case.training(7)).map(|plan| plan.parameters)
    };
    assert!(planned("shape").is_ok());
    let error = planned("tags").expect_err("several ids a row").to_string();
    assert!(error.starts_with("model.item_id: feature `tags` must have one id per row"), "{error}");
    let error = planned("shapes").expect_err("no feature").to_string();
    assert_eq!(error, "model.item_id: there is no feature `shapes`; the nearest is `shape`");
    let error = planned("first").expect_err("a number").to_string();
    assert!(error.starts_with("model.item_id: feature `first` must have one id per row"), "{error}");
}

#[test]
fn classes_need_models_that_predict_them() {
    let golden = golden();
    let planned = |case: &Case, classes, class_weights: Vec<f32>| {
        let loss = LossSpec::CrossEntropy { classes, label_smoothing: 0.0, class_weights };
        let tasks = vec![loss.into(); golden.schema(case).label_count()];
        let training = TrainingSpec { tasks, ..TrainingSpec::default() };
        ModelPlan::new(&case.spec(), &golden.schema(case), &training).map(|plan| plan.parameters)
    };
    let (mut taken, mut refused) = (0, 0);
    for case in &golden.cases {
        let (spec, plan) = (case.spec(), planned(case, 3, Vec::new()));
        if spec.supports_classes() && golden.schema(case).label_count() == 1 {
            let more = planned(case, 4, vec![1.0; 4]).expect("a model of four classes");
            assert!(plan.expect("a model of three") < more, "{}", case.name);
            taken += 1;
        } else {
            assert_eq!(plan, Err(ModelError::Classes { kind: spec.kind() }), "{}", case.name);
            refused += 1;
        }
    }
    assert!(taken > 0 && refused > 0);
    let case = golden.cases.iter().find(|case| case.spec().supports_classes()).expect("an MLP");
    assert_eq!(planned(case, 1, Vec::new()), Err(ModelError::ClassWeights { classes: 1, weights: 0 }));
    assert_eq!(planned(case, 3, vec![1.0]), Err(ModelError::ClassWeights { classes: 3, weights: 1 }));
}

#[test]
fn constants_of_losses_are_checked() {
    let golden = golden();
    let case = golden
        .cases
        .iter()
        .find(|case| golden.schema(case).label_count() == 1)
        .expect("a model of one label");
    let planned = |loss: LossSpec| {
        let training = TrainingSpec { loss, ..TrainingSpec::default() };
        ModelPlan::new(&case.spec(), &golden.schema(case), &training).map(|_| ())
    };
    for (loss, key, is_valid) in [
        (LossSpec::Huber { delta: 0.5 }, "delta", true),
        (LossSpec::Huber { delta: 0.0 }, "delta", false),
        (LossSpec::Huber { delta: f32::NAN }, "delta", false),
        (LossSpec::Focal { gamma: 0.0, alpha: Some(0.5) }, "gamma", true),
        (LossSpec::Focal { gamma: f32::INFINITY, alpha: None }, "gamma", false),
        (LossSpec::Focal { gamma: 1.0, alpha: Some(1.0) }, "alpha", false),
        (LossSpec::Quantile { quantile: 0.5 }, "quantile", true),
        (LossSpec::Quantile { quantile: 0.0 }, "quantile", false),
        (LossSpec::Quantile { quantile: 1.0 }, "quantile", false),
    ] {
        let error = planned(loss.clone()).err();
        let found = error.map(|error| match error {
            ModelError::LossConstant { key, .. } => key,
            other => panic!("{other}"),
        });
        assert_eq!(found, (!is_valid).then_some(key), "{loss:?}");
    }
}
