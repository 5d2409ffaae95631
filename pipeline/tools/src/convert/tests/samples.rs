//! Output of WebDataset and MDS.

use arrow_array::builder::{BinaryBuilder, BooleanBuilder, FixedSizeListBuilder, Float32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{BinaryArray, Float64Array, Int8Array, StringArray, UInt16Array};
use serde_json::Value;

use super::*;

/// The rows of a file as lines of JSON, by way of another conversion.
fn lines(bench: &Bench, input: &str, options: &ConvertOptions) -> Vec<Value> {
    let mut options = options.clone();
    options.output = OutputOptions::default();
    bench.convert(input, "lines.jsonl", &options).unwrap();
    bench.text("lines.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn failure(bench: &Bench, input: &str, output: &str, options: &ConvertOptions) -> String {
    let before = bench.names();
    let error = bench.convert(input, output, options).unwrap_err().to_string();
    assert_eq!(bench.names(), before, "{error}");
    error
}

fn texts(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

/// Columns of many types without absent values.
fn columns() -> Vec<(&'static str, ArrayRef)> {
    let mut tokens = ListBuilder::new(Int64Builder::new());
    tokens.append_value([Some(1), Some(-2), Some(3)]);
    tokens.append_value([]);
    tokens.append_value([Some(7)]);
    let mut tags = ListBuilder::new(StringBuilder::new());
    tags.append_value([Some("p"), Some("q \"")]);
    tags.append_value([Some("r")]);
    tags.append_value([Some("s"), Some("t")]);
    let mut vector = FixedSizeListBuilder::new(Float32Builder::new(), 2);
    for row in 0..3 {
        vector.values().append_slice(&[row as f32, 0.1]);
        vector.append(true);
    }
    let mut flags = ListBuilder::new(BooleanBuilder::new());
    (0..3).for_each(|row| flags.append_value([Some(row == 1), Some(true)]));
    vec![
        ("blob", Arc::new(BinaryArray::from(vec![&b"\xff\x00"[..], b"", b"x"]))),
        ("double", Arc::new(Float64Array::from(vec![0.1, -2.5, 1e300]))),
        ("flag", Arc::new(BooleanArray::from(vec![true, false, true]))),
        ("flags", Arc::new(flags.finish())),
        ("huge", Arc::new(UInt64Array::from(vec![0, 1, u64::MAX]))),
        ("number", Arc::new(Int64Array::from(vec![i64::MIN, 0, 5]))),
        ("single", Arc::new(Float32Array::from(vec![0.1, 0.0, -3.25]))),
        ("small", Arc::new(Int8Array::from(vec![-128, 0, 127]))),
        ("tags", Arc::new(tags.finish())),
        ("text", texts(&[Some("a\nb"), Some(""), Some("zwölf")])),
        ("tokens", Arc::new(tokens.finish())),
        ("u16", Arc::new(UInt16Array::from(vec![0, 1, 65535]))),
        ("vector", Arc::new(vector.finish())),
    ]
}

#[test]
fn parquet_survives_a_round_trip_through_samples() {
    let bench = Bench::new();
    bench.write("in.parquet", parquet_of(columns()));
    for output in ["a.tar", "a.tar.gz", "a.tgz", "a.tar.zst", "a.tar.zz"] {
        assert_eq!(bench.convert("in.parquet", output, &ConvertOptions::default()).unwrap().rows, 3);
        let mut options = ConvertOptions::default();
        for (name, kind) in
            [("number", "integer"), ("small", "integer"), ("double", "number"), ("flag", "boolean")]
        {
            options.text.kinds.insert(name.to_owned(), kind.parse().unwrap());
        }
        bench.convert(output, "back.parquet", &options).unwrap();
        let back = &bench.parquet("back.parquet")[0];
        let column = |name: &str| back.column_by_name(name).unwrap();
        let before = columns();
        let original = |name: &str| before.iter().find(|(known, _)| *known == name).unwrap().1.clone();
        for name in ["blob", "double", "flag", "number", "text"] {
            assert_eq!(column(name), &original(name), "{name} of {output}");
        }
        assert_eq!(column("json.tags"), &original("tags"));
        let expected: ArrayRef = texts(&[Some("0"), Some("1"), Some("18446744073709551615")]);
        assert_eq!(column("huge"), &expected);
        let keys = texts(&[Some("000000"), Some("000001"), Some("000002")]);
        assert_eq!(column("__key__"), &keys);
        let first = &lines(&bench, output, &ConvertOptions::default())[0];
        assert_eq!(first["json.tokens"], serde_json::json!(["1", "-2", "3"]));
        assert_eq!(first["json.vector"], serde_json::json!(["0.0", "0.1"]));
        assert_eq!(first["single"], "0.1");
    }
}

#[test]
fn parquet_survives_a_round_trip_through_shards() {
    let bench = Bench::new();
    bench.write("in.parquet", parquet_of(columns()));
    for (output, files) in
        [("a/a.mds", "a/a.mds"), ("b/b@2.mds.gz", "b/b-*.mds.gz"), ("c/c@2.mds.zst", "c/c-*.mds.zst")]
    {
        let converted = bench.convert("in.parquet", output, &ConvertOptions::default()).unwrap();
        assert!(converted.files.last().unwrap().ends_with("/index.json"), "{:?}", converted.files);
        let mut options = ConvertOptions::default();
        options.text.kinds.insert("double".to_owned(), "number".parse().unwrap());
        bench.convert(files, "back.parquet", &options).unwrap();
        let back = &bench.parquet("back.parquet")[0];
        let before = columns();
        let original = |name: &str| before.iter().find(|(known, _)| *known == name).unwrap().1.clone();
        for name in ["blob", "double", "number", "single", "tags", "text", "tokens"] {
            assert_eq!(back.column_by_name(name).unwrap(), &original(name), "{name} of {output}");
        }
        let integers = |name: &str| back[name].as_primitive::<Int64Type>().values().to_vec();
        assert_eq!(
            (integers("small"), integers("u16"), integers("flag")),
            (vec![-128, 0, 127], vec![0, 1, 65535], vec![1, 0, 1])
        );
        let vectors = back["vector"].as_list::<i32>();
        assert_eq!(vectors.value(2).as_primitive::<Float32Type>().values(), &[2.0, 0.1]);
        let index: Value =
            serde_json::from_str(&bench.text(&format!("{}/index.json", &output[..1]))).unwrap();
        let shards = index["shards"].as_array().unwrap();
        assert_eq!(shards.iter().map(|shard| shard["samples"].as_u64().unwrap()).sum::<u64>(), 3);
        for (shard, file) in shards.iter().zip(&converted.files) {
            let stored = if shard["zip_data"].is_null() { &shard["raw_data"] } else { &shard["zip_data"] };
            assert!(file.ends_with(stored["basename"].as_str().unwrap()));
            assert_eq!(std::fs::metadata(file).unwrap().len(), stored["bytes"].as_u64().unwrap());
            let bytes = std::fs::read(file).unwrap();
            let mut plain = Vec::new();
            let mut stream = Decompressed::new(&bytes[..]).unwrap().0;
            std::io::Read::read_to_end(&mut stream, &mut plain).unwrap();
            let plain = if shard["zip_data"].is_null() { bytes } else { plain };
            assert_eq!(plain.len() as u64, shard["raw_data"]["bytes"].as_u64().unwrap());
        }
    }
    let mut zlib = ConvertOptions::default();
    zlib.output.compression = Some(OutputCompression::Zlib);
    assert!(failure(&bench, "in.parquet", "d.mds", &zlib).contains("none, gzip or zstd"));
}

#[test]
fn keys_are_those_of_the_column_or_numbers_over_all_shards() {
    let bench = Bench::new();
    let rows: String = (0..20_000).map(|row| format!("{row},t{row}\n")).collect();
    bench.write("in.csv", format!("n,t\n{rows}"));
    bench.convert("in.csv", "a@3.tar", &shards(3)).unwrap();
    let numbered = lines(&bench, "a-*.tar", &ConvertOptions::default());
    assert_eq!(numbered.len(), 20_000);
    for (row, line) in numbered.iter().enumerate() {
        assert_eq!(line["__key__"], format!("{row:06}"));
        assert_eq!(line["n"], row.to_string());
    }
    // Archives are converted with their keys.
    bench.convert("a-00001-of-00003.tar", "b.tar", &ConvertOptions::default()).unwrap();
    let again = lines(&bench, "b.tar", &ConvertOptions::default());
    assert_eq!(again[0]["__key__"], "006666");
    let files =
        ["a-00001-of-00003.tar", "b.tar"].map(|file| std::fs::read(bench.dir.path().join(file)).unwrap());
    assert!(files[0] == files[1]);
}

#[test]
fn keys_that_would_join_or_split_samples_are_errors() {
    let bench = Bench::new();
    for (keys, problem) in [
        (
            vec![Some("a"), Some("b"), Some("b")],
            "record 2, column `__key__`: the key `b` is that of the previous row",
        ),
        (vec![Some("a"), None], "record 1, column `__key__`: the key of the sample is empty"),
        (vec![Some("a.b")], "has a dot in its last part"),
        (vec![Some("__a__/b")], "which readers skip"),
    ] {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..keys.len() as i64));
        bench.write("in.parquet", parquet_of(vec![("__key__", texts(&keys)), ("n", numbers)]));
        let error = failure(&bench, "in.parquet", "out.tar", &ConvertOptions::default());
        assert!(error.contains(problem) && error.contains("in.parquet"), "{error}");
    }
    // Not in the same block.
    let keys: Vec<String> =
        (0..1639).map(|row| format!("{}", if row == 1638 { 1637 } else { row })).collect();
    let keys: ArrayRef = Arc::new(StringArray::from(keys));
    bench.write("in.parquet", parquet_of(vec![("__key__", keys.clone()), ("n", keys)]));
    let error = failure(&bench, "in.parquet", "out.tar", &ConvertOptions::default());
    assert!(error.contains("record 1638") && error.contains("the previous row"), "{error}");
    // Consecutive rows of different shards are different samples.
    bench.convert("in.parquet", "out@1639.tar", &ConvertOptions::default()).unwrap();
}

#[test]
fn columns_that_cannot_be_files_are_named_with_a_way_out() {
    let bench = Bench::new();
    let with =
        |names: &[&'static str]| parquet_of(names.iter().map(|&name| (name, texts(&[Some("{}")]))).collect());
    for names in [vec!["a/b"], vec![""], vec![".a"], vec!["__url__"], vec!["a__"], vec!["Label", "label"]] {
        bench.write("in.parquet", with(&names));
        let error = failure(&bench, "in.parquet", "out.tar", &ConvertOptions::default());
        let name = names.last().unwrap();
        assert!(
            error.contains(&format!("`{name}`")) && error.contains(&format!("--rename '{name}=NEW'")),
            "{error}"
        );
    }
    let mut options = ConvertOptions::default();
    bench.write("in.parquet", with(&["a/b", "c"]));
    options.rename.push(("a/b".to_owned(), "b".to_owned()));
    bench.convert("in.parquet", "out.tar", &options).unwrap();
    let mut tags = ListBuilder::new(StringBuilder::new());
    tags.append_value([Some("p")]);
    let tags: ArrayRef = Arc::new(tags.finish());
    bench.write("in.parquet", parquet_of(vec![("json", texts(&[Some("{}")])), ("tags", tags)]));
    let error = failure(&bench, "in.parquet", "out.tar", &ConvertOptions::default());
    assert!(error.contains("`json` is the file in which WebDataset holds lists"), "{error}");
    bench.write("in.parquet", parquet_of(vec![("a", texts(&[Some("x"), None]))]));
    let error = failure(&bench, "in.parquet", "out.tar", &ConvertOptions::default());
    assert!(error.contains("record 1") && error.contains("no column of this row has a value"), "{error}");
}

#[test]
fn members_of_json_are_not_written_twice() {
    let bench = Bench::new();
    bench.write(
        "in.jsonl",
        "{\"txt\": \"a\", \"json\": {\"box\": [1, 2.5], \"of\": {\"w\": 3}}}\n{\"txt\": \"b\"}\n",
    );
    let first = bench.convert("in.jsonl", "a.tar", &ConvertOptions::default()).unwrap();
    assert!(first.notes.is_empty(), "{:?}", first.notes);
    let again = bench.convert("a.tar", "b.tar", &ConvertOptions::default()).unwrap();
    let note = "`json.box`, `json.of.w` are not files of samples: the text of `json` has the values";
    assert_eq!(again.notes, [note]);
    let rows = ["a.tar", "b.tar"].map(|file| lines(&bench, file, &ConvertOptions::default()));
    assert_eq!(rows[0][0]["json.box"], serde_json::json!(["1.0", "2.5"]));
    assert_eq!((&rows[0][0]["json.of.w"], &rows[0][1]["json.box"]), (&"3".into(), &Value::Null));
    assert_eq!(rows[0], rows[1]);
    bench.write("in.parquet", parquet_of(vec![("json", texts(&[None])), ("json.a", texts(&[Some("x")]))]));
    // Only the reader of WebDataset makes such columns from the text.
    let mut options = ConvertOptions::default();
    let error = failure(&bench, "in.parquet", "out.tar", &options);
    assert!(error.contains("`json.a`") && error.contains("`json`"), "{error}");
    assert!(error.ends_with("--rename 'json.a=NEW'"), "{error}");
    options.rename = vec![("txt".to_owned(), "json".to_owned())];
    options.select = Some(["txt", "json.box"].map(str::to_owned).to_vec());
    let error = failure(&bench, "a.tar", "out.tar", &options);
    assert!(error.ends_with("--rename 'json.box=NEW'"), "{error}");
}

#[test]
fn absent_values_are_errors_in_shards() {
    let bench = Bench::new();
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    let mut lists = ListBuilder::new(Int64Builder::new());
    lists.append_value([Some(1)]);
    lists.append_value([None]);
    let mut words = ListBuilder::new(StringBuilder::new());
    words.append_value([Some("a"), None]);
    words.append_null();
    for array in [numbers, Arc::new(lists.finish()), Arc::new(words.finish()), texts(&[Some("a"), None])] {
        bench.write("in.parquet", parquet_of(vec![("it", array)]));
        let error = failure(&bench, "in.parquet", "out.mds", &ConvertOptions::default());
        assert!(error.contains("record 1, column `it`") && error.contains("absent"), "{error}");
    }
}

#[test]
fn samples_do_not_depend_on_threads_or_blocks() {
    let bench = Bench::new();
    for (number, text) in uneven(2, 9000).iter().enumerate() {
        // Shards have no absent values.
        bench.write(&format!("in-{number}.csv"), text.replace(",\n", ",y\n"));
    }
    for output in ["o@3.tar", "o@3.tar.gz", "m/o@3.mds", "z/o@3.mds.zst"] {
        let outcome = |threads, memory_bytes| {
            let mut options = ConvertOptions::default();
            options.output = OutputOptions { threads, memory_bytes, ..options.output };
            let converted = bench.convert("in-*.csv", output, &options).unwrap();
            let files: Vec<Vec<u8>> =
                converted.files.iter().map(|file| std::fs::read(file).unwrap()).collect();
            assert_eq!(files.iter().map(|file| file.len() as u64).sum::<u64>(), converted.bytes);
            files
        };
        let one = outcome(1, 1);
        assert!(one == outcome(3, 64 << 20), "{output}");
        let files = output.replace("@3", "-*");
        bench
            .convert(
                &files,
                "back.csv",
                &ConvertOptions { select: Some(vec!["n".into(), "t".into()]), ..ConvertOptions::default() },
            )
            .unwrap();
        bench.convert("in-*.csv", "all.csv", &ConvertOptions::default()).unwrap();
        assert!(bench.text("back.csv") == bench.text("all.csv"), "{output}");
    }
}

#[test]
fn blocks_of_samples_count_long_keys_and_members_of_json() {
    const ROWS: usize = 100;
    let bench = Bench::new();
    let keys: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| format!("{row}{}", "k".repeat(20_000)))));
    let number: ArrayRef = Arc::new(Int64Array::from(vec![7; ROWS]));
    let (mut long, mut empty) =
        (ListBuilder::new(Int64Builder::new()), ListBuilder::new(Int64Builder::new()));
    for _ in 0..ROWS {
        long.append_value([Some(i64::MIN); 500]);
        empty.append_value([]);
    }
    let name = "n".repeat(3_000);
    let columns = vec![
        ("__key__", keys),
        ("a", number.clone()),
        ("b", number),
        ("long", Arc::new(long.finish()) as ArrayRef),
        (name.as_str(), Arc::new(empty.finish()) as ArrayRef),
    ];
    bench.write("in.parquet", parquet_of(columns));
    bench.convert("in.parquet", "out.tar", &ConvertOptions::default()).unwrap();
    let archive = std::fs::metadata(bench.dir.path().join("out.tar")).unwrap().len() as usize;
    let batch = &bench.parquet("in.parquet")[0];
    assert_eq!(batch.num_rows(), ROWS);
    let target = output::plan("out.tar", &[], &OutputOptions::default(), &bench.here()).unwrap();
    let bounds = target.block(&batch.schema());
    let counted = weight::of_rows(batch, ROWS, &bounds.forms) + ROWS * bounds.overhead_bytes;
    assert!((archive..2 * archive).contains(&counted), "{counted} bytes for {archive}");
    let rows = weight::rows_within(batch, ROWS, bounds.bytes, &bounds.forms);
    assert!((1..ROWS).contains(&rows) && rows * (archive / ROWS) < 2 * bounds.bytes, "{rows} rows");
}

