//! `millstream logs`: prints a job's log.

use std::io::Write;

use millstream_control::proto::LogsRequest;
use serde_json::json;

use crate::arguments::Logs;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::printable::printable;

pub(crate) async fn run(arguments: Logs, context: &Context) -> Result<(), Failure> {
    let mut client = to_daemon(context).await?;
    let Logs { job, follow, lines, since } = arguments;
    let request = LogsRequest { id: job.id, follow, last: lines.unwrap_or(0), since_ms: since.unwrap_or(0) };
    let mut lines = client.logs(request).await?;
    if context.json {
        // One document needs all lines first; a job's log is bounded.
        let mut all = Vec::new();
        while let Some(line) = lines.next().await? {
            all.push(line);
        }
        return context.document(&json!({ "lines": all }));
    }
    while let Some(line) = lines.next().await? {
        let mut out = context.out();
        writeln!(out, "{} {:5} {}", figures::moment(line.at_ms), line.level, printable(&line.text))?;
        out.flush()?;
    }
    Ok(())
}
