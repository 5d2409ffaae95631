//! Streams and events.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::{Address, Context, Fault, Functions, Handle, Launch, Memory, NOT_READY, Object};

/// CU_STREAM_NON_BLOCKING: the stream does not synchronize with the default stream.
const NON_BLOCKING: c_uint = 1;
/// CU_EVENT_BLOCKING_SYNC: a thread that waits for the event sleeps, which leaves its core to the input pipeline.
const BLOCKING_SYNC: c_uint = 1;
/// CU_EVENT_DISABLE_TIMING: an event without a timestamp is cheaper.
const DISABLE_TIMING: c_uint = 2;

/// A stream of device work, executed in order.
pub(in crate::cuda) struct Stream(pub(super) Object);

impl Stream {
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        // SAFETY: `stream` is valid for writes during the call, which writes a stream.
        unsafe {
            let create = |functions: &Functions, stream| functions.cuStreamCreate(stream, NON_BLOCKING);
            Object::new(context, create, |functions| functions.cuStreamDestroy_v2).map(Self)
        }
    }

    pub(in crate::cuda) fn handle(&self) -> Handle {
        self.0.handle
    }

    pub(in crate::cuda) fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// Waits for all work submitted to the stream.
    pub(in crate::cuda) fn wait(&self) -> Result<(), Fault> {
        // SAFETY: the handle is a live stream of this context.
        unsafe { self.0.enter()?.cuStreamSynchronize(self.0.handle) }
    }

    /// Makes later work of the stream wait for `event`.
    pub(in crate::cuda) fn wait_for(&self, event: &Event) -> Result<(), Fault> {
        // SAFETY: the stream and the event are live and belong to this context.
        unsafe { self.0.enter()?.cuStreamWaitEvent(self.0.handle, event.0.handle, 0) }
    }

    /// Copies `from` to `address` on the device.
    ///
    /// # Safety
    /// `address` points to at least `from.len()` bytes of memory of this device. If `from` is page-locked, it must
    /// not change before the stream has executed the copy.
    pub(in crate::cuda) unsafe fn copy_to_device(&self, address: Address, from: &[u8]) -> Result<(), Fault> {
        let functions = self.0.enter()?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller guarantees that the destination is valid and that `from` stays unchanged.
        unsafe { functions.cuMemcpyHtoDAsync_v2(address, from.as_ptr().cast(), from.len(), self.0.handle) }
    }

    /// Copies memory of the device to `to`.
    ///
    /// # Safety
    /// `address` points to at least `to.len()` bytes of memory of this device. `to` must not be accessed before the
    /// stream has executed the copy.
    pub(in crate::cuda) unsafe fn copy_to_host(&self, to: &mut [u8], address: Address) -> Result<(), Fault> {
        let functions = self.0.enter()?;
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller guarantees that the source is valid and that `to` is not accessed during the copy.
        unsafe { functions.cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), address, to.len(), self.0.handle) }
    }

    /// Fills memory with zeros.
    pub(in crate::cuda) fn clear(&self, memory: &Memory) -> Result<(), Fault> {
        let functions = self.0.enter()?;
        if memory.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: the range is exactly one live allocation.
        unsafe { functions.cuMemsetD8Async(memory.address(), 0, memory.bytes(), self.0.handle) }
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// The kernel takes one argument with the layout of `argument`, and every access that it makes with that
    /// argument is valid.
    pub(in crate::cuda) unsafe fn launch(&self, launch: Launch, argument: &[u64]) -> Result<(), Fault> {
        let mut parameters = [argument.as_ptr().cast_mut().cast::<c_void>()];
        let (Launch { kernel, blocks: [x, y], threads }, stream) = (launch, self.0.handle);
        // SAFETY: the caller guarantees that the argument fits the kernel. The driver copies the parameters before
        // it returns.
        unsafe {
            let (functions, parameters) = (self.0.enter()?, parameters.as_mut_ptr());
            functions.cuLaunchKernel(
                kernel.handle,
                x,
                y,
                1,
                threads,
                1,
                1,
                0,
                stream,
                parameters,
                ptr::null_mut(),
            )
        }
    }
}

/// An event: a point in a stream's work. Destroying it does not affect the work that waits for it.
pub(in crate::cuda) struct Event(Object);

impl Event {
    /// An unrecorded event; waiting for it returns at once.
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        Self::of(context, BLOCKING_SYNC | DISABLE_TIMING)
    }

    /// An event that records the time at which its stream reaches it.
    pub(in crate::cuda) fn timed(context: &Arc<Context>) -> Result<Self, Fault> {
        Self::of(context, BLOCKING_SYNC)
    }

    fn of(context: &Arc<Context>, flags: c_uint) -> Result<Self, Fault> {
        // SAFETY: `event` is valid for writes during the call, which writes an event.
        unsafe {
            let create = |functions: &Functions, event| functions.cuEventCreate(event, flags);
            Object::new(context, create, |functions| functions.cuEventDestroy_v2).map(Self)
        }
    }

    /// Records the event after all work submitted to `stream` so far.
    pub(in crate::cuda) fn record(&self, stream: &Stream) -> Result<(), Fault> {
        // SAFETY: the event and the stream are live and belong to this context.
        unsafe { self.0.enter()?.cuEventRecord(self.0.handle, stream.0.handle) }
    }

    /// The time from `start` to this event, both created by [`Event::timed`]; `None` until both have completed. The
    /// resolution is half a microsecond, or one part in 2^24 if that is coarser.
    pub(in crate::cuda) fn since(&self, start: &Self) -> Result<Option<Duration>, Fault> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: `milliseconds` is valid for writes during the call; both events are live and belong to this
        // context.
        let read = unsafe {
            self.0.enter()?.cuEventElapsedTime(&raw mut milliseconds, start.0.handle, self.0.handle)
        };
        match read {
            Err(fault) if fault.status == NOT_READY => Ok(None),
            read => read.map(|()| Some(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))),
        }
    }

    /// Whether the event has completed.
    pub(in crate::cuda) fn is_over(&self) -> Result<bool, Fault> {
        // SAFETY: the handle is a live event of this context.
        match unsafe { self.0.enter()?.cuEventQuery(self.0.handle) } {
            Err(fault) if fault.status == NOT_READY => Ok(false),
            queried => queried.map(|()| true),
        }
    }

    /// Waits until the event has completed.
    pub(in crate::cuda) fn wait(&self) -> Result<(), Fault> {
        // SAFETY: the handle is a live event of this context.
        unsafe { self.0.enter()?.cuEventSynchronize(self.0.handle) }
    }
}
