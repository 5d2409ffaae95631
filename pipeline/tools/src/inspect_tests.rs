#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, Date32Array, Float64Array, Int32Array, ListArray, RecordBatch, StringArray, StructArray,
};
use arrow_schema::{DataType, Field};
use millstream_format::cells::Cells;
use millstream_format::example::ExampleEncoder;
use millstream_format::tfrecord::RecordWriter;
use millstream_io::storage;
use parquet::arrow::ArrowWriter;
use serde_json::json;
use tokio::runtime::Runtime;

use super::*;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Inspects the files that `pattern` matches, and returns their objects, too.
fn inspected(dir: &Path, pattern: &str, statistics: bool, progress: &Progress) -> (Inspected, Vec<Object>) {
    let runtime = runtime();
    let objects = runtime.block_on(storage::list(&[pattern.to_owned()], dir)).unwrap();
    let options = InspectOptions { rows: 2, statistics, csv: CsvOptions::default(), threads: 3 };
    (inspect(&objects, &options, runtime.handle(), progress).unwrap(), objects)
}

fn look(dir: &Path, name: &str) -> Report {
    let progress = Progress::default();
    let (Inspected { mut reports, .. }, objects) = inspected(dir, name, true, &progress);
    let done = progress.done();
    assert_eq!((reports.len(), done.files, done.total_bytes), (1, 1, objects[0].size()));
    assert!(done.bytes <= done.total_bytes);
    reports.remove(0)
}

/// The columns without their statistics.
fn plain(report: &Report) -> Vec<ColumnReport> {
    report.columns.iter().map(|column| ColumnReport { statistics: None, ..column.clone() }).collect()
}

fn batch() -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([
        ("n", Arc::new(Int32Array::from(vec![Some(1), None, Some(3)])) as ArrayRef, true),
        ("x", Arc::new(Float64Array::from(vec![Some(0.1), Some(f64::NAN), None])), true),
        ("name", Arc::new(StringArray::from(vec![Some("a"), Some("b"), None])), true),
    ])
    .unwrap()
}

fn records(batch: &RecordBatch) -> Vec<Vec<u8>> {
    let names: Vec<String> = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
    let cells: Vec<Cells> = batch.columns().iter().map(|column| Cells::of(column).unwrap()).collect();
    let mut encoder = ExampleEncoder::default();
    (0..batch.num_rows()).map(|row| encoder.encode(&names, &cells, row).unwrap().to_vec()).collect()
}

fn column(name: &str, data_type: &str, multi: bool, absent: u64) -> ColumnReport {
    ColumnReport { name: name.to_owned(), data_type: data_type.to_owned(), multi, absent, statistics: None }
}

#[test]
fn a_tfrecord_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RecordWriter::new(Vec::new());
    records(&batch()).iter().for_each(|record| writer.write(record).unwrap());
    let mut bytes = writer.into_inner();
    std::fs::write(dir.path().join("a.tfrecord"), &bytes).unwrap();
    let report = look(dir.path(), "a.tfrecord");
    assert_eq!(
        (report.format, &*report.compression, report.records),
        (Some(FileFormat::TfRecord), "none", 3)
    );
    let columns = [
        column("n", "64-bit integer", false, 1),
        column("name", "text", false, 1),
        column("x", "32-bit float", false, 1),
    ];
    assert_eq!(plain(&report), columns);
    let rows =
        [json!({"n": [1], "name": ["a"], "x": [0.1]}), json!({"n": null, "name": ["b"], "x": ["NaN"]})];
    assert_eq!(report.rows.iter().cloned().map(Value::Object).collect::<Vec<_>>(), rows);
    assert_eq!(report.error, None);

    // Damage the second record's data, then also the third's length: the first damage is reported.
    let second = 16 + records(&batch())[0].len();
    let third = second + 16 + records(&batch())[1].len();
    bytes[second + 13] ^= 1;
    std::fs::write(dir.path().join("a.tfrecord"), &bytes).unwrap();
    let report = look(dir.path(), "a.tfrecord");
    let error = report.error.unwrap();
    assert_eq!((report.records, error.offset, error.record), (2, Some(second as u64), Some(1)));
    bytes[third + 3] ^= 1;
    std::fs::write(dir.path().join("a.tfrecord"), &bytes).unwrap();
    let report = look(dir.path(), "a.tfrecord");
    assert_eq!((report.records, report.error.unwrap().record), (1, Some(1)));
}

