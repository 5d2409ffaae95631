//! Streams of work, and points in them.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::{Address, Context, Fault, Handle, Launch, Memory, NOT_READY};

/// A stream that does not wait for the one that programs have without asking.
const NON_BLOCKING: c_uint = 1;
/// A thread that waits for an event sleeps: its core is the input's.
const BLOCKING_SYNC: c_uint = 1;
/// What is not asked when it came by takes less.
const DISABLE_TIMING: c_uint = 2;

/// Work for a device, done in order.
pub(in crate::cuda) struct Stream {
    pub(super) context: Arc<Context>,
    pub(super) handle: Handle,
}

// SAFETY: as of the context.
unsafe impl Send for Stream {}
// SAFETY: as of the context.
unsafe impl Sync for Stream {}

impl Stream {
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is written.
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

    /// Waits for all that was asked of it.
    pub(in crate::cuda) fn wait(&self) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        // SAFETY: a stream of this context.
        self.context.check("cuStreamSynchronize", unsafe { (functions.cuStreamSynchronize)(self.handle) })
    }

    /// What is asked of it from here on is done after `event`.
    pub(in crate::cuda) fn wait_for(&self, event: &Event) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        // SAFETY: both are of this context.
        let status = unsafe { (functions.cuStreamWaitEvent)(self.handle, event.handle, 0) };
        self.context.check("cuStreamWaitEvent", status)
    }

    /// Copies `from` to `address` on the device.
    ///
    /// # Safety
    /// So many bytes from there on are memory of this device. `from` stays as it is until the stream has come by, if it
    /// is page-locked.
    pub(in crate::cuda) unsafe fn copy_to_device(&self, address: Address, from: &[u8]) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: by the caller's promise.
        let status = unsafe {
            (functions.cuMemcpyHtoDAsync_v2)(address, from.as_ptr().cast(), from.len(), self.handle)
        };
        self.context.check("cuMemcpyHtoDAsync", status)
    }

    /// Copies memory of the device to `to`.
    ///
    /// # Safety
    /// As of [`Stream::copy_to_device`]; `to` is not looked at before the stream has come by.
    pub(in crate::cuda) unsafe fn copy_to_host(&self, to: &mut [u8], address: Address) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: by the caller's promise.
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
        // SAFETY: all of an allocation.
        let status = unsafe { (functions.cuMemsetD8Async)(memory.address(), 0, memory.bytes(), self.handle) };
        self.context.check("cuMemsetD8Async", status)
    }

    /// Runs a kernel.
    ///
    /// # Safety
    /// The kernel takes one argument, which is laid out as `argument` is, and does with it what is sound.
    pub(in crate::cuda) unsafe fn launch(&self, launch: Launch, argument: &[u64]) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        let mut parameters = [argument.as_ptr().cast_mut().cast::<c_void>()];
        let Launch { kernel, blocks: [x, y], threads } = launch;
        // SAFETY: by the caller's promise; parameters are copied before the call returns.
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
            // SAFETY: created once, destroyed once; what was asked of it is still done.
            unsafe { (functions.cuStreamDestroy_v2)(self.handle) };
        }
    }
}

/// A point in a stream's work.
pub(in crate::cuda) struct Event {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: as of the context.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// One that was never recorded: nobody waits for it.
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        Self::of(context, BLOCKING_SYNC | DISABLE_TIMING)
    }

    /// One that tells when its stream came by.
    pub(in crate::cuda) fn timed(context: &Arc<Context>) -> Result<Self, Fault> {
        Self::of(context, BLOCKING_SYNC)
    }

    fn of(context: &Arc<Context>, flags: c_uint) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is written.
        let status = unsafe { (functions.cuEventCreate)(&raw mut handle, flags) };
        context.check("cuEventCreate", status)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// From here on it is the point behind all that was asked of `stream`.
    pub(in crate::cuda) fn record(&self, stream: &Stream) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        // SAFETY: both are of this context.
        let status = unsafe { (functions.cuEventRecord)(self.handle, stream.handle) };
        self.context.check("cuEventRecord", status)
    }

    /// How long after `start` its stream came by, both of them timed; `None` as long as it has not. To half a microsecond,
    /// or a part in 2^24.
    pub(in crate::cuda) fn since(&self, start: &Self) -> Result<Option<Duration>, Fault> {
        let functions = self.context.enter()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: `milliseconds` is written; both are of this context.
        let status =
            unsafe { (functions.cuEventElapsedTime)(&raw mut milliseconds, start.handle, self.handle) };
        if status == NOT_READY {
            return Ok(None);
        }
        self.context.check("cuEventElapsedTime", status)?;
        Ok(Some(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3)))
    }

    /// Waits until its stream has come by.
    pub(in crate::cuda) fn wait(&self) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        // SAFETY: an event of this context.
        self.context.check("cuEventSynchronize", unsafe { (functions.cuEventSynchronize)(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(functions) = self.context.enter() {
            // SAFETY: created once, destroyed once; who waits for it goes on waiting.
            unsafe { (functions.cuEventDestroy_v2)(self.handle) };
        }
    }
}
