//! The CUDA backend: one NVIDIA GPU, driven with our own kernels and cuBLASLt matrix products.
//!
//! - [`driver`], [`nvrtc`], [`blas`], [`nccl`]: NVIDIA's libraries, loaded at run time.
//! - [`survey`]: which of them a host has.
//! - [`programs`], [`kernels`]: the sources in `kernels/`, compiled for the GPU in use, and the arguments of each
//!   kernel.
//! - [`commands`]: the commands that operations enqueue, as lists and CUDA graphs.
//! - [`buffers`], [`batch`], [`plan`]: data in GPU memory; [`layout`]: how much memory it uses.
//! - [`feed`], [`report`]: uploading batches and reading back step results, both overlapped with compute.
//! - [`peers`]: sums over the GPUs of several workers; [`rank_rows`]: the table rows that they gather.
//! - [`spans`]: profiling spans, recorded on demand.
//! - [`lookups`], [`rows`]: embeddings and linear models: the forward pass, and the update of the touched rows.
//! - [`layers`], [`interactions`], [`normalize`], [`retrieval`], [`losses`], [`updates`], [`moves`]: the
//!   operations.
//!
//! An operation appends commands to a list and returns. Reading or writing device memory from the host flushes the
//! list; a read also waits for it. A training step does neither. Each value of a result is computed by one thread,
//! or summed in an order that depends on shapes and ids alone. Atomics are used on integers only, so two runs on
//! GPUs of the same model produce the same bits.
//!
//! A GPU fault is not an error that an operation could return, because the context is unusable afterwards. It
//! panics with a [`DeviceFault`](crate::DeviceFault), which ends the worker process; the daemon resumes from the
//! last checkpoint.

mod attention;
mod backend;
mod batch;
mod blas;
mod buffers;
mod commands;
mod driver;
mod error;
mod fault;
mod feed;
mod interactions;
mod kernels;
mod layers;
mod layout;
mod lists;
mod lookups;
mod losses;
mod merged_rows;
mod moves;
mod nccl;
mod normalize;
mod nvrtc;
mod peers;
mod plan;
mod programs;
mod rank_rows;
mod report;
mod retrieval;
mod rows;
mod spans;
mod survey;
#[cfg(test)]
mod testing;
mod updates;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_trace::Recorder;
use zerocopy::{Immutable, IntoBytes};

use crate::description::LibraryVersion;
use crate::host;
use crate::library::{Libraries, Name};
pub use batch::CudaBatch;
pub use blas::OpenBlasError;
use blas::{Blas, Product};
pub use buffers::{CudaMatrix, CudaMaxima, CudaTable};
use commands::Commands;
use driver::{Address, Context, Driver, Lane, Launch, Memory, Stream};
pub use driver::{DriverError, Fault, Gpu, OutOfMemory};
pub use error::CudaError;
use fault::{GpuError, must};
pub use feed::CudaPinned;
use feed::PinnedRanges;
use kernels::{Faults, Step};
pub use merged_rows::CudaMergedRows;
pub use nccl::NcclError;
pub use nvrtc::CompileError;
use nvrtc::{Architecture, Compiler};
pub use peers::CudaPeers;
use peers::OpenSums;
pub use plan::CudaRowPlan;
use programs::{Arguments, Entry, Kernels};
pub use programs::{ProgramError, Resources};
pub use report::CudaReport;
use spans::Spans;
pub use survey::{Found, Survey};

/// The CUDA backend.
pub struct Cuda {
    // Fields are declared in the order in which they must be dropped.
    commands: Mutex<Commands>,
    /// Parameter updates that must be enqueued before any other command.
    steps: Mutex<Vec<Step>>,
    constants: Mutex<HashMap<Box<[u8]>, Memory>>,
    scratch: Mutex<Memory>,
    /// Recorded spans, while profiling is on.
    spans: Mutex<Option<Spans>>,
    recorder: Arc<Recorder>,
    uploads: AtomicU64,
    /// Invalid values that kernels found in batches.
    faults: Memory,
    pinned: PinnedRanges,
    kernels: Kernels,
    blas: Blas,
    /// The libraries that compute, besides our kernels.
    libraries: Vec<LibraryVersion>,
    /// Where the libraries were found.
    found_in: Libraries,
    /// Sums over ranks that the device may not have completed.
    sums: OpenSums,
    /// Uploads batches.
    copies: Stream,
    /// Runs everything else.
    stream: Stream,
}

