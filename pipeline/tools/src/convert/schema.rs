//! Unifies the columns of all inputs.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use millstream_format::csv::CsvOptions;
use millstream_format::{Error as FormatError, FileFormat};
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use millstream_pipeline::parquet::ParquetObject;
use tokio::runtime::Handle;

use crate::progress::Progress;
use crate::survey::{Survey, Surveyor};

/// The unified columns of the inputs so far.
#[derive(Default)]
pub(super) struct Plan {
    columns: Vec<Column>,
    files: usize,
}

struct Column {
    name: String,
    data_type: DataType,
    format: FileFormat,
}

/// The contents of one file.
pub(super) struct Described {
    pub(super) rows: u64,
    /// The number of positions at which reading can start.
    pub(super) parts: usize,
    columns: Vec<(String, DataType)>,
}

impl Described {
    /// Surveys a file. Damaged rows are reported here already.
    pub(super) fn of(
        object: &Object,
        format: FileFormat,
        csv: &CsvOptions,
        runtime: &Handle,
        progress: &Progress,
    ) -> Result<Self, Error> {
        if format == FileFormat::Parquet {
            let file = runtime.block_on(ParquetObject::open(object.clone()))?;
            progress.check()?;
            let fields = file.file().schema().fields().iter();
            return Ok(Self {
                rows: file.file().groups().iter().map(|group| group.rows).sum(),
                parts: file.file().groups().len(),
                columns: fields.map(|field| (field.name().clone(), field.data_type().clone())).collect(),
            });
        }
        progress.expect_bytes(object.size());
        let survey = Surveyor { csv, rows: 0, threads: 1, runtime, progress }.survey(object, format)?;
        let Survey { records, columns, error: None, .. } = survey else {
            return Err(survey.error.unwrap_or(Error::Cancelled));
        };
        let typed = columns.into_iter().map(|column| {
            (column.name, if column.multi { list(column.data_type) } else { column.data_type })
        });
        Ok(Self { rows: records, parts: 1, columns: typed.collect() })
    }
}

impl Plan {
    /// Adds a file.
    pub(super) fn add(
        &mut self,
        object: &Object,
        format: FileFormat,
        Described { columns, .. }: Described,
    ) -> Result<(), Error> {
        let examples = format == FileFormat::TfRecord;
        let missing = self.columns.iter().find(|known| !columns.iter().any(|(name, _)| *name == known.name));
        if let (Some(missing), false) = (missing, examples) {
            let present = columns.iter().map(|(name, _)| name.as_str());
            return Err(FormatError::missing_column(object.path(), &missing.name, present).into());
        }
        for (name, data_type) in columns {
            let known = self.columns.iter_mut().find(|column| column.name == name);
            let Some(known) = known else {
                if self.files > 0 && !examples {
                    let found = format!("column `{name}`");
                    let expected = "the columns of the previous files".to_owned();
                    return Err(Error::Format(FormatError::WrongFormat {
                        path: object.path().to_string(),
                        expected,
                        found,
                    }));
                }
                self.columns.push(Column { name, data_type, format });
                continue;
            };
            let csv = format == FileFormat::Csv && known.format == FileFormat::Csv;
            known.data_type = common(&known.data_type, &data_type, csv).ok_or_else(|| {
                Error::Format(FormatError::WrongType {
                    path: object.path().to_string(),
                    column: name,
                    found: data_type.to_string(),
                    expected: format!("{}, as in the previous files", known.data_type),
                })
            })?;
        }
        self.files += 1;
        Ok(())
    }

    /// The unified schema. Columns without any value become text.
    pub(super) fn schema(&self) -> Arc<Schema> {
        let field = |column: &Column| {
            let data_type =
                if column.data_type == DataType::Null { &DataType::Utf8 } else { &column.data_type };
            Field::new(&column.name, data_type.clone(), true)
        };
        Arc::new(Schema::new(self.columns.iter().map(field).collect::<Vec<_>>()))
    }
}

/// A type that holds the values of both types.
fn common(a: &DataType, b: &DataType, csv: bool) -> Option<DataType> {
    use DataType::{Binary, Float64, Int64, List, Null, Utf8};
    Some(match (a, b) {
        (a, b) if a == b => a.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (Utf8, Binary) | (Binary, Utf8) => Binary,
        (Int64, Float64) | (Float64, Int64) if csv => Float64,
        (Utf8, Int64 | Float64) | (Int64 | Float64, Utf8) if csv => Utf8,
        (List(a), List(b)) => list(common(a.data_type(), b.data_type(), csv)?),
        (List(item), value) | (value, List(item)) => list(common(item.data_type(), value, csv)?),
        _ => return None,
    })
}

fn list(value: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(value, true)))
}
