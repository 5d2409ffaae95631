//! Unifies the columns of all inputs.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use millstream_format::type_name::TypeName;
use millstream_format::{Error as FormatError, FileFormat};
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use millstream_pipeline::parquet::ParquetObject;
use tokio::runtime::Handle;

use super::ConvertOptions;
use crate::detect::Detected;
use crate::images::{COLUMNS, ImageFolder};
use crate::output::OutputFormat;
use crate::progress::Progress;
use crate::survey::{Survey, Surveyor};
use crate::text::{Skipped, TextRules};
use crate::typed::{Reading, list_of};

/// The unified columns of the inputs so far.
#[derive(Default)]
pub(super) struct Plan {
    columns: Vec<Column>,
    files: usize,
    /// The first file.
    path: Option<String>,
}

struct Column {
    name: String,
    data_type: DataType,
    /// Whether the input has lists.
    multi: bool,
    is_text: bool,
}

/// Where a column of the output comes from.
pub(super) struct OutputColumn {
    /// The name in the input.
    pub(super) source: String,
    /// Whether the input has lists.
    pub(super) multi: bool,
    pub(super) reading: Reading,
    /// Whether an option determines its type.
    pub(super) is_given: bool,
}

/// The contents of one file.
pub(super) struct Described {
    pub(super) rows: u64,
    /// The number of positions at which reading can start.
    pub(super) parts: usize,
    columns: Vec<Column>,
    pub(super) skipped: Skipped,
}

impl Described {
    /// A folder of images is one source.
    pub(super) fn of_images(folder: &ImageFolder<'_>, rules: &TextRules) -> Self {
        let columns = COLUMNS.into_iter().map(|(name, found)| Column::new(name.to_owned(), found, rules));
        Self {
            rows: folder.rows() as u64,
            parts: folder.rows(),
            columns: columns.collect(),
            skipped: Skipped::default(),
        }
    }

    /// Surveys a file. Damaged rows are reported here already.
    pub(super) fn of(
        object: &Object,
        detected: &Detected,
        rules: &TextRules,
        runtime: &Handle,
        progress: &Progress,
    ) -> Result<Self, Error> {
        let Detected { format, csv, .. } = detected;
        if *format == FileFormat::Parquet {
            let file = runtime.block_on(ParquetObject::open(object.clone()))?;
            progress.check()?;
            let fields = file.file().schema().fields().iter();
            let columns = fields.map(|field| (field.name().clone(), field.data_type().clone()));
            return Ok(Self {
                rows: file.file().groups().iter().map(|group| group.rows).sum(),
                parts: file.file().groups().len(),
                columns: columns.map(|(name, found)| Column::new(name, found, rules)).collect(),
                skipped: Skipped::default(),
            });
        }
        progress.expect_bytes(object.size());
        let surveyor = Surveyor { csv, rows: 0, statistics: false, threads: 1, runtime, progress };
        let survey = if format.is_text() {
            surveyor.text(object, *format, rules)?
        } else {
            surveyor.survey(object, *format)?
        };
        let Survey { records, columns, skipped, error: None, .. } = survey else {
            return Err(survey.error.unwrap_or(Error::Cancelled));
        };
        let typed = columns.into_iter().map(|column| {
            let found = if column.multi { list_of(column.data_type) } else { column.data_type };
            Column::new(column.name, found, rules)
        });
        Ok(Self { rows: records, parts: 1, columns: typed.collect(), skipped })
    }
}

