//! The daemon's records as messages of the control API, for the service and the web page.

use millstream_backend::{Description, GpuName, LibraryVersion};
use millstream_control::proto::{self, LogLine, Scores};
use millstream_feed::host::{FeedStatus, HostStatus};
use millstream_io::storage::Directory;
use millstream_job::Domain;
use millstream_pipeline::ingest::{Diagnosis, Explanation, StageUse};
use millstream_trainer::metrics::{MetricValue, Metrics};
use millstream_worker::gpus::GpuUse;

use crate::actor::Actor;
use crate::daemon::{Predicted, ShownTrial, Trials};
use crate::roles::Role;
use crate::snapshot::{
    EndedJobs, GpuJob, GpuSnapshot, GpusSnapshot, HostUse, JobSnapshot, ProcessUse, RankPlace, RankSnapshot,
    Snapshot, WorkerSnapshot,
};
use crate::state::{History, HistoryPoint, JobRecord, LogRecord};
use crate::supervisor::{FewerWorkers, LeftOut};

pub(crate) fn job_message(record: &JobRecord) -> proto::Job {
    proto::Job {
        id: record.id.clone(),
        name: record.name.clone(),
        state: record.state.into(),
        reason: Some(record.reason.clone()).filter(|reason| !reason.is_empty()),
        waits_for: Some(record.waits_for.clone()).filter(|why| !why.is_empty()),
        owner: record.owner.as_ref().map(ToString::to_string),
        priority: record.priority,
        attempts: record.attempts,
        created_ms: record.created_ms,
        started_ms: record.started_ms,
        ended_ms: record.ended_ms,
        directory: directory_text(&record.directory),
        checkpoint: record.checkpoint.as_ref().map(directory_text),
        best_checkpoint: None,
        device: record.device.as_ref().map(device_message),
        progress: Some(record.progress),
        eval: record.eval.iter().map(metrics_message).collect(),
        eval_epoch: record.eval_epoch,
        gpus: Vec::new(),
        workers: Vec::new(),
        image_step: None,
        fewer_workers: None,
    }
}

/// The job as a user with this role sees it. Viewers see no paths, and no reason of a failure, which may quote data.
pub(crate) fn seen_by(role: Role, job: proto::Job) -> proto::Job {
    match role {
        Role::Operator => job,
        Role::Viewer => proto::Job {
            reason: job.reason.map(|_| "only operators see the reason".to_owned()),
            directory: String::new(),
            checkpoint: None,
            best_checkpoint: None,
            fewer_workers: job.fewer_workers.map(without_reasons),
            ..job
        },
    }
}

fn without_reasons(mut fewer: proto::FewerWorkers) -> proto::FewerWorkers {
    fewer.left_out.iter_mut().for_each(|worker| worker.reason.clear());
    fewer
}

fn device_message(device: &Description) -> proto::Device {
    let Description { text, gpu: gpu_name, libraries } = device;
    let gpu = |GpuName { number, name }: &GpuName| proto::Gpu { number: *number, name: name.clone() };
    let library = |LibraryVersion { library, version }: &LibraryVersion| proto::Library {
        library: library.clone(),
        version: version.clone(),
    };
    proto::Device {
        description: text.clone(),
        gpu: gpu_name.as_ref().map(gpu),
        libraries: libraries.iter().map(library).collect(),
    }
}

pub(crate) fn history_message(record: &JobRecord, history: History) -> proto::History {
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let point = |point: &HistoryPoint| proto::HistoryPoint {
        step: point.step,
        loss: point.loss,
        examples_per_second: share(point.examples as f64, point.seconds),
        input_wait_fraction: share(point.waited_seconds, point.seconds),
    };
    proto::History {
        job: Some(job_message(record)),
        points: history.points.iter().map(point).collect(),
        evaluations: history.evaluations,
    }
}

pub(crate) fn metrics_message(metrics: &Metrics) -> proto::Metrics {
    let value = |&MetricValue { metric, value, error }: &MetricValue| proto::MetricValue {
        name: metric.name().to_owned(),
        value,
        error,
    };
    proto::Metrics {
        label: metrics.label.clone(),
        measured: metrics.values.iter().map(value).collect(),
        groups: metrics.groups,
        top_k: metrics.top_k,
        examples: metrics.examples,
    }
}

