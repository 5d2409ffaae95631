//! Compares feeds that are dealt by lanes to the parts of several hosts with feeds of one host and with the reference
//! implementation of the order.
#![allow(clippy::unwrap_used)]

use millstream_batch::{BatchHeader, Consumer, SlotLayout, Stream};
use proptest::prelude::*;

use super::hub::Hub;
use super::synthetic::*;
use super::*;
use crate::order::Deal;
use crate::order::reference::Row;
use crate::spec::DataSpec;

/// A running host, with the rings of its parts.
pub(super) struct Host {
    pub(super) handle: IngestHandle,
    pub(super) rings: Vec<(u32, Consumer)>,
}

/// A global batch: the header of the whole, the position after it, and the rows of each part.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dealt {
    pub(super) header: BatchHeader,
    pub(super) position: Vec<u8>,
    pub(super) parts: Vec<Vec<Row>>,
}

/// Starts the hosts of the parts `host_of_part` from `position`.
pub(super) fn start_hosts(plan: &IngestPlan, host_of_part: &[u32], position: &Position) -> Vec<Host> {
    let hosts = host_of_part.iter().max().unwrap() + 1;
    let start_one = |(host, peers)| {
        let deal = Deal::new(host, host_of_part).unwrap();
        let parts: Vec<u32> = deal.parts_here().collect();
        let plan = plan.clone().with_deal(deal).unwrap();
        let (rings, consumers) = open_all(&plan);
        assert_eq!(consumers.len(), parts.len());
        // A single host needs no transport, and may take rows from whichever lanes are ready.
        let peers = (hosts > 1).then_some(peers);
        let handle = start_among(peers, plan, position.clone(), rings).unwrap();
        Host { handle, rings: parts.into_iter().zip(consumers).collect() }
    };
    (0..).zip(Hub::connect(hosts)).map(start_one).collect()
}

/// The next batch of all hosts; `None` if every ring has ended, or has failed.
pub(super) fn next_dealt(hosts: &mut [Host]) -> Option<Dealt> {
    let rings = hosts.iter_mut().flat_map(|host| &mut host.rings);
    let seen: Vec<(u32, Option<Seen>)> =
        rings.map(|(part, ring)| (*part, see(ring).ok().flatten())).collect();
    if seen.iter().any(|(_, seen)| seen.is_none()) {
        assert!(seen.iter().all(|(_, seen)| seen.is_none()), "the rings have different numbers of batches");
        return None;
    }
    let mut seen: Vec<(u32, Seen)> =
        seen.into_iter().filter_map(|(part, seen)| Some((part, seen?))).collect();
    seen.sort_by_key(|(part, _)| *part);
    let seen: Vec<Seen> = seen.into_iter().map(|(_, seen)| seen).collect();
    let Seen { header, position, .. } = seen[0].clone();
    let rows = header.global_rows;
    let header = BatchHeader { rows, first_row: 0, most_rows: rows, ..header };
    let most_rows = seen.iter().map(|part| part.header.rows).max().unwrap();
    let mut first_row = 0;
    for part in &seen {
        let rows = part.header.rows;
        assert_eq!(part.header, BatchHeader { rows, first_row, most_rows, ..header });
        assert_eq!(part.position, position, "the positions differ");
        first_row += rows;
    }
    assert_eq!(first_row, rows);
    Some(Dealt { header, position, parts: seen.into_iter().map(|part| part.rows).collect() })
}

/// All batches from `position` on, and the result of each host.
fn run_hosts(
    plan: &IngestPlan,
    host_of_part: &[u32],
    position: &Position,
) -> (Vec<Dealt>, Vec<Result<IngestReport, Error>>) {
    let mut hosts = start_hosts(plan, host_of_part, position);
    let batches = std::iter::from_fn(|| next_dealt(&mut hosts)).collect();
    (batches, hosts.into_iter().map(|host| host.handle.join()).collect())
}

/// The hosts of some parts; each of at most `most` hosts has one.
pub(super) fn hosts_of_parts(most: u32) -> impl Strategy<Value = Vec<u32>> {
    let parts = (1..=most).prop_flat_map(|hosts| {
        prop::collection::vec(0..hosts, 0..6).prop_map(move |more| (0..hosts).chain(more).collect::<Vec<_>>())
    });
    parts.prop_shuffle()
}

