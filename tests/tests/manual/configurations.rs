//! TOML of the manual: whole jobs, parts of jobs, and configurations of the daemon.
//!
//! A part of a job is merged into the job of `examples/job-reference.toml`, which has features of every kind.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use millstream_daemon::config::ConfigFile;
use millstream_job::Job;
use toml::{Table, Value};

use crate::page::{self, Block};

const REFERENCE: &str = include_str!("../../../examples/job-reference.toml");

/// Sections that a part of a job replaces as a whole: their keys depend on the kind in them.
const REPLACED: [&str; 3] = ["model", "label", "labels"];

/// Sections that need not be there, and do not suit every model.
const OPTIONAL: [&str; 4] = ["evaluation", "training", "warm_start", "workers"];

#[test]
fn jobs_and_configurations_are_valid() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for page in page::all() {
        // The generated page repeats the reference key by key.
        let is_tested =
            |block: &&Block| block.language == "toml" && page.path != Path::new(crate::reference::PAGE);
        for block in page.blocks.iter().filter(is_tested) {
            if let Err(error) = check(block) {
                wrong.push(format!("{}:{}: {error}", page.path.display(), block.line));
            }
            seen += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 5, "only {seen} blocks were found");
}

fn check(block: &Block) -> Result<(), String> {
    if block.has("daemon") {
        return toml::from_str::<ConfigFile>(&block.text).map(drop).map_err(|error| error.to_string());
    }
    let is_whole = block.has("job");
    let text = if is_whole { block.text.clone() } else { merged(&block.text)? };
    let parsed = Job::parse(&text, Path::new("job.toml"), &[]);
    let (_, warnings) = parsed.map_err(|error| format!("{error}\n{text}"))?;
    // A part need not use all features of the reference.
    match warnings.first().filter(|_| is_whole) {
        None => Ok(()),
        Some(warning) => Err(warning.to_string()),
    }
}

/// The reference job with this part in it.
fn merged(part: &str) -> Result<String, String> {
    let mut job: Table = toml::from_str(REFERENCE).unwrap();
    let part: Table = toml::from_str(part).map_err(|error| error.to_string())?;
    if part.contains_key("labels") {
        job.remove("label");
    }
    let holds_out_a_share = part.get("data").is_some_and(|data| data.get("validation").is_some());
    if let Some(Value::Table(data)) = job.get_mut("data").filter(|_| holds_out_a_share) {
        data.remove("eval");
    }
    let replaced = REPLACED.into_iter().filter(|name| part.contains_key(*name));
    for name in replaced.chain(OPTIONAL) {
        job.remove(name);
    }
    merge(&mut job, part);
    Ok(job.to_string())
}

fn merge(table: &mut Table, part: Table) {
    for (key, value) in part {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(value)) if !value.contains_key("kind") => {
                merge(below, value);
            }
            (_, value) => drop(table.insert(key, value)),
        }
    }
}

#[test]
fn a_wrong_part_is_refused() {
    let block = |marks: &[&str], text: &str| Block {
        language: "toml".to_owned(),
        marks: marks.iter().map(|&mark| mark.to_owned()).collect(),
        line: 1,
        text: text.to_owned(),
    };
    assert_eq!(check(&block(&[], "[data]\nbatch_size = 3\n")), Ok(()));
    assert_eq!(check(&block(&[], "[model]\nkind = \"linear\"\nfeatures = [\"site\"]\n")), Ok(()));
    assert_eq!(check(&block(&["daemon"], "max_jobs = 2\n")), Ok(()));
    for (marks, text) in [
        (&[][..], "[data]\nbatch_sise = 3\n"),
        (&["job"], "[data]\nbatch_size = 3\n"),
        (&["daemon"], "max_job = 2\n"),
    ] {
        assert!(check(&block(marks, text)).is_err(), "{text}");
    }
}