#[test]
fn shards_without_rows_are_valid() {
    let bench = Bench::new();
    bench.write("in.csv", "n,m\n1,2\n");
    for (output, files) in [
        ("a@2.tar", "a-*.tar"),
        ("a@2.tar.zst", "a-*.tar.zst"),
        ("b/a@2.mds", "b/a-*.mds"),
        ("c/a@2.mds.gz", "c/a-*.mds.gz"),
    ] {
        bench.convert("in.csv", output, &ConvertOptions::default()).unwrap();
        let rows = lines(&bench, files, &ConvertOptions::default());
        assert_eq!((rows.len(), rows[0]["m"].to_string().replace('"', "")), (1, "2".to_owned()), "{output}");
    }
}

#[test]
fn bytes_in_lists_and_structs_are_errors() {
    let bench = Bench::new();
    let mut blobs = ListBuilder::new(BinaryBuilder::new());
    blobs.append_value([Some(b"\xff\xd8")]);
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"\xff\xd8"[..]]));
    // Images in data sets of Hugging Face.
    let image = StructArray::from(vec![
        (Arc::new(Field::new("bytes", DataType::Binary, true)), bytes.clone()),
        (Arc::new(Field::new("path", DataType::Utf8, true)), texts(&[Some("1.jpg")])),
    ]);
    for array in [Arc::new(blobs.finish()) as ArrayRef, Arc::new(image)] {
        bench.write("in.parquet", parquet_of(vec![("it", array), ("t", texts(&[Some("a")]))]));
        for output in ["out.tar", "out.mds"] {
            let error = failure(&bench, "in.parquet", output, &ConvertOptions::default());
            assert!(error.contains("column `it`") && error.contains("flatten it first"), "{error}");
        }
    }
    bench.write("in.parquet", parquet_of(vec![("json.it", bytes.clone())]));
    let error = failure(&bench, "in.parquet", "out.tar", &ConvertOptions::default());
    assert!(error.contains("column `json.it`"), "{error}");
    bench.write("in.parquet", parquet_of(vec![("it", bytes)]));
    for output in ["out.tar", "out.mds"] {
        bench.convert("in.parquet", output, &ConvertOptions::default()).unwrap();
    }
}

