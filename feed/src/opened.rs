//! Opening a feed: its files are listed and frozen, and ingest is planned.

use std::sync::Arc;

use millstream_batch::{BatchSchema, Count, HandOff, Producer, Size};
use millstream_io::storage::Stores;
use millstream_pipeline::dataset::{Absent, Dataset, Pinned};
use millstream_pipeline::ingest::{self, DatasetSource, IngestHandle, IngestPlan, Peers};
use millstream_pipeline::order::{Position, Runs, Shards};
use millstream_pipeline::sequences::Packed;
use millstream_pipeline::spec::{DataSpec, Purpose};
use millstream_pipeline::tokenizer::{Tokenizer, Tokenizers};
use millstream_pipeline::transform::Transform;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;

use crate::Error;
use crate::access::Access;
use crate::machines::Meeting;
use crate::protocol::Attached;
use crate::spec::FeedSpec;
use crate::state::{FeedState, Files, hex};

/// Ring slots of an evaluation: one is filled while a program takes another, and still has the one before.
const EVAL_SLOTS: u32 = 3;

/// The share of the memory budget that an evaluation may use, in addition: one in this many bytes.
const EVAL_SHARE: u64 = 8;

/// The maximum bytes of a file that describes a tokenizer. Those of large vocabularies have about 30 MiB.
const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// An open feed.
pub struct OpenedFeed {
    spec: FeedSpec,
    access: Arc<dyn Access>,
    stores: Stores,
    runtime: Handle,
    transform: Arc<Transform>,
    plan: IngestPlan,
    runs: Runs,
    position: Position,
    files: Files,
    rows: Option<u64>,
    /// Set if this host reads a shard.
    meeting: Option<Meeting>,
}

impl OpenedFeed {
    /// Opens the feed for the ranks of this host, at `state` or the start, with what `access` admits. With a `meeting` the host
    /// reads a shard. Blocks, so it must not be called from async code.
    ///
    /// # Errors
    /// The data is absent, may not be read, does not match the feed, or does not fit its memory budget; the state is of another
    /// feed.
    pub fn open(
        spec: FeedSpec,
        (runs, meeting): (&Runs, Option<&Meeting>),
        state: Option<&FeedState>,
        access: &Arc<dyn Access>,
        (stores, runtime): (&Stores, &Handle),
    ) -> Result<Self, Error> {
        check_ranks(spec.data.batch_size, runs.ranks())?;
        let stores = stores.for_job(&spec.storage);
        let tokenizers = read_tokenizers(&spec, &**access, &stores, runtime)?;
        let packed = spec.sequences.as_ref().map(|spec| Packed { spec, tokenizers: &tokenizers });
        let transform = Arc::new(Transform::of_columns(&spec.columns, packed, &spec.data.missing)?);
        let source =
            Source { spec: &spec, access: &**access, stores: &stores, runtime, transform: &transform };
        let (dataset, files) = source.dataset(&spec.data.train, Purpose::Training, state)?;
        // The number of sequences shows only when documents are packed.
        let rows = dataset.rows().filter(|_| spec.sequences.is_none());
        let schema = source.schema();
        let train = source.chunks(dataset)?;
        let memory_budget_bytes = match meeting {
            // Which lanes this host reads shows when it has met the others.
            Some(_) => u64::MAX,
            None => spec.data.memory_budget_bytes,
        };
        let data = DataSpec { memory_budget_bytes, ..spec.data.clone() };
        let plan = IngestPlan::feeding(&data, spec.seed, schema, (train, None))?;
        let plan = plan.with_runs(runs.clone())?;
        if meeting.is_some() {
            plan.check_shardable()?;
        }
        let position = match state {
            Some(state) => resumed(&plan, state)?,
            None => plan.start(),
        };
        let (access, runtime) = (Arc::clone(access), runtime.clone());
        let runs = runs.clone();
        let meeting = meeting.cloned();
        Ok(Self { access, stores, runtime, transform, plan, runs, position, files, rows, spec, meeting })
    }

    /// Creates the ring of each rank of this host. Returns the ends of both sides in the order of the ranks.
    ///
    /// # Errors
    /// The system refuses memory.
    pub fn create_rings(&self) -> Result<(Vec<Producer>, Vec<HandOff>), Error> {
        Ok(self.plan.create_rings()?)
    }

