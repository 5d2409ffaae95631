//! The diagnosis of a host: `millstream doctor`.
//!
//! One file per subject. Each has a part that gathers facts, with a time limit, and a pure part that judges them, so that
//! every finding is tested with made-up facts. [`report`] prints findings as they arrive. Nothing is changed on the host,
//! and nothing that hangs (a driver, a network mount, a service) hangs the command.

mod bucket;
mod clock;
mod cpu;
mod daemon;
mod disk;
mod etcd;
mod finding;
mod gpu;
mod gpu_state;
mod job;
mod limits;
mod memory;
mod peers;
pub(crate) mod report;
mod service;
mod speed;
mod store;
mod system;
mod xid;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millstream_control::proto::AboutReply;
use millstream_daemon::config::{ConfigFile, ServerConfig, StateLocation, Surroundings};
use millstream_io::storage::StorageSpec;
use millstream_job::Job;
use tokio::runtime::Runtime;

use self::disk::Use;
use self::finding::Finding;
use self::report::Report;
use self::store::Host;
use self::system::within;
use crate::arguments::JobFile;
use crate::context::Context;
use crate::failure::Failure;
use crate::job_file;

/// The configuration of the packaged service.
const CONFIGURATION: &str = "/etc/millstream/millstreamd.toml";

/// Time limit for reading files of the kernel and the configuration.
const LIMIT: Duration = Duration::from_secs(5);

/// Time limit for a directory, of which the measurement takes 2 seconds.
const DISK_LIMIT: Duration = Duration::from_secs(15);

/// The diagnosis of this host.
pub(crate) struct Diagnosis<'a> {
    context: &'a Context,
    runtime: Runtime,
    report: Report<'a>,
    /// Whether to leave out measurements.
    is_quick: bool,
    daemon: Option<AboutReply>,
    has_private_tmp: bool,
    configuration: Option<ServerConfig>,
    /// The file systems that were measured.
    measured: BTreeSet<u64>,
}

impl<'a> Diagnosis<'a> {
    pub(crate) fn new(context: &'a Context, is_quick: bool) -> Result<Self, Failure> {
        Ok(Self {
            context,
            runtime: Runtime::new()?,
            report: Report::new(context),
            is_quick,
            daemon: None,
            has_private_tmp: false,
            configuration: None,
            measured: BTreeSet::new(),
        })
    }

    /// Checks the host, then each of `targets`: job files, addresses of data, and paths.
    pub(crate) fn run(mut self, targets: &[String]) -> Result<(), Failure> {
        self.check_daemon()?;
        let gpu = gpu::Facts::gather();
        let has_gpu = gpu.has_gpu();
        self.report.add(gpu.findings())?;
        self.report.add(timed("cpu", LIMIT, || cpu::Facts::gather().findings()))?;
        self.report.add(timed("memory", LIMIT, || memory::Facts::gather().findings()))?;
        self.report.add(limits::Facts::gather(self.daemon.as_ref(), has_gpu).findings())?;
        self.report.add([clock::finding(clock::is_synchronized())])?;
        for (of, directory) in self.directories() {
            self.check_directory((of, true), directory)?;
        }
        for target in targets {
            if target.ends_with(".toml") && !target.contains("://") {
                self.check_job(Path::new(target))?;
            } else {
                let storage = self.storage();
                self.check_data(target, &std::env::current_dir()?, &storage)?;
            }
        }
        // Reads in flight and directories that do not answer may remain.
        self.runtime.shutdown_background();
        self.report.finish()
    }

    fn check_daemon(&mut self) -> Result<(), Failure> {
        let socket = self.context.socket().map(PathBuf::as_path);
        let is_given = self.context.is_socket_given();
        let facts = self.runtime.block_on(daemon::Facts::gather(socket, is_given));
        self.daemon = facts.about().cloned();
        self.report.add([facts.finding()])?;
        if let (Some(_), Some(socket)) = (facts.about(), socket) {
            self.report.add(self.runtime.block_on(peers::findings(socket)))?;
        }
        let service = service::Facts::gather();
        self.has_private_tmp = service.has_private_tmp();
        self.report.add([service.finding()])?;
        match within(LIMIT, configuration) {
            Some(Ok(configuration)) => {
                let peers = configuration.as_ref().and_then(|configuration| configuration.peers.as_ref());
                if let Some(data) = peers.and_then(|peers| peers.data.clone()) {
                    let findings = timed("peers.data", LIMIT, move || peers::data_findings(&data));
                    self.report.add(findings)?;
                }
                if let Some(spec) = configuration.as_ref().and_then(|all| all.daemon.etcd.as_ref()) {
                    self.report.add(self.runtime.block_on(etcd::findings(spec)))?;
                }
                self.configuration = configuration;
            }
            Some(Err(error)) => {
                let advice = "correct the file; millstreamd does not start with it";
                self.report.add([Finding::fail("configuration", format!("{error:#}"), advice)])?;
            }
            None => {}
        }
        Ok(())
    }

