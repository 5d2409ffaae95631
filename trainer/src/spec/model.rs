//! Models, as a job asks for them.

use serde::{Deserialize, Serialize};

use super::{
    EmbeddingDim, EmbeddingInit, EmbeddingSpec, LossSpec, OptimizerSpec, Pooling, Prediction, TableSpec,
    is_default,
};

/// A model, by kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ModelSpec {
    /// Logistic regression.
    Linear(LinearSpec),
    /// An MLP over embeddings and dense columns.
    Mlp(MlpSpec),
    /// Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016.
    WideDeep(WideDeepSpec),
    /// Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017.
    #[serde(rename = "deepfm")]
    DeepFm(DeepFmSpec),
    /// Wang et al., "DCN V2: Improved Deep & Cross Network", 2021.
    #[serde(rename = "dcn_v2")]
    Dcn(DcnSpec),
    /// Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019.
    Dlrm(DlrmSpec),
    /// Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", 2018.
    Mmoe(MmoeSpec),
    /// Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", 2019.
    TwoTower(TwoTowerSpec),
}

impl ModelSpec {
    /// Its kind, as a job file has it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Linear(_) => "linear",
            Self::Mlp(_) => "mlp",
            Self::WideDeep(_) => "wide_deep",
            Self::DeepFm(_) => "deepfm",
            Self::Dcn(_) => "dcn_v2",
            Self::Dlrm(_) => "dlrm",
            Self::Mmoe(_) => "mmoe",
            Self::TwoTower(_) => "two_tower",
        }
    }

    /// Each list of features, with the name of the part that reads it, or none where the whole model does.
    pub fn features(&self) -> Vec<(Option<&'static str>, &[String])> {
        match self {
            Self::Linear(spec) => vec![(None, &spec.features)],
            Self::Mlp(spec) => vec![(None, &spec.features)],
            Self::WideDeep(spec) => {
                vec![(Some("wide"), &spec.wide.features), (Some("deep"), &spec.deep.features)]
            }
            Self::DeepFm(spec) => vec![(None, &spec.features)],
            Self::Dcn(spec) => vec![(None, &spec.features)],
            Self::Dlrm(spec) => vec![(None, &spec.features)],
            Self::Mmoe(spec) => vec![(None, &spec.features)],
            Self::TwoTower(spec) => {
                vec![(Some("query"), &spec.query.features), (Some("item"), &spec.item.features)]
            }
        }
    }
}

/// One weight for each id and dense column, and a bias.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// Trains all of it.
    pub optimizer: OptimizerSpec,
}

/// Embeddings and dense columns side by side, then ReLU layers, then the logit, or one of each class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MlpSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// Of its features of ids.
    pub embedding: EmbeddingSpec,
    /// Widths of the hidden layers.
    pub hidden: Vec<u32>,
    /// What else they do.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// Trains the layers.
    pub optimizer: OptimizerSpec,
}

/// A factorization machine and an MLP over the same embeddings, their logits added.
///
/// The machine's first order takes every feature, its second order those of ids, and the MLP every feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeepFmSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// Of its features of ids.
    pub embedding: EmbeddingSpec,
    /// Widths of the MLP's hidden layers.
    pub hidden: Vec<u32>,
    /// What else they do.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// Trains the first order.
    pub linear_optimizer: OptimizerSpec,
    /// Trains the MLP.
    pub optimizer: OptimizerSpec,
}

/// Cross layers, and an MLP after or beside them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DcnSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// Of its features of ids.
    pub embedding: EmbeddingSpec,
    /// The cross layers.
    pub cross: CrossSpec,
    /// Where the MLP stands.
    pub structure: DcnStructure,
    /// Widths of the MLP's hidden layers.
    pub hidden: Vec<u32>,
    /// What else they do.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// Trains cross layers and MLP.
    pub optimizer: OptimizerSpec,
}

/// Cross layers: `x' = x0 * (W x + b) + x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrossSpec {
    /// How many.
    pub layers: u32,
    /// Of `W`, made of two factors; `None` for a whole `W`.
    pub rank: Option<u32>,
}

/// Figure 1 of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DcnStructure {
    /// The MLP takes what the cross layers give.
    Stacked,
    /// Both take the input; the logit is linear in what they give together.
    Parallel,
}

