//! Reads one Parquet row group: its bytes are fetched ahead and decoded on the thread that asks for rows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use millstream_format::filter::Condition;
use millstream_format::parquet::{Plan, WantedRows};
use millstream_io::ReadContext;
use millstream_io::fetch::FetchedRanges;

use super::{Decoding, ParquetObject};
use crate::bad_records::BadRecords;
use crate::error::Error;

/// Reads one row group from start to end.
pub(crate) struct RowGroup {
    file: ParquetObject,
    group: usize,
    /// The filter. Some failing rows are skipped here; the caller filters the rest.
    conditions: Arc<[Condition]>,
    state: State,
    bad: BadRecords,
    /// The number of rows still to skip.
    skip: u64,
    /// Decoded rows that have not been returned yet.
    batch: Option<RecordBatch>,
    next_record: u64,
    fetched_bytes: u64,
    waited: Duration,
}

enum State {
    Fetching(FetchedRanges, Plan),
    Decoding(Box<Decoding>),
    Ended,
}

impl RowGroup {
    /// Starts fetching the columns of `plan` in row group `group`. Rows that fail `conditions` according to the page
    /// index may be skipped.
    pub(crate) fn start(
        file: &ParquetObject,
        group: usize,
        plan: Plan,
        conditions: &Arc<[Condition]>,
        bad: BadRecords,
        context: &ReadContext,
    ) -> Self {
        let index = file.file().index_ranges(group, &plan, conditions);
        let ranges = {
            let (file, plan, conditions) = (file.file().clone(), plan.clone(), Arc::clone(conditions));
            move |index| file.ranges_by_index(group, &plan, &conditions, index)
        };
        let fetching = FetchedRanges::start_after(file.object().clone(), index, ranges, context);
        Self {
            file: file.clone(),
            group,
            conditions: Arc::clone(conditions),
            state: State::Fetching(fetching, plan),
            bad,
            skip: 0,
            batch: None,
            next_record: file.file().groups()[group].first_row,
            fetched_bytes: 0,
            waited: Duration::ZERO,
        }
    }

    /// Skips the rows before `record` of the file.
    pub(crate) fn skip_to(&mut self, record: u64) {
        self.skip = record.saturating_sub(self.next_record);
        self.next_record += self.skip;
    }

    /// Bytes fetched from storage so far.
    pub(crate) fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes
    }

    /// Time spent waiting for bytes.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns the next rows, at most `max_rows`, and the record number of the first.
    pub(crate) fn next_chunk(&mut self, max_rows: usize) -> Result<Option<(RecordBatch, u64)>, Error> {
        let max_rows = max_rows.max(1);
        let batch = match self.batch.take() {
            Some(batch) => batch,
            None => match self.next_batch(max_rows) {
                Ok(Some((batch, first))) => {
                    self.next_record = self.file.file().groups()[self.group].first_row + first;
                    batch
                }
                Ok(None) => return Ok(None),
                // Damage does not show which rows are intact, so all remaining rows count as one bad record.
                Err(error) => {
                    self.state = State::Ended;
                    return self.bad.skip(error).map(|()| None);
                }
            },
        };
        let rows = batch.num_rows().min(max_rows);
        let first_record = self.next_record;
        self.next_record += rows as u64;
        if rows == batch.num_rows() {
            return Ok(Some((batch, first_record)));
        }
        self.batch = Some(batch.slice(rows, batch.num_rows() - rows));
        Ok(Some((batch.slice(0, rows), first_record)))
    }

    fn next_batch(&mut self, max_rows: usize) -> Result<Option<(RecordBatch, u64)>, Error> {
        loop {
            match std::mem::replace(&mut self.state, State::Ended) {
                State::Ended => return Ok(None),
                State::Fetching(fetching, plan) => {
                    let start = Instant::now();
                    let fetched = fetching.wait()?;
                    self.waited = start.elapsed();
                    self.fetched_bytes = fetched.iter().map(|(_, bytes)| bytes.len() as u64).sum();
                    let wanted = WantedRows { skip: self.skip, conditions: &self.conditions };
                    let reader = self.file.decode(self.group, plan, fetched, wanted)?;
                    self.state = State::Decoding(Box::new(reader));
                }
                State::Decoding(mut reader) => match reader.next_rows(max_rows)? {
                    None => return Ok(None),
                    Some(batch) => {
                        self.state = State::Decoding(reader);
                        if batch.0.num_rows() > 0 {
                            return Ok(Some(batch));
                        }
                    }
                },
            }
        }
    }
}
