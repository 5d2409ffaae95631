//! The state of a feed after a batch: what a program puts into its checkpoint.

use std::borrow::Cow;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use millstream_io::storage::{Listing, Object};
use millstream_pipeline::Error as DataError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Error;
use crate::protocol::Attached;

/// The version of the state's form.
const VERSION: u32 = 1;

/// The maximum length of a listing, compressed, that a state carries.
const MAX_CARRIED_BYTES: usize = 1 << 20;

/// The maximum length of a listing.
const MAX_LISTING_BYTES: u64 = 1 << 30;

/// zstd's default.
const LEVEL: i32 = 3;

/// A place in a feed: after the batch with which the state came. It is the same on all ranks, and a feed may resume with
/// another number of ranks or another batch size, but not with another seed, pool, number of lanes,
/// packing or other data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedState {
    /// The version of this form.
    pub version: u32,
    /// The encoded position, in base64.
    pub position: String,
    /// The epochs of the feed: where one with more of them continues after the last batch. Older states do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u32>,
    /// The files.
    #[serde(flatten)]
    pub files: Files,
}

/// The files of a feed, frozen when it began: those that are added later are not read, and a changed one is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// The listing, compressed with zstd, in base64; absent if it is long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<String>,
    /// The SHA-256 hash of the listing, in hexadecimal.
    pub listing_hash: String,
}

impl FeedState {
    /// The state at the encoded `position` of the feed `attached`.
    pub fn new(position: &[u8], attached: &Attached) -> Self {
        let (position, files) = (STANDARD.encode(position), attached.files.clone());
        Self { version: VERSION, position, epochs: Some(attached.epochs), files }
    }

    /// The encoded position.
    ///
    /// # Errors
    /// The state has another version, or is damaged.
    pub fn position(&self) -> Result<Vec<u8>, Error> {
        if self.version != VERSION {
            return Err(Error::State(format!("its version is {}; expected {VERSION}", self.version)));
        }
        STANDARD.decode(&self.position).map_err(|error| Error::State(error.to_string()))
    }
}

impl Files {
    /// Freezes these objects.
    pub fn of(objects: &[Object]) -> Self {
        let text = Listing::of(objects).to_text();
        let compressed = zstd::bulk::compress(text.as_bytes(), LEVEL);
        let carried = compressed.ok().filter(|bytes| bytes.len() <= MAX_CARRIED_BYTES);
        Self { listing: carried.map(|bytes| STANDARD.encode(bytes)), listing_hash: hash(&text) }
    }

    /// The objects of `now` that are frozen here.
    ///
    /// # Errors
    /// One of them has changed or is missing. If the listing is too long to be carried, also if files were added.
    pub fn keep(&self, now: Vec<Object>) -> Result<Vec<Object>, Error> {
        let Some(carried) = &self.listing else {
            return match hash(&Listing::of(&now).to_text()) == self.listing_hash {
                true => Ok(now),
                false => Err(Error::State(
                    "files were added, removed or changed since, and the list of files is too long to be part of the state"
                        .to_owned(),
                )),
            };
        };
        let damaged =
            |error: Cow<'static, str>| Error::State(format!("its list of files is damaged: {error}"));
        let bytes = STANDARD.decode(carried).map_err(|error| damaged(error.to_string().into()))?;
        let mut text = String::new();
        let decoder = zstd::stream::read::Decoder::new(&bytes[..]);
        let mut decoder = decoder.map_err(|error| damaged(error.to_string().into()))?.take(MAX_LISTING_BYTES);
        decoder.read_to_string(&mut text).map_err(|error| damaged(error.to_string().into()))?;
        if hash(&text) != self.listing_hash {
            return Err(damaged("another hash".into()));
        }
        Ok(Listing::parse(&text)?.keep(now).map_err(DataError::from)?.objects)
    }
}

fn hash(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
