//! Wide & Deep against PyTorch in float64: losses, gradients, and every parameter and optimizer state
//! over 30 steps. `golden/wide_deep.py` made the numbers.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_backend::{Backend, Cpu, Reference, Scalar};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, RaggedFeature, SlotLayout, Stream};
use millstream_trainer::model::Model;
use millstream_trainer::spec::{DeepSpec, ModelSpec, OptimizerSpec, Pooling, WideDeepSpec, WideSpec};
use serde::Deserialize;

type Tensors = BTreeMap<String, Vec<f64>>;

#[derive(Deserialize)]
struct Golden {
    ftrl: Ftrl,
    adagrad: Adagrad,
    embedding_dim: u32,
    hidden: Vec<u32>,
    cardinality: Cardinality,
    maximum: u32,
    batches: Vec<GoldenBatch>,
    start: Tensors,
    gradients: Tensors,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Ftrl {
    learning_rate: f32,
    beta: f32,
    l1: f32,
    l2: f32,
    initial_accumulator: f32,
}

#[derive(Deserialize)]
struct Adagrad {
    learning_rate: f32,
    initial_accumulator: f32,
    epsilon: f32,
}

#[derive(Deserialize)]
struct Cardinality {
    colour: u32,
    shape: u32,
    tags: u32,
}

#[derive(Deserialize)]
struct GoldenBatch {
    labels: Vec<f32>,
    weights: Vec<f32>,
    dense: Vec<f32>,
    colour: Vec<u32>,
    shape: Vec<u32>,
    offsets: Vec<u32>,
    tags: Vec<u32>,
}

#[derive(Deserialize)]
struct Step {
    loss: f64,
    tensors: Option<Tensors>,
    probabilities: Option<Vec<f64>>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("golden/wide_deep.json")).unwrap()
}

impl Golden {
    fn schema(&self) -> BatchSchema {
        let feature = |name: &str, cardinality| IdFeature { name: name.to_owned(), cardinality };
        BatchSchema {
            rows: 12,
            weighted: true,
            dense: vec!["first".to_owned(), "second".to_owned()],
            ids: vec![feature("colour", self.cardinality.colour), feature("shape", self.cardinality.shape)],
            ragged: vec![RaggedFeature {
                name: "tags".to_owned(),
                cardinality: self.cardinality.tags,
                maximum: self.maximum,
            }],
            position_bytes: 0,
        }
    }

    fn spec(&self, wide: OptimizerSpec, deep: OptimizerSpec) -> ModelSpec {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        ModelSpec::WideDeep(WideDeepSpec {
            wide: WideSpec { features: names(&["colour", "shape", "tags", "second"]), optimizer: wide },
            deep: DeepSpec {
                features: names(&["colour", "tags", "first", "second"]),
                embedding_dim: self.embedding_dim,
                hidden: self.hidden.clone(),
                pooling: Pooling::Mean,
                optimizer: deep,
            },
        })
    }

    fn optimizers(&self) -> (OptimizerSpec, OptimizerSpec) {
        let Ftrl { learning_rate, beta, l1, l2, initial_accumulator } = self.ftrl;
        let wide = OptimizerSpec::Ftrl { learning_rate, beta, l1, l2, initial_accumulator };
        let Adagrad { learning_rate, initial_accumulator, epsilon } = self.adagrad;
        (wide, OptimizerSpec::Adagrad { learning_rate, initial_accumulator, epsilon })
    }

    fn batch(&self, number: usize) -> BatchBuffer {
        let batch = &self.batches[number % self.batches.len()];
        let layout = SlotLayout::of(&self.schema()).unwrap();
        let stride = layout.schema().rows as usize;
        let mut buffer = BatchBuffer::new(Arc::new(layout));
        let mut slot = buffer.as_mut();
        let rows = batch.labels.len();
        slot.set_header(&BatchHeader {
            stream: Stream::Train,
            epoch: 0,
            batch: number as u64,
            rows: rows as u32,
            global_rows: rows as u32,
            last: false,
        });
        let mut sections = slot.sections();
        sections.labels[..rows].copy_from_slice(&batch.labels);
        sections.weights.as_mut().unwrap()[..rows].copy_from_slice(&batch.weights);
        sections.dense[..2 * rows].copy_from_slice(&batch.dense);
        sections.ids[..rows].copy_from_slice(&batch.colour);
        sections.ids[stride..stride + rows].copy_from_slice(&batch.shape);
        sections.ragged[0].0[..=rows].copy_from_slice(&batch.offsets);
        sections.ragged[0].1[..batch.tags.len()].copy_from_slice(&batch.tags);
        buffer
    }
}

