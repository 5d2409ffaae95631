//! Clients of one bucket, and the credentials they use.
//!
//! Credentials are located as by each cloud provider's own tools, which is what `object_store` does, with the additions
//! below. Only its clients hold them, and they are never printed: [`Store`] displays only its address.
//!
//! | | in this order |
//! |---|---|
//! | `gs` | the job's or the daemon's `service_account`; `GOOGLE_APPLICATION_CREDENTIALS`; gcloud's application-default file (in `CLOUDSDK_CONFIG` if set); the metadata server, which also serves workload identity; none, for public buckets |
//! | `s3` | `AWS_ACCESS_KEY_ID` and related variables; web identity (`AWS_WEB_IDENTITY_TOKEN_FILE`); the endpoint of the task or pod; the instance metadata |
//! | `az` | `AZURE_STORAGE_*`: account key, SAS, client secret, federated token; the managed identity |
//!
//! Two behaviours differ from `object_store`. First, a machine outside Google's cloud has no metadata server, and
//! requests to it would be retried for minutes. So its existence is checked once, as Google's libraries do; without
//! one, buckets are read anonymously. Second, the service may reject a cached token before its stated expiry, because
//! clocks differ or a key was revoked. So [`Store::renew`] creates new clients, which read the credentials again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::address::{Address, Scheme};
use super::http::{CONNECT, Connector, Purpose, lacks_descriptors};
use super::spec::StorageSpec;
use crate::redact;
use crate::traffic::Traffic;

/// The timeout of a whole request that lists or writes, unless the deadline is shorter.
const REQUEST: Duration = Duration::from_secs(60);
/// The maximum time for which these are retried.
const RETRYING: Duration = Duration::from_secs(60);
/// The shortest pause between two tries of these.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// The timeout of the metadata server, which is on the same host.
const METADATA: Duration = Duration::from_secs(1);

/// A bucket (or a web server, or the local file system), with its clients and measurements.
pub(crate) struct Store {
    /// Unique among all stores of the host, past and present.
    pub(super) id: u64,
    /// `gs://bucket`; empty for local files.
    pub(super) root: String,
    pub(super) scheme: Scheme,
    spec: StorageSpec,
    google: Google,
    clients: Mutex<Arc<Clients>>,
    traffic: Traffic,
}

/// The clients of one bucket.
pub(crate) struct Clients {
    /// Lists, looks up and writes; has built-in retries.
    pub(super) control: Arc<dyn ObjectStore>,
    /// Reads; does not retry.
    pub(crate) reads: Arc<dyn ObjectStore>,
    /// Lists page by page, if the service supports it.
    pub(super) pages: Option<Arc<dyn PaginatedListStore>>,
}

/// The source of Google credentials, besides the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Google {
    AsFound,
    File(PathBuf),
    Anonymous,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store of `address`.
    pub(super) async fn open(
        id: u64,
        address: &Address<'_>,
        spec: &StorageSpec,
    ) -> object_store::Result<Self> {
        let google = match address.scheme {
            Scheme::Gs => google_credentials(spec).await?,
            _ => Google::AsFound,
        };
        let (root, scheme) = (address.root.to_owned(), address.scheme);
        let clients = Arc::new(Clients::new(scheme, &root, spec, &google)?);
        let traffic = Traffic::new(spec.deadline());
        Ok(Self { id, root, scheme, spec: spec.clone(), google, clients: Mutex::new(clients), traffic })
    }

    pub(crate) fn is_local(&self) -> bool {
        self.scheme == Scheme::File
    }

    /// Whether a listing can start after a given key.
    pub(super) fn goes_on_after(&self) -> bool {
        matches!(self.scheme, Scheme::Gs | Scheme::S3)
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    pub(crate) fn clients(&self) -> Arc<Clients> {
        Arc::clone(&self.clients.lock())
    }

    /// Creates new clients, which read credentials and fetch tokens again, unless the clients have already been
    /// replaced since `used` was obtained.
    pub(crate) fn renew(&self, used: &Arc<Clients>) {
        let mut current = self.clients.lock();
        if !Arc::ptr_eq(&current, used) {
            return;
        }
        match Clients::new(self.scheme, &self.root, &self.spec, &self.google) {
            Ok(clients) => *current = Arc::new(clients),
            Err(error) => {
                // The old clients stay in use; the caller reports their error.
                let error = redact(&error.to_string()).into_owned();
                tracing::debug!(store = self.root, error, "failed to renew the credentials");
            }
        }
    }
}

