//! Memory of the CPU backend: aligned to cache lines, in huge pages where that pays off.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use millstream_batch::cache_lines::{LINE_BYTES, prefetch_line};

/// Size of a huge page, in bytes.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Floats per cache line.
pub(crate) const LINE: usize = LINE_BYTES / size_of::<f32>();

/// Zeroed floats, aligned to a cache line.
///
/// Tables are read at random rows: with 4 KiB pages nearly every row would miss the TLB as well. So memory of at
/// least one huge page is aligned to huge pages, and the kernel is asked to use them.
pub(crate) struct Memory {
    start: NonNull<f32>,
    len: usize,
    layout: Layout,
}

// SAFETY: `Memory` owns its allocation, as `Box<[f32]>` does.
unsafe impl Send for Memory {}
// SAFETY: shared access only reads, as with `Box<[f32]>`.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn zeroed(len: usize) -> Self {
        let bytes = (len * size_of::<f32>()).max(LINE_BYTES);
        let huge = bytes >= HUGE_PAGE_BYTES;
        let align = if huge { HUGE_PAGE_BYTES } else { LINE_BYTES };
        let layout = Layout::from_size_align(bytes, align).expect("a table smaller than the address space");
        // SAFETY: the layout has a non-zero size.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        // Miri has no `madvise`.
        if huge && !cfg!(miri) {
            let whole_pages = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            // A kernel without huge pages refuses; the memory is still usable, only slower.
            // SAFETY: the range is within the allocation, and this advice keeps its contents.
            let _ = unsafe {
                rustix::mm::madvise(start.as_ptr().cast(), whole_pages, rustix::mm::Advice::LinuxHugepage)
            };
        }
        // SAFETY: the allocation is `bytes` bytes long.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Self { start: start.cast(), len, layout }
    }

    pub(crate) fn as_slice(&self) -> &[f32] {
        // SAFETY: the allocation holds `len` initialized floats, borrowed shared with `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: the allocation holds `len` initialized floats, borrowed exclusively with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The start of the allocation. Writing through this pointer requires an exclusive borrow of the memory.
    pub(crate) fn start(&self) -> NonNull<f32> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) };
    }
}

/// Prefetches the cache line of `items[index]`, if the item exists.
#[inline(always)]
pub(crate) fn prefetch<T>(items: &[T], index: usize) {
    if index < items.len() {
        prefetch_line(items.as_ptr().wrapping_add(index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_aligned() {
        // Huge pages take Miri minutes.
        let large = if cfg!(miri) { 2000 } else { HUGE_PAGE_BYTES };
        for len in [0, 1, 15, 16, 17, 1000, large / 4, large / 2 + 3] {
            let mut memory = Memory::zeroed(len);
            assert_eq!(memory.as_slice().len(), len);
            assert!(memory.as_slice().iter().all(|&x| x == 0.0));
            assert!(memory.as_slice().as_ptr().addr().is_multiple_of(LINE_BYTES));
            memory.as_mut_slice().fill(1.0);
            assert_eq!(memory.as_slice().iter().sum::<f32>(), len as f32);
        }
    }
}
