//! The bytes that workers send in a step, against the least that its algorithm sends.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_backend::collective::{
    Buffer, CollectiveError, Communicator, Deadline, Label, Local, Receive, Recorder, Transport,
};
use millstream_backend::{Backend, Cpu};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, SlotLayout};
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;
use millstream_trainer::session::Request;
use millstream_trainer::spec::{ModelSpec, Precision, TrainingSpec};
use serde_json::json;

use crate::case::{cuda_of, several_gpus};

const ROWS: u32 = 512;
const FEATURES: usize = 8;
const IDS: u32 = 1000;
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
        label: Label,
        parts: Vec<Arc<Buffer>>,
        receive: Receive,
        deadline: Deadline,
        recorder: Option<&Recorder>,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        let others = parts.iter().enumerate().filter(|(rank, _)| *rank != self.rank());
        let bytes: usize = others.map(|(_, part)| part.len()).sum();
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.transport.exchange(label, parts, receive, deadline, recorder)
    }
}

fn schema() -> BatchSchema {
    let feature = |number| IdFeature { name: format!("f{number}"), cardinality: IDS };
    BatchSchema {
        rows: ROWS,
        labels: Vec::new(),
        weighted: false,
        dense: vec!["dense".to_owned()],
        ids: (0..FEATURES).map(feature).collect(),
        ragged: Vec::new(),
        position_bytes: 0,
    }
}

/// Batch `number` with ids that are spread over the tables.
fn batch(number: u64) -> BatchBuffer {
    let mut batch = BatchBuffer::new(Arc::new(SlotLayout::of(&schema()).expect("a schema with rows")));
    let mut slot = batch.as_mut();
    slot.set_header(&BatchHeader { batch: number, ..BatchHeader::train(ROWS) });
    let sections = slot.sections();
    for (place, id) in sections.ids.iter_mut().enumerate() {
        let spread = (place as u64 + 1 + number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        *id = spread as u32 % IDS;
    }
    batch
}

/// The bytes of the rows that a part touches, as ids and gradients of `number_bytes`.
fn row_bytes(part: &BatchBuffer, number_bytes: usize) -> usize {
    let touched =
        (0..FEATURES).map(|feature| part.as_ref().ids(feature).iter().collect::<BTreeSet<_>>().len());
    touched.sum::<usize>() * (4 + number_bytes * WIDTH)
}

/// What a worker has sent in all steps.
struct Sent {
    bytes: u64,
    /// The bytes of the gradients of layers, and of the table rows that its parts touch, step by step.
    layers: usize,
    rows: Vec<usize>,
}

/// Trains an MLP with a table per feature on `ranks` workers, which exchange gradients in this precision.
fn train<B: Backend>(
    ranks: u32,
    gradient_precision: Precision,
    backend: impl Fn(u32) -> B + Sync,
) -> Vec<Sent> {
    let ids = schema().ids.into_iter().map(|feature| feature.name);
    let features: Vec<String> = ids.chain(["dense".to_owned()]).collect();
    let optimizer = json!({"kind": "sgd", "learning_rate": 0.25});
    let model: ModelSpec = serde_json::from_value(json!({
        "kind": "mlp", "features": features, "hidden": [128, 64], "optimizer": optimizer,
        "embedding": {"dim": WIDTH, "pooling": "mean", "optimizer": optimizer}
    }))
    .expect("a model");
    let training =
        TrainingSpec { workers: NonZeroU32::new(ranks), gradient_precision, ..TrainingSpec::default() };
    let number_bytes = if gradient_precision == Precision::Fp32 { 4 } else { 2 };
    let worker = |rank: u32, transport: Local| {
        let mut trained = Model::new(backend(rank), &model, &schema(), &training).expect("a model");
        let sent = Arc::new(AtomicU64::new(0));
        let counting = Counting { transport, sent: Arc::clone(&sent) };
        let communicator = Communicator::new(counting, Duration::from_secs(60), None).expect("a thread");
        trained.join(communicator).expect("a communicator of as many");
        // Devices exchange a secret when they connect.
        sent.store(0, Ordering::Relaxed);
        let of_layers = trained.tensors().iter().filter(|tensor| tensor.name.contains("layer."));
        let layers = number_bytes * of_layers.map(|tensor| tensor.len()).sum::<usize>();
        let step = |number| {
            let part = BatchBuffer::part_of(batch(number).as_ref(), rank, ranks);
            let parts = [part.as_ref()];
            trained.agree(&parts, Request::default()).expect("all agree");
            trained.submit_parts(&parts, Step::number(number + 1)).expect("a batch of the schema");
            trained.finish_step().expect("a batch of the schema");
            row_bytes(&part, number_bytes)
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

#[test]
fn a_step_sends_little_more_than_the_least() {
    let precisions = [Precision::Fp32, Precision::Bf16];
    for (ranks, precision) in [2_u32, 3, 4].into_iter().flat_map(|ranks| precisions.map(|it| (ranks, it))) {
        let (mut sent, mut least) = (0.0, 0.0);
        let others = f64::from(ranks - 1);
        // Shares of the numbers differ between ranks.
        for Sent { bytes, layers, rows } in train(ranks, precision, |_| Cpu::new(Some(1)).expect("a thread"))
        {
            sent += bytes as f64;
            for row_bytes in rows {
                // A sum sends each rank its share of the numbers, and each rank the sums of its share to all.
                least += 2.0 * others / f64::from(ranks) * layers as f64;
                least += others * row_bytes as f64;
            }
        }
        let ratio = sent / least;
        let what = format!("{ranks} workers, {precision:?}");
        assert!((1.0..1.05).contains(&ratio), "{what}: {sent} bytes, {least} at least: {ratio}");
    }
}

/// GPUs exchange gradients directly: the host sends votes, and how many rows of each table there are.
#[test]
fn gradients_on_gpus_do_not_pass_through_the_host() {
    let Some(_alone) = several_gpus() else { return };
    for ranks in [2_u32, 3] {
        let vote = 2 * size_of::<u64>();
        let bytes = STEPS * u64::from(ranks - 1) * (vote + FEATURES * size_of::<u32>()) as u64;
        for sent in train(ranks, Precision::Fp32, cuda_of) {
            assert!(sent.rows.iter().all(|rows| *rows > 10_000));
            assert_eq!(sent.bytes, bytes, "{ranks} workers");
        }
    }
}
