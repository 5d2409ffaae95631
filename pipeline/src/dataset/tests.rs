//! TFRecord datasets. Parquet is tested in `parquet_tests.rs`, filters in `filter_tests.rs`.

#![allow(clippy::unwrap_used)]

use std::io::Write;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use millstream_format::compression::{Compression, Compressor};
use millstream_format::tfrecord::RecordWriter;
use millstream_format::{Error as FormatError, ProjectedColumn};
use tokio::runtime::Runtime;

use super::*;
use crate::spec::OnBadRecord;

/// An Example with `n`; every third record also has `rare`.
fn example(n: i64) -> Vec<u8> {
    let entry = |name: &str, value: i64| {
        let mut number = Vec::new();
        prost::encoding::encode_varint(value as u64, &mut number);
        let nested = |tag: u8, payload: &[u8]| [&[tag << 3 | 2, payload.len() as u8], payload].concat();
        let feature = nested(3, &nested(1, &number));
        nested(1, &[nested(1, name.as_bytes()), nested(2, &feature)].concat())
    };
    let mut features = entry("n", n);
    if n % 3 == 2 {
        features.extend(entry("rare", n));
    }
    [&[0x0a, features.len() as u8][..], &features].concat()
}

fn file(numbers: Range<i64>, compression: Compression) -> Vec<u8> {
    let mut writer = RecordWriter::new(Compressor::new(Vec::new(), compression).unwrap());
    for n in numbers {
        writer.write(&example(n)).unwrap();
    }
    writer.into_inner().finish().unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn open(runtime: &Runtime, dir: &Path, patterns: &[&str]) -> Result<Dataset, Error> {
    let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
    runtime.block_on(Dataset::open(&patterns, dir, None))
}

fn projection(names: &[&str]) -> Projection {
    let column = |name: &&str| ProjectedColumn { name: (*name).to_owned(), multi: false };
    Projection { columns: names.iter().map(column).collect(), ..Projection::default() }
}

/// The record numbers, and the values of `n`.
fn read(
    runtime: &Runtime,
    dataset: &Dataset,
    split: usize,
    bad: &BadRecords,
    from: u64,
    max_rows: usize,
) -> Result<Vec<(u64, i64)>, Error> {
    let mut reader = dataset.read(split, &projection(&["n", "rare"]), bad, runtime.handle())?;
    reader.skip_to(from);
    let mut rows = Vec::new();
    while let Some(chunk) = reader.next_chunk(max_rows)? {
        assert!((1..=max_rows).contains(&chunk.rows()));
        let values = chunk.columns().column(0).as_primitive::<Int64Type>();
        let rare = chunk.columns().column(1);
        for row in 0..chunk.rows() {
            let n = values.value(row);
            if let Some(rare) = rare.as_primitive_opt::<Int64Type>() {
                assert_eq!(rare.is_valid(row).then(|| rare.value(row)), (n % 3 == 2).then_some(n));
            }
            rows.push((chunk.record(row), n));
        }
    }
    Ok(rows)
}

fn fail() -> BadRecords {
    BadRecords::new(OnBadRecord::Fail)
}

#[test]
fn files_are_read_whatever_their_compression_and_name() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    for (name, compression) in [
        ("a.tfrecord", Compression::None),
        ("b.tfrecord.gz", Compression::Gzip),
        ("data_tfrecord-00000-of-00001.gz", Compression::Zlib),
        ("z", Compression::Zstd),
    ] {
        std::fs::write(dir.path().join(name), file(0..1000, compression)).unwrap();
    }
    let dataset = open(&runtime, dir.path(), &["*"]).unwrap();
    assert_eq!((dataset.splits().len(), dataset.rows()), (4, None));
    let expected: Vec<(u64, i64)> = (0..1000).map(|n| (n as u64, n)).collect();
    for split in 0..4 {
        for (from, max_rows) in [(0, 1), (0, 64), (0, 100_000), (999, 10), (300, 7), (2000, 7)] {
            let rows = read(&runtime, &dataset, split, &fail(), from, max_rows).unwrap();
            assert_eq!(rows, expected[expected.len().min(from as usize)..], "{split} {from} {max_rows}");
        }
    }
}

