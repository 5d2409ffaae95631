//! Sums of large gradients, which start during the backward pass.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_backend::collective::{
    Buffer, CollectiveError, Communicator, Deadline, Label, Local, Operation, Receive, Recorder, Round,
    Transport,
};
use millstream_backend::{Backend, Cpu, Reference};
use millstream_batch::BatchBuffer;
use millstream_trainer::model::{Model, StepError};
use millstream_trainer::schedule::Step;
use millstream_trainer::session::Request;
use millstream_trainer::spec::{ModelSpec, Precision, TrainingSpec};
use serde_json::{Value, json};

use crate::case::{Case, Golden, Tensors, cuda_of, golden, several_gpus, tensors_of};
use crate::golden::close;
use crate::workers::joined;

const STEPS: u64 = 3;

/// Columns of the hidden layers: the gradients between them are large, and differ in size.
const HIDDEN: [usize; 3] = [300, 220, 310];

/// Models of every kind, with normalization, dropout and classes.
const CASES: [&str; 15] = [
    "mlp",
    "wide_deep",
    "deepfm",
    "dcn_v2, stacked, of rank 2",
    "dcn_v2, parallel",
    "dlrm",
    "dlrm with cross layers",
    "dropout in wide_deep",
    "layers normalised",
    "batches normalised",
    "two towers, normalised",
    "mmoe",
    "din",
    "several classes in wide_deep",
    "mlp of maxima",
];

/// The losses and tensors of a worker, and the sizes of the sums that it started in a step, in bytes.
type Trained = (Vec<f64>, Tensors, Vec<usize>);

/// Writes down the sizes of sums.
struct Sizes {
    transport: Local,
    sums: Arc<Mutex<Vec<usize>>>,
}

impl Transport for Sizes {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn ranks(&self) -> usize {
        self.transport.ranks()
    }

    fn exchange(
        &mut self,
        label: Label,
        parts: Vec<Arc<Buffer>>,
        receive: Receive,
        deadline: Deadline,
        recorder: Option<&Recorder>,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        if let (Operation::Sum(_) | Operation::SumF64, Round::Parts) = (label.operation, label.round) {
            // This rank's own part stays: all are of one size, except for what does not divide.
            let largest = parts.iter().map(|part| part.len()).max().expect("a part");
            self.sums.lock().expect("no panic").push(largest * self.ranks());
        }
        self.transport.exchange(label, parts, receive, deadline, recorder)
    }
}

fn case<'a>(golden: &'a Golden, name: &str) -> &'a Case {
    golden.cases.iter().find(|case| case.name == name).expect("a case")
}

/// The model of `case` with wide hidden layers.
fn widened(case: &Case) -> ModelSpec {
    fn widen(value: &mut Value) {
        let Value::Object(entries) = value else { return };
        for (key, value) in entries {
            match key.as_str() {
                "hidden" | "top" | "bottom" | "expert" | "tower" if value.is_array() => {
                    *value = json!(HIDDEN);
                }
                _ => widen(value),
            }
        }
    }
    let mut model = case.model.clone();
    widen(&mut model);
    serde_json::from_value(model).expect("a model's specification")
}

fn train<B: Backend>(
    golden: &Golden,
    case: &Case,
    (ranks, gradient_precision): (u32, Precision),
    backend: impl Fn(u32) -> B + Sync,
) -> Vec<Trained> {
    let (spec, schema) = (widened(case), golden.schema(case));
    let workers = NonZeroU32::new(ranks).filter(|ranks| ranks.get() > 1);
    let training = TrainingSpec { workers, gradient_precision, ..case.training(1) };
    let worker = |rank: u32, transport: Local| {
        let mut model = Model::new(backend(rank), &spec, &schema, &training).expect("a model");
        let sums = Arc::new(Mutex::new(Vec::new()));
        let transport = Sizes { transport, sums: Arc::clone(&sums) };
        let communicator = Communicator::new(transport, Duration::from_secs(60), None);
        model.join(communicator.expect("a thread")).expect("devices");
        let losses = (0..STEPS).map(|number| {
            sums.lock().expect("no panic").clear();
            let batch = golden.batch(case, number as usize);
            let part = BatchBuffer::part_of(batch.as_ref(), rank, ranks);
            model.agree(&[part.as_ref()], Request::default()).expect("all workers agree");
            model.train_step(part.as_ref(), Step::number(number + 1)).expect("a batch of the schema").mean()
        });
        let losses = losses.collect();
        let sums = std::mem::take(&mut *sums.lock().expect("no panic"));
        (losses, tensors_of(&mut model), sums)
    };
    std::thread::scope(|scope| {
        let world = (0..ranks).zip(Local::world(ranks as usize));
        let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
        workers.into_iter().map(joined).collect()
    })
}

