//! Matrix products with cuBLASLt.
//!
//! cuBLASLt's matrices are column-major. A row-major matrix is the transpose of the column-major matrix with the
//! same memory, so we compute the transposed product: `C^T = B^T A^T`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::driver::{Address, Context, Fault, Memory, Stream};
use super::fault::GpuError;
use crate::float::Float;
use crate::library::{Handle, Libraries, Library, LibraryError, Name, functions};

type Status = c_int;

functions! {
    /// Functions of libcublasLt. Those of the first list end something, or describe a status.
    struct Functions {
        cublasLtGetStatusString: fn(status: Status) -> *const c_char,
        cublasLtDestroy: fn(handle: Handle) -> Status,
        cublasLtMatmulDescDestroy: fn(descriptor: Handle) -> Status,
        cublasLtMatrixLayoutDestroy: fn(layout: Handle) -> Status,
        cublasLtMatmulPreferenceDestroy: fn(preference: Handle) -> Status,
    }
    or BlasError {
        cublasLtCreate: fn(handle: *mut Handle),
        cublasLtMatmulDescCreate: fn(descriptor: *mut Handle, compute: c_int, scale: c_int),
        cublasLtMatmulDescSetAttribute: fn(
            descriptor: Handle, attribute: c_int, value: *const c_void, bytes: usize,
        ),
        cublasLtMatrixLayoutCreate: fn(layout: *mut Handle, kind: c_int, rows: u64, columns: u64, stride: i64),
        cublasLtMatmulPreferenceCreate: fn(preference: *mut Handle),
        cublasLtMatmulPreferenceSetAttribute: fn(
            preference: Handle, attribute: c_int, value: *const c_void, bytes: usize,
        ),
        cublasLtMatmulAlgoGetHeuristic: fn(
            handle: Handle,
            descriptor: Handle,
            a: Handle, b: Handle, c: Handle, d: Handle,
            preference: Handle,
            most: c_int,
            found: *mut Heuristic,
            count: *mut c_int,
        ),
        cublasLtMatmul: fn(
            handle: Handle,
            descriptor: Handle,
            alpha: *const c_void,
            a: Address, a_layout: Handle,
            b: Address, b_layout: Handle,
            beta: *const c_void,
            c: Address, c_layout: Handle,
            d: Address, d_layout: Handle,
            algorithm: *const Algorithm,
            workspace: Address,
            workspace_bytes: usize,
            stream: Handle,
        ),
    }
}

pub(super) const NAME: Name = Name {
    library: "NVIDIA's GEMM library (cuBLASLt)",
    files: &["libcublasLt.so.13", "libcublasLt.so.12"],
    remedy: "install package libcublas-13-0 or later, of the series of CUDA that your driver serves",
};
const LEAST_VERSION: i32 = 12_000;

/// The constants of cublasLt.h in use here.
mod constant {
    use std::ffi::c_int;

    /// CUBLAS_COMPUTE_32F: fp32 accumulation, fp32 factors in full precision.
    pub(super) const COMPUTE_F32: c_int = 68;
    /// CUBLAS_COMPUTE_32F_FAST_TF32: fp32 factors are rounded to tf32 (11 significant bits).
    pub(super) const COMPUTE_TF32: c_int = 77;
    pub(super) const R_F32: c_int = 0;
    pub(super) const R_F16: c_int = 2;
    pub(super) const R_BF16: c_int = 14;

    pub(super) const TRANSPOSE_A: c_int = 3;
    pub(super) const TRANSPOSE_B: c_int = 4;
    pub(super) const EPILOGUE: c_int = 7;
    pub(super) const BIAS_POINTER: c_int = 8;

    pub(super) const TRANSPOSED: c_int = 1;
    pub(super) const MOST_WORKSPACE: c_int = 1;
    pub(super) const REDUCTION_SCHEMES: c_int = 3;
    /// Parts of a product that is split along its depth are added in fp32.
    pub(super) const REDUCES_IN_COMPUTE_TYPE: u32 = 2;