#[test]
fn bad_records_are_fatal_or_skipped_and_counted() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RecordWriter::new(Vec::new());
    for n in 0..6 {
        // Not an Example: a truncated varint.
        writer.write(&if n == 4 { vec![0xff] } else { example(n) }).unwrap();
    }
    let mut bytes = writer.into_inner();
    let second = 16 + example(0).len();
    bytes[second + 14] ^= 1;
    std::fs::write(dir.path().join("a.tfrecord"), bytes).unwrap();
    let dataset = open(&runtime, dir.path(), &["a.tfrecord"]).unwrap();

    let error = read(&runtime, &dataset, 0, &fail(), 0, 10).unwrap_err();
    assert!(
        matches!(error, Error::Format(FormatError::Damage { ref path, offset, record: 1, .. }) if path == "a.tfrecord" && offset == second as u64),
        "{error}"
    );
    let error = read(&runtime, &dataset, 0, &fail(), 2, 10).unwrap_err();
    assert!(error.to_string().contains("no tf.train.Example"), "{error}");

    let bad = BadRecords::new(OnBadRecord::Skip { limit: 2 });
    let rows = read(&runtime, &dataset, 0, &bad, 0, 10).unwrap();
    assert_eq!(rows, [(0, 0), (2, 2), (3, 3), (5, 5)]);
    assert_eq!(bad.skipped(), 2);

    let bad = BadRecords::new(OnBadRecord::Skip { limit: 1 });
    let error = read(&runtime, &dataset, 0, &bad, 0, 10).unwrap_err();
    assert!(matches!(error, Error::TooManyBadRecords { limit: 1, .. }), "{error}");
}

#[test]
fn the_rest_after_a_damaged_length_counts_the_records_lost() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = file(0..5, Compression::None);
    bytes[2 * (16 + example(0).len()) + 9] ^= 4;
    std::fs::write(dir.path().join("a.tfrecord"), bytes).unwrap();
    let mut gzip = file(0..1000, Compression::Gzip);
    gzip.truncate(gzip.len() - 1);
    std::fs::write(dir.path().join("b.tfrecord"), gzip).unwrap();
    std::fs::write(dir.path().join("c.tfrecord.gz"), "").unwrap();
    let mut bytes = file(0..1000, Compression::None);
    bytes[(0..10).map(|n| 16 + example(n).len()).sum::<usize>() + 9] ^= 4;
    std::fs::write(dir.path().join("d.tfrecord"), bytes).unwrap();
    let dataset = open(&runtime, dir.path(), &["*.tfrecord*"]).unwrap();
    for (split, rows, lost) in [(0, 2, 3..=5), (1, 1000, 1..=1), (2, 0, 1..=1), (3, 10, 950..=1100)] {
        assert!(
            matches!(
                read(&runtime, &dataset, split, &fail(), 0, 10),
                Err(Error::Format(FormatError::Damage { .. }))
            ),
            "{split}"
        );
        let bad = BadRecords::new(OnBadRecord::Skip { limit: 2000 });
        assert_eq!(read(&runtime, &dataset, split, &bad, 0, 10).unwrap().len(), rows);
        assert!(lost.contains(&bad.skipped()), "{split}: {}", bad.skipped());
    }
    let bad = BadRecords::new(OnBadRecord::Skip { limit: 900 });
    let error = read(&runtime, &dataset, 3, &bad, 0, 10).unwrap_err().to_string();
    assert!(error.starts_with("more than 900 bad records in one pass; the last: d.tfrecord"), "{error}");
    assert!(
        error.contains("the length checksum does not match; nothing after it can be read, about "),
        "{error}"
    );
}

