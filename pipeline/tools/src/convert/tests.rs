#![allow(clippy::unwrap_used)]

mod images;
mod samples;

use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder, StringBuilder};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Date32Array, Decimal128Array, DurationMillisecondArray, Float32Array,
    Int64Array, RecordBatch, StructArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow_schema::{DataType, Field};
use millstream_format::Error as FormatError;
use millstream_format::compression::Decompressed;
use millstream_io::storage::{self, Stores};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tokio::runtime::Runtime;

use super::*;
use crate::output::{OutputCompression, OutputFormat};

struct Bench {
    runtime: Runtime,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { runtime, dir: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.dir.path().join(name), bytes).unwrap();
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap()
    }

    fn here(&self) -> Destination {
        Destination { stores: Stores::default(), runtime: self.runtime.handle().clone() }
    }

    fn convert(&self, inputs: &str, output: &str, options: &ConvertOptions) -> Result<Converted, Error> {
        let inputs = self.runtime.block_on(storage::list(&[inputs.to_owned()], self.dir.path()))?;
        let size = inputs.iter().map(Object::size).sum::<u64>();
        let output = format!("{}/{output}", self.dir.path().display());
        let progress = Progress::default();
        let converted = convert(&inputs, &output, options, &self.here(), &progress);
        let done = progress.done();
        assert!(done.total_bytes <= 2 * size);
        if options.output.threads == 1 {
            assert!(done.bytes <= done.total_bytes);
        }
        converted
    }

    /// All file names in the directory, sorted.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    fn parquet(&self, name: &str) -> Vec<RecordBatch> {
        let file = std::fs::File::open(self.dir.path().join(name)).unwrap();
        ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap().map(Result::unwrap).collect()
    }
}

fn shards(shards: u32) -> ConvertOptions {
    let mut options = ConvertOptions::default();
    options.output.shards = Some(shards);
    options
}

const TABLE: &str =
    "age,name,score,empty\n39,a b,1.5,\n,\"x,\"\"y\"\"\",-0.25,\n50,,1e30,\n7,zwölf,,\n0,e,3,\n";

#[test]
fn csv_survives_a_round_trip_through_every_format() {
    let bench = Bench::new();
    bench.write("in.csv", TABLE);
    let options = ConvertOptions::default();
    let steps = [
        ("in.csv", "a@3.parquet"),
        ("a-*.parquet", "b-*.tfrecord.gz"),
        ("b-*.tfrecord.gz", "c.tfrecord.zst"),
        ("c.tfrecord.zst", "d.parquet"),
        ("d.parquet", "e.csv.gz"),
        ("e.csv.gz", "f.tfrecord.zz"),
        ("f.tfrecord.zz", "g.csv"),
    ];
    for (from, to) in steps {
        let options = if to.contains('*') { shards(2) } else { options.clone() };
        assert_eq!(bench.convert(from, to, &options).unwrap().rows, 5, "{from} to {to}");
    }
    // Examples lose column order, f64 precision, and columns that are always absent.
    let expected = "age,name,score\n39,a b,1.5\n,\"x,\"\"y\"\"\",-0.25\n50,,1000000000000000000000000000000\n7,zwölf,\n0,e,3\n";
    assert_eq!(bench.text("g.csv"), expected);
    let files = ["a-00000-of-00003.parquet", "a-00001-of-00003.parquet", "a-00002-of-00003.parquet"];
    let rows: Vec<usize> =
        files.iter().map(|file| bench.parquet(file).iter().map(RecordBatch::num_rows).sum()).collect();
    assert_eq!(rows, [1, 2, 2]);
    assert_eq!(bench.names().len(), 3 + 2 + 6);
}

