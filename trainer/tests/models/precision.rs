//! Models in bf16 and fp16: compared with PyTorch with rounding at the same points, and with themselves.

use std::collections::BTreeMap;

use millstream_backend::{Backend, Cpu, Reference};
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::{LossScaleSpec, Precision, TrainingSpec};
use serde::Deserialize;

use crate::case::{Case, Golden, Tensors, cuda, golden, tensors_of, write};
use crate::golden::close;

const LOW: [Precision; 2] = [Precision::Bf16, Precision::Fp16];

#[derive(Deserialize)]
struct Rounded {
    loss_scale: f32,
    learning_rate: f64,
    cases: Vec<RoundedCase>,
}

/// The results of training a model of `golden/models.json`.
#[derive(Deserialize)]
struct RoundedCase {
    case: String,
    precision: Precision,
    losses: Vec<f64>,
    tensors: Tensors,
}

fn rounded() -> Rounded {
    let rounded: Rounded =
        serde_json::from_str(include_str!("../golden/precision.json")).expect("a golden file");
    assert!(rounded.cases.len() >= 4, "two models in two precisions");
    rounded
}

fn step<B: Backend>(golden: &Golden, case: &Case, model: &mut Model<B>, number: usize) -> f64 {
    let batch = golden.batch(case, number);
    let loss = model.train_step(batch.as_ref(), Step::number(number as u64 + 1));
    loss.expect("a batch of the schema").mean()
}

fn trajectories_agree<B: Backend>(backend: impl Fn() -> B, micro_batch_rows: Option<u32>, tolerance: f64) {
    let (golden, rounded) = (golden(), rounded());
    for expected in &rounded.cases {
        let case =
            golden.cases.iter().find(|case| case.name == expected.case).expect("a model of the other file");
        let loss_scale = LossScaleSpec { initial: rounded.loss_scale, ..LossScaleSpec::default() };
        let precision = expected.precision;
        let training = TrainingSpec { precision, loss_scale, micro_batch_rows, ..case.training(1) };
        let mut model = case.by_descent_of(rounded.learning_rate, backend(), &golden.schema(case), &training);
        assert_eq!(expected.losses.len(), 30);
        for (number, &loss) in expected.losses.iter().enumerate() {
            let found = step(&golden, case, &mut model, number);
            let what = format!("{} in {precision:?}, loss of step {number}", case.name);
            close(&what, &[found], &[loss], tolerance);
        }
        let found = tensors_of(&mut model);
        assert!(found.keys().eq(expected.tensors.keys()), "{}: the same tensors", case.name);
        for (name, expected) in &expected.tensors {
            close(&format!("{} in {precision:?}, {name}", case.name), &found[name], expected, tolerance);
        }
    }
}

/// Both sum in double precision, so that rounding never differs.
#[test]
fn thirty_rounded_steps_agree_with_pytorch_on_the_reference() {
    trajectories_agree(|| Reference, None, 1e-12);
    trajectories_agree(|| Reference, Some(4), 1e-12);
}

/// Sums in fp32 occasionally round an activation differently by one unit in the last place, 2^-8 in bf16. A
/// step of learning rate 1/4 over nine rows adds a hundredth of that to a weight.
#[test]
fn thirty_rounded_steps_agree_with_pytorch_on_the_cpu() {
    trajectories_agree(|| Cpu::new(Some(2)).expect("two threads"), None, 1e-3);
    trajectories_agree(|| Cpu::new(Some(2)).expect("two threads"), Some(4), 1e-3);
}

#[test]
fn thirty_rounded_steps_agree_with_pytorch_on_cuda() {
    trajectories_agree(cuda, None, 1e-3);
    trajectories_agree(cuda, Some(4), 1e-3);
}

