//! The gRPC service: the control API over a [`Daemon`].
//!
//! Requests become calls, records become messages, errors become statuses. An invalid job file is
//! `INVALID_ARGUMENT`, an unknown job `NOT_FOUND`, a change that is not the user's to make `PERMISSION_DENIED`, any other
//! failure `UNKNOWN` with its message.

mod peers;
mod profile;

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{self, Stream, StreamExt};
use millstream_control::proto::control_server::{Control, ControlServer};
use millstream_control::proto::{
    self, AboutReply, AboutRequest, AuditReply, AuditRequest, CheckpointReply, FeedsReply, FeedsRequest,
    JobRequest, ListReply, ListRequest, LogLine, LogsRequest, MeasurePeersRequest, MetricsReply,
    MetricsRequest, PeersReply, PeersRequest, ProfileReply, ProfileRequest, ScoreRequest, Scores,
    SnapshotRequest, SubmitRequest, TrialsRequest, WebReply, WebRequest,
};
use millstream_control::{MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES};
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::access::Requester;
use crate::actor::{Action, Actor};
use crate::audit::{Attempt, record_message};
use crate::connections::Peer;
use crate::daemon::{Daemon, LOG_PAGE, NotOwner, Predictions, SubmitError};
use crate::messages::{
    directory_text, explanation_message, feeds_message, fewer_workers_message, gpu_message, history_message,
    job_message, line_message, metrics_message, scores_message, seen_by, snapshot_message, trials_message,
    worker_messages,
};
use crate::metrics::{self, Format};
use crate::roles::{Call, Role, Roles};
use crate::state::{AuditFilter, JobFilter, JobRecord, StoreError};
use crate::supervisor::NoSuchRank;
use crate::turns::Answers;
use crate::web::Web;

/// The maximum size of the jobs in the reply to `List`, well below that of a message.
const MAX_LIST_BYTES: usize = MAX_MESSAGE_BYTES / 2;

/// The maximum number of jobs in the reply to `List` for a viewer.
const MAX_JOBS_OF_VIEWER: u32 = 200;

/// Capacity of the pipe between a client and a daemon in one process, in each direction.
const PIPE_BYTES: usize = 64 << 10;

/// The gRPC server for `daemon`, behind a [`Gate`](crate::roles::Gate) with the same roles.
pub(crate) fn server(daemon: Daemon, roles: Arc<Roles>, web: Web) -> ControlServer<impl Control> {
    control_server(Service { daemon, served: Some(Served { roles, web }) })
}

