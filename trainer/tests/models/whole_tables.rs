//! Small tables, which workers sum as a whole by way of host memory, against one worker.

use std::num::NonZeroU32;
use std::time::Duration;

use millstream_backend::collective::{Communicator, Local};
use millstream_backend::{Backend, Cpu, Float, PartRows, Reference, TableShape};
use millstream_batch::BatchBuffer;
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;
use millstream_trainer::session::Request;
use millstream_trainer::spec::{ModelSpec, Precision, TrainingSpec};
use serde_json::{Value, json};

use crate::case::{cuda_of, several_gpus, tensors_of};
use crate::golden::close;
use crate::traffic::{self, FEATURES, ROWS};
use crate::workers::{Trained, bits, joined};

/// From three parts of a batch on, all tables but the last are summed as a whole.
const IDS: [u32; FEATURES] = [20, 20, 20, 20, 20, 20, 20, 1000];
/// The rows of each batch. The last one leaves a part of four without rows.
const ROWS_OF: [u32; 5] = [ROWS, ROWS, ROWS, ROWS, 3];

/// Trains a model with small tables on `ranks` workers; gradients travel in this precision. Each part touches a quarter of the rows of a
/// table, and each batch half of them: optimizers with state show whether others are left unchanged.
fn train<B: Backend>(
    optimizer: &Value,
    (ranks, shards, gradient_precision): (u32, Option<u32>, Precision),
    backend: impl Fn(u32) -> B + Sync,
) -> Trained {
    let (workers, shards) = (NonZeroU32::new(ranks), shards.and_then(NonZeroU32::new));
    let training = TrainingSpec { workers, shards, gradient_precision, seed: 7, ..TrainingSpec::default() };
    let (model, all) = (model(optimizer), training.parts());
    let worker = |rank: u32, transport: Local| {
        let mut trained =
            Model::new(backend(rank), &model, &traffic::schema(IDS), &training).expect("a model");
        let communicator = Communicator::new(transport, Duration::from_secs(60), None).expect("a thread");
        trained.join(communicator).expect("a communicator of as many");
        let step = |(number, rows)| {
            let batch = traffic::batch(IDS, number, rows);
            let own = (rank..all).step_by(ranks as usize);
            let parts: Vec<_> = own.map(|part| BatchBuffer::part_of(batch.as_ref(), part, all)).collect();
            let parts: Vec<_> = parts.iter().map(BatchBuffer::as_ref).collect();
            trained.agree(&parts, Request::default()).expect("all agree");
            trained.submit_parts(&parts, Step::number(number + 1)).expect("a batch of the schema");
            trained.finish_step().expect("a batch of the schema").mean()
        };
        ((0..).zip(ROWS_OF).map(step).collect(), tensors_of(&mut trained))
    };
    let of_ranks: Vec<Trained> = std::thread::scope(|scope| {
        let world = (0..ranks).zip(Local::world(ranks as usize));
        let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
        workers.into_iter().map(joined).collect()
    });
    assert!(of_ranks.iter().all(|of_rank| bits(of_rank) == bits(&of_ranks[0])), "{ranks} ranks");
    of_ranks.into_iter().next().expect("a rank")
}

/// Two groups of tables: of one column, and of several.
fn model(optimizer: &Value) -> ModelSpec {
    let features: Vec<String> = (0..FEATURES).map(|number| format!("f{number}")).collect();
    serde_json::from_value(json!({
        "kind": "wide_deep",
        "wide": {"features": features, "optimizer": optimizer},
        "deep": {
            "features": features, "embedding_dim": 16, "hidden": [32], "pooling": "mean", "optimizer": optimizer
        }
    }))
    .expect("a model")
}

fn optimizers() -> [Value; 3] {
    [
        json!({"kind": "adagrad", "learning_rate": 0.1, "initial_accumulator": 0.1, "epsilon": 1e-7}),
        json!({"kind": "adam", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7}),
        json!({"kind": "momentum", "learning_rate": 0.1, "momentum": 0.9, "nesterov": false}),
    ]
}

fn cpu(_: u32) -> Cpu {
    Cpu::new(Some(1)).expect("a thread")
}

fn agree((losses, tensors): &Trained, (expected_losses, expected): &Trained, tolerance: f64) {
    close("losses", losses, expected_losses, tolerance);
    assert_eq!(tensors.len(), expected.len());
    for (name, tensor) in tensors {
        close(name, tensor, &expected[name], tolerance);
    }
}

/// Otherwise the other tests would test nothing.
#[test]
fn all_tables_but_the_last_are_summed_as_a_whole() {
    let is_whole = |parts, rows, width| {
        let shape = TableShape { rows, width, float: Float::F32, key: 0, states: 0, row_states: 0 };
        let rows = PartRows { parts, ids: &[], even_ids: &[], are_gathered: false, float: Float::F32 };
        rows.sums_whole(&shape, ROWS as usize / parts)
    };
    for (parts, width) in [(3, 1), (3, 16), (4, 1), (4, 16)] {
        assert!(is_whole(parts, 20, width) && !is_whole(parts, 1000, width), "{parts} parts, {width}");
    }
    assert!(!is_whole(2, 20, 16));
}

#[test]
fn workers_agree_with_one_worker() {
    const FP32: Precision = Precision::Fp32;
    for optimizer in optimizers() {
        let reference = train(&optimizer, (1, None, FP32), |_| Reference);
        for division in [(3, None, FP32), (4, None, FP32), (2, Some(4), FP32)] {
            agree(&train(&optimizer, division, |_| Reference), &reference, 1e-12);
            agree(&train(&optimizer, division, cpu), &reference, 1e-4);
        }
    }
}

/// With an optimizer whose steps are proportional to gradients, so to their rounding errors.
#[test]
fn gradients_in_16_bits_are_close() {
    let [.., momentum] = optimizers();
    let reference = train(&momentum, (1, None, Precision::Fp32), |_| Reference);
    for ranks in [4, 5] {
        agree(&train(&momentum, (ranks, None, Precision::Bf16), cpu), &reference, 0.02);
    }
}

#[test]
fn parts_give_the_same_bits_for_every_number_of_workers() {
    for optimizer in optimizers() {
        let [one, two, four] =
            [1, 2, 4].map(|ranks| bits(&train(&optimizer, (ranks, Some(4), Precision::Fp32), cpu)));
        assert!(one == two && one == four, "{optimizer}");
    }
}

/// With parts, also GPUs exchange gradients by way of host memory.
#[test]
fn gpus_agree_with_one_worker() {
    let _turn = several_gpus();
    for optimizer in optimizers() {
        let reference = train(&optimizer, (1, None, Precision::Fp32), |_| Reference);
        agree(&train(&optimizer, (2, Some(4), Precision::Fp32), cuda_of), &reference, 1e-4);
    }
}
