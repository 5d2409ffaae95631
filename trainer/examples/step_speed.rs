//! How fast Wide & Deep and DLRM are stepped, beside a floor of what the machine must do at least.
//!
//! ```text
//! cargo run --release -p millstream-trainer --example step_speed -- [--model wide_deep] [--ids 100000] [--dim 16]
//!     [--batch 4096] [--threads 2] [--seconds 1] [--runs 5] [--json] [--wait] [--losses 0] [--rates]
//!     [--hidden 256,128,64] [--bottom 64] [--precision fp32] [--tables fp32] [--without-tiles] [--device cpu] [--record no]
//! ```
//!
//! 26 features of `ids` ids drawn from a Zipf distribution, 13 dense columns; embeddings of `dim`, layers
//! of `hidden` and 1 (DLRM's top, after layers of `bottom` and `dim`); Adagrad. Batches lie in the slots of a ring and are
//! taken from there again and again, so this is the step alone. A run takes whole passes over the batches until its
//! seconds are over.
//!
//! The floor is the matrix products' FLOPs at the rate that a library of matrix products in single precision reaches on
//! all threads (the `gemm` crate's), plus the bytes of embeddings at the bandwidth of memory, as if every distinct row of
//! a batch came from memory. Products by AMX's tiles are faster than the library's, so with them the floor is not one;
//! their own rate is told beside it. `--without-tiles` steps as a machine without AMX does. `--tables bf16` or `fp16` rounds
//! embeddings to as much, which on a GPU take half the bytes.
//!
//! `--device cuda` steps on a GPU, to which each batch is copied from the ring as in training; no floor is told.
//!
//! `--record` tells what it costs that operations may be recorded, and that they are: `no` leaves out what records
//! them, with `off` it is there and nobody looks, with `on` each run is recorded.
//!
//! For `bench/step.py`: `--json` prints a line for each thing told; `--wait` waits for a line of standard input
//! before each run, and ends at its end; `--losses N` prints the losses of the first N steps and takes no time;
//! `--rates` measures the machine alone, once a run.

#![allow(clippy::print_stdout, reason = "a measurement prints")]

use std::collections::HashSet;
use std::error::Error;
use std::io::{BufRead, stdin};
use std::num::ParseIntError;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_backend::{Activation, Backend, BatchError, Cpu, Cuda, Device, Libraries, Measured};
use millstream_batch::{BatchHeader, BatchMut, BatchSchema, IdFeature, Leased, Producer, Stream};
use millstream_trainer::init::Init;
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::{
    DeepSpec, DeviceSpec, DlrmInteraction, DlrmSpec, EmbeddingInit, EmbeddingSpec, HiddenLayerSpec,
    ModelSpec, OptimizerSpec, Pooling, Precision, TrainingSpec, WideDeepSpec, WideSpec,
};
use serde_json::json;

const CATEGORICAL: usize = 26;
const DENSE: usize = 13;
/// Examples of all batches together, so that small batches touch as many rows of the tables as large ones.
const EXAMPLES: u32 = 24 * 4096;
const ADAGRAD: OptimizerSpec =
    OptimizerSpec::Adagrad { learning_rate: 0.01, initial_accumulator: 0.1, epsilon: 1e-7, l2: 0.0 };

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    WideDeep,
    Dlrm,
}

/// Whether operations are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Record {
    No,
    Off,
    On,
}

