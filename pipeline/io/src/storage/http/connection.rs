//! Failed connections: which of them no retry can heal, and what the user can do.

use std::error::Error as StdError;
use std::io;

use object_store::client::{HttpError, HttpErrorKind};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustls::{AlertDescription as Alert, Error as Tls};

use super::redirect::Sent;
use super::{Permanent, cause, causes};

/// A failed request, as the error that says what to do, if known.
pub(super) fn explain(sent: &Sent, error: HttpError) -> HttpError {
    if let Some(permanent) = cause::<Permanent>(&error) {
        return permanent.clone().into();
    }
    if error.kind() == HttpErrorKind::Connect
        && let Some(reason) = cause::<Tls>(&error).and_then(unhealable)
    {
        let server = sent.uri.authority().map_or("the server", http::uri::Authority::as_str);
        return Permanent(format!("no TLS connection to {server}: {reason}")).into();
    }
    if lacks_descriptors(&error) {
        return HttpError::new(HttpErrorKind::Connect, io::Error::other(descriptor_limit()));
    }
    error
}

/// Why a TLS handshake fails and will fail again; `None` if it may succeed.
fn unhealable(error: &Tls) -> Option<String> {
    match error {
        // Not a TLS record; usually the start of an HTTP error response.
        Tls::InvalidMessage(_) => Some(
            "the port does not speak TLS; if it serves plain HTTP, write http:// instead of https://"
                .to_owned(),
        ),
        Tls::InvalidCertificate(_)
        | Tls::NoCertificatesPresented
        | Tls::PeerIncompatible(_)
        | Tls::UnsupportedNameType
        | Tls::AlertReceived(
            Alert::HandshakeFailure
            | Alert::ProtocolVersion
            | Alert::InsufficientSecurity
            | Alert::UnrecognisedName
            | Alert::CertificateRequired
            | Alert::AccessDenied,
        ) => Some(error.to_string()),
        _ => None,
    }
}

/// Whether an error is the lack of file descriptors, of the process or the host. It passes when others are closed.
pub(crate) fn lacks_descriptors(error: &(dyn StdError + 'static)) -> bool {
    let full = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    let codes = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
    codes.into_iter().any(|code| full.contains(&code))
}

/// The message for a lack of file descriptors.
pub(crate) fn descriptor_limit() -> String {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    format!(
        "no free file descriptor: the limit of this process (`ulimit -n`) is {limit}; raise it, or run fewer jobs at \
         a time"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
    use reqwest::dns::{Name, Resolve, Resolving};

    use super::*;

    /// Resolves no name, for one of two reasons.
    struct Unresolved(bool);

    impl Resolve for Unresolved {
        fn resolve(&self, _: Name) -> Resolving {
            let forbidden = self.0;
            Box::pin(async move {
                if forbidden {
                    Err(Permanent("forbidden".to_owned()).into())
                } else {
                    Err(io::Error::from(Errno::MFILE).into())
                }
            })
        }
    }

    async fn explained(forbidden: bool) -> HttpError {
        // An error means that one is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().dns_resolver(Arc::new(Unresolved(forbidden))).no_proxy();
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = "http://host.invalid/".parse().unwrap();
        let sent = Sent::of(&request);
        explain(&sent, HttpClient::new(client.build().unwrap()).execute(request).await.unwrap_err())
    }

    #[tokio::test]
    async fn the_reason_of_a_failed_connection_is_found() {
        let error = explained(true).await;
        assert_eq!(cause::<Permanent>(&error), Some(&Permanent("forbidden".to_owned())));
        // Not retried by `object_store`.
        assert_eq!(error.kind(), HttpErrorKind::Unknown);
        let error = explained(false).await;
        assert!(error.to_string().contains("no free file descriptor"), "{error}");
        assert_eq!(error.kind(), HttpErrorKind::Connect);
    }

    #[test]
    fn only_a_handshake_that_will_fail_again_is_final() {
        assert!(unhealable(&Tls::AlertReceived(Alert::HandshakeFailure)).is_some());
        assert!(unhealable(&Tls::AlertReceived(Alert::InternalError)).is_none());
        assert!(unhealable(&Tls::General("other".to_owned())).is_none());
        let lacking = io::Error::other(io::Error::from(Errno::NFILE));
        assert!(lacks_descriptors(&lacking) && !lacks_descriptors(&io::Error::from(Errno::NOENT)));
    }
}
