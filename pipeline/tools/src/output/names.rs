//! Names and compression of output files.

use millstream_format::compression::Compression;
use millstream_io::storage::Object;
use millstream_pipeline::Error;

use super::{OutputCompression, OutputFormat, OutputOptions};

/// The default name of the output for `inputs`, in a directory.
pub(super) fn default_name(
    inputs: &[Object],
    format: OutputFormat,
    compression: OutputCompression,
) -> String {
    let input = inputs.first().map_or("data", |object| object.path());
    let input = input.rsplit('/').next().unwrap_or(input);
    let stem = input.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or("data");
    let extension = match format {
        OutputFormat::Csv => "csv",
        OutputFormat::JsonLines => "jsonl",
        OutputFormat::Parquet => return format!("{stem}.parquet"),
        OutputFormat::TfRecord => "tfrecord",
        OutputFormat::WebDataset => "tar",
        OutputFormat::Mds => "mds",
    };
    let compressed = match compression {
        OutputCompression::Gzip => ".gz",
        OutputCompression::Zlib => ".zz",
        OutputCompression::Zstd => ".zst",
        OutputCompression::None | OutputCompression::Snappy => "",
    };
    format!("{stem}.{extension}{compressed}")
}

/// The error of an output whose name does not determine its format.
pub(super) fn unknown(output: &str) -> Error {
    Error::Invalid(format!(
        "{output}: the name does not determine the format: expected .csv, .tsv, .jsonl, .ndjson, .json, .parquet, \
         .tfrecord, .tar or .mds, each but .parquet also with .gz or .zst; or specify --format"
    ))
}

/// The separator of fields in a file of CSV with this name.
pub(super) fn delimiter(name: &str) -> u8 {
    let extension = name[extension_at(name)..].to_ascii_lowercase();
    if extension.starts_with(".tsv") || extension.starts_with(".tab") { b'\t' } else { b',' }
}

/// The compression of a file with this name and format.
pub(super) fn compression(
    format: OutputFormat,
    name: &str,
    options: &OutputOptions,
) -> Result<OutputCompression, Error> {
    let parquet = format == OutputFormat::Parquet;
    let by_name = match Compression::from_name(name) {
        _ if parquet => OutputCompression::Snappy,
        Some(Compression::Gzip) => OutputCompression::Gzip,
        Some(Compression::Zlib) => OutputCompression::Zlib,
        Some(Compression::Zstd) => OutputCompression::Zstd,
        Some(Compression::None) | None => OutputCompression::None,
    };
    let compression = options.compression.unwrap_or(by_name);
    let fits = match compression {
        OutputCompression::None | OutputCompression::Zstd => true,
        OutputCompression::Snappy => parquet,
        OutputCompression::Gzip => !parquet,
        OutputCompression::Zlib => !parquet && format != OutputFormat::Mds,
    };
    if fits {
        return Ok(compression);
    }
    let choices = match format {
        OutputFormat::Parquet => "none, snappy or zstd",
        OutputFormat::Mds => "none, gzip or zstd",
        _ => "none, gzip, zlib or zstd",
    };
    Err(Error::Invalid(format!("{name}: this format supports the compressions {choices}")))
}

/// Rejects names of compressed shards of MDS from which the library cannot derive those of uncompressed ones.
pub(super) fn check_shard(
    format: OutputFormat,
    name: &str,
    compression: OutputCompression,
) -> Result<(), Error> {
    let ends: &[&str] = match compression {
        OutputCompression::Gzip => &[".gz"],
        OutputCompression::Zstd => &[".zst", ".zstd"],
        OutputCompression::None | OutputCompression::Zlib | OutputCompression::Snappy => return Ok(()),
    };
    let lower = name.to_ascii_lowercase();
    if format != OutputFormat::Mds || ends.iter().any(|end| lower.ends_with(end)) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{name}: the name of a compressed MDS shard must end in .gz (gzip) or .zst (zstd)"
    )))
}

/// The names of all shards: `data.parquet` becomes `data-00000-of-00002.parquet` and so on, or keeps its name
/// if there is only one shard.
pub(super) fn shard_names(name: &str, shards: Option<u32>) -> Result<Vec<String>, Error> {
    let number = |shard: u32, of: u32| format!("{shard:05}-of-{of:05}");
    if let Some((before, after)) = name.split_once('*') {
        let of = shards.unwrap_or(1).max(1);
        return Ok((0..of).map(|shard| format!("{before}{}{after}", number(shard, of))).collect());
    }
    let at_sign = name.rsplit_once('@').and_then(|(before, after)| {
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        Some((before, after[..digits].parse::<u32>().ok()?, &after[digits..]))
    });
    if let Some((before, of, after)) = at_sign {
        if of == 0 || shards.is_some_and(|shards| shards != of) {
            return Err(Error::Invalid(format!(
                "{name}: the name specifies {of} shards, expected {}",
                shards.unwrap_or(1)
            )));
        }
        return Ok((0..of).map(|shard| format!("{before}-{}{after}", number(shard, of))).collect());
    }
    match shards.unwrap_or(1) {
        0 | 1 => Ok(vec![name.to_owned()]),
        of => {
            let (stem, extension) = name.split_at(extension_at(name));
            Ok((0..of).map(|shard| format!("{stem}-{}{extension}", number(shard, of))).collect())
        }
    }
}

/// The start of the extension, which includes a compression suffix.
fn extension_at(name: &str) -> usize {
    let inner = if Compression::from_name(name).is_some() && !name.to_ascii_lowercase().ends_with(".tgz") {
        name.rfind('.').unwrap_or(name.len())
    } else {
        name.len()
    };
    name[..inner].rfind('.').filter(|&at| at > 0).unwrap_or(inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn shards_are_named_by_convention() {
        let names = |name: &str, shards| shard_names(name, shards).unwrap();
        assert_eq!(names("a.parquet", None), ["a.parquet"]);
        assert_eq!(names("a.parquet", Some(2)), ["a-00000-of-00002.parquet", "a-00001-of-00002.parquet"]);
        assert_eq!(names("a.tfrecord.gz", Some(2))[1], "a-00001-of-00002.tfrecord.gz");
        assert_eq!(names("data_tfrecord-*.gz", Some(3))[2], "data_tfrecord-00002-of-00003.gz");
        assert_eq!(names("a@2.parquet", None)[0], "a-00000-of-00002.parquet");
        assert_eq!(names("a.tfrecord@12", Some(12))[11], "a.tfrecord-00011-of-00012");
        assert_eq!(names("a.b.tgz", Some(2))[1], "a.b-00001-of-00002.tgz");
        assert_eq!(names(".hidden", Some(2))[0], ".hidden-00000-of-00002");
        assert!(shard_names("a@2.parquet", Some(3)).is_err());
        assert!(shard_names("a@0.parquet", None).is_err());
    }
}
