//! Where the bytes of one spillable thing are: on a GPU, in pinned host memory, or on disk.

use std::sync::Arc;

use headwater_driver::{DevicePtr, Driver, Stream};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::layout::Layout;
use crate::allocation::ReservedBlock;
use crate::disk::{DiskStore, StoredImage};
use crate::error::TierError;
use crate::host::HostBuffer;
use crate::host::uses::{Events, Use};
use crate::reservation::Claim;
use crate::tier::{SpaceId, Tier};
use headwater_driver::capture_guard::relaxed;

/// All bytes, in one place.
#[derive(Debug)]
pub(crate) enum Residence {
    Gpu(GpuBytes),
    Host(HostBytes),
    Disk(DiskBytes),
}

impl Residence {
    pub(crate) fn space(&self) -> SpaceId {
        match self {
            Self::Gpu(gpu) => gpu.space,
            Self::Host(host) => host.space,
            Self::Disk(disk) => disk.claim.space(),
        }
    }

    pub(crate) fn tier(&self) -> Tier {
        self.space().tier()
    }
}

/// A block for every part.
#[derive(Debug)]
pub(crate) struct GpuBytes {
    pub(crate) space: SpaceId,
    pub(crate) blocks: Vec<ReservedBlock>,
    pub(crate) uses: Mutex<GpuUses>,
}

impl GpuBytes {
    pub(crate) fn ptr(&self, part: usize) -> DevicePtr {
        self.blocks.get(part).map_or(DevicePtr::NULL, ReservedBlock::ptr)
    }
}

/// Device work with the blocks, by which later work is ordered.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuUses {
    /// The last work that wrote.
    written: Option<Arc<Use>>,
    /// Work that has read since, one mark a stream.
    read: SmallVec<[Arc<Use>; 2]>,
    /// Streams whose work could not be marked: they must be waited for as a whole.
    unmarked: SmallVec<[Stream; 2]>,
}

impl GpuUses {
    /// Makes later work in `stream` wait for what wrote the blocks, and for what reads them if it is to write.
    pub(crate) fn order(&self, driver: &dyn Driver, stream: Stream, writes: bool) -> Result<(), TierError> {
        for unmarked in &self.unmarked {
            relaxed(driver, || driver.stream_synchronize(*unmarked))?;
        }
        let readers = self.read.iter().filter(|_| writes);
        for used in self.written.iter().chain(readers) {
            if !used.is_in(stream) {
                used.hold_back(stream)?;
            }
        }
        Ok(())
    }

    /// Takes note of the work that `stream` has been given by now.
    pub(crate) fn note(&mut self, events: &Arc<Events>, stream: Stream, wrote: bool) {
        match events.mark(stream) {
            Ok(mark) if wrote => {
                // Whatever was before is ordered before this.
                *self = Self { written: Some(mark), ..Self::default() };
            }
            Ok(mark) => {
                self.read.retain(|used| !used.is_in(stream));
                self.read.push(mark);
            }
            Err(_) => {
                if !self.unmarked.contains(&stream) {
                    self.unmarked.push(stream);
                }
            }
        }
    }
}

impl GpuUses {
    /// Takes over the mark that `other` has of a reader in `stream`: several readers may end at once.
    pub(crate) fn join(&mut self, other: &Self, stream: Stream) {
        if let Some(mark) = other.read.iter().find(|used| used.is_in(stream)) {
            self.read.retain(|used| !used.is_in(stream));
            self.read.push(mark.clone());
        }
        if other.unmarked.contains(&stream) && !self.unmarked.contains(&stream) {
            self.unmarked.push(stream);
        }
    }
}

/// Pinned blocks for every image.
#[derive(Debug)]
pub(crate) struct HostBytes {
    pub(crate) space: SpaceId,
    pub(crate) images: Vec<HostBuffer>,
}

impl HostBytes {
    /// Copies bytes of a part out.
    pub(crate) fn read_at(
        &self,
        layout: &Layout,
        part: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), TierError> {
        let (image, start) = locate(layout, part, offset, into.len() as u64)?;
        let Some(buffer) = self.images.get(image) else { return Ok(()) };
        let (mut done, mut at) = (0, start);
        let span_bytes = buffer.span(0).map_or(1, <[u8]>::len).max(1) as u64;
        while done < into.len() {
            let Some(span) = buffer.span((at / span_bytes) as usize) else { break };
            let from = (at % span_bytes) as usize;
            let bytes = (span.len() - from).min(into.len() - done);
            into[done..done + bytes].copy_from_slice(&span[from..from + bytes]);
            (done, at) = (done + bytes, at + bytes as u64);
        }
        Ok(())
    }

    /// Copies bytes into a part.
    pub(crate) fn write_at(
        &mut self,
        layout: &Layout,
        part: usize,
        offset: u64,
        from: &[u8],
    ) -> Result<(), TierError> {
        let (image, start) = locate(layout, part, offset, from.len() as u64)?;
        self.write_image(image, start, from);
        Ok(())
    }

    /// Copies bytes into an image, wherever.
    pub(crate) fn write_image(&mut self, image: usize, start: u64, from: &[u8]) {
        let Some(buffer) = self.images.get_mut(image) else { return };
        let (mut done, mut at) = (0, start);
        let span_bytes = buffer.span(0).map_or(1, <[u8]>::len).max(1) as u64;
        while done < from.len() {
            let Some(span) = buffer.span_mut((at / span_bytes) as usize) else { break };
            let to = (at % span_bytes) as usize;
            let bytes = (span.len() - to).min(from.len() - done);
            span[to..to + bytes].copy_from_slice(&from[done..done + bytes]);
            (done, at) = (done + bytes, at + bytes as u64);
        }
    }

    /// Whether the first image begins with the header it should have.
    pub(crate) fn has_header(&self, layout: &Layout) -> bool {
        let header = layout.header();
        let spans = self.images.first().into_iter().flat_map(HostBuffer::iter_spans);
        let front = spans.flatten().take(header.len());
        front.eq(header.iter())
    }
}

/// The image a range of a part is in, and where in it the range begins.
fn locate(layout: &Layout, part: usize, offset: u64, bytes: u64) -> Result<(usize, u64), TierError> {
    let known = layout.parts().get(part);
    let part_bytes = known.map_or(0, |part| part.bytes);
    match known {
        Some(place) if offset.checked_add(bytes).is_some_and(|end| end <= part_bytes) => {
            Ok((place.image, place.offset + offset))
        }
        _ => Err(TierError::OutOfRange { part, offset, bytes, part_bytes }),
    }
}

/// An image on disk for every image.
#[derive(Debug)]
pub(crate) struct DiskBytes {
    // In this order: the room is free before the account says so.
    pub(crate) images: Vec<StoredImage>,
    pub(crate) store: DiskStore,
    pub(crate) claim: Claim,
}
