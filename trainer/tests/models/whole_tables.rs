//! Small tables, which workers sum as a whole by way of host memory, against one worker.

use std::num::NonZeroU32;
use std::time::Duration;

use millstream_backend::collective::{Communicator, Local};
use millstream_backend::{Backend, Cpu, Reference};
use millstream_batch::BatchBuffer;
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;
use millstream_trainer::session::Request;
use millstream_trainer::spec::TrainingSpec;
use serde_json::{Value, json};

use crate::case::{cuda_of, tensors_of};
use crate::golden::close;
use crate::traffic;
use crate::workers::{Trained, bits, joined};

/// From three parts of a batch on, tables of so many rows are summed as a whole.
const IDS: u32 = 20;
const STEPS: u64 = 4;

/// Trains a model with small tables on `ranks` workers. Each batch touches half of the rows, so optimizers with state show
/// whether others are left unchanged.
fn train<B: Backend>(
    optimizer: &Value,
    (ranks, shards): (u32, Option<u32>),
    backend: impl Fn(u32) -> B + Sync,
) -> Trained {
    let (workers, shards) = (NonZeroU32::new(ranks), shards.and_then(NonZeroU32::new));
    let training = TrainingSpec { workers, shards, seed: 7, ..TrainingSpec::default() };
    let (model, all) = (traffic::model(optimizer), training.parts());
    let worker = |rank: u32, transport: Local| {
        let mut trained =
            Model::new(backend(rank), &model, &traffic::schema(IDS), &training).expect("a model");
        let communicator = Communicator::new(transport, Duration::from_secs(60), None).expect("a thread");
        trained.join(communicator).expect("a communicator of as many");
        let step = |number| {
            let batch = traffic::batch(IDS, number);
            let own = (rank..all).step_by(ranks as usize);
            let parts: Vec<_> = own.map(|part| BatchBuffer::part_of(batch.as_ref(), part, all)).collect();
            let parts: Vec<_> = parts.iter().map(BatchBuffer::as_ref).collect();
            trained.agree(&parts, Request::default()).expect("all agree");
            trained.submit_parts(&parts, Step::number(number + 1)).expect("a batch of the schema");
            trained.finish_step().expect("a batch of the schema").mean()
        };
        ((0..STEPS).map(step).collect(), tensors_of(&mut trained))
    };
    let of_ranks: Vec<Trained> = std::thread::scope(|scope| {
        let world = (0..ranks).zip(Local::world(ranks as usize));
        let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
        workers.into_iter().map(joined).collect()
    });
    assert!(of_ranks.iter().all(|of_rank| bits(of_rank) == bits(&of_ranks[0])), "{ranks} ranks");
    of_ranks.into_iter().next().expect("a rank")
}

fn optimizers() -> [Value; 3] {
    [
        json!({"kind": "adagrad", "learning_rate": 0.1, "initial_accumulator": 0.1, "epsilon": 1e-7}),
        json!({"kind": "adam", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7}),
        json!({"kind": "momentum", "learning_rate": 0.1, "momentum": 0.9, "nesterov": false}),
    ]
}

fn agree((losses, tensors): &Trained, (expected_losses, expected): &Trained, tolerance: f64) {
    close("losses", losses, expected_losses, tolerance);
    assert_eq!(tensors.len(), expected.len());
    for (name, tensor) in tensors {
        close(name, tensor, &expected[name], tolerance);
    }
}

#[test]
fn workers_agree_with_one_worker() {
    for optimizer in optimizers() {
        let reference = train(&optimizer, (1, None), |_| Reference);
        let cpu = |_| Cpu::new(Some(1)).expect("a thread");
        for division in [(3, None), (4, None), (2, Some(4))] {
            agree(&train(&optimizer, division, |_| Reference), &reference, 1e-12);
            agree(&train(&optimizer, division, cpu), &reference, 1e-4);
        }
    }
}

#[test]
fn parts_give_the_same_bits_for_every_number_of_workers() {
    for optimizer in optimizers() {
        let [one, two, four] = [1, 2, 4].map(|ranks| {
            bits(&train(&optimizer, (ranks, Some(4)), |_| Cpu::new(Some(1)).expect("a thread")))
        });
        assert!(one == two && one == four, "{optimizer}");
    }
}

/// With parts, also GPUs exchange gradients by way of host memory.
#[test]
fn gpus_agree_with_one_worker() {
    for optimizer in optimizers() {
        let reference = train(&optimizer, (1, None), |_| Reference);
        agree(&train(&optimizer, (2, Some(4)), cuda_of), &reference, 1e-4);
    }
}