/// The command line.
struct Options {
    kind: Kind,
    ids: u32,
    dim: u32,
    /// Layers before the last one.
    hidden: Vec<u32>,
    /// Of DLRM.
    bottom: Vec<u32>,
    batch: u32,
    threads: u32,
    seconds: f64,
    runs: usize,
    json: bool,
    wait: bool,
    losses: usize,
    rates: bool,
    device: DeviceSpec,
    record: Record,
    without_tiles: bool,
    precision: Precision,
    /// What tables of embeddings are stored in.
    tables: Precision,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let mut options = Self {
            kind: Kind::WideDeep,
            ids: 100_000,
            dim: 16,
            hidden: vec![256, 128, 64],
            bottom: vec![64],
            batch: 4096,
            threads: cores,
            seconds: 1.0,
            runs: 5,
            json: false,
            wait: false,
            losses: 0,
            rates: false,
            device: DeviceSpec::Cpu,
            record: Record::No,
            without_tiles: false,
            precision: Precision::Fp32,
            tables: Precision::Fp32,
        };
        while let Some(key) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("`{key}` needs a value"));
            match key.as_str() {
                "--model" => options.kind = kind(&value()?)?,
                "--ids" => options.ids = value()?.parse()?,
                "--dim" => options.dim = value()?.parse()?,
                "--hidden" => options.hidden = layers(&value()?)?,
                "--bottom" => options.bottom = layers(&value()?)?,
                "--batch" => options.batch = value()?.parse()?,
                "--threads" => options.threads = value()?.parse()?,
                "--seconds" => options.seconds = value()?.parse()?,
                "--runs" => options.runs = value()?.parse()?,
                "--losses" => options.losses = value()?.parse()?,
                "--precision" => options.precision = precision(&key, &value()?)?,
                "--tables" => options.tables = precision(&key, &value()?)?,
                "--json" => options.json = true,
                "--wait" => options.wait = true,
                "--rates" => options.rates = true,
                "--without-tiles" => options.without_tiles = true,
                "--record" => options.record = record(&value()?)?,
                "--device" => options.device = device(&value()?)?,
                _ => return Err(format!("unknown argument `{key}`").into()),
            }
        }
        if options.batch == 0 || options.ids == 0 || options.runs == 0 {
            return Err("`--batch`, `--ids` and `--runs` are at least 1".into());
        }
        Ok(options)
    }

    /// Calls `run` as often as asked, each time when it is asked for.
    fn each_run(&self, mut run: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
        if self.wait {
            stdin().lock().lines().try_for_each(|line| line.map_err(Into::into).and_then(|_| run()))
        } else {
            (0..self.runs).try_for_each(|_| run())
        }
    }
}

fn kind(name: &str) -> Result<Kind, String> {
    match name {
        "wide_deep" => Ok(Kind::WideDeep),
        "dlrm" => Ok(Kind::Dlrm),
        _ => Err(format!("`--model` is `{name}`; expected `wide_deep` or `dlrm`")),
    }
}

fn record(name: &str) -> Result<Record, String> {
    match name {
        "no" => Ok(Record::No),
        "off" => Ok(Record::Off),
        "on" => Ok(Record::On),
        _ => Err(format!("`--record` is `{name}`; expected `no`, `off` or `on`")),
    }
}

fn layers(widths: &str) -> Result<Vec<u32>, ParseIntError> {
    widths.split(',').map(str::parse).collect()
}

fn device(name: &str) -> Result<DeviceSpec, String> {
    name.parse().map_err(|()| format!("`--device` is `{name}`; expected {}", DeviceSpec::WRITTEN))
}

fn precision(key: &str, name: &str) -> Result<Precision, String> {
    let found = Precision::ALL.into_iter().find(|precision| precision.name() == name);
    found.ok_or_else(|| format!("`{key}` is `{name}`; expected `fp32`, `bf16` or `fp16`"))
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
        DeviceSpec::Cuda(number) => run_recorded(&options, Cuda::new(&Libraries::default(), number, None)?),
    }
}

fn run_recorded<B: Backend>(options: &Options, backend: B) -> Result<(), Box<dyn Error>> {
    let measured = |backend| Measured::new(backend, Arc::default());
    match options.record {
        Record::No => run(options, backend, &|_| ()),
        Record::Off => run(options, measured(backend), &|_| ()),
        // Each run begins anew, so that there is room for its spans.
        Record::On => run(options, measured(backend), &Measured::begin_recording),
    }
}

