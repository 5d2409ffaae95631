//! Arrays that other libraries use without a copy: NumPy by the array interface, the others by DLPack.
//!
//! Sources: the Python specification of DLPack (`dlpack.h` 1.1, structure `DLManagedTensor`), and version 3 of NumPy's
//! array interface. The unversioned structure is the one that all libraries read.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use millstream_batch::Dtype;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::held::Held;

/// The name of a capsule that nobody has taken yet.
const UNUSED: &CStr = c"dltensor";

/// `kDLCPU`.
const DEVICE_CPU: i32 = 1;

/// Numbers in the memory of a batch. It keeps the batch.
#[pyclass(frozen, module = "millstream._native")]
pub(crate) struct Array {
    held: Arc<Held>,
    /// Within the memory of `held`.
    start: *const u8,
    dtype: Dtype,
    shape: Vec<i64>,
}

// SAFETY: the memory at `start` is only read, and `held`, which owns it, may be used and dropped by any thread.
unsafe impl Send for Array {}
// SAFETY: as for `Send`.
unsafe impl Sync for Array {}

/// `DLTensor`, with the device and the type of `dlpack.h` inline.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct ManagedTensor {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// What a managed tensor points to.
struct Context {
    _held: Arc<Held>,
    shape: Vec<i64>,
}

impl Array {
    /// The array of `shape` of these values, which are in the memory of `held`.
    ///
    /// # Panics
    /// When there are more or fewer values.
    pub(crate) fn new<T>(held: &Arc<Held>, values: &[T], dtype: Dtype, shape: Vec<i64>) -> Self {
        let count = shape.iter().product::<i64>() as usize;
        assert_eq!(size_of_val(values), count * dtype.bytes(), "the values of an array");
        Self { held: Arc::clone(held), start: values.as_ptr().cast(), dtype, shape }
    }
}

#[pymethods]
impl Array {
    /// The sizes of the dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The name of the type of the values, such as `float32`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// NumPy's array interface. NumPy has no `bfloat16`: its values appear as `uint16`, and `ml_dtypes` has a view of
    /// them.
    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", type_string(self.dtype))?;
        // Read-only: the ring is shared memory.
        interface.set_item("data", (self.start.addr(), true))?;
        Ok(interface)
    }

    /// The kind and the number of the device that has the memory: the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (DEVICE_CPU, 0)
    }

    /// A capsule of DLPack.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<Py<PyAny>>,
        max_version: Option<Py<PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        // The unversioned structure answers any version, and the CPU has no streams.
        drop((stream, max_version));
        if dl_device.is_some_and(|device| device != (DEVICE_CPU, 0)) {
            return Err(PyBufferError::new_err("the memory of a batch is that of the CPU"));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("the memory of a batch is passed without a copy"));
        }
        let (type_code, type_bits) = type_code(self.dtype);
        let context = Box::new(Context { _held: Arc::clone(&self.held), shape: self.shape.clone() });
        let context = Box::into_raw(context);
        // SAFETY: `context` is valid until `delete` frees it. The shape is only read through the pointer, and its buffer does
        // not move with the context.
        let shape = unsafe { (*context).shape.as_mut_ptr() };
        let tensor = Box::into_raw(Box::new(ManagedTensor {
            tensor: Tensor {
                data: self.start.cast_mut().cast(),
                device_type: DEVICE_CPU,
                device_id: 0,
                ndim: self.shape.len() as i32,
                type_code,
                type_bits,
                type_lanes: 1,
                shape,
                // Null: contiguous, row-major.
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            context: context.cast(),
            deleter: Some(delete),
        }));
        // SAFETY: the interpreter is attached, the name is static, and `destroy` accepts such a capsule.
        let capsule = unsafe { ffi::PyCapsule_New(tensor.cast(), UNUSED.as_ptr(), Some(destroy)) };
        if capsule.is_null() {
            // SAFETY: nobody else has the tensor.
            unsafe { delete(tensor) };
            return Err(PyErr::fetch(py));
        }
        // SAFETY: `PyCapsule_New` returns a new reference.
        Ok(unsafe { Bound::from_owned_ptr(py, capsule) }.unbind())
    }
}

/// Frees a managed tensor and ends its hold on the batch. Any thread may call it, also without Python.
///
/// # Safety
/// `tensor` is one of [`Array::__dlpack__`] that has not been deleted.
unsafe extern "C" fn delete(tensor: *mut ManagedTensor) {
    // SAFETY: both were made by `Box::into_raw`, and the caller deletes them once.
    unsafe {
        let tensor = Box::from_raw(tensor);
        drop(Box::from_raw(tensor.context.cast::<Context>()));
    }
}

/// Destroys a capsule. One that was used has another name, and its tensor another owner.
///
/// # Safety
/// `capsule` is one of [`Array::__dlpack__`], and the interpreter is attached.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: by the caller. A capsule with that name still owns its tensor.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNUSED.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, UNUSED.as_ptr()).cast());
        }
    }
}

/// `DLDataTypeCode` and the number of bits.
fn type_code(dtype: Dtype) -> (u8, u8) {
    const INT: u8 = 0;
    const UINT: u8 = 1;
    const FLOAT: u8 = 2;
    const BFLOAT: u8 = 4;
    const BOOL: u8 = 6;
    let code = match dtype {
        Dtype::Bool => BOOL,
        Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => UINT,
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => INT,
        Dtype::Float16 | Dtype::Float32 | Dtype::Float64 => FLOAT,
        Dtype::Bfloat16 => BFLOAT,
    };
    (code, 8 * dtype.bytes() as u8)
}

/// The type in NumPy's array interface, in the byte order of this machine.
fn type_string(dtype: Dtype) -> String {
    let kind = match dtype {
        Dtype::Bool => 'b',
        Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 | Dtype::Bfloat16 => 'u',
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => 'i',
        Dtype::Float16 | Dtype::Float32 | Dtype::Float64 => 'f',
    };
    let order = match dtype.bytes() {
        1 => '|',
        _ if cfg!(target_endian = "little") => '<',
        _ => '>',
    };
    format!("{order}{kind}{}", dtype.bytes())
}
