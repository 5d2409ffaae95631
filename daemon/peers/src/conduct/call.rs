//! The calls of a leader to the hosts of its job.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::wire::{decode_from_member, encode_from_leader};
use super::{Addresses, QUEUE, RunAddress};
use crate::generations::{SILENCE, ToLeader, ToMember};
use crate::link::{Link, refusal};
use crate::proto::from_leader::Message;
use crate::proto::{FollowOpening, FromLeader, FromMember};
use crate::server::ThisHost;
use crate::{HostName, LinkError};

/// The first time between two calls of a host, and the longest.
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const MAX_BACK_OFF: Duration = Duration::from_secs(5);

/// The longest time between two calls of a host that answers, but is not part of the job: for so long it may prepare the job.
const PREPARING_BACK_OFF: Duration = Duration::from_millis(500);
const PREPARATION: Duration = Duration::from_mins(1);

/// What a leader hears from a call.
#[derive(Debug)]
pub(super) enum Heard {
    /// It is open. The queue takes messages to the host; the call ends when the queue is dropped.
    Opened(HostName, mpsc::Sender<ToMember>),
    /// A message, with its epoch.
    Message(HostName, u64, ToLeader),
    /// It has ended.
    Closed(HostName),
}

/// Calls hosts for a leader.
pub(super) struct Caller {
    pub(super) this: Arc<ThisHost>,
    pub(super) run: RunAddress,
    pub(super) epoch: u64,
    pub(super) hosts: watch::Receiver<Addresses>,
    pub(super) heard: mpsc::Sender<Heard>,
    /// No calls are opened any more.
    pub(super) is_over: AtomicBool,
}

/// An open call.
struct Call {
    link: Link,
    messages: mpsc::Sender<FromLeader>,
    replies: Streaming<FromMember>,
}

/// The time between two calls of a host. It doubles, and starts again after a call that lasted, or once a host answers again.
#[derive(Default)]
struct BackOff {
    calls: u32,
    /// Since when the host has refused all calls.
    refused: Option<Instant>,
}

impl BackOff {
    /// After a call that was open for `lasted`.
    fn after_call(&mut self, lasted: Duration) -> Duration {
        if lasted >= SILENCE {
            *self = Self::default();
        }
        self.next(MAX_BACK_OFF)
    }

    /// After a call that could not be opened.
    fn after_failure(&mut self, error: &LinkError, now: Instant) -> Duration {
        if !matches!(error, LinkError::Refused(_)) {
            self.refused = None;
            return self.next(MAX_BACK_OFF);
        }
        if self.refused.is_none() {
            *self = Self { calls: 0, refused: Some(now) };
        }
        let is_preparing = self.refused.is_some_and(|since| now.duration_since(since) < PREPARATION);
        self.next(if is_preparing { PREPARING_BACK_OFF } else { MAX_BACK_OFF })
    }

    fn next(&mut self, longest: Duration) -> Duration {
        let next = FIRST_BACK_OFF.saturating_mul(1 << self.calls.min(10));
        self.calls = self.calls.saturating_add(1);
        next.min(longest)
    }
}

impl Caller {
    /// Calls `host` again and again while it is listed. Returns its name.
    pub(super) async fn keep_calling(self: Arc<Self>, host: HostName) -> HostName {
        let mut back_off = BackOff::default();
        while let Some(address) = self.address(&host) {
            let (error, pause) = match self.open(&host, &address).await {
                Ok(call) => {
                    let began = Instant::now();
                    (self.carry(&host, call).await, back_off.after_call(began.elapsed()))
                }
                Err(error) => (error.to_string(), back_off.after_failure(&error, Instant::now())),
            };
            tracing::debug!("the call of {host} for {} ended: {error}", self.run);
            tokio::time::sleep(pause).await;
        }
        host
    }

    fn address(&self, host: &HostName) -> Option<String> {
        let is_over = self.is_over.load(Ordering::Relaxed);
        self.hosts.borrow().get(host).filter(|_| !is_over).cloned()
    }

