//! Column types supported by features.

use arrow_schema::DataType;

/// Whether a row has one value or a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One value, or none.
    Single,
    /// Any number of values.
    List,
}

/// The class of a column's type. Files of a dataset may differ in the width of numbers or the storage of text, but
/// not in the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Only absent values: compatible with every class.
    Absent,
    Flags,
    Numbers,
    Texts,
    Dates,
    Times,
    Timestamps,
}

/// The shape of a column whose type Examples and CSV also support.
pub fn shape(data_type: &DataType) -> Option<Shape> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => is_value(item.data_type()).then_some(Shape::List),
        data_type => is_value(data_type).then_some(Shape::Single),
    }
}

/// The shape and class of a column, if features support its type.
pub(super) fn usable(data_type: &DataType) -> Option<(Shape, Class)> {
    match data_type {
        DataType::List(item) => class(item.data_type()).map(|class| (Shape::List, class)),
        data_type => class(data_type).map(|class| (Shape::Single, class)),
    }
}

fn class(data_type: &DataType) -> Option<Class> {
    Some(match data_type {
        DataType::Null => Class::Absent,
        DataType::Boolean => Class::Flags,
        DataType::Float16 | DataType::Float32 | DataType::Float64 => Class::Numbers,
        DataType::Decimal128(..) | DataType::Decimal256(..) => Class::Numbers,
        DataType::Date32 => Class::Dates,
        DataType::Time32(_) | DataType::Time64(_) => Class::Times,
        DataType::Timestamp(..) => Class::Timestamps,
        DataType::FixedSizeBinary(_) => Class::Texts,
        data_type if data_type.is_integer() => Class::Numbers,
        data_type if is_text(data_type) => Class::Texts,
        _ => return None,
    })
}

impl Class {
    /// Its name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Absent => "nothing",
            Self::Flags => "booleans",
            Self::Numbers => "numbers",
            Self::Texts => "text or bytes",
            Self::Dates => "dates",
            Self::Times => "times of day",
            Self::Timestamps => "timestamps",
        }
    }

    /// Whether files may have these classes in the same column.
    pub(super) fn is_compatible_with(self, other: Self) -> bool {
        self == other || self == Self::Absent || other == Self::Absent
    }
}

fn is_value(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_text(values),
        DataType::Null | DataType::Boolean | DataType::Float32 | DataType::Float64 => true,
        data_type => data_type.is_integer() || is_text(data_type),
    }
}

fn is_text(data_type: &DataType) -> bool {
    use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
    matches!(data_type, Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView)
}
