//! The use of GPUs in `top`, its document and the metrics, on a stand-in for NVML beside those of CUDA.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use millstream_test_cuda::{Library, StandIn, Variant};
use millstream_tests::programs::{Daemon, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;

/// The UUIDs of the stand-in's GPUs, but for their index.
const UUID: &str = "GPU-00000000-0000-0000-0000-00000000000";

/// A daemon on a host with stand-ins for GPUs.
struct Host {
    job: TinyJob,
    daemon: Daemon,
    /// The file that scripts the state of the GPUs.
    script: PathBuf,
}

impl Host {
    fn start(libraries: &StandIn, more: &[(&str, &str)], script: &str) -> Self {
        let job = TinyJob::new();
        let path = job.directory().join("gpus");
        fs::write(&path, script).unwrap();
        // Compiled kernels of the stand-in are files of this checkout. In the user's cache, they would outlive it.
        let cache = job.directory().join("cache");
        let mut variables = vec![
            ("MILLSTREAM_CUDA_LIBRARIES", libraries.folder()),
            ("CACHE_DIRECTORY", &cache),
            ("MILLSTREAM_STAND_IN_GPUS", &path),
        ];
        variables.extend(more.iter().map(|&(name, value)| (name, Path::new(value))));
        let daemon = Daemon::start_in(job.directory(), &variables);
        Self { script: path, daemon, job }
    }

    /// Changes the state of the GPUs, as a whole: the stand-in may read at any time.
    fn change(&self, script: &str) {
        let new = self.script.with_extension("new");
        fs::write(&new, script).unwrap();
        fs::rename(&new, &self.script).unwrap();
    }

    fn gpus(&self) -> Value {
        self.daemon.json(&["top"])["gpus"].clone()
    }

    fn top(&self) -> String {
        Shell::new(self.job.directory()).run(&["top"]).with_code(0).stdout
    }

    fn metrics(&self) -> String {
        String::from_utf8(self.daemon.run(&["metrics"]).stdout).unwrap()
    }
}

#[test]
fn the_use_of_gpus_is_shown_with_the_job_that_trains() {
    // A stand-in for this test alone: it counts all processes that have loaded its driver.
    let stand_in = StandIn::of(&Variant::default().with_version(Library::Nccl, 2_210)).unwrap();
    let host = Host::start(
        &stand_in,
        &[("MILLSTREAM_STAND_IN_DEVICES", "2")],
        "1 throttle 96\n1 celsius 91\n1 corrected 3\n",
    );
    let file = host.job.file();
    let line =
        ["submit", file.to_str().unwrap(), "--set", "training.device=cuda", "--set", "data.epochs=100000"];
    let id = host.daemon.json(&line)["id"].as_str().unwrap().to_owned();
    wait_until("the job uses a GPU", || {
        let job = host.daemon.json(&["show", &id]);
        assert_ne!(job["state"], "failed", "{job:#}");
        let gpus = host.gpus();
        let first = &gpus["gpus"][0];
        // A sample reads how busy a GPU is before it reads its processes, which may have begun in between.
        first["jobs"][0]["id"] == *id && first["busy"] == 0.37
    });
    let gpus = host.gpus();
    assert_eq!((&gpus["is_stale"], &gpus["problem"]), (&Value::Bool(false), &Value::Null), "{gpus:#}");
    let [first, second] = &gpus["gpus"].as_array().unwrap()[..] else { panic!("{gpus:#}") };
    assert_eq!(first["name"], "NVIDIA stand-in");
    assert_eq!(first["pci"], "00000000:17:00.0");
    assert_eq!((&first["busy"], &first["memory_busy"]), (&0.37.into(), &0.12.into()));
    assert_eq!(first["jobs"][0]["used_bytes"], 3_u64 << 30);
    assert_eq!((&first["other_bytes"], &first["memory_bytes"]), (&0.into(), &(80_u64 << 30).into()));
    assert_eq!((&first["watts"], &first["limit_watts"]), (&310.0.into(), &700.0.into()));
    assert_eq!(second["throttled_by"], serde_json::json!(["heat", "hardware_heat"]));
    assert_eq!((&second["celsius"], &second["corrected_errors"]), (&91.into(), &3.into()));

    let top = host.top();
    let line = |start: &str| top.lines().find(|line| line.starts_with(start)).unwrap_or_default();
    let (first, second) = (line("gpu 0"), line("gpu 1"));
    assert!(
        first.contains("37 %") && first.contains("4.0 GiB of 80.0 GiB") && first.contains("41 °C"),
        "{top}"
    );
    assert!(first.contains("310 of 700 W") && first.contains(&id), "{top}");
    assert!(second.contains("91 °C") && second.contains("slowed by heat"), "{top}");

    let metrics = host.metrics();
    for line in [
        "millstream_gpus_readable 1".to_owned(),
        "millstream_gpu_busy_ratio{gpu=\"0\"} 0.37".to_owned(),
        "millstream_gpu_throttled{gpu=\"1\",reason=\"heat\"} 1".to_owned(),
        "millstream_gpu_memory_errors_total{gpu=\"1\",corrected=\"yes\"} 3".to_owned(),
        format!("millstream_gpu_job_memory_bytes{{gpu=\"0\",job_id=\"{id}\"}} 3221225472"),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
    let shown = host.daemon.json(&["show", &id]);
    assert_eq!(shown["gpus"][0]["jobs"], serde_json::json!([{ "id": id, "used_bytes": 3_u64 << 30 }]));
    assert_eq!(shown["gpus"].as_array().unwrap().len(), 1, "{shown:#}");
    let printed = String::from_utf8(host.daemon.run(&["show", &id]).stdout).unwrap();
    let wanted = "0: 37 % busy, 3.0 GiB of 80.0 GiB used by the job, 41 °C, 310 of 700 W";
    assert!(printed.lines().any(|line| line.starts_with("gpu ") && line.ends_with(wanted)), "{printed}");
    wait_until("ingest is explained", || host.daemon.run(&["explain", &id]).status.success());
    let printed = String::from_utf8(host.daemon.run(&["explain", &id]).stdout).unwrap();
    assert!(printed.lines().any(|line| line.starts_with("gpu ") && line.ends_with(wanted)), "{printed}");

    host.daemon.json(&["cancel", &id]);
    assert_eq!(host.daemon.json(&["show", &id])["gpus"], Value::Null);
    wait_until("the job's share ends", || host.gpus()["gpus"][0]["jobs"] == serde_json::json!([]));
    host.daemon.stop();
}

/// A daemon that sees two of three GPUs, in another order: jobs, `top` and the resolved job mean the same ones by a number.
#[test]
fn devices_of_workers_are_those_that_cuda_shows_the_daemon() {
    // A stand-in for this test alone: it counts all processes that have loaded its driver.
    let stand_in = StandIn::of(&Variant::default().with_version(Library::Nccl, 2_200)).unwrap();
    let more = [("MILLSTREAM_STAND_IN_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", "2,0")];
    let host = Host::start(&stand_in, &more, "2 celsius 77\n");
    wait_until("GPUs are read", || host.gpus()["gpus"].is_array());
    let gpus = host.gpus()["gpus"].clone();
    assert_eq!(gpus.as_array().unwrap().len(), 2, "{gpus:#}");
    assert_eq!((&gpus[0]["number"], &gpus[0]["celsius"]), (&0.into(), &77.into()), "{gpus:#}");
    let [shown, second, hidden] = [&gpus[0]["uuid"], &gpus[1]["uuid"], &Value::from(UUID.to_owned() + "1")]
        .map(|uuid| uuid.as_str().unwrap().to_owned());
    assert_eq!((shown, &second), (UUID.to_owned() + "2", &(UUID.to_owned() + "0")));

    let file = host.job.file();
    let line = |devices: &str| {
        let setting = format!("workers.devices={devices}");
        ["submit", file.to_str().unwrap(), "--set", &setting, "--set", "data.epochs=100000"]
            .map(str::to_owned)
    };
    let submit = |devices: &str| {
        let line = line(devices);
        host.daemon.json(&line.each_ref().map(String::as_str))["id"].as_str().unwrap().to_owned()
    };
    let id = submit(&format!("[\"{second}\"]"));
    let trains_on = |id: &str, number: u32| {
        wait_until("the job trains", || {
            let job = host.daemon.show(id);
            assert_ne!(job["state"], "failed", "{job:#}");
            job["progress"]["step"].as_u64() > Some(0)
        });
        assert_eq!(host.daemon.show(id)["device"]["gpu"]["number"], number);
    };
    trains_on(&id, 1);
    host.daemon.json(&["cancel", &id]);
    let all = submit("all");
    trains_on(&all, 0);
    let workers = host.daemon.show(&all)["workers"].clone();
    assert_eq!(workers.as_array().map(Vec::len), Some(2), "one on each GPU that CUDA shows: {workers:#}");

    let refused = host.daemon.run(&line(&format!("[\"{hidden}\"]")).each_ref().map(String::as_str));
    assert_eq!(refused.status.code(), Some(2));
    let message = String::from_utf8(refused.stderr).unwrap();
    let wanted =
        format!("error: this host has no GPU \"{hidden}\"; it has 0 ({UUID}2, NVIDIA stand-in), 1 (");
    let at_override = format!("--set workers.devices=[\"{hidden}\"]: {wanted}");
    assert!(message.contains(&at_override), "{message}");

    let text = fs::read_to_string(&file).unwrap();
    let place = format!("devices.toml:{}:11", text.lines().count() + 3);
    let file = host.job.directory().join("devices.toml");
    fs::write(&file, format!("{text}\n[workers]\ndevices = [\"{hidden}\"]\n")).unwrap();
    let refused = host.daemon.run(&["submit", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.contains(&format!("{place}: {wanted}")), "{message}");
    host.daemon.json(&["cancel", &all]);
    host.daemon.stop();
}

#[test]
fn what_a_driver_does_not_report_is_absent_and_the_rest_is_shown() {
    // A driver without a function, a call that fails, and a GPU in MIG mode.
    let old = Variant::default()
        .without_function(Library::Nvml, "nvmlDeviceGetCurrentClocksThrottleReasons")
        .without_function(Library::Nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
    let stand_in = StandIn::of(&old).unwrap();
    let fails =
        (1..100).map(|nth| format!("nvmlDeviceGetPowerUsage:{nth}:999")).collect::<Vec<_>>().join(",");
    let more = [("MILLSTREAM_STAND_IN_FAIL", fails.as_str()), ("MILLSTREAM_STAND_IN_DEVICES", "2")];
    let host = Host::start(&stand_in, &more, "0 mig 1\n1 busy 100\n");
    wait_until("GPUs are read", || host.gpus()["gpus"].is_array());
    let gpus = host.gpus()["gpus"].clone();
    assert_eq!((&gpus[0]["busy"], &gpus[0]["is_divided"]), (&Value::Null, &Value::Bool(true)), "{gpus:#}");
    assert_eq!((&gpus[0]["watts"], &gpus[0]["celsius"]), (&Value::Null, &41.into()));
    assert_eq!((&gpus[1]["busy"], &gpus[1]["other_bytes"]), (&1.0.into(), &Value::Null));
    let top = host.top();
    assert!(top.lines().any(|line| line.starts_with("gpu 0") && line.contains("MIG")), "{top}");
    assert!(!host.metrics().contains("millstream_gpu_busy_ratio{gpu=\"0\"}"));
    host.daemon.stop();
}

#[test]
fn a_lost_driver_is_shown_with_the_last_figures_and_read_again_when_it_returns() {
    let stand_in = StandIn::whole().unwrap();
    let host = Host::start(&stand_in, &[("MILLSTREAM_STAND_IN_DEVICES", "2")], "1 lost 1\n");
    wait_until("GPUs are read", || host.gpus()["gpus"][0]["celsius"] == 41);
    let gpus = host.gpus()["gpus"].clone();
    assert!(gpus[1]["problem"].as_str().unwrap().contains("fell off the bus"), "{gpus:#}");
    assert!(host.metrics().contains("millstream_gpu_up{gpu=\"1\"} 0"));

    host.change("all driver 0\n");
    wait_until("the lost driver is noticed", || host.gpus()["problem"].is_string());
    let gpus = host.gpus();
    assert!(gpus["problem"].as_str().unwrap().contains("driver"), "{gpus:#}");
    assert_eq!((&gpus["is_stale"], &gpus["gpus"][0]["celsius"]), (&Value::Bool(true), &41.into()));
    let top = host.top();
    assert!(top.contains("gpus: NVIDIA's driver") && top.contains("last read"), "{top}");
    assert!(host.metrics().contains("millstream_gpus_readable 0"));

    host.change("0 celsius 50\n");
    wait_until("the driver is read again", || host.gpus()["gpus"][0]["celsius"] == 50);
    assert_eq!(host.gpus()["problem"], Value::Null);
    host.daemon.stop();
}

#[test]
fn a_driver_that_hangs_hangs_neither_the_daemon_nor_its_end() {
    let stand_in = StandIn::whole().unwrap();
    let more = [("MILLSTREAM_STAND_IN_FAIL", "nvmlDeviceGetTemperature:2:-1")];
    let host = Host::start(&stand_in, &more, "");
    wait_until("GPUs are read", || host.gpus()["gpus"][0]["celsius"] == 41);
    wait_until("the driver is given up", || host.gpus()["problem"].is_string());
    let problem = host.gpus()["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("has not answered for 5 s"), "{problem}");
    host.daemon.stop();
}

#[test]
fn a_host_without_the_library_has_no_gpus_and_no_warning() {
    let stand_in = StandIn::of(&Variant::default().without(Library::Nvml)).unwrap();
    let host = Host::start(&stand_in, &[], "");
    for _ in 0..2 {
        assert_eq!(host.gpus(), Value::Null);
    }
    assert!(!host.metrics().contains("millstream_gpu") && !host.top().contains("gpu "));
    let log = fs::read_to_string(host.job.directory().join("daemon.log")).unwrap();
    assert!(!log.contains("GPU"), "{log}");
    host.daemon.stop();
}
