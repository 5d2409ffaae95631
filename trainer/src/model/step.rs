//! A training step: gradients, their exchange with other workers, and the update.

use millstream_backend::collective::{CollectiveError, Communicator};
use millstream_backend::{Backend, BatchError, ConnectDevicesError, Task, ops};
use millstream_batch::BatchRef;
use millstream_trace::Phase;

use super::batch_gradient::BatchGradient;
use super::compared::ComparedRows;
use super::compute::Objective;
use super::network::Network;
use super::scaling::Scaling;
use super::{Model, Parts, StepError, gradients};
use crate::exchange::{Agreement, Exchange, PartGradients, Request, StartEarly};
use crate::gradients::{ApplyUpdates, CompletedGradients, SumSquares};
use crate::loss::LossSum;
use crate::parameter::ParameterSpec;
use crate::pass::{Pass, Purpose, rounding_key};
use crate::schedule::Step;

/// What the passes over an uploaded batch need.
struct Passes<'a, B: Backend> {
    backend: &'a B,
    network: &'a mut Network<B>,
    batch: &'a B::Batch,
    tasks: &'a [Task],
    /// The weights of the global batch, by task, if the uploaded batch is a part of one.
    totals: Option<&'a [f64]>,
    compared: &'a mut Option<ComparedRows<B>>,
    logits_grad: &'a mut BatchGradient<B>,
    /// The sums of losses and of weights, `[T, 2]`.
    sums: &'a mut B::Matrix,
    scaling: &'a mut Option<Scaling<B>>,
}

impl<B: Backend> Model<B> {
    /// Joins the other workers that train this model, and connects their devices if those may add gradients. A worker that
    /// trains alone, without shards, needs no exchange.
    ///
    /// # Errors
    /// When the devices cannot be connected.
    ///
    /// # Panics
    /// If they are not as many as the model was built for.
    pub fn join(&mut self, communicator: Communicator) -> Result<(), ConnectDevicesError> {
        assert_eq!(communicator.ranks(), self.ranks, "the workers that the model was built for");
        if !self.exchanges {
            return Ok(());
        }
        if self.sums_on_devices {
            self.peers = self.backend.connect(&communicator)?;
        }
        self.exchange = Some(self.new_exchange(communicator));
        Ok(())
    }

    /// Takes a step on `batch`, as each of this worker's parts, without the others: a rehearsal, after which the weights are
    /// meaningless. Where workers exchange gradients, this one does so over `alone`, a world of one rank.
    pub(crate) fn rehearse(
        &mut self,
        batch: BatchRef<'_>,
        step: Step,
        alone: Communicator,
    ) -> Result<(), StepError> {
        self.exchange = self.exchanges.then(|| self.new_exchange(alone));
        let parts = vec![batch; self.parts_each];
        self.agree(&parts, Request::default())?;
        self.submit_parts(&parts, step)?;
        self.finish_step()?;
        Ok(())
    }

    fn new_exchange(&mut self, communicator: Communicator) -> Exchange<B::Scalar> {
        let parameters = self.parts.network.parameters();
        let of_layers: usize = gradients(&parameters).map(ParameterSpec::len).sum();
        let numbers = of_layers + self.parts.whole_numbers;
        Exchange::new(communicator, self.parts_each, (numbers, self.wire), self.tasks.len())
    }

    /// The exchange with the other workers that train this model, if there are any.
    pub(crate) fn exchange(&self) -> Option<&Exchange<B::Scalar>> {
        self.exchange.as_ref()
    }

    /// Agrees with the other workers on the next step. A worker alone gets what it passes.
    ///
    /// # Errors
    /// When the collective operation fails.
    pub fn agree(&mut self, parts: &[BatchRef<'_>], request: Request) -> Result<Agreement, CollectiveError> {
        match &mut self.exchange {
            Some(exchange) => {
                self.backend.phase(Phase::Agreement, || exchange.agree(&self.tasks, parts, request))
            }
            None => {
                let Request { stop, copy } = request;
                Ok(Agreement { is_step: !parts.is_empty(), stop, copy })
            }
        }
    }

    /// Takes one optimizer step on `batch` and waits for it. Returns the loss before the step. No step is in flight
    /// afterwards.
    ///
    /// # Errors
    /// As of [`Model::submit_step`] and [`Model::finish_step`].
    pub fn train_step(&mut self, batch: BatchRef<'_>, step: Step) -> Result<LossSum, StepError> {
        assert_eq!(self.steps_in_flight(), 0, "a step is still in flight");
        self.submit_step(batch, step)?;
        Ok(self.finish_step()?)
    }

    /// Submits an optimizer step on `batch`: [`Model::submit_parts`] of a worker that has one part of each batch.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn submit_step(&mut self, batch: BatchRef<'_>, step: Step) -> Result<(), StepError> {
        self.submit_parts(&[batch], step)
    }

