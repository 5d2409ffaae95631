//! A certificate authority for sites that have none: a directory with its key, its certificate, the certificates that it
//! issued, and a list of the revoked ones.
//!
//! ```text
//! DIR/ca.pem         its certificate, for every host
//! DIR/ca.key         its private key, which stays here
//! DIR/crl.pem        the revoked certificates, for every host
//! DIR/issued/        NAME-SERIAL.pem, a copy of each certificate
//! ```
//!
//! Keys are ECDSA P-256, serial numbers random. Files with private keys have the mode 0600 and are never replaced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason,
    RevokedCertParams, SerialNumber,
};
use rustix::fs::{FlockOperation, flock};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use time::OffsetDateTime;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use crate::tls::Certificate;
use crate::{HostName, InvalidName};

const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca.key";
const REVOKED: &str = "crl.pem";
const ISSUED: &str = "issued";

/// Certificates are valid from this time before they are issued, for hosts whose clocks are behind.
const BACKDATED: Duration = Duration::from_secs(3600);

/// The time that a revocation list states for the next one. Hosts do not require it.
const NEXT_LIST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// An authority in a directory.
#[derive(Debug)]
pub struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// The files of an issued certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why an authority failed.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file cannot be read or written.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file that is never replaced.
    #[error("{}: the file exists and is not replaced; choose another directory", .0.display())]
    Exists(PathBuf),
    /// There is no authority in the directory.
    #[error("{}: no authority here; `millstream peers init-ca` creates one", .0.display())]
    Absent(PathBuf),
    /// A file holds something else.
    #[error("{}: {message}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A name that no host can have.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A wildcard for too many names.
    #[error("`{0}`: expected two or more labels after `*.`, as in `*.workers.internal`")]
    Wildcard(String),
    /// No certificate with this name was issued here.
    #[error("{}: no certificate for `{name}` was issued here", .directory.display())]
    NeverIssued {
        /// The directory of issued certificates.
        directory: PathBuf,
        /// The name.
        name: String,
    },
    /// The library cannot create a key or a certificate.
    #[error("cannot create a certificate")]
    Creation(#[from] rcgen::Error),
}

impl Authority {
    /// Creates an authority in a new or empty directory, whose certificate is valid for `days`.
    ///
    /// # Errors
    /// If the directory has one already, or a file cannot be written.
    pub fn create(directory: &Path, days: u32) -> Result<Self, AuthorityError> {
        let issued = directory.join(ISSUED);
        fs::create_dir_all(&issued).map_err(|error| AuthorityError::File { path: issued, error })?;
        let key = KeyPair::generate()?;
        // Two authorities must not have the same name.
        let end = key.public_key_raw().iter().rev().take(4).map(|byte| format!("{byte:02x}"));
        let mut params = params(days, &format!("Millstream peers {}", end.collect::<String>()))?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        let path = directory.join(KEY);
        // The key first: its name decides between two that are created at once.
        write_new(&path, key.serialize_pem().as_bytes(), 0o600)?;
        let authority = Self { directory: directory.to_owned(), issuer: Issuer::new(params, key) };
        let written = write_new(&authority.certificate(), certificate.pem().as_bytes(), 0o644)
            .and_then(|()| authority.write_revoked(Vec::new()));
        written.inspect_err(|_| drop(fs::remove_file(&path)))?;
        Ok(authority)
    }

    /// Opens the authority in a directory.
    ///
    /// # Errors
    /// If its files cannot be read or are not valid.
    pub fn open(directory: &Path) -> Result<Self, AuthorityError> {
        if !directory.join(KEY).exists() {
            return Err(AuthorityError::Absent(directory.to_owned()));
        }
        let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
        let content = |path: &Path| {
            let path = path.to_owned();
            move |error: rcgen::Error| AuthorityError::Content { path, message: error.to_string() }
        };
        let parsed = KeyPair::from_pem(&read(&key)?).map_err(content(&key))?;
        let issuer = Issuer::from_ca_cert_pem(&read(&certificate)?, parsed).map_err(content(&certificate))?;
        Ok(Self { directory: directory.to_owned(), issuer })
    }

    /// The file of its certificate.
    pub fn certificate(&self) -> PathBuf {
        self.directory.join(CERTIFICATE)
    }

    /// The file of revoked certificates.
    pub fn revoked(&self) -> PathBuf {
        self.directory.join(REVOKED)
    }

    /// Issues a certificate for a host: its name, or a wildcard such as `*.workers.internal` for all hosts of a group.
    /// Writes `NAME.pem` and `NAME.key` into `out`.
    ///
    /// # Errors
    /// If the name is not valid, or a file exists or cannot be written.
    pub fn issue(&self, name: &str, days: u32, out: &Path) -> Result<IssuedFiles, AuthorityError> {
        let name = parse_name(name)?;
        self.issue_with(params(days, &name)?, name, out)
    }

