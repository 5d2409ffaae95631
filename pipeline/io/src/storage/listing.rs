//! Listings: resolves a path or a glob to objects.
//!
//! A glob is listed from its longest prefix without wildcards, page by page. If it does not cross directories, only a
//! single directory is listed. 100,000 objects are a hundred pages, of which one is held at a time besides the matches.
//!
//! **Inconsistent listings.** Cloud stores list in key order, and responses are checked against it: a key that occurs
//! twice or out of order makes the listing inconsistent. So does a page that does not start where the previous one
//! ended. To check this, each page request is paired with a second request for the first key after the last one listed,
//! which does not use a continuation token. An inconsistent listing is repeated, and rejected if it stays inconsistent.
//! Pages whose continuation tokens form a cycle make it inconsistent, too, and so do many pages without an object.
//! Two omissions cannot be detected: an object missing from both responses, and an object missing at the end of the
//! last page. Directory buckets of S3 Express list in no order; name their objects one by one.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use globset::{GlobBuilder, GlobMatcher};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path as Location;
use object_store::{ObjectMeta, ObjectStoreExt};

use super::Stores;
use super::address::{self, Address, Scheme};
use super::catalog::Reference;
use super::client::Store;
use super::local::DescriptorWait;
use super::object::Object;
use super::pages::{Course, Listed, Seam};
use crate::{Error, redact};

/// The number of attempts before a listing is rejected as inconsistent.
const LISTINGS: usize = 3;

/// Lists all objects that `pattern` matches.
pub(super) async fn resolve(stores: &Stores, pattern: &str, base: &Path) -> Result<Vec<Object>, Error> {
    if let Some(dataset) = Reference::in_place_of_path(pattern)? {
        // Its files are listed in turn.
        return Box::pin(stores.list_dataset(&dataset)).await;
    }
    let address = Address::parse(pattern)?;
    let mut wait = DescriptorWait::new(pattern, stores.spec.deadline());
    loop {
        let store = stores.store(&address).await.map_err(|source| Error::storage(pattern, source));
        let listed = match (store, address.scheme) {
            (Ok(store), Scheme::File) => local(stores, store, pattern, address.path, base).await,
            (Ok(store), _) => authorized(stores, store, pattern, address.path).await,
            (Err(error), _) => Err(error),
        };
        match listed {
            Err(error) => wait.after(error).await?,
            Ok(listed) => return Ok(listed),
        }
    }
}

/// Lists a remote pattern, again with new credentials if the service rejects the current ones.
async fn authorized(
    stores: &Stores,
    store: Arc<Store>,
    pattern: &str,
    path: &str,
) -> Result<Vec<Object>, Error> {
    let used = store.clients();
    let listed = remote(stores, Arc::clone(&store), pattern, path).await;
    if let Err(Error::Storage { error, .. }) = &listed
        && matches!(*error.0, object_store::Error::Unauthenticated { .. })
    {
        // The token may have been revoked.
        store.renew(&used);
        return remote(stores, store, pattern, path).await;
    }
    listed
}

async fn local(
    stores: &Stores,
    store: Arc<Store>,
    pattern: &str,
    path: &str,
    base: &Path,
) -> Result<Vec<Object>, Error> {
    match wildcard_at(path) {
        None => find_file(stores, store, pattern, path, base).await.map(|object| vec![object]),
        Some(at) => expand_files(stores, store, path, at, base).await,
    }
}

async fn remote(stores: &Stores, store: Arc<Store>, pattern: &str, path: &str) -> Result<Vec<Object>, Error> {
    match wildcard_at(path) {
        None => find(stores, store, pattern, path).await.map(|object| vec![object]),
        Some(at) => expand(stores, store, pattern, path, at).await,
    }
}

async fn find(stores: &Stores, store: Arc<Store>, pattern: &str, key: &str) -> Result<Object, Error> {
    let location = address::location(pattern, key)?;
    match store.clients().control.head(&location).await {
        Ok(meta) => Ok(Object::new(pattern.into(), store, meta, stores)),
        Err(object_store::Error::NotFound { .. }) => {
            Err(Error::NotFound { path: pattern.to_owned(), base: None })
        }
        Err(source) => Err(Error::storage(pattern, source)),
    }
}

