//! The C library's allocator, told to give large blocks back.
//!
//! glibc has an arena for each thread, and when a large block is freed it takes from then on blocks up to that
//! size out of arenas, and keeps twice as much there before it gives anything back. With a thread for each lane,
//! and buffers of megabytes that one thread fills and another frees, half of what ingest held was such: above its
//! memory budget where that was small. Settings of one's own turn this off.

/// Blocks from this size on are mapped, and unmapped when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED_FROM_BYTES: libc::c_int = 1 << 20;
/// What an arena keeps at its end for later: enough for the chunks of a lane, which come and go.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 8 << 20;

/// Has large blocks given back to the system when they are freed. For processes that host ingest, at their start.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two numbers and locks the allocator's state while it changes it.
    unsafe {
        // They fail only for numbers that are out of range, and then nothing is changed.
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}
