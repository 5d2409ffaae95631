//! Columns of images end to end, from files to the batches of one rank or several: each image once per epoch, random parts
//! that depend on the row and the epoch alone, and images that cannot be used.

#![allow(clippy::unwrap_used)]

#[path = "support/files.rs"]
mod files;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use millstream_batch::{ColumnKind, Dtype};
use millstream_images::{Channels, Crop, Decode, ImageSpec, Jitter, Layout};
use millstream_pipeline::Error;
use millstream_pipeline::dataset::{Absent, Dataset};
use millstream_pipeline::ingest::{self, DatasetSource, IngestPlan, IngestReport};
use millstream_pipeline::order::Position;
use millstream_pipeline::spec::{ColumnSpec, DataSpec, OnBadRecord};
use millstream_pipeline::transform::Transform;
use tokio::runtime::Runtime;

const ROWS: usize = 61;
const BATCH: u32 = 8;
const EPOCHS: u32 = 2;
/// Height and width of the stored images, and of the results.
const STORED: u32 = 12;
const SIZE: u32 = 6;

/// A PNG file in which red is the row's number, and green and blue say where a pixel is.
fn png(row: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, STORED, STORED);
    encoder.set_color(png::ColorType::Rgb);
    let of_pixel = |pixel: u32| [row as u8, (pixel / STORED * 20) as u8, (pixel % STORED * 20) as u8];
    let pixels: Vec<u8> = (0..STORED * STORED).flat_map(of_pixel).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    bytes
}

fn write(path: &Path, image: impl Fn(usize) -> Vec<u8>) {
    let images: Vec<Vec<u8>> = (0..ROWS).map(image).collect();
    let columns: [(&str, ArrayRef); 2] = [
        ("id", Arc::new(Int64Array::from_iter_values(0..ROWS as i64))),
        ("image", Arc::new(BinaryArray::from_iter_values(&images))),
    ];
    files::write_parquet(path, &RecordBatch::try_from_iter(columns).unwrap(), 10);
}

fn spec() -> ImageSpec {
    ImageSpec {
        height: SIZE,
        width: SIZE,
        channels: Channels::Rgb,
        crop: Crop::RandomResized { scale: [0.3, 1.0], ratio: [0.75, 1.333] },
        flip: true,
        jitter: Jitter::default(),
        normalize: None,
        layout: Layout::Nhwc,
        dtype: Dtype::Uint8,
        decode: Decode::Exact,
        max_pixels: 4_096,
        average_bytes: None,
    }
}

struct Data {
    spec: DataSpec,
    source: Arc<DatasetSource>,
    transform: Arc<Transform>,
    _runtime: Runtime,
}

impl Data {
    fn open(base: &Path, image: ImageSpec, change: impl FnOnce(DataSpec) -> DataSpec) -> Self {
        let runtime = Runtime::new().unwrap();
        let spec = change(DataSpec {
            base: base.to_owned(),
            batch_size: BATCH,
            epochs: EPOCHS,
            shuffle_rows: 24,
            lanes: 3,
            prefetch: 3,
            ..DataSpec::default()
        });
        let id = ColumnKind::Fixed { dtype: Dtype::Int32, shape: Vec::new() };
        let column = |name: &str, column: &str, kind, image| ColumnSpec {
            name: name.to_owned(),
            column: column.to_owned(),
            kind,
            missing: None,
            image,
            tokens: None,
        };
        let kind = image.column_kind();
        let columns = [
            column("id", "id", id, None),
            column("image", "image", kind.clone(), Some(image.clone())),
            column("view", "image", kind, Some(image)),
        ];
        let transform = Arc::new(Transform::of_columns(&columns, None, &[]).unwrap());
        let dataset = runtime.block_on(Dataset::open(&["*.parquet".into()], base, None)).unwrap();
        dataset.check(transform.projection(), Absent::Rejected, runtime.handle()).unwrap();
        let handle = runtime.handle().clone();
        let source =
            DatasetSource::new(Arc::new(dataset), Arc::clone(&transform), spec.on_bad_record, handle);
        Self { spec, source: Arc::new(source), transform, _runtime: runtime }
    }

    fn plan(&self) -> Result<IngestPlan, Error> {
        let position_bytes = Position::encoded_bytes(self.spec.lanes) as u32;
        let schema = self.transform.schema(self.spec.batch_size, position_bytes);
        IngestPlan::feeding(&self.spec, 3, schema, (self.source.clone(), None))
    }
}

