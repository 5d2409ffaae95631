//! Leading a job: this daemon takes the lease of the run whenever it may, and then conducts all hosts of the job.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use millstream_peers::conduct::{Addresses, Ended, Order, RunAddress, Term, lead};
use millstream_peers::generations::{GenerationId, Limits, Outcome, Reason, Snapshot};
use millstream_peers::server::ThisHost;
use millstream_trainer::checkpoint::MANIFEST;
use millstream_trainer::checkpoint::store::directory_name;
use tokio::sync::{mpsc, watch};

use super::led_run::LedRun;
use super::seat::{Seat, SeatEvent};
use crate::runs::{End, Head, Lease, Look, RunDirectory, Storage, Taken, Times, of_term};

/// Interval between looks at the lease.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between looks at the members, which may need a leader.
const MAY_LEAD_INTERVAL: Duration = Duration::from_millis(200);

/// The most orders that wait for the leader.
const ORDERS: usize = 64;

/// A job that this daemon may lead.
pub(super) struct Candidate {
    pub(super) this: Arc<ThisHost>,
    pub(super) run: RunAddress,
    pub(super) limits: Limits,
    pub(super) times: Times,
    pub(super) directory: RunDirectory,
    pub(super) storage: Storage,
    /// Where hosts listen, this one included.
    pub(super) hosts: watch::Receiver<Addresses>,
    pub(super) seat: Arc<Seat>,
    pub(super) wish: watch::Receiver<Wish>,
    /// Whether the job goes on if it has failed: a user has resumed it.
    pub(super) reopens: bool,
}

/// What the job's thread wants of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// To lead whenever possible.
    Lead,
    /// To stop leading at the next step boundary.
    Stop,
    /// To end the job, for this reason, if this daemon leads it, and to stop leading.
    Fail(String),
}

impl Candidate {
    /// Leads whenever possible, until the job is over or [`Wish::Stop`].
    pub(super) async fn run(mut self) {
        let mut look = None;
        while *self.wish.borrow_and_update() == Wish::Lead {
            if !self.this.jobs().may_lead(&self.run) {
                // The leader is alive. An unchanged lease says nothing about it.
                look = None;
                self.pause(MAY_LEAD_INTERVAL).await;
                continue;
            }
            match self.try_lead(&mut look).await {
                Ok(None) => self.pause(LOOK_INTERVAL).await,
                Ok(Some(end)) => {
                    let outcome = match end {
                        End::Finished => Outcome::Finished,
                        End::Failed(reason) => Outcome::Failed(Reason::new(&reason)),
                    };
                    // Also if no leader has called this host.
                    self.seat.push(SeatEvent::Over(outcome.clone()));
                    return self.this.jobs().over(&self.run, outcome).await;
                }
                Err(error) => {
                    self.seat.push(SeatEvent::Waits(format!("the run cannot be led: {error:#}")));
                    self.pause(LOOK_INTERVAL).await;
                }
            }
        }
    }

    /// Whether a job that has ended like this does not go on.
    fn is_over(&self, ended: Option<&End>) -> bool {
        match ended {
            None => false,
            Some(End::Finished) => true,
            Some(End::Failed(_)) => !self.reopens,
        }
    }

    /// Waits, but not longer than until the wish changes.
    async fn pause(&mut self, time: Duration) {
        // Fails if the job's thread has ended, which drops this.
        let _ = tokio::time::timeout(time, self.wish.changed()).await;
    }

    /// Leads if the lease is free, until that is over. Returns how the job has ended, if it has.
    async fn try_lead(&mut self, look: &mut Option<Look>) -> Result<Option<End>> {
        let (orders, queue) = mpsc::unbounded_channel();
        let resign = orders.clone();
        let lost = move |reason: String| {
            tracing::warn!("this daemon leads no longer: {reason}");
            // Fails if it does not lead.
            let _ = resign.send(Order::Resign);
        };
        let place = (self.directory.address(), &self.storage);
        let lease = match Lease::try_take(place, self.times, look, lost).await? {
            Taken::Lease(lease) => Arc::new(lease),
            Taken::Held(Some(led)) if self.is_over(led.ended.as_ref()) => return Ok(led.ended),
            Taken::Held(_) => {
                let holder = look.as_ref().map(Look::holder).unwrap_or_default();
                self.seat.push(SeatEvent::Waits(format!("waiting for the leader: {holder}")));
                return Ok(None);
            }
        };
        *look = None;
        let led = self.lead_under(&lease, (orders, queue)).await;
        if lease.lost().is_none() {
            lease.release().await;
        }
        led
    }