#[test]
fn an_index_of_other_shards_is_not_replaced() {
    let bench = Bench::new();
    bench.write("in.csv", "n\n1\n2\n");
    for other in ["{}", "[1]", "not JSON", "{\"shards\": [{\"raw_data\": {\"basename\": \"b.mds\"}}]}"] {
        bench.write("index.json", other);
        let error = failure(&bench, "in.csv", "a.mds", &ConvertOptions::default());
        assert!(error.contains("/index.json: describes other files"), "{error}");
        assert!(error.contains("write to another directory"), "{error}");
        assert_eq!(bench.text("index.json"), other);
    }
    bench.convert("in.csv", "new/a@2.mds.gz", &ConvertOptions::default()).unwrap();
    bench.convert("in.csv", "new/a@2.mds.gz", &ConvertOptions::default()).unwrap();
    let error = failure(&bench, "in.csv", "new/a@3.mds.gz", &ConvertOptions::default());
    assert!(error.contains("/index.json: describes other files"), "{error}");
}

#[test]
fn indexes_of_shards_are_no_data() {
    let bench = Bench::new();
    bench.write("in.csv", "n,t\n1,a\n2,b\n");
    bench.convert("in.csv", "a/b/s@2.mds", &ConvertOptions::default()).unwrap();
    bench.convert("in.csv", "c/s@2.mds.zst", &ConvertOptions::default()).unwrap();
    bench.convert("in.csv", "d/s@2.tar", &ConvertOptions::default()).unwrap();
    let rows = |input: &str, given| {
        let options = ConvertOptions { input_format: given, ..ConvertOptions::default() };
        bench.convert(input, "out.jsonl", &options).unwrap()
    };
    let shards = "{\"shards\": []}\n";
    bench.write("d/index.json", shards);
    for (input, given) in [
        ("a/**", None),
        ("a/b/*", Some(FileFormat::Mds)),
        ("c/*", None),
        ("d/*", None),
        ("d/*", Some(FileFormat::WebDataset)),
    ] {
        let converted = rows(input, given);
        assert_eq!(converted.rows, 2, "{input}");
        let note = &converted.notes[0];
        assert!(note.ends_with("/index.json: skipped, because it is the index of shards"), "{note}");
    }
    // Of the merged shards in the directories below.
    bench.write("a/index.json", shards);
    let converted = rows("a/**", None);
    assert_eq!(converted.rows, 2);
    let note = &converted.notes[0];
    assert!(
        note.ends_with("a/b/index.json and 1 more: skipped, because they are indexes of shards"),
        "{note}"
    );
    // The name of a default output is that of data.
    let mut options = ConvertOptions::default();
    options.output.format = Some(OutputFormat::Parquet);
    let converted = bench.convert("c/*", "e/", &options).unwrap();
    assert!(converted.files[0].ends_with("/e/s-00000-of-00002.parquet"), "{:?}", converted.files);
    // Without shards it is data.
    bench.write("e/index.json", "{\"n\": 1}\n{\"n\": 2}\n{\"n\": 3}\n");
    bench.write("e/more.json", "{\"n\": 4}\n");
    for (input, count) in [("e/index.json", 3), ("e/*.json", 4)] {
        let converted = rows(input, None);
        assert_eq!(converted.rows, count, "{input}");
        assert!(converted.notes.is_empty(), "{:?}", converted.notes);
    }
    assert_eq!(rows("c/index.json", None).rows, 1);
}

