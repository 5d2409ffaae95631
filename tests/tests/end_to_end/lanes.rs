//! Hosts that divide the reading of a dataset, over real connections: together they pack the batches of one host.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millstream_batch::{BatchHeader, Consumer};
use millstream_peers::authority::Authority;
use millstream_peers::lanes::{LanePeers, SessionHost, SessionId, Sessions};
use millstream_peers::server::{Refusals, ThisHost, serve};
use millstream_peers::tls::{Identity, TlsFiles};
use millstream_peers::{About, HostName, HostStatus};
use millstream_pipeline::Error;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::ingest::{self, DatasetSource, IngestHandle, IngestPlan, Peers};
use millstream_pipeline::order::{Deal, Position};
use millstream_pipeline::spec::{
    DataSpec, FeatureKind, FeatureSpec, LabelSpec, MissingNumber, Normalize, OnBadRecord,
};
use millstream_pipeline::transform::Transform;
use millstream_tests::table::Table;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const FILES: u64 = 5;
const ROWS: usize = 3_000;
const LANES: u32 = 8;

/// The host of each part: three hosts, of which the first has two.
const HOST_OF_PART: [u32; 4] = [0, 1, 2, 0];

/// Hosts that serve each other, and a dataset.
struct Hosts {
    runtime: Runtime,
    dir: TempDir,
    hosts: Vec<(Arc<ThisHost>, SessionHost)>,
}

impl Hosts {
    fn start(count: usize) -> Self {
        let (runtime, dir) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        for file in 0..FILES {
            Table::clicks(ROWS, file + 1).write_parquet(&dir.path().join(format!("{file}.parquet")));
        }
        let authority = Authority::create(&dir.path().join("ca"), 1).unwrap();
        let hosts = (0..count).map(|number| Self::serve(&runtime, &authority, dir.path(), number)).collect();
        Self { runtime, dir, hosts }
    }

    fn serve(
        runtime: &Runtime,
        authority: &Authority,
        dir: &Path,
        number: usize,
    ) -> (Arc<ThisHost>, SessionHost) {
        let name = HostName::parse(&format!("host-{number}")).unwrap();
        let issued = authority.issue(name.as_str(), 1, dir).unwrap();
        let files = TlsFiles {
            certificate: issued.certificate,
            key: issued.key,
            ca: authority.certificate(),
            crl: None,
        };
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let about = About {
            host: name.clone(),
            version: String::new(),
            instance: number as u64,
            address: address.clone(),
        };
        let this = Arc::new(ThisHost::new(about, Identity::load(files).unwrap(), HostStatus::default));
        let refusals = Arc::new(Refusals::default());
        runtime.spawn(serve(listener, Arc::clone(&this), refusals, |_| Vec::new(), std::future::pending()));
        (this, SessionHost { name, address })
    }

    /// The other hosts, for each host, in a session with this number.
    fn session(&self, id: u128) -> Vec<Arc<dyn Peers>> {
        let members: Vec<_> = self.hosts.iter().map(|(_, member)| member.clone()).collect();
        let _entered = self.runtime.enter();
        let open = |(number, (this, _)): (usize, &(Arc<ThisHost>, SessionHost))| {
            let open = Sessions::open(this, SessionId(id), (number, members.clone()), LANES).unwrap();
            Arc::new(LanePeers::new(open)) as Arc<dyn Peers>
        };
        self.hosts.iter().enumerate().map(open).collect()
    }

    fn plan(&self) -> IngestPlan {
        let spec = DataSpec {
            base: self.dir.path().to_owned(),
            batch_size: 512,
            epochs: 2,
            shuffle_rows: 2_000,
            lanes: LANES,
            prefetch: 3,
            memory_budget_bytes: 1 << 30,
            on_bad_record: OnBadRecord::Fail,
            ..DataSpec::default()
        };
        let kind = FeatureKind::Numeric { normalize: Normalize::None, missing: MissingNumber::Error };
        let feature =
            FeatureSpec { name: "x".into(), columns: vec!["x".into()], kind, maximum: None, weights: None };
        let label = LabelSpec::of("clicked", None);
        let transform = Transform::resolve(&[feature], &label, &[], &Analysis::default()).unwrap();
        let transform = Arc::new(transform);
        let patterns = ["*.parquet".to_owned()];
        let dataset = Dataset::open(&patterns, &spec.base, None);
        let dataset = Arc::new(self.runtime.block_on(dataset).unwrap());
        let schema = transform.schema(spec.batch_size, Position::encoded_bytes(spec.lanes) as u32);
        let runtime = self.runtime.handle().clone();
        let source = Arc::new(DatasetSource::new(dataset, transform, spec.on_bad_record, runtime));
        IngestPlan::training(&spec, 3, &label, schema, (source, None), None).unwrap()
    }
}

