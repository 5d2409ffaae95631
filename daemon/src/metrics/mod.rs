//! The daemon's state as Prometheus metrics: a [`Snapshot`] rendered at once.
//!
//! Names follow Prometheus's conventions: base units, `_total` for counters, `process_*` for the process. Only jobs under
//! way have series, so their number is bounded. Steps and examples are gauges, although they mostly grow: a
//! job that resumes from a checkpoint goes back, which `increase()` over a counter would add up as new work.
//!
//! `packaging/README.md` lists the metrics; a test compares.

mod gpus;
pub(crate) mod http;
mod text;

#[cfg(test)]
mod tests;

use millstream_control::proto::JobState;
use millstream_feed::host::HostStatus;
use millstream_pipeline::ingest::{CacheStats, Diagnosis, Explanation, StageUse};

pub use text::Format;
use text::Kind::{self, Counter, Gauge, Info};
use text::{Samples, Text};

use crate::snapshot::{JobSnapshot, Snapshot};
use crate::state::JobRecord;

/// The snapshot as text.
pub fn render(snapshot: &Snapshot, format: Format) -> String {
    let mut text = Text::new(format);
    daemon(&mut text, snapshot);
    process(&mut text, snapshot);
    host(&mut text, snapshot);
    peers(&mut text, snapshot);
    feeds(&mut text, snapshot);
    gpus::render(&mut text, snapshot.gpus.as_ref());
    let mut jobs = JobFamilies { text: &mut text, jobs: &snapshot.jobs };
    jobs.state();
    jobs.progress();
    jobs.checkpoint_and_evaluation();
    jobs.worker();
    jobs.ingest();
    jobs.cache();
    text.finish()
}

fn daemon(text: &mut Text, snapshot: &Snapshot) {
    text.family(Info, "millstream_build", "The version of the daemon.", |samples| {
        samples.add(&[("version", snapshot.version)], 1.0);
    });
    text.family(
        Gauge,
        "millstream_stopping",
        "Whether the daemon is stopping: no further job starts.",
        |samples| {
            samples.add(&[], f64::from(u8::from(snapshot.is_stopping)));
        },
    );
    text.family(Gauge, "millstream_jobs", "Jobs in a state.", |samples| {
        for state in [JobState::Queued, JobState::Preparing, JobState::Running, JobState::Held] {
            samples.add(&[("state", state.name())], snapshot.jobs_in(state) as f64);
        }
    });
    let help = "Jobs that have ended since the daemon started, by outcome.";
    text.family(Counter, "millstream_jobs_ended", help, |samples| {
        let ended = &snapshot.ended_jobs;
        for (state, jobs) in [
            (JobState::Succeeded, ended.succeeded),
            (JobState::Failed, ended.failed),
            (JobState::Cancelled, ended.cancelled),
            (JobState::Held, ended.held),
        ] {
            samples.add(&[("outcome", state.name())], jobs as f64);
        }
    });
    let (sent, dropped) =
        (snapshot.spans.map(|it| it.sent as f64), snapshot.spans.map(|it| it.dropped as f64));
    let help = "Spans of traces that the OpenTelemetry collector has taken since the daemon started.";
    one(text, Counter, "millstream_trace_spans_sent", help, sent);
    let help =
        "Spans of traces that were dropped, because the collector did not take them, or not fast enough.";
    one(text, Counter, "millstream_trace_spans_dropped", help, dropped);
}

/// Metrics of the process, under their usual names.
fn process(text: &mut Text, snapshot: &Snapshot) {
    let process = snapshot.process.as_ref();
    let files = snapshot.open_files.as_ref();
    let (cpu_seconds, resident) =
        (process.map(|it| it.cpu_seconds), process.map(|it| it.resident_bytes as f64));
    let threads = process.map(|it| it.threads as f64);
    let (open, maximum) =
        (files.map(|it| it.open as f64), files.and_then(|it| it.maximum).map(|maximum| maximum as f64));
    let started = Some(snapshot.started_ms as f64 / 1000.0);
    one(
        text,
        Counter,
        "process_cpu_seconds",
        "Processor time of the daemon, without its workers.",
        cpu_seconds,
    );
    let help = "Resident memory of the daemon, including the rings that it shares with workers.";
    one(text, Gauge, "process_resident_memory_bytes", help, resident);
    one(text, Gauge, "process_threads", "Threads of the daemon.", threads);
    one(text, Gauge, "process_open_fds", "Open file descriptors of the daemon.", open);
    one(text, Gauge, "process_max_fds", "The maximum number of open file descriptors.", maximum);
    one(text, Gauge, "process_start_time_seconds", "When the daemon started, since the Unix epoch.", started);
}

