#![allow(clippy::unwrap_used)]

mod background;
mod files;
mod images;
mod losses;
mod precision;
mod workers;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millstream_backend::collective::Alone;
use millstream_backend::{Cpu, Reference};
use millstream_batch::{BatchBuffer, BatchHeader, IdFeature, RaggedFeature, SlotLayout, Stream};

use super::*;
use crate::checkpoint::store::tests::OnDamage;
use crate::checkpoint::{CheckpointStore, CheckpointWriter, ExtraPart, MANIFEST, MODEL_PART, OPTIMIZER_PART};
use crate::metrics::{Accumulator, Metric, ScoredBatch};
use crate::spec::{
    DeepSpec, EmbeddingDim, EmbeddingInit, EmbeddingSpec, GroupSpec, HiddenLayerSpec, LinearSpec, LossSpec,
    MlpSpec, MmoeSpec, OptimizerSpec, Pooling, Precision, Prediction, RankingSpec, TaskSpec, WideDeepSpec,
    WideSpec,
};

const KEEP: u32 = 2;
fn carried() -> Vec<ExtraPart> {
    vec![("job.toml", b"name = \"a job\"".to_vec()), ("analysis.json", b"{}".to_vec())]
}

const ROWS: u32 = 16;

/// With a selection, whose state is part of every checkpoint here.
const JUDGE: SelectionSpec = SelectionSpec {
    stopping: Some(StoppingSpec { metric: Metric::LogLoss, label: 0, patience: 1, min_delta: 0.25 }),
    best: Some(BestSpec { metric: Metric::Rmse, label: 0, keep: 1 }),
};

fn schema(rows: u32) -> BatchSchema {
    let id = |name: &str, cardinality| IdFeature { name: name.into(), cardinality };
    BatchSchema {
        rows,
        labels: Vec::new(),
        weighted: false,
        dense: vec!["x".into(), "y".into()],
        ids: vec![id("a", 11), id("b", 5)],
        ragged: vec![RaggedFeature { name: "c".into(), cardinality: 7, maximum: 3, weighted: false }],
        columns: Vec::new(),
        position_bytes: 16,
    }
}

fn model() -> ModelSpec {
    ModelSpec::WideDeep(wide_deep())
}

fn wide_deep() -> WideDeepSpec {
    let adagrad =
        OptimizerSpec::Adagrad { learning_rate: 0.05, initial_accumulator: 0.1, epsilon: 1e-7, l2: 0.0 };
    let ftrl =
        OptimizerSpec::Ftrl { learning_rate: 0.1, beta: 1.0, l1: 0.01, l2: 0.0, initial_accumulator: 0.1 };
    let features = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    WideDeepSpec {
        wide: WideSpec { features: features(&["a", "b", "c"]), optimizer: ftrl },
        deep: DeepSpec {
            features: features(&["x", "y", "a", "c"]),
            embedding_dim: 4.into(),
            embedding_init: EmbeddingInit::default(),
            embeddings: Vec::new(),
            embedding_optimizer: None,
            hidden: vec![8, 4],
            hidden_layer: HiddenLayerSpec::default(),
            pooling: Pooling::Mean,
            optimizer: adagrad,
        },
    }
}

fn training() -> TrainingSpec {
    TrainingSpec { seed: 7, threads: Some(2), ..TrainingSpec::default() }
}

fn session<B: Backend<Scalar: Element>>(backend: B) -> Session<B> {
    let mut session = Session::new(backend, &model(), &schema(ROWS), &training()).unwrap();
    session.select_by(JUDGE);
    session
}

fn cpu() -> Cpu {
    Cpu::new(Some(2)).unwrap()
}

/// The batch of this number in a job's feed: three for training, two for evaluation, and so on.
fn batch(number: u64, schema: &BatchSchema) -> BatchBuffer {
    let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(schema).unwrap()));
    let mut slot = buffer.as_mut();
    let (pass, within) = (number / 5, number % 5);
    let rows = if within == 2 { schema.rows - 1 } else { schema.rows };
    slot.set_header(&BatchHeader {
        stream: if within < 3 { Stream::Train } else { Stream::Eval },
        epoch: u32::try_from(pass).unwrap(),
        batch: within % 3,
        rows,
        global_rows: rows,
        first_row: 0,
        most_rows: rows,
        last: within == 2 || within == 4,
    });
    slot.set_position(&(number + 1).to_le_bytes());
    let mut state = number * 1000 + 1;
    let mut draw = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 33).unwrap() % below
    };
    let sections = slot.sections();
    sections.labels.iter_mut().for_each(|label| *label = draw(2) as f32);
    sections.dense.iter_mut().for_each(|value| *value = draw(1000) as f32 / 500.0 - 1.0);
    let rows = schema.rows as usize;
    sections.ids[..rows].iter_mut().for_each(|id| *id = draw(11));
    sections.ids[rows..].iter_mut().for_each(|id| *id = draw(5));
    for (offsets, values) in sections.ragged {
        for row in 0..rows {
            offsets[row + 1] = offsets[row] + draw(4);
        }
        values.iter_mut().for_each(|id| *id = draw(7));
    }
    buffer
}

