//! Memory for what is read, used again and again.
//!
//! A megabyte from the allocator is fresh pages from the kernel each time, which cost more than the copy out
//! of the page cache. So buffers of the two usual sizes go back to a free list when the last slice of them is
//! dropped.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Usual sizes: of what is read from files, and of what is fetched.
const SIZES: [usize; 2] = [super::FILE_BYTES as usize, super::BLOCK_BYTES as usize];
/// Bytes that wait, of each size, to be used again.
const FREE_BYTES: usize = 8 << 20;

/// The free list; clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers(Arc<[Mutex<Vec<Vec<u8>>>; 2]>);

/// Some memory. What it holds at first means nothing.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    length: usize,
    home: Buffers,
}

impl Buffers {
    /// Memory of `length` bytes.
    pub(crate) fn take(&self, length: usize) -> Buffer {
        // A small read does not pin a large buffer.
        let usual = SIZES.iter().position(|&size| length <= size && length > size / 4);
        let memory = match usual {
            None => vec![0; length],
            Some(class) => self.free(class).pop().unwrap_or_else(|| vec![0; SIZES[class]]),
        };
        Buffer { memory, length, home: self.clone() }
    }

    fn free(&self, class: usize) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.0[class].lock().unwrap_or_else(PoisonError::into_inner)
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
        let Some(class) = SIZES.iter().position(|&size| self.memory.len() == size) else { return };
        let mut free = self.home.free(class);
        if (free.len() + 1) * SIZES[class] <= FREE_BYTES {
            free.push(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_its_last_slice_goes() {
        let buffers = Buffers::default();
        let mut buffer = buffers.take(SIZES[0] - 5);
        buffer.as_mut().fill(7);
        let bytes = buffer.into_bytes();
        let slice = bytes.slice(10..20);
        drop(bytes);
        assert_eq!((buffers.free(0).len(), &slice[..]), (0, &[7; 10][..]));
        drop(slice);
        assert_eq!(buffers.free(0).len(), 1);
        assert_eq!(buffers.take(SIZES[0]).as_ref().len(), SIZES[0]);
        drop((buffers.take(10), buffers.take(SIZES[1] + 1)));
        assert_eq!((buffers.free(0).len(), buffers.free(1).len()), (1, 0));
    }

    #[test]
    fn what_waits_is_bounded() {
        let buffers = Buffers::default();
        let taken: Vec<_> = (0..100).map(|_| buffers.take(SIZES[0])).collect();
        drop(taken);
        assert_eq!(buffers.free(0).len(), FREE_BYTES / SIZES[0]);
    }
}
