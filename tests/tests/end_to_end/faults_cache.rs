//! Faults of the local cache while a job trains: `kill -9` during a write, corruption, a full disk. In each case the
//! job ends with the same bits as a run without a cache.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use millstream_tests::programs::{kill, program, wait_until};
use millstream_tests::small_disk;
use millstream_tests::tiny_job::{Contents, RandomDelays, TinyJob, kill_count};
use serde_json::Value;

/// Kills in a run of `tests/run`.
const KILLS: u32 = 6;

/// The arguments of `millstream train` without a daemon, and optionally with a cache.
fn arguments(job: &TinyJob, cache: Option<&Path>) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["--socket", "nobody.sock", "--json", "train"].map(str::to_owned).to_vec();
    arguments.push(job.file().to_str().unwrap().to_owned());
    // Enough epochs to read back what was written.
    arguments.extend(["--set", "data.epochs=3"].map(str::to_owned));
    if let Some(cache) = cache {
        arguments.push("--set".to_owned());
        arguments.push(format!("data.cache.directory={}", cache.display()));
        arguments.extend(["--set", "data.cache.max_bytes=1GiB"].map(str::to_owned));
    }
    arguments
}

fn train(job: &TinyJob, cache: Option<&Path>) -> Command {
    let mut command = Command::new(program("millstream"));
    command.args(arguments(job, cache)).current_dir(job.directory());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The resulting checkpoint, and the messages.
fn succeeded(output: &Output) -> (Contents, String) {
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{messages}");
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["state"], "succeeded");
    (Contents::of(outcome["checkpoint"].as_str().unwrap()).without_job_description(), messages)
}

fn files(cache: &Path, extension: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(cache).into_iter().flatten().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Files that are or were being written, with their modification times.
fn parts(cache: &Path) -> Vec<(PathBuf, Option<SystemTime>)> {
    let written = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let mut parts: Vec<_> =
        files(cache, "part").into_iter().map(|path| (path.clone(), written(&path))).collect();
    parts.sort();
    parts
}

#[test]
fn a_cache_written_by_killed_runs_and_then_corrupted_does_not_change_results() {
    let job = TinyJob::new();
    let (wanted, _) = succeeded(&train(&job, None).output().unwrap());
    let cache = job.directory().join("cache");
    succeeded(&train(&job, Some(&cache)).output().unwrap()).0.assert_same(&wanted);
    let splits = files(&cache, "chunks").len();
    assert!(splits > 0);
    let mut delays = RandomDelays::new();
    for _ in 0..kill_count(KILLS) {
        // Start over once the cache is complete, so that there is something to write.
        if files(&cache, "chunks").len() == splits {
            fs::remove_dir_all(&cache).unwrap();
        }
        let before = (files(&cache, "chunks").len(), parts(&cache));
        let mut child =
            train(&job, Some(&cache)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the run writes to the cache", || {
            files(&cache, "chunks").len() > before.0 || parts(&cache) != before.1
        });
        std::thread::sleep(delays.next(Duration::from_millis(3)));
        assert!(kill(child.id()));
        child.wait().unwrap();
    }

    for _ in 0..2 {
        let (contents, _) = succeeded(&train(&job, Some(&cache)).output().unwrap());
        contents.assert_same(&wanted);
        assert_eq!((files(&cache, "part").len(), files(&cache, "chunks").len()), (0, splits));
    }

    for path in files(&cache, "chunks") {
        let mut bytes = fs::read(&path).unwrap();
        bytes[17] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let (contents, messages) = succeeded(&train(&job, Some(&cache)).output().unwrap());
    contents.assert_same(&wanted);
    assert_eq!(messages.matches("a cache file is unusable").count(), 1, "{messages}");
}

/// Runs in a mount namespace in which the cache directory is a tiny file system. Passes without checking where the
/// test may not create a namespace.
#[test]
fn a_full_disk_only_disables_the_cache() {
    let job = TinyJob::new();
    let cache = job.directory().join("cache");
    fs::create_dir(&cache).unwrap();
    let Some(mut command) = small_disk::shell(&cache, 64 << 10, "exec \"$@\"") else { return };
    let (wanted, _) = succeeded(&train(&job, None).output().unwrap());
    let output = command
        .arg(program("millstream"))
        .args(arguments(&job, Some(&cache)))
        .current_dir(job.directory())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (contents, messages) = succeeded(&output);
    contents.assert_same(&wanted);
    assert_eq!(messages.matches("writing to the cache failed").count(), 1, "{messages}");
}
