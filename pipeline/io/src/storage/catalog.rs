//! A catalog of datasets: listings with a name and a number, shared by several hosts.
//!
//! ```text
//! CATALOG/clicks/00000001.json              a version: what was registered, see [`Version`]; never replaced
//!                00000001.statistics.json   statistics of its columns, of interest to people only
//!                current.json               an earlier version that was made the current one, and by whom
//! ```
//!
//! CATALOG is a directory or the address of one in an object store: `storage.catalog`, or the variable `MILLSTREAM_CATALOG`.
//! In place of paths, `dataset://clicks/3` names the files of version 3, in the versions that were registered, and
//! `dataset://clicks` those of the current version. Files that were added later are not part of a version; one that has
//! changed or is missing is an error. `dataset://clicks/3#train` names a split: some rows of these files. `#` survives shells
//! inside a word, whereas `?` is a wildcard of shells and of globs.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::division::Division;
use super::object::Object;
use super::{Listing, Stores, is_local};
use crate::Error;

/// The scheme of references to datasets.
const SCHEME: &str = "dataset://";

/// The variable that names the catalog where no setting does.
pub const CATALOG_VARIABLE: &str = "MILLSTREAM_CATALOG";

/// The file that names the current version.
const CURRENT: &str = "current.json";
const STATISTICS: &str = ".statistics.json";

/// The maximum length of a dataset's name, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The maximum size of a file of a catalog: a listing may have a million objects.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// The most changes by others that are met in a row.
const TRIES: u32 = 100;

/// A dataset, a version of it or a split of one: `clicks`, `clicks/3`, `clicks/3#train`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// The dataset's name: ASCII letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// The version's number, from 1; `None` for the current one.
    pub version: Option<u32>,
    /// The name of a split; `None` for all rows.
    pub split: Option<String>,
}

/// A version of a dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Version {
    /// The dataset's name.
    pub dataset: String,
    /// The number, from 1.
    pub version: u32,
    /// When it was registered, in milliseconds since the Unix epoch.
    pub registered_ms: u64,
    /// Who registered it.
    pub by: String,
    /// What they say about it; may be empty.
    #[serde(default)]
    pub description: String,
    /// The absolute paths and globs that were registered.
    pub patterns: Vec<String>,
    /// The format of the files.
    pub format: String,
    /// The number of rows.
    pub rows: u64,
    /// The columns.
    pub columns: Vec<Column>,
    /// How the rows are divided into splits, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub division: Option<Division>,
    /// The files in their versions, as [`Listing::to_text`] writes them.
    pub listing: String,
}

/// A column of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// The name.
    pub name: String,
    /// The type of a value, in words.
    #[serde(rename = "type")]
    pub data_type: String,
    /// Whether a row may have several values.
    #[serde(default)]
    pub multi: bool,
    /// Rows without a value.
    pub absent: u64,
}

/// The versions of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// All, ascending; at least one.
    pub versions: Vec<u32>,
    /// The current one.
    pub current: u32,
    /// The choice of it, if it was registered before others.
    pub choice: Option<Choice>,
}

/// The choice of the current version. It holds until another version is registered, which then is the current one: so hosts that
/// register at once need not agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Its number.
    pub version: u32,
    /// The newest version then.
    pub newest: u32,
    /// Who made it current.
    pub by: String,
    /// When, in milliseconds since the Unix epoch.
    pub chosen_ms: u64,
}

/// A catalog.
#[derive(Clone, Debug)]
pub struct Catalog {
    stores: Stores,
    /// Its address without a slash at the end; absolute.
    root: String,
}

