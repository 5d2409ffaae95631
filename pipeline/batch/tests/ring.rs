//! Both ends of a ring in one process.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use millstream_batch::{ClaimedSlot, Consumer, Lease, Producer, RingError};
use support::{Numbers, check, fill, schema, while_blocked};

/// The two ends of a new ring.
fn ring(rows: u32, slots: u32) -> (Producer, Consumer) {
    let schema = schema(rows);
    let (producer, handoff) = Producer::create(&schema, slots).unwrap();
    (producer, handoff.open(&schema).unwrap())
}

fn publish(producer: &mut Producer, number: u64) {
    let mut slot = producer.claim().unwrap();
    fill(&mut slot.batch(), number);
    slot.publish();
}

#[test]
fn batches_arrive_complete_and_in_order() {
    let mut numbers = Numbers::new(1);
    for slots in [1, 2, 3, 7] {
        let rows = 1 + numbers.below(200) as u32;
        let (mut producer, consumer) = ring(rows, slots);
        let count = 2000;
        // Each thread owns its end, so if one fails the other gets `PeerGone`.
        thread::scope(move |scope| {
            let mut consumer = consumer;
            scope.spawn(move || {
                let mut numbers = Numbers::new(2);
                for number in 0..count {
                    if numbers.below(7) == 0 {
                        // Abandon a filled slot.
                        fill(&mut producer.claim().unwrap().batch(), !number);
                    }
                    if numbers.below(50) == 0 {
                        thread::sleep(Duration::from_micros(numbers.below(300)));
                    }
                    publish(&mut producer, number);
                    assert!(producer.occupied_slots() <= slots as usize);
                }
                producer.finish();
            });
            let mut numbers = Numbers::new(4);
            for number in 0..count {
                if numbers.below(50) == 0 {
                    thread::sleep(Duration::from_micros(numbers.below(300)));
                }
                check(consumer.next().unwrap().unwrap().batch(), number);
            }
            assert!(consumer.next().unwrap().is_none());
            assert!(consumer.next().unwrap().is_none(), "the end stays the end");
        });
    }
}

#[test]
fn several_leases_can_be_held_and_dropped_in_any_order() {
    let (mut producer, consumer) = ring(50, 4);
    let count = 1000;
    // Each thread owns its end, so if one fails the other gets `PeerGone`.
    thread::scope(move |scope| {
        scope.spawn(move || {
            for number in 0..count {
                publish(&mut producer, number);
            }
            producer.finish();
        });
        let (mut consumer, mut numbers) = (consumer, Numbers::new(3));
        let mut held: Vec<(u64, Lease)> = Vec::new();
        let mut most = 0;
        for number in 0..count {
            // A slot must be left for the next batch. The oldest lease may be one of those that stay.
            if held.len() == 4 {
                held.swap_remove(numbers.below(4) as usize);
            }
            most = most.max(held.len());
            held.push((number, consumer.next().unwrap().unwrap()));
            if numbers.below(3) == 0 {
                let (number, leased) = held.swap_remove(numbers.below(held.len() as u64) as usize);
                // Read in another thread, after later batches were leased.
                scope.spawn(move || check(leased.batch(), number)).join().unwrap();
            }
        }
        assert_eq!(most, 3, "all slots but one are leased");
        assert!(consumer.next().unwrap().is_none());
    });
}

#[test]
fn leases_outlive_both_ends() {
    let (mut producer, mut consumer) = ring(50, 2);
    publish(&mut producer, 0);
    let leased = consumer.next().unwrap().unwrap();
    producer.finish();
    drop(consumer);
    check(leased.batch(), 0);
}

#[test]
fn mappings_contain_every_slot_and_outlive_both_ends() {
    let (mut producer, mut consumer) = ring(7, 2);
    let mapping = consumer.mapping();
    for number in 0..3 {
        assert!(!consumer.has_next());
        publish(&mut producer, number);
        assert!(consumer.has_next());
        let lease = consumer.next().unwrap().unwrap();
        let slot = lease.batch().bytes().as_ptr_range();
        assert!(mapping.addresses().start < slot.start && slot.end <= mapping.addresses().end);
    }
    let lease = {
        publish(&mut producer, 3);
        consumer.next().unwrap().unwrap()
    };
    let byte = lease.batch().bytes().as_ptr();
    drop((producer, consumer, lease));
    assert!(mapping.addresses().contains(&byte));
}

