//! What goes into an exported model, up to where its layers begin.
//!
//! Each feature is an input of its name, with the rows first:
//!
//! | feature | input | absent |
//! |---|---|---|
//! | numeric | `double [rows, 1]`: the number as it is in the data | NaN |
//! | one id a row | `int64 [rows, 1]`: the id | the last id, which -1 stands for as well |
//! | several ids a row | `int64 [rows, N]`: the ids, then -1 to the end of the row | all -1 |
//!
//! A feature `X` of several ids with weights has these in a further input, `X_weights`, `float [rows, N]`: each beside
//! its id, and anything beside -1. (If there is a feature of that name, it keeps it, and the weights are `X_weights_2`.)
//!
//! Numbers are scaled by the graph as they were in training, in double precision and rounded to float32 last: an
//! offset much larger than the spread (a time in seconds) would lose all that matters if it came as float32. All
//! of a model's numbers are scaled at once, since a node costs more than a row's arithmetic.

use std::collections::BTreeMap;

use millstream_batch::BatchSchema;

use super::graph::{Attribute, Dimension, Graph, ROWS, Value, doubles, floats};
use super::proto::DataType;
use crate::export::ExportError;

/// How a number is scaled: `y = (g(x) - shift) / divisor`, where `g` is the identity or the signed logarithm,
/// `ln(1 + x)` mirrored below 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberScale {
    /// Whether `g` is the logarithm.
    pub logarithm: bool,
    /// What is subtracted.
    pub shift: f64,
    /// What is divided by.
    pub divisor: f64,
    /// What an absent number becomes, scaled; without it the score is not a number.
    pub absent: Option<f32>,
}

/// The inputs of a graph.
pub(super) struct Inputs {
    /// All numbers that the model reads, scaled, `[B, D]`; none without any.
    numbers: Option<Value>,
    /// Where a dense column of the schema is in those.
    columns: BTreeMap<usize, i64>,
    ids: BTreeMap<String, Ids>,
}

/// The ids of a feature.
#[derive(Clone)]
pub(super) enum Ids {
    /// `[B]`
    Single(Value),
    /// Any number a row.
    Several(SeveralIds),
}

/// Ids of any number a row; `L` is the most that a row of the batch has.
#[derive(Clone)]
pub(super) struct SeveralIds {
    /// Those that are no padding, and 0 elsewhere; `[B, L]`.
    pub(super) ids: Value,
    /// 1 where there is an id, and 0 elsewhere; `[B, L, 1]`.
    pub(super) present: Value,
    /// How many a row has, and 1 where it has none; `[B, 1]`.
    pub(super) count: Value,
    /// Their weights, and 0 elsewhere, in double precision; `[B, L]`.
    pub(super) weights: Option<Value>,
}

impl Inputs {
    /// Makes inputs of those features of `schema` that `is_read` tells of.
    pub(super) fn new(
        graph: &mut Graph,
        schema: &BatchSchema,
        scales: &BTreeMap<String, NumberScale>,
        is_read: impl Fn(&str) -> bool,
    ) -> Result<Self, ExportError> {
        let mut raw = Vec::new();
        let mut columns = BTreeMap::new();
        let read = schema.dense.iter().enumerate().filter(|(_, name)| is_read(name));
        for (column, name) in read {
            let Some(&scale) = scales.get(name) else {
                return Err(ExportError::NotScaled { feature: name.clone() });
            };
            let absent = if scale.absent.is_some() { "; NaN where it is absent" } else { "" };
            let about = format!("The number, as it is in the data{absent}");
            columns.insert(column, raw.len() as i64);
            raw.push((graph.input(name, DataType::Double, &[rows(), Dimension::Fixed(1)], about), scale));
        }
        let single = schema.ids.iter().filter(|feature| is_read(&feature.name)).map(|feature| {
            let last = feature.cardinality.saturating_sub(1);
            let about = format!("An id from 0 to {last}, which is that of an absent value");
            let shape = [rows(), Dimension::Fixed(1)];
            (feature.name.as_str(), graph.input(&feature.name, DataType::Int64, &shape, about))
        });
        let single: Vec<_> = single.collect();
        let several = schema.ragged.iter().filter(|feature| is_read(&feature.name)).map(|feature| {
            let (name, last) = (feature.name.as_str(), feature.cardinality.saturating_sub(1));
            let most = feature.maximum;
            let about =
                format!("Ids from 0 to {last}, at most {most} a row; a row that has fewer ends in -1");
            let shape = [rows(), Dimension::Named(format!("ids of {name}"))];
            (feature, graph.input(name, DataType::Int64, &shape, about))
        });
        let several: Vec<_> = several.collect();
        let several = several.into_iter().map(|(feature, ids)| {
            let name = feature.name.as_str();
            let shape = [rows(), Dimension::Named(format!("ids of {name}"))];
            let about = format!("What each id of {name} counts for");
            let input = format!("{name}_weights");
            (name, ids, feature.weighted.then(|| graph.input(&input, DataType::Float, &shape, about)))
        });
        let several: Vec<_> = several.collect();

        // All inputs have their names before anything else takes one.
        let numbers = (!raw.is_empty()).then(|| scaled(graph, &raw));
        let mut ids = BTreeMap::new();
        for (name, input) in single {
            let axes = graph.list("axis.1", &[1]);
            let value = graph.node("Squeeze", &[&input, &axes], &format!("{name}/ids"));
            ids.insert(name.to_owned(), Ids::Single(value));
        }
        for (name, input, weights) in several {
            ids.insert(name.to_owned(), Ids::Several(SeveralIds::new(graph, name, &input, weights.as_ref())));
        }
        Ok(Self { numbers, columns, ids })
    }

