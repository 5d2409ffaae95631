//! Memory: of the device, and of the host where the device reads and writes it by itself.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use millstream_batch::RingMapping;

use super::super::fault::GpuError;
use super::{Address, Context, Fault};

/// Pages of a device's memory, and the pieces that they are cut into.
const PAGE_BYTES: usize = 2 << 20;
const PIECE_BYTES: usize = 512;

/// Memory of a device, of any content.
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
            // SAFETY: `address` is written.
            let status = unsafe { (functions.cuMemAlloc_v2)(&raw mut address, bytes) };
            context.check("cuMemAlloc", status)?;
            context.held_bytes.fetch_add(Self::taken(bytes), Ordering::Relaxed);
        }
        Ok(Self { context: Arc::clone(context), address, bytes })
    }

    /// Bytes of the device that so many bytes take. Small pieces come from pages of 2 MiB, larger ones have pages of
    /// their own: what drivers are seen to do, and no promise of theirs.
    pub(in crate::cuda) fn taken(bytes: usize) -> u64 {
        let unit = if bytes <= PAGE_BYTES / 2 { PIECE_BYTES } else { PAGE_BYTES };
        bytes.next_multiple_of(unit) as u64
    }

    /// Where it begins: at a multiple of 256; 0 where there is none.
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

/// The host has no such memory.
#[derive(Debug, thiserror::Error)]
#[error("the host has no {bytes} bytes to page-lock: {fault}")]
pub(in crate::cuda) struct NotLocked {
    bytes: usize,
    fault: Fault,
}

impl GpuError for NotLocked {
    /// It is not the GPU that has too little.
    fn is_out_of_memory(&self) -> bool {
        false
    }
}

/// Page-locked memory of the host, zeros at first: copies from and to it are made beside the host's work.
pub(in crate::cuda) struct PageLocked {
    context: Arc<Context>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory of its own, and the driver's functions may be called from any thread.
unsafe impl Send for PageLocked {}

impl PageLocked {
    pub(in crate::cuda) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, NotLocked> {
        Self::of(context, bytes).map_err(|fault| NotLocked { bytes, fault })
    }

    fn of(context: &Arc<Context>, bytes: usize) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let mut start: *mut c_void = ptr::null_mut();
        // SAFETY: `start` is written.
        let status = unsafe { (functions.cuMemHostAlloc)(&raw mut start, bytes.max(1), 0) };
        context.check("cuMemHostAlloc", status)?;
        let start = NonNull::new(start.cast::<u8>()).expect("memory has an address");
        // SAFETY: just allocated, of that many bytes.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self { context: Arc::clone(context), start, bytes })
    }

    /// To be looked at while no copy is under way.
    pub(in crate::cuda) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated with `bytes` bytes, which were written, and borrowed as this value is.
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

/// A ring's memory, page-locked while this value is there.
pub(in crate::cuda) struct Registered {
    context: Arc<Context>,
    pages: RingMapping,
}

impl Registered {
    pub(in crate::cuda) fn new(context: &Arc<Context>, pages: &RingMapping) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let Range { start, end } = pages.addresses();
        let bytes = end.addr() - start.addr();
        // SAFETY: mapped memory, which the pages keep mapped for longer than this value.
        let status = unsafe { (functions.cuMemHostRegister_v2)(start.cast_mut().cast(), bytes, 0) };
        context.check("cuMemHostRegister", status)?;
        Ok(Self { context: Arc::clone(context), pages: pages.clone() })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(functions) = self.context.enter() {
            // SAFETY: registered once, unregistered once; nothing is copied from a batch after its lease.
            unsafe { (functions.cuMemHostUnregister)(self.pages.addresses().start.cast_mut().cast()) };
        }
    }
}
