//! Ranks of one process, and libraries that are missing or old.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::thread;

use super::super::memory::Pool;
use super::super::transport::{Operation, Round};
use super::*;

/// A library that has only the function for its version.
fn library_of_version(folder: &Path, minor: u32) {
    let source = folder.join("ucp.c");
    let text = format!(
        "void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release) {{ *major = 1; *minor = {minor}; }}"
    );
    fs::write(&source, text).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiled = Command::new(compiler)
        .args(["-shared", "-fPIC", "-o"])
        .arg(folder.join("libucp.so.0"))
        .arg(source)
        .status();
    assert!(compiled.unwrap().success());
}

fn problem(folder: &Path) -> String {
    match HostListener::open(&Libraries::of(folder), None) {
        Ok(_) => panic!("the library cannot be used"),
        Err(error) => error.to_string(),
    }
}

const REMEDY: &str =
    "for jobs with several workers install package libucx0 (deb) or ucx (rpm), 1.10 or later";

#[test]
fn a_missing_or_old_library_is_reported_with_its_package() {
    let folder = tempfile::tempdir().unwrap();
    let missing = problem(folder.path());
    assert!(
        missing.contains("is not on this host (looked for libucp.so.0)") && missing.contains(REMEDY),
        "{missing}"
    );
    library_of_version(folder.path(), 9);
    let old = problem(folder.path());
    assert!(
        old.contains("is of version 1.9, and Millstream needs 1.10 or later") && old.contains(REMEDY),
        "{old}"
    );
}

#[test]
fn a_missing_function_is_reported_by_name() {
    let folder = tempfile::tempdir().unwrap();
    library_of_version(folder.path(), 13);
    let problem = problem(folder.path());
    assert!(problem.contains("has no function ucs_status_string") && problem.contains(REMEDY), "{problem}");
}

/// UCX must be installed to run the tests, as `tests/run` does.
fn listener() -> HostListener {
    HostListener::open(&Libraries::default(), None).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_world_of_one_process_connects() {
    let listener = listener();
    let addresses = vec![listener.address().to_vec()];
    let host = listener.connect(0, (&addresses, 0), Duration::from_secs(10)).unwrap();
    assert_eq!((host.rank(), host.ranks()), (0, 1));
}

#[test]
fn wrong_addresses_are_refused() {
    let own = listener().address().to_vec();
    // No process has this number: it exceeds the kernel's limit.
    let gone = [&(1_u32 << 30).to_le_bytes(), &own[4..]].concat();
    for (rank, other, message) in [
        (0, own[..4].to_vec(), "rank 1: its address is damaged (4 bytes)"),
        (0, gone, "rank 1: process 1073741824 cannot be observed: No such process"),
        (2, own.clone(), "rank 2: there are 2 addresses"),
    ] {
        let addresses = [own.clone(), other];
        let Err(error) = listener().connect(rank, (&addresses, 0), Duration::from_secs(10)) else {
            panic!("connected");
        };
        assert!(error.to_string().starts_with(message), "{error}");
    }
}

fn on_host(number: u64) -> HostListener {
    HostListener::open_as(&Libraries::default(), Some("lo"), HostId::imagined(number)).unwrap()
}

#[test]
fn an_address_without_a_network_is_refused_on_another_host() {
    let own = on_host(1);
    let other = HostListener::open_as(&Libraries::default(), None, HostId::imagined(2)).unwrap();
    let addresses = [own.address().to_vec(), other.address().to_vec()];
    let Err(error) = own.connect(0, (&addresses, 0), Duration::from_secs(10)) else { panic!("connected") };
    assert!(error.to_string().starts_with("rank 1: it runs on another host"), "{error}");
}

#[test]
fn an_interface_that_does_not_exist_is_an_error() {
    let Err(error) = HostListener::open(&Libraries::default(), Some("lo,no-such")) else { panic!("opened") };
    let message = error.to_string();
    assert!(message.starts_with("network interface no-such: this host has none of this name"), "{message}");
}

/// The TCP ports of 127.0.0.1 on which this process listens.
fn ports() -> Vec<u16> {
    let links =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let sockets: Vec<String> = links.map(|link| link.display().to_string()).collect();
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let listening = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = fields[1].strip_prefix("0100007F:")?;
        let is_own = sockets.contains(&format!("socket:[{}]", fields[9]));
        (fields[3] == "0A" && is_own).then(|| u16::from_str_radix(port, 16).unwrap())
    });
    listening.collect()
}

#[test]
fn garbage_on_the_port_of_a_rank_is_harmless() {
    let hosts = [on_host(1), on_host(2)];
    let addresses: Vec<Vec<u8>> = hosts.iter().map(|host| host.address().to_vec()).collect();
    let ports = ports();
    assert!(ports.len() >= 2, "{ports:?}");
    let garbage = |length: usize| -> Vec<TcpStream> {
        let bytes: Vec<u8> = (0..length).map(|index| (index * 151 + length) as u8).collect();
        let connect = |port: &u16| TcpStream::connect(("127.0.0.1", *port)).ok();
        let mut streams: Vec<TcpStream> = ports.iter().filter_map(connect).collect();
        // The other side may close before it has read everything.
        streams.iter_mut().for_each(|stream| drop(stream.write_all(&bytes)));
        streams
    };
    // Some connections stay open, some end.
    let mut open = Vec::new();
    for length in [0, 1, 7, 8, 9, 100, 10_000] {
        open.extend(garbage(length));
        drop(garbage(length));
    }
    thread::scope(|scope| {
        for (rank, listener) in hosts.into_iter().enumerate() {
            let (addresses, garbage) = (&addresses, &garbage);
            scope.spawn(move || {
                let mut host = listener.connect(rank, (addresses, 0), Duration::from_secs(30)).unwrap();
                for number in 1..=100 {
                    drop(garbage(100 * number as usize));
                    let label = Label { operation: Operation::Barrier, number, round: Round::Only };
                    let part = Arc::new(Buffer::from(&[number as u8; 50_000][..]));
                    let (parts, deadline) = (vec![part; 2], Deadline::after(Duration::from_secs(30)));
                    let (to, mut pool) = ((label, Group::Ranks), Pool::default());
                    let received = host.exchange(to, parts, Receive::Any(&mut pool), deadline, None);
                    assert_eq!(received.unwrap()[1 - rank][..], [number as u8; 50_000]);
                }
            });
        }
    });
}
