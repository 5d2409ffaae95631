//! Owned memory of collective operations.
//!
//! An engine may read a sent buffer, and write a received one, until the operation has ended, whatever happens to the
//! caller. So operations own their buffers; borrowed slices could be freed too early. A [`Buffer`] is an exclusive range
//! of an allocation: it splits into parts, which ranks exchange without a copy, and joins again afterwards.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::cpu::memory::Memory;

/// The format of a buffer's elements. The codes are those of the message headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Bytes without further structure.
    Bytes = 0,
    /// Single-precision numbers.
    F32 = 1,
    /// 32-bit unsigned integers, such as ids.
    U32 = 2,
    /// 64-bit unsigned integers.
    U64 = 3,
    /// Double-precision numbers.
    F64 = 4,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::F32 => "f32",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::F64 => "f64",
        })
    }
}

/// A type of buffer elements.
pub trait Element: Copy + FromBytes + IntoBytes + Immutable + KnownLayout + Send + Sync + 'static {
    /// Its format.
    const FORMAT: Format;
}

impl Element for u8 {
    const FORMAT: Format = Format::Bytes;
}

impl Element for f32 {
    const FORMAT: Format = Format::F32;
}

impl Element for u32 {
    const FORMAT: Format = Format::U32;
}

impl Element for u64 {
    const FORMAT: Format = Format::U64;
}

impl Element for f64 {
    const FORMAT: Format = Format::F64;
}

/// Owned elements: an exclusive range of an allocation that is aligned to a cache line.
pub struct Buffer<T: Element = u8> {
    // Invariant: no other buffer of this allocation contains a byte of this range, which lies within the allocation and
    // is aligned to `T`.
    allocation: Arc<Memory>,
    start_bytes: usize,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        const { assert!(align_of::<T>() <= align_of::<u64>()) };
        let bytes = len.checked_mul(size_of::<T>()).expect("a buffer smaller than the address space");
        let allocation = Arc::new(Memory::zeroed(bytes.div_ceil(size_of::<f32>())));
        Self { allocation, start_bytes: 0, len, element: PhantomData }
    }

    /// Changes the length. The memory stays the same if it is large enough and no other buffer shares it; the elements are
    /// then arbitrary, otherwise zeros.
    pub fn resize(&mut self, len: usize) {
        let bytes = len.checked_mul(size_of::<T>()).expect("a buffer smaller than the address space");
        let resized = std::mem::take(self).into_bytes().resized(bytes);
        let resized = resized.and_then(|bytes| bytes.try_into_elements().ok());
        *self = resized.unwrap_or_else(|| Self::zeroed(len));
    }

    /// Shortens the buffer to its first `len` elements.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "a prefix of {} elements", self.len);
        self.len = len;
    }

    /// Splits the buffer into consecutive parts, without a copy.
    ///
    /// # Panics
    /// If the lengths do not add up to the buffer's.
    pub fn split(self, lens: &[usize]) -> Vec<Self> {
        assert_eq!(lens.iter().sum::<usize>(), self.len, "the parts of a buffer");
        let mut start_bytes = self.start_bytes;
        let part = |&len: &usize| {
            let part = Self { allocation: self.allocation.clone(), start_bytes, len, element: PhantomData };
            start_bytes += len * size_of::<T>();
            part
        };
        lens.iter().map(part).collect()
    }

    /// Joins the parts of a split buffer, in their order.
    ///
    /// # Panics
    /// If they are not consecutive parts of one buffer, or there are none.
    pub fn join(parts: Vec<Self>) -> Self {
        let mut parts = parts.into_iter();
        let mut whole = parts.next().expect("a buffer has parts");
        for part in parts {
            let end = whole.start_bytes + whole.len * size_of::<T>();
            let is_next = Arc::ptr_eq(&part.allocation, &whole.allocation) && part.start_bytes == end;
            assert!(is_next, "consecutive parts of one buffer");
            whole.len += part.len;
        }
        whole
    }

    /// The elements as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        IntoBytes::as_bytes(&self[..])
    }

    /// The same memory as bytes.
    pub fn into_bytes(self) -> Buffer {
        let len = self.len * size_of::<T>();
        Buffer { allocation: self.allocation, start_bytes: self.start_bytes, len, element: PhantomData }
    }
}

impl Buffer {
    /// The same memory as elements of `T`, or the bytes again if their number or alignment does not fit.
    pub fn try_into_elements<T: Element>(self) -> Result<Buffer<T>, Self> {
        let fits =
            self.len.is_multiple_of(size_of::<T>()) && self.start_bytes.is_multiple_of(align_of::<T>());
        if !fits {
            return Err(self);
        }
        let len = self.len / size_of::<T>();
        Ok(Buffer { allocation: self.allocation, start_bytes: self.start_bytes, len, element: PhantomData })
    }

    /// The first `len` bytes of the whole allocation, if it is that large and no other buffer shares it.
    fn resized(mut self, len: usize) -> Option<Self> {
        let is_unshared = Arc::get_mut(&mut self.allocation).is_some();
        (is_unshared && len <= capacity_bytes(&self.allocation)).then_some(Self {
            start_bytes: 0,
            len,
            ..self
        })
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: by the invariant, the range lies in the allocation, is aligned, and no other buffer writes it. The
        // allocation is initialized, and any bytes are valid elements.
        unsafe {
            let start = self.allocation.start().cast::<u8>().add(self.start_bytes);
            std::slice::from_raw_parts(start.cast().as_ptr(), self.len)
        }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; and only this buffer, borrowed exclusively, reads or writes the range.
        unsafe {
            let start = self.allocation.start().cast::<u8>().add(self.start_bytes);
            std::slice::from_raw_parts_mut(start.cast().as_ptr(), self.len)
        }
    }
}

