//! What a model came from, and running a job again from its record.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use millstream_tests::programs::{Daemon, wait_until};
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;

/// Waits until the job has ended, and returns its record.
fn ended(daemon: &Daemon, id: &str) -> Value {
    wait_until("the job has ended", || daemon.show(id)["ended_ms"].is_u64());
    daemon.show(id)
}

fn parameters(job: &Value) -> Vec<u8> {
    fs::read(Path::new(job["checkpoint"].as_str().unwrap()).join("model.safetensors")).unwrap()
}

#[test]
fn a_job_runs_again_from_its_record_with_the_same_bits_and_its_lineage_says_so() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let file = job.file();
    let submit = |words: &[&str]| daemon.json(words)["id"].as_str().unwrap().to_owned();
    let first = submit(&["submit", file.to_str().unwrap(), "--set", "data.epochs=2"]);
    let first_job = ended(&daemon, &first);
    assert_eq!(first_job["state"], "succeeded");

    // The record suffices.
    fs::remove_file(&file).unwrap();
    let again = submit(&["rerun", &first]);
    let again_job = ended(&daemon, &again);
    assert_eq!(again_job["state"], "succeeded", "{again_job:#}");
    assert_ne!(again_job["directory"], first_job["directory"]);
    assert!(parameters(&again_job) == parameters(&first_job), "the same bits");

    let one = daemon.json(&["lineage", &first]);
    let other = daemon.json(&["lineage", &again]);
    assert_eq!(one["origins"], Value::Array(Vec::new()));
    for same in ["/job/fingerprint", "/job/features_fingerprint", "/train/sha256", "/checkpoint/model_sha256"]
    {
        assert!(one.pointer(same).unwrap().is_string(), "{one:#}");
        assert_eq!(one.pointer(same), other.pointer(same), "{same}");
    }
    assert_eq!(other["origins"][0]["relation"], "repeats");
    assert_eq!(other["origins"][0]["run"]["id"], *first);
    assert_eq!(one["checkpoint"]["millstream"], env!("CARGO_PKG_VERSION"));
    assert_eq!(one["train"]["files"], 4);

    let changed = submit(&["rerun", &first, "--set", "seed=12"]);
    let changed_job = ended(&daemon, &changed);
    assert!(parameters(&changed_job) != parameters(&first_job));
    let lineage = daemon.json(&["lineage", changed_job["checkpoint"].as_str().unwrap()]);
    assert_ne!(lineage["job"]["fingerprint"], one["job"]["fingerprint"]);
    assert_eq!(lineage["train"]["sha256"], one["train"]["sha256"]);
    daemon.stop();
}

#[test]
fn a_job_does_not_run_again_on_changed_files_and_a_lost_run_is_no_error() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let file = job.file();
    let first = daemon.json(&["submit", file.to_str().unwrap(), "--set", "data.epochs=1"])["id"].clone();
    let first = first.as_str().unwrap();
    let first_job = ended(&daemon, first);

    let train = job.directory().join("train-0.parquet");
    let bytes = fs::read(&train).unwrap();
    fs::remove_file(&train).unwrap();
    fs::write(&train, bytes).unwrap();
    let again = daemon.json(&["rerun", first])["id"].as_str().unwrap().to_owned();
    let failed = ended(&daemon, &again);
    assert_eq!(failed["state"], "failed");
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("train-0.parquet") && reason.contains("changed"), "{reason}");

    let unknown = daemon.run(&["rerun", "none-such"]);
    assert_eq!(unknown.status.code(), Some(1));
    let empty = daemon.run(&["rerun", job.directory().to_str().unwrap()]);
    let message = String::from_utf8_lossy(&empty.stderr).into_owned();
    assert!(message.contains("cannot be repeated"), "{message}");

    // Listed anew, it runs, and its lineage is known even after the first run is gone.
    let line = ["rerun", first, "--set", "data.train=[\"train-0.parquet\"]", "--set", "training.threads=1"];
    let fewer = daemon.json(&line)["id"].as_str().unwrap().to_owned();
    assert_eq!(ended(&daemon, &fewer)["state"], "succeeded");
    fs::remove_dir_all(first_job["directory"].as_str().unwrap()).unwrap();
    let picture = job.directory().join("lineage.svg");
    let shown = daemon.run(&["lineage", &fewer, "--svg", picture.to_str().unwrap()]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.starts_with(&format!("{fewer} at step ")), "{text}");
    assert!(text.contains("\n  repeats ") && text.contains("is not the directory of a run"), "{text}");
    assert!(fs::read_to_string(picture).unwrap().contains("<path "));
    daemon.stop();
}
