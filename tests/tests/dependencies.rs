//! Which crate may depend on which, and which may contain `unsafe`.
//!
//! The central rule: ingest (`pipeline`) and training (`trainer`) never depend on each other. They share only the batch.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use cargo_metadata::{Metadata, MetadataCommand, Package, Target};

/// Every crate of the workspace, and the crates of the workspace that it may depend on, in its code as in
/// its tests and build script.
const MAY_KNOW: [(&str, &[&str]); 14] = [
    ("millstream-trace", &[]),
    ("millstream-batch", &[]),
    ("millstream-disk", &[]),
    ("millstream-control", &[]),
    ("millstream-pipeline", &["millstream-batch", "millstream-disk", "millstream-trace"]),
    ("millstream-backend", &["millstream-batch", "millstream-test-cuda", "millstream-trace"]),
    (
        "millstream-trainer",
        &["millstream-backend", "millstream-batch", "millstream-test-cuda", "millstream-trace"],
    ),
    (
        "millstream-daemon",
        &[
            "millstream-backend",
            "millstream-batch",
            "millstream-control",
            "millstream-pipeline",
            "millstream-trace",
            "millstream-trainer",
        ],
    ),
    ("millstream-cli", &["millstream-control", "millstream-daemon"]),
    // Libraries that know nothing of us, in place of CUDA's: the backend's tests run on them.
    ("millstream-test-cuda", &[]),
    // A server that knows nothing of us, and tests of the reading side against it.
    ("millstream-test-storage", &["millstream-pipeline"]),
    // What must hold for any bytes, wherever they come in.
    ("millstream-properties", &["millstream-batch", "millstream-daemon", "millstream-pipeline"]),
    ("millstream-fuzz", &["millstream-properties"]),
    // Tests of the whole may look at any part of it.
    (
        "millstream-tests",
        &[
            "millstream-backend",
            "millstream-batch",
            "millstream-control",
            "millstream-daemon",
            "millstream-pipeline",
            "millstream-test-cuda",
            "millstream-test-storage",
            "millstream-trainer",
        ],
    ),
];

/// Crates whose code is synchronous, on threads of its own: no runtime in them.
const SYNCHRONOUS: [&str; 5] =
    ["millstream-trace", "millstream-batch", "millstream-disk", "millstream-backend", "millstream-trainer"];

/// Where `unsafe` may live: memory and the ring; buffers that the kernel fills; kernels.
const UNSAFE: [&str; 3] = ["millstream-batch", "millstream-disk", "millstream-backend"];

fn workspace() -> Metadata {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap()
}

fn allowed() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    MAY_KNOW.iter().map(|&(name, known)| (name, known.iter().copied().collect())).collect()
}

/// Dependencies of every kind: normal, development, build.
fn dependencies(package: &Package) -> BTreeSet<&str> {
    package.dependencies.iter().map(|dependency| dependency.name.as_str()).collect()
}

#[test]
fn every_crate_is_in_the_house() {
    let workspace = workspace();
    let found: BTreeSet<&str> =
        workspace.workspace_packages().into_iter().map(|package| package.name.as_str()).collect();
    let expected: BTreeSet<&str> = allowed().into_keys().collect();
    assert_eq!(found, expected);
}

#[test]
fn dependencies_point_one_way() {
    let (workspace, allowed) = (workspace(), allowed());
    let mut edges = 0;
    for package in workspace.workspace_packages() {
        for name in dependencies(package).into_iter().filter(|name| allowed.contains_key(name)) {
            let may_know = &allowed[package.name.as_str()];
            assert!(may_know.contains(name), "{} must not depend on {name}", package.name);
            edges += 1;
        }
    }
    // At the least: pipeline, backend and trainer know the batch, the daemon knows them all.
    assert!(edges >= 8, "only {edges} dependencies within the workspace were found");
}

#[test]
fn pipeline_and_trainer_never_see_each_other() {
    let allowed = allowed();
    let reachable = |from: &'static str| {
        let mut seen = BTreeSet::from([from]);
        let mut next = vec![from];
        while let Some(name) = next.pop() {
            next.extend(allowed[name].iter().copied().filter(|&known| seen.insert(known)));
        }
        seen
    };
    assert_eq!(
        reachable("millstream-trainer"),
        BTreeSet::from([
            "millstream-backend",
            "millstream-batch",
            "millstream-test-cuda",
            "millstream-trace",
            "millstream-trainer"
        ])
    );
    assert_eq!(
        reachable("millstream-pipeline"),
        BTreeSet::from(["millstream-batch", "millstream-disk", "millstream-pipeline", "millstream-trace"])
    );
}

#[test]
fn synchronous_crates_have_no_runtime() {
    let workspace = workspace();
    let mut checked = 0;
    for package in workspace.workspace_packages() {
        if SYNCHRONOUS.contains(&package.name.as_str()) {
            assert!(!dependencies(package).contains("tokio"), "{} must not depend on tokio", package.name);
            checked += 1;
        }
    }
    assert_eq!(checked, SYNCHRONOUS.len());
}

#[test]
fn unsafe_is_forbidden_elsewhere() {
    let workspace = workspace();
    let mut checked = 0;
    for package in workspace.workspace_packages() {
        if UNSAFE.contains(&package.name.as_str()) {
            continue;
        }
        // libFuzzer's targets export a symbol, which counts as unsafe.
        let is_product =
            |target: &&Target| target.is_lib() || target.is_bin() && target.required_features.is_empty();
        for target in package.targets.iter().filter(is_product) {
            let source = fs::read_to_string(&target.src_path).unwrap();
            assert!(
                source.lines().any(|line| line == "#![forbid(unsafe_code)]"),
                "{} lacks #![forbid(unsafe_code)]",
                target.src_path
            );
            checked += 1;
        }
    }
    assert!(checked >= 7, "only {checked} libraries and programs were found");
}
