//! Dates and times of day as written in filters.

use chrono::NaiveDate;

/// Days from 1970-01-01 to a date like `2026-11-21`.
pub(super) fn days(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, '-');
    let (year, month, day) =
        (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let date = NaiveDate::from_ymd_opt(year as i32, month as u32, day as u32)?;
    // The default is 1970-01-01.
    Some(date.signed_duration_since(NaiveDate::default()).num_days())
}

/// A time of day such as `12:38:00` or `12:38:00.25`, in units of `1 / per_second` seconds; `None` also if it is not a
/// multiple of the unit.
pub(super) fn time(text: &str, per_second: i64) -> Option<i64> {
    let (clock, fraction) = text.split_once('.').map_or((text, None), |(clock, rest)| (clock, Some(rest)));
    let mut parts = clock.splitn(3, ':');
    let (hour, minute, second) =
        (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let fraction = match fraction {
        None => 0,
        Some(fraction) if fraction.len() > 9 => return None,
        Some(fraction) => {
            let scaled = digits(fraction, fraction.len())? * per_second;
            let one = 10_i64.pow(fraction.len() as u32);
            if scaled % one != 0 {
                return None;
            }
            scaled / one
        }
    };
    Some((hour * 3600 + minute * 60 + second) * per_second + fraction)
}

/// A date, or a date and a time of day separated by `T` or a space; a trailing `Z` is allowed.
pub(super) fn timestamp(text: &str, per_second: i64) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, clock) = match text.split_once(['T', ' ']) {
        Some((date, clock)) => (date, time(clock, per_second)?),
        None => (text, 0),
    };
    days(date)?.checked_mul(86_400)?.checked_mul(per_second)?.checked_add(clock)
}

/// Exactly `count` decimal digits.
fn digits(text: &str, count: usize) -> Option<i64> {
    let plain = text.len() == count && count > 0 && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times_are_read_exactly_or_not_at_all() {
        // From Python: (datetime.date(...) - datetime.date(1970, 1, 1)).days
        let known = [("1970-01-01", 0), ("1969-12-31", -1), ("2026-11-21", 20_778), ("2000-02-29", 11_016)];
        for (text, expected) in known.into_iter().chain([("0001-01-01", -719_162), ("9999-12-31", 2_932_896)])
        {
            assert_eq!(days(text), Some(expected), "{text}");
        }
        for wrong in [
            "2026-02-29",
            "2026-13-01",
            "2026-1-1",
            "26-01-01",
            "2026-01-00",
            "",
            "2026-01-01-01",
            "+026-01-01",
        ] {
            assert_eq!(days(wrong), None, "{wrong}");
        }
        assert_eq!(time("12:38:00", 1), Some(45_480));
        assert_eq!(time("00:00:01.25", 1000), Some(1250));
        assert_eq!(time("00:00:01.2505", 1000), None);
        assert_eq!(time("24:00:00", 1), None);
        let noon = 20_778 * 86_400 + 43_200;
        assert_eq!(timestamp("2026-11-21T12:00:00Z", 1), Some(noon));
        assert_eq!(timestamp("2026-11-21 12:00:00", 1_000_000), Some(noon * 1_000_000));
        assert_eq!(timestamp("2026-11-21", 1), Some(noon - 43_200));
        assert_eq!(timestamp("9999-12-31", 1_000_000_000), None);
    }
}
