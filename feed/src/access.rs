//! Who may attach to feeds, and what a program may read through them.
//!
//! A host may serve users other than its own, who have fewer rights. It then decides about each connection
//! ([`Admission`]), and about each file before it is opened ([`Access`]).

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use millstream_io::storage::{Object, Stores};

use crate::Error;
use crate::spec::FeedSpec;

/// Decides who may attach.
pub trait Admission: Sync {
    /// What the process at the other end of `socket` may read.
    ///
    /// # Errors
    /// It may not attach.
    fn admit(&self, socket: &UnixStream) -> Result<Arc<dyn Access>, Refusal>;
}

/// A process may not attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The answer that it gets; `None` closes the connection without an answer.
    pub message: Option<String>,
}

/// Decides what a program may read.
pub trait Access: Send + Sync {
    /// The user of the program.
    fn user(&self) -> u32;

    /// Checks the files that a feed names besides its data.
    ///
    /// # Errors
    /// The user may not read one.
    fn check_spec(&self, spec: &FeedSpec) -> Result<(), Error>;

    /// Checks whether the catalog may be read for `patterns`.
    ///
    /// # Errors
    /// The user may not read the files of a dataset, or there is no catalog.
    fn check_patterns(&self, patterns: &[String], stores: &Stores) -> Result<(), Error>;

    /// Checks files of data, whose relative paths start at `base`.
    ///
    /// # Errors
    /// The user may not read one.
    fn check_files(&self, files: &[Object], base: &Path) -> Result<(), Error>;
}

/// Admits processes of the user whose rights the host has.
#[derive(Clone, Copy, Debug)]
pub struct SameUser;

impl Admission for SameUser {
    fn admit(&self, socket: &UnixStream) -> Result<Arc<dyn Access>, Refusal> {
        let peer = millstream_credentials::peer(socket).map_err(|_| Refusal { message: None })?;
        // The socket may have a name that every user of the machine can connect to.
        match peer.uid == rustix::process::getuid().as_raw() {
            true => Ok(Arc::new(*self)),
            false => Err(Refusal { message: None }),
        }
    }
}

/// The kernel checks what the host opens.
impl Access for SameUser {
    fn user(&self) -> u32 {
        rustix::process::getuid().as_raw()
    }

    fn check_spec(&self, _: &FeedSpec) -> Result<(), Error> {
        Ok(())
    }

    fn check_patterns(&self, _: &[String], _: &Stores) -> Result<(), Error> {
        Ok(())
    }

    fn check_files(&self, _: &[Object], _: &Path) -> Result<(), Error> {
        Ok(())
    }
}
