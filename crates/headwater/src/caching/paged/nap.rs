//! Sleep and wake: physical memory released behind live blocks and brought back at the same addresses, so that pointers and
//! captured graphs stay valid. What an idle model server needs to lend its memory to others.

use std::ops::Range;
use std::ptr::NonNull;

use headwater_driver::{DevicePtr, DriverError, ErrorClass, Stream};

use super::carry_out::Pager;
use super::commit::Fate;
use super::sleep::{Bed, Group};
use crate::AllocError;
use crate::allocator::check_stream;
use crate::caching::CachingAllocator;
use crate::capture_guard;
use crate::error::OutOfMemoryReport;

/// What happens to the contents of blocks that sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contents {
    /// They are copied to pinned host memory, and back on waking.
    Saved,
    /// They are lost. The blocks' contents are undefined after waking.
    Lost,
}

/// Blocks that were put to sleep together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SleepId(u64);

/// A group that sleeps, and its saved contents.
#[derive(Debug)]
pub(in crate::caching) struct Nap {
    id: SleepId,
    group: Group,
    saved: Option<Saved>,
}

/// Pinned host memory with contents. Freed by whoever takes the nap out.
#[derive(Debug)]
struct Saved(NonNull<u8>);

// SAFETY: the memory is reached by driver calls alone, and by one owner at a time.
unsafe impl Send for Saved {}

impl CachingAllocator {
    /// Releases the physical memory behind live blocks. Their addresses stay theirs; until [`wake`](Self::wake) nothing may touch
    /// them, and they can neither be given back nor recorded on streams. Memory that is shared with other blocks, at the edges of
    /// these, stays. Waits for the work in `stream`, in which contents are saved.
    ///
    /// Returns the group's name and how many bytes went to the driver. What the driver refused to take stays where it is.
    ///
    /// # Safety
    /// Every other stream that used the blocks has finished with them, or was ordered before `stream`; and nothing uses them
    /// until they are awake again, a launch of a captured graph included.
    ///
    /// # Errors
    /// Bad addresses, as [`give_back`](crate::Allocator::give_back) names them; [`AllocError::StreamCapturing`];
    /// [`AllocError::Driver`] where the backing is classic (`NotSupported`) or contents could not be saved. Then nothing has
    /// changed.
    pub unsafe fn sleep(
        &self,
        ptrs: &[DevicePtr],
        contents: Contents,
        stream: Stream,
    ) -> Result<(SleepId, u64), AllocError> {
        check_stream(stream, self.device)?;
        if self.is_captured(stream)? {
            return Err(AllocError::StreamCapturing { stream });
        }
        // What threads keep beside these blocks would hold their memory back.
        self.collect();
        self.remove_all_views()?;
        let mut group = {
            let mut state = self.state.lock();
            state.keep_out_of_caches(ptrs)?;
            let Some(core) = state.core.paged_mut() else { return Err(not_paged()) };
            self.pins.check_none(ptrs)?;
            core.lay_down(ptrs)?
        };
        let saved = match self.put_away(&group, contents, stream) {
            Ok(saved) => saved,
            Err(error) => {
                if let Some(core) = self.state.lock().core.paged_mut() {
                    core.get_up(group);
                }
                return Err(error.into());
            }
        };
        let (mut released_bytes, mut gone) = (0, Vec::new());
        for mut bed in std::mem::take(&mut group.beds) {
            let (is_gone, loose) = self.release_bed(&bed);
            let mut state = self.state.lock();
            let Some(core) = state.core.paged_mut() else { continue };
            if is_gone {
                released_bytes += if loose { 0 } else { bed.bytes() };
                core.set_bed(&mut bed, None);
                if loose {
                    core.keep_loose(bed.handle, bed.bytes());
                }
                gone.push(bed);
            }
        }
        group.beds = gone;
        let mut naps = self.naps.lock();
        let id = SleepId(naps.last().map_or(1, |nap| nap.id.0 + 1));
        naps.push(Nap { id, group, saved });
        Ok((id, released_bytes))
    }

