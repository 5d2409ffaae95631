//! Warm starts from another job's weights, end to end.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;

/// Almost no learning, on other data, with a vocabulary in another order and additional features.
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
    // Without normalization, whose statistics would differ between the data sets.
    let mut line = vec![command, "job.toml", "--json", "--set", "features.x.normalize=none"];
    line.extend(set.iter().flat_map(|set| ["--set", set]));
    shell.run(&line).with_code(0).json()
}

#[test]
fn a_warm_start_reproduces_the_quality_of_its_source() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let source = run(&shell, "train", &["data.epochs=3"]);
    let checkpoint = source["checkpoint"].as_str().unwrap();
    let warm = format!("warm_start.checkpoint={}", Path::new(checkpoint).parent().unwrap().display());
    let set: Vec<&str> = NEXT.into_iter().chain([warm.as_str()]).collect();

    let plan = &run(&shell, "check", &set)["warm_start"];
    assert_eq!(plan["checkpoint"], checkpoint);
    let in_part: Vec<&str> =
        plan["in_part"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(in_part, ["deep.layer.0.weight"], "{plan:#}");
    let initialized: Vec<&String> = plan["initialized"].as_object().unwrap().keys().collect();
    assert_eq!(initialized, ["deep.embedding.range", "wide.dense", "wide.ids.range"], "{plan:#}");

    let warm_started = run(&shell, "train", &set);
    for metric in ["auc", "log_loss", "calibration"] {
        let [before, after] =
            [&source, &warm_started].map(|outcome| outcome["eval"][metric].as_f64().unwrap());
        assert!((before - after).abs() < 1e-5, "{metric} went from {before} to {after}");
    }
    let cold = run(&shell, "train", &NEXT);
    assert!(cold["eval"]["auc"].as_f64().unwrap() < warm_started["eval"]["auc"].as_f64().unwrap() - 0.1);
}

#[test]
fn an_unusable_checkpoint_is_rejected_before_training() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let rejected = |set: &str| {
        let ended = shell.run(&["train", "job.toml", "--set", set]).with_code(1);
        ended.stderr
    };
    let message = rejected("warm_start.checkpoint=nowhere");
    assert!(message.contains("`warm_start.checkpoint`") && message.contains("nowhere"), "{message}");
    let linear = ["model={ kind = \"linear\", features = [\"color\"] }", "data.epochs=1", "name=linear"];
    let source = run(&shell, "train", &linear);
    let checkpoint = source["checkpoint"].as_str().unwrap();
    let message = rejected(&format!("warm_start.checkpoint={checkpoint}"));
    let wanted = "a model of kind `wide_deep` cannot start from the weights of a model of kind `linear`";
    assert!(message.contains(wanted) && message.contains(checkpoint), "{message}");
    let kept = fs::read_dir(job.directory().join("checkpoints")).unwrap();
    let kept: Vec<_> = kept.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(kept.iter().all(|name| name.starts_with("linear-")), "{kept:?}");
}
