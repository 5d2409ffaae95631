//! `millstream show`: shows all details of one job.

use std::time::Duration;

use millstream_control::proto::{FewerWorkers, Job, LeftOutWorker, Library};

use crate::arguments::JobId;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::gpu_use;
use crate::printable::one_line;
use crate::table::Table;
use crate::workers;

pub(crate) async fn run(arguments: JobId, context: &Context) -> Result<(), Failure> {
    let job = to_daemon(context).await?.show(&arguments.id).await?;
    context.answer(&job, || describe(&job))
}

fn describe(job: &Job) -> String {
    let progress = job.progress.unwrap_or_default();
    let mut table = Table::default();
    table.row(["job", &job.id]);
    table.row(["name", &job.name]);
    table.row(["state", job.state().name()]);
    if let Some(reason) = &job.reason {
        table.row(["reason", reason]);
    }
    if let Some(why) = &job.waits_for {
        table.row(["waits", why]);
    }
    if let Some(owner) = &job.owner {
        table.row(["owner", owner]);
    }
    if job.priority != 0 {
        table.row(["priority", &job.priority.to_string()]);
    }
    table.row(["created", &figures::moment(job.created_ms)]);
    if let Some(started) = job.started_ms {
        table.row(["started", &figures::moment(started)]);
    }
    if let Some(ended) = job.ended_ms {
        let took = job.started_ms.map(|started| Duration::from_millis(ended.saturating_sub(started)));
        let took = took.map(|took| format!(", after {}", figures::duration(took)));
        table.row(["ended", &(figures::moment(ended) + &took.unwrap_or_default())]);
    }
    table.row(["attempts", &job.attempts.to_string()]);
    if let Some(device) = &job.device {
        table.row(["device", &device.description]);
        for Library { library, version } in &device.libraries {
            table.row([format!("  {library}"), version.clone()]);
        }
    }
    if let Some(fewer) = &job.fewer_workers {
        table.row(["workers", &describe_fewer(fewer)]);
    }
    for worker in &job.workers {
        table.row([format!("worker {}", worker.rank), workers::describe(worker)]);
    }
    for gpu in &job.gpus {
        table.row(["gpu", &gpu_use::of_job(gpu, &job.id)]);
    }
    if progress.step > 0 {
        let total = progress.total_steps.map(|total| format!(" of {}", figures::count(total)));
        table.row(["steps", &(figures::count(progress.step) + &total.unwrap_or_default())]);
        table.row(["examples", &figures::count(progress.examples)]);
        // A search has no epochs: its steps and examples are those of all trials, and it trains nothing itself.
        if progress.epochs > 0 {
            let epoch = (progress.epoch + 1).min(progress.epochs);
            table.row(["epoch", &format!("{epoch} of {}", progress.epochs)]);
            table.row(["examples/s", &figures::rate(progress.examples_per_second)]);
            table.row(["input wait", &figures::percent(progress.input_wait_fraction)]);
            table.row(["loss", &figures::metric(progress.loss)]);
        }
    }
    if progress.skipped_records > 0 {
        table.row(["skipped records", &figures::count(progress.skipped_records)]);
    }
    if let Some(epoch) = job.eval_epoch {
        table.row(["eval after epoch", &(epoch + 1).to_string()]);
    }
    figures::metric_rows(&mut table, "eval ", &job.eval);
    table.row(["directory", &job.directory]);
    if let Some(checkpoint) = &job.checkpoint {
        table.row(["checkpoint", checkpoint]);
    }
    if let Some(step) = job.image_step {
        table.row(["image", &format!("step {}, in the memory of the daemon", figures::count(step))]);
    }
    if let Some(best) = &job.best_checkpoint {
        table.row(["best checkpoint", best]);
    }
    table.render()
}

fn describe_fewer(FewerWorkers { members, all, left_out }: &FewerWorkers) -> String {
    let describe = |LeftOutWorker { worker, gpu, reason }: &LeftOutWorker| {
        let name = gpu.map_or_else(|| format!("worker {worker}"), |gpu| format!("GPU {gpu}"));
        let reason = if reason.is_empty() { String::new() } else { format!(": {}", one_line(reason)) };
        format!("; {name} is left out{reason}")
    };
    format!("{members} of {all}{}", left_out.iter().map(describe).collect::<String>())
}

#[cfg(test)]
mod tests {
    use millstream_control::proto::{Device, Worker};

    use super::*;

    #[test]
    fn workers_are_shown_with_the_one_that_the_others_wait_for() {
        let worker = |rank, awaited_seconds: Option<f64>| Worker {
            rank,
            pid: (rank < 3).then_some(100 + rank),
            host: (rank >= 3).then(|| "train-2".to_owned()),
            exchange_fraction: (rank < 2).then_some(0.375),
            awaited_seconds,
            awaited_in: awaited_seconds.map(|_| "gather of f32, number 512".to_owned()),
        };
        let waits = |rank| worker(rank, (rank % 2 == 1).then_some(12.3));
        let job = Job { workers: (0..4).map(waits).collect(), ..Job::default() };
        let shown = describe(&job);
        let lines: Vec<_> =
            shown.lines().map(str::trim_end).filter(|line| line.starts_with("worker")).collect();
        assert_eq!(
            lines,
            [
                "worker 0   process 100, 37.5 % of the time in exchanges",
                "worker 1   process 101, the others have waited for it for 12s, in gather of f32, number 512",
                "worker 2   process 102",
                "worker 3   on host train-2, the others have waited for it for 12s, in gather of f32, number 512",
            ]
        );
    }

    #[test]
    fn workers_that_are_left_out_are_shown_with_their_failure() {
        let left_out = |worker, gpu, reason: &str| LeftOutWorker { worker, gpu, reason: reason.to_owned() };
        let shown = |left_out| {
            let fewer = FewerWorkers { members: 2, all: 4, left_out };
            let shown = describe(&Job { fewer_workers: Some(fewer), ..Job::default() });
            shown.lines().find(|line| line.starts_with("workers")).map(|line| line.trim_end().to_owned())
        };
        let of_gpu = shown(vec![left_out(1, Some(3), "the device\nfailed")]).unwrap_or_default();
        assert!(
            of_gpu.starts_with("workers ") && of_gpu.contains(" 2 of 4; GPU 3 is left out: the device"),
            "{of_gpu}"
        );
        let of_cpu = shown(vec![left_out(1, None, ""), left_out(0, None, "killed")]).unwrap_or_default();
        assert!(of_cpu.ends_with(" 2 of 4; worker 1 is left out; worker 0 is left out: killed"), "{of_cpu}");
    }

    #[test]
    fn device_is_shown_if_known() {
        let lines =
            |job: &Job| describe(job).lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        // A job without a worker, or an older daemon, reports no device.
        let before = lines(&Job::default());
        assert!(before.iter().all(|line| !line.starts_with("device")), "{before:?}");
        let library = Library { library: "a driver".into(), version: "13.0".into() };
        let device =
            Device { description: "GPU 0, some GPU".into(), libraries: vec![library], ..Device::default() };
        let shown = lines(&Job { device: Some(device), ..Job::default() });
        let at = shown.iter().position(|line| line == "device      GPU 0, some GPU");
        assert_eq!(at.map(|at| shown[at + 1].as_str()), Some("  a driver  13.0"), "{shown:?}");
        assert_eq!(shown.len(), before.len() + 2);
    }
}
