//! How many driver calls a second the simulated device takes on one core.
//!
//! `cargo run --release -p headwater-sim --example calls_per_second`. The target is one million: a trace of hundreds of
//! thousands of events then replays in seconds.

use std::time::Instant;

use headwater_driver::{
    Call, DeviceId, DevicePtr, Devices, EventOptions, Events, PlainMemory, Result, Stream, StreamOptions,
    Streams, VirtualMemory,
};
use headwater_sim::{SimDriver, Work};

const DEVICE: DeviceId = DeviceId(0);
const PAGE_BYTES: u64 = 2 << 20;
const ROUNDS: u64 = 200_000;

type Step = fn(&SimDriver, &Scene, u64) -> Result<()>;

/// What the steps use.
struct Scene {
    streams: [Stream; 2],
    arena: DevicePtr,
    /// Blocks that stay allocated, so that tables are not empty.
    blocks: Vec<DevicePtr>,
}

fn scene(sim: &SimDriver) -> Result<Scene> {
    let options = StreamOptions { non_blocking: true, priority: 0 };
    let streams = [sim.stream_create(DEVICE, options)?, sim.stream_create(DEVICE, options)?];
    let arena = sim.address_reserve(DEVICE, 1 << 40, 0)?;
    for page in 0..4096 {
        let handle = sim.handle_create(DEVICE, PAGE_BYTES)?;
        let at = DevicePtr::new(arena.raw() + (1 << 39) + page * PAGE_BYTES);
        sim.handle_map(at, PAGE_BYTES, handle)?;
        sim.access_set(at, PAGE_BYTES, &[DEVICE])?;
    }
    let blocks = (0..1024).map(|_| sim.mem_alloc(DEVICE, 1 << 20)).collect::<Result<Vec<_>>>()?;
    Ok(Scene { streams, arena, blocks })
}

fn events(sim: &SimDriver, scene: &Scene, _: u64) -> Result<()> {
    let event = sim.event_create(DEVICE, EventOptions::default())?;
    sim.event_record(event, scene.streams[0])?;
    sim.stream_wait_event(scene.streams[1], event)?;
    sim.event_query(event)?;
    sim.event_destroy(event)
}

fn pages(sim: &SimDriver, scene: &Scene, round: u64) -> Result<()> {
    let at = DevicePtr::new(scene.arena.raw() + round % 1024 * PAGE_BYTES);
    let handle = sim.handle_create(DEVICE, PAGE_BYTES)?;
    sim.handle_map(at, PAGE_BYTES, handle)?;
    sim.access_set(at, PAGE_BYTES, &[DEVICE])?;
    sim.handle_unmap(DEVICE, at, PAGE_BYTES)?;
    sim.handle_release(handle)
}

fn plain(sim: &SimDriver, _: &Scene, round: u64) -> Result<()> {
    let block = sim.mem_alloc(DEVICE, 512 << (round % 12))?;
    sim.mem_free(DEVICE, block)
}

fn launches(sim: &SimDriver, scene: &Scene, round: u64) -> Result<()> {
    let block = |index: u64| {
        let start = scene.blocks[(index % scene.blocks.len() as u64) as usize].raw();
        start..start + (1 << 20)
    };
    let work = Work::new("kernel", 3_000).writes(block(round));
    let work = if round > 0 { work.reads(block(round - 1)) } else { work };
    sim.submit(scene.streams[0], work)
}

fn main() -> Result<()> {
    let steps: [(&str, Step); 4] =
        [("events", events), ("map cycle", pages), ("alloc and free", plain), ("launches", launches)];
    let sim = SimDriver::new();
    let scene = scene(&sim)?;
    let (mut all_calls, mut all_seconds) = (0, 0.0);
    for (name, step) in steps {
        let before = sim.call_counts();
        let start = Instant::now();
        for round in 0..ROUNDS {
            step(&sim, &scene, round)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let calls = sim.call_counts().since(&before).total();
        println!("{name:>16}: {:6.2} million calls a second", calls as f64 / seconds / 1e6);
        all_calls += calls;
        all_seconds += seconds;
    }
    println!("{:>16}: {:6.2} million calls a second", "all", all_calls as f64 / all_seconds / 1e6);
    println!("{:>16}: {}", "hazards", sim.hazards().len());
    println!("{:>16}: {}", Call::KernelLaunch, sim.call_counts().of(Call::KernelLaunch));
    Ok(())
}
