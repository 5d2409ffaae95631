//! Runs in a bucket train as those in a directory, through the deaths of daemons, slow storage and other daemons.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use millstream_test_storage::Fault;
use millstream_tests::bucket::Bucket;
use millstream_tests::programs::{Daemon, wait_until};
use millstream_tests::shell::{RunningCommand, Shell};
use millstream_tests::tiny_job::{Contents, RandomDelays, TinyJob, kill_count};
use rustix::process::Signal;
use serde_json::Value;

/// The epochs of a job that trains for seconds, and its steps.
const EPOCHS: &str = "data.epochs=24";
const STEPS: u64 = 24 * 750;

/// The runs in the bucket.
const RUNS: &str = "s3://models/runs";

/// A job, and a bucket for its runs.
struct Case {
    job: TinyJob,
    shell: Shell,
    bucket: Bucket,
}

impl Case {
    fn new() -> Self {
        let (job, bucket) = (TinyJob::new(), Bucket::start());
        let shell = Shell::new(job.directory()).with_variables(&bucket.variables());
        Self { job, shell, bucket }
    }

    /// The command line that trains in the bucket.
    fn line<'a>(more: &[&'a str]) -> Vec<&'a str> {
        let place = ["train", "job.toml", "--json", "--set", "checkpoint.directory=s3://models/runs"];
        [&place[..], &["--set", EPOCHS], more].concat()
    }

    fn start(&self, more: &[&str]) -> RunningCommand {
        self.shell.start(&Self::line(more))
    }

    /// Trains in the bucket to the end.
    fn train(&self, more: &[&str]) -> Value {
        self.shell.run(&Self::line(more)).with_code(0).json()
    }

    /// The final checkpoint of the job in a directory, without interruptions.
    fn undisturbed(&self, more: &[&str]) -> Contents {
        let line = [&["train", "job.toml", "--json", "--set", EPOCHS][..], more].concat();
        let ended = self.shell.run(&line).with_code(0).json();
        assert_eq!(ended["steps"].as_u64(), Some(STEPS));
        Contents::of(ended["checkpoint"].as_str().unwrap()).without_job_description()
    }

    /// The final checkpoint of a job in the bucket.
    fn of(&self, ended: &Value) -> Contents {
        assert_eq!(ended["steps"].as_u64(), Some(STEPS));
        let address = ended["checkpoint"].as_str().unwrap();
        assert!(address.starts_with(RUNS), "{address}");
        Contents::in_bucket(&self.bucket, address).without_job_description()
    }

    /// The number of committed checkpoints.
    fn checkpoints(&self) -> usize {
        self.bucket.server.names().iter().filter(|name| name.ends_with("/manifest.json")).count()
    }

    /// Waits for the first checkpoint.
    fn wait_for_checkpoint(&self) {
        wait_until("there is a checkpoint", || self.checkpoints() > 0);
    }

    fn lease(&self) -> Value {
        let names = self.bucket.server.names();
        let name = names.iter().find(|name| name.ends_with("/lease.json")).unwrap();
        serde_json::from_slice(&self.bucket.server.get(name).unwrap()).unwrap()
    }
}

#[test]
fn a_run_in_a_bucket_has_the_bits_of_one_in_a_directory() {
    let case = Case::new();
    let wanted = case.undisturbed(&[]);
    let events = ["--set", "tensorboard.directory=s3://models/logs", "--set", "tensorboard.every_steps=50"];
    let ended = case.train(&events);
    case.of(&ended).assert_same(&wanted);
    assert_eq!(case.checkpoints(), 2, "`keep`");
    assert_eq!(case.lease()["is_released"], true);
    assert_eq!(case.bucket.server.uploads(), 0);
    // Nothing but the other run is in a local directory.
    assert_eq!(fs::read_dir(case.job.directory().join("checkpoints")).unwrap().count(), 1);

    let id = ended["job"].as_str().unwrap();
    let events: Vec<_> = case.bucket.objects(&format!("models/logs/{id}/")).collect();
    let [(name, bytes)] = &events[..] else { panic!("{:?}", case.bucket.server.names()) };
    assert!(name.starts_with("events.out.tfevents.") && name.ends_with(".0000"), "{name}");
    let count = bytes.windows(10).filter(|bytes| bytes == b"train/loss").count() as u64;
    assert_eq!(count, STEPS / 50);

    let run = format!("{RUNS}/{id}");
    let metrics = case.shell.run(&["eval", &run, "--json"]).with_code(0).json();
    assert_eq!(metrics["auc"], ended["eval"]["auc"]);
    let finished = case.shell.run(&Case::line(&["--resume"])).with_code(1).stderr;
    assert!(finished.contains("no unfinished run of this job in s3://models/runs"), "{finished}");
}

