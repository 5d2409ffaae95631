//! Tables of the reference, and the optimizers' formulas.

use crate::device::{TablePart, TableShape};
use crate::philox::philox;
use crate::update::{AdamCorrection, Formula};

/// A table and its optimizer state.
pub struct ReferenceTable {
    pub(super) shape: TableShape,
    /// The values of each part, row-major, in the order of [`TableShape::parts`].
    parts: Vec<Vec<f64>>,
}

impl ReferenceTable {
    pub(super) fn new(shape: TableShape) -> Self {
        let zeros = |part| vec![0.0; shape.rows * shape.part_width(part)];
        Self { shape, parts: shape.parts().map(zeros).collect() }
    }

    /// The number of `part`, and the place of the values of row `first_row`.
    fn place(&self, part: TablePart, first_row: usize) -> (usize, usize) {
        let number = self.shape.parts().position(|other| other == part);
        (number.expect("a part of the table"), first_row * self.shape.part_width(part))
    }

    /// The values of `part`, from `first_row` on.
    pub(super) fn part(&self, part: TablePart, first_row: usize) -> &[f64] {
        let (number, start) = self.place(part, first_row);
        &self.parts[number][start..]
    }

    pub(super) fn part_mut(&mut self, part: TablePart, first_row: usize) -> &mut [f64] {
        let (number, start) = self.place(part, first_row);
        &mut self.parts[number][start..]
    }

    pub(super) fn row(&self, id: u32) -> &[f64] {
        &self.part(TablePart::Weights, id as usize)[..self.shape.width]
    }

    /// Rounds `count` values of `part` that were written from outside, from `first_row` on.
    pub(super) fn round(&mut self, part: TablePart, first_row: usize, count: usize) {
        let float = self.shape.float;
        if part == TablePart::Weights {
            for number in &mut self.part_mut(part, first_row)[..count] {
                *number = float.round_finite_f64(*number);
            }
        }
    }

    /// One optimizer step on row `id` with its combined gradient `g`, `[W]`; `draws` determines the stochastic
    /// rounding.
    pub(super) fn step_row(&mut self, formula: &Formula, draws: u64, id: usize, g: &[f64]) {
        self.step_whole_row(formula, id, g);
        let TableShape { width, float, key, .. } = self.shape;
        let weights = &mut self.part_mut(TablePart::Weights, id)[..width];
        for (column, weight) in weights.iter_mut().enumerate() {
            let counter = [id, column / 4, 0, 0].map(|word| [word as u32]);
            let [word] = philox(draws ^ key, counter)[column % 4];
            *weight = float.round_drawn_f64(*weight, word);
        }
    }

    fn step_whole_row(&mut self, formula: &Formula, id: usize, g: &[f64]) {
        let start = id * self.shape.width;
        let (weights, states) = self.parts.split_first_mut().expect("a table has weights");
        if let Formula::RowWiseAdagrad { learning_rate, epsilon } = *formula {
            let a = &mut states[0][id];
            *a += g.iter().map(|g| g * g).sum::<f64>() / g.len() as f64;
            for (w, g) in weights[start..].iter_mut().zip(g) {
                *w -= learning_rate * g / (a.sqrt() + epsilon);
            }
            return;
        }
        for (column, &g) in g.iter().enumerate() {
            let item = start + column;
            let state = states.iter_mut().map(|state| &mut state[item]);
            step_one(formula, &mut weights[item], state, g);
        }
    }
}

/// The update of one weight, as written at [`Formula`].
pub(super) fn step_one<'a>(
    formula: &Formula,
    w: &mut f64,
    mut state: impl Iterator<Item = &'a mut f64>,
    g: f64,
) {
    let mut next = || state.next().expect("one array per state of the update");
    match *formula {
        Formula::Sgd { learning_rate } => *w -= learning_rate * g,
        Formula::Momentum { learning_rate, momentum, nesterov } => {
            let m = next();
            *m = momentum * *m + g;
            *w -= learning_rate * if nesterov { g + momentum * *m } else { *m };
        }
        Formula::Adagrad { learning_rate, epsilon } => {
            let a = next();
            *a += g * g;
            *w -= learning_rate * g / (a.sqrt() + epsilon);
        }
        Formula::RowWiseAdagrad { .. } => panic!("row-wise Adagrad steps whole rows"),
        Formula::Adam { learning_rate, beta1, beta2, epsilon, weight_decay, step } => {
            let (m, v) = (next(), next());
            let AdamCorrection { rate, root_scale } = AdamCorrection::new(learning_rate, beta1, beta2, step);
            *w -= learning_rate * weight_decay * *w;
            *m = beta1 * *m + (1.0 - beta1) * g;
            *v = beta2 * *v + (1.0 - beta2) * g * g;
            *w -= rate * *m / (v.sqrt() * root_scale + epsilon);
        }
        Formula::Ftrl { learning_rate: alpha, beta, l1, l2 } => {
            let (z, n) = (next(), next());
            let sigma = ((*n + g * g).sqrt() - n.sqrt()) / alpha;
            *z += g - sigma * *w;
            *n += g * g;
            *w = if z.abs() <= l1 { 0.0 } else { (z.signum() * l1 - *z) / ((beta + n.sqrt()) / alpha + l2) };
        }
    }
}
