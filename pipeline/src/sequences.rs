//! Sequences of tokens: documents, packed to one length for language models.
//!
//! Rows of the data are documents, lists of tokens of any length, and rows of a batch are sequences of one length
//! ([`crate::order`] decides which documents are in which). Chunks, and so the shuffle pool, hold documents. A batch has,
//! for each column of tokens, `[B, T]` values, and three columns that describe them:
//!
//! * `segment_ids`, `[B, T]` int32: the number of a token's piece in its sequence, from 1; 0 in padding.
//! * `positions`, `[B, T]` int32: the place of a token in its piece, from 0; 0 in padding.
//! * `cu_seqlens`, ragged int32: 0, and where each piece of a sequence ends.
//!
//! Grain and seqio append the first two names to that of a column; the third is that of FlashAttention's kernels for
//! sequences of varying length.

use std::sync::Arc;

use millstream_batch::cache_lines::prefetch;
use millstream_batch::{BatchMut, Column, ColumnKind, Dtype};
use serde::{Deserialize, Serialize};

use crate::chunk::Chunk;
use crate::fingerprint::fingerprint64;
use crate::order::packing::{self, PackedPieces, Piece};
use crate::order::{Packing, PassOrder};
use crate::pack::RowRef;
use crate::tokenizer::Tokenizers;

/// The names of the columns that describe sequences, in their order. They follow the columns of tokens.
pub const DESCRIBING: [&str; 3] = ["segment_ids", "positions", "cu_seqlens"];

/// The maximum tokens of a sequence.
pub const MAX_LENGTH: u32 = 1 << 22;

/// The tokens planned for a document if the data does not say.
const USUAL_TOKENS: u64 = 1024;

/// The bytes that a token takes in storage, usually.
const STORED_BYTES: u64 = 2;

/// The bytes of a piece that are prefetched; the processor's own prefetcher loads the rest.
const PREFETCH_BYTES: usize = 256;

/// How documents become sequences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceSpec {
    /// The tokens of a sequence, from 1 to [`MAX_LENGTH`].
    pub length: u32,
    /// How documents are packed.
    pub how: Packing,
}

/// How documents become sequences, and what their columns of tokens need.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// How documents are packed.
    pub spec: &'a SequenceSpec,
    /// The tokenizers that columns name.
    pub tokenizers: &'a Tokenizers,
}

/// The documents of a column of tokens. The type of a token, and the length of sequences, are those of the column's kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenSpec {
    /// The value before the tokens of each document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bos: Option<f64>,
    /// The value after the tokens of each document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eos: Option<f64>,
    /// The value of padding.
    #[serde(default)]
    pub pad: f64,
    /// The maximum tokens of a document, without `bos` and `eos`. Longer ones lose those at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum: Option<u32>,
    /// The usual tokens of a document, for which memory is planned; derived from the data if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average: Option<u32>,
    /// Set if the data has the tokens of a document as bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredTokens>,
    /// The path of the tokenizer, if the data has text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
}

/// Tokens stored as bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredTokens {
    /// Two bytes each.
    Uint16,
    /// Four bytes each.
    Uint32,
}

impl SequenceSpec {
    /// The kind of a column of tokens of this type, packed.
    pub fn column_kind(&self, dtype: Dtype) -> ColumnKind {
        ColumnKind::Fixed { dtype, shape: vec![self.length] }
    }

    /// The columns of a batch that describe its sequences.
    pub fn describing_columns(&self) -> impl Iterator<Item = Column> {
        let places = self.column_kind(Dtype::Int32);
        // Each token may be a document.
        let ends = ColumnKind::Ragged { dtype: Dtype::Int32, maximum: self.length + 1 };
        let kinds = [places.clone(), places, ends];
        DESCRIBING.iter().zip(kinds).map(|(&name, kind)| Column { name: name.to_owned(), kind })
    }
}

/// The columns of tokens of a feed, and how they are packed.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceColumns {
    spec: SequenceSpec,
    tokens: Vec<TokenColumn>,
}

/// A column of tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenColumn {
    pub(crate) dtype: Dtype,
    /// The bytes of the value of padding.
    pub(crate) pad: Vec<u8>,
    /// The usual tokens of a document, if the feed says.
    pub(crate) average: Option<u32>,
    /// The maximum tokens of a document.
    pub(crate) maximum: u32,
    /// The number of values that are added to them.
    pub(crate) added: u32,
    /// The fingerprint of the tokenizer; 0 without one.
    pub(crate) tokenizer: u64,
}

/// The sequences of a window.
#[derive(Debug)]
pub(crate) struct Sequences {
    /// The documents that they contain, in the order of the window's permutation.
    documents: Vec<RowRef>,
    packed: PackedPieces,
}

