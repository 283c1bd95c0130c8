//! Copies and fills.
//!
//! Addresses are checked at the call, as CUDA does for copies: a range outside of any allocation is refused. A refused copy
//! to or from freed memory is reported as a hazard all the same, since no correct program makes one.

use std::borrow::Cow;
use std::ops::Range;

use headwater_driver::{Call, Copies, DeviceId, DevicePtr, DriverError, Result, Stream};
use parking_lot::MutexGuard;
use smallvec::smallvec;

use crate::machine::{Machine, StreamKey, read_host};
use crate::refusal::Refusal;
use crate::sim_driver::SimDriver;
use crate::work::{Access, Effect, Operation, Reach};

fn no_range(call: Call, start: u64, bytes: u64) -> DriverError {
    Refusal::InvalidValue.of(call).with_detail(format!("{bytes} bytes at {start:#x}"))
}

/// The addresses of a range that is not empty.
fn range_of(call: Call, start: u64, bytes: u64) -> Result<Range<u64>> {
    let end = start.checked_add(bytes).filter(|_| start != 0).ok_or_else(|| no_range(call, start, bytes))?;
    Ok(start..end)
}

impl SimDriver {
    /// The start of a copy of `bytes` bytes: none where there is nothing to do.
    fn enter_copy(
        &self,
        call: Call,
        bytes: u64,
        stream: Stream,
    ) -> Result<Option<(MutexGuard<'_, Machine>, StreamKey)>> {
        let mut machine = self.enter(call, bytes)?;
        let key = machine.stream_key(call, self.view(), stream)?;
        Ok((bytes > 0).then_some((machine, key)))
    }
}

impl Machine {
    fn copy(
        &mut self,
        call: Call,
        key: StreamKey,
        stream: Stream,
        accesses: [Access; 2],
        effect: Effect,
    ) -> Result<()> {
        let bytes = accesses[0].range.end - accesses[0].range.start;
        let duration_ns = self.cost.copy_duration_ns(call, bytes, true);
        for access in &accesses {
            self.check_copy(call, stream, access)?;
        }
        let label = Cow::Borrowed(call.name());
        let operation = Operation { label, stream, accesses: accesses.into(), duration_ns, effect };
        self.submit(call, key, operation, None).map(drop)
    }

    fn fill(
        &mut self,
        call: Call,
        key: StreamKey,
        stream: Stream,
        dst: Range<u64>,
        pattern: [u8; 4],
    ) -> Result<()> {
        let bytes = dst.end - dst.start;
        let effect = Effect::Fill { dst: dst.start, bytes, pattern };
        let access = Access::write(dst, Reach::Copy(stream.device()));
        self.check_copy(call, stream, &access)?;
        let duration_ns = self.cost.copy_duration_ns(call, bytes, true);
        let label = Cow::Borrowed(call.name());
        let operation = Operation { label, stream, accesses: smallvec![access], duration_ns, effect };
        self.submit(call, key, operation, None).map(drop)
    }
}

