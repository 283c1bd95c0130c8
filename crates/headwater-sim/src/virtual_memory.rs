//! Virtual memory management. None of it waits, and all of it is legal during capture.

use std::os::fd::{BorrowedFd, OwnedFd};

use headwater_driver::{Call, DeviceId, DevicePtr, Handle, Result, VirtualMemory};
use parking_lot::MutexGuard;

use crate::exports::Ticket;
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

    fn create_handle(&self, device: DeviceId, bytes: u64, exportable: bool) -> Result<Handle> {
        let mut machine = self.enter_virtual(Call::HandleCreate, device, bytes)?;
        if exportable {
            machine.can_share(Call::HandleCreate, device)?;
        }
        let raw = machine.create_handle(device, bytes, exportable)?;
        machine.charge_rest(Call::HandleCreate, bytes, 1);
        Ok(Handle::from_raw(device, raw))
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
        self.create_handle(device, bytes, false)
    }

    fn handle_create_exportable(&self, device: DeviceId, bytes: u64) -> Result<Handle> {
        self.create_handle(device, bytes, true)
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

    fn handle_export(&self, handle: Handle) -> Result<OwnedFd> {
        let call = Call::HandleExport;
        let machine = self.enter(call, 0)?;
        machine.alive_handle(call, handle)?;
        machine.can_share(call, handle.device())?;
        if machine.handles.get(handle.raw()).is_some_and(|state| !state.exportable) {
            let why = format!("{handle} was not made for export by this process");
            return Err(Refusal::NotSupported.of(call).with_detail(why));
        }
        let ticket = machine.ticket(handle.raw()).ok_or_else(|| Refusal::InvalidHandle.of(call))?;
        // Out of descriptors, most likely. CUDA says so with this code as well.
        ticket.write().map_err(|error| Refusal::OperatingSystem.of(call).with_detail(error.to_string()))
    }

    fn handle_import(&self, device: DeviceId, fd: BorrowedFd<'_>, bytes: u64) -> Result<Handle> {
        let call = Call::HandleImport;
        let mut machine = self.enter_virtual(call, device, bytes)?;
        machine.can_share(call, device)?;
        let raw = machine.import_handle(device, fd, bytes)?;
        Ok(Handle::from_raw(device, raw))
    }
}

impl SimDriver {
    /// The device and size of the memory that an exported descriptor stands for, where it is this machine's and still
    /// there. CUDA's own import is told neither; whoever puts the simulator behind that call asks here.
    pub fn exported_memory(&self, fd: BorrowedFd<'_>) -> Option<(DeviceId, u64)> {
        let machine = self.machine();
        let ticket = Ticket::read(fd).ok().flatten().filter(|ticket| ticket.machine == machine.name)?;
        let piece = machine.physical.get(machine.physical.at_place(ticket.place)?)?;
        Some((piece.device, piece.bytes.len()))
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

    /// Refuses devices whose handles cannot be exported.
    fn can_share(&self, call: Call, device: DeviceId) -> Result<()> {
        if self.device(call, device)?.properties.capabilities.shareable_handles {
            return Ok(());
        }
        Err(Refusal::NotSupported.of(call).with_detail("handles of this device cannot be exported"))
    }
}
