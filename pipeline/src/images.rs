//! Images of a batch, decoded straight into its slots.
//!
//! Chunks, and so the shuffle pool, hold encoded images, which are 3 to 10 times smaller than decoded ones. When rows are
//! packed, their images are decoded in parallel, each into its row of a slot. The packer waits until all are.
//!
//! Random crops, flips and colours are a function of (seed, epoch, split, record, column), so they do not depend on threads,
//! ranks, the batch size or a resume.
//!
//! A row whose image turns out to be damaged is already drawn. If bad records are skipped, its image becomes zeros, and it
//! counts as a bad record.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use millstream_batch::Sections;
use millstream_format::Error as FormatError;
use millstream_images::{ImageError, ImageReader, ImageSpec, LargeImages, Turbo};
use parking_lot::Mutex;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::chunk::{Chunk, ChunkColumn, EncodedImages};
use crate::error::Error;
use crate::fingerprint::fingerprint64;
use crate::ingest::{Counters, SkippedRecords};
use crate::order::{Pass, image_random};
use crate::pack::RowRef;

/// The bytes planned for an encoded image if the data does not say.
const USUAL_BYTES: u64 = 128 << 10;

/// A column of images.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageColumn {
    /// Its place among the typed columns of a batch.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// How its images become tensors.
    pub spec: Arc<ImageSpec>,
}

impl ImageColumn {
    /// The same column for held-out data.
    pub(crate) fn for_evaluation(self) -> Self {
        Self { spec: Arc::new(self.spec.for_evaluation()), ..self }
    }

    /// The bytes planned for an encoded image.
    pub(crate) fn planned_bytes(&self) -> u64 {
        self.spec.average_bytes.map_or(USUAL_BYTES, u64::from)
    }

    /// The same column with `average_bytes` derived from the mean size of its images in storage, unless it is set.
    pub(crate) fn with_mean_bytes(self, mean_bytes: Option<u64>) -> Self {
        let Some(mean) = mean_bytes.filter(|_| self.spec.average_bytes.is_none()) else { return self };
        // Windows differ from the mean.
        let planned = (mean.saturating_mul(3) / 2).clamp(1 << 10, u32::MAX.into());
        let spec = ImageSpec { average_bytes: u32::try_from(planned).ok(), ..ImageSpec::clone(&self.spec) };
        Self { spec: Arc::new(spec), ..self }
    }
}

/// How many images are decoded at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageThreads {
    /// The number of threads.
    pub(crate) threads: u32,
    /// Of these, those that may decode a large image at a time.
    pub(crate) large: u32,
}

impl ImageThreads {
    /// One thread per core, and all of them with a large image, as far as a quarter of `budget_bytes` each suffices for their
    /// memory; at least one.
    pub(crate) fn within(columns: &[ImageColumn], cores: u32, budget_bytes: u64) -> Self {
        let share = budget_bytes / 4;
        let most = |bytes: u64| u32::try_from(share / bytes.max(1)).unwrap_or(u32::MAX);
        let threads = cores.min(most(Self::reader_bytes(columns))).max(1);
        Self { threads, large: threads.min(most(Self::large_bytes(columns))).max(1) }
    }

    /// The maximum memory, in bytes.
    pub(crate) fn bytes(self, columns: &[ImageColumn]) -> u64 {
        let small = Self::reader_bytes(columns).saturating_mul(self.threads.into());
        small.saturating_add(Self::large_bytes(columns).saturating_mul(self.large.into()))
    }

    /// The memory of a thread: a reader for each column.
    fn reader_bytes(columns: &[ImageColumn]) -> u64 {
        columns.iter().map(|column| column.spec.reader_bytes()).fold(0, u64::saturating_add)
    }

    /// The memory for one large image of any column.
    fn large_bytes(columns: &[ImageColumn]) -> u64 {
        columns.iter().map(|column| column.spec.large_bytes()).max().unwrap_or(0)
    }
}

/// Decodes the images of rows that are packed.
pub(crate) struct ImageStage {
    columns: Vec<StageColumn>,
    threads: ThreadPool,
    seed: u64,
    skips: bool,
}

struct StageColumn {
    column: ImageColumn,
    /// Distinguishes its random numbers from those of other columns.
    key: u64,
    /// Of each thread.
    readers: Vec<Mutex<ImageReader>>,
}

/// Rows of a part of a batch that were just packed.
pub(crate) struct PackedRows<'a> {
    /// All sections of the part.
    pub(crate) sections: Sections<'a>,
    /// The row capacity of the part.
    pub(crate) capacity: usize,
    /// The place of the first row.
    pub(crate) at: usize,
    pub(crate) rows: &'a [RowRef],
}

