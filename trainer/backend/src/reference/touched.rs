//! The table rows that a batch touches, and their gradients.

use super::Reference;
use crate::device::{IdColumn, Lookup, Pooling};
use crate::host::HostBatch;
use crate::ops::RowGradients;
use crate::update::Update;

/// The gradient `g` of a weight `w`, shaped as written at [`Update`].
pub(super) fn shaped(update: &Update, scale: f64, g: f64, w: f64) -> f64 {
    (scale * g).clamp(-update.clip, update.clip) + update.l2 * w
}

/// The share of each id that `lookup` has in batch row `row`; see [`Pooling`].
pub(super) fn shares(batch: &HostBatch, lookup: &Lookup, row: usize) -> Vec<f64> {
    let ids = batch.ids(lookup.column);
    let count = ids.row(row).len();
    let weights = ids.weights_of_row(row).map(|weights| weights.iter().map(|&weight| f64::from(weight)));
    match (weights, lookup.pooling) {
        (None, pooling) | (_, pooling @ (Pooling::Max | Pooling::Unpooled(_))) => {
            vec![pooling.factor(count); count]
        }
        (Some(weights), Pooling::Sum) => weights.collect(),
        (Some(weights), pooling) => {
            let positive: Vec<f64> = weights.map(|weight| if weight > 0.0 { weight } else { 0.0 }).collect();
            let divisor = match pooling {
                Pooling::SqrtN => positive.iter().map(|weight| weight * weight).sum::<f64>().sqrt(),
                _ => positive.iter().sum(),
            };
            positive.into_iter().map(|weight| if weight > 0.0 { weight / divisor } else { 0.0 }).collect()
        }
    }
}

/// Calls `visit` with each table that a batch touches, each row of it, and the row's gradient.
pub(super) fn for_each_touched(
    gradients: &RowGradients<'_, Reference>,
    widths: &[usize],
    mut visit: impl FnMut(usize, usize, &[f64]),
) {
    let RowGradients { batch, plan, lookups, gradient, columns, maxima } = *gradients;
    let all = lookups;
    for (table, &width) in widths.iter().enumerate() {
        let lookups = Lookup::of_table(lookups, table);
        let is_of_all = |columns: &[IdColumn]| columns.iter().eq(lookups.iter().map(|lookup| &lookup.column));
        let planned = plan.groups.iter().find(|(columns, _)| is_of_all(columns));
        let (_, touched) = planned.expect("a table's lookups are in the plan");
        for (&id, places) in touched {
            let combined = |column| {
                let g = places.iter().map(|&(number, row, place)| {
                    let lookup = &lookups[number];
                    let vector = if let Pooling::Unpooled(_) = lookup.pooling { place } else { 0 };
                    if let (true, Some(maxima)) = (lookup.has_maxima(), maxima) {
                        let before = all.iter().take_while(|other| *other != lookup);
                        let first: usize = before.map(|other| other.maxima(widths[other.table])).sum();
                        if maxima.row(row)[first + column] as usize != place {
                            return 0.0;
                        }
                    }
                    let column = columns.first_of(lookup) + vector * width + column;
                    gradient.at(row, column) * shares(batch, lookup, row)[place]
                });
                g.sum::<f64>()
            };
            visit(table, id, &(0..width).map(combined).collect::<Vec<_>>());
        }
    }
}
