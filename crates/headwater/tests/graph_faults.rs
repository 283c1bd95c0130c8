//! Every driver call of a scripted program with captures made to fail, one position at a time.
//!
//! Whatever fails: the error is typed, the accounts are exact, nothing leaks, nothing races, no capture is harmed that was not
//! the failed call's own, and the allocator works on.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod graph_support;

use graph_support::{GROUNDS, MIB, Stage};
use headwater::graph::{GraphError, RunnableGraph, SharedPhysical};
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{Call, CaptureMode, DevicePtr, Devices, ErrorClass, Stream, Streams};
use headwater_sim::FaultPlan;

const OOM: ErrorClass = ErrorClass::OutOfMemory { requested_bytes: 0, memory: None };

struct Play {
    stage: Stage,
    streams: [Stream; 3],
    held: Vec<DevicePtr>,
    graphs: Vec<RunnableGraph>,
    errors: Vec<GraphError>,
    shared: bool,
}

impl Play {
    fn new((plain, settings): (bool, &str), shared: bool, plan: FaultPlan) -> Self {
        let stage = Stage::new(plain, &format!("{settings},memory_limit:300M"), 512 * MIB);
        let streams = [stage.stream(), stage.stream(), stage.stream()];
        stage.sim.set_faults(plan);
        Self { stage, streams, held: Vec::new(), graphs: Vec::new(), errors: Vec::new(), shared }
    }

    fn note<T>(&mut self, answer: Result<T, GraphError>) -> Option<T> {
        self.stage.check();
        answer.map_err(|error| self.errors.push(error)).ok()
    }

    fn allocate(&mut self, bytes: u64, stream: usize) -> Option<DevicePtr> {
        let stream = self.streams[stream];
        let answer = self.stage.allocator.allocate(Request::new(bytes, stream));
        let ptr = self.note(answer.map_err(GraphError::from))?;
        self.held.push(ptr);
        Some(ptr)
    }

    fn give_back(&mut self, ptr: Option<DevicePtr>) {
        if let Some(ptr) = ptr {
            self.held.retain(|held| *held != ptr);
            // SAFETY: held here, and forgotten.
            let answer = unsafe { self.stage.allocator.give_back(ptr) };
            self.note(answer.map_err(GraphError::from));
        }
    }

    fn capture(&mut self, stream: usize, pool: Option<&headwater::graph::PoolHandle>, sizes: &[u64]) {
        let captured = self.streams[stream];
        let begun = self.stage.allocator.begin_capture(captured, CaptureMode::Global, pool);
        if self.note(begun).is_none() {
            return;
        }
        let blocks: Vec<_> = sizes.iter().map(|bytes| self.allocate(*bytes, stream)).collect();
        let outside = self.allocate(2 * MIB, 2);
        self.give_back(outside);
        let joined = self.streams[1 - stream];
        let ordered = self.stage.allocator.order_streams(captured, joined);
        self.note(ordered);
        let other = self.allocate(3 * MIB, 1 - stream);
        if let Some(other) = other {
            let recorded = self.stage.allocator.record_stream(other, captured);
            self.note(recorded.map_err(GraphError::from));
        }
        let ordered = self.stage.allocator.order_streams(joined, captured);
        self.note(ordered);
        self.give_back(other);
        blocks.into_iter().for_each(|block| self.give_back(block));
        let mut ended = self.stage.allocator.end_capture(captured);
        if ended.is_err() {
            // Once more, where it is still under way; over now in any case.
            self.note(ended.map(|_| ()));
            ended = self.stage.allocator.end_capture(captured);
        }
        let answer = ended.and_then(|graph| graph.instantiate());
        if let Some(graph) = self.note(answer) {
            self.graphs.push(graph);
        }
    }

    fn launch_all(&mut self) {
        for graph in std::mem::take(&mut self.graphs) {
            // SAFETY: the graphs touch memory of their pools only, and run one after the other.
            let launched = unsafe { graph.launch(self.streams[0]) };
            self.note(launched);
            self.graphs.push(graph);
        }
        let _ = self.stage.sim.stream_synchronize(self.streams[0]);
    }

