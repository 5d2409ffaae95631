//! Losses that compare the rows of a batch of which several workers have parts.
//!
//! Each worker gets the labels and weights of all rows, and the ids that the loss compares. The in-batch loss of two towers also
//! needs the vectors of all items, which that model gathers (`two_tower.rs`). For a listwise or pairwise loss, the workers gather
//! the logits of all rows. Each worker computes the loss of the global batch and keeps the gradients of its own rows. The
//! computation is replicated, not divided.

use std::sync::Arc;

use millstream_backend::{Backend, Device, Task, ops};
use millstream_batch::{BatchBuffer, BatchHeader, BatchRef, BatchSchema, SlotLayout};

use super::builder::Builder;
use super::{ModelError, StepError};
use crate::exchange::scored_rows::RowFormat;
use crate::exchange::{Exchange, Ranks};
use crate::pass::Pass;
use crate::spec::{ModelSpec, TaskSpec};

/// What the loss compares, of all rows of a global batch.
pub(super) struct ComparedRows<D: Device> {
    /// What a worker sends of a row.
    format: RowFormat,
    schema: BatchSchema,
    /// Labels, weights and ids.
    pub(super) batch: D::Batch,
    lists: Option<Lists<D>>,
}

/// The loss of lists.
struct Lists<D: Device> {
    task: Task,
    /// `[global B, 1]` each.
    logits: D::Matrix,
    logits_grad: D::Matrix,
    /// The sums of the loss, which are the same on all workers, `[1, 2]`: one worker contributes them.
    sums: D::Matrix,
}

impl<D: Device> ComparedRows<D> {
    /// For global batches of `schema`; `None` if the loss does not compare rows, or one worker has them all.
    ///
    /// # Errors
    /// When the batches lack the feature that identifies lists.
    pub(super) fn new(
        builder: &mut Builder<'_, D>,
        spec: &ModelSpec,
        tasks: &[TaskSpec],
        schema: &BatchSchema,
    ) -> Result<Option<Self>, ModelError> {
        if builder.global_rows().is_none() {
            return Ok(None);
        }
        let of_lists = tasks.iter().find_map(|task| Some((task, task.loss.group()?)));
        let feature = match (spec, of_lists) {
            (ModelSpec::TwoTower(spec), _) => spec.item_id.as_deref(),
            (_, Some((_, group))) => Some(group),
            (_, None) => return Ok(None),
        };
        let group = feature.and_then(|name| schema.ids.iter().position(|feature| feature.name == name));
        let schema = BatchSchema {
            dense: Vec::new(),
            ids: group.map(|feature| schema.ids[feature].clone()).into_iter().collect(),
            ragged: Vec::new(),
            position_bytes: 0,
            ..schema.clone()
        };
        let lists = match of_lists {
            Some((task, _)) => Lists::new(builder, task.as_task(0, &schema)?),
            None => None,
        };
        let labels = schema.label_count();
        Ok(Some(Self {
            format: RowFormat { scores: 0, labels, weighted: schema.weighted, group },
            batch: builder.device.batch(&schema),
            lists,
            schema,
        }))
    }

    /// Whether the loss is one of lists.
    pub(super) fn has_lists(&self) -> bool {
        self.lists.is_some()
    }
}

impl<D: Device> Lists<D> {
    fn new(builder: &mut Builder<'_, D>, task: Task) -> Option<Self> {
        let (logits, logits_grad) = (builder.global_matrix(1)?, builder.global_matrix(1)?);
        Some(Self { task, logits, logits_grad, sums: builder.device.matrix(1, 2) })
    }
}

impl<B: Backend> ComparedRows<B> {
    /// Gets the rows of all workers; `part` has this one's.
    ///
    /// # Errors
    /// When the exchange fails.
    pub(super) fn gather(
        &mut self,
        backend: &B,
        exchange: &Exchange<B::Scalar>,
        part: BatchRef<'_>,
    ) -> Result<(), StepError> {
        let parts = exchange.gather(&self.format.encode(&[], part))?;
        let all = self.format.join(&parts).ok_or(StepError::OtherModel)?;
        let all = all.of_label(0);
        let header = part.header();
        let rows = header.global_rows;
        if all.labels.len() != rows as usize || rows > self.schema.rows {
            return Err(StepError::OtherModel);
        }
        let layout = SlotLayout::of(&self.schema).expect("a smaller layout than the batch's");
        let mut batch = BatchBuffer::new(Arc::new(layout));
        let mut slot = batch.as_mut();
        slot.set_header(&BatchHeader { rows, first_row: 0, most_rows: rows, ..header });
        let sections = slot.sections();
        sections.labels[..all.labels.len()].copy_from_slice(all.labels);
        if let (Some(to), Some(weights)) = (sections.weights, all.weights) {
            to[..weights.len()].copy_from_slice(weights);
        }
        if let Some(ids) = all.groups {
            sections.ids[..ids.len()].copy_from_slice(ids);
        }
        backend.upload(batch.as_ref(), &mut self.batch)?;
        Ok(())
    }

    /// Keeps the logits of the rows of `pass`.
    ///
    /// # Panics
    /// If the loss is not one of lists.
    pub(super) fn keep_logits(
        &mut self,
        backend: &B,
        (pass, ranks): (&Pass<'_, B>, &Ranks<'_, B>),
        own_logits: &B::Matrix,
    ) {
        let Lists { logits, .. } = self.lists.as_mut().expect("a loss of lists");
        if pass.is_first() {
            backend.run(ops::Clear { rows: ranks.rows, matrix: logits });
        }
        let own = pass.global_rows();
        backend.run(ops::CopyRows { rows: own.len(), from: (own_logits, 0), to: (logits, own.start) });
    }

    /// The loss of the lists of all rows, of which all workers have kept the logits. The first worker adds to `sums`.
    ///
    /// # Panics
    /// If the loss is not one of lists.
    pub(super) fn loss_of_lists(&mut self, backend: &B, ranks: &Ranks<'_, B>, sums: &mut B::Matrix) {
        let Lists { task, logits, logits_grad, sums: ignored } =
            self.lists.as_mut().expect("a loss of lists");
        ranks.sum(backend, [(ranks.rows, &mut *logits)]);
        backend.run(ops::TaskLoss {
            total: None,
            task,
            batch: &self.batch,
            rows: 0..ranks.rows,
            logits,
            logits_grad,
            sums: if ranks.rank() == 0 { sums } else { ignored },
        });
    }

    /// Writes the gradient of the rows of `pass`.
    ///
    /// # Panics
    /// If the loss is not one of lists.
    pub(super) fn take_gradient(&self, backend: &B, pass: &Pass<'_, B>, own_grad: &mut B::Matrix) {
        let Lists { logits_grad, .. } = self.lists.as_ref().expect("a loss of lists");
        let own = pass.global_rows();
        backend.run(ops::CopyRows { rows: own.len(), from: (logits_grad, own.start), to: (own_grad, 0) });
    }
}
