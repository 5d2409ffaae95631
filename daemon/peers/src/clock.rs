//! The offset of another host's clock.
//!
//! A probe has four times: when the request was sent and the reply arrived by this host's clock, when the request arrived and the
//! reply was sent by the other one. If both ways take equally long, the other clock is ahead by the mean of the two
//! differences; at worst one way takes no time, so the error is at most half the round trip (RFC 5905, section 8). Of the
//! last probes, the one with the shortest round trip counts.
//!
//! Offsets are only shown. Nothing depends on the clocks of different hosts: no lease, no time limit, no order.

use std::collections::VecDeque;
use std::time::Duration;

/// The number of probes that are compared.
const SAMPLES: usize = 8;

/// How far another host's clock is ahead of this one's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockOffset {
    /// Seconds; negative if it is behind.
    pub seconds: f64,
    /// The maximum error of that, in seconds.
    pub error_seconds: f64,
}

/// The times of a probe, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeTimes {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) replied: u64,
    /// How long the reply took, by a clock that is not adjusted.
    pub(crate) round_trip: Duration,
}

/// The last probes of a host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    samples: VecDeque<(ClockOffset, Duration)>,
}

impl Clock {
    /// Adds a probe.
    pub(crate) fn add(&mut self, times: ProbeTimes) {
        let ProbeTimes { sent, received, replied, round_trip } = times;
        let difference = |a: u64, b: u64| (i128::from(a) - i128::from(b)) as f64 / 1e9;
        let at_host = difference(replied, received).clamp(0.0, round_trip.as_secs_f64());
        let on_the_way = Duration::from_secs_f64(round_trip.as_secs_f64() - at_host);
        let error_seconds = on_the_way.as_secs_f64() / 2.0;
        let seconds = difference(received, sent) - error_seconds;
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((ClockOffset { seconds, error_seconds }, on_the_way));
    }

    /// The best of the last probes: the offset, and the time on the way there and back.
    pub(crate) fn best(&self) -> Option<(ClockOffset, Duration)> {
        self.samples.iter().min_by_key(|(_, on_the_way)| *on_the_way).copied()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A probe that takes these milliseconds on its ways there and back, and at the host, whose clock is ahead by some.
    fn probe(there: u64, at_host: u64, back: u64, ahead: i64) -> ProbeTimes {
        let sent = 1_700_000_000_000 * MS;
        let received = (sent + there * MS).checked_add_signed(ahead * MS as i64).unwrap();
        let round_trip = Duration::from_millis(there + at_host + back);
        ProbeTimes { sent, received, replied: received + at_host * MS, round_trip }
    }

    #[test]
    fn the_shortest_round_trip_gives_the_offset() {
        for ahead in [0, 5_000, -86_400_000] {
            let mut clock = Clock::default();
            for (there, at_host, back) in [(40, 1, 2), (3, 500, 3), (100, 0, 100)] {
                clock.add(probe(there, at_host, back, ahead));
            }
            let (offset, round_trip) = clock.best().unwrap();
            assert_eq!(round_trip, Duration::from_millis(6));
            assert!((offset.seconds - ahead as f64 / 1e3).abs() < 1e-6, "{offset:?}");
            assert!((offset.error_seconds - 0.003).abs() < 1e-9);
        }
    }

    #[test]
    fn the_error_bounds_an_asymmetric_way() {
        let mut clock = Clock::default();
        clock.add(probe(90, 0, 10, 20));
        let (ClockOffset { seconds, error_seconds }, _) = clock.best().unwrap();
        assert!((seconds - 0.020).abs() <= error_seconds, "{seconds} {error_seconds}");
    }

    #[test]
    fn old_probes_and_false_times_do_not_matter_for_ever() {
        let mut clock = Clock::default();
        // It claims to have replied before it received, and a time at the host longer than the round trip.
        clock.add(ProbeTimes { replied: 0, ..probe(1, 0, 1, 0) });
        clock.add(ProbeTimes { replied: u64::MAX, ..probe(1, 0, 1, 0) });
        for _ in 0..SAMPLES {
            clock.add(probe(4, 0, 4, 7));
        }
        assert_eq!(clock.best().unwrap().1, Duration::from_millis(8));
    }
}
