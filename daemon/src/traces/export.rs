//! Sends spans over OTLP, in batches, on a thread of OpenTelemetry's batch processor.
//!
//! The processor drops spans silently when its queue is full. So spans are counted before they enter it, and those that
//! would not fit are dropped here, where they are counted. A collector that fails is reported once, then less and less
//! often.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor,
};
use tokio::runtime::Handle;
use tonic::transport::ClientTlsConfig;

use super::TraceTarget;
use crate::priority::{Niceness, yield_to_jobs};
use crate::snapshot::{SpanCounts, system};

/// Spans that wait for the collector, at about 1 KB each. A job has about ten, and one more for each checkpoint, evaluation
/// and epoch.
const QUEUE: usize = 2048;

/// The spans of one request.
const BATCH: usize = 512;

/// The name of the service, unless the environment names it.
const SERVICE: &str = "millstreamd";

/// Time limit for a request, unless the environment sets it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The pause between warnings about a collector that fails: the first, the factor from one to the next, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const PAUSE_FACTOR: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// The way of spans to the collector.
pub(super) struct Pipeline {
    processor: BatchSpanProcessor,
    progress: Arc<Progress>,
}

impl Pipeline {
    /// # Errors
    /// When TLS cannot be set up, or the system refuses the thread.
    pub(super) fn start(target: &TraceTarget, runtime: &Handle) -> Result<Self> {
        let progress = Arc::new(Progress::new(target.endpoint()));
        let mut otlp = {
            // The connection belongs to the runtime.
            let _entered = runtime.enter();
            let builder = OtlpExporter::builder().with_tonic().with_endpoint(target.endpoint());
            let builder = match target.is_encrypted() {
                true => builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots()),
                false => builder,
            };
            builder.build().with_context(|| format!("sending traces to {}", target.endpoint()))?
        };
        otlp.set_resource(&resource());
        let counted = Counted {
            otlp,
            runtime: runtime.clone(),
            timeout: timeout(),
            progress: Arc::clone(&progress),
            lowered: Once::new(),
        };
        let config =
            BatchConfigBuilder::default().with_max_queue_size(QUEUE).with_max_export_batch_size(BATCH);
        let processor = BatchSpanProcessor::builder(counted).with_batch_config(config.build()).build();
        tracing::info!(endpoint = target.endpoint(), "sending traces of jobs");
        Ok(Self { processor, progress })
    }

    /// Queues a span, or drops it if the queue is full.
    pub(super) fn send(&self, span: SpanData) {
        if self.progress.admit() {
            self.processor.on_end(span);
        }
    }

    pub(super) fn counts(&self) -> SpanCounts {
        self.progress.counts()
    }

    /// Sends what is queued, within `limit`.
    pub(super) fn flush(&self, limit: Duration) {
        // The number of spans says it all.
        let _ = self.processor.shutdown_with_timeout(limit);
        self.progress.close();
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// What has become of the spans.
#[derive(Debug)]
struct Progress {
    endpoint: String,
    /// Spans that are queued or being sent.
    in_flight: AtomicUsize,
    sent: AtomicU64,
    dropped: AtomicU64,
    warnings: Mutex<Warnings>,
}

impl Progress {
    fn new(endpoint: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            in_flight: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            warnings: Mutex::default(),
        }
    }

    /// Counts a span; `false` if there is no room for it.
    fn admit(&self) -> bool {
        let has_room = |in_flight| (in_flight < QUEUE).then_some(in_flight + 1);
        let admitted = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, has_room).is_ok();
        if !admitted {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.warn("it takes spans too slowly");
        }
        admitted
    }

    fn exported(&self, spans: usize, result: Result<(), &str>) {
        self.in_flight.fetch_sub(spans, Ordering::AcqRel);
        match result {
            Ok(()) => {
                self.sent.fetch_add(spans as u64, Ordering::Relaxed);
                if self.warnings().recovered() {
                    let dropped = self.dropped.load(Ordering::Relaxed);
                    tracing::info!(
                        endpoint = self.endpoint,
                        dropped,
                        "the OpenTelemetry collector takes spans again"
                    );
                }
            }
            Err(why) => {
                self.dropped.fetch_add(spans as u64, Ordering::Relaxed);
                self.warn(why);
            }
        }
    }

    fn warn(&self, why: &str) {
        if self.warnings().is_due(Instant::now()) {
            let dropped = self.dropped.load(Ordering::Relaxed);
            tracing::warn!(
                endpoint = self.endpoint,
                dropped,
                "the OpenTelemetry collector does not take spans, which are dropped: {why}; jobs are not affected; check \
                 `otlp_endpoint` and the collector"
            );
        }
    }

    /// Counts as dropped what was not sent by now.
    fn close(&self) {
        // What comes later finds no room.
        let lost = self.in_flight.swap(QUEUE, Ordering::AcqRel) as u64;
        if lost > 0 {
            self.dropped.fetch_add(lost, Ordering::Relaxed);
            tracing::warn!(endpoint = self.endpoint, "{lost} spans were not sent before the daemon stopped");
        }
    }

    fn counts(&self) -> SpanCounts {
        SpanCounts { sent: self.sent.load(Ordering::Relaxed), dropped: self.dropped.load(Ordering::Relaxed) }
    }

    fn warnings(&self) -> std::sync::MutexGuard<'_, Warnings> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When to warn about a collector.
