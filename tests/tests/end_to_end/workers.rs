//! Several workers that train one model together: the same result as one worker, and all of them restarted when one is lost.
//!
//! UCX must be installed to run these tests, as `tests/run` does.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use millstream_tests::programs::{Daemon, children, has_ended, is_alive, kill, wait_until};
use millstream_tests::shell::{Completed, Shell};
use millstream_tests::table::Table;
use millstream_tests::tiny_job::{Contents, TinyJob, draw, kill_count};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Epochs of the tiny job: enough to be interrupted several times.
const EPOCHS: u64 = 6;

/// Rows of the tiny job, and its steps, in an epoch.
const ROWS: u64 = 24_000;
const STEPS: u64 = ROWS / 32;

/// Kills in a run of `tests/run`.
const KILLS: u32 = 5;

/// The tiny job's settings for `workers` workers.
fn settings(workers: u32) -> [String; 2] {
    [format!("workers.per_host={workers}"), format!("data.epochs={EPOCHS}")]
}

/// Runs `millstream COMMAND job.toml` with these settings.
fn run(shell: &Shell, command: &[&str], set: &[String]) -> Completed {
    let mut line = command.to_vec();
    line.extend(set.iter().flat_map(|set| ["--set", set]));
    shell.run(&line)
}

/// Asserts that a job, as `show` prints it, has trained on each row of the tiny data once an epoch.
fn assert_complete(job: &Value) {
    assert_eq!(job["state"], "succeeded", "{job:#}");
    assert_eq!(job["progress"]["examples"].as_u64(), Some(EPOCHS * ROWS), "{job:#}");
    assert_eq!(job["progress"]["step"].as_u64(), Some(EPOCHS * STEPS), "{job:#}");
}

/// Asserts the same of a report of `train`, for `rows` rows in `steps` steps an epoch.
fn assert_trained(report: &Value, rows: u64, steps: u64) {
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(report["examples"].as_u64(), Some(EPOCHS * rows), "{report:#}");
    assert_eq!(report["steps"].as_u64(), Some(EPOCHS * steps), "{report:#}");
}

/// Waits until the job has a checkpoint that differs from `before`, or has ended. Returns the job.
fn new_checkpoint(daemon: &Daemon, id: &str, before: &Value) -> Value {
    let mut job = Value::Null;
    wait_until("there is a new checkpoint", || {
        job = daemon.show(id);
        has_ended(&job) || job["checkpoint"] != *before
    });
    job
}

#[test]
fn the_census_example_ends_alike_with_any_number_of_workers() {
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/census/job.toml");
    // Rounded gradients lead elsewhere, but not far.
    let settings = [(1, "fp32", 0.0), (2, "fp32", 1e-4), (3, "fp32", 1e-4), (2, "bf16", 2e-3)];
    let reports: Vec<Value> = settings
        .iter()
        .map(|(workers, gradients, _)| {
            let scratch = tempfile::tempdir().unwrap();
            let directory = format!("checkpoint.directory={}", scratch.path().join("checkpoints").display());
            let set = [
                directory,
                format!("workers.per_host={workers}"),
                format!("workers.gradient_precision={gradients}"),
                "data.epochs=4".to_owned(),
            ];
            let trained = run(&Shell::new(scratch.path()), &["train", job.to_str().unwrap(), "--json"], &set);
            trained.with_code(0).json()
        })
        .collect();
    let [one, others @ ..] = &reports[..] else { unreachable!() };
    assert!(one["examples"].as_u64() > Some(100_000), "{one:#}");
    for (other, (workers, gradients, tolerance)) in others.iter().zip(&settings[1..]) {
        for key in ["examples", "steps"] {
            assert_eq!(other[key], one[key], "{key}");
        }
        assert_eq!(other["eval"]["examples"], one["eval"]["examples"]);
        for metric in ["auc", "log_loss", "accuracy"] {
            let [other, one] = [other, one].map(|report| report["eval"][metric].as_f64().unwrap());
            let what = format!("{workers} workers, {gradients}, {metric}");
            assert!((other - one).abs() < *tolerance, "{what}: {other} and {one}");
        }
    }
    assert_ne!(reports[1]["eval"]["log_loss"], reports[3]["eval"]["log_loss"], "gradients are rounded");
}

