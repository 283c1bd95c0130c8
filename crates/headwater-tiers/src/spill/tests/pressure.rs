//! Room that is needed: movers, callbacks, prefetching.

use super::*;

#[test]
fn three_times_the_gpu_is_worked_through_with_and_without_movers() {
    for background in [false, true] {
        let machine = machine(256, 256, background);
        let buffers: Vec<_> = (0..12).map(|i| machine.numbers(64, i)).collect();
        for round in 0..3 {
            for (buffer, _) in &buffers {
                drop(buffer.read_on_gpu(machine.stream, &patience()).unwrap());
            }
            assert!(machine.spill.tiers().space(GPU).unwrap().usage().used_bytes() <= 256 * KIB, "{round}");
        }
        for (i, (buffer, values)) in buffers.iter().enumerate() {
            assert!(
                buffer.read_on_host(&patience()).unwrap().to_vec().unwrap() == *values,
                "{background} {i}"
            );
        }
        let figures = machine.spill.figures();
        assert!(figures.route(Route::GpuToHost).moves > 0 && figures.route(Route::HostToGpu).moves > 0);
        drop(buffers);
        machine.end();
    }
}

#[test]
fn a_mover_begins_at_the_trigger_and_stops_at_the_stop() {
    let machine = machine(1000, 512, true);
    let gpu = machine.spill.tiers().space(GPU).unwrap();
    let marks = Thresholds {
        reservation_limit: Fraction::WHOLE,
        downgrade_trigger: Fraction::percent(80),
        downgrade_stop: Fraction::percent(50),
    };
    gpu.set_limits(1000 * KIB, marks).unwrap();
    let mut buffers: Vec<_> = (0..7).map(|i| machine.numbers(100, i).0).collect();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(gpu.usage().used_bytes(), 700 * KIB, "below the trigger nothing moves");
    buffers.push(machine.numbers(100, 7).0);
    for _ in 0..2000 {
        if gpu.usage().used_bytes() == 500 * KIB {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(gpu.usage().used_bytes(), 500 * KIB, "no further than the stop");
    assert!(buffers[..3].iter().all(|buffer| buffer.space().tier() == Tier::Host), "the oldest went");
    drop((buffers, gpu));
    machine.end();
}

#[test]
fn a_request_in_the_queue_is_room_that_the_mover_makes() {
    let machine = machine(256, 512, true);
    let buffers: Vec<_> = (0..4).map(|i| machine.numbers(64, i).0).collect();
    let gpu = machine.spill.tiers().space(GPU).unwrap();
    let reservation = gpu.make_reservation(128 * KIB, &patience()).unwrap();
    assert_eq!(buffers.iter().filter(|buffer| buffer.space() == GPU).count(), 2, "no more than needed");
    drop((reservation, buffers, gpu));
    machine.end();
}

#[test]
fn an_allocation_that_would_have_failed_succeeds_through_the_failure_callback() {
    let sim = SimDriver::builder().cost(CostModel::free_of_charge()).memory_bytes(64 << 20).build();
    let caching = CachingAllocator::new(sim.clone(), DEVICE, headwater::config::Config::default()).unwrap();
    let mut gpu = GpuConfig::new(caching.clone(), 64 << 20);
    gpu.thresholds = whole();
    let mut host = HostConfig::new(0, 128 << 20);
    (host.pinned.block_bytes, host.pinned.initial_slabs) = (1 << 20, 0);
    let tiers = Tiers::new(TiersConfig::default().driver(sim.clone()).gpu(gpu).host(host)).unwrap();
    let spill = Spill::new(tiers, SpillConfig { background: false, ..SpillConfig::default() }).unwrap();
    let buffers: Vec<SpillBuffer<u8>> =
        (0..6).map(|_| spill.buffer(8 << 20, DEVICE, &patience()).unwrap()).collect();
    let stream = Stream::legacy_default(DEVICE);
    let ask = |allocator: Arc<dyn Allocator>| Block::allocate(allocator, Request::new(40 << 20, stream));
    assert!(ask(caching.clone()).unwrap_err().is_out_of_memory());

    let adaptor = Arc::new(WithFailureCallback::new(caching.clone(), spill.failure_callback(DEVICE)));
    drop(ask(adaptor).unwrap());
    assert!(spill.figures().callbacks_helped > 0);
    for buffer in &buffers {
        buffer.prefetch(DEVICE, &patience()).unwrap();
    }
    caching.set_failure_callback(Some(Arc::new(spill.failure_callback(DEVICE))));
    let block = ask(caching.clone()).unwrap();
    assert!(buffers.iter().any(|buffer| buffer.space().tier() == Tier::Host));
    drop(block);
    for buffer in &buffers {
        assert!(buffer.read_on_host(&patience()).unwrap().to_vec().unwrap().iter().all(|byte| *byte == 0));
    }
    caching.set_failure_callback(None);
    drop((buffers, spill));
    assert!(sim.hazards().is_empty(), "{:?}", sim.hazards());
}

#[test]
fn data_asked_for_ahead_of_its_use_comes_up_when_there_is_room() {
    let machine = machine(256, 512, true);
    let (buffer, values) = machine.numbers(64, 1);
    buffer.spill_to(Tier::Disk, &patience()).unwrap();
    let (hog, _) = machine.numbers(224, 2);
    let pinned = hog.read_on_gpu(machine.stream, &patience()).unwrap();
    assert!(buffer.prefetch_soon(DEVICE));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(buffer.space().tier(), Tier::Disk, "there is no room for it");
    drop((pinned, hog));
    for _ in 0..2000 {
        if buffer.space() == GPU {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(buffer.space(), GPU);
    assert_eq!(buffer.read_on_host(&patience()).unwrap().to_vec().unwrap(), values);
    drop(buffer);
    machine.end();
}
