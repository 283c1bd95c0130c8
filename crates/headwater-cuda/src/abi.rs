//! The driver's binary interface: the types, structs and numbers of `cuda.h` that the calls in `table.rs` use.
//!
//! Enumerations of `cuda.h` are plain numbers here. A newer driver may answer with a value that this crate has never
//! heard of, and a Rust enum that holds such a value is undefined behaviour.

use std::ffi::c_void;

/// `CUresult`, open: every number is a legal value.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct CuResult(pub(crate) u32);

macro_rules! results {
    ($($name:ident = $code:literal, $cuda:literal;)*) => {
        impl CuResult {
            $(pub(crate) const $name: Self = Self($code);)*

            /// The driver's name for the codes this crate answers with by itself, without asking the driver.
            pub(crate) const fn own_name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($cuda),)*
                    _ => None,
                }
            }
        }
    };
}

results! {
    SUCCESS = 0, "CUDA_SUCCESS";
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE";
    INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE";
    LOSSY_QUERY = 913, "CUDA_ERROR_LOSSY_QUERY";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY";
    PEER_ACCESS_ALREADY_ENABLED = 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED";
    NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN";
}

impl CuResult {
    pub(crate) const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }
}

/// `CUdevice`: an ordinal that the driver gives for an ordinal.
pub(crate) type CuDevice = i32;

/// `CUdeviceptr`.
pub(crate) type CuDevicePtr = u64;

/// `CUmemGenericAllocationHandle`.
pub(crate) type CuMemHandle = u64;

macro_rules! opaque {
    ($($name:ident)*) => {$(
        /// An opaque pointer of the driver, kept as a number: nothing here ever follows it, and a number may go from
        /// thread to thread as these objects may.
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) usize);
    )*};
}

opaque! { CuContext CuStream CuEvent CuGraph CuGraphExec CuGraphNode CuModule CuFunction }

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemLocation {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

impl MemLocation {
    /// The memory of one device (`CU_MEM_LOCATION_TYPE_DEVICE`).
    pub(crate) const fn device(device: CuDevice) -> Self {
        Self { kind: 1, id: device }
    }
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemAllocationProp {
    kind: u32,
    requested_handle_types: u32,
    location: MemLocation,
    win32_handle_meta_data: *mut c_void,
    alloc_flags: MemAllocationFlags,
}

/// `CUmemAllocationProp::allocFlags`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct MemAllocationFlags {
    compression_type: u8,
    gpu_direct_rdma_capable: u8,
    usage: u16,
    reserved: [u8; 4],
}

impl MemAllocationProp {
    /// Pinned memory of one device, for this process only.
    ///
    /// `rdma`: network cards may reach it directly. Plain memory always allows that; physical handles only where it was
    /// asked for, and the device must be able to.
    pub(crate) const fn on_device(device: CuDevice, rdma: bool) -> Self {
        Self {
            kind: 1, // CU_MEM_ALLOCATION_TYPE_PINNED
            requested_handle_types: 0,
            location: MemLocation::device(device),
            win32_handle_meta_data: std::ptr::null_mut(),
            alloc_flags: MemAllocationFlags {
                compression_type: 0,
                gpu_direct_rdma_capable: rdma as u8,
                usage: 0,
                reserved: [0; 4],
            },
        }
    }

    /// The same, which can be exported as a file descriptor.
    #[must_use]
    pub(crate) const fn exportable(mut self) -> Self {
        self.requested_handle_types = HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        self
    }

    /// The device whose memory it is, where it is a device's.
    pub(crate) const fn device(&self) -> Option<CuDevice> {
        if self.location.kind == 1 { Some(self.location.id) } else { None }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemAccessDesc {
    location: MemLocation,
    flags: u32,
}

impl MemAccessDesc {
    /// Reading and writing by one device (`CU_MEM_ACCESS_FLAGS_PROT_READWRITE`).
    pub(crate) const fn read_write(device: CuDevice) -> Self {
        Self { location: MemLocation::device(device), flags: 3 }
    }
}

/// The least size of a handle and its mapping (`CU_MEM_ALLOC_GRANULARITY_MINIMUM`).
pub(crate) const GRANULARITY_MINIMUM: u32 = 0;
/// A file descriptor (`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`).
pub(crate) const HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: u32 = 1;
/// Pinned for every context, not only the current one (`CU_MEMHOSTALLOC_PORTABLE`, `CU_MEMHOSTREGISTER_PORTABLE`).
pub(crate) const HOST_PORTABLE: u32 = 1;
/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: u32 = 2;

/// `CUdevice_attribute`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Attribute {
    MultiprocessorCount = 16,
    ComputeCapabilityMajor = 75,
    ComputeCapabilityMinor = 76,
    VirtualMemoryManagement = 102,
    HandleTypePosixFileDescriptor = 103,
    GpuDirectRdmaWithVirtualMemory = 110,
}

/// `CUstreamCaptureStatus`.
pub(crate) mod capture_status {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const ACTIVE: u32 = 1;
    pub(crate) const INVALIDATED: u32 = 2;
}

/// `CUstreamCaptureMode`.
pub(crate) mod capture_mode {
    pub(crate) const GLOBAL: u32 = 0;
    pub(crate) const THREAD_LOCAL: u32 = 1;
    pub(crate) const RELAXED: u32 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    // The numbers are those of a C compiler for the structs of cuda.h (CUDA 11 to 13) on a 64-bit machine.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn structs_have_the_layout_of_the_header() {
        assert_eq!(size_of::<MemAllocationProp>(), 32);
        assert_eq!(offset_of!(MemAllocationProp, location), 8);
        assert_eq!(offset_of!(MemAllocationProp, win32_handle_meta_data), 16);
        assert_eq!(offset_of!(MemAllocationProp, alloc_flags), 24);
        assert_eq!(size_of::<MemAllocationFlags>(), 8);
        assert_eq!(offset_of!(MemAllocationFlags, usage), 2);
        assert_eq!(size_of::<MemAccessDesc>(), 12);
        assert_eq!(size_of::<CuStream>(), size_of::<*mut c_void>());
    }
}
