//! Several pools over the same physical memory, for graphs that take turns.
//!
//! Two pools have two sets of fixed addresses, but where their graphs never run at once they need not have two sets of pages:
//! a handle can be mapped at several addresses (measured on an H200). A group is a row of handles; each of its pools maps the row
//! from the front, as far as it needs, into an arena of its own. The group has as much physical memory as its largest pool, and
//! nothing is remapped at a launch.
//!
//! The price is that nothing in such a pool survives a launch of another pool's graph: results are copied out first. And running two
//! graphs of different pools at once would mix up their data, so a launch is refused unless it is in the stream of the
//! last launch, where it waits its turn, or the last launch has finished. Work outside of captures cannot be told to take
//! turns, so requests of streams that are not captured never come from such a pool.

use std::ops::Range;
use std::sync::Arc;

use headwater_driver::{DeviceId, Driver, ErrorClass, Event, EventOptions, Handle, Result, Stream};
use parking_lot::Mutex;

use super::capture::PoolId;
use super::error::GraphError;
use crate::capture_guard;

/// A group of pools that share physical memory; pass it to
/// [`GraphAllocator::new_pool_in`](super::GraphAllocator::new_pool_in).
#[derive(Debug)]
pub struct SharedPhysical {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    /// One for the small and one for the large requests of a pool, which must not share with each other. Held while handles are
    /// made and released: needed when a pool of the group grows or shrinks, never on a hit.
    rows: [Mutex<Vec<Place>>; 2],
    /// Held while a graph of the group is launched: one at a time is the point.
    turn: Mutex<Option<Turn>>,
}

/// One handle of a row.
#[derive(Debug)]
struct Place {
    bytes: u64,
    /// None while no pool maps it.
    handle: Option<Handle>,
    /// How many pools map it.
    users: u32,
}

/// The last launch.
#[derive(Debug)]
struct Turn {
    pool: PoolId,
    stream: Stream,
    /// Recorded after it.
    event: Event,
    /// Whether it could be recorded. If not, only launches in the same stream surely come after.
    marked: bool,
}

impl SharedPhysical {
    /// An empty group on `device`.
    ///
    /// # Errors
    /// `NotSupported` where the device has no virtual memory.
    pub fn new(driver: Arc<dyn Driver>, device: DeviceId) -> std::result::Result<Arc<Self>, GraphError> {
        // Refuses with `NotSupported` where there is none.
        driver.granularity(device)?;
        Ok(Arc::new(Self { driver, device, rows: Default::default(), turn: Mutex::default() }))
    }

    /// The physical memory that the group has: that of its largest pool.
    pub fn physical_bytes(&self) -> u64 {
        let there = |row: &Mutex<Vec<Place>>| -> u64 {
            row.lock().iter().filter(|place| place.handle.is_some()).map(|place| place.bytes).sum()
        };
        self.rows.iter().map(there).sum()
    }

    /// Releases what no pool maps and the driver refused to take back earlier. Growing and shrinking pools do the same.
    pub fn trim(&self) {
        for row in &self.rows {
            self.shorten(&mut row.lock());
        }
    }

    /// The device.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The handles of a row from place `first` on that make up at least `bytes`; the row is extended where it ends before. Says
    /// also how much of it nobody else maps. [`let_go`](Self::let_go) gives them back.
    pub(super) fn handles(&self, row: usize, first: usize, bytes: u64) -> Result<(Vec<(Handle, u64)>, u64)> {
        let mut row = self.rows[row].lock();
        let (mut handles, mut covered_bytes, mut added_bytes) = (Vec::new(), 0, 0);
        let mut at = first;
        while covered_bytes < bytes {
            if at >= row.len() {
                row.push(Place { bytes: bytes - covered_bytes, handle: None, users: 0 });
            }
            match self.take(&mut row[at]) {
                Ok((handle, is_first)) => {
                    let place_bytes = row[at].bytes;
                    handles.push((handle, place_bytes));
                    covered_bytes += place_bytes;
                    added_bytes += if is_first { place_bytes } else { 0 };
                    at += 1;
                }
                Err(error) => {
                    self.release(&mut row, first..at);
                    return Err(error);
                }
            }
        }
        Ok((handles, added_bytes))
    }

    fn take(&self, place: &mut Place) -> Result<(Handle, bool)> {
        let handle = match place.handle {
            Some(handle) => handle,
            None => *place.handle.insert(self.driver.handle_create(self.device, place.bytes)?),
        };
        place.users += 1;
        Ok((handle, place.users == 1))
    }

    /// A pool no longer maps these places. What nobody maps goes back to the driver; says how much.
    pub(super) fn let_go(&self, row: usize, places: Range<usize>) -> u64 {
        self.release(&mut self.rows[row].lock(), places)
    }

    fn release(&self, row: &mut Vec<Place>, places: Range<usize>) -> u64 {
        let mut released_bytes = 0;
        for place in row.iter_mut().skip(places.start).take(places.len()) {
            place.users = place.users.saturating_sub(1);
            released_bytes += if place.users == 0 { place.bytes } else { 0 };
        }
        self.shorten(row);
        released_bytes
    }

    /// Releases what nobody maps. Where the driver refuses, it stays: the next growth uses it, the next release tries again.
    fn shorten(&self, row: &mut Vec<Place>) {
        for place in row.iter_mut().filter(|place| place.users == 0) {
            place.handle = place.handle.filter(|handle| self.driver.handle_release(*handle).is_err());
        }
        while row.last().is_some_and(|place| place.users == 0 && place.handle.is_none()) {
            row.pop();
        }
    }

    /// Launches by `launch` where it is `pool`'s turn, and remembers it.
    pub(super) fn launch(
        &self,
        pool: PoolId,
        stream: Stream,
        launch: impl FnOnce() -> Result<()>,
    ) -> std::result::Result<(), GraphError> {
        let mut turn = self.turn.lock();
        let last = match &mut *turn {
            Some(last) => last,
            none => {
                let event = self.driver.event_create(self.device, EventOptions::default())?;
                // Never recorded, so it counts as reached.
                none.insert(Turn { pool, stream, event, marked: true })
            }
        };
        if !self.comes_after(last, stream)? {
            if last.pool != pool || !last.marked {
                return Err(GraphError::RunningTogether { pool, running: last.pool, stream: last.stream });
            }
            // The same pool in another stream: one after the other, so that one event marks the end of both.
            self.driver.stream_wait_event(stream, last.event)?;
        }
        launch()?;
        (last.pool, last.stream) = (pool, stream);
        last.marked = self.driver.event_record(last.event, stream).is_ok();
        Ok(())
    }

    /// Whether work in `stream` comes after the last launch.
    fn comes_after(&self, last: &Turn, stream: Stream) -> Result<bool> {
        if last.stream == stream && !stream.is_per_thread_default() {
            return Ok(true);
        }
        if !last.marked {
            return Ok(false);
        }
        match capture_guard::relaxed(&*self.driver, || self.driver.event_query(last.event)) {
            Err(error) if error.class() == ErrorClass::NotReady => Ok(false),
            answer => answer,
        }
    }
}

impl Drop for SharedPhysical {
    fn drop(&mut self) {
        self.trim();
        if let Some(last) = self.turn.get_mut().take() {
            // Nobody is left to tell.
            let _ = self.driver.event_destroy(last.event);
        }
    }
}