/// A model on `backend` that holds the tensors of `start`, as far as it has them.
fn model_at<B: Backend>(backend: B, golden: &Golden, spec: &ModelSpec) -> Model<B> {
    let mut model = Model::new(backend, spec, &golden.schema(), 1).unwrap();
    let mut names = Vec::new();
    let filled: Result<(), ()> = model.write_tensors(|tensor, values| {
        let start = &golden.start[&tensor.name];
        assert_eq!(start.len(), values.len(), "{tensor:?}");
        for (value, &start) in values.iter_mut().zip(start) {
            *value = B::Scalar::from_f64(start);
        }
        names.push(tensor.name.clone());
        Ok(())
    });
    filled.unwrap();
    assert_eq!(names.len(), model.tensors().len());
    model
}

fn tensors_of<B: Backend>(model: &Model<B>) -> Tensors {
    let mut tensors = Tensors::new();
    let read: Result<(), ()> = model.read_tensors(|tensor, values| {
        tensors.insert(tensor.name.clone(), values.iter().map(|value| value.to_f64()).collect());
        Ok(())
    });
    read.unwrap();
    tensors
}

fn close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-3_f64, |largest, x| largest.max(x.abs()));
    for (item, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / largest;
        assert!(error <= tolerance, "{what}, item {item}: {found}, not {expected} (off by {error:e})");
    }
}

/// A step of rate 1 by plain descent takes the gradient off each weight.
fn gradients_agree<B: Backend>(backend: B, tolerance: f64) {
    let golden = golden();
    let sgd = OptimizerSpec::Sgd { learning_rate: 1.0 };
    let mut model = model_at(backend, &golden, &golden.spec(sgd, sgd));
    let before = tensors_of(&model);
    model.train_step(golden.batch(0).as_ref()).unwrap();
    let after = tensors_of(&model);
    assert_eq!(golden.gradients.len(), before.len());
    for (name, expected) in &golden.gradients {
        let found: Vec<f64> =
            before[name].iter().zip(&after[name]).map(|(before, after)| before - after).collect();
        close(name, &found, expected, tolerance);
    }
}

fn trajectory_agrees<B: Backend>(backend: B, tolerance: f64) {
    let golden = golden();
    let (wide, deep) = golden.optimizers();
    let mut model = model_at(backend, &golden, &golden.spec(wide, deep));
    let mut compared = 0;
    for (number, step) in golden.steps.iter().enumerate() {
        let batch = golden.batch(number);
        let loss = model.train_step(batch.as_ref()).unwrap();
        close(&format!("loss of step {number}"), &[loss.mean()], &[step.loss], tolerance);
        let Some(expected) = &step.tensors else { continue };
        let found = tensors_of(&model);
        assert!(found.keys().eq(expected.keys()), "the same tensors");
        for (name, expected) in expected {
            close(&format!("{name} after step {number}"), &found[name], expected, tolerance);
            compared += 1;
        }
        let expected = step.probabilities.as_ref().unwrap();
        let mut found = vec![0.0; expected.len()];
        model.predict(batch.as_ref(), &mut found).unwrap();
        let found: Vec<f64> = found.into_iter().map(f64::from).collect();
        close("probabilities", &found, expected, tolerance.max(1e-7));
    }
    assert!(compared >= 4 * 20, "the golden file holds whole states");
}

#[test]
fn gradients_agree_with_autograd_on_the_reference() {
    gradients_agree(Reference, 1e-12);
}

#[test]
fn gradients_agree_with_autograd_on_the_cpu() {
    gradients_agree(Cpu::new(Some(2)).unwrap(), 1e-5);
}

#[test]
fn thirty_steps_agree_with_pytorch_on_the_reference() {
    trajectory_agrees(Reference, 1e-12);
}

#[test]
fn thirty_steps_agree_with_pytorch_on_the_cpu() {
    trajectory_agrees(Cpu::new(Some(2)).unwrap(), 1e-5);
}
