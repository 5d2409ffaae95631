//! Memory: what is available, and settings of the kernel that break or slow large mappings.

use millstream_daemon::cgroup::Limits;
use millstream_daemon::memory::available_bytes;

use super::finding::Finding;
use super::system::{number, text, value};
use crate::figures::bytes;

/// Below this, a job with the default `data.memory_budget` and a small model does not fit.
const LITTLE_BYTES: u64 = 3 << 30;

/// Fewer mappings than a kernel's default.
const FEW_MAPPINGS: u64 = 65_530;

/// What was found out about memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    total_bytes: Option<u64>,
    /// Without swapping, and within the control groups.
    available_bytes: Option<u64>,
    /// The limit of the control groups.
    group_bytes: Option<u64>,
    swap_bytes: u64,
    swap_used_bytes: u64,
    /// Memory that is reserved for explicit huge pages.
    reserved_bytes: u64,
    /// The chosen word of `transparent_hugepage/enabled`.
    huge_pages: Option<String>,
    /// The kernel's overcommit mode: 0, 1 or 2.
    overcommit: Option<u64>,
    /// The maximum number of mappings of a process.
    mappings: Option<u64>,
}

impl Facts {
    pub(super) fn gather() -> Self {
        let info = text("/proc/meminfo").unwrap_or_default();
        let field = |name| value(&info, name)?.trim_end_matches(" kB").parse::<u64>().ok();
        let kib = |name| field(name).map(|kib| kib << 10);
        let swap_bytes = kib("SwapTotal").unwrap_or(0);
        let huge_pages = text("/sys/kernel/mm/transparent_hugepage/enabled");
        Self {
            total_bytes: kib("MemTotal"),
            available_bytes: available_bytes(),
            group_bytes: Limits::of_this_process().memory_bytes,
            swap_bytes,
            swap_used_bytes: swap_bytes.saturating_sub(kib("SwapFree").unwrap_or(swap_bytes)),
            reserved_bytes: field("HugePages_Total").unwrap_or(0) * kib("Hugepagesize").unwrap_or(0),
            huge_pages: huge_pages.and_then(|text| Some(chosen(&text)?.to_owned())),
            overcommit: number("/proc/sys/vm/overcommit_memory"),
            mappings: number("/proc/sys/vm/max_map_count"),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let more = [self.of_swap(), self.of_reserved(), self.of_huge_pages(), self.of_mapping()];
        std::iter::once(self.of_available()).chain(more.into_iter().flatten()).collect()
    }

    fn of_available(&self) -> Finding {
        let (Some(total), Some(available)) = (self.total_bytes, self.available_bytes) else {
            return Finding::skipped("memory", "the kernel does not report it");
        };
        let limit = self.group_bytes.filter(|&limit| limit < total);
        let limit =
            limit.map(|limit| format!("; the control group may use {}", bytes(limit))).unwrap_or_default();
        let found = format!("{} of {} available{limit}", bytes(available), bytes(total));
        let finding = if available < LITTLE_BYTES {
            let advice = "end other programs, raise the control group's limit, or lower `data.memory_budget` (2GiB by default)";
            Finding::warn("memory", found, advice)
        } else {
            Finding::ok("memory", found)
        };
        finding.with("available_bytes", available as f64).with("total_bytes", total as f64)
    }

    fn of_swap(&self) -> Option<Finding> {
        let used = self.swap_used_bytes;
        let found = format!("{} of {} in use", bytes(used), bytes(self.swap_bytes));
        (self.swap_bytes > 0).then(|| match used > self.swap_bytes / 2 {
            true => Finding::warn(
                "memory.swap",
                found,
                "jobs whose memory is swapped out are slow: end other programs; `ps -eo rss,comm --sort -rss` lists the largest",
            ),
            false => Finding::ok("memory.swap", found),
        })
    }

    fn of_reserved(&self) -> Option<Finding> {
        (self.reserved_bytes > self.total_bytes? / 10).then(|| {
            let found =
                format!("{} are reserved for huge pages of other programs", bytes(self.reserved_bytes));
            Finding::warn("memory.reserved", found, "if nothing needs them: sudo sysctl vm.nr_hugepages=0")
        })
    }

    fn of_huge_pages(&self) -> Option<Finding> {
        let mode = self.huge_pages.as_deref()?;
        let found = format!("transparent huge pages: {mode}");
        Some(match mode {
            "never" => Finding::warn(
                "memory.pages",
                found,
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            ),
            _ => Finding::ok("memory.pages", found),
        })
    }

    fn of_mapping(&self) -> Option<Finding> {
        if self.overcommit == Some(2) {
            return Some(Finding::warn(
                "memory.mapping",
                "the kernel refuses mappings beyond its commit limit (vm.overcommit_memory = 2)",
                "sudo sysctl vm.overcommit_memory=0, and in /etc/sysctl.d to keep it",
            ));
        }
        let mappings = self.mappings.filter(|&most| most < FEW_MAPPINGS)?;
        Some(Finding::warn(
            "memory.mapping",
            format!("a process may have only {mappings} mappings"),
            format!("sudo sysctl vm.max_map_count={FEW_MAPPINGS}"),
        ))
    }
}

/// The word in brackets: `madvise` of `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn facts() -> Facts {
        Facts {
            total_bytes: Some(64 * GIB),
            available_bytes: Some(50 * GIB),
            huge_pages: Some("madvise".to_owned()),
            overcommit: Some(0),
            mappings: Some(FEW_MAPPINGS),
            ..Facts::default()
        }
    }

    fn only(facts: &Facts, check: &str) -> Finding {
        let mut found = facts.findings().into_iter().filter(|finding| finding.check == check);
        let finding = found.next().expect(check);
        assert!(found.next().is_none());
        finding
    }

    #[test]
    fn enough_memory_is_ok() {
        let marks: Vec<_> = facts().findings().iter().map(|finding| (finding.check, finding.mark)).collect();
        assert_eq!(marks, [("memory", Mark::Ok), ("memory.pages", Mark::Ok)]);
        assert_eq!(facts().of_available().found, "50.0 GiB of 64.0 GiB available");
        assert_eq!(Facts::default().of_available().mark, Mark::Skipped);
        assert_eq!(only(&Facts { swap_bytes: GIB, ..facts() }, "memory.swap").mark, Mark::Ok);
    }

    #[test]
    fn what_breaks_or_slows_jobs_is_a_warning() {
        let little = Facts { available_bytes: Some(GIB), group_bytes: Some(2 * GIB), ..facts() };
        let finding = only(&little, "memory");
        assert_eq!(finding.mark, Mark::Warn);
        assert_eq!(finding.found, "1.0 GiB of 64.0 GiB available; the control group may use 2.0 GiB");
        for (check, facts) in [
            ("memory.swap", Facts { swap_bytes: 4 * GIB, swap_used_bytes: 3 * GIB, ..facts() }),
            ("memory.reserved", Facts { reserved_bytes: 32 * GIB, ..facts() }),
            ("memory.pages", Facts { huge_pages: Some("never".to_owned()), ..facts() }),
            ("memory.mapping", Facts { overcommit: Some(2), ..facts() }),
            ("memory.mapping", Facts { mappings: Some(1_000), ..facts() }),
        ] {
            let finding = only(&facts, check);
            assert!(finding.mark == Mark::Warn && finding.advice.is_some(), "{finding:?}");
        }
    }

    #[test]
    fn the_chosen_word_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("never"), None);
    }
}