/// Calls `begin` before each run.
fn run<B: Backend>(options: &Options, backend: B, begin: &dyn Fn(&B)) -> Result<(), Box<dyn Error>> {
    let schema = schema(options);
    // The rivals of bench/step.py start from the same weights.
    let (precision, embedding_precision) = (options.precision, options.tables);
    let training = TrainingSpec { seed: 1, precision, embedding_precision, ..TrainingSpec::default() };
    let mut model = Model::new(backend, &spec(options), &schema, &training)?;
    let count = EXAMPLES.div_ceil(options.batch).max(options.losses as u32);
    let (mut producer, hand_off) = Producer::create(&schema, count)?;
    let mut ring = hand_off.open(&schema)?;
    let _pinned = model.pin(&ring.pages())?;
    let mut batches = Vec::new();
    for seed in 0..u64::from(count) {
        let mut slot = producer.fill()?;
        fill(&mut slot.batch(), &schema, seed);
        slot.publish();
        batches.extend(ring.next()?);
    }
    if options.losses > 0 {
        return losses(&mut model, &batches[..options.losses]);
    }
    measure(options, &mut model, &batches, begin)
}

/// Prints the mean loss of each batch, one step each.
fn losses<B: Backend>(model: &mut Model<B>, batches: &[Leased]) -> Result<(), Box<dyn Error>> {
    let step = |(batch, number): (&Leased, u64)| {
        Ok::<_, Box<dyn Error>>(model.train_step(batch.batch(), Step::number(number))?.mean())
    };
    let losses = batches.iter().zip(1..).map(step).collect::<Result<Vec<_>, _>>()?;
    println!("{}", json!({ "losses": losses }));
    Ok(())
}

fn measure<B: Backend>(
    options: &Options,
    model: &mut Model<B>,
    batches: &[Leased],
    begin: &dyn Fn(&B),
) -> Result<(), Box<dyn Error>> {
    let work = Work::of(options, batches);
    let mut steps = 0;
    let mut pass = |model: &mut Model<B>| {
        let end = |model: &mut Model<B>, ahead: usize| {
            while model.steps_begun() > ahead {
                model.end_step()?;
            }
            Ok::<_, BatchError>(())
        };
        for batch in batches {
            steps += 1;
            model.begin_step(batch.batch(), Step::number(steps))?;
            end(model, model.steps_ahead())?;
        }
        end(model, 0)
    };
    // The first pass touches memory for the first time.
    pass(model)?;
    if options.json {
        println!("{}", json!({"flops": work.flops, "bytes": work.bytes}));
    }
    let mut rates = Vec::new();
    options.each_run(|| {
        begin(model.backend());
        let (start, least) = (Instant::now(), Duration::from_secs_f64(options.seconds));
        let mut examples = 0.0;
        while start.elapsed() < least {
            pass(model)?;
            examples += batches.len() as f64 * f64::from(options.batch);
        }
        let rate = examples / start.elapsed().as_secs_f64();
        rates.push(rate);
        if options.json {
            println!("{}", json!({ "rate": rate }));
        }
        Ok(())
    })?;
    match options.device {
        _ if options.json => Ok(()),
        DeviceSpec::Cpu => report(options, &work, rates),
        DeviceSpec::Cuda(_) => {
            let Options { kind, ids, dim, batch, precision, tables, .. } = options;
            println!(
                "{kind:?} in {precision:?}, tables in {tables:?}, 26 x {ids} ids, dimension {dim}, batch {batch}, on {}",
                model.backend().describe()
            );
            rates.iter().for_each(|rate| println!("  {rate:>9.0} examples/s"));
            Ok(())
        }
    }
}

