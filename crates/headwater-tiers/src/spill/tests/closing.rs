//! Closing and using data while it is being moved.

use super::*;

/// A disk on which nothing is stored before it is told so.
#[derive(Debug)]
struct Gated {
    disk: Arc<MemoryIo>,
    is_open: parking_lot::Mutex<bool>,
    arrived: AtomicU32,
    opened: parking_lot::Condvar,
}

impl Gated {
    fn open(&self) {
        *self.is_open.lock() = true;
        self.opened.notify_all();
    }

    fn wait_for_arrival(&self) {
        while self.arrived.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }
}

impl DiskIo for Gated {
    fn describe(&self) -> crate::disk::IoDescription {
        self.disk.describe()
    }
    fn alignment(&self) -> crate::disk::Alignment {
        self.disk.alignment()
    }
    fn free_bytes(&self) -> std::io::Result<u64> {
        self.disk.free_bytes()
    }
    fn allocate(&self, offset: u64, bytes: u64) -> std::io::Result<()> {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        let mut is_open = self.is_open.lock();
        while !*is_open {
            self.opened.wait(&mut is_open);
        }
        drop(is_open);
        self.disk.allocate(offset, bytes)
    }
    fn release(&self, offset: u64, bytes: u64) -> std::io::Result<()> {
        self.disk.release(offset, bytes)
    }
    fn queue(&self) -> std::io::Result<Box<dyn IoQueue + '_>> {
        self.disk.queue()
    }
}

fn gated() -> (Arc<Gated>, Machine) {
    let gate = Arc::new(Gated {
        disk: Arc::new(MemoryIo::new(64 << 20, 1)),
        is_open: parking_lot::Mutex::new(false),
        arrived: AtomicU32::new(0),
        opened: parking_lot::Condvar::new(),
    });
    let config = SpillConfig { background: false, ..SpillConfig::default() };
    // Host memory for staging alone: whatever spills goes to disk.
    let machine = machine_with(512, 64 + 16, config, Some(gate.clone()));
    (gate, machine)
}

#[test]
fn closing_a_buffer_while_it_spills_ends_the_spill_and_frees_everything() {
    let (gate, machine) = gated();
    let buffer: SpillBuffer<u32> = machine.spill.buffer(16 * 1024, DEVICE, &patience()).unwrap();
    std::thread::scope(|scope| {
        let spilling = scope.spawn(|| machine.spill.make_room(GPU, 1));
        gate.wait_for_arrival();
        drop(buffer);
        gate.open();
        assert_eq!(spilling.join().unwrap(), 0, "it was called off");
    });
    let figures = machine.spill.figures();
    assert_eq!(figures.route(Route::GpuToDisk).cancelled, 1);
    assert_eq!(machine.spill.tiers().space(GPU).unwrap().usage().used_bytes(), 0);
    assert_eq!(machine.spill.store(SpaceId::disk(0)).unwrap().usage().stored_bytes, 0);
    machine.end();
}

#[test]
fn an_access_calls_a_spill_off_and_finds_the_data_where_it_was() {
    let (gate, machine) = gated();
    let buffer: SpillBuffer<u32> = machine.spill.buffer(16 * 1024, DEVICE, &patience()).unwrap();
    std::thread::scope(|scope| {
        let spilling = scope.spawn(|| machine.spill.make_room(GPU, 1));
        gate.wait_for_arrival();
        let reading = scope.spawn(|| buffer.read_on_gpu(machine.stream, &patience()).map(drop));
        while !buffer.owner.0.is_move_called_off() {
            std::thread::yield_now();
        }
        gate.open();
        spilling.join().unwrap();
        reading.join().unwrap().unwrap();
    });
    assert_eq!(buffer.space(), GPU);
    assert_eq!(machine.spill.figures().route(Route::GpuToDisk).cancelled, 1);
    drop(buffer);
    machine.end();
}

#[test]
fn closing_the_engine_while_it_spills_sees_the_move_through() {
    let gate = Arc::new(Gated {
        disk: Arc::new(MemoryIo::new(64 << 20, 1)),
        is_open: parking_lot::Mutex::new(false),
        arrived: AtomicU32::new(0),
        opened: parking_lot::Condvar::new(),
    });
    let machine = machine_with(256, 64 + 16, SpillConfig::default(), Some(gate.clone()));
    let buffer: SpillBuffer<u32> = machine.spill.buffer(32 * 1024, DEVICE, &patience()).unwrap();
    let gpu = machine.spill.tiers().space(GPU).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| gpu.make_reservation(256 * KIB, &patience()));
        gate.wait_for_arrival();
        let closing = scope.spawn(|| machine.spill.shut_down());
        gate.open();
        closing.join().unwrap();
        drop(waiting.join().unwrap().unwrap());
    });
    assert_eq!(buffer.space().tier(), Tier::Disk);
    drop((buffer, gpu));
    machine.end();
}
