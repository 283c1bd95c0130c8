//! Reservations: promises of bytes in a space, and device memory inside of them.

use headwater::Request;
use headwater_driver::DeviceId;
use headwater_tiers::{FailAtOnce, OverPolicy, Reservation, ReservedBlock, Space, SpaceId, Strategy, Tier};
use std::sync::Arc;

use crate::arguments::{Versioned, check_versioned, fill_versioned, out, slice};
use crate::device::{hw_device_ptr, hw_stream};
use crate::guard::guarded;
use crate::handles::{self, handle_kind};
use crate::memory::optional_out;
use crate::status::{Failure, hw_status};
use crate::tiers::{TiersObject, hw_tiers, tier_number, tier_of, wait_of};

/// A promise of bytes in one space.
#[derive(Debug)]
pub struct hw_reservation {
    _opaque: [u8; 0],
}

/// Device memory that belongs to a reservation.
#[derive(Debug)]
pub struct hw_reserved_block {
    _opaque: [u8; 0],
}

handle_kind!(hw_reservation, 10, "reservation", Reserved);
handle_kind!(hw_reserved_block, 11, "reserved block", Held);

/// What is behind a reservation's handle.
#[derive(Debug)]
pub struct Reserved {
    reservation: Reservation,
    tiers: Arc<TiersObject>,
}

/// What is behind a reserved block's handle.
#[derive(Debug)]
pub struct Held {
    block: ReservedBlock,
    tiers: Arc<TiersObject>,
}

/// A reservation at one moment.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct hw_reservation_facts {
    /// Set by the caller to `sizeof(hw_reservation_facts)`.
    pub struct_bytes: u64,
    /// An `hw_tier`.
    pub tier: u32,
    /// The device's ordinal, the NUMA node or the number of the mount.
    pub place: u32,
    /// What is promised.
    pub bytes: u64,
    /// What is allocated from it.
    pub in_use_bytes: u64,
    /// What is promised and not allocated.
    pub unused_bytes: u64,
}

// SAFETY: numbers alone, and the size first.
unsafe impl Versioned for hw_reservation_facts {}

/// The space that C names by tier and place.
pub(crate) fn space_of(object: &TiersObject, tier: u32, place: u32) -> Result<Space, Failure> {
    let id = match tier_of(tier)? {
        Tier::Gpu => SpaceId::gpu(DeviceId(place)),
        Tier::Host => SpaceId::host(place),
        Tier::Disk => SpaceId::disk(place),
    };
    Ok(object.tiers.space(id)?)
}

/// Any space of the tiers in the list, the first tier first.
///
/// # Safety
/// As [`slice`].
unsafe fn strategy_of(wanted: *const u32, count: usize) -> Result<Strategy, Failure> {
    // SAFETY: passed on.
    let wanted = unsafe { slice(wanted, count, "wanted_tiers") }?;
    Ok(Strategy::Tiers(wanted.iter().map(|tier| tier_of(*tier)).collect::<Result<_, _>>()?))
}

/// Reserves exactly `bytes` in a space of the tiers in `wanted_tiers` (values of `hw_tier`, the most wanted first), and waits for all of them
/// at once, `timeout_ms` at most. Host space is reserved in whole blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reserve(
    tiers: *const hw_tiers,
    wanted_tiers: *const u32,
    wanted_count: usize,
    bytes: u64,
    timeout_ms: u32,
    reservation: *mut *mut hw_reservation,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(reservation, "reservation") }?;
        let tiers = handles::get(tiers)?;
        // SAFETY: as above.
        let strategy = unsafe { strategy_of(wanted_tiers, wanted_count) }?;
        let reservation = tiers.tiers.request_reservation(&strategy, bytes, &wait_of(timeout_ms))?;
        place.write(handles::make(Reserved { reservation, tiers }));
        Ok(())
    })
}

/// The same without waiting: where there is no room now, the answer is `HW_STATUS_OK` and a null reservation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reserve_or_null(
    tiers: *const hw_tiers,
    wanted_tiers: *const u32,
    wanted_count: usize,
    bytes: u64,
    reservation: *mut *mut hw_reservation,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(reservation, "reservation") }?;
        let tiers = handles::get(tiers)?;
        // SAFETY: as above.
        let strategy = unsafe { strategy_of(wanted_tiers, wanted_count) }?;
        let found = tiers.tiers.request_reservation_or_null(&strategy, bytes)?;
        let handle =
            found.map(|reservation| handles::make(Reserved { reservation, tiers: Arc::clone(&tiers) }));
        place.write(handle.unwrap_or(std::ptr::null_mut()));
        Ok(())
    })
}

/// Reserves `bytes` in one space now, or as much as there is, perhaps nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reserve_upto(
    tiers: *const hw_tiers,
    tier: u32,
    place: u32,
    bytes: u64,
    reservation: *mut *mut hw_reservation,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let result = unsafe { out(reservation, "reservation") }?;
        let tiers = handles::get(tiers)?;
        let reservation = space_of(&tiers, tier, place)?.make_reservation_upto(bytes)?;
        result.write(handles::make(Reserved { reservation, tiers }));
        Ok(())
    })
}

