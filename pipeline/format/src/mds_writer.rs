//! Writes shards of MDS ([`mds`](crate::mds)), and the index that the streaming library needs beside them.
//!
//! The head of a shard has the offsets of all samples, so the samples of a shard are encoded before its head.

use serde_json::{Value, json};

use crate::mds::{MAX_DESCRIPTION_BYTES, MAX_SAMPLES, end_of_offsets};

/// The version of the format.
const VERSION: u32 = 2;
/// The bytes per length of an axis of an array, as the exponent of 2.
const AXIS_KINDS: [(u64, u8); 3] = [(0xff, 0), (0xffff, 1), (0xffff_ffff, 2)];

/// A column of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdsColumn {
    /// The name.
    pub name: String,
    /// The encoding, such as `int32` or `ndarray:float32`.
    pub encoding: String,
    /// The size of each value in bytes, if it is fixed.
    pub size: Option<u32>,
}

/// A shard as the index describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardDescription {
    /// The name of the file, without a directory.
    pub name: String,
    /// The number of samples.
    pub samples: u64,
    /// The bytes of the uncompressed shard.
    pub bytes: u64,
    /// The compression by its name in the library and the bytes of the compressed file, if it is compressed.
    pub compressed: Option<(&'static str, u64)>,
}

/// Appends a sample that consists of the values of all columns; returns its size in bytes.
pub fn append_sample<'a>(
    out: &mut Vec<u8>,
    columns: &[MdsColumn],
    values: impl Iterator<Item = &'a [u8]> + Clone,
) -> usize {
    let start = out.len();
    for (column, value) in columns.iter().zip(values.clone()) {
        if column.size.is_none() {
            // A longer value exceeds the maximum size of a shard.
            out.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes());
        }
    }
    values.for_each(|value| out.extend_from_slice(value));
    out.len() - start
}

/// Appends the bytes that precede a list of numbers in a column `ndarray:TYPE`: the number of its axes and its length.
pub fn append_axis(out: &mut Vec<u8>, length: u64) {
    let kind = AXIS_KINDS.iter().find(|(most, _)| length <= *most).map_or(3, |(_, kind)| *kind);
    out.push(1 << 2 | kind);
    out.extend_from_slice(&length.to_le_bytes()[..1 << kind]);
}

/// The head of a shard with samples of these sizes in bytes.
///
/// # Errors
/// A message if the shard exceeds a limit of the format.
pub fn head(columns: &[MdsColumn], sizes: &[u32]) -> Result<Vec<u8>, String> {
    if sizes.len() > MAX_SAMPLES {
        return Err(format!("{} rows, more than {MAX_SAMPLES} in one shard", sizes.len()));
    }
    let mut description = described(columns);
    description["format"] = "mds".into();
    description["version"] = VERSION.into();
    let description = description.to_string();
    if description.len() > MAX_DESCRIPTION_BYTES {
        return Err(format!("the names of columns exceed {MAX_DESCRIPTION_BYTES} bytes"));
    }
    let samples = sizes.len() as u32;
    let mut head = samples.to_le_bytes().to_vec();
    let mut offset = end_of_offsets(samples) + description.len() as u64;
    for size in sizes.iter().map(Some).chain([None]) {
        let word = u32::try_from(offset)
            .map_err(|_| "the samples exceed 4 GiB, the limit of one shard".to_owned())?;
        head.extend_from_slice(&word.to_le_bytes());
        offset += size.copied().map_or(0, u64::from);
    }
    head.extend_from_slice(description.as_bytes());
    Ok(head)
}

/// The index of shards with these columns, the file `index.json` beside them.
pub fn index(columns: &[MdsColumn], shards: &[ShardDescription]) -> String {
    let shard = |shard: &ShardDescription| {
        let file = |name: &str, bytes: u64| json!({"basename": name, "bytes": bytes, "hashes": {}});
        let mut entry = described(columns);
        let raw_name = match shard.compressed {
            Some(_) => shard.name.rsplit_once('.').map_or(shard.name.as_str(), |(stem, _)| stem),
            None => &shard.name,
        };
        entry["compression"] = shard.compressed.map_or(Value::Null, |(name, _)| name.into());
        entry["format"] = "mds".into();
        entry["hashes"] = json!([]);
        entry["raw_data"] = file(raw_name, shard.bytes);
        entry["samples"] = shard.samples.into();
        entry["size_limit"] = Value::Null;
        entry["version"] = VERSION.into();
        entry["zip_data"] = shard.compressed.map_or(Value::Null, |(_, bytes)| file(&shard.name, bytes));
        entry
    };
    json!({"shards": shards.iter().map(shard).collect::<Vec<_>>(), "version": VERSION}).to_string()
}

