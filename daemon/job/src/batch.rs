//! The batch size and the learning rates that depend on it: `data.batch_size`, `[data.auto_batch]` and
//! `[training.batch_scaling]`.
//!
//! With `batch_size = "auto"` the batch size depends on the data and the machine. Once it is chosen,
//! [`Job::with_batch_size`] returns the job with that size written out.

use std::collections::BTreeMap;
use std::path::Path;

use millstream_document::data::{self, MAX_ROWS, Own};
use millstream_document::problems::{At, Problems};
use millstream_document::section::Section;
use millstream_document::tree::{self, Entry, Node, Table, Value};
use millstream_pipeline::spec::DataSpec;
use millstream_trainer::spec::{BatchScaling, RateRule};
use serde_json::Value as Json;

use super::job::{JOB_FILE, Job};

/// The minimum batch size that a search tries, if every worker has a row of it.
const MIN_AUTO_ROWS: u32 = 16;

/// Batches as large as memory allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoBatchSpec {
    /// The limit on the memory of the whole job, ingest and worker; `None` for a fraction of the host's available
    /// memory.
    pub memory_bytes: Option<u64>,
    /// The limit on its GPU memory; `None` for nearly all of it.
    pub gpu_memory_bytes: Option<u64>,
    /// The minimum number of rows, a power of two.
    pub least: u32,
    /// The maximum number of rows.
    pub most: u32,
}

impl AutoBatchSpec {
    /// The same for batches that are cut into `parts` parts, each of which has a row.
    #[must_use]
    pub(super) fn of_parts(self, parts: u32) -> Self {
        Self { least: MIN_AUTO_ROWS.max(parts.next_power_of_two()), ..self }
    }
}

/// Reads `eval`, `batch_size` and the keys that depend on it.
pub(super) fn read_own(data: &mut Section<'_>) -> Own<Option<AutoBatchSpec>> {
    let has_validation = data.has("validation");
    let eval = data.texts("eval").unwrap_or_default();
    if has_validation && !eval.is_empty() {
        data.error(
            "validation",
            "held-out data is either `eval`, or the `validation` share of the training data",
        );
    } else if !has_validation && !data.has("eval") && data.has("train") {
        data.warn(
            "no `eval` in [data], so the model will not be evaluated; name held-out data, hold out a share \
             of the training data with `validation = { fraction = 0.1 }`, or set `eval = []`",
        );
    }
    data::check_paths(data, &eval);
    let (batch_size, more) = read_size(data);
    Own { eval: data::owned(&eval), batch_size, more }
}

/// Reads `batch_size` and its dependent keys. For "auto", the batch size is the smallest that a search tries.
fn read_size(data: &mut Section<'_>) -> (u32, Option<AutoBatchSpec>) {
    let node = data.node("batch_size");
    let is_auto = match node.map(|node| &node.value) {
        Some(Value::Text(text)) => {
            if text != "auto" {
                data.error("batch_size", format!("expected a whole number or \"auto\", found \"{text}\""));
            }
            true
        }
        _ => false,
    };
    if data.has("auto_batch") && !is_auto {
        data.error("auto_batch", "`auto_batch` requires `batch_size = \"auto\"`");
    }
    let mut auto = data.section("auto_batch", "[data.auto_batch]");
    let (memory_bytes, gpu_memory_bytes) = (auto.bytes("memory"), auto.bytes("gpu_memory"));
    let most = auto.whole_u32("most", MIN_AUTO_ROWS..=MAX_ROWS).unwrap_or(65_536);
    auto.finish();
    if is_auto {
        let least = MIN_AUTO_ROWS;
        return (least, Some(AutoBatchSpec { memory_bytes, gpu_memory_bytes, least, most }));
    }
    let rows = node.and_then(|node| data.as_whole(node, 1..=MAX_ROWS.into()));
    let rows = rows.and_then(|rows| u32::try_from(rows).ok());
    (rows.unwrap_or(DataSpec::default().batch_size), None)
}

