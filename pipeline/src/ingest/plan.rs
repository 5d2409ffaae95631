//! The plan of ingest, validated before it starts, with its maximum memory ([`memory`]).

mod memory;

use std::sync::Arc;

use millstream_batch::{BatchSchema, Count, HandOff, Producer, RingError, Stream};
use millstream_io::limits::{MAX_STREAMS, ReadLimits};
use millstream_trace::Recorder;

use self::memory::MOST_OBJECT_BYTES;
use super::explain::Resources;
use super::mixed::MixedSource;
use super::source::{ChunkSource, Elastic};
use super::tuner::{Bounds, Setting, Tuner};
use crate::error::Error;
use crate::images::ImageColumn;
use crate::order::{
    Cut, Deal, Feed, Mix, Mixing, OrderSpec, Pass, PassOrder, Position, PositionError, Runs, Shards,
};
use crate::sequences::SequenceColumns;
use crate::spec::{DataSpec, LabelColumn, LabelSpec, OnBadRecord};

pub use self::memory::MemoryNeed;

/// The initial number of lanes per core that decode concurrently. With one lane per core, a core would idle between the
/// moment when a lane completes its window or waits for bytes, and the wake-up of the next lane.
const FIRST_DECODERS: u32 = 3;

/// The maximum number of lanes per core that decode concurrently.
const MOST_DECODERS: u32 = 6;

/// A plan of ingest: the data, the order, the memory.
#[derive(Clone)]
pub struct IngestPlan {
    pub(crate) order: OrderSpec,
    pub(crate) feed: Feed,
    /// The schema of a global batch.
    pub(crate) schema: BatchSchema,
    /// Its columns of images.
    images: Vec<ImageColumn>,
    /// Its columns of tokens, if rows are documents.
    sequences: Option<Arc<SequenceColumns>>,
    /// How global batches are dealt to the rings of this host.
    rule: DealRule,
    /// The schema of the batches of each ring.
    part: BatchSchema,
    pub(crate) on_bad_record: OnBadRecord,
    /// Whether the order is independent of which lane is ready first.
    pub(crate) deterministic: bool,
    /// Whether a training pass drops a short last batch.
    pub(crate) drop_last: bool,
    /// The label that must have a positive row in training.
    pub(crate) label: Option<LabelColumn>,
    train: Option<Arc<dyn ChunkSource>>,
    /// How often the splits of `train` occur in an epoch; `None` for once.
    mix: Option<Arc<Mix>>,
    eval: Option<Arc<dyn ChunkSource>>,
    fingerprint: u64,
    slots: u32,
    budget_bytes: u64,
    memory: MemoryNeed,
    threads: Option<u32>,
    streams: Option<u32>,
    /// The most bytes held for reading one object.
    object_bytes: u64,
    /// The share of a lane in what the budget leaves.
    extra_bytes: u64,
    pub(crate) recorder: Arc<Recorder>,
}

/// How rows are dealt to rings; see [`crate::order`].
#[derive(Clone, Debug)]
pub(crate) enum DealRule {
    /// In runs of consecutive rows.
    Runs(Runs),
    /// By lanes.
    Lanes(Deal),
    /// By lanes to hosts, and in runs to the ranks of each.
    Shards(Shards),
}

impl IngestPlan {
    /// Plans a job's feed: its epochs over `train`, mixed as `mix` says, each followed by a pass over `eval` if it is given.
    ///
    /// # Errors
    /// The memory budget is too small, there is no data, or `schema` and `spec`, or `mix` and `train` do not match.
    pub fn training(
        spec: &DataSpec,
        seed: u64,
        label: &LabelSpec,
        schema: BatchSchema,
        (train, mix): (Arc<dyn ChunkSource>, Option<Arc<Mix>>),
        eval: Option<Arc<dyn ChunkSource>>,
    ) -> Result<Self, Error> {
        let feed = Feed::Train { epochs: spec.epochs, eval: eval.is_some() };
        // Of several labels only the first is checked here; the analysis pass has checked all of them.
        let label = label.first.has_positives().then(|| label.first.clone());
        Self::new(spec, seed, label, feed, schema, (Some(train), mix), eval)
    }

