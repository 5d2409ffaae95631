//! Statistics of columns over a sample of rows: for `millstream init`, which chooses features by them.
//!
//! The sample consists of the first rows of files that are spread evenly over the listing. Fields of structs are columns
//! of their own, named `a.b`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;
use millstream_format::csv::CsvOptions;
use millstream_format::example::ExampleColumns;
use millstream_format::parquet::WantedRows;
use millstream_format::record::RecordFormat;
use millstream_format::type_name::TypeName;
use millstream_format::{Error as FormatError, FileFormat};
use millstream_io::fetch::FetchedRanges;
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use millstream_pipeline::parquet::ParquetObject;
use millstream_pipeline::records::{self, Records, Step};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::EXTRA_DECODE_BYTES;
use crate::detect::detect;
use crate::progress::Progress;
use crate::values::{JsonColumn, Room};

/// The number of files that a sample reads.
const MAX_FILES: usize = 32;
/// Rows decoded at a time.
const CHUNK_ROWS: usize = 1024;
/// The bytes of values at which a chunk of records ends.
const CHUNK_BYTES: usize = 32 << 20;
/// The maximum number of distinct values that are counted in a column, and of numbers kept of it.
const MAX_DISTINCT: usize = 1 << 17;
/// The same for all columns together, of which each gets the same share, but at least the next number.
const MAX_KEPT: usize = 1 << 22;
const MIN_SHARE: usize = 1 << 11;
/// The number of row groups that are read of a large file, spread evenly: data may be sorted.
const MAX_GROUPS: usize = 8;
/// The maximum bytes of a value that are compared, and the maximum number of elements.
const MAX_VALUE_BYTES: usize = 256;
const MAX_ELEMENTS: usize = 4096;
/// The maximum depth of structs whose fields are columns.
const MAX_DEPTH: usize = 8;

/// A sample of rows.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Rows in the sample.
    pub rows: u64,
    /// Whether the sample has all rows of the files.
    pub is_whole: bool,
    /// The number of rows of all files: exact if the sample is whole.
    pub estimated_rows: u64,
    /// In file order; those of Examples, which have no order, by name.
    pub columns: Vec<SampledColumn>,
}

/// A column's values in a sample.
#[derive(Clone, Debug, Default)]
pub struct SampledColumn {
    /// The name; that of a struct's field is `struct.field`.
    pub name: String,
    /// The type of one value, in words.
    pub type_name: String,
    /// What its values are.
    pub kind: ValueKind,
    /// Rows with a value.
    pub filled: u64,
    /// The most values of a row.
    pub most_values: usize,
    /// How often each value occurs, at most 131,072 values.
    pub counts: HashMap<String, u64>,
    /// Whether there are more values than counted.
    pub has_more: bool,
    /// The number of values.
    pub values: u64,
    /// The number of values that are finite numbers, or text that is one.
    pub number_count: u64,
    /// Those values: all if they are few, otherwise every second, fourth and so on.
    pub numbers: Vec<f64>,
    /// Values that are not finite numbers, other than text.
    pub not_finite: u64,
    /// One in this many numbers is kept; 0 means 1.
    pub stride: u64,
}

/// What the values of a column are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueKind {
    /// No row has a value.
    #[default]
    Nothing,
    /// Numbers, or flags.
    Numbers,
    /// Text.
    Texts,
    /// Dates, times, timestamps or durations.
    Moments,
    /// Bytes that are not text, maps, lists of lists.
    Other,
}

impl SampledColumn {
    /// Whether all values are whole numbers.
    pub fn is_whole(&self) -> bool {
        self.not_finite == 0 && self.numbers.iter().all(|number| number.fract() == 0.0)
    }

