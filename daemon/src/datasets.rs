//! References to datasets in jobs: `dataset://clicks` becomes `dataset://clicks/3` when a job is submitted, so that it reads the
//! same version whenever it resumes.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use millstream_io::storage::{Catalog, Reference, Stores, is_local};
use millstream_job::Job;
use millstream_pipeline::spec::DataSpec;
use tokio::runtime::Handle;

use crate::access::Requester;

/// The settings that give each reference to a dataset the number of its current version; none if all have one.
///
/// # Errors
/// When there is no such dataset, `requester` may not read it, or there is no catalog.
pub(crate) fn pin(
    job: &Job,
    (stores, requester): (&Stores, &Requester),
    runtime: &Handle,
) -> Result<Vec<String>> {
    check_read(&job.data.train, stores, requester)?;
    check_read(&job.data.eval, stores, requester)?;
    let pinned = |patterns: &[String]| runtime.block_on(stores.pin(patterns));
    Ok(job.files_setting(&pinned(&job.data.train)?, &pinned(&job.data.eval)?))
}

/// Checks that `requester` may read the files of a local catalog that tell what patterns mean. The files of data are checked when
/// they are listed.
///
/// # Errors
/// When one may not be read, or there is no catalog.
pub(crate) fn check_read(patterns: &[String], stores: &Stores, requester: &Requester) -> Result<()> {
    for pattern in patterns {
        let Some(reference) = Reference::in_place_of_path(pattern)? else { continue };
        for file in Catalog::of(stores)?.files_of(&reference) {
            if !is_local(&file)? {
                continue;
            }
            match requester.check_read(Path::new(&file)) {
                // Reading it says what is missing.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                checked => checked.with_context(|| reference.to_string())?,
            }
        }
    }
    Ok(())
}

/// The settings that give each reference the number that it has in `earlier`.
pub(crate) fn pin_as(job: &Job, earlier: &Job) -> Vec<String> {
    let Job { data: DataSpec { train, eval, .. }, .. } = pinned_as(job, earlier);
    job.files_setting(&train, &eval)
}

/// `job` with the numbers of versions that `earlier` has in the same places.
pub(crate) fn pinned_as(job: &Job, earlier: &Job) -> Job {
    let adopt = |ours: &[String], theirs: &[String]| {
        let both = ours.iter().enumerate().map(|(place, ours)| (ours, theirs.get(place)));
        both.map(|(ours, theirs)| theirs.filter(|theirs| is_version_of(theirs, ours)).unwrap_or(ours).clone())
            .collect()
    };
    let (ours, theirs) = (&job.data, &earlier.data);
    let data = DataSpec {
        train: adopt(&ours.train, &theirs.train),
        eval: adopt(&ours.eval, &theirs.eval),
        ..ours.clone()
    };
    Job { data, ..job.clone() }
}

/// The references among `patterns` that name splits.
pub(crate) fn splits(patterns: &[String]) -> BTreeSet<Reference> {
    let references =
        patterns.iter().filter_map(|pattern| Reference::in_place_of_path(pattern).ok().flatten());
    references.filter(|reference| reference.split.is_some()).collect()
}

/// Whether `pinned` names a version of the dataset that `pattern` names without one.
fn is_version_of(pinned: &str, pattern: &str) -> bool {
    let parse = |text| Reference::in_place_of_path(text).ok().flatten();
    match (parse(pinned), parse(pattern)) {
        (Some(pinned), Some(ours)) => {
            let is_same = pinned.name == ours.name && pinned.split == ours.split;
            is_same && ours.version.is_none() && pinned.version.is_some()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use millstream_io::storage::StorageSpec;

    use super::*;

    #[test]
    fn a_user_reads_a_version_only_if_its_file_may_be_read() {
        let room = tempfile::tempdir().unwrap();
        let (dataset, version) = (room.path().join("a"), room.path().join("a/00000001.json"));
        fs::create_dir(&dataset).unwrap();
        fs::write(&version, "{}").unwrap();
        let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        [room.path(), &dataset].iter().for_each(|directory| allow(directory, 0o755));
        allow(&version, 0o644);
        let catalog = room.path().to_str().unwrap().to_owned();
        let stores = Stores::new(StorageSpec { catalog: Some(catalog), ..StorageSpec::default() }, 0);
        let other = Requester::user(rustix::process::geteuid().as_raw() + 1, 4_000_000, Vec::new());
        let check = |pattern: &str, requester| {
            check_read(&[pattern.to_owned()], &stores, requester).map_err(|error| format!("{error:#}"))
        };
        for readable in ["dataset://a/1#train", "dataset://a", "dataset://a/2", "x"] {
            assert_eq!(check(readable, &other), Ok(()), "{readable}");
        }
        allow(&version, 0o600);
        let error = check("dataset://a/1", &other).unwrap_err();
        assert!(error.contains("dataset://a/1: ") && error.contains("may not read"), "{error}");
        assert_eq!(check("dataset://a/1", &Requester::Trusted), Ok(()));
        allow(&dataset, 0o700);
        assert!(check("dataset://a", &other).unwrap_err().contains("may not"));
    }

    #[test]
    fn a_reference_takes_the_number_of_the_same_dataset_only() {
        assert!(is_version_of("dataset://a/3", "dataset://a"));
        assert!(is_version_of("dataset://a/3#train", "dataset://a#train"));
        for (pinned, pattern) in [
            ("dataset://a/3", "dataset://a/2"),
            ("dataset://a/3", "dataset://b"),
            ("dataset://a/3#train", "dataset://a#test"),
            ("dataset://a/3", "dataset://a#train"),
            ("dataset://a", "dataset://a"),
            ("a/3", "dataset://a"),
            ("dataset://a/3", "a"),
        ] {
            assert!(!is_version_of(pinned, pattern), "{pinned} {pattern}");
        }
    }
}
