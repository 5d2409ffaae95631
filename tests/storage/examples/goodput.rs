//! The throughput under failing requests: `cargo run --release -p millstream-test-storage --example goodput`.
//!
//! A server with 5 ms latency and 400 MB/s of total bandwidth fails 0, 1, 5 and 20 % of the reads (503, 500, connection
//! reset, truncated body). 16 objects of 8 MiB are read completely, 8 at a time, in five alternating rounds.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use millstream_io::storage::{StorageSpec, Stores};
use millstream_test_storage::{Options, Server};

const OBJECTS: usize = 16;
const BYTES: usize = 8 << 20;
const ROUNDS: usize = 5;
const FAILING_PER_MILLE: [u32; 4] = [0, 10, 50, 200];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut servers = Vec::new();
    for failing_per_mille in FAILING_PER_MILLE {
        let options = Options {
            latency: Duration::from_millis(5),
            bytes_per_second: Some(400_000_000),
            failing_per_mille,
            ..Options::default()
        };
        let server = Server::start(options).await?;
        (0..OBJECTS).for_each(|at| server.put(&format!("b/{at:02}"), vec![at as u8; BYTES]));
        servers.push((failing_per_mille, server, Vec::new(), [0; 3]));
    }
    for _ in 0..ROUNDS {
        for (_, server, rates, counts) in &mut servers {
            let mut spec = StorageSpec::default();
            spec.gs.endpoint = Some(server.endpoint());
            spec.gs.anonymous = Some(true);
            let stores = Stores::new(spec, 0);
            let objects = stores.list(&["gs://b/*".to_owned()], Path::new("/")).await?;
            let started = Instant::now();
            let reads = objects.iter().map(|object| object.read(0..object.size()));
            let read: Vec<_> = futures::stream::iter(reads).buffered(8).try_collect().await?;
            let bytes: usize = read.iter().map(|bytes| bytes.len()).sum();
            rates.push(bytes as f64 / 1e6 / started.elapsed().as_secs_f64());
            let stats = stores.stats();
            let seen = [stats.requests, stats.retries, stats.hedges];
            counts.iter_mut().zip(seen).for_each(|(count, seen)| *count += seen);
        }
    }
    println!("| failing | MB/s min | median | max | requests | retries | hedged requests |");
    println!("|---|---|---|---|---|---|---|");
    for (failing_per_mille, _, rates, [requests, retries, hedges]) in &mut servers {
        rates.sort_by(f64::total_cmp);
        let [low, middle, high] = [rates[0], rates[ROUNDS / 2], rates[ROUNDS - 1]];
        let percent = f64::from(*failing_per_mille) / 10.0;
        println!("| {percent} % | {low:.0} | {middle:.0} | {high:.0} | {requests} | {retries} | {hedges} |");
    }
    Ok(())
}
