//! Recognizes numbers that are moments: seconds, milliseconds or microseconds since 1970.
//!
//! As a feature such a number learns little: rows to predict are later than all rows of training. Its name can be the
//! sign, or its values: those of the years 2000 to 2040 are rare among other numbers that span a day or more.

use chrono::DateTime;

/// 2000-01-01 and 2041-01-01, in seconds since 1970.
const EARLIEST: f64 = 946_684_800.0;
const LATEST: f64 = 2_240_611_200.0;

const DAY_SECONDS: f64 = 86_400.0;

/// Units of moments, and how many of each are a second.
const UNITS: [(&str, f64); 3] = [("seconds", 1.0), ("milliseconds", 1e3), ("microseconds", 1e6)];

/// Words in the names of columns that hold moments.
const WORDS: [&str; 12] = [
    "time",
    "date",
    "datetime",
    "timestamp",
    "ts",
    "at",
    "epoch",
    "created",
    "updated",
    "modified",
    "since",
    "unixtime",
];

/// Why the column `name` with these sorted numbers is not a feature, if they are moments. Zeros mean "never".
///
/// `is_category`: the column has so few distinct values that only its name can show that they are moments.
pub(super) fn why_left_out(name: &str, numbers: &[f64], is_category: bool) -> Option<String> {
    let moments = &numbers[numbers.partition_point(|&number| number <= 0.0)..];
    let are_others_zero = *numbers.first()? >= 0.0 && 2 * moments.len() >= numbers.len();
    let (&first, &last) = moments.first().zip(moments.last()).filter(|_| are_others_zero)?;
    let (unit, per_second) = UNITS
        .into_iter()
        .find(|(_, per_second)| first >= EARLIEST * per_second && last < LATEST * per_second)?;
    let (first, last) = (first / per_second, last / per_second);
    let is_clear = !is_category && last - first >= DAY_SECONDS;
    if !is_clear && !has_word(name) {
        return None;
    }
    let are_days = moments.iter().all(|moment| moment / per_second % DAY_SECONDS == 0.0);
    let part = if are_days { "month" } else { "hour" };
    let day = |seconds: f64| DateTime::from_timestamp(seconds as i64, 0).map(|at| at.date_naive());
    Some(format!(
        "{unit} since 1970, {} to {}; write the {part} or weekday into a column to use it",
        day(first)?,
        day(last)?
    ))
}

/// Whether a word of `name`, in snake case or camel case, means a moment.
fn has_word(name: &str) -> bool {
    let mut spaced = String::new();
    let mut was_lower = false;
    for char in name.chars() {
        if was_lower && char.is_uppercase() {
            spaced.push(' ');
        }
        was_lower = char.is_lowercase();
        spaced.extend(char.to_lowercase());
    }
    spaced.split(|char: char| !char.is_alphanumeric()).any(|word| WORDS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: f64 = 1_790_000_000.0;

    fn hourly(per_second: f64) -> Vec<f64> {
        (0..500).map(|hour| (NOW + 3_600.0 * f64::from(hour)) * per_second).collect()
    }

    #[test]
    fn moments_are_recognized_by_their_values() {
        for (unit, per_second) in UNITS {
            let why = why_left_out("x", &hourly(per_second), false).unwrap_or_default();
            assert!(why.starts_with(&format!("{unit} since 1970, 2026-09-21 to 2026-10-12; ")), "{why}");
            assert!(why.contains("the hour or weekday"), "{why}");
        }
        let days: Vec<f64> = (0..500).map(|day| (20_000.0 + f64::from(day)) * DAY_SECONDS).collect();
        assert!(why_left_out("x", &days, false).is_some_and(|why| why.contains("the month or weekday")));
        let with_never: Vec<f64> = [vec![0.0; 100], hourly(1.0)].concat();
        assert!(why_left_out("x", &with_never, false).is_some());
    }

    #[test]
    fn other_large_numbers_are_not_moments() {
        let spread =
            |low: f64, high: f64| (0..500).map(move |nth| low + (high - low) * f64::from(nth) / 500.0);
        for (low, high) in [(0.0, 4.2e9), (1.0, 1e9), (5e9, 6e9), (1e10, 1e12), (-1e9, 2e9)] {
            assert_eq!(
                why_left_out("created_at", &spread(low, high).collect::<Vec<_>>(), false),
                None,
                "{low}"
            );
        }
        let mostly_zero = [vec![0.0; 600], hourly(1.0)].concat();
        assert_eq!(why_left_out("x", &mostly_zero, false), None);
        assert_eq!(why_left_out("x", &[], false), None);
    }

    #[test]
    fn the_name_decides_where_the_values_do_not() {
        let minute: Vec<f64> = (0..60).map(|second| NOW + f64::from(second)).collect();
        assert_eq!(why_left_out("product", &minute, false), None);
        for name in ["ts", "created_at", "createdAt", "event.time", "Date"] {
            assert!(why_left_out(name, &minute, false).is_some(), "{name}");
        }
        assert_eq!(why_left_out("x", &hourly(1.0), true), None, "few distinct values are categories");
        assert_eq!(why_left_out("category", &minute, false), None, "`at` within a word");
    }
}
