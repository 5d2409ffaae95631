#![allow(clippy::unwrap_used)]

use std::path::Path;

use arrow_array::builder::{Float32Builder, Int64Builder, ListBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int64Array,
    RecordBatch, StringArray, TimestampMicrosecondArray, TimestampNanosecondArray, UInt64Array,
};
use millstream_io::storage::{Stores, list};
use millstream_pipeline::analysis::{Analysis, Moments, NumberStatistics};
use millstream_pipeline::chunk::Chunk;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::ingest::DatasetSource;
use millstream_pipeline::spec::{
    FeatureKind, FeatureSpec, LabelSpec, MissingNumber, Normalize, OutOfRange, Terms,
};
use parquet::arrow::ArrowWriter;
use tokio::runtime::Runtime;

use super::*;
use crate::convert::{ConvertOptions, convert};
use crate::output::Destination;
use crate::progress::Progress;

/// The values that mean "missing" in the job.
const MISSING: [&str; 2] = ["?", "NaN"];

struct Bench {
    runtime: Runtime,
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Self { runtime: runtime.unwrap(), directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    fn objects(&self, name: &str) -> Vec<Object> {
        self.runtime.block_on(list(&[name.to_owned()], self.path())).unwrap()
    }

    /// Writes the columns as Parquet, and that as a file of each of `names`.
    fn write_table(&self, columns: Vec<(&str, ArrayRef)>, names: &[&str]) {
        let table = RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, array)| (name, array, true)),
        );
        let table = table.unwrap();
        let file = std::fs::File::create(self.path().join("a.parquet")).unwrap();
        let mut writer = ArrowWriter::try_new(file, table.schema(), None).unwrap();
        writer.write(&table).unwrap();
        writer.close().unwrap();
        let here = Destination { stores: Stores::default(), runtime: self.runtime.handle().clone() };
        for name in names {
            let mut options = ConvertOptions::default();
            let lists = ["tags", "weights"].map(|name| (name.to_owned(), "|".to_owned()));
            options.text.separators = lists.into();
            if !name.contains("csv") {
                options.text.separators.clear();
            }
            let output = format!("{}/{name}", self.path().display());
            convert(&self.objects("a.parquet"), &output, &options, &here, &Progress::default()).unwrap();
        }
    }

    fn dataset(&self, name: &str, transform: &Arc<Transform>) -> Arc<Dataset> {
        let dataset = self.runtime.block_on(Dataset::of(self.objects(name), None)).unwrap();
        dataset.check(transform.projection(), Absent::Rejected, self.runtime.handle()).unwrap();
        Arc::new(dataset)
    }

    /// The source of text files.
    fn source(&self, name: &str, spec: TextSpec<'_>) -> Result<TextSource, Error> {
        let csv = CsvOptions { missing: MISSING.map(str::to_owned).to_vec(), ..CsvOptions::default() };
        let files = TextFiles::detect(&self.objects(name), csv, BTreeMap::new(), self.runtime.handle())?;
        TextSource::new(files.expect("a text format"), spec)
    }

    fn rows(&self, name: &str, spec: TextSpec<'_>) -> Result<Vec<Chunk>, Error> {
        chunks(&self.source(name, spec)?)
    }
}

/// All rows of a source, in chunks of three.
fn chunks(source: &dyn ChunkSource) -> Result<Vec<Chunk>, Error> {
    let mut chunks = Vec::new();
    for split in 0..source.splits() {
        let mut reader = source.open(split, 0, &Permit::default(), &Arc::default())?.reader;
        while let Some(chunk) = reader.next(3)? {
            chunks.push(chunk);
        }
    }
    Ok(chunks)
}

fn spec<'a>(
    transform: &Arc<Transform>,
    stored_types: &'a BTreeMap<String, StoredType>,
    filter: &'a RowFilter,
) -> TextSpec<'a> {
    TextSpec {
        transform: Arc::clone(transform),
        filter,
        stored_types,
        on_bad_record: OnBadRecord::Fail,
        absent: Absent::AllowedExcept(&[]),
        kept: None,
    }
}

fn feature(name: &str, columns: &[&str], kind: FeatureKind) -> FeatureSpec {
    let columns = columns.iter().map(|&column| column.to_owned()).collect();
    FeatureSpec { name: name.to_owned(), columns, kind, maximum: None, weights: None }
}

fn numeric(column: &str, normalize: Normalize) -> FeatureSpec {
    let missing = MissingNumber::Value(0.5);
    feature(&format!("{column}_number"), &[column], FeatureKind::Numeric { normalize, missing })
}

