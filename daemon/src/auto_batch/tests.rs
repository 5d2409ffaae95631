#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use anyhow::anyhow;

use super::*;

/// Plans `row_bytes` per row plus 100 bytes; fails above `limit` bytes.
fn plan(limit: u64, row_bytes: u64) -> impl FnMut(u32) -> Result<u64> {
    move |rows| {
        let bytes = 100 + row_bytes * u64::from(rows);
        if bytes <= limit { Ok(bytes) } else { Err(anyhow!("{rows} rows take {bytes} of {limit} bytes")) }
    }
}

#[test]
fn the_largest_power_of_two_that_fits_is_found() {
    for row_bytes in [1, 3, 8] {
        for limit in [148, 500, 1_000, 5_000, 100_000] {
            let wanted =
                (4..=16).map(|power| 1 << power).filter(|rows| 100 + row_bytes * rows <= limit).max();
            match (largest(16, 65_536, plan(limit, row_bytes)), wanted) {
                (Ok((rows, bytes, why)), Some(wanted)) => {
                    assert_eq!((u64::from(rows), bytes), (wanted, 100 + row_bytes * wanted));
                    assert_eq!(why.is_none(), wanted == 65_536, "{why:?}");
                }
                (Err(_), None) => {}
                (found, wanted) => panic!("{found:?} for {wanted:?}"),
            }
        }
    }
}

#[test]
fn the_size_never_exceeds_the_maximum() {
    for (most, wanted) in [(16, 16), (31, 16), (32, 32), (1_000, 512), (1_024, 1_024)] {
        let (rows, _, why) = largest(16, most, plan(u64::MAX, 1)).unwrap();
        assert_eq!((rows, why.map(|why| why.to_string())), (wanted, None), "{most}");
    }
}

#[test]
fn the_reason_for_the_maximum_is_returned() {
    let (rows, _, why) = largest(16, 65_536, plan(1_000, 8)).unwrap();
    assert_eq!((rows, why.unwrap().to_string().as_str()), (64, "128 rows take 1124 of 1000 bytes"));
    let error = format!("{:#}", largest(16, 65_536, plan(100, 8)).unwrap_err());
    assert_eq!(
        error,
        "`data.batch_size = \"auto\"`: batches of 16 rows, the minimum, do not fit: 16 rows take 228 of 100 bytes"
    );
}

#[test]
fn the_size_is_recorded_and_halved_to_the_minimum() {
    let run = tempfile::tempdir().unwrap();
    let directory = &RunDirectory::local(run.path());
    assert_eq!(decided(directory).unwrap(), None);
    let mut now = Decided { rows: 64, limit_bytes: 999, gpu_limit_bytes: Some(77) };
    keep(directory, now).unwrap();
    for rows in [32, 16] {
        now = halve(directory, now, 16).unwrap();
        assert_eq!(now, Decided { rows, limit_bytes: 999, gpu_limit_bytes: Some(77) });
        assert_eq!(decided(directory).unwrap(), Some(now));
    }
    let error = halve(directory, now, 16).unwrap_err().to_string();
    assert!(error.contains("not enough memory for batches of 16 rows") && error.contains("999"), "{error}");
    assert_eq!(decided(directory).unwrap(), Some(now));
    runs::put(directory, runs::AUTO_BATCH, b"{\"rows\":").unwrap();
    let error = format!("{:#}", decided(directory).unwrap_err());
    assert!(error.contains("auto_batch.json"), "{error}");
}

#[test]
fn workers_rehearse_with_their_shares_of_the_memory() {
    let limit = Limit { bytes: 1_000, source: LimitSource::Job };
    let choice = Choice {
        rows: 64,
        limit,
        needed_bytes: 800,
        process_bytes: 10,
        workers_bytes: Some(700),
        workers: 3,
        copy_bytes: 100,
        gpu: None,
        why_not_more: None,
    };
    let most = [0, 1, 2].map(|rank| choice.rehearsal(4, rank).max_bytes);
    assert_eq!(most, [Some(300), Some(200), Some(200)]);
    let on_gpus = Choice { workers_bytes: None, ..choice };
    assert_eq!(on_gpus.rehearsal(4, 1), RehearsalSpec { slots: 4, max_bytes: None });
}

#[test]
fn the_limit_is_the_jobs_or_a_fraction_of_the_hosts_memory() {
    let spec = |memory_bytes| AutoBatchSpec { memory_bytes, gpu_memory_bytes: Some(9), least: 16, most: 16 };
    let of_job = Limit::of(&spec(Some(7))).unwrap();
    assert_eq!(of_job, Limit { bytes: 7, source: LimitSource::Job });
    let of_host = Limit::of(&spec(None)).unwrap();
    assert_eq!(of_host.source, LimitSource::Host);
    assert!(of_host.bytes > 0);
}

#[test]
fn checkpoints_contain_the_job_with_the_decided_size() {
    let text = "name = \"clicks\"\nlabel = { column = \"clicked\" }\n\
                features = { age = { kind = \"numeric\" } }\n\
                model = { kind = \"linear\", features = [\"age\"] }\n\
                data = { train = [\"t.parquet\"], eval = [], batch_size = \"auto\" }\n";
    let parse = |text: &str| Job::parse(text, Path::new("/job.toml"), &[]).unwrap().0;
    let run = tempfile::tempdir().unwrap();
    let auto = parse(text);
    let directory = RunDirectory::local(run.path());
    let name = runs::resolved_job(&directory, &auto, &auto.with_batch_size(1024)).unwrap();
    let job = parse(&fs::read_to_string(run.path().join(name)).unwrap());
    assert_eq!((job.data.batch_size, job.auto_batch), (1024, None));
    assert_eq!(runs::resolved_job(&directory, &job, &job).unwrap(), runs::JOB);
    assert_eq!(format_rates(&job), "learning rates 2.0000 times those for 256 rows (sqrt): optimizer 0.2");
    assert_eq!(
        format_rate_change(&job, &auto.with_batch_size(256)),
        "learning rates 1.0000 times those for 256 rows (sqrt): optimizer 0.2 -> 0.1"
    );
}
