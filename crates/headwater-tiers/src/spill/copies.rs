//! Copies between GPU and pinned host memory.
//!
//! Copies go in windows: one window is queued behind another, and before a third is queued the first is waited for. So the copy
//! engine always has work, a move can be called off between two windows, and no queue grows with the size of the data.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use headwater_driver::{DevicePtr, Driver, Stream};

use super::core::Core;
use super::layout::Layout;
use super::residence::GpuBytes;
use crate::error::TierError;
use crate::host::HostBuffer;
use crate::host::uses::Use;

/// Windows under way at once.
const WINDOWS: usize = 2;

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Down,
}

/// Says whether a move has been called off.
pub(crate) type IsCancelled<'a> = &'a (dyn Fn() -> bool + Sync);

/// Copies queued in one stream.
pub(crate) struct Copying<'a> {
    core: &'a Core,
    stream: Stream,
    way: Way,
    is_cancelled: IsCancelled<'a>,
    queued_bytes: u64,
    windows: VecDeque<Arc<Use>>,
}

impl<'a> Copying<'a> {
    pub(crate) fn new(core: &'a Core, stream: Stream, way: Way, is_cancelled: IsCancelled<'a>) -> Self {
        Self { core, stream, way, is_cancelled, queued_bytes: 0, windows: VecDeque::new() }
    }

    /// Queues all copies between the blocks of `gpu` and the images in host memory. They may still run when this returns.
    ///
    /// # Safety
    /// Blocks and images have the layout's sizes; both stay, and nobody clashes with the copies, until the stream is done.
    pub(crate) unsafe fn images(
        &mut self,
        layout: &Layout,
        gpu: &GpuBytes,
        images: &[HostBuffer],
    ) -> Result<(), TierError> {
        for (image, buffer) in images.iter().enumerate() {
            let (mut index, mut from) = (0, 0);
            while let Some((start, bytes, blocks)) = buffer.run(index, self.core.config.window_bytes) {
                // SAFETY: the run is `bytes` long, and holds the image from `from` on.
                unsafe { self.run(layout, gpu, image, from, start, bytes)? };
                (index, from) = (index + blocks, from + bytes);
            }
        }
        Ok(())
    }

    /// Queues the copies for one contiguous piece of host memory that holds `bytes` of an image.
    ///
    /// # Safety
    /// As [`images`](Self::images), and the memory is as long.
    pub(crate) unsafe fn run(
        &mut self,
        layout: &Layout,
        gpu: &GpuBytes,
        image: usize,
        from: u64,
        start: NonNull<u8>,
        bytes: u64,
    ) -> Result<(), TierError> {
        for piece in layout.pieces(image, from, bytes) {
            let device = DevicePtr::new(gpu.ptr(piece.part).raw() + piece.part_offset);
            // SAFETY: the piece lies within the run, by the layout.
            let host = unsafe { start.add((piece.image_offset - from) as usize) };
            self.before(piece.bytes)?;
            let driver = &*self.core.driver;
            match self.way {
                // SAFETY: both ranges are inside their blocks, and by the function's contract nobody clashes with the copy.
                Way::Down => unsafe {
                    driver.copy_to_host(host.as_ptr(), device, piece.bytes, self.stream)?;
                },
                // SAFETY: as above.
                Way::Up => unsafe {
                    driver.copy_to_device(device, host.as_ptr(), piece.bytes, self.stream)?;
                },
            }
        }
        Ok(())
    }

    /// Makes room for another copy: closes a full window, and waits for the one before the last.
    fn before(&mut self, bytes: u64) -> Result<(), TierError> {
        if (self.is_cancelled)() {
            return Err(TierError::Cancelled);
        }
        let is_full = self.queued_bytes > 0 && self.queued_bytes + bytes > self.core.config.window_bytes;
        if is_full {
            self.windows.push_back(self.core.events.mark(self.stream)?);
            self.queued_bytes = 0;
            if self.windows.len() >= WINDOWS
                && let Some(oldest) = self.windows.pop_front()
            {
                oldest.wait()?;
            }
        }
        self.queued_bytes += bytes;
        Ok(())
    }
}

/// Copies all blocks of one GPU to another, or to other blocks of the same.
///
/// # Safety
/// Both have the layout's sizes and stay, with nobody in the way, until the stream is done.
pub(crate) unsafe fn across(
    driver: &dyn Driver,
    layout: &Layout,
    from: &GpuBytes,
    to: &GpuBytes,
    stream: Stream,
) -> Result<(), TierError> {
    let device_of = |gpu: &GpuBytes| headwater_driver::DeviceId(gpu.space.place());
    for (part, place) in layout.parts().iter().enumerate() {
        let (to, from) = ((device_of(to), to.ptr(part)), (device_of(from), from.ptr(part)));
        // SAFETY: by the function's contract.
        unsafe { driver.copy_peer(to, from, place.bytes, stream)? };
    }
    Ok(())
}
