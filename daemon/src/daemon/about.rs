//! What the daemon says about itself: for diagnoses, because a client cannot see the limits of another user's process.

use millstream_control::proto::AboutReply;
use rustix::process::{Resource, getegid, geteuid, getgroups, getrlimit};

use super::Daemon;
use crate::config::StateLocation;

impl Daemon {
    /// The daemon's process, its rights and limits, and its directories.
    pub(crate) fn about(&self) -> AboutReply {
        let state_directory = match &self.shared.state {
            StateLocation::Memory => String::new(),
            StateLocation::Directory(directory) => directory.to_string_lossy().into_owned(),
        };
        let shared = self.settings().shared_directories;
        let limit = |resource| getrlimit(resource).current;
        AboutReply {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            groups: getgroups().unwrap_or_default().into_iter().map(|group| group.as_raw()).collect(),
            state_directory,
            shared_directories: shared.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
            open_files: limit(Resource::Nofile),
            locked_bytes: limit(Resource::Memlock),
            processes: limit(Resource::Nproc),
            // Depends on the caller.
            role: String::new(),
            operators: Vec::new(),
        }
    }
}
