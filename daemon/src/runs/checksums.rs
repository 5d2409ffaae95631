//! The checksums of a run's files: a resume that read other statistics, listings or id mappings than the run began with
//! would train on other data, so it must fail instead.
//!
//! The file has the format of `sha256sum`, which can verify it: `cd RUN && sha256sum --check checksums.sha256`.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::RunDirectory;

/// The checksums, a line per file.
pub(crate) const CHECKSUMS: &str = "checksums.sha256";
/// Between the checksum and the name of a file.
const SEPARATOR: &str = "  ";

/// The contents of the checksum file in `directory` when the file `name` is replaced by `bytes`: before, while either
/// content may be there, and after.
pub(super) fn replacing(directory: &RunDirectory, name: &str, bytes: &[u8]) -> Result<(String, String)> {
    let recorded = recorded(directory)?;
    let line = format!("{}{SEPARATOR}{name}\n", checksum(bytes));
    let others = recorded.lines().filter(|line| checksum_of(line, name).is_none());
    let others: String = others.flat_map(|line| [line, "\n"]).collect();
    Ok((recorded + &line, others + &line))
}

/// Checks that the file `name` in `directory` contains `bytes`. Files of earlier versions have no checksum.
///
/// # Errors
/// When it contained something else.
pub(super) fn check(directory: &RunDirectory, name: &str, bytes: &[u8]) -> Result<()> {
    let recorded = recorded(directory)?;
    let expected: Vec<&str> = recorded.lines().filter_map(|line| checksum_of(line, name)).collect();
    let found = checksum(bytes);
    if expected.is_empty() || expected.contains(&&*found) {
        return Ok(());
    }
    bail!(
        "{} has SHA-256 {found}, but the run wrote {} ({CHECKSUMS}); restore the file, or start a new run",
        directory.file(name),
        expected.join(" or "),
    )
}

fn recorded(directory: &RunDirectory) -> Result<String> {
    let Some(bytes) = directory.read(CHECKSUMS)? else { return Ok(String::new()) };
    String::from_utf8(bytes).with_context(|| directory.file(CHECKSUMS))
}

/// The checksum in `line`, if that is of the file `name`.
fn checksum_of<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(SEPARATOR).filter(|&(_, of)| of == name).map(|(checksum, _)| checksum)
}

fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;
    use crate::runs::{get, put};

    #[test]
    fn a_changed_file_is_an_error_and_a_replaced_one_is_not() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path();
        let directory = &RunDirectory::local(path);
        put(directory, "a.json", b"first").unwrap();
        put(directory, "b.json", b"other").unwrap();
        put(directory, "a.json", b"second").unwrap();
        assert_eq!(get(directory, "a.json").unwrap().unwrap(), b"second");
        assert_eq!(get(directory, "b.json").unwrap().unwrap(), b"other");
        assert_eq!(fs::read_to_string(path.join(CHECKSUMS)).unwrap().lines().count(), 2);

        fs::write(path.join("a.json"), "first").unwrap();
        let error = get(directory, "a.json").unwrap_err().to_string();
        assert!(error.contains("/a.json has SHA-256 a7937b64"), "{error}");
        assert!(error.contains("but the run wrote 16367aac"), "{error}");
    }

    /// The daemon may die between any two writes.
    #[test]
    fn either_content_is_valid_while_a_file_is_replaced() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path();
        let directory = &RunDirectory::local(path);
        put(directory, "a.json", b"first").unwrap();
        let (during, _) = replacing(directory, "a.json", b"second").unwrap();
        fs::write(path.join(CHECKSUMS), during).unwrap();
        assert_eq!(get(directory, "a.json").unwrap().unwrap(), b"first");
        fs::write(path.join("a.json"), "second").unwrap();
        assert_eq!(get(directory, "a.json").unwrap().unwrap(), b"second");
    }

    #[test]
    fn a_file_that_is_replaced_meanwhile_is_read() {
        let run = tempfile::tempdir().unwrap();
        let directory = &RunDirectory::local(run.path());
        let content = |number: u32| format!("content {number}").into_bytes();
        put(directory, "a.json", &content(0)).unwrap();
        std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| (1..500).for_each(|n| put(directory, "a.json", &content(n)).unwrap()));
            while !writer.is_finished() {
                assert!(get(directory, "a.json").unwrap().is_some());
            }
        });
        assert_eq!(get(directory, "a.json").unwrap().unwrap(), content(499));
    }

    #[test]
    fn files_without_a_checksum_are_those_of_earlier_versions() {
        let run = tempfile::tempdir().unwrap();
        fs::write(run.path().join("a.json"), "any").unwrap();
        let directory = &RunDirectory::local(run.path());
        put(directory, "b.json", b"other").unwrap();
        assert_eq!(get(directory, "a.json").unwrap().unwrap(), b"any");
        assert_eq!(get(directory, "c.json").unwrap(), None);
    }
}
