//! Several workers, each with a part of every batch, against PyTorch and against each other.

use std::num::NonZeroU32;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use millstream_backend::collective::{CollectiveError, Communicator, Local};
use millstream_backend::{Backend, Cpu, DeviceFault, Reference};
use millstream_batch::{BatchBuffer, BatchRef, BatchSchema};
use millstream_trainer::model::{Model, ModelError, ModelPlan};
use millstream_trainer::schedule::Step;
use millstream_trainer::session::Request;
use millstream_trainer::spec::{LossSpec, Precision, TrainingSpec};

use crate::case::{Case, Golden, Tensors, cuda, cuda_of, golden, several_gpus, tensors_of, write};
use crate::golden::close;

/// The time limit of an operation.
const LIMIT: Duration = Duration::from_secs(60);

/// The losses of some steps, and the tensors after them.
pub(crate) type Trained = (Vec<f64>, Tensors);

/// How batches are divided.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Division {
    pub(crate) ranks: u32,
    pub(crate) shards: Option<u32>,
    pub(crate) micro_batch_rows: Option<u32>,
    /// The rows of each part, if parts are uneven.
    pub(crate) rows: Option<&'static [u32]>,
}

impl Division {
    pub(crate) fn among(ranks: u32) -> Self {
        Self { ranks, ..Self::default() }
    }

    /// Among workers of one part each, with these numbers of rows.
    pub(crate) fn uneven(rows: &'static [u32]) -> Self {
        Self { rows: Some(rows), ..Self::among(rows.len() as u32) }
    }

    /// Whether batches of `case` can be divided like this.
    fn is_possible(self, case: &Case) -> bool {
        let spec = case.spec();
        let is_of_whole_batches = self.shards.is_none() && self.micro_batch_rows.is_none();
        let are_uneven = self.rows.is_some() && spec.uses_batch_normalization();
        (is_of_whole_batches || !case.needs_whole_batches()) && !are_uneven
    }

    pub(crate) fn apply(self, training: TrainingSpec) -> TrainingSpec {
        let Self { ranks, shards, micro_batch_rows, rows } = self;
        let shards = shards.and_then(NonZeroU32::new);
        let uneven_parts = rows.is_some();
        TrainingSpec { workers: NonZeroU32::new(ranks), shards, micro_batch_rows, uneven_parts, ..training }
    }

    /// The parts of worker `rank`.
    fn parts(self, batch: BatchRef<'_>, rank: u32) -> Vec<BatchBuffer> {
        let all = self.shards.unwrap_or(self.ranks);
        let own = (rank..all).step_by(self.ranks as usize);
        match self.rows {
            None => own.map(|part| BatchBuffer::part_of(batch, part, all)).collect(),
            Some(rows) => {
                let parts = BatchBuffer::parts_of(batch, rows).into_iter();
                parts.skip(rank as usize).step_by(self.ranks as usize).collect()
            }
        }
    }
}

/// Trains `case` for `steps` steps; returns what each worker has.
pub(crate) fn train<B: Backend>(
    golden: &Golden,
    case: &Case,
    division: Division,
    steps: usize,
    backend: impl Fn(u32) -> B + Sync,
) -> Vec<Trained> {
    let training = division.apply(case.training(1));
    train_divided(golden, (case, &golden.schema(case), &training), division, steps, backend)
}

/// Trains `case` with these settings on batches of `schema`; returns what each worker has.
pub(crate) fn train_as<B: Backend>(
    golden: &Golden,
    (case, schema, training): (&Case, &BatchSchema, &TrainingSpec),
    steps: usize,
    backend: impl Fn(u32) -> B + Sync,
) -> Vec<Trained> {
    let division =
        Division { shards: training.shards.map(NonZeroU32::get), ..Division::among(training.ranks()) };
    train_divided(golden, (case, schema, training), division, steps, backend)
}

