//! Scheduled evaluations, early stopping and the best checkpoints, end to end.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use millstream_tests::programs::{Daemon, children, has_ended, kill, wait_until};
use millstream_tests::shell::{Completed, Shell};
use millstream_tests::tiny_job::{Contents, RandomDelays, TinyJob, kill_count};
use serde_json::Value;

/// Steps per epoch: 24,000 rows in batches of 32.
const EPOCH: u64 = 750;

fn train(shell: &Shell, set: &[&str]) -> Value {
    let mut line = vec!["train", "job.toml", "--json"];
    line.extend(set.iter().flat_map(|set| ["--set", set]));
    shell.run(&line).with_code(0).json()
}

/// The step and the AUC of each evaluation of a job.
fn evaluations(daemon: &Daemon, id: &str) -> Vec<(u64, f64)> {
    let history = daemon.json(&["history", id]);
    let of = |point: &Value| (point["step"].as_u64().unwrap(), point["metrics"]["auc"].as_f64().unwrap());
    history["evaluations"].as_array().unwrap().iter().map(of).collect()
}

fn manifest(checkpoint: &Path) -> Value {
    serde_json::from_slice(&fs::read(checkpoint.join("manifest.json")).unwrap()).unwrap()
}

#[test]
fn evaluation_does_not_change_training() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let weights = |outcome: &Value| {
        assert_eq!(outcome["eval"]["examples"], 6_000, "{outcome:#}");
        Contents::of(outcome["checkpoint"].as_str().unwrap()).without_job_description()
    };
    let usual = train(&shell, &["data.epochs=2"]);
    let often = train(&shell, &["data.epochs=2", "evaluation.every_steps=170"]);
    let seldom = train(&shell, &["data.epochs=2", "evaluation.every_epochs=2"]);
    for other in [&often, &seldom] {
        weights(other).assert_same(&weights(&usual));
        assert_eq!(other["eval"], usual["eval"], "the last evaluation is of the same weights");
    }
}

#[test]
fn a_share_of_the_training_data_is_held_out() {
    const ROWS: u64 = 24_000;
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let divided = ["data.epochs=2", "data.eval=[]", "data.validation={ fraction = 0.2, column = \"x\" }"];
    let check =
        shell.run(&["check", "job.toml", "--set", divided[1], "--set", divided[2]]).with_code(0).stdout;
    let eval = check.lines().find(|line| line.starts_with("eval ")).unwrap();
    assert!(eval.ends_with(" ~4,800"), "{check}");
    let outcome = train(&shell, &divided);
    let held_out = outcome["eval"]["examples"].as_u64().unwrap();
    assert!((ROWS / 6..ROWS / 4).contains(&held_out), "{outcome:#}");
    assert_eq!(outcome["examples"], 2 * (ROWS - held_out), "{outcome:#}");
    let checkpoint = outcome["checkpoint"].as_str().unwrap();
    let eval =
        |more: &[&str]| shell.run(&[&["eval", checkpoint, "--json"], more].concat()).with_code(0).json();
    assert_eq!(eval(&[])["auc"], outcome["eval"]["auc"]);
    assert_eq!(eval(&["train-*.parquet"])["examples"], ROWS, "given files are scored whole");

    // Two passes fill the cache with the rows of both sides, and the third reads them from it.
    let cache = "data.cache={ directory = \"cache\", max_bytes = \"1GiB\" }";
    let again = ["data.epochs=3", "evaluation.every_epochs=1", divided[1], divided[2]];
    let plain = train(&shell, &again);
    let cached = train(&shell, &[&again[..], &[cache]].concat());
    assert_eq!(cached["eval"], plain["eval"]);
    let weights =
        |outcome: &Value| Contents::of(outcome["checkpoint"].as_str().unwrap()).without_job_description();
    weights(&cached).assert_same(&weights(&plain));

    let by_filter = |of: &str, op: &str| {
        format!("data.{of}_filter=[{{ column = \"color\", op = \"{op}\", value = \"color 7\" }}]")
    };
    let (train_rows, eval_rows) = (by_filter("train", "!="), by_filter("eval", "=="));
    let one = train(&shell, &["data.epochs=1", "data.eval=[\"train-*.parquet\"]", &train_rows, &eval_rows]);
    let examples = |of: &Value| of["examples"].as_u64().unwrap();
    assert_eq!(examples(&one) + examples(&one["eval"]), ROWS, "{one:#}");
}