/// A sequence of a window.
#[derive(Clone, Copy)]
pub(crate) struct Sequence<'a> {
    /// The chunks of the window.
    chunks: &'a [Arc<Chunk>],
    documents: &'a [RowRef],
    pieces: &'a [Piece],
}

impl TokenColumn {
    /// The usual tokens of a document.
    fn average_tokens(&self) -> u64 {
        self.average.map_or(USUAL_TOKENS, u64::from)
    }

    /// The bytes planned for the tokens of a document.
    pub(crate) fn planned_bytes(&self) -> u64 {
        self.average_tokens() * self.dtype.bytes() as u64
    }
}

impl SequenceColumns {
    pub(crate) fn new(spec: SequenceSpec, tokens: Vec<TokenColumn>) -> Self {
        Self { spec, tokens }
    }

    /// The same columns, with memory planned for documents of `mean_bytes` in storage where the feed says nothing.
    pub(crate) fn with_mean_bytes(mut self, mean_bytes: Option<u64>) -> Self {
        let columns = self.tokens.len().max(1) as u64;
        let Some(mean) = mean_bytes.map(|bytes| bytes / columns / STORED_BYTES) else { return self };
        // Windows differ from the mean.
        let planned = mean.saturating_mul(3) / 2;
        for column in self.tokens.iter_mut().filter(|column| column.average.is_none()) {
            column.average = Some(u32::try_from(planned.max(16)).unwrap_or(u32::MAX));
        }
        self
    }

    /// The usual tokens of a document.
    pub(crate) fn average_tokens(&self) -> u64 {
        let averages = self.tokens.iter().map(TokenColumn::average_tokens);
        averages.max().unwrap_or(USUAL_TOKENS)
    }

    /// The memory planned for a document.
    pub(crate) fn planned_bytes(&self) -> u64 {
        self.held_bytes(1, self.average_tokens())
    }

    /// The memory of documents that have so many tokens: these, the offsets of all columns, and their pieces in sequences.
    pub(crate) fn held_bytes(&self, documents: u64, tokens: u64) -> u64 {
        let offsets = 4 * self.tokens.len() as u64;
        let of_documents = documents.saturating_mul(packing::DOCUMENT_BYTES + offsets);
        let full = (tokens / u64::from(self.spec.length)).saturating_mul(packing::FULL_BYTES);
        tokens.saturating_mul(self.token_bytes()).saturating_add(of_documents).saturating_add(full)
    }

    /// The working memory to pack a window.
    pub(crate) fn working_bytes(&self) -> u64 {
        packing::working_bytes(self.spec.length)
    }

    /// The bytes of a token of all columns, at least 1.
    pub(crate) fn token_bytes(&self) -> u64 {
        self.tokens.iter().map(|column| column.dtype.bytes() as u64).sum::<u64>().max(1)
    }

    /// The part of an order's fingerprint: in another order of sequences, positions have another meaning.
    pub(crate) fn key(&self) -> u64 {
        let how = match self.spec.how {
            Packing::BestFit => 1,
            Packing::Concatenate => 2,
        };
        let of_column = |column: &TokenColumn| [column.maximum.into(), column.added.into(), column.tokenizer];
        let words = [self.spec.length.into(), how].into_iter().chain(self.tokens.iter().flat_map(of_column));
        fingerprint64(&words.flat_map(u64::to_le_bytes).collect::<Vec<_>>())
    }

    /// Packs the `documents` of window `number` of `lane`, which are rows of `chunks`.
    pub(crate) fn of_window(
        &self,
        order: &PassOrder,
        (lane, number): (u32, u64),
        chunks: &[Arc<Chunk>],
        documents: Vec<RowRef>,
    ) -> Sequences {
        // All columns of a document have as many tokens.
        let length = |document: &RowRef| chunks[document.chunk as usize].columns[0].row_values(document.row);
        let mut packed = self.spec.how.pack(documents.iter().map(length), self.spec.length);
        order.permute_sequences(lane, number, &mut packed.sequences);
        Sequences { documents, packed }
    }