impl Copies for SimDriver {
    unsafe fn copy_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
        stream: Stream,
    ) -> Result<()> {
        let call = Call::CopyToDevice;
        let Some((mut machine, key)) = self.enter_copy(call, bytes, stream)? else { return Ok(()) };
        let src = src as usize;
        let (from, to) = (range_of(call, src as u64, bytes)?, range_of(call, dst.raw(), bytes)?);
        let write = Access::write(to, Reach::Copy(stream.device()));
        machine.check_copy(call, stream, &write)?;
        let pinned = machine.host.find(src as u64, bytes).is_some();
        let duration_ns = machine.cost.copy_duration_ns(call, bytes, pinned);
        // From pageable memory the bytes are read now; in a capture there is no now.
        let staged = if pinned || machine.is_captured(call, key)? {
            None
        } else {
            let size = usize::try_from(bytes).map_err(|_| no_range(call, src as u64, bytes))?;
            let mut staged = vec![0; size].into_boxed_slice();
            // SAFETY: the caller promised that the source is readable, and that nobody writes it meanwhile.
            unsafe { read_host(src, &mut staged) };
            Some(staged)
        };
        let operation = Operation {
            label: Cow::Borrowed(call.name()),
            stream,
            accesses: smallvec![Access::read(from, Reach::Host), write],
            duration_ns,
            effect: Effect::ToDevice { dst: dst.raw(), src, bytes },
        };
        let is_staged = staged.is_some();
        machine.submit(call, key, operation, staged)?;
        if is_staged {
            // The host does the staging itself, at the speed of the copy, but waits for nothing else.
            let until_ns = machine.now_ns + duration_ns;
            machine.advance_to(until_ns);
        }
        Ok(())
    }

    unsafe fn copy_to_host(&self, dst: *mut u8, src: DevicePtr, bytes: u64, stream: Stream) -> Result<()> {
        let call = Call::CopyToHost;
        let Some((mut machine, key)) = self.enter_copy(call, bytes, stream)? else { return Ok(()) };
        let dst = dst as usize;
        let (from, to) = (range_of(call, src.raw(), bytes)?, range_of(call, dst as u64, bytes)?);
        let read = Access::read(from, Reach::Copy(stream.device()));
        machine.check_copy(call, stream, &read)?;
        let pinned = machine.host.find(dst as u64, bytes).is_some();
        let operation = Operation {
            label: Cow::Borrowed(call.name()),
            stream,
            accesses: smallvec![read, Access::write(to, Reach::Host)],
            duration_ns: machine.cost.copy_duration_ns(call, bytes, pinned),
            effect: Effect::ToHost { dst, src: src.raw(), bytes },
        };
        let runs = machine.submit(call, key, operation, None)?.is_some();
        if runs && !pinned {
            machine.wait_for_stream(key);
            machine.device(call, stream.device())?;
        }
        Ok(())
    }

    unsafe fn copy_on_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: Stream,
    ) -> Result<()> {
        let call = Call::CopyOnDevice;
        let Some((mut machine, key)) = self.enter_copy(call, bytes, stream)? else { return Ok(()) };
        let reach = Reach::Copy(stream.device());
        let accesses = [
            Access::read(range_of(call, src.raw(), bytes)?, reach),
            Access::write(range_of(call, dst.raw(), bytes)?, reach),
        ];
        let effect = Effect::OnDevice { dst: dst.raw(), src: src.raw(), bytes };
        machine.copy(call, key, stream, accesses, effect)
    }

    unsafe fn copy_peer(
        &self,
        dst: (DeviceId, DevicePtr),
        src: (DeviceId, DevicePtr),
        bytes: u64,
        stream: Stream,
    ) -> Result<()> {
        let call = Call::CopyPeer;
        let Some((mut machine, key)) = self.enter_copy(call, bytes, stream)? else { return Ok(()) };
        machine.device(call, dst.0)?;
        machine.device(call, src.0)?;
        let accesses = [
            Access::read(range_of(call, src.1.raw(), bytes)?, Reach::Copy(src.0)),
            Access::write(range_of(call, dst.1.raw(), bytes)?, Reach::Copy(dst.0)),
        ];
        let effect = Effect::OnDevice { dst: dst.1.raw(), src: src.1.raw(), bytes };
        machine.copy(call, key, stream, accesses, effect)
    }

    unsafe fn fill_bytes(&self, dst: DevicePtr, value: u8, bytes: u64, stream: Stream) -> Result<()> {
        let call = Call::FillBytes;
        let Some((mut machine, key)) = self.enter_copy(call, bytes, stream)? else { return Ok(()) };
        machine.fill(call, key, stream, range_of(call, dst.raw(), bytes)?, [value; 4])
    }

    unsafe fn fill_words(&self, dst: DevicePtr, value: u32, words: u64, stream: Stream) -> Result<()> {
        let call = Call::FillWords;
        let bytes = words.checked_mul(4).ok_or_else(|| no_range(call, dst.raw(), words))?;
        let Some((mut machine, key)) = self.enter_copy(call, bytes, stream)? else { return Ok(()) };
        if !dst.is_aligned_to(4) {
            let why = format!("{dst} is not aligned to 4 bytes");
            return Err(Refusal::InvalidValue.of(call).with_detail(why));
        }
        machine.fill(call, key, stream, range_of(call, dst.raw(), bytes)?, value.to_le_bytes())
    }
}
