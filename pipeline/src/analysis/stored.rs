//! How the training data stores the values of its columns.
//!
//! A text file does not describe itself. To score its values as training read them, they are built in the type that
//! the column had in training: 0.1 in a column of 32-bit floats differs from the nearest f64, and `3.0` in a column of
//! integers is the id `3`.

use std::collections::{BTreeMap, HashMap};

use arrow_schema::{DataType, Schema, TimeUnit};
use millstream_format::Projection;
use serde::{Deserialize, Serialize};

/// Decimals of at most this many digits are the shortest decimal form of the nearest f64.
const EXACT_DIGITS: u8 = 15;

/// The type of a column's values, as far as features distinguish types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredType {
    /// Text, bytes, and types without another representation here.
    Text,
    /// Integers that fit 64 bits with a sign.
    Integer,
    /// Integers up to 64 bits without a sign.
    Unsigned,
    /// 32-bit floats, or smaller ones.
    Float32,
    /// 64-bit floats, and decimals that these hold exactly.
    Float64,
    /// True or false.
    Boolean,
    /// Days.
    Date,
    /// Moments.
    Timestamp {
        /// Fractions of a second that are stored.
        unit: StoredUnit,
        /// Whether they are in UTC; otherwise in no time zone.
        is_utc: bool,
    },
}

/// The unit of stored timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "units of time")]
pub enum StoredUnit {
    Second,
    Millisecond,
    Microsecond,
    Nanosecond,
}

impl StoredType {
    /// The type of the values of a column, or of their elements if they are lists. `None` for a column without values.
    pub fn of(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                return Self::of(item.data_type());
            }
            DataType::Dictionary(_, values) => return Self::of(values),
            DataType::Null => return None,
            DataType::UInt64 => Self::Unsigned,
            integer if integer.is_integer() => Self::Integer,
            DataType::Float16 | DataType::Float32 => Self::Float32,
            DataType::Float64 => Self::Float64,
            DataType::Decimal32(precision, _)
            | DataType::Decimal64(precision, _)
            | DataType::Decimal128(precision, _)
                if *precision <= EXACT_DIGITS =>
            {
                Self::Float64
            }
            DataType::Boolean => Self::Boolean,
            DataType::Date32 | DataType::Date64 => Self::Date,
            DataType::Timestamp(unit, zone) => {
                Self::Timestamp { unit: StoredUnit::of(*unit), is_utc: zone.is_some() }
            }
            _ => Self::Text,
        })
    }

    /// The types of the columns of `projection` that `schemas` agree on.
    pub(crate) fn agreed<'a>(
        schemas: impl Iterator<Item = &'a Schema>,
        projection: &Projection,
    ) -> BTreeMap<String, Self> {
        // `Err` for a column that two files store differently.
        let mut found: HashMap<&str, Option<Result<Self, ()>>> =
            projection.columns.iter().map(|column| (column.name.as_str(), None)).collect();
        for field in schemas.flat_map(|schema| schema.fields()) {
            let Some(known) = found.get_mut(field.name().as_str()) else { continue };
            let Some(stored) = Self::of(field.data_type()) else { continue };
            *known = Some(if known.is_none_or(|known| known == Ok(stored)) { Ok(stored) } else { Err(()) });
        }
        found.into_iter().filter_map(|(name, found)| Some((name.to_owned(), found?.ok()?))).collect()
    }

    /// A type of columns with such values.
    pub fn data_type(self) -> DataType {
        match self {
            Self::Text => DataType::Utf8,
            Self::Integer => DataType::Int64,
            Self::Unsigned => DataType::UInt64,
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
            Self::Boolean => DataType::Boolean,
            Self::Date => DataType::Date32,
            Self::Timestamp { unit, is_utc } => {
                DataType::Timestamp(unit.time_unit(), is_utc.then(|| "UTC".into()))
            }
        }
    }
}

impl StoredUnit {
    fn of(unit: TimeUnit) -> Self {
        match unit {
            TimeUnit::Second => Self::Second,
            TimeUnit::Millisecond => Self::Millisecond,
            TimeUnit::Microsecond => Self::Microsecond,
            TimeUnit::Nanosecond => Self::Nanosecond,
        }
    }

    fn time_unit(self) -> TimeUnit {
        match self {
            Self::Second => TimeUnit::Second,
            Self::Millisecond => TimeUnit::Millisecond,
            Self::Microsecond => TimeUnit::Microsecond,
            Self::Nanosecond => TimeUnit::Nanosecond,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow_schema::Field;
    use millstream_format::ProjectedColumn;

    use super::*;
    use crate::analysis::Analysis;

    #[test]
    fn files_agree_on_types_and_a_column_without_values_agrees_with_any() {
        let list = DataType::List(Arc::new(Field::new_list_field(DataType::Float32, true)));
        let schema = |fields: &[(&str, DataType)]| {
            let fields = fields.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true));
            Schema::new(fields.collect::<Vec<_>>())
        };
        let time = DataType::Timestamp(TimeUnit::Nanosecond, Some("Europe/Berlin".into()));
        let first = schema(&[("a", DataType::Int16), ("b", DataType::Null), ("c", list), ("d", time)]);
        let second = schema(&[("a", DataType::UInt8), ("b", DataType::Binary), ("c", DataType::Float64)]);
        let names = ["a", "b", "c", "d", "e"];
        let column = |name: &str| ProjectedColumn { name: name.to_owned(), multi: false };
        let projection = Projection { columns: names.map(column).to_vec(), ..Projection::default() };
        let found = StoredType::agreed([&first, &second].into_iter(), &projection);
        let moment = StoredType::Timestamp { unit: StoredUnit::Nanosecond, is_utc: true };
        let expected = [("a", StoredType::Integer), ("b", StoredType::Text), ("d", moment)];
        assert_eq!(found, expected.map(|(name, stored)| (name.to_owned(), stored)).into());

        let analysis = Analysis { stored_types: found, ..Analysis::default() };
        assert_eq!(Analysis::from_json(&analysis.to_json()).unwrap(), analysis);
        let earlier = Analysis::default().to_json();
        assert!(!earlier.contains("stored_types") && Analysis::from_json(&earlier).is_ok());
    }

    #[test]
    fn a_type_stands_for_itself() {
        for stored in [
            StoredType::Text,
            StoredType::Integer,
            StoredType::Unsigned,
            StoredType::Float32,
            StoredType::Float64,
            StoredType::Boolean,
            StoredType::Date,
            StoredType::Timestamp { unit: StoredUnit::Second, is_utc: false },
            StoredType::Timestamp { unit: StoredUnit::Microsecond, is_utc: true },
        ] {
            assert_eq!(StoredType::of(&stored.data_type()), Some(stored));
        }
        assert_eq!(StoredType::of(&DataType::Decimal128(15, 2)), Some(StoredType::Float64));
        assert_eq!(StoredType::of(&DataType::Decimal128(16, 2)), Some(StoredType::Text));
    }
}