/// A reservation at this moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reservation_get_facts(
    reservation: *const hw_reservation,
    facts: *mut hw_reservation_facts,
) -> hw_status {
    guarded(|| {
        let object = handles::get(reservation)?;
        let reservation = &object.reservation;
        let found = hw_reservation_facts {
            struct_bytes: 0,
            tier: tier_number(reservation.space().tier()),
            place: reservation.space().place(),
            bytes: reservation.bytes(),
            in_use_bytes: reservation.in_use_bytes(),
            unused_bytes: reservation.unused_bytes(),
        };
        // SAFETY: the caller's promise.
        unsafe { fill_versioned(facts, &found, "facts") }
    })
}

/// Promises `bytes` more, and waits for them `timeout_ms` at most; 0 does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reservation_grow(
    reservation: *const hw_reservation,
    bytes: u64,
    timeout_ms: u32,
) -> hw_status {
    guarded(|| {
        let object = handles::get(reservation)?;
        let grown = match timeout_ms {
            0 => object.reservation.grow(bytes),
            timeout_ms => object.reservation.grow_within(bytes, &wait_of(timeout_ms)),
        };
        Ok(grown?)
    })
}

/// Gives back `bytes` of what is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reservation_shrink(reservation: *const hw_reservation, bytes: u64) -> hw_status {
    guarded(|| Ok(handles::get(reservation)?.reservation.shrink(bytes)?))
}

/// Gives back all that is not in use. `given_back_bytes` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reservation_shrink_to_fit(
    reservation: *const hw_reservation,
    given_back_bytes: *mut u64,
) -> hw_status {
    guarded(|| {
        let bytes = handles::get(reservation)?.reservation.shrink_to_fit();
        // SAFETY: the caller's promise.
        unsafe { optional_out(given_back_bytes, "given_back_bytes", bytes) }
    })
}

/// Gives a reservation back and ends its handle. What is in use goes back when its block does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reservation_release(reservation: *mut hw_reservation) -> hw_status {
    guarded(|| handles::take(reservation).map(drop))
}

/// Allocates device memory within a reservation of a GPU space. `alignment_bytes` is 0 for 256. A request beyond the reservation is refused with
/// `HW_STATUS_NO_ROOM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reservation_allocate(
    reservation: *const hw_reservation,
    bytes: u64,
    alignment_bytes: u64,
    stream: hw_stream,
    block: *mut *mut hw_reserved_block,
    ptr: *mut hw_device_ptr,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (place, address) = unsafe { (out(block, "block")?, out(ptr, "ptr")?) };
        let object = handles::get(reservation)?;
        // SAFETY: as above.
        let stream = unsafe { object.tiers.base.device.stream(stream) }?;
        let mut request = Request::new(bytes, stream);
        if alignment_bytes > 0 {
            request = request.aligned_to(alignment_bytes);
        }
        let space = object.tiers.tiers.space(object.reservation.space())?;
        let block = space.allocate(&object.reservation, request, OverPolicy::Fail, &FailAtOnce)?;
        address.write(block.ptr().raw());
        place.write(handles::make(Held { block, tiers: Arc::clone(&object.tiers) }));
        Ok(())
    })
}

/// Announces that work in `stream` uses a reserved block too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reserved_block_record_stream(
    block: *const hw_reserved_block,
    stream: hw_stream,
) -> hw_status {
    guarded(|| {
        let held = handles::get(block)?;
        // SAFETY: the caller's promise.
        let stream = unsafe { held.tiers.base.device.stream(stream) }?;
        Ok(held.block.record_stream(stream)?)
    })
}

/// Gives a reserved block back, to the allocator and to its reservation, and ends its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reserved_block_free(block: *mut hw_reserved_block) -> hw_status {
    guarded(|| handles::take(block).map(drop))
}

/// The gauge of a space at one moment.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct hw_space_use {
    /// Set by the caller to `sizeof(hw_space_use)`.
    pub struct_bytes: u64,
    /// The hard cap.
    pub capacity_bytes: u64,
    /// The most that can be promised.
    pub limit_bytes: u64,
    /// What is promised.
    pub reserved_bytes: u64,
    /// What is allocated beyond or outside of reservations.
    pub unreserved_bytes: u64,
    /// The most that was ever taken.
    pub used_bytes_peak: u64,
    /// How many requests wait for this space.
    pub waiting: u64,
    /// How many bytes they want.
    pub waiting_bytes: u64,
}

// SAFETY: numbers alone, and the size first.
unsafe impl Versioned for hw_space_use {}

/// The gauge of a space.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_tiers_space_use(
    tiers: *const hw_tiers,
    tier: u32,
    place: u32,
    usage: *mut hw_space_use,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { check_versioned(usage, "usage") }?;
        let found = space_of(&*handles::get(tiers)?, tier, place)?.usage();
        let found = hw_space_use {
            struct_bytes: 0,
            capacity_bytes: found.capacity_bytes,
            limit_bytes: found.limit_bytes,
            reserved_bytes: found.reserved_bytes,
            unreserved_bytes: found.unreserved_bytes,
            used_bytes_peak: found.used_bytes_peak,
            waiting: found.waiting as u64,
            waiting_bytes: found.waiting_bytes,
        };
        // SAFETY: as above.
        unsafe { fill_versioned(usage, &found, "usage") }
    })
}
