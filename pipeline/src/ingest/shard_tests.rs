//! Feeds of which each of several hosts reads a shard.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::hub::Hub;
use super::synthetic::*;
use super::*;
use crate::order::reference::Row;
use crate::order::{Runs, Shards};
use crate::spec::DataSpec;

/// The batches of a host, by rank.
type OfRanks = Vec<(u32, Vec<Seen>)>;

/// Runs hosts that have these ranks from `position` on.
fn run_shards(
    plan: &IngestPlan,
    ranks: &[Vec<u32>],
    position: &Position,
) -> (OfRanks, Vec<Result<IngestReport, Error>>) {
    let hosts = ranks.len() as u32;
    let mut running = Vec::new();
    for ((host, peers), here) in (0..).zip(Hub::connect(hosts)).zip(ranks) {
        let shards = Shards::new(host, ranks, plan.order.lanes).unwrap();
        let plan = plan.clone().with_shards(shards).unwrap();
        let (rings, consumers) = open_all(&plan);
        let handle = start_among((hosts > 1).then_some(peers), plan, position.clone(), rings).unwrap();
        running.push((handle, here.iter().copied().zip(consumers).collect::<Vec<_>>()));
    }
    let mut seen: OfRanks = ranks.concat().into_iter().map(|rank| (rank, Vec::new())).collect();
    loop {
        // As ranks do, which wait for each other at every step.
        let rings = running.iter_mut().flat_map(|(_, rings)| rings);
        let step: Vec<Option<Seen>> = rings.map(|(_, ring)| see(ring).ok().flatten()).collect();
        if step.iter().all(Option::is_none) {
            break;
        }
        seen.iter_mut().zip(step).for_each(|((_, seen), batch)| seen.push(batch.expect("as many batches")));
    }
    (seen, running.into_iter().map(|(handle, _)| handle.join()).collect())
}

/// The rows of each epoch.
fn rows_of_epochs<'a>(batches: impl IntoIterator<Item = &'a Seen>) -> BTreeMap<u32, Vec<Row>> {
    let mut epochs: BTreeMap<u32, Vec<Row>> = BTreeMap::new();
    for Seen { header, rows, .. } in batches {
        epochs.entry(header.epoch).or_default().extend(rows);
    }
    epochs.values_mut().for_each(|rows| rows.sort_unstable());
    epochs
}

fn all(seen: &OfRanks) -> impl Iterator<Item = &Seen> {
    seen.iter().flat_map(|(_, seen)| seen)
}

/// Numbers the ranks of hosts with these numbers of ranks in turn.
fn numbered(counts: &[u32]) -> Vec<Vec<u32>> {
    let mut ranks = vec![Vec::new(); counts.len()];
    let mut next = 0;
    while let Some(most) = counts.iter().zip(&ranks).map(|(&count, of)| count - of.len() as u32).max() {
        if most == 0 {
            break;
        }
        for (of, &count) in ranks.iter_mut().zip(counts) {
            if (of.len() as u32) < count {
                of.push(next);
                next += 1;
            }
        }
    }
    ranks
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_row_is_in_one_batch_and_hosts_are_full_while_they_have_rows(
        train in synthetic(), lanes in 3_u32..9, rows_of_rank in 1_u32..9,
        shuffle_rows in 1_u64..150, counts in prop::collection::vec(1_u32..4, 1..4),
    ) {
        let ranks = numbered(&counts);
        let world: u32 = counts.iter().sum();
        let spec = DataSpec { deterministic: true, ..spec(lanes, shuffle_rows, rows_of_rank * world) };
        let plan = plan(&spec, &train, None);
        let shards = Shards::new(0, &ranks, lanes).unwrap();
        prop_assume!(plan.clone().with_shards(shards).is_ok(), "fewer splits than hosts");
        let (whole, _) = run_whole(&plan);
        let (seen, reports) = run_shards(&plan, &ranks, &plan.start());
        prop_assert_eq!(rows_of_epochs(all(&seen)), rows_of_epochs(&whole));
        let end = reports[0].as_ref().unwrap().position.clone();
        prop_assert!(reports.iter().all(|report| report.as_ref().unwrap().position == end));
        for step in 0..seen[0].1.len() {
            let parts: Vec<&Seen> = seen.iter().map(|(_, seen)| &seen[step]).collect();
            let mut first_row = 0;
            for part in &parts {
                prop_assert_eq!((part.header.first_row, &part.position), (first_row, &parts[0].position));
                first_row += part.header.rows;
            }
            prop_assert!(parts.iter().all(|part| part.header.global_rows == first_row));
            let most = parts.iter().map(|part| part.header.rows).max();
            prop_assert!(parts.iter().all(|part| Some(part.header.most_rows) == most));
            // Of each host, the rows of this step and those that follow in the epoch.
            let mut first = 0;
            for &count in &counts {
                let of_host = &seen[first..first + count as usize];
                let epoch = parts[0].header.epoch;
                let rows = |steps: &mut dyn Iterator<Item = usize>| -> u32 {
                    let of_step = |step: usize| of_host.iter().map(move |(_, seen)| seen[step].header);
                    steps.flat_map(of_step).filter(|header| header.epoch == epoch).map(|header| header.rows).sum()
                };
                let (now, left) = (rows(&mut (step..=step)), rows(&mut (step..of_host[0].1.len())));
                prop_assert_eq!(now, left.min(rows_of_rank * count));
                first += count as usize;
            }
        }
    }

    #[test]
    fn a_feed_resumes_after_any_batch_on_any_hosts(
        train in synthetic(), lanes in 4_u32..9, shuffle_rows in 1_u64..150,
        at in any::<prop::sample::Index>(),
    ) {
        let spec = DataSpec { deterministic: true, ..spec(lanes, shuffle_rows, 24) };
        let plan = plan(&spec, &train, None);
        let two = [vec![0, 2], vec![1, 3]];
        let shards = Shards::new(0, &two, lanes).unwrap();
        prop_assume!(plan.clone().with_shards(shards).is_ok(), "fewer splits than hosts");
        let (seen, _) = run_shards(&plan, &two, &plan.start());
        let done = at.index(seen[0].1.len());
        let position = plan.resume(&seen[0].1[done].position).unwrap();
        let after: OfRanks = seen.iter().map(|(rank, seen)| (*rank, seen[done + 1..].to_vec())).collect();
        let (again, _) = run_shards(&plan, &two, &position);
        prop_assert_eq!(&again, &after);
        // On one host that has a shard, and on hosts that read everything.
        let (alone, _) = run_shards(&plan, &[vec![0, 1, 2]], &position);
        prop_assert_eq!(rows_of_epochs(all(&alone)), rows_of_epochs(all(&after)));
        let runs = Runs::of_one_host(2).unwrap();
        let (unsharded, _) = run_from(&plan.with_runs(runs).unwrap(), position);
        prop_assert_eq!(rows_of_epochs(&unsharded), rows_of_epochs(all(&after)));
    }
}

