//! Addresses: `gs://bucket/dir/part-*.parquet`, `/data/x.csv`, `data/*.csv`.
//!
//! An address is split by hand, not by a URL parser. The part after the bucket is a key or a glob exactly as the user
//! wrote it: `%`, `#` and `?` stand for themselves (or are wildcards), as in the cloud providers' own tools.

use object_store::path::Path as Location;

use crate::{Error, redact};

/// A storage scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// A local file.
    File,
    /// Google Cloud Storage.
    Gs,
    /// Amazon S3.
    S3,
    /// Azure Blob Storage.
    Az,
    /// A web server.
    Http,
}

/// A parsed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address<'a> {
    pub(super) scheme: Scheme,
    /// The part before the path: `gs://bucket`, `https://host:port`; empty for local files.
    pub(super) root: &'a str,
    /// The key or glob; for local files, the path.
    pub(super) path: &'a str,
}

/// The schemes, by the text before `://`.
const SCHEMES: [(&str, Scheme); 12] = [
    ("file", Scheme::File),
    ("gs", Scheme::Gs),
    ("s3", Scheme::S3),
    ("s3a", Scheme::S3),
    ("az", Scheme::Az),
    ("azure", Scheme::Az),
    ("adl", Scheme::Az),
    ("abfs", Scheme::Az),
    ("abfss", Scheme::Az),
    ("http", Scheme::Http),
    ("https", Scheme::Http),
    ("gcs", Scheme::Gs),
];

impl<'a> Address<'a> {
    pub(super) fn parse(address: &'a str) -> Result<Self, Error> {
        let Some((name, rest)) = address.split_once("://") else {
            return Ok(Self { scheme: Scheme::File, root: "", path: address });
        };
        let Some(&(_, scheme)) = SCHEMES.iter().find(|(known, _)| *known == name) else {
            return Err(Error::UnsupportedScheme { address: address.to_owned(), scheme: name.to_owned() });
        };
        if scheme == Scheme::File {
            return Ok(Self { scheme, root: "", path: rest });
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let root = &address[..name.len() + "://".len() + authority.len()];
        let rejected = |message: &str| {
            // The full address is not repeated: the rejected part may be a password or a signature.
            let shown = format!("{name}://{}", authority.rsplit('@').next().unwrap_or_default());
            Err(Error::BadPattern { pattern: shown, message: message.to_owned() })
        };
        match scheme {
            _ if authority.is_empty() => return rejected("contains no bucket name"),
            Scheme::Az if redact(root) != root => return rejected("contains a password"),
            Scheme::Http if authority.contains('@') => return rejected("contains a user name or password"),
            Scheme::Http if path.contains('?') => {
                return rejected(
                    "contains a query; signed addresses are not supported, because they would appear in logs",
                );
            }
            _ if path.contains('?') && redact(address) != address => {
                return rejected(
                    "contains a signature or another secret; signed addresses are not supported, because they would \
                     appear in logs",
                );
            }
            Scheme::Gs | Scheme::S3 if authority.contains(['@', ':']) => {
                return rejected("is not a valid bucket name");
            }
            _ => {}
        }
        Ok(Self { scheme, root, path })
    }
}

/// The object location of a remote key.
pub(super) fn location(pattern: &str, key: &str) -> Result<Location, Error> {
    let location = Location::parse(key)
        .map_err(|error| Error::BadPattern { pattern: pattern.to_owned(), message: error.to_string() })?;
    if location.as_ref().is_empty() {
        let message = "is a whole bucket; specify the files in it, such as /*".to_owned();
        return Err(Error::BadPattern { pattern: pattern.to_owned(), message });
    }
    Ok(location)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn addresses_come_apart() {
        let parse = |address| {
            let address: Address<'_> = Address::parse(address).unwrap();
            (address.scheme, address.root, address.path)
        };
        assert_eq!(parse("data/*.csv"), (Scheme::File, "", "data/*.csv"));
        assert_eq!(parse("file:///a b/%20.csv"), (Scheme::File, "", "/a b/%20.csv"));
        assert_eq!(parse("gs://b/d/part-?.gz"), (Scheme::Gs, "gs://b", "d/part-?.gz"));
        assert_eq!(parse("s3://b"), (Scheme::S3, "s3://b", ""));
        let azure = "abfss://c@a.dfs.core.windows.net/x/y";
        assert_eq!(parse(azure), (Scheme::Az, "abfss://c@a.dfs.core.windows.net", "x/y"));
        assert_eq!(parse("http://h:8080/a/b"), (Scheme::Http, "http://h:8080", "a/b"));
    }

    #[test]
    fn errors_contain_no_secrets() {
        for address in [
            "https://me:sesame@host/a",
            "https://host/a?X-Amz-Signature=sesame",
            "gs://k:sesame@b/a",
            "gs://b/a?X-Goog-Algorithm=x&X-Goog-Signature=sesame",
            "s3://b/a?X-Amz-Signature=sesame",
            "az://c/a?sv=2024&sig=sesame",
            "abfss://c:sesame@account/a",
            "ftp://me:sesame@host/a",
        ] {
            let error = Address::parse(address).unwrap_err().to_string();
            assert!(!error.contains("sesame"), "{error}");
        }
        assert_eq!(Address::parse("gs:///x").unwrap_err().to_string(), "gs://: contains no bucket name");
        let error = Address::parse("ftp://h/x").unwrap_err().to_string();
        assert_eq!(error, "ftp://h/x: unsupported storage scheme ftp://");
        assert!(location("gs://b", "").is_err());
        // Where a secret was taken for part of a local path or a pattern.
        let error = Error::NotFound { path: "https:/x?sig=sesame".to_owned(), base: None };
        assert!(!error.to_string().contains("sesame"), "{error}");
    }
}