    /// The most frequent values, at most `most`; of equally frequent ones the first in alphabetical order.
    pub fn top(&self, most: usize) -> Vec<(&str, u64)> {
        let mut values: Vec<_> = self.counts.iter().map(|(value, &count)| (value.as_str(), count)).collect();
        values.sort_unstable_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(other.0)));
        values.truncate(most);
        values
    }

    /// Adds a row's value. At most `share` distinct values and numbers are kept.
    fn add(&mut self, value: Value, share: usize) {
        match value {
            Value::Null => {}
            Value::Array(values) if values.is_empty() => {}
            Value::Array(values) => {
                self.filled += 1;
                self.most_values = self.most_values.max(values.len());
                values.into_iter().for_each(|value| self.add_one(value, share));
            }
            one => {
                self.filled += 1;
                self.most_values = self.most_values.max(1);
                self.add_one(one, share);
            }
        }
    }

    fn add_number(&mut self, number: f64, share: usize) {
        let stride = self.stride.max(1);
        if self.number_count.is_multiple_of(stride) {
            if self.numbers.len() >= share {
                let mut nth = 0;
                self.numbers.retain(|_| {
                    nth += 1;
                    nth % 2 == 1
                });
                self.stride = 2 * stride;
            }
            self.numbers.push(number);
        }
        self.number_count += 1;
    }

    fn add_one(&mut self, value: Value, share: usize) {
        let text = match value {
            Value::Null => return,
            Value::Bool(flag) => {
                self.add_number(f64::from(u8::from(flag)), share);
                flag.to_string()
            }
            Value::Number(number) => {
                self.add_number(number.as_f64().unwrap_or_default(), share);
                number.to_string()
            }
            Value::String(text) => {
                match text.trim().parse::<f64>() {
                    Ok(number) if number.is_finite() => self.add_number(number, share),
                    _ if self.kind == ValueKind::Numbers => self.not_finite += 1,
                    _ => {}
                }
                text
            }
            Value::Array(_) | Value::Object(_) => {
                self.kind = ValueKind::Other;
                return;
            }
        };
        self.values += 1;
        if let Some(count) = self.counts.get_mut(&text) {
            *count += 1;
        } else if self.counts.len() < share {
            self.counts.insert(text, 1);
        } else {
            self.has_more = true;
        }
    }
}

/// The formats whose columns have types.
pub const WITH_TYPES: &str = "TFRecord or Parquet, whose columns have types";

/// Samples at most `rows` rows of `objects`. Blocks, so it must not be called from async code.
///
/// # Errors
/// A file cannot be read, is damaged at its start, or is neither TFRecord nor Parquet; the work was cancelled.
pub fn sample(objects: &[Object], rows: u64, runtime: &Handle, progress: &Progress) -> Result<Sample, Error> {
    let files = objects.len().clamp(1, MAX_FILES);
    let chosen: Vec<&Object> =
        (0..files).filter_map(|nth| objects.get(nth * objects.len() / files)).collect();
    let mut sampler =
        Sampler { runtime, progress, columns: Vec::new(), places: BTreeMap::new(), rows: 0, estimate: 0 };
    let mut is_whole = chosen.len() == objects.len();
    let mut first: Option<(&Object, FileFormat)> = None;
    for (nth, object) in chosen.iter().enumerate() {
        progress.check()?;
        // What a short file leaves goes to the next ones.
        let quota = (rows - sampler.rows.min(rows)) / (files - nth) as u64;
        let format = detect(object, &CsvOptions::default(), None, runtime)?.format;
        let (same, expected) = *first.get_or_insert((*object, format));
        if format != expected {
            return Err(Error::Format(FormatError::WrongFormat {
                path: object.path().to_string(),
                expected: format!("{}, as {} is", expected.name(), same.path()),
                found: format.name().to_owned(),
            }));
        }
        is_whole &= match format {
            FileFormat::Parquet => sampler.parquet(object, quota)?,
            FileFormat::TfRecord => sampler.records(object, quota)?,
            FileFormat::Csv
            | FileFormat::JsonLines
            | FileFormat::WebDataset
            | FileFormat::Mds
            | FileFormat::Images => {
                return Err(Error::Format(FormatError::WrongFormat {
                    path: object.path().to_string(),
                    expected: WITH_TYPES.to_owned(),
                    found: format.name().to_owned(),
                }));
            }
        };
        progress.add_file();
    }
    let Sampler { mut columns, rows, estimate, .. } = sampler;
    let of_all = estimate.saturating_mul(objects.len() as u64) / files as u64;
    let estimated_rows = if is_whole { rows } else { of_all.max(rows) };
    if first.is_some_and(|(_, format)| format == FileFormat::TfRecord) {
        columns.sort_by(|one, other| one.name.cmp(&other.name));
    }
    Ok(Sample { rows, is_whole, estimated_rows, columns })
}