fn transform(features: &[FeatureSpec], analysis: &Analysis) -> Arc<Transform> {
    let missing = MISSING.map(str::to_owned);
    let label = LabelSpec::of("clicked", None);
    Arc::new(Transform::resolve(features, &label, &missing, analysis).unwrap().without_label())
}

/// Every type that a Parquet column of a feature may have.
fn columns() -> Vec<(&'static str, ArrayRef)> {
    let mut tags = ListBuilder::new(StringBuilder::new());
    let mut numbers = ListBuilder::new(Int64Builder::new());
    let mut weights = ListBuilder::new(Float32Builder::new());
    for row in 0..5_u8 {
        for value in 0..i64::from(row) {
            tags.values().append_value(format!("t{value}"));
            numbers.values().append_value(value);
            weights.values().append_value(0.1 * value as f32 + 0.3);
        }
        tags.append(row != 2);
        numbers.append(true);
        weights.append(row != 2);
    }
    let moments = || {
        TimestampNanosecondArray::from(vec![
            Some(1_795_264_680_123_456_789),
            Some(-1),
            None,
            Some(0),
            Some(5),
        ])
    };
    let micros = TimestampMicrosecondArray::from(vec![1_795_264_680_250_000, 0, 1, 2, 3_000_000]);
    let decimals = Decimal128Array::from(vec![Some(125), None, Some(-5), Some(200), Some(1)]);
    vec![
        ("int", Arc::new(Int64Array::from(vec![Some(3), Some(-7), None, Some(0), Some(i64::MAX)]))),
        ("id", Arc::new(Int64Array::from(vec![Some(3), Some(4), None, Some(0), Some(9)]))),
        ("uint", Arc::new(UInt64Array::from(vec![Some(1 << 62), Some(1), None, Some(2), Some(3)]))),
        (
            "f32",
            Arc::new(Float32Array::from(vec![Some(0.1), Some(2.0), None, Some(-1e-7), Some(16_777_217.0)])),
        ),
        (
            "f64",
            Arc::new(Float64Array::from(vec![Some(0.1), Some(2.0), None, Some(1e-300), Some(1.0 / 3.0)])),
        ),
        ("flag", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None, Some(true), Some(true)]))),
        (
            "text",
            Arc::new(StringArray::from(vec![Some("007"), Some("7"), None, Some("a, \"b\""), Some("?")])),
        ),
        ("day", Arc::new(Date32Array::from(vec![Some(20_778), Some(-1), None, Some(0), Some(1)]))),
        ("nanos", Arc::new(moments().with_timezone("UTC"))),
        ("micros", Arc::new(micros)),
        ("decimal", Arc::new(decimals.with_precision_and_scale(10, 2).unwrap())),
        ("tags", Arc::new(tags.finish())),
        ("weights", Arc::new(weights.finish())),
    ]
}

/// Features of every kind, over every column.
fn features() -> Vec<FeatureSpec> {
    let singles = ["int", "uint", "f32", "f64", "flag", "text", "day", "nanos", "micros", "decimal"];
    let mut features = Vec::new();
    for column in singles {
        let hashed = FeatureKind::Hashed { buckets: 1_000_003 };
        features.push(feature(&format!("{column}_hash"), &[column], hashed));
        let terms = ["3", "2", "0.1", "true", "007", "7", "2026-11-21", "1.25"].map(str::to_owned).to_vec();
        let terms = FeatureKind::Vocabulary { terms: Terms::Given(terms), oov_buckets: 1000 };
        features.push(feature(&format!("{column}_term"), &[column], terms));
        if column != "text" {
            features.push(numeric(column, Normalize::Zscore));
            let boundaries = vec![-1.0, 0.1, 2.0, 20_000.0];
            let buckets = FeatureKind::Bucketized { boundaries };
            features.push(feature(&format!("{column}_bucket"), &[column], buckets));
        }
        let crossed = FeatureKind::Crossed { buckets: 1_000_003, boundaries: Vec::new() };
        features.push(feature(&format!("{column}_cross"), &[column, "id"], crossed));
    }
    let identity = FeatureKind::Identity { buckets: 10, out_of_range: OutOfRange::Error };
    features.push(feature("id_identity", &["id"], identity));
    let tags = feature("tags_hash", &["tags"], FeatureKind::Hashed { buckets: 1000 });
    features.push(FeatureSpec { maximum: Some(3), weights: Some("weights".to_owned()), ..tags });
    features
}

/// Statistics whose digits matter.
fn analysis() -> Analysis {
    let moments = Moments { mean: 0.123_456_789, deviation: 1.0 / 3.0 };
    let statistics = NumberStatistics {
        values: 5,
        missing: 0,
        minimum: 0.0,
        maximum: 1.0,
        plain: moments,
        logarithm: moments,
    };
    let numbers = columns().into_iter().map(|(name, _)| (name.to_owned(), statistics)).collect();
    Analysis { numbers, ..Analysis::default() }
}

