//! Searches: parameters, their checks against the job, and the files of trials.

use super::*;

const SEARCH: &str = r#"
[search]
trials = 12
parallel = 3
seed = 4

[search.parameters]
"model.deep.optimizer.learning_rate" = { min = 1e-4, max = 0.1, scale = "log" }
model.deep.embedding_dim = { min = 4, max = 31, step = 4 }
data.batch_size = { values = [256, 512] }

[search.stop]
first = 2
"#;

fn search(extra: &str) -> String {
    format!("{SOUND}deep.optimizer = {{ kind = \"adagrad\", learning_rate = 0.05 }}\n{extra}")
}

/// The errors of the job with `from` replaced by `to` in its search.
#[track_caller]
fn search_errors(from: &str, to: &str) -> String {
    assert_eq!(SEARCH.matches(from).count(), 1, "{from:?} is in the search once");
    match parse(&search(&SEARCH.replacen(from, to, 1)), &[]) {
        Ok(_) => panic!("accepted with {to:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_search_has_parameters_and_defaults() {
    let found = job(&search(SEARCH), &[]).search.unwrap();
    assert_eq!((found.algorithm, found.trials, found.parallel, found.seed), (Algorithm::Tpe, 12, 3, 4));
    assert_eq!((found.metric.name(), found.label, found.keeps_best), ("auc", 0, false));
    assert_eq!(found.stop, Some(HalvingSpec { reduction: 3, first: 2 }));
    let parameter = |key: &str, domain| ParameterSpec { key: key.to_owned(), domain };
    let wanted = [
        parameter(
            "model.deep.optimizer.learning_rate",
            Domain::Real { min: 1e-4, max: 0.1, log: true, points: None },
        ),
        parameter("model.deep.embedding_dim", Domain::Whole { min: 4, max: 28, step: 4, log: false }),
        parameter("data.batch_size", Domain::Values(vec!["256".to_owned(), "512".to_owned()])),
    ];
    assert_eq!(found.parameters, wanted);
    let set = ["checkpoint.keep_best=true", "checkpoint.best_metric=log_loss", "search.parallel=1"];
    let found = job(&search(SEARCH), &set).search.unwrap();
    assert_eq!((found.metric.name(), found.keeps_best, found.parallel), ("log_loss", true, 1));
    let set = ["checkpoint.keep_best=true", "search.metric=log_loss"];
    assert!(!job(&search(SEARCH), &set).search.unwrap().keeps_best, "the best by another metric");
    assert_eq!(job(SOUND, &[]).search, None);
}

#[test]
fn a_search_over_remote_data_should_have_a_cache() {
    let warnings = |set: &[&str]| parse(&search(SEARCH), set).unwrap().1;
    let remote = "data.train=[\"gs://b/train-*\"]";
    assert_eq!(warnings(&[]), []);
    assert!(warnings(&[remote])[0].to_string().contains("each trial fetches the data again"));
    let cache = "data.cache={ directory = \"/cache\", max_bytes = \"1GiB\" }";
    assert_eq!(warnings(&[remote, cache]), []);
}

#[test]
fn trials_share_inputs_unless_they_read_or_learn_something_else() {
    let inputs = |set: &[&str]| job(&search(SEARCH), set).inputs_fingerprint();
    let same = ["data.batch_size=32", "data.epochs=3", "model.deep.hidden=[8]", "seed=9", "name=other"];
    assert_eq!(inputs(&same), inputs(&[]));
    for other in ["data.missing=[\"?\"]", "features.job.buckets=7", "label.positive=x", "data.lanes=3"] {
        assert_ne!(inputs(&[other]), inputs(&[]), "{other}");
    }
}

#[test]
fn a_grid_has_all_combinations() {
    let set = ["search.algorithm=grid", "search.parameters.\"model.deep.optimizer.learning_rate\".points=3"];
    let more = [&set[..], &["search.trials=42"]].concat();
    let spec = job(&search(SEARCH), &more).search.unwrap();
    assert_eq!((spec.algorithm, spec.trials), (Algorithm::Grid, 3 * 7 * 2));
    let error = parse(&search(SEARCH), &set).unwrap_err().to_string();
    assert!(error.contains("26:10: error: the grid has 42 combinations, more than 12 trials"), "{error}");
    let error = parse(&search(SEARCH), &set[..1]).unwrap_err().to_string();
    assert!(error.contains("error: a grid needs `points`"), "{error}");
}

#[test]
fn a_trial_is_the_job_with_the_values_set() {
    let whole = job(&search(SEARCH), &[]);
    let values = [ParameterValue::Real(0.01), ParameterValue::Whole(8), ParameterValue::Choice(1)];
    let text = whole.trial_text(&values, &["name=census-t03".to_owned()]);
    let trial = job(&text, &[]);
    assert_eq!((trial.name.as_str(), &trial.search, trial.data.batch_size), ("census-t03", &None, 512));
    let set =
        ["model.deep.optimizer.learning_rate=0.01", "model.deep.embedding_dim=8", "data.batch_size=512"];
    let by_hand = job(&search(""), &set);
    assert_eq!(trial.fingerprint(), by_hand.fingerprint());
    let spec = whole.search.unwrap();
    assert_eq!(spec.settings(&values), set);
    assert_eq!(spec.trial_name("a", 7), "a-t07");
    assert_eq!(SearchSpec { trials: 1_000, ..spec }.trial_name("a", 7), "a-t007");
}

#[test]
fn more_trials_are_the_same_search_but_other_parameters_are_not() {
    let of = |set: &[&str]| job(&search(SEARCH), set).fingerprint();
    assert_eq!(of(&[]), of(&["search.trials=99", "search.parallel=1"]));
    assert_ne!(of(&[]), of(&["search.seed=1"]));
    assert_ne!(of(&[]), job(&search(""), &[]).fingerprint());
}

#[test]
fn each_mistake_in_a_search_is_reported_with_its_position() {
    let cases = [
        ("trials = 12", "trails = 12", "unknown key `trails` in [search]; did you mean `trials`?"),
        ("trials = 12", "metric = \"rmsle\"", "did you mean `rmse`?"),
        ("min = 1e-4, ", "", "needs `min`: the lowest value"),
        ("min = 1e-4", "min = 0.5", "`min` is 0.5, which is not below `max`, 0.1"),
        ("min = 1e-4", "min = -1.0", "a \"log\" scale needs a `min` above 0, found -1.0"),
        ("step = 4", "points = 4", "a range of whole numbers has a `step` instead of `points`"),
        ("step = 4", "step = 40", "`step` is 40, more than the range"),
        ("[256, 512]", "[]", "expected 1 to 64 values, found 0"),
        ("[256, 512]", "[256, 256]", "the value 256 is listed twice"),
        ("[256, 512]", "[256, 0]", "33:36: error: `data.batch_size` cannot be 0:"),
        ("max = 31", "max = 100000000", "32:45: error: `model.deep.embedding_dim` cannot be 100000000:"),
        ("embedding_dim", "embeding_dim", "cannot be 4: unknown key `embeding_dim`"),
        ("data.batch_size", "evaluation.every_steps", "all trials have the same `evaluation`"),
        ("data.batch_size", "name", "`name` cannot be searched"),
        ("first = 2", "first = 0", "expected a whole number from 1 to 1000000, found 0"),
    ];
    for (from, to, wanted) in cases {
        let found = search_errors(from, to);
        assert!(found.contains(wanted), "{to:?}: {found}");
    }
    let without = SEARCH.split_once("[search.parameters]").unwrap().0;
    let error = parse(&search(without), &[]).unwrap_err().to_string();
    assert!(error.contains("[search] needs `parameters`"), "{error}");
    let error = parse(&search(SEARCH), &["data.eval=[]"]).unwrap_err().to_string();
    assert!(error.contains("[search] needs held-out data"), "{error}");
    let long = format!("name={}", "n".repeat(62));
    let error = parse(&search(SEARCH), &[&long]).unwrap_err().to_string();
    assert!(error.contains("has more than 64 characters: shorten it"), "{error}");
}

#[test]
fn the_search_of_the_reference_parses() {
    let reference = include_str!("../../../../examples/job-reference.toml");
    let begin = reference.find("#> [search]").unwrap();
    let lines = reference[begin..].lines().take_while(|line| *line != "[storage]");
    let text: String =
        lines.filter_map(|line| line.strip_prefix("#> ")).flat_map(|line| [line, "\n"]).collect();
    let found = job(&search(&text), &[]).search.unwrap();
    assert_eq!((found.parameters.len(), found.trials, found.parallel), (4, 30, 2));
    assert!(found.stop.is_some());
}
