//! The stand-ins hold to what they stand in for, and notice what goes wrong.
//!
//! The checks are a C++ program (`check/`), which calls the libraries as any program does; each case runs in a process
//! of its own, so that a failed context is nobody else's.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use millstream_test_cuda::StandIn;

/// The program, compiled for this run.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in-check");
        let units = ["graphs.cpp", "kernels.cpp", "main.cpp", "memory.cpp", "products.cpp", "streams.cpp"];
        let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let output = Command::new(compiler)
            .args(["-std=c++17", "-O1", "-Wall", "-Wno-unused-function"])
            .arg(format!("-DKERNELS=\"{}\"", source.join("kernels.cu").display()))
            .args(units.map(|unit| source.join(unit)))
            .arg("-o")
            .arg(&program)
            .args(["-ldl", "-pthread"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    })
}

fn cases() -> BTreeSet<String> {
    let output = Command::new(program()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Runs all cases of one subject.
fn check(subject: &str, least: usize) {
    let whole = StandIn::whole().unwrap();
    let mut run = 0;
    for case in cases().into_iter().filter(|case| case.starts_with(&format!("{subject}_"))) {
        let output = Command::new(program()).arg(whole.folder()).arg(&case).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{case}, {}: {said}", output.status);
        run += 1;
    }
    assert!(run >= least, "only {run} cases of {subject} were found");
}

#[test]
fn streams_run_late_and_in_order() {
    check("streams", 8);
}

#[test]
fn memory_is_where_it_was_allocated() {
    check("memory", 9);
}

#[test]
fn kernels_compute_and_fail_as_on_a_device() {
    check("kernels", 22);
}

#[test]
fn graphs_run_what_they_are_made_of() {
    check("graphs", 12);
}

#[test]
fn products_agree_with_plain_loops() {
    check("products", 2);
}
