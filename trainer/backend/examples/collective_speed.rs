//! Measures collective operations between processes. `bench/collective.py` and `bench/collective_hosts.py` start it once per
//! rank.
//!
//! ```text
//! collective_speed [--network INTERFACE] [--repetitions LEAST] DIRECTORY RANK RANKS SIZE...
//! ```
//!
//! With a network interface, ranks in different network namespaces communicate over it, as those of different hosts do.
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
/// The most repetitions before those that count.
const WARM_UP: usize = 5;
/// The bytes that all counted repetitions of a size move, within the bounds below.
const BUDGET_BYTES: usize = 512 << 20;
const LEAST_REPETITIONS: &str = "15";
const MOST_REPETITIONS: usize = 500;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (network, arguments) = option("--network", &arguments);
    let (least, arguments) = option("--repetitions", arguments);
    let least = least.unwrap_or(LEAST_REPETITIONS).parse()?;
    let [directory, rank, ranks, sizes @ ..] = arguments else {
        return Err("wrong arguments".into());
    };
    let (rank, ranks) = (rank.parse()?, ranks.parse()?);
    let listener = HostListener::open(&Libraries::default(), network)?;
    let host = listener.meet(Path::new(directory), rank, ranks, LIMIT)?;
    let communicator = Communicator::new(host, LIMIT, None)?;
    for size in sizes {
        let bytes: usize = size.parse()?;
        for (operation, wire) in [("sum", Float::F32), ("sum as bf16", Float::Bf16)] {
            let mut numbers = Some(Buffer::zeroed(bytes / size_of::<f32>()));
            measure(&communicator, (operation, bytes), least, || {
                let passed = numbers.take().expect("the result of the repetition before");
                numbers = Some(communicator.sum::<f32>(passed, wire).join()?);
                Ok(())
            })?;
        }
        let mut parts = (0..ranks).map(|_| Buffer::<u8>::zeroed(bytes / ranks)).collect();
        measure(&communicator, ("exchange", bytes), least, || {
            parts = communicator.exchange(std::mem::take(&mut parts)).join()?;
            Ok(())
        })?;
    }
    Ok(())
}

/// The value of an option, if the arguments begin with it, and the other arguments.
fn option<'a>(name: &str, arguments: &'a [String]) -> (Option<&'a str>, &'a [String]) {
    match arguments {
        [option, value, rest @ ..] if option == name => (Some(value), rest),
        all => (None, all),
    }
}

/// Repeats `run`, and prints its times on rank 0.
fn measure(
    communicator: &Communicator,
    (operation, bytes): (&str, usize),
    least: usize,
    mut run: impl FnMut() -> Result<(), CollectiveError>,
) -> Result<(), CollectiveError> {
    let repetitions = (BUDGET_BYTES / bytes.max(1)).clamp(least, MOST_REPETITIONS);
    for _ in 0..WARM_UP.min(least) {
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
