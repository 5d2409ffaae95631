//! What holds ingest back, and what to do about it: a pure function of what was counted.
//!
//! A pipeline runs at the rate of its slowest part, and the others wait for it. Which part that is shows
//! in where the waiting is:
//!
//! | the packer waits for | and lanes | then it is |
//! |---|---|---|
//! | a free slot | | the consumer: training |
//! | little | | the packer |
//! | a window | decode, or wait for a core | the processor, and of the stages the costliest |
//! | a window | wait for bytes | storage, or the memory for read-ahead where that is used up |
//! | a window | decode without a break, but are fewer than cores | the number of lanes |
//!
//! Work is counted by the time on a core. More lanes may decode at once than there are cores, so that none idles
//! while one lane follows another; those that the kernel makes wait count as waiting.
//!
//! What the rate would be without it is the lowest of what the others could do alone, worked out from
//! the time that each took for the rows there were. It is an estimate from below for storage, whose waits
//! are shorter when more is asked of it at once.

use serde::Serialize;

use super::stats::{CacheStats, IngestStats, Stage};

/// From this share of the time on, waiting for the consumer is no accident.
const RING_BINDS: f64 = 0.1;
/// From this share of its time on, a thread or a set of cores counts as fully used.
const FULL: f64 = 0.85;

/// What the stages were given to work with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Resources {
    /// Cores of this process.
    pub cores: u32,
    /// Lanes that have anything to read.
    pub lanes: u32,
    /// Lanes that may decode at once.
    pub decoders: u32,
    /// Whether the job says so.
    pub decoders_fixed: bool,
    /// Ranges in flight for one object.
    pub streams: u32,
    /// Whether the job says so.
    pub streams_fixed: bool,
    /// Bytes that the reading of one object may hold now.
    pub object_bytes: u64,
    /// The most that it may be given, by the memory budget.
    pub most_object_bytes: u64,
    /// The most that it could make use of; 0 where read-ahead is not a matter of choice.
    pub useful_object_bytes: u64,
    /// Whether the search for the best of these has ended.
    pub settled: bool,
}

impl Resources {
    /// Lanes that can be on a core at once.
    fn at_once(&self) -> u32 {
        self.decoders.min(self.cores).min(self.lanes).max(1)
    }
}

/// What binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Nothing was delivered yet.
    Starting,
    /// Whoever empties the ring: training.
    Consumer,
    /// The one thread that fills slots.
    Packer,
    /// Cores, most of all for decoding.
    Decode,
    /// Cores, most of all for transforming.
    Transform,
    /// The number of threads that the job gives.
    Threads,
    /// The number of lanes: fewer than cores.
    Lanes,
    /// Storage: latency or bandwidth.
    Storage,
    /// The number of streams that the job gives.
    Streams,
    /// The memory for read-ahead.
    Memory,
}

impl Bound {
    /// It as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Consumer => "consumer",
            Self::Packer => "packer",
            Self::Decode => "decode",
            Self::Transform => "transform",
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
    /// Its name.
    pub stage: &'static str,
    /// Share of the cores it may use that it kept at work; `None` where it has none.
    pub busy: Option<f64>,
    /// Threads that waited, on average.
    pub waiting: f64,
    /// What for.
    pub waits_for: &'static str,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The time looked at.
    pub seconds: f64,
    /// Rows delivered in each second of it.
    pub rows_per_second: f64,
    /// Bytes read from storage in each second of it.
    pub bytes_per_second: f64,
    /// The stages, in the order of the data.
    pub stages: Vec<StageUse>,
    /// What binds.
    pub bound: Bound,
    /// Why, in a sentence.
    pub because: String,
    /// What the rate would be at least if that were no limit; `None` if it is unknown.
    pub rows_per_second_without: Option<f64>,
    /// What to change, the most promising first.
    pub advice: Vec<String>,
}

/// The explanation of a feed: of now, and of the whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// What the stages have to work with now.
    pub resources: Resources,
    /// Bytes asked for and not here yet, at this moment.
    pub in_flight_bytes: u64,
    /// The last seconds.
    pub recent: Diagnosis,
    /// All of the time since the feed began.
    pub whole: Diagnosis,
    /// What the local cache has done since then, where there is one.
    pub cache: Option<CacheStats>,
    /// Rows that lost values of a multi-valued feature to its maximum since then, counted once for each feature.
    pub truncated_rows: u64,
}

