//! The check of a certificate by the daemon that connects.
//!
//! It knows an address, often without a name: from DNS or a bucket. So, unlike in a browser, the name is not part of this
//! check. Each certificate of the authority is that of a member, and the greeting that follows says which one; see
//! [`crate::link`]. All else is checked by webpki, with the certificate's first name in place of the one that is called.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};

use super::Certificate;

/// Verifies that a certificate is one of the authority's.
#[derive(Debug)]
pub(super) struct MemberVerifier(Arc<WebPkiServerVerifier>);

impl MemberVerifier {
    pub(super) fn new(
        roots: &Arc<RootCertStore>,
        provider: &Arc<CryptoProvider>,
        revoked: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Self, String> {
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider))
            .with_crls(revoked)
            .allow_unknown_revocation_status()
            .build();
        verifier.map(Self).map_err(|error| error.to_string())
    }

    /// Checks a chain as another daemon would.
    pub(super) fn check(&self, chain: &[CertificateDer<'_>]) -> Result<(), String> {
        let any = ServerName::try_from("any").map_err(|error| error.to_string())?;
        let verified = self.verify_server_cert(&chain[0], &chain[1..], &any, &[], UnixTime::now());
        verified.map(drop).map_err(|error| error.to_string())
    }
}

impl ServerCertVerifier for MemberVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let unnamed = Error::InvalidCertificate(CertificateError::NotValidForName);
        let certificate = Certificate::parse(end_entity)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let own_name = certificate.names().first().ok_or(unnamed)?.replacen('*', "any", 1);
        let own_name = ServerName::try_from(own_name)
            .map_err(|_| Error::InvalidCertificate(CertificateError::NotValidForName))?;
        self.0.verify_server_cert(end_entity, intermediates, &own_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.0.root_hint_subjects()
    }
}
