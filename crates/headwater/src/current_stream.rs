//! A current stream per thread and device, for callers who do not pass streams around.
//!
//! Every thread starts with the legacy default stream of every device. A scope changes it: [`CurrentStream::enter`]
//! returns a guard, and the former stream is current again when the guard is dropped. Nothing here calls a driver.

use std::cell::RefCell;
use std::marker::PhantomData;

use headwater_driver::{DeviceId, Stream};

thread_local! {
    // In no order: a thread works with a handful of devices, and a short scan beats a map.
    static CURRENT: RefCell<Vec<Stream>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's current stream of `device`.
pub fn current_stream(device: DeviceId) -> Stream {
    // A thread that is ending has lost its list, and works in the default stream again.
    CURRENT
        .try_with(|current| current.borrow().iter().copied().find(|stream| stream.device() == device))
        .ok()
        .flatten()
        .unwrap_or(Stream::legacy_default(device))
}

fn set_current_stream(stream: Stream) -> Stream {
    let former = current_stream(stream.device());
    // As above: where the list is gone there is nothing to set.
    let _ = CURRENT.try_with(|current| {
        let mut current = current.borrow_mut();
        match current.iter_mut().find(|other| other.device() == stream.device()) {
            Some(place) => *place = stream,
            None => current.push(stream),
        }
    });
    former
}

/// A scope in which a stream is the current one of its device, in the thread that entered it.
///
/// Scopes end in the reverse order of their beginning, as local variables do.
///
/// ```
/// use headwater::{CurrentStream, current_stream};
/// use headwater_driver::{DeviceId, Stream};
///
/// let (device, mine) = (DeviceId(0), Stream::from_raw(DeviceId(0), 0x10));
/// {
///     let _scope = CurrentStream::enter(mine);
///     assert_eq!(current_stream(device), mine);
/// }
/// assert_eq!(current_stream(device), Stream::legacy_default(device));
/// ```
#[derive(Debug)]
#[must_use = "the scope ends when this is dropped"]
pub struct CurrentStream {
    former: Stream,
    // A scope belongs to its thread: it must be neither sent nor shared.
    _thread: PhantomData<*const ()>,
}

impl CurrentStream {
    /// Makes `stream` the current one of its device until the guard is dropped.
    pub fn enter(stream: Stream) -> Self {
        Self { former: set_current_stream(stream), _thread: PhantomData }
    }
}

impl Drop for CurrentStream {
    fn drop(&mut self) {
        set_current_stream(self.former);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_nest_and_devices_do_not_mix() {
        let (zero, one) = (DeviceId(0), DeviceId(1));
        let (a, b, c) = (Stream::from_raw(zero, 16), Stream::from_raw(zero, 32), Stream::from_raw(one, 48));
        let outer = CurrentStream::enter(a);
        {
            let _inner = CurrentStream::enter(b);
            let _other_device = CurrentStream::enter(c);
            assert_eq!((current_stream(zero), current_stream(one)), (b, c));
        }
        assert_eq!((current_stream(zero), current_stream(one)), (a, Stream::legacy_default(one)));
        drop(outer);
        assert_eq!(current_stream(zero), Stream::legacy_default(zero));
    }

    #[test]
    fn a_scope_is_not_seen_by_other_threads() {
        let device = DeviceId(0);
        let _scope = CurrentStream::enter(Stream::from_raw(device, 16));
        let seen = std::thread::spawn(move || current_stream(device)).join().unwrap();
        assert_eq!(seen, Stream::legacy_default(device));
    }
}
