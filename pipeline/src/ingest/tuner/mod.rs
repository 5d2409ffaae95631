//! Finds, while a job runs, how much of the machine its ingest should use.
//!
//! What is tuned are resources and never the order: lanes and the shuffle pool are fixed by the job, and
//! how many lanes decode at once ([`Setting::decoders`]), how many ranges of an object are in flight
//! ([`Setting::streams`]) and how many bytes each object's reading may hold ([`Setting::object_bytes`], the
//! depth of read-ahead) change nothing but the rate.
//!
//! The search is hill climbing, one knob at a time, on the rate of rows. A move doubles or halves a knob
//! (decoders go by a quarter). The rate after a pause, which lets the move take effect, is compared with the rate
//! before it: a move up must gain [`GAIN`] to be kept, since it costs something; a move down, tried after
//! the others, is kept if it loses less than [`LOSS`] of the best rate seen, so that what brings nothing is
//! given back. Where two knobs bind at once, neither gains anything alone, so a move of all comes before
//! these. Which knob is tried first follows from what lanes wait for. When every move was tried in
//! vain the tuner is settled, and only watches: when the rate stays away from the one it settled at by more
//! than [`DRIFT`], for [`STRIKES`] samples in a row (a neighbour has started, the storage is slower), it
//! begins anew from where it stands. While the consumer is what binds, nothing is tried: more input would
//! be of no use, and the rate says nothing about ingest.
//!
//! **Several jobs** on one host each have a budget and a tuner of their own, and know nothing of each other.
//! The kernel gives their threads the same share of the cores; a tuner that finds more decoders of no use,
//! since a neighbour has the cores, gives them back; and one that finds them of use takes them. No job
//! can take another's memory.
//!
//! **Not tuned** is the ring: its slots are used in turn, so that keeping fewer of them full would free no
//! memory, and they hold back nothing while the consumer keeps up.
//!
//! A setting that needs more than the job's memory is never made. [`Tuner`] is a pure state machine:
//! samples in, settings out, no clock and no thread; `drive.rs` runs it.

mod drive;
#[cfg(test)]
mod tests;

pub(crate) use drive::Drive;

/// What a move up must gain.
const GAIN: f64 = 0.05;
/// What a move down may lose, of the best rate seen.
const LOSS: f64 = 0.02;
/// How far the rate may be from the one settled at.
const DRIFT: f64 = 0.2;
/// For how many samples in a row, until the tuner begins anew.
const STRIKES: u32 = 3;
/// Samples left out after a move, and samples whose mean is taken then.
const PAUSE: u32 = 1;
const TAKEN: u32 = 2;
/// The share of time that the packer waits for the consumer from which on the consumer binds.
const CONSUMER_BINDS: f64 = 0.1;

/// What is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Lanes that decode at once.
    pub decoders: u32,
    /// Ranges in flight for one object.
    pub streams: u32,
    /// Bytes that the reading of one object holds at most.
    pub object_bytes: u64,
}

/// Between what bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The most lanes that may decode at once.
    pub(crate) most_decoders: u32,
    /// The most ranges in flight for one object.
    pub(crate) most_streams: u32,
    /// The fewest and the most bytes of one object's reading.
    pub(crate) least_object_bytes: u64,
    /// Above.
    pub(crate) most_object_bytes: u64,
    /// The job gives the number of decoders: it stays.
    pub(crate) fixed_decoders: bool,
    /// The job gives the number of streams: it stays.
    pub(crate) fixed_streams: bool,
}

/// What was measured since the last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Rows a second.
    pub(crate) rate: f64,
    /// Share of the time that the packer waited for the consumer.
    pub(crate) consumer_wait: f64,
    /// Lanes that waited for bytes, on average.
    pub(crate) lanes_fetching: f64,
    /// Lanes that waited for their turn to decode, on average.
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
    /// Measures the rate that the next move is compared with.
    Base,
    /// Measures what a move from this setting, which had this rate, brings.
    Trying { step: Move, from: Setting, rate: f64 },
    /// Nothing better is known.
    Settled { rate: f64, strikes: u32 },
}

/// The search; see the module.
#[derive(Clone, Debug)]
pub(crate) struct Tuner {
    bounds: Bounds,
    setting: Setting,
    phase: Phase,
    /// The best rate since it last began.
    best: f64,
    /// Moves that brought nothing since the last that did.
    vain: [bool; MOVES.len()],
    pause: u32,
    taken: u32,
    sum: f64,
}

impl Tuner {
    /// Begins at `setting`, or what of it lies within `bounds`.
    pub(crate) fn new(bounds: Bounds, setting: Setting) -> Self {
        let setting = Setting {
            decoders: setting.decoders.clamp(1, bounds.most_decoders.max(1)),
            streams: setting.streams.clamp(1, bounds.most_streams.max(1)),
            object_bytes: setting
                .object_bytes
                .clamp(bounds.least_object_bytes, bounds.most_object_bytes.max(bounds.least_object_bytes)),
        };
        let (phase, vain) = (Phase::Base, [false; MOVES.len()]);
        Self { bounds, setting, phase, best: 0.0, vain, pause: PAUSE, taken: 0, sum: 0.0 }
    }

    /// What to use now.
    pub(crate) fn setting(&self) -> Setting {
        self.setting
    }

    /// Whether it has found what it looked for.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Settled { .. })
    }

    /// Takes a sample, and says what to use from now on.
    pub(crate) fn step(&mut self, sample: &Sample) -> Setting {
        if sample.consumer_wait > CONSUMER_BINDS {
            self.stand_back();
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

    /// The consumer binds: what is being tried cannot be judged, so it is taken back and tried later.
    fn stand_back(&mut self) {
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
            (self.vain, self.best) = ([false; MOVES.len()], 0.0);
            self.measure(Phase::Base);
        }
    }

    /// Keeps what was tried or takes it back; returns the rate of the setting that is left.
    fn judge(&mut self, rate: f64) -> f64 {
        let Phase::Trying { step, from, rate: before } = self.phase else {
            self.best = self.best.max(rate);
            return rate;
        };
        let kept =
            if step.is_up() { rate >= before * (1.0 + GAIN) } else { rate >= self.best * (1.0 - LOSS) };
        if !kept {
            self.vain[step as usize] = true;
            self.setting = from;
            return before;
        }
        if step.is_up() {
            // With more of one thing, more of another may be of use.
            self.vain = [false; MOVES.len()];
        }
        if let Some(opposite) = step.opposite() {
            self.vain[opposite as usize] = true;
        }
        self.best = self.best.max(rate);
        rate
    }

    /// Makes the next move that may bring something, or settles.
    fn try_next(&mut self, rate: f64, sample: &Sample) {
        let from = self.setting;
        for step in self.preferences(sample) {
            if self.vain[step as usize] {
                continue;
            }
            match self.moved(step) {
                Some(setting) => {
                    self.setting = setting;
                    return self.measure(Phase::Trying { step, from, rate });
                }
                None => self.vain[step as usize] = true,
            }
        }
        self.phase = Phase::Settled { rate, strikes: 0 };
    }

    /// What lanes wait for comes first; giving back comes last.
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

    /// The setting after a move; `None` where there is no room for it.
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

    /// The move that would take it back.
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
