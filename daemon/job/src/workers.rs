//! The `[workers]` of a job file: how many processes train the model together.
//!
//! Each worker trains on a part of every batch, so the batch size stays that of the whole step.

use millstream_pipeline::spec::DataSpec;
use millstream_trainer::spec::{ModelSpec, TrainingSpec};

use crate::error::At;
use crate::section::Section;

/// The largest number of workers on a host.
const MAX_PER_HOST: u32 = 64;

/// The most parts of a batch.
const MAX_PARTS: u32 = 256;

/// How many workers train a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkersSpec {
    /// The number of workers on each host.
    pub per_host: u32,
    /// The number of parts that every batch is cut into, so that results have the same bits for every number of workers that
    /// divides it; a power of two. `None` for a part per worker.
    pub reproducible: Option<u32>,
    /// How long a worker waits for the others in one exchange of data, in seconds. Then all are restarted.
    pub timeout_seconds: u32,
}

impl Default for WorkersSpec {
    fn default() -> Self {
        Self { per_host: 1, reproducible: None, timeout_seconds: 60 }
    }
}

/// Reads the section. What depends on the rest of the job is checked by [`check`].
pub(super) fn read(top: &mut Section<'_>) -> (WorkersSpec, At) {
    let usual = WorkersSpec::default();
    let mut section = top.section("workers", "[workers]");
    let at = section.at_key(if section.has("per_host") { "per_host" } else { "reproducible" });
    let spec = WorkersSpec {
        per_host: section.whole_u32("per_host", 1..=MAX_PER_HOST).unwrap_or(usual.per_host),
        reproducible: section.whole_u32("reproducible", 1..=MAX_PARTS),
        timeout_seconds: section.whole_u32("timeout_seconds", 1..=86_400).unwrap_or(usual.timeout_seconds),
    };
    if let Some(parts) = spec.reproducible
        && !(parts.is_power_of_two() && parts.is_multiple_of(spec.per_host))
    {
        let per_host = spec.per_host;
        let expected =
            format!("expected a power of two that is a multiple of `per_host = {per_host}`, found {parts}");
        section.error("reproducible", expected);
    }
    section.finish();
    (spec, at)
}