    /// Submits an optimizer step on this worker's `parts` of a batch, whose memory may change once this returns. Steps complete
    /// in order. Losses are those of the whole batch.
    ///
    /// A batch without rows changes nothing. With a loss scale, a gradient that is not finite skips the step.
    ///
    /// # Errors
    /// When a part does not have the model's schema, or an id is out of range. Then no step was submitted. When the exchange
    /// with the other workers fails; then the model is of no use.
    ///
    /// # Panics
    /// When there are not as many parts as each worker has, more than [`Model::steps_ahead`] steps are in flight, or the
    /// workers have not agreed on a step.
    pub fn submit_parts(&mut self, parts: &[BatchRef<'_>], step: Step) -> Result<(), StepError> {
        assert_eq!(parts.len(), self.parts_each, "the parts of a worker");
        let (in_flight, ahead) = (self.steps.in_flight.len(), self.steps.ahead);
        assert!(in_flight <= ahead, "{in_flight} steps are in flight");
        if let Some(mut exchange) = self.exchange.take() {
            let exchanged = self.exchange_gradients(&mut exchange, parts, step);
            self.exchange = Some(exchange);
            exchanged?;
        } else {
            let batch = parts[0];
            self.upload(batch)?;
            if batch.rows() > 0 {
                self.compute_gradients(batch, step, None);
            }
        }
        let is_update = self.exchange.is_some() || parts[0].rows() > 0;
        if is_update {
            self.update(step);
        }
        let Parts { batch, sums, scaling, reports, .. } = &mut self.parts;
        self.steps.send(&self.backend, reports, batch, sums, scaling.as_ref());
        Ok(())
    }

    /// Computes the gradients and losses of this worker's parts, and exchanges them for those of the whole batch.
    fn exchange_gradients(
        &mut self,
        exchange: &mut Exchange<B::Scalar>,
        parts: &[BatchRef<'_>],
        step: Step,
    ) -> Result<(), StepError> {
        let totals = exchange.take_totals();
        for part in exchange.order() {
            self.upload(parts[part])?;
            self.gather_compared(exchange, parts[part])?;
            self.compute_gradients(parts[part], step, Some((&*exchange, &totals)));
            self.exchange_part(|gradients| exchange.add(part, gradients))?;
        }
        self.exchange_part(|gradients| exchange.finish(gradients))
    }

    /// Gets what the loss compares of the parts of all workers, if it does.
    fn gather_compared(
        &mut self,
        exchange: &Exchange<B::Scalar>,
        part: BatchRef<'_>,
    ) -> Result<(), StepError> {
        let Self { backend, parts, .. } = self;
        let Some(compared) = &mut parts.compared else { return Ok(()) };
        backend.phase(Phase::Exchange, || compared.gather(backend, exchange, part))
    }

    /// Runs `exchange` on the gradients of the last part.
    fn exchange_part(
        &mut self,
        exchange: impl FnOnce(&mut PartGradients<'_, B>) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let Self { backend, parts, peers, layer_sums, .. } = self;
        let Parts { network, batch, plan, logits_grad, sums, .. } = parts;
        let mut of_part = PartGradients {
            backend,
            network: network.compute(),
            logits_grad: logits_grad.of_batch(),
            touched: (batch, plan),
            losses: sums,
            peers: peers.as_ref(),
            layer_sums,
        };
        backend.phase(Phase::Exchange, || exchange(&mut of_part))
    }

    /// Copies a batch to the device.
    fn upload(&mut self, batch: BatchRef<'_>) -> Result<(), BatchError> {
        let Self { backend, parts, tasks, .. } = self;
        backend.phase(Phase::Upload, || backend.upload(batch, &mut parts.batch))?;
        backend.run(ops::Clear { rows: tasks.len(), matrix: &mut parts.sums });
        Ok(())
    }

    /// Computes the gradients and losses of the uploaded `batch`. If this is a part of one: the exchange with the workers that
    /// have the others, and the weights of the global batch, by task.
    fn compute_gradients(
        &mut self,
        batch: BatchRef<'_>,
        step: Step,
        exchange: Option<(&Exchange<B::Scalar>, &[f64])>,
    ) {
        let Self { backend, parts, seed, tasks, peers, layer_sums, .. } = self;
        let Parts { network, batch: uploaded, plan, compared, logits_grad, sums, scaling, .. } = parts;
        let (most, is_joint, uploaded, peers) = (parts.rows, parts.is_joint, &*uploaded, peers.as_ref());
        backend.phase(Phase::Plan, || backend.run(ops::PlanRows { batch: uploaded, plan }));
        let header = batch.header();
        let (rows, first_row) = (batch.rows(), header.first_row as usize);
        let (purpose, totals) = (Purpose::training(*seed, step.number), exchange.map(|(_, totals)| totals));
        let mut passes =
            Passes { backend, network, batch: uploaded, tasks, totals, compared, logits_grad, sums, scaling };
        let start_early = peers.map(|peers| StartEarly::new(peers, layer_sums, rows == 0));
        let completed = start_early.as_ref().map(|start_early| start_early as &dyn CompletedGradients<B>);
        if let (true, Some((exchange, _))) = (is_joint && header.global_rows > 0, exchange) {
            let ranks = exchange.ranks(peers, header.global_rows as usize, most);
            let pass = Pass { completed, ..Pass::of_rank(rows, first_row, purpose, ranks) };
            // The same on all workers, so all make the same collective calls.
            match header.most_rows as usize <= most {
                true => passes.run(&pass),
                false => passes.run_twice(&pass, most),
            }
            return;
        }
        for pass in Pass::all(rows, most, first_row, purpose) {
            let completed = completed.filter(|_| pass.rows.end == rows);
            passes.run(&Pass { completed, ..pass });
        }
        if rows == 0 && header.global_rows > 0 && completed.is_some() {
            // The other workers start sums in their passes.
            passes.run(&Pass { completed, ..Pass::of_rows(0..0, first_row, purpose) });
        }
    }

    /// Takes the optimizer step.
    fn update(&mut self, step: Step) {
        let Self { backend, parts, seed, clip, .. } = self;
        let Parts { network, batch, plan, logits_grad, scaling, scale, squares, .. } = parts;
        let (network, logits_grad, touched) = (network.compute(), logits_grad.of_batch(), (&*batch, &*plan));
        // By batch: a skipped step has its number too.
        let draws = rounding_key(*seed, step.number);
        backend.phase(Phase::Update, || {
            let norm = clip.norm.map(f64::from);
            if norm.is_some() || scaling.is_some() {
                backend.run(ops::Clear { rows: 1, matrix: squares });
                network.visit_gradients(logits_grad, &mut SumSquares { backend, touched, squares });
            }
            let mut step = step;
            match (scaling.as_mut(), norm) {
                (Some(Scaling { rule, state, known }), norm) => {
                    step.number -= u64::from(known.skipped_steps);
                    backend.run(ops::Unscale { rule, maximum: norm, squares, state, scale });
                }
                (None, Some(norm)) => backend.run(ops::ClipScale { maximum: norm, squares, scale }),
                (None, None) => {}
            }
            let clip = clip.value.map_or(f64::INFINITY, f64::from);
            network.visit_gradients(
                logits_grad,
                &mut ApplyUpdates { backend, touched, scale, clip, step, draws },
            );
        });
    }

    /// Waits for the oldest step in flight. Returns the loss before the step.
    ///
    /// # Errors
    /// When its batch is invalid. Then neither this step nor any later one was taken, and none is in flight.
    ///
    /// # Panics
    /// When no step is in flight.
    pub fn finish_step(&mut self) -> Result<LossSum, BatchError> {
        let Self { backend, parts, tasks, steps, .. } = self;
        let (reports, scaling) = (&mut parts.reports, parts.scaling.as_mut());
        backend.phase(Phase::Read, || steps.receive(backend, reports, scaling))?;
        Ok(LossSum::of_batch(tasks, &steps.of_tasks))
    }
}

impl<B: Backend> Passes<'_, B> {
    /// Computes the gradients and losses of `pass`.
    fn run(&mut self, pass: &Pass<'_, B>) {
        self.forward(pass);
        let Self { backend, network, batch, tasks, totals, compared, logits_grad, sums, .. } = self;
        let (network, of_pass) = (network.compute(), logits_grad.of_pass());
        backend.phase(Phase::Loss, || match (compared.as_mut(), &pass.ranks) {
            (Some(compared), Some(ranks)) if compared.has_lists() => {
                compared.keep_logits(backend, (pass, ranks), network.logits());
                compared.loss_of_lists(backend, ranks, sums);
                compared.take_gradient(backend, pass, of_pass);
            }
            _ => {
                let compared = compared.as_ref().map(|compared| &compared.batch);
                let objective = Objective { tasks, totals: *totals, compared };
                network.loss(backend, &objective, batch, pass, of_pass, sums);
            }
        });
        self.backward(pass);
    }

    /// Computes the gradients and losses of all rows of this worker, `whole`, in passes of at most `most` rows, if the loss
    /// compares the rows of all workers: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup",
    /// 2021. A first forward pass of each keeps what the loss compares. After the loss of the batch, a second one has the
    /// activations for the backward pass. Workers communicate only for the loss, so they may have different numbers of passes.
    fn run_twice(&mut self, whole: &Pass<'_, B>, most: usize) {
        for pass in whole.split(most) {
            self.forward(&pass);
            self.keep_compared(&pass);
        }
        self.loss_of_kept(whole);
        for pass in whole.split(most) {
            self.forward(&pass);
            self.take_gradient(&pass);
            self.backward(&pass);
        }
    }

    fn forward(&mut self, pass: &Pass<'_, B>) {
        let Self { backend, network, batch, .. } = self;
        backend.phase(Phase::Forward, || network.compute().forward(backend, batch, pass));
    }

    fn keep_compared(&mut self, pass: &Pass<'_, B>) {
        let Self { backend, network, compared, .. } = self;
        let network = network.compute();
        backend.phase(Phase::Loss, || match (compared.as_mut(), &pass.ranks) {
            (Some(compared), Some(ranks)) if compared.has_lists() => {
                compared.keep_logits(backend, (pass, ranks), network.logits());
            }
            _ => network.keep_compared(backend, pass),
        });
    }

    fn loss_of_kept(&mut self, whole: &Pass<'_, B>) {
        let Self { backend, network, tasks, totals, compared, sums, .. } = self;
        backend.phase(Phase::Loss, || match (compared.as_mut(), &whole.ranks) {
            (Some(compared), Some(ranks)) if compared.has_lists() => {
                compared.loss_of_lists(backend, ranks, sums);
            }
            _ => {
                let compared = compared.as_ref().map(|compared| &compared.batch);
                let objective = Objective { tasks, totals: *totals, compared };
                network.compute().loss_of_kept(backend, &objective, whole, sums);
            }
        });
    }

    fn take_gradient(&mut self, pass: &Pass<'_, B>) {
        let Self { backend, network, compared, logits_grad, .. } = self;
        backend.phase(Phase::Loss, || match compared.as_ref().filter(|compared| compared.has_lists()) {
            Some(compared) => compared.take_gradient(backend, pass, logits_grad.of_pass()),
            None => network.compute().take_gradient(backend, pass),
        });
    }

    /// The backward pass from the gradient of the loss.
    fn backward(&mut self, pass: &Pass<'_, B>) {
        let Self { backend, network, batch, logits_grad, scaling, .. } = self;
        let (network, of_pass) = (network.compute(), logits_grad.of_pass());
        if let Some(scaling) = scaling {
            backend.phase(Phase::Loss, || network.scale(backend, pass, &scaling.state, of_pass));
        }
        backend.phase(Phase::Backward, || network.backward(backend, batch, pass, of_pass));
        logits_grad.keep(backend, pass);
    }
}
