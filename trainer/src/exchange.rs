//! The exchange between workers that train one model together, one rank each.
//!
//! Each worker has the whole model. A global batch is cut into parts, of which each worker has equally many: usually one. In
//! a step:
//!
//! 1. The workers agree that all of them take it ([`Exchange::agree`]), and add up the weights of their rows. The loss of
//!    every row is divided by the weight of the global batch, so gradients only need to be added.
//! 2. Each worker computes the gradients and losses of its parts ([`Exchange::add`]), and gets the sums over all parts
//!    ([`Exchange::finish`]). The gradients of layers are added number by number. Of tables, the rows that a part touches are
//!    sent ([`RowSums`]); all workers merge the rows of all parts. Small tables are added as a whole, like layers
//!    ([`WholeTables`](crate::layers::WholeTables)). Gradients may travel in 16 bits.
//! 3. All workers have the same gradients and losses, and take the same optimizer step. So weights, loss scales, skipped
//!    steps and failures are the same everywhere, without messages.
//!
//! # The same bits for every number of workers
//!
//! With a part per worker, a run repeats its bits for one number of workers. With `S` parts, a power of two, it has the same
//! bits for every number of workers `W` that divides `S`. Worker `r` has the parts `r`, `r + W`, `r + 2 W`, and so on.
//! The shapes of products do not depend on the worker that computes a part, so its gradients always have the same bits. They are
//! added in an order that depends on `S` alone:
//!
//! - Gradients of layers and whole tables, and losses: part `i` receives part `i + s` for the strides `s` = S/2, S/4, .., 1. Down to the
//!   stride `W`, both parts are of one worker; the rest is the order in which a sum adds ranks
//!   (`collective/operations.rs`), and [`add_losses`] those of all workers.
//! - Rows of tables, and weights of rows: in the order of the parts.
//!
//! Without `S`, and without reducers, the order of sums need not be known: devices that are connected to each other ([`Backend::connect`]) add the
//! gradients of layers and the losses themselves, in place, and gather the rows of tables, or sum small ones. Nothing but the
//! numbers of rows then passes through host memory (`exchange/devices.rs`). Sums of large gradients start while the backward pass
//! continues (`exchange/early.rs`).

mod devices;
mod early;
mod ranks;
mod rows;
pub(crate) mod scored_rows;

use std::collections::VecDeque;
use std::time::Duration;

use millstream_backend::collective::{Buffer, CollectiveError, Communicator, Pool, UseOfTime};
use millstream_backend::{Backend, Float, GradientColumns, RowGradients, RowSums, Scalar, Task};
use millstream_batch::BatchRef;

use crate::gradients::GradientVisitor;
use crate::layers::Tables;
use crate::model::{Compute, StepError};
use crate::parameter::{Parameters, Storage};
pub(crate) use early::{LayerSums, StartEarly};
pub(crate) use ranks::Ranks;
use rows::Received;

/// What the workers have agreed on before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Whether every worker has its parts of a batch: then all take the step, otherwise none does.
    pub is_step: bool,
    /// Whether any worker wants to stop.
    pub stop: bool,
    /// Whether any worker wants all to copy the model together.
    pub copy: bool,
}

/// What a worker wants all to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// To stop.
    pub stop: bool,
    /// To copy the model together.
    pub copy: bool,
}

/// A worker's vote in the agreement: the bits of its first word.
mod vote {
    pub(super) const HAS_BATCH: u64 = 1;
    pub(super) const STOP: u64 = 2;
    pub(super) const COPY: u64 = 4;
}

/// The exchange of a worker with the others.
pub(crate) struct Exchange<S: Scalar> {
    communicator: Communicator,
    /// The number of parts that each worker has.
    parts: usize,
    /// The weight of the global batch of the agreed step, by task, until the step is taken.
    totals: Option<Vec<f64>>,
    /// How each worker had used its time before the last agreement, by rank.
    times: Vec<UseOfTime>,
    /// The number of gradients of layers and of tables that are summed as a whole.
    numbers: usize,
    /// The number of sums of losses and of weights.
    loss_numbers: usize,
    /// The format in which gradients travel.
    wire: Float,
    /// The sums of some of this worker's parts in the current step: of different sizes, the largest first.
    sums: Vec<PartSum<S>>,
    /// The rows of each of this worker's parts, by group of tables.
    rows: Vec<Vec<RowSums<S>>>,
    /// Memory of messages with rows, and of rows that were sent in 16 bits.
    messages: Pool,
    decoded: Pool,
    /// Memory of the last step, in the order in which it was used.
    free_sums: Vec<PartSum<S>>,
    free_rows: VecDeque<RowSums<S>>,
    free_whole: VecDeque<RowSums<S>>,
}

