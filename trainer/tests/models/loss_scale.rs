//! The loss scale: its trajectory compared with PyTorch's `GradScaler`, and skipped steps.

use millstream_backend::{Backend, Cpu, Cuda, Device, LossScaling, Reference, Scalar, ops};
use millstream_batch::BatchBuffer;
use millstream_trainer::model::{LossScale, Model};
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::{LossScaleSpec, ModelSpec, Precision, TrainingSpec};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::case::{Case, Golden, cuda, golden, tensors_of, write};

/// The trajectory of one scaler.
#[derive(Deserialize)]
struct Way {
    #[serde(flatten)]
    spec: LossScaleSpec,
    moves: Vec<Move>,
}

#[derive(Deserialize)]
struct Move {
    gradient: Gradient,
    /// The state after the step, like the next fields.
    scale: f64,
    good_steps: u32,
    weight: f64,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Gradient {
    Good,
    Infinite,
    Nan,
}

fn ways() -> Vec<Way> {
    let ways: Vec<Way> =
        serde_json::from_str(include_str!("../golden/loss_scale.json")).expect("a golden file");
    let skipped = |way: &Way| way.moves.iter().filter(|step| step.gradient != Gradient::Good).count();
    assert!(ways.len() == 4 && ways.iter().all(|way| skipped(way) > 0));
    ways
}

fn the_scale_follows_pytorch<B: Backend>(backend: &B) {
    let matrix = |numbers: &[f64]| {
        let mut matrix = backend.matrix(1, numbers.len());
        let numbers: Vec<B::Scalar> = numbers.iter().map(|&number| B::Scalar::from_f64(number)).collect();
        backend.write_matrix(&mut matrix, &numbers);
        matrix
    };
    for Way { spec, moves } in ways() {
        let LossScaleSpec { initial, growth, growth_interval, backoff } = spec;
        let rule = LossScaling { growth: growth.into(), growth_interval, backoff: backoff.into() };
        let (mut state, mut scale) = (matrix(&[initial.into(), 0.0, 0.0]), matrix(&[1.0]));
        let mut now = f64::from(initial);
        for (number, expected) in moves.iter().enumerate() {
            // The squared gradient; the scaled gradient is 1 here, so that its square is finite at any scale.
            let squares = match expected.gradient {
                Gradient::Good => 1.0,
                Gradient::Infinite => f64::INFINITY,
                Gradient::Nan => f64::NAN,
            };
            backend.run(ops::Unscale {
                rule: &rule,
                maximum: None,
                squares: &matrix(&[squares]),
                state: &mut state,
                scale: &mut scale,
            });
            let (mut by, mut after) = ([B::Scalar::default()], [B::Scalar::default(); 3]);
            backend.read_matrix(&scale, &mut by);
            backend.read_matrix(&state, &mut after);
            let wanted = if expected.gradient == Gradient::Good { 1.0 / now } else { 0.0 };
            assert_eq!(by[0].to_f64(), wanted, "step {number} of {spec:?}");
            let after = after.map(Scalar::to_f64);
            // Beyond the range of fp32 the reference still grows, so there is nothing to compare.
            if expected.scale == 2.0_f64.powi(127) && after[0] > expected.scale {
                break;
            }
            assert_eq!(after[..2], [expected.scale, expected.good_steps.into()], "step {number} of {spec:?}");
            now = expected.scale;
        }
    }
}

#[test]
fn the_scale_follows_pytorch_on_each_device() {
    the_scale_follows_pytorch(&Cpu::new(Some(1)).expect("a thread"));
    the_scale_follows_pytorch(&cuda());
    the_scale_follows_pytorch(&Reference);
}

/// The batch of step `number`; if `is_bad`, one of its numbers overflows.
fn batch(golden: &Golden, number: usize, is_bad: bool) -> BatchBuffer {
    let mut batch = golden.batch(&golden.cases[0], number);
    if is_bad {
        // 1e6 is beyond the range of fp16: the activation is infinite.
        batch.as_mut().sections().dense[0] = 1e6;
    }
    batch
}

fn half<B: Backend>(backend: B, golden: &Golden, spec: &ModelSpec, loss_scale: LossScaleSpec) -> Model<B> {
    let training =
        TrainingSpec { precision: Precision::Fp16, loss_scale, seed: 7, ..TrainingSpec::default() };
    Model::new(backend, spec, &golden.schema(&golden.cases[0]), &training).expect("a model of the schema")
}

fn mlp() -> ModelSpec {
    mlp_with(
        &json!({"kind": "adam", "learning_rate": 0.03125, "beta1": 0.875, "beta2": 0.96875, "epsilon": 1e-6}),
    )
}

fn mlp_with(optimizer: &Value) -> ModelSpec {
    let embedding = json!({"dim": 3, "pooling": "mean", "optimizer": optimizer});
    let spec = json!({"kind": "mlp", "features": ["colour", "first", "second"], "embedding": embedding,
        "hidden": [5], "optimizer": optimizer});
    serde_json::from_value(spec).expect("a model's specification")
}

/// The same trajectory with a whole model whose activations overflow, with Adam: the result is the same as
/// without the skipped batches.
fn a_model_skips_like_pytorch<B: Backend>(backend: impl Fn() -> B) {
    let golden = golden();
    for Way { spec, moves } in ways().into_iter().take(3) {
        let mut model = half(backend(), &golden, &mlp(), spec);
        let mut without = half(backend(), &golden, &mlp(), spec);
        let (mut taken, mut skipped) = (0, 0);
        for (number, expected) in moves.iter().take(60).enumerate() {
            let before = tensors_of(&mut model);
            let is_bad = expected.gradient != Gradient::Good;
            let batch = batch(&golden, number, is_bad);
            model.train_step(batch.as_ref(), Step::number(number as u64 + 1)).expect("a batch");
            if is_bad {
                skipped += 1;
                assert!(tensors_of(&mut model) == before, "step {number} of {spec:?} was skipped");
            } else {
                taken += 1;
                let scale = model.loss_scale().expect("a loss scale");
                // The scale is a power of two, so it does not affect the result.
                without.set_loss_scale(LossScale { skipped_steps: 0, ..scale });
                without.train_step(batch.as_ref(), Step::number(taken)).expect("a batch");
                without.set_loss_scale(LossScale { skipped_steps: 0, ..scale });
                assert!(tensors_of(&mut model) != before, "step {number} of {spec:?} was taken");
            }
            let scale = model.loss_scale().expect("a loss scale");
            assert_eq!(f64::from(scale.scale), expected.scale, "step {number} of {spec:?}");
            assert_eq!((scale.good_steps, scale.skipped_steps), (expected.good_steps, skipped));
        }
        assert!(taken > 0 && skipped > 0);
    }
}

#[test]
fn a_model_skips_like_pytorch_on_each_device() {
    a_model_skips_like_pytorch(|| Cpu::new(Some(2)).expect("threads"));
    a_model_skips_like_pytorch(cuda);
    a_model_skips_like_pytorch(|| Reference);
}

/// A GPU takes steps before the host knows the loss scale, unless an optimizer counts steps.
#[test]
fn steps_are_submitted_before_skips_are_known() {
    let golden = golden();
    let sgd = mlp_with(&json!({"kind": "sgd", "learning_rate": 0.03125, "l2": 0.0}));
    for (spec, ahead) in [(sgd, Cuda::STEPS_AHEAD), (mlp(), 0)] {
        let train = |ahead: usize| {
            let mut model = half(cuda(), &golden, &spec, LossScaleSpec::default());
            assert!(ahead <= model.steps_ahead());
            let mut losses = Vec::new();
            for number in 0..10 {
                let batch = batch(&golden, number, [2, 3, 7].contains(&number));
                model.submit_step(batch.as_ref(), Step::number(number as u64 + 1)).expect("a batch");
                while model.steps_in_flight() > ahead {
                    losses.push(model.finish_step().expect("a batch").loss.to_bits());
                }
            }
            while model.steps_in_flight() > 0 {
                losses.push(model.finish_step().expect("a batch").loss.to_bits());
            }
            (losses, model.loss_scale(), tensors_of(&mut model))
        };
        let (one_by_one, at_once) = (train(0), train(ahead));
        assert_eq!(one_by_one.1.map(|scale| scale.skipped_steps), Some(3));
        assert!(at_once == one_by_one);
    }
}

/// Adam's bias corrections depend on the number of the step; PyTorch counts the steps that are taken.
#[test]
fn adam_counts_only_steps_taken() {
    let golden = golden();
    // A single weight with gradient 1, as in the golden file, so that only the number of the step matters.
    let way = &ways()[1];
    let steps: Vec<&Move> = way.moves.iter().take(30).collect();
    let (mut model, mut plain) = (
        half(Cpu::new(Some(1)).expect("a thread"), &golden, &mlp(), way.spec),
        half(Cpu::new(Some(1)).expect("a thread"), &golden, &mlp(), way.spec),
    );
    let mut weight = 1.0;
    let mut taken = 0;
    for (number, expected) in steps.iter().enumerate() {
        let is_bad = expected.gradient != Gradient::Good;
        let batch = batch(&golden, number, is_bad);
        // The same batches without the bad ones, each with the loss scale of the full sequence.
        let scale = model.loss_scale().expect("a loss scale");
        model.train_step(batch.as_ref(), Step::number(number as u64 + 1)).expect("a batch");
        assert_eq!(is_bad, expected.weight == weight, "PyTorch skipped the same steps");
        weight = expected.weight;
        if !is_bad {
            taken += 1;
            plain.set_loss_scale(LossScale { skipped_steps: 0, ..scale });
            plain.train_step(batch.as_ref(), Step::number(taken)).expect("a batch");
        }
        assert!(tensors_of(&mut model) == tensors_of(&mut plain), "step {number}");
    }
    assert!((taken as usize) < steps.len());
}

/// A bad step does not change the weights and optimizer state of any model; running moments change.
#[test]
fn a_skipped_step_changes_no_bit() {
    let golden = golden();
    let mut seen = 0;
    for case in golden.cases.iter().filter(|case| reads_numbers(case)) {
        let mut model =
            half(Cpu::new(Some(2)).expect("threads"), &golden, &case.spec(), LossScaleSpec::default());
        model.train_step(batch(&golden, 0, false).as_ref(), Step::number(1)).expect("a batch");
        let before = tensors_of(&mut model);
        let scale = model.loss_scale().expect("a loss scale");
        model.train_step(batch(&golden, 1, true).as_ref(), Step::number(2)).expect("a batch");
        let after = tensors_of(&mut model);
        for (name, before) in &before {
            let is_running = name.ends_with(".mean") || name.ends_with(".variance");
            assert!(is_running || *before == after[name], "{}, {name}", case.name);
        }
        let skipped_steps = scale.skipped_steps + 1;
        let halved = LossScale { scale: scale.scale / 2.0, good_steps: 0, skipped_steps };
        assert_eq!(model.loss_scale(), Some(halved), "{}", case.name);
        // The next step is an ordinary one from the same weights.
        if !case.spec().uses_batch_normalization() {
            let mut again =
                half(Cpu::new(Some(1)).expect("a thread"), &golden, &case.spec(), LossScaleSpec::default());
            write(&mut again, &before);
            again.set_loss_scale(model.loss_scale().expect("a loss scale"));
            model.train_step(batch(&golden, 2, false).as_ref(), Step::number(3)).expect("a batch");
            again.train_step(batch(&golden, 2, false).as_ref(), Step::number(3)).expect("a batch");
            assert!(tensors_of(&mut model) == tensors_of(&mut again), "{}", case.name);
        }
        seen += 1;
    }
    assert!(seen >= 15, "{seen} models");
}

/// Whether the first dense column enters the model's activations; a linear model does not overflow.
fn reads_numbers(case: &Case) -> bool {
    let spec = case.spec();
    let parts = spec.features();
    let mut deep = parts.iter().filter(|(part, _)| *part != Some("wide"));
    !matches!(spec, ModelSpec::Linear(_)) && deep.any(|(_, list)| list.iter().any(|name| name == "first"))
}
