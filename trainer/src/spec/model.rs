//! The settings of models.

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
    /// Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", 2018.
    Din(DinSpec),
    /// Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019.
    Dlrm(DlrmSpec),
    /// Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", 2018.
    Mmoe(MmoeSpec),
    /// Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", 2019.
    TwoTower(TwoTowerSpec),
}

impl ModelSpec {
    /// Its kind, as in a job file.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Linear(_) => "linear",
            Self::Mlp(_) => "mlp",
            Self::WideDeep(_) => "wide_deep",
            Self::DeepFm(_) => "deepfm",
            Self::Dcn(_) => "dcn_v2",
            Self::Din(_) => "din",
            Self::Dlrm(_) => "dlrm",
            Self::Mmoe(_) => "mmoe",
            Self::TwoTower(_) => "two_tower",
        }
    }

    /// Each list of features with the name of the part that reads it, or `None` for the whole model.
    pub fn features(&self) -> Vec<(Option<&'static str>, &[String])> {
        match self {
            Self::Linear(spec) => vec![(None, &spec.features)],
            Self::Mlp(spec) => vec![(None, &spec.features)],
            Self::WideDeep(spec) => {
                vec![(Some("wide"), &spec.wide.features), (Some("deep"), &spec.deep.features)]
            }
            Self::DeepFm(spec) => vec![(None, &spec.features)],
            Self::Dcn(spec) => vec![(None, &spec.features)],
            Self::Din(spec) => vec![(None, &spec.features)],
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
    /// The optimizer of all parameters.
    pub optimizer: OptimizerSpec,
}

/// Concatenated embeddings and dense columns, then ReLU layers, then the logit, or one per class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MlpSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// The embeddings of its id features.
    pub embedding: EmbeddingSpec,
    /// Widths of the hidden layers.
    pub hidden: Vec<u32>,
    /// The options of the hidden layers.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// The optimizer of the layers.
    pub optimizer: OptimizerSpec,
}

/// A factorization machine and an MLP over the same embeddings; their logits are added.
///
/// The first order of the machine and the MLP use every feature, the second order only id features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeepFmSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// The embeddings of its id features.
    pub embedding: EmbeddingSpec,
    /// Widths of the MLP's hidden layers.
    pub hidden: Vec<u32>,
    /// The options of the hidden layers.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// The optimizer of the first order.
    pub linear_optimizer: OptimizerSpec,
    /// The optimizer of the MLP.
    pub optimizer: OptimizerSpec,
}

/// Cross layers and an MLP, stacked or in parallel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DcnSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// The embeddings of its id features.
    pub embedding: EmbeddingSpec,
    /// The cross layers.
    pub cross: CrossSpec,
    /// The position of the MLP.
    pub structure: DcnStructure,
    /// Widths of the MLP's hidden layers.
    pub hidden: Vec<u32>,
    /// The options of the hidden layers.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// The optimizer of cross layers and MLP.
    pub optimizer: OptimizerSpec,
}

/// Cross layers: `x' = x0 * (W x + b) + x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrossSpec {
    /// Number of layers.
    pub layers: u32,
    /// The rank of `W`, factored into two matrices; `None` for a full `W`.
    pub rank: Option<u32>,
}

/// The two structures in figure 1 of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DcnStructure {
    /// The MLP follows the cross layers.
    Stacked,
    /// Both read the input; the logit is linear in their concatenated outputs.
    Parallel,
}

/// Attention over histories, then an MLP over its results, the other embeddings and the dense columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DinSpec {
    /// Names of its features, with the histories and targets of its sequences.
    pub features: Vec<String>,
    /// Histories with their targets; at least one.
    pub sequences: Vec<SequenceSpec>,
    /// The activation units, one for each sequence.
    pub attention: AttentionSpec,
    /// The embeddings of its id features. A history and its target share a table.
    pub embedding: EmbeddingSpec,
    /// Widths of the MLP's hidden layers.
    pub hidden: Vec<u32>,
    /// The options of the MLP's hidden layers; those of activation units have their initialization only.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// The optimizer of activation units and MLP.
    pub optimizer: OptimizerSpec,
}

/// A history with its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceSpec {
    /// The name of a multi-valued id feature.
    pub history: String,
    /// The name of a single-valued one with the same ids.
    pub target: String,
}

/// The MLP that scores a value of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// Widths of its hidden layers.
    pub hidden: Vec<u32>,
}