/// The sum of some parts of a worker.
struct PartSum<S: Scalar> {
    /// How many parts these are.
    parts: usize,
    /// Gradients of layers and of tables that are summed as a whole.
    numbers: Buffer<S>,
    /// Losses and weights.
    losses: Buffer<S>,
}

/// A network with the gradients of a part.
pub(crate) struct PartGradients<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) network: &'a mut dyn Compute<B>,
    pub(crate) logits_grad: &'a B::Matrix,
    /// The part and its plan of touched table rows.
    pub(crate) touched: (&'a B::Batch, &'a B::RowPlan),
    /// The sums of losses and of weights, `[T, 2]`.
    pub(crate) losses: &'a mut B::Matrix,
    /// The devices of the other workers, if they exchange gradients and losses themselves.
    pub(crate) peers: Option<&'a B::Peers>,
    /// How those add the gradients of layers.
    pub(crate) layer_sums: &'a mut LayerSums<B>,
}

impl<S: Scalar> Exchange<S> {
    /// An exchange of `numbers` gradients of layers and of whole tables, and of losses of `tasks` tasks, over `parts` parts of each worker.
    /// Gradients travel as `wire`.
    pub(crate) fn new(
        communicator: Communicator,
        parts: usize,
        (numbers, wire): (usize, Float),
        tasks: usize,
    ) -> Self {
        Self {
            communicator,
            parts,
            totals: None,
            times: Vec::new(),
            numbers,
            loss_numbers: 2 * tasks,
            wire,
            sums: Vec::new(),
            rows: (0..parts).map(|_| Vec::new()).collect(),
            messages: Pool::default(),
            decoded: Pool::default(),
            free_sums: Vec::new(),
            free_rows: VecDeque::new(),
            free_whole: VecDeque::new(),
        }
    }

    /// The parts in the order in which they are computed: so that few sums are in memory, each part follows the one that it is
    /// added to.
    pub(crate) fn order(&self) -> impl Iterator<Item = usize> + use<S> {
        let bits = self.parts.trailing_zeros();
        (0..self.parts)
            .map(move |place| if bits == 0 { place } else { place.reverse_bits() >> (usize::BITS - bits) })
    }

