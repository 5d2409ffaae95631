//! This host's part in a generation: its workers, their rings, and the ingest that fills them together with that of the other hosts.
//!
//! ```text
//! Spawn   workers are spawned, and listen                      -> Ready, with their addresses
//! Start   they connect to all ranks, restore, and are fed      -> Step, Note, Saved
//! Stop    they save the model, and exit                        -> Gone
//! Kill    they are killed                                      -> Gone
//! ```
//!
//! The workers of a host either train or reduce, which is to add gradients for those that train. Reducers are not fed, restore and
//! save nothing, and exit after all workers that train. A worker alone in its generation listens to nobody, and is only started by `Start`. The address of a rank is a number that this host
//! has drawn, and that of the worker. The number of rank 0 names the session in which the hosts exchange updates about
//! their lanes; a later session, for held-out rows, has the next one.

mod feeding;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millstream_peers::HostName;
use millstream_peers::conduct::Reports;
use millstream_peers::generations::member::WorkerEvent;
use millstream_peers::generations::{self, Address, Assignment, GenerationId, Note, Ranks, Reason, Start};
use millstream_worker::protocol::{self, FromWorker, PartsWritten, Place, ReduceRole, Role, ToWorker};
use tracing::Level;

use super::super::generation::{CAUSE_TIMEOUT, Generation, RanksHere, ReadyWorker};
use super::super::images::Images;
use super::super::lease::{Connections, Places};
use super::super::reports::{log_input, set_rates};
use super::super::role::train_role;
use super::super::{FlightRecords, Prepared, Supervisor};
use super::Site;
use super::changes::Changes;
use super::following::record_report;
use super::notes::{ToHost, ToLeader, decode, encode};
use super::waiting::Watch;
use crate::feed::{self, Feed};
use crate::objects::Writing;
use crate::runs::generation_term;
use crate::state::HistoryPoint;

/// The bytes of the number before the address of a worker.
const NUMBER_BYTES: usize = size_of::<u128>();

/// Time limit for a worker to exit after its last message.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a host may be unknown here that is to have workers, and the interval between looks.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);
const ADDRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The part of a host.
pub(super) struct Part {
    generation: GenerationId,
    /// The ranks of each host that trains, in the order of their names.
    hosts: Vec<(HostName, Ranks)>,
    reports: Reports,
    workers: Generation,
    /// The assignment of a worker alone, until it is started.
    waiting: Option<ToWorker>,
    images: Option<Images>,
    changes: Arc<Changes>,
    connections: Connections,
    /// The number that this host has drawn.
    number: u128,
    /// Set by [`Part::start`].
    started: Option<Started>,
    /// Fills the workers' rings, once they have any.
    feed: Option<Feed>,
    /// Fills the rings of a separately fed evaluation, while there are any.
    eval_feed: Option<Feed>,
    evaluations: u128,
    /// How many workers of this host have written their files of a checkpoint, by its step.
    written: BTreeMap<u64, u32>,
    /// The workers that have trained on all rows, and the last step.
    done: BTreeSet<u32>,
    last_step: u64,
    /// Whether all hosts have heard the last report of rank 0.
    is_end_known: bool,
    is_end_reported: bool,
    /// Those that have stopped together with all others.
    stopped: BTreeSet<u32>,
    /// Whether the workers are to stop, and whether a checkpoint is requested: for once they are fed.
    is_stopping: bool,
    wants_checkpoint: bool,
    /// Looks at what the workers wait for, if others have some, too.
    watch: Option<Watch>,
    /// The first report of a lost worker, and until when it waits for a worker that died, here or on another host.
    lost: Option<(String, Instant)>,
    /// Whether its end is reported.
    has_failed: bool,
    totals: HistoryPoint,
}

/// How a generation has started.
struct Started {
    from: Start,
    /// The number of the first session.
    session: u128,
}

