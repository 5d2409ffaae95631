//! A metadata server of a cloud: HTTP without encryption, on an address that only its VMs reach.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Time limit of a request, beyond the time that the server waits.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum size of an answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// A metadata server.
#[derive(Clone)]
pub(super) struct Server {
    /// `HOST` or `HOST:PORT`.
    address: String,
    client: Client<HttpConnector, Empty<Bytes>>,
}

/// An answer.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Server {
    pub(super) fn new(address: String) -> Self {
        Self { address, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Requests `path`; the server may take `wait` to answer.
    ///
    /// # Errors
    /// When there is no answer in time, or one that is too large.
    pub(super) async fn get(&self, path: &str, header: (&str, &str), wait: Duration) -> Result<Answer> {
        self.send(Method::GET, path, header, wait).await
    }

    /// As [`Server::get`], with another method.
    ///
    /// # Errors
    /// As for [`Server::get`].
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        header: (&str, &str),
        wait: Duration,
    ) -> Result<Answer> {
        let address = format!("http://{}{path}", self.address);
        let request = Request::builder().method(method).uri(&address).header(header.0, header.1);
        let request = request.body(Empty::new())?;
        let answer = async {
            let (head, body) = self.client.request(request).await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
            Ok::<_, anyhow::Error>((head, body))
        };
        let answer = tokio::time::timeout(wait + TIMEOUT, answer).await;
        let (head, body) = answer.context("no answer in time")?.context(address)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Answer { status: head.status, headers: head.headers, body })
    }
}

impl Answer {
    /// The body of a successful answer.
    ///
    /// # Errors
    /// When it is another one.
    pub(super) fn success(&self) -> Result<&str> {
        if !self.status.is_success() {
            bail!("the metadata server answers {}", self.status);
        }
        Ok(&self.body)
    }
}
