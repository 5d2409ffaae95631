//! The logits of each kind of model, as computed by `crate::model`: `[B, 1]` for each label or `[B, K]` for
//! classes; and the vectors of towers, `[B, W]`.
//!
//! Specifications are destructured completely, so that a new key causes a compile error here.

use millstream_backend::Activation;

use super::graph::{Value, int};
use super::layers::Net;
use crate::export::{ExportError, Tower};
use crate::model::din::SequenceFeatures;
use crate::model::features::Features;
use crate::model::mmoe::tower_name;
use crate::spec::{
    AttentionSpec, DcnSpec, DcnStructure, DeepFmSpec, DeepSpec, DinSpec, DlrmInteraction, DlrmSpec,
    EmbeddingSpec, HiddenLayerSpec, LinearSpec, MlpSpec, MmoeSpec, ModelSpec, TwoTowerSpec, WideDeepSpec,
    WideSpec,
};

const FEATURES: &str = "model.features";

impl Net<'_> {
    /// The logits of the model described by `spec`, in the order of the labels.
    pub(super) fn logits(&mut self, spec: &ModelSpec) -> Result<Vec<Value>, ExportError> {
        let of_one_label = match spec {
            ModelSpec::Linear(spec) => self.linear_model(spec),
            ModelSpec::Mlp(spec) => self.mlp_model(spec),
            ModelSpec::WideDeep(spec) => self.wide_deep(spec),
            ModelSpec::DeepFm(spec) => self.deepfm(spec),
            ModelSpec::Dcn(spec) => self.dcn(spec),
            ModelSpec::Dlrm(spec) => self.dlrm(spec),
            ModelSpec::TwoTower(spec) => self.two_tower(spec),
            ModelSpec::Din(spec) => return self.din(spec),
            ModelSpec::Mmoe(spec) => return self.mmoe(spec),
        };
        Ok(vec![of_one_label?])
    }

    fn linear_model(&mut self, spec: &LinearSpec) -> Result<Value, ExportError> {
        let LinearSpec { features, optimizer: _ } = spec;
        let features = self.features(FEATURES, features)?;
        self.linear("linear", &features)
    }

    fn mlp_model(&mut self, spec: &MlpSpec) -> Result<Value, ExportError> {
        let MlpSpec { features, embedding, hidden, hidden_layer, optimizer: _ } = spec;
        let input = self.input("", features, embedding)?;
        self.mlp("deep", &input, (hidden, hidden_layer), Activation::Identity)
    }

    fn wide_deep(&mut self, spec: &WideDeepSpec) -> Result<Value, ExportError> {
        let WideDeepSpec { wide, deep } = spec;
        let WideSpec { features, optimizer: _ } = wide;
        let features = self.features("model.wide.features", features)?;
        let wide = self.linear("wide", &features)?;
        let embedding = deep.embedding();
        let DeepSpec {
            features,
            hidden,
            hidden_layer,
            embedding_dim: _,
            embedding_init: _,
            pooling: _,
            optimizer: _,
            embedding_optimizer: _,
            embeddings: _,
        } = deep;
        let input = self.input("deep.", features, &embedding)?;
        let deep = self.mlp("deep", &input, (hidden, hidden_layer), Activation::Identity)?;
        Ok(self.graph.node("Add", &[&deep, &wide], "wide_and_deep"))
    }

    fn deepfm(&mut self, spec: &DeepFmSpec) -> Result<Value, ExportError> {
        let DeepFmSpec { features, embedding, hidden, hidden_layer, linear_optimizer: _, optimizer: _ } =
            spec;
        let features = self.features(FEATURES, features)?;
        let first_order = self.linear("linear", &features)?;
        let embeddings = self.embeddings("", &features, embedding)?;
        let second_order = self.pairs_summed(&embeddings, "second_order");
        let input = self.beside_numbers(&embeddings, &features);
        let deep = self.mlp("deep", &input, (hidden, hidden_layer), Activation::Identity)?;
        Ok(self.graph.node("Sum", &[&deep, &second_order, &first_order], "deepfm"))
    }

    fn dcn(&mut self, spec: &DcnSpec) -> Result<Value, ExportError> {
        let DcnSpec { features, embedding, cross, structure, hidden, hidden_layer, optimizer: _ } = spec;
        let input = self.input("", features, embedding)?;
        let crossed = self.cross(&input, cross)?;
        match structure {
            DcnStructure::Stacked => self.mlp("deep", &crossed, (hidden, hidden_layer), Activation::Identity),
            DcnStructure::Parallel => {
                let deep = self.mlp("deep", &input, (hidden, hidden_layer), Activation::Identity)?;
                let crossed = self.product("cross.output", &crossed)?;
                Ok(self.graph.node("Add", &[&deep, &crossed], "cross_and_deep"))
            }
        }
    }

    fn din(&mut self, spec: &DinSpec) -> Result<Vec<Value>, ExportError> {
        let DinSpec { features, sequences, attention, embedding, hidden, hidden_layer, optimizer: _ } = spec;
        let features = self.features(FEATURES, features)?;
        let resolved = SequenceFeatures::resolve(features, sequences, embedding, self.schema())?;
        let others = resolved.others();
        let SequenceFeatures { features, targets } = resolved;
        let (mut embeddings, histories) = self.embeddings_beside(&features, embedding, others)?;
        let AttentionSpec { hidden: of_attention } = attention;
        let options = HiddenLayerSpec { init: hidden_layer.init, ..HiddenLayerSpec::default() };
        for ((history, target), feature) in histories.iter().zip(targets).zip(&features.ids[others..]) {
            let (name, target) = (format!("attention.{}", feature.name), embeddings[target].clone());
            embeddings.push(self.attend(&name, history, &target, (of_attention, &options))?);
        }
        let input = self.beside_numbers(&embeddings, &features);
        let logits = self.mlp("deep", &input, (hidden, hidden_layer), Activation::Identity)?;
        let labels = self.labels().len() as i64;
        if labels == 1 {
            return Ok(vec![logits]);
        }
        let of_label = |label: i64| {
            let place = self.graph.list(&format!("deep/label.{label}/place"), &[label]);
            let gather = [int("axis", 1)];
            self.graph.node_with("Gather", &[&logits, &place], &gather, &format!("deep/label.{label}"))
        };
        Ok((0..labels).map(of_label).collect())
    }

    fn dlrm(&mut self, spec: &DlrmSpec) -> Result<Value, ExportError> {
        let DlrmSpec { features, embedding, bottom, interaction, top, hidden_layer, optimizer: _ } = spec;
        let features = self.features(FEATURES, features)?;
        let numbers = self.beside_numbers(&[], &features);
        let bottom = self.mlp("bottom", &numbers, (bottom, hidden_layer), Activation::Relu)?;
        let mut vectors = vec![bottom.clone()];
        vectors.extend(self.embeddings("", &features, embedding)?);
        let met = match interaction {
            DlrmInteraction::Dot => {
                let pairs = self.pairs(&vectors, "pairs");
                self.graph.beside(&[&bottom, &pairs], "interaction")
            }
            DlrmInteraction::Cross(spec) => {
                let vectors = self.graph.beside(&vectors.iter().collect::<Vec<_>>(), "vectors");
                self.cross(&vectors, spec)?
            }
        };
        self.mlp("top", &met, (top, hidden_layer), Activation::Identity)
    }

    /// As matrices of experts by columns, `[B, E, M]`, and of tasks by experts, `[B, T, E]`, all mixtures are
    /// one matrix product.
    fn mmoe(&mut self, spec: &MmoeSpec) -> Result<Vec<Value>, ExportError> {
        let MmoeSpec { features, embedding, experts, expert, tower, hidden_layer, optimizer: _ } = spec;
        let input = self.input("", features, embedding)?;
        let hidden = expert.split_last().map_or(expert.as_slice(), |(_, hidden)| hidden);
        let given = (0..*experts).map(|number| {
            self.mlp(&format!("expert.{number}"), &input, (hidden, hidden_layer), Activation::Relu)
        });
        let given = given.collect::<Result<Vec<_>, _>>()?;
        let labels = self.labels();
        let (tasks, count) = (labels.len() as i64, i64::from(*experts));
        let rows: Vec<Value> =
            given.iter().map(|given| self.graph.along("Unsqueeze", given, 1, "experts/row")).collect();
        let given = self.graph.beside(&rows.iter().collect::<Vec<_>>(), "experts");
        let logits = self.product("gate", &input)?;
        // 0 keeps the number of rows.
        let shape = self.graph.list("gates/shape", &[0, tasks, count]);
        let logits = self.graph.node("Reshape", &[&logits, &shape], "gates/logits");
        let gates = self.graph.node_with("Softmax", &[&logits], &[int("axis", 2)], "gates");
        let mixtures = self.graph.node("MatMul", &[&gates, &given], "mixtures");
        let tower = |(label, task): (&str, i64)| {
            let name = tower_name(label);
            let place = self.graph.list(&format!("{name}/place"), &[task]);
            let gather = [int("axis", 1)];
            let mixture =
                self.graph.node_with("Gather", &[&mixtures, &place], &gather, &format!("{name}/row"));
            let mixture = self.graph.along("Squeeze", &mixture, 1, &format!("{name}/input"));
            self.mlp(&name, &mixture, (tower, hidden_layer), Activation::Identity)
        };
        labels.into_iter().zip(0..).map(tower).collect()
    }

    fn two_tower(&mut self, spec: &TwoTowerSpec) -> Result<Value, ExportError> {
        let (query, item) = (self.tower(spec, Tower::Query)?, self.tower(spec, Tower::Item)?);
        Ok(self.row_products(&query, &item, spec.temperature, "two_tower"))
    }

    /// The vectors of a tower, `[B, W]`.
    pub(super) fn tower(&mut self, spec: &TwoTowerSpec, tower: Tower) -> Result<Value, ExportError> {
        // The temperature and the item ids matter only in training.
        let TwoTowerSpec { query, item, dim: _, normalize, temperature: _, loss: _, item_id: _ } = spec;
        let spec = match tower {
            Tower::Query => query,
            Tower::Item => item,
        };
        let MlpSpec { features, embedding, hidden, hidden_layer, optimizer: _ } = spec;
        let name = tower.name();
        let input = self.input(&format!("{name}."), features, embedding)?;
        let vectors = self.mlp(name, &input, (hidden, hidden_layer), Activation::Identity)?;
        Ok(if *normalize { self.unit(&vectors, &format!("{name}/unit")) } else { vectors })
    }

    /// The embeddings and dense columns of a list of features, `[B, N]`, whose keys in the job begin with
    /// `model.PREFIX`.
    fn input(&mut self, prefix: &str, names: &[String], spec: &EmbeddingSpec) -> Result<Value, ExportError> {
        let features = self.features(&format!("model.{prefix}features"), names)?;
        let embeddings = self.embeddings(prefix, &features, spec)?;
        Ok(self.beside_numbers(&embeddings, &features))
    }

    /// Concatenates `embeddings` and the dense columns of `features`.
    fn beside_numbers(&mut self, embeddings: &[Value], features: &Features) -> Value {
        let numbers = self.numbers(features, "input/numbers");
        let parts: Vec<&Value> = embeddings.iter().chain(&numbers).collect();
        self.graph.beside(&parts, "input")
    }
}
