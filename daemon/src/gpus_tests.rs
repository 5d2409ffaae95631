#![allow(clippy::unwrap_used)]

use millstream_backend::{Description, GpuName};
use millstream_io::storage::Directory;
use millstream_worker::gpus::GpuProcess;

use super::*;
use crate::snapshot::WorkerSnapshot;
use crate::state::JobRecord;

fn job(id: &str, pid: u32, gpu: Option<u32>) -> JobSnapshot {
    job_of(id, vec![pid], gpu)
}

fn job_of(id: &str, pids: Vec<u32>, gpu: Option<u32>) -> JobSnapshot {
    let mut record = JobRecord::new(id, id, Directory::local("/runs"));
    let gpu = gpu.map(|number| GpuName { number, name: "H100".into() });
    record.device = Some(Description { text: String::new(), gpu, libraries: Vec::new() });
    let worker = Some(WorkerSnapshot { pids, process: None, exchange_shares: Vec::new(), left_out: 0 });
    JobSnapshot { record, checkpoint: None, image_step: None, worker, ingest: None }
}

fn gpu(number: u32, processes: &[(u32, Option<u64>)]) -> GpuUse {
    let process = |&(pid, bytes)| GpuProcess { pid, bytes };
    GpuUse { number, processes: Some(processes.iter().map(process).collect()), ..GpuUse::default() }
}

fn ids(gpu: &GpuSnapshot) -> Vec<(&str, Option<u64>)> {
    gpu.jobs.iter().map(|job| (job.id.as_str(), job.bytes)).collect()
}

#[test]
fn processes_belong_to_jobs_and_to_strangers() {
    let jobs = [job("a", 7, Some(0)), job("b", 8, Some(1)), job("cpu", 9, None)];
    let gpus = vec![gpu(0, &[(7, Some(30)), (99, Some(5))]), gpu(1, &[(8, None)]), gpu(2, &[])];
    let found = with_jobs(gpus, &jobs);
    assert_eq!((ids(&found[0]), found[0].other_bytes), (vec![("a", Some(30))], Some(5)));
    assert_eq!((ids(&found[1]), found[1].other_bytes), (vec![("b", None)], None));
    assert_eq!((ids(&found[2]), found[2].other_bytes), (vec![], Some(0)));
}

#[test]
fn each_worker_of_a_job_counts_on_its_own_gpu() {
    let jobs = [job_of("a", vec![7, 8], Some(0))];
    let found = with_jobs(vec![gpu(0, &[(7, Some(30))]), gpu(1, &[(8, Some(20))])], &jobs);
    assert_eq!((ids(&found[0]), ids(&found[1])), (vec![("a", Some(30))], vec![("a", Some(20))]));
}

#[test]
fn the_only_gpu_is_that_of_the_jobs_on_a_gpu_if_process_ids_are_others() {
    let jobs = [job("a", 7, Some(0)), job("cpu", 9, None)];
    let found = with_jobs(vec![gpu(0, &[(4711, Some(5))])], &jobs);
    assert_eq!((ids(&found[0]), found[0].other_bytes), (vec![("a", None)], None));
    let unlisted = GpuUse { processes: None, ..gpu(0, &[]) };
    assert_eq!(with_jobs(vec![unlisted], &[])[0].other_bytes, None);
}
