//! Files that do not exist, have another format than their name indicates, or are damaged.

use std::fs;

use millstream_tests::table::Table;
use millstream_tests::tfrecord::{HEADER_BYTES, offsets};

use super::fixture::{Case, Fixture, ROWS, run_cases};

const TRAIN: &[&str] = &["train", "job.toml"];

#[test]
fn missing_data() {
    run_cases(
        Fixture::new,
        &[
            Case {
                name: "a missing file",
                corrupt: |fixture| fs::remove_file(fixture.path("train.parquet")).unwrap(),
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: no such file in /"],
            },
            Case {
                name: "a missing file of the held-out data",
                corrupt: |fixture| fs::remove_file(fixture.path("eval.parquet")).unwrap(),
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["eval.parquet: no such file in /"],
            },
            Case {
                name: "an empty glob",
                corrupt: |fixture| fixture.edit("[\"train.parquet\"]", "[\"part-*.parquet\"]"),
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["part-*.parquet: no file matches in /"],
            },
            Case {
                name: "an empty glob, for check",
                corrupt: |fixture| fixture.edit("[\"train.parquet\"]", "[\"part-*.parquet\"]"),
                arguments: &["check", "job.toml"],
                exit_code: 1,
                stderr: &["part-*.parquet: no file matches in /"],
            },
            Case {
                name: "a missing file, for bench ingest",
                corrupt: |fixture| fs::remove_file(fixture.path("train.parquet")).unwrap(),
                arguments: &["bench", "ingest", "job.toml"],
                exit_code: 1,
                stderr: &["train.parquet: no such file in /"],
            },
            Case {
                name: "an empty data set",
                corrupt: |fixture| {
                    Table::clicks(0, 1).write_parquet(&fixture.path("train.parquet"));
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["the training data holds no rows"],
            },
            Case {
                name: "a filter that no row meets",
                corrupt: |fixture| {
                    fixture.edit(
                        "batch_size",
                        "filter = [{ column = \"x\", op = \">\", value = 99 }]\nbatch_size",
                    );
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["the training data holds no rows that meet the filter"],
            },
        ],
    );
}

#[test]
fn files_with_a_misleading_name() {
    run_cases(
        Fixture::new,
        &[
            Case {
                name: "Parquet named .tfrecord",
                corrupt: |fixture| {
                    fs::rename(fixture.path("train.parquet"), fixture.path("train.tfrecord")).unwrap();
                    fixture.edit("[\"train.parquet\"]", "[\"train.tfrecord\"]");
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.tfrecord: expected TFRecord", "found Parquet"],
            },
            Case {
                name: "text named .parquet",
                corrupt: |fixture| {
                    fs::write(fixture.path("train.parquet"), "x,color,clicked\n1,red,1\n").unwrap();
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: expected Parquet", "found text"],
            },
            Case {
                name: "an empty file named .parquet",
                corrupt: |fixture| fs::write(fixture.path("train.parquet"), "").unwrap(),
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: expected Parquet", "found an empty file"],
            },
            Case {
                name: "text named .parquet, as held-out data",
                corrupt: |fixture| {
                    fs::write(fixture.path("eval.parquet"), "x,color,clicked\n1,red,1\n").unwrap();
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["eval.parquet: expected Parquet", "found text"],
            },
        ],
    );
}

#[test]
fn damaged_files() {
    run_cases(
        Fixture::new,
        &[
            Case {
                name: "a truncated Parquet file",
                corrupt: |fixture| {
                    let bytes = fs::read(fixture.path("train.parquet")).unwrap();
                    fs::write(fixture.path("train.parquet"), &bytes[..bytes.len() - 100]).unwrap();
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: damaged at record 0, byte ", "footer"],
            },
            Case {
                name: "a Parquet file with a damaged page",
                corrupt: |fixture| {
                    let mut bytes = fs::read(fixture.path("train.parquet")).unwrap();
                    bytes[4..200].fill(0xa5);
                    fs::write(fixture.path("train.parquet"), bytes).unwrap();
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: damaged at record 0, byte 4: "],
            },
            Case {
                name: "a flipped bit in a TFRecord file",
                corrupt: |fixture| {
                    with_tfrecord(fixture, |bytes, at| bytes[at + HEADER_BYTES + 5] ^= 0x10);
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &[
                    "train.tfrecord: damaged at record 7, byte 514: the data checksum does not match (57 bytes)",
                ],
            },
            Case {
                name: "a flipped bit in a TFRecord's length",
                corrupt: |fixture| with_tfrecord(fixture, |bytes, at| bytes[at] ^= 1),
                arguments: TRAIN,
                exit_code: 1,
                stderr: &[
                    "train.tfrecord: damaged at record 7, byte 514: ",
                    "the length checksum does not match",
                ],
            },
            Case {
                name: "a TFRecord file truncated within a header",
                corrupt: |fixture| with_tfrecord(fixture, |bytes, at| bytes.truncate(at + 5)),
                arguments: TRAIN,
                exit_code: 1,
                stderr: &[
                    "train.tfrecord: damaged at record 7, byte 514: ",
                    "the file ends within",
                    "5 of 12 bytes",
                ],
            },
            Case {
                name: "a TFRecord file truncated within a record",
                corrupt: |fixture| with_tfrecord(fixture, |bytes, at| bytes.truncate(at + 20)),
                arguments: &["bench", "ingest", "job.toml"],
                exit_code: 1,
                stderr: &["train.tfrecord: damaged at record 7, byte 514: ", "the file ends within a record"],
            },
            Case {
                name: "damaged held-out data",
                corrupt: |fixture| {
                    let mut bytes = fs::read(fixture.path("eval.parquet")).unwrap();
                    bytes[4..200].fill(0xa5);
                    fs::write(fixture.path("eval.parquet"), bytes).unwrap();
                    fixture.edit("[\"train.parquet\"]", "[\"eval.parquet\"]");
                },
                arguments: &["bench", "ingest", "job.toml"],
                exit_code: 1,
                stderr: &["eval.parquet: damaged at record 0, byte 4: "],
            },
        ],
    );
}

/// Writes the training data as TFRecord, with `corrupt` applied at the start of record 7.
fn with_tfrecord(fixture: &Fixture, corrupt: impl FnOnce(&mut Vec<u8>, usize)) {
    let path = fixture.path("train.tfrecord");
    fixture.train().write_tfrecord(&path);
    let mut bytes = fs::read(&path).unwrap();
    let offsets = offsets(&bytes);
    assert_eq!((offsets.len(), offsets[7]), (ROWS, 514));
    corrupt(&mut bytes, offsets[7]);
    fs::write(path, bytes).unwrap();
    fixture.edit("train = [\"train.parquet\"]\neval = [\"eval.parquet\"]", "train = [\"train.tfrecord\"]");
}
