//! Sums of large gradients over several GPUs, which start during the backward pass.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_backend::Backend;
use millstream_backend::collective::{Communicator, Local};
use millstream_batch::BatchBuffer;
use millstream_trace::{Phase, Recorder, Recording};
use millstream_trainer::model::{Model, StepError};
use millstream_trainer::schedule::Step;
use millstream_trainer::session::Request;
use millstream_trainer::spec::{ModelSpec, Precision, TrainingSpec};
use serde_json::{Value, json};

use crate::case::{Case, Golden, Tensors, by_descent, cuda_of, golden, several_gpus, tensors_of};
use crate::golden::close;
use crate::workers::joined;

const STEPS: u64 = 3;

/// Columns of the hidden layers: the gradients between them are large, and differ in size.
const HIDDEN: [usize; 3] = [300, 220, 500];

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

/// The losses and tensors of a worker, and the bytes of the sums that it has started in the last step, in the backward pass and
/// afterwards.
type Trained = (Vec<f64>, Tensors, [Vec<u64>; 2]);

fn case<'a>(golden: &'a Golden, name: &str) -> &'a Case {
    golden.cases.iter().find(|case| case.name == name).expect("a case")
}

/// The model of `case` with wide hidden layers, and SGD: other optimizers enlarge differences of tiny gradients.
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
    by_descent(&mut model, 0.1);
    serde_json::from_value(model).expect("a model's specification")
}

/// The bytes that sums over ranks have read and written, by their phase.
fn sums(recording: &Recording) -> [Vec<u64>; 2] {
    let mut spans: Vec<_> = recording.tracks.iter().flat_map(|track| &track.spans).collect();
    spans.retain(|span| span.name == "sum_over_ranks");
    spans.sort_by_key(|span| span.start_ns);
    [Phase::Backward, Phase::Exchange].map(|phase| {
        spans.iter().filter(|span| span.phase == Some(phase)).map(|span| span.work.bytes).collect()
    })
}

fn train(golden: &Golden, case: &Case, ranks: u32, gradient_precision: Precision) -> Vec<Trained> {
    let (spec, schema) = (widened(case), golden.schema(case));
    let workers = NonZeroU32::new(ranks).filter(|ranks| ranks.get() > 1);
    let training = TrainingSpec { workers, gradient_precision, ..case.training(1) };
    let worker = |rank: u32, transport: Local| {
        let recorder = Arc::new(Recorder::default());
        let cuda = cuda_of(rank).with_recorder(recorder);
        let mut model = Model::new(cuda, &spec, &schema, &training).expect("a model");
        let communicator = Communicator::new(transport, Duration::from_secs(60), None);
        model.join(communicator.expect("a thread")).expect("devices");
        let losses = (0..STEPS).map(|number| {
            if number + 1 == STEPS {
                model.backend().begin_recording();
            }
            let batch = golden.batch(case, number as usize);
            let part = BatchBuffer::part_of(batch.as_ref(), rank, ranks);
            model.agree(&[part.as_ref()], Request::default()).expect("all workers agree");
            model.train_step(part.as_ref(), Step::number(number + 1)).expect("a batch of the schema").mean()
        });
        let losses = losses.collect();
        let sums = sums(&model.backend().end_recording());
        (losses, tensors_of(&mut model), sums)
    };
    std::thread::scope(|scope| {
        let world = (0..ranks).zip(Local::world(ranks as usize));
        let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
        workers.into_iter().map(joined).collect()
    })
}

/// Batches have nine rows of twelve: with four workers, one of them has none.
#[test]
fn early_sums_are_those_of_one_worker() {
    let Some(_alone) = several_gpus() else { return };
    let golden = golden();
    for name in CASES {
        let case = case(&golden, name);
        let (losses, tensors, _) = &train(&golden, case, 1, Precision::Fp32)[0];
        for (rank, (of_rank, found, _)) in train(&golden, case, 4, Precision::Fp32).iter().enumerate() {
            close(&format!("{name}, rank {rank}, losses"), of_rank, losses, 1e-4);
            for (tensor, expected) in tensors {
                close(&format!("{name}, rank {rank}, {tensor}"), &found[tensor], expected, 1e-4);
            }
        }
    }
}

