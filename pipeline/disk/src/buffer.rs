//! Memory that a device can transfer to and from directly.

use std::fmt;
use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Offsets, lengths and addresses of direct transfers are multiples of this. It suffices for all common devices
/// and file systems (512 bytes would do for many).
pub const ALIGNMENT: usize = 4096;

/// An aligned byte buffer. All of its capacity is initialised, so its length can change freely.
pub struct AlignedBuffer {
    /// The capacity, at least one block. A `Vec` keeps its memory in place when it is moved.
    blocks: Vec<Block>,
    len: usize,
}

/// Memory in units of the alignment.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Block([u8; ALIGNMENT]);

impl AlignedBuffer {
    /// A buffer of `len` zeros.
    ///
    /// # Panics
    /// When `len` exceeds the maximum size of an allocation.
    pub fn zeroed(len: usize) -> Self {
        let blocks = Box::new_zeroed_slice(len.max(1).div_ceil(ALIGNMENT));
        // SAFETY: the allocation is zeroed, and a block is an array of bytes, for which zero is valid.
        let blocks: Box<[Block]> = unsafe { blocks.assume_init() };
        Self { blocks: blocks.into_vec(), len }
    }

    /// Resizes to `len` bytes of unspecified content. The memory is reused if its capacity suffices.
    #[must_use]
    pub fn with_len(self, len: usize) -> Self {
        if len > self.capacity() {
            return Self::zeroed(len);
        }
        Self { len, ..self }
    }

    /// The largest length that needs no reallocation.
    pub fn capacity(&self) -> usize {
        self.blocks.len() * ALIGNMENT
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.blocks.as_bytes()[..self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.blocks.as_mut_bytes()[..self.len]
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} of {} bytes)", self.len, self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_reuse_their_memory() {
        for len in [0, 1, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1, 1 << 20] {
            let mut buffer = AlignedBuffer::zeroed(len);
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % ALIGNMENT), (len, 0));
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            let (start, capacity) = (buffer.as_ptr(), buffer.capacity());
            let buffer = buffer.with_len(capacity);
            assert_eq!((buffer.as_ptr(), buffer.len()), (start, capacity));
            assert!(buffer[..len].iter().all(|&byte| byte == 7));
            let larger = buffer.with_len(capacity + 1);
            assert_eq!(larger.len(), capacity + 1);
        }
    }
}
