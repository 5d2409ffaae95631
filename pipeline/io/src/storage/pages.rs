//! What the pages of a listing must satisfy: they continue one another, come to an end, and hold a bounded number of
//! objects.

use std::collections::BTreeSet;

use object_store::{ListResult, ObjectMeta};

use crate::Error;

/// The maximum number of objects of a listing, and of a dataset's files. A server can list objects without end; a dataset
/// could not use more, because each file is at least one of its splits.
pub(super) const MAX_OBJECTS: usize = 1 << 20;
/// The maximum size of the keys and tags of a listing: 128 bytes per object at that number.
const MAX_LISTED_BYTES: usize = 128 << 20;
/// The maximum number of consecutive pages without an object or directory. Azure sends a few.
const MAX_EMPTY_PAGES: usize = 1_000;

/// Listed objects, within the bounds of a listing.
pub(super) struct Listed<'a> {
    pattern: &'a str,
    pub(super) objects: Vec<ObjectMeta>,
    /// Of keys and tags.
    bytes: usize,
}

impl<'a> Listed<'a> {
    pub(super) fn new(pattern: &'a str) -> Self {
        Self { pattern, objects: Vec::new(), bytes: 0 }
    }

    pub(super) fn push(&mut self, object: ObjectMeta) -> Result<(), Error> {
        // The tag becomes a header of each read, for which `object_store` does not check it.
        if object.e_tag.as_ref().is_some_and(|tag| !is_header(tag)) {
            let message = format!("the tag of {:?} has invalid characters", object.location.as_ref());
            return Err(Error::Listing { pattern: self.pattern.to_owned(), message });
        }
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.bytes += object.location.as_ref().len() + text(&object.e_tag) + text(&object.version);
        if self.objects.len() == MAX_OBJECTS {
            return Err(too_many(self.pattern));
        }
        if self.bytes > MAX_LISTED_BYTES {
            let limit = format!("{MAX_LISTED_BYTES} bytes of names");
            return Err(Error::TooManyObjects { pattern: self.pattern.to_owned(), limit });
        }
        self.objects.push(object);
        Ok(())
    }
}

fn is_header(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// The error of more objects than a listing may have.
pub(super) fn too_many(pattern: &str) -> Error {
    Error::TooManyObjects { pattern: pattern.to_owned(), limit: format!("{MAX_OBJECTS} objects") }
}

/// Whether the pages of a listing come to an end.
#[derive(Default)]
pub(super) struct Course {
    pages: usize,
    /// Consecutive pages without an object or directory.
    empty: usize,
    /// The token of the last page whose number was a power of two. A cycle of tokens repeats one of these (Brent's
    /// algorithm), so that the others need not be kept.
    token: Option<String>,
}

impl Course {
    /// Advances past `page`, which names the `next` one, or returns why the listing may never end.
    pub(super) fn pass(&mut self, page: &ListResult, next: Option<&str>) -> Option<String> {
        let next = next?;
        self.pages += 1;
        let is_empty = page.objects.is_empty() && page.common_prefixes.is_empty();
        self.empty = if is_empty { self.empty + 1 } else { 0 };
        if self.token.as_deref() == Some(next) {
            return Some(format!("the continuation token of page {} repeats an earlier one", self.pages));
        }
        if self.empty > MAX_EMPTY_PAGES {
            return Some(format!("more than {MAX_EMPTY_PAGES} consecutive pages contain no object"));
        }
        if self.pages.is_power_of_two() {
            self.token = Some(next.to_owned());
        }
        None
    }
}

/// The boundary between two pages.
///
/// Empty objects are ignored: they may be directory markers, whose keys are not reported completely.
#[derive(Default)]
pub(super) struct Seam {
    /// The last key or directory so far.
    last: Option<String>,
}

impl Seam {
    /// The key after which the next page starts.
    pub(super) fn after(&self) -> Option<String> {
        let last = self.last.as_ref()?;
        // All keys of a directory are listed as one entry, so the next page starts after all of them.
        Some(if last.ends_with('/') { format!("{last}\u{10FFFF}") } else { last.clone() })
    }

    /// The inconsistency of a page with `probe`, an independent response that starts with the next key.
    pub(super) fn fault(&self, page: &ListResult, probe: &ListResult) -> Option<String> {
        if probe.objects.iter().any(|object| object.size == 0) {
            return None;
        }
        let (first, expected) = (keys(page).next(), keys(probe).next());
        let [last, first, expected] = [self.last.clone(), first, expected].map(Option::unwrap_or_default);
        (first != expected)
            .then(|| format!("after `{last}` comes `{expected}` in one response and `{first}` in another"))
    }

    /// Advances past `page`, or returns its inconsistency.
    pub(super) fn pass(&mut self, page: &ListResult) -> Option<String> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use object_store::path::Path;

    use super::*;

    fn object(key: String) -> ObjectMeta {
        let last_modified = std::time::SystemTime::UNIX_EPOCH.into();
        ObjectMeta { location: Path::from(key), last_modified, size: 1, e_tag: None, version: None }
    }

    #[test]
    fn a_listing_without_end_is_an_error() {
        let mut listed = Listed::new("gs://b/*");
        let error = (0..).find_map(|at: u32| listed.push(object(at.to_string())).err()).unwrap();
        assert_eq!(listed.objects.len(), MAX_OBJECTS);
        assert!(error.to_string().starts_with("gs://b/*: more than 1048576 objects were listed"), "{error}");
        let mut listed = Listed::new("gs://b/*");
        let error = (0..)
            .find_map(|at: u32| listed.push(object(format!("{}{}", "0".repeat(999_999), at % 10))).err())
            .unwrap();
        assert!(error.to_string().contains("134217728 bytes of names"), "{error}");
        assert_eq!(listed.objects.len(), MAX_LISTED_BYTES / 1_000_000);
    }

    #[test]
    fn a_tag_that_is_no_header_is_an_error() {
        for (tag, is_valid) in [("\"0x8D\"", true), ("W/\"a b\"", true), ("a\n", false), ("\u{e9}", false)] {
            let object = ObjectMeta { e_tag: Some(tag.to_owned()), ..object("a".to_owned()) };
            assert_eq!(Listed::new("gs://b/*").push(object).is_ok(), is_valid, "{tag:?}");
        }
    }

    #[test]
    fn pages_without_end_are_an_error() {
        let page = |objects: Vec<ObjectMeta>| ListResult {
            objects,
            common_prefixes: Vec::new(),
            extensions: Default::default(),
        };
        let full = page(vec![object("a".to_owned())]);
        for (start, cycle) in [(0, 1), (3, 1), (5, 7), (100, 64), (1, 1000)] {
            let mut course = Course::default();
            let token = |at: usize| if at < start { at } else { start + (at - start) % cycle };
            let ends = (0..10_000).position(|at| course.pass(&full, Some(&token(at).to_string())).is_some());
            assert!(ends.unwrap() <= 4 * (start + cycle), "{start} {cycle}: {ends:?}");
        }
        let mut course = Course::default();
        let ends = (0..).position(|at: u32| course.pass(&page(Vec::new()), Some(&at.to_string())).is_some());
        assert_eq!(ends.unwrap(), MAX_EMPTY_PAGES);
        let mut course = Course::default();
        assert!((0..10_000).all(|at: u32| course.pass(&full, Some(&at.to_string())).is_none()));
    }
}
