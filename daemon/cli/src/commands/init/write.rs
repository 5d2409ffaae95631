//! Writes the job file.

use std::fmt::Write;
use std::path::Path;

use millstream_tools::sample::Sample;

use super::choose::{Choice, Feature, Kind, Label, Task};
use crate::figures;

/// The names of the data in the job file.
pub(super) struct Files {
    pub(super) train: Vec<String>,
    pub(super) eval: Vec<String>,
    pub(super) name: String,
}

/// Settings that depend on the amount of data.
struct Scale {
    batch_size: u32,
    /// At most: early stopping ends training before.
    epochs: u32,
    /// The fraction of rows to hold out.
    validation: f64,
    embedding_dim: u32,
    hidden: &'static str,
    wide_optimizer: &'static str,
    deep_optimizer: &'static str,
}

/// Up to this number of rows, a larger fraction is held out.
const FEWEST_ROWS: u64 = 20_000;
/// Up to this number of rows, small batches and many epochs; up to the second one, medium ones.
const FEW_ROWS: u64 = 200_000;
const MANY_ROWS: u64 = 5_000_000;

impl Scale {
    fn of(rows: u64) -> Self {
        let small = Self {
            batch_size: 256,
            epochs: 30,
            validation: if rows < FEWEST_ROWS { 0.2 } else { 0.1 },
            embedding_dim: 8,
            hidden: "[100, 75, 50]",
            wide_optimizer: "{ kind = \"ftrl\", learning_rate = 0.1, l1 = 0.001 }",
            deep_optimizer: "{ kind = \"adagrad\", learning_rate = 0.05 }",
        };
        // Gradients are means over a batch: large batches need small initial accumulators, which adapt from the first step.
        let large = Self {
            batch_size: 4096,
            epochs: 2,
            validation: 0.1,
            embedding_dim: 16,
            hidden: "[256, 128, 64]",
            wide_optimizer: "{ kind = \"ftrl\", learning_rate = 0.05, initial_accumulator = 1e-6 }",
            deep_optimizer: "{ kind = \"adagrad\", learning_rate = 0.02, initial_accumulator = 1e-5 }",
        };
        match rows {
            0..FEW_ROWS => small,
            FEW_ROWS..MANY_ROWS => Self { batch_size: 1024, epochs: 5, ..large },
            _ => large,
        }
    }
}

/// The text of a job file at `path`, if it is known.
pub(super) fn write(sample: &Sample, choice: &Choice, files: &Files, path: Option<&Path>) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = body(&mut out, sample, choice, files, path);
    out
}

fn body(
    out: &mut String,
    sample: &Sample,
    choice: &Choice,
    files: &Files,
    path: Option<&Path>,
) -> std::fmt::Result {
    let Choice { label, weight, features, left_out, missing } = choice;
    let scale = Scale::of(sample.estimated_rows);
    let path = path.map_or("job.toml".to_owned(), |path| path.display().to_string());
    let sampled = figures::counted(sample.rows, "row");
    let of_all = if sample.is_whole { "all " } else { "" };
    writeln!(
        out,
        "# Predicts {}. Written by `millstream init` from {of_all}{sampled}. Change what you know better;\n\
         # examples/job-reference.toml in Millstream's repository explains every key.",
        comment(&label.column)
    )?;
    writeln!(
        out,
        "#\n#     millstream check {path}\n#     millstream train {path}\n",
        path = comment(&path)
    )?;
    writeln!(out, "name = {}\nseed = 1\n", text(&files.name))?;

    writeln!(out, "[data]\ntrain = {}", list(&files.train))?;
    if !files.eval.is_empty() {
        writeln!(out, "eval = {}", list(&files.eval))?;
    }
    if !missing.is_empty() {
        writeln!(
            out,
            "# Found beside other values.\nmissing = {}",
            list(&missing.iter().cloned().collect::<Vec<_>>())
        )?;
    }
    if label.has_absent {
        writeln!(out, "# Some rows have no label.")?;
        writeln!(out, "filter = [{{ column = {}, op = \"is_not_null\" }}]", text(&label.column))?;
    }
    let rows = figures::counted(sample.estimated_rows, "row");
    let about = if sample.is_whole { "" } else { "about " };
    writeln!(out, "# For {about}{rows}.\nbatch_size = {}", scale.batch_size)?;
    writeln!(out, "epochs = {}\n", scale.epochs)?;
    if files.eval.is_empty() {
        writeln!(
            out,
            "# Rows of the training data that are held out. With `column`, all rows of a user, a session or a day are on the\n\
             # same side.\n[data.validation]\nfraction = {}\n",
            scale.validation
        )?;
    }

    write_label(out, label, weight.as_deref())?;
    writeln!(out, "[features]")?;
    features.iter().try_for_each(|feature| write_feature(out, feature))?;
    if !left_out.is_empty() {
        writeln!(out, "\n# Left out:")?;
        for (column, why) in left_out {
            writeln!(out, "#   {}: {}", comment(column), comment(why))?;
        }
    }
    write_model(out, features, &scale)?;
    if matches!(label.task, Task::Number) {
        writeln!(out, "\n[training.loss]\nkind = \"mse\"")?;
    }
    writeln!(
        out,
        "\n# Training ends when this many evaluations in a row are no better than the best one. So the held-out data\n\
         # chooses the model: measure the final one on other data.\n[evaluation.early_stopping]\npatience = 3"
    )?;
    writeln!(out, "\n[checkpoint]\ndirectory = \"checkpoints\"")?;
    writeln!(out, "# `eval`, `predict` and `export` use the best one with --best.\nkeep_best = true")?;
    Ok(())
}

