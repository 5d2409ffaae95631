//! Directories in which jobs and the daemon write: space, rights, file system, speed.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfsMountFlags};

use super::finding::Finding;
use super::speed::{Speed, Support, measure, support};
use crate::figures::{bytes, percent};

/// Less free space than this is soon used up by checkpoints.
const LITTLE_BYTES: u64 = 2 << 30;

/// Less than this share of free inodes.
const FEW_INODES: f64 = 0.01;

/// A measurement needs this much space, several times what it writes.
const MEASURABLE_BYTES: u64 = 1 << 30;

/// What a directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// The daemon's database.
    State,
    /// Runs with their checkpoints.
    Checkpoints,
    /// Cached rows of data.
    Cache,
}

/// What was found out about a directory.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    of: Use,
    /// Whether the daemon writes there, whose user can be another one.
    is_daemons: bool,
    directory: PathBuf,
    /// The directory, or the nearest one above it that exists.
    existing: PathBuf,
    /// Why this user cannot create files there.
    denied: Option<ErrorKind>,
    /// What the system says about the file system.
    volume: Result<Volume, ErrorKind>,
    support: Option<Support>,
    /// `None` if it was not measured.
    speed: Option<Result<Speed, String>>,
}

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Volume {
    kind: &'static str,
    /// Whether several hosts use it.
    is_network: bool,
    /// Whether it is in memory.
    is_volatile: bool,
    is_read_only: bool,
    free_bytes: u64,
    total_bytes: u64,
    /// The share of inodes that are free; 1 for file systems without a fixed number.
    free_inodes: f64,
}

/// File systems by the kernel's numbers (linux/magic.h): name, network, in memory.
const KINDS: [(u64, &str, bool, bool); 16] = [
    (0xef53, "ext4", false, false),
    (0x5846_5342, "xfs", false, false),
    (0x9123_683e, "btrfs", false, false),
    (0x2fc1_2fc1, "zfs", false, false),
    (0xf2f5_2010, "f2fs", false, false),
    (0x794c_7630, "overlay", false, false),
    (0x0102_1994, "tmpfs", false, true),
    (0x8584_58f6, "ramfs", false, true),
    (0x6969, "nfs", true, false),
    (0xff53_4d42, "cifs", true, false),
    (0xfe53_4d42, "smb2", true, false),
    (0x6573_5546, "fuse", true, false),
    (0x0bd0_0bd0, "lustre", true, false),
    (0x4750_4653, "gpfs", true, false),
    (0x00c3_6400, "ceph", true, false),
    (0x0102_1997, "9p", true, false),
];

impl Volume {
    fn of(directory: &Path) -> io::Result<Self> {
        let (kind, sizes) = (rustix::fs::statfs(directory)?, rustix::fs::statvfs(directory)?);
        let number = u64::from(kind.f_type as u32);
        let known = KINDS.iter().find(|(magic, ..)| *magic == number);
        let (_, kind, is_network, is_volatile) = known.copied().unwrap_or((0, "unknown", false, false));
        let free_inodes = if sizes.f_files == 0 { 1.0 } else { sizes.f_favail as f64 / sizes.f_files as f64 };
        Ok(Self {
            kind,
            is_network,
            is_volatile,
            is_read_only: sizes.f_flag.contains(StatVfsMountFlags::RDONLY),
            free_bytes: sizes.f_bavail.saturating_mul(sizes.f_frsize),
            total_bytes: sizes.f_blocks.saturating_mul(sizes.f_frsize),
            free_inodes,
        })
    }
}

impl Use {
    fn check(self) -> &'static str {
        match self {
            Self::State => "disk.state",
            Self::Checkpoints => "disk.checkpoint",
            Self::Cache => "disk.cache",
        }
    }

    /// The key that moves the directory elsewhere.
    fn key(self) -> &'static str {
        match self {
            Self::State => "`state_directory` of millstreamd.toml",
            Self::Checkpoints => "`checkpoint.directory`",
            Self::Cache => "`data.cache.directory`",
        }
    }
}

impl Facts {
    /// Looks at a directory of the daemon or of this user, and measures it if `measures`.
    pub(super) fn gather((of, is_daemons): (Use, bool), directory: &Path, measures: bool) -> Self {
        // A directory that cannot be looked at may exist.
        let exists = |path: &&Path| {
            let absent = [ErrorKind::NotFound, ErrorKind::NotADirectory];
            !fs::metadata(path).is_err_and(|error| absent.contains(&error.kind()))
        };
        let existing = directory.ancestors().find(exists).unwrap_or(Path::new("/")).to_owned();
        let access = rustix::fs::access(&existing, Access::WRITE_OK | Access::EXEC_OK);
        let denied = match fs::metadata(&existing) {
            Ok(found) if !found.is_dir() => Some(ErrorKind::NotADirectory),
            Ok(_) => access.err().map(|error| io::Error::from(error).kind()),
            Err(error) => Some(error.kind()),
        };
        let volume = Volume::of(&existing).map_err(|error| error.kind());
        let is_writable = denied.is_none();
        let support = if is_writable { support(&existing).ok() } else { None };
        let has_room = volume.is_ok_and(|volume| volume.free_bytes >= MEASURABLE_BYTES);
        let speed = (measures && is_writable && has_room)
            .then(|| measure(&existing).map_err(|error| error.to_string()));
        Self { of, is_daemons, directory: directory.to_owned(), existing, denied, volume, support, speed }
    }

