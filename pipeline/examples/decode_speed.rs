//! Measures how fast one core decodes TFRecord files of Examples: checksums, framing, parsing into columns.
//!
//! ```text
//! cargo run --release -p millstream-pipeline --example decode_speed -- make DIRECTORY [ROWS]
//! cargo run --release -p millstream-pipeline --example decode_speed -- [--runs N] FILE...
//! cargo run --release -p millstream-pipeline --example decode_speed -- shuffle FROM TO
//! ```
//!
//! `make` writes files of rows shaped like Criteo's: a label, 13 numbers, and 26 categories as integers or as text.
//! Variants have all values or a fifth missing, names longer by nine letters, are compressed or not, and have features
//! in constant order or, as C++ and Go write them, in another order in each record. Files are read into memory first,
//! so only decoding is measured. Prints rows per second as minimum, median and maximum; `bench/decode.py` compares them
//! with the same loop in C. `shuffle` copies an uncompressed file with the features of each record in random order.

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use millstream_format::compression::{Compression, Compressor, Decompressed};
use millstream_format::example::ExampleColumns;
use millstream_format::tfrecord::{RecordReader, RecordWriter};
use millstream_format::{ProjectedColumn, Projection};

const NUMBERS: usize = 13;
const CATEGORIES: usize = 26;
/// Rows per chunk.
const CHUNK_ROWS: usize = 1024;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["make", directory] => make(Path::new(directory), 400_000),
        ["make", directory, rows] => make(Path::new(directory), rows.parse()?),
        ["shuffle", from, to] => shuffle(Path::new(from), Path::new(to)),
        ["--runs", runs, files @ ..] => files.iter().try_for_each(|file| measure(file, runs.parse()?)),
        files => files.iter().try_for_each(|file| measure(file, 7)),
    }
}

fn measure(path: &str, runs: usize) -> Outcome {
    let bytes = std::fs::read(path)?;
    let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let projection = projection(&names(name.contains("long")));
    let mut rates = Vec::new();
    let mut rows = 0;
    for run in 0..=runs {
        let start = Instant::now();
        rows = decode(&bytes, &projection)?;
        // The first run is a warm-up, because it touches the memory for the first time.
        if run > 0 {
            rates.push(rows as f64 / start.elapsed().as_secs_f64());
        }
    }
    rates.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (rates.first(), rates.last()) else { return Ok(()) };
    let median = rates[rates.len() / 2];
    println!("{name} {rows} rows, rows/s {least:.0} {median:.0} {most:.0}");
    Ok(())
}

fn decode(bytes: &[u8], projection: &Projection) -> Outcome<usize> {
    let (stream, _) = Decompressed::new(bytes)?;
    let mut reader = RecordReader::new(stream);
    let mut columns = ExampleColumns::new(projection);
    let mut rows = 0;
    while let Some(record) = reader.next_record().map_err(|error| format!("{error:?}"))? {
        columns.push(record.data).map_err(|fault| format!("{fault:?}"))?;
        rows += 1;
        if columns.rows() == CHUNK_ROWS {
            std::hint::black_box(columns.finish());
        }
    }
    std::hint::black_box(columns.finish());
    Ok(rows)
}

/// The names of the features, of one to seven letters or of ten to sixteen.
fn names(long: bool) -> Vec<String> {
    let suffix = if long { "_of_click" } else { "" };
    let numbers = (1..=NUMBERS).map(|number| format!("i{number}{suffix}"));
    let categories = (1..=CATEGORIES).map(|number| format!("c{number}{suffix}"));
    std::iter::once("clicked".to_owned()).chain(numbers).chain(categories).collect()
}

fn projection(names: &[String]) -> Projection {
    let column = |name: &String| ProjectedColumn { name: name.clone(), multi: false };
    Projection { columns: names.iter().map(column).collect(), ..Projection::default() }
}

/// The layout of a generated file.
#[derive(Clone, Copy)]
struct Shape {
    floats: bool,
    text: bool,
    missing: bool,
    long_names: bool,
    shuffled: bool,
}

