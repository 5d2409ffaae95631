//! Both ends of a ring in one process.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use millstream_batch::{Consumer, Leased, Producer, RingError};
use support::{Numbers, check, fill, schema};

/// Both ends of a new ring.
fn ring(rows: u32, slots: u32) -> (Producer, Consumer) {
    let schema = schema(rows);
    let (producer, handoff) = Producer::create(&schema, slots).unwrap();
    (producer, handoff.open(&schema).unwrap())
}

fn publish(producer: &mut Producer, number: u64) {
    let mut filling = producer.fill().unwrap();
    fill(&mut filling.batch(), number);
    filling.publish();
}

/// Runs `wait` in a thread, checks that it waits, does `then`, and returns what the wait came to.
fn while_waiting<T: Send>(wait: impl FnOnce() -> T + Send, then: impl FnOnce()) -> T {
    thread::scope(|scope| {
        let waiting = scope.spawn(wait);
        thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished(), "it should wait");
        then();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !waiting.is_finished() {
            if Instant::now() > deadline {
                // A panic would wait for the very thread that nobody wakes.
                std::process::abort();
            }
            thread::sleep(Duration::from_millis(1));
        }
        waiting.join().unwrap()
    })
}

#[test]
fn every_batch_arrives_whole_and_in_order() {
    let mut numbers = Numbers::new(1);
    for slots in [1, 2, 3, 7] {
        let rows = 1 + numbers.below(200) as u32;
        let (mut producer, consumer) = ring(rows, slots);
        let count = 2000;
        // Each thread owns its end: should one fail, the other finds it gone.
        thread::scope(move |scope| {
            let mut consumer = consumer;
            scope.spawn(move || {
                let mut numbers = Numbers::new(2);
                for number in 0..count {
                    if numbers.below(7) == 0 {
                        // Given up half-written.
                        fill(&mut producer.fill().unwrap().batch(), !number);
                    }
                    if numbers.below(50) == 0 {
                        thread::sleep(Duration::from_micros(numbers.below(300)));
                    }
                    publish(&mut producer, number);
                    assert!(producer.occupied() <= slots as usize);
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
fn several_leases_live_side_by_side_and_end_in_any_order() {
    let (mut producer, consumer) = ring(50, 4);
    let count = 1000;
    // Each thread owns its end: should one fail, the other finds it gone.
    thread::scope(move |scope| {
        scope.spawn(move || {
            for number in 0..count {
                publish(&mut producer, number);
            }
            producer.finish();
        });
        let (mut consumer, mut numbers) = (consumer, Numbers::new(3));
        let mut held: Vec<(u64, Leased)> = Vec::new();
        let mut most = 0;
        for number in 0..count {
            // The slot that comes round next must not be held.
            held.retain(|(earlier, _)| earlier + 4 > number);
            most = most.max(held.len());
            held.push((number, consumer.next().unwrap().unwrap()));
            if numbers.below(3) == 0 {
                let (number, leased) = held.swap_remove(numbers.below(held.len() as u64) as usize);
                // Read in another thread, after later batches were taken.
                scope.spawn(move || check(leased.batch(), number)).join().unwrap();
            }
        }
        assert_eq!(most, 3, "as many as there can be beside the next");
        assert!(consumer.next().unwrap().is_none());
    });
}

#[test]
fn a_lease_outlives_both_ends() {
    let (mut producer, mut consumer) = ring(50, 2);
    publish(&mut producer, 0);
    let leased = consumer.next().unwrap().unwrap();
    producer.finish();
    drop(consumer);
    check(leased.batch(), 0);
}

#[test]
fn pages_hold_every_slot_and_outlive_both_ends() {
    let (mut producer, mut consumer) = ring(7, 2);
    let pages = consumer.pages();
    for number in 0..3 {
        assert!(!consumer.has_next());
        publish(&mut producer, number);
        assert!(consumer.has_next());
        let lease = consumer.next().unwrap().unwrap();
        let slot = lease.batch().bytes().as_ptr_range();
        assert!(pages.addresses().start < slot.start && slot.end <= pages.addresses().end);
    }
    let lease = {
        publish(&mut producer, 3);
        consumer.next().unwrap().unwrap()
    };
    let byte = lease.batch().bytes().as_ptr();
    drop((producer, consumer, lease));
    assert!(pages.addresses().contains(&byte));
}

#[test]
fn the_producer_waits_for_the_oldest_lease() {
    let (mut producer, mut consumer) = ring(10, 2);
    publish(&mut producer, 0);
    publish(&mut producer, 1);
    let oldest = consumer.next().unwrap().unwrap();
    drop(consumer.next().unwrap().unwrap());
    assert_eq!(producer.waited(), Duration::ZERO);
    while_waiting(|| publish(&mut producer, 2), || drop(oldest));
    assert!(producer.waited() >= Duration::from_millis(20), "{:?}", producer.waited());
    check(consumer.next().unwrap().unwrap().batch(), 2);
    assert_eq!(consumer.waited(), Duration::ZERO);
}

#[test]
fn a_consumer_that_holds_every_slot_waits_for_another_thread_to_let_go() {
    let (mut producer, mut consumer) = ring(10, 1);
    publish(&mut producer, 0);
    let held = consumer.next().unwrap().unwrap();
    let next = while_waiting(
        || consumer.next().unwrap().unwrap(),
        || {
            drop(held);
            publish(&mut producer, 1);
        },
    );
    check(next.batch(), 1);
    assert!(consumer.waited() >= Duration::from_millis(20), "{:?}", consumer.waited());
}

#[test]
fn a_waiting_consumer_sees_the_end() {
    let (producer, mut consumer) = ring(10, 2);
    assert!(while_waiting(|| consumer.next().unwrap(), || producer.finish()).is_none());
}

#[test]
fn a_consumer_gets_what_was_published_before_its_producer_went() {
    let (mut producer, mut consumer) = ring(10, 3);
    publish(&mut producer, 0);
    publish(&mut producer, 1);
    drop(producer.fill().unwrap());
    drop(producer);
    check(consumer.next().unwrap().unwrap().batch(), 0);
    check(consumer.next().unwrap().unwrap().batch(), 1);
    assert!(matches!(consumer.next(), Err(RingError::PeerGone)));
    assert!(matches!(consumer.next(), Err(RingError::PeerGone)));
}

#[test]
fn waits_end_when_the_other_end_goes() {
    let (producer, mut consumer) = ring(10, 1);
    assert!(matches!(while_waiting(|| consumer.next(), || drop(producer)), Err(RingError::PeerGone)));

    let (mut producer, consumer) = ring(10, 1);
    publish(&mut producer, 0);
    let filled = while_waiting(|| producer.fill().map(drop), || drop(consumer));
    assert!(matches!(filled, Err(RingError::PeerGone)));
}

#[test]
fn interruption_ends_the_present_wait_and_every_later_one() {
    let (mut producer, mut consumer) = ring(10, 1);
    let interrupter = consumer.interrupter();
    let next = while_waiting(|| consumer.next(), || interrupter.interrupt());
    assert!(matches!(next, Err(RingError::Interrupted)));
    publish(&mut producer, 0);
    assert!(matches!(consumer.next(), Err(RingError::Interrupted)), "for good");

    let interrupter = producer.interrupter();
    let filled = while_waiting(|| producer.fill().map(drop), || interrupter.interrupt());
    assert!(matches!(filled, Err(RingError::Interrupted)));
    assert!(matches!(producer.fill(), Err(RingError::Interrupted)));
}

#[test]
fn a_hand_off_that_is_lost_leaves_the_producer_without_a_peer() {
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
        assert!(matches!(producer.fill(), Err(RingError::PeerGone)));
    }
}

#[test]
fn a_ring_travels_over_a_socket() {
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
