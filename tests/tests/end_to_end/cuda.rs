//! GPU jobs from `check` to the checkpoint, on stand-ins for the GPU and its libraries; and the messages when one of
//! them is missing, too old or fails.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use millstream_test_cuda::{Library, StandIn, Variant};
use millstream_tests::programs::Daemon;
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::TinyJob;
use serde_json::{Value, json};

/// The environment variable that the worker reads.
const LIBRARIES: &str = "MILLSTREAM_CUDA_LIBRARIES";
const ON_CUDA: [&str; 2] = ["--set", "training.device=cuda"];
/// One epoch, because kernels run on the host.
const SHORT: [&str; 2] = ["--set", "data.epochs=1"];

/// The result of a command: its exit code and output.
struct Completed {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs `millstream` in `directory`, on a host with the given CUDA libraries.
fn run(directory: &Path, libraries: &Path, more: &[(&str, &str)], arguments: &[&str]) -> Completed {
    let mut command: Command = Shell::new(directory).command(arguments);
    command.env(LIBRARIES, libraries).env("CACHE_DIRECTORY", directory.join("cache"));
    command.envs(more.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(!stdout.contains("panicked"), "{stdout}");
    Completed { code: output.status.code(), stdout, stderr }
}

fn auc(document: &str) -> f64 {
    let document: Value = serde_json::from_str(document).unwrap();
    document["eval"]["auc"].as_f64().unwrap_or_else(|| panic!("{document}"))
}

#[test]
fn a_job_trains_on_a_gpu_and_resumes_on_a_cpu() {
    train_on_gpu_and_resume_on_cpu(&[]);
}

/// The GPU stores the tables in 16 bits, the CPU in fp32.
#[test]
fn a_job_with_16_bit_tables_trains_on_a_gpu_and_resumes_on_a_cpu() {
    for precision in ["bf16", "fp16"] {
        let tables = format!("training.embedding_precision={precision}");
        train_on_gpu_and_resume_on_cpu(&["--set", &tables]);
    }
}

fn train_on_gpu_and_resume_on_cpu(more: &[&str]) {
    let stand_in = StandIn::whole().unwrap();
    let (gpu, cpu) = (TinyJob::new(), TinyJob::new());
    let train = |job: &TinyJob, on: &[&str]| {
        let arguments = [&["train", "job.toml", "--json"], &SHORT[..], on, more].concat();
        let ended = run(job.directory(), stand_in.folder(), &[], &arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        auc(&ended.stdout)
    };
    let (on_gpu, on_cpu) = (train(&gpu, &ON_CUDA), train(&cpu, &[]));
    assert!((on_gpu - on_cpu).abs() < 1e-3, "{on_gpu}, and on the CPU {on_cpu}");
    let kernels = fs::read_dir(gpu.directory().join("cache/kernels")).unwrap().count();
    assert!(kernels > 5, "{kernels} compiled kernels are cached");
    // One more epoch from the GPU's checkpoint: a job does not depend on its device.
    let again = [&["train", "job.toml", "--json", "--set", "data.epochs=2"], more].concat();
    let ended = run(gpu.directory(), Path::new("/nowhere"), &[], &again);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn an_unpinnable_ring_is_reported_and_does_not_change_results() {
    let stand_in = StandIn::whole().unwrap();
    let arguments = [&["train", "job.toml", "--json"], &ON_CUDA[..], &SHORT[..]].concat();
    let train = |more: &[(&str, &str)]| {
        let job = TinyJob::new();
        let ended = run(job.directory(), stand_in.folder(), more, &arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        (auc(&ended.stdout), ended.stderr)
    };
    let message = "the ring's memory cannot be pinned";
    let (pinned, stderr) = train(&[]);
    assert!(!stderr.contains(message), "{stderr}");
    let (staged, stderr) = train(&[("MILLSTREAM_STAND_IN_FAIL", "cuMemHostRegister_v2:1:801")]);
    assert!(stderr.contains(message) && stderr.contains("CUDA_ERROR_NOT_SUPPORTED"), "{stderr}");
    assert_eq!(staged, pinned);
}

#[test]
fn check_reports_the_gpus_and_libraries_of_the_host() {
    let (job, stand_in) = (TinyJob::new(), StandIn::whole().unwrap());
    let check = |folder: &Path, more: &[&str]| {
        let arguments = [&["check", "job.toml"], more].concat();
        let ended = run(job.directory(), folder, &[], &arguments);
        let has_device = folder == stand_in.folder() || more != &ON_CUDA[..];
        assert_eq!(ended.code, Some(if has_device { 0 } else { 2 }), "{}", ended.stderr);
        ended.stdout
    };
    let report = check(stand_in.folder(), &ON_CUDA);
    for line in [
        "device cuda:0",
        "GPU 0 stand-in, compute capability 9.0, 132 multiprocessors, 8.0 GiB",
        "NVIDIA's driver 13.0",
        "NVIDIA's run-time compiler (NVRTC) 13.0",
        "NVIDIA's GEMM library (cuBLASLt) 13.0",
        "NVIDIA's collectives library (NCCL) 2.27.3",
    ] {
        let is_line = |report: &str| report.split_whitespace().eq(line.split_whitespace());
        assert!(report.lines().any(is_line), "{line}: {report}");
    }
    let document: Value =
        serde_json::from_str(&check(stand_in.folder(), &[&ON_CUDA[..], &["--json"]].concat())).unwrap();
    assert_eq!(document["device"], "cuda:0");
    assert_eq!(document["host"]["gpus"][0]["capability"], "9.0");
    let for_several = |document: &Value| {
        let libraries = document["host"]["libraries"].as_array().unwrap();
        libraries.iter().map(|library| library["for_several_gpus"].as_bool().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(for_several(&document), [false, false, false, true]);
    // A CPU job does not probe for GPUs.
    let document: Value = serde_json::from_str(&check(Path::new("/nowhere"), &["--json"])).unwrap();
    assert_eq!((&document["device"], &document["host"]), (&"cpu".into(), &Value::Null));
    // The driver exists but cannot describe the GPU.
    let arguments = [&["check", "job.toml"], &ON_CUDA[..]].concat();
    let fails = [("MILLSTREAM_STAND_IN_FAIL", "cuDeviceGetName:1:999")];
    let ended = run(job.directory(), stand_in.folder(), &fails, &arguments);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stdout.contains("GPU 0: cuDeviceGetName of NVIDIA's driver failed"), "{}", ended.stdout);
    let report = check(Path::new("/nowhere"), &ON_CUDA);
    assert!(
        report.contains("NVIDIA's driver is not on this host (looked for libcuda.so.1): install"),
        "{report}"
    );
}

#[test]
fn a_single_gpu_job_does_not_need_nccl() {
    let job = TinyJob::new();
    let (without, old) = (Variant::default().without(Library::Nccl), Variant::default());
    for (variant, message) in [
        (without, "(NCCL) is not on this host (looked for libnccl.so.2): for jobs on several GPUs install"),
        (
            old.with_version(Library::Nccl, 2_080),
            "(NCCL) of this host is of version 2.8, and Millstream needs",
        ),
    ] {
        let stand_in = StandIn::of(&variant).unwrap();
        let run = |words: &[&str]| run(job.directory(), stand_in.folder(), &[], &[words, &ON_CUDA].concat());
        let check = run(&["check", "job.toml"]);
        let line = check.stdout.lines().find(|line| line.contains(message));
        assert!(line.is_some_and(|line| line.contains("libnccl2 (deb)")), "{message}: {}", check.stdout);
        let document: Value = serde_json::from_str(&run(&["check", "job.toml", "--json"]).stdout).unwrap();
        let found = &document["host"]["libraries"][3];
        assert!(
            found["version"].is_null() && found["problem"].as_str().unwrap().contains(message),
            "{found}"
        );
        let trained = run(&["train", "job.toml", "--json", "--set", "data.epochs=1"]);
        assert_eq!(trained.code, Some(0), "{}", trained.stderr);
        assert!(!trained.stderr.contains("NCCL"), "{}", trained.stderr);
    }
}

/// Each worker is a process with its own GPU; UCX must be installed, as `tests/run` does.
#[test]
fn workers_on_several_gpus_train_as_one_on_a_cpu() {
    let train = |on: &[&str], libraries: &Path, more: &[(&str, &str)]| {
        let job = TinyJob::new();
        let rows = ["--set", "data.batch_size=512"];
        let arguments = [&["train", "job.toml", "--json"], &SHORT[..], &rows, on].concat();
        run(job.directory(), libraries, more, &arguments)
    };
    let on_gpus =
        [&ON_CUDA[..], &["--set", "workers.per_host=2", "--set", "workers.timeout_seconds=20"]].concat();
    let two_gpus = ("MILLSTREAM_STAND_IN_DEVICES", "2");
    let whole = StandIn::whole().unwrap();
    let [several, one] =
        [train(&on_gpus, whole.folder(), &[two_gpus]), train(&[], Path::new("/nowhere"), &[])].map(|ended| {
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
            auc(&ended.stdout)
        });
    assert!((several - one).abs() < 1e-3, "{several}, and one worker on the CPU {one}");

    // Without the library, the job fails at once, with the package to install.
    let without = StandIn::of(&Variant::default().without(Library::Nccl)).unwrap();
    let failed = train(&on_gpus, without.folder(), &[two_gpus]);
    let message = "(NCCL) is not on this host (looked for libnccl.so.2): for jobs on several GPUs install package libnccl2";
    assert!(failed.code != Some(0) && failed.stderr.contains(message), "{}", failed.stderr);
    assert!(!failed.stderr.contains("resuming"), "{}", failed.stderr);

    // A rank that is silent in a sum is a lost worker.
    let silent = ("MILLSTREAM_STAND_IN_FAIL", "silent:21:1");
    let on_gpus = [&on_gpus[..], &["--set", "workers.timeout_seconds=3"]].concat();
    let failed = train(&on_gpus, whole.folder(), &[two_gpus, silent]);
    let message = "sum on GPUs, number 21: a rank did not complete it within 3 s";
    assert!(failed.code != Some(0) && failed.stderr.contains(message), "{}", failed.stderr);
    assert!(failed.stderr.contains("resuming"), "{}", failed.stderr);
}

#[test]
fn a_job_continues_without_a_gpu_that_fails() {
    // Without NVML, only the worker notices that the host lacks a GPU.
    let stand_in = StandIn::of(&Variant::default().without(Library::Nvml)).unwrap();
    let train = |devices: &str, more: &[&str], fails: &str| {
        let job = TinyJob::new();
        let devices = format!("workers.devices={devices}");
        let usual = [&devices, "workers.timeout_seconds=20", "data.batch_size=512"];
        let set: Vec<_> = usual.iter().chain(more).flat_map(|set| ["--set", set]).collect();
        let arguments = [&["train", "job.toml", "--json"], &SHORT[..], &set].concat();
        let variables = [("MILLSTREAM_STAND_IN_DEVICES", "3"), ("MILLSTREAM_STAND_IN_FAIL", fails)];
        run(job.directory(), stand_in.folder(), &variables, &arguments)
    };
    let two = train("[0, 1]", &[], "");
    assert_eq!(two.code, Some(0), "{}", two.stderr);

    let missing = "there is no GPU number 3 on this host: the driver knows 3";
    let absent = train("[0, 3, 2]", &["workers.min=2"], "");
    let continues = format!("{missing}; continues with 2 of 3 workers, without GPU 3; resuming in 200ms");
    assert!(absent.stderr.contains(&continues), "{}", absent.stderr);
    let broken = train("[0, 1, 2]", &["workers.min=2"], "work@1:1000:214");
    let fault = "CUDA_ERROR_ECC_UNCORRECTABLE, uncorrectable ECC error encountered";
    let continues = format!("{fault}; continues with 2 of 3 workers, without GPU 1; resuming in 200ms");
    assert!(broken.stderr.contains(&format!("{fault}; resuming in 200ms")), "{}", broken.stderr);
    assert!(broken.stderr.contains(&continues), "{}", broken.stderr);
    for ended in [absent, broken] {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let [fewer, two] = [&ended, &two].map(|ended| serde_json::from_str::<Value>(&ended.stdout).unwrap());
        assert_eq!((&fewer["examples"], &fewer["steps"]), (&two["examples"], &two["steps"]));
        assert_eq!(fewer["eval"], two["eval"], "the two other workers have the same bits");
    }

    // By default, all workers are needed.
    for more in [&[][..], &["workers.min=3"]] {
        let failed = train("[0, 3, 2]", more, "");
        assert_eq!(failed.code, Some(1), "{}", failed.stderr);
        assert!(failed.stderr.contains(missing) && !failed.stderr.contains("resuming"), "{}", failed.stderr);
    }
}

#[test]
fn show_reports_the_device_of_a_job() {
    let (job, stand_in) = (TinyJob::new(), StandIn::whole().unwrap());
    let cache = job.directory().join("cache");
    let daemon = Daemon::start_in(
        job.directory(),
        &[(LIBRARIES, stand_in.folder()), ("CACHE_DIRECTORY", cache.as_path())],
    );
    let file = job.directory().join("job.toml");
    let submit = |device: &str| {
        let set = format!("training.device={device}");
        let submitted = daemon.json(&["submit", file.to_str().unwrap(), "--set", &set, "--set", SHORT[1]]);
        (submitted["device"].clone(), submitted["id"].as_str().unwrap().to_owned())
    };
    let (before, on_gpu) = submit("cuda");
    assert_eq!(before, Value::Null, "no worker has reported a device yet");
    let (_, on_cpu) = submit("cpu");
    let device = &daemon.succeeded(&on_gpu)["device"];
    assert_eq!(device["description"], "GPU 0, stand-in");
    assert_eq!(device["gpu"], json!({ "number": 0, "name": "stand-in" }));
    let libraries = device["libraries"].as_array().unwrap().iter();
    let libraries: Vec<_> = libraries.map(|library| library["library"].as_str().unwrap()).collect();
    let wanted = ["NVIDIA's driver", "NVIDIA's run-time compiler (NVRTC)"];
    assert_eq!(libraries[..2], wanted);
    assert!(libraries[2].contains("cuBLASLt") && libraries.len() == 3, "{libraries:?}");
    assert_eq!(device["libraries"][0]["version"], "13.0");
    let shown = String::from_utf8(daemon.run(&["show", &on_gpu]).stdout).unwrap();
    let has = |words: &[&str]| shown.lines().any(|line| line.split_whitespace().eq(words.iter().copied()));
    assert!(has(&["device", "GPU", "0,", "stand-in"]) && has(&["NVIDIA's", "driver", "13.0"]), "{shown}");

    let device = &daemon.succeeded(&on_cpu)["device"];
    assert!(device["description"].as_str().unwrap().starts_with("the CPU, "), "{device}");
    assert_eq!((&device["gpu"], &device["libraries"]), (&Value::Null, &json!([])));
}

#[test]
fn a_full_gpu_is_reported_with_its_free_memory() {
    let (job, stand_in) = (TinyJob::new(), StandIn::whole().unwrap());
    let train = |more: &[(&str, &str)]| {
        let arguments = [&["train", "job.toml", "--json"], &ON_CUDA[..]].concat();
        let ended = run(job.directory(), stand_in.folder(), more, &arguments);
        assert_eq!(ended.code, Some(1), "{more:?}: {}", ended.stderr);
        let reason = serde_json::from_str::<Value>(&ended.stdout).unwrap()["reason"].clone();
        let reason = reason.as_str().unwrap().to_owned();
        for part in [
            "gave up after 3 attempts",
            "GPU 0 (stand-in) has too little free memory to start: ",
            "stop other programs on it (`nvidia-smi` lists them), or choose another GPU with `training.device`",
            "CUDA_ERROR_OUT_OF_MEMORY",
        ] {
            assert!(reason.contains(part), "{more:?}: {part}: {reason}");
        }
        assert!(!reason.contains("panicked"), "{reason}");
        reason
    };
    // Fails in the context, in loading kernels, and in the GEMM workspace.
    let reason = train(&[("MILLSTREAM_STAND_IN_FAIL", "cuDevicePrimaryCtxRetain:1:2")]);
    assert!(reason.contains("it has 8589934592 bytes in all"), "{reason}");
    let all_free = format!("{} bytes are free of its {0}", 8_u64 << 30);
    for function in ["cuModuleLoadData", "cuMemAlloc_v2"] {
        let reason = train(&[("MILLSTREAM_STAND_IN_FAIL", &format!("{function}:1:2"))]);
        assert!(reason.contains(&all_free), "{reason}");
    }
    let reason = train(&[("MILLSTREAM_STAND_IN_MEMORY_BYTES", "1048576")]);
    assert!(reason.contains("1048576 bytes are free of its 1048576"), "{reason}");
}

#[test]
fn missing_or_old_libraries_are_reported_with_a_remedy() {
    let job = TinyJob::new();
    let (cuda, nvrtc, blas) = (Library::Cuda, Library::Nvrtc, Library::CublasLt);
    let variants = [
        (Variant::default().without(cuda), "NVIDIA's driver is not on this host", "install the driver"),
        (Variant::default().without(nvrtc), "(NVRTC) is not on this host", "cuda-nvrtc-13-0"),
        (Variant::default().without(blas), "(cuBLASLt) is not on this host", "libcublas-13-0"),
        (
            Variant::default().without_function(cuda, "cuLaunchKernel"),
            "has no function cuLaunchKernel",
            "older",
        ),
        (
            Variant::default().without_function(nvrtc, "nvrtcGetCUBIN"),
            "has no function nvrtcGetCUBIN",
            "older",
        ),
        (
            Variant::default().without_function(blas, "cublasLtMatmul"),
            "has no function cublasLtMatmul",
            "older",
        ),
        (Variant::default().with_version(cuda, 11_080), "is of version 11.8", "needs 12.0 or later"),
        (Variant::default().with_version(nvrtc, 11_080), "is of version 11.8", "cuda-nvrtc-13-0"),
        (Variant::default().with_version(blas, 11_080), "is of version 11.8", "libcublas-13-0"),
    ];
    for (variant, what, remedy) in variants {
        let stand_in = StandIn::of(&variant).unwrap();
        let arguments = [&["train", "job.toml"], &ON_CUDA[..]].concat();
        let ended = run(job.directory(), stand_in.folder(), &[], &arguments);
        assert_eq!(ended.code, Some(1), "{variant:?}: {}", ended.stderr);
        for part in ["training.device = \"cuda:0\"", what, remedy] {
            assert!(ended.stderr.contains(part), "{variant:?}: {part}: {}", ended.stderr);
        }
        assert!(!ended.stderr.contains("panicked"), "{variant:?}: {}", ended.stderr);
    }
    let arguments = ["train", "job.toml", "--set", "training.device=cuda:3"];
    let ended = run(job.directory(), StandIn::whole().unwrap().folder(), &[], &arguments);
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("there is no GPU number 3 on this host: the driver knows 1"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_gpu_fault_ends_the_worker_and_is_named() {
    let (job, stand_in) = (TinyJob::new(), StandIn::whole().unwrap());
    let arguments = [&["train", "job.toml", "--json"], &ON_CUDA[..], &SHORT[..]].concat();
    // An illegal address after a fixed amount of work, every time; then out of memory.
    for (script, message) in [
        ("work:4000:700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("cuMemAlloc_v2:9:2", " bytes: give the job a smaller `batch_size`"),
    ] {
        let ended =
            run(job.directory(), stand_in.folder(), &[("MILLSTREAM_STAND_IN_FAIL", script)], &arguments);
        assert_eq!(ended.code, Some(1), "{script}: {}", ended.stderr);
        assert!(ended.stderr.contains(message), "{script}: {}", ended.stderr);
    }
    // The failed runs leave nothing behind that would prevent another.
    let ended = run(job.directory(), stand_in.folder(), &[], &arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
