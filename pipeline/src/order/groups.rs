//! The permutation of a window whose groups stay together.
//!
//! A group is all rows of a window that have the same id of one feature. The groups are permuted uniformly, and so are
//! the rows of each; the rows of a group are adjacent in the lane. Losses that compare the rows of a group within a
//! batch need this. A batch takes a row from each lane in turn, so it contains whole groups, except the first and the
//! last one of each lane: with `V` lanes, about `V` groups are divided between two batches. A group that continues
//! beyond its window is divided too. So data should be stored with the rows of a group next to each other, and a batch
//! should hold many groups.
//!
//! Invariants: the result is a function of the random numbers and the rows' ids, and does not depend on chunks. A window
//! keeps its rows, so positions and windows are those of an order without groups.

use super::random::Random;
use crate::pack::RowRef;

/// Working memory per row of a window, in bytes: its key, its group if it is alone in it, and its copy.
pub(crate) const ROW_BYTES: u64 = (size_of::<u64>() + size_of::<(u32, u32)>() + size_of::<RowRef>()) as u64;

/// Permutes `rows`, keeping the rows with the same id adjacent.
pub(super) fn permute<T: Copy>(mut random: Random, rows: &mut [T], id_of: impl Fn(T) -> u32) {
    random.shuffle(rows);
    // The rows of a group keep the order of this permutation.
    let mut keys: Vec<u64> = rows
        .iter()
        .zip(0_u32..)
        .map(|(&row, place)| u64::from(id_of(row)) << 32 | u64::from(place))
        .collect();
    keys.sort_unstable();
    let runs = || keys.chunk_by(|a, b| a >> 32 == b >> 32);
    // Vectors that grow could need more than `ROW_BYTES`.
    let mut groups: Vec<(u32, u32)> = Vec::with_capacity(runs().count());
    let mut start = 0;
    for group in runs() {
        let end = start + group.len() as u32;
        groups.push((start, end));
        start = end;
    }
    random.shuffle(&mut groups);
    let order = groups.into_iter().flat_map(|(start, end)| &keys[start as usize..end as usize]);
    let mut permuted: Vec<T> = Vec::with_capacity(rows.len());
    permuted.extend(order.map(|&key| rows[(key & u64::from(u32::MAX)) as usize]));
    rows.copy_from_slice(&permuted);
}