    /// Dense columns of the schema, `[B, D]`; none of none.
    pub(super) fn numbers(&self, graph: &mut Graph, columns: &[usize], name: &str) -> Option<Value> {
        let all = self.numbers.as_ref().filter(|_| !columns.is_empty())?;
        let places: Vec<i64> =
            columns.iter().filter_map(|column| self.columns.get(column).copied()).collect();
        if places.iter().copied().eq(0..self.columns.len() as i64) {
            return Some(all.clone());
        }
        let places = graph.list(&format!("{name}/columns"), &places);
        Some(graph.node_with("Gather", &[all, &places], &[("axis", Attribute::Int(1))], name))
    }

    /// The ids of a feature.
    pub(super) fn ids(&self, feature: &str) -> Option<Ids> {
        self.ids.get(feature).cloned()
    }
}

impl SeveralIds {
    fn new(graph: &mut Graph, name: &str, input: &Value, weights: Option<&Value>) -> Self {
        let zero = graph.list("zero", &[0]);
        let ids = graph.node("Max", &[input, &zero], &format!("{name}/ids"));
        let is_present = graph.node("GreaterOrEqual", &[input, &zero], &format!("{name}/is_present"));
        let to_float = [("to", Attribute::Int(DataType::Float as i64))];
        let flags = graph.node_with("Cast", &[&is_present], &to_float, &format!("{name}/flags"));
        let axes = graph.list("axis.2", &[2]);
        let present = graph.node("Unsqueeze", &[&flags, &axes], &format!("{name}/present"));
        let axes = graph.list("axis.1", &[1]);
        let keep = [("keepdims", Attribute::Int(1))];
        let sum = graph.node_with("ReduceSum", &[&flags, &axes], &keep, &format!("{name}/ids_of_row"));
        let one = graph.constant(&format!("{name}/one"), &[1], DataType::Float, floats([1.0]));
        let count = graph.node("Max", &[&sum, &one], &format!("{name}/count"));
        let weights = weights.map(|weights| {
            let none = graph.constant(&format!("{name}/no_weight"), &[1], DataType::Float, floats([0.0]));
            let of_ids = [&is_present, weights, &none];
            let of_ids = graph.node("Where", &of_ids, &format!("{name}/weights_of_ids"));
            let to_double = [("to", Attribute::Int(DataType::Double as i64))];
            graph.node_with("Cast", &[&of_ids], &to_double, &format!("{name}/weights"))
        });
        Self { ids, present, count, weights }
    }
}

/// All numbers side by side, scaled; `[B, D]`.
fn scaled(graph: &mut Graph, raw: &[(Value, NumberScale)]) -> Value {
    let scales = || raw.iter().map(|(_, scale)| scale);
    let width = [raw.len()];
    let raw: Vec<&Value> = raw.iter().map(|(value, _)| value).collect();
    let raw = graph.beside(&raw, "numbers/raw");
    let mut value = raw.clone();
    if scales().any(|scale| scale.logarithm) {
        value = logarithm(graph, &value, &scales().map(|scale| scale.logarithm).collect::<Vec<_>>());
    }
    if scales().any(|scale| scale.shift != 0.0 || scale.divisor != 1.0) {
        let constant =
            |graph: &mut Graph, name, numbers| graph.constant(name, &width, DataType::Double, numbers);
        let shift = constant(graph, "numbers/shift", doubles(scales().map(|scale| scale.shift)));
        let divisor = constant(graph, "numbers/divisor", doubles(scales().map(|scale| scale.divisor)));
        value = graph.node("Sub", &[&value, &shift], "numbers/shifted");
        value = graph.node("Div", &[&value, &divisor], "numbers/divided");
    }
    let to_float = [("to", Attribute::Int(DataType::Float as i64))];
    value = graph.node_with("Cast", &[&value], &to_float, "numbers/scaled");
    if scales().any(|scale| scale.absent.is_some()) {
        let numbers = floats(scales().map(|scale| scale.absent.unwrap_or(f32::NAN)));
        let absent = graph.constant("numbers/of_absent", &width, DataType::Float, numbers);
        let is_absent = graph.node("IsNaN", &[&raw], "numbers/is_absent");
        value = graph.node("Where", &[&is_absent, &absent, &value], "numbers");
    }
    value
}

/// The signed logarithm of those columns that `is_log` tells of; the others as they are.
fn logarithm(graph: &mut Graph, value: &Value, is_log: &[bool]) -> Value {
    let one = graph.constant("numbers/one", &[1], DataType::Double, doubles([1.0]));
    let size = graph.node("Abs", &[value], "numbers/size");
    let above = graph.node("Add", &[&size, &one], "numbers/one_and_size");
    let log = graph.node("Log", &[&above], "numbers/log_of_size");
    let sign = graph.node("Sign", &[value], "numbers/sign");
    let log = graph.node("Mul", &[&log, &sign], "numbers/log");
    if is_log.iter().all(|&is_log| is_log) {
        return log;
    }
    let flags = is_log.iter().map(|&is_log| u8::from(is_log)).collect();
    let is_log = graph.constant("numbers/is_log", &[is_log.len()], DataType::Bool, flags);
    graph.node("Where", &[&is_log, &log, value], "numbers/log_or_raw")
}

fn rows() -> Dimension {
    Dimension::Named(ROWS.to_owned())
}
