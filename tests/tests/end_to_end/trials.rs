//! Searches: trials are ordinary jobs, bad ones stop early, and a search survives `kill -9` of its daemon.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::fs;

use millstream_test_storage::{Options, Server};
use millstream_tests::programs::{Daemon, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;

const SEARCH: &str = r#"
[evaluation]
every_epochs = 1

[search]
algorithm = "random"
trials = 6
parallel = 3
seed = 3

[search.parameters]
"model.deep.optimizer.learning_rate" = { min = 1e-4, max = 0.5, scale = "log" }
"data.batch_size" = { values = [32, 64] }

[search.stop]
reduction = 2
"#;

/// The tiny job as a search, with `epochs` per trial.
fn search(epochs: u32) -> TinyJob {
    let job = TinyJob::new();
    let text = fs::read_to_string(job.file()).unwrap();
    assert!(text.contains("epochs = 24"));
    fs::write(job.file(), text.replace("epochs = 24", &format!("epochs = {epochs}")) + SEARCH).unwrap();
    job
}

fn trials(daemon: &Daemon, id: &str) -> Vec<Value> {
    daemon.json(&["trials", id])["trials"].as_array().unwrap().clone()
}

/// Checks a search that has succeeded, and returns its trials.
fn check(daemon: &Daemon, id: &str) -> Vec<Value> {
    let found = trials(daemon, id);
    assert_eq!(found.len(), 6);
    let states: Vec<_> = found.iter().map(|trial| trial["state"].as_str().unwrap()).collect();
    assert!(states.contains(&"finished"), "{states:?}");
    assert!(states.iter().all(|state| ["finished", "stopped"].contains(state)), "{states:?}");
    let jobs: HashSet<_> = found.iter().map(|trial| trial["job"].as_str().unwrap()).collect();
    assert_eq!(jobs.len(), 6, "each trial has a job of its own");
    let best: Vec<_> = found.iter().filter(|trial| trial["is_best"] == true).collect();
    assert_eq!(best.len(), 1);
    let highest = found.iter().filter(|trial| trial["state"] == "finished");
    let highest = highest.map(|trial| trial["value"].as_f64().unwrap()).fold(0.0, f64::max);
    assert_eq!(best[0]["value"].as_f64(), Some(highest));
    found
}

#[test]
fn a_search_runs_trials_as_jobs_and_finds_the_best() {
    let job = search(4);
    let daemon = Daemon::start(job.directory());
    let id = daemon.json(&["submit", job.file().to_str().unwrap()])["id"].as_str().unwrap().to_owned();
    let ended = daemon.succeeded(&id);
    let found = check(&daemon, &id);
    let reason = ended["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("6 of 6 trials have ended") && reason.contains("the best is tiny-t0"),
        "{reason}"
    );
    let listed = daemon.json(&["list"]);
    let listed = listed["jobs"].as_array().unwrap();
    assert_eq!(listed.len(), 7, "the search and its trials");
    for trial in &found {
        let of_trial = daemon.show(trial["job"].as_str().unwrap());
        assert_eq!(of_trial["name"], trial["name"]);
        assert!(of_trial["directory"].as_str().unwrap().starts_with(ended["directory"].as_str().unwrap()));
        if trial["state"] == "stopped" {
            assert_eq!(of_trial["state"], "cancelled");
            assert!(of_trial["reason"].as_str().unwrap().starts_with("stopped early by its search"));
            assert!(trial["steps"].as_u64() < best(&found)["steps"].as_u64() || trial["rungs"] != 0);
        }
    }
    // By the id of a trial.
    assert_eq!(trials(&daemon, found[2]["job"].as_str().unwrap()), found);

    let name = best(&found)["name"].as_str().unwrap();
    let eval = daemon.run(&["eval", &id, "--json"]);
    let note = String::from_utf8(eval.stderr).unwrap();
    assert!(eval.status.success() && note.contains(&format!("its best trial is {name} (")), "{note}");
    let scored: Value = serde_json::from_slice(&eval.stdout).unwrap();
    assert_eq!(scored["auc"], best(&found)["value"]);
    let of_trial = daemon.run(&["eval", found[2]["job"].as_str().unwrap(), "--json"]);
    assert!(of_trial.status.success());
    let note = String::from_utf8(of_trial.stderr).unwrap();
    assert!(!note.contains("best trial"), "a trial's id is that of the trial: {note}");
    let predict = daemon.run(&["predict", &id, "-o", job.directory().join("scores.csv").to_str().unwrap()]);
    let note = String::from_utf8(predict.stderr).unwrap();
    assert!(predict.status.success() && note.contains(&format!("its best trial is {name} (")), "{note}");

    let picture = job.directory().join("trials.svg");
    let output = daemon.run(&["trials", &id, "--plot", picture.to_str().unwrap()]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && table.contains("tiny-t05") && table.contains(" *"), "{table}");
    let svg = fs::read_to_string(picture).unwrap();
    assert_eq!(svg.matches("class=\"trial\"").count(), 6);

    let file = job.directory().join("best.toml");
    let output = daemon.run(&["trials", &id, "--best"]);
    fs::write(&file, output.stdout).unwrap();
    let again = daemon.json(&["submit", file.to_str().unwrap()])["id"].as_str().unwrap().to_owned();
    let again = daemon.succeeded(&again);
    assert_eq!(again["eval"]["auc"], best(&found)["value"], "the best trial again, with the same bits");
    let error = daemon.run(&["trials", again["id"].as_str().unwrap()]);
    let error = String::from_utf8(error.stderr).unwrap();
    assert!(error.contains("is not a search: its job file has no [search]"), "{error}");
    daemon.stop();
}

fn best(trials: &[Value]) -> &Value {
    trials.iter().find(|trial| trial["is_best"] == true).unwrap()
}

#[test]
fn a_search_survives_kills_of_its_daemon() {
    let job = search(4);
    let mut daemon = Daemon::start(job.directory());
    let id = daemon.json(&["submit", job.file().to_str().unwrap()])["id"].as_str().unwrap().to_owned();
    // The jobs that were under way at the last kill, with their checkpoints then.
    let mut killed: Vec<Value> = Vec::new();
    for evaluations in [1, 4] {
        wait_until("some evaluations", || {
            let done: u64 =
                trials(&daemon, &id).iter().map(|trial| trial["evaluations"].as_u64().unwrap()).sum();
            done >= evaluations || daemon.show(&id)["state"] != "running"
        });
        // A job whose daemon dies twice without a new checkpoint in between is held, which fails the trial.
        wait_until("these jobs have a new checkpoint", || {
            killed.iter().all(|before| {
                let now = daemon.show(before["id"].as_str().unwrap());
                now["ended_ms"].is_u64() || now["checkpoint"] != before["checkpoint"]
            })
        });
        let before = trials(&daemon, &id);
        let jobs = before.iter().filter_map(|trial| trial["job"].as_str());
        killed = jobs.map(|job| daemon.show(job)).filter(|job| job["ended_ms"].is_null()).collect();
        daemon.kill();
        daemon = Daemon::start(job.directory());
        for (one, other) in before.iter().zip(trials(&daemon, &id)) {
            assert_eq!((&one["name"], &one["values"]), (&other["name"], &other["values"]));
        }
        // They may have written a checkpoint just before the kill.
        killed = killed.iter().map(|job| daemon.show(job["id"].as_str().unwrap())).collect();
    }
    daemon.succeeded(&id);
    check(&daemon, &id);
    assert_eq!(daemon.json(&["list", "-n", "0"])["jobs"].as_array().unwrap().len(), 7, "no trial ran twice");
    daemon.stop();
}

#[test]
fn cancelling_a_search_cancels_its_trials_and_resuming_it_resumes_them() {
    let job = search(400);
    let daemon = Daemon::start(job.directory());
    let line = ["submit", "--set", "search.trials=2", job.file().to_str().unwrap()].map(str::to_owned);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let id = daemon.json(&line)["id"].as_str().unwrap().to_owned();
    let states = || trials(&daemon, &id).iter().map(|trial| trial["state"].to_string()).collect::<Vec<_>>();
    let is_running = || states().len() == 2 && states().iter().any(|state| state == "\"running\"");
    wait_until("a trial runs", is_running);
    daemon.json(&["cancel", &id]);
    assert_eq!(daemon.show(&id)["state"], "cancelled");
    let jobs = daemon.json(&["list"]);
    let jobs = jobs["jobs"].as_array().unwrap();
    assert!(jobs.len() == 3 && jobs.iter().all(|job| job["state"] == "cancelled"), "{jobs:#?}");
    daemon.json(&["resume", &id]);
    wait_until("a trial runs again", is_running);
    assert_eq!(daemon.json(&["list"])["jobs"].as_array().unwrap().len(), 3, "the same trials");
    daemon.json(&["cancel", &id]);
    daemon.stop();
}

#[test]
fn trials_list_analyse_and_fetch_the_data_once() {
    let job = search(2);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(Options::default())).unwrap();
    let files = ["train-0.parquet", "train-1.parquet", "eval.parquet"];
    for name in files {
        server.put(&format!("b/{name}"), fs::read(job.directory().join(name)).unwrap());
    }
    let storage = format!("\n[storage.gs]\nendpoint = \"{}\"\nanonymous = true\n", server.endpoint());
    let text = fs::read_to_string(job.file()).unwrap() + &storage;
    let text = text.replace("\"train-*", "\"gs://b/train-*").replace("\"eval.", "\"gs://b/eval.");
    // The batch size changes nothing that is learned, the number of buckets could.
    let text = text.replace(
        "{ values = [32, 64] }",
        "{ values = [32, 64] }\n\"features.color_hash.buckets\" = { values = [50, 70] }",
    );
    fs::write(job.file(), text).unwrap();
    let daemon = Daemon::start(job.directory());
    let id = daemon.json(&["submit", job.file().to_str().unwrap()])["id"].as_str().unwrap().to_owned();
    let directory = daemon.succeeded(&id)["directory"].as_str().unwrap().to_owned();
    let found = check(&daemon, &id);
    let buckets: HashSet<_> =
        found.iter().map(|trial| trial["values"].as_array().unwrap()[2].to_string()).collect();
    let learned = found.iter().filter(|trial| {
        let log = daemon.run(&["logs", trial["job"].as_str().unwrap()]);
        String::from_utf8(log.stdout).unwrap().contains("learned from ")
    });
    assert_eq!(learned.count(), buckets.len(), "one analysis per feature specification");
    let shared = fs::read_dir(directory).unwrap().flatten();
    let shared = shared.filter(|entry| entry.file_name().to_str().unwrap().starts_with("inputs-"));
    assert_eq!(shared.count(), buckets.len());
    for name in files {
        let (size, served) =
            (server.get(&format!("b/{name}")).unwrap().len(), server.served(&format!("b/{name}")));
        assert!(served.bytes <= 2 * size as u64, "{name} has {size} bytes: {served:?}");
    }
    daemon.stop();
}

#[test]
fn train_runs_a_search_in_its_process_and_prints_its_trials() {
    let job = search(2);
    let shell = Shell::new(job.directory());
    let ended = shell.run(&["train", "--local", "job.toml"]).with_code(0);
    assert!(ended.stdout.contains("TRIAL") && ended.stdout.contains("tiny-t05"), "{}", ended.stdout);
}