/// An MLP over dense columns, whose output interacts with the embeddings, and an MLP over the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DlrmSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// The embeddings of its id features.
    pub embedding: EmbeddingSpec,
    /// Widths of the hidden layers over dense columns; a further layer with the embeddings' width follows.
    pub bottom: Vec<u32>,
    /// The interaction of the vectors.
    pub interaction: DlrmInteraction,
    /// Widths of the hidden layers after the interaction; the logit follows.
    pub top: Vec<u32>,
    /// The options of all hidden layers.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// The optimizer of the layers.
    pub optimizer: OptimizerSpec,
}

/// The interaction of the vectors in DLRM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DlrmInteraction {
    /// Pairwise dot products.
    Dot,
    /// Concatenation and cross layers: DLRM-DCNv2 of MLPerf Training 3.0 and later.
    Cross(CrossSpec),
}

/// Experts over embeddings and dense columns, and for each label a gate over the experts and a tower over
/// their mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MmoeSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// The embeddings of its id features.
    pub embedding: EmbeddingSpec,
    /// Number of experts.
    pub experts: u32,
    /// Widths of an expert's layers; the last one is the width of its output.
    pub expert: Vec<u32>,
    /// Widths of a tower's hidden layers; the logit follows.
    pub tower: Vec<u32>,
    /// The options of hidden layers: those of towers, and those of experts except the last.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// The optimizer of the layers.
    pub optimizer: OptimizerSpec,
}

/// A tower for queries and one for items; the score is the dot product of their vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TwoTowerSpec {
    /// The query tower: concatenated embeddings and dense columns, then ReLU layers, then the vector.
    pub query: MlpSpec,
    /// The item tower, likewise.
    pub item: MlpSpec,
    /// Width of both towers' vectors.
    pub dim: u32,
    /// Whether vectors are scaled to length 1.
    pub normalize: bool,
    /// The divisor of dot products.
    pub temperature: f32,
    /// The loss of choosing the row's item among those of the batch.
    #[serde(default, skip_serializing_if = "is_default")]
    pub loss: ChoiceLoss,
    /// The feature whose ids identify items, so that rows with the same item are recognized; without it, all
    /// items are assumed to be distinct.
    pub item_id: Option<String>,
}

/// The loss of choosing a row's item among those of its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChoiceLoss {
    /// The cross-entropy of the softmax over the items: Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large
    /// Corpus Item Recommendations", 2019, equations 3 to 5.
    #[default]
    Softmax,
    /// The mean logistic loss of the differences between the scores of other items and of the row's own: Rendle et al.,
    /// "BPR: Bayesian Personalized Ranking from Implicit Feedback", 2009, section 4.1.
    Bpr,
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
    /// The optimizer of all weights and the bias.
    pub optimizer: OptimizerSpec,
}

/// The deep part: concatenated embeddings and dense columns, then ReLU layers, then the logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeepSpec {
    /// Names of its features.
    pub features: Vec<String>,
    /// Width of an embedding.
    pub embedding_dim: EmbeddingDim,
    /// Widths of the hidden layers.
    pub hidden: Vec<u32>,
    /// The options of the hidden layers.
    #[serde(default)]
    pub hidden_layer: HiddenLayerSpec,
    /// How a multi-valued feature's embeddings are combined.
    pub pooling: Pooling,
    /// The initialization of embeddings.
    #[serde(default, skip_serializing_if = "is_default")]
    pub embedding_init: EmbeddingInit,
    /// The optimizer of the layers.
    pub optimizer: OptimizerSpec,
    /// The optimizer of the embeddings; by default that of the layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_optimizer: Option<OptimizerSpec>,
    /// Tables with different settings, or shared by several features.
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

/// The options of hidden layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HiddenLayerSpec {
    /// The dropout probability.
    #[serde(default)]
    pub dropout: f32,
    /// The normalization between product and ReLU.
    #[serde(default)]
    pub normalization: Option<Normalization>,
    /// The initialization of their weights.
    #[serde(default, skip_serializing_if = "is_default")]
    pub init: LayerInit,
}

/// The initialization of the weights of a layer with `N` inputs and `M` outputs, as in Keras. Normal
/// distributions are truncated at two standard deviations and rescaled, so that they have the stated
/// deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerInit {
    /// Uniform within `sqrt(6 / (N + M))`: Glorot and Bengio, "Understanding the difficulty of training deep
    /// feedforward neural networks", 2010.
    #[default]
    GlorotUniform,
    /// Normal with standard deviation `sqrt(2 / (N + M))`.
    GlorotNormal,
    /// Uniform within `sqrt(6 / N)`: He et al., "Delving Deep into Rectifiers", 2015.
    HeUniform,
    /// Normal with standard deviation `sqrt(2 / N)`.
    HeNormal,
}

