//! Documents: rows of tokens, which are packed into sequences later.

use std::sync::Arc;

use arrow_array::types::{UInt16Type, UInt32Type};
use arrow_array::{ArrayRef, ArrowPrimitiveType, LargeListArray, PrimitiveArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::Field;
use millstream_batch::Dtype;

use super::{TypedColumn, Values, target, values_of};
use crate::Error;
use crate::chunk::ChunkColumn;
use crate::sequences::{StoredTokens, TokenColumn, TokenSpec};
use crate::tokenizer::{MAX_TEXT_BYTES, Tokenizer, Tokenizers};
use crate::transform::ChunkBuilder;
use crate::transform::column::{Elements, Missing, NUMBERS};
use crate::transform::fault::{Problem, wrong_type};

/// A column of tokens.
#[derive(Clone, Debug)]
pub(in crate::transform) struct Tokens {
    pub(super) column: TokenColumn,
    /// The bytes of the values around the tokens of a document.
    bos: Vec<u8>,
    eos: Vec<u8>,
    source: Source,
}

/// What the data has for a document.
#[derive(Clone, Debug)]
enum Source {
    /// A list of tokens.
    List,
    /// The bytes of tokens.
    Bytes(StoredTokens),
    /// Text.
    Text(Arc<Tokenizer>),
}

/// The tokens of all rows that have one value of bytes or text.
struct Tokenized<T: ArrowPrimitiveType> {
    tokens: PrimitiveArray<T>,
    /// `[rows + 1]`
    offsets: Vec<i64>,
}

impl Tokens {
    /// # Errors
    /// Why the column is not as `spec` says.
    pub(super) fn resolve(spec: &TokenSpec, dtype: Dtype, tokenizers: &Tokenizers) -> Result<Self, String> {
        let value = |number: f64| {
            let expected =
                || format!("{number} is not {}; change `bos`, `eos` or `pad`, or the type", values_of(dtype));
            target::bytes_of(dtype, number).ok_or_else(expected)
        };
        let around = |number: Option<f64>| number.map_or(Ok(Vec::new()), value);
        let tokenizer = spec.tokenizer.as_ref().map(|path| {
            tokenizers.get(path).ok_or_else(|| format!("the tokenizer {path} has not been read"))
        });
        let source = match (spec.stored, tokenizer.transpose()?) {
            (None, None) => Source::List,
            (Some(stored), None) => Source::Bytes(stored),
            (None, Some(tokenizer)) => Source::Text(Arc::clone(tokenizer)),
            (Some(_), Some(_)) => return Err("`stored` is for tokens, and `tokenizer` for text".to_owned()),
        };
        let column = TokenColumn {
            dtype,
            pad: value(spec.pad)?,
            average: spec.average,
            maximum: spec.maximum.unwrap_or(u32::MAX),
            added: u32::from(spec.bos.is_some()) + u32::from(spec.eos.is_some()),
            tokenizer: if let Source::Text(tokenizer) = &source { tokenizer.fingerprint() } else { 0 },
        };
        Ok(Self { column, bos: around(spec.bos)?, eos: around(spec.eos)?, source })
    }

    /// Whether the data has a value per row, not a list.
    pub(super) fn has_one_value(&self) -> bool {
        !matches!(self.source, Source::List)
    }

    /// Truncates the documents of a column to their maximum, and adds `bos` and `eos`. Returns the number of truncated ones.
    pub(in crate::transform) fn finish(&self, documents: &mut ChunkColumn) -> Result<u64, Error> {
        let ChunkColumn::Ragged { value_bytes, offsets, values } = documents else {
            unreachable!("documents are ragged until they are packed")
        };
        let TokenColumn { maximum, added, .. } = self.column;
        let kept = |document: &[u32]| (document[1] - document[0]).min(maximum);
        let total: u64 =
            offsets.windows(2).map(|document| u64::from(kept(document)) + u64::from(added)).sum();
        let is_too_long =
            || Error::Invalid("a chunk holds more than 2^32 - 1 tokens; lower `maximum`".to_owned());
        let total = u32::try_from(total).map_err(|_| is_too_long())? as usize;
        if added == 0 && total * *value_bytes == values.len() {
            return Ok(0);
        }
        // Of exactly the size that is needed: the shuffle pool counts what is used.
        let mut finished = Vec::with_capacity(total * *value_bytes);
        let mut ends = Vec::with_capacity(offsets.len());
        ends.push(0);
        let mut truncated = 0;
        for document in offsets.windows(2) {
            let start = document[0] as usize * *value_bytes;
            finished.extend_from_slice(&self.bos);
            finished.extend_from_slice(&values[start..start + kept(document) as usize * *value_bytes]);
            finished.extend_from_slice(&self.eos);
            ends.push((finished.len() / *value_bytes) as u32);
            truncated += u64::from(document[1] - document[0] > maximum);
        }
        (*offsets, *values) = (ends, finished.into());
        Ok(truncated)
    }

    /// The memory of the tokenizer.
    pub(in crate::transform) fn held_bytes(&self) -> u64 {
        if let Source::Text(tokenizer) = &self.source { tokenizer.held_bytes() } else { 0 }
    }

    /// The memory that a thread needs to read documents, per document and besides.
    pub(in crate::transform) fn reading_bytes(&self) -> (u64, u64) {
        // The tokens as they are stored, as values, and as rows.
        let per_document = self.column.planned_bytes().saturating_mul(3);
        (per_document, if let Source::Text(_) = self.source { Tokenizer::thread_bytes() } else { 0 })
    }
}

impl TypedColumn {
    /// The column of tokens, if it has any.
    pub(in crate::transform) fn token_column(&self) -> Option<TokenColumn> {
        self.tokens.as_ref().map(|tokens| tokens.column.clone())
    }

    /// The tokens of each document, as the data has them.
    pub(super) fn documents(
        &self,
        tokens: &Tokens,
        missing: &Missing,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<ChunkColumn, Error> {
        let dtype = tokens.column.dtype;
        let (elements, values) = match &tokens.source {
            Source::List => {
                let elements = builder.elements(self.position);
                let values = target::values(dtype, &elements.leaf, missing);
                let values = values.ok_or_else(|| wrong_type(builder.raw, self.position, NUMBERS))?;
                (elements, values)
            }
            Source::Bytes(StoredTokens::Uint16) => {
                let read = self.stored::<UInt16Type, 2>(u16::from_le_bytes, missing, builder)?;
                self.elements_of(read, builder)?
            }
            Source::Bytes(StoredTokens::Uint32) => {
                let read = self.stored::<UInt32Type, 4>(u32::from_le_bytes, missing, builder)?;
                self.elements_of(read, builder)?
            }
            Source::Text(tokenizer) => {
                let read = self.tokenized(tokenizer, missing, builder)?;
                self.elements_of(read, builder)?
            }
        };
        self.ragged(&elements, values, u32::MAX, builder)
    }

    /// The tokens that are stored as bytes, `N` each.
    fn stored<T: ArrowPrimitiveType, const N: usize>(
        &self,
        token: impl Fn([u8; N]) -> T::Native,
        missing: &Missing,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<Tokenized<T>, Error> {
        let elements = builder.elements(self.position);
        let usable = |bytes: &[u8]| bytes.len().is_multiple_of(N);
        let problem = |found| Problem::TokenBytes { size: N, found };
        let (offsets, bytes) = self.raw(&elements, missing, usable, problem, builder)?;
        let (tokens, _) = bytes.as_chunks();
        let tokens = PrimitiveArray::from_iter_values(tokens.iter().map(|&bytes| token(bytes)));
        Ok(Tokenized {
            tokens,
            offsets: offsets.iter().map(|&offset| i64::from(offset) / N as i64).collect(),
        })
    }

    /// The tokens of texts.
    fn tokenized(
        &self,
        tokenizer: &Tokenizer,
        missing: &Missing,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<Tokenized<UInt32Type>, Error> {
        let elements = builder.elements(self.position);
        let usable = |bytes: &[u8]| bytes.len() <= MAX_TEXT_BYTES && str::from_utf8(bytes).is_ok();
        let (ends, texts) =
            self.raw(&elements, missing, usable, |found| Problem::NoText { found }, builder)?;
        let (mut tokens, mut offsets) = (Vec::new(), Vec::with_capacity(ends.len()));
        offsets.push(0);
        for (row, ends) in ends.windows(2).enumerate() {
            let text = &texts[ends[0] as usize..ends[1] as usize];
            let has_tokens = str::from_utf8(text).is_ok_and(|text| tokenizer.encode(text, &mut tokens));
            if !has_tokens {
                builder.fault(row, self.position, Problem::NoTokens);
            }
            offsets.push(tokens.len() as i64);
        }
        Ok(Tokenized { tokens: tokens.into(), offsets })
    }

    /// The tokens as elements of lists, and as values of the column's type.
    fn elements_of<T: ArrowPrimitiveType>(
        &self,
        read: Tokenized<T>,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<(Elements, Values), Error>
    where
        u32: From<T::Native>,
    {
        let Tokenized { tokens, offsets } = read;
        let dtype = self.column.kind.dtype();
        let array: ArrayRef = Arc::new(tokens.clone());
        // No token means that a value is missing.
        let values = target::values(dtype, &array, &Missing::new(&[]));
        let Values { bytes, unusable } =
            values.ok_or_else(|| wrong_type(builder.raw, self.position, NUMBERS))?;
        for (element, _) in unusable {
            let row = offsets[1..].partition_point(|&end| end as usize <= element);
            let token = u32::from(tokens.value(element));
            builder.fault(row, self.position, Problem::StoredToken { token, dtype });
        }
        let item = Arc::new(Field::new_list_field(T::DATA_TYPE, false));
        let lists: ArrayRef =
            Arc::new(LargeListArray::new(item, OffsetBuffer::new(offsets.into()), array, None));
        Ok((Elements::of(&lists), Values { bytes, unusable: Vec::new() }))
    }
}
