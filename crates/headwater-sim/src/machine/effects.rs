//! What work does to bytes when it ends.
//!
//! Addresses are looked up at the end: what was unmapped meanwhile is a fault, and what was mapped anew is what gets used.

use smallvec::SmallVec;

use super::address_space::{AddressSpace, Segment};
use super::host_ranges::{HostRanges, read_host, write_host};
use super::physical::PhysicalMemory;
use super::timeline::Pending;
use super::{Machine, Touched};
use crate::builtin_kernels::{DeviceView, Effect as KernelEffect};
use crate::hazards::{Hazard, Place};
use crate::shadow::OpId;
use crate::work::{Access, Effect, Reach, WORK_PATTERN};

type Segments = SmallVec<[Segment; 4]>;

/// Copies between host and device memory go through a buffer of this size.
const CHUNK_BYTES: u64 = 1 << 20;

impl Machine {
    /// Virtual time has passed the end of a piece of work.
    pub(super) fn finish(&mut self, ended: Pending) {
        let device = ended.operation.stream.device();
        if self.devices[device.0 as usize].lost.is_some() {
            return;
        }
        if ended.doomed || !self.still_reachable(&ended) {
            let (label, stream) = (&ended.operation.label, ended.operation.stream);
            let why = format!("`{label}` in {stream} used an address it may not");
            self.devices[device.0 as usize].lost = Some(why);
            return;
        }
        if self.report_unwritten {
            for access in ended.operation.accesses.iter().filter(|access| access.is_read()) {
                self.check_written(ended.op, access);
            }
        }
        let mut memory = MemoryInUse { space: &self.space, physical: &mut self.physical, host: &self.host };
        match &ended.operation.effect {
            Effect::Declared => {
                for access in ended.operation.accesses.iter().filter(|access| !access.is_read()) {
                    let bytes = access.range.end - access.range.start;
                    memory.fill(access.range.start, bytes, WORK_PATTERN);
                }
            }
            Effect::Fill { dst, bytes, pattern } => memory.fill(*dst, *bytes, *pattern),
            Effect::OnDevice { dst, src, bytes } => memory.copy(*dst, *src, *bytes),
            Effect::ToHost { dst, src, bytes } => memory.copy_to_host(*dst, *src, *bytes),
            Effect::ToDevice { dst, src, bytes } => match &ended.staged {
                Some(staged) => memory.write(*dst, staged),
                None => memory.copy_from_host(*dst, *src, *bytes),
            },
            Effect::Kernel(effect) => memory.run(effect),
        }
    }

    /// Whether everything the work uses is still there; what is not is reported.
    fn still_reachable(&mut self, ended: &Pending) -> bool {
        if ended.removals == self.space.removals() {
            return true;
        }
        for access in &ended.operation.accesses {
            let bytes = access.range.end - access.range.start;
            if access.reach == Reach::Host {
                continue;
            }
            if let Err(fault) = self.space.resolve(&access.range, access.reach, |_| ())
                && self.host.find(access.range.start, bytes).is_none()
            {
                self.report_fault(ended.op, access, fault);
                return false;
            }
        }
        true
    }

    fn check_written(&mut self, op: OpId, access: &Access) {
        if access.reach == Reach::Host {
            return;
        }
        let mut unwritten = None;
        let physical = &self.physical;
        let _host_memory = self.space.resolve(&access.range, access.reach, |segment| {
            if unwritten.is_none()
                && let Some(piece) = physical.get(segment.physical)
                && let Some(offset) = piece.bytes.first_unwritten(segment.offset, segment.bytes)
            {
                unwritten = Some(segment.start + (offset - segment.offset));
            }
        });
        if let Some(first) = unwritten {
            let user = self.detector.party(op, access.kind);
            let place = Place::Device(first..access.range.end);
            self.detector.log_mut().add(Hazard::Unwritten { user, place });
        }
    }

    /// A piece of physical memory as the detector knows it, seen at `start`.
    pub(super) fn touched(&self, segment: &Segment) -> Touched {
        let place = self.physical.place_of(segment);
        let name = Place::Device(segment.start..segment.start + segment.bytes);
        Touched { places: place..place + segment.bytes, name }
    }
}

/// Memory as running work sees it. Access was checked before; what cannot be reached reads as nothing and takes nothing.
struct MemoryInUse<'a> {
    space: &'a AddressSpace,
    physical: &'a mut PhysicalMemory,
    host: &'a HostRanges,
}