#[test]
fn a_file_whose_content_contradicts_its_name_is_rejected() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.tfrecord"), b"PAR1 and so on, more or less").unwrap();
    std::fs::write(dir.path().join("b"), "age,sex\n39,Male\n").unwrap();
    std::fs::write(dir.path().join("c.tfrecord"), file(0..5, Compression::None)).unwrap();
    std::fs::write(dir.path().join("d.parquet"), "").unwrap();
    let dataset = open(&runtime, dir.path(), &["a.tfrecord"]).unwrap();
    let skip = BadRecords::new(OnBadRecord::Skip { limit: 5 });
    let error = read(&runtime, &dataset, 0, &skip, 0, 10).unwrap_err();
    assert_eq!(error.to_string(), "a.tfrecord: expected TFRecord, found Parquet");
    assert!(dataset.check(&projection(&["n"]), Absent::Rejected, runtime.handle()).is_err());
    let error = open(&runtime, dir.path(), &["b"]).unwrap_err();
    assert_eq!(error.to_string(), "b: expected TFRecord, Parquet, JSON lines, WebDataset or MDS, found text");
    let error = open(&runtime, dir.path(), &["c.tfrecord", "d.parquet"]).unwrap_err();
    assert_eq!(error.to_string(), "d.parquet: expected TFRecord, as c.tfrecord is, found Parquet");
    assert!(open(&runtime, dir.path(), &[]).is_err());
}

#[test]
fn image_files_are_rejected_with_the_command_that_converts_them() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let images: [(&str, &[u8]); 4] = [
        // All bytes could be text.
        ("a.jpg", b"\xff\xd8\xff\xe0 and so on"),
        ("b.PNG", b"\x89PNG\r\n\x1a\n and so on"),
        ("c.webp", b"RIFF    WEBP and so on"),
        ("d.jpeg", b"\x00\x01 an unknown format"),
    ];
    std::fs::create_dir(dir.path().join("cat")).unwrap();
    for (name, bytes) in images {
        let path = format!("cat/{name}");
        std::fs::write(dir.path().join(&path), bytes).unwrap();
        let error = open(&runtime, dir.path(), &[&path]).unwrap_err().to_string();
        let extension = name.rsplit_once('.').unwrap().1;
        let expected = format!(
            "{path}: jobs and feeds do not read image files; convert them: millstream convert '*/*.{extension}' \
             'images-*.parquet' --shards 32"
        );
        assert_eq!(error, expected);
    }
    for (path, glob) in [
        ("/photos/cat/1.jpg", "'/photos/*/*.jpg'"),
        ("/cat/1.jpg", "'/*/*.jpg'"),
        ("gs://bucket/photos/cat/1.jpg", "'gs://bucket/photos/*/*.jpg'"),
        ("gs://bucket/cat/1.jpg", "'gs://bucket/*/*.jpg'"),
    ] {
        let error = must_be_converted(path).to_string();
        assert!(error.contains(&format!("; convert them: millstream convert {glob} ")), "{error}");
    }
    // No directory names the class.
    for (path, glob) in [
        ("gs://bucket/1.jpg", "'gs://bucket/*/*.jpg'"),
        ("file:///1.jpg", "'file:///*/*.jpg'"),
        ("/1.jpg", "'/*/*.jpg'"),
        ("1.jpg", "'*/*.jpg'"),
        ("./1.jpg", "'./*/*.jpg'"),
        ("photos/../1.jpg", "'photos/../*/*.jpg'"),
    ] {
        let error = must_be_converted(path).to_string();
        let expected =
            format!("; move them into one directory per class and convert them: millstream convert {glob} ");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn data_named_as_images_are_read() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let files: [(&str, &[u8], FormatName); 3] = [
        ("a.png", b"PAR1\x15\x04\x15\x10\x15\x14 and so on", FormatName::Parquet),
        ("b.jpg", b"{\"n\": 1}\n{\"n\": 2}\n", FormatName::JsonLines),
        ("c.webp", &file(0..5, Compression::Gzip), FormatName::TfRecord),
    ];
    for (name, bytes, format) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        let objects = runtime.block_on(storage::list(&[name.to_owned()], dir.path())).unwrap();
        assert_eq!(runtime.block_on(format_of(&objects[0])).unwrap(), format, "{name}");
    }
    let dataset = open(&runtime, dir.path(), &["c.webp"]).unwrap();
    assert_eq!(read(&runtime, &dataset, 0, &fail(), 0, 10).unwrap().len(), 5);
    for (bytes, found) in [("age,sex\n39,Male\n", "text"), ("", "an empty file")] {
        std::fs::write(dir.path().join("d.png"), bytes).unwrap();
        let error = open(&runtime, dir.path(), &["d.png"]).unwrap_err().to_string();
        assert_eq!(error, format!("d.png: expected {}, found {found}", FormatName::NAMES));
    }
}

