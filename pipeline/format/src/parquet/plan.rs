//! Resolves the columns of a projection in one file.
//!
//! Names are those of the file; `a.b` is the field `b` of the struct column `a`, unless a column is named `a.b`
//! itself. Files of a dataset may have their columns in any order, additional columns, and numbers of other
//! widths. A column missing from this file is absent in all its rows ([`super::ParquetFile::check`] ensures that
//! some file has it).

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, make_array};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields, Schema};
use parquet::arrow::ProjectionMask;
use parquet::basic::ColumnOrder;

use super::ParquetFile;
use super::types::{Class, Shape, usable};
use crate::filter::prune::ColumnBounds;
use crate::filter::{Bound, Condition, Mismatch, RowFilter, Share};
use crate::type_name::TypeName;
use crate::{Error, Projection};

/// Bytes of a type that an error shows; that of a struct lists all its fields.
const SHOWN_TYPE_BYTES: usize = 1000;

/// The columns to read from a file.
#[derive(Clone, Debug)]
pub enum Plan {
    /// All columns, unchanged.
    All,
    /// The columns of a projection.
    Columns(PlannedColumns),
}

/// The columns of a projection in a file.
#[derive(Clone, Debug)]
pub struct PlannedColumns {
    pub(super) columns: Vec<Planned>,
    /// Their leaves, ascending.
    leaves: Vec<usize>,
    /// As [`Projection::numbers_as_values`].
    pub(super) numbers_as_values: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) name: String,
    pub(super) wrap: bool,
    /// Its location in the file, unless the file lacks it.
    pub(super) found: Option<Found>,
}

/// A column of a file.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// The root column in the file, and the path of fields within it.
    pub(super) root: usize,
    pub(super) path: Vec<String>,
    /// Its leaves in the schema: one, unless features do not support its type.
    pub(super) leaves: Vec<usize>,
    pub(super) data_type: DataType,
}

impl Plan {
    /// Whether leaf `leaf` must be read.
    pub(super) fn reads(&self, leaf: usize) -> bool {
        match self {
            Self::All => true,
            Self::Columns(planned) => planned.leaves.binary_search(&leaf).is_ok(),
        }
    }

    /// Whether numbers that are keys of a dictionary are delivered as values.
    pub(super) fn numbers_as_values(&self) -> bool {
        matches!(self, Self::Columns(PlannedColumns { numbers_as_values: true, .. }))
    }
}

impl ParquetFile {
    /// Resolves the projected columns.
    ///
    /// # Errors
    /// When a column has a type that features do not support.
    pub fn plan(&self, projection: &Projection) -> Result<Plan, Error> {
        let columns = projection.columns.iter().map(|wanted| {
            let found = self.find(&wanted.name);
            let mut wrap = false;
            if let Some(found) = &found {
                let wrong = |expected: &str| self.wrong_type(&wanted.name, &found.data_type, expected);
                wrap = match (usable(&found.data_type), wanted.multi) {
                    (None, _) => return Err(wrong(expected_instead_of(&found.data_type))),
                    (Some((Shape::List, _)), false) => return Err(wrong("one value per row")),
                    (Some((Shape::Single, class)), true) => class != Class::Absent,
                    _ => false,
                };
            }
            Ok(Planned { name: wanted.name.clone(), wrap, found })
        });
        let columns: Vec<Planned> = columns.collect::<Result<_, _>>()?;
        let found = columns.iter().filter_map(|column| column.found.as_ref());
        let mut leaves: Vec<usize> = found.flat_map(|found| found.leaves.iter().copied()).collect();
        leaves.sort_unstable();
        let numbers_as_values = projection.numbers_as_values;
        Ok(Plan::Columns(PlannedColumns { columns, leaves, numbers_as_values }))
    }

    /// Reads all columns, unchanged.
    pub fn plan_all(&self) -> Plan {
        Plan::All
    }

    /// The class and type of a column, if the file has it and features support it.
    pub(super) fn class(&self, name: &str) -> Option<(Class, DataType)> {
        let found = self.find(name)?;
        usable(&found.data_type).map(|(_, class)| (class, found.data_type))
    }

    pub(super) fn wrong_type(&self, column: &str, found: &DataType, expected: &str) -> Error {
        let mut found = TypeName(found).to_string();
        if found.len() > SHOWN_TYPE_BYTES {
            found.truncate(found.floor_char_boundary(SHOWN_TYPE_BYTES));
            found.push_str("...");
        }
        Error::WrongType {
            path: self.path.to_string(),
            column: column.to_owned(),
            found,
            expected: expected.to_owned(),
        }
    }

