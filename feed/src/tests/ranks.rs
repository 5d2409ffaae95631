//! Ranks that share a feed: their parts of the batches, those that leave, and those that do not fit together.

use super::*;

#[test]
fn ranks_take_equally_many_steps_and_each_row_once_per_epoch() {
    let fixture = Fixture::new(1_001);
    let feed = fixture.feed("batch_size = 84\nepochs = 2\nshuffle_rows = 256");
    let alone = fixture.ranks(&feed, 1, None).remove(0);
    assert_eq!(alone.len(), 2 * 12);
    for world in [1, 2, 3, 7] {
        let ranks = fixture.ranks(&feed, world, None);
        for epoch in 0..2 {
            assert_eq!(counts(ranks.iter().flatten(), epoch), once(1_001), "{world} ranks");
        }
        for (step, whole) in alone.iter().enumerate() {
            let parts: Vec<_> = ranks.iter().flat_map(|rank| rank[step].numbers.clone()).collect();
            assert_eq!(parts, whole.numbers, "{world} ranks, step {step}");
            assert!(
                ranks.iter().all(|rank| rank[step].state == whole.state),
                "states are those of all ranks"
            );
        }
        assert!(ranks.iter().all(|rank| rank.len() == alone.len()));
    }
}

#[test]
fn ranks_of_several_hosts_have_the_rows_of_those_of_one() {
    let fixture = Fixture::new(1_001);
    let feed = fixture.feed("batch_size = 84\nepochs = 2\nshuffle_rows = 256");
    let whole = fixture.ranks(&feed, 6, None);
    // Of another number of ranks.
    let middle = fixture.ranks(&feed, 4, None)[0][7].state.clone();
    for (state, hosts) in
        [(None, [&[0, 1, 2][..], &[3, 4, 5]]), (Some(&middle), [&[5][..], &[0, 1, 2, 3, 4]])]
    {
        let from = state.map_or(0, |_| 8);
        let identities: HashSet<String> = thread::scope(|scope| {
            let of_host = |here: &'static [u32]| {
                let (fixture, feed, whole) = (&fixture, &feed, &whole);
                let start = move |&rank: &u32| {
                    let see = move || {
                        let here = here.len() as u32;
                        let mut client = fixture.attach_one_of(here, feed, (rank, 6), state).unwrap();
                        assert_eq!(rest(&mut client).unwrap(), whole[rank as usize][from..], "rank {rank}");
                        client.attached().identity.clone()
                    };
                    thread::Builder::new().name(format!("host of {here:?}")).spawn_scoped(scope, see).unwrap()
                };
                here.iter().map(start).collect::<Vec<_>>()
            };
            let ranks: Vec<_> = hosts.into_iter().flat_map(of_host).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(identities.len(), 1, "{identities:?}");
    }
}

#[test]
fn ranks_keep_their_numbers_on_a_host_that_has_only_some() {
    let fixture = Fixture::new(300);
    let feed = fixture.feed("batch_size = 30\nepochs = 100");
    let mut alone = fixture.attach_one_of(1, &feed, (5, 6), None).unwrap();
    alone.request_evaluation("val").unwrap();
    let mut evaluation = alone.wait_for_evaluation(LIMIT).unwrap().unwrap();
    assert_ne!(alone.attached().identity, evaluation.identity());
    let mut rows = Vec::new();
    while let Next::Batch(lease) = evaluation.next(LIMIT).unwrap() {
        rows.push(held_out_rows(&lease));
    }
    // Of 37 rows, those of the last rank of the first batch.
    assert_eq!(rows, [(10_025..10_030).collect(), vec![]]);

    thread::scope(|scope| {
        for rank in [2, 5] {
            let (fixture, feed) = (&fixture, &feed);
            let run = move || {
                let mut client = fixture.attach_one_of(2, feed, (rank, 6), None).unwrap();
                if rank == 2 {
                    let error = rest(&mut client).unwrap_err();
                    assert!(matches!(error, Error::RankLost { rank: 5, .. }), "{error}");
                }
            };
            thread::Builder::new().name("pair".to_owned()).spawn_scoped(scope, run).unwrap();
        }
        for (rank, local_world) in [(2, 2), (5, 3)] {
            let (fixture, feed) = (&fixture, &feed);
            let run = move || {
                let error =
                    fixture.attach_one_of(local_world, feed, (rank, 6), None).err().unwrap().to_string();
                assert!(error.contains("one of 2") && error.contains("one of 3"), "{error}");
            };
            thread::Builder::new().name("differ".to_owned()).spawn_scoped(scope, run).unwrap();
        }
    });
}

#[test]
fn a_rank_that_leaves_ends_the_feed_of_the_others() {
    let fixture = Fixture::new(1_000);
    let feed = fixture.feed("batch_size = 30\nepochs = 100");
    thread::scope(|scope| {
        for rank in 0..3 {
            let (fixture, feed) = (&fixture, &feed);
            let run = move || {
                let mut client = fixture.attach(feed, rank, 3, None).unwrap();
                (0..5).for_each(|_| drop(see(&mut client).unwrap()));
                if rank == 1 {
                    return;
                }
                let error = rest(&mut client).unwrap_err();
                assert!(matches!(error, Error::RankLost { rank: 1, .. }), "{error}");
            };
            thread::Builder::new().name("lost".to_owned()).spawn_scoped(scope, run).unwrap();
        }
    });
}

#[test]
fn ranks_that_do_not_fit_together_get_the_reason() {
    let fixture = Fixture::new(100);
    let refused = |name: &str, ranks: Vec<(String, u32, u32)>| -> Vec<String> {
        thread::scope(|scope| {
            let ranks = ranks.iter().map(|(feed, rank, world)| {
                let attach = || fixture.attach(feed, *rank, *world, None).err().unwrap().to_string();
                thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, attach).unwrap()
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    };
    let [ten, twenty] = ["batch_size = 10", "batch_size = 20"].map(|size| fixture.feed(size));
    for error in refused("feeds", vec![(ten.clone(), 0, 2), (twenty, 1, 2)]) {
        assert!(error.contains("batch_size = 10") && error.contains("batch_size = 20"), "{error}");
    }
    for error in refused("worlds", vec![(ten.clone(), 0, 2), (ten.clone(), 1, 3)]) {
        assert!(error.contains("of 2 ranks") || error.contains("of 3 ranks"), "{error}");
    }
    for error in refused("twice", vec![(ten.clone(), 0, 2), (ten.clone(), 0, 2)]) {
        assert!(error.contains("two processes are rank 0"), "{error}");
    }
    for error in refused("missing", vec![(ten.clone(), 0, 4), (ten.clone(), 2, 4)]) {
        assert!(error.contains("ranks 1, 3 of 4 did not attach within 1 s"), "{error}");
    }
    let alone = |name: &str, here: u32, world: u32| {
        let attach = || fixture.attach_one_of(here, &ten, (0, world), None).err().unwrap().to_string();
        thread::scope(|scope| {
            thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, attach).unwrap().join().unwrap()
        })
    };
    let error = alone("some", 2, 4);
    assert!(
        error.contains("1 of the 2 ranks on this machine attached within 1 s of the first one: rank 0"),
        "{error}"
    );
    for here in [0, 3] {
        let error = alone("none", here, 2);
        assert!(error.contains(&format!("{here} ranks on this machine, of 2 in all")), "{error}");
    }
    let error = refused("number", vec![(ten.clone(), 2, 2)]).remove(0);
    assert!(error.contains("rank 2 of 2"), "{error}");
    let error = refused("many", vec![(ten.clone(), 0, 20)]).remove(0);
    assert!(error.contains("ranks 1, 2, 3, 4, 5, 6, 7, 8, .. of 20 did not attach"), "{error}");
    let error = refused("all", vec![(ten, 0, u32::MAX)]).remove(0);
    assert!(error.contains("4294967295 ranks on this machine: a host serves at most 512"), "{error}");
}

#[test]
fn a_rank_may_leave_once_it_has_taken_all_batches() {
    let fixture = Fixture::new(100);
    let feed = fixture.feed("batch_size = 10");
    thread::scope(|scope| {
        for rank in 0..2 {
            let (fixture, feed) = (&fixture, &feed);
            let run = move || {
                let mut client = fixture.attach(feed, rank, 2, None).unwrap();
                assert_eq!(rest(&mut client).unwrap().len(), 10);
                client.request_evaluation("val").unwrap();
                let mut evaluation = client.wait_for_evaluation(LIMIT).unwrap().unwrap();
                let mut batches = 0;
                while let Next::Batch(_) = evaluation.next(LIMIT).unwrap() {
                    batches += 1;
                    // The other one has left when this one takes the last batches.
                    thread::sleep(Duration::from_millis(100 * u64::from(rank)));
                }
                assert_eq!(batches, 4);
                assert!(matches!(client.next(LIMIT), Ok(Next::End)));
            };
            thread::Builder::new().name("leaves".to_owned()).spawn_scoped(scope, run).unwrap();
        }
    });
}

#[test]
fn a_batch_must_have_as_many_rows_for_each_rank() {
    let fixture = Fixture::new(300);
    let feed = &fixture.feed("batch_size = 50");
    thread::scope(|scope| {
        for rank in 0..3 {
            let fixture = &fixture;
            let attach = move || {
                let error = fixture.attach(feed, rank, 3, None).err().unwrap().to_string();
                assert_eq!(error, "data.batch_size: 50 is not a multiple of 3 ranks; use 48 or 51");
            };
            thread::Builder::new().name("multiple".to_owned()).spawn_scoped(scope, attach).unwrap();
        }
    });
}
