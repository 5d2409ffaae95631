//! Traces of jobs, as an OpenTelemetry collector receives them, and what happens to jobs without one.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_tests::programs::{Daemon, children, kill, wait_until};
use millstream_tests::tiny_job::TinyJob;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value::{IntValue, StringValue};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// The end of a daemon whose collector does not answer: two seconds for the last spans, and generous time for the rest.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// How long spans wait for a collector that answers, and for none, in milliseconds.
const PATIENCE: &str = "60000";
const IMPATIENCE: &str = "200";

/// A collector, which keeps what it receives.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Serves on a free port until the runtime is dropped.
    fn serve() -> (Self, SocketAddr, Runtime) {
        let runtime = Runtime::new().unwrap();
        let collector = Self::default();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let server =
            tonic::transport::Server::builder().add_service(TraceServiceServer::new(collector.clone()));
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        (collector, address, runtime)
    }

    /// The attributes of the senders.
    fn resources(&self) -> Vec<Vec<KeyValue>> {
        let requests = self.0.lock().unwrap();
        let groups = requests.iter().flat_map(|request| &request.resource_spans);
        groups.map(|group| group.resource.clone().unwrap_or_default().attributes).collect()
    }

    /// The spans of the trace that has the job `id`.
    fn trace(&self, id: &str) -> Trace {
        let requests = self.0.lock().unwrap();
        let scopes =
            requests.iter().flat_map(|request| &request.resource_spans).flat_map(|it| &it.scope_spans);
        let spans: Vec<&Span> = scopes.flat_map(|scope| &scope.spans).collect();
        let of_job = |span: &&&Span| text(&span.attributes, "millstream.job.id").as_deref() == Some(id);
        let trace = spans.iter().find(of_job).map(|span| span.trace_id.clone());
        let spans = spans.into_iter().filter(|span| Some(&span.trace_id) == trace.as_ref());
        Trace(spans.cloned().collect())
    }
}

/// The spans of a trace, in the order of their ends.
struct Trace(Vec<Span>);

impl Trace {
    fn named(&self, name: &str) -> Vec<&Span> {
        self.0.iter().filter(|span| span.name == name).collect()
    }

    fn one(&self, name: &str) -> &Span {
        let named = self.named(name);
        assert_eq!(named.len(), 1, "{name} in {:?}", self.0.iter().map(|it| &it.name).collect::<Vec<_>>());
        named[0]
    }