struct Sampler<'a> {
    runtime: &'a Handle,
    progress: &'a Progress,
    columns: Vec<SampledColumn>,
    /// The place of each name.
    places: BTreeMap<String, usize>,
    rows: u64,
    /// The estimated rows of the files read so far.
    estimate: u64,
}

impl Sampler<'_> {
    /// Reads at most `quota` records. Returns whether those are all.
    fn records(&mut self, object: &Object, quota: u64) -> Result<bool, Error> {
        let mut records =
            Records::start(object.clone(), RecordFormat::TfRecord, &Arc::default(), &self.runtime.into());
        let mut columns = ExampleColumns::every();
        let mut read = 0;
        let mut ended = false;
        while !ended && read < quota {
            match records.step()? {
                Step::End => ended = true,
                Step::Bad { error, .. } => return Err(error),
                Step::Record { number, offset, data } => {
                    if let Err(why) = columns.push(data) {
                        return Err(records::fault(object.path(), &columns, why, number, offset));
                    }
                    read += 1;
                }
            }
            if ended || read == quota || columns.rows() >= CHUNK_ROWS || columns.bytes() >= CHUNK_BYTES {
                self.add(&columns.finish())?;
            }
        }
        let share = object.size() as f64 / records.bytes_read().max(1) as f64;
        self.estimate += if ended { read } else { (read as f64 * share) as u64 };
        Ok(ended)
    }

    /// Reads at most `quota` rows. Returns whether those are all.
    fn parquet(&mut self, object: &Object, quota: u64) -> Result<bool, Error> {
        let file = self.runtime.block_on(ParquetObject::open(object.clone()))?;
        let groups = file.file().groups().len();
        let all: u64 = file.file().groups().iter().map(|group| group.rows).sum();
        self.estimate += all;
        let chosen = if quota >= all { groups } else { groups.min(MAX_GROUPS) };
        let mut read = 0;
        for nth in 0..chosen {
            let group = nth * groups / chosen;
            let of_group =
                if quota >= all { u64::MAX } else { (quota - read.min(quota)) / (chosen - nth) as u64 };
            let plan = file.file().plan_all();
            let ranges = file.file().ranges(group, &plan);
            let fetched = FetchedRanges::start(file.object().clone(), ranges, &self.runtime.into()).wait()?;
            let mut reader = file.decode(group, plan, fetched, WantedRows::default(), EXTRA_DECODE_BYTES)?;
            let mut read_of_group = 0;
            while read_of_group < of_group {
                let left = usize::try_from(of_group - read_of_group).unwrap_or(usize::MAX);
                let Some((batch, _)) = reader.next_rows(CHUNK_ROWS.min(left))? else { break };
                read_of_group += batch.num_rows() as u64;
                self.add(&batch)?;
            }
            read += read_of_group;
        }
        Ok(read >= all)
    }

    fn add(&mut self, chunk: &RecordBatch) -> Result<(), Error> {
        self.progress.check()?;
        self.progress.add_rows(chunk.num_rows() as u64);
        for (field, array) in chunk.schema().fields().iter().zip(chunk.columns()) {
            self.add_column(field.name(), array, 0);
        }
        self.rows += chunk.num_rows() as u64;
        Ok(())
    }

    fn add_column(&mut self, name: &str, array: &ArrayRef, depth: usize) {
        if let (DataType::Struct(fields), true) = (array.data_type(), depth < MAX_DEPTH) {
            for (field, inner) in fields.iter().zip(array.as_struct().columns()) {
                self.add_column(&format!("{name}.{}", field.name()), inner, depth + 1);
            }
            return;
        }
        let columns = &mut self.columns;
        let place = *self.places.entry(name.to_owned()).or_insert_with(|| {
            columns.push(SampledColumn { name: name.to_owned(), ..SampledColumn::default() });
            columns.len() - 1
        });
        let share = (MAX_KEPT / self.columns.len()).clamp(MIN_SHARE, MAX_DISTINCT);
        let column = &mut self.columns[place];
        let item = item_type(array.data_type());
        let kind = kind_of(item);
        if kind != ValueKind::Nothing && column.kind == ValueKind::Nothing {
            column.kind = kind;
            column.type_name = TypeName(item).to_string();
        }
        let values = JsonColumn::of(array);
        for row in 0..array.len() {
            let mut room = Room { bytes: MAX_VALUE_BYTES, elements: MAX_ELEMENTS };
            column.add(values.value(row, &mut room), share);
        }
    }
}

