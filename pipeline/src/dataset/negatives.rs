//! Down-sampling of negative rows: most rows of a click log have the label 0, and a sample of them teaches nearly as much.
//!
//! Which rows are kept is decided by a hash of the row's place ([`Share`]): the same ones in every epoch and after a resume.
//! Training weighs each kept row by the inverse of the sampled fraction, so that predictions stay calibrated: the estimator
//! of Horvitz and Thompson, "A Generalization of Sampling Without Replacement From a Finite Universe", 1952.

use std::sync::Arc;

use millstream_format::filter::{Share, Side};
use millstream_format::{Projection, RawChunk};

use crate::Error;
use crate::spec::LabelColumn;
use crate::transform::Labels;

/// Distinguishes the sample from a share that is held out by the same hash.
const SEED: u64 = 0x6e65_6761_7469_7665;

/// A sample of the rows with the label 0.
#[derive(Clone, Debug)]
pub struct Negatives {
    labels: Arc<Labels>,
    share: Share,
}

impl Negatives {
    /// Keeps about `fraction` of the rows whose `label` is 0. `missing` holds the values that mean "missing".
    pub fn new(label: &LabelColumn, missing: &[String], fraction: f64) -> Self {
        let share = Share { held_out: 0.0..fraction, seed: SEED, column: None, side: Side::HeldOut };
        Self { labels: Arc::new(Labels::new(label, missing)), share }
    }

    /// The position of the label's column; appends it to `projection` if it is not included yet.
    pub(super) fn project(&self, projection: &mut Projection) -> usize {
        self.labels.project(projection)
    }

    /// The rows of `raw` that are kept, whose column `place` is the label. A row without a usable label is kept, for the
    /// transform to report it.
    pub(super) fn apply(&self, raw: RawChunk, place: usize) -> Result<RawChunk, Error> {
        let negative = self.labels.are_zero(&raw, place)?;
        let is_kept = |(row, &negative): (usize, &bool)| {
            !negative || self.share.holds_record(raw.path(), raw.record(row))
        };
        let keep: Vec<bool> = negative.iter().enumerate().map(is_kept).collect();
        if !keep.contains(&false) {
            return Ok(raw);
        }
        let columns: Vec<usize> = (0..raw.columns().num_columns()).collect();
        Ok(raw.retain(&keep, &columns)?)
    }
}
