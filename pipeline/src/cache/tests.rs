//! Cached reads held against uncached ones, and files held against what can happen to them.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use millstream_disk::Access;
use proptest::prelude::*;

use super::block::{self, BLOCK_BYTES, Block, Shape};
use super::source::{CachedSource, Split};
use super::store::{Cache, CacheOptions, PART, WHOLE};
use super::{Key, Specification, read_all};
use crate::analysis::Analysis;
use crate::chunk::{Chunk, RaggedColumn};
use crate::error::Error;
use crate::ingest::{ChunkReader, ChunkSource, Counters, LeftOut, Opened};
use crate::spec::{
    CacheSpec, DataSpec, FeatureKind, FeatureSpec, LabelColumn, LabelNumbers, LabelSpec, OnBadRecord, Terms,
};

/// Splits that are there from the start.
#[derive(Clone, Debug)]
struct Rows {
    splits: Vec<Chunk>,
    /// Whether a reader can go straight to a row.
    passes: bool,
    left_out: u64,
    /// Splits opened.
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

    fn lane_bytes(&self, _chunk_rows: usize) -> u64 {
        0
    }

    fn open(&self, split: u32, from: u64, counters: &Arc<Counters>) -> Result<Opened, Error> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let passed = if self.passes { from } else { 0 };
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
    /// A row is truncated for each 3 of its number.
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

    fn left_out(&mut self) -> LeftOut {
        let last = (self.left_out > 0).then(|| Error::BadValue {
            path: "data".to_owned(),
            record: self.left_out,
            column: "c".to_owned(),
            message: "no \"number\"\n".to_owned(),
        });
        LeftOut { records: self.left_out, last }
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
        labels: block(&chunk.labels, chunk.rows(), &rows),
        more_labels: block(&chunk.more_labels, chunk.rows(), &rows),
        weights: chunk.weights.as_ref().map(|weights| block(weights, chunk.rows(), &rows)),
        dense: block(&chunk.dense, chunk.rows(), &rows),
        ids: block(&chunk.ids, chunk.rows(), &rows),
        ragged: chunk.ragged.iter().map(ragged).collect(),
    }
}

