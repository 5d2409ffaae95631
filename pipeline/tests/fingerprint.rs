//! Compares fingerprints with test vectors made by TensorFlow (`golden/fingerprint64.py`).

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use millstream_pipeline::fingerprint::{bucket, cat64, cross64, fingerprint64, reduce};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    single: Vec<Single>,
    crossed: Vec<Crossed>,
    product: Product,
    integers: Vec<Integer>,
}

#[derive(Deserialize)]
struct Single {
    hex: String,
    buckets: BTreeMap<u32, u32>,
    fingerprint: String,
}

#[derive(Deserialize)]
struct Crossed {
    hex: Vec<String>,
    buckets: BTreeMap<u32, u32>,
}

#[derive(Deserialize)]
struct Product {
    hex: Vec<Vec<String>>,
    buckets: u32,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Integer {
    value: String,
    bucket: u32,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("golden/fingerprint64.json")).unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn every_length_matches_tensorflow() {
    let vectors = golden().single;
    let lengths: Vec<usize> = vectors.iter().map(|vector| vector.hex.len() / 2).collect();
    assert!((0..=131).all(|length| lengths.contains(&length)), "each branch and each block boundary");
    for vector in vectors {
        let input = bytes(&vector.hex);
        assert_eq!(fingerprint64(&input).to_string(), vector.fingerprint, "{} bytes", input.len());
        assert_eq!(vector.buckets.len(), 4);
        for (buckets, expected) in vector.buckets {
            assert_eq!(bucket(&input, buckets), expected, "{} bytes in {buckets}", input.len());
        }
    }
}

#[test]
fn crosses_match_tensorflow() {
    let vectors = golden().crossed;
    assert!(vectors.len() >= 40);
    for vector in vectors {
        let values: Vec<Vec<u8>> = vector.hex.iter().map(|hex| bytes(hex)).collect();
        let crossed = cross64(values.iter().map(Vec::as_slice));
        for (buckets, expected) in vector.buckets {
            // TensorFlow reduces a cross by i64::MAX if no buckets are given, else directly by the buckets.
            assert_eq!(reduce(crossed, buckets), expected, "{:?} in {buckets}", vector.hex);
        }
    }
}

#[test]
fn crosses_of_lists_match_tensorflow_in_content_and_order() {
    let product = golden().product;
    let lists: Vec<Vec<Vec<u8>>> =
        product.hex.iter().map(|list| list.iter().map(|hex| bytes(hex)).collect()).collect();
    let mut ids = Vec::new();
    for first in &lists[0] {
        for second in &lists[1] {
            for third in &lists[2] {
                ids.push(reduce(cross64([first.as_slice(), second, third]), product.buckets));
            }
        }
    }
    assert_eq!(ids, product.ids);
}

#[test]
fn integers_hash_as_their_decimal_text() {
    let integers = golden().integers;
    assert!(!integers.is_empty());
    for integer in integers {
        assert_eq!(bucket(integer.value.as_bytes(), 1_000_003), integer.bucket, "{}", integer.value);
    }
}

#[test]
fn combining_is_not_commutative() {
    assert_ne!(cat64(1, 2), cat64(2, 1));
}