    /// Starts to fill the `rings` with the rows of all data, or with those of a shard, among the hosts of the others.
    ///
    /// # Errors
    /// The system refuses threads, or as for [`OpenedFeed::check`].
    pub fn start(
        &self,
        rings: Vec<Producer>,
        shard: Option<(Arc<dyn Peers>, Shards)>,
    ) -> Result<IngestHandle, Error> {
        let position = self.position.clone();
        Ok(match shard {
            None => ingest::start(self.plan.clone(), position, rings)?,
            Some((peers, shards)) => {
                ingest::start_among(Some(peers), self.sharded(shards)?, position, rings)?
            }
        })
    }

    /// The plan for a shard.
    fn sharded(&self, shards: Shards) -> Result<IngestPlan, Error> {
        Ok(self.plan.clone().with_shards(shards)?.with_budget(self.spec.data.memory_budget_bytes)?)
    }

    /// The runs of the ranks of this host, and the number of lanes.
    pub(crate) fn parts(&self) -> (&Runs, u32) {
        (&self.runs, self.spec.data.lanes)
    }

    /// Checks that this host can read its shard.
    ///
    /// # Errors
    /// The data is too little for so many shards, or the memory budget too small for this one.
    pub(crate) fn check(&self, shards: &Shards) -> Result<(), Error> {
        self.sharded(shards.clone()).map(drop)
    }

    /// The same for one pass over the held-out data `name`, in its order, with its identity.
    ///
    /// # Errors
    /// There is no such data, and as for [`OpenedFeed::open`] and [`OpenedFeed::start`].
    pub fn start_evaluation(&self, name: &str) -> Result<(IngestHandle, Vec<HandOff>, String), Error> {
        let Some(patterns) = self.spec.eval.get(name) else {
            let names: Vec<_> = self.spec.eval.keys().map(|name| format!("`{name}`")).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(Error::Failed(format!("the feed has no held-out data `{name}`; it has {names}")));
        };
        let Self { spec, access, stores, runtime, transform, .. } = self;
        let source = Source { spec, access: &**access, stores, runtime, transform };
        let (dataset, files) = source.dataset(patterns, Purpose::Scoring, None)?;
        let memory_budget_bytes = self.evaluation_bytes();
        let data = DataSpec { memory_budget_bytes, prefetch: EVAL_SLOTS, ..spec.data.clone() };
        let plan = IngestPlan::scoring(&data, source.schema(), source.chunks(dataset)?)?;
        let plan = plan.with_runs(self.runs.clone())?;
        let (rings, hand_offs) = plan.create_rings()?;
        let identity = self.identity(&plan.start(), &files);
        Ok((ingest::start(plan.clone(), plan.start(), rings)?, hand_offs, identity))
    }

    /// The memory that an evaluation may use, in addition.
    pub fn evaluation_bytes(&self) -> u64 {
        (self.spec.data.memory_budget_bytes / EVAL_SHARE).max(self.plan.memory().least_bytes())
    }

    /// The hash, in hexadecimal, of what determines the batches of `files` from `position` on.
    fn identity(&self, position: &Position, files: &Files) -> String {
        let mut encoded = Vec::new();
        position.encode(&mut encoded);
        let (shared, listing) = (self.spec.shared.as_bytes(), files.listing_hash.as_bytes());
        // Another version may read data in another way.
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        let rule: &[u8] = if self.meeting.is_some() { b"shards" } else { b"runs" };
        let parts = [version, shared, &self.runs.ranks().to_le_bytes(), &encoded, listing, rule];
        let hash = parts.iter().fold(Sha256::new(), |hash, part| {
            hash.chain_update((part.len() as u64).to_le_bytes()).chain_update(part)
        });
        hex(&hash.finalize())
    }

    /// What a rank has to know.
    pub fn attached(&self) -> Attached {
        let (data, schema) = (&self.spec.data, self.plan.ring_schema().clone());
        let batch_rows = u64::from(data.batch_size);
        let batches = |rows: u64| if data.drop_last { rows / batch_rows } else { rows.div_ceil(batch_rows) };
        Attached {
            schema,
            slots: self.plan.slots(),
            epochs: data.epochs,
            identity: self.identity(&self.position, &self.files),
            // How many batches shards have depends on their files.
            batches: self.rows.filter(|_| self.meeting.is_none()).map(batches),
            files: self.files.clone(),
            meeting: self.meeting.clone(),
        }
    }
}

