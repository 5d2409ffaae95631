//! `millstream init`: writes a job file for data.

mod choose;
mod moments;
mod write;

use std::io::Write;
use std::path::{Path, PathBuf};

use millstream_io::storage::Object;
use millstream_job::Job;
use millstream_pipeline::Error;
use millstream_tools::sample::{self, Sample};
use serde_json::json;

use crate::arguments::Init;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::files::{FileWork, Goal};
use crate::printable::printable;
use crate::unfinished::Unfinished;

use choose::{Choice, Task, Wishes};
use write::{Files, write};

/// Rows that are read to choose features.
const SAMPLED_ROWS: u64 = 100_000;

/// Words in the names of files that hold data to evaluate on.
const EVAL_WORDS: [&str; 8] = ["test", "eval", "valid", "validation", "val", "holdout", "heldout", "dev"];

/// More columns that are left out are only counted.
const MAX_NAMED_COLUMNS: usize = 8;

/// More files are not named one by one.
const MAX_NAMED_FILES: usize = 200;

pub(crate) fn run(arguments: Init, context: &Context) -> Result<(), Failure> {
    let Init { data, eval, label, positive, output, force } = arguments;
    if let Some(path) = output.as_deref().filter(|path| !force && path.exists()) {
        return Err(Failure::Usage(format!("{} exists; --force replaces it", path.display())));
    }
    let base = match output.as_deref().and_then(Path::parent).filter(|parent| !parent.as_os_str().is_empty())
    {
        Some(directory) => std::path::absolute(directory)?,
        None => std::env::current_dir()?,
    };
    let work = FileWork::start(context, "sampling")?;
    let objects = work.list(&data)?;
    if objects.is_empty() {
        return Err(Failure::Failed(anyhow::anyhow!("no files match {}", data.join(" "))));
    }
    let (train, held_out) = if eval.is_empty() { split(objects) } else { (objects, Vec::new()) };
    let goal = Goal { files: Some(train.len() as u64), rows: None };
    let sampled =
        work.run(goal, |storage, progress| sample::sample(&train, SAMPLED_ROWS, &storage.runtime, progress));
    let sample = sampled.map_err(|failure| about_text(failure, &data))?;
    if sample.rows == 0 {
        return Err(Failure::Failed(anyhow::anyhow!("{} hold no rows", data.join(" "))));
    }
    let choice = Choice::of(&sample, &Wishes { label: label.as_deref(), positive: positive.as_deref() })?;
    let files = Files {
        train: if held_out.is_empty() { patterns(&data, &base) } else { paths(&train, &base) },
        eval: if eval.is_empty() { paths(&held_out, &base) } else { patterns(&eval, &base) },
        name: match train.first() {
            Some(first) if data.len() > 1 => name_of(&[first.path().to_string()]),
            _ => name_of(&data),
        },
    };
    let text = write(&sample, &choice, &files, output.as_deref());
    // The file must be valid whatever the names of columns are.
    let path = output.clone().unwrap_or_else(|| base.join("job.toml"));
    Job::parse(&text, &path, &[])?;
    match &output {
        Some(path) => {
            let mut file = Unfinished::create(path)?;
            file.writer.write_all(text.as_bytes())?;
            file.keep()?;
            report(&choice, &sample, path, context)
        }
        None if context.json => context.document(&json!({ "job": text })),
        None => context.print(&text),
    }
}

/// Says what was chosen, and what to do next.
fn report(choice: &Choice, sample: &Sample, path: &Path, context: &Context) -> Result<(), Failure> {
    let left_out: Vec<_> = choice.left_out.iter().map(|(column, _)| column.as_str()).collect();
    let document = json!({
        "output": path, "label": choice.label.column, "features": choice.features.len(), "left_out": left_out,
    });
    context.answer(&document, || {
        let features = figures::counted(choice.features.len() as u64, "feature");
        let columns = figures::counted(sample.columns.len() as u64, "column");
        let path = path.display();
        format!(
            "wrote {path}: {features} from {columns}\n\
             label: {}{} ({})\n{}\
             next:  millstream check {path}\n       millstream train {path}",
            printable(&choice.label.column),
            task(&choice.label.task),
            choice.label.why,
            left_out_line(&left_out),
        )
    })
}

/// Names columns that are not used.
fn left_out_line(columns: &[&str]) -> String {
    let mut names: Vec<_> = columns.iter().take(MAX_NAMED_COLUMNS).map(|name| printable(name)).collect();
    match columns.len() - names.len() {
        0 if names.is_empty() => return String::new(),
        0 => {}
        more => names.push(format!("{more} more").into()),
    }
    format!("left out: {} (the file says why)\n", names.join(", "))
}

