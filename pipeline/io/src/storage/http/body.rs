//! Bounds on the bodies of responses. A server may send a body without end, or claim a length of exabytes.
//!
//! | body of | at most |
//! |---|---|
//! | a ranged read | the range; checked by [`crate::fetch`] as the bytes arrive |
//! | a page of a listing | [`MAX_PAGE_BYTES`] |
//! | a listing by a web server (WebDAV), which has no pages | [`MAX_LISTING_BYTES`] |
//! | any other response: a token, the reply to a write | [`MAX_REPLY_BYTES`] |
//! | an error response | [`MAX_ERROR_BYTES`]; the rest is dropped |

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, RANGE};
use http_body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpRequest, HttpResponse, HttpResponseBody};

use super::Permanent;

/// Azure's pages are the largest: 5,000 keys of up to 1,024 characters, each with two kilobytes of properties.
pub(super) const MAX_PAGE_BYTES: u64 = 32 << 20;
/// About 100,000 files of a web server.
pub(super) const MAX_LISTING_BYTES: u64 = 64 << 20;
/// Tokens and replies to writes have a few kilobytes.
pub(super) const MAX_REPLY_BYTES: u64 = 1 << 20;
/// Enough for any service's error message.
pub(super) const MAX_ERROR_BYTES: u64 = 8 << 10;

/// The most bytes of the body of a successful response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Most {
    what: &'static str,
    /// `None` for a read, which is bounded by its reader.
    bytes: Option<u64>,
}

impl Most {
    pub(super) fn of(request: &HttpRequest) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let is_page = query.split('&').any(|part| part.starts_with("list-type=") || part == "comp=list");
        let (what, bytes) = match request.method().as_str() {
            "GET" if request.headers().contains_key(RANGE) => ("a read", None),
            "GET" if is_page => ("a page of a listing", Some(MAX_PAGE_BYTES)),
            "PROPFIND" => ("a listing", Some(MAX_LISTING_BYTES)),
            // The length is that of the body that a `GET` would get.
            "HEAD" => ("a look-up", None),
            _ => ("this response", Some(MAX_REPLY_BYTES)),
        };
        Self { what, bytes }
    }

    /// `response`, whose body fails when it exceeds the bound. Fails at once if its stated length does.
    pub(super) fn bound(self, response: HttpResponse) -> Result<HttpResponse, HttpError> {
        let Some(bytes) = self.bytes else { return Ok(response) };
        let stated = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        if stated.is_some_and(|stated| stated.parse::<u64>().is_ok_and(|stated| stated > bytes)) {
            return Err(self.exceeded(bytes));
        }
        Ok(response.map(|body| HttpResponseBody::new(Bounded { body, left: bytes, most: self })))
    }

    fn exceeded(self, bytes: u64) -> HttpError {
        let what = self.what;
        Permanent(format!("the server sent more than {bytes} bytes, the maximum for {what}")).into()
    }
}

/// An error response with the start of its body, in printable ASCII: it becomes part of a message, and `object_store`
/// would lose the status of a response whose body is not UTF-8.
pub(super) fn shorten(response: HttpResponse) -> HttpResponse {
    response.map(|body| HttpResponseBody::new(Shortened { body, left: MAX_ERROR_BYTES as usize }))
}

/// A body that fails when it exceeds a number of bytes.
struct Bounded {
    body: HttpResponseBody,
    left: u64,
    most: Most,
}

impl Body for Bounded {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        let bytes = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        Poll::Ready(match self.left.checked_sub(bytes as u64) {
            Some(left) => {
                self.left = left;
                frame
            }
            None => Some(Err(self.most.exceeded(self.most.bytes.unwrap_or_default()))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The start of a body, made printable.
struct Shortened {
    body: HttpResponseBody,
    left: usize,
}

impl Body for Shortened {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        // A broken body does not hide the status.
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        let Some(bytes) = frame.and_then(|frame| frame.ok()?.into_data().ok()) else {
            self.left = 0;
            return Poll::Ready(None);
        };
        let bytes: Vec<u8> = bytes.iter().take(self.left).map(|&byte| printable(byte)).collect();
        self.left -= bytes.len();
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }
}

fn printable(byte: u8) -> u8 {
    match byte {
        b' '..=b'~' => byte,
        0x80.. => b'?',
        _ => b' ',
    }
}
