//! Finds the bottleneck of ingest and suggests a fix: a pure function of the counters.
//!
//! A pipeline runs at the rate of its slowest stage, and the other stages wait for it. The waits identify that stage:
//!
//! | the packer waits for | and the lanes | bottleneck |
//! |---|---|---|
//! | a free slot in any ring | | the consumer: training |
//! | little | | the packer |
//! | a window | decode, or wait for a core | the CPU, in the most expensive stage |
//! | a window | wait for bytes | storage, or the memory for read-ahead if it is used up |
//! | a window | decode without a pause, but number fewer than the cores | the number of lanes |
//! | the images of its rows | | the CPU, for decoding images |
//!
//! Busy time is CPU time. More lanes may decode concurrently than there are cores, so that no core idles between two
//! lanes. A lane that is ready but not scheduled by the kernel counts as waiting.
//!
//! The rate without the bottleneck is the lowest rate that the other stages could sustain alone, computed from the time
//! that each spent on the rows so far. For storage it is a lower bound, because waits shrink when more requests are in
//! flight.

use serde::Serialize;

use super::stats::{CacheStats, IngestStats, Stage};

/// If the packer waits for the consumer for at least this share of the time, the consumer is the bottleneck.
const RING_BINDS: f64 = 0.1;
/// A thread or a set of cores that is busy for at least this share of the time counts as fully used.
const FULL: f64 = 0.85;

/// The resources of the stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Resources {
    /// Cores available to this process.
    pub cores: u32,
    /// Lanes that have at least one split.
    pub lanes: u32,
    /// The maximum number of lanes that decode concurrently.
    pub decoders: u32,
    /// Whether the job sets `decoders`.
    pub decoders_fixed: bool,
    /// The maximum number of ranges of one object in flight.
    pub streams: u32,
    /// Whether the job sets `streams`.
    pub streams_fixed: bool,
    /// The current limit of bytes held for reading one object.
    pub object_bytes: u64,
    /// The highest limit that the memory budget allows.
    pub most_object_bytes: u64,
    /// The highest limit that could have an effect; 0 if read-ahead is not adjustable.
    pub useful_object_bytes: u64,
    /// Whether tuning has settled.
    pub settled: bool,
}

impl Resources {
    /// The maximum number of lanes that can run on a core concurrently.
    fn at_once(&self) -> u32 {
        self.decoders.min(self.cores).min(self.lanes).max(1)
    }
}

/// The bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// No batch has been delivered yet.
    Starting,
    /// The slowest consumer of a ring: training.
    Consumer,
    /// The thread that fills slots.
    Packer,
    /// The cores, mostly for decoding.
    Decode,
    /// The cores, mostly for transforming.
    Transform,
    /// The cores, mostly for decoding images.
    Images,
    /// The number of threads that the job sets.
    Threads,
    /// The number of lanes, which is lower than the number of cores.
    Lanes,
    /// Storage: latency or bandwidth.
    Storage,
    /// The number of streams that the job sets.
    Streams,
    /// The memory for read-ahead.
    Memory,
}

impl Bound {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Consumer => "consumer",
            Self::Packer => "packer",
            Self::Decode => "decode",
            Self::Transform => "transform",
            Self::Images => "images",
            Self::Threads => "threads",
            Self::Lanes => "lanes",
            Self::Storage => "storage",
            Self::Streams => "streams",
            Self::Memory => "memory",
        }
    }
}

/// How one stage spent its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageUse {
    /// The stage's name.
    pub stage: &'static str,
    /// The busy share of the cores that the stage may use; `None` for a stage that uses none.
    pub busy: Option<f64>,
    /// The average number of waiting threads.
    pub waiting: f64,
    /// What they wait for.
    pub waits_for: &'static str,
}

/// The diagnosis of an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The length of the interval.
    pub seconds: f64,
    /// Rows delivered per second.
    pub rows_per_second: f64,
    /// Bytes read from storage per second.
    pub bytes_per_second: f64,
    /// The stages, in the order in which data passes them.
    pub stages: Vec<StageUse>,
    /// The bottleneck.
    pub bound: Bound,
    /// The reason, as a sentence.
    pub because: String,
    /// A lower bound of the rate without this bottleneck; `None` if unknown.
    pub rows_per_second_without: Option<f64>,
    /// Suggested changes, the most promising first.
    pub advice: Vec<String>,
}

