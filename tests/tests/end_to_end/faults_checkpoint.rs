//! `kill -9` of the worker in each phase of writing a checkpoint, and full disks: no committed checkpoint is lost, and
//! the job ends with the same bits as an undisturbed run.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use millstream_test_storage::{Fault, Options, Server};
use millstream_tests::programs::{Daemon, children, has_ended, is_alive, kill, program, wait_until};
use millstream_tests::small_disk;
use millstream_tests::tfrecord::{self, Value as Feature};
use millstream_tests::tiny_job::{Contents, TinyJob};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

/// Makes parts several MiB large, so that each phase lasts long enough to observe.
const LARGE: [&str; 2] = ["--set", "features.color_hash.buckets=1000000"];

/// Less than a request to storage may take.
const PROMPTLY: Duration = Duration::from_secs(20);

/// The job's `checkpoint.keep`.
const KEEP: usize = 2;

/// The phase of the writer, as shown by the job's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The step's directory exists, the model does not.
    Model,
    /// The model exists, the optimizer state does not.
    Optimizer,
    /// Both exist, the manifest that commits them does not.
    Manifest,
    /// The checkpoint is committed, and one beyond `keep` still exists.
    Retention,
}

const PHASES: [Phase; 4] = [Phase::Model, Phase::Optimizer, Phase::Manifest, Phase::Retention];

/// A job that trains from a bucket. Its data is more than the daemon keeps of what it has fetched: each epoch fetches the files
/// again.
struct FromBucket {
    job: TinyJob,
    file: Vec<u8>,
    runtime: Runtime,
}

impl FromBucket {
    fn new() -> Self {
        let record = |row: i64| {
            let padding = Feature::Bytes("p".repeat(12 << 10));
            let color = Feature::Bytes(format!("color {}", row % 20));
            let features =
                [("x", Feature::Float(row as f32)), ("color", color), ("clicked", Feature::Int(row % 2))];
            tfrecord::example(features.into_iter().chain([("padding", padding)]))
        };
        let file = tfrecord::file((0..2_000).map(record));
        Self { job: TinyJob::new(), file, runtime: Runtime::new().unwrap() }
    }

    /// Submits the job with so many workers, and waits until the storage answers no request any more and no worker gets another
    /// batch. Returns the storage, the job's id and its step.
    fn stalled(&self, daemon: &Daemon, workers: usize) -> (Server, String, Option<u64>) {
        let server = self.runtime.block_on(Server::start(Options::default())).unwrap();
        (0..4).for_each(|number| server.put(&format!("b/train-{number}.tfrecord"), self.file.clone()));
        let job = tempfile::Builder::new().suffix(".toml").tempfile_in(self.job.directory()).unwrap();
        let text = fs::read_to_string(self.job.file()).unwrap();
        let text = text.replace("\"train-*.parquet", "\"gs://b/train-*.tfrecord");
        let storage = format!("\n[storage.gs]\nendpoint = \"{}\"\nanonymous = true\n", server.endpoint());
        fs::write(job.path(), format!("{text}{storage}")).unwrap();
        let set = [
            format!("workers.per_host={workers}"),
            "checkpoint.every_steps=1000000".to_owned(),
            "data.epochs=1000".to_owned(),
        ];
        let id = daemon.submit(job.path(), &set);
        let step = || daemon.show(&id)["progress"]["step"].as_u64();
        wait_until("the job trains", || step() > Some(0));
        server.script(vec![Fault::Silence(Duration::from_secs(600)); 1000]);
        let mut last = None;
        // Longer than the interval of reports while a batch is late.
        wait_until("the input stalls", || {
            std::thread::sleep(Duration::from_secs(3));
            let before = std::mem::replace(&mut last, step());
            last == before
        });
        (server, id, last)
    }
}

#[test]
fn a_checkpoint_is_written_while_the_input_stalls() {
    let from_bucket = FromBucket::new();
    let daemon = Daemon::start(from_bucket.job.directory());
    for workers in [1, 2] {
        let (_server, id, last) = from_bucket.stalled(&daemon, workers);
        let taken = daemon.json(&["checkpoint", &id]);
        assert_eq!(taken["step"].as_u64(), last, "{taken:#}");
        assert_whole(Path::new(taken["path"].as_str().unwrap()).parent().unwrap(), last);
        assert_eq!(daemon.show(&id)["progress"]["step"].as_u64(), last, "the input stalls until now");
        daemon.json(&["cancel", &id]);
        wait_until("the job ends", || has_ended(&daemon.show(&id)));
    }
    daemon.stop();
}

