//! The layers of `crate::layers`, and the operations between them, as nodes of a graph.
//!
//! Shapes: `B` rows, `W` columns of an embedding, `V` vectors, `L` ids per row, `C` rows of a table.

use std::collections::BTreeMap;

use millstream_backend::{Activation, IdColumn};
use millstream_batch::BatchSchema;

use super::graph::{Graph, Value, float, int, ints};
use super::inputs::{Ids, Inputs, NumberScale, SeveralIds};
use super::proto::DataType;
use crate::export::{ExportError, Parameter, TrainedModel};
use crate::layers::normalization::EPSILON;
use crate::model::embeddings::{EmbeddingTable, EmbeddingTables, TableLookup};
use crate::model::features::{Features, IdFeatureColumn};
use crate::spec::{CrossSpec, EmbeddingSpec, HiddenLayerSpec, Normalization, Pooling};

/// A model's graph under construction.
pub(super) struct Net<'a> {
    pub(super) graph: Graph,
    trained: &'a TrainedModel,
    inputs: Inputs,
    /// The parameters that the graph does not use yet.
    unplaced: BTreeMap<&'a str, &'a Parameter>,
}

impl<'a> Net<'a> {
    /// A graph with the inputs of `trained`; `scales` are the scalings of its numbers.
    pub(super) fn new(
        trained: &'a TrainedModel,
        scales: &BTreeMap<String, NumberScale>,
    ) -> Result<Self, ExportError> {
        let parameters = trained.parameters.iter();
        let mut graph = Graph::default();
        let inputs = Inputs::new(&mut graph, &trained.snapshot.schema, scales, |feature| {
            trained.reads_feature(feature)
        })?;
        let unplaced = parameters.map(|parameter| (parameter.tensor.name.as_str(), parameter)).collect();
        Ok(Self { graph, trained, inputs, unplaced })
    }

    /// The finished graph; an error if it does not use every parameter.
    pub(super) fn finish(self) -> Result<Graph, ExportError> {
        match self.unplaced.keys().next() {
            Some(&name) => Err(ExportError::Unplaced { name: name.to_owned() }),
            None => Ok(self.graph),
        }
    }