#[test]
fn a_feature_in_no_record_is_rejected_and_a_rare_one_is_not() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.tfrecord"), file(0..2, Compression::None)).unwrap();
    std::fs::write(dir.path().join("b.tfrecord"), file(0..200, Compression::None)).unwrap();
    let dataset = open(&runtime, dir.path(), &["*.tfrecord"]).unwrap();
    dataset.check(&projection(&["n", "rare"]), Absent::Rejected, runtime.handle()).unwrap();
    let error = dataset.check(&projection(&["n", "rara"]), Absent::Rejected, runtime.handle()).unwrap_err();
    assert_eq!(error.to_string(), "a.tfrecord: no column `rara`; did you mean `rare`?");
}

#[test]
fn rows_of_uncompressed_records_are_estimated() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.tfrecord"), file(100..900, Compression::None)).unwrap();
    std::fs::write(dir.path().join("b.tfrecord.gz"), file(100..900, Compression::Gzip)).unwrap();
    let estimate = |name: &str| {
        let dataset = open(&runtime, dir.path(), &[name]).unwrap();
        assert_eq!(dataset.estimated_rows(), None, "before it is checked");
        dataset.check(&projection(&["n"]), Absent::Rejected, runtime.handle()).unwrap();
        dataset.estimated_rows()
    };
    let rows = estimate("a.tfrecord").unwrap();
    assert!(rows.abs_diff(800) < 80, "{rows}");
    assert_eq!(estimate("b.tfrecord.gz"), None);
}

#[test]
fn records_may_lack_optional_features_but_not_needed_ones_or_all() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.tfrecord"), file(0..2, Compression::None)).unwrap();
    let dataset = open(&runtime, dir.path(), &["a.tfrecord"]).unwrap();
    let check = |names: &[&str], needed: &[&str]| {
        let checked = dataset.check(&projection(names), Absent::AllowedExcept(needed), runtime.handle());
        checked.map_err(|error| error.to_string())
    };
    assert_eq!(check(&["n", "rare"], &["n"]), Ok(()));
    assert_eq!(check(&["n", "rare"], &["rare"]), Err("a.tfrecord: no column `rare`".to_owned()));
    assert_eq!(check(&["rare", "other"], &[]), Err("a.tfrecord: no column `rare`".to_owned()));
    let bad = fail();
    let mut reader = dataset.read(0, &projection(&["n", "rare"]), &bad, runtime.handle()).unwrap();
    let chunk = reader.next_chunk(10).unwrap().unwrap();
    assert_eq!((chunk.rows(), chunk.columns().column(1).logical_null_count()), (2, 2));
}

#[test]
fn a_file_larger_than_a_fetch_is_read_whole_and_dropping_a_reader_ends_its_task() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let mut out = std::fs::File::create(dir.path().join("a.tfrecord")).unwrap();
    out.write_all(&file(0..200_000, Compression::None)).unwrap();
    assert!(out.metadata().unwrap().len() > 5 << 20);
    let dataset = open(&runtime, dir.path(), &["a.tfrecord"]).unwrap();
    assert!(dataset.reader_bytes(0, &projection(&["n"])) <= 8 << 20);
    let rows = read(&runtime, &dataset, 0, &fail(), 0, 4096).unwrap();
    assert_eq!(rows.len(), 200_000);
    assert!(rows.iter().enumerate().all(|(i, &(record, n))| record == i as u64 && n == i as i64));
    let mut reader = dataset.read(0, &projection(&["n"]), &fail(), runtime.handle()).unwrap();
    reader.next_chunk(1).unwrap();
    drop(reader);
    while runtime.metrics().num_alive_tasks() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_runtime_that_shuts_down_is_not_an_end_of_data() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.tfrecord"), file(0..200_000, Compression::None)).unwrap();
    let runtime = runtime();
    let dataset = open(&runtime, dir.path(), &["a.tfrecord"]).unwrap();
    let mut reader = dataset.read(0, &projection(&["n"]), &fail(), runtime.handle()).unwrap();
    runtime.shutdown_background();
    let error = loop {
        match reader.next_chunk(1000) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a clean end"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Cancelled), "{error}");
}