/// The image of each row, by epoch and number; and the position after each batch.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    images: BTreeMap<(u32, i32), Vec<u8>>,
    /// Images whose other view differs.
    different: usize,
    positions: Vec<Vec<u8>>,
}

fn run(plan: &IngestPlan, from: Position) -> (Seen, Result<IngestReport, Error>) {
    let (rings, hand_offs) = plan.create_rings().unwrap();
    let mut consumers: Vec<_> =
        hand_offs.into_iter().map(|hand_off| hand_off.open(plan.ring_schema()).unwrap()).collect();
    let ingest = ingest::start(plan.clone(), from, rings).unwrap();
    let mut seen = Seen::default();
    'batches: loop {
        for rank in &mut consumers {
            let Ok(Some(leased)) = rank.next() else { break 'batches };
            let (batch, rows) = (leased.batch(), leased.batch().rows());
            let ids = batch.column(0).values.chunks_exact(4);
            let images = batch.column(1).values.chunks_exact((SIZE * SIZE * 3) as usize);
            let views = batch.column(2).values.chunks_exact((SIZE * SIZE * 3) as usize);
            seen.different += images.clone().zip(views).filter(|(image, view)| image != view).count();
            for (id, image) in ids.zip(images.clone()).take(rows) {
                let id = i32::from_ne_bytes(id.try_into().unwrap());
                let before = seen.images.insert((batch.header().epoch, id), image.to_vec());
                assert_eq!(before, None, "row {id} occurs twice");
            }
            assert!(images.skip(rows).flatten().all(|&level| level == 0), "padding");
            seen.positions.push(batch.position().to_vec());
        }
    }
    seen.positions.dedup();
    drop(consumers);
    (seen, ingest.join())
}

fn write_all(directory: &Path) {
    write(&directory.join("images.parquet"), png);
}

#[test]
fn images_depend_on_the_row_and_the_epoch_alone() {
    let directory = tempfile::tempdir().unwrap();
    write_all(directory.path());
    let open = |change: fn(DataSpec) -> DataSpec| Data::open(directory.path(), spec(), change);
    let data = open(|spec| spec);
    let whole = data.plan().unwrap();
    let (seen, report) = run(&whole, whole.start());
    let stats = report.unwrap().stats;
    assert_eq!((stats.rows, stats.skipped_records), (u64::from(EPOCHS) * ROWS as u64, 0));
    assert_eq!(seen.images.len(), EPOCHS as usize * ROWS);
    for (&(epoch, id), image) in &seen.images {
        assert!(image.chunks_exact(3).all(|pixel| i32::from(pixel[0]) == id), "row {id}: {image:?}");
        if epoch > 0 {
            assert_ne!(Some(image), seen.images.get(&(0, id)), "row {id} is drawn again in each epoch");
        }
    }
    assert!(seen.different > 110, "columns have different parts: {}", seen.different);
    let parts: std::collections::BTreeSet<_> =
        seen.images.values().map(|image| (image[1], image[2])).collect();
    assert!(parts.len() > 40, "rows have different parts: {}", parts.len());
    // Other threads, ranks, batch sizes, windows.
    for change in [
        |spec| DataSpec { threads: Some(1), ..spec },
        |spec| DataSpec { threads: Some(5), lanes: 2, ..spec },
        |spec| DataSpec { batch_size: 24, shuffle_rows: 1, ..spec },
    ] {
        let data = open(change);
        let plan = data.plan().unwrap();
        let (other, report) = run(&plan, plan.start());
        report.unwrap();
        assert!(other.images == seen.images);
    }
    for ranks in [2, 4] {
        let plan = whole.clone().with_ranks(ranks).unwrap();
        assert!(run(&plan, plan.start()).0.images == seen.images, "{ranks} ranks");
    }
    let middle = seen.positions.len() / 2;
    let (rest, _) = run(&whole, whole.resume(&seen.positions[middle]).unwrap());
    assert_eq!(rest.positions, seen.positions[middle + 1..]);
    assert!(rest.images.iter().all(|(row, image)| seen.images[row] == *image));
}

