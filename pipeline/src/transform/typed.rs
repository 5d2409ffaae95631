//! Typed columns: values in the type that a reader asks for, unscaled, for programs that bring their own model.
//!
//! A column is converted in two steps, both dispatched once per column. First all its elements become values of the type
//! ([`values`]); elements that do not are listed, and few are. Then rows are formed of the values: of one shape
//! ([`TypedColumn::fixed`]), or of any number ([`TypedColumn::ragged`]). If the rows are the values as they are, nothing
//! is moved; if the data has the type already, the values are copied as they are stored. Those of narrow columns are
//! copied once, into the chunk's row-major block, when all columns are converted (`rows.rs`).
//!
//! Bytes and texts have one step ([`TypedColumn::raw`]). Documents of tokens are ragged rows until they are packed
//! (`documents.rs`).

mod documents;
mod target;

use std::ops::Range;
use std::sync::Arc;

use arrow_array::UInt32Array;
use arrow_buffer::Buffer;
use arrow_schema::DataType;
use millstream_batch::{Column, ColumnKind};
use millstream_format::Projection;
use millstream_images::{ImageSpec, is_image};

use super::ChunkBuilder;
use super::column::{Elements, Missing, NUMBERS, Single, bytes};
use super::fault::{Problem, wrong_type};
use super::project;
use super::rows::NarrowColumn;
use crate::Error;
use crate::chunk::{ChunkColumn, EncodedImages};
use crate::sequences::Packed;
use crate::spec::ColumnSpec;
pub(super) use documents::Tokens;
use target::Unusable;
pub(super) use target::values_of;

/// The contents accepted in columns of bytes, for error messages.
const BYTES: &str = "text or bytes";

/// The maximum bytes of an encoded image.
pub(super) const MAX_IMAGE_BYTES: u64 = 32 << 20;

/// A typed column of a feed, and the column of the data that it reads.
#[derive(Clone, Debug)]
pub(super) struct TypedColumn {
    pub(super) column: Column,
    /// The position in the projection.
    pub(super) position: usize,
    /// The place of its bytes in the rows of a chunk's block, if it is narrow.
    pub(super) narrow_at: Option<usize>,
    /// The bytes of the value that replaces absent ones.
    absent: Option<Vec<u8>>,
    /// Set if the data has encoded images.
    pub(super) image: Option<Arc<ImageSpec>>,
    /// Set if rows are documents.
    pub(super) tokens: Option<Tokens>,
}

/// The elements of a column as values of a type.
pub(super) struct Values {
    /// The values of all elements, concatenated; zeros for unusable ones. The buffer of the data, if that has the type already.
    bytes: Buffer,
    /// The elements without a value, ascending.
    unusable: Vec<(usize, Unusable)>,
}

/// Finds unusable elements in ascending ranges of elements.
struct Cursor<'a> {
    rest: &'a [(usize, Unusable)],
}

impl<'a> Cursor<'a> {
    /// The unusable elements within `range`, which follows the previous ranges.
    #[inline]
    fn within(&mut self, range: &Range<usize>) -> &'a [(usize, Unusable)] {
        if self.rest.is_empty() || range.is_empty() {
            return &[];
        }
        let before = self.rest.iter().take_while(|(element, _)| *element < range.start).count();
        let rest = &self.rest[before..];
        let (found, rest) =
            rest.split_at(rest.iter().take_while(|(element, _)| *element < range.end).count());
        self.rest = rest;
        found
    }
}