impl Reference {
    /// Parses `NAME` or `NAME/VERSION`, also with `dataset://` before it and `#SPLIT` behind it.
    ///
    /// # Errors
    /// When a name or the number is invalid.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let invalid =
            |message: &str| Error::BadPattern { pattern: text.to_owned(), message: message.to_owned() };
        let path = text.strip_prefix(SCHEME).unwrap_or(text);
        let (path, split) = match path.split_once('#') {
            Some((path, split)) => (path, Some(split)),
            None => (path, None),
        };
        let (name, version) = match path.split_once('/') {
            Some((name, version)) => (name, Some(version)),
            None => (path, None),
        };
        if !is_name(name) {
            return Err(invalid(
                "is not the name of a dataset: up to 64 letters, digits, `.`, `_` and `-`, and no `.` at the start",
            ));
        }
        if split.is_some_and(|split| !is_name(split)) {
            return Err(invalid("has no name of a split behind `#`, such as NAME/3#train"));
        }
        let number = |text: &str| text.parse().ok().filter(|&number: &u32| number > 0);
        let version =
            version.map(|text| number(text).ok_or_else(|| invalid("has no version number, such as NAME/3")));
        Ok(Self { name: name.to_owned(), version: version.transpose()?, split: split.map(str::to_owned) })
    }

    /// Parses `NAME` or `NAME/VERSION`, for callers to which a split means nothing.
    ///
    /// # Errors
    /// When it names a split, or as for [`Reference::parse`].
    pub fn parse_whole(text: &str) -> Result<Self, Error> {
        let reference = Self::parse(text)?;
        let message = "names a split; name the version, without `#`".to_owned();
        match reference.split {
            None => Ok(reference),
            Some(_) => Err(Error::BadPattern { pattern: text.to_owned(), message }),
        }
    }

    /// The reference that `pattern` is, unless it is a path or a glob.
    ///
    /// # Errors
    /// As for [`Reference::parse`].
    pub fn in_place_of_path(pattern: &str) -> Result<Option<Self>, Error> {
        pattern.starts_with(SCHEME).then(|| Self::parse(pattern)).transpose()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.name)?;
        self.version.map_or(Ok(()), |version| write!(f, "/{version}"))?;
        self.split.as_ref().map_or(Ok(()), |split| write!(f, "#{split}"))
    }
}

/// Whether `name` can be that of a dataset or a split.
pub(super) fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.starts_with('.') && name.chars().all(is_plain)
}

impl Version {
    /// The reference to this version.
    pub fn reference(&self) -> Reference {
        Reference { name: self.dataset.clone(), version: Some(self.version), split: None }
    }

    /// The files.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn files(&self) -> Result<Listing, Error> {
        Listing::parse(&self.listing)
    }
}

impl Catalog {
    /// The catalog of these settings. A relative directory starts at the working directory.
    ///
    /// # Errors
    /// When none is set, or its address is invalid.
    pub fn of(stores: &Stores) -> Result<Self, Error> {
        let variable = || std::env::var(CATALOG_VARIABLE).ok().filter(|catalog| !catalog.is_empty());
        let root = stores.spec.catalog.clone().or_else(variable);
        let root = root.ok_or_else(|| Error::NoCatalog)?;
        let root = root.trim_end_matches('/');
        let root = if is_local(root)? {
            let path = root.strip_prefix("file://").unwrap_or(root);
            let absolute =
                std::path::absolute(path).map_err(|source| Error::file(Path::new(path), source))?;
            absolute.to_string_lossy().into_owned()
        } else {
            root.to_owned()
        };
        Ok(Self { stores: stores.clone(), root })
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.root
    }

    /// The addresses of what is read to resolve a reference: the directory of its dataset, and the file of its version or that of
    /// the choice of the current one, which may be missing.
    pub fn files_of(&self, reference: &Reference) -> [String; 2] {
        let directory = format!("{}/{}", self.root, reference.name);
        let file = reference.version.map_or(CURRENT.to_owned(), file_name);
        [directory.clone(), format!("{directory}/{file}")]
    }

    /// The names of all datasets, sorted.
    ///
    /// # Errors
    /// The error of the storage service.
    pub async fn names(&self) -> Result<Vec<String>, Error> {
        let first = format!("/{}", file_name(1));
        let found = self.list(&format!("*{first}")).await?;
        let name = |path: &str| Some(path.strip_suffix(&first)?.rsplit('/').next()?.to_owned());
        Ok(found.iter().filter_map(|object| name(object.path())).collect())
    }

