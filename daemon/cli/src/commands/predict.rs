//! `millstream predict`: writes the score of each row in the order of the data.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use millstream_control::proto::{ScoreRequest, Scores};
use millstream_format::compression::Compression;
use millstream_tools::output::{CellKind, Cells, TableFormat, TableWriter};
use serde_json::json;

use crate::arguments::{Predict, ScoreFormat};
use crate::connection::Connection;
use crate::context::Context;
use crate::failure::Failure;
use crate::interrupt::unless_interrupted;
use crate::unfinished::Unfinished;

/// The column of the predicted class.
const CLASS: &str = "class";

pub(crate) async fn run(arguments: Predict, context: &Context) -> Result<(), Failure> {
    let Predict { scored, output, format } = arguments;
    let name = output.as_deref().and_then(Path::to_str);
    let format = format_of(format.map(Into::into), name)?;
    let compression = name.and_then(Compression::from_name).unwrap_or(Compression::None);
    check_output(output.as_deref(), format, compression, context)?;
    let place = scored.place;
    let request = super::eval::request(scored)?;
    let rows = unless_interrupted(async {
        let mut connection = Connection::at(place, context).await?;
        let result = match &output {
            Some(path) => write(&mut connection, request, path, format, compression).await,
            None => {
                let mut out = BufWriter::new(io::stdout());
                let rows = score(&mut connection, request, format, compression, &mut out).await;
                rows.and_then(|rows| Ok(out.flush().map(|()| rows)?))
            }
        };
        connection.close().await;
        result
    })
    .await?;
    match &output {
        Some(path) if context.json => context.document(&json!({ "output": path, "rows": rows })),
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

/// Writes all scores to `path`, which appears only when complete. Returns the number of rows.
async fn write(
    connection: &mut Connection,
    request: ScoreRequest,
    path: &Path,
    format: TableFormat,
    compression: Compression,
) -> Result<u64, Failure> {
    let mut file = Unfinished::create(path)?;
    let rows = score(connection, request, format, compression, &mut file.writer).await;
    let written = rows.and_then(|rows| file.keep().map(|()| rows));
    written.map_err(|failure| match failure {
        Failure::Failed(error) if error.is::<io::Error>() => {
            Failure::Failed(error.context(format!("writing {}", path.display())))
        }
        other => other,
    })
}

/// Writes all scores to `out`. Returns the number of rows.
async fn score(
    connection: &mut Connection,
    request: ScoreRequest,
    format: TableFormat,
    compression: Compression,
    out: &mut (impl Write + Send),
) -> Result<u64, Failure> {
    let mut replies = connection.client.predict(request).await?;
    // The first reply has the labels and classes, but no scores.
    let Scores { labels, classes, .. } = replies.next().await?.unwrap_or_default();
    let names = columns(if classes.is_empty() { &labels } else { &classes });
    let mut columns: Vec<_> = names.iter().map(|name| (name.as_str(), CellKind::Numbers)).collect();
    columns.extend((!classes.is_empty()).then_some((CLASS, CellKind::Texts)));
    let mut table = TableWriter::new(out, format, compression, &columns)?;
    let mut rows = 0;
    while let Some(reply) = replies.next().await? {
        let of_name = reply.scores.len() / names.len();
        rows += of_name as u64;
        if of_name > 0 {
            let scores: Vec<&[f32]> = reply.scores.chunks(of_name).collect();
            let predicted = predicted(&scores, &classes);
            let mut cells: Vec<_> = scores.into_iter().map(Cells::Numbers).collect();
            cells.extend((!classes.is_empty()).then_some(Cells::Texts(&predicted)));
            table.write(&cells)?;
        }
    }
    table.finish()?;
    Ok(rows)
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
