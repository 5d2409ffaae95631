//! Two-tower model: one tower computes a vector of a query, the other of an item; the score is their dot
//! product.
//!
//! ```text
//! query features --- embeddings | dense --- ReLU layers --- W, of length 1 -- q
//!                                                                              . --- q . v / temperature
//! item features ---- embeddings | dense --- ReLU layers --- W, of length 1 -- v
//! ```
//!
//! Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys 2019. A training
//! row is a query and the item that was chosen. Its loss is the cross-entropy of choosing that item among the items of
//! all rows of the batch (equations 3 to 5), or that of BPR ([`Choice::Pairwise`]): the other rows are its negatives. So
//! the rows of a batch depend on each other, and micro-batches are not possible. The towers interact only in the score,
//! so each is useful alone: item vectors fill a nearest-neighbour index, and query vectors search it.
//!
//! If several workers have parts of a batch, each has the item vectors of all. Its queries choose among them, which costs it
//! its share of all products. The gradients with respect to the items are summed over the workers. If a worker has more rows
//! than a pass, the vectors of its rows are kept, and so is their gradient ([`Kept`]).
//!
//! The towers' outputs and everything after them are fp32.

use millstream_backend::{Backend, Choice, Device, IdColumn, InBatchInput, ops};

use crate::exchange::Ranks;
use crate::gradients::GradientVisitor;
use crate::model::builder::Builder;
use crate::model::compute::{Compute, Objective};
use crate::model::deep::Deep;
use crate::model::error::ModelError;
use crate::model::features::Features;
use crate::parameter::parameters;
use crate::pass::Pass;
use crate::spec::{ChoiceLoss, MlpSpec, TwoTowerSpec};

/// The model. `W` is the width of both towers' vectors.
pub(super) struct TwoTower<D: Device> {
    query: Tower<D>,
    item: Tower<D>,
    temperature: f64,
    choice: Choice,
    /// The single-valued id feature that identifies items.
    item_id: Option<usize>,
    /// `[B, 1]`
    logits: D::Matrix,
    /// The workspace of the loss.
    work: D::Matrix,
    all: Option<AllItems<D>>,
    kept: Option<Kept<D>>,
}

/// The items of all workers.
struct AllItems<D: Device> {
    /// Their vectors, and the gradient with respect to these, `[global B, W]`.
    vectors: D::Matrix,
    vectors_grad: D::Matrix,
}

/// The queries of all rows of this worker, if it may need several passes; [`AllItems`] has their items.
struct Kept<D: Device> {
    /// Their vectors, `[B, W]`.
    queries: D::Matrix,
    /// The gradient with respect to `queries`, `[B, W]`.
    queries_grad: D::Matrix,
}

/// A tower.
struct Tower<D: Device> {
    /// Its vectors, `[B, W]`, before normalization.
    deep: Deep<D>,
    /// The normalized vectors, `[B, W]`; `None` without normalization.
    unit: Option<D::Matrix>,
    /// The gradient with respect to its vectors, `[B, W]`.
    vectors_grad: D::Matrix,
}

impl<D: Device> TwoTower<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &TwoTowerSpec) -> Result<Self, ModelError> {
        let TwoTowerSpec { query, item, dim, normalize, temperature, loss, item_id } = spec;
        if *dim == 0 {
            let expected = "a vector has at least one component";
            return Err(ModelError::Empty { key: "model.dim".to_owned(), expected });
        }
        if !(*temperature > 0.0 && temperature.is_finite()) {
            let expected = "the temperature must be above 0";
            return Err(ModelError::Empty { key: "model.temperature".to_owned(), expected });
        }
        let (dim, rows) = (*dim as usize, builder.buffers().rows);
        let vectors = (dim, *normalize);
        let all_rows = builder.global_rows().unwrap_or(rows);
        let kept_rows = builder.rows_of_passes();
        let (vectors_of_all, grad_of_all) = (builder.global_matrix(dim), builder.global_matrix(dim));
        Ok(Self {
            query: Tower::new(builder, "query", query, vectors)?,
            item: Tower::new(builder, "item", item, vectors)?,
            temperature: f64::from(*temperature),
            choice: match loss {
                ChoiceLoss::Softmax => Choice::Softmax,
                ChoiceLoss::Bpr => Choice::Pairwise,
            },
            item_id: item_id.as_ref().map(|name| Self::find_id(builder, name)).transpose()?,
            logits: builder.logits(),
            work: builder.device.in_batch_work(kept_rows.unwrap_or(rows), all_rows, dim),
            all: vectors_of_all
                .zip(grad_of_all)
                .map(|(vectors, vectors_grad)| AllItems { vectors, vectors_grad }),
            kept: kept_rows.map(|rows| {
                let [queries, queries_grad] = [rows; 2].map(|rows| builder.device.matrix(rows, dim));
                Kept { queries, queries_grad }
            }),
        })
    }

    fn find_id(builder: &Builder<'_, D>, name: &str) -> Result<usize, ModelError> {
        let key = "model.item_id";
        let Features { ids, .. } = builder.features(key, &[name.to_owned()])?;
        match ids.first().map(|feature| feature.column) {
            Some(IdColumn::Single(place)) => Ok(place),
            _ => Err(ModelError::NotOneId { key: key.to_owned(), feature: name.to_owned() }),
        }
    }
}

