//! A lock whose owner pays two plain stores and a load.
//!
//! One thread owns what is behind the latch and comes by in every call; others come by rarely. The owner announces itself
//! (`busy`) and looks whether it is stopped (`stop`); a visitor announces a stop, passes a [barrier](super::barrier) that
//! counts for both sides, and waits until the owner is not busy. Whoever announced first is seen by the other, so both are
//! never inside. Visitors exclude each other by a mutex of their own, which is not here.
//!
//! Where the system has no one-sided barrier the owner needs a real one, and is told so in the same byte that stops it: one
//! comparison with zero covers both.

use super::barrier;
use super::sync::{AtomicBool, AtomicU8, Ordering, fence, pause};

/// A visitor is inside, or waits for the owner to leave.
const STOP: u8 = 1;
/// The owner must pass a real barrier before it looks.
const TWO_SIDED: u8 = 2;

/// The two announcements.
#[derive(Debug)]
pub(crate) struct Latch {
    /// The owner is inside, or about to look. Written by the owner.
    busy: AtomicBool,
    /// [`STOP`] and [`TWO_SIDED`]. Written by visitors.
    attention: AtomicU8,
}

impl Latch {
    pub(crate) fn new() -> Self {
        Self { busy: AtomicBool::new(false), attention: AtomicU8::new(at_ease()) }
    }

    /// The owner enters, unless a visitor is there. For one thread at a time, which is not inside yet.
    #[inline(always)]
    pub(crate) fn try_enter(&self) -> bool {
        self.busy.store(true, Ordering::Relaxed);
        barrier::light();
        // Acquire: what visitors changed is seen.
        self.attention.load(Ordering::Acquire) == 0 || self.try_enter_with_attention()
    }

    #[cold]
    fn try_enter_with_attention(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.attention.load(Ordering::Acquire) & STOP == 0 {
            return true;
        }
        self.busy.store(false, Ordering::Relaxed);
        false
    }

    /// The owner leaves.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// A visitor asks the owner to stay out. Takes effect with [`wait_until_idle`](Self::wait_until_idle), after a
    /// [`barrier::heavy`] in between: one barrier serves any number of latches.
    pub(crate) fn stop(&self) {
        self.attention.store(STOP | at_ease(), Ordering::Relaxed);
    }

    /// Waits until the owner is out. It is so within nanoseconds: nothing slow happens inside.
    pub(crate) fn wait_until_idle(&self) {
        while self.busy.load(Ordering::Acquire) {
            pause();
        }
    }

    /// The visitor leaves.
    pub(crate) fn resume(&self) {
        self.attention.store(at_ease(), Ordering::Release);
    }
}

/// What an owner sees while no visitor is there.
fn at_ease() -> u8 {
    if barrier::is_one_sided() { 0 } else { TWO_SIDED }
}
