//! The `[search]` of a job file: hyper-parameter search by trials.
//!
//! A job file with this section is a *search*. Its trials are the same job with some keys set, as `--set` sets them, and
//! without the section. So a trial is an ordinary job file, and every key of a job can be searched.
//!
//! Each parameter is checked when the file is read: the job is resolved with the ends of its range, or with its listed
//! values, while all other keys are as written. A mistake is then an error of the file instead of a failed trial.

use millstream_document::problems::{At, Problems};
use millstream_document::section::Section;
use millstream_document::tree::{self, Entry, Node, Table, Value, parse_key};
use millstream_io::storage::is_local;
use millstream_pipeline::spec::DataSpec;
use millstream_trainer::metrics::Metric;
use serde::{Deserialize, Serialize};

use crate::checkpoint::CheckpointSpec;
use crate::evaluation::{EvaluationSpec, LabelPredictions, read_metric};

/// The maximum number of trials. A search's record has all of them.
const MAX_TRIALS: u32 = 1_000;

/// The maximum number of trials that are not over at a time.
const MAX_PARALLEL: u32 = 64;

/// The maximum number of parameters, and of listed values of one.
const MAX_PARAMETERS: usize = 64;
const MAX_VALUES: usize = 64;

/// The maximum number of values with which the job is resolved when the file is read, and the number of bytes of its text
/// that are read for that. The values beyond are checked when their trials start.
const MAX_CHECKED: usize = 256;
const MAX_CHECKED_BYTES: usize = 8 << 20;

/// Numbers up to this one are exact in double precision.
const MAX_EXACT: u64 = 1 << 53;

/// Keys that no trial may set: they name its files, or make evaluations of different trials incomparable.
const FIXED: [&str; 13] = [
    "name",
    "search",
    "checkpoint",
    "tensorboard",
    "storage",
    "evaluation",
    "label",
    "labels",
    "data.base",
    "data.eval",
    "data.eval_filter",
    "data.validation",
    "data.missing",
];

/// A search for the best values of some keys of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchSpec {
    /// How parameters are chosen.
    pub algorithm: Algorithm,
    /// The number of trials.
    pub trials: u32,
    /// The maximum number of trials that are not over at a time.
    pub parallel: u32,
    /// The metric that compares trials.
    pub metric: Metric,
    /// The index of its label.
    pub label: u32,
    /// Whether a trial counts with its best evaluation, whose checkpoint it keeps, instead of its last.
    pub keeps_best: bool,
    /// The seed of random choices.
    pub seed: u64,
    /// The parameters, in the file's order.
    pub parameters: Vec<ParameterSpec>,
    /// How trials stop early, if they do.
    pub stop: Option<HalvingSpec>,
}

/// How the parameters of a trial are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// All combinations.
    Grid,
    /// Uniform, or uniform in the logarithm.
    Random,
    /// Tree-structured Parzen estimator.
    Tpe,
}

/// Asynchronous successive halving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HalvingSpec {
    /// At each rung, one in this many trials continues; at least 2. Also the ratio of the evaluations of two rungs.
    pub reduction: u32,
    /// The number of evaluations of a trial before its first rung, at least 1.
    pub first: u32,
}

/// A parameter of a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParameterSpec {
    /// The key of the job, as `--set` accepts it.
    pub key: String,
    /// Its possible values.
    pub domain: Domain,
}

/// The possible values of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Domain {
    /// Finite numbers, `min < max`.
    Real {
        /// The lowest number.
        min: f64,
        /// The highest number.
        max: f64,
        /// Whether the logarithm is uniform; then `min` is positive.
        log: bool,
        /// The number of points in a grid, at least 2.
        points: Option<u32>,
    },
    /// Every `step`-th whole number, `min < max`.
    Whole {
        /// The lowest number.
        min: i64,
        /// The highest number, a multiple of `step` above `min`.
        max: i64,
        /// At least 1; 1 if `log`.
        step: u64,
        /// Whether the logarithm is uniform; then `min` is positive.
        log: bool,
    },
    /// Listed values as TOML, at least one.
    Values(Vec<String>),
}

