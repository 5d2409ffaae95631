//! The daemon's configuration: the file's keys and their defaults for this user.
//!
//! The file is optional, and so is every key; unknown keys are rejected. Command-line arguments override the file.
//! This module does not touch the system: the daemon creates directories and takes locks when it starts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use millstream_io::storage::StorageSpec;
use millstream_peers::HostName;
use millstream_peers::discovery::Source;
use millstream_peers::etcd::EtcdSpec;
use serde::Deserialize;

mod etcd;
mod peers;

use crate::traces::TraceTarget;

pub use self::etcd::EtcdSection;
pub use self::peers::{DataNetwork, DataProtection, PeersConfig, PeersSection};
pub use crate::worker::WorkerProgram;

/// The default time in which jobs take a last checkpoint when the daemon stops. A spot VM is taken away 30 seconds after
/// its notice.
const DEFAULT_STOP: Duration = Duration::from_secs(25);

/// The same for an embedded daemon, which no service manager kills.
const EMBEDDED_STOP: Duration = Duration::from_secs(75);

/// The default directory of runs for every user of the socket, below the state directory.
const DEFAULT_SHARED_DIRECTORY: &str = "checkpoints";

/// The default worker program: the running one, even if a newer version was installed over it.
const SELF: &str = "/proc/self/exe";

/// The prefix of a file among the service's credentials, as `LoadCredential=` of its unit names it.
const CREDENTIAL: &str = "credential:";

/// The configuration of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where jobs and their history are kept.
    pub state: StateLocation,
    /// What can change while it runs.
    pub settings: Settings,
    /// The program of workers.
    pub worker: WorkerProgram,
    /// Storage settings, which a job may override.
    pub storage: StorageSpec,
    /// The etcd cluster of the site, if it has one.
    pub etcd: Option<EtcdSpec>,
    /// The collector of traces, if there is one.
    pub traces: Option<TraceTarget>,
    /// The name of this host for others, if it has peers: its certificate says.
    pub host_name: Option<HostName>,
}

/// What can change while a daemon runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The limits on concurrent jobs.
    pub limits: Limits,
    /// After how many days the record of an ended job is deleted; `None` keeps all.
    pub keep_jobs_days: Option<NonZeroU32>,
    /// Time limit for running jobs to take a last checkpoint when the daemon stops.
    pub stop_limit: Duration,
    /// Directories in which every user of the socket may read and write runs with the daemon's rights. The first has the
    /// runs of jobs with the default directory, if the daemon may not write beside the job file.
    pub shared_directories: Vec<PathBuf>,
    /// Who may do what.
    pub roles: RoleSettings,
    /// The memory of all feeds of other programs, in bytes; `None` for half of the host's.
    pub feeds_memory_bytes: Option<u64>,
}

/// Who may do what. Root and the daemon's own user may do everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleSettings {
    /// The groups whose members may do everything, by name or number; `None` for the group of the socket.
    pub operators: Option<Vec<String>>,
    /// Who else may look.
    pub viewers: Viewers,
    /// Whose jobs an operator may change.
    pub change: ChangeableJobs,
}

/// Who may look at jobs, besides those who may change them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "ViewersKey")]
pub enum Viewers {
    /// Nobody.
    #[default]
    Nobody,
    /// Every local user.
    Everyone,
    /// The members of these groups, by name or number.
    Groups(Vec<String>),
}

/// Whose jobs an operator may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeableJobs {
    /// Everybody's.
    #[default]
    All,
    /// Only their own.
    Own,
}

/// The limits on concurrent jobs. By default, as many run as the host has memory, threads and GPUs for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Number of running jobs; further ones wait. A job without a number of threads counts with its share of the cores.
    pub max_jobs: Option<NonZeroUsize>,
    /// Number of running jobs of a user.
    pub max_jobs_per_user: Option<NonZeroUsize>,
    /// Number of waiting jobs of a user; further ones are refused.
    pub max_queued_per_user: Option<NonZeroUsize>,
    /// The memory of all running jobs, in bytes.
    pub memory_bytes: Option<u64>,
    /// The threads of all running jobs.
    pub threads: Option<NonZeroU32>,
}

