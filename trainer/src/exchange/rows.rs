//! The message with a worker's losses and rows of tables.
//!
//! ```text
//! bytes of losses                                                       u64
//! for each group of tables of each part:  bytes of ids, bytes of rows   u64 each
//! losses                                                                padded with zeros to a u64
//! for each group of tables of each part:  ids, rows                     each padded likewise
//! ```
//!
//! Rows may travel in 16 bits; losses do not.

use millstream_backend::collective::{Buffer, Pool};
use millstream_backend::{Float, RowSums, Scalar};

/// Sections start at multiples of this, so that elements of any type are aligned.
const ALIGNMENT: usize = size_of::<u64>();

/// What a worker has sent.
pub(super) struct Received<S: Scalar> {
    pub(super) losses: Buffer<S>,
    /// The rows of each group of tables of each part.
    pub(super) rows: std::vec::IntoIter<RowSums<S>>,
}

/// A section of a message.
#[derive(Clone, Copy)]
enum Section<'a, S> {
    Bytes(&'a [u8]),
    /// Numbers, in the format in which gradients travel.
    Gradients(&'a [S]),
}

impl<S: Scalar> Section<'_, S> {
    fn len(self, wire: Float) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Gradients(numbers) => numbers.len() * S::wire_bytes(wire),
        }
    }

    fn write(self, wire: Float, place: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => place.copy_from_slice(bytes),
            Self::Gradients(numbers) => S::encode(numbers, wire, place),
        }
    }
}

/// The message with `losses` and all of `sums`, whose rows travel as `wire`, in memory of `pool`.
pub(super) fn pack<'a, S: Scalar>(
    losses: &'a Buffer<S>,
    sums: impl Iterator<Item = &'a RowSums<S>> + Clone,
    wire: Float,
    pool: &mut Pool,
) -> Buffer {
    let of_rows = sums.flat_map(|sums| [Section::Bytes(sums.ids.as_bytes()), Section::Gradients(&sums.rows)]);
    let sections = std::iter::once(Section::Bytes(losses.as_bytes())).chain(of_rows);
    let head = sections.clone().count() * ALIGNMENT;
    let padded = |section: Section<'_, S>| section.len(wire).next_multiple_of(ALIGNMENT);
    let mut message = pool.take(head + sections.clone().map(padded).sum::<usize>());
    let (mut sizes, mut rest) = message.split_at_mut(head);
    for section in sections {
        let (size, place);
        (size, sizes) = sizes.split_at_mut(ALIGNMENT);
        (place, rest) = rest.split_at_mut(padded(section));
        let len = section.len(wire);
        size.copy_from_slice(&(len as u64).to_le_bytes());
        let (place, padding) = place.split_at_mut(len);
        section.write(wire, place);
        padding.fill(0);
    }
    message
}

/// What a message has, with `count` sums; `None` if it has not as many. It keeps the memory of the message, except for rows of
/// 16 bits: these become numbers in memory of `decoded`.
pub(super) fn unpack<S: Scalar>(
    message: Buffer,
    count: usize,
    wire: Float,
    decoded: &mut Pool,
) -> Option<Received<S>> {
    let head = count.checked_mul(2)?.checked_add(1)?.checked_mul(ALIGNMENT)?;
    let mut lens = vec![head];
    for size in message.get(..head)?.chunks_exact(ALIGNMENT) {
        let bytes = usize::try_from(u64::from_le_bytes(size.try_into().ok()?)).ok()?;
        lens.extend([bytes, bytes.checked_next_multiple_of(ALIGNMENT)? - bytes]);
    }
    let all = lens.iter().try_fold(0_usize, |all, len| all.checked_add(*len));
    if all != Some(message.len()) {
        return None;
    }
    let mut sections = message.split(&lens).into_iter().skip(1).step_by(2);
    let losses = sections.next()?.try_into_elements().ok()?;
    let mut rows = Vec::with_capacity(count);
    while let (Some(ids), Some(gradients)) = (sections.next(), sections.next()) {
        let gradients = if travels_whole::<S>(wire) {
            gradients.try_into_elements().ok()?
        } else {
            let count = whole_numbers(gradients.len(), S::wire_bytes(wire))?;
            let mut numbers = decoded.take(count * size_of::<S>()).try_into_elements().ok()?;
            S::decode(&gradients, wire, &mut numbers);
            numbers
        };
        rows.push(RowSums { ids: ids.try_into_elements().ok()?, rows: gradients });
    }
    Some(Received { losses, rows: rows.into_iter() })
}