/// A value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterValue {
    /// A number of [`Domain::Real`].
    Real(f64),
    /// A number of [`Domain::Whole`].
    Whole(i64),
    /// The index of a value of [`Domain::Values`].
    Choice(usize),
}

impl ParameterSpec {
    /// `value` as TOML.
    pub fn text(&self, value: ParameterValue) -> String {
        match (value, &self.domain) {
            (ParameterValue::Choice(place), Domain::Values(values)) => {
                values.get(place).cloned().unwrap_or_default()
            }
            // Debug keeps the point, which makes it a number with a fraction.
            (ParameterValue::Real(number), _) => format!("{number:?}"),
            (ParameterValue::Whole(number), _) => number.to_string(),
            (ParameterValue::Choice(place), _) => place.to_string(),
        }
    }

    /// Whether `value` is one of the parameter's.
    pub fn contains(&self, value: ParameterValue) -> bool {
        match (value, &self.domain) {
            (ParameterValue::Real(number), &Domain::Real { min, max, .. }) => (min..=max).contains(&number),
            (ParameterValue::Whole(number), &Domain::Whole { min, max, step, .. }) => {
                (min..=max).contains(&number) && number.abs_diff(min).is_multiple_of(step)
            }
            (ParameterValue::Choice(place), Domain::Values(values)) => place < values.len(),
            _ => false,
        }
    }
}

impl Domain {
    /// The number of values in a grid; `None` for a range without `points`.
    pub fn grid_points(&self) -> Option<u64> {
        match self {
            Self::Real { points, .. } => points.map(u64::from),
            &Self::Whole { min, max, step, .. } => Some(max.abs_diff(min) / step + 1),
            Self::Values(values) => Some(values.len() as u64),
        }
    }

    /// The values with which the job is resolved when the file is read: the ends of a range, or the listed values.
    fn checked(&self) -> Vec<ParameterValue> {
        match self {
            &Self::Real { min, max, .. } => vec![ParameterValue::Real(min), ParameterValue::Real(max)],
            &Self::Whole { min, max, .. } => vec![ParameterValue::Whole(min), ParameterValue::Whole(max)],
            Self::Values(values) => (0..values.len()).map(ParameterValue::Choice).collect(),
        }
    }
}

impl SearchSpec {
    /// The name of trial `number`, from 0, of the search `name`.
    pub fn trial_name(&self, name: &str, number: u32) -> String {
        let width = digits(self.trials.saturating_sub(1)).max(2);
        format!("{name}-t{number:0width$}")
    }

    /// The overrides that set `values`, one of each parameter.
    pub fn settings(&self, values: &[ParameterValue]) -> Vec<String> {
        let values = self.parameters.iter().zip(values);
        values.map(|(parameter, &value)| format!("{}={}", parameter.key, parameter.text(value))).collect()
    }

    /// What determines the parameters of a trial: all but the number of trials and their parallelism.
    pub(crate) fn identity(&self) -> Self {
        Self { trials: 0, parallel: 0, ..self.clone() }
    }
}

fn digits(number: u32) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

const ALGORITHMS: [(&str, Algorithm); 3] =
    [("grid", Algorithm::Grid), ("random", Algorithm::Random), ("tpe", Algorithm::Tpe)];
const SCALES: [(&str, bool); 2] = [("linear", false), ("log", true)];

