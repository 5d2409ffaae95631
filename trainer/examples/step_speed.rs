//! How fast the CPU backend steps Wide & Deep and DLRM, beside the time their matrix products alone would take.
//!
//! ```text
//! cargo run --release -p millstream-trainer --example step_speed -- [THREADS]
//! ```
//!
//! 26 features of 100,000 ids drawn from a Zipf distribution, 13 dense columns; embeddings of 16, layers
//! of 256, 128, 64 and 1 (DLRM's top, after a bottom of 64 and 16); Adagrad, and FTRL on the wide part. Batches lie in
//! memory, so this is the step alone. Prints minimum, median and maximum over runs.

#![allow(clippy::print_stdout, reason = "a measurement prints")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use millstream_backend::{Activation, Backend, Cpu, Device};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, SlotLayout, Stream};
use millstream_trainer::init::Init;
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::{
    DeepSpec, DlrmInteraction, DlrmSpec, EmbeddingSpec, HiddenLayerSpec, ModelSpec, OptimizerSpec, Pooling,
    TrainingSpec, WideDeepSpec, WideSpec,
};

const CATEGORICAL: usize = 26;
const DENSE: usize = 13;
const CARDINALITY: u32 = 100_000;
const EMBEDDING: u32 = 16;
const HIDDEN: [u32; 3] = [256, 128, 64];
const BOTTOM: [u32; 1] = [64];
const RUNS: usize = 7;
const BATCHES: usize = 24;

fn main() -> Result<(), Box<dyn Error>> {
    let threads = std::env::args().nth(1).map(|threads| threads.parse::<u32>()).transpose()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.unwrap_or(cores as u32);
    let peak = products_per_second()?;
    println!("{threads} threads of {cores} cores; one core multiplies {:.0} GFLOP/s", peak / 1e9);
    let models = [("Wide & Deep", wide_deep(), wide_deep_flops()), ("DLRM", dlrm(), dlrm_flops())];
    for (name, spec, flops) in models {
        println!("{name}: {:.0} kFLOP/example", flops / 1e3);
        for rows in [1024, 4096] {
            measure(&spec, rows, threads, flops / (peak * f64::from(threads)))?;
        }
    }
    Ok(())
}

/// `floor` is the seconds that an example takes at least.
fn measure(spec: &ModelSpec, rows: u32, threads: u32, floor: f64) -> Result<(), Box<dyn Error>> {
    let schema = schema(rows);
    let mut model = Model::new(Cpu::new(Some(threads))?, spec, &schema, &TrainingSpec::default())?;
    let layout = Arc::new(SlotLayout::of(&schema)?);
    let batches: Vec<BatchBuffer> = (0..BATCHES as u64).map(|seed| batch(&layout, seed)).collect();
    let mut rates = Vec::new();
    let mut step = 0;
    for run in 0..=RUNS {
        let start = Instant::now();
        for batch in &batches {
            step += 1;
            model.train_step(batch.as_ref(), Step::number(step))?;
        }
        let rate = BATCHES as f64 * f64::from(rows) / start.elapsed().as_secs_f64();
        // The first run touches memory for the first time.
        if run > 0 {
            rates.push(rate);
        }
    }
    rates.sort_by(f64::total_cmp);
    println!("batch {rows}: examples/s min / median / max, and the share of the products' floor");
    for rate in [rates[0], rates[RUNS / 2], rates[RUNS - 1]] {
        println!("  {rate:>9.0}  {:>4.0}%", 100.0 * floor * rate);
    }
    Ok(())
}

/// Forward, and twice that backward, but for the input's dense columns, which nothing learns from.
fn wide_deep_flops() -> f64 {
    let inputs = CATEGORICAL as f64 * f64::from(EMBEDDING) + DENSE as f64;
    layers_flops(inputs, &top()) - 2.0 * DENSE as f64 * f64::from(HIDDEN[0])
}

fn dlrm_flops() -> f64 {
    let (vectors, width) = (1.0 + CATEGORICAL as f64, f64::from(EMBEDDING));
    let pairs = vectors * (vectors - 1.0) / 2.0;
    let bottom =
        layers_flops(DENSE as f64, &[BOTTOM[0], EMBEDDING]) - 2.0 * DENSE as f64 * f64::from(BOTTOM[0]);
    bottom + 6.0 * pairs * width + layers_flops(width + pairs, &top())
}