    /// Asserts that each span called `child` is below one called `parent`, and within its time.
    fn assert_below(&self, parent: &str, child: &str) {
        let children = self.named(child);
        assert!(!children.is_empty(), "no {child}");
        for span in children {
            let above = self.named(parent).into_iter().find(|above| above.span_id == span.parent_span_id);
            let above = above.unwrap_or_else(|| panic!("{child} is not below {parent}"));
            assert!(
                above.start_time_unix_nano <= span.start_time_unix_nano,
                "{child} begins before {parent}"
            );
            assert!(above.end_time_unix_nano >= span.end_time_unix_nano, "{child} ends after {parent}");
        }
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?;
    match found {
        AnyValue { value: Some(StringValue(text)) } => Some(text),
        AnyValue { value: Some(IntValue(number)) } => Some(number.to_string()),
        other => panic!("{key}: {other:?}"),
    }
}

/// The kind of error that a span ended with, and its description.
fn error(span: &Span) -> Option<(String, String)> {
    let status = span.status.clone().unwrap_or_default();
    let is_error = status.code == StatusCode::Error as i32;
    is_error.then(|| (text(&span.attributes, "error.type").unwrap_or_default(), status.message))
}

fn configure(directory: &Path, address: SocketAddr) {
    let text = format!("max_jobs = 1\notlp_endpoint = \"http://{address}\"\n");
    fs::write(directory.join("millstreamd.toml"), text).unwrap();
}

/// Starts a daemon that waits `timeout_ms` for its collector.
fn start(job: &TinyJob, timeout_ms: &str) -> Daemon {
    let variables = [
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", timeout_ms),
        ("OTEL_SERVICE_NAME", "trainer"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=ads,host.name=west"),
    ];
    Daemon::start_in(job.directory(), &variables.map(|(name, value)| (name, Path::new(value))))
}

fn submit(daemon: &Daemon, job: &TinyJob) -> String {
    let submitted = daemon.json(&["submit", job.file().to_str().unwrap()]);
    submitted["id"].as_str().unwrap().to_owned()
}

fn wait_for_checkpoint(daemon: &Daemon, id: &str) {
    wait_until("there is a checkpoint", || !daemon.show(id)["checkpoint"].is_null());
}

#[test]
fn a_collector_receives_the_life_of_a_job_whose_worker_is_killed() {
    let (collector, address, _runtime) = Collector::serve();
    let job = TinyJob::new();
    configure(job.directory(), address);
    let daemon = start(&job, PATIENCE);
    let (first, second) = (submit(&daemon, &job), submit(&daemon, &job));
    wait_for_checkpoint(&daemon, &first);
    let worker = children(daemon.pid())[0];
    assert!(kill(worker));
    daemon.succeeded(&first);
    wait_for_checkpoint(&daemon, &second);
    assert!(daemon.run(&["pause", &second]).status.success());

    wait_until("the spans arrive", || {
        !collector.trace(&first).named("job").is_empty() && !collector.trace(&second).named("job").is_empty()
    });
    let trace = collector.trace(&first);
    let ids: HashSet<_> = trace.0.iter().map(|span| &span.span_id).collect();
    assert_eq!(ids.len(), trace.0.len(), "each span has its own id");
    for (parent, child) in [
        ("job", "submit"),
        ("job", "queue"),
        ("job", "prepare"),
        ("prepare", "list data"),
        ("prepare", "learn statistics"),
        ("prepare", "plan memory"),
        ("job", "run"),
        ("run", "attempt"),
        ("attempt", "start worker"),
        ("attempt", "first batch"),
        ("attempt", "epoch"),
        ("attempt", "evaluation"),
        ("attempt", "checkpoint"),
    ] {
        trace.assert_below(parent, child);
    }
    let root = trace.one("job");
    assert!(root.parent_span_id.is_empty() && root.links.is_empty());
    assert_eq!(text(&root.attributes, "millstream.job.state").as_deref(), Some("succeeded"));
    assert_eq!(error(root), None);
    let attempts = trace.named("attempt");
    let (kind, why) = error(attempts[0]).unwrap();
    assert!(kind == "worker_died" && why.contains("SIGKILL"), "{kind}: {why}");
    assert_eq!(text(&attempts[0].attributes, "process.pid"), Some(worker.to_string()));
    assert!(attempts.len() == 2 && error(attempts[1]).is_none());
    assert!(text(&attempts[1].attributes, "millstream.resumed.step").is_some());
    for evaluation in trace.named("evaluation") {
        assert!(evaluation.end_time_unix_nano > evaluation.start_time_unix_nano);
    }
    for checkpoint in trace.named("checkpoint") {
        let bytes = text(&checkpoint.attributes, "millstream.checkpoint.bytes").unwrap();
        assert!(bytes.parse::<u64>().unwrap() > 0);
        assert!(checkpoint.end_time_unix_nano > checkpoint.start_time_unix_nano);
    }
    let log = String::from_utf8(daemon.run(&["logs", &first]).stdout).unwrap();
    let trace_id: String = root.trace_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(log.contains(&format!("trace {trace_id}")), "{log}");

    let trace = collector.trace(&second);
    trace.assert_below("attempt", "stop");
    let waits = trace.named("queue").into_iter().flat_map(|queue| &queue.events);
    let reasons: Vec<_> = waits.filter_map(|wait| text(&wait.attributes, "millstream.wait.reason")).collect();
    assert!(reasons.iter().any(|why| why.contains("max_jobs")), "{reasons:?}");
    assert!(trace.one("job").events.iter().any(|event| event.name == "pause"));

    let sender = &collector.resources()[0];
    for (key, expected) in [("service.name", "trainer"), ("service.namespace", "ads"), ("host.name", "west")]
    {
        assert_eq!(text(sender, key).as_deref(), Some(expected), "{key}");
    }
    daemon.stop();
}

#[test]
fn a_new_daemon_continues_the_trace_of_the_one_before() {
    let (collector, address, _runtime) = Collector::serve();
    let job = TinyJob::new();
    configure(job.directory(), address);
    let daemon = start(&job, PATIENCE);
    let id = submit(&daemon, &job);
    wait_for_checkpoint(&daemon, &id);
    daemon.stop();
    let before = collector.trace(&id);
    let first = before.one("job");
    assert_eq!(text(&first.attributes, "millstream.job.state").as_deref(), Some("unfinished"));
    before.assert_below("attempt", "stop");

    let daemon = start(&job, PATIENCE);
    daemon.succeeded(&id);
    daemon.stop();
    let trace = collector.trace(&id);
    let [_, last] = trace.named("job")[..] else { panic!("two daemons had the job") };
    assert_eq!((&last.links[0].span_id, &last.links[0].trace_id), (&first.span_id, &first.trace_id));
    assert_eq!(text(&last.attributes, "millstream.job.state").as_deref(), Some("succeeded"));
    trace.assert_below("job", "restart");
}

/// The value of a metric.
fn metric(daemon: &Daemon, name: &str) -> f64 {
    let text = String::from_utf8(daemon.run(&["metrics"]).stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name} in {text}")).rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// A job runs, although nothing at `address` takes its spans; they are counted, and one line warns.
fn job_runs_without_collector(address: SocketAddr) {
    let job = TinyJob::new();
    configure(job.directory(), address);
    let began = Instant::now();
    let daemon = start(&job, IMPATIENCE);
    let id = submit(&daemon, &job);
    daemon.succeeded(&id);
    wait_until("spans are dropped", || metric(&daemon, "millstream_trace_spans_dropped_total") > 0.0);
    let before = metric(&daemon, "millstream_trace_spans_dropped_total");
    daemon.succeeded(&submit(&daemon, &job));
    wait_until("more are dropped", || metric(&daemon, "millstream_trace_spans_dropped_total") > before);
    assert_eq!(metric(&daemon, "millstream_trace_spans_sent_total"), 0.0);
    let stopping = Instant::now();
    daemon.stop();
    assert!(stopping.elapsed() < STOP_LIMIT, "{:?}", stopping.elapsed());
    let log = fs::read_to_string(job.directory().join("daemon.log")).unwrap();
    let warnings = log.lines().filter(|line| line.contains("does not take spans")).count();
    // One, and on a slow machine the next after a minute.
    let most = 1 + began.elapsed().as_secs() as usize / 60;
    assert!((1..=most).contains(&warnings), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn a_collector_that_never_answers_delays_nothing() {
    // The system accepts connections, and nobody reads from them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    job_runs_without_collector(listener.local_addr().unwrap());
}

#[test]
fn a_missing_collector_delays_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    job_runs_without_collector(address);
}