/// Batches have nine rows of twelve: with four workers, one of them has none.
fn agree_with_one_worker<B: Backend>(cases: &[&str], tolerance: f64, backend: impl Fn(u32) -> B + Sync) {
    let golden = golden();
    for name in cases {
        let case = case(&golden, name);
        let (losses, tensors, _) = &train(&golden, case, (1, Precision::Fp32), &backend)[0];
        let four = train(&golden, case, (4, Precision::Fp32), &backend);
        for (rank, (of_rank, found, _)) in four.iter().enumerate() {
            close(&format!("{name}, rank {rank}, losses"), of_rank, losses, tolerance);
            for (tensor, expected) in tensors {
                close(&format!("{name}, rank {rank}, {tensor}"), &found[tensor], expected, tolerance);
            }
        }
    }
}

#[test]
fn early_sums_are_those_of_one_worker_on_the_reference() {
    agree_with_one_worker(&CASES, 1e-11, |_| Reference);
}

#[test]
fn early_sums_are_those_of_one_worker_on_the_cpu() {
    agree_with_one_worker(&CASES, 1e-4, |_| Cpu::new(Some(1)).expect("a thread"));
}

#[test]
fn early_sums_are_those_of_one_worker_on_cuda() {
    let Some(_alone) = several_gpus() else { return };
    agree_with_one_worker(&["wide_deep", "mmoe", "batches normalised"], 1e-4, cuda_of);
}

/// In the order of the backward pass, of all workers alike; the small gradients follow.
#[test]
fn the_sum_of_the_last_layer_starts_first() {
    let golden = golden();
    for (name, towers) in [("mlp", 1), ("wide_deep", 1), ("mmoe", 0)] {
        for (precision, bytes) in [(Precision::Fp32, 4), (Precision::Bf16, 2)] {
            let trained =
                train(&golden, case(&golden, name), (4, precision), |_| Cpu::new(Some(1)).expect("a thread"));
            let first = &trained[0].2;
            assert!(trained.iter().all(|(_, _, sums)| sums == first), "{name}");
            let large = [HIDDEN[2] * HIDDEN[1], HIDDEN[1] * HIDDEN[0]].map(|numbers| numbers * bytes);
            // Parts of a sum start at cache lines.
            let is_of = |sum: usize, gradient: usize| sum >= gradient && sum < gradient + 4 * 64;
            assert!(first.len() > 2 && is_of(first[0], large[0]) && is_of(first[1], large[1]), "{first:?}");
            assert_eq!(first.len() == 3, towers == 1, "{name}: {first:?}");
            let whole = (&trained[0].0, &trained[0].1);
            assert!(trained.iter().all(|(losses, tensors, _)| (losses, tensors) == whole), "{name}");
        }
    }
}

#[test]
fn rounded_early_sums_follow_whole_ones_on_cuda() {
    let Some(_alone) = several_gpus() else { return };
    let golden = golden();
    let case = case(&golden, "wide_deep");
    let [whole, rounded] =
        [Precision::Fp32, Precision::Bf16].map(|precision| train(&golden, case, (2, precision), cuda_of));
    assert_eq!(rounded[0].1, rounded[1].1, "ranks differ");
    assert_ne!(rounded[0].1, whole[0].1, "nothing is rounded");
    close("losses", &rounded[0].0, &whole[0].0, 0.01);
}

/// The other worker must not get the gradients of a batch that the device finds invalid.
#[test]
fn the_sums_of_an_invalid_batch_do_not_start() {
    let Some(_alone) = several_gpus() else { return };
    let golden = golden();
    let case = case(&golden, "mlp");
    let (spec, schema) = (widened(case), golden.schema(case));
    let training = TrainingSpec { workers: NonZeroU32::new(2), ..case.training(1) };
    let worker = |rank: u32, transport: Local| {
        // GPUs of their own, because sums that never end stay on them.
        let mut model = Model::new(cuda_of(10 + rank), &spec, &schema, &training).expect("a model");
        let communicator = Communicator::new(transport, Duration::from_secs(5), None);
        model.join(communicator.expect("a thread")).expect("devices");
        let mut batch = golden.batch(case, 0);
        if rank == 1 {
            batch.as_mut().sections().ids.fill(1_000_000);
        }
        let part = BatchBuffer::part_of(batch.as_ref(), rank, 2);
        model.agree(&[part.as_ref()], Request::default()).expect("all workers agree");
        model.submit_step(part.as_ref(), Step::number(1)).map(|()| model.finish_step().is_ok())
    };
    std::thread::scope(|scope| {
        let world = (0..2).zip(Local::world(2));
        let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
        let results: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        assert!(matches!(results[1], Ok(Err(StepError::Batch(_)))), "{:?}", results[1]);
        assert!(!matches!(results[0], Ok(Ok(_))), "a worker whose peer has failed takes no step");
    });
}
