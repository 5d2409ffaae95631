//! Folders of images.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use millstream_format::FileFormat;

use super::*;

/// A file that begins as an image.
fn image(start: &[u8], number: usize) -> Vec<u8> {
    [start, format!(" image {number}").as_bytes()].concat()
}

const JPEG: &[u8] = b"\xff\xd8\xff\xe0";
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const WEBP: &[u8] = b"RIFF\x10\x00\x00\x00WEBP";

fn put(bench: &Bench, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::create_dir_all(bench.dir.path().join(name).parent().unwrap()).unwrap();
    bench.write(name, bytes);
}

/// The values of all columns but the image, of all batches.
fn labels(batches: &[RecordBatch]) -> Vec<(String, i64, String)> {
    let of_batch = |batch: &RecordBatch| {
        let text = |name: &str, row| batch[name].as_string::<i32>().value(row).to_owned();
        let label = |row| batch["label"].as_primitive::<Int64Type>().value(row);
        (0..batch.num_rows())
            .map(|row| (text("class", row), label(row), text("path", row)))
            .collect::<Vec<_>>()
    };
    batches.iter().flat_map(of_batch).collect()
}

#[test]
fn each_image_is_a_row_with_the_class_of_its_directory() {
    let bench = Bench::new();
    put(&bench, "photos/dog/2.PNG", image(PNG, 0));
    put(&bench, "photos/Zebra/1.webp", image(WEBP, 1));
    put(&bench, "photos/cat/b.jpeg", image(JPEG, 2));
    put(&bench, "photos/cat/a.jpg", image(PNG, 3));
    let converted = bench.convert("photos/*/*", "out.parquet", &ConvertOptions::default()).unwrap();
    assert_eq!(converted.rows, 4);
    let note = &converted.notes[0];
    assert!(note.ends_with("photos: 3 classes: 0 Zebra, 1 cat, 2 dog"), "{note}");
    let batches = bench.parquet("out.parquet");
    let row = |class: &str, label, path: &str| (class.to_owned(), label, path.to_owned());
    let expected = [
        row("Zebra", 0, "Zebra/1.webp"),
        row("cat", 1, "cat/a.jpg"),
        row("cat", 1, "cat/b.jpeg"),
        row("dog", 2, "dog/2.PNG"),
    ];
    assert_eq!(labels(&batches), expected);
    assert_eq!(batches[0]["image"].as_binary::<i32>().value(1), image(PNG, 3));
    // The same class in several directories, and one class alone.
    put(&bench, "more/val/cat/c.jpg", image(JPEG, 4));
    put(&bench, "more/train/cat/c.jpg", image(JPEG, 5));
    bench.convert("more/**", "out.parquet", &ConvertOptions::default()).unwrap();
    let expected = [row("cat", 0, "train/cat/c.jpg"), row("cat", 0, "val/cat/c.jpg")];
    assert_eq!(labels(&bench.parquet("out.parquet")), expected);
}

