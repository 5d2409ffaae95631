//! A job: its file, its data and directories, and whether it fits on this host, as `check` finds it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use millstream_control::proto::AboutReply;
use millstream_daemon::ranks;
use millstream_job::{Devices, Job};
use tokio::runtime::Handle;

use super::disk::Use;
use super::finding::Finding;
use super::store::denied;
use super::system::within;
use crate::commands::check::{Fit, fit};
use crate::figures::bytes;

/// Time limit for the plan, which may read up to 64 MiB of data.
const LIMIT: Duration = Duration::from_secs(60);

/// The finding about a job file without errors.
pub(super) fn valid(path: &Path, job: &Job) -> Finding {
    let (features, devices) = (job.features.len(), devices(job));
    Finding::ok("job", format!("{}: {}, {features} features, on {devices}", path.display(), job.name))
}

/// The devices of the job's workers, as the job names them.
fn devices(job: &Job) -> String {
    let numbers = ranks::gpus(&job.training);
    match &job.workers.devices {
        Some(Devices::All) => "all GPUs".to_owned(),
        Some(devices @ Devices::Chosen(names)) if devices.numbers().is_none() => {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            format!("GPUs {}", names.join(", "))
        }
        _ if numbers.is_empty() => job.training.device.to_string(),
        _ => {
            let names: Vec<_> = numbers.iter().map(|number| format!("cuda:{number}")).collect();
            names.join(", ")
        }
    }
}

/// The finding about a job file with errors: `report` has a line for each.
pub(super) fn invalid(path: &Path, report: &str) -> Finding {
    let mut lines = report.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or("invalid");
    let advice = format!("millstream check {} shows all errors", path.display());
    Finding::fail("job", first.trim_start_matches("error: "), advice)
}

/// The patterns of the job's data.
pub(super) fn patterns(job: &Job) -> Vec<String> {
    job.data.train.iter().chain(&job.data.eval).cloned().collect()
}

/// The directories in which the job writes, besides those of the daemon.
pub(super) fn directories(job: &Job, daemon: Option<&AboutReply>) -> Vec<(Use, PathBuf)> {
    let runs = job.checkpoint.directory.as_local().filter(|_| !uses_shared(job, daemon));
    let checkpoints = runs.map(|runs| (Use::Checkpoints, runs.to_owned()));
    let cache = job.data.cache.as_ref().map(|cache| (Use::Cache, cache.directory.clone()));
    checkpoints.into_iter().chain(cache).collect()
}

/// Whether the daemon writes the job's checkpoints into its shared directory instead of the default one.
fn uses_shared(job: &Job, daemon: Option<&AboutReply>) -> bool {
    let is_default = job.checkpoint.has_default_directory(&job.data.base);
    let directory = job.checkpoint.directory.as_local().filter(|_| is_default);
    daemon
        .filter(|daemon| !daemon.shared_directories.is_empty())
        .zip(directory)
        .is_some_and(|(daemon, directory)| denied(daemon, |user| user.check_write(directory)).is_some())
}

/// Why the daemon cannot write the job's checkpoints. In place of the default directory, it has its own.
pub(super) fn closed_to_daemon(job: &Job, daemon: &AboutReply) -> Option<Finding> {
    let directory = job.checkpoint.directory.as_local()?;
    let is_shared = daemon.shared_directories.iter().any(|shared| directory.starts_with(shared));
    if is_shared || job.checkpoint.has_default_directory(&job.data.base) {
        return None;
    }
    let why = denied(daemon, |user| user.check_write(directory))?;
    let shared = daemon
        .shared_directories
        .first()
        .map(|shared| format!("set `checkpoint.directory` to {shared}, or "));
    let advice = format!(
        "{}sudo setfacl -m u:{}:rwx {}; or train with --local",
        shared.unwrap_or_default(),
        daemon.uid,
        directory.display()
    );
    Some(Finding::fail("disk.checkpoint", format!("the daemon cannot write checkpoints: {why}"), advice))
}

