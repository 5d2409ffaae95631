//! Sums of a profile's spans by phase, operation, kernel and stage.

use std::collections::BTreeMap;

use millstream_control::proto::{Span, Track};
use millstream_trace::{Category, Phase};
use serde::Serialize;

use super::{Recorded, length};

/// All sums.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Sums {
    /// In the order of a step, then the rest. They add up to the whole recording.
    pub(crate) phases: Vec<PhaseSum>,
    /// Longest first.
    pub(crate) operations: Vec<OperationSum>,
    /// Kernels on a GPU, longest first; empty on the CPU.
    pub(crate) kernels: Vec<KernelSum>,
    /// In the order of the data.
    pub(crate) stages: Vec<StageRate>,
}

/// The time of a phase in all steps.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct PhaseSum {
    pub(crate) phase: &'static str,
    pub(crate) seconds: f64,
    /// Share of the whole recording.
    pub(crate) share: f64,
}

/// All calls of an operation in a phase. Layers are summed by size.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct OperationSum {
    pub(crate) operation: String,
    /// `None` outside all phases.
    pub(crate) phase: Option<String>,
    /// Inputs and outputs; `None` unless it is a layer.
    pub(crate) shape: Option<[u32; 2]>,
    pub(crate) calls: u64,
    pub(crate) seconds: f64,
    /// Share of the whole recording.
    pub(crate) share: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) flops_per_second: f64,
    /// The shortest time possible on this device divided by the measured time.
    pub(crate) roofline: f64,
}

/// All calls of a kernel.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct KernelSum {
    pub(crate) kernel: String,
    pub(crate) calls: u64,
    pub(crate) seconds: f64,
    /// Share of the whole recording.
    pub(crate) share: f64,
}

/// The working time and the rows of a stage of ingest.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct StageRate {
    pub(crate) stage: &'static str,
    /// Summed over all threads, without waiting.
    pub(crate) seconds: f64,
    pub(crate) rows: u64,
}

/// The stages that record their work.
const STAGES: [&str; 4] = ["decode", "transform", "shuffle", "pack"];

/// The name of time outside all phases.
const OTHER: &str = "other";

#[derive(Default)]
struct Totals {
    calls: u64,
    nanoseconds: u64,
    bytes: u64,
    flops: u64,
    least_seconds: f64,
}

impl Sums {
    /// Sums up a recording whose spans are sorted.
    pub(crate) fn of(recorded: &Recorded) -> Self {
        let all = recorded.nanoseconds() as f64 / 1e9;
        let share = |seconds: f64| if all > 0.0 { seconds / all } else { 0.0 };
        let phases = phases(recorded, all, share);
        let (bytes, flops) = (recorded.profile.bytes_per_second, recorded.profile.flops_per_second);
        let mut totals = BTreeMap::<_, Totals>::new();
        for span in recorded.tracks.iter().flat_map(|track| &track.spans).filter(is(Category::Operation)) {
            let key = (&span.name, &span.phase, span.inputs, span.outputs);
            let total = totals.entry(key).or_default();
            total.calls += 1;
            total.nanoseconds += length(span);
            total.bytes += span.bytes;
            total.flops += span.flops;
            total.least_seconds += f64::max(span.bytes as f64 / bytes, span.flops as f64 / flops);
        }
        let mut operations: Vec<_> = totals
            .into_iter()
            .map(|((name, phase, inputs, outputs), total)| {
                let seconds = total.nanoseconds as f64 / 1e9;
                let per_second = |number: f64| if seconds > 0.0 { number / seconds } else { 0.0 };
                OperationSum {
                    operation: name.clone(),
                    phase: Some(phase.clone()).filter(|phase| !phase.is_empty()),
                    shape: (outputs > 0).then_some([inputs, outputs]),
                    calls: total.calls,
                    seconds,
                    share: share(seconds),
                    bytes_per_second: per_second(total.bytes as f64),
                    flops_per_second: per_second(total.flops as f64),
                    roofline: per_second(total.least_seconds),
                }
            })
            .collect();
        operations.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Self {
            phases,
            operations,
            kernels: kernels(&recorded.tracks, share),
            stages: stages(&recorded.tracks),
        }
    }
}