    /// The daemon's directories: of the running one, otherwise of the one that would run.
    fn directories(&self) -> Vec<(Use, PathBuf)> {
        let checkpoints = |path: PathBuf| (Use::Checkpoints, path);
        if let Some(daemon) = &self.daemon {
            let state = Some(&daemon.state_directory).filter(|path| !path.is_empty());
            let state = state.map(|path| (Use::State, PathBuf::from(path)));
            let shared = daemon.shared_directories.iter().map(|path| checkpoints(path.into()));
            return state.into_iter().chain(shared).collect();
        }
        let Some(ServerConfig { daemon, .. }) = &self.configuration else { return Vec::new() };
        let StateLocation::Directory(state) = &daemon.state else { return Vec::new() };
        let shared = daemon.settings.shared_directories.iter().cloned().map(checkpoints);
        std::iter::once((Use::State, state.clone())).chain(shared).collect()
    }

    fn storage(&self) -> StorageSpec {
        self.configuration
            .as_ref()
            .map(|configuration| configuration.daemon.storage.clone())
            .unwrap_or_default()
    }

    /// Checks a directory, and whether it is the daemon's; measures each file system once.
    fn check_directory(&mut self, of: (Use, bool), directory: PathBuf) -> Result<(), Failure> {
        let looked = directory.clone();
        let device =
            within(LIMIT, move || looked.ancestors().find_map(|path| Some(fs::metadata(path).ok()?.dev())));
        let is_new = device.flatten().is_some_and(|device| self.measured.insert(device));
        let measures = is_new && !self.is_quick;
        let late = format!("{}: no answer within {} s", directory.display(), DISK_LIMIT.as_secs());
        let findings = within(DISK_LIMIT, move || disk::Facts::gather(of, &directory, measures).findings());
        let advice = "if it is a network mount, check its server; `mount` lists them";
        self.report.add(findings.unwrap_or_else(|| vec![Finding::fail("disk", late, advice)]))
    }

    fn check_data(&mut self, address: &str, base: &Path, storage: &StorageSpec) -> Result<(), Failure> {
        let host = Host {
            daemon: self.daemon.as_ref(),
            has_private_tmp: self.has_private_tmp,
            measures: !self.is_quick,
        };
        let facts = self.runtime.block_on(store::Facts::gather(address, base, storage, host));
        self.report.add(facts.findings())
    }

    fn check_job(&mut self, path: &Path) -> Result<(), Failure> {
        let file = JobFile { path: Some(path.to_owned()), continues: None, set: Vec::new() };
        let job: Job = match job_file::resolve(&file, self.context) {
            Ok(job) => job,
            Err(failure) => return self.report.add([job::invalid(path, &failure.to_string())]),
        };
        self.report.add([job::valid(path, &job)])?;
        let storage = self.storage().overridden_by(&job.storage);
        for pattern in job::patterns(&job) {
            self.check_data(&pattern, &job.data.base, &storage)?;
        }
        for (of, directory) in job::directories(&job, self.daemon.as_ref()) {
            self.check_directory((of, false), directory)?;
        }
        if job.checkpoint.directory.as_local().is_none() {
            let finding = bucket::finding(&job.checkpoint.directory, &storage);
            self.report.add([self.runtime.block_on(finding)])?;
        }
        let closed = self.daemon.as_ref().and_then(|daemon| job::closed_to_daemon(&job, daemon));
        self.report.add(closed)?;
        self.report.add(job::plan(job, self.runtime.handle().clone()))
    }
}

/// The findings of `work`, or that it does not end.
fn timed(
    check: &'static str,
    limit: Duration,
    work: impl FnOnce() -> Vec<Finding> + Send + 'static,
) -> Vec<Finding> {
    let late = || Finding::skipped(check, format!("the system does not answer within {} s", limit.as_secs()));
    within(limit, work).unwrap_or_else(|| vec![late()])
}

/// The configuration of the daemon that would run: the package's file if this user may read it, and defaults.
fn configuration() -> anyhow::Result<Option<ServerConfig>> {
    let path = Path::new(CONFIGURATION);
    let file = match fs::File::open(path) {
        Ok(_) => ConfigFile::read(path)?,
        Err(_) => ConfigFile::default(),
    };
    // Without a home and a session, nothing is known about a daemon of this user.
    Ok(file.resolve(&Surroundings::of_process()).ok())
}
