//! The boundary: what every exported function runs inside.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status::{Failure, hw_status};

/// Runs `work`, turns its failure into a code and the thread's message, and stops a panic.
///
/// Unwind safety is asserted: what a panic can leave half done is behind locks of the crates below, which do not panic by
/// intent and do not poison; the caller is told that there was a mistake, and nothing of it crosses into C.
#[inline]
pub fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> hw_status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => hw_status::Ok,
        Ok(Err(failure)) => failure.report(),
        Err(panic) => Failure::panicked(&*panic).report(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::status::{hw_last_error_message, hw_last_status};

    #[test]
    fn a_panic_becomes_a_status_with_its_message() {
        let status = guarded(|| panic!("the books are wrong by {}", 7));
        assert_eq!(status, hw_status::Internal);
        assert_eq!(hw_last_status(), hw_status::Internal);
        // SAFETY: the text is good until the next failure of this thread.
        let message = unsafe { CStr::from_ptr(hw_last_error_message()) };
        assert_eq!(message.to_str(), Ok("a mistake in Headwater: the books are wrong by 7"));
    }

    #[test]
    fn success_leaves_the_last_message_alone() {
        assert_eq!(guarded(|| Err(Failure::argument("no"))), hw_status::InvalidArgument);
        assert_eq!(guarded(|| Ok(())), hw_status::Ok);
        assert_eq!(hw_last_status(), hw_status::InvalidArgument);
    }
}