    /// Writes `sequences` to the rows of `batch` from `at` on. The rows before must already be written.
    ///
    /// # Panics
    /// If the sequences do not fit, or the batch has other columns.
    pub(crate) fn pack<'a>(
        &self,
        batch: &mut BatchMut<'_>,
        at: usize,
        sequences: impl ExactSizeIterator<Item = Sequence<'a>> + Clone,
    ) {
        let length = self.spec.length as usize;
        let mut columns = batch.sections().columns;
        let [segments, positions, ends] = &mut columns[self.tokens.len()..] else {
            unreachable!("the schema has the describing columns")
        };
        let offsets = ends.offsets.as_mut().expect("the ends of pieces are ragged");
        if at == 0 {
            offsets[0] = 0;
        }
        let (row_bytes, mut next_end) = (length * size_of::<i32>(), offsets[at] as usize);
        let rows = segments.values[at * row_bytes..]
            .chunks_exact_mut(row_bytes)
            .zip(positions.values[at * row_bytes..].chunks_exact_mut(row_bytes))
            .zip(&mut offsets[at + 1..]);
        assert!(sequences.len() <= rows.len(), "more sequences than the slot holds");
        for (((segments, positions), offset), sequence) in rows.zip(sequences.clone()) {
            describe(sequence.pieces, segments, positions);
            let mut end = 0;
            let lengths = std::iter::once(0).chain(sequence.pieces.iter().map(|piece| piece.length));
            let out = ends.values[next_end * size_of::<i32>()..].chunks_exact_mut(size_of::<i32>());
            for (out, length) in out.zip(lengths) {
                end += length;
                out.copy_from_slice(&end.to_ne_bytes());
            }
            next_end += sequence.pieces.len() + 1;
            *offset = next_end as u32;
        }
        for (number, (TokenColumn { dtype, pad, .. }, out)) in
            self.tokens.iter().zip(&mut columns).enumerate()
        {
            let (size, row_bytes) = (dtype.bytes(), length * dtype.bytes());
            let mut following = sequences.clone().skip(1);
            let rows = out.values[at * row_bytes..].chunks_exact_mut(row_bytes);
            for (out, sequence) in rows.zip(sequences.clone()) {
                for tokens in following.next().into_iter().flat_map(|next| next.tokens(number, size)) {
                    prefetch(&tokens[..tokens.len().min(PREFETCH_BYTES)]);
                }
                let mut end = 0;
                for tokens in sequence.tokens(number, size) {
                    out[end..end + tokens.len()].copy_from_slice(tokens);
                    end += tokens.len();
                }
                fill(&mut out[end..], pad);
            }
        }
    }

    /// Writes the value of padding to the rows beyond the first `rows`.
    pub(crate) fn pad(&self, batch: &mut BatchMut<'_>, rows: usize) {
        for (TokenColumn { dtype, pad, .. }, out) in self.tokens.iter().zip(batch.sections().columns) {
            fill(&mut out.values[rows * self.spec.length as usize * dtype.bytes()..], pad);
        }
    }
}

impl Sequences {
    /// Their number.
    pub(crate) fn len(&self) -> u32 {
        self.packed.sequences.len() as u32
    }

    /// Sequence `index`; `chunks` are those of the window.
    pub(crate) fn get<'a>(&'a self, index: u32, chunks: &'a [Arc<Chunk>]) -> Sequence<'a> {
        let pieces = &self.packed.sequences[index as usize];
        let pieces = &self.packed.pieces[pieces.start as usize..pieces.end as usize];
        Sequence { chunks, documents: &self.documents, pieces }
    }
}

impl<'a> Sequence<'a> {
    /// The bytes of each piece in a column whose tokens have `size` bytes.
    fn tokens(self, column: usize, size: usize) -> impl Iterator<Item = &'a [u8]> {
        self.pieces.iter().map(move |piece| {
            let RowRef { chunk, row } = self.documents[piece.document as usize];
            let document = self.chunks[chunk as usize].columns[column].row(row as usize);
            &document[piece.start as usize * size..][..piece.length as usize * size]
        })
    }
}

/// Writes the number of each token's piece, and its place in that, for one sequence.
fn describe(pieces: &[Piece], segments: &mut [u8], positions: &mut [u8]) {
    let (segments, _) = segments.as_chunks_mut();
    let (positions, _) = positions.as_chunks_mut();
    let mut end = 0;
    for (number, piece) in (1_i32..).zip(pieces) {
        let tokens = end..end + piece.length as usize;
        segments[tokens.clone()].fill(number.to_ne_bytes());
        for (place, out) in (0_i32..).zip(&mut positions[tokens.clone()]) {
            *out = place.to_ne_bytes();
        }
        end = tokens.end;
    }
    segments[end..].fill([0; 4]);
    positions[end..].fill([0; 4]);
}

/// Fills `out` with copies of `value`.
fn fill(out: &mut [u8], value: &[u8]) {
    if value.iter().all(|&byte| byte == 0) {
        out.fill(0);
    } else {
        out.chunks_exact_mut(value.len()).for_each(|out| out.copy_from_slice(value));
    }
}
