//! The driver API's types, struct layouts and constants, as `cuda.h` of CUDA 12 and 13 has them.
//!
//! Enumerations that cross the boundary are plain integers here: a C caller can pass any value, and a Rust `enum` with an
//! unlisted value would be undefined behaviour.

// The names are CUDA's.
#![allow(non_camel_case_types)]

use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};

use headwater_driver::DriverError;

/// A result code. Open: a driver may return codes that no header lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct CUresult(pub(crate) u32);

/// The device's ordinal, as `cuDeviceGet` gives it.
pub(crate) type CUdevice = c_int;
/// A device address.
pub(crate) type CUdeviceptr = u64;
/// `CUmemGenericAllocationHandle`: the one handle that is a number and not a pointer.
pub(crate) type CUmemHandle = u64;

/// Opaque things are pointers that nobody follows. One type a kind, so that Rust tells them apart.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) *mut c_void);

        impl $name {
            /// The value under which the registry knows it.
            pub(crate) fn raw(self) -> u64 {
                self.0.addr() as u64
            }

            /// The pointer-sized value that callers hold.
            pub(crate) fn from_raw(raw: u64) -> Self {
                Self(std::ptr::without_provenance_mut(raw as usize))
            }
        }
    )*};
}

opaque! { CUcontext CUstream CUevent CUmodule CUfunction CUgraph CUgraphExec }

/// `CUuuid`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CUuuid {
    pub(crate) bytes: [u8; 16],
}

/// `CUmemLocation`: a kind of place and which one.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct CUmemLocation {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`: what physical memory to create.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CUmemAllocationProp {
    pub(crate) kind: c_uint,
    pub(crate) requested_handle_types: c_uint,
    pub(crate) location: CUmemLocation,
    pub(crate) win32_handle_meta_data: *mut c_void,
    pub(crate) compression_type: c_uchar,
    pub(crate) gpu_direct_rdma_capable: c_uchar,
    pub(crate) usage: c_ushort,
    pub(crate) reserved: [c_uchar; 4],
}

/// `CUmemAccessDesc`: who may do what with a mapped range.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CUmemAccessDesc {
    pub(crate) location: CUmemLocation,
    pub(crate) flags: c_uint,
}

// The layouts that a C caller has compiled in.
const _: () = assert!(size_of::<CUmemLocation>() == 8);
const _: () = assert!(size_of::<CUmemAllocationProp>() == 32);
const _: () = assert!(std::mem::offset_of!(CUmemAllocationProp, win32_handle_meta_data) == 16);
const _: () = assert!(std::mem::offset_of!(CUmemAllocationProp, compression_type) == 24);
const _: () = assert!(size_of::<CUmemAccessDesc>() == 12);

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(crate) const ALLOCATION_TYPE_PINNED: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(crate) const LOCATION_DEVICE: c_uint = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub(crate) const ACCESS_READ_WRITE: c_uint = 3;
/// `CU_MEMORYTYPE_HOST`.
pub(crate) const MEMORY_TYPE_HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`.
pub(crate) const MEMORY_TYPE_DEVICE: c_uint = 2;

macro_rules! results {
    ($($name:ident $code:literal,)*) => {
        impl CUresult {
            $(pub(crate) const $name: Self = Self($code);)*
        }
    };
}

// Those that this library returns by itself; `errors.rs` has the names of all.
results! {
    SUCCESS 0,
    INVALID_VALUE 1,
    NOT_INITIALIZED 3,
    NO_DEVICE 100,
    INVALID_DEVICE 101,
    INVALID_CONTEXT 201,
    NO_BINARY_FOR_GPU 209,
    PEER_ACCESS_UNSUPPORTED 217,
    INVALID_HANDLE 400,
    NOT_READY 600,
    PEER_ACCESS_ALREADY_ENABLED 704,
    CONTEXT_IS_DESTROYED 709,
    HOST_MEMORY_NOT_REGISTERED 713,
    NOT_SUPPORTED 801,
    UNKNOWN 999,
}

impl From<DriverError> for CUresult {
    /// The simulator speaks in CUDA's codes already. A success code inside of an error would be read as success by the
    /// caller, so it becomes "unknown".
    fn from(error: DriverError) -> Self {
        match error.code() {
            0 => Self::UNKNOWN,
            code => Self(code),
        }
    }
}
