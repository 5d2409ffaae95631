//! A small job with its data, an in-process daemon, and helpers to inspect the results.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use millstream_control::proto::{JobState, ScoreRequest, SubmitRequest};
use millstream_daemon::config::{Config, Limits, Settings, StateLocation, WorkerProgram};
use millstream_daemon::daemon::Daemon;
use millstream_daemon::state::JobRecord;
use millstream_io::storage::Directory;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

/// Generous: longer than any wait on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) const TRAIN_ROWS: usize = 4 * 6_000;
pub(crate) const EVAL_ROWS: usize = 3_000;
pub(crate) const EPOCHS: u64 = 24;
const ROW_GROUP: usize = 1_000;

/// A directory with a job file and its data.
pub(crate) struct Workspace {
    directory: tempfile::TempDir,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        let workspace = Self { directory: tempfile::tempdir().unwrap() };
        for file in 0..4 {
            write_parquet(&workspace.path(&format!("train-{file}.parquet")), file, TRAIN_ROWS / 4, None);
        }
        write_parquet(&workspace.path("eval.parquet"), 9, EVAL_ROWS, None);
        workspace
    }

    /// The path of a file in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Rewrites a training file with a NaN in one record.
    pub(crate) fn spoil(&self, file: usize, record: usize) {
        write_parquet(
            &self.path(&format!("train-{file}.parquet")),
            file as u64,
            TRAIN_ROWS / 4,
            Some(record),
        );
    }

    /// A daemon with its state in memory.
    pub(crate) fn daemon(&self) -> Daemon {
        self.daemon_with(StateLocation::Memory, Path::new(env!("CARGO_BIN_EXE_millstreamd")))
    }

    pub(crate) fn daemon_with(&self, state: StateLocation, worker: &Path) -> Daemon {
        Daemon::start(Config { state, worker: worker.into(), ..Config::embedded() }).unwrap()
    }

    /// A daemon with these limits, and its state in memory.
    pub(crate) fn daemon_within(&self, limits: Limits) -> Daemon {
        let worker = WorkerProgram::from(env!("CARGO_BIN_EXE_millstreamd"));
        let embedded = Config::embedded();
        let settings = Settings { limits, ..embedded.settings };
        Daemon::start(Config { settings, worker, ..embedded }).unwrap()
    }

    /// A daemon with persistent state. Waits for the last threads of the one before, or for a worker that another test has
    /// forked meanwhile and that has inherited its lock.
    pub(crate) fn lasting_daemon(&self) -> Daemon {
        let worker = WorkerProgram::from(env!("CARGO_BIN_EXE_millstreamd"));
        let state = StateLocation::Directory(self.path("state"));
        let config = Config { state, worker, ..Config::embedded() };
        let began = Instant::now();
        loop {
            match Daemon::start(config.clone()) {
                Ok(daemon) => return daemon,
                Err(error) => assert!(began.elapsed() < TIMEOUT, "{error:#}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn request(&self) -> SubmitRequest {
        let path = self.path("job.toml").to_str().unwrap().to_owned();
        SubmitRequest { text: JOB.to_owned(), path, ..SubmitRequest::default() }
    }

    /// A request to score with the newest checkpoint of `target`.
    pub(crate) fn score(&self, target: &str, data: &[&str]) -> ScoreRequest {
        let base = self.path("").to_str().unwrap().to_owned();
        let data = data.iter().map(|&pattern| pattern.to_owned()).collect();
        ScoreRequest { target: target.to_owned(), data, base, ..ScoreRequest::default() }
    }

    pub(crate) async fn submit(&self, daemon: &Daemon) -> JobRecord {
        daemon.submit(self.request()).await.unwrap()
    }

    pub(crate) async fn resume(&self, daemon: &Daemon) -> JobRecord {
        daemon.submit(SubmitRequest { resume: true, ..self.request() }).await.unwrap()
    }

    /// The final checkpoint of an undisturbed run.
    pub(crate) async fn undisturbed(&self) -> BTreeMap<String, Vec<u8>> {
        let daemon = self.daemon();
        let job = self.submit(&daemon).await;
        let job = ended(&daemon, &job.id).await;
        assert_eq!((job.state, job.reason.as_str(), job.attempts), (JobState::Succeeded, "", 1));
        contents(local(job.checkpoint.as_ref().unwrap()))
    }
}

pub(crate) const JOB: &str = include_str!("../../../tests/tiny_job.toml");

/// The path of a local directory.
pub(crate) fn local(directory: &Directory) -> &Path {
    directory.as_local().unwrap()
}

/// Waits until a job ends.
pub(crate) async fn ended(daemon: &Daemon, id: &str) -> JobRecord {
    reaches(daemon, id, |job| job.state.is_final()).await
}

/// Waits until a job's record satisfies `wanted`, or the job ends.
pub(crate) async fn reaches(daemon: &Daemon, id: &str, wanted: impl Fn(&JobRecord) -> bool) -> JobRecord {
    let mut watch = daemon.watch(id).unwrap();
    let reached = watch.wait_for(|job| wanted(job) || job.state.is_final());
    match tokio::time::timeout(TIMEOUT, reached).await {
        Ok(Ok(record)) => record.clone(),
        Ok(Err(_)) => daemon.show(id).unwrap(),
        Err(_) => panic!("{id} hangs: {:?}, log {:#?}", daemon.show(id), daemon.logs(id, 0)),
    }
}

/// Waits until a job is prepared and waits for another one. Returns why.
pub(crate) async fn waits(daemon: &Daemon, id: &str) -> String {
    reaches(daemon, id, |job| job.state == JobState::Queued && !job.waits_for.is_empty()).await.waits_for
}

/// The contents of all files in `directory`, by name.
pub(crate) fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files: BTreeMap<_, _> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap()))
        .collect();
    assert!(files.contains_key("manifest.json"), "{directory:?} is a checkpoint");
    files
}

