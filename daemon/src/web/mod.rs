//! The web page: the daemon's jobs, curves, bottlenecks and logs in a browser, without changing anything.
//!
//! The page is served on loopback, at `web_address` of the configuration or, once a client of the control socket asks for
//! it, on a port that is free. Every user of the host can reach a port, so the page answers only to those who have the
//! token, which the control socket hands out (`session`). Its files are compiled in, and it loads nothing from elsewhere.

mod documents;
mod session;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY,
    SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use serde::Serialize;
use tokio::net::TcpListener;

use crate::daemon::Daemon;
use crate::http::{self as server, Handler, Limits, Reply};
use crate::state::StoreError;
use session::Session;

/// A browser opens a few connections at a time, and asks every two seconds.
const LIMITS: Limits =
    Limits { connections: 32, duration: Duration::from_secs(10), interval: Duration::from_millis(5) };

/// The lowest port that a client of the control socket can choose: those below are for services of the system.
const MIN_PORT: u32 = 1024;

/// Fields of every response. The page loads its own files only, and is not shown within another.
const FIELDS: [(HeaderName, &str); 4] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (CACHE_CONTROL, "no-store"),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// The files of the page: path, media type, content.
const FILES: [(&str, &str, &str); 11] = [
    ("/", "text/html; charset=utf-8", include_str!("page/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("/overview.js", JAVASCRIPT, include_str!("page/overview.js")),
    ("/gpus.js", JAVASCRIPT, include_str!("page/gpus.js")),
    ("/job_page.js", JAVASCRIPT, include_str!("page/job_page.js")),
    ("/jobs.js", JAVASCRIPT, include_str!("page/jobs.js")),
    ("/chart.js", JAVASCRIPT, include_str!("page/chart.js")),
    ("/element.js", JAVASCRIPT, include_str!("page/element.js")),
    ("/format.js", JAVASCRIPT, include_str!("page/format.js")),
];

/// The web page of a daemon, which is served once it is opened.
#[derive(Clone)]
pub(crate) struct Web {
    daemon: Daemon,
    session: Arc<Session>,
    /// Where it is served.
    address: Arc<Mutex<Option<SocketAddr>>>,
}

impl Web {
    /// The page of `daemon`, not served yet.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(crate) fn new(daemon: Daemon) -> Result<Self> {
        Ok(Self { daemon, session: Arc::new(Session::new()?), address: Arc::default() })
    }

    /// Listens on `address` of the configuration. Must be called in the context of the runtime that serves.
    ///
    /// # Errors
    /// When the address is taken, or is not one of this host.
    pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener> {
        let listener = server::bind(address).with_context(|| {
            format!(
                "`web_address`: cannot listen on {address}; choose a free port of an address of this host"
            )
        })?;
        if !address.ip().is_loopback() {
            tracing::warn!(
                %address,
                "the web page has no TLS: whoever can read the traffic to this address can also read the page"
            );
        }
        Ok(listener)
    }

    /// Serves the page on loopback, unless it is served already; `port` 0 stands for a free one. Returns the address for
    /// a browser, with the token.
    ///
    /// # Errors
    /// When the port is reserved or taken.
    pub(crate) fn open(&self, port: u32) -> Result<String> {
        let mut address = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match *address {
            Some(open) => open,
            None => {
                let in_range = u16::try_from(port).ok().filter(|_| port == 0 || port >= MIN_PORT);
                let port = in_range
                    .with_context(|| format!("the port is {port}; choose one from {MIN_PORT} to 65535"))?;
                let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                let listener = server::bind(loopback)
                    .with_context(|| format!("cannot listen on {loopback}; choose another port"))?;
                self.serve_on(&mut address, listener)?
            }
        };
        Ok(self.url(open))
    }

    /// Serves the page on `listener`.
    ///
    /// # Errors
    /// When it is served already, or the listener has no address.
    pub(crate) fn serve(&self, listener: TcpListener) -> Result<()> {
        let mut address = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(address.is_none(), "the web page is served already");
        self.serve_on(&mut address, listener).map(drop)
    }

    fn serve_on(&self, address: &mut Option<SocketAddr>, listener: TcpListener) -> Result<SocketAddr> {
        let open = listener.local_addr().context("the address of the web page")?;
        tracing::info!(address = %open, "serving the web page; `millstream web` prints its address with the token");
        *address = Some(open);
        let handler = self.clone();
        tokio::spawn(async move { match server::serve(LIMITS, listener, handler).await {} });
        Ok(open)
    }

    fn url(&self, address: SocketAddr) -> String {
        let host = match address.ip() {
            // Any address of this host: the one that is certainly reachable from here.
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            ip => ip,
        };
        format!("http://{}/?token={}", SocketAddr::new(host, address.port()), self.session.token())
    }

    /// The response to a browser that has the token.
    async fn answer(&self, path: &str) -> Reply {
        if let Some((_, content_type, text)) = FILES.iter().find(|(file, ..)| *file == path) {
            return server::content(content_type, *text);
        }
        if path == "/api/overview" {
            return json(documents::overview(&self.daemon).await);
        }
        match path.strip_prefix("/api/jobs/") {
            Some(id) => json(documents::job(&self.daemon, id.to_owned()).await),
            None => server::text(StatusCode::NOT_FOUND, "there is no such page\n"),
        }
    }
}

impl Handler for Web {
    async fn get(&self, request: Parts) -> Reply {
        let mut reply = if self.session.admits(&request.headers) {
            self.answer(request.uri.path()).await
        } else if request.uri.query().is_some_and(|query| self.session.is_opened_by(query)) {
            self.session_begun()
        } else {
            let text = "The address of this page has a token, which `millstream web` prints on this host.\n";
            server::text(StatusCode::FORBIDDEN, text)
        };
        for (name, value) in FIELDS {
            reply.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        reply
    }
}

impl Web {
    /// Hands the token over to the browser, and takes it out of the address.
    fn session_begun(&self) -> Reply {
        let mut reply = server::text(StatusCode::SEE_OTHER, "");
        let fields: &mut HeaderMap = reply.headers_mut();
        fields.insert(LOCATION, HeaderValue::from_static("/"));
        fields.insert(SET_COOKIE, self.session.cookie());
        reply
    }
}

/// A document, or why there is none.
fn json(document: Result<impl Serialize>) -> Reply {
    let bytes = document.and_then(|document| Ok(serde_json::to_vec(&document)?));
    match bytes {
        Ok(bytes) => server::content("application/json", bytes),
        Err(error) => match error.downcast_ref::<StoreError>() {
            Some(StoreError::UnknownJob { .. } | StoreError::Ambiguous { .. }) => {
                server::text(StatusCode::NOT_FOUND, format!("{error}\n"))
            }
            _ => {
                tracing::error!("the web page cannot be answered: {error:#}");
                let text = "the state database cannot be read; see the log of the daemon\n";
                server::text(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        },
    }
}
