//! Hosts that serve each other, and a run in memory.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::super::*;
use super::workers::{Fake, Seat, Training};
use crate::generations::{GenerationId, Limits, Note, Offer, Outcome, Role, SETTLE, Shortage, Snapshot};
use crate::server::tests::Site;
use crate::server::{Refusals, ThisHost, serve};

/// The ranks of each host.
pub(super) const RANKS: u32 = 2;

/// No scenario takes longer between two steps.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Cluster {
    pub(super) site: Site,
    pub(super) hosts: Vec<Host>,
    pub(super) training: Arc<Training>,
    pub(super) bucket: Arc<Bucket>,
    pub(super) addresses: watch::Sender<Addresses>,
}

pub(super) struct Host {
    pub(super) this: Arc<ThisHost>,
    pub(super) seat: Arc<Seat>,
    stop: Option<oneshot::Sender<()>>,
}

/// A leader.
pub(super) struct Led {
    pub(super) task: JoinHandle<Ended>,
    pub(super) orders: mpsc::Sender<Order>,
}

impl Cluster {
    pub(super) async fn start(count: usize) -> Self {
        let (site, training) = (Site::new(), Training::new());
        let hosts = (0..count).map(|number| {
            let name = format!("host-{number}");
            let this = Arc::into_inner(site.host_at((&name, &name), number as u64 + 1, "")).unwrap();
            let seat = Seat::new(HostName::named(&name), &training);
            let workers = Arc::clone(&seat);
            let accept = move |run: &RunAddress, _: &HostName| {
                let is_over = workers.outcome.lock().unwrap().is_some();
                let workers = Box::new(Fake(Arc::clone(&workers)));
                (*run == run_address() && !is_over)
                    .then_some(Accepted { offer: Offer { role: Role::Train, count: RANKS }, workers })
            };
            Host { this: Arc::new(this.accepting(accept)), seat, stop: None }
        });
        let hosts = hosts.collect();
        let (addresses, _) = watch::channel(Addresses::new());
        let mut cluster = Self { site, hosts, training, bucket: Arc::default(), addresses };
        for number in 0..count {
            cluster.serve(number).await;
        }
        cluster
    }

    /// The server of a host starts, at a new address.
    pub(super) async fn serve(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel();
        let ended = async { drop(stopped.await) };
        let refusals = Arc::new(Refusals::default());
        tokio::spawn(serve(listener, Arc::clone(&host.this), refusals, |_| Vec::new(), ended));
        host.stop = Some(stop);
        let name = host.seat.host.clone();
        self.addresses.send_modify(|addresses| drop(addresses.insert(name, address)));
    }

    /// The server of a host stops.
    pub(super) fn stop(&mut self, number: usize) {
        self.hosts[number].stop = None;
    }

    pub(super) fn name(&self, number: usize) -> HostName {
        self.hosts[number].seat.host.clone()
    }

    pub(super) fn address(&self, number: usize) -> String {
        self.addresses.borrow()[&self.name(number)].clone()
    }

    /// A host leads in `epoch`, as soon as it has the lease.
    pub(super) fn lead(&self, number: usize, epoch: u64) -> Led {
        let checkpoint = self.bucket.take_lease(epoch);
        let limits =
            Limits { min: 1, max: RANKS * self.hosts.len() as u32, parts: None, has_reducers: false };
        let term = Term { run: run_address(), epoch, limits, checkpoint };
        let run = Arc::new(Lease { bucket: Arc::clone(&self.bucket), epoch });
        let (orders, queue) = mpsc::channel(1);
        let this = Arc::clone(&self.hosts[number].this);
        Led { task: tokio::spawn(lead(this, term, run, self.addresses.subscribe(), queue)), orders }
    }

    /// Waits for a checkpoint that `is_wanted`, given its hosts, at least 10 steps after the present one.
    pub(super) async fn commits(&self, is_wanted: impl Fn(&[HostName]) -> bool) -> Snapshot {
        let least = self.bucket.newest().map_or(0, |newest| newest.step) + 10;
        self.until("a checkpoint", || {
            let newest = self.bucket.newest().filter(|newest| newest.step >= least)?;
            is_wanted(&self.training.hosts(newest.generation)).then_some(newest)
        })
        .await
    }

