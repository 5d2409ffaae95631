//! Measures the speed of training steps of Wide & Deep, DLRM and DIN, compared with a lower bound of the time for
//! this machine (the floor).
//!
//! ```text
//! cargo run --release -p millstream-trainer --example step_speed -- [--model wide_deep] [--ids 100000] [--dim 16]
//!     [--values 1] [--pooling sum] [--batch 4096] [--threads 2] [--seconds 1] [--runs 5] [--json] [--wait]
//!     [--losses 0] [--rates] [--hidden 256,128,64] [--bottom 64] [--precision fp32] [--tables fp32]
//!     [--without-tiles] [--device cpu] [--record no] [--part 8] [--examples 98304] [--operations] [--roof 1]
//!     [--libraries FOLDER] [--cache FOLDER] [--workers 1 --rank 0 --meet FOLDER] [--gradients fp32]
//! ```
//!
//! The data has 26 features with `ids` ids each, drawn from a Zipf distribution, and 13 dense columns. The
//! model has embeddings of width `dim` and layers of `hidden` and 1 (DLRM: its top layers, after bottom
//! layers of `bottom` and `dim`), trained with Adagrad. With `--values`, each feature has so many ids in a row,
//! pooled by `--pooling`. Batches stay in the slots of a ring and are reused, so only the step is measured. A
//! run takes whole passes over the batches until its time is over.
//!
//! The floor is the matrix products' FLOPs at the rate of the fp32 GEMM library (the `gemm` crate) on all
//! threads, plus the bytes of embeddings at memory bandwidth, assuming that every distinct row of a batch is
//! read from memory. Matrix products with AMX are faster than the library, so with AMX this is not a floor;
//! their rate is printed as well. `--without-tiles` disables AMX. `--tables bf16` or `fp16` stores embeddings
//! in 16 bits, which halves their bytes on a GPU.
//!
//! `--model mlperf` is DLRM-DCNv2 of MLPerf Training: the reference's tables with every `--part`th of their
//! rows, its ids per row and its cross layers; layers and dimension as given.
//!
//! `--model din` has one feature of `ids` ids and a history of 50 values with the same ids, next to the dense columns.
//! Its floor counts the products of the attention layers, and reads each distinct id of a feature once.
//!
//! `--device cuda` trains on a GPU, to which each batch is copied from the ring as in training. CUDA
//! libraries are those of the host, or of the directory `--libraries`. Compiled kernels are cached in the
//! directory `--cache`, if given.
//!
//! `--operations` records a pass after the runs. It prints the time of each operation and the device's peak
//! rates, measured by copying matrices of `--roof` times 64 MiB and multiplying matrices of `--roof` times
//! 2048 rows.
//!
//! `--workers 2 --rank 0 --meet FOLDER` is one of two processes that train together over UCX, each on its part of every batch;
//! they exchange their addresses in the empty `FOLDER`, and gradients in the precision `--gradients`. Rates are those of the whole
//! batches. `bench/workers.py` starts them.
//!
//! `--record` measures the overhead of recording: `no` has no recorder, `off` has an idle one, `on` records
//! each run.
//!
//! For `bench/step.py`: `--json` prints one JSON line per result. `--wait` waits for a line of standard input
//! before each run, and exits at its end. `--losses N` prints the losses of the first N steps without
//! measuring, and a digest of the bits of all weights and optimizer state after them. `--rates` measures only
//! the machine, once per run.

#![allow(clippy::print_stdout, reason = "a measurement prints")]

mod operations;
mod options;
mod shapes;
mod work;

use std::error::Error;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use millstream_backend::collective::{Communicator, HostListener};
use millstream_backend::{Backend, Cpu, Cuda, Floors, Libraries};
use millstream_batch::{BatchBuffer, BatchRef, Lease, Producer};
use millstream_trace::Recording;
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;
use millstream_trainer::session::Request;
use millstream_trainer::spec::{DeviceSpec, TrainingSpec};
use serde_json::json;
use sha2::{Digest, Sha256};

use options::{Options, Record};
use work::{Rates, Work};

/// The time limit of an operation of several workers.
const LIMIT: Duration = Duration::from_secs(60);

