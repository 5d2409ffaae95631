//! The settings of storage access in a job file or in the daemon's configuration.
//!
//! They contain no secrets. Keys and tokens are located as by the cloud providers' own tools (see [`super::client`]),
//! so a job file, which is copied into the job's directory, never contains one.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The settings of storage access; absent ones are taken from the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageSpec {
    /// Google Cloud Storage, `gs://`.
    pub gs: GsSpec,
    /// Amazon S3 and compatible services, `s3://`.
    pub s3: S3Spec,
    /// Azure Blob Storage, `az://`.
    pub az: AzSpec,
    /// The time for which a failing read is retried, in seconds.
    pub deadline_seconds: Option<u32>,
    /// The catalog of datasets: a directory, or the address of one.
    pub catalog: Option<String>,
}

/// Google Cloud Storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GsSpec {
    /// A custom endpoint, such as an emulator.
    pub endpoint: Option<String>,
    /// Whether to access buckets without credentials, for public buckets.
    pub anonymous: Option<bool>,
    /// The key file of a service account.
    pub service_account: Option<PathBuf>,
}

/// Amazon S3 and compatible services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3Spec {
    /// A custom endpoint.
    pub endpoint: Option<String>,
    /// Whether to access buckets without credentials, for public buckets.
    pub anonymous: Option<bool>,
    /// The bucket's region.
    pub region: Option<String>,
}

/// Azure Blob Storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AzSpec {
    /// A custom endpoint.
    pub endpoint: Option<String>,
    /// Whether to access containers without credentials, for public containers.
    pub anonymous: Option<bool>,
    /// The storage account.
    pub account: Option<String>,
}

/// The default retry deadline: about the length of a temporary outage of a storage service.
const DEADLINE_SECONDS: u32 = 120;

impl StorageSpec {
    /// Overrides each setting that `other` contains.
    #[must_use]
    pub fn overridden_by(&self, other: &Self) -> Self {
        fn pick<T: Clone>(ours: &Option<T>, theirs: &Option<T>) -> Option<T> {
            theirs.as_ref().or(ours.as_ref()).cloned()
        }
        Self {
            gs: GsSpec {
                endpoint: pick(&self.gs.endpoint, &other.gs.endpoint),
                anonymous: pick(&self.gs.anonymous, &other.gs.anonymous),
                service_account: pick(&self.gs.service_account, &other.gs.service_account),
            },
            s3: S3Spec {
                endpoint: pick(&self.s3.endpoint, &other.s3.endpoint),
                anonymous: pick(&self.s3.anonymous, &other.s3.anonymous),
                region: pick(&self.s3.region, &other.s3.region),
            },
            az: AzSpec {
                endpoint: pick(&self.az.endpoint, &other.az.endpoint),
                anonymous: pick(&self.az.anonymous, &other.az.anonymous),
                account: pick(&self.az.account, &other.az.account),
            },
            deadline_seconds: pick(&self.deadline_seconds, &other.deadline_seconds),
            catalog: pick(&self.catalog, &other.catalog),
        }
    }

    /// The time for which a failing read is retried.
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_seconds.unwrap_or(DEADLINE_SECONDS).max(1).into())
    }

    /// Validates the endpoints.
    ///
    /// # Errors
    /// The key, and the problem with its value. The value itself is not repeated: it may contain a password.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let endpoints = [("gs", &self.gs.endpoint), ("s3", &self.s3.endpoint), ("az", &self.az.endpoint)];
        for (section, endpoint) in endpoints {
            let Some(endpoint) = endpoint else { continue };
            let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
            match rest {
                None | Some("") => {
                    return Err((section, "an endpoint must be http://HOST[:PORT] or https://HOST"));
                }
                Some(rest) if rest.contains(['@', '?']) => {
                    return Err((section, "an endpoint must not contain a user name, password or query"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_endpoint(endpoint: &str) -> StorageSpec {
        let gs = GsSpec { endpoint: Some(endpoint.to_owned()), ..GsSpec::default() };
        StorageSpec { gs, ..StorageSpec::default() }
    }

    #[test]
    fn an_endpoint_is_an_address_without_secrets() {
        assert_eq!(with_endpoint("http://127.0.0.1:9000").check(), Ok(()));
        for bad in ["localhost:9000", "http://", "http://me:secret@host", "https://host?sig=secret"] {
            let (section, why) = with_endpoint(bad).check().expect_err(bad);
            assert_eq!(section, "gs");
            assert!(!why.contains("secret"));
        }
    }

    #[test]
    fn a_job_overrides_the_daemon_key_by_key() {
        let daemon = StorageSpec { deadline_seconds: Some(9), ..with_endpoint("http://a") };
        let mut job = with_endpoint("http://b");
        job.gs.anonymous = Some(true);
        let both = daemon.overridden_by(&job);
        assert_eq!(both.gs.endpoint.as_deref(), Some("http://b"));
        assert_eq!((both.gs.anonymous, both.deadline_seconds), (Some(true), Some(9)));
    }
}
