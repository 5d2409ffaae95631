//! Typed views of a slot's memory.
//!
//! [`BatchMut`] is what a packer fills and [`BatchRef`] what a trainer reads. Both cover exactly one
//! slot, wherever it lies: in the ring ([`crate::ring`]) or on the heap ([`BatchBuffer`]).

use std::sync::Arc;

use crate::layout::{ALIGNMENT, HEADER_BYTES, Section, SlotLayout};

/// Which stream of the job a batch belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stream {
    /// A step is taken on it.
    Train = 0,
    /// It is scored, and counts towards the metrics.
    Eval = 1,
}

/// What a batch says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Which stream it belongs to.
    pub stream: Stream,
    /// The epoch, from 0; for an eval batch, the epoch it follows.
    pub epoch: u32,
    /// The batch's number within its pass over the data, from 0.
    pub batch: u64,
    /// Rows held, at most the schema's: all rows of the batch, or where several hosts train together those
    /// that are this host's, which may be none.
    pub rows: u32,
    /// Rows of the global batch, over all hosts: what a mean over the batch is divided by.
    pub global_rows: u32,
    /// Whether it ends its pass over the data.
    pub last: bool,
}

/// A slot being filled.
///
/// Sections have room for the schema's full row count; [`BatchMut::set_header`] says how many count.
pub struct BatchMut<'a> {
    bytes: &'a mut [u8],
    layout: &'a SlotLayout,
}

/// All sections of a slot at once, for filling them side by side.
pub struct Sections<'a> {
    /// `[L, B]`
    pub labels: &'a mut [f32],
    /// `[B]`; present when the schema is weighted.
    pub weights: Option<&'a mut [f32]>,
    /// `[B, D]`, row-major.
    pub dense: &'a mut [f32],
    /// `[F, B]`
    pub ids: &'a mut [u32],
    /// For each ragged feature: offsets `[B + 1]` and values `[B * maximum]`.
    pub ragged: Vec<(&'a mut [u32], &'a mut [u32])>,
    /// For each ragged feature that is weighted, the weights of its values, `[B * maximum]`.
    pub ragged_weights: Vec<Option<&'a mut [f32]>>,
}

/// A slot being read.
#[derive(Clone, Copy)]
pub struct BatchRef<'a> {
    bytes: &'a [u8],
    layout: &'a SlotLayout,
}

/// A batch on the heap, for tests, tools and measurements without a ring.
pub struct BatchBuffer {
    layout: Arc<SlotLayout>,
    storage: Vec<Block>,
}

/// Heap memory in units of the slot's alignment.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
struct Block([u8; ALIGNMENT]);

/// The header's bytes within a slot: seven numbers, the rest zero.
mod header {
    pub(super) const STREAM: usize = 0;
    pub(super) const EPOCH: usize = 4;
    pub(super) const BATCH: usize = 8;
    pub(super) const ROWS: usize = 16;
    pub(super) const LAST: usize = 20;
    pub(super) const POSITION_BYTES: usize = 24;
    pub(super) const GLOBAL_ROWS: usize = 28;
}

impl<'a> BatchMut<'a> {
    /// Views `bytes` as a slot of `layout`.
    ///
    /// # Panics
    /// When `bytes` is not exactly one slot at the slot's alignment.
    pub fn new(bytes: &'a mut [u8], layout: &'a SlotLayout) -> Self {
        check_slot(bytes, layout);
        Self { bytes, layout }
    }

    /// The slot's layout.
    pub fn layout(&self) -> &SlotLayout {
        self.layout
    }

    /// Writes the header.
    ///
    /// # Panics
    /// When `header.global_rows` is more than the schema's rows, or less than `header.rows`.
    pub fn set_header(&mut self, header: &BatchHeader) {
        assert!(header.global_rows <= self.layout.schema().rows, "more rows than the slot holds");
        assert!(header.rows <= header.global_rows, "more rows here than on all hosts");
        self.put(header::STREAM, &(header.stream as u32).to_ne_bytes());
        self.put(header::EPOCH, &header.epoch.to_ne_bytes());
        self.put(header::BATCH, &header.batch.to_ne_bytes());
        self.put(header::ROWS, &header.rows.to_ne_bytes());
        self.put(header::GLOBAL_ROWS, &header.global_rows.to_ne_bytes());
        self.put(header::LAST, &u32::from(header.last).to_ne_bytes());
    }