#[test]
fn held_out_images_are_whole_and_not_random() {
    let directory = tempfile::tempdir().unwrap();
    write_all(directory.path());
    let data = Data::open(directory.path(), spec(), |spec| spec);
    let schema = data.plan().unwrap().schema().clone();
    let plan = IngestPlan::scoring(&data.spec, schema, data.source.clone()).unwrap();
    let (seen, report) = run(&plan, plan.start());
    report.unwrap();
    let of_row = |row| &seen.images[&(0, row)];
    assert_eq!((seen.images.len(), seen.different), (ROWS, 0));
    for row in 1..ROWS as i32 {
        let places =
            |image: &[u8]| image.chunks_exact(3).map(|pixel| [pixel[1], pixel[2]]).collect::<Vec<_>>();
        assert_eq!(places(of_row(row)), places(of_row(0)));
    }
}

/// Damaged in row 7.
fn one_damaged(row: usize) -> Vec<u8> {
    let bytes = png(row);
    if row == 7 { bytes[..bytes.len() / 2].to_vec() } else { bytes }
}

#[test]
fn unusable_images_are_reported_with_their_address_or_counted() {
    let directory = tempfile::tempdir().unwrap();
    let write = |image: fn(usize) -> Vec<u8>| write(&directory.path().join("images.parquet"), image);
    write(one_damaged);
    let open = |on_bad_record| {
        let change = |spec| DataSpec { on_bad_record, epochs: 1, ..spec };
        let data = Data::open(directory.path(), spec(), change);
        let plan = data.plan().unwrap();
        run(&plan, plan.start())
    };
    let error = open(OnBadRecord::Fail).1.unwrap_err().to_string();
    assert!(
        error.contains("images.parquet") && error.contains("record 7") && error.contains("`image`"),
        "{error}"
    );
    assert!(error.contains("the PNG image is damaged"), "{error}");
    write(|row| if row == 20 { b"not an image".to_vec() } else { one_damaged(row) });
    let (seen, report) = open(OnBadRecord::Skip { limit: 2 });
    // A row counts once, though both of its images are damaged.
    assert_eq!(report.unwrap().stats.skipped_records, 2);
    // What is no image is skipped; a damaged one is seen only when its row is drawn.
    assert_eq!(seen.images.len(), ROWS - 1);
    assert!(!seen.images.contains_key(&(0, 20)));
    assert!(seen.images[&(0, 7)].iter().all(|&level| level == 0));
    let error = open(OnBadRecord::Skip { limit: 1 }).1.unwrap_err();
    assert!(matches!(error, Error::TooManyBadRecords { limit: 1, .. }), "{error}");
}

#[test]
fn memory_is_planned_for_images_of_a_usual_size() {
    let directory = tempfile::tempdir().unwrap();
    write_all(directory.path());
    let plan = |image: ImageSpec, budget| {
        let change = |spec| DataSpec { memory_budget_bytes: budget, threads: Some(2), ..spec };
        let data = Data::open(directory.path(), image, change);
        data.plan().map(|plan| (plan, data))
    };
    let memory = |image| plan(image, 1 << 30).unwrap().0.memory();
    let usual = memory(spec());
    let large = memory(ImageSpec { average_bytes: Some(1 << 20), ..spec() });
    // Two windows of at least 24 rows.
    assert!(large.pool_bytes > usual.pool_bytes + (47 << 20), "{usual:?} {large:?}");
    assert_eq!(usual.image_bytes, 2 * (2 * spec().reader_bytes() + spec().large_bytes()));
    // Of larger ones, fewer are decoded at a time.
    let large = ImageSpec { max_pixels: 1 << 23, ..spec() };
    assert_eq!(memory(large.clone()).image_bytes, 4 * large.reader_bytes() + large.large_bytes());
    let error = plan(ImageSpec { max_pixels: 1 << 28, ..spec() }, 1 << 30).err().unwrap().to_string();
    assert!(error.contains("to decode images of max_pixels = 268435456 in 2 threads"), "{error}");

    // Larger images use what the budget leaves.
    let small = || ImageSpec { average_bytes: Some(1), ..spec() };
    let (roomy, _data) = plan(small(), 1 << 30).unwrap();
    run(&roomy, roomy.start()).1.unwrap();
    let (tight, _data) = plan(small(), roomy.memory().least_bytes() + 1_024).unwrap();
    let error = run(&tight, tight.start()).1.unwrap_err().to_string();
    assert!(error.contains("set `average_bytes` of the column to at least"), "{error}");
}
