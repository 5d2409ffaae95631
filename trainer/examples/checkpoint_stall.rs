//! Measures how long a checkpoint or an image delays the next training step, compared with a plain copy of as many bytes, and
//! how long it takes to restore each.
//!
//! ```text
//! cargo run --release -p millstream-trainer --example checkpoint_stall -- [MIB] [THREADS] [DIRECTORY]
//! ```
//!
//! The model is an MLP over 26 embeddings of width 16 with Adagrad, whose tables and state use MIB mebibytes
//! (default: 1024). Checkpoints go to DIRECTORY (default: the system's temporary directory). The plain copy
//! is a single-threaded `memcpy` between touched memory, made just before each checkpoint. The benchmark uses
//! four times MIB of memory. It prints minimum, median and maximum over runs.

#![allow(clippy::print_stdout, reason = "a measurement prints")]

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use millstream_backend::Cpu;
use millstream_batch::shared_memory::anonymous_file;
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, SlotLayout, Stream};
use millstream_trainer::checkpoint::{CheckpointScope, CheckpointStore, CheckpointWriter, Image};
use millstream_trainer::init::Init;
use millstream_trainer::session::{Session, SessionError};
use millstream_trainer::spec::{
    EmbeddingInit, EmbeddingSpec, HiddenLayerSpec, MlpSpec, ModelSpec, OptimizerSpec, Pooling, TrainingSpec,
};

const FEATURES: usize = 26;
const WIDTH: u32 = 16;
const ROWS: u32 = 4096;
const RUNS: usize = 5;
const STEPS: usize = 20;
const BATCHES: u64 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mib: usize = arguments.next().map_or(Ok(1024), |mib| mib.parse())?;
    let threads = arguments.next().map(|threads| threads.parse::<u32>()).transpose()?;
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let bytes = mib << 20;

    let (from, mut to) = (vec![1_u8; bytes], vec![2_u8; bytes]);
    let schema = schema(bytes);
    let mut session = session(&schema, threads)?;
    let layout = Arc::new(SlotLayout::of(&schema)?);
    let batches: Vec<BatchBuffer> = (0..BATCHES).map(|seed| batch(&layout, seed)).collect();
    let mut batches = batches.iter().cycle();
    let mut step = |session: &mut Session<Cpu>| {
        let start = Instant::now();
        let batch = batches.next().ok_or("no batches")?;
        session.train(batch.as_ref())?;
        Ok::<_, Box<dyn Error>>(start.elapsed().as_secs_f64())
    };

    let directory = parent.join(format!("millstream-checkpoint-stall-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let store = CheckpointStore::local(&directory)?;
    let mut writer = CheckpointWriter::spawn(store, vec![session.allocate_copy()], Vec::new(), None)?;
    writer.wait()?;
    (0..STEPS).try_for_each(|_| step(&mut session).map(drop))?;
    let alone = (0..STEPS).map(|_| step(&mut session)).collect::<Result<Vec<_>, _>>()?;

    let (mut copies, mut stalls) = (Vec::new(), Vec::new());
    let (mut beside, mut writes) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        copies.push(plain_copy(&from, &mut to));
        let start = Instant::now();
        writer.start_commit::<SessionError>(1, |image| session.capture(image))?;
        stalls.push(start.elapsed().as_secs_f64());
        while !writer.is_idle() {
            beside.push(step(&mut session)?);
        }
        writes.push(start.elapsed().as_secs_f64());
        writer.wait()?;
    }
    drop(writer);

    let files = [anonymous_file(c"image")?, anonymous_file(c"image")?].map(File::from);
    let mut images = Vec::new();
    for file in &files {
        images.push(session.copy_in_image(file.try_clone()?, 0)?);
    }
    // So that their pages exist.
    images.iter_mut().try_for_each(|image| session.capture(image).map(drop))?;
    let mut image_stalls = Vec::new();
    for run in 0..RUNS {
        step(&mut session)?;
        let start = Instant::now();
        session.capture(&mut images[run % files.len()])?;
        image_stalls.push(start.elapsed().as_secs_f64());
    }
    let (mut from_image, mut from_store) = (Vec::new(), Vec::new());
    let store = CheckpointStore::local(&directory)?;
    for file in files.iter().cycle().take(RUNS) {
        let start = Instant::now();
        let image = Image::open(file.try_clone()?)?.ok_or("an image is incomplete")?;
        session.restore_image(&image)?;
        from_image.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let step = store.steps()?.pop().ok_or("no checkpoint")?;
        session.restore(&store.load(step, CheckpointScope::Full)?)?;
        from_store.push(start.elapsed().as_secs_f64());
    }
    std::fs::remove_dir_all(directory)?;
    report("plain copy", "s", copies);
    report("stall of a checkpoint", "s", stalls);
    report("until it is committed", "s", writes);
    report("stall of an image", "s", image_stalls);
    report("restore an image", "s", from_image);
    report("restore a checkpoint", "s", from_store);
    report("step alone", "s", alone);
    report("step while one is written", "s", beside);
    Ok(())
}

