//! Where data lies: paths and globs turned into a frozen, sorted listing of objects.
//!
//! Everything is read through [`ObjectStore`], local files included; the store is chosen by the address's
//! scheme, so that a cloud store is one more arm of one `match`. A listing is frozen: each read is made on
//! the condition that the object is still the one listed, and fails with [`Error::Changed`] otherwise, so
//! that an epoch never mixes two versions of a file.

use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use globset::{GlobBuilder, GlobMatcher};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::error::Error;

/// A file as it was listed.
#[derive(Clone, Debug)]
pub struct Object {
    path: Arc<str>,
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
}

/// Lists what `patterns` name. Relative ones start from `base`.
///
/// `*`, `?` and `[...]` stay within one directory, `**` crosses directories, `{a,b}` is either. Names that
/// start with a dot are matched only by a glob that says the dot. The listing is sorted by path, and a file
/// that two patterns match is in it once.
pub async fn list(patterns: &[String], base: &Path) -> Result<Vec<Object>, Error> {
    let base = std::path::absolute(base).map_err(|source| Error::io(base, source))?;
    let mut objects = Vec::new();
    for pattern in patterns {
        let (store, pattern_path) = store_for(pattern)?;
        match wildcard_at(pattern_path) {
            None => objects.push(find(store, pattern, pattern_path, &base).await?),
            Some(at) => objects.extend(expand(store, pattern_path, at, &base).await?),
        }
    }
    objects.sort_by(|a, b| (&a.meta.location, &a.path).cmp(&(&b.meta.location, &b.path)));
    objects.dedup_by(|a, b| a.meta.location == b.meta.location);
    Ok(objects)
}

impl Object {
    /// As the person wrote it (with the wildcards resolved).
    pub fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// Bytes in storage.
    pub fn size(&self) -> u64 {
        self.meta.size
    }

    /// Where it is, whatever the person wrote: the store, and its place there.
    pub fn address(&self) -> String {
        format!("{}/{}", self.store, self.meta.location)
    }

    /// What tells this version of the file from another one.
    pub fn version(&self) -> String {
        self.meta.e_tag.clone().unwrap_or_else(|| self.meta.last_modified.to_rfc3339())
    }

    /// Reads some bytes, if the object is still the one listed.
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes, Error> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let expected = range.end - range.start;
        let mut options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        match &self.meta.e_tag {
            Some(tag) => options.if_match = Some(tag.clone()),
            None => options.if_unmodified_since = Some(self.meta.last_modified),
        }
        let failed = |source| self.failed(source);
        let bytes = self
            .store
            .get_opts(&self.meta.location, options)
            .await
            .map_err(failed)?
            .bytes()
            .await
            .map_err(failed)?;
        if bytes.len() as u64 == expected { Ok(bytes) } else { Err(self.changed()) }
    }

    fn failed(&self, source: object_store::Error) -> Error {
        match source {
            object_store::Error::Precondition { .. } | object_store::Error::NotFound { .. } => self.changed(),
            // A read that the runtime took down with it when it shut down.
            object_store::Error::JoinError { source } if source.is_cancelled() => Error::Cancelled,
            source => Error::Storage { path: self.path.to_string(), source: Box::new(source) },
        }
    }

    fn changed(&self) -> Error {
        Error::Changed { path: self.path.to_string() }
    }
}

/// The store that an address is in, and the address's path there.
fn store_for(address: &str) -> Result<(Arc<dyn ObjectStore>, &str), Error> {
    match address.split_once("://") {
        None => Ok((Arc::new(LocalFileSystem::new()), address)),
        Some(("file", path)) => Ok((Arc::new(LocalFileSystem::new()), path)),
        Some((scheme, _)) => {
            Err(Error::UnsupportedScheme { address: address.to_owned(), scheme: scheme.to_owned() })
        }
    }
}

async fn find(store: Arc<dyn ObjectStore>, pattern: &str, path: &str, base: &Path) -> Result<Object, Error> {
    let base_of_path = base_of(path, base);
    let path = base.join(path);
    let location = location_of(pattern, &path)?;
    match store.head(&location).await {
        Ok(meta) => Ok(Object { path: pattern.into(), store, meta }),
        Err(object_store::Error::NotFound { .. }) if path.is_dir() => Err(Error::BadPattern {
            pattern: pattern.to_owned(),
            message: format!(
                "is a directory; name the files in it, such as {}/*",
                pattern.trim_end_matches('/')
            ),
        }),
        Err(object_store::Error::NotFound { .. }) => {
            Err(Error::NotFound { path: pattern.to_owned(), base: base_of_path })
        }
        Err(source) => Err(Error::Storage { path: pattern.to_owned(), source: Box::new(source) }),
    }
}

