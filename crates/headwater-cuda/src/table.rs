//! The calls of `libcuda` that this backend makes, as one table of function pointers.
//!
//! Names are those the library exports, version suffix included: `cuda.h` hides the suffixes behind macros, the
//! dynamic loader does not. What every supported driver has is a plain function pointer, and its absence stops
//! [`open`](crate::CudaDriver::open); what came later is an `Option`, and its absence is a missing capability.
//!
//! The library is never unloaded. It starts threads and exit handlers of its own, and other parts of the process use it.

use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;

use libloading::Library;

use crate::Unavailable;
use crate::abi::{
    CuContext, CuDevice, CuDevicePtr, CuEvent, CuFunction, CuGraph, CuGraphExec, CuGraphNode, CuMemHandle,
    CuModule, CuResult, CuStream, MemAccessDesc, MemAllocationProp,
};

/// The oldest driver that has all required calls: CUDA 11.0, for `cuDevicePrimaryCtxRelease_v2`.
pub(crate) const OLDEST_VERSION: i32 = 11_000;

/// Every argument list below is the one of `cuda.h`, and every function returns `CUresult`.
macro_rules! functions {
    (
        required { $($field:ident $name:literal $since:literal ($($arg:ty),*);)* }
        optional { $($later:ident $later_name:literal ($($later_arg:ty),*);)* }
    ) => {
        /// The calls, looked up.
        pub(crate) struct Table {
            $(#[doc = concat!("`", $name, "`")]
            pub(crate) $field: unsafe extern "system" fn($($arg),*) -> CuResult,)*
            $(#[doc = concat!("`", $later_name, "`")]
            pub(crate) $later: Option<unsafe extern "system" fn($($later_arg),*) -> CuResult>,)*
        }

        impl Table {
            /// Looks every call up.
            ///
            /// # Safety
            /// What `library` exports under these names are the functions of the CUDA driver.
            unsafe fn look_up(library: &Library) -> Result<Self, Unavailable> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the caller vouches for the library; the type is the one cuda.h gives the name.
                        let found = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                        *found.map_err(|_| Unavailable::SymbolMissing { name: $name, since: $since })?
                    },)*
                    $($later: {
                        // SAFETY: as above.
                        let found = unsafe { library.get(concat!($later_name, "\0").as_bytes()) };
                        found.ok().map(|symbol| *symbol)
                    },)*
                })
            }

            /// A driver that can do nothing: every call answers "not supported". Tests put their own calls in.
            #[cfg(test)]
            pub(crate) fn incapable() -> Self {
                Self {
                    $($field: {
                        unsafe extern "system" fn refuse($(_: $arg),*) -> CuResult {
                            CuResult::NOT_SUPPORTED
                        }
                        refuse
                    },)*
                    $($later: None,)*
                }
            }
        }
    };
}

