//! The bytes that workers send in a step, against the least that its algorithm sends.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_backend::collective::{
    Buffer, CollectiveError, Communicator, Deadline, Group, Label, Local, Receive, Recorder, Transport,
};
use millstream_backend::{Backend, Cpu};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, SlotLayout};
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;
use millstream_trainer::session::Request;
use millstream_trainer::spec::{ModelSpec, Precision, TrainingSpec};
use serde_json::{Value, json};

use crate::case::{cuda_of, several_gpus};

pub(crate) const ROWS: u32 = 512;
pub(crate) const FEATURES: usize = 8;
const WIDTH: usize = 16;
const STEPS: u64 = 3;

/// Counts the bytes that a rank sends to others.
struct Counting {
    transport: Local,
    sent: Arc<AtomicU64>,
}

impl Transport for Counting {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn ranks(&self) -> usize {
        self.transport.ranks()
    }

    fn exchange(
        &mut self,
        to: (Label, Group),
        parts: Vec<Arc<Buffer>>,
        receive: Receive,
        deadline: Deadline,
        recorder: Option<&Recorder>,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        let others = parts.iter().enumerate().filter(|(rank, _)| *rank != self.rank());
        let bytes: usize = others.map(|(_, part)| part.len()).sum();
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.transport.exchange(to, parts, receive, deadline, recorder)
    }
}

/// A number and features of so many ids.
pub(crate) fn schema(ids: [u32; FEATURES]) -> BatchSchema {
    let feature = |number: usize| IdFeature { name: format!("f{number}"), cardinality: ids[number] };
    BatchSchema {
        rows: ROWS,
        labels: Vec::new(),
        weighted: false,
        dense: vec!["dense".to_owned()],
        ids: (0..FEATURES).map(feature).collect(),
        ragged: Vec::new(),
        columns: Vec::new(),
        position_bytes: 0,
    }
}

/// Batch `number` of so many rows. Ids leave a remainder of 0 when they are divided by 4, or of 2 in every other 128 rows; those of odd
/// batches are larger by 1.
pub(crate) fn batch(ids: [u32; FEATURES], number: u64, rows: u32) -> BatchBuffer {
    let mut batch = BatchBuffer::new(Arc::new(SlotLayout::of(&schema(ids)).expect("a schema with rows")));
    let mut slot = batch.as_mut();
    slot.set_header(&BatchHeader { batch: number, ..BatchHeader::train(rows) });
    let sections = slot.sections();
    for (place, id) in sections.ids.iter_mut().enumerate() {
        let spread = (place as u64 + 1 + number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (feature, row) = (place / ROWS as usize, place % ROWS as usize);
        let remainder = (number % 2) as u32 + if row / 128 % 2 == 0 { 0 } else { 2 };
        *id = spread as u32 % (ids[feature] / 4) * 4 + remainder;
    }
    batch
}

/// An MLP with a table per feature.
fn model(optimizer: &Value) -> ModelSpec {
    let features: Vec<String> = schema([1; FEATURES]).ids.into_iter().map(|feature| feature.name).collect();
    let features = [&features[..], &["dense".to_owned()]].concat();
    serde_json::from_value(json!({
        "kind": "mlp", "features": features, "hidden": [128, 64], "optimizer": optimizer,
        "embedding": {"dim": WIDTH, "pooling": "mean", "optimizer": optimizer}
    }))
    .expect("a model")
}

/// How many rows of tables a part touches.
fn touched_rows(part: &BatchBuffer) -> usize {
    (0..FEATURES).map(|feature| part.as_ref().ids(feature).iter().collect::<BTreeSet<_>>().len()).sum()
}

/// What a worker has sent in all steps.
struct Sent {
    bytes: u64,
    /// The numbers of the gradients of layers, and the table rows that its parts touch, step by step.
    layers: usize,
    rows: Vec<usize>,
}

/// Trains a model with tables of `ids` rows on `ranks` workers, which exchange gradients in this precision.
fn train<B: Backend>(
    ids: u32,
    ranks: u32,
    gradient_precision: Precision,
    backend: impl Fn(u32) -> B + Sync,
) -> Vec<Sent> {
    let model = model(&json!({"kind": "sgd", "learning_rate": 0.25}));
    let training =
        TrainingSpec { workers: NonZeroU32::new(ranks), gradient_precision, ..TrainingSpec::default() };
    let worker = |rank: u32, transport: Local| {
        let schema = schema([ids; FEATURES]);
        let mut trained = Model::new(backend(rank), &model, &schema, &training).expect("a model");
        let sent = Arc::new(AtomicU64::new(0));
        let counting = Counting { transport, sent: Arc::clone(&sent) };
        let communicator = Communicator::new(counting, Duration::from_secs(60), None).expect("a thread");
        trained.join(communicator).expect("a communicator of as many");
        // Devices exchange a secret when they connect.
        sent.store(0, Ordering::Relaxed);
        let of_layers = trained.tensors().iter().filter(|tensor| tensor.name.contains("layer."));
        let layers = of_layers.map(|tensor| tensor.len()).sum();
        let step = |number| {
            let part = BatchBuffer::part_of(batch([ids; FEATURES], number, ROWS).as_ref(), rank, ranks);
            let parts = [part.as_ref()];
            trained.agree(&parts, Request::default()).expect("all agree");
            trained.submit_parts(&parts, Step::number(number + 1)).expect("a batch of the schema");
            trained.finish_step().expect("a batch of the schema");
            touched_rows(&part)
        };
        let rows = (0..STEPS).map(step).collect();
        Sent { bytes: sent.load(Ordering::Relaxed), layers, rows }
    };
    std::thread::scope(|scope| {
        let world = (0..ranks).zip(Local::world(ranks as usize));
        let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).collect()
    })
}