/// The type of a list's elements, or of a dictionary's values.
fn item_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item_type(item.data_type())
        }
        DataType::Dictionary(_, values) => values,
        single => single,
    }
}

fn kind_of(data_type: &DataType) -> ValueKind {
    match data_type {
        DataType::Null => ValueKind::Nothing,
        DataType::Boolean => ValueKind::Numbers,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => ValueKind::Texts,
        // Examples hold text as bytes.
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => ValueKind::Texts,
        numbers if numbers.is_numeric() => ValueKind::Numbers,
        moments if moments.is_temporal() => ValueKind::Moments,
        _ => ValueKind::Other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use arrow_array::builder::{Float64Builder, ListBuilder, StringBuilder};
    use arrow_array::{Date32Array, Float64Array, Int64Array, StringArray, StructArray};
    use millstream_io::storage;
    use parquet::arrow::ArrowWriter;
    use tokio::runtime::Runtime;

    use super::*;

    fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, array)| (name, array, true)),
        );
        let batch = batch.unwrap();
        let file = std::fs::File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn columns_are_counted_by_value() {
        let directory = tempfile::tempdir().unwrap();
        let mut tags = ListBuilder::new(StringBuilder::new());
        tags.append_value([Some("a"), Some("b")]);
        tags.append_null();
        tags.append_value([Some("a")]);
        tags.append_value([] as [Option<&str>; 0]);
        let mut vectors = ListBuilder::new(ListBuilder::new(Float64Builder::new()));
        (0..4).for_each(|_| vectors.append_null());
        let inner: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4]));
        let field = Arc::new(arrow_schema::Field::new("x", DataType::Int64, true));
        write(
            &directory.path().join("a.parquet"),
            vec![
                ("text", Arc::new(StringArray::from(vec![Some("1"), Some("x"), None, Some("x")]))),
                ("number", Arc::new(Float64Array::from(vec![Some(0.5), None, Some(f64::NAN), Some(2.0)]))),
                ("tags", Arc::new(tags.finish())),
                ("nothing", Arc::new(vectors.finish())),
                ("day", Arc::new(Date32Array::from(vec![1, 2, 3, 4]))),
                ("part", Arc::new(StructArray::from(vec![(field, inner)]))),
            ],
        );
        let runtime = Runtime::new().unwrap();
        let objects = runtime.block_on(storage::list(&["*".to_owned()], directory.path())).unwrap();
        let found = sample(&objects, 100, runtime.handle(), &Progress::default()).unwrap();
        assert_eq!((found.rows, found.is_whole), (4, true));
        let names: Vec<_> = found.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["text", "number", "tags", "nothing", "day", "part.x"]);
        let kinds: Vec<_> = found.columns.iter().map(|column| column.kind).collect();
        use ValueKind::{Moments, Numbers, Other, Texts};
        assert_eq!(kinds[..3], [Texts, Numbers, Texts]);
        assert_eq!(kinds[4..], [Moments, Numbers]);
        assert!(kinds[3] != Other || found.columns[3].filled == 0);
        let [text, number, tags] = &found.columns[..3] else { unreachable!() };
        assert_eq!((text.filled, text.top(1)), (3, vec![("x", 2)]));
        assert_eq!(text.numbers, [1.0]);
        assert_eq!((number.filled, number.not_finite, number.numbers.as_slice()), (3, 1, &[0.5, 2.0][..]));
        assert!(!number.is_whole() && found.columns[5].is_whole());
        assert_eq!((tags.filled, tags.most_values, tags.counts.len()), (2, 2, 2));

        let part = sample(&objects, 2, runtime.handle(), &Progress::default()).unwrap();
        assert_eq!((part.rows, part.is_whole, part.estimated_rows), (2, false, 4));
    }
}
