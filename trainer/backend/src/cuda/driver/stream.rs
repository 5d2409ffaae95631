//! Streams and events.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::{Address, Context, Fault, Handle, Launch, Memory, NOT_READY};

/// CU_STREAM_NON_BLOCKING: the stream does not synchronize with the default stream.
const NON_BLOCKING: c_uint = 1;
/// CU_EVENT_BLOCKING_SYNC: a thread that waits for the event sleeps, which leaves its core to the input pipeline.
const BLOCKING_SYNC: c_uint = 1;
/// CU_EVENT_DISABLE_TIMING: an event without a timestamp is cheaper.
const DISABLE_TIMING: c_uint = 2;

/// A stream of device work, executed in order.
pub(in crate::cuda) struct Stream {
    pub(super) context: Arc<Context>,
    pub(super) handle: Handle,
}

// SAFETY: the handle is only passed to driver functions, which may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: the handle is only passed to driver functions, which may be called from any thread.
unsafe impl Sync for Stream {}

impl Stream {
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is valid for writes during the call.
        let status = unsafe { (functions.cuStreamCreate)(&raw mut handle, NON_BLOCKING) };
        context.check("cuStreamCreate", status)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    pub(in crate::cuda) fn handle(&self) -> Handle {
        self.handle
    }

    pub(in crate::cuda) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits for all work submitted to the stream.
    pub(in crate::cuda) fn wait(&self) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        // SAFETY: `self.handle` is a live stream of this context.
        self.context.check("cuStreamSynchronize", unsafe { (functions.cuStreamSynchronize)(self.handle) })
    }

    /// Makes later work of the stream wait for `event`.
    pub(in crate::cuda) fn wait_for(&self, event: &Event) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        // SAFETY: the stream and the event are live and belong to this context.
        let status = unsafe { (functions.cuStreamWaitEvent)(self.handle, event.handle, 0) };
        self.context.check("cuStreamWaitEvent", status)
    }

    /// Copies `from` to `address` on the device.
    ///
    /// # Safety
    /// `address` points to at least `from.len()` bytes of memory of this device. If `from` is page-locked, it must
    /// not change before the stream has executed the copy.
    pub(in crate::cuda) unsafe fn copy_to_device(&self, address: Address, from: &[u8]) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller guarantees that the destination is valid and that `from` stays unchanged.
        let status = unsafe {
            (functions.cuMemcpyHtoDAsync_v2)(address, from.as_ptr().cast(), from.len(), self.handle)
        };
        self.context.check("cuMemcpyHtoDAsync", status)
    }

    /// Copies memory of the device to `to`.
    ///
    /// # Safety
    /// `address` points to at least `to.len()` bytes of memory of this device. `to` must not be accessed before the
    /// stream has executed the copy.
    pub(in crate::cuda) unsafe fn copy_to_host(&self, to: &mut [u8], address: Address) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller guarantees that the source is valid and that `to` is not accessed during the copy.
        let status = unsafe {
            (functions.cuMemcpyDtoHAsync_v2)(to.as_mut_ptr().cast(), address, to.len(), self.handle)
        };
        self.context.check("cuMemcpyDtoHAsync", status)
    }

    /// Fills memory with zeros.
    pub(in crate::cuda) fn clear(&self, memory: &Memory) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        if memory.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: the range is exactly one live allocation.
        let status = unsafe { (functions.cuMemsetD8Async)(memory.address(), 0, memory.bytes(), self.handle) };
        self.context.check("cuMemsetD8Async", status)
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// The kernel takes one argument with the layout of `argument`, and every access that it makes with that
    /// argument is valid.
    pub(in crate::cuda) unsafe fn launch(&self, launch: Launch, argument: &[u64]) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        let mut parameters = [argument.as_ptr().cast_mut().cast::<c_void>()];
        let Launch { kernel, blocks: [x, y], threads } = launch;
        // SAFETY: the caller guarantees that the argument fits the kernel. The driver copies the parameters before
        // it returns.
        let status = unsafe {
            let (parameters, extra) = (parameters.as_mut_ptr(), ptr::null_mut());
            (functions.cuLaunchKernel)(
                kernel.handle,
                x,
                y,
                1,
                threads,
                1,
                1,
                0,
                self.handle,
                parameters,
                extra,
            )
        };
        self.context.check("cuLaunchKernel", status)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(functions) = self.context.enter() {
            // SAFETY: created once, destroyed once; the driver completes submitted work.
            unsafe { (functions.cuStreamDestroy_v2)(self.handle) };
        }
    }
}

/// An event: a point in a stream's work.
pub(in crate::cuda) struct Event {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: the handle is only passed to driver functions, which may be called from any thread.
unsafe impl Send for Event {}
// SAFETY: the handle is only passed to driver functions, which may be called from any thread.
unsafe impl Sync for Event {}

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
        let functions = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is valid for writes during the call.
        let status = unsafe { (functions.cuEventCreate)(&raw mut handle, flags) };
        context.check("cuEventCreate", status)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Records the event after all work submitted to `stream` so far.
    pub(in crate::cuda) fn record(&self, stream: &Stream) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        // SAFETY: the event and the stream are live and belong to this context.
        let status = unsafe { (functions.cuEventRecord)(self.handle, stream.handle) };
        self.context.check("cuEventRecord", status)
    }

    /// The time from `start` to this event, both created by [`Event::timed`]; `None` until both have completed. The
    /// resolution is half a microsecond, or one part in 2^24 if that is coarser.
    pub(in crate::cuda) fn since(&self, start: &Self) -> Result<Option<Duration>, Fault> {
        let functions = self.context.enter()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: `milliseconds` is valid for writes during the call; both events are live and belong to this
        // context.
        let status =
            unsafe { (functions.cuEventElapsedTime)(&raw mut milliseconds, start.handle, self.handle) };
        if status == NOT_READY {
            return Ok(None);
        }
        self.context.check("cuEventElapsedTime", status)?;
        Ok(Some(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3)))
    }

    /// Waits until the event has completed.
    pub(in crate::cuda) fn wait(&self) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        // SAFETY: `self.handle` is a live event of this context.
        self.context.check("cuEventSynchronize", unsafe { (functions.cuEventSynchronize)(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(functions) = self.context.enter() {
            // SAFETY: created once, destroyed once; the driver defers destruction while work waits for the event.
            unsafe { (functions.cuEventDestroy_v2)(self.handle) };
        }
    }
}
