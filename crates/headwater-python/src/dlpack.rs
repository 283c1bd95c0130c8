//! DLPack: a description of memory that array libraries exchange without copying.
//!
//! The capsule is the unversioned kind (`dltensor`), which every library takes. Whoever takes it renames the capsule and calls
//! the deleter when it is done; a capsule that nobody took calls it itself. Until then it holds a reference to the Python object
//! that owns the memory.

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

/// `DLDevice`.
#[repr(C)]
struct Device {
    kind: i32,
    ordinal: i32,
}

/// `DLDataType`.
#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    data_type: DataType,
    shape: *mut i64,
    /// Null: in the order of C, without gaps.
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct ManagedTensor {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// What the managed tensor's pointers point to.
struct Context {
    managed: ManagedTensor,
    shape: Vec<i64>,
    owner: Option<Py<PyAny>>,
}

const NAME: &CStr = c"dltensor";

unsafe extern "C" fn delete(managed: *mut ManagedTensor) {
    if managed.is_null() {
        return;
    }
    // SAFETY: the managed tensor is the first field of a context that was leaked for this, once.
    let mut context = unsafe { Box::from_raw((*managed).context.cast::<Context>()) };
    // Whoever calls this may not hold the interpreter's lock.
    Python::attach(|_| drop(context.owner.take()));
}

unsafe extern "C" fn delete_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with a capsule that is going away. One that was taken has another name by now.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}

/// A capsule for the memory at `ptr`, which belongs to `owner`: a C-contiguous array of `shape` whose elements are of the DLPack
/// type (`code`, `bits`), on the DLPack device (`device_kind`, `device`).
#[pyfunction]
#[pyo3(signature = (owner, ptr, shape, code, bits, device_kind, device))]
#[expect(clippy::too_many_arguments, reason = "the fields of a description, called from one place in Python")]
fn dlpack_capsule(
    py: Python<'_>,
    owner: Py<PyAny>,
    ptr: u64,
    shape: Vec<i64>,
    code: u8,
    bits: u8,
    device_kind: i32,
    device: i32,
) -> PyResult<Py<PyAny>> {
    let mut context = Box::new(Context {
        managed: ManagedTensor {
            tensor: Tensor {
                data: ptr as *mut c_void,
                device: Device { kind: device_kind, ordinal: device },
                dimensions: i32::try_from(shape.len()).unwrap_or(i32::MAX),
                data_type: DataType { code, bits, lanes: 1 },
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            context: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        shape,
        owner: Some(owner),
    });
    context.managed.tensor.shape = context.shape.as_mut_ptr();
    let context = Box::into_raw(context);
    // SAFETY: just made; from now on it is reached through these pointers alone, until `delete` takes it back.
    unsafe {
        (*context).managed.context = context.cast();
        let managed = &raw mut (*context).managed;
        let capsule = ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(delete_capsule));
        if capsule.is_null() {
            delete(managed);
            return Err(PyErr::fetch(py));
        }
        Ok(Bound::from_owned_ptr(py, capsule).unbind())
    }
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(dlpack_capsule, module)?)
}
