//! `millstream explain`: reports the bottleneck of a job's input.

use millstream_control::proto::{CacheUse, Diagnosis, Explanation, IngestResources, StageUse};

use crate::arguments::JobId;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::gpu_use;
use crate::table::Table;
use crate::workers;

pub(crate) async fn run(arguments: JobId, context: &Context) -> Result<(), Failure> {
    let mut daemon = to_daemon(context).await?;
    let explained = daemon.explain(&arguments.id).await?;
    context.answer(&explained, || {
        describe(&explained, explained.recent.as_ref().unwrap_or(&Diagnosis::default()))
    })
}

/// Describes `shown`, the recent or the whole period of `explained`, on one screen.
pub(crate) fn describe(explained: &Explanation, shown: &Diagnosis) -> String {
    let resources = explained.resources.unwrap_or_default();
    let mut rates = Table::default();
    let over =
        |found: &Diagnosis| format!("{} over {:.1} s", figures::rate(found.rows_per_second), found.seconds);
    rates.row(["rows/s", &over(shown)]);
    if let Some(whole) = explained.whole.as_ref().filter(|&whole| whole != shown) {
        rates.row(["since the start", &over(whole)]);
    }
    let bytes = figures::rate(shown.bytes_per_second / 1e6);
    let in_flight = figures::bytes(explained.in_flight_bytes);
    rates.row(["storage", &format!("{bytes} MB/s, {in_flight} in flight")]);
    rates.row(["decoding", &decoding(&resources)]);
    if resources.useful_object_bytes > 0 {
        rates.row(["read-ahead", &read_ahead(&resources)]);
    }
    if let Some(cache) = &explained.cache {
        rates.row(["cache", &cache_use(cache)]);
    }
    if explained.truncated_rows > 0 {
        let rows = figures::counted(explained.truncated_rows, "row");
        rates.row(["truncated", &format!("{rows} lost values of a feature to its `maximum`")]);
    }

    for gpu in &explained.gpus {
        let id = gpu.jobs.first().map_or("", |job| &job.id);
        rates.row(["gpu", &gpu_use::of_job(gpu, id)]);
    }

    for worker in &explained.workers {
        rates.row([&format!("worker {}", worker.rank), &workers::describe(worker)]);
    }

    let mut stages = Table::with_titles(&["STAGE", ">BUSY", ">WAITING", "FOR"]);
    for StageUse { stage, busy, waiting, waits_for } in &shown.stages {
        let busy = busy.map_or_else(|| "-".to_owned(), figures::percent);
        let waiting = if waits_for.is_empty() { "-".to_owned() } else { format!("{waiting:.1}") };
        stages.row([stage.clone(), busy, waiting, waits_for.clone()]);
    }

    let mut finding = Table::default();
    finding.row(["bottleneck", &format!("{}: {}", shown.bound, shown.because)]);
    if let Some(without) = shown.rows_per_second_without {
        finding.row(["without it", &format!("at least {} rows/s", figures::rate(without))]);
    }
    if let Some(slowest) = workers::slowest(&explained.workers) {
        finding.row(["slowest worker", &slowest]);
    }
    for (place, advice) in shown.advice.iter().enumerate() {
        finding.row([if place == 0 { "advice" } else { "" }, advice]);
    }
    format!("{}\n{}\n{}", rates.render(), stages.render(), finding.render())
}

fn decoding(resources: &IngestResources) -> String {
    let IngestResources { cores, lanes, decoders, decoders_fixed, settled, .. } = resources;
    let tuning = if *settled { "tuned" } else { "still tuning" };
    let fixed = set_by_job(*decoders_fixed);
    format!("{decoders} of {lanes} lanes at a time{fixed} on {cores} cores; {tuning}")
}

fn read_ahead(resources: &IngestResources) -> String {
    let IngestResources { streams, streams_fixed, object_bytes, .. } = resources;
    let (fixed, bytes) = (set_by_job(*streams_fixed), figures::bytes(*object_bytes));
    format!("{bytes} per file, {streams} ranges in flight{fixed}")
}

fn set_by_job(fixed: bool) -> &'static str {
    if fixed { " (set by the job)" } else { "" }
}

fn cache_use(cache: &CacheUse) -> String {
    let CacheUse { hits, misses, read_bytes, written_bytes } = *cache;
    format!(
        "{} of {} splits hit, {} read and {} written",
        figures::count(hits),
        figures::count(hits + misses),
        figures::bytes(read_bytes),
        figures::bytes(written_bytes)
    )
}

#[cfg(test)]
mod tests {
    use millstream_control::proto::{GpuUse, Worker};

    use super::*;

    #[test]
    fn description_shows_rate_bottleneck_and_advice() {
        let stage = |stage: &str, busy, waiting, waits_for: &str| StageUse {
            stage: stage.into(),
            busy,
            waiting,
            waits_for: waits_for.into(),
        };
        let recent = Diagnosis {
            seconds: 10.0,
            rows_per_second: 1_234_567.0,
            bytes_per_second: 412e6,
            stages: vec![
                stage("fetch", None, 5.3, "lanes for bytes"),
                stage("transform", Some(0.25), 0.0, ""),
            ],
            bound: "storage".into(),
            because: "5.3 of 16 lanes wait for bytes".into(),
            rows_per_second_without: Some(2_000_000.0),
            advice: vec!["nearer storage".into(), "more lanes".into()],
        };
        let resources = IngestResources {
            cores: 2,
            lanes: 16,
            decoders: 2,
            streams: 4,
            streams_fixed: true,
            object_bytes: 1 << 20,
            useful_object_bytes: 8 << 20,
            settled: true,
            ..IngestResources::default()
        };
        let whole = Diagnosis { seconds: 60.0, rows_per_second: 50.0, ..recent.clone() };
        let explained = Explanation {
            resources: Some(resources),
            in_flight_bytes: 3 << 20,
            recent: Some(recent.clone()),
            whole: Some(whole),
            cache: Some(CacheUse { hits: 1_200, misses: 34, read_bytes: 5 << 30, written_bytes: 7 << 20 }),
            truncated_rows: 4_321,
            gpus: vec![GpuUse { busy: Some(0.37), celsius: Some(41), ..GpuUse::default() }],
            workers: [(0, 0.3), (1, 0.05)]
                .map(|(rank, share)| Worker {
                    rank,
                    pid: Some(70 + rank),
                    exchange_fraction: Some(share),
                    ..Worker::default()
                })
                .into(),
        };
        let wanted = "\
rows/s           1,234,567 over 10.0 s
since the start  50.0 over 60.0 s
storage          412 MB/s, 3.0 MiB in flight
decoding         2 of 16 lanes at a time on 2 cores; tuned
read-ahead       1.0 MiB per file, 4 ranges in flight (set by the job)
cache            1,200 of 1,234 splits hit, 5.0 GiB read and 7.0 MiB written
truncated        4,321 rows lost values of a feature to its `maximum`
gpu              0: 37 % busy, 41 °C
worker 0         process 70, 30.0 % of the time in exchanges
worker 1         process 71, 5.0 % of the time in exchanges

STAGE        BUSY  WAITING  FOR
fetch           -      5.3  lanes for bytes
transform  25.0 %        -

bottleneck      storage: 5.3 of 16 lanes wait for bytes
without it      at least 2,000,000 rows/s
slowest worker  worker 1: 5.0 % of its time in exchanges, the others 30.0 % or more
advice          nearer storage
                more lanes
";
        assert_eq!(describe(&explained, &recent), wanted);
    }
}
