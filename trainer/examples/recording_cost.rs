//! What it costs a step that it may be recorded, and that it is.
//!
//! ```text
//! cargo run --release -p millstream-trainer --example recording_cost -- [ROUNDS] [BATCH]
//! ```
//!
//! Wide & Deep over 26 features of 10,000 ids and 13 dense columns, embeddings of 16, layers of 256, 128, 64 and 1. Three
//! models take turns, on batches of the same numbers: one on the plain backend, one on a measured backend that nobody
//! looks at, one that is recorded. Prints the microseconds of a step of each, over all rounds.

#![allow(clippy::print_stdout, reason = "a measurement prints")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use millstream_backend::{Backend, BatchError, Cpu, Measured};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, SlotLayout, Stream};
use millstream_trainer::init::Init;
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::{
    DeepSpec, EmbeddingInit, HiddenLayerSpec, ModelSpec, OptimizerSpec, Pooling, TrainingSpec, WideDeepSpec,
    WideSpec,
};

const CATEGORICAL: usize = 26;
const DENSE: usize = 13;
const IDS: u32 = 10_000;
/// Steps of each model in a round.
const STEPS: u32 = 100;
const ADAGRAD: OptimizerSpec =
    OptimizerSpec::Adagrad { learning_rate: 0.01, initial_accumulator: 0.1, epsilon: 1e-7, l2: 0.0 };

fn main() -> Result<(), Box<dyn Error>> {
    let numbers = std::env::args().skip(1).map(|number| number.parse()).collect::<Result<Vec<u32>, _>>()?;
    let (rounds, rows) = (*numbers.first().unwrap_or(&30), *numbers.get(1).unwrap_or(&256));
    let schema = schema(rows);
    let batch = batch(&schema)?;
    let measured = || Ok::<_, Box<dyn Error>>(Measured::new(Cpu::new(None)?, Arc::default()));
    let mut plain = model(Cpu::new(None)?, &schema)?;
    let (mut off, mut on) = (model(measured()?, &schema)?, model(measured()?, &schema)?);
    let mut microseconds: [Vec<f64>; 3] = Default::default();
    let mut spans = 0;
    for _ in 0..rounds {
        microseconds[0].push(step(&mut plain, &batch)?);
        microseconds[1].push(step(&mut off, &batch)?);
        on.backend().begin_recording();
        microseconds[2].push(step(&mut on, &batch)?);
        let recording = on.backend().end_recording();
        spans = recording.tracks.iter().map(|track| track.spans.len()).sum();
    }
    println!("batches of {rows}, {rounds} rounds of {STEPS} steps; us a step, min / median / max");
    let names = ["plain", "measured, off", "measured, on"];
    for (name, microseconds) in names.into_iter().zip(&mut microseconds) {
        microseconds.sort_by(f64::total_cmp);
        let [least, median, most] =
            [0, microseconds.len() / 2, microseconds.len() - 1].map(|place| microseconds[place]);
        println!("  {name:<14} {least:>9.1} {median:>9.1} {most:>9.1}");
    }
    println!("{} spans a step", spans / STEPS as usize);
    Ok(())
}

/// Microseconds of a step, over some.
fn step<B: Backend>(model: &mut Model<B>, batch: &BatchBuffer) -> Result<f64, BatchError> {
    let start = Instant::now();
    for number in 1..=STEPS {
        model.train_step(batch.as_ref(), Step::number(number.into()))?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(STEPS))
}

fn model<B: Backend>(backend: B, schema: &BatchSchema) -> Result<Model<B>, Box<dyn Error>> {
    let categorical = || (0..CATEGORICAL).map(|number| format!("c{number}"));
    let spec = ModelSpec::WideDeep(WideDeepSpec {
        wide: WideSpec { features: categorical().collect(), optimizer: ADAGRAD },
        deep: DeepSpec {
            features: categorical().chain((0..DENSE).map(|number| format!("d{number}"))).collect(),
            embedding_dim: 16.into(),
            embedding_init: EmbeddingInit::default(),
            embeddings: Vec::new(),
            embedding_optimizer: None,
            hidden: vec![256, 128, 64],
            hidden_layer: HiddenLayerSpec::default(),
            pooling: Pooling::Mean,
            optimizer: ADAGRAD,
        },
    });
    Ok(Model::new(backend, &spec, schema, &TrainingSpec { seed: 1, ..TrainingSpec::default() })?)
}

fn schema(rows: u32) -> BatchSchema {
    let feature = |number| IdFeature { name: format!("c{number}"), cardinality: IDS };
    BatchSchema {
        rows,
        labels: Vec::new(),
        weighted: false,
        dense: (0..DENSE).map(|number| format!("d{number}")).collect(),
        ids: (0..CATEGORICAL).map(feature).collect(),
        ragged: Vec::new(),
        position_bytes: 0,
    }
}

fn batch(schema: &BatchSchema) -> Result<BatchBuffer, Box<dyn Error>> {
    let mut numbers = Init::Uniform { limit: 0.5 }.values(1, "batch", 0).map(|x| x + 0.5);
    let mut uniform = || numbers.next().unwrap_or_default();
    let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(schema)?));
    let (rows, stream) = (schema.rows, Stream::Train);
    let mut slot = buffer.as_mut();
    slot.set_header(&BatchHeader { stream, epoch: 0, batch: 0, rows, global_rows: rows, last: false });
    let sections = slot.sections();
    sections.labels.fill_with(|| f32::from(uniform() < 0.25));
    sections.dense.fill_with(|| uniform() as f32);
    sections.ids.fill_with(|| (uniform() * f64::from(IDS)) as u32 % IDS);
    Ok(buffer)
}