/// The values of `n` in all splits, split by split. Bad records are skipped.
fn read_all(runtime: &Runtime, dataset: &Dataset, bad: &BadRecords) -> Result<Vec<i64>, Error> {
    let mut values = Vec::new();
    for split in 0..dataset.splits().len() {
        values.extend(read(runtime, dataset, split, bad, 0, 50)?.into_iter().map(|(_, n)| n));
    }
    Ok(values)
}

#[test]
fn parts_of_a_file_hold_its_records_once_and_in_order() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.tfrecord"), file(0..300, Compression::None)).unwrap();
    std::fs::write(dir.path().join("b.tfrecord"), file(300..310, Compression::None)).unwrap();
    // These cannot be cut. The name of one shows it, and the first bytes of the other.
    std::fs::write(dir.path().join("c.tfrecord.gz"), file(310..900, Compression::Gzip)).unwrap();
    std::fs::write(dir.path().join("d.tfrecord"), file(900..1500, Compression::Zlib)).unwrap();
    let sizes = std::fs::metadata(dir.path().join("a.tfrecord")).unwrap().len();
    let mut cuts = std::collections::HashSet::from([0]);
    for split_bytes in [1, 7, 40, 100, 1000, sizes - 1] {
        let dataset = open(&runtime, dir.path(), &["*"]).unwrap().cut_at(split_bytes).unwrap();
        let parts = dataset.splits().iter().filter(|split| split.object == 0).count() as u64;
        assert_eq!(parts, sizes.div_ceil(split_bytes));
        assert!(dataset.splits().iter().all(|split| split.bytes <= split_bytes || split.object == 2));
        assert_eq!(dataset.splits().iter().filter(|split| split.object == 2).count(), 1);
        assert_eq!(read_all(&runtime, &dataset, &fail()).unwrap(), (0..1500).collect::<Vec<_>>());
        assert!(cuts.insert(dataset.cuts()), "cuts at {split_bytes} equal others");
    }
    let dataset = open(&runtime, dir.path(), &["*"]).unwrap().cut_at(1 << 30).unwrap();
    assert_eq!((dataset.splits().len(), dataset.cuts()), (4, 0));
}

#[test]
fn parts_of_a_file_of_lines_hold_each_line_once_and_in_order() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    // Lines of many lengths with both ends, blank lines, and a last line without an end.
    let line = |n: usize| {
        let end = ["\n", "\r\n", "\n\n", " \n"][n % 4];
        format!("{{\"n\": {n}, \"x\": \"{}\"}}{end}", "y".repeat(n * n % 97))
    };
    let text: String = (0..300).map(line).collect();
    let text = text.trim_end();
    std::fs::write(dir.path().join("a.jsonl"), text).unwrap();
    let whole = open(&runtime, dir.path(), &["*"]).unwrap();
    for split_bytes in (1..200).chain([1000, text.len() as u64 - 1, text.len() as u64]) {
        let dataset = whole.clone().cut_at(split_bytes).unwrap();
        assert_eq!(dataset.splits().len() as u64, (text.len() as u64).div_ceil(split_bytes));
        let mut found: Vec<usize> = Vec::new();
        for split in 0..dataset.splits().len() {
            let mut reader = dataset.read(split, &projection(&["n"]), &fail(), runtime.handle()).unwrap();
            while let Some(chunk) = reader.next_chunk(7).unwrap() {
                let texts = chunk.columns().column(0).as_binary::<i32>().iter().flatten();
                found.extend(texts.map(|text| std::str::from_utf8(text).unwrap().parse::<usize>().unwrap()));
            }
        }
        assert!(found.iter().copied().eq(0..300), "parts of {split_bytes} bytes");
    }
}

