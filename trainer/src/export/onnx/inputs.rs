//! The inputs of an exported model, up to its first layers.
//!
//! Each feature is an input of the same name; the first dimension is the rows:
//!
//! | feature | input | absent |
//! |---|---|---|
//! | numeric | `double [rows, 1]`: the unscaled number | NaN |
//! | one id per row | `int64 [rows, 1]`: the id | the last id, or -1 |
//! | several ids per row | `int64 [rows, N]`: the ids, then -1 to the end of the row | all -1 |
//!
//! A multi-valued feature `X` with weights has a further input for them, `X_weights`, `float [rows, N]`, at
//! the positions of the ids; values at a -1 are ignored. (If a feature has that name, it keeps it, and the
//! weights are `X_weights_2`.)
//!
//! The graph scales numbers as in training: in double precision, rounded to fp32 last. Inputs in fp32 would
//! lose precision if the offset is much larger than the spread, as for a time in seconds. All numbers of a
//! model are scaled together, because a node costs more than the arithmetic of a row.

use std::collections::BTreeMap;

use millstream_batch::BatchSchema;

use super::graph::{Graph, Value, doubles, fixed, floats, int, named, rows};
use super::proto::DataType;
use crate::export::ExportError;

/// The scaling of a number: `y = (g(x) - shift) / divisor`, where `g` is the identity or the signed
/// logarithm, `sign(x) ln(1 + |x|)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberScale {
    /// Whether `g` is the logarithm.
    pub logarithm: bool,
    /// The subtrahend.
    pub shift: f64,
    /// The divisor.
    pub divisor: f64,
    /// The scaled value of an absent number; without it, the score is NaN.
    pub absent: Option<f32>,
}

/// The inputs of a graph.
pub(super) struct Inputs {
    /// All numbers that the model reads, scaled, `[B, D]`; `None` if it reads none.
    numbers: Option<Value>,
    /// The columns of `numbers`, by dense column of the schema.
    columns: BTreeMap<usize, i64>,
    ids: BTreeMap<String, Ids>,
}

/// The ids of a feature.
#[derive(Clone)]
pub(super) enum Ids {
    /// `[B]`
    Single(Value),
    /// Any number of ids per row.
    Several(SeveralIds),
}

/// A variable number of ids per row; `L` is the maximum of the batch.
#[derive(Clone)]
pub(super) struct SeveralIds {
    /// The ids, 0 at padding; `[B, L]`.
    pub(super) ids: Value,
    /// 1 at an id and 0 at padding; `[B, L, 1]`.
    pub(super) present: Value,
    /// The number of ids of each row, at least 1; `[B, 1]`.
    pub(super) count: Value,
    /// Their weights, 0 at padding, in double precision; `[B, L]`.
    pub(super) weights: Option<Value>,
}