/// The explanation of a feed: of the last seconds and of the whole run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The current resources.
    pub resources: Resources,
    /// Bytes requested and not received yet.
    pub in_flight_bytes: u64,
    /// The last seconds.
    pub recent: Diagnosis,
    /// The time since the feed began.
    pub whole: Diagnosis,
    /// The counters of the local cache, if the job has one.
    pub cache: Option<CacheStats>,
    /// Rows that lost values of a multi-valued feature to its maximum, since the feed began; counted once per feature.
    pub truncated_rows: u64,
}

/// Shares and averages over the interval.
struct Shares {
    /// The busy share of the packer.
    pack: f64,
    ring: f64,
    window: f64,
    /// The share in which the packer waits for images.
    images: f64,
    /// Lanes' work, as a share of the cores that they may use concurrently.
    decoding: f64,
    /// All work, as a share of all cores.
    cores: f64,
    /// The average number of working lanes.
    working: f64,
    /// The average number of threads that decode images.
    decoding_images: f64,
    fetching: f64,
    queueing: f64,
}

/// Diagnoses an interval of `seconds` with the counters `done`.
pub fn diagnose(done: &IngestStats, seconds: f64, resources: &Resources) -> Diagnosis {
    let seconds = seconds.max(f64::MIN_POSITIVE);
    let stages = &done.stages;
    let at_once = f64::from(resources.at_once());
    let shares = Shares {
        pack: stages.pack.busy_seconds / seconds,
        ring: stages.ring.wait_seconds / seconds,
        window: stages.pack.wait_seconds / seconds,
        decoding: lane_work(done) / seconds / at_once,
        images: stages.images.wait_seconds / seconds,
        cores: (lane_work(done) + stages.pack.busy_seconds + stages.images.busy_seconds)
            / seconds
            / f64::from(resources.cores.max(1)),
        working: lane_work(done) / seconds,
        decoding_images: stages.images.busy_seconds / seconds,
        fetching: stages.fetch.wait_seconds / seconds,
        queueing: stages.decode.wait_seconds / seconds,
    };
    let bound = bound(done, &shares, resources);
    Diagnosis {
        seconds,
        rows_per_second: done.rows as f64 / seconds,
        bytes_per_second: done.bytes as f64 / seconds,
        stages: stage_uses(done, seconds, at_once, resources.cores.max(1).into()),
        bound,
        because: because(bound, &shares, resources),
        rows_per_second_without: without(bound, done, seconds, resources),
        advice: advice(bound, done, resources),
    }
}

/// Seconds of lanes' work.
fn lane_work(done: &IngestStats) -> f64 {
    let stages = &done.stages;
    stages.decode.busy_seconds + stages.transform.busy_seconds + stages.shuffle.busy_seconds
}

fn bound(done: &IngestStats, shares: &Shares, resources: &Resources) -> Bound {
    if done.rows == 0 {
        return Bound::Starting;
    }
    if shares.ring >= RING_BINDS && shares.ring >= shares.window.max(shares.images) {
        return Bound::Consumer;
    }
    if shares.pack >= FULL {
        return Bound::Packer;
    }
    if shares.images > shares.window {
        return Bound::Images;
    }
    // If all lanes may decode concurrently, each lane alternates between the two activities, and the longer one is the
    // bottleneck. Otherwise some lanes always wait for bytes while others decode.
    let is_mostly = resources.lanes > resources.decoders || shares.fetching > shares.working;
    let idle = shares.decoding < FULL && shares.cores < FULL;
    let starved = shares.fetching > shares.queueing && idle && is_mostly;
    if starved {
        let fully_read_ahead = resources.object_bytes >= resources.useful_object_bytes;
        return match resources {
            _ if !fully_read_ahead && resources.object_bytes >= resources.most_object_bytes => Bound::Memory,
            Resources { streams_fixed: true, .. } => Bound::Streams,
            _ => Bound::Storage,
        };
    }
    if resources.lanes < resources.cores && resources.lanes <= resources.decoders {
        return Bound::Lanes;
    }
    if resources.decoders_fixed && resources.decoders < resources.cores {
        return Bound::Threads;
    }
    let stages = &done.stages;
    if stages.transform.busy_seconds > stages.decode.busy_seconds { Bound::Transform } else { Bound::Decode }
}

