//! Checkpoints in a bucket are evaluated, exported and started from as those in a directory.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millstream_test_storage::Fault;
use millstream_tests::bucket::Bucket;
use millstream_tests::programs::{kill, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::{Contents, TinyJob};
use rustix::process::Signal;
use serde_json::Value;

/// How long a command may take to end after Ctrl-C.
const PROMPTLY: Duration = Duration::from_secs(5);

/// A trained run, in a directory and in a bucket.
struct Run {
    job: TinyJob,
    /// With the credentials of the bucket.
    shell: Shell,
    /// Where copies are.
    cache: PathBuf,
    bucket: Bucket,
    /// What `train` has printed.
    trained: Value,
}

/// Where the run is in the bucket.
const ADDRESS: &str = "s3://models/runs/first";

/// The name of its objects in the server.
const OBJECTS: &str = "models/runs/first";

impl Run {
    fn new(set: &[&str]) -> Self {
        let bucket = Bucket::start();
        let job = TinyJob::new();
        let cache = job.directory().join("cache");
        fs::create_dir(&cache).unwrap();
        let own = [("CACHE_DIRECTORY", cache.display().to_string())];
        let variables: Vec<_> = bucket.variables().into_iter().chain(own).collect();
        let shell = Shell::new(job.directory()).with_variables(&variables);
        let trained = train(&shell, &["job.toml"], &[&["data.epochs=2"], set].concat());
        let run = Self { job, shell, cache, bucket, trained };
        run.upload(run.directory(), OBJECTS);
        run
    }

    fn directory(&self) -> &Path {
        self.checkpoint().parent().unwrap()
    }

    fn checkpoint(&self) -> &Path {
        Path::new(self.trained["checkpoint"].as_str().unwrap())
    }

    /// The name of the newest checkpoint's directory.
    fn step(&self) -> &str {
        self.checkpoint().file_name().unwrap().to_str().unwrap()
    }

    /// The copies of what is in the bucket.
    fn copies(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.cache).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.to_string_lossy().contains("millstream")).collect()
    }

    /// Asserts that no command has left a copy.
    fn assert_no_copies(&self) {
        assert_eq!(self.copies(), [] as [PathBuf; 0]);
    }

    /// Asserts that there is a copy, which only its user can read.
    fn assert_private_copy(&self) {
        let [copy] = &self.copies()[..] else { panic!("{:?}", self.copies()) };
        assert_eq!(fs::metadata(copy).unwrap().permissions().mode() & 0o777, 0o700);
    }

    fn upload(&self, directory: &Path, to: &str) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{to}/{}", path.file_name().unwrap().to_str().unwrap());
            match path.is_dir() {
                true => self.upload(&path, &name),
                false => self.bucket.server.put(&name, fs::read(path).unwrap()),
            }
        }
    }
}

fn train(shell: &Shell, arguments: &[&str], set: &[&str]) -> Value {
    let mut line = [&["train", "--json"], arguments].concat();
    line.extend(set.iter().flat_map(|set| ["--set", set]));
    shell.run(&line).with_code(0).json()
}

fn succeed(shell: &Shell, line: &[&str]) {
    let ended = shell.run(line);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
}

/// What a job has trained, without its description.
fn state(outcome: &Value) -> Contents {
    Contents::of(outcome["checkpoint"].as_str().unwrap()).without_job_description()
}