    /// Issues a certificate for `name`, whose validity is that of `params`.
    fn issue_with(
        &self,
        mut params: CertificateParams,
        name: String,
        out: &Path,
    ) -> Result<IssuedFiles, AuthorityError> {
        let key = KeyPair::generate()?;
        params.subject_alt_names = CertificateParams::new([name.clone()])?.subject_alt_names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let file = file_name(&name);
        let files = IssuedFiles {
            certificate: out.join(format!("{file}.pem")),
            key: out.join(format!("{file}.key")),
        };
        fs::create_dir_all(out).map_err(|error| AuthorityError::File { path: out.to_owned(), error })?;
        // What is not recorded cannot be revoked.
        let record = self.issued_directory().join(record_name(&name, certificate.der())?);
        write_new(&record, certificate.pem().as_bytes(), 0o644)?;
        let written = write_new(&files.key, key.serialize_pem().as_bytes(), 0o600).and_then(|()| {
            let written = write_new(&files.certificate, certificate.pem().as_bytes(), 0o644);
            written.inspect_err(|_| drop(fs::remove_file(&files.key)))
        });
        written.inspect_err(|_| drop(fs::remove_file(&record)))?;
        Ok(files)
    }

    /// Revokes all certificates that were issued for `name`; returns how many were not revoked before.
    ///
    /// # Errors
    /// If there are none, or a file cannot be read or written.
    pub fn revoke(&self, name: &str) -> Result<usize, AuthorityError> {
        let name = parse_name(name)?;
        let _lock = self.lock()?;
        let issued = self.serials_of(&name)?;
        if issued.is_empty() {
            return Err(AuthorityError::NeverIssued { directory: self.issued_directory(), name });
        }
        let mut revoked = self.revoked_certificates()?;
        let before = revoked.len();
        for serial in issued {
            if !revoked.iter().any(|other| other.serial_number == serial) {
                revoked.push(RevokedCertParams {
                    serial_number: serial,
                    revocation_time: OffsetDateTime::now_utc(),
                    reason_code: Some(RevocationReason::CessationOfOperation),
                    invalidity_date: None,
                });
            }
        }
        let added = revoked.len() - before;
        self.write_revoked(revoked)?;
        Ok(added)
    }

    /// Keeps others from changing the list of revoked certificates, until the file is closed.
    fn lock(&self) -> Result<File, AuthorityError> {
        let locked = File::open(&self.directory)
            .and_then(|directory| Ok(flock(&directory, FlockOperation::LockExclusive).map(|()| directory)?));
        locked.map_err(|error| AuthorityError::File { path: self.directory.clone(), error })
    }

    fn issued_directory(&self) -> PathBuf {
        self.directory.join(ISSUED)
    }

    /// The serial numbers of all certificates that were issued for `name`.
    fn serials_of(&self, name: &str) -> Result<Vec<SerialNumber>, AuthorityError> {
        let directory = self.issued_directory();
        let of_directory = |error| AuthorityError::File { path: directory.clone(), error };
        let prefix = format!("{}-", file_name(name));
        let mut serials = Vec::new();
        for entry in fs::read_dir(&directory).map_err(of_directory)? {
            let path = entry.map_err(of_directory)?.path();
            let is_candidate =
                path.file_name().and_then(|file| file.to_str()).is_some_and(|file| file.starts_with(&prefix));
            if !is_candidate {
                continue;
            }
            let content = |message: String| AuthorityError::Content { path: path.clone(), message };
            let der = CertificateDer::from_pem_slice(read(&path)?.as_bytes())
                .map_err(|error| content(error.to_string()))?;
            let certificate = Certificate::parse(&der).map_err(content)?;
            if certificate.names() == [name] {
                serials.push(SerialNumber::from_slice(certificate.serial()));
            }
        }
        Ok(serials)
    }

    /// The certificates on the revocation list.
    fn revoked_certificates(&self) -> Result<Vec<RevokedCertParams>, AuthorityError> {
        let path = self.revoked();
        let content = |message: String| AuthorityError::Content { path: path.clone(), message };
        let der = CertificateRevocationListDer::from_pem_slice(read(&path)?.as_bytes())
            .map_err(|error| content(error.to_string()))?;
        let (_, list) =
            CertificateRevocationList::from_der(&der).map_err(|error| content(error.to_string()))?;
        let revoked = list.iter_revoked_certificates().map(|entry| RevokedCertParams {
            serial_number: SerialNumber::from_slice(entry.raw_serial()),
            revocation_time: entry.revocation_date.to_datetime(),
            reason_code: Some(RevocationReason::CessationOfOperation),
            invalidity_date: None,
        });
        Ok(revoked.collect())
    }

