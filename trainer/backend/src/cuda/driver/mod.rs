//! The CUDA driver API: contexts, memory, streams, events, modules, launches and graphs, as Rust values that
//! release what they acquire.
//!
//! Every failed call is a [`Fault`] with the function's name and the driver's error text. Once a kernel has failed,
//! all later calls in its context fail too; the only remedy is to end the process, which is a worker.

mod graph;
mod memory;
mod module;
mod out_of_memory;
mod stream;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::fault::GpuError;
use crate::library::{Handle, Libraries, LibraryError, Name, functions};
use graph::KernelNode;
pub(super) use graph::{Executable, Graph, Lane, Node};
pub(super) use memory::{Memory, PageLocked, Registered};
pub(super) use module::{Kernel, Launch, Module};
pub use out_of_memory::OutOfMemory;
pub(super) use stream::{Event, Stream};

/// A `CUresult`: 0 on success, otherwise an error code.
type Status = c_int;
/// An address in device memory.
pub(super) type Address = u64;

functions! {
    /// Functions of libcuda. Those of the first list end something, or describe a status.
    struct Functions {
        cuGetErrorName: fn(status: Status, name: *mut *const c_char) -> Status,
        cuGetErrorString: fn(status: Status, text: *mut *const c_char) -> Status,
        cuDevicePrimaryCtxRelease_v2: fn(device: c_int) -> Status,
        cuMemFree_v2: fn(address: Address) -> Status,
        cuMemFreeHost: fn(start: Handle) -> Status,
        cuMemHostUnregister: fn(start: Handle) -> Status,
        cuStreamDestroy_v2: fn(stream: Handle) -> Status,
        cuEventDestroy_v2: fn(event: Handle) -> Status,
        cuGraphDestroy: fn(graph: Handle) -> Status,
        cuGraphExecDestroy: fn(executable: Handle) -> Status,
        cuModuleUnload: fn(module: Handle) -> Status,
    }
    or Fault {
        cuInit: fn(flags: c_uint),
        cuDeviceGetCount: fn(count: *mut c_int),
        cuDeviceGet: fn(device: *mut c_int, ordinal: c_int),
        cuDeviceGetName: fn(name: *mut c_char, length: c_int, device: c_int),
        cuDeviceGetAttribute: fn(value: *mut c_int, attribute: c_int, device: c_int),
        cuDeviceTotalMem_v2: fn(bytes: *mut usize, device: c_int),
        cuDevicePrimaryCtxRetain: fn(context: *mut Handle, device: c_int),
        cuCtxSetCurrent: fn(context: Handle),
        cuMemGetInfo_v2: fn(free: *mut usize, total: *mut usize),
        cuMemAlloc_v2: fn(address: *mut Address, bytes: usize),
        cuMemHostAlloc: fn(start: *mut Handle, bytes: usize, flags: c_uint),
        cuMemHostRegister_v2: fn(start: Handle, bytes: usize, flags: c_uint),
        cuMemcpyHtoDAsync_v2: fn(to: Address, from: *const c_void, bytes: usize, stream: Handle),
        cuMemcpyDtoHAsync_v2: fn(to: *mut c_void, from: Address, bytes: usize, stream: Handle),
        cuMemsetD8Async: fn(to: Address, value: u8, bytes: usize, stream: Handle),
        cuStreamCreate: fn(stream: *mut Handle, flags: c_uint),
        cuStreamSynchronize: fn(stream: Handle),
        cuStreamWaitEvent: fn(stream: Handle, event: Handle, flags: c_uint),
        cuEventCreate: fn(event: *mut Handle, flags: c_uint),
        cuEventRecord: fn(event: Handle, stream: Handle),
        cuEventQuery: fn(event: Handle),
        cuEventSynchronize: fn(event: Handle),
        cuEventElapsedTime: fn(milliseconds: *mut f32, start: Handle, end: Handle),
        cuStreamBeginCapture_v2: fn(stream: Handle, mode: c_int),
        cuStreamEndCapture: fn(stream: Handle, graph: *mut Handle),
        cuGraphCreate: fn(graph: *mut Handle, flags: c_uint),
        cuGraphAddKernelNode_v2: fn(
            node: *mut Handle, graph: Handle, after: *const Handle, count: usize, kernel: *const KernelNode,
        ),
        cuGraphAddChildGraphNode: fn(
            node: *mut Handle, graph: Handle, after: *const Handle, count: usize, child: Handle,
        ),
        cuGraphInstantiateWithFlags: fn(executable: *mut Handle, graph: Handle, flags: u64),
        cuGraphExecKernelNodeSetParams_v2: fn(executable: Handle, node: Handle, kernel: *const KernelNode),
        cuGraphLaunch: fn(executable: Handle, stream: Handle),
        cuModuleLoadData: fn(module: *mut Handle, image: *const c_void),
        cuModuleGetFunction: fn(function: *mut Handle, module: Handle, name: *const c_char),
        cuLaunchKernel: fn(
            function: Handle,
            blocks_x: c_uint, blocks_y: c_uint, blocks_z: c_uint,
            threads_x: c_uint, threads_y: c_uint, threads_z: c_uint,
            shared_bytes: c_uint,
            stream: Handle,
            parameters: *mut *mut c_void,
            extra: *mut *mut c_void,
        ),
    }
}

