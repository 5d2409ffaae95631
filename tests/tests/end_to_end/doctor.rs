//! `millstream doctor`: its findings, exit status and document.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use millstream_test_cuda::{Library, StandIn, Variant};
use millstream_test_storage::{Fault, Options, Server};
use millstream_tests::programs::{Daemon, program};
use millstream_tests::shell::{Completed, Shell};
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;
use tokio::runtime::Runtime;

const MARKS: [&str; 4] = ["ok", "warn", "fail", "skipped"];

/// The findings of a check.
fn of<'a>(document: &'a Value, check: &str) -> Vec<&'a Value> {
    let checks = document["checks"].as_array().unwrap();
    checks.iter().filter(|finding| finding["check"] == check).collect()
}

/// The only finding of a check with this mark.
fn only<'a>(document: &'a Value, check: &str, mark: &str) -> &'a Value {
    let found: Vec<_> = of(document, check).into_iter().filter(|finding| finding["mark"] == mark).collect();
    assert_eq!(found.len(), 1, "{check} {mark}: {document:#}");
    found[0]
}

fn text<'a>(finding: &'a Value, key: &str) -> &'a str {
    finding[key].as_str().unwrap()
}

/// Asserts that a check failed, with `sign` in its advice.
fn assert_fails(document: &Value, check: &str, sign: &str) {
    let finding = only(document, check, "fail");
    assert!(text(finding, "advice").contains(sign), "{finding}");
}

fn doctor(shell: &Shell, arguments: &[&str]) -> Completed {
    shell.run(&[&["doctor", "--quick", "--json"], arguments].concat())
}

#[test]
fn a_healthy_host_without_a_daemon_has_no_failure() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let before = shell.files();
    let text = shell.run(&["doctor", "job.toml"]).with_code(0).stdout;
    let first: Vec<_> = text.lines().map(|line| line.split_whitespace().next().unwrap_or_default()).collect();
    assert!(first.contains(&"ok") && first.len() > 10, "{text}");
    assert!(text.is_ascii(), "{text}");
    assert!(text.contains("train-*.parquet: 4 files") && text.contains("writes "), "{text}");
    assert_eq!(shell.files(), before, "nothing is left behind");

    let document = doctor(&shell, &["job.toml"]).with_code(0).json();
    let keys: Vec<_> = document.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["checks", "summary", "version"]);
    let checks = document["checks"].as_array().unwrap();
    for finding in checks {
        let keys: Vec<_> = finding.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["advice", "check", "figures", "found", "mark"]);
        assert!(MARKS.contains(&finding["mark"].as_str().unwrap()), "{finding}");
        let needs_advice = ["warn", "fail"].contains(&finding["mark"].as_str().unwrap());
        assert_eq!(finding["advice"].is_string(), needs_advice, "{finding}");
    }
    for mark in MARKS {
        let count = checks.iter().filter(|finding| finding["mark"] == mark).count();
        assert_eq!(document["summary"][mark], count);
    }
    for check in ["service", "cpu", "cpu.kernels", "memory", "limits.files", "limits.threads", "clock"] {
        assert_eq!(of(&document, check).len(), 1, "{check}: {document:#}");
    }
    // The socket is named, and nobody listens.
    assert!(text_of_daemon(&document).contains("no daemon listens"));
    assert_eq!(of(&document, "path").len(), 2, "training and held-out data");
    assert!(only(&document, "job.memory", "ok")["figures"]["needed_bytes"].as_f64().unwrap() > 0.0);
}

fn text_of_daemon(document: &Value) -> &str {
    text(only(document, "daemon", "warn"), "found")
}

#[test]
fn a_daemon_is_described_with_its_directories() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let document = daemon.json(&["doctor", "--quick"]);
    let found = text(only(&document, "daemon", "ok"), "found");
    assert!(found.starts_with(&format!("version {}, process ", env!("CARGO_PKG_VERSION"))), "{found}");
    let state = job.directory().join("state").display().to_string();
    for check in ["disk.state", "disk.checkpoint"] {
        let findings = of(&document, check);
        assert!(text(findings[0], "found").starts_with(&state), "{document:#}");
    }
    assert!(text(of(&document, "limits.files")[0], "found").starts_with("the daemon: "));
}

#[test]
fn wrong_usage_has_another_exit_status() {
    let shell = Shell::new(&std::env::temp_dir());
    let refused = shell.run(&["doctor", "--slow"]).with_code(2);
    assert!(refused.stderr.contains("--slow"), "{}", refused.stderr);
}

#[test]
fn a_wrong_job_and_absent_data_fail_with_advice() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let wrong = fs::read_to_string(job.file()).unwrap().replace("batch_size", "batch_sise");
    fs::write(job.directory().join("wrong.toml"), wrong).unwrap();
    let document = doctor(&shell, &["wrong.toml", "absent.parquet", "foo://x/y"]).with_code(1).json();
    assert_fails(&document, "job", "millstream check wrong.toml");
    assert!(text(only(&document, "job", "fail"), "found").contains("batch_sise"));
    assert_fails(&document, "path", "ls -l");
    assert_fails(&document, "store", "gs://BUCKET/PATH");

    let unwritable =
        fs::read_to_string(job.file()).unwrap().replace("\"checkpoints\"", "\"eval.parquet/runs\"");
    fs::write(job.directory().join("unwritable.toml"), unwritable).unwrap();
    let document = doctor(&shell, &["unwritable.toml"]).with_code(1).json();
    assert_fails(&document, "disk.checkpoint", "`checkpoint.directory`");
}

