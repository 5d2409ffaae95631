//! Jobs in other processes: killed while they write, or on a full disk.

#![allow(clippy::print_stdout)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use millstream_io::permits::Permit;

use super::super::store::{COMPLETE, PART};
use super::*;

/// The cache directory of a process started for [`separate_job`].
const DIRECTORY: &str = "MILLSTREAM_TEST_CACHE";
/// The number of splits after which the job stops within a split and waits to be killed.
const STOP_AFTER: &str = "MILLSTREAM_TEST_CACHE_STOP_AFTER";
/// The line that it prints then.
const STOPPED: &str = "stopped within a split";
const SPLITS: u32 = 64;
const ROWS: u32 = 60_000;
/// The deadline for an event that is expected soon, generous enough for a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A job that reads all splits, or stops within one. Does nothing unless started as a separate process.
#[test]
fn separate_job() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let (rows, shape) = numbered(SPLITS, ROWS);
    let source = cached(&rows, shape, cache(directory, OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
    if let Ok(splits) = std::env::var(STOP_AFTER) {
        let splits = splits.parse().unwrap();
        for split in 0..splits {
            read(&source, split, 0, 512);
        }
        let mut reader = source.open(splits, 0, &Permit::default(), &Arc::default()).unwrap().reader;
        // Most of the split: more than one block.
        (0..100).for_each(|_| drop(reader.next(512).unwrap().unwrap()));
        println!("{STOPPED}");
        std::io::stdout().flush().unwrap();
        loop {
            std::thread::park();
        }
    }
    pass(&source, &rows);
    drop(source);
    assert_eq!(files(directory, PART), [] as [PathBuf; 0]);
    print!("{} files", files(directory, COMPLETE).len());
}

/// Runs [`separate_job`], optionally through other programs.
fn process(programs: &[&str], directory: &Path) -> Command {
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new(programs.first().map_or(this.as_os_str(), OsStr::new));
    if let Some(arguments) = programs.get(1..) {
        command.args(arguments).arg(this);
    }
    command.args(["--exact", "cache::tests::processes::separate_job", "--nocapture"]);
    command.env(DIRECTORY, directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

#[test]
fn killed_jobs_leave_valid_files() {
    let directory = tempfile::tempdir().unwrap();
    for splits in (5..SPLITS).step_by(10) {
        let mut child = process(&[], directory.path()).env(STOP_AFTER, splits.to_string()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(STOPPED)), "the job ended");
        let part = directory.path().join(format!("{}.{PART}", key(splits, 1)));
        let deadline = Instant::now() + DEADLINE;
        while !part.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(part.exists(), "the job does not write split {splits}");
        assert!(files(directory.path(), COMPLETE).len() <= splits as usize);
    }
    let (rows, shape) = numbered(SPLITS, ROWS);
    let complete = files(directory.path(), COMPLETE).len() as u64;
    for hits in [complete, u64::from(SPLITS)] {
        let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
        assert_eq!(pass(&source, &rows), hits);
        drop(source);
        assert_eq!(files(directory.path(), PART), [] as [PathBuf; 0]);
    }
}

/// Runs in a separate mount namespace, in which the directory is a nearly full disk. Skipped if the test may not
/// create one.
#[test]
fn a_full_disk_only_disables_caching() {
    let directory = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=2m tmpfs '{}'", directory.path().display());
    let namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"];
    let possible = Command::new(namespace[0]).args(&namespace[1..]).arg(&mount).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return;
    }
    let script = format!("{mount} && exec \"$0\" \"$@\"");
    let programs: Vec<&str> = namespace.into_iter().chain([script.as_str()]).collect();
    let output = process(&programs, directory.path()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
    let files =
        printed.lines().find_map(|line| line.split(" files").next()?.rsplit(' ').next()?.parse::<u32>().ok());
    assert!(files.is_some_and(|files| files < SPLITS), "{printed}");
}