#[test]
fn a_checkpoint_in_a_bucket_scores_as_its_copy_in_a_directory() {
    // Files of several megabytes.
    let larger = ["features.color_hash.buckets=100000", "model.deep.embedding_dim=32"];
    let features = r#"model.deep.features=["x", "color", "color_hash"]"#;
    let best = ["checkpoint.keep_best=true", "evaluation.every_steps=400", features];
    let run = Run::new(&[&larger[..], &best].concat());
    let local = run.directory().to_str().unwrap();
    let newest = format!("{ADDRESS}/{}", run.step());
    let shell = &run.shell;
    for (of_directory, of_bucket) in [
        (vec!["eval", local, "--json"], vec!["eval", ADDRESS, "--json"]),
        (vec!["eval", local, "--best", "--json"], vec!["eval", ADDRESS, "--best", "--json"]),
        (vec!["predict", local, "eval.parquet"], vec!["predict", ADDRESS, "eval.parquet"]),
        (vec!["predict", local, "eval.parquet"], vec!["predict", &newest, "eval.parquet"]),
    ] {
        let [wanted, found] = [of_directory, of_bucket].map(|line| shell.run(&line).with_code(0).stdout);
        assert!(!wanted.is_empty() && found == wanted, "{found}\n{wanted}");
    }

    for format in ["onnx", "safetensors"] {
        let exported = [local, ADDRESS].map(|target| {
            let output = run.job.directory().join(format!("exported.{format}"));
            succeed(shell, &["export", target, "-o", output.to_str().unwrap()]);
            fs::read(output).unwrap()
        });
        assert!(exported[0] == exported[1], "{format}");
    }
    run.assert_no_copies();
}

#[test]
fn models_are_exported_to_a_bucket() {
    let run = Run::new(&[]);
    let run_directory = run.directory().to_str().unwrap();
    let files = ["model.onnx", "model.onnx.data", "model.safetensors", "model.py"];
    for place in ["", "s3://models/exported/"] {
        let at = |name: &str| format!("{place}{name}");
        let (onnx, code) = (at("model.onnx"), at("model.py"));
        let line = ["export", run_directory, "-o", &onnx, "--external-data", "--transforms", &code];
        succeed(&run.shell, &line);
        succeed(&run.shell, &["export", run_directory, "-o", &at("model.safetensors")]);
    }
    for file in files {
        let local = fs::read(run.job.directory().join(file)).unwrap();
        let in_bucket = run.bucket.server.get(&format!("models/exported/{file}")).unwrap();
        assert!(local == in_bucket, "{file}");
    }
    assert_eq!(run.bucket.server.uploads(), 0, "no upload is left");
    run.bucket.server.script([Fault::WriteStatus(403)]);
    let refused = run.shell.run(&["export", run_directory, "-o", "s3://models/exported/refused.onnx"]);
    assert_eq!(refused.code(), 1);
    assert!(refused.stderr.contains("s3://models/exported/refused.onnx"), "{}", refused.stderr);
    assert_eq!(run.bucket.server.get("models/exported/refused.onnx"), None);
}

#[test]
fn jobs_start_from_a_checkpoint_in_a_bucket_with_the_same_bits() {
    let run = Run::new(&[]);
    let local = run.directory().to_str().unwrap();
    let shell = &run.shell;
    for more in [&["data.epochs=1"][..], &["data.epochs=3", "warm_start.continue=true"]] {
        let [of_directory, of_bucket] = [local, ADDRESS].map(|source| {
            let warm = format!("warm_start.checkpoint={source}");
            train(shell, &["job.toml"], &[&[warm.as_str()], more].concat())
        });
        assert_eq!(of_bucket["eval"], of_directory["eval"]);
        assert_eq!(of_bucket["steps"], of_directory["steps"]);
        state(&of_bucket).assert_same(&state(&of_directory));
        let lineage = shell.run(&["lineage", of_bucket["checkpoint"].as_str().unwrap(), "--json"]).json();
        let [origin] = &lineage["origins"].as_array().unwrap()[..] else { panic!("{lineage:#}") };
        assert_eq!(origin["path"], format!("{ADDRESS}/{}", run.step()));
    }
    run.assert_no_copies();
    let continued = train(shell, &["job.toml", "--continue", ADDRESS], &["data.epochs=3"]);
    assert_eq!(continued["steps"].as_u64(), Some(3 * 750));
    let plan = shell.run(&["check", "job.toml", "--json", "--continue", ADDRESS, "--set", "data.epochs=3"]);
    let plan = &plan.with_code(0).json()["continuation"];
    assert_eq!(plan["checkpoint"], format!("{ADDRESS}/{}", run.step()));
    let refused = shell.run(&["train", "--continue", ADDRESS]).with_code(2).stderr;
    assert!(refused.contains("give a job file, too, because the run is in a bucket"), "{refused}");
}

