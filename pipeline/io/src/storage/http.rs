//! The HTTP transport below the clients that read: error responses keep their status.
//!
//! `object_store` retries by itself and reports most error responses only as text. Reads are instead retried by
//! [`crate::fetch`], which knows the bytes received so far, the deadline and the number of streams. So this transport
//! converts each status for which `object_store` has no error into an error that carries the status.

use std::error::Error as StdError;
use std::fmt;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

/// Connects like `object_store`'s default, but with its own handling of error responses.
#[derive(Debug, Default)]
pub(super) struct Connector(ReqwestConnector);

#[derive(Debug)]
struct Service(HttpClient);

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    /// The start of the service's message.
    said: String,
}

/// The maximum number of characters of the message to report.
const MAX_SAID: usize = 200;

impl Refused {
    /// Whether the service requests a lower rate.
    pub(crate) fn is_throttling(&self) -> bool {
        matches!(self.status, 429 | 503)
    }

    /// Whether a retry of the same request may succeed.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.status, 408 | 429 | 500..)
    }

    /// The error response that caused `error`, if any.
    pub(crate) fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(refused) = error.downcast_ref::<Self>() {
                return Some(refused.clone());
            }
            cause = error.source();
        }
        None
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = if self.said.is_empty() { "" } else { ": " };
        write!(f, "the storage service responded with status {}{gap}{}", self.status, self.said)
    }
}

impl StdError for Refused {}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service(self.0.connect(options)?)))
    }
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.execute(request).await?;
        match response.status().as_u16() {
            // Successes, and those that `object_store` has errors for.
            200..300 | 304 | 401 | 403 | 404 | 409 | 412 => Ok(response),
            status => {
                let body = response.into_body().bytes().await.unwrap_or_default();
                let said = String::from_utf8_lossy(&body[..body.len().min(4 * MAX_SAID)]);
                let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
                let said = said.chars().take(MAX_SAID).collect();
                Err(HttpError::new(HttpErrorKind::Unknown, Refused { status, said }))
            }
        }
    }
}
