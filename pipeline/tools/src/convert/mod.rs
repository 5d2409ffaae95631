//! Converts files: `millstream convert`.
//!
//! Files other than Parquet do not describe all their rows, so they are read twice. The first pass surveys columns,
//! types and row counts, several files at a time; the second converts. The number of rows in each shard is
//! therefore known before it is started, and rows keep their order. Both passes skip the same bad lines.
//!
//! The second pass is divided into *runs* of consecutive shards, one per thread if there are enough shards and inputs.
//! Each run seeks to its first row, reads its own rows and writes its own files. A run with several threads reads on
//! one of them at a time and encodes on all ([`crate::output`]). The output does not depend on the number of threads.

mod indexes;
mod input;
mod schema;
#[cfg(test)]
mod tests;
mod weight;

use std::ops::Range;
use std::sync::Arc;

use arrow_schema::Schema;
use millstream_format::FileFormat;
use millstream_format::csv::CsvOptions;
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use millstream_pipeline::parallel::{Bounds, Weighed, in_order};
use tokio::runtime::Handle;

use crate::detect::{Detected, detect};
use crate::images::ImageFolder;
use crate::output::{self, Destination, OutputOptions, Run, Staged, Target, WrittenShard};
use crate::progress::Progress;
use crate::text::{Skipped, TextRules};

use indexes::without_indexes;
use input::{Inputs, Source};
use schema::{Described, Plan};

/// Options of a conversion.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// The layout of CSV input.
    pub csv: CsvOptions,
    /// The input format, for input whose content and name do not identify it.
    pub input_format: Option<FileFormat>,
    /// Types of columns, lists in texts, and bad lines.
    pub text: TextRules,
    /// The columns to write, in order; by default all.
    pub select: Option<Vec<String>>,
    /// Columns and their new names.
    pub rename: Vec<(String, String)>,
    /// Options of the output.
    pub output: OutputOptions,
}

/// The result of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The files written.
    pub files: Vec<String>,
    /// Total rows.
    pub rows: u64,
    /// Total bytes.
    pub bytes: u64,
    /// What was assumed about the input, such as the separator of fields.
    pub notes: Vec<String>,
    /// Input without rows, and skipped lines.
    pub warnings: Vec<String>,
}

/// Converts `inputs`, in order, to `output`: a file, a name with `*` or `@N` in place of shard numbers, or a
/// directory. `destination` provides access to the output, and its runtime fetches the input. Blocks, so it
/// must not be called from async code.
///
/// # Errors
/// The input is damaged or inconsistent, or cannot be read, or the output cannot be written. No output is
/// left behind.
pub fn convert(
    inputs: &[Object],
    output: &str,
    options: &ConvertOptions,
    destination: &Destination,
    progress: &Progress,
) -> Result<Converted, Error> {
    let runtime = &destination.runtime;
    let (data, skipped) = without_indexes(inputs, options.input_format);
    let inputs = &data[..];
    let target = output::plan(output, inputs, &options.output, destination)?;
    target.check_index()?;
    let folder = ImageFolder::of(inputs, options.input_format)?;
    let Surveyed { plan, sources, mut notes, warnings } = match &folder {
        Some(folder) => survey_images(inputs, folder, options)?,
        None => survey(inputs, options, runtime, progress)?,
    };
    let (schema, columns) = plan.output(options, target.format())?;
    let all_samples = sources.iter().all(|source| source.format == FileFormat::WebDataset);
    target.check_schema(&schema, inputs, |column| {
        all_samples && columns[column].source == *schema.field(column).name()
    })?;
    notes.extend(target.note(&schema));
    notes.extend(skipped);
    progress.expect_bytes(inputs.iter().map(Object::size).sum());
    let rows = sources.iter().map(|source| source.rows).sum();
    let inputs = Inputs {
        sources: &sources,
        folder: folder.as_ref(),
        schema: &schema,
        columns: &columns,
        rules: &options.text,
        runtime,
        progress,
    };
    let written = Conversion { target: &target, inputs, rows }.run(&options.output)?;
    let staged = target.complete(&schema, written)?;
    let files = staged.iter().map(|file| file.address().to_owned()).collect();
    let bytes = staged.iter().map(Staged::bytes).sum();
    target.commit(staged)?;
    Ok(Converted { files, rows, bytes, notes, warnings })
}

/// The result of the first pass.
struct Surveyed<'a> {
    plan: Plan,
    sources: Vec<Source<'a>>,
    notes: Vec<String>,
    warnings: Vec<String>,
}

