//! Sessions of several workers that train one model together.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use millstream_backend::Cpu;
use millstream_backend::collective::{Communicator, Local};
use millstream_batch::{BatchBuffer, Stream};

use super::{Session, batch, checkpoint, cpu, model, schema, training};
use crate::checkpoint::{CheckpointScope, CheckpointStore};
use crate::metrics::{Metric, Metrics};
use crate::spec::TrainingSpec;

const ROWS: u32 = 16;

/// The state of a worker after its last batch.
#[derive(Clone, Debug, PartialEq)]
struct State {
    step: u64,
    examples: u64,
    loss: f64,
    position: Vec<u8>,
    metrics: Vec<Metrics>,
    parameters: Vec<f32>,
}

fn session(ranks: u32) -> Session<Cpu> {
    let training = TrainingSpec { workers: NonZeroU32::new(ranks), ..training() };
    Session::new(cpu(), &model(), &schema(ROWS), &training).unwrap()
}

fn state(session: &mut Session<Cpu>) -> State {
    let mut parameters = Vec::new();
    let read: Result<(), ()> = session.read_parameters(|_, numbers| {
        parameters.extend_from_slice(numbers);
        Ok(())
    });
    read.unwrap();
    let (step, position) = (session.step(), session.position().to_vec());
    let (progress, metrics) = (session.progress(), session.last_eval().to_vec());
    State { step, examples: progress.examples, loss: progress.loss.mean(), position, metrics, parameters }
}

/// Follows the feed up to batch `end` with the part of rank `rank` of `ranks`.
fn follow(session: &mut Session<Cpu>, rank: u32, ranks: u32, end: u64) {
    let start = session.position().try_into().map_or(0, u64::from_le_bytes);
    for number in start..end {
        let whole = batch(number, &schema(ROWS));
        let part = BatchBuffer::part_of(whole.as_ref(), rank, ranks);
        let header = part.as_ref().header();
        match header.stream {
            Stream::Train => drop(session.train(part.as_ref()).unwrap()),
            Stream::Eval => session.evaluate(part.as_ref()).unwrap(),
        }
        if header.stream == Stream::Eval && header.last {
            session.finish_eval().unwrap();
        }
    }
}

/// Trains on `ranks` workers up to batch `end`, from the newest checkpoint in `directory` if there is one. The first one
/// then takes a checkpoint.
fn train(directory: &Path, ranks: u32, end: u64) -> Vec<State> {
    let worker = |rank: u32, transport: Local| {
        let mut session = session(ranks);
        session.join(Communicator::new(transport, Duration::from_secs(60), None).unwrap()).unwrap();
        let store = CheckpointStore::local(directory).unwrap();
        if let Some(&step) = store.steps().unwrap().last() {
            session.restore(&store.load(step, CheckpointScope::Full).unwrap()).unwrap();
        }
        // All have restored before the first one writes another checkpoint.
        session.agree(&[], false).unwrap();
        follow(&mut session, rank, ranks, end);
        if rank == 0 {
            checkpoint(&mut session, directory);
        }
        state(&mut session)
    };
    std::thread::scope(|scope| {
        let world = (0..ranks).zip(Local::world(ranks as usize));
        let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

fn close(found: &State, expected: &State) {
    let counts = |state: &State| (state.step, state.examples, state.position.clone());
    assert_eq!(counts(found), counts(expected));
    let numbers = |state: &State| {
        let metrics = state.metrics.iter().flat_map(|of_label| &of_label.values);
        let metrics = metrics.filter_map(|it| it.value).map(|value| value as f32);
        [state.loss as f32].into_iter().chain(metrics).chain(state.parameters.clone()).collect::<Vec<_>>()
    };
    let (found, expected) = (numbers(found), numbers(expected));
    assert!(found.len() == expected.len() && found.len() > 100);
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() <= 2e-6 * expected.abs().max(1.0), "{found}, not {expected}");
    }
}

/// Every rank has the losses, examples, metrics and weights of one worker that has all rows.
#[test]
fn workers_train_and_evaluate_as_one() {
    let mut alone = session(1);
    follow(&mut alone, 0, 1, 15);
    let expected = state(&mut alone);
    assert!(expected.metrics[0].value(Metric::Auc).is_some());
    // With eleven workers, parts have two rows, and the last ones none.
    for ranks in [1, 2, 3, 5, 11] {
        let directory = tempfile::tempdir().unwrap();
        let states = train(directory.path(), ranks, 15);
        assert!(states.iter().all(|state| *state == states[0]), "{ranks} workers differ");
        close(&states[0], &expected);
    }
}

#[test]
fn another_number_of_workers_continues_from_a_checkpoint() {
    let mut alone = session(1);
    follow(&mut alone, 0, 1, 20);
    let expected = state(&mut alone);
    let directory = tempfile::tempdir().unwrap();
    for (ranks, end) in [(3, 3), (1, 8), (4, 12), (2, 20)] {
        let states = train(directory.path(), ranks, end);
        assert!(states.iter().all(|state| *state == states[0]), "{ranks} workers differ");
        if end == 20 {
            close(&states[0], &expected);
        }
    }
}
