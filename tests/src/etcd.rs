//! An etcd cluster on this machine.

// Test support: a panic fails the test.
#![allow(clippy::unwrap_used)]

use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use millstream_peers::etcd::{Endpoint, Etcd, EtcdFiles, EtcdSpec};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::programs::wait_until;

/// Members of a cluster, killed when it is dropped.
pub struct EtcdCluster {
    dir: TempDir,
    members: Vec<Member>,
}

struct Member {
    client_port: u16,
    peer_port: u16,
    process: Option<Child>,
}

/// TLS of a cluster: the directory of a site's authority, and that with `localhost.pem` and `localhost.key`.
#[derive(Clone, Copy)]
pub struct EtcdTls<'a> {
    /// The authority.
    pub ca: &'a Path,
    /// The certificate and the key of the members.
    pub files: &'a Path,
}

impl EtcdCluster {
    /// Starts a cluster with this number of members, which has a leader.
    ///
    /// # Panics
    /// If etcd is not installed or does not start.
    pub fn start(members: usize) -> Self {
        Self::start_with(members, None)
    }

    /// Starts a member that serves clients that have a certificate of this authority, as `localhost`.
    ///
    /// # Panics
    /// If etcd is not installed or does not start.
    pub fn start_encrypted(tls: EtcdTls<'_>) -> Self {
        Self::start_with(1, Some(tls))
    }

    fn start_with(members: usize, tls: Option<EtcdTls<'_>>) -> Self {
        // All ports at the same time, so that they differ.
        let free: Vec<_> = (0..2 * members).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let pairs = free.chunks(2).map(|pair| (port(&pair[0]), port(&pair[1])));
        let new = |(client_port, peer_port)| Member { client_port, peer_port, process: None };
        let mut cluster = Self { dir: tempfile::tempdir().unwrap(), members: pairs.map(new).collect() };
        drop(free);
        (0..members).for_each(|member| cluster.start_member(member, tls));
        if tls.is_none() {
            let (client, runtime) = (cluster.client("ready"), Runtime::new().unwrap());
            wait_until("etcd has a leader", || runtime.block_on(client.get("ready")).is_ok());
        }
        cluster
    }

    /// A client of the cluster that asks each member once, with keys that begin with `prefix`.
    ///
    /// # Panics
    /// Never: the endpoints are valid.
    pub fn client(&self, prefix: &str) -> Etcd {
        client_of(&self.endpoints(), prefix)
    }

    /// A client of this member only.
    ///
    /// # Panics
    /// Never: its endpoint is valid.
    pub fn client_of(&self, member: usize) -> Etcd {
        client_of(&self.endpoints()[member..=member], "test")
    }

    /// The addresses of the members.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("http://127.0.0.1:{}", member.client_port)).collect()
    }

    /// The port of a member for clients.
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].client_port
    }

    /// The section of a daemon's configuration that names this cluster.
    pub fn section(&self) -> String {
        format!("[etcd]\nendpoints = {:?}\n", self.endpoints())
    }

    /// Kills a member.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill(&mut self, member: usize) {
        let mut process = self.members[member].process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Starts a member again that was killed.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self, member: usize) {
        self.start_member(member, None);
    }

    /// Sends a signal to these members.
    ///
    /// # Panics
    /// If one does not run.
    pub fn signal(&self, members: Range<usize>, signal: Signal) {
        for member in &self.members[members] {
            kill_process(Pid::from_child(member.process.as_ref().unwrap()), signal).unwrap();
        }
    }

    fn start_member(&mut self, member: usize, tls: Option<EtcdTls<'_>>) {
        let url = |port| format!("http://127.0.0.1:{port}");
        let name = |member| format!("etcd-{member}");
        let all = self.members.iter().enumerate();
        let all: Vec<_> = all.map(|(at, member)| format!("{}={}", name(at), url(member.peer_port))).collect();
        let Member { client_port, peer_port, .. } = self.members[member];
        let (client, peer) = (url(client_port), url(peer_port));
        let mut command = Command::new("etcd");
        command.args(["--name", &name(member), "--log-level", "error", "--initial-cluster", &all.join(",")]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.arg("--data-dir").arg(self.dir.path().join(name(member)));
        let client = if let Some(EtcdTls { ca, files }) = tls {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(ca.join("ca.pem"));
            command.arg("--cert-file").arg(files.join("localhost.pem"));
            command.arg("--key-file").arg(files.join("localhost.key"));
            client.replace("http://", "https://")
        } else {
            client
        };
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = match started {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                panic!("etcd is not installed: install etcd-server")
            }
            started => started.unwrap(),
        };
        self.members[member].process = Some(process);
    }
}

fn client_of(endpoints: &[String], prefix: &str) -> Etcd {
    let endpoints = endpoints.iter().map(|endpoint| Endpoint::parse(endpoint).unwrap()).collect();
    let (prefix, files) = (prefix.to_owned(), EtcdFiles::default());
    Etcd::new(EtcdSpec { endpoints, prefix, retry: Duration::ZERO, files })
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for process in self.members.iter_mut().filter_map(|member| member.process.as_mut()) {
            // Fails if it has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
