//! The peculiarities of Azure Blob Storage: the form of listings, and uploads in blocks.
//!
//! Blocks that never become an object expire, so aborting an upload needs no request.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};

use crate::listing::{Entry, Page, escaped};
use crate::serve::decoded;
use crate::{State, lock};

/// Uncommitted blocks, by the object's name and their own.
pub(crate) type Blocks = BTreeMap<String, BTreeMap<String, Bytes>>;

/// Whether a query requests a listing in Azure's form.
pub(crate) fn is_listing(query: &BTreeMap<String, String>) -> bool {
    query.get("comp").is_some_and(|component| component == "list")
}

/// A page of a listing. Unlike in responses to reads, tags have no quotes.
pub(crate) fn listed(page: &Page) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults><Blobs>");
    for entry in &page.entries {
        // Writing to a string cannot fail.
        let _ = match entry {
            Entry::Object { key, size, tag } => write!(
                xml,
                "<Blob><Name>{}</Name><Properties><Last-Modified>Sat, 21 Nov 2026 10:00:00 GMT</Last-Modified>\
                 <Etag>{}</Etag><Content-Length>{size}</Content-Length>\
                 <Content-Type>application/octet-stream</Content-Type></Properties></Blob>",
                escaped(key),
                tag.trim_matches('"'),
            ),
            Entry::Directory(name) => {
                write!(xml, "<BlobPrefix><Name>{}</Name></BlobPrefix>", escaped(name))
            }
        };
    }
    let next = page.next.as_deref().unwrap_or_default();
    let _ = write!(xml, "</Blobs><NextMarker>{}</NextMarker></EnumerationResults>", escaped(next));
    xml
}

/// `POST` of a batch of deletions; `None` for other queries.
pub(crate) fn batch(state: &State, query: &BTreeMap<String, String>, body: &Bytes) -> Option<Response> {
    query.get("comp").filter(|component| *component == "batch")?;
    let body = String::from_utf8_lossy(body);
    let (mut answers, mut id) = (String::new(), "");
    for line in body.lines() {
        if let Some((_, found)) =
            line.split_once(": ").filter(|(name, _)| name.eq_ignore_ascii_case("content-id"))
        {
            id = found;
        }
        let Some(name) = line.strip_prefix("DELETE /").and_then(|line| line.strip_suffix(" HTTP/1.1")) else {
            continue;
        };
        let status =
            if lock(&state.objects).remove(&decoded(name)) { "202 Accepted" } else { "404 Not Found" };
        // Writing to a string cannot fail.
        let _ = write!(
            answers,
            "--batch\r\nContent-Type: application/http\r\nContent-ID: {id}\r\n\r\nHTTP/1.1 {status}\r\n\
             x-ms-version: 2023-11-03\r\n\r\n\r\n"
        );
    }
    answers += "--batch--\r\n";
    Some(
        (StatusCode::ACCEPTED, [("content-type", "multipart/mixed; boundary=batch")], answers)
            .into_response(),
    )
}

/// `PUT` of a block, or of the list of blocks that form an object; `None` for other queries.
pub(crate) fn put(
    state: &State,
    name: &str,
    query: &BTreeMap<String, String>,
    body: &Bytes,
) -> Option<Response> {
    let mut blocks = lock(&state.blocks);
    match query.get("comp")?.as_str() {
        "block" => {
            let block = query.get("blockid")?.clone();
            blocks.entry(name.to_owned()).or_default().insert(block, body.clone());
            Some(StatusCode::CREATED.into_response())
        }
        "blocklist" => {
            let given = blocks.remove(name).unwrap_or_default();
            let list = String::from_utf8_lossy(body);
            let named = list.split("<Uncommitted>").skip(1).filter_map(|rest| rest.split('<').next());
            let mut whole = BytesMut::new();
            for block in named {
                let Some(bytes) = given.get(block) else {
                    return Some((StatusCode::BAD_REQUEST, "InvalidBlockList").into_response());
                };
                whole.extend_from_slice(bytes);
            }
            let stored = lock(&state.objects).put(name, whole.freeze());
            Some((StatusCode::CREATED, [("etag", stored.tag())]).into_response())
        }
        _ => None,
    }
}
