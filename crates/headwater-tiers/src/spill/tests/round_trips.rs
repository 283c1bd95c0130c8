//! Data there and back, pinned or not, in the right order.

use super::*;

#[test]
fn a_buffer_comes_back_whole_from_every_tier() {
    let machine = machine(1024, 512, false);
    for bytes in [0usize, 4, 16 * 1024, 16 * 1024 + 4, 200 * 1024] {
        let values = pattern(bytes / 4, bytes as u32);
        let buffer = machine.spill.buffer_from_slice(&values, Tier::Gpu, DEVICE, &patience()).unwrap();
        for (down, up) in [(Tier::Host, Tier::Gpu), (Tier::Disk, Tier::Gpu), (Tier::Disk, Tier::Host)] {
            buffer.prefetch(DEVICE, &patience()).unwrap();
            buffer.spill_to(down, &patience()).unwrap();
            assert_eq!(buffer.space().tier(), down);
            if up == Tier::Gpu {
                let access = buffer.read_on_gpu(machine.stream, &patience()).unwrap();
                assert_eq!(buffer.space(), GPU);
                machine.sim.wait_until_idle();
                let range = access.ptr().raw()..access.ptr().raw() + bytes as u64;
                if bytes > 0 {
                    assert!(machine.sim.peek(range).unwrap() == access::bytes_of(&values));
                }
            }
            assert!(buffer.read_on_host(&patience()).unwrap().to_vec().unwrap() == values, "{bytes} {down}");
        }
    }
    machine.end();
}

#[test]
fn a_table_moves_as_one_in_both_forms() {
    let machine = machine(1024, 512, false);
    let columns = vec![
        Column::fixed(8, 5000).with_nulls(3),
        Column::text(1000, 30_001),
        Column::of(ColumnType::List, 10).with_children(vec![Column::fixed(4, 0)]),
    ];
    for form in [TableForm::Direct, TableForm::Packed] {
        let table = machine.spill.table(columns.clone(), form, DEVICE, &patience()).unwrap();
        let sizes: Vec<u64> = table.columns().iter().flat_map(Column::buffer_bytes).collect();
        assert_eq!(sizes, [625, 40_000, 4004, 30_001, 44, 0]);
        {
            let mut write = table.write_on_host(&patience()).unwrap();
            for (part, bytes) in sizes.iter().enumerate() {
                write.write_at(part, 0, &vec![part as u8 + 1; *bytes as usize]).unwrap();
            }
            let beyond = write.write_at(0, 600, &[0; 26]);
            assert!(matches!(beyond, Err(TierError::OutOfRange { part: 0, part_bytes: 625, .. })));
        }
        let blocks = bytes_in(&machine.spill.inner.core, &table_layout(&table), Tier::Host) / (16 * KIB);
        assert_eq!(blocks, if form == TableForm::Packed { 5 } else { 1 + 3 + 1 + 2 + 1 });
        for tier in [Tier::Disk, Tier::Host] {
            table.prefetch(DEVICE, &patience()).unwrap();
            table.spill_to(tier, &patience()).unwrap();
            assert_eq!(table.space().tier(), tier);
        }
        let access = table.read_on_gpu(machine.stream, &patience()).unwrap();
        assert_eq!((access.part_bytes(3), access.bytes()), (30_001, sizes.iter().sum()));
        drop(access);
        let read = table.read_on_host(&patience()).unwrap();
        for (part, bytes) in sizes.iter().enumerate() {
            assert_eq!(
                read.part_to_vec(part).unwrap(),
                vec![part as u8 + 1; *bytes as usize],
                "{form:?} {part}"
            );
        }
    }
    machine.end();
}

fn table_layout(table: &SpillTable) -> Layout {
    table.layout_for_tests()
}

#[test]
fn a_spill_waits_for_the_work_that_uses_the_data_and_work_waits_for_the_move() {
    let machine = machine(1024, 512, false);
    let (buffer, _) = machine.numbers(64, 1);
    let other = machine.sim.stream_create(DEVICE, StreamOptions { non_blocking: true, priority: 0 }).unwrap();
    for round in 0..3 {
        let access = buffer.write_on_gpu(machine.stream, &patience()).unwrap();
        let range = access.ptr().raw()..access.ptr().raw() + 64 * KIB;
        machine.sim.submit(machine.stream, Work::new("late writer", 1_000_000).writes(range)).unwrap();
        drop(access);
        let readers = [machine.stream, other].map(|stream| buffer.read_on_gpu(stream, &patience()).unwrap());
        for reader in readers {
            let range = reader.ptr().raw()..reader.ptr().raw() + 64 * KIB;
            machine.sim.submit(reader.stream(), Work::new("reader", 1_000_000).reads(range)).unwrap();
        }
        buffer.spill_to([Tier::Host, Tier::Disk, Tier::Host][round], &patience()).unwrap();
    }
    drop(buffer);
    machine.sim.stream_destroy(other).unwrap();
    machine.end();
}

