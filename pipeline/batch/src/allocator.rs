//! Configures the C library's allocator to return large blocks to the operating system.
//!
//! glibc gives each thread an arena. After the first large block is freed, its dynamic threshold serves later
//! blocks up to that size from arenas, and each arena retains twice that size before it returns memory.
//! With one thread per lane, and buffers of megabytes filled by one thread and freed by another, half of
//! the memory held by ingest was such retained memory, which exceeded small memory budgets. Setting the
//! thresholds explicitly disables the dynamic ones.

/// Blocks of at least this size are mapped separately, and unmapped when freed.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD_BYTES: libc::c_int = 1 << 20;
/// Free memory an arena retains at its top: enough for the chunks of a lane, which are allocated and freed often.
#[cfg(target_env = "gnu")]
const TRIM_THRESHOLD_BYTES: libc::c_int = 8 << 20;

/// Makes the allocator return large blocks to the operating system when they are freed. Call it at the start of
/// a process that hosts ingest.
pub fn return_large_blocks_to_os() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two integers and locks the allocator's state while it changes it, so it may be
    // called at any time from any thread.
    unsafe {
        // An out-of-range value would be ignored and leave the default in place.
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES);
    }
}
