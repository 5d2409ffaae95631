//! Sessions of several workers that train one model together.

use std::fs::File;
use std::num::NonZeroU32;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use millstream_backend::collective::{Alone, Communicator, Local, UseOfTime};
use millstream_backend::{Backend, Cpu, Cuda, Libraries};
use millstream_batch::shared_memory::anonymous_file;
use millstream_batch::{BatchBuffer, BatchRef, Stream};
use millstream_test_cuda::{StandIn, Variant};

use super::{Request, Session, SessionError, batch, checkpoint, cpu, model, schema, training};
use crate::checkpoint::{CheckpointScope, CheckpointStore, Image, ImageShare};
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

fn session<B: Backend<Scalar = f32>>(backend: B, ranks: u32) -> Session<B> {
    session_of(backend, ranks, false)
}

/// A session with parts of any number of rows, if they are uneven.
fn session_of<B: Backend<Scalar = f32>>(backend: B, ranks: u32, uneven_parts: bool) -> Session<B> {
    let training = TrainingSpec { workers: NonZeroU32::new(ranks), uneven_parts, ..training() };
    Session::new(backend, &model(), &schema(ROWS), &training).unwrap()
}

/// A backend of each rank.
fn cpus(_: u32) -> Cpu {
    cpu()
}

/// Each rank has its own emulated GPU, and they communicate by the stand-in of NCCL.
fn gpus(rank: u32) -> Cuda {
    let stand_in = StandIn::of(&Variant::default().copy(rank)).unwrap();
    let images = stand_in.folder().join("images");
    Cuda::new(&Libraries::of(stand_in.folder()), 0, Some(&images)).unwrap()
}

