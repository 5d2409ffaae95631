//! Passes over the data, and the assignment of splits to lanes.
//!
//! A job's feed is a fixed sequence of passes: `Train(0), Eval(0), Train(1), Eval(1), ...`, with evaluation
//! only if the job has evaluation data. A training pass with a shuffle pool is *shuffled*: its splits are
//! permuted by (seed, epoch). Other passes keep the data's order.
//!
//! # Lanes
//!
//! Split `i` of the sequence belongs to lane `i mod V`. A lane's rows are the rows of its splits, in order. The
//! job determines V, not the machine: lanes are the unit of order, resuming, parallel reading and distribution
//! over hosts, so results would otherwise depend on cores or hosts.
//!
//! Invariants: each split is in exactly one lane; with fewer splits than lanes, the first lanes have one split
//! each and the others none; the numbers of splits of two lanes differ by at most one.

use millstream_batch::Stream;

use super::groups;
use super::random::{Domain, Random};

/// Minimum number of rows that a lane of an ordered pass reads at a time.
const MIN_RUN_ROWS: u32 = 1024;

/// The parameters of a job's row order, besides its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderSpec {
    /// Seed of all permutations.
    pub seed: u64,
    /// Number of lanes (`V`), at least 1.
    pub lanes: u32,
    /// Rows of the shuffle pool; 0 keeps the data's order.
    pub shuffle_rows: u64,
    /// The single-valued feature whose ids group rows: within a window, the rows of a group stay adjacent.
    pub group: Option<u32>,
}

/// The division of data into splits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Number of splits.
    pub splits: u32,
    /// Distinguishes divisions of the same data into equally many splits; 0 if the data itself determines the splits.
    pub cuts: u64,
}

/// One pass over the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The training data or the evaluation data.
    pub stream: Stream,
    /// The epoch, from 0; for an evaluation, the epoch it follows.
    pub epoch: u32,
}

/// The sequence of passes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// Training epochs, each optionally followed by an evaluation.
    Train {
        /// Number of passes over the training data.
        epochs: u32,
        /// Whether a pass over the evaluation data follows each.
        eval: bool,
    },
    /// One pass in the data's order, for evaluation or prediction.
    Score,
}

impl Feed {
    /// The first pass; `None` for an empty feed.
    pub fn first(self) -> Option<Pass> {
        match self {
            Self::Train { epochs: 0, .. } => None,
            Self::Train { .. } => Some(Pass { stream: Stream::Train, epoch: 0 }),
            Self::Score => Some(Pass { stream: Stream::Eval, epoch: 0 }),
        }
    }

    /// The pass after `pass`; `None` after the last.
    pub fn after(self, pass: Pass) -> Option<Pass> {
        let Self::Train { epochs, eval } = self else { return None };
        match pass.stream {
            Stream::Train if eval => Some(Pass { stream: Stream::Eval, ..pass }),
            _ => (pass.epoch + 1 < epochs).then(|| Pass { stream: Stream::Train, epoch: pass.epoch + 1 }),
        }
    }

    /// Whether the feed contains `pass`.
    pub fn contains(self, pass: Pass) -> bool {
        match self {
            Self::Train { epochs, eval } => pass.epoch < epochs && (eval || pass.stream == Stream::Train),
            Self::Score => pass == Pass { stream: Stream::Eval, epoch: 0 },
        }
    }
}

/// The mixing of rows in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixing {
    /// Whole splits are taken from the lanes in turn, which keeps the data's order.
    Ordered {
        /// Maximum rows that a lane reads at a time, at least 1. Does not affect the order.
        run_rows: u32,
    },
    /// Rows are taken from the lanes in turn, with each lane's rows permuted within windows.
    Shuffled {
        /// Rows of a window (`W`), at least 1.
        window_rows: u32,
    },
}

impl Mixing {
    /// Whether rows keep the data's order.
    pub fn is_ordered(self) -> bool {
        matches!(self, Self::Ordered { .. })
    }

    /// Maximum rows that a lane reads at a time.
    pub fn max_rows(self) -> u32 {
        match self {
            Self::Ordered { run_rows: rows } | Self::Shuffled { window_rows: rows } => rows,
        }
    }
}

/// The order of one pass: the splits of each lane, and the mixing of lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassOrder {
    pass: Pass,
    seed: u64,
    mixing: Mixing,
    group: Option<u32>,
    /// Splits of each lane, in reading order.
    lanes: Vec<Vec<u32>>,
}

