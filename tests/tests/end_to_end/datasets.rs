//! Datasets: a version is what was registered, jobs keep theirs, and a changed file is an error.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use millstream_test_storage::{Options, Server};
use millstream_tests::programs::{Daemon, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::table::Table;
use millstream_tests::tiny_job::{Contents, TinyJob};
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
    let line = ["dataset", "stats", "clicks/3", "--against", "clicks/1", "--html", "drift.html"];
    let compared = ended(with(&line));
    let color = compared.as_array().unwrap().iter().find(|it| it["name"] == "color").unwrap();
    assert_eq!((&color["drift"], &color["summaries"][1]["distinct"]), (&"large".into(), &1.into()));
    assert_eq!(color["summaries"][0]["distinct"], 20);
    let page = fs::read_to_string(path("drift.html")).unwrap();
    assert!(page.contains("<h2>color: large, PSI ") && page.contains("<h2>color in dataset://clicks/1</h2>"));
    assert!(page.contains("<h2>x: ") && page.contains("<h2>clicked in dataset://clicks/1</h2>"));
}

/// The rows of each split of a version.
fn split_rows(registered: &Value) -> BTreeMap<String, u64> {
    let splits = registered["division"]["splits"].as_array().unwrap();
    splits
        .iter()
        .map(|split| (split["name"].as_str().unwrap().to_owned(), split["rows"].as_u64().unwrap()))
        .collect()
}

#[test]
fn a_job_over_splits_has_the_bits_of_one_with_explicit_filters() {
    let job = job_on_dataset();
    let shell = Shell::new(job.directory());
    let register = |name: &str, more: &[&str]| {
        let line =
            [&["dataset", "register", name, "train-*.parquet", "--catalog", "catalog", "--json"], more];
        split_rows(&shell.run(&line.concat()).with_code(0).json())
    };
    let train = |set: &[&str]| {
        let set = set.iter().flat_map(|set| ["--set", set]);
        shell
            .run(&["train", "job.toml", "--json"].into_iter().chain(set).collect::<Vec<_>>())
            .with_code(0)
            .json()
    };
    let weights =
        |outcome: &Value| Contents::of(outcome["checkpoint"].as_str().unwrap()).without_job_description();
    let files = "data.train=[\"train-*.parquet\"]";
    let cases = [
        (
            "hashed",
            ["--split", "train=80,validation=20", "--split-by", "x"],
            vec!["data.eval=[]", "data.validation={ fraction = 0.2, column = \"x\", seed = 495807392116 }"],
        ),
        (
            "ranges",
            ["--split", "train=..6.5,validation=6.5..8,test=8..", "--split-by-time", "x"],
            vec![
                "data.eval=[\"train-*.parquet\"]",
                "data.train_filter=[{ column = \"x\", op = \"<\", value = 6.5 }]",
                "data.eval_filter=[{ column = \"x\", op = \">=\", value = 6.5 }, { column = \"x\", op = \"<\", value = 8 }]",
            ],
        ),
    ];
    for (name, how, explicit) in cases {
        let rows = register(name, &how);
        assert_eq!(rows.values().sum::<u64>(), 24_000, "{rows:?}");
        assert!(rows.values().all(|&rows| rows > 0), "{rows:?}");
        let filtered = train(&[&[files], &explicit[..]].concat());
        let of_train = format!("data.train=[\"dataset://{name}/1#train\"]");
        let of_validation = format!("data.eval=[\"dataset://{name}#validation\"]");
        let named = [of_train.as_str(), of_validation.as_str()];
        let split = train(&named);
        assert_eq!(split["examples"].as_u64(), Some(2 * rows["train"]));
        assert_eq!(split["eval"]["examples"].as_u64(), Some(rows["validation"]));
        weights(&split).assert_same(&weights(&filtered));
        assert_eq!(split["eval"], filtered["eval"]);
        let cache = "data.cache={ directory = \"cache\", max_bytes = \"1GiB\" }";
        let cached = train(&[&named[..], &[cache]].concat());
        weights(&cached).assert_same(&weights(&filtered));
        assert_eq!(train(&[&named[..], &["data.lanes=3"]].concat())["examples"], split["examples"]);

        let checkpoint = split["checkpoint"].as_str().unwrap();
        let eval = |data: &str| shell.run(&["eval", checkpoint, data, "--json"]).with_code(0).json();
        assert_eq!(eval(&format!("dataset://{name}/1#validation"))["auc"], split["eval"]["auc"]);
        assert_eq!(eval(&format!("dataset://{name}#train"))["examples"].as_u64(), Some(rows["train"]));
        let weighted = format!("data.train=[{{ files = \"dataset://{name}#train\", weight = 2 }}]");
        let twice = train(&[weighted.as_str(), of_validation.as_str(), "data.epochs=1"]);
        assert_eq!(twice["examples"].as_u64(), Some(2 * rows["train"]));
    }
}

