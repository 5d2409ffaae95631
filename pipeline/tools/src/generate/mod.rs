//! Synthetic click logs with a known best AUC: `millstream generate`.
//!
//! For trials and benchmarks: any number of rows that resemble Criteo's log, labelled by a planted model (`clicks.rs`).
//! The model's exact score on its labels (`best.rs`) shows how close training comes to the optimum. A row depends only
//! on the seed and its number, so files do not depend on threads, and held-out data of the same model is simply a later
//! range of rows.

mod best;
mod clicks;
mod draw;
#[cfg(test)]
mod tests;
mod zipf;

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Field, Schema};
use millstream_format::RawChunk;
use millstream_pipeline::Error;
use millstream_pipeline::parallel::Bounds;
use parking_lot::Mutex;

use crate::output::{self, Block, Destination, OutputOptions, Run, Staged};
use crate::progress::Progress;

pub use best::BestScore;
use best::Tally;
use clicks::Clicks;

/// Rows per chunk: few enough that a chunk's columns stay in cache.
const CHUNK_ROWS: u64 = 2048;
/// The memory use per row until it is written: as columns, encoded, and compressed.
const ROW_BYTES: u64 = 5 << 8;

/// Generates click logs.
#[derive(Clone, Debug)]
pub struct Generator {
    /// The number of rows.
    pub rows: u64,
    /// The number of the first row. Held-out data are the rows after those of the training data.
    pub first_row: u64,
    /// The seed of the rows and of the planted model.
    pub seed: u64,
    /// The form of ids.
    pub ids: IdForm,
    /// The maximum number of distinct values of a categorical column; Criteo's largest has ten million.
    pub max_values: u32,
    /// A file, a name with `*` or `@N` in place of shard numbers, or a directory.
    pub output: String,
    /// Options of the output.
    pub options: OutputOptions,
}

/// The result of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The files written, in the order of their rows.
    pub files: Vec<String>,
    /// Total rows.
    pub rows: u64,
    /// Total bytes.
    pub bytes: u64,
    /// The planted model's own score on its labels.
    pub best: BestScore,
}

/// The form of the ids of categorical columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdForm {
    /// Eight hexadecimal digits, as in Criteo's log.
    #[default]
    Hex,
    /// 64-bit integers.
    Integer,
}

impl Default for Generator {
    fn default() -> Self {
        Self {
            rows: 1_000_000,
            first_row: 0,
            seed: 1,
            ids: IdForm::default(),
            max_values: 100_000,
            output: "clicks.tfrecord".to_owned(),
            options: OutputOptions::default(),
        }
    }
}

impl Generator {
    /// The names of the columns: the label `clicked`, counts `i1` to `i13`, categories `c1` to `c26`.
    pub fn columns() -> Vec<String> {
        clicks::names()
    }

    /// Writes the files. They appear under their names once all are complete; a failed or cancelled run leaves
    /// nothing behind. Blocks, so it must not be called from async code.
    ///
    /// # Errors
    /// `rows` or `max_values` is 0, a file cannot be written, or [`Error::Cancelled`] after `progress` is
    /// cancelled.
    pub fn run(&self, destination: &Destination, progress: &Progress) -> Result<Generated, Error> {
        if self.rows == 0 || self.max_values == 0 {
            return Err(Error::Invalid(
                "generation requires at least one row and one distinct value per column".into(),
            ));
        }
        let clicks = Clicks::new(self.seed, self.max_values, self.ids);
        let schema = schema(&clicks);
        let target = output::plan(&self.output, &[], &self.options, destination)?;
        target.check_index()?;
        let bounds = Bounds { threads: self.options.threads, bytes: self.options.memory_bytes };
        let run =
            Run { target: &target, schema: &schema, rows: self.rows, shards: 0..target.shards(), bounds };
        let maker = Maker {
            first_row: self.first_row,
            name: self.output.as_str().into(),
            clicks: &clicks,
            schema: &schema,
            tallies: Mutex::default(),
            progress,
        };
        let mut at = 0;
        let written = run.write(
            |most| {
                progress.check()?;
                let rows = at..at + most;
                at = rows.end;
                Ok(Some(Block { item: rows, rows: most, bytes: (most * ROW_BYTES) as usize }))
            },
            |rows| maker.chunks(rows),
        )?;
        let staged = target.complete(&schema, written)?;
        let files = staged.iter().map(|file| file.address().to_owned()).collect();
        let bytes = staged.iter().map(Staged::bytes).sum();
        let best = maker.tally().best();
        target.commit(staged)?;
        Ok(Generated { files, rows: self.rows, bytes, best })
    }
}

/// Generates chunks, on any thread.
struct Maker<'a> {
    first_row: u64,
    name: Arc<str>,
    clicks: &'a Clicks,
    schema: &'a Arc<Schema>,
    /// Tallies that no thread is using; at most one per thread.
    tallies: Mutex<Vec<Tally>>,
    progress: &'a Progress,
}

impl Maker<'_> {
    /// The rows in chunks.
    fn chunks(&self, rows: Range<u64>) -> impl Iterator<Item = Result<RawChunk, Error>> {
        let starts = (rows.start..rows.end).step_by(CHUNK_ROWS as usize);
        starts.map(move |start| self.chunk(start..rows.end.min(start + CHUNK_ROWS)))
    }

    fn chunk(&self, rows: Range<u64>) -> Result<RawChunk, Error> {
        self.progress.check()?;
        let count = rows.end - rows.start;
        let made = self.clicks.rows(self.first_row + rows.start, count as usize);
        let spare = self.tallies.lock().pop();
        let mut tally = spare.unwrap_or_else(Tally::new);
        for (&point, &clicked) in made.points.iter().zip(&made.clicked) {
            tally.add(point, clicked);
        }
        self.tallies.lock().push(tally);
        self.progress.add_rows(count);
        let batch = RecordBatch::try_new(self.schema.clone(), made.columns);
        let batch = batch.map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(RawChunk::new(self.name.clone(), batch, rows.start))
    }

    fn tally(&self) -> Tally {
        let mut all = Tally::new();
        self.tallies.lock().iter().for_each(|tally| all.merge(tally));
        all
    }
}

/// The schema of the rows that `clicks` generates.
fn schema(clicks: &Clicks) -> Arc<Schema> {
    let columns = clicks.rows(0, 1).columns;
    let fields = clicks::names().into_iter().zip(&columns);
    let fields: Vec<Field> =
        fields.map(|(name, column)| Field::new(name, column.data_type().clone(), true)).collect();
    Arc::new(Schema::new(fields))
}
