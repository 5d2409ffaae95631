//! Jobs over real connections on loopback.
#![allow(clippy::unwrap_used)]

mod cluster;
mod workers;

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tonic::Code;

use self::cluster::{Cluster, Proxy, run_address};
use super::*;
use crate::generations::{GenerationId, Note, Outcome, Reason, SILENCE};
use crate::link::Link;
use crate::proto::from_leader::Message;
use crate::proto::{self, FollowOpening, FromLeader};

/// How soon hosts notice a connection that ends.
const AT_ONCE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hosts_train_to_the_end() {
    let cluster = Cluster::start(3).await;
    let led = cluster.lead(0, 1);
    let newest = cluster.commits(|hosts| hosts.len() == 3).await;
    assert_eq!((newest.generation.epoch, newest.generation.number), (1, 1));
    assert!(!cluster.hosts[1].this.jobs().may_lead(&run_address()), "it follows");
    cluster.finishes(led, &[0, 1, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_generation_follows_when_a_worker_dies() {
    let cluster = Cluster::start(3).await;
    let led = cluster.lead(0, 1);
    let before = cluster.commits(|hosts| hosts.len() == 3).await;
    cluster.hosts[1].seat.die().await;
    let after = cluster.commits(|hosts| hosts.len() == 3).await;
    // One commits on, perhaps, before it dies.
    let next = cluster.commits(|hosts| hosts.len() == 3).await;
    assert!(after.step < next.step && before.generation.number + 1 == next.generation.number);
    cluster.finishes(led, &[0, 1, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_whose_server_stops_joins_when_it_is_back() {
    let mut cluster = Cluster::start(3).await;
    let led = cluster.lead(0, 1);
    cluster.commits(|hosts| hosts.len() == 3).await;
    let began = Instant::now();
    cluster.stop(2);
    cluster.commits(|hosts| hosts.len() == 2).await;
    assert!(began.elapsed() <= AT_ONCE, "{:?}", began.elapsed());
    cluster.vacates(2, AT_ONCE).await;
    cluster.serve(2).await;
    cluster.commits(|hosts| hosts.len() == 3).await;
    cluster.finishes(led, &[0, 1, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notes_travel_both_ways_within_a_generation() {
    let cluster = Cluster::start(3).await;
    let led = cluster.lead(0, 1);
    let generation = cluster.commits(|hosts| hosts.len() == 3).await.generation;
    let seats = || cluster.hosts.iter().map(|host| &host.seat);
    let note = |number: u8| Note::from([number]);
    cluster.hosts[2].seat.send(note(1)).await;
    let heard = cluster.until("note", || cluster.bucket.notes().pop()).await;
    assert_eq!(heard, (cluster.name(2), generation, note(1)));

    let earlier = GenerationId { number: 0, ..generation };
    let last = Some(cluster.name(1));
    for (generation, to, number) in [(generation, None, 2), (earlier, None, 3), (generation, last, 4)] {
        led.orders.send(Order::Note { generation, to, note: note(number) }).await.unwrap();
    }
    cluster
        .until("last note", || (cluster.hosts[1].seat.notes.lock().unwrap().len() == 2).then_some(()))
        .await;
    let notes: Vec<_> = seats().map(|seat| seat.notes.lock().unwrap().clone()).collect();
    assert_eq!(notes, [vec![note(2)], vec![note(2), note(4)], vec![note(2)]]);
    assert!(seats().all(|seat| seat.generation() == generation));
    cluster.finishes(led, &[0, 1, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_fails_on_order_after_its_next_step() {
    let cluster = Cluster::start(2).await;
    let led = cluster.lead(0, 1);
    cluster.commits(|hosts| hosts.len() == 2).await;
    let why = Reason::new("cancelled by a user");
    led.orders.send(Order::Fail(why.clone())).await.unwrap();
    assert_eq!(timeout(AT_ONCE, led.task).await.unwrap().unwrap(), Ended::Concluded);
    for host in &cluster.hosts {
        assert_eq!(*host.seat.outcome.lock().unwrap(), Some(Outcome::Failed(why.clone())));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_leaves_takes_part_again_when_it_is_called() {
    let cluster = Cluster::start(2).await;
    let led = cluster.lead(0, 1);
    cluster.commits(|hosts| hosts.len() == 2).await;
    cluster.hosts[1].this.jobs().leave(&run_address()).await;
    assert_eq!(cluster.hosts[1].seat.alive.load(std::sync::atomic::Ordering::SeqCst), 0);
    // The leader calls it at once.
    cluster.commits(|hosts| hosts.len() == 2).await;
    cluster.finishes(led, &[0, 1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_host_leads_when_the_leader_is_gone() {
    let cluster = Cluster::start(3).await;
    let first = cluster.lead(0, 1);
    cluster.commits(|hosts| hosts.len() == 3).await;
    first.task.abort();
    for host in 0..3 {
        cluster.vacates(host, AT_ONCE).await;
        assert!(cluster.hosts[host].this.jobs().may_lead(&run_address()));
    }
    let second = cluster.lead(1, 2);
    let newest = cluster.commits(|hosts| hosts.len() == 3).await;
    assert_eq!(newest.generation.epoch, 2);
    // The first one does not know yet that it leads no longer.
    let late = cluster.lead(0, 1);
    assert_eq!(timeout(AT_ONCE, late.task).await.unwrap().unwrap(), Ended::Deposed);
    cluster.commits(|hosts| hosts.len() == 3).await;
    cluster.finishes(second, &[0, 1, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_commit_fails_for_lack_of_the_lease_leads_no_longer() {
    let cluster = Cluster::start(2).await;
    let led = cluster.lead(0, 1);
    cluster.commits(|hosts| hosts.len() == 2).await;
    let newest = cluster.bucket.take_lease(2);
    assert_eq!(timeout(AT_ONCE, led.task).await.unwrap().unwrap(), Ended::Deposed);
    for host in 0..2 {
        cluster.vacates(host, AT_ONCE).await;
    }
    assert_eq!(cluster.bucket.newest(), newest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_host_is_lost_and_delays_nobody() {
    let cluster = Cluster::start(3).await;
    let proxy = Proxy::start(cluster.address(2)).await;
    let name = cluster.name(2);
    cluster.addresses.send_modify(|addresses| drop(addresses.insert(name, proxy.address.clone())));
    let led = cluster.lead(0, 1);
    cluster.commits(|hosts| hosts.len() == 3).await;
    let began = Instant::now();
    proxy.freeze();
    cluster.commits(|hosts| hosts.len() == 2).await;
    assert!(began.elapsed() <= SILENCE + Duration::from_secs(1), "{:?}", began.elapsed());
    cluster.vacates(2, Duration::from_secs(1)).await;
    cluster.finishes(led, &[0, 1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_host_leaves_at_a_step_boundary() {
    let cluster = Cluster::start(3).await;
    let led = cluster.lead(0, 1);
    cluster.commits(|hosts| hosts.len() == 3).await;
    let jobs = cluster.hosts[2].this.jobs();
    jobs.drain().await;
    let next = cluster.commits(|hosts| hosts.len() == 2).await;
    assert_eq!(next.generation.number, 2);
    timeout(AT_ONCE, jobs.idle()).await.unwrap();
    assert!(!jobs.may_lead(&run_address()));
    cluster.finishes(led, &[0, 1, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_leader_releases_the_lease() {
    let cluster = Cluster::start(2).await;
    let first = cluster.lead(0, 1);
    cluster.commits(|hosts| hosts.len() == 2).await;
    first.orders.send(Order::Drain).await.unwrap();
    assert_eq!(timeout(AT_ONCE, first.task).await.unwrap().unwrap(), Ended::Released);
    assert!(cluster.bucket.is_released());
    for host in 0..2 {
        cluster.vacates(host, AT_ONCE).await;
    }
    let second = cluster.lead(1, 2);
    cluster.commits(|hosts| hosts.len() == 2).await;
    cluster.finishes(second, &[0, 1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_are_called_once_listed_and_only_by_their_names() {
    let cluster = Cluster::start(3).await;
    let [second, third] = [1, 2].map(|host| cluster.name(host));
    let listed = cluster.addresses.borrow().clone();
    let wrong = cluster.address(0);
    cluster.addresses.send_modify(|addresses| {
        addresses.remove(&third);
        addresses.insert(second.clone(), wrong);
    });
    let led = cluster.lead(0, 1);
    cluster.commits(|hosts| *hosts == [cluster.name(0)]).await;
    cluster.addresses.send_modify(|addresses| drop(addresses.insert(third.clone(), listed[&third].clone())));
    cluster.commits(|hosts| *hosts == [cluster.name(0), third.clone()]).await;
    cluster.finishes(led, &[0, 2]).await;
}

#[tokio::test]
async fn calls_that_name_no_job_of_the_host_and_malformed_messages_are_refused() {
    let cluster = Cluster::start(1).await;
    let caller = cluster.site.host_at(("other", "other"), 9, "");
    let mut link = Link::connect(&cluster.address(0), &caller).await.unwrap();
    let opening = |run: &str| Message::Opening(FollowOpening { run: run.to_owned(), epoch: 1 });
    let run = run_address();
    let (long, end) = ("x".repeat(RunAddress::MAX_BYTES + 1), Message::End(proto::End::default()));
    for (messages, code, wanted) in [
        (vec![], Code::InvalidArgument, "the call names no job"),
        (vec![end.clone()], Code::InvalidArgument, "the call names no job"),
        (vec![opening("")], Code::InvalidArgument, "the address of a run has 0 bytes; expected 1 to 1024"),
        (vec![opening(&long)], Code::InvalidArgument, "has 1025 bytes"),
        (vec![opening("gs://bucket/other")], Code::NotFound, "this host takes no part in the job"),
        (
            vec![opening(run.as_str()), end],
            Code::InvalidArgument,
            "malformed message: `generation` is missing",
        ),
    ] {
        let messages = messages.into_iter().map(|message| FromLeader { message: Some(message) });
        let status = match link.client.follow(futures::stream::iter(messages)).await {
            Ok(replies) => replies.into_inner().message().await.unwrap_err(),
            Err(status) => status,
        };
        assert!(status.code() == code && status.message().contains(wanted), "{status}");
    }
    cluster.hosts[0].this.jobs().drain().await;
    let other = FromLeader { message: Some(opening("gs://bucket/other")) };
    let status = link.client.follow(futures::stream::iter([other])).await.unwrap_err();
    assert_eq!(status.message(), "this host is about to leave");
}
