//! Graphs: captured work with its data, its order and its races, at every launch.

// Tests may panic; clippy knows that of `#[test]` functions only, not of what they call.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Bench, D, PAGE, alloc, bench, class, mapped_page, mark, writer};
use headwater_driver::{
    Capture, CaptureMode, Copies, DevicePtr, ErrorClass, Events, GraphExec, HostMemory, Stream, Streams,
    VirtualMemory,
};
use headwater_sim::{Hazard, SimDriver, Work};

/// What `work` captures on `stream`, ready to launch.
fn capture(sim: &SimDriver, stream: Stream, work: impl FnOnce()) -> GraphExec {
    sim.capture_begin(stream, CaptureMode::Global).unwrap();
    work();
    let graph = sim.capture_end(stream).unwrap();
    let exec = sim.graph_instantiate(D, graph).unwrap();
    sim.graph_destroy(graph).unwrap();
    exec
}

fn launch(sim: &SimDriver, exec: GraphExec, stream: Stream) {
    // SAFETY: the tests keep alive what their graphs touch.
    unsafe { sim.graph_launch(exec, stream).unwrap() };
}

#[test]
fn every_launch_moves_the_data_again() {
    let Bench { sim, a, .. } = bench();
    let (src, dst) = (alloc(&sim, 4096), alloc(&sim, 4096));
    let host = sim.host_alloc(4096).unwrap();
    // SAFETY: all ranges are valid until the end of the test.
    let exec = capture(&sim, a, || unsafe {
        sim.copy_on_device(dst, src, 4096, a).unwrap();
        sim.copy_to_host(host.as_ptr(), dst, 4096, a).unwrap();
    });
    for value in [1, 2] {
        // SAFETY: as above, and the host looks only after it has waited.
        unsafe { sim.fill_bytes(src, value, 4096, a).unwrap() };
        launch(&sim, exec, a);
        sim.stream_synchronize(a).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { host.as_ptr().add(4095).read() }, value);
    }
    assert!(sim.take_hazards().is_empty());
}

#[test]
fn a_launch_is_one_piece_of_work_of_its_stream() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    let exec = capture(&sim, a, || {
        let fork = mark(&sim, a);
        sim.stream_wait_event(b, fork).unwrap();
        sim.submit(a, Work::new("left", 100_000)).unwrap();
        sim.submit(b, Work::new("right", 250_000).writes(ptr.raw()..ptr.raw() + 64)).unwrap();
        sim.stream_wait_event(a, mark(&sim, b)).unwrap();
    });
    sim.submit(a, writer("before", ptr)).unwrap();
    let before = sim.now_ns();
    launch(&sim, exec, a);
    sim.submit(a, writer("after", ptr)).unwrap();
    sim.stream_synchronize(a).unwrap();
    assert!(sim.take_hazards().is_empty());
    let took = sim.now_ns() - before;
    assert!((450_000..480_000).contains(&took), "the branches run side by side: {took}");
}

#[test]
fn branches_without_an_order_race_at_every_launch() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    let exec = capture(&sim, a, || {
        let fork = mark(&sim, a);
        sim.stream_wait_event(b, fork).unwrap();
        sim.submit(a, writer("left", ptr)).unwrap();
        sim.submit(b, writer("right", ptr)).unwrap();
        sim.stream_wait_event(a, mark(&sim, b)).unwrap();
    });
    assert!(sim.take_hazards().is_empty(), "nothing has run");
    for _ in 0..2 {
        launch(&sim, exec, a);
        let hazards = sim.take_hazards();
        assert!(
            matches!(&hazards[..], [Hazard::Race { first, second, .. }]
                if first.label == "left" && second.label == "right"),
            "{hazards:?}"
        );
    }
}

#[test]
fn launches_of_one_graph_are_ordered_and_of_two_are_not() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    let make = || capture(&sim, a, || sim.submit(a, writer("node", ptr)).unwrap());
    let (one, other) = (make(), make());
    launch(&sim, one, a);
    launch(&sim, one, b);
    assert!(sim.take_hazards().is_empty(), "CUDA never runs one executable graph twice at once");
    launch(&sim, other, common::stream(&sim));
    assert_eq!(sim.take_hazards().len(), 1);
}

#[test]
fn a_graph_uses_the_pages_that_are_mapped_when_it_runs() {
    let Bench { sim, a, .. } = bench();
    let (ptr, first) = mapped_page(&sim);
    // SAFETY: something is mapped there whenever the graph runs.
    let exec = capture(&sim, a, || unsafe { sim.fill_bytes(ptr, 9, 16, a).unwrap() });
    sim.handle_unmap(D, ptr, PAGE).unwrap();
    sim.handle_release(first).unwrap();
    let second = sim.handle_create(D, PAGE).unwrap();
    sim.handle_map(ptr, PAGE, second).unwrap();
    sim.access_set(ptr, PAGE, &[D]).unwrap();
    launch(&sim, exec, a);
    sim.stream_synchronize(a).unwrap();
    assert_eq!(sim.peek(ptr.raw()..ptr.raw() + 2), Some(vec![9, 9]));
    assert!(sim.take_hazards().is_empty());
}

#[test]
fn a_graph_whose_memory_is_gone_is_a_use_after_free() {
    let Bench { sim, a, .. } = bench();
    let (ptr, _) = mapped_page(&sim);
    let exec = capture(&sim, a, || sim.submit(a, writer("node", ptr)).unwrap());
    sim.handle_unmap(D, ptr, PAGE).unwrap();
    launch(&sim, exec, a);
    assert!(matches!(sim.take_hazards()[..], [Hazard::UseAfterFree { .. }]));
    assert_eq!(class(sim.stream_synchronize(a)), ErrorClass::DeviceLost);
}

#[test]
fn a_graph_cannot_be_launched_into_a_capture() {
    let Bench { sim, a, .. } = bench();
    let exec = capture(&sim, a, || ());
    sim.capture_begin(a, CaptureMode::Relaxed).unwrap();
    // SAFETY: the graph touches nothing.
    assert_eq!(unsafe { sim.graph_launch(exec, a) }.unwrap_err().code(), 900);
    assert_eq!(class(sim.capture_end(a)), ErrorClass::CaptureInvalidated);
}

#[test]
fn an_executable_graph_outlives_its_graph_and_a_launch_outlives_both() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 64);
    // SAFETY: the range is valid until the end of the test.
    let exec = capture(&sim, a, || unsafe { sim.fill_bytes(ptr, 5, 64, a).unwrap() });
    launch(&sim, exec, a);
    sim.graph_exec_destroy(exec).unwrap();
    assert_eq!(class(sim.graph_exec_destroy(exec)), ErrorClass::InvalidHandle);
    // SAFETY: refused.
    assert_eq!(class(unsafe { sim.graph_launch(exec, a) }), ErrorClass::InvalidHandle);
    sim.stream_synchronize(a).unwrap();
    assert_eq!(sim.peek(ptr.raw()..ptr.raw() + 1), Some(vec![5]));
}

#[test]
fn an_empty_graph_can_be_launched() {
    let Bench { sim, a, .. } = bench();
    let exec = capture(&sim, a, || ());
    launch(&sim, exec, a);
    assert!(sim.stream_query(a).unwrap());
    let ptr = DevicePtr::NULL;
    // SAFETY: nothing is copied.
    unsafe { sim.fill_bytes(ptr, 0, 0, a).unwrap() };
    assert!(sim.event_query(mark(&sim, a)).unwrap());
}
