//! Pooled rows of all tables, concatenated with dense columns: the input of a deep model.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::cpu::matrix::CpuTable;
use crate::cpu::memory::prefetch;
use crate::cpu::parts::{Blocks, Rows};
use crate::cpu::touched::STRIP;
use crate::device::{Lookup, Pooling};
use crate::host::{HostBatch, Ids, Shares};
use crate::ops::Gather;

/// Batch rows per task, and the prefetch distance for table rows: while a task copies these rows from one table, it
/// prefetches the same rows of the next.
const ROWS: usize = 64;
/// Half of a strip: the columns of a table by default.
const HALF: usize = STRIP / 2;

/// `out[b] = pooled rows of every table, then dense columns`
pub(crate) fn gather(cpu: &Cpu, operation: Gather<'_, Cpu>) {
    let Gather { batch, rows, lookups, tables, dense, out, first_column, maxima } = operation;
    let width = |table: usize| tables[table].shape().width;
    let widths = Lookup::widths(lookups, width);
    let stride = out.stride();
    if stride == 0 {
        return;
    }
    let float = out.float();
    let (holders, of_row) = match maxima {
        Some(maxima) => (maxima.rows_from(rows.start), Lookup::all_maxima(lookups, width)),
        None => (&mut [][..], 0),
    };
    let parts = (out.by_rows(), Rows::of(holders, of_row));
    run_blocks!(cpu, Blocks::of(rows.len(), ROWS), parts, |block, (out, holders)| {
        let mut first_holder = 0;
        let block = rows.start + block.start..rows.start + block.end;
        for (number, lookup) in lookups.iter().enumerate() {
            let table = &tables[lookup.table];
            let width = table.shape().width;
            let out = Out { rows: out, stride, offset: first_column + lookup.first };
            let next = one_row_each(lookups.get(number + 1), batch, &block, tables);
            let ids = batch.ids(lookup.column);
            if let (
                Pooling::Unpooled(most),
                Ids::Ragged(offsets, values) | Ids::Weighted(offsets, values, _),
            ) = (lookup.pooling, ids)
            {
                let offsets = &offsets[block.start..=block.end];
                copy_sequences(table, offsets, values, most as usize, out);
                continue;
            }
            if let (true, Ids::Ragged(offsets, values) | Ids::Weighted(offsets, values, _)) =
                (lookup.has_maxima(), ids)
            {
                let offsets = &offsets[block.start..=block.end];
                let holders = Holders { rows: holders, stride: of_row, offset: first_holder };
                first_holder += width;
                take_maxima(table, offsets, values, out, holders);
                continue;
            }
            match ids {
                Ids::Single(ids) => {
                    let ids = &ids[block.clone()];
                    match width {
                        8 => copy_rows::<8>(table, ids, next, out),
                        16 => copy_rows::<16>(table, ids, next, out),
                        32 => copy_rows::<32>(table, ids, next, out),
                        _ => copy_any_rows(table, ids, out),
                    }
                }
                Ids::Ragged(offsets, values) => {
                    pool_rows(table, &offsets[block.start..=block.end], values, lookup.pooling, out);
                }
                Ids::Weighted(offsets, values, weights) => {
                    let shares = weights.shares(lookup.pooling);
                    let of_rows = (block.start, &offsets[block.start..=block.end]);
                    pool_weighted_rows(table, of_rows, (values, weights.of_values), shares, out);
                }
            }
        }
        for (row, out) in block.zip(out.chunks_exact_mut(stride)) {
            let values = batch.dense(row);
            for (out, &source) in out[first_column + widths..].iter_mut().zip(dense) {
                *out = values[source];
            }
        }
        float.round_all(out);
    });
}

/// The ids and the table of a lookup, if it looks up one row for each of these batch rows.
#[inline(always)]
pub(super) fn one_row_each<'a>(
    lookup: Option<&Lookup>,
    batch: &'a HostBatch,
    rows: &Range<usize>,
    tables: &'a [CpuTable],
) -> Option<(&'a [u32], &'a CpuTable)> {
    let lookup = lookup?;
    let Ids::Single(ids) = batch.ids(lookup.column) else { return None };
    Some((&ids[rows.clone()], &tables[lookup.table]))
}

/// The destination of a table's columns: `offset` columns into each of the rows.
struct Out<'a> {
    rows: &'a mut [f32],
    stride: usize,
    offset: usize,
}

/// Copies one row per id, `W` wide, and prefetches those of the next table.
#[inline(always)]
fn copy_rows<const W: usize>(table: &CpuTable, ids: &[u32], next: Option<(&[u32], &CpuTable)>, out: Out<'_>) {
    let (data, stride) = (table.as_slice(), table.stride());
    for (row, (&id, out_row)) in ids.iter().zip(out.rows.chunks_exact_mut(out.stride)).enumerate() {
        if let Some((ids, table)) = next {
            prefetch(table.as_slice(), ids[row] as usize * table.stride());
        }
        let values: &[f32; W] = data[id as usize * stride..][..W].try_into().expect("W floats");
        out_row[out.offset..][..W].copy_from_slice(values);
    }
}

/// Copies one row per id, of any width.
#[inline(always)]
fn copy_any_rows(table: &CpuTable, ids: &[u32], out: Out<'_>) {
    let (data, stride, width) = (table.as_slice(), table.stride(), table.shape().width);
    for (&id, out_row) in ids.iter().zip(out.rows.chunks_exact_mut(out.stride)) {
        out_row[out.offset..][..width].copy_from_slice(&data[id as usize * stride..][..width]);
    }
}

