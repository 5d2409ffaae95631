//! Memory that a device can transfer to and from directly.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// What offsets, lengths and addresses of direct transfers are multiples of: enough for every common device
/// and file system (512 bytes would do for many).
pub const ALIGNMENT: usize = 4096;

/// Bytes at an aligned address. All of its capacity is initialised, so its length may change freely.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
    /// A multiple of [`ALIGNMENT`], and not 0.
    capacity: usize,
}

// SAFETY: it owns its memory, as a `Vec<u8>` does.
unsafe impl Send for AlignedBuffer {}
// SAFETY: through a shared reference it can only be read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `len` zeros.
    ///
    /// # Panics
    /// When `len` exceeds what an allocation may have.
    pub fn zeroed(len: usize) -> Self {
        let capacity = len.max(1).checked_next_multiple_of(ALIGNMENT).expect("a length that memory has");
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, len, capacity }
    }

    /// The same memory, if there is enough of it, with `len` bytes: which ones is not said.
    #[must_use]
    pub fn with_len(self, len: usize) -> Self {
        if len > self.capacity {
            return Self::zeroed(len);
        }
        let mut resized = self;
        resized.len = len;
        resized
    }

    /// Bytes it can have without moving.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT).expect("a length that memory has")
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with this layout, and nothing else owns it.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` is at most the capacity, all of which is allocated and initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the exclusive reference makes it the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} of {} bytes)", self.len, self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zero_and_keeps_its_memory_while_it_fits() {
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
