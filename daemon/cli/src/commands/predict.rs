//! `millstream predict`: scores, row by row, in the order of the data.

use std::io::Write;

use serde_json::json;

use crate::arguments::{Predict, ScoreFormat};
use crate::connection::Connection;
use crate::context::Context;
use crate::failure::Failure;
use crate::interrupt::unless_interrupted;
use crate::unfinished::Unfinished;

pub(crate) async fn run(arguments: Predict, context: &Context) -> Result<(), Failure> {
    if context.json && arguments.output.is_none() {
        let message = "--json prints one document, and scores are many: give --output, or --format jsonl";
        return Err(Failure::Usage(message.to_owned()));
    }
    let request = super::eval::request(arguments.scored)?;
    let rows = unless_interrupted(async {
        let mut connection = Connection::or_host(context).await?;
        let result = match &arguments.output {
            Some(path) => {
                let mut file = Unfinished::create(path)?;
                let rows = score(&mut connection, request, arguments.format, &mut file.writer).await;
                rows.and_then(|rows| file.keep().map(|()| rows))
            }
            None => score(&mut connection, request, arguments.format, &mut context.out()).await,
        };
        connection.close().await;
        result
    })
    .await?;
    match &arguments.output {
        Some(path) if context.json => context.document(&json!({ "output": path, "rows": rows })),
        _ => Ok(()),
    }
}

/// Writes all scores, and tells how many.
async fn score(
    connection: &mut Connection,
    request: millstream_control::proto::ScoreRequest,
    format: ScoreFormat,
    out: &mut impl Write,
) -> Result<u64, Failure> {
    let mut replies = connection.client.predict(request).await?;
    if format == ScoreFormat::Csv {
        writeln!(out, "score")?;
    }
    let mut rows = 0;
    while let Some(reply) = replies.next().await? {
        rows += reply.scores.len() as u64;
        for score in reply.scores {
            match format {
                ScoreFormat::Csv => writeln!(out, "{score}")?,
                ScoreFormat::Jsonl => writeln!(out, "{{\"score\": {score}}}")?,
            }
        }
    }
    out.flush()?;
    Ok(rows)
}