/// The same with batches that are divided like this.
pub(crate) fn train_divided<B: Backend>(
    golden: &Golden,
    (case, schema, training): (&Case, &BatchSchema, &TrainingSpec),
    division: Division,
    steps: usize,
    backend: impl Fn(u32) -> B + Sync,
) -> Vec<Trained> {
    let ranks = division.ranks;
    let worker = |rank: u32, transport: Local| {
        let mut model = Model::new(backend(rank), &case.spec(), schema, training).expect("a model");
        write(&mut model, &case.start);
        model.join(Communicator::new(transport, LIMIT, None).expect("a thread")).expect("devices");
        let losses = (0..steps).map(|number| {
            let batch = golden.batch(case, number);
            let parts = division.parts(batch.as_ref(), rank);
            let parts: Vec<_> = parts.iter().map(BatchBuffer::as_ref).collect();
            let agreed = model.agree(&parts, Request::default()).expect("all workers agree");
            assert!(agreed.is_step && !agreed.stop);
            model.submit_parts(&parts, Step::number(number as u64 + 1)).expect("a batch of the schema");
            model.finish_step().expect("a batch of the schema").mean()
        });
        (losses.collect(), tensors_of(&mut model))
    };
    std::thread::scope(|scope| {
        let world = (0..ranks).zip(Local::world(ranks as usize));
        let workers = world.map(|(rank, transport)| scope.spawn(move || worker(rank, transport)));
        let workers: Vec<_> = workers.collect();
        workers.into_iter().map(joined).collect()
    })
}

/// The result of a worker; fails with the message of its device's error.
pub(crate) fn joined<T>(worker: ScopedJoinHandle<'_, T>) -> T {
    worker.join().unwrap_or_else(|panic| {
        match (panic.downcast_ref::<DeviceFault>(), panic.downcast_ref::<CollectiveError>()) {
            (Some(fault), _) => panic!("{}", fault.message),
            (_, Some(error)) => panic!("{error}"),
            (None, None) => std::panic::resume_unwind(panic),
        }
    })
}

/// The cases whose batches can be computed in parts, one after another.
pub(crate) fn shared(golden: &Golden) -> impl Iterator<Item = &Case> {
    golden.cases.iter().filter(|case| !case.needs_whole_batches())
}

pub(crate) fn bits((losses, tensors): &Trained) -> Vec<u64> {
    losses.iter().chain(tensors.values().flatten()).map(|number| number.to_bits()).collect()
}

/// Batches have nine rows of twelve: with four workers, one of them has none.
pub(crate) fn agree_with_pytorch<B: Backend>(
    divisions: impl IntoIterator<Item = Division>,
    tolerance: f64,
    backend: impl Fn(u32) -> B + Sync,
) {
    let golden = golden();
    for division in divisions {
        let mut compared = 0;
        for case in golden.cases.iter().filter(|case| division.is_possible(case)) {
            let trained = train(&golden, case, division, case.steps.len(), &backend);
            assert_eq!(trained.len(), division.ranks as usize);
            for (rank, of_rank) in trained.iter().enumerate() {
                assert!(bits(of_rank) == bits(&trained[0]), "{}: rank {rank}, {division:?}", case.name);
            }
            let (losses, tensors) = &trained[0];
            // As of one worker: see `golden`. The moments of few rows are rounded before they are merged.
            let merges = case.spec().uses_batch_normalization() && tolerance > 1e-6;
            let tolerance = if merges { 4.0 * tolerance } else { tolerance };
            let tolerance = match case.training(1).embedding_precision {
                _ if tolerance < 1e-6 => tolerance,
                Precision::Fp32 | Precision::Tf32 => tolerance * (case.sensitivity / 2.5e-6).max(1.0),
                Precision::Bf16 => 0.02,
                Precision::Fp16 => 0.004,
            };
            for (number, (loss, step)) in losses.iter().zip(&case.steps).enumerate() {
                let what = format!("{}, {division:?}, loss of step {number}", case.name);
                close(&what, &[*loss], &[step.loss], tolerance);
            }
            let last = case.steps.last().and_then(|step| step.tensors.as_ref());
            for (name, expected) in last.expect("the state after the last step") {
                close(&format!("{}, {division:?}, {name}", case.name), &tensors[name], expected, tolerance);
                compared += 1;
            }
        }
        assert!(compared > 500, "{compared} tensors");
    }
}

/// Batches that are divided among workers, in micro-batches, and in shards.
fn divisions() -> [Division; 6] {
    [
        Division::among(2),
        Division::among(3),
        Division::among(4),
        Division { micro_batch_rows: Some(2), ..Division::among(2) },
        Division { shards: Some(4), ..Division::among(1) },
        Division { shards: Some(8), micro_batch_rows: Some(1), ..Division::among(2) },
    ]
}