fn control_server(service: Service) -> ControlServer<impl Control> {
    ControlServer::new(service)
        .max_decoding_message_size(MAX_REQUEST_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

/// Serves `daemon` to one client in this process over the returned pipe. Must be called within a tokio
/// runtime; ends when the client drops its end.
pub fn serve_in_process(daemon: Daemon) -> DuplexStream {
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let only = stream::once(async { Ok::<_, std::io::Error>(far) });
    let server = control_server(Service { daemon, served: None });
    tokio::spawn(async move {
        if let Err(error) = Server::builder().add_service(server).serve_with_incoming(only).await {
            tracing::error!(%error, "the in-process control server failed");
        }
    });
    near
}

struct Service {
    daemon: Daemon,
    /// `None` if its only client is the program that hosts the daemon.
    served: Option<Served>,
}

/// What a daemon behind a control socket has besides.
struct Served {
    roles: Arc<Roles>,
    web: Web,
}

impl Service {
    /// For whom the daemon carries out the request.
    fn requester<T>(&self, request: &Request<T>) -> Result<Requester, Status> {
        if self.served.is_none() {
            return Ok(Requester::Trusted);
        }
        let peer = request.extensions().get::<Peer>().map(|peer| peer.requester.clone());
        peer.ok_or_else(|| Status::internal("the connection has no credentials"))
    }

    /// Who sends the request; `None` for the program that hosts the daemon.
    fn actor<T>(&self, request: &Request<T>) -> Option<Actor> {
        request.extensions().get::<Peer>().map(|peer| peer.actor).filter(|_| self.served.is_some())
    }

    /// What the sender of the request may do; the gate has checked it.
    fn role<T>(&self, request: &Request<T>) -> Role {
        let checked = request.extensions().get().copied();
        if self.served.is_none() { Role::Operator } else { checked.unwrap_or(Role::Viewer) }
    }

    /// Starts to record a call of the job or checkpoint `target`; `None` for the program that hosts the daemon.
    fn attempt<T>(&self, request: &Request<T>, call: Call, target: &str) -> Option<Attempt> {
        let peer = request.extensions().get::<Peer>().filter(|_| self.served.is_some())?;
        Some(Attempt::new(&self.daemon, &peer.credentials, call, target))
    }

    /// Changes the job that the request names, and records who does.
    async fn change<T, F>(
        &self,
        request: Request<JobRequest>,
        action: Action,
        change: impl FnOnce(Daemon, String) -> F + Send,
    ) -> Result<T, Status>
    where
        F: Future<Output = anyhow::Result<T>> + Send,
    {
        let mut attempt = self.attempt(&request, action.call(), &request.get_ref().id);
        let changed = async {
            let (record, may_change) = self.begin(&request, action).await?;
            if let Some(attempt) = &mut attempt {
                attempt.of(&record);
            }
            may_change.map_err(|refused| error_status(refused.into()))?;
            change(self.daemon.clone(), record.id).await.map_err(error_status)
        };
        let changed = changed.await;
        if let Some(attempt) = attempt {
            attempt.ended(&changed);
        }
        changed
    }

    /// The job that a request is to change, and whether its sender may. If so, the job's log says who does that.
    async fn begin(
        &self,
        request: &Request<JobRequest>,
        action: Action,
    ) -> Result<(JobRecord, Result<(), NotOwner>), Status> {
        let (requester, actor) = (self.requester(request)?, self.actor(request));
        let id = request.get_ref().id.clone();
        let begin = move |daemon: &Daemon| {
            let record = daemon.show(&id)?;
            let may_change = daemon.check_may_change(&record, &requester);
            if let (Ok(()), Some(actor)) = (&may_change, actor)
                && let Err(error) = daemon.record_action(&record.id, action, actor)
            {
                // The change is made all the same.
                tracing::warn!(job = record.id, "cannot record who changed it: {error:#}");
            }
            Ok((record, may_change))
        };
        self.daemon.in_turn(&answers(request), begin).await.map_err(error_status)
    }

    /// The answer to a request about one job, which may wait for the state database.
    async fn ask<T: Send + 'static, E: 'static>(
        &self,
        request: Request<JobRequest>,
        answer: fn(&Daemon, &str) -> Result<T, E>,
    ) -> Result<T, Status>
    where
        anyhow::Error: From<E>,
    {
        let answers = answers(&request);
        let id = request.into_inner().id;
        self.daemon.in_turn(&answers, move |daemon| Ok(answer(daemon, &id)?)).await.map_err(error_status)
    }
}

/// The answers that the connection of a request has had.
fn answers<T>(request: &Request<T>) -> Answers {
    let peer = request.extensions().get::<Peer>();
    peer.map_or_else(|| Answers::none(Role::Operator), |peer| peer.answers.clone())
}

type Reply<T> = Result<Response<T>, Status>;
type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Control for Service {
    async fn submit(&self, request: Request<SubmitRequest>) -> Reply<proto::Job> {
        let (requester, actor) = (self.requester(&request)?, self.actor(&request));
        let owner = actor.map(Actor::owner);
        let attempt = self.attempt(&request, Call::Submit, "");
        let submitted = self.daemon.submit_as(request.into_inner(), requester, owner).await;
        let submitted = submitted.map_err(|error| match error {
            SubmitError::Invalid(error) => Status::invalid_argument(error.to_string()),
            SubmitError::Other(error) => error_status(error),
        });
        if let Some(mut attempt) = attempt {
            if let Ok(record) = &submitted {
                attempt.of(record);
            }
            attempt.ended(&submitted);
        }
        let record = submitted?;
        if let Some(actor) = actor {
            let id = record.id.clone();
            let recorded =
                self.daemon.blocking(move |daemon| daemon.record_action(&id, Action::Submit, actor));
            if let Err(error) = recorded.await {
                // The job is accepted all the same.
                tracing::warn!(job = record.id, "cannot record who submitted it: {error:#}");
            }
        }
        Ok(Response::new(job_message(&record)))
    }

    async fn about(&self, request: Request<AboutRequest>) -> Reply<AboutReply> {
        let (role, about) = (self.role(&request), self.daemon.about());
        let about = match role {
            Role::Operator => about,
            Role::Viewer => {
                AboutReply { state_directory: String::new(), shared_directories: Vec::new(), ..about }
            }
        };
        let operators = self.served.as_ref().map(|served| served.roles.operators()).unwrap_or_default();
        Ok(Response::new(AboutReply { role: role.name().to_owned(), operators, ..about }))
    }

    async fn list(&self, request: Request<ListRequest>) -> Reply<ListReply> {
        let (answers, role) = (answers(&request), self.role(&request));
        let request = request.into_inner();
        let most = match role {
            Role::Operator => u32::MAX,
            Role::Viewer => MAX_JOBS_OF_VIEWER,
        };
        let limit = Some(request.limit).filter(|&limit| limit > 0).unwrap_or(u32::MAX).min(most);
        let filter =
            JobFilter { states: request.states().collect(), limit: (limit < u32::MAX).then_some(limit) };
        let listed = self.daemon.in_turn(&answers, move |daemon| Ok(daemon.list(&filter)?)).await;
        let (records, all) = listed.map_err(error_status)?;
        let jobs = fitting(records.iter().map(|record| seen_by(role, job_message(record))), MAX_LIST_BYTES);
        let omitted = all.saturating_sub(jobs.len() as u64);
        Ok(Response::new(ListReply { jobs, omitted }))
    }

    async fn show(&self, request: Request<JobRequest>) -> Reply<proto::Job> {
        let role = self.role(&request);
        let show = |daemon: &Daemon, id: &str| {
            let record = daemon.show(id)?;
            let (gpus, workers) = (daemon.gpus_of(&record.id), daemon.ranks_of(&record.id));
            let (image_step, fewer) = (daemon.image_of(&record.id), daemon.fewer_workers_of(&record.id));
            Ok::<_, anyhow::Error>((record, gpus, workers, image_step, fewer))
        };
        let (record, gpus, workers, image_step, fewer) = self.ask(request, show).await?;
        let best_checkpoint = match role {
            Role::Operator => self.daemon.best_checkpoint(&record).await.as_ref().map(directory_text),
            Role::Viewer => None,
        };
        let gpus = gpus.iter().map(gpu_message).collect();
        let workers = worker_messages(&workers);
        let fewer_workers = fewer.as_ref().map(fewer_workers_message);
        let job = seen_by(role, proto::Job { fewer_workers, ..job_message(&record) });
        Ok(Response::new(proto::Job { best_checkpoint, gpus, workers, image_step, ..job }))
    }

    type LogsStream = Replies<LogLine>;

    async fn logs(&self, request: Request<LogsRequest>) -> Reply<Self::LogsStream> {
        let answers = answers(&request);
        let LogsRequest { id, follow, last, since_ms } = request.into_inner();
        let found = self.daemon.in_turn(&answers, move |daemon| {
            let record = daemon.watch(&id)?;
            let after = daemon.log_start(&record.borrow().id, last, since_ms)?;
            Ok((record, after))
        });
        let (record, after) = found.await.map_err(error_status)?;
        let id = record.borrow().id.clone();
        let tail = LogTail { daemon: self.daemon.clone(), answers, id, after, record: Some(record) };
        let lines = stream::unfold(tail, move |tail| tail.read(follow));
        Ok(Response::new(lines.flat_map(stream::iter).boxed()))
    }

    type WatchStream = Replies<proto::Job>;

    async fn watch(&self, request: Request<JobRequest>) -> Reply<Self::WatchStream> {
        let role = self.role(&request);
        let mut record = self.ask(request, |daemon, id| daemon.watch(id)).await?;
        // Send the first message immediately.
        record.mark_changed();
        let jobs = stream::unfold(Some(record), move |record| async move {
            let mut record = record?;
            record.changed().await.ok()?;
            let (message, ended) = {
                let now = record.borrow_and_update();
                (seen_by(role, job_message(&now)), now.state.is_final())
            };
            Some((Ok(message), (!ended).then_some(record)))
        });
        Ok(Response::new(jobs.boxed()))
    }

    async fn history(&self, request: Request<JobRequest>) -> Reply<proto::History> {
        let role = self.role(&request);
        let (record, history) = self.ask(request, |daemon, id| daemon.history(id)).await?;
        Ok(Response::new(proto::History {
            job: Some(seen_by(role, job_message(&record))),
            ..history_message(&record, history)
        }))
    }

    async fn explain(&self, request: Request<JobRequest>) -> Reply<proto::Explanation> {
        if let Some(explanation) = self.daemon.explain_feed(&request.get_ref().id) {
            return Ok(Response::new(explanation_message(&explanation.map_err(error_status)?)));
        }
        let explain = |daemon: &Daemon, id: &str| {
            let record = daemon.show(id)?;
            let (gpus, workers) = (daemon.gpus_of(&record.id), daemon.ranks_of(&record.id));
            Ok::<_, anyhow::Error>((daemon.explain(&record.id)?, gpus, workers))
        };
        let (explanation, gpus, workers) = self.ask(request, explain).await?;
        let (gpus, workers) = (gpus.iter().map(gpu_message).collect(), worker_messages(&workers));
        Ok(Response::new(proto::Explanation { gpus, workers, ..explanation_message(&explanation) }))
    }

    type ProfileStream = Replies<ProfileReply>;

    async fn profile(&self, request: Request<ProfileRequest>) -> Reply<Self::ProfileStream> {
        let answers = answers(&request);
        let ProfileRequest { id, steps, rank } = request.into_inner();
        let profile = move |daemon: &Daemon| daemon.profile(&id, steps.max(1), rank);
        let pending = self.daemon.in_turn(&answers, profile).await;
        let (id, pending) = pending.map_err(error_status)?;
        Ok(Response::new(profile::replies(id, pending)))
    }

    async fn cancel(&self, request: Request<JobRequest>) -> Reply<proto::Job> {
        let cancel = |daemon: Daemon, id: String| async move { daemon.cancel(&id).await };
        let record = self.change(request, Action::Cancel, cancel).await?;
        Ok(Response::new(job_message(&record)))
    }

    async fn pause(&self, request: Request<JobRequest>) -> Reply<proto::Job> {
        let pause = |daemon: Daemon, id: String| async move { daemon.pause(&id).await };
        let record = self.change(request, Action::Pause, pause).await?;
        Ok(Response::new(job_message(&record)))
    }

    async fn resume(&self, request: Request<JobRequest>) -> Reply<proto::Job> {
        let resume = |daemon: Daemon, id: String| async move { daemon.resume(&id).await };
        let record = self.change(request, Action::Resume, resume).await?;
        Ok(Response::new(job_message(&record)))
    }

    async fn remove(&self, request: Request<JobRequest>) -> Reply<proto::Job> {
        let answers = answers(&request);
        let remove = |daemon: Daemon, id: String| async move {
            daemon.in_turn(&answers, move |daemon| daemon.remove(&id)).await
        };
        let record = self.change(request, Action::Remove, remove).await?;
        Ok(Response::new(job_message(&record)))
    }

    async fn checkpoint(&self, request: Request<JobRequest>) -> Reply<CheckpointReply> {
        let checkpoint = |daemon: Daemon, id: String| async move { daemon.checkpoint(&id).await };
        let (path, step) = self.change(request, Action::Checkpoint, checkpoint).await?;
        Ok(Response::new(CheckpointReply { path: directory_text(&path), step }))
    }

    async fn metrics(&self, request: Request<MetricsRequest>) -> Reply<MetricsReply> {
        let open_metrics = request.into_inner().open_metrics;
        let format = if open_metrics { Format::OpenMetrics } else { Format::Prometheus };
        let text = self.daemon.blocking(move |daemon| Ok(metrics::render(&daemon.snapshot(), format))).await;
        let (content_type, text) = (format.content_type().to_owned(), text.map_err(error_status)?);
        Ok(Response::new(MetricsReply { content_type, text }))
    }

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Reply<proto::Snapshot> {
        let role = self.role(&request);
        let taken = self.daemon.blocking(|daemon| Ok(daemon.snapshot())).await.map_err(error_status)?;
        let mut snapshot = snapshot_message(&taken);
        for activity in &mut snapshot.jobs {
            activity.job = activity.job.take().map(|job| seen_by(role, job));
        }
        Ok(Response::new(snapshot))
    }

    async fn web(&self, request: Request<WebRequest>) -> Reply<WebReply> {
        let web = self.served.as_ref().map(|served| &served.web);
        let web = web.ok_or_else(|| Status::unimplemented("a daemon within a program has no web page"))?;
        let url = web.open(request.into_inner().port).map_err(error_status)?;
        Ok(Response::new(WebReply { url }))
    }

    async fn audit(&self, request: Request<AuditRequest>) -> Reply<AuditReply> {
        let answers = answers(&request);
        let AuditRequest { job, user, since_ms, limit, before } = request.into_inner();
        let filter =
            AuditFilter { job, user, since_ms, before, limit: Some(limit).filter(|&limit| limit > 0) };
        let read = self.daemon.in_turn(&answers, move |daemon| Ok(daemon.audited(&filter)?)).await;
        let (records, all) = read.map_err(error_status)?;
        let omitted = all.saturating_sub(records.len() as u64);
        Ok(Response::new(AuditReply { records: records.into_iter().map(record_message).collect(), omitted }))
    }

    async fn peers(&self, _: Request<PeersRequest>) -> Reply<PeersReply> {
        self.list_peers().await
    }

    type MeasurePeersStream = Replies<proto::PeerMeasurement>;

    async fn measure_peers(&self, request: Request<MeasurePeersRequest>) -> Reply<Self::MeasurePeersStream> {
        self.measure_links(request.into_inner()).await
    }

    async fn trials(&self, request: Request<TrialsRequest>) -> Reply<proto::TrialsReply> {
        let answers = answers(&request);
        let TrialsRequest { id, best_job } = request.into_inner();
        let trials = self.daemon.trials(&answers, id, best_job).await;
        Ok(Response::new(trials_message(trials.map_err(error_status)?)))
    }

    async fn feeds(&self, request: Request<FeedsRequest>) -> Reply<FeedsReply> {
        let role = self.role(&request);
        // The names of users come from a file.
        let open =
            self.daemon.blocking(move |daemon| Ok(feeds_message(&daemon.feeds().status(), role))).await;
        Ok(Response::new(open.map_err(error_status)?))
    }

    async fn evaluate(&self, request: Request<ScoreRequest>) -> Reply<proto::EvaluateReply> {
        let requester = self.requester(&request)?;
        let attempt = self.attempt(&request, Call::Evaluate, &request.get_ref().target);
        let metrics = self.daemon.evaluate_as(request.into_inner(), requester).await.map_err(error_status);
        if let Some(attempt) = attempt {
            attempt.ended(&metrics);
        }
        let metrics = metrics?;
        Ok(Response::new(proto::EvaluateReply { metrics: metrics.iter().map(metrics_message).collect() }))
    }

    type PredictStream = Replies<Scores>;

    async fn predict(&self, request: Request<ScoreRequest>) -> Reply<Self::PredictStream> {
        let requester = self.requester(&request)?;
        let attempt = self.attempt(&request, Call::Predict, &request.get_ref().target);
        let scores = self.daemon.predict_as(request.into_inner(), requester).await.map_err(error_status);
        if let Some(attempt) = attempt {
            attempt.ended(&scores);
        }
        let Predictions { labels, classes, rows } = scores?;
        let first = tokio_stream::once(Ok(Scores { labels, classes, ..Scores::default() }));
        let messages = ReceiverStream::new(rows).map(|part| part.map(scores_message).map_err(error_status));
        Ok(Response::new(first.chain(messages).boxed()))
    }
}

/// Reads a job's log to its end.
struct LogTail {
    daemon: Daemon,
    answers: Answers,
    id: String,
    after: u64,
    /// `None` once everything has been read.
    record: Option<watch::Receiver<JobRecord>>,
}

impl LogTail {
    /// The lines since the last call. Waits for new ones if there are none and the job has not ended.
    async fn read(mut self, follow: bool) -> Option<(Vec<Result<LogLine, Status>>, Self)> {
        let mut record = self.record.take()?;
        loop {
            // A job's last line is logged before its final state. So lines logged after this check of the
            // state are either read in the next iteration, or do not exist.
            let ended = !follow || record.borrow_and_update().state.is_final();
            let (id, after) = (self.id.clone(), self.after);
            let lines = self.daemon.in_turn(&self.answers, move |daemon| Ok(daemon.logs(&id, after)?)).await;
            let lines = match lines {
                Ok(lines) => lines,
                Err(error) => return Some((vec![Err(error_status(error))], self)),
            };
            if !lines.is_empty() || ended {
                let ended = ended && lines.len() < LOG_PAGE;
                self.after = lines.last().map_or(self.after, |line| line.seq);
                self.record = (!ended).then_some(record);
                return Some((lines.into_iter().map(|line| Ok(line_message(line))).collect(), self));
            }
            record.changed().await.ok()?;
        }
    }
}

/// The first messages whose sizes add up to at most `max_bytes`.
fn fitting<M: prost::Message>(messages: impl Iterator<Item = M>, max_bytes: usize) -> Vec<M> {
    let sized = messages.scan(0, |total, message| {
        *total += message.encoded_len();
        Some((*total, message))
    });
    sized.take_while(|(total, _)| *total <= max_bytes).map(|(_, message)| message).collect()
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::UnknownJob { .. } | StoreError::Ambiguous { .. } => {
                Self::not_found(error.to_string())
            }
            _ => Self::internal(error.to_string()),
        }
    }
}

