//! Indexes of shards: files `index.json` beside MDS or WebDataset, which describe the shards and are not data.

use std::borrow::Cow;
use std::collections::HashSet;

use millstream_format::FileFormat;
use millstream_io::storage::Object;

use crate::output::INDEX_NAME;

/// The inputs without the indexes in the directories of shards and above them, and a note of what was skipped. An
/// `index.json` without shards is data.
pub(super) fn without_indexes(
    inputs: &[Object],
    given: Option<FileFormat>,
) -> (Cow<'_, [Object]>, Option<String>) {
    let is_shards = |format: FileFormat| matches!(format, FileFormat::Mds | FileFormat::WebDataset);
    let is_named_index = |object: &Object| object.path().rsplit('/').next() == Some(INDEX_NAME);
    if given.is_some_and(|given| !is_shards(given)) || !inputs.iter().any(is_named_index) {
        return (Cow::Borrowed(inputs), None);
    }
    let is_shard = |object: &&Object| {
        !is_named_index(object)
            && given.or_else(|| FileFormat::from_name(object.path())).is_some_and(is_shards)
    };
    let shards: Vec<String> = inputs.iter().filter(is_shard).map(Object::address).collect();
    let directories: HashSet<&str> = shards.iter().flat_map(|address| containing(address)).collect();
    let is_index = |object: &&Object| {
        let address = object.address();
        let directory = address.strip_suffix(INDEX_NAME);
        is_named_index(object) && directory.is_some_and(|directory| directories.contains(directory))
    };
    let (indexes, data): (Vec<&Object>, Vec<&Object>) = inputs.iter().partition(is_index);
    let note = indexes.first().map(|first| match indexes.len() - 1 {
        0 => format!("{}: skipped, because it is the index of shards", first.path()),
        more => format!("{} and {more} more: skipped, because they are indexes of shards", first.path()),
    });
    (data.into_iter().cloned().collect(), note)
}

/// The directories that contain a file, each with a slash at its end.
fn containing(address: &str) -> impl Iterator<Item = &str> {
    address.match_indices('/').map(|(slash, _)| &address[..=slash])
}