/// All objects that a glob matches; `at` is the position of its first wildcard.
async fn expand(
    stores: &Stores,
    store: Arc<Store>,
    pattern: &str,
    path: &str,
    at: usize,
) -> Result<Vec<Object>, Error> {
    let directory = path[..at].rfind('/').map_or(0, |slash| slash + 1);
    let wanted = Wanted::new(pattern, &path[directory..])?;
    let clients = store.clients();
    let failed = |source| Error::storage(pattern, source);
    let mut listed = match &clients.pages {
        Some(pages) => {
            let question = Question {
                prefix: (at > 0).then_some(&path[..at]),
                recursive: wanted.crosses,
                goes_on_after: store.goes_on_after(),
            };
            list_pages(pages.as_ref(), pattern, &question).await?
        }
        None => {
            let prefix = Location::parse(&path[..directory]).map_err(|error| failed(error.into()))?;
            collect(clients.control.list(Some(&prefix)), pattern).await?
        }
    };
    drop_markers(&mut listed);
    let objects: Vec<Object> = (listed.into_iter())
        .filter(|meta| meta.location.as_ref().get(directory..).is_some_and(|rest| wanted.matches(rest)))
        .map(|meta| {
            let path = format!("{}/{}", store.root, meta.location);
            Object::new(path.into(), store.clone(), meta, stores)
        })
        .collect();
    if objects.is_empty() {
        return Err(Error::EmptyGlob { pattern: pattern.to_owned(), base: None });
    }
    Ok(objects)
}

/// Lists the objects with the given `prefix`, repeatedly until a listing is consistent.
async fn list_pages(
    pages: &dyn PaginatedListStore,
    pattern: &str,
    question: &Question<'_>,
) -> Result<Vec<ObjectMeta>, Error> {
    let mut fault = String::new();
    for _ in 0..LISTINGS {
        match list_once(pages, pattern, question).await? {
            Ok(listed) => return Ok(listed),
            Err(what) => {
                let pattern = &*redact(pattern);
                tracing::warn!(pattern, fault = what, "repeating an inconsistent listing");
                fault = what;
            }
        }
    }
    Err(Error::Listing { pattern: pattern.to_owned(), message: fault })
}

/// The parameters of a paginated listing.
struct Question<'a> {
    prefix: Option<&'a str>,
    /// Whether to include subdirectories of the prefix.
    recursive: bool,
    /// Whether the service can list after a given key, so that page boundaries can be checked.
    goes_on_after: bool,
}

impl Question<'_> {
    fn options(&self) -> PaginatedListOptions {
        let delimiter = (!self.recursive).then(|| "/".into());
        PaginatedListOptions { delimiter, ..PaginatedListOptions::default() }
    }
}

/// Lists once; returns the objects, or the inconsistency found.
async fn list_once(
    pages: &dyn PaginatedListStore,
    pattern: &str,
    question: &Question<'_>,
) -> Result<Result<Vec<ObjectMeta>, String>, Error> {
    let failed = |source| Error::storage(pattern, source);
    let mut listed = Listed::new(pattern);
    let mut seam = Seam::default();
    let mut course = Course::default();
    let mut page_token = None;
    loop {
        let options = PaginatedListOptions { page_token: page_token.take(), ..question.options() };
        let page = pages.list_paginated(question.prefix, options);
        let page = match seam.after().filter(|_| question.goes_on_after) {
            None => page.await.map_err(failed)?,
            Some(after) => {
                let offset = Some(after);
                let probe = PaginatedListOptions { offset, max_keys: Some(1), ..question.options() };
                let probe = pages.list_paginated(question.prefix, probe);
                let (page, probe) = futures::try_join!(page, probe).map_err(failed)?;
                if let Some(fault) = seam.fault(&page.result, &probe.result) {
                    return Ok(Err(fault));
                }
                page
            }
        };
        page_token = page.page_token.filter(|token| !token.is_empty());
        let fault = seam.pass(&page.result).or_else(|| course.pass(&page.result, page_token.as_deref()));
        if let Some(fault) = fault {
            return Ok(Err(fault));
        }
        for object in page.result.objects {
            listed.push(object)?;
        }
        if page_token.is_none() {
            return Ok(Ok(listed.objects));
        }
    }
}

/// Collects a listing without pages.
async fn collect(
    mut objects: BoxStream<'_, object_store::Result<ObjectMeta>>,
    pattern: &str,
) -> Result<Vec<ObjectMeta>, Error> {
    let mut listed = Listed::new(pattern);
    while let Some(object) = objects.try_next().await.map_err(|source| Error::storage(pattern, source))? {
        listed.push(object)?;
    }
    Ok(listed.objects)
}

