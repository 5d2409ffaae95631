//! The memory of a GPU, on its stand-in: what `check` says that a job takes of it, batches that are as large as it lets them
//! be, and what becomes of a job that it is too little for.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Stdio;

use millstream_test_cuda::StandIn;
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;

/// A megabyte of activations for some hundred rows.
const MODEL: &str = "model.deep.hidden=[512, 8]";
const ON_CUDA: &str = "training.device=cuda";
const AUTO: &str = "data.batch_size=auto";
/// One epoch: kernels run on the host.
const SHORT: &str = "data.epochs=1";

/// What a GPU has where it has little: three times what cuBLASLt works in.
const LITTLE: u64 = 96 << 20;
/// What one has of which little is left once others have had their part.
const SOME: u64 = (6 << 30) / 5;

/// A host with a GPU of so much memory; with none where that is 0.
struct Host {
    job: TinyJob,
    stand_in: StandIn,
    memory: u64,
}

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Host {
    fn of(memory: u64) -> Self {
        Self { job: TinyJob::new(), stand_in: StandIn::whole().unwrap(), memory }
    }

    fn run(&self, words: &[&str], set: &[&str]) -> Ended {
        let line: Vec<&str> =
            words.iter().copied().chain(set.iter().flat_map(|set| ["--set", set])).collect();
        let directory = self.job.directory();
        let libraries = if self.memory == 0 { Path::new("/nowhere") } else { self.stand_in.folder() };
        let mut command = Shell::new(directory).command(&line);
        command.env("MILLSTREAM_CUDA_LIBRARIES", libraries).env("CACHE_DIRECTORY", directory.join("cache"));
        command.env("STAND_IN_MEMORY_BYTES", self.memory.to_string());
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        Ended { code: output.status.code(), stdout, stderr }
    }

    /// The document that a command prints.
    fn document(&self, command: &str, set: &[&str]) -> Value {
        let ended = self.run(&[command, "job.toml", "--json"], set);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    }

    /// What the plan of the job has of the GPU's memory, in batches of so many rows.
    fn planned(&self, rows: u64) -> u64 {
        let rows = format!("data.batch_size={rows}");
        let gpu = &self.document("check", &[ON_CUDA, MODEL, &rows])["memory"]["gpu"];
        ["model_bytes", "workspace_bytes"].map(|part| gpu[part].as_u64().unwrap()).iter().sum()
    }
}

#[test]
fn check_tells_what_a_job_takes_of_a_gpu_and_whether_it_fits() {
    let large = Host::of(8 << 30);
    let plan = large.document("check", &[ON_CUDA]);
    let (memory, gpu) = (&plan["memory"], &plan["memory"]["gpu"]);
    assert_eq!((&gpu["number"], &gpu["memory_bytes"]), (&0.into(), &(8_u64 << 30).into()));
    assert_eq!(gpu["usable_bytes"], (7_u64 << 30) - (512 << 20));
    assert_eq!((&gpu["fits"], &memory["model_bytes"]), (&true.into(), &0.into()));
    assert!(gpu["model_bytes"].as_u64() > Some(1_000) && gpu["workspace_bytes"].as_u64() > Some(32 << 20));
    let host = ["workspace_bytes", "checkpoint_bytes"].map(|part| memory[part].as_u64().unwrap());
    assert!(host.iter().all(|bytes| (1_000..1 << 20).contains(bytes)), "{host:?}");
    let told = large.run(&["check", "job.toml"], &[ON_CUDA]).stdout;
    assert!(told.contains("of 6.5 GiB, which others leave of 8.0 GiB"), "{told}");
    assert!(told.contains("memory of GPU 0") && !told.contains("does not fit"), "{told}");
    let on_cpu = large.document("check", &[]);
    assert_eq!(on_cpu["memory"]["gpu"], Value::Null);
    assert!(on_cpu["memory"]["model_bytes"].as_u64() > Some(1_000));

    let small = Host::of(SOME);
    for (set, advice) in [
        (
            &["data.batch_size=16384", MODEL][..],
            "a smaller `data.batch_size`, or a `training.micro_batch_size`",
        ),
        (&["features.color_hash.buckets=100000000"], "smaller tables (fewer ids"),
    ] {
        let set = [&[ON_CUDA], set].concat();
        assert_eq!(small.document("check", &set)["memory"]["gpu"]["fits"], false, "{set:?}");
        let told = small.run(&["check", "job.toml"], &set).stdout;
        assert!(told.contains("does not fit") && told.contains(advice), "{advice}: {told}");
    }

    let none = Host::of(0).document("check", &[ON_CUDA]);
    let gpu = &none["memory"]["gpu"];
    assert!(gpu["model_bytes"].as_u64() > Some(0));
    for unknown in ["memory_bytes", "usable_bytes", "fits"] {
        assert_eq!(gpu[unknown], Value::Null, "{unknown}");
    }
}