fn state<B: Backend<Scalar = f32>>(session: &mut Session<B>) -> State {
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
fn follow<B: Backend<Scalar = f32>>(session: &mut Session<B>, rank: u32, ranks: u32, end: u64) {
    let start = session.position().try_into().map_or(0, u64::from_le_bytes);
    follow_parts(session, start..end, |_, whole| BatchBuffer::part_of(whole, rank, ranks));
}

/// Follows the batches with these numbers, each with the part that `part` returns.
fn follow_parts<B: Backend<Scalar = f32>>(
    session: &mut Session<B>,
    numbers: Range<u64>,
    part: impl Fn(u64, BatchRef<'_>) -> BatchBuffer,
) {
    for number in numbers {
        let whole = batch(number, &schema(ROWS));
        let part = part(number, whole.as_ref());
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
fn train<B: Backend<Scalar = f32>>(
    directory: &Path,
    ranks: u32,
    end: u64,
    backend: impl Fn(u32) -> B + Sync,
) -> Vec<State> {
    let worker = |rank: u32, transport: Local| {
        let mut session = session(backend(rank), ranks);
        session.join(Communicator::new(transport, Duration::from_secs(60), None).unwrap()).unwrap();
        let store = CheckpointStore::local(directory).unwrap();
        if let Some(&step) = store.steps().unwrap().last() {
            session.restore(&store.load(step, CheckpointScope::Full).unwrap()).unwrap();
        }
        // All have restored before the first one writes another checkpoint.
        session.agree(&[], Request::default()).unwrap();
        follow(&mut session, rank, ranks, end);
        let times = session.use_of_time();
        assert_eq!(times.len(), if ranks > 1 { ranks as usize } else { 0 });
        let shares = times.iter().map(|now| now.share_since(UseOfTime::default()));
        assert!(
            shares.flatten().filter(|share| (1e-9..=1.0).contains(share)).count() == times.len(),
            "{times:?}"
        );
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

/// Trains on `ranks` workers up to batch 3, which then copy the model into image 1 of two: `lead` gets the first worker's session and
/// that image, `help` the session and the shares of each other one. Returns what `lead` returns.
fn copy_together<B: Backend<Scalar = f32>, R: Send>(
    ranks: u32,
    backend: impl Fn(u32) -> B + Sync,
    lead: impl FnOnce(&mut Session<B>, &File) -> R + Send,
    help: impl Fn(&mut Session<B>, &mut [ImageShare<f32>]) + Sync,
) -> R {
    let images = [c"first", c"second"].map(|name| File::from(anonymous_file(name).unwrap()));
    let start = |rank: u32, transport: Local| {
        let mut session = session(backend(rank), ranks);
        session.join(Communicator::new(transport, Duration::from_secs(60), None).unwrap()).unwrap();
        follow(&mut session, rank, ranks, 3);
        session
    };
    std::thread::scope(|scope| {
        let mut world = (0..ranks).zip(Local::world(ranks as usize));
        let (_, first) = world.next().unwrap();
        let lead = scope.spawn(|| lead(&mut start(0, first), &images[1]));
        for (rank, transport) in world {
            let (start, help, images) = (&start, &help, &images);
            scope.spawn(move || {
                let mut session = start(rank, transport);
                let shares = images.iter().map(|image| session.share_of_image(image));
                let mut shares: Vec<_> = shares.collect::<Result<_, _>>().unwrap();
                help(&mut session, &mut shares);
            });
        }
        lead.join().unwrap()
    })
}

fn bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn is_complete(image: &File) -> bool {
    Image::open(image.try_clone().unwrap()).unwrap().is_some()
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
fn train_as_one<B: Backend<Scalar = f32>>(numbers: &[u32], backend: impl Fn(u32) -> B + Sync) {
    let mut alone = session(cpu(), 1);
    follow(&mut alone, 0, 1, 15);
    let expected = state(&mut alone);
    assert!(expected.metrics[0].value(Metric::Auc).is_some());
    for &ranks in numbers {
        let directory = tempfile::tempdir().unwrap();
        let states = train(directory.path(), ranks, 15, &backend);
        assert!(states.iter().all(|state| *state == states[0]), "{ranks} workers differ");
        close(&states[0], &expected);
    }
}

/// The rows of each worker's part of batch `number` of `rows` rows: all of them of one worker, of two, or in any division.
fn uneven_rows(number: u64, rows: u32, ranks: u32) -> Vec<u32> {
    let mut parts = vec![0; ranks as usize];
    for row in 0..u64::from(rows) {
        let part = match number % 3 {
            0 => number,
            1 => number + row % 2,
            _ => (row * row + number) % 7,
        };
        parts[(part % u64::from(ranks)) as usize] += 1;
    }
    parts
}

/// Workers with uneven parts, in training and evaluation.
#[test]
fn uneven_workers_train_and_evaluate_as_one() {
    let mut alone = session(cpu(), 1);
    follow(&mut alone, 0, 1, 15);
    let expected = state(&mut alone);
    for ranks in [1, 2, 3, 5, 8] {
        let worker = |rank: u32, transport: Local| {
            let mut session = session_of(cpu(), ranks, true);
            session.join(Communicator::new(transport, Duration::from_secs(60), None).unwrap()).unwrap();
            follow_parts(&mut session, 0..15, |number, whole| {
                let rows = uneven_rows(number, whole.header().rows, ranks);
                BatchBuffer::parts_of(whole, &rows).remove(rank as usize)
            });
            state(&mut session)
        };
        let states: Vec<State> = std::thread::scope(|scope| {
            let world = (0..ranks).zip(Local::world(ranks as usize));
            let workers: Vec<_> = world.map(|(rank, it)| scope.spawn(move || worker(rank, it))).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        assert!(states.iter().all(|state| *state == states[0]), "{ranks} workers differ");
        close(&states[0], &expected);
    }
}

#[test]
fn workers_train_and_evaluate_as_one() {
    // With eleven workers, parts have two rows, and the last ones none.
    train_as_one(&[1, 2, 3, 5, 11], cpus);
}

/// It exchanges gradients of its parts with itself.
#[test]
fn a_worker_alone_spends_no_time_with_others() {
    let training = TrainingSpec { shards: NonZeroU32::new(4), ..training() };
    let mut session = Session::new(cpu(), &model(), &schema(ROWS), &training).unwrap();
    session.join(Communicator::new(Alone, Duration::from_secs(60), None).unwrap()).unwrap();
    let whole = batch(0, &schema(ROWS));
    let parts = [0, 1, 2, 3].map(|part| BatchBuffer::part_of(whole.as_ref(), part, 4));
    session.agree(&parts.each_ref().map(BatchBuffer::as_ref), Request::default()).unwrap();
    assert!(session.use_of_time().is_empty());
}

#[test]
fn gpus_train_and_evaluate_as_one() {
    let _turn = StandIn::turn();
    train_as_one(&[2, 3, 4], gpus);
}

#[test]
fn workers_notice_that_the_one_with_the_image_has_ended() {
    copy_together(3, cpus, |_, _| {}, |session, shares| assert!(session.help_capture(shares).is_err()));
}

fn copy_the_model<B: Backend<Scalar = f32>>(numbers: &[u32], backend: impl Fn(u32) -> B + Sync) {
    for &ranks in numbers {
        let lead = |session: &mut Session<B>, image: &File| {
            let mut copy = session.copy_in_image(image.try_clone().unwrap(), 1).unwrap();
            let snapshot = session.capture_together(&mut copy).unwrap();
            assert_eq!((snapshot.step, copy.image_step()), (session.step(), Some(session.step())));
            let together = bytes(image);
            session.capture(&mut copy).unwrap();
            (together, bytes(image))
        };
        let help = |session: &mut Session<B>, shares: &mut [ImageShare<f32>]| {
            session.help_capture(shares).unwrap();
        };
        let (together, alone) = copy_together(ranks, &backend, lead, help);
        assert!(together == alone, "{ranks} workers copy something else than one");
    }
}

#[test]
fn workers_copy_the_model_together() {
    copy_the_model(&[2, 3, 7], cpus);
}

/// The second host has two workers: with shares of three, each image would lack some numbers.
#[test]
fn each_host_copies_the_whole_model() {
    let images = [c"first", c"second"].map(|name| File::from(anonymous_file(name).unwrap()));
    let worker = |rank: u32, transport: Local| {
        let mut session = session(cpus(rank), 3);
        session.join(Communicator::new(transport, Duration::from_secs(60), None).unwrap()).unwrap();
        let (image, place) =
            if rank == 0 { (&images[0], (0, 1)) } else { (&images[1], (rank as usize - 1, 2)) };
        session.share_images_as(place);
        follow(&mut session, rank, 3, 3);
        if rank == 0 {
            let mut copy = session.copy_in_image(image.try_clone().unwrap(), 0).unwrap();
            session.capture_together(&mut copy).unwrap();
        } else {
            let mut shares = [session.share_of_image(image).unwrap()];
            session.help_capture(&mut shares).unwrap();
        }
    };
    std::thread::scope(|scope| {
        (0..).zip(Local::world(3)).for_each(|(rank, it)| drop(scope.spawn(move || worker(rank, it))));
    });
    let [first, second] = images.each_ref().map(bytes);
    // The first one also has a head of a page, and the rest of a checkpoint behind the numbers.
    assert!(second.len() > 4096 && first[4096..second.len()] == second[4096..]);
}

#[test]
fn gpus_copy_the_model_together() {
    let _turn = StandIn::turn();
    copy_the_model(&[2, 3], gpus);
}

#[test]
fn an_image_stays_incomplete_if_a_worker_dies_before_it_has_copied_its_share() {
    let lead = |session: &mut Session<Cpu>, image: &File| {
        let mut copy = session.copy_in_image(image.try_clone().unwrap(), 1).unwrap();
        session.capture(&mut copy).unwrap();
        assert!(is_complete(image));
        let error = session.capture_together(&mut copy).unwrap_err();
        assert!(matches!(error, SessionError::Collective(_)), "{error}");
        (copy.image_step(), is_complete(image))
    };
    assert_eq!(copy_together(2, cpus, lead, |_, _| {}), (None, false));
}

fn continue_with_others<B: Backend<Scalar = f32>>(backend: impl Fn(u32) -> B + Sync) {
    let mut alone = session(cpu(), 1);
    follow(&mut alone, 0, 1, 20);
    let expected = state(&mut alone);
    let directory = tempfile::tempdir().unwrap();
    for (ranks, end) in [(3, 3), (1, 8), (4, 12), (2, 20)] {
        let states = train(directory.path(), ranks, end, &backend);
        assert!(states.iter().all(|state| *state == states[0]), "{ranks} workers differ");
        if end == 20 {
            close(&states[0], &expected);
        }
    }
}

#[test]
fn another_number_of_workers_continues_from_a_checkpoint() {
    continue_with_others(cpus);
}

#[test]
fn another_number_of_gpus_continues_from_a_checkpoint() {
    let _turn = StandIn::turn();
    continue_with_others(gpus);
}
