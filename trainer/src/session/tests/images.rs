//! Training continues from an image in memory.

use std::fs::File;

use millstream_batch::shared_memory::anonymous_file;
use object_store::memory::InMemory;

use super::*;
use crate::checkpoint::faults::GatedStore;

fn file() -> File {
    anonymous_file(c"image").unwrap().into()
}

/// What another process finds in the file.
fn found(file: &File) -> Option<Image> {
    Image::open(file.try_clone().unwrap()).unwrap()
}

fn found_step(file: &File) -> Option<u64> {
    found(file).map(|image| image.snapshot().step)
}

fn copy_in<B: Backend<Scalar: Element>>(session: &mut Session<B>, file: &File) -> ModelCopy<B::Scalar> {
    session.copy_in_image(file.try_clone().unwrap(), 0).unwrap()
}

/// Training that is interrupted at any batch and continued from an image ends with the same bits as uninterrupted training.
fn continuing_changes_nothing<B: Backend<Scalar: Element>>(backend: impl Fn() -> B) {
    const END: u64 = 12;
    let directory = tempfile::tempdir().unwrap();
    let mut undisturbed = session(backend());
    run(&mut undisturbed, END);
    let (expected, _) = checkpoint(&mut undisturbed, &directory.path().join("undisturbed"));
    // As for a job, one file has all images.
    let file = file();
    for stop in 0..END {
        let mut first = session(backend());
        let mut copy = copy_in(&mut first, &file);
        run(&mut first, stop);
        first.capture(&mut copy).unwrap();
        drop(copy);
        let mut second = session(backend());
        second.restore_image(&found(&file).unwrap()).unwrap();
        assert_eq!(second.step(), first.step());
        assert_eq!(second.last_eval(), first.last_eval());
        assert_eq!(second.early_stop_reason(), first.early_stop_reason());
        run(&mut second, END);
        let (found, _) = checkpoint(&mut second, &directory.path().join(format!("stopped-at-{stop}")));
        assert!(found == expected, "stopped before batch {stop}");
    }
}

#[test]
fn continuing_from_an_image_changes_nothing_on_the_cpu() {
    continuing_changes_nothing(cpu);
}

#[test]
fn continuing_from_an_image_changes_nothing_on_the_reference() {
    continuing_changes_nothing(|| Reference);
}

#[test]
fn an_image_is_incomplete_while_it_changes() {
    let file = file();
    let mut session = session(cpu());
    assert_eq!(found_step(&file), None);
    let mut copy = copy_in(&mut session, &file);
    assert_eq!((found_step(&file), copy.image_step()), (None, None));
    run(&mut session, 3);
    session.capture(&mut copy).unwrap();
    assert_eq!((found_step(&file), copy.image_step()), (Some(3), Some(3)));
    // The process is killed before it completes the next one.
    copy.copy(&mut session.scorer.model).unwrap();
    assert_eq!(copy.image_step(), None);
    drop(copy);
    assert_eq!(found_step(&file), None);
    let mut copy = copy_in(&mut session, &file);
    session.capture(&mut copy).unwrap();
    drop(copy);
    // The next process keeps it.
    let mut copy = copy_in(&mut session, &file);
    copy.touch();
    assert_eq!((found_step(&file), copy.image_step()), (Some(3), Some(3)));
    session.restore_image(&found(&file).unwrap()).unwrap();
}

/// Trains up to batch `end` and copies the model.
fn capture(session: &mut Session<Cpu>, writer: &mut CheckpointWriter<f32>, end: u64) {
    run(session, end);
    writer.capture(|image| session.capture(image)).unwrap();
}

#[test]
fn each_copy_replaces_the_older_image_that_is_not_being_written() {
    let objects = Arc::new(InMemory::new());
    let (gated, gate) = GatedStore::new(objects);
    let store = CheckpointStore::new(
        Arc::new(gated),
        "job".into(),
        Arc::new(|work| futures::executor::block_on(work)),
    );
    let files = [file(), file()];
    let mut session = session(cpu());
    let copies = files.iter().map(|file| copy_in(&mut session, file)).collect();
    let mut writer = CheckpointWriter::spawn(store, copies, carried(), None).unwrap();
    assert!(!writer.has_free_copy(), "the thread prepares them first");
    writer.wait().unwrap();
    assert!(writer.has_free_copy());
    let steps = || files.each_ref().map(found_step);
    capture(&mut session, &mut writer, 1);
    assert_eq!(steps(), [Some(1), None]);
    capture(&mut session, &mut writer, 2);
    assert_eq!(steps(), [Some(1), Some(2)]);
    capture(&mut session, &mut writer, 3);
    assert_eq!(steps(), [Some(3), Some(2)]);
    // A checkpoint is written from the second image, which other copies leave alone meanwhile.
    writer.start_commit(KEEP, |image| session.capture(image)).unwrap();
    assert_eq!(steps(), [Some(3), Some(3)]);
    capture(&mut session, &mut writer, 6);
    capture(&mut session, &mut writer, 7);
    assert_eq!(steps(), [Some(5), Some(3)]);
    gate.open();
    assert!(writer.wait().unwrap().unwrap().path.ends_with("step-0000000003"));
    capture(&mut session, &mut writer, 8);
    assert_eq!(steps(), [Some(5), Some(6)]);
}

#[test]
fn images_of_other_training_are_refused() {
    let file = file();
    let mut first = session(cpu());
    let mut copy = copy_in(&mut first, &file);
    first.capture(&mut copy).unwrap();
    drop(copy);
    let image = found(&file).unwrap();

    let other_seed = TrainingSpec { seed: 8, ..training() };
    let mut other = Session::new(cpu(), &model(), &schema(ROWS), &other_seed).unwrap();
    let error = other.restore_image(&image).unwrap_err().to_string();
    assert!(error.starts_with("the image in memory is of another job: seed"), "{error}");

    // The same state with the numbers of another backend.
    let error = session(Reference).restore_image(&image).unwrap_err();
    assert!(matches!(error, SessionError::Checkpoint(CheckpointError::Damaged { .. })), "{error}");
    let mut other = session(Reference);
    let mut copy = copy_in(&mut other, &file);
    assert_eq!(copy.image_step(), None, "it is replaced");
    other.capture(&mut copy).unwrap();
    assert_eq!(found_step(&file), Some(0));
}
