//! Reusable memory for reads.
//!
//! A megabyte from the allocator is new pages from the kernel each time, which cost more than the copy from the page
//! cache. So buffers return to a free list when their last slice is dropped, and large ones are of huge pages.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use millstream_disk::prefer_huge_pages;
use parking_lot::Mutex;

/// Remote objects are fetched in blocks that start at multiples of this size, or of a smaller power of two if memory is
/// short. Splits that start there too share no block.
pub(crate) const BLOCK_BYTES: u64 = 2 << 20;
/// The maximum size of a read of a local file.
pub(crate) const FILE_BYTES: u64 = 1 << 20;

/// The usual sizes of reads; slightly shorter reads use them too.
const SIZES: [usize; 2] = [FILE_BYTES as usize, BLOCK_BYTES as usize];
const LARGEST: usize = SIZES[1];
/// Smaller buffers are not kept.
const LEAST_BYTES: usize = SIZES[0] / 4;
/// Maximum size of the free list.
const FREE_BYTES: usize = 16 << 20;

/// The free list, shared by its clones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers(Arc<Mutex<Free>>);

#[derive(Debug, Default)]
struct Free {
    /// The buffer that has been unused for longest comes first.
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// A buffer, initially with arbitrary contents.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    length: usize,
    home: Buffers,
}

impl Buffers {
    /// A buffer of `length` bytes.
    pub(crate) fn take(&self, length: usize) -> Buffer {
        // Allocated after the lock is released, at the end of the line above.
        let waiting = self.0.lock().take(length);
        let memory = waiting.unwrap_or_else(|| {
            let usual = SIZES.into_iter().find(|&size| serves(size, length));
            let mut memory = vec![0; usual.unwrap_or_else(|| rounded(length))];
            prefer_huge_pages(&mut memory);
            memory
        });
        Buffer { memory, length, home: self.clone() }
    }
}

/// The size of a buffer for `length` bytes: that, or for a large buffer that is kept at most an eighth more. Row groups of a file differ
/// by some bytes, and one buffer serves for all of them.
fn rounded(length: usize) -> usize {
    let rounded = length.next_multiple_of((length.next_power_of_two() / 16).max(1));
    if (LARGEST..=FREE_BYTES).contains(&rounded) { rounded } else { length }
}

/// Whether a buffer of `size` bytes may serve for `length`: a small read does not occupy a large buffer.
fn serves(size: usize, length: usize) -> bool {
    length <= size && length > size / 2
}

impl Free {
    fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        // The last one returned is most likely in a cache.
        let place = self.waiting.iter().rposition(|memory| serves(memory.len(), length))?;
        let memory = self.waiting.remove(place)?;
        self.bytes -= memory.len();
        Some(memory)
    }

    /// Keeps `memory` and removes the longest unused buffers above the limit. Returns the buffers to free.
    fn keep(&mut self, memory: Vec<u8>) -> Vec<Vec<u8>> {
        self.bytes += memory.len();
        self.waiting.push_back(memory);
        let mut gone = Vec::new();
        while self.bytes > FREE_BYTES
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.bytes -= oldest.len();
            gone.push(oldest);
        }
        gone
    }
}

impl Buffer {
    pub(crate) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if memory.len() >= LEAST_BYTES {
            // Freed after the lock is released, at the end of the line above.
            let gone = self.home.0.lock().keep(memory);
            drop(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(buffers: &Buffers) -> Vec<usize> {
        let free = buffers.0.lock();
        let sizes: Vec<usize> = free.waiting.iter().map(Vec::len).collect();
        assert_eq!(free.bytes, sizes.iter().sum::<usize>());
        sizes
    }

    #[test]
    fn memory_returns_when_its_last_slice_is_dropped() {
        let buffers = Buffers::default();
        let mut buffer = buffers.take(SIZES[0] - 5);
        buffer.as_mut().fill(7);
        let bytes = buffer.into_bytes();
        let slice = bytes.slice(10..20);
        drop(bytes);
        assert_eq!((waiting(&buffers), &slice[..]), (vec![], &[7; 10][..]));
        drop(slice);
        assert_eq!(waiting(&buffers), [SIZES[0]]);
        let again = buffers.take(SIZES[0]);
        assert_eq!((again.as_ref().len(), waiting(&buffers)), (SIZES[0], vec![]));
    }

    #[test]
    fn small_buffers_are_not_kept_and_larger_ones_are() {
        let buffers = Buffers::default();
        drop(buffers.take(LEAST_BYTES - 1));
        assert!(waiting(&buffers).is_empty());
        // Ten steps of 512 KiB.
        let (odd, size) = (5_000_001, 10 << 19);
        drop((buffers.take(odd), buffers.take(SIZES[1])));
        assert_eq!(waiting(&buffers), [size, SIZES[1]]);
        for near in [odd - 1000, odd + 1000] {
            assert_eq!(buffers.take(near).memory.len(), size);
            assert_eq!(waiting(&buffers), [SIZES[1], size]);
        }
        // Too large for one use, too small for the other.
        assert_eq!(buffers.take(odd / 8).memory.len(), SIZES[0]);
    }

    #[test]
    fn the_free_list_is_bounded() {
        let buffers = Buffers::default();
        let taken: Vec<_> = (0..100).map(|_| buffers.take(SIZES[0])).collect();
        drop(taken);
        assert_eq!(waiting(&buffers).len(), FREE_BYTES / SIZES[0]);
        // The most recently returned buffers are kept.
        drop(buffers.take(FREE_BYTES - 1));
        assert_eq!(waiting(&buffers), [FREE_BYTES]);
        drop(buffers.take(FREE_BYTES + 1));
        assert!(waiting(&buffers).is_empty());
    }
}
