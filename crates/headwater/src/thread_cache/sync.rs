//! Atomics, from the model checker where the tests run under it (`--cfg loom`) and from `std` everywhere else, so that the
//! code that is checked is the code that runs.

#[cfg(all(loom, test))]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence,
};
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence,
};

pub(crate) use std::sync::atomic::Ordering;

/// Lets another thread run: what is waited for is a few instructions away.
pub(crate) fn pause() {
    #[cfg(all(loom, test))]
    loom::thread::yield_now();
    #[cfg(not(all(loom, test)))]
    std::thread::yield_now();
}
