//! Files of the maximum size whose contents are chosen to make reading slow. Before there were limits, several took minutes
//! or hours; none has a limit of time here.

use std::fmt::Write;
use std::iter;

use millstream_document::problems::MAX_PROBLEMS;

use super::*;

/// The maximum size of a file that a daemon accepts.
const MAX_BYTES: usize = 1 << 20;

/// As many items as fit.
fn many(before: &str, mut item: impl FnMut(usize) -> String, after: &str) -> String {
    let mut text = before.to_owned();
    for nth in 0.. {
        let item = item(nth);
        if text.len() + item.len() + after.len() > MAX_BYTES {
            break;
        }
        text.push_str(&item);
    }
    text + after
}

/// `SOUND` with `section` filled with as many items as fit.
fn filled(from: &str, mut item: impl FnMut(usize) -> String) -> String {
    let (before, after) = SOUND.split_once(from).unwrap();
    many(before, &mut item, &format!("{from}{after}"))
}

#[test]
fn hostile_files_end_with_a_bounded_report() {
    let feature = "age = {";
    let list = "\"education\", \"both\"";
    let with_model = |features: String| {
        let names: String = (0..9_000).fold(String::new(), |mut names, nth| {
            let _ = write!(names, "\"f{nth}\", ");
            names
        });
        features.replace(list, &(names + list))
    };
    let files = [
        ("errors of syntax in lines", many("", |_| "x=\n".into(), "")),
        ("errors of syntax in a line", many("", |_| "=".into(), "")),
        ("errors of syntax within a line", many("x = [", |_| "a b,".into(), "]")),
        ("unknown keys", many("", |nth| format!("k{nth}=1\n"), "")),
        ("unknown tables", many("", |nth| format!("[k{nth}]\n"), "")),
        ("unknown keys of a section", filled("train = [", |nth| format!("k{nth}=1\n"))),
        ("features", filled(feature, |nth| format!("f{nth} = {{kind=\"hashed\",buckets=2}}\n"))),
        (
            "used features",
            with_model(filled(feature, |nth| format!("f{nth}={{kind=\"hashed\",buckets=2}}\n"))),
        ),
        ("wrong features", filled(feature, |nth| format!("f{nth} = {{kind=\"hashd\",bucket=2}}\n"))),
        (
            "crosses",
            filled(feature, |nth| {
                format!("f{nth} = {{kind=\"crossed\",columns=[\"f{}\",\"c\"],buckets=2}}\n", nth + 1)
            }),
        ),
        ("parts of a cross", filled("\"education\", \"job\"", |nth| format!("\"c{nth}\","))),
        ("names of no features", filled(list, |nth| format!("\"f{nth}\","))),
        ("a name listed again", filled(list, |_| "\"job\",".into())),
        ("boundaries", filled("18, 25.5", |nth| format!("{},", MAX_BYTES - nth))),
        ("nested lists", many("x = ", |_| "[".into(), "")),
        ("nested tables", many("x = ", |_| "{a=".into(), "")),
        ("a long dotted key", many("a", |_| ".a".into(), " = 1")),
        ("a long header", many("[a", |_| ".a".into(), "]")),
        ("a long key", many("", |_| "k".into(), " = 1")),
        ("tables of a list", many("", |_| "[[x]]\n".into(), "")),
        (
            "labels",
            SOUND.replace(
                "[label]\ncolumn = \"income\"\npositive = \">50K\"",
                &many("", |nth| format!("[labels.l{nth}]\ncolumn=\"c{nth}\"\n"), ""),
            ),
        ),
    ];
    for (what, text) in &files {
        assert!(text.len() > MAX_BYTES / 2, "{what}: {}", text.len());
        let problems = parse(text, &[]).map_or_else(|error| error.problems, |_| Vec::new());
        assert!(problems.len() <= MAX_PROBLEMS, "{what}: {}", problems.len());
    }
}

#[test]
fn hostile_overrides_end_with_a_bounded_report() {
    for set in [vec![""; MAX_BYTES], (0..200_000).map(|_| "a.b=1").collect(), vec!["nonsense"; 100_000]] {
        let problems = parse(SOUND, &set).unwrap_err().problems;
        assert!(!problems.is_empty() && problems.len() <= MAX_PROBLEMS, "{}", problems.len());
    }
    let deep = iter::repeat_n("a", 100_000).collect::<Vec<_>>().join(".");
    assert!(parse(SOUND, &[&format!("{deep}=1")]).is_err());
}
