//! Random programs against a simple model, on a device that finds every byte that is used too early.

use std::collections::BTreeMap;

use headwater_driver::{EventOptions, Events};
use headwater_sim::Work;
use proptest::prelude::*;

use super::*;
use crate::binned::ClassDivisions;

const STREAMS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Take { bytes: u64, stream: usize },
    GiveBack { block: usize },
    Use { block: usize, stream: usize, duration_ns: u64 },
    Wait { stream: usize },
    ProcessDeferred,
    EmptyCache,
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![1..2000_u64, 1..300_000_u64, 1..12_000_000_u64];
    prop_oneof![
        6 => (size, 0..STREAMS).prop_map(|(bytes, stream)| Step::Take { bytes, stream }),
        5 => any::<usize>().prop_map(|block| Step::GiveBack { block }),
        5 => (any::<usize>(), 0..STREAMS, 1_000..2_000_000_u64)
            .prop_map(|(block, stream, duration_ns)| Step::Use { block, stream, duration_ns }),
        1 => (0..STREAMS).prop_map(|stream| Step::Wait { stream }),
        1 => Just(Step::ProcessDeferred),
        1 => Just(Step::EmptyCache),
    ]
}

/// What the model knows of a live block.
struct Held {
    bytes: u64,
    stream: usize,
}

/// Lets work in `stream` use a block, ordered after the block's own stream and announced, as a caller must.
fn use_block(
    sim: &SimDriver,
    pool: &Binned,
    streams: &[Stream],
    (ptr, held): (DevicePtr, &Held),
    stream: usize,
    duration_ns: u64,
) {
    if stream != held.stream {
        let event = sim.event_create(DEVICE, EventOptions::default()).unwrap();
        sim.event_record(event, streams[held.stream]).unwrap();
        sim.stream_wait_event(streams[stream], event).unwrap();
        pool.record_stream(ptr, streams[stream]).unwrap();
    }
    let range = ptr.raw()..ptr.raw() + held.bytes;
    // Readers may run side by side; the own stream writes and is ordered by its own order, and after other streams.
    let work = Work::new("use", duration_ns);
    let work = if stream == held.stream { work.writes(range) } else { work.reads(range) };
    sim.submit(streams[stream], work).unwrap();
    if stream != held.stream {
        let event = sim.event_create(DEVICE, EventOptions::default()).unwrap();
        sim.event_record(event, streams[stream]).unwrap();
        // Only the block's later writers must wait: this is the program's own ordering, not the pool's.
        sim.stream_wait_event(streams[held.stream], event).unwrap();
    }
}

/// The same without the wait back: after this the block is only given back.
fn use_block_at_last(sim: &SimDriver, pool: &Binned, streams: &[Stream], ptr: DevicePtr, held: &Held) {
    let stream = (held.stream + 1) % STREAMS;
    let event = sim.event_create(DEVICE, EventOptions::default()).unwrap();
    sim.event_record(event, streams[held.stream]).unwrap();
    sim.stream_wait_event(streams[stream], event).unwrap();
    pool.record_stream(ptr, streams[stream]).unwrap();
    let work = Work::new("late", 3_000_000).writes(ptr.raw()..ptr.raw() + held.bytes);
    sim.submit(streams[stream], work).unwrap();
}

fn run(steps: &[Step], options: BinnedOptions) {
    let sim = SimDriver::builder().report_unwritten_reads(false).build();
    let streams: Vec<Stream> = (0..STREAMS).map(|_| stream(&sim)).collect();
    let pool = pool_with(&sim, options);
    let mut live: BTreeMap<DevicePtr, Held> = BTreeMap::new();
    let nth =
        |live: &BTreeMap<DevicePtr, Held>, block: usize| live.keys().nth(block % live.len().max(1)).copied();
    for step in steps {
        match step {
            Step::Take { bytes, stream } => {
                if let Ok(ptr) = pool.allocate(Request::new(*bytes, streams[*stream])) {
                    let before = live.range(..=ptr).next_back();
                    assert!(before.is_none_or(|(other, held)| other.raw() + held.bytes <= ptr.raw()));
                    let after = live.range(ptr..).next();
                    assert!(after.is_none_or(|(other, _)| ptr.raw() + bytes <= other.raw()));
                    live.insert(ptr, Held { bytes: *bytes, stream: *stream });
                }
            }
            Step::GiveBack { block } => {
                if let Some(ptr) = nth(&live, *block)
                    && let Some(held) = live.remove(&ptr)
                {
                    if block % 3 == 0 {
                        use_block_at_last(&sim, &pool, &streams, ptr, &held);
                    }
                    give_back(&pool, ptr).unwrap();
                    assert_eq!(give_back(&pool, ptr), Err(AllocError::AlreadyGivenBack { ptr }));
                }
            }
            Step::Use { block, stream, duration_ns } => {
                if let Some(ptr) = nth(&live, *block)
                    && let Some(held) = live.get(&ptr)
                {
                    use_block(&sim, &pool, &streams, (ptr, held), *stream, *duration_ns);
                }
            }
            Step::Wait { stream } => sim.stream_synchronize(streams[*stream]).unwrap(),
            Step::ProcessDeferred => drop(pool.process_deferred().unwrap()),
            Step::EmptyCache => drop(pool.empty_cache().unwrap()),
        }
        let stats = pool.stats();
        assert_eq!(stats.requested_bytes.all.current, live.values().map(|held| held.bytes).sum::<u64>());
        assert_eq!(stats.allocation.all.current, live.len() as u64);
        let limit_bytes = options.limit_bytes.unwrap_or(u64::MAX);
        assert!(stats.reserved_bytes.all.peak <= limit_bytes);
        pool.reconcile().unwrap();
    }
    assert_eq!(sim.hazards(), []);
    for ptr in live.into_keys() {
        give_back(&pool, ptr).unwrap();
    }
    streams.iter().for_each(|stream| sim.stream_synchronize(*stream).unwrap());
    pool.empty_cache().unwrap();
    assert_eq!(reserved_bytes(&pool), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_program_gets_memory_that_is_its_own(steps in prop::collection::vec(step(), 1..120)) {
        run(&steps, BinnedOptions::default());
    }

    #[test]
    fn any_program_stays_within_a_narrow_limit(
        steps in prop::collection::vec(step(), 1..120),
        limit_mib in 4..40_u64,
        fine in any::<bool>(),
    ) {
        let divisions = if fine { ClassDivisions::Eight } else { ClassDivisions::One };
        let limit_bytes = Some(limit_mib * MIB);
        run(&steps, BinnedOptions { divisions, limit_bytes, thread_cache_bytes: MIB, ..BinnedOptions::default() });
    }
}
