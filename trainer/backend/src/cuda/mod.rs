//! The CUDA backend: one NVIDIA GPU, by kernels of our own and cuBLASLt's products.
//!
//! * [`library`], [`driver`], [`nvrtc`], [`blas`], [`nccl`]: NVIDIA's libraries, opened at run time.
//! * [`survey`]: which of them a host has.
//! * [`programs`], [`kernels`]: the files of `kernels/`, compiled for the GPU at hand, and what each kernel takes.
//! * [`commands`]: what operations ask for, as lists and graphs.
//! * [`buffers`], [`batch`], [`plan`]: what is in the GPU's memory; [`layout`]: how much of it.
//! * [`feed`], [`report`]: how batches come there, and what the host hears of a step, both beside the work.
//! * [`spans`]: when it did what, while somebody looks.
//! * [`lookups`], [`rows`]: embeddings and linear models, forward, and the step of the rows that were touched.
//! * [`layers`], [`interactions`], [`normalize`], [`retrieval`], [`losses`], [`updates`], [`moves`]: the operations.
//!
//! Operations are put on a list and return; what reads or writes the device's memory has the list done, and waits if it
//! reads. A training step does neither. Every number of a result is one thread's, or the sum of others' numbers in an order
//! that follows from shapes and ids alone: no atomics but on whole numbers, so two runs on GPUs of one kind have the same
//! bits.
//!
//! A fault of the GPU is no error that an operation could return: nothing on it can be used any more. It panics with
//! a [`DeviceFault`](crate::DeviceFault): that ends the worker's process, and the daemon resumes from the last checkpoint.

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
mod library;
mod lookups;
mod losses;
mod moves;
mod nccl;
mod normalize;
mod nvrtc;
mod plan;
mod programs;
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_trace::Recorder;

use crate::description::LibraryVersion;
use crate::host;
pub use batch::CudaBatch;
pub use blas::OpenBlasError;
use blas::{Blas, Product};
pub use buffers::{CudaMatrix, CudaTable};
use commands::Commands;
use driver::{Address, Context, Driver, Lane, Launch, Memory, Stream};
pub use driver::{DriverError, Fault, Gpu, OutOfMemory};
pub use error::CudaError;
use fault::{GpuError, must};
pub use feed::CudaPinned;
use feed::PinnedRanges;
use kernels::{Faults, Step};
pub use library::{Libraries, LibraryError};
pub use nvrtc::CompileError;
use nvrtc::{Architecture, Compiler};
pub use plan::CudaRowPlan;
use programs::{Arguments, Entry, Kernels};
pub use programs::{ProgramError, Resources};
pub use report::CudaReport;
use spans::Spans;
pub use survey::{Found, Survey};

/// The CUDA backend.
pub struct Cuda {
    // In the order in which they are to end.
    commands: Mutex<Commands>,
    /// Steps that are to be on the list before anything else.
    steps: Mutex<Vec<Step>>,
    constants: Mutex<HashMap<Box<[u8]>, Memory>>,
    scratch: Mutex<Memory>,
    /// What it does, while somebody looks.
    spans: Mutex<Option<Spans>>,
    recorder: Arc<Recorder>,
    /// What was found wrong with batches.
    faults: Memory,
    pinned: PinnedRanges,
    kernels: Kernels,
    blas: Blas,
    /// What computes, beside our kernels.
    libraries: Vec<LibraryVersion>,
    /// For batches to come on.
    copies: Stream,
    /// For all else.
    stream: Stream,
}

impl Cuda {
    /// GPU number `number` of this host. Compiled kernels are kept in `cache`, if it is given.
    ///
    /// # Errors
    /// When a library is missing or too old, or there is no such GPU, or none that is new enough or has any room.
    pub fn new(libraries: &Libraries, number: u32, cache: Option<&Path>) -> Result<Self, CudaError> {
        let context = Context::new(Driver::open(libraries)?, number)?;
        Self::on(&context, libraries, cache).map_err(|error| error.of_opened(&context))
    }

