//! The filter of the data: `filter = [{ column = "day", op = ">=", value = "2026-11-01" }, ...]`.

use millstream_format::filter::{Comparison, Condition, Literal, Test};

use crate::section::Section;
use crate::tree::{Node, Value};

/// The values of `op`.
#[derive(Clone, Copy)]
enum Op {
    Compare(Comparison),
    In,
    IsNull,
    IsNotNull,
}

const OPS: [(&str, Op); 9] = [
    ("==", Op::Compare(Comparison::Equal)),
    ("!=", Op::Compare(Comparison::NotEqual)),
    ("<", Op::Compare(Comparison::Less)),
    ("<=", Op::Compare(Comparison::LessOrEqual)),
    (">", Op::Compare(Comparison::Greater)),
    (">=", Op::Compare(Comparison::GreaterOrEqual)),
    ("in", Op::In),
    ("is_null", Op::IsNull),
    ("is_not_null", Op::IsNotNull),
];

/// Reads the filter under `key` of `[data]`.
pub fn read(data: &mut Section<'_>, key: &'static str) -> Vec<Condition> {
    let Some(node) = data.node(key) else { return Vec::new() };
    let conditions = data.as_list(node, "conditions, like { column = \"day\", op = \">=\", value = 7 }");
    conditions.unwrap_or_default().iter().filter_map(|node| condition(data, node)).collect()
}

fn condition<'a>(data: &Section<'a>, node: &'a Node) -> Option<Condition> {
    let mut table = data.as_section(node, "a condition of a filter")?;
    let column = table.required_text("column", "the column to test").map(|text| text.text.to_owned());
    let op = table.required("op", "the comparison, such as \"==\"");
    let op = op.and_then(|op| table.as_choice(op, &OPS));
    let test = match op {
        Some(Op::Compare(op)) => {
            let value = table.required("value", "the value to compare with");
            value.and_then(|value| literal(&table, value)).map(|value| Test::Compare { op, value })
        }
        Some(Op::In) => table.required("value", "a list of values").and_then(|node| one_of(&table, node)),
        Some(op @ (Op::IsNull | Op::IsNotNull)) => {
            if table.node("value").is_some() {
                table.error("value", "`value` is not used by this `op`");
            }
            Some(if let Op::IsNull = op { Test::IsNull } else { Test::IsNotNull })
        }
        None => {
            table.node("value");
            None
        }
    };
    table.finish();
    Some(Condition { column: column?, test: test? })
}

fn one_of(table: &Section<'_>, node: &Node) -> Option<Test> {
    let items = table.as_list(node, "values")?;
    if items.is_empty() {
        table.error_at(node.at, "an empty list matches no row");
    }
    let values: Option<_> = items.iter().map(|item| literal(table, item)).collect();
    values.map(|values| Test::OneOf { values })
}

fn literal(table: &Section<'_>, node: &Node) -> Option<Literal> {
    match &node.value {
        Value::Text(text) => Some(Literal::Text(text.clone())),
        Value::Date(date) => Some(Literal::Text(date.to_string())),
        Value::Bool(value) => Some(Literal::Bool(*value)),
        Value::Whole(number) => match i64::try_from(*number) {
            Ok(number) => Some(Literal::Whole(number)),
            Err(_) => {
                table.error_at(node.at, format!("{number} does not fit in 64 bits with sign"));
                None
            }
        },
        Value::Real(_) => table.as_number(node).map(Literal::Number),
        other => {
            table.error_at(node.at, format!("expected a value to compare with, found {}", other.describe()));
            None
        }
    }
}
