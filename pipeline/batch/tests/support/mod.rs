//! Batches whose values all derive from the batch number, so that a torn batch is detected; and waiting for events.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::time::{Duration, Instant};
use std::{fs, thread};

use millstream_batch::{
    BatchHeader, BatchMut, BatchRef, BatchSchema, Column, ColumnKind, ColumnMut, ColumnRef, Dtype, IdFeature,
    RaggedFeature, Stream,
};

/// A schema with every kind of section.
pub(crate) fn schema(rows: u32) -> BatchSchema {
    BatchSchema {
        rows,
        labels: vec!["clicked".into(), "bought".into()],
        weighted: true,
        dense: vec!["age".into(), "hours".into(), "gain".into()],
        ids: vec![
            IdFeature { name: "education".into(), cardinality: 17 },
            IdFeature { name: "occupation".into(), cardinality: 1000 },
        ],
        ragged: vec![
            RaggedFeature { name: "tags".into(), cardinality: 5000, maximum: 3, weighted: true },
            RaggedFeature { name: "words".into(), cardinality: 700, maximum: 2, weighted: false },
        ],
        columns: vec![
            Column {
                name: "pixels".into(),
                kind: ColumnKind::Fixed { dtype: Dtype::Float16, shape: vec![2, 3] },
            },
            Column { name: "clicks".into(), kind: ColumnKind::Ragged { dtype: Dtype::Int64, maximum: 3 } },
            Column { name: "url".into(), kind: ColumnKind::Raw { maximum: 9 } },
        ],
        position_bytes: 100,
    }
}

/// A deterministic random number generator (splitmix64).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32
    }

    fn id(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }
}

fn header(number: u64, capacity: u32) -> BatchHeader {
    let mut numbers = Numbers::new(!number);
    let rows = numbers.below(u64::from(capacity) + 1) as u32;
    // With several ranks, rows of the global batch lie before and after this part.
    let first_row = numbers.below(2 * u64::from(capacity)) as u32;
    let others = numbers.below(u64::from(capacity)) as u32;
    BatchHeader {
        stream: if numbers.below(2) == 0 { Stream::Train } else { Stream::Eval },
        epoch: numbers.id(),
        batch: number,
        rows,
        global_rows: first_row + rows + others,
        first_row,
        most_rows: rows.max(first_row).max(others),
        last: numbers.below(2) == 0,
    }
}

fn position_bytes(number: u64, schema: &BatchSchema) -> u64 {
    number % (u64::from(schema.position_bytes) + 1)
}

/// Fills a batch with the contents of batch `number`.
pub(crate) fn fill(batch: &mut BatchMut<'_>, number: u64) {
    let schema = batch.layout().schema().clone();
    let header = header(number, schema.rows);
    let rows = header.rows as usize;
    let mut numbers = Numbers::new(number);
    batch.set_header(&header);
    let position: Vec<u8> = (0..position_bytes(number, &schema)).map(|_| numbers.next() as u8).collect();
    batch.set_position(&position);
    let sections = batch.sections();
    for label in sections.labels.chunks_exact_mut(schema.rows as usize) {
        label[..rows].fill_with(|| numbers.float());
    }
    if let Some(weights) = sections.weights {
        weights[..rows].fill_with(|| numbers.float());
    }
    sections.dense[..rows * schema.dense.len()].fill_with(|| numbers.float());
    for feature in sections.ids.chunks_exact_mut(schema.rows as usize) {
        feature[..rows].fill_with(|| numbers.id());
    }
    let ragged = sections.ragged.into_iter().zip(sections.ragged_weights);
    for (((offsets, values), weights), feature) in ragged.zip(&schema.ragged) {
        let mut end = 0;
        offsets[0] = 0;
        for offset in &mut offsets[1..=rows] {
            end += numbers.below(u64::from(feature.maximum) + 1) as u32;
            *offset = end;
        }
        values[..end as usize].fill_with(|| numbers.id());
        if let Some(weights) = weights {
            weights[..end as usize].fill_with(|| numbers.float());
        }
    }
    for (ColumnMut { offsets, values }, column) in sections.columns.into_iter().zip(&schema.columns) {
        let mut end = rows * values.len() / schema.rows as usize;
        if let Some(offsets) = offsets {
            (offsets[0], end) = (0, 0);
            for offset in &mut offsets[1..=rows] {
                end += row_values(&mut numbers, &column.kind);
                *offset = end as u32;
            }
            end *= column.kind.dtype().bytes();
        }
        values[..end].fill_with(|| numbers.next() as u8);
    }
    batch.pad_columns(rows);
}

