//! Measures the speed of the losses of two-tower models, compared with their matrix products.
//!
//! ```text
//! cargo run --release -p millstream-trainer --example in_batch_loss -- [--dim 64] [--threads 2] [--runs 30]
//! ```
//!
//! For batches of 1024 and 4096 rows, loss and gradients need `6 B^2 W` floating-point operations in matrix
//! products. Prints their rate in the best run, and the rate of one matrix product with as many operations,
//! whose shape suits the kernels.

#![allow(clippy::print_stdout, reason = "a measurement prints")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use millstream_backend::{Activation, Backend, Choice, Cpu, Device, InBatchInput, ops};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, SlotLayout, Stream};
use millstream_trainer::init::Init;

/// The command line.
struct Options {
    dim: usize,
    threads: u32,
    runs: usize,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let mut options = Self { dim: 64, threads, runs: 30 };
        while let Some(key) = arguments.next() {
            let value = arguments.next().ok_or(format!("`{key}` needs a value"))?;
            match key.as_str() {
                "--dim" => options.dim = value.parse()?,
                "--threads" => options.threads = value.parse()?,
                "--runs" => options.runs = value.parse::<usize>()?.max(1),
                _ => return Err(format!("unknown argument `{key}`").into()),
            }
        }
        Ok(options)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    let backend = Cpu::new(Some(options.threads))?;
    let Options { dim, threads, runs } = options;
    println!("dimension {dim}, {threads} threads; best of {runs} runs");
    for rows in [1024, 4096] {
        let choices = [Choice::Softmax, Choice::Pairwise];
        for (choice, item_id) in choices.into_iter().flat_map(|choice| [(choice, None), (choice, Some(0))]) {
            let seconds = loss(&backend, rows, dim, (choice, item_id), runs)?;
            let flops = 6.0 * (rows * rows * dim) as f64;
            let best = 2.0 * (1024 * 1024 * 1024) as f64 / product(&backend, 1024, runs);
            println!(
                "batch {rows}, {choice:?}, {}: {:.2} ms, {:.0} GFLOP/s, {:.0}% of the {:.0} GFLOP/s of a matrix product",
                if item_id.is_some() { "of ids" } else { "without ids" },
                1e3 * seconds,
                flops / seconds / 1e9,
                100.0 * flops / seconds / best,
                best / 1e9,
            );
        }
    }
    Ok(())
}

fn loss(
    backend: &Cpu,
    rows: usize,
    dim: usize,
    (choice, item_id): (Choice, Option<usize>),
    runs: usize,
) -> Result<f64, Box<dyn Error>> {
    let schema = BatchSchema {
        rows: u32::try_from(rows)?,
        weighted: false,
        labels: Vec::new(),
        dense: Vec::new(),
        ids: vec![IdFeature { name: "item".to_owned(), cardinality: 1_000_000 }],
        ragged: Vec::new(),
        columns: Vec::new(),
        position_bytes: 0,
    };
    let mut batch = backend.batch(&schema);
    backend.upload(filled(&schema)?.as_ref(), &mut batch)?;
    let matrix = |name| {
        let mut matrix = backend.matrix(rows, dim);
        let values = Init::Uniform { limit: 0.25 }.values(1, name, 0).map(|x| x as f32);
        backend.write_matrix(&mut matrix, &values.take(rows * dim).collect::<Vec<_>>());
        matrix
    };
    let (queries, items) = (matrix("queries"), matrix("items"));
    let (mut query_grad, mut item_grad, mut sums) = (matrix("a"), matrix("b"), backend.matrix(1, 2));
    let mut work = backend.in_batch_work(rows, rows, dim);
    let input = InBatchInput {
        batch: &batch,
        rows: 0..rows,
        queries: &queries,
        items: &items,
        temperature: 0.125,
        choice,
        item_id,
    };
    Ok(best_of(runs, || {
        backend.run(ops::InBatchLoss {
            input: &input,
            work: &mut work,
            query_grad: &mut query_grad,
            item_grad: &mut item_grad,
            sums: &mut sums,
        });
    }))
}

/// A batch of positive rows.
fn filled(schema: &BatchSchema) -> Result<BatchBuffer, Box<dyn Error>> {
    let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(schema)?));
    let mut slot = buffer.as_mut();
    slot.set_header(&BatchHeader {
        stream: Stream::Train,
        epoch: 0,
        batch: 0,
        rows: schema.rows,
        global_rows: schema.rows,
        first_row: 0,
        most_rows: schema.rows,
        last: false,
    });
    let sections = slot.sections();
    sections.labels.fill(1.0);
    let mut id = 0_u32;
    sections.ids.fill_with(|| {
        id = id.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        id % 1_000_000
    });
    Ok(buffer)
}

/// Seconds of a product of two square matrices.
fn product(backend: &Cpu, n: usize, runs: usize) -> f64 {
    let (input, weights, mut output) = (backend.matrix(n, n), backend.matrix(n, n), backend.matrix(n, n));
    best_of(runs, || {
        backend.run(ops::LayerForward {
            rows: n,
            input: &input,
            weights: &weights,
            bias: None,
            activation: Activation::Identity,
            output: &mut output,
        });
    })
}

fn best_of(runs: usize, mut run: impl FnMut()) -> f64 {
    let seconds = (0..runs).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}
