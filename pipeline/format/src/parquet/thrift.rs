//! Checks Thrift's compact encoding before the `parquet` crate decodes it.
//!
//! The crate trusts what it reads: it recurses as deep as a schema nests, and reserves memory for claimed numbers of
//! elements. [`check`] walks the same bytes once and allocates nothing. It follows a grammar of the fields that the crate
//! reads, because the crate ignores the types that the bytes give to these fields: bytes with other types could mean
//! one thing to a check and another to the crate. What is accepted has, for the crate, the same structure.
//!
//! * A claimed length fits the remaining bytes; each element of a list has at least one byte.
//! * Known fields have the types of the format, and their integers fit these types.
//! * Unknown fields nest at most [`MAX_UNKNOWN_DEPTH`] deep. They hold no list of booleans, which the crate skips
//!   without consuming their bytes, in a loop as long as claimed.
//!
//! The grammar (`grammar.rs`) has no cycle, so the recursion over known fields has a bound.
//!
//! Source: Thrift's `thrift-compact-protocol.md`.

/// The deepest nesting of fields that the format does not define. The crate itself accepts 64 levels; no version of the
/// format uses more than eight.
const MAX_UNKNOWN_DEPTH: usize = 32;
/// The longest encoding of 64 bits.
const MAX_VARINT_BYTES: u32 = 10;

/// The type of a known field or element.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Bool,
    I8,
    I16,
    I32,
    I64,
    Double,
    /// Bytes or text.
    Binary,
    List(&'static Kind),
    Struct(&'static Structure),
}

/// The fields of a structure, as far as the crate reads them.
#[derive(Debug)]
pub(super) struct Structure {
    pub(super) part: Part,
    /// Bytes that the crate and this module allocate for each, besides texts and lists within.
    pub(super) decoded_bytes: u64,
    pub(super) fields: &'static [(i16, Kind)],
}

/// The structures whose contents are examined further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    SchemaElement,
    Other,
}

/// What a walk encounters.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The value of an integer field.
    Integer(i16, i64),
    /// The length of a text or binary field.
    Text(i16, usize),
    /// The end of the structure.
    End,
}

/// Checks the structure at the start of `bytes`. Bytes after it are ignored. `on` receives the events of structures
/// other than [`Part::Other`]. Returns the most memory that decoding the structure allocates.
pub(super) fn check(
    bytes: &[u8],
    structure: &'static Structure,
    on: impl FnMut(Event) -> Result<(), String>,
) -> Result<u64, String> {
    let mut walk = Walk { input: Input::new(bytes), decoded_bytes: 0, on };
    walk.structure(structure)?;
    Ok(walk.decoded_bytes)
}

/// Encoded bytes that are being read.
pub(super) struct Input<'a> {
    rest: &'a [u8],
}

struct Walk<'a, F> {
    input: Input<'a>,
    decoded_bytes: u64,
    on: F,
}

/// A type as encoded.
pub(super) mod wire {
    pub(in crate::parquet) const STOP: u8 = 0;
    pub(in crate::parquet) const TRUE: u8 = 1;
    pub(in crate::parquet) const FALSE: u8 = 2;
    pub(in crate::parquet) const I8: u8 = 3;
    pub(in crate::parquet) const I16: u8 = 4;
    pub(in crate::parquet) const I32: u8 = 5;
    pub(in crate::parquet) const I64: u8 = 6;
    pub(in crate::parquet) const DOUBLE: u8 = 7;
    pub(in crate::parquet) const BINARY: u8 = 8;
    pub(in crate::parquet) const LIST: u8 = 9;
    pub(in crate::parquet) const SET: u8 = 10;
    pub(in crate::parquet) const MAP: u8 = 11;
    pub(in crate::parquet) const STRUCT: u8 = 12;
    pub(in crate::parquet) const UUID: u8 = 13;
}

/// An unknown container that is being skipped.
#[derive(Clone, Copy)]
enum Skipped {
    Struct,
    /// Remaining elements, alternating between two types; those of a list are equal.
    Elements {
        left: u64,
        next: u8,
        then: u8,
    },
}

