//! Streams and events of a device, for programs that have no CUDA of their own.

use headwater_driver::{Event, EventOptions, StreamOptions};

use crate::allocator::flag;
use crate::arguments::out;
use crate::device::{hw_device, hw_stream};
use crate::guard::guarded;
use crate::handles;
use crate::status::hw_status;

/// An event's value (`CUevent`).
pub type hw_event = u64;

/// Makes a stream. `non_blocking` is 1 for one that is not ordered against the legacy default stream; smaller priorities run first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_stream_create(
    device: *const hw_device,
    non_blocking: u32,
    priority: i32,
    stream: *mut hw_stream,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(stream, "stream") }?;
        let device = handles::get(device)?;
        let options = StreamOptions { non_blocking: flag(non_blocking, "non_blocking")?, priority };
        let made = device.driver().stream_create(device.id(), options)?;
        device.streams.add(made.raw());
        place.write(made.raw());
        Ok(())
    })
}

/// Destroys a stream that `hw_stream_create` made; work in it still finishes. Allocators that it was used with are told first, with
/// `hw_forget_stream`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_stream_destroy(device: *const hw_device, stream: hw_stream) -> hw_status {
    guarded(|| {
        let device = handles::get(device)?;
        // Not adopted: only a stream of ours can be destroyed here.
        let stream = headwater_driver::Stream::from_raw(device.id(), stream);
        device.driver().stream_destroy(stream)?;
        device.streams.remove(stream.raw());
        Ok(())
    })
}

/// Waits until all work in the stream has finished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_stream_synchronize(device: *const hw_device, stream: hw_stream) -> hw_status {
    guarded(|| {
        let device = handles::get(device)?;
        // SAFETY: the caller's promise.
        Ok(device.driver().stream_synchronize(unsafe { device.stream(stream) }?)?)
    })
}

/// `is_done` becomes 1 where all work in the stream has finished, and 0 otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_stream_query(
    device: *const hw_device,
    stream: hw_stream,
    is_done: *mut u32,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(is_done, "is_done") }?;
        let device = handles::get(device)?;
        // SAFETY: as above.
        place.write(u32::from(device.driver().stream_query(unsafe { device.stream(stream) }?)?));
        Ok(())
    })
}

/// Makes all later work in `stream` wait on the device for what `event` last recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_stream_wait_event(
    device: *const hw_device,
    stream: hw_stream,
    event: hw_event,
) -> hw_status {
    guarded(|| {
        let device = handles::get(device)?;
        // SAFETY: the caller's promise.
        let stream = unsafe { device.stream(stream) }?;
        Ok(device.driver().stream_wait_event(stream, Event::from_raw(device.id(), event))?)
    })
}

/// Makes an event; `timing` is 1 for one that keeps the time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_event_create(
    device: *const hw_device,
    timing: u32,
    event: *mut hw_event,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(event, "event") }?;
        let device = handles::get(device)?;
        let options = EventOptions { timing: flag(timing, "timing")? };
        place.write(device.driver().event_create(device.id(), options)?.raw());
        Ok(())
    })
}

/// Destroys an event. Waits on it that are already queued still hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_event_destroy(device: *const hw_device, event: hw_event) -> hw_status {
    guarded(|| {
        let device = handles::get(device)?;
        Ok(device.driver().event_destroy(Event::from_raw(device.id(), event))?)
    })
}

/// Marks the present end of `stream`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_event_record(
    device: *const hw_device,
    event: hw_event,
    stream: hw_stream,
) -> hw_status {
    guarded(|| {
        let device = handles::get(device)?;
        // SAFETY: the caller's promise.
        let stream = unsafe { device.stream(stream) }?;
        Ok(device.driver().event_record(Event::from_raw(device.id(), event), stream)?)
    })
}

/// Waits until the work before the recorded point has finished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_event_synchronize(device: *const hw_device, event: hw_event) -> hw_status {
    guarded(|| {
        let device = handles::get(device)?;
        Ok(device.driver().event_synchronize(Event::from_raw(device.id(), event))?)
    })
}

/// `is_done` becomes 1 where the work before the recorded point has finished, and 0 otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_event_query(
    device: *const hw_device,
    event: hw_event,
    is_done: *mut u32,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(is_done, "is_done") }?;
        let device = handles::get(device)?;
        place.write(u32::from(device.driver().event_query(Event::from_raw(device.id(), event))?));
        Ok(())
    })
}

/// Microseconds of device time from `start` to `end`, two events that keep the time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_event_elapsed_us(
    device: *const hw_device,
    start: hw_event,
    end: hw_event,
    microseconds: *mut f64,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(microseconds, "microseconds") }?;
        let device = handles::get(device)?;
        let event = |raw| Event::from_raw(device.id(), raw);
        place.write(device.driver().event_elapsed_us(event(start), event(end))?);
        Ok(())
    })
}