#[test]
fn a_parquet_file_with_a_type_only_parquet_has() {
    let dir = tempfile::tempdir().unwrap();
    let mut columns: Vec<(String, ArrayRef, bool)> = (batch().schema().fields().iter())
        .zip(batch().columns())
        .map(|(field, column)| (field.name().clone(), column.clone(), true))
        .collect();
    columns.push(("day".to_owned(), Arc::new(Date32Array::from(vec![Some(0), None, Some(2)])), true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let file = std::fs::File::create(dir.path().join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let report = look(dir.path(), "a.parquet");
    assert_eq!((report.format, &*report.compression, report.records), (Some(FileFormat::Parquet), "none", 3));
    assert_eq!(plain(&report)[0], column("n", "32-bit integer", false, 1));
    assert_eq!(plain(&report)[3], column("day", "date", false, 1));
    assert_eq!(report.rows[0]["day"], json!("1970-01-01"));

    let mut bytes = std::fs::read(dir.path().join("a.parquet")).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(dir.path().join("a.parquet"), &bytes).unwrap();
    assert!(look(dir.path(), "a.parquet").error.is_some());
}

#[test]
fn csv_with_and_without_a_header() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), "age,job\n39, clerk\n,\n").unwrap();
    let report = look(dir.path(), "a");
    assert_eq!((report.format, report.records), (Some(FileFormat::Csv), 2));
    assert_eq!(plain(&report), [column("age", "64-bit integer", false, 1), column("job", "text", false, 1)]);
    assert_eq!(report.rows[0]["job"], json!("clerk"));
    std::fs::write(dir.path().join("b.tfrecord"), "39, clerk\n40.5, ?\n").unwrap();
    let report = look(dir.path(), "b.tfrecord");
    assert_eq!((report.format, report.records), (Some(FileFormat::Csv), 2));
    assert_eq!(
        plain(&report),
        [column("column_1", "64-bit float", false, 0), column("column_2", "text", false, 0)]
    );
    std::fs::write(dir.path().join("c.csv"), "a,b\n1,2\n3\n").unwrap();
    let report = look(dir.path(), "c.csv");
    assert_eq!((report.records, report.error.unwrap().record), (1, Some(1)));
}

#[test]
fn json_lines_separators_and_empty_files() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.json"), "{\"n\": 1, \"ok\": true}\n{\"n\": 2, \"tags\": [\"x\"]}\n")
        .unwrap();
    let report = look(dir.path(), "a.json");
    assert_eq!((report.format, report.records, &report.note), (Some(FileFormat::JsonLines), 2, &None));
    let columns = [
        column("n", "64-bit integer", false, 0),
        column("ok", "boolean", false, 1),
        column("tags", "text", true, 1),
    ];
    assert_eq!(plain(&report), columns);
    let second = json!({"n": 2, "ok": null, "tags": ["x"]});
    assert_eq!(Value::Object(report.rows[1].clone()), second);
    std::fs::write(dir.path().join("b.csv"), "n;t\n1;x\n").unwrap();
    let report = look(dir.path(), "b.csv");
    assert_eq!(plain(&report), [column("n", "64-bit integer", false, 0), column("t", "text", false, 0)]);
    assert!(report.note.unwrap().contains("separated by `;`"));
    std::fs::write(dir.path().join("c.csv"), "").unwrap();
    let error = look(dir.path(), "c.csv").error.unwrap().message;
    assert!(error.ends_with("c.csv: expected records, found an empty file"), "{error}");
}

#[test]
fn unsupported_formats_and_cancellation() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), [0u8, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4]).unwrap();
    let report = look(dir.path(), "a");
    assert_eq!(report.format, None);
    assert!(report.error.unwrap().message.contains("found an unknown format"));
    let runtime = runtime();
    std::fs::write(dir.path().join("b"), "a,b\nx,y\n").unwrap();
    let objects = runtime.block_on(storage::list(&["b".to_owned()], dir.path())).unwrap();
    let options = InspectOptions { rows: 0, statistics: false, csv: CsvOptions::default(), threads: 1 };
    let progress = Progress::default();
    progress.cancel();
    let cancelled = inspect(&objects, &options, runtime.handle(), &progress);
    assert!(matches!(cancelled, Err(Error::Cancelled)));
}

#[test]
fn a_file_with_a_bad_header_does_not_end_the_report_of_others() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.csv"), "a,a\n1,2\n").unwrap();
    std::fs::write(dir.path().join("b.csv"), "a,b\n1,2\n").unwrap();
    let reports = inspected(dir.path(), "*.csv", false, &Progress::default()).0.reports;
    let errors: Vec<bool> = reports.iter().map(|report| report.error.is_some()).collect();
    assert_eq!(errors, [true, false]);
}