#[test]
fn lists_and_absent_values_survive() {
    let bench = Bench::new();
    let mut tags = ListBuilder::new(StringBuilder::new());
    let mut ids = ListBuilder::new(Int64Builder::new());
    for (texts, numbers) in
        [(Some(vec!["p", "q"]), Some(vec![1, -1])), (None, None), (Some(vec![]), Some(vec![5]))]
    {
        tags.append_option(texts.map(|texts| texts.into_iter().map(Some)));
        ids.append_option(numbers.map(|numbers| numbers.into_iter().map(Some)));
    }
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("flag", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])) as ArrayRef, true),
        ("ids", Arc::new(ids.finish()), true),
        ("tags", Arc::new(tags.finish()), true),
        ("x", Arc::new(Float32Array::from(vec![Some(0.1), None, Some(f32::MIN)])), true),
    ])
    .unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    bench.write("a.parquet", writer.into_inner().unwrap());
    bench.convert("a.parquet", "b.tfrecord", &ConvertOptions::default()).unwrap();
    bench.convert("b.tfrecord", "c.parquet", &ConvertOptions::default()).unwrap();
    let back = &bench.parquet("c.parquet")[0];
    for name in ["ids", "tags", "x"] {
        assert_eq!(back.column_by_name(name), batch.column_by_name(name), "{name}");
    }
    bench.convert("a.parquet", "d.parquet", &ConvertOptions::default()).unwrap();
    assert_eq!(bench.parquet("d.parquet")[0], batch);
    let error = bench.convert("a.parquet", "e.csv", &ConvertOptions::default()).unwrap_err();
    assert!(error.to_string().contains("`ids`"), "{error}");
}

#[test]
fn the_census_files_each_convert_with_one_command() {
    let bench = Bench::new();
    bench.write("adult.data", "39, State-gov, 77516, <=50K\n50, ?, 83311, >50K\n\n");
    bench.write("adult.test", "|1x3 Cross validator\n25, Private, 226802, <=50K.\n\n");
    let names = ["age", "workclass", "fnlwgt", "income"];
    let mut options = ConvertOptions::default();
    options.csv.columns = Some(names.map(str::to_owned).to_vec());
    bench.convert("adult.data", "train.parquet", &options).unwrap();
    options.csv.comment = Some(b'|');
    options.csv.strip_suffix = Some(".".to_owned());
    bench.convert("adult.test", "test.parquet", &options).unwrap();
    let (train, test) = (&bench.parquet("train.parquet")[0], &bench.parquet("test.parquet")[0]);
    assert_eq!(train.schema(), test.schema());
    let options = ConvertOptions::default();
    bench.convert("t*.parquet", "all.csv", &options).unwrap();
    let all =
        "age,workclass,fnlwgt,income\n25,Private,226802,<=50K\n39,State-gov,77516,<=50K\n50,?,83311,>50K\n";
    assert_eq!(bench.text("all.csv"), all);
    let error = bench.convert("adult.data", "x.parquet", &options).unwrap_err();
    assert!(error.to_string().contains("instead of names: specify the column names"), "{error}");
}

#[test]
fn a_failure_leaves_no_file_behind() {
    let bench = Bench::new();
    bench.write("a.csv", "n,m\n1,2\n3\n");
    bench.write("b.csv", TABLE);
    let numbers: ArrayRef = Arc::new(UInt64Array::from(vec![1, u64::MAX]));
    let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    bench.write("c.parquet", writer.into_inner().unwrap());
    bench.write("out.parquet", "kept");
    let before = bench.names();
    assert!(matches!(
        bench.convert("a.csv", "out.parquet", &shards(1)),
        Err(Error::Format(FormatError::Damage { record: 1, .. }))
    ));
    assert!(matches!(
        bench.convert("?.csv", "out.parquet", &shards(1)),
        Err(Error::Format(FormatError::Damage { .. }))
    ));
    assert!(matches!(
        bench.convert("c.parquet", "out@2.tfrecord", &shards(2)),
        Err(Error::Format(FormatError::BadValue { .. }))
    ));
    let inputs = bench.runtime.block_on(storage::list(&["b.csv".to_owned()], bench.dir.path())).unwrap();
    let output = format!("{}/out@3.csv", bench.dir.path().display());
    let progress = Progress::default();
    progress.cancel();
    let cancelled = convert(&inputs, &output, &ConvertOptions::default(), &bench.here(), &progress);
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    assert_eq!(bench.names(), before);
    assert_eq!(bench.text("out.parquet"), "kept");
}

