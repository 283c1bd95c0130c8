//! How a pool is described before it is made.

use std::sync::Arc;

use headwater_driver::{DeviceId, Driver};

use super::pool::GraphPool;
use crate::graph::error::GraphError;
use crate::graph::fixed_memory::Source;

/// What a pool starts with unless told otherwise.
const INITIAL_CAPACITY_BYTES: u64 = 512 << 20;

/// How a pool is made.
#[derive(Debug)]
pub struct GraphPoolBuilder {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    initial_capacity_bytes: u64,
    max_capacity_bytes: u64,
    plain_memory: bool,
}

impl GraphPoolBuilder {
    /// What the pool gets ahead of time, in blocks of 16 MiB. 512 MiB unless told otherwise.
    #[must_use]
    pub fn initial_capacity_bytes(mut self, bytes: u64) -> Self {
        self.initial_capacity_bytes = bytes;
        self
    }

    /// The most it ever has. No limit but the device's unless told otherwise; a smaller one lowers the default initial capacity.
    #[must_use]
    pub fn max_capacity_bytes(mut self, bytes: u64) -> Self {
        self.max_capacity_bytes = bytes;
        if self.initial_capacity_bytes == INITIAL_CAPACITY_BYTES {
            self.initial_capacity_bytes = INITIAL_CAPACITY_BYTES.min(bytes);
        }
        self
    }

    /// Takes plain memory even where the device has virtual memory.
    #[must_use]
    pub fn plain_memory(mut self, plain: bool) -> Self {
        self.plain_memory = plain;
        self
    }

    /// Makes the pool and fills it. Where the device runs out on the way, the pool has what was got:
    /// [`GraphPool::initial_fill`] tells.
    ///
    /// # Errors
    /// [`GraphError::BadCapacity`]; what the driver answered, other than that there is not enough memory.
    pub fn build(self) -> Result<GraphPool, GraphError> {
        let Self { driver, device, initial_capacity_bytes, max_capacity_bytes, plain_memory } = self;
        if initial_capacity_bytes > max_capacity_bytes {
            return Err(GraphError::BadCapacity { initial_capacity_bytes, max_capacity_bytes });
        }
        let properties = driver.device_properties(device)?;
        let source = if plain_memory { Source::Plain } else { Source::best(properties.capabilities) };
        GraphPool::filled(
            driver,
            device,
            source,
            properties.total_bytes,
            initial_capacity_bytes,
            max_capacity_bytes,
        )
    }
}

impl GraphPool {
    /// A pool on `device`, to be described further.
    pub fn builder(driver: Arc<dyn Driver>, device: DeviceId) -> GraphPoolBuilder {
        GraphPoolBuilder {
            driver,
            device,
            initial_capacity_bytes: INITIAL_CAPACITY_BYTES,
            max_capacity_bytes: u64::MAX,
            plain_memory: false,
        }
    }
}
