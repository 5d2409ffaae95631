//! HTTP requests and responses.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Query, State as Shared};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::time::{Instant, sleep, sleep_until};

use crate::fault::Fault;
use crate::objects::Stored;
use crate::{State, azure, listing, lock, upload};

/// Bytes per chunk of a body.
const CHUNK: usize = 64 << 10;
const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

pub(crate) fn router(state: Arc<State>) -> Router {
    Router::new().fallback(respond_to).layer(DefaultBodyLimit::disable()).with_state(state)
}

async fn respond_to(
    Shared(state): Shared<Arc<State>>,
    method: Method,
    uri: Uri,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    sleep(state.options.latency).await;
    if headers.contains_key("metadata-flavor") {
        return metadata(&state, uri.path());
    }
    if state.options.tokens && !is_known(&state, &headers) {
        return (StatusCode::UNAUTHORIZED, "unknown token").into_response();
    }
    let path = decoded(uri.path());
    let name = path.trim_start_matches('/');
    match (method.as_str(), name.split_once('/')) {
        ("GET", None | Some((_, ""))) => listing::list(&state, name.trim_end_matches('/'), &query),
        ("GET", _) => read(&state, name, &query, &headers, true).await,
        ("HEAD", _) => read(&state, name, &query, &headers, false).await,
        ("PUT", _) => write(&state, name, &query, &headers, body).await,
        ("POST", _) => {
            azure::batch(&state, &query, &body).unwrap_or_else(|| upload::post(&state, name, &query))
        }
        ("DELETE", _) => upload::delete(&state, name, &query),
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

async fn write(
    state: &State,
    name: &str,
    query: &BTreeMap<String, String>,
    headers: &HeaderMap,
    body: Bytes,
) -> Response {
    let fault = lock(&state.script).for_write();
    match fault {
        Some(Fault::WriteStatus(status)) => return scripted(status),
        Some(Fault::WriteSilence(time)) => sleep(time).await,
        _ => {}
    }
    azure::put(state, name, query, &body).unwrap_or_else(|| upload::put(state, name, query, headers, body))
}

pub(crate) fn scripted(status: u16) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, "scripted fault").into_response()
}

/// The metadata server of a virtual machine.
fn metadata(state: &State, path: &str) -> Response {
    let flavor = [("metadata-flavor", "Google")];
    if path != TOKEN {
        return (flavor, "computeMetadata/").into_response();
    }
    let mut tokens = lock(&state.tokens);
    let token = tokens.next;
    tokens.next += 1;
    let json =
        format!("{{\"access_token\": \"token-{token}\", \"expires_in\": 3600, \"token_type\": \"Bearer\"}}");
    (flavor, [("content-type", "application/json")], json).into_response()
}

fn is_known(state: &State, headers: &HeaderMap) -> bool {
    let token = headers
        .get("authorization")
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer token-")?.parse::<u64>().ok());
    let tokens = lock(&state.tokens);
    token.is_some_and(|token| (tokens.valid_from..tokens.next).contains(&token))
}

async fn read(
    state: &Arc<State>,
    name: &str,
    query: &BTreeMap<String, String>,
    headers: &HeaderMap,
    with_body: bool,
) -> Response {
    let mut fault = None;
    if with_body {
        // Before responding, because the client may disconnect first.
        lock(&state.objects).count(name);
        fault = lock(&state.script).for_read();
    }
    match fault {
        Some(Fault::Status(status)) => return scripted(status),
        Some(Fault::Silence(time)) => sleep(time).await,
        Some(Fault::Change) => {
            let mut objects = lock(&state.objects);
            if let Some(stored) = objects.get(name) {
                objects.put(name, stored.bytes.iter().rev().copied().collect());
            }
        }
        _ => {}
    }
    let stored = lock(&state.objects).get(name);
    let Some(stored) = stored else { return StatusCode::NOT_FOUND.into_response() };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if header("if-match").is_some_and(|tag| tag != stored.tag() && tag != "*") {
        return StatusCode::PRECONDITION_FAILED.into_response();
    }
    if query.get("generation").is_some_and(|wanted| *wanted != stored.generation.to_string()) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let size = stored.bytes.len();
    let range = match header("range").filter(|_| fault != Some(Fault::NoRange)) {
        None => None,
        Some(range) => match parse_range(range, size) {
            Some(range) => Some(range),
            None => return StatusCode::RANGE_NOT_SATISFIABLE.into_response(),
        },
    };
    respond(state, name, &stored, range, fault, with_body)
}

