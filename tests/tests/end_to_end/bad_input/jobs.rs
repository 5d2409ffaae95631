//! Invalid job files, and commands without a daemon.

use std::fs;

use millstream_tests::programs::Daemon;

use super::fixture::{Case, Fixture, run_cases};

const TRAIN: &[&str] = &["train", "job.toml"];
const NOTHING: fn(&Fixture) = |_| {};

/// Runs without data: errors of a job file are reported before any data is accessed.
#[test]
fn invalid_job_files_are_rejected_before_any_work() {
    let cases = [
        Case {
            name: "unknown key",
            corrupt: |fixture| fixture.edit("batch_size = 32", "bacth_size = 32"),
            arguments: TRAIN,
            exit_code: 2,
            stderr: &["job.toml:6:1: error: unknown key `bacth_size`", "did you mean `batch_size`?"],
        },
        Case {
            name: "key of another section",
            corrupt: |fixture| fixture.edit("column = \"clicked\"", "column = \"clicked\"\nepochs = 3"),
            arguments: &["check", "job.toml"],
            exit_code: 2,
            stderr: &["job.toml:10:1: error: unknown key `epochs`", "did you mean `data.epochs`?"],
        },
        Case {
            name: "keys that contradict each other",
            corrupt: |fixture| {
                fixture.edit(
                    "{ kind = \"vocabulary\" }",
                    "{ kind = \"vocabulary\", terms = [\"a\"], min_count = 2 }",
                );
            },
            arguments: &["submit", "job.toml"],
            exit_code: 2,
            stderr: &["job.toml:13:59: error: `min_count`", "contradicts `terms`"],
        },
        Case {
            name: "an undefined feature",
            corrupt: |fixture| fixture.edit("wide.features = [\"color\"]", "wide.features = [\"colour\"]"),
            arguments: &["bench", "ingest", "job.toml"],
            exit_code: 2,
            stderr: &["job.toml:17:18: error: `colour` is not in [features]", "did you mean `color`?"],
        },
        Case {
            name: "a value of another type",
            corrupt: |fixture| fixture.edit("batch_size = 32", "batch_size = \"32\""),
            arguments: TRAIN,
            exit_code: 2,
            stderr: &["job.toml:6:14: error: expected a whole number or \"auto\", found \"32\""],
        },
        Case {
            name: "not TOML",
            corrupt: |fixture| fixture.edit("batch_size = 32", "batch_size = = 32"),
            arguments: TRAIN,
            exit_code: 2,
            stderr: &["job.toml:6:14: error: not TOML"],
        },
        Case {
            name: "a misspelled override",
            corrupt: NOTHING,
            arguments: &["train", "job.toml", "--set", "data.bacth_size=3"],
            exit_code: 2,
            stderr: &["--set data.bacth_size=3: error: unknown key", "did you mean `batch_size`?"],
        },
        Case {
            name: "an override without a value",
            corrupt: NOTHING,
            arguments: &["train", "job.toml", "--set", "epochs"],
            exit_code: 2,
            stderr: &["--set epochs: error: expected `section.key=value`"],
        },
        Case {
            name: "no job file",
            corrupt: NOTHING,
            arguments: &["train", "jobs.toml"],
            exit_code: 2,
            stderr: &["jobs.toml", "No such file"],
        },
        Case {
            name: "a directory instead of a job file",
            corrupt: |fixture| fs::create_dir(fixture.path("jobs")).unwrap(),
            arguments: &["check", "jobs"],
            exit_code: 2,
            stderr: &["jobs", "s a directory"],
        },
        Case {
            name: "a binary instead of a job file",
            corrupt: |fixture| fs::write(fixture.path("job.toml"), [0xff; 100]).unwrap(),
            arguments: TRAIN,
            exit_code: 2,
            stderr: &["job.toml is not a job file: it is not text", "millstream inspect job.toml"],
        },
        Case {
            name: "no command",
            corrupt: NOTHING,
            arguments: &[],
            exit_code: 2,
            stderr: &["Usage: millstream"],
        },
        Case {
            name: "a misspelled command",
            corrupt: NOTHING,
            arguments: &["trian", "job.toml"],
            exit_code: 2,
            stderr: &["unrecognized subcommand 'trian'", "'train'"],
        },
    ];
    run_cases(Fixture::without_data, &cases);
}

#[test]
fn commands_without_a_daemon_name_the_socket() {
    let lines: [&'static [&'static str]; 6] = [
        &["list"],
        &["show", "spoiled"],
        &["logs", "-f", "spoiled"],
        &["cancel", "spoiled"],
        &["checkpoint", "spoiled"],
        &["submit", "job.toml"],
    ];
    run_cases(
        Fixture::new,
        &lines.map(|line| Case {
            name: "no daemon",
            corrupt: NOTHING,
            arguments: line,
            exit_code: 1,
            stderr: &["no daemon listens on /", "/millstreamd.sock", "start `millstreamd`"],
        }),
    );
}

#[test]
fn a_stale_socket_is_not_a_daemon() {
    let corrupt: fn(&Fixture) = |fixture| {
        // Closed immediately, but left in the file system, as after a killed daemon.
        std::os::unix::net::UnixListener::bind(fixture.path("millstreamd.sock")).unwrap();
    };
    let stderr: &[&str] = &["no daemon listens on /", "/millstreamd.sock"];
    run_cases(
        Fixture::new,
        &[Case { name: "a stale socket", corrupt, arguments: &["list"], exit_code: 1, stderr }],
    );
}

#[test]
fn an_unknown_job_is_named() {
    let fixture = Fixture::new();
    let daemon = Daemon::start(&fixture.path(""));
    let none = fixture.shell().run(&["list"]).with_code(0);
    assert!(!none.stdout.contains("spoiled"), "{}", none.stdout);
    let before = fixture.shell().files();
    for line in [
        ["show", "spoiled-x"].as_slice(),
        &["logs", "spoiled-x"],
        &["logs", "-f", "spoiled-x"],
        &["cancel", "spoiled-x"],
        &["checkpoint", "spoiled-x"],
        &["eval", "spoiled-x"],
        &["predict", "spoiled-x", "eval.parquet"],
    ] {
        let ended = fixture.shell().run(line).with_code(1);
        assert!(ended.stderr.contains("spoiled-x"), "{line:?}: {}", ended.stderr);
        assert_eq!(ended.stdout.trim(), "", "{line:?}");
    }
    assert_eq!(fixture.shell().files(), before);
    daemon.stop();
}
