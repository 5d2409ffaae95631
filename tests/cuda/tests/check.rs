//! The stand-ins behave like the libraries that they replace, and detect misuse.
//!
//! The checks are a C++ program (`check/`) that calls the libraries like any program. Each case runs in a separate process,
//! so that a failed context does not affect others.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs, thread};

use millstream_test_cuda::{Library, StandIn, Variant};

/// The program, compiled for this run.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in-check");
        let units = fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path());
        let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let output = Command::new(compiler)
            .args(["-std=c++17", "-O1", "-Wall", "-Wno-unused-function"])
            .arg(format!("-DKERNELS=\"{}\"", source.join("kernels.cu").display()))
            .args(units.filter(|path| path.extension().is_some_and(|extension| extension == "cpp")))
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

/// Runs one case.
fn run(stand_in: &StandIn, case: &str, copy: Option<&StandIn>) {
    let mut command = Command::new(program());
    command.arg(stand_in.folder()).arg(case).args(copy.map(StandIn::folder));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}, {}: {said}", output.status);
}

/// Runs all cases of one subject.
fn check(subject: &str, least: usize) {
    let whole = StandIn::whole().unwrap();
    let cases: Vec<_> = cases().into_iter().filter(|case| case.starts_with(&format!("{subject}_"))).collect();
    assert!(cases.len() >= least, "only {} cases of {subject} were found", cases.len());
    for case in cases {
        run(&whole, &case, None);
    }
}

#[test]
fn streams_run_late_and_in_order() {
    check("streams", 8);
}

#[test]
fn memory_is_isolated_and_bounds_are_checked() {
    check("memory", 9);
}

#[test]
fn kernels_compute_and_fail_as_on_a_device() {
    check("kernels", 22);
}

#[test]
fn graphs_run_their_nodes_in_dependency_order() {
    check("graphs", 11);
}

#[test]
fn products_match_plain_loops() {
    check("products", 2);
}

#[test]
fn programs_are_compiled_or_rejected_as_by_nvrtc() {
    check("programs", 6);
}

#[test]
fn faults_counts_and_devices_are_controllable() {
    check("control", 7);
}

#[test]
fn sums_over_ranks_are_those_of_nccl() {
    check("nccl", 9);
}

#[test]
fn variants_lack_the_requested_functions() {
    let lacking = Variant::default()
        .without_function(Library::Cuda, "cuGraphAddMemcpyNode")
        .without_function(Library::Nvrtc, "nvrtcGetCUBIN");
    run(&StandIn::of(&lacking).unwrap(), "variants_without_a_function", None);
    let older = Variant::default()
        .with_version(Library::Cuda, 11_080)
        .with_version(Library::Nvrtc, 12_040)
        .with_version(Library::CublasLt, 11_000);
    let older = StandIn::of(&older).unwrap();
    assert!(older.library(Library::Nvrtc).ends_with("libnvrtc.so.12"));
    run(&older, "variants_of_older_versions", None);
    let without = StandIn::of(&Variant::default().without(Library::CublasLt)).unwrap();
    assert!(without.library(Library::Cuda).exists());
    assert!(!without.library(Library::CublasLt).exists());
}

#[test]
fn copies_are_independent_and_deleted() {
    let whole = StandIn::whole().unwrap();
    let copy = whole.alone().unwrap();
    run(&whole, "variants_of_copies_are_apart", Some(&copy));
    let folder = copy.folder().to_owned();
    assert!(folder.join("libcuda.so.1").exists());
    drop(copy);
    assert!(!folder.exists());
    assert!(whole.library(Library::Cuda).exists());
}

#[test]
fn a_new_variant_can_be_requested_concurrently() {
    // A variant that no other run has requested.
    let variant =
        Variant::default().without_function(Library::Cuda, &format!("cuInit{}", std::process::id()));
    let folders: Vec<_> = thread::scope(|scope| {
        let asking: Vec<_> = (0..4).map(|_| scope.spawn(|| StandIn::of(&variant).unwrap())).collect();
        asking.into_iter().map(|thread| thread.join().unwrap().folder().to_owned()).collect()
    });
    assert!(folders.iter().all(|folder| *folder == folders[0] && folder.join("libcuda.so.1").exists()));
    fs::remove_dir_all(&folders[0]).unwrap();
}