/// All that a read gives, floats as their bits.
#[derive(Debug, Default, PartialEq)]
struct Read {
    rows: u64,
    labels: Vec<u32>,
    more_labels: Vec<u32>,
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
        let chunk = cut(chunk, before..chunk.rows());
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        self.rows += chunk.rows() as u64;
        self.labels.extend(bits(&chunk.labels));
        self.more_labels.extend(bits(&chunk.more_labels));
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

/// Reads a split from row `from` on, as a lane does.
fn read(source: &dyn ChunkSource, split: u32, from: u64, max_rows: usize) -> (Read, Arc<Counters>) {
    let counters = Arc::default();
    let Opened { mut reader, passed } = source.open(split, from, &counters).unwrap();
    assert!(passed == 0 || passed == from);
    let mut read = Read::default();
    let mut before = from - passed;
    while let Some(chunk) = reader.next(max_rows).unwrap() {
        assert!((1..=max_rows).contains(&chunk.rows()));
        let unwanted = before.min(chunk.rows() as u64);
        before -= unwanted;
        read.add(&chunk, unwanted as usize);
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

/// The largest value of a column decides on its width, so columns are made of values below a bound.
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

/// A chunk of any columns, and its shape.
fn chunks(rows: impl Strategy<Value = usize>) -> impl Strategy<Value = (Chunk, Shape)> {
    (rows, 0_usize..3, any::<bool>(), 0_usize..4, 0_usize..4, 0_usize..3).prop_flat_map(
        |(rows, more, weighted, dense, ids, lists)| {
            let floats = |count| {
                // Columns of one kind of value, so that they are narrowed often.
                prop_oneof![
                    proptest::collection::vec(floats(), count),
                    proptest::collection::vec((0_u32..200).prop_map(|whole| whole as f32), count)
                ]
            };
            let labels = (floats(rows), floats(rows * more));
            let columns = (labels, floats(rows), floats(rows * dense), words(rows * ids));
            (columns, proptest::collection::vec(ragged(rows), lists)).prop_map(
                move |(((labels, more_labels), weights, dense_values, id_values), ragged)| {
                    let weights = weighted.then_some(weights);
                    let chunk =
                        Chunk { labels, more_labels, weights, dense: dense_values, ids: id_values, ragged };
                    let shape = shape_of(&chunk, dense as u32, ids as u32);
                    (chunk, shape)
                },
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_block_holds_any_rows_and_gives_any_range_of_them(
        (chunk, shape) in chunks(1_usize..300),
        cuts in any::<[u16; 4]>(),
    ) {
        prop_assert!(shape.fits(&chunk));
        let rows = chunk.rows();
        let [start, end, first, last] = cuts.map(|cut| usize::from(cut) % (rows + 1));
        let (start, end) = (start.min(end).min(rows - 1), start.max(end).max(start.min(end).min(rows - 1) + 1));
        let encoded = block::encode(&chunk, &shape, start..end, 7);
        let block = Block::parse(&encoded.buffer[..encoded.bytes], &shape).unwrap();
        prop_assert_eq!((block.rows(), block.truncated_rows()), (end - start, 7));
        let (first, last) = (first.min(last).min(end - start), first.max(last).min(end - start));
        let (mut decoded, mut wanted) = (Read::default(), Read::default());
        decoded.add(&block.decode(first..last), 0);
        wanted.add(&cut(&chunk, start + first..start + last), 0);
        prop_assert_eq!(decoded, wanted);
        prop_assert!(encoded.bytes <= block::decoded_bytes(&chunk, &shape) + 64);
    }

    #[test]
    fn a_block_of_wrong_bytes_is_an_error_or_other_rows_but_never_a_panic(
        (chunk, shape) in chunks(1_usize..40),
        damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..4),
        cut_off in any::<u16>(),
    ) {
        let encoded = block::encode(&chunk, &shape, 0..chunk.rows(), 0);
        let mut bytes = encoded.buffer[..encoded.bytes].to_vec();
        for (at, value) in damage {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        if cut_off % 2 == 0 {
            bytes.truncate(usize::from(cut_off) % bytes.len());
        }
        if let Ok(block) = Block::parse(&bytes, &shape) {
            let rows = block.decode(0..block.rows());
            prop_assert!(shape.fits(&rows));
        }
    }

    #[test]
    fn bytes_that_are_no_cache_file_are_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
        prop_assert!(read_all(&bytes).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_cached_read_is_an_uncached_read(
        (chunk, shape) in chunks(0_usize..400),
        repeat in 1_usize..40,
        passes in any::<bool>(),
        max_rows in proptest::sample::select(vec![1_usize, 7, 64, 2048]),
        later_rows in proptest::sample::select(vec![1_usize, 50, 300, 5000]),
        from in any::<u16>(),
        way in 0_usize..4,
    ) {
        // Large enough for several blocks now and then.
        let chunk = repeated(&chunk, repeat);
        let left_out = if passes { 0 } else { 3 };
        let policy = if passes { OnBadRecord::Fail } else { OnBadRecord::Skip { limit: 3 } };
        let rows = Rows { splits: vec![chunk], passes, left_out, opened: Arc::default() };
        let directory = tempfile::tempdir().unwrap();
        let options = CacheOptions { access: Access::ALL[way], ..OPTIONS };
        let open = || cached(&rows, shape, cache(directory.path(), options, 1 << 30), policy, 1);
        let from = u64::from(from) % (rows.splits[0].rows() as u64 + 1);

        let (wanted, _) = read(&rows, 0, 0, max_rows);
        let (first, counters) = read(&open(), 0, 0, max_rows);
        prop_assert_eq!(&first, &wanted);
        let stats = counters.snapshot().cache;
        prop_assert_eq!((stats.hits, stats.misses), (0, 1));
        prop_assert!(stats.written_bytes > 0);

        let opened = rows.opened.load(Ordering::Relaxed);
        let (second, counters) = read(&open(), 0, 0, later_rows);
        prop_assert_eq!(&second, &wanted);
        let stats = counters.snapshot().cache;
        prop_assert_eq!((stats.hits, stats.misses, stats.written_bytes), (1, 0, 0));

        let (resumed, _) = read(&open(), 0, from, later_rows);
        prop_assert_eq!(rows.opened.load(Ordering::Relaxed), opened, "the source was not asked");
        let (wanted, _) = read(&rows, 0, from, max_rows);
        // What is truncated is counted as it is read, by blocks.
        let wanted = Read { truncated_rows: resumed.truncated_rows, ..wanted };
        prop_assert_eq!(resumed, wanted);
    }

    #[test]
    fn whatever_byte_is_wrong_the_rows_are_right(
        (chunk, shape) in chunks(1_usize..200),
        at in any::<u32>(),
        flip in 1_u8..,
        cut_off in any::<bool>(),
        from in any::<u16>(),
    ) {
        let chunk = repeated(&chunk, 1200 / chunk.rows());
        let rows = Rows { splits: vec![chunk], passes: true, left_out: 0, opened: Arc::default() };
        let directory = tempfile::tempdir().unwrap();
        let open = || cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
        read(&open(), 0, 0, 100);
        let file = directory.path().join(format!("{}.{WHOLE}", key(0, 1)));
        let mut bytes = fs::read(&file).unwrap();
        let at = at as usize % bytes.len();
        if cut_off { bytes.truncate(at) } else { bytes[at] ^= flip }
        fs::write(&file, &bytes).unwrap();

        let from = u64::from(from) % rows.splits[0].rows() as u64;
        let opened = rows.opened.load(Ordering::Relaxed);
        let (seen, _) = read(&open(), 0, from, 64);
        let noticed = rows.opened.load(Ordering::Relaxed) > opened;
        let (wanted, _) = read(&rows, 0, from, 64);
        prop_assert_eq!(&seen.labels, &wanted.labels);
        prop_assert_eq!(&seen.more_labels, &wanted.more_labels);
        prop_assert_eq!(Read { truncated_rows: 0, ..seen }, Read { truncated_rows: 0, ..wanted });
        // Padding may hold anything, and so may blocks before the first row that is wanted.
        prop_assert!(noticed || !cut_off);
        prop_assert!(noticed != file.exists() || from == 0);
        if !noticed && from == 0 {
            prop_assert!(read_all(&bytes).is_ok());
        }
    }
}

fn repeated(chunk: &Chunk, times: usize) -> Chunk {
    let mut all = chunk.clone();
    let repeat = |values: &mut Vec<f32>| *values = values.repeat(times);
    repeat(&mut all.labels);
    repeat(&mut all.more_labels);
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

/// `splits` of `rows` rows, with one column of ids that tell them apart.
fn numbered(splits: u32, rows: u32) -> (Rows, Shape) {
    let split = |split: u32| Chunk {
        labels: (0..rows).map(|row| (row % 2) as f32).collect(),
        ids: (0..rows).map(|row| (split * rows + row).wrapping_mul(2_654_435_761)).collect(),
        ..Chunk::default()
    };
    let splits = (0..splits).map(split).collect();
    let rows = Rows { splits, passes: true, left_out: 0, opened: Arc::default() };
    (rows, Shape { ids: 1, ..Shape::default() })
}

/// Reads all splits, checks their rows, and says how many came from files.
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

#[test]
fn a_row_larger_than_a_block_is_a_block_of_its_own() {
    for value in [5, u32::MAX] {
        let count = BLOCK_BYTES as u32;
        let mut values: Vec<u32> = vec![value; count as usize];
        values.extend([1, 2, 3]);
        let weights = (value == 5).then(|| vec![0.5; values.len()]);
        let column = RaggedColumn { offsets: vec![0, 0, count, count + 3], values, weights };
        let chunk = Chunk { labels: vec![0.0, 1.0, 0.0], ragged: vec![column], ..Chunk::default() };
        let shape = shape_of(&chunk, 0, 0);
        let rows = Rows { splits: vec![chunk], passes: true, left_out: 0, opened: Arc::default() };
        let directory = tempfile::tempdir().unwrap();
        for hits in [0, 1] {
            let source =
                cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
            assert_eq!(pass(&source, &rows), hits);
        }
    }
}

#[test]
fn records_left_out_are_told_as_the_source_tells_them_and_held_against_the_jobs_limit() {
    let (mut rows, shape) = numbered(1, 5000);
    (rows.left_out, rows.passes) = (4, false);
    let directory = tempfile::tempdir().unwrap();
    let read_with = |policy| {
        let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), policy, 1);
        let (seen, counters) = read(&source, 0, 0, 512);
        assert_eq!(seen.left_out, 4);
        assert_eq!(seen.last.unwrap(), "data: record 4, column `c`: no \"number\"\n");
        counters.snapshot().cache.hits
    };
    assert_eq!(read_with(OnBadRecord::Skip { limit: 4 }), 0);
    assert_eq!(read_with(OnBadRecord::Skip { limit: 4 }), 1);
    // These end in errors, which are the source's to tell.
    assert_eq!(read_with(OnBadRecord::Skip { limit: 3 }), 0);
    assert_eq!(read_with(OnBadRecord::Fail), 0);
}

#[test]
fn a_split_that_is_not_read_to_its_end_leaves_nothing_behind() {
    let (rows, shape) = numbered(1, 500_000);
    let directory = tempfile::tempdir().unwrap();
    let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
    let mut reader = source.open(0, 0, &Arc::default()).unwrap().reader;
    (0..200).for_each(|_| drop(reader.next(2048).unwrap().unwrap()));
    drop((reader, source));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    // Nor does one that is resumed where its source skips what came before.
    let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
    read(&source, 0, 10, 2048);
    drop(source);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn what_a_killed_job_left_is_swept_up_and_what_a_living_one_writes_is_not() {
    let (rows, shape) = numbered(3, 1000);
    let directory = tempfile::tempdir().unwrap();
    let part = |split| directory.path().join(format!("{}.{PART}", key(split, 1)));
    fs::write(part(0), "half a fi").unwrap();
    fs::write(part(1), "another's").unwrap();
    fs::write(directory.path().join("notes.txt"), "not ours").unwrap();
    let living = fs::File::open(part(1)).unwrap();
    living.lock().unwrap();
    for hits in [0, 2] {
        let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
        assert_eq!(pass(&source, &rows), hits);
        drop(source);
        assert_eq!(files(directory.path(), PART), [part(1)]);
        assert_eq!(files(directory.path(), WHOLE).len(), 2);
    }
    assert_eq!(fs::read(part(1)).unwrap(), b"another's");
    drop(living);
    for hits in [2, 3] {
        let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
        assert_eq!(pass(&source, &rows), hits);
    }
    assert!(directory.path().join("notes.txt").exists());
}

#[test]
fn jobs_on_one_directory_at_once_all_read_what_is_right() {
    let (rows, shape) = numbered(40, 3000);
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for job in 0..4 {
            let (rows, directory) = (&rows, directory.path());
            scope.spawn(move || {
                for _ in 0..3 {
                    let cache = cache(directory, OPTIONS, 1 << 30);
                    pass(&cached(rows, shape, cache, OnBadRecord::Fail, job % 2), rows);
                }
            });
        }
    });
    assert_eq!(files(directory.path(), PART), [] as [PathBuf; 0]);
    assert_eq!(files(directory.path(), WHOLE).len(), 80);
    for job in 0..2 {
        let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, job);
        assert_eq!(pass(&source, &rows), 40);
    }
}

#[test]
fn a_queue_that_is_full_costs_the_cache_and_nothing_else() {
    let (rows, shape) = numbered(4, 200_000);
    let directory = tempfile::tempdir().unwrap();
    let options = CacheOptions { queue_bytes: 0, ..OPTIONS };
    for _ in 0..2 {
        let source = cached(&rows, shape, cache(directory.path(), options, 1 << 30), OnBadRecord::Fail, 1);
        assert_eq!(pass(&source, &rows), 0);
        drop(source);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_directory_that_cannot_be_costs_the_cache_and_nothing_else() {
    let (rows, shape) = numbered(4, 1000);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let source = cached(&rows, shape, cache(&file, OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
    assert_eq!((pass(&source, &rows), pass(&source, &rows)), (0, 0));
}

#[test]
fn the_directory_keeps_to_its_size_and_a_job_keeps_its_own_files() {
    let (rows, shape) = numbered(12, 5000);
    let directory = tempfile::tempdir().unwrap();
    let open = |max_bytes, job| {
        cached(&rows, shape, cache(directory.path(), OPTIONS, max_bytes), OnBadRecord::Fail, job)
    };
    let bytes =
        || -> u64 { files(directory.path(), WHOLE).iter().map(|path| path.metadata().unwrap().len()).sum() };
    assert_eq!(pass(&open(1 << 30, 1), &rows), 0);
    let one = bytes() / 12;
    let limit = 5 * one;
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for path in files(directory.path(), WHOLE) {
        fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
    }

    // Another job makes room by removing what is old, and then keeps what it has.
    let source = open(limit, 2);
    assert_eq!(pass(&source, &rows), 0);
    drop(source);
    assert!(bytes() <= limit, "{} of {limit}", bytes());
    let source = open(limit, 2);
    let kept = pass(&source, &rows);
    assert!((3..=5).contains(&kept), "{kept}");
    assert_eq!(pass(&source, &rows), kept);
    drop(source);
    assert!(bytes() <= limit);
    // The first job's are gone.
    assert_eq!(pass(&open(limit, 1), &rows), 0);
}

/// The directory that [`a_job_of_its_own`] caches in, in a process that was started for it.
const DIRECTORY: &str = "MILLSTREAM_TEST_CACHE";
const SPLITS: u32 = 64;

/// Does nothing but in a process of its own, which others are started in.
#[test]
fn a_job_of_its_own() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let (rows, shape) = numbered(SPLITS, 60_000);
    let source = cached(&rows, shape, cache(Path::new(&directory), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
    pass(&source, &rows);
    drop(source);
    assert_eq!(files(Path::new(&directory), PART), [] as [PathBuf; 0]);
    print!("{} files", files(Path::new(&directory), WHOLE).len());
}

/// Runs [`a_job_of_its_own`], behind other programs if need be.
fn process(programs: &[&str], directory: &Path) -> Command {
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new(programs.first().map_or(this.as_os_str(), OsStr::new));
    if let Some(arguments) = programs.get(1..) {
        command.args(arguments).arg(this);
    }
    command.args(["--exact", "cache::tests::a_job_of_its_own", "--nocapture"]);
    command.env(DIRECTORY, directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

#[test]
fn jobs_killed_while_they_write_leave_nothing_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let mut killed = 0;
    for round in 0..10 {
        let before = files(directory.path(), WHOLE).len();
        let mut child = process(&[], directory.path()).spawn().unwrap();
        while files(directory.path(), WHOLE).len() == before && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_millis(round % 4));
        child.kill().unwrap();
        child.wait().unwrap();
        killed += u32::from(files(directory.path(), WHOLE).len() < SPLITS as usize);
    }
    assert!(killed > 0);
    let (rows, shape) = numbered(SPLITS, 60_000);
    let there = files(directory.path(), WHOLE).len() as u64;
    for hits in [there, u64::from(SPLITS)] {
        let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
        assert_eq!(pass(&source, &rows), hits);
        drop(source);
        assert_eq!(files(directory.path(), PART), [] as [PathBuf; 0]);
    }
}

/// In a mount namespace of its own, where the directory is a disk with hardly any room. Where a test may not make
/// one, there is nothing to see.
#[test]
fn a_full_disk_costs_the_cache_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=2m tmpfs '{}'", directory.path().display());
    let namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"];
    let possible = Command::new(namespace[0]).args(&namespace[1..]).arg(&mount).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return;
    }
    let script = format!("{mount} && exec \"$0\" \"$@\"");
    let programs: Vec<&str> = namespace.into_iter().chain([script.as_str()]).collect();
    let output = process(&programs, directory.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    let files =
        said.lines().find_map(|line| line.split(" files").next()?.rsplit(' ').next()?.parse::<u32>().ok());
    assert!(files.is_some_and(|files| files < SPLITS), "{said}");
}

fn feature(kind: FeatureKind) -> FeatureSpec {
    FeatureSpec { name: "f".into(), columns: vec!["c".into()], kind, maximum: None, weights: None }
}

#[test]
fn a_specification_changes_with_what_bears_on_rows_and_with_nothing_else() {
    let vocabulary =
        FeatureKind::Vocabulary { terms: Terms::Learned { max_terms: 9, min_count: 1 }, oov_buckets: 1 };
    let features = [feature(vocabulary.clone())];
    let label = LabelSpec::of("l", None);
    let data = DataSpec {
        base: "/data".into(),
        train: vec!["a".into()],
        batch_size: 16,
        epochs: 2,
        shuffle_rows: 60,
        lanes: 4,
        ..DataSpec::default()
    };
    let learned = |terms: &str| -> Analysis {
        let vocabulary = format!(r#"{{"values":9,"missing":0,"distinct":2,"undercount":0,"terms":{terms}}}"#);
        let json = format!(r#"{{"rows":9,"label":null,"numbers":{{}},"vocabularies":{{"f":{vocabulary}}}}}"#);
        Analysis::from_json(&json).unwrap()
    };
    let analysis = learned(r#"[["a",5],["b",4]]"#);
    let plain = Specification::of(&features, &label, &data, &analysis);

    let elsewhere = DataSpec {
        base: "/elsewhere".into(),
        train: vec!["b".into()],
        epochs: 7,
        on_bad_record: OnBadRecord::Skip { limit: 1 },
        cache: Some(CacheSpec { directory: "/cache".into(), max_bytes: 1 }),
        ..data.clone()
    };
    assert_eq!(Specification::of(&features, &label, &elsewhere, &analysis), plain);
    let counts = learned(r#"[["a",50],["b",40]]"#);
    assert_eq!(Specification::of(&features, &label, &data, &counts), plain);

    let missing = DataSpec { missing: vec!["?".into()], ..data.clone() };
    let other_label = LabelSpec::of("l", Some("yes"));
    let of_numbers = LabelColumn { numbers: LabelNumbers::Any, ..label.first.clone() };
    let two_labels = LabelSpec { others: vec![of_numbers.clone()], ..label.clone() };
    let of_numbers = LabelSpec { first: of_numbers, ..label.clone() };
    let classes = |of: [&str; 2]| LabelSpec {
        first: LabelColumn { classes: of.map(str::to_owned).to_vec(), ..label.first.clone() },
        ..label.clone()
    };
    let (of_classes, turned) = (classes(["a", "b"]), classes(["b", "a"]));
    let other_feature = [FeatureSpec { maximum: Some(3), ..feature(vocabulary.clone()) }];
    let weighted = [FeatureSpec { weights: Some("w".into()), ..other_feature[0].clone() }];
    let two = [feature(vocabulary), feature(FeatureKind::Hashed { buckets: 3 })];
    let changed = [
        Specification::of(&features, &label, &missing, &analysis),
        Specification::of(&features, &other_label, &data, &analysis),
        Specification::of(&features, &two_labels, &data, &analysis),
        Specification::of(&features, &of_numbers, &data, &analysis),
        Specification::of(&features, &of_classes, &data, &analysis),
        Specification::of(&features, &turned, &data, &analysis),
        Specification::of(&other_feature, &label, &data, &analysis),
        Specification::of(&weighted, &label, &data, &analysis),
        Specification::of(&two, &label, &data, &analysis),
        Specification::of(&features, &label, &data, &learned(r#"[["b",5],["a",4]]"#)),
        Specification::of(&features, &label, &data, &learned(r#"[["ab",5]]"#)),
        Specification::of(&features, &label, &data, &Analysis::default()),
    ];
    for (number, one) in changed.iter().enumerate() {
        assert!(*one != plain && !changed[..number].contains(one), "change {number}");
    }
}