#[test]
fn a_lease_that_is_held_delays_no_later_batch() {
    let (mut producer, mut consumer) = ring(10, 2);
    publish(&mut producer, 0);
    let held = consumer.next().unwrap().unwrap();
    for number in 1..20 {
        publish(&mut producer, number);
        check(consumer.next().unwrap().unwrap().batch(), number);
    }
    check(held.batch(), 0);
    assert_eq!((producer.waited(), consumer.waited()), (Duration::ZERO, Duration::ZERO));
}

#[test]
fn batches_are_delivered_in_the_order_of_publication_from_whichever_slots() {
    let (mut producer, mut consumer) = ring(10, 3);
    (0..3).for_each(|number| publish(&mut producer, number));
    let [first, second, third] = [(); 3].map(|()| consumer.next().unwrap().unwrap());
    // Slots 2, 0, 1 hold the batches 3, 4, 5.
    for (number, lease) in [(3, third), (4, first), (5, second)] {
        drop(lease);
        publish(&mut producer, number);
    }
    for number in 3..6 {
        check(consumer.next().unwrap().unwrap().batch(), number);
    }
}

#[test]
fn producer_waits_while_all_slots_are_leased() {
    let (mut producer, mut consumer) = ring(10, 2);
    publish(&mut producer, 0);
    publish(&mut producer, 1);
    let held = [(); 2].map(|()| consumer.next().unwrap().unwrap());
    assert_eq!(producer.waited(), Duration::ZERO);
    while_blocked(|| publish(&mut producer, 2), || drop(held));
    assert!(producer.waited() > Duration::ZERO);
    check(consumer.next().unwrap().unwrap().batch(), 2);
    assert_eq!(consumer.waited(), Duration::ZERO);
}

#[test]
fn consumer_holding_every_slot_waits_for_a_lease_to_drop() {
    let (mut producer, mut consumer) = ring(10, 1);
    publish(&mut producer, 0);
    let held = consumer.next().unwrap().unwrap();
    let next = while_blocked(
        || consumer.next().unwrap().unwrap(),
        || {
            drop(held);
            publish(&mut producer, 1);
        },
    );
    check(next.batch(), 1);
    assert!(consumer.waited() > Duration::ZERO);
}

#[test]
fn finish_ends_the_consumers_wait() {
    let (producer, mut consumer) = ring(10, 2);
    assert!(while_blocked(|| consumer.next().unwrap(), || producer.finish()).is_none());
}

#[test]
fn batches_published_before_the_producer_is_dropped_are_delivered() {
    let (mut producer, mut consumer) = ring(10, 3);
    publish(&mut producer, 0);
    publish(&mut producer, 1);
    drop(producer.claim().unwrap());
    drop(producer);
    check(consumer.next().unwrap().unwrap().batch(), 0);
    check(consumer.next().unwrap().unwrap().batch(), 1);
    assert!(matches!(consumer.next(), Err(RingError::PeerGone)));
    assert!(matches!(consumer.next(), Err(RingError::PeerGone)));
}

#[test]
fn dropping_one_end_ends_the_wait_of_the_other() {
    let (producer, mut consumer) = ring(10, 1);
    assert!(matches!(while_blocked(|| consumer.next(), || drop(producer)), Err(RingError::PeerGone)));

    let (mut producer, consumer) = ring(10, 1);
    publish(&mut producer, 0);
    let filled = while_blocked(|| producer.claim().map(drop), || drop(consumer));
    assert!(matches!(filled, Err(RingError::PeerGone)));
}

/// A wait takes nothing from the ring.
#[test]
fn a_wait_ends_with_a_batch_the_end_or_its_limit() {
    const LIMIT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(100);
    let (mut producer, mut consumer) = ring(10, 2);
    assert!(!consumer.wait(Duration::ZERO).unwrap());
    let began = Instant::now();
    assert!(!consumer.wait(LIMIT).unwrap() && began.elapsed() >= LIMIT);
    let found = while_blocked(|| consumer.wait(LONG), || publish(&mut producer, 0));
    assert!(found.unwrap() && consumer.wait(LIMIT).unwrap());
    assert!(consumer.next().unwrap().is_some());
    // The signal of a batch that has been taken already.
    publish(&mut producer, 1);
    assert!(consumer.next().unwrap().is_some());
    assert!(!consumer.wait(LIMIT).unwrap());
    let ended = while_blocked(|| consumer.wait(LONG), || producer.finish());
    assert!(ended.unwrap() && consumer.next().unwrap().is_none());

    let (producer, mut consumer) = ring(10, 1);
    assert!(while_blocked(|| consumer.wait(LONG), || drop(producer)).unwrap());
    assert!(matches!(consumer.next(), Err(RingError::PeerGone)));
    let (_producer, mut consumer) = ring(10, 1);
    let interrupter = consumer.interrupter();
    let interrupted = while_blocked(|| consumer.wait(LONG), || interrupter.interrupt());
    assert!(matches!(interrupted, Err(RingError::Interrupted)));
}

