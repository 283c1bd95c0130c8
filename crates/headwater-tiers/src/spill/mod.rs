//! The spill engine: data that moves down when room is needed and back up when it is used.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`Spill`], the engine's handle |
//! | `config.rs` | [`SpillConfig`] |
//! | `buffer.rs`, `table.rs` | what callers own: [`SpillBuffer`], [`SpillTable`] |
//! | `access.rs` | pinning: [`GpuAccess`], [`HostRead`], [`HostWrite`] |
//! | `node.rs`, `ticket.rs` | one spillable thing: its state and who may change it; its bytes taken out for a move |
//! | `layout.rs`, `residence.rs` | how its parts lie below the GPU; the three places it can be in |
//! | `moves.rs`, `copies.rs`, `copy_streams.rs`, `through_staging.rs`, `staging.rs` | moving the bytes |
//! | `victims.rs`, `room.rs`, `mover.rs` | who goes, making room, the threads that do it by themselves |
//! | `task.rs`, `tasks.rs` | one task; all of them, and what happens when they wait for each other |
//! | `metrics.rs`, `exposition.rs` | what is counted; the same for Prometheus |
//! | `core.rs` | what all of them share |
//!
//! Lock order: a node's state is taken alone. No lock is held during a copy, a transfer or any other driver call.

mod access;
mod buffer;
mod config;
mod copies;
mod copy_streams;
mod core;
mod exposition;
mod layout;
mod metrics;
mod mover;
mod moves;
mod node;
mod residence;
mod room;
mod staging;
mod table;
mod task;
mod tasks;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod through_staging;
mod ticket;
mod victims;

use std::fmt;
use std::sync::Arc;

use headwater::{OutOfMemoryReport, Plain};
use headwater_driver::DeviceId;
use parking_lot::Mutex;

pub use access::{GpuAccess, HostRead, HostWrite};
pub use buffer::SpillBuffer;
pub use config::SpillConfig;
pub use metrics::{Route, RouteFigures, SpillFigures};
pub use table::{Column, ColumnType, SpillTable, TableForm};
pub use task::{Attempt, Task, TaskCanceller};
pub use victims::{PriorityThenColdest, Victim, VictimPolicy};

use self::copies::Way;
use self::core::Core;
use self::layout::Layout;
use self::mover::Movers;
use self::moves::{Moving, bytes_in};
use self::node::Node;
use self::residence::{GpuBytes, HostBytes, Residence};
use crate::disk::DiskStore;
use crate::error::TierError;
use crate::manager::{Strategy, Tiers};
use crate::metrics::Exposition;
use crate::reservation::OverPolicy;
use crate::tier::{SpaceId, Tier};
use crate::waiting::Wait;

/// The spill engine of a machine's tiers. Cheap to clone; its movers end with the last clone, and buffers that live longer are
/// moved by those who use them.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use headwater::Direct;
/// use headwater_driver::DeviceId;
/// use headwater_tiers::{GpuConfig, HostConfig, Spill, SpillConfig, Tier, Tiers, TiersConfig, Wait};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let driver = headwater_sim::SimDriver::new();
/// # let device = DeviceId(0);
/// let direct = Arc::new(Direct::new(driver.clone(), device)?);
/// let mut host = HostConfig::new(0, 64 << 20);
/// host.pinned.initial_slabs = 0;
/// let config = TiersConfig::default().driver(driver).gpu(GpuConfig::new(direct, 4 << 20)).host(host);
/// let spill = Spill::new(Tiers::new(config)?, SpillConfig::default())?;
///
/// // Three times what the GPU holds.
/// let patience = Wait::at_most(Duration::from_secs(10));
/// let buffers: Vec<_> = (0..12u8)
///     .map(|i| spill.buffer_from_slice(&vec![i; 1 << 20], Tier::Gpu, device, &patience))
///     .collect::<Result<_, _>>()?;
/// for (i, buffer) in buffers.iter().enumerate() {
///     assert_eq!(buffer.read_on_host(&patience)?.to_vec()?, vec![i as u8; 1 << 20]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Spill {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    movers: Mutex<Movers>,
}

impl Spill {
    /// The engine of `tiers`. DISK spaces are opened here (and left-overs of a crash removed), and staging blocks set aside.
    ///
    /// # Errors
    /// [`TierError::BadSetting`] without a GPU and a HOST space; [`TierError::Disk`]; those of pinning.
    pub fn new(tiers: Tiers, config: SpillConfig) -> Result<Self, TierError> {
        let core = Core::new(tiers, config)?;
        let movers = Mutex::new(Movers::start(&core)?);
        Ok(Self { inner: Arc::new(Inner { core, movers }) })
    }

    /// The tiers.
    pub fn tiers(&self) -> &Tiers {
        &self.inner.core.tiers
    }

    /// The store behind a DISK space.
    pub fn store(&self, space: SpaceId) -> Option<&DiskStore> {
        self.inner.core.stores.get(&space)
    }

