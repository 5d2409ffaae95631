//! Compiles the control API's protobuf definitions in pure Rust, without `protoc`.

use protox::prost::Message as _;

/// The messages that `--json` prints.
const PRINTED: [&str; 36] = [
    "AuditRecord",
    "CacheUse",
    "CheckpointReply",
    "Device",
    "Diagnosis",
    "EndedJobs",
    "EvaluateReply",
    "Evaluation",
    "Explanation",
    "Feed",
    "FeedsReply",
    "FewerWorkers",
    "Gpu",
    "GpuJob",
    "GpuUse",
    "HistoryPoint",
    "HostGpus",
    "HostUse",
    "IngestResources",
    "Job",
    "JobActivity",
    "JobProgress",
    "LeftOutWorker",
    "Library",
    "LogLine",
    "MetricsReply",
    "Peer",
    "PeerMeasurement",
    "PeersReply",
    "ProcessUse",
    "Snapshot",
    "StageUse",
    "Trial",
    "TrialsReply",
    "WebReply",
    "Worker",
];

/// The fields that are printed differently: `src/json.rs` has the functions.
const SPECIAL: [(&str, &str); 14] = [
    ("Job.state", "serialize_with = \"crate::json::state\""),
    ("Job.best_checkpoint", "skip_serializing_if = \"Option::is_none\""),
    ("Job.image_step", "skip_serializing_if = \"Option::is_none\""),
    ("Job.fewer_workers", "skip_serializing_if = \"Option::is_none\""),
    ("Job.eval", "serialize_with = \"crate::json::eval\""),
    ("Job.eval_epoch", "skip"),
    ("Job.gpus", "skip_serializing_if = \"Vec::is_empty\""),
    ("Job.workers", "skip_serializing_if = \"Vec::is_empty\""),
    ("Explanation.gpus", "skip_serializing_if = \"Vec::is_empty\""),
    ("Explanation.workers", "skip_serializing_if = \"Vec::is_empty\""),
    ("Feed.run", "skip_serializing_if = \"Option::is_none\""),
    ("TrialsReply.best_job", "skip_serializing_if = \"Option::is_none\""),
    ("EvaluateReply.metrics", "serialize_with = \"crate::json::eval\""),
    ("Evaluation.metrics", "serialize_with = \"crate::json::by_label\""),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/control.proto");
    let descriptors = protox::compile(["proto/control.proto"], ["proto"])?;
    // For clients that ask the daemon for its API.
    let directory = std::path::PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    std::fs::write(directory.join("control_descriptor.bin"), descriptors.encode_to_vec())?;
    let mut builder = tonic_prost_build::configure();
    for message in PRINTED {
        builder = builder.message_attribute(message, "#[derive(serde::Serialize)]");
    }
    for (field, attribute) in SPECIAL {
        builder = builder.field_attribute(field, format!("#[serde({attribute})]"));
    }
    builder.message_attribute("EvaluateReply", "#[serde(transparent)]").compile_fds(descriptors)?;
    Ok(())
}
