//! Passes over the data, and how one pass deals its splits to lanes.
//!
//! A job's feed is a fixed sequence of passes: `Train(0), Eval(0), Train(1), Eval(1), ...`, evaluation
//! only where there is data for it. A training pass with a shuffle pool is *shuffled*: its splits are
//! permuted by (seed, epoch). Any other pass keeps the data's order.
//!
//! # Lanes
//!
//! Permuted or not, split `i` of the sequence goes to lane `i mod V`. A lane's rows are the rows of its
//! splits, one split after the other. V is fixed by the job and not by the machine: lanes are the unit of
//! order, of resuming, of reading side by side, and of sharing work among hosts, and anything that depended on
//! cores or hosts would make results depend on them.
//!
//! Invariants: each split is in exactly one lane; with fewer splits than lanes the first lanes have one each
//! and the rest none; lanes differ by one split at most, so they are as even as the splits are.

use millstream_batch::Stream;

use super::random::{Domain, Random};

/// The fewest rows that a lane of an ordered pass reads at a time, when nothing is shuffled anyway.
const FEWEST_RUN_ROWS: u32 = 1024;

/// What fixes the order of a job's rows, besides its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderSpec {
    /// Keys every permutation.
    pub seed: u64,
    /// Virtual streams (`V`), at least 1.
    pub lanes: u32,
    /// Rows of the shuffle pool; 0 keeps the data's order.
    pub shuffle_rows: u64,
}

/// How data is cut into splits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Splits there are.
    pub splits: u32,
    /// What tells them from as many others of the same data; 0 where the data itself says how it is split.
    pub cuts: u64,
}

/// One pass over the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Over the training data, or the held-out data.
    pub stream: Stream,
    /// The epoch, from 0; for an evaluation, the epoch it follows.
    pub epoch: u32,
}

/// The sequence of passes that a worker is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// Epochs of training, each followed by an evaluation where there is data for it.
    Train {
        /// Passes over the training data.
        epochs: u32,
        /// Whether each is followed by a pass over the held-out data.
        eval: bool,
    },
    /// One pass in the data's order, to evaluate or to predict.
    Score,
}

impl Feed {
    /// The first pass; `None` when there is none.
    pub fn first(self) -> Option<Pass> {
        match self {
            Self::Train { epochs: 0, .. } => None,
            Self::Train { .. } => Some(Pass { stream: Stream::Train, epoch: 0 }),
            Self::Score => Some(Pass { stream: Stream::Eval, epoch: 0 }),
        }
    }

    /// The pass that follows `pass`; `None` when it is the last.
    pub fn after(self, pass: Pass) -> Option<Pass> {
        let Self::Train { epochs, eval } = self else { return None };
        match pass.stream {
            Stream::Train if eval => Some(Pass { stream: Stream::Eval, ..pass }),
            _ => (pass.epoch + 1 < epochs).then(|| Pass { stream: Stream::Train, epoch: pass.epoch + 1 }),
        }
    }

    /// Whether `pass` is one of the sequence.
    pub fn contains(self, pass: Pass) -> bool {
        match self {
            Self::Train { epochs, eval } => pass.epoch < epochs && (eval || pass.stream == Stream::Train),
            Self::Score => pass == Pass { stream: Stream::Eval, epoch: 0 },
        }
    }
}

/// How the rows of a pass are mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixing {
    /// Not at all: whole splits are taken from the lanes in turn, which is the data's order.
    Ordered {
        /// The most rows that a lane reads at a time, at least 1. It has no influence on the order.
        run_rows: u32,
    },
    /// Rows are taken from the lanes in turn, each lane's permuted within windows.
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

    /// The most rows that a lane reads at a time.
    pub fn most_rows(self) -> u32 {
        match self {
            Self::Ordered { run_rows: rows } | Self::Shuffled { window_rows: rows } => rows,
        }
    }
}

