//! The HTTP transport below the clients: what a server may send, and where it may send a request.
//!
//! A storage server is not trusted: it may be wrong, hostile, or not a storage server at all. `object_store` forms the
//! requests and parses the responses; every request passes through this transport, which adds these rules:
//!
//! * [`body`] bounds the body of each kind of response, and makes error messages printable.
//! * [`redirect`] follows redirects, but not to the host's own services, and with no credentials to other servers.
//! * [`connection`] recognizes failed connections that no retry can heal, and the lack of file descriptors.
//!
//! It also keeps the status of error responses. `object_store` retries by itself and reports most error responses only
//! as text. Reads are instead retried by [`crate::fetch`], which knows the bytes received so far, the deadline and the
//! number of streams. So for reads, each status for which `object_store` has no error becomes an error that carries the
//! status.

mod body;
mod connection;
mod redirect;

use std::error::Error as StdError;
use std::fmt;
use std::fs::File;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};

use self::redirect::Resolver;
use crate::redact;

pub(crate) use self::connection::{descriptor_limit, lacks_descriptors};

/// The timeout for connecting to a service.
pub(super) const CONNECT: Duration = Duration::from_secs(5);
/// The maximum number of idle connections kept open.
const IDLE_CONNECTIONS: usize = 64;
/// The maximum number of redirects of one request, as many as a browser's or curl's users expect to work.
const MAX_REDIRECTS: usize = 10;

/// What a client is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Reads, which [`crate::fetch`] retries and gives time.
    Reads,
    /// All other requests, which `object_store` retries. Each may take this long.
    Control { timeout: Duration },
}

/// Creates the transport of a client.
#[derive(Debug)]
pub(super) struct Connector(pub(super) Purpose);

/// The transport of a client.
#[derive(Debug)]
struct Service {
    purpose: Purpose,
    client: HttpClient,
    options: ClientOptions,
    /// For requests redirected to another host: connects to no service of this one. Created by the first redirect,
    /// because each client reads the certificates of the system.
    redirected: OnceLock<HttpClient>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let purpose = self.0;
        let client = client(purpose, options, Resolver::Any)
            .map_err(|source| object_store::Error::Generic { store: "HTTP client", source })?;
        let (options, redirected) = (options.clone(), OnceLock::new());
        Ok(HttpClient::new(Service { purpose, client, options, redirected }))
    }
}

/// The headers of a service's response to a request without credentials, whatever its status. Follows no redirect.
///
/// # Errors
/// No response within `timeout`.
pub(super) async fn headers(
    url: &str,
    options: &ClientOptions,
    timeout: Duration,
) -> Result<http::HeaderMap, Box<dyn StdError + Send + Sync>> {
    let client = client(Purpose::Control { timeout }, options, Resolver::Any)?;
    let request = http::Request::head(url).body(HttpRequestBody::empty())?;
    Ok(client.execute(request).await?.headers().clone())
}

fn client(
    purpose: Purpose,
    options: &ClientOptions,
    resolver: Resolver,
) -> Result<HttpClient, Box<dyn StdError + Send + Sync>> {
    // `object_store` shortens this one for metadata servers, in whole seconds.
    let connect = options.get_config_value(&ClientConfigKey::ConnectTimeout);
    let connect = connect.and_then(|text| text.strip_suffix('s')?.parse().ok());
    let plain = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|allow| allow == "true");
    let builder = reqwest::Client::builder()
        .user_agent(concat!("millstream/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(connect.map_or(CONNECT, Duration::from_secs))
        .redirect(reqwest::redirect::Policy::none())
        .dns_resolver(Arc::new(resolver))
        .https_only(!plain)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        // One HTTP/2 connection is slower than several HTTP/1 ones.
        .http1_only();
    let built = match purpose {
        Purpose::Reads => builder,
        Purpose::Control { timeout } => builder.timeout(timeout),
    }
    .build();
    match (built, File::open("/dev/null")) {
        (Ok(client), _) => Ok(HttpClient::new(client)),
        // The files of the certificates could not be opened, which the other error does not say.
        (Err(_), Err(lacking)) if lacks_descriptors(&lacking) => Err(lacking.into()),
        (Err(error), _) => Err(error.into()),
    }
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let most = body::Most::of(&request);
        let response = self.follow(request).await?;
        match (self.purpose, response.status().as_u16()) {
            (_, 200..300) => most.bound(response),
            // `object_store` has errors for these.
            (Purpose::Control { .. }, _) | (_, 304 | 401 | 403 | 404 | 409 | 412) => {
                Ok(body::shorten(response))
            }
            (Purpose::Reads, status) => {
                let body = body::shorten(response).into_body().bytes().await.unwrap_or_default();
                let said = String::from_utf8_lossy(&body);
                let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
                let said = redact(&said).chars().take(MAX_SAID).collect();
                Err(HttpError::new(HttpErrorKind::Unknown, Refused { status, said }))
            }
        }
    }
}

impl Service {
    /// Executes a request, and follows redirects as far as permitted.
    async fn follow(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let home = request.uri().host().map(str::to_owned);
        let mut client = &self.client;
        for _ in 0..=MAX_REDIRECTS {
            let sent = redirect::Sent::of(&request);
            let response =
                client.execute(request).await.map_err(|error| connection::explain(&sent, error))?;
            let Some(next) = sent.redirected(&response)? else { return Ok(response) };
            client = if next.uri().host() == home.as_deref() { &self.client } else { self.redirected()? };
            request = next;
        }
        Err(Permanent(format!("more than {MAX_REDIRECTS} redirects")).into())
    }

    fn redirected(&self) -> Result<&HttpClient, HttpError> {
        if let Some(client) = self.redirected.get() {
            return Ok(client);
        }
        let client = client(self.purpose, &self.options, Resolver::Foreign)
            .map_err(|source| HttpError::new_boxed(HttpErrorKind::Connect, source))?;
        Ok(self.redirected.get_or_init(|| client))
    }
}

/// An error that no retry can heal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Permanent(String);

impl fmt::Display for Permanent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Permanent {}

impl From<Permanent> for HttpError {
    fn from(error: Permanent) -> Self {
        // `object_store` does not retry unknown errors.
        Self::new(HttpErrorKind::Unknown, error)
    }
}

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
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = if self.said.is_empty() { "" } else { ": " };
        write!(f, "the storage service responded with status {}{gap}{}", self.status, self.said)
    }
}

impl StdError for Refused {}

/// The first error of type `E` among `error` and its causes.
pub(crate) fn cause<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// `error` and its causes, outermost first.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error: &&'a (dyn StdError + 'static)| {
        // The cause of an I/O error is the error in it, which `source` skips.
        match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn StdError + 'static)),
            None => error.source(),
        }
    })
}
