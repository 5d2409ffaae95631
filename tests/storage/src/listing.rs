//! Listings, in the form of S3's `ListObjectsV2` and Google's XML API, and in Azure's form.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::body::Body;
use axum::response::{IntoResponse, Response};

use crate::fault::Fault;
use crate::serve::scripted;
use crate::{State, azure, lock};

/// A page: keys and directories, and the start of the next page.
pub(crate) struct Page {
    pub(crate) entries: Vec<Entry>,
    pub(crate) next: Option<String>,
}

pub(crate) enum Entry {
    Object { key: String, size: usize, tag: String },
    Directory(String),
}

/// Responds to a request for a page.
pub(crate) fn list(state: &State, bucket: &str, query: &BTreeMap<String, String>) -> Response {
    let text = |name: &str| query.get(name).map_or("", String::as_str);
    let max = text("max-keys").parse().or_else(|_| text("maxresults").parse());
    let max = max.unwrap_or(state.options.page).min(state.options.page);
    let (prefix, delimited) = (text("prefix"), !text("delimiter").is_empty());
    let token = query.get("continuation-token").or_else(|| query.get("marker"));
    let after = text("start-after");
    let from = token
        .cloned()
        .unwrap_or_else(|| if after > prefix { format!("{after}\0") } else { prefix.to_owned() });
    let page = |from: &str| page(state, bucket, prefix, from, delimited, max);
    let page = match lock(&state.script).for_page(token.is_some()) {
        Some(Fault::ListStatus(status)) => return scripted(status),
        // The first page, which precedes the second.
        Some(Fault::RepeatPage) => page(prefix),
        Some(Fault::LosePage) => match page(&from).next {
            Some(next) => page(&next),
            None => page(&from),
        },
        _ => page(&from),
    };
    let xml = if azure::is_listing(query) { azure::listed(&page) } else { listed(&page) };
    ([("content-type", "application/xml")], Body::from(xml)).into_response()
}

fn listed(page: &Page) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult>");
    for entry in &page.entries {
        // Writing to a string cannot fail.
        let _ = match entry {
            Entry::Object { key, size, tag } => write!(
                xml,
                "<Contents><Key>{}</Key><Size>{size}</Size><ETag>{}</ETag>\
                 <LastModified>2026-11-21T10:00:00.000Z</LastModified></Contents>",
                escaped(key),
                escaped(tag),
            ),
            Entry::Directory(name) => {
                write!(xml, "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escaped(name))
            }
        };
    }
    if let Some(next) = &page.next {
        let _ = write!(xml, "<NextContinuationToken>{}</NextContinuationToken>", escaped(next));
    }
    xml.push_str("</ListBucketResult>");
    xml
}

fn page(state: &State, bucket: &str, prefix: &str, from: &str, delimited: bool, max: usize) -> Page {
    let objects = lock(&state.objects);
    let bucket = format!("{bucket}/");
    let mut page = Page { entries: Vec::new(), next: None };
    let mut directory: Option<String> = None;
    for (name, stored) in objects.from(&format!("{bucket}{prefix}"), format!("{bucket}{from}")) {
        let key = &name[bucket.len()..];
        if directory.as_ref().is_some_and(|directory| key.starts_with(directory.as_str())) {
            continue;
        }
        if page.entries.len() == max {
            page.next = Some(key.to_owned());
            break;
        }
        let below = key[prefix.len()..].find('/').filter(|_| delimited);
        page.entries.push(match below {
            Some(at) => {
                let name = key[..=prefix.len() + at].to_owned();
                directory = Some(name.clone());
                Entry::Directory(name)
            }
            None => Entry::Object { key: key.to_owned(), size: stored.bytes.len(), tag: stored.tag() },
        });
    }
    page
}

pub(crate) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}