impl<D: Device> Tower<D> {
    /// Embeddings `NAME.embedding.FEATURE` and layers `NAME.layer.0` and so on.
    fn new(
        builder: &mut Builder<'_, D>,
        name: &str,
        spec: &MlpSpec,
        (dim, normalize): (usize, bool),
    ) -> Result<Self, ModelError> {
        let key = |key| format!("model.{name}.{key}");
        let features = builder.some_features(&key("features"), &spec.features)?;
        let embedding = builder.embedding(&format!("{name}."), &spec.embedding, features)?;
        let optimizer = builder.optimizer(&key("optimizer"), &spec.optimizer)?;
        let hidden = (&*key("hidden"), spec.hidden.as_slice(), &spec.hidden_layer);
        Ok(Self {
            deep: Deep::new(builder, name, embedding, hidden, dim, optimizer)?,
            unit: normalize.then(|| builder.buffers().fp32(builder.device, dim)),
            vectors_grad: builder.buffers().fp32(builder.device, dim),
        })
    }

    /// The vectors of the last forward pass, `[B, W]`.
    fn vectors(&self) -> &D::Matrix {
        self.unit.as_ref().unwrap_or(self.deep.logits())
    }
}

impl<B: Backend> Tower<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>) {
        self.deep.forward(backend, batch, pass);
        if let Some(unit) = &mut self.unit {
            backend.run(ops::UnitForward { rows: pass.len(), input: self.deep.logits(), output: unit });
        }
    }

    /// The backward pass from the gradient with respect to the vectors.
    fn backward(&mut self, backend: &B, pass: &Pass<'_, B>) {
        if self.unit.is_some() {
            backend.run(ops::UnitBackward {
                rows: pass.len(),
                input: self.deep.logits(),
                grad: &mut self.vectors_grad,
            });
        }
        self.deep.backward(backend, pass, &mut self.vectors_grad);
        self.deep.keep(backend, pass);
    }
}

impl<B: Backend> AllItems<B> {
    /// Keeps the vectors `items` of the pass's rows.
    fn keep(&mut self, backend: &B, (pass, ranks): (&Pass<'_, B>, &Ranks<'_, B>), items: &B::Matrix) {
        if pass.is_first() {
            backend.run(ops::Clear { rows: ranks.rows, matrix: &mut self.vectors });
        }
        let rows = pass.global_rows();
        backend.run(ops::CopyRows {
            rows: rows.len(),
            from: (items, 0),
            to: (&mut self.vectors, rows.start),
        });
    }

    /// Computes the loss of the rows of `input`. Their choices are the items that all workers have kept; `input.items` is ignored.
    fn loss(
        &mut self,
        backend: &B,
        ranks: &Ranks<'_, B>,
        input: InBatchInput<'_, B>,
        (work, query_grad, sums): (&mut B::Matrix, &mut B::Matrix, &mut B::Matrix),
    ) {
        let Self { vectors, vectors_grad } = self;
        ranks.sum(backend, [(ranks.rows, &mut *vectors)]);
        // The batch of all rows has the ids of items alone.
        let item_id = input.item_id.map(|_| 0);
        let input = InBatchInput { items: vectors, item_id, ..input };
        backend.run(ops::InBatchLoss { input: &input, work, query_grad, item_grad: vectors_grad, sums });
        ranks.sum(backend, [(ranks.rows, &mut *vectors_grad)]);
    }

    /// Writes the gradient with respect to the items of the pass's rows.
    fn take_gradient(&self, backend: &B, pass: &Pass<'_, B>, item_grad: &mut B::Matrix) {
        let rows = pass.global_rows();
        backend.run(ops::CopyRows {
            rows: rows.len(),
            from: (&self.vectors_grad, rows.start),
            to: (item_grad, 0),
        });
    }
}

