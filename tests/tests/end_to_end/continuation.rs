//! `--continue`: a finished run goes on for more epochs, with the bits of one longer run, or on other data.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use millstream_tests::programs::{Daemon, children, has_ended, kill, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::{Contents, TinyJob};
use serde_json::Value;

/// Steps per epoch: 24,000 rows in batches of 32.
const EPOCH: u64 = 750;

fn train(shell: &Shell, arguments: &[&str], set: &[&str]) -> Value {
    let mut line = [&["train", "--json"], arguments].concat();
    line.extend(set.iter().flat_map(|set| ["--set", set]));
    shell.run(&line).with_code(0).json()
}

fn checkpoint(outcome: &Value) -> &Path {
    Path::new(outcome["checkpoint"].as_str().unwrap())
}

fn run(outcome: &Value) -> &str {
    checkpoint(outcome).parent().unwrap().to_str().unwrap()
}

fn state(outcome: &Value) -> Contents {
    Contents::of(checkpoint(outcome)).without_job_description()
}

#[test]
fn more_epochs_have_the_bits_of_one_longer_run() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let whole = train(&shell, &["job.toml"], &["data.epochs=4"]);
    let short = train(&shell, &["job.toml"], &["data.epochs=2"]);
    let longer = train(&shell, &["--continue", run(&short)], &["data.epochs=4"]);
    assert_ne!(run(&longer), run(&short));
    assert_eq!(longer["steps"], 4 * EPOCH);
    for same in ["steps", "examples", "eval"] {
        assert_eq!(longer[same], whole[same], "{same}");
    }
    state(&longer).assert_same(&state(&whole));

    // From within an epoch.
    let steps = |path: &Path| path.file_name()?.to_str()?.strip_prefix("step-")?.parse::<u64>().ok();
    let within = fs::read_dir(run(&short)).unwrap().map(|entry| entry.unwrap().path());
    let within = within.filter(|path| steps(path).is_some_and(|step| step % EPOCH != 0)).max();
    let within = within.expect("a checkpoint within an epoch");
    let from_within = train(&shell, &["--continue", within.to_str().unwrap()], &["data.epochs=4"]);
    state(&from_within).assert_same(&state(&whole));
    // A continued run can be continued.
    let between = train(&shell, &["--continue", run(&short)], &["data.epochs=3"]);
    let again = train(&shell, &["--continue", run(&between)], &["data.epochs=4"]);
    state(&again).assert_same(&state(&whole));
}

#[test]
fn a_killed_continuation_has_the_same_bits() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let file = job.file();
    let submit = |arguments: &[&str], epochs: &str| {
        let line =
            [&["submit"], arguments, &["--set", epochs, "--set", "checkpoint.every_steps=1000"]].concat();
        daemon.json(&line)["id"].as_str().unwrap().to_owned()
    };
    let job_file = [file.to_str().unwrap()];
    let short = daemon.succeeded(&submit(&job_file, "data.epochs=2"));
    let whole = daemon.succeeded(&submit(&job_file, "data.epochs=8"));
    let continued = submit(&["--continue", run(&short)], "data.epochs=8");
    // Before and after its own first checkpoint.
    for step in [2 * EPOCH + 50, 2 * EPOCH + 1_500] {
        wait_until("the continuation is under way", || {
            let job = daemon.show(&continued);
            has_ended(&job) || job["progress"]["step"].as_u64().is_some_and(|now| now >= step)
        });
        children(daemon.pid()).into_iter().for_each(|worker| _ = kill(worker));
    }
    state(&daemon.succeeded(&continued)).assert_same(&state(&whole));
    daemon.stop();
}

#[test]
fn training_goes_on_with_other_data() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let first = train(&shell, &["job.toml"], &["data.epochs=2", "data.train=[\"train-0.parquet\"]"]);
    let steps = first["steps"].as_u64().unwrap();
    let next = ["data.epochs=1", "data.train=[\"train-1.parquet\"]"];
    let plan = ["check", "--json", "--continue", run(&first), "--set", next[0], "--set", next[1]];
    let plan = &shell.run(&plan).with_code(0).json()["continuation"];
    assert_eq!((&plan["step"], &plan["is_same_data"]), (&steps.into(), &false.into()));
    let second = train(&shell, &["--continue", run(&first)], &next);
    assert_eq!(second["steps"], steps + 6_000_u64.div_ceil(32));
    assert_eq!(second["examples"], 3 * 6_000);
    let statistics = |outcome: &Value| fs::read(checkpoint(outcome).join("analysis.json")).unwrap();
    assert_eq!(statistics(&second), statistics(&first), "vocabularies keep their ids");
    // Slowly enough to change almost nothing: it goes on from the weights of the first.
    let slow = ["model.wide.optimizer={ kind = \"sgd\", learning_rate = 1e-12 }"];
    let refused = [&["train", "--continue", run(&first), "--set", slow[0]], &["--set", next[1]][..]].concat();
    let other_optimizer = shell.run(&refused).with_code(1).stderr;
    assert!(other_optimizer.contains("optimizer"), "{other_optimizer}");
    let gained = |outcome: &Value| outcome["eval"]["auc"].as_f64().unwrap();
    assert!(gained(&second) > gained(&first) - 0.01, "{second:#}");
}

#[test]
fn what_cannot_be_continued_is_refused() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let first = train(&shell, &["job.toml"], &["data.epochs=1"]);
    let refused = |arguments: &[&str], code: i32| {
        let line = [&["train"], arguments].concat();
        shell.run(&line).with_code(code).stderr
    };
    let no_more = refused(&["--continue", run(&first)], 1);
    assert!(
        no_more.contains("has trained for 1 epoch of this data") && no_more.contains("increase"),
        "{no_more}"
    );
    let set = ["--set", "features.color_hash.buckets=60", "--set", "data.epochs=2"];
    let changed = refused(&[&["--continue", run(&first)], &set[..]].concat(), 1);
    assert!(changed.contains("`features.color_hash.buckets` (50, now 60)"), "{changed}");
    let nowhere = refused(&["--continue", "checkpoints"], 2);
    assert!(
        nowhere.contains("expected the directory of a run") && nowhere.contains("no checkpoint"),
        "{nowhere}"
    );
    let nothing = refused(&[], 2);
    assert!(nothing.contains("JOB.toml"), "{nothing}");
}
