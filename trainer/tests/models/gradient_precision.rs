//! Workers that exchange gradients in 16 bits.

use std::num::NonZeroU32;
use std::time::Duration;

use millstream_backend::collective::{Communicator, Local};
use millstream_backend::{Backend, Cpu, Reference};
use millstream_batch::{BatchBuffer, BatchHeader};
use millstream_trainer::model::{ModelError, ModelPlan};
use millstream_trainer::schedule::Step;
use millstream_trainer::session::Request;
use millstream_trainer::spec::{ClipSpec, LossScaleSpec, Precision, TrainingSpec};

use crate::case::{Case, Golden, Tensors, cuda_of, golden, gradients, several_gpus, tensors_of};
use crate::golden::close;
use crate::workers::{bits, joined, shared, train_as};

const RANKS: u32 = 4;

/// The scale of the loss in half precision: no gradient overflows.
const SCALE: f32 = 1024.0;

/// The precisions of activations and of gradients in 16 bits.
const PRECISIONS: [(Precision, Precision); 3] = [
    (Precision::Fp32, Precision::Bf16),
    (Precision::Fp16, Precision::Fp16),
    (Precision::Fp16, Precision::Bf16),
];

fn loss_scale() -> LossScaleSpec {
    LossScaleSpec { initial: SCALE, ..LossScaleSpec::default() }
}

/// The weights before a step of gradient descent with learning rate 1, and the gradients. Only the first worker has rows, so its
/// gradients are the sums.
fn step<B: Backend>(
    golden: &Golden,
    case: &Case,
    (precision, gradient_precision): (Precision, Precision),
    backend: impl Fn(u32) -> B + Sync,
) -> (Tensors, Tensors) {
    let schema = golden.schema(case);
    let training = TrainingSpec {
        workers: NonZeroU32::new(RANKS),
        clip: ClipSpec::default(),
        embedding_precision: Precision::Fp32,
        loss_scale: loss_scale(),
        precision,
        gradient_precision,
        ..case.training(1)
    };
    let mut batch = golden.batch(case, 0);
    batch.as_mut().set_header(&BatchHeader::train(schema.part(RANKS).rows));
    let worker = |rank: u32, transport: Local| {
        let mut model = case.by_descent_of(1.0, backend(rank), &schema, &training);
        let before = tensors_of(&mut model);
        let communicator = Communicator::new(transport, Duration::from_secs(60), None);
        model.join(communicator.expect("a thread")).expect("devices");
        let part = BatchBuffer::part_of(batch.as_ref(), rank, RANKS);
        assert_eq!(part.as_ref().rows() > 0, rank == 0, "rows of rank {rank}");
        model.agree(&[part.as_ref()], Request::default()).expect("all workers agree");
        model.train_step(part.as_ref(), Step::number(1)).expect("a batch of the schema");
        let gradients = gradients(&before, &tensors_of(&mut model));
        (before, gradients)
    };
    std::thread::scope(|scope| {
        let world = (0..RANKS).zip(Local::world(RANKS as usize));
        let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
        let of_ranks: Vec<_> = workers.into_iter().map(joined).collect();
        assert!(of_ranks.iter().all(|of_rank| *of_rank == of_ranks[0]), "{}: ranks differ", case.name);
        of_ranks.into_iter().next().expect("a worker")
    })
}