/// Reads the section of a job, if it has one.
pub(super) fn read(
    top: &mut Section<'_>,
    name: &str,
    data: &DataSpec,
    (evaluation, checkpoint): (&EvaluationSpec, &CheckpointSpec),
    predictions: &LabelPredictions,
) -> Option<SearchSpec> {
    top.node("search")?;
    let mut section = top.section("search", "[search]");
    let algorithm = section.choice("algorithm", &ALGORITHMS).unwrap_or(Algorithm::Tpe);
    let stopping = evaluation.stopping.map(|stopping| (Some(stopping.metric), stopping.label));
    let usual = checkpoint.best.map(|best| (Some(best.metric), best.label)).or(stopping).unwrap_or((None, 0));
    let has_groups = evaluation.group.is_some();
    let (metric, label) = read_metric(&mut section, ("metric", "label"), has_groups, predictions, usual);
    if !data.has_eval() {
        section.error_at(section.at(), "[search] needs held-out data: `eval` or `validation` in [data]");
    }
    let parameters = read_parameters(&mut section, algorithm);
    let trials = read_trials(&mut section, algorithm, &parameters);
    let spec = SearchSpec {
        algorithm,
        trials,
        parallel: section.whole_u32("parallel", 1..=MAX_PARALLEL).unwrap_or(1),
        metric,
        label,
        keeps_best: checkpoint.best.is_some_and(|best| (best.metric, best.label) == (metric, label)),
        seed: section.whole("seed", 0..=u64::MAX).unwrap_or(0),
        parameters,
        stop: read_stop(&mut section),
    };
    let is_remote = |pattern: &String| is_local(pattern).is_ok_and(|is_local| !is_local);
    if data.cache.is_none() && data.train.iter().chain(&data.eval).any(is_remote) {
        let message = "each trial fetches the data again; with `data.cache`, only the first does";
        section.warn(message);
    }
    section.finish();
    const LONGEST: usize = 64;
    let longest = spec.trial_name(name, trials.saturating_sub(1));
    if longest.len() > LONGEST {
        let message =
            format!("the name of a trial, `{longest}`, has more than {LONGEST} characters: shorten it");
        top.error("name", message);
    }
    Some(spec)
}

fn read_trials(section: &mut Section<'_>, algorithm: Algorithm, parameters: &[ParameterSpec]) -> u32 {
    let given = section.whole_u32("trials", 1..=MAX_TRIALS);
    if algorithm != Algorithm::Grid {
        const USUAL: u32 = 30;
        return given.unwrap_or(USUAL);
    }
    let points = parameters.iter().map(|parameter| parameter.domain.grid_points().unwrap_or(1));
    let combinations = points.fold(1, u64::saturating_mul);
    let most = given.unwrap_or(MAX_TRIALS);
    match u32::try_from(combinations) {
        Ok(combinations) if combinations <= most => combinations,
        _ => {
            let at = if given.is_some() { section.at_key("trials") } else { section.at() };
            let message = format!("the grid has {combinations} combinations, more than {most} trials");
            section.error_at(at, message);
            most
        }
    }
}

fn read_stop(section: &mut Section<'_>) -> Option<HalvingSpec> {
    section.node("stop")?;
    let mut stop = section.section("stop", "[search.stop]");
    let spec = HalvingSpec {
        reduction: stop.whole_u32("reduction", 2..=1_000).unwrap_or(3),
        first: stop.whole_u32("first", 1..=1_000_000).unwrap_or(1),
    };
    stop.finish();
    Some(spec)
}

