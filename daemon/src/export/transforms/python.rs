//! Features as a module of Python, which reads their description as JSON when it is imported.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::Transforms;

/// The module.
const TEMPLATE: &str = include_str!("features.py");
/// The description in the module, which stands for the job's.
const PLACEHOLDER: &str = r#"{"job": "", "step": 0, "features": [], "missing": [], "types": {}}"#;

pub(super) fn write(transforms: &Transforms<'_>, out: &mut dyn Write) -> io::Result<()> {
    let Transforms { trained, job, analysis, scalings } = transforms;
    let (features, _) = super::super::features(job, analysis, trained, scalings, usize::MAX);
    let (before, after) = TEMPLATE.split_once(PLACEHOLDER).unwrap_or((TEMPLATE, ""));
    out.write_all(before.as_bytes())?;
    let of_job = [
        ("job", json!(job.name)),
        ("step", json!(trained.snapshot.step)),
        ("missing", json!(job.data.missing)),
        ("types", json!(transforms.types())),
    ];
    for (key, value) in of_job {
        let opening = if key == "job" { "{" } else { "" };
        writeln!(out, "{opening}\"{key}\": {},", literal(&value))?;
    }
    write!(out, "\"features\": [")?;
    for (place, feature) in features.iter().enumerate() {
        write!(out, "{}\n{}", if place == 0 { "" } else { "," }, literal(feature))?;
    }
    write!(out, "\n]}}{after}")
}

/// JSON in ASCII and without apostrophes, so that a raw string of Python holds it.
fn literal(value: &Value) -> String {
    let json = value.to_string();
    let mut literal = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() && character != '\'' && character != '\x7f' {
            literal.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(literal, "\\u{unit:04x}");
            }
        }
    }
    literal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_has_one_place_for_the_description() {
        assert_eq!(TEMPLATE.matches(PLACEHOLDER).count(), 1);
    }

    #[test]
    fn literals_are_ascii_without_apostrophes() {
        let value = json!(["it's", "ü\u{202e}", "😀", "\u{7f}\\\"\n"]);
        let text = literal(&value);
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'\''), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(value));
    }
}
