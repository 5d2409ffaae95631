//! A real `millstreamd` with its own socket, and the commands that control it.

use std::path::Path;

use millstream_tests::programs::{Daemon, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::TinyJob;

/// Steps of the long job, which outlasts the test, and of one epoch.
const STEPS: u64 = 1000 * EPOCH;
const EPOCH: u64 = 750;

#[test]
fn a_job_is_submitted_listed_shown_followed_checkpointed_and_cancelled() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let daemon = Daemon::start(job.directory());
    assert_eq!(shell.run(&["list", "--json"]).with_code(0).json()["jobs"], serde_json::json!([]));

    // Prints the id alone, for use in $(...). Checkpoints are so rare that none is deleted while the test uses it.
    let line = ["submit", "job.toml", "--set", "data.epochs=1000", "--set", "checkpoint.every_steps=1000000"];
    let long = shell.run(&line).with_code(0).stdout;
    let long = long.strip_suffix('\n').unwrap();
    assert!(long.starts_with("tiny-") && !long.contains(char::is_whitespace), "{long:?}");
    let line = ["submit", "job.toml", "--set", "data.epochs=1", "--set", "name=short", "--json"];
    let short = shell.run(&line).with_code(0).json();
    assert_eq!(
        (&short["name"], &short["state"]),
        (&"short".into(), &"queued".into()),
        "jobs run one at a time"
    );
    let short = short["id"].as_str().unwrap();

    // It is prepared while the first one runs.
    wait_until("the second job is prepared", || daemon.show(short)["waits_for"].is_string());
    let shown = shell.run(&["show", short]).with_code(0).stdout;
    assert!(shown.contains("1 job is running, as many as `max_jobs` allows"), "{shown}");

    let list = shell.run(&["list", "--json"]).with_code(0).json();
    let ids: Vec<_> =
        list["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [short, long], "newest first");
    let table = shell.run(&["list"]).with_code(0).stdout;
    assert!(table.contains(long) && table.contains(short) && table.contains("queued"), "{table}");

    wait_until("the job trains", || daemon.show(long)["progress"]["step"].as_u64() > Some(0));
    // A unique prefix of an id.
    let shown = shell.run(&["show", "tiny", "--json"]).with_code(0).json();
    assert_eq!(
        (&shown["id"], &shown["state"], &shown["attempts"]),
        (&long.into(), &"running".into(), &1.into())
    );
    assert!(shell.run(&["show", "tiny"]).with_code(0).stdout.contains("running"));

    let explained = shell.run(&["explain", long, "--json"]).with_code(0).json();
    assert!(explained["whole"]["rows_per_second"].as_f64() > Some(0.0), "{explained:#}");
    assert!(explained["recent"]["bound"].is_string() && explained["resources"]["lanes"].as_u64() > Some(0));
    let screen = shell.run(&["explain", long]).with_code(0).stdout;
    assert!(screen.contains("bottleneck") && screen.lines().count() < 25, "{screen}");
    let rejected = shell.run(&["explain", short]).with_code(1).stderr;
    assert!(rejected.contains(&format!("job {short} has no running ingest: it is queued")), "{rejected}");

    let plotted = shell.run(&["history", long]).with_code(0).stdout;
    assert!(plotted.contains("training loss") && plotted.contains("running"), "{plotted}");
    let nothing = shell.run(&["history", short]).with_code(0).stdout;
    assert!(nothing.contains("no history to show: it is queued"), "{nothing}");

    let taken = shell.run(&["checkpoint", long, "--json"]).with_code(0).json();
    let path = Path::new(taken["path"].as_str().unwrap());
    assert!(path.join("manifest.json").exists() && taken["step"].as_u64() > Some(0), "{taken}");
    let scored = shell.run(&["eval", path.to_str().unwrap(), "--json"]).with_code(0).json();
    assert_eq!(scored["examples"], 6_000, "a checkpoint is usable while its job runs");

    let follower = shell.start(&["logs", "-f", long]);
    let cancelled = shell.run(&["cancel", long, "--json"]).with_code(0).json();
    assert_eq!(cancelled["state"], "cancelled");
    let step = cancelled["progress"]["step"].as_u64().unwrap();
    assert!(step >= taken["step"].as_u64().unwrap() && step < STEPS, "{cancelled:#}");
    assert!(
        cancelled["checkpoint"].as_str().unwrap().ends_with(&format!("step-{step:010}")),
        "{cancelled:#}"
    );
    let followed = follower.wait().with_code(0).stdout;
    assert!(followed.contains("checkpoint at step") && followed.contains("cancelled"), "{followed}");
    assert_eq!(
        shell.run(&["cancel", long, "--json"]).with_code(0).json()["state"],
        "cancelled",
        "cancelling is idempotent"
    );
    let rejected = shell.run(&["checkpoint", long]).with_code(1).stderr;
    assert!(rejected.contains(long) && rejected.contains("cancelled"), "{rejected}");

    let followed = shell.run(&["logs", "-f", short]).with_code(0).stdout;
    assert!(followed.lines().last().unwrap().contains("succeeded"), "{followed}");
    assert_eq!(shell.run(&["logs", short]).with_code(0).stdout, followed);
    let lines = shell.run(&["logs", short, "--json"]).with_code(0).json();
    assert_eq!(lines["lines"].as_array().unwrap().len(), followed.lines().count());
    assert_eq!(daemon.show(short)["progress"]["step"], EPOCH);
    daemon.stop();
}

#[test]
fn the_history_of_a_job_is_printed_plotted_and_drawn() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let daemon = Daemon::start(job.directory());
    let line = ["train", "job.toml", "--set", "data.epochs=2", "--history", "train.json", "--json"];
    let outcome = shell.run(&line).with_code(0).json();
    let id = outcome["job"].as_str().unwrap();

    let history = shell.run(&["history", id, "--json"]).with_code(0).json();
    let steps = |key: &str| {
        let points = history[key].as_array().unwrap().iter();
        points.map(|point| point["step"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((steps("points").last(), steps("evaluations")), (Some(&(2 * EPOCH)), vec![EPOCH, 2 * EPOCH]));
    assert!(steps("points").is_sorted() && history["points"][0]["loss"].as_f64() > Some(0.0), "{history:#}");
    let last = &history["evaluations"][1];
    assert_eq!((&last["epoch"], &last["metrics"]["auc"]), (&1.into(), &outcome["eval"]["auc"]));
    let written = std::fs::read_to_string(job.directory().join("train.json")).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap(), history);

    let plotted = shell.run(&["history", id]).with_code(0).stdout;
    for curve in ["training loss", "held-out auc", "held-out log loss", "held-out accuracy"] {
        assert!(plotted.contains(curve), "{plotted}");
    }
    assert!(plotted.lines().all(|line| line.chars().count() <= 100), "{plotted}");
    let drawn = shell.run(&["history", id, "--svg", "a.svg"]).with_code(0);
    assert_eq!(drawn.stdout, "");
    let begins =
        |name: &str, wanted: &[u8]| std::fs::read(job.directory().join(name)).unwrap().starts_with(wanted);
    assert!(begins("a.svg", b"<svg "));
    assert!(shell.run(&["history", "nope"]).with_code(1).stderr.contains("no job `nope`"));
    let rejected = shell.run(&["train", "job.toml", "--history", "a.pdf"]).with_code(2).stderr;
    assert!(rejected.contains(".svg or .json"), "{rejected}");
    daemon.stop();
}

#[test]
fn train_uses_a_listening_daemon() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let daemon = Daemon::start(job.directory());
    let ended = shell.run(&["train", "job.toml", "--set", "data.epochs=1", "--json"]).with_code(0);
    let outcome = ended.json();
    let id = outcome["job"].as_str().unwrap();
    assert!(ended.stderr.contains(&format!("job {id} runs in the daemon")), "{}", ended.stderr);
    let shown = daemon.show(id);
    assert_eq!((&shown["state"], &shown["eval"]), (&"succeeded".into(), &outcome["eval"]));
    daemon.stop();

    let alone = shell.run(&["train", "job.toml", "--set", "data.epochs=1", "--json"]).with_code(0);
    assert!(!alone.stderr.contains("daemon"), "{}", alone.stderr);
    assert_eq!(alone.json()["eval"], outcome["eval"], "the result does not depend on a daemon");
}

#[test]
fn two_daemons_do_not_share_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path());
    let second = std::process::Command::new(millstream_tests::programs::program("millstreamd"))
        .arg("--socket")
        .arg(directory.path().join("millstreamd.sock"))
        .arg("--state")
        .arg(directory.path().join("other"))
        .output()
        .unwrap();
    let message = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{message}");
    assert!(message.contains("millstreamd.sock"), "{message}");
    assert_eq!(daemon.json(&["list"])["jobs"], serde_json::json!([]), "the first daemon is unaffected");
    daemon.stop();
}