#[test]
fn all_workers_are_restarted_when_one_is_killed() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let mut random = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let (mut kills, wanted_kills) = (0, kill_count(KILLS));
    while kills < wanted_kills {
        let id = daemon.submit(&job.file(), &settings(3));
        let mut before = Value::Null;
        while kills < wanted_kills {
            let state = new_checkpoint(&daemon, &id, &before);
            if has_ended(&state) {
                break;
            }
            before = state["checkpoint"].clone();
            let workers = children(daemon.pid());
            let victim = workers.get(draw(&mut random, 3) as usize);
            // Between attempts there are fewer.
            if !victim.is_some_and(|&victim| kill(victim)) {
                continue;
            }
            kills += 1;
            wait_until("all workers are gone", || !workers.iter().any(|&pid| is_alive(pid)));
        }
        assert_complete(&daemon.succeeded(&id));
        let log = daemon.log(&id);
        let deaths = log.lines().filter(|line| line.contains("; resuming in")).collect::<Vec<_>>();
        let is_named = |line: &&&str| line.contains(" of 3 was killed by signal 9");
        assert_eq!(deaths.iter().filter(is_named).count(), deaths.len(), "{log}");
    }
    assert!(children(daemon.pid()).is_empty());
    daemon.stop();
}

/// With two workers, one of them is killed.
#[test]
fn reproducible_jobs_have_the_same_bits_for_every_number_of_workers() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let models = [1, 2, 4].map(|workers| {
        let set = [&settings(workers)[..], &["workers.reproducible=4".to_owned()]].concat();
        let id = daemon.submit(&job.file(), &set);
        if workers == 2 {
            new_checkpoint(&daemon, &id, &Value::Null);
            assert!(kill(children(daemon.pid())[1]), "a worker trains");
        }
        let ended = daemon.succeeded(&id);
        assert_complete(&ended);
        assert_eq!(daemon.log(&id).contains("; resuming in"), workers == 2);
        let checkpoint = Path::new(ended["checkpoint"].as_str().unwrap());
        ["model.safetensors", "optimizer.safetensors"].map(|part| fs::read(checkpoint.join(part)).unwrap())
    });
    assert!(models.iter().all(|model| *model == models[0]));
    daemon.stop();
}

/// The bytes that a process has passed to the system to write.
fn written_bytes(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
    written.parse().unwrap()
}

/// Whether the newest checkpoint in the run directory has no manifest yet.
fn is_writing(run: &Path) -> bool {
    let entries = fs::read_dir(run).unwrap().map(|entry| entry.unwrap());
    let steps = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("step-"));
    steps.map(|entry| entry.path()).max().is_some_and(|newest| !newest.join("manifest.json").exists())
}

/// With 77 MB of embeddings and as much state of their optimizer, a checkpoint has several files.
#[test]
fn each_worker_writes_files_of_a_checkpoint() {
    const FILE_BYTES: u64 = 64 << 20;
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let checkpoints = [1, 2].map(|workers| {
        let set = [
            format!("workers.per_host={workers}"),
            "workers.reproducible=2".to_owned(),
            "data.epochs=2".to_owned(),
            "features.color_hash.buckets=1200000".to_owned(),
            r#"model.deep.features=["x", "color_hash"]"#.to_owned(),
            "model.deep.embedding_dim=16".to_owned(),
            format!("checkpoint.every_steps={}", STEPS / 5),
        ];
        let id = daemon.submit(&job.file(), &set);
        if workers == 2 {
            let run = job.directory().join("checkpoints").join(&id);
            let mut pids = Vec::new();
            for victim in [1, 0] {
                pids = new_workers(&daemon, &id, 2, &pids);
                // That of these workers, not one that their predecessors committed at their end.
                let before = daemon.show(&id)["checkpoint"].clone();
                new_checkpoint(&daemon, &id, &before);
                assert!(pids.iter().all(|&pid| written_bytes(pid) > FILE_BYTES), "both have written files");
                wait_until("a checkpoint is being written", || is_writing(&run));
                assert!(kill(pids[victim]), "worker {victim} lives");
                wait_until("all workers are gone", || !pids.iter().any(|&pid| is_alive(pid)));
            }
        }
        let ended = daemon.succeeded(&id);
        assert_eq!(ended["attempts"].as_u64(), Some(if workers == 2 { 3 } else { 1 }), "{ended:#}");
        Contents::of(ended["checkpoint"].as_str().unwrap()).without_job_description()
    });
    let [one, two] = checkpoints;
    two.assert_same(&one);
    let names: Vec<_> = one.names().filter(|name| name.contains("-of-")).collect();
    let files =
        ["model", "optimizer"].map(|role| [1, 2].map(|n| format!("{role}-0000{n}-of-00002.safetensors")));
    assert_eq!(names, files.concat());
    daemon.stop();
}

