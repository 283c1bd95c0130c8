//! Allocators: made from options, wrapped, limited and destroyed.

use std::ffi::c_char;
use std::sync::Arc;
use std::time::SystemTime;

use headwater::adaptors::Limited;
use headwater::binned::BinnedOptions;
use headwater::caching::CachingAllocator;
use headwater::config::{Backing, Config};
use headwater::graph::GraphAllocator;
use headwater::{Allocator, Binned, Direct};
use headwater_driver::DeviceId;

use crate::arguments::{Versioned, optional_text, out, owned_text, read_versioned};
use crate::device::{Device, hw_device};
use crate::guard::guarded;
use crate::handles::{self, handle_kind};
use crate::layers::{AllocatorObject, Base, make_allocator, take_allocator};
use crate::status::{Failure, hw_status};

/// An allocator of device memory. Used from any thread.
#[derive(Debug)]
pub struct hw_allocator {
    _opaque: [u8; 0],
}

handle_kind!(hw_allocator, 2, "allocator", AllocatorObject);

/// How memory is managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum hw_policy {
    /// Caching: paged where the device can, classic otherwise; or as the settings say.
    Auto = 0,
    /// No cache: every request is a driver call.
    Direct = 1,
    /// Blocks of fixed sizes, cached by thread: the fastest.
    Binned = 2,
    /// PyTorch's rules. Without settings exactly those; with settings as they say.
    Classic = 3,
    /// One arena of addresses, pages mapped into it on demand: the least fragmentation.
    Paged = 4,
}

/// How an allocator is made. Zeros are defaults: `hw_allocator_options options = {sizeof options};` is a good start.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct hw_allocator_options {
    /// Set by the caller to `sizeof(hw_allocator_options)`.
    pub struct_bytes: u64,
    /// An `hw_policy`.
    pub policy: u32,
    /// 1 to have private pools for captured graphs. A request then costs one load more.
    pub graph_pools: u32,
    /// Settings as `key:value,key:value`, in the grammar of `PYTORCH_CUDA_ALLOC_CONF` (docs/configuration.md); null for none. The
    /// policies direct and binned heed the limits in it and nothing else.
    pub settings: *const c_char,
    /// 1 to take the settings from the environment (`HEADWATER_ALLOC_CONF`, then PyTorch's variables); `settings` is then null.
    pub settings_from_environment: u32,
    /// Zero.
    pub reserved: u32,
    /// The most that is reserved from the driver at any time; 0 for no limit of its own. With a limit in the settings as well, the
    /// smaller one holds.
    pub limit_bytes: u64,
}

impl Default for hw_allocator_options {
    fn default() -> Self {
        Self {
            struct_bytes: size_of::<Self>() as u64,
            policy: hw_policy::Auto as u32,
            graph_pools: 0,
            settings: std::ptr::null(),
            settings_from_environment: 0,
            reserved: 0,
            limit_bytes: 0,
        }
    }
}

// SAFETY: numbers and a raw pointer, and the size first.
unsafe impl Versioned for hw_allocator_options {}

/// A yes-or-no field of a struct.
pub(crate) fn flag(value: u32, name: &str) -> Result<bool, Failure> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Failure::argument(format!("`{name}` is {other}, and only 0 and 1 make sense"))),
    }
}

/// Makes an allocator of a device's memory. `options` may be null: then all are defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_allocator_create(
    device: *const hw_device,
    options: *const hw_allocator_options,
    allocator: *mut *mut hw_allocator,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(allocator, "allocator") }?;
        let device = handles::get(device)?;
        let defaults = hw_allocator_options::default();
        let options = match options.is_null() {
            true => defaults,
            // SAFETY: as above.
            false => unsafe { read_versioned(options, defaults, "options") }?,
        };
        if options.reserved != 0 {
            return Err(Failure::argument("`options.reserved` is not zero"));
        }
        // SAFETY: as above.
        let settings = unsafe { optional_text(options.settings, "options.settings") }?;
        let base = build(device, &options, settings)?;
        let top = Arc::clone(&base.allocator);
        place.write(make_allocator(AllocatorObject::new(Arc::new(base), top)));
        Ok(())
    })
}