/// Reports why parts of batches cannot train the job, at the position of `per_host`, or of `reproducible` if there is one
/// worker.
pub(super) fn check(
    (spec, at): (WorkersSpec, At),
    (data, is_auto): (&DataSpec, bool),
    (model, training): (&ModelSpec, &TrainingSpec),
    top: &Section<'_>,
) {
    let WorkersSpec { per_host, reproducible, .. } = spec;
    let (parts, what, alone) = match reproducible {
        None if per_host == 1 => return,
        None => (per_host, "workers", "set `per_host = 1`"),
        Some(parts) => (parts, "parts of each batch", "train with one worker and without `reproducible`"),
    };
    let refuse = |why: String| top.error_at(at, format!("{parts} {what}: {why}"));
    if is_auto {
        refuse("`data.batch_size = \"auto\"` chooses a size for one worker; set a number".to_owned());
    } else if data.batch_size < parts {
        refuse(format!(
            "each needs a row of every batch, but `data.batch_size` is {}; raise it or {alone}",
            data.batch_size
        ));
    }
    if model.uses_in_batch_loss() {
        refuse(format!("the loss of a \"two_tower\" model compares all rows of a batch; {alone}"));
    }
    if model.uses_batch_normalization() {
        refuse(format!(
            "batch normalization needs all rows of a batch; use `normalization = \"layer\"`, or {alone}"
        ));
    }
    let of_tasks = training.tasks.iter().map(|task| &task.loss);
    if let Some(loss) = std::iter::once(&training.loss).chain(of_tasks).find(|loss| loss.group().is_some()) {
        let kind = loss.kind();
        refuse(format!("the loss \"{kind}\" compares the rows of a list; use another loss, or {alone}"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::WorkersSpec;
    use crate::Job;

    const JOB: &str = r#"name = "clicks"
data = { train = ["train.parquet"], eval = ["eval.parquet"] }
label = { column = "clicked" }
features = { age = { kind = "numeric" }, list = { kind = "hashed", buckets = 10 } }
model = { kind = "mlp", features = ["age", "list"], hidden = [4], optimizer = { kind = "adam" } }
"#;

    fn read(set: &[&str]) -> Result<Job, String> {
        let set: Vec<String> = set.iter().map(|&text| text.to_owned()).collect();
        let job = Job::parse(JOB, Path::new("job.toml"), &set);
        job.map(|(job, _)| job).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_read() {
        let plain = read(&[]).unwrap();
        assert_eq!((plain.workers, plain.training.ranks()), (WorkersSpec::default(), 1));
        let several = read(&["workers.per_host=4", "workers.timeout_seconds=5"]).unwrap();
        assert_eq!(several.workers, WorkersSpec { per_host: 4, reproducible: None, timeout_seconds: 5 });
        let parts = |set| read(&[set, "workers.reproducible=8"]).unwrap().training.parts();
        assert_eq!([parts("workers.per_host=2"), parts("workers.per_host=8")], [8, 8]);
        for (per_host, parts) in [(1, 6), (3, 6), (4, 2)] {
            let set = [format!("workers.per_host={per_host}"), format!("workers.reproducible={parts}")];
            let error = read(&set.each_ref().map(String::as_str)).unwrap_err();
            let expected = format!("expected a power of two that is a multiple of `per_host = {per_host}`");
            assert!(error.contains(&format!("{expected}, found {parts}")), "{error}");
        }
        assert_eq!((several.training.ranks(), several.data.batch_size), (4, plain.data.batch_size));
        for set in ["workers.per_host=0", "workers.per_host=65"] {
            let error = read(&[set]).unwrap_err();
            assert!(error.contains("expected a whole number from 1 to 64, found"), "{error}");
        }
        let error = read(&["workers.timeout_seconds=0"]).unwrap_err();
        assert!(error.contains("expected a whole number from 1 to 86400, found 0"), "{error}");
        let error = read(&["workers.per_hosts=2"]).unwrap_err();
        assert!(error.contains("unknown key `per_hosts` in [workers]; did you mean `per_host`?"), "{error}");
    }

    #[test]
    fn the_number_of_workers_is_not_part_of_the_result() {
        let (one, four) = (read(&[]).unwrap(), read(&["workers.per_host=4"]).unwrap());
        assert_eq!(one.fingerprint(), four.fingerprint());
        assert_eq!(four.differences(&one), [""; 0]);
    }

    #[test]
    fn what_several_workers_cannot_train_is_refused() {
        let cases = [
            (vec!["data.batch_size=3"], "each needs a row of every batch, but `data.batch_size` is 3"),
            (vec!["data.batch_size=auto"], "`data.batch_size = \"auto\"` chooses a size for one worker"),
            (vec!["model.normalization=batch"], "batch normalization needs all rows of a batch"),
            (
                vec!["training.loss={ kind = \"listwise\", group = \"list\" }"],
                "the loss \"listwise\" compares the rows of a list",
            ),
        ];
        for (mut set, why) in cases {
            read(&set).unwrap();
            set.push("workers.per_host=4");
            let error = read(&set).unwrap_err();
            assert!(error.contains(&format!("error: 4 workers: {why}")), "{error}");
            set.pop();
            set.push("workers.reproducible=4");
            let error = read(&set).unwrap_err();
            assert!(error.contains(&format!("error: 4 parts of each batch: {why}")), "{error}");
        }
        read(&["data.batch_size=4", "workers.per_host=4"]).unwrap();
    }

    #[test]
    fn a_mistake_is_reported_at_the_number_of_workers() {
        let text = format!(
            "{JOB}\n[workers]\nper_host = 4\n[training]\nloss.kind = \"pairwise\"\nloss.group = \"list\"\n"
        );
        let error = Job::parse(&text, Path::new("job.toml"), &[]).unwrap_err().to_string();
        assert!(error.starts_with("job.toml:8:12: error: 4 workers: the loss \"pairwise\""), "{error}");
    }
}
