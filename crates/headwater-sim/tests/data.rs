//! Bytes: copies, fills and kernels do what they say, when they end and not before.

// Tests may panic; clippy knows that of `#[test]` functions only, not of what they call.
#![allow(clippy::unwrap_used)]

mod common;

use std::ptr::NonNull;

use common::{Bench, D, PAGE, alloc, bench, class, stream};
use headwater_driver::{
    Copies, DeviceId, DevicePtr, ErrorClass, HostMemory, KernelArg, Kernels, LaunchShape, PlainMemory,
    Streams, VirtualMemory,
};
use headwater_sim::{Effect, KernelPlan, ParamKind, SimDriver, SimKernel, Work};

const PTX: &str = "
.version 8.0
.target sm_90
.address_size 64
.visible .entry hw_fill(.param .u64 p, .param .u64 n, .param .u32 value) { ret; }
.visible .entry hw_add(.param .u64 p, .param .u64 n, .param .u32 value) { ret; }
.visible .entry hw_copy(.param .u64 dst, .param .u64 src, .param .u64 n) { ret; }
.visible .entry hw_check(.param .u64 p, .param .u64 n, .param .u32 value, .param .u64 wrong) { ret; }
.visible .entry nobody(.param .u64 p) { ret; }
.visible .entry triple(.param .u64 p) { ret; }
";

fn look(sim: &SimDriver, ptr: DevicePtr, bytes: u64) -> Vec<u8> {
    sim.peek(ptr.raw()..ptr.raw() + bytes).unwrap()
}

#[test]
fn pinned_memory_is_read_and_written_when_the_copy_runs() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 16);
    let host = sim.host_alloc(32).unwrap();
    let (from, to) = (host.as_ptr(), host.as_ptr().wrapping_add(16));
    // SAFETY: all ranges are valid. The source is changed before the copy runs on purpose, by the only thread.
    unsafe {
        from.write_bytes(1, 16);
        sim.submit(a, Work::new("busy", 1_000_000)).unwrap();
        sim.copy_to_device(ptr, from, 16, a).unwrap();
        from.write_bytes(2, 16);
        sim.copy_to_host(to, ptr, 16, a).unwrap();
        assert_eq!(to.read(), 0, "not yet");
        sim.stream_synchronize(a).unwrap();
        assert_eq!(to.read(), 2);
    }
}

#[test]
fn pageable_memory_is_read_at_the_call_and_written_before_it_returns() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 16);
    let mut source = [1; 16];
    let mut target = [0; 16];
    // SAFETY: all ranges are valid.
    unsafe {
        sim.submit(a, Work::new("busy", 1_000_000)).unwrap();
        sim.copy_to_device(ptr, source.as_ptr(), 16, a).unwrap();
        assert!(sim.now_ns() < 1_000_000, "it waits for nothing");
        source.fill(2);
        sim.copy_to_host(target.as_mut_ptr(), ptr, 16, a).unwrap();
    }
    assert!(sim.now_ns() >= 1_000_000);
    assert_eq!(target, [1; 16]);
    assert_eq!(source, [2; 16]);
}

#[test]
fn data_crosses_pages_and_devices() {
    let sim = SimDriver::builder().devices(2).build();
    let a = stream(&sim);
    let (range, _) = common::mapped_page(&sim);
    let second = sim.handle_create(D, PAGE).unwrap();
    let next = range.checked_add(PAGE).unwrap();
    sim.handle_map(next, PAGE, second).unwrap();
    sim.access_set(next, PAGE, &[D]).unwrap();
    let across = DevicePtr::new(next.raw() - 6);
    let (near, far) = (alloc(&sim, 12), sim.mem_alloc(DeviceId(1), 12).unwrap());
    let source: [u8; 12] = std::array::from_fn(|index| index as u8);
    let mut target = [0; 12];
    // SAFETY: all ranges are valid.
    unsafe {
        sim.copy_to_device(across, source.as_ptr(), 12, a).unwrap();
        sim.copy_on_device(near, across, 12, a).unwrap();
        sim.copy_peer((DeviceId(1), far), (D, near), 12, a).unwrap();
        sim.copy_to_host(target.as_mut_ptr(), far, 12, a).unwrap();
    }
    assert_eq!(target, source);
    assert!(sim.hazards().is_empty(), "{:?}", sim.hazards());
}

