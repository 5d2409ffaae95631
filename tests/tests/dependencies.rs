//! Checks the dependencies between crates, and which crates may contain `unsafe`.
//!
//! The central rule: ingest (`pipeline`) and training (`trainer`) never depend on each other. They share only the batch.
//! No crate re-exports another one, because its dependents could then use a crate that they may not depend on.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use cargo_metadata::{Metadata, MetadataCommand, Package, Target};

/// Every crate of the workspace, and the workspace crates that it may depend on, in its code, its tests and
/// its build script.
const ALLOWED: [(&str, &[&str]); 25] = [
    ("millstream-trace", &[]),
    ("millstream-batch", &[]),
    ("millstream-disk", &[]),
    ("millstream-control", &[]),
    ("millstream-credentials", &[]),
    ("millstream-io", &["millstream-disk", "millstream-trace"]),
    ("millstream-format", &[]),
    ("millstream-images", &["millstream-batch"]),
    (
        "millstream-pipeline",
        &[
            "millstream-batch",
            "millstream-disk",
            "millstream-format",
            "millstream-images",
            "millstream-io",
            "millstream-trace",
        ],
    ),
    // Work on files outside of jobs.
    ("millstream-tools", &["millstream-format", "millstream-io", "millstream-pipeline"]),
    ("millstream-backend", &["millstream-batch", "millstream-test-cuda", "millstream-trace"]),
    (
        "millstream-trainer",
        &["millstream-backend", "millstream-batch", "millstream-test-cuda", "millstream-trace"],
    ),
    // Daemons of several hosts.
    ("millstream-peers", &["millstream-io", "millstream-pipeline"]),
    // Files that people write.
    ("millstream-document", &["millstream-format", "millstream-io", "millstream-pipeline"]),
    (
        "millstream-job",
        &[
            "millstream-document",
            "millstream-format",
            "millstream-io",
            "millstream-pipeline",
            "millstream-trainer",
        ],
    ),
    // Batches for other programs: without the trainer.
    (
        "millstream-feed",
        &[
            "millstream-batch",
            "millstream-credentials",
            "millstream-document",
            "millstream-images",
            "millstream-io",
            "millstream-pipeline",
        ],
    ),
    (
        "millstream-python",
        &[
            "millstream-batch",
            "millstream-credentials",
            "millstream-document",
            "millstream-feed",
            "millstream-io",
        ],
    ),
    (
        "millstream-worker",
        &["millstream-backend", "millstream-batch", "millstream-trace", "millstream-trainer"],
    ),
    (
        "millstream-daemon",
        &[
            "millstream-backend",
            "millstream-batch",
            "millstream-control",
            "millstream-credentials",
            "millstream-document",
            "millstream-feed",
            "millstream-format",
            "millstream-io",
            "millstream-job",
            "millstream-peers",
            "millstream-pipeline",
            "millstream-tools",
            "millstream-trace",
            "millstream-trainer",
            "millstream-worker",
        ],
    ),
    (
        "millstream-cli",
        &[
            "millstream-batch",
            "millstream-control",
            "millstream-daemon",
            "millstream-disk",
            "millstream-document",
            "millstream-format",
            "millstream-io",
            "millstream-job",
            "millstream-peers",
            "millstream-pipeline",
            "millstream-tools",
            "millstream-trace",
            "millstream-trainer",
            "millstream-worker",
        ],
    ),
    // Stand-ins for CUDA's libraries, for the backend's tests.
    ("millstream-test-cuda", &[]),
    // An object store, and tests of ingest against it.
    (
        "millstream-test-storage",
        &["millstream-format", "millstream-io", "millstream-pipeline", "millstream-tools"],
    ),
    // Properties that hold for any input.
    (
        "millstream-properties",
        &[
            "millstream-batch",
            "millstream-feed",
            "millstream-format",
            "millstream-images",
            "millstream-io",
            "millstream-job",
            "millstream-peers",
            "millstream-pipeline",
            "millstream-tools",
        ],
    ),
    ("millstream-fuzz", &["millstream-properties"]),
    // End-to-end tests may use every crate.
    (
        "millstream-tests",
        &[
            "millstream-backend",
            "millstream-batch",
            "millstream-control",
            "millstream-daemon",
            "millstream-feed",
            "millstream-job",
            "millstream-peers",
            "millstream-pipeline",
            "millstream-test-cuda",
            "millstream-test-storage",
            "millstream-trainer",
        ],
    ),
];

