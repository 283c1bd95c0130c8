//! The tiers of a machine: spaces on GPU, host and disk, set up from options.

use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

use headwater_tiers::spill::Route;
use headwater_tiers::{
    DiskConfig, Fraction, GpuConfig, HostConfig, Spill, SpillConfig, Thresholds, Tier, Tiers, TiersConfig,
    Wait,
};
use serde_json::{Map, Value, json};

use crate::allocator::{flag, hw_allocator};
use crate::arguments::{Versioned, optional_text, out, owned_text, read_versioned};
use crate::guard::guarded;
use crate::handles::{self, handle_kind};
use crate::layers::Base;
use crate::status::{Failure, hw_status};

/// The tiers of a machine.
#[derive(Debug)]
pub struct hw_tiers {
    _opaque: [u8; 0],
}

handle_kind!(hw_tiers, 9, "tiers handle", TiersObject);

/// A kind of memory, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum hw_tier {
    /// Device memory.
    Gpu = 0,
    /// Pinned host memory.
    Host = 1,
    /// Files.
    Disk = 2,
}

/// How the tiers are set up. Zeros are defaults, or "no such space".
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct hw_tiers_options {
    /// Set by the caller to `sizeof(hw_tiers_options)`.
    pub struct_bytes: u64,
    /// Gives out the memory of the GPU space.
    pub allocator: *const hw_allocator,
    /// The hard cap on what the GPU space gives out.
    pub gpu_bytes: u64,
    /// The hard cap on pinned host memory; 0 for no HOST space.
    pub host_bytes: u64,
    /// The NUMA node of the host memory.
    pub host_numa_node: u32,
    /// 1 to have an engine that spills by itself; it needs a HOST space.
    pub spill: u32,
    /// The size of a pinned block, a multiple of 4096; 0 for 1 MiB.
    pub host_block_bytes: u64,
    /// How many blocks are pinned in one go; 0 for 128.
    pub host_blocks_per_slab: u32,
    /// How many slabs are pinned at the start.
    pub host_initial_slabs: u32,
    /// A directory on the disk to spill to; null for no DISK space.
    pub disk_directory: *const c_char,
    /// The hard cap on what the DISK space gives out.
    pub disk_bytes: u64,
    /// How much of each capacity reservations can take, from 0 to 1; 0 for 0.85.
    pub reservation_limit: f64,
    /// Use at or above this share calls for data to be moved down; 0 for 0.85.
    pub downgrade_trigger: f64,
    /// Use at or below this share is low enough to stop; 0 for 0.65.
    pub downgrade_stop: f64,
}

impl Default for hw_tiers_options {
    fn default() -> Self {
        Self {
            struct_bytes: size_of::<Self>() as u64,
            allocator: std::ptr::null(),
            gpu_bytes: 0,
            host_bytes: 0,
            host_numa_node: 0,
            spill: 0,
            host_block_bytes: 0,
            host_blocks_per_slab: 0,
            host_initial_slabs: 0,
            disk_directory: std::ptr::null(),
            disk_bytes: 0,
            reservation_limit: 0.0,
            downgrade_trigger: 0.0,
            downgrade_stop: 0.0,
        }
    }
}

// SAFETY: numbers and raw pointers, and the size first.
unsafe impl Versioned for hw_tiers_options {}

/// What is behind a handle to tiers.
#[derive(Debug)]
pub struct TiersObject {
    // In this order: the engine ends before the tiers, and both before the memory.
    pub(crate) spill: Option<Spill>,
    pub(crate) tiers: Tiers,
    pub(crate) base: Arc<Base>,
}

pub(crate) fn tier_of(tier: u32) -> Result<Tier, Failure> {
    match tier {
        tier if tier == hw_tier::Gpu as u32 => Ok(Tier::Gpu),
        tier if tier == hw_tier::Host as u32 => Ok(Tier::Host),
        tier if tier == hw_tier::Disk as u32 => Ok(Tier::Disk),
        other => Err(Failure::argument(format!("{other} is no hw_tier"))),
    }
}

pub(crate) fn tier_number(tier: Tier) -> u32 {
    match tier {
        Tier::Gpu => hw_tier::Gpu as u32,
        Tier::Host => hw_tier::Host as u32,
        Tier::Disk => hw_tier::Disk as u32,
    }
}

/// A deadline from now. There is no waiting for ever: the longest is some 49 days.
pub(crate) fn wait_of(timeout_ms: u32) -> Wait {
    Wait::at_most(Duration::from_millis(timeout_ms.into()))
}

/// Sets up tiers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_tiers_create(
    options: *const hw_tiers_options,
    tiers: *mut *mut hw_tiers,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(tiers, "tiers") }?;
        // SAFETY: as above.
        let options = unsafe { read_versioned(options, hw_tiers_options::default(), "options") }?;
        // SAFETY: as above.
        let disk = unsafe { optional_text(options.disk_directory, "options.disk_directory") }?;
        let allocator = handles::get(options.allocator)?;
        let config = config_of(&options, disk, &allocator.base)?;
        let tiers = Tiers::new(config)?;
        let spill = match flag(options.spill, "options.spill")? {
            true => Some(Spill::new(tiers.clone(), SpillConfig::default())?),
            false => None,
        };
        place.write(handles::make(TiersObject { spill, tiers, base: Arc::clone(&allocator.base) }));
        Ok(())
    })
}