/// Trains from the session's position up to batch `end` of the feed.
fn run<B: Backend<Scalar: Element>>(session: &mut Session<B>, end: u64) {
    let start = session.position().try_into().map_or(0, u64::from_le_bytes);
    for number in start..end {
        let buffer = batch(number, &schema(ROWS));
        let batch = buffer.as_ref();
        match batch.header().stream {
            Stream::Train => {
                session.train(batch).unwrap();
            }
            Stream::Eval => session.evaluate(batch).unwrap(),
        }
        if batch.header().stream == Stream::Eval && batch.header().last {
            session.finish_eval().unwrap();
        }
    }
}

#[test]
fn a_rehearsal_accepts_every_batch_that_training_does() {
    let alone = || Communicator::new(Alone, Duration::from_secs(60), None).unwrap();
    let taken = |rows, of: u32| {
        let session = session(cpu());
        session.dry_run(batch(rows, &schema(of)).as_ref(), alone(), 1)
    };
    taken(0, ROWS).unwrap();
    // A batch with fewer rows than its capacity.
    taken(2, ROWS).unwrap();
    let error = taken(0, ROWS + 1).unwrap_err();
    assert!(matches!(error, SessionError::Batch(BatchError::WrongSchema)), "{error}");

    // One of several workers, with one or several parts of a batch.
    let divisions = [(2, None), (2, Some(8)), (1, Some(4))];
    for ((workers, shards), uneven_parts) in divisions.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let training = TrainingSpec {
            workers: NonZeroU32::new(workers),
            shards: shards.and_then(NonZeroU32::new),
            uneven_parts,
            ..training()
        };
        let part = training.part_schema(&schema(ROWS));
        for copies in [0, 1, 2] {
            let session = Session::new(cpu(), &model(), &schema(ROWS), &training).unwrap();
            session.dry_run(batch(0, &part).as_ref(), alone(), copies).unwrap();
        }
    }
}

fn store(directory: &Path) -> CheckpointStore {
    CheckpointStore::create_local(directory).unwrap()
}

/// Commits a checkpoint, reads its files, and loads it.
fn checkpoint<B: Backend<Scalar: Element>>(
    session: &mut Session<B>,
    directory: &Path,
) -> (BTreeMap<String, Vec<u8>>, Checkpoint) {
    let store = store(directory);
    let mut writer =
        CheckpointWriter::spawn(store.clone(), vec![session.allocate_copy()], carried(), None).unwrap();
    writer.start_commit(KEEP, |image| session.capture(image)).unwrap();
    let path = writer.wait().unwrap().unwrap().path;
    let loaded = store.load_newest(CheckpointScope::Full, OnDamage::Fail).unwrap().unwrap();
    (files_in(Path::new(&path)), loaded)
}

/// The files in a directory, by name.
fn files_in(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(directory).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    });
    files.collect()
}

/// Training that is interrupted at any batch and resumed ends with the same bits as uninterrupted training.
fn resuming_changes_nothing<B: Backend<Scalar: Element>>(backend: impl Fn() -> B) {
    const END: u64 = 12;
    let directory = tempfile::tempdir().unwrap();
    let mut undisturbed = session(backend());
    run(&mut undisturbed, END);
    let (expected, _) = checkpoint(&mut undisturbed, &directory.path().join("undisturbed"));
    let names: Vec<_> = expected.keys().map(String::as_str).collect();
    assert_eq!(names, ["analysis.json", "job.toml", MANIFEST, MODEL_PART, OPTIMIZER_PART]);
    for stop in 0..END {
        let job = directory.path().join(format!("stopped-at-{stop}"));
        let mut first = session(backend());
        run(&mut first, stop);
        let (_, stopped) = checkpoint(&mut first, &job);
        let mut second = session(backend());
        second.restore(&stopped).unwrap();
        assert_eq!(second.step(), first.step());
        assert_eq!(second.last_eval(), first.last_eval());
        assert_eq!(second.early_stop_reason(), first.early_stop_reason());
        run(&mut second, END);
        let (found, _) = checkpoint(&mut second, &job);
        assert!(found == expected, "stopped before batch {stop}");
    }
}