/// A batch: its header, the position after it, and the values of its rows.
type Seen = (BatchHeader, Vec<u8>, Vec<f32>);

/// The next batch of a ring.
fn next(consumer: &mut Consumer) -> Option<Seen> {
    let leased = consumer.next().unwrap()?;
    let batch = leased.batch();
    Some((batch.header(), batch.position().to_vec(), batch.dense().to_vec()))
}

/// Starts a feed; returns it with the ends of its rings.
fn start(plan: IngestPlan, peers: Option<Arc<dyn Peers>>, from: Position) -> (IngestHandle, Vec<Consumer>) {
    let (rings, hand_offs) = plan.create_rings().unwrap();
    let schema = plan.ring_schema().clone();
    let consumers = hand_offs.into_iter().map(|hand_off| hand_off.open(&schema).unwrap()).collect();
    (ingest::start_among(peers, plan, from, rings).unwrap(), consumers)
}

/// The feeds of all hosts, with the ends of their rings by part.
fn start_all(hosts: &Hosts, id: u128, from: &[u8]) -> (Vec<IngestHandle>, Vec<Consumer>) {
    let plan = hosts.plan();
    let position = if from.is_empty() { plan.start() } else { plan.resume(from).unwrap() };
    let (mut handles, mut rings) = (Vec::new(), Vec::new());
    for peers in hosts.session(id) {
        let deal = Deal::new(peers.host(), &HOST_OF_PART).unwrap();
        let parts: Vec<_> = deal.parts_here().collect();
        let plan = plan.clone().with_deal(deal).unwrap();
        let (handle, consumers) = start(plan, Some(peers), position.clone());
        handles.push(handle);
        rings.extend(parts.into_iter().zip(consumers));
    }
    rings.sort_by_key(|(part, _)| *part);
    (handles, rings.into_iter().map(|(_, consumer)| consumer).collect())
}

fn sorted(mut values: Vec<f32>) -> Vec<f32> {
    values.sort_by(f32::total_cmp);
    values
}

/// Checks that the parts of each batch are the batch.
fn check(batches: &[Seen], consumers: &mut [Consumer]) {
    for (header, position, values) in batches {
        let mut together = Vec::new();
        for consumer in &mut *consumers {
            let (part, found, values) = next(consumer).unwrap();
            let BatchHeader { rows, first_row, most_rows, .. } = part;
            assert_eq!(part, BatchHeader { rows, first_row, most_rows, ..*header });
            assert_eq!(&found, position);
            together.extend(values);
        }
        assert_eq!(sorted(together), sorted(values.clone()));
    }
    for consumer in consumers {
        assert!(next(consumer).is_none());
    }
}

#[test]
fn three_hosts_pack_the_batches_of_one_and_resume_anywhere() {
    let hosts = Hosts::start(3);
    let plan = hosts.plan();
    let from = plan.start();
    let (handle, mut consumers) = start(plan, None, from);
    let mut whole = Vec::new();
    while let Some(batch) = next(&mut consumers[0]) {
        whole.push(batch);
    }
    let end = handle.join().unwrap().position;
    assert_eq!(
        whole.iter().map(|(header, ..)| header.rows as usize).sum::<usize>(),
        2 * ROWS * FILES as usize
    );
    let middle = whole.len() / 2 + 3;
    for (id, done) in [(1, 0), (2, middle), (3, whole.len() - 1)] {
        let from = if done == 0 { &[][..] } else { &whole[done - 1].1 };
        let (handles, mut consumers) = start_all(&hosts, id, from);
        check(&whole[done..], &mut consumers);
        for handle in handles {
            assert_eq!(handle.join().unwrap().position, end);
        }
    }
}

#[test]
fn a_host_that_stops_ends_the_feeds_of_all() {
    let hosts = Hosts::start(3);
    let (handles, mut consumers) = start_all(&hosts, 1, &[]);
    for consumer in &mut consumers {
        next(consumer).unwrap();
    }
    let [first, second, third] = <[IngestHandle; 3]>::try_from(handles).ok().unwrap();
    second.cancel();
    assert!(matches!(second.join(), Err(Error::Cancelled)));
    // The others get what was sent before, and then an error that names the host.
    let readers: Vec<_> = consumers
        .into_iter()
        .map(|mut consumer| std::thread::spawn(move || while let Ok(Some(_)) = consumer.next() {}))
        .collect();
    for handle in [first, third] {
        let error = handle.join().unwrap_err();
        assert!(matches!(error, Error::Peer { host: 1, .. }), "{error}");
    }
    for reader in readers {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !reader.is_finished() {
            assert!(std::time::Instant::now() < deadline, "a ring stays open");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
