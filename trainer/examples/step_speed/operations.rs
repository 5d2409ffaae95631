//! The time of each operation in recorded steps, compared with its minimum.

use std::collections::BTreeMap;

use millstream_backend::Floors;
use millstream_trace::{Category, Phase, Recording, Span};
use serde_json::{Value, json};

/// All calls of an operation in a phase; for layers, all calls with this number of inputs and outputs.
type Key<'a> = (&'a str, Option<Phase>, Option<[u32; 2]>);

#[derive(Default)]
struct Sum {
    calls: u64,
    seconds: f64,
    bytes: u64,
    flops: u64,
    least_seconds: f64,
}

/// A document for each operation, longest first.
pub(crate) fn documents(recording: &Recording, floors: &Floors) -> Vec<Value> {
    let mut sums = BTreeMap::<Key<'_>, Sum>::new();
    let spans = recording.tracks.iter().flat_map(|track| &track.spans);
    for span in spans.filter(|span| span.category == Category::Operation) {
        sums.entry((span.name.as_ref(), span.phase, span.shape)).or_default().add(span, floors);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(_, one), (_, other)| other.seconds.total_cmp(&one.seconds));
    sums.into_iter().map(|(key, sum)| document(key, &sum)).collect()
}

fn document((name, phase, shape): Key<'_>, sum: &Sum) -> Value {
    json!({
        "operation": name,
        "phase": phase.map(Phase::name),
        "inputs": shape.map(|[inputs, _]| inputs),
        "outputs": shape.map(|[_, outputs]| outputs),
        "calls": sum.calls,
        "seconds": sum.seconds,
        "bytes": sum.bytes,
        "flops": sum.flops,
        "least_seconds": sum.least_seconds,
    })
}

impl Sum {
    fn add(&mut self, span: &Span, floors: &Floors) {
        let (bytes, flops) = (span.work.bytes, span.work.flops);
        self.calls += 1;
        self.seconds += (span.end_ns - span.start_ns) as f64 / 1e9;
        self.bytes += bytes;
        self.flops += flops;
        self.least_seconds +=
            f64::max(bytes as f64 / floors.bytes_per_second, flops as f64 / floors.flops_per_second);
    }
}
