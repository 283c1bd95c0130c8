//! Moves from one tier to another.
//!
//! A move builds the new place beside the old one and hands it over whole, or not at all: where anything fails the old place still
//! has every byte. No lock is held here; the caller has taken the data out of its node for as long as the move lasts.
//!
//! Nothing is handed over, and no memory is let go, while a device may still be copying: a move ends with its stream. A
//! device that does not answer keeps the memory it may be writing.

use headwater::Request;
use headwater_driver::{DeviceId, Stream};
use parking_lot::Mutex;

use super::copies::{Copying, IsCancelled, Way, across};
use super::core::Core;
use super::layout::Layout;
use super::residence::{DiskBytes, GpuBytes, GpuUses, HostBytes, Residence};
use super::room::MakeRoom;
use crate::disk::DiskStore;
use crate::error::TierError;
use crate::host::HostBuffer;
use crate::reservation::{OverPolicy, Reservation};
use crate::space::{BorrowedStream, Space};
use crate::tier::{SpaceId, Tier};

/// What room on disk is counted in.
const DISK_GRANULE_BYTES: u64 = 4096;

/// One move.
pub(super) struct Moving<'a> {
    pub(super) core: &'a Core,
    pub(super) id: u64,
    pub(super) layout: &'a Layout,
    pub(super) is_cancelled: IsCancelled<'a>,
}

/// How much `layout` takes in a tier.
pub(crate) fn bytes_in(core: &Core, layout: &Layout, tier: Tier) -> u64 {
    match tier {
        Tier::Gpu => layout.part_bytes(),
        Tier::Host => layout.rounded_bytes(core.block_bytes),
        Tier::Disk => layout.rounded_bytes(DISK_GRANULE_BYTES),
    }
}

