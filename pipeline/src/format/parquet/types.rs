//! Which types of column a feature can use.

use arrow_schema::DataType;

/// How many values a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Single,
    List,
}

/// What the values of a column are. Files of one dataset may differ in how wide a number is or how text
/// is stored, but not in this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Nothing but absent values: goes with all others.
    Absent,
    Flags,
    Numbers,
    Texts,
    Dates,
    Times,
    Timestamps,
}

/// The shape of a column whose type Examples and CSV know, too.
pub(crate) fn shape(data_type: &DataType) -> Option<Shape> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => is_value(item.data_type()).then_some(Shape::List),
        data_type => is_value(data_type).then_some(Shape::Single),
    }
}

/// The shape and class of a column that a feature can use.
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
    /// What it is called in messages.
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

    /// Whether files may have either in one column.
    pub(super) fn goes_with(self, other: Self) -> bool {
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
