//! Tests of the cache over a synthetic source of rows.

#![allow(clippy::unwrap_used)]

mod directory;
mod encoding;
mod key;
mod processes;
mod reads;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_disk::Access;
use millstream_format::Error as FormatError;
use millstream_io::permits::Permit;
use proptest::prelude::*;

use super::Key;
use super::block::Shape;
use super::source::{CachedSource, Split};
use super::store::{Cache, CacheOptions};
use crate::chunk::{Chunk, RaggedColumn};
use crate::error::Error;
use crate::ingest::{ChunkReader, ChunkSource, Counters, Opened, SkippedRecords};
use crate::spec::{CacheSpec, OnBadRecord};

/// A source of splits in memory.
#[derive(Clone, Debug, Default)]
struct Rows {
    splits: Vec<Chunk>,
    /// Whether a reader can skip to a row.
    skips: bool,
    has_filter: bool,
    left_out: u64,
    /// Number of times a split was opened.
    opened: Arc<AtomicU64>,
}

struct RowsReader {
    rows: Chunk,
    next: usize,
    truncated_rows: u64,
    left_out: u64,
    counters: Arc<Counters>,
}

impl ChunkSource for Rows {
    fn splits(&self) -> u32 {
        self.splits.len() as u32
    }

    fn cuts(&self) -> u64 {
        0
    }

    fn has_filter(&self) -> bool {
        self.has_filter
    }

    fn lane_bytes(&self, _chunk_rows: usize) -> u64 {
        0
    }

    fn open(
        &self,
        split: u32,
        from: u64,
        _permit: &Permit,
        counters: &Arc<Counters>,
    ) -> Result<Opened, Error> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let passed = if self.skips { from } else { 0 };
        let reader = RowsReader {
            rows: self.splits[split as usize].clone(),
            next: passed as usize,
            truncated_rows: 0,
            left_out: self.left_out,
            counters: Arc::clone(counters),
        };
        Ok(Opened { reader: Box::new(reader), passed })
    }
}

impl ChunkReader for RowsReader {
    /// Counts every third row as truncated.
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error> {
        let rows = self.next..self.rows.rows().min(self.next + max_rows);
        self.next = rows.end;
        let truncated = rows.clone().filter(|row| row % 3 == 0).count() as u64;
        self.truncated_rows += truncated;
        self.counters.truncated_rows.add(truncated);
        Ok((!rows.is_empty()).then(|| cut(&self.rows, rows)))
    }

    fn truncated_rows(&self) -> u64 {
        self.truncated_rows
    }

    fn left_out(&mut self) -> SkippedRecords {
        let last = (self.left_out > 0).then(|| {
            Error::Format(FormatError::BadValue {
                path: "data".to_owned(),
                record: self.left_out,
                column: "c".to_owned(),
                message: "no \"number\"\n".to_owned(),
            })
        });
        SkippedRecords { records: self.left_out, last }
    }
}

fn cut(chunk: &Chunk, rows: std::ops::Range<usize>) -> Chunk {
    fn block<T: Copy>(values: &[T], of_rows: usize, rows: &std::ops::Range<usize>) -> Vec<T> {
        let width = values.len() / of_rows.max(1);
        values[width * rows.start..width * rows.end].to_vec()
    }
    let ragged = |column: &RaggedColumn| {
        let offsets = &column.offsets[rows.start..=rows.end];
        let all = offsets[0] as usize..offsets[rows.len()] as usize;
        RaggedColumn {
            offsets: offsets.iter().map(|offset| offset - offsets[0]).collect(),
            values: column.values[all.clone()].to_vec(),
            weights: column.weights.as_ref().map(|weights| weights[all].to_vec()),
        }
    };
    Chunk {
        labels: chunk.labels.iter().map(|labels| labels[rows.clone()].to_vec()).collect(),
        weights: chunk.weights.as_ref().map(|weights| block(weights, chunk.rows(), &rows)),
        dense: block(&chunk.dense, chunk.rows(), &rows),
        ids: block(&chunk.ids, chunk.rows(), &rows),
        ragged: chunk.ragged.iter().map(ragged).collect(),
        ..Chunk::default()
    }
}