impl Moving<'_> {
    /// Moves `source` into what `reservation` promises.
    pub(super) fn go(
        &self,
        source: &mut Residence,
        reservation: &Reservation,
    ) -> Result<Residence, TierError> {
        let space = self.core.tiers.space(reservation.space())?;
        let unknown = || TierError::NotThisTier { space: space.id(), what: "way from there to here" };
        match (source, space.tier()) {
            (Residence::Gpu(gpu), Tier::Host) => self.gpu_to_host(gpu, &space, reservation),
            (Residence::Gpu(gpu), Tier::Disk) => self.gpu_to_disk(gpu, &space, reservation),
            (Residence::Gpu(gpu), Tier::Gpu) => self.gpu_to_gpu(gpu, &space, reservation),
            (Residence::Host(host), Tier::Gpu) => self.host_to_gpu(host, &space, reservation),
            (Residence::Host(host), Tier::Disk) => self.host_to_disk(host, &space, reservation),
            (Residence::Disk(disk), Tier::Gpu) => self.disk_to_gpu(disk, &space, reservation),
            (Residence::Disk(disk), Tier::Host) => self.disk_to_host(disk, &space, reservation),
            (Residence::Host(host), Tier::Host) => self.host_to_host(host, &space, reservation),
            (Residence::Disk(_), Tier::Disk) => Err(unknown()),
        }
    }

    fn gpu_to_host(
        &self,
        gpu: &GpuBytes,
        to: &Space,
        reservation: &Reservation,
    ) -> Result<Residence, TierError> {
        let mut host = self.host_bytes(to, reservation)?;
        host.write_image(0, 0, self.layout.header());
        let borrowed = self.stream(gpu.space, Way::Down)?;
        let stream = borrowed.stream();
        order_after_writers(self.core, gpu, stream)?;
        let mut copying = Copying::new(self.core, stream, Way::Down, self.is_cancelled);
        // SAFETY: the images were made for the layout, and `settle` below waits for the copies before anything is let go.
        let copied = unsafe { copying.images(self.layout, gpu, &host.images) };
        if let Err(error) = self.core.settle(stream) {
            std::mem::forget(host);
            return Err(error);
        }
        copied.map(|()| Residence::Host(host))
    }

    fn host_to_gpu(
        &self,
        host: &mut HostBytes,
        to: &Space,
        reservation: &Reservation,
    ) -> Result<Residence, TierError> {
        if !host.has_header(self.layout) {
            return Err(TierError::WrongImage { id: self.id });
        }
        let borrowed = self.stream(to.id(), Way::Up)?;
        let stream = borrowed.stream();
        let gpu = self.gpu_bytes(to, reservation, stream)?;
        let mut copying = Copying::new(self.core, stream, Way::Up, self.is_cancelled);
        // SAFETY: the images were made for the layout; the pinned blocks learn of the copies below, and are handed out again only
        // after them; the device blocks belong to the stream.
        let copied = unsafe { copying.images(self.layout, &gpu, &host.images) };
        // The host does not wait for the last windows: whoever uses the blocks does, on the device.
        let noted =
            copied.and_then(|()| host.images.iter_mut().try_for_each(|image| image.record_use(stream)));
        match noted {
            Ok(()) => {
                gpu.uses.lock().note(&self.core.events, stream, true);
                Ok(Residence::Gpu(gpu))
            }
            Err(error) => {
                self.core.settle(stream)?;
                Err(error)
            }
        }
    }

    fn gpu_to_gpu(
        &self,
        from: &GpuBytes,
        to: &Space,
        reservation: &Reservation,
    ) -> Result<Residence, TierError> {
        let borrowed = self.stream(to.id(), Way::Up)?;
        let stream = borrowed.stream();
        let gpu = self.gpu_bytes(to, reservation, stream)?;
        order_after_writers(self.core, from, stream)?;
        // SAFETY: both have the layout's blocks, and the copies are waited for before either is let go.
        let copied = unsafe { across(&*self.core.driver, self.layout, from, &gpu, stream) };
        if let Err(error) = self.core.settle(stream) {
            std::mem::forget(gpu);
            return Err(error);
        }
        copied.map(|()| Residence::Gpu(gpu))
    }

    /// From one NUMA node to another, by the processor. No device writes what is in host memory, so there is nothing to wait for.
    fn host_to_host(
        &self,
        from: &HostBytes,
        to: &Space,
        reservation: &Reservation,
    ) -> Result<Residence, TierError> {
        let mut host = self.host_bytes(to, reservation)?;
        for (from, to) in from.images.iter().zip(&mut host.images) {
            for index in 0..from.spans() {
                self.check_cancelled()?;
                if let (Some(from), Some(to)) = (from.span(index), to.span_mut(index)) {
                    to.copy_from_slice(from);
                }
            }
        }
        Ok(Residence::Host(host))
    }

    fn host_to_disk(
        &self,
        host: &HostBytes,
        to: &Space,
        reservation: &Reservation,
    ) -> Result<Residence, TierError> {
        let store = self.store(to.id())?;
        let mut claim = reservation.claim(bytes_in(self.core, self.layout, Tier::Disk), OverPolicy::Fail)?;
        let mut images = Vec::with_capacity(host.images.len());
        for buffer in &host.images {
            let mut writer = store.writer(buffer.bytes(), self.core.block_bytes)?;
            for index in 0..buffer.spans() {
                self.check_cancelled()?;
                let Some(memory) = buffer.chunk(index) else { break };
                // SAFETY: the blocks are borrowed for longer than the writer lives, and nobody writes what is being moved.
                unsafe { writer.write(index, memory)? };
            }
            images.push(writer.finish()?);
        }
        claim.shrink_to(images.iter().map(|image| image.stored_bytes()).sum());
        Ok(Residence::Disk(DiskBytes { images, store, claim }))
    }

    fn disk_to_host(
        &self,
        disk: &DiskBytes,
        to: &Space,
        reservation: &Reservation,
    ) -> Result<Residence, TierError> {
        let host = self.host_bytes(to, reservation)?;
        for (buffer, image) in host.images.iter().zip(&disk.images) {
            let mut reader = disk.store.reader(image)?;
            for index in 0..buffer.spans() {
                self.check_cancelled()?;
                let Some(memory) = buffer.chunk(index) else { break };
                // SAFETY: the blocks are ours, outlive the reader, and nobody looks at them before it is finished.
                unsafe { reader.read(index, memory)? };
            }
            reader.finish()?;
        }
        if !host.has_header(self.layout) {
            return Err(TierError::WrongImage { id: self.id });
        }
        Ok(Residence::Host(host))
    }

    /// Pinned memory for every image.
    fn host_bytes(&self, space: &Space, reservation: &Reservation) -> Result<HostBytes, TierError> {
        let image =
            |image| space.allocate_host(reservation, self.layout.image_bytes(image), OverPolicy::Fail);
        let images = (0..self.layout.images()).map(image).collect::<Result<Vec<HostBuffer>, _>>()?;
        Ok(HostBytes { space: space.id(), images })
    }

    /// A block for every part.
    pub(super) fn gpu_bytes(
        &self,
        space: &Space,
        reservation: &Reservation,
        stream: Stream,
    ) -> Result<GpuBytes, TierError> {
        let oom = MakeRoom { core: self.core, space: space.id() };
        let block = |part: &super::layout::Part| {
            space.allocate(reservation, Request::new(part.bytes, stream), OverPolicy::Fail, &oom)
        };
        let blocks = self.layout.parts().iter().map(block).collect::<Result<_, _>>()?;
        Ok(GpuBytes { space: space.id(), blocks, uses: Mutex::new(GpuUses::default()) })
    }

    /// A stream of the device of a GPU space, for copies one way.
    pub(super) fn stream(&self, space: SpaceId, way: Way) -> Result<BorrowedStream, TierError> {
        let streams = self.core.copy_streams.get(&DeviceId(space.place()));
        streams.ok_or(TierError::UnknownSpace(space))?.borrow(way)
    }

    pub(super) fn store(&self, space: SpaceId) -> Result<DiskStore, TierError> {
        self.core.stores.get(&space).cloned().ok_or(TierError::UnknownSpace(space))
    }

    pub(super) fn check_cancelled(&self) -> Result<(), TierError> {
        if (self.is_cancelled)() { Err(TierError::Cancelled) } else { Ok(()) }
    }
}

/// Makes `stream` wait for whatever writes the blocks. The marks are copied: no lock is held across driver calls.
pub(super) fn order_after_writers(core: &Core, gpu: &GpuBytes, stream: Stream) -> Result<(), TierError> {
    let uses = gpu.uses.lock().clone();
    // Readers too: the blocks are let go after the move, and those who still read them must be done by then.
    uses.order(&*core.driver, stream, true)
}