    /// Plans a feed for a trainer that brings its own model: its epochs over `train`, mixed as `mix` says, without labels
    /// to check and without passes of evaluation.
    ///
    /// # Errors
    /// See [`IngestPlan::training`].
    pub fn feeding(
        spec: &DataSpec,
        seed: u64,
        schema: BatchSchema,
        (train, mix): (Arc<dyn ChunkSource>, Option<Arc<Mix>>),
    ) -> Result<Self, Error> {
        let feed = Feed::Train { epochs: spec.epochs, eval: false };
        Self::new(spec, seed, None, feed, schema, (Some(train), mix), None)
    }

    /// Plans one pass over `data` in its original order, for evaluation or prediction.
    ///
    /// # Errors
    /// See [`IngestPlan::training`].
    pub fn scoring(spec: &DataSpec, schema: BatchSchema, data: Arc<dyn ChunkSource>) -> Result<Self, Error> {
        Self::new(spec, 0, None, Feed::Score, schema, (None, None), Some(data))
    }

    fn new(
        spec: &DataSpec,
        seed: u64,
        label: Option<LabelColumn>,
        feed: Feed,
        schema: BatchSchema,
        (train, mix): (Option<Arc<dyn ChunkSource>>, Option<Arc<Mix>>),
        eval: Option<Arc<dyn ChunkSource>>,
    ) -> Result<Self, Error> {
        let group = spec.group.as_ref().filter(|_| feed != Feed::Score);
        let place_of = |name: &String| {
            let place = schema.ids.iter().position(|feature| feature.name == *name);
            place
                .ok_or_else(|| Error::Invalid(format!("no feature `{name}` with one id per row groups rows")))
        };
        let group = group.map(place_of).transpose()?.map(|place| place as u32);
        let order = OrderSpec { seed, lanes: spec.lanes, shuffle_rows: spec.shuffle_rows, group };
        let cut = |source: &dyn ChunkSource| Cut { splits: source.splits(), cuts: source.cuts() };
        let of_train = train.as_deref().map(|source| match mix.as_deref() {
            Some(mix) => cut(&MixedSource { source, mix, seed, epoch: 0 }),
            None => cut(source),
        });
        let of_train = of_train.unwrap_or_default();
        let of_eval = eval.as_deref().map(cut).unwrap_or_default();
        if let (Some(train), Some(mix)) = (&train, &mix)
            && mix.weights().len() != train.splits() as usize
        {
            let message = format!("{} weights for {} splits", mix.weights().len(), train.splits());
            return Err(Error::Invalid(message));
        }
        if spec.lanes == 0 || u64::from(schema.position_bytes) < Position::encoded_bytes(spec.lanes) {
            let message = format!("the slot is too small for a position of {} lanes", spec.lanes);
            return Err(Error::Invalid(message));
        }
        let images = train.iter().chain(&eval).map(|source| source.images()).next().unwrap_or_default();
        let images = match feed {
            Feed::Score => images.into_iter().map(ImageColumn::for_evaluation).collect(),
            Feed::Train { .. } => images,
        };
        let sequences = train.iter().chain(&eval).find_map(|source| source.sequences());
        check_packing(sequences.as_ref(), spec, feed)?;
        let sequence_key = sequences.as_ref().map_or(0, SequenceColumns::key);
        let plan = Self {
            images,
            sequences: sequences.map(Arc::new),
            order,
            feed,
            on_bad_record: spec.on_bad_record,
            deterministic: spec.deterministic,
            drop_last: spec.drop_last,
            label,
            fingerprint: order.fingerprint(feed, of_train, of_eval) ^ filter_key(spec)? ^ sequence_key,
            train,
            mix,
            eval,
            slots: spec.prefetch,
            budget_bytes: spec.memory_budget_bytes,
            memory: MemoryNeed::default(),
            threads: spec.threads,
            streams: spec.streams,
            object_bytes: ReadLimits::MIN_OBJECT_BYTES,
            extra_bytes: 0,
            recorder: Arc::default(),
            rule: DealRule::Runs(Runs::of_one_host(1).ok_or_else(no_rank)?),
            part: schema.clone(),
            schema,
        };
        for stream in [Stream::Train, Stream::Eval] {
            if plan.source(stream).is_some() && plan.splits(stream) == 0 {
                return Err(Error::NoRows { stream: name_of(stream) });
            }
        }
        plan.within_budget()
    }

