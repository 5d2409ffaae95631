#![allow(clippy::unwrap_used)]

mod features;
mod hostile;
mod mistakes;
mod reference;
mod search;

use std::path::Path;

use millstream_document::problems::{DocumentError, Known, Problems, Warning};
use millstream_document::tree::Table;
use millstream_io::storage::Directory;
use millstream_pipeline::spec::{
    FeatureKind, FeatureSpec, MissingNumber, Normalize, OnBadRecord, OutOfRange, Terms,
};
use millstream_trainer::spec::{ModelSpec, OptimizerSpec, Pooling};

use crate::job::{JOB_FILE, read_job};
use crate::*;

/// A valid job, which the cases below break.
const SOUND: &str = r#"name = "census"
seed = 7

[data]
train = ["train-*.parquet"]
eval = ["test.parquet"]

[label]
column = "income"
positive = ">50K"

[features]
age = { kind = "numeric", normalize = "zscore" }
age_bucket = { kind = "bucketized", column = "age", boundaries = [18, 25.5] }
education = { kind = "vocabulary" }
job = { kind = "hashed", column = "occupation", buckets = 1000 }
both = { kind = "crossed", columns = ["education", "job", "sex"], buckets = 5000 }

[model]
kind = "wide_deep"
wide.features = ["education", "both", "age_bucket"]
deep.features = ["age", "job"]
"#;

fn parse(text: &str, set: &[&str]) -> Result<(Job, Vec<Warning>), DocumentError> {
    let set: Vec<String> = set.iter().map(|&text| text.to_owned()).collect();
    Job::parse(text, Path::new("job.toml"), &set)
}

fn job(text: &str, set: &[&str]) -> Job {
    parse(text, set).unwrap_or_else(|error| panic!("{error}")).0
}

/// The errors of `SOUND` with `from` replaced by `to`.
#[track_caller]
fn errors(from: &str, to: &str) -> String {
    assert_eq!(SOUND.matches(from).count(), 1, "{from:?} is in the job once");
    match parse(&SOUND.replacen(from, to, 1), &[]) {
        Ok(_) => panic!("accepted with {to:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn overrides_replace_and_add() {
    let set = [
        "name=other.name",
        "data.batch_size=64",
        "data.memory_budget=1GiB",
        "data.split_bytes=1MiB",
        "data.drop_last=true",
        "data.deterministic=false",
        "data.train=data/x-*.parquet",
        "data.eval=[]",
        "features.job.buckets=17",
        "checkpoint.directory=/tmp/c",
        "model.deep.hidden=[3, 2]",
        "training.threads=2",
    ];
    let job = job(SOUND, &set);
    assert_eq!(job.name, "other.name");
    assert_eq!(job.data.batch_size, 64);
    assert_eq!(job.data.memory_budget_bytes, 1 << 30);
    assert_eq!((job.data.split_bytes, job.data.drop_last, job.data.deterministic), (1 << 20, true, false));
    assert_eq!(job.data.train, ["data/x-*.parquet"]);
    assert!(job.data.eval.is_empty());
    assert_eq!(job.checkpoint.directory, Directory::local("/tmp/c"));
    assert_eq!(job.training.threads, Some(2));
    let ModelSpec::WideDeep(model) = &job.model else { panic!("{:?}", job.model) };
    assert_eq!(model.deep.hidden, [3, 2]);
    let hashed = job.features.iter().find(|feature| feature.name == "job").unwrap();
    assert_eq!(hashed.kind, FeatureKind::Hashed { buckets: 17 });
}

#[test]
fn a_job_is_resolved() {
    let (job, warnings) = parse(SOUND, &[]).unwrap();
    assert_eq!(warnings, []);
    assert_eq!((job.name.as_str(), job.training.seed), ("census", 7));
    assert_eq!(job.data.base, std::env::current_dir().unwrap());
    assert_eq!(job.checkpoint.directory, Directory::local(job.data.base.join("checkpoints")));
    assert_eq!(job.data.on_bad_record, OnBadRecord::Fail);
    let names: Vec<_> = job.features.iter().map(|feature| feature.name.as_str()).collect();
    assert_eq!(names, ["age", "age_bucket", "education", "job", "both"], "in the file's order");
    assert_eq!(job.features[1].columns, ["age"]);
    assert_eq!(job.features[1].kind, FeatureKind::Bucketized { boundaries: vec![18.0, 25.5] });
    let learned = Terms::Learned { max_terms: 1_000_000, min_count: 1 };
    assert_eq!(job.features[2].kind, FeatureKind::Vocabulary { terms: learned, oov_buckets: 1 });
    assert_eq!(job.features[4].columns, ["education", "occupation", "sex"]);
    let ModelSpec::WideDeep(model) = &job.model else { panic!("{:?}", job.model) };
    assert!(matches!(model.wide.optimizer, OptimizerSpec::Ftrl { .. }));
    assert_eq!(model.deep.pooling, Pooling::Mean);
}

#[test]
fn a_job_file_names_its_own_directory_as_the_base() {
    let (job, _) = Job::parse(SOUND, Path::new("/jobs/census/job.toml"), &[]).unwrap();
    assert_eq!(job.data.base, Path::new("/jobs/census"));
    let set = ["data.base=../data".to_owned()];
    let (job, _) = Job::parse(SOUND, Path::new("/jobs/census/job.toml"), &set).unwrap();
    assert_eq!(job.data.base, Path::new("/jobs/census/../data"));
}

#[test]
fn the_canonical_text_is_the_same_job_anywhere() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("terms.txt"), "a\n\"quoted\"\\\tand\u{7}\n").unwrap();
    let text = SOUND.replace("kind = \"vocabulary\"", "kind = \"vocabulary\", file = \"terms.txt\"")
        + "deep.optimizer = { kind = \"adagrad\", learning_rate = 1e-3 }\n";
    let set = ["data.missing=[\"?\", \"\"]".to_owned(), "features.\"odd name\".kind=hashed".to_owned()];
    let set = [&set[..], &["features.\"odd name\".buckets=3".to_owned()]].concat();
    let (first, warnings) = Job::parse(&text, &directory.path().join("job.toml"), &set).unwrap();
    assert_eq!(warnings.len(), 1);
    std::fs::remove_file(directory.path().join("terms.txt")).unwrap();

    let (second, _) = Job::parse(&first.text, Path::new("/elsewhere/job.toml"), &[]).unwrap();
    assert_eq!(second, first);
    assert_eq!(second.fingerprint(), first.fingerprint());
    let Terms::Given(terms) = (match &second.features[2].kind {
        FeatureKind::Vocabulary { terms, .. } => terms,
        other => panic!("{other:?}"),
    }) else {
        panic!("learned");
    };
    assert_eq!(terms, &["a", "\"quoted\"\\\tand\u{7}"]);
}