#[test]
fn workers_agree_with_pytorch_on_the_reference() {
    agree_with_pytorch(divisions(), 1e-12, |_| Reference);
}

#[test]
fn workers_agree_with_pytorch_on_the_cpu() {
    agree_with_pytorch(divisions(), 1e-5, |_| Cpu::new(Some(1)).expect("a thread"));
}

/// Without shards over NCCL, with shards through host memory.
#[test]
fn workers_agree_with_pytorch_on_cuda() {
    let mut tried = vec![divisions()[5]];
    let alone = several_gpus();
    if alone.is_some() {
        tried.extend(&divisions()[..3]);
    }
    agree_with_pytorch(tried, 1e-5, cuda_of);
}

#[test]
fn workers_repeat_their_bits() {
    let golden = golden();
    for case in shared(&golden).step_by(5) {
        let run = |threads| {
            let backend = |_| Cpu::new(Some(threads)).expect("threads");
            train(&golden, case, Division::among(3), 8, backend).iter().map(bits).collect::<Vec<_>>()
        };
        assert!(run(1) == run(2), "{}", case.name);
    }
}

/// With nine rows, the last of eight shards have none.
#[test]
fn shards_have_the_same_bits_for_every_number_of_workers() {
    let golden = golden();
    let mut of_whole_batches = 0;
    for case in shared(&golden) {
        let run = |ranks, shards| {
            let division = Division { shards, ..Division::among(ranks) };
            let backend = |_| Cpu::new(Some(1)).expect("a thread");
            bits(&train(&golden, case, division, 8, backend)[0])
        };
        for shards in [2, 8] {
            let one = run(1, Some(shards));
            for ranks in [2, 4, 8].into_iter().filter(|ranks| *ranks <= shards) {
                assert!(one == run(ranks, Some(shards)), "{}, {ranks} workers of {shards}", case.name);
            }
        }
        of_whole_batches += usize::from(run(1, None) != run(2, None));
    }
    assert!(of_whole_batches > 20, "without shards, the number of workers changes bits");
}

#[test]
fn shards_have_the_same_bits_on_cuda() {
    let golden = golden();
    for case in shared(&golden).step_by(7) {
        let run = |ranks| {
            let division = Division { shards: Some(4), ..Division::among(ranks) };
            bits(&train(&golden, case, division, 4, |_| cuda())[0])
        };
        assert!(run(1) == run(4), "{}", case.name);
    }
}

/// Each precision of activations, with the loss scale of fp16.
#[test]
fn workers_agree_in_every_precision() {
    let golden = golden();
    let names = ["wide_deep", "dlrm", "dcn_v2, parallel", "mmoe", "batches normalised", "two towers"];
    let uneven = ["wide_deep", "two towers"].map(|name| (name, Division::uneven(&[0, 7, 2])));
    for (name, division) in names.map(|name| (name, Division::among(3))).into_iter().chain(uneven) {
        let case = golden.cases.iter().find(|case| case.name == name).expect("a case");
        for precision in [Precision::Bf16, Precision::Fp16] {
            let schema = golden.schema(case);
            let run = |division: Division| {
                let ranks = division.ranks;
                let training = division.apply(TrainingSpec { precision, ..case.training(1) });
                let worker = |rank: u32, transport: Local| {
                    let backend = Cpu::new(Some(1)).expect("a thread");
                    let mut model = Model::new(backend, &case.spec(), &schema, &training).expect("a model");
                    write(&mut model, &case.start);
                    if ranks > 1 {
                        model
                            .join(Communicator::new(transport, LIMIT, None).expect("a thread"))
                            .expect("devices");
                    }
                    let losses: Vec<f64> = (0..8)
                        .map(|number| {
                            let batch = golden.batch(case, number);
                            let part = division.parts(batch.as_ref(), rank).remove(0);
                            model.agree(&[part.as_ref()], Request::default()).expect("all workers agree");
                            let step = Step::number(number as u64 + 1);
                            model.train_step(part.as_ref(), step).expect("a batch").mean()
                        })
                        .collect();
                    (losses, model.loss_scale().map(|scale| scale.skipped_steps))
                };
                std::thread::scope(|scope| {
                    let world = (0..ranks).zip(Local::world(ranks as usize));
                    let workers = world.map(|(rank, it)| scope.spawn(move || worker(rank, it)));
                    let workers: Vec<_> = workers.collect();
                    workers.into_iter().map(joined).collect::<Vec<_>>()
                })
            };
            let (one, three) = (run(Division::among(1)), run(division));
            let alike = three.iter().all(|of_rank| *of_rank == three[0]);
            assert!(alike, "{name}, {precision:?}: ranks differ");
            assert_eq!(one[0].1, three[0].1, "{name}, {precision:?}: skipped steps");
            // Activations of 16 bits are rounded after sums over other rows.
            close(&format!("{name}, {precision:?}"), &three[0].0, &one[0].0, 0.02);
        }
    }
}

