//! Memory of the CPU backend: aligned to cache lines, in huge pages where that pays, and divisible
//! among the tasks of one operation.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use millstream_batch::cache_lines::{LINE_BYTES, prefetch_line};

/// Bytes of a huge page.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Floats in a cache line.
pub(crate) const LINE: usize = LINE_BYTES / size_of::<f32>();

/// Zeroed floats that start at a cache line.
///
/// A table is read at random rows: with 4 KiB pages nearly every row would miss the TLB as well, so
/// memory of at least one huge page is aligned to huge pages and the kernel is asked for them.
pub(crate) struct Memory {
    start: NonNull<f32>,
    len: usize,
    layout: Layout,
}

// SAFETY: `Memory` owns its allocation, as `Box<[f32]>` does.
unsafe impl Send for Memory {}
// SAFETY: shared access reads, except through `parts_of_shared`, whose caller guarantees that no two accesses to the
// same numbers overlap in time.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn zeroed(len: usize) -> Self {
        let bytes = (len * size_of::<f32>()).max(LINE_BYTES);
        let huge = bytes >= HUGE_PAGE_BYTES;
        let align = if huge { HUGE_PAGE_BYTES } else { LINE_BYTES };
        let layout = Layout::from_size_align(bytes, align).expect("a table smaller than the address space");
        // SAFETY: the layout is not of size zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        if huge {
            let whole_pages = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            // A kernel without huge pages refuses; the memory is as good, only slower.
            // SAFETY: the range is within the allocation, and this advice keeps its contents.
            let _ = unsafe {
                rustix::mm::madvise(start.as_ptr().cast(), whole_pages, rustix::mm::Advice::LinuxHugepage)
            };
        }
        // SAFETY: the allocation is `bytes` long.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Self { start: start.cast(), len, layout }
    }

    pub(crate) fn as_slice(&self) -> &[f32] {
        // SAFETY: the allocation holds `len` initialised floats, borrowed shared with `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as in `as_slice`, borrowed exclusively with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The memory, for several tasks to write to.
    pub(crate) fn parts(&mut self) -> Parts<'_, f32> {
        Parts { start: self.start, len: self.len, exclusive: PhantomData }
    }

    /// As [`Memory::parts`], of memory whose exclusive borrow is held elsewhere.
    ///
    /// # Safety
    /// While the result lives, the memory is reached through results of this function only, and as for
    /// [`Parts::get`] over all of them together.
    pub(crate) unsafe fn parts_of_shared(&self) -> Parts<'_, f32> {
        Parts { start: self.start, len: self.len, exclusive: PhantomData }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) };
    }
}

/// An exclusively borrowed slice that tasks running at once take disjoint parts of.
pub(crate) struct Parts<'a, T> {
    start: NonNull<T>,
    len: usize,
    exclusive: PhantomData<&'a mut [T]>,
}

// SAFETY: `Parts` only hands out `&mut [T]`, disjoint by the contract of `get`, which may cross threads
// when `T` may.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: NonNull::from(&mut *slice).cast(), len: slice.len(), exclusive: PhantomData }
    }

    /// One part.
    ///
    /// # Safety
    /// No two parts that are alive at once overlap.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's contract")]
    pub(crate) unsafe fn get(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part within the whole");
        // SAFETY: within the slice this was made from, which stays borrowed for `'a`; disjoint from
        // every other part by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }
}

impl Parts<'_, f32> {
    /// Asks for the cache line of item `index`, if there is one.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: usize) {
        if index < self.len {
            prefetch_line(self.start.as_ptr().wrapping_add(index));
        }
    }
}

/// Asks for the cache line of `items[index]`, if there is one.
#[inline(always)]
pub(crate) fn prefetch(items: &[f32], index: usize) {
    if index < items.len() {
        prefetch_line(items.as_ptr().wrapping_add(index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_aligned() {
        for len in [0, 1, 15, 16, 17, 1000, HUGE_PAGE_BYTES / 4, HUGE_PAGE_BYTES / 2 + 3] {
            let mut memory = Memory::zeroed(len);
            assert_eq!(memory.as_slice().len(), len);
            assert!(memory.as_slice().iter().all(|&x| x == 0.0));
            assert!(memory.as_slice().as_ptr().addr().is_multiple_of(LINE_BYTES));
            memory.as_mut_slice().fill(1.0);
            assert_eq!(memory.as_slice().iter().sum::<f32>(), len as f32);
        }
    }

    #[test]
    #[should_panic(expected = "within the whole")]
    fn a_part_past_the_end_is_refused() {
        let mut items = [0.0; 4];
        let parts = Parts::new(&mut items);
        // SAFETY: the only part.
        let _ = unsafe { parts.get(2..5) };
    }
}