    /// A buffer of `len` zeros on `device`; waits for room there.
    ///
    /// # Errors
    /// As [`Tiers::request_reservation`]; [`TierError::OutOfMemory`], [`TierError::Driver`].
    pub fn buffer<T: Plain>(
        &self,
        len: usize,
        device: DeviceId,
        wait: &Wait,
    ) -> Result<SpillBuffer<T>, TierError> {
        let layout = Layout::direct(&[(len as u64).saturating_mul(size_of::<T>() as u64)]);
        Ok(SpillBuffer::new(self.node_on_gpu(layout, device, wait)?, len))
    }

    /// A buffer with the values of a slice, made in host memory and moved up to `device` where `tier` says so.
    ///
    /// # Errors
    /// As [`buffer`](Self::buffer).
    pub fn buffer_from_slice<T: Plain>(
        &self,
        values: &[T],
        tier: Tier,
        device: DeviceId,
        wait: &Wait,
    ) -> Result<SpillBuffer<T>, TierError> {
        let layout = Layout::direct(&[size_of_val(values) as u64]);
        let node = self.node_on_host(layout, wait, |layout, host| {
            host.write_at(layout, 0, 0, access::bytes_of(values))
        })?;
        let buffer = SpillBuffer::new(node, values.len());
        match tier {
            Tier::Gpu => buffer.prefetch(device, wait)?,
            Tier::Host => {}
            Tier::Disk => buffer.spill_to(Tier::Disk, wait)?,
        }
        Ok(buffer)
    }

    /// Begins a task.
    pub fn task(&self, priority: i32) -> Task {
        self.inner.core.tasks.begin(priority)
    }

    /// Moves data out of `space` until `needed_bytes` are freed or nothing more can go. Says how much was freed.
    pub fn make_room(&self, space: SpaceId, needed_bytes: u64) -> u64 {
        self.inner.core.make_room(space, needed_bytes)
    }

    /// What an allocator of `device` is to call when it has run out of memory: it moves spillable data out of the way, in the
    /// calling thread, and says whether asking again may help. For
    /// [`CachingAllocator::set_failure_callback`](headwater::CachingAllocator::set_failure_callback) and
    /// [`WithFailureCallback`](headwater::adaptors::WithFailureCallback). It does not keep the engine alive.
    pub fn failure_callback(
        &self,
        device: DeviceId,
    ) -> impl Fn(&OutOfMemoryReport) -> bool + Send + Sync + 'static {
        self.inner.core.failure_callback(SpaceId::gpu(device))
    }

    /// What has been counted.
    pub fn figures(&self) -> SpillFigures {
        self.inner.core.figures()
    }

    /// What has been counted, and how every space stands, in Prometheus' text format: for a
    /// [`MetricsEndpoint`](crate::metrics::MetricsEndpoint).
    pub fn prometheus_text(&self) -> String {
        let mut text = Exposition::default();
        self.figures().expose(&mut text);
        exposition::expose_spaces(self.tiers().spaces(), &mut text);
        text.into_text()
    }

    /// Ends the movers; moves under way are seen through. Data can still be used, and is then moved by those who use it as
    /// long as there is room.
    pub fn shut_down(&self) {
        self.inner.movers.lock().stop(&self.inner.core);
    }

    fn node_on_gpu(&self, layout: Layout, device: DeviceId, wait: &Wait) -> Result<Arc<Node>, TierError> {
        let core = &self.inner.core;
        let space = SpaceId::gpu(device);
        let reservation =
            core.reserve(&Strategy::Specific(space), bytes_in(core, &layout, Tier::Gpu), wait)?;
        let moving = Moving { core, id: 0, layout: &layout, is_cancelled: &|| false };
        let borrowed = moving.stream(space, Way::Up)?;
        let gpu: GpuBytes = moving.gpu_bytes(&core.tiers.space(space)?, &reservation, borrowed.stream())?;
        for (block, part) in gpu.blocks.iter().zip(layout.parts()) {
            // SAFETY: the block is ours, as long, and belongs to the stream.
            unsafe { core.driver.fill_bytes(block.ptr(), 0, part.bytes, borrowed.stream())? };
        }
        gpu.uses.lock().note(&core.events, borrowed.stream(), true);
        Ok(Node::new(core, layout, Residence::Gpu(gpu), 0))
    }

    fn node_on_host(
        &self,
        layout: Layout,
        wait: &Wait,
        fill: impl FnOnce(&Layout, &mut HostBytes) -> Result<(), TierError>,
    ) -> Result<Arc<Node>, TierError> {
        let core = &self.inner.core;
        let reservation =
            core.reserve(&Strategy::AnyInTier(Tier::Host), bytes_in(core, &layout, Tier::Host), wait)?;
        let space = core.tiers.space(reservation.space())?;
        let image = |image| space.allocate_host(&reservation, layout.image_bytes(image), OverPolicy::Fail);
        let images = (0..layout.images()).map(image).collect::<Result<_, _>>()?;
        let mut host = HostBytes { space: space.id(), images };
        host.write_image(0, 0, layout.header());
        fill(&layout, &mut host)?;
        Ok(Node::new(core, layout, Residence::Host(host), 0))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.movers.get_mut().stop(&self.core);
        // Staging goes with the engine: buffers that live longer move between GPU and HOST only.
        drop(self.core.staging.close());
    }
}

impl fmt::Debug for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spill").field("figures", &self.figures()).finish_non_exhaustive()
    }
}
