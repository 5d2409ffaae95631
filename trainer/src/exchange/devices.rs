//! The exchange over the workers' devices, which are connected to each other.
//!
//! The devices add the gradients of layers, and the losses, in place; gradients that travel in 16 bits are rounded into matrices
//! of their own. Of tables, each device packs the rows that its part
//! touches, with their summed gradients, gets those of the others, and merges all of them. The host exchanges the numbers of
//! rows alone: as many messages as otherwise, and each operation of the devices is queued by then.

use millstream_backend::collective::{Buffer, Communicator};
use millstream_backend::{Backend, Float, GradientColumns, MatrixShape, RowGradients, ops};

use super::PartGradients;
use crate::gradients::GradientVisitor;
use crate::layers::Tables;
use crate::model::{Compute, StepError};
use crate::parameter::{Parameters, Storage};

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
    // Before the sums are queued, because it waits for the device.
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
    let PartGradients { backend, network, logits_grad, touched, losses, rounded, .. } = gradients;
    if B::batch_shape(touched.0).rows == 0 {
        // A backward pass over no rows has not taken place.
        let clear = |gradient: &mut B::Matrix| {
            let rows = B::matrix_shape(gradient).rows;
            backend.run(ops::Clear { rows, matrix: gradient });
        };
        network.visit_gradients(logits_grad, &mut LayerGradients(clear));
    }
    if rounded.is_empty() {
        backend.sum_over_ranks(peers, |sum| {
            network.visit_gradients(logits_grad, &mut LayerGradients(&mut *sum));
            sum(losses);
        });
        return;
    }
    let mut places = rounded.iter_mut();
    let round = |gradient: &mut B::Matrix| {
        let place = places.next().expect("a matrix for each gradient");
        copy(*backend, gradient, place);
    };
    network.visit_gradients(logits_grad, &mut LayerGradients(round));
    backend.sum_over_ranks(peers, |sum| {
        rounded.iter_mut().for_each(&mut *sum);
        sum(losses);
    });
    let mut places = rounded.iter();
    let widen = |gradient: &mut B::Matrix| {
        let place = places.next().expect("a matrix for each gradient");
        copy(*backend, place, gradient);
    };
    network.visit_gradients(logits_grad, &mut LayerGradients(widen));
}

/// Matrices for gradients of layers that are rounded to `wire`, in the order of visits; none if they are not.
pub(crate) fn rounded_gradients<B: Backend>(
    backend: &B,
    network: &mut dyn Compute<B>,
    logits_grad: &B::Matrix,
    wire: Float,
) -> Vec<B::Matrix> {
    let mut rounded = Vec::new();
    if wire != Float::F32 {
        let add = |gradient: &mut B::Matrix| {
            let MatrixShape { rows, columns, .. } = B::matrix_shape(gradient);
            rounded.push(backend.matrix_of(wire, rows, columns));
        };
        network.visit_gradients(logits_grad, &mut LayerGradients(add));
    }
    rounded
}

/// Copies a matrix to one of the same shape, in that one's format.
fn copy<B: Backend>(backend: &B, from: &B::Matrix, to: &mut B::Matrix) {
    let MatrixShape { rows, columns, .. } = B::matrix_shape(from);
    backend.run(ops::CopyColumns { rows, from: (from, 0), to: (to, 0), columns });
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
