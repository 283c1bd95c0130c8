//! Handles: what C programs hold of objects that live here.
//!
//! A handle looks like a pointer to an opaque struct, so that C's type checks apply, but it is a number: eight bits for the kind,
//! then a count that never comes again. It is looked up, never followed. So a handle that was destroyed, that belongs to another kind,
//! or that is made up is answered with `HW_STATUS_INVALID_HANDLE`, and not with a crash. (The numbers are no addresses that
//! a process can have: following one by mistake faults at once.)
//!
//! A lookup takes a short lock and a reference count. Only allocators are asked for in nanoseconds: `layers.rs` has their
//! short cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::status::{Failure, hw_status};

const KIND_SHIFT: u32 = 56;

/// Bits below the count: the place of an allocator's short cut; zero for everything else.
pub(crate) const PLACE_BITS: u32 = 8;

const _: () = assert!(usize::BITS == 64, "handles are numbers of 64 bits in the shape of pointers");

/// A kind of handle: the opaque struct that C sees.
pub trait Handle: Sized + 'static {
    /// The first bits of every handle of this kind.
    const KIND: u8;
    /// The kind in messages.
    const NOUN: &'static str;
    /// What it stands for.
    type Object: Send + Sync + 'static;

    /// All objects of the kind.
    fn table() -> &'static Table<Self::Object>;
}

/// The objects of one kind.
#[derive(Debug)]
pub struct Table<T> {
    objects: Mutex<Option<FxHashMap<u64, Arc<T>>>>,
    made: AtomicU64,
}

impl<T> Table<T> {
    /// An empty table.
    #[expect(clippy::new_without_default, reason = "only ever made as a static")]
    pub const fn new() -> Self {
        Self { objects: Mutex::new(None), made: AtomicU64::new(1) }
    }

    /// A number of `kind` that no handle ever had, with `place` in its lowest bits.
    pub(crate) fn fresh(&self, kind: u8, place: u64) -> u64 {
        // Relaxed: only that no two are the same matters. 2^48 objects are beyond any process.
        let count = self.made.fetch_add(1, Ordering::Relaxed);
        u64::from(kind) << KIND_SHIFT | count << PLACE_BITS | place
    }

    pub(crate) fn insert(&self, number: u64, object: Arc<T>) {
        self.objects.lock().get_or_insert_default().insert(number, object);
    }

    fn find(&self, number: u64) -> Option<Arc<T>> {
        self.objects.lock().as_ref()?.get(&number).cloned()
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        let mut objects = self.objects.lock();
        let removed = objects.as_mut()?.remove(&number);
        // With the last object goes the table, so that leak checkers find nothing of ours where a program has given all back.
        if objects.as_ref().is_some_and(FxHashMap::is_empty) {
            *objects = None;
        }
        removed
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.objects.lock().as_ref().map_or(0, FxHashMap::len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A new handle for `object`.
pub fn make<H: Handle>(object: H::Object) -> *mut H {
    let number = H::table().fresh(H::KIND, 0);
    H::table().insert(number, Arc::new(object));
    number as usize as *mut H
}

/// The object of a handle, kept alive for as long as the answer lives.
///
/// # Errors
/// `HW_STATUS_INVALID_HANDLE`; `HW_STATUS_INVALID_ARGUMENT` for null.
pub fn get<H: Handle>(handle: *const H) -> Result<Arc<H::Object>, Failure> {
    H::table().find(handle as usize as u64).ok_or_else(|| no_such::<H>(handle))
}

/// Ends a handle, and gives its object to whoever asked.
///
/// # Errors
/// As [`get`].
pub fn take<H: Handle>(handle: *const H) -> Result<Arc<H::Object>, Failure> {
    H::table().remove(handle as usize as u64).ok_or_else(|| no_such::<H>(handle))
}

/// Why a handle is none.
#[cold]
pub(crate) fn no_such<H: Handle>(handle: *const H) -> Failure {
    let number = handle as usize as u64;
    let noun = H::NOUN;
    if number == 0 {
        return Failure::argument(format!("the {noun} is null"));
    }
    let problem = if (number >> KIND_SHIFT) as u8 == H::KIND {
        "was destroyed, or never was one"
    } else {
        "is not one of Headwater's"
    };
    Failure::new(hw_status::InvalidHandle, format!("the {noun} {number:#x} {problem}"))
}

/// The table of a kind.
macro_rules! handle_kind {
    ($name:ident, $kind:literal, $noun:literal, $object:ty) => {
        impl $crate::handles::Handle for $name {
            const KIND: u8 = $kind;
            const NOUN: &'static str = $noun;
            type Object = $object;

            fn table() -> &'static $crate::handles::Table<$object> {
                static TABLE: $crate::handles::Table<$object> = $crate::handles::Table::new();
                &TABLE
            }
        }
    };
}
pub(crate) use handle_kind;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Ship;
    #[derive(Debug)]
    struct Train;
    handle_kind!(Ship, 0x71, "ship", String);
    handle_kind!(Train, 0x72, "train", String);

    #[test]
    fn a_handle_is_good_until_it_is_taken_and_never_again() {
        let ship: *mut Ship = make("Argo".to_owned());
        assert_eq!(*get(ship).unwrap(), "Argo");
        assert_eq!(*take(ship).unwrap(), "Argo");
        assert_eq!(get(ship).unwrap_err().status(), hw_status::InvalidHandle);
        assert_eq!(take(ship).unwrap_err().status(), hw_status::InvalidHandle);
        assert_ne!(make::<Ship>("Argo".to_owned()), ship);
    }

    #[test]
    fn null_foreign_and_other_kinds_are_told_apart() {
        assert_eq!(get::<Ship>(std::ptr::null()).unwrap_err().status(), hw_status::InvalidArgument);
        let train: *mut Train = make("Rocket".to_owned());
        let error = get(train.cast::<Ship>()).unwrap_err();
        assert_eq!(error.status(), hw_status::InvalidHandle);
        assert!(error.message().contains("not one of Headwater's"), "{}", error.message());
        let local = 7_u64;
        assert_eq!(get((&raw const local).cast::<Ship>()).unwrap_err().status(), hw_status::InvalidHandle);
    }
}