    /// Agrees with the other workers on the next step. Each passes its parts of the global batch, or none if it has none.
    pub(crate) fn agree(
        &mut self,
        tasks: &[Task],
        parts: &[BatchRef<'_>],
        Request { stop, copy }: Request,
    ) -> Result<Agreement, CollectiveError> {
        let has_batch = parts.len() == self.parts;
        let votes = [(has_batch, vote::HAS_BATCH), (stop, vote::STOP), (copy, vote::COPY)];
        let flags = votes.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag)).sum();
        let weights = (0..self.parts).flat_map(|part| {
            tasks.iter().map(move |task| parts.get(part).map_or(0.0, |part| weight(task, *part)).to_bits())
        });
        let UseOfTime { alive, in_operations } = self.communicator.use_of_time();
        let [alive, in_operations] =
            [alive, in_operations].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let words: Vec<u64> = [flags, alive, in_operations].into_iter().chain(weights).collect();
        let votes = self.communicator.gather(Buffer::from(&words[..])).join()?;
        let of_rank = |words: &Buffer<u64>| {
            let [alive, in_operations] = [words[1], words[2]].map(Duration::from_nanos);
            UseOfTime { alive, in_operations }
        };
        self.times = votes.iter().map(of_rank).collect();
        let is_step = votes.iter().all(|words| words[0] & vote::HAS_BATCH != 0);
        let wants = |flag: u64| votes.iter().any(|words| words[0] & flag != 0);
        let total = |task: usize| {
            let of_part = |part: usize| votes.iter().map(move |words| words[3 + part * tasks.len() + task]);
            (0..self.parts).flat_map(of_part).map(f64::from_bits).sum()
        };
        self.totals = is_step.then(|| (0..tasks.len()).map(total).collect());
        Ok(Agreement { is_step, stop: wants(vote::STOP), copy: wants(vote::COPY) })
    }

    /// The weight of the global batch of the agreed step, by task.
    ///
    /// # Panics
    /// If the workers have not agreed on a step since the last one.
    pub(crate) fn take_totals(&mut self) -> Vec<f64> {
        self.totals.take().expect("the workers have agreed on the step")
    }

    /// The workers that pass their parts of a batch of `rows` rows through the model together, of `part` rows each;
    /// `peers` are their devices.
    pub(crate) fn ranks<'a, B: Backend<Scalar = S>>(
        &'a self,
        peers: Option<&'a B::Peers>,
        rows: usize,
        part: usize,
    ) -> Ranks<'a, B> {
        Ranks { communicator: &self.communicator, peers, rows, part }
    }

    /// The number of this worker, and how many there are.
    pub(crate) fn rank(&self) -> (usize, usize) {
        (self.communicator.rank(), self.communicator.ranks())
    }

    /// How each worker had used its time before the last agreement, by rank.
    pub(crate) fn times(&self) -> &[UseOfTime] {
        &self.times
    }

    /// The words of all workers, by rank.
    pub(crate) fn gather(&self, words: &[u32]) -> Result<Vec<Buffer<u32>>, CollectiveError> {
        self.communicator.gather(Buffer::from(words)).join()
    }

    /// Adds the gradients and losses of this worker's part `part`, in the order of [`Exchange::order`].
    pub(crate) fn add<B: Backend<Scalar = S>>(
        &mut self,
        part: usize,
        gradients: &mut PartGradients<'_, B>,
    ) -> Result<(), StepError> {
        if let Some(peers) = gradients.peers {
            devices::pack_rows(peers, gradients);
            // Waits for the device. The other workers must not take the step of an invalid batch.
            return Ok(gradients.backend.check(gradients.touched.0)?);
        }
        let PartGradients { backend, network, logits_grad, touched, losses, .. } = gradients;
        // The other workers must not get the gradients of an invalid batch.
        backend.check(touched.0)?;
        let free = self.free_sums.pop().unwrap_or_else(|| PartSum {
            parts: 1,
            numbers: Buffer::zeroed(self.numbers),
            losses: Buffer::zeroed(self.loss_numbers),
        });
        let mut collect = CollectGradients {
            backend: *backend,
            touched: *touched,
            numbers: Numbers { all: free.numbers, used: 0 },
            free_rows: &mut self.free_rows,
            free_whole: &mut self.free_whole,
            rows: &mut self.rows[part],
        };
        network.visit_gradients(logits_grad, &mut collect);
        let mut sum = PartSum { parts: 1, numbers: collect.numbers.all, losses: free.losses };
        backend.read_matrix(losses, &mut sum.losses);
        while let Some(mut earlier) = self.sums.pop_if(|earlier| earlier.parts == sum.parts) {
            earlier.parts *= 2;
            S::accumulate(&mut earlier.numbers, &sum.numbers);
            S::accumulate(&mut earlier.losses, &sum.losses);
            self.free_sums.push(std::mem::replace(&mut sum, earlier));
        }
        self.sums.push(sum);
        Ok(())
    }

    /// Replaces gradients and losses by the sums over all parts of all workers.
    pub(crate) fn finish<B: Backend<Scalar = S>>(
        &mut self,
        gradients: &mut PartGradients<'_, B>,
    ) -> Result<(), StepError> {
        if let Some(peers) = gradients.peers {
            return devices::exchange(&self.communicator, peers, gradients);
        }
        let PartGradients { backend, network, logits_grad, losses, .. } = gradients;
        let own = self.sums.pop().expect("the sum of this worker's parts");
        assert!(own.parts == self.parts && self.sums.is_empty(), "a power of two of parts");
        let numbers = self.communicator.sum(own.numbers, self.wire);
        // One message of losses and all rows: each operation waits for the slowest rank.
        let message = rows::pack(&own.losses, self.rows.iter().flatten(), self.wire, &mut self.messages);
        let messages = self.communicator.gather(message).join()?;
        let groups = self.rows.first().map_or(0, Vec::len);
        self.free_rows.extend(self.rows.iter_mut().flat_map(|of_part| of_part.drain(..)));
        // The rows of all parts, by group of tables. Part `p` of rank `r` is part `p * ranks + r` of all.
        let mut received: Vec<Vec<RowSums<S>>> = (0..groups).map(|_| Vec::new()).collect();
        let (wire, decoded) = (self.wire, &mut self.decoded);
        let of_ranks =
            messages.into_iter().map(|message| rows::unpack(message, self.parts * groups, wire, decoded));
        let mut of_ranks = of_ranks.collect::<Option<Vec<_>>>().ok_or(StepError::OtherModel)?;
        for _ in 0..self.parts {
            for of_rank in &mut of_ranks {
                received.iter_mut().zip(&mut of_rank.rows).for_each(|(of_group, rows)| of_group.push(rows));
            }
        }
        add_losses(&mut of_ranks, self.loss_numbers).ok_or(StepError::OtherModel)?;
        backend.write_matrix(losses, &of_ranks[0].losses);
        let mut receive = ReceiveGradients {
            backend: *backend,
            numbers: Numbers { all: numbers.join()?, used: 0 },
            rows: received.into_iter(),
            free_whole: &mut self.free_whole,
            result: Ok(()),
        };
        network.visit_gradients(logits_grad, &mut receive);
        let ReceiveGradients { numbers: Numbers { all, .. }, result, .. } = receive;
        self.free_sums.push(PartSum { numbers: all, losses: own.losses, parts: 1 });
        result
    }
}