/// An MLP over dense columns, whose output meets the embeddings; and an MLP over what comes of that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DlrmSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// Of its features of ids.
    pub embedding: EmbeddingSpec,
    /// Widths of the hidden layers over dense columns; another of the embeddings' width follows.
    pub bottom: Vec<u32>,
    /// How vectors meet.
    pub interaction: DlrmInteraction,
    /// Widths of the hidden layers after that; the logit follows.
    pub top: Vec<u32>,
    /// What else the hidden layers of both do.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// Trains the layers.
    pub optimizer: OptimizerSpec,
}

/// How the vectors of DLRM meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DlrmInteraction {
    /// By the product of each pair.
    Dot,
    /// Side by side, through cross layers: DLRM-DCNv2 of MLPerf Training 3.0 and later.
    Cross(CrossSpec),
}

/// Experts over embeddings and dense columns; for each label a gate over the experts, and a tower over what it lets
/// through.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MmoeSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// Of its features of ids.
    pub embedding: EmbeddingSpec,
    /// How many experts.
    pub experts: u32,
    /// Widths of an expert's layers; the last is what it gives.
    pub expert: Vec<u32>,
    /// Widths of a tower's hidden layers; the logit follows.
    pub tower: Vec<u32>,
    /// What else hidden layers do: those of towers, and of experts all but the last.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// Trains the layers.
    pub optimizer: OptimizerSpec,
}

/// A tower for queries and one for items, whose vectors' product is the score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TwoTowerSpec {
    /// Embeddings and dense columns side by side, then ReLU layers, then the vector.
    pub query: MlpSpec,
    /// The same of items.
    pub item: MlpSpec,
    /// Width of both towers' vectors.
    pub dim: u32,
    /// Whether they are made of length 1.
    pub normalize: bool,
    /// What products are divided by.
    pub temperature: f32,
    /// The feature whose ids say which rows have the same item; without it no two have.
    pub item_id: Option<String>,
}

/// A linear model over wide features and an MLP over embedded deep features, trained jointly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WideDeepSpec {
    /// The linear part.
    pub wide: WideSpec,
    /// The deep part.
    pub deep: DeepSpec,
}

/// The linear part: one weight for each id and dense column of its features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WideSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// Trains all of its weights and the bias.
    pub optimizer: OptimizerSpec,
}

/// The deep part: embeddings and dense columns side by side, then ReLU layers, then the logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeepSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// Width of an embedding.
    pub embedding_dim: EmbeddingDim,
    /// Widths of the hidden layers.
    pub hidden: Vec<u32>,
    /// What else they do.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// How a multi-valued feature's embeddings become one.
    pub pooling: Pooling,
    /// What embeddings start from.
    #[serde(default, skip_serializing_if = "is_default")]
    pub embedding_init: EmbeddingInit,
    /// Trains the layers.
    pub optimizer: OptimizerSpec,
    /// Trains the embeddings; as the layers, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_optimizer: Option<OptimizerSpec>,
    /// Tables that are not as the others, or that several features share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub embeddings: Vec<TableSpec>,
}

impl DeepSpec {
    /// Its embeddings.
    pub fn embedding(&self) -> EmbeddingSpec {
        EmbeddingSpec {
            dim: self.embedding_dim,
            pooling: self.pooling,
            init: self.embedding_init,
            optimizer: self.embedding_optimizer.unwrap_or(self.optimizer),
            tables: self.embeddings.clone(),
        }
    }
}

/// What hidden layers do beside their product and ReLU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HiddenLayerSpec {
    /// The probability that an output is left out of a step.
    #[serde(default)]
    pub dropout: f32,
    /// What is done between product and ReLU.
    #[serde(default)]
    pub normalization: Option<Normalization>,
    /// What their weights start from.
    #[serde(default, skip_serializing_if = "is_default")]
    pub init: LayerInit,
}

/// What the weights of a layer of `N` inputs and `M` outputs start from, as Keras has it: "normal" is truncated at two
/// deviations, of a distribution that then has the deviation that is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerInit {
    /// Uniform within `sqrt(6 / (N + M))`: Glorot and Bengio, "Understanding the difficulty of training deep
    /// feedforward neural networks", 2010.
    #[default]
    GlorotUniform,
    /// Normal, of deviation `sqrt(2 / (N + M))`.
    GlorotNormal,
    /// Uniform within `sqrt(6 / N)`: He et al., "Delving Deep into Rectifiers", 2015.
    HeUniform,
    /// Normal, of deviation `sqrt(2 / N)`.
    HeNormal,
}

