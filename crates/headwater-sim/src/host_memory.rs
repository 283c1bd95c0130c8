//! Pinned host memory.

use std::ptr::NonNull;

use headwater_driver::{Call, DeviceId, HostMemory, Result};

use crate::hazards::{Place, Removal};
use crate::machine::{Machine, Touched, places_of};
use crate::refusal::{Refusal, out_of_memory};
use crate::sim_driver::SimDriver;

/// No program has memory beyond 2^56 (five-level page tables).
const HOST_ADDRESSES_END: u64 = 1 << 56;

impl HostMemory for SimDriver {
    fn host_alloc(&self, bytes: u64) -> Result<NonNull<u8>> {
        let call = Call::HostAlloc;
        let mut machine = self.enter(call, bytes)?;
        machine.forbid_unsafe(call)?;
        if bytes == 0 {
            return Err(Refusal::InvalidValue.of(call).with_detail("a size of 0 bytes"));
        }
        let shortage = || out_of_memory(call, bytes, None).with_detail("of host memory");
        if !machine.host.has_room(bytes) {
            return Err(shortage());
        }
        let (now_ns, place) = (machine.now_ns, machine.physical.new_places(bytes));
        let start = machine.host.allocate(bytes, place, now_ns);
        let start = start.and_then(|start| NonNull::new(start as *mut u8)).ok_or_else(shortage)?;
        machine.charge_rest(call, bytes, 1);
        Ok(start)
    }

    unsafe fn host_free(&self, ptr: NonNull<u8>) -> Result<()> {
        let call = Call::HostFree;
        let mut machine = self.enter(call, 0)?;
        machine.forbid_unsafe(call)?;
        let start = ptr.as_ptr() as usize;
        let Some(range) = machine.host.get(start).filter(|range| range.is_owned()) else {
            let why = format!("{ptr:?} was not allocated here");
            return Err(Refusal::InvalidValue.of(call).with_detail(why));
        };
        let bytes = range.bytes;
        machine.charge_rest(call, bytes, 1);
        for ordinal in 0..machine.devices.len() {
            machine.wait_for_device(DeviceId(ordinal as u32));
        }
        machine.unpin(call, start);
        Ok(())
    }

    unsafe fn host_register(&self, ptr: NonNull<u8>, bytes: u64) -> Result<()> {
        let call = Call::HostRegister;
        let mut machine = self.enter(call, bytes)?;
        machine.forbid_unsafe(call)?;
        let start = ptr.as_ptr() as usize;
        if bytes == 0 || (start as u64).checked_add(bytes).is_none_or(|end| end > HOST_ADDRESSES_END) {
            let why = format!("{bytes} bytes at {ptr:?}");
            return Err(Refusal::InvalidValue.of(call).with_detail(why));
        }
        let (now_ns, place) = (machine.now_ns, machine.physical.new_places(bytes));
        if !machine.host.register(start, bytes, place, now_ns) {
            let why = format!("part of {bytes} bytes at {ptr:?} is pinned already");
            return Err(Refusal::HostMemoryAlreadyRegistered.of(call).with_detail(why));
        }
        machine.charge_rest(call, bytes, 1);
        Ok(())
    }

    unsafe fn host_unregister(&self, ptr: NonNull<u8>) -> Result<()> {
        let call = Call::HostUnregister;
        let mut machine = self.enter(call, 0)?;
        machine.forbid_unsafe(call)?;
        let start = ptr.as_ptr() as usize;
        if machine.host.get(start).is_none_or(|range| range.is_owned()) {
            let inside = machine.host.find(start as u64, 1).is_some();
            let refusal = if inside { Refusal::InvalidValue } else { Refusal::HostMemoryNotRegistered };
            return Err(refusal.of(call).with_detail(format!("nothing was registered at {ptr:?}")));
        }
        machine.unpin(call, start);
        Ok(())
    }
}

impl Machine {
    /// Takes a pinned range away, and reports what may still use it.
    fn unpin(&mut self, call: Call, start: usize) {
        let Some(range) = self.host.remove(start) else { return };
        let name = Place::Host { block: range.block, bytes: 0..range.bytes };
        let touched = Touched { places: places_of(&range), name };
        self.detector.remove(&touched, Removal { call, at_ns: self.now_ns });
        self.detector.forget(places_of(&range));
    }
}
