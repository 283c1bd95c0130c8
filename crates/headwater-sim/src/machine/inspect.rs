//! Looking at the machine from outside: leaks, contents, and whether a copy's addresses are good.

use std::ops::Range;

use headwater_driver::{Call, Result, Stream};

use super::Machine;
use super::address_space::{Backing, FaultKind};
use super::streams::Role;
use crate::hazards::{Hazard, Party, Place, UseKind};
use crate::leaks::{Leak, LeakKind};
use crate::refusal::Refusal;
use crate::work::{Access, Reach};

impl Machine {
    /// Refuses a copy whose range is outside of any allocation.
    pub(crate) fn check_copy(&mut self, call: Call, stream: Stream, access: &Access) -> Result<()> {
        let Err(fault) = self.space.resolve(&access.range, access.reach, |_| ()) else { return Ok(()) };
        let Range { start, end } = access.range;
        if self.host.find(start, end - start).is_some() {
            return Ok(());
        }
        let why = match fault.kind {
            // Known to the driver, but not to the device: that fails when the copy runs.
            FaultKind::NoAccess(_) => return Ok(()),
            FaultKind::Removed(removal) => {
                let kind = if access.is_read() { UseKind::Read } else { UseKind::Write };
                let time_ns = self.now_ns..self.now_ns;
                let user = Party { label: call.name().into(), stream: Some(stream), kind, time_ns };
                let place = Place::Device(fault.address..end);
                self.detector.log_mut().add(Hazard::UseAfterFree { user, removal, place });
                format!("{:#x} was taken away by {removal}", fault.address)
            }
            FaultKind::Unmapped => format!("nothing is mapped at {:#x}", fault.address),
            FaultKind::NeverAllocated => format!("nothing is allocated at {:#x}", fault.address),
        };
        Err(Refusal::InvalidValue.of(call).with_detail(why))
    }

    /// The bytes of a range as they are now.
    pub(crate) fn peek(&self, range: Range<u64>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(range.end.checked_sub(range.start)?).ok()?];
        let resolved = self.space.resolve(&range, Reach::Host, |segment| {
            let from = (segment.start - range.start) as usize;
            if let Some(piece) = self.physical.get(segment.physical) {
                piece.bytes.read(segment.offset, &mut bytes[from..from + segment.bytes as usize]);
            }
        });
        resolved.ok().map(|()| bytes)
    }

    /// Whether the host sees the whole range at its own addresses.
    pub(crate) fn is_host_visible(&self, range: &Range<u64>) -> bool {
        let mut all = true;
        let resolved =
            self.space.resolve(range, Reach::Host, |segment| all &= self.physical.is_shown(&segment));
        resolved.is_ok() && all
    }

    /// What has not been given back, by kind.
    pub(crate) fn leaks(&self) -> Vec<Leak> {
        let mut leaks = Vec::new();
        let mut add = |kind, device, raw, bytes, made_at_ns| {
            leaks.push(Leak { kind, device, raw, bytes, made_at_ns });
        };
        for (start, region) in self.space.iter() {
            let device = Some(region.device);
            match &region.backing {
                Backing::Plain(_) => {
                    add(LeakKind::PlainMemory, device, start, region.bytes, region.made_at_ns);
                }
                Backing::Reserved(mappings) => {
                    add(LeakKind::AddressRange, device, start, region.bytes, region.made_at_ns);
                    for (start, mapping) in mappings {
                        add(LeakKind::Mapping, device, *start, mapping.bytes, mapping.made_at_ns);
                    }
                }
            }
        }
        for (raw, handle) in self.handles.iter() {
            add(LeakKind::Handle, Some(handle.device), raw, handle.bytes, handle.made_at_ns);
        }
        for range in self.host.iter() {
            let kind = if range.is_owned() { LeakKind::HostMemory } else { LeakKind::HostRegistration };
            add(kind, None, range.block, range.bytes, range.made_at_ns);
        }
        for (raw, stream) in self.streams.iter() {
            if matches!(stream.role, Role::Made { .. }) {
                add(LeakKind::Stream, Some(stream.device), raw, 0, stream.made_at_ns);
            }
        }
        for (raw, event) in self.events.iter() {
            add(LeakKind::Event, Some(event.device), raw, 0, event.made_at_ns);
        }
        for (raw, graph) in self.graphs.iter() {
            add(LeakKind::Graph, Some(graph.device), raw, 0, graph.made_at_ns);
        }
        for (raw, exec) in self.execs.iter() {
            add(LeakKind::GraphExec, Some(exec.device), raw, 0, exec.made_at_ns);
        }
        for (raw, module) in self.modules.iter() {
            add(LeakKind::Module, Some(module.device), raw, 0, module.made_at_ns);
        }
        for (raw, capture) in self.captures.iter() {
            add(LeakKind::Capture, Some(capture.device), raw, 0, capture.made_at_ns);
        }
        leaks.sort_by_key(|leak| leak.kind);
        leaks
    }
}
