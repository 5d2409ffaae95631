//! Sums over the workers' devices, which are connected to each other.

use millstream_backend::{Backend, GradientColumns, ops};

use crate::gradients::GradientVisitor;
use crate::layers::Tables;
use crate::model::Compute;
use crate::parameter::{Parameters, Storage};

/// Replaces the gradients of layers, and the losses, by their sums over all workers, on the devices.
pub(super) fn sum<B: Backend>(
    backend: &B,
    peers: &B::Peers,
    network: &mut dyn Compute<B>,
    logits_grad: &B::Matrix,
    batch: &B::Batch,
    losses: &mut B::Matrix,
) {
    if B::batch_shape(batch).rows == 0 {
        // A backward pass over no rows has not taken place.
        let clear = |gradient: &mut B::Matrix| {
            let rows = B::matrix_shape(gradient).rows;
            backend.run(ops::Clear { rows, matrix: gradient });
        };
        network.visit_gradients(logits_grad, &mut LayerGradients(clear));
    }
    backend.sum_over_ranks(peers, |sum| {
        network.visit_gradients(logits_grad, &mut LayerGradients(&mut *sum));
        sum(losses);
    });
}

/// Calls a function with each gradient of layers.
struct LayerGradients<F>(F);

impl<B: Backend, F: FnMut(&mut B::Matrix)> GradientVisitor<B> for LayerGradients<F> {
    fn layers(&mut self, layers: &mut dyn Parameters<B>) {
        layers.visit(&mut |parameter| {
            if let Storage::Matrix { gradient: Some(gradient), .. } = parameter.storage {
                (self.0)(gradient);
            }
        });
    }

    fn tables(&mut self, _: &mut Tables<B>, _: &B::Matrix, _: GradientColumns) {}
}
