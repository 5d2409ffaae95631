//! The Thrift structures of a Parquet file, as far as the `parquet` crate reads them, and their checks.
//!
//! Sources: the Parquet format's `parquet.thrift`; the decoder of the `parquet` crate (`file/metadata/thrift/`), which
//! determines the fields listed here and what each allocates.

use parquet::file::metadata::{ColumnChunkMetaData, KeyValue, RowGroupMetaData, SortingColumn};
use parquet::file::page_index::offset_index::PageLocation;

use super::thrift::{self, Event, Kind, Part, Structure};
use Kind::{Binary, Bool, Double, I8, I16, I32, I64, List, Struct};

/// The deepest nesting of groups in a schema; a list has two levels. The crate, Arrow and the code that prints types recurse
/// over them. Arrow's C++ implementation has the same limit for its own files.
pub const MAX_SCHEMA_DEPTH: usize = 64;
/// The most memory for the decoded footer of one file: a million column chunks need less.
pub const MAX_METADATA_BYTES: u64 = 1 << 30;
/// The most memory for a decoded footer, relative to its size. A footer can describe much more than it stores, such as
/// a long name that every column below it repeats. Plain columns without statistics reach a factor of 44.
const MAX_EXPANSION: u64 = 64;
/// Allowance for small footers.
const MIN_METADATA_BYTES: u64 = 16 << 20;

/// Memory for a column or group: the decoded element, its type, descriptor and path in the crate, and its fields in two
/// Arrow schemas. Measured: 700 bytes per column.
const SCHEMA_ELEMENT_BYTES: u64 = 1200;
/// Copies of each path: the descriptor's and, while columns are searched, that of an error message.
const PATH_COPIES: u64 = 2;
/// The field of a schema element with its name.
const NAME: i16 = 4;
/// The field of a schema element with the number of its children.
const CHILDREN: i16 = 5;

/// Checks a footer, given without its length and magic number. Returns the memory of its schema once decoded, without the
/// Arrow schema that it may contain.
pub(super) fn check_footer(bytes: &[u8]) -> Result<u64, String> {
    let mut schema = SchemaWalk::default();
    let decoded_bytes = thrift::check(bytes, &FILE, |event| schema.on(event))?;
    schema.finish()?;
    let decoded = decoded_bytes.saturating_add(PATH_COPIES * schema.path_bytes);
    let most = (MAX_EXPANSION * bytes.len() as u64).clamp(MIN_METADATA_BYTES, MAX_METADATA_BYTES);
    if decoded > most {
        return Err(format!(
            "it describes {} columns and groups in {} bytes, which need {decoded} bytes once decoded; at most {most} \
             are supported",
            schema.elements,
            bytes.len()
        ));
    }
    Ok(SCHEMA_ELEMENT_BYTES * schema.elements + PATH_COPIES * schema.path_bytes)
}

/// Checks a column index.
pub(super) fn check_column_index(bytes: &[u8]) -> Result<(), String> {
    thrift::check(bytes, &COLUMN_INDEX, |_| Ok(())).map(drop)
}

/// Checks an offset index.
pub(super) fn check_offset_index(bytes: &[u8]) -> Result<(), String> {
    thrift::check(bytes, &OFFSET_INDEX, |_| Ok(())).map(drop)
}

/// Follows the tree of a schema, which is stored as a list in depth-first order.
#[derive(Default)]
struct SchemaWalk {
    elements: u64,
    /// The groups that contain the next element.
    open: Vec<Group>,
    /// The element being read.
    name_bytes: u64,
    children: i64,
    /// The length of all paths.
    path_bytes: u64,
}

struct Group {
    /// Children that follow.
    left: i64,
    /// The length of its path.
    path_bytes: u64,
}

impl SchemaWalk {
    fn on(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Integer(CHILDREN, children) => self.children = children,
            Event::Text(NAME, length) => self.name_bytes = length as u64,
            Event::End => self.element()?,
            _ => {}
        }
        Ok(())
    }

    /// Ends an element.
    fn element(&mut self) -> Result<(), String> {
        let (name_bytes, children) =
            (std::mem::take(&mut self.name_bytes), std::mem::take(&mut self.children));
        if children < 0 {
            return Err(format!("a group of the schema claims {children} children"));
        }
        let above = match self.open.last_mut() {
            Some(group) => {
                group.left -= 1;
                group.path_bytes
            }
            None if self.elements == 0 => 0,
            None => {
                return Err(format!("the schema has more than the {} elements in its root", self.elements));
            }
        };
        self.elements += 1;
        let path_bytes = above + name_bytes + size_of::<String>() as u64;
        self.path_bytes = self.path_bytes.saturating_add(path_bytes);
        if children > 0 {
            if self.open.len() == MAX_SCHEMA_DEPTH {
                return Err(format!("its schema nests groups more than {MAX_SCHEMA_DEPTH} deep"));
            }
            self.open.push(Group { left: children, path_bytes });
        }
        while self.open.pop_if(|group| group.left == 0).is_some() {}
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        let missing = self.open.iter().fold(0_i64, |sum, group| sum.saturating_add(group.left));
        if missing > 0 {
            return Err(format!(
                "its schema claims {missing} columns and groups more than the {} that it has",
                self.elements
            ));
        }
        Ok(())
    }
}

const fn structure(decoded_bytes: usize, fields: &'static [(i16, Kind)]) -> Structure {
    Structure { part: Part::Other, decoded_bytes: decoded_bytes as u64, fields }
}