/// Where jobs and their history are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateLocation {
    /// In memory, for an embedded daemon.
    Memory,
    /// In this directory, which only one daemon at a time may use.
    Directory(PathBuf),
}

impl Config {
    /// The configuration of an embedded daemon: it runs one job at a time, and only its checkpoints outlive the program.
    pub fn embedded() -> Self {
        Self {
            state: StateLocation::Memory,
            settings: Settings {
                limits: Limits { max_jobs: Some(NonZeroUsize::MIN), ..Limits::default() },
                keep_jobs_days: None,
                stop_limit: EMBEDDED_STOP,
                shared_directories: Vec::new(),
                roles: RoleSettings::default(),
                feeds_memory_bytes: None,
            },
            worker: WorkerProgram::from(SELF),
            storage: StorageSpec::default(),
            etcd: None,
            traces: None,
            host_name: None,
        }
    }
}

/// The configuration of `millstreamd`: a daemon and its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The control socket.
    pub socket: PathBuf,
    /// The address on which metrics are served over HTTP, if they are.
    pub metrics_address: Option<SocketAddr>,
    /// The address on which the web page is served, if it is before a client asks for it.
    pub web_address: Option<SocketAddr>,
    /// The daemons of other hosts, if it has peers.
    pub peers: Option<PeersConfig>,
    /// The daemon behind it.
    pub daemon: Config,
}

impl ServerConfig {
    /// The keys whose values differ from those of `running`, but that a running daemon cannot change.
    pub(crate) fn needs_restart(&self, running: &Self) -> Vec<&'static str> {
        let keys = [
            ("socket", self.socket == running.socket),
            ("metrics_address", self.metrics_address == running.metrics_address),
            ("web_address", self.web_address == running.web_address),
            ("peers", self.peers == running.peers),
            ("state_directory", self.daemon.state == running.daemon.state),
            ("storage", self.daemon.storage == running.daemon.storage),
            ("etcd", self.daemon.etcd == running.daemon.etcd),
            ("otlp_endpoint", self.daemon.traces == running.daemon.traces),
        ];
        keys.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
    }
}

/// The keys of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    /// Path of the control socket.
    pub socket: Option<PathBuf>,
    /// The address on which metrics are served over HTTP.
    pub metrics_address: Option<SocketAddr>,
    /// The address on which the web page is served.
    pub web_address: Option<SocketAddr>,
    /// The OpenTelemetry collector that receives traces of jobs.
    pub otlp_endpoint: Option<String>,
    /// Directory of the job database.
    pub state_directory: Option<PathBuf>,
    /// Directories of runs for every user of the socket.
    pub shared_directories: Option<Vec<PathBuf>>,
    /// Groups whose members may do everything.
    pub operators: Option<Vec<String>>,
    /// Who else may look.
    pub viewers: Option<Viewers>,
    /// Whose jobs an operator may change.
    pub operators_change: Option<ChangeableJobs>,
    /// Number of running jobs.
    pub max_jobs: Option<NonZeroUsize>,
    /// Number of running jobs of a user.
    pub max_jobs_per_user: Option<NonZeroUsize>,
    /// Number of waiting jobs of a user.
    pub max_queued_per_user: Option<NonZeroUsize>,
    /// The memory of all running jobs, such as `"200GiB"`.
    pub jobs_memory: Option<Bytes>,
    /// The threads of all running jobs.
    pub jobs_threads: Option<NonZeroU32>,
    /// After how many days the record of an ended job is deleted.
    pub keep_jobs_days: Option<NonZeroU32>,
    /// Seconds for jobs to take a last checkpoint when the daemon stops.
    pub stop_seconds: Option<NonZeroU32>,
    /// Storage settings, which a job may override; as `[storage]` of a job file.
    pub storage: Option<StorageSpec>,
    /// Feeds of trainers of other programs.
    pub feeds: Option<FeedsSection>,
    /// The daemons of other hosts.
    pub peers: Option<PeersSection>,
    /// The etcd cluster of the site.
    pub etcd: Option<EtcdSection>,
}

