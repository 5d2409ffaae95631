//! Tunes at run time how much of the machine a job's ingest uses.
//!
//! The tuner adjusts resources and never the order. The job determines the lanes and the shuffle pool. The number of
//! lanes that decode concurrently ([`Setting::decoders`]), the number of ranges of an object in flight
//! ([`Setting::streams`]) and the bytes held per object ([`Setting::object_bytes`], the depth of read-ahead) affect
//! only the rate.
//!
//! The search is hill climbing on the rate of rows, one knob at a time. A move doubles or halves a knob (decoders
//! change by a quarter). After a pause, which lets the move take effect, the rate is compared with the rate before the
//! move. A move up has a cost, so it is kept only if it gains [`GAIN`]. A move down is tried after the others and kept
//! if it loses less than [`LOSS`] of the best rate seen; this returns resources that bring no benefit. If two knobs
//! limit the rate together, neither gains alone, so a move of all knobs comes before the moves down. What lanes wait
//! for determines which knob is tried first.
//!
//! Once every move was tried without a gain, the tuner is settled and only monitors the rate. If the rate differs by
//! more than [`DRIFT`] from the rate at which it settled, for [`STRIKES`] consecutive samples (another job has started,
//! or the storage is slower), the search restarts from the current setting. While the consumer is the bottleneck,
//! nothing is tried: more input has no effect, and the rate does not measure ingest.
//!
//! **Several jobs** on one host each have a separate budget and tuner, and do not know of each other. The kernel gives
//! their threads equal shares of the cores. If additional decoders bring nothing because another job uses the cores,
//! the tuner returns them; if they help, it keeps them. No job can use another job's memory.
//!
//! **Below it** is the limit on concurrent requests to one bucket (`traffic/streams.rs` of `millstream-io`), which all
//! jobs of a host share. It is a separate search, because it has another scope, measure and pace: it compares bytes per
//! second of the bucket every 250 ms, and must obey at once when the service asks for fewer requests. The two do not
//! compete. The tuner decides how many ranges a job wants; the limit decides how many of them run, and the others wait.
//! If the limit binds, more streams bring the job no gain, so its tuner returns them; if no request waits, the limit has
//! nothing to learn and keeps still.
//!
//! **Not tuned** is the number of ring slots. Slots are used in turn, so keeping fewer of them full would not free
//! memory, and they do not limit the rate while the consumer keeps up.
//!
//! No setting exceeds the job's memory. [`Tuner`] is a pure state machine, from samples to settings, without a clock or
//! a thread; `drive.rs` runs it.

mod drive;
#[cfg(test)]
mod tests;

pub(crate) use drive::Drive;

/// The minimum gain of a move up.
const GAIN: f64 = 0.05;
/// The maximum loss of a move down, relative to the best rate seen.
const LOSS: f64 = 0.02;
/// The maximum relative distance from the rate at which the tuner settled.
const DRIFT: f64 = 0.2;
/// The number of consecutive samples beyond [`DRIFT`] after which the search restarts.
const STRIKES: u32 = 3;
/// The number of samples skipped after a move, and the number of samples averaged after that.
const PAUSE: u32 = 1;
const TAKEN: u32 = 2;
/// If the packer waits for the consumer for at least this share of the time, the consumer is the bottleneck.
const CONSUMER_BINDS: f64 = 0.1;

/// The tuned resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The number of lanes that decode concurrently.
    pub decoders: u32,
    /// The number of ranges in flight per object.
    pub streams: u32,
    /// The maximum bytes held per object.
    pub object_bytes: u64,
}

/// The bounds of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The maximum number of lanes that decode concurrently.
    pub(crate) most_decoders: u32,
    /// The maximum number of ranges in flight per object.
    pub(crate) most_streams: u32,
    /// The minimum and the maximum bytes held per object.
    pub(crate) least_object_bytes: u64,
    /// See `least_object_bytes`.
    pub(crate) most_object_bytes: u64,
    /// Whether the job sets the number of decoders, so that it is not tuned.
    pub(crate) fixed_decoders: bool,
    /// Whether the job sets the number of streams, so that it is not tuned.
    pub(crate) fixed_streams: bool,
}

/// Measurements since the last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Rows per second.
    pub(crate) rate: f64,
    /// The share of the time that the packer waited for the consumer.
    pub(crate) consumer_wait: f64,
    /// The average number of lanes that waited for bytes.
    pub(crate) lanes_fetching: f64,
    /// The average number of lanes that waited for a decode permit.
    pub(crate) lanes_queueing: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    MoreDecoders,
    MoreStreams,
    MoreBytes,
    MoreOfAll,
    FewerStreams,
    FewerDecoders,
}

const MOVES: [Move; 6] = [
    Move::MoreDecoders,
    Move::MoreStreams,
    Move::MoreBytes,
    Move::MoreOfAll,
    Move::FewerStreams,
    Move::FewerDecoders,
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Measures the baseline rate for the next move.
    Base,
    /// Measures the effect of `step`. The previous setting was `from`, with the rate `rate`.
    Trying { step: Move, from: Setting, rate: f64 },
    /// No move brings a gain.
    Settled { rate: f64, strikes: u32 },
}

/// The search; see the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Tuner {
    bounds: Bounds,
    setting: Setting,
    phase: Phase,
    /// The best rate since the search last started.
    best: f64,
    /// Whether each move has failed since the last successful one.
    failed: [bool; MOVES.len()],
    pause: u32,
    taken: u32,
    sum: f64,
}

