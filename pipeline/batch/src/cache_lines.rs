//! The processor's caches, told what is needed soon.

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Has the caches fetch what holds `values`, so that reading them soon does not wait for memory.
#[inline]
pub fn prefetch<T>(values: &[T]) {
    let bytes = size_of_val(values);
    for at in (0..bytes).step_by(LINE_BYTES).chain(bytes.checked_sub(1)) {
        prefetch_line(values.as_ptr().wrapping_byte_add(at));
    }
}

/// Has the caches fetch the line that `at` lies in. A hint, which any address may be given to: where the processor
/// knows no such thing, nothing is done.
#[inline(always)]
pub fn prefetch_line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch accesses nothing that the program can see, and does not fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