/// Waits until `count` workers of a job train that are none of `before`, or it has ended. Returns their processes, by rank.
fn new_workers(daemon: &Daemon, id: &str, count: usize, before: &[u32]) -> Vec<u32> {
    let mut workers = Vec::new();
    wait_until("new workers train", || {
        let job = daemon.show(id);
        assert!(!has_ended(&job), "{job:#}");
        let pids = job["workers"].as_array().into_iter().flatten().map(|worker| worker["pid"].as_u64());
        workers = pids.map(|pid| pid.unwrap() as u32).collect();
        workers.len() == count && !workers.iter().any(|pid| before.contains(pid))
    });
    workers
}

/// Kills worker `rank` of `count` in two attempts in a row. Returns the processes of the second one.
fn kill_twice(daemon: &Daemon, id: &str, count: usize, rank: usize) -> Vec<u32> {
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers = new_workers(daemon, id, count, &workers);
        assert!(kill(workers[rank]), "worker {rank} lives");
        wait_until("all workers are gone", || !workers.iter().any(|&pid| is_alive(pid)));
    }
    workers
}

/// With 4 parts of each batch, 2 of the 3 other workers can continue; of two workers, one continues alone.
#[test]
fn a_job_without_a_failing_worker_ends_with_the_same_bits() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let models = [1, 2, 4].map(|workers| {
        let more = ["workers.reproducible=4", "workers.min=1", "checkpoint.every_steps=1000000"];
        let set = [&settings(workers)[..], &more.map(str::to_owned)].concat();
        let id = daemon.submit(&job.file(), &set);
        if workers > 1 {
            kill_twice(&daemon, &id, workers as usize, 1);
            let mut fewer = Value::Null;
            wait_until("a worker is left out", || {
                let job = daemon.show(&id);
                assert!(!has_ended(&job), "{job:#}");
                fewer = job["fewer_workers"].clone();
                !fewer.is_null()
            });
            let reason = format!("worker 1 of {workers} was killed by signal 9");
            assert_eq!((&fewer["members"], &fewer["all"]), (&(workers / 2).into(), &workers.into()));
            let [left_out] = &fewer["left_out"].as_array().unwrap()[..] else { panic!("{fewer:#}") };
            assert_eq!((&left_out["worker"], &left_out["gpu"]), (&1.into(), &Value::Null));
            assert!(left_out["reason"].as_str().unwrap().starts_with(&reason), "{fewer:#}");
            let text = String::from_utf8(daemon.run(&["show", &id]).stdout).unwrap();
            let shown = format!("{} of {workers}; worker 1 is left out: {reason}", workers / 2);
            assert!(text.contains(&shown), "{text}");
        }
        let ended = daemon.succeeded(&id);
        assert_complete(&ended);
        assert!(ended["fewer_workers"].is_null(), "{ended:#}");
        let log = daemon.log(&id);
        let continues =
            format!("; continues with {} of {workers} workers, without worker 1; resuming in", workers / 2);
        assert_eq!(log.contains(&continues), workers > 1, "{log}");
        let checkpoint = Path::new(ended["checkpoint"].as_str().unwrap());
        ["model.safetensors", "optimizer.safetensors"].map(|part| fs::read(checkpoint.join(part)).unwrap())
    });
    assert!(models.iter().all(|model| *model == models[0]));
    daemon.stop();
}

