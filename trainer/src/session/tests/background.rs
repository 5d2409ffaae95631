//! Training continues while a checkpoint is written.

use object_store::ObjectStore;
use object_store::memory::InMemory;

use super::*;
use crate::checkpoint::faults::{Death, DyingStore, GatedStore};

/// The steps of the first checkpoint, of the second and of the end of training.
const FIRST: u64 = 3;
const SECOND: u64 = 6;
const END: u64 = 8;

fn store_over(objects: Arc<dyn ObjectStore>) -> CheckpointStore {
    CheckpointStore::new(objects, "jobs/census-1".into(), Arc::new(|work| futures::executor::block_on(work)))
}

fn writer(objects: Arc<dyn ObjectStore>, session: &mut Session<Cpu>) -> CheckpointWriter<f32> {
    CheckpointWriter::spawn(store_over(objects), vec![session.allocate_copy()], carried(), None).unwrap()
}

fn begin(writer: &mut CheckpointWriter<f32>, session: &mut Session<Cpu>) {
    writer.start_commit(KEEP, |image| session.capture(image)).unwrap();
}

/// The newest checkpoint.
fn newest(objects: &Arc<dyn ObjectStore>, on_damage: OnDamage) -> Checkpoint {
    store_over(Arc::clone(objects)).load_newest(CheckpointScope::Full, on_damage).unwrap().unwrap()
}

fn assert_same(found: &Checkpoint, wanted: &Checkpoint) {
    assert_eq!(found.manifest, wanted.manifest);
    for part in &wanted.manifest.parts {
        assert!(found.part(&part.name) == wanted.part(&part.name), "{} differs", part.name);
    }
}

/// The checkpoint before batch `stop` of training without a background write.
fn undisturbed(stop: u64) -> Checkpoint {
    let mut session = session(cpu());
    run(&mut session, stop);
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut writer = writer(Arc::clone(&objects), &mut session);
    begin(&mut writer, &mut session);
    writer.wait().unwrap().unwrap();
    newest(&objects, OnDamage::Fail)
}

#[test]
fn a_checkpoint_contains_the_step_at_which_it_started() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let (gated, gate) = GatedStore::new(Arc::clone(&objects));
    let mut session = session(cpu());
    let mut writer = writer(Arc::new(gated), &mut session);
    run(&mut session, FIRST);
    begin(&mut writer, &mut session);
    // Nothing is written yet, and training continues.
    run(&mut session, END);
    assert!(!writer.is_idle());
    assert_eq!(writer.poll().unwrap(), None);
    gate.open();
    let path = writer.wait().unwrap().unwrap().path;
    assert!(path.ends_with("step-0000000003"), "{path}");
    assert!(writer.is_idle());
    assert_eq!(writer.poll().unwrap(), None, "it is returned once");
    assert_same(&newest(&objects, OnDamage::Fail), &undisturbed(FIRST));
    // The next checkpoint uses the same memory.
    begin(&mut writer, &mut session);
    writer.wait().unwrap().unwrap();
    assert_same(&newest(&objects, OnDamage::Fail), &undisturbed(END));
}

#[test]
fn a_dropped_writer_completes_its_write() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut session = session(cpu());
    run(&mut session, FIRST);
    let mut writer = writer(Arc::clone(&objects), &mut session);
    begin(&mut writer, &mut session);
    drop(writer);
    assert_same(&newest(&objects, OnDamage::Fail), &undisturbed(FIRST));
}

#[test]
fn a_failed_write_is_reported_and_the_next_one_commits() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut session = session(cpu());
    run(&mut session, FIRST);
    let dying = Arc::new(DyingStore::new(Arc::clone(&objects), Death::Before(1)));
    let mut failing = writer(dying, &mut session);
    begin(&mut failing, &mut session);
    let error = failing.wait().unwrap_err().to_string();
    assert!(error.contains("the writer has died"), "{error}");
    assert!(store_over(Arc::clone(&objects)).steps().unwrap().is_empty());
    let mut writer = writer(Arc::clone(&objects), &mut session);
    begin(&mut writer, &mut session);
    writer.wait().unwrap().unwrap();
    assert_same(&newest(&objects, OnDamage::Fail), &undisturbed(FIRST));
}

/// The writer dies at `moment` of its second checkpoint, while training continues. Training resumed from the
/// remaining checkpoint ends with the bits of undisturbed training. Returns false if the second checkpoint
/// completed before the moment.
fn dies(death: impl Fn(u64) -> Death, moment: u64, [first, second, end]: &[Checkpoint; 3]) -> bool {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut trained = session(cpu());
    run(&mut trained, FIRST);
    let mut before = writer(Arc::clone(&objects), &mut trained);
    begin(&mut before, &mut trained);
    before.wait().unwrap().unwrap();

    let dying = DyingStore::new(Arc::clone(&objects), death(moment));
    run(&mut trained, SECOND);
    let mut doomed = writer(Arc::new(dying.clone()), &mut trained);
    begin(&mut doomed, &mut trained);
    run(&mut trained, END);
    let outcome = doomed.wait();
    let on_damage = match death(moment) {
        Death::AtByte(_) => OnDamage::FallBack,
        Death::Before(_) | Death::After(_) => OnDamage::Fail,
    };
    let left = newest(&objects, on_damage);
    match left.manifest.snapshot.step {
        step if step == first.manifest.snapshot.step => {
            assert!(outcome.is_err());
            assert_same(&left, first);
        }
        _ => assert_same(&left, second),
    }

    let mut resumed = session(cpu());
    resumed.restore(&left).unwrap();
    run(&mut resumed, END);
    let mut last = writer(Arc::clone(&objects), &mut resumed);
    begin(&mut last, &mut resumed);
    last.wait().unwrap().unwrap();
    assert_same(&newest(&objects, OnDamage::Fail), end);
    dying.is_dead()
}

#[test]
fn a_background_writer_may_die_at_any_moment() {
    let wanted = [FIRST, SECOND, END].map(undisturbed);
    for death in [Death::Before, Death::After] {
        let moments = (0..).take_while(|&moment| dies(death, moment, &wanted)).count();
        assert!(moments > 5, "{moments}");
    }
    // A prime number of bytes, so that truncations occur anywhere in the parts.
    let moments = (0..).step_by(211).take_while(|&byte| dies(Death::AtByte, byte, &wanted)).count();
    assert!(moments > 10, "{moments}");
}