/// Removes the empty objects that consoles create as directory markers.
fn drop_markers(listed: &mut Vec<ObjectMeta>) {
    let directories: BTreeSet<String> = listed
        .iter()
        .flat_map(|meta| {
            let key = meta.location.as_ref();
            key.match_indices('/').map(|(at, _)| key[..at].to_owned()).collect::<Vec<_>>()
        })
        .collect();
    listed.retain(|meta| meta.size > 0 || !directories.contains(meta.location.as_ref()));
}

async fn find_file(
    stores: &Stores,
    store: Arc<Store>,
    pattern: &str,
    path: &str,
    base: &Path,
) -> Result<Object, Error> {
    let base_of_path = base_of(path, base);
    let path = base.join(path);
    let location = location_of(pattern, &path)?;
    match store.clients().control.head(&location).await {
        Ok(meta) => Ok(Object::new(pattern.into(), store, meta, stores)),
        Err(object_store::Error::NotFound { .. }) if path.is_dir() => Err(Error::BadPattern {
            pattern: pattern.to_owned(),
            message: format!(
                "is a directory; specify the files in it, such as {}/*",
                pattern.trim_end_matches('/')
            ),
        }),
        Err(object_store::Error::NotFound { .. }) => {
            Err(Error::NotFound { path: pattern.to_owned(), base: base_of_path })
        }
        Err(source) => Err(Error::storage(pattern, source)),
    }
}

/// All files that a glob matches; `at` is the position of its first wildcard.
async fn expand_files(
    stores: &Stores,
    store: Arc<Store>,
    pattern: &str,
    at: usize,
    base: &Path,
) -> Result<Vec<Object>, Error> {
    let (literal, glob) = pattern.split_at(pattern[..at].rfind('/').map_or(0, |slash| slash + 1));
    let wanted = Wanted::new(pattern, glob)?;
    let prefix = location_of(pattern, &base.join(literal))?;
    let control = &store.clients().control;
    let listed = if wanted.crosses {
        collect(control.list(Some(&prefix)), pattern).await
    } else {
        let found = control.list_with_delimiter(Some(&prefix)).await;
        let found = found.map(|found| futures::stream::iter(found.objects.into_iter().map(Ok)).boxed());
        match found {
            Ok(found) => collect(found, pattern).await,
            Err(source) => Err(Error::storage(pattern, source)),
        }
    };
    let listed = match listed {
        Err(Error::Storage { error, .. }) if matches!(*error.0, object_store::Error::NotFound { .. }) => {
            Vec::new()
        }
        listed => listed?,
    };
    let matching = listed.into_iter().filter_map(|meta| {
        let rest: Vec<String> =
            meta.location.prefix_match(&prefix)?.map(|part| part.as_ref().to_owned()).collect();
        let rest = rest.join("/");
        let path = format!("{literal}{rest}");
        wanted.matches(&rest).then(|| Object::new(path.into(), store.clone(), meta, stores))
    });
    let objects: Vec<Object> = matching.collect();
    if objects.is_empty() {
        return Err(Error::EmptyGlob { pattern: pattern.to_owned(), base: base_of(pattern, base) });
    }
    Ok(objects)
}

/// A filter for the names below a glob's directory.
struct Wanted {
    matcher: GlobMatcher,
    /// Whether names that start with a dot match.
    hidden: bool,
    /// Whether the glob matches names in subdirectories.
    crosses: bool,
}

impl Wanted {
    fn new(pattern: &str, glob: &str) -> Result<Self, Error> {
        let built = GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build();
        let matcher = built.map(|glob| glob.compile_matcher()).map_err(|error| Error::BadPattern {
            pattern: pattern.to_owned(),
            message: error.kind().to_string(),
        })?;
        let hidden = glob.split('/').any(|part| part.starts_with('.'));
        Ok(Self { matcher, hidden, crosses: glob.contains('/') || glob.contains("**") })
    }

    fn matches(&self, rest: &str) -> bool {
        !rest.is_empty()
            && (self.hidden || !rest.split('/').any(|part| part.starts_with('.')))
            && self.matcher.is_match(rest)
    }
}

/// The base directory of a path, if it is relative.
fn base_of(path: &str, base: &Path) -> Option<PathBuf> {
    Path::new(path).is_relative().then(|| base.to_owned())
}

fn wildcard_at(pattern: &str) -> Option<usize> {
    pattern.find(['*', '?', '[', '{', '\\'])
}

pub(super) fn location_of(pattern: &str, path: &Path) -> Result<Location, Error> {
    Location::from_absolute_path(normal(path))
        .map_err(|error| Error::BadPattern { pattern: pattern.to_owned(), message: error.to_string() })
}

/// Removes `.` and `..`, which object stores do not support.
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
