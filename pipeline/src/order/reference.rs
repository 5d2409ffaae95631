//! A reference implementation of the order of a pass, for tests. It needs the lengths of all splits and holds all
//! rows in memory.

use super::pass::{OrderSpec, Pass};
use super::random::{Domain, Random};
use millstream_batch::Stream;

/// A row: its split, and its index within the split.
pub(crate) type Row = (u32, u64);

/// The batches of `pass` over splits with these lengths. `group_of` returns the id of a row's group.
pub(crate) fn batches(
    spec: &OrderSpec,
    pass: Pass,
    lengths: &[u64],
    batch_size: usize,
    group_of: &dyn Fn(Row) -> u32,
) -> Vec<Vec<Row>> {
    let rows = if pass.stream == Stream::Eval || spec.shuffle_rows == 0 {
        (0..lengths.len() as u32).flat_map(|split| rows_of(split, lengths)).collect()
    } else {
        shuffled(spec, u64::from(pass.epoch), lengths, group_of)
    };
    rows.chunks(batch_size).map(<[Row]>::to_vec).collect()
}

/// The lane of each of `splits` splits.
pub(crate) fn lanes(spec: &OrderSpec, pass: Pass, splits: u32) -> Vec<u32> {
    let mut sequence: Vec<u32> = (0..splits).collect();
    if pass.stream == Stream::Train && spec.shuffle_rows > 0 {
        permute(&mut sequence, &mut Random::keyed(Domain::Splits, &[spec.seed, u64::from(pass.epoch)]));
    }
    let mut lanes = vec![0; splits as usize];
    (0..).zip(sequence).for_each(|(place, split)| lanes[split as usize] = place % spec.lanes);
    lanes
}

fn shuffled(spec: &OrderSpec, epoch: u64, lengths: &[u64], group_of: &dyn Fn(Row) -> u32) -> Vec<Row> {
    let mut splits: Vec<u32> = (0..lengths.len() as u32).collect();
    permute(&mut splits, &mut Random::keyed(Domain::Splits, &[spec.seed, epoch]));
    let live = splits.len().min(spec.lanes as usize);
    let mut lanes: Vec<Vec<Row>> = vec![Vec::new(); live];
    for (i, split) in splits.into_iter().enumerate() {
        lanes[i % spec.lanes as usize].extend(rows_of(split, lengths));
    }
    let window = (spec.shuffle_rows as usize / live.max(1)).max(1);
    for (v, lane) in lanes.iter_mut().enumerate() {
        let first = (window * (v + 1) / live).clamp(1, window).min(lane.len());
        let (head, tail) = lane.split_at_mut(first);
        for (number, rows) in std::iter::once(head).chain(tail.chunks_mut(window)).enumerate() {
            let mut random = Random::keyed(Domain::Window, &[spec.seed, epoch, v as u64, number as u64]);
            permute(rows, &mut random);
            if spec.group.is_some() {
                let mut groups: Vec<u32> = rows.iter().map(|&row| group_of(row)).collect();
                groups.sort_unstable();
                groups.dedup();
                permute(&mut groups, &mut random);
                // A stable sort.
                rows.sort_by_key(|&row| groups.iter().position(|&group| group == group_of(row)));
            }
        }
    }
    let rounds = lanes.iter().map(Vec::len).max().unwrap_or(0);
    (0..rounds).flat_map(|round| lanes.iter().filter_map(move |lane| lane.get(round)).copied()).collect()
}

fn rows_of(split: u32, lengths: &[u64]) -> impl Iterator<Item = Row> {
    (0..lengths[split as usize]).map(move |row| (split, row))
}

fn permute<T: Copy>(items: &mut [T], random: &mut Random) {
    for i in (0..items.len()).rev().take_while(|&i| i > 0) {
        let j = random.below(i as u64 + 1) as usize;
        (items[i], items[j]) = (items[j], items[i]);
    }
}
