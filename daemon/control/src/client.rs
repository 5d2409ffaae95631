//! A client of the control API, over the daemon's Unix socket or an in-process pipe.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tower::service_fn;

use crate::MAX_MESSAGE_BYTES;
use crate::proto::control_client::ControlClient;
use crate::proto::{
    AboutReply, AboutRequest, AuditReply, AuditRequest, CheckpointReply, EvaluateReply, Explanation,
    FeedsReply, FeedsRequest, History, Job, JobRequest, ListReply, ListRequest, LogLine, LogsRequest,
    MeasurePeersRequest, MetricsReply, MetricsRequest, PeerMeasurement, PeersReply, PeersRequest,
    ProfileReply, ProfileRequest, ScoreRequest, Scores, Snapshot, SnapshotRequest, SubmitRequest,
    TrialsReply, TrialsRequest, WebReply, WebRequest,
};

/// How long to try to connect to a daemon for which many other connections wait, and how often.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_INTERVAL: Duration = Duration::from_millis(2);

/// A connection to a daemon.
#[derive(Clone, Debug)]
pub struct Client {
    inner: ControlClient<Channel>,
}

/// Why a request to a daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens on the socket.
    #[error("no daemon listens on {}", .socket.display())]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket's permissions deny access to this user.
    #[error("permission denied on the daemon's socket {}", .socket.display())]
    Denied {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon closed the connection at once.
    #[error("the daemon on {} closed the connection: it does not admit this user, or is stopping", .socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
    },
    /// The connection failed for another reason.
    #[error("cannot reach the daemon on {}: {message}", .socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// The system's error message.
        message: String,
    },
    /// The connection broke during a request.
    #[error("the connection to the daemon broke: {0}")]
    Lost(String),
    /// The request is invalid, such as a job file with errors. The text is the whole report.
    #[error("{0}")]
    Invalid(String),
    /// There is no such job.
    #[error("{0}")]
    NotFound(String),
    /// The daemon failed or refused, for the given reason.
    #[error("{0}")]
    Failed(String),
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::InvalidArgument => Self::Invalid(message),
            Code::NotFound => Self::NotFound(message),
            Code::Unavailable | Code::Cancelled => Self::Lost(message),
            // A status that tonic makes of a broken stream has a source; a status from the daemon has none.
            Code::Unknown if std::error::Error::source(&status).is_some() => Self::Lost(message),
            _ => Self::Failed(message),
        }
    }
}

impl Client {
    /// Connects to the daemon that listens on `socket`.
    ///
    /// # Errors
    /// `NoDaemon` when no process listens there, `Denied` when this user may not open the socket, `Refused` when the daemon
    /// closes the connection.
    pub async fn connect(socket: &Path) -> Result<Self, ClientError> {
        // Connect here rather than inside tonic, which would hide the system's error.
        let stream = connect_patiently(socket).await.map_err(|error| connect_error(socket, &error))?;
        Self::over(stream).await.map_err(|_| ClientError::Refused { socket: socket.to_owned() })
    }

    /// Connects over one end of an in-memory pipe, whose other end a daemon in this process serves.
    ///
    /// # Errors
    /// When the other end is closed.
    pub async fn in_process(stream: DuplexStream) -> Result<Self, ClientError> {
        Self::over(stream).await.map_err(|error| ClientError::Lost(error.to_string()))
    }

    async fn over<S>(stream: S) -> Result<Self, tonic::transport::Error>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let stream = Mutex::new(Some(stream));
        // A broken connection is not reopened silently: requests in flight on it are lost.
        let connector = service_fn(move |_| {
            let stream = stream.lock().ok().and_then(|mut stream| stream.take());
            async move { stream.map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
        });
        // The connector ignores the address, but tonic requires one.
        let channel = Endpoint::from_static("http://millstreamd").connect_with_connector(connector).await?;
        let inner = ControlClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Ok(Self { inner })
    }

    /// Submits a job.
    ///
    /// # Errors
    /// `Invalid`, with the report, when the job file has errors.
    pub async fn submit(&mut self, request: SubmitRequest) -> Result<Job, ClientError> {
        Ok(self.inner.submit(request).await?.into_inner())
    }

    /// The trials of a search.
    ///
    /// # Errors
    /// When there is no such search.
    pub async fn trials(&mut self, request: TrialsRequest) -> Result<TrialsReply, ClientError> {
        Ok(self.inner.trials(request).await?.into_inner())
    }

    /// The daemon itself.
    ///
    /// # Errors
    /// When the daemon is older than this request.
    pub async fn about(&mut self) -> Result<AboutReply, ClientError> {
        Ok(self.inner.about(AboutRequest {}).await?.into_inner())
    }

    /// All jobs, newest first.
    ///
    /// # Errors
    /// When the daemon cannot read its jobs.
    pub async fn list(&mut self, request: ListRequest) -> Result<ListReply, ClientError> {
        Ok(self.inner.list(request).await?.into_inner())
    }

