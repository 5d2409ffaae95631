//! A site with an authority, whose hosts are directories.

// Test support: a panic fails the test.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::programs::Daemon;
use crate::shell::Shell;

/// A site.
pub struct Site {
    dir: TempDir,
    /// Commands in its directory.
    pub shell: Shell,
}

impl Site {
    /// A site without hosts.
    ///
    /// # Panics
    /// If its authority cannot be created.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let shell = Shell::new(dir.path());
        let _done = shell.run(&["peers", "init-ca", "ca"]).with_code(0);
        Self { dir, shell }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Issues the certificate of a host, unless it has one, and writes its configuration with these keys of `[peers]`.
    ///
    /// # Panics
    /// If that fails.
    pub fn host(&self, name: &str, keys: &str) -> PathBuf {
        self.host_at(name, 0, keys)
    }

    /// As [`Site::host`], with a port for peers.
    ///
    /// # Panics
    /// If that fails.
    pub fn host_at(&self, name: &str, port: u16, keys: &str) -> PathBuf {
        let directory = self.dir.path().join(name);
        if !directory.exists() {
            let _done = self.shell.run(&["peers", "issue", "--ca", "ca", "--out", name, name]).with_code(0);
        }
        let root = self.dir.path().display();
        let text = format!(
            "max_jobs = 1\n[peers]\nlisten = '127.0.0.1:{port}'\ncertificate = '{root}/{name}/{name}.pem'\n\
             key = '{root}/{name}/{name}.key'\nca = '{root}/ca/ca.pem'\ncrl = '{root}/ca/crl.pem'\n{keys}\n"
        );
        fs::write(directory.join("millstreamd.toml"), text).unwrap();
        directory
    }

    /// Starts the daemon of a new host.
    ///
    /// # Panics
    /// If it does not respond.
    pub fn start(&self, name: &str, keys: &str) -> Daemon {
        Daemon::start(&self.host(name, keys))
    }
}

impl Default for Site {
    fn default() -> Self {
        Self::new()
    }
}

/// The address of a daemon for others.
///
/// # Panics
/// If it has none.
pub fn address(daemon: &Daemon) -> String {
    daemon.json(&["peers"])["this_host"]["address"].as_str().unwrap().to_owned()
}

/// A key of `[peers]` that names these addresses.
pub fn at(addresses: &[&str]) -> String {
    format!("discover = ['static:{}']", addresses.join(","))
}