#[test]
fn a_resumed_job_tries_a_worker_again_that_was_left_out() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let more = ["workers.min=2", "checkpoint.every_steps=1000000"].map(str::to_owned);
    let id = daemon.submit(&job.file(), &[&settings(3)[..], &more].concat());
    let killed = kill_twice(&daemon, &id, 3, 2);
    let two = new_workers(&daemon, &id, 2, &killed);
    daemon.json(&["pause", &id]);
    wait_until("the job is paused", || daemon.show(&id)["state"] == "paused");
    daemon.json(&["resume", &id]);
    new_workers(&daemon, &id, 3, &two);
    assert!(daemon.show(&id)["fewer_workers"].is_null());

    // Of the two that remain, none is left out: the job fails after three deaths.
    let mut workers = kill_twice(&daemon, &id, 3, 0);
    for _ in 0..3 {
        workers = new_workers(&daemon, &id, 2, &workers);
        assert!(kill(workers[0]));
        wait_until("all workers are gone", || !workers.iter().any(|&pid| is_alive(pid)));
    }
    wait_until("the job fails", || has_ended(&daemon.show(&id)));
    let failed = daemon.show(&id);
    let reason = failed["reason"].as_str().unwrap();
    let gave_up =
        "gave up after 3 attempts without a new checkpoint or image; last failure: worker 0 of 2 was killed";
    assert!(failed["state"] == "failed" && reason.starts_with(gave_up), "{failed:#}");
    daemon.stop();
}

#[test]
fn a_worker_that_hangs_is_named() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let set = ["workers.timeout_seconds=6", "tensorboard.directory=curves"].map(str::to_owned);
    let set = [&settings(3)[..], &set].concat();
    let id = daemon.submit(&job.file(), &set);
    let workers = new_workers(&daemon, &id, 3, &[]);
    new_checkpoint(&daemon, &id, &Value::Null);
    // Process ids start again at low numbers, so those of ranks need not ascend.
    let [ranks, found] = [workers.clone(), children(daemon.pid())].map(BTreeSet::from_iter);
    assert_eq!(ranks, found);
    let shown = |rank: usize| daemon.show(&id)["workers"][rank].clone();
    for rank in 0..workers.len() {
        let worker = shown(rank);
        assert_eq!(worker["rank"].as_u64(), Some(rank as u64));
        let share = worker["exchange_fraction"].as_f64();
        assert!(share.is_some_and(|share| share > 0.0 && share < 1.0), "{worker:#}");
    }
    let explained = daemon.json(&["explain", &id]);
    let of_workers = explained["workers"].as_array().unwrap().iter();
    let pids: Vec<_> = of_workers.map(|worker| worker["pid"].as_u64().unwrap() as u32).collect();
    assert_eq!(pids, workers, "{explained:#}");
    let hanging = Pid::from_raw(workers[1] as i32).unwrap();
    kill_process(hanging, Signal::STOP).unwrap();
    wait_until("the worker is named", || !shown(1)["awaited_seconds"].is_null());
    assert!(is_alive(workers[1]), "it is named before the time limit");
    let [first, second, third] = [0, 1, 2].map(shown);
    assert!(
        second["awaited_in"].as_str().is_some_and(|exchange| exchange.contains(", number ")),
        "{second:#}"
    );
    assert!(first["awaited_in"].is_null() && third["awaited_in"].is_null(), "{first:#} {third:#}");
    let text = String::from_utf8(daemon.run(&["show", &id]).stdout).unwrap();
    assert!(text.contains(&format!("process {}, the others have waited for it for ", workers[1])), "{text}");

    wait_until("all workers are gone", || !workers.iter().any(|&pid| is_alive(pid)));
    let ended = daemon.succeeded(&id);
    assert_complete(&ended);
    assert!(ended["workers"].is_null(), "{ended:#}");
    let log = daemon.log(&id);
    let named =
        "worker 1 of 3 hangs, or needs more than `workers.timeout_seconds` = 6: the others waited for it in ";
    assert!(log.contains(named), "{log}");
    let files = fs::read_dir(job.directory().join("curves").join(&id)).unwrap();
    let events = files.flat_map(|file| fs::read(file.unwrap().path()).unwrap()).collect::<Vec<u8>>();
    for (rank, is_there) in [(0, true), (1, true), (2, true), (3, false)] {
        let tag = format!("workers/{rank}/exchange_fraction");
        assert_eq!(events.windows(tag.len()).any(|bytes| bytes == tag.as_bytes()), is_there, "{tag}");
    }
    daemon.stop();
}

