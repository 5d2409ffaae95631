//! `millstreamd` as a service manager sees it: start, errors, shutdown.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn millstreamd(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstreamd"));
    command.arg("--socket").arg(directory.join("run/d.sock")).arg("--state").arg(directory.join("state"));
    command.env("NOTIFY_SOCKET", directory.join("notify")).stderr(Stdio::piped());
    command
}

/// A service manager's end of the notification socket.
fn manager(directory: &TempDir) -> UnixDatagram {
    let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

fn notification(manager: &UnixDatagram) -> String {
    let mut message = [0; 256];
    let bytes = manager.recv(&mut message).unwrap();
    String::from_utf8(message[..bytes].to_vec()).unwrap().trim().to_owned()
}

fn exit_of(mut child: Child) -> (Option<i32>, String) {
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    (child.wait().unwrap().code(), stderr)
}

#[test]
fn it_notifies_readiness_and_liveness_and_shuts_down_cleanly() {
    let directory = tempfile::tempdir().unwrap();
    let manager = manager(&directory);
    let mut command = millstreamd(directory.path());
    let child = command.env("WATCHDOG_USEC", "200000").spawn().unwrap();
    let socket = directory.path().join("run/d.sock");

    assert_eq!(notification(&manager), "READY=1\nSTATUS=idle");
    assert!(UnixStream::connect(&socket).is_ok());
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    for _ in 0..3 {
        assert_eq!(notification(&manager), "WATCHDOG=1");
    }
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    while !notification(&manager).starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=35000000\n") {}
    let (code, stderr) = exit_of(child);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(fs::read_dir(directory.path().join("run")).unwrap().count(), 0, "the socket is gone");
}

#[test]
fn a_second_daemon_on_the_same_socket_or_state_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let manager = manager(&directory);
    let mut first = millstreamd(directory.path()).spawn().unwrap();
    assert!(notification(&manager).starts_with("READY=1\n"));

    let (code, stderr) = exit_of(millstreamd(directory.path()).env_remove("NOTIFY_SOCKET").spawn().unwrap());
    assert_eq!(code, Some(1));
    assert!(stderr.contains("another daemon is listening here"), "{stderr}");

    let mut elsewhere = millstreamd(directory.path());
    elsewhere.env_remove("NOTIFY_SOCKET").arg("--log-format=json");
    let mut arguments: Vec<_> = elsewhere.get_args().map(ToOwned::to_owned).collect();
    arguments[1] = directory.path().join("other.sock").into();
    let mut elsewhere = Command::new(elsewhere.get_program());
    let (code, stderr) = exit_of(elsewhere.args(arguments).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(code, Some(1));
    assert!(stderr.contains("another daemon uses the state directory"), "{stderr}");
    assert!(stderr.lines().all(|line| line.starts_with('{')), "{stderr}");
    assert!(!directory.path().join("other.sock").exists());

    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn a_reload_applies_what_it_can_and_an_invalid_configuration_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let manager = manager(&directory);
    let config = directory.path().join("millstreamd.toml");
    fs::write(&config, "stop_seconds = 40\n").unwrap();
    let child = millstreamd(directory.path()).arg("--config").arg(&config).spawn().unwrap();
    assert!(notification(&manager).starts_with("READY=1\n"));
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    for text in ["stop_seconds = 50\nmax_jobs = 4\n[storage.s3]\nregion = \"eu-west-1\"\n", "max_job = 1\n"] {
        fs::write(&config, text).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
        assert!(notification(&manager).starts_with("RELOADING=1\nMONOTONIC_USEC="));
        assert!(notification(&manager).starts_with("READY=1\n"));
    }
    kill_process(pid, Signal::TERM).unwrap();
    assert!(notification(&manager).contains("EXTEND_TIMEOUT_USEC=60000000"));
    let (code, stderr) = exit_of(child);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("`storage` changed") && !stderr.contains("`socket` changed"), "{stderr}");
    assert!(
        stderr.contains("max_jobs: Some(4)") && stderr.contains("not reloaded") && stderr.contains("max_job"),
        "{stderr}"
    );
}