fn report(options: &Options, work: &Work, mut rates: Vec<f64>) -> Result<(), Box<dyn Error>> {
    let machine = Rates::measure(options.threads)?;
    let floor = machine.floor(work);
    rates.sort_by(f64::total_cmp);
    let Options { kind, ids, dim, batch, threads, precision, tables, .. } = options;
    println!(
        "{kind:?} in {precision:?}, tables in {tables:?}, 26 x {ids} ids, dimension {dim}, batch {batch}, {threads} threads"
    );
    println!(
        "an example takes {:.0} kFLOP and {:.1} kB; the machine does {:.0} GFLOP/s and {:.1} GB/s: floor {floor:.0}/s",
        work.flops / 1e3,
        work.bytes / 1e3,
        machine.flops / 1e9,
        machine.bytes / 1e9,
    );
    println!("products as steps make them, in fp32: {:.0} GFLOP/s", machine.fastest / 1e9);
    println!("examples/s min / median / max, and the share of the floor");
    for rate in [rates.first(), rates.get(rates.len() / 2), rates.last()].into_iter().flatten() {
        println!("  {rate:>9.0}  {:>4.0}%", 100.0 * rate / floor);
    }
    Ok(())
}

/// What an example takes at least, in the mean.
struct Work {
    flops: f64,
    bytes: f64,
}

impl Work {
    fn of(options: &Options, batches: &[Leased]) -> Self {
        let (dim, width) = (f64::from(options.dim), CATEGORICAL as f64 * f64::from(options.dim));
        // Outputs of the layers that end in the logit.
        let top = [&options.hidden[..], &[1]].concat();
        let (flops, numbers) = match options.kind {
            // Nothing learns from the input's dense columns.
            Kind::WideDeep => {
                let masked = 2.0 * DENSE as f64 * f64::from(top[0]);
                (layers_flops(width + DENSE as f64, &top) - masked, dim + 1.0)
            }
            Kind::Dlrm => {
                let vectors = 1.0 + CATEGORICAL as f64;
                let pairs = vectors * (vectors - 1.0) / 2.0;
                let bottom = [&options.bottom[..], &[options.dim]].concat();
                let masked = 2.0 * DENSE as f64 * f64::from(bottom[0]);
                let bottom = layers_flops(DENSE as f64, &bottom) - masked;
                (bottom + 6.0 * pairs * dim + layers_flops(dim + pairs, &top), dim)
            }
        };
        // A row is read for the forward pass, then it and its accumulators are read and written.
        let rows = batches.iter().map(distinct_rows).sum::<usize>() as f64;
        let rows = rows / (batches.len() as f64 * f64::from(options.batch));
        Self { flops, bytes: 5.0 * 4.0 * numbers * rows + 4.0 * (1 + DENSE + CATEGORICAL) as f64 }
    }
}

/// Forward, and twice that backward.
fn layers_flops(inputs: f64, outputs: &[u32]) -> f64 {
    let (mut inputs, mut flops) = (inputs, 0.0);
    for &outputs in outputs {
        flops += 6.0 * inputs * f64::from(outputs);
        inputs = f64::from(outputs);
    }
    flops
}

/// Rows of all tables that a batch looks up.
fn distinct_rows(leased: &Leased) -> usize {
    let batch = leased.batch();
    (0..CATEGORICAL).map(|feature| batch.ids(feature).iter().collect::<HashSet<_>>().len()).sum()
}

/// What the machine does at best, a second, on some threads.
struct Rates {
    /// Of matrix products by the library.
    flops: f64,
    /// Of matrix products as steps make them.
    fastest: f64,
    /// Of memory read and written.
    bytes: f64,
}

impl Rates {
    fn measure(threads: u32) -> Result<Self, Box<dyn Error>> {
        let (library, fastest) = (Cpu::new(Some(threads))?.without_tiles(), Cpu::new(Some(threads))?);
        Ok(Self {
            flops: products_per_second(&library),
            fastest: products_per_second(&fastest),
            bytes: bytes_per_second(threads as usize),
        })
    }