impl TypedColumn {
    /// Adds the column of the data to `projection`.
    ///
    /// # Errors
    /// The shape, the maximum or the replacement is not one that rows can have.
    pub(super) fn resolve(
        spec: &ColumnSpec,
        packed: Option<Packed<'_>>,
        projection: &mut Projection,
    ) -> Result<Self, Error> {
        let ColumnSpec { name, column, kind, missing, image, tokens } = spec;
        let refuse = |message: String| Err(Error::Invalid(format!("column `{name}`: {message}")));
        if image.as_ref().is_some_and(|image| image.column_kind() != *kind || missing.is_some()) {
            return refuse("its tensor is not that of its images".to_owned());
        }
        match (tokens, packed) {
            (None, None) => {}
            (Some(_), Some(Packed { spec, .. })) if *kind == spec.column_kind(kind.dtype()) => {}
            (Some(_), _) => {
                return refuse("its tokens are not packed into sequences of its shape".to_owned());
            }
            (None, Some(_)) => {
                return refuse("its rows are not documents of tokens, which are packed".to_owned());
            }
        }
        match kind {
            ColumnKind::Fixed { shape, .. } if shape.contains(&0) => {
                return refuse(format!("`shape` = {shape:?} holds no values; every size must be at least 1"));
            }
            ColumnKind::Fixed { shape, .. } if kind.row_values().is_none() => {
                return refuse(format!("`shape` = {shape:?} holds more than 2^32 - 1 values; lower a size"));
            }
            ColumnKind::Ragged { maximum: 0, .. } | ColumnKind::Raw { maximum: 0 } => {
                return refuse("`maximum` must be at least 1".to_owned());
            }
            ColumnKind::Raw { .. } if missing.is_some() => {
                return refuse("absent bytes are empty; remove `missing`, which replaces numbers".to_owned());
            }
            _ => {}
        }
        let dtype = kind.dtype();
        let absent = missing.map(|number| target::bytes_of(dtype, number).ok_or(number)).transpose();
        let absent = match absent {
            Ok(absent) => absent,
            Err(number) => {
                let values = values_of(dtype);
                return refuse(format!("`missing` = {number} is not {values}; change it or the type"));
            }
        };
        let tokens = tokens.as_ref().zip(packed);
        let tokens = tokens.map(|(spec, packed)| Tokens::resolve(spec, dtype, packed.tokenizers)).transpose();
        let tokens = match tokens {
            Ok(tokens) => tokens,
            Err(message) => return refuse(message),
        };
        let one_value = match kind {
            _ if let Some(tokens) = &tokens => tokens.has_one_value(),
            _ if image.is_some() => true,
            ColumnKind::Fixed { shape, .. } => shape.is_empty(),
            ColumnKind::Ragged { .. } => false,
            ColumnKind::Raw { .. } => true,
        };
        let position = project(projection, column, !one_value);
        let column = Column { name: name.clone(), kind: kind.clone() };
        Ok(Self { column, position, narrow_at: None, absent, image: image.clone().map(Arc::new), tokens })
    }

    /// Places the narrow ones of `columns` in the rows of the block, in their order. Values are not aligned: that their loads
    /// and stores sometimes cross a cache line makes no difference that can be measured.
    pub(super) fn place_narrow(columns: &mut [Self]) {
        let mut end = 0;
        for column in columns {
            let is_fixed = matches!(column.column.kind, ColumnKind::Fixed { .. });
            let row_bytes = column.column.kind.row_bytes() as usize;
            let has_values = is_fixed && column.image.is_none() && column.tokens.is_none();
            if has_values && ChunkColumn::is_narrow(row_bytes) {
                column.narrow_at = Some(end);
                end += row_bytes;
            }
        }
    }

    /// Adds the column's rows to the chunk.
    ///
    /// # Errors
    /// The data's column has another type, or its values exceed the range of offsets.
    pub(super) fn fill(&self, missing: &Missing, builder: &mut ChunkBuilder<'_>) -> Result<(), Error> {
        let elements = builder.elements(self.position);
        let converted = || {
            let values = target::values(self.column.kind.dtype(), &elements.leaf, missing);
            values.ok_or_else(|| wrong_type(builder.raw, self.position, NUMBERS))
        };
        let column = match &self.column.kind {
            _ if self.image.is_some() => self.images(&elements, missing, builder)?,
            _ if let Some(tokens) = &self.tokens => self.documents(tokens, missing, builder)?,
            ColumnKind::Fixed { .. } => {
                let values = converted()?;
                let row_bytes = self.column.kind.row_bytes() as usize;
                let values = self.fixed(&elements, values, row_bytes, builder);
                match self.narrow_at {
                    Some(at) => {
                        builder.narrow.push(NarrowColumn { at, row_bytes, values });
                        ChunkColumn::Narrow { at, row_bytes }
                    }
                    None => ChunkColumn::Fixed { row_bytes, values: of_chunk(values) },
                }
            }
            ColumnKind::Ragged { maximum, .. } => {
                let values = converted()?;
                self.ragged(&elements, values, *maximum, builder)?
            }
            ColumnKind::Raw { maximum } => {
                let maximum = *maximum;
                let usable = |bytes: &[u8]| bytes.len() <= maximum as usize;
                let problem = |found| Problem::TooLong { maximum, found };
                let (offsets, values) = self.raw(&elements, missing, usable, problem, builder)?;
                ChunkColumn::Ragged { value_bytes: 1, offsets, values: values.into() }
            }
        };
        builder.columns.push(column);
        Ok(())
    }

