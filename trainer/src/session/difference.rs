//! The first difference between a checkpoint's settings and the current ones.

use serde::Serialize;
use serde_json::Value;

/// Describes the first difference between `theirs` (a checkpoint's) and `ours`; `None` if they are equal.
/// `name` is the path of the values.
pub(super) fn first<T: Serialize>(name: &str, theirs: &T, ours: &T) -> Option<String> {
    between(name, &document(theirs), &document(ours))
}

/// Converts through text, in which fp32 numbers are as short as a person wrote them.
fn document<T: Serialize>(value: &T) -> Value {
    let text = serde_json::to_string(value).expect("specs and schemas have string keys");
    serde_json::from_str(&text).expect("valid JSON, just written")
}

fn between(name: &str, theirs: &Value, ours: &Value) -> Option<String> {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            let keys = theirs.keys().chain(ours.keys().filter(|key| !theirs.contains_key(*key)));
            keys.map(|key| (format!("{name}.{key}"), theirs.get(key), ours.get(key)))
                .find_map(|(name, theirs, ours)| between_items(&name, theirs, ours))
        }
        (Value::Array(theirs), Value::Array(ours)) => (0..theirs.len().max(ours.len()))
            .find_map(|i| between_items(&format!("{name}[{i}]"), theirs.get(i), ours.get(i))),
        _ if theirs == ours => None,
        _ => Some(format!("{name} is {theirs} in the checkpoint and {ours} here")),
    }
}

fn between_items(name: &str, theirs: Option<&Value>, ours: Option<&Value>) -> Option<String> {
    match (theirs, ours) {
        (Some(theirs), Some(ours)) => between(name, theirs, ours),
        (Some(theirs), None) => Some(format!("{name} is {theirs} in the checkpoint and absent here")),
        (None, Some(ours)) => Some(format!("{name} is absent in the checkpoint and {ours} here")),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::first;

    #[test]
    fn the_first_difference_is_named() {
        let ours = json!({"kind": "a", "hidden": [100, 50], "rate": 0.1});
        let cases = [
            (ours.clone(), None),
            (
                json!({"kind": "a", "hidden": [100, 60], "rate": 0.2}),
                Some("model.hidden[1] is 60 in the checkpoint and 50 here"),
            ),
            (
                json!({"kind": "a", "hidden": [100], "rate": 0.1}),
                Some("model.hidden[1] is absent in the checkpoint and 50 here"),
            ),
            (
                json!({"kind": "a", "hidden": [100, 50], "rate": 0.1, "beta": 1}),
                Some("model.beta is 1 in the checkpoint and absent here"),
            ),
            (
                json!({"kind": "b", "hidden": [100, 50], "rate": 0.1}),
                Some("model.kind is \"b\" in the checkpoint and \"a\" here"),
            ),
        ];
        for (theirs, expected) in cases {
            assert_eq!(first("model", &theirs, &ours).as_deref(), expected);
        }
        assert_eq!(
            first("rate", &0.1_f32, &0.2_f32).as_deref(),
            Some("rate is 0.1 in the checkpoint and 0.2 here")
        );
    }
}
