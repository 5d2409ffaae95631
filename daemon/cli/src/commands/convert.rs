//! `millstream convert`: converts files to Parquet, TFRecord, WebDataset, MDS, JSON lines or CSV.

mod schema;

use millstream_format::FileFormat;
use millstream_format::csv::CsvOptions;
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use millstream_tools::convert::{self, ConvertOptions};
use millstream_tools::output::{OutputCompression, OutputFormat, OutputOptions};
use millstream_tools::text::TextRules;
use serde_json::json;

use crate::arguments::{
    ColumnChoice, Convert, Csv, DataCompression, DataFormat, Fields, InputFormat, Written,
};
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::files::{FileWork, Goal};

/// Default memory per thread for rows in flight: two full row groups.
const BYTES_PER_THREAD: usize = 256 << 20;

pub(crate) fn run(mut arguments: Convert, context: &Context) -> Result<(), Failure> {
    let (inputs, output) = match arguments.paths.as_slice() {
        [inputs @ .., output] if !inputs.is_empty() => (inputs, output),
        _ => return Err(Failure::Usage("expected an input and an output".to_owned())),
    };
    if let Some(path) = arguments.columns.schema.take() {
        schema::add(&path, &mut arguments.columns)?;
    }
    let ColumnChoice { select, rename, schema: _, kinds, separators, skip_bad_lines } = arguments.columns;
    let options = ConvertOptions {
        csv: arguments.csv.into(),
        input_format: arguments.input_format.map(Into::into),
        text: TextRules {
            kinds: kinds.into_iter().collect(),
            separators: separators.into_iter().collect(),
            skip_bad_lines,
        },
        select,
        rename,
        output: arguments.written.into(),
    };
    let work = FileWork::start(context, "converting")?;
    let objects = work.list(inputs)?;
    let goal = Goal { files: Some(objects.len() as u64), rows: None };
    let converted = work.run(goal, |destination, progress| {
        convert::convert(&objects, output, &options, destination, progress)
            .map_err(|error| with_remedy(error, &options, &objects))
    })?;
    converted.notes.iter().for_each(|note| context.screen.note(note));
    converted.warnings.iter().for_each(|warning| context.screen.warning(warning));
    let document = json!({
        "files": converted.files,
        "rows": converted.rows,
        "notes": converted.notes,
        "warnings": converted.warnings,
    });
    context.answer(&document, || {
        let noun = if converted.rows == 1 { "row" } else { "rows" };
        let rows = format!("wrote {} {noun} to", figures::count(converted.rows));
        match converted.files.as_slice() {
            [only] => format!("{rows} {only}"),
            files => format!("{rows}\n{}", files.join("\n")),
        }
    })
}

/// An error, with what skips the line if one of a text file cannot be read.
fn with_remedy(error: Error, options: &ConvertOptions, objects: &[Object]) -> Failure {
    let format = |object: &Object| options.input_format.or_else(|| FileFormat::from_name(object.path()));
    let is_text = |object: &Object| format(object).is_some_and(FileFormat::is_text);
    if error.is_bad_record() && !options.text.skip_bad_lines && objects.iter().all(is_text) {
        return Failure::Failed(anyhow::anyhow!("{error}; --skip-bad-lines skips and counts such lines"));
    }
    error.into()
}

impl From<Written> for OutputOptions {
    fn from(written: Written) -> Self {
        let threads = written.threads.count();
        Self {
            format: written.format.map(Into::into),
            compression: written.compression.map(Into::into),
            shards: written.shards,
            group_rows: written.group_rows,
            threads,
            memory_bytes: written.memory.unwrap_or(threads * BYTES_PER_THREAD),
        }
    }
}

impl From<Csv> for CsvOptions {
    fn from(csv: Csv) -> Self {
        let Csv { fields: Fields { delimiter, columns }, comment, strip_suffix, missing } = csv;
        Self { delimiter, columns, comment, strip_suffix, missing }
    }
}

impl From<InputFormat> for FileFormat {
    fn from(format: InputFormat) -> Self {
        match format {
            InputFormat::Csv => Self::Csv,
            InputFormat::Jsonl => Self::JsonLines,
            InputFormat::Parquet => Self::Parquet,
            InputFormat::Tfrecord => Self::TfRecord,
            InputFormat::Webdataset => Self::WebDataset,
            InputFormat::Mds => Self::Mds,
            InputFormat::Images => Self::Images,
        }
    }
}

impl From<DataFormat> for OutputFormat {
    fn from(format: DataFormat) -> Self {
        match format {
            DataFormat::Csv => Self::Csv,
            DataFormat::Jsonl => Self::JsonLines,
            DataFormat::Parquet => Self::Parquet,
            DataFormat::Tfrecord => Self::TfRecord,
            DataFormat::Webdataset => Self::WebDataset,
            DataFormat::Mds => Self::Mds,
        }
    }
}

impl From<DataCompression> for OutputCompression {
    fn from(compression: DataCompression) -> Self {
        match compression {
            DataCompression::None => Self::None,
            DataCompression::Gzip => Self::Gzip,
            DataCompression::Zlib => Self::Zlib,
            DataCompression::Zstd => Self::Zstd,
            DataCompression::Snappy => Self::Snappy,
        }
    }
}