/// Converts the explanation of an ingest.
pub fn explanation_message(explanation: &Explanation) -> proto::Explanation {
    let Explanation { resources, in_flight_bytes, recent, whole, cache, truncated_rows } = explanation;
    let cache = cache.map(|stats| proto::CacheUse {
        hits: stats.hits,
        misses: stats.misses,
        read_bytes: stats.read_bytes,
        written_bytes: stats.written_bytes,
    });
    proto::Explanation {
        resources: Some(proto::IngestResources {
            cores: resources.cores,
            lanes: resources.lanes,
            decoders: resources.decoders,
            decoders_fixed: resources.decoders_fixed,
            streams: resources.streams,
            streams_fixed: resources.streams_fixed,
            object_bytes: resources.object_bytes,
            most_object_bytes: resources.most_object_bytes,
            useful_object_bytes: resources.useful_object_bytes,
            settled: resources.settled,
        }),
        in_flight_bytes: *in_flight_bytes,
        recent: Some(diagnosis_message(recent)),
        whole: Some(diagnosis_message(whole)),
        cache,
        truncated_rows: *truncated_rows,
        gpus: Vec::new(),
        workers: Vec::new(),
    }
}

/// The open feeds as a user with this role sees them.
pub(crate) fn feeds_message(status: &HostStatus, role: Role) -> proto::FeedsReply {
    let feed = |feed: &FeedStatus| proto::Feed {
        id: feed.id.clone(),
        state: match &feed.ingest {
            None => "opening",
            Some(_) if feed.evaluates => "evaluating",
            Some(_) => "feeding",
        }
        .to_owned(),
        owner: Actor { uid: feed.user }.owner().to_string(),
        run: (role == Role::Operator).then(|| feed.run.clone()),
        ranks: feed.ranks,
        attached: feed.attached,
        began_ms: feed.began_ms,
        memory_bytes: feed.memory_bytes,
        rows: feed.delivered.rows,
        batches: feed.delivered.batches,
        read_bytes: feed.delivered.bytes,
        rows_per_second: feed.ingest.as_ref().map(|ingest| ingest.recent.rows_per_second),
        bound: feed.ingest.as_ref().map(|ingest| ingest.recent.bound.name().to_owned()),
    };
    proto::FeedsReply {
        feeds: status.feeds.iter().map(feed).collect(),
        reserved_bytes: status.reserved_bytes,
        memory_bytes: status.memory_bytes,
    }
}

pub(crate) fn diagnosis_message(found: &Diagnosis) -> proto::Diagnosis {
    let stage = |stage: &StageUse| proto::StageUse {
        stage: stage.stage.to_owned(),
        busy: stage.busy,
        waiting: stage.waiting,
        waits_for: stage.waits_for.to_owned(),
    };
    proto::Diagnosis {
        seconds: found.seconds,
        rows_per_second: found.rows_per_second,
        bytes_per_second: found.bytes_per_second,
        stages: found.stages.iter().map(stage).collect(),
        bound: found.bound.name().to_owned(),
        because: found.because.clone(),
        rows_per_second_without: found.rows_per_second_without,
        advice: found.advice.clone(),
    }
}

pub(crate) fn line_message(line: LogRecord) -> LogLine {
    LogLine { at_ms: line.at_ms, level: line.level.as_str().to_ascii_lowercase(), text: line.text }
}

/// Messages contain only UTF-8. A path that is not UTF-8 is converted lossily and cannot be opened.
pub(crate) fn directory_text(directory: &Directory) -> String {
    directory.text().into_owned()
}

pub(crate) fn scores_message(part: Predicted) -> Scores {
    match part {
        Predicted::Columns(columns) => Scores { columns, ..Scores::default() },
        Predicted::Rows { scores, kept: rows } => Scores { scores, rows, ..Scores::default() },
        Predicted::Skipped(skipped_rows) => Scores { skipped_rows, ..Scores::default() },
    }
}

/// Converts the trials of a search.
pub(crate) fn trials_message(found: Trials) -> proto::TrialsReply {
    let Trials { record, spec, label, trials, best, best_job } = found;
    let search = record.id;
    let trial = |(number, trial): (usize, ShownTrial)| proto::Trial {
        search: search.clone(),
        name: trial.name,
        job: trial.job.id,
        state: trial.state.to_owned(),
        reason: (!trial.job.reason.is_empty()).then_some(trial.job.reason),
        values: trial.values,
        value: trial.value,
        evaluations: trial.evaluations,
        rungs: trial.rungs as u32,
        steps: trial.job.steps,
        examples: trial.job.examples,
        seconds: trial.job.seconds,
        is_best: best == Some(number),
    };
    let is_log =
        |domain: &Domain| matches!(domain, Domain::Real { log: true, .. } | Domain::Whole { log: true, .. });
    proto::TrialsReply {
        trials: trials.into_iter().enumerate().map(trial).collect(),
        metric: if label.is_empty() {
            spec.metric.name().to_owned()
        } else {
            format!("{label}/{}", spec.metric.name())
        },
        higher_is_better: spec.metric.gain(1.0, 0.0) > 0.0,
        log_scales: spec.parameters.iter().map(|parameter| is_log(&parameter.domain)).collect(),
        parameters: spec.parameters.into_iter().map(|parameter| parameter.key).collect(),
        best_job,
        search,
    }
}