/// The section `[feeds]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedsSection {
    /// The memory of all feeds together, such as `"64GiB"`.
    pub memory: Option<Bytes>,
}

/// A number of bytes, written with its unit: `"200GiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Bytes(pub u64);

/// The value of `viewers`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected \"nobody\", \"everyone\" or a list of groups such as [\"interns\"]")]
enum ViewersKey {
    Word(String),
    Groups(Vec<String>),
}

impl TryFrom<ViewersKey> for Viewers {
    type Error = String;

    fn try_from(key: ViewersKey) -> Result<Self, String> {
        match key {
            ViewersKey::Groups(groups) => Ok(Self::Groups(groups)),
            ViewersKey::Word(word) => match word.as_str() {
                "nobody" => Ok(Self::Nobody),
                "everyone" => Ok(Self::Everyone),
                other => Err(format!(
                    "expected \"nobody\", \"everyone\" or a list of groups such as [\"interns\"], found \"{other}\""
                )),
            },
        }
    }
}

impl TryFrom<String> for Bytes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes = millstream_document::section::parse_bytes(&text);
        bytes
            .map(Self)
            .ok_or_else(|| format!("expected a size like \"512MiB\" or \"200GiB\", found \"{text}\""))
    }
}

/// The user and session that determine defaults.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Whether the user is root.
    pub root: bool,
    /// `$XDG_RUNTIME_DIR`
    pub runtime_directory: Option<PathBuf>,
    /// `$XDG_STATE_HOME`
    pub state_home: Option<PathBuf>,
    /// `$HOME`
    pub home: Option<PathBuf>,
    /// `$CREDENTIALS_DIRECTORY`, which systemd sets for a service with credentials
    pub credentials: Option<PathBuf>,
    /// The variables of OpenTelemetry, whose names begin with `OTEL_`.
    pub variables: BTreeMap<String, String>,
}

