//! Checkpoints of several files, which several processes write.

use std::fs::File;
use std::io;
use std::thread::JoinHandle;

use millstream_batch::shared_memory::anonymous_file;

use super::*;
use crate::checkpoint::{OtherWriters, PartEntry, PartsOfRank};
use crate::export::TrainedModel;

/// Other processes that write parts, as threads. They do so from images of their own session, which has another model.
struct Others {
    parts: Vec<Arc<PartsOfRank<f32>>>,
    running: Vec<JoinHandle<Result<Vec<PartEntry>, CheckpointError>>>,
    /// What the last one reports instead of its entries.
    error: Option<&'static str>,
}

impl Others {
    /// The other ranks than 0 of `ranks`, which find the model in `image`.
    fn of(ranks: usize, store: &CheckpointStore, image: &File) -> Self {
        let parts = (1..ranks).map(|rank| {
            let copy = session(cpu()).copy_in_image(image.try_clone().unwrap(), 0).unwrap();
            Arc::new(PartsOfRank::new(store.clone(), vec![copy], (rank, ranks)))
        });
        Self { parts: parts.collect(), running: Vec::new(), error: None }
    }
}

impl OtherWriters for Others {
    fn count(&self) -> usize {
        self.parts.len()
    }

    fn begin(&mut self, step: u64, image: u32) -> io::Result<()> {
        let spawn = |parts: &Arc<PartsOfRank<f32>>| {
            let parts = Arc::clone(parts);
            std::thread::spawn(move || parts.write(step, image))
        };
        self.running = self.parts.iter().map(spawn).collect();
        Ok(())
    }

    fn finish(&mut self) -> io::Result<Vec<PartEntry>> {
        let written = self.running.drain(..).map(|thread| thread.join().unwrap().unwrap());
        let written = written.collect::<Vec<_>>().concat();
        self.error.take().map_or(Ok(written), |error| Err(io::Error::other(error)))
    }
}

/// Commits a checkpoint of `session` with `ranks` processes, of which the last one reports `error`.
fn commit_with(
    ranks: usize,
    error: Option<&'static str>,
    session: &mut Session<Cpu>,
    store: &CheckpointStore,
) -> Result<BTreeMap<String, Vec<u8>>, CheckpointError> {
    let image = File::from(anonymous_file(c"image").unwrap());
    let copy = session.copy_in_image(image.try_clone().unwrap(), 0).unwrap();
    let others = Others { error, ..Others::of(ranks, store, &image) };
    let others = (ranks > 1).then(|| -> Box<dyn OtherWriters> { Box::new(others) });
    let mut writer = CheckpointWriter::spawn(store.clone(), vec![copy], carried(), others).unwrap();
    writer.start_commit::<SessionError>(KEEP, |image| session.capture(image)).unwrap();
    writer.wait().map(|committed| files_in(Path::new(&committed.unwrap().path)))
}

fn store_of_files(directory: &Path, file_bytes: usize) -> CheckpointStore {
    let mut store = store(directory);
    store.file_bytes = file_bytes;
    store
}

#[test]
fn a_checkpoint_is_the_same_whoever_writes_it_and_however_many_files_it_has() {
    const STOP: u64 = 8;
    let directory = tempfile::tempdir().unwrap();
    let mut trained = session(cpu());
    run(&mut trained, STOP);
    let (whole, loaded) = checkpoint(&mut trained, &directory.path().join("whole"));
    assert_eq!(loaded.manifest.format, 1);
    let step = trained.step();
    let exported = |store: &CheckpointStore| {
        let mut bytes = Vec::new();
        let exported = TrainedModel::open(store, step).unwrap();
        crate::export::safetensors::write(&exported, &[], &mut bytes).unwrap();
        bytes
    };
    let whole_export = exported(&store(&directory.path().join("whole")));
    for file_bytes in [1, 300, 600] {
        let mut of_one = None;
        for ranks in [1, 2, 3, 5] {
            let job = directory.path().join(format!("{file_bytes}-{ranks}"));
            let store = store_of_files(&job, file_bytes);
            let files = commit_with(ranks, None, &mut trained, &store).unwrap();
            assert!(files.len() >= 6, "several files of {file_bytes}: {:?}", files.keys());
            assert!(files.keys().any(|name| name.starts_with("model-00001-of-")));
            assert!(*of_one.get_or_insert_with(|| files.clone()) == files, "{ranks} processes");

            assert_eq!(store.manifest(step).unwrap().format, 2, "earlier versions refuse it");
            let scoring = store.load(step, CheckpointScope::Scoring).unwrap();
            let optimizer = files.keys().filter(|name| name.starts_with("optimizer-"));
            assert!(
                optimizer.clone().count() > 1 && optimizer.clone().all(|name| scoring.part(name).is_none())
            );
            Scorer::open(cpu(), &schema(ROWS), &scoring).unwrap();
            assert!(exported(&store) == whole_export);

            let mut restored = session(cpu());
            restored.restore(&store.load(step, CheckpointScope::Full).unwrap()).unwrap();
            let (again, _) =
                checkpoint(&mut restored, &directory.path().join(format!("{file_bytes}-{ranks}-again")));
            assert!(again == whole, "{file_bytes} bytes, {ranks} processes");
        }
    }
}

#[test]
fn nothing_is_committed_if_another_process_cannot_write() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_of_files(directory.path(), 300);
    let mut session = session(cpu());
    run(&mut session, 1);
    let error = commit_with(3, Some("worker 2: the disk is full"), &mut session, &store).unwrap_err();
    assert!(matches!(error, CheckpointError::Storage { .. }));
    assert!(error.to_string().ends_with("step-0000000001: worker 2: the disk is full"), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "all have removed what they wrote");
    commit_with(3, None, &mut session, &store).unwrap();
    assert_eq!(store.steps().unwrap(), [1]);
}

#[test]
fn a_missing_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_of_files(directory.path(), 300);
    let mut session = session(cpu());
    run(&mut session, 1);
    let files = commit_with(2, None, &mut session, &store).unwrap();
    let second = files.keys().find(|name| name.starts_with("model-00002-of-")).unwrap();
    let path = Path::new(&store.path(1)).join(second);
    fs::remove_file(&path).unwrap();
    let error = store.load(1, CheckpointScope::Full).unwrap_err().to_string();
    assert!(error.contains(&format!("{second} is missing")), "{error}");

    // A damaged checkpoint of the same step is written again.
    let again = commit_with(2, None, &mut session, &store).unwrap();
    assert!(again == files);
}