static FILE: Structure = structure(
    0,
    &[
        (1, I32),
        (2, List(&Struct(&SCHEMA_ELEMENT))),
        (3, I64),
        (4, List(&Struct(&ROW_GROUP))),
        (5, List(&Struct(&KEY_VALUE))),
        (6, Binary),
        (7, List(&Struct(&COLUMN_ORDER))),
    ],
);

static SCHEMA_ELEMENT: Structure = Structure {
    part: Part::SchemaElement,
    decoded_bytes: SCHEMA_ELEMENT_BYTES,
    fields: &[
        (1, I32),
        (2, I32),
        (3, I32),
        (NAME, Binary),
        (CHILDREN, I32),
        (6, I32),
        (7, I32),
        (8, I32),
        (9, I32),
        (10, Struct(&LOGICAL_TYPE)),
    ],
};

static LOGICAL_TYPE: Structure = structure(
    0,
    &[
        (1, Struct(&EMPTY)),
        (2, Struct(&EMPTY)),
        (3, Struct(&EMPTY)),
        (4, Struct(&EMPTY)),
        (5, Struct(&DECIMAL)),
        (6, Struct(&EMPTY)),
        (7, Struct(&TIME)),
        (8, Struct(&TIME)),
        (10, Struct(&INTEGER)),
        (11, Struct(&EMPTY)),
        (12, Struct(&EMPTY)),
        (13, Struct(&EMPTY)),
        (14, Struct(&EMPTY)),
        (15, Struct(&EMPTY)),
        (16, Struct(&VARIANT)),
        (17, Struct(&GEOMETRY)),
        (18, Struct(&GEOGRAPHY)),
        (19, Struct(&EMPTY)),
    ],
);
static EMPTY: Structure = structure(0, &[]);
static DECIMAL: Structure = structure(0, &[(1, I32), (2, I32)]);
static TIME: Structure = structure(0, &[(1, Bool), (2, Struct(&TIME_UNIT))]);
static TIME_UNIT: Structure = structure(0, &[(1, Struct(&EMPTY)), (2, Struct(&EMPTY)), (3, Struct(&EMPTY))]);
static INTEGER: Structure = structure(0, &[(1, I8), (2, Bool)]);
static VARIANT: Structure = structure(0, &[(1, I8)]);
static GEOMETRY: Structure = structure(0, &[(1, Binary)]);
static GEOGRAPHY: Structure = structure(0, &[(1, Binary), (2, I32)]);
static COLUMN_ORDER: Structure =
    structure(8, &[(1, Struct(&EMPTY)), (2, Struct(&EMPTY)), (3, Struct(&EMPTY))]);
static KEY_VALUE: Structure = structure(size_of::<KeyValue>(), &[(1, Binary), (2, Binary)]);

static ROW_GROUP: Structure = structure(
    size_of::<RowGroupMetaData>(),
    &[
        (1, List(&Struct(&COLUMN_CHUNK))),
        (2, I64),
        (3, I64),
        (4, List(&Struct(&SORTING_COLUMN))),
        (5, I64),
        (6, I64),
        (7, I16),
    ],
);
static SORTING_COLUMN: Structure = structure(size_of::<SortingColumn>(), &[(1, I32), (2, Bool), (3, Bool)]);

// Columns are pushed to a list that doubles its capacity.
static COLUMN_CHUNK: Structure = structure(
    2 * size_of::<ColumnChunkMetaData>(),
    &[(1, Binary), (2, I64), (3, Struct(&COLUMN_METADATA)), (4, I64), (5, I32), (6, I64), (7, I32)],
);
static COLUMN_METADATA: Structure = structure(
    0,
    &[
        (1, I32),
        (2, List(&I32)),
        (4, I32),
        (5, I64),
        (6, I64),
        (7, I64),
        (9, I64),
        (10, I64),
        (11, I64),
        (12, Struct(&STATISTICS)),
        (13, List(&Struct(&ENCODING_STATISTICS))),
        (14, I64),
        (15, I32),
        (16, Struct(&SIZE_STATISTICS)),
        (17, Struct(&GEOSPATIAL_STATISTICS)),
    ],
);
// A bound is a reference-counted slice.
static STATISTICS: Structure = structure(
    128,
    &[(1, Binary), (2, Binary), (3, I64), (4, I64), (5, Binary), (6, Binary), (7, Bool), (8, Bool), (9, I64)],
);
static ENCODING_STATISTICS: Structure = structure(0, &[(1, I32), (2, I32), (3, I32)]);
static SIZE_STATISTICS: Structure = structure(0, &[(1, I64), (2, List(&I64)), (3, List(&I64))]);
static GEOSPATIAL_STATISTICS: Structure = structure(256, &[(1, Struct(&BOUNDING_BOX)), (2, List(&I32))]);
static BOUNDING_BOX: Structure = structure(
    0,
    &[(1, Double), (2, Double), (3, Double), (4, Double), (5, Double), (6, Double), (7, Double), (8, Double)],
);

static OFFSET_INDEX: Structure = structure(0, &[(1, List(&Struct(&PAGE_LOCATION))), (2, List(&I64))]);
static PAGE_LOCATION: Structure = structure(size_of::<PageLocation>(), &[(1, I64), (2, I32), (3, I64)]);
static COLUMN_INDEX: Structure = structure(
    0,
    &[
        (1, List(&Bool)),
        (2, List(&Binary)),
        (3, List(&Binary)),
        (4, I32),
        (5, List(&I64)),
        (6, List(&I64)),
        (7, List(&I64)),
        (8, List(&I64)),
    ],
);