/// What numbers are brought to one scale over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalization {
    /// Each row over its columns: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    Layer,
    /// Each column over the rows of a step: Ioffe and Szegedy, "Batch Normalization", 2015.
    Batch,
}

impl ModelSpec {
    /// What it gives for a label whose loss is `loss`.
    pub fn prediction(&self, loss: &LossSpec) -> Prediction {
        if self.uses_in_batch_softmax() { Prediction::Rank } else { loss.prediction() }
    }

    /// Whether it predicts several labels.
    pub fn supports_multiple_labels(&self) -> bool {
        matches!(self, Self::Mmoe(_))
    }

    /// Whether it predicts one of several classes.
    pub fn supports_classes(&self) -> bool {
        !matches!(self, Self::DeepFm(_) | Self::TwoTower(_) | Self::Mmoe(_))
    }

    /// Tables of embeddings that are not as the others, or that several features share.
    pub fn tables(&self) -> Vec<&TableSpec> {
        match self {
            Self::Linear(_) => vec![],
            Self::Mlp(spec) => spec.embedding.tables.iter().collect(),
            Self::WideDeep(spec) => spec.deep.embeddings.iter().collect(),
            Self::DeepFm(spec) => spec.embedding.tables.iter().collect(),
            Self::Dcn(spec) => spec.embedding.tables.iter().collect(),
            Self::Dlrm(spec) => spec.embedding.tables.iter().collect(),
            Self::TwoTower(TwoTowerSpec { query, item, .. }) => {
                query.embedding.tables.iter().chain(&item.embedding.tables).collect()
            }
            Self::Mmoe(spec) => spec.embedding.tables.iter().collect(),
        }
    }

    /// All that it is trained by.
    pub(super) fn optimizers_mut(&mut self) -> Vec<&mut OptimizerSpec> {
        match self {
            Self::Linear(spec) => vec![&mut spec.optimizer],
            Self::Mlp(spec) => vec![&mut spec.embedding.optimizer, &mut spec.optimizer],
            Self::WideDeep(WideDeepSpec { wide, deep }) => {
                let layers = [&mut wide.optimizer, &mut deep.optimizer];
                layers.into_iter().chain(&mut deep.embedding_optimizer).collect()
            }
            Self::DeepFm(spec) => {
                vec![&mut spec.embedding.optimizer, &mut spec.linear_optimizer, &mut spec.optimizer]
            }
            Self::Dcn(spec) => vec![&mut spec.embedding.optimizer, &mut spec.optimizer],
            Self::Dlrm(spec) => vec![&mut spec.embedding.optimizer, &mut spec.optimizer],
            Self::TwoTower(TwoTowerSpec { query, item, .. }) => {
                let towers = [query, item].into_iter();
                towers.flat_map(|tower| [&mut tower.embedding.optimizer, &mut tower.optimizer]).collect()
            }
            Self::Mmoe(spec) => vec![&mut spec.embedding.optimizer, &mut spec.optimizer],
        }
    }

    /// What the hidden layers of each of its MLPs do.
    pub fn hidden_layers(&self) -> Vec<&HiddenLayerSpec> {
        match self {
            Self::Linear(_) => vec![],
            Self::Mlp(spec) => vec![&spec.hidden_layer],
            Self::WideDeep(spec) => vec![&spec.deep.hidden_layer],
            Self::DeepFm(spec) => vec![&spec.hidden_layer],
            Self::Dcn(spec) => vec![&spec.hidden_layer],
            Self::Dlrm(spec) => vec![&spec.hidden_layer],
            Self::TwoTower(spec) => vec![&spec.query.hidden_layer, &spec.item.hidden_layer],
            Self::Mmoe(spec) => vec![&spec.hidden_layer],
        }
    }

    /// Whether it brings columns to one scale over the rows of a step.
    pub fn uses_batch_normalization(&self) -> bool {
        self.hidden_layers().iter().any(|hidden| hidden.normalization == Some(Normalization::Batch))
    }

    /// Whether its loss is of choosing among what the other rows of a step have, in place of one of labels.
    pub fn uses_in_batch_softmax(&self) -> bool {
        matches!(self, Self::TwoTower(_))
    }
}
