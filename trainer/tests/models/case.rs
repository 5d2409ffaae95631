//! The models and batches of the golden file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, MutexGuard};

use millstream_backend::{Backend, Cuda, Libraries, Scalar};
use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, SlotLayout, Stream};
use millstream_test_cuda::{StandIn, Variant};
use millstream_trainer::model::Model;
use millstream_trainer::spec::{ClipSpec, ModelSpec, Precision, TrainingSpec};
use serde::Deserialize;
use serde_json::{Value, json};

/// Whether tests run on the host's GPU.
pub(crate) fn is_real_gpu() -> bool {
    std::env::var_os("MILLSTREAM_GPU").is_some()
}

/// The CUDA backend on stand-ins for a GPU and its libraries, with kernels compiled for the host; or on the
/// host's GPU if `MILLSTREAM_GPU` names a cache directory for compiled kernels (see `bench/gpu`).
pub(crate) fn cuda() -> Cuda {
    if let Some(images) = std::env::var_os("MILLSTREAM_GPU") {
        return Cuda::new(&Libraries::default(), 0, Some(Path::new(&images))).expect("a GPU");
    }
    let stand_in = StandIn::whole().expect("a C++ compiler");
    let images = stand_in.folder().join("images");
    Cuda::new(&Libraries::of(stand_in.folder()), 0, Some(&images)).expect("a device")
}

/// The GPU of worker `rank`: each has its own emulated one, and they communicate by the stand-in of NCCL; or all share the
/// host's GPU, which NCCL refuses.
pub(crate) fn cuda_of(rank: u32) -> Cuda {
    if is_real_gpu() {
        return cuda();
    }
    let stand_in = StandIn::of(&Variant::default().copy(rank)).expect("a C++ compiler");
    let images = stand_in.folder().join("images");
    Cuda::new(&Libraries::of(stand_in.folder()), 0, Some(&images)).expect("a device")
}

/// Lets a test use the GPUs of several workers; `None` on the host's GPU, which NCCL does not share.
pub(crate) fn several_gpus() -> Option<MutexGuard<'static, ()>> {
    (!is_real_gpu()).then(StandIn::turn)
}

/// Values by the name of their tensor.
pub(crate) type Tensors = BTreeMap<String, Vec<f64>>;

#[derive(Deserialize)]
pub(crate) struct Golden {
    schema: BatchSchema,
    batches: Vec<GoldenBatch>,
    pub(crate) cases: Vec<Case>,
}

/// A model, and the results of training it.
#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) model: Value,
    /// The indices of its labels in a batch.
    labels: Vec<String>,
    #[serde(default)]
    training: Value,
    pub(crate) start: Tensors,
    /// The gradients of the first batch, by parameter.
    pub(crate) gradients: Tensors,
    pub(crate) steps: Vec<Step>,
    /// How far the final state moves if the initial weights change by at most half a unit in the last place
    /// of fp32, as a fraction of each tensor's largest value.
    pub(crate) sensitivity: f64,
}

#[derive(Deserialize)]
pub(crate) struct Step {
    /// The loss before the step.
    pub(crate) loss: f64,
    /// The tensors after it.
    pub(crate) tensors: Option<Tensors>,
    /// The scores of the same batch after it.
    pub(crate) scores: Option<Vec<f64>>,
}

#[derive(Deserialize)]
struct GoldenBatch {
    labels: Vec<f32>,
    other: Vec<f32>,
    amount: Vec<f32>,
    sort: Vec<f32>,
    weights: Vec<f32>,
    dense: Vec<f32>,
    colour: Vec<u32>,
    shape: Vec<u32>,
    hue: Vec<u32>,
    offsets: Vec<u32>,
    tags: Vec<u32>,
    marks: Vec<u32>,
    mark_weights: Vec<f32>,
}

pub(crate) fn golden() -> Golden {
    let mut golden: Golden =
        serde_json::from_str(include_str!("../golden/models.json")).expect("a golden file");
    let of_din: Vec<Case> = serde_json::from_str(include_str!("../golden/din.json")).expect("a golden file");
    golden.cases.extend(of_din);
    assert!(golden.cases.len() >= 74, "every kind of model and optimizer");
    golden
}

impl Case {
    /// Its training settings, with initial weights fixed by `seed`.
    pub(crate) fn training(&self, seed: u64) -> TrainingSpec {
        let mut training = serde_json::to_value(TrainingSpec { seed, ..TrainingSpec::default() });
        let training = training.as_mut().expect("a specification").as_object_mut().expect("keys");
        training.extend(self.training.as_object().cloned().unwrap_or_default());
        serde_json::from_value(Value::Object(training.clone())).expect("a specification of training")
    }

    pub(crate) fn spec(&self) -> ModelSpec {
        serde_json::from_value(self.model.clone()).expect("a model's specification")
    }

    /// Whether rows depend on each other, so that micro-batches are not possible.
    pub(crate) fn needs_whole_batches(&self) -> bool {
        let spec = self.spec();
        spec.uses_batch_normalization() || spec.uses_in_batch_loss()
    }

