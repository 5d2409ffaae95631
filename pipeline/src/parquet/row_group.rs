//! Reads one Parquet row group: its bytes are fetched ahead and decoded on the thread that asks for rows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use millstream_batch::Count;
use millstream_format::filter::Condition;
use millstream_format::parquet::{Plan, WantedRows};
use millstream_io::ReadContext;
use millstream_io::fetch::FetchedRanges;
use millstream_io::limits::ReadLimits;

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
    limits: Arc<ReadLimits>,
    /// The number of leading rows to skip.
    skip: u64,
    /// The record number of its first row.
    first_record: u64,
    /// The number of rows before the next one to be returned.
    passed: u64,
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
        limits: &Arc<ReadLimits>,
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
            limits: Arc::clone(limits),
            skip: 0,
            first_record: file.file().groups()[group].first_row,
            passed: 0,
            fetched_bytes: 0,
            waited: Duration::ZERO,
        }
    }

    /// Skips the rows before `record` of the file.
    pub(crate) fn skip_to(&mut self, record: u64) {
        self.skip = record.saturating_sub(self.first_record);
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
        match self.next_rows(max_rows) {
            Ok(Some((rows, first))) => {
                self.passed = first + rows.num_rows() as u64;
                Ok(Some((rows, self.first_record + first)))
            }
            Ok(None) => Ok(None),
            // Damage does not show which rows are intact, so all remaining rows are lost.
            Err(error) if error.is_bad_record() && self.bad.skips() => {
                let rows = self.file.file().groups()[self.group].rows;
                let lost = rows.saturating_sub(self.passed.max(self.skip)).max(1);
                let note = format!("the rest of the row group is lost, {}", Count(lost, "row"));
                self.bad.skip_all(error.noting(&note), lost).map(|()| None)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends after an error.
    fn next_rows(&mut self, max_rows: usize) -> Result<Option<(RecordBatch, u64)>, Error> {
        let mut reader = match std::mem::replace(&mut self.state, State::Ended) {
            State::Ended => return Ok(None),
            State::Decoding(reader) => reader,
            State::Fetching(fetching, plan) => {
                let start = Instant::now();
                let fetched = fetching.wait()?;
                self.waited = start.elapsed();
                self.fetched_bytes = fetched.iter().map(|(_, bytes)| bytes.len() as u64).sum();
                let wanted = WantedRows { skip: self.skip, conditions: &self.conditions };
                Box::new(self.file.decode(self.group, plan, fetched, wanted, self.limits.decode_bytes())?)
            }
        };
        let rows = reader.next_rows(max_rows)?;
        if rows.is_some() {
            self.state = State::Decoding(reader);
        }
        Ok(rows)
    }
}
