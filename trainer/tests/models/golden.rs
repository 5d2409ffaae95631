//! Compares with PyTorch, or NumPy for DIN and for maxima, in float64: gradients, losses, and all parameters and
//! optimizer state after 30 steps.

use millstream_backend::{Backend, Cpu, Reference};

use crate::case::{cuda, golden, gradients, tensors_of};
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::Precision;

pub(crate) fn close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    close_beside(1e-3, what, found, expected, tolerance);
}

/// Errors are relative to the largest value, or to `least` if that is larger.
fn close_beside(least: f64, what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(least, |largest, x| largest.max(x.abs()));
    for (item, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / largest;
        assert!(error <= tolerance, "{what}, item {item}: {found}, not {expected} (off by {error:e})");
    }
}

/// A gradient is the difference of weights before and after a step, so it includes their rounding, which is
/// relative to the largest one.
fn gradients_agree<B: Backend>(backend: impl Fn() -> B, rounding: f64) {
    let golden = golden();
    for case in &golden.cases {
        let mut model = case.by_descent(backend(), &golden.schema(case));
        let before = tensors_of(&mut model);
        model.train_step(golden.batch(case, 0).as_ref(), Step::number(1)).expect("a batch of the schema");
        let found = gradients(&before, &tensors_of(&mut model));
        for (name, expected) in &case.gradients {
            let of = |numbers: &[f64]| numbers.iter().fold(1e-3_f64, |largest, x| largest.max(x.abs()));
            let tolerance = 100.0 * rounding + rounding * of(&before[name]) / of(expected);
            // A constant added to all items of a query has no effect, so the gradient is a sum over the batch
            // of rounding errors.
            let least = if case.spec().uses_in_batch_loss() { 1e-2 } else { 1e-3 };
            close_beside(least, &format!("{}, {name}", case.name), &found[name], expected, tolerance);
        }
    }
}

/// Within `tolerance`. For fp32 arithmetic and tables with fewer digits, within a few units in the last
/// place: an fp32 rounding error occasionally rounds a weight the other way. For a case so sensitive that the
/// rounding of its weights alone moves it further than a quarter of 1e-5, the tolerance grows proportionally,
/// because a step rounds several more times.
fn trajectories_agree<B: Backend>(backend: impl Fn() -> B, micro_batch_rows: Option<u32>, tolerance: f64) {
    let golden = golden();
    for case in &golden.cases {
        if micro_batch_rows.is_some() && case.needs_whole_batches() {
            continue;
        }
        let tolerance = match case.training(1).embedding_precision {
            _ if tolerance < 1e-6 => tolerance,
            Precision::Fp32 | Precision::Tf32 => tolerance * (case.sensitivity / 2.5e-6).max(1.0),
            Precision::Bf16 => 0.02,
            Precision::Fp16 => 0.004,
        };
        let mut model = golden.model_at(backend(), case, micro_batch_rows);
        assert_eq!(case.steps.len(), 30);
        let mut compared = 0;
        for (number, step) in case.steps.iter().enumerate() {
            let what = |what: &str| format!("{}, {what} of step {number}", case.name);
            let batch = golden.batch(case, number);
            let loss = model
                .train_step(batch.as_ref(), Step::number(number as u64 + 1))
                .expect("a batch of the schema");
            close(&what("loss"), &[loss.mean()], &[step.loss], tolerance);
            let (Some(expected), Some(scores)) = (&step.tensors, &step.scores) else {
                continue;
            };
            let found = tensors_of(&mut model);
            assert!(found.keys().eq(expected.keys()), "{}: the same tensors", case.name);
            for (name, expected) in expected {
                close(&what(name), &found[name], expected, tolerance);
                compared += 1;
            }
            let mut found = vec![0.0; scores.len()];
            model.predict(batch.as_ref(), &mut found).expect("a batch of the schema");
            let found: Vec<f64> = found.into_iter().map(f64::from).collect();
            // The score of two towers has the errors of two vectors, divided by a temperature of at least one
            // half.
            let times = if case.spec().uses_in_batch_loss() { 4.0 } else { 1.0 };
            close(&what("scores"), &found, scores, (times * tolerance).max(1e-7));
        }
        assert!(compared > 0, "the golden file holds a whole state");
    }
}

#[test]
fn gradients_agree_with_autograd_on_the_reference() {
    gradients_agree(|| Reference, 1e-14);
}

#[test]
fn gradients_agree_with_autograd_on_the_cpu() {
    gradients_agree(cpu, f32::EPSILON.into());
}

#[test]
fn thirty_steps_agree_with_pytorch_on_the_reference() {
    trajectories_agree(|| Reference, None, 1e-12);
}

/// Nine rows per batch: passes of four, four and one.
#[test]
fn micro_batches_agree_with_whole_batches_of_pytorch_on_the_reference() {
    trajectories_agree(|| Reference, Some(4), 1e-12);
}

#[test]
fn micro_batches_agree_with_whole_batches_of_pytorch_on_the_cpu() {
    trajectories_agree(cpu, Some(4), 1e-5);
}

#[test]
fn thirty_steps_agree_with_pytorch_on_the_cpu() {
    trajectories_agree(cpu, None, 1e-5);
}

#[test]
fn thirty_steps_agree_with_pytorch_on_a_cpu_without_amx() {
    trajectories_agree(|| cpu().without_tiles(), None, 1e-5);
}

#[test]
fn gradients_agree_with_autograd_on_cuda() {
    gradients_agree(cuda, f32::EPSILON.into());
}

#[test]
fn thirty_steps_agree_with_pytorch_on_cuda() {
    trajectories_agree(cuda, None, 1e-5);
}

#[test]
fn micro_batches_agree_with_whole_batches_of_pytorch_on_cuda() {
    trajectories_agree(cuda, Some(4), 1e-5);
}

fn cpu() -> Cpu {
    Cpu::new(Some(2)).expect("two threads")
}