    /// The schema of the training batches.
    pub(super) fn schema(&self) -> &'a BatchSchema {
        &self.trained.snapshot.schema
    }

    /// The name of each label; empty for an unnamed label.
    pub(super) fn labels(&self) -> Vec<&'a str> {
        self.trained.snapshot.schema.label_names()
    }

    /// The features in the list at `key`.
    pub(super) fn features(&self, key: &str, names: &[String]) -> Result<Features, ExportError> {
        Ok(Features::resolve(key, names, &self.trained.snapshot.schema)?)
    }

    /// The dense columns of `features`, `[B, D]`; `None` if there are none.
    pub(super) fn numbers(&mut self, features: &Features, name: &str) -> Option<Value> {
        self.inputs.numbers(&mut self.graph, &features.dense, name)
    }

    /// A linear model over `features`, `[B, 1]` or `[B, K]`: the weights of ids, dense columns times their
    /// weights, and a bias.
    pub(super) fn linear(&mut self, name: &str, features: &Features) -> Result<Value, ExportError> {
        let mut terms = Vec::new();
        for feature in &features.ids {
            let weights = self.column(&format!("{name}.ids.{}", feature.name))?;
            terms.push(self.look_up(&weights, feature, Pooling::Sum, &format!("{name}/{}", feature.name))?);
        }
        if let Some(numbers) = self.numbers(features, &format!("{name}/numbers")) {
            let weights = self.column(&format!("{name}.dense"))?;
            terms.push(self.graph.node("MatMul", &[&numbers, &weights], &format!("{name}/of_numbers")));
        }
        terms.push(self.parameter(&format!("{name}.bias"))?);
        Ok(self.graph.node("Sum", &terms.iter().collect::<Vec<_>>(), name))
    }

    /// The embedding of each id feature, `[B, W]`, from the tables named `PREFIXembedding.TABLE`.
    pub(super) fn embeddings(
        &mut self,
        prefix: &str,
        features: &Features,
        spec: &EmbeddingSpec,
    ) -> Result<Vec<Value>, ExportError> {
        // The parameters determine the dimensions; the other settings matter only in training.
        let EmbeddingSpec { dim: _, pooling: _, init: _, optimizer: _, tables: _ } = spec;
        let EmbeddingTables { tables, lookups } = EmbeddingTables::resolve(prefix, spec, &features.ids)?;
        let table = |table: &EmbeddingTable| self.parameter(&format!("{prefix}embedding.{}", table.name));
        let tables = tables.iter().map(table).collect::<Result<Vec<_>, _>>()?;
        let one = |(feature, lookup): (&IdFeatureColumn, TableLookup)| {
            let name = format!("{prefix}embedding/{}", feature.name);
            self.look_up(&tables[lookup.table], feature, lookup.pooling, &name)
        };
        features.ids.iter().zip(lookups).map(one).collect()
    }

    /// The same for tables without a prefix, where features after the first `pooled` have a vector for each id: returns
    /// the embeddings of the former, and the vectors of the latter, `[B, L, W]`, zeros where a row has no id.
    pub(super) fn embeddings_beside(
        &mut self,
        features: &Features,
        spec: &EmbeddingSpec,
        pooled: usize,
    ) -> Result<(Vec<Value>, Vec<Value>), ExportError> {
        let EmbeddingTables { tables, lookups } = EmbeddingTables::resolve("", spec, &features.ids)?;
        let table = |table: &EmbeddingTable| self.parameter(&format!("embedding.{}", table.name));
        let tables = tables.iter().map(table).collect::<Result<Vec<_>, _>>()?;
        let (mut embeddings, mut histories) = (Vec::new(), Vec::new());
        for (place, (feature, lookup)) in features.ids.iter().zip(lookups).enumerate() {
            let (table, name) = (&tables[lookup.table], format!("embedding/{}", feature.name));
            if place < pooled {
                embeddings.push(self.look_up(table, feature, lookup.pooling, &name)?);
            } else {
                let Some(Ids::Several(SeveralIds { ids, present, .. })) = self.inputs.ids(&feature.name)
                else {
                    return Err(ExportError::NoParameter { name });
                };
                let looked_up = self.graph.node("Gather", &[table, &ids], &format!("{name}/looked_up"));
                histories.push(self.graph.node("Mul", &[&looked_up, &present], &name));
            }
        }
        Ok((embeddings, histories))
    }

    /// The sum of `history`, `[B, L, W]`, weighted by the scores of an MLP over each of its vectors and `target`, `[B,
    /// W]`; `[B, W]`. See [`crate::layers::Attention`].
    pub(super) fn attend(
        &mut self,
        name: &str,
        history: &Value,
        target: &Value,
        hidden: (&[u32], &HiddenLayerSpec),
    ) -> Result<Value, ExportError> {
        let graph = &mut self.graph;
        let shape = graph.node("Shape", &[history], &format!("{name}/shape"));
        let target = graph.along("Unsqueeze", target, 1, &format!("{name}/target_of_row"));
        let target = graph.node("Expand", &[&target, &shape], &format!("{name}/target"));
        let difference = graph.node("Sub", &[history, &target], &format!("{name}/difference"));
        let product = graph.node("Mul", &[history, &target], &format!("{name}/product"));
        let parts = [history, &target, &difference, &product];
        let pairs = graph.node_with("Concat", &parts, &[int("axis", 2)], &format!("{name}/pairs"));
        // One row per value for the layers.
        let of_pairs = graph.node("Shape", &[&pairs], &format!("{name}/shape_of_pairs"));
        let last = graph.list(&format!("{name}/last"), &[2]);
        let columns = graph.node("Gather", &[&of_pairs, &last], &format!("{name}/columns"));
        let any = graph.list(&format!("{name}/any"), &[-1]);
        let of_values =
            graph.node_with("Concat", &[&any, &columns], &[int("axis", 0)], &format!("{name}/rows"));
        let rows = graph.node("Reshape", &[&pairs, &of_values], &format!("{name}/pairs_of_values"));
        let scores = self.mlp(name, &rows, hidden, Activation::Identity)?;
        let graph = &mut self.graph;
        let first = graph.list(&format!("{name}/first"), &[0, 1]);
        let first = graph.node("Gather", &[&shape, &first], &format!("{name}/rows_and_values"));
        let one = graph.list(&format!("{name}/one"), &[1]);
        let parts = [&first, &one];
        let shape = graph.node_with("Concat", &parts, &[int("axis", 0)], &format!("{name}/shape_of_scores"));
        let scores = graph.node("Reshape", &[&scores, &shape], &format!("{name}/scores"));
        let weighted = graph.node("Mul", &[history, &scores], &format!("{name}/weighted"));
        Ok(graph.sum(&weighted, false, name))
    }

    /// As many hidden layers as `hidden`, named `NAME.layer.0` and so on, then an output layer with
    /// activation `last`.
    pub(super) fn mlp(
        &mut self,
        name: &str,
        input: &Value,
        (hidden, hidden_layer): (&[u32], &HiddenLayerSpec),
        last: Activation,
    ) -> Result<Value, ExportError> {
        // Dropout is inactive in inference.
        let HiddenLayerSpec { dropout: _, normalization, init: _ } = hidden_layer;
        let mut value = input.clone();
        for number in 0..hidden.len() {
            let name = format!("{name}.layer.{number}");
            value = match normalization {
                None => self.layer(&name, &value, Activation::Relu)?,
                Some(kind) => {
                    let product = self.product(&name, &value)?;
                    self.normalize(&format!("{name}.normalization"), &product, *kind)?
                }
            };
        }
        self.layer(&format!("{name}.layer.{}", hidden.len()), &value, last)
    }

    /// `relu(scale * (input - mean) / sqrt(variance + epsilon) + shift)`, with the moments of each row or the
    /// running moments.
    fn normalize(&mut self, name: &str, input: &Value, kind: Normalization) -> Result<Value, ExportError> {
        let of_layer = |part: &str| format!("{name}.{part}");
        let (scale, shift) = (self.parameter(&of_layer("scale"))?, self.parameter(&of_layer("shift"))?);
        let epsilon = float("epsilon", EPSILON as f32);
        let normal = match kind {
            Normalization::Layer => {
                let attributes = [epsilon, int("axis", 1)];
                self.graph.node_with("LayerNormalization", &[input, &scale, &shift], &attributes, name)
            }
            Normalization::Batch => {
                let (mean, variance) =
                    (self.parameter(&of_layer("mean"))?, self.parameter(&of_layer("variance"))?);
                let inputs = [input, &scale, &shift, &mean, &variance];
                self.graph.node_with("BatchNormalization", &inputs, &[epsilon], name)
            }
        };
        Ok(self.graph.node("Relu", &[&normal], &format!("{name}/relu")))
    }

    /// Cross layers over `first`, `[B, N]`: `x' = x_0 * (W x + b) + x`, where `W` may be factored as `U V^T`.
    pub(super) fn cross(&mut self, first: &Value, spec: &CrossSpec) -> Result<Value, ExportError> {
        let CrossSpec { layers, rank } = spec;
        let mut value = first.clone();
        for number in 0..*layers {
            let name = format!("cross.layer.{number}");
            let inner = match rank {
                None => value.clone(),
                Some(_) => self.product(&format!("{name}.down"), &value)?,
            };
            let product = self.layer(&name, &inner, Activation::Identity)?;
            let product = self.graph.node("Mul", &[first, &product], &format!("{name}/first_grad"));
            value = self.graph.node("Add", &[&product, &value], &format!("{name}/output"));
        }
        Ok(value)
    }

    /// The sum of all pairwise dot products of `vectors`, each `[B, W]`; `[B, 1]`.
    ///
    /// `1/2 sum over k of ((sum of v_k)^2 - sum of v_k^2)`: Rendle, "Factorization Machines", 2010, lemma 3.1.
    pub(super) fn pairs_summed(&mut self, vectors: &[Value], name: &str) -> Value {
        let graph = &mut self.graph;
        let vectors: Vec<&Value> = vectors.iter().collect();
        let sum = graph.node("Sum", &vectors, &format!("{name}/sum"));
        let square_of_sum = graph.node("Mul", &[&sum, &sum], &format!("{name}/square_of_sum"));
        let mut squares = Vec::new();
        for vector in vectors {
            squares.push(graph.node("Mul", &[vector, vector], &format!("{name}/square")));
        }
        let sum_of_squares =
            graph.node("Sum", &squares.iter().collect::<Vec<_>>(), &format!("{name}/sum_of_squares"));
        let twice = graph.node("Sub", &[&square_of_sum, &sum_of_squares], &format!("{name}/twice"));
        let twice = graph.sum(&twice, true, &format!("{name}/twice_summed"));
        let half = graph.number(&format!("{name}/half"), 0.5);
        graph.node("Mul", &[&twice, &half], name)
    }

    /// All pairwise dot products of `vectors`, each `[B, W]`, in the order `(1, 0), (2, 0), (2, 1), ...`;
    /// `[B, V (V - 1) / 2]`.
    pub(super) fn pairs(&mut self, vectors: &[Value], name: &str) -> Value {
        let graph = &mut self.graph;
        let count = vectors.len() as i64;
        let mut rows = Vec::new();
        for vector in vectors {
            rows.push(graph.along("Unsqueeze", vector, 1, &format!("{name}/vector")));
        }
        // [B, V, W]
        let matrix = graph.beside(&rows.iter().collect::<Vec<_>>(), &format!("{name}/vectors"));
        let turned = [ints("perm", &[0, 2, 1])];
        let turned = graph.node_with("Transpose", &[&matrix], &turned, &format!("{name}/turned"));
        let products = graph.node("MatMul", &[&matrix, &turned], &format!("{name}/products"));
        // 0 keeps the number of rows.
        let shape = graph.list(&format!("{name}/shape"), &[0, count * count]);
        let products = graph.node("Reshape", &[&products, &shape], &format!("{name}/products_of_row"));
        let below: Vec<i64> = (0..count).flat_map(|i| (0..i).map(move |j| i * count + j)).collect();
        let below = graph.list(&format!("{name}/below_diagonal"), &below);
        graph.node_with("Gather", &[&products, &below], &[int("axis", 1)], name)
    }

    /// Rows scaled to length 1; see [`millstream_backend::ops::UnitForward`].
    pub(super) fn unit(&mut self, vectors: &Value, name: &str) -> Value {
        let graph = &mut self.graph;
        let square = product_of_rows(graph, vectors, vectors, &format!("{name}/square"));
        let least = graph.number(&format!("{name}/least"), 1e-12);
        let square = graph.node("Max", &[&square, &least], &format!("{name}/no_less"));
        let length = graph.node("Sqrt", &[&square], &format!("{name}/length"));
        graph.node("Div", &[vectors, &length], name)
    }

    /// The dot product of each row of `left` with that of `right`, divided by `divisor`; `[B, 1]`.
    pub(super) fn row_products(&mut self, left: &Value, right: &Value, divisor: f32, name: &str) -> Value {
        let graph = &mut self.graph;
        let product = product_of_rows(graph, left, right, &format!("{name}/product"));
        let divisor = graph.number(&format!("{name}/divisor"), divisor);
        graph.node("Div", &[&product, &divisor], name)
    }

    /// `input . weights`
    pub(super) fn product(&mut self, name: &str, input: &Value) -> Result<Value, ExportError> {
        let weights = self.parameter(&format!("{name}.weight"))?;
        Ok(self.graph.node("MatMul", &[input, &weights], name))
    }

    /// `activation(input . weights + bias)`
    fn layer(&mut self, name: &str, input: &Value, activation: Activation) -> Result<Value, ExportError> {
        let weights = self.parameter(&format!("{name}.weight"))?;
        let bias = self.parameter(&format!("{name}.bias"))?;
        let sums = self.graph.node("Gemm", &[input, &weights, &bias], name);
        Ok(match activation {
            Activation::Identity => sums,
            Activation::Relu => self.graph.node("Relu", &[&sums], &format!("{name}/relu")),
        })
    }

    /// Looks up the ids of a feature in `table`, `[C, W]`, and pools several ids per row; `[B, W]`.
    fn look_up(
        &mut self,
        table: &Value,
        feature: &IdFeatureColumn,
        pooling: Pooling,
        name: &str,
    ) -> Result<Value, ExportError> {
        let missing = || ExportError::NoParameter { name: name.to_owned() };
        match (feature.column, self.inputs.ids(&feature.name).ok_or_else(missing)?) {
            (IdColumn::Single(_), Ids::Single(ids)) => Ok(self.graph.node("Gather", &[table, &ids], name)),
            (IdColumn::Ragged(_), Ids::Several(ids)) => Ok(self.pool(table, &ids, pooling, name)),
            _ => Err(missing()),
        }
    }

    /// Looks up `ids` in `table` and pools over each row; `[B, W]`.
    fn pool(&mut self, table: &Value, ids: &SeveralIds, pooling: Pooling, name: &str) -> Value {
        if pooling == Pooling::Max {
            return self.take_maxima(table, ids, name);
        }
        let graph = &mut self.graph;
        let SeveralIds { ids, present, count, weights } = ids;
        let looked_up = graph.node("Gather", &[table, ids], &format!("{name}/looked_up"));
        let shares = weights.as_ref().map(|weights| shares(graph, weights, pooling, name));
        let kept =
            graph.node("Mul", &[&looked_up, shares.as_ref().unwrap_or(present)], &format!("{name}/kept"));
        let sum = graph.sum(&kept, false, &format!("{name}/sum"));
        match pooling {
            _ if weights.is_some() => sum,
            Pooling::Sum | Pooling::Max => sum,
            Pooling::Mean => graph.node("Div", &[&sum, count], name),
            Pooling::SqrtN => {
                let root = graph.node("Sqrt", &[count], &format!("{name}/root_of_count"));
                graph.node("Div", &[&sum, &root], name)
            }
        }
    }

    /// Looks up `ids` in `table` and takes the maximum over each row, in each column; `[B, W]`.
    fn take_maxima(&mut self, table: &Value, ids: &SeveralIds, name: &str) -> Value {
        let graph = &mut self.graph;
        let SeveralIds { ids, present, .. } = ids;
        let looked_up = graph.node("Gather", &[table, ids], &format!("{name}/looked_up"));
        let (zero, lowest) =
            (graph.number(&format!("{name}/zero"), 0.0), graph.number(&format!("{name}/lowest"), f32::MIN));
        let is_id = graph.cast(present, DataType::Bool, &format!("{name}/is_id"));
        let kept = graph.node("Where", &[&is_id, &looked_up, &lowest], &format!("{name}/kept"));
        // A vector more, `[B, 1, W]`: zeros in a row without ids. So the maximum is never over nothing.
        let ids_of_row = graph.sum(present, true, &format!("{name}/ids_of_row"));
        let has_ids = graph.cast(&ids_of_row, DataType::Bool, &format!("{name}/has_ids"));
        let least = graph.node("Where", &[&has_ids, &lowest, &zero], &format!("{name}/least"));
        let columns = graph.node_with("Shape", &[table], &[int("start", 1)], &format!("{name}/columns"));
        let least = graph.node("Expand", &[&least, &columns], &format!("{name}/least_of_row"));
        let all = graph.node_with("Concat", &[&kept, &least], &[int("axis", 1)], &format!("{name}/all"));
        graph.node_with("ReduceMax", &[&all], &[ints("axes", &[1]), int("keepdims", 0)], name)
    }

    /// A parameter in its shape.
    fn parameter(&mut self, name: &str) -> Result<Value, ExportError> {
        let Parameter { tensor, data } = self.take(name)?;
        Ok(self.graph.constant(name, &tensor.shape, DataType::Float, data.clone()))
    }

    /// A parameter as a matrix; a vector becomes one column.
    fn column(&mut self, name: &str) -> Result<Value, ExportError> {
        let Parameter { tensor, data } = self.take(name)?;
        let shape = if tensor.shape.len() == 1 { &[tensor.len(), 1] } else { tensor.shape.as_slice() };
        Ok(self.graph.constant(name, shape, DataType::Float, data.clone()))
    }

    fn take(&mut self, name: &str) -> Result<&'a Parameter, ExportError> {
        self.unplaced.remove(name).ok_or_else(|| ExportError::NoParameter { name: name.to_owned() })
    }
}

