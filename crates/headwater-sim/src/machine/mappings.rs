//! Virtual memory: handles, and where they are mapped.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use headwater_driver::{Call, DeviceId, DriverError, Result};

use super::address_space::{Backing, Mapping, Region, Segment};
use super::{GRANULARITY_BYTES, HandleState, Machine};
use crate::exports::Ticket;
use crate::hazards::Removal;
use crate::refusal::{Refusal, out_of_memory};

fn refuse(call: Call, why: String) -> DriverError {
    Refusal::InvalidValue.of(call).with_detail(why)
}

fn check_size(call: Call, bytes: u64) -> Result<()> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY_BYTES) {
        return Err(refuse(call, format!("{bytes} bytes are no multiple of {GRANULARITY_BYTES}")));
    }
    Ok(())
}

/// The addresses from `start` on.
fn range_of(call: Call, start: u64, bytes: u64) -> Result<Range<u64>> {
    let end = start.checked_add(bytes).filter(|_| start != 0 && bytes != 0);
    let end = end.ok_or_else(|| refuse(call, format!("{bytes} bytes at {start:#x} are no address range")))?;
    Ok(start..end)
}

impl Machine {
    pub(crate) fn reserve(&mut self, device: DeviceId, bytes: u64, alignment_bytes: u64) -> Result<u64> {
        let call = Call::AddressReserve;
        check_size(call, bytes)?;
        if alignment_bytes != 0 && !alignment_bytes.is_power_of_two() {
            return Err(refuse(call, format!("an alignment of {alignment_bytes} bytes is no power of two")));
        }
        let start = self.space.place_reserved(bytes, alignment_bytes.max(GRANULARITY_BYTES));
        let start = start.ok_or_else(|| out_of_memory(call, bytes, None).with_detail("of addresses"))?;
        let backing = Backing::Reserved(BTreeMap::new());
        self.space.insert(start, Region { bytes, device, made_at_ns: self.now_ns, backing });
        Ok(start)
    }

    pub(crate) fn unreserve(&mut self, device: DeviceId, start: u64, bytes: u64) -> Result<()> {
        let call = Call::AddressFree;
        match self.space.get(start) {
            Some(Region { backing: Backing::Reserved(mappings), bytes: reserved, device: of, .. })
                if *reserved == bytes && *of == device =>
            {
                if let Some((mapped, mapping)) = mappings.first_key_value() {
                    let why = format!("{} bytes are still mapped at {mapped:#x}", mapping.bytes);
                    return Err(refuse(call, why));
                }
            }
            _ => return Err(refuse(call, format!("{bytes} bytes at {start:#x} are no reserved range"))),
        }
        self.space.remove(start, Removal { call, at_ns: self.now_ns });
        Ok(())
    }

    pub(crate) fn create_handle(&mut self, device: DeviceId, bytes: u64, exportable: bool) -> Result<u64> {
        let call = Call::HandleCreate;
        check_size(call, bytes)?;
        self.take_memory(call, device, bytes, bytes)?;
        let physical = self.physical.create(device, bytes, bytes);
        Ok(self.handles.insert(HandleState { device, physical, bytes, exportable, made_at_ns: self.now_ns }))
    }

    pub(crate) fn release_handle(&mut self, raw: u64) -> Option<HandleState> {
        let handle = self.handles.remove(raw)?;
        if let Some(piece) = self.physical.get_mut(handle.physical) {
            piece.holds = piece.holds.saturating_sub(1);
        }
        self.reap(handle.physical);
        Some(handle)
    }

    /// What stands for a handle's memory outside of this machine.
    pub(crate) fn ticket(&self, handle: u64) -> Option<Ticket> {
        let piece = self.physical.get(self.handles.get(handle)?.physical)?;
        Some(Ticket::new(self.name, piece.place))
    }

    pub(crate) fn import_handle(&mut self, device: DeviceId, fd: BorrowedFd<'_>, bytes: u64) -> Result<u64> {
        let call = Call::HandleImport;
        check_size(call, bytes)?;
        let foreign = |why: String| Refusal::ForeignDescriptor.of(call).with_detail(why);
        let ticket = Ticket::read(fd).map_err(|error| foreign(error.to_string()))?;
        let ticket = ticket.ok_or_else(|| foreign("no exported memory".to_owned()))?;
        if ticket.machine != self.name {
            let why = format!("memory of another simulated machine, in process {}: ", ticket.process);
            return Err(foreign(why + "it cannot leave the process"));
        }
        let physical = self.physical.at_place(ticket.place);
        let found = physical.and_then(|id| Some((id, self.physical.get_mut(id)?)));
        let (physical, piece) = found.ok_or_else(|| foreign("the exported memory is gone".to_owned()))?;
        if piece.device != device || piece.bytes.len() != bytes {
            let (on, exported) = (piece.device, piece.bytes.len());
            return Err(refuse(call, format!("{bytes} bytes of {device}; exported were {exported} of {on}")));
        }
        piece.holds += 1;
        let made_at_ns = self.now_ns;
        Ok(self.handles.insert(HandleState { device, physical, bytes, exportable: false, made_at_ns }))
    }

