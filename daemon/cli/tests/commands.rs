//! Tests of the command line: standard output, standard error and exit status.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const JOB: &str = r#"name = "clicks"

[data]
train = ["train-*.tfrecord"]
eval = ["eval.tfrecord"]
batch_size = 64
epochs = 2
shuffle_rows = 512
lanes = 4

[label]
column = "clicked"

[features]
i1 = { kind = "numeric", normalize = "log1p_zscore", missing = "mean" }
c1 = { kind = "vocabulary", min_count = 2 }
c2 = { kind = "hashed", buckets = 50 }

[model]
kind = "wide_deep"
wide.features = ["c1", "c2"]
deep.features = ["i1", "c1"]
deep.hidden = [8]
deep.embedding_dim = 4
"#;

/// A temporary working directory without a daemon.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// A directory with data and a job.
    fn with_job() -> Self {
        let place = Self::new();
        place.ok(&["generate", "--rows", "2000", "--shards", "2", "train.tfrecord"]);
        place.ok(&["generate", "--rows", "500", "--first-row", "2000", "eval.tfrecord"]);
        place.write("job.toml", JOB);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.current_dir(self.directory.path()).args(arguments).stdin(Stdio::null());
        command.env("MILLSTREAM_SOCKET", self.path("no.sock")).env_remove("MILLSTREAM_LOG");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The one JSON document on standard output.
    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<_> = arguments.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.ok(&arguments)).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn invalid_job_exits_2_and_reports_errors_like_a_compiler() {
    let place = Place::new();
    place.write("job.toml", &JOB.replace("batch_size", "bacth_size").replace("epochs = 2", "epochs = 0"));
    let wanted = "job.toml:6:1: error: unknown key `bacth_size` in [data]; did you mean `batch_size`?\n\
                  job.toml:7:10: error: expected a whole number at least 1, found 0\n";
    for command in ["train", "check", "submit"] {
        let output = place.run(&[command, "job.toml"]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert_eq!(text(&output.stderr), wanted, "{command}");
        assert!(output.stdout.is_empty());
    }
    let output = place.run(&["train", "job.toml", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["error"]["message"], wanted.trim_end());

    let output = place.run(&["bench", "ingest", "job.toml", "--set", "data.batch_siz=3"]);
    assert!(
        text(&output.stderr).contains("--set data.batch_siz=3: error: unknown key `batch_siz` in [data]")
    );
    assert_eq!(place.run(&["check", "absent.toml"]).status.code(), Some(2));
}

#[test]
fn data_that_contradicts_the_job_exits_1_with_its_address() {
    let place = Place::with_job();
    let cases = [
        ("data.train=absent.tfrecord", "absent.tfrecord: no such file"),
        ("data.eval=absent-*", "absent-*: no file matches"),
        ("features.i1.column=ii", "no column `ii`"),
        ("label.positive=7", "label `clicked` is never `7`"),
        ("data.memory_budget=100KiB", "memory budget is 100.0 KiB"),
        (
            "data.train=job.toml",
            "job.toml: expected TFRecord, Parquet, JSON lines, WebDataset or MDS, found text",
        ),
    ];
    for (set, wanted) in cases {
        for command in ["check", "train"] {
            let output = place.run(&[command, "job.toml", "--set", set]);
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{command} {set}: {stderr}");
            assert!(stderr.contains(wanted), "{command} {set}: {stderr}");
        }
    }
}

#[test]
fn commands_that_need_a_daemon_fail_without_one() {
    let place = Place::new();
    for arguments in [
        &["list"][..],
        &["show", "x"],
        &["explain", "x"],
        &["logs", "x"],
        &["cancel", "x"],
        &["checkpoint", "x"],
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(1));
        let stderr = text(&output.stderr);
        assert!(stderr.contains("no daemon listens on") && stderr.contains("no.sock"), "{stderr}");
    }
}

#[test]
fn job_is_checked_trained_and_scored_without_a_daemon() {
    let place = Place::with_job();
    let plan = place.json(&["check", "job.toml"]);
    assert_eq!(plan["data"]["train"]["files"], 2);
    assert_eq!(plan["features"].as_array().unwrap().len(), 3);
    assert_eq!(plan["parameters"]["bound"], false);
    assert!(place.ok(&["check", "job.toml"]).contains("shuffle pool"));

    let trained = place.json(&["train", "job.toml"]);
    assert_eq!((&trained["state"], &trained["steps"]), (&"succeeded".into(), &64.into()));
    assert_eq!((&trained["examples"], &trained["eval"]["examples"]), (&4000.into(), &500.into()));
    let checkpoint = trained["checkpoint"].as_str().unwrap();
    assert!(Path::new(checkpoint).is_dir());

    let scored = place.json(&["eval", checkpoint]);
    assert_eq!(scored, trained["eval"], "`eval` of the last checkpoint repeats the last evaluation");

    let lines = place.ok(&["predict", checkpoint]);
    assert_eq!(lines.lines().next(), Some("score"));
    assert_eq!(lines.lines().count(), 501);
    let report =
        place.json(&["predict", checkpoint, "train-*.tfrecord", "-o", "s.jsonl", "--format", "jsonl"]);
    assert_eq!(report["rows"], 2000);
    let scores = fs::read_to_string(place.path("s.jsonl")).unwrap();
    let in_range = |line: &str| {
        let score = serde_json::from_str::<Value>(line).unwrap()["score"].as_f64().unwrap();
        score > 0.0 && score < 1.0
    };
    assert!(scores.lines().count() == 2000 && scores.lines().all(in_range));

    let failed = place.run(&["predict", checkpoint, "absent", "-o", "t.csv"]);
    assert_eq!(failed.status.code(), Some(1));
    let left = |name: &str| name.starts_with("t.csv");
    let names = fs::read_dir(place.directory.path()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!names.iter().any(|name| left(name)), "{names:?}");

    let measured = place.json(&["bench", "ingest", "job.toml"]);
    assert_eq!(measured["rows"], 2000, "one pass over the training data");
    for key in
        ["bytes", "seconds", "rows_per_second", "first_batch_seconds", "planning_seconds", "planned_bytes"]
    {
        assert!(measured[key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert!(measured["stages"].is_object());
    assert!(measured["explanation"]["whole"]["bound"].is_string());
    let report = place.ok(&["bench", "ingest", "job.toml", "--epochs", "3"]);
    assert!(report.contains("6,000") && report.contains("bottleneck"), "{report}");
}

#[test]
fn convert_writes_files_and_inspect_finds_damage() {
    let place = Place::new();
    place.write("a.csv", "n, word\n1, x\n2,\n? ,z\n");
    let converted = place.json(&["convert", "a.csv", "a.tfrecord.gz", "--missing", "?"]);
    assert_eq!(converted["rows"], 3);
    assert_eq!(converted["files"], serde_json::json!(["a.tfrecord.gz"]));
    let reports = place.json(&["inspect", "a.tfrecord.gz", "a.csv"]);
    assert_eq!((&reports[0]["path"], &reports[1]["path"]), (&"a.csv".into(), &"a.tfrecord.gz".into()));
    assert_eq!(reports[0]["columns"][1]["name"], "word");
    assert_eq!(reports[1]["records"], 3);
    assert_eq!(reports[1]["compression"], "gzip");
    assert!(reports[1]["error"].is_null());

    place.ok(&["convert", "a.csv", "a.tfrecord"]);
    let whole = fs::read(place.path("a.tfrecord")).unwrap();
    fs::write(place.path("cut.tfrecord"), &whole[..whole.len() - 3]).unwrap();
    let output = place.run(&["inspect", "a.tfrecord", "cut.tfrecord", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(reports[0]["error"].is_null());
    assert_eq!(reports[1]["error"]["record"], 2);
    assert!(text(&output.stderr).contains("cut.tfrecord: damaged at record 2"));
}

#[test]
fn closed_standard_output_is_not_a_failure() {
    let place = Place::new();
    place.write("a.csv", "n\n1\n");
    for arguments in [&["inspect", "a.csv"][..], &["inspect", "a.csv", "--json"]] {
        let mut child = place
            .command(arguments)
            .stdout(Stdio::from(closed_pipe()))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert!(child.wait().unwrap().success());
        let stderr = child.wait_with_output().unwrap().stderr;
        assert_eq!(text(&stderr), "");
    }
}

#[test]
fn ctrl_c_saves_a_checkpoint_and_resume_continues() {
    let place = Place::with_job();
    let often = ["--set", "checkpoint.every_steps=200"];
    let long = [&["train", "job.toml", "--set", "data.epochs=1000000", "--json"][..], &often].concat();
    let mut child = place.command(&long).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let runs = place.path("checkpoints");
    wait_until("the job has a checkpoint", || last_step(&runs) > 0);
    interrupt(&mut child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("saving a checkpoint before stopping; press Ctrl-C again to quit"), "{stderr}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["state"], "cancelled", "{document}");
    let steps = document["steps"].as_u64().unwrap();
    let checkpoint = document["checkpoint"].as_str().unwrap_or_else(|| panic!("{document}"));
    assert!(checkpoint.ends_with(&format!("step-{steps:010}")), "{checkpoint}");

    let mut child = place
        .command(&[&long[..], &["--resume"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the resumed job has a checkpoint", || last_step(&runs) > steps);
    interrupt(&mut child);
    let output = child.wait_with_output().unwrap();
    let resumed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(resumed["job"], document["job"]);
    assert!(resumed["steps"].as_u64().unwrap() > steps, "{resumed}");
}

fn interrupt(child: &mut Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

/// The step of the newest committed checkpoint in any of `runs`; 0 without one.
fn last_step(runs: &Path) -> u64 {
    let runs = fs::read_dir(runs).into_iter().flatten().flatten();
    let entries = runs.flat_map(|run| fs::read_dir(run.path()).into_iter().flatten().flatten());
    let committed = entries.filter(|entry| entry.path().join("manifest.json").exists());
    let steps = committed.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok());
    steps.max().unwrap_or(0)
}

#[track_caller]
fn wait_until(event: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {event}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The write end of a pipe whose read end is closed.
fn closed_pipe() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}