    /// The job whose id is `id`, or the only job whose id begins with `id`.
    ///
    /// # Errors
    /// `NotFound` when there is no such job.
    pub async fn show(&mut self, id: &str) -> Result<Job, ClientError> {
        Ok(self.inner.show(job_request(id)).await?.into_inner())
    }

    /// A job's log from its beginning; with `follow`, until the job ends.
    ///
    /// # Errors
    /// `NotFound` when there is no such job.
    pub async fn logs(&mut self, request: LogsRequest) -> Result<Replies<LogLine>, ClientError> {
        Ok(Replies(self.inner.logs(request).await?.into_inner()))
    }

    /// A job's state now and on each change, until it ends.
    ///
    /// # Errors
    /// `NotFound` when there is no such job.
    pub async fn watch(&mut self, id: &str) -> Result<Replies<Job>, ClientError> {
        Ok(Replies(self.inner.watch(job_request(id)).await?.into_inner()))
    }

    /// Who changed what, oldest first.
    ///
    /// # Errors
    /// When the daemon cannot read its records.
    pub async fn audit(&mut self, request: AuditRequest) -> Result<AuditReply, ClientError> {
        Ok(self.inner.audit(request).await?.into_inner())
    }

    /// A job's loss and metrics over its steps.
    ///
    /// # Errors
    /// `NotFound` when there is no such job.
    pub async fn history(&mut self, id: &str) -> Result<History, ClientError> {
        Ok(self.inner.history(job_request(id)).await?.into_inner())
    }

    /// A running job's ingest rates, its bottleneck, and advice.
    ///
    /// # Errors
    /// `NotFound` when there is no such job, `Failed` when it is not running.
    pub async fn explain(&mut self, id: &str) -> Result<Explanation, ClientError> {
        Ok(self.inner.explain(job_request(id)).await?.into_inner())
    }

    /// Records the next steps of a running job, on its worker `rank`. Dropping the replies stops the recording.
    ///
    /// # Errors
    /// `NotFound` when there is no such job, `Failed` when it is not training. Later errors arrive with the replies: `Invalid`
    /// when it has no such worker.
    pub async fn profile(
        &mut self,
        id: &str,
        steps: u64,
        rank: u32,
    ) -> Result<Replies<ProfileReply>, ClientError> {
        let request = ProfileRequest { id: id.to_owned(), steps, rank };
        Ok(Replies(self.inner.profile(request).await?.into_inner()))
    }

    /// Cancels a job after a checkpoint. Returns once the job has ended.
    ///
    /// # Errors
    /// `NotFound` when there is no such job.
    pub async fn cancel(&mut self, id: &str) -> Result<Job, ClientError> {
        Ok(self.inner.cancel(job_request(id)).await?.into_inner())
    }

    /// Stops a job after a checkpoint until it is resumed. Returns once it has stopped.
    ///
    /// # Errors
    /// `NotFound` when there is no such job.
    pub async fn pause(&mut self, id: &str) -> Result<Job, ClientError> {
        Ok(self.inner.pause(job_request(id)).await?.into_inner())
    }

    /// Queues an ended job again, from its last checkpoint.
    ///
    /// # Errors
    /// `NotFound` when there is no such job, `Failed` when it has not ended or has succeeded.
    pub async fn resume(&mut self, id: &str) -> Result<Job, ClientError> {
        Ok(self.inner.resume(job_request(id)).await?.into_inner())
    }

    /// Deletes an ended job's record, log and history. Its directory stays.
    ///
    /// # Errors
    /// `NotFound` when there is no such job, `Failed` when it has not ended.
    pub async fn remove(&mut self, id: &str) -> Result<Job, ClientError> {
        Ok(self.inner.remove(job_request(id)).await?.into_inner())
    }

    /// Takes a checkpoint of a running job. Returns once it is committed.
    ///
    /// # Errors
    /// When the job is not running.
    pub async fn checkpoint(&mut self, id: &str) -> Result<CheckpointReply, ClientError> {
        Ok(self.inner.checkpoint(job_request(id)).await?.into_inner())
    }