#[test]
fn resuming_changes_nothing_on_the_cpu() {
    resuming_changes_nothing(cpu);
}

#[test]
fn resuming_changes_nothing_on_the_reference() {
    resuming_changes_nothing(|| Reference);
}

#[test]
fn threads_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let of_threads = |threads| {
        let mut session = session(Cpu::new(Some(threads)).unwrap());
        run(&mut session, 8);
        checkpoint(&mut session, &directory.path().join(threads.to_string())).0
    };
    assert!(of_threads(1) == of_threads(3));
}

#[test]
fn progress_counts_steps_rows_and_the_epochs_loss() {
    let mut session = session(cpu());
    run(&mut session, 5);
    assert_eq!((session.step(), session.progress().epoch), (3, 0));
    assert_eq!(session.progress().examples, 3 * 16 - 1);
    assert_eq!(session.last_eval()[0].examples, 2 * 16);
    let first_epoch = session.progress().loss;
    assert!((0.3..1.5).contains(&first_epoch.mean()), "{first_epoch:?}");
    let loss = session.train(batch(5, &schema(ROWS)).as_ref()).unwrap();
    assert_eq!(session.progress().epoch, 1);
    assert_eq!(session.progress().loss, loss, "each epoch's loss starts at zero");
}

#[test]
fn an_interrupted_evaluation_is_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let mut session = session(cpu());
    run(&mut session, 4);
    assert_eq!(session.position(), 3_u64.to_le_bytes(), "the position is that of the last training batch");
    let (_, cut_short) = checkpoint(&mut session, directory.path());
    session.restore(&cut_short).unwrap();
    run(&mut session, 5);
    assert_eq!(session.last_eval()[0].examples, 2 * 16, "no row counts twice");
    assert_eq!(session.position(), 5_u64.to_le_bytes());
}

#[test]
fn a_separate_evaluation_keeps_the_position_and_stays_due_until_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut session = session(cpu());
    run(&mut session, 2);
    session.set_eval_due();
    session.evaluate(batch(3, &schema(ROWS)).as_ref()).unwrap();
    session.discard_eval();
    let (_, due) = checkpoint(&mut session, directory.path());
    assert!(due.manifest.snapshot.eval_due);
    session.restore(&due).unwrap();
    assert!(session.is_eval_due() && !session.is_evaluated());

    session.evaluate(batch(4, &schema(ROWS)).as_ref()).unwrap();
    let judged = session.finish_separate_eval().unwrap();
    assert_eq!(judged.metrics[0].examples, 16, "no row of the interrupted evaluation counts");
    assert!(judged.is_best && session.is_evaluated() && !session.is_eval_due());
    assert_eq!(session.position(), 2_u64.to_le_bytes());
    let (_, done) = checkpoint(&mut session, directory.path());
    assert_eq!(done.part(MODEL_PART), due.part(MODEL_PART));
    assert_eq!(done.manifest.snapshot.standing.best().len(), 1);
    session.train(batch(2, &schema(ROWS)).as_ref()).unwrap();
    assert!(!session.is_evaluated(), "the model has changed since");
}

#[test]
fn a_checkpoint_of_another_job_is_rejected_with_the_first_difference() {
    let directory = tempfile::tempdir().unwrap();
    let mut trained = session(cpu());
    run(&mut trained, 2);
    let (_, checkpoint) = checkpoint(&mut trained, directory.path());
    let mut wider = wide_deep();
    wider.deep.hidden[1] = 6;
    let mut other_rows = schema(ROWS);
    other_rows.rows = 32;
    let mut other_ids = schema(ROWS);
    other_ids.ids[0].cardinality = 12;
    let other_seed = TrainingSpec { seed: 8, ..training() };
    let cases = [
        (
            ModelSpec::WideDeep(wider),
            schema(ROWS),
            training(),
            "model.deep.hidden[1] is 4 in the checkpoint and 6 here",
        ),
        (model(), other_rows, training(), "schema.rows is 16 in the checkpoint and 32 here"),
        (model(), other_ids, training(), "schema.ids[0].cardinality is 11 in the checkpoint and 12 here"),
        (model(), schema(ROWS), other_seed, "seed is 7 in the checkpoint and 8 here"),
    ];
    for (model, schema, training, difference) in cases {
        let mut session = Session::new(cpu(), &model, &schema, &training).unwrap();
        let error = session.restore(&checkpoint).unwrap_err().to_string();
        assert!(error.ends_with(difference), "{error}");
        assert!(error.contains("step-0000000002"), "{error}");
    }
}