fn respond(
    state: &Arc<State>,
    name: &str,
    stored: &Stored,
    range: Option<Range<usize>>,
    fault: Option<Fault>,
    with_body: bool,
) -> Response {
    let size = stored.bytes.len();
    let wanted = range.clone().unwrap_or(0..size);
    let mut length = wanted.len();
    if fault == Some(Fault::Short) {
        length /= 2;
    }
    let mut response = Response::builder()
        .header("etag", stored.tag())
        .header("x-goog-generation", stored.generation)
        .header("last-modified", "Sat, 21 Nov 2026 10:00:00 GMT")
        .header("accept-ranges", "bytes")
        .header("content-length", length);
    if range.is_some() {
        let content_range = format!("bytes {}-{}/{size}", wanted.start, wanted.end.saturating_sub(1));
        response = response.status(StatusCode::PARTIAL_CONTENT).header("content-range", content_range);
    }
    let body = if with_body {
        let mut bytes = stored.bytes.slice(wanted.start..wanted.start + length);
        if fault == Some(Fault::Corrupt) && !bytes.is_empty() {
            let mut wrong = bytes.to_vec();
            wrong[length / 2] ^= 1;
            bytes = wrong.into();
        }
        Body::from_stream(body(Arc::clone(state), name.to_owned(), bytes, fault))
    } else {
        Body::empty()
    };
    response
        .body(body)
        .unwrap_or_else(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response())
}

/// A body, altered by the fault, at the link's speed. Counts the bytes sent.
fn body(
    state: Arc<State>,
    name: String,
    bytes: Bytes,
    fault: Option<Fault>,
) -> impl Stream<Item = io::Result<Bytes>> {
    let whole = bytes.len();
    let cut = match fault {
        Some(Fault::Reset) => Some(0),
        Some(Fault::Cut(after)) => Some(after.min(whole.saturating_sub(1))),
        _ => None,
    };
    let size = if let Some(Fault::Trickle(rate)) = fault { (rate as usize / 10).max(1) } else { CHUNK };
    let starts = (0..whole).step_by(size).chain((whole == 0).then_some(0));
    futures::stream::iter(starts).then(move |start| {
        let (state, name) = (Arc::clone(&state), name.clone());
        let end = (start + size).min(cut.unwrap_or(whole)).min(whole);
        let chunk = if start < end { bytes.slice(start..end) } else { Bytes::new() };
        async move {
            match fault {
                Some(Fault::Stall(time)) if start <= whole / 2 && whole / 2 < start + size => {
                    sleep(time).await;
                }
                Some(Fault::Trickle(_)) => sleep(Duration::from_millis(100)).await,
                _ => {}
            }
            if cut.is_some_and(|cut| start >= cut) {
                return Err(io::Error::from(io::ErrorKind::ConnectionReset));
            }
            pass(&state, chunk.len()).await;
            lock(&state.objects).add(&name, chunk.len() as u64);
            Ok(chunk)
        }
    })
}

/// Waits until the simulated link has sent `bytes` bytes.
async fn pass(state: &State, bytes: usize) {
    let Some(rate) = state.options.bytes_per_second else { return };
    let until = {
        let mut free = lock(&state.line);
        let start = free.unwrap_or_else(Instant::now).max(Instant::now());
        let end = start + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        *free = Some(end);
        end
    };
    sleep_until(until).await;
}

/// `bytes=FIRST-[LAST]` or `bytes=-SUFFIX`, within `size`.
fn parse_range(text: &str, size: usize) -> Option<Range<usize>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first, last) {
        ("", suffix) => size.saturating_sub(suffix.parse().ok()?)..size,
        (first, "") => first.parse().ok()?..size,
        (first, last) => first.parse().ok()?..last.parse::<usize>().ok()?.saturating_add(1).min(size),
    };
    (range.start < range.end).then_some(range)
}

pub(crate) fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail
            .get(..2)
            .filter(|_| byte == b'%')
            .and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