/// What is learned of the label, as an addition to its name.
fn task(task: &Task) -> String {
    match task {
        Task::Binary(Some(positive)) => format!(" = {}", printable(positive)),
        Task::Binary(None) => String::new(),
        Task::Classes(classes) => format!(", {} classes", classes.len()),
        Task::Number => ", a number".to_owned(),
    }
}

/// The files to train on, and those whose names say that they are for evaluation.
fn split(objects: Vec<Object>) -> (Vec<Object>, Vec<Object>) {
    if objects.len() > MAX_NAMED_FILES {
        return (objects, Vec::new());
    }
    let (eval, train): (Vec<_>, Vec<_>) = objects.into_iter().partition(|object| {
        let name = object.path().rsplit('/').next().unwrap_or_default().to_lowercase();
        let mut words = name.split(|char: char| !char.is_alphanumeric());
        words.any(|word| EVAL_WORDS.contains(&word))
    });
    if train.is_empty() { (eval, train) } else { (train, eval) }
}

/// The message for files without types, from which no job can be chosen.
fn about_text(failure: Failure, data: &[String]) -> Failure {
    let has_types = match &failure {
        Failure::Failed(error) => !matches!(
            error.downcast_ref::<Error>(),
            Some(Error::Format(millstream_format::Error::WrongFormat { expected, .. })) if expected == sample::WITH_TYPES
        ),
        _ => true,
    };
    if has_types {
        return failure;
    }
    let inputs = data.iter().map(|pattern| format!("'{pattern}'")).collect::<Vec<_>>().join(" ");
    Failure::Usage(format!(
        "`init` chooses by the types of columns, which these files do not have. Convert them first:\n\
         \x20 millstream convert {inputs} data.parquet\n  millstream init data.parquet"
    ))
}

/// The patterns as given, relative to the job file's directory `base`.
fn patterns(given: &[String], base: &Path) -> Vec<String> {
    let directory = |pattern: &str| !pattern.contains("://") && Path::new(pattern).is_dir();
    let expanded = given.iter().map(|pattern| match directory(pattern) {
        true => format!("{}/**", pattern.trim_end_matches('/')),
        false => pattern.clone(),
    });
    expanded.map(|pattern| relative(&pattern, base)).collect()
}

fn paths(objects: &[Object], base: &Path) -> Vec<String> {
    objects.iter().map(|object| relative(object.path(), base)).collect()
}

/// A path of the working directory as one of `base`, if it is below it; otherwise absolute.
fn relative(path: &str, base: &Path) -> String {
    if path.contains("://") {
        return path.to_owned();
    }
    let Ok(absolute) = std::path::absolute(path) else { return path.to_owned() };
    let shown = absolute.strip_prefix(base).map_or(absolute.clone(), PathBuf::from);
    shown.to_str().map_or_else(|| path.to_owned(), str::to_owned)
}

/// A job's name for data: that of the first file or directory, without its extension.
fn name_of(data: &[String]) -> String {
    let last = data.first().and_then(|pattern| pattern.trim_end_matches(['/', '*']).rsplit('/').next());
    let stem = last.unwrap_or_default().split(['.', '*', '@']).next().unwrap_or_default();
    let name: String = stem
        .to_lowercase()
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() { char } else { '-' })
        .collect();
    let name = name.trim_matches('-');
    let starts_well = name.starts_with(|char: char| char.is_ascii_lowercase());
    if starts_well { name.to_owned() } else { "job".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_after_its_data() {
        let cases = [
            ("data/adult-train-*.parquet", "adult-train"),
            ("gs://bucket/Clicks/", "clicks"),
            ("part-@16.tfrecord.gz", "part"),
            ("2026.parquet", "job"),
            ("*", "job"),
        ];
        for (data, wanted) in cases {
            assert_eq!(name_of(&[data.to_owned()]), wanted, "{data}");
        }
    }

    #[test]
    fn paths_are_relative_to_the_job_file() {
        let here = std::env::current_dir().unwrap_or_default();
        assert_eq!(relative("data/a.parquet", &here), "data/a.parquet");
        assert_eq!(relative("data/a.parquet", &here.join("data")), "a.parquet");
        assert_eq!(relative("gs://b/a", &here), "gs://b/a");
        let elsewhere = relative("a", Path::new("/no/such"));
        assert!(Path::new(&elsewhere).is_absolute(), "{elsewhere}");
    }
}