    fn play(&mut self) {
        let group = self.shared.then(|| SharedPhysical::new(self.stage.sim.clone(), graph_support::DEVICE));
        let group = group.and_then(|group| self.note(group));
        let pool = match &group {
            Some(group) => self.stage.allocator.new_pool_in(group),
            None => self.stage.allocator.new_pool(),
        };
        let pool = pool.unwrap();
        let cached = self.allocate(150 * MIB, 2);
        self.give_back(cached);
        self.capture(0, Some(&pool), &[30 * MIB, 1000, 12 * MIB]);
        self.capture(1, Some(&pool), &[40 * MIB, 100_000]);
        if let Some(group) = &group {
            let second = self.stage.allocator.new_pool_in(group).unwrap();
            self.capture(0, Some(&second), &[60 * MIB, 700]);
        }
        self.capture(0, None, &[100 * MIB]);
        self.launch_all();
        // A capture that is not ended here, and one into a pool by a route.
        let routed = self.stage.allocator.begin_allocate_to_pool(&pool, |_| true);
        if self.note(routed).is_some() {
            let block = self.allocate(5 * MIB, 2);
            self.give_back(block);
            let ended = self.stage.allocator.end_allocate_to_pool(&pool);
            self.note(ended);
            let released = self.stage.allocator.release_pool(&pool);
            self.note(released);
        }
        let checkpoint = self.stage.allocator.checkpoint(&pool).unwrap();
        // SAFETY: nobody holds a block of the pool.
        let restored = unsafe { self.stage.allocator.restore(&pool, &checkpoint) };
        self.note(restored);
        self.graphs.clear();
        let emptied = self.stage.allocator.empty_cache();
        self.note(emptied.map_err(GraphError::from));
    }

    /// After whatever happened, everything works, and everything goes back.
    fn finish(mut self) -> Vec<GraphError> {
        self.stage.sim.set_faults(FaultPlan::none());
        let errors = std::mem::take(&mut self.errors);
        for stream in self.streams {
            // A begin whose own undoing failed leaves the stream captured.
            let _ = self.stage.allocator.abandon_capture(stream);
            if let Ok(graph) = headwater_driver::Capture::capture_end(&*self.stage.sim, stream) {
                headwater_driver::Capture::graph_destroy(&*self.stage.sim, graph).unwrap();
            }
        }
        self.stage.sim.wait_until_idle();
        self.capture(0, None, &[50 * MIB]);
        self.launch_all();
        assert!(self.errors.is_empty(), "{:?}", self.errors);
        self.graphs.clear();
        for ptr in self.held.clone() {
            self.give_back(Some(ptr));
        }
        let Self { stage, streams, .. } = self;
        stage.finish(&streams);
        errors
    }
}

fn every_position_fails_once(ground: (bool, &str), shared: bool, class: ErrorClass) {
    let mut play = Play::new(ground, shared, FaultPlan::none());
    let before = play.stage.sim.call_counts().total();
    play.play();
    let calls = play.stage.sim.call_counts().total() - before;
    let usual = play.finish();
    assert!(usual.is_empty(), "{usual:?}");
    assert!(calls > 60, "the script makes only {calls} calls");
    let mut noticed = 0;
    // Destroying a graph is for its owner to tell, who is going away: what the driver refuses then is not ours to keep.
    let silent = [Call::GraphDestroy, Call::GraphExecDestroy, Call::EventDestroy];
    let fallible: Vec<Call> = Call::ALL.iter().copied().filter(|call| !silent.contains(call)).collect();
    for position in 1..=calls {
        let plan = FaultPlan::none().fail_nth_of_any(position, class).only(&fallible);
        let mut play = Play::new(ground, shared, plan);
        play.play();
        let errors = play.finish();
        for error in &errors {
            let typed = matches!(
                error,
                GraphError::Alloc(AllocError::Driver(_) | AllocError::OutOfMemory(_))
                    | GraphError::NotCapturing { .. }
            );
            assert!(typed, "{position}: {error}");
        }
        noticed += usize::from(!errors.is_empty());
    }
    println!("{ground:?}, shared {shared}: {calls} positions, {noticed} of them seen by the caller");
}

#[test]
fn a_call_that_fails_harms_nothing() {
    every_position_fails_once(GROUNDS[0], false, ErrorClass::Other);
}

#[test]
fn a_call_that_fails_over_plain_memory_harms_nothing() {
    every_position_fails_once(GROUNDS[1], false, ErrorClass::Other);
}

#[test]
fn a_call_that_fails_beside_the_paged_backing_harms_nothing() {
    every_position_fails_once(GROUNDS[2], false, ErrorClass::Other);
    every_position_fails_once(GROUNDS[2], false, OOM);
}

#[test]
fn a_call_that_finds_no_memory_harms_nothing() {
    every_position_fails_once(GROUNDS[0], false, OOM);
}

#[test]
fn a_call_that_fails_in_a_group_harms_nothing() {
    every_position_fails_once(GROUNDS[0], true, ErrorClass::Other);
}