/// The clients of a builder with a custom endpoint, if any. A macro, as the builders share no trait.
macro_rules! clients {
    ($builder:expr, $endpoint:expr, $spec:expr) => {{
        // A plain-HTTP endpoint, such as an emulator's, must be allowed explicitly.
        let plain = $endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        let builder = $builder.with_client_options(options(plain));
        let control =
            builder.clone().with_retry(retrying($spec)).with_http_connector(control($spec)).build()?;
        let reads = builder
            .with_retry(never())
            .with_http_connector(READS)
            .with_credentials(Arc::clone(control.credentials()))
            .build()?;
        let control = Arc::new(control);
        Ok(Self { control: control.clone(), reads: Arc::new(reads), pages: Some(control) })
    }};
}

impl Clients {
    fn new(scheme: Scheme, root: &str, spec: &StorageSpec, google: &Google) -> object_store::Result<Self> {
        choose_tls();
        match scheme {
            Scheme::File => {
                let files: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new());
                Ok(Self { control: files.clone(), reads: files, pages: None })
            }
            Scheme::Gs => Self::google(root, spec, google),
            Scheme::S3 => Self::amazon(root, spec),
            Scheme::Az => Self::azure(root, spec),
            Scheme::Http => {
                let plain = root.starts_with("http://");
                let builder = || HttpBuilder::new().with_url(root).with_client_options(options(plain));
                let control =
                    builder().with_retry(retrying(spec)).with_http_connector(control(spec)).build()?;
                let reads = builder().with_retry(never()).with_http_connector(READS).build()?;
                Ok(Self { control: Arc::new(control), reads: Arc::new(reads), pages: None })
            }
        }
    }

    fn google(root: &str, spec: &StorageSpec, google: &Google) -> object_store::Result<Self> {
        let (_, bucket) = root.split_once("://").unwrap_or_default();
        let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
        let endpoint = google_endpoint(spec);
        if let Some(endpoint) = &endpoint {
            builder = builder.with_base_url(endpoint);
        }
        match google {
            Google::AsFound => {}
            Google::File(path) => builder = builder.with_service_account_path(path.to_string_lossy()),
            Google::Anonymous => {
                // Reads are unsigned. Writes are always signed, here with an empty token.
                let nobody = StaticCredentialProvider::new(GcpCredential { bearer: String::new() });
                builder = builder.with_skip_signature(true).with_credentials(Arc::new(nobody));
            }
        }
        clients!(builder, endpoint, spec)
    }

    fn amazon(root: &str, spec: &StorageSpec) -> object_store::Result<Self> {
        let endpoint = amazon_endpoint(spec);
        // Not every service with this interface has the request that deletes many objects.
        let mut builder = AmazonS3Builder::from_env().with_url(root).with_disable_bulk_delete(true);
        if let Some(endpoint) = &endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &spec.s3.region {
            builder = builder.with_region(region);
        }
        if spec.s3.anonymous == Some(true) {
            builder = builder.with_skip_signature(true);
        }
        clients!(builder, endpoint, spec)
    }

    fn azure(root: &str, spec: &StorageSpec) -> object_store::Result<Self> {
        let mut builder = MicrosoftAzureBuilder::from_env().with_url(root);
        if let Some(account) = &spec.az.account {
            builder = builder.with_account(account);
        }
        let endpoint = azure_endpoint(spec);
        if let Some(endpoint) = &endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        if spec.az.anonymous == Some(true) {
            builder = builder.with_skip_signature(true);
        }
        clients!(builder, endpoint, spec)
    }
}

/// A custom S3 endpoint: the job's, or that of the variables of Amazon's tools.
pub(super) fn amazon_endpoint(spec: &StorageSpec) -> Option<String> {
    // The builder reads the last two itself, but the scheme of the endpoint matters to its caller.
    let environment = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    spec.s3.endpoint.clone().or_else(|| environment.iter().find_map(|name| set(name)))
}

/// A custom Azure endpoint.
pub(super) fn azure_endpoint(spec: &StorageSpec) -> Option<String> {
    spec.az.endpoint.clone().or_else(|| set("AZURE_STORAGE_ENDPOINT"))
}

/// A custom Google endpoint: the job's, or that of the variable that Google's libraries use.
pub(super) fn google_endpoint(spec: &StorageSpec) -> Option<String> {
    spec.gs.endpoint.clone().or_else(|| {
        let host = set("STORAGE_EMULATOR_HOST")?;
        let host = host.trim_end_matches('/');
        Some(if host.contains("://") { host.to_owned() } else { format!("http://{host}") })
    })
}

/// gcloud's file of application-default credentials.
const GOOGLE_FILE: &str = "application_default_credentials.json";

/// The variables with Google credentials or the path of their file.
pub(super) const GOOGLE_VARIABLES: [&str; 4] = [
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "SERVICE_ACCOUNT",
];

