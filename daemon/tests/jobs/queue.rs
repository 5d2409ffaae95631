//! The queue: which jobs run beside which, in what order, and pauses.

use std::num::{NonZeroU32, NonZeroUsize};

use millstream_control::proto::{JobState, SubmitRequest};
use millstream_daemon::access::Requester;
use millstream_daemon::config::Limits;
use millstream_daemon::daemon::Daemon;
use millstream_daemon::state::{JobRecord, JobSource, Store};
use millstream_io::storage::Directory;

use crate::support::{JOB, Workspace, assert_same, contents, ended, local, reaches, waits, worker_in};

/// Longer than any test.
const ENDLESS: &str = "data.epochs=1000000";

/// Submits a job with these settings.
async fn submit(workspace: &Workspace, daemon: &Daemon, set: &[&str], priority: i32) -> JobRecord {
    let set = set.iter().map(|&set| set.to_owned()).collect();
    daemon.submit(SubmitRequest { set, priority, ..workspace.request() }).await.unwrap()
}

async fn trains(daemon: &Daemon, id: &str) -> JobRecord {
    let job = reaches(daemon, id, |job| job.progress.step > 0).await;
    assert_eq!(job.state, JobState::Running, "{job:?}");
    job
}

fn threads(threads: u32) -> Limits {
    Limits { threads: NonZeroU32::new(threads), ..Limits::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_beside_each_other_as_far_as_they_fit() {
    let workspace = Workspace::new();
    // Each needs a thread for its worker, and one for its ingest.
    let daemon = workspace.daemon_within(threads(5));
    let first = submit(&workspace, &daemon, &[ENDLESS], 0).await;
    let second = submit(&workspace, &daemon, &[ENDLESS], 0).await;
    trains(&daemon, &first.id).await;
    trains(&daemon, &second.id).await;
    let third = submit(&workspace, &daemon, &[ENDLESS], 0).await;
    assert_eq!(waits(&daemon, &third.id).await, "it needs 2 threads, and running jobs leave 1 of 5");
    // It was prepared ahead: what it learned is in its run directory, and it has not had a worker.
    let prepared = reaches(&daemon, &third.id, |job| job.started_ms.is_some()).await;
    assert!(local(&prepared.directory).join("analysis.json").exists() && prepared.attempts == 0);
    daemon.cancel(&first.id).await.unwrap();
    let third = trains(&daemon, &third.id).await;
    assert_eq!((third.waits_for.as_str(), third.attempts), ("", 1));
    trains(&daemon, &second.id).await;
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_limits_the_jobs_that_run() {
    let workspace = Workspace::new();
    let limits = Limits { memory_bytes: Some(3 << 30), threads: NonZeroU32::new(64), ..Limits::default() };
    let daemon = workspace.daemon_within(limits);
    let first = submit(&workspace, &daemon, &[ENDLESS, "data.memory_budget=2GiB"], 0).await;
    trains(&daemon, &first.id).await;
    let second = submit(&workspace, &daemon, &[ENDLESS, "data.memory_budget=2GiB"], 0).await;
    let why = waits(&daemon, &second.id).await;
    assert!(why.contains("GiB of memory, and running jobs leave") && why.ends_with("of 3.0 GiB"), "{why}");
    // A small one fills the gap. One that never fits is refused as soon as its size is known.
    let small = submit(&workspace, &daemon, &[ENDLESS, "data.memory_budget=64MiB"], 0).await;
    let huge = ["model.deep.hidden=[65536, 65536]", "data.memory_budget=64MiB"];
    let huge = submit(&workspace, &daemon, &huge, 0).await;
    let huge = ended(&daemon, &huge.id).await;
    assert!(huge.state == JobState::Failed && huge.reason.contains("3.0 GiB for jobs"), "{huge:?}");
    daemon.cancel(&first.id).await.unwrap();
    trains(&daemon, &second.id).await;
    trains(&daemon, &small.id).await;
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_higher_priority_start_first() {
    let workspace = Workspace::new();
    let daemon = workspace.daemon();
    let first = submit(&workspace, &daemon, &[ENDLESS], 0).await;
    trains(&daemon, &first.id).await;
    let usual = submit(&workspace, &daemon, &["data.epochs=1"], 0).await;
    let urgent = submit(&workspace, &daemon, &["data.epochs=1"], 7).await;
    let why = "1 job is running, as many as `max_jobs` allows";
    assert_eq!(
        (waits(&daemon, &usual.id).await, waits(&daemon, &urgent.id).await.as_str()),
        (why.into(), why)
    );
    daemon.cancel(&first.id).await.unwrap();
    let (usual, urgent) = (ended(&daemon, &usual.id).await, ended(&daemon, &urgent.id).await);
    assert_eq!((usual.state, urgent.state), (JobState::Succeeded, JobState::Succeeded));
    assert!(urgent.ended_ms < usual.ended_ms, "{urgent:?} {usual:?}");
    let request = SubmitRequest { priority: 1001, ..workspace.request() };
    let refused = daemon.submit(request).await.unwrap_err().to_string();
    assert_eq!(refused, "priority 1001 is out of range (-1000 to 1000)");
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_cannot_fill_the_queue() {
    let workspace = Workspace::new();
    let (one, two) = (NonZeroUsize::new(1), NonZeroUsize::new(2));
    let limits = Limits { max_jobs: one, max_queued_per_user: two, ..Limits::default() };
    let daemon = workspace.daemon_within(limits);
    let first = submit(&workspace, &daemon, &[ENDLESS], 0).await;
    trains(&daemon, &first.id).await;
    for _ in 0..2 {
        submit(&workspace, &daemon, &[ENDLESS], 0).await;
    }
    let refused = daemon.submit(workspace.request()).await.unwrap_err().to_string();
    assert!(refused.contains("2 jobs of this user are waiting"), "{refused}");
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_job_gives_its_place_to_others_and_resumes_to_the_same_bits() {
    // It does not end before the pause, however fast the machine is.
    const LONG: &str = "data.epochs=120";
    let workspace = Workspace::new();
    let daemon = workspace.lasting_daemon();
    let undisturbed = submit(&workspace, &daemon, &[LONG], 0).await;
    let undisturbed = ended(&daemon, &undisturbed.id).await;
    let wanted = contents(local(undisturbed.checkpoint.as_ref().unwrap()));
    let job = submit(&workspace, &daemon, &[LONG], 0).await;
    let other = submit(&workspace, &daemon, &["data.epochs=1"], 0).await;
    reaches(&daemon, &job.id, |job| job.progress.step > 500).await;
    let paused = daemon.pause(&job.id).await.unwrap();
    assert_eq!((paused.state, paused.reason.as_str()), (JobState::Paused, "paused by a user"));
    assert!(paused.checkpoint.is_some() && worker_in(local(&paused.directory)).is_none());
    assert_eq!(ended(&daemon, &other.id).await.state, JobState::Succeeded);
    let nothing = daemon.pause(&other.id).await.unwrap_err().to_string();
    assert!(nothing.contains("succeeded; there is nothing to pause"), "{nothing}");
    daemon.shutdown().await;
    drop(daemon);

    // It stays paused until a user resumes it.
    let daemon = workspace.lasting_daemon();
    assert_eq!(daemon.show(&job.id).unwrap().state, JobState::Paused);
    daemon.resume(&job.id).await.unwrap();
    let resumed = ended(&daemon, &job.id).await;
    assert_eq!((resumed.state, resumed.attempts), (JobState::Succeeded, 2), "{}", resumed.reason);
    assert_same(&contents(local(resumed.checkpoint.as_ref().unwrap())), &wanted);
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_jobs_are_paused_and_paused_ones_cancelled() {
    let workspace = Workspace::new();
    let daemon = workspace.daemon();
    let first = submit(&workspace, &daemon, &[ENDLESS], 0).await;
    trains(&daemon, &first.id).await;
    let second = submit(&workspace, &daemon, &[ENDLESS], 0).await;
    waits(&daemon, &second.id).await;
    let second = daemon.pause(&second.id).await.unwrap();
    assert_eq!((second.state, second.attempts), (JobState::Paused, 0));
    let second = daemon.cancel(&second.id).await.unwrap();
    assert_eq!((second.state, second.reason.as_str()), (JobState::Cancelled, "cancelled by a user"));
    // A job that is being stopped for a pause can still be cancelled.
    let (paused, cancelled) = tokio::join!(daemon.pause(&first.id), daemon.cancel(&first.id));
    let states = [paused.map_or(JobState::Cancelled, |job| job.state), cancelled.unwrap().state];
    assert_eq!(states[1], JobState::Cancelled, "{states:?}");
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_job_that_is_cancelled_is_not_held_any_more() {
    let workspace = Workspace::new();
    std::fs::create_dir_all(workspace.path("state")).unwrap();
    let store = Store::open(&workspace.path("state").join("state.sqlite")).unwrap();
    let record = JobRecord {
        state: JobState::Held,
        ..JobRecord::new("a", "tiny", Directory::local(workspace.path("a")))
    };
    let source =
        JobSource { text: JOB.to_owned(), path: workspace.path("job.toml"), requester: Requester::Trusted };
    store.insert_job(&record, &source).unwrap();
    drop(store);
    let daemon = workspace.lasting_daemon();
    assert_eq!(daemon.snapshot().held_jobs, 1);
    assert_eq!(daemon.cancel("a").await.unwrap().state, JobState::Cancelled);
    assert_eq!(daemon.show("a").unwrap().state, JobState::Cancelled);
    let snapshot = daemon.snapshot();
    assert_eq!((snapshot.held_jobs, snapshot.ended_jobs.cancelled), (0, 1));
    daemon.shutdown().await;
}
