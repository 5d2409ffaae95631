//! Measures cold reads and synced writes of a file in every [`Access`] mode.
//!
//! ```text
//! cargo run --release -p millstream-disk --example read_speed -- [DIRECTORY [MIB [BLOCK_KIB [DEPTH]]]]
//! ```
//!
//! The file's pages are dropped from the page cache before each read. Each round measures every mode once. Prints
//! the minimum, median and maximum over the rounds.

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use millstream_disk::{Access, AlignedBuffer, DiskFile, Queue};
use rustix::fs::{Advice, fadvise};

const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse::<usize>());
    let directory = arguments.first().map_or("target", String::as_str);
    let (bytes, block, depth) = (number(1, 1024)? << 20, number(2, 256)? << 10, number(3, 4)?);
    let path = Path::new(directory).join("read_speed.bin");
    let mut rates = vec![(Vec::new(), Vec::new()); Access::ALL.len()];
    for _ in 0..ROUNDS {
        for (access, (writes, reads)) in Access::ALL.into_iter().zip(&mut rates) {
            writes.push(bytes as f64 / 1e6 / write(&path, access, bytes, block, depth)?);
            drop_pages(&path)?;
            reads.push(bytes as f64 / 1e6 / read(&path, access, bytes, block, depth)?);
        }
    }
    std::fs::remove_file(&path)?;
    println!(
        "{} MB in blocks of {block} bytes, {depth} in flight, {ROUNDS} rounds; min / median / max MB/s",
        bytes / 1_000_000
    );
    for (access, (writes, reads)) in Access::ALL.into_iter().zip(rates) {
        let mode = format!(
            "{} {}",
            if access.ring { "io_uring" } else { "pread   " },
            if access.direct { "direct  " } else { "buffered" }
        );
        println!("{mode}  read {}  write (synced) {}", summary(reads), summary(writes));
    }
    Ok(())
}

fn summary(mut rates: Vec<f64>) -> String {
    rates.sort_by(f64::total_cmp);
    format!("{:6.0} / {:6.0} / {:6.0}", rates[0], rates[rates.len() / 2], rates[rates.len() - 1])
}

fn write(path: &Path, access: Access, bytes: usize, block: usize, depth: usize) -> std::io::Result<f64> {
    let file = Arc::new(DiskFile::new(File::create(path)?, access.direct));
    let mut queue = Queue::new(depth as u32, access.ring);
    let started = Instant::now();
    let mut buffers: Vec<AlignedBuffer> = (0..depth).map(|_| AlignedBuffer::zeroed(block)).collect();
    for offset in (0..bytes).step_by(block) {
        let mut buffer = match buffers.pop() {
            Some(buffer) => buffer,
            None => completed(&mut queue)?,
        };
        buffer.fill((offset / block) as u8 | 1);
        queue.write(&file, offset as u64, buffer, 0);
    }
    while queue.pending() > 0 {
        completed(&mut queue)?;
    }
    file.file().sync_all()?;
    Ok(started.elapsed().as_secs_f64())
}

fn read(path: &Path, access: Access, bytes: usize, block: usize, depth: usize) -> std::io::Result<f64> {
    let file = Arc::new(DiskFile::new(File::open(path)?, access.direct));
    let mut queue = Queue::new(depth as u32, access.ring);
    let started = Instant::now();
    let mut buffers: Vec<AlignedBuffer> = (0..depth).map(|_| AlignedBuffer::zeroed(block)).collect();
    let mut sum = 0_u64;
    for offset in (0..bytes).step_by(block) {
        let buffer = match buffers.pop() {
            Some(buffer) => buffer,
            None => completed(&mut queue)?,
        };
        sum += u64::from(buffer[0]);
        queue.read(&file, offset as u64, buffer, 0);
    }
    while queue.pending() > 0 {
        sum += u64::from(completed(&mut queue)?[0]);
    }
    std::hint::black_box(sum);
    Ok(started.elapsed().as_secs_f64())
}

fn completed(queue: &mut Queue) -> std::io::Result<AlignedBuffer> {
    let done = queue.wait().ok_or_else(|| std::io::Error::other("no transfer is pending"))?;
    done.result.map(|_| done.buffer)
}

fn drop_pages(path: &Path) -> std::io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}
