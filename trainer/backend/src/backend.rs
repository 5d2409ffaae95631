//! The seam between models and devices: opaque buffers, and operations on them.
//!
//! An operation is as large as a device can use: one covers every table of a model, or a layer's product, bias and
//! activation. Buffers are allocated once, when a model is built; an operation writes into the buffers that it is
//! given. Only [`Backend::upload`], [`Backend::receive`] and the transfers touch host memory, so a device may queue
//! everything else and wait there.
//!
//! Results are a pure function of the operands: no operation depends on the number of threads.

use std::sync::Arc;

use millstream_batch::{BatchRef, RingMapping};
use millstream_trace::{OperationInfo, Phase, Recorder, Recording, Work};

use crate::collective::Communicator;
use crate::description::Description;
use crate::device::{Shapes, TablePart};
use crate::error::{BatchError, ConnectDevicesError, PinError};
use crate::float::Float;
use crate::floors::Floors;
use crate::ops::{self, Checked, Operation, cost};
use crate::row_sums::RowSums;

/// A device that computes.
pub trait Backend: Shapes + Sized + Send + 'static {
    /// Memory of a ring that the device copies from directly while this is held.
    type Pinned: Send;
    /// The connection to the devices of other ranks. [`Infallible`](std::convert::Infallible) if this kind of device has none.
    type Peers: Send;

    /// The device and its libraries.
    fn describe(&self) -> Description;
    /// Records the operations. A backend without one is never recorded.
    fn recorder(&self) -> Option<&Arc<Recorder>>;

    /// Runs an operation: checks its operands, and records it if a recording is on.
    ///
    /// # Panics
    /// If an operand has a wrong shape, which is a defect of the model; the message names the operation and the
    /// operand.
    fn run<'a>(&self, operation: impl Into<Operation<'a, Self>>) {
        let operation = Checked::of(operation.into());
        match self.active_recorder() {
            None => self.execute(operation),
            Some(recorder) => {
                let info = operation.info(self);
                self.record(recorder, info, || self.execute(operation));
            }
        }
    }
    /// Executes an operation. [`Backend::run`] also records it.
    fn execute(&self, operation: Checked<'_, Self>);

    /// Runs `work` as `operation`, and records its time: by default, until the call returns.
    fn record<T>(&self, recorder: &Recorder, operation: OperationInfo, work: impl FnOnce() -> T) -> T {
        recorder.operation(operation, work)
    }
    /// Runs `work`, a phase of a step. During a recording, the device has finished the phase when this returns, so
    /// the phase's time includes the device's.
    fn phase<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let Some(recorder) = self.recorder() else { return work() };
        recorder.phase(phase, || {
            let result = work();
            if recorder.is_recording() {
                self.finish();
            }
            result
        })
    }
    /// The recorder, while a recording is on.
    #[inline]
    fn active_recorder(&self) -> Option<&Arc<Recorder>> {
        self.recorder().filter(|recorder| recorder.is_recording())
    }
    /// Starts a recording.
    fn begin_recording(&self) {
        if let Some(recorder) = self.recorder() {
            recorder.begin();
            self.begin_device_recording(recorder);
        }
    }
    /// Ends the recording, after everything queued is done and recorded, and returns it.
    fn end_recording(&self) -> Recording {
        self.end_device_recording();
        self.recorder().map(|recorder| recorder.end()).unwrap_or_default()
    }
    /// Called when a recording starts: an asynchronous device records its own timestamps from here on.
    fn begin_device_recording(&self, _recorder: &Arc<Recorder>) {}
    /// Called when a recording ends: returns after everything queued is done and recorded.
    fn end_device_recording(&self) {}
    /// Waits until the device has done everything queued.
    fn finish(&self) {}
    /// The device's peak rates, measured on matrices of `size` times 64 MiB. Size 1 takes well under a second; choose a
    /// larger size if the device's caches are that large.
    fn floors(&self, float: Float, size: usize) -> Floors {
        Floors::measure(self, float, size)
    }

    /// Whether fp32 products may round their factors to TF32, if the device multiplies those faster.
    fn allow_tf32(&self, _is_allowed: bool) {}

    /// Runs [`ops::WriteMatrix`].
    fn write_matrix(&self, matrix: &mut Self::Matrix, values: &[Self::Scalar]) {
        self.run(ops::WriteMatrix { matrix, values });
    }
    /// Runs [`ops::ReadMatrix`].
    fn read_matrix(&self, matrix: &Self::Matrix, out: &mut [Self::Scalar]) {
        self.run(ops::ReadMatrix { matrix, out });
    }
    /// Runs [`ops::WriteTable`].
    fn write_table(
        &self,
        table: &mut Self::Table,
        part: TablePart,
        first_row: usize,
        values: &[Self::Scalar],
    ) {
        self.run(ops::WriteTable { table, part, first_row, values });
    }
    /// Runs [`ops::ReadTable`].
    fn read_table(&self, table: &Self::Table, part: TablePart, first_row: usize, out: &mut [Self::Scalar]) {
        self.run(ops::ReadTable { table, part, first_row, out });
    }

    /// Lets the device copy batches directly from a ring's memory while the returned value is held. Without it,
    /// batches are staged with an extra copy.
    ///
    /// # Errors
    /// If the device does not support it.
    fn pin(&self, pages: &RingMapping) -> Result<Self::Pinned, PinError>;

    /// Whether the gradient of a hidden layer's output is masked by its activation where it is computed, by the next layer
    /// ([`SavedLayer::input_activation`](crate::ops::SavedLayer::input_activation)). Otherwise the layer itself does
    /// ([`SavedLayer::activation`](crate::ops::SavedLayer::activation)), together with the sum for its bias.
    const MASKS_INPUT_GRADIENTS: bool = true;

    /// Whether devices of this kind connect to those of other ranks.
    const CONNECTS: bool = false;
    /// Connects the device to those of the other ranks of `communicator`, all of which make this call. `None` if this kind of
    /// device communicates through host memory.
    ///
    /// # Errors
    /// If the host lacks what is needed, or another rank does not connect in time.
    fn connect(&self, _communicator: &Communicator) -> Result<Option<Self::Peers>, ConnectDevicesError> {
        Ok(None)
    }
    /// Replaces each matrix that `visit` passes on by its sum over all ranks, each of which passes matrices of the same shapes
    /// in the same order. All ranks get the same bits. Does not wait: operations that are queued from now on, in `visit` too,
    /// are executed after the sum.
    ///
    /// # Panics
    /// If another rank does not take part within the communicator's time limit, now or while the host waits for the device
    /// later; the payload is a [`CollectiveError`](crate::collective::CollectiveError). The device is then unusable.
    fn sum_over_ranks(&self, peers: &Self::Peers, visit: impl FnOnce(&mut dyn FnMut(&mut Self::Matrix))) {
        self.start_sum(peers, visit);
        self.join_sums(peers);
    }
    /// Starts a sum, as [`Backend::sum_over_ranks`] does, beside operations that are queued from now on. Until
    /// [`Backend::join_sums`], none of them may use a matrix of the sum.
    ///
    /// # Panics
    /// As there.
    fn start_sum(&self, peers: &Self::Peers, visit: impl FnOnce(&mut dyn FnMut(&mut Self::Matrix)));
    /// Executes operations that are queued from now on after all sums that have been started. Does not wait.
    fn join_sums(&self, peers: &Self::Peers);

    /// Copies a batch to the device and validates every id and offset, so that operations need not. The batch's
    /// memory may change once this returns.
    ///
    /// A device may validate asynchronously. Then operations on an invalid batch are harmless, and weights, states
    /// and moments do not change from this batch on, until [`Backend::check`] or [`Backend::receive`] reports it.
    ///
    /// # Errors
    /// If the batch does not have the schema that `into` was created for; `into` then has no rows.
    fn upload(&self, batch: BatchRef<'_>, into: &mut Self::Batch) -> Result<(), BatchError> {
        self.record_transfer("upload", || upload_work(batch), || self.copy_batch(batch, into))
    }
    /// Implements [`Backend::upload`].
    ///
    /// # Errors
    /// See [`Backend::upload`].
    fn copy_batch(&self, batch: BatchRef<'_>, into: &mut Self::Batch) -> Result<(), BatchError>;
    /// Waits until `batch` has been validated. By default, [`Backend::upload`] has done so.
    ///
    /// # Errors
    /// The batch's fault, reported once: after that, steps update weights again.
    fn check(&self, _batch: &Self::Batch) -> Result<(), BatchError> {
        Ok(())
    }

    /// Sums the gradients of each row of `tables` that the batch touches, in the order of [`ops::StepRows`], into host
    /// memory. Waits for the device.
    fn sum_rows(
        &self,
        gradients: &ops::RowGradients<'_, Self>,
        tables: &[Self::Table],
        sums: &mut RowSums<Self::Scalar>,
    ) {
        gradients.check_for("sum_rows", tables);
        let work = || gradients.work(self, tables, cost::row_squares);
        self.record_transfer("sum_rows", work, || self.read_row_sums(gradients, tables, sums));
    }
    /// Implements [`Backend::sum_rows`], whose operands have been checked.
    fn read_row_sums(
        &self,
        gradients: &ops::RowGradients<'_, Self>,
        tables: &[Self::Table],
        sums: &mut RowSums<Self::Scalar>,
    );

    /// Merges the rows of all `parts` of a batch, in their order, and keeps the parts. Returns whether they are of the tables of
    /// `merged`; if not, the merged rows must not be used.
    fn merge_rows(&self, parts: Vec<RowSums<Self::Scalar>>, merged: &mut Self::MergedRows) -> bool {
        let ids = parts.iter().map(|sums| sums.ids.len()).sum();
        let work = || cost::merge_ids(ids);
        self.record_transfer("merge_rows", work, || self.take_merged_rows(parts, merged))
    }
    /// Implements [`Backend::merge_rows`].
    fn take_merged_rows(&self, parts: Vec<RowSums<Self::Scalar>>, merged: &mut Self::MergedRows) -> bool;

    /// Gives back the parts of the last merge, once their step has been taken. The merged rows must not be used without them.
    fn take_parts(&self, merged: &mut Self::MergedRows) -> Vec<RowSums<Self::Scalar>>;

    /// Sums the gradients of each row of `tables` that the batch touches, as [`Backend::sum_rows`] does, and packs the sums in
    /// the device memory of `merged`, from which the other ranks get them. Does not wait.
    ///
    /// # Panics
    /// If an operand has a wrong shape, or `merged` has no room for the rows of all ranks.
    fn pack_rows(
        &self,
        peers: &Self::Peers,
        gradients: &ops::RowGradients<'_, Self>,
        tables: &[Self::Table],
        merged: &mut Self::MergedRows,
    ) {
        gradients.check_for("pack_rows", tables);
        let work = || gradients.work(self, tables, cost::row_squares);
        self.record_transfer("pack_rows", work, || self.pack_summed_rows(peers, gradients, tables, merged));
    }
    /// Implements [`Backend::pack_rows`], whose operands have been checked.
    fn pack_summed_rows(
        &self,
        peers: &Self::Peers,
        gradients: &ops::RowGradients<'_, Self>,
        tables: &[Self::Table],
        merged: &mut Self::MergedRows,
    );
    /// The number of packed rows of each table, of all groups of tables that `visit` passes on. Waits for the device, once.
    fn packed_counts(
        &self,
        peers: &Self::Peers,
        visit: impl FnOnce(&mut dyn FnMut(&mut Self::MergedRows)),
    ) -> Vec<u32>;
    /// Gathers the packed rows of all ranks, of all groups of tables that `visit` passes on, and merges those of each group, in
    /// the order of ranks: with the bits of [`Backend::merge_rows`]. Small tables may be summed as a whole, in fp32 and in another
    /// order. All ranks make this call, with the same groups and the `counts` of each rank ([`Backend::packed_counts`]). Returns
    /// whether the counts are possible for these tables; if not, no row was gathered. Does not wait: operations that are queued
    /// from now on are executed afterwards.
    ///
    /// # Panics
    /// As of [`Backend::sum_over_ranks`].
    fn merge_over_ranks(
        &self,
        peers: &Self::Peers,
        counts: &[&[u32]],
        visit: impl FnOnce(&mut dyn FnMut(&mut Self::MergedRows)),
    ) -> bool;

    /// Queues a report to the host: all values of at most two `matrices`, as they are after everything queued so
    /// far, and whether `batch` is valid. Does not wait.
    fn send(&self, batch: &Self::Batch, matrices: &[&Self::Matrix], report: &mut Self::Report) {
        let work = || {
            let shapes = matrices.iter().map(|&matrix| Self::matrix_shape(matrix));
            cost::copied::<Self::Scalar>(shapes.map(|shape| shape.rows * shape.columns).sum())
        };
        self.record_transfer("send", work, || self.queue_report(batch, matrices, report));
    }
    /// Implements [`Backend::send`].
    fn queue_report(&self, batch: &Self::Batch, matrices: &[&Self::Matrix], report: &mut Self::Report);
    /// Waits for a report, and writes the matrices' values, concatenated, to `numbers`.
    ///
    /// # Errors
    /// See [`Backend::check`].
    fn receive(&self, report: &mut Self::Report, numbers: &mut [Self::Scalar]) -> Result<(), BatchError>;

    /// Runs `work`, which is not an [`Operation`] because it returns a result, and records it as `name` if a
    /// recording is on.
    fn record_transfer<T>(
        &self,
        name: &'static str,
        cost: impl FnOnce() -> Work,
        work: impl FnOnce() -> T,
    ) -> T {
        match self.active_recorder() {
            None => work(),
            Some(recorder) => self.record(recorder, OperationInfo { name, work: cost(), shape: None }, work),
        }
    }
}

/// The least work of uploading `batch`: each word is read and written.
fn upload_work(batch: BatchRef<'_>) -> Work {
    let schema = batch.layout().schema();
    let ragged = (0..schema.ragged.len()).map(|feature| {
        let (offsets, values) = batch.ragged(feature);
        offsets.len() + values.len() * (1 + usize::from(schema.ragged[feature].weighted))
    });
    let columns = schema.label_count() + usize::from(schema.weighted) + schema.dense.len();
    let words = batch.rows() * (columns + schema.ids.len()) + ragged.sum::<usize>();
    Work { rows: batch.rows() as u64, ..cost::copied::<u32>(words) }
}