/// A read that hangs is given up with the worker that it was for.
#[test]
fn a_worker_killed_while_its_bucket_hangs_is_replaced_at_once() {
    let from_bucket = FromBucket::new();
    let daemon = Daemon::start(from_bucket.job.directory());
    let (server, id, _) = from_bucket.stalled(&daemon, 1);
    let workers = children(daemon.pid());
    assert!(!workers.is_empty());
    let began = Instant::now();
    workers.iter().for_each(|&worker| assert!(kill(worker)));
    wait_until("another worker is there", || {
        children(daemon.pid()).iter().any(|worker| !workers.contains(worker))
    });
    assert!(began.elapsed() < PROMPTLY, "{:?}", began.elapsed());
    // The reads that the next worker waits for hang, too, until the storage answers again.
    server.clear_script();
    assert!(!has_ended(&daemon.show(&id)));
    daemon.json(&["cancel", &id]);
    wait_until("the job ends", || has_ended(&daemon.show(&id)));
    daemon.stop();
}

#[test]
fn a_writer_killed_in_any_phase_loses_no_committed_checkpoint() {
    let job = TinyJob::new();
    let file = job.file();
    let daemon = Daemon::start(job.directory());
    let submit = || {
        let line = [&["submit", file.to_str().unwrap()], &LARGE[..]].concat();
        let submitted = daemon.json(&line);
        let text = |key: &str| submitted[key].as_str().unwrap().to_owned();
        (text("id"), PathBuf::from(text("directory")))
    };
    let (id, _) = submit();
    let wanted = Contents::of(daemon.succeeded(&id)["checkpoint"].as_str().unwrap());

    let mut hit = BTreeSet::new();
    while hit.len() < PHASES.len() {
        let (id, run) = submit();
        for target in PHASES.into_iter().filter(|phase| !hit.contains(phase)).collect::<Vec<_>>() {
            let before = daemon.show(&id)["checkpoint"].clone();
            let ended = || has_ended(&daemon.show(&id));
            wait_until("there is a new checkpoint", || ended() || daemon.show(&id)["checkpoint"] != before);
            if let Some((phase, committed)) = kill_in(target, &run, &daemon, ended) {
                hit.extend(phase);
                assert_whole(&run, committed);
            }
        }
        let job = daemon.succeeded(&id);
        Contents::of(job["checkpoint"].as_str().unwrap()).assert_same(&wanted);
        assert!(steps(&run).len() <= KEEP, "expired checkpoints are deleted: {:?}", steps(&run));
    }
    assert!(children(daemon.pid()).is_empty());
    daemon.stop();
}

/// With images, the next worker has the state of a checkpoint that was not committed, and commits it.
#[test]
fn a_checkpoint_whose_writer_is_killed_is_written_again_from_its_image() {
    let job = TinyJob::new();
    let file = job.file();
    let daemon = Daemon::start(job.directory());
    let set = ["workers.image_seconds=3600", "checkpoint.keep=30", "data.epochs=100000"];
    let set = set.into_iter().flat_map(|set| ["--set", set]);
    let line: Vec<&str> = ["submit", file.to_str().unwrap()].into_iter().chain(LARGE).chain(set).collect();
    let submitted = daemon.json(&line);
    let (id, run) = (submitted["id"].as_str().unwrap(), submitted["directory"].as_str().unwrap());
    let run = Path::new(run);
    for target in [Phase::Model, Phase::Optimizer, Phase::Manifest] {
        let open = loop {
            kill_in(target, run, &daemon, || false);
            let is_open = |&step: &u64| !directory(run, step).join("manifest.json").exists();
            // Otherwise it was committed just before.
            if let Some(open) = steps(run).last().copied().filter(is_open) {
                break open;
            }
        };
        wait_until("the checkpoint is committed", || directory(run, open).join("manifest.json").exists());
        let log = String::from_utf8(daemon.run(&["logs", id]).stdout).unwrap();
        assert!(log.contains(&format!("resumes from the image of step {open},")), "step {open}: {log}");
    }
    daemon.json(&["cancel", id]);
    daemon.stop();
}

