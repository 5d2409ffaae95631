#![allow(clippy::unwrap_used)]

use std::path::Path;

use millstream_pipeline::spec::{
    FeatureKind, FeatureSpec, MissingNumber, Normalize, OnBadRecord, OutOfRange, Terms,
};
use millstream_trainer::spec::{ModelSpec, OptimizerSpec, Pooling};

use super::error::Known;
use super::*;

/// A sound job, which the cases below spoil.
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

fn parse(text: &str, set: &[&str]) -> Result<(Job, Vec<Warning>), JobError> {
    let set: Vec<String> = set.iter().map(|&text| text.to_owned()).collect();
    Job::parse(text, Path::new("job.toml"), &set)
}

fn job(text: &str, set: &[&str]) -> Job {
    parse(text, set).unwrap_or_else(|error| panic!("{error}")).0
}

/// What is told about `SOUND` with `from` replaced by `to`.
#[track_caller]
fn errors(from: &str, to: &str) -> String {
    assert_eq!(SOUND.matches(from).count(), 1, "{from:?} is in the job once");
    match parse(&SOUND.replacen(from, to, 1), &[]) {
        Ok(_) => panic!("accepted with {to:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn each_mistake_is_told_with_its_place_and_what_would_be_right() {
    // (what is replaced, by what, what is told)
    let cases = [
        // Keys.
        ("seed = 7", "sed = 7", "2:1: error: unknown key `sed` in the job file; did you mean `seed`?"),
        (
            "eval = [\"test.parquet\"]",
            "eval = []\nbacth_size = 3",
            "7:1: error: unknown key `bacth_size` in [data]; did you mean `batch_size`?",
        ),
        (
            "seed = 7",
            "seed = 7\nepochs = 3",
            "3:1: error: unknown key `epochs` in the job file; did you mean `data.epochs`?",
        ),
        (
            "[model]",
            "[training]\nkeep = 1\n[model]",
            "20:1: error: unknown key `keep` in [training]; did you mean `checkpoint.keep`?",
        ),
        ("seed = 7", "colour = \"red\"", "2:1: error: unknown key `colour` in the job file"),
        (
            "\"hashed\", column",
            "\"hashed\", colum",
            "16:26: error: unknown key `colum` in feature `job`; did you mean `column`?",
        ),
        ("\"zscore\" }", "\"zscore\", buckets = 3 }", "13:49: error: unknown key `buckets` in feature `age`"),
        (
            "wide.features",
            "wide.optimizer = { kind = \"ftrl\", lr = 1, l3 = 1 }\nwide.features",
            "21:35: error: unknown key `lr` in [model.wide.optimizer]; did you mean `l1`?\n\
             job.toml:21:43: error: unknown key `l3` in [model.wide.optimizer]; did you mean `l1`?",
        ),
        // Required ones.
        ("name = \"census\"", "", "1:1: error: the job file needs `name`: what the job is called"),
        (
            "train = [\"train-*.parquet\"]",
            "",
            "4:1: error: [data] needs `train`: paths or globs of the training data",
        ),
        (
            "[label]\ncolumn = \"income\"\npositive = \">50K\"",
            "",
            "1:1: error: the job file needs [label]: the column to predict",
        ),
        (
            "deep.features = [\"age\", \"job\"]",
            "",
            "19:1: error: [model] needs [model.deep]: the features that are embedded",
        ),
        (
            "kind = \"vocabulary\"",
            "terms = [\"a\"]",
            "15:13: error: feature `education` needs `kind`: how the column becomes a feature",
        ),
        (
            ", buckets = 1000",
            "",
            "16:7: error: feature `job` needs `buckets`: how many ids values are hashed to",
        ),
        // Types and ranges.
        ("seed = 7", "seed = \"7\"", "2:8: error: expected a whole number, found a string"),
        ("seed = 7", "seed = -7", "2:8: error: expected a whole number at least 0, found -7"),
        ("seed = 7", "seed = 7.5", "2:8: error: expected a whole number, found a number with a fraction"),
        (
            "eval = [\"test.parquet\"]",
            "eval = [1]\nepochs = 0",
            "6:9: error: expected a string, found a whole number\n\
             job.toml:7:10: error: expected a whole number at least 1, found 0",
        ),
        ("[\"train-*.parquet\"]", "true", "5:9: error: expected a list of strings, found true or false"),
        ("[\"train-*.parquet\"]", "[]", "5:9: error: `train` names no data"),
        (
            "eval = [\"test.parquet\"]",
            "eval = []\nmemory_budget = \"2 gigs\"\nlanes = 5000",
            "7:17: error: expected a size like \"512MiB\" or \"2GiB\", found \"2 gigs\"\n\
             job.toml:8:9: error: expected a whole number from 1 to 4096, found 5000",
        ),
        (
            "eval = [\"test.parquet\"]",
            "eval = []\nformat = \"parket\"\non_bad_record = \"ignore\"",
            "7:10: error: expected \"tfrecord\" or \"parquet\", found \"parket\"; did you mean `parquet`?\n\
             job.toml:8:17: error: expected \"fail\" or \"skip\", found \"ignore\"",
        ),
        (
            "\"vocabulary\"",
            "\"vocab\"",
            "15:22: error: expected \"numeric\", \"bucketized\", \"vocabulary\", \"hashed\", \"identity\" or \
             \"crossed\", found \"vocab\"; did you mean `vocabulary`?",
        ),
        (
            "normalize = \"zscore\"",
            "missing = \"median\"",
            "13:37: error: expected \"error\", \"mean\" or a number, found \"median\"",
        ),
        ("{ kind = \"vocabulary\" }", "3", "15:13: error: expected a table, found a whole number"),
        (
            "\"census\"",
            "\"a b\"",
            "1:8: error: a name is 1 to 64 letters, digits, `-`, `_` and `.`, found \"a b\"",
        ),
        ("\"census\"", "\"..\"", "1:8: error: a name begins with a letter, a digit or `_`"),
        (
            "wide.features",
            "deep.optimizer = { kind = \"adagrad\", learning_rate = 0 }\nwide.features",
            "21:54: error: expected a number above 0, found 0",
        ),
        (
            "wide.features",
            "deep.optimizer = { kind = \"adagrad\", learning_rate = inf }\nwide.features",
            "21:54: error: expected a finite number, found inf",
        ),
        (
            "wide.features",
            "deep.optimizer = \"adam\"\nwide.features",
            "21:18: error: expected a table, found a string",
        ),
        // Contradictions.
        ("[18, 25.5]", "[18, 25, 25]", "14:75: error: `boundaries` must increase, and 25 follows 25"),
        ("[18, 25.5]", "[]", "14:66: error: `boundaries` needs at least one number"),
        (
            "\"both\", \"age_bucket\"",
            "\"bth\", \"age_buckets\", \"education\", \"ocean\"",
            "21:31: error: `bth` is not in [features]; did you mean `both`?\n\
             job.toml:21:38: error: `age_buckets` is not in [features]; did you mean `age_bucket`?\n\
             job.toml:21:53: error: the feature `education` is there twice\n\
             job.toml:21:66: error: `ocean` is not in [features]",
        ),
        ("[\"age\", \"job\"]", "[]", "22:17: error: at least one feature is needed"),
        (
            "eval = [\"test.parquet\"]",
            "eval = []\nmax_bad_records = 3",
            "7:19: error: `max_bad_records` has no meaning without `on_bad_record = \"skip\"`",
        ),
        (
            "eval = [\"test.parquet\"]",
            "eval = []\nshuffle_rows = 3\nlanes = 4",
            "7:16: error: `shuffle_rows` is split among 4 lanes, so it is at least that many, or 0 for no \
             shuffling",
        ),
        (
            "kind = \"vocabulary\"",
            "kind = \"vocabulary\", terms = [\"a\", \"b\", \"a\"], min_count = 2",
            "15:55: error: the term \"a\" is there twice\n\
             job.toml:15:73: error: `min_count` is about learned terms, and contradicts `terms`",
        ),
        (
            "kind = \"vocabulary\"",
            "kind = \"vocabulary\", multi = true",
            "15:44: error: `multi = true` needs `maximum`: the most values a row keeps",
        ),
        (
            "kind = \"vocabulary\"",
            "kind = \"vocabulary\", maximum = 3",
            "15:46: error: `maximum` has no meaning without `multi = true`",
        ),
        (
            "kind = \"vocabulary\"",
            "kind = \"vocabulary\", weights = \"shares\"",
            "15:46: error: `weights` has no meaning without `multi = true`",
        ),
        (
            "kind = \"vocabulary\"",
            "kind = \"vocabulary\", multi = true, maximum = 3, weights = \"income\"",
            "15:1: error: feature `education` reads the label's column `income`\n\
             job.toml:17:39: error: `education` is multi-valued, so the cross needs `multi = true` and `maximum`",
        ),
        (
            "[\"education\", \"job\", \"sex\"]",
            "[\"education\", \"job\", \"sex\"], multi = true, maximum = 3, weights = \"shares\"",
            "17:104: error: a cross has no `weights`: they are of the values of one column",
        ),
        (
            "age = { kind = \"numeric\"",
            "age = { kind = \"numeric\", weights = \"shares\"",
            "13:27: error: unknown key `weights` in feature `age`",
        ),
        (
            "[\"education\", \"job\", \"sex\"]",
            "[\"age\", \"age\"]",
            "17:39: error: `age` is numeric; cross a bucketized, vocabulary or hashed feature, or a column\n\
             job.toml:17:46: error: `age` is crossed with itself\n\
             job.toml:17:46: error: `age` is numeric; cross a bucketized, vocabulary or hashed feature, or a column",
        ),
        (
            "[\"education\", \"job\", \"sex\"]",
            "[\"education\"]",
            "17:38: error: a cross needs two columns or more",
        ),
        (
            "column = \"occupation\"",
            "column = \"income\"",
            "16:1: error: feature `job` reads the label's column `income`\n\
             job.toml:17:1: error: feature `both` reads the label's column `income`",
        ),
        (
            "[model]",
            "[training]\nprecision = \"half\"\n[model]",
            "20:13: error: expected \"fp32\", \"tf32\", \"bf16\" or \"fp16\", found \"half\"",
        ),
        (
            "wide.features",
            "wide.optimizer = { kind = \"ftrl\", initial_accumulator = 0 }\nwide.features",
            "21:57: error: `beta`, `l2` and `initial_accumulator` are all 0, and something must divide",
        ),
        // Evaluation.
        (
            "[model]",
            "[evaluation]\ngroup = \"edukation\"\n[model]",
            "20:9: error: `edukation` is not in [features]; did you mean `education`?",
        ),
        (
            "[model]",
            "[evaluation]\ngroup = \"age\"\n[model]",
            "20:9: error: `age` is a number, and groups are ids: make it another kind",
        ),
        (
            "[model]",
            "tags = { kind = \"hashed\", buckets = 9, multi = true, maximum = 2 }\n[evaluation]\ngroup = \"tags\"\n[model]",
            "21:9: error: `tags` has several values a row, and a row is in one group",
        ),
        // The cache.
        (
            "eval = [\"test.parquet\"]",
            "eval = []\ncache = { directory = \"x\" }",
            "7:9: error: [data.cache] needs `max_bytes`: the most that is kept there",
        ),
        // TensorBoard.
        (
            "[model]",
            "[tensorboard]\nevery_step = 10\n[model]",
            "19:1: error: [tensorboard] needs `directory`: where event files go\n\
             job.toml:20:1: error: unknown key `every_step` in [tensorboard]; did you mean `every_steps`?",
        ),
        (
            "[model]",
            "[tensorboard]\ndirectory = \"gs://bucket/logs\"\nevery_steps = 0\n[model]",
            "20:13: error: event files go to a directory of this machine, found \"gs://bucket/logs\"\n\
             job.toml:21:15: error: expected a whole number at least 1, found 0",
        ),
        // Not TOML.
        ("seed = 7", "seed = = 7", "2:8: error: not TOML: extra `=`, expected nothing"),
        ("seed = 7", "name = \"x\"", "2:1: error: not TOML: duplicate key"),
    ];
    let wrong: Vec<_> = cases
        .into_iter()
        .map(|(from, to, wanted)| (to, format!("job.toml:{wanted}"), errors(from, to)))
        .filter(|(_, wanted, found)| wanted != found)
        .map(|(to, wanted, found)| format!("{to}\n  wanted {wanted}\n  found  {found}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn overrides_are_told_as_they_were_typed() {
    let cases = [
        (
            "data.batch_siz=3",
            "--set data.batch_siz=3: error: unknown key `batch_siz` in [data]; did you mean `batch_size`?",
        ),
        (
            "data.bacth=3",
            "--set data.bacth=3: error: unknown key `bacth` in [data]; did you mean `batch_size`?",
        ),
        ("data.epochs=0", "--set data.epochs=0: error: expected a whole number at least 1, found 0"),
        ("data.epochs=ten", "--set data.epochs=ten: error: expected a whole number, found a string"),
        ("epochs", "--set epochs: error: expected `section.key=value`"),
        ("a b=3", "--set a b=3: error: `a b` is not a key"),
        ("name.first=3", "--set name.first=3: error: `name` is not a table"),
        (
            "data.train=[\"a\"",
            "--set data.train=[\"a\": error: not a TOML value: unclosed array, expected `]`",
        ),
        (
            "features.job.bucket=3",
            "--set features.job.bucket=3: error: unknown key `bucket` in feature `job`; did you mean `buckets`?",
        ),
    ];
    for (set, wanted) in cases {
        assert_eq!(parse(SOUND, &[set]).unwrap_err().to_string(), wanted);
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
    assert_eq!(job.checkpoint.directory, Path::new("/tmp/c"));
    assert_eq!(job.training.threads, Some(2));
    let ModelSpec::WideDeep(model) = &job.model else { panic!("{:?}", job.model) };
    assert_eq!(model.deep.hidden, [3, 2]);
    let hashed = job.features.iter().find(|feature| feature.name == "job").unwrap();
    assert_eq!(hashed.kind, FeatureKind::Hashed { buckets: 17 });
}

#[test]
fn a_feature_that_groups_rows_is_kept() {
    let set = ["evaluation.group=user", "features.user.kind=identity", "features.user.buckets=9"];
    let (job, warnings) = parse(SOUND, &set).unwrap();
    assert_eq!(warnings, []);
    assert_eq!(job.evaluation.group.as_deref(), Some("user"));
    assert_eq!(job.features.iter().filter(|feature| feature.name == "user").count(), 1);
    let (plain, warnings) = parse(SOUND, &set[1..]).unwrap();
    assert_eq!((plain.evaluation.group, warnings.len()), (None, 1), "in vain without");
    assert!(plain.features.iter().all(|feature| feature.name != "user"));
}

#[test]
fn values_may_have_weights() {
    let several = ["features.both.multi=true", "features.both.maximum=9", "features.job.multi=true"];
    let set = [&several[..], &["features.job.maximum=5", "features.job.weights=shares"]].concat();
    let parsed = |set: &[&str]| {
        let job = job(SOUND, set);
        let feature = job.features.iter().find(|feature| feature.name == "job").unwrap().clone();
        (feature, job.fingerprint())
    };
    let (with, fingerprint) = parsed(&set);
    assert_eq!(with.weights.as_deref(), Some("shares"));
    let (without, other) = parsed(&set[..4]);
    assert_eq!(without.weights, None);
    assert_ne!(fingerprint, other, "another job");
    // Whatever knows features by their JSON (a job's fingerprint, a cache's keys) knows those without weights as ever.
    let json = serde_json::json!({
        "name": "job", "columns": ["occupation"], "kind": { "hashed": { "buckets": 1000 } }, "maximum": 5
    });
    assert_eq!(serde_json::to_value(&without).unwrap(), json);
    assert_eq!(serde_json::from_value::<FeatureSpec>(json).unwrap(), without);
}

#[test]
fn a_job_is_resolved() {
    let (job, warnings) = parse(SOUND, &[]).unwrap();
    assert_eq!(warnings, []);
    assert_eq!((job.name.as_str(), job.training.seed), ("census", 7));
    assert_eq!(job.data.base, std::env::current_dir().unwrap());
    assert_eq!(job.checkpoint.directory, job.data.base.join("checkpoints"));
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
fn what_the_model_does_not_read_is_left_out_with_a_warning() {
    let text = SOUND.replace("wide.features = [\"education\", \"both\",", "wide.features = [\"both\",");
    let (job, warnings) = parse(&text, &[]).unwrap();
    assert_eq!(warnings, [], "a cross reads `education`");
    assert!(job.features.iter().all(|feature| feature.name != "education"));

    let (job, warnings) = parse(&SOUND.replace(", \"both\"", ""), &[]).unwrap();
    let told: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["job.toml:17:1: warning: feature `both` is in no part of the model, and is left out"]);
    assert_eq!(job.features.len(), 4);

    let (_, warnings) = parse(&SOUND.replace("eval = [\"test.parquet\"]", ""), &[]).unwrap();
    assert!(warnings[0].to_string().starts_with("job.toml:4:1: warning: no `eval` in [data]"));
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
fn terms_files_are_checked() {
    let text = SOUND.replace("kind = \"vocabulary\"", "kind = \"vocabulary\", file = \"terms.txt\"");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("job.toml");
    let told = |content: Option<&str>| {
        if let Some(content) = content {
            std::fs::write(directory.path().join("terms.txt"), content).unwrap();
        }
        let error = Job::parse(&text, &path, &[]).unwrap_err().to_string();
        error.replace(directory.path().to_str().unwrap(), "DIR")
    };
    assert_eq!(
        told(None),
        "DIR/job.toml:15:43: error: cannot read the terms in DIR/terms.txt: No such file or directory (os error 2)"
    );
    assert_eq!(told(Some("")), "DIR/job.toml:15:43: error: DIR/terms.txt has no terms");
    assert_eq!(
        told(Some("a\nb\na\n")),
        "DIR/job.toml:15:43: error: DIR/terms.txt:3: the term \"a\" is there twice"
    );
}

#[test]
fn the_fingerprint_is_of_the_result_alone() {
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
    for set in same {
        assert_eq!(fingerprint(&[set]), plain, "{set}");
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
    let filter = |set: &str| fingerprint(&[&format!("data.filter={set}")]);
    assert_eq!(filter("[]"), plain);
    assert_ne!(filter("[{ column = \"day\", op = \"<\", value = 7 }]"), plain);
}

#[test]
fn event_files_are_written_where_the_job_says_so() {
    assert_eq!(job(SOUND, &[]).tensorboard, None);
    let set = ["data.base=/jobs", "tensorboard.directory=logs", "tensorboard.histograms_every_steps=500"];
    let directory = Path::new("/jobs/logs").to_owned();
    let wanted = TensorBoardSpec { directory, every_steps: 100, histograms_every_steps: 500 };
    assert_eq!(job(SOUND, &set).tensorboard, Some(wanted));
}

#[test]
fn a_job_may_begin_with_the_weights_of_another() {
    assert_eq!(job(SOUND, &[]).warm_start, None);
    let set = ["data.base=/jobs", "warm_start.checkpoint=runs/a-1", "warm_start.best=true"];
    let wanted = WarmStartSpec { checkpoint: Path::new("/jobs/runs/a-1").to_owned(), best: true };
    assert_eq!(job(SOUND, &set).warm_start, Some(wanted));
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
fn a_filter_is_a_list_of_conditions() {
    use millstream_pipeline::spec::{Comparison, Condition, Literal, Test};
    let set = |filter: &str| format!("data.filter={filter}");
    let text = "[{ column = \"day\", op = \">=\", value = \"2026-11-01\" }, \
                { column = \"country\", op = \"in\", value = [\"SE\", \"NO\"] }, \
                { column = \"price\", op = \"!=\", value = 0.5 }, { column = \"id\", op = \"is_not_null\" }]";
    let condition = |column: &str, test| Condition { column: column.to_owned(), test };
    let word = |word: &str| Literal::Text(word.to_owned());
    let expected = [
        condition("day", Test::Compare { op: Comparison::GreaterOrEqual, value: word("2026-11-01") }),
        condition("country", Test::OneOf { values: vec![word("SE"), word("NO")] }),
        condition("price", Test::Compare { op: Comparison::NotEqual, value: Literal::Number(0.5) }),
        condition("id", Test::IsNotNull),
    ];
    let written = job(SOUND, &[&set(text)]);
    assert_eq!(written.data.filter, expected);
    let (again, _) = Job::parse(&written.text, Path::new("job.toml"), &[]).unwrap();
    assert_eq!(again.data.filter, expected);

    let wrong = [
        ("[{ column = \"a\", op = \"=\", value = 1 }]", "expected \"==\", \"!=\""),
        ("[{ column = \"a\", op = \"<\" }]", "needs `value`"),
        ("[{ column = \"a\", op = \"in\", value = [] }]", "empty list"),
        ("[{ column = \"a\", op = \"is_null\", value = 1 }]", "no meaning"),
        ("[{ colum = \"a\", op = \"is_null\" }]", "unknown key `colum`"),
        ("\"a < 7\"", "a list of conditions"),
    ];
    for (filter, expected) in wrong {
        let error = parse(SOUND, &[&set(filter)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{filter}: {error}");
    }
}

#[test]
fn a_numeric_feature_says_what_stands_for_a_missing_value() {
    let missing = |value: &str| {
        let set = format!("features.age.missing={value}");
        match job(SOUND, &[&set]).features[0].kind {
            FeatureKind::Numeric { normalize, missing } => {
                assert_eq!(normalize, Normalize::Zscore);
                missing
            }
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!(missing("error"), MissingNumber::Error);
    assert_eq!(missing("mean"), MissingNumber::Mean);
    assert_eq!(missing("-1"), MissingNumber::Value(-1.0));
}

#[test]
fn a_cross_takes_the_intervals_of_a_bucketized_feature() {
    let kind = |columns: &str| {
        let job = job(&SOUND.replace("[\"education\", \"job\", \"sex\"]", columns), &[]);
        let cross = job.features.into_iter().find(|spec| matches!(spec.kind, FeatureKind::Crossed { .. }));
        let FeatureSpec { kind: FeatureKind::Crossed { boundaries, .. }, columns, .. } = cross.unwrap()
        else {
            unreachable!("it was looked for");
        };
        (columns, boundaries)
    };
    assert_eq!(kind("[\"education\", \"sex\"]"), (vec!["education".into(), "sex".into()], vec![]));
    let intervals = vec![vec![], vec![18.0, 25.5]];
    assert_eq!(kind("[\"sex\", \"age_bucket\"]"), (vec!["sex".into(), "age".into()], intervals));
}

#[test]
fn an_identity_feature_says_what_becomes_of_other_numbers() {
    let kind = |more: &str| {
        let text = SOUND.replace("kind = \"vocabulary\"", &format!("kind = \"identity\", buckets = 9{more}"));
        job(&text, &[])
            .features
            .into_iter()
            .map(|spec| spec.kind)
            .find(|kind| matches!(kind, FeatureKind::Identity { .. }))
    };
    let identity = |out_of_range| Some(FeatureKind::Identity { buckets: 9, out_of_range });
    assert_eq!(kind(""), identity(OutOfRange::Error));
    assert_eq!(kind(", out_of_range = \"missing\""), identity(OutOfRange::Missing));
}

#[test]
fn a_file_of_anything_is_told_and_not_a_panic() {
    for text in ["", "\u{feff}", "=", "[", "[[data]]", "data = 3\nfeatures = 3\nmodel = 3", "a.b.c = 1", "\0"]
    {
        assert!(parse(text, &[]).is_err(), "{text:?}");
    }
    let whole = SOUND.len();
    for cut in (0..whole).filter(|&cut| SOUND.is_char_boundary(cut)) {
        // Told or accepted, never a panic.
        let _ = parse(&SOUND[..cut], &[]);
    }
}

/// The sample job that documents every key.
const REFERENCE: &str = include_str!("../../../examples/job-reference.toml");

#[test]
fn the_reference_is_a_job_and_its_defaults_are_the_defaults() {
    let (plain, warnings) = parse(REFERENCE, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(warnings, []);
    let is_default =
        |line: &str| line.strip_prefix('#').is_some_and(|rest| rest.starts_with(char::is_alphabetic));
    let all: String = REFERENCE
        .lines()
        .map(|line| if is_default(line) { format!("{}\n", &line[1..]) } else { format!("{line}\n") })
        .collect();
    assert!(REFERENCE.lines().filter(|line| is_default(line)).count() > 20);
    let (spelled_out, _) = parse(&all, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(Job { text: String::new(), ..spelled_out }, Job { text: String::new(), ..plain });
}

/// The reference with each model that it has only in comments; and with that model's kind and features alone.
fn other_models() -> Vec<(String, String)> {
    let (before, after) = REFERENCE.split_once("\n[model]\n").unwrap();
    let (models, after) = after.split_once("\n[training]\n").unwrap();
    let lines = models.lines().filter_map(|line| line.strip_prefix("#> "));
    let lines: String = lines.flat_map(|line| [line, "\n"]).collect();
    let models = lines.split("[model]\n").skip(1).map(|model| {
        let job = |model: &str| format!("{before}\n[model]\n{model}\n[training]\n{after}");
        let needed = model.lines().filter(|line| line.starts_with("kind = ") || line.contains("features = "));
        let bare: String = needed.flat_map(|line| [line, "\n"]).collect();
        // One that chooses among the items of whole batches.
        let allowed = |job: String| match model.contains("\"two_tower\"") {
            true => job.replace("\nmicro_batch_size = 1024\n", "\n"),
            false => job,
        };
        (allowed(job(model)), allowed(job(&bare)))
    });
    models.collect()
}

#[test]
fn every_model_of_the_reference_is_a_job_and_says_the_defaults() {
    let models = other_models();
    assert_eq!(models.len(), 7);
    for (text, bare) in models {
        let (job, _) = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let (bare, _) = parse(&bare, &[]).unwrap();
        assert_eq!(job.model, bare.model);
    }
}

#[test]
fn the_reference_documents_every_key() {
    let path = Path::new("job.toml");
    let jobs = other_models().into_iter().map(|(text, _)| text).chain([REFERENCE.to_owned()]);
    let known: Vec<Vec<Known>> = jobs
        .map(|text| {
            let problems = Problems::new(path, &text, &[]);
            read_job(&Table::parse(&text, &[], &problems), path, &problems);
            problems.all_known()
        })
        .collect();
    assert!(known.iter().all(|known| known.len() > 50), "{known:?}");
    for Known { section, key } in known.into_iter().flatten() {
        let written =
            [format!("\n{key} = "), format!("\n#{key} = "), format!("\n#> {key} = "), format!("`{key}`")];
        let header = format!("[{}{key}", section.map(|path| path + ".").unwrap_or_default());
        let headers = [format!("\n{header}"), format!("\n#> {header}")];
        assert!(
            headers.iter().chain(&written).any(|text| REFERENCE.contains(text)),
            "`{key}` is not in the reference"
        );
    }
}