    /// The same, recorded by `recorder`.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Arc<Recorder>) -> Self {
        self.recorder = recorder;
        self
    }

    fn on(context: &Arc<Context>, libraries: &Libraries, cache: Option<&Path>) -> Result<Self, CudaError> {
        let compiler = Compiler::open(libraries)?;
        let blas = Blas::open(libraries, context)?;
        let kernels = Kernels::load(context, &compiler, &kernels::PROGRAMS, cache)?;
        let versions = [
            (driver::NAME, context.gpu().driver.clone()),
            (nvrtc::NAME, compiler.version()),
            (blas::NAME, blas::version(libraries).map_err(OpenBlasError::from)?),
        ];
        let library = |(name, version): (library::Name, String)| LibraryVersion {
            library: name.library.to_owned(),
            version,
        };
        let libraries = versions.map(library).to_vec();
        let new = || {
            let (stream, copies) = (Stream::new(context)?, Stream::new(context)?);
            let (scratch, faults) = (Memory::new(context, 0)?, Memory::new(context, size_of::<Faults>())?);
            let (commands, steps, constants) = (Mutex::default(), Mutex::default(), Mutex::default());
            let scratch = Mutex::new(scratch);
            let (pinned, spans) = (PinnedRanges::default(), Mutex::default());
            Ok(Self {
                commands,
                steps,
                constants,
                scratch,
                spans,
                recorder: Arc::default(),
                faults,
                pinned,
                kernels,
                blas,
                libraries,
                copies,
                stream,
            })
        };
        let this = new().map_err(|fault: Fault| DriverError::from(fault))?;
        this.clear_faults();
        Ok(this)
    }

    /// Which GPU it is.
    pub fn gpu(&self) -> &Gpu {
        self.context().gpu()
    }

    /// What each kernel takes of a GPU of compute capability `capability`, `10 * major + minor`: compiled anew, without a
    /// GPU.
    ///
    /// # Errors
    /// When the compiler is missing, or refuses a kernel.
    pub fn resources(libraries: &Libraries, capability: u32) -> Result<Vec<Resources>, CompileError> {
        let compiler = Compiler::open(libraries)?;
        let of = |program: &programs::Program| program.resources(&compiler, Architecture::Real(capability));
        let all: Result<Vec<_>, _> = kernels::PROGRAMS.iter().map(of).collect();
        Ok(all?.into_iter().flatten().collect())
    }

    fn context(&self) -> &Arc<Context> {
        self.stream.context()
    }

    /// Memory of any content.
    fn memory(&self, bytes: usize) -> Memory {
        self.must_have(bytes, Memory::new(self.context(), bytes))
    }

    /// What takes so many bytes of memory, of which there may be too little.
    fn must_have<T>(&self, bytes: usize, result: Result<T, Fault>) -> T {
        must(result.inspect_err(|fault| {
            if fault.is_out_of_memory() {
                let held = self.held_bytes();
                fault::out_of_memory(
                    &format!(" for {bytes} bytes beside the {held} that this job has of it"),
                    fault,
                );
            }
        }))
    }

    /// Bytes of the GPU's memory that it holds, with all that was made on it.
    pub fn held_bytes(&self) -> u64 {
        self.context().held_bytes()
    }

    /// At least so many bytes of any content, an operation's until the next. What [`layout`] says of an operation is made
    /// when a model is built.
    fn scratch(&self, bytes: usize) -> Address {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if scratch.bytes() < bytes {
            // What was asked for so far works in the present one, and there is to be room for one of both only.
            self.flush();
            *scratch = self.memory(0);
            *scratch = self.memory(bytes);
        }
        scratch.address()
    }

    /// Some numbers, in the GPU's memory once and for all: operations are given the same ones again and again.
    fn constants<T: Constant>(&self, values: &[T]) -> Address {
        let bytes = bytes_of(values);
        let mut constants = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = constants.get(bytes) {
            return memory.address();
        }
        let memory = self.memory(bytes.len());
        let address = memory.address();
        // SAFETY: memory that nothing on the list of commands knows of. Host memory that is not page-locked is read before
        // the call returns.
        must(unsafe { self.stream.copy_to_device(address, bytes) });
        constants.insert(bytes.into(), memory);
        address
    }

    /// The same; no address where there are none.
    fn constants_or_none<T: Constant>(&self, values: &[T]) -> Address {
        if values.is_empty() { 0 } else { self.constants(values) }
    }

    /// Copies to the GPU, to memory of this backend. The bytes may change once this returns.
    fn copy_to(&self, address: Address, bytes: &[u8]) {
        self.flush();
        // SAFETY: addresses come from buffers of this backend, with room for what is copied. Host memory that is not
        // page-locked is read before the call returns.
        must(unsafe { self.stream.copy_to_device(address, bytes) });
    }

    /// Waits for all that was asked for, and copies from the GPU.
    fn copy_from(&self, bytes: &mut [u8], address: Address) {
        self.flush();
        // SAFETY: as above; what is copied is looked at after waiting.
        must(unsafe { self.stream.copy_to_host(bytes, address) });
        must(self.stream.wait());
    }

    /// Runs a kernel, a thread for each of `threads[0]` items, by `threads[1]`.
    fn launch<A: Arguments>(&self, entry: Entry<A>, threads: [usize; 2], arguments: &A) {
        self.launch_blocks(entry, [threads[0].div_ceil(entry.threads as usize), threads[1]], arguments);
    }

    /// Runs so many blocks of a kernel; none where one of the two is 0.
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
        let [x, y] = blocks.map(|count| u32::try_from(count).expect("blocks of a grid"));
        if x == 0 || y == 0 {
            return;
        }
        let launch = Launch { kernel: *self.kernels.of(entry), blocks: [x, y], threads: entry.threads };
        // SAFETY: the entry's argument is laid out as the kernel's, and addresses in it are of this backend's buffers, whose
        // shapes the operations check; memory that is dropped is kept until the list is done.
        unsafe { commands.kernel(self.context(), launch, arguments) };
    }

    /// Does `work`, which launches kernels that share no memory with what follows them until it joins them.
    fn aside(&self, work: impl FnOnce()) {
        self.commands().take(Lane::Aside);
        work();
        self.commands().take(Lane::Main);
    }

    /// What follows comes after what was put aside.
    fn join(&self) {
        self.commands().join();
    }

    /// Makes a product of matrices. False where the library has no way to do all of it at once.
    fn multiply(&self, product: &Product) -> bool {
        let can = must(self.blas.can(product));
        if can {
            // SAFETY: operations check the shapes of what they multiply; memory is kept as above.
            unsafe { self.commands().product(self.context(), *product) };
        }
        can
    }

    /// Has the device do what was asked for so far.
    fn flush(&self) {
        if self.records_spans() {
            return self.flush_recorded();
        }
        must(self.commands().flush(&self.stream, &self.blas));
    }

    /// The list, with all that was asked for so far.
    fn commands(&self) -> MutexGuard<'_, Commands> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        self.put_steps(&mut commands);
        commands
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // What is on the list nobody will look at any more.
        self.context().catch_up();
    }
}

/// What kernels read from memory as it is.
///
/// # Safety
/// It consists of numbers, without padding.
unsafe trait Constant: Copy {}
// SAFETY: numbers.
unsafe impl Constant for u32 {}
// SAFETY: a number.
unsafe impl Constant for f32 {}
// SAFETY: as above.
unsafe impl Constant for u16 {}
// SAFETY: numbers of eight bytes, and then an even number of four.
unsafe impl Constant for kernels::ColumnView {}
// SAFETY: as above.
unsafe impl Constant for kernels::LookupView {}
// SAFETY: as above.
unsafe impl Constant for kernels::GroupView {}
// SAFETY: as above.
unsafe impl Constant for kernels::SourceView {}
// SAFETY: as above.
unsafe impl Constant for kernels::TableView {}
// SAFETY: as above.
unsafe impl Constant for Faults {}

/// Numbers as bytes.
fn bytes_of<T: Constant>(values: &[T]) -> &[u8] {
    // SAFETY: numbers without padding, as the trait promises.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Numbers as bytes, to write to.
fn bytes_of_mut<T: Constant>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: numbers without padding, and any bytes are numbers.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