/// Functions called on the backend around its runs.
struct Hooks<'a, B> {
    /// Before each run.
    before: &'a dyn Fn(&B),
    /// Starts a recording.
    begin: &'a dyn Fn(&B),
    /// Ends the recording and returns it.
    end: &'a dyn Fn(&B) -> (Recording, Floors),
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    if options.rates {
        return options.each_run(|| {
            let rates = Rates::measure(options.threads)?;
            let Rates { flops, fastest, bytes } = rates;
            println!(
                "{}",
                json!({"flops_per_second": flops, "fastest_flops_per_second": fastest, "bytes_per_second": bytes})
            );
            Ok(())
        });
    }
    match options.device {
        DeviceSpec::Cpu => {
            let cpu = Cpu::new(Some(options.threads))?;
            run_recorded(&options, if options.without_tiles { cpu.without_tiles() } else { cpu })
        }
        DeviceSpec::Cuda(number) => {
            let libraries = options.libraries.as_deref().map_or_else(Libraries::default, Libraries::of);
            run_recorded(&options, Cuda::new(&libraries, number, options.cache.as_deref())?)
        }
    }
}

fn run_recorded<B: Backend<Scalar = f32>>(options: &Options, backend: B) -> Result<(), Box<dyn Error>> {
    let nothing = |_: &B| ();
    let end = |backend: &B| {
        let recording = backend.end_recording();
        (recording, backend.floors(options.precision.activations(), options.roof))
    };
    let hooks = Hooks { before: &nothing, begin: &B::begin_recording, end: &end };
    match options.record {
        Record::No if !options.operations => {
            run(options, backend, &Hooks { begin: &nothing, end: &|_| Default::default(), ..hooks })
        }
        Record::No | Record::Off => run(options, backend, &hooks),
        // A recording for each run, so that the recorder has room for its spans.
        Record::On => run(options, backend, &Hooks { before: &B::begin_recording, ..hooks }),
    }
}

fn run<B: Backend<Scalar = f32>>(
    options: &Options,
    backend: B,
    hooks: &Hooks<'_, B>,
) -> Result<(), Box<dyn Error>> {
    let schema = shapes::schema(options);
    // The models in bench/step.py start from the same weights.
    let training = TrainingSpec {
        seed: 1,
        precision: options.precision,
        embedding_precision: options.tables,
        workers: NonZeroU32::new(options.workers),
        gradient_precision: options.gradients,
        ..TrainingSpec::default()
    };
    let mut model = Model::new(backend, &shapes::spec(options), &schema, &training)?;
    if training.exchanges() {
        let (rank, ranks) = (options.rank as usize, options.workers as usize);
        let host =
            HostListener::open(&Libraries::default(), None)?.meet(&options.meet, rank, ranks, LIMIT)?;
        model.join(Communicator::new(host, LIMIT, None)?)?;
    }
    let count = options.examples.div_ceil(options.batch).max(options.losses as u32);
    let (mut producer, hand_off) = Producer::create(&schema, count)?;
    let mut ring = hand_off.open(&schema)?;
    let _pinned = model.pin(&ring.mapping())?;
    let mut batches = Vec::new();
    for seed in 0..u64::from(count) {
        let mut slot = producer.claim()?;
        shapes::fill(&mut slot.batch(), &schema, seed);
        slot.publish();
        batches.extend(ring.next()?);
    }
    let batches = Batches::of(options, batches);
    if options.losses > 0 {
        return losses(&mut model, &batches, options.losses);
    }
    measure(options, &mut model, &batches, hooks)
}

/// The batches of this process.
struct Batches {
    whole: Vec<Lease>,
    /// Its part of each, if several workers share them; otherwise empty.
    parts: Vec<BatchBuffer>,
}

impl Batches {
    fn of(options: &Options, whole: Vec<Lease>) -> Self {
        let part = |lease: &Lease| BatchBuffer::part_of(lease.batch(), options.rank, options.workers);
        let parts = if options.workers > 1 { whole.iter().map(part).collect() } else { Vec::new() };
        Self { whole, parts }
    }

    fn iter(&self) -> impl Iterator<Item = BatchRef<'_>> {
        let part = |number: usize| self.parts.get(number).map(BatchBuffer::as_ref);
        self.whole.iter().enumerate().map(move |(number, lease)| part(number).unwrap_or(lease.batch()))
    }
}

