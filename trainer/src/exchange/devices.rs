//! The exchange over the workers' devices, which are connected to each other.
//!
//! The devices add the gradients of layers, and the losses, in place; gradients that travel in 16 bits are rounded into separate
//! matrices. Of tables, each device packs the rows that its part touches, with their summed gradients, gets those of the others,
//! and merges all of them. The host exchanges the numbers of rows alone: as many messages as otherwise, and each operation of the
//! devices is queued by then.

use millstream_backend::collective::{Buffer, Communicator};
use millstream_backend::{Backend, GradientColumns, RowGradients};

use super::PartGradients;
use crate::gradients::GradientVisitor;
use crate::layers::Tables;
use crate::model::StepError;
use crate::parameter::{Parameter, ParameterSpec, Parameters, Storage};

/// Packs the rows of tables that the part touches. Does not wait.
pub(super) fn pack_rows<B: Backend>(peers: &B::Peers, gradients: &mut PartGradients<'_, B>) {
    let PartGradients { backend, network, logits_grad, touched, .. } = gradients;
    network.visit_gradients(logits_grad, &mut PackRows { backend: *backend, peers, touched: *touched });
}

/// Replaces gradients and losses by their sums over all workers, of which each has packed its rows.
pub(super) fn exchange<B: Backend>(
    communicator: &Communicator,
    peers: &B::Peers,
    gradients: &mut PartGradients<'_, B>,
) -> Result<(), StepError> {
    let PartGradients { backend, network, logits_grad, .. } = gradients;
    // Before the last sums are queued, because it waits for the device.
    let counts = backend.packed_counts(peers, |count| {
        network.visit_gradients(logits_grad, &mut Merged(count));
    });
    sum(peers, gradients);
    if counts.is_empty() {
        // A model without tables, which is the same on all workers.
        return Ok(());
    }
    let counts = communicator.gather(Buffer::from(&counts[..])).join()?;
    let counts: Vec<&[u32]> = counts.iter().map(|counts| &counts[..]).collect();
    let PartGradients { backend, network, logits_grad, .. } = gradients;
    let are_alike = backend.merge_over_ranks(peers, &counts, |merge| {
        network.visit_gradients(logits_grad, &mut Merged(merge));
    });
    if are_alike { Ok(()) } else { Err(StepError::OtherModel) }
}

/// Replaces the gradients of layers, and the losses, by their sums over all workers.
fn sum<B: Backend>(peers: &B::Peers, gradients: &mut PartGradients<'_, B>) {
    let PartGradients { backend, network, logits_grad, touched, losses, layer_sums, .. } = gradients;
    // A backward pass over no rows need not write gradients.
    let is_empty = B::batch_shape(touched.0).rows == 0;
    let prepare = |spec: &ParameterSpec, gradient: &mut B::Matrix| {
        layer_sums.prepare(*backend, peers, is_empty, (spec, gradient));
    };
    network.visit_gradients(logits_grad, &mut LayerGradients(prepare));
    backend.sum_over_ranks(peers, |sum| {
        let add = |spec: &ParameterSpec, gradient: &mut B::Matrix| {
            if let Some(summed) = layer_sums.not_started(spec, gradient) {
                sum(summed);
            }
        };
        network.visit_gradients(logits_grad, &mut LayerGradients(add));
        sum(losses);
    });
    let finish = |spec: &ParameterSpec, gradient: &mut B::Matrix| {
        layer_sums.finish(*backend, (spec, gradient));
    };
    network.visit_gradients(logits_grad, &mut LayerGradients(finish));
}

/// Calls a function with each parameter of layers and its gradient.
struct LayerGradients<F>(F);

impl<B: Backend, F: FnMut(&ParameterSpec, &mut B::Matrix)> GradientVisitor<B> for LayerGradients<F> {
    fn layers(&mut self, layers: &mut dyn Parameters<B>) {
        layers.visit(&mut |Parameter { spec, storage }| {
            if let Storage::Matrix { gradient: Some(gradient), .. } = storage {
                (self.0)(spec, gradient);
            }
        });
    }

    fn tables(&mut self, _: &mut Tables<B>, _: &B::Matrix, _: GradientColumns) {}
}

/// Packs the rows of each group of tables.
struct PackRows<'a, B: Backend> {
    backend: &'a B,
    peers: &'a B::Peers,
    touched: (&'a B::Batch, &'a B::RowPlan),
}

impl<B: Backend> GradientVisitor<B> for PackRows<'_, B> {
    fn layers(&mut self, _: &mut dyn Parameters<B>) {}

    fn tables(&mut self, tables: &mut Tables<B>, gradient: &B::Matrix, columns: GradientColumns) {
        if tables.is_empty() {
            return;
        }
        let (batch, plan) = self.touched;
        let Tables { lookups, tables, maxima, merged, .. } = tables;
        let merged = merged.as_mut().expect("a model of several workers has room for merged rows");
        let gradients = RowGradients { batch, plan, lookups, gradient, columns, maxima: maxima.as_ref() };
        self.backend.pack_rows(self.peers, &gradients, tables, merged);
    }
}

/// Calls a function with the merged rows of each group of tables.
struct Merged<F>(F);

impl<B: Backend, F: FnMut(&mut B::MergedRows)> GradientVisitor<B> for Merged<F> {
    fn layers(&mut self, _: &mut dyn Parameters<B>) {}

    fn tables(&mut self, tables: &mut Tables<B>, _: &B::Matrix, _: GradientColumns) {
        if !tables.is_empty() {
            (self.0)(tables.merged.as_mut().expect("a model of several workers has room for merged rows"));
        }
    }
}
