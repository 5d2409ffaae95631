//! The CPU and CUDA against the reference, and the CPU against itself on other numbers of threads.

use std::fmt::Debug;

use millstream_backend::{Pooling, Reference};

use crate::case::{IdsFall, Outcome, Random, Shapes, cpus, cuda};

use crate::merged;
use crate::operations::run;

const POOLINGS: [Pooling; 3] = [Pooling::Sum, Pooling::Mean, Pooling::SqrtN];

/// Sizes around the boundaries of blocks, strips and vectors.
fn shapes() -> Vec<Shapes> {
    let mut random = Random(11);
    let mut all = Vec::new();
    let row_counts = [1, 2, 5, 63, 64, 65, 191, 192, 193, 400, 1500];
    let falls = [IdsFall::Anywhere, IdsFall::AllEqual, IdsFall::Nowhere];
    for (number, rows) in row_counts.into_iter().cycle().take(44).enumerate() {
        let widths = [1, 3, 8, 15, 16, 17, 32, 33, 40];
        let mut size = || {
            let cardinality = [1, 2, 7, 100, 1000, 5000][random.below(6)];
            (cardinality, widths[random.below(widths.len())])
        };
        let single = (0..number % 4).map(|_| size()).collect();
        let columns = if number < 32 { (number + 1) % 3 } else { 1 + number % 4 };
        let ragged = (0..columns).map(|_| size());
        let ragged = ragged.map(|(cardinality, width)| (cardinality, width, 5)).collect();
        let layers = [(1, 1), (3, 5), (429, 64), (48, 16), (49, 15), (100, 1), (17, 33), (130, 256)];
        let large = (520, 513);
        all.push(Shapes {
            rows,
            capacity: rows + (number as u32 % 3) * 7,
            dense: [1, 0, 13, 2][number % 4],
            single,
            ragged,
            pooling: match number {
                0..24 => POOLINGS[number % 3],
                24..32 => Pooling::Unpooled(0),
                _ => Pooling::Max,
            },
            shared: number % 2 == 1,
            weighted: number % 3 == 0,
            weighted_ids: number % 4 > 1,
            ids: falls[number % falls.len()],
            layer: if number == 8 { large } else { layers[number % layers.len()] },
        });
    }
    // Rows of one vector, of as many columns as a warp loads at once, and of more; ids that many rows name, and few.
    for (ids, pooling) in [(IdsFall::Anywhere, Pooling::Sum), (IdsFall::AllEqual, Pooling::Max)] {
        all.push(Shapes {
            rows: 150,
            capacity: 150,
            dense: 1,
            single: vec![(3, 4), (50, 128), (7, 130)],
            ragged: vec![(40, 260, 3)],
            pooling,
            shared: true,
            weighted: true,
            weighted_ids: false,
            ids,
            layer: (16, 1),
        });
    }
    all
}

#[test]
fn the_cpu_agrees_with_the_reference() {
    let cpus = cpus(2);
    for (number, shapes) in shapes().iter().enumerate() {
        let expected = run(&Reference, shapes, number as u64);
        for cpu in &cpus {
            agree(&expected, &run(cpu, shapes, number as u64), tolerance(shapes), shapes);
        }
    }
}

#[test]
fn cuda_agrees_with_the_reference() {
    let cuda = cuda();
    for (number, shapes) in shapes().iter().enumerate() {
        let expected = run(&Reference, shapes, number as u64);
        agree(&expected, &run(&cuda, shapes, number as u64), tolerance(shapes), shapes);
    }
}

/// A worker whose part of a batch is empty runs its passes on no rows.
#[test]
fn no_rows_agree_with_the_reference() {
    for pooling in [Pooling::Sum, Pooling::Mean, Pooling::Unpooled(0), Pooling::Max] {
        let shapes = Shapes {
            rows: 0,
            capacity: 5,
            dense: 3,
            single: vec![(7, 8), (100, 3)],
            ragged: vec![(9, 16, 4)],
            pooling,
            shared: false,
            weighted: true,
            weighted_ids: pooling == Pooling::Mean,
            ids: IdsFall::Anywhere,
            layer: (33, 17),
        };
        let expected = run(&Reference, &shapes, 2);
        assert!(expected.iter().flat_map(|(_, values)| values).all(|value| value.is_finite()));
        cpus(2).iter().for_each(|cpu| agree(&expected, &run(cpu, &shapes, 2), 1e-5, &shapes));
        agree(&expected, &run(&cuda(), &shapes, 2), 1e-5, &shapes);
    }
}

/// A table row that every batch row names, three times if columns share it, sums as many gradients, which nearly
/// cancel. Unpooled ones are not averaged before: they are as many as five times that. Nor are those of maxima.
fn tolerance(shapes: &Shapes) -> f64 {
    let summed = f64::from(shapes.rows) * if shapes.shared { 3.0 } else { 1.0 };
    let each = if let Pooling::Max | Pooling::Unpooled(_) = shapes.pooling { 5.0 } else { 1.0 };
    1e-5 * (each * summed / 300.0).max(1.0)
}

fn agree(expected: &Outcome, found: &Outcome, tolerance: f64, case: impl Debug) {
    assert_eq!(expected.len(), found.len());
    for ((name, expected), (_, found)) in expected.iter().zip(found) {
        assert_eq!(expected.len(), found.len(), "{name}");
        let largest = expected.iter().fold(1.0_f64, |largest, x| largest.max(x.abs()));
        for (item, (expected, found)) in expected.iter().zip(found).enumerate() {
            let close = (expected - found).abs() <= tolerance * largest;
            assert!(close, "{name}, item {item}: {found}, not {expected}; {case:?}");
        }
    }
}

#[test]
fn merged_rows_are_stepped_as_by_the_reference() {
    let expected = merged::run(&Reference);
    for (cpu, of_one_thread) in cpus(3).iter().zip(&cpus(1)) {
        let found = merged::run(cpu);
        agree(&expected, &found, 1e-5, "CPU");
        assert_eq!(bits(&found), bits(&merged::run(of_one_thread)));
    }
    agree(&expected, &merged::run(&cuda()), 1e-5, "CUDA");
}

#[test]
fn threads_change_no_bit() {
    for (number, shapes) in shapes().iter().enumerate() {
        let outcome = |threads| cpus(threads).map(|cpu| bits(&run(&cpu, shapes, number as u64)));
        let one = outcome(1);
        assert!(one.iter().all(|outcome| !outcome.is_empty()));
        assert_eq!(one, outcome(2), "{shapes:?}");
        assert_eq!(one, outcome(3), "{shapes:?}");
    }
}

fn bits(outcome: &Outcome) -> Vec<(String, Vec<u64>)> {
    let bits = |values: &Vec<f64>| values.iter().map(|value| value.to_bits()).collect();
    outcome.iter().map(|(name, values)| (name.clone(), bits(values))).collect()
}
