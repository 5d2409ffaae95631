//! Builds a graph: unique names, nodes in execution order, and each constant list only once.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::proto::{
    AttributeProto, AttributeType, DataType, DimensionProto, GraphProto, NodeProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};

/// A tensor of the graph, identified by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value(String);

/// The graph.
#[derive(Default)]
pub(super) struct Graph {
    pub(super) proto: GraphProto,
    taken: BTreeSet<String>,
    /// The integer lists that are constants already.
    lists: BTreeMap<Vec<i64>, Value>,
}

impl Graph {
    /// Adds an input.
    pub(super) fn input(
        &mut self,
        name: &str,
        kind: DataType,
        shape: &[DimensionProto],
        about: String,
    ) -> Value {
        let name = self.unique(name);
        self.proto.input.push(port(&name, kind, shape, about));
        Value(name)
    }

    /// Makes the output of a single-output node an output of the graph.
    pub(super) fn output(&mut self, value: &Value, shape: &[DimensionProto], about: String) {
        self.proto.output.push(port(&value.0, DataType::Float, shape, about));
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
        attributes: &[AttributeProto],
        name: &str,
    ) -> Value {
        let name = self.unique(name);
        self.proto.node.push(NodeProto {
            input: inputs.iter().map(|input| input.0.clone()).collect(),
            output: vec![name.clone()],
            name: name.clone(),
            op_type: op.to_owned(),
            attribute: attributes.to_vec(),
        });
        Value(name)
    }

    /// Adds a node that applies operator `op` to `value` along an axis.
    pub(super) fn along(&mut self, op: &str, value: &Value, axis: i64, name: &str) -> Value {
        let axes = self.list(&format!("axis.{axis}"), &[axis]);
        self.node(op, &[value, &axes], name)
    }

    /// The sums over axis 1, whose size becomes 1 if `keep` is true; otherwise it is removed.
    pub(super) fn sum(&mut self, value: &Value, keep: bool, name: &str) -> Value {
        let axes = self.list("axis.1", &[1]);
        self.node_with("ReduceSum", &[value, &axes], &[int("keepdims", keep.into())], name)
    }

    /// Converts `value` to another type.
    pub(super) fn cast(&mut self, value: &Value, kind: DataType, name: &str) -> Value {
        self.node_with("Cast", &[value], &[int("to", kind as i64)], name)
    }

    /// Adds a constant. Its name is `name`, with a suffix if that is taken.
    pub(super) fn constant(&mut self, name: &str, dims: &[usize], kind: DataType, data: Bytes) -> Value {
        let name = self.unique(name);
        // Sizes of tensors in memory fit.
        let dims = dims.iter().map(|&dim| dim as i64).collect();
        let (data_type, raw_data) = (kind.into(), Some(data));
        let tensor = TensorProto { name: name.clone(), dims, data_type, raw_data, ..TensorProto::default() };
        self.proto.initializer.push(tensor);
        Value(name)
    }

    /// A number, `[1]`.
    pub(super) fn number(&mut self, name: &str, number: f32) -> Value {
        self.constant(name, &[1], DataType::Float, floats([number]))
    }

    /// A double, `[1]`.
    pub(super) fn double(&mut self, name: &str, number: f64) -> Value {
        self.constant(name, &[1], DataType::Double, doubles([number]))
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
            values => self.node_with("Concat", values, &[int("axis", 1)], name),
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

/// An attribute: a float.
pub(super) fn float(name: &str, number: f32) -> AttributeProto {
    let (name, r#type) = (name.to_owned(), AttributeType::Float.into());
    AttributeProto { name, f: Some(number), r#type, ..AttributeProto::default() }
}

/// An attribute: an integer.
pub(super) fn int(name: &str, number: i64) -> AttributeProto {
    let (name, r#type) = (name.to_owned(), AttributeType::Int.into());
    AttributeProto { name, i: Some(number), r#type, ..AttributeProto::default() }
}

/// An attribute: integers.
pub(super) fn ints(name: &str, numbers: &[i64]) -> AttributeProto {
    let (name, r#type) = (name.to_owned(), AttributeType::Ints.into());
    AttributeProto { name, ints: numbers.to_vec(), r#type, ..AttributeProto::default() }
}

/// A dimension of an input or output: of this size.
pub(super) fn fixed(size: impl Into<i64>) -> DimensionProto {
    DimensionProto { dim_value: Some(size.into()), dim_param: None }
}

/// A dimension of any size; equal names mean equal sizes.
pub(super) fn named(name: impl Into<String>) -> DimensionProto {
    DimensionProto { dim_value: None, dim_param: Some(name.into()) }
}

/// The dimension of the rows.
pub(super) fn rows() -> DimensionProto {
    named("rows")
}

fn port(name: &str, kind: DataType, shape: &[DimensionProto], about: String) -> ValueInfoProto {
    let shape = Some(TensorShapeProto { dim: shape.to_vec() });
    let tensor_type = Some(TensorTypeProto { elem_type: kind.into(), shape });
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }), doc_string: about }
}