/// Everything that a read returns, with floats as bits.
#[derive(Debug, Default, PartialEq)]
struct Read {
    rows: u64,
    labels: Vec<Vec<u32>>,
    weights: Option<Vec<u32>>,
    dense: Vec<u32>,
    ids: Vec<u32>,
    ragged: Vec<Vec<Vec<u32>>>,
    value_weights: Vec<Option<Vec<u32>>>,
    left_out: u64,
    last: Option<String>,
    truncated_rows: u64,
}

impl Read {
    fn add(&mut self, chunk: &Chunk, before: usize) {
        // A chunk of skipped rows only, which one of two readers may deliver.
        if chunk.rows() <= before {
            return;
        }
        let chunk = cut(chunk, before..chunk.rows());
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        self.rows += chunk.rows() as u64;
        self.labels.resize_with(chunk.labels.len(), Vec::new);
        for (all, labels) in self.labels.iter_mut().zip(&chunk.labels) {
            all.extend(bits(labels));
        }
        if let Some(weights) = &chunk.weights {
            self.weights.get_or_insert_default().extend(bits(weights));
        }
        self.dense.extend(bits(&chunk.dense));
        self.ids.extend(&chunk.ids);
        self.ragged.resize(chunk.ragged.len(), Vec::new());
        for (rows, column) in self.ragged.iter_mut().zip(&chunk.ragged) {
            let ends = column.offsets.windows(2);
            rows.extend(ends.map(|e| column.values[e[0] as usize..e[1] as usize].to_vec()));
        }
        self.value_weights.resize(chunk.ragged.len(), None);
        for (all, column) in self.value_weights.iter_mut().zip(&chunk.ragged) {
            if let Some(weights) = &column.weights {
                all.get_or_insert_default().extend(bits(weights));
            }
        }
    }
}

/// Reads a split from row `from` on, like a lane.
fn read(source: &dyn ChunkSource, split: u32, from: u64, max_rows: usize) -> (Read, Arc<Counters>) {
    let counters = Arc::default();
    let Opened { mut reader, passed } = source.open(split, from, &Permit::default(), &counters).unwrap();
    assert!(passed == 0 || passed == from);
    let mut read = Read::default();
    let mut before = from - passed;
    while let Some(chunk) = reader.next(max_rows).unwrap() {
        assert!((1..=max_rows).contains(&chunk.rows()));
        let skipped = before.min(chunk.rows() as u64);
        before -= skipped;
        read.add(&chunk, skipped as usize);
    }
    let left_out = reader.left_out();
    read.left_out = left_out.records;
    read.last = left_out.last.map(|error| error.to_string());
    read.truncated_rows = counters.snapshot().truncated_rows;
    (read, counters)
}

fn shape_of(chunk: &Chunk, dense: u32, ids: u32) -> Shape {
    Shape { dense, ids, ..Shape::of(chunk) }
}

const OPTIONS: CacheOptions = CacheOptions { access: Access::BEST, queue_bytes: 64 << 20 };

fn cache(directory: &Path, options: CacheOptions, max_bytes: u64) -> Arc<Cache> {
    Arc::new(Cache::new(&CacheSpec { directory: directory.to_owned(), max_bytes }, options))
}

fn key(split: u32, job: u8) -> Key {
    let mut bytes = [job; 32];
    bytes[..4].copy_from_slice(&split.to_le_bytes());
    Key::from_bytes(bytes)
}

fn cached(rows: &Rows, shape: Shape, cache: Arc<Cache>, on_bad_record: OnBadRecord, job: u8) -> CachedSource {
    let split = |split| Split { key: key(split, job), path: "data".into() };
    let splits = (0..rows.splits()).map(split).collect();
    CachedSource::of_splits(Arc::new(rows.clone()), cache, splits, shape, 100, on_bad_record)
}

fn floats() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => (0_u32..300).prop_map(|whole| whole as f32),
        2 => (0_u32..1 << 26).prop_map(|whole| whole as f32),
        1 => any::<u32>().prop_map(f32::from_bits),
        1 => proptest::sample::select(vec![0.0, -0.0, 1.0, f32::NAN, f32::INFINITY, 16_777_215.0, 16_777_216.0, -1.0]),
    ]
}