#[test]
fn each_worker_can_be_profiled() {
    const STEPS: u64 = 20;
    let job = TinyJob::new();
    let (shell, daemon) = (Shell::new(job.directory()), Daemon::start(job.directory()));
    let set = ["workers.per_host=2", "data.epochs=100000"].map(str::to_owned);
    let id = daemon.submit(&job.file(), &set);
    wait_until("the workers train", || daemon.show(&id)["progress"]["step"].as_u64() > Some(0));
    let pids = children(daemon.pid());
    for rank in [1, 0] {
        let (number, steps, file) = (rank.to_string(), STEPS.to_string(), format!("{rank}.json"));
        let line = ["profile", &id, "--rank", &number, "--steps", &steps, "--output", &file, "--json"];
        let profile = shell.run(&line).with_code(0).json();
        let found = ["rank", "workers", "steps", "examples"].map(|key| profile[key].as_u64().unwrap());
        assert_eq!(found, [rank as u64, 2, STEPS, 32 * STEPS], "{profile:#}");
        let seconds = |phase: &str| {
            let phases = profile["phases"].as_array().unwrap();
            phases.iter().find(|sum| sum["phase"] == phase).map(|sum| sum["seconds"].as_f64().unwrap())
        };
        assert!(seconds("exchange") > Some(0.0) && seconds("agreement") > Some(0.0), "{profile:#}");
        let trace: Value = serde_json::from_slice(&fs::read(job.directory().join(&file)).unwrap()).unwrap();
        assert_eq!(trace["otherData"]["rank"], rank);
        let mut events = trace["traceEvents"].as_array().unwrap().iter();
        let worker = events.find(|event| event["args"]["name"] == format!("millstream worker {rank}"));
        assert_eq!(worker.unwrap()["pid"], pids[rank], "the process of worker {rank}");
    }
    let text = shell.run(&["profile", &id, "--rank", "1", "--steps", "2"]).with_code(0).stdout;
    assert!(text.starts_with("rank        1 of 2 workers\n"), "{text}");

    // A client that disconnects ends the recording of that worker.
    let running = shell.start(&["profile", &id, "--rank", "1", "--steps", "1000000000"]);
    wait_until("recording begins", || running.stderr().contains("recording job"));
    running.signal(Signal::INT);
    let interrupted = running.wait().with_code(130);
    assert!(interrupted.stderr.contains("interrupted"), "{}", interrupted.stderr);
    wait_until("the next profile is recorded", || {
        shell.run(&["profile", &id, "--steps", "2", "--output", "next.json"]).status.success()
    });

    let refused = shell.run(&["profile", &id, "--rank", "2", "--output", "none.json"]).with_code(2);
    let wanted = format!("job {id}: rank 2 is out of range: the job has 2 workers, ranks 0 to 1");
    assert!(refused.stderr.contains(&wanted), "{}", refused.stderr);
    assert!(!job.directory().join("none.json").exists());
    daemon.json(&["cancel", &id]);
    daemon.stop();
}

#[test]
fn ctrl_c_leaves_no_worker_and_any_number_of_workers_resumes() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let has_checkpoint =
        || shell.files().iter().any(|path| path.file_name().is_some_and(|name| name == "manifest.json"));
    for (workers, command) in [(2, ["train", "job.toml", "--json"].as_slice()), (4, &RESUME), (1, &RESUME)] {
        let set = settings(workers);
        let mut line = command.to_vec();
        line.extend(set.iter().flat_map(|set| ["--set", set]));
        let running = shell.start(&line);
        wait_until("the workers train", || {
            children(running.pid()).len() == workers as usize && has_checkpoint()
        });
        running.signal(Signal::INT);
        // Also waits until no process is left.
        let ended = running.wait().with_code(130);
        assert_eq!(ended.json()["state"], "cancelled", "{}", ended.stderr);
    }
    let ended = run(&shell, &RESUME, &settings(3)).with_code(0);
    assert_trained(&ended.json(), ROWS, STEPS);
}

