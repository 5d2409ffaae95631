//! Metrics of a daemon that trains: over HTTP and through the command, compared with `show`.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use millstream_tests::programs::{self, Daemon, wait_until};
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;

/// Values by name and labels, as they are written.
type Series = BTreeMap<String, f64>;

fn parse(text: &str) -> Series {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let series: Series = samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect();
    assert!(!series.is_empty(), "{text}");
    series
}

/// The address on which the daemon in `directory` serves metrics, from its log.
fn address_in(directory: &Path) -> String {
    let log = fs::read_to_string(directory.join("daemon.log")).unwrap();
    let line = log.lines().find(|line| line.contains("serving metrics")).unwrap();
    line.split("address=").nth(1).unwrap().trim().to_owned()
}

/// The head and the body of the response.
fn scrape(address: &str, accept: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    (head.to_owned(), body.to_owned())
}

fn command(daemon: &Daemon) -> Series {
    let output = daemon.run(&["metrics"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    parse(&String::from_utf8(output.stdout).unwrap())
}

#[test]
fn metrics_agree_with_show_over_http_and_through_the_command() {
    let job = TinyJob::new();
    let daemon = Daemon::start_with(job.directory(), &[], &["--metrics", "127.0.0.1:0"]);
    let address = address_in(job.directory());
    let (head, idle) = scrape(&address, "*/*");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(!idle.contains("job_id="), "{idle}");

    let file = job.file();
    let line = ["submit", file.to_str().unwrap(), "--set", "data.epochs=100000"];
    let id = daemon.json(&line)["id"].as_str().unwrap().to_owned();
    let waiting = daemon.json(&["submit", file.to_str().unwrap(), "--set", "name=waiting"])["id"]
        .as_str()
        .unwrap()
        .to_owned();
    // The first of these may come in any order.
    wait_until("progress, a checkpoint and an evaluation are reported", || {
        let job = daemon.show(&id);
        job["progress"]["step"].as_u64() > Some(0) && job["checkpoint"].is_string() && job["eval"].is_object()
    });

    wait_until("the second job is prepared", || daemon.show(&waiting)["waits_for"].is_string());

    let before = daemon.show(&id);
    let (head, open) = scrape(&address, "application/openmetrics-text;version=1.0.0");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(open.ends_with("\n# EOF\n"), "{open}");
    let over_http = parse(&open);
    let printed = command(&daemon);
    let after = daemon.show(&id);
    let history = daemon.json(&["history", &id]);
    let evaluations = history["evaluations"].as_array().unwrap().iter();
    let measured: Vec<f64> = evaluations.map(|it| it["metrics"]["auc"].as_f64().unwrap()).collect();
    let known = |series: &Series| {
        // The bottleneck may change in between.
        let names = series.keys().filter(|name| !name.contains("bottleneck=")).cloned();
        names.collect::<Vec<_>>()
    };
    assert_eq!(known(&over_http), known(&printed));
    for series in [&over_http, &printed] {
        agrees(series, &before, &after, &measured);
        assert_eq!(series["millstream_jobs{state=\"running\"}"], 1.0);
        assert_eq!(series["millstream_jobs{state=\"queued\"}"], 1.0);
        assert!(
            !series.keys().any(|name| name.contains(&waiting)),
            "a waiting job has no series: {series:?}"
        );
    }
    assert!(known(&printed).iter().any(|name| name.starts_with("millstream_job_ingest_stage_busy_ratio{")));

    let starts = format!("millstream_job_worker_starts_total{{job_id=\"{id}\"}}");
    programs::children(daemon.pid()).into_iter().for_each(|worker| _ = programs::kill(worker));
    wait_until("a restarted worker is counted", || command(&daemon)[&starts] == 2.0);

    daemon.json(&["cancel", &waiting]);
    daemon.json(&["cancel", &id]);
    let ended = command(&daemon);
    assert_eq!(ended["millstream_jobs_ended_total{outcome=\"cancelled\"}"], 2.0);
    wait_until("the job's series end", || !command(&daemon).keys().any(|name| name.contains(&id)));
    let document = daemon.json(&["metrics", "--openmetrics"]);
    assert_eq!(document["content_type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(document["text"].as_str().unwrap().ends_with("# EOF\n"), "{document:#}");
    daemon.stop();
}

/// Asserts that the series of a job lie between what `show` prints before and after, and that its AUC is one of the
/// `measured`.
fn agrees(series: &Series, before: &Value, after: &Value, measured: &[f64]) {
    let id = before["id"].as_str().unwrap();
    let of = |name: &str| {
        let name = format!("{name}{{job_id=\"{id}\"}}");
        *series.get(&name).unwrap_or_else(|| panic!("{name} is not in {series:?}"))
    };
    for (name, key) in [
        ("millstream_job_step", "step"),
        ("millstream_job_epoch", "epoch"),
        ("millstream_job_examples", "examples"),
        ("millstream_job_planned_steps", "total_steps"),
        ("millstream_job_planned_epochs", "epochs"),
    ] {
        let between = before["progress"][key].as_f64().unwrap()..=after["progress"][key].as_f64().unwrap();
        assert!(between.contains(&of(name)), "{name} {} is not in {between:?}", of(name));
    }
    assert!(of("millstream_job_examples_per_second") > 0.0 && of("millstream_job_loss") > 0.0);
    assert!((0.0..=1.0).contains(&of("millstream_job_input_wait_ratio")));
    assert_eq!(of("millstream_job_worker_starts_total"), before["attempts"].as_f64().unwrap());
    assert!(of("millstream_job_worker_resident_memory_bytes") > 1e6);
    assert!(of("millstream_job_checkpoint_timestamp_seconds") > before["created_ms"].as_f64().unwrap() / 1e3);
    let auc = series[&format!("millstream_job_evaluation{{job_id=\"{id}\",label=\"\",metric=\"auc\"}}")];
    assert!(measured.contains(&auc), "{auc} is not in {measured:?}");
    let device = before["device"]["description"].as_str().unwrap();
    let owner = before["owner"].as_str().unwrap();
    let info =
        format!("millstream_job_info{{job_id=\"{id}\",name=\"tiny\",owner=\"{owner}\",device=\"{device}\"}}");
    assert_eq!(series[&info], 1.0);
    assert_eq!(series[&format!("millstream_job_state{{job_id=\"{id}\",state=\"running\"}}")], 1.0);
}
