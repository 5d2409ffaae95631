//! The clock. Signed requests to object stores fail if it is wrong.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::finding::Finding;
use super::system::{output, value};

/// Time limit for the service that keeps the clock.
const LIMIT: Duration = Duration::from_secs(3);

/// From here on, tokens can be rejected as expired or not yet valid.
const LARGE_SECONDS: f64 = 240.0;

/// More than the delay of a response explains.
const NOTICEABLE_SECONDS: f64 = 20.0;

const SYNCHRONIZE: &str = "sudo timedatectl set-ntp true; `timedatectl` shows the state";

/// Whether a service keeps the clock synchronized; `None` if unknown.
pub(super) fn is_synchronized() -> Option<bool> {
    let shown = output("timedatectl", &["show", "--property=NTPSynchronized"], LIMIT)?;
    match value(&shown, "NTPSynchronized")? {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

pub(super) fn finding(is_synchronized: Option<bool>) -> Finding {
    match is_synchronized {
        Some(true) => Finding::ok("clock", "synchronized"),
        Some(false) => Finding::warn(
            "clock",
            "not synchronized; requests to object stores fail if it is wrong",
            SYNCHRONIZE,
        ),
        None => Finding::skipped("clock", "`timedatectl` does not say whether it is synchronized"),
    }
}

/// Compares this host's clock with a store's, from the `Date` of its response; `None` if it has none.
pub(super) fn compared(date: Option<&str>, now: DateTime<Utc>) -> Option<Finding> {
    let theirs = DateTime::parse_from_rfc2822(date?).ok()?.to_utc();
    let ahead = (now - theirs).as_seconds_f64();
    let side = if ahead < 0.0 { "behind" } else { "ahead of" };
    let found = format!("this host's clock is {:.0} s {side} the store's", ahead.abs());
    let finding = if ahead.abs() >= LARGE_SECONDS {
        Finding::fail("store.clock", format!("{found}: signed requests fail"), SYNCHRONIZE)
    } else if ahead.abs() >= NOTICEABLE_SECONDS {
        Finding::warn("store.clock", found, SYNCHRONIZE)
    } else {
        Finding::ok("store.clock", "this host's clock agrees with the store's")
    };
    Some(finding.with("ahead_seconds", ahead))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    #[test]
    fn a_clock_that_nobody_keeps_is_a_warning() {
        let marks = [Some(true), Some(false), None].map(|state| finding(state).mark);
        assert_eq!(marks, [Mark::Ok, Mark::Warn, Mark::Skipped]);
    }

    #[test]
    fn a_clock_that_differs_from_the_stores_fails() {
        let date = "Thu, 26 Nov 2026 00:00:00 GMT";
        for (now, mark) in [
            ("2026-11-26T00:00:02Z", Mark::Ok),
            ("2026-11-25T23:59:00Z", Mark::Warn),
            ("2026-11-26T00:10:00Z", Mark::Fail),
        ] {
            let now = DateTime::parse_from_rfc3339(now).expect("a time").to_utc();
            assert_eq!(compared(Some(date), now).map(|finding| finding.mark), Some(mark), "{now}");
            assert_eq!(compared(None, now).or(compared(Some("yesterday"), now)), None);
        }
        let behind = DateTime::parse_from_rfc3339("2026-11-25T23:59:00Z").expect("a time").to_utc();
        let found = compared(Some(date), behind).expect("a finding").found;
        assert_eq!(found, "this host's clock is 60 s behind the store's");
    }
}
