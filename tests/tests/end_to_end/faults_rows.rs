//! `kill -9` of worker and daemon in turn, with distinguishable rows: each row is trained on exactly once per epoch,
//! from one TFRecord file that is split into parts.
//!
//! Every row has a unique tag, which is a feature and so has its own weight. The FTRL accumulator of that weight grows by
//! the squared gradient of each step that contains the row. A skipped row keeps the initial value; a row that was
//! repeated, or was in a different batch, has another value than in the undisturbed run.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use millstream_tests::programs::{Daemon, children, has_ended, kill, wait_until};
use millstream_tests::tfrecord::{self, Value};
use millstream_tests::tiny_job::{Contents, RandomDelays, kill_count};
use serde_json::Value as Json;

const ROWS: u64 = 24_000;
/// Kills in a run of `tests/run`.
const KILLS: u32 = 6;
const MAX_DELAY: Duration = Duration::from_millis(400);

/// The initial value of FTRL accumulators.
const INITIAL: f32 = 0.1;

const JOB: &str = r#"
name = "tagged"
seed = 5

[data]
train = ["rows.tfrecord"]
eval = []
batch_size = 32
epochs = 3
shuffle_rows = 3000
lanes = 5
split_bytes = "100KiB"

[label]
column = "clicked"

[features]
tag = { kind = "vocabulary" }
x = { kind = "numeric" }

[model]
kind = "wide_deep"
wide.features = ["tag"]
wide.optimizer = { kind = "ftrl", learning_rate = 0.1, initial_accumulator = 0.1 }
deep.features = ["x"]
deep.hidden = [4]
deep.optimizer = { kind = "adagrad", learning_rate = 0.05 }

[training]
threads = 1

[checkpoint]
directory = "checkpoints"
every_steps = 50
keep = 2
"#;

/// Writes the job and its single file, which is larger than several parts.
fn write(directory: &Path) {
    let rows = (0..ROWS).map(|row| {
        let features = [
            ("tag", Value::Bytes(format!("row-{row}"))),
            ("x", Value::Float((row % 17) as f32 / 17.0)),
            ("clicked", Value::Int(i64::from(row % 5 == 0))),
        ];
        tfrecord::example(features.into_iter())
    });
    let file = tfrecord::file(rows);
    assert!(file.len() > 10 * (100 << 10), "many parts");
    fs::write(directory.join("rows.tfrecord"), file).unwrap();
    fs::write(directory.join("job.toml"), JOB).unwrap();
}

#[test]
fn each_row_is_trained_on_once_per_epoch_regardless_of_kills() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let file = directory.path().join("job.toml");
    let file = file.to_str().unwrap();
    let submit = |daemon: &Daemon| daemon.json(&["submit", file])["id"].as_str().unwrap().to_owned();

    let mut daemon = Daemon::start(directory.path());
    let id = submit(&daemon);
    let undisturbed = daemon.succeeded(&id);
    let wanted = Contents::of(undisturbed["checkpoint"].as_str().unwrap());
    assert_every_row_was_trained_on(undisturbed["checkpoint"].as_str().unwrap());

    let mut delays = RandomDelays::new();
    let (mut kills, wanted_kills) = (0, kill_count(KILLS));
    while kills < wanted_kills {
        let id = submit(&daemon);
        while kills < wanted_kills && !has_ended(&daemon.show(&id)) {
            std::thread::sleep(delays.next(MAX_DELAY));
            if kills % 2 == 0 {
                for worker in children(daemon.pid()) {
                    kill(worker);
                }
            } else {
                daemon.kill();
                daemon = Daemon::start(directory.path());
            }
            kills += 1;
            wait_for_progress(&daemon, &id);
        }
        let job = daemon.succeeded(&id);
        let checkpoint = job["checkpoint"].as_str().unwrap();
        assert_every_row_was_trained_on(checkpoint);
        Contents::of(checkpoint).assert_same(&wanted);
    }
    daemon.stop();
}

/// Waits until a new worker commits a checkpoint, because three deaths without one fail the job.
fn wait_for_progress(daemon: &Daemon, id: &str) {
    let before = daemon.show(id)["checkpoint"].clone();
    wait_until("there is a new checkpoint", || {
        let job = daemon.show(id);
        has_ended(&job) || job["checkpoint"] != before
    });
}

/// Checks the accumulator of every tag. The vocabulary has one term per row, so the analysis pass counted each row once;
/// after these come an id for unknown terms and one for missing values.
fn assert_every_row_was_trained_on(checkpoint: &str) {
    let manifest = fs::read(Path::new(checkpoint).join("manifest.json")).unwrap();
    let manifest: Json = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(manifest["snapshot"]["step"].as_u64(), Some(3 * ROWS.div_ceil(32)));
    assert_eq!(manifest["snapshot"]["progress"]["examples"].as_u64(), Some(3 * ROWS));
    let state = fs::read(Path::new(checkpoint).join("optimizer.safetensors")).unwrap();
    let accumulators = tensors(&state)
        .into_iter()
        .filter(|(name, values)| name.contains("tag") && values.len() as u64 == ROWS + 2)
        .find(|(_, values)| values[ROWS as usize..] == [INITIAL; 2])
        .expect("accumulators of the tags");
    let rows = &accumulators.1[..ROWS as usize];
    let untouched = rows.iter().filter(|&&value| value <= INITIAL).count();
    assert_eq!(untouched, 0, "rows that were never trained on, in {}", accumulators.0);
    let distinct: HashSet<u32> = rows.iter().map(|value| value.to_bits()).collect();
    assert!(distinct.len() > 100, "rows are distinguishable");
}

/// The tensors of a safetensors file, by name.
fn tensors(bytes: &[u8]) -> Vec<(String, Vec<f32>)> {
    let (head, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*head) as usize);
    let header: Json = serde_json::from_slice(header).unwrap();
    let entries = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    entries
        .map(|(name, entry)| {
            assert_eq!(entry["dtype"], "F32", "{name}");
            let at = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize;
            let values = data[at(0)..at(1)].chunks_exact(4);
            (name.clone(), values.map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect())
        })
        .collect()
}