    /// The model of this case with SGD of learning rate 1 for each optimizer: a step subtracts the unscaled
    /// gradient from each weight. Weights are stored in fp32.
    pub(crate) fn by_descent<B: Backend>(&self, backend: B, schema: &BatchSchema) -> Model<B> {
        let (clip, embedding_precision) = (ClipSpec::default(), Precision::default());
        let training = TrainingSpec { clip, embedding_precision, ..self.training(1) };
        self.by_descent_of(1.0, backend, schema, &training)
    }

    /// The same with another learning rate and training settings.
    pub(crate) fn by_descent_of<B: Backend>(
        &self,
        rate: f64,
        backend: B,
        schema: &BatchSchema,
        training: &TrainingSpec,
    ) -> Model<B> {
        let mut model = self.model.clone();
        by_descent(&mut model, rate);
        let spec = serde_json::from_value(model).expect("a model's specification");
        let mut model = Model::new(backend, &spec, schema, training).expect("a model of the schema");
        write(&mut model, &self.start);
        model
    }
}

/// Replaces each optimizer by SGD of this learning rate.
pub(crate) fn by_descent(value: &mut Value, rate: f64) {
    if value.get("learning_rate").is_some() {
        *value = json!({"kind": "sgd", "learning_rate": rate});
    } else if let Value::Object(entries) = value {
        entries.values_mut().for_each(|value| by_descent(value, rate));
    }
}

impl Golden {
    /// The schema of `case`; labels have names only if there are several.
    pub(crate) fn schema(&self, case: &Case) -> BatchSchema {
        let labels = if case.labels.len() > 1 { case.labels.clone() } else { Vec::new() };
        BatchSchema { labels, ..self.schema.clone() }
    }

    /// The batch of step `number` of `case`, from 0.
    pub(crate) fn batch(&self, case: &Case, number: usize) -> BatchBuffer {
        let batch = &self.batches[number % self.batches.len()];
        let stride = self.schema.rows as usize;
        let layout = SlotLayout::of(&self.schema(case)).expect("a schema with rows");
        let mut buffer = BatchBuffer::new(Arc::new(layout));
        let mut slot = buffer.as_mut();
        let rows = batch.labels.len();
        slot.set_header(&BatchHeader {
            stream: Stream::Train,
            epoch: 0,
            batch: number as u64,
            rows: rows as u32,
            global_rows: rows as u32,
            first_row: 0,
            most_rows: rows as u32,
            last: false,
        });
        let mut sections = slot.sections();
        for (label, place) in case.labels.iter().zip(sections.labels.chunks_exact_mut(stride)) {
            place[..rows].copy_from_slice(match label.as_str() {
                "labels" => &batch.labels,
                "other" => &batch.other,
                "sort" => &batch.sort,
                _ => &batch.amount,
            });
        }
        sections.weights.as_mut().expect("a weighted schema")[..rows].copy_from_slice(&batch.weights);
        sections.dense[..2 * rows].copy_from_slice(&batch.dense);
        sections.ids[..rows].copy_from_slice(&batch.colour);
        sections.ids[stride..stride + rows].copy_from_slice(&batch.shape);
        sections.ids[2 * stride..2 * stride + rows].copy_from_slice(&batch.hue);
        for ((offsets, values), given) in sections.ragged.iter_mut().zip([&batch.tags, &batch.marks]) {
            offsets[..=rows].copy_from_slice(&batch.offsets);
            values[..given.len()].copy_from_slice(given);
        }
        let weights = sections.ragged_weights[1].as_mut().expect("marks have weights");
        weights[..batch.mark_weights.len()].copy_from_slice(&batch.mark_weights);
        buffer
    }

    /// The model of `case` on `backend`, with the golden initial state.
    pub(crate) fn model_at<B: Backend>(
        &self,
        backend: B,
        case: &Case,
        micro_batch_rows: Option<u32>,
    ) -> Model<B> {
        let training = TrainingSpec { micro_batch_rows, ..case.training(1) };
        let model = Model::new(backend, &case.spec(), &self.schema(case), &training);
        let mut model = model.expect("a model of the schema");
        write(&mut model, &case.start);
        model
    }
}

/// Replaces every tensor of `model` with that of the same name.
pub(crate) fn write<B: Backend>(model: &mut Model<B>, tensors: &Tensors) {
    let written: Result<(), ()> = model.write_tensors(|tensor, values| {
        let numbers = &tensors[&tensor.name];
        assert_eq!(numbers.len(), values.len(), "{tensor:?}");
        for (value, &number) in values.iter_mut().zip(numbers) {
            *value = B::Scalar::from_f64(number);
        }
        Ok(())
    });
    written.expect("no error of ours");
}

pub(crate) fn tensors_of<B: Backend>(model: &mut Model<B>) -> Tensors {
    let mut tensors = Tensors::new();
    let read: Result<(), ()> = model.read_tensors(|tensor, values| {
        tensors.insert(tensor.name.clone(), values.iter().map(|value| value.to_f64()).collect());
        Ok(())
    });
    read.expect("no error of ours");
    assert_eq!(tensors.len(), model.tensors().len(), "names are unique");
    tensors
}

/// The gradients from a step of SGD with learning rate 1.
pub(crate) fn gradients(before: &Tensors, after: &Tensors) -> Tensors {
    let differences = before.iter().map(|(name, before)| {
        let difference = before.iter().zip(&after[name]).map(|(before, after)| before - after);
        (name.clone(), difference.collect())
    });
    differences.collect()
}
