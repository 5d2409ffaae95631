//! `generate`, `convert` and `inspect` on files larger than their memory limit, and on many files.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use millstream_tests::shell::{Completed, Shell};

/// Rows of the large file.
const ROWS: u64 = 400_000;
/// The limit for rows in flight.
const ALLOWED: &str = "32MiB";
/// The allowance beyond that, for files of any size: the program, its threads, the planted model's counts, and the one
/// block that is always in flight.
const OVERHEAD_BYTES: u64 = 160 << 20;

/// Runs a command to completion. Also returns its peak memory use.
fn run_watched(shell: &Shell, line: &[&str]) -> (Completed, u64) {
    let mut running = shell.start(line);
    let status = format!("/proc/{}/status", running.pid());
    let mut peak = 0;
    while !running.has_ended() {
        peak = peak.max(high_water_bytes(&status).unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    (running.wait().with_code(0), peak)
}

/// `VmHWM`, the peak that the kernel records, so that only growth after the last poll is missed.
fn high_water_bytes(status: &str) -> Option<u64> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

#[test]
fn memory_use_is_bounded_for_any_size() {
    let place = tempfile::tempdir().unwrap();
    let shell = Shell::new(place.path());
    let rows = ROWS.to_string();
    let bounded = ["--memory", ALLOWED, "--threads", "2"];
    let lines: [&[&str]; 4] = [
        &["generate", "--rows", &rows, "a.tfrecord"],
        &["convert", "a.tfrecord", "b@3.parquet", "--group-rows", "8192"],
        &["convert", "b-*.parquet", "c.tfrecord.gz"],
        &["convert", "b-*.parquet", "d.csv"],
    ];
    for line in lines {
        let (ended, peak) = run_watched(&shell, &[line, &bounded[..]].concat());
        assert!((1 << 20..(32 << 20) + OVERHEAD_BYTES).contains(&peak), "{}: {peak} bytes", ended.line);
    }
    let (_, peak) = run_watched(&shell, &["inspect", "a.tfrecord", "--threads", "2"]);
    assert!((1 << 20..OVERHEAD_BYTES).contains(&peak), "inspect: {peak} bytes");
    let size = fs::metadata(place.path().join("a.tfrecord")).unwrap().len();
    assert!(size > 192 << 20, "{size} bytes fit in memory");
}

#[test]
fn thousands_of_files_are_summarized() {
    let place = tempfile::tempdir().unwrap();
    let shell = Shell::new(place.path());
    let _ = shell.run(&["generate", "--rows", "30000", "--shards", "3000", "many/a.tfrecord"]).with_code(0);
    let summary = shell.run(&["inspect", "many/"]).with_code(0).stdout;
    for wanted in ["3,000", "30,000", "TFRecord, none: 3,000 files", "clicked"] {
        assert!(summary.contains(wanted), "{summary}");
    }
    assert!(summary.lines().count() < 60, "a summary, not 3,000 files");
    let each = shell.run(&["inspect", "many", "--json"]).with_code(0).json();
    assert_eq!(each.as_array().unwrap().len(), 3000);
    let all = shell.run(&["inspect", "many/", "--all", "--rows", "0"]).with_code(0).stdout;
    assert_eq!(all.matches("a-0").count(), 3000);

    damage(&place.path().join("many/a-01234-of-03000.tfrecord"));
    let ended = shell.run(&["inspect", "many/"]).with_code(1);
    assert!(ended.stderr.contains("a-01234-of-03000"), "{}", ended.stderr);
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn files_do_not_depend_on_the_number_of_threads() {
    let place = tempfile::tempdir().unwrap();
    let shell = Shell::new(place.path());
    let contents = |threads: &str| {
        let threads = ["--threads", threads];
        let run = |line: &[&str]| drop(shell.run(&[line, &threads[..]].concat()).with_code(0));
        run(&["generate", "--rows", "50000", "--shards", "3", "a.tfrecord.gz"]);
        run(&["convert", "a-*.gz", "b@4.parquet", "--compression", "zstd"]);
        run(&["convert", "b-*.parquet", "c@2.csv.gz"]);
        let files = shell.files().into_iter().filter(|path| path.extension().is_some());
        files.map(|path| (path.clone(), fs::read(place.path().join(path)).unwrap())).collect::<Vec<_>>()
    };
    let one = contents("1");
    assert_eq!(one.len(), 3 + 4 + 2);
    assert!(one == contents("2") && one == contents("5"));
}

#[test]
fn a_schema_file_sets_types_and_a_page_shows_the_statistics() {
    let place = tempfile::tempdir().unwrap();
    let shell = Shell::new(place.path());
    fs::write(place.path().join("a.csv"), "zip,tags,n\n01234,a|b,1\n98765,c,2\n00001,,3\n").unwrap();
    fs::write(
        place.path().join("types.toml"),
        "zip = \"text\"\ntags = { list = \"|\", rename = \"labels\" }\n",
    )
    .unwrap();
    let _ = shell.run(&["convert", "a.csv", "a.parquet", "--schema", "types.toml"]).with_code(0);
    let report = shell.run(&["inspect", "a.parquet", "--html", "a.html", "--json"]).with_code(0).json();
    assert_eq!(report[0]["rows"][0]["zip"], "01234", "{report:#}");
    assert_eq!(report[0]["rows"][0]["labels"], serde_json::json!(["a", "b"]), "{report:#}");
    let page = fs::read_to_string(place.path().join("a.html")).unwrap();
    assert!(page.contains("<h2>labels</h2>") && page.contains("aria-label=\"histogram\""), "{page}");

    fs::write(place.path().join("types.toml"), "zip = \"text\"\nn = \"colour\"\n").unwrap();
    let refused = shell.run(&["convert", "a.csv", "b.parquet", "--schema", "types.toml"]).with_code(2);
    assert!(refused.stderr.contains("types.toml") && refused.stderr.contains("line 2"), "{}", refused.stderr);
}
