//! What daemons say about themselves, and the versions in which they can.
//!
//! Version 1 has greetings, probes, measurements, the exchange of lanes (`lanes`) and the messages of generations (`conduct`). A
//! later version keeps the messages of the earlier ones that it still
//! speaks. Two daemons use the newest version that both speak.

use std::ops::RangeInclusive;

use prost::Message;

use crate::HostName;
use crate::proto;

/// The versions of the protocol that this daemon speaks.
pub(crate) const SPOKEN: Versions = Versions { oldest: 1, newest: 1 };

/// The longest text that a daemon says about itself, in bytes.
const MAX_TEXT: usize = 512;

/// The most GPUs of a host.
const MAX_GPUS: usize = 64;

/// Versions of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    /// The oldest one.
    pub(crate) oldest: u32,
    /// The newest one.
    pub(crate) newest: u32,
}

/// A daemon, as its greeting describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The name of its host.
    pub host: HostName,
    /// The version of the program.
    pub version: String,
    /// A random number that it drew when it started.
    pub instance: u64,
    /// Where other daemons reach it: `HOST:PORT`; empty if it does not know.
    pub address: String,
}

/// The state of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostStatus {
    /// Seconds since its daemon started.
    pub up_seconds: u64,
    /// The names of its GPUs.
    pub gpus: Vec<String>,
    /// CPUs that jobs can use.
    pub cpus: u32,
    /// Bytes of memory that jobs can use.
    pub memory_bytes: u64,
    /// Jobs under way.
    pub jobs: u32,
    /// Rows per second that they train on.
    pub examples_per_second: f64,
    /// The share of their time that they wait for input, from 0 to 1; `None` without running jobs.
    pub wait_fraction: Option<f64>,
}

/// Why a greeting is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GreetingError {
    #[error(
        "no version of the protocol in common: the greeting daemon speaks {} to {}, the other one {} to {}; install the same \
         version of Millstream on both", .0.oldest, .0.newest, SPOKEN.oldest, SPOKEN.newest
    )]
    Versions(Versions),
    #[error(transparent)]
    Name(#[from] crate::InvalidName),
}

impl Versions {
    /// The newest version of both; `None` if there is none.
    pub(crate) fn common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

impl About {
    pub(crate) fn greeting(&self) -> proto::Greeting {
        proto::Greeting {
            oldest_protocol: SPOKEN.oldest,
            newest_protocol: SPOKEN.newest,
            host: self.host.to_string(),
            version: self.version.clone(),
            instance: self.instance,
            address: self.address.clone(),
            known: Vec::new(),
        }
    }

    /// Parses a greeting as another daemon sends it.
    ///
    /// # Errors
    /// If it is none, or one that this daemon refuses.
    pub fn parse(message: &[u8]) -> Result<Self, String> {
        let greeting = proto::Greeting::decode(message).map_err(|error| error.to_string())?;
        Self::of_greeting(greeting).map(|(about, _)| about).map_err(|error| error.to_string())
    }

    /// The daemon that sends this greeting, and the version of the protocol to use with it.
    pub(crate) fn of_greeting(greeting: proto::Greeting) -> Result<(Self, u32), GreetingError> {
        let versions = Versions { oldest: greeting.oldest_protocol, newest: greeting.newest_protocol };
        let common = SPOKEN.common(versions).ok_or(GreetingError::Versions(versions))?;
        let about = Self {
            host: HostName::parse(&greeting.host)?,
            version: bounded(greeting.version),
            instance: greeting.instance,
            address: bounded(greeting.address),
        };
        Ok((about, common))
    }
}

impl HostStatus {
    pub(crate) fn reply(self, (received_at, sent_at): (u64, u64)) -> proto::ProbeReply {
        proto::ProbeReply {
            received_at,
            sent_at,
            up_seconds: self.up_seconds,
            gpus: self.gpus.into_iter().take(MAX_GPUS).collect(),
            cpus: self.cpus,
            memory_bytes: self.memory_bytes,
            jobs: self.jobs,
            examples_per_second: self.examples_per_second,
            wait_fraction: self.wait_fraction,
        }
    }

