//! Losses that compare the rows of lists: a killed job has the bits of an undisturbed one, and both losses learn to rank.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, StringArray};
use millstream_tests::programs::Daemon;
use millstream_tests::shell::Shell;
use millstream_tests::table::Table;
use millstream_tests::tiny_job::{Contents, TinyJob, draw};

/// Rows per query.
const LENGTH: u64 = 8;
const QUERIES: u64 = 750;
const TOP: usize = 3;

const SETTINGS: [&str; 6] = [
    "label.column=relevance",
    "features.query={ kind = \"identity\", buckets = 10000 }",
    "data.batch_size=256",
    "data.epochs=40",
    "evaluation.top_k=3",
    "checkpoint.every_steps=20",
];
const LISTWISE: &str = "training.loss={ kind = \"listwise\", group = \"query\" }";
const PAIRWISE: &str = "training.loss={ kind = \"pairwise\", group = \"query\" }";

/// A row: its query, grade and `x`. The grade is that of the row within its query, by `x` with some noise; the values
/// of `x` differ more between queries.
fn rows(file: u64) -> Vec<(i64, i64, f64)> {
    let mut state = file + 1;
    let mut rows = Vec::new();
    for query in 0..QUERIES {
        let level = draw(&mut state, 800) as f64 / 100.0;
        for _ in 0..LENGTH {
            let (above, noise) = (draw(&mut state, 200) as f64 / 100.0, draw(&mut state, 100) as f64 / 100.0);
            let grade = (above + noise) as i64;
            rows.push(((file * QUERIES + query) as i64, grade, level + above));
        }
    }
    rows
}

/// The tiny job, with lists as its data.
fn job() -> TinyJob {
    let job = TinyJob::new();
    for (file, name) in ["train-0", "train-1", "train-2", "train-3", "eval"].into_iter().enumerate() {
        let rows = rows(file as u64);
        let mut state = file as u64;
        let colors = rows.iter().map(|_| format!("color {}", draw(&mut state, 20)));
        let columns: [(&str, ArrayRef); 4] = [
            ("x", Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.2)))),
            ("color", Arc::new(StringArray::from_iter_values(colors))),
            ("query", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0)))),
            ("relevance", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1)))),
        ];
        Table::of(columns.into()).write_parquet(&job.directory().join(format!("{name}.parquet")));
    }
    job
}

/// The expected NDCG of random scores: each rank has the mean gain of the query.
fn random_ndcg() -> f64 {
    let mut queries: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for (query, grade, _) in rows(4) {
        queries.entry(query).or_default().push(2.0_f64.powi(grade as i32) - 1.0);
    }
    let discount = |rank: usize| 1.0 / (rank as f64 + 2.0).log2();
    let of_query = |gains: &mut Vec<f64>| {
        gains.sort_by(|a, b| b.total_cmp(a));
        let best: f64 = (0..TOP).map(|rank| gains[rank] * discount(rank)).sum();
        let mean = gains.iter().sum::<f64>() / gains.len() as f64;
        (best > 0.0).then(|| mean * (0..TOP).map(discount).sum::<f64>() / best)
    };
    let found: Vec<f64> = queries.values_mut().filter_map(of_query).collect();
    found.iter().sum::<f64>() / found.len() as f64
}

#[test]
fn a_killed_job_of_lists_has_the_bits_of_an_undisturbed_one_and_ranks() {
    let job = job();
    let daemon = Daemon::start(job.directory());
    let file = job.file();
    let submit = |set: &[&str]| {
        let set: Vec<&str> = SETTINGS.iter().chain(set).flat_map(|set| ["--set", *set]).collect();
        let id = daemon.json(&[&["submit", file.to_str().unwrap()], &set[..]].concat());
        id["id"].as_str().unwrap().to_owned()
    };
    let contents = |outcome: &serde_json::Value| Contents::of(outcome["checkpoint"].as_str().unwrap());
    for loss in [LISTWISE, PAIRWISE] {
        let undisturbed = daemon.succeeded(&submit(&[loss]));
        let id = submit(&[loss]);
        daemon.kill_worker_after(&id, &[30, 400, 1_000]);
        let killed = daemon.succeeded(&id);
        assert!(killed["attempts"].as_u64().unwrap() > 1, "{killed:#}");
        contents(&killed).assert_same(&contents(&undisturbed));
        assert_eq!(killed["eval"], undisturbed["eval"]);
        let (ndcg, random) = (undisturbed["eval"]["ndcg"].as_f64().unwrap(), random_ndcg());
        assert!(ndcg > random + 0.5 * (1.0 - random), "{loss}: {ndcg}, and {random} at random");

        // The rows of a list may be those of different workers.
        let of_two = daemon.succeeded(&submit(&[loss, "workers.per_host=2"]));
        let found = of_two["eval"]["ndcg"].as_f64().unwrap();
        assert!((found - ndcg).abs() < 1e-3, "{loss}: {found} with two workers, {ndcg} with one");

        let other = contents(&daemon.succeeded(&submit(&[loss, "training.threads=2"])));
        other.without_job_description().assert_same(&contents(&undisturbed).without_job_description());
    }
    daemon.stop();
}

#[test]
fn scores_of_lists_are_logits_and_lists_need_whole_batches() {
    let job = job();
    let shell = Shell::new(job.directory());
    let train = |set: &[&str]| {
        let set: Vec<&str> = SETTINGS.iter().chain(set).flat_map(|set| ["--set", *set]).collect();
        shell.run(&[&["train", "job.toml", "--json"], &set[..]].concat())
    };
    let outcome = train(&[LISTWISE, "data.epochs=3"]).with_code(0).json();
    let metrics = outcome["eval"].as_object().unwrap();
    assert!(metrics.contains_key("mrr") && metrics.contains_key("recall"), "{outcome:#}");
    assert!(!metrics.contains_key("auc") && !metrics.contains_key("rmse"), "{outcome:#}");
    let set: Vec<&str> = SETTINGS.iter().chain(&[LISTWISE]).flat_map(|set| ["--set", *set]).collect();
    let plan = shell.run(&[&["check", "job.toml", "--json"], &set[..]].concat()).with_code(0).json();
    let query =
        plan["features"].as_array().unwrap().iter().find(|feature| feature["name"] == "query").unwrap();
    assert_eq!(query["used_by"], serde_json::json!(["loss"]));
    let checkpoint = outcome["checkpoint"].as_str().unwrap();
    let _ = shell.run(&["predict", checkpoint, "--output", "scores.csv"]).with_code(0);
    let text = std::fs::read_to_string(job.directory().join("scores.csv")).unwrap();
    let scores: Vec<f64> = text.lines().skip(1).map(|line| line.parse().unwrap()).collect();
    assert_eq!(scores.len(), 6_000);
    assert!(scores.iter().any(|score| !(0.0..=1.0).contains(score)));
    let other = train(&[PAIRWISE, "data.epochs=3", "training.micro_batch_size=8"]).with_code(2).stderr;
    assert!(other.contains("the loss \"pairwise\" needs whole batches"), "{other}");
}