/// The place in `plan` after the batch of `state`. If that was the last one, the epochs that only this feed has follow.
fn resumed(plan: &IngestPlan, state: &FeedState) -> Result<Position, Error> {
    let encoded = state.position()?;
    let position = plan.resume(&encoded)?;
    Ok(match (position.pass, state.epochs) {
        (None, Some(epochs)) => plan.continue_from(&encoded, epochs)?.unwrap_or(position),
        _ => position,
    })
}

/// Checks that all ranks have equally many rows of a batch.
fn check_ranks(batch_size: u32, ranks: u32) -> Result<(), Error> {
    if batch_size.is_multiple_of(ranks) {
        return Ok(());
    }
    let (less, more) = (batch_size / ranks * ranks, batch_size.div_ceil(ranks).saturating_mul(ranks));
    let advice = if less == 0 { more.to_string() } else { format!("{less} or {more}") };
    Err(Error::Failed(format!(
        "data.batch_size: {batch_size} is not a multiple of {ranks} ranks; use {advice}"
    )))
}

/// Reads the tokenizers that columns name.
fn read_tokenizers(
    spec: &FeedSpec,
    access: &dyn Access,
    stores: &Stores,
    runtime: &Handle,
) -> Result<Tokenizers, Error> {
    let base = &spec.data.base;
    let mut tokenizers = Tokenizers::new();
    for path in spec.columns.iter().filter_map(|column| column.tokens.as_ref()?.tokenizer.as_ref()) {
        if tokenizers.contains_key(path) {
            continue;
        }
        let files = runtime.block_on(stores.list(std::slice::from_ref(path), base))?;
        access.check_files(&files, base)?;
        let [file] = &files[..] else {
            return Err(Error::Failed(format!(
                "{path}: {} match, and a tokenizer is one",
                Count(files.len() as u64, "file")
            )));
        };
        let check = |bytes: u64| match bytes {
            0..=MAX_TOKENIZER_BYTES => Ok(()),
            _ => {
                let (size, most) = (Size(bytes), Size(MAX_TOKENIZER_BYTES));
                Err(Error::Failed(format!("{}: {size}; a tokenizer has at most {most}", file.address())))
            }
        };
        check(file.size())?;
        let gone = || Error::Failed(format!("{}: the file is gone", file.address()));
        let (bytes, _) = runtime.block_on(stores.get_small(file.path(), base))?.ok_or_else(gone)?;
        // It may have been replaced.
        check(bytes.len() as u64)?;
        tokenizers.insert(path.clone(), Arc::new(Tokenizer::parse(&bytes, &file.address())?));
    }
    Ok(tokenizers)
}

/// What the data of a feed is read with.
struct Source<'a> {
    spec: &'a FeedSpec,
    access: &'a dyn Access,
    stores: &'a Stores,
    runtime: &'a Handle,
    transform: &'a Arc<Transform>,
}

impl Source<'_> {
    /// The rows of the files that `patterns` match, of those that `state` has frozen.
    fn dataset(
        &self,
        patterns: &[String],
        purpose: Purpose,
        state: Option<&FeedState>,
    ) -> Result<(Arc<Dataset>, Files), Error> {
        let Self { spec: FeedSpec { data, .. }, access, stores, runtime, .. } = self;
        let check = |patterns: &[String]| access.check_patterns(patterns, stores);
        let mut listed = Pinned::of(patterns, stores, runtime, check)?.list(stores, &data.base, runtime)?;
        access.check_files(&listed.objects, &data.base)?;
        let files = match state {
            Some(state) => {
                listed.objects = state.files.keep(listed.objects)?;
                state.files.clone()
            }
            None => Files::of(&listed.objects),
        };
        Ok((Arc::new(listed.open(data, runtime)?.filtered(&data.rows(purpose))), files))
    }

    /// The dataset as a source of chunks.
    fn chunks(&self, dataset: Arc<Dataset>) -> Result<Arc<DatasetSource>, Error> {
        let data = &self.spec.data;
        Ok(DatasetSource::open(dataset, self.transform, data, Absent::Rejected, self.runtime)?)
    }

    /// The contents of a global batch.
    fn schema(&self) -> BatchSchema {
        self.transform.batch_schema(&self.spec.data)
    }
}
