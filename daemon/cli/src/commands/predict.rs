//! `millstream predict`: writes the score of each row in the order of the data.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context as _;
use millstream_control::proto::{ScoreRequest, Scores};
use millstream_format::compression::Compression;
use millstream_format::rows;
use millstream_tools::output::{CellKind, Cells, PassedColumn, TableFormat, TableWriter};
use serde_json::json;

use crate::arguments::{Predict, ScoreFormat};
use crate::connection::Connection;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::unfinished::Unfinished;

/// The column of the predicted class.
const CLASS: &str = "class";

pub(crate) async fn run(arguments: Predict, context: &Context) -> Result<(), Failure> {
    let Predict { scored, output, keep, format } = arguments;
    let name = output.as_deref().and_then(Path::to_str);
    let format = format_of(format.map(Into::into), name)?;
    let compression = name.and_then(Compression::from_name).unwrap_or(Compression::None);
    check_output(output.as_deref(), format, compression, context)?;
    let place = scored.place;
    let mut request = super::eval::request(scored)?;
    request.keep = keep;
    let predict = async |connection: &mut Connection, request| match &output {
        Some(path) => write(connection, request, path, format, compression).await,
        None => {
            let mut out = BufWriter::new(io::stdout());
            let written = score(connection, request, format, compression, &mut out).await?;
            Ok(out.flush().map(|()| written)?)
        }
    };
    let written = super::eval::with_connection((request, output.as_deref()), place, context, predict).await?;
    let Written { rows, skipped_rows } = written;
    if skipped_rows > 0 {
        context.screen.warning(&format!("skipped {}", figures::counted(skipped_rows, "bad row")));
    }
    match &output {
        Some(path) if context.json => {
            context.document(&json!({ "output": path, "rows": rows, "skipped_rows": skipped_rows }))
        }
        _ => Ok(()),
    }
}

/// The given format, or that of the output's name; CSV without an output.
fn format_of(given: Option<TableFormat>, output: Option<&str>) -> Result<TableFormat, Failure> {
    match (given, output) {
        (Some(format), _) => Ok(format),
        (None, None) => Ok(TableFormat::Csv),
        (None, Some(name)) => TableFormat::by_name(name).ok_or_else(|| {
            let known = ".csv, .jsonl, .ndjson, .json or .parquet; or specify --format";
            Failure::Usage(format!("{name}: the name does not determine the format: expected {known}"))
        }),
    }
}

/// Checks that the format can be written to the output.
fn check_output(
    output: Option<&Path>,
    format: TableFormat,
    compression: Compression,
    context: &Context,
) -> Result<(), Failure> {
    let message = match output {
        None if context.json => {
            "--json prints a single document: set --output, or use --format jsonl instead"
        }
        None if format == TableFormat::Parquet => {
            "Parquet cannot be written to standard output: set --output"
        }
        Some(_) if format == TableFormat::Parquet && compression != Compression::None => {
            "Parquet is compressed internally, with Snappy: remove the last extension of --output"
        }
        _ => return Ok(()),
    };
    Err(Failure::Usage(message.to_owned()))
}

/// Numbers of rows.
struct Written {
    rows: u64,
    skipped_rows: u64,
}

/// Writes all scores to `path`, which appears only when complete.
async fn write(
    connection: &mut Connection,
    request: ScoreRequest,
    path: &Path,
    format: TableFormat,
    compression: Compression,
) -> Result<Written, Failure> {
    let mut file = Unfinished::create(path)?;
    let written = score(connection, request, format, compression, &mut file.writer).await;
    let written = written.and_then(|written| file.keep().map(|()| written));
    written.map_err(|failure| match failure {
        Failure::Failed(error) if error.is::<io::Error>() => {
            Failure::Failed(error.context(format!("writing {}", path.display())))
        }
        other => other,
    })
}

