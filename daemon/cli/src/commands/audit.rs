//! `millstream audit`: lists who changed what, and who tried.

use millstream_control::proto::{AuditRecord, AuditReply, AuditRequest};
use serde_json::json;

use crate::arguments::Audit;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::printable::printable;
use crate::screen::output_width;
use crate::table::Table;

/// Columns that a narrow terminal does without, the first one first.
const EXPENDABLE: [&str; 1] = ["PROGRAM"];

pub(crate) async fn run(arguments: Audit, context: &Context) -> Result<(), Failure> {
    let Audit { job, user, since, limit } = arguments;
    let mut client = to_daemon(context).await?;
    let mut request = AuditRequest {
        job: job.unwrap_or_default(),
        user: user.unwrap_or_default(),
        since_ms: since.unwrap_or(0),
        limit,
        before: 0,
    };
    // The daemon sends a part at a time, the newest one first.
    let mut parts = Vec::new();
    let omitted = loop {
        let AuditReply { records, omitted } = client.audit(request.clone()).await?;
        request.limit = request.limit.saturating_sub(u32::try_from(records.len()).unwrap_or(u32::MAX));
        request.before = records.first().map_or(0, |first| first.number);
        parts.push(records);
        if omitted == 0 || request.before == 0 || (limit > 0 && request.limit == 0) {
            break omitted;
        }
    };
    if omitted > 0 {
        let omitted = figures::count(omitted);
        context.screen.note(&format!("{omitted} older records are not shown; `-n 0` shows all"));
    }
    let records: Vec<AuditRecord> = parts.into_iter().rev().flatten().collect();
    context.answer(&json!({ "records": records, "omitted": omitted }), || table(&records, output_width()))
}

/// The records, for a terminal of this width.
fn table(records: &[AuditRecord], width: Option<usize>) -> String {
    let mut table = Table::with_titles(&["TIME", "USER", "PROGRAM", "CALL", "JOB", "OUTCOME"]);
    for record in records {
        let user = record.user.clone().unwrap_or_else(|| format!("uid {}", record.uid));
        let job = if record.job.is_empty() { "-" } else { &record.job };
        table.row([
            figures::moment(record.at_ms),
            printable(&user).into_owned(),
            program(record),
            record.call.clone(),
            printable(job).into_owned(),
            outcome(record),
        ]);
    }
    table.fitted(width, &EXPENDABLE).render()
}

/// The program that connected: `millstream (4711)`.
fn program(record: &AuditRecord) -> String {
    match (&record.program, record.pid) {
        (Some(program), Some(pid)) => format!("{} ({pid})", printable(program)),
        (None, Some(pid)) => format!("({pid})"),
        _ => "-".to_owned(),
    }
}

fn outcome(record: &AuditRecord) -> String {
    let mut text = record.outcome.clone();
    if !record.reason.is_empty() {
        text.push_str(": ");
        text.push_str(&printable(&record.reason));
    }
    if record.unrecorded > 0 {
        text.push_str(&format!(
            " (before it, {} refused or failed calls of this user were not recorded)",
            figures::count(record.unrecorded)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_a_table() {
        let done = AuditRecord {
            at_ms: 1_795_248_420_000,
            uid: 1001,
            user: Some("ann".into()),
            pid: Some(4711),
            program: Some("millstream".into()),
            call: "cancel".into(),
            job: "clicks-81d0".into(),
            outcome: "done".into(),
            ..AuditRecord::default()
        };
        let refused = AuditRecord {
            at_ms: 1_795_248_421_000,
            uid: 1002,
            call: "remove".into(),
            outcome: "refused".into(),
            reason: "not \u{1b}yours".into(),
            unrecorded: 1_200,
            ..AuditRecord::default()
        };
        let lines = |width| {
            let records = [done.clone(), refused.clone()];
            table(&records, width).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let found = lines(None);
        assert_eq!(
            found[0],
            "TIME                  USER      PROGRAM            CALL    JOB          OUTCOME"
        );
        assert_eq!(found[1], "2026-11-21 08:07:00Z  ann       millstream (4711)  cancel  clicks-81d0  done");
        assert!(
            found[2].contains("uid 1002  -                  remove  -            refused: not "),
            "{found:#?}"
        );
        assert!(found[2].contains("1,200") && !found[2].contains('\u{1b}'), "{found:#?}");
        assert!(!lines(Some(60))[0].contains("PROGRAM"));
    }
}
