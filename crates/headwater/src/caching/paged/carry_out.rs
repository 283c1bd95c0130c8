//! Plans turned into driver calls, without the lock.
//!
//! Each piece is made in full before the next: memory, mapping, access. A piece that fails is undone by itself. What earlier
//! pieces took from elsewhere stays at its new place, where it is free memory like any other; what they created is
//! released again, so that a request that fails leaves no more reserved than it found. What cannot be undone is reported as
//! it is, and has its place in the books.

use headwater_driver::{DeviceId, DevicePtr, Driver, DriverError, Handle};

use super::commit::{Done, Fate};
use super::plan::{Fill, Piece, Source, Taken};
use super::release::{Offer, Released};

/// Makes the calls of one plan.
#[derive(Clone, Copy)]
pub(crate) struct Pager<'a> {
    pub(crate) driver: &'a dyn Driver,
    pub(crate) device: DeviceId,
    /// Who gets access to what is mapped.
    pub(crate) access: &'a [DeviceId],
    /// Whether new memory can be exported to other processes.
    pub(crate) makes_exportable: bool,
}

/// A handle that could not be mapped, and whether half a mapping is left.
struct NotPlaced {
    error: DriverError,
    is_stuck: bool,
}

impl Pager<'_> {
    /// Fills a gap. What became of each piece, and the first error.
    pub(crate) fn fill(&self, fill: &Fill) -> (Vec<Done>, Option<DriverError>) {
        let mut done: Vec<Done> = fill.pieces.iter().map(not_begun).collect();
        let mut error = None;
        // New memory first: it is what fails, and then nothing has been moved.
        let is_new = |piece: &Piece| matches!(piece.source, Source::Create);
        for new_ones in [true, false] {
            let pieces = fill.pieces.iter().zip(&mut done).filter(|(piece, _)| is_new(piece) == new_ones);
            for (piece, done) in pieces {
                if error.is_none() {
                    (*done, error) = self.piece(piece);
                }
            }
        }
        if error.is_some() {
            for (piece, done) in fill.pieces.iter().zip(&mut done) {
                if let (Source::Create, Done::New(Fate { placed: Some(handle), .. })) = (&piece.source, *done)
                {
                    *done = Done::New(self.uncreate(piece.address, piece.bytes, handle));
                }
            }
        }
        (done, error)
    }

    /// Returns memory to the driver.
    pub(crate) fn release(&self, offer: &Offer) -> (Released, Option<DriverError>) {
        let (handle, mut released) = match offer {
            Offer::Loose(loose) => (loose.handle, Released::Kept),
            Offer::Mapped(taken) => match self.unmap(taken.range.start, taken.bytes()) {
                Ok(()) => (taken.handle, Released::Unmapped),
                Err(error) => return (Released::Kept, Some(error)),
            },
        };
        let error = self.driver.handle_release(handle).err();
        if error.is_none() {
            released = Released::Gone;
        }
        (released, error)
    }

    fn piece(&self, piece: &Piece) -> (Done, Option<DriverError>) {
        match &piece.source {
            Source::Create => {
                let (fate, error) = self.create(piece.address, piece.bytes);
                (Done::New(fate), error)
            }
            Source::Loose(handle) => match self.place(piece.address, piece.bytes, *handle) {
                Ok(()) => (Done::New(Fate { placed: Some(*handle), ..Fate::ABSENT }), None),
                Err(NotPlaced { error, is_stuck }) => {
                    let stuck = is_stuck.then_some(*handle);
                    (Done::Untouched(Fate { stuck, ..Fate::ABSENT }), Some(error))
                }
            },
            Source::Take(taken) => self.take(piece, taken),
            // It is mapped there already.
            Source::View(taken) => {
                let fate = Fate { placed: Some(taken.handle), ..Fate::ABSENT };
                (Done::Moved { fate, old_is_stuck: false }, None)
            }
        }
    }

    fn take(&self, piece: &Piece, taken: &Taken) -> (Done, Option<DriverError>) {
        let (handle, from, bytes) = (taken.handle, taken.range.start, taken.bytes());
        if !taken.keeps_mapping()
            && let Err(error) = self.unmap(from, bytes)
        {
            return (Done::Untouched(Fate::ABSENT), Some(error));
        }
        let NotPlaced { error, is_stuck } = match self.place(piece.address, bytes, handle) {
            Ok(()) => {
                let fate = Fate { placed: Some(handle), ..Fate::ABSENT };
                return (Done::Moved { fate, old_is_stuck: false }, None);
            }
            Err(not_placed) => not_placed,
        };
        let fate = Fate { stuck: is_stuck.then_some(handle), ..Fate::ABSENT };
        let back = if taken.keeps_mapping() { Ok(()) } else { self.place(from, bytes, handle) };
        let done = match back {
            Ok(()) => Done::Untouched(fate),
            Err(NotPlaced { is_stuck: old_is_stuck, .. }) => {
                Done::Moved { fate: Fate { loose: Some(handle), ..fate }, old_is_stuck }
            }
        };
        (done, Some(error))
    }

    /// New memory at an address.
    pub(super) fn create(&self, address: u64, bytes: u64) -> (Fate, Option<DriverError>) {
        let created = if self.makes_exportable {
            self.driver.handle_create_exportable(self.device, bytes)
        } else {
            self.driver.handle_create(self.device, bytes)
        };
        let handle = match created {
            Ok(handle) => handle,
            Err(error) => return (Fate::ABSENT, Some(error)),
        };
        match self.place(address, bytes, handle) {
            Ok(()) => (Fate { placed: Some(handle), ..Fate::ABSENT }, None),
            Err(NotPlaced { error, is_stuck: true }) => {
                (Fate { placed: None, loose: Some(handle), stuck: Some(handle) }, Some(error))
            }
            Err(NotPlaced { error, is_stuck: false }) => {
                let loose = self.driver.handle_release(handle).err().map(|_| handle);
                (Fate { loose, ..Fate::ABSENT }, Some(error))
            }
        }
    }

    /// Gives access to what is mapped already.
    pub(super) fn give_access(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.driver.access_set(DevicePtr::new(address), bytes, self.access)
    }

    /// Takes new memory away again.
    pub(super) fn uncreate(&self, address: u64, bytes: u64, handle: Handle) -> Fate {
        if self.unmap(address, bytes).is_err() {
            return Fate { placed: Some(handle), ..Fate::ABSENT };
        }
        let loose = self.driver.handle_release(handle).err().map(|_| handle);
        Fate { loose, ..Fate::ABSENT }
    }

    /// Maps a handle and gives access to it, or does neither.
    fn place(&self, address: u64, bytes: u64, handle: Handle) -> Result<(), NotPlaced> {
        let ptr = DevicePtr::new(address);
        let mapped = self.driver.handle_map(ptr, bytes, handle);
        mapped.map_err(|error| NotPlaced { error, is_stuck: false })?;
        self.driver.access_set(ptr, bytes, self.access).map_err(|error| {
            let is_stuck = self.unmap(address, bytes).is_err();
            NotPlaced { error, is_stuck }
        })
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.driver.handle_unmap(self.device, DevicePtr::new(address), bytes)
    }
}

/// A piece whose turn has not come.
pub(super) fn not_begun(piece: &Piece) -> Done {
    match piece.source {
        Source::Create => Done::New(Fate::ABSENT),
        _ => Done::Untouched(Fate::ABSENT),
    }
}