impl MemoryInUse<'_> {
    /// The device memory behind a range; nothing where it is (pinned) host memory.
    fn segments(&self, start: u64, bytes: u64) -> Segments {
        let mut segments = Segments::new();
        // Without regard to access, which was checked: a peer copy has the access of two devices.
        let everywhere = Reach::Host;
        let _host_memory =
            self.space.resolve(&(start..start + bytes), everywhere, |segment| segments.push(segment));
        segments
    }

    fn is_pinned(&self, start: u64, bytes: u64) -> bool {
        self.host.find(start, bytes).is_some()
    }

    fn fill(&mut self, start: u64, bytes: u64, pattern: [u8; 4]) {
        for segment in self.segments(start, bytes) {
            if let Some(piece) = self.physical.get_mut(segment.physical) {
                let mut turned = pattern;
                turned.rotate_left(((segment.start - start) % 4) as usize);
                piece.bytes.fill(segment.offset, segment.bytes, turned);
            }
        }
        if self.is_pinned(start, bytes) {
            let data: Vec<u8> = pattern.iter().copied().cycle().take(bytes as usize).collect();
            self.write(start, &data);
        }
    }

    fn copy(&mut self, dst: u64, src: u64, bytes: u64) {
        let (targets, sources) = (self.segments(dst, bytes), self.segments(src, bytes));
        if targets.is_empty() || sources.is_empty() {
            return self.copy_through_buffer(dst, src, bytes);
        }
        let (mut to, mut from) = (0, 0);
        let mut done = 0;
        while let (Some(target), Some(source)) = (targets.get(to), sources.get(from)) {
            let (skip_to, skip_from) = (dst + done - target.start, src + done - source.start);
            let run = (target.bytes - skip_to).min(source.bytes - skip_from);
            self.physical.copy(
                (target.physical, target.offset + skip_to),
                (source.physical, source.offset + skip_from),
                run,
            );
            done += run;
            to += usize::from(skip_to + run == target.bytes);
            from += usize::from(skip_from + run == source.bytes);
        }
    }

    fn copy_through_buffer(&mut self, dst: u64, src: u64, bytes: u64) {
        let mut buffer = vec![0; bytes.min(CHUNK_BYTES) as usize];
        let mut done = 0;
        while done < bytes {
            let run = (bytes - done).min(CHUNK_BYTES) as usize;
            self.read(src + done, &mut buffer[..run]);
            self.write(dst + done, &buffer[..run]);
            done += run as u64;
        }
    }

    fn copy_from_host(&mut self, dst: u64, src: usize, bytes: u64) {
        let mut buffer = vec![0; bytes.min(CHUNK_BYTES) as usize];
        let mut done = 0;
        while done < bytes {
            let run = (bytes - done).min(CHUNK_BYTES) as usize;
            // SAFETY: who submitted the copy, or launched the graph it is a node of, promised that the source is
            // readable and stays unchanged until the copy has finished in stream order.
            unsafe { read_host(src + done as usize, &mut buffer[..run]) };
            self.write(dst + done, &buffer[..run]);
            done += run as u64;
        }
    }

    fn copy_to_host(&mut self, dst: usize, src: u64, bytes: u64) {
        let mut buffer = vec![0; bytes.min(CHUNK_BYTES) as usize];
        let mut done = 0;
        while done < bytes {
            let run = (bytes - done).min(CHUNK_BYTES) as usize;
            self.read(src + done, &mut buffer[..run]);
            // SAFETY: who submitted the copy, or launched the graph it is a node of, promised that the target is
            // writable and that nobody touches it until the copy has finished in stream order.
            unsafe { write_host(dst + done as usize, &buffer[..run]) };
            done += run as u64;
        }
    }

    fn run(&mut self, effect: &KernelEffect) {
        match effect {
            KernelEffect::Nothing => {}
            KernelEffect::FillWords { dst, words, value } => self.fill(*dst, words * 4, value.to_le_bytes()),
            KernelEffect::CopyWords { dst, src, words } => self.copy(*dst, *src, words * 4),
            KernelEffect::AddWords { ptr, words, value } => self.add_words(*ptr, *words, *value),
            KernelEffect::CheckWords { ptr, words, value, wrong } => {
                let count = self.count_words_ne(*ptr, *words, *value);
                if *words > 0 {
                    // Modulo 2^32, as an atomic add on the device.
                    self.add_words(*wrong, 1, count as u32);
                }
            }
            KernelEffect::Custom(effect) => effect(self),
        }
    }

    /// Words never straddle two pieces: pieces are multiples of 512 bytes or end where their allocation does.
    fn add_words(&mut self, start: u64, words: u64, value: u32) {
        let segments = self.segments(start, words * 4);
        for segment in &segments {
            if let Some(piece) = self.physical.get_mut(segment.physical) {
                piece.bytes.add_words(segment.offset, segment.bytes / 4, value);
            }
        }
        if segments.is_empty() {
            for word in 0..words {
                let mut bytes = [0; 4];
                self.read(start + word * 4, &mut bytes);
                self.write(start + word * 4, &u32::from_le_bytes(bytes).wrapping_add(value).to_le_bytes());
            }
        }
    }

    fn count_words_ne(&mut self, start: u64, words: u64, value: u32) -> u64 {
        let segments = self.segments(start, words * 4);
        if segments.is_empty() {
            let mut bytes = [0; 4];
            let mut differs = |word: &u64| {
                self.read(start + word * 4, &mut bytes);
                u32::from_le_bytes(bytes) != value
            };
            return (0..words).filter(|word| differs(word)).count() as u64;
        }
        let count = |segment: &Segment| {
            let piece = self.physical.get(segment.physical)?;
            Some(piece.bytes.count_words_ne(segment.offset, segment.bytes / 4, value))
        };
        segments.iter().filter_map(count).sum()
    }
}

impl DeviceView for MemoryInUse<'_> {
    fn read(&mut self, addr: u64, out: &mut [u8]) {
        let segments = self.segments(addr, out.len() as u64);
        for segment in &segments {
            let from = (segment.start - addr) as usize;
            if let Some(piece) = self.physical.get(segment.physical) {
                piece.bytes.read(segment.offset, &mut out[from..from + segment.bytes as usize]);
            }
        }
        if segments.is_empty() && self.is_pinned(addr, out.len() as u64) {
            // SAFETY: pinned memory is readable; who launched the work promised that nobody writes it meanwhile.
            unsafe { read_host(addr as usize, out) };
        }
    }

    fn write(&mut self, addr: u64, data: &[u8]) {
        let segments = self.segments(addr, data.len() as u64);
        for segment in &segments {
            let from = (segment.start - addr) as usize;
            if let Some(piece) = self.physical.get_mut(segment.physical) {
                piece.bytes.write(segment.offset, &data[from..from + segment.bytes as usize]);
            }
        }
        if segments.is_empty() && self.is_pinned(addr, data.len() as u64) {
            // SAFETY: pinned memory is writable; who launched the work promised that nobody touches it meanwhile.
            unsafe { write_host(addr as usize, data) };
        }
    }
}
