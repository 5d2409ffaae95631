//! Families of the host's GPUs. A sample that is too old has no series but that it is.

use super::text::Kind::{self, Counter, Gauge, Info};
use super::text::{Samples, Text};
use crate::snapshot::{GpuSnapshot, GpusSnapshot};

/// The families of a host that has GPUs; none of another host.
pub(super) fn render(text: &mut Text, gpus: Option<&GpusSnapshot>) {
    let Some(gpus) = gpus else { return };
    let help = "Whether the driver of the GPUs answers; millstream top shows why not.";
    text.family(Gauge, "millstream_gpus_readable", help, |samples| {
        samples.add(&[], f64::from(u8::from(!gpus.is_stale)));
    });
    let mut families = Families { text, gpus: if gpus.is_stale { &[] } else { &gpus.gpus } };
    families.state();
    families.memory();
    families.limits();
}

/// Writes families with samples of each GPU.
struct Families<'a> {
    text: &'a mut Text,
    gpus: &'a [GpuSnapshot],
}

impl Families<'_> {
    /// A family with at most one sample per GPU.
    fn each(&mut self, name: &'static str, help: &'static str, value: impl Fn(&GpuSnapshot) -> Option<f64>) {
        self.all(Gauge, name, help, |gpu, number, samples| {
            if let Some(value) = value(gpu) {
                samples.add(&[("gpu", number)], value);
            }
        });
    }

    /// A family with any number of samples per GPU.
    fn all(
        &mut self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        add: impl Fn(&GpuSnapshot, &str, &mut Samples<'_>),
    ) {
        let gpus = self.gpus;
        self.text.family(kind, name, help, |samples| {
            gpus.iter().for_each(|gpu| add(gpu, &gpu.found.number.to_string(), samples));
        });
    }

    fn state(&mut self) {
        let help = "The name, the UUID and the PCI address of a GPU, by its number in jobs.";
        self.all(Info, "millstream_gpu", help, |gpu, number, samples| {
            let found = &gpu.found;
            let labels =
                [("gpu", number), ("name", &*found.name), ("uuid", &found.uuid), ("pci", &found.pci)];
            samples.add(&labels, 1.0);
        });
        self.each("millstream_gpu_up", "Whether the driver can read a GPU.", |gpu| {
            Some(f64::from(u8::from(gpu.found.problem.is_none())))
        });
        let help = "Share of the time in which a kernel ran, over the last second.";
        self.each("millstream_gpu_busy_ratio", help, |gpu| gpu.found.busy);
        let help =
            "Share of the time in which the memory of a GPU was read or written, over the last second.";
        self.each("millstream_gpu_memory_busy_ratio", help, |gpu| gpu.found.memory_busy);
    }

    fn memory(&mut self) {
        self.each("millstream_gpu_memory_used_bytes", "Memory of a GPU in use.", |gpu| {
            gpu.found.used_bytes.map(|bytes| bytes as f64)
        });
        self.each("millstream_gpu_memory_bytes", "All memory of a GPU.", |gpu| {
            gpu.found.memory_bytes.map(|bytes| bytes as f64)
        });
        let help = "Memory of a GPU that processes use which are no workers of this daemon.";
        self.each("millstream_gpu_memory_other_bytes", help, |gpu| gpu.other_bytes.map(|bytes| bytes as f64));
        let help = "Memory of a GPU that the worker of a job uses.";
        self.all(Gauge, "millstream_gpu_job_memory_bytes", help, |gpu, number, samples| {
            for job in &gpu.jobs {
                if let Some(bytes) = job.bytes {
                    samples.add(&[("gpu", number), ("job_id", &job.id)], bytes as f64);
                }
            }
        });
        let help = "Memory errors of a GPU since its driver was loaded, corrected by ECC or not.";
        self.all(Counter, "millstream_gpu_memory_errors", help, |gpu, number, samples| {
            let found = &gpu.found;
            let errors = [("yes", found.corrected_errors), ("no", found.uncorrected_errors)];
            for (corrected, errors) in errors {
                if let Some(errors) = errors {
                    samples.add(&[("gpu", number), ("corrected", corrected)], errors as f64);
                }
            }
        });
    }

    fn limits(&mut self) {
        self.each("millstream_gpu_temperature_celsius", "Temperature of a GPU.", |gpu| {
            gpu.found.celsius.map(f64::from)
        });
        self.each("millstream_gpu_power_watts", "Power that a GPU draws.", |gpu| gpu.found.watts);
        self.each("millstream_gpu_power_limit_watts", "Power that a GPU may draw.", |gpu| {
            gpu.found.limit_watts
        });
        let help = "1 for each reason why the clocks of a GPU are lower than they could be.";
        self.all(Gauge, "millstream_gpu_throttled", help, |gpu, number, samples| {
            for reason in &gpu.found.throttled_by {
                samples.add(&[("gpu", number), ("reason", reason)], 1.0);
            }
        });
    }
}