impl<B: Backend> Compute<B> for TwoTower<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>) {
        self.query.forward(backend, batch, pass);
        self.item.forward(backend, batch, pass);
        let (queries, items) = (self.query.vectors(), self.item.vectors());
        backend.run(ops::RowProducts {
            rows: pass.len(),
            factor: 1.0 / self.temperature,
            left: queries,
            right: items,
            out: &mut self.logits,
        });
    }

    fn logits(&self) -> &B::Matrix {
        &self.logits
    }

    /// The in-batch loss of the towers' vectors.
    fn loss(
        &mut self,
        backend: &B,
        objective: &Objective<'_, B>,
        batch: &B::Batch,
        pass: &Pass<'_, B>,
        _logits_grad: &mut B::Matrix,
        sums: &mut B::Matrix,
    ) {
        let Self { query, item, temperature, choice, item_id, work, all, .. } = self;
        let (queries, items) = (query.unit.as_ref(), item.unit.as_ref());
        let (queries, items) = (queries.unwrap_or(query.deep.logits()), items.unwrap_or(item.deep.logits()));
        let (query_grad, item_grad) = (&mut query.vectors_grad, &mut item.vectors_grad);
        let rows = pass.global_rows();
        let input = InBatchInput {
            batch: objective.compared.unwrap_or(batch),
            rows,
            queries,
            items,
            temperature: *temperature,
            choice: *choice,
            item_id: *item_id,
        };
        let (Some(all), Some(ranks), Some(_)) = (all, &pass.ranks, objective.compared) else {
            backend.run(ops::InBatchLoss { input: &input, work, query_grad, item_grad, sums });
            return;
        };
        all.keep(backend, (pass, ranks), items);
        all.loss(backend, ranks, input, (work, query_grad, sums));
        all.take_gradient(backend, pass, item_grad);
    }

    fn keep_compared(&mut self, backend: &B, pass: &Pass<'_, B>) {
        let Self { query, item, all, kept, .. } = self;
        let (Some(all), Some(kept), Some(ranks)) = (all, kept, &pass.ranks) else { return };
        all.keep(backend, (pass, ranks), item.vectors());
        backend.run(ops::CopyRows {
            rows: pass.len(),
            from: (query.vectors(), 0),
            to: (&mut kept.queries, pass.rows.start),
        });
    }

    fn loss_of_kept(
        &mut self,
        backend: &B,
        objective: &Objective<'_, B>,
        pass: &Pass<'_, B>,
        sums: &mut B::Matrix,
    ) {
        let Self { item, temperature, choice, item_id, work, all, kept, .. } = self;
        let (Some(all), Some(Kept { queries, queries_grad })) = (all, kept) else { return };
        let (Some(ranks), Some(batch)) = (&pass.ranks, objective.compared) else { return };
        let input = InBatchInput {
            batch,
            rows: pass.global_rows(),
            queries,
            items: item.vectors(),
            temperature: *temperature,
            choice: *choice,
            item_id: *item_id,
        };
        all.loss(backend, ranks, input, (work, queries_grad, sums));
    }

    fn take_gradient(&mut self, backend: &B, pass: &Pass<'_, B>) {
        let Self { query, item, all, kept, .. } = self;
        let (Some(all), Some(kept)) = (all, kept) else { return };
        backend.run(ops::CopyRows {
            rows: pass.len(),
            from: (&kept.queries_grad, pass.rows.start),
            to: (&mut query.vectors_grad, 0),
        });
        all.take_gradient(backend, pass, &mut item.vectors_grad);
    }

    fn scale(&mut self, backend: &B, pass: &Pass<'_, B>, factor: &B::Matrix, _logits_grad: &mut B::Matrix) {
        for tower in [&mut self.query, &mut self.item] {
            backend.run(ops::Multiply { rows: pass.len(), factor, matrix: &mut tower.vectors_grad });
        }
    }

    fn backward(&mut self, backend: &B, _batch: &B::Batch, pass: &Pass<'_, B>, _logits_grad: &mut B::Matrix) {
        self.query.backward(backend, pass);
        self.item.backward(backend, pass);
    }

    fn visit_gradients(&mut self, _logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        self.query.deep.visit_gradients(visitor);
        self.item.deep.visit_gradients(visitor);
    }
}

parameters!(TwoTower: query.deep, item.deep);
