//! Virtual memory management. None of it waits, and all of it is legal during capture.

use headwater_driver::{Call, DeviceId, DevicePtr, Handle, Result, VirtualMemory};
use parking_lot::MutexGuard;

use crate::machine::{GRANULARITY_BYTES, Machine};
use crate::refusal::Refusal;
use crate::sim_driver::SimDriver;

impl SimDriver {
    /// The start of a call that needs the capability.
    fn enter_virtual(&self, call: Call, device: DeviceId, bytes: u64) -> Result<MutexGuard<'_, Machine>> {
        let machine = self.enter_on(call, device, bytes)?;
        if !machine.device(call, device)?.properties.capabilities.virtual_memory {
            return Err(Refusal::NotSupported.of(call).with_detail("no virtual memory management"));
        }
        Ok(machine)
    }
}

impl VirtualMemory for SimDriver {
    fn granularity(&self, device: DeviceId) -> Result<u64> {
        self.enter_virtual(Call::Granularity, device, 0).map(|_| GRANULARITY_BYTES)
    }

    fn address_reserve(&self, device: DeviceId, bytes: u64, alignment_bytes: u64) -> Result<DevicePtr> {
        let mut machine = self.enter_virtual(Call::AddressReserve, device, bytes)?;
        let start = machine.reserve(device, bytes, alignment_bytes)?;
        machine.charge_rest(Call::AddressReserve, bytes, 1);
        Ok(DevicePtr::new(start))
    }

    fn address_free(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.enter_virtual(Call::AddressFree, device, bytes)?.unreserve(device, ptr.raw(), bytes)
    }

    fn handle_create(&self, device: DeviceId, bytes: u64) -> Result<Handle> {
        let mut machine = self.enter_virtual(Call::HandleCreate, device, bytes)?;
        let raw = machine.create_handle(device, bytes)?;
        machine.charge_rest(Call::HandleCreate, bytes, 1);
        Ok(Handle::from_raw(device, raw))
    }

    fn handle_release(&self, handle: Handle) -> Result<()> {
        let call = Call::HandleRelease;
        let mut machine = self.enter(call, 0)?;
        machine.alive_handle(call, handle)?;
        if let Some(released) = machine.release_handle(handle.raw()) {
            machine.charge_rest(call, released.bytes, 1);
        }
        Ok(())
    }

    fn handle_map(&self, ptr: DevicePtr, bytes: u64, handle: Handle) -> Result<()> {
        let mut machine = self.enter(Call::HandleMap, bytes)?;
        machine.alive_handle(Call::HandleMap, handle)?;
        machine.map(ptr.raw(), bytes, handle.raw())?;
        machine.charge_rest(Call::HandleMap, bytes, 1);
        Ok(())
    }

    fn handle_unmap(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> Result<()> {
        let mut machine = self.enter_virtual(Call::HandleUnmap, device, 0)?;
        let count = machine.unmap(ptr.raw(), bytes)?;
        machine.charge_rest(Call::HandleUnmap, bytes / count.max(1), count);
        Ok(())
    }

    fn access_set(&self, ptr: DevicePtr, bytes: u64, devices: &[DeviceId]) -> Result<()> {
        let mut machine = self.enter(Call::AccessSet, 0)?;
        let count = machine.set_access(ptr.raw(), bytes, devices)?;
        machine.charge_rest(Call::AccessSet, bytes / count.max(1), count);
        Ok(())
    }
}

impl Machine {
    /// Refuses a handle that does not exist, or whose device is lost.
    fn alive_handle(&self, call: Call, handle: Handle) -> Result<()> {
        match self.handles.get(handle.raw()) {
            Some(state) if state.device == handle.device() => self.device(call, state.device).map(drop),
            _ => Err(Refusal::InvalidHandle.of(call).with_detail(format!("{handle} does not exist"))),
        }
    }
}
