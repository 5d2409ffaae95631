//! Writing objects, in one or several parts.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};

use crate::objects::Stored;
use crate::{State, lock};

type Query = BTreeMap<String, String>;

/// `PUT`: an object, or a part of one.
pub(crate) fn put(state: &State, name: &str, query: &Query, headers: &HeaderMap, body: Bytes) -> Response {
    if let (Some(upload), Some(part)) = (number(query, "uploadId"), number(query, "partNumber")) {
        return match lock(&state.uploads).get_mut(&upload) {
            None => StatusCode::NOT_FOUND.into_response(),
            Some(parts) => {
                parts.insert(part as u32, body);
                [("etag", format!("\"part-{part}\""))].into_response()
            }
        };
    }
    let mut objects = lock(&state.objects);
    if !is_allowed(headers, objects.get(name).as_ref()) {
        return StatusCode::PRECONDITION_FAILED.into_response();
    }
    let stored = objects.put(name, body);
    [("etag", stored.tag()), ("x-goog-generation", stored.generation.to_string())].into_response()
}

/// Whether the conditions of a request allow it to replace `current`, the object of its name, if there is one.
fn is_allowed(headers: &HeaderMap, current: Option<&Stored>) -> bool {
    let condition = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // Google's, which is 0 for no object.
    let generation = condition("x-goog-if-generation-match")
        .is_none_or(|wanted| wanted.parse() == Ok(current.map_or(0, |stored| stored.generation)));
    let tag = condition("if-match").is_none_or(|tag| current.is_some_and(|stored| stored.tag() == tag));
    let absence = condition("if-none-match").is_none_or(|tag| tag != "*" || current.is_none());
    generation && tag && absence
}

/// `POST`: starts or completes an upload.
pub(crate) fn post(state: &State, name: &str, query: &Query) -> Response {
    let mut uploads = lock(&state.uploads);
    let Some(upload) = number(query, "uploadId") else {
        let upload = uploads.last_key_value().map_or(1, |(last, _)| last + 1);
        uploads.insert(upload, BTreeMap::new());
        return format!(
            "<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        )
        .into_response();
    };
    let Some(parts) = uploads.remove(&upload) else { return StatusCode::NOT_FOUND.into_response() };
    let mut whole = BytesMut::new();
    parts.values().for_each(|part| whole.extend_from_slice(part));
    let stored = lock(&state.objects).put(name, whole.freeze());
    let tag = stored.tag().replace('"', "&quot;");
    let xml = format!("<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>");
    ([("x-goog-generation", stored.generation.to_string())], xml).into_response()
}

/// `DELETE`: of an object, or of an upload.
pub(crate) fn delete(state: &State, name: &str, query: &Query) -> Response {
    let existed = match number(query, "uploadId") {
        Some(upload) => lock(&state.uploads).remove(&upload).is_some(),
        None => lock(&state.objects).remove(name),
    };
    if existed { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND }.into_response()
}

fn number(query: &Query, name: &str) -> Option<u64> {
    query.get(name)?.parse().ok()
}