fn report(what: &str, unit: &str, mut figures: Vec<f64>) {
    figures.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (figures.first(), figures.last()) else { return };
    let median = figures[figures.len() / 2];
    println!(
        "{what:28} {least:.4} / {median:.4} / {most:.4} {unit}, min / median / max of {}",
        figures.len()
    );
}

fn plain_copy(from: &[u8], to: &mut [u8]) -> f64 {
    let start = Instant::now();
    to.copy_from_slice(from);
    std::hint::black_box(to);
    start.elapsed().as_secs_f64()
}

fn names() -> Vec<String> {
    (0..FEATURES).map(|number| format!("c{number}")).collect()
}

/// Tables of `bytes` bytes; half of that are weights, half state.
fn schema(bytes: usize) -> BatchSchema {
    let row_bytes = FEATURES * WIDTH as usize * 2 * size_of::<f32>();
    let cardinality = (bytes / row_bytes) as u32;
    BatchSchema {
        rows: ROWS,
        labels: Vec::new(),
        weighted: false,
        dense: Vec::new(),
        ids: names().into_iter().map(|name| IdFeature { name, cardinality }).collect(),
        ragged: Vec::new(),
        columns: Vec::new(),
        position_bytes: 0,
    }
}

fn session(schema: &BatchSchema, threads: Option<u32>) -> Result<Session<Cpu>, Box<dyn Error>> {
    let adagrad =
        OptimizerSpec::Adagrad { learning_rate: 0.01, initial_accumulator: 0.1, epsilon: 1e-7, l2: 0.0 };
    let model = ModelSpec::Mlp(MlpSpec {
        features: names(),
        embedding: EmbeddingSpec {
            dim: WIDTH.into(),
            pooling: Pooling::Mean,
            init: EmbeddingInit::default(),
            tables: Vec::new(),
            optimizer: adagrad,
        },
        hidden: vec![256, 128, 64],
        hidden_layer: HiddenLayerSpec::default(),
        optimizer: adagrad,
    });
    let training = TrainingSpec { seed: 1, threads, ..TrainingSpec::default() };
    Ok(Session::new(Cpu::new(threads)?, &model, schema, &training)?)
}

/// A batch of random rows.
fn batch(layout: &Arc<SlotLayout>, seed: u64) -> BatchBuffer {
    let mut numbers = Init::Uniform { limit: 0.5 }.values(seed, "batch", 0).map(|x| x + 0.5);
    let mut below = |limit: u32| (numbers.next().unwrap_or_default() * f64::from(limit)) as u32;
    let mut buffer = BatchBuffer::new(Arc::clone(layout));
    let schema = layout.schema();
    let mut slot = buffer.as_mut();
    slot.set_header(&BatchHeader {
        stream: Stream::Train,
        epoch: 0,
        batch: seed,
        rows: schema.rows,
        global_rows: schema.rows,
        first_row: 0,
        most_rows: schema.rows,
        last: false,
    });
    let sections = slot.sections();
    sections.labels.fill_with(|| below(2) as f32);
    sections.ids.fill_with(|| below(schema.ids[0].cardinality));
    buffer
}