#[test]
fn a_file_of_absurd_size_is_rejected_before_its_parts_are_listed() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.tfrecord"), file(0..300, Compression::None)).unwrap();
    // Sparse: most file systems allow no more than 16 TiB, and some storage servers claim 7 EiB.
    let size = 15_u64 << 40;
    std::fs::File::create(dir.path().join("b.tfrecord")).unwrap().set_len(size).unwrap();
    let split_bytes = 1 << 20;
    let dataset = open(&runtime, dir.path(), &["*"]).unwrap();
    let error = dataset.cut_at(split_bytes).unwrap_err();
    assert!(matches!(&error, Error::TooManySplits { path, .. } if path == "b.tfrecord"), "{error}");
    let message = error.to_string();
    for part in [size.to_string(), "data.split_bytes".to_owned(), split_bytes.to_string()] {
        assert!(message.contains(&part), "{message}");
    }
    // With the advice of the error, the files can be opened.
    let least = size.div_ceil(MAX_SPLITS as u64);
    let dataset = open(&runtime, dir.path(), &["*"]).unwrap().cut_at(least + 100).unwrap();
    assert!(dataset.splits().len() <= MAX_SPLITS);
    assert_eq!(parts::count("c.tfrecord", RecordFormat::TfRecord, 7 << 60, 1), 7 << 60);
}

#[test]
fn a_part_is_read_from_any_of_its_records() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.tfrecord"), file(0..300, Compression::None)).unwrap();
    let dataset = open(&runtime, dir.path(), &["*"]).unwrap().cut_at(2000).unwrap();
    let whole = read(&runtime, &dataset, 2, &fail(), 0, 50).unwrap();
    assert!(whole.len() > 20 && whole[0].0 == 0 && whole[0].1 > 0);
    for from in [1, 7, whole.len() - 1, whole.len()] {
        assert_eq!(read(&runtime, &dataset, 2, &fail(), from as u64, 3).unwrap(), whole[from..]);
    }
}

#[test]
fn damage_costs_no_more_than_its_part() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let whole = file(0..300, Compression::None);
    let path = dir.path().join("a.tfrecord");
    let frame = |record: usize| (0..record).map(|n| 16 + example(n as i64).len()).sum::<usize>();
    for record in [0, 1, 100, 101, 102, 250, 299] {
        for (at, header) in [(0, true), (9, true), (14, false)] {
            let mut bytes = whole.clone();
            bytes[frame(record) + at] ^= 0x40;
            std::fs::write(&path, &bytes).unwrap();
            let dataset = open(&runtime, dir.path(), &["a.tfrecord"]).unwrap().cut_at(1500).unwrap();
            let error = read_all(&runtime, &dataset, &fail()).unwrap_err();
            let place = frame(record) as u64;
            let address = matches!(&error, Error::Format(FormatError::Damage { path, offset, .. }) if path.starts_with("a.tfrecord") && *offset == place);
            assert!(address, "{record} {at}: {error}");

            let bad = BadRecords::new(OnBadRecord::Skip { limit: 100 });
            let values = read_all(&runtime, &dataset, &bad).unwrap();
            assert!(values.is_sorted_by(|a, b| a < b) && !values.contains(&(record as i64)));
            // A damaged length loses the rest of the part; damaged data lose only their record.
            let lost = 300 - values.len();
            assert!(if header { (1..=80).contains(&lost) } else { lost == 1 }, "{record} {at}: {lost} lost");
            // Without a record before the damage, the estimate is rough.
            let skipped = bad.skipped() as usize;
            let close = if header { (1 + lost / 8..=8 + 2 * lost).contains(&skipped) } else { skipped == 1 };
            assert!(close, "{record} {at}: {lost} lost, {skipped} counted");
        }
    }
}

