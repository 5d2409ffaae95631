//! Huge pages for large buffers.

use rustix::mm::Advice;

/// The size of a huge page on x86-64 and, with pages of 4 KiB, AArch64.
const HUGE_BYTES: usize = 2 << 20;

/// Asks the kernel for huge pages for `memory`, which has not been used yet. Filling 2 MiB then costs one page fault
/// instead of 512. Only whole huge pages within `memory` are concerned, so it occupies no more than its size. Without
/// effect where the system does not provide them.
pub fn prefer_huge_pages(memory: &mut [u8]) {
    let start = memory.as_ptr().addr();
    let (first, end) = (start.next_multiple_of(HUGE_BYTES), (start + memory.len()) / HUGE_BYTES * HUGE_BYTES);
    if first >= end {
        return;
    }
    let first_page = memory[first - start..].as_mut_ptr();
    // SAFETY: the range lies within `memory`. The advice changes neither its contents nor its protection.
    let advised = unsafe { rustix::mm::madvise(first_page.cast(), end - first, Advice::LinuxHugepage) };
    // The kernel may be built without huge pages; the memory is as usable.
    let _ = advised;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_and_neighbours_stay_as_they_are() {
        for bytes in [0, 1, HUGE_BYTES - 1, HUGE_BYTES, 3 * HUGE_BYTES + 5] {
            let mut memory = vec![0; bytes];
            prefer_huge_pages(&mut memory);
            assert!(memory.iter().all(|&byte| byte == 0));
            memory.fill(7);
            prefer_huge_pages(&mut memory);
            assert!(memory.iter().all(|&byte| byte == 7));
        }
    }
}
