//! Files in cloud storage: written like local files, and checked for damage.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_format::{Error as FormatError, ProjectedColumn, Projection};
use millstream_io::Error as IoError;
use millstream_io::storage::{StorageSpec, Stores};
use millstream_pipeline::Error;
use millstream_pipeline::bad_records::BadRecords;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::spec::OnBadRecord;
use millstream_test_storage::{Fault, Options, Server};
use millstream_tools::convert::{ConvertOptions, Converted, convert};
use millstream_tools::generate::{Generated, Generator};
use millstream_tools::output::Destination;
use millstream_tools::progress::Progress;
use tokio::runtime::Runtime;

/// A server and stores that access it.
struct Cloud {
    runtime: Runtime,
    server: Server,
    stores: Stores,
}

impl Cloud {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let server = runtime.block_on(Server::start(Options { page: 2, ..Options::default() })).unwrap();
        let mut spec = StorageSpec::default();
        spec.gs.endpoint = Some(server.endpoint());
        spec.gs.anonymous = Some(true);
        spec.az.endpoint = Some(server.endpoint());
        spec.az.anonymous = Some(true);
        spec.az.account = Some("someone".to_owned());
        let stores = Stores::new(spec, Stores::SHARED_BYTES);
        Self { runtime, server, stores }
    }

    fn destination(&self) -> Destination {
        Destination { stores: self.stores.clone(), runtime: self.runtime.handle().clone() }
    }

    fn generate(&self, output: &str, rows: u64, progress: &Progress) -> Result<Generated, Error> {
        let mut generator = Generator { rows, output: output.to_owned(), ..Generator::default() };
        generator.options.shards = Some(3);
        generator.options.threads = 2;
        generator.run(&self.destination(), progress)
    }

    fn convert(&self, input: &Path, output: &str) -> Result<Converted, Error> {
        let pattern = input.to_str().unwrap().to_owned();
        let inputs = self.runtime.block_on(self.stores.list(&[pattern], Path::new("/")))?;
        convert(&inputs, output, &ConvertOptions::default(), &self.destination(), &Progress::default())
    }

    fn open(&self, pattern: &str) -> Dataset {
        self.runtime.block_on(async {
            let objects = self.stores.list(&[pattern.to_owned()], Path::new("/")).await.unwrap();
            Dataset::of(objects, None).await.unwrap()
        })
    }

    /// Reads one column of all splits of `dataset`. Returns the number of rows.
    fn read(&self, dataset: &Dataset) -> Result<usize, Error> {
        let column = ProjectedColumn { name: "c1".to_owned(), multi: false };
        let projection = Projection { columns: vec![column], ..Projection::default() };
        let bad = BadRecords::new(OnBadRecord::Fail);
        let mut rows = 0;
        for split in 0..dataset.splits().len() {
            let mut reader = dataset.read(split, &projection, &bad, self.runtime.handle())?;
            while let Some(chunk) = reader.next_chunk(1_000)? {
                rows += chunk.rows();
            }
        }
        Ok(rows)
    }
}

#[test]
fn files_in_the_cloud_match_local_ones() {
    let cloud = Cloud::new();
    let directory = tempfile::tempdir().unwrap();
    // Large enough for multipart uploads.
    for (cloud_of, name) in [("gs", "a.tfrecord"), ("gs", "a.parquet"), ("gs", "a.csv"), ("az", "b.parquet")]
    {
        let remote = format!("{cloud_of}://b/made/{name}");
        let remote = cloud.generate(&remote, 90_000, &Progress::default()).unwrap();
        let local = directory.path().join(name);
        let local = cloud.generate(local.to_str().unwrap(), 90_000, &Progress::default()).unwrap();
        assert_eq!((remote.bytes, remote.files.len()), (local.bytes, 3));
        for (remote, local) in remote.files.iter().zip(&local.files) {
            let object = cloud.server.get(remote.split_once("://").unwrap().1).unwrap();
            assert!(object == std::fs::read(local).unwrap(), "{remote}");
        }
    }
    assert_eq!(cloud.server.uploads(), 0);
    assert_eq!(cloud.read(&cloud.open("gs://b/made/a-*.parquet")).unwrap(), 90_000);
    assert_eq!(cloud.read(&cloud.open("az://b/made/b-*.parquet")).unwrap(), 90_000);
    assert_eq!(cloud.read(&cloud.open("az://b/*/b-0000[02]-*")).unwrap(), 60_000);
}