/// Copies each batch row's table rows, one after the other, and fills the room for `most` of them with zeros.
#[inline(always)]
fn copy_sequences(table: &CpuTable, offsets: &[u32], values: &[u32], most: usize, out: Out<'_>) {
    let (data, stride, width) = (table.as_slice(), table.stride(), table.shape().width);
    for (pair, out_row) in offsets.windows(2).zip(out.rows.chunks_exact_mut(out.stride)) {
        let ids = &values[pair[0] as usize..pair[1] as usize];
        let (found, rest) = out_row[out.offset..][..most * width].split_at_mut(ids.len() * width);
        for (&id, out) in ids.iter().zip(found.chunks_exact_mut(width)) {
            out.copy_from_slice(&data[id as usize * stride..][..width]);
        }
        rest.fill(0.0);
    }
}

/// The destination of a table's holders of maxima: `offset` columns into each of the rows.
struct Holders<'a> {
    rows: &'a mut [u32],
    stride: usize,
    offset: usize,
}

/// Takes the maximum of each batch row's table rows in each column, and records the ids that hold it.
#[inline(always)]
fn take_maxima(table: &CpuTable, offsets: &[u32], values: &[u32], out: Out<'_>, holders: Holders<'_>) {
    let width = table.shape().width;
    let rows = out.rows.chunks_exact_mut(out.stride).zip(holders.rows.chunks_exact_mut(holders.stride));
    for (pair, (out_row, holders_row)) in offsets.windows(2).zip(rows) {
        let out_row = &mut out_row[out.offset..][..width];
        let holders_row = &mut holders_row[holders.offset..][..width];
        let Some((first, others)) = values[pair[0] as usize..pair[1] as usize].split_first() else {
            out_row.fill(0.0);
            continue;
        };
        let strips = out_row.chunks_mut(STRIP).zip(holders_row.chunks_mut(STRIP));
        for (column, (out, holders)) in (0..).step_by(STRIP).zip(strips) {
            match out.len() {
                // Compiled for these constant numbers of columns.
                STRIP => strip_of_maxima(table, (first, others), column, STRIP, out, holders),
                HALF => strip_of_maxima(table, (first, others), column, HALF, out, holders),
                columns => strip_of_maxima(table, (first, others), column, columns, out, holders),
            }
        }
    }
}

/// The maxima of `columns` columns, at most [`STRIP`], of the table rows of some ids, in registers.
#[inline(always)]
fn strip_of_maxima(
    table: &CpuTable,
    (&first, others): (&u32, &[u32]),
    column: usize,
    columns: usize,
    out: &mut [f32],
    holders: &mut [u32],
) {
    let (data, stride) = (table.as_slice(), table.stride());
    let (mut largest, mut held) = ([0.0_f32; STRIP], [first; STRIP]);
    largest[..columns].copy_from_slice(&data[first as usize * stride + column..][..columns]);
    for &id in others {
        let values = &data[id as usize * stride + column..][..columns];
        for ((largest, held), &value) in largest[..columns].iter_mut().zip(&mut held).zip(values) {
            let is_larger = value > *largest;
            *largest = if is_larger { value } else { *largest };
            *held = if is_larger { id } else { *held };
        }
    }
    out[..columns].copy_from_slice(&largest[..columns]);
    holders[..columns].copy_from_slice(&held[..columns]);
}

/// Sums each batch row's table rows and applies the pooling's divisor.
#[inline(always)]
fn pool_rows(table: &CpuTable, offsets: &[u32], values: &[u32], pooling: Pooling, out: Out<'_>) {
    let (data, stride, width) = (table.as_slice(), table.stride(), table.shape().width);
    for (pair, out_row) in offsets.windows(2).zip(out.rows.chunks_exact_mut(out.stride)) {
        let sum = &mut out_row[out.offset..][..width];
        let ids = &values[pair[0] as usize..pair[1] as usize];
        sum.fill(0.0);
        for &id in ids {
            for (sum, &value) in sum.iter_mut().zip(&data[id as usize * stride..][..width]) {
                *sum += value;
            }
        }
        if pooling != Pooling::Sum && ids.len() > 1 {
            let factor = pooling.factor(ids.len()) as f32;
            sum.iter_mut().for_each(|sum| *sum *= factor);
        }
    }
}

/// Sums each batch row's table rows, scaled by their shares. `offsets` come with the first batch row, and `values`
/// with their weights.
#[inline(always)]
fn pool_weighted_rows(
    table: &CpuTable,
    (first, offsets): (usize, &[u32]),
    (values, weights): (&[u32], &[f32]),
    shares: Shares<'_>,
    out: Out<'_>,
) {
    let (data, stride, width) = (table.as_slice(), table.stride(), table.shape().width);
    for ((row, pair), out_row) in (first..).zip(offsets.windows(2)).zip(out.rows.chunks_exact_mut(out.stride))
    {
        let sum = &mut out_row[out.offset..][..width];
        let of_row = pair[0] as usize..pair[1] as usize;
        sum.fill(0.0);
        for (&id, &weight) in values[of_row.clone()].iter().zip(&weights[of_row]) {
            let share = shares.of(row, weight);
            for (sum, &value) in sum.iter_mut().zip(&data[id as usize * stride..][..width]) {
                *sum += share * value;
            }
        }
    }
}
