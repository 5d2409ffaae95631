//! Objects of a bucket that a worker reads and writes by way of its daemon.
//!
//! A worker has no credentials and no connections to storage. For a directory in a bucket, the daemon gives it one end of a
//! Unix stream socket pair, and serves what is requested there: objects in that directory, by their names in it. So the code that
//! writes checkpoints is the same for local directories and buckets ([`ObjectClient`] is an [`object_store::ObjectStore`]), the
//! daemon decides who may still write, and its connections and retries serve all.
//!
//! ```text
//! worker                                daemon
//!   List ------------------------------>
//!         <---------------------------- Listed
//!   Get ------------------------------->
//!         <---------------------------- Content, bytes, Content, bytes, .., Done; or Absent
//!   Put, bytes ------------------------>
//!         <---------------------------- Done; or Exists
//!   Create, (Append, bytes)*, Finish -->  an object larger than a piece
//!         <---------------------------- Done, for each of them
//!   Delete ---------------------------->
//!         <---------------------------- Done
//! ```
//!
//! A request is answered before the next one is sent. `Failed` answers any request that fails, also in the middle of contents.
//! Messages have the frames of [`crate::protocol`]; contents follow them as they are.

mod client;

use serde::{Deserialize, Serialize};

pub use client::ObjectClient;

/// The most bytes that follow a message.
pub const MAX_CONTENT_BYTES: u64 = 16 << 20;

/// A request of a worker. Names are paths with slashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ObjectRequest {
    /// The names of all objects.
    List,
    /// The contents of an object.
    Get {
        /// Its name.
        name: String,
    },
    /// Write an object whose contents follow.
    Put {
        /// Its name.
        name: String,
        /// The size of its contents, at most [`MAX_CONTENT_BYTES`].
        bytes: u64,
        /// Whether it must not replace another one.
        is_new: bool,
    },
    /// Start to write an object; it appears when it is finished.
    Create {
        /// Its name.
        name: String,
        /// The number that further requests name it by.
        upload: u64,
    },
    /// Append the bytes that follow.
    Append {
        /// The number of the upload.
        upload: u64,
        /// How many they are, at most [`MAX_CONTENT_BYTES`].
        bytes: u64,
    },
    /// Turn what was written into an object.
    Finish {
        /// The number of the upload.
        upload: u64,
    },
    /// Discard what was written.
    Abort {
        /// The number of the upload.
        upload: u64,
    },
    /// Delete an object.
    Delete {
        /// Its name.
        name: String,
    },
}

/// An answer of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ObjectReply {
    /// All objects.
    Listed {
        /// Their names.
        names: Vec<String>,
    },
    /// Some of the contents of an object follow, and then another answer.
    Content {
        /// How many bytes they are, at most [`MAX_CONTENT_BYTES`].
        bytes: u64,
    },
    /// The request is completed.
    Done,
    /// There is no such object.
    Absent,
    /// There is such an object already.
    Exists,
    /// The request has failed.
    Failed {
        /// Why.
        message: String,
    },
}
