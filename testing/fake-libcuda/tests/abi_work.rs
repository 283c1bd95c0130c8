//! The parts of the C ABI with structs, arrays of pointers and several versions: virtual memory, capture, launches.

#![cfg(target_os = "linux")]

mod common;

use std::ffi::{CStr, c_char, c_void};

use common::{Fake, cuda};

const SUCCESS: u32 = 0;
const INVALID_VALUE: u32 = 1;
const UNKNOWN: u32 = 999;
const NOT_SUPPORTED: u32 = 801;
const MIB: usize = 1 << 20;

/// `CUmemAllocationProp` as a C compiler lays it out.
#[repr(C)]
#[derive(Clone, Copy)]
struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location: [i32; 2],
    win32_meta_data: *mut c_void,
    flags: [u8; 8],
}

/// Pinned memory of a device.
fn on_device(device: i32) -> AllocationProp {
    AllocationProp {
        kind: 1,
        handle_types: 0,
        location: [1, device],
        win32_meta_data: std::ptr::null_mut(),
        flags: [0; 8],
    }
}

/// Enough of a module for a device that has its own implementation of the names.
const PTX: &CStr = c"
.version 7.0
.target sm_75
.address_size 64
.visible .entry hw_fill(
    .param .u64 hw_fill_param_0,
    .param .u64 hw_fill_param_1,
    .param .u32 hw_fill_param_2
)
{
    ret;
}
";

#[test]
fn only_what_was_made_for_it_is_exported_and_imported() {
    let fake = Fake::initialised();
    let (mut private, mut shared, mut imported, mut fd) = (0_u64, 0_u64, 0_u64, -1_i32);
    let create = |handle: &mut u64, prop: &AllocationProp| {
        cuda!(
            fake,
            cuMemCreate(handle => *mut u64, 2 * MIB => usize, prop => *const AllocationProp, 0 => u64)
        )
    };
    assert_eq!(create(&mut private, &on_device(0)), SUCCESS);
    assert_eq!(create(&mut shared, &AllocationProp { handle_types: 1, ..on_device(0) }), SUCCESS);
    let export = |fd: &mut i32, handle: u64, kind: u32| {
        cuda!(
            fake,
            cuMemExportToShareableHandle(fd => *mut i32, handle => u64, kind => u32, 0 => u64)
        )
    };
    assert_eq!(export(&mut fd, private, 1), INVALID_VALUE);
    assert_eq!(export(&mut fd, shared, 2), INVALID_VALUE);
    assert_eq!(export(&mut fd, shared, 1), SUCCESS);
    let import = |handle: &mut u64, fd: usize| {
        cuda!(
            fake,
            cuMemImportFromShareableHandle(handle => *mut u64, fd => usize, 1 => u32)
        )
    };
    assert_eq!(import(&mut imported, fd as usize), SUCCESS);
    assert_eq!(import(&mut private, 0), UNKNOWN, "standard input is no memory");
    let mut prop = on_device(5);
    let asked = cuda!(
        fake,
        cuMemGetAllocationPropertiesFromHandle(&mut prop => *mut AllocationProp, imported => u64)
    );
    assert_eq!((asked, prop.handle_types), (SUCCESS, 1));
    for handle in [private, shared, imported] {
        assert_eq!(cuda!(fake, cuMemRelease(handle => u64)), SUCCESS);
    }
    assert_eq!((fake.leak_count(), fake.undefined_uses()), (0, 0));
}

