//! Feeds the workers of this host with the rows of a generation: each host fetches and decodes its own lanes, and they exchange updates
//! about them in a session.

use std::num::NonZeroU32;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use millstream_peers::HostName;
use millstream_peers::generations::Ranks;
use millstream_peers::generations::member::WorkerEvent;
use millstream_peers::lanes::{LanePeers, SessionHost, SessionId, Sessions};
use millstream_pipeline::ingest::{IngestPlan, Peers};
use millstream_pipeline::order::Deal;
use millstream_trainer::model::ModelPlan;
use millstream_trainer::spec::TrainingSpec;
use millstream_worker::protocol::ToWorker;

use super::super::super::generation::ReadyWorker;
use super::super::super::{Prepared, Supervisor};
use super::super::Site;
use super::Part;
use crate::feed::Feed;
use crate::ranks::gpus;

impl Part {
    /// Starts feeding the workers, which are `ready`.
    pub(super) fn feed(
        &mut self,
        ready: ReadyWorker,
        (prepared, site): (&Prepared, &Site),
        supervisor: &mut Supervisor,
    ) -> Result<()> {
        let wanted = self.started.as_ref().map_or(0, |started| started.from.step());
        let step = ready.restored.as_ref().map_or(0, |restored| restored.step);
        // An earlier one is that before a damaged one. All hosts have restored the same.
        ensure!(step <= wanted, "the workers have restored step {step} instead of step {wanted}");
        let position = supervisor.resumes(prepared, ready, &self.workers);
        supervisor.recorder.update(|record| record.reason.clear());
        let peers = self.session(0, (prepared, site), supervisor)?;
        let (feed, rings) = Feed::start_among(peers, &prepared.plan, position.as_deref())?;
        *supervisor.control.ingest() = Some(feed.control());
        self.feed = Some(feed);
        self.workers.send_rings(rings);
        self.report(WorkerEvent::Step(step));
        self.pass_on_request();
        if !supervisor.checkpoint_requests.is_empty() {
            self.request_checkpoint();
        }
        if self.is_stopping {
            self.stop();
        }
        Ok(())
    }

    /// Feeds the workers all held-out rows through separate rings.
    pub(super) fn feed_evaluation(
        &mut self,
        (prepared, site): (&Prepared, &Site),
        supervisor: &Supervisor,
    ) -> Result<()> {
        let plan = prepared.eval_plan.as_ref();
        let plan: &IngestPlan = plan.context("a worker requested held-out rows, but the job has none")?;
        self.evaluations += 1;
        let peers = self.session(self.evaluations, (prepared, site), supervisor)?;
        let (feed, rings) = Feed::start_among(peers, plan, None)?;
        self.eval_feed = Some(feed);
        self.workers.send_each(|_| ToWorker::EvalRing);
        self.workers.send_rings(rings);
        Ok(())
    }

    /// Session `number` with the other hosts, if there are any.
    fn session(
        &self,
        number: u128,
        (prepared, site): (&Prepared, &Site),
        supervisor: &Supervisor,
    ) -> Result<Option<Arc<dyn Peers>>> {
        if self.hosts.len() == 1 {
            return Ok(None);
        }
        let first = self.started.as_ref().context("the generation has not started")?.session;
        let addresses = site.hosts.borrow();
        let host = |(name, _): &(HostName, Ranks)| {
            let address = addresses.get(name).with_context(|| format!("host {name} is unknown here"))?;
            Ok(SessionHost { name: name.clone(), address: address.clone() })
        };
        let hosts: Vec<_> = self.hosts.iter().map(host).collect::<Result<_>>()?;
        drop(addresses);
        let own = hosts.iter().position(|host| host.name == site.this.about.host);
        let own = own.ok_or_else(|| anyhow!("this host has no ranks"))?;
        let _context = supervisor.runtime.enter();
        let session = SessionId(first.wrapping_add(number));
        let open = Sessions::open(&site.this, session, (own, hosts), prepared.job.data.lanes)?;
        Ok(Some(Arc::new(LanePeers::new(open))))
    }
}

impl Prepared {
    /// Plans the next generation: this host is number `here` of hosts with these numbers of ranks, `world` together.
    ///
    /// # Errors
    /// When the memory budget is too small for the rings, or the ranks cannot have equally many parts.
    pub(super) fn set_hosts(&mut self, (here, ranks): (u32, &[u32]), world: u32) -> Result<()> {
        let before = &self.job.training;
        // Of this host only, while `workers` counts those of all.
        let gpus = gpus(before);
        let training = TrainingSpec { workers: NonZeroU32::new(world), gpus, ..before.clone() };
        let parts = training.parts();
        let deal = Deal::among_ranks(here, ranks, parts);
        let deal = deal.with_context(|| format!("{parts} parts of a batch for {world} workers"))?;
        let plan = self.plan.clone().with_deal(deal.clone())?;
        let eval_plan = self.eval_plan.clone().map(|plan| plan.with_deal(deal)).transpose()?;
        self.model = ModelPlan::new(&self.job.model, &self.schema, &training)?;
        (self.plan, self.eval_plan, self.job.training) = (plan, eval_plan, training);
        Ok(())
    }
}