impl ConfigFile {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, or contains an unknown key or a value of a wrong type. The message
    /// contains the file and the line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading configuration {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("in configuration {}", path.display()))
    }

    /// Overrides each key that `other` has.
    #[must_use]
    pub fn overridden_by(self, other: Self) -> Self {
        Self {
            socket: other.socket.or(self.socket),
            metrics_address: other.metrics_address.or(self.metrics_address),
            web_address: other.web_address.or(self.web_address),
            otlp_endpoint: other.otlp_endpoint.or(self.otlp_endpoint),
            state_directory: other.state_directory.or(self.state_directory),
            shared_directories: other.shared_directories.or(self.shared_directories),
            operators: other.operators.or(self.operators),
            viewers: other.viewers.or(self.viewers),
            operators_change: other.operators_change.or(self.operators_change),
            max_jobs: other.max_jobs.or(self.max_jobs),
            max_jobs_per_user: other.max_jobs_per_user.or(self.max_jobs_per_user),
            max_queued_per_user: other.max_queued_per_user.or(self.max_queued_per_user),
            jobs_memory: other.jobs_memory.or(self.jobs_memory),
            jobs_threads: other.jobs_threads.or(self.jobs_threads),
            keep_jobs_days: other.keep_jobs_days.or(self.keep_jobs_days),
            stop_seconds: other.stop_seconds.or(self.stop_seconds),
            storage: other.storage.or(self.storage),
            feeds: other.feeds.or(self.feeds),
            peers: other.peers.or(self.peers),
            etcd: other.etcd.or(self.etcd),
        }
    }

    /// Fills in the defaults for this user.
    ///
    /// # Errors
    /// When a path is neither given nor can be derived.
    pub fn resolve(self, surroundings: &Surroundings) -> Result<ServerConfig> {
        let socket = self.socket.or_else(|| surroundings.socket());
        let socket =
            socket.context("no path for the control socket: give --socket, or set XDG_RUNTIME_DIR")?;
        let state = self.state_directory.or_else(|| surroundings.state_directory());
        let state = state.context("no directory for the state: give --state, or set HOME")?;
        let shared_directories =
            self.shared_directories.unwrap_or_else(|| vec![state.join(DEFAULT_SHARED_DIRECTORY)]);
        let storage = self.storage.unwrap_or_default();
        if let Err((section, message)) = storage.check() {
            anyhow::bail!("[storage.{section}] of the configuration: {message}");
        }
        let variable = |name: &str| surroundings.variables.get(name).cloned();
        let traces = TraceTarget::find(self.otlp_endpoint.as_deref(), variable);
        let traces = traces.map_err(|message| anyhow::anyhow!("{message}"))?;
        let peers = self.peers.map(|peers| peers.resolve(surroundings)).transpose()?;
        let etcd = self.etcd.map(|etcd| etcd.resolve(surroundings)).transpose()?;
        let needs_etcd = peers.as_ref().is_some_and(|peers| peers.sources.contains(&Source::Etcd));
        anyhow::ensure!(!needs_etcd || etcd.is_some(), "peers.discover: \"etcd\" needs the section [etcd]");
        let daemon = Config {
            state: StateLocation::Directory(state),
            settings: Settings {
                limits: Limits {
                    max_jobs: self.max_jobs,
                    max_jobs_per_user: self.max_jobs_per_user,
                    max_queued_per_user: self.max_queued_per_user,
                    memory_bytes: self.jobs_memory.map(|Bytes(bytes)| bytes),
                    threads: self.jobs_threads,
                },
                keep_jobs_days: self.keep_jobs_days,
                stop_limit: self
                    .stop_seconds
                    .map_or(DEFAULT_STOP, |seconds| Duration::from_secs(seconds.get().into())),
                shared_directories,
                roles: RoleSettings {
                    operators: self.operators,
                    viewers: self.viewers.unwrap_or_default(),
                    change: self.operators_change.unwrap_or_default(),
                },
                feeds_memory_bytes: self.feeds.and_then(|feeds| feeds.memory).map(|Bytes(bytes)| bytes),
            },
            storage,
            etcd,
            traces,
            ..Config::embedded()
        };
        Ok(ServerConfig {
            socket,
            metrics_address: self.metrics_address,
            web_address: self.web_address,
            peers,
            daemon,
        })
    }
}

impl Surroundings {
    /// The user and session of this process.
    pub fn of_process() -> Self {
        let directory =
            |name| std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
        Self {
            root: rustix::process::geteuid().is_root(),
            runtime_directory: directory("XDG_RUNTIME_DIR"),
            state_home: directory("XDG_STATE_HOME"),
            home: directory("HOME"),
            credentials: directory("CREDENTIALS_DIRECTORY"),
            variables: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .filter(|(name, _)| name.starts_with("OTEL_"))
                .collect(),
        }
    }

    /// The default path of the control socket.
    pub fn socket(&self) -> Option<PathBuf> {
        let directory = if self.root { Some(Path::new("/run")) } else { self.runtime_directory.as_deref() };
        Some(directory?.join("millstream/millstreamd.sock"))
    }

    fn state_directory(&self) -> Option<PathBuf> {
        if self.root {
            return Some(PathBuf::from("/var/lib/millstream"));
        }
        let state = self.state_home.clone().or_else(|| Some(self.home.as_ref()?.join(".local/state")));
        Some(state?.join("millstream"))
    }
}