#[test]
fn rows_of_text_files_equal_those_of_parquet_bit_by_bit() {
    let bench = Bench::new();
    let names = ["a.csv", "a.jsonl", "a.ndjson.zst"];
    let (columns, transform) = (columns(), transform(&features(), &analysis()));
    bench.write_table(columns.clone(), &names);
    let dataset = bench.dataset("a.parquet", &transform);
    let stored = dataset.stored_types();
    assert_eq!(stored.len(), columns.len());
    let source = DatasetSource::new(
        dataset,
        Arc::clone(&transform),
        OnBadRecord::Fail,
        bench.runtime.handle().clone(),
    );
    let wanted = chunks(&source).unwrap();
    assert_eq!(wanted.iter().map(Chunk::rows).sum::<usize>(), 5);
    for name in names {
        let found = bench.rows(name, spec(&transform, &stored, &RowFilter::default())).unwrap();
        assert_eq!(found, wanted, "{name}");
    }
}

#[test]
fn a_value_means_what_it_meant_in_training_whatever_else_the_file_holds() {
    let bench = Bench::new();
    let features = [
        feature("int", &["int"], FeatureKind::Hashed { buckets: 1_000_003 }),
        feature("text", &["text"], FeatureKind::Hashed { buckets: 1_000_003 }),
        numeric("f64", Normalize::None),
    ];
    let transform = transform(&features, &Analysis::default());
    let integers: ArrayRef = Arc::new(Int64Array::from(vec![3]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["3.0"]));
    let numbers: ArrayRef = Arc::new(Float64Array::from(vec![2.0]));
    bench.write_table(vec![("int", integers), ("text", texts), ("f64", numbers)], &[]);
    let dataset = bench.dataset("a.parquet", &transform);
    let stored = dataset.stored_types();
    let runtime = bench.runtime.handle().clone();
    let wanted = chunks(&DatasetSource::new(dataset, Arc::clone(&transform), OnBadRecord::Fail, runtime));
    let wanted = wanted.unwrap();
    // pandas writes integers as floats if the column has missing values.
    bench.write("alone.csv", "text,int,f64\n3.0,3.0,2\n");
    bench.write("quoted.csv", "unused,text,int,f64\nx,\"3.0\",\"3\",2.0\n,abc,,?\n");
    bench.write("numbers.jsonl", "{\"text\": 3.0, \"int\": 3, \"f64\": 2}\n");
    bench.write("texts.jsonl", "{\"text\": \"3.0\", \"int\": \"3\", \"f64\": [\"2\"]}\n{\"text\": \"x\"}\n");
    for name in ["alone.csv", "quoted.csv", "numbers.jsonl", "texts.jsonl"] {
        let found = bench.rows(name, spec(&transform, &stored, &RowFilter::default())).unwrap();
        assert_eq!(
            (&found[0].ids[..2], &found[0].dense[..1]),
            (&wanted[0].ids[..], &wanted[0].dense[..]),
            "{name}"
        );
    }
}

