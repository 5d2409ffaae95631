//! Each row counts once, and neither the number of workers nor that of hosts changes the result.

use std::fs;
use std::path::PathBuf;

use millstream_tests::programs::{children, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::table::Table;
use millstream_tests::tiny_job::{Contents, TinyJob};
use serde_json::Value;

use crate::hosts::case::{Case, succeed};

/// The tiny job with one file of so many rows to train on.
fn job_of_one_file(rows: usize) -> TinyJob {
    let job = TinyJob::new();
    for file in 0..4 {
        fs::remove_file(job.directory().join(format!("train-{file}.parquet"))).unwrap();
    }
    Table::clicks(rows, 7).write_parquet(&job.directory().join("train-0.parquet"));
    job
}

fn log_loss(job: &Value) -> f64 {
    job["eval"]["log_loss"].as_f64().unwrap_or_else(|| panic!("{job:#}"))
}

/// tensorflow 35878 and 36846, recommenders 274: fewer files than workers, or few rows, end in an error or hang.
#[test]
fn one_file_and_four_hosts_train_each_row_once() {
    let case = Case::of(&job_of_one_file(100), 100, 6);
    let set = ["workers.reproducible=4"];
    let wanted = case.undisturbed(&set);
    let daemons = case.start_all::<4>();
    let id = case.submit(&daemons[0], 4, &["workers.reproducible=4", "workers.min=4"]);
    let ended = succeed(&daemons.each_ref(), &id);
    case.of_end(&ended).assert_same(&wanted);
    assert_eq!(ended["attempts"], 1, "{ended:#}");
}

/// pytorch 33148 and 38174: a rank without input hangs the others. A group of 900 rows is read by one host, so the other one has no row
/// of any batch.
#[test]
fn batches_on_one_of_two_hosts_do_not_stop_the_other() {
    let case = Case::of(&job_of_one_file(900), 900, 3);
    let alone = case.start("alone");
    let wanted = alone.succeeded(&case.submit(&alone, 1, &[]));
    alone.stop();
    let daemons = case.start_two();
    let id = case.submit(&daemons[0], 2, &["workers.min=2"]);
    let ended = succeed(&daemons.each_ref(), &id);
    case.of_end(&ended);
    let (one, two) = (log_loss(&wanted), log_loss(&ended));
    assert!((one - two).abs() < 1e-5, "{two}, and on one host {one}");
}

/// mxnet 2806 and 11919: with more workers, accuracy drops.
#[test]
fn metrics_do_not_depend_on_the_number_of_hosts() {
    let case = Case { epochs: 1, ..Case::new() };
    let daemons = case.start_all::<4>();
    let run = |hosts: u32, more: &[&str]| {
        let min = format!("workers.min={hosts}");
        let set = [&[min.as_str(), "data.lanes=12"], more].concat();
        let id = case.submit(&daemons[0], hosts, &set);
        let ended = daemons[0].succeeded(&id);
        // The next job needs all hosts.
        wait_until("no host trains", || daemons.iter().all(|daemon| children(daemon.pid()).is_empty()));
        let history = daemons[0].json(&["history", &id]);
        let losses = history["evaluations"].as_array().unwrap().iter();
        let losses: Vec<_> = losses.map(|it| it["metrics"]["log_loss"].as_f64().unwrap()).collect();
        (case.of_end(&ended), losses)
    };
    let [(_, one), others @ ..] = [1, 2, 3, 4].map(|hosts| run(hosts, &["evaluation.every_steps=50"]));
    for (hosts, (_, losses)) in (2..).zip(others) {
        assert!((losses[0] - one[0]).abs() < 1e-6, "{losses:?} on {hosts} hosts, {one:?} on one");
        // Later, a rounding error may decide whether a unit is active.
        let [last, of_one] = [&losses, &one].map(|losses| losses.last().unwrap());
        assert!((last - of_one).abs() < 1e-3, "{losses:?} on {hosts} hosts, {one:?} on one");
    }
    let [(one, _), others @ ..] = [1, 2, 4].map(|hosts| run(hosts, &["workers.reproducible=4"]));
    others.iter().for_each(|(model, _)| model.assert_same(&one));
}

/// torchtitan 811, pytorch 79016: what 8 workers save does not load on 16, or on one.
///
/// What 1, 2 and 8 workers write has the same bytes. Three workers cannot add in the same order, so what they write is compared once 1, 2
/// and 8 workers have read it, and what they read by the metrics. `workers.rs` has checkpoints of several files.
#[test]
fn any_number_of_workers_reads_what_any_other_wrote() {
    let job = job_of_one_file(1_000);
    let shell = Shell::new(job.directory());
    let train = |workers: u32, start: &[&str], epochs: u32| {
        let mut set = vec![
            format!("workers.per_host={workers}"),
            format!("data.epochs={epochs}"),
            "checkpoint.every_steps=1000000".to_owned(),
        ];
        if workers != 3 {
            set.push("workers.reproducible=8".to_owned());
        }
        let line = [&["train", "--json"], start].concat();
        let line = line.into_iter().chain(set.iter().flat_map(|set| ["--set", set])).collect::<Vec<_>>();
        let ended = shell.run(&line).with_code(0).json();
        assert_eq!(ended["examples"].as_u64(), Some(1_000 * u64::from(epochs)), "{ended:#}");
        ended
    };
    let path = |ended: &Value| PathBuf::from(ended["checkpoint"].as_str().unwrap());
    let contents = |ended: &Value| Contents::of(path(ended)).without_job_description();
    let written = [1, 2, 8, 3].map(|workers| train(workers, &["job.toml"], 1));
    let one = contents(&written[0]);
    written[1..3].iter().for_each(|other| contents(other).assert_same(&one));
    let read = |ended: &Value, workers: u32| {
        let run = path(ended).parent().unwrap().to_str().unwrap().to_owned();
        train(workers, &["job.toml", "--continue", &run], 2)
    };
    let [by_one, _] = [&written[0], &written[3]].map(|ended| {
        let [one, two, eight] = [1, 2, 8].map(|workers| read(ended, workers));
        [two, eight].iter().for_each(|other| contents(other).assert_same(&contents(&one)));
        log_loss(&one)
    });
    let by_three = log_loss(&read(&written[0], 3));
    assert!((by_one - by_three).abs() < 1e-5, "{by_three} with three workers, {by_one} with one");
}
