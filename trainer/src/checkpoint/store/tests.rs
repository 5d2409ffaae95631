#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use millstream_batch::BatchSchema;
use object_store::memory::InMemory;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::super::faults::{Death, DyingStore};
use super::super::manifest::{TrainingProgress, hex};
use super::super::{MODEL_PART, OPTIMIZER_PART};
use super::*;
use crate::loss::LossSum;
use crate::metrics::{Metric, MetricValue, Metrics};
use crate::session::{EvalPoint, SelectionState};
use crate::spec::{
    DeepSpec, EmbeddingInit, HiddenLayerSpec, LossSpec, ModelSpec, OptimizerSpec, Pooling, Precision,
    TaskSpec, WideDeepSpec, WideSpec,
};

/// What to do when the newest checkpoint is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDamage {
    /// Return the error.
    Fail,
    /// Load the newest intact checkpoint.
    FallBack,
}

impl CheckpointStore {
    /// Like [`CheckpointStore::local`], but creates the directory first.
    ///
    /// # Errors
    /// When `directory` cannot be created.
    pub(crate) fn create_local(directory: &std::path::Path) -> Result<Self, CheckpointError> {
        fs::create_dir_all(directory)
            .map_err(|error| CheckpointError::Storage { path: directory.display().to_string(), error })?;
        Self::local(directory)
    }