#[test]
fn runs_in_a_bucket_survive_kills_of_the_daemon() {
    let case = Case::new();
    let wanted = case.undisturbed(&[]);
    let mut delays = RandomDelays::new();
    let mut more: &[&str] = &[];
    for _ in 0..kill_count(4) {
        let command = case.start(more);
        case.wait_for_checkpoint();
        std::thread::sleep(delays.next(Duration::from_millis(600)));
        command.signal(Signal::KILL);
        command.wait();
        more = &["--resume"];
    }
    // Another daemon has an unfinished run unless the last one had time to finish it.
    let ended = case.shell.run(&Case::line(more));
    if ended.code() == 0 {
        case.of(&ended.json()).assert_same(&wanted);
    } else {
        assert!(ended.stderr.contains("no unfinished run"), "{}", ended.stderr);
    }
    let runs = case.bucket.server.names().iter().filter(|name| name.ends_with("/lease.json")).count();
    assert_eq!(runs, 1);
}

#[test]
fn a_job_whose_bucket_fails_for_a_while_writes_its_checkpoints_later() {
    let case = Case::new();
    let wanted = case.undisturbed(&[]);
    let command = case.start(&[]);
    case.wait_for_checkpoint();
    // Permanent for the request, so nothing retries it but the job.
    case.bucket.server.script(vec![Fault::WriteStatus(403); 3]);
    wait_until("all writes have failed", || case.bucket.server.unmet() == 0);
    let ended = command.wait().with_code(0);
    assert!(ended.stderr.contains("could not be written"), "{}", ended.stderr);
    case.of(&ended.json()).assert_same(&wanted);
    assert_eq!(case.bucket.server.uploads(), 0);
}

#[test]
fn two_workers_write_to_a_bucket() {
    let case = Case::new();
    // Models of which each worker writes a file, and the order of whose sums is fixed.
    let workers = ["--set", "workers.per_host=2", "--set", "workers.reproducible=2"];
    let wanted = case.undisturbed(&workers);
    let command = case.start(&workers);
    case.wait_for_checkpoint();
    command.signal(Signal::KILL);
    command.wait();
    let names = case.bucket.server.names();
    let newest = names.iter().rfind(|name| name.ends_with("/manifest.json")).unwrap();
    let step = newest.strip_suffix("manifest.json").unwrap();
    let parts: Vec<_> =
        case.bucket.objects(step).filter(|(name, _)| name.ends_with(".safetensors")).collect();
    case.of(&case.train(&[&workers[..], &["--resume"]].concat())).assert_same(&wanted);
    assert_eq!(parts.len(), 2);
    let served = |name: &str| case.bucket.server.served(&format!("{step}{name}")).bytes;
    let (served, size) = parts
        .iter()
        .fold((0, 0), |(all, size), (name, bytes)| (all + served(name), size + bytes.len() as u64));
    // A slow request may be repeated.
    assert!(served < 2 * size, "{served} of {size} bytes: the workers read them from storage once");
}

#[test]
fn a_daemon_takes_over_a_run_whose_holder_gives_no_sign_of_life() {
    let case = Case::new();
    let long = ["--set", "data.epochs=50000"];
    let first = case.start(&long);
    case.wait_for_checkpoint();

    let refused = case.shell.run(&Case::line(&[&long[..], &["--resume"]].concat())).with_code(1).stderr;
    let holder = format!("process {} on host", first.pid());
    assert!(refused.contains(&holder) && refused.contains("which renews its lease"), "{refused}");

    first.signal(Signal::STOP);
    let before = case.lease();
    let second = case.start(&[&long[..], &["--resume"]].concat());
    let began = Instant::now();
    wait_until("the other daemon trains", || case.lease()["term"].as_u64() > before["term"].as_u64());
    assert!(began.elapsed() > Duration::from_secs(25), "{:?}", began.elapsed());
    first.signal(Signal::CONT);
    let ended = first.wait().with_code(1);
    let taken = format!("process {} on host", second.pid());
    assert!(ended.stderr.contains(&taken) && ended.stderr.contains("taken over"), "{}", ended.stderr);
    second.signal(Signal::INT);
    assert_eq!(second.wait().code(), 130);
    // Of the term of the second, and complete.
    let run = case.bucket.server.names().into_iter().find(|name| name.ends_with("/lease.json")).unwrap();
    let address = format!("s3://{}", run.strip_suffix("/lease.json").unwrap());
    let metrics = case.shell.run(&["eval", &address, "--json"]).with_code(0).json();
    assert!(metrics["auc"].as_f64() > Some(0.9), "{metrics}");
}