fn described(columns: &[MdsColumn]) -> Value {
    let each = |value: fn(&MdsColumn) -> Value| columns.iter().map(value).collect::<Vec<_>>();
    json!({
        "column_encodings": each(|column| column.encoding.as_str().into()),
        "column_names": each(|column| column.name.as_str().into()),
        "column_sizes": each(|column| column.size.map_or(Value::Null, Value::from)),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::record::testing::{row, rows};
    use crate::record::{MAX_RECORD_BYTES, RecordFormat};

    fn column(name: &str, encoding: &str, size: Option<u32>) -> MdsColumn {
        MdsColumn { name: name.to_owned(), encoding: encoding.to_owned(), size }
    }

    #[test]
    fn written_shards_are_read() {
        let columns =
            [column("n", "int16", Some(2)), column("t", "str", None), column("v", "ndarray:uint8", None)];
        let mut samples = Vec::new();
        let mut sizes = Vec::new();
        let lengths = [0, 1, 255, 256, 65_535, 65_536];
        for length in lengths {
            let mut list = Vec::new();
            append_axis(&mut list, length);
            list.resize(list.len() + length as usize, 3);
            let number = (length as u16).to_le_bytes();
            let values = [&number[..], b"text", &list];
            sizes.push(append_sample(&mut samples, &columns, values.into_iter()) as u32);
        }
        let shard = [head(&columns, &sizes).unwrap(), samples].concat();
        let found = rows(RecordFormat::Mds, &shard[..], MAX_RECORD_BYTES);
        assert_eq!(found.len(), lengths.len());
        for (found, length) in found.into_iter().zip(lengths) {
            let number = (length as u16 as i16).to_string();
            let list = vec!["3"; length as usize];
            let expected = row(&[("n", &[&number]), ("t", &["text"]), ("v", &list)]);
            let without_empty = expected
                .map(|row| row.into_iter().filter(|(_, values)| !values.is_empty()).collect::<Vec<_>>());
            let found =
                found.map(|row| row.into_iter().filter(|(_, values)| !values.is_empty()).collect::<Vec<_>>());
            assert_eq!(found, without_empty);
        }
        let empty = head(&columns, &[]).unwrap();
        assert!(rows(RecordFormat::Mds, &empty[..], MAX_RECORD_BYTES).is_empty());
    }

    #[test]
    fn limits_of_a_shard_are_errors() {
        let columns = [column("t", "str", None)];
        let message = head(&columns, &[u32::MAX, 1]).unwrap_err();
        assert!(message.contains("4 GiB"), "{message}");
        assert!(head(&columns, &[u32::MAX - 1000]).is_ok());
        let message = head(&columns, &vec![0; MAX_SAMPLES + 1]).unwrap_err();
        assert!(message.contains("rows"), "{message}");
    }

    #[test]
    fn an_index_names_raw_and_compressed_files() {
        let columns = [column("t", "str", None), column("n", "int32", Some(4))];
        let shard = |name: &str, compressed| ShardDescription {
            name: name.to_owned(),
            samples: 3,
            bytes: 100,
            compressed,
        };
        let shards = [shard("a.mds", None), shard("b.mds.gz", Some(("gz", 40)))];
        let index: Value = serde_json::from_str(&index(&columns, &shards)).unwrap();
        let [plain, packed] = [0, 1].map(|at| &index["shards"][at]);
        assert_eq!(index["version"], 2);
        assert_eq!(plain["column_sizes"], json!([null, 4]));
        assert_eq!((&plain["zip_data"], &plain["raw_data"]["basename"]), (&Value::Null, &"a.mds".into()));
        assert_eq!(
            (&packed["raw_data"]["basename"], &packed["raw_data"]["bytes"]),
            (&"b.mds".into(), &100.into())
        );
        assert_eq!(
            (&packed["zip_data"]["basename"], &packed["zip_data"]["bytes"]),
            (&"b.mds.gz".into(), &40.into())
        );
        assert_eq!(packed["compression"], "gz");
    }
}
