//! A job that takes a few seconds, with its data: long enough to be interrupted many times.

// Test support: a panic fails the test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::bucket::Bucket;
use crate::table::Table;

const FILES: u64 = 4;
const ROWS: usize = 6_000;

const JOB: &str = include_str!("../tiny_job.toml");

/// A directory with the job and its data.
pub struct TinyJob {
    directory: TempDir,
}

/// The files of a checkpoint, by name.
#[derive(PartialEq, Eq)]
pub struct Contents(BTreeMap<String, Vec<u8>>);

/// Random delays, different in each run.
pub struct RandomDelays {
    state: u64,
}

impl TinyJob {
    /// Writes the job and its data to a new directory.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn new() -> Self {
        let job = Self { directory: tempfile::tempdir().unwrap() };
        for file in 0..FILES {
            Table::clicks(ROWS, file).write_parquet(&job.directory().join(format!("train-{file}.parquet")));
        }
        Table::clicks(ROWS, FILES).write_parquet(&job.directory().join("eval.parquet"));
        fs::write(job.file(), JOB).unwrap();
        job
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The job file.
    pub fn file(&self) -> PathBuf {
        self.directory().join("job.toml")
    }
}

impl Default for TinyJob {
    fn default() -> Self {
        Self::new()
    }
}

impl Contents {
    /// Reads the checkpoint in `directory`.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(directory: impl AsRef<Path>) -> Self {
        let directory = directory.as_ref();
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let files: BTreeMap<_, _> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
            .collect();
        assert!(files.contains_key("manifest.json"), "{} is not a checkpoint", directory.display());
        Self(files)
    }

    /// The checkpoint `address` in a bucket, with the files that it has in a directory.
    ///
    /// # Panics
    /// If there is none.
    pub fn in_bucket(bucket: &Bucket, address: &str) -> Self {
        let prefix = format!("{}/", address.strip_prefix("s3://").unwrap());
        let file = |(name, bytes): (String, Vec<u8>)| match name.split_once('/') {
            Some((term, name)) if term.starts_with("term-") => (name.to_owned(), bytes),
            _ => (name, bytes),
        };
        let files: BTreeMap<_, _> = bucket.objects(&prefix).map(file).collect();
        assert!(files.contains_key("manifest.json"), "{address} is not a checkpoint");
        Self(files)
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The files without the job description, which differs between runs with different settings.
    pub fn without_job_description(mut self) -> Self {
        self.0.retain(|name, _| !matches!(name.as_str(), "job.toml" | "manifest.json"));
        self
    }

    /// Asserts equality, and reports only the names of files that differ.
    ///
    /// # Panics
    /// If any file differs.
    pub fn assert_same(&self, wanted: &Self) {
        assert_eq!(self.0.keys().collect::<Vec<_>>(), wanted.0.keys().collect::<Vec<_>>());
        let differing: Vec<_> = self.0.iter().filter(|(name, bytes)| *bytes != &wanted.0[*name]).collect();
        let differing: Vec<_> = differing.iter().map(|(name, _)| name).collect();
        assert!(differing.is_empty(), "these files differ: {differing:?}");
    }
}

impl RandomDelays {
    /// Seeds from the clock, or from `MILLSTREAM_SEED` to repeat a run; a failing test prints its seed.
    pub fn new() -> Self {
        let clock = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed =
            std::env::var("MILLSTREAM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(clock);
        // Printed only if the test fails.
        #[allow(clippy::print_stdout)]
        {
            println!("MILLSTREAM_SEED={seed}");
        }
        Self { state: seed }
    }

    /// A random delay of up to `longest`.
    pub fn next(&mut self, max: Duration) -> Duration {
        max.mul_f64(draw(&mut self.state, 1 << 20) as f64 / f64::from(1 << 20))
    }
}

impl Default for RandomDelays {
    fn default() -> Self {
        Self::new()
    }
}

/// The number of kills in a fault test: `usual`, or the value of `MILLSTREAM_KILLS`, which `tests/nightly` sets.
///
/// # Panics
/// If the variable is not a number.
pub fn kill_count(usual: u32) -> u32 {
    std::env::var("MILLSTREAM_KILLS")
        .map_or(usual, |kills| kills.parse().expect("MILLSTREAM_KILLS is a number of kills"))
}

/// The next pseudorandom number below `below`.
pub fn draw(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}