    pub(crate) fn map(&mut self, start: u64, bytes: u64, handle: u64) -> Result<()> {
        let call = Call::HandleMap;
        let Some(handle) = self.handles.get(handle) else { return Err(Refusal::InvalidHandle.of(call)) };
        let physical = handle.physical;
        if bytes != handle.bytes {
            let why =
                format!("{bytes} bytes of a handle of {}: part of a handle cannot be mapped", handle.bytes);
            return Err(Refusal::NotSupported.of(call).with_detail(why));
        }
        let range = range_of(call, start, bytes)?;
        if !start.is_multiple_of(GRANULARITY_BYTES) {
            return Err(refuse(call, format!("{start:#x} is no multiple of {GRANULARITY_BYTES}")));
        }
        let Some(mappings) = self.space.mappings_mut(&range) else {
            return Err(refuse(call, format!("{bytes} bytes at {start:#x} are not inside a reserved range")));
        };
        if let Some((mapped, mapping)) = mappings.range(..range.end).next_back()
            && mapped + mapping.bytes > range.start
        {
            return Err(refuse(call, format!("{} bytes are already mapped at {mapped:#x}", mapping.bytes)));
        }
        self.shown += 1;
        mappings.insert(
            start,
            Mapping { bytes, physical, access: 0, made_at_ns: self.now_ns, shown: self.shown },
        );
        if let Some(piece) = self.physical.get_mut(physical) {
            piece.mappings += 1;
        }
        self.physical.show(physical, start);
        Ok(())
    }

    /// The mappings that make up a range, whole and without gaps.
    fn whole_mappings(&mut self, call: Call, range: &Range<u64>) -> Result<Vec<Segment>> {
        let Some(mappings) = self.space.mappings_mut(range) else {
            let why = format!("{:#x}..{:#x} is not inside a reserved range", range.start, range.end);
            return Err(refuse(call, why));
        };
        let mut found = Vec::new();
        let mut at = range.start;
        for (start, mapping) in mappings.range(range.clone()) {
            if *start != at {
                break;
            }
            found.push(Segment { start: at, bytes: mapping.bytes, physical: mapping.physical, offset: 0 });
            at += mapping.bytes;
        }
        if at != range.end {
            let (start, end) = (range.start, range.end);
            let why = format!("{start:#x}..{end:#x} does not consist of whole mappings, from {at:#x} on");
            return Err(refuse(call, why));
        }
        Ok(found)
    }

    /// Unmaps a range and returns how many mappings that were.
    pub(crate) fn unmap(&mut self, start: u64, bytes: u64) -> Result<u64> {
        let call = Call::HandleUnmap;
        let range = range_of(call, start, bytes)?;
        let found = self.whole_mappings(call, &range)?;
        let removal = Removal { call, at_ns: self.now_ns };
        for segment in &found {
            self.detector.remove(&self.touched(segment), removal);
        }
        if let Some(mappings) = self.space.mappings_mut(&range) {
            for segment in &found {
                mappings.remove(&segment.start);
            }
        }
        self.space.remember(range, removal);
        for segment in &found {
            if let Some(piece) = self.physical.get_mut(segment.physical) {
                piece.mappings -= 1;
            }
            self.physical.hide(segment.physical, segment.start);
            self.reap(segment.physical);
        }
        Ok(found.len() as u64)
    }

    /// Gives `devices` access to a range and returns over how many mappings that goes.
    pub(crate) fn set_access(&mut self, start: u64, bytes: u64, devices: &[DeviceId]) -> Result<u64> {
        let call = Call::AccessSet;
        let range = range_of(call, start, bytes)?;
        let found = self.whole_mappings(call, &range)?;
        let mut mask = 0;
        for device in devices {
            self.device(call, *device)?;
            mask |= 1 << device.0;
            for segment in &found {
                let owner = self.physical.get(segment.physical).map(|piece| piece.device);
                if owner.is_some_and(|owner| owner != *device && !self.can_be_peers(owner, *device)) {
                    return Err(refuse(
                        call,
                        format!("{device} cannot reach what is at {:#x}", segment.start),
                    ));
                }
            }
        }
        if let Some(mappings) = self.space.mappings_mut(&range) {
            for (_, mapping) in mappings.range_mut(range) {
                mapping.access |= mask;
            }
        }
        Ok(found.len() as u64)
    }

    /// Whether two different devices can reach each other's memory.
    pub(crate) fn can_be_peers(&self, one: DeviceId, other: DeviceId) -> bool {
        let able = |id: DeviceId| {
            self.devices.get(id.0 as usize).is_some_and(|device| device.properties.capabilities.peer_access)
        };
        one != other && able(one) && able(other)
    }
}