#[test]
fn what_is_pinned_stays_and_writers_are_alone() {
    let machine = machine(128, 512, false);
    let (buffer, values) = machine.numbers(64, 1);
    let now = Wait::at_most(Duration::ZERO);
    let access = buffer.read_on_gpu(machine.stream, &patience()).unwrap();
    let again = buffer.read_on_gpu(machine.stream, &now).unwrap();
    assert_eq!(machine.spill.make_room(GPU, 1), 0);
    assert!(matches!(buffer.write_on_gpu(machine.stream, &now), Err(TierError::InUse { readers: 2, .. })));
    assert!(matches!(buffer.read_on_host(&now), Err(TierError::InUse { .. })));
    drop((access, again));
    let write = buffer.write_on_gpu(machine.stream, &now).unwrap();
    assert!(matches!(
        buffer.read_on_gpu(machine.stream, &now),
        Err(TierError::InUse { has_writer: true, .. })
    ));
    drop(write);
    assert_eq!(machine.spill.make_room(GPU, 1), 64 * KIB);
    assert_eq!(buffer.read_on_host(&now).unwrap().to_vec().unwrap(), values);
    drop(buffer);
    machine.end();
}

#[test]
fn a_full_disk_leaves_the_data_where_it_was() {
    let machine = machine(256, 64 + 64, false);
    let (buffer, values) = machine.numbers(64, 9);
    let host = machine.spill.tiers().space(SpaceId::host(0)).unwrap();
    let elsewhere = host.make_reservation(64 * KIB, &patience()).unwrap();
    let full = machine.disk.clone();
    full.set_faults(crate::disk::DiskFaults { full: 1.0, ..Default::default() });
    assert_eq!(machine.spill.make_room(GPU, 1), 0);
    let error = buffer.spill_to(Tier::Disk, &patience()).unwrap_err();
    assert!(
        matches!(&error, TierError::Disk(disk) if matches!(**disk, crate::disk::DiskError::Full { .. })),
        "{error}"
    );
    assert_eq!(buffer.space(), GPU);
    full.set_faults(Default::default());
    buffer.spill_to(Tier::Disk, &patience()).unwrap();
    buffer.prefetch(DEVICE, &patience()).unwrap();
    machine.sim.wait_until_idle();
    let access = buffer.read_on_gpu(machine.stream, &patience()).unwrap();
    let range = access.ptr().raw()..access.ptr().raw() + 64 * KIB;
    assert!(machine.sim.peek(range).unwrap() == access::bytes_of(&values));
    drop((access, buffer, elsewhere, host));
    machine.end();
}

#[test]
fn data_goes_from_one_gpu_to_another() {
    let sim = SimDriver::builder().devices(2).cost(CostModel::free_of_charge()).build();
    let mut config = TiersConfig::default().driver(sim.clone());
    for device in [DeviceId(0), DeviceId(1)] {
        config = config.gpu(GpuConfig::new(Arc::new(Direct::new(sim.clone(), device).unwrap()), 1 << 20));
    }
    let mut host = HostConfig::new(0, 1 << 20);
    (host.pinned.block_bytes, host.pinned.initial_slabs) = (64 * KIB, 0);
    let tiers = Tiers::new(config.host(host)).unwrap();
    let spill = Spill::new(tiers, SpillConfig { background: false, ..SpillConfig::default() }).unwrap();
    let values = pattern(50_000, 3);
    let buffer = spill.buffer_from_slice(&values, Tier::Gpu, DeviceId(0), &patience()).unwrap();
    let there = Stream::per_thread_default(DeviceId(1));
    let access = buffer.read_on_gpu(there, &patience()).unwrap();
    assert_eq!(buffer.space(), SpaceId::gpu(DeviceId(1)));
    let range = access.ptr().raw()..access.ptr().raw() + 200_000;
    assert!(sim.peek(range).unwrap() == access::bytes_of(&values));
    assert_eq!(spill.figures().route(Route::GpuToGpu).moves, 1);
    drop((access, buffer, spill));
    assert!(sim.hazards().is_empty() && sim.leaks().is_empty(), "{:?} {:?}", sim.hazards(), sim.leaks());
}

