//! Errors that NVIDIA's kernel module has logged, which it numbers: Xid 79 is a GPU that fell off the bus. NVML reports only
//! those that occur while it watches; the kernel's log has all since the host started, as far as it reaches back.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};

use rustix::fs::{Mode, OFlags};

use super::finding::Finding;

const CHECK: &str = "gpu.xid";

/// The kernel's log. Each read returns one record.
const LOG: &str = "/dev/kmsg";

/// A record is never longer.
const MAX_RECORD_BYTES: usize = 8 << 10;

/// More records than the log of any kernel holds: a bound in case it grows as fast as it is read.
const MAX_RECORDS: usize = 1 << 20;

/// Errors by GPU and number: how many, and the text of the last one.
pub(super) type Xids = BTreeMap<(String, u32), (u64, String)>;

/// The logged errors; `None` if this user may not read the kernel's log.
pub(super) fn gather() -> Option<Xids> {
    let log =
        rustix::fs::open(LOG, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()?;
    read(&mut File::from(log))
}

/// The errors in a log; `None` if it cannot be read.
fn read(log: &mut impl Read) -> Option<Xids> {
    let mut xids = Xids::new();
    let mut record = [0; MAX_RECORD_BYTES];
    for _ in 0..MAX_RECORDS {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => add(&String::from_utf8_lossy(&record[..length]), &mut xids),
            Err(error) => match error.kind() {
                // The end, for now.
                ErrorKind::WouldBlock => break,
                // The record was overwritten; the next read continues after it.
                ErrorKind::BrokenPipe | ErrorKind::Interrupted => {}
                _ => return None,
            },
        }
    }
    Some(xids)
}

/// Adds the error of a record: `3,1,2,-;NVRM: Xid (PCI:0000:17:00): 79, pid=7, GPU has fallen off the bus.`
fn add(record: &str, xids: &mut Xids) {
    let line = record.lines().next().unwrap_or_default();
    let parsed = || {
        let (_, rest) = line.split_once("NVRM: Xid (PCI:")?;
        let (gpu, rest) = rest.split_once("): ")?;
        let (number, text) = rest.split_once(',').unwrap_or((rest, ""));
        Some((gpu.to_owned(), number.trim().parse().ok()?, text.trim().to_owned()))
    };
    if let Some((gpu, number, text)) = parsed() {
        let (count, last) = xids.entry((gpu, number)).or_default();
        (*count, *last) = (*count + 1, text);
    }
}

/// A warning for each error of each GPU.
pub(super) fn findings(xids: Option<&Xids>) -> Vec<Finding> {
    let Some(xids) = xids else {
        let why = "this user may not read the kernel's log, which has errors of GPUs; run as root to look";
        return vec![Finding::skipped(CHECK, why)];
    };
    if xids.is_empty() {
        return vec![Finding::ok(CHECK, "no errors of GPUs in the kernel's log")];
    }
    let finding = |((gpu, number), (count, text)): (&(String, u32), &(u64, String))| {
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        let found = format!("GPU with PCI {gpu}: Xid {number} {times}, the last: {text}");
        Finding::warn(CHECK, found, advice(*number)).with("count", *count as f64)
    };
    xids.iter().map(finding).collect()
}

/// What to do about an error, by NVIDIA's list of them.
fn advice(number: u32) -> &'static str {
    match number {
        13 | 31 | 43 | 45 => {
            "usually an error of the program, not of the GPU: see the log of the job that ran then"
        }
        48 | 63 | 64 | 92 | 94 | 95 => {
            "its memory: nvidia-smi -q -d ECC,ROW_REMAPPER; stop its jobs, then sudo nvidia-smi -r; if it recurs, have the GPU \
             replaced"
        }
        74 => {
            "its NVLink: nvidia-smi nvlink -e shows the errors; if they recur, reseat or replace the GPU or its bridge"
        }
        79 => "restart the host; if it recurs, check the GPU's power, cooling and slot, or have it replaced",
        119 | 120 => "its firmware: install the newest driver of this branch, then restart the host",
        _ => "see its number in https://docs.nvidia.com/deploy/xid-errors/",
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::finding::Mark;
    use super::*;

    /// A log that returns one record or error per read, as the kernel's does.
    struct Log(std::vec::IntoIter<Result<&'static str, ErrorKind>>);

    impl Read for Log {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let record = self.0.next().unwrap_or(Err(ErrorKind::WouldBlock))?;
            buffer[..record.len()].copy_from_slice(record.as_bytes());
            Ok(record.len())
        }
    }

    fn xids(records: Vec<Result<&'static str, ErrorKind>>) -> Option<Xids> {
        read(&mut Log(records.into_iter()))
    }

    #[test]
    fn errors_are_counted_by_gpu_and_number() {
        let found = xids(vec![
            Ok("6,1,10,-;Linux version 6.12\n"),
            Ok("3,2,20,-;NVRM: Xid (PCI:0000:17:00): 13, pid=7, name=a, first\n SUBSYSTEM=pci\n"),
            Err(ErrorKind::BrokenPipe),
            Ok("3,3,30,-;NVRM: Xid (PCI:0000:17:00): 13, pid=7, name=b, second\n"),
            Ok("3,4,40,-;NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"),
            Ok("3,5,50,-;NVRM: Xid (PCI:0000:65:00): many\n"),
        ]);
        let findings = findings(found.as_ref());
        let found: Vec<_> = findings.iter().map(|finding| (finding.mark, finding.found.as_str())).collect();
        let wanted = [
            (Mark::Warn, "GPU with PCI 0000:17:00: Xid 13 2 times, the last: pid=7, name=b, second"),
            (
                Mark::Warn,
                "GPU with PCI 0000:65:00: Xid 79 once, the last: pid='<unknown>', GPU has fallen off the bus.",
            ),
        ];
        assert_eq!(found, wanted);
        let advice = |nth: usize| findings[nth].advice.clone().unwrap_or_default();
        assert!(advice(0).contains("of the program") && advice(1).contains("restart the host"));
    }

    #[test]
    fn a_log_without_errors_is_ok_and_one_that_cannot_be_read_is_skipped() {
        let marks =
            |xids: Option<Xids>| findings(xids.as_ref()).iter().map(|found| found.mark).collect::<Vec<_>>();
        assert_eq!(marks(xids(vec![Ok("6,1,10,-;Linux version 6.12\n")])), [Mark::Ok]);
        assert_eq!(marks(xids(vec![Err(ErrorKind::PermissionDenied)])), [Mark::Skipped]);
    }
}