pub(super) const NAME: Name = Name {
    library: "NVIDIA's driver",
    files: &["libcuda.so.1"],
    remedy: "install the driver for this GPU (packages nvidia-driver-580 or later, or your cloud's GPU image)",
};
/// CUDA 12.0, supported since driver 525: the first version with all functions in use here.
const LEAST_VERSION: i32 = 12_000;
/// bfloat16 instructions exist since compute capability 8.0 (A100).
const LEAST_CAPABILITY: (i32, i32) = (8, 0);
const OUT_OF_MEMORY: Status = 2;
const NOT_READY: Status = 600;

mod attribute {
    use std::ffi::c_int;

    pub(super) const MULTIPROCESSORS: c_int = 16;
    pub(super) const CAPABILITY_MAJOR: c_int = 75;
    pub(super) const CAPABILITY_MINOR: c_int = 76;
}

/// A failed driver call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function} of NVIDIA's driver failed: {name}, {text}")]
pub struct Fault {
    /// The function that failed.
    pub function: &'static str,
    /// The name of the error.
    pub name: String,
    /// The driver's description of the error.
    pub text: String,
    status: Status,
}

impl GpuError for Fault {
    fn is_out_of_memory(&self) -> bool {
        self.status == OUT_OF_MEMORY
    }
}

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The driver library is missing or too old.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A driver call failed.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The device has too little free memory.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// The device does not exist.
    #[error("there is no GPU number {wanted} on this host: the driver knows {count}")]
    NoDevice {
        /// The requested number, from 0.
        wanted: u32,
        /// The number of devices.
        count: u32,
    },
    /// The device is older than the kernels support.
    #[error("GPU {number} ({name}) has compute capability {found}: Millstream needs 8.0 (A100) or later")]
    OldDevice {
        /// The number of the device.
        number: u32,
        /// The name of the device.
        name: String,
        /// Its compute capability.
        found: String,
    },
}

/// Properties of a device, as the driver reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number on this host.
    pub number: u32,
    /// The product name.
    pub name: String,
    /// Compute capability: major and minor.
    pub capability: (i32, i32),
    /// The number of multiprocessors.
    pub multiprocessors: u32,
    /// Total memory in bytes.
    pub memory_bytes: u64,
    /// The latest CUDA version that the driver supports.
    pub driver: String,
}

/// The loaded driver library.
pub(super) struct Driver {
    functions: Functions,
    version: i32,
}

impl Driver {
    pub(super) fn open(libraries: &Libraries) -> Result<Self, DriverError> {
        let library = libraries.open(&NAME)?;
        // Check the version before loading the functions, to report an old driver as old rather than as incomplete.
        // SAFETY: the function pointer has the signature of cuda.h, and `version` is valid for writes during the
        // call.
        let version = unsafe {
            let get: unsafe extern "C" fn(*mut c_int) -> Status = library.function("cuDriverGetVersion")?;
            let mut version = 0;
            get(&raw mut version);
            version
        };
        library.check_version(version, LEAST_VERSION)?;
        let functions = Functions::load(library)?;
        // SAFETY: takes no pointers; called before any other function of the API that requires initialization.
        unsafe { functions.cuInit(0) }?;
        Ok(Self { functions, version })
    }

