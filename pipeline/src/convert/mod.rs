//! CSV, Parquet and TFRecord into one another: `millstream convert`.
//!
//! Two passes over what does not describe itself: the first surveys CSV and TFRecord for columns, types
//! and the number of rows, several files at a time; the second converts. So each shard's rows are known before
//! it is begun, and rows keep their order.
//!
//! The second pass is cut into *runs* of consecutive shards, one for each thread, as far as there are shards
//! and inputs to share out; each run reads its own rows, from where they start, and writes its own files. A
//! run that has several threads reads on one of them at a time and encodes on all ([`crate::output`]). What
//! is written is the same for any number of threads.

mod input;
mod schema;
#[cfg(test)]
mod tests;
mod weight;

use std::ops::Range;
use std::sync::Arc;

use arrow_schema::Schema;
use tokio::runtime::Handle;

use crate::error::Error;
use crate::format::FileFormat;
use crate::format::csv::CsvOptions;
use crate::output::{self, Destination, OutputOptions, Run, Staged, Target};
use crate::parallel::{Bounds, Weighed, in_order};
use crate::progress::Progress;
use crate::storage::Object;
use crate::survey::file_format;
use input::{Inputs, Source};
use schema::{Described, Plan};

/// How to convert.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// How CSV input is laid out.
    pub csv: CsvOptions,
    /// The format of the input, where neither bytes nor names say it.
    pub input_format: Option<FileFormat>,
    /// How to write the output.
    pub output: OutputOptions,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The files made.
    pub files: Vec<String>,
    /// Rows in all of them.
    pub rows: u64,
    /// Bytes in all of them.
    pub bytes: u64,
}

/// Converts `inputs`, in their order, to `output`: a file, a name with a `*` or `@N` where the shards' numbers
/// go, or a directory; `destination` reaches it, and its runtime fetches. Blocks; not to be called in async code.
///
/// # Errors
/// For input that is damaged or does not fit together, and when it cannot be read or written; then nothing
/// is left of the output.
pub fn convert(
    inputs: &[Object],
    output: &str,
    options: &ConvertOptions,
    destination: &Destination,
    progress: &Progress,
) -> Result<Converted, Error> {
    let runtime = &destination.runtime;
    let target = output::plan(output, inputs, &options.output, destination)?;
    let (plan, sources) = survey(inputs, options, runtime, progress)?;
    let schema = plan.schema();
    target.refuse_unfit(&schema, inputs)?;
    progress.expect_bytes(inputs.iter().map(Object::size).sum());
    let rows = sources.iter().map(|source| source.rows).sum();
    let conversion = Conversion {
        target: &target,
        inputs: Inputs { sources: &sources, schema: &schema, csv: &options.csv, runtime, progress },
        rows,
    };
    let staged = conversion.run(&options.output)?;
    let files = staged.iter().map(|file| file.address().to_owned()).collect();
    let bytes = staged.iter().map(Staged::bytes).sum();
    staged.into_iter().try_for_each(Staged::commit)?;
    Ok(Converted { files, rows, bytes })
}

/// The first pass: what is in each file, side by side.
fn survey<'a>(
    inputs: &'a [Object],
    options: &ConvertOptions,
    runtime: &Handle,
    progress: &Progress,
) -> Result<(Plan, Vec<Source<'a>>), Error> {
    let mut plan = Plan::default();
    let mut sources = Vec::with_capacity(inputs.len());
    let mut objects = inputs.iter();
    in_order(
        Bounds { threads: options.output.threads, bytes: usize::MAX },
        || Ok(objects.next().map(|item| Weighed { item, bytes: 0 })),
        |object| {
            let format = options.input_format.map_or_else(|| file_format(object, runtime), Ok)?;
            let described = Described::of(object, format, &options.csv, runtime, progress)?;
            Ok((object, format, described))
        },
        |(object, format, described)| {
            sources.push(Source { object, format, rows: described.rows, parts: described.parts });
            plan.add(object, format, described)
        },
    )?;
    Ok((plan, sources))
}

/// The second pass.
struct Conversion<'a> {
    target: &'a Target,
    inputs: Inputs<'a>,
    rows: u64,
}

impl Conversion<'_> {
    /// Writes all shards, in as many runs as there are threads, shards and parts of the input.
    fn run(&self, options: &OutputOptions) -> Result<Vec<Staged>, Error> {
        let parts: usize = self.inputs.sources.iter().map(|source| source.parts).sum();
        let runs = options.threads.min(self.target.shards()).min(parts).max(1);
        let bounds = Bounds { threads: options.threads / runs, bytes: options.memory_bytes / runs };
        let shards_of =
            |run: usize| self.target.shards() * run / runs..self.target.shards() * (run + 1) / runs;
        let results: Vec<Result<Vec<Staged>, Error>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..runs).map(|run| scope.spawn(move || self.shards(shards_of(run), bounds))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(Error::Panicked("a thread of a conversion".to_owned())))
            };
            threads.into_iter().map(join).collect()
        });
        // The reason, rather than what the other runs say after it called them off.
        let (whole, broken): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        let mut errors: Vec<Error> = broken.into_iter().filter_map(Result::err).collect();
        let reason = errors.iter().position(|error| !matches!(error, Error::Cancelled)).unwrap_or(0);
        if !errors.is_empty() {
            return Err(errors.swap_remove(reason));
        }
        Ok(whole.into_iter().flatten().flatten().collect())
    }

    /// One run.
    fn shards(&self, shards: Range<usize>, bounds: Bounds) -> Result<Vec<Staged>, Error> {
        let schema: &Arc<Schema> = self.inputs.schema;
        let run = Run { target: self.target, schema, rows: self.rows, shards: shards.clone(), bounds };
        let mut rows = self.inputs.rows_from(self.target.first_row(shards.start, self.rows))?;
        let most_bytes = self.target.block().1;
        let staged =
            run.write(|most_rows| rows.block(most_rows, most_bytes), |block| block.into_iter().map(Ok));
        if staged.is_err() {
            self.inputs.progress.cancel();
        }
        staged
    }
}