#[test]
fn fills_set_bytes_and_words() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 64);
    // SAFETY: all ranges are valid.
    unsafe {
        sim.fill_bytes(ptr, 0xAB, 64, a).unwrap();
        sim.fill_words(DevicePtr::new(ptr.raw() + 4), 0x0403_0201, 2, a).unwrap();
        let odd = DevicePtr::new(ptr.raw() + 2);
        assert_eq!(class(sim.fill_words(odd, 0, 1, a)), ErrorClass::InvalidValue);
        assert_eq!(class(sim.fill_words(ptr, 0, u64::MAX, a)), ErrorClass::InvalidValue);
    }
    sim.stream_synchronize(a).unwrap();
    assert_eq!(look(&sim, ptr, 13), [0xAB, 0xAB, 0xAB, 0xAB, 1, 2, 3, 4, 1, 2, 3, 4, 0xAB]);
}

#[test]
fn bad_ranges_are_refused_and_empty_ones_are_fine() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 64);
    let host = [0; 128];
    // SAFETY: bad on purpose; the simulated device refuses before it looks.
    unsafe {
        let refused = [
            sim.copy_to_device(DevicePtr::NULL, host.as_ptr(), 8, a),
            sim.copy_to_device(ptr, std::ptr::null(), 8, a),
            sim.copy_to_device(ptr, host.as_ptr(), 65, a),
            sim.copy_on_device(ptr, DevicePtr::new(64), 8, a),
            sim.fill_bytes(DevicePtr::new(u64::MAX - 3), 0, 8, a),
        ];
        for result in refused {
            assert_eq!(class(result), ErrorClass::InvalidValue);
        }
        sim.copy_to_device(DevicePtr::NULL, std::ptr::null(), 0, a).unwrap();
    }
    assert!(sim.hazards().is_empty());
}

#[test]
fn contents_cost_host_memory_only_where_written() {
    let Bench { sim, a, .. } = bench();
    let big = alloc(&sim, 100 << 30);
    assert_eq!(sim.content_host_bytes(), 0);
    // SAFETY: the range is valid.
    unsafe { sim.fill_bytes(big, 1, 100 << 30, a).unwrap() };
    sim.submit(a, Work::new("spot", 1).writes(big.raw() + 100..big.raw() + 200)).unwrap();
    sim.stream_synchronize(a).unwrap();
    let host_bytes = sim.content_host_bytes();
    assert!((1..1 << 20).contains(&host_bytes), "{host_bytes}");
    assert_eq!(look(&sim, DevicePtr::new(big.raw() + (99 << 30)), 1), [1]);
}

#[test]
fn the_built_in_kernels_work_on_device_and_on_pinned_memory() {
    let Bench { sim, a, .. } = bench();
    let module = sim.module_load(D, PTX.as_bytes()).unwrap();
    let get = |name| sim.kernel_get(module, name).unwrap();
    let (x, y) = (alloc(&sim, 4096), alloc(&sim, 4096));
    let wrong = sim.host_alloc(4).unwrap().cast::<u32>();
    let wrong_ptr = DevicePtr::new(wrong.as_ptr() as u64);
    let n = KernelArg::U64(1024);
    let shape = LaunchShape::for_elements(1024);
    let run = |name, args: &[KernelArg]| {
        // SAFETY: the arguments are those the kernels take, and the memory is valid.
        unsafe { sim.kernel_launch(get(name), shape, args, a).unwrap() };
    };
    run("hw_fill", &[KernelArg::Ptr(x), n, KernelArg::U32(5)]);
    run("hw_add", &[KernelArg::Ptr(x), n, KernelArg::U32(2)]);
    run("hw_copy", &[KernelArg::Ptr(y), KernelArg::Ptr(x), n]);
    run("hw_check", &[KernelArg::Ptr(y), n, KernelArg::U32(7), KernelArg::Ptr(wrong_ptr)]);
    run("hw_check", &[KernelArg::Ptr(y), n, KernelArg::U32(8), KernelArg::Ptr(wrong_ptr)]);
    sim.stream_synchronize(a).unwrap();
    // SAFETY: the host has waited for the kernels.
    assert_eq!(unsafe { wrong.read() }, 1024);
    assert!(sim.hazards().is_empty(), "{:?}", sim.hazards());
    assert_eq!(sim.kernel_params(get("hw_copy")), Some(vec![ParamKind::Ptr, ParamKind::Ptr, ParamKind::U64]));
    assert!(sim.host_is_pinned(wrong.cast()));
    assert!(!sim.host_is_pinned(NonNull::from(&mut [0u8; 4]).cast()));
}

