//! `millstream logs`: prints a job's log.

use std::io::Write;

use serde_json::json;

use crate::arguments::Logs;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::printable::printable;

pub(crate) async fn run(arguments: Logs, context: &Context) -> Result<(), Failure> {
    let mut client = to_daemon(context).await?;
    let mut lines = client.logs(&arguments.job.id, arguments.follow).await?;
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
