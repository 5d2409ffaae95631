//! Datasets: a version is what was registered, jobs keep theirs, and a changed file is an error.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use millstream_test_storage::{Options, Server};
use millstream_tests::programs::{Daemon, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::table::Table;
use millstream_tests::tiny_job::TinyJob;
use rustix::process::Signal;
use serde_json::Value;

/// Adds a file of rows to the training data.
fn add_file(directory: &Path, number: u64) {
    Table::clicks(3_000, 10 + number).write_parquet(&directory.join(format!("train-{number}.parquet")));
}

/// The tiny job over the dataset `clicks` of the catalog beside it.
fn job_on_dataset() -> TinyJob {
    let job = TinyJob::new();
    let text = fs::read_to_string(job.file()).unwrap();
    let text =
        text.replace("\"train-*.parquet\"", "\"dataset://clicks\"").replace("epochs = 24", "epochs = 2");
    assert!(text.contains("dataset://clicks") && text.contains("epochs = 2\n"));
    fs::write(job.file(), text + "\n[storage]\ncatalog = \"catalog\"\n").unwrap();
    job
}

#[test]
fn jobs_keep_the_version_of_a_dataset_that_they_were_submitted_with() {
    let job = job_on_dataset();
    let directory = job.directory();
    let shell = Shell::new(directory);
    let register = ["dataset", "register", "clicks", "train-*.parquet", "--catalog", "catalog", "--json"];
    let first = shell.run(&register).with_code(0).json();
    assert_eq!((first["version"].as_u64(), first["rows"].as_u64()), (Some(1), Some(24_000)));

    let daemon = Daemon::start(directory);
    let submit = |more: &[&str]| {
        let file = job.file();
        let line = [&["submit", file.to_str().unwrap()], more].concat();
        daemon.succeeded(daemon.json(&line)["id"].as_str().unwrap())
    };
    let one = submit(&[]);
    assert_eq!(one["progress"]["examples"], 48_000);

    add_file(directory, 4);
    assert_eq!(shell.run(&register).with_code(0).json()["version"], 2);
    let two = submit(&[]);
    assert_eq!(two["progress"]["examples"], 54_000, "the new current version");
    let again = daemon.json(&["rerun", one["id"].as_str().unwrap()]);
    assert_eq!(daemon.succeeded(again["id"].as_str().unwrap())["progress"]["examples"], 48_000);
    let lineage = shell.run(&["lineage", two["directory"].as_str().unwrap()]).with_code(0).stdout;
    assert!(lineage.contains("dataset://clicks/2"), "{lineage}");

    let rollback = ["dataset", "rollback", "clicks/1", "--catalog", "catalog"];
    assert!(shell.run(&rollback).with_code(0).stdout.contains("current version of clicks is 1, was 2"));
    assert_eq!(submit(&[])["progress"]["examples"], 48_000);
    let shown = shell.run(&["dataset", "show", "clicks", "--catalog", "catalog"]).with_code(0).stdout;
    assert!(shown.contains("dataset://clicks/1, the current version, chosen 2"), "{shown}");

    add_file(directory, 0);
    let submitted = daemon.json(&["submit", job.file().to_str().unwrap()]);
    let ended = daemon.run(&["wait", submitted["id"].as_str().unwrap()]);
    let reason = String::from_utf8(ended.stderr).unwrap();
    assert!(
        reason.contains("train-0.parquet: has changed since dataset://clicks/1 was registered"),
        "{reason}"
    );
    daemon.stop();
}

#[test]
fn a_run_that_was_interrupted_resumes_with_its_version_after_another_became_current() {
    let job = job_on_dataset();
    let shell = Shell::new(job.directory());
    let register = ["dataset", "register", "clicks", "train-*.parquet", "--catalog", "catalog", "--json"];
    assert_eq!(shell.run(&register).code(), 0);
    let long = ["train", "--local", "job.toml", "--json", "--set", "data.epochs=40"];
    let running = shell.start(&long);
    wait_until("the run has a checkpoint", || {
        shell.files().iter().any(|path| path.ends_with("manifest.json"))
    });
    running.signal(Signal::INT);
    assert_eq!(running.wait().code(), 130);
    add_file(job.directory(), 4);
    assert_eq!(shell.run(&register).with_code(0).json()["version"], 2);
    let resumed = shell.run(&[&long[..], &["--resume"]].concat()).with_code(0).json();
    assert_eq!(resumed["examples"], 40 * 24_000);
}

#[test]
fn two_hosts_that_register_in_a_bucket_at_once_get_different_versions_and_a_diff_shows_the_drift() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(Options::default())).unwrap();
    let room = tempfile::tempdir().unwrap();
    let path = |name: &str| room.path().join(name).to_str().unwrap().to_owned();
    Table::clicks(3_000, 1).write_parquet(Path::new(&path("a.parquet")));
    Table::clicks(3_000, 2).write_parquet(Path::new(&path("b.parquet")));
    let shell = Shell::new(room.path());
    let catalog = ["--catalog", "gs://test/catalog", "--json"];
    let with = |line: &[&str]| {
        let mut command = shell.command(&[line, &catalog].concat());
        command.env("STORAGE_EMULATOR_HOST", server.endpoint()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let ended = |command: Child| {
        let output = command.wait_with_output().unwrap();
        assert!(output.status.success());
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let started = ["a.parquet", "b.parquet"].map(|name| with(&["dataset", "register", "clicks", name]));
    let mut versions = started.map(|running| ended(running)["version"].as_u64().unwrap());
    versions.sort_unstable();
    assert_eq!(versions, [1, 2]);
    let listed = ended(with(&["dataset", "list"]));
    assert_eq!((listed[0]["name"].as_str(), listed[0]["current"].as_u64()), (Some("clicks"), Some(2)));

    let same = ended(with(&["dataset", "diff", "clicks/1", "clicks/2"]));
    assert_eq!(
        (same["files"]["added"].as_array().unwrap().len(), same["files"]["same"].as_u64()),
        (1, Some(0))
    );
    assert!(same["columns"].as_array().unwrap().iter().all(|column| column["drift"] == "none"), "{same:#}");
    // Another distribution, and a column less.
    fs::write(path("c.csv"), (0..3_000).fold("x,color\n".to_owned(), |text, n| text + &format!("{n},red\n")))
        .unwrap();
    ended(with(&["dataset", "register", "clicks", "c.csv"]));
    let other = ended(with(&["dataset", "diff", "clicks/1", "clicks"]));
    let column = |name: &str| {
        other["columns"].as_array().unwrap().iter().find(|it| it["name"] == name).unwrap().clone()
    };
    assert_eq!(column("color")["drift"], "large");
    assert_eq!(column("clicked")["types"][1], Value::Null);
    let statistics = ended(with(&["dataset", "stats", "clicks/3"]));
    assert_eq!(statistics[0]["summary"]["numbers"]["mean"], 1499.5);
}
