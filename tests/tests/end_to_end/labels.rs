//! Multi-label jobs and regression, from `check` to `export`.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use millstream_tests::shell::Shell;
use serde_json::Value;

/// Rows of the example's held-out data.
const ROWS: u64 = 16_250;

fn census(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/census").join(file)
}

/// Trains the example `job` into `scratch` with additional arguments. Returns a shell there and the outcome.
fn train(scratch: &Path, job: &Path, more: &[&str]) -> (Shell, Value) {
    let directory = format!("checkpoint.directory={}", scratch.join("checkpoints").display());
    let line = ["train", job.to_str().unwrap(), "--json", "--set", &directory];
    let shell = Shell::new(scratch);
    let outcome = shell.run(&[&line[..], more].concat()).with_code(0).json();
    assert_eq!(outcome["state"], "succeeded", "{outcome:#}");
    (shell, outcome)
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// The column names, and the numbers of each column.
fn read_csv(text: &str) -> (Vec<&str>, Vec<Vec<f64>>) {
    let (title, rows) = text.split_once('\n').unwrap();
    let titles: Vec<&str> = title.split(',').collect();
    let mut columns = vec![Vec::new(); titles.len()];
    for row in rows.lines() {
        for (column, number) in columns.iter_mut().zip(row.split(',')) {
            column.push(number.parse().unwrap());
        }
    }
    (titles, columns)
}

#[test]
fn two_census_labels_are_learned_jointly_and_reported_separately() {
    let scratch = tempfile::tempdir().unwrap();
    let job = census("two-labels.toml");
    let epochs = ["--set", "data.epochs=4", "--set", "model.experts=4", "--history", "curves.svg"];
    let (shell, outcome) = train(scratch.path(), &job, &epochs);
    let eval = &outcome["eval"];
    assert_eq!(keys(eval), BTreeSet::from(["income", "never_married"]));
    for (label, floor) in [("income", 0.855), ("never_married", 0.865)] {
        assert!(eval[label]["auc"].as_f64().unwrap() > floor, "{eval:#}");
        assert_eq!(eval[label]["examples"], ROWS);
        assert!(keys(&eval[label]).contains("log_loss") && !keys(&eval[label]).contains("mae"), "{eval:#}");
    }
    assert!(fs::read_to_string(scratch.path().join("curves.svg")).unwrap().contains("held-out income/auc"));

    let run = format!("checkpoints/{}", outcome["job"].as_str().unwrap());
    assert_eq!(shell.run(&["eval", &run, "--json"]).with_code(0).json(), *eval);
    let table = shell.run(&["eval", &run]).with_code(0).stdout;
    assert!(table.contains("income AUC") && table.contains("never_married AUC"), "{table}");

    let scores = shell.run(&["predict", &run]).with_code(0).stdout;
    let (titles, columns) = read_csv(&scores);
    assert_eq!(titles, ["score_income", "score_never_married"]);
    for column in &columns {
        assert_eq!(column.len() as u64, ROWS);
        assert!(column.iter().all(|score| (0.0..=1.0).contains(score)));
    }
    assert_ne!(columns[0], columns[1]);

    let exported = shell.run(&["export", &run, "--output", "model.onnx", "--json"]).with_code(0).json();
    let names = exported["outputs"].as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap());
    let wanted = ["score_income", "logit_income", "score_never_married", "logit_never_married"];
    assert_eq!(names.collect::<Vec<_>>(), wanted);
}

#[test]
fn a_single_label_model_rejects_two_labels() {
    let scratch = tempfile::tempdir().unwrap();
    let job = census("two-labels.toml");
    let line = ["check", job.to_str().unwrap(), "--set", "model.kind=\"mlp\""];
    let rejected = Shell::new(scratch.path()).run(&line).with_code(2);
    let expected = "\"mlp\" predicts one label, and there are 2; \"mmoe\" and \"din\" predict several";
    assert!(rejected.stderr.contains(expected), "{}", rejected.stderr);
}

/// A job that predicts the hours that people work, in `directory`.
fn hours(directory: &Path, rest: &str) -> PathBuf {
    let data = |pattern: &str| format!("[\"{}\"]", census("data").join(pattern).display());
    let job = format!(
        r#"name = "hours"
data = {{ train = {}, eval = {}, missing = ["?"], epochs = 3 }}
label = {{ column = "hours_per_week" }}
features.age = {{ kind = "numeric", normalize = "zscore" }}
features.education = {{ kind = "vocabulary" }}
features.occupation = {{ kind = "vocabulary" }}
features.sex = {{ kind = "vocabulary" }}
model = {{ kind = "mlp", features = ["age", "education", "occupation", "sex"], hidden = [16] }}
{rest}
"#,
        data("adult-train-*.parquet"),
        data("adult-test.parquet"),
    );
    let file = directory.join("hours.toml");
    fs::write(&file, job).unwrap();
    file
}

