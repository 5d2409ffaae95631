//! Listings: resolves a path or a glob to objects.
//!
//! A glob is listed from its longest prefix without wildcards, page by page. If it does not cross directories, only a
//! single directory is listed. 100,000 objects are a hundred pages, of which one is held at a time besides the matches.
//!
//! **Inconsistent listings.** Cloud stores list in key order, and responses are checked against it: a key that occurs
//! twice or out of order makes the listing inconsistent. So does a page that does not start where the previous one
//! ended. To check this, each page request is paired with a second request for the first key after the last one listed,
//! which does not use a continuation token. An inconsistent listing is repeated, and rejected if it stays inconsistent.
//! Two omissions cannot be detected: an object missing from both responses, and an object missing at the end of the
//! last page. Directory buckets of S3 Express list in no order; name their objects one by one.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use futures::TryStreamExt;
use globset::{GlobBuilder, GlobMatcher};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path as Location;
use object_store::{ListResult, ObjectMeta, ObjectStoreExt};

use super::Stores;
use super::address::{self, Address, Scheme};
use super::client::Store;
use super::object::Object;
use crate::Error;

/// The number of attempts before a listing is rejected as inconsistent.
const LISTINGS: usize = 3;

/// Lists all objects that `pattern` matches.
pub(super) async fn resolve(stores: &Stores, pattern: &str, base: &Path) -> Result<Vec<Object>, Error> {
    let address = Address::parse(pattern)?;
    let store = stores.store(&address).await.map_err(|source| Error::storage(pattern, source))?;
    if address.scheme == Scheme::File {
        return match wildcard_at(address.path) {
            None => find_file(stores, store, pattern, address.path, base).await.map(|object| vec![object]),
            Some(at) => expand_files(stores, store, address.path, at, base).await,
        };
    }
    let used = store.clients();
    let listed = remote(stores, Arc::clone(&store), pattern, address.path).await;
    if let Err(Error::Storage { source, .. }) = &listed
        && matches!(**source, object_store::Error::Unauthenticated { .. })
    {
        // The token may have been revoked.
        store.renew(&used);
        return remote(stores, store, pattern, address.path).await;
    }
    listed
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
            clients.control.list(Some(&prefix)).try_collect().await.map_err(failed)?
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
        match list_once(pages, question).await.map_err(|source| Error::storage(pattern, source))? {
            Ok(listed) => return Ok(listed),
            Err(what) => {
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
    question: &Question<'_>,
) -> object_store::Result<Result<Vec<ObjectMeta>, String>> {
    let mut objects: Vec<ObjectMeta> = Vec::new();
    let mut seam = Seam::default();
    let mut page_token = None;
    loop {
        let options = PaginatedListOptions { page_token: page_token.take(), ..question.options() };
        let page = pages.list_paginated(question.prefix, options);
        let page = match seam.after().filter(|_| question.goes_on_after) {
            None => page.await?,
            Some(after) => {
                let offset = Some(after);
                let probe = PaginatedListOptions { offset, max_keys: Some(1), ..question.options() };
                let (page, probe) = futures::try_join!(page, pages.list_paginated(question.prefix, probe))?;
                if let Some(fault) = seam.fault(&page.result, &probe.result) {
                    return Ok(Err(fault));
                }
                page
            }
        };
        if let Some(fault) = seam.pass(&page.result) {
            return Ok(Err(fault));
        }
        objects.extend(page.result.objects);
        page_token = page.page_token.filter(|token| !token.is_empty());
        if page_token.is_none() {
            return Ok(Ok(objects));
        }
    }
}

/// The boundary between two pages.
///
/// Empty objects are ignored: they may be directory markers, whose keys are not reported completely.
#[derive(Default)]
struct Seam {
    /// The last key or directory so far.
    last: Option<String>,
}

impl Seam {
    /// The key after which the next page starts.
    fn after(&self) -> Option<String> {
        let last = self.last.as_ref()?;
        // All keys of a directory are listed as one entry, so the next page starts after all of them.
        Some(if last.ends_with('/') { format!("{last}\u{10FFFF}") } else { last.clone() })
    }

    /// The inconsistency of a page with `probe`, an independent response that starts with the next key.
    fn fault(&self, page: &ListResult, probe: &ListResult) -> Option<String> {
        if probe.objects.iter().any(|object| object.size == 0) {
            return None;
        }
        let (first, expected) = (keys(page).next(), keys(probe).next());
        let [last, first, expected] = [self.last.clone(), first, expected].map(Option::unwrap_or_default);
        (first != expected)
            .then(|| format!("after `{last}` comes `{expected}` in one response and `{first}` in another"))
    }

    /// Advances past `page`, or returns its inconsistency.
    fn pass(&mut self, page: &ListResult) -> Option<String> {
        let mut before = self.last.clone();
        for object in page.objects.iter().filter(|object| object.size > 0) {
            let key = object.location.as_ref();
            match &before {
                Some(before) if before == key => return Some(format!("`{key}` is listed twice")),
                Some(before) if before.as_str() > key => {
                    return Some(format!("`{key}` is listed after `{before}`"));
                }
                _ => before = Some(key.to_owned()),
            }
        }
        self.last = keys(page).next_back().or(self.last.take());
        None
    }
}

/// The keys of non-empty objects and the directories of a page, in order.
fn keys(page: &ListResult) -> impl DoubleEndedIterator<Item = String> {
    let objects = page.objects.iter().filter(|object| object.size > 0);
    let objects = objects.map(|object| object.location.to_string());
    let directories = page.common_prefixes.iter().map(|directory| format!("{directory}/"));
    objects.chain(directories).collect::<BTreeSet<_>>().into_iter()
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
    let listed: Result<Vec<ObjectMeta>, _> = if wanted.crosses {
        control.list(Some(&prefix)).try_collect().await
    } else {
        control.list_with_delimiter(Some(&prefix)).await.map(|found| found.objects)
    };
    let listed = match listed {
        Err(object_store::Error::NotFound { .. }) => Vec::new(),
        listed => listed.map_err(|source| Error::storage(pattern, source))?,
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
