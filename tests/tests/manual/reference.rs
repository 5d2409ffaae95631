//! The page of a job file's keys, generated from `examples/job-reference.toml`, which the tests of `millstream-job` keep
//! complete and true.
//!
//! Comments become prose, tables and keys become headings with anchors such as `#data.batch_size`, and keys with their
//! values become blocks of code. A key that the file shows at its default (`#key = value`) has a remark in its block.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use crate::page;

/// The generated page.
pub(crate) const PAGE: &str = "reference/job-file.md";

const REFERENCE: &str = include_str!("../../../examples/job-reference.toml");

const START: &str = "\
# Keys of a job file

<!-- Generated from examples/job-reference.toml: MILLSTREAM_RENEW=1 cargo test -p millstream-tests --test manual reference -->

Each key is shown with its default, which has the remark `# default`, or with an example. The file is TOML; relative paths
start in its directory. `millstream check` prints the plan of a job, and `--set section.key=value` overrides any key on
the command line. The same text as one file is `examples/job-reference.toml` in the repository and in the packages.

## Before all tables
";

/// Comments, then the keys or the table that they explain.
#[derive(Debug, Default)]
struct Item<'a> {
    /// Without the leading `# `.
    prose: Vec<&'a str>,
    /// The header of a table, `[data.validation]`.
    header: Option<&'a str>,
    /// Keys with values.
    keys: Vec<String>,
}

#[test]
fn reference_page_is_up_to_date() {
    let path = page::directory().join(PAGE);
    let wanted = render(REFERENCE);
    if std::env::var_os("MILLSTREAM_RENEW").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} is not what examples/job-reference.toml says: \
         run `MILLSTREAM_RENEW=1 cargo test -p millstream-tests --test manual reference`",
        path.display()
    );
}

/// The page.
fn render(reference: &str) -> String {
    // The first lines describe the file.
    let (_, text) = reference.split_once("\n\n").unwrap();
    let mut page = START.to_owned();
    let mut tables: BTreeSet<&str> = BTreeSet::new();
    let mut table = "";
    for item in items(text) {
        let Some(header) = item.header else {
            if !item.keys.is_empty() {
                heading_of_keys(&mut page, table, &item.keys);
            }
            prose(&mut page, &item.prose);
            code(&mut page, &item.keys);
            continue;
        };
        table = header.trim_matches(['[', ']']);
        let (top, _) = table.split_once('.').unwrap_or((table, ""));
        let is_variant = tables.contains(table);
        let is_first_of_group = top != table && !tables.contains(top);
        // There, all paragraphs but the last are about the whole group.
        let last = item.prose.iter().rposition(|line| line.is_empty()).map_or(0, |at| at + 1);
        let (before, own) = item.prose.split_at(if is_variant || is_first_of_group { last } else { 0 });
        if tables.insert(top) {
            write!(page, "\n<a id=\"{top}\"></a>\n\n## [{top}]\n").unwrap();
        }
        prose(&mut page, before);
        if is_variant {
            let kind = item.keys.first().and_then(|key| key.split('"').nth(1)).unwrap();
            write!(page, "\n<a id=\"{table}.{kind}\"></a>\n\n### Kind {kind}\n").unwrap();
        } else if tables.insert(table) {
            write!(page, "\n<a id=\"{table}\"></a>\n\n### [{table}]\n").unwrap();
        }
        prose(&mut page, own);
        code(&mut page, &item.keys);
    }
    page
}

/// The parts of the file.
fn items(text: &str) -> Vec<Item<'_>> {
    let mut items = vec![Item::default()];
    let mut blank = 0;
    for line in text.lines() {
        let was_blank = blank > 0;
        // Two empty lines end a table.
        if blank == 2 && !items.last().unwrap().prose.is_empty() {
            items.push(Item::default());
        }
        let shown =
            line.strip_prefix("#> ").or_else(|| (!line.starts_with('#') && !line.is_empty()).then_some(line));
        let default =
            line.strip_prefix('#').filter(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
        let last = items.last_mut().unwrap();
        let has_body = last.header.is_some() || !last.keys.is_empty();
        let is_header = |line: &&str| line.starts_with('[') && line.ends_with(']');
        if let Some(header) = shown.filter(is_header) {
            if has_body {
                items.push(Item::default());
            }
            items.last_mut().unwrap().header = Some(header);
        } else if let Some(key) = shown {
            if was_blank && has_body {
                items.push(Item::default());
            }
            items.last_mut().unwrap().keys.push(key.to_owned());
        } else if let Some(key) = default {
            last.keys.push(format!("{key}  # default"));
        } else if !line.is_empty() {
            if has_body {
                items.push(Item::default());
            } else if was_blank && !last.prose.is_empty() {
                last.prose.push("");
            }
            let text = line.strip_prefix("# ").unwrap_or_else(|| line.strip_prefix('#').unwrap());
            items.last_mut().unwrap().prose.push(text);
        }
        blank = if line.is_empty() { blank + 1 } else { 0 };
    }
    items
}