/// Reads the batch size for which learning rates are given. The default applies only to an automatic batch size.
pub(super) fn read_scaling(training: &mut Section<'_>, is_auto: bool) -> Option<BatchScaling> {
    let is_given = training.has("batch_scaling");
    let mut scaling = training.section("batch_scaling", "[training.batch_scaling]");
    let reference = scaling.whole_u32("reference", 1..=MAX_ROWS);
    let rule = scaling.choice("learning_rate", &RateRule::ALL).unwrap_or(RateRule::Sqrt);
    scaling.finish();
    let reference = reference.unwrap_or(DataSpec::default().batch_size);
    (is_given || is_auto).then_some(BatchScaling { reference, rule })
}

impl Job {
    /// This job with batches of `rows` rows, as if that number were written in its file. A job with a fixed batch
    /// size is unchanged.
    #[must_use]
    pub fn with_batch_size(&self, rows: u32) -> Self {
        let (Some(_), Some(scaling)) = (self.auto_batch, self.batch_scaling) else { return self.clone() };
        let mut job = Self { auto_batch: None, text: write_out(&self.text, rows, scaling), ..self.clone() };
        job.data.batch_size = rows;
        scaling.apply(&mut job.model, rows);
        job
    }

    /// The learning rate of each optimizer at this job's batch size, by the optimizer's name in the model.
    pub fn learning_rates(&self) -> BTreeMap<String, f64> {
        let rate = |(name, value): (String, Json)| {
            let optimizer = name.strip_prefix("model.")?.strip_suffix(".learning_rate")?;
            Some((optimizer.to_owned(), value.as_f64()?))
        };
        self.hyper_parameters().into_iter().filter_map(rate).collect()
    }
}

