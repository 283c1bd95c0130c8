//! The engine's own streams: some for copies down and others for copies up.
//!
//! A move up ends for the host when its copies are queued, so its stream comes back busy. Were it lent to a move down next, that
//! one would wait behind the copies although the device has an engine for each way: both ways at once were as slow as one
//! after the other (55 of 110 GB/s on the simulated device). Compute has the streams of its space, which no move uses.

use std::sync::Arc;

use headwater_driver::{DeviceId, Driver};

use super::copies::Way;
use crate::clock::Clock;
use crate::error::TierError;
use crate::space::{BorrowedStream, STREAMS_MAX_DEFAULT, StreamPolicy, StreamPool};

/// Streams made at once for each way. More moves at once than this are rare, and make their own.
const STREAMS_EACH: u64 = 2;

/// The copy streams of one device.
#[derive(Debug)]
pub(crate) struct CopyStreams {
    down: StreamPool,
    up: StreamPool,
}

impl CopyStreams {
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        device: DeviceId,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, TierError> {
        let pool =
            || StreamPool::new(driver.clone(), device, STREAMS_EACH, STREAMS_MAX_DEFAULT, clock.clone());
        Ok(Self { down: pool()?, up: pool()? })
    }

    pub(crate) fn borrow(&self, way: Way) -> Result<BorrowedStream, TierError> {
        let pool = match way {
            Way::Down => &self.down,
            Way::Up => &self.up,
        };
        pool.acquire(&StreamPolicy::Grow)
    }
}