/// Writes the kept columns and all scores to `out`.
async fn score(
    connection: &mut Connection,
    request: ScoreRequest,
    format: TableFormat,
    compression: Compression,
    out: &mut (impl Write + Send),
) -> Result<Written, Failure> {
    let is_keeping = !request.keep.is_empty();
    let mut replies = connection.client.predict(request).await?;
    // The first reply has the labels and classes. The second has the names of the kept columns; it arrives once the
    // data is open, so that nothing is written if that fails.
    let Scores { labels, classes, .. } = replies.next().await?.unwrap_or_default();
    let kept = replies.next().await?.unwrap_or_default().columns;
    let names = columns(if classes.is_empty() { &labels } else { &classes });
    let mut columns: Vec<_> = kept.iter().map(|name| (name.as_str(), CellKind::Passed)).collect();
    columns.extend(names.iter().map(|name| (name.as_str(), CellKind::Numbers)));
    columns.extend((!classes.is_empty()).then_some((CLASS, CellKind::Texts)));
    check_names(&kept, &columns[kept.len()..])?;
    let mut table = TableWriter::new(out, format, compression, &columns)?;
    let mut written = Written { rows: 0, skipped_rows: 0 };
    while let Some(reply) = replies.next().await? {
        written.skipped_rows += reply.skipped_rows;
        let of_name = reply.scores.len() / names.len();
        written.rows += of_name as u64;
        if of_name == 0 {
            continue;
        }
        let scores: Vec<&[f32]> = reply.scores.chunks(of_name).collect();
        let predicted = predicted(&scores, &classes);
        let passed = if is_keeping { passed(&reply.rows)? } else { Vec::new() };
        let mut cells: Vec<_> = passed.iter().map(Cells::Passed).collect();
        cells.extend(scores.into_iter().map(Cells::Numbers));
        cells.extend((!classes.is_empty()).then_some(Cells::Texts(&predicted)));
        table.write(&cells)?;
    }
    table.finish()?;
    Ok(written)
}

/// Checks that no kept column has the name of a column of scores.
fn check_names(kept: &[String], scores: &[(&str, CellKind)]) -> Result<(), Failure> {
    match kept.iter().find(|name| scores.iter().any(|(score, _)| score == name)) {
        None => Ok(()),
        Some(name) => Err(Failure::Usage(format!(
            "--keep: the column `{name}` of the data has the name of a column of scores; keep other columns"
        ))),
    }
}

/// The kept columns of a reply.
fn passed(rows: &[u8]) -> Result<Vec<PassedColumn>, Failure> {
    let rows = rows::decode(rows).context("the daemon sent damaged rows")?;
    let schema = rows.schema();
    let columns = schema.fields().iter().zip(rows.columns());
    Ok(columns.map(|(field, array)| PassedColumn::of(field, array)).collect())
}

/// The most probable class of each row, the first of equals. Empty without classes.
fn predicted<'a>(scores: &[&[f32]], classes: &'a [String]) -> Vec<&'a str> {
    let rows = scores.first().filter(|_| !classes.is_empty()).map_or(0, |scores| scores.len());
    let best = |row: usize| {
        let first = (0, f32::NEG_INFINITY);
        let best = scores.iter().enumerate().fold(first, |best, (class, scores)| {
            if scores[row] > best.1 { (class, scores[row]) } else { best }
        });
        classes[best.0].as_str()
    };
    (0..rows).map(best).collect()
}

/// The score columns: `score`, or `score_NAME` for each label or class.
fn columns(names: &[String]) -> Vec<String> {
    match names {
        [] => vec!["score".to_owned()],
        names => names.iter().map(|name| format!("score_{name}")).collect(),
    }
}

impl From<ScoreFormat> for TableFormat {
    fn from(format: ScoreFormat) -> Self {
        match format {
            ScoreFormat::Csv => Self::Csv,
            ScoreFormat::Jsonl => Self::JsonLines,
            ScoreFormat::Parquet => Self::Parquet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_extension_is_an_error_and_not_csv() {
        assert!(
            matches!(format_of(None, Some("a/scores.foo")), Err(Failure::Usage(why)) if why.contains(".jsonl"))
        );
        assert!(matches!(format_of(None, Some("scores.json.gz")), Ok(TableFormat::JsonLines)));
        assert!(matches!(format_of(Some(TableFormat::Csv), Some("scores.foo")), Ok(TableFormat::Csv)));
        assert!(matches!(format_of(None, None), Ok(TableFormat::Csv)));
    }
}
