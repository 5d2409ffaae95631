//! `millstream predict`: scores, row by row, in the order of the data.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use millstream_control::proto::ScoreRequest;
use millstream_daemon::pipeline::format::compression::Compression;
use millstream_daemon::pipeline::output::{TableFormat, TableWriter};
use serde_json::json;

use crate::arguments::{Predict, ScoreFormat};
use crate::connection::Connection;
use crate::context::Context;
use crate::failure::Failure;
use crate::interrupt::unless_interrupted;
use crate::unfinished::Unfinished;

pub(crate) async fn run(arguments: Predict, context: &Context) -> Result<(), Failure> {
    let Predict { scored, output, format } = arguments;
    let name = output.as_deref().and_then(Path::to_str);
    let format = format.map(Into::into).or_else(|| name.and_then(TableFormat::by_name));
    let format = format.unwrap_or(TableFormat::Csv);
    let compression = name.and_then(Compression::by_name).unwrap_or(Compression::None);
    refuse(output.as_deref(), format, compression, context)?;
    let request = super::eval::request(scored)?;
    let rows = unless_interrupted(async {
        let mut connection = Connection::or_host(context).await?;
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

/// Refuses what cannot be written where it is to go.
fn refuse(
    output: Option<&Path>,
    format: TableFormat,
    compression: Compression,
    context: &Context,
) -> Result<(), Failure> {
    let message = match output {
        None if context.json => {
            "--json prints one document, and scores are many: give --output, or --format jsonl"
        }
        None if format == TableFormat::Parquet => {
            "a Parquet file does not go to standard output: give --output"
        }
        Some(_) if format == TableFormat::Parquet && compression != Compression::None => {
            "a Parquet file is compressed inside, with Snappy: give a name without the last extension"
        }
        _ => return Ok(()),
    };
    Err(Failure::Usage(message.to_owned()))
}

/// Writes all scores into the file at `path`, which appears when it is whole, and tells how many.
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

/// Writes all scores, and tells how many.
async fn score(
    connection: &mut Connection,
    request: ScoreRequest,
    format: TableFormat,
    compression: Compression,
    out: &mut (impl Write + Send),
) -> Result<u64, Failure> {
    let mut replies = connection.client.predict(request).await?;
    // The first reply names the labels, and has no scores yet.
    let columns = columns(&replies.next().await?.unwrap_or_default().labels);
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = TableWriter::new(out, format, compression, &columns)?;
    let mut rows = 0;
    while let Some(reply) = replies.next().await? {
        let of_label = reply.scores.len() / columns.len();
        rows += of_label as u64;
        if of_label > 0 {
            table.write(&reply.scores.chunks(of_label).collect::<Vec<_>>())?;
        }
    }
    table.finish()?;
    Ok(rows)
}

/// The columns that are written: `score`, or of each of several labels `score_LABEL`.
fn columns(labels: &[String]) -> Vec<String> {
    match labels {
        [] => vec!["score".to_owned()],
        labels => labels.iter().map(|label| format!("score_{label}")).collect(),
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
