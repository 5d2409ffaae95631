//! `millstream profile` of a real daemon's job: the recording is consistent and does not affect the model.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use millstream_test_cuda::StandIn;
use millstream_tests::programs::{Daemon, children, kill, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::{Contents, TinyJob};
use rustix::process::Signal;
use serde_json::Value;

/// Rows per batch of the tiny job.
const ROWS: u64 = 32;

/// More epochs than the job can finish during a test.
const FOREVER: &str = "data.epochs=100000";

/// Steps of several milliseconds, 12 per epoch, so that the test can act between steps.
const SLOW: [&str; 2] = ["data.batch_size=2048", "model.deep.hidden=[256, 256]"];

struct Bench {
    job: TinyJob,
    shell: Shell,
    daemon: Daemon,
}

impl Bench {
    fn new() -> Self {
        let job = TinyJob::new();
        let (shell, daemon) = (Shell::new(job.directory()), Daemon::start(job.directory()));
        Self { job, shell, daemon }
    }

    fn submit(&self, set: &[&str]) -> String {
        let line = ["submit", "job.toml"].into_iter().chain(set.iter().flat_map(|set| ["--set", set]));
        self.shell.run(&line.collect::<Vec<_>>()).with_code(0).stdout.trim().to_owned()
    }

    /// Waits until a job has made steps.
    fn wait_until_training(&self, id: &str) {
        wait_until("the job trains", || self.step(id) > 0);
    }

    fn wait_until_queued(&self, id: &str) {
        wait_until("the job is prepared", || self.daemon.show(id)["waits_for"].is_string());
    }

    fn step(&self, id: &str) -> u64 {
        self.daemon.show(id)["progress"]["step"].as_u64().unwrap()
    }

    /// Starts a profile that would never finish, and waits until its recording has begun.
    fn start_recording(&self, id: &str) -> millstream_tests::shell::RunningCommand {
        let mut profile = self.shell.start(&["profile", id, "--steps", "1000000000"]);
        wait_until("recording begins", || {
            assert!(!profile.has_ended(), "{}", profile.stderr());
            profile.stderr().contains(&format!("recording job {id}"))
        });
        profile
    }
}

fn events(trace: &Value, category: &str) -> Vec<Value> {
    let events = trace["traceEvents"].as_array().unwrap().iter();
    events.filter(|event| event["cat"] == category).cloned().collect()
}

fn names(events: &[Value]) -> BTreeSet<&str> {
    events.iter().map(|event| event["name"].as_str().unwrap()).collect()
}

/// The start and end of all complete events of each thread, in file order.
fn threads(trace: &Value) -> BTreeMap<(u64, u64), Vec<(f64, f64)>> {
    let mut threads = BTreeMap::<_, Vec<_>>::new();
    for event in trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X") {
        let [pid, tid] = ["pid", "tid"].map(|key| event[key].as_u64().unwrap());
        let [start, length] = ["ts", "dur"].map(|key| event[key].as_f64().unwrap());
        assert!(start >= 0.0 && length >= 0.0, "{event}");
        threads.entry((pid, tid)).or_default().push((start, start + length));
    }
    threads
}

/// Asserts that each event lies within an earlier one, or after it.
fn assert_nested(events: &[(f64, f64)]) {
    /// Times are integral nanoseconds, written as microseconds.
    const ROUNDING: f64 = 1e-4;
    let mut around: Vec<f64> = Vec::new();
    for &(start, end) in events {
        while around.last().is_some_and(|&outer| outer <= start + ROUNDING) {
            around.pop();
        }
        assert!(
            around.last().is_none_or(|&outer| end <= outer + ROUNDING),
            "{start} to {end} overlaps the end of its parent"
        );
        around.push(end);
    }
}

