//! A client of etcd, for sites that have it: small values that are replaced on condition that they have not changed.
//!
//! etcd (<https://etcd.io>) keeps keys in several members that agree by Raft. Every request here is linearizable: its result is that of
//! the whole cluster, whichever member answers. So a request goes to the member that has answered last, and to the next one if that does
//! not answer in time, again and again for [`EtcdSpec::retry`]. A request may thus be applied twice. A conditional write can then report that its condition was not met
//! although it was applied; callers to whom that matters write unique values and read them back.
//!
//! The crate `etcd-client` needs `protoc` to be compiled, which this project does without. Four requests are used, so their
//! messages are compiled here (`proto/etcd.proto`).

mod member;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use self::member::Member;
pub use self::member::{Endpoint, EtcdFiles};
use crate::etcd_proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::etcd_proto::kv_client::KvClient;
use crate::etcd_proto::request_op::Request;
use crate::etcd_proto::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};

/// Time limit for one member to answer.
const MEMBER_TIMEOUT: Duration = Duration::from_millis(1500);

/// Interval between rounds in which no member has answered.
const ROUND_INTERVAL: Duration = Duration::from_millis(200);

/// How an etcd cluster is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSpec {
    /// Its members, or some of them; not empty.
    pub endpoints: Vec<Endpoint>,
    /// The key prefix of Millstream, without a slash at the end.
    pub prefix: String,
    /// How long members are asked again if none has answered: a cluster may start after this host, or elect a leader.
    pub retry: Duration,
    /// The certificates, for `https://`.
    pub files: EtcdFiles,
}

/// A client of an etcd cluster. Clones share connections.
#[derive(Clone, Debug)]
pub struct Etcd(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    members: Vec<Member>,
    prefix: String,
    retry: Duration,
    /// The member that is asked first.
    preferred: AtomicUsize,
}

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The value.
    pub bytes: Vec<u8>,
    /// The revision of the store at which it was written.
    pub revision: i64,
}

/// Why a request to etcd failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No member has answered. What each of them did instead.
    #[error("etcd does not answer: {0}")]
    Unreachable(String),
    /// The cluster refuses the request.
    #[error("etcd at {endpoint} refuses the request: {message}")]
    Refused {
        /// The member that answered.
        endpoint: String,
        /// Its message.
        message: String,
    },
}

impl Etcd {
    /// A client of the cluster `spec`, which connects when it is used.
    pub fn new(spec: EtcdSpec) -> Self {
        let EtcdSpec { endpoints, prefix, retry, files } = spec;
        let members = endpoints.into_iter().map(|endpoint| Member::new(endpoint, files.clone())).collect();
        Self(Arc::new(Shared { members, prefix, retry, preferred: AtomicUsize::new(0) }))
    }

