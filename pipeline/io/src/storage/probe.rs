//! What can be said about a store besides its objects: for diagnoses, not for jobs.

use std::time::Duration;

use super::Stores;
use super::address::{Address, Scheme};
use super::client::{self, Google, set};
use super::http;
use super::spec::StorageSpec;
use crate::{Error, redact};

/// The time limit for a response.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The endpoint of Google Cloud Storage.
const GOOGLE: &str = "https://storage.googleapis.com";

/// The response of a service to a request without credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// The service's clock, as HTTP writes it.
    pub date: Option<String>,
    /// The region of the bucket, if the service names it.
    pub region: Option<String>,
}

impl Stores {
    /// Asks the service of `address` for its clock and the bucket's region.
    ///
    /// # Errors
    /// The address is invalid or a local path, or the service does not respond.
    pub async fn probe(&self, address: &str) -> Result<Probe, Error> {
        let parsed = Address::parse(address)?;
        let failed = |message: String| Error::BadPattern { pattern: address.to_owned(), message };
        let Some(url) = url_of(&parsed, &self.spec) else {
            return Err(failed("the address of its service is unknown".to_owned()));
        };
        client::choose_tls();
        let options = client::options(url.starts_with("http://"));
        let headers = http::headers(&url, &options, TIMEOUT).await;
        let headers = headers.map_err(|error| failed(redact(&error.to_string()).into_owned()))?;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Probe { date: text("date"), region: text("x-amz-bucket-region") })
    }

    /// The source of the credentials for `address`, such as the name of a variable or file; never a secret.
    ///
    /// # Errors
    /// The address is invalid, or no file descriptor is free to look for a metadata server.
    pub async fn credentials(&self, address: &str) -> Result<String, Error> {
        let parsed = Address::parse(address)?;
        let named = |names: &[&'static str]| names.iter().find(|name| set(name).is_some()).copied();
        Ok(match parsed.scheme {
            Scheme::File => "the rights of this user".to_owned(),
            Scheme::Http => "none".to_owned(),
            Scheme::Gs => {
                let found = client::google_credentials(&self.spec).await;
                google(&found.map_err(|source| Error::storage(address, source))?)
            }
            Scheme::S3 if self.spec.s3.anonymous == Some(true) => "none (anonymous)".to_owned(),
            Scheme::S3 => {
                named(&AMAZON_VARIABLES).map_or("the instance's metadata server", |name| name).to_owned()
            }
            Scheme::Az if self.spec.az.anonymous == Some(true) => "none (anonymous)".to_owned(),
            Scheme::Az => named(&AZURE_VARIABLES).map_or("the VM's managed identity", |name| name).to_owned(),
        })
    }
}

/// The variables with Amazon's credentials, in the order in which they are used.
const AMAZON_VARIABLES: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// The variables with Azure's credentials.
const AZURE_VARIABLES: [&str; 7] = [
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
];

fn google(found: &Google) -> String {
    match found {
        Google::Anonymous => "none (anonymous)".to_owned(),
        Google::File(path) => format!("the file {}", path.display()),
        Google::AsFound => {
            let variable = client::GOOGLE_VARIABLES.into_iter().find(|name| set(name).is_some());
            let has_file = set("CLOUDSDK_CONFIG").is_none() && client::google_file_in_home().is_some();
            match variable {
                Some(name) => name.to_owned(),
                None if has_file => "gcloud's application-default credentials".to_owned(),
                None => "the VM's metadata server".to_owned(),
            }
        }
    }
}

/// The address of the bucket at its service.
fn url_of(address: &Address<'_>, spec: &StorageSpec) -> Option<String> {
    let bucket = address.root.split_once("://").map_or("", |(_, bucket)| bucket);
    let below = |endpoint: &str| format!("{}/{bucket}", endpoint.trim_end_matches('/'));
    match address.scheme {
        Scheme::File => None,
        Scheme::Http => Some(address.root.to_owned()),
        Scheme::Gs => Some(below(client::google_endpoint(spec).as_deref().unwrap_or(GOOGLE))),
        Scheme::S3 => Some(match client::amazon_endpoint(spec) {
            Some(endpoint) => below(&endpoint),
            None => format!("https://{bucket}.s3.amazonaws.com"),
        }),
        Scheme::Az => match client::azure_endpoint(spec) {
            Some(endpoint) => Some(below(&endpoint)),
            None => {
                let account = spec.az.account.clone().or_else(|| set("AZURE_STORAGE_ACCOUNT_NAME"))?;
                Some(format!("https://{account}.blob.core.windows.net/{bucket}"))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_address_of_a_bucket_is_that_of_its_endpoint() {
        let mut spec = StorageSpec::default();
        spec.gs.endpoint = Some("http://127.0.0.1:9/".to_owned());
        spec.s3.endpoint = Some("https://minio:9000".to_owned());
        spec.az.endpoint = Some("http://azurite".to_owned());
        for (address, url) in [
            ("gs://b/x/*.parquet", Some("http://127.0.0.1:9/b")),
            ("s3://b/x", Some("https://minio:9000/b")),
            ("az://c/x", Some("http://azurite/c")),
            ("https://host:8/a/b", Some("https://host:8")),
            ("/data/x", None),
        ] {
            assert_eq!(url_of(&Address::parse(address).unwrap(), &spec).as_deref(), url, "{address}");
        }
    }

    #[tokio::test]
    async fn anonymous_access_has_no_credentials() {
        let mut spec = StorageSpec::default();
        (spec.gs.anonymous, spec.s3.anonymous, spec.az.anonymous) = (Some(true), Some(true), Some(true));
        let stores = Stores::new(spec, 0);
        for address in ["gs://b/x", "s3://b/x", "az://b/x"] {
            assert_eq!(stores.credentials(address).await.unwrap(), "none (anonymous)", "{address}");
        }
    }
}