/// Shares and sums over the time looked at.
struct Shares {
    /// The packer's.
    pack: f64,
    ring: f64,
    window: f64,
    /// Lanes' work, of the cores that they may use at once.
    decoding: f64,
    /// All work, of all cores.
    cores: f64,
    /// Lanes, on average.
    working: f64,
    fetching: f64,
    queueing: f64,
}

/// Says what held ingest back while `done` was done, in `seconds`.
pub fn diagnose(done: &IngestStats, seconds: f64, resources: &Resources) -> Diagnosis {
    let seconds = seconds.max(f64::MIN_POSITIVE);
    let stages = &done.stages;
    let at_once = f64::from(resources.at_once());
    let shares = Shares {
        pack: stages.pack.busy_seconds / seconds,
        ring: stages.ring.wait_seconds / seconds,
        window: stages.pack.wait_seconds / seconds,
        decoding: lane_work(done) / seconds / at_once,
        cores: (lane_work(done) + stages.pack.busy_seconds) / seconds / f64::from(resources.cores.max(1)),
        working: lane_work(done) / seconds,
        fetching: stages.fetch.wait_seconds / seconds,
        queueing: stages.decode.wait_seconds / seconds,
    };
    let bound = bound(done, &shares, resources);
    Diagnosis {
        seconds,
        rows_per_second: done.rows as f64 / seconds,
        bytes_per_second: done.bytes as f64 / seconds,
        stages: stage_uses(done, seconds, at_once),
        bound,
        because: because(bound, &shares, resources),
        rows_per_second_without: without(bound, done, seconds, resources),
        advice: advice(bound, done, resources),
    }
}

/// Seconds that lanes were at work.
fn lane_work(done: &IngestStats) -> f64 {
    let stages = &done.stages;
    stages.decode.busy_seconds + stages.transform.busy_seconds + stages.shuffle.busy_seconds
}

fn bound(done: &IngestStats, shares: &Shares, resources: &Resources) -> Bound {
    if done.rows == 0 {
        return Bound::Starting;
    }
    if shares.ring >= RING_BINDS && shares.ring >= shares.window {
        return Bound::Consumer;
    }
    if shares.pack >= FULL {
        return Bound::Packer;
    }
    // Where there are not more lanes than may decode, each does one thing after the other, and what takes
    // most of its time binds. Where there are more, some always wait for bytes while others decode.
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

fn stage_uses(done: &IngestStats, seconds: f64, at_once: f64) -> Vec<StageUse> {
    let stages = &done.stages;
    let of_lanes = |stage: &Stage| Some(stage.busy_seconds / seconds / at_once);
    let row =
        |stage, busy, waited: f64, waits_for| StageUse { stage, busy, waiting: waited / seconds, waits_for };
    vec![
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
        row("ring", None, stages.ring.wait_seconds, "packer for a free slot"),
    ]
}

fn because(bound: Bound, shares: &Shares, resources: &Resources) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let Resources { cores, lanes, decoders, streams, .. } = resources;
    let starved = || {
        let (fetching, decoding) = (shares.fetching, percent(shares.decoding));
        format!("{fetching:.1} of {lanes} lanes wait for bytes, and decoding is {decoding} busy")
    };
    match bound {
        Bound::Starting => "no batch was delivered yet".to_owned(),
        Bound::Consumer => {
            format!("the packer waits {} of the time for training to free a slot", percent(shares.ring))
        }
        Bound::Packer => format!("the packer is {} busy filling slots", percent(shares.pack)),
        Bound::Decode | Bound::Transform => {
            let (lanes, packer) = (shares.working, shares.pack);
            format!("of {cores} cores lanes keep {lanes:.1} at work, and the packer {packer:.1}")
        }
        Bound::Threads => {
            format!("the {decoders} lanes that may decode at once are {} busy", percent(shares.decoding))
        }
        Bound::Lanes => format!("only {lanes} lanes have anything to read, on {cores} cores"),
        Bound::Storage => starved(),
        Bound::Streams => format!("{}; {streams} ranges of a file are in flight at most", starved()),
        Bound::Memory => format!("{}; read-ahead has all the memory that is left for it", starved()),
    }
}

/// What the parts that do not bind could do alone.
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
    ];
    let needed = needed.into_iter().fold(0.0, f64::max);
    // What would take less than a thousandth of the time was not seen at work.
    let told = bound != Bound::Starting && needed > seconds / 1000.0;
    told.then(|| (done.rows as f64 / needed).max(done.rows as f64 / seconds))
}

