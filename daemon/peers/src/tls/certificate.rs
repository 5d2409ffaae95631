//! What a certificate says.

use std::time::{Duration, SystemTime};

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::HostName;

/// A certificate of a member.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    der: CertificateDer<'static>,
    names: Vec<String>,
    serial: Vec<u8>,
    expires: SystemTime,
}

impl Certificate {
    /// Parses a certificate. Does not verify it.
    ///
    /// # Errors
    /// If it is not an X.509 certificate.
    pub(crate) fn parse(der: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, parsed) =
            X509Certificate::from_der(der).map_err(|error| format!("not a certificate: {error}"))?;
        let alternatives = parsed.subject_alternative_name().map_err(|error| error.to_string())?;
        let alternatives = alternatives.iter().flat_map(|extension| &extension.value.general_names);
        let names = alternatives.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        });
        let seconds = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        Ok(Self {
            der: der.clone().into_owned(),
            names: names.collect(),
            serial: parsed.raw_serial().to_vec(),
            expires: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        })
    }

    /// The certificate in DER.
    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// Its DNS names; a wildcard begins with `*.`.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Its serial number, as bytes of a DER integer.
    pub(crate) fn serial(&self) -> &[u8] {
        &self.serial
    }

    /// When it expires.
    pub(crate) fn expires(&self) -> SystemTime {
        self.expires
    }

    /// Whether it is for `host`: one of its names, or a wildcard for it (RFC 6125, section 6.4).
    pub(crate) fn is_for(&self, host: &HostName) -> bool {
        let Ok(parsed) = ParsedCertificate::try_from(&self.der) else { return false };
        let Ok(name) = ServerName::try_from(host.as_str()) else { return false };
        verify_server_name(&parsed, &name).is_ok()
    }
}
