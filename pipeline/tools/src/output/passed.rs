//! Columns of the data that a table passes through beside computed ones.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, StringArray};
use arrow_schema::{DataType, Field};
use millstream_format::type_name::TypeName;
use serde_json::Value;

use crate::conform::conform;
use crate::text_source::IS_JSON;
use crate::values::{JsonColumn, Room};

/// Consecutive values of a column of the data, as `predict --keep` returns them.
pub struct PassedColumn {
    name: String,
    values: Values,
}

enum Values {
    /// Each value is a JSON text.
    Json(StringArray),
    Typed(ArrayRef, JsonColumn),
}

impl PassedColumn {
    /// The values of a column.
    pub fn of(field: &Field, array: &ArrayRef) -> Self {
        let json = array.as_string_opt::<i32>().filter(|_| field.metadata().contains_key(IS_JSON));
        let values = match json {
            Some(texts) => Values::Json(texts.clone()),
            None => Values::Typed(Arc::clone(array), JsonColumn::of(array)),
        };
        Self { name: field.name().clone(), values }
    }

    pub(super) fn len(&self) -> usize {
        match &self.values {
            Values::Json(texts) => texts.len(),
            Values::Typed(array, _) => array.len(),
        }
    }

    /// A value as JSON.
    pub(super) fn json(&self, row: usize) -> Cow<'_, str> {
        match &self.values {
            Values::Json(texts) if texts.is_null(row) => "null".into(),
            Values::Json(texts) => texts.value(row).into(),
            Values::Typed(_, column) => column.value(row, &mut Room::unlimited()).to_string().into(),
        }
    }

    /// A value as text; lists and objects are JSON. `None` if it is absent.
    pub(super) fn text(&self, row: usize) -> Option<String> {
        let value = match &self.values {
            Values::Json(texts) if texts.is_null(row) => return None,
            // The exact digits of numbers stay.
            Values::Json(texts) if !texts.value(row).starts_with('"') => {
                return Some(texts.value(row).to_owned());
            }
            Values::Json(texts) => serde_json::from_str(texts.value(row)).unwrap_or_default(),
            Values::Typed(_, column) => column.value(row, &mut Room::unlimited()),
        };
        match value {
            Value::Null => None,
            Value::String(text) => Some(text),
            // A float without a fraction has the same text as an integer.
            Value::Number(number) if number.is_f64() => {
                let text = number.to_string();
                Some(text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned))
            }
            other => Some(other.to_string()),
        }
    }

    /// The type of a Parquet column that starts with these values. Bytes that are text become text.
    pub(super) fn data_type(&self) -> DataType {
        match &self.values {
            Values::Json(_) => DataType::Utf8,
            Values::Typed(array, _) => match array.data_type() {
                DataType::Null => DataType::Utf8,
                DataType::Binary if conform(array, &DataType::Utf8).is_some() => DataType::Utf8,
                data_type => data_type.clone(),
            },
        }
    }

    /// The values in the type of a Parquet column.
    pub(super) fn array(&self, wanted: &DataType) -> io::Result<ArrayRef> {
        let texts = || (0..self.len()).map(|row| self.text(row)).collect::<StringArray>();
        match &self.values {
            Values::Json(_) => Ok(Arc::new(texts())),
            Values::Typed(array, _) => conform(array, wanted).ok_or_else(|| {
                let name = &self.name;
                io::Error::other(format!(
                    "column `{name}` is {} here and {} before; write CSV or JSON lines, or keep other columns",
                    TypeName(array.data_type()),
                    TypeName(wanted)
                ))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow_array::types::Int64Type;
    use arrow_array::{
        BinaryArray, Date32Array, Float32Array, Int64Array, ListArray, NullArray, RecordBatch,
    };
    use bytes::Bytes;
    use millstream_format::compression::Compression;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;
    use crate::output::{CellKind, Cells, TableFormat, TableWriter};

    fn columns() -> Vec<PassedColumn> {
        let json = StringArray::from(vec![Some("\"a, b\""), Some("1.50"), None]);
        let lists = vec![Some(vec![Some(1), Some(2)]), None, Some(vec![Some(3)])];
        let arrays: Vec<(&str, ArrayRef)> = vec![
            ("json", Arc::new(json)),
            ("text", Arc::new(StringArray::from(vec![Some("a, \"b\""), Some(""), None]))),
            ("bytes", Arc::new(BinaryArray::from(vec![Some(&b"x"[..]), None, Some(b"y")]))),
            ("day", Arc::new(Date32Array::from(vec![Some(20_778), None, Some(0)]))),
            ("float", Arc::new(Float32Array::from(vec![0.1, 2.0, -0.5]))),
            ("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
            ("none", Arc::new(NullArray::new(3))),
        ];
        let column = |(name, array): (&str, ArrayRef)| {
            let field = Field::new(name, array.data_type().clone(), true);
            let is_json = name == "json";
            let field = if is_json { field.with_metadata([(IS_JSON, "")]) } else { field };
            PassedColumn::of(&field, &array)
        };
        arrays.into_iter().map(column).collect()
    }

    fn table(format: TableFormat, more: &[&[PassedColumn]]) -> io::Result<Vec<u8>> {
        let passed = columns();
        let mut kinds: Vec<_> =
            passed.iter().map(|column| (column.name.as_str(), CellKind::Passed)).collect();
        kinds.push(("score", CellKind::Numbers));
        let mut table = TableWriter::new(Vec::new(), format, Compression::None, &kinds)?;
        for columns in [&passed[..]].iter().chain(more) {
            let cells = columns.iter().map(Cells::Passed);
            table.write(&cells.chain([Cells::Numbers(&[0.5, 0.25, 1.0])]).collect::<Vec<_>>())?;
        }
        table.finish()
    }

    #[test]
    fn values_are_written_as_they_are() {
        let text = |format| String::from_utf8(table(format, &[]).unwrap()).unwrap();
        assert_eq!(
            text(TableFormat::Csv),
            "json,text,bytes,day,float,list,none,score\n\
             \"a, b\",\"a, \"\"b\"\"\",x,2026-11-21,0.1,\"[1,2]\",,0.5\n\
             1.50,,,,2,,,0.25\n\
             ,,y,1970-01-01,-0.5,[3],,1\n"
        );
        let lines = text(TableFormat::JsonLines);
        let first = [
            r#"{"json": "a, b", "text": "a, \"b\"", "bytes": "x", "day": "2026-11-21""#,
            r#""float": 0.1, "list": [1,2], "none": null, "score": 0.5}"#,
        ];
        assert_eq!(lines.lines().next(), Some(first.join(", ").as_str()));
        assert!(lines.lines().nth(1).unwrap().starts_with(r#"{"json": 1.50, "text": "", "bytes": null,"#));
    }

    #[test]
    fn parquet_keeps_types_and_rejects_others_later() {
        let file = Bytes::from(table(TableFormat::Parquet, &[&columns()]).unwrap());
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
        let batches: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
        assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 6);
        let batch = &batches[0];
        assert_eq!(batch["json"].as_string::<i32>().value(0), "a, b");
        assert_eq!(batch["json"].as_string::<i32>().value(1), "1.50");
        assert_eq!(batch["bytes"].as_string::<i32>().value(2), "y");
        assert_eq!(batch["day"].data_type(), &DataType::Date32);
        assert!(matches!(batch["list"].data_type(), DataType::List(_)));

        let mut other = columns();
        let array: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        other[3] = PassedColumn::of(&Field::new("day", DataType::Int64, true), &array);
        let error = table(TableFormat::Parquet, &[&other]).unwrap_err().to_string();
        assert!(
            error.starts_with("column `day` is ") && error.contains("write CSV or JSON lines"),
            "{error}"
        );
    }
}