#[test]
fn train_runs_in_the_chosen_place() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let train = |more: &[&str]| shell.run(&[&["train", "job.toml", "--set", "data.epochs=1"], more].concat());
    let alone = train(&["--daemon"]).with_code(1).stderr;
    assert!(alone.contains("no daemon listens on"), "{alone}");
    assert!(!train(&[]).with_code(0).stderr.contains("in the daemon"));

    let daemon = Daemon::start(job.directory());
    let jobs = || daemon.json(&["list"])["jobs"].as_array().unwrap().len();
    let local = train(&["--local"]).with_code(0).stderr;
    assert_eq!((local.contains("in the daemon"), jobs()), (false, 0), "{local}");
    for place in [&[][..], &["--daemon"]] {
        let before = jobs();
        let note = train(place).with_code(0).stderr;
        let socket = format!("runs in the daemon at {}", daemon.socket().display());
        assert!(note.contains(&socket) && note.contains("--local"), "{note}");
        assert_eq!(jobs(), before + 1);
    }
    let both = train(&["--local", "--daemon"]).with_code(2).stderr;
    assert!(both.contains("cannot be used with"), "{both}");
    daemon.stop();
}

#[test]
fn jobs_are_waited_for_and_listed_by_state() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let daemon = Daemon::start(job.directory());
    let submit = |more: &[&str]| {
        shell.run(&[&["submit", "job.toml"], more].concat()).with_code(0).stdout.trim().to_owned()
    };
    let good = submit(&["--set", "data.epochs=1"]);
    let bad = submit(&["--set", "label.column=nothing"]);
    let waited = shell.run(&["wait", &good]).with_code(0);
    assert_eq!(waited.stdout, format!("{good} succeeded\n"));
    let watched = shell.run(&["watch", &good]).with_code(0);
    assert!(watched.stderr.contains("eval") || watched.stderr.contains("auc"), "{}", watched.stderr);
    let failed = shell.run(&["wait", &bad]).with_code(1);
    assert!(failed.stderr.contains("no column `nothing`"), "{}", failed.stderr);

    let list = |more: &[&str]| {
        let listed = shell.run(&[&["list", "--json"], more].concat()).with_code(0).json();
        let ids = listed["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned());
        (ids.collect::<Vec<_>>(), listed["omitted"].as_u64().unwrap())
    };
    assert_eq!(list(&["--state", "failed"]), (vec![bad.clone()], 0));
    assert_eq!(list(&["-n", "1"]), (vec![bad.clone()], 1));
    assert_eq!(list(&["--state", "succeeded,failed", "-n", "0"]), (vec![bad, good.clone()], 0));
    let unknown = shell.run(&["list", "--state", "done"]).with_code(2).stderr;
    assert!(unknown.contains("expected one of queued, preparing, running"), "{unknown}");

    let all = shell.run(&["logs", &good]).with_code(0).stdout;
    let last = shell.run(&["logs", &good, "-n", "2"]).with_code(0).stdout;
    assert!(all.ends_with(&last) && last.lines().count() == 2, "{last}");
    assert_eq!(shell.run(&["logs", &good, "--since", "1d"]).with_code(0).stdout, all);
    assert_eq!(shell.run(&["logs", &good, "--since", "2100-01-01T00:00:00Z"]).with_code(0).stdout, "");
    daemon.stop();
}