    pub(super) async fn until<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let found = async {
            loop {
                if let Some(found) = found() {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let newest = || self.bucket.newest();
        timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("no {what} after {:?}", newest()))
    }

    /// Waits until a host has no workers; at most `limit`.
    pub(super) async fn vacates(&self, number: usize, limit: Duration) {
        let began = Instant::now();
        let alive = &self.hosts[number].seat.alive;
        self.until("end of workers", || (alive.load(Ordering::SeqCst) == 0).then_some(())).await;
        assert!(began.elapsed() <= limit, "workers of host {number} lived for {:?}", began.elapsed());
    }

    /// Lets the job end. Then no workers are left, and these hosts know.
    pub(super) async fn finishes(&self, led: Led, hosts: &[usize]) {
        self.training.finish();
        assert_eq!(timeout(PATIENCE, led.task).await.unwrap().unwrap(), Ended::Concluded);
        let run = self.bucket.0.lock().unwrap().clone();
        assert_eq!(run.outcome, Some(Outcome::Finished));
        let is_newer = |pair: &[Snapshot]| pair[1].contains(Some(pair[0])) && pair[0].step < pair[1].step;
        assert!(run.commits.windows(2).all(is_newer), "{:?}", run.commits);
        for number in 0..self.hosts.len() {
            self.vacates(number, SETTLE).await;
        }
        for host in hosts {
            assert_eq!(
                *self.hosts[*host].seat.outcome.lock().unwrap(),
                Some(Outcome::Finished),
                "host {host}"
            );
        }
    }
}

pub(super) fn run_address() -> RunAddress {
    RunAddress::parse("gs://bucket/run").unwrap()
}

/// What a bucket holds of a run.
#[derive(Debug, Default)]
pub(super) struct Bucket(Mutex<Stored>);

#[derive(Clone, Debug, Default)]
struct Stored {
    epoch: u64,
    commits: Vec<Snapshot>,
    outcome: Option<Outcome>,
    notes: Vec<(HostName, GenerationId, Note)>,
    is_released: bool,
}

impl Bucket {
    pub(super) fn newest(&self) -> Option<Snapshot> {
        self.0.lock().unwrap().commits.last().copied()
    }

    /// What hosts have said to the leader.
    pub(super) fn notes(&self) -> Vec<(HostName, GenerationId, Note)> {
        self.0.lock().unwrap().notes.clone()
    }

    pub(super) fn is_released(&self) -> bool {
        self.0.lock().unwrap().is_released
    }

    pub(super) fn take_lease(&self, epoch: u64) -> Option<Snapshot> {
        let mut stored = self.0.lock().unwrap();
        stored.epoch = stored.epoch.max(epoch);
        stored.is_released = false;
        stored.commits.last().copied()
    }
}

/// The bucket of a leader.
struct Lease {
    bucket: Arc<Bucket>,
    epoch: u64,
}

impl Lease {
    async fn change(&self, change: impl FnOnce(&mut Stored)) -> Result<(), LeaseLost> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let mut stored = self.bucket.0.lock().unwrap();
        if stored.epoch != self.epoch {
            return Err(LeaseLost);
        }
        change(&mut stored);
        Ok(())
    }
}

impl Run for Lease {
    async fn commit(&self, checkpoint: Snapshot) -> Result<(), NotCommitted> {
        Ok(self.change(|stored| stored.commits.push(checkpoint)).await?)
    }

    async fn conclude(&self, outcome: Outcome) -> Result<(), LeaseLost> {
        self.change(|stored| stored.outcome = Some(outcome)).await
    }

    async fn release(&self) {
        self.change(|stored| stored.is_released = true).await.unwrap();
    }

    fn show(&self, _: &Shortage) {}

    fn hear(&self, from: HostName, generation: GenerationId, note: Note) {
        self.bucket.0.lock().unwrap().notes.push((from, generation, note));
    }
}

/// Passes connections on until it freezes: then it neither reads nor closes them.
pub(super) struct Proxy {
    pub(super) address: String,
    is_frozen: Arc<AtomicBool>,
}

impl Proxy {
    pub(super) async fn start(to: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let is_frozen = Arc::new(AtomicBool::new(false));
        let frozen = Arc::clone(&is_frozen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (down, up) = stream.into_split();
                let (back, on) = TcpStream::connect(&to).await.unwrap().into_split();
                tokio::spawn(pass_on(down, on, Arc::clone(&frozen)));
                tokio::spawn(pass_on(back, up, Arc::clone(&frozen)));
            }
        });
        Self { address, is_frozen }
    }

    pub(super) fn freeze(&self) {
        self.is_frozen.store(true, Ordering::SeqCst);
    }
}

async fn pass_on(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    is_frozen: Arc<AtomicBool>,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if is_frozen.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
