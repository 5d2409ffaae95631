//! Formats numbers for people.

use std::time::Duration;

use chrono::{DateTime, Utc};
use indicatif::HumanCount;
use millstream_batch::Size;
use millstream_batch::count::plural;
use millstream_control::proto::{MetricValue, Metrics};

use crate::table::Table;

/// `1234567` as `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

/// `1,234 rows`, `1 row`: a number of things, with the singular of their name.
pub(crate) fn counted(number: u64, name: &str) -> String {
    format!("{} {name}{}", count(number), plural(number))
}

/// A rate or other positive number; whole from 100 on.
pub(crate) fn rate(number: f64) -> String {
    if number.is_nan() || number < 0.0 {
        "-".to_owned()
    } else if number >= 100.0 {
        count(number.round() as u64)
    } else {
        format!("{number:.1}")
    }
}

/// `1536` as `1.5 KiB`.
pub(crate) fn bytes(number: u64) -> String {
    Size(number).to_string()
}

/// `0.0312` as `3.1 %`.
pub(crate) fn percent(fraction: f64) -> String {
    if fraction.is_nan() { "-".to_owned() } else { format!("{:.1} %", fraction * 100.0) }
}

/// A metric: four decimals, or a dash when it is not defined.
pub(crate) fn metric(number: impl Into<Option<f64>>) -> String {
    let known = number.into().filter(|number| !number.is_nan());
    known.map_or_else(|| "-".to_owned(), |number| format!("{number:.4}"))
}

/// A metric with an error bound: `0.7851 ± 3.2e-6`.
fn bounded(number: Option<f64>, error: Option<f64>) -> String {
    let error = error.filter(|&error| error > 0.0).map(|error| format!(" ± {error:.1e}"));
    metric(number) + &error.unwrap_or_default()
}

/// Adds a row for each metric. Titles begin with `prefix` and, if there are several labels, the label.
pub(crate) fn metric_rows(table: &mut Table, prefix: &str, metrics: &[Metrics]) {
    for of_label @ Metrics { label, measured, examples, .. } in metrics {
        let label = if label.is_empty() { String::new() } else { format!("{label} ") };
        let mut row = |name: &str, value: &str| table.row([format!("{prefix}{label}{name}").as_str(), value]);
        for MetricValue { name, value, error } in measured {
            let groups = groups_of(of_label, name);
            let groups =
                groups.map(|groups| format!(" over {}", counted(groups, "group"))).unwrap_or_default();
            row(
                &(title(name).to_owned() + &first_ranks(of_label, name)),
                &(bounded(*value, *error) + &groups),
            );
        }
        row("examples", &count(*examples));
    }
}

/// The number of groups in the mean of a metric, where it is shown.
fn groups_of(metrics: &Metrics, name: &str) -> Option<u64> {
    let counted = ["group_auc", "ndcg"].into_iter().find(|name| find(metrics, name).is_some());
    metrics.groups.filter(|_| counted == Some(name))
}

/// `@10` for a metric of the first ten ranks of a group, else nothing.
pub(crate) fn first_ranks(metrics: &Metrics, name: &str) -> String {
    let top_k = metrics.top_k.filter(|_| matches!(name, "ndcg" | "recall"));
    top_k.map(|top_k| format!("@{top_k}")).unwrap_or_default()
}

/// The display name of a metric.
fn title(metric: &str) -> &str {
    match metric {
        "auc" => "AUC",
        "pr_auc" => "PR-AUC",
        "group_auc" => "group AUC",
        "ndcg" => "NDCG",
        "mrr" => "MRR",
        "log_loss" => "log loss",
        "normalized_entropy" => "normalized entropy",
        "huber_loss" => "Huber loss",
        "pinball_loss" => "pinball loss",
        "poisson_deviance" => "Poisson deviance",
        "rmse" => "RMSE",
        "mae" => "MAE",
        "r2" => "R²",
        "top5_accuracy" => "top-5 accuracy",
        other => other,
    }
}

/// The value of a metric: `None` if the label lacks it, `Some(None)` if it is undefined.
pub(crate) fn find(metrics: &Metrics, name: &str) -> Option<Option<f64>> {
    metrics.measured.iter().find(|measured| measured.name == name).map(|measured| measured.value)
}