fn advice(bound: Bound, done: &IngestStats, resources: &Resources) -> Vec<String> {
    let Resources { cores, lanes, decoders, .. } = resources;
    let mut advice: Vec<String> = match bound {
        Bound::Starting => return Vec::new(),
        Bound::Consumer => vec!["ingest keeps up: make the training step faster, or leave it".to_owned()],
        Bound::Packer => vec![
            "leave out features that the model does not need".to_owned(),
            "a smaller data.shuffle_rows keeps more of the pool in the processor's cache".to_owned(),
        ],
        Bound::Decode => vec![
            "more cores".to_owned(),
            "Parquet decodes faster than TFRecord, and uncompressed files than gzip (millstream convert)"
                .to_owned(),
        ],
        Bound::Transform => {
            vec!["more cores".to_owned(), "integer ids cost less to hash than text".to_owned()]
        }
        Bound::Threads => {
            vec![format!("data.threads = {decoders} is below {cores} cores: raise it, or leave it out")]
        }
        Bound::Lanes => vec![format!(
            "with {lanes} lanes, {} cores have nothing to decode: raise data.lanes, and have at least as many \
             files or row groups (it changes the order of rows)",
            cores - lanes
        )],
        Bound::Storage => vec![
            "nearer or faster storage, or a bigger machine where bandwidth goes by size".to_owned(),
            "a raised data.lanes reads more files at once (it changes the order of rows)".to_owned(),
        ],
        Bound::Streams => vec![format!("data.streams = {}: raise it, or leave it out", resources.streams)],
        Bound::Memory => vec![
            "raise data.memory_budget".to_owned(),
            "a smaller data.shuffle_rows or data.prefetch leaves more for reading ahead".to_owned(),
        ],
    };
    if !resources.settled && bound != Bound::Consumer {
        advice.push("tuning has not settled yet: look again in a minute".to_owned());
    }
    if done.skipped_records > 0 {
        advice.push(format!("{} bad records were left out; see `millstream logs`", done.skipped_records));
    }
    advice
}

#[cfg(test)]
mod tests {
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

    /// Ten seconds in which 1,000,000 rows came: seconds of waiting for bytes, decoding, transforming,
    /// queueing, packing, waiting for windows and for slots.
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
    fn what_binds_is_named_with_what_comes_next() {
        let fixed = Resources { decoders: 2, decoders_fixed: true, ..RESOURCES };
        let few = Resources { lanes: 2, ..RESOURCES };
        let many = Resources { decoders: 12, ..RESOURCES };
        let streams = Resources { streams_fixed: true, ..RESOURCES };
        let tight = Resources { object_bytes: 16 << 20, ..RESOURCES };
        let all = Resources { object_bytes: 64 << 20, most_object_bytes: 64 << 20, ..RESOURCES };
        let starved = [140.0, 8.0, 4.0, 0.5, 1.0, 9.0, 0.0];
        // Of 40 lane seconds that there could be, and 10 of the packer.
        let cases = [
            (RESOURCES, [1.0, 8.0, 4.0, 1.0, 1.0, 0.5, 8.5], Bound::Consumer, Some(333_333.0)),
            (RESOURCES, [1.0, 16.0, 4.0, 1.0, 9.5, 0.3, 0.2], Bound::Packer, Some(200_000.0)),
            (RESOURCES, [8.0, 28.0, 11.0, 90.0, 2.0, 8.0, 0.0], Bound::Decode, Some(500_000.0)),
            // More lanes decode than there are cores, and wait for storage while others fill the cores.
            (many, [90.0, 22.0, 8.0, 20.0, 6.0, 4.0, 0.0], Bound::Decode, Some(166_667.0)),
            (RESOURCES, [8.0, 11.0, 28.0, 90.0, 5.0, 5.0, 0.0], Bound::Transform, Some(200_000.0)),
            (fixed, [8.0, 14.0, 5.0, 100.0, 2.0, 8.0, 0.0], Bound::Threads, Some(500_000.0)),
            (few, [0.2, 14.0, 5.5, 0.0, 2.0, 8.0, 0.0], Bound::Lanes, Some(500_000.0)),
            // One lane that decodes for seven seconds and waits for three would rather have another.
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
    fn before_the_first_batch_nothing_is_claimed() {
        for seconds in [0.0, 1.0] {
            let found = diagnose(&IngestStats::default(), seconds, &Resources::default());
            assert_eq!((found.bound, found.rows_per_second_without), (Bound::Starting, None));
            assert_eq!((found.rows_per_second, found.advice.len()), (0.0, 0));
        }
    }

    #[test]
    fn stages_say_what_share_of_their_threads_was_at_work() {
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