/// An image to decode.
struct Task<'a> {
    column: &'a StageColumn,
    images: &'a EncodedImages,
    row: usize,
    /// The place of the row among those that are packed.
    place: usize,
    out: &'a mut [u8],
}

impl ImageStage {
    /// A stage with so many threads, and so many large images at a time. `skips`: whether damaged images are replaced.
    pub(crate) fn new(
        columns: &[ImageColumn],
        ImageThreads { threads, large }: ImageThreads,
        seed: u64,
        skips: bool,
    ) -> Result<Self, Error> {
        let turbo = Turbo::load().map(Arc::new).map_err(Arc::new);
        let large = Arc::new(LargeImages::new(large));
        let reader = |column: &ImageColumn| Mutex::new(ImageReader::new(&column.spec, turbo.clone(), &large));
        let columns = columns.iter().map(|column| StageColumn {
            readers: (0..threads).map(|_| reader(column)).collect(),
            key: fingerprint64(column.name.as_bytes()),
            column: column.clone(),
        });
        let pool = ThreadPoolBuilder::new().num_threads(threads as usize);
        let threads = pool
            .thread_name(|number| format!("ingest-image-{number}"))
            .build()
            .map_err(|error| Error::Panicked(format!("cannot start threads for images: {error}")))?;
        Ok(Self { columns: columns.collect(), threads, seed, skips })
    }

    /// Decodes the images of `packed` rows, which are of `chunks`. Returns those that became zeros.
    ///
    /// # Errors
    /// The first unusable image, in the order of the rows, unless bad records are skipped.
    pub(crate) fn decode(
        &self,
        packed: Vec<PackedRows<'_>>,
        chunks: &[Arc<Chunk>],
        pass: Pass,
        counters: &Counters,
    ) -> Result<SkippedRecords, Error> {
        let mut tasks: Vec<Task<'_>> = Vec::new();
        let mut place = 0;
        for PackedRows { sections, capacity, at, rows } in packed {
            let mut of_columns = sections.columns;
            let outs = self.columns.iter().map(|StageColumn { column, .. }| {
                let values = std::mem::take(&mut of_columns[column.number].values);
                let row_bytes = values.len() / capacity;
                values.chunks_exact_mut(row_bytes).skip(at)
            });
            let mut outs: Vec<_> = outs.collect();
            for &RowRef { chunk, row } in rows {
                for (column, outs) in self.columns.iter().zip(&mut outs) {
                    let ChunkColumn::Images(images) = &chunks[chunk as usize].columns[column.column.number]
                    else {
                        unreachable!("chunks have the batch's columns")
                    };
                    let row = row as usize;
                    tasks.extend(outs.next().map(|out| Task { column, images, row, place, out }));
                }
                place += 1;
            }
        }
        let mut failed = self.threads.install(|| {
            let tasks = tasks.into_par_iter().with_max_len(1);
            let failed = tasks.filter_map(|task| {
                let place = task.place;
                counters.images.time(|| self.run(task, pass)).err().map(|error| (place, error))
            });
            failed.collect::<Vec<(usize, Error)>>()
        });
        // A row counts once.
        failed.dedup_by_key(|(place, _)| *place);
        let mut skipped = SkippedRecords::default();
        for (_, error) in failed {
            if !self.skips || !error.is_bad_record() {
                return Err(error);
            }
            tracing::warn!(%error, "the image is replaced by zeros");
            skipped = SkippedRecords { records: skipped.records + 1, last: Some(error) };
        }
        Ok(skipped)
    }

    /// Decodes one image. If that fails, its row becomes zeros.
    fn run(&self, task: Task<'_>, pass: Pass) -> Result<(), Error> {
        let Task { column: StageColumn { column, key, readers }, images, row, out, .. } = task;
        let record = images.records[row];
        let mut random = image_random(self.seed, pass, (images.split, record), *key);
        let bytes = &images.bytes[images.offsets[row] as usize..images.offsets[row + 1] as usize];
        let thread = rayon::current_thread_index().unwrap_or(0);
        let mut read = || readers[thread].lock().read(bytes, &mut || random.next(), out);
        // A fault of a decoder concerns this image.
        let read = catch_unwind(AssertUnwindSafe(&mut read)).unwrap_or_else(|_| {
            Err(ImageError::Damaged { format: "encoded", message: "its decoder has failed".to_owned() })
        });
        read.map_err(|error| {
            out.fill(0);
            of_image(images, record, &column.name, &error)
        })
    }
}

/// The error of an image, with its address.
fn of_image(images: &EncodedImages, record: u64, column: &str, error: &ImageError) -> Error {
    if !error.is_of_image() {
        return Error::Invalid(error.to_string());
    }
    Error::Format(FormatError::BadValue {
        path: images.path.to_string(),
        record,
        column: column.to_owned(),
        message: error.to_string(),
    })
}
