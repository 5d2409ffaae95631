//! A job that begins with another one's weights, by the built programs.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;

/// The least that optimizers can do, over other data, whose vocabulary has another order, and more features.
const NEXT: [&str; 9] = [
    "name=next",
    "data.epochs=1",
    "data.train=[\"train-0.parquet\"]",
    "features.range={ kind = \"bucketized\", column = \"x\", boundaries = [2, 5] }",
    "features.half={ kind = \"numeric\", column = \"x\" }",
    "model.wide.features=[\"half\", \"color_hash\", \"range\", \"color\"]",
    "model.deep.features=[\"half\", \"range\", \"color\", \"x\"]",
    "model.wide.optimizer={ kind = \"sgd\", learning_rate = 1e-12 }",
    "model.deep.optimizer={ kind = \"sgd\", learning_rate = 1e-12 }",
];

fn run(shell: &Shell, command: &str, set: &[&str]) -> Value {
    // Statistics of other data would scale numbers otherwise.
    let mut line = vec![command, "job.toml", "--json", "--set", "features.x.normalize=none"];
    line.extend(set.iter().flat_map(|set| ["--set", set]));
    shell.run(&line).with_code(0).json()
}

#[test]
fn a_job_goes_on_from_what_another_has_learned() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let then = run(&shell, "train", &["data.epochs=3"]);
    let checkpoint = then["checkpoint"].as_str().unwrap();
    let warm = format!("warm_start.checkpoint={}", Path::new(checkpoint).parent().unwrap().display());
    let set: Vec<&str> = NEXT.into_iter().chain([warm.as_str()]).collect();

    let told = &run(&shell, "check", &set)["warm_start"];
    assert_eq!(told["checkpoint"], checkpoint);
    let in_part: Vec<&str> =
        told["in_part"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(in_part, ["deep.layer.0.weight"], "{told:#}");
    let anew: Vec<&String> = told["anew"].as_object().unwrap().keys().collect();
    assert_eq!(anew, ["deep.embedding.range", "wide.dense", "wide.ids.range"], "{told:#}");

    let now = run(&shell, "train", &set);
    for metric in ["auc", "log_loss", "calibration"] {
        let [then, now] = [&then, &now].map(|outcome| outcome["eval"][metric].as_f64().unwrap());
        assert!((then - now).abs() < 1e-5, "{metric} went from {then} to {now}");
    }
    let cold = run(&shell, "train", &NEXT);
    assert!(cold["eval"]["auc"].as_f64().unwrap() < now["eval"]["auc"].as_f64().unwrap() - 0.1);
}

#[test]
fn a_checkpoint_that_is_of_no_use_is_refused_before_anything_is_trained() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let refused = |set: &str| {
        let ended = shell.run(&["train", "job.toml", "--set", set]).with_code(1);
        ended.stderr
    };
    let told = refused("warm_start.checkpoint=nowhere");
    assert!(told.contains("`warm_start.checkpoint`") && told.contains("nowhere"), "{told}");
    let linear = ["model={ kind = \"linear\", features = [\"color\"] }", "data.epochs=1", "name=linear"];
    let then = run(&shell, "train", &linear);
    let checkpoint = then["checkpoint"].as_str().unwrap();
    let told = refused(&format!("warm_start.checkpoint={checkpoint}"));
    let wanted = "a model of kind `wide_deep` cannot begin with the weights of one of kind `linear`";
    assert!(told.contains(wanted) && told.contains(checkpoint), "{told}");
    let kept = fs::read_dir(job.directory().join("checkpoints")).unwrap();
    let kept: Vec<_> = kept.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(kept.iter().all(|name| name.starts_with("linear-")), "{kept:?}");
}
