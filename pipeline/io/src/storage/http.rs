//! The transport below the clients that read: refusals keep their status.
//!
//! `object_store` retries by itself and tells of most refusals only in words. Reads are retried by
//! [`crate::fetch`] instead, where the bytes that did arrive, the deadline and the number of streams are known;
//! so this transport turns each status that `object_store` has no error for into one that carries it.

use std::error::Error as StdError;
use std::fmt;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

/// Connects as `object_store` does by default, but for refusals.
#[derive(Debug, Default)]
pub(super) struct Connector(ReqwestConnector);

#[derive(Debug)]
struct Service(HttpClient);

/// A response that is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    /// The beginning of what the service says about it.
    said: String,
}

/// Characters of what a service says that are told.
const TOLD: usize = 200;

impl Refused {
    /// Whether the service asks for fewer requests.
    pub(crate) fn is_throttling(&self) -> bool {
        matches!(self.status, 429 | 503)
    }

    /// Whether the same request may be served another time.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.status, 408 | 429 | 500..)
    }

    /// The refusal that `error` came from.
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
        write!(f, "the storage service answers with status {}{gap}{}", self.status, self.said)
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
                let said = String::from_utf8_lossy(&body[..body.len().min(4 * TOLD)]);
                let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
                let said = said.chars().take(TOLD).collect();
                Err(HttpError::new(HttpErrorKind::Unknown, Refused { status, said }))
            }
        }
    }
}
