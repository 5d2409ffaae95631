//! Every mistake is reported with its position and a correction.

use super::*;

#[test]
fn each_mistake_is_reported_with_its_position_and_a_correction() {
    // (replaced text, replacement, expected message)
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
        ("name = \"census\"", "", "1:1: error: the job file needs `name`: the name of the job"),
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
        (", buckets = 1000", "", "16:7: error: feature `job` needs `buckets`: the number of hash buckets"),
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
            "7:10: error: expected \"tfrecord\", \"parquet\", \"jsonl\", \"webdataset\" or \"mds\", found \"parket\"; \
             did you mean `parquet`?\n\
             job.toml:8:17: error: expected \"fail\" or \"skip\", found \"ignore\"",
        ),
        (
            "\"vocabulary\"",
            "\"vocab\"",
            "15:22: error: expected \"numeric\", \"vector\", \"bucketized\", \"vocabulary\", \"hashed\", \"identity\" or \
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
        ("\"census\"", "\"..\"", "1:8: error: a name starts with a letter, a digit or `_`"),
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
             job.toml:21:53: error: the feature `education` is listed twice\n\
             job.toml:21:66: error: `ocean` is not in [features]",
        ),
        ("[\"age\", \"job\"]", "[]", "22:17: error: at least one feature is needed"),
        (
            "eval = [\"test.parquet\"]",
            "eval = []\nmax_bad_records = 3",
            "7:19: error: `max_bad_records` requires `on_bad_record = \"skip\"`",
        ),
        (
            "eval = [\"test.parquet\"]",
            "eval = []\nshuffle_rows = 3\nlanes = 4",
            "7:16: error: `shuffle_rows` is divided among 4 lanes: it must be at least that number, or 0 to \
             disable shuffling",
        ),
        (
            "kind = \"vocabulary\"",
            "kind = \"vocabulary\", terms = [\"a\", \"b\", \"a\"], min_count = 2",
            "15:55: error: the term \"a\" is listed twice\n\
             job.toml:15:73: error: `min_count` applies to learned terms and contradicts `terms`",
        ),
        (
            "kind = \"vocabulary\"",
            "kind = \"vocabulary\", multi = true",
            "15:44: error: `multi = true` needs `maximum`: the maximum number of values per row",
        ),
        (
            "kind = \"vocabulary\"",
            "kind = \"vocabulary\", maximum = 3",
            "15:46: error: `maximum` requires `multi = true`",
        ),
        (
            "kind = \"vocabulary\"",
            "kind = \"vocabulary\", weights = \"shares\"",
            "15:46: error: `weights` requires `multi = true`",
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
            "17:104: error: a cross has no `weights`: weights belong to the values of one column",
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
            "21:57: error: `beta`, `l2` and `initial_accumulator` are all 0: at least one must be above 0",
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
            "20:9: error: `age` is numeric, but groups are ids: use another kind of feature",
        ),
        (
            "[model]",
            "tags = { kind = \"hashed\", buckets = 9, multi = true, maximum = 2 }\n[evaluation]\ngroup = \"tags\"\n[model]",
            "21:9: error: `tags` is multi-valued, but a row belongs to one group",
        ),
        // The cache.
        (
            "eval = [\"test.parquet\"]",
            "eval = []\ncache = { directory = \"x\" }",
            "7:9: error: [data.cache] needs `max_bytes`: the size limit of the cache",
        ),
        (
            "eval = [\"test.parquet\"]",
            "eval = []\ncache = { directory = \"s3://bucket/rows\", max_bytes = \"1GiB\" }",
            "7:23: error: cached rows need a local directory, found \"s3://bucket/rows\"",
        ),
        // Checkpoints.
        (
            "[model]",
            "[checkpoint]\ndirectory = \"https://bucket/runs\"\n[model]",
            "20:13: error: https://bucket/runs: is a web server; a directory is local or in a bucket",
        ),
        ("[model]", "[checkpoint]\ndirectory = \"\"\n[model]", "20:13: error: a path is empty"),
        (
            "[model]",
            "[warm_start]\ncheckpoint = \"https://host/runs/a-1\"\n[model]",
            "20:14: error: https://host/runs/a-1: is a web server; a directory is local or in a bucket",
        ),
        // TensorBoard.
        (
            "[model]",
            "[tensorboard]\nevery_step = 10\n[model]",
            "19:1: error: [tensorboard] needs `directory`: the directory of the event files\n\
             job.toml:20:1: error: unknown key `every_step` in [tensorboard]; did you mean `every_steps`?",
        ),
        (
            "[model]",
            "[tensorboard]\ndirectory = \"gs://bucket/logs/*\"\nevery_steps = 0\n[model]",
            "20:13: error: gs://bucket/logs/*: has a wildcard; a directory has a name\n\
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
fn problems_of_overrides_quote_them() {
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
fn arbitrary_bytes_are_reported_without_a_panic() {
    for text in ["", "\u{feff}", "=", "[", "[[data]]", "data = 3\nfeatures = 3\nmodel = 3", "a.b.c = 1", "\0"]
    {
        assert!(parse(text, &[]).is_err(), "{text:?}");
    }
    let whole = SOUND.len();
    for cut in (0..whole).filter(|&cut| SOUND.is_char_boundary(cut)) {
        // Rejected or accepted, never a panic.
        let _ = parse(&SOUND[..cut], &[]);
    }
}

#[test]
fn a_file_that_is_no_job_has_one_error() {
    let numbers: String = (0..6_000).map(|number| format!("{number}\n")).collect();
    for text in [&numbers, "age,income\n39,<=50K\n", "{\"name\": \"census\"}"] {
        let error = Job::parse(text, Path::new("job.toml"), &[]).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains("this is not a job file"), "{error}");
    }
}