/// The number of values of a row of a column with offsets.
fn row_values(numbers: &mut Numbers, kind: &ColumnKind) -> usize {
    numbers.below(u64::from(kind.row_values().unwrap()) + 1) as usize
}

/// Asserts that a batch has exactly the contents of batch `number`.
pub(crate) fn check(batch: BatchRef<'_>, number: u64) {
    let schema = batch.layout().schema();
    let mut numbers = Numbers::new(number);
    assert_eq!(batch.header(), header(number, schema.rows));
    let rows = batch.rows();
    assert_eq!(batch.position().len() as u64, position_bytes(number, schema));
    assert!(batch.position().iter().all(|&byte| byte == numbers.next() as u8), "position of {number}");
    let mut floats = |values: &[f32], length: usize, what: &str| {
        assert_eq!(values.len(), length, "length of {what} of {number}");
        assert!(values.iter().all(|&value| value == numbers.float()), "{what} of {number}");
    };
    for label in 0..schema.label_count() {
        floats(batch.labels(label), rows, "labels");
    }
    if let Some(weights) = batch.weights() {
        floats(weights, rows, "weights");
    }
    floats(batch.dense(), rows * schema.dense.len(), "dense values");
    for feature in 0..schema.ids.len() {
        let ids = batch.ids(feature);
        assert_eq!(ids.len(), rows);
        assert!(ids.iter().all(|&id| id == numbers.id()), "ids {feature} of {number}");
    }
    for (index, feature) in schema.ragged.iter().enumerate() {
        let (offsets, values) = batch.ragged(index);
        assert_eq!((offsets.len(), offsets[0]), (rows + 1, 0));
        for pair in offsets.windows(2) {
            let length = numbers.below(u64::from(feature.maximum) + 1) as u32;
            assert_eq!(pair[1] - pair[0], length, "offsets {index} of {number}");
        }
        assert_eq!(values.len(), offsets[rows] as usize);
        assert!(values.iter().all(|&id| id == numbers.id()), "values {index} of {number}");
        let weights = batch.ragged_weights(index);
        assert_eq!(weights.is_some(), feature.weighted);
        for &weight in weights.iter().flat_map(|weights| &weights[..values.len()]) {
            assert_eq!(weight, numbers.float(), "weights of values {index} of {number}");
        }
    }
    for (index, column) in schema.columns.iter().enumerate() {
        let ColumnRef { offsets, values } = batch.column(index);
        let mut end = rows * values.len() / schema.rows as usize;
        assert_eq!(offsets.is_some(), column.kind.has_offsets());
        if let Some(offsets) = offsets {
            assert_eq!((offsets.len(), offsets[0]), (schema.rows as usize + 1, 0));
            for pair in offsets[..=rows].windows(2) {
                let length = row_values(&mut numbers, &column.kind) as u32;
                assert_eq!(pair[1] - pair[0], length, "offsets of column {index} of {number}");
            }
            let last = offsets[rows];
            assert!(offsets[rows..].iter().all(|&end| end == last), "padding of column {index} of {number}");
            end = last as usize * column.kind.dtype().bytes();
        } else {
            assert!(values[end..].iter().all(|&byte| byte == 0), "padding of column {index} of {number}");
        }
        let of_rows = values[..end].iter();
        assert!(of_rows.copied().all(|byte| byte == numbers.next() as u8), "column {index} of {number}");
    }
}

/// The deadline for an event that is expected soon, generous enough for a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Polls until `happened`; aborts the process at the deadline, as a panic could block on a thread that hangs.
pub(crate) fn wait_until(what: &str, happened: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !happened() {
        if Instant::now() > deadline {
            #[allow(clippy::print_stderr, reason = "the process aborts, so no panic message can say why")]
            {
                eprintln!("deadline exceeded: {what}");
            }
            std::process::abort();
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `blocking` in a thread, runs `then` once that thread sleeps in the kernel, and returns the thread's result.
/// Fails if `blocking` returns before it sleeps, or does not return after `then`.
pub(crate) fn while_blocked<T: Send>(blocking: impl FnOnce() -> T + Send, then: impl FnOnce()) -> T {
    let (send, receive) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
            blocking()
        });
        let stat = format!("/proc/self/task/{}/stat", receive.recv().unwrap());
        wait_until("the thread blocks", || {
            // The state follows the name in parentheses; S is an interruptible sleep.
            let sleeps = |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S"));
            thread.is_finished() || fs::read_to_string(&stat).is_ok_and(sleeps)
        });
        assert!(!thread.is_finished(), "the call returned without blocking");
        then();
        wait_until("the blocked call returns", || thread.is_finished());
        thread.join().unwrap()
    })
}
