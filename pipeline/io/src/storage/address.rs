//! Addresses: `gs://bucket/dir/part-*.parquet`, `/data/x.csv`, `data/*.csv`.
//!
//! An address is split by hand, not by a URL parser: what follows the bucket is a key or a glob as the
//! person wrote it, in which `%`, `#` and `?` mean themselves (or a wildcard), as in the clouds' own tools.

use object_store::path::Path as Location;

use crate::Error;

/// A kind of storage.
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

/// An address, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address<'a> {
    pub(super) scheme: Scheme,
    /// What stands before the path: `gs://bucket`, `https://host:port`; empty for local files.
    pub(super) root: &'a str,
    /// The key or glob there; for local files, the path.
    pub(super) path: &'a str,
}

/// What stands before `://`, and what it means.
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
        let refused = |message: &str| {
            // The address is not repeated whole: what is refused may be a password or a signature.
            let shown = format!("{name}://{}", authority.rsplit('@').next().unwrap_or_default());
            Err(Error::BadPattern { pattern: shown, message: message.to_owned() })
        };
        match scheme {
            _ if authority.is_empty() => return refused("names no bucket"),
            Scheme::Http if authority.contains('@') => return refused("holds a user name or password"),
            Scheme::Http if path.contains('?') => {
                return refused("has a query; signed addresses cannot be read, as they would end up in logs");
            }
            Scheme::Gs | Scheme::S3 if authority.contains(['@', ':']) => {
                return refused("is no bucket's name");
            }
            _ => {}
        }
        let root = &address[..name.len() + "://".len() + authority.len()];
        Ok(Self { scheme, root, path })
    }
}

/// The path of a remote key.
pub(super) fn location(pattern: &str, key: &str) -> Result<Location, Error> {
    let location = Location::parse(key)
        .map_err(|error| Error::BadPattern { pattern: pattern.to_owned(), message: error.to_string() })?;
    if location.as_ref().is_empty() {
        let message = "names a whole bucket; name the files in it, such as /*".to_owned();
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
    fn what_is_refused_repeats_no_secret() {
        for address in
            ["https://me:secret@host/a", "https://host/a?X-Amz-Signature=secret", "gs://k:secret@b/a"]
        {
            let error = Address::parse(address).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        assert_eq!(Address::parse("gs:///x").unwrap_err().to_string(), "gs://: names no bucket");
        let error = Address::parse("ftp://h/x").unwrap_err().to_string();
        assert_eq!(error, "ftp://h/x: no kind of storage is called ftp://");
        assert!(location("gs://b", "").is_err());
    }
}
