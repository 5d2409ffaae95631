//! The planted model: the values of the columns, and the probability of a click given them.
//!
//! The columns resemble Criteo's click log: 13 counts, many of them missing, and 26 categorical columns with 3
//! to millions of distinct values. A row's log-odds are linear in some ids and in the logarithms of some
//! counts, plus products of latent factors for some pairs of columns, which a linear model cannot represent
//! without crosses. Weights are hashes of ids, so the model needs no memory, and an id has the same weight
//! for any number of rows.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, StringArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};

use super::IdForm;
use super::best::BITS;
use super::draw::{Draws, mix32, normal};
use super::zipf::Zipf;

/// A column of counts: `floor(exp(mean + deviation * z))` for an approximately normal `z`.
struct Count {
    /// The share of rows without a value.
    missing: f64,
    /// The mean of the logarithm.
    mean: f64,
    deviation: f64,
    /// The change of the log-odds per standard deviation of the logarithm.
    weight: f64,
}

/// A categorical column.
struct Category {
    /// The number of distinct values, before the limit of the generator.
    values: u32,
    /// The exponent of the Zipf distribution of their frequencies.
    exponent: f64,
    /// The share of rows without a value.
    missing: f64,
    /// The standard deviation of the ids' weights.
    weight: f64,
}

/// Two categorical columns whose latent factors are multiplied.
struct Pair {
    first: usize,
    second: usize,
    weight: f64,
}

const fn count(missing: f64, mean: f64, deviation: f64, weight: f64) -> Count {
    Count { missing, mean, deviation, weight }
}

const fn category(values: u32, exponent: f64, missing: f64, weight: f64) -> Category {
    Category { values, exponent, missing, weight }
}

const COUNTS: [Count; 13] = [
    count(0.45, 0.9, 1.2, 0.45),
    count(0.0, 2.5, 1.9, 0.0),
    count(0.21, 2.0, 1.5, 0.2),
    count(0.21, 1.6, 1.0, 0.0),
    count(0.03, 8.0, 2.0, -0.3),
    count(0.22, 3.8, 1.4, -0.25),
    count(0.04, 1.5, 1.6, 0.4),
    count(0.0, 2.1, 1.0, 0.0),
    count(0.04, 3.9, 1.4, 0.0),
    count(0.45, 0.1, 0.6, 0.15),
    count(0.04, 0.8, 0.9, 0.2),
    count(0.76, 0.2, 0.8, 0.0),
    count(0.21, 1.6, 1.1, 0.0),
];

const CATEGORIES: [Category; 26] = [
    category(1460, 1.25, 0.0, 0.3),
    category(583, 1.15, 0.0, 0.25),
    category(10_131_227, 1.1, 0.03, 0.2),
    category(2_202_608, 1.1, 0.03, 0.0),
    category(305, 1.2, 0.0, 0.0),
    category(24, 0.8, 0.12, 0.3),
    category(12_517, 1.05, 0.0, 0.2),
    category(633, 1.3, 0.0, 0.0),
    category(3, 0.5, 0.0, 0.25),
    category(93_145, 1.15, 0.0, 0.0),
    category(5683, 1.05, 0.0, 0.25),
    category(8_351_593, 1.1, 0.03, 0.0),
    category(3194, 1.05, 0.0, 0.2),
    category(27, 0.9, 0.0, 0.35),
    category(14_992, 1.1, 0.0, 0.0),
    category(5_461_306, 1.1, 0.03, 0.15),
    category(10, 0.8, 0.0, 0.35),
    category(5652, 1.1, 0.0, 0.2),
    category(2173, 1.3, 0.44, 0.0),
    category(4, 0.7, 0.44, 0.2),
    category(7_046_547, 1.1, 0.03, 0.0),
    category(18, 1.6, 0.76, 0.0),
    category(15, 0.9, 0.0, 0.15),
    category(286_181, 1.2, 0.03, 0.15),
    category(105, 1.2, 0.44, 0.15),
    category(142_572, 1.2, 0.44, 0.0),
];

