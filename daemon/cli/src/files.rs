//! Work on files, with a progress bar on a terminal and cancellation by Ctrl-C.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use millstream_io::storage::{Object, Stores};
use millstream_tools::output::Destination;
use millstream_tools::progress::{Done, Progress};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::context::Context;
use crate::failure::Failure;
use crate::{figures, interrupt, progress};

/// Interval at which progress is shown and Ctrl-C is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The totals known before the work starts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Goal {
    pub(crate) files: Option<u64>,
    pub(crate) rows: Option<u64>,
}

/// The runtime for storage, and the progress of the work.
pub(crate) struct FileWork {
    runtime: Runtime,
    stores: Stores,
    progress: Arc<Progress>,
    bar: Option<ProgressBar>,
    interrupted: watch::Receiver<bool>,
}

impl FileWork {
    /// Starts the progress bar and the signal handler. The first Ctrl-C cancels the work, the second ends the process.
    pub(crate) fn start(context: &Context, label: &'static str) -> Result<Self, Failure> {
        Self::with(Stores::default(), context, label)
    }

    /// As [`FileWork::start`], on files of `stores`.
    pub(crate) fn with(stores: Stores, context: &Context, label: &'static str) -> Result<Self, Failure> {
        let runtime = Runtime::new()?;
        let interrupted = interrupt::listen_on(&runtime)?;
        let style = progress::checked("{spinner} {prefix}  {wide_msg}");
        let bar = context.screen.show(ProgressBar::no_length().with_prefix(label), style);
        Ok(Self { runtime, stores, progress: Arc::default(), bar, interrupted })
    }

    /// Lists the files that match `patterns`. A local directory or a pattern that ends in `/` matches all files in it.
    pub(crate) fn list(&self, patterns: &[String]) -> Result<Vec<Object>, Failure> {
        let patterns: Vec<String> = patterns.iter().map(|pattern| expand_directory(pattern)).collect();
        let base = std::env::current_dir()?;
        let listed = async { Ok(self.stores.list(&patterns, &base).await?) };
        self.runtime.block_on(interrupt::unless(self.interrupted.clone(), listed))
    }

    /// Runs `work`, which blocks, and removes the bar.
    pub(crate) fn run<T, E: Into<Failure>>(
        self,
        goal: Goal,
        work: impl FnOnce(&Destination, &Progress) -> Result<T, E>,
    ) -> Result<T, Failure> {
        let (progress, bar, interrupted) = (Arc::clone(&self.progress), self.bar.clone(), self.interrupted);
        let destination = Destination { stores: self.stores.clone(), runtime: self.runtime.handle().clone() };
        let started = Instant::now();
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                if *interrupted.borrow() {
                    progress.cancel();
                    // Do not wait for reads and writes in flight.
                    self.stores.cancel();
                }
                if let Some(bar) = &bar {
                    bar.set_message(status(progress.done(), goal, started.elapsed()));
                    bar.tick();
                }
            }
        });
        let result = work(&destination, &self.progress);
        // Reads in flight may remain; nothing needs their results.
        self.runtime.shutdown_background();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        result.map_err(Into::into)
    }
}

/// A directory, or a pattern that ends in `/`, as the pattern of all files in it.
pub(crate) fn expand_directory(pattern: &str) -> String {
    let is_directory = pattern.ends_with('/') || (!pattern.contains("://") && Path::new(pattern).is_dir());
    if is_directory { format!("{}/**", pattern.trim_end_matches('/')) } else { pattern.to_owned() }
}

/// `12/40 files  3,400,000 rows  512.0 MiB/1.2 GiB  80.1 MiB/s  9s left`
fn status(done: Done, goal: Goal, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-3);
    let mut parts = Vec::new();
    if let Some(files) = goal.files {
        parts.push(format!("{}/{}", figures::count(done.files.min(files)), figures::counted(files, "file")));
    }
    match goal.rows {
        Some(rows) => parts.push(format!("{}/{}", figures::count(done.rows), figures::counted(rows, "row"))),
        None if done.rows > 0 => parts.push(figures::counted(done.rows, "row")),
        None => {}
    }
    let share = if done.total_bytes > 0 {
        parts.push(format!("{}/{}", figures::bytes(done.bytes), figures::bytes(done.total_bytes)));
        parts.push(format!("{}/s", figures::bytes((done.bytes as f64 / seconds) as u64)));
        done.bytes as f64 / done.total_bytes as f64
    } else {
        parts.push(format!("{} rows/s", figures::rate(done.rows as f64 / seconds)));
        goal.rows.map_or(0.0, |rows| done.rows as f64 / rows as f64)
    };
    if share > 0.0 && share < 1.0 {
        let left = Duration::try_from_secs_f64(seconds * (1.0 - share) / share).unwrap_or(Duration::MAX);
        parts.push(format!("{} left", figures::duration(left)));
    }
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_shows_progress_and_remaining_time() {
        let done = Done { files: 3, rows: 1_000, bytes: 1 << 20, total_bytes: 4 << 20 };
        let goal = Goal { files: Some(40), rows: None };
        let wanted = "3/40 files  1,000 rows  1.0 MiB/4.0 MiB  512.0 KiB/s  6.0s left";
        assert_eq!(status(done, goal, Duration::from_secs(2)), wanted);
        let done = Done { rows: 500, ..Done::default() };
        let goal = Goal { files: None, rows: Some(1_000) };
        assert_eq!(status(done, goal, Duration::from_secs(5)), "500/1,000 rows  100 rows/s  5.0s left");
        assert_eq!(status(Done::default(), Goal::default(), Duration::ZERO), "0.0 rows/s");
    }

    #[test]
    fn directory_matches_all_files_in_it() {
        assert_eq!(expand_directory("gs://bucket/data/"), "gs://bucket/data/**");
        assert_eq!(expand_directory("gs://bucket/data"), "gs://bucket/data");
        assert_eq!(
            expand_directory(env!("CARGO_MANIFEST_DIR")),
            format!("{}/**", env!("CARGO_MANIFEST_DIR"))
        );
        assert_eq!(expand_directory("no/such/*.csv"), "no/such/*.csv");
    }
}
