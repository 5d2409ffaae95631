//! The file of `convert --schema`: types, lists and new names of columns, as TOML.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, anyhow};
use millstream_tools::typed::Kind;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use crate::arguments::ColumnChoice;
use crate::failure::Failure;

/// A file of more bytes describes no columns.
const MAX_BYTES: u64 = 16 << 20;

/// What a schema file says about a column.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Column {
    #[serde(default, rename = "type", deserialize_with = "kind")]
    kind: Option<Kind>,
    list: Option<String>,
    rename: Option<String>,
}

/// Adds the columns of the schema file at `path` to `choice`, whose own settings come first.
pub(super) fn add(path: &Path, choice: &mut ColumnChoice) -> Result<(), Failure> {
    let text = read(path).with_context(|| format!("schema file {}", path.display()))?;
    let columns = parse(&text).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
    for (name, Column { kind, list, rename }) in columns {
        let is_set = |pairs: &[(String, String)]| pairs.iter().any(|(other, _)| *other == name);
        if let Some(kind) = kind.filter(|_| choice.kinds.iter().all(|(other, _)| *other != name)) {
            choice.kinds.push((name.clone(), kind));
        }
        if let Some(list) = list.filter(|_| !is_set(&choice.separators)) {
            choice.separators.push((name.clone(), list));
        }
        if let Some(rename) = rename.filter(|_| !is_set(&choice.rename)) {
            choice.rename.push((name, rename));
        }
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > MAX_BYTES {
        return Err(anyhow!("has {bytes} bytes, more than {MAX_BYTES}"));
    }
    Ok(std::fs::read_to_string(path)?)
}

fn parse(text: &str) -> Result<BTreeMap<String, Column>, toml::de::Error> {
    let columns: BTreeMap<String, Entry> = toml::from_str(text)?;
    Ok(columns.into_iter().map(|(name, Entry(column))| (name, column)).collect())
}

/// A column: its type, or a table.
struct Entry(Column);

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Entry;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a type such as \"integer\", or a table of `type`, `list` and `rename`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Entry, E> {
                Ok(Entry(Column { kind: Some(text.parse().map_err(E::custom)?), ..Column::default() }))
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Entry, M::Error> {
                Column::deserialize(MapAccessDeserializer::new(map)).map(Entry)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Kind>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn choice() -> ColumnChoice {
        ColumnChoice {
            select: None,
            rename: Vec::new(),
            schema: None,
            kinds: vec![("zip".to_owned(), "integer".parse().unwrap())],
            separators: Vec::new(),
            skip_bad_lines: false,
        }
    }

    #[test]
    fn columns_are_added_to_those_of_the_command_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("schema.toml");
        let text = "zip = \"text\"\nday = \"date:%d.%m.%Y\"\n\
                    \"user tags\" = { type = \"text\", list = \"|\", rename = \"tags\" }\n[price]\nrename = \"cost\"\n";
        std::fs::write(&path, text).unwrap();
        let mut choice = choice();
        add(&path, &mut choice).unwrap();
        let kinds: Vec<_> = choice.kinds.iter().map(|(name, kind)| (name.as_str(), kind.clone())).collect();
        let kind = |text: &str| text.parse::<Kind>().unwrap();
        let expected =
            [("zip", kind("integer")), ("day", kind("date:%d.%m.%Y")), ("user tags", kind("text"))];
        assert_eq!(kinds, expected);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(choice.separators, [pair("user tags", "|")]);
        assert_eq!(choice.rename, [pair("price", "cost"), pair("user tags", "tags")]);
    }

    #[test]
    fn mistakes_have_a_line() {
        for (text, expected) in [
            ("a = \"integer\"\nb = \"colour\"", ["line 2", "unknown kind `colour`"]),
            ("a = { type = \"integer\", seperator = \"|\" }", ["line 1", "unknown field `seperator`"]),
            ("a = 7", ["line 1", "a type such as \"integer\""]),
            ("a = \"integer:%d\"", ["line 1", "a layout is for date and timestamp"]),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(expected.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
        let missing = add(Path::new("no/where.toml"), &mut choice()).unwrap_err();
        assert!(missing.to_string().contains("schema file no/where.toml"), "{missing}");
    }
}