const PAIRS: [Pair; 3] = [
    Pair { first: 5, second: 13, weight: 0.5 },
    Pair { first: 8, second: 16, weight: 0.4 },
    Pair { first: 1, second: 24, weight: 0.4 },
];

/// Latent factors per id in a pair.
const FACTORS: u64 = 2;

/// The log-odds without any other effect.
const BIAS: f64 = -1.45;

/// The names of the columns, starting with the label.
pub(super) fn names() -> Vec<String> {
    let counts = (1..=COUNTS.len()).map(|number| format!("i{number}"));
    let categories = (1..=CATEGORIES.len()).map(|number| format!("c{number}"));
    std::iter::once("clicked".to_owned()).chain(counts).chain(categories).collect()
}

/// The [`Draws`] streams: one per column and per kind of weight.
mod stream {
    pub(super) const LABEL: u64 = 0;
    pub(super) const COUNT: u64 = 1 << 8;
    pub(super) const CATEGORY: u64 = 2 << 8;
    pub(super) const MISSING: u64 = 1 << 16;
    pub(super) const WEIGHT: u64 = 2 << 16;
    pub(super) const FACTOR: u64 = 3 << 16;
}

/// The planted model for one seed.
pub(super) struct Clicks {
    seed: u64,
    ids: IdForm,
    laws: Vec<Zipf>,
}

/// Consecutive rows.
pub(super) struct Rows {
    /// In the order of [`names`].
    pub(super) columns: Vec<ArrayRef>,
    /// Each row's click probability, times 2^20.
    pub(super) points: Vec<u32>,
    /// Each row's label.
    pub(super) clicked: Vec<bool>,
}

impl Clicks {
    /// `max_values` limits the distinct values of each categorical column.
    pub(super) fn new(seed: u64, max_values: u32, ids: IdForm) -> Self {
        let law = |column: &Category| Zipf::new(column.values.min(max_values), column.exponent);
        Self { seed, ids, laws: CATEGORIES.iter().map(law).collect() }
    }

    /// Generates `rows` rows, starting at row number `first`.
    pub(super) fn rows(&self, first: u64, rows: usize) -> Rows {
        let mut odds = vec![BIAS; rows];
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(1 + COUNTS.len() + CATEGORIES.len());
        for (index, column) in COUNTS.iter().enumerate() {
            let values = self.counts(index as u64, column, first, &mut odds);
            columns.push(Arc::new(Int64Array::from_iter(values)));
        }
        let mut ranks = Vec::with_capacity(CATEGORIES.len());
        for (index, column) in CATEGORIES.iter().enumerate() {
            ranks.push(self.ranks(index, column, first, &mut odds));
            columns.push(self.ids.column(index as u32, &ranks[index]));
        }
        for (index, pair) in PAIRS.iter().enumerate() {
            self.pair(index as u64, pair, &ranks[pair.first], &ranks[pair.second], &mut odds);
        }
        let label = Draws::new(self.seed, stream::LABEL);
        let points: Vec<u32> = odds.iter().map(|&odds| point(odds)).collect();
        let drawn =
            |(row, &point): (usize, &u32)| label.at(first + row as u64) >> (64 - BITS) < u64::from(point);
        let clicked: Vec<bool> = points.iter().enumerate().map(drawn).collect();
        let labels = Int64Array::from_iter_values(clicked.iter().map(|&clicked| i64::from(clicked)));
        columns.insert(0, Arc::new(labels));
        Rows { columns, points, clicked }
    }

    /// Generates a column's counts and adds their effect to the log-odds.
    fn counts(&self, index: u64, column: &Count, first: u64, odds: &mut [f64]) -> Vec<Option<i64>> {
        let values = Draws::new(self.seed, stream::COUNT + index);
        let absent = Absent::new(self.seed, stream::COUNT + index, column.missing);
        let rows = odds.iter_mut().zip(first..);
        let value = |(odds, row): (&mut f64, u64)| {
            let count = (!absent.at(row))
                .then(|| (column.mean + column.deviation * normal(values.at(row))).exp().floor());
            if column.weight != 0.0 {
                // A missing count has about the effect of a small one.
                let effect = count.map_or(-0.5, |count| (count.ln_1p() - column.mean) / column.deviation);
                *odds += column.weight * effect;
            }
            // Far below 2^53: the largest mean and deviation give e^15.
            count.map(|count| count as i64)
        };
        rows.map(value).collect()
    }