fn is(category: Category) -> impl Fn(&&Span) -> bool {
    move |span| span.category == category.name()
}

fn kernels(tracks: &[Track], share: impl Fn(f64) -> f64) -> Vec<KernelSum> {
    let mut totals = BTreeMap::<&str, (u64, u64)>::new();
    for span in tracks.iter().flat_map(|track| &track.spans).filter(is(Category::Kernel)) {
        let (calls, nanoseconds) = totals.entry(&span.name).or_default();
        *calls += 1;
        *nanoseconds += length(span);
    }
    let sum = |(name, (calls, nanoseconds)): (&str, (u64, u64))| {
        let seconds = nanoseconds as f64 / 1e9;
        KernelSum { kernel: name.to_owned(), calls, seconds, share: share(seconds) }
    };
    let mut kernels: Vec<_> = totals.into_iter().map(sum).collect();
    kernels.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    kernels
}

fn phases(recorded: &Recorded, all: f64, share: impl Fn(f64) -> f64) -> Vec<PhaseSum> {
    let mut nanoseconds = BTreeMap::<&str, u64>::new();
    for track in &recorded.tracks {
        // Phases can nest: an evaluation includes the checkpoint of the best evaluation.
        for (span, own) in own_times(track, |span| is(Category::Phase)(&span)) {
            *nanoseconds.entry(&span.name).or_default() += own;
        }
    }
    let known = Phase::ALL.iter().filter_map(|phase| Some((phase.name(), *nanoseconds.get(phase.name())?)));
    let mut sums: Vec<_> = known
        .map(|(phase, nanoseconds)| {
            let seconds = nanoseconds as f64 / 1e9;
            PhaseSum { phase, seconds, share: share(seconds) }
        })
        .collect();
    let seconds = (all - sums.iter().map(|sum| sum.seconds).sum::<f64>()).max(0.0);
    sums.push(PhaseSum { phase: OTHER, seconds, share: share(seconds) });
    sums
}

/// The working time of each stage, without its waits.
fn stages(tracks: &[Track]) -> Vec<StageRate> {
    let mut sums = STAGES.map(|stage| StageRate { stage, seconds: 0.0, rows: 0 });
    for track in tracks {
        let is_any = |span: &Span| is(Category::Ingest)(&span) || is(Category::Wait)(&span);
        for (span, own) in own_times(track, is_any) {
            if let Some(sum) = sums.iter_mut().find(|sum| sum.stage == span.name) {
                sum.seconds += own as f64 / 1e9;
                sum.rows += span.rows;
            }
        }
    }
    sums.into_iter().filter(|sum| sum.seconds > 0.0).collect()
}

/// The spans that `counts`, each with its duration less that of the spans directly within it.
fn own_times(track: &Track, counts: impl Fn(&Span) -> bool) -> Vec<(&Span, u64)> {
    let mut times: Vec<(&Span, u64)> = Vec::new();
    // The spans that may enclose the next one.
    let mut around: Vec<usize> = Vec::new();
    for span in track.spans.iter().filter(|span| counts(span)) {
        while around.last().is_some_and(|&place| times[place].0.end_ns <= span.start_ns) {
            around.pop();
        }
        if let Some(&place) = around.last() {
            times[place].1 = times[place].1.saturating_sub(length(span));
        }
        around.push(times.len());
        times.push((span, length(span)));
    }
    times
}

#[cfg(test)]
mod tests {
    use millstream_control::proto::Profile;

    use super::*;

    fn span(category: Category, name: &str, milliseconds: [u64; 2]) -> Span {
        let [start_ns, end_ns] = milliseconds.map(|time| time * 1_000_000);
        Span { name: name.into(), category: category.name().into(), start_ns, end_ns, ..Span::default() }
    }