/// Outputs of the layers that end in the logit.
fn top() -> Vec<u32> {
    [&HIDDEN[..], &[1]].concat()
}

fn layers_flops(inputs: f64, outputs: &[u32]) -> f64 {
    let (mut inputs, mut flops) = (inputs, 0.0);
    for &outputs in outputs {
        flops += 6.0 * inputs * f64::from(outputs);
        inputs = f64::from(outputs);
    }
    flops
}

/// What the matrix kernels reach on one core, at a size that suits them.
fn products_per_second() -> Result<f64, Box<dyn Error>> {
    const N: usize = 768;
    let backend = Cpu::new(Some(1))?;
    let (input, weights) = (backend.matrix(N, N), backend.matrix(N, N));
    let (bias, mut output) = (backend.matrix(1, N), backend.matrix(N, N));
    let mut best = f64::INFINITY;
    for _ in 0..30 {
        let start = Instant::now();
        backend.layer_forward(N, &input, &weights, Some(&bias), Activation::Identity, &mut output);
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(2.0 * (N * N * N) as f64 / best)
}

const ADAGRAD: OptimizerSpec =
    OptimizerSpec::Adagrad { learning_rate: 0.01, initial_accumulator: 0.1, epsilon: 1e-7, l2: 0.0 };

fn categorical() -> Vec<String> {
    (0..CATEGORICAL).map(|number| format!("c{number}")).collect()
}

fn all_features() -> Vec<String> {
    categorical().into_iter().chain((0..DENSE).map(|number| format!("d{number}"))).collect()
}

fn wide_deep() -> ModelSpec {
    let ftrl =
        OptimizerSpec::Ftrl { learning_rate: 0.05, beta: 1.0, l1: 0.01, l2: 0.0, initial_accumulator: 0.1 };
    ModelSpec::WideDeep(WideDeepSpec {
        wide: WideSpec { features: categorical(), optimizer: ftrl },
        deep: DeepSpec {
            features: all_features(),
            embedding_dim: EMBEDDING,
            hidden: HIDDEN.to_vec(),
            hidden_layer: HiddenLayerSpec::default(),
            pooling: Pooling::Mean,
            optimizer: ADAGRAD,
        },
    })
}

fn dlrm() -> ModelSpec {
    ModelSpec::Dlrm(DlrmSpec {
        features: all_features(),
        embedding: EmbeddingSpec { dim: EMBEDDING, pooling: Pooling::Mean, optimizer: ADAGRAD },
        bottom: BOTTOM.to_vec(),
        interaction: DlrmInteraction::Dot,
        top: HIDDEN.to_vec(),
        hidden_layer: HiddenLayerSpec::default(),
        optimizer: ADAGRAD,
    })
}

fn schema(rows: u32) -> BatchSchema {
    let feature = |number| IdFeature { name: format!("c{number}"), cardinality: CARDINALITY };
    BatchSchema {
        rows,
        weighted: false,
        dense: (0..DENSE).map(|number| format!("d{number}")).collect(),
        ids: (0..CATEGORICAL).map(feature).collect(),
        ragged: Vec::new(),
        position_bytes: 0,
    }
}

/// A batch of random numbers; ids fall as one over their rank, scattered over the table.
fn batch(layout: &Arc<SlotLayout>, seed: u64) -> BatchBuffer {
    let mut numbers = Init::Uniform { limit: 0.5 }.values(seed, "batch", 0).map(|x| x + 0.5);
    let mut uniform = || numbers.next().unwrap_or_default();
    let mut buffer = BatchBuffer::new(Arc::clone(layout));
    let rows = layout.schema().rows;
    let mut slot = buffer.as_mut();
    slot.set_header(&BatchHeader {
        stream: Stream::Train,
        epoch: 0,
        batch: seed,
        rows,
        global_rows: rows,
        last: false,
    });
    let sections = slot.sections();
    sections.labels.fill_with(|| f32::from(uniform() < 0.25));
    sections.dense.fill_with(|| uniform() as f32);
    sections.ids.fill_with(|| {
        let rank = f64::from(CARDINALITY).powf(uniform()) as u64;
        (rank.wrapping_mul(0x9e37_79b1) % u64::from(CARDINALITY)) as u32
    });
    buffer
}
