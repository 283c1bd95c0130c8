//! The out-of-memory callback: a caller's last chance to free memory.

use std::ffi::c_void;
use std::sync::Arc;

use headwater::adaptors::WithFailureCallback;
use headwater::{Allocator, OutOfMemoryReport};
use parking_lot::Mutex;

use crate::allocator::hw_allocator;
use crate::guard::guarded;
use crate::handles;
use crate::layers::Extra;
use crate::status::{hw_oom_report, hw_status};

/// Called when memory ran out, after the cache was given up. Returns 1 where it freed something and asking again may help, 0
/// otherwise.
///
/// It runs in the thread that asked, with no lock held, and from several threads at once: it may give blocks back, empty the cache, ask
/// for statistics. It does not return by `longjmp` or an exception.
pub type hw_oom_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, report: *const hw_oom_report) -> u32>;

/// A caller's pointer, handed back as it was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User(pub(crate) *mut c_void);

// SAFETY: never followed here; whoever sets a callback promises that it can be called from any thread with this pointer.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

/// The callback in force.
#[derive(Debug, Default)]
pub(crate) struct OomSwitch {
    callback: Mutex<Option<(unsafe extern "C" fn(*mut c_void, *const hw_oom_report) -> u32, User)>>,
}

impl OomSwitch {
    pub(crate) fn clear(&self) {
        *self.callback.lock() = None;
    }

    /// Calls back, with no lock held. Says whether asking again may help.
    pub(crate) fn call(&self, report: &OutOfMemoryReport) -> bool {
        let Some((callback, user)) = *self.callback.lock() else { return false };
        let report = hw_oom_report::from(report);
        // SAFETY: whoever set it promised that it can be called from any thread with its pointer.
        unsafe { callback(user.0, &raw const report) != 0 }
    }
}

/// Asks `switch` where `inner` runs out.
pub(crate) fn with_switch(inner: Arc<dyn Allocator>, switch: Arc<OomSwitch>) -> Arc<dyn Allocator> {
    Arc::new(WithFailureCallback::new(inner, move |report| switch.call(report)))
}

/// Sets the out-of-memory callback; null takes it out. It replaces an earlier one. With a caching policy it is asked
/// before streams are waited for, and belongs to all handles around the same memory; with others, after everything else, and to this
/// handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_set_oom_callback(
    allocator: *const hw_allocator,
    callback: hw_oom_callback,
    user: *mut c_void,
) -> hw_status {
    guarded(|| {
        let object = handles::get(allocator)?;
        *object.oom.callback.lock() = callback.map(|callback| (callback, User(user)));
        match &object.base.caching {
            Some(caching) => {
                let switch = Arc::clone(&object.oom);
                let call = move |report: &OutOfMemoryReport| switch.call(report);
                caching.set_failure_callback(callback.map(|_| Arc::new(call) as _));
            }
            None => object.put_in(Extra::Oom),
        }
        Ok(())
    })
}
