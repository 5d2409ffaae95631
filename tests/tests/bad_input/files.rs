//! Files that are not there, not what their names say, or damaged.

use std::fs;

use millstream_tests::table::Table;
use millstream_tests::tfrecord::{HEADER_BYTES, offsets};

use super::place::{Case, Place, ROWS, try_all};

const TRAIN: &[&str] = &["train", "job.toml"];

#[test]
fn data_that_is_not_there() {
    try_all(
        Place::new,
        &[
            Case {
                what: "a missing file",
                spoil: |place| fs::remove_file(place.path("train.parquet")).unwrap(),
                line: TRAIN,
                code: 1,
                says: &["train.parquet: no such file in /"],
            },
            Case {
                what: "a missing file of the held-out data",
                spoil: |place| fs::remove_file(place.path("eval.parquet")).unwrap(),
                line: TRAIN,
                code: 1,
                says: &["eval.parquet: no such file in /"],
            },
            Case {
                what: "an empty glob",
                spoil: |place| place.edit("[\"train.parquet\"]", "[\"part-*.parquet\"]"),
                line: TRAIN,
                code: 1,
                says: &["part-*.parquet: no file matches in /"],
            },
            Case {
                what: "an empty glob, for check",
                spoil: |place| place.edit("[\"train.parquet\"]", "[\"part-*.parquet\"]"),
                line: &["check", "job.toml"],
                code: 1,
                says: &["part-*.parquet: no file matches in /"],
            },
            Case {
                what: "a missing file, for bench ingest",
                spoil: |place| fs::remove_file(place.path("train.parquet")).unwrap(),
                line: &["bench", "ingest", "job.toml"],
                code: 1,
                says: &["train.parquet: no such file in /"],
            },
            Case {
                what: "an empty data set",
                spoil: |place| {
                    Table::clicks(0, 1).write_parquet(&place.path("train.parquet"));
                },
                line: TRAIN,
                code: 1,
                says: &["the training data holds no rows"],
            },
        ],
    );
}

#[test]
fn files_that_are_not_what_their_names_say() {
    try_all(
        Place::new,
        &[
            Case {
                what: "Parquet named .tfrecord",
                spoil: |place| {
                    fs::rename(place.path("train.parquet"), place.path("train.tfrecord")).unwrap();
                    place.edit("[\"train.parquet\"]", "[\"train.tfrecord\"]");
                },
                line: TRAIN,
                code: 1,
                says: &["train.tfrecord: expected TFRecord", "found Parquet"],
            },
            Case {
                what: "text named .parquet",
                spoil: |place| fs::write(place.path("train.parquet"), "x,color,clicked\n1,red,1\n").unwrap(),
                line: TRAIN,
                code: 1,
                says: &["train.parquet: expected Parquet", "found text"],
            },
            Case {
                what: "an empty file named .parquet",
                spoil: |place| fs::write(place.path("train.parquet"), "").unwrap(),
                line: TRAIN,
                code: 1,
                says: &["train.parquet: expected Parquet", "found an empty file"],
            },
            Case {
                what: "text, for eval's data",
                spoil: |place| fs::write(place.path("eval.parquet"), "x,color,clicked\n1,red,1\n").unwrap(),
                line: TRAIN,
                code: 1,
                says: &["eval.parquet: expected Parquet", "found text"],
            },
        ],
    );
}

#[test]
fn damaged_files() {
    try_all(
        Place::new,
        &[
            Case {
                what: "a truncated Parquet file",
                spoil: |place| {
                    let bytes = fs::read(place.path("train.parquet")).unwrap();
                    fs::write(place.path("train.parquet"), &bytes[..bytes.len() - 100]).unwrap();
                },
                line: TRAIN,
                code: 1,
                says: &["train.parquet: damaged at record 0, byte ", "footer"],
            },
            Case {
                what: "a Parquet file with a damaged page",
                spoil: |place| {
                    let mut bytes = fs::read(place.path("train.parquet")).unwrap();
                    bytes[4..200].fill(0xa5);
                    fs::write(place.path("train.parquet"), bytes).unwrap();
                },
                line: TRAIN,
                code: 1,
                says: &["train.parquet: damaged at record 0, byte 4: "],
            },
            Case {
                what: "a flipped bit in a TFRecord file",
                spoil: |place| {
                    with_tfrecord(place, |bytes, at| bytes[at + HEADER_BYTES + 5] ^= 0x10);
                },
                line: TRAIN,
                code: 1,
                says: &[
                    "train.tfrecord: damaged at record 7, byte 514: the checksum of its 57 bytes of data",
                ],
            },
            Case {
                what: "a flipped bit in a TFRecord's length",
                spoil: |place| with_tfrecord(place, |bytes, at| bytes[at] ^= 1),
                line: TRAIN,
                code: 1,
                says: &[
                    "train.tfrecord: damaged at record 7, byte 514: ",
                    "the checksum of its length does not match",
                ],
            },
            Case {
                what: "a TFRecord file cut within a header",
                spoil: |place| with_tfrecord(place, |bytes, at| bytes.truncate(at + 5)),
                line: TRAIN,
                code: 1,
                says: &[
                    "train.tfrecord: damaged at record 7, byte 514: ",
                    "the file ends within",
                    "5 of 12 bytes",
                ],
            },
            Case {
                what: "a TFRecord file cut within a record",
                spoil: |place| with_tfrecord(place, |bytes, at| bytes.truncate(at + 20)),
                line: &["bench", "ingest", "job.toml"],
                code: 1,
                says: &["train.tfrecord: damaged at record 7, byte 514: ", "the file ends within a record"],
            },
            Case {
                what: "damaged held-out data",
                spoil: |place| {
                    let mut bytes = fs::read(place.path("eval.parquet")).unwrap();
                    bytes[4..200].fill(0xa5);
                    fs::write(place.path("eval.parquet"), bytes).unwrap();
                    place.edit("[\"train.parquet\"]", "[\"eval.parquet\"]");
                },
                line: &["bench", "ingest", "job.toml"],
                code: 1,
                says: &["eval.parquet: damaged at record 0, byte 4: "],
            },
        ],
    );
}

/// Writes the training data as TFRecord, with something done where record 7 begins.
fn with_tfrecord(place: &Place, spoil: impl FnOnce(&mut Vec<u8>, usize)) {
    let path = place.path("train.tfrecord");
    place.train().write_tfrecord(&path);
    let mut bytes = fs::read(&path).unwrap();
    let offsets = offsets(&bytes);
    assert_eq!((offsets.len(), offsets[7]), (ROWS, 514));
    spoil(&mut bytes, offsets[7]);
    fs::write(path, bytes).unwrap();
    place.edit("train = [\"train.parquet\"]\neval = [\"eval.parquet\"]", "train = [\"train.tfrecord\"]");
}