#[test]
fn images_are_shards_of_any_format_in_the_order_of_the_listing() {
    let bench = Bench::new();
    // More than are read ahead, and more bytes than a chunk holds.
    let size = |number: usize| if number.is_multiple_of(40) { 3 << 20 } else { 10 };
    for number in 0..300 {
        let mut bytes = image(JPEG, number);
        bytes.resize(bytes.len() + size(number), number as u8);
        put(&bench, &format!("in/{}/{number:03}.jpg", number / 100), bytes);
    }
    for (output, files) in [("a@3.tar", "a-*.tar"), ("b@4.mds", "b-*.mds"), ("c@2.parquet", "c-*.parquet")] {
        let outcome = |threads| {
            let mut options = ConvertOptions::default();
            options.output.threads = threads;
            let converted = bench.convert("in/*/*.jpg", output, &options).unwrap();
            assert_eq!(converted.rows, 300);
            converted.files.iter().map(|file| std::fs::read(file).unwrap()).collect::<Vec<_>>()
        };
        assert!(outcome(1) == outcome(3), "{output}");
        bench.convert(files, "back.parquet", &ConvertOptions::default()).unwrap();
        let batches = bench.parquet("back.parquet");
        let mut number = 0;
        for batch in &batches {
            for row in 0..batch.num_rows() {
                let bytes = batch["image"].as_binary::<i32>().value(row);
                assert!(bytes.starts_with(&image(JPEG, number)) && bytes.len() >= size(number));
                assert_eq!(
                    batch["path"].as_string::<i32>().value(row),
                    format!("{}/{number:03}.jpg", number / 100)
                );
                number += 1;
            }
        }
        assert_eq!(number, 300);
    }
    let mut options =
        ConvertOptions { select: Some(vec!["label".into(), "image".into()]), ..ConvertOptions::default() };
    options.rename = vec![("image".into(), "jpg".into()), ("label".into(), "cls".into())];
    bench.convert("in/*/*.jpg", "d.tar", &options).unwrap();
    options.rename.clear();
    options.select = Some(vec!["cls".into(), "__key__".into()]);
    bench.convert("d.tar", "d.csv", &options).unwrap();
    assert!(bench.text("d.csv").ends_with("\n2,000299\n"));
}

#[test]
fn files_that_are_no_images_are_named() {
    let bench = Bench::new();
    put(&bench, "in/cat/1.jpg", image(JPEG, 0));
    put(&bench, "in/cat/2.jpg", "<html>not found</html>");
    put(&bench, "in/cat/readme.txt", "text");
    put(&bench, "3.jpg", image(JPEG, 0));
    let says =
        |input: &str| bench.convert(input, "out.tar", &ConvertOptions::default()).unwrap_err().to_string();
    let error = says("in/cat/?.jpg");
    assert!(error.contains("in/cat/2.jpg: expected an image in JPEG, PNG or WebP, found text"), "{error}");
    let error = says("in/*/*");
    assert!(error.contains("in/cat/readme.txt: not an image by its extension"), "{error}");
    put(&bench, "in/cat/2.jpg", "");
    let error = says("in/cat/?.jpg");
    assert!(error.contains("in/cat/2.jpg: ") && error.contains("an empty file"), "{error}");
    // A value that an option cannot convert is that of its own file.
    put(&bench, "in/cat/2.jpg", image(JPEG, 1));
    put(&bench, "in/7/1.jpg", image(JPEG, 2));
    let mut typed = ConvertOptions::default();
    typed.text.kinds.insert("class".to_owned(), "integer".parse().unwrap());
    let error = bench.convert("in/*/?.jpg", "out.tar", &typed).unwrap_err().to_string();
    assert!(error.contains("in/cat/1.jpg") && error.contains("`class`"), "{error}");
    // Extensions do not matter if the format is given.
    let given = ConvertOptions { input_format: Some(FileFormat::Images), ..ConvertOptions::default() };
    put(&bench, "in/dog/1", image(WEBP, 0));
    assert_eq!(bench.convert("in/*/1*", "out.tar", &given).unwrap().rows, 3);
}

#[test]
fn rows_of_images_reserve_little_more_memory_than_they_fill() {
    let bench = Bench::new();
    put(&bench, "in/cat/1.jpg", image(JPEG, 0));
    let objects = bench.runtime.block_on(storage::list(&["in/*/*".to_owned()], bench.dir.path())).unwrap();
    let folder = ImageFolder::of(&objects, None).unwrap().unwrap();
    let mut rows = folder.rows_from(0, bench.runtime.handle());
    let (object, columns) = rows.next_chunk(&Progress::default()).unwrap().unwrap();
    assert!(object.path().ends_with("in/cat/1.jpg"));
    let reserved: usize = columns.iter().map(|column| column.get_array_memory_size()).sum();
    assert!(reserved < 2048, "{reserved} bytes");
    assert!(rows.next_chunk(&Progress::default()).unwrap().is_none());
}
