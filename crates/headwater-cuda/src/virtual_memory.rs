//! Virtual memory management.
//!
//! Ranges are checked against the reservations made here, so that nobody unmaps what another part of the process
//! mapped. Mappings are written down as well: libcuda accepts an unmap with gaps, and the reserved range can then never
//! be freed (docs/cuda-facts.md).
//!
//! Handles are for this process alone unless the caller says otherwise: those that can be exported cost more in every call
//! (`examples/handle_costs.rs`).

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use headwater_driver::{Call, DeviceId, DevicePtr, Handle, Result, VirtualMemory};

use crate::CudaDriver;
use crate::abi::{CuResult, GRANULARITY_MINIMUM, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, MemAccessDesc};
use crate::call_site::CallSite;
use crate::driver::Device;
use crate::ledger::Range;
use crate::objects::HandleObject;
use crate::registry::Owned;
use crate::table::Table;

impl VirtualMemory for CudaDriver {
    fn granularity(&self, device: DeviceId) -> Result<u64> {
        let site = self.call(Call::Granularity);
        granularity_of(site, site.device(device)?)
    }

    fn address_reserve(&self, device: DeviceId, bytes: u64, alignment_bytes: u64) -> Result<DevicePtr> {
        let site = self.call(Call::AddressReserve).asking_for(bytes);
        let size = whole_pages(site, site.device(device)?, bytes)?;
        if alignment_bytes != 0 && !alignment_bytes.is_power_of_two() {
            return Err(
                site.invalid(format!("an alignment of {alignment_bytes} bytes, which is no power of two"))
            );
        }
        let alignment = usize::try_from(alignment_bytes).map_err(|_| {
            site.invalid(format!("an alignment of {alignment_bytes} bytes is beyond the address space"))
        })?;
        let context = site.context(device)?;
        let mut ptr = 0;
        // SAFETY: `ptr` lives through the call; zeros: no wish for an address, no flags.
        site.run(context, |cuda| unsafe { (cuda.mem_address_reserve)(&mut ptr, size, alignment, 0, 0) })?;
        self.addresses.enter(ptr, Range { bytes, device });
        Ok(DevicePtr::new(ptr))
    }