    pub(super) const PLAIN: u32 = 1;
    pub(super) const RELU: u32 = 2;
    pub(super) const BIAS: u32 = 4;
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Algorithm([u64; 8]);

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Heuristic {
    algorithm: Algorithm,
    workspace_bytes: usize,
    status: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// A failed cuBLASLt call.
#[derive(Debug, thiserror::Error)]
#[error("{function} of cuBLASLt failed: {text}")]
pub(super) struct BlasError {
    function: &'static str,
    text: String,
}

impl Functions {
    fn check(&self, function: &'static str, status: Status) -> Result<(), BlasError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library has a zero-terminated text for every status, which lives as long as the library.
        let text = unsafe { CStr::from_ptr((self.cublasLtGetStatusString)(status)) };
        Err(BlasError { function, text: text.to_string_lossy().into_owned() })
    }
}

/// The library allocates no memory: its workspace is preallocated.
impl GpuError for BlasError {}

/// A matrix on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Factor {
    pub(super) address: Address,
    pub(super) float: Float,
    /// Row stride, in elements.
    pub(super) stride: usize,
    /// Whether the product uses the transpose.
    pub(super) is_transposed: bool,
}

/// A fused epilogue of a product. Biases are `[1, columns]`, in the format of `out`.
///
/// Masks and column sums of gradients are our own kernels: on an H200, cuBLASLt 13.1 runs its epilogues for them, DRELU and
/// BGRAD, as passes of their own, which take longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Epilogue {
    /// No epilogue.
    #[default]
    Plain,
    /// Adds a bias.
    Bias(Address),
    /// Adds a bias, if any, and applies ReLU.
    Rectified(Option<Address>),
}

/// `out = [out +] left . right`, `[rows, depth] . [depth, columns]`, with fp32 accumulation and an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Product {
    pub(super) rows: usize,
    pub(super) depth: usize,
    pub(super) columns: usize,
    pub(super) left: Factor,
    /// In the format of `left`.
    pub(super) right: Factor,
    pub(super) out: Factor,
    /// Whether the product is added to `out`.
    pub(super) adds: bool,
    pub(super) epilogue: Epilogue,
}

/// The key of a plan: a product without its addresses, and whether its factors are rounded to tf32.
type Key = (Product, bool);

/// A prepared matmul.
struct Plan {
    descriptor: Handle,
    /// Layouts of a, b and d; c is d.
    layouts: [Handle; 3],
    algorithm: Algorithm,
}

/// The library, loaded and initialized. Several threads may use its handle at once, but not a descriptor: those are
/// used under the lock of `plans`.
pub(super) struct Blas {
    functions: Functions,
    handle: Handle,
    workspace: Memory,
    /// `None` if the library has no algorithm for the key.
    plans: Mutex<HashMap<Key, Option<Plan>>>,
    allows_tf32: AtomicBool,
}

/// Size of the workspace, as NVIDIA recommends for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// Why the library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenBlasError {
    /// The library is missing or too old.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The workspace could not be allocated.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The library failed to initialize.
    #[error("{0}")]
    Refused(String),
}

/// Opens the library and returns its version, `1000 * major + 10 * minor`, which is at least `LEAST_VERSION`.
fn open(libraries: &Libraries) -> Result<(Library, i32), LibraryError> {
    let library = libraries.open(&NAME)?;
    // SAFETY: the function pointer has the signature of cublasLt.h and takes no arguments.
    let found = unsafe {
        let get: unsafe extern "C" fn() -> usize = library.function("cublasLtGetVersion")?;
        // The library counts `10000 * major + 100 * minor + patch`.
        (get() / 10) as i32
    };
    library.check_version(found, LEAST_VERSION)?;
    Ok((library, found))
}

/// The version of this host's library.
pub(super) fn version(libraries: &Libraries) -> Result<String, LibraryError> {
    open(libraries).map(|(_, version)| crate::library::version(version))
}

impl Blas {
    pub(super) fn open(libraries: &Libraries, context: &Arc<Context>) -> Result<Self, OpenBlasError> {
        let (library, _) = open(libraries)?;
        let functions = Functions::load(library)?;
        let workspace = Memory::new(context, WORKSPACE_BYTES)?;
        let mut handle = Handle::NULL;
        // SAFETY: `handle` is valid for writes during the call.
        let created = unsafe { functions.cublasLtCreate(&raw mut handle) };
        created.map_err(|error| OpenBlasError::Refused(error.to_string()))?;
        let allows_tf32 = AtomicBool::new(false);
        Ok(Self { functions, handle, workspace, plans: Mutex::default(), allows_tf32 })
    }