/// The losses that compare the rows of lists, which are spread over all workers.
#[test]
fn workers_compare_lists_as_one_does() {
    let golden = golden();
    let case = golden.cases.iter().find(|case| case.name == "wide_deep").expect("a case");
    for loss in
        [LossSpec::Listwise { group: "shape".to_owned() }, LossSpec::Pairwise { group: "shape".to_owned() }]
    {
        let schema = golden.schema(case);
        let train = |ranks: u32| {
            let workers = NonZeroU32::new(ranks).filter(|ranks| ranks.get() > 1);
            let training = TrainingSpec { loss: loss.clone(), workers, ..case.training(1) };
            train_as(&golden, (case, &schema, &training), 8, |_| Reference)
        };
        let (one, four) = (train(1), train(4));
        assert!(one[0].0.iter().all(|loss| *loss > 0.0) && one[0].0[7] < one[0].0[0], "{:?}", one[0].0);
        for of_rank in &four {
            close(&format!("{loss:?}"), &of_rank.0, &one[0].0, 1e-12);
            for (name, tensor) in &of_rank.1 {
                close(&format!("{loss:?}, {name}"), tensor, &one[0].1[name], 1e-12);
            }
        }
    }
}

#[test]
fn shards_of_whole_batches_are_refused() {
    let golden = golden();
    let mut refused = 0;
    for case in &golden.cases {
        let training = Division { shards: Some(4), ..Division::among(2) }.apply(case.training(1));
        let planned = ModelPlan::new(&case.spec(), &golden.schema(case), &training);
        match case.needs_whole_batches() {
            true => {
                assert!(matches!(planned, Err(ModelError::WholeBatches { .. })), "{}", case.name);
                refused += 1;
            }
            false => assert!(planned.is_ok(), "{}", case.name),
        }
    }
    assert!(refused > 3);
    let case = shared(&golden).next().expect("a case");
    for (ranks, shards) in [(1, 3), (2, 1), (3, 6), (4, 6)] {
        let training = Division { shards: Some(shards), ..Division::among(ranks) }.apply(case.training(1));
        let planned = ModelPlan::new(&case.spec(), &golden.schema(case), &training);
        assert_eq!(planned.err(), Some(ModelError::Shards { shards, ranks }));
    }
}

#[test]
fn a_step_is_taken_only_if_every_worker_has_a_batch() {
    let golden = golden();
    let case = golden.cases.iter().find(|case| case.name == "wide_deep").expect("a case");
    let schema = golden.schema(case);
    let training = TrainingSpec { workers: NonZeroU32::new(2), ..case.training(1) };
    let worker = |rank: u32, transport: Local| {
        let mut model = Model::new(Reference, &case.spec(), &schema, &training).expect("a model");
        model.join(Communicator::new(transport, LIMIT, None).expect("a thread")).expect("devices");
        let batch = golden.batch(case, 0);
        let part = BatchBuffer::part_of(batch.as_ref(), rank, 2);
        let votes = [(true, false), (rank == 0, false), (rank == 1, rank == 0), (true, rank == 1)];
        votes.map(|(has_batch, stop)| {
            let parts = [part.as_ref()];
            let parts = if has_batch { &parts[..] } else { &[] };
            let agreed = model.agree(parts, Request { stop, copy: false }).expect("all workers agree");
            (agreed.is_step, agreed.stop)
        })
    };
    std::thread::scope(|scope| {
        let world = (0..2).zip(Local::world(2));
        let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
        for worker in workers {
            let agreed = joined(worker);
            assert_eq!(agreed, [(true, false), (false, false), (false, true), (true, true)]);
        }
    });
}