    /// Rows with as many values as the shape has. A row without a value has the replacement for each.
    fn fixed(
        &self,
        elements: &Elements,
        values: Values,
        row_bytes: usize,
        builder: &mut ChunkBuilder<'_>,
    ) -> Buffer {
        let Values { bytes, unusable } = values;
        let (rows, size) = (builder.raw.rows(), self.column.kind.dtype().bytes());
        let width = row_bytes / size;
        let as_stored = (0..rows).all(|row| elements.of_row(row) == (row * width..(row + 1) * width));
        let mut cursor = Cursor { rest: &unusable };
        if as_stored && unusable.is_empty() {
            return bytes;
        }
        let mut out = vec![0; rows * row_bytes];
        for (row, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            let range = elements.of_row(row);
            let unusable = cursor.within(&range);
            if is_absent(elements, &range, unusable) {
                match &self.absent {
                    Some(value) => out.chunks_exact_mut(size).for_each(|out| out.copy_from_slice(value)),
                    None => builder.fault(row, self.position, Problem::AbsentValue),
                }
            } else if range.len() != width {
                let problem = Problem::Values { expected: width, found: range.len() };
                builder.fault(row, self.position, problem);
            } else {
                out.copy_from_slice(&bytes[range.start * size..range.end * size]);
                self.replace(row, range.start, unusable, out, builder);
            }
        }
        out.into()
    }