    /// The numbers of a dataset's versions.
    ///
    /// # Errors
    /// When there is no such dataset, or the error of the storage service.
    pub async fn numbers(&self, name: &str) -> Result<Numbers, Error> {
        let versions = self.versions(name).await?;
        let Some(&newest) = versions.last() else {
            let message =
                format!("no such dataset in the catalog {}; `millstream dataset list` shows all", self.root);
            return Err(Error::BadPattern { pattern: format!("{SCHEME}{name}"), message });
        };
        let current = self.read(&format!("{name}/{CURRENT}")).await?;
        let choice = current.and_then(|bytes| serde_json::from_slice::<Choice>(&bytes).ok());
        let choice = choice.filter(|choice| choice.newest == newest && versions.contains(&choice.version));
        let current = choice.as_ref().map_or(newest, |choice| choice.version);
        Ok(Numbers { versions, current, choice: choice.filter(|choice| choice.version < newest) })
    }

    /// The numbers of a dataset's versions, ascending; none if there is no such dataset.
    async fn versions(&self, name: &str) -> Result<Vec<u32>, Error> {
        let found = self.list(&format!("{name}/*.json")).await?;
        let number = |path: &str| path.rsplit('/').next()?.strip_suffix(".json")?.parse().ok();
        let mut versions: Vec<u32> = found.iter().filter_map(|object| number(object.path())).collect();
        versions.sort_unstable();
        Ok(versions)
    }

    /// A version of a dataset.
    ///
    /// # Errors
    /// When there is none, it is damaged, or the error of the storage service.
    pub async fn version(&self, reference: &Reference) -> Result<Version, Error> {
        let number = match reference.version {
            Some(number) => number,
            None => self.numbers(&reference.name).await?.current,
        };
        let path = format!("{}/{}", reference.name, file_name(number));
        let invalid = |message: String| Error::BadPattern { pattern: reference.to_string(), message };
        let bytes = self.read(&path).await?;
        let bytes = bytes.ok_or_else(|| invalid(format!("no such version in the catalog {}", self.root)))?;
        let damaged = |why: String| invalid(format!("{}/{path} is damaged: {why}", self.root));
        let version: Version = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        version.division.as_ref().map_or(Ok(()), Division::check).map_err(damaged)?;
        Ok(version)
    }

    /// Adds `version` with the next free number, which the result has, and makes it current.
    ///
    /// # Errors
    /// The error of the storage service.
    pub async fn add(&self, mut version: Version) -> Result<Version, Error> {
        let name = version.dataset.clone();
        version.version = self.versions(&name).await?.last().map_or(1, |newest| newest + 1);
        for _ in 0..TRIES {
            let path = format!("{}/{name}/{}", self.root, file_name(version.version));
            let bytes = serde_json::to_vec_pretty(&version).unwrap_or_default();
            if self.stores.put_new(&path, Path::new("/"), bytes).await?.is_some() {
                return Ok(version);
            }
            // Somebody else registered one meanwhile.
            version.version += 1;
        }
        Err(Error::BadPattern {
            pattern: name,
            message: "too many versions are registered at once".to_owned(),
        })
    }

    /// Makes a version the current one, until another is registered.
    ///
    /// # Errors
    /// The error of the storage service.
    pub async fn choose(&self, name: &str, version: u32, by: &str, chosen_ms: u64) -> Result<(), Error> {
        let path = format!("{}/{name}/{CURRENT}", self.root);
        let newest = self.numbers(name).await?.versions.last().copied().unwrap_or_default();
        let choice = Choice { version, newest, by: by.to_owned(), chosen_ms };
        self.stores.put(&path, Path::new("/"), serde_json::to_vec_pretty(&choice).unwrap_or_default()).await
    }