#[test]
fn batches_are_as_large_as_a_gpu_lets_them_be() {
    let host = Host::of(SOME);
    let auto = [ON_CUDA, AUTO, MODEL, SHORT];
    let plan = host.document("check", &auto);
    let (rows, found) = (plan["batch"]["rows"].as_u64().unwrap(), &plan["auto_batch"]);
    let limit = plan["memory"]["gpu"]["usable_bytes"].as_u64().unwrap();
    assert_eq!(found["gpu"]["limit_bytes"], limit);
    assert_eq!(found["gpu"]["limit_of"], "the GPU's memory, less what the driver and others may take");
    let (this, twice) = (host.planned(rows), host.planned(2 * rows));
    assert_eq!(found["gpu"]["needed_bytes"], this);
    assert!(rows > 256 && this <= limit && limit < twice, "{plan:#}");
    let why = found["why_not_more"].as_str().unwrap();
    assert!(why.contains(&format!("batches of {} rows take {twice} bytes of the GPU", 2 * rows)), "{why}");

    let ended = host.document("train", &auto);
    assert_eq!(ended["steps"], 24_000_u64.div_ceil(rows));
    let run = Path::new(ended["checkpoint"].as_str().unwrap()).parent().unwrap();
    let kept: Value = serde_json::from_slice(&fs::read(run.join("auto_batch.json")).unwrap()).unwrap();
    assert_eq!((&kept["rows"], &kept["gpu_limit_bytes"]), (&rows.into(), &limit.into()));
}

#[test]
fn a_job_may_say_what_it_is_to_take_of_a_gpu_that_is_not_there() {
    let host = Host::of(0);
    let check =
        |set: &[&str]| host.run(&["check", "job.toml", "--json"], &[&[ON_CUDA, AUTO, MODEL], set].concat());
    let said = check(&["data.auto_batch.gpu_memory=1GiB"]);
    let plan: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(plan["auto_batch"]["gpu"]["limit_of"], "data.auto_batch.gpu_memory");
    assert_eq!(plan["batch"]["rows"], 16_384);
    for (set, told) in [
        (&[][..], "`data.auto_batch.gpu_memory` does not say: NVIDIA's driver is not on this host"),
        (&["data.auto_batch.gpu_memory=32MiB"], "bytes of the GPU"),
        // The host has a limit, too.
        (
            &["data.auto_batch={ gpu_memory = \"1GiB\", memory = \"100MiB\" }"],
            "of a memory limit of 104857600 bytes",
        ),
    ] {
        let ended = check(set);
        assert_eq!(ended.code, Some(1), "{told}");
        assert!(ended.stderr.contains(told), "{told}: {}", ended.stderr);
    }
}

#[test]
fn a_gpu_that_has_too_little_memory_after_all_gets_smaller_batches() {
    let host = Host::of(LITTLE);
    let set = [ON_CUDA, AUTO, MODEL, SHORT, "data.auto_batch.gpu_memory=1GiB"];
    let ended = host.run(&["train", "job.toml", "--json"], &set);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let outcome: Value = serde_json::from_str(&ended.stdout).unwrap();
    let rows = 24_000_u64.div_ceil(outcome["steps"].as_u64().unwrap()).next_power_of_two();
    let mut before = 16_384;
    while before > rows {
        let told = format!("batches of {before} rows; begins again with batches of {} rows", before / 2);
        assert_eq!(ended.stderr.matches(&told).count(), 1, "{told}: {}", ended.stderr);
        before /= 2;
    }
    assert!(outcome["reason"].as_str().unwrap().contains("the GPU has too little memory for"), "{outcome}");
    // It came to what a plan that had known would have said.
    assert!(host.planned(rows) <= LITTLE && LITTLE < host.planned(2 * rows), "{rows}");
}

#[test]
fn batches_of_a_given_size_that_a_gpu_has_no_room_for_are_refused_with_advice() {
    let host = Host::of(LITTLE);
    let ended = host.run(&["train", "job.toml", "--json"], &[ON_CUDA, MODEL, "data.batch_size=16384"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let outcome: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(outcome["state"], "failed");
    let reason = outcome["reason"].as_str().unwrap();
    for part in [
        "the GPU has too little memory for",
        "that this job has of it",
        "give the job a smaller `batch_size`, a `micro_batch_size`, or smaller tables",
    ] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert!(!reason.contains("panicked"), "{reason}");
    // In parts it fits.
    let parts = [ON_CUDA, MODEL, SHORT, "data.batch_size=16384", "training.micro_batch_size=1024"];
    let ended = host.run(&["train", "job.toml", "--json"], &parts);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
