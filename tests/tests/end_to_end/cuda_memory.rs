//! GPU memory, on a stand-in: the memory use that `check` reports, automatic batch sizes limited by it, and jobs that
//! run out of it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Stdio;

use millstream_test_cuda::StandIn;
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;

/// Needs a megabyte of activations per few hundred rows.
const MODEL: &str = "model.deep.hidden=[512, 8]";
const ON_CUDA: &str = "training.device=cuda";
const AUTO: &str = "data.batch_size=auto";
/// One epoch, because kernels run on the host.
const SHORT: &str = "data.epochs=1";

/// The memory of a small GPU: three times the cuBLASLt workspace.
const SMALL_BYTES: u64 = 96 << 20;
/// The memory of a GPU that is mostly used by the driver and other processes.
const LIMITED_BYTES: u64 = (6 << 30) / 5;

/// A host with a GPU of `memory` bytes; without one if that is 0.
struct Host {
    job: TinyJob,
    stand_in: StandIn,
    memory: u64,
}

struct Completed {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Host {
    fn of(memory: u64) -> Self {
        Self { job: TinyJob::new(), stand_in: StandIn::whole().unwrap(), memory }
    }

    fn run(&self, words: &[&str], set: &[&str]) -> Completed {
        let line: Vec<&str> =
            words.iter().copied().chain(set.iter().flat_map(|set| ["--set", set])).collect();
        let directory = self.job.directory();
        let libraries = if self.memory == 0 { Path::new("/nowhere") } else { self.stand_in.folder() };
        let mut command = Shell::new(directory).command(&line);
        command.env("MILLSTREAM_CUDA_LIBRARIES", libraries).env("CACHE_DIRECTORY", directory.join("cache"));
        command.env("MILLSTREAM_STAND_IN_MEMORY_BYTES", self.memory.to_string());
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        Completed { code: output.status.code(), stdout, stderr }
    }

    /// The document that a command prints.
    fn document(&self, command: &str, set: &[&str]) -> Value {
        let ended = self.run(&[command, "job.toml", "--json"], set);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    }

