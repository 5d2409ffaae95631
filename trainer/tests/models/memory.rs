//! Compares the planned GPU memory with the memory in use.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use millstream_backend::Cuda;
use millstream_backend::collective::{Communicator, Local};
use millstream_batch::{BatchBuffer, BatchHeader, BatchRef, BatchSchema, IdFeature, SlotLayout};
use millstream_trainer::model::{Model, ModelPlan};
use millstream_trainer::schedule::Step;
use millstream_trainer::session::Request;
use millstream_trainer::spec::{DeviceSpec, Precision, TrainingSpec};

use crate::case::{Case, cuda, cuda_of, golden, several_gpus};

/// The minimum size of a GPU allocation. Two model parts with the same dense columns upload their indices
/// once but plan them twice.
const PIECE: u64 = 512;

/// The most GPU memory of lists of tables that are planned for several workers and not in use: those of the steps of one
/// worker, and equal ones of several parts of a model.
const LISTS: u64 = 8 * PIECE;

/// Takes a step, scores a batch, copies the model of `case`, and compares its GPU memory with the plan.
fn assert_planned(case: &Case, training: TrainingSpec, schema: &BatchSchema, batch: BatchRef<'_>) {
    let training = TrainingSpec { device: DeviceSpec::Cuda(0), ..training };
    let plan = ModelPlan::new(&case.spec(), schema, &training).expect("a plan");
    let model = Model::new(cuda(), &case.spec(), schema, &training);
    let mut model: Model<Cuda> = model.expect("a model of the schema");
    model.train_step(batch, Step::number(1)).expect("a batch of the schema");
    let scores = training.outputs(schema.label_count()) * schema.rows as usize;
    model.predict(batch, &mut vec![0.0; scores]).expect("a batch of the schema");
    let (_, copy_len) = model.copy_layout();
    model.copy(0, &mut vec![0.0; copy_len]);
    let (held, planned) = (model.backend().held_bytes(), plan.parameter_bytes + plan.workspace_bytes);
    let (precision, parts) = (training.precision, training.micro_batch_rows);
    let most = held + PIECE;
    assert!(
        (held..=most).contains(&planned),
        "{}, {precision:?}, in parts of {parts:?}: {planned} bytes are planned, {held} are in use",
        case.name
    );
    assert_eq!(plan.copy_bytes, 4 * copy_len as u64, "{}", case.name);
    assert!(plan.staging_bytes > 4 * scores as u64, "{}", case.name);
}

/// A full batch with the first id of each feature.
fn full(schema: &BatchSchema) -> BatchBuffer {
    let layout = SlotLayout::of(schema).expect("a schema with rows");
    let mut buffer = BatchBuffer::new(Arc::new(layout));
    let mut slot = buffer.as_mut();
    slot.set_header(&BatchHeader::train(schema.rows));
    let sections = slot.sections();
    sections.weights.expect("a weighted schema").fill(1.0);
    for ((offsets, _), feature) in sections.ragged.into_iter().zip(&schema.ragged) {
        offsets.iter_mut().zip(0..).for_each(|(offset, row)| *offset = row * feature.maximum);
    }
    buffer
}

#[test]
fn a_gpu_uses_the_planned_memory() {
    let golden = golden();
    for case in &golden.cases {
        let schema = golden.schema(case);
        let batch = golden.batch(case, 0);
        let parts = (!case.needs_whole_batches()).then_some(schema.rows / 3);
        for (precision, embedding_precision, micro_batch_rows) in [
            (Precision::Fp32, Precision::Fp32, None),
            (Precision::Bf16, Precision::Fp16, parts),
            (Precision::Fp16, Precision::Bf16, None),
        ] {
            let training =
                TrainingSpec { precision, embedding_precision, micro_batch_rows, ..case.training(7) };
            assert_planned(case, training, &schema, batch.as_ref());
        }
    }
}

