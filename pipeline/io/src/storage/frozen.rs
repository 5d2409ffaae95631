//! The listing that is frozen when a job starts, and stored with the job.
//!
//! ```text
//! millstream listing 1 <objects> <SHA-256 of the lines below, in hexadecimal>
//! <bytes> TAB <version> TAB <address> LF        for each object, in the order of the listing
//! ```
//!
//! A resumed job reads these objects in these versions, whatever its patterns match by then. A changed or removed
//! object is an error that names it; objects added later are not part of the job.

use std::collections::BTreeMap;
use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::object::Object;
use crate::Error;

const NAME: &str = "millstream listing 1";

/// The objects that a job reads, as they were when it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    entries: Vec<Entry>,
}

/// An object in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its address.
    pub address: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its version: tag, generation or time of the last change.
    pub version: String,
}

/// A current listing compared with an earlier one.
#[derive(Debug)]
pub struct Kept {
    /// The objects of the earlier listing, in its order.
    pub objects: Vec<Object>,
    /// The number of objects added since.
    pub added: usize,
}

impl Listing {
    /// Freezes a listing.
    pub fn of(objects: &[Object]) -> Self {
        let entry = |object: &Object| Entry {
            address: object.address(),
            size: object.size(),
            version: object.version(),
        };
        Self { entries: objects.iter().map(entry).collect() }
    }

    /// The objects, in the order of the listing.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The size of all objects.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.size).sum()
    }

    /// A SHA-256 hash, in hexadecimal, of the objects and their versions.
    pub fn hash(&self) -> String {
        digest(&self.lines())
    }

    /// Whether the listing is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the objects of `now` that are in this listing.
    ///
    /// # Errors
    /// [`Error::Changed`] with the first object of this listing that has changed or is missing.
    pub fn keep(&self, now: Vec<Object>) -> Result<Kept, Error> {
        let total = now.len();
        let mut now: BTreeMap<String, Object> =
            now.into_iter().map(|object| (object.address(), object)).collect();
        let objects = self.entries.iter().map(|entry| {
            let same = |object: &Object| object.size() == entry.size && object.version() == entry.version;
            now.remove(&entry.address)
                .filter(same)
                .ok_or_else(|| Error::Changed { path: entry.address.clone() })
        });
        let objects = objects.collect::<Result<Vec<Object>, Error>>()?;
        let added = total - objects.len();
        Ok(Kept { objects, added })
    }

    /// The text form, for storage.
    pub fn to_text(&self) -> String {
        let lines = self.lines();
        format!("{NAME} {} {}\n{lines}", self.entries.len(), digest(&lines))
    }

    fn lines(&self) -> String {
        let mut lines = String::new();
        for Entry { address, size, version } in &self.entries {
            // Keys may contain line feeds and tabs; no other field does.
            let address = address.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t");
            let _ = writeln!(lines, "{size}\t{version}\t{address}");
        }
        lines
    }

    /// Parses the output of [`Listing::to_text`].
    ///
    /// # Errors
    /// The text is incomplete or corrupted.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let damaged = || Error::DamagedListing;
        let (head, lines) = text.split_once('\n').ok_or_else(damaged)?;
        let stated = head.strip_prefix(NAME).and_then(|rest| rest.trim().split_once(' '));
        let (objects, sum) = stated.ok_or_else(damaged)?;
        let entries: Option<Vec<Entry>> = lines.lines().map(Entry::parse).collect();
        let entries = entries.ok_or_else(damaged)?;
        if objects.parse() != Ok(entries.len()) || sum != digest(lines) {
            return Err(damaged());
        }
        Ok(Self { entries })
    }
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let (size, rest) = line.split_once('\t')?;
        let (version, escaped) = rest.split_once('\t')?;
        let mut address = String::with_capacity(escaped.len());
        let mut characters = escaped.chars();
        while let Some(character) = characters.next() {
            address.push(match character {
                '\\' => match characters.next()? {
                    'n' => '\n',
                    't' => '\t',
                    other => other,
                },
                other => other,
            });
        }
        Some(Self { address, size: size.parse().ok()?, version: version.to_owned() })
    }
}

fn digest(lines: &str) -> String {
    Sha256::digest(lines.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::storage;

    fn objects(dir: &std::path::Path) -> Vec<Object> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(storage::list(&["*".to_owned()], dir)).unwrap()
    }

    #[test]
    fn a_listing_round_trips() {
        let entry =
            |address: &str| Entry { address: address.to_owned(), size: 7, version: "\"v\"".to_owned() };
        let listing = Listing { entries: vec![entry("gs://b/a\tb\nc\\n"), entry("/x/y z")] };
        let text = listing.to_text();
        assert_eq!(text.lines().count(), 3);
        assert_eq!(Listing::parse(&text).unwrap(), listing);
        assert!(Listing::parse(&text.replace("7\t", "8\t")).is_err());
        assert!(Listing::parse(&text[..text.len() - 4]).is_err());
        assert!(Listing::parse("").is_err());
    }

    #[test]
    fn a_resumed_job_reads_the_same_objects_or_an_error_names_one() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let listing = Listing::of(&objects(dir.path()));
        std::fs::write(dir.path().join("aa"), "came later").unwrap();
        let kept = listing.keep(objects(dir.path())).unwrap();
        assert_eq!((kept.objects.len(), kept.added), (2, 1));
        std::fs::write(dir.path().join("b"), "changed").unwrap();
        let error = listing.keep(objects(dir.path())).unwrap_err();
        assert!(matches!(error, Error::Changed { path } if path.ends_with("/b")));
        std::fs::remove_file(dir.path().join("a")).unwrap();
        let error = listing.keep(objects(dir.path())).unwrap_err();
        assert!(matches!(error, Error::Changed { path } if path.ends_with("/a")));
    }
}
