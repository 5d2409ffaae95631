//! Device memory, and page-locked host memory that the device accesses directly.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use millstream_batch::RingMapping;

use super::super::fault::GpuError;
use super::{Address, Context, Fault, Functions, Handle, Object};

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
            unsafe { functions.cuMemAlloc_v2(&raw mut address, bytes) }?;
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

/// It is the host that is out of memory, not the GPU.
impl GpuError for NotLocked {}

/// Page-locked host memory, initially zero: the device copies from and to it asynchronously.
pub(in crate::cuda) struct PageLocked {
    /// Its handle is the start.
    object: Object,
    bytes: usize,
}

impl PageLocked {
    pub(in crate::cuda) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, NotLocked> {
        let create = |functions: &Functions, start: *mut Handle| {
            // SAFETY: `start` is valid for writes during the call. Then it points to at least `bytes` bytes.
            unsafe {
                functions.cuMemHostAlloc(start, bytes.max(1), 0)?;
                (*start).0.cast::<u8>().write_bytes(0, bytes);
            }
            Ok(())
        };
        // SAFETY: `create` writes the start of memory that the driver allocated, to be freed once.
        let object = unsafe { Object::new(context, create, |functions| functions.cuMemFreeHost) };
        Ok(Self { object: object.map_err(|fault| NotLocked { bytes, fault })?.waiting(), bytes })
    }

    /// The bytes; only to be accessed while no copy is in flight.
    pub(in crate::cuda) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the handle points to `bytes` initialized bytes owned by this value, and `&mut self` makes the borrow
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.object.handle.0.cast(), self.bytes) }
    }
}

/// A ring's memory, page-locked for the lifetime of this value.
pub(in crate::cuda) struct Registered {
    // Dropped before the pages. No copy from a batch outlives the batch's lease.
    _object: Object,
    _pages: RingMapping,
}

impl Registered {
    pub(in crate::cuda) fn new(context: &Arc<Context>, pages: &RingMapping) -> Result<Self, Fault> {
        let Range { start, end } = pages.addresses();
        let create = |functions: &Functions, registered: *mut Handle| {
            let (handle, bytes) = (Handle(start.cast_mut().cast()), end.addr() - start.addr());
            // SAFETY: the range is mapped memory, and `pages` keeps it mapped for longer than the value lives.
            // `registered` is valid for writes.
            unsafe {
                functions.cuMemHostRegister_v2(handle, bytes, 0)?;
                *registered = handle;
            }
            Ok(())
        };
        // SAFETY: `create` registers memory and writes its start, to be unregistered once.
        let object = unsafe { Object::new(context, create, |functions| functions.cuMemHostUnregister) }?;
        Ok(Self { _object: object.waiting(), _pages: pages.clone() })
    }
}