#[test]
fn a_profile_records_the_next_steps_and_their_ingest() {
    const STEPS: u64 = 600;
    let bench = Bench::new();
    let id = bench.submit(&[FOREVER, "checkpoint.every_steps=40", "evaluation.every_steps=50"]);
    bench.wait_until_training(&id);
    let line = ["profile", "tiny", "--steps", "600", "--json"];
    let profile = bench.shell.run(&line).with_code(0).json();
    assert_eq!(
        (&profile["job"], &profile["steps"], &profile["full"]),
        (&id.as_str().into(), &STEPS.into(), &false.into())
    );
    assert_eq!(profile["examples"], STEPS * ROWS);

    // The phases add up to the whole, and the operations do not exceed it.
    let seconds = profile["seconds"].as_f64().unwrap();
    let sum = |key: &str| {
        profile[key].as_array().unwrap().iter().map(|part| part["seconds"].as_f64().unwrap()).sum::<f64>()
    };
    assert!((sum("phases") / seconds - 1.0).abs() < 1e-9, "{profile:#}");
    assert!(sum("operations") > 0.0 && sum("operations") <= seconds, "{profile:#}");
    let phases = profile["phases"].as_array().unwrap().iter().map(|part| part["phase"].as_str().unwrap());
    let wanted = [
        "wait",
        "upload",
        "plan",
        "forward",
        "loss",
        "backward",
        "update",
        "read",
        "release",
        "evaluation",
        "checkpoint",
        "other",
    ];
    assert_eq!(phases.collect::<Vec<_>>(), wanted);
    let operations = profile["operations"].as_array().unwrap();
    let layers: Vec<_> = operations
        .iter()
        .filter(|sum| sum["operation"] == "layer_forward" && sum["phase"] == "forward")
        .collect();
    assert_eq!(layers.len(), 3, "two hidden layers and one of logits: {layers:?}");
    for operation in operations {
        assert!(
            operation["roofline"].as_f64() >= Some(0.0) && operation["calls"].as_u64() > Some(0),
            "{operation}"
        );
    }
    assert!(
        layers.iter().all(|layer| layer["calls"] == STEPS && layer["flops_per_second"].as_f64() > Some(0.0))
    );
    for rate in ["bytes_per_second", "flops_per_second"] {
        assert!(profile["device"][rate].as_f64() > Some(1e8), "{profile:#}");
    }
    assert!(profile["ingest"]["bound"].is_string());

    // The file is named after the job.
    let path = bench.job.directory().join(format!("{id}.trace.json"));
    assert_eq!(profile["trace"], format!("{id}.trace.json"));
    let trace: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let steps = events(&trace, "step");
    assert_eq!(steps.len() as u64, STEPS);
    assert!(steps.iter().all(|step| step["args"]["rows"] == ROWS));
    let (ingest, waits, fetches) =
        (events(&trace, "ingest"), events(&trace, "wait"), events(&trace, "fetch"));
    assert_eq!(names(&ingest), BTreeSet::from(["decode", "pack", "shuffle", "transform"]));
    let packed: u64 = ingest
        .iter()
        .filter(|span| span["name"] == "pack")
        .map(|span| span["args"]["rows"].as_u64().unwrap_or(0))
        .sum();
    assert!(packed > 0 && names(&waits).contains("wait for a free slot"), "{:?}", names(&waits));
    assert!(fetches.len() >= 2 && fetches.iter().all(|event| event["ph"] == "b" || event["ph"] == "e"));
    let processes: BTreeSet<_> = trace["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["pid"].as_u64().unwrap())
        .collect();
    let worker = children(bench.daemon.pid());
    assert_eq!(processes, BTreeSet::from([u64::from(bench.daemon.pid()), u64::from(worker[0])]));
    let threads = threads(&trace);
    assert!(threads.len() >= 4, "the worker, the packer and lanes: {:?}", threads.keys());
    threads.values().for_each(|events| assert_nested(events));

    // Human-readable output, and an explicit file name, which is overwritten.
    fs::write(bench.job.directory().join("mine.json"), "old").unwrap();
    let text =
        bench.shell.run(&["profile", &id, "--steps", "3", "--output", "mine.json"]).with_code(0).stdout;
    for wanted in ["PART OF A STEP", "ROOFLINE", "bottleneck", "ui.perfetto.dev", "mine.json"] {
        assert!(text.contains(wanted), "{text}");
    }
    let trace: Value =
        serde_json::from_slice(&fs::read(bench.job.directory().join("mine.json")).unwrap()).unwrap();
    assert_eq!(events(&trace, "step").len(), 3);
    bench.daemon.json(&["cancel", &id]);
    bench.daemon.stop();
}

/// Timed by a GPU's clock, on a stand-in.
#[test]
fn gpu_operations_list_their_kernels() {
    const STEPS: u64 = 5;
    let (job, stand_in) = (TinyJob::new(), StandIn::whole().unwrap());
    let cache = job.directory().join("cache");
    let of_gpu = [("MILLSTREAM_CUDA_LIBRARIES", stand_in.folder()), ("CACHE_DIRECTORY", cache.as_path())];
    let daemon = Daemon::start_in(job.directory(), &of_gpu);
    let bench = Bench { shell: Shell::new(job.directory()), job, daemon };
    let id = bench.submit(&[FOREVER, "training.device=cuda"]);
    bench.wait_until_training(&id);
    let line = ["profile", "tiny", "--steps", "5", "--json", "--output", "gpu.json"];
    let profile = bench.shell.run(&line).with_code(0).json();
    let kernels = profile["kernels"].as_array().unwrap();
    let calls = |name: &str| {
        let kernel = kernels.iter().find(|kernel| kernel["kernel"] == name);
        kernel.map_or(0, |kernel| kernel["calls"].as_u64().unwrap())
    };
    // Three layers: forward, and the gradients with respect to weights and to input. That of the last layer's weights is no product.
    let called = ["loss", "product", "weigh_inputs"].map(calls);
    assert_eq!(called, [STEPS, 8 * STEPS, STEPS], "{kernels:#?}");

    let trace = fs::read(bench.job.directory().join("gpu.json")).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let found = events(&trace, "kernel");
    assert!(names(&found).is_superset(&BTreeSet::from(["gather", "product", "step_pieces"])));
    let total: u64 = kernels.iter().map(|kernel| kernel["calls"].as_u64().unwrap()).sum();
    assert_eq!(found.len() as u64, total);
}

#[test]
fn a_profile_does_not_change_the_model() {
    let bench = Bench::new();
    let set = [SLOW[0], SLOW[1], "data.epochs=20", "checkpoint.every_steps=50"];
    let undisturbed = bench.daemon.succeeded(&bench.submit(&set));
    let wanted = Contents::of(undisturbed["checkpoint"].as_str().unwrap());
    let id = bench.submit(&set);
    bench.wait_until_training(&id);
    let mut profiles = 0;
    for _ in 0..3 {
        let ended = bench.shell.run(&["profile", &id, "--steps", "20"]);
        profiles += u32::from(ended.status.success());
    }
    assert!(profiles > 0, "the job ended too soon");
    let profiled = bench.daemon.succeeded(&id);
    Contents::of(profiled["checkpoint"].as_str().unwrap()).assert_same(&wanted);
    bench.daemon.stop();
}

#[test]
fn impossible_profiles_are_rejected_and_interrupted_ones_reported() {
    let bench = Bench::new();
    let rejected = |id: &str, wanted: &str| {
        let ended = bench.shell.run(&["profile", id, "--steps", "5"]).with_code(1);
        assert!(ended.stderr.contains(wanted), "{}", ended.stderr);
        assert!(!bench.job.directory().join(format!("{id}.trace.json")).exists());
    };
    rejected("nope", "no job `nope`");
    let none = bench.shell.run(&["profile", "nope", "--steps", "0"]).with_code(2);
    assert!(none.stderr.contains("--steps"), "{}", none.stderr);
    let running = bench.submit(&[SLOW[0], SLOW[1], FOREVER]);
    bench.wait_until_training(&running);
    let waiting = bench.submit(&["name=waiting"]);
    bench.wait_until_queued(&waiting);
    rejected(&waiting, &format!("job {waiting} is queued"));
    let nowhere = bench.shell.run(&["profile", &running, "--output", "no/such/trace.json"]).with_code(1);
    assert!(nowhere.stderr.contains("writing no/such/trace.json"), "{}", nowhere.stderr);
    let no_rank = bench.shell.run(&["profile", &running, "--rank", "1"]).with_code(2);
    let wanted = format!("job {running}: rank 1 is out of range: the job has one worker, rank 0");
    assert!(no_rank.stderr.contains(&wanted), "{}", no_rank.stderr);

    // Only one recording at a time. Ctrl-C ends it but not the job, and the next profile can start.
    let profile = bench.start_recording(&running);
    let second = bench.shell.run(&["profile", &running, "--output", "second.json"]).with_code(1);
    let wanted = "it is already being profiled, and only one profile can be recorded at a time";
    assert!(second.stderr.contains(wanted), "{}", second.stderr);
    profile.signal(Signal::INT);
    let ended = profile.wait().with_code(130);
    assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    assert!(!bench.job.directory().join(format!("{running}.trace.json")).exists());
    wait_until("the next profile is recorded", || {
        let line = ["profile", &running, "--steps", "2", "--output", "next.json"];
        bench.shell.run(&line).status.success()
    });

    // If the worker dies, the recording is lost, but the job continues.
    let profile = bench.start_recording(&running);
    assert!(children(bench.daemon.pid()).into_iter().any(kill));
    let ended = profile.wait().with_code(1);
    assert!(
        ended.stderr.contains("the recording is lost") && ended.stderr.contains("SIGKILL"),
        "{}",
        ended.stderr
    );
    wait_until("a new worker trains", || {
        let line = ["profile", &running, "--steps", "2", "--output", "new.json"];
        bench.shell.run(&line).status.success()
    });

    // If the job is cancelled or ends, the steps so far are written.
    let profile = bench.start_recording(&running);
    let step = || bench.daemon.show(&running)["progress"]["step"].as_u64();
    let before = step();
    wait_until("a step is recorded", || step() > before.map(|step| step + 1));
    bench.daemon.json(&["cancel", &running]);
    let ended = profile.wait().with_code(0);
    assert!(ended.stderr.contains("of 1,000,000,000 steps: the job ended"), "{}", ended.stderr);
    assert!(bench.job.directory().join(format!("{running}.trace.json")).exists());
    fs::remove_file(bench.job.directory().join(format!("{running}.trace.json"))).unwrap();
    rejected(&running, &format!("job {running} is over: cancelled"));
    bench.daemon.succeeded(&waiting);
    bench.daemon.stop();
}

#[test]
fn a_job_that_ends_first_is_profiled_up_to_its_end() {
    let bench = Bench::new();
    let id = bench.submit(&[SLOW[0], SLOW[1], "data.epochs=30"]);
    bench.wait_until_training(&id);
    let profile = bench.shell.run(&["profile", &id, "--steps", "1000000", "--json"]).with_code(0);
    let report = profile.json();
    let steps = report["steps"].as_u64().unwrap();
    assert_eq!(report["after_step"].as_u64().unwrap() + steps, 30 * 12, "{report:#}");
    assert!(steps > 0 && profile.stderr.contains("the job ended"), "{}", profile.stderr);
    bench.daemon.succeeded(&id);
    bench.daemon.stop();
}