pub(super) async fn google_credentials(spec: &StorageSpec) -> object_store::Result<Google> {
    if spec.gs.anonymous == Some(true) {
        return Ok(Google::Anonymous);
    }
    if let Some(path) = &spec.gs.service_account {
        return Ok(Google::File(path.clone()));
    }
    if GOOGLE_VARIABLES.iter().any(|name| set(name).is_some()) {
        return Ok(Google::AsFound);
    }
    if let Some(directory) = set("CLOUDSDK_CONFIG") {
        let path = Path::new(&directory).join(GOOGLE_FILE);
        if path.exists() {
            return Ok(Google::File(path));
        }
    } else if google_file_in_home().is_some() {
        return Ok(Google::AsFound);
    }
    if spec.gs.anonymous != Some(false) && !has_metadata_server().await? {
        tracing::debug!("no Google credentials and no metadata server: reading anonymously");
        return Ok(Google::Anonymous);
    }
    Ok(Google::AsFound)
}

/// gcloud's file of application-default credentials in its default directory, if it exists.
pub(super) fn google_file_in_home() -> Option<PathBuf> {
    let path = Path::new(&set("HOME")?).join(".config/gcloud").join(GOOGLE_FILE);
    path.exists().then_some(path)
}

/// Whether Google's metadata server answers. Checks for its header, because captive portals answer too.
///
/// # Errors
/// No file descriptor is free, so that it cannot be asked.
async fn has_metadata_server() -> object_store::Result<bool> {
    let host = set("GCE_METADATA_HOST").or_else(|| set("GCE_METADATA_IP"));
    let host = host.unwrap_or_else(|| "169.254.169.254".to_owned());
    let address = if host.contains(':') { host.clone() } else { format!("{host}:80") };
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        let request = format!("GET / HTTP/1.0\r\nHost: {host}\r\nMetadata-Flavor: Google\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(4096).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match tokio::time::timeout(METADATA, asked).await {
        Ok(Ok(answer)) => {
            let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
            Ok(answer.contains("metadata-flavor: google"))
        }
        Ok(Err(source)) if lacks_descriptors(&source) => {
            Err(object_store::Error::Generic { store: "GCS", source: Box::new(source) })
        }
        _ => Ok(false),
    }
}

/// The value of an environment variable, if it is set and not empty.
pub(super) fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Sets the TLS implementation of the process, without which no client can be made.
pub(super) fn choose_tls() {
    // An error means that one is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The transport of requests that `object_store` retries.
fn control(spec: &StorageSpec) -> Connector {
    Connector(Purpose::Control { timeout: spec.deadline().min(REQUEST) })
}

/// The transport of reads, whose timeouts are enforced by the caller.
const READS: Connector = Connector(Purpose::Reads);

/// The options that the transport reads.
pub(super) fn options(plain: bool) -> ClientOptions {
    ClientOptions::new().with_connect_timeout(CONNECT).with_allow_http(plain)
}

/// Retries until the deadline, but at most for a minute: the credentials of a request must remain valid. A pause is random,
/// between the shortest one and `base` times the one before, so that with a base of 2 they would hardly grow.
fn retrying(spec: &StorageSpec) -> RetryConfig {
    let backoff =
        BackoffConfig { init_backoff: SHORTEST_PAUSE, max_backoff: Duration::from_secs(5), base: 3.0 };
    let retry_timeout = spec.deadline().min(RETRYING);
    // The time ends them, even if all pauses are short.
    let max_retries = (retry_timeout.as_millis() / SHORTEST_PAUSE.as_millis()) as usize;
    RetryConfig { backoff, max_retries, retry_timeout }
}

fn never() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn a_store_prints_only_its_address() {
        let mut spec = StorageSpec::default();
        spec.gs.anonymous = Some(true);
        let store = Store::open(0, &Address::parse("gs://b/x").unwrap(), &spec).await.unwrap();
        assert_eq!(format!("{store:?}"), "Store { root: \"gs://b\", .. }");
    }

    #[test]
    fn time_ends_retries_whatever_their_number() {
        for deadline in [1, 10, 600] {
            let config =
                retrying(&StorageSpec { deadline_seconds: Some(deadline), ..StorageSpec::default() });
            assert_eq!(config.retry_timeout.as_secs(), u64::from(deadline).min(60));
            assert!(config.backoff.init_backoff * config.max_retries as u32 >= config.retry_timeout);
        }
    }

    #[tokio::test]
    async fn an_invalid_key_file_is_rejected_without_printing_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.json");
        std::fs::write(&path, r#"{"private_key": "sesame"}"#).unwrap();
        let mut spec = StorageSpec::default();
        spec.gs.service_account = Some(path);
        let error = Store::open(0, &Address::parse("gs://b/x").unwrap(), &spec).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
    }
}