/// In the order of the backward pass, of all workers alike; the small gradients follow.
#[test]
fn the_sum_of_the_last_layer_starts_first() {
    let Some(_alone) = several_gpus() else { return };
    let golden = golden();
    for (name, count) in [("mlp", 2), ("wide_deep", 2), ("mmoe", 12)] {
        for (precision, bytes) in [(Precision::Fp32, 4), (Precision::Bf16, 2)] {
            let trained = train(&golden, case(&golden, name), 4, precision);
            let [early, last] = &trained[0].2;
            assert!(trained.iter().all(|(_, _, sums)| sums[0] == *early), "{name}");
            // A sum reads and writes each number; rows may be padded.
            let large =
                [HIDDEN[2] * HIDDEN[1], HIDDEN[1] * HIDDEN[0]].map(|numbers| (2 * numbers * bytes) as f64);
            let ratios: Vec<_> = early.iter().zip(large).map(|(&sum, least)| sum as f64 / least).collect();
            assert!(ratios.iter().all(|ratio| (1.0..1.05).contains(ratio)), "{name}: {early:?}, {large:?}");
            assert_eq!((early.len(), last.len()), (count, 1), "{name}");
        }
    }
}

#[test]
fn rounded_early_sums_follow_whole_ones() {
    let Some(_alone) = several_gpus() else { return };
    let golden = golden();
    let case = case(&golden, "wide_deep");
    let [whole, rounded] =
        [Precision::Fp32, Precision::Bf16].map(|precision| train(&golden, case, 2, precision));
    assert_eq!(rounded[0].1, rounded[1].1, "ranks differ");
    assert_ne!(rounded[0].1, whole[0].1, "nothing is rounded");
    close("losses", &rounded[0].0, &whole[0].0, 0.01);
}

/// The one with the invalid batch reports it at once, also where layers exchange numbers in the middle of a pass.
#[test]
fn no_worker_takes_a_step_of_a_batch_that_is_invalid_on_one() {
    const LIMIT: Duration = Duration::from_secs(10);
    let Some(_alone) = several_gpus() else { return };
    let golden = golden();
    for (name, first_gpu) in [("mlp", 10), ("batches normalised", 20)] {
        let case = case(&golden, name);
        let (spec, schema) = (widened(case), golden.schema(case));
        let training = TrainingSpec { workers: NonZeroU32::new(2), ..case.training(1) };
        let worker = |rank: u32, transport: Local| {
            // Sums that never end stay on these GPUs, so no other test uses them.
            let mut model =
                Model::new(cuda_of(first_gpu + rank), &spec, &schema, &training).expect("a model");
            let communicator = Communicator::new(transport, LIMIT, None);
            model.join(communicator.expect("a thread")).expect("devices");
            let mut batch = golden.batch(case, 0);
            if rank == 1 {
                batch.as_mut().sections().ids.fill(1_000_000);
            }
            let part = BatchBuffer::part_of(batch.as_ref(), rank, 2);
            model.agree(&[part.as_ref()], Request::default()).expect("all workers agree");
            let began = Instant::now();
            let step = model.submit_step(part.as_ref(), Step::number(1));
            (step.map(|()| model.finish_step().is_ok()), began.elapsed())
        };
        std::thread::scope(|scope| {
            let world = (0..2).zip(Local::world(2));
            let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
            let results: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            let Ok((Err(StepError::Batch(_)), after)) = &results[1] else {
                panic!("{name}: {:?}", results[1])
            };
            assert!(*after < LIMIT / 2, "{name}: after {after:?}");
            assert!(
                !matches!(results[0], Ok((Ok(_), _))),
                "{name}: a worker whose peer has failed takes no step"
            );
        });
    }
}
