//! `eval` and `predict`: results do not depend on how the checkpoint is named, or on the daemon.

use std::path::Path;
use std::sync::Arc;

use arrow_array::Int64Array;
use millstream_tests::programs::Daemon;
use millstream_tests::shell::Shell;
use millstream_tests::table::Table;
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;

const ROWS: usize = 5_000;
const SHORT: [&str; 4] = ["--set", "data.epochs=1", "--json", "job.toml"];

#[test]
fn eval_matches_the_end_of_training_however_the_job_is_named() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let daemon = Daemon::start(job.directory());
    let outcome = shell.run(&[&["train"][..], &SHORT].concat()).with_code(0).json();
    let id = outcome["job"].as_str().unwrap();
    let checkpoint = outcome["checkpoint"].as_str().unwrap();
    let run = format!("checkpoints/{id}");
    for target in [id, &id[..id.len() - 1], checkpoint, &run] {
        let metrics = shell.run(&["eval", target, "--json"]).with_code(0).json();
        assert_eq!(metrics, outcome["eval"], "{target}");
    }
    let named = shell.run(&["eval", id, "eval.parquet", "--json"]).with_code(0).json();
    assert_eq!(named, outcome["eval"]);
    daemon.stop();
    // The same without the daemon that trained it.
    let hosted = shell.run(&["eval", &run, "--json"]).with_code(0).json();
    assert_eq!(hosted, outcome["eval"]);
    let _ = shell.run(&["eval", id]).with_code(1);
}

#[test]
fn predict_scores_rows_in_order_and_reproducibly() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let outcome = shell.run(&[&["train"][..], &SHORT].concat()).with_code(0).json();
    let run = format!("checkpoints/{}", outcome["job"].as_str().unwrap());
    let table = Table::clicks(ROWS, 77);
    let write = |name: &str, table: &Table| table.write_parquet(&job.directory().join(name));
    write("new.parquet", &table);
    write("reversed.parquet", &table.reversed());
    write("unlabelled.parquet", &table.clone().without("clicked"));

    let predict = |files: &[&str]| {
        let printed = shell.run(&[&["predict", &run][..], files].concat()).with_code(0).stdout;
        let (title, scores) = printed.split_once('\n').unwrap();
        assert_eq!(title, "score");
        scores.lines().map(|line| line.parse().unwrap()).collect::<Vec<f32>>()
    };
    let scores = predict(&["new.parquet"]);
    assert_eq!(scores.len(), ROWS);
    assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)));
    assert!(scores.windows(2).any(|pair| pair[0] != pair[1]));
    assert_eq!(predict(&["new.parquet"]), scores, "reproducible");
    assert_eq!(predict(&["unlabelled.parquet"]), scores, "without a label");
    let reversed: Vec<f32> = scores.iter().rev().copied().collect();
    assert_eq!(predict(&["reversed.parquet"]), reversed, "row by row");
    assert_eq!(
        predict(&["new.parquet", "reversed.parquet"]),
        [scores.clone(), reversed].concat(),
        "file by file"
    );

    let metrics = shell.run(&["eval", &run, "new.parquet", "--json"]).with_code(0).json();
    assert_metrics(&metrics, &scores, &table.clicked());

    let line = ["predict", &run, "new.parquet", "--format", "jsonl", "--output", "scores.jsonl", "--json"];
    let report = shell.run(&line).with_code(0).json();
    assert_eq!(report["rows"], ROWS);
    assert_eq!(json_lines(&job.directory().join("scores.jsonl")), scores);
}

/// Compares metrics with values computed from the scores.
fn assert_metrics(metrics: &Value, scores: &[f32], labels: &Int64Array) {
    let rows: Vec<(f64, bool)> =
        scores.iter().zip(labels.values()).map(|(&score, &label)| (f64::from(score), label == 1)).collect();
    let mean = |of: fn(&(f64, bool)) -> f64| rows.iter().map(of).sum::<f64>() / rows.len() as f64;
    let accuracy = mean(|&(score, clicked)| f64::from((score > 0.5) == clicked));
    let log_loss = mean(|&(score, clicked)| -(if clicked { score } else { 1.0 - score }).ln());
    let (clicked, passed): (Vec<(f64, bool)>, Vec<_>) = rows.iter().partition(|(_, clicked)| *clicked);
    let won = |a: f64, b: f64| if a == b { 0.5 } else { f64::from(a > b) };
    let wins: f64 = clicked.iter().map(|c| passed.iter().map(|p| won(c.0, p.0)).sum::<f64>()).sum();
    let auc = wins / (clicked.len() * passed.len()) as f64;
    let rmse = mean(|&(score, clicked)| (score - f64::from(clicked)).powi(2)).sqrt();
    let share = clicked.len() as f64 / rows.len() as f64;
    let entropy = -(share * share.ln() + (1.0 - share) * (1.0 - share).ln());
    let calibration = mean(|&(score, _)| score) / share;
    let ranks = [("auc", auc), ("auc_error", 0.0), ("pr_auc_error", 0.0)];
    let probabilities = [
        ("accuracy", accuracy),
        ("log_loss", log_loss),
        ("normalized_entropy", log_loss / entropy),
        ("calibration", calibration),
        ("rmse", rmse),
    ];
    for (name, wanted) in ranks.into_iter().chain(probabilities) {
        let found = metrics[name].as_f64().unwrap();
        assert!((found - wanted).abs() < 1e-5, "{name}: {found}, expected {wanted}");
    }
    assert_eq!(metrics["examples"], rows.len());
}

fn json_lines(path: &Path) -> Vec<f32> {
    let text = std::fs::read_to_string(path).unwrap();
    let score =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["score"].to_string().parse().unwrap();
    text.lines().map(score).collect()
}

#[test]
fn held_out_and_scored_records_may_lack_an_optional_feature() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let write = |name: &str, table: Table| table.write_tfrecord(&job.directory().join(name));
    write("a.tfrecord", Table::clicks(ROWS, 1));
    write("held.tfrecord", Table::clicks(50, 2).without("color"));
    write("other.tfrecord", Table::of(vec![("z", Arc::new(Int64Array::from(vec![1, 2])))]));
    let data = ["--set", "data.train=[\"a.tfrecord\"]", "--set", "data.eval=[\"held.tfrecord\"]"];
    let outcome = shell.run(&[&["train"][..], &data, &SHORT].concat()).with_code(0).json();
    assert_eq!(outcome["eval"]["examples"], 50);
    let run = format!("checkpoints/{}", outcome["job"].as_str().unwrap());
    let scores = shell.run(&["predict", &run, "held.tfrecord"]).with_code(0).stdout;
    assert_eq!(scores.lines().count(), 51);
    let other = shell.run(&["predict", &run, "other.tfrecord"]).with_code(1).stderr;
    assert!(other.contains("other.tfrecord: no column `"), "{other}");
    let label = shell.run(&["eval", &run, "other.tfrecord"]).with_code(1).stderr;
    assert!(label.contains("other.tfrecord: no column `"), "{label}");
    let run_as_data = shell.run(&["predict", &run, &run]).with_code(1).stderr;
    assert!(run_as_data.contains("is a run or a checkpoint, not data"), "{run_as_data}");
}