#[test]
fn virtual_memory_lives_and_dies_without_a_context() {
    let fake = Fake::initialised();
    let prop = on_device(0);
    let (mut granularity, mut range, mut handle, mut again) = (0, 0_u64, 0_u64, 0_u64);
    let asked = cuda!(
        fake,
        cuMemGetAllocationGranularity(&mut granularity => *mut usize, &prop => *const AllocationProp, 0 => u32)
    );
    assert_eq!((asked, granularity), (SUCCESS, 2 * MIB));
    let reserved = cuda!(
        fake,
        cuMemAddressReserve(&mut range => *mut u64, 8 * MIB => usize, 0 => usize, 0 => u64, 0 => u64)
    );
    assert_eq!(reserved, SUCCESS);
    let create = |handle: &mut u64, prop: &AllocationProp, bytes: usize| {
        cuda!(
            fake,
            cuMemCreate(handle => *mut u64, bytes => usize, prop => *const AllocationProp, 0 => u64)
        )
    };
    assert_eq!(create(&mut handle, &AllocationProp { kind: 9, ..prop }, 2 * MIB), INVALID_VALUE);
    assert_eq!(create(&mut handle, &AllocationProp { handle_types: 8, ..prop }, 2 * MIB), NOT_SUPPORTED);
    assert_eq!(create(&mut handle, &prop, 2 * MIB + 1), INVALID_VALUE);
    assert_eq!(create(&mut handle, &prop, 2 * MIB), SUCCESS);
    let map = |at: u64, offset: usize, handle: u64| {
        cuda!(
            fake,
            cuMemMap(at => u64, 2 * MIB => usize, offset => usize, handle => u64, 0 => u64)
        )
    };
    assert_eq!(map(range, 2 * MIB, handle), NOT_SUPPORTED);
    assert_eq!(map(range, 0, handle), SUCCESS);
    // Location (a device, the first one) and READWRITE.
    let access: [i32; 3] = [1, 0, 3];
    let set = cuda!(
        fake,
        cuMemSetAccess(range => u64, 2 * MIB => usize, access.as_ptr() => *const i32, 1 => usize)
    );
    assert_eq!(set, SUCCESS);
    let mut flags = 0;
    let got = cuda!(
        fake,
        cuMemGetAccess(&mut flags => *mut u64, access.as_ptr() => *const i32, range => u64)
    );
    assert_eq!((got, flags), (SUCCESS, 3));

    assert_eq!(cuda!(fake, cuMemRelease(handle => u64)), SUCCESS);
    let retained = cuda!(fake, cuMemRetainAllocationHandle(&mut again => *mut u64, range + 5 => u64));
    assert_eq!((retained, again), (SUCCESS, handle), "a mapping keeps the memory");
    assert_eq!(cuda!(fake, cuMemRelease(again => u64)), SUCCESS);
    assert_eq!(fake.undefined_uses(), 0);
    assert_eq!(map(range + 2 * MIB as u64, 0, handle), INVALID_VALUE);
    assert_eq!(fake.undefined_uses(), 1, "nobody holds the handle any more");
    assert_eq!(cuda!(fake, cuMemAddressFree(range => u64, 8 * MIB => usize)), INVALID_VALUE);
    assert_eq!(cuda!(fake, cuMemUnmap(range => u64, 2 * MIB => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuMemAddressFree(range => u64, 8 * MIB => usize)), SUCCESS);
    assert_eq!(fake.leak_count(), 0);
}

#[test]
fn a_launch_reads_its_arguments_through_pointers() {
    let fake = Fake::in_context();
    let (mut module, mut function, mut missing) = (0_usize, 0_usize, 0_usize);
    let loaded = cuda!(fake, cuModuleLoadData(&mut module => *mut usize, PTX.as_ptr() => *const c_char));
    assert_eq!(loaded, SUCCESS);
    let get = |place: &mut usize, name: &CStr| {
        cuda!(
            fake,
            cuModuleGetFunction(place => *mut usize, module => usize, name.as_ptr() => *const c_char)
        )
    };
    assert_eq!(get(&mut function, c"hw_fill"), SUCCESS);
    assert_eq!(get(&mut missing, c"hw_missing"), 500);

    let mut ptr = 0_u64;
    assert_eq!(cuda!(fake, cuMemAlloc_v2(&mut ptr => *mut u64, 4096 => usize)), SUCCESS);
    let (mut count, mut value) = (1024_u64, 0xfeed_u32);
    let mut params: [*mut c_void; 3] =
        [(&raw mut ptr).cast(), (&raw mut count).cast(), (&raw mut value).cast()];
    let launch = |params: *mut *mut c_void| {
        cuda!(
            fake,
            cuLaunchKernel(
                function => usize, 4 => u32, 1 => u32, 1 => u32, 256 => u32, 1 => u32, 1 => u32, 0 => u32,
                0 => usize, params => *mut *mut c_void, std::ptr::null_mut() => *mut *mut c_void,
            )
        )
    };
    assert_eq!(launch(std::ptr::null_mut()), INVALID_VALUE);
    assert_eq!(launch(params.as_mut_ptr()), SUCCESS);
    assert_eq!(cuda!(fake, cuCtxSynchronize()), SUCCESS);
    let mut seen = vec![0_u32; 1024];
    let target = seen.as_mut_ptr().cast::<c_void>();
    assert_eq!(cuda!(fake, cuMemcpyDtoH_v2(target => *mut c_void, ptr => u64, 4096 => usize)), SUCCESS);
    assert!(seen.iter().all(|word| *word == 0xfeed));

    assert_eq!(cuda!(fake, cuMemFree_v2(ptr => u64)), SUCCESS);
    assert_eq!(cuda!(fake, cuModuleUnload(module => usize)), SUCCESS);
    assert_eq!(launch(params.as_mut_ptr()), 400);
    assert_eq!((fake.undefined_uses(), fake.leak_count(), fake.hazard_count()), (1, 0, 0));
}

#[test]
fn work_that_nobody_ordered_is_a_hazard() {
    let fake = Fake::in_context();
    let (mut ptr, mut one, mut other, mut event) = (0_u64, 0_usize, 0_usize, 0_usize);
    assert_eq!(cuda!(fake, cuMemAlloc_v2(&mut ptr => *mut u64, 4096 => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuStreamCreate(&mut one => *mut usize, 1 => u32)), SUCCESS);
    assert_eq!(cuda!(fake, cuStreamCreate(&mut other => *mut usize, 1 => u32)), SUCCESS);
    assert_eq!(cuda!(fake, cuEventCreate(&mut event => *mut usize, 2 => u32)), SUCCESS);
    let fill = |stream: usize| {
        let code = cuda!(
            fake,
            cuMemsetD8Async(ptr => u64, 1 => u8, 4096 => usize, stream => usize)
        );
        assert_eq!(code, SUCCESS);
    };
    fill(one);
    assert_eq!(cuda!(fake, cuEventRecord(event => usize, one => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuStreamWaitEvent(other => usize, event => usize, 0 => u32)), SUCCESS);
    fill(other);
    assert_eq!(fake.hazard_count(), 0, "ordered by the event");
    fill(one);
    assert_eq!(fake.hazard_count(), 1, "nobody told the first stream to wait for the second");
}

#[test]
fn compiled_code_is_for_another_device() {
    let fake = Fake::in_context();
    let mut module = 0_usize;
    let elf = b"\x7fELF\x02\x01\x01\0";
    let loaded = cuda!(fake, cuModuleLoadData(&mut module => *mut usize, elf.as_ptr() => *const u8));
    assert_eq!(loaded, 209);
}

#[test]
fn a_captured_fill_runs_when_its_graph_is_launched() {
    let fake = Fake::in_context();
    let (mut ptr, mut stream, mut graph, mut exec) = (0_u64, 0_usize, 0_usize, 0_usize);
    assert_eq!(cuda!(fake, cuMemAlloc_v2(&mut ptr => *mut u64, 64 => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuStreamCreate(&mut stream => *mut usize, 1 => u32)), SUCCESS);
    let fill = |value: u8| {
        cuda!(
            fake,
            cuMemsetD8Async(ptr => u64, value => u8, 64 => usize, stream => usize)
        )
    };
    let seen = || {
        let mut seen = [0_u8; 64];
        let target = seen.as_mut_ptr().cast::<c_void>();
        assert_eq!(cuda!(fake, cuStreamSynchronize(stream => usize)), SUCCESS);
        assert_eq!(cuda!(fake, cuMemcpyDtoH_v2(target => *mut c_void, ptr => u64, 64 => usize)), SUCCESS);
        seen
    };
    assert_eq!(fill(1), SUCCESS);
    assert_eq!(seen(), [1; 64]);

    assert_eq!(cuda!(fake, cuStreamBeginCapture_v2(stream => usize, 0 => u32)), SUCCESS);
    assert_eq!(fill(2), SUCCESS);
    let (mut status, mut id, mut same_id) = (9, 0, 0);
    let null = std::ptr::null_mut::<usize>();
    let version_3 = cuda!(
        fake,
        cuStreamGetCaptureInfo_v3(
            stream => usize, &mut status => *mut u32, &mut id => *mut u64,
            null => *mut usize, null => *mut usize, null => *mut usize, null => *mut usize,
        )
    );
    assert_eq!((version_3, status), (SUCCESS, 1));
    let version_2 = cuda!(
        fake,
        cuStreamGetCaptureInfo_v2(
            stream => usize, &mut status => *mut u32, &mut same_id => *mut u64,
            null => *mut usize, null => *mut usize, null => *mut usize,
        )
    );
    assert_eq!((version_2, status, same_id), (SUCCESS, 1, id));
    assert_eq!(cuda!(fake, cuStreamEndCapture(stream => usize, &mut graph => *mut usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuStreamIsCapturing(stream => usize, &mut status => *mut u32)), SUCCESS);
    assert_eq!(status, 0);
    assert_eq!(seen(), [1; 64], "captured, not run");

    let instantiated = cuda!(
        fake,
        cuGraphInstantiateWithFlags(&mut exec => *mut usize, graph => usize, 0 => u64)
    );
    assert_eq!(instantiated, SUCCESS);
    assert_eq!(cuda!(fake, cuGraphDestroy(graph => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuGraphLaunch(exec => usize, stream => usize)), SUCCESS);
    assert_eq!(seen(), [2; 64]);
    assert_eq!(cuda!(fake, cuGraphExecDestroy(exec => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuGraphLaunch(exec => usize, stream => usize)), INVALID_VALUE);
    assert_eq!(fake.undefined_uses(), 1);
}

#[test]
fn the_threads_capture_mode_is_exchanged() {
    let fake = Fake::initialised();
    let mut mode = 2_u32;
    assert_eq!(cuda!(fake, cuThreadExchangeStreamCaptureMode(&mut mode => *mut u32)), SUCCESS);
    assert_eq!(mode, 0, "global until exchanged");
    assert_eq!(cuda!(fake, cuThreadExchangeStreamCaptureMode(&mut mode => *mut u32)), SUCCESS);
    assert_eq!(mode, 2);
    mode = 3;
    assert_eq!(cuda!(fake, cuThreadExchangeStreamCaptureMode(&mut mode => *mut u32)), INVALID_VALUE);
}

#[test]
fn host_memory_is_pinned_once_and_unpinned_as_it_was() {
    let fake = Fake::in_context();
    let (mut host, mut dptr, mut flags) = (std::ptr::null_mut::<c_void>(), 0, 0);
    let allocated = cuda!(
        fake,
        cuMemHostAlloc(&mut host => *mut *mut c_void, 8192 => usize, 1 => u32)
    );
    assert_eq!(allocated, SUCCESS);
    assert_eq!(cuda!(fake, cuMemHostGetFlags(&mut flags => *mut u32, host => *mut c_void)), SUCCESS);
    assert_eq!(flags, 1);
    let device_side =
        cuda!(fake, cuMemHostGetDevicePointer_v2(&mut dptr => *mut u64, host => *mut c_void, 0 => u32));
    assert_eq!((device_side, dptr), (SUCCESS, host.addr() as u64));
    assert_eq!(cuda!(fake, cuMemHostUnregister(host => *mut c_void)), 713);
    assert_eq!(cuda!(fake, cuMemFreeHost(host => *mut c_void)), SUCCESS);
    assert_eq!(cuda!(fake, cuMemFreeHost(host => *mut c_void)), INVALID_VALUE);

    let mut own = vec![0_u8; 8192];
    let place = own.as_mut_ptr().cast::<c_void>();
    assert_eq!(cuda!(fake, cuMemHostRegister_v2(place => *mut c_void, 8192 => usize, 1 => u32)), SUCCESS);
    assert_eq!(cuda!(fake, cuMemHostRegister_v2(place => *mut c_void, 8192 => usize, 1 => u32)), 712);
    assert_eq!(cuda!(fake, cuMemFreeHost(place => *mut c_void)), INVALID_VALUE);
    assert_eq!(cuda!(fake, cuMemHostUnregister(place => *mut c_void)), SUCCESS);
    assert_eq!(fake.leak_count(), 0);
}
