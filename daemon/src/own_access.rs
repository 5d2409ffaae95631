//! What the daemon's own user can reach of a job's files.
//!
//! A service runs as a separate user. A job that `millstream check` accepts for its author may therefore name files that the
//! service cannot read, or directories that it cannot write. The daemon finds both when the job is submitted, and the error
//! says what to do.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use millstream_job::Job;
use millstream_pipeline::spec::DataSpec;
use rustix::fs::Access;

/// Characters of globs.
const GLOB: [char; 4] = ['*', '?', '[', '{'];

/// The first of the `shared` directories, if the job's checkpoints are in the default directory, and the daemon may not
/// write beside the job file.
pub(crate) fn instead_of_default<'a>(job: &Job, shared: &'a [PathBuf]) -> Option<&'a Path> {
    let is_default = job.checkpoint.has_default_directory(&job.data.base);
    let is_denied = is_default && job.checkpoint.directory.as_local().is_some_and(is_unwritable);
    shared.first().filter(|_| is_denied).map(PathBuf::as_path)
}

/// Whether this user may not create files in `directory`, or the directory itself.
fn is_unwritable(directory: &Path) -> bool {
    let existing = directory.ancestors().find(|directory| !matches!(directory.try_exists(), Ok(false)));
    let access = Access::WRITE_OK | Access::EXEC_OK;
    existing.is_some_and(|existing| rustix::fs::access(existing, access).is_err())
}

/// Checks that this user may read each local file of `data`, or list the directories of each glob. What does not exist is
/// left to the listing.
///
/// # Errors
/// When a file or directory is closed to this user.
pub(crate) fn check_data(data: &DataSpec) -> Result<()> {
    let patterns = [("data.train", &data.train), ("data.eval", &data.eval)];
    for (key, pattern) in patterns.iter().flat_map(|(key, all)| all.iter().map(move |pattern| (key, pattern)))
    {
        if pattern.contains("://") {
            continue;
        }
        let path = data.base.join(fixed_part(pattern));
        let Some(closed) = closed_part(&path) else { continue };
        let user = std::env::var("USER").unwrap_or_else(|_| rustix::process::geteuid().as_raw().to_string());
        let (verb, entry) = match closed == path {
            true => ("read", format!("-R -m u:{user}:rX")),
            false => ("enter", format!("-m u:{user}:x")),
        };
        bail!(
            "`{key}`: {}: the daemon runs as user {user}, who may not {verb} {closed}; allow it with `setfacl {entry} {closed}`, \
             or put the data where the user can read it, for example into a bucket",
            path.display(),
            closed = closed.display(),
        );
    }
    Ok(())
}

/// The part of a path in front of the first component with a wildcard.
fn fixed_part(pattern: &str) -> PathBuf {
    Path::new(pattern)
        .components()
        .take_while(|part| !part.as_os_str().to_string_lossy().contains(GLOB))
        .collect()
}

/// The directory or file on the way to `path`, or `path` itself, that this user may not search or read.
fn closed_part(path: &Path) -> Option<PathBuf> {
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.reverse();
    let is_closed =
        |result: io::Result<()>| matches!(result, Err(error) if error.kind() == ErrorKind::PermissionDenied);
    let search = |directory: &&&Path| {
        is_closed(rustix::fs::access(**directory, Access::EXEC_OK).map_err(io::Error::from))
    };
    if let Some(directory) = above.iter().find(search) {
        return Some(directory.to_path_buf());
    }
    let read = match fs::metadata(path) {
        Ok(found) if found.is_dir() => fs::read_dir(path).map(drop),
        Ok(found) if found.is_file() => fs::File::open(path).map(drop),
        _ => return None,
    };
    is_closed(read).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_part_without_wildcards_is_checked() {
        for (pattern, fixed) in [
            ("/data/day-*.parquet", "/data"),
            ("/data/*/day.parquet", "/data"),
            ("days/1.csv", "days/1.csv"),
            ("*.csv", ""),
            ("/data/part-[0-9].tfrecord", "/data"),
        ] {
            assert_eq!(fixed_part(pattern), Path::new(fixed), "{pattern}");
        }
    }

    #[test]
    fn what_exists_and_is_open_is_not_closed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.csv");
        fs::write(&file, "a").unwrap();
        let missing = directory.path().join("missing/b.csv");
        for path in [directory.path(), &file, &missing] {
            assert_eq!(closed_part(path), None);
        }
        assert!(!is_unwritable(directory.path()) && !is_unwritable(&missing));
        assert!(is_unwritable(&file.join("below")), "a directory below a file");
    }
}