/// All objects that a glob matches; `at` is where its first wildcard stands.
async fn expand(
    store: Arc<dyn ObjectStore>,
    pattern: &str,
    at: usize,
    base: &Path,
) -> Result<Vec<Object>, Error> {
    let (literal, glob) = pattern.split_at(pattern[..at].rfind('/').map_or(0, |slash| slash + 1));
    let matcher = matcher(pattern, glob)?;
    let hidden = glob.split('/').any(|part| part.starts_with('.'));
    let prefix = location_of(pattern, &base.join(literal))?;
    let failed = |source| Error::Storage { path: pattern.to_owned(), source: Box::new(source) };
    let listed: Result<Vec<ObjectMeta>, _> = if glob.contains('/') || glob.contains("**") {
        store.list(Some(&prefix)).try_collect().await
    } else {
        store.list_with_delimiter(Some(&prefix)).await.map(|found| found.objects)
    };
    let listed = match listed {
        Err(object_store::Error::NotFound { .. }) => Vec::new(),
        listed => listed.map_err(failed)?,
    };
    let matching = listed.into_iter().filter_map(|meta| {
        let rest: Vec<String> =
            meta.location.prefix_match(&prefix)?.map(|part| part.as_ref().to_owned()).collect();
        let wanted = hidden || !rest.iter().any(|part| part.starts_with('.'));
        let rest = rest.join("/");
        (wanted && matcher.is_match(&rest)).then(|| Object {
            path: format!("{literal}{rest}").into(),
            store: store.clone(),
            meta,
        })
    });
    let objects: Vec<Object> = matching.collect();
    if objects.is_empty() {
        return Err(Error::EmptyGlob { pattern: pattern.to_owned(), base: base_of(pattern, base) });
    }
    Ok(objects)
}

/// Where a path starts, if it is relative.
fn base_of(path: &str, base: &Path) -> Option<PathBuf> {
    Path::new(path).is_relative().then(|| base.to_owned())
}

fn matcher(pattern: &str, glob: &str) -> Result<GlobMatcher, Error> {
    GlobBuilder::new(glob)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| Error::BadPattern { pattern: pattern.to_owned(), message: error.kind().to_string() })
}

fn wildcard_at(pattern: &str) -> Option<usize> {
    pattern.find(['*', '?', '[', '{', '\\'])
}

fn location_of(pattern: &str, path: &Path) -> Result<Location, Error> {
    Location::from_absolute_path(normal(path))
        .map_err(|error| Error::BadPattern { pattern: pattern.to_owned(), message: error.to_string() })
}

/// Without `.` and `..`, which object stores do not know.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.csv", "a.csv", "c.txt", ".hidden.csv", "sub/d.csv", "sub/deep/e.csv", "x[1].csv"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        dir
    }

    async fn names(dir: &Path, patterns: &[&str]) -> Result<Vec<String>, Error> {
        let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
        Ok(list(&patterns, dir).await?.iter().map(|object| object.path.to_string()).collect())
    }

    #[tokio::test]
    async fn globs_match_what_a_shell_would() {
        let dir = tree();
        let at = dir.path();
        assert_eq!(names(at, &["[ab].csv"]).await.unwrap(), ["a.csv", "b.csv"]);
        assert_eq!(names(at, &["*.{csv,txt}"]).await.unwrap(), ["a.csv", "b.csv", "c.txt", "x[1].csv"]);
        assert_eq!(names(at, &["sub/*.csv"]).await.unwrap(), ["sub/d.csv"]);
        assert_eq!(names(at, &["sub/**/*.csv"]).await.unwrap(), ["sub/d.csv", "sub/deep/e.csv"]);
        assert_eq!(names(at, &["*/?.csv"]).await.unwrap(), ["sub/d.csv"]);
        assert_eq!(names(at, &[".h*"]).await.unwrap(), [".hidden.csv"]);
        assert_eq!(names(at, &["x\\[1\\].csv"]).await.unwrap(), ["x[1].csv"]);
    }

    #[tokio::test]
    async fn a_listing_is_sorted_without_repeats_whatever_the_patterns_order() {
        let dir = tree();
        let found = names(dir.path(), &["c.txt", "./sub/../b.csv", "[ab].csv", "a.csv"]).await.unwrap();
        assert_eq!(found, ["a.csv", "./sub/../b.csv", "c.txt"]);
        let absolute = dir.path().join("*.txt").display().to_string();
        let found = names(Path::new("/"), &[&format!("file://{absolute}")]).await.unwrap();
        assert_eq!(found, [dir.path().join("c.txt").display().to_string()]);
    }

    #[tokio::test]
    async fn what_is_not_there_is_told_apart() {
        let dir = tree();
        let error = |pattern: &'static str| {
            let at = dir.path().to_owned();
            async move { names(&at, &[pattern]).await.unwrap_err() }
        };
        assert!(
            matches!(error("none.csv").await, Error::NotFound { path, base: Some(_) } if path == "none.csv")
        );
        assert!(matches!(error("none/*.csv").await, Error::EmptyGlob { .. }));
        assert!(matches!(error("*.parquet").await, Error::EmptyGlob { .. }));
        let told = error("none.csv").await.to_string();
        assert_eq!(told, format!("none.csv: no such file in {}", dir.path().display()));
        assert_eq!(error("/none.csv").await.to_string(), "/none.csv: no such file");
        assert!(error("sub").await.to_string().contains("is a directory"));
        assert!(matches!(error("[a").await, Error::BadPattern { .. }));
        assert_eq!(error("gs://bucket/*").await.to_string(), "gs://bucket/*: not built yet: gs://");
    }

    #[tokio::test]
    async fn a_file_changed_after_listing_is_refused() {
        let dir = tree();
        let objects = list(&["a.csv".to_owned(), "b.csv".to_owned()], dir.path()).await.unwrap();
        assert_eq!(objects[0].read(1..5).await.unwrap(), ".csv");
        std::fs::write(dir.path().join("a.csv"), "other bytes").unwrap();
        std::fs::remove_file(dir.path().join("b.csv")).unwrap();
        for object in &objects {
            assert!(matches!(object.read(0..1).await, Err(Error::Changed { path }) if path == *object.path));
        }
    }
}