#[test]
fn an_index_of_other_shards_in_the_cloud_is_not_replaced() {
    let cloud = Cloud::new();
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("in.csv");
    std::fs::write(&input, "n\n1\n2\n").unwrap();
    for cloud_of in ["gs", "az"] {
        let (ours, index) = (format!("{cloud_of}://b/{cloud_of}"), format!("b/{cloud_of}/index.json"));
        // The index of the same shards is replaced.
        for _ in 0..2 {
            let converted = cloud.convert(&input, &format!("{ours}/a@2.mds")).unwrap();
            assert_eq!((converted.rows, converted.files.len()), (2, 3));
        }
        let written = cloud.server.get(&index).unwrap();
        for other in [&written[..], b"{}", b"not JSON"] {
            cloud.server.put(&index, other.to_vec());
            let before = cloud.server.names();
            let error = cloud.convert(&input, &format!("{ours}/b.mds")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{ours}/index.json: describes other files")), "{error}");
            assert_eq!((cloud.server.names(), cloud.server.uploads()), (before, 0));
            assert!(cloud.server.get(&index).unwrap() == other);
        }
    }
}

#[test]
fn a_concurrently_changed_blob_is_named() {
    let cloud = Cloud::new();
    cloud.generate("az://b/a.tfrecord", 3_000, &Progress::default()).unwrap();
    let dataset = cloud.open("az://b/a-00001-of-*");
    cloud.server.script([Fault::Status(503), Fault::Change]);
    let error = cloud.read(&dataset).unwrap_err();
    assert!(
        matches!(&error, Error::Io(IoError::Changed { path }) if path == "az://b/a-00001-of-00003.tfrecord"),
        "{error}"
    );
}

#[test]
fn a_cancelled_run_leaves_no_objects_or_uploads() {
    let cloud = Cloud::new();
    let progress = Arc::new(Progress::default());
    std::thread::scope(|scope| {
        let made = scope.spawn(|| cloud.generate("gs://b/a.tfrecord", u64::MAX / 4, &progress));
        while cloud.server.uploads() == 0 {
            std::thread::yield_now();
        }
        progress.cancel();
        assert!(matches!(made.join().unwrap(), Err(Error::Cancelled)));
    });
    assert_eq!((cloud.server.names(), cloud.server.uploads()), (Vec::new(), 0));
}

#[test]
fn transient_write_errors_are_retried() {
    let cloud = Cloud::new();
    cloud.server.script([503, 429, 500].map(Fault::WriteStatus));
    for address in ["gs://b/a.tfrecord", "az://b/a.tfrecord"] {
        assert_eq!(cloud.generate(address, 3_000, &Progress::default()).unwrap().files.len(), 3);
    }
    assert_eq!((cloud.server.unmet(), cloud.server.names().len()), (0, 3));
    let cloud = Cloud::new();
    cloud.server.script([Fault::WriteStatus(403)]);
    let error = cloud.generate("gs://b/a.tfrecord", 3_000, &Progress::default()).unwrap_err().to_string();
    assert!(error.starts_with("gs://b/a-0000") && error.contains("403"), "{error}");
    assert_eq!((cloud.server.names(), cloud.server.uploads()), (Vec::new(), 0));
}

#[test]
fn a_hanging_write_is_cancelled_immediately() {
    let cloud = Cloud::new();
    cloud.server.script([Fault::WriteSilence(Duration::from_secs(600))]);
    std::thread::scope(|scope| {
        let made = scope.spawn(|| cloud.generate("gs://b/a.tfrecord", 3_000, &Progress::default()));
        while cloud.server.unmet() > 0 {
            std::thread::yield_now();
        }
        let start = Instant::now();
        cloud.stores.cancel();
        assert!(matches!(made.join().unwrap(), Err(Error::Cancelled)));
        assert!(start.elapsed() < Duration::from_secs(30));
    });
    assert_eq!((cloud.server.names(), cloud.server.uploads()), (Vec::new(), 0));
}

#[test]
fn a_corrupted_body_is_damage_with_an_address() {
    let cloud = Cloud::new();
    cloud.generate("gs://b/a.tfrecord", 3_000, &Progress::default()).unwrap();
    let dataset = cloud.open("gs://b/a-00001-of-*");
    cloud.server.script([Fault::Corrupt]);
    let error = cloud.read(&dataset).unwrap_err();
    assert_eq!(cloud.server.unmet(), 0);
    assert!(matches!(&error, Error::Format(FormatError::Damage { .. })), "{error}");
    assert!(error.to_string().contains("gs://b/a-00001-of-00003.tfrecord"), "{error}");
    // The damaged bytes are not cached for the next reader.
    assert_eq!(cloud.read(&dataset).unwrap(), 1_000);
}