/// Converts the daemon's state.
pub(crate) fn snapshot_message(snapshot: &Snapshot) -> proto::Snapshot {
    let EndedJobs { succeeded, failed, cancelled, held } = snapshot.ended_jobs;
    let HostUse { available_bytes, memory_bytes, cores, load } = snapshot.host;
    proto::Snapshot {
        at_ms: snapshot.at_ms,
        version: snapshot.version.to_owned(),
        started_ms: snapshot.started_ms,
        is_stopping: snapshot.is_stopping,
        queued_jobs: snapshot.queued_jobs,
        held_jobs: snapshot.held_jobs,
        ended_jobs: Some(proto::EndedJobs { succeeded, failed, cancelled, held }),
        process: snapshot.process.map(|process| process_message(std::process::id(), process)),
        open_files: snapshot.open_files.map(|files| files.open),
        max_open_files: snapshot.open_files.and_then(|files| files.maximum),
        host: Some(proto::HostUse {
            name: snapshot.host_name.clone(),
            cores,
            memory_bytes,
            available_bytes,
            load: load.map(Vec::from).unwrap_or_default(),
        }),
        jobs: snapshot.jobs.iter().map(activity_message).collect(),
        gpus: snapshot.gpus.as_ref().map(gpus_message),
    }
}

fn gpus_message(gpus: &GpusSnapshot) -> proto::HostGpus {
    let GpusSnapshot { gpus, sampled_ms, is_stale, problem } = gpus;
    proto::HostGpus {
        gpus: gpus.iter().map(gpu_message).collect(),
        sampled_ms: *sampled_ms,
        is_stale: *is_stale,
        problem: problem.clone(),
    }
}

pub(crate) fn gpu_message(GpuSnapshot { found, jobs, other_bytes }: &GpuSnapshot) -> proto::GpuUse {
    let GpuUse { number, uuid, name, pci, problem, throttled_by, .. } = found.clone();
    let job = |GpuJob { id, bytes }: &GpuJob| proto::GpuJob { id: id.clone(), used_bytes: *bytes };
    proto::GpuUse {
        number,
        uuid,
        name,
        pci,
        problem,
        busy: found.busy,
        memory_busy: found.memory_busy,
        used_bytes: found.used_bytes,
        memory_bytes: found.memory_bytes,
        celsius: found.celsius,
        watts: found.watts,
        limit_watts: found.limit_watts,
        throttled_by,
        corrected_errors: found.corrected_errors,
        uncorrected_errors: found.uncorrected_errors,
        is_persistent: found.is_persistent,
        is_divided: found.is_divided,
        jobs: jobs.iter().map(job).collect(),
        other_bytes: *other_bytes,
    }
}

/// Workers, by rank.
pub(crate) fn worker_messages(workers: &[RankSnapshot]) -> Vec<proto::Worker> {
    let message = |worker: &RankSnapshot| {
        let RankSnapshot { rank, place, exchange_share, awaited } = worker;
        let (pid, host) = match place {
            RankPlace::Process(pid) => (Some(*pid), None),
            RankPlace::Host(host) => (None, Some(host.clone())),
        };
        proto::Worker {
            rank: *rank,
            pid,
            host,
            exchange_fraction: *exchange_share,
            awaited_seconds: awaited.as_ref().map(|awaited| awaited.since.as_secs_f64()),
            awaited_in: awaited.as_ref().map(|awaited| awaited.exchange.clone()),
        }
    };
    workers.iter().map(message).collect()
}

pub(crate) fn fewer_workers_message(fewer: &FewerWorkers) -> proto::FewerWorkers {
    let left_out = |LeftOut { worker, gpu, reason }: &LeftOut| proto::LeftOutWorker {
        worker: *worker,
        gpu: *gpu,
        reason: reason.clone(),
    };
    let FewerWorkers { members, all, left_out: workers } = fewer;
    proto::FewerWorkers { members: *members, all: *all, left_out: workers.iter().map(left_out).collect() }
}

fn activity_message(job: &JobSnapshot) -> proto::JobActivity {
    let worker = |WorkerSnapshot { pids, process, .. }: &WorkerSnapshot| {
        Some(process_message(*pids.first()?, (*process)?))
    };
    proto::JobActivity {
        job: Some(job_message(&job.record)),
        worker: job.worker.as_ref().and_then(worker),
        ingest: job.ingest.as_ref().map(explanation_message),
        checkpoint_step: job.checkpoint.map(|checkpoint| checkpoint.step),
        checkpoint_ms: job.checkpoint.and_then(|checkpoint| checkpoint.committed_ms),
    }
}

fn process_message(pid: u32, process: ProcessUse) -> proto::ProcessUse {
    let ProcessUse { resident_bytes, cpu_seconds, threads } = process;
    proto::ProcessUse { pid, resident_bytes, cpu_seconds, threads }
}
