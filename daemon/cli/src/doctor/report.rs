//! Printing of findings: as lines while they arrive, or as one JSON document at the end.

use std::io::{IsTerminal, Write};

use serde::Serialize;

use super::finding::{Finding, Mark};
use crate::context::Context;
use crate::failure::Failure;
use crate::printable::printable;
use crate::screen::output_width;
use crate::table::folded;

/// The width of marks, and of the names of checks.
const MARK: usize = 7;
const CHECK: usize = 15;

/// Where the text of a finding begins.
const INDENT: usize = MARK + CHECK + 2 * 2;

/// Narrower columns are not worth folding into.
const MIN_FOLDED: usize = 24;

/// The findings so far.
pub(crate) struct Report<'a> {
    context: &'a Context,
    has_colours: bool,
    findings: Vec<Finding>,
}

/// The document of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    checks: &'a [Finding],
    summary: Summary,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Summary {
    ok: usize,
    warn: usize,
    fail: usize,
    skipped: usize,
}

impl<'a> Report<'a> {
    pub(crate) fn new(context: &'a Context) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let has_colours = std::io::stdout().is_terminal() && !no_color;
        Self { context, has_colours, findings: Vec::new() }
    }

    /// Adds findings and, without `--json`, prints them.
    pub(crate) fn add(&mut self, findings: impl IntoIterator<Item = Finding>) -> Result<(), Failure> {
        for finding in findings {
            if !self.context.json {
                let mut out = self.context.out();
                out.write_all(lines(&finding, output_width(), self.has_colours).as_bytes())?;
                out.flush()?;
            }
            self.findings.push(finding);
        }
        Ok(())
    }

    /// Prints the end of the report. Fails if a check did.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let summary = Summary::of(&self.findings);
        if self.context.json {
            let document = Document { version: env!("CARGO_PKG_VERSION"), checks: &self.findings, summary };
            self.context.document(&document)?;
        } else {
            self.context.print(&format!("\n{}", summary.text()))?;
        }
        if summary.fail > 0 { Err(Failure::AlreadyReported) } else { Ok(()) }
    }
}

impl Summary {
    fn of(findings: &[Finding]) -> Self {
        let [ok, warn, fail, skipped] =
            Mark::ALL.map(|mark| findings.iter().filter(|finding| finding.mark == mark).count());
        Self { ok, warn, fail, skipped }
    }

    fn text(self) -> String {
        let Self { ok, warn, fail, skipped } = self;
        let warnings = if warn == 1 { "warning" } else { "warnings" };
        format!("{ok} ok, {warn} {warnings}, {fail} failed, {skipped} skipped")
    }
}

/// The lines of a finding, folded at `width`.
fn lines(finding: &Finding, width: Option<usize>, has_colours: bool) -> String {
    let Finding { check, mark, found, advice, .. } = finding;
    let left = width.and_then(|width| width.checked_sub(INDENT)).filter(|&left| left >= MIN_FOLDED);
    let on_one_line = |text: &str| printable(text).split_whitespace().collect::<Vec<_>>().join(" ");
    let folded = |text: &str, hanging: usize| {
        let text = on_one_line(text);
        let parts = left.map_or_else(|| vec![text.as_str()], |left| folded(&text, left - hanging));
        parts.join(&format!("\n{:1$}", "", INDENT + hanging))
    };
    let word = format!("{:<MARK$}", mark.name());
    let word = if has_colours { format!("\x1b[{}m{word}\x1b[0m", colour(*mark)) } else { word };
    let mut text = format!("{word}  {check:<CHECK$}  {}\n", folded(found, 0));
    if let Some(advice) = advice {
        text += &format!("{:INDENT$}-> {}\n", "", folded(advice, 3));
    }
    text
}

fn colour(mark: Mark) -> &'static str {
    match mark {
        Mark::Ok => "32",
        Mark::Warn => "1;33",
        Mark::Fail => "1;31",
        Mark::Skipped => "2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_and_its_advice_another() {
        let ok = Finding::ok("cpu", "8 cores");
        assert_eq!(lines(&ok, None, false), "ok       cpu              8 cores\n");
        assert!(lines(&ok, None, true).starts_with("\x1b[32mok     \x1b[0m  cpu"));
        let fail = Finding::fail(
            "disk.state",
            "one two\nthree \x1b[2J four five six seven",
            "mend it with care and more words",
        );
        let text = lines(&fail, Some(50), false);
        let wanted = "\
fail     disk.state       one two three \\u{1b}[2J\n                          four five six seven\n                          -> mend it with care and\n                             more words\n";
        assert_eq!(text, wanted);
        assert!(text.lines().all(|line| line.chars().count() <= 50));
    }

    #[test]
    fn the_summary_counts_each_mark() {
        let findings = [
            Finding::ok("a", ""),
            Finding::warn("b", "", ""),
            Finding::ok("c", ""),
            Finding::skipped("d", ""),
        ];
        let summary = Summary::of(&findings);
        assert_eq!(summary, Summary { ok: 2, warn: 1, fail: 0, skipped: 1 });
        assert_eq!(summary.text(), "2 ok, 1 warning, 0 failed, 1 skipped");
    }
}