    /// Generates a column's ids by rank, 0 for none, and adds their effect to the log-odds.
    fn ranks(&self, index: usize, column: &Category, first: u64, odds: &mut [f64]) -> Vec<u32> {
        let stream = stream::CATEGORY + index as u64;
        let draws = Draws::new(self.seed, stream);
        let absent = Absent::new(self.seed, stream, column.missing);
        let law = &self.laws[index];
        let rows = first..first + odds.len() as u64;
        let ranks: Vec<u32> =
            rows.map(|row| if absent.at(row) { 0 } else { law.rank(draws.at(row)) }).collect();
        if column.weight != 0.0 {
            let weights = Draws::new(self.seed, stream::WEIGHT + stream);
            for (odds, &rank) in odds.iter_mut().zip(&ranks) {
                *odds += column.weight * normal(weights.at(rank.into()));
            }
        }
        ranks
    }

    fn pair(&self, index: u64, pair: &Pair, first: &[u32], second: &[u32], odds: &mut [f64]) {
        let scale = pair.weight / (FACTORS as f64).sqrt();
        for factor in 0..FACTORS {
            let stream = stream::FACTOR + (index * FACTORS + factor) * 2;
            let (one, other) = (Draws::new(self.seed, stream), Draws::new(self.seed, stream + 1));
            for ((odds, &a), &b) in odds.iter_mut().zip(first).zip(second) {
                *odds += scale * normal(one.at(a.into())) * normal(other.at(b.into()));
            }
        }
    }
}

/// Selects the rows of a column that have no value.
struct Absent {
    draws: Draws,
    /// Draws below this mean absent.
    below: u64,
}

impl Absent {
    fn new(seed: u64, stream: u64, share: f64) -> Self {
        // Saturates; a share is less than 1.
        let below = (share * u64::MAX as f64) as u64;
        Self { draws: Draws::new(seed, stream::MISSING + stream), below }
    }

    #[inline]
    fn at(&self, row: u64) -> bool {
        self.below > 0 && self.draws.at(row) < self.below
    }
}

impl IdForm {
    /// The ids of column `index`: scrambled ranks, so that their order reveals nothing.
    fn column(self, index: u32, ranks: &[u32]) -> ArrayRef {
        let salt = mix32(index + 1);
        let present = ranks.contains(&0).then(|| NullBuffer::from_iter(ranks.iter().map(|&rank| rank != 0)));
        match self {
            Self::Integer => {
                let ids = ranks.iter().map(|&rank| if rank == 0 { 0 } else { mix32(rank ^ salt).into() });
                Arc::new(Int64Array::new(ScalarBuffer::from_iter(ids), present))
            }
            Self::Hex => {
                let mut text = Vec::with_capacity(ranks.len() * 8);
                let mut lengths = Vec::with_capacity(ranks.len());
                for &rank in ranks {
                    lengths.push(if rank == 0 { 0 } else { 8 });
                    if rank != 0 {
                        text.extend_from_slice(&hex(mix32(rank ^ salt)));
                    }
                }
                let offsets = OffsetBuffer::<i32>::from_lengths(lengths);
                Arc::new(StringArray::new(offsets, Buffer::from_vec(text), present))
            }
        }
    }
}

/// The probability for the given log-odds, rounded to the grid and never 0 or 1.
fn point(odds: f64) -> u32 {
    const ONE: f64 = (1_u32 << BITS) as f64;
    let probability = 1.0 / (1.0 + (-odds).exp());
    (probability * ONE).round().clamp(1.0, ONE - 1.0) as u32
}

fn hex(id: u32) -> [u8; 8] {
    std::array::from_fn(|digit| b"0123456789abcdef"[(id >> (28 - 4 * digit) & 15) as usize])
}
