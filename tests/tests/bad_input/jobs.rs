//! Job files that cannot be right, and daemons that are not there.

use std::fs;

use millstream_tests::programs::Daemon;

use super::place::{Case, Place, try_all};

const TRAIN: &[&str] = &["train", "job.toml"];
const NOTHING: fn(&Place) = |_| {};

/// There is no data at all: a job file's mistakes are told before any is looked for.
#[test]
fn a_job_file_is_refused_before_any_work() {
    let cases = [
        Case {
            what: "unknown key",
            spoil: |place| place.edit("batch_size = 32", "bacth_size = 32"),
            line: TRAIN,
            code: 2,
            says: &["job.toml:6:1: error: unknown key `bacth_size`", "did you mean `batch_size`?"],
        },
        Case {
            what: "key of another section",
            spoil: |place| place.edit("column = \"clicked\"", "column = \"clicked\"\nepochs = 3"),
            line: &["check", "job.toml"],
            code: 2,
            says: &["job.toml:10:1: error: unknown key `epochs`", "did you mean `data.epochs`?"],
        },
        Case {
            what: "keys that contradict each other",
            spoil: |place| {
                place.edit(
                    "{ kind = \"vocabulary\" }",
                    "{ kind = \"vocabulary\", terms = [\"a\"], min_count = 2 }",
                );
            },
            line: &["submit", "job.toml"],
            code: 2,
            says: &["job.toml:13:59: error: `min_count`", "contradicts `terms`"],
        },
        Case {
            what: "a feature that is not there",
            spoil: |place| place.edit("wide.features = [\"color\"]", "wide.features = [\"colour\"]"),
            line: &["bench", "ingest", "job.toml"],
            code: 2,
            says: &["job.toml:17:18: error: `colour` is not in [features]", "did you mean `color`?"],
        },
        Case {
            what: "a value of another type",
            spoil: |place| place.edit("batch_size = 32", "batch_size = \"32\""),
            line: TRAIN,
            code: 2,
            says: &["job.toml:6:14: error: expected a whole number or \"auto\", found \"32\""],
        },
        Case {
            what: "not TOML",
            spoil: |place| place.edit("batch_size = 32", "batch_size = = 32"),
            line: TRAIN,
            code: 2,
            says: &["job.toml:6:14: error: not TOML"],
        },
        Case {
            what: "a misspelt override",
            spoil: NOTHING,
            line: &["train", "job.toml", "--set", "data.bacth_size=3"],
            code: 2,
            says: &["--set data.bacth_size=3: error: unknown key", "did you mean `batch_size`?"],
        },
        Case {
            what: "an override that is none",
            spoil: NOTHING,
            line: &["train", "job.toml", "--set", "epochs"],
            code: 2,
            says: &["--set epochs: error: expected `section.key=value`"],
        },
        Case {
            what: "no job file",
            spoil: NOTHING,
            line: &["train", "jobs.toml"],
            code: 2,
            says: &["jobs.toml", "No such file"],
        },
        Case {
            what: "a directory for a job file",
            spoil: |place| fs::create_dir(place.path("jobs")).unwrap(),
            line: &["check", "jobs"],
            code: 2,
            says: &["jobs", "s a directory"],
        },
        Case {
            what: "a binary for a job file",
            spoil: |place| fs::write(place.path("job.toml"), [0xff; 100]).unwrap(),
            line: TRAIN,
            code: 2,
            says: &["job.toml", "UTF-8"],
        },
        Case { what: "no command", spoil: NOTHING, line: &[], code: 2, says: &["Usage: millstream"] },
        Case {
            what: "a misspelt command",
            spoil: NOTHING,
            line: &["trian", "job.toml"],
            code: 2,
            says: &["unrecognized subcommand 'trian'", "'train'"],
        },
    ];
    try_all(Place::without_data, &cases);
}

#[test]
fn without_a_daemon_its_commands_name_the_socket() {
    let lines: [&'static [&'static str]; 6] = [
        &["list"],
        &["show", "spoiled"],
        &["logs", "-f", "spoiled"],
        &["cancel", "spoiled"],
        &["checkpoint", "spoiled"],
        &["submit", "job.toml"],
    ];
    try_all(
        Place::new,
        &lines.map(|line| Case {
            what: "no daemon",
            spoil: NOTHING,
            line,
            code: 1,
            says: &["no daemon listens on /", "/millstreamd.sock", "start `millstreamd`"],
        }),
    );
}

#[test]
fn a_stale_socket_is_no_daemon() {
    let spoil: fn(&Place) = |place| {
        // Closed at once, and left in the file system, as a killed daemon leaves it.
        std::os::unix::net::UnixListener::bind(place.path("millstreamd.sock")).unwrap();
    };
    let says: &[&str] = &["no daemon listens on /", "/millstreamd.sock"];
    try_all(Place::new, &[Case { what: "a stale socket", spoil, line: &["list"], code: 1, says }]);
}

#[test]
fn an_unknown_job_is_named() {
    let place = Place::new();
    let daemon = Daemon::start(&place.path(""));
    let none = place.shell().run(&["list"]).with_code(0);
    assert!(!none.stdout.contains("spoiled"), "{}", none.stdout);
    let before = place.shell().files();
    for line in [
        ["show", "spoiled-x"].as_slice(),
        &["logs", "spoiled-x"],
        &["logs", "-f", "spoiled-x"],
        &["cancel", "spoiled-x"],
        &["checkpoint", "spoiled-x"],
        &["eval", "spoiled-x"],
        &["predict", "spoiled-x", "eval.parquet"],
    ] {
        let ended = place.shell().run(line).with_code(1);
        assert!(ended.stderr.contains("spoiled-x"), "{line:?}: {}", ended.stderr);
        assert_eq!(ended.stdout.trim(), "", "{line:?}");
    }
    assert_eq!(place.shell().files(), before);
    daemon.stop();
}