#[test]
fn no_index_is_left_if_shards_cannot_be_replaced() {
    let bench = Bench::new();
    bench.write("in.csv", "n\n1\n2\n");
    bench.convert("in.csv", "a@2.mds", &ConvertOptions::default()).unwrap();
    let second = bench.dir.path().join("a-00001-of-00002.mds");
    std::fs::remove_file(&second).unwrap();
    std::fs::create_dir(&second).unwrap();
    bench.convert("in.csv", "a@2.mds", &ConvertOptions::default()).unwrap_err();
    assert_eq!(bench.names(), ["a-00000-of-00002.mds", "a-00001-of-00002.mds", "in.csv"]);
}

#[test]
fn names_of_compressed_shards_end_in_the_compression() {
    let bench = Bench::new();
    bench.write("in.csv", "n\n1\n");
    for (output, compression) in [
        ("a.mds", OutputCompression::Gzip),
        ("a@2.mds", OutputCompression::Zstd),
        ("a.mds.gz", OutputCompression::Zstd),
    ] {
        let mut options = ConvertOptions::default();
        options.output.compression = Some(compression);
        let error = failure(&bench, "in.csv", output, &options);
        assert!(
            error.contains("the name of a compressed MDS shard must end in .gz (gzip) or .zst (zstd)"),
            "{error}"
        );
    }
    let mut options = ConvertOptions::default();
    options.output.compression = Some(OutputCompression::Zstd);
    options.output.format = Some(OutputFormat::Mds);
    for output in ["a/", "b/a.mds.zstd"] {
        bench.convert("in.csv", output, &options).unwrap();
    }
}