#[test]
fn tensors_of_another_model_are_rejected_and_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut session = session(cpu());
    run(&mut session, 2);
    let (before, _) = checkpoint(&mut session, &directory.path().join("before"));
    let mut deeper = wide_deep();
    deeper.deep.hidden.push(2);
    // A checkpoint that claims to contain our model, but has tensors of another one.
    let mut other = Session::new(cpu(), &ModelSpec::WideDeep(deeper), &schema(ROWS), &training()).unwrap();
    run(&mut other, 3);
    other.state.model = model();
    let (_, forged) = checkpoint(&mut other, &directory.path().join("forged"));
    let error = session.restore(&forged).unwrap_err();
    let SessionError::Checkpoint(CheckpointError::Damaged { part, .. }) = &error else { panic!("{error}") };
    assert_eq!(part, MODEL_PART, "{error}");
    let (after, _) = checkpoint(&mut session, &directory.path().join("before"));
    assert!(before == after);
}

#[test]
fn divergence_is_reported_and_never_checkpointed() {
    let directory = tempfile::tempdir().unwrap();
    let mut session = session(cpu());
    run(&mut session, 2);
    let mut poison = batch(2, &schema(ROWS));
    poison.as_mut().sections().dense[3] = f32::NAN;
    let error = session.train(poison.as_ref()).unwrap_err();
    assert!(matches!(error, SessionError::NotFinite { step: 3, .. }), "{error}");
    let mut writer =
        CheckpointWriter::spawn(store(directory.path()), vec![session.allocate_copy()], carried(), None)
            .unwrap();
    let error = writer.start_commit(KEEP, |image| session.capture(image)).unwrap_err();
    assert!(matches!(error, SessionError::NotFinite { step: 3, .. }), "{error}");
    assert_eq!(writer.wait().unwrap(), None);
    assert!(store(directory.path()).steps().unwrap().is_empty());
}

#[test]
fn a_scorer_agrees_with_the_session() {
    let directory = tempfile::tempdir().unwrap();
    let mut session = session(cpu());
    run(&mut session, 10);
    checkpoint(&mut session, directory.path());
    let scoring =
        store(directory.path()).load_newest(CheckpointScope::Scoring, OnDamage::Fail).unwrap().unwrap();

    let mut scorer = Scorer::open(cpu(), &schema(ROWS), &scoring).unwrap();
    for number in [8, 9] {
        scorer.evaluate(batch(number, &schema(ROWS)).as_ref()).unwrap();
    }
    assert_eq!(scorer.finish_eval().unwrap(), session.last_eval());

    // Batches of another size with the same features.
    let large = schema(64);
    let mut scorer = Scorer::open(cpu(), &large, &scoring).unwrap();
    let scores = scorer.predict(batch(8, &large).as_ref()).unwrap();
    assert_eq!(scores.len(), 64);
    assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)));

    let mut other = schema(ROWS);
    other.dense.swap(0, 1);
    let error = Scorer::open(cpu(), &other, &scoring).err().unwrap().to_string();
    assert!(error.ends_with("schema.dense[0] is \"x\" in the checkpoint and \"y\" here"), "{error}");
}