#[test]
fn what_another_user_may_not_open_fails_with_advice() {
    // Only root can become another user.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let job = TinyJob::new();
    let set_mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    set_mode(job.directory(), 0o755);
    let closed = job.directory().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("a.parquet"), "x").unwrap();
    set_mode(&closed, 0o700);
    let daemon = Daemon::start(job.directory());
    let as_nobody = |group: &str| -> Output {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", &format!("--regid={group}"), "--clear-groups"]);
        command
            .arg(program("millstream"))
            .args(["doctor", "--quick", "--json", "--socket"])
            .arg(daemon.socket());
        command.arg(job.file()).arg(closed.join("a.parquet"));
        command.env_remove("XDG_RUNTIME_DIR").env("HOME", "/nonexistent").output().unwrap()
    };
    let output = as_nobody("0");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    only(&document, "daemon", "ok");
    assert_fails(&document, "path", "setfacl");
    assert_fails(&document, "disk.checkpoint", "setfacl");
    let document: Value = serde_json::from_slice(&as_nobody("65534").stdout).unwrap();
    assert_fails(&document, "daemon", "usermod -aG");
}

#[test]
fn a_store_is_measured_and_its_refusals_are_explained() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(Options::default())).unwrap();
    server.put("b/x/one.parquet", vec![7; 9 << 20]);
    let directory = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Shell::new(directory.path()).command(&[&["doctor", "--json"], arguments].concat());
        command
            .env("STORAGE_EMULATOR_HOST", server.endpoint())
            .env("GCE_METADATA_HOST", server.address().to_string());
        command.env_remove("GOOGLE_APPLICATION_CREDENTIALS").env("HOME", directory.path());
        let output = command.stdout(Stdio::piped()).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code().unwrap(), document)
    };
    let (code, document) = run(&["gs://b/x/*"]);
    assert_eq!(code, 0, "{document:#}");
    let found = text(only(&document, "store", "ok"), "found");
    assert!(found.contains("1 file, 9.0 MiB") && found.contains("credentials: "), "{found}");
    let reads = of(&document, "store.read")[0];
    assert!(reads["figures"]["bytes_per_second"].as_f64().unwrap() > 0.0, "{reads}");

    server.script([Fault::ListStatus(403)]);
    let (code, document) = run(&["gs://b/x/*", "--quick"]);
    assert_eq!((code, server.unmet()), (1, 0));
    assert!(only(&document, "store", "fail")["advice"].is_string());
    assert!(text(only(&document, "store", "fail"), "found").contains("403"));

    let (code, document) = run(&["gs://b/y/*", "--quick"]);
    assert_eq!(code, 1);
    assert_fails(&document, "store", "gcloud storage ls gs://b/");
}

#[test]
fn gpus_are_opened_and_missing_libraries_named() {
    let directory = tempfile::tempdir().unwrap();
    let run = |stand_in: &StandIn| {
        let mut command = Shell::new(directory.path()).command(&["doctor", "--quick", "--json"]);
        command.env("MILLSTREAM_CUDA_LIBRARIES", stand_in.folder());
        command.env("CACHE_DIRECTORY", directory.path().join("cache"));
        let output = command.stdout(Stdio::piped()).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let document = run(&StandIn::whole().unwrap());
    let gpu = only(&document, "gpu", "ok");
    assert!(text(gpu, "found").starts_with("cuda:0, stand-in, compute capability 9.0, "), "{gpu}");
    assert!(gpu["figures"]["free_bytes"].as_f64().unwrap() > 0.0);
    assert!(text(only(&document, "gpu.libraries", "ok"), "found").contains("cuBLASLt 13.0"));
    let document = run(&StandIn::of(&Variant::default().without(Library::Nvrtc)).unwrap());
    assert_fails(&document, "gpu.libraries", "MILLSTREAM_CUDA_LIBRARIES");
    let document = run(&StandIn::of(&Variant::default().without(Library::Nvml)).unwrap());
    let absent = only(&document, "gpu.state", "warn");
    assert!(text(absent, "advice").contains("libnvidia-ml.so.1"), "{absent}");
}

#[test]
fn lost_hot_and_damaged_gpus_are_named_with_advice() {
    let directory = tempfile::tempdir().unwrap();
    let stand_in = StandIn::whole().unwrap();
    let run = |state: &str, fail: &str| {
        let path = directory.path().join("gpus");
        fs::write(&path, state).unwrap();
        let mut command = Shell::new(directory.path()).command(&["doctor", "--quick", "--json"]);
        command.env("MILLSTREAM_CUDA_LIBRARIES", stand_in.folder());
        command.env("CACHE_DIRECTORY", directory.path().join("cache"));
        command.env("MILLSTREAM_STAND_IN_GPUS", &path).env("MILLSTREAM_STAND_IN_DEVICES", "3");
        command.env("MILLSTREAM_STAND_IN_FAIL", fail);
        let output = command.stdout(Stdio::piped()).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let document = run("1 throttle 96\n1 celsius 91\n1 uncorrected 2\n2 lost 1\n", "");
    assert!(text(only(&document, "gpu.state", "ok"), "found").starts_with("GPU 0, "));
    assert_fails(&document, "gpu.state", "restart the host");
    let of_gpu_1: Vec<_> =
        of(&document, "gpu.state").into_iter().filter(|found| found["mark"] == "warn").collect();
    let figures = of_gpu_1.iter().map(|finding| &finding["figures"]).collect::<Vec<_>>();
    assert_eq!(
        figures,
        [&serde_json::json!({ "uncorrected_errors": 2.0 }), &serde_json::json!({ "celsius": 91.0 })]
    );

    // 18: the library and the kernel module are of different versions.
    let document = run("", "nvmlInit_v2:1:18");
    let mismatch = only(&document, "gpu.state", "warn");
    assert!(text(mismatch, "found").contains("different versions"), "{mismatch}");
    assert_eq!(text(mismatch, "advice"), "restart the host");
}