    fn address_free(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> Result<()> {
        let site = self.call(Call::AddressFree);
        let context = site.context(device)?;
        let expected = Range { bytes, device };
        if self.addresses.take(ptr.raw(), |range| range == expected).is_none() {
            return Err(site.invalid(format!("{bytes} bytes at {ptr} are no range that {device} reserved")));
        }
        let size = site.size(bytes)?;
        // SAFETY: exactly a range reserved above; the driver refuses while something is mapped in it.
        let freed = site.run(context, |cuda| unsafe { (cuda.mem_address_free)(ptr.raw(), size) });
        if freed.is_err() {
            self.addresses.enter(ptr.raw(), expected);
        }
        freed
    }

    fn handle_create(&self, device: DeviceId, bytes: u64) -> Result<Handle> {
        self.create_handle(device, bytes, false)
    }

    fn handle_create_exportable(&self, device: DeviceId, bytes: u64) -> Result<Handle> {
        self.create_handle(device, bytes, true)
    }

    fn handle_release(&self, handle: Handle) -> Result<()> {
        let site = self.call(Call::HandleRelease);
        let released = site.timed(|| self.handles.destroy((handle.device(), handle.raw())));
        site.destroyed(released, handle)
    }

    fn handle_map(&self, ptr: DevicePtr, bytes: u64, handle: Handle) -> Result<()> {
        let site = self.call(Call::HandleMap);
        let object = self.handles.get((handle.device(), handle.raw())).ok_or_else(|| site.no_such(handle))?;
        let size = site.size(bytes)?;
        if bytes != object.bytes {
            let detail = format!(
                "{handle} has {} bytes and {bytes} were to be mapped: it maps as a whole",
                object.bytes
            );
            return Err(site.refuse(CuResult::NOT_SUPPORTED, detail));
        }
        reserved(self, site, ptr, bytes)?;
        // SAFETY: our handle, held, as a whole, into a range of ours; offset and flags must be zero.
        site.run(&object.context, |cuda| unsafe { (cuda.mem_map)(ptr.raw(), size, 0, object.raw, 0) })?;
        self.mappings.enter(ptr.raw(), Range { bytes, device: handle.device() });
        Ok(())
    }

    fn handle_unmap(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> Result<()> {
        let site = self.call(Call::HandleUnmap);
        let context = site.context(device)?;
        let size = site.size(bytes)?;
        reserved(self, site, ptr, bytes)?;
        let run = self.mappings.take_run(ptr.raw(), bytes).ok_or_else(|| {
            site.invalid(format!("{bytes} bytes at {ptr} are not whole mappings without a gap"))
        })?;
        // SAFETY: inside a range of ours, and whole mappings of ours.
        let unmapped = site.run(context, |cuda| unsafe { (cuda.mem_unmap)(ptr.raw(), size) });
        if unmapped.is_err() {
            run.into_iter().for_each(|(start, range)| self.mappings.enter(start, range));
        }
        unmapped
    }

    fn access_set(&self, ptr: DevicePtr, bytes: u64, devices: &[DeviceId]) -> Result<()> {
        let site = self.call(Call::AccessSet);
        let size = site.size(bytes)?;
        let range = reserved(self, site, ptr, bytes)?;
        let wishes = devices.iter().map(|device| Ok(MemAccessDesc::read_write(site.device(*device)?.cu)));
        let wishes = wishes.collect::<Result<Vec<_>>>()?;
        if wishes.is_empty() {
            return Err(site.invalid("access for no device"));
        }
        let context = site.context(range.device)?;
        // SAFETY: `wishes` lives through the call and has the length given; the range is inside one of ours.
        site.run(context, |cuda| unsafe {
            (cuda.mem_set_access)(ptr.raw(), size, wishes.as_ptr(), wishes.len())
        })
    }

    fn handle_export(&self, handle: Handle) -> Result<OwnedFd> {
        let site = self.call(Call::HandleExport);
        let object = self.handles.get((handle.device(), handle.raw())).ok_or_else(|| site.no_such(handle))?;
        if !object.exportable {
            let detail = format!("{handle} was not made for export by this process");
            return Err(site.refuse(CuResult::NOT_SUPPORTED, detail));
        }
        let mut fd: i32 = -1;
        let place: *mut c_void = (&raw mut fd).cast();
        // SAFETY: our handle, held; for this type of handle the driver writes an `int`, which lives through the call. No flags.
        site.run(&object.context, |cuda| unsafe {
            (cuda.mem_export)(place, object.raw, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
        })?;
        // SAFETY: the driver made the descriptor for us, and nobody else knows of it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn handle_import(&self, device: DeviceId, fd: BorrowedFd<'_>, bytes: u64) -> Result<Handle> {
        let site = self.call(Call::HandleImport).asking_for(bytes);
        let device = site.device(device)?;
        whole_pages(site, device, bytes)?;
        if !device.properties.capabilities.shareable_handles {
            return Err(site.refuse(CuResult::NOT_SUPPORTED, format!("{} imports no handles", device.id)));
        }
        let context = site.context(device.id)?;
        // The driver takes the number itself where other types of handle have a pointer.
        let number = std::ptr::without_provenance_mut::<c_void>(fd.as_raw_fd() as usize);
        let mut raw = 0;
        // SAFETY: `raw` lives through the call; the descriptor is open, and the driver checks what it is.
        let import =
            |cuda: &Table| unsafe { (cuda.mem_import)(&mut raw, number, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) };
        match site.timed(|| context.run(import)) {
            CuResult::SUCCESS => {}
            // Anywhere else a sign that the device is lost; here what a descriptor of something else gets, with no harm
            // done (docs/cuda-facts.md). Were the device lost after all, the next call would say so.
            CuResult::UNKNOWN => return Err(site.refused_descriptor(fd.as_raw_fd())),
            code => return Err(site.failure(code, Some(context))),
        }
        // Dropped on the way out, it is released.
        let imported = Owned::new(HandleObject { context: context.clone(), raw, bytes, exportable: false });
        let mut prop = device.allocation_prop(true);
        // SAFETY: `prop` lives through the call; the handle is ours.
        site.run(context, |cuda| unsafe { (cuda.mem_get_properties)(&mut prop, raw) })?;
        if prop.device() != Some(device.cu) {
            let detail = format!("the memory is not {}'s: it is where {:?} says", device.id, prop.device());
            return Err(site.invalid(detail));
        }
        Ok(self.keep_handle(device.id, imported))
    }
}

impl CudaDriver {
    fn create_handle(&self, device: DeviceId, bytes: u64, exportable: bool) -> Result<Handle> {
        let site = self.call(Call::HandleCreate).asking_for(bytes);
        let device = site.device(device)?;
        let size = whole_pages(site, device, bytes)?;
        if exportable && !device.properties.capabilities.shareable_handles {
            let detail = format!("handles of {} cannot be exported", device.id);
            return Err(site.refuse(CuResult::NOT_SUPPORTED, detail));
        }
        let context = site.context(device.id)?;
        let prop = device.allocation_prop(exportable);
        let mut raw = 0;
        // SAFETY: `raw` and `prop` live through the call; there are no flags.
        let code = site.timed(|| context.run(|cuda| unsafe { (cuda.mem_create)(&mut raw, size, &prop, 0) }));
        if exportable && matches!(code, CuResult::NOT_SUPPORTED | CuResult::NOT_PERMITTED) {
            let detail = "the driver makes no handles for export for this process; some containers forbid it";
            return Err(site.refuse(CuResult::NOT_SUPPORTED, detail));
        }
        if !code.is_success() {
            return Err(site.failure(code, Some(context)));
        }
        let object = HandleObject { context: context.clone(), raw, bytes, exportable };
        Ok(self.keep_handle(device.id, Owned::new(object)))
    }

    fn keep_handle(&self, device: DeviceId, object: Owned<HandleObject>) -> Handle {
        let key = self.new_key(device);
        self.handles.insert(key, object);
        Handle::from_raw(key.0, key.1)
    }
}

/// The device's granularity, asked for once.
fn granularity_of(site: CallSite<'_>, device: &Device) -> Result<u64> {
    if let Some(granularity) = device.granularity.get() {
        return Ok(*granularity);
    }
    if !device.properties.capabilities.virtual_memory {
        let detail = format!("{} has no virtual memory management", device.id);
        return Err(site.refuse(CuResult::NOT_SUPPORTED, detail));
    }
    let context = site.context(device.id)?;
    let prop = device.allocation_prop(false);
    let mut bytes = 0_usize;
    // SAFETY: `bytes` and `prop` live through the call.
    site.run(context, |cuda| unsafe {
        (cuda.mem_get_allocation_granularity)(&mut bytes, &prop, GRANULARITY_MINIMUM)
    })?;
    if bytes == 0 {
        return Err(
            site.refuse(CuResult::NOT_SUPPORTED, format!("{} has a granularity of 0 bytes", device.id))
        );
    }
    Ok(*device.granularity.get_or_init(|| bytes as u64))
}

/// A size that is a multiple of the granularity and not zero, as the driver takes it.
fn whole_pages(site: CallSite<'_>, device: &Device, bytes: u64) -> Result<usize> {
    let granularity = granularity_of(site, device)?;
    let size = site.size(bytes)?;
    if !bytes.is_multiple_of(granularity) {
        return Err(
            site.invalid(format!("{bytes} bytes are no multiple of the granularity, {granularity} bytes"))
        );
    }
    Ok(size)
}

/// The reservation that the range lies in.
fn reserved(driver: &CudaDriver, site: CallSite<'_>, ptr: DevicePtr, bytes: u64) -> Result<Range> {
    let range = driver.addresses.covering(ptr.raw(), bytes);
    range.ok_or_else(|| site.invalid(format!("{bytes} bytes at {ptr} are not inside one reserved range")))
}
