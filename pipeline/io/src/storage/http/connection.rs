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
