//! Measures the losses that compare the rows of lists, beside the cross-entropy of single rows.
//!
//! ```text
//! cargo run --release -p millstream-trainer --example lists -- [ROWS [THREADS [RUNS]]]
//! ```
//!
//! Prints the time of the loss and its gradient in the best run, for lists of several lengths in random order.

#![allow(clippy::print_stdout, reason = "a measurement prints")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use millstream_backend::{Backend, Cpu, Device, Loss, ops};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, SlotLayout};
use millstream_trainer::init::Init;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: u32| arguments.next().map_or(Ok(usual), |text| text.parse::<u32>());
    let (rows, threads, runs) = (number(4096)?, number(2)?, number(100)?.max(1));
    let backend = Cpu::new(Some(threads))?;
    println!("{rows} rows, {threads} threads; best of {runs} runs");
    let bce = Loss::BinaryCrossEntropy { smoothing: 0.0, positive_weight: 1.0, negative_weight: 1.0 };
    println!("cross-entropy of rows: {:.3} ms", 1e3 * loss(&backend, bce, rows, 1, runs)?);
    for length in [1, 20, 100, rows] {
        for loss_of in [Loss::Listwise { group: 0 }, Loss::Pairwise { group: 0 }] {
            let name = format!("{loss_of:?}");
            println!(
                "{name} of lists of {length}: {:.3} ms",
                1e3 * loss(&backend, loss_of, rows, length, runs)?
            );
        }
    }
    Ok(())
}

/// Seconds of the loss of `rows` rows in lists of about `length` rows.
fn loss(backend: &Cpu, loss: Loss, rows: u32, length: u32, runs: u32) -> Result<f64, Box<dyn Error>> {
    let lists = rows.div_ceil(length.max(1)).max(1);
    let schema = BatchSchema {
        rows,
        ids: vec![IdFeature { name: "list".to_owned(), cardinality: lists }],
        ..BatchSchema::default()
    };
    let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema)?));
    buffer.as_mut().set_header(&BatchHeader::train(rows));
    let mut slot = buffer.as_mut();
    let sections = slot.sections();
    let mut state = 1_u32;
    let mut draw = |bound: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % bound
    };
    sections.ids.fill_with(|| draw(lists));
    sections.labels.fill_with(|| draw(2) as f32);
    let mut batch = backend.batch(&schema);
    backend.upload(buffer.as_ref(), &mut batch)?;
    let values = Init::Uniform { limit: 2.0 }.values(1, "logits", 0).map(|x| x as f32);
    let mut logits = backend.matrix(rows as usize, 1);
    backend.write_matrix(&mut logits, &values.take(rows as usize).collect::<Vec<_>>());
    let (mut logits_grad, mut sums) = (backend.matrix(rows as usize, 1), backend.matrix(1, 2));
    let task = loss.into();
    let seconds = (0..runs).map(|_| {
        let start = Instant::now();
        backend.run(ops::TaskLoss {
            total: None,
            task: &task,
            batch: &batch,
            rows: 0..rows as usize,
            logits: &logits,
            logits_grad: &mut logits_grad,
            sums: &mut sums,
        });
        start.elapsed().as_secs_f64()
    });
    Ok(seconds.fold(f64::INFINITY, f64::min))
}