functions! {
    required {
        // The library itself.
        init "cuInit" "2.0" (u32);
        driver_get_version "cuDriverGetVersion" "2.2" (*mut i32);
        get_error_name "cuGetErrorName" "6.0" (CuResult, *mut *const c_char);
        // Devices.
        device_get_count "cuDeviceGetCount" "2.0" (*mut i32);
        device_get "cuDeviceGet" "2.0" (*mut CuDevice, i32);
        device_get_name "cuDeviceGetName" "2.0" (*mut c_char, i32, CuDevice);
        device_total_mem "cuDeviceTotalMem_v2" "3.2" (*mut usize, CuDevice);
        device_get_attribute "cuDeviceGetAttribute" "2.0" (*mut i32, u32, CuDevice);
        device_get_pci_bus_id "cuDeviceGetPCIBusId" "4.1" (*mut c_char, i32, CuDevice);
        device_can_access_peer "cuDeviceCanAccessPeer" "4.0" (*mut i32, CuDevice, CuDevice);
        // Contexts.
        primary_ctx_retain "cuDevicePrimaryCtxRetain" "7.0" (*mut CuContext, CuDevice);
        primary_ctx_release "cuDevicePrimaryCtxRelease_v2" "11.0" (CuDevice);
        ctx_get_current "cuCtxGetCurrent" "4.0" (*mut CuContext);
        ctx_push_current "cuCtxPushCurrent_v2" "4.0" (CuContext);
        ctx_pop_current "cuCtxPopCurrent_v2" "4.0" (*mut CuContext);
        ctx_enable_peer_access "cuCtxEnablePeerAccess" "4.0" (CuContext, u32);
        // Plain memory.
        mem_get_info "cuMemGetInfo_v2" "3.2" (*mut usize, *mut usize);
        mem_alloc "cuMemAlloc_v2" "3.2" (*mut CuDevicePtr, usize);
        mem_free "cuMemFree_v2" "3.2" (CuDevicePtr);
        // Virtual memory.
        mem_get_allocation_granularity "cuMemGetAllocationGranularity" "10.2" (*mut usize, *const MemAllocationProp, u32);
        mem_address_reserve "cuMemAddressReserve" "10.2" (*mut CuDevicePtr, usize, usize, CuDevicePtr, u64);
        mem_address_free "cuMemAddressFree" "10.2" (CuDevicePtr, usize);
        mem_create "cuMemCreate" "10.2" (*mut CuMemHandle, usize, *const MemAllocationProp, u64);
        mem_release "cuMemRelease" "10.2" (CuMemHandle);
        mem_map "cuMemMap" "10.2" (CuDevicePtr, usize, usize, CuMemHandle, u64);
        mem_unmap "cuMemUnmap" "10.2" (CuDevicePtr, usize);
        mem_set_access "cuMemSetAccess" "10.2" (CuDevicePtr, usize, *const MemAccessDesc, usize);
        mem_export "cuMemExportToShareableHandle" "10.2" (*mut c_void, CuMemHandle, u32, u64);
        mem_import "cuMemImportFromShareableHandle" "10.2" (*mut CuMemHandle, *mut c_void, u32);
        mem_get_properties "cuMemGetAllocationPropertiesFromHandle" "10.2" (*mut MemAllocationProp, CuMemHandle);
        // Pinned host memory.
        mem_host_alloc "cuMemHostAlloc" "2.2" (*mut *mut c_void, usize, u32);
        mem_free_host "cuMemFreeHost" "2.0" (*mut c_void);
        mem_host_register "cuMemHostRegister_v2" "6.5" (*mut c_void, usize, u32);
        mem_host_unregister "cuMemHostUnregister" "4.0" (*mut c_void);
        // Streams.
        stream_create "cuStreamCreateWithPriority" "5.5" (*mut CuStream, u32, i32);
        stream_destroy "cuStreamDestroy_v2" "4.0" (CuStream);
        stream_query "cuStreamQuery" "2.0" (CuStream);
        stream_synchronize "cuStreamSynchronize" "2.0" (CuStream);
        stream_wait_event "cuStreamWaitEvent" "3.2" (CuStream, CuEvent, u32);
        // Events.
        event_create "cuEventCreate" "2.0" (*mut CuEvent, u32);
        event_destroy "cuEventDestroy_v2" "4.0" (CuEvent);
        event_record "cuEventRecord" "2.0" (CuEvent, CuStream);
        event_query "cuEventQuery" "2.0" (CuEvent);
        event_synchronize "cuEventSynchronize" "2.0" (CuEvent);
        event_elapsed_time "cuEventElapsedTime" "2.0" (*mut f32, CuEvent, CuEvent);
        // Copies and fills.
        memcpy_htod_async "cuMemcpyHtoDAsync_v2" "3.2" (CuDevicePtr, *const c_void, usize, CuStream);
        memcpy_dtoh_async "cuMemcpyDtoHAsync_v2" "3.2" (*mut c_void, CuDevicePtr, usize, CuStream);
        memcpy_dtod_async "cuMemcpyDtoDAsync_v2" "3.2" (CuDevicePtr, CuDevicePtr, usize, CuStream);
        memcpy_peer_async "cuMemcpyPeerAsync" "4.0" (CuDevicePtr, CuContext, CuDevicePtr, CuContext, usize, CuStream);
        memset_d8_async "cuMemsetD8Async" "3.2" (CuDevicePtr, u8, usize, CuStream);
        memset_d32_async "cuMemsetD32Async" "3.2" (CuDevicePtr, u32, usize, CuStream);
        // Capture and graphs.
        stream_begin_capture "cuStreamBeginCapture_v2" "10.1" (CuStream, u32);
        stream_end_capture "cuStreamEndCapture" "10.0" (CuStream, *mut CuGraph);
        thread_exchange_capture_mode "cuThreadExchangeStreamCaptureMode" "10.1" (*mut u32);
        graph_launch "cuGraphLaunch" "10.0" (CuGraphExec, CuStream);
        graph_destroy "cuGraphDestroy" "10.0" (CuGraph);
        graph_exec_destroy "cuGraphExecDestroy" "10.0" (CuGraphExec);
        // Modules and launches.
        module_load_data "cuModuleLoadData" "2.0" (*mut CuModule, *const c_void);
        module_unload "cuModuleUnload" "2.0" (CuModule);
        module_get_function "cuModuleGetFunction" "2.0" (*mut CuFunction, CuModule, *const c_char);
        launch_kernel "cuLaunchKernel" "4.0" (
            CuFunction, u32, u32, u32, u32, u32, u32, u32, CuStream, *mut *mut c_void, *mut *mut c_void
        );
    }
    optional {
        // 12.3: status, id, graph, dependencies, edge data, number of dependencies.
        stream_get_capture_info_v3 "cuStreamGetCaptureInfo_v3" (
            CuStream, *mut u32, *mut u64, *mut CuGraph, *mut *const c_void, *mut *const c_void, *mut usize
        );
        // 11.3, gone from the header of 13.0: the same without edge data.
        stream_get_capture_info_v2 "cuStreamGetCaptureInfo_v2" (
            CuStream, *mut u32, *mut u64, *mut CuGraph, *mut *const c_void, *mut usize
        );
        // 11.4.
        graph_instantiate "cuGraphInstantiateWithFlags" (*mut CuGraphExec, CuGraph, u64);
        // 10.0: node, dependencies, number of them. For captures whose order is asked.
        graph_node_get_dependencies "cuGraphNodeGetDependencies" (CuGraphNode, *mut CuGraphNode, *mut usize);
        // 12.0; only a check of adopted streams.
        stream_get_id "cuStreamGetId" (CuStream, *mut u64);
        // 9.2; only a check of adopted streams.
        stream_get_ctx "cuStreamGetCtx" (CuStream, *mut CuContext);
        // 7.0; only to prefer a device that is in use already for pinned host memory.
        primary_ctx_get_state "cuDevicePrimaryCtxGetState" (CuDevice, *mut u32, *mut i32);
    }
}

