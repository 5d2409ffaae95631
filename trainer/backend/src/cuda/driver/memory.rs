//! Device memory, and page-locked host memory that the device accesses directly.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use millstream_batch::RingMapping;

use super::super::fault::GpuError;
use super::{Address, Context, Fault};

/// Page size of device memory, and the granularity of small allocations.
const PAGE_BYTES: usize = 2 << 20;
const PIECE_BYTES: usize = 512;

/// Uninitialized device memory.
pub(in crate::cuda) struct Memory {
    context: Arc<Context>,
    address: Address,
    bytes: usize,
}

impl Memory {
    pub(in crate::cuda) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let mut address = 0;
        if bytes > 0 {
            // SAFETY: `address` is valid for writes during the call.
            let status = unsafe { (functions.cuMemAlloc_v2)(&raw mut address, bytes) };
            context.check("cuMemAlloc", status)?;
            context.held_bytes.fetch_add(Self::taken(bytes), Ordering::Relaxed);
        }
        Ok(Self { context: Arc::clone(context), address, bytes })
    }

    /// Device memory that an allocation of `bytes` bytes uses. Small allocations share pages of 2 MiB; larger ones
    /// use whole pages. This is observed driver behaviour, not documented.
    pub(in crate::cuda) fn taken(bytes: usize) -> u64 {
        let unit = if bytes <= PAGE_BYTES / 2 { PIECE_BYTES } else { PAGE_BYTES };
        bytes.next_multiple_of(unit) as u64
    }

    /// The start address, a multiple of 256; 0 for an empty allocation.
    pub(in crate::cuda) fn address(&self) -> Address {
        self.address
    }

    pub(in crate::cuda) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.context.held_bytes.fetch_sub(Self::taken(self.bytes), Ordering::Relaxed);
            self.context.left.lock().unwrap_or_else(PoisonError::into_inner).push(self.address);
            if !self.context.is_behind.load(Ordering::Relaxed) {
                self.context.catch_up();
            }
        }
    }
}

/// The host cannot provide the page-locked memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot page-lock {bytes} bytes of host memory: {fault}")]
pub(in crate::cuda) struct NotLocked {
    bytes: usize,
    fault: Fault,
}

impl GpuError for NotLocked {
    /// It is the host that is out of memory, not the GPU.
    fn is_out_of_memory(&self) -> bool {
        false
    }
}

/// Page-locked host memory, initially zero: the device copies from and to it asynchronously.
pub(in crate::cuda) struct PageLocked {
    context: Arc<Context>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the value owns its memory, and driver functions may be called from any thread.
unsafe impl Send for PageLocked {}

impl PageLocked {
    pub(in crate::cuda) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, NotLocked> {
        Self::of(context, bytes).map_err(|fault| NotLocked { bytes, fault })
    }

    fn of(context: &Arc<Context>, bytes: usize) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let mut start: *mut c_void = ptr::null_mut();
        // SAFETY: `start` is valid for writes during the call.
        let status = unsafe { (functions.cuMemHostAlloc)(&raw mut start, bytes.max(1), 0) };
        context.check("cuMemHostAlloc", status)?;
        let start = NonNull::new(start.cast::<u8>()).expect("a non-null address");
        // SAFETY: the driver just allocated at least `bytes` bytes at `start`.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self { context: Arc::clone(context), start, bytes })
    }

    /// The bytes; only to be accessed while no copy is in flight.
    pub(in crate::cuda) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start` points to `bytes` initialized bytes owned by this value, and `&mut self` makes the borrow
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        if let Ok(functions) = self.context.enter() {
            // SAFETY: allocated once, freed once.
            unsafe { (functions.cuMemFreeHost)(self.start.as_ptr().cast()) };
        }
    }
}

/// A ring's memory, page-locked for the lifetime of this value.
pub(in crate::cuda) struct Registered {
    context: Arc<Context>,
    pages: RingMapping,
}

impl Registered {
    pub(in crate::cuda) fn new(context: &Arc<Context>, pages: &RingMapping) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let Range { start, end } = pages.addresses();
        let bytes = end.addr() - start.addr();
        // SAFETY: the range is mapped memory, and `pages` keeps it mapped for longer than this value lives.
        let status = unsafe { (functions.cuMemHostRegister_v2)(start.cast_mut().cast(), bytes, 0) };
        context.check("cuMemHostRegister", status)?;
        Ok(Self { context: Arc::clone(context), pages: pages.clone() })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(functions) = self.context.enter() {
            // SAFETY: registered once, unregistered once; no copy from a batch outlives the batch's lease.
            unsafe { (functions.cuMemHostUnregister)(self.pages.addresses().start.cast_mut().cast()) };
        }
    }
}