    /// Deals each global batch to `ranks` ranks of this host, which is the only one: a ring for each, with the rows of
    /// [`BatchSchema::part`]. Rows, their order and positions do not depend on the number of ranks, so a job may stop
    /// with one number and resume with another.
    ///
    /// # Errors
    /// There are no ranks, or the memory budget is too small for their rings.
    pub fn with_ranks(self, ranks: u32) -> Result<Self, Error> {
        self.with_runs(Runs::of_one_host(ranks).ok_or_else(no_rank)?)
    }

    /// Deals each global batch to the ranks of `runs`, which may be on several hosts: this host has a ring for each of its own.
    /// Every host reads all rows. Rows, their order and positions are those of [`IngestPlan::with_ranks`], except that, with
    /// several hosts, positions do not count broken images: each host decodes only those of its own ranks.
    ///
    /// # Errors
    /// The memory budget is too small for the rings, or the order is not deterministic, so that hosts could not agree on it.
    pub fn with_runs(self, runs: Runs) -> Result<Self, Error> {
        if !runs.are_all_here() && !self.deterministic {
            return Err(Error::Invalid(NOT_DETERMINISTIC.to_owned()));
        }
        Self { part: self.schema.part(runs.ranks()), rule: DealRule::Runs(runs), ..self }.within_budget()
    }

    /// Deals each global batch by lanes, to workers of one host or several: a ring for each part of this host, with room
    /// for the whole batch. Global batches and positions are those of [`IngestPlan::with_ranks`].
    ///
    /// # Errors
    /// The memory budget is too small for the rings.
    pub fn with_deal(self, deal: Deal) -> Result<Self, Error> {
        Self { rule: DealRule::Lanes(deal), part: self.schema.clone(), ..self }.within_budget()
    }

    /// Deals each global batch by shards: this host reads the data of its lanes for its own ranks, and has a ring for each. Each
    /// row of an epoch is delivered once over all hosts, but which batch has it depends on them.
    ///
    /// # Errors
    /// The memory budget is too small for the rings, the order is not deterministic, short batches are dropped, or a host
    /// would read nothing.
    pub fn with_shards(self, shards: Shards) -> Result<Self, Error> {
        self.check_shards(&shards)?;
        let part = self.schema.part(shards.runs().ranks());
        Self { part, rule: DealRule::Shards(shards), ..self }.within_budget()
    }

    /// Divides another memory budget.
    ///
    /// # Errors
    /// It is too small.
    pub fn with_budget(self, budget_bytes: u64) -> Result<Self, Error> {
        Self { budget_bytes, ..self }.within_budget()
    }

    /// Checks that the hosts of `shards` can read them of this feed.
    fn check_shards(&self, shards: &Shards) -> Result<(), Error> {
        self.check_shardable()?;
        let deal = shards.deal();
        if deal.parts() != self.order.lanes {
            let (dealt, lanes) = (deal.parts(), self.order.lanes);
            return Err(Error::Invalid(format!("{dealt} lanes are dealt to hosts, the feed has {lanes}")));
        }
        let live = self.live_lanes();
        let reads = |host: u32| (0..live).any(|lane| deal.owner(lane) == host);
        match (0..deal.hosts()).find(|&host| !reads(host)) {
            None => Ok(()),
            Some(_) => Err(Error::Invalid(format!(
                "the data has {} in {}, too few for {} hosts with a shard each: store it in more files, lower \
                 data.split_bytes, raise data.lanes, or let every host read all data",
                Count(self.splits(Stream::Train).into(), "split"),
                Count(live.into(), "lane"),
                deal.hosts()
            ))),
        }
    }