    fn recorded(spans: Vec<Span>) -> Recorded {
        let profile = Profile {
            began_ns: 0,
            ended_ns: 100_000_000,
            bytes_per_second: 1e9,
            flops_per_second: 10e9,
            ..Profile::default()
        };
        let mut recorded = Recorded::new(profile);
        recorded.add(Track { spans, ..Track::default() });
        recorded.sort();
        recorded
    }

    #[test]
    fn phases_add_up_to_the_recording() {
        let spans = vec![
            span(Category::Phase, "checkpoint", [50, 60]),
            span(Category::Phase, "evaluation", [40, 70]),
            span(Category::Phase, "forward", [10, 30]),
            span(Category::Step, "step", [5, 35]),
            span(Category::Phase, "wait", [0, 10]),
        ];
        let sums = Sums::of(&recorded(spans));
        let found: Vec<_> = sums.phases.iter().map(|sum| (sum.phase, (sum.share * 100.0).round())).collect();
        let wanted =
            [("wait", 10.0), ("forward", 20.0), ("evaluation", 20.0), ("checkpoint", 10.0), ("other", 40.0)];
        assert_eq!(found, wanted);
        assert!((sums.phases.iter().map(|sum| sum.seconds).sum::<f64>() - 0.1).abs() < 1e-12);
    }

    #[test]
    fn roofline_uses_the_binding_limit() {
        let call = |milliseconds, bytes, flops| Span {
            phase: "forward".into(),
            bytes,
            flops,
            inputs: 8,
            outputs: 4,
            ..span(Category::Operation, "layer_forward", milliseconds)
        };
        // The bytes of the first need at least 2 ms, the FLOPs of the second at least 3 ms.
        let spans = vec![
            call([0, 4], 2_000_000, 0),
            call([4, 10], 0, 30_000_000),
            span(Category::Operation, "clear", [10, 11]),
        ];
        let sums = Sums::of(&recorded(spans));
        let [layer, clear] = &sums.operations[..] else { panic!("{sums:?}") };
        assert_eq!((layer.operation.as_str(), layer.calls, layer.shape), ("layer_forward", 2, Some([8, 4])));
        let close =
            |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 1e-9, "{found} {wanted}");
        close(layer.roofline, 0.5);
        close(layer.share, 0.1);
        close(layer.bytes_per_second, 2e8);
        close(layer.flops_per_second, 3e9);
        assert_eq!((clear.operation.as_str(), clear.roofline), ("clear", 0.0));
    }

    #[test]
    fn kernel_calls_add_up_across_operations() {
        let spans = vec![
            span(Category::Operation, "layer_forward", [0, 10]),
            span(Category::Kernel, "product", [1, 9]),
            span(Category::Operation, "layer_backward", [10, 20]),
            span(Category::Kernel, "mask_gradient", [11, 12]),
            span(Category::Kernel, "product", [12, 18]),
        ];
        let sums = Sums::of(&recorded(spans));
        let percent = |share: f64| (100.0 * share).round();
        let kernels = sums.kernels.iter().map(|sum| (sum.kernel.as_str(), sum.calls, percent(sum.share)));
        assert_eq!(kernels.collect::<Vec<_>>(), [("product", 2, 14.0), ("mask_gradient", 1, 1.0)]);
        assert_eq!(sums.operations.len(), 2);
    }

    #[test]
    fn waits_do_not_count_as_work() {
        let decode = |rows, milliseconds| Span { rows, ..span(Category::Ingest, "decode", milliseconds) };
        let spans = vec![
            decode(300, [0, 20]),
            span(Category::Wait, "wait for bytes", [5, 15]),
            decode(100, [30, 40]),
            span(Category::Wait, "wait for the packer", [40, 90]),
        ];
        let sums = Sums::of(&recorded(spans));
        assert_eq!(sums.stages, [StageRate { stage: "decode", seconds: 0.02, rows: 400 }]);
    }
}
