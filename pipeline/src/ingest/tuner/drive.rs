//! Runs the tuner: takes samples, applies the tuner's settings, and keeps the statistics of the last seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{Sample, Setting, Tuner};
use crate::ingest::stats::IngestStats;

/// The time between two samples.
const PERIOD: Duration = Duration::from_millis(500);
/// The minimum number of chunks in a sample, so that varying chunk sizes do not look like a change of the rate. A
/// sample extends over as many periods as it needs.
const LEAST_CHUNKS: u64 = 32;
const MOST_PERIODS: usize = 20;
/// The number of periods that [`Drive::standing`] looks back.
const REMEMBERED: usize = 20;

/// Runs the tuner of one feed.
#[derive(Debug)]
pub(crate) struct Drive {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    began: Instant,
    ended: Option<Instant>,
    tuner: Tuner,
    past: VecDeque<(Instant, IngestStats)>,
}

/// The time and statistics of a feed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Seconds since the feed began, until it ended.
    pub(crate) seconds: f64,
    /// Seconds since the oldest kept statistics, until the feed ended, and these statistics.
    pub(crate) recent_seconds: f64,
    pub(crate) before: IngestStats,
    pub(crate) setting: Setting,
    pub(crate) settled: bool,
}

impl Drive {
    pub(crate) fn new(tuner: Tuner) -> Self {
        let began = Instant::now();
        let past = VecDeque::from([(began, IngestStats::default())]);
        Self { state: Mutex::new(State { began, ended: None, tuner, past }), changed: Condvar::new() }
    }

    /// Samples `stats` and applies settings until [`Drive::end`] is called.
    pub(crate) fn run(&self, stats: &dyn Fn() -> IngestStats, apply: &dyn Fn(Setting)) {
        let mut state = self.state.lock();
        let mut last = (Instant::now(), stats());
        let mut periods = 0;
        while state.ended.is_none() {
            let waited = self.changed.wait_for(&mut state, PERIOD);
            if state.ended.is_some() || !waited.timed_out() {
                continue;
            }
            let now = (Instant::now(), stats());
            state.remember(now);
            periods += 1;
            if now.1.chunks - last.1.chunks < LEAST_CHUNKS && periods < MOST_PERIODS {
                continue;
            }
            let sample = sample(&last.1, &now.1, (now.0 - last.0).as_secs_f64());
            (last, periods) = (now, 0);
            let before = state.tuner.setting();
            let setting = state.tuner.step(&sample);
            if setting != before {
                tracing::debug!(?setting, rate = sample.rate, "tuned");
                apply(setting);
            }
        }
    }

    /// Ends [`Drive::run`], even if it has not started yet.
    pub(crate) fn end(&self) {
        self.state.lock().ended.get_or_insert_with(Instant::now);
        self.changed.notify_all();
    }

    /// The current state of the feed.
    pub(crate) fn standing(&self) -> Standing {
        let state = self.state.lock();
        let (since, before) = state.past.front().copied().unwrap_or((state.began, IngestStats::default()));
        let until = state.ended.unwrap_or_else(Instant::now);
        let seconds = |since: Instant| until.saturating_duration_since(since).as_secs_f64();
        Standing {
            seconds: seconds(state.began),
            recent_seconds: seconds(since),
            before,
            setting: state.tuner.setting(),
            settled: state.tuner.is_settled(),
        }
    }
}

impl State {
    fn remember(&mut self, now: (Instant, IngestStats)) {
        if self.past.len() > REMEMBERED {
            self.past.pop_front();
        }
        self.past.push_back(now);
    }
}

fn sample(before: &IngestStats, now: &IngestStats, seconds: f64) -> Sample {
    let done = now.since(before);
    Sample {
        rate: done.rows_decoded as f64 / seconds,
        consumer_wait: done.stages.ring.wait_seconds / seconds,
        lanes_fetching: done.stages.fetch.wait_seconds / seconds,
        lanes_queueing: done.stages.decode.wait_seconds / seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bounds;
    use super::*;

    /// What remains of a job after its feed, such as the last steps and a checkpoint, is no time of ingest.
    #[test]
    fn the_time_of_a_feed_ends_with_it() {
        let bounds = Bounds {
            most_decoders: 1,
            most_streams: 1,
            least_object_bytes: 1,
            most_object_bytes: 1,
            fixed_decoders: false,
            fixed_streams: false,
        };
        let drive = Drive::new(Tuner::new(bounds, Setting { decoders: 1, streams: 1, object_bytes: 1 }));
        drive.end();
        let ended = drive.standing();
        std::thread::sleep(Duration::from_millis(2));
        drive.end();
        let later = drive.standing();
        assert_eq!((later.seconds, later.recent_seconds), (ended.seconds, ended.recent_seconds));
    }

    #[test]
    fn a_sample_is_what_happened_in_between() {
        let mut before = IngestStats { rows_decoded: 1000, ..IngestStats::default() };
        before.stages.fetch.wait_seconds = 3.0;
        let mut now = IngestStats { rows_decoded: 5000, ..before };
        now.stages.fetch.wait_seconds = 11.0;
        now.stages.ring.wait_seconds = 0.5;
        now.stages.decode.wait_seconds = 6.0;
        let expected = Sample { rate: 2000.0, consumer_wait: 0.25, lanes_fetching: 4.0, lanes_queueing: 3.0 };
        assert_eq!(sample(&before, &now, 2.0), expected);
    }
}