    /// Sets whether fp32 products may round their factors to tf32.
    pub(super) fn allow_tf32(&self, is_allowed: bool) {
        self.allows_tf32.store(is_allowed, Ordering::Relaxed);
    }

    fn key(&self, product: &Product) -> Key {
        let allows_tf32 = self.allows_tf32.load(Ordering::Relaxed);
        (product.without_addresses(), allows_tf32 && product.left.float == Float::F32)
    }

    /// Whether the library has an algorithm for the product with its epilogue and formats.
    pub(super) fn can(&self, product: &Product) -> Result<bool, BlasError> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let key = self.key(product);
        let plan = match plans.entry(key) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => place.insert(self.plan(product, key.1)?),
        };
        Ok(plan.is_some())
    }

    /// Computes a product for which [`Self::can`] returned true.
    ///
    /// # Safety
    /// All addresses are memory of the stream's device, with the sizes that `product` declares.
    pub(super) unsafe fn multiply(&self, stream: &Stream, product: &Product) -> Result<(), BlasError> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan =
            plans.get(&self.key(product)).and_then(Option::as_ref).expect("a product that `can` accepted");
        self.set_bias(plan.descriptor, product.epilogue)?;
        let (alpha, beta) = (1.0_f32, if product.adds { 1.0_f32 } else { 0.0 });
        let [a, b, d] = plan.layouts;
        let (left, right, out) = (product.left.address, product.right.address, product.out.address);
        // SAFETY: the caller guarantees valid matrices. `alpha` and `beta` are fp32 on the host, which is the
        // default pointer mode.
        unsafe {
            self.functions.cublasLtMatmul(
                self.handle,
                plan.descriptor,
                (&raw const alpha).cast(),
                right,
                a,
                left,
                b,
                (&raw const beta).cast(),
                out,
                d,
                out,
                d,
                &raw const plan.algorithm,
                self.workspace.address(),
                self.workspace.bytes(),
                stream.handle(),
            )
        }
    }

    fn set<T>(&self, descriptor: Handle, attribute: c_int, value: &T) -> Result<(), BlasError> {
        // SAFETY: the library reads `size_of::<T>()` bytes of `value`, and rejects a size that does not match the
        // attribute.
        unsafe {
            let value = ptr::from_ref(value).cast();
            self.functions.cublasLtMatmulDescSetAttribute(descriptor, attribute, value, size_of::<T>())
        }
    }

    fn set_bias(&self, descriptor: Handle, epilogue: Epilogue) -> Result<(), BlasError> {
        epilogue.bias().map_or(Ok(()), |bias| self.set(descriptor, constant::BIAS_POINTER, &bias))
    }

    fn plan(&self, product: &Product, is_tf32: bool) -> Result<Option<Plan>, BlasError> {
        let mut plan =
            Plan { descriptor: Handle::NULL, layouts: [Handle::NULL; 3], algorithm: Algorithm([0; 8]) };
        let found = self.fill(product, is_tf32, &mut plan);
        if let Ok(true) = found {
            return Ok(Some(plan));
        }
        self.end(&plan);
        found.map(|_| None)
    }

    /// Fills `plan`; returns whether the library has an algorithm.
    fn fill(&self, product: &Product, is_tf32: bool, plan: &mut Plan) -> Result<bool, BlasError> {
        let compute = if is_tf32 { constant::COMPUTE_TF32 } else { constant::COMPUTE_F32 };
        let (functions, descriptor) = (&self.functions, &raw mut plan.descriptor);
        // SAFETY: `descriptor` is valid for writes during the call.
        unsafe { functions.cublasLtMatmulDescCreate(descriptor, compute, constant::R_F32) }?;
        let sides = [(product.right, constant::TRANSPOSE_A), (product.left, constant::TRANSPOSE_B)];
        for (_, attribute) in sides.iter().filter(|(factor, _)| factor.is_transposed) {
            self.set(plan.descriptor, *attribute, &constant::TRANSPOSED)?;
        }
        self.set(plan.descriptor, constant::EPILOGUE, &product.epilogue.code())?;
        self.set_bias(plan.descriptor, product.epilogue)?;
        for (layout, (float, rows, columns, stride)) in plan.layouts.iter_mut().zip(product.layouts()) {
            let kind = match float {
                Float::F32 => constant::R_F32,
                Float::Bf16 => constant::R_BF16,
                Float::F16 => constant::R_F16,
            };
            let (rows, columns, stride) = (rows as u64, columns as u64, stride as i64);
            // SAFETY: `layout` is valid for writes during the call.
            unsafe { functions.cublasLtMatrixLayoutCreate(layout, kind, rows, columns, stride) }?;
        }
        self.choose(plan)
    }

    /// Selects the first algorithm of the library's heuristic.
    fn choose(&self, plan: &mut Plan) -> Result<bool, BlasError> {
        let (functions, [a, b, d]) = (&self.functions, plan.layouts);
        let (mut preference, mut found, mut count) = (Handle::NULL, Heuristic::default(), 0);
        let bytes = (self.workspace.bytes() as u64).to_ne_bytes();
        // By default, parts may also be added in the format of the output, which rounds each of them.
        let schemes = constant::REDUCES_IN_COMPUTE_TYPE.to_ne_bytes();
        let preferences: [(c_int, &[u8]); 2] =
            [(constant::MOST_WORKSPACE, &bytes), (constant::REDUCTION_SCHEMES, &schemes)];
        // SAFETY: all handles are live, `preference`, `found` and `count` are valid for writes during their calls,
        // `found` has room for the one requested result, and `Heuristic` has the layout of cublasLt.h.
        let answered = unsafe {
            functions.cublasLtMatmulPreferenceCreate(&raw mut preference)?;
            let set = preferences.into_iter().try_for_each(|(attribute, value)| {
                let (value, bytes) = (value.as_ptr().cast(), value.len());
                functions.cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes)
            });
            let answered = functions.cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                plan.descriptor,
                a,
                b,
                d,
                d,
                preference,
                1,
                &raw mut found,
                &raw mut count,
            );
            (functions.cublasLtMatmulPreferenceDestroy)(preference);
            set?;
            answered
        };
        plan.algorithm = found.algorithm;
        Ok(answered.is_ok() && count > 0 && found.status == 0)
    }

    fn end(&self, plan: &Plan) {
        // SAFETY: each handle was created once and is destroyed once, or is null and skipped.
        unsafe {
            for layout in plan.layouts.into_iter().filter(|layout| !layout.is_null()) {
                (self.functions.cublasLtMatrixLayoutDestroy)(layout);
            }
            if !plan.descriptor.is_null() {
                (self.functions.cublasLtMatmulDescDestroy)(plan.descriptor);
            }
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let plans = std::mem::take(self.plans.get_mut().unwrap_or_else(PoisonError::into_inner));
        plans.values().flatten().for_each(|plan| self.end(plan));
        // SAFETY: created once, destroyed once.
        unsafe { (self.functions.cublasLtDestroy)(self.handle) };
    }
}