/// Tables of 1000 rows are gathered; those of 20 rows are summed as a whole, if that is less.
#[test]
fn a_step_sends_little_more_than_the_least() {
    for (ids, ranks, precision, number_bytes, are_whole) in [
        (1000, 2, Precision::Fp32, 4, false),
        (1000, 2, Precision::Bf16, 2, false),
        (1000, 3, Precision::Fp32, 4, false),
        (1000, 4, Precision::Fp32, 4, false),
        (1000, 4, Precision::Bf16, 2, false),
        (20, 2, Precision::Fp32, 4, false),
        (20, 3, Precision::Fp32, 4, true),
        (20, 3, Precision::Bf16, 2, false),
        (20, 4, Precision::Fp32, 4, true),
        (20, 4, Precision::Bf16, 2, true),
    ] {
        let (mut sent, mut least) = (0.0, 0.0);
        let others = f64::from(ranks - 1);
        // A sum sends each rank its share of the numbers, and each rank the sums of its share to all.
        let summed = |numbers: usize| 2.0 * others / f64::from(ranks) * (number_bytes * numbers) as f64;
        let whole = FEATURES * ids as usize * (WIDTH + 1);
        // Shares of the numbers differ between ranks.
        for Sent { bytes, layers, rows } in
            train(ids, ranks, precision, |_| Cpu::new(Some(1)).expect("a thread"))
        {
            sent += bytes as f64;
            for touched in rows {
                let gathered = others * (touched * (4 + number_bytes * WIDTH)) as f64;
                least += summed(layers) + if are_whole { summed(whole) } else { gathered };
            }
        }
        let ratio = sent / least;
        let what = format!("{ids} ids, {ranks} workers, {precision:?}");
        assert!((1.0..1.05).contains(&ratio), "{what}: {sent} bytes, {least} at least: {ratio}");
    }
}

/// GPUs exchange gradients directly: the host sends votes, and how many rows of each table there are.
#[test]
fn gradients_on_gpus_do_not_pass_through_the_host() {
    let Some(_alone) = several_gpus() else { return };
    for ranks in [2_u32, 3] {
        let vote = 4 * size_of::<u64>();
        let bytes = STEPS * u64::from(ranks - 1) * (vote + FEATURES * size_of::<u32>()) as u64;
        for sent in train(1000, ranks, Precision::Fp32, cuda_of) {
            assert!(sent.rows.iter().all(|rows| *rows > 150));
            assert_eq!(sent.bytes, bytes, "{ranks} workers");
        }
    }
}