/// Each gradient is the number of 16 bits that is nearest to that of whole gradients.
fn gradients_are_rounded<B: Backend>(backend: impl Fn(u32) -> B + Sync) {
    let golden = golden();
    let (mut compared, mut changed) = (0, 0);
    for case in shared(&golden).step_by(6) {
        for (precision, gradient_precision) in PRECISIONS {
            let (before, whole) = step(&golden, case, (precision, Precision::Fp32), &backend);
            let (_, rounded) = step(&golden, case, (precision, gradient_precision), &backend);
            let wire = gradient_precision.gradients();
            let scale = if precision.scales_loss() { SCALE } else { 1.0 };
            for (name, whole) in &whole {
                for ((whole, rounded), before) in whole.iter().zip(&rounded[name]).zip(&before[name]) {
                    // Weights have 24 bits.
                    let error = (before.abs() + whole.abs()) * 2.0_f64.powi(-23);
                    let nearest = |x: f64| f64::from(wire.round(x as f32 * scale) / scale);
                    let [below, above] = [nearest(whole - error), nearest(whole + error)];
                    let is_nearest = (below - error..=above + error).contains(rounded);
                    assert!(
                        is_nearest,
                        "{}, {name}, {gradient_precision:?}: {rounded}, not {below} to {above}",
                        case.name
                    );
                    compared += 1;
                    changed += usize::from((nearest(*whole) - whole).abs() > 2.0 * error);
                }
            }
        }
    }
    assert!(compared > 1000 && changed > compared / 4, "{changed} of {compared} numbers are rounded");
}

#[test]
fn gradients_are_rounded_once_on_the_cpu() {
    gradients_are_rounded(|_| Cpu::new(Some(1)).expect("a thread"));
}

/// As NCCL sums them.
#[test]
fn gradients_are_rounded_once_on_cuda() {
    let Some(_alone) = several_gpus() else { return };
    gradients_are_rounded(cuda_of);
}

/// Three workers that all have rows, by every optimizer.
fn training_follows_whole_gradients<B: Backend>(backend: impl Fn(u32) -> B + Sync) {
    let golden = golden();
    for case in golden.cases.iter().step_by(5) {
        let schema = golden.schema(case);
        let run = |(precision, gradient_precision)| {
            let (workers, loss_scale) = (NonZeroU32::new(3), loss_scale());
            let training =
                TrainingSpec { workers, precision, gradient_precision, loss_scale, ..case.training(1) };
            train_as(&golden, (case, &schema, &training), 8, &backend)
        };
        for (precision, gradient_precision) in PRECISIONS {
            let what = format!("{}, {gradient_precision:?}", case.name);
            let rounded = run((precision, gradient_precision));
            let whole = run((precision, Precision::Fp32));
            assert!(rounded.iter().all(|of_rank| bits(of_rank) == bits(&rounded[0])), "{what}: ranks differ");
            assert!(bits(&rounded[0]) != bits(&whole[0]), "{what}: the same bits");
            close(&what, &rounded[0].0, &whole[0].0, 0.03);
        }
    }
}

#[test]
fn training_follows_whole_gradients_on_the_cpu() {
    training_follows_whole_gradients(|_| Cpu::new(Some(1)).expect("a thread"));
}

#[test]
fn training_follows_whole_gradients_on_cuda() {
    let Some(_alone) = several_gpus() else { return };
    training_follows_whole_gradients(cuda_of);
}

/// The reference computes in double precision, and sends it.
#[test]
fn the_reference_rounds_nothing() {
    let golden = golden();
    let case = shared(&golden).next().expect("a case");
    let run = |gradient_precision| {
        let training = TrainingSpec { workers: NonZeroU32::new(2), gradient_precision, ..case.training(1) };
        bits(&train_as(&golden, (case, &golden.schema(case), &training), 3, |_| Reference)[0])
    };
    assert!(run(Precision::Fp32) == run(Precision::Bf16));
}

#[test]
fn gradients_that_would_vanish_or_depend_on_the_workers_are_refused() {
    let golden = golden();
    let case = shared(&golden).next().expect("a case");
    let plan = |training: TrainingSpec| ModelPlan::new(&case.spec(), &golden.schema(case), &training).err();
    let workers = NonZeroU32::new(2);
    let of = |gradient_precision| TrainingSpec { workers, gradient_precision, ..case.training(1) };
    assert_eq!(plan(of(Precision::Fp16)), Some(ModelError::UnscaledGradients));
    assert_eq!(plan(TrainingSpec { precision: Precision::Fp16, ..of(Precision::Fp16) }), None);
    let shards = TrainingSpec { shards: NonZeroU32::new(4), ..of(Precision::Bf16) };
    assert_eq!(plan(shards), Some(ModelError::RoundedGradients { gradients: "bf16" }));
}