/// Whether numbers travel as they are in memory.
fn travels_whole<S: Scalar>(wire: Float) -> bool {
    S::wire_bytes(wire) == size_of::<S>()
}

/// How many numbers of `size` bytes these are, if they are whole.
fn whole_numbers(bytes: usize, size: usize) -> Option<usize> {
    bytes.is_multiple_of(size).then(|| bytes / size)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use super::*;

    fn sums(ids: &[u32], rows: &[f32]) -> RowSums<f32> {
        RowSums { ids: Buffer::from(ids), rows: Buffer::from(rows) }
    }

    fn some_sums() -> [RowSums<f32>; 3] {
        [sums(&[1, 5, 9], &[0.5, 1.5, 2.51]), sums(&[0], &[]), sums(&[], &[7.0])]
    }

    fn message(wire: Float) -> Buffer {
        pack(&Buffer::from(&[0.1, 3.0][..]), some_sums().iter(), wire, &mut Pool::default())
    }

    fn unpacked<S: Scalar>(message: Buffer, count: usize, wire: Float) -> Option<Received<S>> {
        unpack(message, count, wire, &mut Pool::default())
    }

    #[test]
    fn losses_and_rows_survive_the_message() {
        for wire in [Float::F32, Float::Bf16, Float::F16] {
            let Received { losses, rows } = unpacked::<f32>(message(wire), 3, wire).unwrap();
            assert_eq!(losses[..], [0.1, 3.0]);
            let found: Vec<RowSums<f32>> = rows.collect();
            assert_eq!(found.len(), 3);
            for (found, sums) in found.iter().zip(&some_sums()) {
                let rounded: Vec<f32> = sums.rows.iter().map(|&x| wire.round(x)).collect();
                assert_eq!((&found.ids[..], &found.rows[..]), (&sums.ids[..], &rounded[..]));
            }
        }
        assert!(message(Float::Bf16).len() < message(Float::F32).len());
    }

    #[test]
    fn decoded_rows_use_memory_again() {
        let mut decoded = Pool::default();
        let mut addresses = || {
            let received = unpack::<f32>(message(Float::F16), 3, Float::F16, &mut decoded).unwrap();
            received.rows.map(|sums| sums.rows.as_ptr()).collect::<BTreeSet<_>>()
        };
        assert_eq!(addresses(), addresses());
    }

    #[test]
    fn other_messages_are_refused() {
        for wire in [Float::F32, Float::Bf16] {
            for wrong in [0, 2, 4, usize::MAX] {
                assert!(unpacked::<f32>(message(wire), wrong, wire).is_none(), "{wrong}");
            }
            for damaged in [0, 3, 7, 9, 20] {
                let mut message = message(wire);
                message[damaged] ^= 0x91;
                assert!(unpacked::<f32>(message, 3, wire).is_none(), "byte {damaged}");
            }
            assert!(unpacked::<f32>(Buffer::default(), 0, wire).is_none());
        }
        // Rows of another type do not fit.
        assert!(unpacked::<f64>(message(Float::F32), 3, Float::F32).is_none());
        let nothing = pack(&Buffer::<f32>::default(), std::iter::empty(), Float::F32, &mut Pool::default());
        assert_eq!(unpacked::<f32>(nothing, 0, Float::F32).unwrap().rows.count(), 0);
    }
}