    /// Checks that each of several hosts can read a shard of this feed.
    ///
    /// # Errors
    /// The order is not deterministic, so that hosts could not agree on it, rows are not shuffled, or short batches are dropped.
    pub fn check_shardable(&self) -> Result<(), Error> {
        if !self.deterministic {
            return Err(Error::Invalid(NOT_DETERMINISTIC.to_owned()));
        }
        if self.order.shuffle_rows == 0 {
            return Err(Error::Invalid(
                "data.shuffle_rows: 0; hosts that read a shard each cannot keep the order of the data: set it above 0, or \
                 let every host read all data"
                    .to_owned(),
            ));
        }
        if self.drop_last {
            return Err(Error::Invalid(
                "hosts that read a shard each run out of rows at different times, so dropping short batches would drop \
                 many rows: keep them, with padding"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Creates the rings of this host, in order, and the hand-offs for their consumers.
    ///
    /// # Errors
    /// The system is out of memory or descriptors.
    pub fn create_rings(&self) -> Result<(Vec<Producer>, Vec<HandOff>), RingError> {
        let rings: Result<Vec<_>, _> =
            (0..self.rings()).map(|_| Producer::create(&self.part, self.slots)).collect();
        Ok(rings?.into_iter().unzip())
    }

    /// The maximum memory.
    pub fn memory(&self) -> MemoryNeed {
        self.memory
    }

    /// The schema of a global batch.
    pub fn schema(&self) -> &BatchSchema {
        &self.schema
    }

    /// The number of rings of this host: one for each part of a batch that its workers have.
    pub fn rings(&self) -> u32 {
        match &self.rule {
            DealRule::Runs(runs) => runs.here().len() as u32,
            DealRule::Lanes(deal) => deal.parts_here().count() as u32,
            DealRule::Shards(shards) => shards.runs().here().len() as u32,
        }
    }

    /// The rule by which rows are dealt to rings.
    pub(crate) fn rule(&self) -> &DealRule {
        &self.rule
    }

    /// The deal of lanes to hosts, unless each host reads all lanes.
    pub fn deal(&self) -> Option<&Deal> {
        match &self.rule {
            DealRule::Runs(_) => None,
            DealRule::Lanes(deal) => Some(deal),
            DealRule::Shards(shards) => Some(shards.deal()),
        }
    }

    /// Whether this host reads `lane`.
    pub(crate) fn reads(&self, lane: u32) -> bool {
        self.deal().is_none_or(|deal| deal.owner(lane) == deal.host())
    }

    /// The schema of the batches of each ring: that of a global batch if there is one ring, or rows are dealt by lanes.
    pub fn ring_schema(&self) -> &BatchSchema {
        &self.part
    }

    /// The number of slots of each ring.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The start of the feed.
    pub fn start(&self) -> Position {
        Position::start_of(self.feed.first(), self.order.lanes, self.fingerprint)
    }

    /// Decodes the position in a slot of this feed.
    ///
    /// # Errors
    /// `bytes` is not a position, or belongs to another order or other data.
    pub fn resume(&self, bytes: &[u8]) -> Result<Position, PositionError> {
        let position = Position::decode(bytes)?;
        position.check(self.feed, self.order.lanes, self.fingerprint)?;
        Ok(position)
    }

    /// Where this feed goes on after an earlier feed of the same data, which had `epochs` epochs and has stopped at the
    /// encoded position `bytes`. At the end of those epochs, the order of the rows may be another one from here on. `None`
    /// if this feed has no further epoch.
    ///
    /// # Errors
    /// `bytes` is not a position, or a position within an epoch of another order.
    pub fn continue_from(&self, bytes: &[u8], epochs: u32) -> Result<Option<Position>, PositionError> {
        let ended = Position::decode(bytes)?;
        if ended.pass.is_some() {
            return self.resume(bytes).map(Some);
        }
        let next = Pass { stream: Stream::Train, epoch: epochs };
        let start = || Position::start_of(Some(next), self.order.lanes, self.fingerprint);
        Ok(self.feed.contains(next).then(|| Position {
            marked_seen: ended.marked_seen,
            skipped_before: ended.skipped_before.saturating_add(ended.skipped),
            ..start()
        }))
    }

    pub(crate) fn source(&self, stream: Stream) -> Option<&dyn ChunkSource> {
        match stream {
            Stream::Train => self.train.as_deref(),
            Stream::Eval => self.eval.as_deref(),
        }
    }

    /// The source of the splits of `pass`, if its data is mixed.
    pub(crate) fn mixed_source(&self, pass: Pass) -> Option<MixedSource<'_>> {
        let mix = self.mix.as_deref().filter(|_| pass.stream == Stream::Train)?;
        let source = self.source(pass.stream)?;
        Some(MixedSource { source, mix, seed: self.order.seed, epoch: pass.epoch })
    }

    /// The order of one pass of the feed.
    pub(crate) fn pass_order(&self, pass: Pass) -> PassOrder {
        PassOrder::new(&self.order, pass, self.splits(pass.stream))
    }

    /// Whether this pass searches for a positive label: the first epoch must contain one.
    pub(crate) fn seeks_positive(&self, pass: Pass) -> bool {
        self.label.is_some() && pass.stream == Stream::Train && pass.epoch == 0
    }

    /// The number of lanes that have splits in any pass.
    pub(crate) fn live_lanes(&self) -> u32 {
        self.order.live_lanes(self.splits(Stream::Train).max(self.splits(Stream::Eval)))
    }

    /// The live lanes that this host reads, at least 1.
    fn lanes_here(&self) -> u32 {
        (0..self.live_lanes()).filter(|&lane| self.reads(lane)).count().max(1) as u32
    }

    /// The columns of tokens, if rows are documents.
    pub(crate) fn sequences(&self) -> Option<&SequenceColumns> {
        self.sequences.as_deref()
    }

    /// The columns of images of a batch.
    pub(crate) fn images(&self) -> &[ImageColumn] {
        &self.images
    }

    /// The number of splits in a pass over `stream`.
    fn splits(&self, stream: Stream) -> u32 {
        match (&self.mix, stream) {
            (Some(mix), Stream::Train) => mix.splits(),
            _ => self.source(stream).map_or(0, |source| source.splits()),
        }
    }

    fn mixing(&self, stream: Stream) -> Mixing {
        self.order.mixing(stream, self.splits(stream))
    }

    /// Sets the recorder, which records ingest's work while recording is on.
    #[must_use]
    pub fn recorded_by(self, recorder: &Arc<Recorder>) -> Self {
        Self { recorder: Arc::clone(recorder), ..self }
    }

    /// The sources whose read-ahead memory is adjustable.
    pub(crate) fn elastic(&self) -> impl Iterator<Item = Elastic<'_>> {
        [Stream::Train, Stream::Eval].into_iter().filter_map(|stream| self.source(stream)?.elastic())
    }

    /// The tuner, with the bounds of this job on a machine with `cores` cores.
    pub(crate) fn tuner(&self, cores: u32) -> Tuner {
        let bounds = Bounds {
            most_decoders: self.threads.unwrap_or(MOST_DECODERS * cores).min(self.lanes_here()),
            most_streams: self.streams.unwrap_or(MAX_STREAMS),
            least_object_bytes: ReadLimits::MIN_OBJECT_BYTES,
            most_object_bytes: self.object_bytes,
            fixed_decoders: self.threads.is_some(),
            fixed_streams: self.streams.is_some() || self.elastic().next().is_none(),
        };
        let first = ReadLimits::default();
        let setting = Setting {
            decoders: self.threads.unwrap_or(FIRST_DECODERS * cores),
            streams: self.streams.unwrap_or(first.streams()),
            object_bytes: first.object_bytes(),
        };
        Tuner::new(bounds, setting)
    }

    /// The resources of the stages, to the extent known before the start.
    pub(crate) fn resources(&self, cores: u32) -> Resources {
        let useful = self.elastic().map(|elastic| elastic.most_object_bytes).max();
        Resources {
            cores,
            lanes: self.lanes_here(),
            decoders_fixed: self.threads.is_some(),
            streams_fixed: self.streams.is_some(),
            most_object_bytes: self.object_bytes,
            useful_object_bytes: useful.unwrap_or(0).min(MOST_OBJECT_BYTES),
            ..Resources::default()
        }
    }
}

/// Why ranks on several hosts cannot take rows from whichever lanes are ready.
const NOT_DETERMINISTIC: &str = "ranks on several hosts need `deterministic = true`, with which all hosts read the rows in \
                                 the same order";

fn no_rank() -> Error {
    Error::Invalid("a feed needs at least one rank".to_owned())
}

/// Checks that documents can be packed in this order.
fn check_packing(sequences: Option<&SequenceColumns>, spec: &DataSpec, feed: Feed) -> Result<(), Error> {
    if sequences.is_none() || feed == Feed::Score || spec.shuffle_rows > 0 {
        return Ok(());
    }
    Err(Error::Invalid(
        "documents are packed within the windows of the shuffle pool: set shuffle_rows to at least some thousands"
            .to_owned(),
    ))
}

/// The filter's part of the order's fingerprint: with other rows, positions have another meaning.
fn filter_key(spec: &DataSpec) -> Result<u64, Error> {
    if spec.filter.is_empty() {
        return Ok(0);
    }
    let filter = serde_json::to_vec(&spec.filter).map_err(|error| Error::Invalid(error.to_string()))?;
    Ok(crate::fingerprint::fingerprint64(&filter))
}

/// The name of a stream's data in messages.
pub(crate) fn name_of(stream: Stream) -> &'static str {
    match stream {
        Stream::Train => "training",
        Stream::Eval => "held-out",
    }
}