#[test]
fn the_fingerprint_covers_the_result_only() {
    let fingerprint = |set: &[&str]| job(SOUND, set).fingerprint();
    let plain = fingerprint(&[]);
    assert_eq!(plain.len(), 64);
    let same = [
        "name=x",
        "tensorboard.directory=x",
        "evaluation.group=education",
        "checkpoint.keep=9",
        "checkpoint.directory=/x",
        "training.threads=3",
    ];
    let same = same.into_iter().chain([
        "data.prefetch=9",
        "data.threads=3",
        "data.streams=2",
        "data.memory_budget=1GiB",
        "data.base=/x",
        "data.cache={ directory = \"/x\", max_bytes = 9 }",
    ]);
    let original = job(SOUND, &[]);
    for set in same {
        assert_eq!(fingerprint(&[set]), plain, "{set}");
        assert_eq!(job(SOUND, &[set]).differences(&original), [] as [&str; 0], "{set}");
    }
    let order = ["data.split_bytes=1MiB", "data.drop_last=true", "data.deterministic=false"];
    for set in order {
        assert_ne!(fingerprint(&[set]), plain, "{set}");
    }
    let other = ["seed=8", "data.epochs=3", "data.lanes=3", "label.positive=x", "model.deep.embedding_dim=3"];
    let more = ["features.job.buckets=999", "data.train=x", "training.schedule.warmup_steps=3"];
    for set in other.into_iter().chain(more) {
        assert_ne!(fingerprint(&[set]), plain, "{set}");
    }
    let changed = job(SOUND, &["features.job.buckets=999", "data.epochs=3", "data.train=x"]);
    let keys: Vec<_> = changed.differences(&original);
    assert_eq!(keys.len(), 3, "{keys:?}");
    for (difference, start) in
        keys.iter().zip(["`data.epochs` (", "`data.train` (", "`features.job.buckets` ("])
    {
        assert!(difference.starts_with(start), "{keys:?}");
    }
    assert!(keys[0].ends_with(", now 3)") && keys[2].ends_with(", now 999)"), "{keys:?}");
    let filter = |set: &str| fingerprint(&[&format!("data.filter={set}")]);
    assert_eq!(filter("[]"), plain);
    assert_ne!(filter("[{ column = \"day\", op = \"<\", value = 7 }]"), plain);
}