/// Kills the worker when the files of `run` show phase `target`. Returns the phase in which it was actually killed, if
/// any, and the newest committed step. `None` if the job ended first.
fn kill_in(
    target: Phase,
    run: &Path,
    daemon: &Daemon,
    ended: impl Fn() -> bool,
) -> Option<(Option<Phase>, Option<u64>)> {
    let mut killed = None;
    wait_until("the writer reaches the phase, or the job ends", || {
        let Some(&worker) = children(daemon.pid()).first() else { return ended() };
        // Poll in bursts: the phases are short, and listing processes is slow.
        for _ in 0..200 {
            let (phase, committed) = look(run);
            if phase == Some(target) && kill(worker) {
                killed = Some((worker, committed));
                return true;
            }
        }
        false
    });
    let (worker, committed) = killed?;
    // Wait for its death, whether or not the daemon has noticed.
    wait_until("the worker is dead", || !is_alive(worker));
    // The next worker removes leftovers only after many steps.
    Some((look(run).0, committed))
}

/// The phase that the files of `run` show, and the newest committed step.
fn look(run: &Path) -> (Option<Phase>, Option<u64>) {
    let steps = steps(run);
    let has = |step: u64, part: &str| directory(run, step).join(part).exists();
    let (committed, open): (Vec<u64>, Vec<u64>) = steps.iter().partition(|&&step| has(step, "manifest.json"));
    let newest = committed.last().copied();
    let open_step = open.into_iter().rfind(|&step| Some(step) > newest);
    let phase = match open_step {
        Some(step) if !has(step, "model.safetensors") => Some(Phase::Model),
        Some(step) if !has(step, "optimizer.safetensors") => Some(Phase::Optimizer),
        Some(_) => Some(Phase::Manifest),
        None if steps.len() > KEEP => Some(Phase::Retention),
        None => None,
    };
    (phase, newest)
}

fn steps(run: &Path) -> Vec<u64> {
    let names = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<u64> =
        names.filter_map(|name| name.strip_prefix("step-").map(|step| step.parse().unwrap())).collect();
    steps.sort_unstable();
    steps
}

fn directory(run: &Path, step: u64) -> PathBuf {
    run.join(format!("step-{step:010}"))
}