impl Table {
    /// Looks the calls up in `library` and keeps it loaded for the rest of the process.
    ///
    /// # Safety
    /// What `library` exports under the driver's names are the functions of the CUDA driver.
    pub(crate) unsafe fn load(library: Library) -> Result<Self, Unavailable> {
        // Never unloaded, see the head of this file: also where it turns out to be of no use, since it has been called.
        let library = ManuallyDrop::new(library);
        // The version first: an old driver should hear that it is old, not which symbol it happens to lack.
        // SAFETY: the caller vouches for the library; the type is the one cuda.h gives the name.
        let version = unsafe {
            library.get::<unsafe extern "system" fn(*mut i32) -> CuResult>(b"cuDriverGetVersion\0")
        };
        if let Ok(version) = version {
            let mut found = 0;
            // SAFETY: `found` lives through the call; this call needs no cuInit before it.
            let result = unsafe { version(&mut found) };
            if result.is_success() && found < OLDEST_VERSION {
                return Err(Unavailable::DriverTooOld { found, needed: OLDEST_VERSION });
            }
        }
        // SAFETY: the caller vouches for the library.
        unsafe { Self::look_up(&library) }
    }

    /// Whether everything that [`Capture`](headwater_driver::Capture) needs is there.
    pub(crate) fn has_capture(&self) -> bool {
        let status = self.stream_get_capture_info_v3.is_some() || self.stream_get_capture_info_v2.is_some();
        status && self.graph_instantiate.is_some()
    }

    /// The driver's name for a code, where it knows one.
    pub(crate) fn error_name(&self, code: CuResult) -> Option<&'static str> {
        let mut name = std::ptr::null();
        // SAFETY: `name` lives through the call.
        let result = unsafe { (self.get_error_name)(code, &mut name) };
        if !result.is_success() || name.is_null() {
            return None;
        }
        // SAFETY: a string constant of the library, which is never unloaded.
        let name: &'static CStr = unsafe { CStr::from_ptr(name) };
        name.to_str().ok()
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("capture", &self.has_capture()).finish_non_exhaustive()
    }
}