    /// Rows with any number of values, truncated to `maximum`.
    fn ragged(
        &self,
        elements: &Elements,
        values: Values,
        maximum: u32,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<ChunkColumn, Error> {
        let Values { bytes, unusable } = values;
        let (rows, size) = (builder.raw.rows(), self.column.kind.dtype().bytes());
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        let mut cursor = Cursor { rest: &unusable };
        // Values are moved only from the first row on that has others than its elements.
        let mut moved: Option<Vec<u8>> = None;
        let mut end = 0;
        for row in 0..rows {
            let range = elements.of_row(row);
            let absent = !elements.are_lists() && is_absent(elements, &range, cursor.within(&range));
            let kept = if absent { 0 } else { range.len().min(maximum as usize) };
            if moved.is_none() && kept > 0 && range.start != end {
                let mut out = Vec::with_capacity(bytes.len());
                out.extend_from_slice(&bytes[..end * size]);
                moved = Some(out);
            }
            let kept = range.start..range.start + kept;
            if let Some(out) = &mut moved {
                out.extend_from_slice(&bytes[kept.start * size..kept.end * size]);
            }
            end += kept.len();
            offsets.push(self.offset(end)?);
        }
        // Values are replaced only in a copy.
        let mut own = moved.or_else(|| (!unusable.is_empty()).then(|| bytes[..end * size].to_vec()));
        let mut cursor = Cursor { rest: &unusable };
        for row in 0..rows {
            let [start, end] = [offsets[row] as usize, offsets[row + 1] as usize];
            let range = elements.of_row(row);
            let unusable = cursor.within(&(range.start..range.start + end - start));
            let of_row = own.as_mut().map_or(&mut [][..], |own| &mut own[start * size..end * size]);
            let is_usable = self.replace(row, range.start, unusable, of_row, builder);
            builder.truncated_rows += u64::from(is_usable && range.len() > maximum as usize);
        }
        let values = match own {
            Some(own) => own.into(),
            None => of_chunk(bytes.slice_with_length(0, end * size)),
        };
        Ok(ChunkColumn::Ragged { value_bytes: size, offsets, values })
    }

    /// Replaces the absent values of a row, whose first element is `first`. The first other unusable one is a fault.
    /// Returns whether there is none.
    #[inline]
    fn replace(
        &self,
        row: usize,
        first: usize,
        unusable: &[(usize, Unusable)],
        values: &mut [u8],
        builder: &mut ChunkBuilder<'_>,
    ) -> bool {
        for &(element, unusable) in unusable {
            let problem = match (unusable, &self.absent) {
                (Unusable::Absent, Some(value)) => {
                    values[(element - first) * value.len()..][..value.len()].copy_from_slice(value);
                    continue;
                }
                (Unusable::Absent, None) => Problem::AbsentValue,
                (Unusable::NotOfType, _) => Problem::NotOfType { element, dtype: self.column.kind.dtype() },
            };
            builder.fault(row, self.position, problem);
            return false;
        }
        true
    }

    /// Rows of bytes; those of an absent value are empty. Those that are not `usable` are faults with a `problem`, which is
    /// called with their length. Returns offsets and values.
    fn raw(
        &self,
        elements: &Elements,
        missing: &Missing,
        usable: impl Fn(&[u8]) -> bool,
        problem: impl Fn(u64) -> Problem,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<(Vec<u32>, Vec<u8>), Error> {
        let rows = builder.raw.rows();
        let texts =
            if elements.are_lists() { self.single(elements, builder)? } else { elements.leaf.clone() };
        let mut values = Vec::new();
        let absent = (0, usable(&[]));
        let lengths = match texts.data_type() {
            DataType::Null => Some(vec![absent; rows]),
            _ => bytes(&texts, missing, absent, |text| {
                let is_usable = usable(text);
                if is_usable {
                    values.extend_from_slice(text);
                }
                (text.len() as u64, is_usable)
            }),
        };
        let lengths = lengths.ok_or_else(|| wrong_type(builder.raw, self.position, BYTES))?;
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        let mut end = 0;
        for (row, &(length, is_usable)) in lengths.iter().enumerate() {
            if is_usable {
                end += length as usize;
            } else {
                builder.fault(row, self.position, problem(length));
            }
            offsets.push(self.offset(end)?);
        }
        Ok((offsets, values))
    }

    /// Rows of encoded images. What does not begin as an image is a fault; whether the rest is intact shows when it is
    /// decoded.
    fn images(
        &self,
        elements: &Elements,
        missing: &Missing,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<ChunkColumn, Error> {
        let usable = |bytes: &[u8]| bytes.len() as u64 <= MAX_IMAGE_BYTES && is_image(bytes);
        let problem = |found| Problem::NoImage { found };
        let (offsets, mut bytes) = self.raw(elements, missing, usable, problem, builder)?;
        // The shuffle pool counts what is used.
        bytes.shrink_to_fit();
        let raw = builder.raw;
        let records = (0..raw.rows()).map(|row| raw.record(row)).collect();
        Ok(ChunkColumn::Images(EncodedImages { path: raw.path().into(), split: 0, records, offsets, bytes }))
    }

    /// The elements of a column of lists that hold one value each. Longer ones are faults.
    fn single(
        &self,
        elements: &Elements,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<arrow_array::ArrayRef, Error> {
        let mut places = Vec::with_capacity(builder.raw.rows());
        for row in 0..builder.raw.rows() {
            places.push(match elements.single(row) {
                Single::One(element) => u32::try_from(element).ok(),
                Single::Absent => None,
                Single::Several(found) => {
                    builder.fault(row, self.position, Problem::Values { expected: 1, found });
                    None
                }
            });
        }
        arrow_select::take::take(&elements.leaf, &UInt32Array::from(places), None).map_err(|error| {
            Error::Invalid(format!("{}: column `{}`: {error}", builder.raw.path(), self.column.name))
        })
    }

    fn offset(&self, end: usize) -> Result<u32, Error> {
        u32::try_from(end).map_err(|_| {
            let name = &self.column.name;
            Error::Invalid(format!(
                "column `{name}`: a chunk holds more than 2^32 - 1 values; lower `maximum`"
            ))
        })
    }
}

/// The buffer itself, unless it is less than half of its memory: the pool would hold all of that.
fn of_chunk(buffer: Buffer) -> Buffer {
    if 2 * buffer.len() < buffer.capacity() { buffer.to_vec().into() } else { buffer }
}

/// Whether a row has no value: an empty list, or an absent value in a column without lists.
#[inline]
fn is_absent(elements: &Elements, range: &Range<usize>, unusable: &[(usize, Unusable)]) -> bool {
    range.is_empty() || (!elements.are_lists() && matches!(unusable, [(_, Unusable::Absent)]))
}