/// Asserts equal files; on failure names those that differ.
pub(crate) fn assert_same(got: &BTreeMap<String, Vec<u8>>, wanted: &BTreeMap<String, Vec<u8>>) {
    assert_eq!(got.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    let differing: Vec<_> =
        wanted.iter().filter(|(name, bytes)| &got[*name] != *bytes).map(|(name, _)| name).collect();
    assert!(differing.is_empty(), "these files differ: {differing:?}");
}

/// The process id of the worker that trains in `directory`: another process that has its lock open.
pub(crate) fn worker_in(directory: &Path) -> Option<i32> {
    let own = std::process::id() as i32;
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| pid != own).find(|pid| {
        let lock = directory.join("lock");
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == lock))
    })
}

/// Kills the worker that trains in `directory`; returns false if there is none.
pub(crate) fn kill_worker(directory: &Path) -> bool {
    use rustix::process::{Pid, Signal, kill_process};
    let worker = worker_in(directory).and_then(Pid::from_raw);
    worker.is_some_and(|worker| kill_process(worker, Signal::KILL).is_ok())
}

fn write_parquet(path: &Path, seed: u64, rows: usize, spoiled: Option<usize>) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let colors: Vec<u64> = (0..rows).map(|_| draw(20)).collect();
    let mut numbers: Vec<f64> = (0..rows).map(|_| draw(1000) as f64 / 100.0).collect();
    let labels =
        colors.iter().zip(&numbers).map(|(&color, &x)| i64::from(color as f64 + x + draw(10) as f64 > 19.0));
    let labels = Int64Array::from_iter_values(labels);
    if let Some(record) = spoiled {
        numbers[record] = f64::NAN;
    }
    let colors = StringArray::from_iter_values(colors.iter().map(|color| format!("color {color}")));
    let columns: [(&str, ArrayRef); 3] = [
        ("x", Arc::new(Float64Array::from(numbers))),
        ("color", Arc::new(colors)),
        ("clicked", Arc::new(labels)),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(ROW_GROUP)).build();
    let file = fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}