fn host(text: &mut Text, snapshot: &Snapshot) {
    let host = &snapshot.host;
    let (available, all) =
        (host.available_bytes.map(|bytes| bytes as f64), host.memory_bytes.map(|bytes| bytes as f64));
    let help = "Memory available to the daemon without swapping, within the limits of its control groups.";
    one(text, Gauge, "millstream_host_memory_available_bytes", help, available);
    let help = "All memory of the host, within the limits of the control groups of the daemon.";
    one(text, Gauge, "millstream_host_memory_bytes", help, all);
    one(text, Gauge, "millstream_host_cores", "Cores that the daemon may use.", Some(host.cores as f64));
    let help = "Mean number of runnable threads on the host over some minutes.";
    text.family(Gauge, "millstream_host_load", help, |samples| {
        for (minutes, load) in ["1", "5", "15"].into_iter().zip(host.load.into_iter().flatten()) {
            samples.add(&[("minutes", minutes)], load);
        }
    });
}

fn peers(text: &mut Text, snapshot: &Snapshot) {
    let peers = snapshot.peers.as_ref();
    let help = "Daemons of other hosts, by whether they answer.";
    text.family(Gauge, "millstream_peers", help, |samples| {
        for (state, hosts) in peers.into_iter().flat_map(|peers| [("up", peers.up), ("down", peers.down)]) {
            samples.add(&[("state", state)], hosts as f64);
        }
    });
    let help = "Connections to the port for peers that were refused since the daemon started.";
    one(text, Counter, "millstream_peer_connections_refused", help, peers.map(|peers| peers.refused as f64));
}

/// Sums over feeds: trainers come and go, and a series of each would not end.
fn feeds(text: &mut Text, snapshot: &Snapshot) {
    let HostStatus { feeds, opened, delivered, reserved_bytes, memory_bytes } = &snapshot.feeds;
    let ranks: u32 = feeds.iter().map(|feed| feed.attached).sum();
    one(
        text,
        Gauge,
        "millstream_feeds",
        "Open feeds of trainers of other programs.",
        Some(feeds.len() as f64),
    );
    one(text, Gauge, "millstream_feed_ranks", "Ranks that are attached to feeds.", Some(ranks.into()));
    let help = "Feeds that were opened since the daemon started.";
    one(text, Counter, "millstream_feeds_opened", help, Some(*opened as f64));
    let help = "Memory that open feeds and their evaluations have reserved.";
    one(text, Gauge, "millstream_feeds_reserved_bytes", help, Some(*reserved_bytes as f64));
    let help = "The most memory that feeds may reserve.";
    one(text, Gauge, "millstream_feeds_memory_bytes", help, Some(*memory_bytes as f64));
    let help = "Rows that feeds have delivered since the daemon started, evaluations included.";
    one(text, Counter, "millstream_feed_rows", help, Some(delivered.rows as f64));
    let help =
        "Batches over all ranks that feeds have delivered since the daemon started, evaluations included.";
    one(text, Counter, "millstream_feed_batches", help, Some(delivered.batches as f64));
    let help = "Bytes that feeds have read from storage since the daemon started.";
    one(text, Counter, "millstream_feed_read_bytes", help, Some(delivered.bytes as f64));
}

/// A family with one sample, or none.
fn one(text: &mut Text, kind: Kind, name: &'static str, help: &'static str, value: Option<f64>) {
    text.family(kind, name, help, |samples| {
        if let Some(value) = value {
            samples.add(&[], value);
        }
    });
}

/// Writes families with samples of each job under way.
struct JobFamilies<'a> {
    text: &'a mut Text,
    jobs: &'a [JobSnapshot],
}