#[test]
fn inconsistent_files_are_errors() {
    let bench = Bench::new();
    bench.write("a1.csv", "n,m\n1,2\n");
    bench.write("a2.csv", "m,n\nx,2.5\n");
    bench.write("b1.csv", "n,m\n1,2\n");
    bench.write("b2.csv", "n\n1\n");
    bench.write("c.bin", [1, 2, 3]);
    let options = ConvertOptions::default();
    bench.convert("a?.csv", "a.csv", &options).unwrap();
    assert_eq!(bench.text("a.csv"), "n,m\n1,2\n2.5,x\n");
    assert!(matches!(
        bench.convert("b?.csv", "b.csv", &options),
        Err(Error::Format(FormatError::MissingColumn { .. }))
    ));
    assert!(matches!(
        bench.convert("c.bin", "c.csv", &options),
        Err(Error::Format(FormatError::WrongFormat { .. }))
    ));
    assert!(bench.convert("a1.csv", "a.unknown", &options).unwrap_err().to_string().contains(".parquet"));
    let mut gzip = options.clone();
    gzip.output.compression = Some(OutputCompression::Gzip);
    assert!(bench.convert("a1.csv", "a.parquet", &gzip).is_err());
    let mut into = options;
    into.output.format = Some(OutputFormat::TfRecord);
    let made = bench.convert("a1.csv", "some/where/", &into).unwrap();
    assert_eq!(made.files, [bench.dir.path().join("some/where/a1.tfrecord").display().to_string()]);
}

/// A file of Parquet with columns of these values.
fn parquet_of(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn dates_timestamps_and_decimals_become_text_in_csv_and_numbers_in_examples() {
    let bench = Bench::new();
    let moments =
        TimestampMicrosecondArray::from(vec![Some(1_795_264_680_250_000), None]).with_timezone("UTC");
    let decimals = Decimal128Array::from(vec![Some(125), Some(-5)]).with_precision_and_scale(30, 2).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("day", Arc::new(Date32Array::from(vec![Some(20_778), None]))),
        ("price", Arc::new(decimals)),
        ("took", Arc::new(DurationMillisecondArray::from(vec![1500, 0]))),
        ("when", Arc::new(moments)),
    ];
    bench.write("a.parquet", parquet_of(columns));
    let options = ConvertOptions::default();
    bench.convert("a.parquet", "a.csv", &options).unwrap();
    let text = "day,price,took,when\n2026-11-21,1.25,PT1.5S,2026-11-21T12:38:00.25Z\n,-0.05,PT0S,\n";
    assert_eq!(bench.text("a.csv"), text);
    bench.convert("a.parquet", "a.tfrecord", &options).unwrap();
    bench.convert("a.tfrecord", "b.csv", &options).unwrap();
    assert_eq!(bench.text("b.csv"), "day,price,took,when\n20778,1.25,1500000,1795264680250000\n,-0.05,0,\n");
    bench.convert("a.parquet", "a.jsonl", &options).unwrap();
    let first = r#"{"day":"2026-11-21","price":"1.25","took":"PT1.5S","when":"2026-11-21T12:38:00.25Z"}"#;
    assert_eq!(bench.text("a.jsonl").lines().next(), Some(first));
}

#[test]
fn a_column_that_cannot_be_converted_is_named_with_its_type_and_a_way_out() {
    let bench = Bench::new();
    let mut tags = ListBuilder::new(StringBuilder::new());
    tags.append_value([Some("p"), Some("q")]);
    let tags: ArrayRef = Arc::new(tags.finish());
    let inner = Arc::new(Field::new("n", DataType::Int64, true));
    let point: ArrayRef =
        Arc::new(StructArray::from(vec![(inner, Arc::new(Int64Array::from(vec![1])) as ArrayRef)]));
    bench.write("a.parquet", parquet_of(vec![("tags", tags)]));
    bench.write("b.parquet", parquet_of(vec![("point", point)]));
    let mut options = ConvertOptions::default();
    let says = |input, output, options: &ConvertOptions| {
        bench.convert(input, output, options).unwrap_err().to_string()
    };
    let lists = says("a.parquet", "a.csv", &options);
    assert!(lists.contains("`tags` has type list of text") && lists.contains("--list 'tags=|'"), "{lists}");
    let nested = says("b.parquet", "b.tfrecord", &options);
    assert!(
        nested.contains("`point` has type struct {n: 64-bit integer}") && nested.contains("--select"),
        "{nested}"
    );
    bench.convert("b.parquet", "b.jsonl", &options).unwrap();
    assert_eq!(bench.text("b.jsonl"), "{\"point\":{\"n\":1}}\n");
    options.text.separators.insert("tags".to_owned(), "|".to_owned());
    bench.convert("a.parquet", "a.csv", &options).unwrap();
    assert_eq!(bench.text("a.csv"), "tags\np|q\n");
    bench.convert("a.csv", "back.parquet", &options).unwrap();
    assert_eq!(bench.parquet("back.parquet")[0].column(0), bench.parquet("a.parquet")[0].column(0));
}

