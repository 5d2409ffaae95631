//! A lane: reads its splits one after another and forms windows of their rows.

use std::collections::VecDeque;
use std::sync::Arc;

use millstream_io::permits::Permit;
use millstream_trace::{Category, Work};

use super::limit::WindowMeter;
use super::source::{ChunkReader, ChunkSource, Opened, SkippedRecords};
use super::stats::Counters;
use crate::chunk::Chunk;
use crate::error::Error;
use crate::order::{Cursor, Cutter, PassOrder, WindowExtent};
use crate::pack::RowRef;
use crate::sequences::{SequenceColumns, Sequences};

/// The next item of a lane.
pub(crate) enum Piece {
    /// A window of rows.
    Window(Window),
    /// The end of the lane in this pass, with the records skipped since the last window.
    End(SkippedRecords),
}

/// A window.
pub(crate) struct Window {
    pub(crate) extent: WindowExtent,
    /// The chunks that contain its rows. The previous or the next window may share one.
    pub(crate) chunks: Vec<Arc<Chunk>>,
    pub(crate) rows: WindowRows,
    /// The error of the last skipped record, if any.
    pub(crate) last_skipped: Option<Error>,
}

/// The rows of a window, in drawing order.
pub(crate) enum WindowRows {
    /// Those of its chunks.
    OfChunks(Vec<RowRef>),
    /// Sequences, of the documents of its chunks.
    Packed(Sequences),
}

/// The maximum number of rows for which a window reserves memory in advance.
const MOST_RESERVED: u32 = 1 << 16;

/// Reads one lane of one pass.
pub(crate) struct LaneReader<'a> {
    source: &'a dyn ChunkSource,
    order: &'a PassOrder,
    lane: u32,
    chunk_rows: usize,
    counters: &'a Arc<Counters>,
    permit: &'a Permit,
    /// Whether to find the first positive label of each window.
    seeks_positive: bool,
    /// The most bytes of the chunks of a window, if rows vary in size.
    most_bytes: Option<u64>,
    /// Set if rows are documents to pack.
    sequences: Option<&'a SequenceColumns>,
    cutter: Cutter<'a>,
    current: Option<Box<dyn ChunkReader>>,
    /// The lane's next splits, opened early so that fetching starts.
    ahead: VecDeque<Result<Opened, Error>>,
    /// The current chunk, and its next row.
    chunk: Option<(Arc<Chunk>, u32)>,
}

impl<'a> LaneReader<'a> {
    /// Reads `lane` of `order` starting at `from`, in chunks of at most `chunk_rows` rows.
    pub(crate) fn new(
        source: &'a dyn ChunkSource,
        order: &'a PassOrder,
        lane: u32,
        from: Cursor,
        chunk_rows: usize,
        counters: &'a Arc<Counters>,
        permit: &'a Permit,
    ) -> Self {
        let cutter = Cutter::new(order, lane, from);
        Self {
            source,
            order,
            lane,
            chunk_rows,
            counters,
            permit,
            seeks_positive: false,
            most_bytes: None,
            sequences: None,
            cutter,
            current: None,
            ahead: VecDeque::new(),
            chunk: None,
        }
    }

    /// Sets whether windows report their first positive label.
    pub(crate) fn seeking_positive(self, seeks_positive: bool) -> Self {
        Self { seeks_positive, ..self }
    }

    /// Limits the bytes of the chunks of a window.
    pub(crate) fn limiting(self, most_bytes: Option<u64>) -> Self {
        Self { most_bytes, ..self }
    }

    /// Packs the rows of each window, which are documents, into sequences.
    pub(crate) fn packing(self, sequences: Option<&'a SequenceColumns>) -> Self {
        Self { sequences, ..self }
    }

    /// The number of the next piece: windows are numbered from the cursor's window on, and the end takes the next
    /// number.
    pub(crate) fn number(&self) -> u64 {
        self.cutter.window()
    }