impl Part {
    /// Starts the workers of this host.
    ///
    /// # Errors
    /// When the system refuses, or the assignment is not possible here.
    pub(super) fn spawn(
        supervisor: &mut Supervisor,
        (prepared, site): (&mut Prepared, &Site),
        generation: GenerationId,
        assignment: Assignment,
        reports: Reports,
    ) -> Result<Self> {
        let (world, reducers) = generations::size(&assignment);
        let own = &site.this.about.host;
        let Ranks { first, count, .. } = *assignment.get(own).context("this host has no ranks")?;
        let ranks = RanksHere { first, count, world, reducers };
        let trains = assignment.into_iter().filter(|(_, ranks)| ranks.role == generations::Role::Train);
        let hosts: Vec<_> = trains.collect();
        if !ranks.reduce() {
            wait_for_addresses(site, &hosts)?;
            let here = hosts.iter().position(|(host, _)| host == own).context("this host has no ranks")?;
            let counts: Vec<_> = hosts.iter().map(|(_, ranks)| ranks.count).collect();
            prepared.set_hosts((here as u32, &counts), world)?;
        }
        if ranks.spans_hosts() {
            ensure!(site.network.is_some(), "`peers.data_interface` is not set on this host");
        }
        let term = generation_term(generation.epoch, generation.number);
        let run = Place::Bucket { address: prepared.directory.to_string(), term };
        let places = Places { run, events: supervisor.event_place(prepared) };
        let network = ranks.spans_hosts().then(|| site.network.clone()).flatten();
        let role = |number| {
            let role = if ranks.reduce() {
                let timeout_seconds = prepared.job.workers.timeout_seconds;
                let network = network.clone().unwrap_or_default();
                Role::Reduce(ReduceRole { number: ranks.rank(number), timeout_seconds, network })
            } else {
                let role = train_role(prepared, (ranks.rank(number), ranks.place(number)), &places);
                Role::Train(Box::new(protocol::TrainRole { network: network.clone(), ..role }))
            };
            ToWorker::Start(Box::new(protocol::Start { role, schema: prepared.schema.clone() }))
        };
        supervisor.generation += 1;
        let images = (world > 1 && !ranks.reduce()).then(Images::create).transpose()?;
        let workers = Generation::spawn(supervisor, prepared, (ranks, network.as_deref()))?;
        supervisor.control.vitals().set_workers(workers.pids(), workers.records().clone());
        supervisor.recorder.update(|record| record.attempts += 1);
        let changes = Arc::new(Changes::new(term, reports.clone()));
        let mut part = Self {
            generation,
            hosts,
            reports,
            workers,
            waiting: None,
            images,
            changes,
            connections: Connections::default(),
            number: rand::random(),
            started: None,
            feed: None,
            eval_feed: None,
            evaluations: 0,
            written: BTreeMap::new(),
            done: BTreeSet::new(),
            last_step: 0,
            is_end_known: false,
            is_end_reported: false,
            stopped: BTreeSet::new(),
            is_stopping: false,
            wants_checkpoint: false,
            watch: ranks.spans_hosts().then(Watch::new),
            lost: None,
            has_failed: false,
            totals: HistoryPoint::default(),
        };
        if world == 1 {
            part.waiting = Some(role(0));
            part.report(WorkerEvent::Ready(vec![part.number.to_le_bytes().into()]));
        } else {
            part.workers.send_each(role);
            if !ranks.reduce() {
                part.send_descriptors(supervisor, prepared);
            }
        }
        Ok(part)
    }

    /// Passes the workers what follows their assignment.
    fn send_descriptors(&mut self, supervisor: &Supervisor, prepared: &Prepared) {
        if let Some(images) = &self.images {
            self.workers.send_images(images);
        }
        let (ranks, connections, changes) = (self.workers.ranks(), &mut self.connections, &self.changes);
        self.workers.send_objects(|number| {
            let writing = Writing::Among(Arc::clone(changes));
            supervisor.connect_to(prepared, (ranks.rank(number), Some(writing)), connections)
        });
    }

    /// The generation.
    pub(super) fn generation(&self) -> GenerationId {
        self.generation
    }

    /// The workers.
    pub(super) fn workers(&self) -> &Generation {
        &self.workers
    }

    /// Whether the workers are fed: a request for a checkpoint reaches rank 0.
    pub(super) fn is_training(&self) -> bool {
        self.feed.is_some()
    }

