//! Numbers worked out by hand, on every backend; and what all refuse. One file per subject.

use std::sync::Arc;

use millstream_backend::{Backend, Formula, IdColumn, Lookup, Loss, Pooling};

use millstream_batch::{
    BatchBuffer, BatchHeader, BatchMut, BatchSchema, IdFeature, RaggedFeature, SlotLayout, Stream,
};

/// Declares a test that runs a body on each backend.
macro_rules! test_on_each {
    ($($body:ident),* $(,)?) => {
        mod on_cpu {
            $(#[test] fn $body() { super::$body(&millstream_backend::Cpu::new(Some(2)).expect("threads")); })*
        }
        mod on_reference {
            $(#[test] fn $body() { super::$body(&millstream_backend::Reference); })*
        }
        mod on_cpu_recorded {
            $(#[test] fn $body() {
                let cpu = millstream_backend::Cpu::new(Some(2)).expect("threads");
                crate::case::recorded(cpu, &[], &|backend| super::$body(backend));
            })*
        }
        mod on_cuda_recorded {
            $(#[test] fn $body() {
                let tracks = ["GPU 0", "GPU 0, kernels", "GPU 0, copies"];
                crate::case::recorded(crate::case::cuda(), &tracks, &|backend| super::$body(backend));
            })*
        }
        mod on_cuda {
            $(#[test] fn $body() { super::$body(&crate::case::cuda()); })*
        }
    };
}

mod buffers;

mod embeddings;

mod layers;

mod losses;

mod optimizers;

const SGD: Formula = Formula::Sgd { learning_rate: 1.0 };

const MOMENTUM: Formula = Formula::Momentum { learning_rate: 1.0, momentum: 0.5, nesterov: false };

const BCE: Loss = Loss::BinaryCrossEntropy { smoothing: 0.0, positive_weight: 1.0, negative_weight: 1.0 };

fn adam(weight_decay: f64) -> Formula {
    Formula::Adam { learning_rate: 0.5, beta1: 0.5, beta2: 0.75, epsilon: 2.0, weight_decay, step: 1 }
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found}, not {expected}");
    }
}

fn schema() -> BatchSchema {
    BatchSchema {
        rows: 3,
        labels: Vec::new(),
        weighted: true,
        dense: vec!["x".to_owned(), "y".to_owned()],
        ids: vec![IdFeature { name: "colour".to_owned(), cardinality: 4 }],
        ragged: vec![RaggedFeature { name: "tags".to_owned(), cardinality: 3, maximum: 2, weighted: false }],
        columns: Vec::new(),
        position_bytes: 0,
    }
}

/// Three rows: colours 2, 0, 2; tags {1, 1}, {}, {0, 2}.
fn three_rows() -> BatchBuffer {
    let layout = SlotLayout::of(&schema()).expect("three rows");
    let mut buffer = BatchBuffer::new(Arc::new(layout));
    let mut slot = buffer.as_mut();
    set_rows(&mut slot, 3);
    let mut sections = slot.sections();
    sections.labels.copy_from_slice(&[1.0, 0.0, 1.0]);
    sections.weights.as_mut().expect("a weighted schema").copy_from_slice(&[1.0, 2.0, 1.0]);
    sections.dense.copy_from_slice(&[1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    sections.ids.copy_from_slice(&[2, 0, 2]);
    sections.ragged[0].0.copy_from_slice(&[0, 2, 2, 4]);
    sections.ragged[0].1[..4].copy_from_slice(&[1, 1, 0, 2]);
    buffer
}

fn set_rows(slot: &mut BatchMut<'_>, rows: u32) {
    slot.set_header(&BatchHeader {
        stream: Stream::Train,
        epoch: 0,
        batch: 0,
        rows,
        global_rows: rows,
        first_row: 0,
        most_rows: rows,
        last: false,
    });
}

fn uploaded<B: Backend>(backend: &B) -> B::Batch {
    let mut batch = backend.batch(&schema());
    backend.upload(three_rows().as_ref(), &mut batch).expect("a batch of the schema");
    batch
}

/// Only tags, with weights: {1: 2, 1: 1}, {}, {0: -1, 2: 4}.
fn weighted_rows() -> BatchBuffer {
    let weighted = RaggedFeature { weighted: true, ..schema().ragged.remove(0) };
    let schema = BatchSchema { weighted: false, ragged: vec![weighted], ..schema() };
    let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema).expect("three rows")));
    let mut slot = buffer.as_mut();
    set_rows(&mut slot, 3);
    let mut sections = slot.sections();
    sections.ragged[0].0.copy_from_slice(&[0, 2, 2, 4]);
    sections.ragged[0].1[..4].copy_from_slice(&[1, 1, 0, 2]);
    sections.ragged_weights[0].as_mut().expect("weights")[..4].copy_from_slice(&[2.0, 1.0, -1.0, 4.0]);
    buffer
}

fn lookups(pooling: Pooling) -> [Lookup; 2] {
    let colour = Lookup { column: IdColumn::Single(0), pooling, table: 0, first: 0 };
    [colour, Lookup { column: IdColumn::Ragged(0), table: 1, first: 2, ..colour }]
}