#[test]
fn separators_are_detected_and_said() {
    let bench = Bench::new();
    for (name, text) in [
        ("a.csv", "n;t\n1;a,b\n"),
        ("b.tsv", "n\tt\n1\ta,b\n"),
        ("c.csv", "n|t\n1|a,b\n"),
        ("d.txt", "n\tt\n1\ta,b\n"),
    ] {
        bench.write(name, text);
        let converted = bench.convert(name, "out.csv", &ConvertOptions::default()).unwrap();
        assert_eq!(bench.text("out.csv"), "n,t\n1,\"a,b\"\n", "{name}");
        assert_eq!(converted.notes.is_empty(), name == "b.tsv", "{name}: {:?}", converted.notes);
    }
    bench.write("one.csv", "name|alias\nx\ny\n");
    bench.convert("one.csv", "out.tsv", &ConvertOptions::default()).unwrap();
    assert_eq!(bench.text("out.tsv"), "name|alias\nx\ny\n");
    let mut options = ConvertOptions::default();
    options.csv.delimiter = Some(b',');
    bench.convert("a.csv", "out.tsv", &options).unwrap_err();
    options.csv.delimiter = None;
    bench.convert("a.csv", "out.tsv.gz", &options).unwrap();
    bench.convert("out.tsv.gz", "out.csv", &options).unwrap();
    assert_eq!(bench.text("out.csv"), "n,t\n1,\"a,b\"\n");
}

