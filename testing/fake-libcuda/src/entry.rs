//! The way in. Every symbol passes one of three guards, which do for all what libcuda does for each:
//! - [`anytime`]: nothing is needed (`cuInit`, versions, names of errors);
//! - [`initialised`]: `cuInit` has succeeded, otherwise `CUDA_ERROR_NOT_INITIALIZED`;
//! - [`in_context`]: and the calling thread has a live current context, otherwise `CUDA_ERROR_INVALID_CONTEXT`.
//!
//! The guards also deliver injected faults, and stop panics: one that reached a C caller would abort the process, and
//! with it every other test in it. It becomes `CUDA_ERROR_UNKNOWN`, with a line on standard error.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::abi::CUresult;
use crate::context::{self, Context};
use crate::control;
use crate::machine::{self, Machine};

/// What the body of a symbol returns.
pub(crate) type Answer<T = ()> = Result<T, CUresult>;

/// Runs a call that needs nothing.
pub(crate) fn anytime(name: &'static str, body: impl FnOnce() -> Answer) -> CUresult {
    // Unwind safety: state is behind locks that do not poison and is changed by whole inserts and removals only.
    let caught = catch_unwind(AssertUnwindSafe(|| match control::injected(name) {
        Some(fault) => Err(fault),
        None => body(),
    }));
    match caught {
        Ok(Ok(())) => CUresult::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            eprintln!("fake libcuda: {name} panicked; answered CUDA_ERROR_UNKNOWN");
            CUresult::UNKNOWN
        }
    }
}

/// Runs a call that needs `cuInit` before it.
pub(crate) fn initialised(name: &'static str, body: impl FnOnce(&Machine) -> Answer) -> CUresult {
    anytime(name, || body(&*machine::current().ok_or(CUresult::NOT_INITIALIZED)?))
}

/// Runs a call that needs a current context.
pub(crate) fn in_context(name: &'static str, body: impl FnOnce(&Machine, Context) -> Answer) -> CUresult {
    initialised(name, |machine| body(machine, context::current(machine)?))
}

/// A place where the caller wants an answer, checked before anything is done.
#[derive(Debug)]
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// A place that must be given; null is an invalid value.
    ///
    /// # Safety
    /// `place` is null, or valid for writing a `T` until the call that got it returns.
    pub(crate) unsafe fn required(place: *mut T) -> Answer<Self> {
        NonNull::new(place).map(Self).ok_or(CUresult::INVALID_VALUE)
    }

    /// A place that may be left out.
    ///
    /// # Safety
    /// As [`required`](Self::required).
    pub(crate) unsafe fn optional(place: *mut T) -> Option<Self> {
        NonNull::new(place).map(Self)
    }

    /// Writes the answer.
    pub(crate) fn put(self, value: T) {
        // SAFETY: not null, and valid for this write by the promise made to the constructor.
        unsafe { self.0.write(value) }
    }
}

/// A C string argument; null or not UTF-8 is an invalid value.
///
/// # Safety
/// `text` is null, or points to a string that ends in NUL and outlives `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Answer<&'a str> {
    if text.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and a C string by the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| CUresult::INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_unknown_error() {
        assert_eq!(anytime("cuTest", || panic!("on purpose")), CUresult::UNKNOWN);
    }

    #[test]
    fn a_missing_place_is_refused_before_anything_is_done() {
        // SAFETY: null is allowed, and the other place lives on.
        let (none, mut place) = (unsafe { Out::<u32>::required(std::ptr::null_mut()) }, 0_u32);
        assert_eq!(none.err(), Some(CUresult::INVALID_VALUE));
        // SAFETY: as above.
        unsafe { Out::required(&mut place) }.unwrap().put(7);
        assert_eq!(place, 7);
    }
}