#[test]
fn a_search_keeps_its_trials_in_a_bucket() {
    let case = Case::new();
    let search = "\n[search]\ntrials = 3\nmetric = \"auc\"\n\
                  [search.parameters]\n\"model.deep.dropout\" = { min = 0.0, max = 0.5 }\n";
    let text = fs::read_to_string(case.job.file()).unwrap();
    fs::write(case.job.file(), text.replace("epochs = 24", "epochs = 1") + search).unwrap();
    let place = ["--set", "checkpoint.directory=s3://models/searches"];
    let ended = case.shell.run(&[&["train", "job.toml", "--json"], &place[..]].concat()).with_code(0).json();
    let id = ended["job"].as_str().unwrap();
    let names = case.bucket.server.names();
    let of_trials = |end: &str| {
        let start = format!("models/searches/{id}/");
        names.iter().filter(|name| name.starts_with(&start) && name.ends_with(end)).count()
    };
    assert_eq!(of_trials("/lease.json"), 1 + 3, "of the search and its trials");
    assert_eq!(of_trials("/manifest.json"), 3 * 2, "`keep`");
    assert_eq!(of_trials("/analysis.json"), 3 + 3 * 2 + 1, "of runs, checkpoints and the shared inputs");
}

#[test]
fn a_run_in_a_bucket_is_repeated_and_continued() {
    let case = Case::new();
    let first = case.train(&["--set", "data.epochs=2"]);
    let address = format!("{RUNS}/{}", first["job"].as_str().unwrap());
    let line =
        ["train", "job.toml", "--json", "--set", "checkpoint.directory=s3://models/runs", "--continue"];
    let continued = case.shell.run(&[&line[..], &[&address, "--set", "data.epochs=3"]].concat());
    let continued = continued.with_code(0).json();
    assert_eq!(continued["steps"].as_u64(), Some(3 * 750));
    let lineage = case.shell.run(&["lineage", continued["checkpoint"].as_str().unwrap(), "--json"]).json();
    let [origin] = &lineage["origins"].as_array().unwrap()[..] else { panic!("{lineage:#}") };
    assert_eq!((&origin["run"]["id"], &origin["relation"]), (&first["job"], &"continues".into()));
    assert!(lineage["train"]["sha256"] == origin["run"]["train"]["sha256"], "{lineage:#}");
}

#[test]
fn a_daemon_serves_jobs_in_a_bucket() {
    let case = Case::new();
    let variables = case.bucket.variables();
    let paths: Vec<_> = variables.iter().map(|(name, value)| (*name, Path::new(value))).collect();
    let daemon = Daemon::start_in(case.job.directory(), &paths);
    let place = format!("checkpoint.directory={RUNS}");
    let set = [place.as_str(), "data.epochs=50000", "checkpoint.keep_best=true"];
    let id = daemon.submit(&case.job.file(), &set);
    case.wait_for_checkpoint();
    let taken = daemon.json(&["checkpoint", &id]);
    let run = format!("{RUNS}/{id}");
    assert!(taken["path"].as_str().unwrap().starts_with(&run), "{taken}");
    daemon.json(&["pause", &id]);
    assert_eq!(case.lease()["is_released"], true);
    let shown = daemon.show(&id);
    assert_eq!(shown["directory"], run);
    assert!(shown["best_checkpoint"].as_str().unwrap().starts_with(&run), "{shown}");
    let metrics = daemon.json(&["eval", &id]);
    assert!(metrics["auc"].as_f64() > Some(0.9), "{metrics}");

    // The daemon is killed; the next one has the lease at once, because the holder was a process of this host.
    daemon.json(&["resume", &id]);
    let before = case.lease()["term"].as_u64();
    wait_until("it trains again", || case.lease()["term"].as_u64() > before);
    daemon.kill();
    let began = Instant::now();
    let daemon = Daemon::start_in(case.job.directory(), &paths);
    let before = case.lease()["term"].as_u64();
    wait_until("it trains again", || case.lease()["term"].as_u64() > before);
    assert!(began.elapsed() < Duration::from_secs(28), "{:?}", began.elapsed());
    daemon.json(&["cancel", &id]);
    let again = daemon.json(&["rerun", &id, "--set", "data.epochs=1"]);
    let again = daemon.succeeded(again["id"].as_str().unwrap());
    assert!(again["directory"].as_str().unwrap().starts_with(RUNS), "{again}");
    daemon.stop();
}

#[test]
fn doctor_tries_the_bucket_of_a_job() {
    let case = Case::new();
    let text = fs::read_to_string(case.job.file()).unwrap();
    fs::write(
        case.job.file(),
        text.replace("directory = \"checkpoints\"", "directory = \"s3://models/runs\""),
    )
    .unwrap();
    let found = case.shell.run(&["doctor", "job.toml", "--quick"]).stdout;
    let line =
        |found: &str| found.lines().find(|line| line.contains("bucket.checkpoint")).unwrap().to_owned();
    assert!(line(&found).starts_with("ok ") && line(&found).contains(RUNS), "{found}");
    assert_eq!(case.bucket.server.names(), [] as [String; 0], "it leaves nothing");
    case.bucket.server.script([Fault::WriteStatus(403)]);
    let found = case.shell.run(&["doctor", "job.toml", "--quick"]).stdout;
    assert!(line(&found).starts_with("fail") && line(&found).contains("403"), "{found}");
}