#[test]
fn errors_have_the_line_and_the_column_and_bad_rows_can_be_skipped() {
    let bench = Bench::new();
    let identity = FeatureKind::Identity { buckets: 10, out_of_range: OutOfRange::Error };
    let mut tags = feature("tags", &["tags"], FeatureKind::Hashed { buckets: 10 });
    tags.maximum = Some(5);
    let features = [feature("id", &["id"], identity), tags, numeric("x", Normalize::None)];
    let transform = transform(&features, &Analysis::default());
    let stored: BTreeMap<_, _> = [("id".to_owned(), StoredType::Integer)].into();
    let filter = RowFilter::default();
    let header = "id,tags,x\n1,a|b,0.5\n";
    for (name, text, message) in [
        ("type.csv", "old,a,1\n", "type.csv: record 1, column `id`: line 3: `old` is not an integer"),
        ("range.csv", "10,a,1\n", "column `id`: line 3: expected a whole number from 0 to 9, found `10`"),
        ("number.csv", "1,a,x1\n", "number.csv: record 1, column `x`: line 3: expected a number, found `x1`"),
        ("short.csv", "1,a\n", "starting at line 3: 2 fields, expected 3"),
    ] {
        bench.write(name, &format!("{header}{text}2,,\n"));
        let error = bench.rows(name, spec(&transform, &stored, &filter)).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        let skipping =
            TextSpec { on_bad_record: OnBadRecord::Skip { limit: 1 }, ..spec(&transform, &stored, &filter) };
        let rows = bench.rows(name, skipping).unwrap();
        let ids: Vec<u32> = rows.iter().flat_map(|chunk| chunk.ids.clone()).collect();
        assert_eq!(ids, [1, 2], "{name}");
    }
    bench.write("several.jsonl", "{\"id\": [1, 2], \"tags\": [\"a\"], \"x\": 1}\n");
    let error = bench.rows("several.jsonl", spec(&transform, &stored, &filter)).unwrap_err().to_string();
    assert!(error.contains("column `id`: line 1: expected one value, found 2"), "{error}");
    bench.write("named.csv", "Id,tags,x\n1,a,2\n");
    let error = bench.rows("named.csv", spec(&transform, &stored, &filter)).unwrap_err().to_string();
    assert!(error.ends_with("named.csv: no column `id`; did you mean `Id`?"), "{error}");
    bench.write("other.jsonl", "{\"z\": 1}\n");
    let error = bench.rows("other.jsonl", spec(&transform, &stored, &filter)).unwrap_err().to_string();
    assert!(error.contains("other.jsonl: no column `id`"), "{error}");
    bench.write("other-1.csv", header);
    bench.write("other-2.png", "\u{1}\u{0}\u{2}");
    let error = bench.rows("other-*", spec(&transform, &stored, &filter)).unwrap_err().to_string();
    assert!(error.contains("other-2.png: expected CSV or JSON lines"), "{error}");
    assert!(error.ends_with("found images"), "{error}");
    bench.write("mixed-1.csv", header);
    std::fs::copy(bench.path().join("mixed-1.csv"), bench.path().join("mixed-3.csv")).unwrap();
    bench.write_table(vec![("id", Arc::new(Int64Array::from(vec![1])))], &[]);
    std::fs::rename(bench.path().join("a.parquet"), bench.path().join("mixed-2.csv")).unwrap();
    let error = bench.rows("mixed-*.csv", spec(&transform, &stored, &filter)).unwrap_err().to_string();
    assert!(
        error.contains("mixed-2.csv: expected CSV or JSON lines") && error.contains("found Parquet"),
        "{error}"
    );
}

#[test]
fn kept_columns_are_those_of_the_rows_that_remain_as_they_are_written() {
    use millstream_format::filter::{Comparison, Condition, Literal, Test};

    let bench = Bench::new();
    let transform = transform(&[numeric("x", Normalize::None)], &Analysis::default());
    let stored: BTreeMap<_, _> =
        [("x".to_owned(), StoredType::Float64), ("n".to_owned(), StoredType::Integer)].into();
    let test = Test::Compare { op: Comparison::Greater, value: Literal::Whole(0) };
    let filter =
        RowFilter { conditions: vec![Condition { column: "n".to_owned(), test }], shares: Vec::new() };
    bench.write("a.csv", "x,n,name\n1.50,1,?\nbad,1,b\n2,0,c\n3,007,\n");
    let rows = [
        r#"{"x": 1.50, "n": 1, "name": "?"}"#,
        r#"{"x": "bad", "n": 1}"#,
        r#"{"x": 2, "n": 0}"#,
        r#"{"x": 3, "n": 7}"#,
    ];
    bench.write("a.jsonl", &rows.join("\n"));
    let keep = ["name", "x", "n"].map(str::to_owned);
    for (name, expected) in [
        ("a.csv", [[Some("?"), None], [Some("1.50"), Some("3")], [Some("1"), Some("007")]]),
        ("a.jsonl", [[Some("\"?\""), None], [Some("1.5"), Some("3")], [Some("1"), Some("7")]]),
    ] {
        let kept: Arc<KeptRows> = Arc::default();
        let spec = TextSpec {
            on_bad_record: OnBadRecord::Skip { limit: 1 },
            kept: Some((&keep, Arc::clone(&kept))),
            ..spec(&transform, &stored, &filter)
        };
        let rows = bench.rows(name, spec).unwrap();
        assert_eq!(
            rows.iter().flat_map(|chunk| chunk.dense.clone()).collect::<Vec<_>>(),
            [1.5, 3.0],
            "{name}"
        );
        let kept = kept.take(2).unwrap();
        for (place, expected) in expected.iter().enumerate() {
            let texts = kept.iter().flat_map(|batch| batch.column(place).as_string::<i32>().iter());
            assert_eq!(texts.collect::<Vec<_>>(), expected, "{name}");
        }
        assert!(kept.iter().all(|batch| batch.schema().field(0).name() == "name"));
    }
    let absent = ["nmae".to_owned()];
    for name in ["a.csv", "a.jsonl"] {
        let spec = TextSpec { kept: Some((&absent, Arc::default())), ..spec(&transform, &stored, &filter) };
        let error = bench.rows(name, spec).unwrap_err().to_string();
        assert!(error.contains("no column `nmae`; did you mean `name`?"), "{error}");
    }
}