/// The first pass: surveys the files in parallel.
fn survey<'a>(
    inputs: &'a [Object],
    options: &ConvertOptions,
    runtime: &Handle,
    progress: &Progress,
) -> Result<Surveyed<'a>, Error> {
    let mut plan = Plan::default();
    let mut sources = Vec::with_capacity(inputs.len());
    let mut notes = Vec::new();
    let mut skipped = Skipped::default();
    let mut objects = inputs.iter();
    in_order(
        Bounds { threads: options.output.threads, bytes: usize::MAX },
        || Ok(objects.next().map(|item| Weighed { item, bytes: 0 })),
        |object| {
            let detected = detect(object, &options.csv, options.input_format, runtime)?;
            let described = Described::of(object, &detected, &options.text, runtime, progress)?;
            Ok((object, detected, described))
        },
        |(object, Detected { format, csv, note, .. }, described)| {
            // Files of one dataset have the same layout; one note suffices.
            notes.extend(note.filter(|_| notes.is_empty()));
            skipped.lines += described.skipped.lines;
            skipped.first = skipped.first.take().or(described.skipped.first.clone());
            sources.push(Source { object, format, csv, rows: described.rows, parts: described.parts });
            plan.add(object, format, described)
        },
    )?;
    let warnings = warnings(&sources, &skipped);
    Ok(Surveyed { plan, sources, notes, warnings })
}

/// Images need no first pass: all files have the same columns.
fn survey_images<'a>(
    inputs: &'a [Object],
    folder: &ImageFolder<'_>,
    options: &ConvertOptions,
) -> Result<Surveyed<'a>, Error> {
    let described = Described::of_images(folder, &options.text);
    let mut plan = Plan::default();
    let mut sources = Vec::new();
    if let Some(object) = inputs.first() {
        let Described { rows, parts, .. } = described;
        sources.push(Source { object, format: FileFormat::Images, csv: options.csv.clone(), rows, parts });
        plan.add(object, FileFormat::Images, described)?;
    }
    Ok(Surveyed { plan, sources, notes: vec![folder.note()], warnings: Vec::new() })
}

fn warnings(sources: &[Source<'_>], skipped: &Skipped) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(first) = &skipped.first {
        let (lines, were) = if skipped.lines == 1 { ("line", "was") } else { ("lines", "were") };
        warnings.push(format!("{} bad {lines} {were} skipped; the first: {first}", skipped.lines));
    }
    let mut empty = sources.iter().filter(|source| source.rows == 0).map(|source| source.object.path());
    if let Some(first) = empty.next() {
        match empty.count() {
            0 => warnings.push(format!("{first}: no rows")),
            more => warnings.push(format!("{first} and {more} more: no rows")),
        }
    }
    warnings
}

/// The second pass.
struct Conversion<'a> {
    target: &'a Target,
    inputs: Inputs<'a>,
    rows: u64,
}

impl Conversion<'_> {
    /// Writes all shards, in at most as many runs as there are threads, shards and parts of the input.
    fn run(&self, options: &OutputOptions) -> Result<Vec<WrittenShard>, Error> {
        let parts: usize = self.inputs.sources.iter().map(|source| source.parts).sum();
        let runs = options.threads.min(self.target.shards()).min(parts).max(1);
        let bounds = Bounds { threads: options.threads / runs, bytes: options.memory_bytes / runs };
        let shards_of =
            |run: usize| self.target.shards() * run / runs..self.target.shards() * (run + 1) / runs;
        let results: Vec<Result<Vec<WrittenShard>, Error>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..runs).map(|run| scope.spawn(move || self.shards(shards_of(run), bounds))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(Error::Panicked("a conversion thread".to_owned())))
            };
            threads.into_iter().map(join).collect()
        });
        // Report the original error, not the cancellation of the other runs.
        let (whole, broken): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        let mut errors: Vec<Error> = broken.into_iter().filter_map(Result::err).collect();
        let reason = errors.iter().position(|error| !matches!(error, Error::Cancelled)).unwrap_or(0);
        if !errors.is_empty() {
            return Err(errors.swap_remove(reason));
        }
        Ok(whole.into_iter().flatten().flatten().collect())
    }

    /// Writes the shards of one run.
    fn shards(&self, shards: Range<usize>, bounds: Bounds) -> Result<Vec<WrittenShard>, Error> {
        let schema: &Arc<Schema> = self.inputs.schema;
        let run = Run { target: self.target, schema, rows: self.rows, shards: shards.clone(), bounds };
        let mut rows = self.inputs.rows_from(self.target.first_row(shards.start, self.rows))?;
        let bounds = self.target.block(schema);
        let written =
            run.write(|most_rows| rows.block(most_rows, &bounds), |block| block.into_iter().map(Ok));
        if written.is_err() {
            self.inputs.progress.cancel();
        }
        written
    }
}