#[test]
fn hours_per_week_have_a_quantile_and_a_rate() {
    let ranked = "evaluation = { group = \"education\", top_k = 5, gains = \"linear\" }";
    let common = ["examples", "groups", "mae", "ndcg", "top_k"];
    let cases: [(&str, &[&str]); 2] = [
        ("kind = \"quantile\", quantile = 0.9", &["coverage", "pinball_loss"]),
        ("kind = \"poisson\"", &["calibration", "poisson_deviance", "r2", "rmse"]),
    ];
    for (loss, metrics) in cases {
        let scratch = tempfile::tempdir().unwrap();
        let file = hours(scratch.path(), &format!("training.loss = {{ {loss} }}\n{ranked}"));
        let (shell, outcome) = train(scratch.path(), &file, &[]);
        let eval = &outcome["eval"];
        assert_eq!(keys(eval), common.iter().chain(metrics).copied().collect(), "{loss}");
        let number = |name: &str| eval[name].as_f64().unwrap();
        assert_eq!((number("top_k"), number("groups")), (5.0, 16.0), "{loss}: {eval:#}");
        assert!((0.0..=1.0).contains(&number("ndcg")), "{loss}: {eval:#}");

        let run = format!("checkpoints/{}", outcome["job"].as_str().unwrap());
        let table = shell.run(&["eval", &run]).with_code(0).stdout;
        assert!(table.contains("NDCG@5") && table.contains(" over 16 groups"), "{table}");
        let scores = shell.run(&["predict", &run]).with_code(0).stdout;
        let (titles, columns) = read_csv(&scores);
        let mean = columns[0].iter().sum::<f64>() / ROWS as f64;
        if loss.contains("poisson") {
            assert!((0.9..1.1).contains(&number("calibration")), "{eval:#}");
            assert!((35.0..46.0).contains(&mean) && columns[0].iter().all(|&hours| hours > 0.0), "{mean}");
        } else {
            assert!((0.8..1.0).contains(&number("coverage")), "{eval:#}");
            assert!(mean > 46.0, "nine of ten people work at most {mean} hours");
        }
        let exported = shell.run(&["export", &run, "--output", "model.onnx", "--json"]).with_code(0).json();
        let outputs =
            exported["outputs"].as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap());
        assert_eq!((titles, outputs.collect::<Vec<_>>()), (vec!["score"], vec!["score"]));
    }
}

#[test]
fn hours_per_week_are_predicted_by_regression() {
    let scratch = tempfile::tempdir().unwrap();
    let rest = "training.loss = { kind = \"mse\" }\nevaluation.early_stopping = { patience = 3 }";
    let file = hours(scratch.path(), rest);
    let (shell, outcome) = train(scratch.path(), &file, &[]);
    let eval = &outcome["eval"];
    assert_eq!(keys(eval), BTreeSet::from(["calibration", "examples", "mae", "r2", "rmse"]));
    let number = |name: &str| eval[name].as_f64().unwrap();
    assert!(number("r2") > 0.1 && (0.9..1.1).contains(&number("calibration")), "{eval:#}");

    let run = format!("checkpoints/{}", outcome["job"].as_str().unwrap());
    let scores = shell.run(&["predict", &run]).with_code(0).stdout;
    let (titles, columns) = read_csv(&scores);
    assert_eq!((titles, columns[0].len() as u64), (vec!["score"], ROWS));
    let mean = columns[0].iter().sum::<f64>() / ROWS as f64;
    assert!((35.0..46.0).contains(&mean), "hours, not probabilities: {mean}");
    let exported = shell.run(&["export", &run, "--output", "model.onnx", "--json"]).with_code(0).json();
    assert_eq!(exported["outputs"].as_array().unwrap().len(), 1);
    assert_eq!(exported["outputs"][0]["name"], "score");

    let auc = "evaluation.early_stopping.metric=\"auc\"";
    let rejected = shell.run(&["check", file.to_str().unwrap(), "--set", auc]).with_code(2);
    let expected = "\"auc\" applies to probabilities, but the label is predicted as a number";
    assert!(rejected.stderr.contains(expected), "{}", rejected.stderr);
}