    /// Brings the memory of a group back at its addresses, with its contents where they were saved. Waits for the copy.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] where the limit or the device has no room; [`AllocError::Driver`]. The group then still sleeps,
    /// and can be woken later. A name that is none: [`AllocError::Driver`] with `InvalidHandle`.
    pub fn wake(&self, id: SleepId, stream: Stream) -> Result<(), AllocError> {
        check_stream(stream, self.device)?;
        if self.is_captured(stream)? {
            return Err(AllocError::StreamCapturing { stream });
        }
        let nap = {
            let mut naps = self.naps.lock();
            let place = naps.iter().position(|nap| nap.id == id);
            place.map(|place| naps.remove(place))
        };
        let Some(mut nap) = nap else { return Err(no_such_nap()) };
        match self.bring_back(&mut nap, stream) {
            Ok(()) => {
                if let Some(core) = self.state.lock().core.paged_mut() {
                    core.get_up(nap.group);
                }
                self.forget_saved(nap.saved);
                Ok(())
            }
            Err(error) => {
                let mut naps = self.naps.lock();
                naps.push(nap);
                // In order, so that the next name is new.
                naps.sort_by_key(|nap| nap.id);
                Err(error)
            }
        }
    }

    fn put_away(
        &self,
        group: &Group,
        contents: Contents,
        stream: Stream,
    ) -> Result<Option<Saved>, DriverError> {
        capture_guard::relaxed(&*self.driver, || {
            let bytes: u64 = parts(group).map(|(_, bytes, _)| bytes).sum();
            let saved = match contents {
                Contents::Saved if bytes > 0 => Some(self.driver.host_alloc(bytes)?),
                _ => None,
            };
            let mut copied = Ok(());
            if let Some(host) = saved {
                for (ptr, bytes, at) in parts(group) {
                    // SAFETY: the caller of `sleep` promises that nothing else uses the block; the host range is as large as all
                    // parts together, and each has its own place in it. Waited for below.
                    copied = copied.and_then(|()| unsafe {
                        self.driver.copy_to_host(host.as_ptr().add(at), ptr, bytes, stream)
                    });
                }
            }
            let waited = self.driver.stream_synchronize(stream);
            let saved = saved.map(Saved);
            match copied.and(waited) {
                Ok(()) => Ok(saved),
                Err(error) => {
                    self.forget_saved(saved);
                    Err(error)
                }
            }
        })
    }

    /// Says whether the bed's addresses are empty now, and whether its handle could not be released.
    fn release_bed(&self, bed: &Bed) -> (bool, bool) {
        let ptr = DevicePtr::new(bed.range.start);
        if self.driver.handle_unmap(self.device, ptr, bed.bytes()).is_err() {
            return (false, false);
        }
        (true, self.driver.handle_release(bed.handle).is_err())
    }

    fn bring_back(&self, nap: &mut Nap, stream: Stream) -> Result<(), AllocError> {
        let bytes: u64 = nap.group.beds.iter().filter(|bed| !bed.is_back).map(Bed::bytes).sum();
        let promise = || self.state.lock().core.paged_mut().is_some_and(|core| core.promise(bytes));
        if !promise() {
            // What is cached can go first.
            self.release_at_least(bytes);
            if !promise() {
                return Err(self.no_room(bytes, true));
            }
        }
        let (mut fates, mut error) = (Vec::new(), None);
        for bed in &nap.group.beds {
            let (fate, failed) = self.with_pager(|pager| {
                let Range { start, .. } = bed.range;
                if bed.is_back {
                    (Fate::ABSENT, pager.give_access(start, bed.bytes()).err())
                } else {
                    let makes_exportable = pager.makes_exportable || bed.is_exportable;
                    Pager { makes_exportable, ..*pager }.create(start, bed.bytes())
                }
            });
            fates.push(fate);
            error = failed;
            if error.is_some() {
                break;
            }
        }
        if error.is_some() {
            for (bed, fate) in nap.group.beds.iter().zip(&mut fates) {
                if let Some(handle) = fate.placed {
                    *fate = self.with_pager(|pager| pager.uncreate(bed.range.start, bed.bytes(), handle));
                }
            }
        }
        // Where only copying failed the memory stays: copies may still run, and the next try needs it anyway.
        let error = match error {
            Some(error) => Some(error),
            None => self.restore(nap, stream).err(),
        };
        let mut state = self.state.lock();
        let Some(core) = state.core.paged_mut() else { return Ok(()) };
        core.withdraw(bytes);
        for (bed, fate) in nap.group.beds.iter_mut().zip(fates) {
            // What is stuck is at its address and lacks access alone: that is asked for again next time.
            if let Some(handle) = fate.placed.or(fate.stuck) {
                core.set_bed(bed, Some(handle));
            } else if let Some(handle) = fate.loose {
                core.keep_loose(handle, bed.bytes());
            }
        }
        drop(state);
        match error {
            None => Ok(()),
            Some(error) if error.is_out_of_memory() => Err(self.no_room(bytes, false)),
            Some(error) => Err(error.into()),
        }
    }