/// `83 s` as `1m 23s`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, _) if seconds < 10 => format!("{:.1}s", duration.as_secs_f64()),
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) => format!("{m}m {s:02}s"),
        (0, h, m, _) => format!("{h}h {m:02}m"),
        (d, h, _, _) => format!("{d}d {h:02}h"),
    }
}

/// A short time in a unit that shows it: `210 us`, `3.4 ms`, `1.2 s`.
pub(crate) fn short_time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 0.9995e-3 {
        format!("{:.0} us", seconds * 1e6)
    } else if seconds < 0.9995 {
        format!("{:.1} ms", seconds * 1e3)
    } else {
        format!("{seconds:.1} s")
    }
}

/// An age in its largest unit: `3h`.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match (seconds / 86_400, seconds / 3_600, seconds / 60) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m"),
        (0, hours, _) => format!("{hours}h"),
        (days, _, _) => format!("{days}d"),
    }
}

/// A moment, given in milliseconds since the Unix epoch, as `2026-11-21 08:07:00Z`.
pub(crate) fn moment(unix_ms: u64) -> String {
    let moment = i64::try_from(unix_ms).ok().and_then(DateTime::from_timestamp_millis);
    moment.unwrap_or(DateTime::<Utc>::MAX_UTC).format("%Y-%m-%d %H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_times_have_a_fitting_unit() {
        for (us, wanted) in
            [(0, "0 us"), (210, "210 us"), (3_400, "3.4 ms"), (999_000, "999.0 ms"), (1_200_000, "1.2 s")]
        {
            assert_eq!(short_time(Duration::from_micros(us)), wanted);
        }
    }

    #[test]
    fn counts_and_rates() {
        for (number, wanted) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), wanted);
        }
        for (number, wanted) in [(0.0, "0.0"), (99.94, "99.9"), (12_345.6, "12,346"), (f64::NAN, "-")] {
            assert_eq!(rate(number), wanted);
        }
    }

    #[test]
    fn inexact_metrics_show_their_error_bound() {
        let measured = |name: &str, value, error| MetricValue { name: name.to_owned(), value, error };
        let one = vec![
            measured("auc", Some(0.5), Some(0.0)),
            measured("pr_auc", Some(0.25), Some(3.21e-6)),
            measured("group_auc", None, None),
        ];
        let one = Metrics { measured: one, groups: Some(1_000), ..Metrics::default() };
        let other = vec![measured("ndcg", Some(0.5), None), measured("r2", Some(-1.0), None)];
        let (label, groups, top_k) = ("price".into(), Some(7), Some(5));
        let other = Metrics { label, measured: other, groups, top_k, examples: 12 };
        let mut table = Table::default();
        metric_rows(&mut table, "eval ", &[one, other]);
        let text = table.render();
        let rows = [
            "eval AUC 0.5000",
            "eval PR-AUC 0.2500 ± 3.2e-6",
            "eval group AUC - over 1,000 groups",
            "eval price NDCG@5 0.5000 over 7 groups",
            "eval price R² -1.0000",
            "eval price examples 12",
        ];
        for wanted in rows {
            let found = text.lines().any(|line| line.split_whitespace().eq(wanted.split_whitespace()));
            assert!(found, "{wanted}\n{text}");
        }
    }

    #[test]
    fn durations() {
        let cases =
            [(1.25, "1.2s"), (59.0, "59s"), (83.0, "1m 23s"), (3_700.0, "1h 01m"), (90_000.0, "1d 01h")];
        for (seconds, wanted) in cases {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), wanted);
        }
    }

    #[test]
    fn ages() {
        for (seconds, wanted) in [(0, "0s"), (59, "59s"), (60, "1m"), (7_199, "1h"), (172_800, "2d")] {
            assert_eq!(age(Duration::from_secs(seconds)), wanted);
        }
    }

    #[test]
    fn moments() {
        let cases = [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399_000, "2000-02-28 23:59:59Z"),
            (951_782_400_000, "2000-02-29 00:00:00Z"),
            (1_795_248_420_000, "2026-11-21 08:07:00Z"),
            (4_107_542_399_999, "2100-02-28 23:59:59Z"),
            (4_107_542_400_000, "2100-03-01 00:00:00Z"),
            (u64::MAX, "+262142-12-31 23:59:59Z"),
        ];
        for (unix_ms, wanted) in cases {
            assert_eq!(moment(unix_ms), wanted);
        }
    }
}