#[test]
fn an_evaluation_ranks_within_the_groups_of_a_feature() {
    let directory = tempfile::tempdir().unwrap();
    let mut session = session(cpu());
    let by = |feature: &str| GroupSpec { feature: feature.to_owned(), ranking: RankingSpec::default() };
    session.group_by(&by("b")).unwrap();
    run(&mut session, 5);
    let grouped = session.last_eval()[0].clone();
    checkpoint(&mut session, directory.path());
    let scoring =
        store(directory.path()).load_newest(CheckpointScope::Scoring, OnDamage::Fail).unwrap().unwrap();
    let mut scorer = Scorer::open(cpu(), &schema(ROWS), &scoring).unwrap();

    // The same metric, computed from the rows of each group.
    let (mut sum, mut weight, mut groups) = (0.0, 0.0, 0);
    for group in 0..5 {
        let (mut scores, mut labels) = (Vec::new(), Vec::new());
        for number in [3, 4] {
            let buffer = batch(number, &schema(ROWS));
            let batch = buffer.as_ref();
            let scored = scorer.predict(batch).unwrap();
            for row in (0..batch.rows()).filter(|&row| batch.ids(1)[row] == group) {
                scores.push(scored[row]);
                labels.push(batch.labels(0)[row]);
            }
        }
        let mut accumulator = Accumulator::new("", Prediction::Probability);
        accumulator
            .add(ScoredBatch { scores: &scores, labels: &labels, weights: None, groups: None })
            .unwrap();
        if let Some(auc) = accumulator.finish().ok().and_then(|metrics| metrics.value(Metric::Auc)) {
            sum += auc * scores.len() as f64;
            weight += scores.len() as f64;
            groups += 1;
        }
    }
    assert!(groups > 1);
    assert_eq!(grouped.groups, Some(groups));
    assert!((grouped.value(Metric::GroupAuc).unwrap() - sum / weight).abs() < 1e-12, "{grouped:?}");
    assert!(grouped.value(Metric::Ndcg).is_some() && grouped.top_k == Some(10), "{grouped:?}");

    for ungrouped in ["x", "c", "d"] {
        let error = session.group_by(&by(ungrouped)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{ungrouped}` cannot group rows")), "{error}");
    }
}

#[test]
fn learning_rates_follow_the_schedule() {
    let after = |learning_rate, warmup_steps| {
        let optimizer = OptimizerSpec::Sgd { learning_rate, l2: 0.0 };
        let spec = ModelSpec::Linear(LinearSpec { features: vec!["x".into(), "a".into()], optimizer });
        let schedule = ScheduleSpec { warmup_steps, ..ScheduleSpec::default() };
        let training = TrainingSpec { schedule, ..training() };
        let mut session = Session::new(cpu(), &spec, &schema(ROWS), &training).unwrap();
        let mut weights = Vec::new();
        for number in 0..2 {
            session.train(batch(number, &schema(ROWS)).as_ref()).unwrap();
            session
                .scorer
                .model
                .read_tensors(|_, values| {
                    weights.push(values.to_vec());
                    Ok::<_, ()>(())
                })
                .unwrap();
        }
        weights
    };
    let (warming, half) = (after(0.5, 2), after(0.25, 0));
    let tensors = warming.len() / 2;
    assert_eq!(warming[..tensors], half[..tensors], "half the rate in the first step of two");
    assert_ne!(warming[tensors..], half[tensors..], "the full rate in the second");
}

/// A label of a class and a numeric label: evaluated separately, selected by the second, and unchanged by a
/// checkpoint.
#[test]
fn several_labels_survive_checkpoints_and_are_evaluated_separately() {
    let directory = tempfile::tempdir().unwrap();
    let labels = vec!["bought".to_owned(), "price".to_owned()];
    let schema = BatchSchema { labels, ..schema(ROWS) };
    let (dim, init, tables) = (EmbeddingDim::Columns(3), EmbeddingInit::default(), Vec::new());
    let embedding = EmbeddingSpec { dim, pooling: Pooling::Mean, init, optimizer: SGD, tables };
    let model = ModelSpec::Mmoe(MmoeSpec {
        features: ["a", "x", "y"].map(str::to_owned).to_vec(),
        embedding,
        experts: 2,
        expert: vec![4],
        tower: vec![3],
        hidden_layer: HiddenLayerSpec::default(),
        optimizer: SGD,
    });
    let number = TaskSpec { loss: LossSpec::SquaredError, weight: 0.5 };
    let training = TrainingSpec { tasks: vec![LossSpec::default().into(), number], ..training() };
    let new = || {
        let mut session = Session::new(cpu(), &model, &schema, &training).unwrap();
        let best = BestSpec { metric: Metric::Mae, label: 1, keep: 1 };
        session.select_by(SelectionSpec { stopping: None, best: Some(best) });
        session
    };
    let follow = |session: &mut Session<Cpu>, numbers: std::ops::Range<u64>| {
        for number in numbers {
            match number % 5 {
                0..3 => drop(session.train(batch(number, &schema).as_ref()).unwrap()),
                _ => session.evaluate(batch(number, &schema).as_ref()).unwrap(),
            }
        }
        session.finish_separate_eval().unwrap()
    };
    let mut undisturbed = new();
    assert!(follow(&mut undisturbed, 0..5).is_best);
    let (_, stopped) = checkpoint(&mut undisturbed, directory.path());
    let mut resumed = new();
    resumed.restore(&stopped).unwrap();
    let after = follow(&mut resumed, 5..10);
    assert_eq!(after.metrics, follow(&mut undisturbed, 5..10).metrics);
    let [bought, price] = after.metrics.as_slice() else { panic!("two labels") };
    assert_eq!((bought.label.as_str(), price.label.as_str()), ("bought", "price"));
    assert!(bought.value(Metric::LogLoss).is_some() && bought.value(Metric::Mae).is_none());
    assert!(price.value(Metric::Mae).is_some() && price.value(Metric::LogLoss).is_none());

    let mut scorer = Scorer::open(cpu(), &schema, &stopped).unwrap();
    let scores = scorer.predict(batch(8, &schema).as_ref()).unwrap().to_vec();
    assert_eq!(scores.len(), 2 * ROWS as usize);
    for number in [3, 4] {
        scorer.evaluate(batch(number, &schema).as_ref()).unwrap();
    }
    assert_eq!(scorer.finish_eval().unwrap(), stopped.manifest.snapshot.eval);
    let one = BatchSchema { labels: Vec::new(), ..schema };
    let error = Scorer::open(cpu(), &one, &stopped).err().unwrap().to_string();
    assert!(error.contains("schema.labels"), "{error}");
    let linear = ModelSpec::Linear(LinearSpec { features: vec!["x".into()], optimizer: SGD });
    let two = BatchSchema { labels: stopped.manifest.snapshot.schema.labels.clone(), ..one };
    let error = Session::new(cpu(), &linear, &two, &training).err().unwrap().to_string();
    assert!(error.contains("\"linear\" predicts one label, and there are 2"), "{error}");
}

/// A label with classes, in fp16 and with micro-batches, selected by a metric of classes.
#[test]
fn classes_survive_checkpoints_and_are_evaluated() {
    let directory = tempfile::tempdir().unwrap();
    let schema = schema(ROWS);
    let (dim, init, tables) = (EmbeddingDim::Columns(3), EmbeddingInit::default(), Vec::new());
    let embedding = EmbeddingSpec { dim, pooling: Pooling::Mean, init, optimizer: SGD, tables };
    let model = ModelSpec::Mlp(MlpSpec {
        features: ["a", "x", "y"].map(str::to_owned).to_vec(),
        embedding,
        hidden: vec![5],
        hidden_layer: HiddenLayerSpec::default(),
        optimizer: SGD,
    });
    let class_weights = vec![1.0, 2.0, 0.5];
    let loss = LossSpec::CrossEntropy { classes: 3, label_smoothing: 0.125, class_weights };
    for precision in Precision::ALL {
        let training =
            TrainingSpec { loss: loss.clone(), micro_batch_rows: Some(3), precision, ..training() };
        let new = || Session::new(cpu(), &model, &schema, &training).unwrap();
        let follow = |session: &mut Session<Cpu>, numbers: std::ops::Range<u64>| {
            for number in numbers {
                match number % 5 {
                    0..3 => drop(session.train(batch(number, &schema).as_ref()).unwrap()),
                    _ => session.evaluate(batch(number, &schema).as_ref()).unwrap(),
                }
            }
            session.finish_separate_eval().unwrap().metrics
        };
        let mut undisturbed = new();
        follow(&mut undisturbed, 0..5);
        let (_, stopped) = checkpoint(&mut undisturbed, directory.path());
        let mut resumed = new();
        resumed.restore(&stopped).unwrap();
        let after = follow(&mut resumed, 5..10);
        assert_eq!(after, follow(&mut undisturbed, 5..10));
        let values: Vec<_> = after[0].values.iter().map(|values| values.metric).collect();
        assert_eq!(values, [Metric::LogLoss, Metric::NormalizedEntropy, Metric::Accuracy]);

        let mut scorer = Scorer::open(cpu(), &schema, &stopped).unwrap();
        let rows = batch(8, &schema).as_ref().rows();
        let scores = scorer.predict(batch(8, &schema).as_ref()).unwrap().to_vec();
        assert_eq!(scores.len(), 3 * rows);
        for row in 0..rows {
            let sum: f32 = (0..3).map(|class| scores[class * rows + row]).sum();
            assert!((sum - 1.0).abs() < 1e-6, "row {row} of {precision:?}: {sum}");
        }
        for number in [3, 4] {
            scorer.evaluate(batch(number, &schema).as_ref()).unwrap();
        }
        assert_eq!(scorer.finish_eval().unwrap(), stopped.manifest.snapshot.eval);
    }
}

const SGD: OptimizerSpec = OptimizerSpec::Sgd { learning_rate: 0.1, l2: 0.0 };