    /// When [`Part::check_time`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let lost = self.lost.as_ref().filter(|_| !self.has_failed).map(|(_, until)| *until);
        lost.into_iter().chain(self.watch.as_ref().map(Watch::due)).min()
    }

    /// Lets the workers train from `from`. `addresses` are those of all ranks.
    pub(super) fn start(
        &mut self,
        supervisor: &Supervisor,
        prepared: &Prepared,
        from: Start,
        addresses: &[Address],
    ) -> Result<()> {
        let split = |address: &Address| {
            let (number, address) = address.split_first_chunk::<NUMBER_BYTES>()?;
            Some((u128::from_le_bytes(*number), address.to_vec()))
        };
        let split: Option<Vec<_>> = addresses.iter().map(split).collect();
        let split = split.context("the address of a worker is damaged")?;
        let session = split.first().context("there are no workers")?.0;
        self.started = Some(Started { from, session });
        match self.waiting.take() {
            Some(mut role) => {
                if let ToWorker::Start(start) = &mut role
                    && let Role::Train(role) = &mut start.role
                {
                    role.newest_step = Some(from.step());
                }
                self.workers.send(0, &role);
                self.send_descriptors(supervisor, prepared);
            }
            None => {
                let addresses: Vec<_> = split.into_iter().map(|(_, address)| address).collect();
                self.workers.connect(&addresses, Some(from.step()));
            }
        }
        Ok(())
    }

    /// Lets the workers save the model and exit, after a step on which they agree. Before they are fed, they expect rings. Reducers exit
    /// by themselves.
    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
        if self.is_training() {
            self.workers.send_each(|_| ToWorker::Stop { checkpoint: true });
        }
    }

    /// Requests a checkpoint of rank 0, by way of the leader.
    pub(super) fn request_checkpoint(&self) {
        self.note(&ToLeader::Checkpoint);
    }

    /// Lets the leader end the job on all hosts.
    pub(super) fn cancel(&self) {
        self.note(&ToLeader::Cancel);
    }

    /// Handles what the leader says.
    pub(super) fn hear(&mut self, note: &Note, site: &Site, supervisor: &mut Supervisor) {
        let note = match decode(note) {
            Ok(note) => note,
            Err(error) => return tracing::warn!("the leader says what this daemon does not know: {error}"),
        };
        let has_first = self.workers.ranks().first == 0;
        match note {
            ToHost::Report(report) => self.record(report, supervisor),
            ToHost::WriteParts(_) if self.workers.ranks().reduce() => {}
            ToHost::WriteParts(request) => {
                // Also if an earlier attempt at this step has failed.
                self.written.insert(request.step, 0);
                let message = ToWorker::WriteParts(request);
                let others = if has_first { 1 } else { 0 };
                (others..self.workers.ranks().count).for_each(|number| self.workers.send(number, &message));
            }
            ToHost::PartsWritten(written) if has_first => {
                self.workers.send(0, &ToWorker::PartsWritten(written));
            }
            ToHost::Checkpoint if has_first => {
                self.wants_checkpoint = true;
                self.pass_on_request();
            }
            ToHost::PartsWritten(_) | ToHost::Checkpoint => {}
            ToHost::Changed { number, result } => self.changes.answer(number, result),
            ToHost::Awaited(awaited) => {
                if let Some(watch) = &mut self.watch {
                    watch.hear(awaited, &site.this.about.host, self.workers.records());
                }
            }
        }
    }

    /// Records a report of rank 0.
    fn record(&mut self, report: FromWorker, supervisor: &mut Supervisor) {
        let skipped = self.feed.as_ref().map_or(0, Feed::skipped);
        if record_report(report, (skipped, &mut self.totals), supervisor) {
            self.is_end_known = true;
            self.report_end();
        }
    }

    /// Handles a message of a worker.
    ///
    /// # Errors
    /// When the workers cannot be fed.
    pub(super) fn handle_message(
        &mut self,
        (number, message): (u32, FromWorker),
        (prepared, site): (&Prepared, &Site),
        supervisor: &mut Supervisor,
    ) -> Result<()> {
        let rank = self.workers.ranks().rank(number);
        match message {
            FromWorker::Listening { address } => {
                if let Some(addresses) = self.workers.on_listening(number, address) {
                    let number = self.number.to_le_bytes();
                    let address = |address: Vec<u8>| [&number[..], &address].concat().into();
                    self.report(WorkerEvent::Ready(addresses.into_iter().map(address).collect()));
                }
            }
            FromWorker::Ready { restored, passed_over, device } => {
                let ready = ReadyWorker { restored, passed_over, device };
                if let Some(ready) = self.workers.on_ready(number, ready)? {
                    self.feed(ready, (prepared, site), supervisor)?;
                }
            }
            FromWorker::EvalDue => self.feed_evaluation((prepared, site), supervisor)?,
            FromWorker::WriteParts(request) => self.note(&ToLeader::WriteParts(request)),
            FromWorker::PartsWritten(written) => self.on_written(written),
            FromWorker::Warned { message } if rank != 0 => {
                supervisor.recorder.log(Level::WARN, &format!("worker {rank}: {message}"));
            }
            FromWorker::Progress(progress) => {
                self.report(WorkerEvent::Step(progress.step));
                self.note(&ToLeader::Report(message));
            }
            FromWorker::Evaluated { .. } => {
                // The evaluation has consumed its rows.
                self.eval_feed = None;
                self.note(&ToLeader::Report(message));
            }
            FromWorker::Checkpointed { .. }
            | FromWorker::CheckpointFailed { .. }
            | FromWorker::Warned { .. } => {
                self.note(&ToLeader::Report(message));
            }
            message => self.handle_last_message(number, message),
        }
        Ok(())
    }

    /// Requests a checkpoint of rank 0, which is here, once it is fed.
    fn pass_on_request(&mut self) {
        if self.is_training() && std::mem::take(&mut self.wants_checkpoint) {
            self.workers.send(0, &ToWorker::Checkpoint);
        }
    }

    /// Reports that all workers of this host have trained on all rows, if they have. Where rank 0 is, its last report must have reached all
    /// hosts before, because the generation may end by this one.
    fn report_end(&mut self) {
        let ranks = self.workers.ranks();
        if self.done.len() == ranks.count as usize && (self.is_end_known || ranks.first > 0) {
            self.is_end_reported = true;
            self.report(WorkerEvent::AtEnd(self.last_step));
        }
    }

    /// Workers of this host have written files of a checkpoint.
    fn on_written(&mut self, written: PartsWritten) {
        let (step, is_written) = (written.step, written.parts.is_ok());
        self.note(&ToLeader::PartsWritten(written));
        let RanksHere { first, count, .. } = self.workers.ranks();
        let all = self.written.entry(step).or_default();
        *all += u32::from(is_written);
        // Rank 0 has written its own when it proposes the manifest.
        if *all == count && first > 0 {
            self.report(WorkerEvent::Saved(step));
        }
    }

    fn handle_last_message(&mut self, number: u32, message: FromWorker) {
        self.workers.on_last_message(number);
        match message {
            FromWorker::Done { step, .. } => {
                if self.workers.ranks().rank(number) == 0 {
                    self.note(&ToLeader::Report(message));
                }
                self.done.insert(number);
                self.last_step = step;
                self.report_end();
            }
            FromWorker::Stopped => drop(self.stopped.insert(number)),
            FromWorker::PeerLost { message } => {
                let until = Instant::now() + CAUSE_TIMEOUT;
                self.lost.get_or_insert((message, until));
            }
            FromWorker::InputLost => {
                let feeds = [self.feed.take(), self.eval_feed.take()].into_iter().flatten();
                let mut errors = feeds.filter_map(|feed| feed.stop().err());
                let lost = errors.find(|error| !feed::is_echo(error));
                let is_of_peer = matches!(lost, Some(millstream_pipeline::Error::Peer { .. }));
                let reason =
                    lost.map_or_else(|| "a worker lost its input".to_owned(), |error| error.to_string());
                self.fail(&reason, is_of_peer);
            }
            // What has worked once fails for good, on every host.
            FromWorker::Failed { message } if self.is_training() => {
                self.note(&ToLeader::Fail { reason: message.clone() });
                self.fail(&message, false);
            }
            FromWorker::DeviceFailed { message, .. }
            | FromWorker::DeviceUnusable { message }
            | FromWorker::StorageFailed { message }
            | FromWorker::Failed { message } => self.fail(&message, false),
            _ => self.fail("a worker has sent an unexpected message", false),
        }
    }

    /// A worker has closed its socket.
    pub(super) fn on_gone(&mut self, number: u32) {
        if self.workers.on_gone(number) {
            let exit = self.workers.exit_of(number, EXIT_TIMEOUT);
            let exit =
                exit.map_or_else(|error| format!("the worker is lost: {error}"), |exit| exit.to_string());
            self.fail(&exit, false);
        }
        let is_over = self.workers.is_over();
        let has_ended = self.done.len() + self.stopped.len() == self.workers.ranks().count as usize;
        // A lost worker is reported by its host first, if that has noticed.
        if is_over && !has_ended && self.lost.is_none() {
            self.fail("the workers ended without a result", true);
        }
    }

    /// Whether all workers have exited, and nothing is to be reported any more. Reducers exit before the leader knows that all workers
    /// have trained on all rows; their host remains in the generation until it ends.
    pub(super) fn is_over(&self) -> bool {
        let owes_report = !self.done.is_empty() && !self.is_end_reported || self.lost.is_some();
        let remains = owes_report || self.workers.ranks().reduce() && !self.is_stopping;
        self.workers.is_over() && (self.has_failed || !remains)
    }

    /// Reports a lost worker once it is likely that none died, and what the workers wait for.
    pub(super) fn check_time(&mut self, prepared: &Prepared) {
        if self.lost.as_ref().is_some_and(|(_, until)| *until <= Instant::now()) {
            self.fail_for_lost(prepared);
        }
        let report = self.watch.as_mut().and_then(|watch| watch.look(self.workers.records()));
        report.iter().for_each(|report| self.note(report));
    }

    /// Reports that a worker is lost to the others: which one, if that is known.
    fn fail_for_lost(&mut self, prepared: &Prepared) {
        let limit = Duration::from_secs(prepared.job.workers.timeout_seconds.into());
        let report = self.lost.as_ref().map(|(report, _)| report.clone());
        let reason = self.workers.hanging(limit).or(report);
        reason.iter().for_each(|reason| self.fail(reason, true));
    }

    /// Reports that the workers cannot continue. The member then kills them.
    pub(super) fn fail(&mut self, reason: &str, is_of_peer: bool) {
        if std::mem::replace(&mut self.has_failed, true) {
            return;
        }
        let reason = Reason::new(reason);
        self.report(if is_of_peer { WorkerEvent::PeerLost(reason) } else { WorkerEvent::Died(reason) });
    }

    /// Ends the workers, and what serves them; kills them unless they are about to exit.
    pub(super) fn end(self, kill: bool, supervisor: &Supervisor) {
        let Self { workers, changes, connections, feed, eval_feed, reports, totals, .. } = self;
        changes.close();
        let ended = if kill { workers.kill() } else { workers.finish(EXIT_TIMEOUT) };
        if let Err(error) = ended {
            tracing::warn!(%error, "a worker's end is not reported");
        }
        drop(connections);
        supervisor.control.vitals().set_workers(Vec::new(), FlightRecords::default());
        // The next ones may start. Ingest may still wait for storage.
        reports.blocking_send(WorkerEvent::Gone);
        if let Some(control) = supervisor.control.ingest().take() {
            log_input(&control.explain().whole, supervisor);
        }
        let skipped = feed.as_ref().map(Feed::skipped);
        for error in [feed, eval_feed].into_iter().flatten().filter_map(|feed| feed.stop().err()) {
            tracing::debug!(%error, "ingest has ended");
        }
        supervisor.recorder.end_history();
        supervisor.recorder.update(|record| {
            if let Some(skipped) = skipped {
                record.progress.skipped_records = skipped;
            }
            set_rates(record, &totals);
        });
    }

    fn note(&self, note: &ToLeader) {
        self.report(WorkerEvent::Note(encode(note)));
    }

    fn report(&self, event: WorkerEvent) {
        self.reports.blocking_send(event);
    }
}

/// Waits until this host knows where all `hosts` listen: the leader may know one earlier.
fn wait_for_addresses(site: &Site, hosts: &[(HostName, Ranks)]) -> Result<()> {
    let until = Instant::now() + ADDRESS_TIMEOUT;
    loop {
        let unknown = {
            let known = site.hosts.borrow();
            hosts.iter().find(|(host, _)| !known.contains_key(host)).map(|(host, _)| host.clone())
        };
        let Some(host) = unknown else { return Ok(()) };
        ensure!(Instant::now() < until, "this host does not know where host {host} is");
        std::thread::sleep(ADDRESS_INTERVAL);
    }
}
