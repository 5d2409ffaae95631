//! Writes a profile in Chrome's trace event format, which Perfetto also reads.
//!
//! Google, "Trace Event Format", 2016. Threads have complete events (`X`), which nest. Fetches overlap, so they are
//! pairs of asynchronous events (`b`, `e`). Metadata (`M`) names processes and threads. Times are microseconds since
//! the first span.

use std::collections::BTreeSet;
use std::io::{self, Write};

use millstream_control::proto::{Span, Track};
use millstream_trace::Category;
use serde_json::{Map, Value, json};

use super::{Recorded, length};

/// Writes all spans of `recorded`, which must be sorted.
pub(crate) fn write(recorded: &Recorded, out: &mut impl Write) -> io::Result<()> {
    let profile = &recorded.profile;
    let starts = recorded.tracks.iter().filter_map(|track| Some(track.spans.first()?.start_ns));
    let first = starts.chain([profile.began_ns]).min().unwrap_or_default();
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
    serde_json::to_writer(
        &mut *out,
        &json!({
            "job": profile.id,
            "rank": profile.rank,
            "workers": profile.ranks,
            "after_step": profile.after_step,
            "steps": profile.steps,
            "examples": profile.examples,
            "precision": profile.precision,
            "bytes_per_second": profile.bytes_per_second,
            "flops_per_second": profile.flops_per_second,
        }),
    )?;
    out.write_all(b",\"traceEvents\":[")?;
    let mut separator: &[u8] = b"\n";
    let mut put = |event: Value| -> io::Result<()> {
        out.write_all(separator)?;
        separator = b",\n";
        Ok(serde_json::to_writer(&mut *out, &event)?)
    };
    let processes: BTreeSet<_> = recorded.tracks.iter().map(|track| (track.pid, &track.process)).collect();
    for (pid, name) in processes {
        put(json!({ "ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": { "name": name } }))?;
    }
    for track in &recorded.tracks {
        let Track { pid, name, number, .. } = track;
        put(
            json!({ "ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": { "name": name } }),
        )?;
        for (place, span) in track.spans.iter().enumerate() {
            let start = microseconds(span.start_ns - first);
            let mut event = json!({
                "ph": "X", "name": span.name, "cat": span.category, "pid": pid, "tid": number, "ts": start,
                "dur": microseconds(length(span)), "args": details(span),
            });
            if span.category == Category::Fetch.name() {
                let id = format!("{number}.{place}");
                event = json!({
                    "ph": "b", "name": span.name, "cat": span.category, "pid": pid, "tid": number, "id": id,
                    "ts": start, "args": details(span),
                });
                let end = microseconds(span.end_ns - first);
                put(event)?;
                event = json!({
                    "ph": "e", "name": span.name, "cat": span.category, "pid": pid, "tid": number, "id": id, "ts": end,
                });
            }
            put(event)?;
        }
    }
    out.write_all(b"\n]}\n")
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// The attributes of a span other than its time.
fn details(span: &Span) -> Map<String, Value> {
    let numbers = [("rows", span.rows), ("bytes", span.bytes), ("flops", span.flops)];
    let known = numbers.into_iter().filter(|&(_, number)| number > 0);
    let mut details: Map<_, _> = known.map(|(name, number)| (name.to_owned(), number.into())).collect();
    if !span.phase.is_empty() {
        details.insert("phase".to_owned(), span.phase.clone().into());
    }
    if span.outputs > 0 {
        details.insert("shape".to_owned(), format!("{} x {}", span.inputs, span.outputs).into());
    }
    details
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_control::proto::Profile;

    use super::*;

    #[test]
    fn trace_is_json_with_every_span() {
        let span = |category: Category, name: &str, start_ns, end_ns| Span {
            name: name.into(),
            category: category.name().into(),
            start_ns,
            end_ns,
            ..Span::default()
        };
        let layer = Span {
            rows: 7,
            inputs: 3,
            outputs: 2,
            phase: "forward".into(),
            ..span(Category::Operation, "layer_forward", 2_500, 3_000)
        };
        let mut recorded = Recorded::new(Profile {
            id: "a\"b".into(),
            rank: 1,
            ranks: 2,
            began_ns: 2_000,
            ended_ns: 9_000,
            ..Profile::default()
        });
        let track = |process: &str, pid, name: &str, spans| Track {
            process: process.into(),
            pid,
            name: name.into(),
            number: 1,
            spans,
        };
        recorded.add(track("worker", 5, "main", vec![layer]));
        recorded.add(track("worker", 5, "main", vec![span(Category::Step, "step", 2_500, 8_000)]));
        recorded.add(track("ingest", 4, "storage", vec![span(Category::Fetch, "fetch", 1_000, 4_000)]));
        recorded.sort();
        let mut bytes = Vec::new();
        write(&recorded, &mut bytes).unwrap();
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        let of_job = &document["otherData"];
        assert_eq!(
            (&of_job["job"], &of_job["rank"], &of_job["workers"]),
            (&json!("a\"b"), &json!(1), &json!(2))
        );
        let wanted = json!([
            { "ph": "M", "name": "process_name", "pid": 4, "tid": 0, "args": { "name": "ingest" } },
            { "ph": "M", "name": "process_name", "pid": 5, "tid": 0, "args": { "name": "worker" } },
            { "ph": "M", "name": "thread_name", "pid": 5, "tid": 1, "args": { "name": "main" } },
            { "ph": "X", "name": "step", "cat": "step", "pid": 5, "tid": 1, "ts": 1.5, "dur": 5.5, "args": {} },
            {
                "ph": "X", "name": "layer_forward", "cat": "operation", "pid": 5, "tid": 1, "ts": 1.5, "dur": 0.5,
                "args": { "rows": 7, "phase": "forward", "shape": "3 x 2" },
            },
            { "ph": "M", "name": "thread_name", "pid": 4, "tid": 1, "args": { "name": "storage" } },
            { "ph": "b", "name": "fetch", "cat": "fetch", "pid": 4, "tid": 1, "id": "1.0", "ts": 0.0, "args": {} },
            { "ph": "e", "name": "fetch", "cat": "fetch", "pid": 4, "tid": 1, "id": "1.0", "ts": 3.0 },
        ]);
        assert_eq!(document["traceEvents"], wanted);
    }
}