/// The order of one pass: what each lane reads, and how the lanes are mixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassOrder {
    pass: Pass,
    seed: u64,
    mixing: Mixing,
    /// Splits of each lane, in reading order.
    lanes: Vec<Vec<u32>>,
}

impl PassOrder {
    /// The order of `pass` over data of `splits` splits.
    pub fn new(spec: &OrderSpec, pass: Pass, splits: u32) -> Self {
        let mixing = spec.mixing(pass.stream, splits);
        let mut sequence: Vec<u32> = (0..splits).collect();
        if !mixing.is_ordered() {
            Random::keyed(Domain::Splits, &[spec.seed, u64::from(pass.epoch)]).shuffle(&mut sequence);
        }
        let lanes = spec.lanes as usize;
        let lanes =
            (0..lanes).map(|lane| sequence.iter().copied().skip(lane).step_by(lanes).collect()).collect();
        Self { pass, seed: spec.seed, mixing, lanes }
    }

    /// The pass.
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// How its rows are mixed.
    pub fn mixing(&self) -> Mixing {
        self.mixing
    }

    /// Lanes (`V`), those without splits included.
    pub fn lanes(&self) -> u32 {
        self.lanes.len() as u32
    }

    /// The splits of `lane`, in reading order.
    ///
    /// # Panics
    /// When there is no such lane.
    pub fn splits(&self, lane: u32) -> &[u32] {
        &self.lanes[lane as usize]
    }

    /// Rows of window `window` of `lane`, if its splits hold as many.
    ///
    /// The first window of a shuffled pass is shorter by lane, `W (lane + 1) / live lanes`, so that the
    /// lanes' windows end one after the other and not all at once.
    pub fn window_rows(&self, lane: u32, window: u64) -> u32 {
        let most = self.mixing.most_rows();
        if self.mixing.is_ordered() || window > 0 {
            return most;
        }
        let live = self.lanes.iter().take_while(|splits| !splits.is_empty()).count().max(1) as u64;
        let share = u64::from(most) * (u64::from(lane) + 1) / live;
        share.clamp(1, u64::from(most)) as u32
    }

    /// Puts the rows of window `window` of `lane` in the order in which they are drawn.
    pub fn permute<T>(&self, lane: u32, window: u64, rows: &mut [T]) {
        if !self.mixing.is_ordered() {
            let key = [self.seed, u64::from(self.pass.epoch), u64::from(lane), window];
            Random::keyed(Domain::Window, &key).shuffle(rows);
        }
    }
}

impl OrderSpec {
    /// How rows are mixed in a pass of `stream` over data of `splits` splits.
    ///
    /// The pool is shared by the lanes that have splits at all, so that data of few splits is shuffled
    /// as widely as any.
    pub fn mixing(&self, stream: Stream, splits: u32) -> Mixing {
        let share = self.shuffle_rows / u64::from(self.live_lanes(splits).max(1));
        let share = share.min(u64::from(u32::MAX)) as u32;
        if stream == Stream::Eval || self.shuffle_rows == 0 {
            return Mixing::Ordered { run_rows: share.max(FEWEST_RUN_ROWS) };
        }
        Mixing::Shuffled { window_rows: share.max(1) }
    }

    /// Lanes that have something to read in data of `splits` splits.
    pub fn live_lanes(&self, splits: u32) -> u32 {
        self.lanes.min(splits)
    }

    /// Identifies the order of a job over data that is cut so: positions of one are of no use to another.
    pub fn fingerprint(&self, feed: Feed, train: Cut, eval: Cut) -> u64 {
        let feed = match feed {
            Feed::Train { eval, .. } => 1 + u64::from(eval),
            Feed::Score => 0,
        };
        let key = [
            self.seed,
            u64::from(self.lanes),
            self.shuffle_rows,
            feed,
            u64::from(train.splits) ^ train.cuts,
            u64::from(eval.splits) ^ eval.cuts,
        ];
        Random::keyed(Domain::Fingerprint, &key).next()
    }
}