/// Whether the job fits on this host.
pub(super) fn plan(job: Job, runtime: Handle) -> Vec<Finding> {
    match within(LIMIT, move || fit(&job, &runtime)) {
        None => vec![Finding::warn(
            "job.plan",
            format!("the job could not be planned within {} s", LIMIT.as_secs()),
            "millstream check has no time limit",
        )],
        Some(Err(error)) => {
            vec![Finding::fail(
                "job.plan",
                format!("{error:#}"),
                "millstream check shows the plan up to there",
            )]
        }
        Some(Ok(fit)) => of_fit(&fit),
    }
}

fn of_fit(fit: &Fit) -> Vec<Finding> {
    let Fit { needed_bytes, available_bytes, is_exact, gpu_problem, memory_problem } = fit;
    let gpu = gpu_problem.as_ref().map(|problem| {
        Finding::fail(
            "job.device",
            problem.clone(),
            "set `training.device = \"cpu\"`, or mend the GPU as above",
        )
    });
    let available = available_bytes.map_or_else(|| "an unknown amount".to_owned(), bytes);
    let about = if *is_exact { "" } else { "at most " };
    let found = format!("needs {about}{} of memory; {available} available", bytes(*needed_bytes));
    let memory = match memory_problem {
        Some(problem) => Finding::fail("job.memory", problem.clone(), "millstream check shows each part"),
        None => Finding::ok("job.memory", found),
    };
    gpu.into_iter().chain([memory.with("needed_bytes", *needed_bytes as f64)]).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    #[test]
    fn a_job_fits_or_says_why_not() {
        let good = Fit {
            needed_bytes: 1 << 30,
            available_bytes: Some(4 << 30),
            is_exact: true,
            gpu_problem: None,
            memory_problem: None,
        };
        let findings = of_fit(&good);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].found, "needs 1.0 GiB of memory; 4.0 GiB available");
        let bad =
            Fit { gpu_problem: Some("no GPU".into()), memory_problem: Some("too large".into()), ..good };
        let marks: Vec<_> = of_fit(&bad).iter().map(|finding| (finding.check, finding.mark)).collect();
        assert_eq!(marks, [("job.device", Mark::Fail), ("job.memory", Mark::Fail)]);
    }

    #[test]
    fn each_gpu_of_a_job_is_shown() {
        const JOB: &str = r#"name = "clicks"
data = { train = ["train.parquet"] }
label = { column = "clicked" }
features = { age = { kind = "numeric" } }
model = { kind = "mlp", features = ["age"], hidden = [4], optimizer = { kind = "adam" } }
"#;
        let cases: [(&[&str], &str); 7] = [
            (&[], "cpu"),
            (&["workers.per_host=2"], "cpu"),
            (&["training.device=cuda:1"], "cuda:1"),
            (&["training.device=cuda:1", "workers.per_host=3"], "cuda:1, cuda:2, cuda:3"),
            (&["workers.devices=[5, 0]"], "cuda:5, cuda:0"),
            (&["workers.devices=[\"GPU-5f2c\", 0]"], "GPUs \"GPU-5f2c\", 0"),
            (&["workers.devices=all"], "all GPUs"),
        ];
        for (set, devices) in cases {
            let set: Vec<_> = set.iter().map(|&text| text.to_owned()).collect();
            let (job, _) = Job::parse(JOB, Path::new("a.toml"), &set).unwrap();
            let finding = valid(Path::new("a.toml"), &job);
            assert_eq!(finding.found, format!("a.toml: clicks, 1 features, on {devices}"));
        }
    }

    #[test]
    fn the_first_error_of_a_job_file_is_shown() {
        let finding = invalid(Path::new("a.toml"), "\na.toml:3: unknown key\na.toml:9: more\n");
        assert_eq!((finding.mark, finding.found.as_str()), (Mark::Fail, "a.toml:3: unknown key"));
        assert_eq!(finding.advice.as_deref(), Some("millstream check a.toml shows all errors"));
    }
}