/// Crates without an asynchronous runtime.
const SYNCHRONOUS: [&str; 10] = [
    "millstream-trace",
    "millstream-batch",
    "millstream-disk",
    "millstream-format",
    "millstream-images",
    "millstream-backend",
    "millstream-trainer",
    "millstream-document",
    "millstream-job",
    "millstream-worker",
];

/// The crates that may contain `unsafe`: memory and the ring; buffers that the kernel fills; compute kernels; a call of
/// the system; memory for arrays of Python; the decoder of JPEG images.
const UNSAFE: [&str; 6] = [
    "millstream-batch",
    "millstream-disk",
    "millstream-images",
    "millstream-backend",
    "millstream-credentials",
    "millstream-python",
];

fn workspace() -> Metadata {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap()
}

fn allowed() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    ALLOWED.iter().map(|&(name, known)| (name, known.iter().copied().collect())).collect()
}

/// Dependencies of every kind: normal, development, build.
fn dependencies(package: &Package) -> BTreeSet<&str> {
    package.dependencies.iter().map(|dependency| dependency.name.as_str()).collect()
}

#[test]
fn every_crate_is_listed() {
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
            let allowed_here = &allowed[package.name.as_str()];
            assert!(allowed_here.contains(name), "{} must not depend on {name}", package.name);
            edges += 1;
        }
    }
    // At least: pipeline, backend and trainer depend on the batch, and the daemon on all of them.
    assert!(edges >= 8, "only {edges} dependencies within the workspace were found");
}

/// Re-exports of workspace crates: `pub use millstream_x...`, `pub extern crate millstream_x` and public type aliases
/// `pub type X = millstream_x...`, also through a crate's local name for another (`use millstream_x as y`).
fn re_exports(source: &str) -> Vec<String> {
    const STARTS: [&str; 4] = ["use ", "pub use ", "pub extern crate ", "pub type "];
    let is_start = |line: &&str| STARTS.iter().any(|start| line.starts_with(start));
    let statements = source.split(';').map(|statement| {
        statement.lines().map(str::trim).skip_while(|line| !is_start(line)).collect::<Vec<_>>().join(" ")
    });
    let statements: Vec<String> = statements.filter(|statement| !statement.is_empty()).collect();
    let aliases: Vec<&str> = statements
        .iter()
        .filter(|statement| statement.starts_with("use millstream_"))
        .filter_map(|statement| statement.split_once(" as ").map(|(_, alias)| alias))
        .collect();
    let names_a_crate = |statement: &&String| {
        let mut words = statement.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| word.starts_with("millstream_") || aliases.contains(&word))
    };
    statements
        .iter()
        .filter(|statement| statement.starts_with("pub "))
        .filter(names_a_crate)
        .cloned()
        .collect()
}

#[test]
fn no_crate_re_exports_another() {
    let mut files = 0;
    for package in workspace().workspace_packages() {
        let library = package.targets.iter().find(|target| target.is_lib());
        let Some(source) = library.and_then(|library| library.src_path.parent()) else { continue };
        let mut directories = vec![source.as_std_path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path).unwrap();
                    let path = path.display();
                    assert_eq!(re_exports(&text), [""; 0], "{path} re-exports a crate of the workspace");
                    files += 1;
                }
            }
        }
    }
    assert!(files >= 300, "only {files} source files were found");
}

#[test]
fn re_exports_are_recognized() {
    let source = "use millstream_trainer as trainer;\nuse millstream_batch::BatchRef;\n\
                  /// pub use millstream_doc;\npub use crate::a::B;\n\
                  pub use millstream_pipeline as pipeline;\npub use trainer::spec;\n\
                  pub extern crate millstream_trace;\npub type Row = millstream_batch::Row;\n\
                  pub use crate::{\n    c,\n};\npub use self::d::{\n    e,\n    trainer::f,\n};\npub(crate) use millstream_disk::x;\n";
    assert_eq!(
        re_exports(source),
        [
            "pub use millstream_pipeline as pipeline",
            "pub use trainer::spec",
            "pub extern crate millstream_trace",
            "pub type Row = millstream_batch::Row",
            "pub use self::d::{ e, trainer::f, }",
        ]
    );
}

#[test]
fn pipeline_and_trainer_never_depend_on_each_other() {
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
        reachable("millstream-tools"),
        BTreeSet::from([
            "millstream-batch",
            "millstream-disk",
            "millstream-format",
            "millstream-images",
            "millstream-io",
            "millstream-pipeline",
            "millstream-tools",
            "millstream-trace",
        ])
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