    /// The latest CUDA version that the driver supports.
    pub(super) fn version(&self) -> String {
        crate::library::version(self.version)
    }

    pub(super) fn devices(&self) -> Result<u32, Fault> {
        let mut count = 0;
        // SAFETY: `count` is valid for writes during the call.
        unsafe { self.functions.cuDeviceGetCount(&raw mut count) }?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The properties of device `number`.
    pub(super) fn describe(&self, number: u32) -> Result<Gpu, DriverError> {
        let count = self.devices()?;
        if number >= count {
            return Err(DriverError::NoDevice { wanted: number, count });
        }
        let (mut device, mut name, mut bytes) = (0, [0; 256], 0);
        let functions = &self.functions;
        // SAFETY: `device`, `name` and `bytes` are valid for writes during their calls, and `name.len()` is the
        // length of `name`.
        unsafe {
            functions.cuDeviceGet(&raw mut device, number as c_int)?;
            functions.cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device)?;
            functions.cuDeviceTotalMem_v2(&raw mut bytes, device)?;
        }
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: `value` is valid for writes during the call.
            unsafe { functions.cuDeviceGetAttribute(&raw mut value, attribute, device) }.map(|()| value)
        };
        // SAFETY: the driver terminates the name with a zero byte within the length that it was given.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Ok(Gpu {
            number,
            name,
            capability: (attribute(attribute::CAPABILITY_MAJOR)?, attribute(attribute::CAPABILITY_MINOR)?),
            multiprocessors: attribute(attribute::MULTIPROCESSORS)? as u32,
            memory_bytes: bytes as u64,
            driver: self.version(),
        })
    }
}

impl Functions {
    fn check(&self, function: &'static str, status: Status) -> Result<(), Fault> {
        if status == 0 {
            return Ok(());
        }
        let text_of = |get: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut text = ptr::null();
            // SAFETY: `text` is valid for writes during the call.
            match unsafe { get(status, &raw mut text) } {
                // SAFETY: on success `text` is null or a zero-terminated string that lives as long as the driver
                // library.
                0 if !text.is_null() => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
                _ => format!("status {status}"),
            }
        };
        let (name, text) = (text_of(self.cuGetErrorName), text_of(self.cuGetErrorString));
        // The suffix is a version of the function's binary interface, which its documentation does not mention.
        Err(Fault { function: function.trim_end_matches("_v2"), name, text, status })
    }
}

/// The primary context of a device.
pub(super) struct Context {
    driver: Driver,
    gpu: Gpu,
    device: c_int,
    handle: Handle,
    /// Whether commands are pending that were not submitted to the driver yet.
    is_behind: AtomicBool,
    /// Dropped memory that pending commands or open sums may still use; freed when they have been submitted, or have ended.
    left: Mutex<Vec<Address>>,
    /// Sums over ranks that have not ended, as far as the host knows. One that waits for a lost rank never ends, and neither
    /// do calls that wait for the device. So nothing is freed or destroyed meanwhile; the process that has lost a rank ends.
    open_sums: AtomicUsize,
    /// Bytes of all live allocations.
    held_bytes: AtomicU64,
}

impl Context {
    pub(super) fn new(driver: Driver, number: u32) -> Result<Arc<Self>, DriverError> {
        let gpu = driver.describe(number)?;
        if gpu.capability < LEAST_CAPABILITY {
            let found = format!("{}.{}", gpu.capability.0, gpu.capability.1);
            return Err(DriverError::OldDevice { number, name: gpu.name, found });
        }
        let (mut device, mut handle) = (0, Handle::NULL);
        // SAFETY: `device` is valid for writes during the call.
        unsafe { driver.functions.cuDeviceGet(&raw mut device, number as c_int) }?;
        // SAFETY: `handle` is valid for writes during the call.
        if let Err(fault) = unsafe { driver.functions.cuDevicePrimaryCtxRetain(&raw mut handle, device) } {
            return Err(match fault.is_out_of_memory() {
                // The driver reports free memory only within a context.
                true => DriverError::OutOfMemory(Box::new(OutOfMemory { gpu, free_bytes: None, fault })),
                false => fault.into(),
            });
        }
        Ok(Arc::new(Self {
            driver,
            gpu,
            device,
            handle,
            is_behind: AtomicBool::new(false),
            left: Mutex::default(),
            open_sums: AtomicUsize::new(0),
            held_bytes: AtomicU64::new(0),
        }))
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Bytes of device memory held by live allocations.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of device memory that no process holds.
    pub(super) fn free_bytes(&self) -> Result<u64, Fault> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: `free` and `total` are valid for writes during the call.
        unsafe { self.enter()?.cuMemGetInfo_v2(&raw mut free, &raw mut total) }?;
        Ok(free as u64)
    }

