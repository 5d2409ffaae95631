//! References to datasets in jobs: `dataset://clicks` becomes `dataset://clicks/3` when a job is submitted, so that it reads the
//! same version whenever it resumes.

use anyhow::Result;
use millstream_io::storage::{Reference, Stores};
use millstream_job::Job;
use millstream_pipeline::spec::DataSpec;
use tokio::runtime::Handle;

/// The settings that give each reference to a dataset the number of its current version; none if all have one.
///
/// # Errors
/// When there is no such dataset, or no catalog.
pub(crate) fn pin(job: &Job, stores: &Stores, runtime: &Handle) -> Result<Vec<String>> {
    let pinned = |patterns: &[String]| runtime.block_on(stores.pin(patterns));
    Ok(job.files_setting(&pinned(&job.data.train)?, &pinned(&job.data.eval)?))
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

/// Whether `pinned` names a version of the dataset that `pattern` names without one.
fn is_version_of(pinned: &str, pattern: &str) -> bool {
    let parse = |text| Reference::in_place_of_path(text).ok().flatten();
    match (parse(pinned), parse(pattern)) {
        (Some(pinned), Some(ours)) => {
            ours.version.is_none() && pinned.version.is_some() && pinned.name == ours.name
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_takes_the_number_of_the_same_dataset_only() {
        assert!(is_version_of("dataset://a/3", "dataset://a"));
        for (pinned, pattern) in [
            ("dataset://a/3", "dataset://a/2"),
            ("dataset://a/3", "dataset://b"),
            ("dataset://a", "dataset://a"),
            ("a/3", "dataset://a"),
            ("dataset://a/3", "a"),
        ] {
            assert!(!is_version_of(pinned, pattern), "{pinned} {pattern}");
        }
    }
}
