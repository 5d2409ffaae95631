//! `millstream lineage`: shows what a model came from.

mod picture;

use millstream_daemon::lineage::{self, CheckpointLineage, DataLineage, Origin, Relation, RunLineage};
use millstream_io::storage::Stores;
use tokio::runtime::Runtime;

use crate::arguments::ShownLineage;
use crate::context::Context;
use crate::failure::Failure;
use crate::{figures, target, unfinished};

/// Digits of a hash that are shown.
const HASH_DIGITS: usize = 12;

/// Columns of the titles.
const TITLE: usize = 10;

/// Columns that an earlier run is indented by.
const INDENT: usize = 2;

pub(crate) fn run(arguments: &ShownLineage, context: &Context) -> Result<(), Failure> {
    let runtime = Runtime::new()?;
    let found = runtime.block_on(target::find(&arguments.target, context))?;
    let lineage = lineage::trace(&found.directory, (&Stores::default(), runtime.handle()))?;
    if let Some(path) = &arguments.svg {
        unfinished::write(path, picture::svg(&lineage).as_bytes())?;
        context.screen.note(&format!("wrote {}", path.display()));
    }
    context.answer(&lineage, || text(&lineage))
}

/// The run and, indented, the runs before it.
fn text(run: &RunLineage) -> String {
    let mut out = String::new();
    add(&mut out, run, 0);
    out
}

fn add(out: &mut String, run: &RunLineage, indent: usize) {
    let begin = " ".repeat(indent);
    *out += &format!("{}\n", heading(run));
    for (title, value) in facts(run) {
        *out += &format!("{begin}  {title:<TITLE$}  {value}\n");
    }
    for Origin { relation, path, run, problem } in &run.origins {
        *out += &format!("{begin}  {} ", verb(*relation));
        match (run, problem) {
            (Some(run), _) => add(out, run, indent + INDENT),
            (None, problem) => {
                *out += &format!("{}: {}\n", path, problem.as_deref().unwrap_or("unknown"));
            }
        }
    }
}

/// The run and the step of its checkpoint.
fn heading(RunLineage { id, checkpoint, .. }: &RunLineage) -> String {
    match checkpoint {
        Some(checkpoint) => format!("{id} at step {}", figures::count(checkpoint.step)),
        None => format!("{id}, without a checkpoint"),
    }
}

/// The facts of a run, with their titles.
fn facts(run: &RunLineage) -> Vec<(&'static str, String)> {
    let RunLineage { directory, checkpoint, job, train, eval, .. } = run;
    let mut facts = vec![("directory", directory.to_string())];
    if let Some(CheckpointLineage { examples, written_ms, millstream, model_sha256, .. }) = checkpoint {
        let version =
            if millstream.is_empty() { String::new() } else { format!(" by Millstream {millstream}") };
        let written = written_ms.map(|at| format!(", {}", figures::moment(at))).unwrap_or_default();
        let hash = model_sha256.as_deref().map(short).unwrap_or_default();
        facts.push(("model", format!("{hash}, {}{written}{version}", figures::counted(*examples, "row"))));
    }
    facts.push(("job", format!("{}, seed {}", short(&job.fingerprint), job.seed)));
    let features = figures::counted(job.features as u64, "feature");
    facts.push(("features", format!("{}, {features}", short(&job.features_fingerprint))));
    facts.extend(train.as_ref().map(|train| ("train", data(train))));
    facts.extend(eval.as_ref().map(|eval| ("held out", data(eval))));
    facts
}

fn data(DataLineage { patterns, files, bytes, sha256 }: &DataLineage) -> String {
    let files = figures::counted(*files as u64, "file");
    format!("{}, {files}, {}: {}", short(sha256), figures::bytes(*bytes), patterns.join(" "))
}

fn short(hash: &str) -> String {
    hash.chars().take(HASH_DIGITS).collect()
}

fn verb(relation: Relation) -> &'static str {
    match relation {
        Relation::Continues => "continues",
        Relation::StartsWithWeights => "starts with the weights of",
        Relation::Repeats => "repeats",
    }
}