    /// The driver's functions, after making this context current on the calling thread.
    fn enter(&self) -> Result<&Functions, Fault> {
        let functions = &self.driver.functions;
        // SAFETY: the context was retained in `new` and is released only on drop.
        unsafe { functions.cuCtxSetCurrent(self.handle) }?;
        Ok(functions)
    }

    /// Makes this context current on the calling thread, for a library that uses the current one.
    pub(super) fn make_current(&self) -> Result<(), Fault> {
        self.enter().map(|_| ())
    }

    /// A sum over ranks begins: from now on, dropped memory is not freed.
    pub(super) fn begin_sum(&self) {
        self.open_sums.fetch_add(1, Ordering::Relaxed);
    }

    /// A sum over ranks has ended.
    pub(super) fn end_sum(&self) {
        self.open_sums.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn has_open_sums(&self) -> bool {
        self.open_sums.load(Ordering::Relaxed) > 0
    }

    /// Defers freeing dropped memory, because commands are pending that were not submitted to the driver yet.
    pub(super) fn fall_behind(&self) {
        self.is_behind.store(true, Ordering::Relaxed);
    }

    /// Frees the memory dropped meanwhile, unless sums are open: all commands were submitted, or will never run.
    pub(super) fn catch_up(&self) {
        self.is_behind.store(false, Ordering::Relaxed);
        if self.has_open_sums() {
            return;
        }
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if let (false, Ok(functions)) = (left.is_empty(), self.enter()) {
            for address in left.drain(..) {
                // SAFETY: each address was allocated once and is freed once; cuMemFree waits for submitted work
                // that uses it.
                unsafe { (functions.cuMemFree_v2)(address) };
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.has_open_sums() {
            return;
        }
        // SAFETY: retained once in `new`, released once here. The status is ignored: nothing can be done about a
        // broken context.
        unsafe { (self.driver.functions.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// An object of the driver, destroyed on drop.
struct Object {
    context: Arc<Context>,
    handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    /// Whether its destruction may wait for the device.
    may_wait: bool,
}

impl Object {
    /// Creates an object with `create`, which writes its handle.
    ///
    /// # Safety
    /// `destroy` may be called once with the handle that `create` writes, unless it is null, and nothing else destroys
    /// the object.
    unsafe fn new(
        context: &Arc<Context>,
        create: impl FnOnce(&Functions, *mut Handle) -> Result<(), Fault>,
        destroy: impl FnOnce(&Functions) -> unsafe extern "C" fn(Handle) -> Status,
    ) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let mut handle = Handle::NULL;
        create(functions, &raw mut handle)?;
        Ok(Self { context: Arc::clone(context), handle, destroy: destroy(functions), may_wait: false })
    }

    /// The same object, whose destruction may wait for the device.
    fn waiting(mut self) -> Self {
        self.may_wait = true;
        self
    }

    /// The driver's functions, with the object's context current on the calling thread.
    fn enter(&self) -> Result<&Functions, Fault> {
        self.context.enter()
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let may_hang = self.may_wait && self.context.has_open_sums();
        if !self.handle.is_null() && !may_hang && self.enter().is_ok() {
            // SAFETY: the caller of `new` guarantees that the object may be destroyed once. The library is loaded as
            // long as its context exists. The driver completes submitted work that uses the object.
            unsafe { (self.destroy)(self.handle) };
        }
    }
}