fn read_parameters(section: &mut Section<'_>, algorithm: Algorithm) -> Vec<ParameterSpec> {
    let mut parameters = Vec::new();
    let what =
        "the keys to search, such as \"model.deep.optimizer.learning_rate\" = { min = 1e-4, max = 0.1 }";
    let Some(node) = section.required("parameters", what) else { return parameters };
    let Value::Table(table) = &node.value else {
        section.error("parameters", "expected a table of keys");
        return parameters;
    };
    let mut found = Vec::new();
    leaves(table, "", &mut found);
    if found.is_empty() {
        section.error("parameters", format!("[search.parameters] is empty; it needs {what}"));
    } else if found.len() > MAX_PARAMETERS {
        section.error("parameters", format!("more than {MAX_PARAMETERS} parameters"));
    }
    let mut keys: Vec<Vec<String>> = Vec::new();
    for (key, at, node) in found.into_iter().take(MAX_PARAMETERS) {
        let Some(path) = parse_key(&key) else {
            section.error_at(at, format!("`{key}` is not a key of a job"));
            continue;
        };
        let is_below = |fixed: &&&str| path.iter().map(String::as_str).take(2).eq(fixed.split('.'));
        let dotted = path.join(".");
        let fixed =
            FIXED.iter().find(|fixed| is_below(fixed) || path.first().is_some_and(|first| first == **fixed));
        if let Some(fixed) = fixed {
            section
                .error_at(at, format!("`{dotted}` cannot be searched: all trials have the same `{fixed}`"));
        } else if keys.contains(&path) {
            section.error_at(at, format!("`{dotted}` is searched twice"));
        } else if let Some(domain) = read_domain(section, &key, node, algorithm) {
            parameters.push(ParameterSpec { key, domain });
        }
        keys.push(path);
    }
    parameters
}

/// The parameters in a table. A key may be quoted, or written as nested tables.
fn leaves<'t>(table: &'t Table, prefix: &str, found: &mut Vec<(String, At, &'t Node)>) {
    for Entry { key, at, node } in &table.entries {
        let key = format!("{prefix}{key}");
        match &node.value {
            Value::Table(inner) if !is_domain(inner) && !inner.entries.is_empty() => {
                leaves(inner, &format!("{key}."), found);
            }
            _ => found.push((key, *at, node)),
        }
    }
}

/// Whether a table describes values, and is not a part of a key.
fn is_domain(table: &Table) -> bool {
    table.entries.iter().any(|entry| !matches!(entry.node.value, Value::Table(_)))
}

fn read_domain(section: &Section<'_>, key: &str, node: &Node, algorithm: Algorithm) -> Option<Domain> {
    let Value::Table(table) = &node.value else {
        section.error_at(
            node.at,
            format!(
                "expected {{ min = ..., max = ... }} or {{ values = [...] }}, found {}",
                node.value.describe()
            ),
        );
        return None;
    };
    let mut of_key = section.below(table, node.at, format!("parameter `{key}`"));
    let domain = if of_key.has("values") {
        read_values(&mut of_key)
    } else {
        read_range(&mut of_key, algorithm == Algorithm::Grid)
    };
    of_key.finish();
    domain
}

fn read_values(section: &mut Section<'_>) -> Option<Domain> {
    let node = section.node("values")?;
    let items = section.as_list(node, "values")?;
    if items.is_empty() || items.len() > MAX_VALUES {
        section.error("values", format!("expected 1 to {MAX_VALUES} values, found {}", items.len()));
        return None;
    }
    let mut values: Vec<String> = Vec::new();
    for item in items {
        if matches!(item.value, Value::Table(_)) {
            section.error_at(item.at, "a value cannot be a table: search its keys");
            return None;
        }
        let text = tree::write_value(item);
        if values.contains(&text) {
            section.error_at(item.at, format!("the value {text} is listed twice"));
        }
        values.push(text);
    }
    Some(Domain::Values(values))
}