fn write_label(out: &mut String, label: &Label, weight: Option<&str>) -> std::fmt::Result {
    writeln!(out, "[label]\n# {}", comment(&label.why))?;
    writeln!(out, "column = {}", text(&label.column))?;
    match &label.task {
        Task::Binary(Some(positive)) => writeln!(out, "positive = {}", text(positive))?,
        Task::Classes(classes) => writeln!(out, "classes = {}", list(classes))?,
        Task::Binary(None) | Task::Number => {}
    }
    if let Some(weight) = weight {
        writeln!(
            out,
            "# By its name the weight of each row, in training and in metrics. Remove the # to use it."
        )?;
        writeln!(out, "#weight = {}", comment(&text(weight)))?;
    }
    writeln!(out)
}

fn write_feature(out: &mut String, feature: &Feature) -> std::fmt::Result {
    let Feature { name, column, kind, maximum, why } = feature;
    let mut keys = Vec::new();
    let kind = match kind {
        Kind::Numeric { normalize, has_absent } => {
            keys.push(format!("normalize = \"{normalize}\""));
            keys.extend(has_absent.then(|| "missing = \"mean\"".to_owned()));
            "numeric"
        }
        Kind::Vector { size, has_absent } => {
            keys.push(format!("size = {size}"));
            keys.extend(has_absent.then(|| "missing = 0".to_owned()));
            "vector"
        }
        Kind::Bucketized(boundaries) => {
            let boundaries: Vec<_> = boundaries.iter().map(|&boundary| real(boundary)).collect();
            keys.push(format!("boundaries = [{}]", boundaries.join(", ")));
            "bucketized"
        }
        Kind::Vocabulary => "vocabulary",
        Kind::Hashed(buckets) => {
            keys.push(format!("buckets = {buckets}"));
            "hashed"
        }
    };
    keys.extend(maximum.map(|maximum| format!("multi = true, maximum = {maximum}")));
    let of_column = (name != column).then(|| format!("column = {}", text(column)));
    let keys = [format!("kind = \"{kind}\"")].into_iter().chain(of_column).chain(keys).collect::<Vec<_>>();
    if !why.is_empty() {
        writeln!(out, "# {}", comment(why))?;
    }
    writeln!(out, "{} = {{ {} }}", key(name), keys.join(", "))
}

fn write_model(out: &mut String, features: &[Feature], scale: &Scale) -> std::fmt::Result {
    let names = |of: &dyn Fn(&Kind) -> bool| {
        features
            .iter()
            .filter(|feature| of(&feature.kind))
            .map(|feature| feature.name.clone())
            .collect::<Vec<_>>()
    };
    let wide = names(&|kind| !matches!(kind, Kind::Numeric { .. } | Kind::Vector { .. }));
    let deep = names(&|_| true);
    writeln!(
        out,
        "\n# A linear model over categories and intervals, and layers over everything (Cheng et al., 2016).\n[model]"
    )?;
    writeln!(
        out,
        "kind = \"wide_deep\"\nwide.features = {}\nwide.optimizer = {}",
        list(&wide),
        scale.wide_optimizer
    )?;
    writeln!(out, "deep.features = {}", list(&deep))?;
    writeln!(out, "deep.embedding_dim = {}\ndeep.hidden = {}", scale.embedding_dim, scale.hidden)?;
    writeln!(out, "deep.optimizer = {}", scale.deep_optimizer)
}

/// The longest line of a list.
const LINE: usize = 110;

/// A list of strings, in lines if it is long.
fn list(values: &[String]) -> String {
    let values: Vec<_> = values.iter().map(|value| text(value)).collect();
    let single = format!("[{}]", values.join(", "));
    if single.len() <= LINE {
        return single;
    }
    let mut lines = vec![String::new()];
    for value in values {
        let line = lines.last_mut().filter(|line| line.is_empty() || line.len() + value.len() < LINE);
        match line {
            Some(line) => *line += &format!("{}{value},", if line.is_empty() { "" } else { " " }),
            None => lines.push(format!("{value},")),
        }
    }
    format!("[\n    {}\n]", lines.join("\n    "))
}

/// A TOML string. JSON's escapes are among TOML's, but for U+007F, which TOML requires.
fn text(value: &str) -> String {
    serde_json::Value::from(value).to_string().replace('\u{7f}', "\\u007F")
}

/// A TOML key.
fn key(name: &str) -> String {
    let is_bare = name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
    if is_bare { name.to_owned() } else { text(name) }
}

/// A TOML float.
fn real(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e15 { format!("{number}") } else { format!("{number:?}") }
}

/// Text in a comment, which ends with its line.
fn comment(value: &str) -> String {
    value.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}