fn config_of(options: &hw_tiers_options, disk: Option<&str>, base: &Base) -> Result<TiersConfig, Failure> {
    let share = |given: f64, default: Fraction| {
        if given == 0.0 { Ok(default) } else { Fraction::new(given) }
    };
    let defaults = Thresholds::default();
    let thresholds = Thresholds {
        reservation_limit: share(options.reservation_limit, defaults.reservation_limit)?,
        downgrade_trigger: share(options.downgrade_trigger, defaults.downgrade_trigger)?,
        downgrade_stop: share(options.downgrade_stop, defaults.downgrade_stop)?,
    };
    let mut gpu = GpuConfig::new(Arc::clone(&base.allocator), options.gpu_bytes);
    gpu.thresholds = thresholds;
    let mut config = TiersConfig::default().driver(Arc::clone(base.device.driver())).gpu(gpu);
    if options.host_bytes > 0 {
        let mut host = HostConfig::new(options.host_numa_node, options.host_bytes);
        host.thresholds = thresholds;
        host.pinned.initial_slabs = options.host_initial_slabs;
        if options.host_block_bytes > 0 {
            host.pinned.block_bytes = options.host_block_bytes;
        }
        if options.host_blocks_per_slab > 0 {
            host.pinned.blocks_per_slab = options.host_blocks_per_slab;
        }
        config = config.host(host);
    }
    if let Some(directory) = disk {
        let mut disk = DiskConfig::new(directory, options.disk_bytes);
        disk.thresholds = thresholds;
        config = config.disk(disk);
    }
    Ok(config)
}

/// Shuts tiers down: waits end with `HW_STATUS_CANCELLED`, movers finish what they do. Reservations and buffers stay good until they are
/// released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_tiers_destroy(tiers: *mut hw_tiers) -> hw_status {
    guarded(|| {
        let object = handles::take(tiers)?;
        if let Some(spill) = &object.spill {
            spill.shut_down();
        }
        object.tiers.shut_down();
        Ok(())
    })
}

/// Moves data out of a tier's space until `needed_bytes` are freed or nothing more can go. `freed_bytes` may be null. Needs `spill`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_tiers_make_room(
    tiers: *const hw_tiers,
    tier: u32,
    place: u32,
    needed_bytes: u64,
    freed_bytes: *mut u64,
) -> hw_status {
    guarded(|| {
        let object = handles::get(tiers)?;
        let space = crate::reservations::space_of(&object, tier, place)?;
        let freed = object.spill()?.make_room(space.id(), needed_bytes);
        // SAFETY: the caller's promise.
        unsafe { crate::memory::optional_out(freed_bytes, "freed_bytes", freed) }
    })
}

impl TiersObject {
    /// The spill engine.
    ///
    /// # Errors
    /// `HW_STATUS_NOT_SUPPORTED` where the tiers were made without.
    pub(crate) fn spill(&self) -> Result<&Spill, Failure> {
        let missing = "the tiers were made without `spill`";
        self.spill.as_ref().ok_or_else(|| Failure::new(hw_status::NotSupported, missing))
    }
}

/// All spaces and what the spill engine has counted, as one JSON object. Give the text back with `hw_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_tiers_json(tiers: *const hw_tiers, text: *mut *mut c_char) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(text, "text") }?;
        let object = handles::get(tiers)?;
        let spaces: Vec<Value> = object
            .tiers
            .spaces()
            .iter()
            .map(|space| {
                let usage = space.usage();
                json!({
                    "space": space.id().to_string(),
                    "tier": tier_number(space.tier()),
                    "place": space.id().place(),
                    "capacity_bytes": usage.capacity_bytes,
                    "limit_bytes": usage.limit_bytes,
                    "reserved_bytes": usage.reserved_bytes,
                    "unreserved_bytes": usage.unreserved_bytes,
                    "used_bytes": usage.used_bytes(),
                    "used_bytes_peak": usage.used_bytes_peak,
                    "waiting": usage.waiting,
                    "waiting_bytes": usage.waiting_bytes,
                })
            })
            .collect();
        let spill = object.spill.as_ref().map(spill_json);
        place.write(owned_text(&json!({ "spaces": spaces, "spill": spill }).to_string())?);
        Ok(())
    })
}

fn spill_json(spill: &Spill) -> Value {
    let figures = spill.figures();
    let routes: Map<String, Value> = Route::ALL
        .iter()
        .map(|route| {
            let moved = figures.route(*route);
            let value = json!({
                "moves": moved.moves,
                "bytes": moved.bytes,
                "seconds": moved.time.as_secs_f64(),
                "failed": moved.failed,
                "cancelled": moved.cancelled,
            });
            (route.name().to_owned(), value)
        })
        .collect();
    json!({
        "routes": routes,
        "moves_in_flight": figures.moves_in_flight,
        "waiting": figures.waiting,
        "callbacks": figures.callbacks,
        "callbacks_helped": figures.callbacks_helped,
        "no_room_below": figures.no_room_below,
        "bytes_by_tier": figures.bytes_by_tier,
    })
}
