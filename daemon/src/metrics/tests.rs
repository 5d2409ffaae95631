#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use millstream_backend::Description;
use millstream_control::proto::JobProgress;
use millstream_feed::host::{Delivered, FeedStatus};
use millstream_io::storage::Directory;
use millstream_pipeline::ingest::{Bound, Diagnosis, Resources, StageUse};
use millstream_trainer::metrics::{Metric, MetricValue, Metrics};
use millstream_worker::gpus::GpuUse;

use super::*;
use crate::snapshot::{
    CheckpointSnapshot, EndedJobs, GpuJob, GpuSnapshot, GpusSnapshot, HostUse, OpenFiles, PeersUse,
    ProcessUse, SpanCounts, WorkerSnapshot,
};
use crate::state::Owner;

fn diagnosis() -> Diagnosis {
    let stage = |stage, busy, waiting| StageUse { stage, busy, waiting, waits_for: "" };
    Diagnosis {
        seconds: 10.0,
        rows_per_second: 250_000.5,
        bytes_per_second: 1e7,
        stages: vec![stage("fetch", None, 2.5), stage("decode", Some(0.75), 0.0)],
        bound: Bound::Storage,
        because: String::new(),
        rows_per_second_without: None,
        advice: Vec::new(),
    }
}

fn ingest() -> Explanation {
    let resources = Resources {
        cores: 2,
        lanes: 4,
        decoders: 2,
        decoders_fixed: false,
        streams: 1,
        streams_fixed: false,
        object_bytes: 0,
        most_object_bytes: 0,
        useful_object_bytes: 0,
        settled: true,
    };
    Explanation {
        resources,
        in_flight_bytes: 4096,
        recent: diagnosis(),
        whole: diagnosis(),
        cache: Some(CacheStats { hits: 3, misses: 1, read_bytes: 300, written_bytes: 100 }),
        truncated_rows: 6,
    }
}

fn feeds() -> HostStatus {
    let feed = |attached, ingest| FeedStatus {
        id: "feed-k3f9q2".into(),
        user: 1001,
        run: "a run".into(),
        ranks: 2,
        attached,
        began_ms: 2_000,
        memory_bytes: 1 << 30,
        evaluates: false,
        ingest,
        delivered: Delivered::default(),
    };
    HostStatus {
        feeds: vec![feed(2, Some(ingest())), feed(1, None)],
        opened: 5,
        delivered: Delivered { rows: 1_000, batches: 20, bytes: 30_000 },
        reserved_bytes: 2 << 30,
        memory_bytes: 8 << 30,
    }
}

/// A snapshot in which everything is known of the first job, and little of the second.
fn snapshot() -> Snapshot {
    let process = ProcessUse { resident_bytes: 1 << 20, cpu_seconds: 1.5, threads: 9 };
    let value = |metric, value| MetricValue { metric, value, error: None };
    let evaluation = Metrics {
        label: "a \"b\"".into(),
        values: vec![value(Metric::Auc, Some(0.75)), value(Metric::LogLoss, None)],
        ..Metrics::default()
    };
    let mut record = JobRecord::new("census-1", "census", Directory::local("/runs/census-1"));
    record.state = JobState::Running;
    record.owner = Some(Owner { uid: 1001, name: Some("ann".into()) });
    record.started_ms = Some(1_500);
    record.device = Some(Description { text: "the CPU, 2 threads".into(), gpu: None, libraries: Vec::new() });
    record.attempts = 2;
    record.eval = vec![evaluation];
    record.progress = JobProgress {
        step: 1200,
        total_steps: Some(3815),
        epoch: 1,
        epochs: 5,
        examples: 307_200,
        examples_per_second: 812_345.5,
        input_wait_fraction: 0.25,
        loss: f64::NAN,
        skipped_records: 2,
        total_is_estimate: false,
    };
    let known = JobSnapshot {
        record,
        checkpoint: Some(CheckpointSnapshot { step: 1000, committed_ms: Some(2_250) }),
        image_step: Some(1100),
        worker: Some(WorkerSnapshot {
            pids: vec![7, 9, 10],
            process: Some(process),
            exchange_shares: vec![Some(0.25), None, Some(0.5)],
            left_out: 1,
        }),
        ingest: Some(ingest()),
    };
    let mut record = JobRecord::new("clicks-2", "clicks", Directory::local("/runs/clicks-2"));
    record.state = JobState::Preparing;
    let preparing = JobSnapshot {
        record,
        checkpoint: None,
        image_step: None,
        worker: Some(WorkerSnapshot {
            pids: vec![8],
            process: None,
            exchange_shares: Vec::new(),
            left_out: 0,
        }),
        ingest: None,
    };
    Snapshot {
        at_ms: 5_000,
        version: "0.1.0",
        started_ms: 1_000,
        is_stopping: false,
        queued_jobs: 3,
        held_jobs: 1,
        ended_jobs: EndedJobs { succeeded: 4, failed: 1, cancelled: 0, held: 0 },
        spans: Some(SpanCounts { sent: 40, dropped: 2 }),
        jobs: vec![known, preparing],
        process: Some(process),
        open_files: Some(OpenFiles { open: 20, maximum: Some(1024) }),
        host_name: "trainer-1".into(),
        host: HostUse {
            available_bytes: Some(1 << 30),
            memory_bytes: Some(1 << 32),
            cores: 2,
            load: Some([0.5, 0.25, 0.0]),
        },
        gpus: Some(gpus()),
        peers: Some(PeersUse { up: 3, down: 1, refused: 12 }),
        feeds: feeds(),
    }
}