/// Asserts that the newest checkpoint is `committed` or a later one, and that all parts in its manifest are intact.
fn assert_whole(run: &Path, committed: Option<u64>) {
    let (_, newest) = look(run);
    assert!(newest >= committed, "{committed:?} was committed, and the newest is {newest:?}");
    let Some(step) = newest else { return };
    let directory = directory(run, step);
    let Ok(manifest) = fs::read(directory.join("manifest.json")) else {
        // The next worker has already replaced it with a newer one.
        return assert_whole(run, committed);
    };
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let parts = manifest["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 4);
    for part in parts {
        let name = part["name"].as_str().unwrap();
        let Ok(bytes) = fs::read(directory.join(name)) else {
            assert!(look(run).1 > newest, "{name} of step {step} is lost");
            return assert_whole(run, committed);
        };
        let sha256: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(part["sha256"], sha256.as_str(), "{name} of step {step}");
    }
}

#[test]
fn training_continues_while_checkpoints_cannot_be_written() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let file = job.file();
    let submit = |more: &[&str]| {
        let line = [&["submit", file.to_str().unwrap(), "--set", "data.epochs=100000"], more].concat();
        let submitted = daemon.json(&line);
        let text = |key: &str| submitted[key].as_str().unwrap().to_owned();
        (text("id"), PathBuf::from(text("directory")))
    };
    let step = |id: &str| daemon.show(id)["progress"]["step"].as_u64().unwrap();
    // A file in place of the run's directory: nothing can be written below it.
    let away = |run: &Path| run.with_extension("away");
    let block = |run: &Path| {
        fs::rename(run, away(run)).unwrap();
        fs::write(run, "").unwrap();
    };

    let (id, run) = submit(&[]);
    wait_until("there is a checkpoint", || daemon.show(&id)["checkpoint"].is_string());
    block(&run);
    let failures = || {
        let log = daemon.json(&["logs", &id]);
        let lines = log["lines"].as_array().unwrap().clone();
        let failed = |line: &&Value| line["text"].as_str().unwrap().contains("could not be written");
        lines.iter().filter(failed).cloned().collect::<Vec<_>>()
    };
    wait_until("a checkpoint fails", || !failures().is_empty());
    let failed_at = step(&id);
    wait_until("training continues, and a checkpoint is tried again", || {
        step(&id) > failed_at && failures().len() > 1
    });
    let line = failures()[0].clone();
    assert_eq!(line["level"], "warn");
    let text = line["text"].as_str().unwrap();
    assert!(text.contains("the newest is that of step") && text.contains("trying again in 2 s"), "{text}");
    let refused = daemon.run(&["checkpoint", &id]);
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("could not be written"), "{refused}");

    fs::remove_file(&run).unwrap();
    fs::rename(away(&run), &run).unwrap();
    let before = daemon.show(&id)["checkpoint"].clone();
    wait_until("there is a new checkpoint", || daemon.show(&id)["checkpoint"] != before);
    assert_eq!(daemon.show(&id)["attempts"], 1, "the same worker trained throughout");
    let ended = daemon.json(&["cancel", &id]);
    let last = steps(&run).last().copied();
    assert_eq!((&ended["state"], last), (&"cancelled".into(), ended["progress"]["step"].as_u64()));

    let (id, run) = submit(&["--set", "checkpoint.retry_minutes=0"]);
    wait_until("there is a checkpoint", || daemon.show(&id)["checkpoint"].is_string());
    block(&run);
    wait_until("the job ends", || has_ended(&daemon.show(&id)));
    let ended = daemon.show(&id);
    let reason = ended["reason"].as_str().unwrap();
    assert_eq!(ended["state"], "failed");
    assert!(reason.contains("for 0 minutes, the job's `checkpoint.retry_minutes`"), "{reason}");
    daemon.stop();
}

/// The file system of the checkpoints holds one of them, and half of the next, until the first warning. Passes without
/// checking where the test may not create a namespace.
#[test]
fn training_continues_on_a_full_disk() {
    let job = TinyJob::new();
    let checkpoints = job.directory().join("disk");
    fs::create_dir(&checkpoints).unwrap();
    let place = format!("checkpoint.directory={}", checkpoints.display());
    let train = |command: &mut Command| {
        let file = job.file();
        command.args(["--socket", "nobody.sock", "--json", "train", file.to_str().unwrap()]);
        let output =
            command.args(["--set", &place]).args(LARGE).current_dir(job.directory()).output().unwrap();
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{messages}");
        (serde_json::from_slice::<Value>(&output.stdout).unwrap(), messages)
    };
    let (wanted, _) = train(&mut Command::new(program("millstream")));
    let last = PathBuf::from(wanted["checkpoint"].as_str().unwrap());
    let bytes: u64 = fs::read_dir(&last).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();

    let script = format!(
        "(for try in $(seq 600); do grep -q 'No space left' messages && break; sleep 0.1; done
            mount -o remount,size={} disk) &
        \"$@\" 2> messages
        status=$?
        cat messages >&2
        cp -r disk copy
        exit $status",
        16 * bytes
    );
    let Some(mut command) = small_disk::shell(&checkpoints, bytes * 3 / 2, &script) else { return };
    let (outcome, messages) = train(command.arg(program("millstream")));
    assert!(messages.contains("No space left on device"), "{messages}");
    assert_eq!(messages.matches("No space left").count(), messages.matches("could not be written").count());
    let step = Path::new(outcome["checkpoint"].as_str().unwrap());
    let copy = job.directory().join("copy").join(step.strip_prefix(&checkpoints).unwrap());
    let contents = |directory: &Path| Contents::of(directory).without_job_description();
    contents(&copy).assert_same(&contents(&last));
    let kept = steps(copy.parent().unwrap());
    assert!(kept.len() <= KEEP, "no remains of checkpoints that failed: {kept:?}");
}