fn read_range(section: &mut Section<'_>, is_grid: bool) -> Option<Domain> {
    let (low, high) =
        (section.required("min", "the lowest value"), section.required("max", "the highest value"));
    let log = section.choice("scale", &SCALES).unwrap_or(false);
    let step = section.whole("step", 1..=MAX_EXACT);
    let points = section.whole_u32("points", 2..=MAX_VALUES as u32);
    let (low, high) = (low?, high?);
    let (min, max) = (section.as_number(low)?, section.as_number(high)?);
    if min >= max {
        section.error("min", format!("`min` is {min:?}, which is not below `max`, {max:?}"));
        return None;
    }
    if log && min <= 0.0 {
        section.error("min", format!("a \"log\" scale needs a `min` above 0, found {min:?}"));
        return None;
    }
    if let (&Value::Whole(min), &Value::Whole(max)) = (&low.value, &high.value) {
        let exact = -i128::from(MAX_EXACT)..=i128::from(MAX_EXACT);
        if !exact.contains(&min) || !exact.contains(&max) {
            section.error("min", "whole numbers above 2^53 cannot be searched");
            return None;
        }
        if points.is_some() {
            section.error("points", "a range of whole numbers has a `step` instead of `points`");
        }
        if log && step.is_some() {
            section.error("step", "`step` does not apply to a \"log\" scale");
        }
        let step = step.unwrap_or(1);
        // Exact, as checked above.
        let (min, max) = (min as i64, max as i64);
        let max = max - (max.abs_diff(min) % step) as i64;
        if max == min {
            section.error("step", format!("`step` is {step}, more than the range"));
            return None;
        }
        return Some(Domain::Whole { min, max, step, log });
    }
    if step.is_some() {
        section.error("step", "`step` is for whole numbers: write `min` and `max` without a point");
    }
    if is_grid && points.is_none() {
        section.error_at(section.at(), "a grid needs `points`: the number of values of this range");
    } else if !is_grid && points.is_some() {
        section.error("points", "`points` is for the algorithm \"grid\"");
    }
    Some(Domain::Real { min, max, log, points })
}

/// Resolves the job of `table` with values of each parameter, by `resolve`, and reports the errors at the parameters.
pub(super) fn check(
    spec: &SearchSpec,
    table: &Table,
    problems: &Problems<'_>,
    resolve: &dyn Fn(&Table, &Problems<'_>),
) {
    let mut plain = table.clone();
    plain.remove("search");
    shorten_terms(&mut plain);
    let most = MAX_CHECKED.min(MAX_CHECKED_BYTES / problems.text_bytes().max(1));
    let mut checked = 0;
    let mut places = Vec::new();
    if let Some(Value::Table(search)) = table.get("search").map(|node| &node.value)
        && let Some(Value::Table(parameters)) = search.get("parameters").map(|node| &node.value)
    {
        leaves(parameters, "", &mut places);
    }
    for parameter in &spec.parameters {
        let node = places.iter().find(|(key, ..)| *key == parameter.key).map(|(.., node)| *node);
        for (nth, value) in parameter.domain.checked().into_iter().enumerate() {
            checked += 1;
            if checked > most || problems.is_full() {
                return;
            }
            let text = parameter.text(value);
            let set = [format!("{}={text}", parameter.key)];
            let found = Problems::new(problems.path(), "", &set);
            let mut trial = plain.clone();
            trial.apply(&set[0], At::Set(0), &found);
            resolve(&trial, &found);
            let Err(error) = found.check() else { continue };
            let why = error.problems.first().map_or("", |problem| problem.message.as_str());
            let at = node.map_or(At::Offset(0), |node| place_of(node, nth));
            problems.error(at, format!("`{}` cannot be {text}: {why}", parameter.key));
            break;
        }
    }
}

/// The position of the `nth` checked value of a parameter.
fn place_of(node: &Node, nth: usize) -> At {
    let Value::Table(table) = &node.value else { return node.at };
    let end = if nth == 0 { "min" } else { "max" };
    match table.get("values").map(|values| &values.value) {
        Some(Value::List(items)) => items.get(nth).map_or(node.at, |item| item.at),
        _ => table.get(end).map_or(node.at, |end| end.at),
    }
}

/// Keeps one term of each vocabulary: no other key depends on its terms, of which there can be millions.
fn shorten_terms(table: &mut Table) {
    let Some(Value::Table(features)) = table.get_mut("features").map(|node| &mut node.value) else { return };
    for entry in &mut features.entries {
        if let Value::Table(feature) = &mut entry.node.value
            && let Some(Value::List(terms)) = feature.get_mut("terms").map(|node| &mut node.value)
        {
            terms.truncate(1);
        }
    }
}