    /// The names of all columns and fields.
    pub(super) fn column_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        name_fields(self.footer.plain.schema().fields(), "", &mut names);
        names
    }

    pub(super) fn find(&self, name: &str) -> Option<Found> {
        let schema = self.footer.plain.schema();
        if let Some(root) = self.footer.root(name) {
            return Some(self.found(root, Vec::new(), schema.field(root)));
        }
        let mut parts = name.split('.');
        let root = self.footer.root(parts.next()?)?;
        let path: Vec<String> = parts.map(str::to_owned).collect();
        let field = path.iter().try_fold(schema.field(root), |field, part| match field.data_type() {
            DataType::Struct(fields) => fields.find(part).map(|(_, field)| field.as_ref()),
            _ => None,
        })?;
        Some(self.found(root, path.clone(), field))
    }

    fn found(&self, root: usize, path: Vec<String>, field: &Field) -> Found {
        let schema = self.footer.plain.parquet_schema();
        let below = |&leaf: &usize| {
            let column = schema.column(leaf);
            let parts = column.path().parts();
            parts.len() > path.len() && parts[1..].iter().zip(&path).all(|(part, wanted)| part == wanted)
        };
        let leaves = self.footer.leaves(root).filter(below).collect();
        Found { root, path, leaves, data_type: field.data_type().clone() }
    }

    /// Checks that a filter can test the columns of the file.
    pub fn check_filter(&self, filter: &RowFilter) -> Result<(), Error> {
        let mistyped = |column: &String, found: &DataType, Mismatch(expected)| {
            self.wrong_type(column, found, &format!("{expected}, to match the filter"))
        };
        for Condition { column, test } in &filter.conditions {
            if let Some(found) = self.find(column) {
                Bound::new(test, &found.data_type)
                    .map_err(|expected| mistyped(column, &found.data_type, expected))?;
            }
        }
        for column in filter.shares.iter().filter_map(|share| share.column.as_ref()) {
            if let Some(found) = self.find(column) {
                Share::check(&found.data_type)
                    .map_err(|expected| mistyped(column, &found.data_type, expected))?;
            }
        }
        Ok(())
    }

    /// Whether the statistics of a row group prove that none of its rows meets all of `conditions`.
    pub fn rules_out(&self, group: usize, conditions: &[Condition]) -> bool {
        let metadata = self.footer.plain.metadata();
        let rows = self.groups()[group].rows;
        conditions.iter().any(|Condition { column, test }| {
            let Some(found) = self.find(column) else {
                return ColumnBounds::all_absent(rows).rules_out(test, &DataType::Null);
            };
            let [leaf] = found.leaves[..] else { return false };
            let chunk = metadata.row_group(group).column(leaf);
            if chunk.column_descr().max_rep_level() > 0 {
                return false;
            }
            ColumnBounds::of(chunk.statistics(), self.column_order(leaf), &found.data_type, rows)
                .rules_out(test, &found.data_type)
        })
    }

    /// The order of the values of a leaf, if the file specifies it.
    pub(super) fn column_order(&self, leaf: usize) -> Option<ColumnOrder> {
        let metadata = self.footer.plain.metadata().file_metadata();
        metadata.column_orders().and_then(|orders| orders.get(leaf).copied())
    }

    pub(super) fn mask_of(&self, leaves: impl IntoIterator<Item = usize>) -> ProjectionMask {
        ProjectionMask::leaves(self.footer.plain.parquet_schema(), leaves)
    }
}

/// The types to use instead of an unsupported one.
fn expected_instead_of(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Struct(_) => "a value; name a field of the struct as `column.field`",
        DataType::List(item) => match item.data_type() {
            DataType::List(_) => "a list of values, not of lists",
            DataType::Struct(_) => "a list of values, not of structs",
            _ => "lists of numbers, text, dates or times",
        },
        _ => "numbers, text, dates, times, or lists of them",
    }
}

fn name_fields(fields: &Fields, prefix: &str, names: &mut Vec<String>) {
    for field in fields {
        let name = format!("{prefix}{}", field.name());
        if let DataType::Struct(fields) = field.data_type() {
            name_fields(fields, &format!("{name}."), names);
        }
        names.push(name);
    }
}

/// The field at `path` within `array`; absent where any enclosing struct is absent.
pub(super) fn descend(array: &ArrayRef, path: &[String]) -> Option<ArrayRef> {
    let mut array = Arc::clone(array);
    for part in path {
        let parent = array.as_struct_opt()?;
        let child = parent.column_by_name(part)?;
        let nulls = NullBuffer::union(parent.nulls(), child.nulls());
        let data = child.to_data().into_builder().nulls(nulls).build().ok()?;
        array = make_array(data);
    }
    Some(array)
}

/// Wraps each present value in a list; absent values become absent lists.
pub(super) fn lists_of_one(values: ArrayRef) -> ArrayRef {
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let nulls = values.nulls().cloned();
    Arc::new(ListArray::new(
        item,
        OffsetBuffer::from_lengths(std::iter::repeat_n(1, values.len())),
        values,
        nulls,
    ))
}

/// The schema of the columns.
pub(super) fn schema_of(columns: &[Planned], arrays: &[ArrayRef]) -> Arc<Schema> {
    let field =
        |(column, array): (&Planned, &ArrayRef)| Field::new(&column.name, array.data_type().clone(), true);
    Arc::new(Schema::new(columns.iter().zip(arrays).map(field).collect::<Vec<_>>()))
}
