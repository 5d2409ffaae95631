//! Job files: any text is either a valid job or a list of errors, and a job written out parses to the same job.

use std::path::Path;

use millstream_job::Job;

/// Parses the bytes as a job file if they are UTF-8.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // A directory without any files that the job could refer to.
    let path = Path::new("/nowhere/job.toml");
    let (job, warnings) = match Job::parse(text, path, &[]) {
        Ok(parsed) => parsed,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!(warnings.iter().all(|warning| !warning.to_string().is_empty()));
    let (again, _) = Job::parse(&job.text, path, &[]).unwrap_or_else(|error| {
        panic!("a job written out must parse:\n{error}\n{}", job.text);
    });
    assert_eq!(again, job, "{}", job.text);
    assert_eq!(again.fingerprint(), job.fingerprint());
}

/// The examples.
pub fn seeds() -> Vec<Vec<u8>> {
    [
        include_str!("../../../examples/census/job.toml"),
        include_str!("../../../examples/clicks/job.toml"),
        include_str!("../../../examples/job-reference.toml"),
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// The words of the annotated reference job, which contains every key.
pub fn dictionary() -> Vec<Vec<u8>> {
    let text = include_str!("../../../examples/job-reference.toml");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.');
    let words: std::collections::BTreeSet<&str> =
        words.filter(|word| (3..32).contains(&word.len())).collect();
    words.into_iter().map(|word| word.as_bytes().to_vec()).collect()
}
