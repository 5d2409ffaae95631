//! What the screen shows, asked from the daemon in the background.

use std::time::Duration;

use millstream_control::proto::{
    self, FeedsReply, History, Job, ListReply, ListRequest, LogLine, LogsRequest, Snapshot,
};
use millstream_control::{Client, ClientError};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::model::Change;
use crate::connection::to_daemon;
use crate::context::Context;

/// The maximum number of jobs on the screen, the newest ones.
const MAX_JOBS: u32 = 500;

/// Lines of a job's log on its page.
const LOG_LINES: u64 = 100;

/// The time after which an unanswered request counts as failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer for the screen.
pub(super) enum Answer {
    /// The daemon with its jobs and feeds, and the opened job.
    Look { snapshot: Box<Snapshot>, jobs: ListReply, feeds: Vec<proto::Feed>, page: Option<Box<Page>> },
    /// The daemon did not answer.
    Lost(String),
    /// What a change came to, in a sentence.
    Changed(String),
}

/// What only an opened job's page shows.
#[derive(Default)]
pub(super) struct Page {
    pub(super) id: String,
    pub(super) history: History,
    pub(super) log: Vec<LogLine>,
}

/// A connection, and whether this user may read logs over it. The daemon records each request that it refuses.
struct Connected {
    client: Client,
    reads_logs: bool,
}

/// Asks the daemon until it is dropped.
pub(super) struct Feed {
    context: Context,
    /// The id of the job whose page is wanted.
    opened: watch::Sender<Option<String>>,
    answers: mpsc::Sender<Answer>,
    asking: AbortHandle,
}

impl Feed {
    /// Asks every `interval`, on this runtime, and at once when another job is opened.
    pub(super) fn start(context: &Context, interval: Duration, answers: mpsc::Sender<Answer>) -> Self {
        let (opened, wanted) = watch::channel(None);
        let asking = tokio::spawn(ask(context.clone(), interval, wanted, answers.clone()));
        Self { context: context.clone(), opened, answers, asking: asking.abort_handle() }
    }

    /// Wants the page of this job, too.
    pub(super) fn open(&self, id: Option<&str>) {
        self.opened.send_if_modified(|opened| {
            let is_other = opened.as_deref() != id;
            if is_other {
                *opened = id.map(str::to_owned);
            }
            is_other
        });
    }

    /// Changes a job. Its answer may take as long as a checkpoint.
    pub(super) fn change(&self, change: Change, id: String) {
        let (context, answers) = (self.context.clone(), self.answers.clone());
        tokio::spawn(async move {
            let text = match carry_out(&context, change, &id).await {
                Ok(text) => text,
                Err(error) => format!("{id}: {error}"),
            };
            let _ = answers.send(Answer::Changed(text)).await;
        });
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

async fn ask(
    context: Context,
    interval: Duration,
    mut opened: watch::Receiver<Option<String>>,
    answers: mpsc::Sender<Answer>,
) {
    let mut connected = None;
    loop {
        let id = opened.borrow_and_update().clone();
        let asking = look_over(&mut connected, &context, id.as_deref());
        let answer = match tokio::time::timeout(PATIENCE, asking).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => Answer::Lost(why),
            Err(_) => Answer::Lost(format!("the daemon has not answered for {} s", PATIENCE.as_secs())),
        };
        if matches!(answer, Answer::Lost(_)) {
            connected = None;
        }
        if answers.send(answer).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            changed = opened.changed() => if changed.is_err() { return },
        }
    }
}

/// Looks over the connection in `connected`, or a new one.
async fn look_over(
    connected: &mut Option<Connected>,
    context: &Context,
    id: Option<&str>,
) -> Result<Answer, String> {
    let Connected { client, reads_logs } = match connected {
        Some(connected) => connected,
        None => {
            let mut client = to_daemon(context).await.map_err(|error| error.to_string())?;
            let reads_logs = client.about().await.map_or(true, |about| about.role != "viewer");
            connected.insert(Connected { client, reads_logs })
        }
    };
    Answer::look(client, id.map(|id| (id, *reads_logs))).await.map_err(|error| error.to_string())
}

impl Answer {
    /// Asks for everything once. `opened` is the job whose page is open, and whether to ask for its log.
    pub(super) async fn look(client: &mut Client, opened: Option<(&str, bool)>) -> Result<Self, ClientError> {
        let snapshot = Box::new(client.snapshot().await?);
        let jobs = client.list(ListRequest { states: Vec::new(), limit: MAX_JOBS }).await?;
        let feeds = feeds_of(client.feeds().await)?;
        let page = match opened {
            Some((id, reads_logs)) => match page(client, id, reads_logs).await {
                Ok(page) => Some(Box::new(page)),
                // Removed by someone.
                Err(ClientError::NotFound(_)) => None,
                Err(error) => return Err(error),
            },
            None => None,
        };
        Ok(Self::Look { snapshot, jobs, feeds, page })
    }
}

/// The feeds in a daemon's answer; none if it refuses the request, as a daemon does that is older than feeds.
fn feeds_of(answer: Result<FeedsReply, ClientError>) -> Result<Vec<proto::Feed>, ClientError> {
    match answer {
        Ok(reply) => Ok(reply.feeds),
        Err(ClientError::Failed(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

async fn page(client: &mut Client, id: &str, reads_logs: bool) -> Result<Page, ClientError> {
    let history = client.history(id).await?;
    let log = match reads_logs {
        true => log(client, id).await,
        false => Ok(Vec::new()),
    };
    let log = match log {
        // The role can change while the connection is open.
        Err(ClientError::Failed(_)) => Vec::new(),
        log => log?,
    };
    Ok(Page { id: id.to_owned(), history, log })
}

/// The last lines of a job's log.
async fn log(client: &mut Client, id: &str) -> Result<Vec<LogLine>, ClientError> {
    let request = LogsRequest { id: id.to_owned(), last: LOG_LINES, ..LogsRequest::default() };
    let mut lines = client.logs(request).await?;
    let mut log = Vec::new();
    while let Some(line) = lines.next().await? {
        log.push(line);
    }
    Ok(log)
}

/// Carries out a change; returns what it came to.
async fn carry_out(context: &Context, change: Change, id: &str) -> Result<String, String> {
    let mut client = to_daemon(context).await.map_err(|error| error.to_string())?;
    let is_now = |job: Job| format!("{} is {}", job.id, job.state());
    let changed = match change {
        Change::Cancel => client.cancel(id).await.map(is_now),
        Change::Pause => client.pause(id).await.map(is_now),
        Change::Resume => client.resume(id).await.map(is_now),
        Change::Checkpoint => client.checkpoint(id).await.map(|reply| format!("saved {}", reply.path)),
    };
    changed.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_daemon_older_than_feeds_is_shown_without_them() {
        let feeds = vec![proto::Feed { id: "feed-k3f9q2".to_owned(), ..proto::Feed::default() }];
        let reply = FeedsReply { feeds: feeds.clone(), ..FeedsReply::default() };
        assert_eq!(feeds_of(Ok(reply)).unwrap(), feeds);
        // An unknown request has no message.
        for message in ["", "Feeds: user ann may only look at jobs; members of ops may do that"] {
            let feeds = feeds_of(Err(ClientError::Failed(message.to_owned()))).unwrap();
            assert!(feeds.is_empty(), "{feeds:?}");
        }
        let lost = feeds_of(Err(ClientError::Lost("broken pipe".to_owned())));
        assert!(matches!(lost, Err(ClientError::Lost(_))), "{lost:?}");
    }
}