const RESUME: [&str; 4] = ["train", "job.toml", "--json", "--resume"];

#[test]
fn a_file_with_fewer_rows_than_workers_fill_is_trained_completely() {
    let job = TinyJob::new();
    for file in 0..4 {
        fs::remove_file(job.directory().join(format!("train-{file}.parquet"))).unwrap();
    }
    Table::clicks(100, 7).write_parquet(&job.directory().join("train-0.parquet"));
    let shell = Shell::new(job.directory());
    let set = settings(4);
    let report = run(&shell, &["train", "job.toml", "--json"], &set).with_code(0).json();
    // The fourth batch has 4 rows, all for the first worker.
    assert_trained(&report, 100, 4);
    assert_eq!(report["eval"]["examples"].as_u64(), Some(6_000), "{report:#}");
}

#[test]
fn evaluations_by_steps_and_best_checkpoints_are_those_of_one_worker() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let evaluations = |workers| {
        let mut set = settings(workers).to_vec();
        set.extend(["evaluation.every_steps=400", "checkpoint.keep_best=2"].map(str::to_owned));
        let report = run(&shell, &["train", "job.toml", "--json"], &set).with_code(0).json();
        assert_trained(&report, ROWS, STEPS);
        report["eval"]["auc"].as_f64().unwrap()
    };
    let (one, two) = (evaluations(1), evaluations(2));
    assert!((one - two).abs() < 1e-4, "{one} and {two}");
}

#[test]
fn check_prints_the_workers_and_their_memory() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let report =
        |workers| run(&shell, &["check", "job.toml", "--json"], &settings(workers)).with_code(0).json();
    let (one, four) = (report(1), report(4));
    assert_eq!((&one["workers"], &four["workers"]), (&1.into(), &4.into()));
    let memory = |report: &Value, part: &str| report["memory"][part].as_u64().unwrap();
    assert_eq!(memory(&four, "model_bytes"), 4 * memory(&one, "model_bytes"));
    assert_eq!(memory(&four, "checkpoint_bytes"), memory(&one, "checkpoint_bytes"));
    let text = run(&shell, &["check", "job.toml"], &settings(4)).with_code(0).stdout;
    assert!(text.contains("4 on this host, each with 8 rows of a batch"), "{text}");
}

#[test]
fn batch_normalization_is_over_the_rows_of_all_workers() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let normalized = "model.deep.normalization=\"batch\"".to_owned();
    let trained = [1, 2, 3].map(|workers| {
        let set = [&settings(workers)[..], std::slice::from_ref(&normalized)].concat();
        let report = run(&shell, &["train", "job.toml", "--json"], &set).with_code(0).json();
        assert_trained(&report, ROWS, STEPS);
        report["eval"]["log_loss"].as_f64().unwrap()
    });
    assert!(trained.iter().all(|loss| (loss - trained[0]).abs() < 1e-4), "{trained:?}");

    // Parts that are computed one after another do not know the rows of each other.
    let set = [&settings(2)[..], &[normalized, "workers.reproducible=4".to_owned()]].concat();
    let refused = run(&shell, &["check", "job.toml"], &set).with_code(2).stderr;
    assert!(refused.contains("batch normalization depends on all rows of a batch"), "{refused}");
}

#[test]
fn a_host_without_ucx_reports_the_package_to_install() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let set = settings(2);
    let line = ["train", "job.toml", "--set", &set[0], "--set", &set[1]];
    let mut command = shell.command(&line);
    let output = command.env("MILLSTREAM_UCX_LIBRARIES", job.directory()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("install package libucx0 (deb) or ucx (rpm)"), "{stderr}");
}
