//! All spaces of a machine, and requests that more than one of them can serve.

mod config;
mod strategy;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod topology;

use std::sync::Arc;

pub use config::{PASSES_MAX_DEFAULT, Shares, TiersConfig, WAITERS_MAX_DEFAULT};
pub use strategy::Strategy;
pub use topology::{GpuPlace, MountPlace, NodePlace, Topology};

use crate::clock::Clock;
use crate::error::TierError;
use crate::host::PinnedPool;
use crate::reservation::{Ledger, Reservation};
use crate::space::{Memory, NotificationChannel, Space, StreamPool};
use crate::thresholds::Thresholds;
use crate::tier::SpaceId;
use crate::waiting::{Account, Ask, Book, Candidate, Gate, Refused, Wait, WaitRefused};

/// The tiers of a machine: its spaces, and one queue for all who wait. Cheap to clone; all clones are the same tiers. When
/// the last one is dropped they are shut down, also for those who still hold a space.
///
/// ```
/// use std::time::Duration;
/// use headwater_tiers::{DiskConfig, Strategy, Tier, Tiers, TiersConfig, Wait};
/// # fn main() -> Result<(), headwater_tiers::TierError> {
/// let config = TiersConfig::default()
///     .disk(DiskConfig::new("/var/tmp", 1 << 20))
///     .disk(DiskConfig::new("/var/tmp", 1 << 30));
/// let tiers = Tiers::new(config)?;
///
/// let wait = Wait::at_most(Duration::from_secs(1));
/// let found = tiers.request_reservation(&Strategy::AnyInTier(Tier::Disk), 1 << 22, &wait)?;
/// assert_eq!(found.space(), headwater_tiers::SpaceId::disk(1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Tiers {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    gate: Arc<Gate>,
    spaces: Vec<Space>,
}

impl Tiers {
    /// The tiers that `config` describes. Streams are made and host memory is pinned here.
    ///
    /// # Errors
    /// [`TierError::BadSetting`]; [`TierError::Driver`]. Nothing is left of what was made.
    pub fn new(config: TiersConfig) -> Result<Self, TierError> {
        let gate = Gate::new(Book::new(config.passes_max, config.waiters_max), config.clock.clone());
        let mut maker = SpaceMaker { gate: &gate, spaces: Vec::new() };
        for gpu in &config.gpus {
            let device = gpu.allocator.device();
            let id = SpaceId::gpu(device);
            maker.add(id, gpu.capacity_bytes, gpu.thresholds, 1, gpu.numa_node, |_| {
                let clock = config.clock.clone();
                let streams = StreamPool::new(
                    gpu.allocator.driver().clone(),
                    device,
                    gpu.streams,
                    gpu.streams_max,
                    clock,
                )?;
                Ok(Memory::Gpu { allocator: gpu.allocator.clone(), streams })
            })?;
        }
        for host in &config.hosts {
            host.pinned.check()?;
            let (node, block_bytes) = (host.numa_node, host.pinned.block_bytes);
            let capacity_bytes = host.capacity_bytes - host.capacity_bytes % block_bytes;
            let id = SpaceId::host(node);
            maker.add(id, capacity_bytes, host.thresholds, block_bytes, Some(node), |ledger| {
                let missing = || TierError::bad_setting("driver", "HOST spaces need one to pin memory");
                let driver = config.driver.clone().ok_or_else(missing)?;
                let pool = PinnedPool::new(driver, ledger.clone(), host.pinned.clone(), node)?;
                Ok(Memory::Host { pool })
            })?;
        }
        for (number, disk) in (0..).zip(&config.disks) {
            let id = SpaceId::disk(number);
            maker.add(id, disk.capacity_bytes, disk.thresholds, 1, None, |_| {
                Ok(Memory::Disk { mount: disk.mount.clone(), options: disk.options })
            })?;
        }
        let spaces = maker.spaces;
        Ok(Self { inner: Arc::new(Inner { gate, spaces }) })
    }

    /// All spaces: GPU, then HOST, then DISK, each in the order of the configuration.
    pub fn spaces(&self) -> &[Space] {
        &self.inner.spaces
    }

    /// The space called `id`.
    ///
    /// # Errors
    /// [`TierError::UnknownSpace`].
    pub fn space(&self, id: SpaceId) -> Result<Space, TierError> {
        let found = self.inner.spaces.iter().find(|space| space.id() == id);
        found.cloned().ok_or(TierError::UnknownSpace(id))
    }

    /// Reserves exactly `bytes` wherever `strategy` allows (in whole blocks where the space has blocks), and waits for
    /// all candidates at once if need be.
    ///
    /// # Errors
    /// [`TierError::NoCandidate`]; [`TierError::NeverFits`] at once where no waiting helps; [`TierError::TimedOut`],
    /// [`TierError::Cancelled`], [`TierError::ShutDown`], [`TierError::QueueFull`].
    pub fn request_reservation(
        &self,
        strategy: &Strategy,
        bytes: u64,
        wait: &Wait,
    ) -> Result<Reservation, TierError> {
        let (ask, nearest) = self.ask(strategy, bytes)?;
        let explain = |refused| wait.explain(nearest.explain_wait(refused, bytes));
        let grant = self.inner.gate.wait_for(ask, wait).map_err(explain)?;
        self.reservation(grant.account, grant.bytes)
    }

