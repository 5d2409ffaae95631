//! A rank's access to the GPUs of all ranks.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use super::super::driver::{Address, Context, DriverError, Stream};
use super::{Config, IN_PROGRESS, Nccl, NcclError, UniqueId};
use crate::collective::Deadline;
use crate::float::Float;
use crate::library::Handle;

/// `ncclSum`.
const SUM: c_int = 0;

/// `ncclUint32`, the type of a [`Section`].
const WORD: c_int = 3;

/// Interval between checks whether a call has taken effect. A thread that sleeps leaves its core to the input pipeline.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Numbers in GPU memory that become sums.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Summand {
    pub(in crate::cuda) address: Address,
    pub(in crate::cuda) count: usize,
    pub(in crate::cuda) float: Float,
}

/// Words of 32 bits in GPU memory, which a rank has and the others get.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Section {
    pub(in crate::cuda) address: Address,
    pub(in crate::cuda) words: usize,
    /// The rank that has them.
    pub(in crate::cuda) root: usize,
}

/// A communicator of NCCL.
pub(in crate::cuda) struct Communicator {
    nccl: Nccl,
    handle: Handle,
    context: Arc<Context>,
}

/// Why a call has not taken effect.
pub(in crate::cuda) enum CallError {
    Nccl(NcclError),
    Driver(DriverError),
    /// Another rank does not take part by the deadline.
    Late,
}

impl From<NcclError> for CallError {
    fn from(error: NcclError) -> Self {
        Self::Nccl(error)
    }
}

impl Communicator {
    /// Connects the GPU of `context`, as rank `rank` of `ranks`, to those of the others that pass the same `id`.
    pub(in crate::cuda) fn connect(
        nccl: Nccl,
        context: &Arc<Context>,
        (rank, ranks): (usize, usize),
        id: UniqueId,
        deadline: Deadline,
    ) -> Result<Self, CallError> {
        context.make_current().map_err(|fault| CallError::Driver(fault.into()))?;
        let (mut handle, mut config) = (Handle::NULL, Config::non_blocking());
        // SAFETY: `handle` and `config` are valid for writes during the call, and `config` has the layout of its version.
        // The context is current.
        unsafe {
            nccl.functions.ncclCommInitRankConfig(
                &raw mut handle,
                ranks as c_int,
                id,
                rank as c_int,
                &raw mut config,
            )
        }?;
        // After an error, all stays as it is until the process ends: to destroy anything may wait for the other ranks.
        context.begin_sum();
        let this = Self { nccl, handle, context: Arc::clone(context) };
        this.finish_call(deadline)?;
        context.end_sum();
        Ok(this)
    }

    /// Enqueues a sum over all ranks, in place, in `stream`: all of `summands`, or nothing.
    ///
    /// # Safety
    /// When the stream reaches the sum, each of `summands` is exclusively used memory of this device, with that many numbers.
    pub(in crate::cuda) unsafe fn sum(
        &self,
        summands: &[Summand],
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let functions = &self.nccl.functions;
        self.enqueue(summands, deadline, |summand| {
            let Summand { address, count, float } = *summand;
            let kind = kind_of(float);
            // SAFETY: the caller guarantees that the memory is valid. The communicator and the stream are live, and of one
            // context.
            unsafe {
                functions.ncclAllReduce(address, address, count, kind, SUM, self.handle, stream.handle())
            }
        })
    }

    /// Enqueues in `stream` that all ranks get each of `sections` from its rank, in place: of all, or nothing.
    ///
    /// One group of broadcasts, which NCCL runs as one kernel. Its all-gather takes the same number of words from each rank:
    /// sections would be padded to the largest, and could not have fixed addresses. NCCL's authors recommend the group for
    /// sections of different sizes (github.com/NVIDIA/nccl/issues/490).
    ///
    /// # Safety
    /// As of [`Communicator::sum`], for each of `sections`.
    pub(in crate::cuda) unsafe fn gather(
        &self,
        sections: &[Section],
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let functions = &self.nccl.functions;
        self.enqueue(sections, deadline, |section| {
            let Section { address, words, root } = *section;
            // SAFETY: as in `sum`.
            unsafe {
                let (root, stream) = (root as c_int, stream.handle());
                functions.ncclBroadcast(address, address, words, WORD, root, self.handle, stream)
            }
        })
    }

    /// Makes a call for each of `items`, all as one group.
    fn enqueue<T>(
        &self,
        items: &[T],
        deadline: Deadline,
        call: impl Fn(&T) -> Result<(), NcclError>,
    ) -> Result<(), CallError> {
        self.context.make_current().map_err(|fault| CallError::Driver(fault.into()))?;
        let functions = &self.nccl.functions;
        // SAFETY: takes no arguments.
        unsafe { functions.ncclGroupStart() }?;
        let called = items.iter().try_for_each(call);
        // SAFETY: ends the group that was started above; also after an error, which it then returns.
        let ended = unsafe { functions.ncclGroupEnd() };
        called.and(ended)?;
        self.finish_call(deadline)
    }

    /// Whether the last call has taken effect.
    ///
    /// # Errors
    /// If it has failed, or an operation has failed since.
    pub(in crate::cuda) fn is_idle(&self) -> Result<bool, NcclError> {
        let mut status = 0;
        let functions = &self.nccl.functions;
        // SAFETY: the communicator is live, and `status` is valid for writes during the call.
        unsafe { functions.ncclCommGetAsyncError(self.handle, &raw mut status) }?;
        functions.check("an operation", status)?;
        Ok(status != IN_PROGRESS)
    }

    fn finish_call(&self, deadline: Deadline) -> Result<(), CallError> {
        while !self.is_idle()? {
            if deadline.left().is_zero() {
                return Err(CallError::Late);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Destroying waits for open operations, which may never end.
        if !self.context.has_open_sums() && self.context.make_current().is_ok() {
            // SAFETY: created once in `connect`, destroyed once here. Nothing can be done about a failure.
            unsafe { (self.nccl.functions.ncclCommDestroy)(self.handle) };
        }
    }
}

/// The `ncclDataType_t` of a format.
fn kind_of(float: Float) -> c_int {
    match float {
        Float::F16 => 6,
        Float::F32 => 7,
        Float::Bf16 => 9,
    }
}