#[test]
fn long_texts_lists_and_types_are_cut() {
    let dir = tempfile::tempdir().unwrap();
    let text = "é".repeat(1 << 20);
    let numbers = ListArray::from_iter_primitive::<Int32Type, _, _>([Some((0..5000).map(Some))]);
    let inner: ArrayRef = Arc::new(StringArray::from(vec![text.as_str()]));
    let named = Arc::new(Field::new("inner", DataType::Utf8, true));
    let many = (0..2000).map(|field| {
        let field = Arc::new(Field::new(format!("field{field}"), DataType::Utf8, true));
        (field, Arc::new(StringArray::from(vec!["x"])) as ArrayRef)
    });
    let columns: [(&str, ArrayRef); 4] = [
        ("text", Arc::new(StringArray::from(vec![text.as_str()]))),
        ("numbers", Arc::new(numbers)),
        ("nested", Arc::new(StructArray::from(vec![(named, inner)]))),
        ("wide", Arc::new(StructArray::from(many.collect::<Vec<_>>()))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = std::fs::File::create(dir.path().join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let report = look(dir.path(), "a.parquet");
    assert_eq!(report.error, None);
    let row = &report.rows[0];
    let length = |value: &Value| value.as_str().map_or(0, str::len);
    assert_eq!(length(&row["text"]), SHOWN_BYTES + "...".len());
    assert!(row["text"].as_str().unwrap().ends_with("é..."));
    assert_eq!(row["numbers"].as_array().unwrap().len(), SHOWN_ELEMENTS + 1);
    assert_eq!(row["numbers"][SHOWN_ELEMENTS], "...");
    assert_eq!(length(&row["nested"]["inner"]), SHOWN_BYTES + "...".len());
    assert_eq!(row["wide"].as_object().unwrap().len(), SHOWN_ELEMENTS + 1);
    assert!(report.columns[3].data_type.len() <= SHOWN_BYTES + 3);
}

#[test]
fn statistics_of_every_format() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.csv"), "age,job\n39,clerk\nN/A,clerk\n41,\n40,smith\n").unwrap();
    let report = look(dir.path(), "a.csv");
    let [age, job] = [0, 1].map(|column: usize| report.columns[column].statistics.clone().unwrap());
    let because = age.text_because.unwrap();
    assert_eq!((&*because.value, because.line, because.texts, because.numbers), ("N/A", 3, 1, 3));
    assert_eq!((job.values, job.distinct, job.distinct_is_exact, &job.numbers), (3, 2, true, &None));
    assert_eq!((&job.top[0].value, job.top[0].count), (&json!("clerk"), 2));

    let day = Arc::new(Date32Array::from(vec![Some(20_778), None, Some(0)]));
    let ids = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), Some(2)]),
        None,
        Some(vec![Some(2)]),
    ]);
    let columns =
        [("day", day as ArrayRef), ("ids", Arc::new(ids) as ArrayRef), ("x", batch().column(1).clone())];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = std::fs::File::create(dir.path().join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let report = look(dir.path(), "a.parquet");
    let [day, ids, x] = [0, 1, 2].map(|column: usize| report.columns[column].statistics.clone().unwrap());
    let day = day.numbers.unwrap();
    assert_eq!((day.min, day.max), (json!("1970-01-01"), json!("2026-11-21")));
    let (values, distinct, numbers) = (ids.values, ids.distinct, ids.numbers.unwrap());
    assert_eq!(
        (values, distinct, numbers.min, numbers.max, numbers.median),
        (3, 2, json!(1.0), json!(2.0), 2.0)
    );
    let x = x.numbers.unwrap();
    assert_eq!((x.min, x.non_finite, x.mean), (json!(0.1), 1, 0.1));
}

#[test]
fn statistics_of_several_files_are_merged() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.csv"), "n\n1\n2\n").unwrap();
    std::fs::write(dir.path().join("b.jsonl"), "{\"n\": 2}\n{\"m\": \"x\"}\n").unwrap();
    let totals = inspected(dir.path(), "*", true, &Progress::default()).0.totals;
    let names: Vec<&str> = totals.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["n", "m"]);
    let n = &totals[0].1;
    assert_eq!((n.values, n.distinct, n.numbers.as_ref().unwrap().mean), (3, 2, 5.0 / 3.0));
}

#[test]
fn a_folder_of_images_has_one_report() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in [("cat/1.jpg", "\u{0}"), ("cat/2.png", "\u{0}"), ("dog/1.jpg", "\u{0}")] {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, [&b"\xff\xd8\xff"[..], bytes.as_bytes()].concat()).unwrap();
    }
    let (found, _) = inspected(dir.path(), "*/*", true, &Progress::default());
    let [report] = &found.reports[..] else { panic!("{found:?}") };
    assert_eq!((report.format, report.records, report.bytes), (Some(FileFormat::Images), 3, 12));
    let names: Vec<&str> = report.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["image", "class", "label", "path"]);
    assert_eq!(report.rows[1]["path"], "cat/2.png");
    assert!(report.note.as_ref().unwrap().ends_with("2 classes: 0 cat, 1 dog"), "{:?}", report.note);
    assert_eq!(found.totals.len(), 4);
    std::fs::write(dir.path().join("cat/2.png"), "text").unwrap();
    let (found, _) = inspected(dir.path(), "*/*", false, &Progress::default());
    let report = &found.reports[0];
    assert_eq!(report.records, 2);
    assert!(report.error.as_ref().unwrap().message.contains("cat/2.png: expected an image"), "{report:?}");
}