impl Kind {
    /// Whether a field or element of this kind is encoded as `wire`.
    fn is(self, wire: u8) -> bool {
        let expected = match self {
            Self::Bool => return matches!(wire, wire::TRUE | wire::FALSE),
            Self::I8 => wire::I8,
            Self::I16 => wire::I16,
            Self::I32 => wire::I32,
            Self::I64 => wire::I64,
            Self::Double => wire::DOUBLE,
            Self::Binary => wire::BINARY,
            Self::List(_) => wire::LIST,
            Self::Struct(_) => wire::STRUCT,
        };
        wire == expected
    }

    /// Bytes that an element in a list of this kind occupies once decoded.
    fn decoded_bytes(self) -> u64 {
        match self {
            // A vector or a slice.
            Self::Binary | Self::List(_) => size_of::<Vec<u8>>() as u64,
            // Counted with the structure.
            Self::Struct(_) => 0,
            _ => 8,
        }
    }
}

impl<F: FnMut(Event) -> Result<(), String>> Walk<'_, F> {
    fn structure(&mut self, of: &'static Structure) -> Result<(), String> {
        let reports = of.part != Part::Other;
        self.decoded_bytes = self.decoded_bytes.saturating_add(of.decoded_bytes);
        let mut last = 0;
        while let Some((id, wire)) = self.input.field(last)? {
            last = id;
            let Some((_, kind)) = of.fields.iter().find(|(known, _)| *known == id) else {
                self.input.skip(wire)?;
                continue;
            };
            if !kind.is(wire) {
                return Err(format!("a field has type {wire}, not the type that the format defines"));
            }
            // The type of a field holds its boolean.
            if !matches!(kind, Kind::Bool) {
                let value = self.value(*kind)?;
                if reports {
                    match (kind, value) {
                        (Kind::Binary, length) => (self.on)(Event::Text(id, length as usize))?,
                        (_, value) => (self.on)(Event::Integer(id, value))?,
                    }
                }
            }
        }
        if reports { (self.on)(Event::End) } else { Ok(()) }
    }

    /// Reads a value; returns an integer or the length of a text, otherwise 0.
    fn value(&mut self, kind: Kind) -> Result<i64, String> {
        let fits =
            |value: i64, fits: bool| if fits { Ok(value) } else { Err("an integer overflows".to_owned()) };
        match kind {
            Kind::Bool | Kind::I8 => self.input.advance(1)?,
            Kind::I16 => {
                return self.input.integer().and_then(|value| fits(value, i16::try_from(value).is_ok()));
            }
            Kind::I32 => {
                return self.input.integer().and_then(|value| fits(value, i32::try_from(value).is_ok()));
            }
            Kind::I64 => return self.input.integer(),
            Kind::Double => self.input.advance(8)?,
            Kind::Binary => {
                let length = self.input.varint()?;
                self.input.advance(length)?;
                self.decoded_bytes = self.decoded_bytes.saturating_add(length);
                return Ok(length as i64);
            }
            Kind::List(element) => {
                let (wire, count) = self.input.list()?;
                if count > 0 && !element.is(wire) {
                    return Err(format!(
                        "a list has elements of type {wire}, not the type that the format defines"
                    ));
                }
                self.decoded_bytes = self.decoded_bytes.saturating_add(count * element.decoded_bytes());
                for _ in 0..count {
                    self.value(*element)?;
                }
            }
            Kind::Struct(structure) => self.structure(structure)?,
        }
        Ok(0)
    }
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The number of bytes that have not been read.
    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The identifier and type of the next field, unless the structure ends.
    pub(super) fn field(&mut self, last: i16) -> Result<Option<(i16, u8)>, String> {
        let header = self.byte()?;
        let wire = header & 0x0f;
        if wire == wire::STOP {
            return Ok(None);
        }
        let id = match header >> 4 {
            0 => i16::try_from(self.integer()?).ok(),
            delta => last.checked_add(i16::from(delta)),
        };
        Ok(Some((id.ok_or("a field has no valid number")?, wire)))
    }

    /// Skips a field that the format does not define.
    pub(super) fn skip(&mut self, wire: u8) -> Result<(), String> {
        let mut stack = [Skipped::Struct; MAX_UNKNOWN_DEPTH];
        let mut depth = 0;
        let mut wire = wire;
        loop {
            match wire {
                wire::TRUE | wire::FALSE => {}
                wire::I8 => self.advance(1)?,
                wire::I16 | wire::I32 | wire::I64 => drop(self.varint()?),
                wire::DOUBLE => self.advance(8)?,
                wire::UUID => self.advance(16)?,
                wire::BINARY => {
                    let length = self.varint()?;
                    self.advance(length)?;
                }
                wire::LIST | wire::SET | wire::MAP | wire::STRUCT => {
                    let inside = match wire {
                        wire::STRUCT => Skipped::Struct,
                        wire::MAP => self.map()?,
                        _ => {
                            let (element, left) = self.list()?;
                            Skipped::Elements { left, next: element, then: element }
                        }
                    };
                    if let Skipped::Elements { left: 1.., next, then } = inside
                        && (next.min(then) <= wire::FALSE)
                    {
                        return Err("an unknown field holds a list of booleans".to_owned());
                    }
                    let place = stack.get_mut(depth);
                    *place.ok_or_else(|| {
                        format!("an unknown field nests more than {MAX_UNKNOWN_DEPTH} deep")
                    })? = inside;
                    depth += 1;
                }
                _ => return Err(format!("a field has the unknown type {wire}")),
            }
            // The next value within the innermost container that has one.
            wire = loop {
                let Some(innermost) = depth.checked_sub(1) else { return Ok(()) };
                match &mut stack[innermost] {
                    Skipped::Struct => {
                        if let Some((_, wire)) = self.field(0)? {
                            break wire;
                        }
                    }
                    Skipped::Elements { left: left @ 1.., next, then } => {
                        *left -= 1;
                        std::mem::swap(next, then);
                        break *then;
                    }
                    Skipped::Elements { .. } => {}
                }
                depth = innermost;
            };
        }
    }

    /// The type and number of a list's elements.
    fn list(&mut self) -> Result<(u8, u64), String> {
        let header = self.byte()?;
        let count = match header >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        self.fits(count).map(|()| (header & 0x0f, count))
    }

    fn map(&mut self) -> Result<Skipped, String> {
        let pairs = self.varint()?;
        self.fits(pairs)?;
        let types = if pairs > 0 { self.byte()? } else { 0 };
        Ok(Skipped::Elements { left: 2 * pairs, next: types >> 4, then: types & 0x0f })
    }

    /// Checks that the remaining bytes can hold `count` elements.
    fn fits(&self, count: u64) -> Result<(), String> {
        if count <= self.rest.len() as u64 && i32::try_from(count).is_ok() {
            return Ok(());
        }
        Err(format!("a list claims {count} elements, {} bytes remain", self.rest.len()))
    }

    pub(super) fn integer(&mut self) -> Result<i64, String> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for place in 0..MAX_VARINT_BYTES {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << (7 * place);
            if shifted >> (7 * place) != bits {
                break;
            }
            value |= shifted;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("an integer overflows".to_owned())
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, String> {
        let (&byte, rest) = self.rest.split_first().ok_or("the bytes end within a structure")?;
        self.rest = rest;
        Ok(byte)
    }

    fn advance(&mut self, bytes: u64) -> Result<(), String> {
        let length = usize::try_from(bytes).ok();
        let rest = length.and_then(|length| self.rest.get(length..));
        self.rest =
            rest.ok_or_else(|| format!("a value claims {bytes} bytes, {} remain", self.rest.len()))?;
        Ok(())
    }
}

#[cfg(test)]
#[path = "thrift_tests.rs"]
mod tests;