#[test]
fn event_files_go_to_the_configured_directory() {
    assert_eq!(job(SOUND, &[]).tensorboard, None);
    let set = ["data.base=/jobs", "tensorboard.directory=logs", "tensorboard.histograms_every_steps=500"];
    let directory = Directory::local("/jobs/logs");
    let wanted = TensorBoardSpec { directory, every_steps: 100, histograms_every_steps: 500 };
    assert_eq!(job(SOUND, &set).tensorboard, Some(wanted));
}

#[test]
fn a_job_may_start_from_the_weights_of_another() {
    assert_eq!(job(SOUND, &[]).warm_start, None);
    let set = ["data.base=/jobs", "warm_start.checkpoint=runs/a-1", "warm_start.best=true"];
    let wanted =
        WarmStartSpec { checkpoint: Directory::local("/jobs/runs/a-1"), best: true, continues: false };
    assert_eq!(job(SOUND, &set).warm_start, Some(wanted));
    let in_bucket = ["warm_start.checkpoint=gs://bucket/runs/a-1/"];
    let found = job(SOUND, &in_bucket).warm_start.unwrap().checkpoint;
    assert_eq!(found.to_string(), "gs://bucket/runs/a-1");
    assert_ne!(job(SOUND, &set).fingerprint(), job(SOUND, &set[..2]).fingerprint());
    let refused =
        |set: &str| Job::parse(SOUND, Path::new("job.toml"), &[set.to_owned()]).unwrap_err().to_string();
    assert!(refused("warm_start.best=true").contains("[warm_start] needs `checkpoint`"));
    assert!(refused("warm_start.checkpoint=\"\"").contains("a path is empty"));
}

#[test]
fn hyper_parameters_have_the_names_of_their_keys() {
    let found = job(SOUND, &["model.deep.hidden=[3, 2]", "data.epochs=4"]).hyper_parameters();
    let wanted: [(&str, serde_json::Value); 9] = [
        ("seed", 7.into()),
        ("data.epochs", 4.into()),
        ("data.drop_last", false.into()),
        ("model.kind", "wide_deep".into()),
        ("model.wide.features", "education, both, age_bucket".into()),
        ("model.deep.hidden", "3, 2".into()),
        ("model.deep.optimizer.learning_rate", 0.05.into()),
        ("training.precision", "fp32".into()),
        ("training.embedding_precision", "fp32".into()),
    ];
    for (name, value) in wanted {
        assert_eq!(found.get(name), Some(&value), "{name}");
    }
    assert!(found.values().all(|value| value.is_number() || value.is_string() || value.is_boolean()));
}

#[test]
fn the_shareable_text_has_no_secrets_of_addresses() {
    let signed = |signature: &str| {
        let address = format!("\"https://host/a.parquet?sig={signature}\"");
        job(&SOUND.replace("\"train-*.parquet\"", &address), &[])
    };
    let (one, other) = (signed("sesame"), signed("mustard"));
    assert!(one.text.contains("sesame"), "the daemon needs it");
    let shareable = one.shareable_text();
    assert!(shareable.contains("?sig=***") && !shareable.contains("sesame"), "{shareable}");
    let shared = job(&shareable, &[]);
    assert_eq!(shared.fingerprint(), one.fingerprint());
    assert_eq!(one.fingerprint(), other.fingerprint(), "a renewed signature is the same data");
    let plain = job(SOUND, &[]);
    assert_eq!(plain.shareable_text(), plain.text);
    assert_ne!(plain.fingerprint(), one.fingerprint());
}

#[test]
fn files_can_be_replaced_and_keep_their_weights() {
    let set = ["data.train=[\"a\", { files = \"dataset://b\", weight = 2.5 }]"];
    let before = job(SOUND, &set);
    let train = ["a".to_owned(), "dataset://b/3".to_owned()];
    let set = before.files_setting(&train, &before.data.eval);
    assert_eq!(set.len(), 1);
    let after = Job::parse(&before.text, Path::new("job.toml"), &set).unwrap().0;
    assert_eq!(after.data.train, train);
    assert_eq!(
        (&after.data.train_weights, &after.data.eval),
        (&before.data.train_weights, &before.data.eval)
    );
    assert_eq!(before.files_setting(&before.data.train, &before.data.eval), [""; 0]);
    let set = before.files_setting(&before.data.train, &["x\"y".to_owned()]);
    assert_eq!(Job::parse(&before.text, Path::new("job.toml"), &set).unwrap().0.data.eval, ["x\"y"]);
}