impl Cuda {
    /// Opens GPU number `number` of this host. Compiled kernels are cached in `cache`, if given.
    ///
    /// # Errors
    /// If a library is missing or too old, or the GPU does not exist, is too old or has too little free memory.
    pub fn new(libraries: &Libraries, number: u32, cache: Option<&Path>) -> Result<Self, CudaError> {
        let context = Context::new(Driver::open(libraries)?, number)?;
        Self::on(&context, libraries, cache).map_err(|error| error.of_opened(&context))
    }

    /// The same backend, recorded by `recorder`.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Arc<Recorder>) -> Self {
        self.recorder = recorder;
        self
    }

    fn on(context: &Arc<Context>, found_in: &Libraries, cache: Option<&Path>) -> Result<Self, CudaError> {
        let compiler = Compiler::open(found_in)?;
        let blas = Blas::open(found_in, context)?;
        let kernels = Kernels::load(context, &compiler, &kernels::PROGRAMS, cache)?;
        let versions = [
            (driver::NAME, context.gpu().driver.clone()),
            (nvrtc::NAME, compiler.version()),
            (blas::NAME, blas::version(found_in).map_err(OpenBlasError::from)?),
        ];
        let library =
            |(name, version): (Name, String)| LibraryVersion { library: name.library.to_owned(), version };
        let libraries = versions.map(library).to_vec();
        let stream = || Stream::new(context).map_err(DriverError::from);
        let memory = |bytes| Memory::new(context, bytes).map_err(DriverError::from);
        let this = Self {
            commands: Mutex::default(),
            steps: Mutex::default(),
            constants: Mutex::default(),
            scratch: Mutex::new(memory(0)?),
            spans: Mutex::default(),
            recorder: Arc::default(),
            uploads: AtomicU64::new(0),
            faults: memory(size_of::<Faults>())?,
            pinned: PinnedRanges::default(),
            kernels,
            blas,
            libraries,
            found_in: found_in.clone(),
            sums: OpenSums::default(),
            copies: stream()?,
            stream: stream()?,
        };
        this.clear_faults();
        Ok(this)
    }

    /// The GPU in use.
    pub fn gpu(&self) -> &Gpu {
        self.context().gpu()
    }

    /// The resources that each kernel uses on a GPU of compute capability `capability` (`10 * major + minor`).
    /// Compiles every kernel from scratch; needs no GPU.
    ///
    /// # Errors
    /// If the compiler is missing or rejects a kernel.
    pub fn resources(libraries: &Libraries, capability: u32) -> Result<Vec<Resources>, CompileError> {
        let compiler = Compiler::open(libraries)?;
        let of = |program: &programs::Program| program.resources(&compiler, Architecture::Real(capability));
        let all: Result<Vec<_>, _> = kernels::PROGRAMS.iter().map(of).collect();
        Ok(all?.into_iter().flatten().collect())
    }

    /// A number for the next uploaded batch, from 1.
    fn next_upload(&self) -> u64 {
        self.uploads.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn context(&self) -> &Arc<Context> {
        self.stream.context()
    }

    /// Allocates uninitialized memory; reports out of memory with the job's own usage.
    fn memory(&self, bytes: usize) -> Memory {
        self.wait_for_sums();
        must(Memory::new(self.context(), bytes).inspect_err(|fault| {
            if fault.is_out_of_memory() {
                let held = self.held_bytes();
                fault::out_of_memory(
                    &format!(" for {bytes} more bytes, and this job already holds {held} bytes"),
                    fault,
                );
            }
        }))
    }

    /// Allocates zeros.
    fn zeros(&self, bytes: usize) -> Memory {
        let memory = self.memory(bytes);
        must(self.stream.clear(&memory));
        memory
    }

    /// Bytes of GPU memory held by this backend, including all buffers created on it.
    pub fn held_bytes(&self) -> u64 {
        self.context().held_bytes()
    }

    /// A workspace of at least `bytes` uninitialized bytes, valid for one operation. The sizes that [`layout`]
    /// computes per operation are allocated when a model is built.
    fn scratch(&self, bytes: usize) -> Address {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if scratch.bytes() < bytes {
            // Pending commands use the current workspace, and memory must not hold both at once.
            self.flush();
            *scratch = self.memory(0);
            *scratch = self.memory(bytes);
        }
        scratch.address()
    }

    /// Uploads `values` once and returns their address: operations pass the same values again and again.
    fn constants<T: IntoBytes + Immutable>(&self, values: &[T]) -> Address {
        let bytes = values.as_bytes();
        let mut constants = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = constants.get(bytes) {
            return memory.address();
        }
        let memory = self.memory(bytes.len());
        let address = memory.address();
        // SAFETY: the memory was just allocated with `bytes.len()` bytes, and no pending command uses it. The
        // driver reads host memory that is not page-locked before the call returns.
        must(unsafe { self.stream.copy_to_device(address, bytes) });
        constants.insert(bytes.into(), memory);
        address
    }

    /// Like [`Self::constants`]; address 0 if `values` is empty.
    fn constants_or_none<T: IntoBytes + Immutable>(&self, values: &[T]) -> Address {
        if values.is_empty() { 0 } else { self.constants(values) }
    }

    /// Copies `bytes` to GPU memory of this backend. The caller may change `bytes` once this returns.
    fn copy_to(&self, address: Address, bytes: &[u8]) {
        self.flush();
        self.wait_for_sums();
        // SAFETY: callers pass addresses of this backend's buffers with room for `bytes`. The driver reads host
        // memory that is not page-locked before the call returns.
        must(unsafe { self.stream.copy_to_device(address, bytes) });
    }

    /// Waits for all commands issued so far, then copies from the GPU. Sums that none of them has joined may go on.
    fn copy_from(&self, bytes: &mut [u8], address: Address) {
        self.wait_for_commands();
        // SAFETY: callers pass addresses of this backend's buffers that hold `bytes.len()` bytes. `bytes` is
        // exclusively borrowed until `wait` returns.
        must(unsafe { self.stream.copy_to_host(bytes, address) });
        must(self.stream.wait());
    }

    /// Launches a kernel with one thread for each of `threads[0]` items, times `threads[1]` in the y dimension.
    fn launch<A: Arguments>(&self, entry: Entry<A>, threads: [usize; 2], arguments: &A) {
        self.launch_blocks(entry, [threads[0].div_ceil(entry.threads as usize), threads[1]], arguments);
    }

    /// Launches a grid of `blocks`; launches nothing if either dimension is 0.
    fn launch_blocks<A: Arguments>(&self, entry: Entry<A>, blocks: [usize; 2], arguments: &A) {
        self.put_blocks(&mut self.commands(), entry, blocks, arguments);
    }

    fn put_blocks<A: Arguments>(
        &self,
        commands: &mut Commands,
        entry: Entry<A>,
        blocks: [usize; 2],
        arguments: &A,
    ) {
        let [x, y] = blocks.map(|count| u32::try_from(count).expect("grid dimensions that fit in 32 bits"));
        if x == 0 || y == 0 {
            return;
        }
        let launch = Launch { kernel: *self.kernels.of(entry), blocks: [x, y], threads: entry.threads };
        // SAFETY: `Entry<A>` guarantees that the kernel's argument has the layout of `A`. Addresses in it are of
        // this backend's buffers, and the operations have checked their shapes. Dropped memory is not freed until
        // the list has been flushed.
        unsafe { commands.kernel(self.context(), launch, arguments) };
    }

    /// Runs `work`, whose kernels share no memory with later commands until those [join](Self::join).
    fn aside(&self, work: impl FnOnce()) {
        self.commands().take(Lane::Aside);
        work();
        self.commands().take(Lane::Main);
    }

    /// Makes later commands wait for the commands that were put aside.
    fn join(&self) {
        self.commands().join();
    }

    /// Enqueues a matrix product. Returns false if cuBLASLt has no algorithm that computes it in one call.
    fn enqueue_product(&self, product: &Product) -> bool {
        let can = must(self.blas.can(product));
        if can {
            // SAFETY: operations check the shapes of the matrices. Dropped memory is not freed until the list has
            // been flushed.
            unsafe { self.commands().product(self.context(), *product) };
        }
        can
    }

    /// Submits all pending commands to the device.
    fn flush(&self) {
        if self.records_spans() {
            return self.flush_recorded();
        }
        must(self.commands().flush(&self.stream, &self.blas));
    }

    /// The pending commands, with pending parameter updates enqueued.
    fn commands(&self) -> MutexGuard<'_, Commands> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        self.put_steps(&mut commands);
        commands
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.forget_completed_sums();
        // Pending commands will never run: nobody can read their results.
        self.context().catch_up();
    }
}