fn stage_uses(done: &IngestStats, seconds: f64, at_once: f64, cores: f64) -> Vec<StageUse> {
    let stages = &done.stages;
    let of_lanes = |stage: &Stage| Some(stage.busy_seconds / seconds / at_once);
    let row =
        |stage, busy, waited: f64, waits_for| StageUse { stage, busy, waiting: waited / seconds, waits_for };
    let mut uses = vec![
        row("fetch", None, stages.fetch.wait_seconds, "lanes for bytes"),
        row("decode", of_lanes(&stages.decode), stages.decode.wait_seconds, "lanes for a core"),
        row("transform", of_lanes(&stages.transform), 0.0, ""),
        row("shuffle", of_lanes(&stages.shuffle), stages.shuffle.wait_seconds, "lanes a window ahead"),
        row(
            "pack",
            Some(stages.pack.busy_seconds / seconds),
            stages.pack.wait_seconds,
            "packer for a window",
        ),
    ];
    if stages.images != Stage::default() {
        let busy = stages.images.busy_seconds / seconds / cores;
        uses.push(row("images", Some(busy), stages.images.wait_seconds, "packer for images"));
    }
    uses.push(row("ring", None, stages.ring.wait_seconds, "packer for a free slot"));
    uses
}

fn because(bound: Bound, shares: &Shares, resources: &Resources) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let Resources { cores, lanes, decoders, streams, .. } = resources;
    let starved = || {
        let (fetching, decoding) = (shares.fetching, percent(shares.decoding));
        format!("{fetching:.1} of {lanes} lanes wait for bytes, and decoding is {decoding} busy")
    };
    match bound {
        Bound::Starting => "no batch has been delivered yet".to_owned(),
        Bound::Consumer => {
            format!("the packer waits {} of the time for training to free a slot", percent(shares.ring))
        }
        Bound::Packer => format!("the packer is {} busy filling slots", percent(shares.pack)),
        Bound::Decode | Bound::Transform => {
            let (lanes, packer) = (shares.working, shares.pack);
            format!("of {cores} cores, the lanes use {lanes:.1} and the packer {packer:.1}")
        }
        Bound::Images => {
            let (waiting, images) = (percent(shares.images), shares.decoding_images);
            format!(
                "the packer waits {waiting} of the time for images, whose decoding uses {images:.1} of {cores} cores"
            )
        }
        Bound::Threads => {
            format!("the {decoders} lanes that may decode concurrently are {} busy", percent(shares.decoding))
        }
        Bound::Lanes => format!("only {lanes} lanes have data to read, on {cores} cores"),
        Bound::Storage => starved(),
        Bound::Streams => format!("{}; at most {streams} ranges of a file are in flight", starved()),
        Bound::Memory => format!("{}; read-ahead uses all memory available to it", starved()),
    }
}

/// The rate that the other stages could sustain alone.
fn without(bound: Bound, done: &IngestStats, seconds: f64, resources: &Resources) -> Option<f64> {
    let lanes = resources.lanes;
    let stages = &done.stages;
    let at_once = f64::from(resources.at_once());
    let waits_for_bytes = stages.fetch.wait_seconds / f64::from(lanes.max(1));
    let is_processor = matches!(bound, Bound::Decode | Bound::Transform | Bound::Threads | Bound::Lanes);
    let is_storage = matches!(bound, Bound::Storage | Bound::Streams | Bound::Memory);
    let needed = [
        if is_processor { 0.0 } else { lane_work(done) / at_once },
        if is_storage { 0.0 } else { waits_for_bytes },
        if bound == Bound::Packer { 0.0 } else { stages.pack.busy_seconds },
        if bound == Bound::Images { 0.0 } else { stages.images.wait_seconds },
    ];
    let needed = needed.into_iter().fold(0.0, f64::max);
    // Stages that need less than a thousandth of the time give no meaningful estimate.
    let measurable = bound != Bound::Starting && needed > seconds / 1000.0;
    measurable.then(|| (done.rows as f64 / needed).max(done.rows as f64 / seconds))
}