    /// The daemon's state as metrics for Prometheus.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn metrics(&mut self, request: MetricsRequest) -> Result<MetricsReply, ClientError> {
        Ok(self.inner.metrics(request).await?.into_inner())
    }

    /// The daemon's state at this moment, from memory.
    ///
    /// # Errors
    /// When the connection breaks, or the daemon is older than this request.
    pub async fn snapshot(&mut self) -> Result<Snapshot, ClientError> {
        Ok(self.inner.snapshot(SnapshotRequest {}).await?.into_inner())
    }

    /// The address of the web page for a browser on the daemon's host, which is served from now on; `port` 0 stands for
    /// a free one.
    ///
    /// # Errors
    /// When the port cannot be used, the connection breaks, or the daemon is older than this request.
    pub async fn web(&mut self, port: u32) -> Result<WebReply, ClientError> {
        Ok(self.inner.web(WebRequest { port }).await?.into_inner())
    }

    /// The daemons of other hosts.
    ///
    /// # Errors
    /// When this daemon has no peers, or is older than this request.
    pub async fn peers(&mut self) -> Result<PeersReply, ClientError> {
        Ok(self.inner.peers(PeersRequest {}).await?.into_inner())
    }

    /// Measures the links to the daemons of other hosts; each arrives when it is done.
    ///
    /// # Errors
    /// When this daemon has no peers, or none of the named ones.
    pub async fn measure_peers(
        &mut self,
        request: MeasurePeersRequest,
    ) -> Result<Replies<PeerMeasurement>, ClientError> {
        Ok(Replies(self.inner.measure_peers(request).await?.into_inner()))
    }

    /// The open feeds of trainers of other programs.
    ///
    /// # Errors
    /// When this daemon is older than this request.
    pub async fn feeds(&mut self) -> Result<FeedsReply, ClientError> {
        Ok(self.inner.feeds(FeedsRequest {}).await?.into_inner())
    }

    /// Evaluates a checkpoint on held-out data.
    ///
    /// # Errors
    /// When there is no such checkpoint, or the data cannot be scored.
    pub async fn evaluate(&mut self, request: ScoreRequest) -> Result<EvaluateReply, ClientError> {
        Ok(self.inner.evaluate(request).await?.into_inner())
    }

    /// Scores data row by row, in its order.
    ///
    /// # Errors
    /// When there is no such checkpoint; later errors arrive with the replies.
    pub async fn predict(&mut self, request: ScoreRequest) -> Result<Replies<Scores>, ClientError> {
        Ok(Replies(self.inner.predict(request).await?.into_inner()))
    }
}

/// A stream of replies.
#[derive(Debug)]
pub struct Replies<T>(Streaming<T>);

impl<T> Replies<T> {
    /// The next reply; `None` after the last.
    ///
    /// # Errors
    /// When the daemon fails, or the connection breaks.
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        Ok(self.0.message().await?)
    }
}

fn job_request(id: &str) -> JobRequest {
    JobRequest { id: id.to_owned() }
}

/// Connects, as soon as the daemon has accepted some of the connections that wait for it.
async fn connect_patiently(socket: &Path) -> io::Result<UnixStream> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(socket).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && began.elapsed() < CONNECT_TIMEOUT => {
                tokio::time::sleep(CONNECT_INTERVAL).await;
            }
            connected => return connected,
        }
    }
}

fn connect_error(socket: &Path, error: &io::Error) -> ClientError {
    let socket = socket.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NoDaemon { socket },
        io::ErrorKind::PermissionDenied => ClientError::Denied { socket },
        io::ErrorKind::WouldBlock => {
            ClientError::Unreachable { socket, message: "too many connections wait for it".into() }
        }
        _ => ClientError::Unreachable { socket, message: error.to_string() },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_daemon_is_distinguished_from_other_errors() {
        let directory = std::env::temp_dir().join(format!("millstream-client-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let socket = directory.join("d.sock");
        let error = Client::connect(&socket).await.unwrap_err();
        assert!(matches!(error, ClientError::NoDaemon { .. }), "absent: {error}");

        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let error = Client::connect(&socket).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("no daemon listens on {}", socket.display()),
            "stale socket file"
        );

        let error = Client::connect(&directory.join("x".repeat(200))).await.unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[tokio::test]
    async fn a_client_waits_until_the_daemon_accepts_more_connections() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d.sock");
        let socket = tokio::net::UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let listener = socket.listen(1).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = UnixStream::connect(&path).await {
            waiting.push(stream);
        }
        let accepting = tokio::spawn(async move {
            tokio::time::sleep(10 * CONNECT_INTERVAL).await;
            listener.accept().await.unwrap();
            listener
        });
        assert!(connect_patiently(&path).await.is_ok());
        drop(accepting.await.unwrap());
    }

    #[tokio::test]
    async fn a_closed_connection_is_lost() {
        let (near, far) = tokio::io::duplex(1024);
        let mut client = Client::in_process(near).await.unwrap();
        drop(far);
        let error = client.list(ListRequest::default()).await.unwrap_err();
        assert!(matches!(error, ClientError::Lost(_)), "{error:?}");
    }

    #[test]
    fn status_codes_map_to_error_kinds() {
        let of = |code| ClientError::from(Status::new(code, "why"));
        assert!(matches!(of(Code::InvalidArgument), ClientError::Invalid(why) if why == "why"));
        assert!(matches!(of(Code::NotFound), ClientError::NotFound(_)));
        assert!(matches!(of(Code::Unavailable), ClientError::Lost(_)));
        assert!(matches!(of(Code::Unknown), ClientError::Failed(_)));
        assert!(matches!(of(Code::Internal), ClientError::Failed(_)));
        // A daemon that is older than a request does not know it, or refuses it to viewers.
        assert!(matches!(of(Code::Unimplemented), ClientError::Failed(_)));
        assert!(matches!(of(Code::PermissionDenied), ClientError::Failed(_)));
    }
}