impl<T: Element> Default for Buffer<T> {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl<T: Element> From<&[T]> for Buffer<T> {
    fn from(elements: &[T]) -> Self {
        let mut buffer = Self::zeroed(elements.len());
        buffer.copy_from_slice(elements);
        buffer
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} x {})", self.len, type_name::<T>())
    }
}

/// Memory for buffers, which is used again once they have been dropped: a fresh allocation costs a page fault per page, which
/// for large messages takes as long as a copy.
///
/// It has at most as many allocations as there were buffers in use at once.
#[derive(Default)]
pub struct Pool {
    allocations: Vec<Arc<Memory>>,
}

impl Pool {
    /// A buffer of `bytes` bytes with arbitrary contents.
    pub fn take(&mut self, bytes: usize) -> Buffer {
        let all = self.allocations.iter_mut();
        let unused = all.filter_map(|allocation| Arc::get_mut(allocation).is_some().then_some(allocation));
        let (large, small): (Vec<_>, Vec<_>) = unused.partition(|unused| bytes <= capacity_bytes(unused));
        if let Some(smallest) = large.into_iter().min_by_key(|unused| unused.len()) {
            let allocation = smallest.clone();
            return Buffer { allocation, start_bytes: 0, len: bytes, element: PhantomData };
        }
        let new = Buffer::zeroed(bytes);
        match small.into_iter().max_by_key(|unused| unused.len()) {
            Some(largest) => *largest = new.allocation.clone(),
            None => self.allocations.push(new.allocation.clone()),
        }
        new
    }
}

/// Size of an allocation, in bytes.
fn capacity_bytes(allocation: &Memory) -> usize {
    allocation.len() * size_of::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_the_memory_of_the_whole() {
        let whole = Buffer::from([1.0_f32, 2.0, 3.0, 4.0, 5.0].as_slice());
        let start = whole.as_ptr();
        let mut parts = whole.split(&[2, 0, 3]);
        assert_eq!(
            (&parts[0][..], &parts[1][..], &parts[2][..]),
            (&[1.0, 2.0][..], &[][..], &[3.0, 4.0, 5.0][..])
        );
        parts[2][0] = 30.0;
        parts[0][1] = 20.0;
        let whole = Buffer::join(parts);
        assert_eq!((&whole[..], whole.as_ptr()), (&[1.0, 20.0, 30.0, 4.0, 5.0][..], start));
    }

    #[test]
    #[should_panic(expected = "consecutive parts")]
    fn parts_of_different_buffers_do_not_join() {
        let parts = |_| Buffer::<u8>::zeroed(4).split(&[2, 2]);
        let [first, second] = [0, 1].map(parts);
        Buffer::join(first.into_iter().take(1).chain(second.into_iter().skip(1)).collect());
    }

    #[test]
    fn bytes_become_elements_if_size_and_alignment_fit() {
        let bytes = Buffer::from([1_u64, 2].as_slice()).into_bytes();
        assert_eq!(bytes.len(), 16);
        let numbers = bytes.try_into_elements::<u64>().expect("aligned");
        assert_eq!(numbers[..], [1, 2]);
        let mut parts = numbers.into_bytes().split(&[4, 12]);
        let odd = parts.remove(1);
        let odd = odd.try_into_elements::<u64>().expect_err("12 bytes from byte 4");
        assert_eq!(odd.try_into_elements::<u32>().expect("three integers")[..], [0, 2, 0]);
    }

    #[test]
    fn a_resized_buffer_keeps_memory_that_is_large_enough_and_unshared() {
        let mut buffer = Buffer::<u64>::zeroed(100);
        let start = buffer.as_ptr();
        for len in [0, 100, 7] {
            buffer.resize(len);
            assert_eq!((buffer.as_ptr(), buffer.len()), (start, len));
        }
        buffer.truncate(3);
        assert_eq!((buffer.as_ptr(), buffer.len()), (start, 3));
        buffer.resize(1000);
        assert_eq!(buffer[..], [0; 1000]);
        let mut parts = buffer.split(&[10, 990]);
        let (start, shared) = (parts[0].as_ptr(), parts.remove(1));
        parts[0].resize(5);
        assert_ne!(parts[0].as_ptr(), start, "other parts are in use");
        drop(shared);
    }

    #[test]
    fn a_pool_uses_the_smallest_memory_that_suffices_again() {
        let mut pool = Pool::default();
        let (small, large) = (pool.take(100), pool.take(1000));
        let (at_small, at_large) = (small.as_ptr(), large.as_ptr());
        drop((small, large));
        let again = pool.take(60);
        assert_eq!((again.as_ptr(), again.len()), (at_small, 60));
        assert_eq!(pool.take(999).as_ptr(), at_large);

        let mut parts = again.split(&[10, 50]);
        let kept = parts.remove(1);
        drop(parts);
        let other = pool.take(60);
        assert_ne!(other.as_ptr(), at_small, "a part of it is in use");
        drop(kept);
    }

    #[test]
    fn a_pool_replaces_memory_that_is_too_small() {
        let mut pool = Pool::default();
        for bytes in [12, 3000, 200, 5000] {
            assert_eq!(pool.take(bytes).len(), bytes);
        }
        let sizes = |pool: &Pool| -> Vec<usize> {
            pool.allocations.iter().map(|allocation| capacity_bytes(allocation)).collect()
        };
        assert_eq!(sizes(&pool), [5000]);
        let in_use = [pool.take(4000), pool.take(8)];
        assert_eq!(sizes(&pool), [5000, 8]);
        drop(in_use);
        drop(pool.take(6000));
        assert_eq!(sizes(&pool), [6000, 8], "the largest of those that are too small");
    }
}