/// Adds the losses of all workers to those of the first, in the order in which a sum adds ranks; `None` unless each has `numbers`.
fn add_losses<S: Scalar>(of_ranks: &mut [Received<S>], numbers: usize) -> Option<()> {
    if of_ranks.iter().any(|received| received.losses.len() != numbers) {
        return None;
    }
    let mut stride = of_ranks.len().next_power_of_two() / 2;
    while stride > 0 {
        let (sums, addends) = of_ranks.split_at_mut(stride);
        sums.iter_mut().zip(addends).for_each(|(sum, x)| S::accumulate(&mut sum.losses, &x.losses));
        stride /= 2;
    }
    Some(())
}

/// Host memory of an exchange over `parts` parts of a worker, in bytes: of so many gradients of layers and whole tables, of numbers
/// that are summed in the middle of a pass, and of the numbers of table rows of all parts and of the worker's own. Gradients travel
/// as `wire`. A device apart from the host gets merged rows by way of host memory.
pub(crate) fn bytes(
    parts: usize,
    (layer_numbers, wire): (usize, Float),
    summed_numbers: u64,
    (row_numbers, own): (u64, u64),
    is_apart: bool,
) -> u64 {
    // The sums of 1, 2, 4, .. parts, and the sum over all workers; the rows as they were received.
    let sums = u64::from(parts.next_power_of_two().trailing_zeros()) + 2;
    // A device apart needs the place and the id of each row, and the gradients of a table in order.
    let of_rows = row_numbers.saturating_mul(1 + 2 * u64::from(is_apart)).saturating_add(own);
    let of_layers = (layer_numbers as u64).saturating_mul(sums);
    // A worker's own numbers, and what others send of them.
    let of_passes = summed_numbers.saturating_mul(2);
    let numbers = of_layers.saturating_add(of_rows).saturating_add(of_passes);
    // Rows of 16 bits, as they were received.
    let encoded = if wire == Float::F32 { 0 } else { row_numbers.saturating_mul(size_of::<u16>() as u64) };
    numbers.saturating_mul(size_of::<f32>() as u64).saturating_add(encoded)
}

/// The weight of the rows of `batch` in the loss of `task`.
fn weight(task: &Task, batch: BatchRef<'_>) -> f64 {
    let labels = batch.labels(task.label).iter().map(|&label| f64::from(label));
    match batch.weights() {
        Some(weights) => {
            labels.zip(weights).map(|(label, &weight)| task.loss.weight(label, weight.into())).sum()
        }
        None => labels.map(|label| task.loss.weight(label, 1.0)).sum(),
    }
}