#[test]
fn until_lanes_end_batches_have_the_rows_of_an_unsharded_feed() {
    let spec = DataSpec { deterministic: true, epochs: 1, ..spec(8, 100, 32) };
    let plan = plan(&spec, &Synthetic::new(&[40; 24]), None);
    let (whole, _) = run_whole(&plan);
    let (seen, _) = run_shards(&plan, &[vec![0, 1], vec![2, 3]], &plan.start());
    assert_eq!(whole.len(), seen[0].1.len());
    for (step, whole) in whole.iter().enumerate() {
        let of_step = seen.iter().map(|(_, seen)| &seen[step]);
        assert_eq!(rows_of_epochs(of_step), rows_of_epochs([whole]));
        assert!(seen.iter().all(|(_, seen)| seen[step].position == whole.position));
    }
}

#[test]
fn the_error_of_a_lane_ends_all_hosts() {
    let train = Synthetic { faults: vec![(5, 20, Fault::Error)], chunk_rows: 5, ..Synthetic::new(&[40; 12]) };
    let spec = DataSpec { deterministic: true, ..spec(6, 60, 12) };
    let (seen, ends) =
        run_shards(&plan(&spec, &train, None), &[vec![0], vec![1], vec![2]], &start_of(&spec, &train));
    assert!(!seen[0].1.is_empty() && seen.iter().all(|(_, of_rank)| of_rank.len() == seen[0].1.len()));
    let owner = |end: &Result<IngestReport, Error>| matches!(end, Err(Error::Invalid(_)));
    assert_eq!(ends.iter().filter(|end| owner(end)).count(), 1);
    assert!(
        ends.iter()
            .all(|end| owner(end) || matches!(end, Err(Error::Peer { message, .. }) if message == "split 5"))
    );
}

fn start_of(spec: &DataSpec, train: &Synthetic) -> Position {
    plan(spec, train, None).start()
}

#[test]
fn a_shard_needs_the_memory_of_its_lanes() {
    let spec = DataSpec { deterministic: true, ..spec(8, 1 << 20, 8) };
    let whole = plan(&spec, &Synthetic::new(&[100; 8]), None);
    let quarter = |plan: IngestPlan| plan.with_shards(Shards::new(1, &[vec![0, 1, 2], vec![3]], 8).unwrap());
    let (all, needed) = (whole.memory(), quarter(whole.clone()).unwrap().memory());
    assert_eq!(needed.pool_bytes, all.pool_bytes / 4);
    assert!(needed.least_bytes() < all.least_bytes());
    // The budget applies to what this host reads, which is known only when all are.
    let planned = whole.with_budget(u64::MAX).unwrap();
    let within = |bytes| quarter(planned.clone()).and_then(|plan| plan.with_budget(bytes));
    assert_eq!(within(needed.least_bytes()).unwrap().memory().ahead_bytes, 0);
    assert!(matches!(within(needed.least_bytes() - 1), Err(Error::OverBudget { .. })));
}

#[test]
fn feeds_that_hosts_cannot_share_are_refused() {
    let shards = |lanes| Shards::new(0, &[vec![0], vec![1]], lanes).unwrap();
    let refused = |spec: &DataSpec, files: &[u64], lanes| {
        plan(spec, &Synthetic::new(files), None).with_shards(shards(lanes)).err().unwrap().to_string()
    };
    let usual = DataSpec { deterministic: true, ..spec(4, 64, 8) };
    assert!(refused(&usual, &[100], 4).contains("1 split in 1 lane, too few for 2 hosts"));
    assert!(refused(&usual, &[100; 4], 6).contains("6 lanes are dealt"));
    let hasty = DataSpec { deterministic: false, ..usual.clone() };
    assert!(refused(&hasty, &[100; 4], 4).contains("deterministic = true"));
    let ordered = DataSpec { shuffle_rows: 0, ..usual.clone() };
    assert!(refused(&ordered, &[100; 4], 4).contains("data.shuffle_rows: 0"));
    let dropping = DataSpec { drop_last: true, ..usual };
    assert!(refused(&dropping, &[100; 4], 4).contains("drop many rows"));
}