#[test]
fn interruption_ends_the_current_wait_and_all_later_ones() {
    let (mut producer, mut consumer) = ring(10, 1);
    let interrupter = consumer.interrupter();
    let next = while_blocked(|| consumer.next(), || interrupter.interrupt());
    assert!(matches!(next, Err(RingError::Interrupted)));
    publish(&mut producer, 0);
    assert!(matches!(consumer.next(), Err(RingError::Interrupted)), "the interruption is permanent");

    let interrupter = producer.interrupter();
    let filled = while_blocked(|| producer.claim().map(drop), || interrupter.interrupt());
    assert!(matches!(filled, Err(RingError::Interrupted)));
    assert!(matches!(producer.claim(), Err(RingError::Interrupted)));
}

#[test]
fn losing_the_hand_off_is_peer_gone() {
    let schema = schema(10);
    let lost: [fn(millstream_batch::HandOff); 2] = [drop, |handoff| {
        // Sent, and never received.
        let (here, there) = UnixStream::pair().unwrap();
        handoff.send(&here).unwrap();
        drop(there);
    }];
    for lose in lost {
        let (mut producer, handoff) = Producer::create(&schema, 1).unwrap();
        publish(&mut producer, 0);
        lose(handoff);
        assert!(matches!(producer.claim(), Err(RingError::PeerGone)));
    }
}

#[test]
fn rings_can_be_sent_over_a_socket() {
    let schema = schema(64);
    let (here, there) = UnixStream::pair().unwrap();
    let (mut producer, handoff) = Producer::create(&schema, 2).unwrap();
    publish(&mut producer, 0);
    handoff.send(&here).unwrap();
    let mut consumer = Consumer::receive(&there, &schema).unwrap();
    check(consumer.next().unwrap().unwrap().batch(), 0);
    producer.finish();
    assert!(consumer.next().unwrap().is_none());
}

#[test]
fn slots_of_several_rings_are_claimed_together() {
    let (mut producers, mut consumers): (Vec<_>, Vec<_>) = (0..3).map(|_| ring(20, 2)).unzip();
    for number in 0..10 {
        let mut slots = Producer::claim_all(&mut producers).unwrap();
        for (rank, slot) in (0..).zip(&mut slots) {
            fill(&mut slot.batch(), 3 * number + rank);
        }
        assert!(
            consumers.iter().all(|consumer| !consumer.has_next()),
            "a part is visible before all are filled"
        );
        slots.into_iter().for_each(ClaimedSlot::publish);
        for (rank, consumer) in (0..).zip(&mut consumers) {
            check(consumer.next().unwrap().unwrap().batch(), 3 * number + rank);
        }
    }
    // Slots that are not published are freed.
    drop(Producer::claim_all(&mut producers).unwrap());
    assert_eq!(Producer::claim_all(&mut producers).unwrap().len(), 3);
}

#[test]
fn a_claim_of_all_rings_waits_for_the_last_free_slot() {
    let (mut producers, mut consumers): (Vec<_>, Vec<_>) = (0..2).map(|_| ring(20, 1)).unzip();
    for producer in &mut producers {
        publish(producer, 0);
    }
    drop(consumers[0].next().unwrap());
    let held = consumers[1].next().unwrap();
    let claimed =
        while_blocked(|| Producer::claim_all(&mut producers).map(|slots| slots.len()), || drop(held));
    assert_eq!(claimed.unwrap(), 2);
}

#[test]
fn the_exit_of_any_consumer_ends_a_claim_of_all_rings() {
    for (waited_for, exits) in [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2)] {
        let (mut producers, consumers): (Vec<_>, Vec<_>) = (0..3).map(|_| ring(20, 1)).unzip();
        publish(&mut producers[waited_for], 0);
        let mut consumers: Vec<_> = consumers.into_iter().map(Some).collect();
        let claimed = while_blocked(
            || Producer::claim_all(&mut producers).map(|slots| slots.len()),
            || drop(consumers[exits].take()),
        );
        assert!(matches!(claimed, Err(RingError::PeerGone)), "{waited_for} {exits}: {claimed:?}");
        // The slots claimed before the wait are free again.
        for free in (0..3).filter(|&ring| ring != waited_for) {
            assert!(producers[free].claim().is_ok());
        }
    }
}
