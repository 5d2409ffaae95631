//! What can happen to the local cache while a job trains: `kill -9` while it is written, damage, a full disk.
//! Each time the job ends with the bits of a run that knew no cache.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use millstream_tests::programs::{kill, program, wait_until};
use millstream_tests::tiny_job::{Contents, Moments, TinyJob};
use serde_json::Value;

const KILLS: u32 = 12;

/// The arguments of `millstream train` where no daemon listens, with a cache if there is to be one.
fn arguments(job: &TinyJob, cache: Option<&Path>) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["--socket", "nobody.sock", "--json", "train"].map(str::to_owned).to_vec();
    arguments.push(job.file().to_str().unwrap().to_owned());
    // Enough epochs to come to read what was written.
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

/// What a run has learned, and its messages.
fn succeeded(output: &Output) -> (Contents, String) {
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{messages}");
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["state"], "succeeded");
    (Contents::of(outcome["checkpoint"].as_str().unwrap()).without_the_job(), messages)
}

fn files(cache: &Path, extension: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(cache).into_iter().flatten().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Files being written, or left by a run that was, and when they were written to.
fn parts(cache: &Path) -> Vec<(PathBuf, Option<SystemTime>)> {
    let written = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let mut parts: Vec<_> =
        files(cache, "part").into_iter().map(|path| (path.clone(), written(&path))).collect();
    parts.sort();
    parts
}

#[test]
fn a_cache_that_was_written_by_killed_runs_and_then_damaged_changes_no_bit() {
    let job = TinyJob::new();
    let (wanted, _) = succeeded(&train(&job, None).output().unwrap());
    let cache = job.directory().join("cache");
    succeeded(&train(&job, Some(&cache)).output().unwrap()).0.assert_same(&wanted);
    let splits = files(&cache, "chunks").len();
    assert!(splits > 0);
    let mut moments = Moments::new();
    for _ in 0..KILLS {
        // From nothing now and then, so that there is something to write.
        if files(&cache, "chunks").len() == splits {
            fs::remove_dir_all(&cache).unwrap();
        }
        let before = (files(&cache, "chunks").len(), parts(&cache));
        let mut child =
            train(&job, Some(&cache)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("it writes to the cache", || {
            files(&cache, "chunks").len() > before.0 || parts(&cache) != before.1
        });
        std::thread::sleep(moments.next(Duration::from_millis(3)));
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
    assert_eq!(messages.matches("a cache file cannot be used").count(), 1, "{messages}");
}

/// In a mount namespace of its own, where the cache's directory is a disk with hardly any room. Where a test may
/// not make one, there is nothing to see.
#[test]
fn a_full_disk_costs_the_cache_and_nothing_else() {
    let job = TinyJob::new();
    let cache = job.directory().join("cache");
    fs::create_dir(&cache).unwrap();
    let mount = format!("mount -t tmpfs -o size=64k tmpfs {}", cache.display());
    let namespace = ["--map-root-user", "--mount", "sh", "-c"];
    let possible = Command::new("unshare").args(namespace).arg(&mount).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return;
    }
    let (wanted, _) = succeeded(&train(&job, None).output().unwrap());
    let output = Command::new("unshare")
        .args(namespace)
        .arg(format!("{mount} && exec \"$0\" \"$@\""))
        .arg(program("millstream"))
        .args(arguments(&job, Some(&cache)))
        .current_dir(job.directory())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (contents, messages) = succeeded(&output);
    contents.assert_same(&wanted);
    assert_eq!(messages.matches("the cache cannot be written to").count(), 1, "{messages}");
}