/// A normalization of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalization {
    /// Over the columns of each row: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    Layer,
    /// Over the rows of a step for each column: Ioffe and Szegedy, "Batch Normalization", 2015.
    Batch,
}

impl ModelSpec {
    /// The meaning of its score for a label with this `loss`.
    pub fn prediction(&self, loss: &LossSpec) -> Prediction {
        if self.uses_in_batch_loss() { Prediction::Rank } else { loss.prediction() }
    }

    /// Whether it predicts several labels.
    pub fn supports_multiple_labels(&self) -> bool {
        matches!(self, Self::Mmoe(_) | Self::Din(_))
    }

    /// Whether it predicts one of several classes.
    pub fn supports_classes(&self) -> bool {
        !matches!(self, Self::DeepFm(_) | Self::TwoTower(_) | Self::Mmoe(_))
    }

    /// The features of each of its embeddings, numeric ones included, and their settings.
    pub fn embeddings(&self) -> Vec<(&[String], EmbeddingSpec)> {
        match self {
            Self::Linear(_) => vec![],
            Self::Mlp(spec) => vec![(&spec.features, spec.embedding.clone())],
            Self::WideDeep(spec) => vec![(&spec.deep.features, spec.deep.embedding())],
            Self::DeepFm(spec) => vec![(&spec.features, spec.embedding.clone())],
            Self::Dcn(spec) => vec![(&spec.features, spec.embedding.clone())],
            Self::Din(spec) => vec![(&spec.features, spec.embedding.clone())],
            Self::Dlrm(spec) => vec![(&spec.features, spec.embedding.clone())],
            Self::TwoTower(TwoTowerSpec { query, item, .. }) => {
                [query, item].map(|tower| (&*tower.features, tower.embedding.clone())).into()
            }
            Self::Mmoe(spec) => vec![(&spec.features, spec.embedding.clone())],
        }
    }

    /// Embedding tables with different settings, or shared by several features.
    pub fn tables(&self) -> Vec<&TableSpec> {
        match self {
            Self::Linear(_) => vec![],
            Self::Mlp(spec) => spec.embedding.tables.iter().collect(),
            Self::WideDeep(spec) => spec.deep.embeddings.iter().collect(),
            Self::DeepFm(spec) => spec.embedding.tables.iter().collect(),
            Self::Dcn(spec) => spec.embedding.tables.iter().collect(),
            Self::Din(spec) => spec.embedding.tables.iter().collect(),
            Self::Dlrm(spec) => spec.embedding.tables.iter().collect(),
            Self::TwoTower(TwoTowerSpec { query, item, .. }) => {
                query.embedding.tables.iter().chain(&item.embedding.tables).collect()
            }
            Self::Mmoe(spec) => spec.embedding.tables.iter().collect(),
        }
    }

    /// All of its optimizers.
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
            Self::Din(spec) => vec![&mut spec.embedding.optimizer, &mut spec.optimizer],
            Self::Dlrm(spec) => vec![&mut spec.embedding.optimizer, &mut spec.optimizer],
            Self::TwoTower(TwoTowerSpec { query, item, .. }) => {
                let towers = [query, item].into_iter();
                towers.flat_map(|tower| [&mut tower.embedding.optimizer, &mut tower.optimizer]).collect()
            }
            Self::Mmoe(spec) => vec![&mut spec.embedding.optimizer, &mut spec.optimizer],
        }
    }

    /// The options of the hidden layers of each of its MLPs.
    pub fn hidden_layers(&self) -> Vec<&HiddenLayerSpec> {
        match self {
            Self::Linear(_) => vec![],
            Self::Mlp(spec) => vec![&spec.hidden_layer],
            Self::WideDeep(spec) => vec![&spec.deep.hidden_layer],
            Self::DeepFm(spec) => vec![&spec.hidden_layer],
            Self::Dcn(spec) => vec![&spec.hidden_layer],
            Self::Din(spec) => vec![&spec.hidden_layer],
            Self::Dlrm(spec) => vec![&spec.hidden_layer],
            Self::TwoTower(spec) => vec![&spec.query.hidden_layer, &spec.item.hidden_layer],
            Self::Mmoe(spec) => vec![&spec.hidden_layer],
        }
    }

    /// Whether it uses batch normalization.
    pub fn uses_batch_normalization(&self) -> bool {
        self.hidden_layers().iter().any(|hidden| hidden.normalization == Some(Normalization::Batch))
    }

    /// Whether its loss is one of choosing among the items of a batch, instead of losses of labels.
    pub fn uses_in_batch_loss(&self) -> bool {
        matches!(self, Self::TwoTower(_))
    }
}