fn error_status(error: anyhow::Error) -> Status {
    let error = match error.downcast::<StoreError>() {
        Ok(error) => return error.into(),
        Err(error) => error,
    };
    match error.downcast::<NotOwner>() {
        Ok(refused) => Status::permission_denied(refused.to_string()),
        Err(error) if error.is::<NoSuchRank>() => Status::invalid_argument(format!("{error:#}")),
        Err(error) => Status::unknown(format!("{error:#}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use millstream_control::{Client, ClientError};

    use super::*;

    #[tokio::test]
    async fn errors_reach_the_client_with_their_kind() {
        let daemon = Daemon::start_embedded().unwrap();
        let mut client = Client::in_process(serve_in_process(daemon)).await.unwrap();
        assert_eq!(client.list(ListRequest::default()).await.unwrap(), ListReply::default());

        let text = "name = \"x\"\nsed = 3\n".to_owned();
        let request = SubmitRequest { text, path: "/jobs/job.toml".into(), ..SubmitRequest::default() };
        let ClientError::Invalid(report) = client.submit(request).await.unwrap_err() else {
            panic!("an invalid job file was accepted");
        };
        let first = report.lines().nth(4).unwrap();
        assert_eq!(
            first,
            "/jobs/job.toml:2:1: error: unknown key `sed` in the job file; did you mean `seed`?"
        );

        let unknown = |error| matches!(error, ClientError::NotFound(why) if why == "no job `nope`");
        assert!(unknown(client.show("nope").await.unwrap_err()));
        assert!(unknown(client.cancel("nope").await.unwrap_err()));
        assert!(unknown(client.checkpoint("nope").await.unwrap_err()));
        assert!(unknown(client.explain("nope").await.unwrap_err()));
        assert!(unknown(client.history("nope").await.unwrap_err()));
        assert!(unknown(client.profile("nope", 1, 0).await.unwrap_err()));
        assert!(unknown(client.watch("nope").await.unwrap_err()));
        assert!(unknown(
            client.logs(LogsRequest { id: "nope".to_owned(), ..LogsRequest::default() }).await.unwrap_err()
        ));
        let nothing =
            ScoreRequest { target: "nope".into(), data: vec![], base: "/".into(), ..ScoreRequest::default() };
        let error = client.evaluate(nothing).await.unwrap_err();
        assert!(error.to_string().contains("neither a job nor a checkpoint"), "{error}");
    }
}