#[test]
fn data_goes_from_one_node_to_another() {
    let sim = SimDriver::builder().cost(CostModel::free_of_charge()).build();
    let mut config = TiersConfig::default().driver(sim.clone());
    config = config.gpu(GpuConfig::new(Arc::new(Direct::new(sim.clone(), DEVICE).unwrap()), 1 << 20));
    for node in [0, 1] {
        let mut host = HostConfig::new(node, 1 << 20);
        (host.pinned.block_bytes, host.pinned.initial_slabs) = (64 * KIB, 0);
        host.thresholds = whole();
        config = config.host(host);
    }
    let spill =
        Spill::new(Tiers::new(config).unwrap(), SpillConfig { background: false, ..SpillConfig::default() });
    let spill = spill.unwrap();
    let values = pattern(50_000, 3);
    let buffer = spill.buffer_from_slice(&values, Tier::Host, DEVICE, &patience()).unwrap();
    buffer.move_to(SpaceId::host(0), &patience()).unwrap();
    let moves = spill.figures().route(Route::HostToHost).moves;
    for node in [1, 0, 0] {
        buffer.move_to(SpaceId::host(node), &patience()).unwrap();
        assert_eq!(buffer.space(), SpaceId::host(node));
        assert_eq!(buffer.read_on_host(&patience()).unwrap().to_vec().unwrap(), values);
        let other = spill.tiers().space(SpaceId::host(1 - node)).unwrap();
        assert_eq!(other.usage().used_bytes(), 0, "nothing is left behind");
    }
    let moved = spill.figures().route(Route::HostToHost).moves - moves;
    assert_eq!(moved, 2, "what is there already does not move");
    drop((buffer, spill));
    assert!(sim.hazards().is_empty() && sim.leaks().is_empty(), "{:?} {:?}", sim.hazards(), sim.leaks());
}

#[test]
fn a_move_down_does_not_wait_for_one_up() {
    let sim = SimDriver::new();
    let mut gpu = GpuConfig::new(Arc::new(Direct::new(sim.clone(), DEVICE).unwrap()), 64 << 20);
    gpu.thresholds = whole();
    let mut host = HostConfig::new(0, 64 << 20);
    host.thresholds = whole();
    let tiers = Tiers::new(TiersConfig::default().driver(sim.clone()).gpu(gpu).host(host)).unwrap();
    let spill = Spill::new(tiers, SpillConfig { background: false, ..SpillConfig::default() }).unwrap();
    let make = || spill.buffer::<u8>(16 << 20, DEVICE, &patience()).unwrap();
    let (going_up, going_down) = (make(), make());
    going_up.spill_to(Tier::Host, &patience()).unwrap();
    let begun = sim.now_ns();
    going_down.spill_to(Tier::Host, &patience()).unwrap();
    let one_way_ns = sim.now_ns() - begun;
    going_down.prefetch(DEVICE, &patience()).unwrap();
    // Until the device has it: by then both are where they begin.
    sim.advance_ns(10 * one_way_ns);
    let begun = sim.now_ns();
    going_up.prefetch(DEVICE, &patience()).unwrap();
    going_down.spill_to(Tier::Host, &patience()).unwrap();
    let both_ns = sim.now_ns() - begun;
    // One behind the other would be twice as long.
    assert!(both_ns < one_way_ns * 3 / 2, "{both_ns} ns for both ways, {one_way_ns} for one");
}

#[test]
fn a_host_space_smaller_than_the_staging_keeps_half_of_itself_for_data() {
    let mut machine = machine(256, 512, false);
    let mut config = SpillConfig { background: false, ..SpillConfig::default() };
    let store = machine.spill.store(SpaceId::disk(0)).unwrap().clone();
    config.stores.insert(SpaceId::disk(0), store);
    let tiers = {
        let mut gpu = GpuConfig::new(Arc::new(Direct::new(machine.sim.clone(), DEVICE).unwrap()), 256 * KIB);
        gpu.thresholds = whole();
        let mut host = HostConfig::new(0, 128 * KIB);
        host.thresholds = whole();
        (host.pinned.block_bytes, host.pinned.initial_slabs) = (16 * KIB, 0);
        let disk = DiskConfig::new("/", 64 << 20);
        Tiers::new(TiersConfig::default().driver(machine.sim.clone()).gpu(gpu).host(host).disk(disk)).unwrap()
    };
    machine.spill = Spill::new(tiers, config).unwrap();
    let (buffer, values) = machine.numbers(64, 5);
    for tier in [Tier::Host, Tier::Disk] {
        buffer.spill_to(tier, &patience()).unwrap();
        buffer.prefetch(DEVICE, &patience()).unwrap();
    }
    assert_eq!(buffer.read_on_host(&patience()).unwrap().to_vec().unwrap(), values);
    drop(buffer);
    machine.end();
}