#[test]
fn sampled_negatives_leave_predictions_calibrated() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let all = train(&shell, &["data.epochs=8"]);
    let sampled = train(&shell, &["data.epochs=8", "data.negatives=0.25"]);
    let rows = |outcome: &Value| outcome["examples"].as_u64().unwrap();
    assert!(rows(&sampled) < rows(&all) * 3 / 4, "{sampled:#}");
    assert_eq!(sampled["eval"]["examples"], all["eval"]["examples"], "all held-out rows count");
    let metric = |outcome: &Value, name: &str| outcome["eval"][name].as_f64().unwrap();
    assert!((0.9..1.1).contains(&metric(&sampled, "calibration")), "{sampled:#}");
    assert!(metric(&sampled, "auc") > metric(&all, "auc") - 0.01, "{sampled:#}");
    let refused = ["train", "job.toml", "--set", "data.negatives=0.25", "--set", "training.loss.kind=mse"];
    let refused = shell.run(&refused).with_code(2).stderr;
    assert!(refused.contains("needs a model of one label that is 0 or 1"), "{refused}");
}

#[test]
fn killed_workers_neither_lose_an_evaluation_nor_change_early_stopping() {
    const KILLS: u32 = 4;
    const MAX_DELAY: std::time::Duration = std::time::Duration::from_millis(500);
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let set = [
        "data.epochs=12",
        "evaluation.every_steps=130",
        "evaluation.every_epochs=2",
        "evaluation.early_stopping={ metric = \"log_loss\", patience = 6, min_delta = 0.0001 }",
        "checkpoint.keep_best=2",
    ];
    let id = daemon.submit(&job.file(), &set);
    let undisturbed = daemon.succeeded(&id);
    let wanted = evaluations(&daemon, &id);
    let stopped = undisturbed["progress"]["step"].as_u64().unwrap();
    assert!(stopped < 12 * EPOCH, "{undisturbed:#}");
    let due = |step: u64| step.is_multiple_of(130) || step.is_multiple_of(2 * EPOCH);
    let steps: Vec<u64> = (1..=stopped).filter(|&step| due(step)).collect();
    assert_eq!(wanted.iter().map(|(step, _)| *step).collect::<Vec<_>>(), steps);
    assert!(steps.len() > 6);
    let reason = undisturbed["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("stopped early: log_loss has not fallen by more than 0.0001 since"),
        "{reason}"
    );

    let mut delays = RandomDelays::new();
    let (mut kills, wanted_kills) = (0, kill_count(KILLS));
    while kills < wanted_kills {
        let id = daemon.submit(&job.file(), &set);
        while kills < wanted_kills && !has_ended(&daemon.show(&id)) {
            let before = daemon.show(&id)["checkpoint"].clone();
            std::thread::sleep(delays.next(MAX_DELAY));
            kills += children(daemon.pid()).into_iter().filter(|&worker| kill(worker)).count() as u32;
            wait_until("there is a new checkpoint", || {
                let job = daemon.show(&id);
                has_ended(&job) || job["checkpoint"] != before
            });
        }
        let disturbed = daemon.succeeded(&id);
        assert_eq!(disturbed["reason"], undisturbed["reason"]);
        assert_eq!(evaluations(&daemon, &id), wanted);
        let contents = |job: &Value| Contents::of(job["checkpoint"].as_str().unwrap());
        contents(&disturbed).assert_same(&contents(&undisturbed));
    }
    daemon.stop();
}