#[test]
fn nested_records_are_never_mistaken_for_the_files_records() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    // The data of each record are a TFRecord file. Only the file's own framing distinguishes them from Examples.
    let mut writer = RecordWriter::new(Vec::new());
    for n in 0..20 {
        let inner = file(n * 10..n * 10 + 10, Compression::None);
        let features =
            [&[0x1a, 0x80 | (inner.len() % 128) as u8, (inner.len() / 128) as u8][..], &inner].concat();
        writer.write(&features).unwrap();
    }
    let bytes = writer.into_inner();
    std::fs::write(dir.path().join("a.tfrecord"), &bytes).unwrap();
    let dataset = open(&runtime, dir.path(), &["*"]).unwrap();
    for split_bytes in [700, 1111, 3000] {
        let dataset = open(&runtime, dir.path(), &["*"]).unwrap().cut_at(split_bytes).unwrap();
        for bad in [fail(), BadRecords::new(OnBadRecord::Skip { limit: 1000 })] {
            let mut ends = (0..dataset.splits().len()).map(|split| {
                let mut reader = dataset.read(split, &projection(&["x"]), &bad, runtime.handle()).unwrap();
                loop {
                    match reader.next_chunk(100) {
                        Ok(Some(_)) => {}
                        Ok(None) => break None,
                        Err(error) => break Some(error),
                    }
                }
            });
            let cut = ends.find_map(|end| end.filter(|error| matches!(error, Error::Cut { .. })));
            let message = cut.expect("the misplaced cut is detected").to_string();
            assert!(message.contains("data.split_bytes"), "{message}");
        }
    }
    let mut reader = dataset.read(0, &projection(&["x"]), &fail(), runtime.handle()).unwrap();
    assert_eq!(reader.next_chunk(100).unwrap().unwrap().rows(), 20);
}

#[test]
fn a_record_longer_than_its_share_of_the_budget_is_an_error_before_it_is_inflated() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RecordWriter::new(Compressor::new(Vec::new(), Compression::Gzip).unwrap());
    writer.write(&example(0)).unwrap();
    writer.write(&vec![0; 2 << 20]).unwrap();
    let bytes = writer.into_inner().finish().unwrap();
    assert!(bytes.len() < 4096);
    std::fs::write(dir.path().join("a.tfrecord.gz"), bytes).unwrap();
    let open = || open(&runtime, dir.path(), &["*"]).unwrap();
    let limited = open().with_budget(256 << 20, 16);
    let expected = "a.tfrecord.gz: record 1, byte 30: a record of 2097152 bytes exceeds the limit of 1048576 bytes; \
                    raise data.memory_budget or lower data.lanes";
    let error = limited.check(&projection(&["n", "never"]), Absent::Rejected, runtime.handle()).unwrap_err();
    assert_eq!(error.to_string(), expected);
    let skip = BadRecords::new(OnBadRecord::Skip { limit: 5 });
    let error = read(&runtime, &limited, 0, &skip, 0, 10).unwrap_err();
    assert_eq!(error.to_string(), expected);
    let error = read(&runtime, &open().with_budget(1 << 30, 16), 0, &fail(), 0, 10).unwrap_err();
    assert!(error.to_string().contains("no tf.train.Example"), "{error}");
}

#[test]
fn a_long_record_behind_a_cut_is_an_error_before_it_is_read() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RecordWriter::new(Vec::new());
    for bytes in [700_000, 700_000, 2_000_000] {
        writer.write(&vec![0; bytes]).unwrap();
    }
    std::fs::write(dir.path().join("a.tfrecord"), writer.into_inner()).unwrap();
    let dataset =
        open(&runtime, dir.path(), &["*"]).unwrap().cut_at(1 << 20).unwrap().with_budget(256 << 20, 16);
    assert_eq!(dataset.splits().len(), 4);
    // The first part ends, and the second one begins, where the long record seems to begin.
    for split in 0..2 {
        let error = read(&runtime, &dataset, split, &fail(), 0, 10).unwrap_err().to_string();
        let expected = "a.tfrecord: byte 1400032: a record exceeds the limit of 1048576 bytes";
        assert!(error.starts_with(expected), "{error}");
    }
}
