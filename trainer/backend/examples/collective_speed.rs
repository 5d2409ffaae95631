//! Measures collective operations between processes of this host. `bench/collective.py` starts it once per rank.
//!
//! ```text
//! cargo run --release -p millstream-backend --example collective_speed -- DIRECTORY RANK RANKS SIZE...
//! ```
//!
//! The ranks exchange their addresses in DIRECTORY, which must be empty at the start. For each SIZE in bytes, each rank
//! sums so many bytes of fp32 numbers, which travel as fp32 and as bf16, and exchanges as many, an equal part with each
//! rank. Rank 0 prints a line of JSON for each: the operation, the size, and the seconds of each repetition.

#![allow(clippy::print_stdout, reason = "a measurement prints")]

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use millstream_backend::collective::{Buffer, CollectiveError, Communicator, HostListener};
use millstream_backend::{Float, Libraries};

const LIMIT: Duration = Duration::from_secs(60);
/// Repetitions before those that count.
const WARM_UP: usize = 5;
/// The bytes that all counted repetitions of a size move, within the bounds below.
const BUDGET_BYTES: usize = 512 << 20;
const LEAST_REPETITIONS: usize = 15;
const MOST_REPETITIONS: usize = 500;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, rank, ranks, sizes @ ..] = &arguments[..] else {
        return Err("usage: collective_speed DIRECTORY RANK RANKS SIZE...".into());
    };
    let (rank, ranks) = (rank.parse()?, ranks.parse()?);
    let listener = HostListener::open(&Libraries::default())?;
    let host = listener.meet(Path::new(directory), rank, ranks, LIMIT)?;
    let communicator = Communicator::new(host, LIMIT, None)?;
    for size in sizes {
        let bytes: usize = size.parse()?;
        for (operation, wire) in [("sum", Float::F32), ("sum as bf16", Float::Bf16)] {
            let mut numbers = Some(Buffer::zeroed(bytes / size_of::<f32>()));
            measure(&communicator, operation, bytes, || {
                let passed = numbers.take().expect("the result of the repetition before");
                numbers = Some(communicator.sum::<f32>(passed, wire).join()?);
                Ok(())
            })?;
        }
        let mut parts = (0..ranks).map(|_| Buffer::<u8>::zeroed(bytes / ranks)).collect();
        measure(&communicator, "exchange", bytes, || {
            parts = communicator.exchange(std::mem::take(&mut parts)).join()?;
            Ok(())
        })?;
    }
    Ok(())
}

/// Repeats `run`, and prints its times on rank 0.
fn measure(
    communicator: &Communicator,
    operation: &str,
    bytes: usize,
    mut run: impl FnMut() -> Result<(), CollectiveError>,
) -> Result<(), CollectiveError> {
    let repetitions = (BUDGET_BYTES / bytes.max(1)).clamp(LEAST_REPETITIONS, MOST_REPETITIONS);
    for _ in 0..WARM_UP {
        run()?;
    }
    communicator.barrier().join()?;
    let mut seconds = Vec::with_capacity(repetitions);
    for _ in 0..repetitions {
        let began = Instant::now();
        run()?;
        seconds.push(began.elapsed().as_secs_f64());
    }
    if communicator.rank() == 0 {
        println!(r#"{{"operation": "{operation}", "bytes": {bytes}, "seconds": {seconds:?}}}"#);
    }
    Ok(())
}