    /// Writes the encoded position of the job in its data after this batch.
    ///
    /// # Panics
    /// When it is longer than the schema's `position_bytes`.
    pub fn set_position(&mut self, position: &[u8]) {
        let section = self.layout.position;
        assert!(position.len() <= section.bytes, "position longer than the slot's room for it");
        self.put(section.offset, position);
        let bytes = u32::try_from(position.len()).expect("bounded by a u32 in the schema");
        self.put(header::POSITION_BYTES, &bytes.to_ne_bytes());
    }

    /// All sections at once.
    pub fn sections(&mut self) -> Sections<'_> {
        let layout = self.layout;
        let mut rest: &mut [u8] = self.bytes;
        let mut taken = 0;
        let mut take = |section: Section| {
            let bytes = std::mem::take(&mut rest);
            let (_, bytes) = bytes.split_at_mut(section.offset - taken);
            let (section_bytes, tail) = bytes.split_at_mut(section.bytes);
            rest = tail;
            taken = section.offset + section.bytes;
            section_bytes
        };
        let labels = as_f32_mut(take(layout.labels));
        let weights = layout.weights.map(|section| as_f32_mut(take(section)));
        let (dense, ids) = (as_f32_mut(take(layout.dense)), as_u32_mut(take(layout.ids)));
        let ragged = layout.ragged.iter().map(|section| {
            let values = (as_u32_mut(take(section.offsets)), as_u32_mut(take(section.values)));
            (values, section.weights.map(|section| as_f32_mut(take(section))))
        });
        let (ragged, ragged_weights) = ragged.unzip();
        Sections { labels, weights, dense, ids, ragged, ragged_weights }
    }

    /// The slot as its reader will see it.
    pub fn as_ref(&self) -> BatchRef<'_> {
        BatchRef { bytes: self.bytes, layout: self.layout }
    }

    fn put(&mut self, offset: usize, value: &[u8]) {
        self.bytes[offset..offset + value.len()].copy_from_slice(value);
    }
}

impl<'a> BatchRef<'a> {
    /// Views `bytes` as a slot of `layout`.
    ///
    /// # Panics
    /// When `bytes` is not exactly one slot at the slot's alignment.
    pub fn new(bytes: &'a [u8], layout: &'a SlotLayout) -> Self {
        check_slot(bytes, layout);
        Self { bytes, layout }
    }

    /// The slot's layout.
    pub fn layout(&self) -> &'a SlotLayout {
        self.layout
    }

    /// The whole slot.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What the batch says of itself.
    pub fn header(&self) -> BatchHeader {
        let most = self.layout.schema().rows;
        let rows = self.word(header::ROWS).min(most);
        BatchHeader {
            stream: if self.word(header::STREAM) == Stream::Eval as u32 {
                Stream::Eval
            } else {
                Stream::Train
            },
            epoch: self.word(header::EPOCH),
            batch: u64::from_ne_bytes(self.array(header::BATCH)),
            rows,
            global_rows: self.word(header::GLOBAL_ROWS).clamp(rows, most),
            last: self.word(header::LAST) != 0,
        }
    }

    /// Rows held.
    pub fn rows(&self) -> usize {
        self.header().rows as usize
    }

    /// Label `label` of each row, `[rows]`.
    ///
    /// # Panics
    /// When there is no such label.
    pub fn labels(&self, label: usize) -> &'a [f32] {
        let schema = self.layout.schema();
        assert!(label < schema.label_count(), "no label {label}");
        &as_f32(self.section(self.layout.labels))[label * schema.rows as usize..][..self.rows()]
    }

    /// Row weights, `[rows]`, when the schema is weighted.
    pub fn weights(&self) -> Option<&'a [f32]> {
        self.layout.weights.map(|section| &as_f32(self.section(section))[..self.rows()])
    }

    /// Dense values, `[rows, D]`, row-major.
    pub fn dense(&self) -> &'a [f32] {
        &as_f32(self.section(self.layout.dense))[..self.rows() * self.layout.schema().dense.len()]
    }

    /// The ids of single-id feature `feature`, `[rows]`.
    ///
    /// # Panics
    /// When there is no such feature.
    pub fn ids(&self, feature: usize) -> &'a [u32] {
        let stride = self.layout.schema().rows as usize;
        assert!(feature < self.layout.schema().ids.len(), "no id feature {feature}");
        &as_u32(self.section(self.layout.ids))[feature * stride..][..self.rows()]
    }

    /// Offsets `[rows + 1]` and values of ragged feature `feature`.
    ///
    /// # Panics
    /// When there is no such feature.
    pub fn ragged(&self, feature: usize) -> (&'a [u32], &'a [u32]) {
        let section = self.layout.ragged[feature];
        let offsets = &as_u32(self.section(section.offsets))[..self.rows() + 1];
        let values = as_u32(self.section(section.values));
        let used = offsets.last().map_or(0, |&end| end as usize).min(values.len());
        (offsets, &values[..used])
    }

    /// The weights of ragged feature `feature`, when it is weighted: as many of the first as it has values count.
    ///
    /// # Panics
    /// When there is no such feature.
    pub fn ragged_weights(&self, feature: usize) -> Option<&'a [f32]> {
        self.layout.ragged[feature].weights.map(|section| as_f32(self.section(section)))
    }

    /// The encoded position of the job in its data after this batch.
    pub fn position(&self) -> &'a [u8] {
        let section = self.layout.position;
        let used = (self.word(header::POSITION_BYTES) as usize).min(section.bytes);
        &self.section(section)[..used]
    }

    fn section(&self, section: Section) -> &'a [u8] {
        &self.bytes[section.offset..section.offset + section.bytes]
    }

    fn word(&self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.array(offset))
    }

    fn array<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.bytes[offset..offset + N].try_into().expect("a slice of N bytes")
    }
}

