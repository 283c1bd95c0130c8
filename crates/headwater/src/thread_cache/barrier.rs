//! A memory barrier that is all at the expense of one side.
//!
//! A thread that announces itself and then looks for others (Dekker's pattern) needs a full barrier in between. That
//! barrier costs as much as an atomic exchange, 9 ns on the machine this was developed on, where a whole malloc/free pair
//! takes 8. But one side announces itself in every call and the other once in a while, so the rare side pays for both:
//! Linux's `membarrier` makes every running thread of the process pass a full barrier (0.2 us measured). The frequent side
//! keeps the compiler from reordering, and that is all.
//!
//! Where the call does not exist, both sides need a real barrier, and the frequent side has to be told (`latch.rs`).

use super::sync::{Ordering, fence};

/// The frequent side: between announcing and looking. Where barriers are not [one-sided](is_one_sided), it passes a real one
/// after this.
#[inline(always)]
pub(crate) fn light() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// Whether the frequent side may leave it at [`light`].
pub(crate) fn is_one_sided() -> bool {
    one_sided::in_force()
}

/// The rare side: between announcing and looking.
pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
    if one_sided::in_force() {
        one_sided::pass_everywhere();
    }
}

/// Asks the system for one-sided barriers. Before the first use; as often as one likes.
pub(crate) fn prepare() {
    one_sided::register();
}

#[cfg(all(target_os = "linux", not(all(loom, test))))]
mod one_sided {
    use std::sync::Once;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// `MEMBARRIER_CMD_PRIVATE_EXPEDITED`, from Linux 4.14 on.
    const PASS: libc::c_int = 1 << 3;
    /// `MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED`.
    const REGISTER: libc::c_int = 1 << 4;

    static IN_FORCE: AtomicBool = AtomicBool::new(false);

    pub(super) fn in_force() -> bool {
        IN_FORCE.load(Ordering::Relaxed)
    }

    pub(super) fn register() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| IN_FORCE.store(membarrier(REGISTER), Ordering::Relaxed));
    }

    pub(super) fn pass_everywhere() {
        // A child after `fork` has to register again.
        if membarrier(PASS) || (membarrier(REGISTER) && membarrier(PASS)) {
            return;
        }
        // Somebody has forbidden the call since it was registered (a sandbox). From now on both sides are told to use real
        // barriers, and what they stored before leaves every processor's buffer within microseconds.
        IN_FORCE.store(false, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
    }

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes three numbers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }
}

#[cfg(not(all(target_os = "linux", not(all(loom, test)))))]
mod one_sided {
    pub(super) fn in_force() -> bool {
        false
    }

    pub(super) fn register() {}

    pub(super) fn pass_everywhere() {}
}