/// The factors of ids with these weights, `[B, L]`, in their rows; `[B, L, 1]`. See
/// [`millstream_backend::Pooling`].
fn shares(graph: &mut Graph, weights: &Value, pooling: Pooling, name: &str) -> Value {
    let share = match pooling {
        Pooling::Sum | Pooling::Max => weights.clone(),
        Pooling::Mean | Pooling::SqrtN => {
            let zero = graph.double(&format!("{name}/zero"), 0.0);
            let positive = graph.node("Max", &[weights, &zero], &format!("{name}/positive_weights"));
            let summed = match pooling {
                Pooling::SqrtN => {
                    graph.node("Mul", &[&positive, &positive], &format!("{name}/weights_squared"))
                }
                _ => positive.clone(),
            };
            let sum = graph.sum(&summed, true, &format!("{name}/sum_of_weights"));
            // Below the square of every positive float, so that only a sum of 0 is replaced; the factors are
            // then 0.
            let least = graph.double(&format!("{name}/least"), 1e-300);
            let sum = graph.node("Max", &[&sum, &least], &format!("{name}/no_less"));
            let divisor = match pooling {
                Pooling::SqrtN => graph.node("Sqrt", &[&sum], &format!("{name}/root_of_squares")),
                _ => sum,
            };
            graph.node("Div", &[&positive, &divisor], &format!("{name}/shares"))
        }
    };
    let share = graph.cast(&share, DataType::Float, &format!("{name}/shares_of_ids"));
    graph.along("Unsqueeze", &share, 2, &format!("{name}/shares_of_rows"))
}

/// The dot product of each row of `left` with that of `right`, `[B, 1]`.
fn product_of_rows(graph: &mut Graph, left: &Value, right: &Value, name: &str) -> Value {
    let products = graph.node("Mul", &[left, right], &format!("{name}/of_columns"));
    graph.sum(&products, true, name)
}