#[test]
fn kernels_can_be_registered_and_unknown_ones_are_named() {
    let Bench { sim, a, .. } = bench();
    sim.register_kernel(SimKernel::new("triple", &[ParamKind::Ptr], |args, _| {
        let [KernelArg::Ptr(ptr)] = *args else { return Err("one address".into()) };
        let at = ptr.raw();
        let effect = Effect::Custom(std::sync::Arc::new(move |memory| {
            let mut byte = [0];
            memory.read(at, &mut byte);
            memory.write(at, &[byte[0] * 3]);
        }));
        Ok(KernelPlan {
            reads: std::iter::once(at..at + 1).collect(),
            writes: std::iter::once(at..at + 1).collect(),
            duration_ns: 10,
            effect,
            ..Default::default()
        })
    }));
    let module = sim.module_load(D, PTX.as_bytes()).unwrap();
    let triple = sim.kernel_get(module, "triple").unwrap();
    let ptr = alloc(&sim, 1);
    // SAFETY: the arguments are those the kernels take, and the memory is valid.
    unsafe {
        sim.fill_bytes(ptr, 14, 1, a).unwrap();
        sim.kernel_launch(triple, LaunchShape::SINGLE, &[KernelArg::Ptr(ptr)], a).unwrap();
        sim.stream_synchronize(a).unwrap();
        assert_eq!(look(&sim, ptr, 1), [42]);

        let nobody = sim.kernel_get(module, "nobody").unwrap();
        let refused = sim.kernel_launch(nobody, LaunchShape::SINGLE, &[KernelArg::Ptr(ptr)], a).unwrap_err();
        assert_eq!(refused.class(), ErrorClass::NotSupported);
        assert!(refused.to_string().contains("nobody"));
        assert_eq!(sim.kernel_params(nobody), None);
        let bad = sim.kernel_launch(triple, LaunchShape::SINGLE, &[KernelArg::U32(1)], a);
        assert_eq!(class(bad), ErrorClass::InvalidValue);
        let too_wide = LaunchShape { block: [1025, 1, 1], ..LaunchShape::SINGLE };
        assert_eq!(
            class(sim.kernel_launch(triple, too_wide, &[KernelArg::Ptr(ptr)], a)),
            ErrorClass::InvalidValue
        );
        sim.module_unload(module).unwrap();
        let gone = sim.kernel_launch(triple, LaunchShape::SINGLE, &[KernelArg::Ptr(ptr)], a);
        assert_eq!(class(gone), ErrorClass::InvalidHandle);
    }
    assert_eq!(class(sim.kernel_get(module, "triple")), ErrorClass::InvalidHandle);
    let missing = sim.module_load(D, PTX.as_bytes()).and_then(|module| sim.kernel_get(module, "no_such"));
    assert_eq!(missing.unwrap_err().code(), 500);
    assert_eq!(class(sim.module_load(D, b"\x7fELF not PTX")), ErrorClass::InvalidValue);
}

#[test]
fn registered_memory_is_pinned_until_it_is_not() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 4096);
    let mut block = vec![3_u8; 4096];
    let start = NonNull::new(block.as_mut_ptr()).unwrap();
    // SAFETY: the block outlives its registration, and the host waits before it looks.
    unsafe {
        sim.host_register(start, 4096).unwrap();
        assert_eq!(class(sim.host_register(start, 1)), ErrorClass::InvalidValue);
        assert!(sim.host_is_pinned(start));
        assert_eq!(class(sim.host_free(start)), ErrorClass::InvalidValue, "not allocated here");
        sim.copy_to_device(ptr, start.as_ptr(), 4096, a).unwrap();
        assert!(!sim.stream_query(a).unwrap());
        sim.stream_synchronize(a).unwrap();
        sim.host_unregister(start).unwrap();
        assert_eq!(class(sim.host_unregister(start)), ErrorClass::InvalidValue);
    }
    assert!(!sim.host_is_pinned(start));
    assert_eq!(look(&sim, ptr, 1), [3]);
    assert!(sim.hazards().is_empty());
}