#[test]
fn commands_that_wait_for_a_bucket_are_interrupted_and_leave_no_copy() {
    let run = Run::new(&[]);
    let warm = format!("warm_start.checkpoint={ADDRESS}");
    run.bucket.server.put("models/data.parquet", fs::read(run.job.directory().join("eval.parquet")).unwrap());
    let local = run.directory().to_str().unwrap();
    for line in [
        &["eval", ADDRESS][..],
        &["predict", ADDRESS, "eval.parquet"],
        &["export", ADDRESS, "-o", "model.onnx"],
        // Without a copy.
        &["eval", local, "s3://models/data.parquet"],
        &["check", "job.toml", "--learn", "--set", &warm],
        &["train", "job.toml", "--set", &warm],
    ] {
        run.bucket.server.script(vec![Fault::Silence(Duration::from_secs(600)); 40]);
        let before = run.bucket.server.unmet();
        let command = run.shell.start(line);
        wait_until("a read hangs", || run.bucket.server.unmet() < before);
        if line[1] != local {
            run.assert_private_copy();
        }
        let began = Instant::now();
        command.signal(Signal::INT);
        let ended = command.wait();
        assert!(began.elapsed() < PROMPTLY, "{line:?}: {:?}", began.elapsed());
        assert_eq!(ended.code(), 130, "{line:?}: {}", ended.stderr);
        run.assert_no_copies();
        run.bucket.server.clear_script();
    }
}

#[test]
fn the_copy_of_a_killed_command_is_removed_by_the_next_one() {
    let run = Run::new(&[]);
    run.bucket.server.script(vec![Fault::Silence(Duration::from_secs(600)); 40]);
    let before = run.bucket.server.unmet();
    let command = run.shell.start(&["export", ADDRESS, "-o", "model.onnx"]);
    wait_until("a read hangs", || run.bucket.server.unmet() < before);
    assert!(kill(command.pid()));
    drop(command);
    run.assert_private_copy();
    run.bucket.server.clear_script();
    succeed(&run.shell, &["export", ADDRESS, "-o", "model.onnx"]);
    run.assert_no_copies();
}

#[test]
fn what_is_wrong_with_a_checkpoint_in_a_bucket_is_said() {
    let run = Run::new(&[]);
    let shell = &run.shell;
    let eval = |target: &str| shell.run(&["eval", target]).with_code(1).stderr;
    let error = eval("s3://models/runs/none");
    assert!(error.contains("s3://models/runs/none has no checkpoint"), "{error}");
    let error = shell.run(&["eval", ADDRESS, "--best"]).with_code(1).stderr;
    assert!(error.contains(&format!("{ADDRESS} has no best checkpoint")), "{error}");
    let error = eval(&format!("{ADDRESS}/step-0000000007"));
    let absent = "step-0000000007 is not a checkpoint: it has no manifest.json";
    assert!(error.contains(ADDRESS) && error.contains(absent), "{error}");
    let error = eval("https://host/runs/a");
    assert!(error.contains("a directory is local or in a bucket"), "{error}");

    // Failures that pass are not noticed.
    run.bucket.server.script([Fault::Status(503), Fault::Reset, Fault::Status(500)]);
    succeed(shell, &["eval", ADDRESS]);
    assert_eq!(run.bucket.server.unmet(), 0);

    let part = format!("{OBJECTS}/{}/model.safetensors", run.step());
    let whole = run.bucket.server.get(&part).unwrap();
    let mut flipped = whole.to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    run.bucket.server.put(&part, flipped);
    let error = eval(ADDRESS);
    let damaged = "is damaged: model.safetensors has SHA-256";
    assert!(error.contains(damaged), "{error}");
    run.bucket.server.remove(&part);
    let error = eval(ADDRESS);
    assert!(error.contains("is damaged: model.safetensors is missing"), "{error}");
    run.bucket.server.put(&part, whole);
    succeed(shell, &["eval", ADDRESS]);
}
