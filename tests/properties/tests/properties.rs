//! Runs every property on its seeds, on mutations of them, and on all inputs that ever violated it.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use millstream_properties::{PROPERTIES, Property};

/// The number of mutations tried per property, identical in each run.
const MUTATIONS: u32 = 10_000;

#[test]
fn properties_hold_for_seeds_and_mutations() {
    for property in &PROPERTIES {
        let seeds = (property.seeds)();
        assert!(!seeds.is_empty(), "{}", property.name);
        seeds.iter().for_each(|seed| try_with(property, seed, "a seed"));
        try_with(property, &[], "no bytes");
        let mut state = 1;
        for round in 0..MUTATIONS {
            let mut input = seeds[draw(&mut state, seeds.len())].clone();
            for _ in 0..=draw(&mut state, 4) {
                mutate(&mut input, &seeds, &mut state);
            }
            try_with(property, &input, &format!("mutation {round}"));
        }
    }
}

#[test]
fn properties_hold_for_all_regressions() {
    let mut known: BTreeSet<PathBuf> = BTreeSet::new();
    for property in &PROPERTIES {
        let directory = regressions().join(property.name);
        for entry in fs::read_dir(&directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            try_with(property, &fs::read(&path).unwrap(), &path.display().to_string());
        }
        known.insert(directory);
    }
    for entry in fs::read_dir(regressions()).unwrap() {
        let path = entry.unwrap().path();
        assert!(!path.is_dir() || known.contains(&path), "{} belongs to no property", path.display());
    }
}

fn regressions() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions")
}

fn try_with(property: &Property, input: &[u8], what: &str) {
    let held = catch_unwind(AssertUnwindSafe(|| (property.check)(input)));
    assert!(held.is_ok(), "{} is violated by {what}: {}", property.name, input.escape_ascii());
}

fn mutate(input: &mut Vec<u8>, seeds: &[Vec<u8>], state: &mut u64) {
    let at = draw(state, input.len() + 1);
    match draw(state, 6) {
        0 => input.truncate(at),
        1 => input.insert(at, draw(state, 256) as u8),
        2 => {
            let other = &seeds[draw(state, seeds.len())];
            let from = draw(state, other.len() + 1);
            let piece: Vec<u8> = other[from..].iter().copied().take(draw(state, 64)).collect();
            input.splice(at..at, piece);
        }
        _ if at == input.len() => {}
        3 => drop(input.remove(at)),
        4 => input[at] ^= 1 << draw(state, 8),
        _ => input[at] = [0, 1, 0x7f, 0x80, 0xff][draw(state, 5)],
    }
}

fn draw(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below
}
