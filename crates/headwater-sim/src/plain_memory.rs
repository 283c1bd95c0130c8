//! Plain device memory.
//!
//! What an allocation takes of the device is its size rounded up to 512 bytes up to 1 MiB, and to 2 MiB above. CUDA packs the
//! small ones into granules of 2 MiB and so takes memory in larger steps (measured: four of 1 MiB take 4 MiB, four of
//! 2 MiB take 8, four of 3,000,000 bytes 16); sums of many agree.

use headwater_driver::{Call, DeviceId, DevicePtr, PlainMemory, Result};

use crate::hazards::{Place, Removal};
use crate::machine::{Backing, Machine, Region, Touched};
use crate::refusal::{Refusal, out_of_memory};
use crate::sim_driver::SimDriver;

fn charged_bytes(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(if bytes <= 1 << 20 { 512 } else { 2 << 20 })
}

impl PlainMemory for SimDriver {
    fn mem_alloc(&self, device: DeviceId, bytes: u64) -> Result<DevicePtr> {
        let call = Call::MemAlloc;
        let mut machine = self.enter_on(call, device, bytes)?;
        machine.forbid_unsafe(call)?;
        if bytes == 0 {
            return Err(Refusal::InvalidValue.of(call).with_detail("a size of 0 bytes"));
        }
        let start = machine.allocate(device, bytes)?;
        machine.charge_rest(call, bytes, 1);
        Ok(DevicePtr::new(start))
    }

    fn mem_free(&self, device: DeviceId, ptr: DevicePtr) -> Result<()> {
        let mut machine = self.enter_on(Call::MemFree, device, 0)?;
        machine.free(device, ptr.raw())
    }
}

impl Machine {
    fn allocate(&mut self, device: DeviceId, bytes: u64) -> Result<u64> {
        let call = Call::MemAlloc;
        let memory = self.device(call, device)?.memory();
        let shortage = || out_of_memory(call, bytes, Some(memory));
        let charged =
            charged_bytes(bytes).filter(|charged| *charged <= memory.free_bytes).ok_or_else(shortage)?;
        let start = self.space.place_plain(bytes).ok_or_else(shortage)?;
        self.take_memory(call, device, bytes, charged)?;
        let physical = self.physical.create(device, bytes, charged);
        self.physical.show(physical, start);
        let backing = Backing::Plain(physical);
        self.space.insert(start, Region { bytes, device, made_at_ns: self.now_ns, backing });
        Ok(start)
    }

    fn free(&mut self, device: DeviceId, start: u64) -> Result<()> {
        let call = Call::MemFree;
        self.forbid_unsafe(call)?;
        let (physical, bytes) = match self.space.get(start) {
            Some(Region { backing: Backing::Plain(physical), bytes, device: of, .. }) if *of == device => {
                (*physical, *bytes)
            }
            _ => {
                let why = format!("{start:#x} is no allocation of {device}");
                return Err(Refusal::InvalidValue.of(call).with_detail(why));
            }
        };
        self.charge_rest(call, bytes, 1);
        self.wait_for_device(device);
        // The wait covers this device only: work of a peer may still be at it.
        let removal = Removal { call, at_ns: self.now_ns };
        if let Some(piece) = self.physical.get_mut(physical) {
            piece.holds = 0;
            let places = piece.place..piece.place + bytes;
            let name = Place::Device(start..start + bytes);
            self.detector.remove(&Touched { places, name }, removal);
        }
        self.space.remove(start, removal);
        self.reap(physical);
        Ok(())
    }
}
