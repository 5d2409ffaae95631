//! `predict` and `eval` over CSV and JSON lines, and columns of the data beside the scores.

// Test support: a panic fails the test.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::process::Stdio;

use millstream_tests::programs::{Daemon, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::table::Table;
use millstream_tests::tiny_job::TinyJob;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const ROWS: usize = 5_000;

/// A job that was trained briefly, with rows to score in each format, of which `new.parquet` is the original.
struct Trained {
    job: TinyJob,
    shell: Shell,
    run: String,
}

/// The formats that hold 64-bit floats.
const FORMATS: [&str; 5] = ["new.parquet", "new.csv", "new.tsv.gz", "new.jsonl", "new.ndjson.zst"];

impl Trained {
    fn new() -> Self {
        let job = TinyJob::new();
        let shell = Shell::new(job.directory());
        let line = ["train", "job.toml", "--set", "data.epochs=1", "--json"];
        let outcome = shell.run(&line).with_code(0).json();
        let run = format!("checkpoints/{}", outcome["job"].as_str().unwrap());
        Table::clicks(ROWS, 77).write_parquet(&job.directory().join("new.parquet"));
        for name in FORMATS[1..].iter().chain(&["new.tfrecord"]) {
            let _ = shell.run(&["convert", "new.parquet", name]).with_code(0);
        }
        Self { job, shell, run }
    }

    /// The standard output of `predict`.
    fn predict(&self, arguments: &[&str]) -> String {
        self.shell.run(&[&["predict", &self.run][..], arguments].concat()).with_code(0).stdout
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.job.directory().join(name)).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.job.directory().join(name), text).unwrap();
    }
}

#[test]
fn every_format_has_the_same_scores_and_metrics_in_a_daemon_and_without() {
    let trained = Trained::new();
    let scores = trained.predict(&["new.parquet"]);
    let metrics = |name| trained.shell.run(&["eval", &trained.run, name, "--json"]).with_code(0).json();
    let wanted = metrics("new.parquet");
    assert_eq!(scores.lines().count(), ROWS + 1);
    for name in FORMATS {
        assert!(trained.predict(&[name]) == scores, "{name}");
        assert_eq!(metrics(name), wanted, "{name}");
    }
    let daemon = Daemon::start(trained.job.directory());
    for name in FORMATS {
        assert!(trained.predict(&["--daemon", name]) == scores, "{name}");
    }
    let doubled = trained.predict(&["--daemon", "new.csv", "new.jsonl"]);
    let once = scores.split_once('\n').unwrap().1;
    assert!(doubled == format!("score\n{once}{once}"));
    daemon.stop();
}

#[test]
fn kept_columns_stand_beside_the_scores_of_their_rows() {
    let trained = Trained::new();
    let scores = trained.predict(&["new.parquet"]);
    let source = trained.read("new.csv");
    let beside: Vec<String> =
        source.lines().zip(scores.lines()).map(|(row, score)| format!("{row},{score}")).collect();
    for name in ["new.parquet", "new.csv", "new.tsv.gz"] {
        let kept = trained.predict(&[name, "--keep", "*"]);
        assert!(kept.lines().eq(beside.iter().map(String::as_str)), "{name}: {}", &kept[..200]);
    }
    let rows = |name: &str| -> Vec<Value> {
        let printed = trained.predict(&[name, "--keep", "color,x", "--format", "jsonl"]);
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let wanted = rows("new.parquet");
    assert!(wanted.len() == ROWS && wanted[0]["x"].is_f64() && wanted[0]["color"].is_string());
    for name in ["new.tfrecord", "new.jsonl", "new.ndjson.zst"] {
        for (found, wanted) in rows(name).iter().zip(&wanted) {
            assert_eq!(found["color"], wanted["color"], "{name}");
            // TFRecord has 32 bits.
            let close = |column: &str| {
                let [found, wanted] = [found, wanted].map(|row| row[column].as_f64().unwrap());
                (found - wanted).abs() < 1e-5
            };
            assert!(close("x") && close("score"), "{name}: {found}");
        }
    }
    let line = ["new.jsonl", "--keep", "x", "--output", "kept.parquet", "--json"];
    let report: Value = serde_json::from_str(&trained.predict(&line)).unwrap();
    assert_eq!(report["rows"], ROWS);
    let shown = trained.shell.run(&["inspect", "kept.parquet", "--json"]).with_code(0).stdout;
    assert!(shown.contains("\"x\"") && shown.contains("\"score\""), "{shown}");
}

#[test]
fn rows_that_are_skipped_have_neither_a_score_nor_kept_columns() {
    let trained = Trained::new();
    trained.write("bad.csv", "id,x,color\n1,0.5,color 1\n2,wide,color 2\n3,0.5\n4,0.5,color 1\n");
    let failed = trained.shell.run(&["predict", &trained.run, "bad.csv", "--keep", "id"]).with_code(1);
    assert!(
        failed.stderr.contains("bad.csv: record 1, column `x`: line 3: `wide` is not a number"),
        "{failed:?}"
    );
    let line = ["predict", &trained.run, "bad.csv", "--keep", "id", "--skip-bad-lines"];
    let skipped = trained.shell.run(&line).with_code(0);
    let kept: Vec<&str> = skipped.stdout.lines().map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(kept, ["id", "1", "4"]);
    assert!(skipped.stderr.contains("skipped 2 bad rows"), "{}", skipped.stderr);

    for (header, keep, code, says) in [
        ("x,colour", "x", 1, "renamed.csv: no column `color`; did you mean `colour`?"),
        ("x,color", "xx", 1, "renamed.csv: no column `xx`; did you mean `x`?"),
        ("x,color,score", "score", 2, "the column `score` of the data has the name of a column of scores"),
    ] {
        trained.write("renamed.csv", &format!("{header}\n"));
        let failed =
            trained.shell.run(&["predict", &trained.run, "renamed.csv", "--keep", keep]).with_code(code);
        assert!(failed.stderr.contains(says), "{}", failed.stderr);
        assert_eq!(failed.stdout, "", "nothing is written before the data is open");
    }
}

#[test]
fn standard_input_is_data_and_leaves_nothing_behind() {
    let trained = Trained::new();
    let scores = trained.predict(&["new.csv"]);
    let before = trained.shell.files();
    let mut command = trained.shell.command(&["predict", &trained.run, "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(trained.read("new.csv").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), scores);
    assert_eq!(trained.shell.files(), before);

    // Interrupted while it waits for more input.
    let mut command = trained.shell.command(&["predict", &trained.run, "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"x,color\n").unwrap();
    wait_until("input is copied", || trained.shell.files() != before);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(trained.shell.files(), before);
}
