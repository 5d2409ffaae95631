//! The files of an identity: which are refused, and how they change.
#![allow(clippy::unwrap_used)]

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::authority::Authority;

/// An authority, and the files of a host with its certificate.
fn host(name: &str) -> (TempDir, Authority, TlsFiles) {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(&dir.path().join("ca"), 10).unwrap();
    let files = authority.files_of(name, &dir.path().join("hosts"));
    (dir, authority, files)
}

fn refusal(files: &TlsFiles) -> String {
    Identity::load(files.clone()).unwrap_err().to_string()
}

#[test]
fn a_host_has_the_name_of_its_certificate() {
    let (_dir, _authority, files) = host("train-1.internal");
    let identity = Identity::load(files).unwrap();
    assert_eq!(identity.host("anything").unwrap().as_str(), "train-1.internal");

    let (_dir, _authority, files) = host("*.workers.internal");
    let identity = Identity::load(files).unwrap();
    assert_eq!(identity.host("Pod-7.example.org").unwrap().as_str(), "pod-7.workers.internal");
    assert!(identity.host("").is_err());
    let certificate = identity.current().certificate.clone();
    for (name, is_for) in [
        ("pod-7.workers.internal", true),
        ("pod-7.other.internal", false),
        ("workers.internal", false),
        ("a.b.workers.internal", false),
    ] {
        assert_eq!(certificate.is_for(&HostName::parse(name).unwrap()), is_for, "{name}");
    }
}

#[test]
fn files_that_others_would_refuse_are_refused_with_their_path() {
    let (dir, authority, good) = host("a");
    let other = authority.files_of("b", &dir.path().join("hosts"));
    let stranger = Authority::create(&dir.path().join("other"), 10).unwrap();

    let error = refusal(&TlsFiles { key: other.key, ..good.clone() });
    assert!(error.contains("a.pem") && error.contains("does not fit"), "{error}");
    let error = refusal(&TlsFiles { ca: stranger.certificate(), ..good.clone() });
    assert!(error.contains("a.pem: ") && error.contains("UnknownIssuer"), "{error}");
    let error = refusal(&TlsFiles { ca: dir.path().join("absent"), ..good.clone() });
    assert!(error.contains("absent: No such file"), "{error}");
    let empty = dir.path().join("empty");
    fs::write(&empty, "").unwrap();
    let error = refusal(&TlsFiles { certificate: empty, ..good.clone() });
    assert!(error.contains("empty: no certificate in PEM"), "{error}");
    let error = refusal(&TlsFiles { key: good.certificate.clone(), ..good.clone() });
    assert!(error.contains("a.pem: no private key"), "{error}");
    let error = refusal(&TlsFiles { crl: Some(good.certificate.clone()), ..good.clone() });
    assert!(error.contains("a.pem: no revocation list in PEM"), "{error}");

    let error = refusal(&TlsFiles { crl: Some(dir.path().join("empty")), ..good.clone() });
    assert!(error.contains("empty: no revocation list in PEM"), "{error}");

    let expired = authority.issue_expired("old", &dir.path().join("hosts")).unwrap();
    let error = refusal(&TlsFiles { certificate: expired.certificate, key: expired.key, ..good.clone() });
    assert!(error.contains("old.pem: ") && error.contains("expired"), "{error}");

    Identity::load(good.clone()).unwrap();
    authority.revoke("a").unwrap();
    let error = refusal(&good);
    assert!(error.contains("a.pem: ") && error.contains("Revoked"), "{error}");
}

#[test]
fn changed_files_are_used_once_they_are_valid() {
    let (dir, authority, good) = host("a");
    let identity = Identity::load(good.clone()).unwrap();
    let mut changes = identity.changes();
    assert!(!identity.reload().unwrap());
    let renewed = authority.files_of("a", &dir.path().join("renewed"));
    // Half of a renewal.
    fs::copy(&renewed.certificate, &good.certificate).unwrap();
    assert!(identity.reload().is_err());
    assert!(!changes.has_changed().unwrap());
    fs::copy(&renewed.key, &good.key).unwrap();
    identity.host("a").unwrap();
    assert!(identity.reload().unwrap());
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert!(!identity.reload().unwrap());
    let of_another = authority.files_of("b", &dir.path().join("hosts"));
    fs::copy(&of_another.certificate, &good.certificate).unwrap();
    fs::copy(&of_another.key, &good.key).unwrap();
    let error = identity.reload().unwrap_err().to_string();
    assert!(error.contains("the certificate is for b, but this host is a"), "{error}");
}