    /// The planned GPU memory use of the job with batches of `rows` rows.
    fn planned(&self, rows: u64) -> u64 {
        let rows = format!("data.batch_size={rows}");
        let gpu = &self.document("check", &[ON_CUDA, MODEL, &rows])["memory"]["gpu"];
        ["model_bytes", "workspace_bytes"].map(|part| gpu[part].as_u64().unwrap()).iter().sum()
    }
}

#[test]
fn check_reports_gpu_memory_use_and_whether_it_fits() {
    let large = Host::of(8 << 30);
    let plan = large.document("check", &[ON_CUDA]);
    let (memory, gpu) = (&plan["memory"], &plan["memory"]["gpu"]);
    assert_eq!((&gpu["number"], &gpu["memory_bytes"]), (&0.into(), &(8_u64 << 30).into()));
    assert_eq!(gpu["usable_bytes"], (7_u64 << 30) - (512 << 20));
    assert_eq!((&gpu["fits"], &memory["model_bytes"]), (&true.into(), &0.into()));
    assert!(gpu["model_bytes"].as_u64() > Some(1_000) && gpu["workspace_bytes"].as_u64() > Some(32 << 20));
    let host = ["workspace_bytes", "checkpoint_bytes"].map(|part| memory[part].as_u64().unwrap());
    assert!(host.iter().all(|bytes| (1_000..1 << 20).contains(bytes)), "{host:?}");
    let report = large.run(&["check", "job.toml"], &[ON_CUDA]).stdout;
    assert!(report.contains("of 6.5 GiB usable (8.0 GiB in total)"), "{report}");
    assert!(report.contains("GPU 0 memory") && !report.contains("does not fit"), "{report}");
    let on_cpu = large.document("check", &[]);
    assert_eq!(on_cpu["memory"]["gpu"], Value::Null);
    assert!(on_cpu["memory"]["model_bytes"].as_u64() > Some(1_000));

    let small = Host::of(LIMITED_BYTES);
    for (set, advice) in [
        (
            &["data.batch_size=16384", MODEL][..],
            "lower `data.batch_size`, or set `training.micro_batch_size`",
        ),
        (&["features.color_hash.buckets=100000000"], "smaller tables (fewer ids"),
    ] {
        let set = [&[ON_CUDA], set].concat();
        assert_eq!(small.document("check", &set)["memory"]["gpu"]["fits"], false, "{set:?}");
        let report = small.run(&["check", "job.toml"], &set).stdout;
        assert!(report.contains("does not fit") && report.contains(advice), "{advice}: {report}");
    }

    let none = Host::of(0).run(&["check", "job.toml", "--json"], &[ON_CUDA]);
    assert_eq!(none.code, Some(2), "{}", none.stderr);
    let none: Value = serde_json::from_str(&none.stdout).unwrap();
    assert!(none["gpu_problem"].as_str().unwrap().contains("cuda:0"), "{none}");
    let gpu = &none["memory"]["gpu"];
    assert!(gpu["model_bytes"].as_u64() > Some(0));
    for unknown in ["memory_bytes", "usable_bytes", "fits"] {
        assert_eq!(gpu[unknown], Value::Null, "{unknown}");
    }
}

#[test]
fn automatic_batches_are_as_large_as_the_gpu_allows() {
    let host = Host::of(LIMITED_BYTES);
    let auto = [ON_CUDA, AUTO, MODEL, SHORT];
    let plan = host.document("check", &auto);
    let (rows, found) = (plan["batch"]["rows"].as_u64().unwrap(), &plan["auto_batch"]);
    let limit = plan["memory"]["gpu"]["usable_bytes"].as_u64().unwrap();
    assert_eq!(found["gpu"]["limit_bytes"], limit);
    assert_eq!(
        found["gpu"]["limit_of"],
        "the GPU's memory, less a reserve for the driver and other programs"
    );
    let (this, twice) = (host.planned(rows), host.planned(2 * rows));
    assert_eq!(found["gpu"]["needed_bytes"], this);
    assert!(rows > 256 && this <= limit && limit < twice, "{plan:#}");
    let why = found["why_not_more"].as_str().unwrap();
    assert!(
        why.contains(&format!(
            "batches of {} rows need {:.1} MiB of GPU memory",
            2 * rows,
            twice as f64 / 1_048_576.0
        )),
        "{why}"
    );

    let ended = host.document("train", &auto);
    assert_eq!(ended["steps"], 24_000_u64.div_ceil(rows));
    let run = Path::new(ended["checkpoint"].as_str().unwrap()).parent().unwrap();
    let kept: Value = serde_json::from_slice(&fs::read(run.join("auto_batch.json")).unwrap()).unwrap();
    assert_eq!((&kept["rows"], &kept["gpu_limit_bytes"]), (&rows.into(), &limit.into()));
}

#[test]
fn an_explicit_gpu_memory_limit_works_without_a_gpu() {
    let host = Host::of(0);
    let check =
        |set: &[&str]| host.run(&["check", "job.toml", "--json"], &[&[ON_CUDA, AUTO, MODEL], set].concat());
    let ended = check(&["data.auto_batch.gpu_memory=1GiB"]);
    let plan: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(plan["auto_batch"]["gpu"]["limit_of"], "data.auto_batch.gpu_memory");
    assert_eq!(plan["batch"]["rows"], 16_384);
    for (set, message) in [
        (&[][..], "`data.auto_batch.gpu_memory` is not set: NVIDIA's driver is not on this host"),
        (&["data.auto_batch.gpu_memory=32MiB"], "of GPU memory ("),
        // The host has a memory limit, too.
        (
            &["data.auto_batch={ gpu_memory = \"1GiB\", memory = \"100MiB\" }"],
            "the memory limit of 100.0 MiB",
        ),
    ] {
        let ended = check(set);
        assert_eq!(ended.code, Some(1), "{message}");
        assert!(ended.stderr.contains(message), "{message}: {}", ended.stderr);
    }
}

#[test]
fn a_gpu_that_runs_out_of_memory_gets_smaller_batches() {
    let host = Host::of(SMALL_BYTES);
    let set = [ON_CUDA, AUTO, MODEL, SHORT, "data.auto_batch.gpu_memory=1GiB"];
    let ended = host.run(&["train", "job.toml", "--json"], &set);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let outcome: Value = serde_json::from_str(&ended.stdout).unwrap();
    let rows = 24_000_u64.div_ceil(outcome["steps"].as_u64().unwrap()).next_power_of_two();
    let mut before = 16_384;
    while before > rows {
        let message = format!("batches of {before} rows; restarts with batches of {} rows", before / 2);
        assert_eq!(ended.stderr.matches(&message).count(), 1, "{message}: {}", ended.stderr);
        before /= 2;
    }
    assert!(outcome["reason"].as_str().unwrap().contains("the GPU has too little memory for"), "{outcome}");
    // The result is the size that an accurate plan would have chosen.
    assert!(host.planned(rows) <= SMALL_BYTES && SMALL_BYTES < host.planned(2 * rows), "{rows}");
}

#[test]
fn explicit_batches_that_do_not_fit_the_gpu_fail_with_advice() {
    let host = Host::of(SMALL_BYTES);
    let ended = host.run(&["train", "job.toml", "--json"], &[ON_CUDA, MODEL, "data.batch_size=16384"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let outcome: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(outcome["state"], "failed");
    let reason = outcome["reason"].as_str().unwrap();
    for part in [
        "the GPU has too little memory for",
        "and this job already holds",
        "give the job a smaller `batch_size`, a `micro_batch_size`, or smaller tables",
    ] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert!(!reason.contains("panicked"), "{reason}");
    // With micro-batches it fits.
    let parts = [ON_CUDA, MODEL, SHORT, "data.batch_size=16384", "training.micro_batch_size=1024"];
    let ended = host.run(&["train", "job.toml", "--json"], &parts);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