/// The allocator that the options describe.
pub(crate) fn build(
    device: Arc<Device>,
    options: &hw_allocator_options,
    settings: Option<&str>,
) -> Result<Base, Failure> {
    let config = match (settings, flag(options.settings_from_environment, "settings_from_environment")?) {
        (Some(_), true) => {
            return Err(Failure::argument("`settings` and `settings_from_environment` exclude each other"));
        }
        (Some(text), false) => Some(Config::parse(text)?),
        (None, true) => Some(Config::from_env()?),
        (None, false) => None,
    };
    let (driver, id) = (Arc::clone(device.driver()), device.id());
    let total_bytes = driver.device_properties(id)?.total_bytes;
    let own_limit = (options.limit_bytes > 0).then_some(options.limit_bytes);
    let config_limit = config.as_ref().and_then(|config| config.limit_bytes(total_bytes));
    let limit_bytes = match (own_limit, config_limit) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    let (mut caching, mut binned, mut graphs) = (None, None, None);
    let mut cached = |config: Config| {
        let made = CachingAllocator::new(Arc::clone(&driver), id, config)?;
        if limit_bytes.is_some() {
            made.set_limit_bytes(limit_bytes);
        }
        caching = Some(Arc::clone(&made));
        Ok::<Arc<dyn Allocator>, Failure>(made)
    };
    let mut allocator: Arc<dyn Allocator> = match options.policy {
        policy if policy == hw_policy::Auto as u32 => cached(config.unwrap_or_default())?,
        policy if policy == hw_policy::Classic as u32 => {
            cached(config.unwrap_or_else(Config::pytorch_rules).with_backing(Backing::Classic))?
        }
        policy if policy == hw_policy::Paged as u32 => {
            cached(config.unwrap_or_default().with_backing(Backing::Paged))?
        }
        policy if policy == hw_policy::Direct as u32 => match limit_bytes {
            Some(limit_bytes) => Arc::new(Direct::with_limit(driver, id, limit_bytes)?),
            None => Arc::new(Direct::new(driver, id)?),
        },
        policy if policy == hw_policy::Binned as u32 => {
            let options = BinnedOptions { limit_bytes, ..BinnedOptions::default() };
            let made = Arc::new(Binned::with_options(driver, id, options)?);
            binned = Some(Arc::clone(&made));
            made
        }
        other => return Err(Failure::argument(format!("{other} is no hw_policy"))),
    };
    if flag(options.graph_pools, "graph_pools")? {
        let made = match &caching {
            Some(caching) => GraphAllocator::over_caching(caching)?,
            None => GraphAllocator::new(allocator)?,
        };
        graphs = Some(Arc::clone(&made));
        allocator = made;
    }
    Ok(Base { device, caching, binned, graphs, allocator, made: SystemTime::now() })
}

/// Makes another handle around the same memory, whose own callers hold at most `limit_bytes` of it at any time. What it counts
/// is what they asked for. Several such handles share out one allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_allocator_create_limited(
    inner: *const hw_allocator,
    limit_bytes: u64,
    allocator: *mut *mut hw_allocator,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(allocator, "allocator") }?;
        let inner = handles::get(inner)?;
        let limited = Arc::new(Limited::new(inner.top(), limit_bytes));
        place.write(make_allocator(AllocatorObject::new(Arc::clone(&inner.base), limited)));
        Ok(())
    })
}