    /// Parses the answer to a probe as another daemon sends it.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(message: &[u8]) -> Result<Self, String> {
        proto::ProbeReply::decode(message).map(Self::of_reply).map_err(|error| error.to_string())
    }

    /// The status in a reply, whose numbers and texts are not trusted.
    pub(crate) fn of_reply(reply: proto::ProbeReply) -> Self {
        let within = |number: f64, range: RangeInclusive<f64>| {
            if number.is_nan() { *range.start() } else { number.clamp(*range.start(), *range.end()) }
        };
        Self {
            up_seconds: reply.up_seconds,
            gpus: reply.gpus.into_iter().take(MAX_GPUS).map(bounded).collect(),
            cpus: reply.cpus,
            memory_bytes: reply.memory_bytes,
            jobs: reply.jobs,
            examples_per_second: within(reply.examples_per_second, 0.0..=f64::MAX),
            wait_fraction: reply.wait_fraction.map(|fraction| within(fraction, 0.0..=1.0)),
        }
    }
}

/// A text of another host, cut to a length that fits a table or a log line, without control characters.
pub(crate) fn bounded(text: String) -> String {
    let mut length = 0;
    let keeps = |next: &char| {
        length += next.len_utf8();
        length <= MAX_TEXT
    };
    text.chars().map(|next| if next.is_control() { ' ' } else { next }).take_while(keeps).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn two_daemons_use_the_newest_version_of_both() {
        let versions = |oldest, newest| Versions { oldest, newest };
        let cases = [
            ((1, 1), (1, 1), Some(1)),
            ((1, 3), (2, 5), Some(3)),
            ((2, 5), (1, 3), Some(3)),
            ((1, 2), (3, 4), None),
            ((3, 4), (1, 2), None),
            ((1, 2), (2, 2), Some(2)),
            // Of a daemon that does not state any.
            ((1, 1), (0, 0), None),
            ((1, 1), (2, 1), None),
        ];
        for ((oldest, newest), (other_oldest, other_newest), common) in cases {
            assert_eq!(versions(oldest, newest).common(versions(other_oldest, other_newest)), common);
        }
    }

    #[test]
    fn a_greeting_carries_the_daemon() {
        let about = About {
            host: HostName::parse("train-1").unwrap(),
            version: "0.1.0".to_owned(),
            instance: 7,
            address: "train-1:7420".to_owned(),
        };
        assert_eq!(About::of_greeting(about.greeting()).unwrap(), (about.clone(), SPOKEN.newest));
        let too_new = proto::Greeting { oldest_protocol: 9, newest_protocol: 12, ..about.greeting() };
        let error = About::of_greeting(too_new).unwrap_err().to_string();
        assert!(error.contains("speaks 9 to 12, the other one 1 to 1"), "{error}");
        let nameless = proto::Greeting { host: String::new(), ..about.greeting() };
        assert!(About::of_greeting(nameless).is_err());
        let talkative = proto::Greeting { version: "é\n".repeat(10_000), ..about.greeting() };
        let (about, _) = About::of_greeting(talkative).unwrap();
        assert!(about.version.len() <= MAX_TEXT && about.version.starts_with("é é"), "{}", about.version);
    }

    #[test]
    fn numbers_of_other_hosts_stay_in_their_ranges() {
        let reply = proto::ProbeReply {
            examples_per_second: f64::NAN,
            wait_fraction: Some(7.0),
            gpus: vec!["x".repeat(9_000); 500],
            ..proto::ProbeReply::default()
        };
        let status = HostStatus::of_reply(reply);
        assert_eq!((status.examples_per_second, status.wait_fraction), (0.0, Some(1.0)));
        assert_eq!((status.gpus.len(), status.gpus[0].len()), (MAX_GPUS, MAX_TEXT));
        let back = HostStatus::of_reply(status.clone().reply((1, 2)));
        assert_eq!(back, status);
    }
}
