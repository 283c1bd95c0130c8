//! Moves between GPU and disk, through the staging blocks.
//!
//! Each block carries one chunk. On the way down it is filled by a copy, and once that has finished it is written; on the way up it
//! is read, checked, and then copied. While some blocks are with the device others are with the disk, so both work all the time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use headwater_driver::Stream;

use super::copies::{Copying, Way};
use super::layout::Layout;
use super::moves::{Moving, bytes_in, order_after_writers};
use super::residence::{DiskBytes, GpuBytes, Residence};
use crate::disk::{DiskStore, ImageWriter, StoredImage};
use crate::error::TierError;
use crate::host::HostBuffer;
use crate::host::uses::Use;
use crate::reservation::{OverPolicy, Reservation};
use crate::space::Space;
use crate::tier::Tier;

/// The part of the header that `bytes` bytes from `from` of an image hold.
fn header_in(layout: &Layout, image: usize, from: u64, bytes: u64) -> &[u8] {
    let header = if image == 0 { layout.header() } else { &[] };
    let start = usize::try_from(from).unwrap_or(usize::MAX).min(header.len());
    let end = usize::try_from(from.saturating_add(bytes)).unwrap_or(usize::MAX).min(header.len());
    &header[start..end]
}

impl Moving<'_> {
    pub(super) fn gpu_to_disk(
        &self,
        gpu: &GpuBytes,
        to: &Space,
        reservation: &Reservation,
    ) -> Result<Residence, TierError> {
        let store = self.store(to.id())?;
        let mut claim = reservation.claim(bytes_in(self.core, self.layout, Tier::Disk), OverPolicy::Fail)?;
        let borrowed = self.stream(gpu.space, Way::Down)?;
        let stream = borrowed.stream();
        order_after_writers(self.core, gpu, stream)?;
        let images = self.with_staging(stream, |blocks| {
            let mut belt = Belt::new(blocks.len());
            let image = |image| self.image_to_disk(gpu, (&store, image), stream, blocks, &mut belt);
            (0..self.layout.images()).map(image).collect::<Result<Vec<_>, _>>()
        })?;
        claim.shrink_to(images.iter().map(StoredImage::stored_bytes).sum());
        Ok(Residence::Disk(DiskBytes { images, store, claim }))
    }

    pub(super) fn disk_to_gpu(
        &self,
        disk: &DiskBytes,
        to: &Space,
        reservation: &Reservation,
    ) -> Result<Residence, TierError> {
        let borrowed = self.stream(to.id(), Way::Up)?;
        let stream = borrowed.stream();
        let gpu = self.gpu_bytes(to, reservation, stream)?;
        self.with_staging(stream, |blocks| {
            let mut belt = Belt::new(blocks.len());
            disk.images.iter().enumerate().try_for_each(|(image, stored)| {
                self.image_from_disk(&gpu, (&disk.store, stored, image), stream, blocks, &mut belt)
            })
        })?;
        gpu.uses.lock().note(&self.core.events, stream, true);
        Ok(Residence::Gpu(gpu))
    }

    /// Lends staging blocks to `work`, and has them back only after the stream is done with them.
    fn with_staging<T>(
        &self,
        stream: Stream,
        work: impl FnOnce(&mut [HostBuffer]) -> Result<T, TierError>,
    ) -> Result<T, TierError> {
        let mut blocks = self.core.staging.take()?;
        let done = work(&mut blocks);
        match self.core.settle(stream) {
            Ok(()) => self.core.staging.give_back(blocks),
            Err(error) => {
                // A device that does not answer may still be writing them.
                self.core.staging.forget(blocks.len());
                std::mem::forget(blocks);
                return Err(error);
            }
        }
        done
    }

    fn image_to_disk(
        &self,
        gpu: &GpuBytes,
        (store, image): (&DiskStore, usize),
        stream: Stream,
        blocks: &mut [HostBuffer],
        belt: &mut Belt,
    ) -> Result<StoredImage, TierError> {
        let (image_bytes, block_bytes) = (self.layout.image_bytes(image), self.core.block_bytes);
        let mut writer = store.writer(image_bytes, block_bytes)?;
        let mut copying = Copying::new(self.core, stream, Way::Down, self.is_cancelled);
        for (chunk, from) in (0..image_bytes).step_by(block_bytes as usize).enumerate() {
            let bytes = block_bytes.min(image_bytes - from);
            let slot = loop {
                if let Some(slot) = belt.idle.pop() {
                    break slot;
                }
                self.pass_on_to_disk(belt, &mut writer, blocks)?;
            };
            let header = header_in(self.layout, image, from, bytes);
            if let Some(span) = blocks[slot].span_mut(0) {
                span[..header.len()].copy_from_slice(header);
            }
            let Some((start, _)) = blocks[slot].span_ptr(0) else {
                return Err(TierError::Lost { id: self.id });
            };
            // SAFETY: the block holds a whole chunk, and is ours until the stream is done; see `with_staging`.
            unsafe { copying.run(self.layout, gpu, image, from, start, bytes)? };
            belt.copied.push_back((chunk, slot, bytes, self.core.events.mark(stream)?));
            // Copies are twenty times as fast as disks: most blocks are for the disk.
            if belt.copied.len() > blocks.len() / 4 {
                self.pass_on_to_disk(belt, &mut writer, blocks)?;
            }
        }
        while !belt.copied.is_empty() {
            self.pass_on_to_disk(belt, &mut writer, blocks)?;
        }
        while let Some(chunk) = writer.land()? {
            belt.release(&[chunk]);
        }
        Ok(writer.finish()?)
    }

    /// Waits for the oldest copy and gives its block to the disk; with no copy under way, waits for the disk to be done with one.
    fn pass_on_to_disk(
        &self,
        belt: &mut Belt,
        writer: &mut ImageWriter<'_>,
        blocks: &[HostBuffer],
    ) -> Result<(), TierError> {
        self.check_cancelled()?;
        let through = match belt.copied.pop_front() {
            Some((chunk, slot, bytes, copied)) => {
                copied.wait()?;
                let memory = blocks[slot].chunk(0).map(|memory| memory.shortened(bytes as usize));
                let Some(memory) = memory else { return Err(TierError::Lost { id: self.id }) };
                belt.with_disk.insert(chunk, slot);
                // SAFETY: the block stays with the disk until the writer says that it is through; blocks outlive the writer.
                unsafe { writer.write(chunk, memory)? }
            }
            None => writer.land()?.into_iter().collect(),
        };
        belt.release(&through);
        Ok(())
    }

    fn image_from_disk(
        &self,
        gpu: &GpuBytes,
        (store, stored, image): (&DiskStore, &StoredImage, usize),
        stream: Stream,
        blocks: &mut [HostBuffer],
        belt: &mut Belt,
    ) -> Result<(), TierError> {
        let (image_bytes, block_bytes) = (self.layout.image_bytes(image), self.core.block_bytes);
        let mut reader = store.reader(stored)?;
        let mut copying = Copying::new(self.core, stream, Way::Up, self.is_cancelled);
        let (chunks, mut next, mut done) = (stored.chunks(), 0, 0);
        while done < chunks {
            self.check_cancelled()?;
            // Copies are twenty times as fast as disks: without this look the disk would run dry before a block came back.
            belt.reclaim()?;
            let mut through = Vec::new();
            if next < chunks
                && let Some(slot) = belt.idle.pop()
            {
                let bytes = block_bytes.min(image_bytes - next as u64 * block_bytes);
                let memory = blocks[slot].chunk(0).map(|memory| memory.shortened(bytes as usize));
                let Some(memory) = memory else { return Err(TierError::Lost { id: self.id }) };
                belt.with_disk.insert(next, slot);
                // SAFETY: the block stays with the disk until the reader says that it is through; blocks outlive the reader.
                through = unsafe { reader.read(next, memory)? };
                next += 1;
            } else if let Some(chunk) = reader.land()? {
                through.push(chunk);
            } else if let Some((_, slot, _, copied)) = belt.copied.pop_front() {
                copied.wait()?;
                belt.idle.push(slot);
            }
            for chunk in through {
                let Some(slot) = belt.with_disk.remove(&chunk) else { continue };
                let from = chunk as u64 * block_bytes;
                let bytes = block_bytes.min(image_bytes - from);
                let header = header_in(self.layout, image, from, bytes);
                if blocks[slot].span(0).is_none_or(|span| !span.starts_with(header)) {
                    return Err(TierError::WrongImage { id: self.id });
                }
                let Some((start, _)) = blocks[slot].span_ptr(0) else {
                    return Err(TierError::Lost { id: self.id });
                };
                // SAFETY: the block holds the chunk, checked; it is ours until the stream is done, see `with_staging`.
                unsafe { copying.run(self.layout, gpu, image, from, start, bytes)? };
                belt.copied.push_back((chunk, slot, bytes, self.core.events.mark(stream)?));
                done += 1;
            }
        }
        Ok(())
    }
}

/// Which block is where: idle, with the device, or with the disk. One for all images of a move: the last copies of one image may
/// still run when the next begins.
struct Belt {
    idle: Vec<usize>,
    /// Chunk, block, bytes and the end of the copy; oldest first.
    copied: VecDeque<(usize, usize, u64, Arc<Use>)>,
    with_disk: BTreeMap<usize, usize>,
}

impl Belt {
    fn new(blocks: usize) -> Self {
        Self { idle: (0..blocks).collect(), copied: VecDeque::new(), with_disk: BTreeMap::new() }
    }

    /// Takes back the blocks whose copies have finished, without waiting.
    fn reclaim(&mut self) -> Result<(), TierError> {
        while let Some((_, slot, _, copied)) = self.copied.front() {
            if !copied.has_finished()? {
                break;
            }
            self.idle.push(*slot);
            self.copied.pop_front();
        }
        Ok(())
    }

    fn release(&mut self, chunks: &[usize]) {
        self.idle.extend(chunks.iter().filter_map(|chunk| self.with_disk.remove(chunk)));
    }
}