    /// The statistics of a version, if there are any.
    ///
    /// # Errors
    /// The error of the storage service.
    pub async fn statistics(&self, name: &str, version: u32) -> Result<Option<Vec<u8>>, Error> {
        self.read(&format!("{name}/{version:08}{STATISTICS}")).await
    }

    /// Writes the statistics of a version.
    ///
    /// # Errors
    /// The error of the storage service.
    pub async fn put_statistics(&self, name: &str, version: u32, bytes: Vec<u8>) -> Result<(), Error> {
        let path = format!("{}/{name}/{version:08}{STATISTICS}", self.root);
        self.stores.put(&path, Path::new("/"), bytes).await
    }

    /// The files of the catalog that a glob matches.
    async fn list(&self, glob: &str) -> Result<Vec<Object>, Error> {
        match self.stores.list(&[format!("{}/{glob}", self.root)], Path::new("/")).await {
            Err(Error::EmptyGlob { .. } | Error::NotFound { .. }) => Ok(Vec::new()),
            listed => listed,
        }
    }

    async fn read(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let mut tries = 0;
        loop {
            let found = self.list(path).await?;
            let Some(object) = found.first() else { return Ok(None) };
            if object.size() > MAX_FILE_BYTES {
                let message = format!("has {} bytes, more than any file of a catalog", object.size());
                return Err(Error::BadPattern { pattern: object.path().to_string(), message });
            }
            tries += 1;
            match object.read(0..object.size()).await {
                // Replaced between the listing and the read.
                Err(Error::Changed { .. }) if tries < TRIES => {}
                read => return Ok(Some(read?.to_vec())),
            }
        }
    }
}

fn file_name(version: u32) -> String {
    format!("{version:08}.json")
}

impl Stores {
    /// `patterns`, of which those that name a dataset name its current version.
    ///
    /// # Errors
    /// As for [`Catalog::numbers`].
    pub async fn pin(&self, patterns: &[String]) -> Result<Vec<String>, Error> {
        let mut pinned = Vec::with_capacity(patterns.len());
        for pattern in patterns {
            pinned.push(match Reference::in_place_of_path(pattern)? {
                Some(Reference { name, version: None, split }) => {
                    let current = Catalog::of(self)?.numbers(&name).await?.current;
                    Reference { name, version: Some(current), split }.to_string()
                }
                _ => pattern.clone(),
            });
        }
        Ok(pinned)
    }

