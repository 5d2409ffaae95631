//! Builds a graph: unique names, nodes in execution order, and each constant list only once.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::proto::{
    AttributeProto, AttributeType, DataType, DimensionProto, NodeProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto,
};

/// The name of the dimension of the rows.
pub(super) const ROWS: &str = "rows";

/// A tensor of the graph, identified by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value(String);

/// A constant tensor.
pub(super) struct Constant {
    pub(super) name: String,
    pub(super) dims: Vec<i64>,
    pub(super) kind: DataType,
    /// Little-endian.
    pub(super) data: Bytes,
}

/// An attribute's value.
pub(super) enum Attribute {
    Float(f32),
    Int(i64),
    Ints(Vec<i64>),
}

/// A dimension of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Dimension {
    Fixed(i64),
    /// A dimension of any size; equal names mean equal sizes.
    Named(String),
}

/// The graph.
#[derive(Default)]
pub(super) struct Graph {
    pub(super) nodes: Vec<NodeProto>,
    pub(super) constants: Vec<Constant>,
    pub(super) inputs: Vec<ValueInfoProto>,
    pub(super) outputs: Vec<ValueInfoProto>,
    taken: BTreeSet<String>,
    /// The integer lists that are constants already.
    lists: BTreeMap<Vec<i64>, Value>,
}

impl Graph {
    /// Adds an input.
    pub(super) fn input(&mut self, name: &str, kind: DataType, shape: &[Dimension], about: String) -> Value {
        let name = self.unique(name);
        self.inputs.push(port(&name, kind, shape, about));
        Value(name)
    }

    /// Makes the output of a single-output node an output of the graph.
    pub(super) fn output(&mut self, value: &Value, shape: &[Dimension], about: String) {
        self.outputs.push(port(&value.0, DataType::Float, shape, about));
    }

    /// Adds a node that applies operator `op` to `inputs`. Its name is `name`, with a suffix if that is
    /// taken.
    pub(super) fn node(&mut self, op: &str, inputs: &[&Value], name: &str) -> Value {
        self.node_with(op, inputs, &[], name)
    }

    /// Like `node`, with attributes.
    pub(super) fn node_with(
        &mut self,
        op: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute)],
        name: &str,
    ) -> Value {
        let name = self.unique(name);
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|input| input.0.clone()).collect(),
            output: vec![name.clone()],
            name: name.clone(),
            op_type: op.to_owned(),
            attribute: attributes.iter().map(|(name, value)| attribute(name, value)).collect(),
        });
        Value(name)
    }

    /// Adds a constant. Its name is `name`, with a suffix if that is taken.
    pub(super) fn constant(&mut self, name: &str, dims: &[usize], kind: DataType, data: Bytes) -> Value {
        let name = self.unique(name);
        // Sizes of tensors in memory fit.
        let dims = dims.iter().map(|&dim| dim as i64).collect();
        self.constants.push(Constant { name: name.clone(), dims, kind, data });
        Value(name)
    }

    /// A list of integers, `[n]`.
    pub(super) fn list(&mut self, name: &str, numbers: &[i64]) -> Value {
        if let Some(value) = self.lists.get(numbers) {
            return value.clone();
        }
        let data: Bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let value = self.constant(name, &[numbers.len()], DataType::Int64, data);
        self.lists.insert(numbers.to_vec(), value.clone());
        value
    }

    /// Concatenates `values` along their columns.
    pub(super) fn beside(&mut self, values: &[&Value], name: &str) -> Value {
        match values {
            [value] => (*value).clone(),
            values => self.node_with("Concat", values, &[("axis", Attribute::Int(1))], name),
        }
    }

    fn unique(&mut self, name: &str) -> String {
        let mut unique = name.to_owned();
        let mut number = 1;
        while !self.taken.insert(unique.clone()) {
            number += 1;
            unique = format!("{name}_{number}");
        }
        unique
    }
}

/// Floats as a constant's data.
pub(super) fn floats(numbers: impl IntoIterator<Item = f32>) -> Bytes {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Doubles as a constant's data.
pub(super) fn doubles(numbers: impl IntoIterator<Item = f64>) -> Bytes {
    numbers.into_iter().flat_map(f64::to_le_bytes).collect()
}

fn attribute(name: &str, value: &Attribute) -> AttributeProto {
    let none = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    match value {
        Attribute::Float(value) => {
            AttributeProto { f: Some(*value), r#type: AttributeType::Float.into(), ..none }
        }
        Attribute::Int(value) => {
            AttributeProto { i: Some(*value), r#type: AttributeType::Int.into(), ..none }
        }
        Attribute::Ints(values) => {
            AttributeProto { ints: values.clone(), r#type: AttributeType::Ints.into(), ..none }
        }
    }
}

fn port(name: &str, kind: DataType, shape: &[Dimension], about: String) -> ValueInfoProto {
    let dim = shape.iter().map(|dimension| match dimension {
        Dimension::Fixed(size) => DimensionProto { dim_value: Some(*size), dim_param: None },
        Dimension::Named(name) => DimensionProto { dim_value: None, dim_param: Some(name.clone()) },
    });
    let shape = Some(TensorShapeProto { dim: dim.collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: kind.into(), shape });
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }), doc_string: about }
}