    /// Reserves exactly `bytes` now; `None` where no candidate has the room now.
    ///
    /// # Errors
    /// [`TierError::NoCandidate`], [`TierError::NeverFits`], [`TierError::ShutDown`].
    pub fn request_reservation_or_null(
        &self,
        strategy: &Strategy,
        bytes: u64,
    ) -> Result<Option<Reservation>, TierError> {
        let (ask, nearest) = self.ask(strategy, bytes)?;
        match self.inner.gate.write(|book| book.try_ask(&ask)) {
            Ok(grant) => self.reservation(grant.account, grant.bytes).map(Some),
            Err(Refused::NoRoom) => Ok(None),
            Err(refused) => Err(nearest.explain_wait(WaitRefused::AtOnce(refused), bytes)),
        }
    }

    /// How many requests wait for anything.
    pub fn waiting(&self) -> usize {
        self.inner.gate.read(Book::waiters)
    }

    /// The spaces that would do for `strategy`, the most wanted first.
    pub(crate) fn spaces_for(&self, strategy: &Strategy) -> Vec<Space> {
        let mut ranked = strategy.candidates(&self.inner.spaces);
        ranked.sort_by_key(|(_, rank)| *rank);
        ranked.into_iter().map(|(space, _)| space.clone()).collect()
    }

    /// Has `told` called, with no lock held, when somebody begins to wait for room. There can be one such function; says
    /// whether this is it.
    pub(crate) fn when_somebody_waits(&self, told: impl Fn() + Send + Sync + 'static) -> bool {
        self.inner.gate.when_somebody_waits(told)
    }

    /// The time that deadlines are measured by.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.inner.gate.clock()
    }

    /// Ends the waits whose deadline has come. Waiters see to that themselves by the machine's clock; this is for a
    /// clock that is moved by hand.
    pub fn expire_waits(&self) {
        self.inner.gate.expire();
        for space in &self.inner.spaces {
            space.expire_waits();
        }
    }

    /// Ends all waits and refuses all later requests. What is reserved stays so until it is given back.
    pub fn shut_down(&self) {
        self.inner.gate.shut_down();
        for space in &self.inner.spaces {
            space.shut_down();
        }
    }

    /// The request, and the candidate that comes nearest to granting it, for errors.
    fn ask(&self, strategy: &Strategy, bytes: u64) -> Result<(Ask, &Ledger), TierError> {
        let candidates = strategy.candidates(&self.inner.spaces);
        let nearest = candidates.iter().max_by_key(|(space, _)| space.usage().limit_bytes);
        let Some((nearest, _)) = nearest else {
            return Err(TierError::NoCandidate { strategy: strategy.to_string() });
        };
        let ledger: &Ledger = nearest.ledger();
        let candidates =
            candidates.iter().map(|(space, rank)| Candidate { account: space.ledger().account, rank: *rank });
        Ok((Ask { candidates: candidates.collect(), bytes }, ledger))
    }

    fn reservation(&self, account: usize, bytes: u64) -> Result<Reservation, TierError> {
        let space = self.inner.spaces.iter().find(|space| space.ledger().account == account);
        let space = space.expect("every account was opened together with its space");
        Ok(Reservation::of_granted(space.ledger(), bytes))
    }
}

impl Drop for Inner {
    /// Whoever still waits holds a space, not the tiers, and nobody is left who could stop it.
    fn drop(&mut self) {
        self.gate.shut_down();
        for space in &self.spaces {
            space.shut_down();
        }
    }
}

/// Opens accounts and makes spaces, in the same order.
struct SpaceMaker<'a> {
    gate: &'a Arc<Gate>,
    spaces: Vec<Space>,
}

impl SpaceMaker<'_> {
    fn add(
        &mut self,
        id: SpaceId,
        capacity_bytes: u64,
        thresholds: Thresholds,
        granule_bytes: u64,
        numa_node: Option<u32>,
        memory: impl FnOnce(&Arc<Ledger>) -> Result<Memory, TierError>,
    ) -> Result<(), TierError> {
        thresholds.check()?;
        if self.spaces.iter().any(|space| space.id() == id) {
            return Err(TierError::bad_setting("spaces", format!("{id} is there twice")));
        }
        let limit_bytes = thresholds.reservation_limit.of(capacity_bytes);
        let account = Account::new(capacity_bytes, limit_bytes, granule_bytes);
        let account = self.gate.write(|book| book.open_account(account));
        let channel = NotificationChannel::new(self.gate.clock().clone());
        let ledger = Arc::new(Ledger { id, account, granule_bytes, gate: self.gate.clone(), channel });
        let memory = memory(&ledger)?;
        self.spaces.push(Space::new(ledger, thresholds, memory, numa_node));
        Ok(())
    }
}
