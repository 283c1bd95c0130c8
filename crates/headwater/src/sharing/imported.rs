//! Somebody else's block, mapped here.
//!
//! Addresses are reserved, every handle is imported and mapped, and access is set once for all. A call that fails undoes those
//! before it. What the driver refuses to undo is tried once more, and again when the value is closed or dropped; a refusal
//! in a destructor leaves a mapping to the end of the process and takes nothing from the exporter.

use std::fmt;
use std::sync::Arc;

use headwater_driver::{DeviceId, DevicePtr, Driver, Handle, Result as DriverResult, Stream};

use super::{BlockNote, ReceivedBlock, ShareError};
use crate::allocator::check_stream;
use crate::capture_guard;

/// Mapped memory, from the reserved addresses up. Each part is gone from here when the driver has taken it.
#[derive(Debug)]
struct Mapping {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    base: DevicePtr,
    /// Zero once the addresses are given back.
    reserved_bytes: u64,
    /// Addresses and sizes of what is mapped.
    mapped: Vec<(DevicePtr, u64)>,
    handles: Vec<Handle>,
}

impl Mapping {
    /// Undoes as much as the driver takes. The first refusal; then it can be called again.
    fn undo(&mut self) -> DriverResult<()> {
        let mut refusal = Ok(());
        let (driver, device) = (&*self.driver, self.device);
        let mut gone = |answer: DriverResult<()>| {
            let is_kept = answer.is_err();
            if refusal.is_ok() {
                refusal = answer;
            }
            is_kept
        };
        self.mapped.retain(|(ptr, bytes)| gone(driver.handle_unmap(device, *ptr, *bytes)));
        self.handles.retain(|handle| gone(driver.handle_release(*handle)));
        if self.mapped.is_empty()
            && self.reserved_bytes > 0
            && !gone(driver.address_free(device, self.base, self.reserved_bytes))
        {
            self.reserved_bytes = 0;
        }
        refusal
    }

    fn fill(&mut self, received: &ReceivedBlock, access: &[DeviceId]) -> DriverResult<()> {
        let mut at = self.base;
        for (bytes, fd) in received.handles() {
            let handle = self.driver.handle_import(self.device, fd, bytes)?;
            self.handles.push(handle);
            self.driver.handle_map(at, bytes, handle)?;
            self.mapped.push((at, bytes));
            at = DevicePtr::new(at.raw() + bytes);
        }
        self.driver.access_set(self.base, self.reserved_bytes, access)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.undo().is_err() {
            // Nobody is left to tell.
            let _ = self.undo();
        }
    }
}

/// A block of another process, mapped in this one. Dropping it waits for the streams that it was used in, unmaps it and gives
/// its addresses back.
///
/// All of the handles behind the block are mapped. Bytes outside of the block are the exporter's.
pub struct ImportedBlock {
    mapping: Mapping,
    note: BlockNote,
    /// Waited for in the end.
    streams: Vec<Stream>,
}

impl ImportedBlock {
    /// Maps a block for `device`, to be used in `stream`; other streams are told with
    /// [`record_stream`](Self::record_stream). Legal during capture.
    ///
    /// # Errors
    /// [`ShareError::OtherDevice`]; [`ShareError::Alloc`] for a stream of another device; [`ShareError::Driver`]. Then nothing
    /// is mapped, and the received block can be tried again.
    pub fn map(
        driver: Arc<dyn Driver>,
        device: DeviceId,
        received: &ReceivedBlock,
        stream: Stream,
    ) -> Result<Self, ShareError> {
        Self::map_for(driver, device, &[device], received, stream)
    }

    /// As [`map`](Self::map), with access for these devices; `device` should be one of them.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_for(
        driver: Arc<dyn Driver>,
        device: DeviceId,
        access: &[DeviceId],
        received: &ReceivedBlock,
        stream: Stream,
    ) -> Result<Self, ShareError> {
        check_stream(stream, device)?;
        let note = received.note();
        let here = driver.device_properties(device)?.pci_address;
        if here != note.pci_address() {
            return Err(ShareError::OtherDevice { exported: note.pci_address().to_owned(), here });
        }
        let reserved_bytes = note.mapped_bytes();
        let base = driver.address_reserve(device, reserved_bytes, 0)?;
        let mut mapping =
            Mapping { driver, device, base, reserved_bytes, mapped: Vec::new(), handles: Vec::new() };
        // On failure the drop undoes it.
        mapping.fill(received, access)?;
        Ok(Self { mapping, note: note.clone(), streams: vec![stream] })
    }

    /// The block's first address in this process.
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr::new(self.mapping.base.raw() + self.note.offset_bytes())
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.note.bytes()
    }

    /// The device whose memory it is.
    pub fn device(&self) -> DeviceId {
        self.mapping.device
    }

    /// The block is used in `stream` too, which is waited for before it is unmapped.
    ///
    /// # Errors
    /// [`ShareError::Alloc`] for a stream of another device.
    pub fn record_stream(&mut self, stream: Stream) -> Result<(), ShareError> {
        check_stream(stream, self.mapping.device)?;
        if !self.streams.contains(&stream) {
            self.streams.push(stream);
        }
        Ok(())
    }

    /// Waits for the streams that use the block, and unmaps it: what dropping does, with an answer.
    ///
    /// # Errors
    /// The driver's first refusal. What it refused is tried again by the next call, or when the value is dropped.
    pub fn close(&mut self) -> Result<(), ShareError> {
        let driver = &*self.mapping.driver;
        while let Some(stream) = self.streams.last() {
            capture_guard::relaxed(driver, || driver.stream_synchronize(*stream))?;
            self.streams.pop();
        }
        Ok(self.mapping.undo()?)
    }
}

impl Drop for ImportedBlock {
    fn drop(&mut self) {
        let driver = Arc::clone(&self.mapping.driver);
        for stream in self.streams.drain(..) {
            // A stream that is gone, or a device that is lost, has nothing left to wait for. The fields go next.
            let _ = capture_guard::relaxed(&*driver, || driver.stream_synchronize(stream));
        }
    }
}

impl fmt::Debug for ImportedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedBlock")
            .field("ptr", &self.ptr())
            .field("note", &self.note)
            .finish_non_exhaustive()
    }
}