impl Column {
    fn new(name: String, found: DataType, rules: &TextRules) -> Self {
        let is_list =
            matches!(found, DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..));
        let kind = rules.kinds.get(&name).map(|kind| kind.data_type().clone());
        let splits = !is_list && rules.separators.contains_key(&name);
        let wanted = match kind {
            Some(kind) => Some(if is_list || splits { list_of(kind) } else { kind }),
            None if splits => {
                Some(list_of(if found == DataType::Null { DataType::Null } else { DataType::Utf8 }))
            }
            None => None,
        };
        Self { name, data_type: wanted.unwrap_or(found), multi: is_list, is_text: false }
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
        self.path.get_or_insert_with(|| object.path().to_string());
        let is_text = format.is_text();
        // Their rows, too, may lack columns.
        let is_sparse = format.records().is_some();
        let missing =
            self.columns.iter().find(|known| !columns.iter().any(|column| column.name == known.name));
        if let (Some(missing), false) = (missing, is_sparse) {
            let present = columns.iter().map(|column| column.name.as_str());
            return Err(FormatError::missing_column(object.path(), &missing.name, present).into());
        }
        for column in columns {
            let known = self.columns.iter_mut().find(|known| known.name == column.name);
            let Some(known) = known else {
                if self.files > 0 && !is_sparse {
                    let found = format!("column `{}`", column.name);
                    let expected = "the columns of the previous files".to_owned();
                    return Err(Error::Format(FormatError::WrongFormat {
                        path: object.path().to_string(),
                        expected,
                        found,
                    }));
                }
                self.columns.push(Column { is_text, ..column });
                continue;
            };
            known.multi |= column.multi;
            let both_text = is_text && known.is_text;
            known.data_type = common(&known.data_type, &column.data_type, both_text).ok_or_else(|| {
                Error::Format(FormatError::WrongType {
                    path: object.path().to_string(),
                    column: column.name,
                    found: TypeName(&column.data_type).to_string(),
                    expected: format!("{}, as in the previous files", TypeName(&known.data_type)),
                })
            })?;
        }
        self.files += 1;
        Ok(())
    }

    /// The schema of the output, and where its columns come from. Columns without any value become text.
    ///
    /// # Errors
    /// An option names an unknown column, or two columns get the same name.
    pub(super) fn output(
        &self,
        options: &ConvertOptions,
        format: OutputFormat,
    ) -> Result<(Arc<Schema>, Vec<OutputColumn>), Error> {
        let rules = &options.text;
        let named = rules.kinds.keys().chain(rules.separators.keys());
        named
            .chain(options.rename.iter().map(|(old, _)| old))
            .try_for_each(|name| self.column(name).map(drop))?;
        let selected: Vec<&Column> = match &options.select {
            Some(names) => names.iter().map(|name| self.column(name)).collect::<Result<_, _>>()?,
            None => self.columns.iter().collect(),
        };
        let mut fields: Vec<Field> = Vec::with_capacity(selected.len());
        for column in &selected {
            let data_type = match &column.data_type {
                DataType::Null => DataType::Utf8,
                // CSV has no lists; their elements are joined.
                list @ (DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..))
                    if format == OutputFormat::Csv =>
                {
                    if rules.separators.contains_key(&column.name) {
                        DataType::Utf8
                    } else {
                        list.clone()
                    }
                }
                other => other.clone(),
            };
            let renamed = options.rename.iter().find(|(old, _)| *old == column.name);
            let name = renamed.map_or(&column.name, |(_, new)| new);
            if fields.iter().any(|field| field.name() == name) {
                return Err(Error::Invalid(format!("two columns of the output are named `{name}`")));
            }
            fields.push(Field::new(name, data_type, true));
        }
        let columns = selected.iter().map(|column| OutputColumn {
            source: column.name.clone(),
            multi: column.multi,
            reading: rules.reading(&column.name),
            is_given: rules.kinds.contains_key(&column.name) || rules.separators.contains_key(&column.name),
        });
        Ok((Arc::new(Schema::new(fields)), columns.collect()))
    }

    fn column(&self, name: &str) -> Result<&Column, Error> {
        self.columns.iter().find(|column| column.name == name).ok_or_else(|| {
            let present = self.columns.iter().map(|column| column.name.as_str());
            let path = self.path.as_deref().unwrap_or_default();
            FormatError::missing_column(path, name, present).into()
        })
    }
}

/// A type that holds the values of both types. Values of text formats also fit into text.
fn common(a: &DataType, b: &DataType, is_text: bool) -> Option<DataType> {
    use DataType::{Binary, Boolean, Float64, Int64, List, Null, Utf8};
    Some(match (a, b) {
        (a, b) if a == b => a.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (Utf8, Binary) | (Binary, Utf8) => Binary,
        (Int64, Float64) | (Float64, Int64) if is_text => Float64,
        (List(a), List(b)) => list_of(common(a.data_type(), b.data_type(), is_text)?),
        (List(item), value) | (value, List(item)) => list_of(common(item.data_type(), value, is_text)?),
        (Utf8 | Int64 | Float64 | Boolean, Utf8 | Int64 | Float64 | Boolean) if is_text => Utf8,
        _ => return None,
    })
}
