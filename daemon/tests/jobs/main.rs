//! Jobs from submission to end with real workers: the daemon runs in the test process, its workers are
//! `millstreamd worker`.

#![allow(clippy::unwrap_used)]

mod queue;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream_control::proto::{JobState, SubmitRequest};
use millstream_daemon::access::Requester;
use millstream_daemon::config::{Config, Settings, StateLocation};
use millstream_daemon::daemon::{Daemon, Predicted, SubmitError};
use millstream_daemon::plan::{JobPlan, Learning};
use millstream_daemon::state::{JobFilter, JobRecord, JobSource, Store};
use millstream_io::storage::{Directory, Stores};
use millstream_job::Job;
use millstream_trainer::metrics::Metric;
use support::{
    EPOCHS, EVAL_ROWS, JOB, TRAIN_ROWS, Workspace, assert_same, contents, ended, kill_worker, local, reaches,
    waits, worker_in,
};
use tracing::Level;

const STEPS: u64 = EPOCHS * (TRAIN_ROWS as u64 / 32);

#[tokio::test(flavor = "multi_thread")]
async fn a_job_trains_evaluates_and_is_scored() {
    let workspace = Workspace::new();
    let daemon = workspace.daemon();
    let job = workspace.submit(&daemon).await;
    assert!(job.id.starts_with("tiny-") && job.id.len() == "tiny-".len() + 6, "{}", job.id);
    let job = ended(&daemon, &job.id).await;

    assert_eq!((job.state, job.reason.as_str(), job.attempts), (JobState::Succeeded, "", 1));
    assert_eq!((job.progress.step, job.progress.total_steps), (STEPS, Some(STEPS)));
    assert_eq!(job.progress.examples, EPOCHS * TRAIN_ROWS as u64);
    assert!(job.progress.examples_per_second > 0.0);
    assert!((0.0..=1.0).contains(&job.progress.input_wait_fraction));
    let eval = job.eval;
    assert_eq!((eval.len(), eval[0].examples), (1, EVAL_ROWS as u64));
    assert!(eval[0].value(Metric::Auc).unwrap() > 0.8, "{eval:?}");
    assert_eq!(worker_in(local(&job.directory)), None);
    let checkpoints = fs::read_dir(local(&job.directory))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("step-"));
    assert_eq!(checkpoints.count(), 2, "the number of checkpoints is `keep`");
    let log = daemon.logs(&job.id, 0).unwrap();
    assert!(log.iter().any(|line| line.text.contains(&format!("epoch {EPOCHS}: auc"))), "{log:#?}");
    assert!(log.iter().all(|line| line.level == Level::INFO), "{log:#?}");

    let newest = job.checkpoint.unwrap();
    for target in [job.id.as_str(), &*job.directory.text(), &*newest.text()] {
        let metrics = daemon.evaluate(workspace.score(target, &[])).await.unwrap();
        assert_eq!(metrics, eval, "{target}");
    }
    let mut scores = Vec::new();
    let predictions = daemon.predict(workspace.score(&job.id, &["train-1.parquet"])).await.unwrap();
    assert!(predictions.labels.is_empty());
    let mut receiver = predictions.rows;
    while let Some(part) = receiver.recv().await {
        if let Predicted::Rows { scores: next, .. } = part.unwrap() {
            scores.extend(next);
        }
    }
    assert_eq!(scores.len(), TRAIN_ROWS / 4);
    assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)));

    let absent = daemon.evaluate(workspace.score("nonesuch", &[])).await.unwrap_err();
    assert!(format!("{absent:#}").contains("`nonesuch` is neither a job nor a checkpoint"), "{absent:#}");
    let no_data = daemon.evaluate(workspace.score(&job.id, &["absent.parquet"])).await.unwrap_err();
    assert!(format!("{no_data:#}").contains("absent.parquet"), "{no_data:#}");
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_workers_do_not_change_the_result() {
    const KILLS: u32 = 5;
    let workspace = Workspace::new();
    let wanted = workspace.undisturbed().await;
    let daemon = workspace.daemon();
    let job = workspace.submit(&daemon).await;
    for attempt in 1..=KILLS {
        let before = daemon.show(&job.id).unwrap().checkpoint;
        let there = |job: &JobRecord| job.attempts == attempt && job.checkpoint != before;
        let job = reaches(&daemon, &job.id, there).await;
        assert!(kill_worker(local(&job.directory)), "attempt {attempt}: {job:?}");
    }
    let job = ended(&daemon, &job.id).await;
    assert_eq!((job.state, job.attempts), (JobState::Succeeded, KILLS + 1), "{}", job.reason);
    assert!(job.reason.contains("killed by signal 9"), "the reason is kept: {}", job.reason);
    let log = daemon.logs(&job.id, 0).unwrap();
    let deaths = log.iter().filter(|line| line.text.contains("killed by signal 9 (SIGKILL")).count();
    assert_eq!(deaths, KILLS as usize, "{log:#?}");
    assert_same(&contents(local(job.checkpoint.as_ref().unwrap())), &wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_resumes_to_the_same_bits() {
    let workspace = Workspace::new();
    let wanted = workspace.undisturbed().await;
    let daemon = workspace.daemon();
    let (mut cancelled, mut step) = (None, 0);
    // A job may end before it is cancelled: on a busy machine, the daemon may learn late how far it is.
    for _ in 0..20 {
        let job = workspace.submit(&daemon).await;
        reaches(&daemon, &job.id, |job| job.progress.step > 100).await;
        let Ok((path, saved)) = daemon.checkpoint(&job.id).await else { continue };
        assert!(saved > 100 && local(&path).join("manifest.json").exists());
        let job = daemon.cancel(&job.id).await.unwrap();
        if job.state == JobState::Cancelled {
            (cancelled, step) = (Some(job), saved);
            break;
        }
    }
    let job = cancelled.expect("a job that was cancelled in time");
    assert!(job.progress.step >= step && job.progress.step < STEPS, "{}", job.progress.step);
    assert!(local(&job.checkpoint.unwrap()).join("manifest.json").exists());
    assert_eq!(worker_in(local(&job.directory)), None);
    daemon.shutdown().await;

    // A new daemon without that state.
    let daemon = workspace.daemon();
    let again = workspace.resume(&daemon).await;
    assert_eq!((&again.id, &again.directory), (&job.id, &job.directory));
    let again = ended(&daemon, &again.id).await;
    assert_eq!((again.state, again.progress.step), (JobState::Succeeded, STEPS), "{}", again.reason);
    assert_same(&contents(local(again.checkpoint.as_ref().unwrap())), &wanted);

    let resumed = SubmitRequest { resume: true, ..workspace.request() };
    let over = daemon.submit(resumed).await.unwrap_err();
    assert!(over.to_string().contains("no unfinished run"), "{over}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_daemon_resumes_the_jobs_of_a_stopped_one() {
    let workspace = Workspace::new();
    let wanted = workspace.undisturbed().await;
    let daemon = workspace.lasting_daemon();
    let job = workspace.submit(&daemon).await;
    reaches(&daemon, &job.id, |job| job.progress.step > 500).await;
    let waiting = workspace.submit(&daemon).await;
    waits(&daemon, &waiting.id).await;

    let second = Daemon::start(Config {
        state: StateLocation::Directory(workspace.path("state")),
        ..Config::embedded()
    });
    let error = format!("{:#}", second.err().unwrap());
    assert!(error.contains("another daemon uses the state directory"), "{error}");

    daemon.shutdown().await;
    assert_eq!(worker_in(local(&job.directory)), None);
    assert_eq!(daemon.show(&job.id).unwrap().state, JobState::Queued);
    assert!(daemon.submit(workspace.request()).await.is_err());
    drop(daemon);

    let daemon = workspace.lasting_daemon();
    for id in [&job.id, &waiting.id] {
        let job = ended(&daemon, id).await;
        assert_eq!(job.state, JobState::Succeeded, "{}", job.reason);
        assert_same(&contents(local(job.checkpoint.as_ref().unwrap())), &wanted);
    }
    assert_eq!(daemon.show(&job.id).unwrap().attempts, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_checkpoint_is_passed_over() {
    let workspace = Workspace::new();
    let wanted = workspace.undisturbed().await;
    let daemon = workspace.daemon();
    let job = workspace.submit(&daemon).await;
    reaches(&daemon, &job.id, |job| job.progress.step > 700).await;
    let job = daemon.cancel(&job.id).await.unwrap();
    let newest = job.checkpoint.unwrap();
    let part = local(&newest).join("model.safetensors");
    let mut bytes = fs::read(&part).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(&part, bytes).unwrap();

    let again = workspace.resume(&daemon).await;
    let again = ended(&daemon, &again.id).await;
    assert_eq!(again.state, JobState::Succeeded, "{}", again.reason);
    let log = daemon.logs(&again.id, 0).unwrap();
    let damage =
        log.iter().find(|line| line.text.contains("falling back to the checkpoint before it")).unwrap();
    assert!(damage.text.contains(newest.name().unwrap()), "{}", damage.text);
    assert_same(&contents(local(again.checkpoint.as_ref().unwrap())), &wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_data_fails_the_job_at_once_with_its_location() {
    let workspace = Workspace::new();
    workspace.spoil(2, 4_321);
    let daemon = workspace.daemon();
    let set = vec!["features.x.normalize=\"none\"".to_owned()];
    let job = daemon.submit(SubmitRequest { set, ..workspace.request() }).await.unwrap();
    let job = ended(&daemon, &job.id).await;
    assert_eq!(job.state, JobState::Failed);
    for part in ["train-2.parquet", "record 4321", "`x`"] {
        assert!(job.reason.contains(part), "{}", job.reason);
    }
    assert!(job.attempts <= 1);
    assert_eq!(worker_in(local(&job.directory)), None);

    let text = JOB.replace("batch_size", "batchsize");
    let error = daemon.submit(SubmitRequest { text, ..workspace.request() }).await.unwrap_err();
    assert!(matches!(error, SubmitError::Invalid(_)) && error.to_string().contains("batch_size"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_workers_always_die_fails() {
    let workspace = Workspace::new();
    let script = workspace.path("worker.sh");
    fs::write(&script, "#!/bin/sh\necho out of luck >&2\nexit 3\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    for (program, reason) in [
        (script.as_path(), "the worker exited with status 3: out of luck"),
        (Path::new("/nonexistent/worker"), "the worker cannot be started"),
    ] {
        let daemon = workspace.daemon_with(StateLocation::Memory, program);
        let job = workspace.submit(&daemon).await;
        let job = ended(&daemon, &job.id).await;
        assert_eq!(job.state, JobState::Failed);
        assert!(
            job.reason.contains("gave up after 3 attempts") && job.reason.contains(reason),
            "{}",
            job.reason
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_rejects_a_job_before_it_exists_and_a_fuller_state_still_starts() {
    const JOBS: u64 = 10_003;
    // More than are prepared ahead.
    const RUNS: usize = 16;
    let workspace = Workspace::new();
    let runs = workspace.path("checkpoints");
    let text = JOB.replace("epochs = 24", "epochs = 1000000");
    fs::create_dir_all(workspace.path("state")).unwrap();
    let store = Store::open(&workspace.path("state").join("state.sqlite")).unwrap();
    let source =
        JobSource { text: text.clone(), path: workspace.path("job.toml"), requester: Requester::Trusted };
    for created_ms in 0..JOBS {
        let id = format!("tiny-{created_ms:06}");
        let record =
            JobRecord { created_ms, ..JobRecord::new(id.as_str(), "tiny", Directory::local(runs.join(&id))) };
        store.insert_job(&record, &source).unwrap();
    }
    drop(store);
    // The first job runs, and some are prepared ahead, so the queue stays full.
    for number in 0..RUNS {
        let run = runs.join(format!("tiny-{number:06}"));
        fs::create_dir_all(&run).unwrap();
        fs::write(run.join("job.toml"), &text).unwrap();
    }

    let daemon = workspace.lasting_daemon();
    let refused = daemon.submit(workspace.request()).await.unwrap_err().to_string();
    assert_eq!(refused, "the queue is full: 10000 jobs are waiting");
    assert_eq!(daemon.list(&JobFilter::default()).unwrap().0.len() as u64, JOBS);
    assert_eq!(fs::read_dir(&runs).unwrap().count(), RUNS, "a rejected job has no run directory");
    tokio::time::timeout(Duration::from_secs(60), daemon.shutdown()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn old_jobs_are_deleted_when_the_daemon_starts() {
    let workspace = Workspace::new();
    fs::create_dir_all(workspace.path("state")).unwrap();
    let store = Store::open(&workspace.path("state").join("state.sqlite")).unwrap();
    let source =
        JobSource { text: JOB.to_owned(), path: workspace.path("job.toml"), requester: Requester::Trusted };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let day = 24 * 60 * 60 * 1000;
    for (id, ended_ms) in [("old", now - 31 * day), ("new", now - 29 * day)] {
        let record = JobRecord::new(id, "tiny", Directory::local(workspace.path(id)));
        let state = JobState::Failed;
        store.insert_job(&JobRecord { state, ended_ms: Some(ended_ms), ..record }, &source).unwrap();
    }
    drop(store);
    let embedded = Config::embedded();
    let config = Config {
        state: StateLocation::Directory(workspace.path("state")),
        settings: Settings { keep_jobs_days: Some(30.try_into().unwrap()), ..embedded.settings },
        ..embedded
    };
    let daemon = Daemon::start(config).unwrap();
    let ids =
        || daemon.list(&JobFilter::default()).unwrap().0.into_iter().map(|job| job.id).collect::<Vec<_>>();
    while ids().len() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(ids(), ["new"]);
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_jobs_can_be_cancelled() {
    let workspace = Workspace::new();
    let daemon = workspace.daemon();
    let huge = SubmitRequest { text: "#".repeat(2 << 20), ..workspace.request() };
    assert!(daemon.submit(huge).await.unwrap_err().to_string().contains("more than 1048576"));
    let first = workspace.submit(&daemon).await;
    let second = workspace.submit(&daemon).await;
    waits(&daemon, &second.id).await;
    assert_eq!(
        daemon.list(&JobFilter::default()).unwrap().0.iter().map(|job| &job.id).collect::<Vec<_>>(),
        [&second.id, &first.id]
    );
    let early = daemon.checkpoint(&second.id).await.unwrap_err();
    assert!(early.to_string().contains("is queued"), "{early}");
    let second = daemon.cancel(&second.id).await.unwrap();
    assert_eq!((second.state, second.attempts), (JobState::Cancelled, 0));
    let refused = daemon.checkpoint(&second.id).await.unwrap_err();
    assert!(refused.to_string().contains("cancelled"), "{refused}");
    let first = daemon.cancel(&first.id).await.unwrap();
    assert_eq!(first.state, JobState::Cancelled);
    assert!(daemon.show("tiny").is_err(), "the prefix is ambiguous");
    tokio::time::timeout(Duration::from_secs(10), daemon.shutdown()).await.unwrap();
}

#[test]
fn a_plan_without_statistics_reads_the_first_rows() {
    let workspace = Workspace::new();
    let (job, _) = Job::parse(JOB, &workspace.path("job.toml"), &[]).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let plan = || {
        let learning = Learning { most_bytes: 0, progress: &|_| {} };
        let host = || unreachable!("a CPU job does not survey GPUs");
        JobPlan::new(&job, &host, learning, (&Stores::default(), runtime.handle()))
    };
    assert_eq!(plan().unwrap().analysis, None);
    workspace.spoil(0, 3);
    let error = format!("{:#}", plan().err().unwrap());
    assert!(
        error.contains("train-0.parquet") && error.contains("record 3") && error.contains("NaN"),
        "{error}"
    );
}