fn on_cpu(case: &Case, golden: &Golden, precision: Precision, threads: u32) -> Model<Cpu> {
    let training = TrainingSpec { precision, ..case.training(7) };
    let backend = Cpu::new(Some(threads)).expect("threads");
    Model::new(backend, &case.spec(), &golden.schema(case), &training).expect("a model of the schema")
}

fn bits<B: Backend>(model: &mut Model<B>) -> BTreeMap<String, Vec<u64>> {
    let tensors = tensors_of(model).into_iter();
    tensors.map(|(name, numbers)| (name, numbers.into_iter().map(f64::to_bits).collect())).collect()
}

#[test]
fn threads_change_no_bit_of_low_precision() {
    let golden = golden();
    for case in &golden.cases {
        for precision in LOW {
            let after = |threads| {
                let mut model = on_cpu(case, &golden, precision, threads);
                (0..8).for_each(|number| _ = step(&golden, case, &mut model, number));
                bits(&mut model)
            };
            let one = after(1);
            assert!(one == after(2) && one == after(3), "{} in {precision:?}", case.name);
        }
    }
}

/// A step depends only on the tensors, the loss scale, the seed and the number of the step.
#[test]
fn a_model_of_low_precision_resumes_from_its_tensors() {
    let golden = golden();
    for case in &golden.cases {
        for precision in LOW {
            let mut first = on_cpu(case, &golden, precision, 2);
            (0..5).for_each(|number| _ = step(&golden, case, &mut first, number));
            let mut second = on_cpu(case, &golden, precision, 1);
            write(&mut second, &tensors_of(&mut first));
            if let Some(scale) = first.loss_scale() {
                second.set_loss_scale(scale);
            }
            for number in 5..12 {
                step(&golden, case, &mut first, number);
                step(&golden, case, &mut second, number);
            }
            assert!(bits(&mut first) == bits(&mut second), "{} in {precision:?}", case.name);
        }
    }
}

/// On a CPU it equals fp32; on a GPU it is close.
#[test]
fn tf32_equals_fp32_except_for_products_on_a_gpu() {
    let golden = golden();
    let case = golden.cases.iter().find(|case| case.name == "mlp").expect("an MLP");
    let last_loss = |precision| {
        let training = TrainingSpec { precision, ..case.training(1) };
        let mut model = case.by_descent_of(0.25, cuda(), &golden.schema(case), &training);
        (0..30).map(|number| step(&golden, case, &mut model, number)).last().expect("30 steps")
    };
    let (whole, few) = (last_loss(Precision::Fp32), last_loss(Precision::Tf32));
    assert!(whole != few && (whole - few).abs() < 2e-3 * whole, "{few} is near {whole}");
    let after = |precision| {
        let mut model = on_cpu(case, &golden, precision, 1);
        (0..30).for_each(|number| _ = step(&golden, case, &mut model, number));
        bits(&mut model)
    };
    assert!(after(Precision::Fp32) == after(Precision::Tf32));
}

/// Its sums are fp32, and a scale that is a power of two does not change the result.
#[test]
fn a_linear_model_is_the_same_in_every_precision() {
    let golden = golden();
    let case = golden.cases.iter().find(|case| case.name == "linear").expect("a linear model");
    let after = |precision| {
        let mut model = on_cpu(case, &golden, precision, 1);
        (0..30).for_each(|number| _ = step(&golden, case, &mut model, number));
        bits(&mut model)
    };
    let whole = after(Precision::Fp32);
    assert!(LOW.map(after).iter().all(|low| *low == whole));
    // A deep model differs between precisions.
    let case = golden.cases.iter().find(|case| case.name == "mlp").expect("an MLP");
    let after = |precision| {
        let mut model = on_cpu(case, &golden, precision, 1);
        step(&golden, case, &mut model, 0);
        bits(&mut model)
    };
    let [whole, bf16, fp16] = [Precision::Fp32, Precision::Bf16, Precision::Fp16].map(after);
    assert!(whole != bf16 && whole != fp16 && bf16 != fp16);
}
