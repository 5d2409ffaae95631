//! Training data mixed by weight: a killed job has the bits of an undisturbed one, `check` shows the mix, and other
//! weights are another order.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use millstream_tests::programs::Daemon;
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::{Contents, TinyJob};
use serde_json::Value;

/// Of four files of 6,000 rows.
const MIX: &str = r#"data.train=["train-0.parquet", { files = "train-1.parquet", weight = 2.5 }, { files = "train-[23].parquet", weight = 0.5 }]"#;

fn contents(outcome: &Value) -> Contents {
    Contents::of(outcome["checkpoint"].as_str().unwrap())
}

#[test]
fn a_killed_job_over_mixed_data_has_the_bits_of_an_undisturbed_one() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let file = job.file();
    let submit = |set: &[&str]| {
        let set = [&[MIX, "data.epochs=8"], set].concat();
        let set: Vec<&str> = set.into_iter().flat_map(|set| ["--set", set]).collect();
        let id = daemon.json(&[&["submit", file.to_str().unwrap()], &set[..]].concat());
        id["id"].as_str().unwrap().to_owned()
    };
    let undisturbed = daemon.succeeded(&submit(&[]));
    let wanted = contents(&undisturbed);
    let examples = undisturbed["progress"]["examples"].as_u64().unwrap();
    // Halves add up to whole rows in an even number of epochs.
    assert_eq!(examples, 8 * (6_000 + 15_000 + 6_000));

    let id = submit(&[]);
    daemon.kill_worker_after(&id, &[150, 1_000, 2_900]);
    let killed = daemon.succeeded(&id);
    assert!(killed["attempts"].as_u64().unwrap() > 1, "{killed:#}");
    contents(&killed).assert_same(&wanted);
    assert_eq!(killed["eval"], undisturbed["eval"]);

    let cached = "data.cache={ directory = \"cache\", max_bytes = \"1GiB\" }";
    for set in [&["training.threads=2"][..], &["data.threads=1"], &[cached]] {
        let other = contents(&daemon.succeeded(&submit(set)));
        other.without_job_description().assert_same(&contents(&undisturbed).without_job_description());
    }
    daemon.stop();
}

#[test]
fn check_shows_the_mix_and_refuses_a_file_of_two_weights() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let plan = shell.run(&["check", "job.toml", "--json", "--set", MIX]).with_code(0).json();
    assert_eq!((&plan["data"]["train"]["rows"], &plan["rows_per_epoch"]), (&24_000.into(), &27_000.into()));
    assert_eq!((&plan["steps_per_epoch"], &plan["steps_are_estimated"]), (&844.into(), &true.into()));
    let sources = plan["data"]["sources"].as_array().unwrap();
    let weights: Vec<_> = sources.iter().map(|source| source["weight"].as_f64().unwrap()).collect();
    assert_eq!(weights, [1.0, 2.5, 0.5]);
    let rows: Vec<_> = sources.iter().map(|source| source["rows"].as_u64().unwrap()).collect();
    assert_eq!(rows, [6_000, 6_000, 12_000]);
    let shares: Vec<_> = sources.iter().map(|source| source["share"].as_f64().unwrap()).collect();
    assert_eq!(shares, [6.0 / 27.0, 15.0 / 27.0, 6.0 / 27.0]);
    let printed = shell.run(&["check", "job.toml", "--set", MIX]).with_code(0).stdout;
    let line = printed.lines().find(|line| line.starts_with("train-1.parquet")).unwrap();
    assert!(line.contains("2.5") && line.contains("55.6 %"), "{printed}");
    let whole = MIX.replace("2.5", "3").replace("0.5", "2");
    let plan = shell.run(&["check", "job.toml", "--json", "--set", &whole]).with_code(0).json();
    assert_eq!((&plan["rows_per_epoch"], &plan["steps_are_estimated"]), (&48_000.into(), &false.into()));
    let plain = shell.run(&["check", "job.toml", "--json"]).with_code(0).json();
    assert_eq!((&plain["data"]["sources"], &plain["rows_per_epoch"]), (&Value::Null, &24_000.into()));

    let twice = MIX.replace("train-0", "train-[01]");
    let refused = shell.run(&["check", "job.toml", "--set", &twice]).with_code(1).stderr;
    let expected = "`data.train`: train-1.parquet matches both train-[01].parquet, with weight 1, and train-1.parquet, \
                    with weight 2.5";
    assert!(refused.contains(expected), "{refused}");
}

#[test]
fn a_resume_needs_the_weights_and_a_continuation_does_not() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let train = |arguments: &[&str], set: &[&str]| {
        let set: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
        shell.run(&[&["train", "--json"], arguments, &set[..]].concat()).with_code(0).json()
    };
    let run = |outcome: &Value| {
        Path::new(outcome["checkpoint"].as_str().unwrap()).parent().unwrap().to_str().unwrap().to_owned()
    };
    let whole = train(&["job.toml"], &[MIX, "data.epochs=4"]);
    let short = train(&["job.toml"], &[MIX, "data.epochs=2"]);
    let longer = train(&["--continue", &run(&short)], &["data.epochs=4"]);
    assert_eq!(longer["examples"], 4 * 27_000);
    let state = |outcome: &Value| contents(outcome).without_job_description();
    state(&longer).assert_same(&state(&whole));

    let other = MIX.replace("2.5", "2");
    let plan = ["check", "--json", "--continue", &run(&short), "--set", &other];
    assert_eq!(shell.run(&plan).with_code(0).json()["continuation"]["is_same_data"], false);
    let plan = ["check", "--json", "--continue", &run(&short), "--set", "data.epochs=4"];
    assert_eq!(shell.run(&plan).with_code(0).json()["continuation"]["is_same_data"], true);

    // Filters, a held-out share and sampled negatives select rows before weights repeat them.
    let set = [
        MIX,
        "data.epochs=2",
        "data.eval=[]",
        "data.validation={ fraction = 0.5 }",
        "data.negatives=0.5",
        "data.train_filter=[{ column = \"x\", op = \"<\", value = 5 }]",
    ];
    let selected = train(&["job.toml"], &set);
    let held_out = selected["eval"]["examples"].as_u64().unwrap();
    assert!((11_000..13_000).contains(&held_out), "half of 24,000 rows: {held_out}");
    let examples = selected["examples"].as_u64().unwrap();
    assert!((2_000..20_000).contains(&examples), "{examples}");

    // An epoch of a file that has changed is an error, as without weights.
    let unfinished = train(&["job.toml"], &[MIX, "data.epochs=1"]);
    fs::remove_file(job.directory().join("train-1.parquet")).unwrap();
    let refused =
        shell.run(&["train", "--continue", &run(&unfinished), "--set", "data.epochs=2"]).with_code(1);
    assert!(refused.stderr.contains("train-1.parquet"), "{}", refused.stderr);
}