#[derive(Debug, Default)]
struct Warnings {
    /// The next time, and the pause after it, while the collector fails.
    next: Option<(Instant, Duration)>,
}

impl Warnings {
    /// Whether to report a failure at `now`.
    fn is_due(&mut self, now: Instant) -> bool {
        let pause = match self.next {
            Some((next, _)) if now < next => return false,
            Some((_, pause)) => pause,
            None => FIRST_PAUSE,
        };
        self.next = Some((now + pause, pause.saturating_mul(PAUSE_FACTOR).min(LONGEST_PAUSE)));
        true
    }

    /// The collector has answered. Whether it had failed before.
    fn recovered(&mut self) -> bool {
        self.next.take().is_some()
    }
}

/// An exporter that counts, and that ends in time even if the connection hangs.
struct Counted {
    otlp: OtlpExporter,
    runtime: Handle,
    timeout: Duration,
    progress: Arc<Progress>,
    lowered: Once,
}

impl SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.lowered.call_once(|| yield_to_jobs(Niceness::OfOne));
        let spans = batch.len();
        let exporting = {
            // The timer belongs to the runtime; this thread does not.
            let _entered = self.runtime.enter();
            tokio::time::timeout(self.timeout, self.otlp.export(batch))
        };
        let result = match exporting.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(OTelSdkError::InternalFailure(why))) => Err(why),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {:?}", self.timeout)),
        };
        self.progress.exported(spans, result.as_ref().map(|&()| ()).map_err(String::as_str));
        result.map_err(OTelSdkError::InternalFailure)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").field("progress", &self.progress).finish_non_exhaustive()
    }
}

/// The time limit of a request, in milliseconds in the environment.
fn timeout() -> Duration {
    let of = |name| std::env::var(name).ok()?.parse().ok();
    let milliseconds = of("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT").or_else(|| of("OTEL_EXPORTER_OTLP_TIMEOUT"));
    milliseconds.map_or(TIMEOUT, Duration::from_millis)
}

/// What sends the spans: this daemon on this host, unless the environment says otherwise.
fn resource() -> Resource {
    let own = [
        KeyValue::new("service.name", SERVICE),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("host.name", system::host_name()),
        KeyValue::new("process.pid", i64::from(std::process::id())),
    ];
    let resource = Resource::builder_empty()
        .with_attributes(own)
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_detector(Box::new(EnvResourceDetector::new()));
    let name = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    match name {
        Some(name) => resource.with_service_name(name).build(),
        None => resource.build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_spans_and_counts_them() {
        let progress = Progress::new("http://a:4317");
        assert_eq!((0..QUEUE + 3).filter(|_| progress.admit()).count(), QUEUE);
        assert_eq!(progress.counts(), SpanCounts { sent: 0, dropped: 3 });
        progress.exported(BATCH, Ok(()));
        progress.exported(BATCH, Err("unavailable"));
        assert_eq!(progress.counts(), SpanCounts { sent: 512, dropped: 515 });
        assert!(progress.admit());
        progress.close();
        assert_eq!(progress.counts(), SpanCounts { sent: 512, dropped: 515 + 1025 });
        assert!(!progress.admit(), "nothing is queued after the end");
    }

    #[test]
    fn warnings_become_rare_while_a_collector_fails() {
        let (mut warnings, began) = (Warnings::default(), Instant::now());
        let due: Vec<u64> =
            (0..20_000).filter(|&s| warnings.is_due(began + Duration::from_secs(s))).collect();
        assert_eq!(due, [0, 60, 300, 1260, 4860, 8460, 12060, 15660, 19260]);
        assert!(warnings.recovered() && !warnings.recovered());
        assert!(warnings.is_due(began), "a new failure is reported at once");
    }
}
