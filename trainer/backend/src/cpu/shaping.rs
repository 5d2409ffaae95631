//! Gradient shaping: scaling, clipping and L2 regularization, before the optimizer's formula.

use crate::cpu::matrix::CpuMatrix;
use crate::update::Update;

/// The constants of [`Update`] other than its formula.
#[derive(Clone, Copy)]
pub(super) struct Shaping {
    scale: f32,
    clip: f32,
    l2: f32,
}

impl Shaping {
    /// The shaping of `update`, with `scale` `[1, 1]`.
    pub(super) fn new(update: &Update, scale: &CpuMatrix) -> Self {
        assert!(scale.rows() == 1 && scale.columns() == 1);
        Self { scale: scale.row(0)[0], clip: update.clip as f32, l2: update.l2 as f32 }
    }

    /// Whether the step is skipped.
    pub(super) fn skips(self) -> bool {
        self.scale == 0.0
    }

    /// The shaped gradient of weight `w`. Propagates NaN, so that a diverged model is noticed.
    #[inline(always)]
    pub(super) fn of(self, g: f32, w: f32) -> f32 {
        let scaled = self.scale * g;
        let below = if scaled > self.clip { self.clip } else { scaled };
        let within = if below < -self.clip { -self.clip } else { below };
        within + self.l2 * w
    }
}