/// GPUs that gather the rows of each other's tables: enough rows that these use much more memory than [`LISTS`].
#[test]
fn gpus_of_several_workers_use_the_planned_memory() {
    let Some(_alone) = several_gpus() else { return };
    let golden = golden();
    let precisions = [Precision::Fp32, Precision::Bf16].into_iter().cycle();
    let is_possible = |case: &&Case, uneven| !(uneven && case.spec().uses_batch_normalization());
    let cases = golden.cases.iter().step_by(4).zip(precisions);
    let cases = cases.flat_map(|(case, precision)| [(case, precision, false), (case, precision, true)]);
    for (case, gradient_precision, uneven_parts) in
        cases.filter(|(case, _, uneven)| is_possible(case, *uneven))
    {
        let mut schema = BatchSchema { rows: 900, ..golden.schema(case) };
        schema.ids.iter_mut().for_each(|feature| feature.cardinality = 1_000);
        schema.ragged.iter_mut().for_each(|feature| feature.cardinality = 1_000);
        let batch = full(&schema);
        let workers = NonZeroU32::new(3);
        let device = DeviceSpec::Cuda(0);
        let training = TrainingSpec { device, workers, gradient_precision, uneven_parts, ..case.training(7) };
        let plan = ModelPlan::new(&case.spec(), &schema, &training).expect("a plan");
        let worker = |rank: u32, transport: Local| {
            let model = Model::new(cuda_of(rank), &case.spec(), &schema, &training);
            let mut model = model.expect("a model of the schema");
            let communicator = Communicator::new(transport, Duration::from_secs(60), None);
            model.join(communicator.expect("a thread")).expect("devices");
            let part = match uneven_parts {
                true => BatchBuffer::parts_of(batch.as_ref(), &[100, 0, 800]).remove(rank as usize),
                false => BatchBuffer::part_of(batch.as_ref(), rank, 3),
            };
            model.agree(&[part.as_ref()], Request::default()).expect("all workers agree");
            model.train_step(part.as_ref(), Step::number(1)).expect("a batch of the schema");
            let scores = training.outputs(schema.label_count()) * part.as_ref().rows();
            model.predict(part.as_ref(), &mut vec![0.0; scores]).expect("a batch of the schema");
            let (_, copy_len) = model.copy_layout();
            model.copy(0, &mut vec![0.0; copy_len]);
            model.backend().held_bytes()
        };
        let held: Vec<u64> = std::thread::scope(|scope| {
            let world = (0..).zip(Local::world(3));
            let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
            workers.into_iter().map(|worker| worker.join().expect("a worker")).collect()
        });
        let planned = plan.parameter_bytes + plan.workspace_bytes;
        let all = held.iter().all(|&held| (held..=held + LISTS).contains(&planned));
        assert!(all, "{}: {planned} bytes are planned, {held:?} are in use", case.name);
    }
}

/// With more rows, sums over rows have more partial sums, and id sorting needs more pieces.
#[test]
fn the_memory_of_many_rows_is_planned() {
    let golden = golden();
    let precisions = [Precision::Fp32, Precision::Bf16];
    for (case, precision) in golden.cases.iter().step_by(5).zip(precisions.into_iter().cycle()) {
        let schema = BatchSchema { rows: 1_100, ..golden.schema(case) };
        let training = TrainingSpec { precision, ..case.training(7) };
        assert_planned(case, training, &schema, full(&schema).as_ref());
    }
}

/// A GPU stores 16-bit weights in half the bytes, with unchanged state; a CPU stores them as f32. Linear
/// parts do not change.
#[test]
fn tables_of_16_bits_use_half_the_bytes_for_weights() {
    let golden = golden();
    let case = golden.cases.iter().find(|case| case.name == "tables of half precision").expect("an MLP");
    let schema = BatchSchema {
        ids: golden.schema(case).ids.into_iter().map(|id| IdFeature { cardinality: 1 << 20, ..id }).collect(),
        ..golden.schema(case)
    };
    let bytes = |device, embedding_precision| {
        let training = TrainingSpec { device, embedding_precision, ..case.training(7) };
        ModelPlan::new(&case.spec(), &schema, &training).expect("a plan").parameter_bytes
    };
    let [whole, bf16, fp16] = [Precision::Fp32, Precision::Bf16, Precision::Fp16]
        .map(|precision| [DeviceSpec::Cpu, DeviceSpec::Cuda(0)].map(|device| bytes(device, precision)));
    assert_eq!(bf16, fp16);
    assert_eq!(whole[0], bf16[0]);
    // Two features with this many ids have embeddings of width six; each weight has one state value.
    let weights = 2 * (6 << 20);
    assert!((8 * weights..8 * weights + (8 << 20)).contains(&whole[1]), "{whole:?}");
    assert_eq!(whole[1] - bf16[1], 2 * weights, "{whole:?}, {bf16:?}");
}
