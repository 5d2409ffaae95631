//! Machines that read a shard of the data each. Here they are runs of one host, which connect over real sockets.

use std::sync::{Barrier, Mutex};

use super::*;
use crate::machines::{Machine, Meeting};
use crate::protocol::ShardRequest;

/// The ranks of machines, which attach together.
struct Machines<'a> {
    fixture: &'a Fixture,
    feed: &'a str,
    name: &'a str,
    /// By machine.
    ranks: &'a [&'a [u32]],
    state: Option<&'a FeedState>,
    met: Mutex<Vec<(u32, Option<Meeting>)>>,
    barrier: Barrier,
}

impl<'a> Machines<'a> {
    fn new(fixture: &'a Fixture, feed: &'a str, name: &'a str, ranks: &'a [&'a [u32]]) -> Self {
        let barrier = Barrier::new(ranks.iter().map(|ranks| ranks.len()).sum());
        Self { fixture, feed, name, ranks, state: None, met: Mutex::default(), barrier }
    }

    fn world(&self) -> u32 {
        self.ranks.concat().len() as u32
    }

    /// Attaches a rank of a machine and exchanges the meetings with the others, of which `change` makes the list.
    fn attach(
        &self,
        machine: usize,
        rank: u32,
        change: impl Fn(Vec<Machine>) -> Vec<Machine>,
    ) -> Result<FeedClient, Error> {
        let client = self.fixture.attach_with(&Attach {
            version: VERSION,
            feed: self.feed.to_owned(),
            run: format!("{} {machine}", self.name),
            rank,
            world: self.world(),
            local_world: self.ranks[machine].len() as u32,
            state: self.state.cloned(),
            shard: Some(ShardRequest { toward: Some("localhost".to_owned()), ..ShardRequest::default() }),
        });
        let meeting = client.as_ref().ok().and_then(|client| client.attached().meeting.clone());
        self.met.lock().unwrap().push((rank, meeting));
        self.barrier.wait();
        let client = client?;
        let met = self.met.lock().unwrap().clone();
        let of_rank =
            |rank: u32| met.iter().find(|(of, _)| *of == rank).and_then(|(_, meeting)| meeting.clone());
        let machine = |ranks: &&[u32]| Some(Machine { ranks: ranks.to_vec(), meeting: of_rank(ranks[0])? });
        let machines = self.ranks.iter().filter_map(machine).collect();
        client.meet(change(machines))?;
        Ok(client)
    }

    /// Runs `see` for every rank, in a thread; returns the results by rank.
    fn run<T: Send>(&self, see: impl Fn(usize, u32) -> T + Sync) -> Vec<T> {
        let all = self
            .ranks
            .iter()
            .enumerate()
            .flat_map(|(machine, ranks)| ranks.iter().map(move |&rank| (machine, rank)));
        let mut all: Vec<(usize, u32)> = all.collect();
        all.sort_by_key(|&(_, rank)| rank);
        thread::scope(|scope| {
            let see = &see;
            let started = all.into_iter().map(|(machine, rank)| scope.spawn(move || see(machine, rank)));
            started.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// What all ranks see, by rank.
    fn see(&self) -> Vec<Vec<Seen>> {
        self.run(|machine, rank| {
            let mut client = self.attach(machine, rank, |machines| machines).unwrap();
            assert!(client.attached().batches.is_none(), "it depends on the files of each shard");
            rest(&mut client).unwrap()
        })
    }
}

#[test]
fn shards_have_each_row_once_and_ranks_take_equally_many_steps() {
    let fixture = Fixture::new(1_001);
    let feed = fixture.feed("batch_size = 84\nepochs = 2\nshuffle_rows = 256");
    let cases: [&[&[u32]]; 4] =
        [&[&[0], &[1]], &[&[0, 1], &[2, 3]], &[&[1, 2, 3], &[0], &[4, 5]], &[&[0], &[1], &[2], &[3]]];
    for ranks in cases {
        let seen = Machines::new(&fixture, &feed, &format!("{ranks:?}"), ranks).see();
        for epoch in 0..2 {
            assert_eq!(counts(seen.iter().flatten(), epoch), once(1_001), "{ranks:?}");
        }
        for (step, first) in seen[0].iter().enumerate() {
            assert!(seen.iter().all(|rank| rank[step].state == first.state), "{ranks:?}, step {step}");
        }
        assert!(seen.iter().all(|rank| rank.len() == seen[0].len()));
        // Files of 100 rows, and lanes of up to three files: all ranks are full at first.
        assert!(seen.iter().all(|rank| rank[0].numbers.len() == 84 / seen.len()));
    }
}

#[test]
fn a_state_fits_other_machines_and_machines_without_shards() {
    let fixture = Fixture::new(1_001);
    let feed = fixture.feed("batch_size = 84\nepochs = 1\nshuffle_rows = 256");
    let ranks: &[&[u32]] = &[&[0, 1], &[2]];
    let seen = Machines::new(&fixture, &feed, "first", ranks).see();
    let state = &seen[0][4].state;
    let after = counts(seen.iter().flat_map(|rank| &rank[5..]), 0);
    let again = Machines { state: Some(state), ..Machines::new(&fixture, &feed, "again", ranks) }.see();
    assert!(seen.iter().zip(&again).all(|(seen, again)| *again == seen[5..]));
    let others = Machines {
        state: Some(state),
        ..Machines::new(&fixture, &feed, "others", &[&[0], &[1], &[2], &[3]])
    };
    assert_eq!(counts(others.see().iter().flatten(), 0), after);
    assert_eq!(counts(fixture.ranks(&feed, 2, Some(state)).iter().flatten(), 0), after);
}

#[test]
fn a_shard_needs_less_memory_than_all_data() {
    let fixture = Fixture::new(1_000);
    // The pool has 4 million rows, of some 50 bytes each.
    let feed =
        fixture.feed("batch_size = 20\nepochs = 1\nshuffle_rows = 2_000_000\nmemory_budget = \"100MiB\"");
    let all = fixture.attach_with(&Attach {
        version: VERSION,
        feed: feed.clone(),
        run: "all".to_owned(),
        rank: 0,
        world: 1,
        local_world: 1,
        state: None,
        shard: None,
    });
    let error = all.err().unwrap().to_string();
    assert!(error.contains("shuffle_rows = 2000000"), "{error}");
    let seen = Machines::new(&fixture, &feed, "parts", &[&[0], &[1], &[2], &[3]]).see();
    assert_eq!(counts(seen.iter().flatten(), 0), once(1_000));
    let halves = Machines::new(&fixture, &feed, "halves", &[&[0], &[1]]);
    let ends = halves.run(|machine, rank| {
        let client = halves.attach(machine, rank, |machines| machines);
        client.and_then(|mut client| rest(&mut client)).unwrap_err().to_string()
    });
    assert!(ends.iter().all(|end| end.contains("shuffle_rows = 2000000")), "{ends:?}");
}

#[test]
fn a_rank_that_leaves_ends_the_feed_on_all_machines() {
    let fixture = Fixture::new(1_000);
    let feed = fixture.feed("batch_size = 33\nepochs = 1000");
    let machines = Machines::new(&fixture, &feed, "lost", &[&[0, 1], &[2]]);
    let ends = machines.run(|machine, rank| {
        let mut client = machines.attach(machine, rank, |machines| machines).unwrap();
        (0..5).for_each(|_| drop(see(&mut client).unwrap()));
        if rank == 0 {
            return String::new();
        }
        rest(&mut client).unwrap_err().to_string()
    });
    assert!(ends[1].contains("rank 0 of the feed is gone"), "{}", ends[1]);
    assert!(ends[2].contains("the machine of ranks 0, 1 has failed: it has left"), "{}", ends[2]);
}

#[test]
fn an_evaluation_has_all_rows_on_every_machine() {
    let fixture = Fixture::new(300);
    let feed = fixture.feed("batch_size = 30\nepochs = 100");
    let machines = Machines::new(&fixture, &feed, "evaluates", &[&[0], &[1, 2]]);
    let mut rows = machines
        .run(|machine, rank| {
            let mut client = machines.attach(machine, rank, |machines| machines).unwrap();
            drop(see(&mut client).unwrap());
            client.request_evaluation("val").unwrap();
            let mut evaluation = client.wait_for_evaluation(LIMIT).unwrap().unwrap();
            let mut rows = Vec::new();
            while let Next::Batch(lease) = evaluation.next(LIMIT).unwrap() {
                rows.extend(held_out_rows(&lease));
            }
            drop(see(&mut client).unwrap());
            machines.barrier.wait();
            rows
        })
        .concat();
    rows.sort_unstable();
    assert_eq!(rows, (10_000..10_037).collect::<Vec<_>>());
}

#[test]
fn machines_that_cannot_share_the_data_get_the_reason() {
    let fixture = Fixture::new(100);
    let errors = |name: &str, feed: &str, change: &(dyn Fn(Vec<Machine>) -> Vec<Machine> + Sync)| {
        let machines = Machines::new(&fixture, feed, name, &[&[0], &[1]]);
        machines.run(|machine, rank| {
            let client = machines.attach(machine, rank, change);
            client.and_then(|mut client| rest(&mut client)).unwrap_err().to_string()
        })
    };
    let usual = fixture.feed("batch_size = 10");
    for error in errors("one file", &usual, &|machines| machines) {
        assert!(error.contains("1 split in 1 lane, too few for 2 hosts"), "{error}");
    }
    for error in errors("dropped", &fixture.feed("batch_size = 10\ndrop_last = true"), &|machines| machines) {
        assert!(error.contains("drop many rows"), "{error}");
    }
    for error in
        errors("lanes", &fixture.feed("batch_size = 10").replace("lanes = 4", "lanes = 1"), &|machines| {
            machines
        })
    {
        assert!(error.contains("data.lanes: 1; 2 hosts"), "{error}");
    }
    for error in errors("ranks", &usual, &|mut machines| {
        machines[1].ranks = vec![0];
        machines
    }) {
        assert!(error.contains("expected each rank once"), "{error}");
    }
    // Machines that other ranks have attached to.
    for error in errors("others", &usual, &|mut machines| {
        machines.iter_mut().for_each(|machine| machine.ranks[0] = 1 - machine.ranks[0]);
        machines
    }) {
        assert!(error.contains("does not have the ranks that have attached"), "{error}");
    }
    let ordered = fixture.feed("batch_size = 10\nshuffle_rows = 0");
    for error in errors("ordered", &ordered, &|machines| machines) {
        assert!(error.contains("data.shuffle_rows: 0"), "{error}");
    }
    for error in errors("absent", &usual, &|_| Vec::new()) {
        assert!(error.contains("does not have this one"), "{error}");
    }
    // The second machine looks for the first one where nobody listens, with a wrong token: neither meets the other.
    let wrong = |mut machines: Vec<Machine>| {
        machines[0].meeting.token.push('x');
        machines
    };
    let fixture = Fixture::new(300);
    let feed = fixture.feed("batch_size = 10");
    let machines = Machines::new(&fixture, &feed, "tokens", &[&[0], &[1]]);
    let ends = machines.run(|machine, rank| {
        let change = |machines| if rank == 1 { wrong(machines) } else { machines };
        machines
            .attach(machine, rank, change)
            .and_then(|mut client| rest(&mut client))
            .unwrap_err()
            .to_string()
    });
    assert!(ends[0].contains("the machine of rank 1 has not connected to this one"), "{}", ends[0]);
    assert!(ends[1].contains("the machine of rank 0 cannot be reached at"), "{}", ends[1]);
}
