//! A job that keeps images of its model in memory continues from them after the death of a worker, with the same bits as
//! undisturbed, and leaves no image behind.
//!
//! UCX must be installed to run these tests, as `tests/run` does.

#![allow(clippy::unwrap_used)]

use std::fs;

use millstream_tests::programs::{Daemon, children, has_ended, kill, wait_until};
use millstream_tests::tiny_job::{Contents, TinyJob, kill_count};
use serde_json::Value;

/// Kills in a run of `tests/run`.
const KILLS: u32 = 3;

/// Epochs of the tiny job that take several seconds, in one worker and in two.
const EPOCHS: [(u32, u32); 2] = [(1, 160), (2, 28)];

/// Whether the daemon holds the file of an image.
fn holds_images(daemon: &Daemon) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    targets.into_iter().any(|target| target.to_string_lossy().contains("millstream-image"))
}

/// Waits until the job has an image newer than `before`, or has ended. Returns the job.
fn new_image(daemon: &Daemon, id: &str, before: Option<u64>) -> Value {
    let mut job = Value::Null;
    wait_until("there is a new image", || {
        job = daemon.show(id);
        has_ended(&job) || job["image_step"].as_u64() > before
    });
    job
}

/// The steps from which workers have continued, each with whether it is that of an image.
fn continued(log: &str) -> Vec<(u64, bool)> {
    let of_line = |line: &str| {
        let (_, rest) = line.split_once(" resumes from ")?;
        let image = rest.strip_prefix("the image of ");
        let step = image.unwrap_or(rest).strip_prefix("step ")?.split(',').next()?;
        Some((step.parse().ok()?, image.is_some()))
    };
    log.lines().filter_map(of_line).collect()
}

#[test]
fn killed_workers_continue_from_images_with_the_same_bits() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    for (workers, epochs) in EPOCHS {
        let set = [
            format!("workers.per_host={workers}"),
            format!("data.epochs={epochs}"),
            "workers.image_seconds=1".to_owned(),
            // Only the last one.
            "checkpoint.every_steps=1000000".to_owned(),
        ];
        let undisturbed = daemon.succeeded(&daemon.submit(&job.file(), &set));
        assert_eq!(undisturbed["attempts"], 1);
        let wanted = Contents::of(undisturbed["checkpoint"].as_str().unwrap());
        let (mut kills, wanted_kills, mut from_images) = (0, kill_count(KILLS), 0);
        while kills < wanted_kills {
            let id = daemon.submit(&job.file(), &set);
            let (mut newest, mut killed_here) = (None, Vec::new());
            while kills < wanted_kills {
                let state = new_image(&daemon, &id, newest);
                if has_ended(&state) {
                    break;
                }
                let held = holds_images(&daemon);
                assert!(held || has_ended(&daemon.show(&id)), "the daemon holds images while the job runs");
                // Each in turn, that with the images too.
                let workers = children(daemon.pid());
                if !workers.get(kills as usize % workers.len().max(1)).is_some_and(|&victim| kill(victim)) {
                    continue;
                }
                kills += 1;
                killed_here.push(state["image_step"].as_u64().unwrap());
                wait_until("the next workers continue, or the job ends", || {
                    continued(&daemon.log(&id)).len() == killed_here.len() || has_ended(&daemon.show(&id))
                });
                newest = daemon.show(&id)["image_step"].as_u64();
            }
            let ended = daemon.succeeded(&id);
            Contents::of(ended["checkpoint"].as_str().unwrap()).assert_same(&wanted);
            assert!(ended["image_step"].is_null(), "{ended:#}");
            let log = daemon.log(&id);
            let continued = continued(&log);
            assert_eq!(continued.len() as u64 + 1, ended["attempts"].as_u64().unwrap(), "{log}");
            // Between its report and its death, a worker may have taken another image, or its last checkpoint.
            assert!(continued.iter().zip(&killed_here).all(|((step, _), image)| step >= image), "{log}");
            from_images += continued.iter().filter(|(_, is_image)| *is_image).count();
            wait_until("the images are gone", || !holds_images(&daemon));
        }
        assert!(from_images > 0, "{kills} kills");
    }
    assert!(children(daemon.pid()).is_empty());
    daemon.stop();
}

/// A job that is paused after the death of its worker, before the next one has started, is saved from its image.
#[test]
fn a_paused_job_is_saved_from_its_image() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let set = ["data.epochs=100000", "workers.image_seconds=1", "checkpoint.every_steps=100000000"]
        .map(str::to_owned);
    let id = daemon.submit(&job.file(), &set);
    let image = new_image(&daemon, &id, None)["image_step"].as_u64().unwrap();
    assert!(children(daemon.pid()).into_iter().all(kill));
    let paused = daemon.json(&["pause", &id]);
    assert_eq!(paused["state"], "paused", "{paused:#}");
    let checkpoint = paused["checkpoint"].as_str().unwrap();
    let step: u64 = checkpoint.rsplit_once("step-").unwrap().1.parse().unwrap();
    assert!(step >= image, "{step}, and the image was of step {image}");
    daemon.json(&["cancel", &id]);
    daemon.stop();
}

/// An image outlives its worker, but not the daemon: then the newest checkpoint counts.
#[test]
fn a_daemon_that_dies_leaves_the_checkpoint() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let set = ["data.epochs=120", "workers.image_seconds=1", "checkpoint.every_steps=20000"];
    let set = set.map(str::to_owned);
    let wanted = daemon.succeeded(&daemon.submit(&job.file(), &set));
    let id = daemon.submit(&job.file(), &set);
    wait_until("there is a checkpoint", || !daemon.show(&id)["checkpoint"].is_null());
    new_image(&daemon, &id, Some(20_000));
    daemon.kill();
    let daemon = Daemon::start(job.directory());
    daemon.resume_if_held(&id);
    let ended = daemon.succeeded(&id);
    let [wanted, found] = [&wanted, &ended].map(|job| Contents::of(job["checkpoint"].as_str().unwrap()));
    found.assert_same(&wanted);
    let log = daemon.log(&id);
    assert!(log.contains(" resumes from step "), "{log}");
    daemon.stop();
}