#[test]
fn a_notice_of_maintenance_is_heeded_and_one_of_preemption_stops_the_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let manager = manager(&directory);
    let metadata = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = millstreamd(directory.path());
    let child = command.env("GCE_METADATA_HOST", metadata.local_addr().unwrap().to_string()).spawn().unwrap();
    let (mut held, mut has_maintenance, mut is_preempted) = (Vec::new(), false, false);
    while !is_preempted {
        let (mut asking, _) = metadata.accept().unwrap();
        let mut request = [0; 1024];
        let length = asking.read(&mut request).unwrap();
        let request = String::from_utf8_lossy(&request[..length]).into_owned();
        let body = if request.contains("/instance/preempted") {
            is_preempted = has_maintenance;
            if is_preempted { "TRUE" } else { "FALSE" }
        } else if request.contains("/instance/maintenance-event") && !has_maintenance {
            has_maintenance = true;
            "TERMINATE_ON_HOST_MAINTENANCE"
        } else {
            held.push(asking);
            continue;
        };
        let length = body.len();
        let head =
            format!("HTTP/1.1 200 OK\r\netag: 1\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        asking.write_all((head + body).as_bytes()).unwrap();
    }
    while !notification(&manager).starts_with("STOPPING=1\n") {}
    let (code, stderr) = exit_of(child);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("Google Cloud preempts this VM"), "{stderr}");
    let saves = "for maintenance of its host: every job saves a checkpoint and continues";
    assert!(stderr.contains(saves), "{stderr}");
}

/// Starts the daemon as systemd does it: the sockets at `paths` are descriptors from 3 on, and the daemon's process number is in
/// `LISTEN_PID`.
fn activated(directory: &Path, paths: &[&Path]) -> Command {
    let listen = "import os, socket, sys\n\
        paths = sys.argv[2:2 + int(sys.argv[1])]\n\
        listeners = [socket.socket(socket.AF_UNIX) for _ in paths]\n\
        for place, (path, listener) in enumerate(zip(paths, listeners), 10):\n    \
            listener.bind(path)\n    \
            listener.listen()\n    \
            os.dup2(listener.fileno(), place)\n\
        for place in range(len(paths)): os.dup2(10 + place, 3 + place)\n\
        os.environ.update(LISTEN_FDS=str(len(paths)), LISTEN_PID=str(os.getpid()))\n\
        os.execv(sys.argv[2 + len(paths)], sys.argv[2 + len(paths):])";
    let daemon = millstreamd(directory);
    let mut command = Command::new("python3");
    command.args(["-c", listen, &paths.len().to_string()]).args(paths);
    command.arg(daemon.get_program()).args(daemon.get_args());
    command
}

#[test]
fn sockets_passed_by_the_service_manager_are_used_and_stay() {
    let directory = tempfile::tempdir().unwrap();
    let manager = manager(&directory);
    let [path, feeds] = ["passed.sock", "feed.sock"].map(|name| directory.path().join(name));
    let mut command = activated(directory.path(), &[&feeds, &path]);
    let child =
        command.env("NOTIFY_SOCKET", directory.path().join("notify")).stderr(Stdio::piped()).spawn().unwrap();
    assert!(notification(&manager).starts_with("READY=1\n"));
    assert!(UnixStream::connect(&path).is_ok() && UnixStream::connect(&feeds).is_ok());
    assert!(!directory.path().join("run").exists(), "a socket beside the one that was passed");
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    let (code, stderr) = exit_of(child);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(path.exists() && feeds.exists(), "the service manager owns the sockets");
}

/// As a socket unit of an earlier version does it.
#[test]
fn a_socket_for_feeds_that_is_not_passed_is_made_beside_the_control_socket() {
    let directory = tempfile::tempdir().unwrap();
    let manager = manager(&directory);
    let [path, feeds] = ["passed.sock", "feed.sock"].map(|name| directory.path().join(name));
    let mut command = activated(directory.path(), &[&path]);
    let child =
        command.env("NOTIFY_SOCKET", directory.path().join("notify")).stderr(Stdio::piped()).spawn().unwrap();
    assert!(notification(&manager).starts_with("READY=1\n"));
    assert!(UnixStream::connect(&feeds).is_ok());
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(exit_of(child).0, Some(0));
    assert!(path.exists() && !feeds.exists());
    let extra = directory.path().join("extra.sock");
    fs::remove_file(&path).unwrap();
    let (code, stderr) =
        exit_of(activated(directory.path(), &[&path, &extra]).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(code, Some(1));
    assert!(stderr.contains("passed 2 sockets") && stderr.contains("`feed.sock`"), "{stderr}");
}

#[test]
fn an_invalid_configuration_is_rejected_before_anything_is_created() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("millstreamd.toml");
    fs::write(&config, "max_job = 2\n").unwrap();
    let (code, stderr) = exit_of(millstreamd(directory.path()).arg("--config").arg(&config).spawn().unwrap());
    assert_eq!(code, Some(1));
    assert!(stderr.contains("max_job") && stderr.contains("line 1"), "{stderr}");
    assert!(!directory.path().join("run").exists() && !directory.path().join("state").exists());
}