#[test]
fn an_interrupted_evaluation_is_repeated_before_the_next_step() {
    const INTERRUPTED: u32 = 3;
    const MAX_ATTEMPTS: u32 = 200;
    const MAX_DELAY: std::time::Duration = std::time::Duration::from_millis(400);
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let line = ["train", "job.toml", "--json", "--set", "data.epochs=1", "--set", "evaluation.every_steps=5"];
    let resume = [&line[..], &["--resume"]].concat();
    let contents = |outcome: &Value| Contents::of(outcome["checkpoint"].as_str().unwrap());
    let undisturbed = shell.run(&line).with_code(0).json();

    let assert_undisturbed = |ended: Completed| {
        let outcome = ended.with_code(0).json();
        contents(&outcome).assert_same(&contents(&undisturbed));
        assert_eq!(outcome["eval"], undisturbed["eval"]);
    };

    let mut delays = RandomDelays::new();
    let mut max_delay = MAX_DELAY;
    let (mut attempts, mut interrupted) = (0, 0);
    let mut running = shell.start(&line);
    while interrupted < INTERRUPTED {
        attempts += 1;
        assert!(attempts < MAX_ATTEMPTS, "{interrupted} of {attempts} interrupts hit an evaluation");
        std::thread::sleep(delays.next(max_delay));
        running.signal(rustix::process::Signal::INT);
        let ended = running.wait();
        if ended.code() == 0 {
            assert_undisturbed(ended);
            running = shell.start(&line);
            continue;
        }
        let has_outcome = ended.code() == 130 && !ended.stdout.is_empty();
        let outcome = if has_outcome { ended.json() } else { Value::Null };
        match outcome["checkpoint"].as_str() {
            Some(checkpoint) => {
                let manifest = manifest(Path::new(checkpoint));
                interrupted += u32::from(manifest["snapshot"]["eval_due"] == true);
            }
            // Interrupted before training started. A slow machine needs more time.
            None => max_delay += MAX_DELAY,
        }
        running = shell.start(if ended.stderr.contains("no unfinished run") { &line } else { &resume });
    }
    assert_undisturbed(running.wait());
}

#[test]
fn missing_held_out_data_fails_the_job_and_is_named() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let id = daemon.submit(&job.file(), &["data.epochs=500", "evaluation.every_steps=50"]);
    wait_until("the job has been evaluated", || !evaluations(&daemon, &id).is_empty());
    fs::remove_file(job.directory().join("eval.parquet")).unwrap();
    let mut shown = Value::Null;
    wait_until("the job ends", || {
        shown = daemon.show(&id);
        has_ended(&shown)
    });
    assert_eq!(shown["state"], "failed");
    assert!(shown["reason"].as_str().unwrap().contains("eval.parquet"), "{shown:#}");
    assert!(children(daemon.pid()).is_empty());
    daemon.stop();
}

#[test]
fn the_best_checkpoint_survives_rotation_and_is_used_for_scoring() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let set = [
        "data.epochs=3",
        "evaluation.every_steps=50",
        "checkpoint.every_steps=50",
        "checkpoint.keep=1",
        "checkpoint.keep_best=true",
        // Too high, so that the best checkpoint is not the last.
        "model.deep.optimizer.learning_rate=0.5",
        "checkpoint.best_metric=\"log_loss\"",
    ];
    let id = daemon.submit(&job.file(), &set);
    let shown = daemon.succeeded(&id);
    let history = daemon.json(&["history", &id]);
    let of =
        |point: &Value| (point["step"].as_u64().unwrap(), point["metrics"]["log_loss"].as_f64().unwrap());
    let all = history["evaluations"].as_array().unwrap().iter().map(of);
    let (step, log_loss) = all.reduce(|best, next| if next.1 < best.1 { next } else { best }).unwrap();

    let best = Path::new(shown["best_checkpoint"].as_str().unwrap());
    assert!(best.ends_with(format!("step-{step:010}")), "{best:?} is of step {step}");
    let newest = Path::new(shown["checkpoint"].as_str().unwrap());
    assert_eq!(manifest(newest)["snapshot"]["standing"]["best"][0]["step"], step);
    assert_ne!(best, newest, "the best checkpoint must not be the last");
    let directory = Path::new(shown["directory"].as_str().unwrap());
    let steps = fs::read_dir(directory)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("step-"));
    assert_eq!(steps.count(), 2, "the newest and the best");

    for target in [&["eval", &id, "--best"][..], &["eval", best.to_str().unwrap()]] {
        assert_eq!(daemon.json(target)["log_loss"].as_f64(), Some(log_loss), "{target:?}");
    }
    assert_ne!(daemon.json(&["eval", &id])["log_loss"].as_f64(), Some(log_loss));
    let rejected = daemon.run(&["eval", best.to_str().unwrap(), "--best"]);
    assert!(String::from_utf8_lossy(&rejected.stderr).contains("is a checkpoint already"));
    daemon.stop();
}