/// Gradients of layers and whole tables, which visitors write or read one after another.
struct Numbers<S: Scalar> {
    all: Buffer<S>,
    used: usize,
}

impl<S: Scalar> Numbers<S> {
    fn next(&mut self, count: usize) -> &mut [S] {
        let first = self.used;
        self.used += count;
        &mut self.all[first..self.used]
    }
}

/// Copies the gradients of layers and whole tables to one buffer, and sums those of the rows of tables.
struct CollectGradients<'a, B: Backend> {
    backend: &'a B,
    touched: (&'a B::Batch, &'a B::RowPlan),
    numbers: Numbers<B::Scalar>,
    /// Memory for rows, and for those of whole tables.
    free_rows: &'a mut VecDeque<RowSums<B::Scalar>>,
    free_whole: &'a mut VecDeque<RowSums<B::Scalar>>,
    rows: &'a mut Vec<RowSums<B::Scalar>>,
}

impl<B: Backend> GradientVisitor<B> for CollectGradients<'_, B> {
    fn layers(&mut self, layers: &mut dyn Parameters<B>) {
        // A backward pass over no rows has not taken place.
        let is_empty = B::batch_shape(self.touched.0).rows == 0;
        layers.visit(&mut |parameter| {
            let Storage::Matrix { gradient: Some(gradient), .. } = parameter.storage else { return };
            let numbers = self.numbers.next(parameter.spec.len());
            match is_empty {
                true => numbers.fill(B::Scalar::default()),
                false => self.backend.read_matrix(gradient, numbers),
            }
        });
    }

    fn tables(&mut self, tables: &mut Tables<B>, gradient: &B::Matrix, columns: GradientColumns) {
        if tables.is_empty() {
            return;
        }
        let ((batch, plan), maxima) = (self.touched, tables.maxima.as_ref());
        let gradients = RowGradients { batch, plan, lookups: &tables.lookups, gradient, columns, maxima };
        let merged = tables.merged.as_mut().expect("a model of several workers has room for merged rows");
        // Frees the messages of the last step, so that their memory is used again.
        let mut parts = self.backend.take_parts(merged);
        if tables.whole.is_some() {
            self.free_whole.extend(parts.pop());
        }
        let mut sums = self.free_rows.pop_front().unwrap_or_default();
        self.backend.sum_rows(&gradients, &tables.tables, &mut sums);
        if let Some(whole) = &tables.whole {
            whole.take(&mut sums, self.numbers.next(whole.numbers()));
        }
        self.rows.push(sums);
    }
}

/// Takes the sums over all workers, in the order in which they were collected.
struct ReceiveGradients<'a, B: Backend> {
    backend: &'a B,
    numbers: Numbers<B::Scalar>,
    rows: std::vec::IntoIter<Vec<RowSums<B::Scalar>>>,
    /// Memory for the rows of whole tables.
    free_whole: &'a mut VecDeque<RowSums<B::Scalar>>,
    result: Result<(), StepError>,
}

impl<B: Backend> GradientVisitor<B> for ReceiveGradients<'_, B> {
    fn layers(&mut self, layers: &mut dyn Parameters<B>) {
        layers.visit(&mut |parameter| {
            let Storage::Matrix { gradient: Some(gradient), .. } = parameter.storage else { return };
            self.backend.write_matrix(gradient, self.numbers.next(parameter.spec.len()));
        });
    }

    fn tables(&mut self, tables: &mut Tables<B>, _: &B::Matrix, _: GradientColumns) {
        if tables.is_empty() || self.result.is_err() {
            return;
        }
        let mut sums = self.rows.next().expect("the rows of each group of tables that was sent");
        if let Some(whole) = &tables.whole {
            let mut touched = self.free_whole.pop_front().unwrap_or_default();
            whole.touched(self.numbers.next(whole.numbers()), &mut touched);
            sums.push(touched);
        }
        let merged = tables.merged.as_mut().expect("a model of several workers has room for merged rows");
        if !self.backend.merge_rows(sums, merged) {
            self.result = Err(StepError::OtherModel);
        }
    }
}