/// Prints the mean loss of each of the first batches, with one step each, and a digest of the resulting weights.
fn losses<B: Backend<Scalar = f32>>(
    model: &mut Model<B>,
    batches: &Batches,
    count: usize,
) -> Result<(), Box<dyn Error>> {
    let step = |(batch, number): (BatchRef<'_>, u64)| {
        model.agree(&[batch], Request::default())?;
        Ok::<_, Box<dyn Error>>(model.train_step(batch, Step::number(number))?.mean())
    };
    let losses = batches.iter().take(count).zip(1..).map(step).collect::<Result<Vec<_>, _>>()?;
    let mut digest = Sha256::new();
    model.read_tensors(|_, numbers| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_bits().to_le_bytes()).collect();
        digest.update(bytes);
        Ok::<_, Box<dyn Error>>(())
    })?;
    let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{}", json!({ "losses": losses, "digest": digest }));
    Ok(())
}

fn measure<B: Backend<Scalar = f32>>(
    options: &Options,
    model: &mut Model<B>,
    batches: &Batches,
    hooks: &Hooks<'_, B>,
) -> Result<(), Box<dyn Error>> {
    let work = Work::of(options, &batches.whole);
    let mut steps = 0;
    let mut pass = |model: &mut Model<B>| {
        let end = |model: &mut Model<B>, ahead: usize| {
            while model.steps_in_flight() > ahead {
                model.finish_step()?;
            }
            Ok::<_, Box<dyn Error>>(())
        };
        for batch in batches.iter() {
            steps += 1;
            model.agree(&[batch], Request::default())?;
            model.submit_step(batch, Step::number(steps))?;
            end(model, model.steps_ahead())?;
        }
        end(model, 0)
    };
    // The first pass touches all memory.
    pass(model)?;
    if options.json {
        let device = model.backend().describe();
        println!(
            "{}",
            json!({
                "flops": work.flops, "bytes": work.bytes, "ids": work.ids, "rows": work.rows,
                "batch": options.batch, "dim": options.dim, "weight_bytes": options.weight_bytes(),
                "device": device,
            })
        );
    }
    let mut rates = Vec::new();
    options.each_run(|| {
        (hooks.before)(model.backend());
        let (start, least) = (Instant::now(), Duration::from_secs_f64(options.seconds));
        let mut examples = 0.0;
        // Workers end a run together.
        while !model.agree(&[], Request { stop: start.elapsed() >= least, copy: false })?.stop {
            pass(model)?;
            examples += batches.whole.len() as f64 * f64::from(options.batch);
        }
        let rate = examples / start.elapsed().as_secs_f64();
        rates.push(rate);
        if options.json {
            println!("{}", json!({ "rate": rate }));
        }
        Ok(())
    })?;
    if options.operations {
        (hooks.begin)(model.backend());
        pass(model)?;
        let (recording, floors) = (hooks.end)(model.backend());
        for document in operations::documents(&recording, &floors) {
            println!("{document}");
        }
        println!("{}", json!({ "floors": floors, "steps": batches.whole.len() }));
    }
    match options.device {
        _ if options.json => Ok(()),
        DeviceSpec::Cpu => report(options, &work, rates),
        DeviceSpec::Cuda(_) => {
            println!("{} on {}", shape(options), model.backend().describe());
            rates.iter().for_each(|rate| println!("  {rate:>9.0} examples/s"));
            Ok(())
        }
    }
}

/// Describes the model and its batches.
fn shape(options: &Options) -> String {
    let Options { kind, ids, part, dim, batch, precision, tables: stored, .. } = options;
    let tables = match kind {
        options::Kind::Mlperf => format!("MLPerf's tables over {part}"),
        options::Kind::Din => format!("a target of {ids} ids and its history"),
        _ => format!("26 x {ids} ids"),
    };
    format!("{kind:?} in {precision:?}, {tables} in {stored:?}, dimension {dim}, batch {batch},")
}

fn report(options: &Options, work: &Work, mut rates: Vec<f64>) -> Result<(), Box<dyn Error>> {
    let machine = Rates::measure(options.threads)?;
    let floor = machine.floor(work);
    rates.sort_by(f64::total_cmp);
    println!("{} {} threads", shape(options), options.threads);
    println!(
        "an example needs {:.0} kFLOP and {:.1} kB; the machine reaches {:.0} GFLOP/s and {:.1} GB/s: floor {floor:.0}/s",
        work.flops / 1e3,
        work.bytes / 1e3,
        machine.flops / 1e9,
        machine.bytes / 1e9,
    );
    println!("our matrix products in fp32: {:.0} GFLOP/s", machine.fastest / 1e9);
    println!("examples/s min / median / max, relative to the floor");
    for rate in [rates.first(), rates.get(rates.len() / 2), rates.last()].into_iter().flatten() {
        println!("  {rate:>9.0}  {:>4.0}%", 100.0 * rate / floor);
    }
    Ok(())
}