impl JobFamilies<'_> {
    /// A family with at most one sample per job.
    fn each(
        &mut self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        value: impl Fn(&JobSnapshot) -> Option<f64>,
    ) {
        self.all(kind, name, help, |job, samples| {
            if let Some(value) = value(job) {
                samples.add(&[("job_id", &job.record.id)], value);
            }
        });
    }

    /// A family with any number of samples per job.
    fn all(
        &mut self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        add: impl Fn(&JobSnapshot, &mut Samples<'_>),
    ) {
        let jobs = self.jobs;
        self.text.family(kind, name, help, |samples| jobs.iter().for_each(|job| add(job, samples)));
    }

    fn state(&mut self) {
        let help = "The name, the submitting user and the device of a job; empty where unknown.";
        self.all(Info, "millstream_job", help, |job, samples| {
            let JobRecord { id, name, owner, device, .. } = &job.record;
            let owner = owner.as_ref().map(ToString::to_string).unwrap_or_default();
            let device = device.as_ref().map(|device| &*device.text).unwrap_or_default();
            samples.add(&[("job_id", id), ("name", name), ("owner", &owner), ("device", device)], 1.0);
        });
        let help = "Whether a job is in a state.";
        self.all(Gauge, "millstream_job_state", help, |job, samples| {
            for state in [JobState::Preparing, JobState::Running] {
                let is_in = f64::from(u8::from(job.record.state == state));
                samples.add(&[("job_id", &job.record.id), ("state", state.name())], is_in);
            }
        });
        let started = |job: &JobSnapshot| job.record.started_ms.map(|at| at as f64 / 1000.0);
        let help = "When the preparation of a job first started, since the Unix epoch.";
        self.each(Gauge, "millstream_job_start_time_seconds", help, started);
    }

    fn progress(&mut self) {
        let has_trained = |job: &JobSnapshot| job.record.progress.step > 0;
        self.each(
            Gauge,
            "millstream_job_step",
            "Steps taken; a resume goes back to its checkpoint.",
            |job| Some(job.record.progress.step as f64),
        );
        let help = "Steps in all epochs, once known; an estimate for some formats.";
        self.each(Gauge, "millstream_job_planned_steps", help, |job| {
            job.record.progress.total_steps.map(|steps| steps as f64)
        });
        self.each(Gauge, "millstream_job_epoch", "The current epoch, from 0.", |job| {
            Some(job.record.progress.epoch.into())
        });
        self.each(Gauge, "millstream_job_planned_epochs", "Epochs of the job.", |job| {
            Some(job.record.progress.epochs.into())
        });
        let help = "Rows trained on; a resume goes back to its checkpoint.";
        self.each(Gauge, "millstream_job_examples", help, |job| Some(job.record.progress.examples as f64));
        self.each(
            Gauge,
            "millstream_job_examples_per_second",
            "Rows trained on per second, recently.",
            |job| has_trained(job).then_some(job.record.progress.examples_per_second),
        );
        let help = "Share of the training time spent waiting for a batch, recently.";
        self.each(Gauge, "millstream_job_input_wait_ratio", help, |job| {
            has_trained(job).then_some(job.record.progress.input_wait_fraction)
        });
        self.each(Gauge, "millstream_job_loss", "Mean training loss since the previous report.", |job| {
            has_trained(job).then_some(job.record.progress.loss)
        });
        let help = "Bad records skipped since the current worker was first fed.";
        self.each(Counter, "millstream_job_skipped_records", help, |job| {
            Some(job.record.progress.skipped_records as f64)
        });
    }

    fn checkpoint_and_evaluation(&mut self) {
        self.each(Gauge, "millstream_job_checkpoint_step", "The step of the newest checkpoint.", |job| {
            job.checkpoint.map(|checkpoint| checkpoint.step as f64)
        });
        let help = "When the newest checkpoint was committed, since the Unix epoch.";
        self.each(Gauge, "millstream_job_checkpoint_timestamp_seconds", help, |job| {
            job.checkpoint.and_then(|checkpoint| checkpoint.committed_ms).map(|at| at as f64 / 1000.0)
        });
        let help = "The step of the newest image of the model in the daemon's memory.";
        self.each(Gauge, "millstream_job_image_step", help, |job| job.image_step.map(|step| step as f64));
        let help = "A metric of the last evaluation, such as auc; NaN if undefined. A single label may have no name.";
        self.all(Gauge, "millstream_job_evaluation", help, |job, samples| {
            for label in &job.record.eval {
                for measured in &label.values {
                    let labels = [
                        ("job_id", &*job.record.id),
                        ("label", &label.label),
                        ("metric", measured.metric.name()),
                    ];
                    samples.add(&labels, measured.value.unwrap_or(f64::NAN));
                }
            }
        });
    }

    fn worker(&mut self) {
        let help = "Attempts to train a job, with one or several workers; more than one per start of the daemon means deaths.";
        self.each(Counter, "millstream_job_worker_starts", help, |job| Some(job.record.attempts.into()));
        let process = |job: &JobSnapshot| job.worker.as_ref().and_then(|worker| worker.process);
        let help = "Resident memory of the workers, including their rings.";
        self.each(Gauge, "millstream_job_worker_resident_memory_bytes", help, |job| {
            process(job).map(|process| process.resident_bytes as f64)
        });
        let help = "Processor time of the current workers.";
        self.each(Counter, "millstream_job_worker_cpu_seconds", help, |job| {
            process(job).map(|process| process.cpu_seconds)
        });
        let help = "Workers that are left out because they failed; the others train without them.";
        self.each(Gauge, "millstream_job_workers_left_out", help, |job| {
            job.worker.as_ref().map(|worker| worker.left_out.into())
        });
        let help = "Share of the time that one of several workers was in exchanges with the others, recently; the slowest has the \
                    smallest.";
        self.all(Gauge, "millstream_job_worker_exchange_ratio", help, |job, samples| {
            let shares = job.worker.iter().flat_map(|worker| &worker.exchange_shares);
            for (rank, share) in shares.enumerate() {
                if let Some(share) = *share {
                    samples.add(&[("job_id", &job.record.id), ("rank", &rank.to_string())], share);
                }
            }
        });
    }

    fn ingest(&mut self) {
        self.each(
            Gauge,
            "millstream_job_ingest_rows_per_second",
            "Rows delivered per second, recently.",
            |job| recent(job).map(|recent| recent.rows_per_second),
        );
        let help = "Bytes read from storage per second, recently.";
        self.each(Gauge, "millstream_job_ingest_bytes_per_second", help, |job| {
            recent(job).map(|recent| recent.bytes_per_second)
        });
        let help = "Bytes requested from storage and not received yet.";
        self.each(Gauge, "millstream_job_ingest_in_flight_bytes", help, |job| {
            job.ingest.as_ref().map(|ingest| ingest.in_flight_bytes as f64)
        });
        let help =
            "1 for the current bottleneck of the input, as in millstream explain: consumer means training.";
        self.all(Gauge, "millstream_job_ingest_bottleneck", help, |job, samples| {
            if let Some(recent) = recent(job) {
                samples.add(&[("job_id", &job.record.id), ("bottleneck", recent.bound.name())], 1.0);
            }
        });
        let help = "Share of the cores available to a stage of the input that it kept busy, recently.";
        self.all(Gauge, "millstream_job_ingest_stage_busy_ratio", help, |job, samples| {
            for stage in stages(job) {
                if let Some(busy) = stage.busy {
                    samples.add(&[("job_id", &job.record.id), ("stage", stage.stage)], busy);
                }
            }
        });
        let help = "Mean number of threads that waited in a stage of the input, recently.";
        self.all(Gauge, "millstream_job_ingest_stage_waiting_threads", help, |job, samples| {
            for stage in stages(job) {
                samples.add(&[("job_id", &job.record.id), ("stage", stage.stage)], stage.waiting);
            }
        });
        let help =
            "Rows truncated to the maximum of a multi-valued feature since the current worker was first fed.";
        self.each(Counter, "millstream_job_ingest_truncated_rows", help, |job| {
            job.ingest.as_ref().map(|ingest| ingest.truncated_rows as f64)
        });
    }

    fn cache(&mut self) {
        let mut family = |name, help, count: fn(&CacheStats) -> u64| {
            let cache = |ingest: &Explanation| ingest.cache.as_ref().map(|cache| count(cache) as f64);
            self.each(Counter, name, help, |job| job.ingest.as_ref().and_then(cache));
        };
        let help = "Splits read from the local cache since the current worker was first fed.";
        family("millstream_job_cache_hits", help, |cache| cache.hits);
        let help = "Splits not found in the local cache since the current worker was first fed.";
        family("millstream_job_cache_misses", help, |cache| cache.misses);
        let help = "Bytes read from the local cache since the current worker was first fed.";
        family("millstream_job_cache_read_bytes", help, |cache| cache.read_bytes);
        let help = "Bytes written to the local cache since the current worker was first fed.";
        family("millstream_job_cache_written_bytes", help, |cache| cache.written_bytes);
    }
}

/// The last seconds of a job's ingest.
fn recent(job: &JobSnapshot) -> Option<&Diagnosis> {
    job.ingest.as_ref().map(|ingest| &ingest.recent)
}

fn stages(job: &JobSnapshot) -> &[StageUse] {
    recent(job).map(|recent| recent.stages.as_slice()).unwrap_or_default()
}
