//! The table rows that a batch touches, and what becomes of their gradients.

use super::Reference;
use crate::backend::{GradientColumns, RowGradients};
use crate::update::Update;

/// What [`Update`] makes of the gradient `g` of a weight `w`.
pub(super) fn shaped(update: &Update, scale: f64, g: f64, w: f64) -> f64 {
    (scale * g).clamp(-update.clip, update.clip) + update.l2 * w
}

/// Calls `visit` with each table that a batch touches, each row of it, and the row's gradient.
pub(super) fn for_each_touched(
    gradients: &RowGradients<'_, Reference>,
    widths: &[usize],
    mut visit: impl FnMut(usize, usize, &[f64]),
) {
    let RowGradients { batch, plan, lookups, gradient, columns } = *gradients;
    let mut offset = match columns {
        GradientColumns::Apart { first } => first,
        GradientColumns::Shared => 0,
    };
    for (table, (lookup, &width)) in lookups.iter().zip(widths).enumerate() {
        let planned = plan.columns.iter().find(|(column, _)| *column == lookup.column);
        let (_, touched) = planned.expect("a lookup's column is in the plan");
        for (&id, rows) in touched {
            let combined = |column| {
                let g = rows.iter().map(|&row| {
                    let ids = batch.ids(lookup.column).row(row).len();
                    gradient.at(row, offset + column) * lookup.pooling.factor(ids)
                });
                g.sum::<f64>()
            };
            visit(table, id, &(0..width).map(combined).collect::<Vec<_>>());
        }
        if let GradientColumns::Apart { .. } = columns {
            offset += width;
        }
    }
}
