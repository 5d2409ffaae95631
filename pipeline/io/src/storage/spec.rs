//! How storage is reached: what a job file or the daemon's configuration may say of it.
//!
//! Nothing in here is a secret. Keys and tokens come from where the cloud's own tools find them (see
//! [`super::client`]), so that a job file, which is copied into the job's directory, never holds one.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How storage is reached; what is absent is as the surroundings have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageSpec {
    /// Google Cloud Storage, `gs://`.
    pub gs: GsSpec,
    /// Amazon S3 and what speaks like it, `s3://`.
    pub s3: S3Spec,
    /// Azure Blob Storage, `az://`.
    pub az: AzSpec,
    /// Seconds that a read goes on being retried before it is an error.
    pub deadline_seconds: Option<u32>,
}

/// Google Cloud Storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GsSpec {
    /// Another server than Google's, such as an emulator.
    pub endpoint: Option<String>,
    /// Without credentials, for public buckets.
    pub anonymous: Option<bool>,
    /// A service account's key file.
    pub service_account: Option<PathBuf>,
}

/// Amazon S3 and what speaks like it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3Spec {
    /// Another server than Amazon's.
    pub endpoint: Option<String>,
    /// Without credentials, for public buckets.
    pub anonymous: Option<bool>,
    /// The bucket's region.
    pub region: Option<String>,
}

/// Azure Blob Storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AzSpec {
    /// Another server than Azure's.
    pub endpoint: Option<String>,
    /// Without credentials, for public containers.
    pub anonymous: Option<bool>,
    /// The storage account.
    pub account: Option<String>,
}

/// Unless told otherwise, a read is retried for as long as a storage service's bad minute lasts.
const DEADLINE_SECONDS: u32 = 120;

impl StorageSpec {
    /// Takes `other`'s value for each key that it has.
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
        }
    }

    /// How long a read goes on being retried.
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_seconds.unwrap_or(DEADLINE_SECONDS).max(1).into())
    }

    /// What is wrong with the endpoints, if anything.
    ///
    /// # Errors
    /// The key, and why its value cannot be used. The value itself is not repeated: it may hold a password.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let endpoints = [("gs", &self.gs.endpoint), ("s3", &self.s3.endpoint), ("az", &self.az.endpoint)];
        for (section, endpoint) in endpoints {
            let Some(endpoint) = endpoint else { continue };
            let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
            match rest {
                None | Some("") => {
                    return Err((section, "an endpoint is http://HOST[:PORT] or https://HOST"));
                }
                Some(rest) if rest.contains(['@', '?']) => {
                    return Err((section, "an endpoint holds no user name, password or query"));
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