impl Tuner {
    /// Starts at `setting`, clamped to `bounds`.
    pub(crate) fn new(bounds: Bounds, setting: Setting) -> Self {
        let setting = Setting {
            decoders: setting.decoders.clamp(1, bounds.most_decoders.max(1)),
            streams: setting.streams.clamp(1, bounds.most_streams.max(1)),
            object_bytes: setting
                .object_bytes
                .clamp(bounds.least_object_bytes, bounds.most_object_bytes.max(bounds.least_object_bytes)),
        };
        let (phase, failed) = (Phase::Base, [false; MOVES.len()]);
        Self { bounds, setting, phase, best: 0.0, failed, pause: PAUSE, taken: 0, sum: 0.0 }
    }

    /// The current setting.
    pub(crate) fn setting(&self) -> Setting {
        self.setting
    }

    /// Whether the search has settled.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Settled { .. })
    }

    /// Processes a sample and returns the setting to use from now on.
    pub(crate) fn step(&mut self, sample: &Sample) -> Setting {
        if sample.consumer_wait > CONSUMER_BINDS {
            self.defer();
            return self.setting;
        }
        if let Phase::Settled { rate, strikes } = self.phase {
            self.watch(sample.rate, rate, strikes);
            return self.setting;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return self.setting;
        }
        self.taken += 1;
        self.sum += sample.rate;
        if self.taken < TAKEN {
            return self.setting;
        }
        let rate = self.sum / f64::from(self.taken);
        let rate = self.judge(rate);
        self.try_next(rate, sample);
        self.setting
    }

    /// The consumer is the bottleneck: a running trial cannot be judged, so it is reverted and tried later.
    fn defer(&mut self) {
        if let Phase::Trying { from, .. } = self.phase {
            self.setting = from;
        }
        if !self.is_settled() {
            self.measure(Phase::Base);
        }
    }

    fn watch(&mut self, rate: f64, settled: f64, strikes: u32) {
        let strikes = if (rate - settled).abs() > DRIFT * settled { strikes + 1 } else { 0 };
        self.phase = Phase::Settled { rate: settled, strikes };
        if strikes >= STRIKES {
            (self.failed, self.best) = ([false; MOVES.len()], 0.0);
            self.measure(Phase::Base);
        }
    }

    /// Keeps or reverts the move on trial; returns the rate of the resulting setting.
    fn judge(&mut self, rate: f64) -> f64 {
        let Phase::Trying { step, from, rate: before } = self.phase else {
            self.best = self.best.max(rate);
            return rate;
        };
        let kept =
            if step.is_up() { rate >= before * (1.0 + GAIN) } else { rate >= self.best * (1.0 - LOSS) };
        if !kept {
            self.failed[step as usize] = true;
            self.setting = from;
            return before;
        }
        if step.is_up() {
            // With more of one resource, more of another may help.
            self.failed = [false; MOVES.len()];
        }
        if let Some(opposite) = step.opposite() {
            self.failed[opposite as usize] = true;
        }
        self.best = self.best.max(rate);
        rate
    }

    /// Makes the next promising move, or settles.
    fn try_next(&mut self, rate: f64, sample: &Sample) {
        let from = self.setting;
        for step in self.preferences(sample) {
            if self.failed[step as usize] {
                continue;
            }
            match self.moved(step) {
                Some(setting) => {
                    self.setting = setting;
                    return self.measure(Phase::Trying { step, from, rate });
                }
                None => self.failed[step as usize] = true,
            }
        }
        self.phase = Phase::Settled { rate, strikes: 0 };
    }

    /// The order of moves: first those that relieve what lanes wait for, last those that return resources.
    fn preferences(&self, sample: &Sample) -> [Move; MOVES.len()] {
        let mut moves = MOVES;
        if sample.lanes_fetching > sample.lanes_queueing {
            moves[..3].rotate_left(1);
        }
        moves
    }

    fn measure(&mut self, phase: Phase) {
        self.phase = phase;
        (self.pause, self.taken, self.sum) = (PAUSE, 0, 0.0);
    }

    /// The setting after a move; `None` if it is out of bounds.
    fn moved(&self, step: Move) -> Option<Setting> {
        let Bounds { most_decoders, most_streams, most_object_bytes, .. } = self.bounds;
        let now = self.setting;
        let quarter = (now.decoders / 4).max(1);
        let more = Setting {
            decoders: (now.decoders + quarter).min(most_decoders),
            streams: (now.streams * 2).min(most_streams),
            object_bytes: now.object_bytes.saturating_mul(2).min(most_object_bytes),
        };
        let mut moved = match step {
            Move::MoreDecoders => Setting { decoders: more.decoders, ..now },
            Move::FewerDecoders => Setting { decoders: (now.decoders - quarter).max(1), ..now },
            Move::MoreStreams => Setting { streams: more.streams, ..now },
            Move::FewerStreams => Setting { streams: (now.streams / 2).max(1), ..now },
            Move::MoreBytes => Setting { object_bytes: more.object_bytes, ..now },
            Move::MoreOfAll => more,
        };
        if self.bounds.fixed_decoders {
            moved.decoders = now.decoders;
        }
        if self.bounds.fixed_streams {
            moved.streams = now.streams;
        }
        (moved != now).then_some(moved)
    }
}

impl Move {
    fn is_up(self) -> bool {
        matches!(self, Self::MoreDecoders | Self::MoreStreams | Self::MoreBytes | Self::MoreOfAll)
    }

    /// The move that reverts this one.
    fn opposite(self) -> Option<Self> {
        match self {
            Self::MoreDecoders => Some(Self::FewerDecoders),
            Self::FewerDecoders => Some(Self::MoreDecoders),
            Self::MoreStreams => Some(Self::FewerStreams),
            Self::FewerStreams => Some(Self::MoreStreams),
            Self::MoreBytes | Self::MoreOfAll => None,
        }
    }
}