    /// The files of a dataset, in the versions that were registered. A caller that reads splits has separated their names
    /// ([`Stores::named`]); another one would read all rows.
    pub(super) async fn list_dataset(&self, reference: &Reference) -> Result<Vec<Object>, Error> {
        if let Some(split) = &reference.split {
            let whole = Reference { split: None, ..reference.clone() };
            let message = format!(
                "the split `{split}` can be read by jobs, `eval` and `predict`; here, name all rows, {whole}"
            );
            return Err(Error::BadPattern { pattern: reference.to_string(), message });
        }
        let version = Catalog::of(self)?.version(reference).await?;
        if version.patterns.iter().any(|pattern| pattern.starts_with(SCHEME)) {
            let message = "is registered with another dataset among its paths".to_owned();
            return Err(Error::BadPattern { pattern: reference.to_string(), message });
        }
        let now = self.list(&version.patterns, Path::new("/")).await?;
        match version.files()?.keep(now) {
            Ok(kept) => Ok(kept.objects),
            Err(Error::Changed { path }) => {
                Err(Error::ChangedInDataset { path, dataset: version.reference().to_string() })
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::storage::StorageSpec;

    fn version(dataset: &str, patterns: &[&str], listing: &Listing) -> Version {
        Version {
            dataset: dataset.to_owned(),
            version: 0,
            registered_ms: 1,
            by: "ann".to_owned(),
            description: String::new(),
            patterns: patterns.iter().map(ToString::to_string).collect(),
            format: "parquet".to_owned(),
            rows: 1,
            columns: Vec::new(),
            division: None,
            listing: listing.to_text(),
        }
    }

    #[test]
    fn references_have_a_name_and_perhaps_a_number() {
        let parse = |text: &str| Reference::parse(text).map(|reference| reference.to_string()).ok();
        assert_eq!(parse("clicks").as_deref(), Some("dataset://clicks"));
        assert_eq!(parse("dataset://clicks.v2/12").as_deref(), Some("dataset://clicks.v2/12"));
        assert_eq!(parse("dataset://clicks#train").as_deref(), Some("dataset://clicks#train"));
        assert_eq!(parse("clicks/3#test.b").as_deref(), Some("dataset://clicks/3#test.b"));
        for bad in [
            "a#", "a/3#", "a#b#c", "a#b/3", "#b", "a/#b", "a#.b", "", "a b", "a/0", "a/x", "a/1/2", "../a",
            "a@3", ".a", "é",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(Reference::in_place_of_path("clicks/3").unwrap(), None);
        assert!(Reference::in_place_of_path("dataset://clicks/").is_err());
    }

    #[tokio::test]
    async fn a_version_keeps_its_files_and_the_current_one_can_be_moved() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let spec = StorageSpec { catalog: Some(at("catalog")), ..StorageSpec::default() };
        let stores = Stores::new(spec, 0);
        let catalog = Catalog::of(&stores).unwrap();
        assert_eq!(catalog.names().await.unwrap(), Vec::<String>::new());
        std::fs::write(at("a.csv"), "1").unwrap();
        let glob = at("*.csv");
        let register = async || {
            let objects = stores.list(std::slice::from_ref(&glob), Path::new("/")).await.unwrap();
            catalog.add(version("clicks", &[&glob], &Listing::of(&objects))).await.unwrap().version
        };
        assert_eq!(register().await, 1);
        std::fs::write(at("b.csv"), "22").unwrap();
        assert_eq!(register().await, 2);
        let list = async |pattern: &str| stores.list(&[pattern.to_owned()], directory.path()).await;
        assert_eq!(
            list("dataset://clicks/1").await.unwrap().len(),
            1,
            "files added later are not part of it"
        );
        assert_eq!(list("dataset://clicks").await.unwrap().len(), 2);
        catalog.choose("clicks", 1, "bob", 7).await.unwrap();
        let choice = catalog.numbers("clicks").await.unwrap().choice;
        assert_eq!(choice, Some(Choice { version: 1, newest: 2, by: "bob".to_owned(), chosen_ms: 7 }));
        assert_eq!(list("dataset://clicks").await.unwrap().len(), 1);
        let pinned = stores.pin(&["dataset://clicks".to_owned(), "x".to_owned()]).await.unwrap();
        assert_eq!(pinned, ["dataset://clicks/1", "x"]);
        assert_eq!(catalog.names().await.unwrap(), ["clicks"]);
        std::fs::write(at("a.csv"), "333").unwrap();
        let error = list("dataset://clicks/1").await.unwrap_err().to_string();
        assert!(error.contains("a.csv: has changed since dataset://clicks/1 was registered"), "{error}");
        assert!(list("dataset://clicks/3").await.unwrap_err().to_string().contains("no such version"));
        assert!(list("dataset://others").await.unwrap_err().to_string().contains("no such dataset"));
    }

    #[tokio::test]
    async fn two_that_register_at_once_get_different_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let catalog = directory.path().to_str().unwrap().to_owned();
        let stores = Stores::new(StorageSpec { catalog: Some(catalog), ..StorageSpec::default() }, 0);
        let catalog = Catalog::of(&stores).unwrap();
        let added = (0..5).map(|_| catalog.add(version("clicks", &["/x"], &Listing::default())));
        let added = futures::future::try_join_all(added).await.unwrap();
        let mut numbers: Vec<u32> = added.iter().map(|version| version.version).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        let found = catalog.numbers("clicks").await.unwrap();
        assert_eq!((found.versions, found.current), (numbers, 5));
    }
}