    async fn lead_under(
        &mut self,
        lease: &Arc<Lease>,
        (orders, mut queue): (mpsc::UnboundedSender<Order>, mpsc::UnboundedReceiver<Order>),
    ) -> Result<Option<End>> {
        let newest = match lease.led().await {
            Some(led) if self.is_over(led.ended.as_ref()) => return Ok(led.ended),
            Some(led) => {
                if led.ended.is_some() {
                    lease.reopen().await.map_err(|reason| anyhow!(reason))?;
                }
                led.head
            }
            None => self.newest_manifest().await?,
        };
        let (epoch, led) = lease.begin_epoch(newest).await?;
        // From now on, a failure is of the resumed job.
        self.reopens = false;
        self.remove_later(led.head, lease).await?;
        let checkpoint = led.head.map(|Head { step, term }| {
            let (epoch, number) = of_term(term);
            Snapshot { step, generation: GenerationId { epoch, number } }
        });
        let (directory, stores) = (self.directory.address().clone(), self.storage.stores.clone());
        let run = LedRun::new(
            (directory, stores),
            (Arc::clone(lease), led.head),
            orders.clone(),
            Arc::clone(&self.seat),
        );
        let term = Term { run: self.run.clone(), epoch, limits: self.limits, checkpoint };
        let (ordered, taken) = mpsc::channel(ORDERS);
        let pass_on = async {
            while let Some(order) = queue.recv().await {
                // Nobody leads any more if it fails.
                let _ = ordered.send(order).await;
            }
        };
        let mut wish = self.wish.clone();
        let obey = async {
            let order = match wish.wait_for(|wish| *wish != Wish::Lead).await.as_deref() {
                Ok(Wish::Fail(reason)) => Order::Fail(Reason::new(reason)),
                _ => Order::Drain,
            };
            let _ = orders.send(order);
            std::future::pending::<()>().await;
        };
        let leading = lead(Arc::clone(&self.this), term, Arc::new(run), self.hosts.clone(), taken);
        let ended = tokio::select! {
            ended = leading => ended,
            () = pass_on => Ended::Deposed,
            () = obey => Ended::Deposed,
        };
        match ended {
            Ended::Concluded => return Ok(lease.led().await.and_then(|led| led.ended)),
            Ended::Released => {}
            // A write may be on the way.
            Ended::Deposed => lease.abandon("this daemon leads no longer"),
        }
        Ok(None)
    }

    /// The newest checkpoint in the directory.
    async fn newest_manifest(&self) -> Result<Option<Head>> {
        let directory = self.directory.clone();
        let newest = move || {
            let store = directory.checkpoints()?;
            let Some(step) = store.steps()?.pop() else { return Ok(None) };
            let term = store.manifest(step)?.term;
            Ok(Some(Head { step, term }))
        };
        tokio::task::spawn_blocking(newest).await.context("reading the checkpoints of the run")?
    }

    /// Removes the manifests of checkpoints after `head`, which an earlier leader has written, or a late request of it, but which do not
    /// count.
    async fn remove_later(&self, head: Option<Head>, lease: &Lease) -> Result<()> {
        let directory = self.directory.clone();
        let steps = move || anyhow::Ok(directory.checkpoints()?.steps()?);
        let steps =
            tokio::task::spawn_blocking(steps).await.context("reading the checkpoints of the run")??;
        for step in steps.into_iter().filter(|step| head.is_none_or(|head| *step > head.step)) {
            lease.confirm().await?;
            tracing::warn!(
                "the checkpoint of step {step} in {} was not committed; it is removed",
                self.directory
            );
            let manifest = self.directory.address().join(&directory_name(step)).join(MANIFEST);
            self.storage.stores.delete(&manifest.text(), Path::new("/")).await?;
        }
        Ok(())
    }
}