/// The job's text with `rows` in place of "auto".
fn write_out(text: &str, rows: u32, scaling: BatchScaling) -> String {
    let at = At::Offset(0);
    // The text was parsed before, so it has no problems.
    let problems = Problems::new(Path::new(""), text, &[]);
    let mut table = Table::parse(text, &[], &JOB_FILE, &problems);
    if let Some(data) = table.table_mut("data", at) {
        data.put("batch_size", Node { at, value: Value::Whole(rows.into()) });
        data.remove("auto_batch");
    }
    if let Some(training) = table.table_mut("training", at) {
        let entry = |key: &str, value| Entry { key: key.to_owned(), at, node: Node { at, value } };
        let entries = vec![
            entry("reference", Value::Whole(scaling.reference.into())),
            entry("learning_rate", Value::Text(scaling.rule.name().to_owned())),
        ];
        training.put("batch_scaling", Node { at, value: Value::Table(Table { entries }) });
    }
    tree::write(&table)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_trainer::spec::ModelSpec;

    use super::*;

    const JOB: &str = r#"name = "clicks"
data = { train = ["train.parquet"], eval = ["eval.parquet"] }
label = { column = "clicked" }
features = { age = { kind = "numeric" }, job = { kind = "hashed", buckets = 10 } }
model = { kind = "mlp", features = ["age", "job"], hidden = [4], optimizer = { kind = "adam" } }
"#;

    fn read(set: &[&str]) -> Result<Job, String> {
        let set: Vec<String> = set.iter().map(|&text| text.to_owned()).collect();
        let job = Job::parse(JOB, Path::new("job.toml"), &set);
        job.map(|(job, _)| job).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_read() {
        let plain = read(&[]).unwrap();
        assert_eq!((plain.data.batch_size, plain.auto_batch, plain.batch_scaling), (256, None, None));
        let auto = read(&["data.batch_size=auto"]).unwrap();
        let spec = |memory_bytes, gpu_memory_bytes, most| {
            Some(AutoBatchSpec { memory_bytes, gpu_memory_bytes, least: 16, most })
        };
        assert_eq!(auto.auto_batch, spec(None, None, 65_536));
        assert_eq!(auto.batch_scaling, Some(BatchScaling { reference: 256, rule: RateRule::Sqrt }));
        assert_eq!((auto.data.batch_size, &auto.model), (MIN_AUTO_ROWS, &plain.model));
        let auto = read(&[
            "data.batch_size=auto",
            "data.auto_batch={ memory = \"3GiB\", gpu_memory = \"7GiB\", most = 1024 }",
            "training.batch_scaling={ reference = 100, learning_rate = \"linear\" }",
        ]);
        let auto = auto.unwrap();
        assert_eq!(auto.auto_batch, spec(Some(3 << 30), Some(7 << 30), 1024));
        assert_eq!(auto.batch_scaling, Some(BatchScaling { reference: 100, rule: RateRule::Linear }));
    }

    #[test]
    fn learning_rates_of_a_fixed_size_are_scaled_on_request() {
        let rates = |set: &[&str]| read(set).unwrap().learning_rates().into_values().collect::<Vec<_>>();
        assert_eq!(rates(&["data.batch_size=4096"]), [0.001, 0.001]);
        assert_eq!(rates(&["data.batch_size=4096", "training.batch_scaling={}"]), [0.004, 0.004]);
        let linear = "training.batch_scaling={ reference = 1024, learning_rate = \"linear\" }";
        assert_eq!(rates(&["data.batch_size=4096", linear]), [0.004, 0.004]);
        let none = "training.batch_scaling.learning_rate=none";
        assert_eq!(rates(&["data.batch_size=4096", none]), [0.001, 0.001]);
    }

    #[test]
    fn a_chosen_size_is_written_into_the_job() {
        let base = "data.base=/data";
        let auto = read(&[base, "data.batch_size=auto", "data.auto_batch.most=1024"]).unwrap();
        let found = auto.with_batch_size(512);
        let written = read(&[base, "data.batch_size=512", "training.batch_scaling={}"]).unwrap();
        assert_eq!(
            Job { text: String::new(), ..found.clone() },
            Job { text: String::new(), ..written.clone() }
        );
        assert_eq!(found.fingerprint(), written.fingerprint());
        assert_ne!(found.fingerprint(), auto.fingerprint());
        // The text parses to the same job everywhere.
        let again = Job::parse(&found.text, Path::new("/elsewhere/job.toml"), &[]).unwrap().0;
        assert_eq!(again, found);
        assert_eq!(found.with_batch_size(64), found);
        let ModelSpec::Mlp(model) = &found.model else { panic!("{:?}", found.model) };
        assert!(format!("{:?}", model.optimizer).contains("0.0014142"), "{model:?}");
    }

    #[test]
    fn the_fingerprint_of_an_automatic_size_covers_its_settings() {
        let fingerprint = |set: &str| read(&["data.batch_size=auto", set]).unwrap().fingerprint();
        let plain = fingerprint("seed=0");
        assert_ne!(plain, read(&["data.batch_size=16"]).unwrap().fingerprint());
        assert_eq!(plain, fingerprint("data.auto_batch.memory=1GiB"));
        assert_eq!(plain, fingerprint("data.auto_batch.gpu_memory=1GiB"));
        assert_ne!(plain, fingerprint("data.auto_batch.most=64"));
        assert_ne!(plain, fingerprint("training.batch_scaling.reference=64"));
        assert_ne!(plain, fingerprint("training.batch_scaling.learning_rate=none"));
    }

    #[test]
    fn mistakes_are_reported_with_their_position() {
        let cases: [(&[&str], &str); 5] = [
            (
                &["data.batch_size=large"],
                "--set data.batch_size=large: error: expected a whole number or \"auto\", found \"large\"",
            ),
            (
                &["data.auto_batch.most=64"],
                "--set data.auto_batch.most=64: error: `auto_batch` requires `batch_size = \"auto\"`",
            ),
            (
                &["data.batch_size=auto", "data.auto_batch.most=8"],
                "--set data.auto_batch.most=8: error: expected a whole number from 16 to 16777216, found 8",
            ),
            (
                &["data.batch_size=auto", "data.auto_batch.memory=lots"],
                "--set data.auto_batch.memory=lots: error: expected a size like \"512MiB\" or \"2GiB\", found \"lots\"",
            ),
            (
                &["training.batch_scaling.learning_rate=cubic"],
                "--set training.batch_scaling.learning_rate=cubic: error: expected \"linear\", \"sqrt\" or \"none\", \
                 found \"cubic\"",
            ),
        ];
        for (set, expected) in cases {
            assert_eq!(read(set).unwrap_err(), expected);
        }
    }
}
