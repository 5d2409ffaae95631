#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use ::safetensors::SafeTensors;
use millstream_batch::BatchSchema;
use serde_json::Value;

use super::onnx::{NumberScale, OnnxModel, Port};
use super::*;
use crate::checkpoint::TrainingProgress;
use crate::checkpoint::store::Part;
use crate::session::SelectionState;
use crate::spec::{LossSpec, ModelSpec, Precision, Prediction, TaskSpec, TrainingSpec};

/// Every kind of model by the name of its case in the golden file, and the schema without labels.
fn models() -> (BatchSchema, Vec<(String, Model)>) {
    let golden: Value = serde_json::from_str(include_str!("../../tests/golden/models.json")).unwrap();
    let schema = serde_json::from_value(golden["schema"].clone()).unwrap();
    let of_din: Value = serde_json::from_str(include_str!("../../tests/golden/din.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap().iter().chain(of_din.as_array().unwrap());
    let cases = cases.map(|case| (case["name"].to_string(), Model::of(case)));
    (schema, cases.collect())
}

/// A model and its task.
struct Model {
    spec: ModelSpec,
    labels: Vec<String>,
    tasks: Vec<TaskSpec>,
}

impl Model {
    fn of(case: &Value) -> Self {
        let read = |value: &Value| serde_json::from_value(value.clone()).unwrap();
        let mut labels: Vec<String> = serde_json::from_value(case["labels"].clone()).unwrap();
        labels.truncate(if labels.len() > 1 { labels.len() } else { 0 });
        let training = &case["training"];
        let tasks = match (&training["tasks"], &training["loss"]) {
            (Value::Null, Value::Null) => TrainingSpec::default().tasks(1),
            (Value::Null, loss) => vec![serde_json::from_value::<LossSpec>(loss.clone()).unwrap().into()],
            (tasks, _) => serde_json::from_value(tasks.clone()).unwrap(),
        };
        Self { spec: read(&case["model"]), labels, tasks }
    }

    /// The model with the numbers 0, 1, 2 and so on as parameters.
    fn trained(&self, schema: &BatchSchema) -> TrainedModel {
        let schema = BatchSchema { labels: self.labels.clone(), ..schema.clone() };
        let training = TrainingSpec { tasks: self.tasks.clone(), ..TrainingSpec::default() };
        numbered(&schema, &self.spec, &training)
    }
}

/// A model of one label with the numbers 0, 1, 2 and so on as parameters.
fn trained(schema: &BatchSchema, model: &ModelSpec) -> TrainedModel {
    numbered(schema, model, &TrainingSpec::default())
}

fn numbered(schema: &BatchSchema, model: &ModelSpec, training: &TrainingSpec) -> TrainedModel {
    let mut tensors = ModelPlan::new(model, schema, training).unwrap().tensors;
    tensors.retain(|tensor| tensor.role == TensorRole::Parameter);
    let mut next = 0_u16;
    let parameters = tensors.into_iter().map(|tensor| {
        let numbers = (0..tensor.len()).flat_map(|_| {
            next += 1;
            f32::from(next).to_le_bytes()
        });
        Parameter { data: numbers.collect(), tensor }
    });
    TrainedModel {
        tower: None,
        parameters: parameters.collect(),
        snapshot: Snapshot {
            step: 12,
            progress: TrainingProgress::default(),
            position: Vec::new(),
            eval: Vec::new(),
            eval_step: None,
            eval_due: false,
            standing: SelectionState::default(),
            model: model.clone(),
            schema: schema.clone(),
            seed: 7,
            precision: Precision::Fp32,
            embedding_precision: Precision::Fp32,
            tasks: training.tasks(schema.label_count()),
            loss_scale: None,
        },
    }
}

fn scales(schema: &BatchSchema) -> BTreeMap<String, NumberScale> {
    let scale = NumberScale { logarithm: true, shift: 1.0, divisor: 2.0, absent: Some(0.25) };
    schema.dense.iter().map(|name| (name.clone(), scale)).collect()
}

fn one() -> (BatchSchema, ModelSpec) {
    let (schema, models) = models();
    let mut models = models.into_iter().map(|(_, model)| model.spec);
    (schema, models.find(|model| matches!(model, ModelSpec::WideDeep(_))).unwrap())
}

fn onnx(trained: &TrainedModel) -> OnnxModel {
    OnnxModel::new(trained, &scales(&trained.snapshot.schema), &[]).unwrap()
}

#[test]
fn every_kind_of_model_has_its_features_as_inputs_and_its_scores_as_outputs() {
    let (schema, models) = models();
    let (mut kinds, mut weighted, mut of_classes) = (BTreeSet::new(), 0, 0);
    for (name, model) in models {
        let trained = model.trained(&schema);
        kinds.insert(trained.kind());
        let onnx = onnx(&trained);
        let read: BTreeSet<_> =
            model.spec.features().into_iter().flat_map(|(_, list)| list.to_vec()).collect();
        let inputs: BTreeSet<_> = onnx.inputs().into_iter().map(|port| port.name).collect();
        let weights = if read.contains("marks") { vec!["marks_weights".to_owned()] } else { Vec::new() };
        weighted += weights.len();
        assert_eq!(inputs, read.into_iter().chain(weights).collect(), "{name}");
        let outputs: Vec<_> =
            onnx.outputs().into_iter().map(|Port { name, kind, .. }| (name, kind)).collect();
        let named = |label: &str, what| if label.is_empty() { what } else { format!("{what}_{label}") };
        let labels = if model.labels.is_empty() { vec![String::new()] } else { model.labels };
        let wanted = labels.iter().zip(&model.tasks).flat_map(|(label, task)| {
            let score = (named(label, "score".to_owned()), "float");
            let logit = (named(label, "logit".to_owned()), "float");
            let has_no_logit = match model.spec.prediction(&task.loss) {
                Prediction::Rank | Prediction::ListRank => true,
                prediction => prediction.is_number(),
            };
            if has_no_logit { vec![score] } else { vec![score, logit] }
        });
        if let [TaskSpec { loss: LossSpec::CrossEntropy { classes, .. }, .. }] = model.tasks[..] {
            assert!(onnx.outputs().iter().all(|port| port.shape == ["rows".to_owned(), classes.to_string()]));
            of_classes += 1;
        }
        assert_eq!(outputs, wanted.collect::<Vec<_>>(), "{name}");
    }
    let all = ["dcn_v2", "deepfm", "din", "dlrm", "linear", "mlp", "mmoe", "two_tower", "wide_deep"];
    assert_eq!(kinds.iter().copied().collect::<Vec<_>>(), all);
    assert!(weighted >= 7, "{weighted} models of weighted features");
    assert!(of_classes >= 6, "{of_classes} models of classes");
}

#[test]
fn weights_have_a_separate_input() {
    let (mut schema, _) = one();
    let spec = |features: &[&str]| {
        let optimizer = serde_json::json!({ "kind": "sgd", "learning_rate": 1.0 });
        let model = serde_json::json!({ "kind": "linear", "features": features, "optimizer": optimizer });
        serde_json::from_value(model).unwrap()
    };
    let inputs = |schema: &BatchSchema, features: &[&str]| {
        let ports = onnx(&trained(schema, &spec(features))).inputs();
        ports.into_iter().map(|port| (port.name, port.kind, port.shape)).collect::<Vec<_>>()
    };
    let port = |name: &str, kind, ids: &str| (name.to_owned(), kind, vec!["rows".to_owned(), ids.to_owned()]);
    let marks = || port("marks", "int64", "ids of marks");
    let expected = [marks(), port("marks_weights", "float", "ids of marks")];
    assert_eq!(inputs(&schema, &["marks"]), expected);
    // A feature keeps a name that the weights would have used.
    schema.ids[0].name = "marks_weights".to_owned();
    let expected =
        [port("marks_weights", "int64", "1"), marks(), port("marks_weights_2", "float", "ids of marks")];
    assert_eq!(inputs(&schema, &["marks", "marks_weights"]), expected);
}

#[test]
fn a_tower_has_its_features_as_inputs_and_its_vector_as_output() {
    let (schema, models) = models();
    let towers = models.into_iter().filter_map(|(_, model)| match &model.spec {
        ModelSpec::TwoTower(spec) => Some((spec.clone(), model)),
        _ => None,
    });
    let mut checked = 0;
    for (spec, model) in towers {
        for (tower, features) in [(Tower::Query, &spec.query.features), (Tower::Item, &spec.item.features)] {
            let whole = model.trained(&schema);
            let (all, tower) = (whole.parameters.len(), whole.select_tower(tower).unwrap());
            assert!(tower.parameters.len() < all);
            let onnx = onnx(&tower);
            let inputs: BTreeSet<_> = onnx.inputs().into_iter().map(|port| port.name).collect();
            assert_eq!(inputs, features.iter().cloned().collect());
            let outputs = onnx.outputs();
            assert_eq!((outputs.len(), outputs[0].name.as_str()), (1, "vector"));
            assert_eq!(outputs[0].shape, ["rows".to_owned(), spec.dim.to_string()]);
            let part = ("millstream.part".to_owned(), tower.tower.unwrap().name().to_owned());
            assert!(tower.description(&[]).contains(&part));
            checked += 1;
        }
    }
    assert!(checked > 0);
    let (schema, model) = one();
    let error = trained(&schema, &model).select_tower(Tower::Item).err().unwrap();
    assert!(error.to_string().contains("a wide_deep model has no item tower"), "{error}");
}

#[test]
fn a_parameter_that_the_graph_does_not_use_is_an_error() {
    let (schema, model) = one();
    let mut trained = trained(&schema, &model);
    let tensor =
        NamedTensor { name: "deep.norm.0.scale".into(), shape: vec![1], role: TensorRole::Parameter };
    trained.parameters.push(Parameter { tensor, data: Bytes::from_static(&[0; 4]) });
    let error = OnnxModel::new(&trained, &scales(&schema), &[]).err().unwrap();
    assert!(matches!(error, ExportError::Unplaced { name } if name == "deep.norm.0.scale"));

    let lost = trained.parameters.remove(0).tensor.name;
    let error = OnnxModel::new(&trained, &scales(&schema), &[]).err().unwrap();
    assert!(matches!(error, ExportError::NoParameter { name } if name == lost));
    trained.parameters.pop();
    let error = OnnxModel::new(&trained, &BTreeMap::new(), &[]).err().unwrap();
    assert!(matches!(error, ExportError::NotScaled { feature } if schema.dense.contains(&feature)));
}

#[test]
fn a_feature_keeps_a_name_that_the_graph_would_have_used() {
    let (schema, _) = one();
    for taken in ["score", "linear.bias", "numbers"] {
        let mut schema = schema.clone();
        schema.dense[0] = taken.to_owned();
        let model = serde_json::json!({
            "kind": "linear",
            "features": [taken, schema.ids[0].name],
            "optimizer": { "kind": "sgd", "learning_rate": 1.0 },
        });
        let trained = trained(&schema, &serde_json::from_value(model).unwrap());
        let onnx = onnx(&trained);
        assert_eq!(onnx.inputs()[0].name, taken);
        assert_eq!(onnx.outputs()[0].name, if taken == "score" { "score_2" } else { "score" });
    }
}

#[test]
fn external_data_is_at_the_offsets_in_the_graph() {
    let (schema, mut model) = one();
    let ModelSpec::WideDeep(spec) = &mut model else { panic!("not Wide & Deep") };
    spec.deep.hidden = vec![300, 20];
    let trained = trained(&schema, &model);
    let (mut whole, mut graph, mut data) = (Vec::new(), Vec::new(), Vec::new());
    onnx(&trained).write(&mut whole).unwrap();
    onnx(&trained).write_external(&mut graph, "model.onnx.data", &mut data).unwrap();
    assert!(graph.len() + data.len() > whole.len() && data.len() > 20 * 300 * 4);
    let holds = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    let mut apart = 0;
    for Parameter { tensor, data: numbers } in &trained.parameters {
        assert!(holds(&whole, numbers), "{}", tensor.name);
        assert_ne!(holds(&graph, numbers), numbers.len() >= 1024, "{}", tensor.name);
        if numbers.len() >= 1024 {
            let place = data.chunks(4096).position(|page| page.starts_with(&numbers[..1024])).unwrap() * 4096;
            assert_eq!(&data[place..][..numbers.len()], &numbers[..], "{}", tensor.name);
            assert!(holds(&graph, place.to_string().as_bytes()));
            apart += 1;
        }
    }
    assert!(apart >= 2, "{apart}");
    assert!(holds(&graph, b"model.onnx.data"));
}

#[test]
fn safetensors_are_deterministic_and_round_trip_bit_by_bit() {
    let (schema, model) = one();
    let trained = trained(&schema, &model);
    let added = [("job".to_owned(), "a \"job\"".to_owned())];
    let write = |out: &mut dyn Write| safetensors::write(&trained, &added, out).map_err(io::Error::other);
    let (mut bytes, mut again) = (Vec::new(), Vec::new());
    write(&mut bytes).unwrap();
    write(&mut again).unwrap();
    assert_eq!(bytes, again);

    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().as_ref().unwrap();
    assert_eq!((&*metadata["millstream.job"], &*metadata["millstream.step"]), ("a \"job\"", "12"));
    assert_eq!(serde_json::from_str::<ModelSpec>(&metadata["millstream.model"]).unwrap(), model);

    // The file equals the checkpoint's, except for the header.
    let directory = tempfile::tempdir().unwrap();
    let store = CheckpointStore::create_local(directory.path()).unwrap();
    let part = Part::new(MODEL_PART, write);
    store.commit(None, trained.snapshot.clone(), &[part], 1).unwrap();
    let read = TrainedModel::open(&store, 12).unwrap();
    assert_eq!((read.kind(), read.numbers()), ("wide_deep", trained.numbers()));
    assert_eq!(read.parameters.len(), trained.parameters.len());
    for (read, written) in read.parameters.iter().zip(&trained.parameters) {
        assert_eq!((&read.tensor, &read.data), (&written.tensor, &written.data));
    }
    assert!(matches!(TrainedModel::open(&store, 13), Err(ExportError::Checkpoint(_))));
}