    fn write_revoked(&self, revoked_certs: Vec<RevokedCertParams>) -> Result<(), AuthorityError> {
        let now = OffsetDateTime::now_utc();
        let list = CertificateRevocationListParams {
            this_update: now,
            next_update: now + NEXT_LIST,
            // A later list has a higher number (RFC 5280, section 5.2.3).
            crl_number: SerialNumber::from(u64::try_from(now.unix_timestamp_nanos()).unwrap_or(0)),
            issuing_distribution_point: None,
            revoked_certs,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer)?.pem()?;
        // Under another name first: a host that reads it meanwhile sees one of the two lists.
        let (path, temporary) = (self.revoked(), self.directory.join(format!("{REVOKED}.new")));
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(list.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        });
        written.map_err(|error| AuthorityError::File { path, error })
    }
}

/// A name, or a wildcard, in lower case.
fn parse_name(name: &str) -> Result<String, AuthorityError> {
    match name.strip_prefix("*.") {
        // TLS libraries refuse a wildcard for a whole top-level domain.
        Some(suffix) if !suffix.contains('.') => Err(AuthorityError::Wildcard(name.to_owned())),
        Some(suffix) => Ok(format!("*.{}", HostName::parse(suffix)?)),
        None => Ok(HostName::parse(name)?.to_string()),
    }
}

/// The name in the names of files.
fn file_name(name: &str) -> String {
    name.replacen('*', "any", 1)
}

fn record_name(name: &str, der: &CertificateDer<'_>) -> Result<String, AuthorityError> {
    let certificate = Certificate::parse(der).map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
    let serial: String = certificate.serial().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{serial}.pem", file_name(name)))
}

fn params(days: u32, common_name: &str) -> Result<CertificateParams, AuthorityError> {
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::new(Vec::new())?;
    params.not_before = now - BACKDATED;
    params.not_after = now + DAY * days;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

fn read(path: &Path) -> Result<String, AuthorityError> {
    fs::read_to_string(path).map_err(|error| AuthorityError::File { path: path.to_owned(), error })
}

/// Writes a file unless it exists. One that cannot be written completely is removed.
fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), AuthorityError> {
    let of_file = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => AuthorityError::Exists(path.to_owned()),
        _ => AuthorityError::File { path: path.to_owned(), error },
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(of_file)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.inspect_err(|_| drop(fs::remove_file(path))).map_err(of_file)
}

#[cfg(test)]
impl Authority {
    /// The files of a host with a new certificate for `name`, in `out`.
    pub(crate) fn files_of(&self, name: &str, out: &Path) -> crate::tls::TlsFiles {
        let IssuedFiles { certificate, key } = self.issue(name, 5, out).expect("a certificate");
        crate::tls::TlsFiles { certificate, key, ca: self.certificate(), crl: Some(self.revoked()) }
    }

    /// Issues a certificate that has just expired.
    pub(crate) fn issue_expired(&self, name: &str, out: &Path) -> Result<IssuedFiles, AuthorityError> {
        let mut params = params(1, name)?;
        params.not_after = OffsetDateTime::now_utc() - Duration::from_secs(60);
        self.issue_with(params, name.to_owned(), out)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn certificates_are_issued_once_and_revoked_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let (home, out) = (dir.path().join("ca"), dir.path().join("hosts"));
        drop(Authority::create(&home, 10).unwrap());
        let again = Authority::create(&home, 10).unwrap_err().to_string();
        assert!(again.contains("ca.key: the file exists and is not replaced"), "{again}");
        let absent = Authority::open(&out).unwrap_err().to_string();
        assert!(absent.contains("no authority here"), "{absent}");
        let authority = Authority::open(&home).unwrap();
        let issued = authority.issue("Train-1", 5, &out).unwrap();
        assert_eq!(issued.key, out.join("train-1.key"));
        for key in [&issued.key, &home.join(KEY)] {
            assert_eq!(fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(authority.issue("train-1", 5, &out).is_err(), "a key is never replaced");
        authority.issue("train-1", 5, &dir.path().join("renewed")).unwrap();
        authority.issue("train-10", 5, &out).unwrap();
        authority.issue("*.workers.internal", 5, &out).unwrap();
        assert_eq!(fs::read_dir(home.join(ISSUED)).unwrap().count(), 4);

        assert_eq!(authority.revoke("train-1").unwrap(), 2, "both of this name, no others");
        assert_eq!(authority.revoke("train-1").unwrap(), 0);
        assert_eq!(Authority::open(&home).unwrap().revoke("*.workers.internal").unwrap(), 1);
        assert_eq!(authority.revoked_certificates().unwrap().len(), 3);
        let unknown = authority.revoke("train-2").unwrap_err().to_string();
        assert!(unknown.contains("no certificate for `train-2` was issued here"), "{unknown}");
        for name in ["", "*", "a/b", "*.*.a", "../a", "*.a", "10.0.0.5"] {
            let refused = authority.issue(name, 5, &out);
            assert!(matches!(refused, Err(AuthorityError::Name(_) | AuthorityError::Wildcard(_))), "{name}");
        }
    }
}