impl Inputs {
    /// Adds inputs for those features of `schema` for which `is_read` returns true.
    pub(super) fn new(
        graph: &mut Graph,
        schema: &BatchSchema,
        scales: &BTreeMap<String, NumberScale>,
        is_read: impl Fn(&str) -> bool,
    ) -> Result<Self, ExportError> {
        let mut raw = Vec::new();
        let mut columns = BTreeMap::new();
        let read: Vec<_> = schema.dense.iter().enumerate().collect();
        let mut width = 0;
        for of_feature in read.chunk_by(|(_, a), (_, b)| {
            BatchSchema::feature_of(a) == BatchSchema::feature_of(b)
                && BatchSchema::feature_of(a) != a.as_str()
        }) {
            let Some(feature) = of_feature.first().map(|(_, name)| BatchSchema::feature_of(name)) else {
                continue;
            };
            if !is_read(feature) {
                continue;
            }
            let mut of_columns = Vec::with_capacity(of_feature.len());
            for &(column, name) in of_feature {
                let Some(&scale) = scales.get(name) else {
                    return Err(ExportError::NotScaled { feature: name.clone() });
                };
                columns.insert(column, width);
                width += 1;
                of_columns.push(scale);
            }
            let absent =
                if of_columns.iter().any(|scale| scale.absent.is_some()) { "; NaN if absent" } else { "" };
            let about = match of_feature.len() {
                1 => format!("The unscaled number{absent}"),
                _ => format!("The numbers of the vector{absent}"),
            };
            let shape = [rows(), fixed(of_feature.len() as i64)];
            raw.push((graph.input(feature, DataType::Double, &shape, about), of_columns));
        }
        let single = schema.ids.iter().filter(|feature| is_read(&feature.name)).map(|feature| {
            let last = feature.cardinality.saturating_sub(1);
            let about = format!("An id from 0 to {last}; {last} means absent");
            let shape = [rows(), fixed(1)];
            (feature.name.as_str(), graph.input(&feature.name, DataType::Int64, &shape, about))
        });
        let single: Vec<_> = single.collect();
        let several = schema.ragged.iter().filter(|feature| is_read(&feature.name)).map(|feature| {
            let (name, last) = (feature.name.as_str(), feature.cardinality.saturating_sub(1));
            let most = feature.maximum;
            let about =
                format!("Ids from 0 to {last}, at most {most} per row; shorter rows are padded with -1");
            let shape = [rows(), named(format!("ids of {name}"))];
            (feature, graph.input(name, DataType::Int64, &shape, about))
        });
        let several: Vec<_> = several.collect();
        let several = several.into_iter().map(|(feature, ids)| {
            let name = feature.name.as_str();
            let shape = [rows(), named(format!("ids of {name}"))];
            let about = format!("The weight of each id of {name}");
            let input = format!("{name}_weights");
            (name, ids, feature.weighted.then(|| graph.input(&input, DataType::Float, &shape, about)))
        });
        let several: Vec<_> = several.collect();

        // All inputs get their names before any other tensor.
        let numbers = (!raw.is_empty()).then(|| scaled(graph, &raw));
        let mut ids = BTreeMap::new();
        for (name, input) in single {
            let value = graph.along("Squeeze", &input, 1, &format!("{name}/ids"));
            ids.insert(name.to_owned(), Ids::Single(value));
        }
        for (name, input, weights) in several {
            ids.insert(name.to_owned(), Ids::Several(SeveralIds::new(graph, name, &input, weights.as_ref())));
        }
        Ok(Self { numbers, columns, ids })
    }

    /// Dense columns of the schema, `[B, D]`; `None` for no columns.
    pub(super) fn numbers(&self, graph: &mut Graph, columns: &[usize], name: &str) -> Option<Value> {
        let all = self.numbers.as_ref().filter(|_| !columns.is_empty())?;
        let places: Vec<i64> =
            columns.iter().filter_map(|column| self.columns.get(column).copied()).collect();
        if places.iter().copied().eq(0..self.columns.len() as i64) {
            return Some(all.clone());
        }
        let places = graph.list(&format!("{name}/columns"), &places);
        Some(graph.node_with("Gather", &[all, &places], &[int("axis", 1)], name))
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
        let flags = graph.cast(&is_present, DataType::Float, &format!("{name}/flags"));
        let present = graph.along("Unsqueeze", &flags, 2, &format!("{name}/present"));
        let sum = graph.sum(&flags, true, &format!("{name}/ids_of_row"));
        let one = graph.number(&format!("{name}/one"), 1.0);
        let count = graph.node("Max", &[&sum, &one], &format!("{name}/count"));
        let weights = weights.map(|weights| {
            let none = graph.number(&format!("{name}/no_weight"), 0.0);
            let of_ids = [&is_present, weights, &none];
            let of_ids = graph.node("Where", &of_ids, &format!("{name}/weights_of_ids"));
            graph.cast(&of_ids, DataType::Double, &format!("{name}/weights"))
        });
        Self { ids, present, count, weights }
    }
}

/// All numbers, concatenated and scaled; `[B, D]`.
fn scaled(graph: &mut Graph, raw: &[(Value, Vec<NumberScale>)]) -> Value {
    let scales = || raw.iter().flat_map(|(_, scales)| scales);
    let width = [scales().count()];
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
    value = graph.cast(&value, DataType::Float, "numbers/scaled");
    if scales().any(|scale| scale.absent.is_some()) {
        let numbers = floats(scales().map(|scale| scale.absent.unwrap_or(f32::NAN)));
        let absent = graph.constant("numbers/of_absent", &width, DataType::Float, numbers);
        let is_absent = graph.node("IsNaN", &[&raw], "numbers/is_absent");
        value = graph.node("Where", &[&is_absent, &absent, &value], "numbers");
    }
    value
}

/// Applies the signed logarithm to the columns for which `is_log` is true; copies the others.
fn logarithm(graph: &mut Graph, value: &Value, is_log: &[bool]) -> Value {
    let one = graph.double("numbers/one", 1.0);
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