/// GPUs of which everything is known of the first, and nothing of the second.
fn gpus() -> GpusSnapshot {
    let known = GpuUse {
        name: "H100".into(),
        uuid: "GPU-1".into(),
        pci: "00000000:17:00.0".into(),
        busy: Some(0.75),
        memory_busy: Some(0.25),
        used_bytes: Some(3 << 30),
        memory_bytes: Some(80 << 30),
        celsius: Some(61),
        watts: Some(310.5),
        limit_watts: Some(700.0),
        throttled_by: vec!["power_limit".into()],
        corrected_errors: Some(3),
        uncorrected_errors: Some(0),
        ..GpuUse::default()
    };
    let jobs = vec![GpuJob { id: "census-1".into(), bytes: Some(2 << 30) }];
    let lost = GpuUse { number: 1, problem: Some("lost".into()), ..GpuUse::default() };
    GpusSnapshot {
        gpus: vec![
            GpuSnapshot { found: known, jobs, other_bytes: Some(1 << 20) },
            GpuSnapshot { found: lost, jobs: Vec::new(), other_bytes: None },
        ],
        sampled_ms: Some(4_000),
        is_stale: false,
        problem: None,
    }
}

#[test]
fn gpus_that_cannot_be_read_have_no_old_figures() {
    let gpus = GpusSnapshot { is_stale: true, ..gpus() };
    let text = render(&Snapshot { gpus: Some(gpus), ..snapshot() }, Format::Prometheus);
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("millstream_gpu")).collect();
    assert_eq!(lines, ["millstream_gpus_readable 0"]);
}

#[test]
fn a_snapshot_is_rendered_in_both_formats() {
    assert_eq!(render(&snapshot(), Format::OpenMetrics), include_str!("golden.openmetrics"));
    assert_eq!(render(&snapshot(), Format::Prometheus), include_str!("golden.prom"));
}

#[test]
fn what_is_unknown_has_no_sample() {
    let bare = Snapshot {
        jobs: Vec::new(),
        process: None,
        open_files: Some(OpenFiles { open: 20, maximum: None }),
        host: HostUse { cores: 2, ..HostUse::default() },
        gpus: None,
        peers: None,
        ..snapshot()
    };
    let text = render(&bare, Format::Prometheus);
    assert!(text.contains("process_open_fds 20\n") && text.contains("millstream_host_cores 2\n"));
    for absent in
        ["millstream_job_", "process_cpu", "process_max_fds", "host_memory", "host_load", "gpu", "peer"]
    {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
}

#[test]
fn the_operators_table_lists_every_metric() {
    let text = render(&snapshot(), Format::Prometheus);
    let rendered: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let readme = include_str!("../../../packaging/README.md");
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let names = rows.map(|name| name.split('{').next().unwrap_or_default());
    let listed: BTreeSet<_> =
        names.filter(|name| name.starts_with("millstream_") || name.starts_with("process_")).collect();
    assert!(rendered.len() > 30, "{rendered:?}");
    assert_eq!(rendered, listed);
}

#[test]
fn help_needs_no_escapes() {
    let text = render(&snapshot(), Format::OpenMetrics);
    let helps: Vec<_> = text.lines().filter(|line| line.starts_with("# HELP ")).collect();
    assert!(!helps.is_empty());
    for help in helps {
        assert!(!help.contains(['"', '\\']) && help.ends_with('.'), "{help}");
    }
}
