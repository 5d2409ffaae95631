//! Prefetching into the processor's caches.

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Prefetches every cache line of `values`.
#[inline]
pub fn prefetch<T>(values: &[T]) {
    let bytes = size_of_val(values);
    for at in (0..bytes).step_by(LINE_BYTES).chain(bytes.checked_sub(1)) {
        prefetch_line(values.as_ptr().wrapping_byte_add(at));
    }
}

/// Prefetches the cache line that contains `at`. A hint: any address is allowed, and it does nothing on
/// architectures other than x86-64.
#[inline(always)]
pub fn prefetch_line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that the program can observe and never faults, whatever the address. SSE is
    // part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