/// Destroys a handle, and with the last handle the memory.
///
/// Where callers still hold blocks and this is the last handle, it is refused with `HW_STATUS_STILL_IN_USE` and the number of blocks in
/// the message, unless `force` is 1: then their memory goes too, once all work that uses it has finished. No other thread is
/// inside of a call with this handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_allocator_destroy(allocator: *mut hw_allocator, force: u32) -> hw_status {
    guarded(|| {
        let force = flag(force, "force")?;
        let object = handles::get(allocator)?;
        // Other handles, tiers and graphs keep the memory, and then nothing is lost with this one.
        let is_last = Arc::strong_count(&object.base) == 1;
        let stats = object.base.allocator.stats();
        let live = stats.allocation.all.current;
        if is_last && !force && live > 0 {
            let bytes = stats.requested_bytes.all.current;
            let problem = format!("{live} blocks ({bytes} bytes) were not given back; force it to free them");
            return Err(Failure::new(hw_status::StillInUse, problem));
        }
        // Callbacks end with the handle, also where the memory lives on.
        take_allocator(allocator)?.end();
        Ok(())
    })
}

/// The policy in force: `direct`, `binned`, `classic` or `paged`. Give the text back with `hw_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_allocator_policy(
    allocator: *const hw_allocator,
    name: *mut *mut c_char,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(name, "name") }?;
        place.write(owned_text(handles::get(allocator)?.base.allocator.name())?);
        Ok(())
    })
}

/// The settings that are not the default, as a settings string; empty for policies that have none. Give the text back with
/// `hw_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_allocator_settings(
    allocator: *const hw_allocator,
    settings: *mut *mut c_char,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(settings, "settings") }?;
        let object = handles::get(allocator)?;
        let text = object.base.caching.as_ref().map(|caching| caching.config().to_settings_string());
        place.write(owned_text(&text.unwrap_or_default())?);
        Ok(())
    })
}

/// From now on at most `limit_bytes` are reserved from the driver; `UINT64_MAX` is no limit. What is reserved beyond a smaller limit
/// stays until it is released. `HW_STATUS_NOT_SUPPORTED` for direct and binned, whose limit is an option.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_set_limit_bytes(allocator: *const hw_allocator, limit_bytes: u64) -> hw_status {
    guarded(|| set_limit(&handles::get(allocator)?.base, (limit_bytes != u64::MAX).then_some(limit_bytes)))
}

/// The same as a share of the device's memory, between 0 and 1; 1 is no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_set_memory_fraction(allocator: *const hw_allocator, fraction: f64) -> hw_status {
    guarded(|| {
        let object = handles::get(allocator)?;
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Failure::argument(format!("a fraction of {fraction} is not between 0 and 1")));
        }
        let device = &object.base.device;
        let total_bytes = device.driver().device_properties(device.id())?.total_bytes;
        // Rounded down, as the setting is.
        let limit_bytes = (fraction < 1.0).then_some((fraction * total_bytes as f64) as u64);
        set_limit(&object.base, limit_bytes)
    })
}

pub(crate) fn set_limit(base: &Base, limit_bytes: Option<u64>) -> Result<(), Failure> {
    let caching = base.caching()?;
    match &base.graphs {
        Some(graphs) => graphs.set_limit_bytes(limit_bytes),
        None => caching.set_limit_bytes(limit_bytes),
    }
    Ok(())
}

/// The limit in force; `UINT64_MAX` where there is none. `HW_STATUS_NOT_SUPPORTED` for direct and binned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_get_limit_bytes(
    allocator: *const hw_allocator,
    limit_bytes: *mut u64,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(limit_bytes, "limit_bytes") }?;
        place.write(limit_of(&handles::get(allocator)?.base)?.unwrap_or(u64::MAX));
        Ok(())
    })
}

pub(crate) fn limit_of(base: &Base) -> Result<Option<u64>, Failure> {
    let caching = base.caching()?;
    Ok(match &base.graphs {
        Some(graphs) => graphs.limit_bytes(),
        None => caching.limit_bytes(),
    })
}

/// Gives kernels of the device with ordinal `peer` access to the allocator's memory, what there is and what will be. Twice is no
/// error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_enable_peer(allocator: *const hw_allocator, peer: u32) -> hw_status {
    guarded(|| Ok(handles::get(allocator)?.base.caching()?.enable_peer(DeviceId(peer))?))
}