    /// Examples a second.
    fn floor(&self, work: &Work) -> f64 {
        1.0 / (work.flops / self.flops + work.bytes / self.bytes)
    }
}

/// What matrix products reach at a size that suits them, in FLOP/s.
fn products_per_second(backend: &Cpu) -> f64 {
    const N: usize = 1024;
    let (input, weights) = (backend.matrix(N, N), backend.matrix(N, N));
    let (bias, mut output) = (backend.matrix(1, N), backend.matrix(N, N));
    let best = best_of(20, || {
        backend.layer_forward(N, &input, &weights, Some(&bias), Activation::Identity, &mut output);
    });
    2.0 * (N * N * N) as f64 / best
}

/// What threads read and write together, each in memory of its own that no cache holds.
fn bytes_per_second(threads: usize) -> f64 {
    const NUMBERS: usize = 64 << 20;
    let mut memory = vec![1.0_f32; NUMBERS];
    let best = best_of(5, || {
        std::thread::scope(|scope| {
            for part in memory.chunks_mut(NUMBERS.div_ceil(threads)) {
                scope.spawn(|| part.iter_mut().for_each(|x| *x = *x * 0.5 + 1.0));
            }
        });
    });
    2.0 * 4.0 * NUMBERS as f64 / best
}

fn best_of(runs: usize, mut run: impl FnMut()) -> f64 {
    let seconds = (0..runs).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}

fn spec(options: &Options) -> ModelSpec {
    let categorical = || (0..CATEGORICAL).map(|number| format!("c{number}"));
    let features: Vec<String> = categorical().chain((0..DENSE).map(|number| format!("d{number}"))).collect();
    match options.kind {
        Kind::WideDeep => ModelSpec::WideDeep(WideDeepSpec {
            wide: WideSpec { features: categorical().collect(), optimizer: ADAGRAD },
            deep: DeepSpec {
                features,
                embedding_dim: options.dim.into(),
                embedding_init: EmbeddingInit::default(),
                embeddings: Vec::new(),
                embedding_optimizer: None,
                hidden: options.hidden.clone(),
                hidden_layer: HiddenLayerSpec::default(),
                pooling: Pooling::Mean,
                optimizer: ADAGRAD,
            },
        }),
        Kind::Dlrm => ModelSpec::Dlrm(DlrmSpec {
            features,
            embedding: EmbeddingSpec {
                dim: options.dim.into(),
                pooling: Pooling::Mean,
                init: EmbeddingInit::default(),
                tables: Vec::new(),
                optimizer: ADAGRAD,
            },
            bottom: options.bottom.clone(),
            interaction: DlrmInteraction::Dot,
            top: options.hidden.clone(),
            hidden_layer: HiddenLayerSpec::default(),
            optimizer: ADAGRAD,
        }),
    }
}

fn schema(options: &Options) -> BatchSchema {
    let feature = |number| IdFeature { name: format!("c{number}"), cardinality: options.ids };
    BatchSchema {
        rows: options.batch,
        labels: Vec::new(),
        weighted: false,
        dense: (0..DENSE).map(|number| format!("d{number}")).collect(),
        ids: (0..CATEGORICAL).map(feature).collect(),
        ragged: Vec::new(),
        position_bytes: 0,
    }
}

/// Fills a batch with random numbers; ids fall as one over their rank, scattered over the table.
fn fill(slot: &mut BatchMut<'_>, schema: &BatchSchema, seed: u64) {
    let mut numbers = Init::Uniform { limit: 0.5 }.values(seed, "batch", 0).map(|x| x + 0.5);
    let mut uniform = || numbers.next().unwrap_or_default();
    let rows = schema.rows;
    let ids = schema.ids.first().map_or(1, |feature| feature.cardinality);
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
        let rank = f64::from(ids).powf(uniform()) as u64;
        (rank.wrapping_mul(0x9e37_79b1) % u64::from(ids)) as u32
    });
}