/// The path of a file; `credential:NAME` is one of the service's credentials.
fn resolve_file(path: PathBuf, surroundings: &Surroundings) -> Result<PathBuf> {
    let Some(name) = path.to_str().and_then(|text| text.strip_prefix(CREDENTIAL)) else { return Ok(path) };
    anyhow::ensure!(
        Path::new(name).file_name().is_some_and(|file| file == name),
        "`{CREDENTIAL}{name}`: expected the name of a credential"
    );
    let directory = surroundings.credentials.as_ref().with_context(|| {
        format!("`{CREDENTIAL}{name}`: this process has no credentials; add LoadCredential={name}:PATH to its unit")
    })?;
    Ok(directory.join(name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn user() -> Surroundings {
        Surroundings {
            root: false,
            runtime_directory: Some("/run/user/7".into()),
            state_home: None,
            home: Some("/home/u".into()),
            credentials: None,
            variables: BTreeMap::new(),
        }
    }

    #[test]
    fn defaults_depend_on_the_user() {
        let ours = ConfigFile::default().resolve(&user()).unwrap();
        assert_eq!(ours.socket, Path::new("/run/user/7/millstream/millstreamd.sock"));
        assert_eq!(ours.daemon.state, StateLocation::Directory("/home/u/.local/state/millstream".into()));
        let root = Surroundings { root: true, ..user() };
        let system = ConfigFile::default().resolve(&root).unwrap();
        assert_eq!(system.socket, Path::new("/run/millstream/millstreamd.sock"));
        assert_eq!(system.daemon.state, StateLocation::Directory("/var/lib/millstream".into()));
    }

    #[test]
    fn a_path_without_a_default_must_be_given() {
        let nowhere = Surroundings::default();
        let error = ConfigFile::default().resolve(&nowhere).unwrap_err().to_string();
        assert!(error.contains("--socket"), "{error}");
        let given = ConfigFile {
            socket: Some("/a.sock".into()),
            metrics_address: None,
            web_address: None,
            otlp_endpoint: None,
            state_directory: Some("/s".into()),
            shared_directories: None,
            operators: None,
            viewers: None,
            operators_change: None,
            max_jobs: NonZeroUsize::new(3),
            max_jobs_per_user: None,
            max_queued_per_user: None,
            jobs_memory: None,
            jobs_threads: None,
            keep_jobs_days: None,
            stop_seconds: None,
            storage: None,
            feeds: None,
            peers: None,
            etcd: None,
        };
        assert_eq!(given.resolve(&nowhere).unwrap().daemon.settings.limits.max_jobs, NonZeroUsize::new(3));
    }

    #[test]
    fn the_sample_configuration_has_every_key_with_its_default_for_root() {
        let text = include_str!("../../packaging/millstreamd.toml");
        let sample: ConfigFile = toml::from_str(text).unwrap();
        let ConfigFile {
            socket,
            metrics_address,
            web_address,
            otlp_endpoint,
            state_directory,
            shared_directories,
            operators,
            viewers,
            operators_change,
            max_jobs,
            max_jobs_per_user,
            max_queued_per_user,
            jobs_memory,
            jobs_threads,
            keep_jobs_days,
            stop_seconds,
            storage,
            feeds,
            peers,
            etcd,
        } = &sample;
        for (name, is_absent) in [
            ("operators", operators.is_none()),
            ("max_jobs", max_jobs.is_none()),
            ("max_jobs_per_user", max_jobs_per_user.is_none()),
            ("max_queued_per_user", max_queued_per_user.is_none()),
            ("jobs_memory", jobs_memory.is_none()),
            ("jobs_threads", jobs_threads.is_none()),
            ("keep_jobs_days", keep_jobs_days.is_none()),
            ("metrics_address", metrics_address.is_none()),
            ("web_address", web_address.is_none()),
            ("otlp_endpoint", otlp_endpoint.is_none()),
        ] {
            assert!(is_absent && text.contains(&format!("\n#{name} = ")), "{name}");
        }
        assert!(socket.is_some() && state_directory.is_some() && shared_directories.is_some());
        assert!(stop_seconds.is_some() && storage.is_some());
        assert!(viewers.is_some() && operators_change.is_some());
        assert!(feeds.unwrap().memory.is_none() && text.contains("\n[feeds]\n"));
        let memory = text.lines().find_map(|line| line.strip_prefix("#memory = ")).unwrap();
        let section: FeedsSection = toml::from_str(&format!("memory = {memory}")).unwrap();
        assert_eq!(section.memory, Some(Bytes(64 << 30)));
        assert!(peers.is_none() && etcd.is_none());
        let (peers, etcd) = text.split_once("\n#[peers]\n").unwrap().1.split_once("\n#[etcd]\n").unwrap();
        let commented = |section: &str| {
            let lines = section.lines().filter_map(|line| line.strip_prefix('#'));
            lines.filter(|line| !line.starts_with(' ')).collect::<Vec<_>>().join("\n")
        };
        let section: EtcdSection = toml::from_str(&commented(etcd)).unwrap();
        assert_eq!(section.resolve(&Surroundings::default()).unwrap().prefix, "millstream");
        let section: PeersSection = toml::from_str(&commented(peers)).unwrap();
        assert!(section.listen.is_some() && section.address.is_some() && section.crl.is_some());
        assert!(section.resolve(&Surroundings::default()).unwrap().data.is_some());
        let root = Surroundings { root: true, ..Surroundings::default() };
        let default = ConfigFile::default().resolve(&root).unwrap();
        assert_eq!(sample.resolve(&Surroundings::default()).unwrap(), default);
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let text =
            "socket = '/file.sock'\nmax_jobs = 2\njobs_memory = '1.5GiB'\nmetrics_address = '127.0.0.1:1'";
        let file: ConfigFile = toml::from_str(text).unwrap();
        let line = ConfigFile {
            socket: Some("/line.sock".into()),
            metrics_address: "[::1]:2".parse().ok(),
            ..ConfigFile::default()
        };
        let both = file.overridden_by(line).resolve(&user()).unwrap();
        let limits = &both.daemon.settings.limits;
        assert_eq!((both.socket.to_str().unwrap(), limits.max_jobs), ("/line.sock", NonZeroUsize::new(2)));
        assert_eq!((limits.memory_bytes, limits.max_jobs_per_user), (Some(3 << 29), None));
        assert_eq!(both.metrics_address.unwrap().to_string(), "[::1]:2");
    }

    #[test]
    fn roles_are_closed_unless_the_file_opens_them() {
        let roles = |text: &str| {
            let file: ConfigFile = toml::from_str(text).unwrap();
            file.resolve(&user()).unwrap().daemon.settings.roles
        };
        let closed = RoleSettings { operators: None, viewers: Viewers::Nobody, change: ChangeableJobs::All };
        assert_eq!(roles(""), closed);
        assert_eq!(
            roles("operators = ['mlops']\nviewers = 'everyone'\noperators_change = 'own'"),
            RoleSettings {
                operators: Some(vec!["mlops".into()]),
                viewers: Viewers::Everyone,
                change: ChangeableJobs::Own
            }
        );
        assert_eq!(roles("viewers = ['interns']").viewers, Viewers::Groups(vec!["interns".into()]));
    }

    #[test]
    fn the_memory_of_feeds_can_be_bounded() {
        let memory = |text: &str| {
            let file: ConfigFile = toml::from_str(text).unwrap();
            file.resolve(&user()).unwrap().daemon.settings.feeds_memory_bytes
        };
        assert_eq!(memory(""), None);
        assert_eq!(memory("[feeds]"), None);
        assert_eq!(memory("[feeds]\nmemory = '1.5GiB'"), Some(3 << 29));
    }

    #[test]
    fn unknown_keys_and_impossible_values_are_refused_with_their_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("millstreamd.toml");
        for (text, expected) in [
            ("max_jobs = 1\nsockets = '/x'", "line 2"),
            ("max_jobs = 0", "nonzero"),
            ("jobs_memory = 'much'", "200GiB"),
            ("viewers = 'interns'", "a list of groups"),
            ("viewers = 3", "a list of groups"),
            ("operators = 'mlops'", "expected a sequence"),
            ("operators_change = 'mine'", "`all` or `own`"),
            ("metrics_address = 'localhost'", "socket address"),
            ("web_address = '9465'", "socket address"),
            ("[feeds]\nmemory = 5", "expected a string"),
            ("[feeds]\nmemory = 'half'", "200GiB"),
            ("[feeds]\nmemroy = '1GiB'", "line 2"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", ConfigFile::read(&path).unwrap_err());
            assert!(error.contains(expected) && error.contains("millstreamd.toml"), "{error}");
        }
    }
}