    /// The description first, then each problem.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let check = self.of.check();
        let here = self.directory.display();
        let Ok(volume) = self.volume else {
            let why = self.denied.unwrap_or(ErrorKind::PermissionDenied);
            let found = format!("{here}: {why}");
            return vec![match self.is_daemons {
                true => Finding::skipped(check, format!("{found}; run as root to look")),
                false => Finding::fail(check, found, format!("change {}", self.of.key())),
            }];
        };
        let mut findings = self.of_rights(&volume);
        if findings.is_empty() {
            findings.push(self.description(&volume));
        }
        findings.extend(self.of_space(&volume));
        findings.extend(self.of_kind(&volume));
        findings
    }

    /// Why nothing can be written here.
    fn of_rights(&self, volume: &Volume) -> Vec<Finding> {
        let (check, existing) = (self.of.check(), self.existing.display());
        if volume.is_read_only {
            let advice = format!("sudo mount -o remount,rw {existing}, or change {}", self.of.key());
            return vec![Finding::fail(check, format!("{existing} is on a read-only file system"), advice)];
        }
        let finding = match self.denied {
            None => return Vec::new(),
            Some(ErrorKind::NotADirectory) => Finding::fail(
                check,
                format!("{existing} is not a directory"),
                format!("remove the file, or change {}", self.of.key()),
            ),
            // The daemon has its own user, and this one need not write there.
            Some(why) if self.is_daemons => {
                Finding::skipped(check, format!("{existing}: {why}; run as root to look"))
            }
            Some(why) => Finding::fail(
                check,
                format!("this user may not create files in {existing}: {why}"),
                format!("sudo setfacl -m u:$USER:rwx {existing}, or change {}", self.of.key()),
            ),
        };
        vec![finding]
    }

    fn description(&self, volume: &Volume) -> Finding {
        let Volume { kind, free_bytes, total_bytes, .. } = *volume;
        let mut found = format!(
            "{}: {} of {} free ({kind})",
            self.directory.display(),
            bytes(free_bytes),
            bytes(total_bytes)
        );
        match self.support {
            Some(Support { direct: true, ring: true }) => found += ", O_DIRECT and io_uring",
            Some(Support { direct: true, ring: false }) => found += ", O_DIRECT without io_uring",
            Some(Support { direct: false, .. }) => found += ", without O_DIRECT",
            None => {}
        }
        let mut finding = Finding::ok(self.of.check(), "").with("free_bytes", free_bytes as f64);
        match &self.speed {
            Some(Ok(speed)) => {
                let rate = |per_second: f64| bytes(per_second as u64);
                let from = if speed.is_direct { "" } else { " from memory" };
                let (write, read) = (speed.write_bytes_per_second, speed.read_bytes_per_second);
                found += &format!(", writes {}/s, reads {}/s{from}", rate(write), rate(read));
                finding = finding.with("write_bytes_per_second", write).with("read_bytes_per_second", read);
            }
            Some(Err(error)) => found += &format!("; its speed could not be measured: {error}"),
            None => {}
        }
        Finding { found, ..finding }
    }

    fn of_space(&self, volume: &Volume) -> Option<Finding> {
        let (check, existing) = (self.of.check(), self.existing.display());
        if volume.free_bytes < LITTLE_BYTES {
            let found = format!("{existing} has only {} left", bytes(volume.free_bytes));
            let advice =
                format!("free some (lower `checkpoint.keep`, delete old runs), or change {}", self.of.key());
            return Some(Finding::warn(check, found, advice));
        }
        (volume.free_inodes < FEW_INODES).then(|| {
            let found = format!("{existing} has only {} of its inodes left", percent(volume.free_inodes));
            Finding::warn(check, found, format!("delete small files: df -i {existing}"))
        })
    }

    fn of_kind(&self, volume: &Volume) -> Option<Finding> {
        let (check, here, kind) = (self.of.check(), self.directory.display(), volume.kind);
        let elsewhere = format!("change {} to a local disk", self.of.key());
        match self.of {
            Use::State if volume.is_network => {
                let found =
                    format!("{here} is on a network file system ({kind}), which can damage the database");
                Some(Finding::warn(check, found, elsewhere))
            }
            Use::State | Use::Checkpoints if volume.is_volatile => {
                let found = format!("{here} is in memory ({kind}): a restart of the host loses it");
                Some(Finding::warn(check, found, format!("change {} to a disk", self.of.key())))
            }
            Use::Cache if volume.is_network => {
                let found =
                    format!("{here} is on a network file system ({kind}): a cache there gains little");
                Some(Finding::warn(check, found, elsewhere))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn volume() -> Volume {
        Volume {
            kind: "ext4",
            is_network: false,
            is_volatile: false,
            is_read_only: false,
            free_bytes: 100 * GIB,
            total_bytes: 200 * GIB,
            free_inodes: 0.9,
        }
    }

    fn facts(of: Use, volume: Volume) -> Facts {
        let speed = Speed { write_bytes_per_second: 1e9, read_bytes_per_second: 2e9, is_direct: true };
        Facts {
            of,
            is_daemons: of == Use::State,
            directory: "/data/runs".into(),
            existing: "/data".into(),
            denied: None,
            volume: Ok(volume),
            support: Some(Support { direct: true, ring: true }),
            speed: Some(Ok(speed)),
        }
    }

    #[test]
    fn a_disk_is_described_with_its_speed() {
        let findings = facts(Use::Checkpoints, volume()).findings();
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].check, findings[0].mark), ("disk.checkpoint", Mark::Ok));
        let wanted = "/data/runs: 100.0 GiB of 200.0 GiB free (ext4), O_DIRECT and io_uring, writes 953.7 MiB/s, reads 1.9 GiB/s";
        assert_eq!(findings[0].found, wanted);
        assert_eq!(findings[0].figures["write_bytes_per_second"], 1e9);
        let without = Facts {
            support: Some(Support { direct: false, ring: true }),
            speed: None,
            ..facts(Use::Cache, volume())
        };
        assert!(without.findings()[0].found.ends_with("(ext4), without O_DIRECT"));
    }

    #[test]
    fn what_cannot_be_written_fails_with_advice() {
        let denied = |of, kind| Facts { denied: Some(kind), ..facts(of, volume()) }.findings().remove(0);
        let finding = denied(Use::Checkpoints, ErrorKind::PermissionDenied);
        assert_eq!(finding.mark, Mark::Fail);
        assert!(finding.advice.is_some_and(|advice| advice.contains("setfacl -m u:$USER:rwx /data")));
        assert_eq!(denied(Use::Cache, ErrorKind::NotADirectory).mark, Mark::Fail);
        assert_eq!(denied(Use::State, ErrorKind::PermissionDenied).mark, Mark::Skipped);
        let read_only = Volume { is_read_only: true, ..volume() };
        assert_eq!(facts(Use::State, read_only).findings()[0].mark, Mark::Fail);
        let hidden = Facts { volume: Err(ErrorKind::PermissionDenied), ..facts(Use::State, volume()) };
        assert_eq!(hidden.findings()[0].mark, Mark::Skipped);
        let hidden = Facts { volume: Err(ErrorKind::PermissionDenied), ..facts(Use::Cache, volume()) };
        assert_eq!(hidden.findings()[0].mark, Mark::Fail);
    }

    #[test]
    fn risks_are_warnings_after_the_description() {
        let network = Volume { kind: "nfs", is_network: true, ..volume() };
        let memory = Volume { kind: "tmpfs", is_volatile: true, ..volume() };
        for (of, volume, is_warned) in [
            (Use::State, network, true),
            (Use::Cache, network, true),
            (Use::Checkpoints, network, false),
            (Use::State, memory, true),
            (Use::Checkpoints, memory, true),
            (Use::Cache, memory, false),
            (Use::Cache, Volume { free_bytes: GIB, ..volume() }, true),
            (Use::Checkpoints, Volume { free_inodes: 0.001, ..volume() }, true),
        ] {
            let marks: Vec<_> = facts(of, volume).findings().iter().map(|finding| finding.mark).collect();
            assert_eq!(
                marks,
                if is_warned { vec![Mark::Ok, Mark::Warn] } else { vec![Mark::Ok] },
                "{of:?} {volume:?}"
            );
        }
    }

    #[test]
    fn a_directory_that_does_not_exist_is_judged_by_the_one_above() {
        let above = tempfile::tempdir().expect("a directory");
        let gather = |path: &str| Facts::gather((Use::Checkpoints, false), &above.path().join(path), false);
        let facts = gather("a/b");
        assert_eq!(facts.existing, above.path());
        assert!(facts.speed.is_none() && facts.denied.is_none() && facts.volume.is_ok());
        fs::write(above.path().join("file"), "").expect("a file");
        assert_eq!(gather("file/runs").denied, Some(ErrorKind::NotADirectory));
    }
}