    /// Reads the newest checkpoint; `None` if there is none.
    ///
    /// # Errors
    /// As for [`CheckpointStore::load`]. With [`OnDamage::FallBack`], an error only if all are damaged: that
    /// of the newest.
    pub(crate) fn load_newest(
        &self,
        extent: CheckpointScope,
        on_damage: OnDamage,
    ) -> Result<Option<Checkpoint>, CheckpointError> {
        let mut newest_damage = None;
        for step in self.steps()?.into_iter().rev() {
            match self.load(step, extent) {
                Ok(checkpoint) => return Ok(Some(checkpoint)),
                Err(error @ CheckpointError::Damaged { .. }) if on_damage == OnDamage::FallBack => {
                    tracing::warn!(%error, "falling back to the previous checkpoint");
                    newest_damage.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        newest_damage.map_or(Ok(None), Err)
    }
}

const OPTIMIZER: OptimizerSpec =
    OptimizerSpec::Ftrl { learning_rate: 0.1, beta: 1.0, l1: 0.5, l2: 0.0, initial_accumulator: 0.1 };

fn snapshot(step: u64) -> Snapshot {
    let wide = WideSpec { features: vec!["a".into()], optimizer: OPTIMIZER };
    let deep = DeepSpec {
        features: vec!["a".into(), "b".into()],
        embedding_dim: 8.into(),
        embedding_init: EmbeddingInit::default(),
        embeddings: Vec::new(),
        embedding_optimizer: None,
        hidden: vec![16, 4],
        hidden_layer: HiddenLayerSpec::default(),
        pooling: Pooling::Mean,
        optimizer: OPTIMIZER,
    };
    Snapshot {
        step,
        progress: TrainingProgress {
            epoch: 1,
            examples: step * 256,
            loss: LossSum { loss: 0.1 + 0.2, weight: 1.0 / 3.0 },
        },
        position: vec![0, 1, 0xfe, step.to_le_bytes()[0]],
        eval: vec![Metrics {
            values: vec![
                MetricValue { metric: Metric::Auc, value: Some(0.1 + 0.7), error: Some(0.0) },
                MetricValue { metric: Metric::LogLoss, value: Some(2.0 / 3.0), error: None },
                MetricValue { metric: Metric::Calibration, value: None, error: None },
            ],
            examples: 16281,
            ..Metrics::default()
        }],
        eval_step: Some(step),
        eval_due: false,
        standing: SelectionState::default(),
        model: ModelSpec::WideDeep(WideDeepSpec { wide, deep }),
        schema: BatchSchema {
            rows: 256,
            labels: Vec::new(),
            weighted: false,
            dense: vec!["b".into()],
            ids: vec![],
            ragged: vec![],
            columns: Vec::new(),
            position_bytes: 64,
        },
        seed: u64::MAX,
        precision: Precision::Fp32,
        embedding_precision: Precision::Fp32,
        tasks: vec![TaskSpec { loss: LossSpec::SquaredError, weight: 0.5 }],
        loss_scale: None,
    }
}

/// The contents of the parts of a step; a nonzero `salt` changes them.
fn content(step: u64, salt: u8) -> [(&'static str, Vec<u8>); 3] {
    let bytes = |length: u8| (0..length).map(|i| i ^ salt ^ step.to_le_bytes()[0]).collect();
    [(MODEL_PART, bytes(90)), (OPTIMIZER_PART, bytes(50)), ("job.toml", bytes(5))]
}

fn commit(store: &CheckpointStore, step: u64, salt: u8, keep: u32) -> Result<String, CheckpointError> {
    commit_snapshot(store, snapshot(step), salt, keep)
}

fn commit_snapshot(
    store: &CheckpointStore,
    snapshot: Snapshot,
    salt: u8,
    keep: u32,
) -> Result<String, CheckpointError> {
    let content = content(snapshot.step, salt);
    let part = |(name, bytes): (&'static str, Vec<u8>)| Part::new(name, move |out| out.write_all(&bytes));
    Ok(store.commit(None, snapshot, &content.map(part), keep)?.path)
}

/// Stores on every kind of storage, with pieces so small that parts have several.
fn stores() -> Vec<(CheckpointStore, Option<TempDir>)> {
    let directory = tempfile::tempdir().unwrap();
    let local = CheckpointStore::create_local(&directory.path().join("job")).unwrap();
    vec![(CheckpointStore { piece_bytes: 32, ..local }, Some(directory)), (in_memory(), None)]
}

fn in_memory() -> CheckpointStore {
    let prefix = Path::from("jobs/census-1");
    let store = CheckpointStore::new(
        Arc::new(InMemory::new()),
        prefix,
        Arc::new(|work| futures::executor::block_on(work)),
    );
    CheckpointStore { piece_bytes: 32, ..store }
}

/// Every object and its bytes.
fn dump(store: &CheckpointStore) -> BTreeMap<String, Bytes> {
    let listing = store.objects.list(None).map_ok(|object| object.location);
    let paths: Vec<Path> = wait(&store.block_on, listing.try_collect()).unwrap();
    paths.into_iter().map(|path| (path.to_string(), store.get(&path).unwrap().unwrap())).collect()
}

fn put(store: &CheckpointStore, path: &Path, bytes: &[u8]) {
    wait(&store.block_on, store.objects.put(path, bytes.to_vec().into())).unwrap();
}

fn assert_holds(checkpoint: &Checkpoint, salt: u8) {
    let step = checkpoint.manifest.snapshot.step;
    for (name, bytes) in content(step, salt) {
        assert_eq!(checkpoint.part(name).unwrap(), bytes, "{name} of step {step}");
    }
}

#[test]
fn a_committed_checkpoint_is_loaded() {
    for (store, _directory) in stores() {
        assert!(store.steps().unwrap().is_empty());
        assert!(store.load_newest(CheckpointScope::Full, OnDamage::Fail).unwrap().is_none());
        let path = commit(&store, 500, 1, 3).unwrap();
        assert!(path.ends_with("step-0000000500"), "{path}");
        let checkpoint = store.load(500, CheckpointScope::Full).unwrap();
        assert_eq!(checkpoint.manifest.snapshot, snapshot(500));
        assert_eq!(checkpoint.path(), path);
        assert_holds(&checkpoint, 1);
        let scoring = store.load(500, CheckpointScope::Scoring).unwrap();
        assert_eq!(scoring.part(OPTIMIZER_PART), None);
        assert_eq!(scoring.part(MODEL_PART), checkpoint.part(MODEL_PART));
        let absent = store.load(501, CheckpointScope::Full).unwrap_err();
        assert!(matches!(absent, CheckpointError::Absent { .. }), "{absent}");
    }
}

/// An earlier writer was suspended at some point, and continues when a later one has committed the same step.
#[test]
fn a_late_write_of_an_earlier_term_changes_no_checkpoint_of_a_later_one() {
    let store = in_memory();
    let [earlier, later] = [1, 2].map(|term| store.clone().in_term(term, "gs://bucket/".to_owned()));
    let before = commit(&earlier, 4, 1, 3).unwrap();
    assert_eq!(before, "gs://bucket/jobs/census-1/step-0000000004");
    assert!(dump(&store).contains_key("jobs/census-1/step-0000000004/term-1/model.safetensors"));
    assert_holds(&later.load(4, CheckpointScope::Full).unwrap(), 1);

    let part = Part::new(MODEL_PART, |out| out.write_all(b"of the earlier"));
    let late_parts = earlier.write_parts(5, [&part].into_iter()).unwrap();
    commit(&later, 5, 2, 3).unwrap();
    earlier.write_parts(5, [&part].into_iter()).unwrap();
    let manifest = Manifest::new(snapshot(5), late_parts, 1).to_json();
    let error = earlier.put_manifest(5, manifest, PutMode::Create).unwrap_err();
    assert!(matches!(error, CheckpointError::Storage { .. }), "{error}");
    assert_holds(&later.load(5, CheckpointScope::Full).unwrap(), 2);
    // The next commit of the step removes what was late.
    commit(&later, 5, 3, 3).unwrap();
    assert!(!dump(&store).keys().any(|path| path.contains("step-0000000005/term-1/")));
    assert_holds(&later.load(5, CheckpointScope::Full).unwrap(), 3);
}

/// The response to the first request was lost, so it is repeated.
#[test]
fn a_manifest_that_is_already_there_is_committed() {
    let store = in_memory().in_term(1, String::new());
    commit(&store, 4, 1, 3).unwrap();
    let json = store.get(&store.part_path(4, MANIFEST)).unwrap().unwrap();
    store.put_manifest(4, json.to_vec(), PutMode::Create).unwrap();
    assert!(store.put_manifest(4, b"another".to_vec(), PutMode::Create).is_err());
}

#[test]
fn a_step_that_is_committed_again_keeps_parts_of_an_earlier_term() {
    let store = in_memory();
    let [earlier, later] = [1, 2].map(|term| store.clone().in_term(term, String::new()));
    commit(&earlier, 4, 1, 3).unwrap();
    let evaluated = Snapshot { eval_step: Some(4), ..snapshot(4) };
    commit_snapshot(&later, evaluated.clone(), 1, 3).unwrap();
    let checkpoint = later.load(4, CheckpointScope::Full).unwrap();
    assert_eq!((checkpoint.manifest.snapshot.clone(), checkpoint.manifest.term), (evaluated, 1));
    assert_holds(&checkpoint, 1);
}

#[test]
fn equal_checkpoints_have_equal_bytes() {
    let (one, other) = (in_memory(), in_memory());
    commit(&one, 7, 0, 1).unwrap();
    commit(&other, 6, 0, 1).unwrap();
    commit(&other, 7, 0, 1).unwrap();
    let dump_of_one = dump(&one);
    assert_eq!(dump_of_one.len(), 4);
    assert_eq!(dump_of_one, dump(&other));
    // People and other tools read the manifest.
    let manifest = &dump_of_one["jobs/census-1/step-0000000007/manifest.json"];
    let manifest: serde_json::Value = serde_json::from_slice(manifest).unwrap();
    assert_eq!(manifest["snapshot"]["position"], "0001fe07");
    assert_eq!(manifest["parts"][0]["name"], MODEL_PART);
    assert_eq!(manifest["parts"][0]["bytes"], 90);
}

#[test]
fn the_newest_are_kept() {
    for (store, directory) in stores() {
        for step in 1..=5 {
            commit(&store, step, 0, 2).unwrap();
        }
        assert_eq!(store.steps().unwrap(), [4, 5]);
        assert_eq!(dump(&store).len(), 2 * 4);
        commit(&store, 6, 0, 0).unwrap();
        assert_eq!(store.steps().unwrap(), [6], "at least the one committed");
        if let Some(directory) = directory {
            assert_eq!(fs::read_dir(directory.path().join("job")).unwrap().count(), 1, "no empty directory");
        }
    }
}

#[test]
fn what_a_killed_writer_left_is_removed_later() {
    for (store, _directory) in stores() {
        (1..=5).for_each(|step| _ = commit(&store, step, 0, 9).unwrap());
        store.remove_expired(5, 2).unwrap();
        assert_eq!(store.steps().unwrap(), [4, 5]);
        assert!(matches!(store.remove_expired(6, 1), Err(CheckpointError::Absent { .. })));
        assert_eq!(store.steps().unwrap(), [4, 5]);
    }
}

#[test]
fn the_best_are_kept_in_addition_to_the_newest() {
    for (store, _directory) in stores() {
        assert!(store.best().unwrap().is_empty());
        // The best steps after each commit: 1; 2 and 1; 2 and 3; 2 and 3; 6 and 2.
        let best = [(1, &[1][..]), (2, &[2, 1]), (3, &[2, 3]), (4, &[2, 3]), (5, &[2, 3]), (6, &[6, 2])];
        let kept = [&[1][..], &[1, 2], &[2, 3], &[2, 3, 4], &[2, 3, 4, 5], &[2, 5, 6]];
        for ((step, best), kept) in best.into_iter().zip(kept) {
            let evaluated = |&step| EvalPoint { metric: Metric::Auc, label: 0, value: 0.5, step };
            let standing = SelectionState::of(best.iter().map(evaluated).collect());
            commit_snapshot(&store, Snapshot { standing, ..snapshot(step) }, 0, 2).unwrap();
            assert_eq!(store.steps().unwrap(), kept);
            assert_eq!(store.best().unwrap(), best);
            assert_holds(&store.load(step, CheckpointScope::Full).unwrap(), 0);
        }
    }
}

#[test]
fn resuming_from_an_earlier_step_removes_later_checkpoints() {
    let store = in_memory();
    for step in [10, 20, 30] {
        commit(&store, step, 0, 3).unwrap();
    }
    commit(&store, 25, 0, 2).unwrap();
    assert_eq!(store.steps().unwrap(), [20, 25]);
}

#[test]
fn leftovers_are_not_listed_and_are_removed_by_the_next_commit() {
    for (store, directory) in stores() {
        commit(&store, 1, 0, 3).unwrap();
        let foreign = ["job.toml", "step-2/manifest.json", "other/step-0000000002/x"];
        for name in foreign {
            put(&store, &Path::from(format!("{}/{name}", store.prefix)), b"not ours");
        }
        put(&store, &store.part_path(2, MODEL_PART), b"half a model");
        put(&store, &store.part_path(2, "nested/manifest.json"), b"not a manifest of step 2");
        if let Some(directory) = &directory {
            // The leftovers of a killed process: object_store's temporary files, and directories.
            let job = directory.path().join("job");
            fs::create_dir(job.join("step-0000000003")).unwrap();
            fs::write(job.join("step-0000000003/model.safetensors#1"), b"half").unwrap();
            fs::write(job.join("step-0000000001/manifest.json#1"), b"half").unwrap();
        }
        assert_eq!(store.steps().unwrap(), [1]);
        commit(&store, 4, 0, 3).unwrap();
        assert_eq!(store.steps().unwrap(), [1, 4]);
        assert_eq!(dump(&store).len(), 2 * 4 + foreign.len());
        if let Some(directory) = &directory {
            let job = directory.path().join("job");
            assert!(!job.join("step-0000000002").exists());
            assert!(!job.join("step-0000000003").exists());
            assert_eq!(fs::read_dir(job.join("step-0000000001")).unwrap().count(), 4);
        }
    }
}

#[test]
fn a_step_can_be_committed_again() {
    let store = in_memory();
    commit(&store, 1, 0, 2).unwrap();
    commit(&store, 2, 0, 2).unwrap();
    // The same training, now evaluated.
    let evaluated = Snapshot { eval: Vec::new(), ..snapshot(2) };
    commit_snapshot(&store, evaluated.clone(), 0, 2).unwrap();
    let checkpoint = store.load(2, CheckpointScope::Full).unwrap();
    assert_eq!(checkpoint.manifest.snapshot, evaluated);
    assert_holds(&checkpoint, 0);
    // Other content.
    commit(&store, 2, 9, 2).unwrap();
    assert_holds(&store.load(2, CheckpointScope::Full).unwrap(), 9);
    // The same content, but the stored part is corrupted.
    put(&store, &store.part_path(2, MODEL_PART), b"rot");
    commit(&store, 2, 9, 2).unwrap();
    assert_holds(&store.load(2, CheckpointScope::Full).unwrap(), 9);
    assert_eq!(store.steps().unwrap(), [1, 2]);
}

#[test]
fn damage_is_detected_reported_and_survived() {
    let store = in_memory();
    commit(&store, 1, 0, 2).unwrap();
    commit(&store, 2, 0, 2).unwrap();
    let intact = dump(&store);
    let mut tried = 0;
    for name in [MODEL_PART, OPTIMIZER_PART, "job.toml", MANIFEST] {
        let path = store.part_path(2, name);
        let whole = &intact[path.as_ref()];
        let format_digit = whole.windows(9).position(|text| text == b"\"format\":").map(|start| start + 10);
        for byte in (0..whole.len()).filter(|&byte| Some(byte) != format_digit) {
            let mut flipped = whole.to_vec();
            flipped[byte] ^= 1;
            for damaged in [&flipped[..], &whole[..byte]] {
                put(&store, &path, damaged);
                let error = store.load(2, CheckpointScope::Full).unwrap_err();
                let CheckpointError::Damaged { part, .. } = &error else { panic!("{error}") };
                assert_eq!(part, name, "{error}");
                assert!(store.load_newest(CheckpointScope::Full, OnDamage::Fail).is_err());
                let newest = store.load_newest(CheckpointScope::Full, OnDamage::FallBack).unwrap().unwrap();
                assert_eq!(newest.manifest.snapshot.step, 1);
                tried += 1;
            }
        }
        put(&store, &path, whole);
    }
    assert!(tried > 2 * 145);
    wait(&store.block_on, store.objects.delete(&store.part_path(2, "job.toml"))).unwrap();
    let missing = store.load(2, CheckpointScope::Scoring).unwrap_err();
    assert!(missing.to_string().contains("job.toml is missing"), "{missing}");
    put(&store, &store.part_path(1, MODEL_PART), b"rot");
    let all_damaged = store.load_newest(CheckpointScope::Full, OnDamage::FallBack).unwrap_err();
    assert!(all_damaged.to_string().contains("step-0000000002"), "{all_damaged}");
}

#[test]
fn a_manifest_moved_to_another_step_is_damage() {
    let store = in_memory();
    commit(&store, 1, 0, 2).unwrap();
    let manifest = store.get(&store.part_path(1, MANIFEST)).unwrap().unwrap();
    put(&store, &store.part_path(3, MANIFEST), &manifest);
    let error = store.manifest(3).unwrap_err();
    assert!(error.to_string().contains("belongs to step 1"), "{error}");
}

#[test]
fn a_later_format_is_refused_by_its_number() {
    let store = in_memory();
    put(&store, &store.part_path(1, MANIFEST), br#"{"format": 4, "tensors": "elsewhere"}"#);
    let error = store.load_newest(CheckpointScope::Full, OnDamage::FallBack).unwrap_err();
    assert!(matches!(error, CheckpointError::Format { found: 4, known: 3, .. }), "{error}");
}

/// A manifest's text with a recomputed hash.
fn rehashed(json: &str) -> String {
    let (head, tail) = json.rsplit_once("\"sha256\": \"").unwrap();
    let (_, end) = tail.split_once('"').unwrap();
    let (head, end) = (format!("{head}\"sha256\": \""), format!("\"{end}"));
    format!("{head}{}{end}", hex::encode(&Sha256::digest(format!("{head}{end}"))))
}

#[test]
fn unknown_and_absent_fields_of_a_manifest_are_accepted() {
    let store = in_memory();
    commit(&store, 1, 0, 1).unwrap();
    let json = store.get(&store.part_path(1, MANIFEST)).unwrap().unwrap();
    let json = String::from_utf8(json.into()).unwrap();
    assert_eq!(rehashed(&json), json);
    // Unknown fields, one of them a metric.
    let more = json.replacen("\"step\": 1,", "\"step\": 1, \"weather\": \"fair\",", 1);
    let metric = json.replacen("\"calibration\": null,", "\"calibration\": null, \"luck\": 0.5,", 1);
    for changed in [more, metric] {
        assert_ne!(changed, json);
        put(&store, &store.part_path(1, MANIFEST), changed.as_bytes());
        assert!(matches!(store.manifest(1), Err(CheckpointError::Damaged { .. })), "{changed}");
        put(&store, &store.part_path(1, MANIFEST), rehashed(&changed).as_bytes());
        assert_eq!(store.manifest(1).unwrap().snapshot, snapshot(1), "{changed}");
        assert_holds(&store.load(1, CheckpointScope::Full).unwrap(), 0);
    }
    // The format from before losses could be chosen.
    let mut document: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(document["snapshot"].as_object_mut().unwrap().remove("tasks").is_some());
    let older = serde_json::to_string_pretty(&document).unwrap();
    put(&store, &store.part_path(1, MANIFEST), rehashed(&older).as_bytes());
    let tasks = vec![LossSpec::default().into()];
    assert_eq!(store.manifest(1).unwrap().snapshot, Snapshot { tasks, ..snapshot(1) });
    // The format from before evaluations were compared.
    let older = json.replacen("\"eval_step\": 1,", "", 1);
    assert_ne!(older, json);
    put(&store, &store.part_path(1, MANIFEST), rehashed(&older).as_bytes());
    assert_eq!(store.manifest(1).unwrap().snapshot, Snapshot { eval_step: None, ..snapshot(1) });
}

#[test]
fn part_names_are_file_names() {
    let store = in_memory();
    for names in [vec!["../job.toml"], vec![""], vec![".hidden"], vec![MANIFEST], vec!["a", "b", "a"]] {
        let parts: Vec<_> = names.into_iter().map(|name| Part::new(name, |_| Ok(()))).collect();
        let error = store.commit(None, snapshot(1), &parts, 1).unwrap_err();
        assert!(matches!(error, CheckpointError::PartName { .. }), "{error}");
    }
    assert_eq!(dump(&store).len(), 0);
}

#[test]
fn a_model_that_cannot_be_read_commits_nothing() {
    for (store, _directory) in stores() {
        let write = |out: &mut dyn Write| {
            out.write_all(&[0; 100])?;
            Err(io::Error::other("the device has gone"))
        };
        let error = store.commit(None, snapshot(1), &[Part::new(MODEL_PART, write)], 1).unwrap_err();
        assert!(error.to_string().contains("the device has gone"), "{error}");
        assert_eq!(dump(&store).len(), 0);
        assert!(store.steps().unwrap().is_empty());
    }
}

/// Runs `attempt` on the result of `prepare`, dying at every moment in turn. Each time the newest checkpoint
/// must load and satisfy `good`, and repeating the attempt must give the same result as without the death.
fn die_everywhere(
    fresh: impl Fn() -> (CheckpointStore, Option<TempDir>),
    death: impl Fn(u64) -> Death,
    prepare: impl Fn(&CheckpointStore),
    attempt: impl Fn(&CheckpointStore) -> Result<String, CheckpointError>,
    good: impl Fn(&Checkpoint),
) -> u64 {
    let (undisturbed, _directory) = fresh();
    prepare(&undisturbed);
    attempt(&undisturbed).unwrap();
    let expected = dump(&undisturbed);
    for moment in 0.. {
        let (store, directory) = fresh();
        prepare(&store);
        let dying = Arc::new(DyingStore::new(Arc::clone(&store.objects), death(moment)));
        let attempted = attempt(&CheckpointStore { objects: dying.clone(), ..store.clone() });
        // Only a medium that truncates objects causes damage; on others every listed checkpoint is complete.
        let on_damage = match death(moment) {
            Death::AtByte(_) => OnDamage::FallBack,
            Death::Before(_) | Death::After(_) => OnDamage::Fail,
        };
        let newest = store.load_newest(CheckpointScope::Full, on_damage).unwrap();
        let newest = newest.unwrap_or_else(|| panic!("nothing left by {:?}", death(moment)));
        good(&newest);
        if let Ok(path) = attempted {
            assert_eq!(path, newest.path());
        }
        attempt(&store).unwrap();
        assert_eq!(dump(&store), expected, "after {:?}", death(moment));
        if let Some(directory) = directory {
            let left = fs::read_dir(directory.path().join("job")).unwrap().count();
            assert_eq!(left, store.steps().unwrap().len(), "after {:?}", death(moment));
        }
        if !dying.is_dead() {
            return moment;
        }
    }
    unreachable!("every attempt ends")
}

fn one_and_two(store: &CheckpointStore) {
    commit(store, 1, 0, 2).unwrap();
    commit(store, 2, 0, 2).unwrap();
}

#[test]
fn a_writer_may_die_at_any_operation() {
    for kind in 0..2 {
        for death in [Death::Before, Death::After] {
            let moments = die_everywhere(
                || stores().swap_remove(kind),
                death,
                one_and_two,
                |store| commit(store, 3, 0, 2),
                |newest| {
                    assert!(newest.manifest.snapshot.step >= 2);
                    assert_holds(newest, 0);
                },
            );
            assert!(moments > 10, "{moments}");
        }
    }
}

#[test]
fn a_writer_may_die_at_any_byte() {
    let moments = die_everywhere(
        || (in_memory(), None),
        Death::AtByte,
        one_and_two,
        |store| commit(store, 3, 0, 2),
        |newest| {
            assert!(newest.manifest.snapshot.step >= 2);
            assert_holds(newest, 0);
        },
    );
    assert!(moments > 145, "{moments}");
}

#[test]
fn a_writer_may_die_while_it_replaces_a_step() {
    for death in [Death::Before, Death::After, Death::AtByte] {
        let moments = die_everywhere(
            || (in_memory(), None),
            death,
            one_and_two,
            |store| commit(store, 2, 9, 2),
            |newest| match newest.manifest.snapshot.step {
                1 => assert_holds(newest, 0),
                _ => assert!(
                    newest.part(MODEL_PART) == Some(&content(2, 9)[0].1) || {
                        assert_holds(newest, 0);
                        true
                    }
                ),
            },
        );
        assert!(moments > 10, "{moments}");
    }
}

#[test]
fn an_evaluation_is_added_to_a_committed_step_atomically() {
    for death in [Death::Before, Death::After] {
        let moments = die_everywhere(
            || (in_memory(), None),
            death,
            one_and_two,
            |store| commit_snapshot(store, Snapshot { eval: Vec::new(), ..snapshot(2) }, 0, 2),
            |newest| {
                assert_eq!(newest.manifest.snapshot.step, 2);
                assert_holds(newest, 0);
            },
        );
        assert!(moments > 3, "{moments}");
    }
}

/// A process that writes a part more slowly than the one that commits.
struct Slow {
    store: CheckpointStore,
    writing: Option<std::thread::JoinHandle<PartEntry>>,
}

impl OtherWriters for Slow {
    fn count(&self) -> usize {
        1
    }

    fn begin(&mut self, step: u64, _: u32) -> io::Result<()> {
        let store = self.store.clone();
        self.writing = Some(std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            let part = Part::new("theirs", |out| out.write_all(b"slow"));
            store.write_parts(step, [part].iter()).unwrap().remove(0)
        }));
        Ok(())
    }

    fn finish(&mut self) -> io::Result<Vec<PartEntry>> {
        Ok(self.writing.take().map(|writing| writing.join().unwrap()).into_iter().collect())
    }
}

#[test]
fn other_writers_are_waited_for_before_leftovers_are_removed() {
    for (store, _directory) in stores() {
        let mut slow = Slow { store: store.clone(), writing: None };
        let theirs = || Part::new("theirs", |_| panic!("another process writes it")).of_rank(1);
        let failing = Part::new(MODEL_PART, |_| Err(io::Error::other("the device has gone")));
        let error = store.commit(Some((&mut slow, 0)), snapshot(1), &[failing, theirs()], 1).unwrap_err();
        assert!(error.to_string().contains("the device has gone"), "{error}");
        assert!(slow.writing.is_none(), "it was waited for");
        assert_eq!(dump(&store).len(), 0);

        let own = Part::new(MODEL_PART, |out| out.write_all(b"fast"));
        store.commit(Some((&mut slow, 0)), snapshot(1), &[own, theirs()], 1).unwrap();
        let checkpoint = store.load(1, CheckpointScope::Full).unwrap();
        assert_eq!(checkpoint.part("theirs"), Some(&b"slow"[..]));

        let missing = Part::new("missing", |_| Ok(())).of_rank(1);
        let error = store.commit(Some((&mut slow, 0)), snapshot(2), &[missing], 1).unwrap_err();
        assert!(error.to_string().ends_with("missing was not written"), "{error}");
        assert_eq!(store.steps().unwrap(), [1]);
    }
}