const SHAPES: [(&str, Shape, Compression); 14] = {
    let whole = Shape { floats: true, text: false, missing: false, long_names: false, shuffled: false };
    let ints = Shape { floats: false, ..whole };
    let missing = Shape { missing: true, ..whole };
    let text = Shape { text: true, ..whole };
    let long = Shape { long_names: true, ..whole };
    [
        ("ids.tfrecord", whole, Compression::None),
        ("ids-shuffled.tfrecord", Shape { shuffled: true, ..whole }, Compression::None),
        ("ids-ints.tfrecord", ints, Compression::None),
        ("ids-ints-shuffled.tfrecord", Shape { shuffled: true, ..ints }, Compression::None),
        ("ids-long.tfrecord", long, Compression::None),
        ("ids-long-shuffled.tfrecord", Shape { shuffled: true, ..long }, Compression::None),
        ("ids-missing.tfrecord", missing, Compression::None),
        ("ids-missing-shuffled.tfrecord", Shape { shuffled: true, ..missing }, Compression::None),
        ("text.tfrecord", text, Compression::None),
        ("text-missing.tfrecord", Shape { missing: true, ..text }, Compression::None),
        ("text-shuffled.tfrecord", Shape { shuffled: true, ..text }, Compression::None),
        ("ids.tfrecord.gz", whole, Compression::Gzip),
        ("text.tfrecord.gz", text, Compression::Gzip),
        ("text.tfrecord.zst", text, Compression::Zstd),
    ]
};

fn make(directory: &Path, rows: u64) -> Outcome {
    std::fs::create_dir_all(directory)?;
    for (name, shape, compression) in SHAPES {
        let file = BufWriter::new(File::create(directory.join(name))?);
        let mut writer = RecordWriter::new(Compressor::new(file, compression)?);
        let names = names(shape.long_names);
        for row in 0..rows {
            writer.write(&record(shape, &names, row))?;
        }
        writer.into_inner().finish()?.flush()?;
    }
    Ok(())
}

/// Copies a file, shuffling the features of each record.
fn shuffle(from: &Path, to: &Path) -> Outcome {
    let mut reader = RecordReader::new(BufReader::new(File::open(from)?));
    let mut writer = RecordWriter::new(BufWriter::new(File::create(to)?));
    let mut row = 0;
    while let Some(record) = reader.next_record().map_err(|error| format!("{error:?}"))? {
        let mut entries = Vec::new();
        let mut rest = opened(&mut &record.data[..])?;
        while !rest.is_empty() {
            entries.push(field(1, opened(&mut rest)?));
        }
        writer.write(&field(1, &shuffled(entries, row).concat()))?;
        row += 1;
    }
    writer.into_inner().flush()?;
    Ok(())
}

/// The contents of the next field, which must be number 1 and a message.
fn opened<'a>(bytes: &mut &'a [u8]) -> Outcome<&'a [u8]> {
    let (&tag, mut rest) = bytes.split_first().ok_or("a message is cut")?;
    let (mut length, mut shift) = (0, 0);
    while let Some((&byte, after)) = rest.split_first() {
        (rest, length, shift) = (after, length | usize::from(byte & 0x7f) << shift, shift + 7);
        if byte < 0x80 {
            break;
        }
    }
    let (contents, after) = rest.split_at_checked(length).ok_or("a message is cut")?;
    *bytes = after;
    if tag == 0x0a { Ok(contents) } else { Err("not a plain Example".into()) }
}

fn shuffled(mut entries: Vec<Vec<u8>>, row: u64) -> Vec<Vec<u8>> {
    for at in (1..entries.len()).rev() {
        entries.swap(at, (mix(row << 16 ^ at as u64) % (at as u64 + 1)) as usize);
    }
    entries
}

fn record(shape: Shape, names: &[String], row: u64) -> Vec<u8> {
    let mut entries = Vec::new();
    for (column, name) in names.iter().enumerate() {
        let drawn = mix(row << 8 | column as u64);
        if shape.missing && column > 0 && drawn.is_multiple_of(5) {
            continue;
        }
        let list = if column == 0 {
            packed(3, &varint(drawn % 2))
        } else if column <= NUMBERS {
            let count = mix(drawn) >> (44 + drawn % 20);
            if shape.floats {
                packed(2, &(count as f32).ln_1p().to_le_bytes())
            } else {
                packed(3, &varint(count))
            }
        } else {
            // Approximately Zipf-distributed: equally many ids of each order of magnitude.
            let id = mix(drawn >> (drawn % 50 + 6)) >> 32;
            if shape.text { packed(1, format!("{id:08x}").as_bytes()) } else { packed(3, &varint(id)) }
        };
        let entry = [field(1, name.as_bytes()), field(2, &list)].concat();
        entries.push(field(1, &entry));
    }
    if shape.shuffled {
        entries = shuffled(entries, row);
    }
    field(1, &entries.concat())
}

/// A `Feature` with one value.
fn packed(list: u8, value: &[u8]) -> Vec<u8> {
    field(list, &field(1, value))
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len() as u64), bytes].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// SplitMix64's finalizer.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
