//! The `[tensorboard]` of a job file, and a job's hyperparameters.

use std::collections::BTreeMap;
use std::path::Path;

use millstream_document::section::Section;
use millstream_io::storage::Directory;
use serde::Serialize;
use serde_json::Value;

use super::job::Job;

/// Event files for TensorBoard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorBoardSpec {
    /// The directory in which each run of the job has a directory, named by the job's id.
    pub directory: Directory,
    /// Steps between points of the training curves.
    pub every_steps: u64,
    /// Steps between histograms of the weights; 0 for none.
    pub histograms_every_steps: u64,
}

/// Reads the section, which may be absent.
pub(super) fn read(top: &mut Section<'_>, base: &Path) -> Option<TensorBoardSpec> {
    top.node("tensorboard")?;
    let mut section = top.required_section("tensorboard", "[tensorboard]", "event files for TensorBoard");
    let directory = section.required_text("directory", "the directory of the event files");
    let directory = section.directory(directory, base);
    let every_steps = section.whole("every_steps", 1..=u64::MAX).unwrap_or(100);
    let histograms_every_steps = section.whole("histograms_every_steps", 0..=u64::MAX).unwrap_or(0);
    section.finish();
    Some(TensorBoardSpec { directory: directory?, every_steps, histograms_every_steps })
}

impl Job {
    /// The hyperparameters, defaults included, by the names of their keys in the job file. Each value is a number, a
    /// string or a boolean.
    pub fn hyper_parameters(&self) -> BTreeMap<String, Value> {
        let mut found = BTreeMap::new();
        let data = &self.data;
        found.insert("seed".to_owned(), self.training.seed.into());
        found.insert("data.batch_size".to_owned(), data.batch_size.into());
        found.insert("data.epochs".to_owned(), data.epochs.into());
        found.insert("data.shuffle_rows".to_owned(), data.shuffle_rows.into());
        found.insert("data.drop_last".to_owned(), data.drop_last.into());
        flatten("model", document(&self.model), &mut found);
        let of_embeddings = document(&self.training.embedding_precision);
        flatten("training.embedding_precision", of_embeddings, &mut found);
        flatten("training.precision", document(&self.training.precision), &mut found);
        found
    }
}

/// Converts through text, in which single-precision numbers are as short as they were written.
fn document(spec: &impl Serialize) -> Value {
    let text = serde_json::to_string(spec).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Adds the values within `value` under names that start with `name`.
fn flatten(name: &str, value: Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                flatten(&format!("{name}.{key}"), value, found);
            }
        }
        Value::Null => {}
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(shown).collect();
            found.insert(name.to_owned(), items.join(", ").into());
        }
        value => drop(found.insert(name.to_owned(), value)),
    }
}

/// An item of a list; strings without quotes.
fn shown(item: &Value) -> String {
    item.as_str().map_or_else(|| item.to_string(), str::to_owned)
}
