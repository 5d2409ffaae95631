//! Prometheus's two text formats.
//!
//! A snapshot is rendered at once, in the order of this code: there are no metric objects to keep, register or update.
//! The formats differ in the names of families, in types and in the end of the text, so one writer knows both.
//!
//! * OpenMetrics 1.0: <https://prometheus.io/docs/specs/om/open_metrics_spec/>
//! * Text format 0.0.4: <https://prometheus.io/docs/instrumenting/exposition_formats/>

use std::fmt::Write as _;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's text format 0.0.4, which every consumer reads, node_exporter's textfile collector included.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A sum that only grows, until the process or the job starts again. Its samples end in `_total`.
    Counter,
    /// A value that may fall.
    Gauge,
    /// Facts in labels; the value is 1. Its samples end in `_info`.
    Info,
}

/// Units, as the last word of a family's name.
const UNITS: [&str; 3] = ["seconds", "bytes", "ratio"];

/// Writes families of samples.
pub(super) struct Text {
    format: Format,
    out: String,
}

/// Writes the samples of one family.
pub(super) struct Samples<'a> {
    text: &'a mut Text,
    kind: Kind,
    name: &'static str,
    help: &'static str,
    is_empty: bool,
}

impl Format {
    /// The media type of the text.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl Kind {
    /// What follows the family's name in the names of samples.
    fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge => "",
            Self::Info => "_info",
        }
    }
}

impl Text {
    pub(super) fn new(format: Format) -> Self {
        Self { format, out: String::with_capacity(16 << 10) }
    }

    /// Writes the family `name`, which has no suffix, with the samples that `write` adds. Without samples, nothing is
    /// written. `help` has neither quotes nor backslashes.
    pub(super) fn family(
        &mut self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        write: impl FnOnce(&mut Samples<'_>),
    ) {
        write(&mut Samples { text: self, kind, name, help, is_empty: true });
    }

    /// The whole text.
    pub(super) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.out, "{line}").expect("a string accepts all text");
    }
}

impl Samples<'_> {
    /// Adds a sample.
    pub(super) fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        if self.is_empty {
            self.head();
            self.is_empty = false;
        }
        let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        let labels = labels.collect::<Vec<_>>().join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let (name, suffix, value) = (self.name, self.kind.suffix(), number(value));
        self.text.line(format_args!("{name}{suffix}{labels} {value}"));
    }

    fn head(&mut self) {
        let Self { text, kind, name, help, .. } = self;
        match text.format {
            Format::Prometheus => {
                let (kind, suffix) =
                    (if *kind == Kind::Counter { "counter" } else { "gauge" }, kind.suffix());
                text.line(format_args!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}"));
            }
            Format::OpenMetrics => {
                let kind = match kind {
                    Kind::Counter => "counter",
                    Kind::Gauge => "gauge",
                    Kind::Info => "info",
                };
                text.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
                let unit = name.rsplit('_').next().filter(|word| UNITS.contains(word));
                if let Some(unit) = unit {
                    text.line(format_args!("# UNIT {name} {unit}"));
                }
            }
        }
    }
}

/// A label's value between its quotes. The formats have no escapes for control characters other than newline, which would
/// reach terminals: they are replaced.
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            control if control.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            other => escaped.push(other),
        }
    }
    escaped
}

fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        // NaN is written as `NaN`, and a whole number without a point.
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(format: Format) -> String {
        let mut text = Text::new(format);
        text.family(Kind::Info, "build", "The version.", |samples| samples.add(&[("version", "1.0")], 1.0));
        text.family(Kind::Counter, "read_bytes", "Bytes read.", |samples| samples.add(&[], 12.0));
        text.family(Kind::Gauge, "nothing", "No samples.", |_| {});
        text.family(Kind::Gauge, "loss", "The loss.", |samples| {
            samples.add(&[("job_id", "a-1"), ("label", "a \"b\"\\\n\u{e9}")], f64::NAN);
            samples.add(&[("job_id", "a-2")], f64::NEG_INFINITY);
            samples.add(&[("job_id", "a-3")], 0.125);
        });
        text.finish()
    }

    #[test]
    fn openmetrics_has_units_types_and_an_end() {
        let wanted = r#"# HELP build The version.
# TYPE build info
build_info{version="1.0"} 1
# HELP read_bytes Bytes read.
# TYPE read_bytes counter
# UNIT read_bytes bytes
read_bytes_total 12
# HELP loss The loss.
# TYPE loss gauge
loss{job_id="a-1",label="a \"b\"\\\né"} NaN
loss{job_id="a-2"} -Inf
loss{job_id="a-3"} 0.125
# EOF
"#;
        assert_eq!(sample(Format::OpenMetrics), wanted);
    }

    #[test]
    fn the_older_format_names_samples_in_its_comments() {
        let wanted = r#"# HELP build_info The version.
# TYPE build_info gauge
build_info{version="1.0"} 1
# HELP read_bytes_total Bytes read.
# TYPE read_bytes_total counter
read_bytes_total 12
# HELP loss The loss.
# TYPE loss gauge
loss{job_id="a-1",label="a \"b\"\\\né"} NaN
loss{job_id="a-2"} -Inf
loss{job_id="a-3"} 0.125
"#;
        assert_eq!(sample(Format::Prometheus), wanted);
        assert_eq!(escaped("\x1b[2J\t\r\u{9b}"), "\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(number(f64::INFINITY), "+Inf");
        assert_eq!(number(1e21), "1000000000000000000000");
    }
}
