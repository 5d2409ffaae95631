//! The table rows that a batch touches, and what becomes of their gradients.

use super::Reference;
use crate::backend::RowGradients;
use crate::device::{IdColumn, Lookup};
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
    for (table, &width) in widths.iter().enumerate() {
        let lookups = Lookup::of_table(lookups, table);
        let is_of_all = |columns: &[IdColumn]| columns.iter().eq(lookups.iter().map(|lookup| &lookup.column));
        let planned = plan.groups.iter().find(|(columns, _)| is_of_all(columns));
        let (_, touched) = planned.expect("a table's lookups are in the plan");
        for (&id, places) in touched {
            let combined = |column| {
                let g = places.iter().map(|&(number, row)| {
                    let lookup = &lookups[number];
                    let ids = batch.ids(lookup.column).row(row).len();
                    gradient.at(row, columns.first_of(lookup) + column) * lookup.pooling.factor(ids)
                });
                g.sum::<f64>()
            };
            visit(table, id, &(0..width).map(combined).collect::<Vec<_>>());
        }
    }
}