    fn restore(&self, nap: &Nap, stream: Stream) -> Result<(), DriverError> {
        let Some(Saved(host)) = &nap.saved else { return Ok(()) };
        let mut copied = Ok(());
        for (ptr, bytes, at) in parts(&nap.group) {
            // SAFETY: the range was just mapped for a block that nobody uses until it is awake; the host range holds its saved
            // contents at the same place. Waited for below.
            let copy = || unsafe { self.driver.copy_to_device(ptr, host.as_ptr().add(at), bytes, stream) };
            copied = copied.and_then(|()| copy());
        }
        // Also after an error: copies under way must not find their memory gone.
        let waited = capture_guard::relaxed(&*self.driver, || self.driver.stream_synchronize(stream));
        copied.and(waited)
    }

    fn forget_saved(&self, saved: Option<Saved>) {
        if let Some(Saved(host)) = saved {
            // SAFETY: the copies from and to it were waited for, and nothing else knows its address.
            let freed = capture_guard::relaxed(&*self.driver, || unsafe { self.driver.host_free(host) });
            // Host memory that the driver will not take back is lost to this process; the blocks are not.
            let _ = freed;
        }
    }

    /// Frees the saved contents of everything that still sleeps.
    pub(super) fn forget_naps(&self) {
        let naps = std::mem::take(&mut *self.naps.lock());
        naps.into_iter().for_each(|nap| self.forget_saved(nap.saved));
    }

    fn no_room(&self, bytes: u64, over_limit: bool) -> AllocError {
        let mut report = OutOfMemoryReport::new(self.device, bytes);
        {
            let mut state = self.state.lock();
            state.core.stats_mut().num_ooms += 1;
            report.fill_from(state.core.stats());
            report.limit_bytes = state.core.limit_bytes();
        }
        report.memory = self.driver.memory_info(self.device).ok();
        report.over_limit = over_limit;
        report.remedy = "give memory back or empty the cache, and wake the blocks again";
        report.into()
    }
}

/// What of a group has contents: where, how much, and where it is saved.
fn parts(group: &Group) -> impl Iterator<Item = (DevicePtr, u64, usize)> + '_ {
    group.beds.iter().flat_map(|bed| {
        let mut at = bed.saved_at;
        bed.contents.iter().map(move |range| {
            let bytes = range.end - range.start;
            at += bytes;
            // Host addresses are as wide as these.
            (DevicePtr::new(range.start), bytes, (at - bytes) as usize)
        })
    })
}

fn not_paged() -> AllocError {
    let call = headwater_driver::Call::HandleUnmap;
    let error = DriverError::new(call, ErrorClass::NotSupported, 801, "CUDA_ERROR_NOT_SUPPORTED");
    error.with_detail("blocks of the classic backing cannot sleep: use backing:paged").into()
}

fn no_such_nap() -> AllocError {
    let call = headwater_driver::Call::HandleMap;
    let error = DriverError::new(call, ErrorClass::InvalidHandle, 400, "CUDA_ERROR_INVALID_HANDLE");
    error.with_detail("no blocks sleep under this name").into()
}