impl PassOrder {
    /// The order of `pass` over data with `splits` splits.
    pub fn new(spec: &OrderSpec, pass: Pass, splits: u32) -> Self {
        let mixing = spec.mixing(pass.stream, splits);
        let mut sequence: Vec<u32> = (0..splits).collect();
        if !mixing.is_ordered() {
            Random::keyed(Domain::Splits, &[spec.seed, u64::from(pass.epoch)]).shuffle(&mut sequence);
        }
        let lanes = spec.lanes as usize;
        let lanes =
            (0..lanes).map(|lane| sequence.iter().copied().skip(lane).step_by(lanes).collect()).collect();
        Self { pass, seed: spec.seed, mixing, group: spec.group, lanes }
    }

    /// The pass.
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// The mixing of its rows.
    pub fn mixing(&self) -> Mixing {
        self.mixing
    }

    /// Number of lanes (`V`), including those without splits.
    pub fn lanes(&self) -> u32 {
        self.lanes.len() as u32
    }

    /// The splits of `lane`, in reading order.
    ///
    /// # Panics
    /// When `lane` is out of range.
    pub fn splits(&self, lane: u32) -> &[u32] {
        &self.lanes[lane as usize]
    }

    /// Number of rows of window `window` of `lane`, unless its splits have fewer.
    ///
    /// The first window of a shuffled pass has `W (lane + 1) / live lanes` rows, so that the lanes' windows do not
    /// all end simultaneously.
    pub fn window_rows(&self, lane: u32, window: u64) -> u32 {
        let max = self.mixing.max_rows();
        if self.mixing.is_ordered() || window > 0 {
            return max;
        }
        let live = self.lanes.iter().take_while(|splits| !splits.is_empty()).count().max(1) as u64;
        let share = u64::from(max) * (u64::from(lane) + 1) / live;
        share.clamp(1, u64::from(max)) as u32
    }

    /// Permutes the rows of window `window` of `lane` into the order in which they are drawn. `id_of` returns a row's id
    /// of a single-valued feature.
    pub fn permute<T: Copy>(&self, lane: u32, window: u64, rows: &mut [T], id_of: impl Fn(T, u32) -> u32) {
        if self.mixing.is_ordered() {
            return;
        }
        let mut random = self.random(Domain::Window, lane, window);
        match self.group {
            None => random.shuffle(rows),
            Some(feature) => groups::permute(random, rows, |row| id_of(row, feature)),
        }
    }

    /// Permutes the sequences into which the rows of a window are packed.
    pub(crate) fn permute_sequences<T>(&self, lane: u32, window: u64, sequences: &mut [T]) {
        if !self.mixing.is_ordered() {
            self.random(Domain::Sequences, lane, window).shuffle(sequences);
        }
    }

    /// The random numbers of a window.
    fn random(&self, domain: Domain, lane: u32, window: u64) -> Random {
        Random::keyed(domain, &[self.seed, u64::from(self.pass.epoch), u64::from(lane), window])
    }
}

impl OrderSpec {
    /// The mixing of a pass of `stream` over data with `splits` splits.
    ///
    /// The lanes that have splits share the pool, so that data with few splits uses the whole pool too.
    pub fn mixing(&self, stream: Stream, splits: u32) -> Mixing {
        let share = self.shuffle_rows / u64::from(self.live_lanes(splits).max(1));
        let share = share.min(u64::from(u32::MAX)) as u32;
        if stream == Stream::Eval || self.shuffle_rows == 0 {
            return Mixing::Ordered { run_rows: share.max(MIN_RUN_ROWS) };
        }
        Mixing::Shuffled { window_rows: share.max(1) }
    }

    /// Number of lanes that have splits, for data with `splits` splits.
    pub fn live_lanes(&self, splits: u32) -> u32 {
        self.lanes.min(splits)
    }

    /// Identifies the order of a job over data divided into these splits. Positions are valid only for the same order.
    pub fn fingerprint(&self, feed: Feed, train: Cut, eval: Cut) -> u64 {
        let feed = match feed {
            Feed::Train { eval, .. } => 1 + u64::from(eval),
            Feed::Score => 0,
        };
        let mut key = vec![
            self.seed,
            u64::from(self.lanes),
            self.shuffle_rows,
            feed,
            u64::from(train.splits) ^ train.cuts,
            u64::from(eval.splits) ^ eval.cuts,
        ];
        key.extend(self.group.map(u64::from));
        Random::keyed(Domain::Fingerprint, &key).next()
    }
}