    /// Connects to the host at `address` and names the job.
    async fn open(&self, host: &HostName, address: &str) -> Result<Call, LinkError> {
        let mut link = Link::connect(address, &self.this).await?;
        if link.about.host != *host {
            return Err(LinkError::Refuses(format!("{address} is {}, not {host}", link.about.host)));
        }
        let opening = FollowOpening { run: self.run.to_string(), epoch: self.epoch };
        let opening = FromLeader { message: Some(Message::Opening(opening)) };
        let (messages, taken) = mpsc::channel(1);
        let _ = messages.try_send(opening);
        let replies = timeout(SILENCE, link.client.follow(ReceiverStream::new(taken))).await;
        let replies = replies.map_err(|_| LinkError::Timeout(SILENCE))?;
        let replies = replies.map_err(|status| refusal(&status))?.into_inner();
        Ok(Call { link, messages, replies })
    }

    /// Carries messages until the call ends. Returns why.
    async fn carry(&self, host: &HostName, Call { link, messages, replies }: Call) -> String {
        let (sender, queue) = mpsc::channel(QUEUE);
        // Sends fail only when nobody leads any more, and this task is about to be dropped.
        let _ = self.heard.send(Heard::Opened(host.clone(), sender)).await;
        let error = tokio::select! {
            error = pass_on(queue, &messages, SILENCE) => error,
            error = self.hear(host, replies) => error,
            error = link.expelled(&self.this) => error.to_string(),
        };
        let _ = self.heard.send(Heard::Closed(host.clone())).await;
        error
    }

    async fn hear(&self, host: &HostName, mut replies: Streaming<FromMember>) -> String {
        loop {
            let decoded = match replies.message().await {
                Ok(Some(reply)) => decode_from_member(reply),
                Ok(None) => return "the host has ended it".to_owned(),
                Err(status) => return refusal(&status).to_string(),
            };
            match decoded {
                Ok((epoch, message)) => {
                    let _ = self.heard.send(Heard::Message(host.clone(), epoch, message)).await;
                }
                Err(error) => return error.to_string(),
            }
        }
    }
}

/// Passes messages on as the host reads them, with `patience` for each. Returns why it stopped.
async fn pass_on(
    mut queue: mpsc::Receiver<ToMember>,
    messages: &mpsc::Sender<FromLeader>,
    patience: Duration,
) -> String {
    while let Some(message) = queue.recv().await {
        match timeout(patience, messages.send(encode_from_leader(message))).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return "the connection broke".to_owned(),
            Err(_) => return format!("the host has not read for {} s", patience.as_secs()),
        }
    }
    "the leader has ended it".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_prepares_the_job_is_called_often() {
        let (down, busy) = (LinkError::Connect(String::new()), LinkError::Refused(String::new()));
        let (mut back_off, now) = (BackOff::default(), Instant::now());
        let waits =
            |back_off: &mut BackOff, error, now| (0..20).map(|_| back_off.after_failure(error, now)).max();
        assert_eq!(waits(&mut back_off, &down, now), Some(MAX_BACK_OFF));
        assert_eq!(back_off.after_failure(&busy, now), FIRST_BACK_OFF, "it is up again");
        assert_eq!(waits(&mut back_off, &busy, now), Some(PREPARING_BACK_OFF));
        assert_eq!(
            waits(&mut back_off, &busy, now + PREPARATION),
            Some(MAX_BACK_OFF),
            "it has no part in the job"
        );
        assert_eq!(back_off.after_call(SILENCE), FIRST_BACK_OFF);
        assert_eq!(waits(&mut back_off, &down, now), Some(MAX_BACK_OFF));
    }

    #[tokio::test]
    async fn a_host_that_does_not_read_is_given_up() {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (messages, _unread) = mpsc::channel(1);
        (0..3).for_each(|_| queue.try_send(ToMember::Lead).expect("room"));
        let (began, patience) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(pass_on(waiting, &messages, patience).await, "the host has not read for 1 s");
        assert!((patience..2 * patience).contains(&began.elapsed()));
    }
}