/// The heading of keys that are explained together.
fn heading_of_keys(page: &mut String, table: &str, keys: &[String]) {
    let names: Vec<&str> =
        keys.iter().filter_map(|key| key.split_once(" = ")).map(|(name, _)| name).collect();
    page.push('\n');
    for name in &names {
        let before = if table.is_empty() { String::new() } else { format!("{table}.") };
        writeln!(page, "<a id=\"{before}{name}\"></a>").unwrap();
    }
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let level = if table.contains('.') { "####" } else { "###" };
    write!(page, "\n{level} {}\n", names.join(", ")).unwrap();
}

/// Comments as paragraphs, lists and examples.
fn prose(page: &mut String, lines: &[&str]) {
    let (mut is_example, mut is_list) = (false, false);
    let start = lines.iter().position(|line| !line.is_empty()).unwrap_or(lines.len());
    let end = lines.iter().rposition(|line| !line.is_empty()).map_or(start, |last| last + 1);
    let lines = &lines[start..end];
    for (nth, line) in lines.iter().enumerate() {
        let (was_example, was_list) = (is_example, is_list);
        is_example = line.starts_with("    ")
            || was_example
                && line.is_empty()
                && lines[nth + 1..].first().is_some_and(|next| next.starts_with("    "));
        is_list = line.starts_with("- ") || was_list && line.starts_with("  ") && !is_example;
        if was_example && !is_example {
            page.push_str("```\n");
        }
        if nth == 0 || was_list && !is_list && !line.is_empty() {
            page.push('\n');
        }
        if is_example && !was_example {
            page.push_str("```toml\n");
        }
        page.push_str(if is_example { line.get(4..).unwrap_or_default() } else { line });
        page.push('\n');
    }
    if is_example {
        page.push_str("```\n");
    }
}

fn code(page: &mut String, keys: &[String]) {
    if !keys.is_empty() {
        write!(page, "\n```toml\n{}\n```\n", keys.join("\n")).unwrap();
    }
}

#[test]
fn a_reference_is_rendered() {
    let page = render(
        "# About the file.\n\n# The name.\nname = \"x\"\n\n\n[data]\n# Rows:\n# - one\n#   more\n# After.\n#rows = 1\n\n\
         # A table.\n#\n# Twice.\n#> [data.part]\n#> share = 0.1\n\n# Last.\n\n\n# All kinds.\n\n# One.\n[features.a]\nkind = \"k\"\n\n\
         [model]\n# Which.\nkind = \"m\"\n\n# Others.\n#\n# Linear.\n#> [model]\n#> kind = \"l\"\n",
    );
    let wanted = "\n<a id=\"name\"></a>\n\n### `name`\n\nThe name.\n\n```toml\nname = \"x\"\n```\n\n\
        <a id=\"data\"></a>\n\n## [data]\n\n<a id=\"data.rows\"></a>\n\n### `rows`\n\nRows:\n- one\n  more\n\nAfter.\n\n\
        ```toml\nrows = 1  # default\n```\n\n<a id=\"data.part\"></a>\n\n### [data.part]\n\nA table.\n\nTwice.\n\n\
        ```toml\nshare = 0.1\n```\n\nLast.\n\n<a id=\"features\"></a>\n\n## [features]\n\nAll kinds.\n\n\
        <a id=\"features.a\"></a>\n\n### [features.a]\n\nOne.\n\n```toml\nkind = \"k\"\n```\n\n<a id=\"model\"></a>\n\n\
        ## [model]\n\n<a id=\"model.kind\"></a>\n\n### `kind`\n\nWhich.\n\n```toml\nkind = \"m\"\n```\n\nOthers.\n\n\
        <a id=\"model.l\"></a>\n\n### Kind l\n\nLinear.\n\n```toml\nkind = \"l\"\n```\n";
    assert_eq!(page.strip_prefix(START).unwrap(), wanted);
}
