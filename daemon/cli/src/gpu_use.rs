//! The use of a GPU as text, the same in `top`, `show` and `explain`.

use millstream_control::proto::GpuUse;

use crate::figures;
use crate::printable::one_line;

/// `37 %`, or a dash: a GPU in MIG mode does not report it.
pub(crate) fn busy(gpu: &GpuUse) -> String {
    gpu.busy.map_or_else(|| "-".to_owned(), |busy| format!("{:.0} %", busy * 100.0))
}

/// `4.0 GiB of 80.0 GiB`
pub(crate) fn memory(gpu: &GpuUse) -> String {
    match (gpu.used_bytes, gpu.memory_bytes) {
        (Some(used), Some(all)) => format!("{} of {}", figures::bytes(used), figures::bytes(all)),
        _ => "-".to_owned(),
    }
}

/// `310 of 700 W`
pub(crate) fn power(gpu: &GpuUse) -> String {
    match (gpu.watts, gpu.limit_watts) {
        (Some(watts), Some(limit)) => format!("{watts:.0} of {limit:.0} W"),
        (Some(watts), None) => format!("{watts:.0} W"),
        _ => "-".to_owned(),
    }
}

/// `41 °C`
pub(crate) fn temperature(gpu: &GpuUse) -> String {
    gpu.celsius.map_or_else(|| "-".to_owned(), |celsius| format!("{celsius} °C"))
}

/// What somebody may have to mend.
pub(crate) fn notes(gpu: &GpuUse) -> Vec<String> {
    let mut notes = Vec::new();
    if !gpu.throttled_by.is_empty() {
        let reasons: Vec<_> = gpu.throttled_by.iter().map(|reason| reason.replace('_', " ")).collect();
        notes.push(format!("slowed by {}", one_line(&reasons.join(", "))));
    }
    if let Some(errors) = gpu.uncorrected_errors.filter(|&errors| errors > 0) {
        notes.push(figures::counted(errors, "memory error"));
    }
    notes
}

/// What job `id` uses of a GPU, and the state of this GPU, without figures that are unknown.
pub(crate) fn of_job(gpu: &GpuUse, id: &str) -> String {
    let mut parts = Vec::new();
    if gpu.busy.is_some() {
        parts.push(format!("{} busy", busy(gpu)));
    }
    let used = gpu.jobs.iter().find(|job| job.id == id).and_then(|job| job.used_bytes);
    match (used, gpu.memory_bytes) {
        (Some(used), Some(all)) => {
            parts.push(format!("{} of {} used by the job", figures::bytes(used), figures::bytes(all)));
        }
        _ if gpu.used_bytes.is_some() => parts.push(format!("{} used", memory(gpu))),
        _ => {}
    }
    if gpu.celsius.is_some() {
        parts.push(temperature(gpu));
    }
    if gpu.watts.is_some() {
        parts.push(power(gpu));
    }
    parts.extend(notes(gpu));
    format!("{}: {}", gpu.number, parts.join(", "))
}

#[cfg(test)]
mod tests {
    use millstream_control::proto::GpuJob;

    use super::*;

    #[test]
    fn a_job_has_its_share_of_the_memory_and_the_state_of_the_gpu() {
        let share = GpuJob { id: "a".into(), used_bytes: Some(3 << 30) };
        let gpu = GpuUse {
            number: 1,
            busy: Some(0.37),
            used_bytes: Some(4 << 30),
            memory_bytes: Some(80 << 30),
            celsius: Some(91),
            watts: Some(310.0),
            limit_watts: Some(700.0),
            throttled_by: vec!["hardware_heat".into()],
            uncorrected_errors: Some(2),
            jobs: vec![share],
            ..GpuUse::default()
        };
        let wanted = "1: 37 % busy, 3.0 GiB of 80.0 GiB used by the job, 91 °C, 310 of 700 W, slowed by hardware \
                      heat, 2 memory errors";
        assert_eq!(of_job(&gpu, "a"), wanted);
        assert!(of_job(&gpu, "b").contains("4.0 GiB of 80.0 GiB used,"), "its share is unknown");
    }

    #[test]
    fn what_the_driver_does_not_report_is_absent() {
        let divided = GpuUse { celsius: Some(41), is_divided: true, ..GpuUse::default() };
        assert_eq!(of_job(&divided, "a"), "0: 41 °C");
        assert_eq!([busy(&divided), memory(&divided), power(&divided)], ["-"; 3]);
    }
}