    /// Returns the next window, or the end. `None` if `stopped`, which is checked between chunks, returns true.
    ///
    /// # Errors
    /// The rows of the next window cannot be read. The lane is unusable afterwards.
    pub(crate) fn next(&mut self, stopped: &dyn Fn() -> bool) -> Result<Option<Piece>, Error> {
        let number = self.cutter.window();
        self.permit.start_window();
        let (mut chunks, mut rows) =
            (Vec::new(), Vec::with_capacity(self.cutter.limit().min(MOST_RESERVED) as usize));
        let mut last_skipped = None;
        let mut meter = WindowMeter::new(self.most_bytes, self.sequences);
        let extent = loop {
            if self.cutter.is_full() || self.cutter.upcoming(0).is_none() {
                break self.cutter.finish();
            }
            if stopped() {
                return Ok(None);
            }
            if self.load_chunk()? {
                if self.cut_chunk(&mut chunks, &mut rows) {
                    chunks.last().map_or(Ok(()), |chunk| meter.add(chunk))?;
                }
            } else {
                let SkippedRecords { records, last } = self.end_split();
                last_skipped = last.or(last_skipped);
                if let Some(extent) = self.cutter.end_split(records)? {
                    break Some(extent);
                }
            }
        };
        let Some(mut extent) = extent else {
            self.permit.release();
            return Ok(Some(Piece::End(SkippedRecords {
                records: self.cutter.skipped_at_end(),
                last: last_skipped,
            })));
        };
        let start = self.counters.recorder.start();
        let id_of = |row: RowRef, feature: u32| chunks[row.chunk as usize].id(row.row, feature);
        self.counters.shuffle.time(|| self.order.permute(self.lane, number, &mut rows, id_of));
        let work = || Work { rows: rows.len() as u64, ..Work::default() };
        self.counters.recorder.add(start, Category::Ingest, "shuffle", work);
        if self.seeks_positive {
            let positive = |row: &RowRef| chunks[row.chunk as usize].labels[0][row.row as usize] > 0.0;
            extent.first_marked = rows.iter().position(positive).map(|place| place as u32);
        }
        let rows = match self.sequences {
            None => WindowRows::OfChunks(rows),
            Some(columns) => {
                let pack = || columns.of_window(self.order, (self.lane, number), &chunks, rows);
                let sequences = self.counters.shuffle.time(pack);
                extent.rows = sequences.len();
                WindowRows::Packed(sequences)
            }
        };
        self.permit.release();
        Ok(Some(Piece::Window(Window { extent, chunks, rows, last_skipped })))
    }

    /// Ensures that the current chunk has rows left; `false` at the end of the split.
    fn load_chunk(&mut self) -> Result<bool, Error> {
        if self.chunk.is_some() {
            return Ok(true);
        }
        let reader = match &mut self.current {
            Some(reader) => reader,
            None => {
                let Opened { reader, passed } = match self.ahead.pop_front() {
                    Some(opened) => opened?,
                    None => match self.cutter.upcoming(0) {
                        Some(split) => {
                            self.source.open(split, self.cutter.before(), self.permit, self.counters)?
                        }
                        None => return Ok(false),
                    },
                };
                self.cutter.pass(passed);
                let mut upcoming = (1..).map_while(|after| self.cutter.upcoming(after));
                let ahead = self.source.ahead(&mut upcoming);
                for split in (1..=ahead).map_while(|after| self.cutter.upcoming(after)).skip(self.ahead.len())
                {
                    self.ahead.push_back(self.source.open(split, 0, self.permit, self.counters));
                }
                self.current.insert(reader)
            }
        };
        self.permit.acquire();
        self.chunk = reader.next(self.chunk_rows)?.map(|chunk| (Arc::new(chunk), 0));
        if let Some((chunk, _)) = &self.chunk {
            self.counters.chunks.add(1);
            self.counters.rows_decoded.add(chunk.rows() as u64);
        }
        Ok(self.chunk.is_some())
    }

    fn end_split(&mut self) -> SkippedRecords {
        self.current.take().map_or_else(SkippedRecords::default, |mut reader| reader.left_out())
    }

    /// Moves rows of the current chunk into the window. Returns whether there are any.
    fn cut_chunk(&mut self, chunks: &mut Vec<Arc<Chunk>>, rows: &mut Vec<RowRef>) -> bool {
        let Some((chunk, next)) = &mut self.chunk else { return false };
        let available = chunk.rows() as u32 - *next;
        let taken = self.cutter.take(available);
        let first = *next + taken.before;
        if taken.kept > 0 {
            let place = chunks.len() as u32;
            rows.extend((first..first + taken.kept).map(|row| RowRef { chunk: place, row }));
            chunks.push(Arc::clone(chunk));
        }
        *next = first + taken.kept;
        if *next as usize == chunk.rows() {
            self.chunk = None;
        }
        taken.kept > 0
    }
}