fn advice(bound: Bound, done: &IngestStats, resources: &Resources) -> Vec<String> {
    let Resources { cores, lanes, decoders, .. } = resources;
    let mut advice: Vec<String> = match bound {
        Bound::Starting => return Vec::new(),
        Bound::Consumer => {
            vec!["ingest keeps up: make the training step faster, or change nothing".to_owned()]
        }
        Bound::Packer => vec![
            "remove features that the model does not need".to_owned(),
            "lower data.shuffle_rows to keep more of the pool in the CPU cache".to_owned(),
        ],
        Bound::Decode => vec![
            "use more cores".to_owned(),
            "use Parquet instead of TFRecord, or uncompressed files instead of gzip (millstream convert)"
                .to_owned(),
        ],
        Bound::Transform => {
            vec![
                "use more cores".to_owned(),
                "use integer ids: they are cheaper to hash than text".to_owned(),
            ]
        }
        Bound::Images => vec![
            "use more cores".to_owned(),
            "store smaller images: near the size that the model needs".to_owned(),
            "set `decode = \"fast\"` in the column, which decodes large JPEG images at a lower resolution"
                .to_owned(),
        ],
        Bound::Threads => {
            vec![format!("data.threads = {decoders} is below {cores} cores: raise or remove it")]
        }
        Bound::Lanes => vec![format!(
            "with {lanes} lanes, {} cores have nothing to decode: raise data.lanes and provide at least as many \
             files or row groups (it changes the order of rows)",
            cores - lanes
        )],
        Bound::Storage => vec![
            "use closer or faster storage, or a larger machine if bandwidth depends on its size".to_owned(),
            "raise data.lanes to read more files concurrently (it changes the order of rows)".to_owned(),
        ],
        Bound::Streams => vec![format!("data.streams = {}: raise or remove it", resources.streams)],
        Bound::Memory => vec![
            "raise data.memory_budget".to_owned(),
            "lower data.shuffle_rows or data.prefetch to leave more memory for read-ahead".to_owned(),
        ],
    };
    if !resources.settled && bound != Bound::Consumer {
        advice.push("tuning has not settled yet: check again in a minute".to_owned());
    }
    if done.skipped_records > 0 {
        advice.push(format!("{} bad records were skipped; see `millstream logs`", done.skipped_records));
    }
    advice
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const RESOURCES: Resources = Resources {
        cores: 4,
        lanes: 16,
        decoders: 4,
        decoders_fixed: false,
        streams: 4,
        streams_fixed: false,
        object_bytes: 4 << 20,
        most_object_bytes: 16 << 20,
        useful_object_bytes: 64 << 20,
        settled: true,
    };

    /// Counters of ten seconds with 1,000,000 rows: seconds of waiting for bytes, decoding, transforming, queueing,
    /// packing, waiting for windows and waiting for slots.
    fn done([fetch, decode, transform, queue, pack, window, ring]: [f64; 7]) -> IngestStats {
        let mut done = IngestStats { rows: 1_000_000, bytes: 500_000_000, ..IngestStats::default() };
        done.stages.fetch.wait_seconds = fetch;
        done.stages.decode = Stage { busy_seconds: decode, wait_seconds: queue };
        done.stages.transform.busy_seconds = transform;
        done.stages.pack = Stage { busy_seconds: pack, wait_seconds: window };
        done.stages.ring.wait_seconds = ring;
        done
    }

    #[test]
    fn the_bottleneck_is_reported_with_the_rate_without_it() {
        let fixed = Resources { decoders: 2, decoders_fixed: true, ..RESOURCES };
        let few = Resources { lanes: 2, ..RESOURCES };
        let many = Resources { decoders: 12, ..RESOURCES };
        let streams = Resources { streams_fixed: true, ..RESOURCES };
        let tight = Resources { object_bytes: 16 << 20, ..RESOURCES };
        let all = Resources { object_bytes: 64 << 20, most_object_bytes: 64 << 20, ..RESOURCES };
        let starved = [140.0, 8.0, 4.0, 0.5, 1.0, 9.0, 0.0];
        // Out of 40 lane seconds and 10 packer seconds.
        let cases = [
            (RESOURCES, [1.0, 8.0, 4.0, 1.0, 1.0, 0.5, 8.5], Bound::Consumer, Some(333_333.0)),
            (RESOURCES, [1.0, 16.0, 4.0, 1.0, 9.5, 0.3, 0.2], Bound::Packer, Some(200_000.0)),
            (RESOURCES, [8.0, 28.0, 11.0, 90.0, 2.0, 8.0, 0.0], Bound::Decode, Some(500_000.0)),
            // More lanes decode than there are cores: some wait for storage while others fill the cores.
            (many, [90.0, 22.0, 8.0, 20.0, 6.0, 4.0, 0.0], Bound::Decode, Some(166_667.0)),
            (RESOURCES, [8.0, 11.0, 28.0, 90.0, 5.0, 5.0, 0.0], Bound::Transform, Some(200_000.0)),
            (fixed, [8.0, 14.0, 5.0, 100.0, 2.0, 8.0, 0.0], Bound::Threads, Some(500_000.0)),
            (few, [0.2, 14.0, 5.5, 0.0, 2.0, 8.0, 0.0], Bound::Lanes, Some(500_000.0)),
            // One lane that decodes for seven seconds and waits for three benefits more from a second lane.
            (few, [6.0, 10.0, 4.0, 0.0, 2.0, 8.0, 0.0], Bound::Lanes, Some(333_333.0)),
            (few, [13.0, 4.0, 3.0, 0.0, 2.0, 8.0, 0.0], Bound::Storage, Some(285_714.0)),
            (RESOURCES, starved, Bound::Storage, Some(333_333.0)),
            (all, starved, Bound::Storage, Some(333_333.0)),
            (streams, starved, Bound::Streams, Some(333_333.0)),
            (tight, starved, Bound::Memory, Some(333_333.0)),
        ];
        for (resources, times, bound, without) in cases {
            let found = diagnose(&done(times), 10.0, &resources);
            assert_eq!(found.bound, bound, "{times:?}: {found:?}");
            assert_eq!(found.rows_per_second_without.map(f64::round), without, "{found:?}");
            assert_eq!(found.rows_per_second, 100_000.0);
            assert!(!found.because.is_empty() && !found.advice.is_empty());
        }
    }

    #[test]
    fn images_are_the_bottleneck_if_the_packer_waits_for_them() {
        let mut stats = done([2.0, 1.0, 0.5, 0.5, 0.5, 1.0, 0.1]);
        assert!(diagnose(&stats, 10.0, &RESOURCES).stages.iter().all(|stage| stage.stage != "images"));
        stats.stages.images = Stage { busy_seconds: 36.0, wait_seconds: 8.0 };
        let found = diagnose(&stats, 10.0, &RESOURCES);
        assert_eq!(found.bound, Bound::Images);
        assert_eq!(
            found.because,
            "the packer waits 80 % of the time for images, whose decoding uses 3.6 of 4 cores"
        );
        // Without it, the packer's waits for windows and slots remain.
        assert!(found.rows_per_second_without.is_some_and(|rate| rate > 1_000_000.0));
        let images = found.stages.iter().find(|stage| stage.stage == "images").unwrap();
        assert_eq!((images.busy, images.waiting), (Some(0.9), 0.8));
        stats.stages.ring.wait_seconds = 9.0;
        assert_eq!(diagnose(&stats, 10.0, &RESOURCES).bound, Bound::Consumer);
    }

    #[test]
    fn advice_names_the_key_to_change() {
        let of = |resources: &Resources, times| diagnose(&done(times), 10.0, resources).advice.join("\n");
        let starved = [140.0, 8.0, 4.0, 0.5, 1.0, 9.0, 0.0];
        let tight = Resources { most_object_bytes: 1 << 20, object_bytes: 1 << 20, ..RESOURCES };
        assert!(of(&tight, starved).contains("data.memory_budget"));
        let fixed = Resources { decoders: 1, decoders_fixed: true, settled: false, ..RESOURCES };
        let advice = of(&fixed, [0.0, 9.0, 0.5, 100.0, 1.0, 9.0, 0.0]);
        assert!(advice.contains("data.threads = 1 is below 4 cores") && advice.contains("not settled"));
        let few = Resources { lanes: 1, ..RESOURCES };
        assert!(of(&few, [0.1, 9.0, 0.5, 0.0, 1.0, 9.0, 0.0]).contains("raise data.lanes"));
    }

    #[test]
    fn no_bottleneck_is_reported_before_the_first_batch() {
        for seconds in [0.0, 1.0] {
            let found = diagnose(&IngestStats::default(), seconds, &Resources::default());
            assert_eq!((found.bound, found.rows_per_second_without), (Bound::Starting, None));
            assert_eq!((found.rows_per_second, found.advice.len()), (0.0, 0));
        }
    }

    #[test]
    fn stages_report_their_busy_share() {
        let found = diagnose(&done([20.0, 10.0, 5.0, 30.0, 2.5, 7.0, 0.5]), 10.0, &RESOURCES);
        let of = |name| {
            let mut stages = found.stages.iter();
            stages.find(|stage| stage.stage == name).map(|stage| (stage.busy, stage.waiting))
        };
        assert_eq!(of("fetch"), Some((None, 2.0)));
        assert_eq!(of("decode"), Some((Some(0.25), 3.0)));
        assert_eq!(of("transform"), Some((Some(0.125), 0.0)));
        assert_eq!(of("pack"), Some((Some(0.25), 0.7)));
        assert_eq!(of("ring"), Some((None, 0.05)));
    }
}