/// Columns of values below a bound, as the largest value of a column determines its width.
fn words(count: usize) -> impl Strategy<Value = Vec<u32>> {
    let bound = proptest::sample::select(vec![1_u32, 2, 256, 257, 1 << 16, (1 << 16) + 1, 1 << 24, u32::MAX]);
    (bound, proptest::collection::vec(any::<u32>(), count))
        .prop_map(|(bound, words)| words.into_iter().map(|word| word % bound).collect())
}

fn ragged(rows: usize) -> impl Strategy<Value = RaggedColumn> {
    let lengths = proptest::collection::vec(0_u32..5, rows);
    lengths.prop_flat_map(|lengths| {
        let count = lengths.iter().sum::<u32>() as usize;
        let weights = proptest::option::of(proptest::collection::vec(floats(), count));
        (words(count), weights).prop_map(move |(values, weights)| {
            let mut offsets = vec![0];
            lengths.iter().for_each(|length| offsets.push(offsets[offsets.len() - 1] + length));
            RaggedColumn { offsets, values, weights }
        })
    })
}

/// A chunk with random columns, and its shape.
fn chunks(rows: impl Strategy<Value = usize>) -> impl Strategy<Value = (Chunk, Shape)> {
    (rows, 0_usize..3, any::<bool>(), 0_usize..4, 0_usize..4, 0_usize..3).prop_flat_map(
        |(rows, more, weighted, dense, ids, lists)| {
            let floats = |count| {
                // Columns of one kind of value are often narrowed.
                prop_oneof![
                    proptest::collection::vec(floats(), count),
                    proptest::collection::vec((0_u32..200).prop_map(|whole| whole as f32), count)
                ]
            };
            let labels = proptest::collection::vec(floats(rows), 1 + more);
            let columns = (labels, floats(rows), floats(rows * dense), words(rows * ids));
            (columns, proptest::collection::vec(ragged(rows), lists)).prop_map(
                move |((labels, weights, dense_values, id_values), ragged)| {
                    let weights = weighted.then_some(weights);
                    let chunk = Chunk {
                        labels,
                        weights,
                        dense: dense_values,
                        ids: id_values,
                        ragged,
                        ..Chunk::default()
                    };
                    let shape = shape_of(&chunk, dense as u32, ids as u32);
                    (chunk, shape)
                },
            )
        },
    )
}

fn repeated(chunk: &Chunk, times: usize) -> Chunk {
    let mut all = chunk.clone();
    let repeat = |values: &mut Vec<f32>| *values = values.repeat(times);
    all.labels.iter_mut().for_each(repeat);
    all.weights.as_mut().map(repeat);
    repeat(&mut all.dense);
    all.ids = all.ids.repeat(times);
    for column in &mut all.ragged {
        let ends = (0..times as u32).flat_map(|i| {
            let end = column.values.len() as u32;
            column.offsets[1..].iter().map(move |offset| i * end + offset)
        });
        column.offsets = std::iter::once(0).chain(ends).collect();
        column.values = column.values.repeat(times);
        column.weights.as_mut().map(repeat);
    }
    all
}

/// `splits` splits of `rows` rows, with one column of distinct ids.
fn numbered(splits: u32, rows: u32) -> (Rows, Shape) {
    let split = |split: u32| Chunk {
        labels: vec![(0..rows).map(|row| (row % 2) as f32).collect()],
        ids: (0..rows).map(|row| (split * rows + row).wrapping_mul(2_654_435_761)).collect(),
        ..Chunk::default()
    };
    let splits = (0..splits).map(split).collect();
    let rows = Rows { splits, skips: true, ..Rows::default() };
    (rows, Shape { ids: 1, ..Shape::default() })
}

/// Reads all splits and checks their rows; returns the number of splits served from the cache.
fn pass(source: &CachedSource, rows: &Rows) -> u64 {
    let mut hits = 0;
    for split in 0..rows.splits() {
        let (seen, counters) = read(source, split, 0, 512);
        assert_eq!(seen, read(rows, split, 0, 512).0);
        hits += counters.snapshot().cache.hits;
    }
    hits
}

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
}
