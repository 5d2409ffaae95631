//! Notices of a cloud that it is about to take this VM away, to restart or to move it.
//!
//! A VM that is shut down in order sends SIGTERM to its services, which also stops the daemon. Notices come earlier, some of
//! them by an hour, so that not all of them are a reason to stop: see [`Advice`]. Each cloud has a metadata server that only
//! its VMs reach; on other machines nothing is asked.
//!
//! | cloud | address below the server | advice |
//! |---|---|---|
//! | Google Cloud | `/computeMetadata/v1/instance/preempted`, `TRUE` | stop |
//! | | `.../instance/maintenance-event`, `TERMINATE_ON_HOST_MAINTENANCE`: 1 minute before, with GPUs 60 | save |
//! | | `.../instance/maintenance-event`, `MIGRATE_ON_HOST_MAINTENANCE` | nothing |
//! | | `.../instance/upcoming-maintenance`: days before, for VMs with a schedule | nothing |
//! | AWS | `/latest/meta-data/spot/instance-action`: 2 minutes before | stop |
//! | | `/latest/meta-data/events/recommendations/rebalance`: a higher risk of the former | save |
//! | Azure | `/metadata/scheduledevents`, `Preempt` and `Terminate`: 30 seconds to 15 minutes before | stop |
//! | | the same, `Reboot` and `Redeploy`: 10 to 15 minutes before | save |
//! | | the same, `Freeze`: a pause of seconds | nothing |
//!
//! Google gives notice of maintenance only to VMs that have asked for it.

mod aws;
mod azure;
mod google;
mod server;

use std::fs;
use std::future::Future;
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt;
use futures::stream::{self, BoxStream, SelectAll};

use self::server::Server;

/// The pause between questions to a server that does not wait for a change, and after one without an answer.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 3_000 });

/// A cloud, with the address of its metadata server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cloud {
    kind: Kind,
    server: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Google,
    Aws,
    Azure,
}

/// What a cloud announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// What to do.
    pub(crate) advice: Advice,
    /// What is going to happen.
    pub(crate) text: String,
}

/// What to do about a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// The VM ends within seconds: save and stop.
    Stop,
    /// The VM may end, in minutes or not at all: save, and continue until SIGTERM.
    Save,
    /// The VM goes on.
    Nothing,
}

impl Notice {
    fn new(advice: Advice, text: impl Into<String>) -> Self {
        Self { advice, text: text.into() }
    }
}

/// Something that a metadata server can be asked.
trait Question: Send {
    /// The pause between two questions; zero if the server answers when something changes.
    const PAUSE: Duration;

    /// The notices that hold now.
    fn ask(&mut self, server: &Server) -> impl Future<Output = Result<Vec<Notice>>> + Send;
}

impl Cloud {
    /// The cloud of this host, by its firmware or by the variable that Google's own programs use.
    pub(crate) fn of_host() -> Option<Self> {
        let firmware =
            |name: &str| fs::read_to_string(format!("/sys/class/dmi/id/{name}")).unwrap_or_default();
        let google = std::env::var("GCE_METADATA_HOST").ok().filter(|host| !host.is_empty());
        Self::by(google, &firmware("sys_vendor"), &firmware("chassis_asset_tag"))
    }

    fn by(google: Option<String>, vendor: &str, chassis: &str) -> Option<Self> {
        let (kind, server) = match (google, vendor.trim(), chassis.trim()) {
            (Some(host), ..) => (Kind::Google, host),
            (None, "Google", _) => (Kind::Google, "metadata.google.internal".to_owned()),
            (None, "Amazon EC2", _) => (Kind::Aws, "169.254.169.254".to_owned()),
            // The tag of every VM on Azure; other machines of Microsoft have none.
            (None, "Microsoft Corporation", "7783-7084-3265-9085-8269-3286-77") => {
                (Kind::Azure, "169.254.169.254".to_owned())
            }
            _ => return None,
        };
        Some(Self { kind, server })
    }

    /// The notices, each once while it holds. Never ends.
    pub(crate) fn notices(self) -> SelectAll<BoxStream<'static, Notice>> {
        let server = Server::new(self.server);
        stream::select_all(match self.kind {
            Kind::Google => vec![
                answers(google::Preempted::default(), server.clone()),
                answers(google::Maintenance::default(), server.clone()),
                answers(google::Planned, server),
            ],
            Kind::Aws => vec![answers(aws::Interruption::default(), server)],
            Kind::Azure => vec![answers(azure::Events, server)],
        })
    }
}

/// Asks `question` again and again; the notices that did not hold before.
fn answers<Q: Question + 'static>(question: Q, server: Server) -> BoxStream<'static, Notice> {
    let asking = Asking { question, server, known: Vec::new(), pause: Duration::ZERO, has_failed: false };
    stream::unfold(asking, |mut asking| async { Some((asking.new_notices().await, asking)) })
        .flat_map(stream::iter)
        .boxed()
}

/// A question that is asked again and again.
struct Asking<Q> {
    question: Q,
    server: Server,
    /// The notices of the last answer.
    known: Vec<Notice>,
    /// The pause before the next question.
    pause: Duration,
    /// Whether there was no last answer.
    has_failed: bool,
}

impl<Q: Question> Asking<Q> {
    /// Asks once more.
    async fn new_notices(&mut self) -> Vec<Notice> {
        tokio::time::sleep(self.pause).await;
        match self.question.ask(&self.server).await {
            Ok(notices) => {
                (self.pause, self.has_failed) = (Q::PAUSE, false);
                let known = std::mem::replace(&mut self.known, notices);
                self.known.iter().filter(|notice| !known.contains(notice)).cloned().collect()
            }
            Err(error) => {
                if !self.has_failed {
                    tracing::warn!("cannot ask the metadata server for notices: {error:#}");
                }
                (self.pause, self.has_failed) = (Q::PAUSE.max(PAUSE), true);
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests;