impl Product {
    /// What a plan depends on.
    fn without_addresses(mut self) -> Self {
        for matrix in [&mut self.left, &mut self.right, &mut self.out] {
            matrix.address = 0;
        }
        self.epilogue = match self.epilogue {
            Epilogue::Plain => Epilogue::Plain,
            Epilogue::Bias(_) => Epilogue::Bias(0),
            Epilogue::Rectified(bias) => Epilogue::Rectified(bias.map(|_| 0)),
        };
        Self { adds: false, ..self }
    }

    /// Format, rows, columns and stride of a, b and d: column-major, as stored, before transposition.
    fn layouts(&self) -> [(Float, usize, usize, usize); 3] {
        let Self { rows, depth, columns, left, right, out, .. } = *self;
        let stored = |factor: Factor, rows: usize, columns: usize| {
            let (rows, columns) = if factor.is_transposed { (columns, rows) } else { (rows, columns) };
            (factor.float, rows, columns, factor.stride)
        };
        [stored(right, columns, depth), stored(left, depth, rows), stored(out, columns, rows)]
    }
}

impl Epilogue {
    /// The library's constant.
    fn code(self) -> u32 {
        match self {
            Self::Plain => constant::PLAIN,
            Self::Bias(_) => constant::BIAS,
            Self::Rectified(bias) => constant::RELU | bias.map_or(0, |_| constant::BIAS),
        }
    }

    /// The address of the added bias.
    fn bias(self) -> Option<Address> {
        match self {
            Self::Bias(address) => Some(address),
            Self::Rectified(bias) => bias,
            Self::Plain => None,
        }
    }
}
