//! Addresses of directories: `/runs/census-k3f9q2`, `gs://bucket/runs/census-k3f9q2`.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use object_store::path::Path as Location;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::address::{Address, Scheme};
use crate::{Error, redact};

/// A directory: a local one, or the objects of a bucket whose keys begin with its path. Stored as its path or address, and
/// displayed so without secrets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Directory(Place);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// An absolute path.
    Local(PathBuf),
    /// `gs://bucket/path`, without a slash at the end.
    Bucket(String),
}

/// Whether `text` is an address, such as `gs://bucket/path` or `file:///path`, and not a path.
pub fn is_address(text: &str) -> bool {
    text.contains("://") && !text.starts_with('/')
}

impl Directory {
    /// The directory with this path or address; a relative path starts at `base`.
    ///
    /// # Errors
    /// When the address is none of a bucket, or has wildcards.
    pub fn parse(text: &str, base: &Path) -> Result<Self, Error> {
        let rejected =
            |message: &str| Err(Error::BadPattern { pattern: text.to_owned(), message: message.to_owned() });
        if !is_address(text) {
            return Ok(Self::local(base.join(text)));
        }
        let address = Address::parse(text)?;
        match address.scheme {
            Scheme::File => Ok(Self::local(base.join(address.path))),
            Scheme::Http => rejected("is a web server; a directory is local or in a bucket"),
            Scheme::Gs | Scheme::S3 | Scheme::Az => {
                let path = address.path.trim_end_matches('/');
                if let Err(error) = Location::parse(path) {
                    return rejected(&error.to_string());
                }
                if path.starts_with('/') {
                    return rejected("has an empty name");
                }
                if path.contains(['*', '?', '[', ']', '{', '}']) {
                    return rejected("has a wildcard; a directory has a name");
                }
                Ok(Self(Place::Bucket([address.root, path].join("/").trim_end_matches('/').to_owned())))
            }
        }
    }

    /// A local directory, with an absolute path.
    pub fn local(path: impl Into<PathBuf>) -> Self {
        Self(Place::Local(path.into()))
    }

    /// Its path, if it is local.
    pub fn as_local(&self) -> Option<&Path> {
        match &self.0 {
            Place::Local(path) => Some(path),
            Place::Bucket(_) => None,
        }
    }

    /// Its path or address, as it is used. To show it, display it.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.0 {
            Place::Local(path) => path.to_string_lossy(),
            Place::Bucket(address) => Cow::Borrowed(address),
        }
    }

    /// Its path or address as bytes, which [`Directory::from_bytes`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        match &self.0 {
            Place::Local(path) => path.as_os_str().as_bytes().to_owned(),
            Place::Bucket(address) => address.clone().into_bytes(),
        }
    }

    /// The directory with this absolute path or address.
    ///
    /// # Errors
    /// As for [`Directory::parse`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(&text, Path::new("")),
            Err(error) => Ok(Self::local(OsString::from_vec(error.into_bytes()))),
        }
    }

    /// Its last name.
    pub fn name(&self) -> Option<&str> {
        match &self.0 {
            Place::Local(path) => path.file_name()?.to_str(),
            Place::Bucket(address) => Some(split_last(address)?.1),
        }
    }

    /// The directory that contains it; `None` for a whole bucket.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        match &self.0 {
            Place::Local(path) => Some(Self::local(path.parent()?)),
            Place::Bucket(address) => Some(Self(Place::Bucket(split_last(address)?.0.to_owned()))),
        }
    }

    /// The directory or file `name` in it.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        match &self.0 {
            Place::Local(path) => Self::local(path.join(name)),
            Place::Bucket(address) => Self(Place::Bucket(format!("{address}/{name}"))),
        }
    }
}

/// The address before its last name, and this name.
fn split_last(address: &str) -> Option<(&str, &str)> {
    let (parent, name) = address.rsplit_once('/')?;
    // The bucket itself follows two slashes.
    (!parent.ends_with('/')).then_some((parent, name))
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Local(path) => path.display().fmt(f),
            Place::Bucket(address) => redact(address).fmt(f),
        }
    }
}

impl Serialize for Directory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Place::Local(path) => path.serialize(serializer),
            Place::Bucket(address) => address.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Directory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Absolute, so there is no base.
        Self::parse(&text, Path::new("")).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parse(text: &str) -> Directory {
        Directory::parse(text, Path::new("/base")).unwrap()
    }

    #[test]
    fn paths_start_at_the_base_and_addresses_do_not() {
        assert_eq!(parse("runs/a").as_local(), Some(Path::new("/base/runs/a")));
        assert_eq!(parse("/runs/a").as_local(), Some(Path::new("/runs/a")));
        assert_eq!(parse("file:///runs/a").as_local(), Some(Path::new("/runs/a")));
        // Earlier versions took an address for a path.
        assert_eq!(parse("/base/gs://bucket/a").as_local(), Some(Path::new("/base/gs://bucket/a")));
        assert_eq!(parse("gs://bucket/runs/a").as_local(), None);
        assert_eq!(parse("gs://bucket/runs/a/"), parse("gs://bucket/runs/a"));
        for text in [
            "http://host/runs",
            "https://host/runs",
            "ftp://host/runs",
            "gs:///runs",
            "gs://bucket//runs",
            "gs://bucket/a//b",
            "gs://bucket/a-*",
        ] {
            assert!(Directory::parse(text, Path::new("/base")).is_err(), "{text}");
        }
    }

    #[test]
    fn directories_have_parents_names_and_members() {
        for (text, parent, name) in [
            ("/runs/a", "/runs", "a"),
            ("gs://bucket/runs/a", "gs://bucket/runs", "a"),
            ("s3://bucket/a", "s3://bucket", "a"),
            ("abfss://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net", "a"),
        ] {
            let directory = parse(text);
            assert_eq!((directory.parent(), directory.name()), (Some(parse(parent)), Some(name)));
            assert_eq!(parse(parent).join(name), directory);
            assert_eq!(directory.to_string(), text);
            let stored = serde_json::to_string(&directory).unwrap();
            assert_eq!(stored, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Directory>(&stored).unwrap(), directory);
        }
        assert_eq!((parse("gs://bucket").parent(), parse("gs://bucket").name()), (None, None));
    }
}
