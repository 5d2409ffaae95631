//! `batch_size = "auto"` end to end: the chosen size fits and trains like the same size written out; a worker that runs
//! out of memory gets smaller batches until there is a checkpoint, and afterwards the size is fixed.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use millstream_tests::programs::{Daemon, children, has_ended, kill, program, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::{Contents, RandomDelays, TinyJob};
use serde_json::Value;

/// Needs a few megabytes of activations per thousand rows.
const MODEL: &str = "model.deep.hidden=[512, 8]";

/// Needs a few hundred megabytes for as many rows as the data has.
const WIDE_MODEL: &str = "model.deep.hidden=[4096, 8]";

/// Less than the worker of `WIDE_MODEL` uses, and more than all other processes do.
const TOO_FEW_KIB: &str = "400000";

const AUTO: &str = "data.batch_size=auto";

fn with_set<'a>(words: &[&'a str], set: &[&'a str]) -> Vec<&'a str> {
    words.iter().copied().chain(set.iter().flat_map(|set| ["--set", set])).collect()
}

fn run(shell: &Shell, words: &[&str], set: &[&str]) -> Value {
    shell.run(&with_set(words, set)).with_code(0).json()
}

/// Trains with the data segment of every process limited to `kib` KiB.
fn train_within(job: &TinyJob, kib: &str, more: &[&str]) -> Output {
    Command::new("sh")
        .args(["-c", "ulimit -d \"$0\" && exec \"$@\"", kib])
        .arg(program("millstream"))
        .arg("--socket")
        .arg(job.directory().join("nobody.sock"))
        .args(["--json", "train"])
        .arg(job.file())
        .args(more)
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn parse(output: &Output) -> (Value, String) {
    (serde_json::from_slice(&output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn checkpoint(outcome: &Value) -> &str {
    outcome["checkpoint"].as_str().unwrap()
}

/// The batch settings stored by the run that wrote `checkpoint`.
fn stored_batch(checkpoint: &str) -> String {
    fs::read_to_string(Path::new(checkpoint).parent().unwrap().join("auto_batch.json")).unwrap()
}

fn runs(job: &TinyJob) -> Vec<PathBuf> {
    let entries = fs::read_dir(job.directory().join("checkpoints")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn has_checkpoint(run: &Path) -> bool {
    let mut entries = fs::read_dir(run).into_iter().flatten().flatten();
    entries.any(|entry| entry.path().join("manifest.json").exists())
}

/// The settings that correspond to `rows` rows, with the learning rates that `check` reports for `auto`.
fn explicit_settings(rows: u64, plan: &Value) -> [String; 3] {
    let rate = |part: &str| {
        let rate = &plan["learning_rates"]["optimizers"][format!("{part}.optimizer")];
        format!("model.{part}.optimizer.learning_rate={rate}")
    };
    [format!("data.batch_size={rows}"), rate("wide"), rate("deep")]
}

#[test]
fn the_chosen_size_fits_and_trains_like_an_explicit_one() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let limit = "data.auto_batch.memory=80MiB";
    let auto = [AUTO, limit, MODEL, "data.epochs=2"];
    let plan = run(&shell, &["check", "job.toml", "--json"], &auto);
    let rows = plan["batch"]["rows"].as_u64().unwrap();
    let found = &plan["auto_batch"];
    assert!(rows.is_power_of_two() && rows > 256, "{plan:#}");
    assert_eq!((&found["limit_bytes"], &found["limit_of"]), (&(80 << 20).into(), &limit[..22].into()));
    let memory = |key: &str| plan["memory"][key].as_u64().unwrap();
    let worker = ["model_bytes", "workspace_bytes", "checkpoint_bytes"].map(memory).iter().sum::<u64>();
    let ingest = ["ring_bytes", "pool_bytes", "reading_bytes", "fixed_bytes"].map(memory).iter().sum::<u64>();
    let needed = found["needed_bytes"].as_u64().unwrap();
    assert_eq!(needed, worker + found["process_bytes"].as_u64().unwrap() + ingest, "{plan:#}");
    assert!(needed <= 80 << 20 && needed + memory("ahead_bytes") <= 80 << 20, "{plan:#}");
    let why = found["why_not_more"].as_str().unwrap();
    assert!(
        why.contains(&format!("batches of {} rows need", 2 * rows)) && why.contains("memory limit"),
        "{why}"
    );
    let factor = (rows as f64 / 256.0).sqrt();
    assert_eq!(plan["learning_rates"]["factor"].as_f64().unwrap(), factor);

    let found = run(&shell, &["train", "job.toml", "--json"], &auto);
    let explicit = explicit_settings(rows, &plan);
    let explicit = [&explicit[0], &explicit[1], &explicit[2], MODEL, "data.epochs=2"];
    let written = run(&shell, &["train", "job.toml", "--json"], &explicit);
    let contents = |outcome| Contents::of(checkpoint(outcome)).without_job_description();
    contents(&found).assert_same(&contents(&written));
    assert_eq!(found["steps"], 2 * 24_000_u64.div_ceil(rows));
    assert_eq!(found["eval"], written["eval"]);
    assert_eq!(stored_batch(checkpoint(&found)), format!("{{\"rows\":{rows},\"limit_bytes\":{}}}", 80 << 20));

    // Every use of the checkpoint knows the batch size.
    let scored = |outcome: &Value| shell.run(&["predict", checkpoint(outcome)]).with_code(0).stdout;
    assert_eq!(scored(&found), scored(&written));
    let eval = run(&shell, &["eval", checkpoint(&found), "--json"], &[]);
    assert_eq!(eval["auc"], found["eval"]["auc"]);
    let _ = shell.run(&["export", checkpoint(&found), "--output", "model.onnx"]).with_code(0);
    let warm = format!("warm_start.checkpoint={}", checkpoint(&found));
    let warm = run(&shell, &["train", "job.toml", "--json"], &[AUTO, limit, MODEL, "data.epochs=1", &warm]);
    assert!(warm["eval"]["auc"].as_f64() > found["eval"]["auc"].as_f64(), "{warm:#}");
}

#[test]
fn workers_fit_into_the_limit_together_and_train_with_one_size() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let (model, limit) = ("model.deep.hidden=[1024, 8]", "data.auto_batch.memory=200MiB");
    let plan = |workers: &str| {
        let set = [AUTO, limit, model, workers];
        run(&shell, &["check", "job.toml", "--json"], &set)
    };
    let (one, three) = (plan("workers.per_host=1"), plan("workers.per_host=3"));
    let rows = |plan: &Value| plan["batch"]["rows"].as_u64().unwrap();
    assert!(rows(&three) <= rows(&one), "{three:#}");
    assert!(three["auto_batch"]["needed_bytes"].as_u64().unwrap() <= 200 << 20, "{three:#}");
    let why = three["auto_batch"]["why_not_more"].as_str().unwrap();
    assert!(why.contains("in 3 workers (in each"), "{why}");

    let workers = ["workers.per_host=3", model, "data.epochs=2"];
    let auto = [&workers[..], &[AUTO, limit]].concat();
    let found = run(&shell, &["train", "job.toml", "--json"], &auto);
    let explicit = explicit_settings(rows(&three), &three);
    let explicit = [&workers[..], &[&explicit[0], &explicit[1], &explicit[2]]].concat();
    let written = run(&shell, &["train", "job.toml", "--json"], &explicit);
    let contents = |outcome| Contents::of(checkpoint(outcome)).without_job_description();
    contents(&found).assert_same(&contents(&written));
    assert_eq!(found["steps"], 2 * 24_000_u64.div_ceil(rows(&three)));
}

#[test]
fn the_size_respects_the_maximum_and_too_little_memory_is_an_error() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let plan = |set: &[&str]| run(&shell, &with_set(&["check", "job.toml", "--json"], &[AUTO]), set);
    let most = plan(&["data.auto_batch.most=1000"]);
    assert_eq!(most["batch"]["rows"], 512);
    let found = &most["auto_batch"];
    assert_eq!(found["why_not_more"], "`data.auto_batch.most` is 1000");
    assert_eq!(found["limit_of"], "three quarters of the host's available memory");
    let all = plan(&[]);
    assert_eq!(all["batch"]["rows"], 16_384);
    assert_eq!(all["auto_batch"]["why_not_more"], "an epoch has 24000 rows");
    let linear = plan(&["training.batch_scaling.learning_rate=linear"]);
    assert_eq!(linear["learning_rates"]["factor"], 64.0);
    assert_eq!(linear["learning_rates"]["optimizers"]["wide.optimizer"], 6.4);
    for command in ["check", "train"] {
        let line = with_set(&[command, "job.toml"], &[AUTO, "data.auto_batch.memory=30MiB"]);
        let ended = shell.run(&line).with_code(1);
        for part in [
            "`data.batch_size = \"auto\"`: batches of 16 rows, the minimum, do not fit",
            "30.0 MiB",
            "memory limit",
        ] {
            assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
        }
    }
    assert!(runs(&job).is_empty());
}

#[test]
fn a_worker_out_of_memory_restarts_with_half_the_rows() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let set = [WIDE_MODEL, "data.epochs=1", "data.auto_batch.memory=4GiB"];
    let planned = run(&shell, &with_set(&["check", "job.toml", "--json"], &[AUTO]), &set);
    assert_eq!(planned["batch"]["rows"], 16_384);

    let output = train_within(&job, TOO_FEW_KIB, &with_set(&[], &[&set[..], &[AUTO]].concat()));
    let (outcome, log) = parse(&output);
    assert!(output.status.success(), "{log}");
    let kept: Value = serde_json::from_str(&stored_batch(checkpoint(&outcome))).unwrap();
    let rows = kept["rows"].as_u64().unwrap();
    assert!(rows.is_power_of_two() && (16..16_384).contains(&rows), "{kept}");
    let mut before = 16_384;
    while before > rows {
        let message = format!("batches of {before} rows; restarts with batches of {} rows", before / 2);
        assert_eq!(log.matches(&message).count(), 1, "{message}: {log}");
        before /= 2;
    }
    assert!(log.contains("memory allocation of") && log.contains("deep.optimizer 0.4 -> 0.2828427"), "{log}");
    assert!(outcome["reason"].as_str().unwrap().contains("too little memory for batches of"));

    // Afterwards it is equivalent to a job with this size.
    let most = format!("data.auto_batch.most={rows}");
    let plan = run(&shell, &with_set(&["check", "job.toml", "--json"], &[AUTO, &most]), &set);
    let explicit = explicit_settings(rows, &plan);
    let explicit = [&explicit[0], &explicit[1], &explicit[2], WIDE_MODEL, "data.epochs=1"];
    let written = run(&shell, &["train", "job.toml", "--json"], &explicit);
    let contents = |outcome| Contents::of(checkpoint(outcome)).without_job_description();
    contents(&outcome).assert_same(&contents(&written));
}

#[test]
fn a_wrong_plan_is_corrected_before_the_first_checkpoint() {
    corrects_a_wrong_plan("workers.per_host=1");
}

#[test]
fn a_wrong_plan_of_several_workers_is_corrected() {
    corrects_a_wrong_plan("workers.per_host=2");
}

fn corrects_a_wrong_plan(workers: &str) {
    let job = TinyJob::new();
    let file = job.file();
    let set = [AUTO, WIDE_MODEL, "data.epochs=1", "data.auto_batch.memory=4GiB", workers];
    let daemon = Daemon::start(job.directory());
    let id =
        daemon.json(&with_set(&["submit", file.to_str().unwrap()], &set))["id"].as_str().unwrap().to_owned();
    let run = job.directory().join("checkpoints").join(&id);
    let kept = run.join("auto_batch.json");
    wait_until("a size is chosen", || kept.exists());
    daemon.kill();
    assert!(!has_checkpoint(&run));
    // As if the plan had decided that these batches fit.
    fs::remove_file(run.join("checksums.sha256")).unwrap();
    fs::write(&kept, "{\"rows\":16384,\"limit_bytes\":200000000}").unwrap();
    let daemon = Daemon::start(job.directory());
    let ended = daemon.succeeded(&id);
    let rows =
        serde_json::from_str::<Value>(&stored_batch(checkpoint(&ended))).unwrap()["rows"].as_u64().unwrap();
    assert!(rows.is_power_of_two() && (16..16_384).contains(&rows), "{rows}");
    let log = daemon.run(&["logs", &id]);
    let log = String::from_utf8_lossy(&log.stdout);
    for message in ["memory allocation of", "restarts with batches of 8192 rows"] {
        assert!(log.contains(message), "{message}: {log}");
    }
    daemon.stop();
}

#[test]
fn no_size_that_the_system_allows_is_an_error() {
    let job = TinyJob::new();
    // The parameters alone exceed the system's limit, but not the configured one.
    let model = "model={ kind = \"linear\", features = [\"color_hash\"] }";
    let set = [
        AUTO,
        model,
        "features.color_hash.buckets=100000000",
        "data.auto_batch={ memory = \"16GiB\", most = 32 }",
    ];
    let output = train_within(&job, TOO_FEW_KIB, &with_set(&[], &set));
    let (outcome, log) = parse(&output);
    assert_eq!((output.status.code(), &outcome["state"]), (Some(1), &"failed".into()), "{log}");
    let reason = outcome["reason"].as_str().unwrap();
    assert!(reason.contains("not enough memory for batches of 16 rows"), "{reason}");
    assert!(log.contains("restarts with batches of 16 rows"), "{log}");
    assert!(runs(&job).is_empty());
}

#[test]
fn a_run_with_a_checkpoint_keeps_its_size_even_without_enough_memory() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let set = [AUTO, WIDE_MODEL, "data.epochs=4", "data.auto_batch.memory=4GiB", "checkpoint.every_steps=1"];
    let line = with_set(&["train", "job.toml", "--json"], &set);
    let wanted = Contents::of(checkpoint(&shell.run(&line).with_code(0).json()));

    let before = runs(&job);
    let is_new = |run: &PathBuf| !before.contains(run);
    let mut running = shell.start(&line);
    wait_until("there is a checkpoint", || {
        assert!(!running.has_ended());
        runs(&job).iter().any(|run| is_new(run) && has_checkpoint(run))
    });
    running.signal(rustix::process::Signal::KILL);
    let _ = running.wait();
    let run = runs(&job).into_iter().find(is_new).unwrap();
    let kept = fs::read(run.join("auto_batch.json")).unwrap();

    let resume = with_set(&["--resume"], &set);
    let output = train_within(&job, TOO_FEW_KIB, &resume);
    let (outcome, log) = parse(&output);
    assert_eq!((output.status.code(), &outcome["state"]), (Some(1), &"failed".into()), "{log}");
    let reason = outcome["reason"].as_str().unwrap();
    for part in ["gave up after 3 attempts", "its batches stay at 16384 rows", "`data.batch_size = 8192`"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert_eq!(fs::read(run.join("auto_batch.json")).unwrap(), kept);

    // A changed limit applies to new runs only.
    let other = [&line[..], &["--set", "data.auto_batch.memory=100MiB", "--resume"]].concat();
    let ended = shell.run(&other).with_code(0).json();
    assert_eq!(ended["job"], run.file_name().unwrap().to_str().unwrap());
    Contents::of(checkpoint(&ended)).assert_same(&wanted);
}

#[test]
fn killed_workers_and_daemons_do_not_change_the_size() {
    let job = TinyJob::new();
    let file = job.file();
    let set = [AUTO, MODEL, "data.auto_batch.memory=80MiB", "data.epochs=40", "checkpoint.every_steps=20"];
    let line = with_set(&["submit", file.to_str().unwrap()], &set);
    let submit = |daemon: &Daemon| daemon.json(&line)["id"].as_str().unwrap().to_owned();
    let mut daemon = Daemon::start(job.directory());
    let undisturbed = submit(&daemon);
    let undisturbed = daemon.succeeded(&undisturbed);
    let wanted = Contents::of(checkpoint(&undisturbed));

    let id = submit(&daemon);
    let run = job.directory().join("checkpoints").join(&id);
    // Killed before the first checkpoint: this must not count as out of memory.
    wait_until("there is a worker", || !children(daemon.pid()).is_empty());
    let killed = children(daemon.pid()).into_iter().filter(|&worker| kill(worker)).count();
    let mut delays = RandomDelays::new();
    let mut daemons = 0;
    while !has_ended(&daemon.show(&id)) && daemons < 4 {
        std::thread::sleep(delays.next(Duration::from_millis(600)));
        daemon.kill();
        daemons += 1;
        daemon = Daemon::start(job.directory());
        daemon.resume_if_held(&id);
    }
    let ended = daemon.succeeded(&id);
    assert_eq!((killed, ended["checkpoint"] != Value::Null), (1, true));
    assert_eq!(
        fs::read_to_string(run.join("auto_batch.json")).unwrap(),
        stored_batch(checkpoint(&undisturbed))
    );
    Contents::of(checkpoint(&ended)).assert_same(&wanted);
    daemon.stop();
}
