//! A daemon of root opens files of a job only if the user who submits it could. `millstream` reads files of terms itself
//! before it submits a job, so those are in the unit tests of the daemon.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use millstream_tests::programs::{Daemon, has_ended, program, wait_until};
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;

/// Runs `millstream` as another user, who may use the socket because of its group.
fn run_as_nobody(daemon: &Daemon, arguments: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=0", "--clear-groups"]);
    command.arg(program("millstream")).arg("--json").arg("--socket").arg(daemon.socket());
    command.args(arguments).output().unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn files_that_the_user_cannot_open_are_refused() {
    // Only root can become another user, and only then do the rights of both differ.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let job = TinyJob::new();
    let directory = job.directory();
    set_mode(directory, 0o755);
    let output = directory.join("checkpoints");
    fs::create_dir(&output).unwrap();
    set_mode(&output, 0o700);
    let daemon = Daemon::start(directory);
    let file = job.file();
    let text = fs::read_to_string(&file).unwrap();
    let submit = |text: &str| {
        fs::write(&file, text).unwrap();
        run_as_nobody(&daemon, &["submit", file.to_str().unwrap()])
    };
    let refused = |output: &Output, why: &str| {
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && message.contains(why), "{message}");
    };

    refused(&submit(&text), "`checkpoint.directory`");

    set_mode(&output, 0o777);
    set_mode(&directory.join("train-0.parquet"), 0o600);
    let submitted = submit(&text);
    assert!(submitted.status.success(), "{submitted:?}");
    let id = serde_json::from_slice::<Value>(&submitted.stdout).unwrap()["id"].as_str().unwrap().to_owned();
    wait_until("the job ends", || has_ended(&daemon.show(&id)));
    let ended = daemon.show(&id);
    let reason = ended["reason"].as_str().unwrap();
    assert!(ended["state"] == "failed" && reason.contains("train-0.parquet"), "{ended:#}");
    assert!(reason.contains("user 65534 may not read"), "{reason}");

    set_mode(&directory.join("train-0.parquet"), 0o644);
    let text = text.replace("epochs = 24", "epochs = 1");
    let submitted = submit(&text);
    let id = serde_json::from_slice::<Value>(&submitted.stdout).unwrap()["id"].as_str().unwrap().to_owned();
    let checkpoint = daemon.succeeded(&id)["checkpoint"].as_str().unwrap().to_owned();
    assert!(run_as_nobody(&daemon, &["eval", &checkpoint]).status.success());
    set_mode(&Path::new(&checkpoint).join("job.toml"), 0o600);
    refused(&run_as_nobody(&daemon, &["eval", &checkpoint]), "may not read");
    assert!(daemon.run(&["eval", &checkpoint]).status.success());
    daemon.stop();
}

#[test]
fn a_default_socket_that_is_closed_to_the_user_is_left_for_this_process() {
    // As above.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let job = TinyJob::new();
    let directory = job.directory();
    set_mode(directory, 0o755);
    let daemon = Daemon::start(directory);
    set_mode(daemon.socket(), 0o600);
    let (runtime, output) = (directory.join("runtime"), directory.join("checkpoints"));
    fs::create_dir_all(runtime.join("millstream")).unwrap();
    symlink(daemon.socket(), runtime.join("millstream/millstreamd.sock")).unwrap();
    fs::create_dir(&output).unwrap();
    set_mode(&output, 0o777);
    let train = |place: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(program("millstream")).args(place).arg("train").arg(job.file());
        command.args(["--set", "data.epochs=1"]).current_dir(directory);
        let output =
            command.env("XDG_RUNTIME_DIR", &runtime).env_remove("MILLSTREAM_SOCKET").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };

    let (status, messages) = train(&[]);
    assert_eq!(status, Some(0), "{messages}");
    assert!(messages.contains("running in this process instead"), "{messages}");
    // A socket that the user names is the one to use.
    let (status, messages) = train(&["--socket", daemon.socket().to_str().unwrap()]);
    assert_eq!(status, Some(1), "{messages}");
    assert!(!messages.contains("instead"), "{messages}");
    daemon.stop();
}
