//! Writes the samples of WebDataset: files of a tar archive.
//!
//! A key or an extension is valid if the reader divides the name of the file into the same two
//! ([`webdataset`](crate::webdataset)).

use crate::tar;
use crate::webdataset::divide;

/// The bytes that end an archive.
pub const ARCHIVE_END: &[u8] = &tar::END;

/// Appends the file `KEY.EXTENSION` of a sample to an archive. Files of a sample must be consecutive, and both names
/// [valid](key_problem).
pub fn append_sample_file(archive: &mut Vec<u8>, key: &str, extension: &str, data: &[u8]) {
    tar::append_file(archive, &format!("{key}.{extension}"), data);
}

/// Why this cannot be the key of a sample, or `None`.
pub fn key_problem(key: &[u8]) -> Option<&'static str> {
    let Ok(text) = std::str::from_utf8(key) else { return Some("is not text") };
    let base = text.rsplit('/').next().unwrap_or_default();
    if base.is_empty() {
        return Some(if text.is_empty() { "is empty" } else { "ends with `/`" });
    }
    if base.contains('.') {
        return Some("has a dot in its last part, where the extension begins");
    }
    if text.contains('\0') {
        return Some("has a zero byte");
    }
    let name = format!("{text}.x");
    (divide(name.as_bytes()) != Some((key, b"x")))
        .then_some("is in a directory `__NAME__`, which readers skip")
}

/// Why this cannot be the extension of a file, or `None`.
pub fn extension_problem(extension: &str) -> Option<&'static str> {
    if extension.is_empty() {
        Some("is empty")
    } else if extension.contains('/') {
        Some("contains `/`")
    } else if extension.starts_with('.') {
        Some("begins with a dot")
    } else if extension.contains('\0') {
        Some("has a zero byte")
    } else if extension.starts_with("__") && extension.ends_with("__") {
        Some("is reserved, as it begins and ends with `__`")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::record::testing::{row, rows};
    use crate::record::{MAX_RECORD_BYTES, RecordFormat};

    #[test]
    fn samples_are_read_with_their_keys_and_extensions() {
        let keys = ["0", "train/v1.0/0", "./x", "a b", "__a", "é", &"k".repeat(200)];
        let extensions = ["txt", "seg.png", "a b", "a..b", "b."];
        let mut archive = Vec::new();
        for key in keys {
            assert_eq!(key_problem(key.as_bytes()), None, "{key}");
            for extension in extensions {
                assert_eq!(extension_problem(extension), None, "{extension}");
                append_sample_file(&mut archive, key, extension, extension.as_bytes());
            }
        }
        archive.extend_from_slice(ARCHIVE_END);
        let found = rows(RecordFormat::WebDataset, &archive[..], MAX_RECORD_BYTES);
        let expected = keys.map(|key| {
            let key = key.as_bytes().escape_ascii().to_string();
            let files = extensions.map(|extension| (extension, [extension]));
            let mut values: Vec<(&str, &[&str])> =
                files.iter().map(|(extension, data)| (*extension, &data[..])).collect();
            let key = [key.as_str()];
            values.insert(0, ("__key__", &key));
            row(&values)
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn names_that_would_be_read_differently_are_refused() {
        for key in ["", "a/", "a.b", ".a", "a/.b", "a\0", "__a__/b"] {
            assert!(key_problem(key.as_bytes()).is_some(), "{key:?}");
        }
        assert!(key_problem(b"\xff").is_some());
        for extension in ["", "a/b", ".a", "a\0", "__key__", "__url__"] {
            assert!(extension_problem(extension).is_some(), "{extension:?}");
        }
    }
}