#[test]
fn splits_are_shown_compared_and_frozen_and_mistakes_say_what_to_do() {
    let job = job_on_dataset();
    let shell = Shell::new(job.directory());
    let run = |more: &[&str]| shell.run(&[&["dataset"], more, &["--catalog", "catalog"]].concat());
    let register = ["register", "clicks", "train-*.parquet", "--split", "train=90,test=10"];
    assert!(run(&register).with_code(0).stdout.contains("\ntest   10 %   "));
    assert!(run(&register).with_code(0).stdout.contains("has these files and splits already"));
    let by_color = [&register[..], &["--split-by", "color"]].concat();
    assert!(run(&by_color).with_code(0).stdout.contains("registered dataset://clicks/2"));
    let shown = run(&["show", "clicks"]).with_code(0).stdout;
    assert!(shown.contains("by the hash of color, seed ") && shown.contains("\ntrain  90 %"), "{shown}");
    assert!(run(&["list"]).with_code(0).stdout.contains("train, test"));
    let compared = run(&["diff", "clicks/1", "clicks/2"]).with_code(0).stdout;
    assert!(
        compared.contains("by the hash of the row's place") && compared.contains("; now train 90 %"),
        "{compared}"
    );
    let pinned =
        shell.run(&["train", "job.toml", "--json", "--set", "data.train=[\"dataset://clicks#train\"]"]);
    let checkpoint = pinned.with_code(0).json()["checkpoint"].as_str().unwrap().to_owned();
    let text = fs::read_to_string(Path::new(&checkpoint).join("job.toml")).unwrap();
    assert!(text.contains("dataset://clicks/2#train"), "{text}");

    Table::clicks(300, 9).write_tfrecord(&job.directory().join("a.tfrecord"));
    fs::write(job.directory().join("a.csv"), "x,y\n1,2\n3,\n").unwrap();
    let refused = [
        (&["register", "a", "a.tfrecord", "--split", "a=50,b=50"][..], "--split-by COLUMN"),
        (&["register", "a", "a.csv", "--split", "a=50,b=50"], "jobs do not read this format"),
        (
            &["register", "a", "a.tfrecord", "--split", "a=50,b=50", "--split-by", "colour"],
            "did you mean `color`?",
        ),
        (
            &["register", "a", "a.tfrecord", "--split", "a=..9,b=9..3,c=3..", "--split-by-time", "x"],
            "order the bounds of `x`",
        ),
        (
            &[
                "register",
                "a",
                "a.tfrecord",
                "--split",
                "a=..2026-11-01,b=2026-11-01..",
                "--split-by-time",
                "x",
            ],
            "to match the filter",
        ),
        (&["show", "clicks/1#train"], "names a split; name the version"),
    ];
    for (line, why) in refused {
        let ended = run(line);
        assert!(ended.code() != 0 && ended.stderr.contains(why), "{line:?}: {}", ended.stderr);
    }
    assert!(
        !run(&["list"]).with_code(0).stdout.lines().any(|line| line.starts_with("a ")),
        "nothing is registered"
    );
    let tfrecord =
        ["register", "a", "a.tfrecord", "--json", "--split", "a=..5,b=5..", "--split-by-time", "x"];
    assert_eq!(split_rows(&run(&tfrecord).with_code(0).json()).values().sum::<u64>(), 300);

    let train = |train: &str| shell.run(&["check", "job.toml", "--set", train]).with_code(1).stderr;
    for (data, why) in [
        ("[\"dataset://clicks/1#none\"]", "dataset://clicks/1 has no split of this name, but train, test"),
        (
            "[\"dataset://clicks/1#train\", \"train-0.parquet\"]",
            "names other rows than dataset://clicks/1#train",
        ),
        ("[\"dataset://clicks/1#train\", \"dataset://clicks/1#test\"]", "names other rows than"),
    ] {
        let error = train(&format!("data.train={data}"));
        assert!(error.contains(why), "{data}: {error}");
    }
    let mut inspect = shell.command(&["inspect", "dataset://clicks/1#train"]);
    let ended = inspect.env("MILLSTREAM_CATALOG", job.directory().join("catalog")).output().unwrap();
    let error = String::from_utf8(ended.stderr).unwrap();
    assert!(error.contains("the split `train` can be read by jobs, `eval` and `predict`"), "{error}");
}