    /// The key `name` of Millstream.
    pub fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.0.prefix)
    }

    /// The value of a key; `None` if it does not exist.
    ///
    /// # Errors
    /// If no member answers, or the cluster refuses the request.
    pub async fn get(&self, key: &str) -> Result<Option<Kept>, EtcdError> {
        let request = RangeRequest { key: key.into(), range_end: Vec::new(), limit: 1 };
        let reply = self.ask(request, |mut kv, request| async move { kv.range(request).await }).await?;
        let first = reply.kvs.into_iter().next();
        Ok(first.map(|found| Kept { bytes: found.value, revision: found.mod_revision }))
    }

    /// The keys that begin with `start`, which is not empty, at most `limit`, in order, with their values.
    ///
    /// # Errors
    /// As for [`Etcd::get`].
    pub async fn list(&self, start: &str, limit: usize) -> Result<Vec<(String, Kept)>, EtcdError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let request = RangeRequest { key: start.into(), range_end: end_of(start), limit };
        let reply = self.ask(request, |mut kv, request| async move { kv.range(request).await }).await?;
        let named = reply.kvs.into_iter().filter_map(|found| {
            let kept = Kept { bytes: found.value, revision: found.mod_revision };
            Some((String::from_utf8(found.key).ok()?, kept))
        });
        Ok(named.collect())
    }

    /// Writes a value, or replaces it.
    ///
    /// # Errors
    /// As for [`Etcd::get`].
    pub async fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), EtcdError> {
        let request = PutRequest { key: key.into(), value: bytes };
        self.ask(request, |mut kv, request| async move { kv.put(request).await }).await.map(drop)
    }

    /// Writes a value unless the key exists. Returns its revision if it was written.
    ///
    /// # Errors
    /// As for [`Etcd::get`].
    pub async fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Option<i64>, EtcdError> {
        self.replace(key, bytes, 0).await
    }

    /// Replaces a value if it has this revision. Returns its new one if it was replaced.
    ///
    /// # Errors
    /// As for [`Etcd::get`].
    pub async fn replace(&self, key: &str, bytes: Vec<u8>, revision: i64) -> Result<Option<i64>, EtcdError> {
        let is_unchanged = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.into(),
            target_union: Some(TargetUnion::ModRevision(revision)),
        };
        let put = Request::RequestPut(PutRequest { key: key.into(), value: bytes });
        let request =
            TxnRequest { compare: vec![is_unchanged], success: vec![RequestOp { request: Some(put) }] };
        let reply = self.ask(request, |mut kv, request| async move { kv.txn(request).await }).await?;
        // The transaction is the change of that revision.
        Ok(reply.header.filter(|_| reply.succeeded).map(|header| header.revision))
    }

    /// Deletes a key, if it exists.
    ///
    /// # Errors
    /// As for [`Etcd::get`].
    pub async fn delete(&self, key: &str) -> Result<(), EtcdError> {
        let request = DeleteRangeRequest { key: key.into() };
        self.ask(request, |mut kv, request| async move { kv.delete_range(request).await }).await.map(drop)
    }

    /// Makes a request of the members in turn, until one answers, in several rounds.
    async fn ask<Q: Clone, A, F: Future<Output = Result<Response<A>, Status>>>(
        &self,
        request: Q,
        call: impl Fn(KvClient<Channel>, Q) -> F,
    ) -> Result<A, EtcdError> {
        let began = Instant::now();
        loop {
            match self.ask_each(&request, &call).await {
                Err(EtcdError::Unreachable(_)) if began.elapsed() < self.0.retry => {
                    tokio::time::sleep(ROUND_INTERVAL).await;
                }
                asked => return asked,
            }
        }
    }

    /// One round.
    async fn ask_each<Q: Clone, A, F: Future<Output = Result<Response<A>, Status>>>(
        &self,
        request: &Q,
        call: impl Fn(KvClient<Channel>, Q) -> F,
    ) -> Result<A, EtcdError> {
        let Shared { members, preferred, .. } = &*self.0;
        let first = preferred.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        for index in (0..members.len()).map(|turn| (first + turn) % members.len()) {
            let member = &members[index];
            let asked = async {
                let client = member.client().await?;
                call(client, request.clone()).await.map_err(|status| Failure::of(&status))
            };
            let failure = match tokio::time::timeout(MEMBER_TIMEOUT, asked).await {
                Ok(Ok(reply)) => {
                    preferred.store(index, Ordering::Relaxed);
                    return Ok(reply.into_inner());
                }
                Ok(Err(Failure::Refused(message))) => {
                    return Err(EtcdError::Refused { endpoint: member.to_string(), message });
                }
                Ok(Err(Failure::Silent(reason))) => reason,
                Err(_) => format!("no answer within {:.1} s", MEMBER_TIMEOUT.as_secs_f64()),
            };
            member.disconnect();
            // The caller may end this round before another member has answered.
            preferred.store((index + 1) % members.len(), Ordering::Relaxed);
            failures.push(member.explain(&failure));
        }
        Err(EtcdError::Unreachable(failures.join("; ")))
    }
}

/// Why a member has not done what it was asked.
#[derive(Debug)]
enum Failure {
    /// Another one may answer.
    Silent(String),
    /// So would all others.
    Refused(String),
}

impl Failure {
    fn of(status: &Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::InvalidArgument
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::Unimplemented => Self::Refused(message),
            _ => Self::Silent(message),
        }
    }
}

/// The end of the range of all keys that begin with `start`.
fn end_of(start: &str) -> Vec<u8> {
    let mut end = start.as_bytes().to_vec();
    // UTF-8 has no byte 255, so the last one can be incremented.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_after_the_last_key_with_the_start() {
        assert_eq!(end_of("m/peers/"), b"m/peers0");
        assert!(*"m/peers/\u{10ffff}".as_bytes() < *end_of("m/peers/"));
    }

    #[test]
    fn only_what_every_member_would_refuse_ends_a_request() {
        let is_refused = |status: Status| matches!(Failure::of(&status), Failure::Refused(_));
        assert!(is_refused(Status::permission_denied("etcdserver: permission denied")));
        assert!(!is_refused(Status::unavailable("etcdserver: leader changed")));
        assert!(!is_refused(Status::unknown("transport error")));
    }
}