/// Another deal of as many parts.
fn other_hosts(host_of_part: &[u32], most: u32) -> Vec<u32> {
    let hosts = most.min(host_of_part.len() as u32);
    (0..host_of_part.len() as u32).rev().map(|part| part % hosts).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn each_part_has_the_rows_of_its_lanes_whichever_host_has_it(
        train in synthetic(), eval in prop::option::of(synthetic()), lanes in 1_u32..9, batch_size in 1_u32..40,
        shuffle_rows in prop_oneof![Just(0_u64), 1_u64..150], groups in any::<bool>(), drop_last in any::<bool>(),
        hosts in hosts_of_parts(4),
    ) {
        let group = groups.then(|| "group".to_owned());
        let spec = DataSpec { group, drop_last, ..spec(lanes, shuffle_rows, batch_size) };
        let plan = plan(&spec, &train, eval.as_ref());
        let parts = hosts.len();
        let (whole, report) = run_whole(&plan);
        let (dealt, reports) = run_hosts(&plan, &hosts, &plan.start());
        let (of_one, _) = run_hosts(&plan, &vec![0; parts], &plan.start());
        prop_assert_eq!(&dealt, &of_one);
        // Dropped batches are in no ring.
        let expected = expected_lanes(&spec, &train, eval.as_ref());
        let delivered = |header: &BatchHeader| {
            !drop_last || header.stream == Stream::Eval || header.rows == batch_size
        };
        let expected = expected.iter().filter(|(header, _)| delivered(header));
        prop_assert_eq!(dealt.len(), whole.len());
        for ((dealt, whole), (header, rows)) in dealt.iter().zip(&whole).zip(expected) {
            prop_assert_eq!((&dealt.header, &dealt.position), (&whole.header, &whole.position));
            prop_assert_eq!(header.rows, dealt.header.rows);
            prop_assert_eq!(&dealt.parts, &by_lanes(rows, parts));
        }
        let rows = reports.iter().flatten().map(|report| report.stats.rows).sum::<u64>();
        for of_host in reports {
            match (&report, of_host) {
                (Ok(report), Ok(of_host)) => {
                    prop_assert_eq!(&of_host.position, &report.position);
                    prop_assert_eq!(of_host.stats.batches, report.stats.batches);
                    prop_assert_eq!(rows, report.stats.rows);
                }
                // Without a full batch, an epoch that drops short ones is an error.
                (Err(error), Err(of_host)) => prop_assert_eq!(error.to_string(), of_host.to_string()),
                (_, of_host) => prop_assert!(false, "{:?}, {:?}", report, of_host),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn a_feed_resumes_after_any_batch_on_other_hosts(
        train in synthetic(), eval in prop::option::of(synthetic()), lanes in 1_u32..9,
        shuffle_rows in prop_oneof![Just(0_u64), 1_u64..150], batch_size in 10_u32..40, hosts in hosts_of_parts(4),
    ) {
        let plan = plan(&spec(lanes, shuffle_rows, batch_size), &train, eval.as_ref());
        let (whole, _) = run_hosts(&plan, &hosts, &plan.start());
        let more: Vec<u32> = hosts.iter().copied().chain([0]).collect();
        for (done, batch) in whole.iter().enumerate() {
            let position = plan.resume(&batch.position).unwrap();
            let others = other_hosts(&hosts, 1 + done as u32 % 3);
            let (rest, ends) = run_hosts(&plan, &others, &position);
            prop_assert_eq!(&rest[..], &whole[done + 1..]);
            prop_assert!(ends.iter().flatten().count() == ends.len());
            // With another number of parts, global batches are the same.
            let (rest, _) = run_hosts(&plan, &more, &position);
            let all = |dealt: &[Dealt]| -> Vec<_> {
                let rows = |dealt: &Dealt| {
                    let mut rows = dealt.parts.concat();
                    rows.sort_unstable();
                    rows
                };
                dealt.iter().map(|dealt| (dealt.header, dealt.position.clone(), rows(dealt))).collect()
            };
            prop_assert_eq!(all(&rest), all(&whole[done + 1..]));
        }
    }
}

#[test]
fn at_the_end_of_an_epoch_one_part_has_all_rows() {
    // Lanes 0 and 1 have 4 and 30 rows, lane 2 has none. Parts of each batch: (first row, rows).
    let spec = DataSpec { epochs: 1, ..spec(3, 1000, 8) };
    let plan = plan(&spec, &Synthetic::new(&[4, 30]), None);
    // The permutation of the splits decides which lane is which.
    let long = reference_lanes(&spec, 2)[1];
    let parts = |of_long: u32, of_short: u32| {
        let mut rows = [0; 3];
        rows[long as usize] = of_long;
        rows[1 - long as usize] = of_short;
        [(0, rows[0]), (rows[0], rows[1]), (rows[0] + rows[1], 0)]
    };
    let expected = [parts(4, 4), parts(8, 0), parts(8, 0), parts(8, 0), parts(2, 0)];
    let mut hosts = start_hosts(&plan, &[0, 1, 0], &plan.start());
    for (batch, expected) in expected.iter().enumerate() {
        let most = expected.iter().map(|(_, rows)| *rows).max().unwrap();
        for (part, ring) in hosts.iter_mut().flat_map(|host| &mut host.rings) {
            let header = see(ring).unwrap().unwrap().header;
            let found = (header.first_row, header.rows);
            assert_eq!((found, header.most_rows), (expected[*part as usize], most), "{batch}, part {part}");
        }
    }
    assert!(next_dealt(&mut hosts).is_none());
}

#[test]
fn the_plan_counts_rings_with_room_for_whole_batches() {
    let spec = spec(4, 1000, 63);
    let one = plan(&spec, &Synthetic::new(&[100; 8]), None);
    let dealt = |host, hosts: &[u32]| one.clone().with_deal(Deal::new(host, hosts).unwrap()).unwrap();
    let slot_bytes = SlotLayout::of(one.schema()).unwrap().slot_bytes() as u64;
    for rings in 1..=5 {
        let plan = dealt(0, &vec![0; rings as usize]);
        let ring_bytes = u64::from(rings * spec.prefetch) * slot_bytes;
        assert_eq!(plan.memory(), MemoryNeed { ring_bytes, ..one.memory() });
        assert_eq!((plan.rings(), plan.ring_schema()), (rings, one.schema()));
    }
    // Of the four lanes, the first host reads three.
    let [first, second] = [0, 1].map(|host| dealt(host, &[0, 0, 1, 0]).memory());
    assert_eq!((first.ring_bytes, second.ring_bytes), (6 * slot_bytes, 2 * slot_bytes));
    assert_eq!(first.pool_bytes + second.pool_bytes, one.memory().pool_bytes);
    assert_eq!(first.reading_bytes, 3 * second.reading_bytes);
}

#[test]
fn deals_among_other_hosts_are_refused() {
    let one = plan(&spec(4, 64, 8), &Synthetic::new(&[100; 6]), None);
    let refused = |plan: &IngestPlan, peers: Option<Arc<dyn Peers>>| {
        let (rings, _consumers) = open_all(plan);
        start_among(peers, plan.clone(), plan.start(), rings).err().unwrap().to_string()
    };
    let second = || Hub::connect(3).swap_remove(1);
    let expected = "the batches are dealt for host 0 of 1; this is host 1 of 3";
    assert!(refused(&one, Some(second())).contains(expected));
    let dealt = |host| one.clone().with_deal(Deal::new(host, &[0, 1, 0]).unwrap()).unwrap();
    for (host, peers) in [(0, None), (0, Some(second())), (1, Some(Hub::connect(2).swap_remove(0)))] {
        let message = refused(&dealt(host), peers);
        assert!(message.contains(&format!("dealt for host {host} of 2")), "{message}");
    }
}

#[test]
fn an_error_ends_all_parts_of_all_hosts_at_the_same_batch() {
    // Chunks of a few rows: batches precede the error.
    let train = Synthetic { faults: vec![(5, 20, Fault::Error)], chunk_rows: 5, ..Synthetic::new(&[40; 12]) };
    let plan = plan(&spec(6, 60, 7), &train, None);
    let (alone, report) = run_whole(&plan);
    assert!(matches!(report, Err(Error::Invalid(_))));
    for host_of_part in [&[0, 0, 0][..], &[0, 1, 1, 0], &[2, 1, 0, 0, 1, 2, 2], &[0, 1, 2, 3, 4, 5, 6]] {
        let (dealt, ends) = run_hosts(&plan, host_of_part, &plan.start());
        let [alone, dealt] = [
            alone.iter().map(|batch| (batch.header, batch.position.clone())).collect::<Vec<_>>(),
            dealt.iter().map(|batch| (batch.header, batch.position.clone())).collect(),
        ];
        assert!(!alone.is_empty() && dealt == alone, "{host_of_part:?}");
        let mut owners = 0;
        for end in ends {
            match end {
                Err(Error::Invalid(message)) if message == "split 5" => owners += 1,
                Err(Error::Peer { message, .. }) if message == "split 5" => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(owners, 1);
    }
}