#[test]
fn json_lines_and_arrays_are_read() {
    let bench = Bench::new();
    let rows = [r#"{"n": 1, "user": {"id": "007"}, "tags": ["a", "b"]}"#, r#"{"n": 2.5, "ok": true}"#];
    bench.write("a.jsonl", rows.join("\n"));
    bench.write("b.json", format!("[{}]", rows.join(",")));
    bench.write("c.csv", rows.join("\n"));
    for name in ["a.jsonl", "b.json", "c.csv"] {
        bench.convert(name, "out.parquet", &ConvertOptions::default()).unwrap();
        bench.convert("out.parquet", "out.ndjson", &ConvertOptions::default()).unwrap();
        let wanted = [
            r#"{"n":1.0,"user.id":"007","tags":["a","b"],"ok":null}"#,
            r#"{"n":2.5,"user.id":null,"tags":null,"ok":true}"#,
        ];
        assert_eq!(bench.text("out.ndjson").lines().collect::<Vec<_>>(), wanted, "{name}");
    }
    bench.write("d.json", "{\n  \"a\": 1\n}\n");
    let error = bench.convert("d.json", "out.csv", &ConvertOptions::default()).unwrap_err().to_string();
    assert!(error.contains("line 1: not a JSON object on one line"), "{error}");
}

#[test]
fn a_file_of_another_format_than_given_is_named() {
    let bench = Bench::new();
    bench.write("a.csv", "age,sex\n39,Male\n50,Female\n");
    for format in [FileFormat::WebDataset, FileFormat::Mds] {
        let options = ConvertOptions { input_format: Some(format), ..ConvertOptions::default() };
        let error = bench.convert("a.csv", "out.parquet", &options).unwrap_err();
        assert!(matches!(error, Error::Format(FormatError::WrongFormat { .. })), "{error}");
        assert_eq!(error.to_string(), format!("a.csv: expected {}, found text", format.name()));
    }
}

#[test]
fn empty_input_is_not_accepted_silently() {
    let bench = Bench::new();
    bench.write("a.csv", "");
    bench.write("b.csv", "\n \n");
    bench.write("c.csv", "n,m\n");
    for name in ["a.csv", "b.csv"] {
        let error = bench.convert(name, "out.parquet", &ConvertOptions::default()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("an empty file"), "{error}");
    }
    let converted = bench.convert("c.csv", "out.parquet", &ConvertOptions::default()).unwrap();
    assert!(converted.warnings[0].ends_with("c.csv: no rows"), "{:?}", converted.warnings);
}

#[test]
fn types_names_and_columns_are_chosen() {
    let bench = Bench::new();
    bench.write("a.csv", "zip,when,day,tags,x\n01,2026-11-21 12:38:00,21.11.2026,1|2,5\n12,,,,6\n");
    let mut options = ConvertOptions::default();
    for (name, kind) in [("zip", "text"), ("when", "timestamp"), ("day", "date:%d.%m.%Y")] {
        options.text.kinds.insert(name.to_owned(), kind.parse().unwrap());
    }
    options.text.separators.insert("tags".to_owned(), "|".to_owned());
    options.select = Some(["tags", "day", "when", "zip"].map(str::to_owned).to_vec());
    options.rename = vec![("zip".to_owned(), "code".to_owned())];
    bench.convert("a.csv", "a.parquet", &options).unwrap();
    let batch = &bench.parquet("a.parquet")[0];
    let fields: Vec<_> = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(fields, ["tags", "day", "when", "code"]);
    bench.convert("a.parquet", "a.jsonl", &ConvertOptions::default()).unwrap();
    let wanted = r#"{"tags":[1,2],"day":"2026-11-21","when":"2026-11-21T12:38:00Z","code":"01"}"#;
    assert_eq!(bench.text("a.jsonl").lines().next(), Some(wanted));

    // Columns of Parquet can be given another type, too.
    let mut again = ConvertOptions::default();
    again.text.kinds.insert("code".to_owned(), "integer".parse().unwrap());
    bench.convert("a.parquet", "b.parquet", &again).unwrap();
    assert_eq!(
        bench.parquet("b.parquet")[0].column(3).as_ref(),
        &Int64Array::from(vec![1, 12]) as &dyn Array
    );

    options.select = Some(vec!["zap".to_owned()]);
    let error = bench.convert("a.csv", "a.parquet", &options).unwrap_err().to_string();
    assert!(error.contains("no column `zap`; did you mean `zip`?"), "{error}");
    options.select = None;
    options.rename = vec![("zip".to_owned(), "x".to_owned())];
    assert!(bench.convert("a.csv", "a.parquet", &options).unwrap_err().to_string().contains("are named `x`"));
}

#[test]
fn bad_lines_are_skipped_and_counted() {
    let bench = Bench::new();
    bench.write("a.csv", "n,day\n1,2026-11-21\n2\n3,soon\n4,\n5,6,7\n6,2026-11-22\n");
    let mut options = ConvertOptions::default();
    options.text.kinds.insert("day".to_owned(), "date".parse().unwrap());
    let error = bench.convert("a.csv", "b.csv", &options).unwrap_err().to_string();
    assert!(error.contains("starting at line 3: 1 field, expected 2"), "{error}");
    options.text.skip_bad_lines = true;
    for (output, files) in [("b.csv", "b.csv"), ("b@2.csv", "b-00001-of-00002.csv")] {
        options.output.threads = 2;
        let converted = bench.convert("a.csv", output, &options).unwrap();
        assert_eq!(converted.rows, 3);
        let warning = &converted.warnings[0];
        assert!(
            warning.starts_with("3 bad lines were skipped; the first: ") && warning.contains("line 3:"),
            "{warning}"
        );
        assert!(bench.text(files).ends_with("6,2026-11-22\n"));
    }
    bench.write("c.jsonl", "{\"n\": 1}\n{\"n\": \n[2]\n{\"n\": 3}\n");
    let converted = bench.convert(
        "c.jsonl",
        "c.csv",
        &ConvertOptions { text: options.text.clone(), ..ConvertOptions::default() },
    );
    assert!(converted.unwrap_err().to_string().contains("no column `day`"));
    options.text.kinds.clear();
    assert_eq!(bench.convert("c.jsonl", "c.csv", &options).unwrap().rows, 2);
    assert_eq!(bench.text("c.csv"), "n\n1\n3\n");
}

#[test]
fn without_rows_all_shards_are_written() {
    let bench = Bench::new();
    bench.write("a.csv", "n,m\n");
    let made = bench.convert("a.csv", "a.parquet", &shards(3)).unwrap();
    assert_eq!((made.rows, made.files.len()), (0, 3));
    assert!(bench.parquet("a-00002-of-00003.parquet").is_empty());
}

/// Rows with text of very different lengths, some as large as a block may be.
fn uneven(files: usize, rows: usize) -> Vec<String> {
    let line = |row: usize| {
        let length = if row % 977 == 5 { 900_000 } else { row * 7 % 40 };
        format!("{row},{}\n", "x".repeat(length))
    };
    let file = |file: usize| (file * rows..(file + 1) * rows).map(line).collect::<String>();
    (0..files).map(|number| format!("n,t\n{}", file(number))).collect()
}

#[test]
fn output_does_not_depend_on_threads_or_input_format() {
    let bench = Bench::new();
    for (number, text) in uneven(5, 4100).iter().enumerate() {
        bench.write(&format!("in-{number}.csv"), text);
    }
    bench.convert("in-*.csv", "p@3.parquet", &ConvertOptions::default()).unwrap();
    bench.convert("in-*.csv", "t@2.tfrecord", &ConvertOptions::default()).unwrap();
    for inputs in ["in-*.csv", "p-*.parquet", "t-*.tfrecord"] {
        for output in ["o@4.tfrecord.gz", "o@4.parquet", "o@4.csv.zst", "o@4.tfrecord.zz"] {
            let outcome = |threads, memory_bytes| {
                let mut options = ConvertOptions::default();
                options.output = OutputOptions { threads, memory_bytes, group_rows: 3000, ..options.output };
                let converted = bench.convert(inputs, output, &options).unwrap();
                assert_eq!((converted.rows, converted.files.len()), (5 * 4100, 4));
                let files: Vec<Vec<u8>> =
                    converted.files.iter().map(|file| std::fs::read(file).unwrap()).collect();
                assert_eq!(files.iter().map(|file| file.len() as u64).sum::<u64>(), converted.bytes);
                files
            };
            let one = outcome(1, 1);
            for (threads, memory_bytes) in [(2, 1 << 20), (3, 64 << 20), (7, usize::MAX)] {
                assert!(one == outcome(threads, memory_bytes), "{inputs} to {output}, {threads} threads");
            }
        }
    }
}

#[test]
fn blocks_of_a_compressed_file_form_one_stream() {
    let bench = Bench::new();
    bench.write("in.csv", &uneven(1, 20_000)[0]);
    for output in ["a.csv.gz", "a.csv.zz", "a.csv.zst"] {
        bench.convert("in.csv", output, &ConvertOptions::default()).unwrap();
        let bytes = std::fs::read(bench.dir.path().join(output)).unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut Decompressed::new(&bytes[..]).unwrap().0, &mut text).unwrap();
        assert!(text == bench.text("in.csv"), "{output}");
    }
}

#[test]
fn without_rows_files_are_valid() {
    let bench = Bench::new();
    bench.write("in.csv", "n,m\n");
    for output in ["a@2.csv.gz", "a@2.tfrecord.zz", "a@2.tfrecord.zst", "a@2.parquet"] {
        let converted = bench.convert("in.csv", output, &ConvertOptions::default()).unwrap();
        assert_eq!((converted.rows, converted.files.len()), (0, 2));
        assert!(bench.convert(&output.replace("@2", "-*"), "b.csv", &ConvertOptions::default()).is_ok());
    }
}