impl BatchBuffer {
    /// An empty (zeroed) batch of `layout`.
    pub fn new(layout: Arc<SlotLayout>) -> Self {
        let storage = vec![Block([0; ALIGNMENT]); layout.slot_bytes() / ALIGNMENT];
        Self { layout, storage }
    }

    /// The batch, to fill.
    pub fn as_mut(&mut self) -> BatchMut<'_> {
        let length = self.storage.len() * ALIGNMENT;
        // SAFETY: `Block` is a byte array without padding; the slice covers the vector's elements and
        // borrows it mutably for as long as it lives.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.storage.as_mut_ptr().cast::<u8>(), length) };
        BatchMut::new(bytes, &self.layout)
    }

    /// The batch, to read.
    pub fn as_ref(&self) -> BatchRef<'_> {
        let length = self.storage.len() * ALIGNMENT;
        // SAFETY: as in `as_mut`, borrowed shared.
        let bytes = unsafe { std::slice::from_raw_parts(self.storage.as_ptr().cast::<u8>(), length) };
        BatchRef::new(bytes, &self.layout)
    }
}

fn check_slot(bytes: &[u8], layout: &SlotLayout) {
    const { assert!(HEADER_BYTES >= header::GLOBAL_ROWS + 4) };
    assert_eq!(bytes.len(), layout.slot_bytes(), "a slice of exactly one slot");
    assert!(bytes.as_ptr().addr().is_multiple_of(ALIGNMENT), "a slot at its alignment");
}

/// Declares a cast between a section's bytes and its items. Every bit pattern is a valid item, and
/// sections are aligned to [`ALIGNMENT`] and a multiple of the item's size by construction.
macro_rules! cast {
    ($shared:ident, $exclusive:ident, $item:ty) => {
        fn $shared(bytes: &[u8]) -> &[$item] {
            // SAFETY: any bytes are valid items; `align_to` splits off what is not aligned.
            let (head, items, tail) = unsafe { bytes.align_to::<$item>() };
            assert!(head.is_empty() && tail.is_empty(), "a section is aligned and whole");
            items
        }

        fn $exclusive(bytes: &mut [u8]) -> &mut [$item] {
            // SAFETY: any bytes are valid items and any items valid bytes.
            let (head, items, tail) = unsafe { bytes.align_to_mut::<$item>() };
            assert!(head.is_empty() && tail.is_empty(), "a section is aligned and whole");
            items
        }
    };
}

cast!(as_f32, as_f32_mut, f32);
cast!(as_u32, as_u32_mut, u32);
