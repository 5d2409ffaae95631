//! The message with a worker's rows of tables.
//!
//! ```text
//! for each group of tables of each part:  bytes of ids, bytes of rows   u64 each
//! for each group of tables of each part:  ids, rows                     each padded with zeros to a u64
//! ```

use millstream_backend::collective::{Buffer, Pool};
use millstream_backend::{RowSums, Scalar};

/// Sections start at multiples of this, so that elements of any type are aligned.
const ALIGNMENT: usize = size_of::<u64>();

/// The message with all of `sums`, in memory of `pool`.
pub(super) fn pack<'a, S: Scalar>(
    sums: impl Iterator<Item = &'a RowSums<S>> + Clone,
    pool: &mut Pool,
) -> Buffer {
    let sections = sums.flat_map(|sums| [sums.ids.as_bytes(), sums.rows.as_bytes()]);
    let head = sections.clone().count() * ALIGNMENT;
    let padded = |section: &[u8]| section.len().next_multiple_of(ALIGNMENT);
    let mut message = pool.take(head + sections.clone().map(padded).sum::<usize>());
    let (mut sizes, mut rest) = message.split_at_mut(head);
    for section in sections {
        let (size, place);
        (size, sizes) = sizes.split_at_mut(ALIGNMENT);
        (place, rest) = rest.split_at_mut(padded(section));
        size.copy_from_slice(&(section.len() as u64).to_le_bytes());
        let (place, padding) = place.split_at_mut(section.len());
        place.copy_from_slice(section);
        padding.fill(0);
    }
    message
}

/// The `count` sums of a message, which keep its memory; `None` if it has not as many.
pub(super) fn unpack<S: Scalar>(message: Buffer, count: usize) -> Option<std::vec::IntoIter<RowSums<S>>> {
    let head = count.checked_mul(2 * ALIGNMENT)?;
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
    let mut sums = Vec::with_capacity(count);
    while let (Some(ids), Some(rows)) = (sections.next(), sections.next()) {
        sums.push(RowSums { ids: ids.try_into_elements().ok()?, rows: rows.try_into_elements().ok()? });
    }
    Some(sums.into_iter())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn rows_survive_the_message() {
        let sums = |ids: &[u32], rows: &[f32]| RowSums { ids: Buffer::from(ids), rows: Buffer::from(rows) };
        let all = [sums(&[1, 5, 9], &[0.5, 1.5, 2.5]), sums(&[0], &[]), sums(&[], &[7.0])];
        let message = || pack(all.iter(), &mut Pool::default());
        let found: Vec<RowSums<f32>> = unpack(message(), 3).unwrap().collect();
        assert_eq!(found.len(), 3);
        for (found, sums) in found.iter().zip(&all) {
            assert_eq!((&found.ids[..], &found.rows[..]), (&sums.ids[..], &sums.rows[..]));
        }
        for wrong in [0, 2, 4, usize::MAX] {
            assert!(unpack::<f32>(message(), wrong).is_none(), "{wrong}");
        }
        // Rows of another type do not fit.
        assert!(unpack::<f64>(message(), 3).is_none());
        for damaged in [0, 3, 7] {
            let mut message = message();
            message[damaged] ^= 0x90;
            assert!(unpack::<f32>(message, 3).is_none(), "byte {damaged}");
        }
        assert!(unpack::<f32>(Buffer::default(), 1).is_none());
        assert_eq!(unpack::<f32>(Buffer::default(), 0).unwrap().count(), 0);
    }
}
